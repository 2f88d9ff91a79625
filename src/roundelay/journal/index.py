"""Where things are in a sealed segment: `<segment>.rji`.

::

    head      "RNDLJRI1", CRC-32C of the rest of the head and of all up to the runs; counts;
              end, times; the link before the segment and its own
    blocks    position, latest, earliest, offset, size, runs before it     40 bytes each
    gaps      first position and the one behind the last                   16 bytes each
    names     u16 length and UTF-8 of each sender, padded to 8
    keys      (conference or sender, first, count, checksum of its
              postings, payload bytes)                                     24 bytes each
    runs      position, time, …, where, checksum of the payload and of
              the entry itself                                             64 bytes each
    postings  u32 numbers of runs, ascending

The file is mapped.  A reader that wants conference 7 touches its postings, the runs they name and
nothing else, and each of these has a checksum of its own: what is used is checked, what is not
used costs nothing.  `latest` is the latest time in a block or before it, `earliest` the earliest
in it or behind it: both rise even when clocks do not, so they can be searched.

The index follows from the segment byte by byte, so it can be made again at any time, and `check`
compares the two.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import struct
from array import array
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from crc32c import crc32c
from msgspec import Struct, structs

from roundelay.core.errors import MalformedPdu
from roundelay.core.positions import Range, union
from roundelay.durable import Closing
from roundelay.journal.files import index_of
from roundelay.journal.format import (
    GAP,
    NO_LINK,
    BlockHead,
    RunHead,
    decode_names,
    encode_names,
    padded,
    run_heads,
)

T = TypeVar("T")

MAGIC: Final = b"RNDLJRI1"
HEAD: Final = struct.Struct("<8sIIIIIIIIIIQQQQQ32s32s")
"""magic, checksum, and the fields of `IndexHead`"""
BLOCK: Final = struct.Struct("<QQQIII4x")
RUN: Final = struct.Struct("<QQqIIIIIIIH2xII")
"""position, time, number, heap at, sizes at, count, bytes, conference, kind, sender, flags,
checksum of sizes and heap, checksum of the entry"""
ENTRY_CHECKED: Final = 60
KEY: Final = struct.Struct("<IIIIQ")
GAPS: Final = struct.Struct("<QQ")
NEVER: Final = (1 << 64) - 1


class IndexHead(Struct):
    """What an index says of its segment as a whole."""

    blocks: int = 0
    runs: int = 0
    gaps: int = 0
    names: int = 0
    names_bytes: int = 0
    conferences: int = 0
    senders: int = 0
    rewritten: int = 0
    """How often the segment was written anew."""
    flags: int = 0
    end: int = 0
    end_offset: int = 0
    earliest: int = NEVER
    latest: int = 0
    newest: int = 0
    """When the last commit was."""
    before: bytes = NO_LINK
    link: bytes = NO_LINK


class BlockEntry(Struct, frozen=True, gc=False):
    position: int
    latest: int
    earliest: int
    offset: int
    size: int
    runs_before: int


class Builder:
    """Makes the index of a segment from its blocks, one after the other."""

    def __init__(self, before: bytes = NO_LINK, rewritten: int = 0, flags: int = 0) -> None:
        self._head = IndexHead(before=before, rewritten=rewritten, flags=flags)
        self._hash = hashlib.sha256(before)
        self._blocks: list[tuple[int, int, int, int, int, int]] = []
        self._runs = bytearray()
        self._names: dict[str, int] = {}
        self._by_conference: defaultdict[int, array[int]] = defaultdict(partial(array, "I"))
        self._by_sender: defaultdict[int, array[int]] = defaultdict(partial(array, "I"))
        self._payload: Counter[tuple[bool, int]] = Counter()
        self._gaps: list[Range] = []

    def add(self, at: int, block: BlockHead, data: bytes | memoryview) -> None:
        """A checked block, which is at offset `at`."""
        self._hash.update(data)
        view = memoryview(data)
        runs, names, payload = self._runs, self._names, self._payload
        number = before = len(runs) // RUN.size
        earliest, latest = NEVER, 0
        for run in run_heads(data, block):
            if run.flags & GAP:
                self._gaps.append((run.position, run.position + run.count))
            sender = names.setdefault(run.sender, len(names))
            heap = view[run.heap_at : run.heap_at + run.bytes]
            sizes = view[run.sizes_at : run.sizes_at + run.sizes_bytes]
            place = run.position, run.time, run.number, at + run.heap_at, at + run.sizes_at
            kind = run.count, run.bytes, run.conference, run.kind, sender, run.flags
            packed = RUN.pack(*place, *kind, crc32c(heap, crc32c(sizes)), 0)[:ENTRY_CHECKED]
            runs += packed
            runs += crc32c(packed).to_bytes(4, "little")
            if not run.flags & GAP:
                self._by_conference[run.conference].append(number)
                self._by_sender[sender].append(number)
                for key in ((False, run.conference), (True, sender)):
                    payload[key] += run.bytes
                earliest, latest = min(earliest, run.time), max(latest, run.time)
            number += 1
        head = self._head
        head.latest = max(head.latest, latest)
        head.earliest = min(head.earliest, earliest)
        head.newest = max(head.newest, block.written)
        head.end, head.end_offset = block.end, at + block.size
        self._blocks.append((block.base, head.latest, earliest, at, block.size, before))

    @property
    def link(self) -> bytes:
        """The segment's link of the hash chain."""
        return self._hash.digest()

    def encode(self) -> Iterator[bytes]:
        """The file, in parts."""
        blocks = []
        earliest = NEVER
        for position, latest, own, at, size, before in reversed(self._blocks):
            earliest = min(earliest, own)
            blocks.append(BLOCK.pack(position, latest, earliest, at, size, before))
        blocks.reverse()
        names = encode_names(self._names)
        names += bytes(padded(len(names)) - len(names))
        keys, postings, first = [], [], 0
        for kind, posted in ((False, self._by_conference), (True, self._by_sender)):
            for key, numbers in sorted(posted.items()):
                listed = numbers.tobytes()
                payload = self._payload[kind, key]
                keys.append(KEY.pack(key, first, len(numbers), crc32c(listed), payload))
                postings.append(listed)
                first += len(numbers)
        gaps = [GAPS.pack(lo, hi) for lo, hi in union(self._gaps)]
        small = b"".join([*blocks, *gaps, names, *keys])
        head = self._head
        head.blocks, head.runs, head.gaps = len(blocks), len(self._runs) // RUN.size, len(gaps)
        head.names, head.names_bytes = len(self._names), len(names)
        head.conferences, head.senders = len(self._by_conference), len(self._by_sender)
        head.link = self.link
        packed = HEAD.pack(MAGIC, 0, *structs.astuple(head))
        checksum = crc32c(small, crc32c(packed[12:]))
        yield packed[:8] + struct.pack("<I", checksum) + packed[12:]
        yield small
        yield bytes(self._runs)
        yield from postings


