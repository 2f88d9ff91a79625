"""The hierarchy in virtual time: networks with lines of their own, a trunk, links of subnets.

As in `grsb_world` a PDU travels in an envelope that names its line.  A multicast reaches those who
are attached to the sender's network; on trunk and subnets there is none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from roundelay.core.bundle import Bundle
from roundelay.core.engine import MS, Engine, Pdu
from roundelay.core.errors import QueueFull, Refused
from roundelay.core.events import NOBODY, SUBMIT
from roundelay.core.grsb.base import REPLAYED, GrsbDelivery
from roundelay.core.grsb.config import EVERYTHING, Selection
from roundelay.core.grsb.pdu import LINE_A, LINE_B, Message
from roundelay.core.grsb.stable import GrsbStable
from roundelay.core.wide.config import WideConfig
from roundelay.core.wide.pdu import SUBNET, TRUNK
from roundelay.core.wide.site import WideSite
from roundelay.core.wide.stable import WideStable
from roundelay.core.wide.topology import Atlas, Topology
from roundelay.sim.grsb_world import DATE_US, LineMedium, OnLine
from roundelay.sim.links import Copy
from roundelay.sim.media import Medium
from roundelay.sim.member import Member
from roundelay.sim.ports import Codec
from roundelay.sim.world import World


class WideLines(Medium):
    """All lines as one medium; delays of local lines, trunk and subnets are their own."""

    def __init__(
        self,
        atlas: Atlas,
        local_ns: tuple[int, int] = (MS // 4, MS),
        trunk_ns: tuple[int, int] = (5 * MS, 10 * MS),
        subnet_ns: tuple[int, int] = (MS, 10 * MS),
    ) -> None:
        super().__init__()
        self.atlas = atlas
        delays = {LINE_A: local_ns, LINE_B: local_ns, TRUNK: trunk_ns, SUBNET: subnet_ns}
        self.lines = tuple(LineMedium(line, *delays[line]) for line in sorted(delays))

    def bind(self, world: Any, rng: Random, codec: Codec | None) -> None:
        super().bind(world, rng, codec)
        near: list[tuple[Member, ...]] = []
        for site in world.sites:
            network = self.atlas.network_of(site.id)
            around = () if network is None else network.attached
            near.append(tuple(world.sites[other] for other in around if other != site.id))
        for line in self.lines:
            line.bind(world, world.stream(f"line/{line.line}"), codec)
            line.everyone = tuple(near) if line.line in (LINE_A, LINE_B) else ((),) * len(near)

    def send(self, src: int, dst: int, pdu: Pdu) -> None:
        assert isinstance(pdu, OnLine)
        self.lines[pdu.line].send(src, dst, pdu.pdu)

    def launch(self, src: int, pdu: Pdu, ref: int, receivers: tuple[Member, ...] | list[Member],
               late: list[tuple[Member, Copy]]) -> None:  # fmt: skip
        raise NotImplementedError  # the lines do


class WideEngine(Engine):
    """A site of the hierarchy in the shape of an engine."""

    __slots__ = ("site",)

    def __init__(self, site: WideSite) -> None:
        super().__init__(site.me, tuple(range(site.atlas.sites)))
        self.site = site
        self.drops = site.drops
        self.collect()

    def submit(self, bundle: Bundle, now: int) -> None:
        try:
            self.site.submit(bundle, now)
        except Refused as error:
            raise QueueFull(str(error)) from None
        self.collect()

    def receive(self, pdu: Pdu, source: int, now: int) -> None:
        assert isinstance(pdu, OnLine)
        self.site.receive(pdu.pdu, source, now, pdu.line)
        self.collect()

    def on_timer(self, now: int) -> None:
        self.site.on_timer(now)
        self.collect()

    def collect(self) -> None:
        """After any call: what the site wants done, as the kernel knows it."""
        self.deadline = self.site.deadline
        made, out = self.site.take(), self.out
        if made:
            out.persists += made.persists
            out.sends += [(dst, OnLine(pdu, line)) for dst, pdu, line in made.sends]
            out.deliveries += made.deliveries
            out.notices += made.notices

    def usage(self) -> dict[str, int]:
        return self.site.usage()

    def caps(self) -> dict[str, int]:
        return self.site.caps()


class LevelArchive:
    """A recorder's archive on the disk of its simulated site."""

    def __init__(self, member: Member, level: str) -> None:
        self.member = member
        self.level = level

    @property
    def _stable(self) -> GrsbStable:
        disk = self.member.disk
        assert disk is not None
        stable: GrsbStable = getattr(disk.stable, self.level)
        return stable

    @property
    def end(self) -> int:
        return self._stable.end

    @property
    def missing(self) -> Sequence[tuple[int, int]]:
        return self._stable.missing

    def read(self, since: int, until: int, limit: int) -> list[Message]:
        return self._stable.read(since, until, limit)

    def select(self, since: int, until: int, wanted: Selection, limit: int) -> list[Message]:
        return self._stable.select(since, until, wanted, limit)

    def at_time(self, time: int) -> int:
        return self._stable.at_time(time)


