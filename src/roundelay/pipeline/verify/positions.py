"""The fast judge of total order: one range of positions, by numpy, in one task.

What every site delivered at the positions lo…hi-1 is laid side by side.  In a clean trace each
site has all of them in the order of its rows, all sites have the same messages there, and the
messages of a source come in the order in which it submitted them; each of these is one comparison
of arrays.  Only where one fails is looked closer.

A range knows nothing of the one before it, so it also says how it begins and ends: per site the
first and the last position with their places in the file, per source the first and last submission
and number.  `verify.fast` lays the ranges end to end.  Submissions are looked for in the row
groups of the range and then backwards from it, as far as `BACK_MESSAGES`; whatever is not found
there is handed back by its fingerprint, for a search in the whole trace.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from msgspec import Struct, field

from roundelay.pipeline.verify.columns import (
    FIELDS,
    Array,
    Messages,
    RowGroups,
    as_slice,
    joined,
    present,
)
from roundelay.pipeline.verify.control import Control, outdated
from roundelay.pipeline.verify.runs import TracedRun
from roundelay.pipeline.verify.verdict import KEPT, Counterexample, backwards

BACK_MESSAGES: Final = 4_000_000
"""Submissions read in search of those of one range."""

HANDED_BACK: Final = 100_000
"""Fingerprints that one range may hand back."""

LOOKED_AT: Final = 1000
"""Rows of one kind that are looked at one by one, in a range."""

LATER: Final = 1 << 62

Triple = tuple[int, int, int]


class PositionRange(Struct):
    """Positions lo…hi-1 and where to read: (part, row group) each, nearest first in `back`."""

    lo: int
    hi: int
    groups: list[tuple[int, int]]
    back: list[tuple[int, int]]


class SiteSpan(Struct):
    """What one site delivered of a range in one of its lives: its lowest and highest position.

    Of each: (position, place of its row, time).
    """

    site: int
    life: int
    first: Triple
    last: Triple
    count: int


class SourceSpan(Struct):
    """What came of one source, in one of its lives, in a range, in the order of positions.

    `low` and `high` are its earliest and its latest submission: (key, position, fingerprint).
    """

    source: int
    life: int
    low: Triple
    high: Triple


class NumberSpan(Struct):
    """First and last bundle of a source in a range: (number, where the bundle begins, time)."""

    source: int
    first: Triple
    last: Triple


class Suspect(Struct):
    """A position whose message needs a search in the whole trace."""

    position: int
    fp: int
    site: int
    time: int
    source: int
    number: int
    why: str


MISSING: Final = "missing"  # its submission was not found
BACKWARDS: Final = "backwards"  # submitted before the one that comes before it
OTHER: Final = "other"  # stands where another message stands elsewhere


class RangeResult(Struct):
    """What a range says."""

    lo: int
    deliveries: int = 0
    positions: int = 0
    findings: list[Counterexample] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    sites: list[SiteSpan] = field(default_factory=list)
    missing: list[tuple[int, int, int, int, int]] = field(default_factory=list)
    """Site, life, from, to, time of the delivery behind: positions left out inside the range."""
    sources: list[SourceSpan] = field(default_factory=list)
    numbers: list[NumberSpan] = field(default_factory=list)
    suspects: list[Suspect] = field(default_factory=list)
    suspected: int = 0
    own: dict[int, int] = field(default_factory=dict)
    """Site → own messages of its last life that were delivered to it."""
    equal: bool = False
    """Whether equal messages were submitted: their order then needs a search."""

    def some(self, name: str, rows: Array) -> list[int]:
        """The first of many rows that break an invariant; the others are only counted."""
        if len(rows) > LOOKED_AT:
            self.counts[name] = self.counts.get(name, 0) + len(rows) - LOOKED_AT
        return [int(row) for row in rows[:LOOKED_AT]]

    def report(self, finding: Counterexample) -> None:
        name = finding.invariant
        self.counts[name] = self.counts.get(name, 0) + 1
        if self.counts[name] <= KEPT:
            self.findings.append(finding)

    def suspect(self, messages: Messages, rows: Array, why: str) -> None:
        """Hand messages back, to be searched for; the others are only counted."""
        self.suspected += len(rows)
        for row in rows[: max(0, HANDED_BACK - len(self.suspects))]:
            cells = messages.cells(row)
            position = cells.pop("seq")
            self.suspects.append(Suspect(position, int(messages.fp[row]), why=why, **cells))


def ends(*columns: Array) -> tuple[Any, Any]:
    """The first and the last row of three columns, as numbers."""
    first, last = (tuple(int(values[row]) for values in columns) for row in (0, -1))
    return first, last


class FirstDeliveries:
    """What stands at each position of a range, according to whoever delivered it first."""

    def __init__(self, size: int) -> None:
        self.moment = np.full(size, LATER, np.int64)
        self.rows = Messages(*(np.zeros(size, np.int64) for _ in FIELDS))

    def take(self, at: Any, rows: Messages, moment: Array) -> None:
        """Compare with what is there: the earlier one stays."""
        sooner = moment < self.moment[at]
        if not sooner.any():
            return
        if sooner.all():
            sooner, where = slice(None), at
        else:
            where = np.flatnonzero(sooner) + at.start if isinstance(at, slice) else at[sooner]
        self.moment[where] = moment[sooner]
        for name in FIELDS:
            getattr(self.rows, name)[where] = getattr(rows, name)[sooner]


def judge_range(run: TracedRun, control: Control, task: PositionRange) -> RangeResult:
    """Everything that can be said about the positions of `task` by themselves."""
    files = RowGroups(run)
    result = RangeResult(task.lo)
    submits, deliveries = [], []
    for submitted, delivered in files.messages(task.groups):
        submits.append(submitted)
        position = delivered.position
        inside = (position >= task.lo) & (position < task.hi)
        deliveries.append(delivered if inside.all() else delivered.of(inside))
    rows = joined(deliveries)
    result.deliveries = len(rows)
    if not len(rows):
        return result
    position = rows.position
    base, top = int(position.min()), int(position.max()) + 1
    if top - base > 8 * len(rows) + 1024:  # positions far apart: number those that there are
        known, dense = np.unique(position, return_inverse=True)
        canon = FirstDeliveries(len(known))
    else:
        dense = position - base
        canon = FirstDeliveries(top - base)
    by_life = _by_life(run, control, rows)
    lives = [(site, life, dense[mine], rows.of(mine)) for site, life, mine in by_life]
    for site, life, at, here in lives:
        _judge_site(result, site, life, here)
        canon.take(as_slice(at), here, run.moments(here))
    there = np.flatnonzero(canon.moment < LATER)
    result.positions = len(there)
    first = canon.rows.of(there)
    for _, _, at, here in lives:
        _compare(control, result, canon.rows.of(at), here)
    judge_commits(control, result, first.site, first.time, first.position)
    sent = _trace_back(control, task, files, joined(submits), first.fp)
    _judge_sources(result, first, sent)
    _judge_source_order(result, first, sent)
    if control.settled:
        for site in control.up:
            own = np.flatnonzero((rows.site == site) & (rows.source == site))
            own = own[rows.fp[own] == canon.rows.fp[dense[own]]]
            seen = np.zeros(len(canon.moment), bool)
            seen[dense[own]] = True
            mine = sent.hit & (sent.site == site) & (sent.life == control.last_own_life(site))
            result.own[site] = int((seen[there] & mine).sum())
    return result


def _by_life(run: TracedRun, control: Control, rows: Messages) -> Iterator[tuple[int, int, Array]]:
    """Site, life, and which rows are theirs."""
    for site in run.users:
        mine = np.flatnonzero(rows.site == site)
        life = control.life(site, run.moments(rows)[mine])
        for number in present(life):
            yield site, number, mine[life == number]


# -- each site by itself -----------------------------------------------------------------------


def _judge_site(result: RangeResult, site: int, life: int, rows: Messages) -> None:
    """I1 and I4: every position once, in the order of positions."""
    position, time = rows.position, rows.time
    if not (np.diff(position) == 1).all() or (np.diff(time) < 0).any():
        rows = rows.of(np.lexsort((rows.offset, rows.place, position)))
        position, time = rows.position, rows.time
        step = np.diff(position)
        for i in result.some("I4", np.flatnonzero(step == 0) + 1):
            detail = f"delivers position {position[i]} again"
            since = int(time[i - 1])
            result.report(Counterexample("I4", detail=detail, from_ns=since, **rows.cells(i)))
        # A bundle's messages share a row, so a place may stay the same.
        back = (np.diff(rows.place) < 0) | (np.diff(time) < 0)
        for i in result.some("I1", np.flatnonzero(back & (step > 0))):
            cells = rows.cells(i)
            at, later, since = cells.pop("seq"), int(position[i + 1]), int(time[i + 1])
            result.report(backwards(position=at, later=later, since=since, **cells))
        for i in result.some("I1", np.flatnonzero(step > 1)):
            result.missing.append(
                (site, life, int(position[i]) + 1, int(position[i + 1]), int(time[i + 1]))
            )
    result.sites.append(SiteSpan(site, life, *ends(position, rows.place, time), len(position)))


def _compare(control: Control, result: RangeResult, canon: Messages, rows: Messages) -> None:
    """I1: the same message at every position; I2 if the first one is gone; I4: the same name.

    `canon` is, row by row, what was delivered first at the positions of `rows`.
    """
    other = rows.fp != canon.fp
    named = (rows.source != canon.source) | (rows.number != canon.number)
    if not (other.any() or named.any()):
        return
    for i in result.some("I1" if other.any() else "I4", np.flatnonzero(other | named)):
        first = canon.cells(i)
        cells: dict[str, Any] = rows.cells(i)
        cells |= {"fp": int(rows.fp[i]), "from_ns": first["time"]}
        place = f"position {cells['seq']}"
        here = f"{place} is number {cells['number']} of source {cells['source']} here, but"
        was = f"number {first['number']} of source {first['source']} at site {first['site']}"
        if not other[i]:
            result.report(Counterexample("I4", detail=f"{here} {was}", **cells))
            continue
        result.report(Counterexample("I1", detail=f"{here} was {was}", **cells))
        if first["site"] == cells["site"] or not control.is_up(first["site"], cells["time"]):
            detail = f"{place} was replaced: no site that is up has the first"
            result.report(Counterexample("I2", detail=detail, **cells))
        result.suspect(rows, np.array([i]), OTHER)


def judge_commits(
    control: Control, result: RangeResult, sites: Array, times: Array, positions: Array
) -> None:
    """I3: whoever is first to commit behind the start of a list has that list in force.

    `sites` and `times` say who was the first at each of the positions, and when.
    """
    starts, ranks = control.required()
    if not len(starts):
        return
    at = np.searchsorted(starts, positions, "right") - 1
    least = np.where(at >= 0, ranks[np.maximum(at, 0)], -1)
    for site in present(sites):
        mine = np.flatnonzero(sites == site)
        when, newest = control.in_force(site)
        step = np.searchsorted(when, times[mine], "right") - 1
        held = np.append(newest, -1)[step]
        late = held < least[mine]
        if late.any():
            # What a site delivers in the instant of its return was committed before it left.
            late &= ~np.isin(times[mine], np.array(control.returned.get(site, []), np.int64))
        for i in result.some("I3", np.flatnonzero(late)):
            time, position = int(times[mine[i]]), int(positions[mine[i]])
            result.report(outdated(control, site, time, position, int(held[i])))


# -- submissions -------------------------------------------------------------------------------


class FoundSubmissions(Struct):
    """The submissions of the positions that are there, one item each."""

    hit: Array
    """Whether it was found."""
    site: Array
    key: Array
    time: Array
    life: Array
    equal: bool = False
    """Whether two of those that were read are alike."""


def _trace_back(
    control: Control, task: PositionRange, files: RowGroups, submits: Messages, fps: Array
) -> FoundSubmissions:
    """The submission of every position's message, as far as it is found."""
    site, key, time, life = (np.zeros(len(fps), np.int64) for _ in range(4))
    sent = FoundSubmissions(np.zeros(len(fps), bool), site, key, time, life)
    looked = len(submits)
    back = files.messages(task.back, deliveries=False)
    while True:
        _match(files.run, control, submits, fps, sent)
        more = None if sent.hit.all() or looked >= BACK_MESSAGES else next(back, None)
        if more is None:
            return sent
        submits, _ = more
        looked += len(submits)


