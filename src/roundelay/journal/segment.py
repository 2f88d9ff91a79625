"""One file of a journal: what is known of it, what is good in it, reading it.

A `Segment` is only what is known: it holds no file open.  A `SegmentView` is a segment opened for
reading and closed again when that is over, so a long journal costs neither descriptors nor maps.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from crc32c import crc32c
from msgspec import Struct, structs

from roundelay.core.errors import MalformedPdu
from roundelay.core.positions import Range
from roundelay.durable import Closing
from roundelay.journal.format import (
    ALIGN,
    BLOCK_HEAD,
    BLOCK_MAGIC,
    GAP,
    SEGMENT_HEAD,
    BlockHead,
    Head,
    Run,
    RunFilter,
    check_block,
    decode_block,
    decode_block_head,
    decode_head,
    gap,
    run_heads,
    run_of,
)
from roundelay.journal.index import BLOCK, BlockEntry, Blocks, Index, index_beside

SCAN_BYTES: Final = 1 << 22


class Damage(Struct, frozen=True):
    """Bytes that are not what was written."""

    path: Path
    offset: int
    bytes: int
    lo: int
    hi: int
    """Positions that are lost with them, half-open; hi = -1: nobody can say how many."""
    why: str

    @property
    def brief(self) -> str:
        return f"{self.bytes} bytes at {self.offset}: {self.why}"

    def __str__(self) -> str:
        return (
            f"{self.bytes} bytes at {self.offset} are damaged ({self.why}), positions {self.lo} to "
            f"{self.hi - 1}"
        )


class Segment:
    """What is known of one segment."""

    def __init__(self, path: Path, journal: bytes) -> None:
        self.path = path
        self.base = int(path.stem)
        self.journal = journal
        self.head_wrong = ""
        with path.open("rb") as file:
            data = file.read(SEGMENT_HEAD.size)
            self._inode = os.fstat(file.fileno()).st_ino
        try:
            self.head = decode_head(data)
            if self.head.journal != journal:
                self.head_wrong = "of another journal"
            elif self.head.base != self.base:
                self.head_wrong = f"begins at {self.head.base}"
        except MalformedPdu as error:
            self.head_wrong = str(error)
        if self.head_wrong:
            # All of it can be had from elsewhere: the blocks behind it are not lost.
            self.head = Head(journal, self.base)
        self._restart()

    def _restart(self) -> None:
        """Nothing is known but the head."""
        self.end = self.base
        self.size = SEGMENT_HEAD.size
        self.blocks = bytearray()
        """Packed entries, as long as there is no index."""
        self.sealed = False
        self.gaps: list[Range] = []
        self.damages: list[Damage] = []
        self.tail: Damage | None = None
        """An unfinished block at the end: never acknowledged."""
        self.earliest, self.latest, self.newest, self.durable = 0, 0, 0, 0
        self._why = ""

    @property
    def missing(self) -> list[Range]:
        """Positions it ought to have and does not."""
        return sorted(self.gaps + self.holes)

    @property
    def holes(self) -> list[Range]:
        """Positions that were lost with damaged bytes."""
        return sorted((damage.lo, damage.hi) for damage in self.damages if damage.hi > damage.lo)

    # -- finding out -----------------------------------------------------------------------

    def load(self) -> bool:
        """Use the index if it fits; False if the segment has to be scanned."""
        if self.head_wrong:
            return False
        index = index_beside(self.path, self.path.stat().st_size, self.head.rewritten)
        if index is not None:
            self.learn(index)
        return index is not None

    @property
    def replaced(self) -> bool:
        """Has the file been written anew since it was loaded?"""
        return self.path.stat().st_ino != self._inode

    def learn(self, index: Index) -> None:
        """There is an index now: it says all that was kept in memory, and is closed."""
        index.close()
        head = index.head
        self.end, self.size = head.end, head.end_offset
        self.earliest, self.latest, self.newest = head.earliest, head.latest, head.newest
        self.gaps = index.gaps
        self.damages, self.tail = [], None
        self.sealed = True
        self.blocks = bytearray()

    def scan(self, mark: int = 0) -> None:
        """Read every block; what is damaged goes to `damages`, with the positions it held.

        `mark` is the position below which everything was on disk once: if the end is damaged and
        the good blocks do not reach it, that is a loss and not an unfinished write.
        """
        self._restart()
        self.refresh(mark)

    def refresh(self, mark: int = 0) -> None:
        """Read on where the last scan ended: a recorder may have written more."""
        with self.path.open("rb") as file:
            file_size = os.fstat(file.fileno()).st_size
            bad_from = self._scan(file.fileno(), file_size)
        rest, mark = max(0, file_size - bad_from), max(mark, self.durable)
        self.tail = None
        if self.end < mark:
            why = self._why or "cut off"
            self.damages.append(Damage(self.path, bad_from, rest, self.end, mark, why))
            self.end = mark
        elif rest:
            self.tail = Damage(self.path, bad_from, rest, self.end, -1, self._why)

    def lose_tail(self, end: int) -> None:
        """The unfinished end held positions up to `end`: they are lost."""
        assert self.tail is not None
        self.damages.append(structs.replace(self.tail, hi=end))
        self.tail, self.end = None, end

    def _scan(self, file: int, file_size: int) -> int:
        """Take in all good blocks from `size` on; where the bad end begins."""
        at = bad_from = self.size
        self._why = ""
        while at < file_size:
            try:
                head, data = block_at(file, at, file_size, self.journal)
                runs = list(run_heads(data, head))
                if not runs or runs[-1].position + runs[-1].count != head.end:
                    raise MalformedPdu("block", "positions")
                if head.base < self.end:
                    raise MalformedPdu("block", "an old one")
            except MalformedPdu as error:
                if not self._why:
                    bad_from, self._why = at, str(error)
                at = _next_magic(file, at + ALIGN, file_size)
                continue
            if self._why or head.base > self.end:
                why = self._why or "blocks missing"
                start = bad_from if self._why else at
                self.damages.append(Damage(self.path, start, at - start, self.end, head.base, why))
                self._why = ""
            for run in runs:
                if run.flags & GAP:
                    self.gaps.append((run.position, run.position + run.count))
                elif run.time > self.latest:
                    self.latest = run.time
            self.note(at, head.base, head.end, head.size, self.latest)
            self.newest = max(self.newest, head.written)
            self.durable = max(self.durable, head.durable)
            at += head.size
            bad_from = at
        return bad_from

    def note(self, at: int, base: int, end: int, size: int, latest: int) -> None:
        """A good block is at offset `at`."""
        self.blocks += BLOCK.pack(base, latest, 0, at, size, 0)
        self.end = end
        self.size = at + size
        self.latest = latest

    def view(self) -> SegmentView:
        return SegmentView(self)


def block_at(
    file: int, at: int, file_size: int, journal: bytes, buffer: bytearray | None = None
) -> tuple[BlockHead, bytes | memoryview]:
    """The checked block at offset `at`; MalformedPdu says what is wrong with it.

    In bytes of its own, or as a view of the beginning of `buffer`, which is enlarged if need be:
    fresh memory for each block takes as long as reading it.
    """
    head = decode_block_head(os.pread(file, BLOCK_HEAD.size, at))
    if head.size > file_size - at:
        raise MalformedPdu("block", "short")
    if head.journal != journal:
        raise MalformedPdu("block", "of another journal")
    data: bytes | memoryview
    if buffer is None:
        data = os.pread(file, head.size, at)
    else:
        if len(buffer) < head.size:
            buffer.extend(bytes(head.size - len(buffer)))
        data = memoryview(buffer)[: head.size]
        data = data[: os.preadv(file, [data], at)]
    check_block(data, head)
    return head, data


def _next_magic(file: int, at: int, file_size: int) -> int:
    """Where the next block can begin."""
    while at < file_size:
        data = os.pread(file, SCAN_BYTES, at)
        place = data.find(BLOCK_MAGIC)
        while place >= 0 and (at + place) % ALIGN:
            place = data.find(BLOCK_MAGIC, place + 1)
        if place >= 0:
            return at + place
        if at + len(data) >= file_size or not data:
            break
        at += SCAN_BYTES - ALIGN
    return file_size


class SegmentView(Closing):
    """A segment opened for reading: what was in it at that moment."""

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self.base = segment.base
        self.index: Index | None = None
        self.holes = segment.holes
        self.gaps = segment.gaps
        # The order matters: whoever appends or seals changes these in the opposite one.
        blocks = segment.blocks
        count, end, sealed = len(blocks) // BLOCK.size, segment.end, segment.sealed
        self.file = os.open(segment.path, os.O_RDONLY)
        try:
            if sealed:
                self._use_index(segment)
            if self.index is None:
                if sealed:  # the index is gone or damaged: do without it
                    again = Segment(segment.path, segment.journal)
                    again.scan()
                    blocks, end, count = again.blocks, max(end, again.end), -1
                    self.holes = again.missing
                self.blocks, self.end = Blocks(blocks, count), end
        except BaseException:
            os.close(self.file)
            raise

    def _use_index(self, segment: Segment) -> None:
        rewritten = -1
        with suppress(MalformedPdu):  # a damaged head hides nothing: what is read has a checksum
            rewritten = decode_head(os.pread(self.file, SEGMENT_HEAD.size, 0)).rewritten
        index = index_beside(segment.path, os.fstat(self.file).st_size, rewritten)
        if index is not None:
            self.index, self.gaps = index, index.gaps
            self.blocks, self.end = Blocks(index.table()), index.head.end

    def close(self) -> None:
        os.close(self.file)
        if self.index is not None:
            self.index.close()
            self.index = None

    def raw(self, entry: BlockEntry) -> tuple[BlockHead, bytes]:
        """A block's bytes, checked."""
        data = os.pread(self.file, entry.size, entry.offset)
        head = decode_block_head(data)
        check_block(data, head)
        return head, data

    def read_block(self, number: int, takes: RunFilter | None = None) -> list[Run]:
        """The runs of a block that `takes` takes, and gaps; a gap if it is damaged."""
        entry = self.blocks[number]
        try:
            head, data = self.raw(entry)
            if head.base != entry.position:
                raise MalformedPdu("block", "not the one that was there")
            return decode_block(data, head, takes)
        except MalformedPdu:
            return [gap(entry.position, self.end_of(number))]

    def end_of(self, number: int) -> int:
        """Where the records behind a block begin."""
        if number + 1 < len(self.blocks):
            return self.blocks[number + 1].position
        return self.end

    def read_runs(self, first: int, last: int, takes: RunFilter | None = None) -> Iterator[Run]:
        """The runs of these blocks, with gaps where something is missing between them."""
        holes = [hole for hole in self.holes if not first or hole[0] >= self.blocks[first].position]
        holes.reverse()
        for number in range(first, last):
            position = self.blocks[number].position
            while holes and holes[-1][0] < position:
                yield gap(*holes.pop())
            yield from self.read_block(number, takes)
        for hole in reversed(holes):
            yield gap(*hole)

    def read_run(self, number: int, takes: RunFilter) -> Run | None:
        """One run by the index, without the rest of its block; MalformedPdu if it is damaged."""
        assert self.index is not None
        head, checksum = self.index.run(number)
        if not takes(head):
            return None
        sized = head.sizes_bytes
        if head.sizes_at + sized == head.heap_at or not sized:
            both = os.pread(self.file, sized + head.bytes, head.heap_at - sized)
            sizes, heap = both[:sized], both[sized:]
        else:
            sizes = os.pread(self.file, sized, head.sizes_at)
            heap = os.pread(self.file, head.bytes, head.heap_at) if head.bytes else b""
        if crc32c(heap, crc32c(sizes)) != checksum:
            raise MalformedPdu("run", "checksum")
        return run_of(head, sizes, heap)
