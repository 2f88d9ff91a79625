"""Sealing a segment, and writing one anew.

A sealed segment is never changed.  When records are put in that were missing, or a conference is
dropped, the segment is written anew beside the old one and takes its name; whoever reads the old
one goes on reading it.  Good blocks are copied as they are.  The head of the new one keeps the link
the original had in the hash chain (`origin`), so that the chain goes on behind it.  Bytes of the
old one that were damaged are copied aside first (`salvage`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

from msgspec import structs

from roundelay.core.errors import MalformedPdu
from roundelay.core.positions import Range
from roundelay.durable import ASIDE, Disk
from roundelay.journal.damage.salvage import link_aside, put_aside
from roundelay.journal.files import index_of, parquet_of
from roundelay.journal.format import (
    FILLED,
    GAP,
    NO_LINK,
    SEGMENT_HEAD,
    Head,
    Run,
    decode_block,
    encode_head,
    encode_parts,
    gap,
    head_only,
    part_of,
)
from roundelay.journal.index import Builder, Index, IndexHead, index_head
from roundelay.journal.segment import Segment, block_at

BLOCK_BYTES: Final = 1 << 20
GAP_RECORDS_MAX: Final = 1 << 31

Fetch = Callable[[int, int], Iterable[Run]]
"""Gives the records from one position up to another, as far as somebody has them."""


# ------------------------------------------------------------------------ sealing


def build(segment: Segment, before: bytes) -> Builder:
    """The index of a segment, from its blocks; MalformedPdu if one of them is damaged."""
    builder = Builder(before, segment.head.rewritten, segment.head.flags)
    at, expected = SEGMENT_HEAD.size, segment.base
    buffer = bytearray()
    with segment.path.open("rb") as file:
        while at < segment.size:
            head, data = block_at(file.fileno(), at, segment.size, segment.journal, buffer)
            if head.base != expected:
                raise MalformedPdu("block", f"at {head.base}, where {expected} should be")
            builder.add(at, head, data)
            at, expected = at + head.size, head.end
            del data  # so that the buffer can be enlarged
    return builder


def verify(segment: Segment) -> None:
    """Raise MalformedPdu unless every block is as it was written."""
    at, buffer = SEGMENT_HEAD.size, bytearray()
    with segment.path.open("rb") as file:
        while at < segment.size:
            at += block_at(file.fileno(), at, segment.size, segment.journal, buffer)[0].size


def make_durable(segment: Segment, disk: Disk) -> None:
    """Whoever wrote it may not have synced it."""
    with segment.path.open("rb") as file:
        disk.sync(file.fileno())


def seal(segment: Segment, before: bytes, disk: Disk) -> bytes:
    """Write the index: the segment will not change any more.  Returns its link."""
    if segment.head.apart:
        before = NO_LINK
    builder = build(segment, before)
    make_durable(segment, disk)  # an index must not outlive a power cut that its segment does not
    disk.put(index_of(segment.path), builder.encode())
    segment.learn(Index(index_of(segment.path)))
    return builder.link


def link_of(segment: Segment, segments: Sequence[Segment]) -> bytes | None:
    """The link the chain has for an original, from whoever still knows it."""
    if segment.head.filled:
        return None
    if segment.head.rewritten and not segment.head_wrong:
        return segment.head.origin
    head = index_head(segment.path)
    if head is not None and not head.rewritten:
        return head.link
    for other in segments:
        if other.head.anchor_base == segment.base and other.head.anchor != NO_LINK:
            return other.head.anchor
    later = (
        other.path for other in segments if other.base > segment.base and not other.head.filled
    )
    following = next(later, None)
    head = None if following is None else index_head(following)
    return None if head is None or head.rewritten else head.before


# ------------------------------------------------------------------------ writing


class SegmentWriter:
    """Writes a segment from end to end; nothing is synced before `finish`."""

    def __init__(self, path: Path, head: Head, disk: Disk, mode: int = os.O_TRUNC) -> None:
        self.path = path
        self._head = head
        self._disk = disk
        self.file = os.open(path, os.O_WRONLY | os.O_CREAT | mode, 0o600)
        self.size = SEGMENT_HEAD.size
        self._waiting: list[Run] = []
        self.waiting_bytes = 0
        self._put([encode_head(head)])

    def _put(self, parts: Sequence[bytes]) -> None:
        try:
            self._disk.write(self.file, parts)
        except OSError:
            os.close(self.file)
            self.file = -1
            raise

    def add(self, run: Run) -> None:
        while run.flags & GAP and run.records > GAP_RECORDS_MAX:
            self.add(gap(run.position, run.position + GAP_RECORDS_MAX, run.time))
            self.flush()
            run = part_of(run, run.position + GAP_RECORDS_MAX, run.end)
        self._waiting.append(run)
        self.waiting_bytes += len(run.bundle.data) + 64
        if self.waiting_bytes >= BLOCK_BYTES:
            self.flush()

    def flush(self) -> None:
        """What was added becomes a block."""
        runs, self._waiting, self.waiting_bytes = self._waiting, [], 0
        if runs:
            self._block(runs)

    def _block(self, runs: Sequence[Run]) -> None:
        written = max(run.time for run in runs)  # as old as they are, for retention
        parts, size = encode_parts(runs, self._head.journal, written)
        self._put(parts)
        self.size += size

    def copy(self, block: bytes) -> None:
        """A block as it is."""
        self.flush()
        self._put([block])
        self.size += len(block)

    def finish(self) -> None:
        try:
            self.flush()
            self._disk.sync(self.file)
        finally:
            if self.file >= 0:
                os.close(self.file)
                self.file = -1


class Filling(SegmentWriter):
    """Writes a segment that is filled in between others, and can be read meanwhile."""

    def __init__(self, path: Path, head: Head, disk: Disk) -> None:
        super().__init__(path, head, disk)
        self.segment = Segment(path, head.journal)
        self.end = head.base

    def add(self, run: Run) -> None:
        super().add(run)
        self.end = run.end

    def _block(self, runs: Sequence[Run]) -> None:
        at = self.size
        super()._block(runs)
        latest = max(self.segment.latest, *(run.time for run in runs))
        self.segment.note(at, runs[0].position, runs[-1].end, self.size - at, latest)
        self.segment.newest = latest

    def sync(self) -> None:
        self.flush()
        self._disk.sync(self.file)
        self._disk.sync_folder(self.path.parent)


def rewrite(
    segment: Segment,
    segments: Sequence[Segment],
    disk: Disk,
    fetch: Fetch = lambda lo, hi: (),
    *,
    drop: frozenset[int] = frozenset(),
    distrust: bool = False,
) -> tuple[Segment, list[Range]]:
    """Write a segment anew: what it lacks from `fetch`, without the payload of some conferences.

    With `distrust` nothing it has is taken over.  What nobody has becomes a gap.  Returns the
    segment and the positions that `fetch` had.
    """
    origin = link_of(segment, segments)
    head = structs.replace(
        segment.head,
        journal=segment.journal,
        base=segment.base,
        rewritten=segment.head.rewritten + 1,
        origin=origin or NO_LINK,
        flags=segment.head.flags | (FILLED if origin is None else 0),
    )
    restored: list[Range] = []
    aside = segment.path.with_name(segment.path.name + ASIDE)
    writer = SegmentWriter(aside, head, disk)
    at = segment.base

    def fill(lo: int, hi: int) -> None:
        for run in _without_holes(fetch(lo, hi), lo, hi):
            if not run.flags & GAP:
                restored.append((run.position, run.end))
            writer.add(_dropped(run, drop))

    with segment.view() as view:
        for entry in () if distrust else view.blocks:
            try:
                block, data = view.raw(entry)
                runs = decode_block(data, block)
            except MalformedPdu:
                continue  # it becomes part of the hole before the next one
            if block.base > at:
                fill(at, block.base)
            at = block.end
            if any(run.flags & GAP or run.conference in drop for run in runs):
                for run in runs:
                    if run.flags & GAP:
                        fill(run.position, run.end)
                    else:
                        writer.add(_dropped(run, drop))
            else:
                writer.copy(data)
    if at < segment.end:
        fill(at, segment.end)
    writer.finish()
    if distrust:
        link_aside(segment)
    else:
        put_aside(segment, disk)
    # A reader finds either the old pair or the new segment alone, never a pair that does not fit.
    index_of(segment.path).unlink(missing_ok=True)
    parquet_of(segment.path).unlink(missing_ok=True)
    os.replace(aside, segment.path)
    disk.sync_folder(segment.path.parent)
    new = Segment(segment.path, segment.journal)
    new.scan()
    seal(new, NO_LINK, disk)
    return new, restored


def _dropped(run: Run, drop: frozenset[int]) -> Run:
    return head_only(run) if run.conference in drop and not run.flags & GAP else run


def _without_holes(runs: Iterable[Run], lo: int, hi: int) -> Iterable[Run]:
    """The runs between `lo` and `hi`, in order, with gaps for what is not among them."""
    at = lo
    for run in runs:
        if run.end <= at or run.flags & GAP:
            continue
        if run.position >= hi:
            break
        if run.position > at:
            yield gap(at, run.position)
        part = part_of(run, max(at, run.position), hi)
        yield part
        at = part.end
    if at < hi:
        yield gap(at, hi)


def restore_head(segment: Segment, segments: Sequence[Segment], disk: Disk) -> Segment:
    """Write a damaged head again; nothing else was lost with it."""
    origin, known = link_of(segment, segments), index_head(segment.path) or IndexHead()
    head = Head(
        segment.journal,
        segment.base,
        origin=origin or NO_LINK if known.rewritten else NO_LINK,
        rewritten=known.rewritten,
        flags=known.flags,
    )
    with segment.path.open("r+b", buffering=0) as file:
        file.write(encode_head(head))
        disk.sync(file.fileno())
    return Segment(segment.path, segment.journal)
