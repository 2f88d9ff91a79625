"""What each row group of a run has: the first pass of every way of judging.

Which positions, how many submissions, whether there are transmissions, and the few special
rows (`verify.control`).  Only as much is read as the statistics of a row group leave open.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from msgspec import Struct, field

from roundelay.core.errors import UsageError
from roundelay.core.events import DELIVER, NOBODY, NOTICE, SEND, SUBMIT
from roundelay.pipeline.spark.executors import Mapper
from roundelay.pipeline.verify.columns import CODES, Array, OpenRowGroup, RowGroups, present
from roundelay.pipeline.verify.control import EVENTS, NOTICES, Control, control_of
from roundelay.pipeline.verify.runs import TracedRun
from roundelay.trace.checkers.checkers import TOTAL
from roundelay.trace.reader import rows_of
from roundelay.trace.schema import TraceRow, arrow, arrow_schema

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

LATER: Final = 1 << 62

SPECIAL: Final = np.isin(np.arange(len(CODES)), [CODES[name] for name in EVENTS])
"""By the code of an event: whether its rows are special."""


class NotClean(Exception):
    """Something is not as it is in a clean trace: nothing is proved."""


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
        return [_surveyed(run, files.open(*place), RowGroup(*place)) for place in places]

    groups = [group for some in mapper(shares, surveyed, list[RowGroup]) for group in some]
    control = control_of(run, [special for group in groups for special in group.specials])
    return Survey(run, groups, control)


def _surveyed(run: TracedRun, rows: OpenRowGroup, group: RowGroup) -> RowGroup:
    """Where a row group has nothing but messages, its statistics say most of it."""
    event = rows.events
    if not len(event):
        return group
    if event.min() < 0:
        raise UsageError(f"trace {rows.part.path} has an event that no trace has")
    site, count = rows.numbers("site"), rows.numbers("count")
    unknown = set(present(site)) - {*run.sites, NOBODY}
    if unknown:
        raise UsageError(f"trace {rows.part.path}: there is no site {min(unknown)} in this group")
    group.first_ns, group.last_ns = rows.times()
    group.sends = bool((event == SEND).any())
    submitted, delivered = event == SUBMIT, rows.final_deliveries()
    if delivered.any():
        sizes = count[delivered]
        group.deliveries = int(sizes.sum())
        said = rows.statistics("seq")
        if said is not None and (submitted | (event == DELIVER)).all():
            group.lo, group.hi = said.min, said.max + int(sizes.max())
        else:
            seq = rows.numbers("seq")[delivered]
            group.lo, group.hi = int(seq.min()), int((seq + sizes).max())
    group.specials = _specials(rows, event)
    group.submits = int(count[submitted & rows.of(run.users)].sum())
    if run.order != TOTAL and submitted.any():
        info = rows.column("info").filter(arrow().array(submitted))
        group.addressed = info.null_count < len(info)
    return group


def _specials(rows: OpenRowGroup, event: Array) -> list[TraceRow]:
    special = np.flatnonzero(SPECIAL[event])
    if not len(special):
        return []
    kinds = rows.column("kind").take(arrow().array(special)).to_pylist()
    chosen = [
        int(row)
        for row, kind in zip(special, kinds, strict=True)
        if event[row] != NOTICE or kind in NOTICES
    ]
    if not chosen:
        return []
    table = rows.table().take(arrow().array(chosen)).cast(arrow_schema())
    return [row for batch in table.to_batches() for row in rows_of(batch)]
