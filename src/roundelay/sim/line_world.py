"""Groups whose sites speak on lines, in virtual time: what GRSB and its hierarchy share.

Such a site sends on a line and is told on which one a PDU came; the kernel knows of neither.  So
`LineSite` gives it the shape that the kernel drives, with PDUs in an envelope that names the line,
and `LineSet` is a medium that opens the envelope, carries the PDU on the medium of that line and
puts it into an envelope again.  A line can be cut, for everybody or for some.

Besides what `core.events.Observer` has, observers may have these methods::

    asked(time, site, inc, parts, conference, kind)   an application submits
    selected(time, site, wanted)                      what it wants from here on
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Final, Generic, Protocol, TypeVar

from roundelay.core.bundle import Bundle
from roundelay.core.engine import Engine, Pdu
from roundelay.core.errors import QueueFull, Refused
from roundelay.core.events import NOBODY, SUBMIT
from roundelay.core.grsb.base import REPLAYED, GrsbDelivery, GrsbEffects
from roundelay.core.grsb.config import EVERYTHING, Selection
from roundelay.core.grsb.pdu import Message
from roundelay.core.grsb.stable import GrsbStable
from roundelay.sim.links import Copy
from roundelay.sim.media import Datagram, Medium
from roundelay.sim.member import Member
from roundelay.sim.ports import Codec
from roundelay.sim.world import World

DATE_US: Final = 1_000_000_000_000_000
"""The date at the beginning of a simulated run."""


class Speaker(Protocol):
    """A site with lines: `GrsbSite`, `WideSite`."""

    me: int
    deadline: int
    drops: dict[str, int]

    def submit(self, bundle: Bundle, now: int) -> int: ...
    def submit_unit(self, parts: Sequence[bytes], now: int, **options: Any) -> int: ...
    def select(self, wanted: Selection, now: int) -> None: ...
    def receive(self, pdu: Pdu, source: int, now: int, line: int) -> None: ...
    def on_timer(self, now: int) -> None: ...
    def take(self) -> GrsbEffects: ...
    def usage(self) -> dict[str, int]: ...
    def caps(self) -> dict[str, int]: ...


S = TypeVar("S", bound=Speaker)


class OnLine(Pdu, frozen=True, gc=False):
    """A PDU and its line."""

    pdu: Pdu
    line: int


class LineMedium(Datagram):
    """One line: random delays; what it carries arrives in an envelope."""

    def __init__(self, line: int, least_ns: int, most_ns: int) -> None:
        super().__init__(least_ns, most_ns)
        self.line = line
        self.cut = False
        self.deaf: set[int] = set()  # sites that neither hear this line nor are heard on it

    def launch(self, src: int, pdu: Pdu, ref: int, receivers: tuple[Member, ...] | list[Member],
               late: list[tuple[Member, Copy]]) -> None:  # fmt: skip
        if self.cut or src in self.deaf:
            for site in receivers:
                self.world.lose(site.id, ref, src, "cut")
            return
        if self.deaf:
            receivers = [site for site in receivers if site.id not in self.deaf]
            late = [one for one in late if one[0].id not in self.deaf]
        super().launch(src, OnLine(pdu, self.line), ref, receivers, late)


class LineSet(Medium):
    """Several lines as one medium; `delays` has the least and the most of each, by number."""

    def __init__(self, *delays: tuple[int, int]) -> None:
        super().__init__()
        self.lines = tuple(LineMedium(line, *both) for line, both in enumerate(delays))

    def bind(self, world: Any, rng: Random, codec: Codec | None) -> None:
        super().bind(world, rng, codec)
        for line in self.lines:
            line.bind(world, world.stream(f"line/{line.line}"), codec)

    def send(self, src: int, dst: int, pdu: Pdu) -> None:
        assert isinstance(pdu, OnLine)
        self.lines[pdu.line].send(src, dst, pdu.pdu)

    def launch(self, src: int, pdu: Pdu, ref: int, receivers: tuple[Member, ...] | list[Member],
               late: list[tuple[Member, Copy]]) -> None:  # fmt: skip
        raise AssertionError("what is sent is sent on a line, which launches it")


class LineSite(Engine, Generic[S]):
    """A site with lines in the shape of an engine."""

    __slots__ = ("site",)

    def __init__(self, site: S, sites: int) -> None:
        super().__init__(site.me, tuple(range(sites)))
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
        if self.idle():
            return
        made, out = self.site.take(), self.out
        if made:
            out.persists += made.persists
            out.sends += [(dst, OnLine(pdu, line)) for dst, pdu, line in made.sends]
            out.deliveries += made.deliveries
            out.notices += made.notices

    def idle(self) -> bool:
        """Whether it is known without taking it that there is no batch."""
        return False

    def usage(self) -> dict[str, int]:
        return self.site.usage()

    def caps(self) -> dict[str, int]:
        return self.site.caps()


class DiskArchive:
    """A recorder's archive on the disk of its simulated site; `stable_of` finds it there."""

    def __init__(self, member: Member, stable_of: Callable[[Any], GrsbStable]) -> None:
        self.member = member
        self.stable_of = stable_of

    @property
    def _stable(self) -> GrsbStable:
        disk = self.member.disk
        assert disk is not None
        return self.stable_of(disk.stable)

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


