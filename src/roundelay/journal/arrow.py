"""A journal as Arrow record batches: which pieces it has, and the rows of a piece.

    reader = Reader(folder)
    for piece in pieces(reader, selection):         # on one machine: what there is to read
        for batch in read_piece(piece, selection):  # on another: rows, columns as in Parquet
            ...

A `Piece` is positions `lo` up to `hi` of one segment and the bytes that hold them: small, without
open files, fit for being sent to another process that sees the same folder.  The pieces of a
journal do not overlap.  What the journal knows it lacks is `reader.missing` and in no piece.  What
turns out to be damaged while a piece is read is left out, and told in `lost`.

Blocks are decoded many at a time by numpy: no object per record, and none per run either.  Every
block's checksum is compared.  Anything that is not as expected (damage, a segment that was written
anew meanwhile) makes the rest of the piece be read by `roundelay.journal.reader`, which looks at
each block by itself and knows how to go on behind a bad one.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct, structs

from roundelay.core.errors import MalformedPdu
from roundelay.core.positions import Range
from roundelay.core.selection import EVERYTHING, POSITION_MAX, Selection
from roundelay.journal.files import parquet_of
from roundelay.journal.format import (
    BLOCK_BYTES_MAX,
    BLOCK_HEAD,
    GAP,
    HEADS_ONLY,
    RUN,
    UNIFORM,
    BlockHead,
    check_block,
    decode_block_head,
    decode_names,
    padded,
)
from roundelay.journal.index import BLOCK, index_beside
from roundelay.journal.parquet import ROWS, arrow, batch_of, grouped, numpy, rows_of
from roundelay.journal.reader import DENSE, Reader, read_segments
from roundelay.journal.segment import Segment

if TYPE_CHECKING:
    from numpy import int64
    from numpy.typing import NDArray

    Numbers = NDArray[int64]

np, pa = numpy(), arrow()

PIECE_BYTES: Final = 32 << 20
"""Of blocks; a segment that is larger becomes several pieces."""
CHUNK_BYTES: Final = 4 << 20
"""Read at a time."""

_RUN_FIELDS: Final = [
    ("position", "<u8"),
    ("time", "<u8"),
    ("number", "<i8"),
    ("count", "<u4"),
    ("bytes", "<u4"),
    ("conference", "<u4"),
    ("kind", "<u4"),
    ("sender", "<u2"),
    ("flags", "<u2"),
    ("padding", "V4"),
]
_BLOCK_FIELDS: Final = {
    "names": ["position", "offset", "size"],
    "formats": ["<u8", "<u4", "<u4"],
    "offsets": [0, 24, 28],
    "itemsize": BLOCK.size,
}

Block = tuple[int, BlockHead]
"""Where it is in the bytes that were read, and its head."""


class Piece(Struct, frozen=True):
    """Positions of a journal that are read together; `msgspec.json` writes and reads it."""

    folder: str
    journal: str
    """The journal's id, in hex."""
    group: str
    segment: str
    """Name of the file."""
    lo: int
    hi: int
    """Positions, half-open."""
    offset: int
    end_offset: int
    """Where in the file the blocks are that hold them."""
    sealed: bool = False
    earliest: int = 0
    latest: int = POSITION_MAX
    """No record is older or younger than this (ns since 1970), as far as is known."""
    parquet: bool = False
    """The whole segment stands beside it as Parquet: rows `lo` up to `hi` are the piece."""

    @property
    def bytes(self) -> int:
        return self.end_offset - self.offset

    @property
    def path(self) -> Path:
        return Path(self.folder) / self.segment


# ------------------------------------------------------------------------ what there is


def pieces(
    reader: Reader,
    selection: Selection = EVERYTHING,
    *,
    piece_bytes: int = PIECE_BYTES,
    overlap: bool = False,
) -> list[Piece]:
    """What of a journal can hold something of `selection`, by position, without an overlap.

    Nothing but indexes is read; whoever follows a journal keeps its reader and calls `refresh`.
    With `overlap`, positions that two segments claim (somebody copied files) are in two pieces.
    """
    pieces: list[Piece] = []
    at = selection.since
    for segment in reader.segments:
        lo, hi = max(at, segment.base), min(segment.end, selection.until)
        if lo >= hi:
            continue
        at = selection.since if overlap else hi
        if _can_hold(segment, selection):
            try:
                pieces += _of_segment(reader, segment, lo, hi, piece_bytes)
            except FileNotFoundError:  # retention let it go meanwhile
                continue
    return pieces


