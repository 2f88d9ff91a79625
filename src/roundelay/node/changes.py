"""Changes of a roster: proposed, agreed on in the group's own order, carried out by everybody."""

from __future__ import annotations

import secrets
import time
from contextlib import suppress
from typing import Any, Final

from roundelay.core.cluster.exchange import Exchange
from roundelay.core.engine import MS, NEVER, SECOND, Delivery, Notice
from roundelay.core.errors import MalformedPdu
from roundelay.core.token.pdu import DATA
from roundelay.node import settings
from roundelay.node.ending import doubtful, pieces
from roundelay.node.epochs import ASK_NS, GATHER_NS, Epochs
from roundelay.node.groups import MEMBERS_MAX, TO, TOKEN
from roundelay.node.left_out import part_with_epoch, tell
from roundelay.node.words import MARK, UNKNOWN, Change, Drained, Hold, Piece, Word, decode, encode
from roundelay.wire.info import Ask, Start

FORGET_NS: Final = 20 * SECOND
"""A member that has been dead for this long is left out of the next roster."""
DRAIN_NS: Final = SECOND
"""How long those who are to stop finish what is under way."""
ANSWER_NS: Final = 3 * SECOND
"""Who lives and says nothing for this long is left out."""
STEP_IN_NS: Final = SECOND // 2
"""How long a cluster that has stopped waits for each member whose turn it is before another's."""
RETURN_NS: Final = 10 * SECOND
"""How long those who have forgotten where they were wait for a member that may know."""
DEPART_NS: Final = 3 * SECOND // 2
"""How long one who has left waits for the others to see that."""


