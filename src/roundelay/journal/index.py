"""Where things are in a sealed segment: `<segment>.rji`.

::

    head      "RNDLJRI1", CRC-32C of the rest, counts of what follows
    blocks    position, offset, time committed, size            32 bytes each
    runs      position, offsets, time, conference, sender, …    64 bytes each
    names     u16 length and UTF-8 of each sender
    keys      (conference or sender, first, count) of postings  16 bytes each
    postings  u32 numbers of runs, ascending

The file is mapped, so a reader that wants conference 7 of one sender touches the postings of both
and the runs they share, not the rest.  It can be made again from the segment at any time.
"""

from __future__ import annotations

import mmap
import os
import struct
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from crc32c import crc32c
from msgspec import Struct

from roundelay.core.errors import MalformedPdu

MAGIC: Final = b"RNDLJRI1"
HEAD: Final = struct.Struct("<8sIIIIIIIQQ")
"""magic, checksum; how many blocks, runs, names, conferences, senders; names bytes; end position,
end offset"""
BLOCK: Final = struct.Struct("<QQQII")
"""position, offset, committed, size, runs before it"""
RUN: Final = struct.Struct("<QQQQIIIIIIq")
"""position, heap offset, sizes offset, time, count, bytes, conference, kind, sender, flags,
number"""
KEY: Final = struct.Struct("<IIII")


class BlockEntry(Struct, frozen=True, gc=False):
    position: int
    offset: int
    committed: int
    size: int
    runs_before: int


class RunEntry(Struct, frozen=True, gc=False):
    position: int
    heap_at: int
    sizes_at: int
    time: int
    count: int
    bytes: int
    conference: int
    kind: int
    sender: int
    flags: int
    number: int


def write_index(
    path: Path,
    blocks: list[BlockEntry],
    runs: bytearray,
    names: list[str],
    end: int,
    end_offset: int,
) -> None:
    """Write the index aside and put it in place."""
    by_conference: dict[int, array[int]] = {}
    by_sender: dict[int, array[int]] = {}
    count = len(runs) // RUN.size
    for number, entry in enumerate(RUN.iter_unpack(runs)):
        by_conference.setdefault(entry[6], array("I")).append(number)
        by_sender.setdefault(entry[8], array("I")).append(number)
    table = b"".join(struct.pack("<H", len(name.encode())) + name.encode() for name in names)
    keys, postings, first = [], [], 0
    for key, numbers in (*sorted(by_conference.items()), *sorted(by_sender.items())):
        keys.append(KEY.pack(key, first, len(numbers), 0))
        postings.append(numbers.tobytes())
        first += len(numbers)
    body = b"".join(
        [BLOCK.pack(b.position, b.offset, b.committed, b.size, b.runs_before) for b in blocks]
        + [bytes(runs), table, *keys, *postings]
    )
    head = HEAD.pack(
        MAGIC, 0, len(blocks), count, len(names), len(by_conference), len(by_sender), len(table),
        end, end_offset,
    )  # fmt: skip
    checksum = crc32c(body, crc32c(head[12:]))
    aside = path.with_suffix(".rji.new")
    with aside.open("wb") as file:
        file.write(head[:8] + struct.pack("<I", checksum) + head[12:])
        file.write(body)
        file.flush()
        os.fsync(file.fileno())
    os.replace(aside, path)


