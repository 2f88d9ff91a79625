"""What a round of `roundelay chaos --api` is: a group, and what is done to it; decided by its seed.

Besides the troubles of `chaos.kinds`, where a kill or a pause may be of the machine, of its node or
of its application only, and a pause goes past the group's time-outs, there are

=============  ===================================================================================
storm          for a while 30 % of all copies are lost
replaced       SIGSTOP, a replacement of the same name is started, SIGCONT
old-folder     a machine restarts with a copy of its disk of some time ago
all            all machines are killed, and return
power-cut      the power of one machine is cut: what it had not synced to its disk is lost
blackout       the power of all machines is cut, where broadcasts return when they are on disks
moved          a machine restarts at another address
address        the network interface of a machine gets another address while it runs
=============  ===================================================================================

Where a plan says `two at once`, two of them strike different members at the same time.
"""

from __future__ import annotations

from json import dumps
from random import Random
from typing import Any, Final

from msgspec import Struct

from roundelay.client.messages import COMMITTED, RECORDED, SYNCED
from roundelay.core.engine import ACCEPTED
from roundelay.core.errors import ConfigError
from roundelay.core.families import RECORDS, TOTAL, Family
from roundelay.core.limits import one_of, whole
from roundelay.runs.chaos import kinds
from roundelay.runs.chaos.kinds import APPLICATION, MACHINE, NODE, Trouble
from roundelay.runs.chaos.network import NAMESPACES, SWITCH


def _listed(text: str) -> tuple[str, ...]:
    return tuple(text.split())


SERVICES: Final = _listed("resilient total hub partial selective reliable fifo journal wide")
"""What is tried in turn; `hub` is `total` with a hub."""
FAMILY_OF: Final[dict[str, Family]] = {
    "hub" if family.one_channel else family.service: family for family in RECORDS
}
"""Service → what there is to know of its protocol."""
NAMES: Final = "abcdefgh"
SETUPS: Final = 200
"""So many groups are tried to find one in which a trouble makes sense."""

STORM: Final = "storm"
REPLACED: Final = "replaced"
OLD_FOLDER: Final = "old-folder"
ALL: Final = "all"
POWER_CUT: Final = "power-cut"
BLACKOUT: Final = "blackout"
MOVED: Final = "moved"
ADDRESS: Final = "address"

ANY: Final = _listed(
    "kill kill wipe pause partition one-way split flap storm clog twin replaced clock late-link"
)
WITH_DISK: Final = (OLD_FOLDER, ALL, kinds.SOME)
"""Only where all members keep what they promised in a folder."""
KINDS: Final = tuple(dict.fromkeys((*ANY, *WITH_DISK, POWER_CUT, BLACKOUT, MOVED, ADDRESS)))

EMBEDDED: Final = "embedded"
DAEMON: Final = "daemon"

FANOUT: Final = "fan-out"
"""Besides the networks of `chaos.network`; where no namespaces can be made, it is the switch."""
ON_MEDIUM: Final = {
    FANOUT: _listed("kill wipe pause twin replaced clock moved"),
    NAMESPACES: _listed("kill wipe pause partition twin clock late-link address"),
}
"""The troubles of media that are not the switch."""


class ApiParams(Struct, frozen=True, kw_only=True):
    """What `roundelay chaos --api` was asked for."""

    seed: int = 0
    minutes: float = 3.0
    rounds: int = 0
    """So many rounds, instead of minutes."""
    services: tuple[str, ...] = SERVICES
    members: int = 0
    """0: as the seed wants it."""
    troubles: int = 4
    """Of each round."""
    only: tuple[str, ...] = ()
    """Kinds of trouble to choose from; empty: all that make sense."""
    patience_s: float = 60.0
    """In that time after a trouble everybody has a broadcast confirmed again."""

    def check(self) -> None:
        for service in self.services:
            one_of("service", service, SERVICES, ", ")
        for kind in self.only:
            one_of("nemesis", kind, KINDS, ", ")
        if self.members:
            whole("members", self.members, 3, len(NAMES))
        for field in ("minutes", "patience_s"):
            if not 0 < getattr(self, field) <= 10_000:
                raise ConfigError(field, getattr(self, field), "a number above 0")

    def rerun(self, seed: int, service: str) -> str:
        """The line that runs one round again."""
        words = [f"roundelay chaos --api --seed {seed} --rounds 1 --service {service}"]
        if self.members:
            words.append(f"--members {self.members}")
        if self.troubles != ApiParams().troubles:
            words.append(f"--troubles {self.troubles}")
        words += [f"--nemesis {kind}" for kind in self.only]
        if self.patience_s != ApiParams().patience_s:
            words.append(f"--patience {self.patience_s:g}")
        return " ".join(words)


