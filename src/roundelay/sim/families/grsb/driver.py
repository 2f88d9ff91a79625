"""Runs a plan of GRSB: faults, healing, and then everybody has to have everything.

`shared_driver` says what may not happen; here are the two lines, each of which must do alone, and
who is off for thousands of messages.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from roundelay.core.engine import Notice
from roundelay.core.events import DISK
from roundelay.core.grsb.config import Roles
from roundelay.core.grsb.pdu import DUAL, LINE_A, LINE_B
from roundelay.core.grsb.site import GrsbSite
from roundelay.sim.families.grsb.applications import Lines
from roundelay.sim.families.grsb.draft import AWAY, CUT, GIVEN_UP, LONG_AWAY, TAKE_OVER
from roundelay.sim.families.grsb.group import GrsbGroup
from roundelay.sim.families.grsb.shared_driver import Level, LineDriver
from roundelay.sim.network.media import SimulatedMedium
from roundelay.sim.swarm.fault_kinds import Strike

THOUSAND: Final = 1000
LONG: Final = 4000
"""Messages of a plan in which somebody is off for thousands more."""
TOGETHER: Final = 16
STEPS: Final = 2000


class GrsbDriver(LineDriver[GrsbSite]):
    """One run of a plan of GRSB."""

    choosy = 0.4

    def assign(self) -> None:
        plan = self.plan
        self.group: GrsbGroup = plan.settings()
        self.roles: Roles = self.group.roles(plan.sites)
        self.users = self.roles.users
        self.top = Level(self.roles, lambda site: site, lambda stable: stable)

    def outcome_of(self, notice: Notice) -> str | None:
        if notice.kind == "line":
            return f"line:{notice.info[0]}"
        return {"reign": TAKE_OVER, "suspect": GIVEN_UP}.get(notice.kind)

    def make_medium(self) -> SimulatedMedium:
        return Lines(*self.plan.medium_args)

    def settle(self, healed: int) -> bool:
        """Then perhaps on one line, then perhaps a long absence."""
        return super().settle(healed) and self.on_one_line() and self.long_absence()

    def on_one_line(self) -> bool:
        """In runs in which lines fail: one of them is cut and stays so, and the group goes on.

        Everybody is heard and everybody gets everything; then both lines are used again.
        """
        plan = self.plan
        cuts = [strike for strike in plan.strikes if strike.kind == CUT]
        if self.roles.lines < 2 or not cuts:
            return True
        cut = self.lines[cuts[-1].args[-1] % 2]
        cut.cut = True
        self.world.fault(CUT)
        for _ in range(2):
            for site in self.users:
                if not self.load.send(site):
                    self.breach("I7", f"takes no message while line {cut.line} is cut", site)
            if not self.settled_by(self.world.now + plan.liveness_ns):
                return False
        cut.cut = False
        limit = self.world.now + plan.liveness_ns
        if not self.world.run_until(self.uses_both, limit, max(1, plan.liveness_ns // STEPS)):
            self.breach("I7", f"line {cut.line} is not used again")
        return self.settled_by(self.world.now + plan.liveness_ns)

    def uses_both(self) -> bool:
        ruler = self.ruler(self.top)
        return ruler is not None and ruler.ways.mode == DUAL

    def long_absence(self) -> bool:
        """In some runs: a user is off for thousands of messages of the others, and comes back."""
        plan, roles = self.plan, self.roles
        site = roles.users[-1]
        others = roles.users[:-1]
        away = plan.messages >= LONG and any(strike.kind == AWAY for strike in plan.strikes)
        if not away or not others or site in roles.council:
            return True
        since, before = self.books.committed, self.acknowledged()
        self.world.crash(site, DISK)

        def sent_enough() -> bool:
            # By positions: the others need not want to be given what they say themselves.
            missing = before + 2 * THOUSAND - self.acknowledged()
            for other in others:
                for _ in range(min(TOGETHER, missing)):
                    self.load.send(other)
            return missing <= 0

        limit = self.world.now + plan.liveness_ns
        enough = self.world.run_until(sent_enough, limit, max(1, plan.liveness_ns // STEPS))
        self.come_back(site, since)
        return enough and self.settled_by(self.world.now + plan.liveness_ns)

    def acknowledged(self) -> int:
        """How far the order has come."""
        ruler = self.ruler(self.top)
        return 0 if ruler is None or ruler.retransmitter is None else ruler.retransmitter.acked

    # -- healing ---------------------------------------------------------------------------

    def heal_sites(self) -> None:
        super().heal_sites()
        for line in self.lines:
            line.cut = False
            line.deaf.clear()

    @property
    def lines(self) -> Any:
        assert isinstance(self.world.medium, Lines)
        return self.world.medium.lines

    def unsettled(self) -> str:
        ruler = self.ruler(self.top)
        if ruler is None or ruler.retransmitter is None:
            return "nobody reigns"
        cr = ruler.retransmitter
        if cr.outstanding or cr.queue:
            return f"{len(cr.outstanding)} broadcasts under way"
        for number in self.world.group:
            site = self.world.site(number)
            if site is None:
                return f"site {number} is down"
            if site.council is not None and not site.council.voting:
                return f"site {number} has no vote"
            what = self.behind(site, cr.epoch, cr.acked)
            if what:
                return what
        return ""

    # -- what may fail ---------------------------------------------------------------------

    def levels(self, site: int) -> tuple[Level, ...]:
        return (self.top,)

    def may_lose_records(self, site: int, level: Level) -> bool:
        """Recorders that keep a selection each do not have all of each other's."""
        return not self.group.selective and super().may_lose_records(site, level)

    # -- strikes ---------------------------------------------------------------------------

    def pick(self, strike: Strike, which: str) -> int:
        """The site of a strike: any, or one of a role, the reigning one first."""
        odd = strike.args[-1]
        ruler = self.ruler(self.top)
        if which == "cr":
            return ruler.me if ruler and odd % 4 else self.roles.retransmitters[0]
        if which == "da":
            return ruler.reign.da if ruler and odd % 4 else self.roles.acknowledgers[-1]
        if which == "pr":
            return self.roles.recorders[odd % len(self.roles.recorders)]
        return strike.args[0]

    def leaver(self, strike: Strike) -> int | None:
        site = self.users[strike.args[0] % len(self.users)]
        return None if site in self.roles.council else site

    def come_back(self, site: int, since: int) -> None:
        if self.books.committed - since >= THOUSAND:
            self.world.fault(LONG_AWAY)
        super().come_back(site, since)

    def strike_line(self, strike: Strike, how: str) -> None:
        line = self.lines[LINE_B if strike.args[-1] % 3 else LINE_A]
        self.count(strike.kind)
        if how == "cut":
            line.cut = True
            self.world.after(strike.lasts_ns, partial(setattr, line, "cut", False))
            return
        deaf = set(strike.args[: 1 + strike.args[-2] % 3])
        line.deaf |= deaf
        self.world.after(strike.lasts_ns, partial(line.deaf.difference_update, deaf))
