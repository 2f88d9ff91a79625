"""Conferences, units, recorded receipts and replay in the frontend protocol: SNDC, SNDU, RCVC,
RCVU, RPLY, MORE, RPLB, RPLE.  `wire.frontend` has the packets these are made of.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any, Final

from msgspec import Struct

from roundelay.core.bundle import Bundle
from roundelay.core.errors import ConfigError, MalformedPdu
from roundelay.core.limits import whole
from roundelay.core.selection import NUMBER_MAX, POSITION_MAX, Selection
from roundelay.wire.frontend import (
    BAD_BODY,
    MESSAGE_BYTES_MOST,
    NAME_BYTES,
    NO_TAG,
    TOO_LARGE,
    Packet,
    batch_bytes,
    json_packet,
    name_bytes,
    packet,
    read_batch,
    read_json,
    short_name,
    unpack,
)

RANGES: Final = ("since", "until", "since_time", "until_time")
SETS: Final = ("conferences", "senders", "kinds")
RECORDERS_MAX: Final = 254
MEMBERS: Final = 255
"""Instead of a number of recorders: L + 1 members must have synced it."""
LISTED_MAX: Final = 1024
"""Conferences, senders or kinds that one replay can name."""
CREDIT_BLOCKS: Final = 4
CREDIT_MAX: Final = 64

_SEND: Final = struct.Struct(">qIIBB")
_PLACE: Final = struct.Struct(">qqII")
_MORE: Final = struct.Struct(">qI")
_ID: Final = struct.Struct(">q")


class MarkedSend(Struct, frozen=True, gc=False):
    """What SNDC and SNDU say."""

    tag: int
    conference: int
    kind: int
    recorders: int
    """How many recorders must have synced before the receipt; 0: none."""
    to: tuple[str, ...] | None
    bundle: Bundle
    """With its mark."""
    unit: bool = False
    """The messages are the parts of one unit."""


class ReplayRequest(Selection, frozen=True, kw_only=True):
    """What RPLY says: which records of a group.

    `until` = POSITION_MAX: up to what is recorded when it gets there.  Times are nanoseconds since
    1970, as the recorder's clock had it."""

    id: int = 0
    blocks: int = CREDIT_BLOCKS
    """How many blocks may come before the first MORE."""
    own: bool = False
    """Only what the node itself records, nothing from other nodes."""

    def check(self) -> None:
        for field in ("id", *RANGES):
            whole(field, getattr(self, field), 0, POSITION_MAX)
        whole("blocks", self.blocks, 1, CREDIT_MAX)
        for field in ("conferences", "kinds"):
            for value in getattr(self, field) or ():
                if type(value) is bool:  # JSON would say so, and the node refuse it
                    raise ConfigError(field, value, "a whole number")
                whole(field, value, 0, NUMBER_MAX)
        for name in self.senders or ():
            if not isinstance(name, str):
                raise ConfigError("senders", repr(name), "names of nodes")
        for field in SETS:
            listed = getattr(self, field)
            if listed is not None and not 0 < len(listed) <= LISTED_MAX:
                raise ConfigError(field, f"{len(listed)} of them", f"1 to {LISTED_MAX}")


def check_mark(conference: int, kind: int) -> None:
    whole("conference", conference, 0, NUMBER_MAX)
    whole("kind", kind, 0, NUMBER_MAX)


def marked_packet(
    group: str,
    bundle: Bundle,
    *,
    tag: int = NO_TAG,
    conference: int = 0,
    kind: int = 0,
    recorders: int = 0,
    to: Iterable[str] | None = None,
    unit: bool = False,
) -> bytes:
    """SNDC: i64 tag · u32 conference · u32 kind · u8 recorders · u8 count and names · batch.

    SNDU is the same for a unit.
    """
    check_mark(conference, kind)
    whole("recorders", recorders, 0, MEMBERS)
    raws = [name_bytes("to", name) for name in to or ()]
    if len(raws) > NAME_BYTES or (to is not None and not raws):
        raise ConfigError("to", f"{len(raws)} names", f"1 to {NAME_BYTES} names")
    names = b"".join(bytes((len(raw),)) + raw for raw in raws)
    start = _SEND.pack(tag, conference, kind, recorders, len(raws))
    command = "SNDU" if unit else "SNDC"
    return packet(command, group, start + names + batch_bytes(bundle))


