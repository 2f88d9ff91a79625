"""The PDUs that carry nearly all traffic of a token group, read and written at one go.

B, ACK, ACK_RUN and CONFIRM, as `layouts` has them: the envelope and the fields of the body in one
`struct`, but for the stamps of a run.
Both directions do what the general way does, in less time, or return None and leave it to that:
for what is rare (a table of sizes, flags), and for what is wrong, which it has words for.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final

from roundelay.core.bundle import Bundle
from roundelay.core.engine import Pdu
from roundelay.core.token.pdu import Ack, AckRun, B, Confirm
from roundelay.wire.fields import S63, U16, U32
from roundelay.wire.layouts import CM

Found = tuple[int, Pdu, int, int, int]
"""(group, PDU, sender, chan_seq, life)"""

HEAD: Final = b"\x10\x02" + bytes((CM,))
"""Kind, version and protocol; the PDU type, no flags and line A follow."""
HEADS: Final = {
    B: HEAD + b"\1\0\0",
    Ack: HEAD + b"\2\0\0",
    Confirm: HEAD + b"\3\0\0",
    AckRun: HEAD + b"\x09\0\0",
}
HEAD_SIZE: Final = 6
ENVELOPE: Final = "HIII"  # sender, group, chan_seq, life
CHECKSUM: Final = 4

B_FIELDS: Final = struct.Struct(f">6s{ENVELOPE}IHHIHBI")
ACK_FIELDS: Final = struct.Struct(f">6s{ENVELOPE}IHqBHIHH")
CONFIRM_FIELDS: Final = struct.Struct(f">6s{ENVELOPE}IHqHq")
RUN_FIELDS: Final = struct.Struct(f">6s{ENVELOPE}IHqHHB")
STAMP: Final = struct.Struct(">HI")


def _read_b(data: bytes) -> Found | None:
    if len(data) < B_FIELDS.size:
        return None
    _, sender, group, chan_seq, life, version, site, s, n, count, width, length = (
        B_FIELDS.unpack_from(data)
    )
    if (
        width or not count or not length or length % count
        or len(data) != B_FIELDS.size + length + CHECKSUM
        or version == U32 or U16 in (sender, site, s)
    ):  # fmt: skip
        return None
    messages = data[B_FIELDS.size : -CHECKSUM]
    pdu = B((version, site), s, n, Bundle((length // count,) * count, messages))
    return group, pdu, sender, chan_seq, life


def _read_ack(data: bytes) -> Found | None:
    if len(data) != ACK_FIELDS.size + CHECKSUM:
        return None
    _, sender, group, chan_seq, life, version, site, ts, kind, s, n, by, follower = (
        ACK_FIELDS.unpack_from(data)
    )
    if ts < 0 or kind > 1 or version == U32 or U16 in (sender, site, s, by, follower):
        return None
    return group, Ack((version, site), ts, kind, s, n, by, follower), sender, chan_seq, life


def _read_confirm(data: bytes) -> Found | None:
    if len(data) != CONFIRM_FIELDS.size + CHECKSUM:
        return None
    _, sender, group, chan_seq, life, version, site, ts, by, top = CONFIRM_FIELDS.unpack_from(data)
    if ts < -1 or top < -1 or version == U32 or U16 in (sender, site, by):
        return None
    return group, Confirm((version, site), ts, by, top), sender, chan_seq, life


def _read_run(data: bytes) -> Found | None:
    if len(data) < RUN_FIELDS.size + CHECKSUM:
        return None
    _, sender, group, chan_seq, life, version, site, ts, by, follower, count = (
        RUN_FIELDS.unpack_from(data)
    )
    if len(data) != RUN_FIELDS.size + count * STAMP.size + CHECKSUM:
        return None
    stamps = tuple(STAMP.iter_unpack(data[RUN_FIELDS.size : -CHECKSUM]))
    sources = {s for s, _ in stamps}
    if (
        ts < 0 or version == U32 or U16 in (sender, site, by, follower)
        or U16 in sources or len(sources) != count
    ):  # fmt: skip
        return None
    return group, AckRun((version, site), ts, by, follower, stamps), sender, chan_seq, life


READERS: Final[dict[bytes, Callable[[bytes], Found | None]]] = {
    HEADS[B]: _read_b,
    HEADS[Ack]: _read_ack,
    HEADS[Confirm]: _read_confirm,
    HEADS[AckRun]: _read_run,
}


def read(data: bytes) -> Found | None:
    """The PDU in `data`, whose checksum is nobody's concern here; None: look closer."""
    reader = READERS.get(data[:HEAD_SIZE])
    return None if reader is None else reader(data)


