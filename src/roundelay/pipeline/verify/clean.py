"""The first look at a range of positions: is everything in it as it should be?

Nearly all ranges of nearly all traces are clean, and that is quickly seen without sorting or
searching anything: every site has the same positions without a hole, the same messages stand at
them, and those of a source are, one by one, what it submitted, in that order.  Each is one
comparison of arrays as they lie in the file.

`judge_clean` returns what `positions.judge_range` would return for such a range, or None:
then that one looks closer.  It never says that something is wrong.
"""

from __future__ import annotations

import numpy as np

from roundelay.pipeline.verify.columns import Array, Messages, RowGroups, joined, present
from roundelay.pipeline.verify.control import Control
from roundelay.pipeline.verify.positions import (
    BACK_MESSAGES,
    NumberSpan,
    PositionRange,
    RangeResult,
    SiteSpan,
    SourceSpan,
    ends,
    falling_numbers,
    judge_commits,
)
from roundelay.pipeline.verify.runs import TracedRun


class NotClean(Exception):
    """Something is not as it is in a clean trace."""


def judge_clean(run: TracedRun, control: Control, task: PositionRange) -> RangeResult | None:
    """What there is to say about a range if it is clean."""
    starts, _ = control.required()
    lists_change = bool(((starts > task.lo) & (starts < task.hi)).any())
    submissions = Submissions(run, task.back)
    sites = SiteComparison(run, control, lists_change)
    result = RangeResult(task.lo)
    try:
        for submitted, delivered in submissions.files.messages(task.groups):
            submissions.add(submitted)
            for site, rows in _inside(delivered, task).by_site():
                sites.take(site, rows)
        if sites.chunks:
            sites.finish(result)
            _judge_commits(control, result, sites)
            _judge_sources(control, result, submissions, sites.canon)
    except NotClean:
        return None
    return result


def _inside(rows: Messages, task: PositionRange) -> Messages:
    """What belongs to the range."""
    position = rows.position
    if not len(rows) or (position.min() >= task.lo and position.max() < task.hi):
        return rows
    return rows.of((position >= task.lo) & (position < task.hi))


class SiteComparison:
    """The deliveries of all sites, laid against those of one of them, chunk by chunk.

    Where sites have files of their own, that of the first is read before the others, and their
    chunks are compared as they come; otherwise they wait until the first site's are complete.
    """

    def __init__(self, run: TracedRun, control: Control, named: bool) -> None:
        self.run, self.control = run, control
        self.named = named
        """Whether it matters who delivered a position first."""
        self.chunks: list[Messages] = []  # of the first site
        self.waiting: list[tuple[int, Messages]] = []
        self.first = -1
        self.canon = joined([])
        """What stands at each position; `time`: when it was first delivered."""
        self.who = self.moment = np.zeros(0, np.int64)
        self.spans: dict[int, SiteSpan] = {}
        self.one_by_one = run.apart and all(part.low == part.high for part in run.parts)

    def take(self, site: int, rows: Messages) -> None:
        """Compare some deliveries of a site."""
        if not self.chunks:
            self.first = site
        if site == self.first:
            if len(self.canon):
                raise NotClean
            self._follow(site, rows)
            self.chunks.append(rows)
        elif self.one_by_one:
            self._complete()
            self._compare(site, rows)
        else:
            self.waiting.append((site, rows))

    def finish(self, result: RangeResult) -> None:
        """All is there: every site must have every position."""
        self._complete()
        for site, rows in self.waiting:
            self._compare(site, rows)
        begin, end = (self.spans[self.first].first[0], self.spans[self.first].last[0])
        if set(self.spans) != set(self.run.users):
            raise NotClean
        for site in self.run.users:
            span = self.spans[site]
            if (span.first[0], span.last[0]) != (begin, end):
                raise NotClean
            at = 2 if self.run.apart else 1
            first, last = self.control.life(site, np.array([span.first[at], span.last[at]]))
            if first != last:
                raise NotClean
            span.life = int(first)
            result.sites.append(span)
            result.deliveries += span.count
        result.positions = end + 1 - begin

    def _complete(self) -> None:
        """The first site is through."""
        if len(self.canon):
            return
        self.canon = joined(self.chunks)
        self.moment = self.run.moments(self.canon)
        if self.named:
            self.who = np.full(len(self.moment), self.first)

    def _follow(self, site: int, rows: Messages) -> None:
        """I1, I4: a site goes on where it was, in order."""
        position, time = rows.position, rows.time
        if (position[1:] - position[:-1] != 1).any() or (time[1:] < time[:-1]).any():
            raise NotClean
        first, last = ends(position, rows.place, time)
        span = self.spans.setdefault(site, SiteSpan(site, 0, first, first, 0))
        if span.count and (
            first[0] != span.last[0] + 1 or first[1] < span.last[1] or first[2] < span.last[2]
        ):
            raise NotClean
        span.last = last
        span.count += len(rows)

    def _compare(self, site: int, rows: Messages) -> None:
        """I1: what stands at a position is the same everywhere."""
        self._follow(site, rows)
        start = int(rows.position[0]) - self.spans[self.first].first[0]
        if start < 0:
            raise NotClean
        here = slice(start, start + len(rows))
        canon = self.canon.of(here)
        for name in ("fp", "source", "number", "seq"):
            if not np.array_equal(getattr(rows, name), getattr(canon, name)):
                raise NotClean
        if self.run.apart and not self.named:
            np.minimum(canon.time, rows.time, out=canon.time)
            return
        mine, moment = self.run.moments(rows), self.moment[here]
        sooner = mine < moment
        if self.named:
            who = self.who[here]
            sooner |= (mine == moment) & (site < who)
            who[sooner] = site
        moment[sooner] = mine[sooner]
        canon.time[sooner] = rows.time[sooner]


