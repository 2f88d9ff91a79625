"""A sealed segment as Parquet, which Spark and everybody else reads natively.

Columns: `group, seq, time, sender, conference, kind, data`, as in every table of messages;
sorted by `seq`, row groups of at most 128 k rows, written aside and renamed.
"""

from __future__ import annotations

import os
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from roundelay.core.errors import ConfigError
from roundelay.journal.format import GAP, HEADS_ONLY

if TYPE_CHECKING:
    from roundelay.journal.segment import Segment

ROWS: Final = 128 * 1024


def arrow() -> Any:
    """pyarrow, or an error that says how to get it."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise ConfigError(
            "parquet", "yes", "only with pyarrow: pip install 'roundelay[trace]'"
        ) from None
    return pyarrow


def schema() -> Any:
    pa = arrow()
    return pa.schema(
        [
            pa.field("group", pa.string(), nullable=False),
            pa.field("seq", pa.int64(), nullable=False),
            pa.field("time", pa.timestamp("us", "UTC"), nullable=False),
            pa.field("sender", pa.string(), nullable=False),
            pa.field("conference", pa.int64(), nullable=False),
            pa.field("kind", pa.int64(), nullable=False),
            pa.field("data", pa.binary()),
        ]
    )


def batch_of(runs: list[Any], group: str) -> Any:
    """An Arrow record batch of the records of `runs`; no object per record is made."""
    pa = arrow()
    seqs: list[int] = []
    times: list[int] = []
    senders: list[str] = []
    conferences: list[int] = []
    kinds: list[int] = []
    sizes: list[int] = []
    heap: list[bytes] = []
    absent: list[bool] = []
    for run in runs:
        if run.flags & GAP:
            continue
        count = run.records
        seqs.extend(range(run.position, run.position + count))
        times += [run.time // 1000] * count
        senders += [run.sender] * count
        conferences += [run.conference] * count
        kinds += [run.kind] * count
        only_head = bool(run.flags & HEADS_ONLY)
        sizes += [0] * count if only_head else list(run.bundle.sizes)
        absent += [only_head] * count
        heap.append(run.bundle.data)
    offsets = pa.array(list(accumulate(sizes, initial=0)), pa.int32())
    valid = None
    if any(absent):
        valid = pa.array([not one for one in absent]).buffers()[1]
    data = pa.Array.from_buffers(
        pa.binary(), len(seqs), [valid, offsets.buffers()[1], pa.py_buffer(b"".join(heap))]
    )
    return pa.record_batch(
        [
            pa.array([group] * len(seqs), pa.string()),
            pa.array(seqs, pa.int64()),
            pa.array(times, pa.timestamp("us", "UTC")),
            pa.array(senders, pa.string()),
            pa.array(conferences, pa.int64()),
            pa.array(kinds, pa.int64()),
            data,
        ],
        schema=schema(),
    )


def to_parquet(segment: Segment, group: str) -> Path:
    """Write `<segment>.parquet` beside a sealed segment."""
    pa = arrow()
    path = segment.path.with_suffix(".parquet")
    aside = segment.path.with_suffix(".parquet.new")
    with pa.parquet.ParquetWriter(aside, schema(), compression="zstd") as writer:
        runs: list[Any] = []
        rows = 0
        for number in range(segment.block_count()):
            for run in segment.read_block(number):
                runs.append(run)
                rows += run.records
            if rows >= ROWS:
                writer.write_batch(batch_of(runs, group), row_group_size=ROWS)
                runs, rows = [], 0
        if runs:
            writer.write_batch(batch_of(runs, group), row_group_size=ROWS)
    os.replace(aside, path)
    return path
