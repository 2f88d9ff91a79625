"""Parameters of a GRSB group and who plays which role, checked once."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, Self

from msgspec import Struct, structs

from roundelay.core.engine import MS, NEVER, SECOND
from roundelay.core.errors import ConfigError
from roundelay.core.grsb.pdu import Message
from roundelay.core.limits import one_of, whole
from roundelay.core.selection import EVERYTHING, Selection

STABLE: Final = "stable"
FAST: Final = "fast"

DEMO: Final = "demo"
SEPARATE: Final = "separate"
FAILSAFE: Final = "failsafe"
PROFILES: Final = (DEMO, SEPARATE, FAILSAFE)

SITES_MAX: Final = 1000


def check_places(role: str, places: tuple[int, ...], sites: int) -> None:
    """Raise ConfigError unless that many sites can have `role` at these places."""
    if not places or len(set(places)) < len(places):
        raise ConfigError(role, places, "one site or more, each once")
    for site in places:
        whole(role, site, 0, sites - 1)


class Roles(Struct, frozen=True, kw_only=True):
    """Who plays which role in a group of sites 0 … sites-1 (§6.1, §6.9).

    The first retransmitter and the first acknowledger begin; the others stand by (GR-26).
    """

    sites: int
    retransmitters: tuple[int, ...]
    acknowledgers: tuple[int, ...]
    recorders: tuple[int, ...]
    users: tuple[int, ...]
    filters: dict[int, Selection] = {}
    """What a recorder keeps whole, if not everything."""
    lines: int = 1

    @classmethod
    def profile(cls, name: str, sites: int, recorders: int = 0) -> Self:
        """The layouts of §6.9; `recorders` = 0 stands for the fewest of the profile.

        `demo`: retransmitter and recorder on site 0, the acknowledger is a user, one line.
        `separate`: each role on a site of its own, two lines.  `failsafe`: and both with a
        standby, and two recorders.
        """
        one_of("profile", name, PROFILES)
        spares = 2 if name == FAILSAFE else 1
        count = recorders or spares
        taken = count if name == DEMO else 2 * spares + count
        if sites < taken + 1:
            allowed = f"{taken + 1} or more for the profile {name} with {count} recorders"
            raise ConfigError("sites", sites, allowed)
        if name == DEMO:
            places = (0, *range(2, 1 + count))
            return cls(
                sites=sites, retransmitters=(0,), acknowledgers=(1,), recorders=places,
                users=tuple(site for site in range(1, sites) if site == 1 or site not in places),
            )  # fmt: skip
        return cls(
            sites=sites,
            retransmitters=tuple(range(spares)),
            acknowledgers=tuple(range(spares, 2 * spares)),
            recorders=tuple(range(2 * spares, taken)),
            users=tuple(range(taken, sites)),
            lines=2,
        )

    @property
    def council(self) -> tuple[int, ...]:
        """Those who decide on take-overs: everybody but the users."""
        return tuple(sorted({*self.retransmitters, *self.acknowledgers, *self.recorders}))

    @property
    def majority(self) -> int:
        return len(self.council) // 2 + 1

    def selection(self, recorder: int) -> Selection:
        return self.filters.get(recorder, EVERYTHING)

    def keepers(self, message: Message) -> Collection[int]:
        """The recorders that keep `message` whole."""
        if not self.filters:
            return self.recorders
        return [site for site in self.recorders if self.selection(site).takes(message)]

    def check(self) -> Self:
        whole("sites", self.sites, 2, SITES_MAX)
        whole("lines", self.lines, 1, 2)
        for name in ("retransmitters", "acknowledgers", "recorders", "users"):
            check_places(name, getattr(self, name), self.sites)
        if set(self.retransmitters) & set(self.acknowledgers):
            allowed = "on other sites than the retransmitters: one machine must not fail as both"
            raise ConfigError("acknowledgers", self.acknowledgers, allowed)
        for site in self.filters:
            if site not in self.recorders:
                raise ConfigError("filters", site, "recorders only")
        return self


class GrsbConfig(Struct, frozen=True, kw_only=True):
    """Constants of one group (§6.11); every site must use the same ones."""

    submit_ns: int = 200 * MS
    """t_submit: repeat a submission."""
    bcast_ns: int = 50 * MS
    """t_bcast: repeat a broadcast, a poll, a step of a take-over."""
    window: int = 1
    """Broadcasts without an acknowledgement (GR-4)."""
    attempts: int = 8
    """R: unanswered repetitions before something is given up."""
    alive_ns: int = SECOND
    """t_alive."""
    alive_timeout_ns: int = 3500 * MS
    """Silence after which a user is `down` (GR-20)."""
    takeover_ns: int = 5 * SECOND
    """t_takeover: silence after which a standby retransmitter steps in (GR-27)."""
    da_buffer: int = 1024
    """Broadcasts the acknowledger keeps for the recorders."""
    overwrite_group: int = 64
    """It polls them when there is room for fewer than this many (GR-11)."""
    history: int = 2048
    """Broadcasts the retransmitter keeps; at least da_buffer (GR-28)."""
    rec_ns: int = 50 * MS
    """t_rec: repeat a repair request; doubled up to `rec_max_ns` while nothing comes (GR-25)."""
    rec_max_ns: int = 2 * SECOND
    rec_burst: int = 32
    """Messages sent for one repair request."""
    repair_gap_ns: int = 2 * MS
    """Least time between two repair requests of one node (GR-25)."""
    max_delay_ns: int = 500 * MS
    """The longest delay of an acknowledgement (GR-12)."""
    base_delay_ns: int = 5 * MS
    slow_hold_ns: int = 2 * SECOND
    gap_limit: int = 8
    """Gaps of a recorder within `gap_window_ns` that make it ask for mercy (GR-12), or messages
    that it has lacked for so long without getting nearer."""
    gap_window_ns: int = SECOND
    backlog_limit: int = 16
    """Users waiting for a replay that do the same."""
    credit: int = 32
    """Messages of one stretch of a replay (GR-17)."""
    serve_ns: int = MS
    """A recorder serves one stretch of a replay this often."""
    poll_ns: int = SECOND
    """The acknowledger asks recorders this often how far they are."""
    probe_ns: int = 10 * SECOND
    """t_probe: try the silent line again (GR-24)."""
    heard_max: int = 256
    """Broadcasts a listener keeps behind a gap; more are fetched again."""
    delivery: str = STABLE
    """`stable`, or `fast`: on receipt, unsafe across a take-over (GR-15)."""
    own_limit: int = 4096
    """Submissions that wait at a user."""
    max_payload: int = 1200
    """Bytes of one bundle."""
    bundle: bool = False
    """Messages that wait while one is under way go together."""
    unit_bytes: int = 1 << 20
    """Bytes of one unit of start, middle and end messages."""
    cold_start: bool = False
    """Begin anew from what all recorders have if retransmitter and acknowledger were both lost."""
    ceiling: int = 0
    """Positions the acknowledger may go beyond what its disk says.  A cold start begins above all
    that may have been acknowledged; with 0 nothing is kept, and it begins at what recorders have,
    so that positions which only memory had are used again."""

    @classmethod
    def fast(cls, **changes: object) -> Self:
        """What live groups use on one network: short repetitions, and bundles."""
        values: dict[str, object] = {
            "submit_ns": 50 * MS, "bcast_ns": 10 * MS, "attempts": 20, "alive_ns": 200 * MS,
            "alive_timeout_ns": SECOND, "takeover_ns": 2 * SECOND, "rec_ns": 10 * MS,
            "rec_max_ns": 500 * MS, "repair_gap_ns": MS // 2, "serve_ns": MS // 5,
            "poll_ns": 50 * MS, "probe_ns": 2 * SECOND, "bundle": True,
        }  # fmt: skip
        return cls(**(values | changes))  # type: ignore[arg-type]

    def check(self, sites: int = 2) -> Self:
        """Raise ConfigError unless this configuration can run a group."""
        whole("sites", sites, 2, SITES_MAX)
        may_be_0 = {"repair_gap_ns": NEVER, "ceiling": 1 << 32}
        for field in structs.fields(GrsbConfig):
            if field.type is int:
                low, high = (0, may_be_0[field.name]) if field.name in may_be_0 else (1, NEVER)
                whole(field.name, getattr(self, field.name), low, high)
        if self.history < self.da_buffer + self.window:
            allowed = f"da_buffer + window = {self.da_buffer + self.window} or more (GR-28)"
            raise ConfigError("history", self.history, allowed)
        whole("rec_burst", self.rec_burst, 1, self.heard_max)
        whole("overwrite_group", self.overwrite_group, 1, self.da_buffer)
        if self.alive_timeout_ns <= self.alive_ns or self.takeover_ns <= 2 * self.alive_ns:
            allowed = "less than alive_timeout_ns and than half of takeover_ns"
            raise ConfigError("alive_ns", self.alive_ns, allowed)
        one_of("delivery", self.delivery, (STABLE, FAST))
        return self
