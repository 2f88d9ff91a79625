"""The Playback Recorder: keeps what was broadcast and plays it back (GR-9 … GR-13, GR-17).

It listens like everybody, but repairs itself from the acknowledger, which must have whatever it
missed.  What it has without a hole, up to `mark`, it stores for good, whole or (where its filter
leaves a message out) by its head, so that it can always say what a position was.  It answers the
acknowledger's polls with that mark, and users' requests from the archive, one stretch at a time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from roundelay.core.engine import NEVER
from roundelay.core.grsb import pdu as p
from roundelay.core.grsb.base import Counters, Host, Repairs
from roundelay.core.grsb.listener import Listener
from roundelay.core.grsb.stable import Archive, Missing, Stored
from roundelay.core.notices import GapUnavailable
from roundelay.core.selection import EVERYTHING, Selection, chosen

RANGES_MAX = 16
RECENT_MAX = 256
LOSING = 16
"""GR-12: times `gap_limit` messages more than before are missing: that is losing ground quickly."""
LOSING_SOONER = 5
"""This part of `gap_window_ns` is then enough."""


class Recorder:
    """PR, with everything it ever stored in `archive`."""

    def __init__(self, host: Host, archive: Archive, counters: Counters) -> None:
        self.host = host
        self.config = host.config
        self.archive = archive
        self.counters = counters
        self.filter = host.roles.selection(host.me)
        self.listener = Listener(host.reign.epoch, archive.end, self.config.heard_max)
        self.repairs = Repairs(self.config, host.rng)
        self.recent: dict[int, p.Message] = {}  # what the archive may not show yet
        self.asked = 0  # which source is asked now
        self.got = 0  # messages since the last request
        self.refusals: dict[int, int] = {}  # source → where it goes on, having nothing here
        self.refused_at = 0  # the position that was refused
        self.gaps: deque[int] = deque(maxlen=self.config.gap_limit + 1)  # times
        self.behind_since = NEVER  # so long more than `gap_limit` messages have been missing
        self.behind_by = 0  # how many it were then
        self.urgency = 0  # windows in a row that brought it no nearer
        self.slow_at = -NEVER
        self.slowed = 0
        """How often it has asked for mercy (GR-12, GR-13)."""
        self.requests: dict[int, p.ReplayReq] = {}  # by user, one each
        self.serve_due = NEVER
        self.served_at = -NEVER
        self.served = 0  # messages played back

    @property
    def mark(self) -> int:
        """Everything below is recorded."""
        return self.listener.next

    # -- recording -------------------------------------------------------------------------

    def hear(self, message: p.Message, acked: int, now: int) -> None:
        gap = self.listener.missing
        self.listener.hear(message, acked)
        self._record(now)
        if self.listener.missing and not gap:
            self._count_gap(now)

    def marks(self, acked: int, top: int, now: int) -> None:
        """A mark was heard, of the acknowledger or the retransmitter."""
        self.listener.mark(acked, top)
        self._record(now)

    def enter(self, epoch: int) -> None:
        self.listener.enter(epoch)
        self.asked = 0

    def _record(self, now: int) -> None:
        before = self.listener.next
        for message in self.listener.ready():
            self.record(message)
        if self.listener.missing:
            self.repairs.want(now)
        elif self.listener.next > before or self.repairs.due < NEVER:
            self.repairs.none()
        self._count_missing(now)

    def record(self, message: p.Message) -> None:
        """GR-10: the next message of the order."""
        kept = message if self.filter.takes(message) else message.head()
        self.host.persist(Stored(kept))
        self.counters.count(message)
        recent = self.recent
        recent[message.gseq] = kept
        if len(recent) > RECENT_MAX:
            del recent[next(iter(recent))]

    # -- repair ----------------------------------------------------------------------------

    def _sources(self) -> list[int]:
        """GR-9: the acknowledger, then the other recorders, then the retransmitter."""
        host = self.host
        order = [host.reign.da, *host.roles.recorders, host.reign.cr]
        return [site for site in dict.fromkeys(order) if site != host.me]

    def _ask(self, now: int) -> None:
        gaps = self.listener.gaps(RANGES_MAX)
        if not gaps:
            self.repairs.none()
            return
        sources = self._sources()
        if self.repairs.tries and self.repairs.tries % 3 == 0:
            self.asked += 1
        source = sources[self.asked % len(sources)]
        self.host.ask(source, p.Recover(tuple(gaps)), self.repairs.tries)
        self.repairs.again(now)
        self.got = 0

    def on_recovered(self, recovered: p.Recovered, source: int, now: int) -> None:
        listener = self.listener
        repaired = False
        for message in recovered.messages:
            repaired = listener.repaired(message) or repaired
        if not recovered.messages and recovered.lo == listener.next and listener.missing:
            self._refused(recovered, source, now)
            return
        if not repaired:
            return
        before = listener.next
        self._record(now)
        if listener.next > before:
            self.refusals.clear()
        # Something came, though perhaps not what is needed first: this source is worth asking.
        self.repairs.soon(now)
        self.got += len(recovered.messages)
        if self.got >= self.config.rec_burst:  # all that one request brings
            self.repairs.progress(now)

    def _refused(self, recovered: p.Recovered, source: int, now: int) -> None:
        """`source` does not have what comes next: ask another; if nobody has it, leave it out."""
        at = self.listener.next
        if self.refused_at != at:
            self.refused_at = at
            self.refusals.clear()
        self.refusals[source] = recovered.hi
        sources = self._sources()
        others = [site for site in sources if site not in self.refusals]
        if others:
            self.asked = sources.index(others[0])
            self.repairs.due = max(now, self.repairs.last + self.config.repair_gap_ns)
            return
        beyond = [hi for hi in self.refusals.values() if hi > at]
        self.refusals.clear()
        if beyond:
            hi = min(beyond)
            self.host.persist(Missing(at, hi))
            self.host.notify(GapUnavailable(at, hi))
            self.listener.skip(hi)
            self._record(now)

    def on_recover(self, recover: p.Recover, source: int, reign_from: int = 0) -> None:
        """GR-9: another recorder, or a retransmitter, asks for what it lacks.

        Another role of this site has what is broadcast from `reign_from` on.
        """
        remaining = self.config.rec_burst
        for lo, hi in recover.ranges:
            at = lo
            for message in self.read(lo, hi, remaining):
                if message.is_head or message.gseq != at:
                    break
                self.host.send(source, p.Recovered(at, message.end, (message,), recover.epoch))
                at = message.end
                remaining -= 1
            if at == lo:
                after = self.read(lo, NEVER, 1)
                beyond = [reign_from] if reign_from > lo else []
                if after and not after[0].is_head and after[0].gseq > lo:
                    beyond.append(after[0].gseq)
                upto = min([hi, *beyond]) if beyond else lo
                self.host.send(source, p.Recovered(lo, upto, (), recover.epoch))
            if remaining <= 0:
                return

    def read(self, since: int, until: int, limit: int) -> list[p.Message]:
        """From memory where the archive may lag behind this batch, else from the archive."""
        until = min(until, self.mark)
        if since in self.recent:
            messages: list[p.Message] = []
            at = since
            while len(messages) < limit and at < until and at in self.recent:
                messages.append(self.recent[at])
                at = self.recent[at].end
            return messages
        return self.archive.select(since, until, EVERYTHING, limit) if since < until else []

    def on_poll(self, poll: p.Poll, source: int, now: int) -> None:
        """GR-11: the mark is what is stored, and it is durable before this leaves."""
        self.host.send(source, p.PollOk(self.mark))

    # -- playing back ----------------------------------------------------------------------

    def on_request(self, request: p.ReplayReq, user: int, now: int) -> None:
        """GR-17: served when its turn comes."""
        if user not in self.requests and len(self.requests) >= self.host.roles.sites:
            self.host.drop("too many requests")
            return
        self.requests[user] = request
        if self.serve_due >= NEVER:
            self.serve_due = max(now, self.served_at + self.config.serve_ns)
        if len(self.requests) > self.config.backlog_limit:  # GR-13: one slow user is no reason
            self._slow(1 + len(self.requests) // (2 * self.config.backlog_limit), now)

    def _serve(self, now: int) -> None:
        """One stretch for the user who has waited longest."""
        user = next(iter(self.requests))
        request = self.requests.pop(user)
        self.served_at = now
        self.serve_due = now + self.config.serve_ns if self.requests else NEVER
        self.play(request, user)

    def play(self, request: p.ReplayReq, user: int) -> None:
        """GR-17: send the next matches of `request`, at most its credit."""
        host, number, begun = self.host, request.request, request.since
        selection = Selection(
            chosen(request.conferences), chosen(request.senders), chosen(request.kinds)
        )
        at = begun
        if request.since_time:
            at = max(at, self.archive.at_time(request.since_time))
        until = min(request.until, self.mark)
        credit = min(request.credit, self.config.credit)
        if at >= until:
            host.send(user, p.ReplayEnd(number, begun, max(begun, until), p.DONE))
            return
        stop, obstacle = until, None
        gap = first_gap(self.archive.missing, at, until)
        if gap is not None:
            stop, obstacle = gap[0], p.ReplayEnd(number, *gap, p.GAP)
        for sent, message in enumerate(self._matches(at, stop, selection, credit + 1)):
            if message.is_head:
                stop = message.gseq
                obstacle = p.ReplayEnd(number, stop, message.end, p.NOT_RECORDED)
            elif sent == credit:
                stop, obstacle = message.gseq, None
            if message.gseq == stop:
                break
            host.send(user, p.ReplayData(number, begun, message))
            self.served += 1
            begun = message.end
        if stop > begun or obstacle is None:
            host.send(user, p.ReplayEnd(number, begun, stop, p.DONE if stop == until else p.CREDIT))
        if obstacle is not None:
            host.send(user, obstacle)

    def _matches(self, at: int, until: int, selection: Selection, limit: int) -> list[p.Message]:
        oldest = next(iter(self.recent), until)
        messages = []
        if at < oldest:
            messages = self.archive.select(at, min(until, oldest), selection, limit)
            at = oldest
        for gseq, message in self.recent.items():
            if len(messages) >= limit or gseq >= until:
                break
            if gseq >= at and selection.takes(message):
                messages.append(message)
        return messages

    # -- asking for mercy ------------------------------------------------------------------

    def _count_gap(self, now: int) -> None:
        """GR-12."""
        self.gaps.append(now)
        limit = self.config.gap_limit
        if len(self.gaps) > limit and now - self.gaps[0] <= self.config.gap_window_ns:
            self._slow(2, now)

    def _count_missing(self, now: int) -> None:
        """GR-12: what is missing, where gaps have no end that could be followed by a start.

        A recorder that is catching up asks for nothing; one that after a while is no nearer than
        before asks, the more urgently the more it lacks and the longer that goes on.  One that
        loses ground quickly does not wait so long.
        """
        config = self.config
        missing = self.listener.stable - self.listener.next
        patience = config.gap_window_ns
        if missing - self.behind_by >= LOSING * config.gap_limit and self._may_ask(now):
            patience //= LOSING_SOONER
        if missing <= config.gap_limit:
            self.behind_since, self.urgency = NEVER, 0
        elif self.behind_since >= NEVER:
            self.behind_since, self.behind_by = now, missing
        elif now - self.behind_since >= patience:
            self.urgency = self.urgency + 1 if missing >= self.behind_by else 0
            if self.urgency:
                level = (missing // config.gap_limit).bit_length() // 2
                self._slow(level + self.urgency, now)
            self.behind_since, self.behind_by = now, missing

    def _may_ask(self, now: int) -> bool:
        return now - self.slow_at >= self.config.slow_hold_ns // 4

    def _slow(self, level: int, now: int) -> None:
        if self._may_ask(now):
            self.slow_at = now
            self.slowed += 1
            self.host.send(self.host.reign.da, p.Slow(min(level, 8)))

    # -- timers ----------------------------------------------------------------------------

    @property
    def deadline(self) -> int:
        return min(self.repairs.due, self.serve_due)

    def on_timer(self, now: int) -> None:
        if self.repairs.due <= now:
            self._ask(now)
        if self.serve_due <= now and self.requests:
            self._serve(now)


def first_gap(missing: Sequence[tuple[int, int]], lo: int, hi: int) -> tuple[int, int] | None:
    """The first stretch within these positions that is missing."""
    for begin, end in missing:
        if begin < hi and end > lo:
            return max(begin, lo), end
    return None
