"""The settings of a group: part of it, agreed at its founding, the same for every member.

Whoever founds a group gives it its settings: what it was asked for, and defaults for the rest.
They travel in INFO and in Start.  Whoever joins later and asks for nothing takes what is there; who
asks for something else is refused with both values (`SettingsMismatch`).  Nothing is lowered
without a word.

`resilience` may be left to the size (`FOLLOWS`): L is then what the size allows, (n + 1)/2 − 1, up
to `FOLLOWS_MOST`, since each step takes one more pass of the token until a message is committed.
Asking for no more than that is no contradiction.  What a stage is, when to deliver, each member
says for itself.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import structs

from roundelay.core.errors import ConfigError, SettingsMismatch
from roundelay.core.limits import one_of
from roundelay.core.token.config import most_resilience
from roundelay.durable import put
from roundelay.node.driver import engines
from roundelay.node.groups import GroupSpec, check_members, check_options, plain_spec
from roundelay.wire.control import FOLLOWS, Settings

if TYPE_CHECKING:
    from roundelay.node.membership.state import GroupState
    from roundelay.node.membership.subscribers import Subscribers

FOLLOWS_MOST: Final = 2
MIN_MEMBERS: Final = 2
"""Of a group whose members find each other: one alone would confirm to itself what is lost when it
meets the others."""
FILE: Final = "settings.json"
"""In the folder of a member of a fixed roster."""
KINDS: Final[dict[str, type]] = {
    "stage": str,
    "resilience": int,
    "hub": bool,
    "min_members": int,
    "members": list,
}
"""What an application may ask for through a daemon."""
OPTIONS: Final = ("resilience", "hub", "min_members", "members")


def founded(spec: GroupSpec) -> Settings:
    """Return the settings of a group that is founded by a node which was told `spec`."""
    fixed = spec.fixed and spec.family.resilient
    least = 1 if fixed else MIN_MEMBERS
    return Settings(
        FOLLOWS if spec.resilience is None else spec.resilience,
        bool(spec.hub),
        least if spec.min_members is None else spec.min_members,
        spec.members,
    )


def check(spec: GroupSpec, agreed: Settings) -> None:
    """Raise SettingsMismatch if the group has something else than was asked for."""
    for option, wish in asked(spec).items():
        value: Any = getattr(agreed, option)
        if option == "resilience" and value == FOLLOWS and wish <= FOLLOWS_MOST:
            continue
        if wish != value:
            raise mismatch(spec.name, option, wish, value)


def asked(spec: GroupSpec) -> dict[str, Any]:
    """Return the settings that were asked for by name."""
    named = {option: getattr(spec, option) for option in OPTIONS}
    return {option: wish for option, wish in named.items() if wish is not None and wish != ()}


def merged(spec: GroupSpec, wishes: GroupSpec) -> GroupSpec:
    """`spec` with what `wishes` adds to it, for a group that is not founded yet."""
    before = asked(spec)
    for option, wish in asked(wishes).items():
        if option in before and before[option] != wish:
            raise mismatch(spec.name, option, wish, before[option])
        spec = structs.replace(spec, **{option: wish})
    return spec


def spec_for(spec: GroupSpec, wishes: GroupSpec) -> GroupSpec:
    """What a node that was told `spec` opens for an application that asks for `wishes`."""
    if wishes.stage and spec.stage not in ("", wishes.stage):
        raise SettingsMismatch(spec.name, "stage", wishes.stage, spec.stage)
    return structs.replace(merged(spec, wishes), stage=wishes.stage or spec.stage)


def check_none(wishes: GroupSpec) -> None:
    """Raise if settings are asked for where the group's file has them."""
    for option, wish in asked(wishes).items():
        raise ConfigError(option, shown(option, wish), "none: the group's file says what it is")


def wishes_of(group: str, options: dict[str, Any]) -> GroupSpec:
    """What an application asks for in the words of the frontend protocol."""
    for option, value in options.items():
        one_of("options", option, KINDS, ", ")
        kind = KINDS[option]
        names = value if kind is list and isinstance(value, list) else []
        if type(value) is not kind or any(type(name) is not str for name in names):
            raise ConfigError(option, repr(value)[:40], f"a value of type {kind.__name__}")
    members = tuple(options.get("members", ()))
    options = options | {"members": check_members(members) if members else ()}
    return check_options(plain_spec(group, **options))


def words_of(spec: GroupSpec) -> dict[str, Any]:
    """Return the options of the frontend protocol that ask for this (see `wishes_of`)."""
    words = asked(spec)
    if spec.stage:
        words["stage"] = spec.stage
    if "members" in words:
        words["members"] = list(spec.members)
    return words


