"""The user node: submits, listens, filters, repairs itself from a recorder (GR-1, GR-14 … GR-21).

One submission is under way at a time and is repeated until the retransmitter says that it is
stable.  What is broadcast is released in order when it is known to be stable; what does not belong
to the conferences (senders, kinds) asked for only moves the position on.  What was missed, for a
moment or for weeks, comes from a recorder, which sends only what was asked for, until the stream
joins what was heard live.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from roundelay.core import notices
from roundelay.core.bundle import Bundle
from roundelay.core.engine import COMMITTED, NEVER, STAMPED
from roundelay.core.errors import PayloadTooLarge, QueueFull, Refused, UsageError
from roundelay.core.grsb import pdu as p
from roundelay.core.grsb.base import REPLAYED, GrsbDelivery, Host
from roundelay.core.grsb.config import FAST
from roundelay.core.grsb.listener import Listener
from roundelay.core.grsb.reader import RangeReader
from roundelay.core.grsb.stable import Handled
from roundelay.core.grsb.units import Units
from roundelay.core.selection import Selection

CONFERENCES_MAX: Final = 255
"""Conferences, senders or kinds in one selection: their number has one byte on the wire."""
SUBMISSIONS_MAX = 1 << 29
"""Submissions of one start: their number has four bytes on the wire, less in a journal."""
QUERIES_MAX = 8


class Waiting(Struct):
    """A submission to come: messages `first` … of this submitter, of one conference and kind."""

    first: int
    bundle: Bundle
    conference: int
    kind: int
    mtype: int
    gid: int
    ticket: bytes

    @property
    def end(self) -> int:
        return self.first + len(self.bundle.sizes)

    def to_pdu(self, inc: int, sseq: int) -> p.Submit:
        """With its number since the start `inc`."""
        return p.Submit(
            inc, sseq, self.conference, self.mtype, self.gid, self.kind, self.ticket, self.bundle
        )


class Submitter(ABC):
    """Submits one message after the other, and hands its application what is broadcast.

    That much a user of a group and a node behind a broadcaster (`core.wide.subnet`) have in common:
    what waits to be submitted and how units are made of it (GR-1, GR-19), what the application gets
    of the order (GR-16, GR-19), and how far it is known to have come.  Whom they send to, who tells
    them that a submission is over, and where messages come from is their own affair.

    It is of the start `inc`; its application has come as far as `handled` says.
    """

    def __init__(self, host: Host, inc: int, handled: Handled, selection: Selection) -> None:
        self.host = host
        self.config = host.config
        self.inc = inc
        self.selection = check(selection)
        self.units = Units(self.config.unit_bytes)
        self.upto = handled.upto  # everything of ours below has been delivered
        self.persisted = handled
        self.done = (handled.upto, handled.resume)
        self.done_at = -1  # the batch that brought us there
        # Submissions.
        self.count = 0  # messages submitted since the start
        self.gid = 0
        self.sseq = 0
        self.queue: deque[Waiting] = deque()
        self.under_way: Waiting | None = None
        self.tries = 0  # how often it has been sent
        self.submit_due = NEVER
        self.gathers = False  # whether what waits goes together with what comes behind it

    # -- submitting ------------------------------------------------------------------------

    @abstractmethod
    def _submit(self, now: int) -> None:
        """Send what is under way, for the first time or again."""

    def submit(
        self, bundle: Bundle, now: int, conference: int = 0, kind: int = 0, ticket: bytes = b""
    ) -> int:
        """Broadcast the messages of `bundle`; returns the number of the first.

        Raises QueueFull, PayloadTooLarge, or Refused while the retransmitter is not heard.
        """
        self._may(1, len(bundle.data))
        if not bundle.sizes:
            raise UsageError("an empty bundle: submit one message or more")
        first = self.count
        self.count += len(bundle.sizes)
        last = self.queue[-1] if self.queue else None
        if (
            self.gathers
            and last is not None
            and (last.mtype, last.conference, last.kind) == (p.SINGLE, conference, kind)
            and last.ticket == ticket
            and len(last.bundle.data) + len(bundle.data) <= self.config.max_payload
        ):
            last.bundle = Bundle.merged((last.bundle, bundle))
        else:
            self.queue.append(Waiting(first, bundle, conference, kind, p.SINGLE, 0, ticket))
        self._next(now)
        return first

    def submit_unit(
        self, parts: Sequence[bytes], now: int, conference: int = 0, kind: int = 0,
        ticket: bytes = b"",
    ) -> int:  # fmt: skip
        """Broadcast `parts` so that they take effect together (GR-19)."""
        if len(parts) < 2:
            return self.submit(Bundle.of(*parts), now, conference, kind, ticket)
        self._may(len(parts), max(map(len, parts)))
        if sum(map(len, parts)) > self.config.unit_bytes:
            raise PayloadTooLarge(
                f"{sum(map(len, parts))} bytes are above unit_bytes = {self.config.unit_bytes}: "
                "send several units"
            )
        first = self.count
        self.gid += 1
        for i, part in enumerate(parts):
            mtype = p.START if i == 0 else p.END if i == len(parts) - 1 else p.MIDDLE
            waiting = Waiting(
                self.count, Bundle.of(part), conference, kind, mtype, self.gid, ticket
            )
            self.queue.append(waiting)
            self.count += 1
        self._next(now)
        return first

    def _may(self, count: int, size: int) -> None:
        if size > self.config.max_payload:
            raise PayloadTooLarge(
                f"{size} bytes are above max_payload = {self.config.max_payload}: "
                "send them as a unit of several messages"
            )
        if len(self.queue) + count > self.config.own_limit:
            raise QueueFull(
                f"{len(self.queue)} submissions wait (own_limit = {self.config.own_limit}): "
                "submit again when some are stable"
            )

    def _next(self, now: int) -> None:
        """GR-1: one submission is under way at a time."""
        if self.under_way is None and self.queue:
            self.under_way = self.queue.popleft()
            self.tries = 0
            self._submit(now)

    def _over(self, now: int) -> None:
        """What was under way needs no repetition any more."""
        self.under_way = None
        self.submit_due = NEVER
        self._next(now)

    # -- listening -------------------------------------------------------------------------

    def select(self, selection: Selection) -> None:
        """From the next message on, only what `selection` takes is delivered (GR-16)."""
        self.selection = check(selection)

    def _handle(self, message: p.Message, stage: str) -> None:
        """GR-16, GR-19: the next message of the order."""
        if self.selection.takes(message) or message.mtype > p.END:
            bundle = self.units.take(message)
            if bundle is not None and message.gseq >= self.upto:
                self._deliver(message, bundle, stage)

    def _deliver(self, message: p.Message, bundle: Bundle, stage: str, query: int = -1) -> None:
        self.host.out.deliveries.append(
            GrsbDelivery(
                message.gseq, message.sender, message.number, bundle, stage, message.conference,
                message.kind, message.time, message.end, query,
            )
        )  # fmt: skip

    def _handled(self, at: int, epoch: int = 0) -> None:
        """Everything below `at` is dealt with, and `epoch` has been entered.

        The position that is persisted is where the batches before this one have come: this one may
        still be cut short.  The epoch is persisted before anything is delivered in it: an
        application that knows better how far it is must not take that for part of an older one.
        """
        self.upto = max(self.upto, at)
        done = (self.upto, self.units.resume(at))
        if done == self.done:
            return
        if self.done_at != self.host.batch:
            self._persist(*self.done, epoch)
        elif epoch != self.persisted.epoch:
            self._persist(self.persisted.upto, self.persisted.resume, epoch)
        self.done = done
        self.done_at = self.host.batch

    def _persist(self, upto: int, resume: int, epoch: int) -> None:
        """The application has everything below `upto`: a restart goes on there, in `epoch`."""
        handled = Handled(upto, resume, epoch)
        if handled != self.persisted:
            self.persisted = handled
            self.host.persist(handled)


class User(Submitter):
    """UN."""

    def __init__(self, host: Host, inc: int, handled: Handled, selection: Selection) -> None:
        super().__init__(host, inc, handled, selection)
        self.gathers = self.config.bundle
        begin = min(handled.upto, handled.resume)
        self.listener = Listener(handled.epoch, begin, self.config.heard_max)
        self.entered_at = 0  # so far when the present epoch was first heard of
        self.replayed_to = 0  # recorders have everything below: nothing of it can vanish
        self.reader = RangeReader(host, 0, self.selection, self._replayed)
        self.readers = {0: self.reader}  # the stream, and questions about the past by number
        self.asked = 0  # the number of the last one
        self.up = True
        self.recorded = 0  # everything below is with the recorders
        self.hint = -1  # who may reign now, by hearsay

    # -- submitting ------------------------------------------------------------------------

    def _may(self, count: int, size: int) -> None:
        if not self.up:  # GR-20
            raise Refused("the retransmitter has not been heard for a while: wait for `up`")
        super()._may(count, size)

    def _submit(self, now: int) -> None:
        """GR-1."""
        submission = self.under_way
        assert submission is not None
        begins = not self.tries and submission.mtype in (p.SINGLE, p.START)
        if begins and self.sseq >= SUBMISSIONS_MAX:
            self.inc, self.sseq = self.inc + 1, 0  # as if it had started again
        submit = submission.to_pdu(self.inc, self.sseq)
        cr = self.host.reign.cr if self.hint < 0 else self.hint
        self.host.ask(cr, submit, self.tries)
        self.tries += 1
        self.hint = -1
        self.submit_due = now + self.config.submit_ns

    def ask_at(self, cr: int) -> None:
        """Somebody says that `cr` reigns: the next repetition goes there."""
        if cr in self.host.roles.retransmitters:
            self.hint = cr

    def on_submit_ack(self, ack: p.SubmitAck, source: int, now: int) -> None:
        submission = self.under_way
        if submission is None or ack.inc != self.inc or ack.sseq != self.sseq:
            return
        lo, hi = submission.first, submission.end
        if ack.status == p.REFUSED:  # its number was not used up
            in_unit = submission.mtype not in (p.SINGLE, p.END)
            while in_unit and self.queue and self.queue[0].gid == submission.gid:
                hi = self.queue.popleft().first + 1  # the rest of its unit makes no sense alone
            self.host.notify(notices.OwnRefused(lo, hi))
        else:
            self.sseq += 1
            self.host.notify(notices.OwnPlaced(lo, hi, ack.gseq))
        self._over(now)

    # -- listening -------------------------------------------------------------------------

    def select(self, selection: Selection) -> None:
        super().select(selection)
        self.reader.change(selection)

    def heard(self) -> None:
        """GR-21: who hears the retransmitter carries on, whoever else is out of reach."""
        if not self.up:
            self.up = True
            self.host.notify(notices.RetransmitterHeard())

    def note_recorded(self, mark: int) -> None:
        """The recorders have everything below `mark`, on disk."""
        if mark > self.recorded:
            self.recorded = mark
            self.host.notify(notices.RecordedUpto(mark))

    def hear(self, message: p.Message, acked: int, now: int) -> None:
        if message.epoch >= self.listener.epoch:  # recorders may have told us of a later one
            self.listener.hear(message, acked)
        self._release(now)

    def marks(self, acked: int, top: int, now: int) -> None:
        self.listener.mark(acked, top)
        self._release(now)

    def enter(self, epoch: int) -> None:
        if epoch > self.listener.epoch:
            self.entered_at = self.upto
        self.listener.enter(epoch)

    def begins(self, start: int) -> None:
        """The first position of the present epoch is known."""
        if self.entered_at > start >= self.replayed_to:
            # What was delivered beyond it has vanished: it was only heard (`fast`), or both who
            # had it have lost it (a cold start).  What recorders gave us from `start` on is of
            # this epoch: they had heard of it before we did.
            self.host.notify(notices.Retracted(start, self.entered_at))
            self.listener.next = self.upto = start
            self.listener.stable = min(self.listener.stable, start)
            self.entered_at = start
            self.done = (start, min(start, self.units.resume(start)))
            self._persist(*self.done, self.listener.epoch)

    def _release(self, now: int) -> None:
        """GR-15: what is stable is handed over; GR-14: what is missing comes from a recorder."""
        listener = self.listener
        fast = self.config.delivery == FAST and self.host.announced == listener.epoch
        for message in listener.ready(fast):
            self._handle(message, STAMPED if fast else COMMITTED)
        self._handled(listener.next, listener.epoch)
        if listener.missing:
            until = listener.gaps(1)[0][1]
            self.reader.read(listener.next, until, now)
        elif self.reader.reading:
            self.reader.stop()

    def _replayed(self, message: p.Message | None, end: int, now: int) -> None:
        """The recorder has got us up to `end`."""
        self.replayed_to = end
        if message is not None:
            if message.epoch > self.listener.epoch:
                self.enter(message.epoch)  # kept with the position: a restart must know it, too
            self._handle(message, COMMITTED)
        self.listener.skip(end)
        self._release(now)

    # -- asking about the past -------------------------------------------------------------

    def history(
        self, selection: Selection, now: int, since: int = 0, since_time: int = 0,
        until: int | None = None,
    ) -> int:  # fmt: skip
        """Ask for what `selection` takes, up to where the stream is; returns the query's number.

        Its deliveries carry that number and the stage `replayed`; a notice `replayed` (number,
        next position) follows the last one.
        """
        if len(self.readers) > QUERIES_MAX:
            raise QueueFull(f"{QUERIES_MAX} questions are under way: ask again when one has ended")
        number = self.asked % 255 + 1
        while number in self.readers:
            number = number % 255 + 1
        self.asked = number
        units = Units(self.config.unit_bytes)

        def take(message: p.Message | None, end: int, _now: int) -> None:
            if message is not None:
                bundle = units.take(message)
                if bundle is not None:
                    self._deliver(message, bundle, REPLAYED, number)
            if end >= reader.until:
                reader.stop()
                del self.readers[number]
                self.host.notify(notices.ReplayComplete(number, end))

        reader = RangeReader(self.host, number, check(selection), take)
        end = self.listener.next if until is None else min(until, self.listener.next)
        if since >= end:
            self.host.notify(notices.ReplayComplete(number, since))
        else:
            self.readers[number] = reader
            reader.read(since, end, now, since_time)
        return number

    def on_replay(self, pdu: p.ReplayData | p.ReplayEnd, source: int, now: int) -> None:
        reader = self.readers.get(pdu.request & 255)
        if reader is not None and source in self.host.roles.recorders:
            reader.on_replay(pdu, source, now)

    # -- timers ----------------------------------------------------------------------------

    @property
    def deadline(self) -> int:
        due = min(self.submit_due, *(reader.repairs.due for reader in self.readers.values()))
        return min(due, self.host.heard_at + self.config.alive_timeout_ns) if self.up else due

    def on_timer(self, now: int) -> None:
        """GR-20: silence is told to the application."""
        if self.up and self.host.heard_at + self.config.alive_timeout_ns <= now:
            self.up = False
            self.host.notify(notices.RetransmitterSilent())
        if self.submit_due <= now:
            self._submit(now)
        for reader in self.readers.values():
            reader.on_timer(now)


def check(selection: Selection) -> Selection:
    """Raise UsageError for a selection that no request can carry."""
    for name in ("conferences", "senders", "kinds"):
        if len(getattr(selection, name) or ()) > CONFERENCES_MAX:
            raise UsageError(f"{name}: at most {CONFERENCES_MAX} of them, or all (none named)")
    return selection
