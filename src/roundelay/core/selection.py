"""Which messages of a group somebody wants, or a recorder keeps whole (GR-10, GR-16, GR-17)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Protocol

from msgspec import Struct

from roundelay.core.errors import ConfigError

POSITION_MAX: Final = 1 << 62
"""No position is as large, nor a time."""
NUMBER_MAX: Final = (1 << 32) - 1
"""Of a conference or a kind."""
FILTERS: Final = {"sender": "senders", "conference": "conferences", "kind": "kinds"}


class Marked(Protocol):
    """What a selection looks at: a message of an engine, or a run of a journal."""

    @property
    def time(self) -> int: ...
    @property
    def sender(self) -> Any: ...
    @property
    def conference(self) -> int: ...
    @property
    def kind(self) -> int: ...


class Selection(Struct, frozen=True):
    """Which messages: everything that is given must hold.  None stands for all there are."""

    conferences: frozenset[int] | None = None
    senders: frozenset[Any] | None = None
    """Names of nodes; inside an engine, numbers of sites."""
    kinds: frozenset[int] | None = None
    since: int = 0
    until: int = POSITION_MAX
    """Positions, half-open."""
    since_time: int = 0
    until_time: int = POSITION_MAX
    """Times as messages have them, half-open."""

    @property
    def by_content(self) -> bool:
        """Does it name conferences or senders, for which a journal has an index?"""
        return self.conferences is not None or self.senders is not None

    @property
    def everything(self) -> bool:
        """Does it take whatever is between `since` and `until`?"""
        timed = self.since_time > 0 or self.until_time < POSITION_MAX
        return not (self.by_content or self.kinds is not None or timed)

    @property
    def nothing(self) -> bool:
        """Does it exclude all there can be?"""
        none_left = self.since >= self.until or self.since_time >= self.until_time
        return none_left or not all(self.filters.values())

    def matches(self, sender: Any, conference: int, kind: int) -> bool:
        """Is a message with these marks one of the selection, at its position and time?"""
        return (
            (self.conferences is None or conference in self.conferences)
            and (self.senders is None or sender in self.senders)
            and (self.kinds is None or kind in self.kinds)
        )

    def takes(self, message: Marked) -> bool:
        """Is a message one of the selection, at its position?"""
        return (
            (self.conferences is None or message.conference in self.conferences)
            and (self.senders is None or message.sender in self.senders)
            and (self.kinds is None or message.kind in self.kinds)
            and self.since_time <= message.time < self.until_time
        )

    @property
    def filters(self) -> dict[str, frozenset[Any]]:
        """The sets that are given, by what each is of: `sender`, `conference`, `kind`."""
        sets = {key: getattr(self, name) for key, name in FILTERS.items()}
        return {key: values for key, values in sets.items() if values is not None}

    def shown(self) -> dict[str, list[Any]]:
        """What it names, as `status` shows it."""
        return {FILTERS[key]: sorted(values) for key, values in self.filters.items()}


EVERYTHING: Final = Selection()


def chosen(values: Iterable[Any]) -> frozenset[Any] | None:
    """The values as a selection has them where naming none means all."""
    return frozenset(values) or None


def several(field: str, value: Any) -> frozenset[Any] | None:
    """One number or name, or some, as a caller gives them; None stays None."""
    if value is None:
        return None
    try:
        return frozenset((value,) if isinstance(value, int | str) else value)
    except TypeError:
        raise ConfigError(field, repr(value)[:60], "one, or some") from None


def parse_filters(pieces: Iterable[str], text: str) -> Selection:
    """What is recorded whole, from the `key=value` and further values of the option `text`.

    >>> sorted(parse_filters(["conference=7", "8", "kind=1"], "").conferences)
    [7, 8]
    """
    values: dict[str, set[Any]] = {}
    key = ""
    for piece in pieces:
        name, equals, value = piece.partition("=")
        if not equals:
            value = name
        elif name in FILTERS:
            key = name
        else:
            raise ConfigError("record", text, "filters conference=, sender=, kind=")
        if key == "sender" and value:
            values.setdefault("senders", set()).add(value)
        elif key in ("conference", "kind") and value.isdecimal() and int(value) <= NUMBER_MAX:
            values.setdefault(FILTERS[key], set()).add(int(value))
        else:
            allowed = "a name" if key == "sender" else "a whole number below 4294967296"
            raise ConfigError("record", text, f"{key or 'a filter'}= and {allowed}")
    marks = {name: chosen(values.get(name, ())) for name in FILTERS.values()}
    return Selection(marks["conferences"], marks["senders"], marks["kinds"])
