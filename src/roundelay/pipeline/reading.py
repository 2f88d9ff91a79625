"""What there is to read of journals, archives and recorders, and how an executor reads it: as Arrow
record batches, with no object per row.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import Struct, structs

from roundelay.client.recorder import RecorderClient
from roundelay.core.errors import ConnectionLost, NodeUnreachable, Refused, RoundelayError
from roundelay.core.positions import Range, difference
from roundelay.core.selection import Selection
from roundelay.journal.archive import File, read_archived
from roundelay.journal.arrow import Piece
from roundelay.journal.merge import Findings, Job, RecorderCopy, jobs_of, merge, warn_of_disputes
from roundelay.journal.parquet import batch_of, grouped

if TYPE_CHECKING:
    import pyarrow as pa

TRIES: Final = 3
"""Times that a list of recorders is gone through before a reader gives up."""
PAUSE_S: Final = 2.0


class DataLost(RoundelayError):
    """Positions that nobody has."""


class ReadTask(Struct, frozen=True):
    """Positions `lo` up to `hi` of a group, and where to read them.

    It is small and has no open files: made where Spark plans, and carried out by an executor that
    sees the same folders or reaches the same recorders.
    """

    group: str
    lo: int
    hi: int
    bytes: int
    """About how many."""
    copies: tuple[RecorderCopy, ...] = ()
    """What journals have of it."""
    folder: str = ""
    archived: File | None = None
    """A file of the archive in `folder` that has it."""
    recorders: tuple[str, ...] = ()

    def part(self, lo: int, hi: int) -> ReadTask:
        size = max(1, self.bytes * (hi - lo) // max(1, self.hi - self.lo))
        return structs.replace(self, lo=lo, hi=hi, bytes=size)


def journal_tasks(
    group: str, by_journal: Sequence[Sequence[Piece]], positions: Sequence[Range], task_bytes: int
) -> list[ReadTask]:
    """The wanted positions of journals side by side, all copies of a position in one task."""
    return [
        ReadTask(group, job.lo, job.hi, max(1, job.bytes), copies=job.copies)
        for job in jobs_of(group, by_journal, within=positions, job_bytes=task_bytes)
    ]


def read_task(task: ReadTask, selection: Selection, lost: list[Range]) -> Iterator[pa.RecordBatch]:
    """The rows of a task that are selected; what nobody has of it is appended to `lost`."""
    inside = structs.replace(
        selection, since=max(selection.since, task.lo), until=min(selection.until, task.hi)
    )
    if inside.since >= inside.until:
        return
    if task.archived is not None:
        yield from read_archived(Path(task.folder), task.archived, inside)
    elif task.recorders:
        yield from _recorders(task, inside, lost)
    else:
        yield from _compared(task, inside, lost)


def _compared(task: ReadTask, within: Selection, lost: list[Range]) -> Iterator[pa.RecordBatch]:
    """What journals have, each position once; where they disagree, what most have."""
    findings = Findings()
    yield from merge(Job(task.group, within.since, within.until, task.copies), findings, within)
    have: list[Range] = []
    for recorder in {copy.recorder for copy in task.copies}:
        held = [(copy.piece.lo, copy.piece.hi) for copy in task.copies if copy.recorder == recorder]
        have += difference(held, findings.lost.get(recorder, []))
    lost += difference([(within.since, within.until)], have)
    warn_of_disputes(task.group, findings)


# ------------------------------------------------------------------------ live recorders


def _recorders(task: ReadTask, selection: Selection, lost: list[Range]) -> Iterator[pa.RecordBatch]:
    """From the first recorder that answers; when one is gone, the next goes on where it was."""
    at = selection.since
    times = {"since_time": selection.since_time, "until_time": selection.until_time}
    failures = []
    for turn, where in enumerate(task.recorders * TRIES):
        time.sleep(PAUSE_S * (turn // len(task.recorders)))  # it may just be starting again
        try:
            with RecorderClient(where, task.group) as client:
                found = client.read(at, selection.until, **times, **selection.filters)
                for runs in grouped(found, lost):
                    yield batch_of(runs, task.group)
                    at = runs[-1].end
                return
        except (ConnectionLost, NodeUnreachable, Refused) as error:
            failures.append(str(error))
            lost[:] = [gap for gap in lost if gap[1] <= at]
    raise DataLost(f"group {task.group}: no recorder answers: {'; '.join(failures[-2:])}")
