"""Plans: one integer decides everything about a random run.

A plan has a safety phase, in which it strikes with faults, and a liveness phase: at `heal_ns` all
faults end, all sites are up, and whatever is pending has to commit.  Each plan takes a random
subset of the kinds of faults, because a run with everything at once rarely gets far enough to be
interesting; over many seeds every kind meets every other.

Times are drawn in units of the round trip and of the protocol's own time-outs, so that slow and
fast configurations suffer alike.  What a plan may not do is decided when it runs (`driver`): how
many sites may be down depends on which of them have recovered by then.
"""

from __future__ import annotations

from random import Random
from typing import Any, Final

import msgspec
from msgspec import Struct

from roundelay.core.engine import MS
from roundelay.core.errors import ConfigError
from roundelay.core.positive_ack import PositiveAckConfig
from roundelay.core.token.config import COLD, PREFORMED, TokenConfig

TOKEN: Final = "token"
POSITIVE_ACK: Final = "positive-ack"
PROTOCOLS: Final = (TOKEN, POSITIVE_ACK)

FAULT_KINDS: Final[dict[str, str]] = {
    "loss": "a copy is lost, independently of all others",
    "burst": "a receiver loses 1 to 200 copies in a row",
    "duplicate": "a copy arrives twice",
    "replay": "a copy arrives again after reformations",
    "delay": "a copy takes up to 100 round trips longer",
    "reorder": "a copy is overtaken",
    "clog": "a link holds everything back for a while",
    "corrupt": "bits of a copy are flipped",
    "truncate": "the end of a copy is cut off",
    "alien-version": "a copy has another version of the wire format",
    "target:transfer": "the k-th acknowledgement that passes the token is lost",
    "target:confirm": "the k-th confirmation is lost",
    "target:newtl": "the k-th announcement of a new list is lost",
    "target:vote1": "the k-th vote of phase I is lost",
    "target:vote2": "the k-th vote of phase II is lost",
    "target:newtoken": "the k-th token of a new list is lost",
    "target:abort": "the k-th abort is lost",
    "partition:symmetric": "two sides do not hear each other",
    "partition:one-way": "some sites do not hear others, which hear them",
    "partition:non-transitive": "two sites do not hear each other, the rest hear both",
    "partition:flapping": "a partition comes and goes",
    "crash:memory": "a site is gone for a while and goes on as it was",
    "crash:disk": "a site restarts without its memory",
    "crash:nothing": "a site restarts without its disk",
    "crash:mid-batch": "a site crashes between two of its persists and sends",
    "crash:beyond-L": "more than L sites are down at once",
    "disk:torn-tail": "a crash leaves the first part of what was being written",
    "disk:error": "a write fails, and the site stops instead of going on",
    "disk:lost-unsynced": "a crash loses records that needed no sync",
    "disk:slow": "a write takes longer than all time-outs",
    "power-cut": "all sites stop at once, and all restart",
    "pause": "a site freezes past all time-outs and goes on",
    "pause:token-site": "the holder of the token freezes and goes on with the token",
    "storm:reform": "all sites start a reformation at once",
    "storm:restart": "a site restarts again and again",
    "clock:rate": "a clock runs up to 10 % too fast or too slow",
    "clock:jump": "a clock jumps forward by a day",
    "slow-consumer": "an application reads too slowly and is detached",
}
"""Every kind of fault a simulated run can suffer, and what it does."""

# What positive acknowledgement promises nothing about is left out of its plans: it has no
# reformations, and its receivers forget with their memory what they have delivered.
_PA_KINDS: Final = tuple(
    kind
    for kind in FAULT_KINDS
    if not kind.startswith(("target:", "disk:", "storm:"))
    and kind not in ("crash:disk", "crash:nothing", "crash:mid-batch", "crash:beyond-L",
                     "power-cut", "pause:token-site", "slow-consumer")
)  # fmt: skip

LINK_KINDS: Final = (
    "loss", "burst", "duplicate", "replay", "delay", "reorder", "corrupt", "truncate",
    "alien-version",
)  # fmt: skip
"""Kinds that are in place during the whole safety phase; the others strike at points of time."""

REFORMATION_TARGETS: Final = (
    "target:newtl", "target:vote1", "target:vote2", "target:newtoken", "target:abort",
)  # fmt: skip
"""Targets that exist in reformations only: the driver provokes one."""


class LinkSpec(Struct, frozen=True):
    """A link by the name of its class, with its arguments."""

    link: str
    args: tuple[float, ...]


class Strike(Struct, frozen=True):
    """A fault at a point of time; its kind decides what `lasts_ns` and `args` mean."""

    at: int
    kind: str
    lasts_ns: int
    args: tuple[int, ...] = ()


