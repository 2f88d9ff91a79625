"""What the packets of the frontend protocol say of messages: SNDR, SNDO, SNDD, SNDC, SNDU, FROM to
the node; RCVX, RCVC, RCVU, RCPT, FAIL, VIEW, MISS to the application.  `wire.frontend` has the
packets these are made of.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

import msgspec
from msgspec import structs

from roundelay.core.bundle import MESSAGES_MAX, Bundle
from roundelay.core.errors import ConfigError, MalformedPdu
from roundelay.core.limits import whole
from roundelay.core.position import Since
from roundelay.core.selection import NUMBER_MAX
from roundelay.node.node_api import (
    MEMBERS,
    NO_TAG,
    UNIT,
    WHOLE,
    Batch,
    Missed,
    Receipt,
    Refusal,
    Send,
    View,
)
from roundelay.wire.frontend import (
    BAD_BODY,
    MESSAGE_BYTES_MOST,
    NAME_BYTES,
    TOO_LARGE,
    Packet,
    json_packet,
    name_bytes,
    packet,
    plain_packets,
    read_name,
    unpack,
)

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


# -- parts of a body -----------------------------------------------------------------------


def _short(raw: bytes) -> bytes:
    """A name behind its length (u8)."""
    return bytes((len(raw),)) + raw


def _read_short(body: bytes, at: int, named: bool = True) -> tuple[str, int]:
    if at >= len(body) or at + 1 + body[at] > len(body):
        raise MalformedPdu(BAD_BODY, "a name is cut off")
    after = at + 1 + body[at]
    return read_name(body[at + 1 : after], named), after


def portions(bundle: Bundle, message_bytes: int) -> Iterator[Bundle]:
    """The bundle in pieces that fit a packet each: of one conference and kind, and none larger
    than `message_bytes`, unless it is a single message that is."""
    for conference, kind, run in bundle.by_mark():
        for piece in _cut(run, message_bytes):
            yield piece.marked(conference, kind)


def _cut(bundle: Bundle, message_bytes: int) -> Iterator[Bundle]:
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


# -- to the node ---------------------------------------------------------------------------


class Gathered(Send, frozen=True, gc=False):
    """Messages that were sent one by one (SNDE) and arrived together, as one bundle."""

    def singly(self) -> list[Send]:
        return [Send(self.group, Bundle.of(message)) for message in self.bundle]


def check_mark(conference: int, kind: int) -> None:
    whole("conference", conference, 0, NUMBER_MAX)
    whole("kind", kind, 0, NUMBER_MAX)


def send_packet(send: Send) -> bytes:
    """SNDR or SNDO: i64 tag · batch.  SNDD: i64 tag · u8 count and the names · batch.

    SNDC: i64 tag · u32 conference · u32 kind · u8 recorders · u8 count and names · batch; SNDU is
    the same for a unit.
    """
    names = [_short(name_bytes("to", name)) for name in send.to or ()]
    if len(names) > NAME_BYTES or (send.to is not None and not names):
        raise ConfigError("to", f"{len(names)} names", f"1 to {NAME_BYTES} names")
    if send.bundle.marks or send.recorders or send.unit:
        conference, kind, _ = send.bundle.runs()[0]
        check_mark(conference, kind)
        whole("recorders", send.recorders, 0, MEMBERS)
        command = "SNDU" if send.unit else "SNDC"
        start = _MARKED_SEND.pack(send.tag, conference, kind, send.recorders, len(names))
    elif names:
        command, start = "SNDD", _NUMBER.pack(send.tag) + bytes((len(names),))
    else:
        command, start = "SNDO" if send.someone else "SNDR", _NUMBER.pack(send.tag)
    return packet(command, send.group, b"".join([start, *names, _batch(send.bundle)]))


def read_send(incoming: Packet, message_bytes: int = MESSAGE_BYTES_MOST) -> Send:
    group, body, command = incoming.group, incoming.message, incoming.command
    if command == "SNDS":
        return Send(group, Bundle.of(body), someone=True)
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
    return Send(group, marked, tag, to, command == "SNDO", recorders, command == "SNDU")


def from_packet(group: str, since: Since) -> bytes:
    """FROM: i64 seq, i64 time if there is one or a history follows, id of the history."""
    if since.time or since.history:
        place = _PLACE.pack(since.seq, since.time) + since.history.encode()
    else:
        place = _NUMBER.pack(since.seq)
    return packet("FROM", group, place)


def read_from(incoming: Packet) -> Since:
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
        return Since(seq, time, raw.decode())
    except UnicodeDecodeError:
        raise MalformedPdu(BAD_BODY, "FROM with a history that is not UTF-8") from None


# -- to the application --------------------------------------------------------------------


def batch_packets(batch: Batch, extended: bool, units: bool, largest: int) -> bytes:
    """A delivery, as an application hears of it that knows the `extended` commands, and `units`."""
    if not extended:
        return plain_packets("RCVE", batch.group, batch.bundle)
    if batch.unit == UNIT:
        if units:
            return received_packet(batch)
        conference, kind, _ = batch.bundle.runs()[0]
        pieces = [Bundle.of(message).marked(conference, kind) for message in batch.bundle]
        return b"".join(
            received_packet(structs.replace(batch, bundle=piece, unit=WHOLE)) for piece in pieces
        )
    parts = []
    seq = batch.seq
    for part in portions(batch.bundle, largest):
        if part is batch.bundle:  # as nearly all are
            return received_packet(batch)
        parts.append(received_packet(structs.replace(batch, seq=seq, bundle=part)))
        seq += len(part) if seq >= 0 else 0
    return b"".join(parts)


def received_packet(batch: Batch) -> bytes:
    """RCVX: i64 seq · i64 time · u8 size and sender · batch.  RCVC: with u32 conference · u32 kind
    behind the time; RCVU is the same for a unit, whose `seq` is that of its last message."""
    unit = batch.unit == UNIT
    if batch.bundle.marks or unit:
        command = "RCVU" if unit else "RCVC"
        place = _MARKED_PLACE.pack(batch.seq, batch.time, *batch.bundle.runs()[0][:2])
    else:
        command, place = "RCVX", _PLACE.pack(batch.seq, batch.time)
    sender = _short(batch.sender.encode()[:NAME_BYTES])
    return packet(command, batch.group, place + sender + _batch(batch.bundle))


def read_received(incoming: Packet, history: str = "") -> Batch:
    """Messages of that history."""
    body, conference, kind = incoming.message, 0, 0
    if incoming.command == "RCVX":
        (seq, time), at = unpack(_PLACE, body, 0), _PLACE.size
    else:
        (seq, time, conference, kind), at = unpack(_MARKED_PLACE, body, 0), _MARKED_PLACE.size
    sender, at = _read_short(body, at, named=False)
    bundle = _read_batch(body, at).marked(conference, kind)
    unit = UNIT if incoming.command == "RCVU" else WHOLE
    return Batch(incoming.group, seq, sender, time, bundle, unit, history)


def fail_packet(group: str, tag: int, flags: int, reason: str) -> bytes:
    """FAIL: i64 tag · u8 flags · reason."""
    return packet("FAIL", group, _FAIL.pack(tag, flags) + reason.encode())


def read_failure(incoming: Packet) -> tuple[Refusal, int]:
    """What is refused, and the flags."""
    tag, flags = unpack(_FAIL, incoming.message, 0)
    reason = incoming.message[_FAIL.size :].decode(errors="replace")
    return Refusal(incoming.group, tag, reason, bool(flags & INDETERMINATE)), flags


def receipt_packet(receipt: Receipt, given_up: bool = False, level: bool = False) -> bytes:
    """RCPT: i64 tag · i64 seq · i64 time, then, unless there is nothing more, the names that were
    `given_up`: u16 how many, and each with its length (u8) before it; then i64 L.  Names and
    `level` are for who has asked for them."""
    body = _RECEIPT.pack(receipt.tag, receipt.seq, receipt.time)
    lost = receipt.given_up[:GIVEN_UP_MAX] if given_up else ()
    if lost or level:
        names = [_short(name.encode()[:NAME_BYTES]) for name in lost]
        body += _COUNT.pack(len(names)) + b"".join(names)
    if level:
        body += _NUMBER.pack(receipt.resilience)
    return packet("RCPT", receipt.group, body)


def read_receipt(incoming: Packet) -> Receipt:
    group, body = incoming.group, incoming.message
    tag, seq, time = unpack(_RECEIPT, body, 0)
    at = _RECEIPT.size
    if len(body) == at:
        return Receipt(group, tag, seq, time)
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
    return Receipt(group, tag, seq, time, tuple(names), level)


def told_packet(command: str, told: View | Missed) -> bytes:
    """VIEW or MISS: a JSON object."""
    content = msgspec.to_builtins(told)
    return json_packet(command, content.pop("group"), content)
