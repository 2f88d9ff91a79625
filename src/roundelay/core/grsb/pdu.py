"""PDUs of GRSB (PROTOCOLS §6.3), and the message that several of them carry.

All marks are exclusive: `acked` = 7 says that everything below position 7 is acknowledged.  A
position (`gseq`) counts application messages, so a bundle of three takes three of them and the
next message begins at its `end`.
"""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Struct, structs

from roundelay.core.bundle import Bundle
from roundelay.core.engine import Pdu
from roundelay.core.fields import (
    Members,
    Number,
    Numbers,
    Octet,
    Octets,
    Ranges,
    Site,
    Stamp,
    choice,
)

LINE_A: Final = 0
"""The local network: everything but broadcasts."""
LINE_B: Final = 1
"""GR-22: the broadcast line."""

# Types of a message (GR-19).
SINGLE: Final = 0
START: Final = 1
MIDDLE: Final = 2
END: Final = 3
ABORT: Final = 4
"""A record of the retransmitter: `sender` has started again, its open units are void."""

# Answers to a submission.
STABLE: Final = 0
REFUSED: Final = 1

# Modes of the lines (GR-24).
DUAL: Final = 0
SINGLE_LINE: Final = 1
"""Line A alone."""
ONLY_B: Final = 2
"""Line B alone."""

# Why a stretch of a replay ends.
DONE: Final = 0  # the recorder has no more, or the request none
CREDIT: Final = 1  # the credit is used up: ask again
NOT_RECORDED: Final = 2  # what comes next is known by its head alone
GAP: Final = 3  # what comes next is missing here

# Steps of a take-over.
PREPARE: Final = 1
INSTALL: Final = 2
ACCEPT: Final = 3
REJOIN: Final = 4
"""Not of a take-over: a member that has lost its disk asks what it may have promised."""

# Whose state a GRANT carries.
BLANK: Final = 0
OF_ACKNOWLEDGER: Final = 1
OF_RETRANSMITTER: Final = 2
OF_RECORDER: Final = 3


WAITS_MAX: Final = 16
"""Sites that a sign of life says are waited for."""

TICKET_MAX: Final = 1024
"""Bytes of a ticket."""

Mtype = Annotated[int, choice(SINGLE, END), "0 single, 1 start, 2 middle, 3 end"]
Step = Annotated[int, choice(PREPARE, REJOIN), "1 prepare, 2 install, 3 accept, 4 rejoin"]


class Message(Struct, frozen=True, gc=False):
    """A message with its place in the order."""

    epoch: Annotated[Stamp, "reign in which it got its position"]
    gseq: Annotated[Stamp, "position of its first application message"]
    time: Annotated[Stamp, "µs since 1970, by the retransmitter"]  # GR-3
    sender: Annotated[Site, "user that submitted it"]
    inc: Annotated[Number, "which start of the sender"]
    sseq: Annotated[Number, "its number among the sender's submissions"]
    conference: Annotated[Number, "conference"]
    mtype: Annotated[
        int, choice(SINGLE, ABORT), "0 single, 1 start, 2 middle, 3 end, 4 abort record"
    ]
    gid: Annotated[Number, "unit of start, middle and end"]
    kind: Annotated[Number, "the application's own"]
    bundle: Bundle

    @property
    def end(self) -> int:
        return self.gseq + len(self.bundle.sizes)

    @property
    def number(self) -> int:
        """The sender's own, rising over its restarts."""
        return self.inc << 32 | self.sseq

    def head(self) -> Message:
        """The message without its contents (GR-10)."""
        return structs.replace(self, bundle=Bundle(self.bundle.sizes, b""))

    @property
    def is_head(self) -> bool:
        return not self.bundle.data and any(self.bundle.sizes)


class Counter(Struct, frozen=True, gc=False):
    """What is known of one sender (GR-2): the number it may use next, where its last one is."""

    sender: Annotated[Site, "user"]
    inc: Annotated[Number, "its last start"]
    sseq: Annotated[Number, "the number it may use next"]
    gseq: Annotated[Stamp, "position of its last message"]
    # If so, an abort record is due when it starts anew.
    units: Annotated[bool, "1: it has sent units since that start"]


class State(Struct, frozen=True, gc=False):
    """A page of what a successor must know: marks, the time last given, the senders."""

    safe: Annotated[Stamp, "everything below is with the recorders"]
    top: Annotated[Stamp, "next position"]
    time: Annotated[Stamp, "date last given"]
    page: Annotated[Number, "which page this is"] = 0
    pages: Annotated[Number, "of how many"] = 1
    counters: Annotated[tuple[Counter, ...], "senders"] = ()


NO_STATE: Final = State(0, 0, 0)


class Submit(Pdu, frozen=True, gc=False):
    """1: a user asks for its message to be broadcast (GR-1)."""

    inc: Annotated[Number, "which start of the sender"]
    sseq: Annotated[Number, "number of the submission since then"]
    conference: Annotated[Number, "conference"]
    mtype: Mtype
    gid: Annotated[Number, "unit of start, middle and end"]
    kind: Annotated[Number, "the application's own"]
    ticket: Annotated[bytes, Octets(TICKET_MAX), "for the Security Controller"]  # §6.8
    bundle: Bundle