class Plan(Struct, frozen=True, kw_only=True):
    """One random run, complete."""

    seed: int
    protocol: str
    sites: int
    boot: str
    config: dict[str, Any]  # fields of the protocol's configuration that are not the default
    medium: str
    medium_args: tuple[int, ...]
    wire: bool
    messages: int
    rate: float  # messages per second
    size: int
    links: tuple[LinkSpec, ...]
    strikes: tuple[Strike, ...]
    beyond: bool  # more than L sites may be down at once: safety only until they are back
    heal_ns: int
    liveness_ns: int  # within which everything pending must commit after healing (I7)

    @classmethod
    def from_seed(cls, seed: int, protocol: str = TOKEN) -> Plan:
        """The plan of `seed`."""
        if protocol not in PROTOCOLS:
            raise ConfigError("protocol", protocol, " or ".join(PROTOCOLS))
        return _Draft(seed, protocol).plan()

    @property
    def rerun(self) -> str:
        """The line that runs this plan again."""
        return f"roundelay swarm --seeds {self.seed}:{self.seed + 1} --protocol {self.protocol}"

    @property
    def resilience(self) -> int:
        """L; positive acknowledgement has none."""
        return int(self.config.get("resilience", 0))

    def to_json(self) -> bytes:
        """The contents of params.json."""
        return msgspec.json.format(msgspec.json.encode(self), indent=1)

    @classmethod
    def from_json(cls, data: bytes) -> Plan:
        return msgspec.json.decode(data, type=cls)

    def token_config(self) -> TokenConfig:
        return TokenConfig(**self.config).check(self.sites)

    def positive_ack_config(self) -> PositiveAckConfig:
        return PositiveAckConfig(**self.config).check(self.sites)


