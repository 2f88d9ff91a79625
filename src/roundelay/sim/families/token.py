"""Random runs of the token protocol and of positive acknowledgement.

Each plan takes a random subset of the kinds of faults, because a run with everything at once
rarely gets far enough to be interesting; over many seeds every kind meets every other.  Times are
drawn in units of the round trip and of the protocol's own time-outs, so that slow and fast
configurations suffer alike.  Under the `fast` profile switches are as live groups have them; times
are drawn, and so are the bounds, some of them small enough to be reached.  More messages come than
one PDU a message could carry, so that they gather into bundles.

The driver knows what a plan cannot: which sites have recovered by the time a fault is due.  A site
is *weak* from a crash that cost it its memory until its application hears of a list again.  The
promises hold while at most L sites are weak or down, so a strike that would exceed the budget is
softened (the site keeps its memory) or left out, unless the plan goes beyond L on purpose.  Then
disks must survive: a group that has lost more than L witnesses for good would stay blocked for
good, which is right but teaches nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from random import Random
from typing import Any, Final

from roundelay.core.bundle import Bundle
from roundelay.core.engine import MS, Delivery, Notice
from roundelay.core.events import DISK, MEMORY, NOTHING_LEFT
from roundelay.core.families import FAMILIES, TOTAL
from roundelay.core.token.config import COLD, PREFORMED, TokenConfig
from roundelay.sim.kernel.load import Load, Poisson
from roundelay.sim.kernel.member import UP
from roundelay.sim.swarm.fault_kinds import (
    CLUSTER_TARGETS,
    FAULT_KINDS,
    LINK_KINDS,
    REFORMATION_TARGETS,
    LinkSpec,
    Strike,
    kinds,
)
from roundelay.sim.swarm.fault_runner import Books, RunSetting, Striker

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

    stream = "plan"
    """The random stream that it draws from."""

    def __init__(self, seed: int, protocol: str) -> None:
        self.seed = seed
        self.family = FAMILIES[protocol]
        self.rng = Random(f"{seed}/{protocol}/{self.stream}")

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


class FastDraft(Draft):
    """Draws a plan of a token group of the `fast` profile."""

    stream = "fast/plan"

    def fields(self) -> dict[str, Any]:
        fields = super().fields()
        more = self.rng.choice((1, 1, 3, 8))
        fields["messages"] *= more
        fields["rate"] *= more
        return fields

    def token(self, sites: int) -> dict[str, Any]:
        rng = self.rng
        trip = 2 * self.one_way_ns
        attempts = rng.choice((3, 4, 8))
        backoff = rng.choice((0, 1, 3, 4))
        # With fewer repetitions each may take longer: the group notices a failure as soon.
        short = 1 if backoff < 3 else 2
        passing = int(trip * rng.uniform(1.2, 8)) // short
        resend = passing + int(trip * rng.uniform(0.5, 6)) // short
        request = int(trip * rng.uniform(1.1, 6)) // short
        retx = int(trip * rng.uniform(1.2, 4))
        least = min(passing, resend, request)
        config: dict[str, Any] = {
            "resilience": rng.randint(0, (sites + 1) // 2 - 1),
            "kw": rng.choice((1, 2, 64, 64)),
            "hold_ns": max(1, passing // 4),
            "pass_ns": passing,
            "resend_ns": resend,
            "request_ns": request,
            "request_delay_ns": rng.choice((0, trip // 4, trip)),
            "retx_ns": retx,
            "attempts": attempts,
            "attempts_hard": attempts * rng.choice((2, 4)),
            "idle_ns": (resend << backoff) + int(trip * rng.uniform(2, 20)),
            "eager": True,
            "backoff": backoff,
            "adapt_ns": rng.choice((0, 1, min(trip // 4, least), least)),
            "batch": True,
            "bulk": rng.random() < 0.8,
            "bundle": True,
            "history": rng.choice((0, 32, 4096)),
            "history_bytes": rng.choice((0, 3_000, 30_000, 1 << 25)),
            "own_limit": rng.choice((16, 4096)),
            "own_bytes": rng.choice((500, 10_000, 1 << 22)),
            "qb_limit": rng.choice((4, 64, 256)),
            "window": rng.choice((16, 4096)),
            "request_burst": rng.choice((1, 8, 64)),
            "recover_batch": rng.choice((1, 8, 255)),
            "max_payload": rng.choice((200, 1200, 60_000)),
        }
        self.set_times(TokenConfig(**config).check(sites))
        return config


class Driver(Striker):
    """One run of a plan of the token protocol or of positive acknowledgement."""

    def prepare(self, setting: RunSetting) -> Iterable[object]:
        self.books = TokenBooks(self.plan.sites)
        self.budget = max(1, self.plan.resilience)
        return setting.observers

    def make_load(self) -> Load:
        return Poisson(self.plan.messages, self.plan.rate, size=self.plan.size)

    def heal_sites(self) -> None:
        for site in self.world.group:
            self.world.end_twin(site)
        super().heal_sites()

    def settled(self) -> bool:
        world = self.world
        if not self.load.done or self.books.pending:
            return False
        if self.plan.order == TOTAL:
            first = world.sites[0].position
            return all(member.position == first for member in world.sites)
        return not self.books.missing

    def after_settling(self, settled: bool) -> None:
        """The checkers judge everything there is to judge, but what twins were told."""
        if self.world.twins is not None:
            for site, detail in self.world.twins.wrong:
                self.breach("I1", detail, site)

    # -- strikes ---------------------------------------------------------------------------

    def strike_target(self, strike: Strike, pdu: str) -> None:
        super().strike_target(strike, pdu)
        if strike.kind in REFORMATION_TARGETS:
            self.world.storm(strike.args[:1])

    def strike_crash(self, strike: Strike, how: str) -> None:
        if how == "beyond-L":
            self.crash_beyond(strike)
            return
        site = self.pick(strike)
        if site is None:
            return
        keeps = {"memory": MEMORY, "nothing": NOTHING_LEFT}.get(how, DISK)
        if not self.affordable(keeps, site):
            return
        if how == "mid-batch":
            self.world.crash(site, keeps, mid_batch=True)
        else:
            self.count(strike.kind, site)
            self.world.crash(site, keeps)
        self.world.after(strike.lasts_ns, partial(self.world.restart, site))

    def crash_beyond(self, strike: Strike) -> None:
        """More than L sites at once, all of which keep their disks."""
        if self.books.wiped():
            return
        many = min(self.plan.sites, self.plan.resilience + 1 + strike.args[-1] % 3)
        sites = [site for site in self.world.group if self.world.sites[site].state == UP][:many]
        if len(sites) <= self.plan.resilience:
            return
        self.count(strike.kind)
        for site in sites:
            self.world.crash(site, DISK)
        for i, site in enumerate(sites):
            wait = strike.lasts_ns * (1 + strike.args[i % len(strike.args)] % 3)
            self.world.after(wait, partial(self.world.restart, site))

    def strike_disk(self, strike: Strike, how: str) -> None:
        world = self.world
        site = self.pick(strike)
        if site is None or not self.affordable(DISK, site):
            return
        if how == "slow":
            world.slow_disk(site, strike.lasts_ns)
            return
        if how == "lost-unsynced":
            # Forgotten commits are covered by the other holders only while at most L forget.
            if not self.affordable(NOTHING_LEFT, site):
                return
            world.lose_unsynced(site)
            self.books.weak[site] = "synced"
        elif how == "error":
            world.fail_disk(site)
        else:
            world.crash(site, DISK, mid_batch=True)
        world.after(strike.lasts_ns, partial(world.restart, site))

    def strike_power_cut(self, strike: Strike, _: str) -> None:
        if self.books.wiped():
            return
        self.count(strike.kind)
        self.world.power_cut()
        for site in self.world.group:
            wait = strike.lasts_ns * (strike.args[site] % 3) // 3 + 1
            self.world.after(wait, partial(self.world.restart, site))

    def pause_ns(self, strike: Strike) -> int:
        """Past all time-outs: the group goes on without it."""
        return strike.lasts_ns + (strike.args[-1] % 3) * self.plan.heal_ns // 20

    def strike_twin(self, strike: Strike, _: str) -> None:
        site = self.pick(strike)
        if site is None or not self.affordable(NOTHING_LEFT, site):
            return
        self.count(strike.kind, site)
        self.world.replace(site)
        lasts = strike.lasts_ns
        self.world.after(lasts, partial(self.world.wake_twin, site))
        awake = lasts + (1 + strike.args[-1] % 4) * self.plan.heal_ns // 20
        self.world.after(awake, partial(self.world.end_twin, site))

    def strike_storm(self, strike: Strike, which: str) -> None:
        if which == "reform":
            self.count(strike.kind)
            self.world.storm()
            return
        site = self.pick(strike)
        if site is not None and self.affordable(DISK, site):
            self.storm(strike, site)

    def keeps_in_storm(self, strike: Strike, i: int) -> str:
        return MEMORY if strike.args[i % len(strike.args)] % 2 else DISK

    def crash(self, site: int, keeps: str) -> bool:
        """What was affordable when a storm began may not be any more."""
        self.world.crash(site, keeps if self.affordable(keeps, site) else MEMORY)
        return True

    # -- the budget ------------------------------------------------------------------------

    def pick(self, strike: Strike, which: str = "") -> int | None:
        """A site that is up, if one more may be down; or whoever holds the token."""
        if which:
            holding = [member.id for member in self.world.sites if member.holds_token]
            return holding[0] if holding else None
        site = strike.args[0]
        if self.world.sites[site].state != UP:
            return None
        down = {member.id for member in self.world.sites if member.state != UP}
        return site if len((down | self.forgetful()) - {site}) < self.budget else None

    def forgetful(self) -> set[int]:
        """Sites that have lost their memory and not recovered, or are about to."""
        doomed = {member.id for member in self.world.sites if member.amid is not None}
        return doomed | set(self.books.weak)

    def affordable(self, keeps: str, site: int) -> bool:
        """Whether `site` may lose its memory (and its disk) on top of what others have lost."""
        if keeps == MEMORY:
            return True
        forgetful = len(self.forgetful() | {site})
        if keeps == NOTHING_LEFT:
            return not self.plan.beyond and forgetful <= self.plan.resilience
        return not self.books.wiped() or forgetful <= self.plan.resilience


class TokenBooks(Books):
    """Knows what is pending and which sites are weak."""

    def __init__(self, sites: int) -> None:
        super().__init__(lambda source, number: range(sites))
        # Messages nobody has received, and whose they are; of sites that have kept their memory.
        self.pending: dict[bytes, int] = {}
        self.weak: dict[int, str] = {}  # site → what its crash left it

    def submitted(self, time: int, site: int, index: int, bundle: Bundle) -> None:
        super().submitted(time, site, index, bundle)
        self.pending.update(dict.fromkeys(bundle, site))

    def delivered(self, time: int, site: int, delivery: Delivery) -> None:
        super().delivered(time, site, delivery)
        for data in delivery.bundle:
            self.pending.pop(data, None)

    def noticed(self, time: int, site: int, notice: Notice) -> None:
        if notice.kind == "view":
            self.weak.pop(site, None)

    def crashed(self, time: int, site: int, keeps: str) -> None:
        if keeps == MEMORY:
            return
        if self.weak.get(site, DISK) == DISK:  # a disk lost before is still lost
            self.weak[site] = keeps
        self.pending = {data: source for data, source in self.pending.items() if source != site}

    def wiped(self) -> bool:
        """Whether some site has not recovered yet from the loss of stable state."""
        return any(keeps != DISK for keeps in self.weak.values())
