"""Random runs of GRSB: roles that crash, lines that are cut, users that are away for long.

`lines` says what may not happen; here are the two lines, each of which must do alone, and who is
off for thousands of messages.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final, Self

from msgspec import structs

from roundelay.core.engine import MS, Notice
from roundelay.core.events import DISK
from roundelay.core.grsb.config import DEMO, FAILSAFE, SEPARATE, GrsbConfig, Roles
from roundelay.core.grsb.pdu import DUAL, LINE_A, LINE_B
from roundelay.core.grsb.site import GrsbSite
from roundelay.core.grsb.stable import GrsbStable
from roundelay.core.selection import Selection
from roundelay.core.token.config import PREFORMED
from roundelay.sim.families.lines import (
    CONFERENCES,
    DiskArchive,
    Level,
    LineApplications,
    LineDriver,
)
from roundelay.sim.families.token import Draft
from roundelay.sim.kernel.member import SimulatedSite
from roundelay.sim.network.media import LineSet, SimulatedMedium
from roundelay.sim.swarm.fault_kinds import LINK_KINDS, PARTITIONS, Strike, kinds


class GrsbGroup(GrsbConfig, frozen=True, kw_only=True):
    """A configuration, and how the roles are spread."""

    layout: str = FAILSAFE
    recorders: int = 0
    selective: bool = False
    """Each conference is kept whole by two recorders, or all if there are no more."""

    def roles(self, sites: int) -> Roles:
        roles = Roles.profile(self.layout, sites, self.recorders)
        if not self.selective:
            return roles
        many = len(roles.recorders)
        filters = {}
        for i, site in enumerate(roles.recorders):
            kept = [c for n, c in enumerate(CONFERENCES) if i in (n % many, (n + 1) % many)]
            filters[site] = Selection(frozenset(kept)) if kept else Selection(frozenset((1,)))
        return structs.replace(roles, filters=filters)

    def check(self, sites: int = 2) -> Self:
        self.roles(sites).check()
        super().check(sites)
        return self


class Lines(LineSet):
    """Lines A and B."""

    def __init__(self, least_ns: int = MS // 4, most_ns: int = MS) -> None:
        super().__init__((least_ns, most_ns), (least_ns, most_ns))


class GrsbApplications(LineApplications[GrsbSite]):
    """Those of one group."""

    make_stable = GrsbStable

    def __init__(self, roles: Roles, config: GrsbConfig) -> None:
        super().__init__(roles.sites, roles.check(), config, GrsbSite)
        self.roles = roles

    def archives(self, member: SimulatedSite) -> dict[str, DiskArchive]:
        return {"archive": DiskArchive(member, lambda stable: stable)}

    def recorded(self) -> dict[int, GrsbStable]:
        return {number: self.world.on_disk(number) for number in self.roles.recorders}


MESSAGE_SIZES: Final = (12, 64, 200, 1000)

CUT: Final = "line:cut"
DEAF: Final = "line:deaf"
AWAY: Final = "away"

TARGETS: Final = kinds(
    "submit submitack bcast daack alive recovered pollok replaydata replayend takeover grant",
    "target:",
)

KINDS: Final = (
    *LINK_KINDS,
    "clog",
    *TARGETS,
    *PARTITIONS,
    *kinds("memory disk nothing mid-batch cr da pr", "crash:"),
    *kinds("pause pause:cr pause:da pause:pr storm:restart clock:rate clock:jump"),
    *(CUT, DEAF, AWAY),
)
"""What a GRSB group has to survive."""

TAKE_OVER: Final = "take-over"
GIVEN_UP: Final = "recorder:given-up"
LONG_AWAY: Final = "away:thousand"
ONE_LINE: Final = ("line:single", "line:only-b", "line:dual")
OUTCOMES: Final = (TAKE_OVER, GIVEN_UP, LONG_AWAY, *ONE_LINE)
"""What that led to, counted beside it: another reign, a recorder nobody waited for any more, a
user that came back a thousand messages later, line A in place of two, line B, and two again."""


class GrsbDraft(Draft):
    """Draws a plan of GRSB."""

    def fields(self) -> dict[str, Any]:
        rng = self.rng
        layout = rng.choice((DEMO, SEPARATE, FAILSAFE, FAILSAFE, FAILSAFE))
        fewest = {DEMO: 1, SEPARATE: 1, FAILSAFE: 2}[layout]
        recorders = fewest + rng.choice((0, 0, 1, 2))
        taken = recorders if layout == DEMO else recorders + 2 * fewest
        sites = max(3, taken + rng.choice((1, 2, 3, 5)))
        self.one_way_ns = rng.choice((MS // 20, MS // 4, MS, 5 * MS))
        faults = self.faults(KINDS)
        config = self.grsb() | {"layout": layout, "recorders": recorders}
        config["selective"] = recorders > 1 and rng.random() < 0.3
        links = self.links(faults)
        strikes = self.strikes(faults, sites)
        heal_ns = strikes[-1].at + self.unit_ns * rng.randint(1, 3)
        messages = rng.choice((60, 120, 250, 400, 400, 4000))
        if AWAY in faults and messages == 400:
            messages = 4000  # so that whoever is away misses thousands
        return self.steady(
            MESSAGE_SIZES,
            sites=sites,
            boot=PREFORMED,
            config=config,
            medium="lines",
            medium_args=(self.one_way_ns // 4, self.one_way_ns),
            messages=messages,
            links=links,
            strikes=strikes,
            heal_ns=heal_ns,
            liveness_ns=20 * self.unit_ns + 4 * messages * self.turn_ns,
        )

    def grsb(self) -> dict[str, Any]:
        """Times in units of the round trip, buffers large and small."""
        rng = self.rng
        trip = 2 * self.one_way_ns
        bcast = int(trip * rng.uniform(1.5, 6))
        attempts = rng.choice((3, 4, 8))
        alive = int(bcast * rng.uniform(2, 10))
        takeover = int(max(alive * rng.uniform(3, 6), 2 * attempts * bcast))
        window = rng.choice((1, 1, 1, 4))
        buffer = rng.choice((8, 32, 128, 1024))
        rec = int(trip * rng.uniform(1.2, 5))
        poll = int(alive * rng.uniform(0.5, 3))
        slow = bcast // 4
        config = {
            "submit_ns": int(bcast * rng.uniform(1, 4)),
            "bcast_ns": bcast,
            "window": window,
            "attempts": attempts,
            "alive_ns": alive,
            "alive_timeout_ns": int(alive * rng.uniform(2.5, 5)),
            "takeover_ns": takeover,
            "da_buffer": buffer,
            "overwrite_group": max(1, buffer // rng.choice((2, 4, 16))),
            "history": buffer + window + rng.choice((0, 10, 1000)),
            "rec_ns": rec,
            "rec_max_ns": rec * rng.choice((4, 16)),
            "rec_burst": rng.choice((2, 8, 32)),
            "repair_gap_ns": rec // rng.choice((4, 20)),
            "max_delay_ns": 8 * bcast,
            "base_delay_ns": slow,
            "slow_hold_ns": 4 * alive,
            "gap_limit": rng.choice((1, 4)),
            "gap_window_ns": 2 * alive,
            "backlog_limit": rng.choice((1, 2, 16)),
            "credit": rng.choice((1, 8, 32)),
            "serve_ns": int(trip * rng.choice((0.1, 1, 3))),
            "poll_ns": poll,
            "probe_ns": alive * rng.choice((2, 10)),
            "heard_max": rng.choice((32, 64, 256)),
            "own_limit": rng.choice((16, 256, 4096)),
            "bundle": rng.random() < 0.5,
        }
        self.unit_ns = 2 * takeover + attempts * bcast + config["rec_max_ns"]
        self.turn_ns = trip + bcast
        return config


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
        self.top = Level(self.roles, lambda site_or_disk: site_or_disk)

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
        cr = self.ruler(self.top)
        return cr is not None and cr.host.ways.mode == DUAL

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
        cr = self.ruler(self.top)
        return 0 if cr is None else cr.acked

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
        cr = self.ruler(self.top)
        if cr is None:
            return "nobody reigns"
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
        cr = self.ruler(self.top)
        if which == "cr":
            return cr.host.me if cr and odd % 4 else self.roles.retransmitters[0]
        if which == "da":
            return cr.host.reign.da if cr and odd % 4 else self.roles.acknowledgers[-1]
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