class Index(Closing):
    """A mapped index; what can be read from it is as it was written, or MalformedPdu."""

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
        magic, checksum, *fields = HEAD.unpack_from(self._map)
        if magic != MAGIC:
            raise MalformedPdu("index", f"{path.name} is none")
        head = self.head = IndexHead(*fields)
        gaps_at = HEAD.size + BLOCK.size * head.blocks
        names_at = gaps_at + GAPS.size * head.gaps
        keys_at = names_at + head.names_bytes
        self._runs_at = keys_at + KEY.size * (head.conferences + head.senders)
        self._postings_at = self._runs_at + RUN.size * head.runs
        if self._postings_at > len(self._map):
            raise MalformedPdu("index", "short")
        with memoryview(self._map) as view:
            if crc32c(view[HEAD.size : self._runs_at], crc32c(view[12 : HEAD.size])) != checksum:
                raise MalformedPdu("index", "checksum")
        self.gaps: list[Range] = list(GAPS.iter_unpack(self._map[gaps_at:names_at]))
        packed = self._map[names_at:keys_at]
        self.names = decode_names(packed, 0, len(packed), head.names)
        keys = list(KEY.iter_unpack(self._map[keys_at : self._runs_at]))
        self._conferences = {key: rest for key, *rest in keys[: head.conferences]}
        self._senders = {self.names[key]: rest for key, *rest in keys[head.conferences :]}

    def close(self) -> None:
        self._map.close()

    def matches(self, parts: Iterable[bytes]) -> bool:
        """Is the file these bytes, end to end?"""
        at = 0
        with memoryview(self._map) as view:
            for part in parts:
                if view[at : at + len(part)] != part:
                    return False
                at += len(part)
        return at == len(self._map)

    def table(self) -> bytes:
        """All block entries, packed."""
        return self._map[HEAD.size : HEAD.size + BLOCK.size * self.head.blocks]

    def run(self, number: int) -> tuple[RunHead, int]:
        """A run as in its block, offsets in the segment, and the checksum of its sizes and heap."""
        at = self._runs_at + RUN.size * number
        packed = self._map[at : at + RUN.size]
        position, time, own, heap_at, sizes_at, count, size, *rest = RUN.unpack(packed)
        conference, kind, sender, flags, payload, checksum = rest
        if crc32c(packed[:ENTRY_CHECKED]) != checksum:
            raise MalformedPdu("index", "checksum of a run")
        name = self.names[sender]
        head = RunHead(
            position, time, own, count, size, conference, kind, name, flags, sizes_at, heap_at
        )
        return head, payload

    @property
    def conferences(self) -> dict[int, int]:
        """Payload bytes of each."""
        return {key: rest[3] for key, rest in self._conferences.items()}

    @property
    def senders(self) -> dict[str, int]:
        """Payload bytes of each."""
        return {key: rest[3] for key, rest in self._senders.items()}

    def _postings(self, first: int, count: int, checksum: int, _payload: int) -> array[int]:
        start = self._postings_at + 4 * first
        listed = self._map[start : start + 4 * count]
        if len(listed) != 4 * count or crc32c(listed) != checksum:
            raise MalformedPdu("index", "checksum of postings")
        numbers = array("I")
        numbers.frombytes(listed)
        return numbers

    def matching(
        self,
        conferences: frozenset[int] | None,
        senders: frozenset[str] | None,
        first: int,
        last: int,
    ) -> array[int]:
        """Numbers of the runs from `first` up to `last` in these conferences, of these senders."""
        sets = []
        if conferences is not None:
            sets.append(self._union(self._conferences, conferences, first, last))
        if senders is not None:
            sets.append(self._union(self._senders, senders, first, last))
        sets.sort(key=len)
        if len(sets) == 2:
            other = set(sets[1])
            return array("I", [number for number in sets[0] if number in other])
        return sets[0]

    def _union(
        self, table: Mapping[T, list[int]], chosen: frozenset[T], first: int, last: int
    ) -> array[int]:
        parts = []
        for key in chosen:
            if key in table:
                numbers = self._postings(*table[key])
                parts.append(numbers[bisect_left(numbers, first) : bisect_left(numbers, last)])
        if len(parts) == 1:
            return parts[0]
        return array("I", sorted(number for part in parts for number in part))


