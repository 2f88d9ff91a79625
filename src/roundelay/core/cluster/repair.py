"""Receipt and repair on multi-channel media: accept in order, keep the early, ask for the lost.

The receipt condition is the same for PO and SPO: a PDU is accepted when it is the next one meant
for us from its source, and when it acknowledges nothing that we have not accepted ourselves.  A
PDU that comes too early is kept (`blocked`), not thrown away.  A hole in the partial numbers is a
loss for sure and is asked for at once; an acknowledgement of something we lack may just have
overtaken it on another channel, so that waits.
"""

from __future__ import annotations

from abc import abstractmethod

from roundelay.core.cluster.exchange import Exchange
from roundelay.core.cluster.flush import Tails, key, taken, union
from roundelay.core.cluster.pdu import Dt, Retx, Stat
from roundelay.core.engine import ACCEPTED, ACKNOWLEDGED, NEVER, PREACKNOWLEDGED


class Repair(Exchange):
    """The receiving half of a member on an MC medium."""

    __slots__ = ()

    # -- receipt ---------------------------------------------------------------------------

    def on_sequenced(self, pdu: Dt, now: int) -> None:
        """PO-3…PO-5, SPO-A1…A4: accept, keep or drop."""
        if not self.in_epoch(pdu, now):
            return
        j = pdu.src
        if pdu.seq < self.treq[j]:
            return  # SPO-A4: a duplicate
        self.note_position(pdu)
        if self.acceptable(pdu):
            self.accept(pdu, now)
        elif self.destinations(pdu) >> self.index & 1:
            if not self.hold(pdu):
                return
            self.look_for_gaps(pdu, now)
        elif self.place(pdu, self.index) > self.preq[j]:
            # Not for us: its acknowledgements will come again with what is.  But it tells how
            # many PDUs of its source were (SPO-L1).
            self.surely_missing(j, self.place(pdu, self.index), now)
        if any(self.blocked):
            self.unblock(now)
        self.after_receipt(now)

    def hold(self, pdu: Dt) -> bool:
        """Keep a PDU that is too early, if there is room."""
        blocked = self.blocked[pdu.src]
        if pdu.seq not in blocked:
            if self.free() <= 0:
                self.drop("no buffer for an early PDU")
                return False
            blocked[pdu.seq] = pdu
        return True

    def note_position(self, pdu: Dt) -> None:
        """What the mere receipt of `pdu` tells; SPO learns which numbers were not for it."""

    def skip(self, j: int, place: int, seq: int) -> bool:
        """SPO-A3, TR-7: j is at `seq`, and the next one for us is yet to come: skip to there."""
        if place != self.preq[j] or seq <= self.treq[j]:
            return False
        self.treq[j] = self.al[j][self.index] = seq
        return True

    def acceptable(self, pdu: Dt) -> bool:
        """PO-3, SPO-A1: the next one for us, and it acknowledges nothing that we lack."""
        j, i = pdu.src, self.index
        if self.place(pdu, self.index) != self.preq[j] or pdu.seq < self.treq[j]:
            return False
        treq = self.treq
        return not any(number > treq[k] and k != j and k != i for k, number in enumerate(pdu.ack))

    def accept(self, pdu: Dt, now: int) -> None:
        """PO-4, SPO-A2."""
        j = pdu.src
        if self.destinations(pdu) >> self.index & 1:
            self.preq[j] = self.place(pdu, self.index) + 1
        self.note_vector(pdu)
        self.enter(pdu, now)
        self.note_obligations(pdu, now)

    @abstractmethod
    def enter(self, pdu: Dt, now: int) -> None:
        """An accepted PDU takes its place in the receipt log."""

    @abstractmethod
    def advance(self, now: int) -> None:
        """Move what has become pre-acknowledged or acknowledged along the receipt logs."""

    def after_receipt(self, now: int) -> None:
        self.count_accepted()
        self.advance(now)
        if self.owed_now:
            self.pay_now(now)
            self.advance(now)
        self.pump(now)

    def take_own(self, pdu: Dt, now: int) -> None:
        """A member accepts its own PDUs as it sends them."""
        self.accept(pdu, now)
        self.advance(now)

    def unblock(self, now: int) -> None:
        """Accept what was too early and is in turn now."""
        progress = True
        while progress:
            progress = False
            for j, blocked in enumerate(self.blocked):
                while blocked:
                    seq = min(blocked)
                    pdu = blocked[seq]
                    if seq < self.treq[j]:
                        del blocked[seq]
                        continue
                    self.note_position(pdu)
                    if not self.acceptable(pdu) or self.crowded(j):
                        break
                    del blocked[seq]
                    self.accept(pdu, now)
                    progress = True

    # -- missing PDUs ----------------------------------------------------------------------

    def look_for_gaps(self, pdu: Dt, now: int) -> None:
        """PO-5, SPO-L1, SPO-L2: what the blocked `pdu` shows to be missing."""
        j, i = pdu.src, self.index
        place = self.place(pdu, self.index)
        if place > self.preq[j]:
            self.surely_missing(j, place, now)
        for k, number in enumerate(pdu.ack):
            if number > self.treq[k] and k != j and k != i:
                self.maybe_missing(k, number, now)

    def surely_missing(self, j: int, below: int, now: int) -> None:
        """PDUs of j for us with partial numbers below that exist: ask at once."""
        gap = self.gaps.setdefault(j, [0, 0, NEVER])
        if below <= gap[0]:
            return
        gap[0] = below
        self.ask(j, gap, now)

    def maybe_missing(self, j: int, number: int, now: int) -> None:
        """Somebody has PDUs of j up to there; they may be late, or not for us: wait t_wait."""
        gap = self.gaps.setdefault(j, [0, 0, NEVER])
        if number > gap[1]:
            gap[1] = number
        if gap[2] >= NEVER:
            gap[2] = now + self.config.wait_ns
            self.gap_due = min(self.gap_due, self.arm(gap[2]))

    def ask(self, j: int, gap: list[int], now: int) -> None:
        """Ask the source for the first hole, again every t_wait while it lasts."""
        held = {self.place(pdu, self.index) for pdu in self.blocked[j].values()}
        lo = self.preq[j]
        while lo in held:
            lo += 1  # here, but waiting for another source's PDU
        hi = min([gap[0], *(place for place in held if place > lo)]) - 1
        if hi >= lo:
            self.send_to(j, self.KINDS.retx(epoch=self.epoch, by=self.index, src=j, lo=lo, hi=hi))
        gap[2] = now + self.config.wait_ns
        self.gap_due = min(self.gap_due, self.arm(gap[2]))

    def on_gap_timer(self, now: int) -> None:
        for j, gap in list(self.gaps.items()):
            if self.preq[j] >= gap[0] and self.treq[j] >= gap[1]:
                del self.gaps[j]
            elif gap[2] <= now:
                if self.preq[j] < gap[0]:
                    self.ask(j, gap, now)
                else:
                    self.still_unsure(j, gap, now)
        self.gap_due = min((gap[2] for gap in self.gaps.values()), default=NEVER)

    def still_unsure(self, j: int, gap: list[int], now: int) -> None:
        """PO-5: t_wait has passed.  What goes to everybody is lost; ask for it."""
        gap[0] = gap[1]
        self.ask(j, gap, now)

    def on_retx(self, pdu: Retx, now: int) -> None:
        if self.rst >= 0 or self.stopped or pdu.epoch != self.epoch or pdu.src != self.index:
            return
        self.send_again(pdu.by, pdu.lo, pdu.hi, now)

    def send_again(self, k: int, lo: int, hi: int, now: int) -> bool:
        """PO-8, SPO-X: by broadcast; TR-9: not too often, not too many at once.

        TR-6: verbatim.  With a newer vector members would disagree on what a PDU acknowledges.
        """
        sent = 0
        damped = now - self.config.wait_ns * 9 // 10
        for seq, pdu in self.sl.items():
            if not self.destinations(pdu) >> k & 1 or not lo <= self.place(pdu, k) <= hi:
                continue
            sent += 1
            if self.resent.get(seq, -NEVER) <= damped:
                self.resent[seq] = now
                self.send_all(pdu)
            if sent >= self.config.retx_burst:
                break
        return sent > 0

    # -- STAT ------------------------------------------------------------------------------

    def stat(self, poll: bool) -> Stat:
        pseq = tuple(self.pseq) if self.selective else (self.seq,) * self.n
        expected = (tuple(self.treq), tuple(self.preq))
        return self.KINDS.stat(self.epoch, self.index, self.seq, pseq, *expected, self.free(), poll)

    def poll(self, now: int) -> None:
        self.send_all(self.stat(poll=True))

    def on_stat(self, pdu: Stat, now: int) -> None:
        """TR-7: a STAT shows what we lack, what its sender lacks, and what was not for us.

        TR-8: so the loss of a member's last PDU shows, although no later one ever will.  A STAT
        never raises AL: that would pre-acknowledge a PDU without its acknowledgement in hand.
        """
        if self.rst >= 0 or self.stopped or pdu.epoch != self.epoch:
            return
        j, i = pdu.src, self.index
        self.bufs[j] = pdu.buf
        self.known[j] = max(self.known[j], pdu.treq[i])
        if pdu.pseq[i] > self.preq[j]:
            self.surely_missing(j, pdu.pseq[i], now)
        elif self.skip(j, pdu.pseq[i], pdu.seq):
            self.unblock(now)
        if pdu.poll:
            self.answer(pdu, now)
        self.after_receipt(now)

    def answer(self, pdu: Stat, now: int) -> None:
        """TR-7: a poll gets what its sender lacks of us, or learns what was not for it.

        TR-15: who lacks nothing is answered, too, if it has heard nothing of us since its last
        poll.  An answer to every poll would flood a slow channel when all members poll.
        """
        j, i = pdu.src, self.index
        mine = self.pseq[j] if self.selective else self.seq
        if not (pdu.preq[i] < mine and self.send_again(j, pdu.preq[i], mine - 1, now)):
            unheard = self.unheard >> j & 1 or self.config.attempts == 1
            if unheard or pdu.treq[i] < self.seq:
                self.send_to(j, self.stat(poll=False))
        self.unheard |= 1 << j

    # -- the end of a cluster --------------------------------------------------------------

    def waiting(self) -> list[Dt]:
        stage = self.config.deliver_at
        logs = [] if stage == ACCEPTED else [*self.rrl]
        if stage == ACKNOWLEDGED:
            logs = [*self.prl, *logs]
        return [pdu for log in logs for pdu in log if pdu.bundle.sizes and self.for_us(pdu)]

    def for_us(self, pdu: Dt) -> bool:
        return bool(self.destinations(pdu) >> self.index & 1)

    def unsure(self, living: int) -> tuple[Dt, ...]:
        pdus = []
        for pdu in self.in_logs():
            dst, al = self.destinations(pdu) & living, self.al[pdu.src]
            if pdu.bundle.sizes and any(al[k] <= pdu.seq for k in self.everyone if dst >> k & 1):
                pdus.append(pdu)
        return tuple(pdus)

    def rest(self, tails: Tails) -> list[Dt]:
        return [pdu for pdu in union(self.waiting(), tails, self.treq) if self.for_us(pdu)]

    def hand_over_known(self, tails: Tails) -> None:
        """TR-16, where the others went on without us, and we lack their tails or some of them: hand
        over what we have accepted and know that all of them were given.

        They have accepted what is pre-acknowledged, and one of those with `tails` the rest.  What
        is left in the logs afterwards may or may not have been handed over elsewhere.
        """
        self.halt()
        known = {id(pdu) for log in self.prl for pdu in log}
        handed, ended = set(), set()
        for pdu in sorted(self.waiting(), key=key):
            others = self.destinations(pdu) & ~(1 << self.index)
            sure = id(pdu) in known or taken(others, pdu.src, pdu.seq, tails, self.ranks)
            if pdu.src in ended or not sure:
                ended.add(pdu.src)  # what comes behind it would be out of order
                continue
            handed.add(id(pdu))
            self.hand_over(pdu, self.config.deliver_at)
        for log in (*self.rrl, *self.prl):
            kept = [pdu for pdu in log if id(pdu) not in handed]
            log.clear()
            log.extend(kept)
        self.waiting_delivery -= len(handed)

    def handed_over_early(self) -> list[Dt]:
        waits = self.rrl if self.config.early == PREACKNOWLEDGED else []
        not_yet = {id(pdu) for log in waits for pdu in log}
        return [pdu for pdu in self.in_logs() if id(pdu) not in not_yet]

    def empty_logs(self, tails: Tails) -> None:
        for log in (*self.rrl, *self.prl):
            log.clear()
        self.waiting_delivery = 0