class SubmitAck(Pdu, frozen=True, gc=False):
    """2: it is stable, or refused (GR-5)."""

    inc: Annotated[Number, "as in the submission"]
    sseq: Annotated[Number, "as in the submission"]
    status: Annotated[int, choice(STABLE, REFUSED), "0 stable, 1 refused"]
    gseq: Annotated[Stamp, "its position"]


class Bcast(Pdu, frozen=True, gc=False):
    """3: a message, and everything below `acked` is stable (GR-4)."""

    message: Message
    acked: Annotated[Stamp, "everything below is stable"]


class DaAck(Pdu, frozen=True, gc=False):
    """4: the acknowledger has everything below `gseq`, the recorders all below `safe` (GR-7)."""

    epoch: Annotated[Stamp, "reign"]
    gseq: Annotated[Stamp, "the acknowledger has everything below"]
    safe: Annotated[Stamp, "the recorders have everything below"]
    waits: Annotated[Members, "recorders without which there is no more room"] = ()  # GR-11


class Alive(Pdu, frozen=True, gc=False):
    """5: the retransmitter is there (GR-6)."""

    epoch: Annotated[Stamp, "reign"]
    start: Annotated[Stamp, "its first position"]
    top: Annotated[Stamp, "next position"]
    acked: Annotated[Stamp, "everything below is stable"]
    recorded: Annotated[Stamp, "everything below is with the recorders"]
    time: Annotated[Stamp, "µs since 1970"]
    mode: Annotated[int, choice(DUAL, ONLY_B), "0 two lines, 1 line A alone, 2 line B alone"]
    da: Annotated[Site, "acknowledger"]
    waits: Annotated[Members, "sites without which nothing gets a place"] = ()


class Recover(Pdu, frozen=True, gc=False):
    """6: send what you have of these ranges (GR-9)."""

    ranges: Annotated[Ranges, "positions wanted: first, one past last"]
    epoch: Annotated[Stamp, "reign, or attempt at one, that asks; 0: a recorder"] = 0


class Recovered(Pdu, frozen=True, gc=False):
    """7: a message that was asked for, or none: not held from `lo` up to `hi`.

    `epoch`: an answer to an earlier request may carry what has vanished since.
    """

    lo: Annotated[Stamp, "first position of the answer"]
    hi: Annotated[Stamp, "one past its last; equal to lo: nothing is held from there on"]
    messages: Annotated[tuple[Message, ...], "the message; none: not held"]
    epoch: Annotated[Stamp, "as in the request"] = 0


class Poll(Pdu, frozen=True, gc=False):
    """8: do you have everything below `upto`? (GR-11)"""

    upto: Annotated[Stamp, "is everything below recorded?"]


class PollOk(Pdu, frozen=True, gc=False):
    """9: a recorder has everything below `upto`."""

    upto: Annotated[Stamp, "everything below is recorded"]


class Slow(Pdu, frozen=True, gc=False):
    """10: a recorder cannot keep up (GR-12)."""

    level: Annotated[Octet, "0 at ease, else how far behind"]


class ReplayReq(Pdu, frozen=True, gc=False):
    """11: send what matches, from a position or a time on (GR-17).  Empty sets match all."""

    request: Annotated[Number, "number of the request; its low byte names the stream"]
    since: Annotated[Stamp, "first position"]
    since_time: Annotated[Stamp, "and not older than this, µs since 1970; 0: any"]
    until: Annotated[Stamp, "one past the last position"]
    conferences: Annotated[Numbers, "only these; none: all"]
    senders: Annotated[Members, "only these; none: all"]
    kinds: Annotated[Numbers, "only these; none: all"]
    credit: Annotated[Number, "messages at most"]


class ReplayData(Pdu, frozen=True, gc=False):
    """12: the next match; there is none from `since` up to it."""

    request: Annotated[Number, "as in the request"]
    since: Annotated[Stamp, "nothing matches from here up to the message"]
    message: Message


class ReplayEnd(Pdu, frozen=True, gc=False):
    """13: no match from `since` up to `next`, or none that is here; `reason` says why it ends."""

    request: Annotated[Number, "as in the request"]
    since: Annotated[Stamp, "nothing matches from here …"]
    next: Annotated[Stamp, "… up to here"]
    reason: Annotated[
        int, choice(DONE, GAP), "0 no more, 1 credit; not here: 2 not recorded, 3 gap"
    ]


class Takeover(Pdu, frozen=True, gc=False):
    """14: a step towards the reign `epoch` of retransmitter `cr` and acknowledger `da`."""

    step: Step
    epoch: Annotated[Stamp, "reign to be"]
    cr: Annotated[Site, "its retransmitter"]
    da: Annotated[Site, "its acknowledger"]
    state: State


class Grant(Pdu, frozen=True, gc=False):
    """15: the step is taken; with the last reign accepted here and, if `whose`, its state."""

    step: Step
    epoch: Annotated[Stamp, "reign to be"]
    last_epoch: Annotated[Stamp, "last reign accepted here"]
    last_cr: Annotated[Site, "its retransmitter"]
    last_da: Annotated[Site, "its acknowledger"]
    whose: Annotated[
        int,
        choice(BLANK, OF_RECORDER),
        "state of: 0 nobody, 1 acknowledger, 2 retransmitter, 3 recorder",
    ]
    state: State


class Stale(Pdu, frozen=True, gc=False):
    """16: no; the highest epoch known here, and its retransmitter."""

    epoch: Annotated[Stamp, "highest reign known"]
    cr: Annotated[Site, "retransmitter of the reign that has begun"]
