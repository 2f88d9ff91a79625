"""What can still be had of a damaged block.

A block has one checksum, so a single flipped bit spoils all its records.  Two ways lead back:

- **The checksum itself names the bit.**  The CRC of a block with one flipped bit differs from the
  right one by a pattern that only this bit causes.  If a bit explains the difference it is put
  right.  Larger damage can look like one flipped bit by chance, once in 2^32 / (bits of the block)
  times; so the index has to agree, or, where there is none yet, the block must be small enough
  (`ALONE_BYTES`) for that chance to be below one in a thousand.
- **The index has a checksum for each run**, and knows where it is: runs that agree are as they
  were, whatever happened to the rest of their block.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from itertools import pairwise
from typing import Final

from crc32c import crc32c
from msgspec import Struct

from roundelay.core.errors import MalformedPdu
from roundelay.durable import Disk
from roundelay.journal.format import (
    ALIGN,
    BLOCK_HEAD,
    BLOCK_MAGIC,
    GAP,
    Run,
    RunHead,
    check_block,
    decode_block,
    decode_block_head,
    run_of,
)
from roundelay.journal.index import Index, index_beside
from roundelay.journal.segment import Segment

POLYNOMIAL: Final = 0x82F63B78
"""Of CRC-32C, bits in the order in which they are taken in."""
CHECKED_FROM: Final = 12
"""The checksum of a block is over everything from here on."""
LOOKED_THROUGH_BYTES: Final = 16 << 20
"""A flipped bit is looked for in blocks up to this size: a second a MiB, about."""
ALONE_BYTES: Final = (1 << 32) // 1000 // 8
"""Without an index to agree, only in blocks up to this size."""
DAMAGED: Final = ".damaged"
SECTOR_BYTES: Final = 512


class Region(Struct, frozen=True):
    """Bytes of a segment that are not what was written."""

    offset: int
    data: bytes


def damaged_regions(segment: Segment) -> Iterator[Region]:
    """The bytes of `segment` that no good block has."""
    with segment.path.open("rb") as file:
        for damage in segment.damages:
            if damage.bytes > 0:
                yield Region(damage.offset, os.pread(file.fileno(), damage.bytes, damage.offset))
    with segment.view() as view:
        for entry in view.blocks:
            try:
                view.raw(entry)
            except MalformedPdu:
                yield Region(entry.offset, os.pread(view.file, entry.size, entry.offset))


def put_aside(segment: Segment, disk: Disk) -> None:
    """Copy what is damaged in a segment to files beside it, before the segment is replaced."""
    for region in damaged_regions(segment):
        stem = f"{segment.path.stem}.{segment.head.rewritten}.{region.offset}"
        path = segment.path.with_name(stem + DAMAGED)
        if not path.exists():
            disk.put(path, [region.data])


def link_aside(segment: Segment) -> None:
    """Keep a whole segment under another name."""
    path = segment.path.with_name(f"{segment.path.stem}.{segment.head.rewritten}{DAMAGED}")
    with suppress(FileExistsError):
        os.link(segment.path, path)


def salvage(segment: Segment) -> list[Run]:
    """The records in the damaged parts of a segment that are certainly as they were written."""
    rewritten = -1 if segment.head_wrong else segment.head.rewritten
    index = index_beside(segment.path, segment.path.stat().st_size, rewritten)
    with index or nullcontext():
        saved = [run for region in damaged_regions(segment) for run in _salvaged(region, index)]
    unique = {run.position: run for run in saved if segment.base <= run.position < segment.end}
    return [unique[position] for position in sorted(unique)]


def _salvaged(region: Region, index: Index | None) -> list[Run]:
    block = put_right(region.data, alone=index is None)
    if block is not None:
        runs = decode_block(block, decode_block_head(block))
        if index is None or _agrees(index, runs):
            return [run for run in runs if not run.flags & GAP]
    pieces = _pieces(region)
    if len(pieces) > 1:
        return [run for piece in pieces for run in _salvaged(piece, index)]
    return [] if index is None else list(_by_index(index, region))


def _pieces(region: Region) -> list[Region]:
    """A region of several blocks, cut where one may begin."""
    data, starts = region.data, [0]
    at = data.find(BLOCK_MAGIC, ALIGN)
    while at >= 0:
        if at % ALIGN == 0:
            starts.append(at)
        at = data.find(BLOCK_MAGIC, at + 1)
    edges = pairwise([*starts, len(data)])
    return [Region(region.offset + start, data[start:end]) for start, end in edges]


def damaged_end(segment: Segment) -> None:
    """Where no mark says what was synced: is the end of a segment unfinished, or damaged?

    A write that was cut short by a crash lacks bytes, or has whole sectors of zeros that never
    reached the disk.  A block that is complete and yet wrong was written once, and may have been
    acknowledged: its positions are lost, not free.
    """
    tail = segment.tail
    if tail is None:
        return
    with segment.path.open("rb") as file:
        data = os.pread(file.fileno(), tail.bytes, tail.offset)
    block = put_right(data) or data
    try:
        head = decode_block_head(block)
    except MalformedPdu:
        return
    complete = head.size <= len(block) and head.journal == segment.journal
    if complete and head.base == segment.end and not _unwritten(block[: head.size], tail.offset):
        segment.lose_tail(head.end)


def _unwritten(data: bytes, offset: int) -> bool:
    """Is a whole sector of it zero?"""
    first = -offset % SECTOR_BYTES
    nothing = bytes(SECTOR_BYTES)
    return any(
        data[at : at + SECTOR_BYTES] == nothing
        for at in range(first, len(data) - SECTOR_BYTES + 1, SECTOR_BYTES)
    )


# ------------------------------------------------------------------------ one flipped bit


def put_right(data: bytes, alone: bool = True) -> bytes | None:
    """The block that `data` was before one of its bits was flipped; None if it was not that.

    `alone`: nothing but its checksum will vouch for it.
    """
    size = len(data)
    if size < BLOCK_HEAD.size or size > (ALONE_BYTES if alone else LOOKED_THROUGH_BYTES):
        return None
    block = bytearray(data)
    block[:8] = BLOCK_MAGIC + struct.pack("<I", size)
    in_head = int.from_bytes(data[:8], "little") ^ int.from_bytes(block[:8], "little")
    (stored,) = struct.unpack_from("<I", data, 8)
    difference = crc32c(memoryview(block)[CHECKED_FROM:]) ^ stored
    if difference:
        if in_head:
            return None
        if difference.bit_count() == 1:  # the checksum's own bit
            block[8:12] = struct.pack("<I", stored ^ difference)
        else:
            bit = flipped_bit(difference, size - CHECKED_FROM)
            if bit is None:
                return None
            block[CHECKED_FROM + bit // 8] ^= 1 << bit % 8
    elif in_head.bit_count() > 1:
        return None
    try:
        check_block(bytes(block), decode_block_head(bytes(block)))
    except MalformedPdu:
        return None
    return bytes(block)


def flipped_bit(difference: int, size: int) -> int | None:
    """Which bit of `size` bytes makes their CRC-32C differ by `difference`."""
    pattern = POLYNOMIAL  # of the last bit; each one before it is a step further
    for steps in range(8 * size):
        if pattern == difference:
            return 8 * size - 1 - steps
        pattern = pattern >> 1 ^ POLYNOMIAL if pattern & 1 else pattern >> 1
    return None


# ------------------------------------------------------------------------ by the index


def _known_runs(index: Index) -> Iterator[tuple[RunHead, int]]:
    """Runs as the index has them, with the checksum of their bytes."""
    for number in range(index.head.runs):
        with suppress(MalformedPdu):
            yield index.run(number)


def _agrees(index: Index, runs: list[Run]) -> bool:
    """Does the index know each of these runs, byte by byte?"""
    known = {head.position: (head, checksum) for head, checksum in _known_runs(index)}
    for run in runs:
        if run.position not in known:
            return False
        head, checksum = known[run.position]
        if head.count != run.records or head.sender != run.sender:
            return False
        sizes = b""
        if head.sizes_bytes:
            sizes = struct.pack(f"<{run.records}I", *run.bundle.sizes)
        if crc32c(run.bundle.data, crc32c(sizes)) != checksum:
            return False
    return True


def _by_index(index: Index, region: Region) -> Iterator[Run]:
    """The runs in a region whose bytes have the checksum that the index has for them."""
    lo, hi = region.offset, region.offset + len(region.data)
    for head, checksum in _known_runs(index):
        if head.flags & GAP or not lo <= head.heap_at <= hi:
            continue
        sizes_at, heap_at = head.sizes_at - lo, head.heap_at - lo
        sizes = region.data[sizes_at : sizes_at + head.sizes_bytes]
        heap = region.data[heap_at : heap_at + head.bytes]
        if len(heap) == head.bytes and crc32c(heap, crc32c(sizes)) == checksum:
            with suppress(MalformedPdu):
                yield run_of(head, sizes, heap)