class WideWorld(World):
    """See `Kernel` for the parameters; `make_engine` must be a `WideMaker`."""

    positions: list[int]
    """Of each site: how far its application has come; it survives with the disk."""
    wanted: list[Selection]

    def start(self, site: Member, stable: Any, boot: str) -> None:
        if not hasattr(self, "positions"):
            self.positions = [0] * len(self.sites)
            self.wanted = [EVERYTHING] * len(self.sites)
        maker = self.make_engine
        if isinstance(maker, WideMaker):
            maker.world = self
        super().start(site, stable, boot)

    def site(self, number: int) -> WideSite | None:
        """A site that has its memory, up or not."""
        member = self.sites[number]
        engine = member.engine or member.kept
        return engine.site if isinstance(engine, WideEngine) else None

    def _call(self, number: int, verb: Callable[[WideSite, int], object]) -> bool:
        """Call a site; False if it is not up."""
        member = self.sites[number]
        engine = member.engine
        if not isinstance(engine, WideEngine):
            return False
        verb(engine.site, member.local(self.now))
        engine.collect()
        return True

    def _after(self, number: int) -> None:
        member = self.sites[number]
        if member.engine is not None:
            self.settle(member, member.engine)

    def select(self, number: int, wanted: Selection) -> None:
        """From now on the application of a site wants this; one that is down, when it is up."""
        self.wanted[number] = wanted

        def verb(site: WideSite, now: int) -> None:
            site.select(wanted, now)
            self.tell("selected", self.now, number, wanted)

        if self._call(number, verb):
            self._after(number)

    def send(self, number: int, parts: Sequence[bytes], conference: int = 0, kind: int = 0) -> bool:
        """The application of a site submits a message, or several as a unit; False if it cannot."""

        def verb(site: WideSite, now: int) -> None:
            site.submit_unit(parts, now, conference=conference, kind=kind)
            self.tell("asked", self.now, number, site.inc, tuple(parts), conference, kind)

        try:
            accepted = self._call(number, verb)
        except (QueueFull, Refused):
            accepted = False
        if not accepted:
            self.submissions_refused += 1
            return False
        self.events += 1
        member = self.sites[number]
        if self.rows is not None:
            bundle = Bundle.of(*parts)
            self.rows.append((self.now, number, SUBMIT, member.index, NOBODY, bundle))
        member.index += len(parts)
        self._after(number)
        return True

    def hand_over(self, site: Member, delivery: Any) -> None:
        assert isinstance(delivery, GrsbDelivery)
        if delivery.stage != REPLAYED:
            self.positions[site.id] = delivery.upto
        super().hand_over(site, delivery)


class WideMaker:
    """Makes the sites of a world, which tells it of itself; `make` may be a mutant."""

    world: WideWorld

    def __init__(self, topology: Topology, config: WideConfig, make: Any = WideSite) -> None:
        self.atlas = Atlas(topology)
        self.config = config.check(topology.sites)
        self.make = make
        self.starts = [0] * topology.sites

    def __call__(self, site: int, stable: Any, boot: str, now: int, rng: Random) -> Engine:
        world = self.world
        self.starts[site] += 1
        again = self.starts[site] > 1
        wiped = again and stable is None
        if wiped:
            world.positions[site] = 0
        member = world.sites[site]
        made = self.make(
            site, self.atlas, self.config, rng, now,
            inc=self.starts[site],
            stable=stable,
            archive=LevelArchive(member, "local"),
            globe_archive=LevelArchive(member, "globe"),
            wiped=wiped,
            position=world.positions[site] if again else None,
            wanted=world.wanted[site],
            base_us=DATE_US,
        )  # fmt: skip
        return WideEngine(made)


def wide_world(topology: Topology, config: WideConfig, **options: Any) -> WideWorld:
    """A world of `topology`; `options` are those of `Kernel`."""
    maker = WideMaker(topology, config)
    options.setdefault("medium", WideLines(maker.atlas))
    options.setdefault("make_stable", WideStable)
    return WideWorld(topology.sites, maker, **options)
