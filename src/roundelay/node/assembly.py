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

import secrets
import time
from typing import TYPE_CHECKING, Any, Final

from roundelay.core.engine import MS, NEVER, SECOND, Notice
from roundelay.core.errors import ConfigError, SettingsMismatch
from roundelay.core.token.config import COLD, REJOIN
from roundelay.core.token.pdu import NO_LIST
from roundelay.node import engines, recovery, settings
from roundelay.node.changes import DEPART_NS, Changes
from roundelay.node.epochs import ASK_NS, GATHER_NS, LINGER_NS
from roundelay.node.groups import MEMBERS_MAX, TOKEN, GroupSpec
from roundelay.node.histories import history_name
from roundelay.node.hosted import Hosted
from roundelay.node.left_out import part_with_epoch
from roundelay.node.reasons import gone
from roundelay.node.store import token_store
from roundelay.wire.info import FIXED, Ask, GroupInfo, Info, Settings, Start

if TYPE_CHECKING:
    from roundelay.node.node import Node

DIFFER_NS: Final = 2 * SECOND
"""How long members of a fixed roster that meet for the first time with different settings wait for
others, to see which of them is in the minority."""
TELL_NS: Final = 3 * SECOND
"""After so long with too few members the log says so."""
SETTLE_NS: Final = 700 * MS
"""How long to listen before a group is begun."""


