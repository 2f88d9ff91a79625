"""Which row groups the tasks of a proof read."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from msgspec import Struct

from roundelay.pipeline.verify.survey import LATER, RowGroup

RANGE_MESSAGES: Final = 2_500_000
"""Deliveries that one task lays side by side: some 250 MB."""

RANGES_LEAST: Final = 4
GROUPS_LEAST: Final = 2
"""Row groups per file that a range should have: those at its borders are read twice."""

Place = tuple[int, int]
"""Of a row group: (part, number)."""


class PositionRange(Struct):
    """Positions lo…hi-1, the row groups that have them, and others with submissions.

    Of the latter (`back`) those come first that are likelier to have what the range delivers.
    """

    lo: int
    hi: int
    groups: list[Place]
    back: list[Place]


class SubmissionWindow(Struct):
    """Row groups whose submissions are owned, and those behind them in time."""

    groups: list[Place]
    behind: list[Place]


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
        end = max(g.last_ns for g in inside)
        begins = dict(sorted(places, reverse=True))  # part → its first row group inside
        others = [g for g in with_submits if g.first_ns <= end and g.place not in places]
        # A message is submitted before it is delivered: what its file has before the range comes
        # first, the nearest of it foremost.
        others.sort(key=lambda g: g.number >= begins.get(g.part, LATER))
        ranges.append(PositionRange(lo, hi, sorted(places), [g.place for g in others]))
    return ranges


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


def _target(groups: Sequence[RowGroup], messages: int) -> int:
    """How many deliveries one task should have."""
    total = sum(group.deliveries for group in groups)
    parts = len({group.part for group in groups})
    least = GROUPS_LEAST * parts * total // max(1, len(groups))
    return max(1, min(messages, max(total // RANGES_LEAST, least)))
