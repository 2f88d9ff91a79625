"""Which bytes each PDU has: one table per protocol, read top to bottom.

A further protocol adds its PDUs as a table below and its table to `LAYOUTS`; nothing else needs to
know.  The types of the token protocol's PDUs are 1–9 in the normal phase, 16–23 in the reformation.
"""

from __future__ import annotations

from typing import Any, Final

from msgspec import Struct

from roundelay.core.cluster.pdu import PO_KINDS, SPO_KINDS, TO_KINDS, Kinds
from roundelay.core.positive_ack import PaAck, PaB
from roundelay.core.token.pdu import (
    DATA,
    NO,
    NULL,
    PENDING,
    WANT_ACK,
    WANT_ENTRIES,
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
from roundelay.wire import grsb, wide
from roundelay.wire.body import Body
from roundelay.wire.fields import (
    Counters,
    Flags,
    Mask,
    Members,
    Nested,
    Numbers,
    Part,
    Scalar,
    Vector,
    boolean,
    choice,
    history,
    ident,
    ident_or_none,
    number,
    stamp,
    stamp_or_none,
    version,
    version_or_none,
)
from roundelay.wire.payload import Payload

# Protocols.
CM: Final = 1  # Chang–Maxemchuk, the token protocol
PA: Final = 2  # positive acknowledgement
TO: Final = 3
PO: Final = 4
SPO: Final = 5
GRSB: Final = 6
HGRSB: Final = 7

# Flags of the envelope.
RETRANSMISSION: Final = 1
POLL: Final = 2
ENCRYPTED: Final = 4


class Layout(Struct, frozen=True):
    """A PDU type: how its envelope announces it, and its body."""

    proto: int
    type: int
    name: str
    body: Body
    flags: int = 0
    """Flags that all PDUs of this type carry."""


B_BODY: Final = Body(
    B,
    version("tl"),
    ident("s", "source"),
    number("n", "number of the message at its source"),
    Payload("bundle"),
)

ACK_BODY: Final = Body(
    Ack,
    version("tl"),
    stamp("ts", "timestamp"),
    choice("kind", NULL, DATA, "0 NULL, 1 data"),
    ident("s", "source of the message"),
    number("n", "its number"),
    ident("by", "token site that issued it"),
    ident("next", "next token site"),
)

ENTERED_BODY: Final = Body(
    Entered,
    ident("site", "a member"),
    version("tl", "list that it was in"),
    number("boot", "its boot number there"),
)

MARK_BODY: Final = Body(
    Mark,
    Nested("ack", ACK_BODY),
    number("crc", "CRC-32 of the message; 0 for a NULL"),
)

ENTRY_BODY: Final = Body(
    Entry,
    Nested("ack", ACK_BODY),
    Payload("bundle"),
    stamp("seq", "position of the first application message"),
)

TOKEN: Final = (
    Layout(CM, 1, "B", B_BODY),
    Layout(CM, 2, "ACK", ACK_BODY),
    Layout(
        CM,
        3,
        "CONFIRM",
        Body(
            Confirm,
            version("tl"),
            stamp_or_none("ts", "the acknowledgement that brought the token"),
            ident("by", "the site that accepted it"),
            stamp_or_none("top", "last timestamp it knows"),
        ),
    ),
    Layout(
        CM,
        4,
        "RETX_REQ",
        Body(
            RetxReq,
            version("tl"),
            choice(
                "what", WANT_ACK, WANT_ENTRIES, "1 acknowledgements, 2 message, 3 both of a range"
            ),
            stamp("ts", "first timestamp wanted, or that of the message"),
            stamp("hi", "last timestamp wanted"),
            ident("s", "source of the message wanted, else 0"),
            number("n", "its number, else 0"),
        ),
    ),
    Layout(CM, 5, "RETX_ACK", Body(RetxAck, Nested("ack", ACK_BODY)), RETRANSMISSION),
    Layout(CM, 6, "RETX_MSG", Body(RetxMsg, Nested("b", B_BODY)), RETRANSMISSION),
    Layout(CM, 7, "TL_HINT", Body(TlHint, version("tl", "list of the sender"))),
    Layout(
        CM,
        8,
        "RETX_BULK",
        Body(
            RetxBulk,
            Vector("entries", ENTRY_BODY, "stamped entries; of a message its bundle may be empty"),
        ),
        RETRANSMISSION,
    ),
    Layout(
        CM,
        9,
        "ACK_RUN",
        Body(
            AckRun,
            version("tl"),
            stamp("ts", "timestamp of the first; the others follow"),
            ident("by", "token site that issued them"),
            ident("next", "next token site, named by the last"),
            Counters("stamps", "source and number of each message"),
        ),
    ),
    Layout(
        CM,
        16,
        "INVITE",
        Body(
            Invite,
            version("v", "new list"),
            number("boot", "random number of this run of the originator"),
        ),
    ),
    Layout(
        CM,
        17,
        "VOTE1",
        Body(
            Vote1,
            version("v", "new list"),
            boolean("yes", "0 no, 1 yes"),
            version_or_none("tl", "the voter's list"),
            Members("members", "members of that list in ring order"),
            stamp("nts", "its next timestamp"),
            ident_or_none("exp", "site expected to issue it"),
            Flags("amnesia", "wiped", meaning="bit 0 forgot uncommitted entries, bit 1 its disk"),
            number("boot", "random number of this run of the voter"),
            version_or_none("max_joined", "highest list it ever joined"),
            history("history", "history of its list"),
            stamp("floor", "position up to which it has a journal"),
            number("inviter", "boot number of the invitation that is answered; 0: none given"),
            Vector("entered", ENTERED_BODY, "the last list that it knows each site in"),
        ),
    ),
    Layout(
        CM,
        18,
        "NEW_TL",
        Body(
            NewTl,
            version("v", "new list"),
            Members("members", "its members in ring order", fewest=1),
            stamp("start_ts", "its first timestamp"),
            ident("nts_site", "its first token site"),
            version_or_none("old", "list it is built on"),
            Numbers("boots", "boot number of each member's vote"),
            history("history", "history that goes on; with start_ts if its position is all ones"),
            stamp("floor", "least position of what is new"),
        ),
    ),
    Layout(
        CM,
        19,
        "VOTE2",
        Body(
            Vote2,
            version("v", "new list"),
            choice("status", NO, PENDING, "0 no, 1 yes, 2 pending"),
            number("inviter", "boot number of the originator; 0: none given"),
        ),
    ),
    Layout(CM, 20, "NEW_TOKEN", Body(NewToken, version("v", "new list"))),
    Layout(CM, 21, "ABORT", Body(Abort, version("v", "list given up"))),
    Layout(
        CM,
        22,
        "RECOVER_REQ",
        Body(
            RecoverReq,
            version("v", "new list"),
            stamp("from_ts", "first timestamp wanted"),
            Vector("marks", MARK_BODY, "of what it has committed, the latest first"),
        ),
    ),
    Layout(
        CM,
        23,
        "RECOVER_DATA",
        Body(
            RecoverData,
            version("v", "new list"),
            Vector("entries", ENTRY_BODY, "stamped entries"),
            stamp("cnts", "next timestamp the sender will commit"),
            stamp("first_available", "oldest timestamp it has"),
            Counters("counters", "next number of each source at first_available"),
            stamp("seq", "position at first_available"),
        ),
    ),
    Layout(
        CM,
        24,
        "FORKED",
        Body(
            Forked,
            version("v", "list at whose announcement it was seen"),
            stamp("lo", "the first position that may differ"),
            stamp("hi", "a position that differs"),
        ),
    ),
)

POSITIVE_ACK: Final = (
    Layout(
        PA,
        1,
        "B",
        Body(
            PaB,
            ident("s", "source"),
            stamp("n", "number of the message at its source"),
            Payload("bundle"),
            stamp("low", "lowest number the source may send again"),
        ),
    ),
    Layout(
        PA,
        2,
        "ACK",
        Body(
            PaAck,
            ident("s", "source of the message"),
            stamp("n", "its number"),
            ident("by", "receiver"),
        ),
    ),
)


def cluster(proto: int, kinds: Kinds) -> tuple[Layout, ...]:
    """The PDUs of TO, PO or SPO: the same fields under each one's number."""
    head: tuple[Scalar | Part, ...] = (
        number("epoch", "incarnation of the cluster"),
        ident("src", "rank of the sender"),
        number("seq", "its number among the sender's PDUs"),
        Numbers("ack", "next number expected from each member"),
        number("buf", "buffers the sender has left"),
        Payload("bundle"),
    )
    data = null = head
    if proto == SPO:
        selective = (
            Mask("dst", "ranks of the destinations"),
            Numbers("pseq", "next partial number for each member"),
        )
        data = null = head + selective
    else:
        null = (*head, boolean("probe", "1: speak up if I lack something of yours"))
    return (
        Layout(proto, 1, "DT", Body(kinds.data, *data)),
        Layout(proto, 2, "NULL", Body(kinds.null, *null)),
        Layout(
            proto,
            3,
            "RETX",
            Body(
                kinds.retx,
                number("epoch", "incarnation of the cluster"),
                ident("by", "rank of the requester"),
                ident("src", "rank of the source"),
                number("lo", "first partial number missing"),
                number("hi", "last one"),
            ),
        ),
        Layout(
            proto,
            4,
            "STAT",
            Body(
                kinds.stat,
                number("epoch", "incarnation of the cluster"),
                ident("src", "rank of the sender"),
                number("seq", "its next number"),
                Numbers("pseq", "its next partial number for each member"),
                Numbers("treq", "next number it expects from each"),
                Numbers("preq", "next partial number it expects from each"),
                number("buf", "buffers it has left"),
                boolean("poll", "1: answer"),
            ),
        ),
        Layout(
            proto,
            5,
            "RST",
            Body(
                kinds.rst,
                number("epoch", "epoch to be opened"),
                ident("src", "rank of the sender"),
                Numbers("vec", "up to where it holds each member's PDUs"),
                Mask("have", "ranks whose vectors it has"),
                Mask("done", "ranks known to have all vectors"),
            ),
        ),
    )


CLUSTER: Final = cluster(TO, TO_KINDS) + cluster(PO, PO_KINDS) + cluster(SPO, SPO_KINDS)

JOURNAL: Final = tuple(Layout(GRSB, number, name, body) for number, name, body in grsb.PDUS)

HIERARCHY: Final = tuple(Layout(HGRSB, number, name, body) for number, name, body in wide.PDUS)

LAYOUTS: Final[tuple[Layout, ...]] = TOKEN + POSITIVE_ACK + CLUSTER + JOURNAL + HIERARCHY
"""Every PDU that has bytes."""

PROTOS: Final = frozenset(layout.proto for layout in LAYOUTS)
BY_TYPE: Final[dict[int, Layout]] = {layout.proto << 8 | layout.type: layout for layout in LAYOUTS}
BY_CLASS: Final[dict[type[Any], Layout]] = {layout.body.cls: layout for layout in LAYOUTS}
