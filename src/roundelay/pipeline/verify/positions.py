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

from roundelay.pipeline.verify.columns import Array, Messages, Reader, joined, present, read
from roundelay.pipeline.verify.control import Control
from roundelay.pipeline.verify.runs import Run
from roundelay.pipeline.verify.verdict import KEPT, Finding

BACK_MESSAGES: Final = 4_000_000
"""Submissions read in search of those of one range."""

HANDED_BACK: Final = 100_000
"""Fingerprints that one range may hand back."""

LOOKED_AT: Final = 1000
"""Rows of one kind that are looked at one by one, in a range."""

LATER: Final = 1 << 62


class Range(Struct):
    """Positions lo…hi-1 and where to read: (part, row group) each, nearest first in `back`."""

    lo: int
    hi: int
    groups: list[tuple[int, int]]
    back: list[tuple[int, int]]


class Stretch(Struct):
    """What one site delivered of a range in one of its lives: its lowest and highest position.

    Of each: (position, place of its row, time).
    """

    site: int
    life: int
    first: tuple[int, int, int]
    last: tuple[int, int, int]
    count: int


class Line(Struct):
    """What came of one source, in one of its lives, in a range, in the order of positions.

    `low` and `high` are its earliest and its latest submission: (key, position, fingerprint).
    """

    source: int
    life: int
    low: tuple[int, int, int]
    high: tuple[int, int, int]


class Numbers(Struct):
    """First and last bundle of a source in a range: (number, where the bundle begins, time)."""

    source: int
    first: tuple[int, int, int]
    last: tuple[int, int, int]


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
    findings: list[Finding] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    stretches: list[Stretch] = field(default_factory=list)
    missing: list[tuple[int, int, int, int, int]] = field(default_factory=list)
    """Site, life, from, to, time of the delivery behind: positions left out inside the range."""
    lines: list[Line] = field(default_factory=list)
    numbers: list[Numbers] = field(default_factory=list)
    suspects: list[Suspect] = field(default_factory=list)
    suspected: int = 0
    own: dict[int, int] = field(default_factory=dict)
    """Site → own messages of its last life that were delivered to it."""
    equal: bool = False
    """Whether equal messages were submitted: their order then needs a search."""

    def some(self, name: str, rows: Array) -> Array:
        """The first of many rows that break an invariant; the others are only counted."""
        if len(rows) > LOOKED_AT:
            self.counts[name] = self.counts.get(name, 0) + len(rows) - LOOKED_AT
        return rows[:LOOKED_AT]

    def report(self, finding: Finding) -> None:
        name = finding.invariant
        self.counts[name] = self.counts.get(name, 0) + 1
        if self.counts[name] <= KEPT:
            self.findings.append(finding)


class Canon:
    """What stands at each position of a range, according to whoever delivered it first."""

    def __init__(self, base: int, size: int) -> None:
        self.base = base
        self.moment = np.full(size, LATER, np.int64)
        self.fp = np.zeros(size, np.int64)
        self.time = np.zeros(size, np.int64)
        self.site = np.full(size, -1, np.int64)
        self.source = np.zeros(size, np.int64)
        self.number = np.zeros(size, np.int64)
        self.seq = np.zeros(size, np.int64)

    def take(self, at: Any, rows: Messages, moment: Array) -> None:
        """Compare with what is there: the earlier one stays."""
        sooner = moment < self.moment[at]
        if not sooner.any():
            return
        if sooner.all():
            sooner = slice(None)
            where = at
        else:
            where = np.flatnonzero(sooner) + at.start if isinstance(at, slice) else at[sooner]
        self.moment[where] = moment[sooner]
        for name in ("fp", "time", "site", "source", "number", "seq"):
            getattr(self, name)[where] = getattr(rows, name)[sooner]


