"""The fast way to a verdict on total order: ranges of positions, each judged by numpy in one task.

Three passes over the columns that matter, none of which moves rows between tasks:

1. a *survey* of every row group: which positions it has, what was submitted there, and the few
   special rows (`verify.control`);
2. the *ranges* (`verify_positions`); here they are laid end to end, by what each says about its
   first and last rows;
3. only if something is wrong, a *search* for single messages in the whole trace.

What comes back to the driver are summaries: a row per row group, per range and per counterexample.
Where this way cannot say for sure, it says so (`Unsure`), and the oracle (`verify.sql`) decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import msgspec
import numpy as np
from msgspec import Struct, field

from roundelay.pipeline.verify.clean import judge_clean
from roundelay.pipeline.verify.columns import (
    Reader,
    read,
)
from roundelay.pipeline.verify.control import (
    Control,
    control_of,
    judge_lists,
)
from roundelay.pipeline.verify.messages import Window, decode, encode, in_turn, judge_window
from roundelay.pipeline.verify.positions import (
    BACKWARDS,
    LATER,
    OTHER,
    Line,
    Numbers,
    Range,
    RangeResult,
    Stretch,
    Suspect,
    judge_range,
)
from roundelay.pipeline.verify.runs import Run
from roundelay.pipeline.verify.survey import Group, survey
from roundelay.pipeline.verify.tasks import Mapper
from roundelay.pipeline.verify.verdict import Finding, Judgement
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


class Unsure(Exception):
    """The fast way has seen something that it cannot judge."""


# -- ranges ------------------------------------------------------------------------------------


def _target(groups: Sequence[Group], messages: int) -> int:
    """How many deliveries one task should have."""
    total = sum(group.deliveries for group in groups)
    parts = len({group.part for group in groups})
    least = GROUPS_LEAST * parts * total // max(1, len(groups))
    return max(1, min(messages, max(total // RANGES_LEAST, least)))


def ranges_of(groups: Sequence[Group], messages: int) -> list[Range]:
    """Ranges of positions with about so many deliveries each, and where to read them."""
    with_some = sorted((g for g in groups if g.hi >= 0), key=lambda g: (g.lo, g.part, g.group))
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
    made = []
    for lo, hi in pairwise(cuts):
        main = sorted((g.part, g.group) for g in with_some if g.lo < hi and g.hi > lo)
        inside = set(main)
        begin = min(g.first_ns for g in with_some if (g.part, g.group) in inside)
        end = max(g.last_ns for g in with_some if (g.part, g.group) in inside)
        others = [g for g in with_submits if g.first_ns <= end and (g.part, g.group) not in inside]
        # A message is submitted before it is delivered: what lies before the range comes first.
        others.sort(key=lambda g: g.first_ns >= begin)
        back = [(g.part, g.group) for g in others]
        made.append(Range(lo, hi, main, back))
    return made


class Seen(Struct):
    """What the oracle needs for what is left to it."""

    control: Control
    sends: bool


def judge(
    run: Run, mapper: Mapper, *, range_messages: int = RANGE_MESSAGES
) -> tuple[Judgement, Seen]:
    """The verdict on a run of total order; `Unsure` if another way has to be taken.

    `holders` is left to the oracle, and so is I5 (its note says OPEN) unless the numbers of
    messages alone decide it: both need a join.
    """
    groups = survey(run, mapper)
    control = control_of(run, [special for group in groups for special in group.specials])
    control.last_ns = max((group.last_ns for group in groups), default=0)
    ranges = ranges_of(groups, range_messages)

    def task(one: Range) -> bytes:
        seen = judge_clean(run, control, one)
        return msgspec.msgpack.encode(judge_range(run, control, one) if seen is None else seen)

    decode = msgspec.msgpack.Decoder(RangeResult).decode
    results = [decode(result) for result in mapper(task, ranges)]
    made = _Finish(run, control, groups, results, mapper).judgement()
    return made, Seen(control, any(group.sends for group in groups))


def prove(
    run: Run, mapper: Mapper, *, range_messages: int = RANGE_MESSAGES
) -> tuple[Judgement, Seen]:
    """The verdict on a clean run without a common order; `Unsure` if it is not proved clean."""
    groups = survey(run, mapper)
    control = control_of(run, [special for group in groups for special in group.specials])
    addressed = any(group.addressed for group in groups)

    def task(one: Window) -> bytes:
        return encode(judge_window(run, control, addressed, one))

    results = [decode(result) for result in mapper(task, windows_of(groups, range_messages))]
    deliveries = sum(group.deliveries for group in groups)
    if (
        any(result.odd for result in results)
        or sum(result.claimed for result in results) != deliveries
        or not in_turn(results)
    ):
        raise Unsure
    made = Judgement.of(run, "fast", control.settled)
    checked = made.invariants
    checked["I4"].checked = deliveries
    if run.order == FIFO:
        checked["I1"].checked = deliveries
    else:
        checked["I1"].note = "the service promises no order"
    if addressed:
        checked["I8"].checked = deliveries
    if control.settled:
        name = "I8" if addressed else "I2"
        checked[name].checked = max(checked[name].checked, sum(r.due for r in results))
        checked["I5"].checked = sum(result.own for result in results)
    else:
        checked["I2"].note = checked["I5"].note = "the trace has no end mark: not judged"
    return made, Seen(control, any(group.sends for group in groups))


def windows_of(groups: Sequence[Group], messages: int) -> list[Window]:
    """Windows of submissions, and where to look for their deliveries."""
    in_time = sorted(groups, key=lambda g: (g.first_ns, g.part, g.group))
    target = _target(groups, messages)
    made: list[Window] = []
    gathered = target
    for group in in_time:
        if not group.submits:
            continue
        if gathered >= target:
            made.append(Window([], []))
            gathered = 0
        gathered += group.deliveries + group.submits
        made[-1].groups.append((group.part, group.group))
    for window in made:
        # Row groups of several files overlap in time: what lies beside is looked at, too.
        own = set(window.groups)
        first = min(g.first_ns for g in in_time if (g.part, g.group) in own)
        window.behind = [
            (g.part, g.group)
            for g in in_time
            if g.deliveries and g.last_ns >= first and (g.part, g.group) not in own
        ]
    return made


class _Finish:
    """Lays the ranges end to end."""

    def __init__(
        self,
        run: Run,
        control: Control,
        groups: list[Group],
        results: list[RangeResult],
        mapper: Mapper,
    ) -> None:
        self.run, self.control, self.groups = run, control, groups
        self.results = sorted(results, key=lambda result: result.lo)
        self.mapper = mapper
        self.suspects: list[Suspect] = []
        self.made = Judgement.of(run, "fast", control.settled)

    def judgement(self) -> Judgement:
        made, results = self.made, self.results
        for result in results:
            for name, count in result.counts.items():
                kept = [f for f in result.findings if f.invariant == name]
                made.invariants[name].add(kept, count)
            self.suspects += result.suspects
        if sum(r.suspected for r in results) > SUSPECTS_MAX or any(r.equal for r in results):
            raise Unsure
        self._join_stretches()
        self._join_numbers()
        self._join_lines()
        if self.suspects:
            self._search()
        made.add(judge_lists(self.control))
        deliveries = sum(result.deliveries for result in results)
        positions = sum(result.positions for result in results)
        checked = made.invariants
        checked["I1"].checked = checked["I4"].checked = deliveries
        checked["I3"].checked = len(self.control.views) + (positions if self.control.views else 0)
        checked["lists"].checked = len(self.control.versions())
        if self.control.settled:
            self._in_the_end(positions)
        else:
            checked["I2"].note = checked["I5"].note = "the trace has no end mark: not judged"
        return made

    def _in_the_end(self, positions: int) -> None:
        """I2: everybody up has what anybody has.  I5, as far as numbers tell."""
        control, made = self.control, self.made
        tops: dict[tuple[int, int], int] = {}
        for result in self.results:
            for stretch in result.stretches:
                tops[stretch.site, stretch.life] = stretch.last[0] + 1
        stand = {
            site: control.beyond(site, tops.get((site, control.last_life(site)), 0))
            for site in self.run.users
        }
        end = max([*tops.values(), *stand.values()], default=0)
        made.invariants["I2"].checked = positions * len(control.up)
        for site in sorted(control.up):
            if stand[site] < end:
                detail = (
                    f"never delivered the positions {stand[site]} to {end - 1}, which others did"
                )
                made.add([Finding("I2", site, control.last_ns, detail, seq=stand[site])])
        due = dict.fromkeys(self.run.users, 0)
        for group in sorted(self.groups, key=lambda g: (g.part, g.group)):
            for site in group.ended:
                due[site] = 0
            for site, count in group.own.items():
                due[site] += count
        seen = {site: sum(r.own.get(site, 0) for r in self.results) for site in control.up}
        verdict = made.invariants["I5"]
        verdict.checked = sum(due[site] for site in control.up)
        if not made.holds or self.suspects or any(due[s] != seen[s] for s in control.up):
            verdict.note = OPEN

    def _join_stretches(self) -> None:
        """I1 from range to range: nothing left out, nothing the wrong way round."""
        by_life: dict[tuple[int, int], list[Stretch]] = {}
        for result in self.results:
            for stretch in result.stretches:
                by_life.setdefault((stretch.site, stretch.life), []).append(stretch)
        missing = [one for result in self.results for one in result.missing]
        for (site, life), stretches in by_life.items():
            last = (-1, -1, -1)
            for stretch in stretches:
                if stretch.first[0] > last[0] + 1:
                    missing.append((site, life, last[0] + 1, stretch.first[0], stretch.first[2]))
                if stretch.first[1] < last[1] or stretch.first[2] < last[2]:
                    detail = f"delivers position {last[0]} after position {stretch.first[0]}"
                    self.made.add(
                        [Finding("I1", site, last[2], detail, last[0], from_ns=stretch.first[2])]
                    )
                last = stretch.last
        for site, life, lo, hi, time in missing:
            if not self.control.covered(site, life, lo, hi, time):
                detail = f"goes from position {lo} to {hi} without a word about what lies between"
                self.made.add([Finding("I1", site, time, detail, lo)])

    def _join_numbers(self) -> None:
        last: dict[int, Numbers] = {}
        for result in self.results:
            for one in result.numbers:
                before = last.get(one.source)
                if before is not None and 0 <= one.first[0] <= before.last[0]:
                    same = one.first[:2] == before.last[:2]  # a bundle across the border
                    if not same:
                        detail = (
                            f"position {one.first[1]} is number {one.first[0]} of source "
                            f"{one.source}, after its number {before.last[0]}"
                        )
                        self.made.add([Finding(
                            "I4", -1, one.first[2], detail, one.first[1], one.source,
                            one.first[0], from_ns=before.last[2],
                        )])  # fmt: skip
                last[one.source] = one

    def _join_lines(self) -> None:
        """I1: from range to range, too, a source's messages keep their order."""
        high: dict[tuple[int, int], Line] = {}
        for result in self.results:
            for line in result.lines:
                before = high.get((line.source, line.life))
                if before is not None and line.low[0] <= before.high[0]:
                    self.suspects.append(
                        Suspect(line.low[1], line.low[2], -1, 0, line.source, -1, BACKWARDS)
                    )
                if before is None or line.high[0] > before.high[0]:
                    high[line.source, line.life] = line

    # -- the search ------------------------------------------------------------------------

    def _search(self) -> None:
        """What becomes of messages that were not found, or not where they should be."""
        found = search(self.run, self.mapper, {suspect.fp for suspect in self.suspects})
        done: set[tuple[int, int, str]] = set()
        for suspect in sorted(self.suspects, key=lambda one: one.position):
            name = (suspect.position, suspect.fp, suspect.why)
            if name in done:
                continue
            done.add(name)
            self._settle(suspect, found.get(suspect.fp, Found()))

    def _settle(self, suspect: Suspect, found: Found) -> None:
        positions = sorted({position for position, *_ in found.deliveries})
        first = next((d for d in found.deliveries if d[0] == suspect.position), None)
        site, time = suspect.site, suspect.time
        source, number = suspect.source, suspect.number
        if site < 0 and first is not None:
            _, site, time, source, number = first
        at = suspect.position

        def report(invariant: str, detail: str, since: int) -> None:
            self.made.add([Finding(
                invariant, site, time, f"position {at}: {detail}", at, source, number, suspect.fp,
                since,
            )])  # fmt: skip

        what = f"number {number} of source {source}"
        since = min((d[2] for d in found.deliveries), default=-1)
        if not found.submits:
            report("I4", f"nobody submitted {what} with this content", -1)
        elif suspect.why == OTHER:
            return  # a message of another position: that two have changed places is said already
        elif len(positions) > len(found.submits):
            if at != positions[0]:
                report("I4", f"{what} was delivered at position {positions[0]} already", since)
        elif suspect.why == BACKWARDS and len(found.submits) == 1:
            origin = found.submits[0]
            report("I1", f"{what} comes after a later one of site {origin[0]}", origin[1])
        else:
            # Submitted longer ago than the fast way looks back, or one of several that are alike.
            raise Unsure


