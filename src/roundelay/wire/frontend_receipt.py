"""RCPT: what a node says of messages whose fate is known."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from roundelay.core.errors import MalformedPdu
from roundelay.wire.frontend import BAD_BODY, NAME_BYTES, Packet, packet, unpack

_RECEIPT: Final = struct.Struct(">qqq")
_COUNT: Final = struct.Struct(">H")
_LEVEL: Final = struct.Struct(">q")
GIVEN_UP_MAX: Final = 65_535


class Fate(Struct, frozen=True, gc=False):
    """What RCPT says."""

    tag: int
    seq: int
    time: int
    given_up: tuple[str, ...] = ()
    """Names of nodes that were given up before they had the messages."""
    resilience: int = -1
    """L when they were committed; -1: there is none, or it was not told."""


def receipt_packet(
    group: str,
    tag: int,
    seq: int,
    time: int,
    given_up: Sequence[str] = (),
    level: int | None = None,
) -> bytes:
    """RCPT: i64 tag · i64 seq · i64 time, then, unless there is nothing more, the names that were
    given up: u16 how many, and each with its length (u8) before it; then, for who has asked for
    it, i64 L."""
    body = _RECEIPT.pack(tag, seq, time)
    if given_up or level is not None:
        names = [name.encode()[:NAME_BYTES] for name in given_up[:GIVEN_UP_MAX]]
        body += _COUNT.pack(len(names)) + b"".join(bytes((len(one),)) + one for one in names)
    if level is not None:
        body += _LEVEL.pack(level)
    return packet("RCPT", group, body)


def read_receipt(found: Packet) -> Fate:
    body = found.message
    tag, seq, time = unpack(_RECEIPT, body, 0)
    at = _RECEIPT.size
    if len(body) == at:
        return Fate(tag, seq, time)
    (count,) = unpack(_COUNT, body, at)
    at += _COUNT.size
    names = []
    for _ in range(count):
        if at >= len(body):
            break
        start, at = at + 1, at + 1 + body[at]
        names.append(body[start:at].decode(errors="replace"))
    level = -1
    if len(body) - at == _LEVEL.size:
        (level,) = _LEVEL.unpack_from(body, at)
        at += _LEVEL.size
    if at != len(body) or len(names) != count:
        raise MalformedPdu(BAD_BODY, f"RCPT of {len(body)} bytes with {count} names")
    return Fate(tag, seq, time, tuple(names), level)
