"""Grids: which simulations a sweep consists of.

A grid is a set of *points*, each a complete set of parameters of `roundelay simulate`, and a number
of repetitions (`seeds`) of each.  The ready ones are those of the papers:

    fig6        CM84 Fig. 6 a–d: N = 3, 10, 30 at L = 1, and N = 10 at L = 1, 2, 4
    table1      CM84 Table I: transfer rates, busy and idle, without loss and with
    complexity  TO and PO: PDUs, rounds and slots of an isolated broadcast
    spo         SPO Fig. 1 and 2: delay against members and against loss

Any other comes from a TOML file::

    name = "mine"            # the file's name if absent
    messages = 1000
    seeds = 5
    profile = "paper"        # what stands here holds for every table below

    [[grid]]
    protocol = ["token", "positive-ack"]
    sites = [3, 10]
    loss = [0.0, 0.05, 0.1]

Each key has a value or a list of values, and a table stands for all combinations.

A run's seed is a hash of the experiment's name, the point and the repetition, so it is the same
whoever runs it, beside whatever else.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from itertools import product
from math import exp
from pathlib import Path
from typing import Any, Final, get_args, get_type_hints

import msgspec
from msgspec import Struct, structs

from roundelay.core import cost
from roundelay.core.cluster.config import DEFERRED, EAGER
from roundelay.core.errors import ConfigError, UsageError
from roundelay.core.families import CLUSTERS, PO, POSITIVE_ACK, SPO, TO, TO_CHANNEL, TOKEN
from roundelay.core.limits import whole
from roundelay.pipeline.spark.executors import packed
from roundelay.runs.cluster import SLOT_RUNS
from roundelay.runs.measured import ISOLATED, SATURATED
from roundelay.runs.simulate import SimulateParams
from roundelay.sim.complexity import LOSSES

RUNS_MAX: Final = 1_000_000

FIRST: Final = ("protocol", "sites", "resilience", "tau", "rate", "loss", "profile")


_HINTS: Final = get_type_hints(SimulateParams)
_DECIDED: Final = ("seed", "wire")
AXES: Final = {
    name: next(kind for kind in (str, float, int) if kind in (hint, *get_args(hint)))
    for name, hint in ({name: _HINTS[name] for name in FIRST} | _HINTS).items()
    if name not in _DECIDED
}
"""The keys of a grid, with the type of their values: every parameter of a simulation but those
that a sweep decides."""

KINDS: Final = {str: "a word", int: "a whole number", float: "a number"}

LOSS_STEPS: Final = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2)
TAUS: Final = (0.1, 1.0, 10.0)


class Point(Struct, frozen=True):
    """One place of the grid."""

    index: int
    key: str
    """All that was said about it, in one word; the seed depends on it."""
    params: SimulateParams
    """Settled; the seed in it means nothing."""


class SweepRun(Struct, frozen=True):
    """One repetition at one point."""

    run: str
    """Names the run among all there can be: what is finished is known by it."""
    point: Point
    repetition: int
    seed: int

    @property
    def params(self) -> SimulateParams:
        return structs.replace(self.point.params, seed=self.seed)


class Grid(Struct, frozen=True):
    """Points, and how often each is run."""

    name: str
    points: tuple[Point, ...]
    seeds: int

    @property
    def fingerprint(self) -> str:
        """The same for grids with the same points, whatever the number of seeds."""
        names = [self.name, *(_run_name(self.name, point) for point in self.points)]
        return _hash("\n".join(names))

    def runs(self) -> list[SweepRun]:
        runs = []
        for point, repetition in product(self.points, range(self.seeds)):
            name = f"{_run_name(self.name, point)}-{repetition}"
            seed = seed_of(self.name, point.key, repetition)
            runs.append(SweepRun(name, point, repetition, seed))
        return runs


def seed_of(experiment: str, key: str, repetition: int) -> int:
    """The seed of a run: 63 bits of a hash.

    >>> seed_of("fig6", "token-sites3", 0) == seed_of("fig6", "token-sites3", 0)
    True
    """
    return int(_hash(f"{experiment}/{key}/{repetition}"), 16) >> 1


def _hash(text: str) -> str:
    return blake2b(text.encode(), digest_size=8).hexdigest()


def _run_name(experiment: str, point: Point) -> str:
    return _hash(f"{experiment}/{point.key}/{point.params.messages}")


# -- from axes to points -----------------------------------------------------------------------

Axes = Mapping[str, Any]
"""Key → value or list of values."""


def make(name: str, tables: Iterable[Axes], seeds: int, messages: int | None = None) -> Grid:
    """The grid of all combinations in each table; a point that occurs twice counts once."""
    whole("seeds", seeds, 1, RUNS_MAX)
    by_key: dict[tuple[str, int], SimulateParams] = {}
    for axes in tables:
        lists = {key: value if isinstance(value, list) else [value] for key, value in axes.items()}
        if messages is not None:
            lists["messages"] = [messages]
        size = seeds
        for key, values in lists.items():
            size *= len(values)
            if size > RUNS_MAX:
                raise ConfigError(key, f"{len(values)} values", f"at most {RUNS_MAX} runs in all")
        for combined in product(*lists.values()):
            params = _settled(dict(zip(lists, combined, strict=True)))
            by_key.setdefault((key_of(params), params.messages), params)
            if len(by_key) * seeds > RUNS_MAX:
                raise ConfigError("seeds", seeds, f"at most {RUNS_MAX} runs in all")
    points = [Point(index, key, by_key[key, count]) for index, (key, count) in enumerate(by_key)]
    return Grid(name, tuple(points), seeds)


def _settled(values: dict[str, Any]) -> SimulateParams:
    if values.get("resilience") is not None and values.get("protocol") not in (None, TOKEN):
        # Only the token protocol has an L; what would be too large for it is no matter elsewhere.
        values = values | {"resilience": None}
    try:
        return SimulateParams(**values).settled()
    except ConfigError as error:
        beside = [key for key in values if key in ("protocol", "sites") and key != error.field]
        at = ", ".join(f"{key} = {values[key]}" for key in beside)
        allowed = f"{error.allowed} (at {at})" if at else error.allowed
        raise ConfigError(error.field, error.value, allowed) from None


_DEFAULTS: Final = SimulateParams()
_FIRST: Final = ("protocol", "sites")
_NOT_IN_KEY: Final = ("messages", *_DECIDED, *_FIRST)


def key_of(params: SimulateParams) -> str:
    """A point in one word: what differs from the defaults, protocol and sites first.

    >>> key_of(SimulateParams(sites=3, tau=0.1).settled())
    'token-sites3-resilience1-tau0.1'
    """
    words = [params.protocol, f"sites{params.sites}"]
    for name in params.__struct_fields__:
        value = getattr(params, name)
        if name in _NOT_IN_KEY or value is None or value == getattr(_DEFAULTS, name):
            continue
        if name == "rate" or (name, value) == ("load", "poisson"):
            continue  # rate follows from tau and hold_ms
        words.append(f"{name}{value:g}" if isinstance(value, float) else f"{name}{value}")
    return "-".join(words)


# -- the papers' own ---------------------------------------------------------------------------


def _fig6() -> list[Axes]:
    token: Axes = {"protocol": TOKEN, "tau": list(TAUS), "loss": list(LOSS_STEPS)}
    return [
        {**token, "sites": [3, 10, 30], "resilience": 1},
        {**token, "sites": 10, "resilience": [2, 4]},
        # Its count does not depend on the load.
        {"protocol": POSITIVE_ACK, "sites": [3, 10, 30], "tau": 1.0, "loss": list(LOSS_STEPS)},
    ]


def _table1() -> list[Axes]:
    tables: list[Axes] = []
    for sites in (5, 10):
        base: Axes = {"protocol": TOKEN, "sites": sites, "resilience": 1}
        for rate in ({}, {"kw": 4}, {"kr": 2}, {"kr": sites - 1}):
            tables.append({**base, **rate, "load": [SATURATED, ISOLATED]})
            tables.append({**base, **rate, "load": SATURATED, "loss": 0.1})
    return tables


def _complexity() -> list[Axes]:
    alone: Axes = {"load": ISOLATED, "policy": [DEFERRED, EAGER]}
    return [{"protocol": [TO, TO_CHANNEL, PO], "sites": list(range(2, 13)), **alone}]


def _spo() -> list[Axes]:
    return [
        {"protocol": SPO, "sites": list(range(3, 13)), "load": ISOLATED},
        {"protocol": SPO, "sites": list(range(3, 13)), "load": ISOLATED, "destinations": [1, 2]},
        {"protocol": SPO, "sites": list(range(6, 13)), "load": ISOLATED, "destinations": 4},
        {"protocol": SPO, "sites": [3, 5, 8], "load": ISOLATED, "loss": list(LOSSES)},
    ]


READY: Final = {
    "fig6": (_fig6, 2000, 5),
    "table1": (_table1, 400, 3),
    "complexity": (_complexity, 8, 2),
    "spo": (_spo, 60, 5),
}
"""Name → (tables, messages a run, repetitions)."""


def load(source: str, messages: int | None = None, seeds: int | None = None) -> Grid:
    """A ready grid by its name, or one from a TOML file; what is given goes before what it says."""
    ready = READY.get(source)
    if ready is not None:
        tables, usual_messages, usual_seeds = ready
        return make(source, tables(), seeds or usual_seeds, messages or usual_messages)
    path = Path(source)
    if path.suffix != ".toml" and not path.exists():
        raise ConfigError("grid", source, f"{', '.join(READY)}, or a TOML file")
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"grid {source} is no TOML: {error}") from None
    except UnicodeDecodeError:
        raise UsageError(f"grid {source} is no text") from None
    except OSError as error:
        raise ConfigError("grid", source, f"a file that can be read ({error.strerror})") from None
    return parse(document, path.stem, messages, seeds)


def parse(
    document: Mapping[str, Any], name: str, messages: int | None = None, seeds: int | None = None
) -> Grid:
    """The grid that a TOML document describes; raises ConfigError with the key's name."""
    given = dict(document)
    grid_name: Any = given.pop("name", name)
    if not isinstance(grid_name, str) or not grid_name:
        raise ConfigError("name", grid_name, "a word")
    repetitions = given.pop("seeds", 5)
    if isinstance(repetitions, bool) or not isinstance(repetitions, int):
        raise ConfigError("seeds", repetitions, "a whole number: how often each point is run")
    tables = given.pop("grid", None)
    shared = _axes(given, "")
    if tables is None:
        tables = [{}] if shared else []
    tables = tables if isinstance(tables, list) else [tables]
    if not all(isinstance(table, dict) for table in tables):
        raise ConfigError("grid", tables, "one table [grid], or several [[grid]]")
    if not tables:
        raise ConfigError("grid", "nothing", "a table with " + ", ".join(AXES))
    combined = [
        {**shared, **_axes(table, f"grid[{number}].")} for number, table in enumerate(tables)
    ]
    return make(grid_name, combined, seeds or repetitions, messages)


