"""Media: how PDUs get from one site to the others.

    Bus        1C  one transmission at a time; all who hear it hear it at the same instant
    Mesh       MC  first in, first out per ordered pair of sites, with random delays
    Datagram   DG  random delays per copy: reordering, and duplicates if asked for
    LineSet        several lines: a send names its line, and who hears a PDU is told which it was

What a medium promises holds for PDUs that no link (see `links`) has touched; a link is a fault
and may break the promise.  A `Mesh` keeps its promise for delayed copies (those behind them wait)
but not for duplicated and reordered ones.

With `adapted` a receiver drops what is not newer than what it has had: from the same sender, or on
the `Bus` from anybody.  So a sender's (or the bus's) order holds whatever the links do, and a
duplicated, overtaken or late copy is a lost one.  That is how a datagram service becomes MC, and
one with a hub 1C.

A multicast on the `Bus` is one entry of the heap whatever the number of receivers, and plain
independent loss is drawn right here: this is the path that decides how fast a simulation runs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from heapq import heappush
from random import Random
from typing import TYPE_CHECKING, Any

from roundelay.core.engine import EVERYONE, MS, ONLY_LINE, Pdu
from roundelay.core.errors import ConfigError, MalformedPdu
from roundelay.core.events import LOSE, SEND
from roundelay.core.limits import chance, whole
from roundelay.sim.kernel.member import SimulatedSite
from roundelay.sim.kernel.ports import Codec
from roundelay.sim.network.links import Copy, damaged

if TYPE_CHECKING:
    from roundelay.sim.kernel.kernel import Kernel


ORDINARY = Copy()

Members = tuple[SimulatedSite, ...] | list[SimulatedSite]
Late = list[tuple[SimulatedSite, Copy]]
"""Copies that a link held back or made, and for whom."""


class SimulatedMedium(ABC):
    """Base of all media."""

    own_copy = False
    """Whether a sender receives its own multicasts from the medium (TO in channel mode does).

    Such a copy can be lost like any other.
    """

    one_channel = False
    """Whether `adapted` means one order of all senders, or one for each."""

    def __init__(self, adapted: bool | int = False) -> None:
        self.adapted = bool(adapted)
        self.newest: dict[int, int] = {}  # channel at a receiver → last transmission it has had
        self.world: Kernel
        self.arrive: Callable[[int, Pdu, Sequence[SimulatedSite], int], None]
        self.rng: Random
        self.codec: Codec | None = None
        self.hearers: tuple[tuple[SimulatedSite, ...], ...] = ()  # of each site's multicasts

    def bind(self, world: Kernel, rng: Random, codec: Codec | None) -> None:
        """Called once by the world."""
        self.world = world
        self.arrive = self._admit if self.adapted else world.arrive
        self.rng = rng
        self.codec = codec
        self.hearers = tuple(
            tuple(other for other in world.sites if other is not site) + (site,) * self.own_copy
            for site in world.sites
        )

    def _admit(self, src: int, pdu: Pdu, receivers: Sequence[SimulatedSite], ref: int) -> None:
        """Copies arrive; those overtaken by newer ones of their channel do not get through."""
        newest = self.newest
        heard: list[SimulatedSite] = []
        for site in receivers:
            channel = site.id if self.one_channel else src << 32 | site.id
            if ref > newest.get(channel, 0):
                newest[channel] = ref
                heard.append(site)
            else:
                self.world.lose(site.id, ref, src, "stale")
        if heard:
            self.world.arrive(src, pdu, heard, ref)

    @abstractmethod
    def launch(self, src: int, pdu: Pdu, ref: int, receivers: Members, late: Late) -> None:
        """Put the arrivals on the heap: those of `receivers` as the medium does it, and `late`."""

    def send(self, src: int, dst: int, pdu: Pdu, line: int = ONLY_LINE) -> None:
        """`src` transmits `pdu` to `dst` or to everyone."""
        world = self.world
        world.sent = ref = world.sent + 1
        kinds = world.sent_by_kind
        kind = pdu.__class__
        kinds[kind] = kinds.get(kind, 0) + 1
        rows = world.rows
        if rows is not None:
            rows.append((world.now, src, SEND, ref, dst, pdu))
        if world.on_sent:
            for call in world.on_sent:
                call(world.now, src, dst, pdu)
        targets: Members = self.hearers[src] if dst == EVERYONE else (world.sites[dst],)
        data = b""
        if self.codec is not None:
            data = self.codec.encode(pdu, src)
            pdu = self.codec.decode(data)
        loss = world.loss
        late: Late = []
        if loss is None:
            targets = self._through_links(src, pdu, ref, targets, late, data)
        elif loss:
            random = world.loss_random
            heard = [site for site in targets if random() >= loss]
            if len(heard) != len(targets):
                world.faults["loss"] += len(targets) - len(heard)
                if rows is not None:
                    for site in targets:
                        if site not in heard:
                            rows.append((world.now, site.id, LOSE, ref, src, "loss"))
            targets = heard
        self.launch(src, pdu, ref, targets, late)

    def _through_links(
        self, src: int, pdu: Pdu, ref: int, targets: Members, late: Late, data: bytes
    ) -> list[SimulatedSite]:
        """The general path: ask the links about every copy."""
        world = self.world
        now = world.now
        carry = world.links.carry
        heard: list[SimulatedSite] = []
        for site in targets:
            fate = carry(now, src, site.id, pdu, ref)
            if fate is None:
                heard.append(site)
            elif isinstance(fate, str):
                world.lose(site.id, ref, src, fate)
            else:
                for copy in fate:
                    if copy.damage:
                        self._refuse(site.id, ref, src, copy, data)
                    elif copy.delay or copy.again:
                        late.append((site, copy))
                    else:
                        heard.append(site)
        return heard

    def _refuse(self, site: int, ref: int, src: int, copy: Copy, data: bytes) -> None:
        """A damaged copy: the codec has to notice; without one we take its word for granted."""
        world = self.world
        reason = copy.damage[0][0]
        if self.codec is not None:
            try:
                got: Any = self.codec.decode(damaged(data, copy.damage))
            except MalformedPdu as error:
                reason = error.reason
            else:
                world.undetected.append((world.now, site, ref, got))
        world.refused[reason] = world.refused.get(reason, 0) + 1
        world.lose(site, ref, src, copy.damage[0][0])


class Bus(SimulatedMedium):
    """1C: transmissions are serialised, each takes `slot_ns` and arrives `delay_ns` later."""

    one_channel = True

    def __init__(
        self,
        delay_ns: int = MS // 2,
        slot_ns: int = 0,
        own_copy: bool | int = False,
        adapted: bool | int = False,
    ) -> None:
        super().__init__(adapted)
        if delay_ns < 0 or slot_ns < 0:
            raise ConfigError("delay_ns", min(delay_ns, slot_ns), "a whole number from 0 up")
        self.delay_ns = delay_ns
        self.slot_ns = slot_ns
        self.own_copy = bool(own_copy)
        self.free_at = 0  # when the transmission under way is over

    def launch(self, src: int, pdu: Pdu, ref: int, receivers: Members, late: Late) -> None:
        world = self.world
        end = world.now if world.now > self.free_at else self.free_at
        self.free_at = end = end + self.slot_ns
        due = end + self.delay_ns
        if receivers:
            world.tick = tick = world.tick + 1
            heappush(world.heap, (due, tick, self.arrive, src, pdu, receivers, ref))
        for site, copy in late:
            world.tick = tick = world.tick + 1
            heappush(world.heap, (due + copy.delay, tick, self.arrive, src, pdu, (site,), ref))


class Datagram(SimulatedMedium):
    """DG: every copy has its own random delay, so PDUs overtake each other."""

    def __init__(
        self,
        least_ns: int = MS // 4,
        most_ns: int = MS,
        duplicate: float = 0.0,
        adapted: bool | int = False,
    ) -> None:
        super().__init__(adapted)
        self.least_ns = whole("least_ns", least_ns, 0, most_ns)
        self.spread_ns = most_ns - least_ns
        self.duplicate = chance("duplicate", duplicate)

    def due(self, src: int, dst: int, copy: Copy) -> int:
        """When a copy sent now arrives."""
        own = self.least_ns + int(self.rng.random() * self.spread_ns)
        return self.world.now + own + copy.delay

    def launch(self, src: int, pdu: Pdu, ref: int, receivers: Members, late: Late) -> None:
        for site in receivers:
            if self.duplicate and self.rng.random() < self.duplicate:
                self.world.faults["duplicate"] += 1
                self._launch_one(src, pdu, ref, site, ORDINARY)
            self._launch_one(src, pdu, ref, site, ORDINARY)
        for site, copy in late:
            self._launch_one(src, pdu, ref, site, copy)

    def _launch_one(self, src: int, pdu: Pdu, ref: int, site: SimulatedSite, copy: Copy) -> None:
        world = self.world
        world.tick = tick = world.tick + 1
        due = self.due(src, site.id, copy)
        heappush(world.heap, (due, tick, self.arrive, src, pdu, (site,), ref))


class Mesh(Datagram):
    """MC: random delays, but what one site sends to another arrives in sending order."""

    def __init__(
        self, least_ns: int = MS // 4, most_ns: int = MS, adapted: bool | int = False
    ) -> None:
        super().__init__(least_ns, most_ns, adapted=adapted)
        self.last: dict[tuple[int, int], int] = {}  # latest arrival per ordered pair

    def due(self, src: int, dst: int, copy: Copy) -> int:
        due = super().due(src, dst, copy)
        if copy.again:
            return due
        last = self.last.get((src, dst), 0)
        if due < last:
            due = last
        self.last[(src, dst)] = due
        return due


class LineMedium(Datagram):
    """One line, with random delays; it can be cut, for everybody or for some."""

    def __init__(self, line: int, least_ns: int, most_ns: int) -> None:
        super().__init__(least_ns, most_ns)
        self.line = line
        self.cut = False
        self.deaf: set[int] = set()  # sites that neither hear this line nor are heard on it

    def bind(self, world: Any, rng: Random, codec: Codec | None) -> None:
        super().bind(world, rng, codec)
        self.arrive = partial(world.arrive, line=self.line)

    def launch(self, src: int, pdu: Pdu, ref: int, receivers: Members, late: Late) -> None:
        if self.cut or src in self.deaf:
            for site in receivers:
                self.world.lose(site.id, ref, src, "cut")
            return
        if self.deaf:
            receivers = [site for site in receivers if site.id not in self.deaf]
            late = [(site, copy) for site, copy in late if site.id not in self.deaf]
        super().launch(src, pdu, ref, receivers, late)


class LineSet(SimulatedMedium):
    """`delays` has the least and the most of each line, by number."""

    def __init__(self, *delays: tuple[int, int]) -> None:
        super().__init__()
        self.lines = tuple(LineMedium(line, *both) for line, both in enumerate(delays))

    def bind(self, world: Any, rng: Random, codec: Codec | None) -> None:
        super().bind(world, rng, codec)
        for line in self.lines:
            line.bind(world, world.stream(f"line/{line.line}"), codec)

    def send(self, src: int, dst: int, pdu: Pdu, line: int = ONLY_LINE) -> None:
        self.lines[line].send(src, dst, pdu)

    def launch(self, src: int, pdu: Pdu, ref: int, receivers: Members, late: Late) -> None:
        raise AssertionError("what is sent is sent on a line, which launches it")


MEDIA = {"bus": Bus, "mesh": Mesh, "datagram": Datagram}