class Assembly(Changes):
    """One group at one node, over all its epochs."""

    def __init__(self, node: Node, spec: GroupSpec, now: int) -> None:
        super().__init__(node, spec, now)
        self.decreed = recovery.decreed_start(self._folder())
        if spec.fixed:
            if self.decreed:
                pass  # its roster grows back, see `recovery`
            elif spec.protocol != TOKEN:
                # Membership is agreed on by the ring; the roster says who may be admitted.
                if node.name not in spec.members:
                    raise ConfigError("members", ",".join(spec.members), f"{node.name} among them")
            else:
                self._prepare_fixed(now)
        self._recall(now)

    # -- fixed rosters ---------------------------------------------------------------------

    def _prepare_fixed(self, now: int) -> None:
        spec, node = self.spec, self.node
        self.roster = spec.members
        if node.name not in spec.members:
            raise ConfigError("members", ",".join(spec.members), f"{node.name} among them")
        folder = self._folder()
        if folder is None:
            raise ConfigError(
                "dir", None, "a directory: a member of a fixed roster must remember its promises"
            )
        self.store = token_store(folder / "token.log", lambda text: node.log("warning", text))
        stable = self.store.stable
        has_past = stable is not None and (stable.max_joined != NO_LIST or stable.wiped)
        has_past = has_past or self.store.damaged
        self.settings = settings.of_fixed(folder, spec, has_past=has_past)
        if self.store.damaged:
            self._open_fixed(now, None, REJOIN)
        elif stable is not None and (stable.max_joined != NO_LIST or stable.wiped):
            self._open_fixed(now, stable, COLD)
        else:
            self._meet(now)

    def _open_fixed(self, now: int, stable: Any, boot: str) -> None:
        spec, node = self.spec, self.node
        me, size = spec.members.index(node.name), len(spec.members)
        folder = self._folder()
        assert folder is not None
        assert self.settings is not None
        settings.keep(folder, self.settings)
        resilience = self.settings.resilience
        config = engines.token_config(resilience, boot, self.outbox.bundle_bytes)
        engine = engines.token_engine(me, size, config, node.rng, now, stable)
        engine.floor = node.recorders.floor(spec.name, history_name(engine.past))
        self.ring = self.data = Hosted(
            node, spec, me, spec.members, engine, self.outbox, self.applications,
            store=self.store, trace=node.config.tracer(spec.name, me, resilience=resilience),
        )  # fmt: skip
        self.data.on_gap = self.lost
        self.data.on_notice = self._fixed_notice
        self._name_history()
        self.state = "open"
        self.deadline = NEVER
        node.register(self.data)
        node.say_soon(now)
        self.show()

    def _fixed_notice(self, notice: Notice) -> None:
        if notice.kind == "view":
            self._name_history()
            self.show()
        elif notice.kind == "blocked":
            self._wake_at(time.monotonic_ns())  # an operator may help

    def _name_history(self) -> None:
        """The history of a fixed roster is drawn by its first list, and known in every other."""
        assert self.data is not None
        assert self.data.token is not None
        history = history_name(self.data.token.past)
        if history and history != self.incarnation:
            self.incarnation = self.data.lineage = history
            self.node.recorders.entered(self.spec.name, history)
            self._begin_again()
            self._keep_in_mind(self.data)

    def _meet(self, now: int) -> None:
        """A member without a past: has it lost it, or is the group new?

        Any list that ever formed had a majority.  Having heard from so many others that one of
        them must have been in it, we know; if the group has a past we are a member that lost its
        disk (CM-R17), else the group is as new as we are.
        """
        size = len(self.spec.members)
        needed = size - (size // 2 + 1) + 1 if size > 1 else 0
        past = any(version >= 0 for version in self.contacts.values())
        if past or len(self.contacts) >= needed:
            self._open_fixed(now, None, REJOIN if past else COLD)
        else:
            self.deadline = NEVER
            if not self.strangers:  # else it says what is wrong with them
                known = {self.node.name, *self.contacts}
                missing = gone([name for name in self.spec.members if name not in known])
                self.state = f"forming: meeting the other members for the first time ({missing})"
                self.show()

    def _heard_fixed(self, name: str, said: GroupInfo, now: int) -> None:
        """Members of one roster have the same settings, or they would not be one group."""
        agreed = self.settings
        if agreed is None or self.data is not None:
            return
        if said.settings is None or said.settings == agreed:
            self.strangers.pop(name, None)
            self.contacts[name] = said.epoch
            self._meet(now)
            return
        self.contacts.pop(name, None)
        self.strangers[name] = said.settings
        others = len(self.spec.members) - 1
        if said.epoch >= 0 or 2 * len(self.strangers) > others:
            self._differ(said.settings)  # the group has begun, or most of it says something else
        mine, theirs = settings.differing(agreed, said.settings)
        self.state = f"forming: {name} has {theirs}, and this member {mine}"
        self.deadline = min(self.deadline, now + DIFFER_NS)
        self.show()

    def _at_work(self, said: GroupInfo) -> bool:
        """Whether the group of which a node says this may have confirmed something."""
        agreed = said.settings
        if agreed is None or said.epoch < 0:
            return False
        return said.incarnation == FIXED or said.size >= agreed.min_members

    def _too_few(self) -> bool:
        return self.settings is not None and len(self.roster) < self.settings.min_members

    def _differ_from(self, said: GroupInfo) -> None:
        """Others have the group with another roster, or one of us with none: it would be another
        group of the same name.  Who has the same one has not heard yet that an operator has
        recovered it, and gives way."""
        if said.settings is not None and said.settings.members != self.spec.members:
            raise SettingsMismatch(
                self.spec.name, "members", settings.shown("members", self.spec.members),
                settings.shown("members", said.settings.members),
            )  # fmt: skip

    def _differ(self, theirs: Settings) -> None:
        assert self.settings is not None
        option = settings.first_differing(self.settings, theirs)
        raise SettingsMismatch(
            self.spec.name, option,
            settings.shown(option, getattr(self.settings, option)),
            settings.shown(option, getattr(theirs, option)),
        )  # fmt: skip

    # -- what others say -------------------------------------------------------------------

    def heard(self, info: Info, now: int) -> None:
        """Another node said who it is, and in what groups."""
        said = next((group for group in info.groups if group.name == self.spec.name), None)
        if said is None or self.closed:
            return
        if self.preset:
            if said.decreed and info.name in self.spec.members:
                recovery.give_way(self, said, info.name, now)
            elif info.name in self.spec.members:
                self._heard_fixed(info.name, said, now)
            elif self.data is None and self._at_work(said):
                self._differ_from(said)  # others have had the group for longer
            return
        if said.incarnation == FIXED and self.ring is not None and self._too_few():
            self._differ_from(said)  # nothing was confirmed here yet
        if not said.incarnation or said.incarnation == FIXED:
            return
        if not self.incarnation:
            self._wake_at(now)  # there is a group to ask
        elif said.incarnation != self.incarnation:
            if not self.node.alive(info.name) or said.decreed < self.decreed:
                return
            if said.decreed > self.decreed:
                recovery.give_way(self, said, info.name, now)
            else:
                self._other_incarnation(said, now)
        elif said.epoch > self.epoch and self.ring is not None and now >= self.ask_due:
            # The group went on without us: be told how, or be admitted again.
            self.ask_due = now + ASK_NS
            self._ask(self.incarnation)

    def _other_incarnation(self, said: GroupInfo, now: int) -> None:
        """Two histories of one group have met: the smaller one ends."""
        mine, other = (len(self.roster), self.incarnation), (said.size, said.incarnation)
        if mine > other:
            return
        delivered = self.told_before + (self.data.delivered if self.data is not None else 0)
        members = len(self.roster)
        state = "looking for members"
        if delivered:
            reason = (
                f"two histories of {self.spec.name} met, and this one, of {members} members, "
                f"ends after {delivered} messages"
            )
            self.node.log("error", "group.split", group=self.spec.name, reason=reason)
            state += f": {reason}"
            self.outbox.abandon(reason)
        else:
            self.outbox.send_again()
        self._forget_roster()
        self.state = state
        self.since = now
        self.show()
        self._wake_at(now)

    def told(self, word: Ask | Start, now: int) -> None:
        if self.closed or self.preset:
            return
        if isinstance(word, Ask):
            if word.incarnation == self.incarnation and self.ring is not None:
                self._asked(word, now)
        elif word.incarnation == self.incarnation or not self.incarnation:
            self._started(word, now)

    def _asked(self, ask: Ask, now: int) -> None:
        allowed = self.spec.members
        if len(self.asked) >= MEMBERS_MAX and ask.name not in self.asked:
            self.node.drop("too many want into a group")
            return
        if ask.life:
            self.asked_lives[ask.name] = ask.life
        if ask.leave:
            if ask.name in self.roster:
                self.asked[ask.name] = True
        elif ask.name not in self.roster:
            if not allowed or ask.name in allowed:
                self.asked[ask.name] = False
        elif ask.epoch < self.epoch:
            self.announce_until = max(self.announce_until, now + 2 * ASK_NS)
            self._announce(now)  # it has not heard that it is in
        elif self.spec.protocol != TOKEN:
            self.asked[ask.name] = False
            self.reopen = True
        if self.asked and self.change_due >= NEVER:
            self.change_due = now + GATHER_NS
            self._wake_at(self.change_due)

    def _started(self, start: Start, now: int) -> None:
        """A roster is in force that we may not know of."""
        me = self.node.name
        if start.epoch <= self.epoch:
            return
        if me not in start.roster:
            if self.ring is not None and me in self.roster:
                # Left out while we were away: ask to be admitted again.
                part_with_epoch(self, now)
                self._sort_out(start)
                self._forget_roster()
                self.state = "looking for members"
                self._wake_at(now)
            return
        if self.ring is not None and me in self.roster and self.behind_due >= NEVER:
            # We were a member of the epoch before: its engine may still bring us to its end.
            self.behind, self.behind_due = start, now + LINGER_NS // 2
            self._wake_at(self.behind_due)
            return
        if self.ring is not None and me in self.roster:
            if self.behind is not None and start.epoch > self.behind.epoch:
                self.behind = start
            return
        self._enter(start, now)

    # -- time ------------------------------------------------------------------------------

    def on_timer(self, now: int) -> None:
        self.deadline = now + SECOND
        recovery.look_for_request(self, now)
        for due, hosted in list(self.lingering):
            if due <= now:
                self.lingering.remove((due, hosted))
                self._drop(hosted)
            else:
                self.deadline = min(self.deadline, due)
        if self.closed or self.preset:
            if not self.lingering and (self.closed or self.data is None or self.works()):
                self.deadline = NEVER
            if self.strangers and self.data is None:
                self._differ(next(iter(self.strangers.values())))
            return
        if self.departed is not None:
            self._depart(now)
            return
        if self.ring is None:
            self._look(now)
            return
        if self.behind is not None and self.behind_due <= now:
            self._jump(now)
        if self.announce_due <= now:
            self._announce(now)
        self._look_after_members(now)
        if not self.told_waiting and now - self.since > TELL_NS:
            self._tell_waiting()
        if self.leaving:
            if self.roster == (self.node.name,):
                self._last_one_out(now)
                return
            self._ask_out(now)
        enough = len(self.roster) >= max(2, self._needed())
        if self.spec.protocol != TOKEN and self.data is None and enough:
            self._ask(self.incarnation)  # to be opened again with us
            self._asked(
                Ask(self.spec.name, self.incarnation, self.node.name, epoch=self.epoch), now
            )
            self.deadline = min(self.deadline, now + ASK_NS)
        if self.change_due <= now:
            self._propose(now)
        if self.said_drained or self.held_at:
            self._drain(now)
        for due in (self.announce_due, self.change_due, self.behind_due):
            self.deadline = min(self.deadline, due)

    def _tell_waiting(self) -> None:
        """Once: nothing is confirmed, and why."""
        state = self.view().state
        self.told_waiting = True
        if state.startswith("open: waiting") and self.settings is not None:
            least = self.settings.min_members
            self.node.log(
                "warning", "group.waiting", group=self.spec.name, state=state, min_members=least
            )

    def _look(self, now: int) -> None:
        """No roster yet: ask to be admitted, or begin the group."""
        if self.leaving:
            self.close("left")
            return
        name, node = self.spec.name, self.node
        offers: dict[str, GroupInfo] = {}
        rivals = []
        for known in node.directory.by_name.values():
            said = known.groups.get(name)
            if known.name == node.name or said is None or not node.alive(known.name):
                continue
            if said.incarnation == FIXED:
                self._differ_from(said)
            elif said.incarnation:
                offers[known.name] = said
            else:
                rivals.append(known.name)
        if offers:
            best = max(offers.values(), key=lambda one: (one.decreed, one.size, one.incarnation))
            if best.settings is not None:
                self._accept(best.settings)
            if self.state == "looking for members":
                self.state = "asking to be admitted"
            self._ask(best.incarnation)
            self.deadline = now + ASK_NS
            return
        wait = self.since + SETTLE_NS
        if now < wait:
            self.deadline = wait
        elif self.named:
            self.deadline = now + ASK_NS  # it goes on where it was recovered, or not at all
        elif self._first_of(rivals) != node.name:
            self.deadline = now + ASK_NS  # that one begins
        else:
            incarnation, base, agreed = secrets.token_hex(8), 0, settings.founded(self.spec)
            continuing = self._continuing()
            if continuing is not None:
                # All members were gone, but we have what there was: go on behind it.
                parent, base = continuing
                incarnation = f"{incarnation}@{parent}:{base}"
            roster, lives = (node.name,), (node.uuid,)
            level = settings.level(agreed, 2 * MEMBERS_MAX)
            self._enter(
                Start(name, incarnation, 0, roster, lives, base, level, settings=agreed), now
            )

    def _continuing(self) -> tuple[str, int] | None:
        """History and position at which the group can go on here: what we have recorded, or had
        when we were its only member."""
        recorded = self.node.recorders.continuing(self.spec.name)
        if self.left_alone is None or not self.left_alone[1]:
            return recorded
        history, position = self.left_alone
        if recorded is not None and recorded[1] > position:
            return recorded
        return history.partition("@")[0], position

    def _first_of(self, rivals: list[str]) -> str:
        """Who of those who want the group, and of us, begins it: the one that has recorded most of
        it, or has most of it on its disk, for it goes on behind that; else the first by name."""
        recorders = self.node.recorders
        recorded = recorders.recorded_by(self.spec.name)
        kept = recorders.keepers.kept_by(self.spec.name)
        if self.left_alone is not None:
            kept[self.node.name] = self.left_alone[1]
        names = [self.node.name, *(rival for rival in rivals if self._may(rival))]
        most = {name: max(recorded.get(name, 0), kept.get(name, 0)) for name in names}
        return min(names, key=lambda name: (-most[name], name))

    def recover(self, now: int) -> dict[str, object]:
        """Go on from here, in a new history: an operator says so."""
        return recovery.recover(self, now)

    def recovery(self) -> dict[str, object]:
        """What `recover` would do; UsageError where it must not be done."""
        return recovery.plan(self)

    # -- the end ---------------------------------------------------------------------------

    def leave(self, now: int) -> None:
        """Ask to be left out of the next roster; then close."""
        if self.closed or self.named:
            return
        if self.departed is None:
            self.departed_until = 0
        self.leaving = True
        if self.departed is None and (self.ring is None or self.roster == (self.node.name,)):
            self.close("left")
            return
        self._ask_out(now)

    def _ask_out(self, now: int) -> None:
        if now < self.ask_due or self.ring is None:
            return
        self.ask_due = now + ASK_NS
        ask = Ask(
            self.spec.name, self.incarnation, self.node.name, leave=True, life=self.node.uuid
        )  # fmt: skip
        self._asked(ask, now)
        self.change_due = min(self.change_due, now)
        self.node.send_control(ask)
        self._wake_at(self.ask_due)

    def _last_one_out(self, now: int) -> None:
        """All the others left while we wanted to: nobody is there to ask.

        Those who have not heard yet that they are out are served for a while.
        """
        behind = any(
            (said := known.groups.get(self.spec.name)) is not None
            and said.incarnation == self.incarnation
            and said.epoch < self.epoch
            and self.node.alive(known.name)
            for known in self.node.directory.by_name.values()
        )
        if not self.departed_until:
            self.departed_until = now + DEPART_NS
        if behind and now < self.departed_until:
            self._wake_at(now + ASK_NS // 3)
            return
        self.close("left")

    def close(self, reason: str) -> None:
        if self.closed:
            return
        self.closed, self.leaving = True, False
        self.outbox.abandon(reason)
        for hosted in (*self._engines(), *(hosted for _, hosted in self.lingering)):
            self._drop(hosted)
        if self.node.assemblies.get(self.spec.name) is self:
            self.node.closed_group(self)

    def fail(self, reason: str) -> None:
        self.state = f"broken: {reason}"
        if self.data is not None:
            self.data.state = self.state
        self.show()
        self.outbox.abandon(reason)
