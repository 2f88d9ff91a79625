"""What was asked for in a group, and the settings that its members have agreed on."""

from __future__ import annotations

from contextlib import suppress

from msgspec import structs

from roundelay.core.errors import SettingsMismatch
from roundelay.node.driver import engines
from roundelay.node.groups import GroupSpec, plain_spec
from roundelay.node.membership import settings
from roundelay.node.membership.state import GroupState
from roundelay.node.membership.subscribers import Subscribers
from roundelay.wire.control import Settings


class SettingsAgreement:
    """Compares what the node and its applications ask for with what the group is."""

    def __init__(self, state: GroupState, subscribers: Subscribers) -> None:
        self.state = state
        self.subscribers = subscribers
        self.own = state.node.specs.get(state.name) or plain_spec(state.name)
        """What the node was told of the group, whatever its applications ask for."""
        self.wishes = state.spec
        """What was asked for, by the node and by its applications."""
        self.petitions: dict[int, GroupSpec] = {}
        """By application: what that one asked for."""

    def check(self, wishes: GroupSpec) -> None:
        """Another application joins, and asks for this: raises SettingsMismatch."""
        state = self.state
        stage = state.spec.stage or engines.stage_of(state.spec)
        if wishes.stage and wishes.stage != stage:
            raise SettingsMismatch(state.name, "stage", wishes.stage, stage or "none")
        if state.settings is not None:
            settings.check(wishes, state.settings)
        elif wishes.members and wishes.members != self.wishes.members:
            # What kind of group it is was decided when it was opened here.
            raise settings.other_members(state.name, wishes.members, self.wishes.members)
        else:
            settings.merged(self.wishes, wishes)

    def petition(self, key: int, wishes: GroupSpec) -> None:
        """The application is in the group, and asked for this, which `check` has looked at."""
        if self.state.settings is not None:
            settings.check(wishes, self.state.settings)  # it may have gone on where it was
        self.petitions[key] = wishes
        self._wish_anew()

    def withdraw(self, key: int) -> None:
        """The application has left."""
        if self.petitions.pop(key, None) is not None:
            self._wish_anew()

    def _wish_anew(self) -> None:
        """Put together what is asked for, where the group has no settings yet."""
        state = self.state
        if state.settings is not None or state.named:
            return  # it has them, or is the roster it was opened with
        merged = structs.replace(self.own, stage=state.spec.stage)
        for wishes in self.petitions.values():
            with suppress(SettingsMismatch):  # two that the settings of a group met both
                merged = settings.merged(merged, wishes)
        self.wishes = state.spec = merged

    def unsettle(self) -> None:
        """The history with these settings is over for us; another may have others."""
        self.state.settings, self.state.spec = None, self.wishes
        self._wish_anew()

    def settle(self, agreed: Settings) -> None:
        """The group has these settings from now on; `accept` has looked at them."""
        self.state.settings = agreed
        self.state.spec = settings.adopted(self.wishes, agreed)

    def accept(self, agreed: Settings) -> None:
        """The group has these settings: applications that asked for others are turned away.

        Raises SettingsMismatch if the node itself was told something else, or if nobody is left.
        """
        name, node = self.state.name, self.state.node
        settings.check(self.own, agreed)
        engines.check_stage(settings.adopted(self.wishes, agreed))
        if agreed.members and node.name not in agreed.members:
            raise settings.other_members(name, (), agreed.members)
        refused: dict[int, SettingsMismatch] = {}
        for key, wishes in self.petitions.items():
            try:
                settings.check(wishes, agreed)
            except SettingsMismatch as error:
                refused[key] = error
        for key, why in refused.items():
            del self.petitions[key]
            self.subscribers.turn_away(key, f"failed: {why}")
        if refused and not self.subscribers and name not in node.specs:
            raise next(iter(refused.values()))
        if refused:
            self._wish_anew()

    def must_have_roster_of(self, theirs: Settings | None) -> None:
        """Others have the group with another roster, or one of us with none: it would be another
        group of the same name.  Who has the same one has not heard yet that an operator has
        recovered it, and gives way."""
        members = self.state.spec.members
        if theirs is not None and theirs.members != members:
            raise settings.other_members(self.state.name, members, theirs.members)
