"""Which bytes the PDUs of the hierarchy have (PROTOCOLS §7.2), besides those of GRSB it uses.

Positions, epochs and dates have 8 bytes, other numbers 4, sites and networks 2.
"""

from __future__ import annotations

from typing import Final

from roundelay.core.grsb import pdu as grsb
from roundelay.core.wide import pdu
from roundelay.wire.body import Body
from roundelay.wire.fields import (
    U8,
    Members,
    Nested,
    Scalar,
    choice,
    ident,
    number,
    stamp,
)
from roundelay.wire.grsb import MESSAGE
from roundelay.wire.payload import Payload

SUBMISSION: Final[tuple[Scalar | Payload, ...]] = (
    ident("origin", "who submitted it"),
    number("inc", "which start of the origin"),
    number("sseq", "number of the submission since then"),
    number("conference", "conference"),
    choice("mtype", 0, grsb.END, "0 single, 1 start, 2 middle, 3 end"),
    number("gid", "unit of start, middle and end"),
    number("kind", "the application's own"),
    Payload("bundle"),
)

NET: Final = ident("net", "SrcNetID: the network that signed it; 0: none")
PATH: Final = Members("path", "sites it came through, or goes back through")

PDUS: Final[tuple[tuple[int, str, Body], ...]] = (
    (32, "UP", Body(pdu.Up, NET, *SUBMISSION)),
    (
        33,
        "ACK_GCR",
        Body(
            pdu.AckGcr,
            NET,
            ident("origin", "as in UP"),
            number("inc", "as in UP"),
            number("sseq", "as in UP"),
            stamp("gseq", "its position"),
            stamp("epoch", "reign in which it got its position"),
            stamp("time", "µs since 1970; 0: it has had it for long, fetch it"),
            stamp("acked", "everything below may be broadcast"),
        ),
    ),
    (
        34,
        "GBCAST",
        Body(
            pdu.Gbcast,
            NET,
            Nested("message", MESSAGE),
            stamp("acked", "everything below may be broadcast"),
        ),
    ),
    (
        35,
        "ACK_LCR",
        Body(
            pdu.AckLcr,
            ident("net", "network"),
            ident("lcr", "its retransmitter"),
            stamp("acked", "its acknowledger has everything below"),
            stamp("safe", "its recorders have everything below"),
        ),
    ),
    (
        37,
        "GALIVE",
        Body(
            pdu.Galive,
            stamp("epoch", "reign of the GCR"),
            stamp("acked", "everything below may be broadcast"),
            stamp("net_acked", "the last ACK_LCR of the addressee's network: acked"),
            stamp("net_safe", "the same: safe"),
            stamp("everywhere", "all networks have recorded everything below"),
            Members("waits", "recorders without which nothing gets a place"),
        ),
    ),
    (
        40,
        "LS_UP",
        Body(pdu.LsUp, *SUBMISSION, choice("attempt", 0, U8, "repetitions before"), PATH),
    ),
    (41, "LS_DOWN", Body(pdu.LsDown, NET, Nested("message", MESSAGE))),
    (
        42,
        "RESPONSE",
        Body(
            pdu.Response,
            stamp("gseq", "the message that is here"),
            stamp("next", "everything below is here"),
        ),
    ),
    (
        43,
        "LS_ACK",
        Body(
            pdu.LsAck,
            ident("origin", "as in LS_UP"),
            number("inc", "as in LS_UP"),
            number("sseq", "as in LS_UP"),
            stamp("gseq", "its position"),
            PATH,
        ),
    ),
    (44, "LS_ASK", Body(pdu.LsAsk, stamp("since", "first position wanted"), PATH)),
    (45, "LS_DATA", Body(pdu.LsData, NET, Nested("message", MESSAGE), PATH)),
)