class Setup(Struct, frozen=True, kw_only=True):
    """The group of a round."""

    service: str
    names: tuple[str, ...]
    modes: tuple[str, ...]
    """Of each member: embedded, or through a daemon."""
    medium: str
    fixed: bool
    """The roster is fixed; else members find each other."""
    disks: bool
    """Members have a folder."""
    recorders: int
    """The first so many members record the group."""
    resilience: int
    durability: str
    """What a confirmation means: committed, recorded or synced."""
    rate: float
    size: int
    roles: str = ""
    """Of a `journal` or `wide` group: its file."""
    keepers: tuple[str, ...] = ()
    """Members that record it, as the file says."""
    silent: tuple[str, ...] = ()
    """Members that have a role and neither send nor read."""

    @property
    def family(self) -> Family:
        """The record of its protocol."""
        return FAMILY_OF[self.service]


class RoundPlan(Struct, frozen=True, kw_only=True):
    """A round."""

    seed: int
    setup: Setup
    weather: dict[str, Any]
    troubles: tuple[tuple[Trouble, ...], ...]
    """One after the other; those of one place strike at the same time."""

    def has(self, *sought: str) -> bool:
        """Whether there is any of these troubles."""
        return any(trouble.kind in sought for place in self.troubles for trouble in place)


def plan_of(params: ApiParams, seed: int) -> RoundPlan:
    """The round of that seed."""
    service = params.services[seed % len(params.services)]
    rng = Random(f"chaos --api/{seed}/{service}")
    for _ in range(SETUPS):
        setup = _setup(params, rng, service)
        possible = [kind for kind in _kinds(setup) if not params.only or kind in params.only]
        if possible:
            break
    else:
        raise ConfigError("nemesis", ", ".join(params.only), f"others for service {service}")
    weather = _weather(rng)
    places: list[tuple[Trouble, ...]] = []
    chosen = rng.sample(possible, len(possible))
    while len(chosen) < params.troubles:
        chosen += rng.sample(possible, len(possible))
    for kind in chosen[: params.troubles]:
        place = [_trouble(rng, setup, kind)]
        if rng.random() < 0.25:
            second = _second(rng, setup, place[0])
            place += [second] if second else []
        places.append(tuple(place))
    return RoundPlan(seed=seed, setup=setup, weather=weather, troubles=tuple(places))


def _setup(params: ApiParams, rng: Random, service: str) -> Setup:
    family = FAMILY_OF[service]
    size = params.members or rng.choice([3, 3, 4, 5])
    names = tuple(NAMES[:size])
    mostly = rng.choice([(EMBEDDED,), (DAEMON,), (EMBEDDED, DAEMON)])
    modes = tuple(rng.choice(mostly) for _ in names)
    fixed = rng.random() < 0.5
    disks = rng.random() < 0.7
    recorders = 0
    roles = ""
    silent: tuple[str, ...] = ()
    keepers: tuple[str, ...] = ()
    if family.stages == (ACCEPTED,):
        fixed = disks = False
    if family.order == TOTAL and not family.has_roles:
        recorders = rng.choice([0, 0, 1, 2])
    if fixed or recorders:
        disks = True
    medium = rng.choices([SWITCH, FANOUT, NAMESPACES], [0.75, 0.15, 0.1])[0]
    if family.has_roles:
        medium = SWITCH
    if family.has_roles and not family.has_levels:
        fixed = disks = True
        if rng.random() < 0.5 or size < 4:
            # TOML writes a list of names as JSON does.
            roles = f'profile = "demo"\nmembers = {dumps(names)}\n'
            silent = keepers = names[:1]
        else:
            keepers = (names[0], names[2])
            roles = (
                f"members = {dumps(names)}\nretransmitters = {dumps(names[:2])}\n"
                f"acknowledgers = {dumps(names[2:4])}\nrecorders = {dumps(keepers)}\n"
                f"users = {dumps(names)}\n"
            )
    if family.has_levels:
        fixed = disks = True
        names, modes = tuple(NAMES[:6]), tuple(rng.choice(mostly) for _ in NAMES[:6])
        silent = keepers = (names[0], names[3])
        roles = "".join(f"[[networks]]\nmembers = {dumps(names[at : at + 3])}\n" for at in (0, 3))
    most = (size - 1) // 2
    durability = COMMITTED
    if (recorders or family.has_roles) and rng.random() < 0.5:
        durability = RECORDED
    elif family.resilient and fixed and disks and rng.random() < 0.5:
        durability = SYNCED
    return Setup(
        service=service, names=names, modes=modes, medium=medium, fixed=fixed, disks=disks,
        recorders=recorders, resilience=rng.randint(1, most), durability=durability,
        rate=rng.choice([5.0, 15.0, 30.0]), size=rng.choice([40, 200, 3000]), roles=roles,
        keepers=keepers, silent=silent,
    )  # fmt: skip


