"""GRSB in virtual time: two lines, sites with roles, users that are switched off."""

from __future__ import annotations

from random import Random
from typing import Any

from roundelay.core.engine import MS
from roundelay.core.errors import UsageError
from roundelay.core.grsb.config import GrsbConfig, Roles, Selection
from roundelay.core.grsb.site import GrsbSite
from roundelay.core.grsb.stable import GrsbStable
from roundelay.sim.line_world import DiskArchive, LineMaker, LineSet, LineSite, LineWorld
from roundelay.sim.member import Member


class Lines(LineSet):
    """Lines A and B."""

    def __init__(self, least_ns: int = MS // 4, most_ns: int = MS) -> None:
        super().__init__((least_ns, most_ns), (least_ns, most_ns))


class GroupSite(LineSite[GrsbSite]):
    """A GRSB site in the shape of an engine."""

    __slots__ = ()

    def idle(self) -> bool:
        return not self.site.out  # it counts its batches, and an empty one is none


class GrsbWorld(LineWorld[GrsbSite]):
    """A group of GRSB; `make_engine` must be a `SiteMaker`."""

    def inc_of(self, site: GrsbSite) -> int:
        assert site.user is not None
        return site.user.inc

    def history(self, number: int, wanted: Selection, since: int = 0, since_time: int = 0) -> int:
        """The application of a site asks for the past; returns the number of its question."""
        found = []

        def verb(site: GrsbSite, now: int) -> None:
            found.append(site.history(wanted, now, since=since, since_time=since_time))

        if not self.call(number, verb):
            raise UsageError(f"site {number} is not up")
        self.after_call(number)
        return found[0]

    def recorded(self, recorders: tuple[int, ...]) -> dict[int, GrsbStable]:
        """What recorders have on disk."""
        return {number: self.on_disk(number) for number in recorders}


def _whole(stable: Any) -> GrsbStable:
    assert isinstance(stable, GrsbStable)
    return stable


class SiteMaker(LineMaker):
    """Makes the sites of a world; `make` may be a mutant."""

    engine_class = GroupSite

    def __init__(self, roles: Roles, config: GrsbConfig, make: Any = GrsbSite) -> None:
        super().__init__(roles.sites)
        self.roles = roles.check()
        self.config = config.check(roles.sites)
        self.make = make

    def made(self, member: Member, rng: Random, now: int, **options: Any) -> GrsbSite:
        archive = DiskArchive(member, _whole)
        site: GrsbSite = self.make(
            member.id, self.roles, self.config, rng, now, archive=archive, **options
        )
        return site


def grsb_world(roles: Roles, config: GrsbConfig, **options: Any) -> GrsbWorld:
    """A world of `roles`; `options` are those of `Kernel`."""
    options.setdefault("medium", Lines())
    options.setdefault("make_stable", GrsbStable)
    return GrsbWorld(roles.sites, SiteMaker(roles, config), **options)
