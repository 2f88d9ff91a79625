"""Rows of a trace as numpy arrays, a row group at a time: what every fast check reads.

Only the columns that are asked for are read.  Words stay dictionary codes until they have become
numbers; bundles are spread out, so that one row of `Messages` is one message.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final

import numpy as np
from msgspec import Struct

from roundelay.core.engine import STAMPED
from roundelay.core.errors import UsageError
from roundelay.core.events import DELIVER, EVENT_NAMES, SUBMIT
from roundelay.pipeline.verify.runs import Part
from roundelay.trace.schema import arrow, parquet

Array = np.ndarray[Any, Any]

NOTHING: Final = -1
CODES: Final = {name: code for code, name in enumerate(EVENT_NAMES)}
PROVISIONAL: Final = (STAMPED,)
"""Deliveries of these stages promise nothing."""

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

    def of(self, which: Array) -> Messages:
        """Some of them; a stretch is not copied."""
        if len(which) and which.dtype != bool and which[-1] - which[0] + 1 == len(which):
            which = slice(int(which[0]), int(which[-1]) + 1)  # type: ignore[assignment]
        return Messages(*(getattr(self, name)[which] for name in FIELDS))


FIELDS: Final = ("site", "time", "place", "offset", "fp", "seq", "source", "number")


def joined(parts: Sequence[Messages]) -> Messages:
    if len(parts) == 1:
        return parts[0]
    if not parts:
        empty = np.zeros(0, np.int64)
        return Messages(*(empty for _ in FIELDS))
    return Messages(*(np.concatenate([getattr(p, name) for p in parts]) for name in FIELDS))


class Reader:
    """Reads row groups of one file."""

    def __init__(self, part: Part) -> None:
        self.part = part
        self.first = np.concatenate([[0], np.cumsum(part.rows)])[:-1] + part.first
        self.leaves: dict[str, int] = {}
        """Column → its number in the file."""
        try:
            self.file = parquet().ParquetFile(part.path, read_dictionary=["event", "kind"])
        except (OSError, arrow().ArrowException) as error:
            raise UsageError(f"trace {part.path} cannot be read: {error}") from None

    def table(self, group: int, columns: Sequence[str] | None = None) -> Any:
        try:
            return self.file.read_row_group(group, columns=columns, use_threads=False)
        except (OSError, arrow().ArrowException) as error:
            reason = str(error).splitlines()[0]
            raise UsageError(f"trace {self.part.path} is damaged: {reason}") from None

    def bounds(self, group: int, name: str) -> tuple[Any, Any] | None:
        """The least and the greatest value of a column in a row group, if its statistics say it."""
        metadata = self.file.metadata.row_group(group)
        if not self.leaves:
            paths = (metadata.column(i).path_in_schema for i in range(metadata.num_columns))
            self.leaves = {path: i for i, path in enumerate(paths)}
        statistics = metadata.column(self.leaves[name]).statistics
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
        self, group: int, users: Collection[int], *, submits: bool = True, deliveries: bool = True
    ) -> tuple[Messages, Messages]:
        """What was submitted in this row group and what was delivered for good."""
        names = ["time", "site", "event", "digest", "messages"]
        if deliveries:
            names += ["kind", "seq", "source", "number"]
        table = self.table(group, names)
        event = events_of(table)
        site = numbers(table, "site")
        known = None if _all_in(site, users) else np.isin(site, np.fromiter(users, np.int64))
        found = []
        for code, wanted in ((SUBMIT, submits), (DELIVER, deliveries)):
            if not wanted:
                found.append(joined([]))
                continue
            mask = event == code
            if known is not None:
                mask &= known
            if code == DELIVER:
                for stage in PROVISIONAL:
                    here = word_is(table, "kind", stage)
                    if here is not None:
                        mask &= ~here
            found.append(self._spread(table, group, np.flatnonzero(mask), site, code == DELIVER))
        return found[0], found[1]

    def _spread(self, table: Any, group: int, rows: Array, site: Array, more: bool) -> Messages:
        lists = column(table, "messages")
        offsets = lists.offsets.to_numpy()
        values = lists.values.to_numpy()
        starts = offsets[rows].astype(np.int64)
        sizes = offsets[rows + 1].astype(np.int64) - starts
        single = bool((sizes == 1).all())
        if single:
            source_row, place_in = rows, np.zeros(len(rows), np.int64)
            fp = values[starts] if len(values) else np.zeros(0, np.int64)
        else:
            source_row = np.repeat(rows, sizes)
            before = np.cumsum(sizes) - sizes
            place_in = np.arange(int(sizes.sum()), dtype=np.int64) - np.repeat(before, sizes)
            fp = values[np.repeat(starts, sizes) + place_in]
        fp = _agreed(table, source_row, fp, None if single else np.repeat(sizes, sizes))
        nothing = np.full(len(source_row), NOTHING, np.int64)
        return Messages(
            site=site[source_row],
            time=numbers(table, "time")[source_row],
            place=source_row + int(self.first[group]),
            offset=place_in,
            fp=fp,
            seq=numbers(table, "seq")[source_row] if more else nothing,
            source=numbers(table, "source")[source_row] if more else nothing,
            number=numbers(table, "number")[source_row] if more else nothing,
        )


def _agreed(table: Any, rows: Array, fp: Array, sizes: Array | None) -> Array:
    """Fingerprints; another one where a row of one message has a digest that is not its own.

    A trace says twice which message it is.  If the two differ somebody has touched it, and nobody
    can say which is right: it is no message that anybody knows.
    """
    values = column(table, "digest")
    digest = numbers(table, "digest")[rows]
    wrong = digest != fp
    if values.null_count:
        wrong &= values.is_valid().to_numpy(zero_copy_only=False)[rows]
    if sizes is not None:
        wrong &= sizes == 1
    return np.where(wrong, fp ^ digest ^ ANOTHER, fp) if wrong.any() else fp


def present(values: Array) -> list[int]:
    """The different values, rising; quick where they are few and small, as sites are."""
    if not len(values):
        return []
    low, high = int(values.min()), int(values.max())
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
    found: Array = values.to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
    return found


def events_of(table: Any) -> Array:
    """The event of each row, as its code."""
    values = column(table, "event")
    words = values.dictionary.to_pylist()
    codes = np.array([CODES.get(word, NOTHING) for word in words] or [NOTHING], np.int8)
    found: Array = codes[values.indices.to_numpy()]
    return found


def word_is(table: Any, name: str, word: str) -> Array | None:
    """Where a column has this word; None if nowhere."""
    values = column(table, name)
    words = values.dictionary.to_pylist()
    if word not in words:
        return None
    indices = values.indices.fill_null(-1) if values.null_count else values.indices
    found: Array = indices.to_numpy() == words.index(word)
    return found


def _all_in(site: Array, users: Collection[int]) -> bool:
    """Whether all of these are users, or rows that concern no site.  Quick where users are 0…n."""
    if not len(site):
        return True
    n = len(users)
    return bool(site.max() < n and set(users) == set(range(n)))


def read(
    readers: dict[int, Reader], parts: Sequence[Part], wanted: Iterable[tuple[int, int]]
) -> Iterable[tuple[Reader, int]]:
    """Readers of the row groups (part, group) that are wanted; files are opened once."""
    for part, group in wanted:
        if part not in readers:
            readers[part] = Reader(parts[part])
        yield readers[part], group
