"""What an executor does: read tasks as Arrow record batches, with no object per row."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import structs

from roundelay.client.recorder import RecorderClient
from roundelay.core.errors import ConnectionLost, NodeUnreachable, Refused, RoundelayError
from roundelay.journal.archive import read_archived, without
from roundelay.journal.arrow import pieces, read_piece
from roundelay.journal.format import GAP, HEADS_ONLY, Run
from roundelay.journal.merge import Findings, Job, merge, warn_of_disputes
from roundelay.journal.parquet import GROUP_BYTES, ROWS, schema
from roundelay.journal.reader import Reader, Selection, merged
from roundelay.pipeline.envelope import drop_markers
from roundelay.pipeline.source_options import SKIP, SourceOptions
from roundelay.pipeline.source_plan import Range, Task

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
    tasks: Sequence[Task], options: SourceOptions, target: pa.Schema
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


def _read(task: Task, selection: Selection, lost: list[Range]) -> Iterator[pa.RecordBatch]:
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


def _compared(task: Task, wanted: Selection, lost: list[Range]) -> Iterator[pa.RecordBatch]:
    """What several journals have, each position once; where they disagree, what most have."""
    findings = Findings()
    yield from merge(Job(task.group, wanted.since, wanted.until, task.copies), findings, wanted)
    have: list[Range] = []
    for recorder in {copy.recorder for copy in task.copies}:
        spans = [(one.piece.lo, one.piece.hi) for one in task.copies if one.recorder == recorder]
        have += without(spans, findings.lost.get(recorder, []))
    lost += without([(wanted.since, wanted.until)], merged(have))
    warn_of_disputes(task.group, findings)


def _from_others(task: Task, wanted: Selection, lost: list[Range]) -> Iterator[pa.RecordBatch]:
    """What is damaged in one journal may be whole in another."""
    missing = [(wanted.since, wanted.until)]
    for folder in task.others:
        left: list[Range] = []
        reader = Reader(Path(folder))
        for lo, hi in missing:
            part = structs.replace(wanted, since=lo, until=hi)
            at = lo
            # All pieces, whatever is selected: one that is passed over is not one that is missing.
            for piece in pieces(reader, Selection(since=lo, until=hi)):
                if at < piece.lo:
                    left.append((at, piece.lo))
                yield from read_piece(piece, part, lost=left)
                at = piece.hi
            if at < hi:
                left.append((at, hi))
        missing = left
        if not missing:
            return
    lost += missing


# ------------------------------------------------------------------------ live recorders


def _recorders(task: Task, selection: Selection, lost: list[Range]) -> Iterator[pa.RecordBatch]:
    """From the first recorder that answers; when one is gone, the next goes on where it was."""
    at = selection.since
    failures = []
    for turn, where in enumerate(task.recorders * TRIES):
        time.sleep(PAUSE_S * (turn // len(task.recorders)))  # it may just be starting again
        try:
            with RecorderClient(where, task.group) as client:
                runs: list[Run] = []
                rows = size = 0
                for block in client.read_blocks(
                    at, selection.until, conference=selection.conferences,
                    sender=selection.senders, kind=selection.kinds,
                    since_time=selection.since_time or None,
                    until_time=None if selection.until_time >= 1 << 62 else selection.until_time,
                ):  # fmt: skip
                    for run in block:
                        if run.flags & GAP:
                            lost.append((run.position, run.end))
                        else:
                            runs.append(run)
                            rows += run.records
                            size += len(run.bundle.data)
                        if rows >= ROWS or size >= GROUP_BYTES:
                            yield rows_of(runs, task.group)
                            at = run.end
                            runs, rows, size = [], 0, 0
                if runs:
                    yield rows_of(runs, task.group)
                    at = runs[-1].end
                return
        except (ConnectionLost, NodeUnreachable, Refused) as error:
            failures.append(str(error))
            lost[:] = [one for one in lost if one[1] <= at]
    raise DataLost(f"group {task.group}: no recorder answers: {'; '.join(failures[-2:])}")


def rows_of(runs: Sequence[Run], group: str) -> pa.RecordBatch:
    """An Arrow record batch of runs; what a run says once is said for each of its records."""
    import numpy as np
    import pyarrow as pa

    counts = np.array([run.records for run in runs])
    total = int(counts.sum())
    heads = np.array([bool(run.flags & HEADS_ONLY) for run in runs])
    sizes = np.fromiter(chain.from_iterable([run.bundle.sizes for run in runs]), np.int64, total)
    valid = None
    if heads.any():
        absent = np.repeat(heads, counts)
        sizes[absent] = 0
        valid = pa.array(~absent).buffers()[1]
    offsets = np.zeros(total + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    heap = b"".join([run.bundle.data for run in runs if not run.flags & HEADS_ONLY])
    names = {name: number for number, name in enumerate({run.sender: 0 for run in runs})}
    senders = np.array([names[run.sender] for run in runs])
    first = np.array([run.position for run in runs]) - (np.cumsum(counts) - counts)
    times = np.array([run.time // 1000 for run in runs])
    return pa.record_batch(
        [
            pa.repeat(pa.scalar(group, pa.string()), total),
            pa.array(np.repeat(first, counts) + np.arange(total)),
            pa.array(np.repeat(times, counts)).cast(pa.timestamp("us", "UTC")),
            pa.array(list(names), pa.string()).take(pa.array(np.repeat(senders, counts))),
            pa.array(np.repeat(np.array([run.conference for run in runs]), counts)),
            pa.array(np.repeat(np.array([run.kind for run in runs]), counts)),
            pa.Array.from_buffers(
                pa.binary(), total, [valid, pa.py_buffer(offsets), pa.py_buffer(heap)]
            ),
        ],
        schema=schema(),
    )
