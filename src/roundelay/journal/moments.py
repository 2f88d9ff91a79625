"""Times as people write them.  One rule everywhere: a time without a zone is UTC."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from roundelay.core.errors import ConfigError

ALLOWED: Final = "an ISO date and time as 2026-01-31T12:00:00Z; without a zone it is UTC"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def in_utc(moment: datetime) -> datetime:
    """`moment` with a zone.

    >>> in_utc(datetime(2026, 1, 31, 12)).isoformat()
    '2026-01-31T12:00:00+00:00'
    """
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment


def nanoseconds(moment: datetime) -> int:
    """Since 1970, exactly.

    >>> nanoseconds(datetime(1970, 1, 1, 0, 0, 1))
    1000000000
    """
    passed = in_utc(moment) - _EPOCH
    return ((passed.days * 86_400 + passed.seconds) * 1_000_000 + passed.microseconds) * 1000


def parse_time(text: str, field: str = "time") -> datetime:
    """The time that `text` tells, with its zone."""
    try:
        return in_utc(datetime.fromisoformat(text))
    except ValueError:
        raise ConfigError(field, text, ALLOWED) from None


def lacks_zone(text: str) -> bool:
    """Whether `text` is a time that does not say of which zone.

    >>> lacks_zone("2026-01-31T12:00"), lacks_zone("2026-01-31T12:00Z"), lacks_zone("42")
    (True, False, False)
    """
    if text.isdecimal():
        return False
    try:
        return datetime.fromisoformat(text).tzinfo is None
    except ValueError:
        return False