def adopted(spec: GroupSpec, agreed: Settings) -> GroupSpec:
    """`spec` as it is in the group."""
    return structs.replace(
        spec, hub=agreed.hub, min_members=agreed.min_members, members=agreed.members
    )


def level(agreed: Settings, size: int) -> int:
    """L in a roster of that size."""
    most = most_resilience(size)
    return min(FOLLOWS_MOST if agreed.resilience == FOLLOWS else agreed.resilience, most)


def differing(mine: Settings, theirs: Settings) -> tuple[str, str, str]:
    """Return the first option in which two settings differ, and both values; they must differ."""
    option = next(name for name in OPTIONS if getattr(mine, name) != getattr(theirs, name))
    return option, shown(option, getattr(mine, option)), shown(option, getattr(theirs, option))


def shown(option: str, value: Any) -> str:
    """Return a value as people read it.

    >>> shown("resilience", FOLLOWS), shown("hub", True), shown("members", ("a", "b"))
    ('as the size allows, up to 2', 'yes', 'a,b')
    """
    if option == "resilience" and value == FOLLOWS:
        return f"as the size allows, up to {FOLLOWS_MOST}"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return ",".join(value) or "found by discovery"
    return str(value)


def mismatch(group: str, option: str, wish: Any, value: Any) -> SettingsMismatch:
    """Return the error for one who asks for something else than the group has."""
    return SettingsMismatch(group, option, shown(option, wish), shown(option, value))


def status(agreed: Settings | None) -> dict[str, str] | None:
    """Return the settings as JSON; None: they are not agreed on yet."""
    if agreed is None:
        return None
    return {option: shown(option, getattr(agreed, option)) for option in OPTIONS}


def waiting(size: int, least: int) -> str:
    """Return the state of a group that has too few members; empty: it has enough."""
    if size >= least:
        return ""
    if (size, least) == (1, 2):
        return "open: waiting for a second member"
    return f"open: waiting for members, {size} of {least} are there"


# -- agreeing on them ------------------------------------------------------------------------


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
            check(wishes, state.settings)
        elif wishes.members and wishes.members != self.wishes.members:
            # What kind of group it is was decided when it was opened here.
            raise mismatch(state.name, "members", wishes.members, self.wishes.members)
        else:
            merged(self.wishes, wishes)

    def petition(self, key: int, wishes: GroupSpec) -> None:
        """The application is in the group, and asked for this, which `check` has looked at."""
        if self.state.settings is not None:
            check(wishes, self.state.settings)  # it may have gone on where it was
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
        spec = structs.replace(self.own, stage=state.spec.stage)
        for wishes in self.petitions.values():
            with suppress(SettingsMismatch):  # two that the settings of a group met both
                spec = merged(spec, wishes)
        self.wishes = state.spec = spec

    def unsettle(self) -> None:
        """The history with these settings is over for us; another may have others."""
        self.state.settings, self.state.spec = None, self.wishes
        self._wish_anew()

    def settle(self, agreed: Settings) -> None:
        """The group has these settings from now on; `accept` has looked at them."""
        self.state.settings = agreed
        self.state.spec = adopted(self.wishes, agreed)

    def accept(self, agreed: Settings) -> None:
        """The group has these settings: applications that asked for others are turned away.

        Raises SettingsMismatch if the node itself was told something else, or if nobody is left.
        """
        name, node = self.state.name, self.state.node
        check(self.own, agreed)
        engines.check_stage(adopted(self.wishes, agreed))
        if agreed.members and node.name not in agreed.members:
            raise mismatch(name, "members", (), agreed.members)
        refused: dict[int, SettingsMismatch] = {}
        for key, wishes in self.petitions.items():
            try:
                check(wishes, agreed)
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
            raise mismatch(self.state.name, "members", members, theirs.members)


# -- fixed rosters ---------------------------------------------------------------------------


def of_fixed(folder: Path, spec: GroupSpec, *, has_past: bool) -> Settings:
    """The settings of a fixed roster, kept by each member from its first opening on.

    Members without that file have them from a version in which L was 1 unless asked for.
    """
    try:
        kept = msgspec.json.decode((folder / FILE).read_bytes(), type=Settings)
    except FileNotFoundError:
        most = most_resilience(len(spec.members))
        kept = founded(spec)
        if kept.resilience == FOLLOWS:
            usual = min(1, most) if has_past else level(kept, len(spec.members))
            kept = structs.replace(kept, resilience=usual)
        if not 0 <= kept.resilience <= most:
            raise ConfigError(
                "resilience", kept.resilience, f"0 to {most} for {len(spec.members)} members"
            ) from None
    check(spec, kept)
    return kept


def keep(folder: Path, agreed: Settings) -> None:
    """Write the settings down, before the first promise is made."""
    if (folder / FILE).exists():
        return
    put(folder / FILE, msgspec.json.encode(agreed))
