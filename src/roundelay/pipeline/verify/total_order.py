"""A proof that a total order was kept: ranges of positions, each looked at by numpy in one task.

Nearly all ranges of nearly all traces are clean, and that is quickly seen without sorting or
searching anything: every site has the same positions without a hole, the same messages stand at
them, and those of a source are, one by one, what it submitted, in that order.  Each is one
comparison of arrays as they lie in the file.

A range knows nothing of the one before it, so it also says how it begins and ends: per site the
first and the last delivery, per source the first and last submission and number.  The driver lays
the ranges end to end.  Submissions are looked for in the row groups of the range and then
backwards from it, as far as `BACK_MESSAGES`.

The proof asks for more than was promised: no message may have an excuse.  What is not proved may
be right nevertheless; `verify.diagnosis` says so, or what is wrong.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Final

import numpy as np
from msgspec import Struct, field

from roundelay.pipeline.spark.executors import Mapper
from roundelay.pipeline.verify.columns import Array, Messages, RowGroups, joined, present
from roundelay.pipeline.verify.control import Control
from roundelay.pipeline.verify.runs import TracedRun
from roundelay.pipeline.verify.survey import LATER, NotClean, Place, Survey
from roundelay.pipeline.verify.verdict import Figures

BACK_MESSAGES: Final = 4_000_000
"""Submissions read in search of those of one range."""

Triple = tuple[int, int, int]


class Course(Struct):
    """How what one site delivered, or one source sent, begins and ends in a range."""

    first: Triple
    last: Triple


class PositionRange(Struct):
    """Positions lo…hi-1, the row groups that have them, and others with submissions.

    Of the latter (`back`) those come first that are likelier to have what the range delivers.
    """

    lo: int
    hi: int
    groups: list[Place]
    back: list[Place]


class RangeResult(Struct):
    """What a clean range says."""

    lo: int
    deliveries: int = 0
    own: int = 0
    """Deliveries of messages to the site that submitted them."""
    sites: dict[int, Course] = field(default_factory=dict)
    """Of each site: (position, place of the row, time)."""
    sources: dict[int, Course] = field(default_factory=dict)
    """Of each source: (key of the submission, number, where the bundle begins)."""


def prove_total(surveyed: Survey, mapper: Mapper, range_messages: int) -> Figures | None:
    """How much there is, if all of it is clean."""
    run, control = surveyed.run, surveyed.control
    if not control.plain or not control.lists_hold():
        return None
    ranges = [[positions] for positions in ranges_of(surveyed, range_messages)]
    results = mapper(ranges, lambda positions: look(run, control, positions), RangeResult)
    clean = [result for result in results if result is not None]
    if len(clean) < len(results) or not end_to_end(clean):
        return None
    own = sum(result.own for result in clean)
    if control.settled and own != surveyed.submits:
        return None
    positions = max((c.last[0] + 1 for r in clean for c in r.sites.values()), default=0)
    return Figures(sum(result.deliveries for result in clean), positions, own)


def ranges_of(surveyed: Survey, messages: int) -> list[PositionRange]:
    """Ranges of positions with about so many deliveries each, and where to read them."""
    groups = surveyed.groups
    with_some = sorted((g for g in groups if g.hi >= 0), key=lambda g: (g.lo, g.place))
    if not with_some:
        return []
    target = surveyed.of_task(messages)
    cuts, gathered = [with_some[0].lo], 0
    for group in with_some:
        if gathered >= target and group.lo > cuts[-1]:
            cuts.append(group.lo)
            gathered = 0
        gathered += group.deliveries
    cuts.append(LATER)
    with_submits = sorted((g for g in groups if g.submits), key=lambda g: -g.last_ns)
    ranges = []
    for lo, hi in pairwise(cuts):
        inside = [g for g in with_some if g.lo < hi and g.hi > lo]
        places = {g.place for g in inside}
        end = max(g.last_ns for g in inside)
        begins = dict(sorted(places, reverse=True))  # part → its first row group inside
        others = [g for g in with_submits if g.first_ns <= end and g.place not in places]
        # A message is submitted before it is delivered: what its file has before the range comes
        # first, the nearest of it foremost.
        others.sort(key=lambda g: g.number >= begins.get(g.part, LATER))
        ranges.append(PositionRange(lo, hi, sorted(places), [g.place for g in others]))
    return ranges


def goes_on(first: Triple, before: Triple) -> bool:
    """Whether a site's delivery (position, place of the row, time) can be the next one."""
    return first[0] == before[0] + 1 and first[1] >= before[1] and first[2] >= before[2]


