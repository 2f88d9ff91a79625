"""Changes of a roster: proposed, agreed on in the group's own order, carried out by everybody."""

from __future__ import annotations

import time
from typing import Final

from msgspec import structs

from roundelay.core.engine import MS, NEVER, SECOND, Delivery, Notice
from roundelay.core.errors import MalformedPdu
from roundelay.node.groups import MEMBERS_MAX
from roundelay.node.membership import settings
from roundelay.node.membership.ending import EpochEnding
from roundelay.node.membership.epoch import ASK_NS, EpochRunner
from roundelay.node.membership.roster_messages import (
    MARK,
    Change,
    Drained,
    Hold,
    RosterMessage,
    TailPiece,
    decode,
    encode,
)
from roundelay.node.membership.state import LOOKING, GroupState
from roundelay.node.membership.subscribers import Subscribers
from roundelay.wire.control import Ask, Start

GATHER_NS: Final = 150 * MS
"""Those who ask within this time are admitted together."""
FORGET_NS: Final = 20 * SECOND
"""A member that has been dead for this long is left out of the next roster."""
STEP_IN_NS: Final = SECOND // 2
"""How long a cluster that has stopped waits for each member whose turn it is before another's."""
DEPART_NS: Final = 3 * SECOND // 2
"""How long one who has left waits for the others to see that."""


