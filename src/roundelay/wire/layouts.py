"""The number and the name of every PDU type; what is in them their classes say (`core.fields`).

A further protocol adds a table below and its table to `LAYOUTS`; nothing else needs to know.  The
types of the token protocol's PDUs are 1–9 in the normal phase, 16–24 in the reformation.
"""

from __future__ import annotations

from typing import Any, Final

from msgspec import Struct

from roundelay.core.cluster.pdu import PO_KINDS, SPO_KINDS, TO_KINDS, Kinds
from roundelay.core.grsb import pdu as grsb
from roundelay.core.positive_ack import PaAck, PaB
from roundelay.core.token import pdu as token
from roundelay.core.wide import pdu as wide
from roundelay.wire.envelope import RETRANSMISSION

# Protocols.
CM: Final = 1  # Chang–Maxemchuk, the token protocol
PA: Final = 2  # positive acknowledgement
TO: Final = 3
PO: Final = 4
SPO: Final = 5
GRSB: Final = 6
HGRSB: Final = 7


PduClass = type[Any]


class Layout(Struct, frozen=True):
    """A PDU type, as its envelope announces it."""

    proto: int
    type: int
    name: str
    pdu: PduClass
    flags: int = 0
    """Flags that all PDUs of this type carry."""


TOKEN: Final = (
    Layout(CM, 1, "B", token.B),
    Layout(CM, 2, "ACK", token.Ack),
    Layout(CM, 3, "CONFIRM", token.Confirm),
    Layout(CM, 4, "RETX_REQ", token.RetxReq),
    Layout(CM, 5, "RETX_ACK", token.RetxAck, RETRANSMISSION),
    Layout(CM, 6, "RETX_MSG", token.RetxMsg, RETRANSMISSION),
    Layout(CM, 7, "TL_HINT", token.TlHint),
    Layout(CM, 8, "RETX_BULK", token.RetxBulk, RETRANSMISSION),
    Layout(CM, 9, "ACK_RUN", token.AckRun),
    Layout(CM, 16, "INVITE", token.Invite),
    Layout(CM, 17, "VOTE1", token.Vote1),
    Layout(CM, 18, "NEW_TL", token.NewTl),
    Layout(CM, 19, "VOTE2", token.Vote2),
    Layout(CM, 20, "NEW_TOKEN", token.NewToken),
    Layout(CM, 21, "ABORT", token.Abort),
    Layout(CM, 22, "RECOVER_REQ", token.RecoverReq),
    Layout(CM, 23, "RECOVER_DATA", token.RecoverData),
    Layout(CM, 24, "FORKED", token.Forked),
)

POSITIVE_ACK: Final = (Layout(PA, 1, "B", PaB), Layout(PA, 2, "ACK", PaAck))


def cluster(proto: int, kinds: Kinds) -> tuple[Layout, ...]:
    """The PDUs of TO, PO or SPO: the same types under each one's number."""
    names = ("DT", "NULL", "RETX", "STAT", "RST")
    return tuple(
        Layout(proto, number, name, pdu)
        for number, (name, pdu) in enumerate(zip(names, kinds, strict=True), 1)
    )


CLUSTER: Final = cluster(TO, TO_KINDS) + cluster(PO, PO_KINDS) + cluster(SPO, SPO_KINDS)

JOURNAL: Final = (
    Layout(GRSB, 1, "SUBMIT", grsb.Submit),
    Layout(GRSB, 2, "SUBMIT_ACK", grsb.SubmitAck),
    Layout(GRSB, 3, "BCAST", grsb.Bcast),
    Layout(GRSB, 4, "DA_ACK", grsb.DaAck),
    Layout(GRSB, 5, "ALIVE", grsb.Alive),
    Layout(GRSB, 6, "RECOVER", grsb.Recover),
    Layout(GRSB, 7, "RECOVERED", grsb.Recovered),
    Layout(GRSB, 8, "POLL", grsb.Poll),
    Layout(GRSB, 9, "POLL_OK", grsb.PollOk),
    Layout(GRSB, 10, "SLOW", grsb.Slow),
    Layout(GRSB, 11, "REPLAY_REQ", grsb.ReplayReq),
    Layout(GRSB, 12, "REPLAY_DATA", grsb.ReplayData),
    Layout(GRSB, 13, "REPLAY_END", grsb.ReplayEnd),
    Layout(GRSB, 14, "TAKEOVER", grsb.Takeover),
    Layout(GRSB, 15, "GRANT", grsb.Grant),
    Layout(GRSB, 16, "STALE", grsb.Stale),
)

HIERARCHY: Final = (
    Layout(HGRSB, 32, "UP", wide.Up),
    Layout(HGRSB, 33, "ACK_GCR", wide.AckGcr),
    Layout(HGRSB, 34, "GBCAST", wide.Gbcast),
    Layout(HGRSB, 35, "ACK_LCR", wide.AckLcr),
    Layout(HGRSB, 37, "GALIVE", wide.Galive),
    Layout(HGRSB, 40, "LS_UP", wide.LsUp),
    Layout(HGRSB, 41, "LS_DOWN", wide.LsDown),
    Layout(HGRSB, 42, "RESPONSE", wide.Response),
    Layout(HGRSB, 43, "LS_ACK", wide.LsAck),
    Layout(HGRSB, 44, "LS_ASK", wide.LsAsk),
    Layout(HGRSB, 45, "LS_DATA", wide.LsData),
)

LAYOUTS: Final[tuple[Layout, ...]] = TOKEN + POSITIVE_ACK + CLUSTER + JOURNAL + HIERARCHY
"""Every PDU that has bytes."""

PROTOS: Final = frozenset(layout.proto for layout in LAYOUTS)
BY_TYPE: Final[dict[int, Layout]] = {layout.proto << 8 | layout.type: layout for layout in LAYOUTS}
BY_CLASS: Final[dict[type[Any], Layout]] = {layout.pdu: layout for layout in LAYOUTS}
