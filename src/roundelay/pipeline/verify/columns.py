"""Rows of a trace as numpy arrays, a row group at a time: what every fast check reads.

Only the columns that are asked for are read, and those that the statistics of a row group leave
open.  Words stay dictionary codes until they have become numbers; bundles are spread out, so that
one row of `Messages` is one message.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np
from msgspec import Struct

from roundelay.core.engine import STAMPED
from roundelay.core.errors import UsageError
from roundelay.core.events import DELIVER, EVENT_NAMES, SUBMIT
from roundelay.pipeline.verify.runs import TracedRun, TracePart
from roundelay.trace.schema import arrow, parquet

Array = np.ndarray[Any, Any]

NOTHING: Final = -1
CODES: Final = {name: code for code, name in enumerate(EVENT_NAMES)}
PROVISIONAL: Final = STAMPED
"""Deliveries of this stage promise nothing."""

OFFSET_BITS: Final = 16
"""A message is known by its row's place and its own place in the bundle: this many bits of it."""

ANOTHER: Final = 0x5A17_C0DE_D16E_0001
"""What makes a message another one if its row's digest is not that of the message."""


class Messages(Struct):
    """Messages in the order of their rows; all arrays have one item per message."""

    site: Array
    time: Array
    place: Array
    """Of the row, among all rows of the run."""
    offset: Array
    """In the bundle."""
    fp: Array
    seq: Array
    """Where the bundle begins in the order of all."""
    source: Array
    number: Array

    def __len__(self) -> int:
        return len(self.fp)

    @property
    def position(self) -> Array:
        return self.seq + self.offset

    @property
    def key(self) -> Array:
        """Rises in the order in which a site submitted."""
        return (self.place << OFFSET_BITS) | self.offset

    def of(self, which: Array | slice) -> Messages:
        """Some of them; a stretch is not copied."""
        chosen = which if isinstance(which, slice) else as_slice(which)
        return Messages(*(getattr(self, name)[chosen] for name in FIELDS))

    def by_site(self) -> Iterator[tuple[int, Messages]]:
        """The messages of each site, in their order."""
        sites = present(self.site)
        for site in sites:
            yield site, self if len(sites) == 1 else self.of(np.flatnonzero(self.site == site))


FIELDS: Final = Messages.__struct_fields__


def as_slice(rows: Array) -> Array | slice:
    """Numbers of rows as a slice, where they are those of one stretch."""
    if not len(rows) or rows.dtype == bool or rows[-1] - rows[0] + 1 != len(rows):
        return rows
    return slice(int(rows[0]), int(rows[-1]) + 1) if (np.diff(rows) == 1).all() else rows


def joined(parts: Sequence[Messages]) -> Messages:
    if len(parts) == 1:
        return parts[0]
    if not parts:
        return Messages(*(np.zeros(0, np.int64) for _ in FIELDS))
    return Messages(*(np.concatenate([getattr(p, name) for p in parts]) for name in FIELDS))


class RowGroups:
    """Reads row groups (part, number) of a run; each file is opened once."""

    def __init__(self, run: TracedRun) -> None:
        self.run = run
        self._readers: dict[int, TraceFileReader] = {}

    def reader(self, part: int) -> TraceFileReader:
        if part not in self._readers:
            self._readers[part] = TraceFileReader(self.run.parts[part])
        return self._readers[part]

    def messages(
        self, places: Iterable[tuple[int, int]], *, submits: bool = True, deliveries: bool = True
    ) -> Iterator[tuple[Messages, Messages]]:
        """Of each row group, what was submitted there and what was delivered for good."""
        for part, group in places:
            yield self.reader(part).messages(group, self.run.users, submits, deliveries)


