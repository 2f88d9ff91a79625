"""A simulated GRSB group: its parameters, and how its roles are spread over the sites."""

from __future__ import annotations

from typing import Final, Self

from msgspec import structs

from roundelay.core.grsb.config import FAILSAFE, GrsbConfig, Roles
from roundelay.core.selection import Selection

CONFERENCES: Final = (0, 7, 9)
KINDS_OF_MESSAGES: Final = (0, 1)


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
