"""Driving a plan, as far as it is the same for every protocol.

`Striker` runs the safety phase, heals, and waits until everything is settled.  Of the faults it
knows those that concern links, clocks and readers, pauses and storms of restarts; what else may
happen to a site, and what has to be true in the end, is for the drivers of the families to say.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from functools import partial, reduce
from operator import or_
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from roundelay.core.bundle import Bundle
from roundelay.core.events import DISK, FAULT, NOBODY, RowSink
from roundelay.sim.kernel.load import Load, To
from roundelay.sim.kernel.member import DOWN, UP
from roundelay.sim.kernel.ports import Codec
from roundelay.sim.kernel.world import DAY_NS, World
from roundelay.sim.network import links as link_module
from roundelay.sim.network.links import PLAIN, Clogged, Link, Partition, Targeted
from roundelay.sim.network.media import MEDIA, SimulatedMedium
from roundelay.sim.swarm.fault_kinds import Strike

if TYPE_CHECKING:
    from roundelay.sim.swarm.plan import Plan

SETTLE_STEPS: Final = 400
"""How often, within the time allowed for liveness, the driver looks whether all is settled."""


class Breach(Struct, frozen=True):
    """A promise broken that no application can see, or that only the driver can judge.

    `invariant` is I1 … I8, or the name of a rule: QUIET (PROTOCOLS §0.5), TR-6, TR-15.
    """

    invariant: str
    site: int  # -1: nowhere in particular
    time: int
    detail: str


class Outcome(Struct, frozen=True, kw_only=True):
    """What came of a plan."""

    committed: int
    submitted: int
    virtual_ns: int
    settled: bool  # everything pending was committed within the time allowed
    events: int
    sent: int
    faults: dict[str, int]
    undetected: int  # damaged copies that the codec took for sound
    breaches: tuple[Breach, ...] = ()  # what the driver itself found wrong


Successors = Callable[[tuple[int, ...]], Iterable[object]]
"""Makes the observers of a reopened cluster with these members."""


class RunSetting(Struct, frozen=True, kw_only=True):
    """What a plan is run with, and who looks on."""

    observers: tuple[object, ...] = ()
    recorder: RowSink | None = None
    """With it the run leaves a trace, with arrivals if `trace_receives`."""
    trace_receives: bool = False
    codec: Codec | None = None
    """Used where the plan says so (`plan.wire`)."""
    successors: Successors = lambda members: ()
    """For a cluster that is reopened without a failed member; the observers of the old one are
    told that its run was cut short."""


def run_plan(plan: Plan, setting: RunSetting) -> Outcome:
    """Run `plan`, of whatever family, to its end."""
    return plan.family.driver(plan, setting).run()


class Books:
    """An observer that knows which messages were submitted, which were delivered anywhere, and
    who of the `receivers` of each still lacks it."""

    def __init__(self, receivers: To = lambda source, number: ()) -> None:
        self.receivers = receivers
        self.submissions: set[bytes] = set()
        self.given_anywhere: set[bytes] = set()
        self.missing: dict[bytes, set[int]] = {}  # message → receivers without it

    def submitted(self, time: int, site: int, index: int, bundle: Bundle) -> None:
        self.submissions.update(bundle)
        for i, data in enumerate(bundle):
            self.missing[data] = set(self.receivers(site, index + i))

    def delivered(self, time: int, site: int, delivery: Any) -> None:
        self.given_anywhere.update(delivery.bundle)
        for data in delivery.bundle:
            there = self.missing.get(data)
            if there is not None:
                there.discard(site)
                if not there:
                    del self.missing[data]

    @property
    def committed(self) -> int:
        """How many messages some application has received."""
        return len(self.given_anywhere & self.submissions)


class Striker(ABC):
    """One run of one plan."""

    books: Any
    """See `Books`."""
    storm_keeps = DISK
    """What a site keeps that restarts again and again."""
    pause_factor = 1
    """How much longer than a strike says a pause lasts."""

    def __init__(self, plan: Plan, setting: RunSetting) -> None:
        self.plan = plan
        self.breaches: list[Breach] = []
        watching = self.prepare(setting)
        self.active: list[Link] = [
            getattr(link_module, spec.link)(*spec.args) for spec in plan.links
        ]
        # Where engines have applications of their own, these are who makes them.
        self.applications: Any = plan.engines()
        self.world = World(
            plan.sites,
            self.applications,
            seed=f"{plan.protocol}/{plan.seed}",
            medium=self.make_medium(),
            links=self._chain(),
            make_stable=plan.family.core.stable,
            boot=plan.boot,
            codec=setting.codec if plan.wire else None,
            recorder=setting.recorder,
            trace_receives=setting.trace_receives,
            observers=[self.books, *watching],
            sample_ns=max(1, plan.heal_ns // 50),
        )
        self.load = self.make_load()
        self.arrange()

    @abstractmethod
    def prepare(self, setting: RunSetting) -> Iterable[object]:
        """Open the `books`, before there is a world; return who looks on besides."""

    def arrange(self) -> None:  # noqa: B027 - most have nothing to do here
        """When there is a world, before anything happens in it."""

    def make_medium(self) -> SimulatedMedium:
        medium: SimulatedMedium = MEDIA[self.plan.medium](*self.plan.medium_args)
        return medium

    @abstractmethod
    def make_load(self) -> Load: ...

    @abstractmethod
    def settled(self) -> bool:
        """Whether everything submitted at a site that stayed up is where it should be."""

    def heal_sites(self) -> None:
        """Everybody who can be is up again."""
        self.world.restart_all()

    @abstractmethod
    def after_settling(self, settled: bool) -> None:
        """What is judged before the observers are told that the run is over."""

    def run(self) -> Outcome:
        world, plan = self.world, self.plan
        self.load.start(world)
        for strike in plan.strikes:
            if strike.kind:
                world.at(strike.at, partial(self.strike, strike))
        world.run(plan.heal_ns)
        self.heal()
        healed = world.now
        settled = self.settle(healed)
        self.after_settling(settled)
        world.finish(settled or self.observers_judge)
        return Outcome(
            committed=self.books.committed,
            submitted=len(self.books.submissions),
            virtual_ns=world.now,
            settled=settled,
            events=world.events,
            sent=world.sent,
            faults={kind: world.faults[kind] for kind in sorted(world.faults)},
            undetected=len(world.undetected),
            breaches=tuple(self.breaches),
        )

    observers_judge = True
    """Whether observers find out by themselves what should have been delivered by the end."""

    def settle(self, healed: int) -> bool:
        """The liveness phase: whether everything came to its end in time."""
        world, plan = self.world, self.plan
        for site in world.group:
            # Something is pending at every site, else healing would be nothing to survive.
            self.load.one_more(site)
        # What is still to be submitted has its own time to commit after that.
        rest_ns = int(2e9 * plan.messages / plan.rate) if plan.rate else plan.liveness_ns
        return self.settled_by(healed + 2 * plan.liveness_ns + rest_ns)

    def settled_by(self, limit: int) -> bool:
        """Go on until everything is settled, at most until `limit`."""
        step = max(1, self.plan.liveness_ns // SETTLE_STEPS)
        return self.world.run_until(self.settled, limit, step)

    def heal(self) -> None:
        """The end of all faults: links plain, readers fast, everybody up."""
        self.active = []
        for site in self.world.group:
            self.world.speed_up(site)
        self.heal_sites()
        self.world.heal()

    def breach(self, invariant: str, detail: str, site: int = NOBODY) -> None:
        self.breaches.append(Breach(invariant, site, self.world.now, detail))

    # -- strikes ---------------------------------------------------------------------------

    def strike(self, strike: Strike) -> None:
        """Carry out a fault of the plan, if it may happen now."""
        family, _, detail = strike.kind.partition(":")
        method: Callable[[Strike, str], None] = getattr(self, f"strike_{family.replace('-', '_')}")
        method(strike, detail)

    def count(self, kind: str, site: int = NOBODY) -> None:
        self.world.fault(kind)
        self.world.row(site, FAULT, kind)

    def _chain(self) -> Link:
        return reduce(or_, self.active, PLAIN)

    def put(self, link: Link, lasts_ns: int = 0) -> None:
        """Put `link` in place, until healing or for `lasts_ns`."""
        self.active = [old for old in self.active if not (isinstance(old, Targeted) and old.spent)]
        self.active.append(link)
        self.world.set_links(self._chain())
        if lasts_ns:
            self.world.after(lasts_ns, partial(self.remove, link))

    def remove(self, link: Link) -> None:
        if link in self.active:
            self.active.remove(link)
            self.world.set_links(self._chain())

    def strike_clog(self, strike: Strike, _: str) -> None:
        src, dst = self.two(strike)
        now = self.world.now
        self.put(Clogged(src, dst, now, now + strike.lasts_ns), strike.lasts_ns)

    def strike_target(self, strike: Strike, pdu: str) -> None:
        kth, many = 1 + strike.args[-1] % 3, 1 + strike.args[-2] % 3
        self.put(Targeted(pdu, kth, many))

    def strike_partition(self, strike: Strike, form: str) -> None:
        a, b = self.two(strike)
        group = self.world.group
        odd = strike.args[-1]
        side = [site for site in group if site == a or (odd >> site & 1 and site != b)]
        rest = [site for site in group if site not in side]
        part = strike.lasts_ns
        if form == "symmetric":
            link = Partition.symmetric(side, rest)
        elif form == "one-way":
            link = Partition.one_way(side, rest)
        elif form == "non-transitive":
            link = Partition.non_transitive(a, b)
        else:
            flap = max(1, part // (2 + odd % 14))
            link = Partition.symmetric(side, rest, on_ns=flap, off_ns=max(1, flap // 2))
        self.put(link, part)

    def pick(self, strike: Strike, which: str) -> int | None:
        """The site of a strike: any, or one of the role `which`; None if it may not be."""
        return strike.args[0]

    def strike_pause(self, strike: Strike, which: str) -> None:
        site = self.pick(strike, which)
        if site is not None and self.world.sites[site].state == UP:
            self.count(strike.kind, site)
            self.world.pause(site)
            self.world.after(self.pause_ns(strike), partial(self.world.resume, site))

    def pause_ns(self, strike: Strike) -> int:
        return self.pause_factor * strike.lasts_ns

    def strike_storm(self, strike: Strike, _: str) -> None:
        self.storm(strike, strike.args[0])

    def storm(self, strike: Strike, site: int) -> None:
        """`site` starts again and again."""
        self.count(strike.kind, site)
        for i in range(3 + strike.args[-1] % 4):
            at = i * strike.lasts_ns
            self.world.after(at, partial(self.crash, site, self.keeps_in_storm(strike, i)))
            self.world.after(at + strike.lasts_ns // 2, partial(self.world.restart, site))

    def keeps_in_storm(self, strike: Strike, i: int) -> str:
        return self.storm_keeps

    def crash(self, site: int, keeps: str) -> bool:
        """Crash `site`, unless it is down or the time of faults is over; whether it did."""
        if self.world.now >= self.plan.heal_ns or self.world.sites[site].state == DOWN:
            return False
        self.world.crash(site, keeps)
        return True

    def strike_clock(self, strike: Strike, how: str) -> None:
        site = strike.args[0]
        self.count(strike.kind, site)
        if how == "rate":
            self.world.set_clock_rate(site, 900 + strike.args[-1] % 201)
        else:
            self.world.jump_clock(site, DAY_NS)

    def strike_slow_consumer(self, strike: Strike, _: str) -> None:
        site = strike.args[0]
        # Mean time between messages.
        gap = int(1e9 / self.plan.rate) if self.plan.rate else self.plan.heal_ns // 1000 + 1
        self.world.slow_down(site, 1 + strike.args[-1] % 8, 2 * gap, 5 * gap)
        self.world.after(strike.lasts_ns + 100 * gap, partial(self.world.speed_up, site))

    def two(self, strike: Strike) -> tuple[int, int]:
        """Two different sites."""
        a = strike.args[0]
        return a, (a + 1 + strike.args[1] % (self.plan.sites - 1)) % self.plan.sites