class LineWorld(World, ABC, Generic[S]):
    """See `Kernel` for the parameters; `make_engine` must be a `LineMaker`."""

    positions: list[int]
    """Of each site: how far its application has come; it survives with the disk."""
    wanted: list[Selection]

    def start(self, site: Member, stable: Any, boot: str) -> None:
        if not hasattr(self, "positions"):
            self.positions = [0] * len(self.sites)
            self.wanted = [EVERYTHING] * len(self.sites)
        maker = self.make_engine
        if isinstance(maker, LineMaker):
            maker.world = self
        super().start(site, stable, boot)

    @abstractmethod
    def inc_of(self, site: S) -> int:
        """Which start of its application a site counts from."""

    def site(self, number: int) -> S | None:
        """A site that has its memory, up or not."""
        member = self.sites[number]
        engine = member.engine or member.kept
        return engine.site if isinstance(engine, LineSite) else None

    def on_disk(self, number: int) -> Any:
        """What a site has on disk."""
        disk = self.sites[number].disk
        assert disk is not None
        return disk.stable

    def call(self, number: int, verb: Callable[[S, int], object]) -> bool:
        """Call a site; False if it is not up."""
        member = self.sites[number]
        engine = member.engine
        if not isinstance(engine, LineSite):
            return False
        verb(engine.site, member.local(self.now))
        engine.collect()
        return True

    def after_call(self, number: int) -> None:
        member = self.sites[number]
        if member.engine is not None:
            self.settle(member, member.engine)

    def select(self, number: int, wanted: Selection) -> None:
        """From now on the application of a site wants this; one that is down, when it is up."""
        self.wanted[number] = wanted

        def verb(site: S, now: int) -> None:
            site.select(wanted, now)
            self.tell("selected", self.now, number, wanted)

        if self.call(number, verb):
            self.after_call(number)

    def send(self, number: int, parts: Sequence[bytes], conference: int = 0, kind: int = 0) -> bool:
        """The application of a site submits a message, or several as a unit; False if it cannot."""

        def verb(site: S, now: int) -> None:
            site.submit_unit(parts, now, conference=conference, kind=kind)
            inc = self.inc_of(site)
            self.tell("asked", self.now, number, inc, tuple(parts), conference, kind)

        try:
            accepted = self.call(number, verb)
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
        self.after_call(number)
        return True

    def hand_over(self, site: Member, delivery: Any) -> None:
        assert isinstance(delivery, GrsbDelivery)
        if delivery.stage != REPLAYED:
            self.positions[site.id] = delivery.upto
        super().hand_over(site, delivery)


class LineMaker(ABC):
    """Makes the sites of a world, which tells it of itself."""

    world: LineWorld[Any]
    engine_class: type[LineSite[Any]] = LineSite

    def __init__(self, sites: int) -> None:
        self.starts = [0] * sites

    def __call__(self, site: int, stable: Any, boot: str, now: int, rng: Random) -> Engine:
        world = self.world
        self.starts[site] += 1
        again = self.starts[site] > 1
        wiped = again and stable is None
        if wiped:
            world.positions[site] = 0
        made = self.made(
            world.sites[site], rng, now,
            inc=self.starts[site],
            stable=stable,
            wiped=wiped,
            position=world.positions[site] if again else None,
            wanted=world.wanted[site],
            base_us=DATE_US,
        )  # fmt: skip
        return self.engine_class(made, len(self.starts))

    @abstractmethod
    def made(self, member: Member, rng: Random, now: int, **options: Any) -> Speaker:
        """The site itself."""
