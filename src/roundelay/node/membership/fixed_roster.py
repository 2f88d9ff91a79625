"""A token group whose members were named: it is opened once so many of them have met that the group
is known to be new, or to have a past."""

from __future__ import annotations

import time
from typing import Any, Final

from roundelay.core.engine import NEVER, SECOND, Notice
from roundelay.core.errors import ConfigError, SettingsMismatch
from roundelay.core.token.config import COLD, REJOIN
from roundelay.core.token.pdu import NO_LIST
from roundelay.core.token.stable import Stable
from roundelay.node.driver import engines
from roundelay.node.driver.roster_member import RosterMember
from roundelay.node.membership import settings
from roundelay.node.membership.histories import history_name
from roundelay.node.membership.reasons import gone
from roundelay.node.membership.state import GroupState
from roundelay.node.membership.subscribers import Subscribers
from roundelay.node.storage.store import Store
from roundelay.wire.control import GroupInfo, Settings

DIFFER_NS: Final = 2 * SECOND
"""How long members of a fixed roster that meet for the first time with different settings wait for
others, to see which of them is in the minority."""


class FixedRoster:
    """Opens the one engine of a fixed roster, and names its history."""

    def __init__(self, state: GroupState, subscribers: Subscribers) -> None:
        self.state = state
        self.subscribers = subscribers
        self.store: Store | None = None
        self.contacts: dict[str, int] = {}
        """Who has told us of its past with the group."""
        self.strangers: dict[str, Settings] = {}
        """Members that have other settings than this one."""

    def prepare(self, now: int) -> None:
        """Open the group if this member has a past in it, else meet the others first."""
        state, spec = self.state, self.state.spec
        state.roster = spec.members
        folder = state.folder
        if folder is None:
            raise ConfigError(
                "dir", None, "a directory: a member of a fixed roster must remember its promises"
            )
        store = self.store = state.store(folder / "token.log", Stable)
        stable = store.stable
        promised = stable is not None and (stable.max_joined != NO_LIST or stable.wiped)
        state.settings = settings.of_fixed(folder, spec, has_past=promised or store.damaged)
        if store.damaged:
            self._open(now, None, REJOIN)
        elif promised:
            self._open(now, stable, COLD)
        else:
            self._meet(now)

    def _open(self, now: int, stable: Any, boot: str) -> None:
        state, node, spec = self.state, self.state.node, self.state.spec
        assert state.folder is not None
        assert state.settings is not None
        settings.keep(state.folder, state.settings)
        resilience = state.settings.resilience
        engine = engines.token_engine(state, spec.members, resilience, boot, now, stable)
        engine.reformation.floor = node.recorders.floor(
            spec.name, history_name(engine.token_list.history)
        )
        data = state.ring = state.data = RosterMember(
            state, spec.members, engine, self.subscribers.lost, self._noticed, store=self.store
        )
        self._name_history()
        state.condition = "open"
        state.deadline = NEVER
        node.schedule.register(data)
        node.say_soon(now)
        self.subscribers.show()

    def _noticed(self, notice: Notice) -> None:
        if notice.kind == "view":
            self._name_history()
            self.subscribers.show()
        elif notice.kind == "blocked":
            self.state.wake_at(time.monotonic_ns())  # an operator may help

    def _name_history(self) -> None:
        """The history of a fixed roster is drawn by its first list, and known in every other."""
        state, data = self.state, self.state.data
        assert data is not None
        assert data.token is not None
        history = history_name(data.token.token_list.history)
        if history and history != state.incarnation:
            state.incarnation = data.lineage = history
            state.node.recorders.entered(state.name, history)
            self.subscribers.history_began()
            self.subscribers.keep_in_memory(data)

    def _meet(self, now: int) -> None:
        """A member without a past: has it lost it, or is the group new?

        Any list that ever formed had a majority.  Having heard from so many others that one of
        them must have been in it, we know; if the group has a past we are a member that lost its
        disk (CM-R17), else the group is as new as we are.
        """
        state, members = self.state, self.state.spec.members
        size = len(members)
        needed = size - (size // 2 + 1) + 1 if size > 1 else 0
        past = any(version >= 0 for version in self.contacts.values())
        if past or len(self.contacts) >= needed:
            self._open(now, None, REJOIN if past else COLD)
            return
        state.deadline = NEVER
        if not self.strangers:  # else it says what is wrong with them
            known = {state.node.name, *self.contacts}
            missing = gone([name for name in members if name not in known])
            state.condition = f"forming: meeting the other members for the first time ({missing})"
            self.subscribers.show()

    def hear(self, name: str, info: GroupInfo, now: int) -> None:
        """Members of one roster have the same settings, or they would not be one group."""
        state, agreed = self.state, self.state.settings
        if agreed is None or state.data is not None:
            return
        if info.settings is None or info.settings == agreed:
            self.strangers.pop(name, None)
            self.contacts[name] = info.epoch
            self._meet(now)
            return
        self.contacts.pop(name, None)
        self.strangers[name] = info.settings
        others = len(state.spec.members) - 1
        if info.epoch >= 0 or 2 * len(self.strangers) > others:
            self._differ(info.settings)  # the group has begun, or most of it says something else
        option, mine, theirs = settings.differing(agreed, info.settings)
        state.condition = (
            f"forming: {name} has {option} = {theirs}, and this member {option} = {mine}"
        )
        state.deadline = min(state.deadline, now + DIFFER_NS)
        self.subscribers.show()

    def on_timer(self) -> None:
        """Give up if nobody came who has the same settings as this member."""
        if self.strangers and self.state.data is None:
            self._differ(next(iter(self.strangers.values())))

    def _differ(self, theirs: Settings) -> None:
        mine = self.state.settings
        assert mine is not None
        raise SettingsMismatch(self.state.name, *settings.differing(mine, theirs))
