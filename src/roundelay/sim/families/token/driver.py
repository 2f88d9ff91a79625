"""Runs a plan: safety phase with faults, healing, liveness phase.

The driver knows what a plan cannot: which sites have recovered by the time a fault is due.  A site
is *weak* from a crash that cost it its memory until its application hears of a list again.  The
promises hold while at most L sites are weak or down, so a strike that would exceed the budget is
softened (the site keeps its memory) or left out, unless the plan goes beyond L on purpose.  Then
disks must survive: a group that has lost more than L witnesses for good would stay blocked for
good, which is right but teaches nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from roundelay.core.bundle import Bundle
from roundelay.core.engine import Delivery, Notice
from roundelay.core.events import DISK, MEMORY, NOTHING_LEFT
from roundelay.core.families import TOTAL
from roundelay.sim.kernel.load import Load, Poisson
from roundelay.sim.kernel.member import UP
from roundelay.sim.swarm.fault_kinds import REFORMATION_TARGETS, Strike
from roundelay.sim.swarm.fault_runner import RunSetting, Striker


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
            holding = [m.id for m in self.world.sites if getattr(m.engine, "holding", False)]
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


class TokenBooks:
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
            lacking = self.missing.get(data, 0) - 1
            if lacking > 0:
                self.missing[data] = lacking
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
