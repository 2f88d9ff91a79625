"""A codec of which one member lies: fields of its PDUs have values that no correct peer sends."""

from __future__ import annotations

from random import Random
from typing import Any

from msgspec import Struct, structs

from roundelay.core.bundle import Bundle
from roundelay.core.errors import RoundelayError
from roundelay.sim.kernel.ports import Codec

EDGES = (
    0, 1, 2, 3, 7, 8, 63, 64, 127, 128, 255, 256, 1000, 60_000, 0xFFFE, 0xFFFF, 0x10000,
    0x7FFFFFFF, 0x80000000, 0xFFFFFFFE, 0xFFFFFFFF, 1 << 40, (1 << 48) - 1, (1 << 62) - 1,
    (1 << 63) - 1,
)  # fmt: skip


def mutated(value: Any, rng: Random) -> Any:
    """`value` with one number in it replaced, or a tuple cut, doubled or emptied."""
    if isinstance(value, Bundle):
        return value
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return rng.choice((*EDGES, value + 1, max(0, value - 1), value + rng.randrange(5000)))
    if isinstance(value, tuple):
        if not value or rng.random() < 0.2:
            return rng.choice(((), value[:-1], value + value[-1:], value * 2))
        at = rng.randrange(len(value))
        return (*value[:at], mutated(value[at], rng), *value[at + 1 :])
    if isinstance(value, Struct):
        names = value.__struct_fields__
        name = rng.choice(names)
        return structs.replace(value, **{name: mutated(getattr(value, name), rng)})
    return value


class HostileCodec:
    """`codec`, but what `liar` says is changed now and then, as far as bytes can carry it."""

    def __init__(self, codec: Codec, seed: str, liar: int, share: float = 0.2) -> None:
        self.codec = codec
        self.rng = Random(f"hostile/{seed}")
        self.liar = liar
        self.share = share
        self.lies = 0

    def encode(self, pdu: Any, sender: int) -> bytes:
        if sender == self.liar and self.rng.random() < self.share:
            lie = pdu
            for _ in range(self.rng.choice((1, 1, 1, 2, 3))):
                lie = mutated(lie, self.rng)
            try:
                data = self.codec.encode(lie, sender)
                self.codec.decode(data)
            except (RoundelayError, ValueError, OverflowError, TypeError, AssertionError):
                return self.codec.encode(pdu, sender)
            except Exception:  # what bytes cannot say is no lie
                return self.codec.encode(pdu, sender)
            self.lies += 1
            return data
        return self.codec.encode(pdu, sender)

    def decode(self, data: bytes) -> Any:
        return self.codec.decode(data)
