"""PDUs of GRSB (PROTOCOLS §6.3), and the message that several of them carry.

All marks are exclusive: `acked` = 7 says that everything below position 7 is acknowledged.  A
position (`gseq`) counts application messages, so a bundle of three takes three of them and the
next message begins at its `end`.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from roundelay.core.bundle import NOTHING, Bundle
from roundelay.core.engine import Pdu

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


class Message(Struct, frozen=True, gc=False):
    """A message with its place in the order."""

    epoch: int
    gseq: int
    time: int  # µs since 1970, by the retransmitter's clock (GR-3)
    sender: int
    inc: int  # which start of the sender
    sseq: int  # number among its submissions since then
    conference: int
    mtype: int
    gid: int
    kind: int
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
        return Message(
            self.epoch, self.gseq, self.time, self.sender, self.inc, self.sseq, self.conference,
            self.mtype, self.gid, self.kind, Bundle(self.bundle.sizes, b""),
        )  # fmt: skip

    @property
    def is_head(self) -> bool:
        return not self.bundle.data and any(self.bundle.sizes)


NO_MESSAGE: Final = Message(0, 0, 0, 0, 0, 0, 0, SINGLE, 0, 0, NOTHING)


class Counter(Struct, frozen=True, gc=False):
    """What is known of one sender (GR-2): the number it may use next, where its last one is."""

    sender: int
    inc: int
    sseq: int  # next number
    gseq: int  # position of the last message
    units: bool  # has sent units since it started: an abort record is due when it starts anew


class State(Struct, frozen=True, gc=False):
    """A page of what a successor must know: marks, the time last given, the senders."""

    safe: int  # everything below is with the recorders
    top: int  # next position
    time: int
    page: int = 0
    pages: int = 1
    counters: tuple[Counter, ...] = ()


NO_STATE: Final = State(0, 0, 0)


class Submit(Pdu, frozen=True, gc=False):
    """1: a user asks for its message to be broadcast (GR-1)."""

    inc: int
    sseq: int
    conference: int
    mtype: int
    gid: int
    kind: int
    ticket: bytes  # for the Security Controller (§6.8)
    bundle: Bundle


class SubmitAck(Pdu, frozen=True, gc=False):
    """2: it is stable, or refused (GR-5)."""

    inc: int
    sseq: int
    status: int
    gseq: int


class Bcast(Pdu, frozen=True, gc=False):
    """3: a message, and everything below `acked` is stable (GR-4)."""

    message: Message
    acked: int


class DaAck(Pdu, frozen=True, gc=False):
    """4: the acknowledger has everything below `gseq`, the recorders all below `safe` (GR-7).

    `waits`: nothing more can be acknowledged before these recorders have more (GR-11).
    """

    epoch: int
    gseq: int
    safe: int
    waits: tuple[int, ...] = ()


class Alive(Pdu, frozen=True, gc=False):
    """5: the retransmitter is there (GR-6)."""

    epoch: int
    start: int  # first position of the epoch
    top: int
    acked: int
    recorded: int  # everything below is with the recorders
    time: int
    mode: int
    da: int
    waits: tuple[int, ...] = ()  # nothing new gets a place before these sites are heard


class Recover(Pdu, frozen=True, gc=False):
    """6: send what you have of these ranges (GR-9).

    `epoch` is that of the reign, or of the attempt at one, that asks; 0 for a recorder.
    """

    ranges: tuple[tuple[int, int], ...]
    epoch: int = 0


class Recovered(Pdu, frozen=True, gc=False):
    """7: a message that was asked for, or none: not held from `lo` up to `hi`.

    `hi` = `lo` says that nothing is held at all, not even later.  `epoch` is that of the request:
    an answer to an earlier one may carry what has vanished since.
    """

    lo: int
    hi: int
    messages: tuple[Message, ...]
    epoch: int = 0


class Poll(Pdu, frozen=True, gc=False):
    """8: do you have everything below `upto`? (GR-11)"""

    upto: int


class PollOk(Pdu, frozen=True, gc=False):
    """9: a recorder has everything below `upto`."""

    upto: int


class Slow(Pdu, frozen=True, gc=False):
    """10: a recorder cannot keep up (GR-12)."""

    level: int


class ReplayReq(Pdu, frozen=True, gc=False):
    """11: send what matches, from a position or a time on (GR-17).  Empty sets match all."""

    request: int
    since: int
    since_time: int
    until: int
    conferences: tuple[int, ...]
    senders: tuple[int, ...]
    kinds: tuple[int, ...]
    credit: int


class ReplayData(Pdu, frozen=True, gc=False):
    """12: the next match; there is none from `since` up to it."""

    request: int
    since: int
    message: Message


class ReplayEnd(Pdu, frozen=True, gc=False):
    """13: no match from `since` up to `next`; `reason` says why it ends there.

    With NOT_RECORDED and GAP: what matches from `since` up to `next` is not here.
    """

    request: int
    since: int
    next: int
    reason: int


class Takeover(Pdu, frozen=True, gc=False):
    """14: a step towards the reign `epoch` of retransmitter `cr` and acknowledger `da`."""

    step: int
    epoch: int
    cr: int
    da: int
    state: State


class Grant(Pdu, frozen=True, gc=False):
    """15: the step is taken; with the last reign accepted here and, if `whose`, its state."""

    step: int
    epoch: int
    last_epoch: int
    last_cr: int
    last_da: int
    whose: int
    state: State


class Stale(Pdu, frozen=True, gc=False):
    """16: no; the highest epoch known here, and its retransmitter."""

    epoch: int
    cr: int
