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

from roundelay.core.engine import MS, NEVER, SECOND
from roundelay.core.errors import ConfigError, UsageError
from roundelay.core.position import Since
from roundelay.node.driver import engines
from roundelay.node.groups import GroupSpec, check_options
from roundelay.node.membership import earlier
from roundelay.node.membership.epoch import ASK_NS, LINGER_NS, EpochRunner
from roundelay.node.membership.fixed_roster import FixedRoster
from roundelay.node.membership.histories import new_history
from roundelay.node.membership.reconfiguration import Reconfiguration
from roundelay.node.membership.recovery import HistoryRecovery
from roundelay.node.membership.roster_messages import MARK
from roundelay.node.membership.settings import SettingsAgreement
from roundelay.node.membership.state import LOOKING, GroupState
from roundelay.node.membership.subscribers import Subscribers
from roundelay.node.node_api import Send, Subscriber
from roundelay.node.storage.folders import ROSTER
from roundelay.wire.control import FIXED, Ask, GroupInfo, Info, Start

if TYPE_CHECKING:
    from roundelay.node.node import Node

TELL_NS: Final = 3 * SECOND
"""After so long with too few members the log says so."""
SETTLE_NS: Final = 700 * MS
"""How long to listen before a group is begun."""


class GroupMembership(GroupState):
    """One group at one node, over all its epochs: hears the others, and lets the parts act."""

    def __init__(self, node: Node, spec: GroupSpec, now: int) -> None:
        engines.check_stage(check_options(spec))
        super().__init__(node, spec, now)
        self.subscribers = Subscribers(self)
        self.agreement = SettingsAgreement(self, self.subscribers)
        self.epochs = EpochRunner(self, self.subscribers, self.agreement)
        self.reconfiguration = Reconfiguration(self, self.subscribers, self.epochs)
        self.epochs.listener = self.reconfiguration
        self.fixed = FixedRoster(self, self.subscribers)
        self.recovery = HistoryRecovery(self, self.epochs)
        self._told_waiting = False
        left = None if self.folder is None else earlier.read_start(self.folder / ROSTER)
        self.decreed = left is not None and left.decreed
        if spec.fixed and not self.decreed:  # else its roster grows back, see `recovery`
            if node.name not in spec.members:
                raise ConfigError("members", ",".join(spec.members), f"{node.name} among them")
            if self.named:  # else the ring agrees on members; the roster says who may be one
                self.fixed.prepare(now)
        if self.epochs.recall(now):
            self.reconfiguration.recall_change()

    # -- applications --------------------------------------------------------------------------

    def join(self, application: Subscriber, since: Since) -> None:
        self.leaving = False
        self.subscribers.join(application, since)

    def agree(self, wishes: GroupSpec) -> None:
        self.agreement.check(wishes)

    def part(self, application: Subscriber, now: int) -> None:
        """The application leaves; with the last one the node does, unless it is configured."""
        if self.subscribers.remove(id(application)) is None:
            return
        self.agreement.withdraw(id(application))
        if not self.subscribers and self.name not in self.node.specs:
            self.leave(now)

    def send(self, application: Subscriber, send: Send) -> None:
        bundle = send.bundle
        members = None if send.to is None else self._destinations(send.to)
        if (
            self.is_token
            and MARK in bundle.data
            and any(message.startswith(MARK) for message in bundle)
        ):
            raise UsageError(
                f"a message that begins with {MARK!r}: so do those by which the nodes of a group "
                "agree on its members; put something in front of it"
            )
        due = time.monotonic_ns() + self.node.config.answer_ns
        self.outbox.put(application, bundle, send.tag, members, due)
        self.node.wake(self.data)

    def _destinations(self, to: Iterable[str]) -> tuple[str, ...]:
        if not self.spec.family.selective:
            raise ConfigError("to", "…", f"no destinations in {self.spec.service} groups")
        if self.data is None:
            raise UsageError(f"group {self.name} is not open yet: {self.condition}")
        names = set(to)
        unknown = names - set(self.roster)
        if unknown or not names:
            members = ", ".join(self.roster)
            raise ConfigError("to", ",".join(sorted(unknown)), f"members: {members}")
        return tuple(sorted(names))

    # -- what others say -------------------------------------------------------------------

    def heard(self, info: Info, now: int) -> None:
        """Another node said who it is, and in what groups."""
        theirs = next((group for group in info.groups if group.name == self.name), None)
        if theirs is None or self.closed:
            return
        if self.preset:
            if theirs.decreed and info.name in self.spec.members:
                self.recovery.give_way(theirs, info.name, now)
            elif info.name in self.spec.members:
                self.fixed.hear(info.name, theirs, now)
            elif self.data is None and _may_have_confirmed(theirs):
                self.agreement.must_have_roster_of(theirs.settings)  # others have had it for longer
            return
        if theirs.incarnation == FIXED and self.ring is not None and self.has_too_few:
            self.agreement.must_have_roster_of(theirs.settings)  # nothing was confirmed here yet
        if not theirs.incarnation or theirs.incarnation == FIXED:
            return
        if not self.incarnation:
            self.wake_at(now)  # there is a group to ask
        elif theirs.incarnation != self.incarnation:
            if not self.node.alive(info.name) or theirs.decreed < self.decreed:
                return
            if theirs.decreed > self.decreed:
                self.recovery.give_way(theirs, info.name, now)
            else:
                self._meet_history(theirs, now)
        elif theirs.epoch > self.epoch and self.ring is not None:
            # The group went on without us: be told how, or be admitted again.
            self.reconfiguration.ask_again(now)

    def _meet_history(self, theirs: GroupInfo, now: int) -> None:
        """Two histories of one group have met: the smaller one ends."""
        members = len(self.roster)
        if (members, self.incarnation) > (theirs.size, theirs.incarnation):
            return
        delivered = self.delivered_before + (self.data.delivered if self.data else 0)
        reason = ""
        if delivered:
            reason = (
                f"two histories of {self.name} met, and this one, of {members} members, "
                f"ends after {delivered} messages"
            )
            self.node.log("error", "group.split", group=self.name, reason=reason)
        self.epochs.give_up(reason, now)

    def told(self, word: Ask | Start, now: int) -> None:
        """Another node wants in or out, or says that an epoch has begun."""
        if self.closed or self.preset:
            return
        if isinstance(word, Ask):
            if word.incarnation == self.incarnation and self.ring is not None:
                self.reconfiguration.hear(word, now)
        elif word.incarnation == self.incarnation or not self.incarnation:
            self._started(word, now)

    def _started(self, start: Start, now: int) -> None:
        """A roster is in force that we may not know of."""
        epochs, me = self.epochs, self.node.name
        if start.epoch <= self.epoch:
            return
        inside = self.ring is not None and me in self.roster
        if me not in start.roster:
            if inside:
                # Left out while we were away: ask to be admitted again.
                epochs.part(now)
                epochs.lose_doubtful(start)
                epochs.forget()
                self.condition = LOOKING
                self.wake_at(now)
        elif not inside:
            epochs.enter(start, now)
        elif epochs.behind_due >= NEVER:
            # We were a member of the epoch before: its engine may still bring us to its end.
            epochs.behind, epochs.behind_due = start, now + LINGER_NS // 2
            self.wake_at(epochs.behind_due)
        elif epochs.behind is not None and start.epoch > epochs.behind.epoch:
            epochs.behind = start

    # -- time ------------------------------------------------------------------------------

    def on_timer(self, now: int) -> None:
        epochs, reconfiguration = self.epochs, self.reconfiguration
        self.deadline = now + SECOND
        self.recovery.look_for_request(now)
        self.deadline = min(self.deadline, epochs.expire(now))
        if self.closed or self.preset:
            if not epochs.lingering and (self.closed or self.data is None or self.works()):
                self.deadline = NEVER
            self.fixed.on_timer()
            return
        if reconfiguration.departed is not None:
            if not reconfiguration.has_departed(now):
                return
            if self.leaving:
                self.close("left")
            else:
                self.wake_at(now)
            return
        if self.ring is None:
            self._look(now)
            return
        if epochs.behind is not None and epochs.behind_due <= now:
            epochs.jump(now)
        if epochs.announce_due <= now:
            epochs.announce(now)
        reconfiguration.look_after_members(now)
        if not self._told_waiting and now - self.since > TELL_NS:
            self._tell_waiting()
        if self.leaving:
            if self.is_alone:
                if reconfiguration.may_close_alone(now):
                    self.close("left")
                return
            reconfiguration.ask_out(now)
        enough = len(self.roster) >= max(2, self.needed)
        if not self.is_token and self.data is None and enough:
            reconfiguration.ask_to_reopen(now)
            self.deadline = min(self.deadline, now + ASK_NS)
        reconfiguration.on_timer(now)
        due = min(epochs.announce_due, reconfiguration.change_due, epochs.behind_due)
        self.deadline = min(self.deadline, due)

    def _tell_waiting(self) -> None:
        """Once: nothing is confirmed, and why."""
        shown = self.view().state
        self._told_waiting = True
        if shown.startswith("open: waiting") and self.settings is not None:
            least = self.settings.min_members
            self.node.log(
                "warning", "group.waiting", group=self.name, state=shown, min_members=least
            )

    def _look(self, now: int) -> None:
        """No roster yet: ask to be admitted, or begin the group."""
        node, name = self.node, self.name
        if self.leaving:
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
            if self.condition == LOOKING:
                self.condition = "asking to be admitted"
            self.reconfiguration.ask(best.incarnation)
            self.deadline = now + ASK_NS
        elif now < self.since + SETTLE_NS:
            self.deadline = self.since + SETTLE_NS
        elif self.named or self._founder_among(rivals) != node.name:
            # It goes on where it was recovered, or not at all; or that one begins.
            self.deadline = now + ASK_NS
        else:
            # Where all members were gone, but we have what there was: go on behind it.
            parent, base = self._continuing()
            self.epochs.enter(self.founding(new_history(parent, base), base), now)

    def _continuing(self) -> tuple[str, int]:
        """History and position at which the group can go on here: the further of what we had when
        we were its only member, and what we have recorded."""
        places = (self.epochs.left_alone, self.node.recorders.continuing(self.name))
        known = [place for place in places if place is not None and place[1]]
        return max(known, key=lambda place: place[1], default=("", 0))

    def _founder_among(self, rivals: list[str]) -> str:
        """Who of those who want the group, and of us, begins it: the one that has recorded most of
        it, or has most of it on its disk, for it goes on behind that; else the first by name."""
        me = self.node.name
        reached = self.node.recorders.reached_by(self.name)
        if self.epochs.left_alone is not None:
            reached[me] = max(reached.get(me, 0), self.epochs.left_alone[1])
        names = [me, *filter(self.may_be_member, rivals)]
        return min(names, key=lambda name: (-reached.get(name, 0), name))

    # -- the end ---------------------------------------------------------------------------

    def leave(self, now: int) -> None:
        """Ask to be left out of the next roster; then close."""
        reconfiguration = self.reconfiguration
        if self.closed or self.named:
            return
        self.leaving = True
        if reconfiguration.departed is None:
            reconfiguration.departed_until = 0
            if self.ring is None or self.is_alone:
                self.close("left")
                return
        reconfiguration.ask_out(now)

    def close(self, reason: str) -> None:
        if self.closed:
            return
        self.closed, self.leaving = True, False
        self.outbox.abandon(reason)
        self.epochs.close()
        if self.node.group_hosts.get(self.name) is self:
            self.node.closed_group(self)

    def abandon(self) -> None:
        """Let go of engines and files, as a process does that is killed."""
        self.closed, self.leaving = True, False
        drivers = [*self.drivers(), *(driver for _, driver in self.epochs.lingering)]
        for part in (*drivers, self.fixed.store):
            if part is not None:
                with suppress(Exception):  # what is broken may not even close
                    part.close()

    def fail(self, reason: str) -> None:
        self.condition = f"broken: {reason}"
        if self.data is not None:
            self.data.state = self.condition
        self.subscribers.show()
        self.outbox.abandon(reason)


def _may_have_confirmed(theirs: GroupInfo) -> bool:
    """Whether the group of which a node says this may have confirmed something."""
    agreed = theirs.settings
    if agreed is None or theirs.epoch < 0:
        return False
    return theirs.incarnation == FIXED or theirs.size >= agreed.min_members
