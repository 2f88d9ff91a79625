"""Rows of a trace as numpy arrays, a row group at a time: what every fast check reads.

Only the columns that are asked for are read, and of those only what the statistics of a row group
leave open.  Words stay dictionary codes until they have become numbers; bundles are spread out, so
that one row of `Messages` is one message.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, Final

import numpy as np
from msgspec import Struct

from roundelay.core.engine import STAMPED
from roundelay.core.errors import UsageError
from roundelay.core.events import DELIVER, EVENT_NAMES, SUBMIT
from roundelay.pipeline.verify.runs import TracedRun, TracePart
from roundelay.trace.schema import TraceRow, arrow, parquet

Array = np.ndarray[Any, Any]

NOTHING: Final = -1
CODES: Final = {name: code for code, name in enumerate(EVENT_NAMES)}
LEAF: Final = {name: i for i, name in enumerate(TraceRow.__struct_fields__)}
"""Column → its number in the file."""
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
    """Opens row groups (part, number) of a run; each file is opened once."""

    def __init__(self, run: TracedRun) -> None:
        self.run = run
        self._files: dict[int, Any] = {}

    def open(self, part: int, number: int) -> OpenRowGroup:
        source = self.run.parts[part]
        if part not in self._files:
            try:
                file = parquet().ParquetFile(source.path, read_dictionary=["event", "kind"])
            except (OSError, arrow().ArrowException) as error:
                raise UsageError(f"trace {source.path} cannot be read: {error}") from None
            self._files[part] = file
        return OpenRowGroup(self._files[part], source, number)

    def messages(self, places: Iterable[tuple[int, int]]) -> Iterator[tuple[Messages, Messages]]:
        """Of each row group, what was submitted there and what was delivered for good."""
        for place in places:
            yield self.open(*place).messages(self.run.users)


class OpenRowGroup:
    """One row group; a column is read when it is asked for, and once."""

    def __init__(self, file: Any, part: TracePart, number: int) -> None:
        self.file, self.part, self.number = file, part, number
        self._metadata = file.metadata.row_group(number)
        self._columns: dict[str, Any] = {}

    def table(self, columns: Sequence[str] | None = None) -> Any:
        try:
            return self.file.read_row_group(self.number, columns=columns, use_threads=False)
        except (OSError, arrow().ArrowException) as error:
            reason = str(error).splitlines()[0]
            raise UsageError(f"trace {self.part.path} is damaged: {reason}") from None

    def load(self, names: Sequence[str]) -> None:
        """Read these columns, in one go."""
        for name, chunked in zip(names, self.table(names).columns, strict=True):
            whole = chunked.num_chunks == 1
            self._columns[name] = chunked.chunk(0) if whole else chunked.combine_chunks()

    def column(self, name: str) -> Any:
        """One column, as Arrow has it."""
        if name not in self._columns:
            self.load([name])
        return self._columns[name]

    def statistics(self, name: str) -> Any:
        """Of a column; None if they do not say its least and its greatest value."""
        statistics = self._metadata.column(LEAF[name]).statistics
        return statistics if statistics is not None and statistics.has_min_max else None

    def only(self, name: str) -> Any:
        """The one value that all rows have in a column; None if there may be more of them."""
        said = self.statistics(name)
        alone = said is not None and said.min == said.max and said.null_count == 0
        return said.min if alone else None

    def numbers(self, name: str) -> Array:
        """A column of whole numbers; NOTHING where there is none."""
        only = self.only(name)
        if only is not None:
            return np.broadcast_to(np.int64(only), self.part.rows[self.number])
        values = self.column(name)
        if values.null_count:
            values = values.fill_null(NOTHING)
        filled: Array = values.to_numpy(zero_copy_only=False)
        return filled

    def times(self) -> tuple[int, int]:
        """The least and the greatest time (ns); by the statistics if there are any."""
        said = self.statistics("time")
        if said is not None:
            return said.min, said.max
        time = self.numbers("time")
        return int(time.min()), int(time.max())

    @cached_property
    def events(self) -> Array:
        """The event of each row, as its code."""
        values = self.column("event")
        words = values.dictionary.to_pylist()
        codes = np.array([CODES.get(word, NOTHING) for word in words] or [NOTHING], np.int8)
        events: Array = codes[values.indices.to_numpy()]
        return events

    def of(self, users: Sequence[int]) -> Array | bool:
        """Which rows are those of users; often all are, and that is quickly seen."""
        site = self.numbers("site")
        return set(present(site)) <= {*users, NOTHING} or np.isin(site, users)

    def final_deliveries(self) -> Array:
        """Where a row is a delivery that promises something."""
        mask: Array = self.events == DELIVER
        said = self.statistics("kind")
        if said is None or said.min <= PROVISIONAL <= said.max:
            kind = self.column("kind")
            words = kind.dictionary.to_pylist()
            if PROVISIONAL in words:
                mask &= kind.indices.fill_null(-1).to_numpy() != words.index(PROVISIONAL)
        return mask

    def messages(
        self, users: Sequence[int], *, submits: bool = True, deliveries: bool = True
    ) -> tuple[Messages, Messages]:
        """What was submitted here and what was delivered for good, by users."""
        names = ["event", "site", "time", "digest", "messages"]
        names += ["seq", "source", "number"] if deliveries else []
        self.load([name for name in names if self.only(name) is None or name == "event"])
        by_users = self.of(users)

        def spread(mask: Array, ordered: bool) -> Messages:
            return self._spread(np.flatnonzero(mask & by_users), ordered)

        return (
            spread(self.events == SUBMIT, False) if submits else joined([]),
            spread(self.final_deliveries(), True) if deliveries else joined([]),
        )

    def _spread(self, rows: Array, ordered: bool) -> Messages:
        lists = self.column("messages")
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
            self.numbers("site")[rows],
            self.numbers("time")[rows],
            rows + self.part.first + sum(self.part.rows[: self.number]),
            offset,
            self._agreed(rows, fp, single),
            *(
                self.numbers(name)[rows] if ordered else missing
                for name in ("seq", "source", "number")
            ),
        )

    def _agreed(self, rows: Array, fp: Array, single: Array | None) -> Array:
        """Fingerprints; another one where a row of one message has a digest that is not its own.

        A trace says twice which message it is.  If the two differ somebody has touched it, and
        nobody can say which is right: it is no message that anybody knows.
        """
        digest = self.numbers("digest")[rows]
        wrong = digest != fp
        if single is not None:
            wrong &= single
        if not wrong.any():
            return fp
        values = self.column("digest")
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