class _Draft:
    """Draws a plan, each part from a stream of its own."""

    def __init__(self, seed: int, protocol: str) -> None:
        self.seed = seed
        self.protocol = protocol
        self.rng = Random(f"{seed}/{protocol}/plan")

    def plan(self) -> Plan:
        rng = self.rng
        token = self.protocol == TOKEN
        sites = rng.choice((3, 3, 3, 4, 4, 5, 5, 6, 7))
        self.one_way_ns = rng.choice((MS // 20, MS // 4, MS, 5 * MS))
        medium, medium_args = self.medium()
        kinds = self.kinds(token)
        config = self.token(sites) if token else self.positive_ack()
        strikes = self.strikes(kinds, sites)
        heal_ns = (strikes[-1].at if strikes else 0) + self.unit_ns * rng.randint(1, 4)
        messages = rng.randint(230, 400)
        return Plan(
            seed=self.seed,
            protocol=self.protocol,
            sites=sites,
            boot=COLD if token and rng.random() < 0.25 else PREFORMED,
            config=config,
            medium=medium,
            medium_args=medium_args,
            wire=rng.random() < 0.25,
            messages=messages,
            # Most of the load falls into the safety phase, a little into the liveness phase.
            rate=messages * 1e9 / heal_ns * rng.uniform(1.0, 2.0),
            size=rng.choice((10, 16, 64, 64, 200)),
            links=self.links(kinds),
            strikes=strikes,
            beyond="crash:beyond-L" in kinds,
            heal_ns=heal_ns,
            liveness_ns=10 * self.reformation_ns,
        )

    def medium(self) -> tuple[str, tuple[int, ...]]:
        """Constant delays on the bus, random ones elsewhere."""
        delay = self.one_way_ns
        kind = self.rng.choice(("bus", "bus", "mesh", "datagram"))
        return kind, (delay,) if kind == "bus" else (delay // 4, delay)

    def kinds(self, token: bool) -> list[str]:
        """The kinds of faults this run suffers: few or many."""
        every = list(FAULT_KINDS) if token else list(_PA_KINDS)
        some = self.rng.sample(every, self.rng.randint(2, min(16, len(every))))
        return [kind for kind in every if kind in some]

    # -- configurations --------------------------------------------------------------------

    def token(self, sites: int) -> dict[str, Any]:
        rng = self.rng
        trip = 2 * self.one_way_ns
        attempts = rng.choice((2, 3, 4, 8))
        hold = int(trip * rng.uniform(1, 10))
        resend = hold + int(trip * rng.uniform(1, 10))
        retx = int(trip * rng.uniform(1.2, 4))
        kw, kr = rng.choice(((1, 1), (1, 1), (1, 1), (rng.randint(2, 4), 1),
                             (1, rng.randint(1, sites - 1))))  # fmt: skip
        config: dict[str, Any] = {
            "resilience": rng.randint(0, (sites + 1) // 2 - 1),
            "kw": kw,
            "kr": kr,
            "hold_ns": hold,
            "resend_ns": resend,
            "pass_ns": hold + int(trip * rng.uniform(1.1, 5)),
            "request_ns": int(trip * rng.uniform(1.1, 4)),
            "request_delay_ns": rng.choice((0, 0, trip // 2)),
            "retx_ns": retx,
            "attempts": attempts,
            "attempts_hard": attempts * rng.choice((2, 4)),
            # A beacon is progress to a waiting source: it must not come before the source repeats.
            "idle_ns": resend + int(trip * rng.uniform(2, 20)),
            "batch": rng.random() < 0.7,
            "bundle": rng.random() < 0.7,
            "history": rng.choice((0, 4, 32, 256, 4096)),
            "own_limit": rng.choice((16, 256, 4096)),
            "qb_limit": rng.choice((4, 64, 1024)),
            "window": rng.choice((16, 64, 4096)),
            "request_burst": rng.choice((1, 8, 64)),
            "recover_batch": rng.choice((1, 8, 32)),
        }
        tidy = TokenConfig(**config).check(sites)
        # How long it takes to notice a dead site and to form a list without it ...
        self.unit_ns = (attempts + 1) * max(tidy.pass_ns, tidy.request_ns) + tidy.token_timeout_ns
        # ... and at worst, with everything lost that may be lost, and the longest back-off.
        slowest = max(tidy.pass_ns, tidy.resend_ns, tidy.request_ns)
        self.reformation_ns = (
            max(tidy.silence_ns, (tidy.attempts_hard + 1) * slowest)
            + tidy.token_timeout_ns
            + (4 * retx << 6)
        )
        return config

    def positive_ack(self) -> dict[str, Any]:
        rng = self.rng
        resend = int(2 * self.one_way_ns * rng.uniform(1.1, 5))
        self.unit_ns = 20 * resend
        self.reformation_ns = 40 * resend
        pipeline = rng.choice((1, 1, 4, 16))
        return {
            "resend_ns": resend,
            "attempts": 1 << 40,  # it never gives up: there is no promise if it does
            "pipeline": pipeline,
            "fifo": rng.random() < 0.5,
            "bundle": rng.random() < 0.3,
            "own_limit": rng.choice((16, 256, 4096)),
        }

    # -- faults ----------------------------------------------------------------------------

    def links(self, kinds: list[str]) -> tuple[LinkSpec, ...]:
        """What is in place during the whole safety phase."""
        rng = self.rng
        trip = 2 * self.one_way_ns
        specs: list[LinkSpec] = []

        def add(link: str, *args: float) -> None:
            specs.append(LinkSpec(link, args))

        for kind in kinds:
            if kind == "loss":
                add("Lossy", rng.choice((0.01, 0.05, 0.1, 0.2, 0.3)))
            elif kind == "burst":
                add("Bursts", rng.choice((0.0005, 0.002, 0.01)), rng.choice((3, 20, 200)))
            elif kind == "duplicate":
                add("Duplicated", rng.choice((0.02, 0.1, 0.5)), rng.choice((0, trip, 10 * trip)))
            elif kind == "replay":
                add("Replayed", rng.choice((0.005, 0.02, 0.1)), self.unit_ns // 2, 4 * self.unit_ns)
            elif kind == "delay":
                most = trip * rng.choice((1, 10, 100))
                add("Delayed", 0, most, rng.choice((0.01, 0.05, 0.3)))
            elif kind == "reorder":
                add("Reordered", rng.choice((0.02, 0.1, 0.5)), trip * rng.choice((1, 5)))
            elif kind == "corrupt":
                add("Corrupted", rng.choice((0.01, 0.05)))
            elif kind == "truncate":
                add("Truncated", rng.choice((0.01, 0.05)))
            elif kind == "alien-version":
                add("Alien", rng.choice((0.01, 0.05)), rng.choice((0, 2, 255)))
        return tuple(specs)

    def strikes(self, kinds: list[str], sites: int) -> tuple[Strike, ...]:
        """Faults at points of time, in order."""
        rng = self.rng
        timed = [kind for kind in kinds if kind not in LINK_KINDS]
        strikes: list[Strike] = []
        at = self.unit_ns // 2
        if timed:
            # Each kind at least once, then some more, in random order.
            chosen = timed + [rng.choice(timed) for _ in range(rng.randint(0, 10))]
            rng.shuffle(chosen)
            for kind in chosen:
                at += int(self.unit_ns * rng.choice((0.1, 0.5, 1, 2)) * rng.random()) + 1
                lasts = int(self.unit_ns * rng.choice((0.1, 0.5, 1.5, 3)) * rng.random()) + 1
                if kind == "storm:restart":
                    lasts = int(self.unit_ns * rng.choice((0.1, 0.4)))
                args = [rng.randrange(sites) for _ in range(sites)]
                args += [rng.randrange(1 << 16) for _ in range(3)]
                strikes.append(Strike(at, kind, lasts, tuple(args)))
        else:
            at += self.unit_ns * rng.randint(2, 8)
            strikes.append(Strike(at, "", 0))
        return tuple(strikes)
