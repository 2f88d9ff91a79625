"""Drafts: how the plan of a token or positive-acknowledgement group is drawn from its seed.

Each plan takes a random subset of the kinds of faults, because a run with everything at once
rarely gets far enough to be interesting; over many seeds every kind meets every other.  Times are
drawn in units of the round trip and of the protocol's own time-outs, so that slow and fast
configurations suffer alike.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, Final

from roundelay.core.engine import MS
from roundelay.core.families import FAMILIES
from roundelay.core.token.config import COLD, PREFORMED, TokenConfig
from roundelay.sim.swarm.fault_kinds import (
    CLUSTER_TARGETS,
    FAULT_KINDS,
    LINK_KINDS,
    LinkSpec,
    Strike,
    kinds,
)

_TOKEN_KINDS: Final = tuple(
    kind for kind in FAULT_KINDS if kind not in (*CLUSTER_TARGETS, "fail", "twin")
)

# What positive acknowledgement promises nothing about is left out of its plans: it has no
# reformations, and its receivers forget with their memory what they have delivered.
_PA_KINDS: Final = tuple(
    kind
    for kind in _TOKEN_KINDS
    if not kind.startswith(("target:", "disk:", "storm:"))
    and kind not in kinds("disk nothing mid-batch beyond-L", "crash:")
    and kind not in ("power-cut", "pause:token-site", "slow-consumer")
)


TWINS: Final = 0.25
"""Of so many runs a site has a twin."""


class Draft:
    """Draws a plan; `fields` are the plan's."""

    bursts: tuple[tuple[float, ...], tuple[int, ...]] = ((0.0005, 0.002, 0.01), (3, 20, 200))
    """How often a burst of losses starts, and how many copies it takes at most."""

    delays: tuple[int, ...] = (1, 10, 100)
    """Round trips that a delayed copy takes longer, at most."""

    def __init__(self, seed: int, protocol: str) -> None:
        self.seed = seed
        self.family = FAMILIES[protocol]
        self.rng = Random(f"{seed}/{protocol}/plan")

    def fields(self) -> dict[str, Any]:
        rng = self.rng
        token = self.family.resilient
        sites = rng.choice((3, 3, 3, 4, 4, 5, 5, 6, 7))
        self.one_way_ns = rng.choice((MS // 20, MS // 4, MS, 5 * MS))
        medium, medium_args = self.medium()
        faults = self.faults(_TOKEN_KINDS if token else _PA_KINDS)
        config = self.token(sites) if token else self.positive_ack()
        strikes = self.strikes(faults, sites)
        if token:
            strikes = self.with_a_twin(strikes, sites)
        heal_ns = strikes[-1].at + self.unit_ns * rng.randint(1, 4)
        messages = rng.randint(230, 400)
        return {
            "sites": sites,
            "boot": COLD if token and rng.random() < 0.25 else PREFORMED,
            "config": config,
            "medium": medium,
            "medium_args": medium_args,
            "wire": rng.random() < 0.25,
            "messages": messages,
            # Most of the load falls into the safety phase, a little into the liveness phase.
            "rate": messages * 1e9 / heal_ns * rng.uniform(1.0, 2.0),
            "size": rng.choice((10, 16, 64, 64, 200)),
            "links": self.links(faults),
            "strikes": strikes,
            "beyond": "crash:beyond-L" in faults,
            "heal_ns": heal_ns,
            "liveness_ns": 10 * self.reformation_ns,
        }

    def medium(self) -> tuple[str, tuple[int, ...]]:
        """Constant delays on the bus, random ones elsewhere."""
        delay = self.one_way_ns
        kind = self.rng.choice(("bus", "bus", "mesh", "datagram"))
        return kind, (delay,) if kind == "bus" else (delay // 4, delay)

    def steady(
        self, sizes: tuple[int, ...], *, messages: int, heal_ns: int, **drawn: Any
    ) -> dict[str, Any]:
        """The fields `drawn`, and those of messages of `sizes` that come until healing."""
        return drawn | {
            "wire": self.rng.random() < 0.25,
            "messages": messages,
            "rate": messages * 1e9 / heal_ns,
            "size": self.rng.choice(sizes),
            "heal_ns": heal_ns,
        }

    def faults(self, every: tuple[str, ...]) -> list[str]:
        """The kinds of faults this run suffers: few or many."""
        some = self.rng.sample(every, self.rng.randint(2, min(16, len(every))))
        return [kind for kind in every if kind in some]

    def with_a_twin(self, strikes: tuple[Strike, ...], sites: int) -> tuple[Strike, ...]:
        """Some runs have a site that is replaced while it sleeps; from a stream of its own, so
        that all else stays as it is."""
        rng = Random(f"{self.seed}/{self.family.name}/twin")
        if rng.random() >= TWINS:
            return strikes
        at = self.unit_ns // 2 + rng.randrange(max(1, strikes[-1].at - self.unit_ns // 2))
        lasts = int(self.unit_ns * rng.choice((0.1, 0.5, 1.5, 3)) * rng.random()) + 1
        twin = Strike(at, "twin", lasts, (rng.randrange(sites), rng.randrange(1 << 16)))
        return tuple(sorted((*strikes, twin), key=lambda strike: strike.at))

    # -- configurations --------------------------------------------------------------------

    def token(self, sites: int) -> dict[str, Any]:
        rng = self.rng
        trip = 2 * self.one_way_ns
        attempts = rng.choice((2, 3, 4, 8))
        hold = int(trip * rng.uniform(1, 10))
        resend = hold + int(trip * rng.uniform(1, 10))
        retx = int(trip * rng.uniform(1.2, 4))
        rounds = ((rng.randint(2, 4), 1), (1, rng.randint(1, sites - 1)))
        kw, kr = rng.choice(((1, 1), (1, 1), (1, 1), *rounds))
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
        self.set_times(TokenConfig(**config).check(sites))
        return config

    def set_times(self, config: TokenConfig) -> None:
        """How long it takes to notice a dead site and to form a list without it, and at worst,
        with everything lost that may be lost, and the longest back-off."""
        passing, request = config.pass_ns << config.backoff, config.request_ns << config.backoff
        slowest = max(passing, config.resend_ns << config.backoff, request)
        timeout = config.token_timeout_ns
        self.unit_ns = (config.attempts + 1) * max(passing, request) + timeout
        silent = max(config.silence_ns, (config.attempts_hard + 1) * slowest)
        self.reformation_ns = silent + timeout + (4 * config.retx_ns << 6)

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

    def links(self, faults: list[str]) -> tuple[LinkSpec, ...]:
        """What is in place during the whole safety phase."""
        pick, trip, unit = self.rng.choice, 2 * self.one_way_ns, self.unit_ns
        starts, sizes = self.bursts
        drawn: dict[str, Callable[[], tuple[str, tuple[float, ...]]]] = {
            "loss": lambda: ("Lossy", (pick((0.01, 0.05, 0.1, 0.2, 0.3)),)),
            "burst": lambda: ("Bursts", (pick(starts), pick(sizes))),
            "duplicate": lambda: (
                "Duplicated",
                (pick((0.02, 0.1, 0.5)), pick((0, trip, 10 * trip))),
            ),
            "replay": lambda: ("Replayed", (pick((0.005, 0.02, 0.1)), unit // 2, 4 * unit)),
            "delay": lambda: ("Delayed", (0, trip * pick(self.delays), pick((0.01, 0.05, 0.3)))),
            "reorder": lambda: ("Reordered", (pick((0.02, 0.1, 0.5)), trip * pick((1, 5)))),
            "corrupt": lambda: ("Corrupted", (pick((0.01, 0.05)),)),
            "truncate": lambda: ("Truncated", (pick((0.01, 0.05)),)),
            "alien-version": lambda: ("Alien", (pick((0.01, 0.05)), pick((0, 1, 255)))),
        }
        return tuple(LinkSpec(*drawn[kind]()) for kind in faults if kind in drawn)

    def strikes(self, faults: list[str], sites: int) -> tuple[Strike, ...]:
        """Faults at points of time, in order; at least one, which may be of no kind."""
        rng = self.rng
        timed = [kind for kind in faults if kind not in LINK_KINDS]
        at = self.unit_ns // 2
        if not timed:
            return (Strike(at + self.unit_ns * rng.randint(2, 8), "", 0),)
        # Each kind at least once, then some more, in random order.
        timed += [rng.choice(timed) for _ in range(rng.randint(0, 10))]
        rng.shuffle(timed)
        strikes: list[Strike] = []
        for kind in timed:
            at += int(self.unit_ns * rng.choice((0.1, 0.5, 1, 2)) * rng.random()) + 1
            lasts = int(self.unit_ns * rng.choice((0.1, 0.5, 1.5, 3)) * rng.random()) + 1
            if kind == "storm:restart":
                lasts = int(self.unit_ns * rng.choice((0.1, 0.4)))
            args = [rng.randrange(sites) for _ in range(sites)]
            args += [rng.randrange(1 << 16) for _ in range(3)]
            strikes.append(Strike(at, kind, lasts, tuple(args)))
        return tuple(strikes)
