"""A hierarchy in a test."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from roundelay.core.engine import MS
from roundelay.core.grsb.base import GrsbDelivery
from roundelay.core.wide.pdu import LsDown
from roundelay.core.wide.site import WideSite
from roundelay.core.wide.topology import Atlas, Network
from roundelay.sim.families.wide import WideApplications, WideGroup, WideLines
from roundelay.sim.network.links import Partition
from roundelay.trace.checkers.journal import JournalChecker
from tests.sim.line_net import LineNet

T_NS = 10 * MS


class Hierarchy(LineNet[WideSite]):
    """Networks of `given` sizes (see `WideGroup`); times are those of the default configuration.

    Links of subnets take exactly T unless `subnet_ns` says otherwise.
    """

    applications: WideApplications
    step_ns = 20 * MS

    def __init__(
        self, *, links: Any = None, subnet_ns: tuple[int, int] = (T_NS, T_NS),
        excused: Sequence[int] = (), **given: Any,
    ) -> None:  # fmt: skip
        self.config = WideGroup(**given).check()
        self.atlas = Atlas(self.config.topology())
        super().__init__(tuple(self.atlas.origins))
        self.arrived: dict[tuple[int, int], int] = {}  # (site, position) → when it was delivered
        self.checker = JournalChecker(wide=True, excused=excused)
        options: dict[str, Any] = {} if links is None else {"links": links}
        self.applications = WideApplications(self.atlas.topology, self.config).in_world(
            observers=[self, self.checker],
            medium=WideLines(self.atlas, subnet_ns=subnet_ns), **options,
        )  # fmt: skip

    def delivered(self, time: int, site: int, delivery: GrsbDelivery) -> None:
        super().delivered(time, site, delivery)
        self.arrived[site, delivery.seq] = time

    def cut(self, net: int) -> None:
        """A network from all others."""
        side = self.sites_of(net)
        rest = [site for site in self.world.group if site not in side]
        self.world.set_links(Partition.symmetric(side, rest))

    def network(self, net: int) -> Network:
        return self.atlas.networks[net]

    def sites_of(self, net: int) -> list[int]:
        network = self.network(net)
        return [*network.attached, *network.nodes]

    def flooded(self, net: int) -> dict[int, int]:
        """Position → when the broadcaster of a network first gave it to its subnet."""
        network = self.network(net)
        begins: dict[int, int] = {}
        for time, site, to, pdu in self.sends:
            if isinstance(pdu, LsDown) and site == network.broadcaster and to in network.nodes:
                begins.setdefault(pdu.message.gseq, time)
        return begins

    @property
    def gcr(self) -> Any:
        found = [self.world.site(number) for number in self.atlas.topology.gcr]
        reigning = [
            one.globe.retransmitter
            for one in found
            if one is not None and one.globe and one.globe.retransmitter
            and one.globe.retransmitter.reigning
        ]  # fmt: skip
        return max(reigning, key=lambda one: one.epoch, default=None)

    def lcr(self, net: int) -> Any:
        for number in self.network(net).retransmitters:
            site = self.world.site(number)
            lcr = None if site is None or site.local is None else site.local.retransmitter
            if lcr is not None and lcr.reigning:
                return lcr
        raise AssertionError(f"no LCR reigns in network {net}")

    def acked(self, net: int) -> int:
        """How far a network is; -1 while nobody reigns there."""
        try:
            return int(self.lcr(net).acked)
        except AssertionError:
            return -1

    def pacer(self, net: int) -> Any:
        local = self.site(self.network(net).recorders[0]).local
        assert local is not None
        return local.pacer

    def gpr(self, index: int = 0) -> Any:
        globe = self.site(self.atlas.topology.gpr[index]).globe
        assert globe is not None
        return globe.recorder

    def gpr_log(self, index: int = 0) -> list[int]:
        """Positions a GPR still keeps."""
        return list(self.world.on_disk(self.atlas.topology.gpr[index]).globe.positions)

    def recorded(self, top: int) -> bool:
        """Whether all recorders have everything."""
        for network in self.atlas.networks.values():
            for number in network.recorders:
                local = self.site(number).local
                assert local is not None
                if local.recorder is None or local.recorder.mark < top:
                    return False
        return all(self.gpr(i).mark >= top for i in range(len(self.atlas.topology.gpr)))

    def judge(self) -> None:
        self.until(lambda: self.recorded(self.gcr.acked))
        super().judge()
