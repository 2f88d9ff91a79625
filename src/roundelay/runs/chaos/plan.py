"""What a chaos run does to its group: parameters, and the plan that a seed makes of them.

Besides the troubles of `chaos.kinds` (of which `twin`, `clock`, `some` and `late-link` are nemeses
that trials by others found promises broken with) there are

=============  ===================================================================================
`power`        SIGKILL of all sites at once, and their restart
`two`          a nemesis: SIGKILL of one site while what another sends waits
`drop`         the next PDUs of a kind of the reformation are lost, and a reformation is provoked
=============  ===================================================================================

Without the switch the network can be split, and nothing else.
"""

from __future__ import annotations

from random import Random
from typing import Any, Final

import msgspec
from msgspec import Struct

from roundelay.core.errors import ConfigError
from roundelay.core.families import TOKEN
from roundelay.core.limits import chance, one_of, whole
from roundelay.runs.chaos import kinds
from roundelay.runs.chaos.kinds import Trouble
from roundelay.runs.chaos.network import NETWORKS, SWITCH
from roundelay.sim.mutants.registry import mutant_named
from roundelay.trace.live import DELIVERIES, LEVELS

POWER: Final = "power"
DROP: Final = "drop"
TWO: Final = "two"

NEMESES: Final = (kinds.TWIN, kinds.CLOCK, kinds.SOME)
NEMESES_BY_SWITCH: Final = (kinds.LATE_LINK, TWO)
CLOCK_STEPS_S: Final = (-3600.0, 86_400.0)
LASTS_S: Final = {
    TWO: (0.5, 2.5),
    kinds.TWIN: (1.0, 4.0),
    kinds.LATE_LINK: (1.0, 4.0),
    kinds.CLOG: (0.1, 3.0),
}
"""How long troubles last, where it is another time than that of a kill."""

ANYWHERE: Final = (kinds.KILL, kinds.WIPE, POWER, kinds.PAUSE, kinds.PARTITION)
BY_SWITCH: Final = (kinds.ONE_WAY, kinds.SPLIT, kinds.FLAP, kinds.CLOG, DROP)

TARGETS: Final = ("INVITE", "VOTE1", "NEW_TL", "VOTE2", "NEW_TOKEN", "ABORT", "CONFIRM")
"""Kinds of PDUs that are lost on purpose."""

STRUCK: Final = 0.85
"""Trouble comes while the load is not further than this,"""
HEALED: Final = 0.9
"""and from here on there are no faults any more: what is pending has to commit in time (I7)."""
NAMES: Final = "abcdefghijklmnopqrstuvwxyz"