def judge_range(run: Run, control: Control, task: Range) -> RangeResult:
    """Everything that can be said about the positions of `task` by themselves."""
    readers: dict[int, Reader] = {}
    result = RangeResult(task.lo)
    submits, deliveries = [], []
    for reader, group in read(readers, run.parts, task.groups):
        submitted, delivered = reader.messages(group, run.users)
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
    else:
        known, dense = None, position - base
    canon = Canon(base, len(known) if known is not None else top - base)
    lives = list(_by_life(run, control, rows))
    each = [rows.of(mine) for _, _, mine in lives]
    for (site, life, _), here in zip(lives, each, strict=True):
        _judge_stretch(control, result, site, life, here)
    for (_, _, mine), here in zip(lives, each, strict=True):
        at = dense[mine]
        where: Any = at
        if len(at) and np.array_equal(at, np.arange(at[0], at[0] + len(at))):
            where = slice(int(at[0]), int(at[0]) + len(at))
        canon.take(where, here, here.time if run.apart else here.place)
    there = np.flatnonzero(canon.moment < LATER)
    result.positions = len(there)
    where = there + base if known is None else known[there]
    for (_, _, mine), here in zip(lives, each, strict=True):
        _compare(control, result, canon, dense[mine], here, position[mine])
    judge_commits(control, result, canon.site[there], canon.time[there], where)
    sent = _trace_back(run, control, task, readers, joined(submits), canon, there)
    _judge_sources(result, canon, there, where, sent)
    _judge_lines(result, canon, there, where, sent)
    _count_own(control, result, rows, dense, canon, there, sent)
    return result


def _by_life(run: Run, control: Control, rows: Messages) -> Iterator[tuple[int, int, Array]]:
    """Site, life, and which rows are theirs."""
    for site in run.users:
        mine = np.flatnonzero(rows.site == site)
        if not len(mine):
            continue
        if site not in control.afresh:
            yield site, 0, mine
            continue
        moment = rows.time if run.apart else rows.place
        life = control.life(site, moment[mine])
        for number in np.unique(life):
            yield site, int(number), mine[life == number]


# -- each site by itself -----------------------------------------------------------------------


def _judge_stretch(
    control: Control, result: RangeResult, site: int, life: int, rows: Messages
) -> None:
    """I1 and I4: every position once, in the order of positions."""
    position, place, time = rows.position, rows.place, rows.time
    if not (np.diff(position) == 1).all() or (np.diff(time) < 0).any():
        in_order = np.lexsort((rows.offset, place, position))
        position, place, time = position[in_order], place[in_order], time[in_order]
        source, number = rows.source[in_order], rows.number[in_order]
        step = np.diff(position)
        for i in result.some("I4", np.flatnonzero(step == 0) + 1):
            detail = f"delivers position {position[i]} again"
            result.report(Finding(
                "I4", site, int(time[i]), detail, int(position[i]), int(source[i]),
                int(number[i]), from_ns=int(time[i - 1]),
            ))  # fmt: skip
        # A bundle's messages share a row, so a place may stay the same.
        back = (np.diff(place) < 0) | (np.diff(time) < 0)
        for i in result.some("I1", np.flatnonzero(back & (step > 0))):
            detail = f"delivers position {position[i]} after position {position[i + 1]}"
            result.report(Finding(
                "I1", site, int(time[i]), detail, int(position[i]), int(source[i]),
                int(number[i]), from_ns=int(time[i + 1]),
            ))  # fmt: skip
        for i in result.some("I1", np.flatnonzero(step > 1)):
            result.missing.append(
                (site, life, int(position[i]) + 1, int(position[i + 1]), int(time[i + 1]))
            )
    result.stretches.append(Stretch(
        site, life, (int(position[0]), int(place[0]), int(time[0])),
        (int(position[-1]), int(place[-1]), int(time[-1])), len(position),
    ))  # fmt: skip


