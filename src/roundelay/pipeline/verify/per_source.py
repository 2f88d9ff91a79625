"""A proof where there is no common order: windows of submissions, each looked at in one task.

A window owns the messages that were submitted in some row groups, and looks for their deliveries
there and in the row groups behind, until each has been found at every site that it is for.  All
that has to be true of a message at each site is then a comparison of arrays; how the windows follow
one another is settled on the driver by their first and last deliveries.

The proof asks for more than was promised: no message may have an excuse, and no delivery may be
one that no window owns.  What is not proved may be right nevertheless; `verify.diagnosis` says so,
or what is wrong.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from msgspec import Struct, field

from roundelay.core.events import SUBMIT
from roundelay.pipeline.spark.executors import Mapper
from roundelay.pipeline.verify.columns import (
    Array,
    Messages,
    OpenRowGroup,
    RowGroups,
    joined,
    present,
)
from roundelay.pipeline.verify.runs import TracedRun
from roundelay.pipeline.verify.survey import NotClean, Place, RowGroup, Survey
from roundelay.pipeline.verify.verdict import Figures
from roundelay.trace.checkers.checkers import FIFO, destinations_of

BEHIND_MESSAGES: Final = 8_000_000
"""Deliveries read in search of those of one window."""


class SubmissionWindow(Struct):
    """Row groups whose submissions are owned, and those behind them in time."""

    groups: list[Place]
    behind: list[Place]


class SourceCourse(Struct):
    """What one source brought to one site: places of the first and the last delivery."""

    site: int
    source: int
    first: int
    last: int


class WindowResult(Struct):
    """What a clean window says."""

    first_ns: int = 0
    claimed: int = 0
    """Deliveries of its messages."""
    own: int = 0
    """Messages that are for the site that submitted them."""
    courses: list[SourceCourse] = field(default_factory=list)


def prove_per_source(surveyed: Survey, mapper: Mapper, range_messages: int) -> Figures | None:
    """How much there is, if all of it is clean."""
    run, settled, addressed = surveyed.run, surveyed.control.settled, surveyed.addressed
    if not surveyed.control.plain:
        return None
    windows = [[window] for window in windows_of(surveyed, range_messages)]
    results = mapper(windows, lambda one: look(run, settled, addressed, one), WindowResult)
    clean = [result for result in results if result is not None]
    claimed = sum(result.claimed for result in clean)
    if len(clean) < len(results) or claimed != surveyed.deliveries or not _in_turn(clean):
        return None
    return Figures(claimed, 0, sum(result.own for result in clean))


def windows_of(surveyed: Survey, messages: int) -> list[SubmissionWindow]:
    """Windows of submissions, and where to look for their deliveries."""
    in_time = sorted(surveyed.groups, key=lambda g: (g.first_ns, g.place))
    target = surveyed.of_task(messages)
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


def _in_turn(results: list[WindowResult]) -> bool:
    """Whether from window to window, too, every site got each source's messages in its order."""
    last: dict[tuple[int, int], int] = {}
    for result in sorted(results, key=lambda window: window.first_ns):
        for course in result.courses:
            if course.first <= last.get((course.site, course.source), -1):
                return False
            last[course.site, course.source] = course.last
    return True


def look(
    run: TracedRun, settled: bool, addressed: bool, task: SubmissionWindow
) -> WindowResult | None:
    """What there is to say about the messages of a window if all is well with them."""
    files = RowGroups(run)
    submits, deliveries = zip(*files.messages(task.groups), strict=True)
    sent = joined(submits)
    if not len(sent):
        return WindowResult()
    for_whom = np.ones((len(run.users), len(sent)), bool)
    if addressed:
        goes_to = [_destinations(run, files.open(*place)) for place in task.groups]
        for_whom = np.concatenate(goes_to, axis=1)
    in_order = np.argsort(sent.fp, kind="stable")
    sent, for_whom = sent.of(in_order), for_whom[:, in_order]
    if (sent.fp[1:] == sent.fp[:-1]).any():
        return None  # messages that are alike
    window = WindowDeliveries(run, sent, for_whom)
    looked = 0
    try:
        window.take(joined(deliveries))
        for place in task.behind:
            if window.complete or looked > BEHIND_MESSAGES:
                break
            _, delivered = files.open(*place).messages(run.users, submits=False)
            looked += len(delivered)
            window.take(delivered)
        return None if settled and window.in_debt else window.result()
    except NotClean:
        return None


def _destinations(run: TracedRun, group: OpenRowGroup) -> Array:
    """For which users (rows) the messages submitted in a row group (columns) are."""
    rows = np.flatnonzero((group.events == SUBMIT) & group.of(run.users))
    offsets = group.column("messages").offsets.to_numpy()
    sizes = offsets[rows + 1] - offsets[rows]
    words = group.column("info").to_numpy(zero_copy_only=False)[rows]
    masks: dict[Any, Array] = {None: np.ones(len(run.users), bool)}
    for word in set(words.tolist()) - {None}:
        masks[word] = np.isin(run.users, destinations_of(word))
    each = [masks[word] for word in words.tolist()]
    spread: Array = np.repeat(np.array(each).reshape(len(rows), len(run.users)), sizes, axis=0)
    return spread.T


class WindowDeliveries:
    """Deliveries of a window's messages, as they are found."""

    def __init__(self, run: TracedRun, sent: Messages, for_whom: Array) -> None:
        self.run, self.sent, self.for_whom = run, sent, for_whom
        self.claimed = 0
        self.places = np.full(for_whom.shape, -1, np.int64)
        """User × message: where it was delivered; -1 if it was not."""
        self.own = np.array([sent.site == user for user in run.users]) & for_whom
        """User × message: whether it is the user's own, and for itself, too."""

    @property
    def complete(self) -> bool:
        """Whether every message was found wherever it goes to."""
        return not (self.for_whom & (self.places < 0)).any()

    @property
    def in_debt(self) -> bool:
        """I2, I5, I8: whether what anybody has, or an own message, is missing somewhere."""
        missing = self.for_whom & (self.places < 0)
        somewhere = (self.places >= 0).any(axis=0)
        return bool((missing & (somewhere | self.own)).any())

    def take(self, rows: Messages) -> None:
        """Find the window's messages among deliveries."""
        sent = self.sent
        at = np.minimum(np.searchsorted(sent.fp, rows.fp), len(sent) - 1)
        ours = sent.fp[at] == rows.fp
        rows, at = rows.of(ours), at[ours]
        self.claimed += len(rows)
        if (sent.site[at] != rows.source).any() or (sent.time[at] > rows.time).any():
            raise NotClean
        for user, site in enumerate(self.run.users):
            mine = np.flatnonzero(rows.site == site)
            where = at[mine]
            twice = (self.places[user, where] >= 0).any() or len(np.unique(where)) < len(where)
            if twice or not self.for_whom[user, where].all():
                raise NotClean
            self.places[user, where] = rows.key[mine]

    def result(self) -> WindowResult:
        """I1: at every site the messages of a source come in its order."""
        sent = self.sent
        result = WindowResult(int(sent.time.min()), self.claimed, int(self.own.sum()))
        if self.run.order != FIFO:
            return result
        by_key = np.argsort(sent.key, kind="stable")
        for source in present(sent.site):
            mine = by_key[sent.site[by_key] == source]
            for user, site in enumerate(self.run.users):
                where = self.places[user, mine]
                where = where[where >= 0]
                if (np.diff(where) <= 0).any():
                    raise NotClean
                if len(where):
                    course = SourceCourse(site, source, int(where[0]), int(where[-1]))
                    result.courses.append(course)
        return result
