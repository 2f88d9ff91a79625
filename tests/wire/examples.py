"""One PDU of each type, for the documentation and for tests that go through them all.

`python -m tests.wire.examples` (with the package installed) writes the generated half of
docs/wire.md anew.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from textwrap import wrap
from typing import Any

from roundelay.core.bundle import NOTHING, Bundle
from roundelay.core.cluster.pdu import (
    Dt,
    Null,
    Retx,
    Rst,
    SpoDt,
    SpoNull,
    SpoRetx,
    SpoRst,
    SpoStat,
    Stat,
    ToDt,
    ToNull,
    ToRetx,
    ToRst,
    ToStat,
)
from roundelay.core.engine import Pdu
from roundelay.core.fields import (
    Bundled,
    CounterVector,
    Field,
    Flag,
    HistoryRecord,
    Integer,
    Kind,
    ListVersion,
    MemberIds,
    Nested,
    NumberVector,
    Octets,
    RangeVector,
    RankSet,
    Truth,
    Vector,
    fields_of,
)
from roundelay.core.grsb import pdu as grsb
from roundelay.core.positive_ack import PaAck, PaB
from roundelay.core.token.pdu import (
    DATA,
    NO_HISTORY,
    NO_LIST,
    NULL,
    PENDING,
    WANT_ACK,
    Abort,
    Ack,
    AckRun,
    B,
    Confirm,
    Entered,
    Entry,
    Forked,
    Invite,
    Mark,
    NewTl,
    NewToken,
    RecoverData,
    RecoverReq,
    RetxAck,
    RetxBulk,
    RetxMsg,
    RetxReq,
    TlHint,
    Vote1,
    Vote2,
)
from roundelay.core.wide import pdu as wide
from roundelay.wire.codec import encode, group_id
from roundelay.wire.compiler import plan_of
from roundelay.wire.layouts import LAYOUTS, Layout

TL = (7, 2)
V = (8, 0)
MESSAGE = B(TL, 1, 41, Bundle.of(b"hi", b"all"))
STAMPED = Ack(TL, 300, DATA, 1, 41, 2, 0)
RECORD = grsb.Message(
    6, 300, 1_700_000_000_000_000, 4, 3, 12, 7, grsb.SINGLE, 0, 2, Bundle.of(b"hi")
)
SENDERS = grsb.State(290, 301, 1_700_000_000_000_000, 0, 1, (grsb.Counter(4, 3, 13, 300, False),))

EXAMPLES: tuple[Pdu, ...] = (
    MESSAGE,
    STAMPED,
    Confirm(TL, 300, 0, 300),
    RetxReq(TL, WANT_ACK, 297, 299, 0, 0),
    RetxAck(STAMPED),
    RetxMsg(MESSAGE),
    TlHint(TL),
    RetxBulk((Entry(STAMPED, MESSAGE.bundle, 950), Entry(Ack(TL, 301, NULL, 0, 0, 0, 1)))),
    AckRun(TL, 300, 2, 0, ((1, 41), (0, 12))),
    Invite(V, 76),
    Vote1(
        V,
        True,
        TL,
        (0, 1, 2),
        301,
        0,
        True,
        False,
        77,
        V,
        NO_HISTORY,
        0,
        76,
        (Entered(0, TL, 75), Entered(2, TL, 74)),
    ),
    NewTl(V, (0, 1), 301, 0, TL, (77, 78)),
    Vote2(V, PENDING, 76),
    NewToken(V),
    Abort(V),
    RecoverReq(V, 299, (Mark(Ack(TL, 298, DATA, 1, 40, 2, 0), 0x1234),)),
    RecoverData(
        V,
        (
            Entry(Ack(TL, 299, NULL, 2, 0, 1, 2), Bundle((), b""), 950),
            Entry(STAMPED, MESSAGE.bundle, 950),
        ),
        300,
        299,
        ((0, 12), (1, 41)),
        950,
    ),
    Forked(V, 900, 949),
    PaB(1, 41, Bundle.of(b"hi"), 40),
    PaAck(1, 41, 2),
    ToDt(1, 2, 7, (5, 6, 7), 500, Bundle.of(b"hi")),
    ToNull(1, 0, 5, (5, 6, 8), 499, NOTHING, True),
    ToRetx(1, 0, 2, 6, 7),
    ToStat(1, 0, 6, (6, 6, 6), (6, 6, 8), (6, 6, 8), 499, True),
    ToRst(2, 1, (5, 7, 7), 0b011, 0b001),
    Dt(0, 2, 7, (5, 6, 7), 500, Bundle.of(b"hi")),
    Null(0, 0, 5, (5, 6, 8), 499, NOTHING, False),
    Retx(0, 0, 2, 6, 7),
    Stat(0, 0, 6, (6, 6, 6), (6, 6, 8), (6, 6, 8), 499, False),
    Rst(1, 1, (1, 1, 1), 0b111, 0b010),
    SpoDt(0, 2, 7, (5, 6, 7), 500, Bundle.of(b"hi"), 0b011, (3, 4, 1)),
    SpoNull(0, 0, 5, (5, 6, 8), 499, NOTHING, 0b110, (1, 2, 2)),
    SpoRetx(0, 0, 2, 2, 2),
    SpoStat(0, 0, 6, (1, 3, 3), (6, 6, 8), (1, 2, 4), 499, True),
    SpoRst(1, 1, (1, 1, 1), 0b111, 0b111),
    grsb.Submit(3, 12, 7, grsb.SINGLE, 0, 2, b"", Bundle.of(b"hi")),
    grsb.SubmitAck(3, 12, grsb.STABLE, 300),
    grsb.Bcast(RECORD, 300),
    grsb.DaAck(6, 301, 290),
    grsb.Alive(6, 250, 301, 301, 290, 1_700_000_000_500_000, grsb.DUAL, 2),
    grsb.Recover(((290, 293), (299, 300))),
    grsb.Recovered(300, 301, (RECORD,)),
    grsb.Poll(300),
    grsb.PollOk(299),
    grsb.Slow(2),
    grsb.ReplayReq(256, 100, 0, 300, (7,), (4,), (), 32),
    grsb.ReplayData(256, 100, RECORD),
    grsb.ReplayEnd(256, 301, 310, grsb.CREDIT),
    grsb.Takeover(grsb.INSTALL, 13, 1, 3, SENDERS),
    grsb.Grant(grsb.PREPARE, 13, 6, 0, 2, grsb.OF_ACKNOWLEDGER, SENDERS),
    grsb.Stale(13, 1),
    wide.Up(2, 4, 3, 12, 7, grsb.SINGLE, 0, 2, Bundle.of(b"hi")),
    wide.AckGcr(2, 4, 3, 12, 300, 6, 1_700_000_000_000_000, 301),
    wide.Gbcast(2, RECORD, 301),
    wide.AckLcr(3, 9, 301, 290),
    wide.Galive(6, 301, 301, 290, 280),
    wide.LsUp(14, 1, 0, 7, grsb.SINGLE, 0, 2, Bundle.of(b"hi"), 0, (14, 12)),
    wide.LsDown(2, RECORD),
    wide.Response(300, 301),
    wide.LsAck(14, 1, 0, 300, (14, 12)),
    wide.LsAsk(300, (14, 12)),
    wide.LsData(2, RECORD, (14,)),
)

CORNERS: tuple[Pdu, ...] = (
    Confirm((0, 0), -1, 0, -1),  # nothing stamped yet
    Vote1(V, False, NO_LIST, (), 0, -1, False, True, 2**32 - 1, NO_LIST),  # a new machine
    NewTl(V, (4,), 0, 4, NO_LIST, ()),
    RecoverData(V, (), 0, 0, (), 0),
    B(TL, 65534, 2**32 - 1, Bundle((), b"")),
    B((2**32 - 2, 65534), 0, 0, Bundle.of(b"", b"x", b"")),
    Ack(TL, 2**63 - 1, NULL, 0, 0, 65534, 65534),
    PaB(0, 2**63 - 1, Bundle.of(bytes(1200)), 2**63 - 1),
)

PAGE = Path(__file__).parents[2] / "docs" / "wire.md"
BEGIN = "<!-- from here on written by tests/wire/examples.py -->"
GROUP = "orders"
SENDER = 2
CHAN_SEQ = 5


def packet(pdu: Pdu) -> bytes:
    return encode(pdu, sender=SENDER, group_id=group_id(GROUP), chan_seq=CHAN_SEQ)


def shown(pdu: Pdu) -> str:
    """The PDU as Python, broken into lines where it is long."""
    indent = " " * (len(type(pdu).__name__) + 1)
    return "\n".join(wrap(repr(pdu), 100, subsequent_indent=indent, break_on_hyphens=False))


Row = tuple[str, str, str]
"""Name, bytes and meaning of a field."""

BYTES: dict[type[Kind], str] = {
    Truth: "u8",
    ListVersion: "u32, u16",
    HistoryRecord: "u64, u64, u64",
    MemberIds: "u16 count, u16 each",
    RankSet: "u16 count, u16 each",
    NumberVector: "u8 count, u32 each",
    CounterVector: "u8 count, (u16, u32) each",
    RangeVector: "u8 count, (u64, u64) each",
    Octets: "u32 length, bytes",
}


def rows(cls: type[Any], prefix: str = "") -> Iterator[Row]:
    """The table of a class: what `core.fields` says of its fields."""
    flags: list[Field] = []
    for field in fields_of(cls):
        name, kind = prefix + field.name, field.kind
        if isinstance(kind, Flag):
            flags.append(field)
            continue
        if flags:
            names = ", ".join(flag.name for flag in flags)
            yield names, "u8", ", ".join(f"bit {at} {x.meaning}" for at, x in enumerate(flags))
            flags = []
        if isinstance(kind, Nested):
            yield from rows(kind.cls, f"{name}.")
        elif isinstance(kind, Vector):
            yield name, "u8 count", f"{field.meaning}, each:"
            yield from rows(kind.cls, f"{name}[].")
        elif isinstance(kind, Bundled):
            meaning = "bytes of a size: 0 (all messages have one size), 2, 4; + 128: marks follow"
            yield f"{name}: messages", "u16 count", "application messages"
            yield f"{name}: width", "u8", meaning
            yield f"{name}: sizes", "that many bytes each", "length of each message, in order"
            yield f"{name}: data", "u32 length, bytes", "the messages end to end"
            meaning = "with marks: conference, kind, how many messages"
            yield f"{name}: marks", "u16 runs; u32, u32, u16 each", meaning
        elif isinstance(kind, Integer):
            none = {16: "; all ones: nobody", 64: "; all ones: none yet"} if kind.least < 0 else {}
            yield name, f"u{kind.bits}", field.meaning + none.get(kind.bits, "")
        else:
            meaning = field.meaning or "list version: number, site"
            if isinstance(kind, HistoryRecord):
                meaning += ": id, id of the one before, position; 0: none"
            elif isinstance(kind, ListVersion) and kind.or_none:
                meaning += "; all ones: none"
            yield name, BYTES[type(kind)], meaning


def section(layout: Layout, pdu: Pdu) -> str:
    data = packet(pdu)
    body = data[20:-4]
    table = list(rows(layout.pdu))
    printed = "\n".join(f"| `{name}` | {wire} | {meaning} |" for name, wire, meaning in table)
    varies = any("count" in wire for _, wire, _ in table)
    lines = [f"head  {data[:20].hex(' ')}"]
    for start in range(0, len(body), 16):
        lines.append(f"{'body' if start == 0 else '':6}{body[start : start + 16].hex(' ')}")
    lines.append(f"crc   {data[-4:].hex(' ')}")
    code = "\n".join(lines)
    flag = " Flag bit 0 is always set." if layout.flags else ""
    return (
        f"### {layout.name}: type {layout.type}\n\n"
        f"Body: {plan_of(layout.pdu).least} bytes{' or more' if varies else ''}.{flag}\n\n"
        f"| field | bytes | meaning |\n|---|---|---|\n{printed}\n\n"
        f"```python\n{shown(pdu)}\n```\n\n```\n{code}\n```\n"
    )


def generated() -> str:
    titles = {
        1: "Token protocol (protocol 1)",
        2: "Positive acknowledgement (protocol 2)",
        3: "Cluster protocol TO (protocol 3)",
        4: "Cluster protocol PO (protocol 4)",
        5: "Cluster protocol SPO (protocol 5)",
        6: "GRSB (protocol 6)",
        7: "The hierarchy (protocol 7)",
    }
    parts = []
    proto = 0
    for layout, pdu in zip(LAYOUTS, EXAMPLES, strict=True):
        if layout.proto != proto:
            proto = layout.proto
            parts.append(f"## {titles[proto]}\n")
        parts.append(section(layout, pdu))
    return "\n".join(parts)


def written() -> str:
    """The page as it ought to be: its own words, then the generated half."""
    words, _, _ = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    return f"{words}{BEGIN}\n\n{generated()}"


if __name__ == "__main__":
    PAGE.write_text(written(), encoding="utf-8")
