"""Where a replay begins and ends: a position, a time, or the start."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Final

from roundelay.core.errors import ConfigError
from roundelay.core.position import Position, Since
from roundelay.core.selection import POSITION_MAX, several
from roundelay.journal.moments import in_utc, nanoseconds
from roundelay.wire.frontend_replay import ReplayRequest

START: Final = "start"
Moment = int | datetime | str | Position
"""A position (a number, a `Position` or its text), a time (datetime; without a zone: UTC),
or "start"."""

ALLOWED: Final = 'a position from 0 up, HISTORY:SEQ, a datetime, or "start"'


def since_of(value: Moment, field: str = "since") -> Since:
    """Where `value` says to go on.

    >>> since_of("6f1d:42")
    Since(seq=42, time=0, history='6f1d')
    """
    if isinstance(value, str) and ":" in value:
        value = Position.parse(value, field)
    if isinstance(value, Position):
        return Since(place_of(value.seq, field)[0], 0, value.history)
    return Since(*place_of(value, field))


def place_of(value: Moment, field: str = "since") -> tuple[int, int]:
    """Position and time (ns since 1970, 0: any) that `value` stands for.

    >>> place_of(42), place_of("start")
    ((42, 0), (0, 0))
    """
    if isinstance(value, datetime):
        return 0, max(0, nanoseconds(value))
    if value == START:
        return 0, 0
    if isinstance(value, Position):
        value = value.seq
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= POSITION_MAX:
        raise ConfigError(field, repr(value), ALLOWED)
    return value, 0


def parse_moment(text: str, field: str = "since") -> Moment:
    """As a command line has it.

    >>> parse_moment("42"), parse_moment("start"), parse_moment("2026-01-31T12:00Z").year
    (42, 'start', 2026)
    >>> parse_moment("6f1d@09ab:200:42")
    Position(history='6f1d@09ab:200', seq=42)
    """
    if text == START:
        return text
    if text.isdecimal():
        return int(text)
    try:
        return in_utc(datetime.fromisoformat(text))
    except ValueError:
        history, _, seq = text.rpartition(":")
        if history and seq.isdecimal():
            return Position.parse(text, field)
        raise ConfigError(
            field,
            text,
            'a position, HISTORY:SEQ, a date-time such as 2026-01-31T12:00Z, or "start"',
        ) from None


def request_of(
    since: Moment = START,
    until: int | datetime | None = None,
    *,
    conference: int | Iterable[int] | None = None,
    sender: str | Iterable[str] | None = None,
    kind: int | Iterable[int] | None = None,
) -> ReplayRequest:
    """What `Group.replay` asks for, checked; of which history, `since` says."""
    start = since_of(since)
    last, last_time = POSITION_MAX, POSITION_MAX
    if until is not None:
        end, end_time = place_of(until, "until")
        last, last_time = (last, end_time) if isinstance(until, datetime) else (end, last_time)
    request = ReplayRequest(
        since=start.seq,
        until=last,
        since_time=start.time,
        until_time=last_time,
        conferences=several("conference", conference),
        senders=several("sender", sender),
        kinds=several("kind", kind),
    )
    request.check()
    return request
