"""What a node and the switch say to each other: a few bytes in front of every datagram.

The switch (`roundelay.faultnet.switch`) stands where the network would be: a node sends all it has
to say to the switch, and the switch passes it on to those it is for.  So the datagram has to name
its destination, and what arrives has to name its sender::

    to the switch                             from the switch
    off  size  field                          off  size  field
      0     1  0x7E                             0     1  0x7E
      1     1  kind                             1     1  kind
      2     4  destination: IPv4 address        2     4  sender: IPv4 address
      6     2  and port; 0 in a multicast       6     2  and port
      8     1  hint: protocol, 0 = unknown      8     …  the datagram
      9     1  hint: PDU type
     10     …  the datagram

kind 0 is a hello: its datagram is the node's name in UTF-8; the answer carries the node's own
address, as the switch sees it, and no datagram.  1 is a multicast to everyone else, 2 a unicast,
3 and 4 are a multicast and a unicast on line B: the same to the switch, but it can lose what goes
there by itself.
All numbers are in network byte order.

The hint says what the datagram carries, so that the switch can lose the third CONFIRM although the
datagram is sealed.  It is not to be trusted and nobody but the switch reads it; `hint_of` makes it
from a datagram that is not sealed yet.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from socket import inet_aton, inet_ntoa
from typing import Final

from roundelay.core.errors import MalformedPdu
from roundelay.wire.envelope import ENGINE_PDU
from roundelay.wire.layouts import LAYOUTS, PO, SPO, TO

MAGIC: Final = 0x7E

HELLO: Final = 0
MULTICAST: Final = 1
UNICAST: Final = 2
MULTICAST_B: Final = 3
UNICAST_B: Final = 4

UNKNOWN: Final = 0
AUTORM: Final = 255
"""Protocol of a hint for the packets of AutoRM, which have types of their own and no number."""

TO_SWITCH: Final = struct.Struct(">BB4sHBB")
FROM_SWITCH: Final = struct.Struct(">BB4sH")

OVERHEAD: Final = TO_SWITCH.size
"""By how much a datagram has to be smaller to cross the switch."""

DATAGRAM_MAX: Final = 65_507 - OVERHEAD
"""The largest datagram that can cross the switch."""

NAME_BYTES_MAX: Final = 64
HELLO_EVERY_S: Final = 1.0
"""How often a node says hello."""

FORGOTTEN_AFTER_S: Final = 10.0
"""After so long without a word from a port, the switch forgets it."""

Address = tuple[str, int]
NOWHERE: Final = b"\0\0\0\0"

AUTORM_KINDS: Final = {1: "HEARTBEAT", 2: "DATA", 3: "ACKNOWLEDGEMENT"}
_CLUSTER: Final = {TO: "TO_", PO: "PO_", SPO: "SPO_"}


KIND_NAMES: Final[Mapping[int, tuple[str, ...]]] = {
    layout.proto << 8 | layout.type: (
        (layout.name, _CLUSTER[layout.proto] + layout.name)
        if layout.proto in _CLUSTER
        else (layout.name,)
    )
    for layout in LAYOUTS
} | {AUTORM << 8 | number: (name,) for number, name in AUTORM_KINDS.items()}
"""By protocol and type (`hint_of`): what a PDU is called.  DT of the cluster protocol PO also goes
by the name PO_DT; the first name is the short one."""


def hello(name: str) -> bytes:
    """What a node says to the switch at first, and then every `HELLO_EVERY_S`.

    >>> hello("a").hex(" ")
    '7e 00 00 00 00 00 00 00 00 00 61'
    """
    return TO_SWITCH.pack(MAGIC, HELLO, NOWHERE, 0, UNKNOWN, 0) + name.encode()


def multicast(datagram: bytes | memoryview, hint: int = UNKNOWN, kind: int = MULTICAST) -> bytes:
    """`datagram` for everyone else, on either line."""
    return TO_SWITCH.pack(MAGIC, kind, NOWHERE, 0, hint >> 8, hint & 0xFF) + datagram


def unicast(
    datagram: bytes | memoryview, to: Address, hint: int = UNKNOWN, kind: int = UNICAST
) -> bytes:
    """`datagram` for the node that the switch knows by the address `to`, on either line."""
    ip = inet_aton(to[0])
    return TO_SWITCH.pack(MAGIC, kind, ip, to[1], hint >> 8, hint & 0xFF) + datagram


def hint_of(datagram: bytes) -> int:
    """Protocol and type of what an unsealed datagram carries: protocol << 8 | type, or UNKNOWN."""
    if not datagram:
        return UNKNOWN
    first = datagram[0]
    if first == ENGINE_PDU:
        return datagram[2] << 8 | datagram[3] if len(datagram) > 3 else UNKNOWN
    return AUTORM << 8 | first if first in AUTORM_KINDS else UNKNOWN


def forwarded(kind: int, sender: Address) -> bytes:
    """What the switch puts in front of a datagram of `sender`."""
    return FROM_SWITCH.pack(MAGIC, kind, inet_aton(sender[0]), sender[1])


def arrived(data: bytes) -> tuple[int, Address, bytes]:
    """Kind, sender and datagram of what came from the switch, or MalformedPdu.

    >>> arrived(forwarded(UNICAST, ("10.0.0.7", 9000)) + b"hi")
    (2, ('10.0.0.7', 9000), b'hi')
    """
    if len(data) < FROM_SWITCH.size:
        raise MalformedPdu("switch: short")
    magic, kind, ip, port = FROM_SWITCH.unpack_from(data)
    if magic != MAGIC or kind > UNICAST_B:
        raise MalformedPdu("switch: head", f"{magic:#04x} {kind}")
    return kind, (inet_ntoa(ip), port), data[FROM_SWITCH.size :]
