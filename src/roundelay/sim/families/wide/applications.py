"""The hierarchy in virtual time: networks with lines of their own, a trunk, links of subnets.

A multicast reaches those who are attached to the sender's network; on trunk and subnets there is
none.
"""

from __future__ import annotations

from operator import attrgetter
from random import Random
from typing import Any, Final

from roundelay.core.engine import MS
from roundelay.core.grsb.pdu import LINE_A, LINE_B
from roundelay.core.grsb.stable import GrsbStable
from roundelay.core.wide.config import WideConfig
from roundelay.core.wide.pdu import SUBNET, TRUNK
from roundelay.core.wide.site import WideSite
from roundelay.core.wide.stable import WideStable
from roundelay.core.wide.topology import Atlas, Topology
from roundelay.sim.families.grsb.applications import DiskArchive, LineApplications
from roundelay.sim.kernel.member import SimulatedSite
from roundelay.sim.kernel.ports import Codec
from roundelay.sim.kernel.world import World
from roundelay.sim.network.media import LineSet

GLOBAL_KEY: Final = 1 << 16
"""Added to the number of a GPR's site, which may have an LPR, too."""


class WideLines(LineSet):
    """All lines as one medium; delays of local lines, trunk and subnets are their own."""

    def __init__(
        self,
        atlas: Atlas,
        local_ns: tuple[int, int] = (MS // 4, MS),
        trunk_ns: tuple[int, int] = (5 * MS, 10 * MS),
        subnet_ns: tuple[int, int] = (MS, 10 * MS),
    ) -> None:
        delays = {LINE_A: local_ns, LINE_B: local_ns, TRUNK: trunk_ns, SUBNET: subnet_ns}
        super().__init__(*(delays[line] for line in sorted(delays)))
        self.atlas = atlas

    def bind(self, world: Any, rng: Random, codec: Codec | None) -> None:
        super().bind(world, rng, codec)
        near: list[tuple[SimulatedSite, ...]] = []
        for site in world.sites:
            network = self.atlas.network_of(site.id)
            around = () if network is None else network.attached
            near.append(tuple(world.sites[other] for other in around if other != site.id))
        for line in self.lines:
            line.hearers = tuple(near) if line.line in (LINE_A, LINE_B) else ((),) * len(near)


class WideApplications(LineApplications[WideSite]):
    """Those of all networks; `make` may be a mutant."""

    def __init__(self, topology: Topology, config: WideConfig, make: Any = WideSite) -> None:
        super().__init__(topology.sites)
        self.atlas = Atlas(topology)
        self.config = config.check(topology.sites)
        self.make = make

    def make_site(self, member: SimulatedSite, rng: Random, now: int, **options: Any) -> WideSite:
        site: WideSite = self.make(
            member.id,
            self.atlas,
            self.config,
            rng,
            now,
            archive=DiskArchive(member, attrgetter("local")),
            globe_archive=DiskArchive(member, attrgetter("globe")),
            **options,
        )
        return site

    def recorded(self) -> dict[int, GrsbStable]:
        on_disk = self.world.on_disk
        archives: dict[int, GrsbStable] = {}
        for network in self.atlas.networks.values():
            for number in network.recorders:
                archives[number] = on_disk(number).local
        for number in self.atlas.topology.gpr:
            archives[GLOBAL_KEY + number] = on_disk(number).globe
        return archives


def wide_group(topology: Topology, config: WideConfig, **options: Any) -> WideApplications:
    """A hierarchy in a world of its own; `options` are those of `Kernel`."""
    applications = WideApplications(topology, config)
    options.setdefault("medium", WideLines(applications.atlas))
    options.setdefault("make_stable", WideStable)
    World(topology.sites, applications, **options)
    return applications