class Changes(Epochs):
    """See the module."""

    def _ask(self, incarnation: str) -> None:
        epoch = self.epoch if self.ring is not None else -1
        ask = Ask(self.spec.name, incarnation, self.node.name, epoch=epoch, life=self.node.uuid)
        self.node.send_control(ask)

    def _leader(self) -> bool:
        """Whether it is for us to propose: the first live member of the roster."""
        return not self._before_us()

    def _before_us(self) -> list[str]:
        """The live members for whom it is rather than for us to propose."""
        if self.node.name not in self.roster:
            return list(self.roster)
        before = self.roster[: self.roster.index(self.node.name)]
        there = (name for name in before if self._present(name) and self._in_ring(name))
        return [name for name in there if not self.asked.get(name)]

    def _step_in(self, now: int) -> None:
        """The cluster has stopped, and whoever is to propose does nothing: it may have died as
        well.  Nobody polls it any more, and the ring would be slow to notice; it is told to look.
        """
        engine = self.data.engine if self.data is not None else None
        if not (isinstance(engine, Exchange) and engine.stopped) or self.held_at:
            return
        patience = STEP_IN_NS * len(self._before_us())
        if now - self.stopped_at >= patience and self.ring is not None and self.ring.token:
            self.stopped_at = now
            self.ring.token.without(now)
            self.node.wake(self.ring)

    def _present(self, name: str) -> bool:
        """Whether the member is there: its node is alive, takes part in the group, and answers
        the polls of its engine.
        """
        if name == self.node.name:
            return True
        engine = self.data.engine if self.data is not None else None
        if isinstance(engine, Exchange) and self.roster.index(name) in engine.given_up():
            return False
        known = self.node.directory.by_name.get(name)
        return known is not None and self.spec.name in known.groups and self.node.alive(name)

    def _look_after_members(self, now: int) -> None:
        """Members that have been dead for long are left out; those who want in are let in."""
        for name in self.roster:
            if self._present(name):
                self.dead_since.pop(name, None)
                continue
            since = self.dead_since.setdefault(name, now)
            if now - since > FORGET_NS and self.works() and not self.named:
                self.asked[name] = True
        if self.asked and self.change_due >= NEVER:
            self.change_due = now + GATHER_NS

    def _propose(self, now: int) -> None:
        """Put the change into the order, if it is for us to do so."""
        self.change_due = NEVER
        if not self.asked or self.ring is None:
            return
        self.change_due = now + ASK_NS  # once more, if nothing comes of it
        if not self.works():
            return
        if not self._leader():
            self._step_in(now)
            return
        if self._next_roster() == self.roster and not self.reopen:
            self.asked.clear()
            self.asked_lives.clear()
            self.change_due = NEVER
            return
        if self.spec.protocol == TOKEN:
            self._say(self._change(-1))
        elif not self.held_at:
            self._say(Hold(self.epoch, tuple(filter(self._present, self.roster))))

    def _change(self, base: int, tails: tuple[str, ...] = (), history: str = "") -> Change:
        roster = self._next_roster()
        if tails:  # who has not answered does not go on, nor whose answer does not count
            gone = set(self.roster) - self._answered() | self.tails.by_name.keys() - set(tails)
            roster = tuple(name for name in roster if name not in gone) or (self.node.name,)
        lives = tuple(self._life(name) for name in roster)
        return Change(self.epoch, roster, lives, self._asked_level(), base, tails, history)

    def _life(self, name: str) -> bytes:
        """The UUID of the node of that name, as far as we know."""
        if name in self.asked_lives:
            return self.asked_lives[name]
        known = self.node.directory.by_name.get(name)
        if known is not None:
            return known.uuid
        return dict(zip(self.roster, self.lives, strict=True)).get(name, b"")

    def _next_roster(self) -> tuple[str, ...]:
        wanting = [
            known.name
            for known in self.node.directory.by_name.values()
            if (said := known.groups.get(self.spec.name)) is not None
            and not said.incarnation
            and self._may(known.name)
            and self.node.alive(known.name)
            and self.asked.get(known.name) is not True
        ]
        names = [name for name in self.roster if self.asked.get(name) is not True]
        wanting += [name for name, out in self.asked.items() if not out and self.node.alive(name)]
        names += sorted(set(wanting) - set(names))
        return tuple(sorted(names[:MEMBERS_MAX])) or (self.node.name,)

    def _say(self, word: Word) -> None:
        """Broadcast in the ring's order.

        What is in front tells our words from messages of applications, which may not begin so
        (`Seat.send`), and from those of other histories.
        """
        assert self.ring is not None
        self.ring.outbox.put_word(self._mark() + encode(word))
        self.node.wake(self.ring)

    def _mark(self) -> bytes:
        return MARK + self.incarnation.encode() + b"\0"

    def _ring_delivery(self, delivery: Delivery) -> bool:
        """Look for our words in the order; True: not for applications.

        In a token group what is no word after all is a message like others: it has a position.
        """
        bundle, token = delivery.bundle, self.spec.protocol == TOKEN
        if not bundle.data.startswith(MARK) or not bundle.data.startswith(mark := self._mark()):
            return not token
        try:
            word = decode(bundle.data[len(mark) :], self.roster[delivery.source])
            if token and not (isinstance(word, Change) and word.epoch == self.epoch):
                raise MalformedPdu("word of the ring", "nobody says so in a token group")
        except MalformedPdu as error:
            self.node.drop(error.reason)
            return not token
        now = time.monotonic_ns()
        if isinstance(word, Change):
            if word.epoch == self.epoch:
                self._changed(word, delivery.seq, now)
        elif isinstance(word, Hold):
            if word.epoch == self.epoch and not self.held_at:
                self.held_at = now
                self.living = word.living or self.roster
                if self.data is not None:
                    self.data.held = True
                self._drain(now)
        elif isinstance(word, Piece):
            if word.epoch == self.epoch:
                reason = self.tails.hear(word, self.data.engine if self.data is not None else None)
                if reason:
                    self.node.drop(reason)
                self._drain(now)
        else:
            self.drained[word.name] = word
            self._drain(now)
        return True

    def _changed(self, change: Change, seq: int, now: int) -> None:
        """The epoch is over, here and now, for everybody."""
        token = self.spec.protocol == TOKEN
        base = self.base + seq if token else change.base
        if token and self.data is not None:
            self.data.expected = base  # the next epoch goes on in the place of CHANGE
        if token:
            self._count()
        start = Start(
            self.spec.name, self.incarnation, self.epoch + 1, change.roster, change.lives, base,
            change.resilience, self._counted(), self.decreed, change.history or self._later(),
            self.settings,
        )  # fmt: skip
        if not token:
            self._finish(change, now)
        if self.node.name in change.roster:
            self._enter(start, now)
            return
        # Left out: because we asked for it, or were thought dead.
        self._retire(now)
        self.incarnation, self.epoch, self.roster, self.lives = "", -1, (), ()
        self._unsettle()
        self.asked.clear()
        self.outbox.send_again()
        folder = self._folder()
        if folder is not None and (folder / "roster.json").exists():
            (folder / "roster.json").unlink()
        self.since = now
        self.state = "looking for members"
        if self.leaving:
            self.departed, self.departed_until = start, now + DEPART_NS
        self._wake_at(now)

    def _carry_out(self, now: int) -> None:
        """CHANGE may be in our log although we died before we had carried it out: nobody delivers
        it a second time."""
        engine = self.ring.token if self.ring is not None else None
        if self.spec.protocol != TOKEN or engine is None:
            return
        mark = self._mark()
        for ts in range(engine.first_kept, engine.cnts):
            entry = engine.log[ts]
            if entry.ack.kind != DATA or not entry.bundle.data.startswith(mark):
                continue
            with suppress(MalformedPdu):
                word = decode(entry.bundle.data[len(mark) :], self.roster[entry.ack.s])
                if isinstance(word, Change) and word.epoch == self.epoch:
                    self._changed(word, entry.seq, now)
                    return

    def _later(self) -> str:
        """The history of the next epoch, where it is not the incarnation."""
        history = self.history_id
        return "" if history == self.incarnation else history

    def _count(self) -> None:
        """How many bundles of each member the epoch that ends has, as far as acknowledged here.

        What is not among them was not delivered by anybody and never will be: its source may send
        it again, whatever it has missed meanwhile.
        """
        ring = self.ring
        assert ring is not None
        assert ring.token is not None
        directory, group = self.node.directory.by_name, self.spec.name
        for member, name in enumerate(self.roster):
            known = directory.get(name)
            said = known.groups.get(group) if known is not None else None
            if said is not None and said.epoch >= self.epoch:
                # It was in this epoch: how earlier ones ended is no question any more.
                for old in [key for key in self.counted if key[0] == name]:
                    del self.counted[old]
            self.counted[name, self.epoch] = ring.token.next_num[member]

    def _depart(self, now: int) -> None:
        """We may be the only one to know that the epoch is over: stay until the others do."""
        start = self.departed
        assert start is not None
        directory = self.node.directory.by_name
        name = start.group
        behind = [
            member for member in start.roster
            if self.node.alive(member) and (
                (said := directory[member].groups.get(name)) is None
                or said.incarnation != start.incarnation or said.epoch < start.epoch
            )
        ]  # fmt: skip
        if self.leaving and behind and now < self.departed_until:
            self.node.send_control(start)
            self.deadline = now + ASK_NS // 3
            return
        self.departed = None
        if self.leaving:
            self.close("left")
        else:
            self._wake_at(now)

    def _finish(self, change: Change, now: int) -> None:
        """TR-16: deliver the rest of the epoch; what nobody was given stays, to be sent again."""
        data, underway = self.data, self.outbox.underway
        engine = data.engine if data is not None else None
        lost = len(underway)
        if data is not None and isinstance(engine, Exchange):
            tails = self.tails.of(change.tails)
            if engine.me in tails:
                engine.flush(tails)
                data.flush(now)
                lost = 0
                going_on = dict(zip(change.roster, change.lives, strict=True))
                taken_along = going_on.get(self.node.name) == self.node.uuid
                if not taken_along and not self.leaving and not engine.ordered:
                    tell(self, self.epoch + 1)  # the roster has another life of us, or none
            else:
                part_with_epoch(self, now, tails)
                lost = doubtful(engine, tails) if tails else len(underway)
        for one in list(underway)[:lost]:
            self.outbox.lose_track(one, "the roster changed: it may or may not have been delivered")

    def _answered(self) -> set[str]:
        """Who has said all it had to say in this epoch."""
        turn = {name for name, word in self.drained.items() if word.turn >= 2}
        return turn | self.tails.answered

    def _drain(self, now: int) -> None:
        """Before a change: finish what is under way, as long as everybody lives, and say when it
        is, or what is left.  The first of those who have said so proposes the next roster.
        """
        if not self.held_at or self.ring is None:
            return
        data = self.data
        engine: Any = data.engine if data is not None else None
        cluster = isinstance(engine, Exchange)
        there = [name for name in self.roster if self._present(name) and self._in_ring(name)]
        waited = [name for name in there if name in self.living]
        unexpected = self.node.name not in self.living and bool(waited)
        waited = waited or there  # if those who were to answer are gone, the others do
        failed = len(waited) < len(self.roster) or getattr(engine, "stopped", False)
        late = now - self.held_at > (DRAIN_NS if cluster else 3 * DRAIN_NS) or (cluster and failed)
        idle = data is None or not (
            self.outbox.underway
            or getattr(engine, "queue", None)
            or (hasattr(engine, "busy") and engine.busy())
            or getattr(engine, "outstanding", None)
        )
        turns = [self.drained[name].turn if name in self.drained else 0 for name in waited]
        answered = self._answered()
        turn = 2 if late or answered or min(turns, default=1) >= 1 else 1
        says_tail = cluster and turn == 2
        if unexpected and says_tail:
            pass  # the others do not say what we lack: they end the epoch, and admit us again
        elif self.said_drained < turn and (idle or late or says_tail):
            self.said_drained = turn
            if says_tail:
                for piece in pieces(self.node.name, self.epoch, engine.tail(self._hearers())):
                    self._say(piece)
            else:
                position = max(data.position, 0) if data is not None else UNKNOWN
                recorded = self.node.recorders.floor(self.spec.name, self.history_id)
                self._say(Drained(self.node.name, position, turn, recorded))
        overdue = now - self.held_at > ANSWER_NS and self.node.name in answered
        if (answered.issuperset(waited) or overdue) and self.works() and self.end_due <= now:
            self._end(answered, now)
        self._wake_at(now + 20 * MS)

    def _in_ring(self, name: str) -> bool:
        """Whether the ring has the member in its list: else it can say nothing there, and is not
        waited for.  Who dies while an epoch ends is noticed by the ring alone."""
        ring = self.ring
        listed = ring.members if ring is not None and self.works() else ()
        return not listed or self.roster.index(name) in listed

    def _hearers(self) -> list[int]:
        """Those with whom we may hand over the rest: our tail has what they lack.

        Who was thought dead answers HOLD only if those who were not are gone; nobody knows then
        who else does, so its tail is for all.
        """
        names = self.living if self.node.name in self.living else self.roster
        return [self.roster.index(name) for name in names if name in self.roster]

    def _counting(self) -> tuple[str, ...]:
        """Whose tails count: each of them says what the others lack (see `_hearers`)."""
        expected = [name for name in self.tails.by_name if name in self.living]
        others = [name for name in self.tails.by_name if name not in self.living]
        return tuple(expected if any(map(self._present, expected)) else others or expected)

    def _end(self, answered: set[str], now: int) -> None:
        """Everybody who lives has answered: say CHANGE, if it is for us to do so."""
        tails = self._counting()
        able = [n for n in self.roster if n in (tails or answered) and self._present(n)]
        if not able or able[0] != self.node.name:
            return
        base = max((word.position for word in self.drained.values()), default=UNKNOWN)
        data = self.data
        if tails and data is not None and isinstance(data.engine, Exchange):
            base = self.base + data.engine.position_after(self.tails.of(tails))
        history = ""
        if base == UNKNOWN and len(self.roster) >= self._needed() and self.spec.protocol == TO:
            if self._may_know(answered, now):
                return
            # Who delivered something in this epoch has forgotten it: its places are not used again.
            # What is in a journal is the past: the next epoch begins behind it.
            recorded = (word.recorded for word in self.drained.values())
            base = max([self.base, *recorded])
            history = f"{secrets.token_hex(8)}@{self.history_id.partition('@')[0]}:{base}"
        self._say(self._change(max(base, self.base), tails, history))
        self.end_due = now + SECOND  # not again at once

    def _may_know(self, answered: set[str], now: int) -> bool:
        """Whether a member that is not back yet may remember the epoch, or have recorded it."""
        missing = set(self.roster) - answered
        gone = {name for name, out in self.asked.items() if out}
        return bool(missing - gone) and now - self.held_at < RETURN_NS

    def _ring_notice(self, notice: Notice) -> None:
        if notice.kind == "view" and self.data is not None:
            history = self.history_id
            self.node.recorders.entered(self.spec.name, history)
            if history != self.data.lineage:  # all may have forgotten: see `core.token.reform`
                self.data.lineage = history
                self._begin_again()
                self._keep_in_mind(self.data)
                self.show()
        if notice.kind == "view" and self.state == "forming":
            self.state = "open"
            if self.data is None:
                few = settings.waiting(len(self.roster), self._needed())
                self.state = few or "open: waiting for others"
        if self.ring is not self.data and notice.kind in ("view", "blocked", "unblocked"):
            self.show()

    def _data_notice(self, notice: Notice) -> None:
        """A cluster that has lost a member goes on without it, if the ring agrees.

        The ring can do nothing with a member missing in its list, so it is seen to first.
        """
        now = time.monotonic_ns()
        if notice.kind == "suspect" and self.ring is not None and self.ring.token is not None:
            missed = self.roster[int(notice.info[0])]  # type: ignore[call-overload]
            others = (name for name in self.roster if name != missed and self._present(name))
            if next(others, "") == self.node.name:
                self.ring.token.without(now)
                self.node.wake(self.ring)
        elif notice.kind == "broken":
            self.stopped_at = now
            self.show()  # the ring may know more of why
            for name in self.roster:
                if not self._present(name):
                    self.asked[name] = True
            self.asked.setdefault(self.node.name, False)
            self.reopen = True
            self.change_due = now
            self._ask(self.incarnation)
            self._wake_at(now)