def index_beside(path: Path, size: int = -1, rewritten: int = -1) -> Index | None:
    """The index of the segment at `path`; None if it has none, or a damaged one.

    Nor is one given that is of another size of the segment, or of another rewriting of it, than is
    asked for.
    """
    try:
        index = Index(index_of(path))
    except (OSError, MalformedPdu, ValueError):
        return None
    if size in (-1, index.head.end_offset) and rewritten in (-1, index.head.rewritten):
        return index
    index.close()
    return None


def index_head(path: Path) -> IndexHead | None:
    """What the index of the segment at `path` says as a whole; None as in `index_beside`."""
    index = index_beside(path)
    if index is None:
        return None
    index.close()
    return index.head


class Blocks:
    """A table of blocks, packed; one that is still growing can be read from other threads."""

    def __init__(self, packed: bytes | bytearray, count: int = -1) -> None:
        self._packed = packed
        self.count = len(packed) // BLOCK.size if count < 0 else count

    def __len__(self) -> int:
        return self.count

    def packed(self) -> bytes:
        """All entries, end to end."""
        return bytes(self._packed[: BLOCK.size * self.count])

    def __iter__(self) -> Iterator[BlockEntry]:
        for number in range(self.count):
            yield self[number]

    def __getitem__(self, number: int) -> BlockEntry:
        return BlockEntry(*BLOCK.unpack_from(self._packed, BLOCK.size * number))

    def holding(self, position: int) -> int:
        """The block that holds `position`, or the last before it."""
        return max(0, self._search(bisect_right, "position", position) - 1)

    def from_time(self, time: int) -> int:
        """The first block with a record from `time` on."""
        return self._search(bisect_left, "latest", time)

    def until_time(self, time: int) -> int:
        """Behind the last block with a record before `time`."""
        return self._search(bisect_left, "earliest", time)

    def with_run(self, number: int) -> int:
        """The block that holds a run, by the run's number in the segment."""
        return max(0, self._search(bisect_right, "runs_before", number) - 1)

    def _search(self, bisect: Callable[..., int], field: str, value: int) -> int:
        return bisect(range(self.count), value, key=lambda number: getattr(self[number], field))