class Index:
    """A mapped index."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size < HEAD.size:
                raise MalformedPdu("index", "short")
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        try:
            self._read(path)
        except BaseException:
            self._map.close()
            raise

    def _read(self, path: Path) -> None:
        (magic, self._checksum, blocks, runs, names, conferences, senders, names_bytes,
         self.end, self.end_offset) = HEAD.unpack_from(self._map)  # fmt: skip
        if magic != MAGIC:
            raise MalformedPdu("index", f"{path.name} is none")
        self.runs = runs
        self._blocks_at = HEAD.size
        self._runs_at = self._blocks_at + BLOCK.size * blocks
        names_at = self._runs_at + RUN.size * runs
        keys_at = names_at + names_bytes
        self._postings_at = keys_at + KEY.size * (conferences + senders)
        if self._postings_at > len(self._map):
            raise MalformedPdu("index", "short")
        self.blocks: int = blocks
        self.names = []
        at = names_at
        for _ in range(names):
            (size,) = struct.unpack_from("<H", self._map, at)
            self.names.append(self._map[at + 2 : at + 2 + size].decode())
            at += 2 + size
        keys = [KEY.unpack_from(self._map, keys_at + KEY.size * i)
                for i in range(conferences + senders)]  # fmt: skip
        self._conferences = {key: (first, count) for key, first, count, _ in keys[:conferences]}
        self._senders = {
            self.names[key]: (first, count) for key, first, count, _ in keys[conferences:]
        }

    def check(self) -> None:
        """Raise MalformedPdu unless every byte is as it was written."""
        view = memoryview(self._map)
        checksum = crc32c(view[HEAD.size :], crc32c(view[12 : HEAD.size]))
        view.release()
        if checksum != self._checksum:
            raise MalformedPdu("index", "checksum")

    def close(self) -> None:
        self._map.close()

    def block(self, number: int) -> BlockEntry:
        return BlockEntry(*BLOCK.unpack_from(self._map, self._blocks_at + BLOCK.size * number))

    def run(self, number: int) -> RunEntry:
        return RunEntry(*RUN.unpack_from(self._map, self._runs_at + RUN.size * number))

    def conferences(self) -> Iterable[int]:
        return self._conferences

    def _search(self, value: int, field: int) -> int:
        """How many blocks have a `field` of at most `value`."""
        found: int = bisect_right(_Column(self, field), value)
        return found

    def block_of(self, position: int) -> int:
        """The block that holds `position`, or the last before it."""
        return max(0, self._search(position, 0) - 1)

    def block_at_time(self, time: int) -> int:
        """The first block that can hold something from `time` on."""
        return max(0, self._search(time - 1, 2) - 1)

    def first_run_at(self, position: int) -> int:
        low, high = 0, self.runs
        while low < high:
            middle = (low + high) // 2
            entry = self.run(middle)
            if entry.position + entry.count <= position:
                low = middle + 1
            else:
                high = middle
        return low

    def _postings(self, where: tuple[int, int]) -> array[int]:
        first, count = where
        numbers = array("I")
        start = self._postings_at + 4 * first
        numbers.frombytes(self._map[start : start + 4 * count])
        return numbers

    def matching(
        self, conferences: frozenset[int] | None, senders: frozenset[str] | None
    ) -> Iterator[int]:
        """Numbers of the runs in these conferences, of these senders, ascending."""
        if conferences is None and senders is None:
            yield from range(self.runs)
            return
        sets = []
        if conferences is not None:
            sets.append(self._union(self._conferences, conferences))
        if senders is not None:
            sets.append(self._union(self._senders, senders))
        sets.sort(key=len)
        chosen = sets[0]
        if len(sets) == 2:
            other = set(sets[1])
            chosen = array("I", [number for number in chosen if number in other])
        yield from chosen

    def _union(self, table: dict, wanted: frozenset) -> array[int]:  # type: ignore[type-arg]
        parts = [self._postings(table[key]) for key in wanted if key in table]
        if len(parts) == 1:
            return parts[0]
        return array("I", sorted(number for part in parts for number in part))


class _Column:
    """One field of the blocks, as a sequence for `bisect`."""

    def __init__(self, index: Index, field: int) -> None:
        self._index = index
        self._field = field

    def __len__(self) -> int:
        return self._index.blocks

    def __getitem__(self, number: int) -> int:
        entry = self._index.block(number)
        found: int = entry.committed if self._field else entry.position
        return found
