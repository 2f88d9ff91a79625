"""Runs a plan: safety phase with faults, healing, liveness phase.

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

from msgspec import Struct

from roundelay.core.bundle import Bundle
from roundelay.core.engine import Delivery, Notice
from roundelay.core.events import DISK, FAULT, MEMORY, NOBODY, NOTHING_LEFT, RowSink
from roundelay.core.positive_ack import PositiveAckSite, PositiveAckStable
from roundelay.core.token.site import TokenSite
from roundelay.core.token.stable import Stable
from roundelay.sim import links as link_module
from roundelay.sim.links import PLAIN, Clogged, Link, Partition, Targeted
from roundelay.sim.load import Poisson
from roundelay.sim.media import MEDIA
from roundelay.sim.member import UP
from roundelay.sim.plan import REFORMATION_TARGETS, TOKEN, Plan, Strike
from roundelay.sim.ports import Codec, EngineFactory, StableState
from roundelay.sim.world import DAY_NS, World

SETTLE_STEPS: Final = 400
"""How often, within the time allowed for liveness, the driver looks whether all is settled."""


class Outcome(Struct, frozen=True, kw_only=True):
    """What came of a plan."""

    committed: int
    submitted: int
    virtual_ns: int
    healed_ns: int
    settled: bool  # everything pending was committed within the time allowed
    events: int
    sent: int
    faults: dict[str, int]
    undetected: int  # damaged copies that the codec took for sound


def engines(plan: Plan, site_class: type[TokenSite] = TokenSite) -> EngineFactory:
    """Makes the engines of `plan`; `site_class` may be a mutant."""
    group = tuple(range(plan.sites))
    if plan.protocol == TOKEN:
        config = plan.token_config()

        def token(site: int, stable: Any, boot: str, now: int, rng: Random) -> TokenSite:
            settings = config
            if boot != config.boot:
                settings = type(config)(**(_fields(config) | {"boot": boot}))
            return site_class(site, group, settings, rng, stable, now)

        return token
    settings = plan.positive_ack_config()

    def positive_ack(site: int, stable: Any, boot: str, now: int, rng: Random) -> PositiveAckSite:
        return PositiveAckSite(site, group, settings, rng, now, stable)

    return positive_ack


def _fields(config: Struct) -> dict[str, Any]:
    return {name: getattr(config, name) for name in config.__struct_fields__}


def run_plan(
    plan: Plan,
    *,
    observers: Iterable[object] = (),
    recorder: RowSink | None = None,
    trace_receives: bool = False,
    codec: Codec | None = None,
    make_engine: EngineFactory | None = None,
) -> Outcome:
    """Run `plan` to its end.  `codec` is used where the plan says so (`plan.wire`)."""
    return Driver(
        plan, observers, recorder, trace_receives, codec, make_engine or engines(plan)
    ).run()


class Driver:
    """One run of one plan."""

    def __init__(
        self,
        plan: Plan,
        observers: Iterable[object],
        recorder: RowSink | None,
        trace_receives: bool,
        codec: Codec | None,
        make_engine: EngineFactory,
    ) -> None:
        self.plan = plan
        token = plan.protocol == TOKEN
        make_stable: Callable[[], StableState] = Stable if token else PositiveAckStable
        self.active: list[Link] = [
            getattr(link_module, spec.link)(*spec.args) for spec in plan.links
        ]
        self.books = Books(plan.sites)
        self.world = World(
            plan.sites,
            make_engine,
            seed=f"{plan.protocol}/{plan.seed}",
            medium=MEDIA[plan.medium](*plan.medium_args),
            links=self._chain(),
            make_stable=make_stable,
            boot=plan.boot,
            codec=codec if plan.wire else None,
            recorder=recorder,
            trace_receives=trace_receives,
            observers=[self.books, *observers],
            sample_ns=max(1, plan.heal_ns // 50),
        )
        self.load = Poisson(plan.messages, plan.rate, size=plan.size)
        self.budget = max(1, plan.resilience)

    def run(self) -> Outcome:
        world, plan = self.world, self.plan
        self.load.start(world)
        for strike in plan.strikes:
            if strike.kind:
                world.at(strike.at, partial(self.strike, strike))
        world.run(plan.heal_ns)
        self.heal()
        healed = world.now
        for site in world.group:
            # Something is pending at every site, else healing would be nothing to survive.
            self.load.one_more(site)
        # What is still to be submitted has its own time to commit after that.
        limit = healed + 2 * plan.liveness_ns + int(2e9 * plan.messages / plan.rate)
        settled = world.run_until(self.settled, limit, max(1, plan.liveness_ns // SETTLE_STEPS))
        world.finish()
        return Outcome(
            committed=self.books.committed,
            submitted=self.load.submitted_total,
            virtual_ns=world.now,
            healed_ns=healed,
            settled=settled,
            events=world.events,
            sent=world.sent,
            faults={kind: world.faults[kind] for kind in sorted(world.faults)},
            undetected=len(world.undetected),
        )

    def heal(self) -> None:
        """The end of all faults: links plain, readers fast, everybody up."""
        world = self.world
        self.active = []
        for site in world.group:
            world.speed_up(site)
        world.restart_all()
        world.heal()

    def settled(self) -> bool:
        """Whether everything submitted at a site that stayed up is where it should be."""
        world = self.world
        if not self.load.done or self.books.pending:
            return False
        if self.plan.protocol == TOKEN:
            first = world.sites[0].position
            return all(member.position == first for member in world.sites)
        return not self.books.missing

    # -- strikes ---------------------------------------------------------------------------

    def strike(self, strike: Strike) -> None:
        """Carry out a fault of the plan, if it is within the budget."""
        family, _, detail = strike.kind.partition(":")
        method: Callable[[Strike, str], None] = getattr(self, f"strike_{family.replace('-', '_')}")
        method(strike, detail)

    def count(self, kind: str, site: int = NOBODY) -> None:
        self.world.fault(kind)
        self.world.row(site, FAULT, kind)

    def _chain(self) -> Link:
        chain: Link = PLAIN
        for link in self.active:
            chain = chain | link
        return chain

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
        if strike.kind in REFORMATION_TARGETS:
            self.world.storm(strike.args[:1])

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

    def strike_crash(self, strike: Strike, how: str) -> None:
        if how == "beyond-L":
            self.crash_beyond(strike)
            return
        site = self.one(strike)
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
        site = self.one(strike)
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

    def strike_pause(self, strike: Strike, which: str) -> None:
        site = self.token_site() if which else self.one(strike)
        if site is None:
            return
        # Past all time-outs: the group goes on without it.
        lasts = strike.lasts_ns + (strike.args[-1] % 3) * self.plan.heal_ns // 20
        self.count(strike.kind, site)
        self.world.pause(site)
        self.world.after(lasts, partial(self.world.resume, site))

    def strike_storm(self, strike: Strike, which: str) -> None:
        if which == "reform":
            self.count(strike.kind)
            self.world.storm()
            return
        site = self.one(strike)
        if site is None or not self.affordable(DISK, site):
            return
        self.count(strike.kind, site)
        for i in range(3 + strike.args[-1] % 4):
            keeps = MEMORY if strike.args[i % len(strike.args)] % 2 else DISK
            at = i * strike.lasts_ns
            self.world.after(at, partial(self.crash_softly, site, keeps))
            self.world.after(at + strike.lasts_ns // 2, partial(self.world.restart, site))

    def crash_softly(self, site: int, keeps: str) -> None:
        """What was affordable when the storm began may not be any more."""
        self.world.crash(site, keeps if self.affordable(keeps, site) else MEMORY)

    def strike_clock(self, strike: Strike, how: str) -> None:
        site = strike.args[0]
        self.count(strike.kind, site)
        if how == "rate":
            self.world.set_clock_rate(site, 900 + strike.args[-1] % 201)
        else:
            self.world.jump_clock(site, DAY_NS)

    def strike_slow_consumer(self, strike: Strike, _: str) -> None:
        site = strike.args[0]
        gap = int(1e9 / self.plan.rate)  # mean time between messages
        self.world.slow_down(site, 1 + strike.args[-1] % 8, 2 * gap, 5 * gap)
        self.world.after(strike.lasts_ns + 100 * gap, partial(self.world.speed_up, site))

    # -- the budget ------------------------------------------------------------------------

    def one(self, strike: Strike) -> int | None:
        """A site that is up, if one more may be down."""
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

    def two(self, strike: Strike) -> tuple[int, int]:
        """Two different sites."""
        a = strike.args[0]
        return a, (a + 1 + strike.args[1] % (self.plan.sites - 1)) % self.plan.sites

    def token_site(self) -> int | None:
        for member in self.world.sites:
            if getattr(member.engine, "holding", False):
                return member.id
        return None


class Books:
    """An observer that knows what is pending and which sites are weak."""

    def __init__(self, sites: int) -> None:
        self.sites = sites
        self.committed = 0  # messages that some application has received
        self.pending: dict[bytes, int] = {}  # messages nobody has received, and whose they are
        self.doubtful: set[bytes] = set()  # the same, of sites that have lost their memory
        self.missing: dict[bytes, int] = {}  # how many sites lack a message
        self.weak: dict[int, str] = {}  # site → what its crash left it

    def submitted(self, time: int, site: int, index: int, bundle: Bundle) -> None:
        for data in bundle:
            self.pending[data] = site
            self.missing[data] = self.sites

    def delivered(self, time: int, site: int, delivery: Delivery) -> None:
        for data in delivery.bundle:
            if self.pending.pop(data, None) is not None:
                self.committed += 1
            elif data in self.doubtful:
                self.doubtful.discard(data)
                self.committed += 1
            left = self.missing.get(data, 0) - 1
            if left > 0:
                self.missing[data] = left
            else:
                self.missing.pop(data, None)

    def noticed(self, time: int, site: int, notice: Notice) -> None:
        if notice.kind == "view":
            self.weak.pop(site, None)

    def crashed(self, time: int, site: int, keeps: str) -> None:
        if keeps == MEMORY:
            return
        if self.weak.get(site, DISK) == DISK:  # a disk lost before is still lost
            self.weak[site] = keeps
        lost = [data for data, source in self.pending.items() if source == site]
        for data in lost:
            del self.pending[data]
        self.doubtful.update(lost)

    def wiped(self) -> bool:
        """Whether some site has not recovered yet from the loss of stable state."""
        return any(keeps != DISK for keeps in self.weak.values())