def _judge_commits(control: Control, result: RangeResult, sites: SiteComparison) -> None:
    """I3: whoever is first to commit behind the start of a list has that list in force."""
    starts, ranks = control.required()
    position, when = sites.canon.position, sites.canon.time
    if not len(starts):
        return
    if sites.named:
        judge_commits(control, result, sites.who, when, position)
        if result.counts:
            raise NotClean
        return
    now = int(np.searchsorted(starts, position[0], "right")) - 1
    if now >= 0 and not _in_force(control, int(when.min()), int(ranks[now])):
        raise NotClean


def _in_force(control: Control, since: int, least: int) -> bool:
    """Whether all sites have that list, or a newer one, all the time from `since` on."""
    for site in control.sites:
        when, newest = control.in_force(site)
        step = int(np.searchsorted(when, since, "right")) - 1
        if step < 0 or (newest[step:] < least).any():
            return False
    return True


class Submissions:
    """What sources submitted, as far as it was read; more is read, backwards, when it is needed."""

    def __init__(self, run: TracedRun, back: list[tuple[int, int]]) -> None:
        self.files = RowGroups(run)
        self._back = list(back)
        self._by_source: dict[int, list[Messages]] = {}

    def add(self, rows: Messages) -> None:
        for source, mine in rows.by_site():
            self._by_source.setdefault(source, []).append(mine)

    def of(self, source: int) -> Messages:
        """In the order in which it submitted."""
        chunks = sorted(self._by_source.get(source, []), key=lambda chunk: int(chunk.place[0]))
        self._by_source[source] = [joined(chunks)] if chunks else []
        return joined(self._by_source[source])

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
            near = next((one for one in self._back if run.parts[one[0]].may_have(source)), None)
            if near is None or looked > BACK_MESSAGES:
                raise NotClean
            self._back.remove(near)
            for submitted, _ in self.files.messages([near], deliveries=False):
                self.add(submitted)
            looked += run.parts[near[0]].rows[near[1]]
        found = sent.of(slice(starts[0], starts[0] + len(fps)))
        if not np.array_equal(found.fp, fps):
            raise NotClean
        return found


def _judge_sources(
    control: Control, result: RangeResult, submissions: Submissions, canon: Messages
) -> None:
    """I1, I4: what comes of a source is what it submitted, in that order, and not before."""
    run, position = submissions.files.run, canon.position
    for source in present(canon.source):
        rows = np.flatnonzero(canon.source == source)
        fps, times = canon.fp[rows], canon.time[rows]
        sent = submissions.find(source, fps)
        if (sent.time > times).any():
            raise NotClean
        sent = sent.of(np.array([0, len(sent) - 1]))
        first, last = control.own_life(source, run.moments(sent))
        if first != last:
            raise NotClean
        border = rows[[0, -1]]
        low, high = ends(sent.key, position[border], canon.fp[border])
        result.sources.append(SourceSpan(source, int(first), low, high))
        number, seq = canon.number[rows], canon.seq[rows]
        if not (number[1:] > number[:-1]).all() and len(falling_numbers(number, seq)):
            raise NotClean
        result.numbers.append(NumberSpan(source, *ends(number, seq, times)))
        if control.settled and source in control.up and first == control.last_own_life(source):
            result.own[source] = len(rows)