def _can_hold(segment: Segment, selection: Selection) -> bool:
    """May there be something of the selection in it, by what its index says?"""
    if not segment.sealed:
        return True
    if segment.latest < selection.since_time or segment.earliest >= selection.until_time:
        return False
    if not selection.by_content:
        return True
    index = index_beside(segment.path)
    if index is None:
        return True
    index.close()
    conferences, senders = selection.conferences, selection.senders
    return not (
        (conferences is not None and conferences.isdisjoint(index.conferences))
        or (senders is not None and senders.isdisjoint(index.senders))
    )


def _of_segment(
    reader: Reader, segment: Segment, lo: int, hi: int, piece_bytes: int
) -> Iterator[Piece]:
    with segment.view() as view:
        blocks, holes = view.blocks, dict(view.holes)
        if not len(blocks):
            return
        first, last = blocks.holding(lo), blocks.holding(hi - 1) + 1
        table = np.frombuffer(blocks.packed(), _BLOCK_FIELDS)[first:last]
        starts, sizes = table["offset"].astype(np.int64), table["size"].astype(np.int64)
        # A piece ends where it is large enough, and before bytes or positions that are lost.
        lost = starts[1:] != starts[:-1] + sizes[:-1]
        lost |= np.isin(table["position"][1:], list(holes.values()))
        full = np.diff((starts - starts[0]) // piece_bytes) > 0
        cuts = [0, *(np.flatnonzero(lost | full) + 1).tolist(), last - first]
        behind = {end: begin for begin, end in holes.items()}
        for start, stop in pairwise(cuts):
            end = view.end_of(first + stop - 1)
            piece = Piece(
                str(reader.folder),
                reader.meta.journal.hex(),
                reader.meta.group,
                segment.path.name,
                lo=max(lo, int(table["position"][start])),
                hi=min(hi, behind.get(end, end)),
                offset=int(starts[start]),
                end_offset=int(starts[stop - 1] + sizes[stop - 1]),
                sealed=segment.sealed,
                earliest=segment.earliest if segment.sealed else 0,
                latest=segment.latest if segment.sealed else POSITION_MAX,
                parquet=segment.sealed and parquet_of(segment.path).exists(),
            )
            if piece.lo < piece.hi:
                yield piece


# ------------------------------------------------------------------------ reading


def read_piece(
    piece: Piece, selection: Selection = EVERYTHING, *, lost: list[Range] | None = None
) -> Iterator[Any]:
    """The records of a piece that are selected, as Arrow record batches in the order of `seq`.

    Only records whose checksum is right.  Positions of the piece that are missing or damaged are
    appended to `lost`, half-open, by the time the last batch was given: whatever is selected by,
    for nobody knows what was in them.
    """
    if lost is None:
        lost = []
    at = max(piece.lo, selection.since)
    hi = min(piece.hi, selection.until)
    if at >= hi:
        return
    try:
        if piece.sealed and selection.by_content and _sparse(piece, selection):
            yield from _carefully(piece, at, hi, selection, lost)
            return
        with piece.path.open("rb") as file:
            rows = _Rows(piece, selection, lost)
            try:
                yield from rows.read(file.fileno(), at, hi)
                return
            except MalformedPdu:
                at = max(rows.done, at)
        yield from _carefully(piece, at, hi, selection, lost)
    except FileNotFoundError:  # retention let it go
        lost.append((at, hi))


def _sparse(piece: Piece, selection: Selection) -> bool:
    """Is so little selected that the index is the quicker way?"""
    index = index_beside(piece.path)
    if index is None:
        return False
    with index, suppress(MalformedPdu):
        chosen = index.matching(selection.conferences, selection.senders, 0, index.head.runs)
        return len(chosen) * DENSE <= index.head.runs
    return False


def _carefully(
    piece: Piece, lo: int, hi: int, selection: Selection, lost: list[Range]
) -> Iterator[Any]:
    """The same by way of runs: by the index where little is selected, or block by block."""
    segment = Segment(piece.path, bytes.fromhex(piece.journal))
    if not (selection.by_content and segment.load()):
        segment.scan()
    if segment.end < hi:
        lost.append((max(lo, segment.end), hi))
    wanted = structs.replace(selection, since=lo, until=hi)
    for runs in grouped(read_segments([segment], wanted), lost):
        yield batch_of(runs, piece.group)


class _Rows:
    """Blocks end to end, many of them to one batch."""

    def __init__(self, piece: Piece, selection: Selection, lost: list[Range]) -> None:
        self._piece = piece
        self._journal = bytes.fromhex(piece.journal)
        self._selection = selection
        self._lost = lost
        self._layout = np.dtype(_RUN_FIELDS)
        self._names: dict[str, int] = {}
        self._tables: dict[bytes, Numbers] = {}
        self.done = 0
        """Records below this position were given."""

    def read(self, file: int, lo: int, hi: int) -> Iterator[Any]:
        """All that is selected, or MalformedPdu where it has to be read with care."""
        at, end = self._piece.offset, self._piece.end_offset
        expected = -1
        while at < end and self.done < hi:
            data = os.pread(file, min(CHUNK_BYTES, end - at), at)
            if not data:
                raise MalformedPdu("block", "cut off")
            if len(data) >= BLOCK_HEAD.size:
                (size,) = struct.unpack_from("<I", data, 4)
                if len(data) < size <= min(BLOCK_BYTES_MAX, end - at):
                    data = os.pread(file, size, at)
            used = 0
            while used < len(data) and self.done < hi:
                blocks, stop = self._blocks(data, used, expected)
                if not blocks:
                    if used:
                        break  # the last one is not all in this chunk
                    raise MalformedPdu("block", "short")
                if expected < 0 and blocks[0][1].base > lo:
                    raise MalformedPdu("block", "positions")
                yield from self._batches(data, blocks, lo, hi)
                used = stop
                self.done = expected = blocks[-1][1].end
            at += used
        # Fewer records than there should be: it was written anew meanwhile.
        if self.done < hi:
            raise MalformedPdu("block", "count")

    def _blocks(self, data: bytes, at: int, expected: int) -> tuple[list[Block], int]:
        """Checked blocks from offset `at` on, about as many as make a batch; where they end."""
        blocks: list[Block] = []
        view = memoryview(data)
        rows, end = 0, len(data)
        while end - at >= BLOCK_HEAD.size and rows < ROWS:
            try:
                head = decode_block_head(view[at:])
                if at + head.size > end:
                    break
                check_block(view[at : at + head.size], head)
                runs_end = BLOCK_HEAD.size + padded(head.names_bytes) + RUN.size * head.runs
                expects = expected in (-1, head.base) and head.journal == self._journal
                if not expects or not head.runs or runs_end > head.size:
                    raise MalformedPdu("block", "not what was written")
            except MalformedPdu:
                if blocks:
                    break  # what is before it is good
                raise
            blocks.append((at, head))
            expected = head.end
            rows += head.count
            at += head.size
        return blocks, at

    def _senders(self, table: bytes) -> Numbers:
        """The names of one block, as numbers among all names."""
        known = self._tables.get(table)
        if known is None:
            names = decode_names(table, 0, len(table))
            numbers = [self._names.setdefault(name, len(self._names)) for name in names]
            known = self._tables[table] = np.array(numbers, np.int64)
        return known

    def _batches(self, data: bytes, blocks: list[Block], lo: int, hi: int) -> Iterator[Any]:
        view = memoryview(data)
        start = BLOCK_HEAD.size
        tables = [
            (at + start + padded(head.names_bytes), RUN.size * head.runs) for at, head in blocks
        ]
        runs = np.frombuffer(b"".join([view[at : at + size] for at, size in tables]), self._layout)
        per_block = np.array([head.runs for _, head in blocks])
        first = np.cumsum(per_block) - per_block
        of_block = np.repeat(np.arange(len(blocks)), per_block)
        counts, sizes = runs["count"].astype(np.int64), runs["bytes"].astype(np.int64)
        flags = runs["flags"]
        gaps, heads = (flags & GAP) != 0, (flags & HEADS_ONLY) != 0
        uniform = (flags & UNIFORM) != 0
        # Is it what a journal writes?  The checksum only says that it is what was written.
        before = np.cumsum(counts) - counts
        table_sizes = np.where(gaps | uniform, 0, counts)
        per_block_sized = np.add.reduceat(table_sizes, first)
        sizes_at = np.array([at + size for at, size in tables])
        heap_at = sizes_at + (4 * per_block_sized + 7) // 8 * 8
        heap_bytes = np.add.reduceat(sizes, first)
        records = np.array([head.count for _, head in blocks])
        ends = np.array([at + head.size for at, head in blocks])
        sound = (
            (counts > 0).all()
            and (runs["position"] == blocks[0][1].base + before.astype(np.uint64)).all()
            and (np.add.reduceat(counts, first) == records).all()
            and not sizes[gaps | heads].any()
            and (sizes[uniform] > 0).all()
            and not (sizes[uniform] % counts[uniform]).any()
            and (heap_at + heap_bytes <= ends).all()
        )
        if not sound:
            raise MalformedPdu("block", "not what a journal writes")
        missing = zip(runs["position"][gaps].tolist(), counts[gaps].tolist(), strict=True)
        names = [
            self._senders(data[at + start : at + start + head.names_bytes]) for at, head in blocks
        ]
        known = np.array([len(numbers) for numbers in names])
        if (runs["sender"] >= known[of_block]).any():
            raise MalformedPdu("block", "senders")
        senders = np.concatenate(names)[(np.cumsum(known) - known)[of_block] + runs["sender"]]
        chosen = self._chosen(runs, senders, gaps)
        if chosen.all():
            heaps = [
                view[a : a + n] for a, n in zip(heap_at.tolist(), heap_bytes.tolist(), strict=True)
            ]
            tables_ = zip(sizes_at.tolist(), per_block_sized.tolist(), strict=True)
        else:
            offset = np.cumsum(sizes) - sizes
            heap = (heap_at[of_block] + offset - offset[first][of_block])[chosen]
            heaps = [
                view[a : a + n] for a, n in zip(heap.tolist(), sizes[chosen].tolist(), strict=True)
            ]
            offset = np.cumsum(table_sizes) - table_sizes
            sized_at = (sizes_at[of_block] + 4 * (offset - offset[first][of_block]))[chosen]
            tables_ = zip(sized_at.tolist(), table_sizes[chosen].tolist(), strict=True)
            runs, senders = runs[chosen], senders[chosen]
        sized = np.frombuffer(b"".join([view[a : a + 4 * n] for a, n in tables_ if n]), "<u4")
        batch = self._batch(runs, senders, sized, b"".join(heaps))
        for at, records in missing:
            if at < hi and at + records > lo:
                self._lost.append((max(at, lo), min(at + records, hi)))
        yield from self._sliced(batch, lo, hi)

    def _chosen(self, runs: Any, senders: Any, gaps: Any) -> Any:
        selection = self._selection
        chosen = ~gaps
        if selection.everything:
            return chosen
        if selection.conferences is not None:
            chosen &= np.isin(runs["conference"], list(selection.conferences))
        if selection.kinds is not None:
            chosen &= np.isin(runs["kind"], list(selection.kinds))
        if selection.senders is not None:
            numbers = [self._names[name] for name in selection.senders if name in self._names]
            chosen &= np.isin(senders, numbers)
        times = runs["time"]
        return chosen & (times >= selection.since_time) & (times < selection.until_time)

    def _batch(self, runs: Any, senders: Any, sized: Any, heap: bytes) -> Any:
        """Rows from runs: what a run says once is said for each of its records."""
        counts, sizes = runs["count"].astype(np.int64), runs["bytes"].astype(np.int64)
        heads, uniform = (runs["flags"] & HEADS_ONLY) != 0, (runs["flags"] & UNIFORM) != 0
        before = np.cumsum(counts) - counts
        each = np.repeat(np.where(uniform, sizes // counts, 0), counts)
        if len(sized):
            each[np.repeat(~uniform, counts)] = sized
            wrong = np.add.reduceat(each, before) != sizes
            if (wrong & ~heads).any():
                raise MalformedPdu("block", "sizes")
            if heads.any():
                each[np.repeat(heads, counts)] = 0
        offsets = np.zeros(len(each) + 1, np.int32)
        np.cumsum(each, out=offsets[1:])
        columns = {
            "seq": runs["position"].astype(np.int64) - before,
            "time": (runs["time"] // 1000).astype(np.int64),
            "sender": senders,
            "conference": runs["conference"].astype(np.int64),
            "kind": runs["kind"].astype(np.int64),
            "head": heads,
        }

        def expanded(values: Any) -> Any:
            return pa.array(np.repeat(values, counts))

        rows, places = np.arange(len(each)), pa.py_buffer(offsets)
        return rows_of(self._piece.group, list(self._names), columns, expanded, rows, places, heap)

    def _sliced(self, batch: Any, lo: int, hi: int) -> Iterator[Any]:
        """The rows between two positions, in batches that are not too large."""
        seqs = batch.column(1).to_numpy()
        first, last = np.searchsorted(seqs, [lo, hi]).tolist()
        for row in range(first, last, ROWS):
            yield batch.slice(row, min(ROWS, last - row))