def end_to_end(results: list[RangeResult]) -> bool:
    """Whether sites and sources go on in each range where they were in the one before."""
    sites: dict[int, Triple] = {}
    sources: dict[int, Triple] = {}
    for result in results:
        for site, course in result.sites.items():
            if not goes_on(course.first, sites.get(site, (-1, -1, -1))):
                return False
            sites[site] = course.last
        for source, course in result.sources.items():
            key, number, seq = course.first
            last_key, last_number, last_seq = sources.get(source, (-1, -1, -1))
            # A bundle may lie across the border.
            same_bundle = (number, seq) == (last_number, last_seq)
            if key <= last_key or (0 <= number <= last_number and not same_bundle):
                return False
            sources[source] = course.last
    return True


def look(run: TracedRun, control: Control, task: PositionRange) -> RangeResult | None:
    """What there is to say about a range if it is clean."""
    submissions = Submissions(run, task.back)
    by_site: dict[int, list[Messages]] = {}
    for submitted, delivered in submissions.files.messages(task.groups):
        submissions.add(submitted)
        for site, rows in _inside(delivered, task).by_site():
            by_site.setdefault(site, []).append(rows)
    result = RangeResult(task.lo)
    try:
        if by_site:
            canon = _compare_sites(result, by_site, run, control)
            _judge_sources(result, submissions, canon)
    except NotClean:
        return None
    return result


def _inside(rows: Messages, task: PositionRange) -> Messages:
    """What belongs to the range."""
    position = rows.position
    if not len(rows) or (position.min() >= task.lo and position.max() < task.hi):
        return rows
    return rows.of((position >= task.lo) & (position < task.hi))


def _compare_sites(
    result: RangeResult, by_site: dict[int, list[Messages]], run: TracedRun, control: Control
) -> Messages:
    """What stands at each position, the same at all sites; `time`: when it was first delivered."""
    lists = ListsInForce(control)
    first = next(iter(by_site))
    canon = joined(by_site[first])
    for site, chunks in by_site.items():
        for rows in chunks:
            position = rows.position
            _follow(result, site, rows, position)
            lists.take(site, position, rows.time)
            if site != first:
                canon = _laid_over(canon, rows)
    # In the end every site must have every position.
    spans = {(course.first[0], course.last[0]) for course in result.sites.values()}
    if control.settled and (set(result.sites) != set(run.users) or len(spans) > 1):
        raise NotClean
    lists.judge(canon)
    return canon


def _follow(result: RangeResult, site: int, rows: Messages, position: Array) -> None:
    """I1, I4: a site goes on where it was, in order."""
    time = rows.time
    if (position[1:] - position[:-1] != 1).any() or (time[1:] < time[:-1]).any():
        raise NotClean
    first, last = ends(position, rows.place, time)
    course = result.sites.setdefault(site, Course(first, first))
    if first != course.last and not goes_on(first, course.last):
        raise NotClean
    course.last = last
    result.deliveries += len(rows)
    result.own += int(np.count_nonzero(rows.source == site))


def _laid_over(canon: Messages, rows: Messages) -> Messages:
    """I1: what stands at a position is the same everywhere; some sites are further than others."""
    start = int(rows.seq[0] + rows.offset[0]) - int(canon.seq[0] + canon.offset[0])
    if not 0 <= start <= len(canon):
        raise NotClean
    known = len(canon) - start
    if known < len(rows):
        canon = joined([canon, rows.of(slice(known, None))])
    same = canon.of(slice(start, start + len(rows)))
    for name in ("fp", "source", "number", "seq"):
        if not np.array_equal(getattr(rows, name), getattr(same, name)):
            raise NotClean
    np.minimum(same.time, rows.time, out=same.time)
    return canon


