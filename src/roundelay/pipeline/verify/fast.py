"""The fast way to a verdict on total order: ranges of positions, each judged by numpy in one task.

Three passes over the columns that matter, none of which moves rows between tasks:

1. a *survey* of every row group: which positions it has, what was submitted there, and the few
   special rows (`verify.control`);
2. the *ranges* (`verify.clean`, `verify.positions`); here they are laid end to end, by what each
   says about its first and last rows;
3. only if something is wrong, a *search* for single messages in the whole trace.

What comes back to the driver are summaries: a row per row group, per range and per counterexample.
Where this way cannot say for sure, it says so (`Undecided`), and the oracle (`verify.sql`) decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import msgspec
import numpy as np
from msgspec import Struct, field

from roundelay.pipeline.verify.clean import judge_clean
from roundelay.pipeline.verify.columns import RowGroups
from roundelay.pipeline.verify.control import count_total, judge_ends
from roundelay.pipeline.verify.messages import SubmissionWindow, WindowResult, in_turn, judge_window
from roundelay.pipeline.verify.positions import (
    BACKWARDS,
    LATER,
    OTHER,
    NumberSpan,
    PositionRange,
    RangeResult,
    SiteSpan,
    SourceSpan,
    Suspect,
    judge_range,
)
from roundelay.pipeline.verify.runs import TracedRun
from roundelay.pipeline.verify.survey import RowGroup, Survey, survey
from roundelay.pipeline.verify.tasks import Mapper
from roundelay.pipeline.verify.verdict import (
    NO_END,
    NO_ORDER,
    Counterexample,
    RunJudgement,
    backwards,
    skipped,
)
from roundelay.trace.checkers.checkers import FIFO

RANGE_MESSAGES: Final = 2_500_000
"""Deliveries that one task lays side by side: some 250 MB."""

RANGES_LEAST: Final = 4
GROUPS_LEAST: Final = 2
"""Row groups per file that a range should have: those at its borders are read twice."""

SEARCH_GROUPS: Final = 16
"""Row groups that one task searches."""

SUSPECTS_MAX: Final = 200_000
OPEN: Final = "open"


class Undecided(Exception):
    """The fast way has seen something that it cannot judge."""


# -- ranges ------------------------------------------------------------------------------------


def _target(groups: Sequence[RowGroup], messages: int) -> int:
    """How many deliveries one task should have."""
    total = sum(group.deliveries for group in groups)
    parts = len({group.part for group in groups})
    least = GROUPS_LEAST * parts * total // max(1, len(groups))
    return max(1, min(messages, max(total // RANGES_LEAST, least)))


def ranges_of(groups: Sequence[RowGroup], messages: int) -> list[PositionRange]:
    """Ranges of positions with about so many deliveries each, and where to read them."""
    with_some = sorted((g for g in groups if g.hi >= 0), key=lambda g: (g.lo, g.place))
    if not with_some:
        return []
    target = _target(groups, messages)
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
        begin, end = min(g.first_ns for g in inside), max(g.last_ns for g in inside)
        others = [g for g in with_submits if g.first_ns <= end and g.place not in places]
        # A message is submitted before it is delivered: what lies before the range comes first.
        others.sort(key=lambda g: g.first_ns >= begin)
        ranges.append(PositionRange(lo, hi, sorted(places), [g.place for g in others]))
    return ranges


def judge(
    run: TracedRun, mapper: Mapper, *, range_messages: int = RANGE_MESSAGES
) -> tuple[RunJudgement, Survey]:
    """The verdict on a run of total order; `Undecided` if another way has to be taken.

    `holders` is left to the oracle, and so is I5 (its note says OPEN) unless the numbers of
    messages alone decide it: both need a join.
    """
    surveyed = survey(run, mapper)
    control = surveyed.control

    def task(positions: PositionRange) -> bytes:
        result = judge_clean(run, control, positions) or judge_range(run, control, positions)
        return msgspec.msgpack.encode(result)

    decode = msgspec.msgpack.Decoder(RangeResult).decode
    ranges = ranges_of(surveyed.groups, range_messages)
    results = [decode(result) for result in mapper(task, ranges)]
    return _EndToEnd(run, surveyed, results, mapper).judged(), surveyed


def prove(
    run: TracedRun, mapper: Mapper, *, range_messages: int = RANGE_MESSAGES
) -> tuple[RunJudgement, Survey]:
    """The verdict on a clean run without a common order; `Undecided` if it is not proved clean."""
    surveyed = survey(run, mapper)
    control, addressed = surveyed.control, surveyed.addressed
    deliveries = surveyed.deliveries

    def task(window: SubmissionWindow) -> bytes:
        return msgspec.msgpack.encode(judge_window(run, control, addressed, window))

    decode = msgspec.msgpack.Decoder(WindowResult).decode
    windows = windows_of(surveyed.groups, range_messages)
    results = [decode(result) for result in mapper(task, windows)]
    if (
        any(result.odd for result in results)
        or sum(result.claimed for result in results) != deliveries
        or not in_turn(results)
    ):
        raise Undecided
    judgement = RunJudgement.of(run, "fast", control.settled)
    judgement.checked(deliveries, "I4", *(["I8"] if addressed else []))
    if run.order == FIFO:
        judgement.checked(deliveries, "I1")
    else:
        judgement.note(NO_ORDER, "I1")
    if control.settled:
        verdict = judgement.invariants["I8" if addressed else "I2"]
        verdict.checked = max(verdict.checked, sum(result.due for result in results))
        judgement.checked(sum(result.own for result in results), "I5")
    else:
        judgement.note(NO_END, "I2", "I5")
    return judgement, surveyed


def windows_of(groups: Sequence[RowGroup], messages: int) -> list[SubmissionWindow]:
    """Windows of submissions, and where to look for their deliveries."""
    in_time = sorted(groups, key=lambda g: (g.first_ns, g.place))
    target = _target(groups, messages)
    windows: list[list[RowGroup]] = []
    gathered = target
    for group in in_time:
        if not group.submits:
            continue
        if gathered >= target:
            windows.append([])
            gathered = 0
        gathered += group.deliveries + group.submits
        windows[-1].append(group)
    placed = []
    for window in windows:
        # Row groups of several files overlap in time: what lies beside is looked at, too.
        own, first_ns = [group.place for group in window], window[0].first_ns
        behind = [g.place for g in in_time if g.deliveries and g.last_ns >= first_ns]
        placed.append(SubmissionWindow(own, [place for place in behind if place not in own]))
    return placed


class _EndToEnd:
    """Lays the ranges end to end."""

    def __init__(
        self, run: TracedRun, surveyed: Survey, results: list[RangeResult], mapper: Mapper
    ) -> None:
        self.run, self.control, self.groups = run, surveyed.control, surveyed.groups
        self.results = sorted(results, key=lambda result: result.lo)
        self.mapper = mapper
        self.suspects = [suspect for result in self.results for suspect in result.suspects]
        self.judgement = RunJudgement.of(run, "fast", surveyed.control.settled)

    def judged(self) -> RunJudgement:
        judgement, results = self.judgement, self.results
        for result in results:
            for name, count in result.counts.items():
                kept = [finding for finding in result.findings if finding.invariant == name]
                judgement.invariants[name].add(kept, count)
        if sum(r.suspected for r in results) > SUSPECTS_MAX or any(r.equal for r in results):
            raise Undecided
        self._join_sites()
        self._join_numbers()
        self._join_sources()
        if self.suspects:
            self._search()
        deliveries = sum(result.deliveries for result in results)
        positions = sum(result.positions for result in results)
        count_total(self.control, judgement, deliveries, positions)
        if self.control.settled:
            tops = {
                (span.site, span.life): span.last[0] + 1
                for result in results
                for span in result.sites
            }
            judgement.add(judge_ends(self.control, tops))
            self._count_own()
        return judgement

    def _count_own(self) -> None:
        """I5, as far as numbers tell."""
        up, verdict = self.control.up, self.judgement.invariants["I5"]
        due = dict.fromkeys(self.run.users, 0)
        for group in sorted(self.groups, key=lambda g: g.place):
            for site in group.ended:
                due[site] = 0
            for site, count in group.own.items():
                due[site] += count
        delivered = {site: sum(r.own.get(site, 0) for r in self.results) for site in up}
        verdict.checked = sum(due[site] for site in up)
        if not self.judgement.holds or self.suspects or any(due[s] != delivered[s] for s in up):
            verdict.note = OPEN

    def _join_sites(self) -> None:
        """I1 from range to range: nothing left out, nothing the wrong way round."""
        by_life: dict[tuple[int, int], list[SiteSpan]] = {}
        for result in self.results:
            for span in result.sites:
                by_life.setdefault((span.site, span.life), []).append(span)
        missing = [span for result in self.results for span in result.missing]
        for (site, life), spans in by_life.items():
            last = (-1, -1, -1)
            for span in spans:
                position, place, time = span.first
                if position > last[0] + 1:
                    missing.append((site, life, last[0] + 1, position, time))
                if place < last[1] or time < last[2]:
                    self.judgement.add([backwards(site, last[2], last[0], position, time)])
                last = span.last
        self.judgement.add(
            skipped(site, time, lo, hi)
            for site, life, lo, hi, time in missing
            if not self.control.covered(site, life, lo, hi, time)
        )

    def _join_numbers(self) -> None:
        """I4 from range to range: the numbers of a source rise."""
        last: dict[int, NumberSpan] = {}
        for span in (span for result in self.results for span in result.numbers):
            number, seq, time = span.first
            before = last.get(span.source)
            # A bundle may lie across the border.
            if (
                before is not None
                and 0 <= number <= before.last[0]
                and ((number, seq) != before.last[:2])
            ):
                detail = (
                    f"position {seq} is number {number} of source {span.source}, "
                    f"after its number {before.last[0]}"
                )
                since = before.last[2]
                self.judgement.add(
                    [
                        Counterexample(
                            "I4", -1, time, detail, seq, span.source, number, from_ns=since
                        )
                    ]
                )
            last[span.source] = span

    def _join_sources(self) -> None:
        """I1: from range to range, too, a source's messages keep their order."""
        highest: dict[tuple[int, int], SourceSpan] = {}
        for span in (span for result in self.results for span in result.sources):
            before = highest.get((span.source, span.life))
            if before is not None and span.low[0] <= before.high[0]:
                _, position, fp = span.low
                self.suspects.append(Suspect(position, fp, -1, 0, span.source, -1, BACKWARDS))
            if before is None or span.high[0] > before.high[0]:
                highest[span.source, span.life] = span

    # -- the search ------------------------------------------------------------------------

    def _search(self) -> None:
        """What becomes of messages that were not found, or not where they should be."""
        occurrences = search(self.run, self.mapper, {suspect.fp for suspect in self.suspects})
        by_name: dict[tuple[int, int, str], Suspect] = {}
        for suspect in self.suspects:
            by_name.setdefault((suspect.position, suspect.fp, suspect.why), suspect)
        for suspect in sorted(by_name.values(), key=lambda one: one.position):
            self._settle(suspect, occurrences.get(suspect.fp, Occurrences()))

    def _settle(self, suspect: Suspect, found: Occurrences) -> None:
        positions = sorted({position for position, *_ in found.deliveries})
        first = next((d for d in found.deliveries if d[0] == suspect.position), None)
        site, time = suspect.site, suspect.time
        source, number = suspect.source, suspect.number
        if site < 0 and first is not None:
            _, site, time, source, number = first
        at = suspect.position

        def report(invariant: str, detail: str, since: int) -> None:
            detail = f"position {at}: {detail}"
            self.judgement.add(
                [
                    Counterexample(
                        invariant, site, time, detail, at, source, number, suspect.fp, since
                    )
                ]
            )

        name = f"number {number} of source {source}"
        since = min((d[2] for d in found.deliveries), default=-1)
        if not found.submits:
            report("I4", f"nobody submitted {name} with this content", -1)
        elif suspect.why == OTHER:
            return  # a message of another position: that two have changed places is said already
        elif len(positions) > len(found.submits):
            if at != positions[0]:
                report("I4", f"{name} was delivered at position {positions[0]} already", since)
        elif suspect.why == BACKWARDS and len(found.submits) == 1:
            origin = found.submits[0]
            report("I1", f"{name} comes after a later one of site {origin[0]}", origin[1])
        else:
            # Submitted longer ago than the fast way looks back, or one of several that are alike.
            raise Undecided


