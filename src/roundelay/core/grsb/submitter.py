"""Submits one message after the other, and hands its application what is broadcast.

That much a user of a group (`core.grsb.user`) and a node behind a broadcaster (`core.wide.subnet`)
have in common: what waits to be submitted and how units are made of it (GR-1, GR-19), what the
application gets of the order (GR-16, GR-19), and how far it is known to have come.  Whom they send
to, who tells them that a submission is over, and where messages come from is their own affair.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from roundelay.core.bundle import Bundle
from roundelay.core.engine import NEVER
from roundelay.core.errors import PayloadTooLarge, QueueFull, UsageError
from roundelay.core.grsb.base import GrsbDelivery, Host
from roundelay.core.grsb.pdu import END, MIDDLE, SINGLE, START, Message, Submit
from roundelay.core.grsb.stable import Handled
from roundelay.core.grsb.units import Units
from roundelay.core.selection import Selection

CONFERENCES_MAX: Final = 255
"""Conferences, senders or kinds in one selection: their number has one byte on the wire."""


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

    def to_pdu(self, inc: int, sseq: int) -> Submit:
        """With its number since the start `inc`."""
        return Submit(
            inc, sseq, self.conference, self.mtype, self.gid, self.kind, self.ticket, self.bundle
        )


class Submitter(ABC):
    """Of the start `inc`; its application has come as far as `handled` says."""

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

    # -- submitting ------------------------------------------------------------------------

    @property
    def gathers(self) -> bool:
        """Whether what waits goes together with what comes behind it."""
        return False

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
            and (last.mtype, last.conference, last.kind) == (SINGLE, conference, kind)
            and last.ticket == ticket
            and len(last.bundle.data) + len(bundle.data) <= self.config.max_payload
        ):
            last.bundle = Bundle.merged((last.bundle, bundle))
        else:
            self.queue.append(Waiting(first, bundle, conference, kind, SINGLE, 0, ticket))
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
            mtype = START if i == 0 else END if i == len(parts) - 1 else MIDDLE
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

    def _handle(self, message: Message, stage: str) -> None:
        """GR-16, GR-19: the next message of the order."""
        if self.selection.takes(message) or message.mtype > END:
            bundle = self.units.take(message)
            if bundle is not None and message.gseq >= self.upto:
                self._deliver(message, bundle, stage)

    def _deliver(self, message: Message, bundle: Bundle, stage: str, query: int = -1) -> None:
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


def check(selection: Selection) -> Selection:
    """Raise UsageError for a selection that no request can carry."""
    for name in ("conferences", "senders", "kinds"):
        if len(getattr(selection, name) or ()) > CONFERENCES_MAX:
            raise UsageError(f"{name}: at most {CONFERENCES_MAX} of them, or all (none named)")
    return selection
