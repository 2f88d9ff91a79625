"""The bytes of AutoRM's packets (PROTOCOLS §8.3), network byte order::

    heartbeat                     data                            acknowledgement
     0   1  type = 1               0   1  type = 2                 0   1  type = 3
     1  16  source                 1  16  source                   1  16  source
    17   2  nodes known           17  16  destination, 0: group   17  16  destination
    19   1  number of groups      33   4  sequence                33   4  sequence
    20   …  per group: 1 byte     37   4  packets in it           37   4  highest packet covered
            size, UTF-8 name      41   4  number of this one      41   2  number of missing k
                                  45   1  flags                   43  4k  missing numbers, rising
                                  46   1  size g of the group
                                  47   g  group, UTF-8
                                  47+g …  payload, to the end

The heartbeat is the paper's, byte for byte; of the other two the paper gives the fields, and the
order and widths are ours.  There is no checksum: UDP has one.

`decode` raises MalformedPdu and nothing else, whatever the bytes, and makes nothing larger than
they are: sizes and counts are compared with what is left before anything is taken.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from itertools import pairwise
from typing import Final

from roundelay.core.autorm import packets as p
from roundelay.core.errors import InvariantBroken, MalformedPdu

HEARTBEAT: Final = 1
DATA: Final = 2
ACKNOWLEDGEMENT: Final = 3

FLAGS: Final = p.ONE_OF | p.CONFIRMATION

_HEARTBEAT: Final = struct.Struct(">B16sHB")
_DATA: Final = struct.Struct(">B16s16sIIIB")
_ACK: Final = struct.Struct(">B16s16sIIH")

# Reasons a packet is refused for.
EMPTY: Final = "empty packet"
UNKNOWN_TYPE: Final = "unknown packet type"
SHORT: Final = "short packet"
TRAILING: Final = "trailing bytes"
NO_SOURCE: Final = "no source"
NO_DESTINATION: Final = "no destination"
BAD_NAME: Final = "bad group name"
BAD_SEQUENCE: Final = "sequence number 0"
BAD_NUMBER: Final = "packet number outside its message"
BAD_FLAGS: Final = "unknown flags"
BAD_MISSING: Final = "bad list of missing packets"


def encode(packet: p.Packet) -> bytes:
    """The bytes of `packet`.

    Raises InvariantBroken for one that no peer could decode: an engine must not make it.

    >>> encode(p.Heartbeat(bytes(15) + b"!", 2, ("ab",))).hex(" ", -4)
    '01000000 00000000 00000000 00000000 21000201 026162'
    """
    try:
        _check(packet)
        if isinstance(packet, p.Heartbeat):
            head = _HEARTBEAT.pack(HEARTBEAT, packet.source, packet.nodes, len(packet.groups))
            return b"".join([head, *map(_short, packet.groups)])
        source, destination, seq = packet.source, packet.destination, packet.seq
        if isinstance(packet, p.Data):
            numbers = packet.count, packet.number, packet.flags
            head = _DATA.pack(DATA, source, destination, seq, *numbers)
            return b"".join((head, _short(packet.group), packet.payload))
        missing = packet.missing
        head = _ACK.pack(ACKNOWLEDGEMENT, source, destination, seq, packet.highest, len(missing))
        return head + struct.pack(f">{len(missing)}I", *missing)
    except (MalformedPdu, struct.error, UnicodeEncodeError) as error:
        raise InvariantBroken(f"no peer could decode {packet}: {error}") from None


def decode(data: bytes | memoryview) -> p.Packet:
    """The packet that `data` is, or MalformedPdu."""
    if not data:
        raise MalformedPdu(EMPTY)
    read = _READERS.get(data[0])
    if read is None:
        raise MalformedPdu(UNKNOWN_TYPE, str(data[0]))
    packet = read(data)
    _check(packet)
    return packet


def _check(packet: p.Packet) -> None:
    """Refuse fields that no node means, whether they are sent or received."""
    if not _is_node(packet.source):
        raise MalformedPdu(NO_SOURCE)
    if isinstance(packet, p.Heartbeat):
        return
    if packet.seq < 1:
        raise MalformedPdu(BAD_SEQUENCE)
    if isinstance(packet, p.Data):
        if len(packet.destination) != p.UUID_BYTES:
            raise MalformedPdu(NO_DESTINATION)
        if packet.number >= packet.count:
            raise MalformedPdu(BAD_NUMBER, f"{packet.number} of {packet.count}")
        if packet.flags & ~FLAGS:
            raise MalformedPdu(BAD_FLAGS, hex(packet.flags))
        return
    if not _is_node(packet.destination):
        raise MalformedPdu(NO_DESTINATION)
    # In a list that was cut the last one is `highest` itself, else all are below.
    missing = packet.missing
    if missing and (missing[-1] > packet.highest or any(a >= b for a, b in pairwise(missing))):
        raise MalformedPdu(BAD_MISSING, f"not rising up to {packet.highest}")


def _is_node(uuid: bytes) -> bool:
    return len(uuid) == p.UUID_BYTES and uuid != p.ZERO


def _short(name: str) -> bytes:
    """A name behind its size."""
    raw = name.encode()
    if not 1 <= len(raw) <= p.NAME_MAX:
        raise MalformedPdu(BAD_NAME, f"{len(raw)} bytes")
    return bytes((len(raw),)) + raw


def _read_heartbeat(data: bytes | memoryview) -> p.Heartbeat:
    _need(data, _HEARTBEAT.size)
    _, source, nodes, count = _HEARTBEAT.unpack_from(data)
    at = _HEARTBEAT.size
    # Each name takes two bytes or more: a count that lies is found before the first is read.
    _need(data, at + 2 * count)
    groups = []
    for _ in range(count):
        group, at = _read_short(data, at)
        groups.append(group)
    if at != len(data):
        raise MalformedPdu(TRAILING, f"{len(data) - at} after the last group")
    return p.Heartbeat(source, nodes, tuple(groups))


def _read_data(data: bytes | memoryview) -> p.Data:
    _need(data, _DATA.size)
    _, source, destination, seq, count, number, flags = _DATA.unpack_from(data)
    group, at = _read_short(data, _DATA.size)
    return p.Data(source, destination, seq, count, number, flags, group, bytes(data[at:]))


def _read_acknowledgement(data: bytes | memoryview) -> p.Acknowledgement:
    _need(data, _ACK.size)
    _, source, destination, seq, highest, count = _ACK.unpack_from(data)
    end = _ACK.size + 4 * count
    _need(data, end)
    if len(data) > end:
        raise MalformedPdu(TRAILING, f"{len(data) - end} after {count} missing packets")
    missing = struct.unpack_from(f">{count}I", data, _ACK.size)
    return p.Acknowledgement(source, destination, seq, highest, missing)


_READERS: Final[dict[int, Callable[[bytes | memoryview], p.Packet]]] = {
    HEARTBEAT: _read_heartbeat,
    DATA: _read_data,
    ACKNOWLEDGEMENT: _read_acknowledgement,
}


def _need(data: bytes | memoryview, size: int) -> None:
    if len(data) < size:
        raise MalformedPdu(SHORT, f"{len(data)} bytes of {size}")


def _read_short(data: bytes | memoryview, at: int) -> tuple[str, int]:
    """The name whose size is at `at`, and where it ends."""
    _need(data, at + 1)
    after = at + 1 + data[at]
    if after == at + 1:
        raise MalformedPdu(BAD_NAME, "empty")
    _need(data, after)
    try:
        return str(data[at + 1 : after], "utf-8"), after
    except UnicodeDecodeError:
        raise MalformedPdu(BAD_NAME, "not UTF-8") from None


class BeamonCodec:
    """The codec in the shape that the simulator takes."""

    def encode(self, pdu: p.Packet, sender: int) -> bytes:
        return encode(pdu)

    def decode(self, data: bytes) -> p.Packet:
        return decode(data)
