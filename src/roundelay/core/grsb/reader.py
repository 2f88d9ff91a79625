"""How a user reads a recorder (GR-17, GR-18): stretch by stretch, until it is where it wants to be.

Each answer says which positions it covers: none of them matches but the message it carries.  So
answers may be lost, repeated and overtake each other, and several recorders may give them: what
counts is that the stretches join.  A recorder that is silent, behind, or lacks what comes next is
left for the next one; what no recorder has is reported and left out.
"""

from __future__ import annotations

from collections.abc import Callable

from roundelay.core.engine import NEVER
from roundelay.core.grsb import pdu as p
from roundelay.core.grsb.base import Host, Repairs
from roundelay.core.notices import GapUnavailable, NeverRecorded
from roundelay.core.selection import Selection

Take = Callable[[p.Message | None, int, int], None]
"""Called in order with a message, or None, the position that follows, and the time."""

KEPT_MAX = 128
UNANSWERED = 6
"""Requests in a row, each later than the one before: 3 s with the usual times."""
BEHIND = -1


class RangeReader:
    """Reads what `selection` takes from `next` up to `until`, and hands it to `take` in order."""

    def __init__(self, host: Host, number: int, selection: Selection, take: Take) -> None:
        self.host = host
        self.config = host.config
        self.number = number  # which stream of this user: the low byte of its requests
        self.request = number
        self.valid = number
        self.selection = selection
        self.take = take
        self.next = 0
        self.since_time = 0
        self.until = 0
        self.repairs = Repairs(self.config, host.rng)
        prs = host.roles.recorders
        self.recorder = prs[host.me % len(prs)]
        # Recorder → the position it cannot go on at, and where it could again.
        self.refusals: dict[int, tuple[int, int]] = {}
        self.kept: dict[int, tuple[int, p.Message | None]] = {}  # stretches that do not join yet

    @property
    def reading(self) -> bool:
        return self.repairs.due < NEVER

    def read(self, since: int, until: int, now: int, since_time: int = 0) -> None:
        """Go on from `since` up to `until`, which may move while it reads."""
        self.next = since
        self.until = until
        if since_time:
            self.since_time = since_time
        if since < until:
            self.repairs.want(now)
        else:
            self.stop()

    @property
    def unanswered(self) -> bool:
        """Whether no recorder has answered for long: what is wanted may not come."""
        return self.reading and self.repairs.tries > UNANSWERED

    def change(self, selection: Selection) -> None:
        """Read something else: answers to what was asked before do not count."""
        self.selection = selection
        self.valid = (self.request + 256) & 0xFFFFFFFF
        self.kept.clear()
        self.refusals.clear()

    def _counts(self, request: int) -> bool:
        return self.reading and (request - self.valid) & 0xFFFFFFFF < 1 << 31

    def stop(self) -> None:
        self.repairs.none()
        self.kept.clear()
        self.refusals.clear()

    def _other(self) -> None:
        """GR-18: the next recorder."""
        prs = self.host.roles.recorders
        self.recorder = prs[(prs.index(self.recorder) + 1) % len(prs)]

    def on_timer(self, now: int) -> None:
        if self.repairs.due > now:
            return
        if self.repairs.tries and self.repairs.tries % 2 == 0:
            self._other()
        self.request = (self.request + 256) & 0xFFFFFFFF
        selection = self.selection
        self.host.ask(
            self.recorder,
            p.ReplayReq(
                self.request, self.next, self.since_time, self.until,
                tuple(sorted(selection.conferences or ())), tuple(sorted(selection.senders or ())),
                tuple(sorted(selection.kinds or ())), self.config.credit,
            ),
            self.repairs.tries,
        )  # fmt: skip
        self.repairs.again(now)

    def on_replay(self, pdu: p.ReplayData | p.ReplayEnd, source: int, now: int) -> None:
        """A recorder answers, perhaps a request of long ago."""
        if not self._counts(pdu.request):
            return
        if isinstance(pdu, p.ReplayData):
            self._keep(pdu.since, pdu.message.end, pdu.message, now)
        else:
            self._end(pdu, source, now)

    def _end(self, end: p.ReplayEnd, source: int, now: int) -> None:
        asked = end.request == self.request and source == self.recorder
        if end.reason in (p.NOT_RECORDED, p.GAP):
            if asked and end.since <= self.next < end.next:
                self._refused(source, end.next, now)
            return
        self._keep(end.since, end.next, None, now)
        if not (asked and self.reading) or end.next > self.next:
            return  # something before it was lost or is late: asked for again when it is due
        if self.next >= self.until:
            self.stop()
        elif end.reason == p.CREDIT or end.next > end.since:
            self.repairs.progress(now)
        else:
            self._refused(source, BEHIND, now)

    def _refused(self, source: int, beyond: int, now: int) -> None:
        """`source` cannot go on: it is BEHIND, or it has nothing up to `beyond`."""
        at = self.next
        self.refusals = {site: gap for site, gap in self.refusals.items() if gap[0] == at}
        self.refusals[source] = (at, beyond)
        if len(self.refusals) < len(self.host.roles.recorders):
            self._other()
            self.repairs.due = max(now, self.repairs.last + self.config.repair_gap_ns)
            return
        hi = min(beyond for _, beyond in self.refusals.values())
        self.refusals.clear()
        if hi > at:  # nobody has it
            self.host.notify(GapUnavailable(at, hi))
            if self.number == 0:  # the stream of the application lacks it
                self.host.notify(NeverRecorded(at, hi))
            self.repairs.progress(now)  # before: whoever is told may stop the reading
            self._keep(at, hi, None, now)

    def _keep(self, since: int, end: int, message: p.Message | None, now: int) -> None:
        """A stretch from `since` up to `end` is known."""
        if end <= self.next or (message is not None and not self.selection.takes(message)):
            return
        if since > self.next:
            if len(self.kept) < KEPT_MAX:
                self.kept[since] = (end, message)
            return
        self._advance(end, message, now)
        while self.kept and self.reading:
            joined = [at for at in self.kept if at <= self.next]
            if not joined:
                return
            # One at a time: whoever takes it may stop the reading, or set it on another course.
            end, message = self.kept.pop(joined[0])
            if end > self.next:
                self._advance(end, message, now)

    def _advance(self, end: int, message: p.Message | None, now: int) -> None:
        if message is not None and message.gseq < self.next:
            return  # begins within what is known: cannot be, positions are where messages begin
        self.next = end
        self.since_time = 0
        self.repairs.tries = 0
        self.refusals.clear()
        self.take(message, end, now)
