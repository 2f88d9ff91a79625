"""Beamons by hand: packets made here, effects looked at there."""

from __future__ import annotations

from random import Random
from typing import Any, TypeVar, cast

from roundelay.core.autorm.beamon import AutoRmDelivery, Beamon
from roundelay.core.autorm.config import AutoRmConfig
from roundelay.core.autorm.packets import (
    CONFIRMATION,
    ZERO,
    Acknowledgement,
    Data,
    Heartbeat,
    Packet,
)
from roundelay.core.engine import MS, NEVER, Effects, Notice
from tests.core.sends import packets_of

P = TypeVar("P", bound=Packet)
G = "news"


def uuid(k: int) -> bytes:
    """The UUID of node `k`, from 0."""
    return bytes((k + 1,)) * 16


def config(**fields: Any) -> AutoRmConfig:
    """Acknowledgements at once unless told otherwise."""
    return AutoRmConfig(**{"ack_jitter_ns": 0, **fields})


def node(k: int = 0, *, now: int = 0, seed: int = 1, **fields: Any) -> Beamon:
    return Beamon(k, (), config(**fields), Random(seed), now, uuid=uuid(k))


def heartbeat(k: int, nodes: int = 2, groups: tuple[str, ...] = (G,)) -> Heartbeat:
    return Heartbeat(uuid(k), nodes, groups)


def data(
    k: int = 1, seq: int = 1, number: int = 0, count: int = 1, payload: bytes = b"x", *,
    to: bytes = ZERO, flags: int = CONFIRMATION, group: str = G,
) -> Data:  # fmt: skip
    return Data(uuid(k), to, seq, count, number, flags, group, payload)


def ack(
    k: int, seq: int, highest: int, missing: tuple[int, ...] = (), to: int = 0
) -> Acknowledgement:
    return Acknowledgement(uuid(k), uuid(to), seq, highest, missing)


def take(beamon: Beamon) -> Effects:
    """What it wants done, and a look at its state."""
    beamon.check_invariants()
    return beamon.take()


def sent(beamon: Beamon, kind: type[P]) -> list[P]:
    """What it has sent of one kind; everything else it wanted done is forgotten."""
    return [packet for packet in packets_of(take(beamon)) if isinstance(packet, kind)]


def delivered(beamon: Beamon) -> list[AutoRmDelivery]:
    return cast(list[AutoRmDelivery], take(beamon).deliveries)


def notices(beamon: Beamon, kind: str) -> list[Notice]:
    return [notice for notice in take(beamon).notices if notice.kind == kind]


def run(beamon: Beamon, until: int) -> list[tuple[int, Packet]]:
    """Let time pass; what it sends, with the time."""
    out: list[tuple[int, Packet]] = []
    while beamon.deadline <= until:
        now = beamon.deadline
        assert now < NEVER
        beamon.on_timer(now)
        beamon.check_invariants()
        out += [(now, packet) for packet in packets_of(beamon.out)]
        beamon.out.sends.clear()
        assert beamon.deadline > now or beamon.out or out
    return out


def until_quiet(beamon: Beamon, now: int, limit: int = 10_000 * MS) -> list[tuple[int, Packet]]:
    """Let time pass until nothing is under way."""
    out: list[tuple[int, Packet]] = []
    while not beamon.idle and now < limit:
        now = max(now, beamon.deadline)
        out += run(beamon, now)
    return out
