"""What an executor does: read tasks as Arrow record batches, with no object per row."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import structs

from roundelay.client.recorder import RecorderClient
from roundelay.core.errors import ConnectionLost, NodeUnreachable, Refused, RoundelayError
from roundelay.core.positions import Range, difference, union
from roundelay.core.selection import Selection
from roundelay.journal.archive import read_archived
from roundelay.journal.arrow import pieces, read_piece
from roundelay.journal.format import GAP, Run
from roundelay.journal.merge import Findings, Job, merge, warn_of_disputes
from roundelay.journal.parquet import batch_of, grouped
from roundelay.journal.reader import Reader
from roundelay.pipeline.sink.envelope import drop_markers
from roundelay.pipeline.source.options import SKIP, SourceOptions
from roundelay.pipeline.source.plan import ReadTask

if TYPE_CHECKING:
    import pyarrow as pa

TRIES: Final = 3
"""Times that a list of recorders is gone through before a reader gives up."""
PAUSE_S: Final = 2.0


class DataLost(RoundelayError):
    """Positions that nobody has."""


def lost_message(group: str, ranges: Sequence[Range]) -> str:
    shown = ", ".join(f"{lo} to {hi - 1}" for lo, hi in ranges[:5])
    more = f" and {len(ranges) - 5} more ranges" if len(ranges) > 5 else ""
    return (
        f"group {group}: nobody has positions {shown}{more}; fill them with `roundelay journal "
        "repair` or `roundelay reconcile`, or go on without them with option gaps = skip"
    )


def read_tasks(
    tasks: Sequence[ReadTask], options: SourceOptions, target: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """The rows of the tasks that the options select, with the columns of `target`."""
    for task in tasks:
        lost: list[Range] = []
        for batch in _read(task, options.selection, lost):
            if not options.markers:
                batch = drop_markers(batch)
            if batch.num_rows:
                yield shaped(batch, target)
        if lost and options.gaps != SKIP:
            raise DataLost(lost_message(task.group, lost))


def shaped(batch: pa.RecordBatch, target: pa.Schema) -> pa.RecordBatch:
    """The columns that are wanted, in the types that Spark expects."""
    import pyarrow as pa

    columns = []
    for field in target:
        column = batch.column(field.name)
        columns.append(column if column.type == field.type else column.cast(field.type))
    return pa.RecordBatch.from_arrays(columns, schema=target)


def _read(task: ReadTask, selection: Selection, lost: list[Range]) -> Iterator[pa.RecordBatch]:
    inside = structs.replace(
        selection, since=max(selection.since, task.lo), until=min(selection.until, task.hi)
    )
    if inside.since >= inside.until:
        return
    if task.copies:
        yield from _compared(task, inside, lost)
    elif task.piece is not None:
        damaged: list[Range] = []
        yield from read_piece(task.piece, inside, lost=damaged)
        for lo, hi in damaged:
            yield from _from_others(task, structs.replace(inside, since=lo, until=hi), lost)
    elif task.archived is not None:
        yield from read_archived(Path(task.archived.folder), task.archived.file, inside)
    else:
        yield from _recorders(task, inside, lost)


def _compared(task: ReadTask, wanted: Selection, lost: list[Range]) -> Iterator[pa.RecordBatch]:
    """What several journals have, each position once; where they disagree, what most have."""
    findings = Findings()
    yield from merge(Job(task.group, wanted.since, wanted.until, task.copies), findings, wanted)
    have: list[Range] = []
    for recorder in {copy.recorder for copy in task.copies}:
        spans = [(one.piece.lo, one.piece.hi) for one in task.copies if one.recorder == recorder]
        have += difference(spans, findings.lost.get(recorder, []))
    lost += difference([(wanted.since, wanted.until)], union(have))
    warn_of_disputes(task.group, findings)


def _from_others(task: ReadTask, wanted: Selection, lost: list[Range]) -> Iterator[pa.RecordBatch]:
    """What is damaged in one journal may be whole in another."""
    missing = [(wanted.since, wanted.until)]
    for folder in task.others:
        left: list[Range] = []
        reader = Reader(Path(folder))
        for lo, hi in missing:
            part = structs.replace(wanted, since=lo, until=hi)
            # All pieces, whatever is selected: one that is passed over is not one that is missing.
            there = pieces(reader, Selection(since=lo, until=hi))
            left += difference([(lo, hi)], [(piece.lo, piece.hi) for piece in there])
            for piece in there:
                yield from read_piece(piece, part, lost=left)
        missing = union(left)
        if not missing:
            return
    lost += missing


# ------------------------------------------------------------------------ live recorders


def _recorders(task: ReadTask, selection: Selection, lost: list[Range]) -> Iterator[pa.RecordBatch]:
    """From the first recorder that answers; when one is gone, the next goes on where it was."""
    at = selection.since
    failures = []
    for turn, where in enumerate(task.recorders * TRIES):
        time.sleep(PAUSE_S * (turn // len(task.recorders)))  # it may just be starting again
        try:
            with RecorderClient(where, task.group) as client:
                for runs in grouped(_present(client, structs.replace(selection, since=at), lost)):
                    yield batch_of(runs, task.group)
                    at = runs[-1].end
                return
        except (ConnectionLost, NodeUnreachable, Refused) as error:
            failures.append(str(error))
            lost[:] = [one for one in lost if one[1] <= at]
    raise DataLost(f"group {task.group}: no recorder answers: {'; '.join(failures[-2:])}")


def _present(client: RecorderClient, selection: Selection, lost: list[Range]) -> Iterator[Run]:
    """The runs that a recorder has of a selection; gaps are appended to `lost`."""
    for run in client.read(
        selection.since,
        selection.until,
        conference=selection.conferences,
        sender=selection.senders,
        kind=selection.kinds,
        since_time=selection.since_time,
        until_time=selection.until_time,
    ):
        if run.flags & GAP:
            lost.append((run.position, run.end))
        else:
            yield run