class Reconfiguration:
    """Gathers who wants in or out, proposes the next roster, and carries out what was agreed on."""

    def __init__(self, state: GroupState, subscribers: Subscribers, epochs: EpochRunner) -> None:
        self.state = state
        self.subscribers = subscribers
        self.epochs = epochs
        self.ending = EpochEnding(state, self.say)
        """How the present epoch ends, where a ring stands beside the group."""
        self.asked: dict[str, bool] = {}
        """Who wants in (False) or out (True)."""
        self.asked_lives: dict[str, bytes] = {}
        """The UUIDs of their nodes: the directory may still have those of an earlier life."""
        self.ask_due = 0
        """When others may be asked again."""
        self.change_due = NEVER
        self.reopen = False
        """The engine beside the ring cannot go on: a new epoch, even with the same roster."""
        self.stopped_at = 0
        """When the cluster stopped, or somebody was last told to look why nothing followed."""
        self.departed: Start | None = None
        """The epoch that has begun without us, since we leave; we serve those who are behind."""
        self.departed_until = 0
        self.dead_since: dict[str, int] = {}
        """When each member that is not there was first missed in this epoch."""

    # -- what the epoch says -----------------------------------------------------------------

    def epoch_began(self, now: int) -> None:
        roster = self.state.roster
        self.asked = {name: out for name, out in self.asked.items() if (name in roster) is out}
        self.asked_lives = {}
        self.change_due = NEVER if not self.asked else now + GATHER_NS
        self.dead_since = {}
        self.ending = EpochEnding(self.state, self.say)
        self.reopen = False

    def forget_asked(self) -> None:
        """Nobody is known any more who wants in or out."""
        self.asked.clear()
        self.asked_lives.clear()

    def ring_delivered(self, delivery: Delivery) -> bool:
        """Look for messages about the roster in the order; True: not for applications.

        In a token group what is none after all is a message like others: it has a position.
        """
        state, token = self.state, self.state.is_token
        data = delivery.bundle.data
        if not data.startswith(MARK) or not data.startswith(mark := self.mark()):
            return not token
        try:
            message = decode(data[len(mark) :], state.roster[delivery.source])
            if token and not (isinstance(message, Change) and message.epoch == state.epoch):
                raise MalformedPdu("word of the ring", "nobody says so in a token group")
        except MalformedPdu as error:
            state.node.drop(error.reason)
            return not token
        now = time.monotonic_ns()
        if isinstance(message, Drained):
            self.ending.drained[message.name] = message
            self._drain(now)
        elif message.epoch != state.epoch:
            pass  # of a roster that is over
        elif isinstance(message, Change):
            self._changed(message, delivery.seq, now)
        elif isinstance(message, TailPiece):
            reason = self.ending.tails.hear(message, state.cluster)
            if reason:
                state.node.drop(reason)
            self._drain(now)
        elif not self.ending.held_at:
            self.ending.hold(message.living, now)
            self._drain(now)
        return True

    def ring_noticed(self, notice: Notice) -> None:
        state = self.state
        if notice.kind == "view" and state.data is not None:
            history = state.history_id
            state.node.recorders.entered(state.name, history)
            if history != state.data.lineage:  # all may have forgotten (`core.token.reformation`)
                state.data.lineage = history
                self.subscribers.history_began()
                self.subscribers.keep_in_memory(state.data)
                self.subscribers.show()
        if notice.kind == "view" and state.condition == "forming":
            state.condition = "open"
            if state.data is None:
                few = settings.waiting(len(state.roster), state.needed)
                state.condition = few or "open: waiting for others"
        if state.ring is not state.data and notice.kind in ("view", "blocked", "unblocked"):
            self.subscribers.show()

    def data_noticed(self, notice: Notice) -> None:
        """A cluster that has lost a member goes on without it, if the ring agrees.

        The ring can do nothing with a member missing in its list, so it is seen to first.
        """
        state, now, me = self.state, time.monotonic_ns(), self.state.node.name
        present = state.present
        if notice.kind == "suspect":
            missed = state.roster[int(notice.info[0])]  # type: ignore[call-overload]
            others = (name for name in state.roster if name != missed and present(name))
            if next(others, "") == me:
                self._look_at_ring(now)
        elif notice.kind == "broken":
            self.stopped_at = now
            self.subscribers.show()  # the ring may know more of why
            for name in state.roster:
                if not present(name):
                    self.asked[name] = True
            self.asked.setdefault(me, False)
            self.reopen = True
            self.change_due = now
            self.ask(state.incarnation)
            state.wake_at(now)

    def _look_at_ring(self, now: int) -> None:
        """Have the ring find out who is missing."""
        ring = self.state.ring
        if ring is not None and ring.token is not None:
            ring.token.without(now)
            self.state.node.wake(ring)

    # -- who wants in, and who out ---------------------------------------------------------------

    def ask(self, incarnation: str) -> None:
        """Ask the others to admit us."""
        state, node = self.state, self.state.node
        epoch = state.epoch if state.ring is not None else -1
        node.send_control(Ask(state.name, incarnation, node.name, epoch=epoch, life=node.uuid))

    def ask_again(self, now: int) -> None:
        """Ask them once more, unless that was done just now."""
        if now >= self.ask_due:
            self.ask_due = now + ASK_NS
            self.ask(self.state.incarnation)

    def hear(self, ask: Ask, now: int) -> None:
        """A node wants in, or out."""
        state = self.state
        if len(self.asked) >= MEMBERS_MAX and ask.name not in self.asked:
            state.node.drop("too many want into a group")
            return
        if ask.life:
            self.asked_lives[ask.name] = ask.life
        if ask.leave:
            if ask.name in state.roster:
                self.asked[ask.name] = True
        elif ask.name not in state.roster:
            if state.may_be_member(ask.name):
                self.asked[ask.name] = False
        elif ask.epoch < state.epoch:
            self.epochs.announce_until = max(self.epochs.announce_until, now + 2 * ASK_NS)
            self.epochs.announce(now)  # it has not heard that it is in
        elif not state.is_token:
            self.asked[ask.name] = False
            self.reopen = True
        if self.asked and self.change_due >= NEVER:
            self.change_due = now + GATHER_NS
            state.wake_at(self.change_due)

    def ask_to_reopen(self, now: int) -> None:
        """There are enough members for an engine beside the ring, and we have none."""
        state = self.state
        self.ask(state.incarnation)
        self.hear(Ask(state.name, state.incarnation, state.node.name, epoch=state.epoch), now)

    def look_after_members(self, now: int) -> None:
        """Members that have been dead for long are left out; those who want in are let in."""
        state = self.state
        missing = [name for name in state.roster if not state.present(name)]
        self.dead_since = {name: self.dead_since.get(name, now) for name in missing}
        for name, since in self.dead_since.items():
            if now - since > FORGET_NS and state.works() and not state.named:
                self.asked[name] = True
        if self.asked and self.change_due >= NEVER:
            self.change_due = now + GATHER_NS

    # -- proposing -----------------------------------------------------------------------------

    def on_timer(self, now: int) -> None:
        """Propose what is due; go on with the end of the epoch."""
        if self.change_due <= now:
            self.propose(now)
        self._drain(now)

    def propose(self, now: int) -> None:
        """Put the change into the order, if it is for us to do so."""
        state = self.state
        self.change_due = NEVER
        if not self.asked or state.ring is None:
            return
        self.change_due = now + ASK_NS  # once more, if nothing comes of it
        if not state.works():
            return
        before = self._before_us()
        if before:
            self._step_in(len(before), now)
        elif self._next_roster() == state.roster and not self.reopen:
            self.forget_asked()
            self.change_due = NEVER
        elif state.is_token:
            self.say(self._change(-1))
        elif not self.ending.held_at:
            self.say(Hold(state.epoch, tuple(filter(state.present, state.roster))))

    def _before_us(self) -> list[str]:
        """Return the live members that are to propose before we do."""
        roster, me = self.state.roster, self.state.node.name
        if me not in roster:
            return list(roster)
        before = roster[: roster.index(me)]
        able = self.state.able()
        return [name for name in able if name in before and not self.asked.get(name)]

    def _step_in(self, before: int, now: int) -> None:
        """The cluster has stopped, and whoever is to propose does nothing: it may have died as
        well.  Nobody polls it any more, and the ring would be slow to notice; it is told to look.
        """
        engine = self.state.data.engine if self.state.data is not None else None
        stopped = engine is not None and engine.stopped
        if stopped and not self.ending.held_at and now - self.stopped_at >= STEP_IN_NS * before:
            self.stopped_at = now
            self._look_at_ring(now)

    def _next_roster(self) -> tuple[str, ...]:
        state, node = self.state, self.state.node
        wanting = [
            known.name
            for known in node.directory.by_name.values()
            if (info := known.groups.get(state.name)) is not None
            and not info.incarnation
            and state.may_be_member(known.name)
            and node.alive(known.name)
            and self.asked.get(known.name) is not True
        ]
        names = [name for name in state.roster if self.asked.get(name) is not True]
        wanting += [name for name, out in self.asked.items() if not out and node.alive(name)]
        names += sorted(set(wanting) - set(names))
        return tuple(sorted(names[:MEMBERS_MAX])) or (node.name,)

    def _change(self, base: int, tails: tuple[str, ...] = (), history: str = "") -> Change:
        state, ending = self.state, self.ending
        roster = self._next_roster()
        if tails:  # who has not answered does not go on, nor whose answer does not count
            gone = set(state.roster) - ending.answered() | ending.tails.by_name.keys() - set(tails)
            roster = tuple(name for name in roster if name not in gone) or (state.node.name,)
        lives = tuple(self._life(name) for name in roster)
        level = state.nominal_resilience
        return Change(state.epoch, roster, lives, level, base, tails, history)

    def _life(self, name: str) -> bytes:
        """The UUID of the node of that name, as far as we know."""
        if name in self.asked_lives:
            return self.asked_lives[name]
        known = self.state.node.directory.by_name.get(name)
        if known is not None:
            return known.uuid
        return dict(zip(self.state.roster, self.state.lives, strict=True)).get(name, b"")

    def say(self, message: RosterMessage) -> None:
        """Broadcast in the ring's order.

        What is in front tells our messages from those of applications, which may not begin so
        (`GroupMembership.send`), and from those of other histories.
        """
        ring = self.state.ring
        assert ring is not None
        ring.outbox.put_word(self.mark() + encode(message))
        self.state.node.wake(ring)

    def mark(self) -> bytes:
        return MARK + self.state.incarnation.encode() + b"\0"

    # -- carrying out --------------------------------------------------------------------------

    def _drain(self, now: int) -> None:
        """Go on with the end of the epoch, if it ends; propose it if it is for us to do so."""
        unwanted = {name for name, out in self.asked.items() if out}
        end = self.ending.advance(now, unwanted)
        if end is not None:
            self.say(self._change(end.base, end.tails, end.history))

    def _changed(self, change: Change, seq: int, now: int) -> None:
        """The epoch is over, here and now, for everybody."""
        state, epochs = self.state, self.epochs
        base = change.base
        if state.is_token:
            base = state.base + seq
            if state.data is not None:
                state.data.expected = base  # the next epoch goes on in the place of CHANGE
            epochs.count_bundles()
        history = change.history or state.history_id
        start = structs.replace(
            state.start_word(epochs.latest_counts()),
            epoch=state.epoch + 1,
            roster=change.roster,
            lives=change.lives,
            base=base,
            resilience=change.resilience,
            history="" if history == state.incarnation else history,
        )
        if not state.is_token:
            self._finish(change, now)
        if state.node.name in change.roster:
            epochs.enter(start, now)
            return
        # Left out: because we asked for it, or were thought dead.
        epochs.leave(now)
        state.since = now
        state.condition = LOOKING
        if state.leaving:
            self.departed, self.departed_until = start, now + DEPART_NS
        state.wake_at(now)

    def recall_change(self) -> None:
        """CHANGE may be in our log although we died before we had carried it out: nobody delivers
        it a second time."""
        state = self.state
        engine = state.ring.token if state.ring is not None else None
        if not state.is_token or engine is None:
            return
        for delivery in engine.kept_deliveries():
            if self.ring_delivered(delivery):
                return

    def _finish(self, change: Change, now: int) -> None:
        """TR-16: deliver the rest of the epoch; what nobody was given stays, to be sent again."""
        state, node = self.state, self.state.node
        data, cluster, underway = state.data, state.cluster, state.outbox.underway
        lost: list[int] | None = None  # all that are under way
        if data is not None and cluster is not None:
            tails = self.ending.tails.of(change.tails)
            if cluster.me in tails:
                cluster.flush(tails)
                data.carry_out(now)
                lost = []
                going_on = dict(zip(change.roster, change.lives, strict=True))
                taken_along = going_on.get(node.name) == node.uuid
                if not taken_along and not state.leaving and not cluster.ordered:
                    # The roster has another life of us, or none.
                    self.subscribers.left_out(state.epoch + 1)
            else:
                self.epochs.part(now, tails)
                lost = cluster.maybe_given(tails) if tails else None
        for place, bundle in enumerate(list(underway)):
            if lost is None or place in lost:
                state.outbox.lose_track(
                    bundle, "the roster changed: it may or may not have been delivered"
                )

    # -- leaving -------------------------------------------------------------------------------

    def ask_out(self, now: int) -> None:
        """Ask to be left out of the next roster."""
        state, node = self.state, self.state.node
        if now < self.ask_due or state.ring is None:
            return
        self.ask_due = now + ASK_NS
        ask = Ask(state.name, state.incarnation, node.name, leave=True, life=node.uuid)
        self.hear(ask, now)
        self.change_due = min(self.change_due, now)
        node.send_control(ask)
        state.wake_at(self.ask_due)

    def has_departed(self, now: int) -> bool:
        """We may be the only one to know that the epoch is over: stay until the others do."""
        state, start = self.state, self.departed
        assert start is not None
        behind = any(
            (info := state.info_of(member)) is None
            or info.incarnation != start.incarnation
            or info.epoch < start.epoch
            for member in start.roster
            if state.node.alive(member)
        )
        if state.leaving and behind and now < self.departed_until:
            state.node.send_control(start)
            state.deadline = now + ASK_NS // 3
            return False
        self.departed = None
        return True

    def may_close_alone(self, now: int) -> bool:
        """All the others left while we wanted to: nobody is there to ask.

        Those who have not heard yet that they are out are served for a while.
        """
        state = self.state
        behind = any(
            (info := known.groups.get(state.name)) is not None
            and info.incarnation == state.incarnation
            and info.epoch < state.epoch
            and state.node.alive(known.name)
            for known in state.node.directory.by_name.values()
        )
        if not self.departed_until:
            self.departed_until = now + DEPART_NS
        if behind and now < self.departed_until:
            state.wake_at(now + ASK_NS // 3)
            return False
        return True