def _compare(
    control: Control,
    result: RangeResult,
    canon: Canon,
    dense: Array,
    rows: Messages,
    position: Array,
) -> None:
    """I1: the same message at every position; I2 if the first one is gone; I4: the same name."""
    other = rows.fp != canon.fp[dense]
    named = (rows.source != canon.source[dense]) | (rows.number != canon.number[dense])
    if not (other.any() or named.any()):
        return
    for i in result.some("I1" if other.any() else "I4", np.flatnonzero(other | named)):
        at = int(dense[i])
        site, time = int(rows.site[i]), int(rows.time[i])
        source, number = int(rows.source[i]), int(rows.number[i])
        was = f"number {canon.number[at]} of source {canon.source[at]} at site {canon.site[at]}"
        fp, seq, since = int(rows.fp[i]), int(position[i]), int(canon.time[at])
        known: dict[str, Any] = {
            "seq": seq, "source": source, "number": number, "fp": fp, "from_ns": since,
        }  # fmt: skip
        if not other[i]:
            detail = f"position {seq} is number {number} of source {source} here, but {was}"
            result.report(Finding("I4", site, time, detail, **known))
            continue
        detail = f"position {seq} is number {number} of source {source} here, but was {was}"
        result.report(Finding("I1", site, time, detail, **known))
        if canon.site[at] == site or not control.is_up(int(canon.site[at]), time):
            detail = f"position {seq} was replaced: no site that is up has the first"
            result.report(Finding("I2", site, time, detail, **known))
        suspect(result, Suspect(seq, fp, site, time, source, number, OTHER))


def judge_commits(
    control: Control, result: RangeResult, sites: Array, times: Array, where: Array
) -> None:
    """I3: whoever is first to commit behind the start of a list has that list in force.

    `sites` and `times` say who was the first at each of the positions `where`, and when.
    """
    starts, ranks = control.required()
    if not len(starts):
        return
    versions = control.versions()
    at = np.searchsorted(starts, where, "right") - 1
    least = np.where(at >= 0, ranks[np.maximum(at, 0)], -1)
    for site in present(sites):
        mine = np.flatnonzero(sites == site)
        when, newest = control.in_force(int(site))
        step = np.searchsorted(when, times[mine], "right") - 1
        held = np.where(step >= 0, newest[np.maximum(step, 0)], -1) if len(when) else -1
        late = held < least[mine]
        if late.any():
            # What a site delivers in the instant of its return was committed before it left.
            late &= ~np.isin(times[mine], np.array(control.returned.get(int(site), []), np.int64))
        held = np.broadcast_to(held, late.shape)
        for i in result.some("I3", np.flatnonzero(late)):
            row = mine[i]
            seq, time = int(where[row]), int(times[row])
            old = "none" if held[i] < 0 else ".".join(map(str, versions[held[i]]))
            new = ".".join(map(str, versions[least[row]]))
            detail = (
                f"commits position {seq} under list {old}, but list {new} starts at position "
                f"{starts[at[row]]}"
            )
            result.report(Finding("I3", int(site), time, detail, seq))


# -- submissions -------------------------------------------------------------------------------


class Sent(Struct):
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
    run: Run,
    control: Control,
    task: Range,
    readers: dict[int, Reader],
    submits: Messages,
    canon: Canon,
    there: Array,
) -> Sent:
    """The submission of every position's message, as far as it is found."""
    wanted = canon.fp[there]
    site, key, time, life = (np.zeros(len(wanted), np.int64) for _ in range(4))
    sent = Sent(np.zeros(len(wanted), bool), site, key, time, life)
    looked = len(submits)
    back = iter(task.back)
    while True:
        _match(run, control, submits, wanted, sent)
        more = None if sent.hit.all() or looked >= BACK_MESSAGES else next(back, None)
        if more is None:
            return sent
        for reader, group in read(readers, run.parts, [more]):
            submits, _ = reader.messages(group, run.users, deliveries=False)
            looked += len(submits)


def _match(run: Run, control: Control, submits: Messages, wanted: Array, sent: Sent) -> None:
    if not len(submits):
        return
    in_order = np.argsort(submits.fp, kind="stable")
    fps = submits.fp[in_order]
    sent.equal = sent.equal or bool((fps[1:] == fps[:-1]).any())
    left = np.flatnonzero(~sent.hit)
    at = np.minimum(np.searchsorted(fps, wanted[left]), len(fps) - 1)
    found = fps[at] == wanted[left]
    rows, which = left[found], in_order[at[found]]
    sent.hit[rows] = True
    sent.site[rows], sent.time[rows] = submits.site[which], submits.time[which]
    sent.key[rows] = submits.key[which]
    if control.ended:
        moment = submits.time[which] if run.apart else submits.place[which]
        for site in control.ended:
            mine = submits.site[which] == site
            sent.life[rows[mine]] = control.own_life(site, moment[mine])