# -- the other way -------------------------------------------------------------------------


def _write_b(pdu: B, sender: int, group: int, chan_seq: int, life: int) -> bytes | None:
    bundle = pdu.bundle
    version, site = pdu.tl
    sizes, messages = bundle.sizes, bundle.data
    count, length = len(sizes), len(messages)
    # One message, with which most of those start that come one by one; more go the general way.
    if count != 1 or not length or sizes[0] != length or bundle.marks:
        return None
    if sender >= U16 or version >= U32 or site >= U16 or pdu.s >= U16:
        return None
    head = B_FIELDS.pack(
        HEADS[B], sender, group, chan_seq, life, version, site, pdu.s, pdu.n, count, 0, length
    )
    return head + messages


def _write_ack(pdu: Ack, sender: int, group: int, chan_seq: int, life: int) -> bytes | None:
    version, site = pdu.tl
    ts, kind, s, by, follower = pdu.ts, pdu.kind, pdu.s, pdu.by, pdu.next
    if (
        not 0 <= ts <= S63 or kind > 1
        or sender >= U16 or version >= U32 or site >= U16 or s >= U16 or by >= U16
        or follower >= U16
    ):  # fmt: skip
        return None
    return ACK_FIELDS.pack(
        HEADS[Ack], sender, group, chan_seq, life, version, site, ts, kind, s, pdu.n, by, follower
    )


def _write_confirm(pdu: Confirm, sender: int, group: int, chan_seq: int, life: int) -> bytes | None:
    version, site = pdu.tl
    ts, by, top = pdu.ts, pdu.by, pdu.top
    if (
        not -1 <= ts <= S63 or not -1 <= top <= S63
        or sender >= U16 or version >= U32 or site >= U16 or by >= U16
    ):  # fmt: skip
        return None
    return CONFIRM_FIELDS.pack(
        HEADS[Confirm], sender, group, chan_seq, life, version, site, ts, by, top
    )


def _write_run(pdu: AckRun, sender: int, group: int, chan_seq: int, life: int) -> bytes | None:
    version, site = pdu.tl
    ts, by, follower, stamps = pdu.ts, pdu.by, pdu.next, pdu.stamps
    sources = {s for s, _ in stamps}
    if (
        not 0 <= ts <= S63
        or sender >= U16 or version >= U32 or site >= U16 or by >= U16 or follower >= U16
        or U16 in sources or len(sources) != len(stamps)
    ):  # fmt: skip
        return None
    head = RUN_FIELDS.pack(
        HEADS[AckRun], sender, group, chan_seq, life, version, site, ts, by, follower, len(stamps)
    )
    return head + b"".join([STAMP.pack(s, n) for s, n in stamps])


WRITERS: Final[dict[type[Any], Callable[[Any, int, int, int, int], bytes | None]]] = {
    B: _write_b,
    Ack: _write_ack,
    Confirm: _write_confirm,
    AckRun: _write_run,
}


def write(pdu: Pdu, sender: int, group: int, chan_seq: int, life: int) -> bytes | None:
    """The bytes of `pdu` but for the checksum; None: try the general way, or hear why not."""
    writer = WRITERS.get(type(pdu))
    if writer is None:
        return None
    try:
        return writer(pdu, sender, group, chan_seq, life)
    except struct.error:
        return None
