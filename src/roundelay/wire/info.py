"""Our own packets beside those of AutoRM: who a node is, and how groups are put together.

::

    0x12  INFO     a node's name, UUID, address, peers, and the groups it takes part in
    0x13  PROBE    a node looking whether multicast reaches itself: 16 random bytes
    0x14  CONTROL  how a group without a fixed roster is put together (`node.assembly`)

Each is one byte of type, one of version, the body, and a CRC-32 over all of it.  The bodies of
INFO and CONTROL are msgpack arrays; a node that does not know them ignores them, so nodes of the
paper share the medium with ours.
"""

from __future__ import annotations

import struct
from typing import Final
from zlib import crc32

import msgspec
from msgspec import Struct

from roundelay.core.errors import MalformedPdu

INFO: Final = 0x12
PROBE: Final = 0x13
CONTROL: Final = 0x14
VERSION: Final = 1
CHECKSUM: Final = struct.Struct(">I")

Address = tuple[str, int]


class GroupInfo(Struct, frozen=True, array_like=True, gc=False):
    """A group as a node takes part in it; without an incarnation it only wants to."""

    name: str
    incarnation: str = ""
    epoch: int = -1
    size: int = 0


class Info(Struct, frozen=True, array_like=True):
    """Who a node is."""

    name: str
    uuid: bytes
    address: Address
    groups: tuple[GroupInfo, ...] = ()
    peers: tuple[Address, ...] = ()
    version: str = ""


class Ask(Struct, frozen=True, array_like=True, tag="ask"):
    """A node wants into a group, or out of it."""

    group: str
    incarnation: str
    name: str
    leave: bool = False


class Start(Struct, frozen=True, array_like=True, tag="start"):
    """The roster of a new epoch has been agreed on."""

    group: str
    incarnation: str
    epoch: int
    roster: tuple[str, ...]
    base: int
    resilience: int


Control = Ask | Start

_encode = msgspec.msgpack.Encoder().encode
_info = msgspec.msgpack.Decoder(Info)
_control = msgspec.msgpack.Decoder(Control)


def encode(body: Info | Control | bytes) -> bytes:
    """The packet of an INFO or CONTROL, or the PROBE with these bytes."""
    if isinstance(body, bytes):
        kind, data = PROBE, body
    else:
        kind, data = (INFO if isinstance(body, Info) else CONTROL), _encode(body)
    packet = bytes((kind, VERSION)) + data
    return packet + CHECKSUM.pack(crc32(packet))


def decode(packet: bytes) -> Info | Ask | Start | bytes:
    """What `encode` was given, or MalformedPdu."""
    end = len(packet) - CHECKSUM.size
    if end < 2:
        raise MalformedPdu("short")
    if packet[1] != VERSION:
        raise MalformedPdu("format version", str(packet[1]))
    if CHECKSUM.unpack_from(packet, end)[0] != crc32(packet[:end]):
        raise MalformedPdu("checksum")
    body = packet[2:end]
    try:
        if packet[0] == PROBE:
            return body
        if packet[0] == INFO:
            return _check_info(_info.decode(body))
        if packet[0] == CONTROL:
            word: Ask | Start = _control.decode(body)
            return word
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError) as error:
        raise MalformedPdu("node packet", str(error)) from None
    raise MalformedPdu("packet type", str(packet[0]))


def _check_info(info: Info) -> Info:
    if not info.name or len(info.uuid) != 16 or not 0 < info.address[1] < 65536:
        raise MalformedPdu("node packet", "name, UUID or address")
    return info
