"""A small honest engine for testing the simulator: whoever hears a rumour for the first time
persists it, passes it on and delivers it."""

from __future__ import annotations

from random import Random

from msgspec import Struct

from roundelay.core.bundle import Bundle
from roundelay.core.engine import (
    ACCEPTED,
    EVERYONE,
    NEVER,
    ONLY_LINE,
    Delivery,
    Engine,
    Notice,
    Pdu,
)
from roundelay.core.errors import QueueFull
from roundelay.core.notices import notice
from roundelay.sim.kernel.world import World


class Rumour(Pdu, frozen=True, gc=False):
    """Number `n` of source `s`, as told by anybody."""

    s: int
    n: int
    bundle: Bundle


class Heard(Struct, frozen=True, gc=False):
    """Durable: (s, n) was heard."""

    s: int
    n: int


class Memory:
    """Stable state: what was heard."""

    def __init__(self) -> None:
        self.heard: set[tuple[int, int]] = set()

    def apply(self, record: Heard) -> None:
        self.heard.add((record.s, record.n))


class Gossip(Engine):
    """`beat_ns` > 0: a timer that counts its calls in `beats` and says so in a notice."""

    def __init__(
        self,
        me: int,
        group: tuple[int, ...],
        rng: Random,
        stable: Memory | None = None,
        now: int = 0,
        beat_ns: int = 0,
        forward: bool = True,
        room: int = 1 << 30,
    ) -> None:
        super().__init__(me, group)
        self.rng = rng
        self.heard = set(stable.heard) if stable is not None else set()
        self.next = max((n + 1 for s, n in self.heard if s == me), default=0)
        self.beat_ns = beat_ns
        self.beats: list[int] = []
        self.arrivals: list[tuple[int, int, int, int]] = []
        self.forward = forward
        self.room = room
        self.deadline = now + beat_ns if beat_ns else NEVER

    def submit(self, bundle: Bundle, now: int) -> None:
        if self.room <= 0:
            raise QueueFull("full")
        self.room -= 1
        n = self.next
        self.next += 1
        self.tell(Rumour(self.me, n, bundle))

    def receive(self, pdu: Pdu, source: int, now: int, line: int = 0, life: int = 0) -> None:
        assert isinstance(pdu, Rumour)
        self.arrivals.append((now, source, pdu.s, pdu.n))
        if (pdu.s, pdu.n) not in self.heard:
            self.tell(pdu)

    def tell(self, pdu: Rumour) -> None:
        self.heard.add((pdu.s, pdu.n))
        self.out.persists.append(Heard(pdu.s, pdu.n))
        if self.forward or pdu.s == self.me:
            self.out.sends.append((EVERYONE, pdu, ONLY_LINE))
        self.out.deliveries.append(Delivery(-1, pdu.s, pdu.n, pdu.bundle, ACCEPTED))

    def on_timer(self, now: int) -> None:
        if now >= self.deadline:
            self.beats.append(now)
            self.out.notices.append(notice("beat", len(self.beats)))
            self.deadline = now + self.beat_ns

    def usage(self) -> dict[str, int]:
        return {"heard": len(self.heard)}

    def caps(self) -> dict[str, int]:
        return {"heard": 1000}


class Rows:
    """A recorder that keeps everything."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, int, int, int, int, object]] = []
        self.kept: list[tuple[int, int, int, int, int, object]] = []
        self.flushes = 0

    def flush(self) -> None:
        self.flushes += 1
        self.kept += self.rows
        self.rows.clear()

    def of(self, event: int) -> list[tuple[int, int, int, int, int, object]]:
        return [row for row in self.kept + self.rows if row[2] == event]


class Watch:
    """An observer that keeps everything."""

    def __init__(self) -> None:
        self.log: list[tuple[object, ...]] = []

    def delivered(self, time: int, site: int, delivery: Delivery) -> None:
        self.log.append(("delivered", time, site, delivery.source, delivery.number))

    def noticed(self, time: int, site: int, notice: Notice) -> None:
        self.log.append(("noticed", time, site, notice.kind, *notice.info))

    def crashed(self, time: int, site: int, keeps: str) -> None:
        self.log.append(("crashed", time, site, keeps))

    def restarted(self, time: int, site: int, keeps: str) -> None:
        self.log.append(("restarted", time, site, keeps))

    def of(self, kind: str) -> list[tuple[object, ...]]:
        return [line for line in self.log if line[0] == kind]


def gossip_world(sites: int = 3, **options: object) -> World:
    """A world of gossips; options of World, and `beat_ns`, `forward`, `room` of Gossip."""
    group = tuple(range(sites))
    own = {name: options.pop(name) for name in ("beat_ns", "forward", "room") if name in options}

    def make(site: int, stable: Memory | None, boot: str, now: int, rng: Random) -> Gossip:
        return Gossip(site, group, rng, stable, now, **own)  # type: ignore[arg-type]

    options.setdefault("make_stable", Memory)
    return World(sites, make, **options)  # type: ignore[arg-type]


def gossip(world: World, site: int) -> Gossip:
    """The engine of a site, also of a paused one."""
    member = world.sites[site]
    engine = member.engine if member.engine is not None else member.kept
    assert isinstance(engine, Gossip)
    return engine