def _match(
    run: TracedRun, control: Control, submits: Messages, wanted: Array, sent: FoundSubmissions
) -> None:
    if not len(submits):
        return
    in_order = np.argsort(submits.fp, kind="stable")
    fps = submits.fp[in_order]
    sent.equal = sent.equal or bool((fps[1:] == fps[:-1]).any())
    missing = np.flatnonzero(~sent.hit)
    at = np.minimum(np.searchsorted(fps, wanted[missing]), len(fps) - 1)
    same = fps[at] == wanted[missing]
    rows, matching = missing[same], submits.of(in_order[at[same]])
    sent.hit[rows] = True
    sent.site[rows], sent.time[rows], sent.key[rows] = matching.site, matching.time, matching.key
    for site in control.ended:
        mine = matching.site == site
        sent.life[rows[mine]] = control.own_life(site, run.moments(matching)[mine])


def falling_numbers(number: Array, seq: Array) -> Array:
    """Where a source's number is not above that of the bundle before it."""
    same = (number[1:] == number[:-1]) & (seq[1:] != seq[:-1])
    return np.flatnonzero((number[1:] >= 0) & ((number[1:] < number[:-1]) | same)) + 1


def _judge_sources(result: RangeResult, first: Messages, sent: FoundSubmissions) -> None:
    """I4: submitted before, by whom it is said; the numbers of a source rise."""
    result.equal = sent.equal

    def report(i: int, detail: str, since: int) -> None:
        cells = first.cells(i)
        detail = f"position {cells['seq']} {detail}"
        result.report(
            Counterexample("I4", detail=detail, fp=int(first.fp[i]), from_ns=since, **cells)
        )

    result.suspect(first, np.flatnonzero(~sent.hit), MISSING)
    for i in result.some("I4", np.flatnonzero(sent.hit & (sent.site != first.source))):
        detail = f"is said to come from site {first.source[i]}; site {sent.site[i]} submitted it"
        report(i, detail, int(sent.time[i]))
    for i in result.some("I4", np.flatnonzero(sent.hit & (sent.time > first.time))):
        report(i, "is delivered before it is submitted", int(first.time[i]))
    for source in present(first.source):
        mine = np.flatnonzero(first.source == source)
        number, seq, time = first.number[mine], first.seq[mine], first.time[mine]
        for i in result.some("I4", falling_numbers(number, seq)):
            detail = f"is number {number[i]} of source {source}, after its number {number[i - 1]}"
            report(int(mine[i]), detail, int(time[i - 1]))
        result.numbers.append(NumberSpan(source, *ends(number, seq, time)))


def _judge_source_order(result: RangeResult, first: Messages, sent: FoundSubmissions) -> None:
    """I1: submissions of one life of a source rise with the positions; how the range ends."""
    for source in present(sent.site[sent.hit]):
        mine = np.flatnonzero(sent.hit & (sent.site == source))
        for life in present(sent.life[mine]):
            rows = mine[sent.life[mine] == life]
            keys = sent.key[rows]
            before = np.concatenate([[-1], np.maximum.accumulate(keys)[:-1]])
            result.suspect(first, rows[keys <= before], BACKWARDS)
            extremes = rows[[keys.argmin(), keys.argmax()]]
            low, high = ends(sent.key[extremes], first.position[extremes], first.fp[extremes])
            result.sources.append(SourceSpan(source, life, low, high))