class ChaosParams(Struct, frozen=True, kw_only=True):
    """What decides a run, as far as anything does."""

    seed: int = 0
    network: str = SWITCH
    sites: int = 5
    senders: int = 3
    resilience: int = 1
    loss: float = 0.2
    messages: int = 200_000
    """That have to be delivered everywhere, of all senders together."""
    bytes: int = 64
    seconds: float = 60.0
    """How long the senders take, if nothing holds them up."""
    kills: int = 2
    wipes: int = 0
    pauses: int = 1
    pause_s: float = 10.0
    partitions: int = 1
    partition_s: float = 5.0
    nemeses: int = 2
    """Of those that others found promises broken with."""
    recorders: int = 0
    """Sites that record the group; their journals must have everything in the end."""
    wild: int = 0
    """Further troubles, of any kind, and worse weather."""
    sealed: bool = True
    mutant: str = ""
    """Run with a rule of the protocol switched off: does anybody notice?"""
    level: str = DELIVERIES
    patience_s: float = 120.0
    """How long to wait for what must happen before it is called a failure."""

    def check(self) -> None:
        whole("sites", self.sites, 3, len(NAMES))
        whole("senders", self.senders, 1, self.sites)
        whole("messages", self.messages, 1, 100_000_000)
        whole("bytes", self.bytes, 16, 32_768)
        for field in ("kills", "wipes", "pauses", "partitions", "nemeses", "wild"):
            whole(field, getattr(self, field), 0, 100)
        whole("recorders", self.recorders, 0, self.sites)
        whole("resilience", self.resilience, 0, (self.sites - 1) // 2)
        chance("loss", self.loss)
        for field in ("seconds", "pause_s", "partition_s", "patience_s"):
            if not 0 < getattr(self, field) <= 86_400:
                raise ConfigError(field, getattr(self, field), "a number of seconds above 0")
        one_of("network", self.network, NETWORKS)
        if self.mutant:
            mutant_named(self.mutant, TOKEN)
        one_of("level", self.level, LEVELS)

    def rerun(self) -> str:
        """The line that runs it again."""
        words = ["roundelay chaos"]
        for field, default in msgspec.structs.asdict(ChaosParams()).items():
            value = getattr(self, field)
            option = "--" + field.removesuffix("_s").replace("_", "-")
            if field == "sealed":
                words += [] if value else ["--insecure"]
            elif field in ("seed", "messages") or value != default:
                words.append(f"{option} {value:g}" if type(value) is float else f"{option} {value}")
        return " ".join(words)


class TimedTrouble(Trouble, frozen=True, kw_only=True):
    """A trouble of a run whose load goes on meanwhile."""

    at: float
    """When the load is that far, from 0 to 1."""
    holder: bool = False
    """Strikes whoever holds the token, if one is up."""
    target: str = ""
    """Of a drop: the kind of PDU."""


def troubles(params: ChaosParams, rng: Random) -> list[TimedTrouble]:
    """What the seed has in store, in order."""
    chosen = (
        [kinds.KILL] * params.kills
        + [kinds.WIPE] * params.wipes
        + [kinds.PAUSE] * params.pauses
        + [kinds.PARTITION] * params.partitions
    )
    switched = params.network == SWITCH
    every = ANYWHERE + (BY_SWITCH if switched else ())
    chosen += rng.choices(every, k=params.wild)
    chosen += rng.choices(NEMESES + (NEMESES_BY_SWITCH if switched else ()), k=params.nemeses)
    rng.shuffle(chosen)
    return [
        _trouble(params, rng, kind, (number + 0.3 + 0.4 * rng.random()) / len(chosen) * STRUCK)
        for number, kind in enumerate(chosen)
    ]


def _trouble(params: ChaosParams, rng: Random, kind: str, at: float) -> TimedTrouble:
    everybody = NAMES[: params.sites]
    if kind in (kinds.PARTITION, kinds.FLAP):
        side = rng.sample(everybody, rng.randint(1, (params.sites - 1) // 2))
        return TimedTrouble(kind, tuple(sorted(side)), params.partition_s, at=at)
    if kind in (kinds.ONE_WAY, kinds.SPLIT):
        return TimedTrouble(kind, tuple(rng.sample(everybody, 2)), params.partition_s, at=at)
    if kind == kinds.CLOCK:
        step_s = rng.choice(CLOCK_STEPS_S)
        who, lasts_s = (rng.choice(everybody),), rng.uniform(1.0, 4.0)
        holder = rng.random() < 0.5
        return TimedTrouble(kind, who, lasts_s, value=step_s, at=at, holder=holder)
    lasts_s = params.pause_s
    if kind != kinds.PAUSE:
        lasts_s = rng.uniform(*LASTS_S.get(kind, (0.2, 2.5)))
    struck = {kinds.SOME: params.sites, TWO: 2}.get(kind, 1)  # of `some` the first return first
    names = tuple(everybody if kind == POWER else rng.sample(everybody, struck))
    target = rng.choice(TARGETS) if kind == DROP else ""
    either = kind in (kinds.KILL, kinds.WIPE, kinds.PAUSE) and rng.random() < 0.5
    return TimedTrouble(kind, names, lasts_s, at=at, holder=kind == DROP or either, target=target)


def weather(params: ChaosParams, rng: Random) -> dict[str, Any]:
    """What the switch does all the time."""
    rule: dict[str, Any] = {
        "loss": params.loss,
        "duplicate": rng.choice([0, 0.02, 0.1]),
        "reorder": {"rate": rng.choice([0, 0.02, 0.1]), "within_ms": 5},
        "corrupt": rng.choice([0, 0, 0.01]),
    }
    if params.wild:
        rule |= {
            "burst": {"start": rng.choice([0, 0, 0.001]), "most": 50},
            "delay_ms": [0, rng.choice([0, 0, 5, 50])],
            "replay": {"rate": rng.choice([0, 0, 0.01]), "least_ms": 500, "most_ms": 5_000},
            "truncate": rng.choice([0, 0, 0.01]),
        }
    return rule if params.loss else {"loss": 0}
