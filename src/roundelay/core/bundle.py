"""A bundle: several application messages carried by one PDU as one byte string.

While a source waits for its acknowledgement, new messages gather and the next PDU carries them
all, so the cost per message falls with load while the protocol keeps its one outstanding PDU.
There is no object per message until somebody asks for the messages.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import accumulate, chain, groupby
from operator import itemgetter
from struct import Struct as Layout
from typing import Final

from msgspec import Struct


class _Codes(dict[int, str]):
    """`struct`'s codes for byte strings, by length."""

    def __missing__(self, size: int) -> str:
        return f"{size}s"


_code = _Codes((size, f"{size}s") for size in range(2048)).__getitem__


MANY: Final = 64
"""From so many messages of one size on, the way to cut them is remembered."""


@lru_cache(maxsize=8)
def _equal(size: int, count: int) -> Layout:
    """How full bundles are cut: all alike, under load."""
    return Layout(_code(size) * count)


@lru_cache(maxsize=4)
def equal_sizes(size: int, count: int) -> tuple[int, ...]:
    """The sizes of `count` messages of one size; those of full bundles are one table for all."""
    return (size,) * count


Mark = tuple[int, int, int]
"""(conference, kind, how many messages)"""


class Bundle(Struct, frozen=True, gc=False, omit_defaults=True, repr_omit_defaults=True):
    """Messages laid end to end in `data`; `sizes` is the table of their lengths.

    `marks` says which conference and kind they belong to, in runs; a bundle whose messages all
    have conference 0 and kind 0 has none, so who does not use them pays nothing.

    >>> list(Bundle.of(b"one", b"three"))
    [b'one', b'three']
    >>> Bundle.merged([Bundle.of(b"one"), Bundle.of(b"two").marked(7)]).marks
    ((0, 0, 1), (7, 0, 1))
    """

    sizes: tuple[int, ...]
    data: bytes
    marks: tuple[Mark, ...] = ()

    @classmethod
    def of(cls, *messages: bytes) -> Bundle:
        return cls(tuple(map(len, messages)), b"".join(messages))

    @classmethod
    def merged(cls, bundles: Iterable[Bundle]) -> Bundle:
        """One bundle with the messages of all of them, in order."""
        parts = list(bundles)
        if len(parts) == 1:
            return parts[0]
        tables = [part.sizes for part in parts]
        sizes = _equal_table(tables) or tuple(chain.from_iterable(tables))
        data = b"".join([part.data for part in parts])
        if any(part.marks for part in parts):
            return cls(sizes, data, _joined([mark for part in parts for mark in part.runs()]))
        return cls(sizes, data)

    # -- conference and kind ---------------------------------------------------------------

    def marked(self, conference: int, kind: int = 0) -> Bundle:
        """The same messages, all of one conference and kind."""
        if not (conference or kind or self.marks) or not self.sizes:
            return self
        marks = ((conference, kind, len(self.sizes)),) if conference or kind else ()
        return Bundle(self.sizes, self.data, marks)

    def runs(self) -> tuple[Mark, ...]:
        """The marks, also of a bundle without any."""
        return self.marks or (((0, 0, len(self.sizes)),) if self.sizes else ())

    def part(self, first: int, last: int) -> Bundle:
        """Messages `first` up to, not including, `last`."""
        sizes = self.sizes[first:last]
        if size := self.uniform:
            data = self.data[first * size : last * size]
        else:
            ends = list(accumulate(self.sizes, initial=0))
            last = min(last, len(self.sizes))
            data = self.data[ends[min(first, last)] : ends[last]]
        return Bundle(sizes, data, self._marks_of(first, last))

    def _marks_of(self, first: int, last: int) -> tuple[Mark, ...]:
        marks: list[Mark] = []
        start = 0
        for conference, kind, count in self.marks:
            inside = min(last, start + count) - max(first, start)
            if inside > 0:
                marks.append((conference, kind, inside))
            start += count
        return _joined(marks)

    def by_mark(self) -> Iterator[tuple[int, int, Bundle]]:
        """(conference, kind, the messages) of each run, in order; those have no marks."""
        if len(self.marks) < 2:
            conference, kind = self.marks[0][:2] if self.marks else (0, 0)
            yield conference, kind, Bundle(self.sizes, self.data) if self.marks else self
            return
        start = at = 0
        for conference, kind, count in self.marks:
            sizes = self.sizes[start : start + count]
            size = sum(sizes)
            yield conference, kind, Bundle(sizes, self.data[at : at + size])
            start += count
            at += size

    # -- the messages ----------------------------------------------------------------------

    @property
    def uniform(self) -> int:
        """The one size that all messages have; 0 if they differ, are empty, or there are none."""
        sizes = self.sizes
        count = len(sizes)
        if count:
            size = sizes[0]
            # The product tells most cases apart without a look at every size.
            if size * count == len(self.data):
                if count >= MANY and sizes is equal_sizes(size, count):
                    return size
                if sizes.count(size) == count:
                    return size
        return 0

    def messages(self) -> tuple[bytes, ...]:
        """All messages; `struct` cuts several times faster than slices do."""
        sizes, data = self.sizes, self.data
        count = len(sizes)
        if count == 1:
            return (data,)
        size = self.uniform
        if not size:
            return Layout("".join(map(_code, sizes))).unpack(data)
        if count < MANY:
            return Layout(_code(size) * count).unpack(data)
        return _equal(size, count).unpack(data)

    def __len__(self) -> int:
        return len(self.sizes)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.messages())


def _equal_table(tables: list[tuple[int, ...]]) -> tuple[int, ...]:
    """The join of `tables` if it is long and all sizes are one; else nothing."""
    count = sum(map(len, tables))
    if count < MANY or not tables[0]:
        return ()
    size = tables[0][0]
    if not size or any(table.count(size) != len(table) for table in tables):
        return ()
    return equal_sizes(size, count)


def _joined(marks: list[Mark]) -> tuple[Mark, ...]:
    """Neighbours with the same conference and kind become one; all zeros become none."""
    runs = groupby(marks, key=itemgetter(0, 1))
    joined = tuple((*mark, sum(count for _, _, count in run)) for mark, run in runs)
    return () if len(joined) == 1 and joined[0][:2] == (0, 0) else joined


def fitting(queue: Iterable[Bundle], max_payload: int) -> int:
    """How many bundles from the front of a queue one PDU can carry; the first one it always can."""
    room, places = max_payload, MESSAGES_MAX
    count = 0
    for part in queue:
        room -= len(part.data)
        places -= len(part.sizes)
        if room < 0 or places < 0:
            break
        count += 1
    return count or 1


def gather(queue: deque[Bundle], max_payload: int, together: bool) -> Bundle:
    """Take from the front of a queue what the next PDU carries: one bundle, or all that fit."""
    if not together or len(queue) == 1:
        return queue.popleft()
    return Bundle.merged([queue.popleft() for _ in range(fitting(queue, max_payload))])


MESSAGES_MAX: Final = 65535
"""Messages in one bundle: their number has two bytes on the wire."""

NOTHING = Bundle((), b"")
