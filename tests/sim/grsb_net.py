"""A GRSB group in a test."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from roundelay.core.grsb.base import REPLAYED, GrsbDelivery
from roundelay.core.grsb.config import FAILSAFE, GrsbConfig, Roles
from roundelay.core.grsb.pdu import Message
from roundelay.core.grsb.site import GrsbSite
from roundelay.sim.families.grsb import GrsbApplications, Lines
from roundelay.trace.checkers.journal import JournalChecker
from tests.sim.line_net import LineNet


class Group(LineNet[GrsbSite]):
    """`roles` may be a profile's name; times are those of the default configuration."""

    applications: GrsbApplications

    def __init__(
        self, roles: Roles | str = FAILSAFE, sites: int = 9, config: GrsbConfig | None = None,
        **options: Any,
    ) -> None:  # fmt: skip
        self.roles = Roles.profile(roles, sites) if isinstance(roles, str) else roles
        super().__init__(self.roles.users)
        self.answers: dict[int, list[GrsbDelivery]] = {user: [] for user in self.users}
        self.checker = JournalChecker()
        self.config = config or GrsbConfig()
        options.setdefault("medium", Lines())
        applications = GrsbApplications(self.roles, self.config)
        self.applications = applications.in_world(observers=[self, self.checker], **options)

    def conference(self, number: int) -> int:
        return number % 3

    def delivered(self, time: int, site: int, delivery: GrsbDelivery) -> None:
        if delivery.stage == REPLAYED:
            self.answers[site].append(delivery)
        else:
            super().delivered(time, site, delivery)

    @property
    def reigning(self) -> list[GrsbSite]:
        """Sites that are up and whose retransmitter reigns."""
        up = [n for n in self.roles.retransmitters if self.world.sites[n].engine is not None]
        sites = [self.site(number) for number in up]
        return [one for one in sites if one.retransmitter and one.retransmitter.reigning]

    @property
    def ruler(self) -> GrsbSite:
        return max(self.reigning, key=lambda site: site.reign.epoch)

    def reigns(self, but: int) -> bool:
        """Whether somebody else than `but` reigns."""
        return any(site.me != but for site in self.reigning)

    @property
    def cr(self) -> Any:
        return self.ruler.retransmitter

    @property
    def da(self) -> Any:
        return self.site(self.ruler.reign.da).acknowledger

    def recorder(self, index: int = 0) -> Any:
        return self.site(self.roles.recorders[index]).recorder

    def user(self, number: int) -> Any:
        return self.site(number).user

    def archive(self, index: int = 0) -> list[Message]:
        log: list[Message] = self.world.on_disk(self.roles.recorders[index]).log
        return log

    def everybody_has(self, messages: int, users: Sequence[int] | None = None) -> bool:
        """Of those who are up."""
        up = [user for user in users or self.users if self.world.sites[user].engine is not None]
        return super().everybody_has(messages, up)


def lines(group: Group) -> Any:
    assert isinstance(group.world.medium, Lines)
    return group.world.medium.lines
