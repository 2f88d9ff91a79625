"""The Designated Acknowledger: the only node that answers broadcasts (GR-7, GR-11, GR-12).

It keeps what it acknowledged until the recorders have it.  Before it lets a group of messages go
it polls them; while one of them that is not given up lacks something, or no recorder that keeps it
has a message, nothing is overwritten, and with a full buffer nothing more is acknowledged.  It
also delays acknowledgements when recorders ask for mercy.  A repeated old mark says that it is
there all the same.
"""

from __future__ import annotations

from itertools import islice
from typing import Final

from roundelay.core.engine import NEVER
from roundelay.core.grsb import pdu as p
from roundelay.core.grsb.base import Counters, Host, Pages, Reign, Ring
from roundelay.core.grsb.retransmitter import answer_recover
from roundelay.core.grsb.stable import Ceiling
from roundelay.core.notices import MemberSuspected

UNKNOWN: Final = -1
"""The mark of a recorder that has not spoken yet."""


class Acknowledger:
    """DA of the reign `epoch`, or standing by (-1)."""

    def __init__(self, host: Host, now: int, ceiling: int = 0) -> None:
        self.host = host
        self.config = host.config
        self.epoch = -1
        self.ring = Ring()
        self.counters = Counters()
        self.safe = 0  # everything below is with the recorders
        self.ceiling = ceiling  # on disk: nothing from here on was acknowledged
        self.acked = 0  # the mark last announced; what is stored above waits for its delay
        self.ack_due = NEVER
        self.ack_line = p.LINE_A
        self.delay_ns = 0
        self.slow_due = NEVER  # when the delay is halved
        self.pleas: set[int] = set()  # recorders that have asked for the delay
        self.marks: dict[int, int] = dict.fromkeys(host.roles.recorders, UNKNOWN)
        self.unanswered: dict[int, int] = {}  # polls, by recorder
        self.suspected: set[int] = set()
        self.poll_due = now + self.config.poll_ns
        self.polling = False  # room is needed
        self.full_since = NEVER  # when a broadcast first found no room
        self.fetch_due = NEVER
        self.fetches = 0  # without an answer
        # A reign that is being installed.
        self.next_epoch = -1
        self.next_cr = -1
        self.next_pages = Pages()
        self.next_ring = Ring()
        self.fetched: dict[int, p.Message] = {}
        self.tries = 0

    @property
    def expected(self) -> int:
        return self.ring.end

    def enter(self, epoch: int) -> None:
        """The reign `epoch` has begun: if it is not the one of the state here, stand by."""
        if epoch > self.epoch:
            self.epoch = -1

    def pages(self) -> list[p.State]:
        """State for a successor."""
        return self.counters.pages(self.safe, self.expected)

    # -- broadcasts ------------------------------------------------------------------------

    def on_bcast(self, bcast: p.Bcast, source: int, line: int, now: int) -> None:
        """GR-7."""
        message = bcast.message
        if message.epoch < self.host.promised:  # GR-27
            self.host.send(source, p.Stale(self.host.promised, self.host.reign.cr))
            return
        if message.epoch != self.epoch:
            return
        if message.gseq > self.expected:
            if self.fetch_due >= NEVER or self.fetch_due <= now:
                self.fetch_due = now + self.config.rec_ns
                recover = p.Recover(((self.expected, message.gseq),), self.epoch)
                self.host.ask(source, recover, self.fetches)
                self.fetches += 1
            return
        if message.gseq == self.expected and self._room(now):
            self._store(message)
            if self.delay_ns:
                if self.ack_due >= NEVER:
                    self.ack_due = now + self.delay_ns
                    self.ack_line = line
                return
            self.acked = self.expected
        self._ack(line)  # perhaps nothing new, but alive

    def _store(self, message: p.Message) -> None:
        self.ring.add(message)
        self.counters.count(message)
        self.fetch_due = NEVER
        self.fetches = 0

    def _vouch(self) -> None:
        """What is acknowledged is below the ceiling on disk, before anybody hears of it: if all
        memory is lost, a cold start uses none of these positions again."""
        if self.config.ceiling and self.acked > self.ceiling:
            self._set_ceiling(self.acked + self.config.ceiling)

    def _set_ceiling(self, upto: int) -> None:
        self.ceiling = upto
        self.host.persist(Ceiling(upto))

    def last_word(self) -> Ceiling | None:
        """To be kept when this site stops in good order: a cold start then leaves nothing out."""
        if self.epoch < 0 or self.ceiling <= self.acked:
            return None
        return Ceiling(self.acked)

    def _ack(self, line: int) -> None:
        self._vouch()
        self.host.multicast(p.DaAck(self.epoch, self.acked, self.safe, self._waits()), line)

    def on_alive(self, alive: p.Alive, line: int) -> None:
        """The answer shows that we are there, and on which lines (GR-24)."""
        if alive.epoch == self.epoch and self.host.promised <= self.epoch:
            self._ack(line)
            return
        succeeded = alive.da != self.host.me and self.host.promised <= alive.epoch
        if succeeded and alive.start < self.ceiling:
            # Another one acknowledges now: what we did is below the beginning of its reign.
            self._set_ceiling(alive.start)

    def on_recovered(self, recovered: p.Recovered, source: int, now: int) -> None:
        """From the retransmitter: what its broadcasts left out, or what is being installed."""
        if self.next_epoch >= 0 and source == self.next_cr and recovered.epoch == self.next_epoch:
            for message in recovered.messages:
                if message.gseq >= self.next_ring.end and len(self.fetched) < self.config.history:
                    self.fetched[message.gseq] = message
            self._install(now)
        elif source == self.host.reign.cr and recovered.epoch == self.epoch >= self.host.promised:
            for message in recovered.messages:
                ours = message.epoch == self.epoch and message.gseq == self.expected
                if ours and self._room(now):
                    self._store(message)
                    self.acked = self.expected

    # -- recorders -------------------------------------------------------------------------

    def _room(self, now: int) -> bool:
        """GR-11: whether one more message can be kept without losing one that is needed."""
        ring, config = self.ring, self.config
        if len(ring) > config.da_buffer - config.overwrite_group:
            self._secure()
            if not self.polling and ring.oldest().end > self.safe:
                self.polling = True
                self._poll(now)
        while len(ring) >= config.da_buffer and ring.oldest().end <= self.safe:
            ring.let_go()
        room = len(ring) < config.da_buffer
        self.full_since = NEVER if room else min(self.full_since, now)
        return room

    def _followed(self) -> list[int]:
        """The recorders that are not given up, nor so far behind that others have to serve them."""
        return [
            recorder
            for recorder, mark in self.marks.items()
            if recorder not in self.suspected and (mark == UNKNOWN or mark >= self.ring.first)
        ]

    def lacking(self) -> list[int]:
        """GR-11: the recorders that must have the oldest message before it may go.

        Those that are followed; if none of them lacks it, those that would keep it whole.
        """
        oldest, marks = self.ring.oldest(), self.marks
        followed = [recorder for recorder in self._followed() if marks[recorder] < oldest.end]
        keepers = self.host.roles.keepers(oldest)
        return followed or [recorder for recorder in keepers if marks[recorder] < oldest.end]

    def _waits(self) -> tuple[int, ...]:
        """What everybody is told when there has been no room for long: it may be for good."""
        now = self.host.ways.now
        if self.full_since + self.config.alive_timeout_ns > now:
            return ()
        return tuple(self.lacking()[: p.WAITS_MAX])

    def _secure(self) -> None:
        """Raise `safe` over what all recorders that are not given up have, if one keeps it."""
        everywhere = min((self.marks[recorder] for recorder in self._followed()), default=NEVER)
        if everywhere <= self.safe:
            return
        for message in self.ring.since(max(self.safe, self.ring.first)):
            if message.end > everywhere:
                break
            keepers = self.host.roles.keepers(message)
            if keepers and not any(self.marks[recorder] >= message.end for recorder in keepers):
                break
            self.safe = message.end

    def _poll(self, now: int) -> None:
        upto = self.expected
        if self.polling:
            unsafe = self.ring.since(max(self.safe, self.ring.first))
            group = islice(unsafe, self.config.overwrite_group)
            upto = max((message.end for message in group), default=self.safe)
        for recorder, mark in self.marks.items():
            if mark >= upto and recorder not in self.suspected:
                continue
            missed = self.unanswered.get(recorder, 0)
            self.unanswered[recorder] = missed + 1
            if self.polling and missed >= self.config.attempts and recorder not in self.suspected:
                self.suspected.add(recorder)
                self.host.notify(MemberSuspected(recorder))
            self.host.ask(recorder, p.Poll(upto), missed)
        self._secure()
        if self.polling and self.ring and self.ring.oldest().end <= self.safe:
            self.polling = False
        self.poll_due = now + (self.config.bcast_ns if self.polling else self.config.poll_ns)

    def on_poll_ok(self, ok: p.PollOk, source: int, now: int) -> None:
        if source not in self.marks or self.epoch < 0:
            return
        if ok.upto > self.acked:
            self.host.drop("recorded what was never acknowledged")
            return
        self.speaks(source)
        self.marks[source] = ok.upto
        before = self.safe
        self._secure()
        if before < self.safe == self.expected == self.acked and self.host.promised <= self.epoch:
            self._ack(self.host.ways.usual)  # all is recorded: whoever waits for that hears of it
        if self.polling and self.ring and self.ring.oldest().end <= self.safe:
            self.polling = False
            self.poll_due = now + self.config.poll_ns

    def speaks(self, recorder: int) -> None:
        """A recorder is there."""
        self.unanswered.pop(recorder, None)
        self.suspected.discard(recorder)

    def on_recover(self, recover: p.Recover, source: int) -> None:
        if source in self.marks:
            self.speaks(source)
        answer_recover(self.host, self.ring, recover, source)

    def on_slow(self, slow: p.Slow, source: int, now: int) -> None:
        """GR-12."""
        if source not in self.marks:
            return
        config = self.config
        self.speaks(source)
        if slow.level:
            self.pleas.add(source)
            delay = min(config.max_delay_ns, config.base_delay_ns << min(slow.level, 32))
            self.delay_ns = max(self.delay_ns, delay)
            self.slow_due = now + config.slow_hold_ns

    # -- timers ----------------------------------------------------------------------------

    @property
    def deadline(self) -> int:
        if self.next_epoch >= 0:
            return min(self.fetch_due, self.slow_due)
        if self.epoch < 0:
            return NEVER
        poll = self.poll_due if self.safe < self.expected else NEVER
        return min(self.ack_due, self.slow_due, poll)

    def on_timer(self, now: int) -> None:
        if self.ack_due <= now:
            self.ack_due = NEVER
            self.acked = self.expected
            if self.host.promised <= self.epoch:
                self._ack(self.ack_line)
        if self.slow_due <= now:
            self.delay_ns //= 2
            self.slow_due = now + self.config.slow_hold_ns
            if self.delay_ns < self.config.base_delay_ns:
                self.delay_ns = 0
                self.slow_due = NEVER
                self.pleas.clear()
        if self.next_epoch >= 0:
            if self.fetch_due <= now:
                self._install(now)
        elif self.epoch >= 0 and self.poll_due <= now and self.safe < self.expected:
            self._poll(now)

    # -- take-over -------------------------------------------------------------------------

    def on_takeover(self, pdu: p.Takeover, source: int, now: int) -> None:
        """GR-28, step INSTALL: become the acknowledger of a reign to come."""
        if pdu.step != p.INSTALL:
            return
        if pdu.epoch != self.host.promised:
            self.host.send(source, p.Stale(self.host.promised, self.host.reign.cr))
            return
        if pdu.epoch == self.epoch:
            self._ready()
            return
        if pdu.epoch != self.next_epoch:
            self.next_epoch = pdu.epoch
            self.next_cr = source
            self.next_pages = Pages()
            self.fetched.clear()
            self.fetch_due = NEVER
        if self.next_pages.add(pdu.state) and self.fetch_due >= NEVER:
            state = self.next_pages.state
            self.next_ring = Ring(state.safe)
            if self.epoch >= 0:
                for message in self.ring.since(max(state.safe, self.ring.first), state.top):
                    if message.gseq == self.next_ring.end:
                        self.next_ring.add(message)
            self._install(now)

    def _install(self, now: int) -> None:
        """Fetch what the recorders may lack; say so when it is all here."""
        state, ring = self.next_pages.state, self.next_ring
        before = ring.end
        while ring.end in self.fetched:
            ring.add(self.fetched.pop(ring.end))
        if ring.end >= state.top:
            self._begin(state, now)
            # Whoever has the state supports the reign: from now on it is the last one here.
            assert self.host.council is not None
            self.host.council.accept(Reign(self.epoch, self.next_cr, self.host.me))
            self._ready()
            return
        moved = ring.end > before
        answered = moved and not self.fetched and len(ring) % self.config.rec_burst == 0
        if self.fetch_due <= now or self.fetch_due >= NEVER or answered:
            self.tries = 0 if moved else self.tries + 1
            if self.tries > self.config.attempts:  # until the candidate speaks again
                self.tries = 0
                self.fetch_due = NEVER
                return
            self.fetch_due = now + self.config.rec_ns
            recover = p.Recover(((ring.end, state.top),), self.next_epoch)
            self.host.ask(self.next_cr, recover, self.tries)

    def _begin(self, state: p.State, now: int) -> None:
        """What was installed counts from now on."""
        self.epoch, self.next_epoch = self.next_epoch, -1
        self.ring = self.next_ring
        self.counters = Counters(state.counters, state.time)
        self.safe = state.safe
        self.acked = state.top
        self._vouch()
        self.marks = dict.fromkeys(self.marks, UNKNOWN)
        self.suspected.clear()
        self.unanswered.clear()
        self.fetched.clear()
        self.polling = False
        self.ack_due = self.full_since = self.fetch_due = NEVER
        self.poll_due = now

    def _ready(self) -> None:
        reign = self.host.reign
        grant = p.Grant(
            p.INSTALL, self.host.promised, reign.epoch, reign.cr, reign.da, p.BLANK, p.NO_STATE
        )
        self.host.send(self.next_cr, grant)
