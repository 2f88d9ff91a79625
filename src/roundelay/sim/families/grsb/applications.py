"""What applications do with GRSB sites, and those of the hierarchy, in a simulated world.

They submit messages and units to conferences, choose what they want, and are switched off; how far
they have come survives with the disk.  Besides what `core.events.Observer` has, observers may have
these methods::

    asked(time, site, inc, parts, conference, kind)   an application submits
    selected(time, site, wanted)                      what it wants from here on
    archived(time, archives, users)                   the end: what recorders have on disk, and the
                                                      users that must have all of it
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Final, Generic, TypeVar

from roundelay.core.bundle import Bundle
from roundelay.core.engine import MS, Engine
from roundelay.core.grsb.base import REPLAYED, GrsbDelivery
from roundelay.core.grsb.config import GrsbConfig, Roles
from roundelay.core.grsb.site import GrsbSite
from roundelay.core.grsb.stable import GrsbStable
from roundelay.core.selection import EVERYTHING, Selection
from roundelay.core.wide.site import WideSite
from roundelay.sim.kernel.member import SimulatedSite
from roundelay.sim.kernel.world import World
from roundelay.sim.network.media import LineSet

DATE_US: Final = 1_000_000_000_000_000
"""The date at the beginning of a simulated run."""

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

    def __init__(self, sites: int) -> None:
        self.starts = [0] * sites
        self.positions = [0] * sites  # how far the application of each site has come
        self.wanted = [EVERYTHING] * sites

    def attached(self, world: World) -> None:
        self.world = world

    def __call__(self, site: int, stable: Any, boot: str, now: int, rng: Random) -> Engine:
        self.starts[site] += 1
        again = self.starts[site] > 1
        wiped = again and stable is None
        if wiped:
            self.positions[site] = 0
        return self.make_site(
            self.world.sites[site],
            rng,
            now,
            inc=self.starts[site],
            stable=stable,
            wiped=wiped,
            position=self.positions[site] if again else None,
            wanted=self.wanted[site],
            base_us=DATE_US,
        )

    @abstractmethod
    def make_site(self, member: SimulatedSite, rng: Random, now: int, **options: Any) -> S:
        """The site itself."""

    @abstractmethod
    def recorded(self) -> dict[int, GrsbStable]:
        """What all recorders have on disk."""

    def delivered(self, time: int, site: int, delivery: GrsbDelivery) -> None:
        if delivery.stage != REPLAYED:
            self.positions[site] = delivery.upto

    def select(self, number: int, wanted: Selection) -> None:
        """From now on the application of a site wants this; one that is down, when it is up."""
        self.wanted[number] = wanted

        def verb(site: S, now: int) -> None:
            site.select(wanted, now)
            self.world.tell("selected", self.world.now, number, wanted)

        self.world.call(number, verb)

    def send(self, number: int, parts: Sequence[bytes], conference: int = 0, kind: int = 0) -> bool:
        """The application of a site submits a message, or several as a unit; False if it cannot."""

        def verb(site: S, now: int) -> None:
            site.submit_unit(parts, now, conference=conference, kind=kind)
            asked = (number, site.inc, tuple(parts), conference, kind)
            self.world.tell("asked", self.world.now, *asked)

        return self.world.enter(number, Bundle.of(*parts), verb, tells=True)


class Lines(LineSet):
    """Lines A and B."""

    def __init__(self, least_ns: int = MS // 4, most_ns: int = MS) -> None:
        super().__init__((least_ns, most_ns), (least_ns, most_ns))


class GrsbApplications(LineApplications[GrsbSite]):
    """Those of one group; `make` may be a mutant."""

    def __init__(self, roles: Roles, config: GrsbConfig, make: Any = GrsbSite) -> None:
        super().__init__(roles.sites)
        self.roles = roles.check()
        self.config = config.check(roles.sites)
        self.make = make

    def make_site(self, member: SimulatedSite, rng: Random, now: int, **options: Any) -> GrsbSite:
        archive = DiskArchive(member, lambda stable: stable)
        site: GrsbSite = self.make(
            member.id, self.roles, self.config, rng, now, archive=archive, **options
        )
        return site

    def recorded(self) -> dict[int, GrsbStable]:
        return {number: self.world.on_disk(number) for number in self.roles.recorders}


def grsb_group(roles: Roles, config: GrsbConfig, **options: Any) -> GrsbApplications:
    """A group in a world of its own; `options` are those of `Kernel`."""
    options.setdefault("medium", Lines())
    options.setdefault("make_stable", GrsbStable)
    applications = GrsbApplications(roles, config)
    World(roles.sites, applications, **options)
    return applications