class Found(Struct):
    """Where a message occurs."""

    submits: list[tuple[int, int]] = field(default_factory=list)
    """Site, time."""
    deliveries: list[tuple[int, int, int, int, int]] = field(default_factory=list)
    """Position, site, time, source, number."""


def search(run: Run, mapper: Mapper, fps: set[int]) -> dict[int, Found]:
    """All that a trace says about these messages."""
    wanted = np.array(sorted(fps), np.int64)
    every = [(p, g) for p, part in enumerate(run.parts) for g in range(len(part.rows))]
    items = [every[i : i + SEARCH_GROUPS] for i in range(0, len(every), SEARCH_GROUPS)]

    def task(groups: list[tuple[int, int]]) -> bytes:
        readers: dict[int, Reader] = {}
        submits: list[tuple[int, ...]] = []
        deliveries: list[tuple[int, ...]] = []
        for reader, group in read(readers, run.parts, groups):
            for rows, out in zip(
                reader.messages(group, run.users), (submits, deliveries), strict=True
            ):
                these = rows.of(np.isin(rows.fp, wanted))
                columns = [these.fp, these.site, these.time]
                if out is deliveries:
                    columns = [these.fp, these.position, these.site, these.time, these.source,
                               these.number]  # fmt: skip
                out += zip(*(values.tolist() for values in columns), strict=True)
        return msgspec.msgpack.encode((submits, deliveries))

    found: dict[int, Found] = {}
    for result in mapper(task, items):
        submits, deliveries = msgspec.msgpack.decode(result)
        for fp, *rest in submits:
            found.setdefault(fp, Found()).submits.append(tuple(rest))
        for fp, *rest in deliveries:
            found.setdefault(fp, Found()).deliveries.append(tuple(rest))
    return found
