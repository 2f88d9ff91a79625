"""A trace in memory, for tests that need no file."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any

from roundelay.core.events import EVENT_NAMES, Row
from roundelay.trace import Flattener, TraceFile, TraceRow
from roundelay.trace.schema import SPARSE


def trace_row(flattener: Flattener, row: Row) -> TraceRow:
    """One raw row as a line of a trace, without the way over a file."""
    time, site, event, ref, peer, obj = row
    line = TraceRow(time, site, EVENT_NAMES[event], ref, peer)
    for name, value in zip(SPARSE, flattener.cells(obj), strict=True):
        if value is not None:
            setattr(line, name, value)
    return line


class Rows(TraceFile):
    """A trace that is no file: what a diagram asks of one."""

    def __init__(self, rows: Iterable[TraceRow], params: dict[str, Any] | None = None) -> None:
        self._rows = sorted(rows, key=lambda row: row.time)
        self.params = params or {}
        self.first_ns = self._rows[0].time if self._rows else 0
        self.last_ns = self._rows[-1].time if self._rows else 0

    def rows(
        self,
        from_ns: int | None = None,
        to_ns: int | None = None,
        events: Collection[str] | None = None,
    ) -> Iterator[TraceRow]:
        for row in self._rows:
            if to_ns is not None and row.time >= to_ns:
                return
            if (from_ns is None or row.time >= from_ns) and (events is None or row.event in events):
                yield row
