"""What the packets of the frontend protocol say of messages: SNDR, SNDO, SNDD, SNDC, SNDU, FROM,
RCVX, RCVC, RCVU, RCPT, FAIL.  `wire.frontend` has the packets these are made of.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from msgspec import Struct

from roundelay.core.bundle import MESSAGES_MAX, Bundle
from roundelay.core.errors import ConfigError, MalformedPdu
from roundelay.core.limits import whole
from roundelay.core.selection import NUMBER_MAX
from roundelay.wire.frontend import (
    BAD_BODY,
    MESSAGE_BYTES_MOST,
    NAME_BYTES,
    TOO_LARGE,
    Packet,
    name_bytes,
    packet,
    read_name,
)

NO_TAG: Final = -1
"""A send nobody wants to hear of again; a FAIL that answers no send."""
RECORDERS_MAX: Final = 254
MEMBERS: Final = 255
"""Instead of a number of recorders: L + 1 members must have synced it."""
GIVEN_UP_MAX: Final = 65_535

# Flags of FAIL.
INDETERMINATE: Final = 1
"""Nobody can say whether the message is delivered."""
CLOSING: Final = 2
"""The node closes the connection now."""
REFUSED_JOIN: Final = 4
"""It is a JOIN that was refused."""

_NUMBER: Final = struct.Struct(">q")
_PLACE: Final = struct.Struct(">qq")
_MARKED_PLACE: Final = struct.Struct(">qqII")
_MARKED_SEND: Final = struct.Struct(">qIIBB")
_RECEIPT: Final = struct.Struct(">qqq")
_FAIL: Final = struct.Struct(">qB")
_COUNT: Final = struct.Struct(">H")


# ------------------------------------------------------------------------ parts of a body


def unpack(layout: struct.Struct, body: bytes, at: int) -> tuple[Any, ...]:
    if len(body) < at + layout.size:
        raise MalformedPdu(BAD_BODY, f"{len(body)} bytes, at least {at + layout.size}")
    return layout.unpack_from(body, at)


def _short(raw: bytes) -> bytes:
    """A name behind its length (u8)."""
    return bytes((len(raw),)) + raw


def _read_short(body: bytes, at: int, named: bool = True) -> tuple[str, int]:
    if at >= len(body) or at + 1 + body[at] > len(body):
        raise MalformedPdu(BAD_BODY, "a name is cut off")
    after = at + 1 + body[at]
    return read_name(body[at + 1 : after], named), after


def portions(bundle: Bundle, message_bytes: int) -> Iterator[Bundle]:
    """The bundle in pieces that fit a packet each: none is larger than `message_bytes`, unless it
    is a single message that is."""
    if len(bundle.data) <= message_bytes and len(bundle.sizes) <= MESSAGES_MAX:
        yield bundle
        return
    first = start = 0
    here = 0  # bytes gathered
    for i, size in enumerate(bundle.sizes):
        if i > first and (here + size > message_bytes or i - first == MESSAGES_MAX):
            yield Bundle(bundle.sizes[first:i], bundle.data[start : start + here])
            first, start, here = i, start + here, 0
        here += size
    yield Bundle(bundle.sizes[first:], bundle.data[start:])


def _batch(bundle: Bundle) -> bytes:
    """u16 count · u32 length of each · the messages end to end."""
    count = len(bundle.sizes)
    return struct.pack(f">H{count}I", count, *bundle.sizes) + bundle.data


def _read_batch(body: bytes, at: int) -> Bundle:
    (count,) = unpack(_COUNT, body, at)
    at += _COUNT.size
    first = at + 4 * count
    if first > len(body):
        raise MalformedPdu(BAD_BODY, f"a table of {count} lengths in {len(body) - at} bytes")
    sizes = struct.unpack_from(f">{count}I", body, at)
    if sum(sizes) != len(body) - first:
        raise MalformedPdu(BAD_BODY, f"lengths add up to {sum(sizes)}, not {len(body) - first}")
    return Bundle(sizes, body[first:])


# ------------------------------------------------------------------------ to the node


class Send(Struct, frozen=True, gc=False):
    """What is to be sent, and how: what SNDR, SNDO, SNDD, SNDC and SNDU say."""

    tag: int
    bundle: Bundle
    """With its mark."""
    to: tuple[str, ...] | None = None
    someone: bool = False
    recorders: int = 0
    """How many recorders must have synced before the receipt; 0: none."""
    unit: bool = False
    """The messages are the parts of one unit."""


def check_mark(conference: int, kind: int) -> None:
    whole("conference", conference, 0, NUMBER_MAX)
    whole("kind", kind, 0, NUMBER_MAX)


def send_packet(
    group: str,
    bundle: Bundle,
    *,
    tag: int = NO_TAG,
    to: Iterable[str] | None = None,
    someone: bool = False,
    conference: int = 0,
    kind: int = 0,
    recorders: int = 0,
    unit: bool = False,
) -> bytes:
    """SNDR or SNDO: i64 tag · batch.  SNDD: i64 tag · u8 count and the names · batch.

    SNDC: i64 tag · u32 conference · u32 kind · u8 recorders · u8 count and names · batch; SNDU is
    the same for a unit.
    """
    names = [_short(name_bytes("to", name)) for name in to or ()]
    if len(names) > NAME_BYTES or (to is not None and not names):
        raise ConfigError("to", f"{len(names)} names", f"1 to {NAME_BYTES} names")
    if conference or kind or recorders or unit:
        check_mark(conference, kind)
        whole("recorders", recorders, 0, MEMBERS)
        command = "SNDU" if unit else "SNDC"
        start = _MARKED_SEND.pack(tag, conference, kind, recorders, len(names))
    elif names:
        command, start = "SNDD", _NUMBER.pack(tag) + bytes((len(names),))
    else:
        command, start = "SNDO" if someone else "SNDR", _NUMBER.pack(tag)
    return packet(command, group, b"".join([start, *names, _batch(bundle)]))


def read_send(incoming: Packet, message_bytes: int = MESSAGE_BYTES_MOST) -> Send:
    body, command = incoming.message, incoming.command
    conference = kind = recorders = count = 0
    if command in ("SNDC", "SNDU"):
        tag, conference, kind, recorders, count = unpack(_MARKED_SEND, body, 0)
        at = _MARKED_SEND.size
    else:
        (tag,), at = unpack(_NUMBER, body, 0), _NUMBER.size
    if tag < NO_TAG:
        raise MalformedPdu(BAD_BODY, f"tag {tag}, at least {NO_TAG}")
    if command == "SNDD":
        if at >= len(body) or not body[at]:
            raise MalformedPdu(BAD_BODY, "no destinations")
        count, at = body[at], at + 1
    names = []
    for _ in range(count):
        name, at = _read_short(body, at)
        names.append(name)
    bundle = _read_batch(body, at)
    if not bundle.sizes:
        raise MalformedPdu(BAD_BODY, "no messages")
    if len(bundle.data) > message_bytes:
        raise MalformedPdu(
            TOO_LARGE, f"{command} of {len(bundle.data)} bytes, at most {message_bytes}"
        )
    marked = bundle.marked(conference, kind)
    to = tuple(names) or None
    return Send(tag, marked, to, command == "SNDO", recorders, command == "SNDU")


def from_packet(group: str, seq: int, time: int = 0, history: str = "") -> bytes:
    """FROM: i64 seq, i64 time if there is one or a history follows, id of the history."""
    place = _PLACE.pack(seq, time) if time or history else _NUMBER.pack(seq)
    return packet("FROM", group, place + history.encode())


def read_from(incoming: Packet) -> tuple[int, int, str]:
    """Position, time or 0, and the history or an empty text."""
    body = incoming.message
    if len(body) < _PLACE.size:
        seq, time = *unpack(_NUMBER, body, 0), 0
    else:
        seq, time = unpack(_PLACE, body, 0)
    raw = body[_PLACE.size :]
    if (len(body) != _NUMBER.size and len(body) < _PLACE.size) or seq < 0 or time < 0:
        raise MalformedPdu(BAD_BODY, f"FROM {seq}, {time} in {len(body)} bytes")
    if len(raw) > NAME_BYTES:
        raise MalformedPdu(BAD_BODY, f"FROM with a history of {len(raw)} bytes")
    try:
        return int(seq), int(time), raw.decode()
    except UnicodeDecodeError:
        raise MalformedPdu(BAD_BODY, "FROM with a history that is not UTF-8") from None


# ------------------------------------------------------------------------ to the application


class Received(Struct, frozen=True, gc=False):
    """What RCVX, RCVC and RCVU say; the bundle has its mark."""

    seq: int
    time: int
    sender: str
    bundle: Bundle


def received_packet(
    group: str,
    seq: int,
    time: int,
    sender: str,
    bundle: Bundle,
    *,
    conference: int = 0,
    kind: int = 0,
    unit: bool = False,
) -> bytes:
    """RCVX: i64 seq · i64 time · u8 size and sender · batch.  RCVC: with u32 conference · u32 kind
    behind the time; RCVU is the same for a unit, whose `seq` is that of its last message."""
    command, place = "RCVX", _PLACE.pack(seq, time)
    if conference or kind or unit:
        command = "RCVU" if unit else "RCVC"
        place = _MARKED_PLACE.pack(seq, time, conference, kind)
    return packet(command, group, place + _short(sender.encode()[:NAME_BYTES]) + _batch(bundle))


def read_received(incoming: Packet) -> Received:
    body, conference, kind = incoming.message, 0, 0
    if incoming.command == "RCVX":
        (seq, time), at = unpack(_PLACE, body, 0), _PLACE.size
    else:
        (seq, time, conference, kind), at = unpack(_MARKED_PLACE, body, 0), _MARKED_PLACE.size
    sender, at = _read_short(body, at, named=False)
    return Received(seq, time, sender, _read_batch(body, at).marked(conference, kind))


class Failure(Struct, frozen=True, gc=False):
    """What FAIL says."""

    tag: int
    flags: int
    reason: str


def fail_packet(group: str, tag: int, flags: int, reason: str) -> bytes:
    """FAIL: i64 tag · u8 flags · reason."""
    return packet("FAIL", group, _FAIL.pack(tag, flags) + reason.encode())


def read_failure(incoming: Packet) -> Failure:
    tag, flags = unpack(_FAIL, incoming.message, 0)
    return Failure(tag, flags, incoming.message[_FAIL.size :].decode(errors="replace"))


class Fate(Struct, frozen=True, gc=False):
    """What RCPT says."""

    tag: int
    seq: int
    time: int
    given_up: tuple[str, ...] = ()
    """Names of nodes that were given up before they had the messages."""
    resilience: int = -1
    """L when they were committed; -1: there is none, or it was not told."""


def receipt_packet(
    group: str,
    tag: int,
    seq: int,
    time: int,
    given_up: Sequence[str] = (),
    level: int | None = None,
) -> bytes:
    """RCPT: i64 tag · i64 seq · i64 time, then, unless there is nothing more, the names that were
    given up: u16 how many, and each with its length (u8) before it; then, for who has asked for
    it, i64 L."""
    body = _RECEIPT.pack(tag, seq, time)
    if given_up or level is not None:
        names = [name.encode()[:NAME_BYTES] for name in given_up[:GIVEN_UP_MAX]]
        body += _COUNT.pack(len(names)) + b"".join(map(_short, names))
    if level is not None:
        body += _NUMBER.pack(level)
    return packet("RCPT", group, body)


def read_receipt(incoming: Packet) -> Fate:
    body = incoming.message
    tag, seq, time = unpack(_RECEIPT, body, 0)
    at = _RECEIPT.size
    if len(body) == at:
        return Fate(tag, seq, time)
    (count,) = unpack(_COUNT, body, at)
    at += _COUNT.size
    names = []
    for _ in range(count):
        if at >= len(body):
            break
        start, at = at + 1, at + 1 + body[at]
        names.append(body[start:at].decode(errors="replace"))
    level = -1
    if len(body) - at == _NUMBER.size:
        (level,) = _NUMBER.unpack_from(body, at)
        at += _NUMBER.size
    if at != len(body) or len(names) != count:
        raise MalformedPdu(BAD_BODY, f"RCPT of {len(body)} bytes with {count} names")
    return Fate(tag, seq, time, tuple(names), level)
