"""What random runs of GRSB and of its hierarchy share: sites that speak on lines.

Their applications submit messages and units to conferences, choose what they want, and are switched
off; how far they have come survives with the disk.  Besides what `core.events.Observer` has,
observers may have these methods::

    asked(time, site, inc, parts, conference, kind)   an application submits
    selected(time, site, selection)                   what it wants from here on
    archived(time, archives, users)                   the end: what recorders have on disk, and the
                                                      users that must have all of it

Safety is promised whatever happens.  What may not happen is the loss of all copies: while the
retransmitter of the last reign has lost its memory its acknowledger may not, and the other way
round (`holders`); and a recorder's disk is lost only while another one has all of it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, Self, TypeVar

from roundelay.core.bundle import Bundle
from roundelay.core.engine import Effects, Engine, Notice
from roundelay.core.events import DISK, MEMORY, NOTHING_LEFT
from roundelay.core.grsb.base import REPLAYED, GrsbDelivery
from roundelay.core.grsb.config import GrsbConfig, Roles
from roundelay.core.grsb.retransmitter import Retransmitter
from roundelay.core.grsb.site import GrsbSite
from roundelay.core.grsb.stable import GrsbStable
from roundelay.core.selection import EVERYTHING, Selection
from roundelay.core.wide.site import WideSite
from roundelay.sim.kernel.load import HEADER, RandomTimes, content
from roundelay.sim.kernel.member import DOWN, UP, SimulatedSite
from roundelay.sim.kernel.world import World
from roundelay.sim.swarm.fault_kinds import Strike
from roundelay.sim.swarm.fault_runner import Books, RunSetting, Striker

if TYPE_CHECKING:
    from roundelay.sim.swarm.plan import Plan

DATE_US: Final = 1_000_000_000_000_000
"""The date at the beginning of a simulated run."""

CONFERENCES: Final = (0, 7, 9)
KINDS_OF_MESSAGES: Final = (0, 1)

S = TypeVar("S", GrsbSite, WideSite)


class DiskArchive:
    """A recorder's archive on the disk of its simulated site; `stable_of` finds it there.

    It is looked for at each use: a site that loses its disk has another one.
    """

    def __init__(self, member: SimulatedSite, stable_of: Callable[[Any], GrsbStable]) -> None:
        self.member = member
        self.stable_of = stable_of

    def __getattr__(self, name: str) -> Any:
        disk = self.member.disk
        assert disk is not None
        return getattr(self.stable_of(disk.stable), name)


class LineApplications(ABC, Generic[S]):
    """Makes the sites of a world, as its `make_engine`, and is their applications."""

    world: World
    make_stable: Callable[[], Any]
    """An empty disk."""

    def __init__(self, sites: int, layout: Any, config: GrsbConfig, site_class: type[S]) -> None:
        """`layout` says who does what."""
        self.layout = layout
        self.config = config.check(sites)
        self.site_class: type[Any] = site_class
        self.starts = [0] * sites
        self.positions = [0] * sites  # how far the application of each site has come
        self.selections = [EVERYTHING] * sites

    def in_world(self, **options: Any) -> Self:
        """In a world of its own; `options` are those of `Kernel`, a medium among them."""
        World(len(self.starts), self, make_stable=self.make_stable, **options)
        return self

    def attached(self, world: World) -> None:
        self.world = world

    def __call__(self, site: int, stable: Any, boot: str, now: int, rng: Random) -> Engine:
        self.starts[site] += 1
        again = self.starts[site] > 1
        wiped = again and stable is None
        if wiped:
            self.positions[site] = 0
        engine: S = self.site_class(
            site,
            self.layout,
            self.config,
            rng,
            now,
            inc=self.starts[site],
            stable=stable,
            wiped=wiped,
            position=self.positions[site] if again else None,
            selection=self.selections[site],
            base_us=DATE_US,
            **self.archives(self.world.sites[site]),
        )
        return engine

    @abstractmethod
    def archives(self, member: SimulatedSite) -> dict[str, DiskArchive]:
        """Where a site keeps what it records, by the names its engine has for that."""

    @abstractmethod
    def recorded(self) -> dict[int, GrsbStable]:
        """What all recorders have on disk."""

    def delivered(self, time: int, site: int, delivery: GrsbDelivery) -> None:
        if delivery.stage != REPLAYED:
            self.positions[site] = delivery.upto

    def select(self, number: int, selection: Selection) -> None:
        """From now on the application of a site wants this; one that is down, when it is up."""
        self.selections[number] = selection

        def verb(site: S, now: int) -> None:
            site.select(selection, now)
            self.world.tell("selected", self.world.now, number, selection)

        self.world.call(number, verb)

    def send(self, number: int, parts: Sequence[bytes], conference: int = 0, kind: int = 0) -> bool:
        """The application of a site submits a message, or several as a unit; False if it cannot."""

        def verb(site: S, now: int) -> None:
            site.submit_unit(parts, now, conference=conference, kind=kind)
            asked = (number, site.inc, tuple(parts), conference, kind)
            self.world.tell("asked", self.world.now, *asked)

        return self.world.enter(number, Bundle.of(*parts), verb, tells=True)


class UserLoad(RandomTimes):
    """Messages and units of random users to random conferences, at random times."""

    def __init__(
        self, applications: LineApplications[Any], plan: Plan, users: tuple[int, ...]
    ) -> None:
        super().__init__(plan.messages, until_ns=plan.heal_ns, sources=users)
        self.applications = applications
        self.most = max(0, plan.size - HEADER.size)

    def send_one(self) -> None:
        self.send(self.rng.choice(self.sources), 0.1)

    def send(self, site: int, units: float = 0.0) -> bool:
        """A message of `site`, or with the chance `units` several as a unit."""
        rng = self.rng
        parts = []
        for _ in range(rng.choice((2, 3, 5)) if rng.random() < units else 1):
            size = rng.choice((0, 1, self.most, rng.randint(0, self.most)))
            parts.append(content(site, self.submitted_total, size))
            self.submitted_total += 1
        conference, kind = rng.choice(CONFERENCES), rng.choice(KINDS_OF_MESSAGES)
        return self.applications.send(site, parts, conference, kind)


class LineBooks(Books):
    """Knows the messages of units, too."""

    def asked(
        self, time: int, site: int, inc: int, parts: tuple[bytes, ...], conference: int, kind: int
    ) -> None:
        self.submissions.update(parts)


class Level(NamedTuple):
    """A GRSB group: all there is, or one level of the hierarchy."""

    roles: Roles
    part: Callable[[Any], Any]
    """Of a site, or of what it has on disk: what belongs to this group."""


class LineDriver(Striker, Generic[S]):
    """One run of one plan."""

    applications: LineApplications[S]
    load: UserLoad
    observers_judge = False
    pause_factor = 2
    choosy: float
    """How many of the users want only some of the messages."""
    users: tuple[int, ...]
    top: Level
    """The level that gives messages their places: what it knows must not be lost."""

    def prepare(self, setting: RunSetting) -> Iterable[object]:
        self.assign()
        self.books = LineBooks()
        return setting.observers

    def arrange(self) -> None:
        self.world.on_noticed.append(self._noticed)
        rng = self.world.stream("selections")
        for site in self.users:
            if rng.random() < self.choosy:
                self.applications.select(site, self.selection(rng))

    @abstractmethod
    def assign(self) -> None:
        """Say who does what."""

    @abstractmethod
    def outcome_of(self, notice: Notice) -> str | None:
        """What faults led to, if `notice` tells of that."""

    def _noticed(self, time: int, site: int, notice: Notice) -> None:
        outcome = self.outcome_of(notice)
        if outcome is not None:
            self.world.fault(outcome)

    def selection(self, rng: Random) -> Selection:
        """What a user wants: a conference or two, perhaps of some senders or a kind only."""
        users = self.users
        conferences = frozenset(rng.sample(CONFERENCES, rng.choice((1, 2))))
        some = frozenset(rng.sample(users, rng.randint(1, len(users))))
        senders = some if rng.random() < 0.3 else None
        kinds = frozenset((rng.choice(KINDS_OF_MESSAGES),)) if rng.random() < 0.2 else None
        return Selection(conferences, senders, kinds)

    def make_load(self) -> UserLoad:
        return UserLoad(self.applications, self.plan, self.users)

    # -- the end ---------------------------------------------------------------------------

    def settle(self, healed: int) -> bool:
        """Twice: what was under way, then a message of everybody."""
        if not self.settled_by(healed + self.plan.liveness_ns):
            return False
        for site in self.users:
            if not self.load.send(site):
                self.breach("I7", "takes no message though nothing is wrong", site)
        return self.settled_by(self.world.now + self.plan.liveness_ns)

    def settled(self) -> bool:
        return not self.unsettled()

    @abstractmethod
    def unsettled(self) -> str:
        """What is still to come, or ""."""

    def behind(self, site: GrsbSite, epoch: int, top: int) -> str:
        """What a site of a group in `epoch` still lacks of everything below `top`, or ""."""
        number, recorder, user = site.me, site.recorder, site.user
        if site.reign.epoch != epoch:
            return f"site {number} is in epoch {site.reign.epoch}, not {epoch}"
        if recorder is not None and recorder.mark < top:
            return f"recorder {number} is at {recorder.mark} of {top}"
        if user is None:
            return ""
        if not user.up:
            return f"user {number} is down"
        if user.under_way is not None or user.queue:
            return f"user {number} has {len(user.queue)} and more to submit"
        if user.listener.next < top:
            return f"user {number} is at {user.listener.next} of {top}"
        return ""

    def after_settling(self, settled: bool) -> None:
        """I7; observers are told what the recorders have, by which they can judge the rest."""
        if not settled:
            self.breach("I7", self.unsettled())
        world, users = self.world, self.users if settled else ()
        world.tell("archived", world.now, self.applications.recorded(), users)

    # -- what may fail ---------------------------------------------------------------------

    @abstractmethod
    def levels(self, site: int) -> tuple[Level, ...]:
        """Those that a site may be part of."""

    def part(self, number: int, level: Level) -> GrsbSite | None:
        """The part of a site in a level, if it has its memory."""
        site = self.world.site(number)
        part: GrsbSite | None = None if site is None else level.part(site)
        return part

    def ruler(self, level: Level) -> Retransmitter | None:
        """The retransmitter that reigns."""
        parts = [self.part(number, level) for number in level.roles.retransmitters]
        ready = [part.retransmitter for part in parts if part is not None]
        ruling = [cr for cr in ready if cr is not None and cr.reigning]
        return max(ruling, key=lambda cr: cr.host.reign.epoch, default=None)

    def holders(self) -> set[int]:
        """Sites that have the state of the last reign that may have begun."""
        last = -1
        states: dict[int, set[int]] = {}
        for number in self.top.roles.council:
            accepted = self.top.part(self.world.on_disk(number)).accepted
            if accepted is not None:
                last = max(last, accepted.epoch)
            part = self.part(number, self.top)
            if part is None or self.world.sites[number].amid is not None:
                continue
            for role in (part.acknowledger, part.retransmitter):
                if role is not None:
                    states.setdefault(role.epoch, set()).add(number)
        return states.get(last, set())

    def may_forget(self, site: int) -> bool:
        """Whether a site may lose its memory now."""
        return site not in self.top.roles.council or bool(self.holders() - {site})

    def may_lose_disk(self, site: int) -> bool:
        """Whether it may lose its disk: its vote until all others have answered, its records."""
        for level in self.levels(site):
            if site not in level.roles.council:
                continue
            if not all(self._votes(number, level) for number in level.roles.council):
                return False  # one at a time
            if site in level.roles.recorders and not self.may_lose_records(site, level):
                return False
        return True

    def _votes(self, number: int, level: Level) -> bool:
        part = self.part(number, level)
        mute = part is not None and part.council is not None and not part.council.voting
        return not mute and level.part(self.world.on_disk(number)).accepted is not None

    def may_lose_records(self, site: int, level: Level) -> bool:
        """Whether all others have what a recorder has, and there are others."""
        mine = self.part(site, level)
        others = [number for number in level.roles.recorders if number != site]
        if mine is None or mine.recorder is None or not others:
            return False
        for number in others:
            part = self.part(number, level)
            if part is None or part.recorder is None or self.world.sites[number].state != UP:
                return False
            if part.recorder.mark < mine.recorder.mark:
                return False
        return True

    def crash(self, site: int, keeps: str) -> bool:
        """It loses no more than it may."""
        if keeps == NOTHING_LEFT and not self.may_lose_disk(site):
            keeps = DISK
        if keeps != MEMORY and not self.may_forget(site):
            keeps = MEMORY
        return super().crash(site, keeps)

    # -- strikes ---------------------------------------------------------------------------

    @abstractmethod
    def pick(self, strike: Strike, which: str) -> int: ...

    @abstractmethod
    def leaver(self, strike: Strike) -> int | None:
        """The user that a strike switches off for long; None if it may not be."""

    def strike_crash(self, strike: Strike, how: str) -> None:
        site = self.pick(strike, how)
        if how == "mid-batch":
            self.crash_amid(site)
        else:
            keeps = {"memory": MEMORY, "nothing": NOTHING_LEFT}.get(how, DISK)
            if not self.crash(site, keeps):
                return
            self.count(strike.kind, site)
        self.world.after(strike.lasts_ns, partial(self.world.restart, site))

    def crash_amid(self, site: int) -> None:
        """Between two persists and sends of the next batch, if it may forget then."""
        member = self.world.sites[site]
        if member.state == DOWN:
            return
        self.world.crash(site, DISK, mid_batch=True)
        die = member.amid

        def amid(out: Effects) -> bool:
            member.amid = None
            allowed = die is not None and self.world.now < self.plan.heal_ns
            if not (allowed and self.may_forget(site)):
                return False
            assert die is not None
            return die(out)

        member.amid = amid

    def strike_away(self, strike: Strike, _: str) -> None:
        """A user is off for most of the run."""
        site = self.leaver(strike)
        if site is not None and self.crash(site, DISK):
            self.count(strike.kind, site)
            back = partial(self.come_back, site, self.books.committed)
            self.world.after(self.most_of_it(strike), back)

    def most_of_it(self, strike: Strike) -> int:
        """Most of the time that is left until healing."""
        return max(strike.lasts_ns, (self.plan.heal_ns - self.world.now) * 3 // 4)

    def come_back(self, site: int, since: int) -> None:
        """A user that was off since then: `since` messages had been delivered."""
        self.world.restart(site)
