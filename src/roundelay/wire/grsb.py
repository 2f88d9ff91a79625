"""Which bytes the PDUs of GRSB have (PROTOCOLS §6.3); `layouts` gives them their protocol number.

Positions, epochs and dates have 8 bytes, other numbers 4, sites 2.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from roundelay.core.errors import MalformedPdu
from roundelay.core.grsb import pdu
from roundelay.wire.body import Body
from roundelay.wire.fields import (
    BAD_VALUE,
    S63,
    SHORT_BODY,
    TOO_MANY,
    U8,
    Members,
    Nested,
    Numbers,
    Pairs,
    Part,
    Row,
    Vector,
    boolean,
    choice,
    ident,
    number,
    stamp,
)
from roundelay.wire.payload import Payload

TICKET_MAX: Final = 1024
"""Bytes of a ticket."""


class Octets(Part):
    """A byte string: u32 length, then the bytes."""

    __slots__ = ("_meaning", "_most")

    def __init__(self, name: str, most: int, meaning: str) -> None:
        super().__init__((name,), 4)
        self._most = most
        self._meaning = meaning

    def write(self, owner: Any, out: list[bytes]) -> None:
        data: bytes = getattr(owner, self.names[0])
        if len(data) > self._most:
            raise MalformedPdu(TOO_MANY, f"{len(data)} bytes, at most {self._most}")
        out.append(len(data).to_bytes(4, "big") + data)

    def read(self, data: bytes, pos: int, end: int, values: list[Any]) -> int:
        start = pos + 4
        if start > end:
            raise MalformedPdu(SHORT_BODY)
        size = int.from_bytes(data[pos:start], "big")
        if size > self._most:
            raise MalformedPdu(TOO_MANY, f"{size} bytes, at most {self._most}")
        if start + size > end:
            raise MalformedPdu(SHORT_BODY, f"{size} bytes")
        values.append(data[start : start + size])
        return start + size

    def rows(self) -> Iterator[Row]:
        yield Row(self.names[0], "u32 length, bytes", self._meaning)


class Ranges(Pairs):
    """Half-open ranges of positions."""

    __slots__ = ()

    def __init__(self, name: str, meaning: str) -> None:
        super().__init__(name, "qq", "u8 count, (u64, u64) each", meaning)

    def check(self, pairs: tuple[Any, ...]) -> None:
        for lo, hi in pairs:
            if not 0 <= lo < hi <= S63:
                raise MalformedPdu(BAD_VALUE, f"{self.names[0]}: from {lo} up to {hi}")


MESSAGE: Final = Body(
    pdu.Message,
    stamp("epoch", "reign in which it got its position"),
    stamp("gseq", "position of its first application message"),
    stamp("time", "µs since 1970, by the retransmitter"),
    ident("sender", "user that submitted it"),
    number("inc", "which start of the sender"),
    number("sseq", "its number among the sender's submissions"),
    number("conference", "conference"),
    choice("mtype", 0, pdu.ABORT, "0 single, 1 start, 2 middle, 3 end, 4 abort record"),
    number("gid", "unit of start, middle and end"),
    number("kind", "the application's own"),
    Payload("bundle"),
)

COUNTER: Final = Body(
    pdu.Counter,
    ident("sender", "user"),
    number("inc", "its last start"),
    number("sseq", "the number it may use next"),
    stamp("gseq", "position of its last message"),
    boolean("units", "1: it has sent units since that start"),
)

STATE: Final = Body(
    pdu.State,
    stamp("safe", "everything below is with the recorders"),
    stamp("top", "next position"),
    stamp("time", "date last given"),
    number("page", "which page this is"),
    number("pages", "of how many"),
    Vector("counters", COUNTER, "senders"),
)

STEP: Final = choice("step", pdu.PREPARE, pdu.REJOIN, "1 prepare, 2 install, 3 accept, 4 rejoin")

PDUS: Final[tuple[tuple[int, str, Body], ...]] = (
    (
        1,
        "SUBMIT",
        Body(
            pdu.Submit,
            number("inc", "which start of the sender"),
            number("sseq", "number of the submission since then"),
            number("conference", "conference"),
            choice("mtype", 0, pdu.END, "0 single, 1 start, 2 middle, 3 end"),
            number("gid", "unit of start, middle and end"),
            number("kind", "the application's own"),
            Octets("ticket", TICKET_MAX, "for the Security Controller"),
            Payload("bundle"),
        ),
    ),
    (
        2,
        "SUBMIT_ACK",
        Body(
            pdu.SubmitAck,
            number("inc", "as in the submission"),
            number("sseq", "as in the submission"),
            choice("status", pdu.STABLE, pdu.REFUSED, "0 stable, 1 refused"),
            stamp("gseq", "its position"),
        ),
    ),
    (
        3,
        "BCAST",
        Body(
            pdu.Bcast, Nested("message", MESSAGE), stamp("acked", "everything below is stable")
        ),
    ),
    (
        4,
        "DA_ACK",
        Body(
            pdu.DaAck,
            stamp("epoch", "reign"),
            stamp("gseq", "the acknowledger has everything below"),
            stamp("safe", "the recorders have everything below"),
            Members("waits", "recorders without which there is no more room"),
        ),
    ),
    (
        5,
        "ALIVE",
        Body(
            pdu.Alive,
            stamp("epoch", "reign"),
            stamp("start", "its first position"),
            stamp("top", "next position"),
            stamp("acked", "everything below is stable"),
            stamp("recorded", "everything below is with the recorders"),
            stamp("time", "µs since 1970"),
            choice("mode", pdu.DUAL, pdu.ONLY_B, "0 two lines, 1 line A alone, 2 line B alone"),
            ident("da", "acknowledger"),
            Members("waits", "sites without which nothing gets a place"),
        ),
    ),
    (
        6,
        "RECOVER",
        Body(
            pdu.Recover,
            Ranges("ranges", "positions wanted: first, one past last"),
            stamp("epoch", "reign, or attempt at one, that asks; 0: a recorder"),
        ),
    ),
    (
        7,
        "RECOVERED",
        Body(
            pdu.Recovered,
            stamp("lo", "first position of the answer"),
            stamp("hi", "one past its last; equal to lo: nothing is held from there on"),
            Vector("messages", MESSAGE, "the message; none: not held"),
            stamp("epoch", "as in the request"),
        ),
    ),
    (8, "POLL", Body(pdu.Poll, stamp("upto", "is everything below recorded?"))),
    (9, "POLL_OK", Body(pdu.PollOk, stamp("upto", "everything below is recorded"))),
    (10, "SLOW", Body(pdu.Slow, choice("level", 0, U8, "0 at ease, else how far behind"))),
    (
        11,
        "REPLAY_REQ",
        Body(
            pdu.ReplayReq,
            number("request", "number of the request; its low byte names the stream"),
            stamp("since", "first position"),
            stamp("since_time", "and not older than this, µs since 1970; 0: any"),
            stamp("until", "one past the last position"),
            Numbers("conferences", "only these; none: all"),
            Members("senders", "only these; none: all"),
            Numbers("kinds", "only these; none: all"),
            number("credit", "messages at most"),
        ),
    ),
    (
        12,
        "REPLAY_DATA",
        Body(
            pdu.ReplayData,
            number("request", "as in the request"),
            stamp("since", "nothing matches from here up to the message"),
            Nested("message", MESSAGE),
        ),
    ),
    (
        13,
        "REPLAY_END",
        Body(
            pdu.ReplayEnd,
            number("request", "as in the request"),
            stamp("since", "nothing matches from here …"),
            stamp("next", "… up to here"),
            choice(
                "reason", pdu.DONE, pdu.GAP,
                "0 no more, 1 credit; not here: 2 not recorded, 3 gap",
            ),
        ),
    ),
    (
        14,
        "TAKEOVER",
        Body(
            pdu.Takeover,
            STEP,
            stamp("epoch", "reign to be"),
            ident("cr", "its retransmitter"),
            ident("da", "its acknowledger"),
            Nested("state", STATE),
        ),
    ),
    (
        15,
        "GRANT",
        Body(
            pdu.Grant,
            STEP,
            stamp("epoch", "reign to be"),
            stamp("last_epoch", "last reign accepted here"),
            ident("last_cr", "its retransmitter"),
            ident("last_da", "its acknowledger"),
            choice(
                "whose", pdu.BLANK, pdu.OF_RECORDER,
                "state of: 0 nobody, 1 acknowledger, 2 retransmitter, 3 recorder",
            ),
            Nested("state", STATE),
        ),
    ),
    (
        16,
        "STALE",
        Body(
            pdu.Stale,
            stamp("epoch", "highest reign known"),
            ident("cr", "retransmitter of the reign that has begun"),
        ),
    ),
)  # fmt: skip
