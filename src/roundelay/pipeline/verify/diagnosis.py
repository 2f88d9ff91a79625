"""What is wrong with a run that was not proved clean, if anything: the checkers say it.

They are those of `roundelay check`: all rows of the run, in their order, go past one checker, in
one task.  So what `verify` finds is what everybody finds who looks at the run row by row; proofs
only spare it the trouble.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct

from roundelay.core.engine import STAMPED
from roundelay.core.events import MEMORY
from roundelay.pipeline.spark.executors import Mapper
from roundelay.pipeline.verify.columns import ANOTHER
from roundelay.pipeline.verify.runs import TracedRun
from roundelay.pipeline.verify.survey import Survey
from roundelay.pipeline.verify.verdict import Figures
from roundelay.trace.checkers.checkers import JUDGED, TOTAL, RowChecker, destinations_of
from roundelay.trace.checkers.verdict import Violation
from roundelay.trace.reader import TraceFile
from roundelay.trace.schema import TraceRow

FINDINGS_MAX: Final = 10_000
"""Violations that are kept word for word."""

POSITIONS: Final = 1 << 24
MESSAGES: Final = 1 << 20
"""How far back a checker remembers positions (20 bytes each), and settled messages elsewhere."""


class Diagnosis(Struct):
    """What the checkers found, and how much they have seen."""

    findings: list[Violation]
    counts: dict[str, int]
    """Of each invariant how often it was broken, also beyond `findings`."""
    figures: Figures


def diagnose(surveyed: Survey, mapper: Mapper) -> Diagnosis:
    """Show the whole run to a checker."""
    addressed = surveyed.addressed
    found: list[Diagnosis] = mapper(
        [[surveyed.run]], lambda run: _diagnosed(run, addressed), Diagnosis
    )
    return found[0]


def _diagnosed(run: TracedRun, addressed: bool) -> Diagnosis:
    total = run.order == TOTAL
    judge = RowChecker(
        run.users,
        order=run.order,
        addressed=addressed,
        horizon=POSITIONS if total else MESSAGES,
        limit=FINDINGS_MAX,
    )
    files = [TraceFile(Path(part.path)) for part in run.parts]
    own = dict.fromkeys(run.users, 0)
    deliveries = 0
    for row in _rows(files):
        judge.take(row)
        if row.site not in own:
            continue
        if row.event == "DELIVER" and row.kind != STAMPED:
            deliveries += len(row.messages)
        elif row.event == "SUBMIT":
            if not row.info or row.site in destinations_of(row.info):  # it is for itself, too
                own[row.site] += len(row.messages)
        elif row.event == "CRASH" and row.kind != MEMORY:
            own[row.site] = 0  # what a life that has ended left open may go either way
    judge.finish(max(file.last_ns for file in files))
    positions = judge.committed if total else 0
    figures = Figures(deliveries, positions, sum(own[site] for site in judge.up))
    return Diagnosis(judge.violations, judge.counts, figures)


def _rows(files: Sequence[TraceFile]) -> Iterator[TraceRow]:
    """The rows of all files in the order of time; of one file in its order."""
    each = (file.rows(events=JUDGED) for file in files)
    for row in heapq.merge(*each, key=lambda row: row.time):
        messages, digest = row.messages, row.digest
        if len(messages) == 1 and digest is not None and digest != messages[0]:
            # Why it is another message then, says `verify.columns`.
            row.messages = (messages[0] ^ digest ^ ANOTHER,)
        yield row
