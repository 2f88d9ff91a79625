"""Where a replay begins and ends: a position, a time, or the start."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Final

from roundelay.core.errors import ConfigError
from roundelay.wire.frontend_replay import POSITION_MAX, Wish

START: Final = "start"
Moment = int | datetime | str
"""A position (int), a time (datetime; without a zone: local time), or "start"."""

ALLOWED: Final = 'a position from 0 up, a datetime, or "start"'


def nanoseconds(moment: datetime) -> int:
    """Since 1970, exactly.

    >>> nanoseconds(datetime(1970, 1, 2, tzinfo=UTC))
    86400000000000
    """
    passed = moment.astimezone(UTC) - datetime(1970, 1, 1, tzinfo=UTC)
    return (passed.days * 86_400 + passed.seconds) * 1_000_000_000 + passed.microseconds * 1000


def place_of(value: Moment, field: str = "since") -> tuple[int, int]:
    """Position and time (ns since 1970, 0: any) that `value` stands for.

    >>> place_of(42), place_of("start")
    ((42, 0), (0, 0))
    """
    if isinstance(value, datetime):
        return 0, max(0, nanoseconds(value))
    if value == START:
        return 0, 0
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= POSITION_MAX:
        raise ConfigError(field, repr(value), ALLOWED)
    return value, 0


def parse_moment(text: str, field: str = "since") -> Moment:
    """As a command line has it.

    >>> parse_moment("42"), parse_moment("start"), parse_moment("2026-01-31T12:00Z").year
    (42, 'start', 2026)
    """
    if text == START:
        return text
    if text.isdecimal():
        return int(text)
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(
            field, text, 'a position, a date-time such as 2026-01-31T12:00Z, or "start"'
        ) from None


def wish_of(
    since: Moment = START,
    until: int | datetime | None = None,
    *,
    conference: int | Iterable[int] | None = None,
    sender: str | Iterable[str] | None = None,
    kind: int | Iterable[int] | None = None,
) -> Wish:
    """What `Group.replay` asks for, checked."""
    position, time = place_of(since)
    last, last_time = POSITION_MAX, POSITION_MAX
    if until is not None:
        end, end_time = place_of(until, "until")
        last, last_time = (last, end_time) if isinstance(until, datetime) else (end, last_time)
    wish = Wish(
        since=position,
        until=last,
        since_time=time,
        until_time=last_time,
        conferences=_several(conference),
        senders=_several(sender),
        kinds=_several(kind),
    )
    wish.check()
    return wish


def _several(value: Any) -> tuple[Any, ...] | None:
    if value is None:
        return None
    return (value,) if isinstance(value, int | str) else tuple(value)
