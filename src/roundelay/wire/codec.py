"""PDUs to datagrams and back: the envelope (`wire.envelope`), the body, and a checksum.

The readers and writers of the bodies are compiled when a PDU of their type is first met.

`decode` raises MalformedPdu and nothing else, whatever the bytes.  The checksum finds accidents,
not attackers: a packet with a correct one is trusted no more than one without.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Final
from zlib import crc32

from roundelay.core.engine import Pdu
from roundelay.core.errors import InvariantBroken, MalformedPdu
from roundelay.wire.compiler import (
    COPIED_MAX,
    Encoder,
    Reader,
    Writer,
    envelope,
    on_first_use,
    plan_of,
)
from roundelay.wire.envelope import (
    CHECKSUM,
    CHECKSUM_SIZE,
    ENGINE_PDU,
    HEAD_SIZE,
    LINE_A,
    PREFIX_SIZE,
    VERSION,
    Envelope,
    checksum,
)
from roundelay.wire.layouts import BY_CLASS, BY_TYPE, LAYOUTS, PROTOS, Layout
from roundelay.wire.payload import Scattered

FIRST_LEAST: Final = 64
"""Bytes of a first piece in which the head of a bundle is certain to be."""

_encoders: dict[type[Any], Encoder] = {}
_writers: dict[type[Any], Writer] = {}
_readers: dict[bytes, Reader] = {}
"""By the bytes before the flags, which say what PDU it is."""


def _prepare(layout: Layout) -> None:
    prefix = bytes((ENGINE_PDU, VERSION, layout.proto, layout.type))
    head = envelope(layout.flags)
    pdu = layout.pdu
    on_first_use(_encoders, pdu, lambda: plan_of(pdu).writer(head, prefix, with_checksum=True))
    on_first_use(_writers, pdu, lambda: plan_of(pdu).writer(head, prefix))
    on_first_use(_readers, prefix, lambda: plan_of(pdu).reader(head))


for _layout in LAYOUTS:
    _prepare(_layout)


def group_id(name: str) -> int:
    """How a group is named in the envelope.

    >>> hex(group_id("orders"))
    '0xe52ffdee'
    """
    return crc32(name.encode())


# -- out -----------------------------------------------------------------------------------


def encode(
    pdu: Pdu,
    *,
    sender: int,
    group_id: int,
    chan_seq: int = 0,
    flags: int = 0,
    line: int = LINE_A,
    life: int = 0,
) -> bytes:
    """The bytes of `pdu`.

    Raises InvariantBroken for a PDU that no peer could decode: an engine must not make one.
    """
    try:
        return _encoders[type(pdu)](pdu, flags, line, sender, group_id, chan_seq, life)
    except (KeyError, MalformedPdu, struct.error) as error:
        raise _unreadable(pdu, error) from error


def encode_parts(
    pdu: Pdu, sender: int, group_id: int, chan_seq: int = 0, life: int = 0
) -> list[bytes]:
    """The bytes of `pdu` but for the checksum, not joined: a large bundle is not copied."""
    try:
        return _writers[type(pdu)](pdu, 0, LINE_A, sender, group_id, chan_seq, life)
    except (KeyError, MalformedPdu, struct.error) as error:
        raise _unreadable(pdu, error) from error


def _unreadable(pdu: Pdu, error: Exception) -> InvariantBroken:
    layout = BY_CLASS.get(type(pdu))
    if layout is None:
        return InvariantBroken(f"{type(pdu).__name__} has no layout")
    return InvariantBroken(f"{layout.name} cannot be encoded: {error}")


# -- in ------------------------------------------------------------------------------------


def decode(data: bytes | bytearray | memoryview, intact: bool = False) -> Envelope:
    """The PDU in `data`, or MalformedPdu with the reason to count it under.

    `intact`: the bytes are known to be those that were sent (they came sealed), so the checksum
    has nothing to add.
    """
    if type(data) is not bytes:
        data = bytes(data)
    end = len(data) - CHECKSUM_SIZE
    if end < HEAD_SIZE:
        raise MalformedPdu("short")
    read = _readers.get(data[:PREFIX_SIZE])
    if read is None:
        _check_format(data)
    if not intact:
        content = data[:end] if end < COPIED_MAX else memoryview(data)[:end]
        if CHECKSUM.unpack_from(data, end)[0] != crc32(content):
            raise MalformedPdu("checksum")
    if read is None:
        raise _unknown(data)
    return read(data, end)


def _check_format(data: bytes | memoryview) -> None:
    if data[0] != ENGINE_PDU:
        raise MalformedPdu("packet type", str(data[0]))
    if data[1] != VERSION:
        raise MalformedPdu("format version", str(data[1]))


def _unknown(data: bytes | memoryview) -> MalformedPdu:
    proto, pdu_type = data[2], data[3]
    return MalformedPdu("pdu type" if proto in PROTOS else "protocol", f"{proto}/{pdu_type}")


def decode_pieces(pieces: Sequence[bytes | memoryview], intact: bool = False) -> Envelope:
    """The PDU in the join of `pieces`, as `decode` would find it.

    A bundle at its end is copied once, from the pieces to where it stays.
    """
    first, last = pieces[0], pieces[-1]
    if len(first) < FIRST_LEAST or len(last) < CHECKSUM_SIZE:
        return decode(b"".join(pieces), intact)
    _check_format(first)
    cut = [*pieces[:-1], memoryview(last)[:-CHECKSUM_SIZE]]
    if not intact and checksum(cut) != last[-CHECKSUM_SIZE:]:
        raise MalformedPdu("checksum")
    layout = BY_TYPE.get(first[2] << 8 | first[3])
    if layout is None:
        raise _unknown(first)
    if plan_of(layout.pdu).in_pieces:
        try:
            return _readers[bytes(first[:PREFIX_SIZE])](cut[0], sum(map(len, cut)), cut[1:])
        except (Scattered, struct.error):
            pass  # not only messages lie outside of the first piece
    return decode(b"".join(pieces), intact)


class GroupCodec:
    """PDUs of one group to bytes and back, for drivers that need nothing else of the envelope."""

    __slots__ = ("_group_id",)

    def __init__(self, name: str) -> None:
        self._group_id = group_id(name)

    def encode(self, pdu: Any, sender: int) -> bytes:
        return encode(pdu, sender=sender, group_id=self._group_id)

    def decode(self, data: bytes) -> Pdu:
        received = decode(data)
        if received.group_id != self._group_id:
            raise MalformedPdu("other group", f"{received.group_id:#010x}")
        return received.pdu