class ListsInForce:
    """I3: whoever is first to commit behind the start of a list has that list in force."""

    def __init__(self, control: Control) -> None:
        self.starts, ranks = control.required()
        self.ranks = np.concatenate([[-1], ranks])
        self.held = {site: control.in_force(site) for site in control.users}
        self.late: list[tuple[Array, Array]] = []
        """Positions and times of deliveries by sites without the list that a first one needs."""

    def take(self, site: int, position: Array, time: Array) -> None:
        if not len(self.starts):
            return
        times, held = self.held[site]
        ranks = np.concatenate([[-1], held])
        # Lists only become newer: often a glance at both ends is enough.
        least = self.ranks[np.searchsorted(self.starts, position[-1], "right")]
        if ranks[np.searchsorted(times, time[0], "right")] >= least:
            return
        required = self.ranks[np.searchsorted(self.starts, position, "right")]
        late = ranks[np.searchsorted(times, time, "right")] < required
        self.late.append((position[late], time[late]))

    def judge(self, canon: Messages) -> None:
        """Somebody must have been sooner than those without the list."""
        for position, time in self.late:
            if (canon.time[position - canon.position[0]] >= time).any():
                raise NotClean


class Submissions:
    """What sources submitted, as far as it was read; more is read, backwards, when it is needed."""

    def __init__(self, run: TracedRun, back: list[Place]) -> None:
        self.files = RowGroups(run)
        self._back = list(back)
        self._by_source: dict[int, list[Messages]] = {}

    def add(self, rows: Messages) -> None:
        for source, mine in rows.by_site():
            self._by_source.setdefault(source, []).append(mine)

    def of(self, source: int) -> Messages:
        """In the order in which it submitted."""
        chunks = self._by_source.get(source, [])
        return joined(sorted(chunks, key=lambda chunk: int(chunk.place[0])))

    def find(self, source: int, fps: Array) -> Messages:
        """What the source submitted one after the other, if it is just these."""
        run, looked = self.files.run, 0
        while True:
            sent = self.of(source)
            starts = np.flatnonzero(sent.fp == fps[0])
            if len(starts) > 1:
                raise NotClean  # messages that are alike
            if len(starts) and len(sent) - starts[0] >= len(fps):
                break
            near = next((pair for pair in self._back if run.parts[pair[0]].may_have(source)), None)
            if near is None or looked > BACK_MESSAGES:
                raise NotClean
            self._back.remove(near)
            submitted, _ = self.files.open(*near).messages(run.users, deliveries=False)
            self.add(submitted)
            looked += run.parts[near[0]].rows[near[1]]
        stretch = sent.of(slice(starts[0], starts[0] + len(fps)))
        if not np.array_equal(stretch.fp, fps):
            raise NotClean
        return stretch


def _judge_sources(result: RangeResult, submissions: Submissions, canon: Messages) -> None:
    """I1, I4: what comes of a source is what it submitted, in that order, and not before."""
    for source in present(canon.source):
        rows = np.flatnonzero(canon.source == source)
        sent = submissions.find(source, canon.fp[rows])
        number, seq = canon.number[rows], canon.seq[rows]
        if (sent.time > canon.time[rows]).any():
            raise NotClean
        if not (number[1:] > number[:-1]).all() and _falls(number, seq):
            raise NotClean
        result.sources[source] = Course(*ends(sent.key, number, seq))


def _falls(number: Array, seq: Array) -> bool:
    """Whether a source's number is not above that of the bundle before it, somewhere."""
    again = (number[1:] == number[:-1]) & (seq[1:] != seq[:-1])
    return bool(((number[1:] >= 0) & ((number[1:] < number[:-1]) | again)).any())


def ends(*columns: Array) -> tuple[Triple, Triple]:
    """The first and the last row of three columns, as numbers."""
    first, last = (tuple(int(values[row]) for values in columns) for row in (0, -1))
    return first, last  # type: ignore[return-value]
