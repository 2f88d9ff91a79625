"""Epochs of a group: each roster has engines of its own; one ends where the next begins."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import structs

from roundelay.core.cluster.flush import Tail
from roundelay.core.engine import MS, NEVER, SECOND
from roundelay.core.families import TOTAL
from roundelay.core.position import Position, holds
from roundelay.core.token.config import COLD, REJOIN, most_resilience
from roundelay.core.token.pdu import NO_HISTORY, NO_LIST
from roundelay.core.token.stable import Stable
from roundelay.durable import put
from roundelay.file_names import file_name
from roundelay.node.driver import engines
from roundelay.node.driver.roster_member import RosterMember
from roundelay.node.groups import MEMBERS_MAX
from roundelay.node.membership import earlier, settings
from roundelay.node.membership.histories import later_history, number_of
from roundelay.node.membership.settings import SettingsAgreement
from roundelay.node.membership.state import LOOKING, GroupState
from roundelay.node.membership.subscribers import Subscribers
from roundelay.node.storage.folders import ROSTER
from roundelay.wire.control import Start

if TYPE_CHECKING:
    from roundelay.node.membership.reconfiguration import Reconfiguration

ASK_NS: Final = 300 * MS
LINGER_NS: Final = 5 * SECOND
"""How long the engine of a finished epoch goes on serving those who are behind."""
ENTERED_MAX: Final = 64


class EpochRunner:
    """Enters epochs and leaves them, remembers them on disk, and tells others of them."""

    listener: Reconfiguration
    """Hears what in an epoch concerns its roster."""

    def __init__(
        self, state: GroupState, subscribers: Subscribers, agreement: SettingsAgreement
    ) -> None:
        self.state = state
        self.subscribers = subscribers
        self.agreement = agreement
        self.lingering: list[tuple[int, RosterMember]] = []
        """Engines of finished epochs, and until when they serve those who are behind."""
        self.counted: dict[tuple[str, int], int] = {}
        """By member and epoch that is over: how many bundles of the member are in its order."""
        self.reached: tuple[str, int] = ("", -1)
        """History, and the position that the applications have reached in it."""
        self.left_alone: tuple[str, int] | None = None
        """The history that we may go on with alone, and how far we have it: we were its only member
        when we stopped, or an operator says so."""
        self.behind: Start | None = None
        """An epoch that has begun while we are still in one before it."""
        self.behind_due = NEVER
        self.announce_until = 0
        self.announce_due = NEVER

    # -- the disk ------------------------------------------------------------------------------

    def recall(self, now: int) -> bool:
        """Go on where this node was when it stopped; return whether it is in an epoch now."""
        state, node = self.state, self.state.node
        folder = state.folder
        if folder is None or state.preset:
            return False
        path = folder / ROSTER
        if not path.exists():
            return False
        try:
            start = msgspec.json.decode(path.read_bytes(), type=Start)
        except msgspec.MsgspecError as error:
            # Without it we are one that lost its memory, which the others will notice.
            path.replace(path.with_suffix(".bad"))
            node.log("warning", "group.roster_unreadable", path=str(path), reason=str(error))
            return False
        if node.name not in start.roster:
            return False
        if start.roster == (node.name,) and not start.decreed:
            self._recall_alone(start, folder)
            return False
        self.enter(start, now, recalled=True)
        return True

    def _recall_alone(self, start: Start, folder: Path) -> None:
        """We were the only member, and everybody else may have begun anew since.

        If nobody has, it is for us to begin, behind what we have (`GroupMembership.look`)."""
        log = folder / _ring_file(start)
        if not self.state.is_token or not log.exists():
            (folder / ROSTER).unlink()
            return
        earlier.keep(log, start)
        self.left_alone = history, position = earlier.last(log, start)
        self.state.memory.enter(history, position)
        self.subscribers.fill_memory(history, position)
        self.state.node.recorders.serve_memory()

    def _remember(self, start: Start) -> None:
        """Write down what a member must not forget; the ring's new file syncs the folder."""
        folder = self.state.folder
        if folder is None:
            return
        go_on = self._follow_up(folder, start)
        put(folder / ROSTER, msgspec.json.encode(start))
        earlier.let_go(folder, _ring_file(start), go_on=go_on)

    def _follow_up(self, folder: Path, start: Start) -> bool:
        """Return whether `start` goes on from what is on our disk, which is kept then."""
        old = earlier.read_start(folder / ROSTER) if self.state.is_token else None
        if old is None:
            return False
        if old.incarnation != start.incarnation:
            # Begun anew: by ourselves, behind what we have, or by somebody else.
            mine = self.left_alone
            if mine is None or not holds(start.incarnation, Position(*mine)) or start.epoch:
                return False
        if (old.incarnation, old.epoch) != (start.incarnation, start.epoch):
            log = folder / _ring_file(old)
            if old.base < start.base:
                earlier.keep(log, old)
            else:
                log.unlink(missing_ok=True)  # nothing was said in it
        return True

    # -- beginning -----------------------------------------------------------------------------

    def enter(self, start: Start, now: int, recalled: bool = False) -> None:
        """Begin epoch `start`: engines of its own, on what is left of the one before.

        A node that was in this epoch in an earlier life, and remembers nothing of it, may not act
        as if it had promised nothing (CM-R17); beside a ring its place is in the next epoch.
        """
        state, node = self.state, self.state.node
        agreed = start.settings or structs.replace(
            settings.founded(self.agreement.wishes), resilience=start.resilience
        )
        self.agreement.accept(agreed)
        before = state.history_id
        self._retire(now)
        state.outbox.send_again()
        self.agreement.settle(agreed)
        if start.incarnation != state.incarnation:
            self.counted = {}  # epochs of another history
        if (start.history or start.incarnation) != before:
            self.subscribers.history_began()
        state.begin_epoch(start)
        self.counted |= {(name, epoch): number for name, epoch, number in start.counted}
        self.behind, self.behind_due = None, NEVER
        self.listener.epoch_began(now)
        name = _name_of(start)
        life = start.lives[start.roster.index(node.name)]
        first = life == node.uuid and not recalled and name not in state.entered
        state.entered = [*state.entered[-ENTERED_MAX:], name]
        self._remember(start)
        self.left_alone = None
        ring = state.ring = self._ring_of(start, first=first, recalled=recalled, now=now)
        self._take_up(ring)
        if state.is_token:
            state.data = ring
            ring.waits = settings.waiting(len(start.roster), agreed.min_members)
        else:
            self._enter_data(name, first, now)
        state.recalled = recalled
        if state.data is not None:  # else it is for the next epoch to go on where we were
            self.subscribers.keep_in_memory(state.data)
            history, position = self.reached
            if 0 <= position < state.base and holds(state.history_id, Position(history, position)):
                self.subscribers.lost(position, state.base)
            self.reached = ("", -1)
        state.condition = "forming"
        self.announce_until = now + 3 * LINGER_NS
        self.announce(now)
        node.say_soon(now)
        self.subscribers.show()

    def _ring_of(self, start: Start, *, first: bool, recalled: bool, now: int) -> RosterMember:
        """The engine that agrees on rosters, with what this member promised in the epoch."""
        state, node, spec = self.state, self.state.node, self.state.spec
        token, size = state.is_token, len(start.roster)
        assert state.settings is not None
        # Beside a cluster changes are rare: be as safe as can be.
        resilience = settings.level(state.settings, size) if token else most_resilience(size)
        store = stable = None
        if state.folder is not None:
            store = state.store(state.folder / _ring_file(start), Stable)
            stable = store.stable
            if stable is not None and stable.max_joined == NO_LIST and not stable.wiped:
                stable = None
        lost = store is not None and store.damaged
        sure = first or recalled or stable is not None
        boot = COLD if sure and not lost else REJOIN
        engine = engines.token_engine(state, start.roster, resilience, boot, now, stable)
        history = start.history or start.incarnation
        if token:
            if engine.token_list.history == NO_HISTORY:
                engine.token_list.history = (number_of(history), 0, 0)
            history = later_history(history, engine.token_list.history, start.base)
            engine.reformation.floor = max(0, node.recorders.floor(spec.name, history) - start.base)
        if boot == COLD or not token:  # else lists may have begun another: `Reconfiguration`
            node.recorders.entered(spec.name, history)
        return RosterMember(
            state,
            start.roster,
            engine,
            self.subscribers.lost,
            self.listener.ring_noticed,
            epoch=_name_of(start),
            beside=not token,
            store=store,
            base=start.base if token else 0,
            lineage=history,
            intercept=self.listener.ring_delivered,
        )

    def _enter_data(self, name: str, first: bool, now: int) -> None:
        """The engine beside the ring, if it can be had in this epoch."""
        state, spec = self.state, self.state.spec
        if not first or len(state.roster) < state.needed:
            return
        store = None
        if spec.family.stable is not None and state.folder is not None:
            store = state.store(state.folder / "pa.log", spec.family.stable)
        stable = store.stable if store is not None else None
        state.data = RosterMember(
            state,
            state.roster,
            engines.cluster_engine(state, state.roster, now, stable),
            self.subscribers.lost,
            self.listener.data_noticed,
            epoch=name,
            store=store,
            base=state.base,
            lives=state.lives,
            lineage=state.history_id,
        )
        self._take_up(state.data)

    def _take_up(self, driver: RosterMember) -> None:
        """Give it its PDUs from now on, instead of one of the same epoch that only lingers."""
        for due, other in list(self.lingering):
            if other.id == driver.id:
                self.lingering.remove((due, other))
                self.drop(other)
        self.state.node.schedule.register(driver)

    # -- ending --------------------------------------------------------------------------------

    def _retire(self, now: int) -> None:
        """Our epoch is over; its engines only serve those who have not got there yet."""
        self.note_position()
        for driver in self.state.drivers():
            self.lingering.append((now + LINGER_NS, driver))
            driver.retire()
        self.state.ring = self.state.data = None

    def note_position(self) -> None:
        """Note how far the applications are, and how much they were given."""
        data = self.state.data
        if data is not None:
            self.state.delivered_before += data.delivered
            if data.expected >= 0:
                self.reached = (data.lineage, data.expected)

    def leave(self, now: int) -> None:
        """The next epoch has begun without us; we serve those who are not there yet."""
        self._retire(now)
        self.state.outbox.send_again()
        self._forget()

    def forget(self) -> None:
        """The history is over for us, or cannot be followed: there is no roster any more."""
        self.note_position()
        self.drop_all()
        self.state.delivered_before = 0
        self._forget()
        self.state.node.say_soon(time.monotonic_ns())

    def give_up(self, reason: str, now: int) -> None:
        """Our history ends here, and we look for another one.  `reason`: why what was delivered in
        it is void; empty: nothing was, and what is under way can be sent again."""
        state = self.state
        if reason:
            state.outbox.abandon(reason)
        else:
            state.outbox.send_again()
        self.forget()
        state.condition = f"{LOOKING}: {reason}" if reason else LOOKING
        state.since = now
        self.subscribers.show()
        state.wake_at(now)

    def _forget(self) -> None:
        self.state.end_epoch()
        self.agreement.unsettle()
        self.counted = {}
        self.behind, self.behind_due = None, NEVER
        self.listener.forget_asked()
        folder = self.state.folder
        if folder is not None:
            (folder / ROSTER).unlink(missing_ok=True)

    def drop(self, driver: RosterMember) -> None:
        self.state.node.schedule.unregister(driver)
        driver.close()

    def drop_all(self) -> None:
        """End the engines of the epoch: they serve nobody any more."""
        for driver in self.state.drivers():
            self.drop(driver)
        self.state.ring = self.state.data = None

    def close(self) -> None:
        self.drop_all()
        self.expire(NEVER)

    def expire(self, now: int) -> int:
        """Drop engines that have served long enough; return when the next one has."""
        for due, driver in list(self.lingering):
            if due <= now:
                self.lingering.remove((due, driver))
                self.drop(driver)
        return min((due for due, _ in self.lingering), default=NEVER)

    # -- away while the roster changed -----------------------------------------------------------

    def jump(self, now: int) -> None:
        """We did not reach the end of our epoch: go on in the present one, behind a gap."""
        start = self.behind
        assert start is not None
        self.part(now)
        self.lose_doubtful(start)
        self.enter(start, now)

    def part(self, now: int, tails: Mapping[int, Tail] | None = None) -> None:
        """Our epoch ended elsewhere; `tails`: of the members who went on, if known.

        What a member without positions had accepted, and knows the others were given, its
        applications are given first.  It cannot know what else there was: so they are told."""
        data, cluster = self.state.data, self.state.cluster
        if data is None or cluster is None or self.state.spec.family.order == TOTAL:
            return
        cluster.hand_over_known(tails or {})
        data.carry_out(now)
        self.subscribers.left_out(self.state.epoch)

    def lose_doubtful(self, start: Start) -> None:
        """We were away while the roster changed: of what we have under way, what may be in the
        order is lost track of; what certainly is not stays, and is sent again."""
        state = self.state
        token = state.ring.token if state.ring is not None else None
        underway = list(state.outbox.underway)
        doubtful = len(underway)
        if state.is_token and token is not None:
            # The engine's own bundles are the first of those under way; others never left here.
            doubtful = len(token.own.kept)
            for name, epoch, number in start.counted:
                if name == state.node.name and epoch == state.epoch:
                    doubtful = min(doubtful, max(0, number - token.own.base))
        for bundle in underway[:doubtful]:
            state.outbox.lose_track(bundle, "away while the roster changed")

    # -- what others are told --------------------------------------------------------------------

    def count_bundles(self) -> None:
        """Note how many bundles of each member the epoch that ends has, as far as acknowledged
        here.

        What is not among them was not delivered by anybody and never will be: its source may send
        it again, whatever it has missed meanwhile.
        """
        state = self.state
        assert state.ring is not None
        assert state.ring.token is not None
        for member, name in enumerate(state.roster):
            info = state.info_of(name)
            if info is not None and info.epoch >= state.epoch:
                # It was in this epoch: how earlier ones ended is no question any more.
                for old in [key for key in self.counted if key[0] == name]:
                    del self.counted[old]
            self.counted[name, state.epoch] = state.ring.token.log.next_num[member]

    def latest_counts(self) -> tuple[tuple[str, int, int], ...]:
        """As `Start` has them: member, epoch, number of bundles."""
        latest = list(self.counted.items())[-MEMBERS_MAX:]
        self.counted = dict(latest)
        return tuple((name, epoch, number) for (name, epoch), number in latest)

    def announce(self, now: int) -> None:
        """Tell members of the roster that have not been heard in it what it is."""
        state = self.state
        self.announce_due = NEVER
        if state.ring is None or now >= self.announce_until:
            return
        others = (name for name in state.roster if name != state.node.name)
        if all((info := state.info_of(name)) and info.epoch >= state.epoch for name in others):
            return
        state.node.send_control(state.start_word(self.latest_counts()))
        self.announce_due = now + ASK_NS
        state.wake_at(self.announce_due)


def _name_of(start: Start) -> str:
    """How an epoch is called, in all incarnations of the group."""
    return f"{start.incarnation}-{start.epoch}"


def _ring_file(start: Start) -> str:
    """The file of a member's promises in an epoch."""
    return f"ring-{file_name(_name_of(start), safe='@:')}.log"
