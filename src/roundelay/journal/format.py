"""The bytes of a journal.

A journal is a folder of segments, `<position of the first record>.rjs`.  A segment is a head and
blocks; a block is what one commit brought.  All numbers are little-endian, all parts start at
multiples of 8 bytes::

    head of a segment, 96 bytes             block
    off  size  field                        off  size  field
      0     8  "RNDLJRN1"                     0     4  "RBLK"
      8     4  CRC-32C of the rest            4     4  size of the block, bytes
     12     4  format, 1                      8     4  CRC-32C of the rest
     16    16  id of the journal             12     4  number of runs
     32     8  position of the first record  16     8  position of the first record
     40     8  made when (ns since 1970)     24     4  number of records
     48    32  hash chain before it          28     4  bytes of the names
     80    16  zero                          32     8  committed when (ns since 1970)
                                             40    16  id of the journal
                                             56     8  zero
                                             64     …  names, runs, sizes, heap

    names   u16 length and UTF-8 of each, padded to 8
    runs    56 bytes each, see RUN
    sizes   u32 of each record, padded to 8
    heap    the records, end to end, padded to 8

A *run* is records that came together: same sender, conference, kind and time.  Positions are
dense: a run that is a gap stands for records this journal does not have, one without payload for
records whose heads alone were kept.

The hash chain is SHA-256 over the link before and the whole block; the links stand in
`<segment>.rjc`, 32 bytes each.  The checksum finds accidents, the chain finds everything else.
"""

from __future__ import annotations

import hashlib
import struct
from array import array
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Final

from crc32c import crc32c
from msgspec import Struct

from roundelay.core.bundle import Bundle
from roundelay.core.errors import MalformedPdu

SEGMENT_MAGIC: Final = b"RNDLJRN1"
BLOCK_MAGIC: Final = b"RBLK"
FORMAT: Final = 1
SEGMENT_HEAD: Final = struct.Struct("<8sII16sQQ32s16x")
BLOCK_HEAD: Final = struct.Struct("<4sIIIQIIQ16s8x")
RUN: Final = struct.Struct("<QQQIIIIIHH8x")
"""position, time, number, count, bytes, conference, kind, original bytes, sender, flags"""
ALIGN: Final = 8
LINK_BYTES: Final = 32
BLOCK_BYTES_MAX: Final = 256 << 20

HEADS_ONLY: Final = 1
"""The records were left out by a filter: who, when, how large is known, what is not."""
GAP: Final = 2
"""The records are missing."""


class Run(Struct, frozen=True, gc=False):
    """Records that came together."""

    position: int
    time: int
    sender: str
    bundle: Bundle
    conference: int = 0
    kind: int = 0
    number: int = -1
    """The sender's own number of the bundle, where it has one; -1 otherwise."""
    flags: int = 0
    count: int = 0
    """Records; 0 stands for those of the bundle."""

    @property
    def records(self) -> int:
        return self.count or len(self.bundle.sizes)

    @property
    def end(self) -> int:
        return self.position + self.records


class Head(Struct, frozen=True):
    """Of a segment."""

    journal: bytes
    base: int
    made: int
    chain: bytes


class BlockHead(Struct, frozen=True, gc=False):
    size: int
    checksum: int
    runs: int
    base: int
    count: int
    names_bytes: int
    written: int
    journal: bytes


