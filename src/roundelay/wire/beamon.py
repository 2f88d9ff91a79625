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
from itertools import pairwise
from typing import Final

from roundelay.core.autorm.packets import (
    CONFIRMATION,
    GROUPS_MAX,
    MISSING_MAX,
    NAME_MAX,
    ONE_OF,
    UUID_BYTES,
    ZERO,
    Acknowledgement,
    Data,
    Heartbeat,
    Packet,
)
from roundelay.core.errors import InvariantBroken, MalformedPdu

HEARTBEAT: Final = 1
DATA: Final = 2
ACKNOWLEDGEMENT: Final = 3

FLAGS: Final = ONE_OF | CONFIRMATION

_HEARTBEAT: Final = struct.Struct(">B16sHB")
_DATA: Final = struct.Struct(">B16s16sIIIBB")
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


# -- encoding ----------------------------------------------------------------------------------


def encode(packet: Packet) -> bytes:
    """The bytes of `packet`.

    Raises InvariantBroken for one that no peer could decode: an engine must not make it.

    >>> encode(Heartbeat(bytes(15) + b"!", 2, ("ab",))).hex(" ", -4)
    '01000000 00000000 00000000 00000000 21000201 026162'
    """
    try:
        if isinstance(packet, Data):
            return _encode_data(packet)
        if isinstance(packet, Acknowledgement):
            return _encode_acknowledgement(packet)
        return _encode_heartbeat(packet)
    except (struct.error, UnicodeEncodeError) as error:
        raise InvariantBroken(f"cannot encode {packet}: {error}") from None


def _encode_heartbeat(packet: Heartbeat) -> bytes:
    names = [group.encode() for group in packet.groups]
    _insist(len(names) <= GROUPS_MAX and _named(packet.source), packet)
    parts = [_HEARTBEAT.pack(HEARTBEAT, packet.source, packet.nodes, len(names))]
    for name in names:
        _insist(1 <= len(name) <= NAME_MAX, packet)
        parts += (bytes((len(name),)), name)
    return b"".join(parts)


def _encode_data(packet: Data) -> bytes:
    name = packet.group.encode()
    _insist(
        1 <= len(name) <= NAME_MAX
        and _named(packet.source)
        and len(packet.destination) == UUID_BYTES
        and packet.seq > 0
        and packet.number < packet.count
        and not packet.flags & ~FLAGS,
        packet,
    )
    source, destination, seq = packet.source, packet.destination, packet.seq
    head = _DATA.pack(
        DATA, source, destination, seq, packet.count, packet.number, packet.flags, len(name)
    )
    return b"".join((head, name, packet.payload))


def _encode_acknowledgement(packet: Acknowledgement) -> bytes:
    missing = packet.missing
    _insist(
        len(missing) <= MISSING_MAX
        and _named(packet.source)
        and _named(packet.destination)
        and packet.seq > 0
        and _rising(missing, packet.highest),
        packet,
    )
    head = _ACK.pack(
        ACKNOWLEDGEMENT, packet.source, packet.destination, packet.seq, packet.highest, len(missing)
    )
    return head + struct.pack(f">{len(missing)}I", *missing)


def _insist(sound: bool, packet: Packet) -> None:
    if not sound:
        raise InvariantBroken(f"no peer could decode {packet}")


def _named(uuid: bytes) -> bool:
    return len(uuid) == UUID_BYTES and uuid != ZERO


def _rising(missing: tuple[int, ...], highest: int) -> bool:
    """In a list that was cut the last one is `highest` itself, else all are below."""
    if not missing:
        return True
    return missing[-1] <= highest and all(a < b for a, b in pairwise(missing))


# -- decoding ----------------------------------------------------------------------------------


def decode(data: bytes | memoryview) -> Packet:
    """The packet that `data` is, or MalformedPdu."""
    if not data:
        raise MalformedPdu(EMPTY)
    kind = data[0]
    if kind == DATA:
        return _decode_data(data)
    if kind == ACKNOWLEDGEMENT:
        return _decode_acknowledgement(data)
    if kind == HEARTBEAT:
        return _decode_heartbeat(data)
    raise MalformedPdu(UNKNOWN_TYPE, str(kind))


def _decode_heartbeat(data: bytes | memoryview) -> Heartbeat:
    _need(data, _HEARTBEAT.size)
    _, source, nodes, count = _HEARTBEAT.unpack_from(data)
    if source == ZERO:
        raise MalformedPdu(NO_SOURCE)
    at = _HEARTBEAT.size
    # Each name takes two bytes or more: a count that lies is found before the first is read.
    _need(data, at + 2 * count)
    groups = []
    for _ in range(count):
        _need(data, at + 1)
        size = data[at]
        groups.append(_name(data, at + 1, size))
        at += 1 + size
    if at != len(data):
        raise MalformedPdu(TRAILING, f"{len(data) - at} after the last group")
    return Heartbeat(source, nodes, tuple(groups))


def _decode_data(data: bytes | memoryview) -> Data:
    _need(data, _DATA.size)
    _, source, destination, seq, count, number, flags, size = _DATA.unpack_from(data)
    if source == ZERO:
        raise MalformedPdu(NO_SOURCE)
    if not seq:
        raise MalformedPdu(BAD_SEQUENCE)
    if number >= count:
        raise MalformedPdu(BAD_NUMBER, f"{number} of {count}")
    if flags & ~FLAGS:
        raise MalformedPdu(BAD_FLAGS, hex(flags))
    group = _name(data, _DATA.size, size)
    payload = bytes(data[_DATA.size + size :])
    return Data(source, destination, seq, count, number, flags, group, payload)


def _decode_acknowledgement(data: bytes | memoryview) -> Acknowledgement:
    _need(data, _ACK.size)
    _, source, destination, seq, highest, count = _ACK.unpack_from(data)
    if source == ZERO:
        raise MalformedPdu(NO_SOURCE)
    if destination == ZERO:
        raise MalformedPdu(NO_DESTINATION)
    if not seq:
        raise MalformedPdu(BAD_SEQUENCE)
    end = _ACK.size + 4 * count
    _need(data, end)
    if len(data) > end:
        raise MalformedPdu(TRAILING, f"{len(data) - end} after {count} missing packets")
    missing = struct.unpack_from(f">{count}I", data, _ACK.size)
    if not _rising(missing, highest):
        raise MalformedPdu(BAD_MISSING, f"not rising up to {highest}")
    return Acknowledgement(source, destination, seq, highest, missing)


def _need(data: bytes | memoryview, size: int) -> None:
    if len(data) < size:
        raise MalformedPdu(SHORT, f"{len(data)} bytes of {size}")


def _name(data: bytes | memoryview, at: int, size: int) -> str:
    if not size:
        raise MalformedPdu(BAD_NAME, "empty")
    _need(data, at + size)
    try:
        return str(data[at : at + size], "utf-8")
    except UnicodeDecodeError:
        raise MalformedPdu(BAD_NAME, "not UTF-8") from None


class BeamonCodec:
    """The codec in the shape that the simulator takes."""

    def encode(self, pdu: Packet, sender: int) -> bytes:
        return encode(pdu)

    def decode(self, data: bytes) -> Packet:
        return decode(data)
