"""What each row group of a run has: the first pass of every way of judging.

Which positions, how many submissions, whether there are transmissions, and the few special
rows (`verify.control`).  Only as much is read as the statistics of a row group leave open.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from msgspec import Struct, field

from roundelay.core.errors import UsageError
from roundelay.core.events import DELIVER, NOBODY, NOTICE, SEND, SUBMIT
from roundelay.pipeline.spark.executors import Mapper
from roundelay.pipeline.verify.columns import (
    CODES,
    PROVISIONAL,
    Array,
    RowGroups,
    TraceFileReader,
    column,
    events_of,
    final_deliveries,
    numbers,
    present,
)
from roundelay.pipeline.verify.control import EVENTS, NOTICES, Control, control_of
from roundelay.pipeline.verify.runs import TracedRun
from roundelay.trace.checkers.checkers import TOTAL
from roundelay.trace.reader import rows_of
from roundelay.trace.schema import TraceRow, arrow

SURVEY_GROUPS: Final = 64
SURVEY_LEAST: Final = 8
SURVEY_TASKS: Final = 4
"""Row groups that one task surveys, and into how many tasks the work should be cut if it can."""

RANGE_MESSAGES: Final = 2_500_000
"""Deliveries that one task of a proof lays side by side: some 250 MB."""

RANGES_LEAST: Final = 4
GROUPS_LEAST: Final = 2
"""Row groups per file that a task should have: those at its borders are read twice."""

Place = tuple[int, int]
"""Of a row group: (part, number)."""

CONSTANT: Final = ("site", "count", "kind")
"""Columns that often have one value only; then they need not be read."""

LATER: Final = 1 << 62

SPECIAL: Final = np.isin(np.arange(len(CODES)), [CODES[name] for name in EVENTS])
"""By the code of an event: whether its rows are special."""


class RowGroup(Struct):
    """What a row group has."""

    part: int
    number: int
    first_ns: int = 0
    last_ns: int = 0
    lo: int = LATER
    hi: int = -1
    deliveries: int = 0
    submits: int = 0
    addressed: bool = False
    sends: bool = False
    specials: list[TraceRow] = field(default_factory=list)

    @property
    def place(self) -> Place:
        return self.part, self.number


class Survey(Struct):
    """What is known of a run after the first pass."""

    run: TracedRun
    groups: list[RowGroup]
    control: Control

    @property
    def deliveries(self) -> int:
        return sum(group.deliveries for group in self.groups)

    @property
    def submits(self) -> int:
        return sum(group.submits for group in self.groups)

    @property
    def sends(self) -> bool:
        """Whether the trace has transmissions."""
        return any(group.sends for group in self.groups)

    @property
    def addressed(self) -> bool:
        """Whether any message has destinations."""
        return any(group.addressed for group in self.groups)

    def of_task(self, most: int) -> int:
        """How many deliveries one task of a proof should have."""
        least = GROUPS_LEAST * len(self.run.parts) * self.deliveries // max(1, len(self.groups))
        return max(1, min(most, max(self.deliveries // RANGES_LEAST, least)))


def survey(run: TracedRun, mapper: Mapper) -> Survey:
    """What every row group of a run has, and the tables that its special rows make."""
    every = run.row_groups
    share = max(SURVEY_LEAST, min(SURVEY_GROUPS, len(every) // SURVEY_TASKS + 1))
    shares = [[every[i : i + share]] for i in range(0, len(every), share)]

    def surveyed(places: list[Place]) -> list[RowGroup]:
        files = RowGroups(run)
        return [
            _surveyed(run, files.reader(part), RowGroup(part, number)) for part, number in places
        ]

    groups = [group for some in mapper(shares, surveyed, list[RowGroup]) for group in some]
    control = control_of(run, [special for group in groups for special in group.specials])
    return Survey(run, groups, control)


def _surveyed(run: TracedRun, reader: TraceFileReader, group: RowGroup) -> RowGroup:
    """Where a row group has nothing but messages, its statistics say most of it."""
    number = group.number
    event = events_of(reader.table(number, ["event"]))
    if not len(event):
        return group
    if event.min() < 0:
        raise UsageError(f"trace {reader.part.path} has an event that no trace has")
    deliveries, submits = (int(np.count_nonzero(event == code)) for code in (DELIVER, SUBMIT))
    plain = deliveries + submits == len(event)
    known: dict[str, Any] = {
        name: reader.only(number, name) if plain else None for name in CONSTANT
    }
    span = reader.bounds(number, "seq") if plain else None
    names = [name for name, value in known.items() if value in (None, PROVISIONAL)]
    names += [] if span else ["seq"]
    names += [] if run.order == TOTAL else ["info"]
    group.first_ns, group.last_ns = reader.times(number)
    if not names and span is not None and known["site"] in run.users:
        size = int(known["count"])
        group.deliveries, group.submits = deliveries * size, submits * size
        if deliveries:
            group.lo, group.hi = span[0], span[1] + size
        return group
    table = reader.table(number, names)
    site, count = (
        numbers(table, name) if known[name] is None else np.full(len(event), known[name])
        for name in ("site", "count")
    )
    unknown = set(present(site)) - {*run.sites, NOBODY}
    if unknown:
        raise UsageError(f"trace {reader.part.path}: there is no site {min(unknown)} in this group")
    group.sends = bool((event == SEND).any())
    delivered = final_deliveries(table, event)
    if delivered.any():
        sizes = count[delivered]
        if span is not None:
            group.lo, group.hi = span[0], span[1] + int(sizes.max())
        else:
            seq = numbers(table, "seq")[delivered]
            group.lo, group.hi = int(seq.min()), int((seq + sizes).max())
        group.deliveries = int(sizes.sum())
    group.specials = _specials(reader, number, table, event)
    rows = np.flatnonzero(event == SUBMIT)
    group.submits = int(count[rows[np.isin(site[rows], run.users)]].sum())
    if submits and run.order != TOTAL:
        info = column(table, "info").take(arrow().array(rows))
        group.addressed = info.null_count < len(info)
    return group


def _specials(reader: TraceFileReader, number: int, table: Any, event: Array) -> list[TraceRow]:
    rows = np.flatnonzero(SPECIAL[event])
    if not len(rows):
        return []
    kinds = column(table, "kind").take(arrow().array(rows)).to_pylist()
    chosen = [
        int(row)
        for row, kind in zip(rows, kinds, strict=True)
        if event[row] != NOTICE or kind in NOTICES
    ]
    if not chosen:
        return []
    batches = reader.table(number).take(arrow().array(chosen)).to_batches()
    return [row for batch in batches for row in rows_of(_plain(batch))]


def _plain(batch: Any) -> Any:
    """A record batch without dictionaries."""
    pa = arrow()
    columns = [
        col.dictionary_decode() if isinstance(col, pa.DictionaryArray) else col
        for col in batch.columns
    ]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)