def padded(size: int) -> int:
    return -(-size // ALIGN) * ALIGN


def encode_head(head: Head) -> bytes:
    rest = SEGMENT_HEAD.pack(
        SEGMENT_MAGIC, 0, FORMAT, head.journal, head.base, head.made, head.chain
    )[12:]
    return SEGMENT_MAGIC + struct.pack("<I", crc32c(rest)) + rest


def decode_head(data: bytes) -> Head:
    if len(data) < SEGMENT_HEAD.size:
        raise MalformedPdu("segment head", "short")
    magic, checksum, version, journal, base, made, chain = SEGMENT_HEAD.unpack_from(data)
    if magic != SEGMENT_MAGIC:
        raise MalformedPdu("segment head", "not a segment of a journal")
    if crc32c(data[12 : SEGMENT_HEAD.size]) != checksum:
        raise MalformedPdu("segment head", "checksum")
    if version != FORMAT:
        raise MalformedPdu("segment head", f"format {version}; this version reads {FORMAT}")
    return Head(journal, base, made, chain)


def encode_block(runs: Sequence[Run], journal: bytes, written: int) -> bytes:
    """One block; the runs must follow each other without a hole."""
    names: dict[str, int] = {}
    run_parts = []
    sizes = array("I")
    heap = []
    total = 0
    for run in runs:
        sender = names.setdefault(run.sender, len(names))
        bundle = run.bundle
        records = run.records
        whole = sum(bundle.sizes) if run.flags & HEADS_ONLY else len(bundle.data)
        run_parts.append(
            RUN.pack(
                run.position, run.time, run.number & 0xFFFFFFFFFFFFFFFF, records,
                len(bundle.data), run.conference, run.kind, whole & 0xFFFFFFFF, sender, run.flags,
            )
        )  # fmt: skip
        if not run.flags & GAP:
            sizes.extend(bundle.sizes)
        heap.append(bundle.data)
        total += records
    encoded = [name.encode() for name in names]
    table = b"".join(struct.pack("<H", len(name)) + name for name in encoded)
    pad = bytes(padded(len(table)) - len(table))
    size_bytes = sizes.tobytes()
    size_pad = bytes(padded(len(size_bytes)) - len(size_bytes))
    heap_bytes = sum(map(len, heap))
    heap_pad = bytes(padded(heap_bytes) - heap_bytes)
    size = (
        BLOCK_HEAD.size + len(table) + len(pad) + RUN.size * len(runs)
        + len(size_bytes) + len(size_pad) + heap_bytes + len(heap_pad)
    )  # fmt: skip
    head = BLOCK_HEAD.pack(
        BLOCK_MAGIC, size, 0, len(runs), runs[0].position, total, len(table), written, journal
    )
    rest = b"".join([head[12:], table, pad, *run_parts, size_bytes, size_pad, *heap, heap_pad])
    return head[:8] + struct.pack("<I", crc32c(rest)) + rest


def decode_block_head(data: bytes | memoryview, at: int = 0) -> BlockHead:
    """The head alone; nothing in it is to be believed before `check_block`."""
    if len(data) - at < BLOCK_HEAD.size:
        raise MalformedPdu("block", "short")
    magic, size, checksum, runs, base, count, names, written, journal = BLOCK_HEAD.unpack_from(
        data, at
    )
    if magic != BLOCK_MAGIC or size < BLOCK_HEAD.size or size % ALIGN or size > BLOCK_BYTES_MAX:
        raise MalformedPdu("block", "head")
    return BlockHead(size, checksum, runs, base, count, names, written, journal)


def check_block(data: bytes | memoryview, head: BlockHead) -> None:
    if len(data) != head.size:
        raise MalformedPdu("block", "short")
    if crc32c(data[12:]) != head.checksum:
        raise MalformedPdu("block", "checksum")


class RunHead(Struct, frozen=True, gc=False):
    """A run as it stands in a block, with where its parts are."""

    position: int
    time: int
    number: int
    count: int
    bytes: int
    conference: int
    kind: int
    sender: str
    flags: int
    sizes_at: int
    heap_at: int


def decode_runs(data: bytes | memoryview, head: BlockHead) -> list[RunHead]:
    """The runs of a checked block; offsets are relative to the block."""
    names = []
    at, end = BLOCK_HEAD.size, BLOCK_HEAD.size + head.names_bytes
    while at < end:
        (size,) = struct.unpack_from("<H", data, at)
        names.append(bytes(data[at + 2 : at + 2 + size]).decode())
        at += 2 + size
    runs_at = BLOCK_HEAD.size + padded(head.names_bytes)
    sizes_at = runs_at + RUN.size * head.runs
    entries = list(RUN.iter_unpack(data[runs_at:sizes_at]))
    sized = sum(entry[3] for entry in entries if not entry[9] & GAP)
    heap_at = sizes_at + padded(4 * sized)
    found = []
    for position, time, number, count, size, conference, kind, _, sender, flags in entries:
        signed = number - (1 << 64) if number >> 63 else number
        found.append(
            RunHead(
                position, time, signed, count, size, conference, kind, names[sender], flags,
                sizes_at, heap_at,
            )
        )  # fmt: skip
        if not flags & GAP:
            sizes_at += 4 * count
        heap_at += size
    return found


def run_of(head: RunHead, sizes: bytes | memoryview, heap: bytes) -> Run:
    table = array("I")
    table.frombytes(sizes)
    return Run(
        head.position, head.time, head.sender, Bundle(tuple(table), heap), head.conference,
        head.kind, head.number, head.flags, head.count,
    )  # fmt: skip


def decode_block(data: bytes | memoryview, head: BlockHead) -> list[Run]:
    """All runs of a checked block."""
    runs = []
    for one in decode_runs(data, head):
        sized = 0 if one.flags & GAP else 4 * one.count
        sizes = data[one.sizes_at : one.sizes_at + sized]
        runs.append(run_of(one, sizes, bytes(data[one.heap_at : one.heap_at + one.bytes])))
    return runs


def link(before: bytes, block: bytes | memoryview) -> bytes:
    """The next link of the hash chain."""
    digest = hashlib.sha256(before)
    digest.update(block)
    return digest.digest()


def part_of(run: Run, start: int, end: int) -> Run:
    """The records of `run` from position `start` up to, not including, `end`."""
    first, last = max(0, start - run.position), min(run.records, end - run.position)
    if first == 0 and last == run.records:
        return run
    if run.flags & GAP:
        bundle = run.bundle
    else:
        sizes = run.bundle.sizes[first:last]
        if run.flags & HEADS_ONLY:
            bundle = Bundle(sizes, b"")
        else:
            offsets = list(accumulate(run.bundle.sizes, initial=0))
            bundle = Bundle(sizes, run.bundle.data[offsets[first] : offsets[last]])
    return Run(
        run.position + first, run.time, run.sender, bundle, run.conference, run.kind, run.number,
        run.flags, last - first,
    )  # fmt: skip


def total(runs: Iterable[Run]) -> int:
    return sum(run.records for run in runs)