def _axes(table: Mapping[str, Any], where: str) -> dict[str, Any]:
    axes = {}
    for key, value in table.items():
        kind = AXES.get(key)
        if kind is None:
            hint = " (seeds says how often each point is run)" if key == "seed" else ""
            raise ConfigError(f"{where}{key}", value, f"no key of a grid{hint}: {', '.join(AXES)}")
        values = value if isinstance(value, list) else [value]
        if not values:
            raise ConfigError(f"{where}{key}", "[]", f"{KINDS[kind]}, or a list of them")
        axes[key] = [_typed(f"{where}{key}", item, kind) for item in values]
    return axes


def _typed(field: str, value: Any, kind: type) -> Any:
    if isinstance(value, bool) or not isinstance(value, (int, float) if kind is float else kind):
        shown = msgspec.json.encode(value, enc_hook=str).decode()
        raise ConfigError(field, shown, f"{KINDS[kind]}, or a list of them")
    return kind(value)


# -- how long, and in which order ----------------------------------------------------------------

EVENT_S: Final = 6e-6
BIN_S: Final = 2.0
BIN_LEAST_S: Final = 0.1
BINS_LEAST: Final = 64


def expected_s(params: SimulateParams) -> float:
    """About how long a run takes; nothing but the order and the bins of runs depends on it."""
    sites, loss, messages = params.sites, params.loss, params.messages
    if params.protocol == TOKEN:
        idle = {SATURATED: 0.0, ISOLATED: 1.0}.get(params.load or "", exp(-(params.tau or 1.0)))
        level = params.resilience or 0
        multicasts = 1 + cost.control_messages(level, idle, params.kw, params.kr)
        events = sites * multicasts * (1 + 12 * loss) + cost.x_p_token(sites, level, 1.0, loss)
    elif params.protocol == POSITIVE_ACK:
        events = 2 * cost.x_b_positive_ack(sites, loss)
    elif params.protocol in CLUSTERS:
        pdus = sites * sites if params.policy == EAGER else 2 * sites
        events = 4.0 * pdus * sites * (1 + 10 * loss)
        if params.load == ISOLATED:  # and once more in slots
            messages += min(messages, SLOT_RUNS) if loss else 8
    else:
        events = 6.0 * sites * (1 + 5 * loss)
    return messages * events * EVENT_S


def bins(runs: Sequence[SweepRun]) -> list[list[SweepRun]]:
    """The runs in bins, long ones first and alone, short ones together.

    Whoever takes the next bin when it has done its last is never far from done when the others
    are.  The bins do not depend on how many there are to do them.
    """
    seconds = {run.run: expected_s(run.params) for run in runs}

    def expected(run: SweepRun) -> float:
        return seconds[run.run]

    full = min(BIN_S, max(BIN_LEAST_S, sum(seconds.values()) / BINS_LEAST))
    longest_first = sorted(runs, key=lambda run: (expected(run), run.run), reverse=True)
    filled = packed(longest_first, full, expected)
    return sorted(filled, key=lambda some: -sum(map(expected, some)))