class Occurrences(Struct):
    """Where a message occurs."""

    submits: list[tuple[int, int]] = field(default_factory=list)
    """Site, time."""
    deliveries: list[tuple[int, int, int, int, int]] = field(default_factory=list)
    """Position, site, time, source, number."""


def search(run: TracedRun, mapper: Mapper, fps: set[int]) -> dict[int, Occurrences]:
    """All that a trace says about these messages."""
    wanted = np.array(sorted(fps), np.int64)
    every = run.row_groups
    items = [every[i : i + SEARCH_GROUPS] for i in range(0, len(every), SEARCH_GROUPS)]

    def task(places: list[tuple[int, int]]) -> bytes:
        found: dict[int, Occurrences] = {}
        for submits, deliveries in RowGroups(run).messages(places):
            for row in np.flatnonzero(np.isin(submits.fp, wanted)).tolist():
                cells = submits.cells(row)
                here = found.setdefault(int(submits.fp[row]), Occurrences())
                here.submits.append((cells["site"], cells["time"]))
            for row in np.flatnonzero(np.isin(deliveries.fp, wanted)).tolist():
                cells = deliveries.cells(row)
                here = found.setdefault(int(deliveries.fp[row]), Occurrences())
                here.deliveries.append(
                    (cells["seq"], cells["site"], cells["time"], cells["source"], cells["number"])
                )
        return msgspec.msgpack.encode(found)

    decode = msgspec.msgpack.Decoder(dict[int, Occurrences]).decode
    found: dict[int, Occurrences] = {}
    for result in mapper(task, items):
        for fp, there in decode(result).items():
            here = found.setdefault(fp, Occurrences())
            here.submits += there.submits
            here.deliveries += there.deliveries
    return found
