"""Replay in the frontend protocol: RPLY, MORE, RPLB, RPLE.  `wire.frontend` has the packets these
are made of.
"""

from __future__ import annotations

import struct
from typing import Any, Final

from msgspec import Struct

from roundelay.core.errors import ConfigError, MalformedPdu
from roundelay.core.limits import whole
from roundelay.core.selection import NUMBER_MAX, POSITION_MAX, Selection
from roundelay.wire.frontend import (
    BAD_BODY,
    Packet,
    json_packet,
    packet,
    read_json,
    read_struct,
    unpack,
)

RANGES: Final = ("since", "until", "since_time", "until_time")
SETS: Final = ("conferences", "senders", "kinds")
LISTED_MAX: Final = 1024
"""Conferences, senders or kinds that one replay can name."""
CREDIT_BLOCKS: Final = 4
CREDIT_MAX: Final = 64

_MORE: Final = struct.Struct(">qI")
_ID: Final = struct.Struct(">q")


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
            _number(field, getattr(self, field), 0, POSITION_MAX)
        _number("blocks", self.blocks, 1, CREDIT_MAX)
        if type(self.own) is not bool:
            raise ConfigError("own", str(self.own)[:60], "true or false")
        for field in ("conferences", "kinds"):
            for value in getattr(self, field) or ():
                _number(field, value, 0, NUMBER_MAX)
        for name in self.senders or ():
            if not isinstance(name, str):
                raise ConfigError("senders", repr(name), "names of nodes")
        for field in SETS:
            listed = getattr(self, field)
            if listed is not None and not 0 < len(listed) <= LISTED_MAX:
                raise ConfigError(field, f"{len(listed)} of them", f"1 to {LISTED_MAX}")


def _number(field: str, value: object, least: int, most: int) -> None:
    if type(value) is not int:  # JSON would say `true`, too
        raise ConfigError(field, str(value)[:60], "a whole number")
    whole(field, value, least, most)


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


def replay_id(incoming: Packet) -> int:
    """Which replay a packet asks for, also if the rest of it makes no sense; -1 if none."""
    number = read_json(incoming).get("id", 0)
    return number if type(number) is int and 0 <= number <= POSITION_MAX else -1


def read_replay(incoming: Packet) -> ReplayRequest:
    """Raises ConfigError that names the field."""
    content = read_json(incoming)
    fields = ReplayRequest.__struct_fields__
    values = {field: content[field] for field in fields if field in content}
    for field in SETS:
        if field in values:
            listed = values[field]
            kind: type = str if field == "senders" else int
            if not isinstance(listed, list) or not all(type(item) is kind for item in listed):
                raise ConfigError(field, str(listed)[:60], "a list")
            values[field] = frozenset(listed)
    request = ReplayRequest(**values)
    request.check()
    return request


def more_packet(group: str, number: int, blocks: int) -> bytes:
    """MORE: i64 id · u32 blocks; 0 blocks end the replay."""
    return packet("MORE", group, _MORE.pack(number, blocks))


def read_more(incoming: Packet) -> tuple[int, int]:
    if len(incoming.message) != _MORE.size:
        raise MalformedPdu(BAD_BODY, f"MORE of {len(incoming.message)} bytes")
    number, blocks = _MORE.unpack(incoming.message)
    return number, blocks


def block_packet(group: str, number: int, block: bytes) -> bytes:
    """RPLB: i64 id · a block as in a journal's segment."""
    return packet("RPLB", group, _ID.pack(number) + block)


def read_block(incoming: Packet) -> tuple[int, bytes]:
    (number,) = unpack(_ID, incoming.message, 0)
    return number, incoming.message[_ID.size :]


class Ended(Struct, frozen=True, omit_defaults=True):
    """What RPLE says."""

    id: int
    next: int
    """Everything selected below this position has been sent."""
    error: str = ""


def ended_packet(group: str, ended: Ended) -> bytes:
    """RPLE: a JSON object."""
    return json_packet("RPLE", group, ended)


def read_ended(incoming: Packet) -> Ended:
    return read_struct(incoming, Ended)
