"""Runs a plan of GRSB: faults, healing, and then everybody has to have everything.

Safety is promised whatever happens.  What may not happen is the loss of all copies: while the
retransmitter of the last reign has lost its memory its acknowledger may not, and the other way
round (`holders`); and a recorder's disk is lost only while another one has all of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from random import Random
from typing import Any, Final

from roundelay.core.engine import Notice
from roundelay.core.events import DISK, MEMORY, NOTHING_LEFT, RowSink
from roundelay.core.grsb.config import Selection
from roundelay.core.grsb.pdu import LINE_A, LINE_B
from roundelay.core.grsb.site import GrsbSite
from roundelay.core.grsb.stable import GrsbStable
from roundelay.sim.faults import Strike
from roundelay.sim.grsb_check import GrsbCheck
from roundelay.sim.grsb_draft import AWAY, GIVEN_UP, LONG_AWAY, TAKE_OVER
from roundelay.sim.grsb_group import CONFERENCES, KINDS_OF_MESSAGES, GrsbGroup
from roundelay.sim.grsb_world import GrsbWorld, Lines, LineSite
from roundelay.sim.load import HEADER, Load
from roundelay.sim.media import Medium
from roundelay.sim.member import DOWN, UP
from roundelay.sim.plan import Plan
from roundelay.sim.ports import Codec, EngineFactory
from roundelay.sim.strikes import Striker

THOUSAND: Final = 1000
LONG: Final = 4000
"""Messages of a plan in which somebody is off for thousands more."""
TOGETHER: Final = 16
STEPS: Final = 2000


def content(number: int, source: int, size: int) -> bytes:
    """A message that is unique in every part."""
    return HEADER.pack(source, number) + Random(f"{source}/{number}").randbytes(size)


class UserLoad(Load):
    """Messages and units of random users to random conferences, at random times."""

    world: GrsbWorld

    def __init__(self, messages: int, until_ns: int, size: int, users: tuple[int, ...]) -> None:
        super().__init__(messages, users)
        self.until_ns = until_ns
        self.most = max(0, size - HEADER.size)

    def begin(self) -> None:
        for _ in range(self.messages):
            self.world.at(int(self.rng.random() * self.until_ns), self.one)

    def one(self) -> None:
        """A message, or a unit, of anybody."""
        self.send(self.rng.choice(self.sources), 0.1)

    def send(self, site: int, units: float = 0.0) -> bool:
        rng = self.rng
        parts = rng.choice((2, 3, 5)) if rng.random() < units else 1
        made = []
        for _ in range(parts):
            size = rng.choice((0, 1, self.most, rng.randint(0, self.most)))
            made.append(content(self.submitted_total, site, size))
            self.submitted_total += 1
        conference, kind = rng.choice(CONFERENCES), rng.choice(KINDS_OF_MESSAGES)
        return self.world.send(site, made, conference, kind)


class Outcomes:
    """An observer: counts what the faults led to, beside the faults."""

    def __init__(self, driver: GrsbDriver) -> None:
        self.driver = driver

    def noticed(self, time: int, site: int, notice: Notice) -> None:
        if notice.kind == "reign":
            self.driver.world.fault(TAKE_OVER)
        elif notice.kind == "line":
            self.driver.world.fault(f"line:{notice.info[0]}")
        elif notice.kind == "suspect":
            self.driver.world.fault(GIVEN_UP)


class GrsbDriver(Striker):
    """One run of a plan of GRSB."""

    world: GrsbWorld
    load: UserLoad
    world_class = GrsbWorld

    def __init__(
        self,
        plan: Plan,
        observers: Iterable[object] = (),
        recorder: RowSink | None = None,
        trace_receives: bool = False,
        codec: Codec | None = None,
        make_engine: EngineFactory | None = None,
    ) -> None:
        group = plan.settings()
        assert isinstance(group, GrsbGroup)
        self.group = group
        self.roles = group.roles(plan.sites)
        self.check = GrsbCheck(self.breach)
        watching = [self.check, Outcomes(self), *observers]
        super().__init__(plan, watching, recorder, trace_receives, codec, make_engine)
        rng = self.world.stream("selections")
        for site in self.roles.users:
            if rng.random() < 0.4:
                self.world.select(site, self.selection(rng))

    def selection(self, rng: Random) -> Selection:
        """What a user wants: a conference or two, perhaps of some senders or a kind only."""
        users = self.roles.users
        conferences = frozenset(rng.sample(CONFERENCES, rng.choice((1, 2))))
        some = frozenset(rng.sample(users, rng.randint(1, len(users))))
        senders = some if rng.random() < 0.3 else frozenset()
        kinds = frozenset((rng.choice(KINDS_OF_MESSAGES),)) if rng.random() < 0.2 else frozenset()
        return Selection(conferences, senders, kinds)

    def make_medium(self) -> Medium:
        return Lines(*self.plan.medium_args)

    def make_load(self) -> UserLoad:
        plan = self.plan
        return UserLoad(plan.messages, plan.heal_ns, plan.size, self.roles.users)

    @property
    def committed(self) -> int:
        return self.check.committed

    observers_judge = False

    @property
    def submitted(self) -> int:
        return len(self.check.known)

    def settle(self, healed: int) -> bool:
        """What was under way, then a message of everybody; then perhaps a long absence."""
        if not self.settled_by(healed + self.plan.liveness_ns):
            return False
        for site in self.roles.users:
            if not self.load.send(site):
                self.breach("I7", "takes no message though nothing is wrong", site)
        if not self.settled_by(self.world.now + self.plan.liveness_ns):
            return False
        return self.long_absence()

    def long_absence(self) -> bool:
        """In some runs: a user is off for thousands of messages of the others, and comes back."""
        plan, roles = self.plan, self.roles
        site = roles.users[-1]
        others = roles.users[:-1]
        away = plan.messages >= LONG and any(strike.kind == AWAY for strike in plan.strikes)
        if not away or not others or site in roles.council:
            return True
        left = self.committed
        self.world.crash(site, DISK)

        def said_enough() -> bool:
            missing = left + 2 * THOUSAND - self.committed
            for other in others:
                for _ in range(min(TOGETHER, missing)):
                    self.load.send(other)
            return missing <= 0

        limit = self.world.now + plan.liveness_ns
        said = self.world.run_until(said_enough, limit, max(1, plan.liveness_ns // STEPS))
        self.come_back(site, left)
        return said and self.settled_by(self.world.now + plan.liveness_ns)

    # -- healing ---------------------------------------------------------------------------

    def heal_sites(self) -> None:
        self.world.restart_all()
        for line in self.lines:
            line.cut = False
            line.deaf.clear()

    @property
    def lines(self) -> Any:
        assert isinstance(self.world.medium, Lines)
        return self.world.medium.lines

    def site(self, number: int) -> GrsbSite | None:
        """A site that has its memory, up or not."""
        member = self.world.sites[number]
        engine = member.engine or member.kept
        return engine.site if isinstance(engine, LineSite) else None

    def reigning(self) -> GrsbSite | None:
        found = [self.site(number) for number in self.roles.retransmitters]
        up = [one for one in found if one is not None and one.retransmitter is not None]
        ruling = [one for one in up if one.retransmitter and one.retransmitter.reigning]
        return max(ruling, key=lambda one: one.reign.epoch, default=None)

    def settled(self) -> bool:
        return not self.unsettled()

    def unsettled(self) -> str:
        """What is still to come, or ""."""
        ruler = self.reigning()
        if ruler is None or ruler.retransmitter is None:
            return "nobody reigns"
        cr = ruler.retransmitter
        top = cr.acked
        if cr.outstanding or cr.queue:
            return f"{len(cr.outstanding)} broadcasts under way"
        for number in self.world.group:
            site = self.site(number)
            if site is None:
                return f"site {number} is down"
            if site.reign.epoch != cr.epoch:
                return f"site {number} is in epoch {site.reign.epoch}, not {cr.epoch}"
            if site.recorder is not None and site.recorder.mark < top:
                return f"recorder {number} is at {site.recorder.mark} of {top}"
            user = site.user
            if site.council is not None and not site.council.voting:
                return f"site {number} has no vote"
            if user is None:
                continue
            if not user.up:
                return f"user {number} is down"
            if user.under_way is not None or user.queue:
                return f"user {number} has {len(user.queue)} and more to submit"
            if user.listener.next < top:
                return f"user {number} is at {user.listener.next} of {top}"
        return ""

    def after_settling(self, settled: bool) -> None:
        """I7, and all that can be judged now."""
        if not settled:
            self.breach("I7", self.unsettled())
        archives: dict[int, GrsbStable] = {}
        for number in self.roles.recorders:
            disk = self.world.sites[number].disk
            assert disk is not None
            archives[number] = disk.stable
        self.check.finish(archives, self.roles.users if settled else ())

    # -- what may fail ---------------------------------------------------------------------

    def holders(self) -> set[int]:
        """Sites that have the state of the last reign that may have begun."""
        last = -1
        states: dict[int, set[int]] = {}
        for number in self.roles.council:
            member = self.world.sites[number]
            disk = member.disk
            assert disk is not None
            stable: GrsbStable = disk.stable
            if stable.accepted is not None:
                last = max(last, stable.accepted.epoch)
            site = self.site(number)
            if site is None or member.amid is not None:
                continue
            if site.acknowledger is not None:
                states.setdefault(site.acknowledger.epoch, set()).add(number)
            if site.retransmitter is not None:
                states.setdefault(site.retransmitter.epoch, set()).add(number)
        return states.get(last, set())

    def may_forget(self, site: int) -> bool:
        """Whether a site may lose its memory now."""
        return site not in self.roles.council or bool(self.holders() - {site})

    def may_lose_disk(self, site: int) -> bool:
        """Whether it may lose its disk: its vote until all others have answered, its records."""
        roles = self.roles
        if site not in roles.council:
            return True
        for one in roles.council:
            other = self.site(one)
            disk = self.world.sites[one].disk
            assert disk is not None
            if disk.stable.accepted is None or (
                other is not None and other.council is not None and not other.council.voting
            ):
                return False  # one at a time
        if site not in roles.recorders:
            return True
        if self.group.selective:
            return False
        mine = self.site(site)
        others = [self.site(one) for one in roles.recorders if one != site]
        if mine is None or mine.recorder is None or len(others) < 1:
            return False
        return all(
            one is not None
            and one.recorder is not None
            and self.world.sites[one.me].state == UP
            and one.recorder.mark >= mine.recorder.mark
            for one in others
        )

    def crash(self, site: int, keeps: str) -> bool:
        """Crash a site if it may, with what it may lose; False if it may not."""
        if self.world.now >= self.plan.heal_ns or self.world.sites[site].state == DOWN:
            return False
        if keeps == NOTHING_LEFT and not self.may_lose_disk(site):
            keeps = DISK
        if keeps != MEMORY and not self.may_forget(site):
            keeps = MEMORY
        self.world.crash(site, keeps)
        return True

    # -- strikes ---------------------------------------------------------------------------

    def pick(self, strike: Strike, which: str) -> int:
        """The site of a strike: any, or one of a role, the reigning one first."""
        odd = strike.args[-1]
        ruler = self.reigning()
        if which == "cr":
            return ruler.me if ruler and odd % 4 else self.roles.retransmitters[0]
        if which == "da":
            return ruler.reign.da if ruler and odd % 4 else self.roles.acknowledgers[-1]
        if which == "pr":
            return self.roles.recorders[odd % len(self.roles.recorders)]
        return strike.args[0]

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

        def amid(out: Any) -> bool:
            member.amid = None
            allowed = die is not None and self.world.now < self.plan.heal_ns
            if not (allowed and self.may_forget(site)):
                return False
            assert die is not None
            return die(out)

        member.amid = amid

    def strike_pause(self, strike: Strike, which: str) -> None:
        site = self.pick(strike, which)
        if self.world.sites[site].state == UP:
            self.pause(site, strike, 2 * strike.lasts_ns)

    def strike_storm(self, strike: Strike, _: str) -> None:
        """A site starts again and again."""
        site = strike.args[0]
        self.count(strike.kind, site)
        for i in range(3 + strike.args[-1] % 4):
            at = i * strike.lasts_ns
            self.world.after(at, partial(self.crash, site, DISK))
            self.world.after(at + strike.lasts_ns // 2, partial(self.world.restart, site))

    def strike_away(self, strike: Strike, _: str) -> None:
        """A user is off for most of the run."""
        users = self.roles.users
        site = users[strike.args[0] % len(users)]
        if site not in self.roles.council and self.crash(site, DISK):
            self.count(strike.kind, site)
            rest = max(strike.lasts_ns, (self.plan.heal_ns - self.world.now) * 3 // 4)
            self.world.after(rest, partial(self.come_back, site, self.committed))

    def come_back(self, site: int, left: int) -> None:
        """A user that was off since `left` messages were delivered."""
        if self.committed - left >= THOUSAND:
            self.world.fault(LONG_AWAY)
        self.world.restart(site)

    def strike_line(self, strike: Strike, how: str) -> None:
        line = self.lines[LINE_B if strike.args[-1] % 3 or how == "cut" else LINE_A]
        self.count(strike.kind)
        if how == "cut":
            line.cut = True
            self.world.after(strike.lasts_ns, partial(setattr, line, "cut", False))
            return
        deaf = set(strike.args[: 1 + strike.args[-2] % 3])
        line.deaf |= deaf
        self.world.after(strike.lasts_ns, partial(line.deaf.difference_update, deaf))
