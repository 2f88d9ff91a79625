"""The envelope around every PDU::

    off  size  field
      0     1  0x10: an engine PDU (1 to 3 are packets of AutoRM)
      1     1  version of this format, 2
      2     1  protocol
      3     1  PDU type, per protocol
      4     1  flags: bit 0 retransmission, bit 1 poll, bit 2 encrypted
      5     1  line: 0 = A (local network), 1 = B (broadcast line), 2 = trunk, 3 = subnet
      6     2  sender
      8     4  group: CRC-32 of its UTF-8 name
     12     4  chan_seq: counts the sender's datagrams
     16     4  life: tells this run of the sender from other runs of the same member; 0: not said
     20     …  body, see `layouts`
    end     4  CRC-32 over everything before; a large PDU that is sealed may have anything here

`decode` raises MalformedPdu and nothing else, whatever the bytes.  The checksum finds accidents,
not attackers: a packet with a correct one is trusted no more than one without.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Any, Final
from zlib import crc32

from msgspec import Struct

from roundelay.core.engine import Pdu
from roundelay.core.errors import InvariantBroken, MalformedPdu
from roundelay.wire.fields import NO_ID, TRAILING
from roundelay.wire.layouts import (
    BY_CLASS,
    BY_TYPE,
    ENCRYPTED,
    POLL,
    PROTOS,
    RETRANSMISSION,
    Layout,
)
from roundelay.wire.quick import write

ENGINE_PDU: Final = 0x10
VERSION: Final = 2
FLAGS: Final = RETRANSMISSION | POLL | ENCRYPTED
LINE_A: Final = 0
LINE_B: Final = 1
LINE_LAST: Final = 3
"""Trunk and subnet are lines of the hierarchy."""

HEAD: Final = struct.Struct(">BBBBBBHIII")
CHECKSUM: Final = struct.Struct(">I")
SMALLEST: Final = HEAD.size + CHECKSUM.size
FIRST_LEAST: Final = 64
"""Bytes of a first piece in which the head of a bundle is certain to be."""
COPIED_MAX: Final = 1024
"""Below, a copy costs less than a view."""


class Envelope(Struct, frozen=True, gc=False):
    """A PDU and what came with it."""

    pdu: Pdu
    sender: int
    group_id: int
    chan_seq: int
    flags: int
    line: int
    life: int


def group_id(name: str) -> int:
    """How a group is named in the envelope.

    >>> hex(group_id("orders"))
    '0xe52ffdee'
    """
    return crc32(name.encode())


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
    if not flags and not line:
        quick = write(pdu, sender, group_id, chan_seq, life)
        if quick is not None:
            return quick + CHECKSUM.pack(crc32(quick))
    parts = encode_parts(pdu, sender, group_id, chan_seq, flags, line, life)
    parts.append(checksum(parts))
    return b"".join(parts)


def encode_parts(
    pdu: Pdu, sender: int, group_id: int, chan_seq: int = 0, flags: int = 0, line: int = LINE_A,
    life: int = 0,
) -> list[bytes]:  # fmt: skip
    """The bytes of `pdu` but for the checksum, not joined: a large bundle is not copied."""
    layout = BY_CLASS.get(type(pdu))
    if layout is None:
        raise InvariantBroken(f"{type(pdu).__name__} has no layout")
    flags |= layout.flags
    if not (0 <= sender < NO_ID and 0 <= flags <= FLAGS and LINE_A <= line <= LINE_LAST):
        raise InvariantBroken(f"cannot encode: sender {sender}, flags {flags}, line {line}")
    try:
        head = HEAD.pack(
            ENGINE_PDU, VERSION, layout.proto, layout.type, flags, line, sender, group_id,
            chan_seq, life,
        )  # fmt: skip
        parts = [head]
        layout.body.write(pdu, parts)
    except (MalformedPdu, struct.error) as error:
        raise InvariantBroken(f"{layout.name} cannot be encoded: {error}") from error
    return parts


def checksum(parts: Iterable[bytes | memoryview]) -> bytes:
    """What ends a PDU; it goes over the parts as they are, so that these are copied once."""
    found = 0
    for part in parts:
        found = crc32(part, found)
    return CHECKSUM.pack(found)


def decode(data: bytes | bytearray | memoryview, intact: bool = False) -> Envelope:
    """The PDU in `data`, or MalformedPdu with the reason to count it under.

    `intact`: the bytes are known to be those that were sent (they came sealed), so the checksum
    has nothing to add.
    """
    if type(data) is not bytes:
        data = bytes(data)
    end = len(data) - CHECKSUM.size
    if end < HEAD.size:
        raise MalformedPdu("short")
    head = HEAD.unpack_from(data)
    if head[0] != ENGINE_PDU:
        raise MalformedPdu("packet type", str(head[0]))
    if head[1] != VERSION:
        raise MalformedPdu("format version", str(head[1]))
    if not intact:
        whole = data[:end] if end < COPIED_MAX else memoryview(data)[:end]
        if CHECKSUM.unpack_from(data, end)[0] != crc32(whole):
            raise MalformedPdu("checksum")
    layout = _layout(head)
    pdu, after = layout.body.read(data, HEAD.size, end)
    if after != end:
        raise MalformedPdu(TRAILING, f"{end - after} of them")
    return Envelope(pdu, head[6], head[7], head[8], head[4], head[5], head[9])


def _layout(head: tuple[int, ...]) -> Layout:
    """What the envelope announces, or MalformedPdu."""
    _, _, proto, pdu_type, flags, line, sender, *_ = head
    layout = BY_TYPE.get(proto << 8 | pdu_type)
    if layout is None:
        raise MalformedPdu("pdu type" if proto in PROTOS else "protocol", f"{proto}/{pdu_type}")
    if flags > FLAGS or flags & layout.flags != layout.flags:
        raise MalformedPdu("flags", f"{flags:#04x}")
    if line > LINE_LAST:
        raise MalformedPdu("line", str(line))
    if sender == NO_ID:
        raise MalformedPdu("sender", str(sender))
    return layout


def decode_pieces(pieces: Sequence[bytes | memoryview], intact: bool = False) -> Envelope:
    """The PDU in the join of `pieces`, as `decode` would find it.

    A bundle at its end is copied once, from the pieces to where it stays.
    """
    first, last = pieces[0], pieces[-1]
    if len(first) < FIRST_LEAST or len(last) < CHECKSUM.size:
        return decode(b"".join(pieces), intact)
    head = HEAD.unpack_from(first)
    if head[0] != ENGINE_PDU or head[1] != VERSION:
        return decode(b"".join(pieces), intact)
    cut = [*pieces[:-1], memoryview(last)[: -CHECKSUM.size]]
    if not intact and checksum(cut) != last[-CHECKSUM.size :]:
        raise MalformedPdu("checksum")
    pdu = _layout(head).body.read_pieces(cut, HEAD.size)
    if pdu is None:
        return decode(b"".join(pieces), intact)
    return Envelope(pdu, head[6], head[7], head[8], head[4], head[5], head[9])


class GroupCodec:
    """PDUs of one group to bytes and back, for drivers that need nothing else of the envelope."""

    __slots__ = ("_group_id",)

    def __init__(self, name: str) -> None:
        self._group_id = group_id(name)

    def encode(self, pdu: Any, sender: int) -> bytes:
        return encode(pdu, sender=sender, group_id=self._group_id)

    def decode(self, data: bytes) -> Pdu:
        envelope = decode(data)
        if envelope.group_id != self._group_id:
            raise MalformedPdu("other group", f"{envelope.group_id:#010x}")
        return envelope.pdu
