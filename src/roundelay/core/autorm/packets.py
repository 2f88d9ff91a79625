"""The three packets that Beamons exchange, and the arithmetic of their sequence numbers.

Every packet is multicast on the one shared medium; `destination` says whom it is for.  Nodes are
named by UUIDs, 16 bytes each, which a node gives itself anew at every start (AR §3.2).
"""

from __future__ import annotations

from typing import Final

from roundelay.core.engine import Pdu

UUID_BYTES: Final = 16
ZERO: Final = bytes(UUID_BYTES)
"""As the destination of data: the group, not a single node."""

# Flags of a data packet.
ONE_OF: Final = 0x01  # hand the message to exactly one application
CONFIRMATION: Final = 0x02  # answer with an acknowledgement

# Sizes on the wire in bytes; see wire/beamon.py for the layouts.
IP_UDP_HEAD: Final = 28
HEARTBEAT_HEAD: Final = 20
DATA_HEAD: Final = 47
ACK_HEAD: Final = 43
ACK_ENTRY: Final = 4
NAME_MAX: Final = 255
GROUPS_MAX: Final = 255
MISSING_MAX: Final = 65535
NODES_MAX: Final = 65535

SEQ_MAX: Final = (1 << 32) - 1


class Heartbeat(Pdu, frozen=True, gc=False):
    """Type 1: I am here, I know of `nodes` nodes (myself included), these are my groups."""

    source: bytes
    nodes: int
    groups: tuple[str, ...]


class Data(Pdu, frozen=True, gc=False):
    """Type 2: packet `number` (from 0) of the `count` packets of message `seq` of `source`."""

    source: bytes
    destination: bytes
    seq: int
    count: int
    number: int
    flags: int
    group: str
    payload: bytes


class Acknowledgement(Pdu, frozen=True, gc=False):
    """Type 3: of message `seq`, up to packet `highest`, I have all but those in `missing`.

    If not all missing ones fit, the list is cut and `highest` is the last one listed.
    """

    source: bytes
    destination: bytes
    seq: int
    highest: int
    missing: tuple[int, ...]


Packet = Heartbeat | Data | Acknowledgement


def following(seq: int) -> int:
    """The sequence number after `seq`; 0 is never used.

    >>> following(0), following(SEQ_MAX)
    (1, 1)
    """
    return seq + 1 if seq < SEQ_MAX else 1


def later(a: int, b: int) -> bool:
    """Whether sequence number `a` comes after `b`, also where the numbers start over.

    >>> later(2, 1), later(1, 1), later(3, SEQ_MAX), later(SEQ_MAX, 3)
    (True, False, True, False)
    """
    return 0 < (a - b) % (1 << 32) < 1 << 31
