"""Reading trace files back: any stretch of time, a batch at a time, with errors in one line."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import msgspec

from roundelay.core.errors import UsageError
from roundelay.trace.schema import (
    RUN_KEY,
    VERSION,
    VERSION_KEY,
    TraceRow,
    arrow,
    arrow_schema,
    parquet,
)

BATCH_ROWS: Final = 16_384
ALWAYS: Final = 1 << 62
"""A time (ns) after every event."""


class TraceFile:
    """A trace file that was opened and looks right; rows are read when asked for.

    `params` are the parameters of the run, `first_ns` and `last_ns` the times of its first and
    last event (both 0 if there is none).
    """

    def __init__(self, path: Path) -> None:
        pa = arrow()
        self.path = Path(path)
        if not self.path.is_file():
            what = "is not a file" if self.path.exists() else "does not exist"
            raise UsageError(f"trace {path} {what}")
        try:
            self._file: Any = parquet().ParquetFile(self.path)
            metadata = self._file.schema_arrow.metadata or {}
        except (OSError, pa.ArrowException) as error:
            raise UsageError(f"trace {path} cannot be read: {_reason(error)}") from None
        version = metadata.get(VERSION_KEY)
        if version is None:
            raise UsageError(f"trace {path} is a Parquet file, but not a trace of Roundelay")
        if version != str(VERSION).encode():
            raise UsageError(
                f"trace {path} has schema version {version.decode(errors='replace')}; "
                f"this is a reader of version {VERSION}"
            )
        if not self._file.schema_arrow.equals(arrow_schema()):
            raise UsageError(f"trace {path} does not have the columns of a trace")
        try:
            self.params: dict[str, Any] = msgspec.json.decode(
                metadata.get(RUN_KEY, b"{}"), type=dict[str, Any]
            )
        except msgspec.MsgspecError as error:
            raise UsageError(f"trace {path} has damaged parameters: {error}") from None
        spans = [self._span(group) for group in range(self._file.metadata.num_row_groups)]
        self.first_ns = min((lo for lo, _ in spans), default=0)
        self.last_ns = max((hi for _, hi in spans), default=0)
        self._spans = spans

    def _span(self, group: int) -> tuple[int, int]:
        """Times of the first and last row of a row group; everything if the file does not say."""
        statistics = self._file.metadata.row_group(group).column(0).statistics
        if statistics is None or not statistics.has_min_max:
            return 0, ALWAYS
        return statistics.min, statistics.max

    def batches(
        self,
        from_ns: int | None = None,
        to_ns: int | None = None,
        columns: Sequence[str] | None = None,
    ) -> Iterator[Any]:
        """Arrow record batches of the rows with from_ns ≤ time < to_ns.

        Row groups outside are not read at all.  `time` must be among `columns`.
        """
        pa = arrow()
        lo = -ALWAYS if from_ns is None else from_ns
        hi = ALWAYS if to_ns is None else to_ns
        groups = [i for i, (first, last) in enumerate(self._spans) if last >= lo and first < hi]
        try:
            for batch in self._file.iter_batches(
                batch_size=BATCH_ROWS, row_groups=groups, columns=columns
            ):
                times = batch.column("time")
                if len(times) and (times[0].as_py() < lo or times[-1].as_py() >= hi):
                    # Rows are sorted by time, so a stretch of them is a slice.
                    values = times.to_pylist()
                    start, stop = bisect_left(values, lo), bisect_left(values, hi)
                    batch = batch.slice(start, stop - start)
                if len(batch):
                    yield batch
        except (OSError, pa.ArrowException) as error:
            raise UsageError(f"trace {self.path} is damaged: {_reason(error)}") from None

    def rows(
        self,
        from_ns: int | None = None,
        to_ns: int | None = None,
        events: Collection[str] | None = None,
    ) -> Iterator[TraceRow]:
        """The rows with from_ns ≤ time < to_ns, one by one; only these `events` if given."""
        if events is None:
            for batch in self.batches(from_ns, to_ns):
                yield from rows_of(batch)
            return
        compute = import_module("pyarrow.compute")
        names = arrow().array(sorted(events))
        for batch in self.batches(from_ns, to_ns):
            yield from rows_of(batch.filter(compute.is_in(batch.column("event"), names)))

    def first(self, event: str) -> int | None:
        """When the first such event happened, if any did."""
        return next((row.time for row in self.rows(events=(event,))), None)


def read(path: Path, from_ns: int | None = None, to_ns: int | None = None) -> Iterator[TraceRow]:
    """The rows of the trace file `path` with from_ns ≤ time < to_ns.

    Raises UsageError at once if the file is no trace, and on the way if it is damaged inside.
    """
    return TraceFile(path).rows(from_ns, to_ns)


def rows_of(batch: Any) -> Iterator[TraceRow]:
    """The rows of an Arrow record batch of a trace."""
    columns = []
    for field in batch.schema:
        values = batch.column(field.name)
        if field.name in _BLANKS and values.null_count:
            values = values.fill_null(_BLANKS[field.name])
        listed = values.to_pylist()
        if field.name == "messages":
            listed = [() if value is None else tuple(value) for value in listed]
        columns.append(listed)
    for cells in zip(*columns, strict=True):
        yield TraceRow(*cells)


_BLANKS: Final[dict[str, Any]] = {
    field.name: field.default
    for field in msgspec.structs.fields(TraceRow)
    if isinstance(field.default, int | str)
}


def _reason(error: Exception) -> str:
    """The first line of what Arrow says, which goes on for several."""
    text = str(error).strip().splitlines()
    return text[0].rstrip(".") if text else type(error).__name__