class TraceFileReader:
    """Reads row groups of one file."""

    def __init__(self, part: TracePart) -> None:
        self.part = part
        self.first = np.concatenate([[0], np.cumsum(part.rows)])[:-1] + part.first
        try:
            self.file = parquet().ParquetFile(part.path, read_dictionary=["event", "kind"])
        except (OSError, arrow().ArrowException) as error:
            raise UsageError(f"trace {part.path} cannot be read: {error}") from None
        columns = self.file.metadata.schema
        self.leaves = {columns.column(i).path: i for i in range(len(columns))}
        """Column → its number in the file."""

    def table(self, group: int, columns: Sequence[str] | None = None) -> Any:
        try:
            return self.file.read_row_group(group, columns=columns, use_threads=False)
        except (OSError, arrow().ArrowException) as error:
            reason = str(error).splitlines()[0]
            raise UsageError(f"trace {self.part.path} is damaged: {reason}") from None

    def bounds(self, group: int, name: str) -> tuple[Any, Any] | None:
        """The least and the greatest value of a column in a row group, if its statistics say it."""
        statistics = self.file.metadata.row_group(group).column(self.leaves[name]).statistics
        if statistics is None or not statistics.has_min_max:
            return None
        return statistics.min, statistics.max

    def only(self, group: int, name: str) -> Any:
        """The one value that a column has in a row group; None if there may be more of them."""
        bounds = self.bounds(group, name)
        return bounds[0] if bounds is not None and bounds[0] == bounds[1] else None

    def times(self, group: int) -> tuple[int, int]:
        """The least and the greatest time in a row group (ns); by its statistics if it has any."""
        bounds = self.bounds(group, "time")
        if bounds is not None:
            return bounds
        time = numbers(self.table(group, ["time"]), "time")
        return int(time.min()), int(time.max())

    def messages(
        self, group: int, users: Sequence[int], submits: bool, deliveries: bool
    ) -> tuple[Messages, Messages]:
        """What was submitted in a row group and what was delivered for good, by users."""
        known = {name: self.only(group, name) for name in ("site", "kind")}
        names = ["time", "event", "digest", "messages"]
        names += ["site"] if known["site"] is None else []
        if deliveries:
            names += ["seq", "source", "number"]
            names += ["kind"] if known["kind"] in (None, PROVISIONAL) else []
        table = self.table(group, names)
        event = events_of(table)
        if known["site"] is None:
            site = numbers(table, "site")
        else:
            site = np.broadcast_to(np.int64(known["site"]), len(event))
        by_users = set(present(site)) <= {*users, NOTHING} or np.isin(site, users)

        def spread(mask: Array, ordered: bool) -> Messages:
            return self._spread(table, group, np.flatnonzero(mask & by_users), site, ordered)

        return (
            spread(event == SUBMIT, False) if submits else joined([]),
            spread(final_deliveries(table, event), True) if deliveries else joined([]),
        )

    def _spread(self, table: Any, group: int, rows: Array, site: Array, ordered: bool) -> Messages:
        lists = column(table, "messages")
        offsets = lists.offsets.to_numpy()
        values = lists.values.to_numpy()
        starts = offsets[rows]
        sizes = offsets[rows + 1] - starts
        if (sizes == 1).all():
            offset, single = np.zeros(len(rows), np.int64), None
            fp = values[starts]
        else:
            rows, starts, single = (np.repeat(col, sizes) for col in (rows, starts, sizes == 1))
            offset = np.arange(len(rows)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
            fp = values[starts + offset]
        missing = np.broadcast_to(np.int64(NOTHING), len(rows))
        return Messages(
            site[rows],
            numbers(table, "time")[rows],
            rows + int(self.first[group]),
            offset,
            _agreed(table, rows, fp, single),
            *(
                numbers(table, name)[rows] if ordered else missing
                for name in ("seq", "source", "number")
            ),
        )


def _agreed(table: Any, rows: Array, fp: Array, single: Array | None) -> Array:
    """Fingerprints; another one where a row of one message has a digest that is not its own.

    A trace says twice which message it is.  If the two differ somebody has touched it, and nobody
    can say which is right: it is no message that anybody knows.
    """
    values = column(table, "digest")
    digest = numbers(table, "digest")[rows]
    wrong = digest != fp
    if single is not None:
        wrong &= single
    if not wrong.any():
        return fp
    if values.null_count:
        wrong &= values.is_valid().to_numpy(zero_copy_only=False)[rows]
    return np.where(wrong, fp ^ digest ^ ANOTHER, fp)


def present(values: Array) -> list[int]:
    """The different values, rising; quick where they are few and small, as sites are."""
    if not len(values):
        return []
    low, high = int(values.min()), int(values.max())
    if low == high:
        return [low]
    if high - low < 1 << 16:
        return [int(i) + low for i in np.flatnonzero(np.bincount(values - low))]
    return [int(value) for value in np.unique(values)]


def column(table: Any, name: str) -> Any:
    chunked = table.column(name)
    return chunked.chunk(0) if chunked.num_chunks == 1 else chunked.combine_chunks()


def numbers(table: Any, name: str) -> Array:
    """A column of whole numbers; NOTHING where there is none."""
    values = column(table, name)
    if values.null_count:
        values = values.fill_null(NOTHING)
    filled: Array = values.to_numpy(zero_copy_only=False)
    return filled


def events_of(table: Any) -> Array:
    """The event of each row, as its code."""
    values = column(table, "event")
    words = values.dictionary.to_pylist()
    codes = np.array([CODES.get(word, NOTHING) for word in words] or [NOTHING], np.int8)
    events: Array = codes[values.indices.to_numpy()]
    return events


def final_deliveries(table: Any, event: Array) -> Array:
    """Where a row is a delivery that promises something; a table without `kind` has no other."""
    mask: Array = event == DELIVER
    if "kind" in table.column_names:
        kind = column(table, "kind")
        words = kind.dictionary.to_pylist()
        if PROVISIONAL in words:
            mask &= kind.indices.fill_null(-1).to_numpy() != words.index(PROVISIONAL)
    return mask
