"""One simulated run of GRSB: users, recorders, and some of the users away for most of it.

Beacons are signs of life, the acknowledger's answers to them, and polls.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from roundelay.core.engine import Pdu
from roundelay.core.errors import ConfigError
from roundelay.core.grsb.config import PROFILES, SEPARATE, GrsbConfig, Roles
from roundelay.core.grsb.pdu import Alive, Bcast, DaAck, Poll, PollOk
from roundelay.core.grsb.site import GrsbSite
from roundelay.runs.line import BeaconMeter, LineRun, check_away
from roundelay.sim.families.grsb import GrsbApplications, Lines, grsb_group
from roundelay.trace.checkers.journal import JournalChecker
from roundelay.trace.recorder import Recorder

if TYPE_CHECKING:
    from roundelay.runs.simulate import SimulateParams


class GroupBeacons(BeaconMeter):
    """Of one group."""

    def __init__(self) -> None:
        self._idle = True  # the retransmitter last spoke to say that it is alive
        self._mark = self._safe = 0

    def sent(self, time: int, site: int, destination: int, pdu: Pdu) -> None:
        if isinstance(pdu, Bcast):
            self._idle = False
        elif isinstance(pdu, Alive):
            self._idle = True
            self.beacons += 1
        elif isinstance(pdu, Poll | PollOk):
            self.beacons += 1
        elif isinstance(pdu, DaAck):
            again = pdu.gseq == self._mark
            self.beacons += again and (self._idle or pdu.safe > self._safe)
            self._mark, self._safe = pdu.gseq, pdu.safe


def roles(params: SimulateParams) -> Roles:
    layout = params.layout or SEPARATE
    if layout not in PROFILES:
        raise ConfigError("layout", layout, " or ".join(PROFILES))
    return Roles.profile(layout, params.sites, params.recorders or 0).check()


class GrsbRun(LineRun):
    """A run of one group."""

    @staticmethod
    def check_params(params: SimulateParams) -> None:
        roles(params)
        check_away(params)

    @staticmethod
    def users_of(params: SimulateParams) -> tuple[int, ...]:
        return roles(params).users

    def __init__(self, params: SimulateParams, recorder: Recorder | None) -> None:
        self.roles = roles(params)
        super().__init__(params, recorder, self.roles.users, JournalChecker(), GroupBeacons())

    def make_group(self, delay_ns: int, **options: Any) -> GrsbApplications:
        config = GrsbConfig() if self.params.profile == "paper" else GrsbConfig.fast()
        return grsb_group(self.roles, config, medium=Lines(delay_ns, delay_ns), **options)

    @property
    def first_kind(self) -> int:
        return len(self.users)

    def may_leave(self) -> Sequence[int]:
        return self.users

    def parts(self, site: GrsbSite) -> Iterable[GrsbSite]:
        return (site,)

    def own_results(self) -> dict[str, Any]:
        return {
            "layout": self.params.layout or SEPARATE,
            "recorders": len(self.roles.recorders),
            "users": self.first_kind,
        } | super().own_results()
