"""A sealed segment as Parquet, which Spark and everybody else reads natively.

Columns: `group, seq, time, sender, conference, kind, data`, as in every table of messages;
sorted by `seq`, row groups of at most 128 k rows, written aside and renamed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from roundelay.core.errors import ConfigError
from roundelay.journal.files import ASIDE, parquet_of
from roundelay.journal.format import GAP, HEADS_ONLY, Run, part_of

if TYPE_CHECKING:
    from roundelay.journal.segment import Segment

ROWS: Final = 128 * 1024
VERSION: Final = 1
VERSION_KEY: Final = b"roundelay.messages.version"
"""In the metadata of every table of messages; rises when a meaning changes.  Not in the Parquet
beside a segment: there every byte follows from the segment, and metadata has no checksum."""
GROUP_BYTES: Final = 64 << 20
"""A row group is at most about this, whatever its rows."""


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
        ],
        metadata={VERSION_KEY: str(VERSION).encode()},
    )


def batch_of(runs: list[Run], group: str) -> Any:
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


def batches(segment: Segment, group: str) -> Iterator[Any]:
    """The records of a segment, a row group at a time."""
    runs: list[Run] = []
    rows = size = 0
    with segment.view() as view:
        for run in view.read_runs(0, len(view.blocks)):
            at = run.position
            while at < run.end and not run.flags & GAP:
                part = part_of(run, at, min(run.end, at + ROWS - rows))
                at = part.end
                runs.append(part)
                rows += part.records
                size += len(part.bundle.data)
                if rows >= ROWS or size >= GROUP_BYTES:
                    yield batch_of(runs, group)
                    runs, rows, size = [], 0, 0
    if runs:
        yield batch_of(runs, group)


def to_parquet(segment: Segment, group: str) -> Path:
    """Write `<segment>.parquet` beside a sealed segment."""
    pa = arrow()
    path = parquet_of(segment.path)
    aside = path.with_name(path.name + ASIDE)
    with pa.parquet.ParquetWriter(
        aside, schema().remove_metadata(), compression="zstd", write_page_checksum=True
    ) as writer:
        for batch in batches(segment, group):
            writer.write_batch(batch, row_group_size=ROWS)
    os.chmod(aside, 0o600)
    handle = os.open(aside, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
    os.replace(aside, path)
    return path


def matches(segment: Segment, group: str) -> str:
    """What is wrong with a segment's Parquet; empty if it has what the segment has."""
    pa = arrow()
    path = parquet_of(segment.path)
    try:
        with pa.parquet.ParquetFile(path, page_checksum_verification=True) as file:
            groups, read = file.num_row_groups, 0
            if not file.schema_arrow.equals(schema()):
                return "parquet: other columns"
            for number, batch in enumerate(batches(segment, group)):
                if number >= groups:
                    return "parquet: records missing"
                if not file.read_row_group(number).equals(pa.Table.from_batches([batch])):
                    return f"parquet: row group {number} is not as it was written"
                read = number + 1
            if read != groups:
                return "parquet: more records than the segment"
    except (OSError, ValueError, pa.ArrowException) as error:
        return f"parquet: {str(error).splitlines()[0]}"
    return ""
