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
 20     …  body, see `wire.compiler`
end     4  CRC-32 over everything before; a large PDU that is sealed may have anything here
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final
from zlib import crc32

from msgspec import Struct

from roundelay.core.engine import Pdu

ENGINE_PDU: Final = 0x10
VERSION: Final = 2

# Flags.
RETRANSMISSION: Final = 1
POLL: Final = 2
ENCRYPTED: Final = 4
FLAGS: Final = RETRANSMISSION | POLL | ENCRYPTED

LINE_A: Final = 0
LINE_B: Final = 1
LINE_LAST: Final = 3
"""Trunk and subnet are lines of the hierarchy."""

PREFIX_SIZE: Final = 4
"""Bytes that are the same in all PDUs of a type: everything before the flags."""
CODES: Final = "BBHIII"
"""The others, for `struct`: flags, line, sender, group, chan_seq and life."""
HEAD_SIZE: Final = PREFIX_SIZE + struct.calcsize(f">{CODES}")
CHECKSUM: Final = struct.Struct(">I")
CHECKSUM_SIZE: Final = CHECKSUM.size


def checksum(parts: Iterable[bytes | memoryview]) -> bytes:
    """What ends a PDU; it goes over the parts as they are, so that these are copied once."""
    crc = 0
    for part in parts:
        crc = crc32(part, crc)
    return CHECKSUM.pack(crc)


class Envelope(Struct, frozen=True, gc=False):
    """A PDU and what came with it."""

    pdu: Pdu
    sender: int
    group_id: int
    chan_seq: int
    flags: int
    line: int
    life: int
