"""The Central Retransmitter: gives messages their place and broadcasts them (GR-2 … GR-8, GR-24).

It takes one submission at a time of each user, stamps it with the next position and the date,
broadcasts it and repeats that until the acknowledger has it; only then does the next one go out
and the submitter hear that its message is stable.  While it has nothing to broadcast it says that
it is alive.  How a retransmitter comes to reign is in `takeover`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from roundelay.core.bundle import Bundle
from roundelay.core.engine import NEVER
from roundelay.core.grsb import pdu as p
from roundelay.core.grsb.base import Counters, Host, Reign, Ring
from roundelay.core.notices import LineMode

Admit = Callable[[p.Submit, int], bool]
"""Place of the Security Controller (§6.8): may this submission of that user be broadcast?"""


LINES: Final = {p.DUAL: "dual", p.SINGLE_LINE: "single", p.ONLY_B: "only-b"}
"""What a notice `line` says."""


class Sequencer:
    """Gives messages their places: positions and dates without a hole (GR-3)."""

    def __init__(self, state: p.State, epoch: int, keep: int) -> None:
        self.epoch = epoch
        self.start = state.top
        self.next = state.top
        self.counters = Counters(state.counters, state.time)
        self.history = Ring(state.top)
        self.keep = keep

    def stamp(self, submit: p.Submit, sender: int, wall_us: int) -> p.Message:
        """GR-3: the next place, and a date that rises though the clock may not."""
        time = max(wall_us, self.counters.time + 1)
        message = p.Message(
            self.epoch, self.next, time, sender, submit.inc, submit.sseq,
            submit.conference, submit.mtype, submit.gid, submit.kind, submit.bundle,
        )  # fmt: skip
        self.remember(message)
        return message

    def remember(self, message: p.Message) -> None:
        """`message` has the next place."""
        self.history.add(message)
        if len(self.history) > self.keep:
            self.history.let_go()
        self.next = message.end
        self.counters.count(message)


class Retransmitter:
    """CR, reigning or standing by."""

    def __init__(self, host: Host, now: int, admit: Admit | None = None) -> None:
        self.host = host
        self.config = host.config
        self.admit = admit
        self.reigning = False
        self.epoch = -1  # of the reign whose state is here; -1: none
        self.da = -1
        self.sequencer = Sequencer(p.State(0, 0, 0), -1, self.config.history)
        self.acked = 0
        self.recorded = 0
        self.outstanding: deque[p.Message] = deque()
        self.queue: dict[int, p.Submit] = {}  # by sender: one each, in the order they came
        self.mode = p.DUAL
        self.tries = 0  # repetitions without any answer
        self.answered_at = now
        self.bcast_due = NEVER
        self.alive_due = NEVER
        self.said_at = now  # when we last said that we are alive, and on which lines
        self.answered_a = now  # when the acknowledger was last heard there
        self.probe_due = NEVER

    # -- reigning --------------------------------------------------------------------------

    def begin(self, reign: Reign, sequencer: Sequencer, recorded: int, now: int) -> None:
        """The reign is ours, and everything that has a place is stable."""
        self.hold(reign.epoch, sequencer, recorded)
        self.reigning = True
        self.da = reign.da
        sequencer.epoch = reign.epoch
        sequencer.start = self.acked = sequencer.next
        self.mode = p.DUAL if self.host.roles.lines == 2 else p.SINGLE_LINE
        self.tries = 0
        self.answered_at = self.answered_a = now
        self.bcast_due = NEVER
        self._say_alive(now, both=True)
        self._pump(now)

    def hold(self, epoch: int, sequencer: Sequencer, recorded: int) -> None:
        """The state of a reign that may begin is here."""
        self.epoch = epoch
        self.sequencer = sequencer
        self.recorded = recorded
        self.outstanding.clear()  # stable then, if they survived: who repeats them hears of it

    def stand_by(self) -> None:
        """Someone else reigns, or is about to: what is here stays for whoever asks."""
        self.reigning = False
        self.queue.clear()
        self.bcast_due = self.alive_due = self.probe_due = NEVER

    def forget(self) -> None:
        """A later reign has begun elsewhere: the state of ours is of no use any more."""
        self.stand_by()
        self.epoch = -1
        self.outstanding.clear()

    def pages(self) -> list[p.State]:
        """State for a successor: all that has a place may be stable."""
        sequencer = self.sequencer
        safe = max(self.recorded, sequencer.history.first)
        return sequencer.counters.pages(safe, sequencer.next)

    # -- submissions -----------------------------------------------------------------------

    def on_submit(self, submit: p.Submit, sender: int, now: int) -> None:
        """GR-2."""
        if not self.reigning:
            reign = self.host.reign
            if reign.cr != self.host.me:
                self.host.send(sender, p.Stale(reign.epoch, reign.cr))
            return
        if sender not in self.host.roles.users:
            self.host.drop("not a user")
            return
        known = self.sequencer.counters.get(sender)
        waiting = self.queue.get(sender)
        if submit.inc < max(known.inc, -1 if waiting is None else waiting.inc):
            self.host.drop("submission of an earlier start")
            return
        expected = known.sseq if submit.inc == known.inc else 0
        if waiting is not None:
            if waiting.inc == submit.inc:
                return
            del self.queue[sender]  # its user has forgotten it
        if submit.sseq < expected:
            if submit.sseq == expected - 1 and known.gseq < self.acked:
                self._answer(sender, submit, p.STABLE, known.gseq)
            return
        if submit.sseq > expected:
            self.host.drop("submission out of turn")
            return
        if self.admit is not None and not self.admit(submit, sender):
            self._answer(sender, submit, p.REFUSED, 0)
            return
        if len(self.queue) >= self.host.roles.sites:
            self.host.drop("too many submissions")
            return
        self.queue[sender] = submit
        self._pump(now)

    def _answer(self, sender: int, submit: p.Submit, status: int, gseq: int) -> None:
        self.host.send(sender, p.SubmitAck(submit.inc, submit.sseq, status, gseq))

    def _confirm(self, message: p.Message) -> None:
        """GR-5: the submitter hears of it when nobody can lose it any more."""
        if message.mtype != p.ABORT:
            ack = p.SubmitAck(message.inc, message.sseq, p.STABLE, message.gseq)
            self.host.send(message.sender, ack)

    # -- broadcasts ------------------------------------------------------------------------

    def _pump(self, now: int) -> None:
        """GR-4: stamp and broadcast while the window is open."""
        while self.queue and len(self.outstanding) < self.config.window and self._room():
            sender, submit = next(iter(self.queue.items()))
            known = self.sequencer.counters.get(sender)
            if known.inc < submit.inc and known.units:
                # GR-19: what it had open will never be completed, and everybody learns it here.
                submit = p.Submit(submit.inc, 0, 0, p.ABORT, 0, 0, b"", Bundle.of(b""))
            else:
                del self.queue[sender]
            self._launch(self.sequencer.stamp(submit, sender, self.host.wall_us(now)), now)

    def _launch(self, message: p.Message, now: int) -> None:
        """Broadcast what has just got its place."""
        if not self.outstanding:
            self.tries = 0
            self.bcast_due = now + self.config.bcast_ns
        self.outstanding.append(message)
        self._broadcast(message)
        self.alive_due = now + self.config.alive_ns

    def _room(self) -> bool:
        """GR-28: what the recorders may lack stays in the history, for the next acknowledger."""
        history = self.sequencer.history
        return len(history) < self.config.history or history.oldest().end <= self.recorded

    def _line(self) -> int:
        """GR-22: broadcasts have a line of their own, unless there is none."""
        return p.LINE_A if self.mode == p.SINGLE_LINE else p.LINE_B

    def _broadcast(self, message: p.Message) -> None:
        self.host.multicast(p.Bcast(message, self.acked), self._line())

    def on_ack(self, ack: p.DaAck, source: int, line: int, now: int) -> None:
        """The acknowledger speaks: even an old mark shows that it is there."""
        if not self.reigning or ack.epoch != self.epoch or source != self.da:
            return
        if line == p.LINE_A:
            self.answered_a = now
        if (line, self.mode) in (
            (p.LINE_B, p.SINGLE_LINE),
            (p.LINE_A, p.ONLY_B),
        ):  # GR-24: it is back
            self.answered_at = self.answered_a = now
            self.tries = 0
            self._change(p.DUAL, NEVER)
        elif line == self._line():
            self.answered_at = now
            self.tries = 0
        if ack.gseq > self.sequencer.next:
            self.host.drop("acknowledged what was never sent")
            return
        self.recorded = max(self.recorded, min(ack.safe, ack.gseq))
        if ack.gseq > self.acked:
            self.acked = ack.gseq
            outstanding = self.outstanding
            while outstanding and outstanding[0].end <= ack.gseq:
                self._confirm(outstanding.popleft())
            self.bcast_due = now + self.config.bcast_ns if outstanding else NEVER
        self._pump(now)

    # -- timers ----------------------------------------------------------------------------

    @property
    def deadline(self) -> int:
        due = min(self.bcast_due, self.alive_due, self.probe_due)
        if self.reigning and self.host.roles.lines == 2:
            due = min(due, self.said_at + self.config.alive_ns)
        return due

    def on_timer(self, now: int) -> bool:
        """Whether the acknowledger must be taken for dead (GR-8)."""
        if not self.reigning:
            return False
        if self.bcast_due <= now:
            if self._unanswered():
                self.bcast_due = now + self.config.bcast_ns
                return True
            for message in self.outstanding:
                self._broadcast(message)
            self.bcast_due = now + self.config.bcast_ns
            self.alive_due = max(self.alive_due, now + self.config.alive_ns)
        if self.probe_due <= now:
            self.probe_due = now + self.config.probe_ns
            self.host.multicast(self.alive(now), p.LINE_A if self.mode == p.ONLY_B else p.LINE_B)
        self._watch_a(now)
        lonely = self.host.roles.lines == 2 and self.said_at + self.config.alive_ns <= now
        if self.alive_due <= now:
            if not self.outstanding and self._unanswered():
                self.alive_due = now + self.config.alive_ns
                return True
            self._say_alive(now, both=True)
        elif lonely:
            self._say_alive(now, both=False)
        return False

    def _unanswered(self) -> bool:
        """GR-8: one more repetition; whether there have been too many."""
        self.tries += 1
        if self.tries <= self.config.attempts:
            return False
        self.tries = 0
        if self.mode != p.SINGLE_LINE:  # GR-24: perhaps it is the line
            self._change(p.SINGLE_LINE, 0)
            return False
        return True

    def _watch_a(self, now: int) -> None:
        """GR-24, for line A: do without it if the acknowledger is heard on line B alone."""
        patience = self.config.alive_timeout_ns
        if (
            self.mode == p.DUAL
            and self.answered_a + 2 * patience < now < self.answered_at + patience
        ):
            self._change(p.ONLY_B, now + self.config.probe_ns)

    def _change(self, mode: int, probe_due: int) -> None:
        """Everybody hears of it with the next sign of life, which comes soon."""
        self.mode = mode
        self.probe_due = probe_due
        self.said_at = -self.config.alive_ns
        self.host.notify(LineMode(LINES[mode]))

    def alive(self, now: int) -> p.Alive:
        sequencer = self.sequencer
        return p.Alive(
            self.epoch, sequencer.start, sequencer.next, self.acked, self.recorded,
            self.host.wall_us(now), self.mode, self.da,
        )  # fmt: skip

    def _say_alive(self, now: int, both: bool) -> None:
        """GR-6; line A hears of us even while all broadcasts are on line B, and of two lines
        everybody hears which ones are used even while there are broadcasts."""
        alive = self.alive(now)
        self.host.multicast(alive, p.LINE_B if self.mode == p.ONLY_B else p.LINE_A)
        self.said_at = now
        if both:
            if self.mode == p.DUAL:
                self.host.multicast(alive, p.LINE_B)
            self.alive_due = now + self.config.alive_ns


def answer_recover(host: Host, ring: Ring, recover: p.Recover, source: int) -> None:
    """GR-7, GR-9: send what `ring` has of the ranges asked for; say what it has not."""
    room = host.config.rec_burst
    for lo, hi in recover.ranges:
        if lo not in ring.messages:
            first = max(lo, ring.first)  # where it goes on, or will
            host.send(source, p.Recovered(lo, max(lo, min(first, hi)), (), recover.epoch))
            lo = first
        for message in ring.since(lo, hi):
            if not room:
                return
            room -= 1
            host.send(source, p.Recovered(message.gseq, message.end, (message,), recover.epoch))