def _weather(rng: Random) -> dict[str, Any]:
    """What the switch does all the time."""
    return {
        "loss": rng.choice([0, 0.02, 0.05, 0.1, 0.2, 0.3]),
        "duplicate": rng.choice([0, 0.02, 0.1]),
        "delay_ms": [0, rng.choice([0, 2, 10])],
        "reorder": {"rate": rng.choice([0, 0.02, 0.1]), "within_ms": 5},
    }


def _kinds(setup: Setup) -> tuple[str, ...]:
    """What makes sense in this group."""
    if setup.medium in ON_MEDIUM:
        return ON_MEDIUM[setup.medium]
    possible = list(ANY)
    if setup.family.resilient and setup.disks and setup.fixed:
        possible += (*WITH_DISK, POWER_CUT)
    if setup.fixed and setup.durability != COMMITTED and not setup.family.has_levels:
        possible.append(BLACKOUT)  # a hierarchy without its global level waits for an operator
    if setup.family.has_roles:  # a role is bound to its disk: nobody can take it over
        possible.remove(REPLACED)
    return tuple(possible)


def _trouble(rng: Random, setup: Setup, kind: str, spared: tuple[str, ...] = ()) -> Trouble:
    names = [name for name in setup.names if name not in spared]
    if kind == kinds.WIPE and len(setup.keepers) - setup.roles.count("[[networks]]") < 2:
        names = [name for name in names if name not in setup.keepers]  # the only record stays
    who: tuple[str, ...] = (rng.choice(names),)
    lasts = rng.uniform(0.5, 4.0)
    scope, value = MACHINE, 0.0
    if kind in (kinds.PARTITION, kinds.FLAP):
        side = rng.randint(1, max(1, min(len(names), (len(setup.names) - 1) // 2)))
        who, lasts = tuple(sorted(rng.sample(names, side))), rng.uniform(2.0, 12.0)
    elif kind in (kinds.ONE_WAY, kinds.SPLIT):
        who, lasts = tuple(rng.sample(setup.names, 2)), rng.uniform(2.0, 8.0)
    elif kind in (ALL, kinds.SOME, BLACKOUT):
        order = rng.sample(setup.names, len(setup.names))
        who, lasts = tuple(order), rng.uniform(0.2, 3.0)  # of `some` the first of them return first
    elif kind == kinds.PAUSE:
        lasts = rng.choice([rng.uniform(0.5, 2.0), rng.uniform(4.0, 12.0)])
    elif kind in (STORM, kinds.TWIN, REPLACED, kinds.CLOCK):
        lasts = rng.uniform(3.0, 8.0)
    elif kind == kinds.LATE_LINK:
        lasts = rng.uniform(2.0, 5.0)
    if kind == kinds.CLOCK:
        value = rng.choice([-3600.0, 86_400.0, -5.0])
    if kind in (kinds.KILL, kinds.PAUSE):
        scope = rng.choice([MACHINE, NODE, APPLICATION])
    return Trouble(kind, who, lasts, scope, value)


def _second(rng: Random, setup: Setup, first: Trouble) -> Trouble | None:
    """Another trouble at the same time, that leaves the group what it was promised to need."""
    gentle = (STORM, kinds.CLOCK, kinds.CLOG)
    harsh = (kinds.KILL, kinds.PAUSE)
    if first.kind in (ALL, kinds.SOME, BLACKOUT, POWER_CUT):
        return None
    if setup.medium != SWITCH:
        return _trouble(rng, setup, kinds.CLOCK, first.who) if first.kind != kinds.CLOCK else None
    if first.kind in gentle or setup.resilience < 2 or not setup.family.resilient:
        kind = rng.choice([kind for kind in gentle if kind != first.kind])
        return _trouble(rng, setup, kind, first.who)
    if len(first.who) > 1 or first.kind not in (*harsh, kinds.CLOCK, kinds.PARTITION):
        return None
    return _trouble(rng, setup, rng.choice(harsh), first.who)
