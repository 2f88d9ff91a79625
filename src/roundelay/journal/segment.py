"""One file of a journal: appending to it, finding out what is good in it, reading it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from msgspec import Struct

from roundelay.core.errors import MalformedPdu
from roundelay.journal.format import (
    ALIGN,
    BLOCK_HEAD,
    BLOCK_MAGIC,
    GAP,
    LINK_BYTES,
    SEGMENT_HEAD,
    BlockHead,
    Head,
    Run,
    check_block,
    decode_block,
    decode_block_head,
    decode_head,
    decode_runs,
    encode_head,
)
from roundelay.journal.index import RUN, BlockEntry, Index, RunEntry, write_index

SUFFIX: Final = ".rjs"
SCAN_BYTES: Final = 1 << 22


def path_of(folder: Path, base: int) -> Path:
    return folder / f"{base:020d}{SUFFIX}"


class Damage(Struct, frozen=True):
    """Bytes that are not what was written."""

    path: Path
    offset: int
    bytes: int
    lo: int
    hi: int
    """Positions that are lost with them, half-open; hi = -1: nobody can say how many."""
    why: str


class Segment:
    """What is known of one segment; `Appender` adds to the last one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file = os.open(path, os.O_RDONLY)
        try:
            self.head = decode_head(os.pread(self.file, SEGMENT_HEAD.size, 0))
        except MalformedPdu as error:
            os.close(self.file)
            raise MalformedPdu(error.reason, f"{path}: {error}") from None
        self.base = self.head.base
        self.blocks: list[BlockEntry] = []
        self.runs = bytearray()
        self.names: dict[str, int] = {}
        self.end = self.base
        self.size = SEGMENT_HEAD.size
        self.damages: list[Damage] = []
        self.index: Index | None = None

    def close(self) -> None:
        os.close(self.file)
        if self.index is not None:
            self.index.close()
            self.index = None

    # -- finding out -----------------------------------------------------------------------

    @property
    def index_path(self) -> Path:
        return self.path.with_suffix(".rji")

    @property
    def chain_path(self) -> Path:
        return self.path.with_suffix(".rjc")

    def load(self) -> bool:
        """Use the index if it fits; False if the segment has to be scanned."""
        try:
            index = Index(self.index_path)
        except (OSError, MalformedPdu, ValueError):
            return False
        if index.end_offset != os.fstat(self.file).st_size:
            index.close()
            return False
        self.index = index
        self.end, self.size = index.end, index.end_offset
        return True

    def scan(self, expected_end: int = -1) -> None:
        """Read every block; what is damaged goes to `damages`, with the positions it held."""
        self.blocks, self.runs, self.names = [], bytearray(), {}
        self.end, self.size, self.damages = self.base, SEGMENT_HEAD.size, []
        file_size = os.fstat(self.file).st_size
        at = bad_from = SEGMENT_HEAD.size
        why = ""
        while at < file_size:
            block = self._block_at(at, file_size)
            if isinstance(block, str):
                if not why:
                    why, bad_from = block, at
                at = self._next_magic(at + ALIGN, file_size)
                continue
            head, data = block
            if head.base < self.end:  # an old block where none can be
                if not why:
                    why, bad_from = "position", at
                at = self._next_magic(at + ALIGN, file_size)
                continue
            if why or head.base > self.end:
                self._damaged(bad_from if why else at, at, head.base, why or "missing")
                why = ""
            self.note(at, head, data)
            at += head.size
            bad_from = at
        if why:
            hi = expected_end if expected_end > self.end else -1
            self._damaged(bad_from, file_size, hi, why)
            if hi > 0:
                self.end = hi

    def _damaged(self, start: int, end: int, hi: int, why: str) -> None:
        self.damages.append(Damage(self.path, start, end - start, self.end, hi, why))

    def _block_at(self, at: int, file_size: int) -> tuple[BlockHead, bytes] | str:
        try:
            head = decode_block_head(os.pread(self.file, BLOCK_HEAD.size, at))
            if head.size > file_size - at:
                return "short"
            if head.journal != self.head.journal:
                return "other journal"
            data = os.pread(self.file, head.size, at)
            check_block(data, head)
        except MalformedPdu as error:
            return str(error)
        return head, data

    def _next_magic(self, at: int, file_size: int) -> int:
        """Where the next block can begin."""
        while at < file_size:
            data = os.pread(self.file, SCAN_BYTES, at)
            found = data.find(BLOCK_MAGIC)
            while found >= 0 and (at + found) % ALIGN:
                found = data.find(BLOCK_MAGIC, found + 1)
            if found >= 0:
                return at + found
            if len(data) < SCAN_BYTES:
                break
            at += SCAN_BYTES - ALIGN
        return file_size

    def note(self, at: int, head: BlockHead, data: bytes | memoryview) -> None:
        """A good block is at offset `at`."""
        before = len(self.runs) // RUN.size
        self.blocks.append(BlockEntry(head.base, at, head.written, head.size, before))
        names = self.names
        for run in decode_runs(data, head):
            sender = names.setdefault(run.sender, len(names))
            self.runs += RUN.pack(
                run.position, at + run.heap_at, at + run.sizes_at, run.time, run.count, run.bytes,
                run.conference, run.kind, sender, run.flags, run.number,
            )  # fmt: skip
        self.end = head.base + head.count
        self.size = at + head.size

    def seal(self) -> None:
        """Write the index: the segment will not change any more."""
        if self.damages:
            return
        write_index(
            self.index_path, self.blocks, self.runs, list(self.names), self.end, self.size
        )  # fmt: skip
        self.index = Index(self.index_path)
        self.blocks, self.runs, self.names = [], bytearray(), {}

    # -- reading ---------------------------------------------------------------------------

    def block_count(self) -> int:
        return self.index.blocks if self.index is not None else len(self.blocks)

    def block(self, number: int) -> BlockEntry:
        return self.index.block(number) if self.index is not None else self.blocks[number]

    def read_block(self, number: int) -> list[Run]:
        """The runs of a block; MalformedPdu if it is damaged."""
        entry = self.block(number)
        data = os.pread(self.file, entry.size, entry.offset)
        head = decode_block_head(data)
        check_block(data, head)
        return decode_block(data, head)

    def first_block(self, position: int, since_time: int) -> int:
        """The first block that can hold something from there on."""
        if self.index is not None:
            number = self.index.block_of(position)
            return max(number, self.index.block_at_time(since_time)) if since_time else number
        low = 0
        for number, entry in enumerate(self.blocks):
            if entry.position <= position:
                low = number
        return low

    def select(
        self, conferences: frozenset[int] | None, senders: frozenset[str] | None, position: int
    ) -> Iterator[tuple[RunEntry, str]]:
        """The runs that match, by the index, from `position` on."""
        if self.index is not None:
            names = self.index.names
            for number in self.index.matching(conferences, senders):
                entry = self.index.run(number)
                if entry.position + entry.count > position:
                    yield entry, names[entry.sender]
            return
        names = list(self.names)
        wanted = None if senders is None else {self.names[s] for s in senders if s in self.names}
        for fields in RUN.iter_unpack(bytes(self.runs)):
            if conferences is not None and fields[6] not in conferences:
                continue
            if wanted is not None and fields[8] not in wanted:
                continue
            if fields[0] + fields[4] > position:
                entry = RunEntry(*fields)
                yield entry, names[entry.sender]

    def read_run(self, entry: RunEntry, sender: str) -> Run:
        """One run, without the rest of its block."""
        from array import array

        from roundelay.core.bundle import Bundle

        sizes = array("I")
        if not entry.flags & GAP:
            sizes.frombytes(os.pread(self.file, 4 * entry.count, entry.sizes_at))
        heap = os.pread(self.file, entry.bytes, entry.heap_at) if entry.bytes else b""
        return Run(
            entry.position, entry.time, sender, Bundle(tuple(sizes), heap), entry.conference,
            entry.kind, entry.number, entry.flags, entry.count,
        )  # fmt: skip

    def links(self) -> list[bytes]:
        """The hash chain as far as it is written."""
        try:
            data = self.chain_path.read_bytes()
        except FileNotFoundError:
            return []
        return [
            data[at : at + LINK_BYTES] for at in range(0, len(data) - LINK_BYTES + 1, LINK_BYTES)
        ]


def create(folder: Path, journal: bytes, base: int, chain: bytes) -> Path:
    """A new, empty segment."""
    path = path_of(folder, base)
    head = encode_head(Head(journal, base, time.time_ns(), chain))
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.write(handle, head)
        os.fsync(handle)
    finally:
        os.close(handle)
    return path
