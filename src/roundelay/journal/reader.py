"""Reading a journal: all of it, or what a selection takes.

What is read was checked.  Where records are missing or damaged, the reader gets a run with the
flag GAP in their place, whatever it selects by: nobody here knows what was in them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final

from roundelay.core.errors import MalformedPdu
from roundelay.core.positions import Range, intersection, union
from roundelay.core.selection import EVERYTHING, POSITION_MAX, Selection
from roundelay.journal.files import reached, read_ends, read_meta, segments_of
from roundelay.journal.format import GAP, Run, RunFilter, gap, part_of
from roundelay.journal.segment import Segment, SegmentView

DENSE: Final = 8
"""A selection that takes more than one run in so many is read block by block."""


def filter_of(selection: Selection) -> RunFilter:
    """Which runs of a journal are given to whoever selects: those it takes, and every gap."""
    takes = selection.takes
    return lambda run: bool(run.flags & GAP) or takes(run)


class Reader:
    """A journal as anybody can read it; needs nobody's leave and disturbs nobody."""

    def __init__(self, folder: Path, segments: Sequence[Segment] | None = None) -> None:
        self.folder = folder
        self.meta = read_meta(folder)
        self.segments: list[Segment] = []
        self._mark = 0
        """Below it everything was on disk: if the segments end before it, the rest was lost."""
        self._first = POSITION_MAX
        """Where the journal ought to begin: if the segments begin behind it, some were lost."""
        if segments is None:
            self.refresh()
        else:
            self.segments = list(segments)

    def refresh(self) -> None:
        """Look what has come since."""
        known = {segment.path: segment for segment in self.segments}
        segments = []
        # Before the rest: it follows the records.  A damaged mark hides nothing but a lost end.
        self._mark = reached(self.folder)
        for path in segments_of(self.folder):
            segment = known.get(path)
            try:
                if segment is None or segment.replaced:
                    segment = Segment(path, self.meta.journal)
                    if not segment.load():
                        segment.scan()
                elif not segment.sealed and not segment.load():
                    segment.refresh()
            except FileNotFoundError:  # let go meanwhile
                continue
            segments.append(segment)
        self.segments = segments
        ends, _ = read_ends(self.folder)  # after the rest: what is let go is noted first
        if ends is not None:
            self._first = ends.first

    @property
    def begin(self) -> int:
        """Where the journal begins, or ought to."""
        return min(self._first, self.segments[0].base) if self.segments else 0

    @property
    def end(self) -> int:
        return max(self._mark, self._end_here)

    @property
    def _end_here(self) -> int:
        return self.segments[-1].end if self.segments else 0

    @property
    def _lost_before(self) -> list[Range]:
        return [(self.begin, self.segments[0].base)] if self.segments else []

    @property
    def missing(self) -> list[Range]:
        after = (self._end_here, self._mark)
        return union([*self._lost_before, *missing_of(self.segments), after])

    def close(self) -> None:
        self.segments = []

    def read(self, selection: Selection = EVERYTHING) -> Iterator[Run]:
        """The records that are selected, in order."""
        wanted = [(selection.since, selection.until)]
        for lo, hi in intersection(self._lost_before, wanted):
            yield gap(lo, hi)
        yield from read_segments(self.segments, selection)
        for lo, hi in intersection([(self._end_here, self._mark)], wanted):
            yield gap(lo, hi)


def missing_of(segments: Sequence[Segment]) -> list[Range]:
    """Positions between the first and the last that no segment has."""
    missing = [lost for segment in segments for lost in segment.missing]
    missing += [
        (before.end, after.base) for before, after in pairwise(segments) if before.end < after.base
    ]
    return union(missing)


def read_segments(segments: Sequence[Segment], selection: Selection) -> Iterator[Run]:
    """What is selected in these segments, in order."""
    since, until = selection.since, selection.until
    at = max(since, segments[0].base) if segments else since
    for segment in segments:
        if segment.end <= at:
            continue
        if at < segment.base and at < until:
            yield gap(at, min(segment.base, until))
            at = segment.base
        if segment.base >= until:
            break
        for run in _read(segment, selection):
            if run.position >= until:
                return
            first = at if run.flags & GAP else since  # gaps may be found twice
            if run.end > first:
                yield part_of(run, first, until)
                at = max(at, run.end)
        at = max(at, segment.end)


def _read(segment: Segment, selection: Selection) -> Iterator[Run]:
    try:
        view = segment.view()
    except FileNotFoundError:  # retention let it go while we read
        yield gap(segment.base, segment.end)
        return
    with view:
        if view.index is not None and selection.by_content:
            yield from _by_index(view, selection)
        else:
            takes = None if selection.everything else filter_of(selection)
            first, last = _blocks(view, selection)
            yield from view.read_runs(first, last, takes)


def _blocks(view: SegmentView, selection: Selection) -> tuple[int, int]:
    """The blocks that can hold something of the selection."""
    blocks = view.blocks
    count = len(blocks)
    if not count:
        return 0, 0
    first = blocks.holding(selection.since) if selection.since > view.base else 0
    last = count
    if selection.until < view.end:
        last = min(count, blocks.holding(selection.until - 1) + 1)
    if not view.gaps and not view.holes:
        # Gaps have no time of their own: with gaps about, no block is passed over.
        if selection.since_time > 0:
            first = max(first, blocks.from_time(selection.since_time))
        if selection.until_time < POSITION_MAX:
            last = min(last, blocks.until_time(selection.until_time))
    return first, max(first, last)


def _by_index(view: SegmentView, selection: Selection) -> Iterator[Run]:
    """Only the runs that the index names; where it is damaged, the blocks themselves."""
    index = view.index
    assert index is not None
    first, last = _blocks(view, selection)
    if first == last:
        return
    blocks = view.blocks
    from_run = blocks[first].runs_before
    to_run = blocks[last].runs_before if last < len(blocks) else index.head.runs
    takes = filter_of(selection)
    try:
        chosen = index.matching(selection.conferences, selection.senders, from_run, to_run)
    except MalformedPdu:
        chosen = None
    if chosen is None or len(chosen) * DENSE > to_run - from_run:
        yield from view.read_runs(first, last, takes)
        return
    holes = [gap(lo, hi) for lo, hi in reversed(view.gaps)]
    damaged = -1  # block that was read whole, because something in it was wrong
    for number in chosen:
        if damaged >= 0 and blocks.with_run(number) == damaged:
            continue
        try:
            run = view.read_run(number, takes)
            runs = [] if run is None else [run]
        except MalformedPdu:
            damaged = blocks.with_run(number)
            runs = view.read_block(damaged, takes)
        for run in runs:
            while holes and holes[-1].position < run.position:
                yield holes.pop()
            yield run
    yield from reversed(holes)
