"""The bytes of a journal.

A journal is a folder of segments, `<position of the first record>.rjs`.  A segment is a head and
blocks; a block is what one commit brought.  All numbers are little-endian, all parts start at
multiples of 8 bytes::

    head of a segment, 128 bytes            block
    off  size  field                        off  size  field
      0     8  "RNDLJRN1"                     0     4  "RBLK"
      8     4  CRC-32C of the rest            4     4  size of the block, bytes
     12     4  format, 1                      8     4  CRC-32C of the rest
     16    16  id of the journal             12     4  number of runs
     32     8  position of the first record  16     8  position of the first record
     40     8  made when (ns since 1970)     24     4  number of records
     48     8  anchor: which segment         28     4  bytes of the names
     56    32  anchor: its link              32     8  committed when (ns since 1970)
     88    32  link the original had         40    16  id of the journal
    120     4  how often rewritten           56     8  all below this was durable by then
    124     4  flags: 1 filled in later      64     …  names, runs, sizes, heap

    names   u16 length and UTF-8 of each, padded to 8
    runs    48 bytes each, see RUN
    sizes   u32 of each record of the runs that are not uniform, padded to 8
    heap    the records, end to end, padded to 8

A *run* is records that came together: same sender, conference, kind and time.  Positions are
dense: a run that is a gap stands for records this journal does not have, one without payload for
records whose heads alone were kept.

The hash chain is SHA-256: the link of a segment is the hash of the link before it and of all its
blocks.  It stands in the segment's index, and as *anchor* in the head of the segment that was
begun next after it was known.  A segment that was rewritten (repaired, or a conference dropped)
has other bytes than the chain goes over; its head keeps the link the original had.  The checksum
finds accidents, the chain finds everything else.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from crc32c import crc32c
from msgspec import Struct, structs

from roundelay.core.bundle import MANY, NOTHING, Bundle, equal_sizes
from roundelay.core.errors import ConfigError, MalformedPdu

SEGMENT_MAGIC: Final = b"RNDLJRN1"
BLOCK_MAGIC: Final = b"RBLK"
FORMAT: Final = 1
SEGMENT_HEAD: Final = struct.Struct("<8sII16sQQQ32s32sII")
BLOCK_HEAD: Final = struct.Struct("<4sIIIQIIQ16sQ")
RUN: Final = struct.Struct("<QQqIIIIHH4x")
"""position, time, number, count, bytes, conference, kind, sender, flags"""
ALIGN: Final = 8
LINK_BYTES: Final = 32
NO_LINK: Final = bytes(LINK_BYTES)
BLOCK_BYTES_MAX: Final = 256 << 20
NAMES_MAX: Final = 1 << 16

HEADS_ONLY: Final = 1
"""The records were left out by a filter: who, when, how large is known, what is not."""
GAP: Final = 2
"""The records are missing."""
UNIFORM: Final = 4
"""In the file: all records have the same size, which is not 0; there is no table of sizes."""

FILLED: Final = 1
"""Flag of a segment: put in later, from another recorder; the chain goes past it."""


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
    made: int = 0
    anchor_base: int = 0
    anchor: bytes = NO_LINK
    """Link of the segment that begins at `anchor_base`; zeros: none was known."""
    origin: bytes = NO_LINK
    rewritten: int = 0
    flags: int = 0

    @property
    def filled(self) -> bool:
        return bool(self.flags & FILLED)

    @property
    def apart(self) -> bool:
        """Does the chain go past it?"""
        return self.filled or self.rewritten > 0


class BlockHead(Struct, frozen=True, gc=False):
    """Of a block; nothing in it is to be believed before `check_block`."""

    size: int
    checksum: int
    runs: int
    base: int
    count: int
    names_bytes: int
    written: int
    journal: bytes
    durable: int

    @property
    def end(self) -> int:
        return self.base + self.count


def padded(size: int) -> int:
    return -(-size // ALIGN) * ALIGN


def gap(lo: int, hi: int, time: int = 0) -> Run:
    """A run that stands for records which are not there."""
    return Run(lo, time, "", NOTHING, flags=GAP, count=hi - lo)


def head_only(run: Run) -> Run:
    """`run` without its payload."""
    if run.flags & (HEADS_ONLY | GAP):
        return run
    bundle, flags = Bundle(run.bundle.sizes, b""), run.flags | HEADS_ONLY
    return structs.replace(run, bundle=bundle, flags=flags, count=run.records)


def encode_head(head: Head) -> bytes:
    rest = SEGMENT_HEAD.pack(SEGMENT_MAGIC, 0, FORMAT, *structs.astuple(head))[12:]
    return SEGMENT_MAGIC + struct.pack("<I", crc32c(rest)) + rest


def decode_head(data: bytes) -> Head:
    if len(data) < SEGMENT_HEAD.size:
        raise MalformedPdu("segment head", "short")
    magic, checksum, version, *fields = SEGMENT_HEAD.unpack_from(data)
    if magic != SEGMENT_MAGIC:
        raise MalformedPdu("segment head", "not a segment of a journal")
    if crc32c(data[12 : SEGMENT_HEAD.size]) != checksum:
        raise MalformedPdu("segment head", "checksum")
    if version != FORMAT:
        raise MalformedPdu("segment head", f"format {version}; this version reads {FORMAT}")
    return Head(*fields)


def encode_parts(
    runs: Sequence[Run], journal: bytes, written: int, durable: int = 0
) -> tuple[list[bytes], int]:
    """One block as byte strings to be written end to end, and its size.

    The runs must be in order, and in a segment without a hole.  Payloads are not copied.
    """
    names: dict[str, int] = {}
    tables = []
    sizes = array("I")
    heap = []
    total = heap_bytes = 0
    pack = RUN.pack
    for run in runs:
        bundle, flags = run.bundle, run.flags & (HEADS_ONLY | GAP)
        data, table = bundle.data, bundle.sizes
        count = run.count or len(table)
        if flags:
            data = b""
            if not flags & GAP:
                sizes.extend(table)
        else:
            # As `Bundle.uniform`, without the calls: this is where appending spends its time.
            first = table[0]
            if (
                first
                and first * count == len(data)
                and (
                    (count >= MANY and table is equal_sizes(first, count))
                    or table.count(first) == count
                )
            ):
                flags = UNIFORM
            else:
                sizes.extend(table)
            heap.append(data)
        name = run.sender
        sender = names.get(name)
        if sender is None:
            sender = names[name] = len(names)
        size = len(data)
        sender &= 0xFFFF
        packed = pack(
            run.position, run.time, run.number, count, size, run.conference, run.kind, sender, flags
        )
        tables.append(packed)
        total += count
        heap_bytes += size
    named = encode_names(names)
    size_bytes = sizes.tobytes()
    small = b"".join(
        [named, bytes(-len(named) % ALIGN), *tables, size_bytes, bytes(-len(size_bytes) % ALIGN)]
    )
    if len(names) > NAMES_MAX:
        raise ConfigError("block", f"{len(names)} senders", f"at most {NAMES_MAX} in one commit")
    heap_pad = -heap_bytes % ALIGN
    if heap_pad:
        heap.append(bytes(heap_pad))
    size = BLOCK_HEAD.size + len(small) + heap_bytes + heap_pad
    if size > BLOCK_BYTES_MAX:
        raise ConfigError("block", f"{size} bytes", f"at most {BLOCK_BYTES_MAX} in one commit")
    base = runs[0].position
    head = BLOCK_HEAD.pack(
        BLOCK_MAGIC, size, 0, len(runs), base, total, len(named), written, journal, durable
    )
    checksum = crc32c(small, crc32c(head[12:]))
    for part in heap:
        checksum = crc32c(part, checksum)
    return [head[:8] + struct.pack("<I", checksum) + head[12:] + small, *heap], size


def encode_block(runs: Sequence[Run], journal: bytes, written: int, durable: int = 0) -> bytes:
    """One block; the runs must be in order, and in a segment without a hole."""
    return b"".join(encode_parts(runs, journal, written, durable)[0])


def decode_block_head(data: bytes | memoryview) -> BlockHead:
    if len(data) < BLOCK_HEAD.size:
        raise MalformedPdu("block", "short")
    magic, size, *rest = BLOCK_HEAD.unpack_from(data)
    if magic != BLOCK_MAGIC or size < BLOCK_HEAD.size or size % ALIGN or size > BLOCK_BYTES_MAX:
        raise MalformedPdu("block", "head")
    return BlockHead(size, *rest)


def check_block(data: bytes | memoryview, head: BlockHead) -> None:
    if len(data) != head.size:
        raise MalformedPdu("block", "short")
    if crc32c(memoryview(data)[12:]) != head.checksum:
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

    @property
    def sizes_bytes(self) -> int:
        return 0 if self.flags & (GAP | UNIFORM) else 4 * self.count


def run_heads(data: bytes | memoryview, head: BlockHead) -> Iterator[RunHead]:
    """The runs of a checked block; offsets are relative to the block.

    A block with a right checksum can still come from somebody who means ill: nothing here
    allocates more than the block has bytes for.
    """
    names = decode_names(data, BLOCK_HEAD.size, BLOCK_HEAD.size + head.names_bytes)
    runs_at = BLOCK_HEAD.size + padded(head.names_bytes)
    sizes_at = runs_at + RUN.size * head.runs
    if sizes_at > head.size:
        raise MalformedPdu("block", "more runs than bytes")
    entries = list(RUN.iter_unpack(memoryview(data)[runs_at:sizes_at]))
    sized = sum([entry[3] for entry in entries if not entry[8] & (GAP | UNIFORM)])
    heap_at = sizes_at + padded(4 * sized)
    expected, total = head.base, 0
    for position, time, number, count, size, conference, kind, sender, flags in entries:
        if position < expected or not count:
            raise MalformedPdu("block", "positions")
        if (flags & UNIFORM and (not size or size % count)) or (
            flags & (GAP | HEADS_ONLY) and size
        ):
            raise MalformedPdu("block", "sizes")
        if heap_at + size > head.size:
            raise MalformedPdu("block", "more records than bytes")
        if sender >= len(names):
            raise MalformedPdu("block", "senders")
        name = names[sender]
        yield RunHead(
            position, time, number, count, size, conference, kind, name, flags, sizes_at, heap_at
        )
        if not flags & (GAP | UNIFORM):
            sizes_at += 4 * count
        heap_at += size
        expected = position + count
        total += count
    if total != head.count:
        raise MalformedPdu("block", "count")


def encode_names(names: Iterable[str]) -> bytes:
    return b"".join([struct.pack("<H", len(name)) + name for name in map(str.encode, names)])


def decode_names(data: bytes | memoryview, at: int, end: int, most: int = NAMES_MAX) -> list[str]:
    names: list[str] = []
    try:
        while at < end and len(names) < most:
            (size,) = struct.unpack_from("<H", data, at)
            names.append(str(data[at + 2 : at + 2 + size], "utf-8"))
            at += 2 + size
    except (struct.error, UnicodeDecodeError) as error:
        raise MalformedPdu("block", str(error)) from None
    return names


def run_of(head: RunHead, sizes: bytes | memoryview, heap: bytes) -> Run:
    """A run from its head and its parts."""
    flags = head.flags
    if flags & UNIFORM:
        bundle = Bundle((head.bytes // head.count,) * head.count, heap)
        flags &= ~UNIFORM
    elif flags & GAP:
        bundle = NOTHING
    else:
        table = array("I")
        table.frombytes(sizes)
        bundle = Bundle(tuple(table), heap)
        if not flags & HEADS_ONLY and sum(table) != len(heap):
            raise MalformedPdu("block", "sizes")
    conference, kind, number = head.conference, head.kind, head.number
    return Run(
        head.position, head.time, head.sender, bundle, conference, kind, number, flags, head.count
    )


RunFilter = Callable[[RunHead], bool]


def decode_block(
    data: bytes | memoryview, head: BlockHead, takes: RunFilter | None = None
) -> list[Run]:
    """The runs of a checked block, all or those that `takes` takes."""
    runs = []
    for run in run_heads(data, head):
        if takes is None or takes(run):
            sizes = data[run.sizes_at : run.sizes_at + run.sizes_bytes]
            runs.append(run_of(run, sizes, bytes(data[run.heap_at : run.heap_at + run.bytes])))
    return runs


def gathered(runs: Iterable[Run], size: int) -> Iterator[list[Run]]:
    """The runs in order, about `size` bytes of a block in each list."""
    together: list[Run] = []
    here = 0
    for run in runs:
        together.append(run)
        here += len(run.bundle.data) + 4 * len(run.bundle.sizes) + 64
        if here >= size:
            yield together
            together, here = [], 0
    if together:
        yield together


def part_of(run: Run, start: int, end: int) -> Run:
    """The records of `run` from position `start` up to, not including, `end`."""
    first, last = max(0, start - run.position), min(run.records, end - run.position)
    if first == 0 and last == run.records:
        return run
    bundle = run.bundle if run.flags & GAP else run.bundle.part(first, last)
    return structs.replace(run, position=run.position + first, bundle=bundle, count=last - first)
