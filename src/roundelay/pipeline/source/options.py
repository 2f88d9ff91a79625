"""What a reader of the data source `roundelay` may be told: its options, and filters pushed down.

Both end as a `Selection` of the journal and a set of groups, so what Spark pushes down and what a
user says by options are one and the same thing to whoever reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final

from msgspec import Struct, structs
from pyspark.sql import datasource as ds

from roundelay.core.errors import ConfigError
from roundelay.core.limits import one_of
from roundelay.core.selection import EVERYTHING, FILTERS, POSITION_MAX, Selection
from roundelay.journal.moments import nanoseconds, parse_time

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
FAIL: Final = "fail"
SKIP: Final = "skip"

KNOWN: Final = {
    "path": "journal folders or archives, several with commas, globs allowed",
    "recorder": "HOST:PORT of a node that records, several with commas",
    "group": "full names of groups, several with commas; needed with `recorder`",
    "seq_from": "first position: a number, earliest, or latest (streams)",
    "seq_until": "position to stop before",
    "time_from": "ISO date and time, UTC unless it says otherwise",
    "time_until": "the same; rows before it",
    "conference": "numbers, several with commas",
    "sender": "names of nodes, several with commas",
    "kind": "numbers, several with commas",
    "gaps": "fail or skip: what to do about positions that nobody has",
    "gap_wait": "seconds a stream waits for a gap to be filled, or for a recorder, before it fails",
    "maxrowspertrigger": "rows of one micro-batch",
    "pushdown": "true: take over filters of the query; see docs/spark.md before you say so",
    "partitions": "tasks to read with; otherwise by size",
    "markers": "true: show the messages by which sinks recognise what they sent",
}


class SourceOptions(Struct, frozen=True, kw_only=True):
    """The options, checked."""

    paths: tuple[str, ...] = ()
    recorders: tuple[str, ...] = ()
    groups: frozenset[str] | None = None
    selection: Selection = EVERYTHING
    start: str = EARLIEST
    """Where a stream begins: `earliest`, `latest`, or empty for the selection's `since`."""
    gaps: str = FAIL
    gap_wait_s: float = 60.0
    max_rows: int = 0
    """Of one micro-batch; 0: no limit."""
    partitions: int = 0
    pushdown: bool = False
    markers: bool = False


def parse(options: Mapping[str, str]) -> SourceOptions:
    """The options of a reader; ConfigError names the one that is wrong.

    >>> parse({"path": "a,b", "seq_from": "7"}).selection.since
    7
    """
    given = known_options(options, KNOWN)
    paths, recorders = _listed(given.get("path")), _listed(given.get("recorder"))
    groups = _listed(given.get("group"))
    if bool(paths) == bool(recorders):
        raise ConfigError("path", given.get("path", ""), "one of path and recorder")
    if recorders and not groups:
        raise ConfigError("group", "", "the group that the recorder at `recorder` records")
    gaps = given.get("gaps", FAIL).lower()
    one_of("gaps", gaps, (FAIL, SKIP))
    first = given.get("seq_from", EARLIEST).lower()
    limits = {
        name: read(option, given[option])
        for name, option, read in (
            ("until", "seq_until", number),
            ("since_time", "time_from", _time),
            ("until_time", "time_until", _time),
        )
        if option in given
    }
    selection = Selection(
        since=0 if first in (EARLIEST, LATEST) else number("seq_from", first),
        **limits,
        conferences=_numbers("conference", given.get("conference")),
        senders=frozenset(_listed(given["sender"])) if "sender" in given else None,
        kinds=_numbers("kind", given.get("kind")),
    )
    return SourceOptions(
        paths=paths,
        recorders=recorders,
        groups=frozenset(groups) or None,
        selection=selection,
        start=first if first in (EARLIEST, LATEST) else "",
        gaps=gaps,
        gap_wait_s=float(number("gap_wait", given.get("gap_wait", "60"))),
        max_rows=number("maxRowsPerTrigger", given.get("maxrowspertrigger", "0")),
        partitions=number("partitions", given.get("partitions", "0")),
        pushdown=_yes("pushdown", given.get("pushdown", "false")),
        markers=_yes("markers", given.get("markers", "false")),
    )


def known_options(options: Mapping[str, str], known: Mapping[str, str]) -> dict[str, str]:
    """Options by their names in lower case; ConfigError if one is none of those that are known."""
    given = {key.lower(): value for key, value in options.items()}
    for key, value in given.items():
        if key not in known:
            raise ConfigError(key, value, f"an option of {', '.join(known)}")
    return given


def _listed(text: str | None) -> tuple[str, ...]:
    return tuple(part.strip() for part in (text or "").split(",") if part.strip())


def number(field: str, text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise ConfigError(field, text, "a whole number from 0 up")
    return int(text)


def _numbers(field: str, text: str | None) -> frozenset[int] | None:
    return None if text is None else frozenset(number(field, word) for word in _listed(text))


def _yes(field: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ConfigError(field, text, "true or false")
    return text.lower() == "true"


def _time(field: str, text: str) -> int:
    return nanoseconds(parse_time(text, field))


# ------------------------------------------------------------------------ filters of Spark


def narrowed(
    options: SourceOptions, filters: Iterable[ds.Filter]
) -> tuple[SourceOptions, list[Any]]:
    """The options with those filters in them that a journal can apply exactly, and the others."""
    rest = []
    for condition in filters:
        better = _with(options, condition)
        if better is None:
            rest.append(condition)
        else:
            options = better
    return options, rest


def _with(options: SourceOptions, condition: ds.Filter) -> SourceOptions | None:
    attribute = getattr(condition, "attribute", None)
    if attribute is None or len(attribute) != 1:
        return None
    column = attribute[0]
    if isinstance(condition, ds.IsNotNull):
        return None if column == "data" else options  # no other column is ever null
    if column in ("seq", "time"):
        return _range(options, condition, column)
    if isinstance(condition, ds.EqualTo | ds.EqualNullSafe):
        values = {condition.value}
    elif isinstance(condition, ds.In):
        values = set(condition.value) - {None}
    else:
        return None
    if column == "group":
        groups = frozenset(values) & (values if options.groups is None else options.groups)
        return structs.replace(options, groups=groups)
    field = FILTERS.get(column)
    if field is None:
        return None
    before = getattr(options.selection, field)
    chosen = frozenset(values) if before is None else before & values
    selection = structs.replace(options.selection, **{field: chosen})
    return structs.replace(options, selection=selection)


def _range(options: SourceOptions, condition: ds.Filter, column: str) -> SourceOptions | None:
    """A comparison with `seq` or `time`, as a half-open range."""
    value = getattr(condition, "value", None)
    step = 1
    if column == "time":
        if not isinstance(value, datetime):
            return None
        value, step = nanoseconds(value), 1000  # rows have microseconds, records nanoseconds
    if not isinstance(value, int):
        return None
    spans: dict[type, tuple[int, int]] = {
        ds.EqualTo: (value, value + step),
        ds.EqualNullSafe: (value, value + step),
        ds.GreaterThan: (value + step, POSITION_MAX),
        ds.GreaterThanOrEqual: (value, POSITION_MAX),
        ds.LessThan: (0, value),
        ds.LessThanOrEqual: (0, value + step),
    }
    if type(condition) not in spans:
        return None
    lo, hi = spans[type(condition)]
    since, until = ("since", "until") if column == "seq" else ("since_time", "until_time")
    had = options.selection
    both = {since: max(getattr(had, since), lo), until: max(0, min(getattr(had, until), hi))}
    return structs.replace(options, selection=structs.replace(had, **both))