def _judge_sources(
    result: RangeResult, canon: Canon, there: Array, where: Array, sent: Sent
) -> None:
    """I4: submitted before, by whom it is said; the numbers of a source rise."""
    result.equal = sent.equal
    source, number, seq = canon.source[there], canon.number[there], canon.seq[there]
    time, by, fps = canon.time[there], canon.site[there], canon.fp[there]

    def report(i: int, detail: str, since: int) -> None:
        result.report(Finding(
            "I4", int(by[i]), int(time[i]), f"position {where[i]} {detail}", int(where[i]),
            int(source[i]), int(number[i]), int(fps[i]), since,
        ))  # fmt: skip

    strange = np.flatnonzero(~sent.hit)
    result.suspected += max(0, len(strange) - HANDED_BACK)
    for i in strange[:HANDED_BACK]:
        _suspect(result, canon, there[i], where[i], MISSING)
    for i in result.some("I4", np.flatnonzero(sent.hit & (sent.site != source))):
        said = f"is said to come from site {source[i]}; site {sent.site[i]} submitted it"
        report(i, said, int(sent.time[i]))
    for i in result.some("I4", np.flatnonzero(sent.hit & (sent.time > time))):
        report(i, "is delivered before it is submitted", int(time[i]))
    for one in present(source):
        mine = np.flatnonzero(source == one)
        n, s = number[mine], seq[mine]
        same = (n[1:] == n[:-1]) & (s[1:] != s[:-1])
        for i in result.some("I4", np.flatnonzero((n[1:] >= 0) & ((n[1:] < n[:-1]) | same)) + 1):
            said = f"is number {n[i]} of source {one}, after its number {n[i - 1]}"
            report(int(mine[i]), said, int(time[mine[i - 1]]))
        result.numbers.append(Numbers(
            int(one), (int(n[0]), int(s[0]), int(time[mine[0]])),
            (int(n[-1]), int(s[-1]), int(time[mine[-1]])),
        ))  # fmt: skip


def _judge_lines(result: RangeResult, canon: Canon, there: Array, where: Array, sent: Sent) -> None:
    """I1: submissions of one life of a source rise with the positions; how the range ends."""
    fps = canon.fp[there]
    for source in present(sent.site[sent.hit]):
        mine = np.flatnonzero(sent.hit & (sent.site == source))
        for life in present(sent.life[mine]):
            rows = mine[sent.life[mine] == life]
            keys = sent.key[rows]
            if not (np.diff(keys) > 0).all():
                before = np.concatenate([[-1], np.maximum.accumulate(keys)[:-1]])
                behind = np.flatnonzero(keys <= before)
                result.suspected += max(0, len(behind) - HANDED_BACK)
                for i in behind[:HANDED_BACK]:
                    _suspect(result, canon, there[rows[i]], where[rows[i]], BACKWARDS)
            low, high = rows[keys.argmin()], rows[keys.argmax()]
            result.lines.append(Line(
                int(source), int(life),
                (int(sent.key[low]), int(where[low]), int(fps[low])),
                (int(sent.key[high]), int(where[high]), int(fps[high])),
            ))  # fmt: skip


def _count_own(
    control: Control,
    result: RangeResult,
    rows: Messages,
    dense: Array,
    canon: Canon,
    there: Array,
    sent: Sent,
) -> None:
    """I5: how many own messages of its last life each site has seen delivered."""
    if not control.settled:
        return
    for site in control.up:
        own = np.flatnonzero((rows.site == site) & (rows.source == site))
        own = own[rows.fp[own] == canon.fp[dense[own]]]
        seen = np.zeros(len(canon.fp), bool)
        seen[dense[own]] = True
        mine = sent.hit & (sent.site == site) & (sent.life == control.last_own_life(site))
        result.own[site] = int((seen[there] & mine).sum())


def _suspect(result: RangeResult, canon: Canon, at: int, position: int, why: str) -> None:
    suspect(result, Suspect(
        int(position), int(canon.fp[at]), int(canon.site[at]), int(canon.time[at]),
        int(canon.source[at]), int(canon.number[at]), why,
    ))  # fmt: skip


def suspect(result: RangeResult, one: Suspect) -> None:
    result.suspected += 1
    if len(result.suspects) < HANDED_BACK:
        result.suspects.append(one)
