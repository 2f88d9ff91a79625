"""The applications of a group at a node: what each was given, and from where it gets the rest."""

from __future__ import annotations

from functools import partial

from roundelay.core.errors import ConfigError
from roundelay.core.position import LIVE, Position, Since, holds
from roundelay.node.driver import engines
from roundelay.node.driver.roster_member import RosterMember
from roundelay.node.membership import earlier
from roundelay.node.membership.state import GroupState
from roundelay.node.node_api import NO_TAG, Missed, Refusal, Subscriber, View
from roundelay.node.recording.handover import CatchUp, full


class Subscribers:
    """Those who joined the group here.  Where one has to catch up first, a `CatchUp` stands in its
    place, which is given the live messages meanwhile."""

    def __init__(self, state: GroupState) -> None:
        self.state = state
        self.by_id = state.applications
        replays = state.node.recorders.replays
        self._catch_up = partial(replays.catch_up, self.by_id, state.name)

    def __bool__(self) -> bool:
        return bool(self.by_id)

    def join(self, subscriber: Subscriber, since: Since) -> None:
        state, at = self.state, since.seq
        if id(subscriber) in self.by_id:
            return
        recorder = subscriber.is_recorder
        if since != LIVE:
            state.node.recorders.replays.check_since(state.name, at)
            if engines.early_stage(state.spec) and not recorder:
                raise ConfigError(
                    "since",
                    at,
                    f"none with stage={state.spec.stage}: what is delivered early has no place in "
                    "the order yet",
                )
        self.by_id[id(subscriber)] = subscriber
        subscriber.viewed(state.view())
        if since == LIVE:
            return
        memory = state.memory
        kept = state.data is not None and not since.time and memory.begin <= at < memory.end
        if recorder:
            if state.data is not None:
                self._replay(subscriber, at)
        elif kept and holds(memory.history, Position(since.history, at)):
            self._replay(subscriber, at)
        else:  # also who is level: another history may begin before it was given anything of this
            self._catch_up(subscriber, since, asked=True)

    def remove(self, key: int) -> Subscriber | None:
        """Take out the one that joined with this id; what it does meanwhile ends."""
        subscriber = self.by_id.pop(key, None)
        if isinstance(subscriber, CatchUp):
            subscriber.stop()
            return subscriber.application
        return subscriber

    def turn_away(self, key: int, reason: str) -> None:
        """The group is not what that one asked for."""
        subscriber = self.remove(key)
        if subscriber is not None:
            name = self.state.name
            self.state.outbox.withdraw(subscriber, reason)
            subscriber.viewed(View(name, "0", (), reason))
            subscriber.refused(Refusal(name, NO_TAG, reason, False))

    def show(self) -> None:
        """The view, or the state, is another one."""
        view = self.state.view()
        for subscriber in list(self.by_id.values()):
            subscriber.viewed(view)

    # -- what was before -----------------------------------------------------------------------

    def _replay(self, subscriber: Subscriber, since: int) -> None:
        """Give it what this member still keeps, from where it left off."""
        for batch in self.state.memory.batches(since):
            if full(subscriber, self.state.name):
                self._catch_up(subscriber, Since(since))  # the rest follows as it is read
                return
            subscriber.deliver(batch)
            since = batch.seq + len(batch.bundle)

    def history_began(self) -> None:
        """Another history begins: who caught up with the one before may not have with this."""
        for key, catching_up in list(self.by_id.items()):
            if isinstance(catching_up, CatchUp) and catching_up.live:
                subscriber = catching_up.application
                if catching_up.looks_anew:
                    self._catch_up(subscriber, catching_up.since, asked=True)
                else:
                    self.by_id[key] = subscriber

    def lost(self, lo: int, hi: int) -> None:
        """The member goes on behind a gap (CM-R18): applications get it from a recorder, or from
        other members."""
        state = self.state
        state.node.log("info", "group.behind", group=state.name, lo=lo, hi=hi)
        for subscriber in list(self.by_id.values()):
            if engines.early_stage(state.spec):
                subscriber.missed(Missed(state.name, lo, hi, state.history_id))
            elif isinstance(subscriber, CatchUp):
                self._catch_up(subscriber.application, Since(max(lo, subscriber.at)))
            elif not subscriber.is_recorder:
                self._catch_up(subscriber, Since(lo))

    def left_out(self, epoch: int) -> None:
        """The others took the member for dead and went on without it, in a group without positions:
        messages of that epoch, and of later ones until it is in again, may be missing.

        Nothing is to be told of a group that had not formed yet when it went on: but the ring of a
        member may be late to form where its messages come and go.
        """
        state = self.state
        begun = state.delivered_before or (state.cluster is not None and state.cluster.has_begun)
        if state.condition == "forming" and not begun:
            return
        state.node.log("warning", "group.left_out", group=state.name, epoch=epoch)
        for subscriber in list(self.by_id.values()):
            subscriber.missed(Missed(state.name, -1, -1, state.history_id, epoch=epoch))

    # -- what the member keeps for those who come later ------------------------------------------

    def keep_in_memory(self, data: RosterMember) -> None:
        """What `data` delivers can be asked for from now on, and what it knows from its disk."""
        if data.expected < 0:
            return
        memory = data.memory = self.state.memory
        memory.enter(data.lineage, data.expected)
        if memory.begin == memory.end:
            self.fill_memory(data.lineage, data.base)
            for batch in data.history():
                memory.add(batch)
            memory.enter(data.lineage, data.expected)
        recorders = self.state.node.recorders
        recorders.serve_memory()
        recorders.tell_memory(self.state.name)  # others may wait for what we have of this history

    def fill_memory(self, history: str, upto: int) -> None:
        """Remember what earlier rosters have left on our disk, below that position."""
        state = self.state
        if state.is_token and state.folder is not None:
            for batch in earlier.batches(state.folder, state.name, upto, history):
                state.memory.add(batch)
            state.memory.enter(history, upto)
