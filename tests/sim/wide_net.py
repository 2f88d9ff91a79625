"""A hierarchy in a test: a world, what its users delivered, and what was sent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from roundelay.core.engine import MS, SECOND, Notice, Pdu
from roundelay.core.grsb.base import GrsbDelivery
from roundelay.core.wide.site import WideSite
from roundelay.core.wide.topology import Atlas, Network
from roundelay.sim.links import Partition
from roundelay.sim.wide_check import WideCheck
from roundelay.sim.wide_driver import archives
from roundelay.sim.wide_group import WideGroup
from roundelay.sim.wide_world import WideLines, WideWorld, wide_world

T_NS = 10 * MS


class Hierarchy:
    """Networks of `given` sizes (see `WideGroup`); times are those of the default configuration.

    Links of subnets take exactly T unless `subnet_ns` says otherwise.
    """

    def __init__(
        self, *, links: Any = None, subnet_ns: tuple[int, int] = (T_NS, T_NS),
        excused: Sequence[int] = (), **given: Any,
    ) -> None:  # fmt: skip
        self.config = WideGroup(**given).check()
        self.atlas = Atlas(self.config.topology())
        self.logs: dict[int, list[GrsbDelivery]] = {user: [] for user in self.atlas.origins}
        self.arrived: dict[tuple[int, int], int] = {}  # (site, position) → when it was delivered
        self.notices: list[tuple[int, int, Notice]] = []
        self.kinds: Counter[str] = Counter()
        self.sends: list[tuple[int, int, int, Pdu]] = []
        self.wrong: list[tuple[str, str, int]] = []
        self.check = WideCheck(lambda *what: self.wrong.append(what), excused)
        options: dict[str, Any] = {} if links is None else {"links": links}
        self.world: WideWorld = wide_world(
            self.atlas.topology, self.config, observers=[self, self.check],
            medium=WideLines(self.atlas, subnet_ns=subnet_ns), **options,
        )  # fmt: skip
        self.users = tuple(self.atlas.origins)
        self.spoken = 0

    # -- looking on ------------------------------------------------------------------------

    def delivered(self, time: int, site: int, delivery: GrsbDelivery) -> None:
        self.logs[site].append(delivery)
        self.arrived[site, delivery.seq] = time

    def noticed(self, time: int, site: int, notice: Notice) -> None:
        self.notices.append((time, site, notice))

    def sent(self, time: int, site: int, destination: int, pdu: Pdu) -> None:
        self.kinds[type(pdu).__name__] += 1
        self.sends.append((time, site, destination, pdu))

    def told(self, kind: str) -> list[tuple[int, tuple[object, ...]]]:
        return [(site, notice.info) for _, site, notice in self.notices if notice.kind == kind]

    # -- acting ----------------------------------------------------------------------------

    def say(self, user: int, *parts: bytes, at: int | None = None, conference: int = 0) -> None:
        if at is None:
            assert self.world.send(user, parts, conference)
        else:
            self.world.at(at, lambda: self.world.send(user, parts, conference))

    def chat(
        self, messages: int, gap_ns: int = 20 * MS, users: Sequence[int] | None = None
    ) -> None:
        """Messages of all users in turn."""
        who = users or self.users
        start = self.world.now
        for i in range(messages):
            user = who[i % len(who)]
            self.spoken += 1
            self.say(user, b"%d of %d" % (self.spoken, user), at=start + i * gap_ns)

    def cut(self, net: int) -> None:
        """A network from all others."""
        side = self.sites_of(net)
        rest = [site for site in self.world.group if site not in side]
        self.world.set_links(Partition.symmetric(side, rest))

    def run(self, seconds: float) -> None:
        self.world.run(self.world.now + int(seconds * SECOND))

    def until(self, done: Callable[[], bool], seconds: float = 120) -> None:
        limit = self.world.now + int(seconds * SECOND)
        assert self.world.run_until(done, limit, 20 * MS), "it did not come to that"

    # -- asking ----------------------------------------------------------------------------

    def network(self, net: int) -> Network:
        return self.atlas.networks[net]

    def sites_of(self, net: int) -> list[int]:
        network = self.network(net)
        return [*network.attached, *network.nodes]

    def site(self, number: int) -> WideSite:
        site = self.world.site(number)
        assert site is not None
        return site

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
            lcr = None if site is None or site.local is None else site.local.lcr
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
        disk = self.world.sites[self.atlas.topology.gpr[index]].disk
        assert disk is not None
        return list(disk.stable.globe.positions)

    def texts(self, user: int) -> list[bytes]:
        return [data for one in self.logs[user] for data in one.bundle]

    def everybody_has(self, messages: int, users: Sequence[int] | None = None) -> bool:
        return all(len(self.texts(user)) >= messages for user in users or self.users)

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
        """Everything has settled: the checker finds nothing wrong."""
        self.until(lambda: self.recorded(self.gcr.acked))
        self.check.finish(archives(self.world, self.atlas), self.users)
        assert not self.wrong, self.wrong[0]
