"""GRSB in virtual time: two lines, sites with roles, users that are switched off.

A GRSB site sends on a line and is told on which one a PDU came; the kernel knows of neither.  So
`LineSite` gives it the shape that the kernel drives, with PDUs in an envelope that names the line,
and `Lines` is a medium that opens the envelope, carries the PDU on the medium of that line and
puts it into an envelope again.  A line can be cut, for everybody or for some.

Besides what `core.events.Observer` has, observers may have these methods::

    asked(time, site, number, inc, parts, conference, kind)   an application submits
    selected(time, site, wanted)                              what it wants from here on
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Final

from roundelay.core.bundle import Bundle
from roundelay.core.engine import MS, Engine, Pdu
from roundelay.core.errors import QueueFull, Refused, UsageError
from roundelay.core.events import NOBODY, SUBMIT
from roundelay.core.grsb.base import REPLAYED, GrsbDelivery
from roundelay.core.grsb.config import EVERYTHING, GrsbConfig, Roles, Selection
from roundelay.core.grsb.pdu import LINE_A, LINE_B, Message
from roundelay.core.grsb.site import GrsbSite
from roundelay.core.grsb.stable import GrsbStable
from roundelay.sim.links import Copy
from roundelay.sim.media import Datagram, Medium
from roundelay.sim.member import Member
from roundelay.sim.ports import Codec
from roundelay.sim.world import World

DATE_US: Final = 1_000_000_000_000_000
"""The date at the beginning of a simulated run."""


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


class Lines(Medium):
    """Both lines as one medium."""

    def __init__(self, least_ns: int = MS // 4, most_ns: int = MS) -> None:
        super().__init__()
        self.lines = tuple(LineMedium(line, least_ns, most_ns) for line in (LINE_A, LINE_B))

    def bind(self, world: Any, rng: Random, codec: Codec | None) -> None:
        super().bind(world, rng, codec)
        for line in self.lines:
            line.bind(world, world.stream(f"line/{line.line}"), codec)

    def send(self, src: int, dst: int, pdu: Pdu) -> None:
        assert isinstance(pdu, OnLine)
        self.lines[pdu.line].send(src, dst, pdu.pdu)

    def launch(self, src: int, pdu: Pdu, ref: int, receivers: tuple[Member, ...] | list[Member],
               late: list[tuple[Member, Copy]]) -> None:  # fmt: skip
        raise NotImplementedError  # the lines do


class LineSite(Engine):
    """A GRSB site in the shape of an engine."""

    __slots__ = ("site",)

    def __init__(self, site: GrsbSite) -> None:
        super().__init__(site.me, tuple(range(site.roles.sites)))
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
        if not self.site.out:
            return
        made, out = self.site.take(), self.out
        out.persists += made.persists
        out.sends += [(dst, OnLine(pdu, line)) for dst, pdu, line in made.sends]
        out.deliveries += made.deliveries
        out.notices += made.notices

    def usage(self) -> dict[str, int]:
        return self.site.usage()

    def caps(self) -> dict[str, int]:
        return self.site.caps()


class DiskArchive:
    """A recorder's archive on the disk of its simulated site."""

    def __init__(self, member: Member) -> None:
        self.member = member

    @property
    def _stable(self) -> GrsbStable:
        disk = self.member.disk
        assert disk is not None
        stable = disk.stable
        assert isinstance(stable, GrsbStable)
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


class GrsbWorld(World):
    """See `Kernel` for the parameters; `make_engine` must be a `SiteMaker`."""

    positions: list[int]
    """Of each site: how far its application has come; it survives with the disk."""
    wanted: list[Selection]

    def start(self, site: Member, stable: Any, boot: str) -> None:
        if not hasattr(self, "positions"):
            self.positions = [0] * len(self.sites)
            self.wanted = [EVERYTHING] * len(self.sites)
        maker = self.make_engine
        if isinstance(maker, SiteMaker):
            maker.world = self
        super().start(site, stable, boot)

    def site(self, number: int) -> GrsbSite:
        """A site, which must not be down."""
        member = self.sites[number]
        engine = member.engine or member.kept
        assert isinstance(engine, LineSite)
        return engine.site

    def _call(self, number: int, verb: Callable[[GrsbSite, int], object]) -> bool:
        """Call a site; False if it is not up."""
        member = self.sites[number]
        engine = member.engine
        if not isinstance(engine, LineSite):
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

        def verb(site: GrsbSite, now: int) -> None:
            site.select(wanted, now)
            self.tell("selected", self.now, number, wanted)

        if self._call(number, verb):
            self._after(number)

    def send(self, number: int, parts: Sequence[bytes], conference: int = 0, kind: int = 0) -> bool:
        """The application of a site submits a message, or several as a unit; False if it cannot."""

        def verb(site: GrsbSite, now: int) -> None:
            site.submit_unit(parts, now, conference=conference, kind=kind)
            assert site.user is not None
            self.tell("asked", self.now, number, site.user.inc, tuple(parts), conference, kind)

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

    def history(self, number: int, wanted: Selection, since: int = 0, since_time: int = 0) -> int:
        """The application of a site asks for the past; returns the number of its question."""
        found = []

        def verb(site: GrsbSite, now: int) -> None:
            found.append(site.history(wanted, now, since=since, since_time=since_time))

        if not self._call(number, verb):
            raise UsageError(f"site {number} is not up")
        self._after(number)
        return found[0]

    def hand_over(self, site: Member, delivery: Any) -> None:
        assert isinstance(delivery, GrsbDelivery)
        if delivery.stage != REPLAYED:
            self.positions[site.id] = delivery.upto
        super().hand_over(site, delivery)


class SiteMaker:
    """Makes the sites of a world, which tells it of itself; `make` may be a mutant."""

    world: GrsbWorld

    def __init__(self, roles: Roles, config: GrsbConfig, make: Any = GrsbSite) -> None:
        self.roles = roles.check()
        self.config = config.check(roles.sites)
        self.make = make
        self.starts = [0] * roles.sites

    def __call__(self, site: int, stable: Any, boot: str, now: int, rng: Random) -> Engine:
        world = self.world
        self.starts[site] += 1
        again = self.starts[site] > 1
        wiped = again and stable is None
        if wiped:
            world.positions[site] = 0
        made = self.make(
            site, self.roles, self.config, rng, now,
            inc=self.starts[site],
            stable=stable,
            archive=DiskArchive(world.sites[site]),
            wiped=wiped,
            position=world.positions[site] if again else None,
            wanted=world.wanted[site],
            base_us=DATE_US,
        )  # fmt: skip
        return LineSite(made)


def grsb_world(roles: Roles, config: GrsbConfig, **options: Any) -> GrsbWorld:
    """A world of `roles`; `options` are those of `Kernel`."""
    options.setdefault("medium", Lines())
    options.setdefault("make_stable", GrsbStable)
    return GrsbWorld(roles.sites, SiteMaker(roles, config), **options)
