"""A sealed segment as Parquet, which Spark and everybody else reads natively.

Columns: `group, seq, time, sender, conference, kind, data`, as in every table of messages;
sorted by `seq`, row groups of at most 128 k rows, written aside and renamed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any, Final

from roundelay.core.errors import ConfigError
from roundelay.core.positions import Range
from roundelay.durable import written_aside
from roundelay.journal.files import parquet_of
from roundelay.journal.format import GAP, HEADS_ONLY, Run, part_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from roundelay.journal.segment import Segment

    Column = Sequence[int] | Sequence[bool] | NDArray[Any]
    Columns = Mapping[str, Column]

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
        import pyarrow.compute
        import pyarrow.parquet
    except ImportError:
        raise ConfigError(
            "parquet", "yes", "only with pyarrow: pip install 'roundelay[trace]'"
        ) from None
    return pyarrow


def numpy() -> Any:
    """numpy, or an error that says how to get it."""
    try:
        import numpy
    except ImportError:
        raise ConfigError(
            "journal", "as Arrow", "only with numpy: pip install 'roundelay[spark]'"
        ) from None
    return numpy


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


def batch_of(runs: Sequence[Run], group: str) -> Any:
    """An Arrow record batch of the records of `runs`; no object per record is made."""
    pa = arrow()
    pc = pa.compute
    numbers = {name: number for number, name in enumerate(dict.fromkeys(r.sender for r in runs))}
    sizes = [(0,) * run.records if run.flags & HEADS_ONLY else run.bundle.sizes for run in runs]
    heap_ends = pc.cumulative_sum(pa.array(chain.from_iterable(sizes), pa.int64()))
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), heap_ends.cast(pa.int32())])
    ends = pa.array(accumulate(run.records for run in runs), pa.int32())
    ahead = [run.end - end for run, end in zip(runs, ends.to_pylist(), strict=True)]
    columns: Columns = {
        "seq": ahead,
        "time": [run.time // 1000 for run in runs],
        "sender": [numbers[run.sender] for run in runs],
        "conference": [run.conference for run in runs],
        "kind": [run.kind for run in runs],
        "head": [bool(run.flags & HEADS_ONLY) for run in runs],
    }
    ones = pa.repeat(pa.scalar(1, pa.int64()), len(heap_ends))
    rows, heap = pc.subtract(pc.cumulative_sum(ones), 1), b"".join([r.bundle.data for r in runs])

    def each(values: Column) -> Any:
        return pc.run_end_decode(pa.RunEndEncodedArray.from_arrays(ends, pa.array(values)))

    return rows_of(group, list(numbers), columns, each, rows, offsets.buffers()[1], heap)


def rows_of(
    group: str,
    names: Sequence[str],
    columns: Columns,
    each: Callable[[Column], Any],
    rows: Any,
    offsets: Any,
    heap: bytes,
) -> Any:
    """A record batch of runs, by columns: `each` says for each record what its run says once.

    `rows` is 0, 1, 2, … for each record, and `seq` what its run's positions are ahead of that;
    times are microseconds, senders numbers in `names`; `head` tells which runs kept no payload,
    and the buffer `offsets` where in `heap` each record begins."""
    pa = arrow()
    pc = pa.compute
    absent = each(columns["head"])
    valid = pc.invert(absent).buffers()[1] if pc.any(absent).as_py() else None
    return pa.record_batch(
        [
            pa.repeat(pa.scalar(group, pa.string()), len(rows)),
            pc.add(each(columns["seq"]), pa.array(rows)),
            each(columns["time"]).cast(pa.timestamp("us", "UTC")),
            pa.array(names, pa.string()).take(each(columns["sender"])),
            each(columns["conference"]),
            each(columns["kind"]),
            pa.Array.from_buffers(pa.binary(), len(rows), [valid, offsets, pa.py_buffer(heap)]),
        ],
        schema=schema(),
    )


def grouped(runs: Iterable[Run], lost: list[Range] | None = None) -> Iterator[list[Run]]:
    """The runs in order, as many together as make a row group; gaps are appended to `lost`."""
    group: list[Run] = []
    rows = size = 0
    for run in runs:
        at = run.position
        if run.flags & GAP:
            at = run.end
            if lost is not None:
                lost.append((run.position, run.end))
        while at < run.end:
            part = part_of(run, at, min(run.end, at + ROWS - rows))
            at = part.end
            group.append(part)
            rows += part.records
            size += len(part.bundle.data)
            if rows >= ROWS or size >= GROUP_BYTES:
                yield group
                group, rows, size = [], 0, 0
    if group:
        yield group


def batches(segment: Segment, group: str) -> Iterator[Any]:
    """The records of a segment, a row group at a time."""
    with segment.view() as view:
        for runs in grouped(view.read_runs(0, len(view.blocks))):
            yield batch_of(runs, group)


def to_parquet(segment: Segment, group: str) -> None:
    """Write `<segment>.parquet` beside a sealed segment, unless it is there."""
    path = parquet_of(segment.path)
    if path.exists():
        return
    pa = arrow()
    with (
        written_aside(path) as aside,
        pa.parquet.ParquetWriter(
            aside, schema().remove_metadata(), compression="zstd", write_page_checksum=True
        ) as writer,
    ):
        for batch in batches(segment, group):
            writer.write_batch(batch, row_group_size=ROWS)


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
