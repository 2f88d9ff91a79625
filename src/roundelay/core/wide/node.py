"""A node behind the broadcaster: LB_i, or a node of the second kind with its application.

One submission is under way at a time, as at a user of GRSB, but nobody answers it: it is over when
it comes down (HG-14).
"""

from __future__ import annotations

from collections.abc import Callable

from roundelay.core.engine import COMMITTED, NEVER, Pdu
from roundelay.core.grsb.pdu import END, Message
from roundelay.core.grsb.submitter import Submitter, Waiting
from roundelay.core.notices import GapUnavailable, OwnPlaced
from roundelay.core.selection import Selection
from roundelay.core.wide.pdu import LsAck, LsAsk, LsData, LsDown, LsUp, Response
from roundelay.core.wide.subnet import Climb, Flood
from roundelay.core.wide.topology import Atlas
from roundelay.core.wide.uplink import PartHost


class WideNode(Submitter):
    """`position`: how far the application has come; `resume`: where its open units began."""

    host: PartHost
    # As a user has them, which hears of more.
    up = True
    recorded = 0
    reader = None

    def __init__(
        self,
        host: PartHost,
        atlas: Atlas,
        lcr: Callable[[], int],
        now: int,
        inc: int,
        position: int,
        resume: int,
        selection: Selection,
    ) -> None:
        resume = min(position, resume)
        super().__init__(host, inc, position, resume, selection)
        begin = resume if host.config.ls_repair else position
        self.flood = Flood(host, atlas, begin, self._take, self._skipped, now)
        host.user = self
        self.climb = Climb(host, self.flood, lcr)
        self.attempt = 0
        self.repeat_due = NEVER

    @property
    def listener(self) -> Flood:
        """What brings it the order."""
        return self.flood

    # -- submitting ------------------------------------------------------------------------

    def _launch(self, submission: Waiting, now: int) -> None:
        self.attempt = 0
        self._send_up(now)

    def _send_up(self, now: int) -> None:
        """HG-14: again after a random while, until it is seen to come down."""
        submission = self.under_way
        assert submission is not None
        up = LsUp(
            self.host.me, self.inc, self.sseq, submission.conference, submission.mtype,
            submission.gid, submission.kind, submission.bundle, min(self.attempt, 255), (),
        )  # fmt: skip
        self.attempt += 1
        self.repeat_due = now + self.host.rng.randint(1, 8) * self.flood.round_ns
        self.climb.offer(up, now)

    def _over(self, inc: int, sseq: int, gseq: int, now: int) -> None:
        """HG-14: phase two of a message of ours has come to its end."""
        submission = self.under_way
        if submission is None or (inc, sseq) != (self.inc, self.sseq):
            return
        self.host.notice(OwnPlaced(submission.first, submission.end, gseq))
        self.sseq += 1
        self.under_way = None
        self.repeat_due = NEVER
        self._next(now)

    # -- listening -------------------------------------------------------------------------

    def _take(self, message: Message, now: int) -> None:
        """The next message in order."""
        if self.flood.root:
            return
        if message.sender == self.host.me and message.mtype <= END:
            self._over(message.inc, message.sseq, message.gseq, now)
        self._handle(message, COMMITTED)
        self._handled(self.flood.next)

    def _skipped(self, lo: int, hi: int) -> None:
        """What was missed may have been part of what is open."""
        self.units.open.clear()
        self.host.notice(GapUnavailable(lo, hi))

    # -- what comes in ---------------------------------------------------------------------

    def receive(self, pdu: Pdu, source: int, now: int) -> None:
        if isinstance(pdu, LsDown):
            if self.flood.on_down(pdu, source, now):
                self.climb.hold(now)
        elif isinstance(pdu, Response):
            self.flood.on_response(pdu, source)
        elif isinstance(pdu, LsUp):
            self.climb.on_up(pdu, source, now)
        elif isinstance(pdu, LsAck):
            if self.climb.on_ack(pdu):
                self._over(pdu.inc, pdu.sseq, pdu.gseq, now)
        elif isinstance(pdu, LsAsk):
            self.flood.on_ask(pdu, source, now)
        elif isinstance(pdu, LsData):
            self.flood.on_data(pdu, source, now)
        else:
            self.host.drop("unknown pdu")

    @property
    def deadline(self) -> int:
        return min(self.flood.deadline, self.climb.slot_due, self.repeat_due)

    def on_timer(self, now: int) -> None:
        if self.flood.deadline <= now:
            self.flood.on_timer(now)
        if self.climb.slot_due <= now:
            self.climb.on_timer(now)
        if self.repeat_due <= now:
            self._send_up(now)