def read_marked(found: Packet, message_bytes: int = MESSAGE_BYTES_MOST) -> MarkedSend:
    body = found.message
    tag, conference, kind, recorders, count = unpack(_SEND, body, 0)
    if tag < NO_TAG:
        raise MalformedPdu(BAD_BODY, f"tag {tag}, at least {NO_TAG}")
    at = _SEND.size
    names = []
    for _ in range(count):
        name, at = short_name(body, at)
        names.append(name)
    bundle = read_batch(body, at)
    if not bundle.sizes:
        raise MalformedPdu(BAD_BODY, "no messages")
    if len(bundle.data) > message_bytes:
        raise MalformedPdu(
            TOO_LARGE, f"{found.command} of {len(bundle.data)} bytes, at most {message_bytes}"
        )
    marked, unit = bundle.marked(conference, kind), found.command == "SNDU"
    return MarkedSend(tag, conference, kind, recorders, tuple(names) or None, marked, unit)


class MarkedReceived(Struct, frozen=True, gc=False):
    """What RCVC and RCVU say; the bundle has its mark."""

    seq: int
    time: int
    sender: str
    bundle: Bundle


def marked_received_packet(
    group: str, seq: int, time: int, conference: int, kind: int, sender: str, bundle: Bundle,
    unit: bool = False,
) -> bytes:  # fmt: skip
    """RCVC: i64 seq · i64 time · u32 conference · u32 kind · u8 size and sender · batch.

    RCVU is the same for a unit, whose `seq` is that of its last message.
    """
    raw = sender.encode()[:NAME_BYTES]
    start = _PLACE.pack(seq, time, conference, kind) + bytes((len(raw),)) + raw
    return packet("RCVU" if unit else "RCVC", group, start + batch_bytes(bundle))


def read_marked_received(found: Packet) -> MarkedReceived:
    seq, time, conference, kind = unpack(_PLACE, found.message, 0)
    sender, at = short_name(found.message, _PLACE.size, named=False)
    bundle = read_batch(found.message, at).marked(conference, kind)
    return MarkedReceived(seq, time, sender, bundle)


def replay_packet(group: str, request: ReplayRequest) -> bytes:
    """RPLY: a JSON object of those fields that are not as in `ReplayRequest`."""
    request.check()
    plain = ReplayRequest()
    content: dict[str, Any] = {"id": request.id}
    for field in (*RANGES, *SETS, "blocks", "own"):
        value = getattr(request, field)
        if value != getattr(plain, field):
            content[field] = sorted(value) if isinstance(value, frozenset) else value
    return json_packet("RPLY", group, content)


def replay_id(packet: Packet) -> int:
    """Which replay a packet asks for, also if the rest of it makes no sense; -1 if none."""
    number = read_json(packet).get("id", 0)
    return number if type(number) is int and 0 <= number <= POSITION_MAX else -1


def read_replay(packet: Packet) -> ReplayRequest:
    """Raises ConfigError that names the field."""
    content = read_json(packet)
    values: dict[str, Any] = {}
    for field in ReplayRequest.__struct_fields__:
        if field not in content:
            continue
        value = content[field]
        if field in SETS:
            kind: type = str if field == "senders" else int
            if not isinstance(value, list) or not all(type(one) is kind for one in value):
                raise ConfigError(field, str(value)[:60], "a list")
            value = frozenset(value)
        elif field == "own":
            if type(value) is not bool:
                raise ConfigError(field, str(value)[:60], "true or false")
        elif type(value) is not int:
            raise ConfigError(field, str(value)[:60], "a whole number")
        values[field] = value
    request = ReplayRequest(**values)
    request.check()
    return request


def more_packet(group: str, number: int, blocks: int) -> bytes:
    """MORE: i64 id · u32 blocks; 0 blocks end the replay."""
    return packet("MORE", group, _MORE.pack(number, blocks))


def read_more(found: Packet) -> tuple[int, int]:
    if len(found.message) != _MORE.size:
        raise MalformedPdu(BAD_BODY, f"MORE of {len(found.message)} bytes")
    number, blocks = _MORE.unpack(found.message)
    return number, blocks


def block_packet(group: str, number: int, block: bytes) -> bytes:
    """RPLB: i64 id · a block as in a journal's segment."""
    return packet("RPLB", group, _ID.pack(number) + block)


def read_block(found: Packet) -> tuple[int, bytes]:
    (number,) = unpack(_ID, found.message, 0)
    return number, found.message[_ID.size :]


class Ended(Struct, frozen=True):
    """What RPLE says."""

    id: int
    next: int = 0
    """Everything selected below this position has been sent."""
    error: str = ""


def ended_packet(group: str, ended: Ended) -> bytes:
    """RPLE: a JSON object."""
    said: dict[str, object] = {"id": ended.id, "next": ended.next}
    return json_packet("RPLE", group, said | ({"error": ended.error} if ended.error else {}))


def read_ended(found: Packet) -> Ended:
    said = read_json(found)
    number, following = said.get("id"), said.get("next", 0)
    if type(number) is not int or type(following) is not int:
        raise MalformedPdu(BAD_BODY, "RPLE without an id")
    return Ended(number, following, str(said.get("error", "")))
