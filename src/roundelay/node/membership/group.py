"""How the members of a group come together, and stay together while members come and go.

**A fixed roster** (token groups) is simply opened: every member knows all names, in one order.

**Without a roster** the group agrees on one.  Each roster is an *epoch* of an *incarnation* of the
group and has engines of its own, so no PDU of one roster is ever taken for one of another.  A
roster is changed by a message in the group's own total order: once CHANGE is committed, the epoch
is over for everybody at the same position, and the next epoch goes on there with the new roster.
What was not committed before CHANGE is sent again in the next epoch.  Since the old majority has
committed the end of its epoch, two rosters can never both go on, whatever the network does.

A group begins when a node that wants it hears of no incarnation for a while and is the first of
those who want it, by name: it opens epoch 0 alone and admits the others.  Should two begin at once
(a network that is split from the start), the smaller one gives up when they meet, and says so.

Groups whose protocol has no order of its own to put CHANGE into (TO, PO, SPO, positive
acknowledgement) are kept together by a token group beside them, the *ring*: it carries the
changes, the group's engine carries the data.  Before a change the members stop sending and wait
until all that was sent is delivered, as long as everybody lives.  Clusters then end alike for all
who go on (`ending`), also when a member has failed; what nobody was given is sent again.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from roundelay.core.bundle import Bundle
from roundelay.core.engine import MS, NEVER, SECOND
from roundelay.core.errors import ConfigError, UsageError
from roundelay.node.driver import engines
from roundelay.node.driver.roster_member import RosterMember
from roundelay.node.groups import GroupSpec, check_options
from roundelay.node.membership.epoch import ASK_NS, LINGER_NS, EpochRunner
from roundelay.node.membership.fixed_roster import FixedRoster
from roundelay.node.membership.histories import new_history
from roundelay.node.membership.reconfiguration import Reconfiguration
from roundelay.node.membership.recovery import HistoryRecovery, decreed_start
from roundelay.node.membership.roster_messages import MARK, is_marked
from roundelay.node.membership.settings import SettingsAgreement
from roundelay.node.membership.state import LOOKING, GroupState
from roundelay.node.membership.subscribers import Subscribers
from roundelay.node.node_api import Subscriber
from roundelay.wire.control import FIXED, Ask, GroupInfo, Info, Start

if TYPE_CHECKING:
    from roundelay.node.node import Node

TELL_NS: Final = 3 * SECOND
"""After so long with too few members the log says so."""
SETTLE_NS: Final = 700 * MS
"""How long to listen before a group is begun."""


class GroupMembership:
    """One group at one node, over all its epochs: hears the others, and lets the parts act."""

    def __init__(self, node: Node, spec: GroupSpec, now: int) -> None:
        engines.check_stage(check_options(spec))
        self.state = GroupState(node, spec, now)
        self.subscribers = Subscribers(self.state)
        self.agreement = SettingsAgreement(self.state, self.subscribers)
        self.epochs = EpochRunner(self.state, self.subscribers, self.agreement)
        self.reconfiguration = Reconfiguration(self.state, self.subscribers, self.epochs)
        self.epochs.listener = self.reconfiguration
        self.fixed = FixedRoster(self.state, self.subscribers)
        self.recovery = HistoryRecovery(self.state, self.epochs)
        self._told_waiting = False
        # What the node asks of a group (`GroupHost`), and a part of it answers.
        self.outbox, self.memory = self.state.outbox, self.state.memory
        self.works, self.trouble = self.state.works, self.state.trouble
        self.info, self.members = self.state.info, self.state.members
        self.agree = self.agreement.check
        self.applications, self.fell_behind = self.subscribers.by_id, self.subscribers.fell_behind
        self.state.decreed = decreed_start(self.state.folder)
        if spec.fixed and not self.state.decreed:  # else its roster grows back, see `recovery`
            if node.name not in spec.members:
                raise ConfigError("members", ",".join(spec.members), f"{node.name} among them")
            if self.state.named:  # else the ring agrees on members; the roster says who may be one
                self.fixed.prepare(now)
        if self.epochs.recall(now):
            self.reconfiguration.recall_change(now)

    # -- what other parts of the node look at ----------------------------------------------------

    @property
    def spec(self) -> GroupSpec:
        return self.state.spec

    @property
    def data(self) -> RosterMember | None:
        return self.state.data

    @property
    def roster(self) -> tuple[str, ...]:
        return self.state.roster

    @property
    def lineage(self) -> str:
        return self.state.data.lineage if self.state.data is not None else ""

    @property
    def recalled(self) -> bool:
        return self.state.recalled

    @property
    def entered(self) -> list[str]:
        return self.epochs.entered

    @property
    def deadline(self) -> int:
        return self.state.deadline

    @property
    def leaving(self) -> bool:
        return self.state.leaving

    def status(self) -> dict[str, object]:
        return self.state.status(len(self.subscribers.by_id))

    # -- applications --------------------------------------------------------------------------

    def join(
        self,
        application: Subscriber,
        since: int | None = None,
        since_time: int = 0,
        history: str = "",
    ) -> None:
        self.state.leaving = False
        self.subscribers.join(application, since, since_time, history)

    def petition(self, application: Subscriber, wishes: GroupSpec) -> None:
        """The application is in the group, and asked for this, which `agree` has looked at."""
        self.agreement.petition(id(application), wishes)

    def part(self, application: Subscriber, now: int) -> None:
        """The application leaves; with the last one the node does, unless it is configured."""
        if self.subscribers.remove(id(application)) is None:
            return
        self.agreement.withdraw(id(application))
        if not self.subscribers and self.state.name not in self.state.node.specs:
            self.leave(now)

    def send(
        self,
        application: Subscriber,
        bundle: Bundle,
        tag: int,
        to: Iterable[str] | None,
        recorders: int = 0,
    ) -> None:
        state = self.state
        members = None if to is None else self._destinations(to)
        if state.is_token and MARK in bundle.data and any(map(is_marked, bundle)):
            raise UsageError(
                f"a message that begins with {MARK!r}: so do those by which the nodes of a group "
                "agree on its members; put something in front of it"
            )
        due = time.monotonic_ns() + state.node.config.answer_ns
        state.outbox.put(application, bundle, tag, members, due)
        state.node.wake(state.data)

    def _destinations(self, to: Iterable[str]) -> tuple[str, ...]:
        state = self.state
        if not state.spec.family.selective:
            raise ConfigError("to", "…", f"no destinations in {state.spec.service} groups")
        if state.data is None:
            raise UsageError(f"group {state.name} is not open yet: {state.condition}")
        names = set(to)
        unknown = names - set(state.roster)
        if unknown or not names:
            members = ", ".join(state.roster)
            raise ConfigError("to", ",".join(sorted(unknown)), f"members: {members}")
        return tuple(sorted(names))

    # -- what others say -------------------------------------------------------------------

    def heard(self, info: Info, now: int) -> None:
        """Another node said who it is, and in what groups."""
        state = self.state
        theirs = next((group for group in info.groups if group.name == state.name), None)
        if theirs is None or state.closed:
            return
        if state.preset:
            if theirs.decreed and info.name in state.spec.members:
                self.recovery.give_way(theirs, info.name, now)
            elif info.name in state.spec.members:
                self.fixed.hear(info.name, theirs, now)
            elif state.data is None and _may_have_confirmed(theirs):
                self.agreement.must_have_roster_of(theirs.settings)  # others have had it for longer
            return
        if theirs.incarnation == FIXED and state.ring is not None and state.has_too_few:
            self.agreement.must_have_roster_of(theirs.settings)  # nothing was confirmed here yet
        if not theirs.incarnation or theirs.incarnation == FIXED:
            return
        if not state.incarnation:
            state.wake_at(now)  # there is a group to ask
        elif theirs.incarnation != state.incarnation:
            if not state.node.alive(info.name) or theirs.decreed < state.decreed:
                return
            if theirs.decreed > state.decreed:
                self.recovery.give_way(theirs, info.name, now)
            else:
                self._meet_history(theirs, now)
        elif theirs.epoch > state.epoch and state.ring is not None:
            # The group went on without us: be told how, or be admitted again.
            self.reconfiguration.ask_again(now)

    def _meet_history(self, theirs: GroupInfo, now: int) -> None:
        """Two histories of one group have met: the smaller one ends."""
        state = self.state
        members = len(state.roster)
        if (members, state.incarnation) > (theirs.size, theirs.incarnation):
            return
        delivered = state.delivered_before + (state.data.delivered if state.data else 0)
        reason = ""
        if delivered:
            reason = (
                f"two histories of {state.name} met, and this one, of {members} members, "
                f"ends after {delivered} messages"
            )
            state.node.log("error", "group.split", group=state.name, reason=reason)
        self.epochs.give_up(reason, now)

    def told(self, word: Ask | Start, now: int) -> None:
        """Another node wants in or out, or says that an epoch has begun."""
        state = self.state
        if state.closed or state.preset:
            return
        if isinstance(word, Ask):
            if word.incarnation == state.incarnation and state.ring is not None:
                self.reconfiguration.hear(word, now)
        elif word.incarnation == state.incarnation or not state.incarnation:
            self._started(word, now)

    def _started(self, start: Start, now: int) -> None:
        """A roster is in force that we may not know of."""
        state, epochs, me = self.state, self.epochs, self.state.node.name
        if start.epoch <= state.epoch:
            return
        inside = state.ring is not None and me in state.roster
        if me not in start.roster:
            if inside:
                # Left out while we were away: ask to be admitted again.
                epochs.part(now)
                epochs.lose_doubtful(start)
                epochs.forget()
                state.condition = LOOKING
                state.wake_at(now)
        elif not inside:
            epochs.enter(start, now)
        elif epochs.behind_due >= NEVER:
            # We were a member of the epoch before: its engine may still bring us to its end.
            epochs.behind, epochs.behind_due = start, now + LINGER_NS // 2
            state.wake_at(epochs.behind_due)
        elif epochs.behind is not None and start.epoch > epochs.behind.epoch:
            epochs.behind = start

    # -- time ------------------------------------------------------------------------------

    def on_tick(self, now: int) -> None:
        self.state.outbox.expire(now, self.state.trouble())

    def on_timer(self, now: int) -> None:
        state, epochs, reconfiguration = self.state, self.epochs, self.reconfiguration
        state.deadline = now + SECOND
        self.recovery.look_for_request(now)
        state.deadline = min(state.deadline, epochs.expire(now))
        if state.closed or state.preset:
            if not epochs.lingering and (state.closed or state.data is None or state.works()):
                state.deadline = NEVER
            self.fixed.on_timer()
            return
        if reconfiguration.departed is not None:
            if not reconfiguration.has_departed(now):
                return
            if state.leaving:
                self.close("left")
            else:
                state.wake_at(now)
            return
        if state.ring is None:
            self._look(now)
            return
        if epochs.behind is not None and epochs.behind_due <= now:
            epochs.jump(now)
        if epochs.announce_due <= now:
            epochs.announce(now)
        reconfiguration.look_after_members(now)
        if not self._told_waiting and now - state.since > TELL_NS:
            self._tell_waiting()
        if state.leaving:
            if state.is_alone:
                if reconfiguration.may_close_alone(now):
                    self.close("left")
                return
            reconfiguration.ask_out(now)
        enough = len(state.roster) >= max(2, state.needed)
        if not state.is_token and state.data is None and enough:
            reconfiguration.ask_to_reopen(now)
            state.deadline = min(state.deadline, now + ASK_NS)
        reconfiguration.on_timer(now)
        due = min(epochs.announce_due, reconfiguration.change_due, epochs.behind_due)
        state.deadline = min(state.deadline, due)

    def _tell_waiting(self) -> None:
        """Once: nothing is confirmed, and why."""
        state = self.state
        shown = state.view().state
        self._told_waiting = True
        if shown.startswith("open: waiting") and state.settings is not None:
            least = state.settings.min_members
            state.node.log(
                "warning", "group.waiting", group=state.name, state=shown, min_members=least
            )

    def _look(self, now: int) -> None:
        """No roster yet: ask to be admitted, or begin the group."""
        state, node, name = self.state, self.state.node, self.state.name
        if state.leaving:
            self.close("left")
            return
        offers: dict[str, GroupInfo] = {}
        rivals = []
        for known in node.directory.by_name.values():
            theirs = known.groups.get(name)
            if known.name == node.name or theirs is None or not node.alive(known.name):
                continue
            if theirs.incarnation == FIXED:
                self.agreement.must_have_roster_of(theirs.settings)
            elif theirs.incarnation:
                offers[known.name] = theirs
            else:
                rivals.append(known.name)
        if offers:
            best = max(
                offers.values(), key=lambda offer: (offer.decreed, offer.size, offer.incarnation)
            )
            if best.settings is not None:
                self.agreement.accept(best.settings)
            if state.condition == LOOKING:
                state.condition = "asking to be admitted"
            self.reconfiguration.ask(best.incarnation)
            state.deadline = now + ASK_NS
        elif now < state.since + SETTLE_NS:
            state.deadline = state.since + SETTLE_NS
        elif state.named or self._founder_among(rivals) != node.name:
            # It goes on where it was recovered, or not at all; or that one begins.
            state.deadline = now + ASK_NS
        else:
            self._found(now)

    def _found(self, now: int) -> None:
        """Begin the group, alone."""
        # Where all members were gone, but we have what there was: go on behind it.
        parent, base = self._continuing() or ("", 0)
        self.epochs.enter(self.state.founding(new_history(parent, base), base), now)

    def _continuing(self) -> tuple[str, int] | None:
        """History and position at which the group can go on here: what we have recorded, or had
        when we were its only member."""
        recorded = self.state.node.recorders.continuing(self.state.name)
        left_alone = self.epochs.left_alone
        if left_alone is None or not left_alone[1]:
            return recorded
        history, position = left_alone
        if recorded is not None and recorded[1] > position:
            return recorded
        return history, position

    def _founder_among(self, rivals: list[str]) -> str:
        """Who of those who want the group, and of us, begins it: the one that has recorded most of
        it, or has most of it on its disk, for it goes on behind that; else the first by name."""
        state, me = self.state, self.state.node.name
        reached = state.node.recorders.reached_by(state.name)
        if self.epochs.left_alone is not None:
            reached[me] = max(reached.get(me, 0), self.epochs.left_alone[1])
        names = [me, *filter(state.may_be_member, rivals)]
        return min(names, key=lambda name: (-reached.get(name, 0), name))

    # -- the end ---------------------------------------------------------------------------

    def leave(self, now: int) -> None:
        """Ask to be left out of the next roster; then close."""
        state, reconfiguration = self.state, self.reconfiguration
        if state.closed or state.named:
            return
        state.leaving = True
        if reconfiguration.departed is None:
            reconfiguration.departed_until = 0
            if state.ring is None or state.is_alone:
                self.close("left")
                return
        reconfiguration.ask_out(now)

    def close(self, reason: str) -> None:
        state = self.state
        if state.closed:
            return
        state.closed, state.leaving = True, False
        state.outbox.abandon(reason)
        self.epochs.close()
        if state.node.group_hosts.get(state.name) is self:
            state.node.closed_group(self)

    def abandon(self) -> None:
        """Let go of engines and files, as a process does that is killed."""
        state = self.state
        state.closed, state.leaving = True, False
        drivers = [*state.drivers(), *(driver for _, driver in self.epochs.lingering)]
        for part in (*drivers, self.fixed.store):
            if part is not None:
                with suppress(Exception):  # what is broken may not even close
                    part.close()

    def fail(self, reason: str) -> None:
        state = self.state
        state.condition = f"broken: {reason}"
        if state.data is not None:
            state.data.state = state.condition
        self.subscribers.show()
        state.outbox.abandon(reason)


def _may_have_confirmed(theirs: GroupInfo) -> bool:
    """Whether the group of which a node says this may have confirmed something."""
    agreed = theirs.settings
    if agreed is None or theirs.epoch < 0:
        return False
    return theirs.incarnation == FIXED or theirs.size >= agreed.min_members
