"""What a run's few special rows say: who is up in the end, which lists there were, what is excused.

Submissions and deliveries are many and are judged where they lie.  Crashes, restarts, notices and
marks are few; they are gathered (at most `ROWS_MAX` of them).  A proof needs of them whether
anything has an excuse, and the lists: those that were announced, and who had which in force.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
from msgspec import Struct, field

from roundelay.core.errors import UsageError
from roundelay.core.events import DISK, END, MEMORY
from roundelay.pipeline.verify.columns import Array
from roundelay.pipeline.verify.runs import TracedRun
from roundelay.pipeline.verify.verdict import LISTS
from roundelay.trace.checkers.checkers import TOTAL
from roundelay.trace.checkers.verdict import Judge, Violation
from roundelay.trace.checkers.views import ViewChecker
from roundelay.trace.schema import TraceRow, notice_of

ROWS_MAX: Final = 500_000
"""Special rows of a run; more would be no run but a flood."""

EVENTS: Final = ("NOTICE", "CRASH", "RESTART", "PAUSE", "RESUME", "MARK")
NOTICES: Final = ("view", "gap_unavailable")
"""Other notices only excuse what a proof does not find in a trace."""

UNTOLD: Final = 1 << 62
"""The start of a list whose start is not told: behind every position."""


class AnnouncedList(Struct, frozen=True):
    """A list that a site announced."""

    site: int
    time: int
    version: tuple[int, ...]
    members: tuple[int, ...]
    start: int


class Control(Struct):
    """What the special rows of a run say."""

    users: tuple[int, ...]
    up: set[int]
    settled: bool = False
    plain: bool = True
    """Whether no site lost its memory of what it had delivered, or was told of a gap."""
    views: list[AnnouncedList] = field(default_factory=list)
    """In the order of time."""

    def versions(self) -> list[tuple[int, ...]]:
        """All versions that were announced, in their order."""
        return sorted({view.version for view in self.views})

    def required(self) -> tuple[Array, Array]:
        """From which position on which list (its place in `versions`) is the least to commit."""
        rank = {version: i for i, version in enumerate(self.versions())}
        first: dict[tuple[int, ...], int] = {}
        for view in self.views:
            first.setdefault(view.version, view.start)
        steps = sorted((start, rank[version]) for version, start in first.items())
        starts = np.array([start for start, _ in steps], np.int64)
        ranks = np.maximum.accumulate(np.array([r for _, r in steps] or [0], np.int64))
        return starts, ranks[: len(starts)]

    def in_force(self, site: int) -> tuple[Array, Array]:
        """At a site: times, and the newest list it had announced by the end of that instant."""
        rank = {version: i for i, version in enumerate(self.versions())}
        mine = [view for view in self.views if view.site == site]
        times = np.array([view.time for view in mine], np.int64)
        ranks = np.array([rank[view.version] for view in mine] or [-1], np.int64)
        return times, np.maximum.accumulate(ranks)[: len(times)]

    def lists_hold(self) -> bool:
        """I3, as far as the announcements alone show it."""
        judge = Judge()
        checker = ViewChecker(self.users, judge.report)
        for view in self.views:
            checker.viewed(view.time, view.site, view.version, view.members, view.start)
        return not judge.violations

    def contradictions(self) -> Iterator[Violation]:
        """`lists`: announcements that do not agree with the first one of their version."""
        known: dict[tuple[int, ...], AnnouncedList] = {}
        for view in self.views:
            first = known.setdefault(view.version, view)
            if (first.members, first.start) != (view.members, view.start):
                detail = (
                    f"list {'.'.join(map(str, view.version))} is {view.members} from position "
                    f"{view.start} here, but {first.members} from position {first.start} "
                    f"at site {first.site}"
                )
                yield Violation(
                    LISTS, view.site, view.time, detail, seq=view.start, from_ns=first.time
                )


def control_of(run: TracedRun, rows: Sequence[TraceRow]) -> Control:
    """What the special rows of a run say, which stand in the order of their files."""
    if len(rows) > ROWS_MAX:
        raise UsageError(
            f"{run.name}: more than {ROWS_MAX} crashes, notices and marks: verify it in parts"
        )
    control = Control(run.users, set(run.users))
    for row in sorted(rows, key=lambda row: row.time):
        if row.event == "MARK":
            control.settled |= row.kind == END
        elif row.site not in run.users:
            continue
        elif row.event == "NOTICE" and row.kind == "gap_unavailable":
            control.plain = False
        elif row.event == "NOTICE" and run.order == TOTAL:
            info: tuple[Any, ...] = notice_of(row).info
            start = info[3] if len(info) > 3 else UNTOLD
            view = AnnouncedList(row.site, row.time, tuple(info[0]), tuple(info[1]), start)
            control.views.append(view)
        elif row.event in ("RESTART", "RESUME"):
            control.up.add(row.site)
            if row.event == "RESTART":
                # Positions are kept on disk; without them a site does not know what it had.
                remembers = row.kind == MEMORY or (row.kind == DISK and run.order == TOTAL)
                control.plain &= remembers
        elif row.event in ("CRASH", "PAUSE"):
            control.up.discard(row.site)
    return control
