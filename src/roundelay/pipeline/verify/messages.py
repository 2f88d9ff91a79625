"""The fast way where there is no common order: windows of submissions, each proved clean in a task.

A window owns the messages that were submitted in some row groups, and looks for their deliveries
there and in the row groups behind, until everything that is owed has been found.  All that has to
be true of a message at each site is then a comparison of arrays; how the windows follow one
another is settled on the driver by their first and last deliveries.

This way proves a trace clean or says nothing (`Undecided`): whatever is odd, a delivery that no
window owns among it, is left to the oracle (`verify.sql_sources`).
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from msgspec import Struct, field

from roundelay.core.events import SUBMIT
from roundelay.pipeline.verify.columns import (
    Array,
    Messages,
    RowGroups,
    TraceFileReader,
    column,
    events_of,
    joined,
    numbers,
    present,
)
from roundelay.pipeline.verify.control import Control
from roundelay.pipeline.verify.runs import TracedRun
from roundelay.trace.checkers.check import destinations_of
from roundelay.trace.checkers.checkers import FIFO

BEHIND_MESSAGES: Final = 8_000_000
"""Deliveries read in search of those of one window."""


class SubmissionWindow(Struct):
    """Row groups (part, group) whose submissions are owned, and those behind them in time."""

    groups: list[tuple[int, int]]
    behind: list[tuple[int, int]]


class SourceCourse(Struct):
    """What one source, in one life, brought to one site, in one life: first and last delivery."""

    site: int
    life: int
    source: int
    own_life: int
    first: int
    last: int


class WindowResult(Struct):
    """What a window says."""

    first_ns: int = 0
    odd: str = ""
    """Why it is not proved clean, if so."""
    claimed: int = 0
    due: int = 0
    own: int = 0
    courses: list[SourceCourse] = field(default_factory=list)


def judge_window(
    run: TracedRun, control: Control, addressed: bool, task: SubmissionWindow
) -> WindowResult:
    """Whether all is well with the messages of `task`."""
    result = WindowResult()
    files = RowGroups(run)
    submits, deliveries = zip(*files.messages(task.groups), strict=True)
    sent = joined(submits)
    if not len(sent):
        return result
    result.first_ns = int(sent.time.min())
    for_whom = np.ones((len(run.users), len(sent)), bool)
    if addressed:
        goes_to = [_destinations(run, files.reader(part), group) for part, group in task.groups]
        for_whom = np.concatenate(goes_to, axis=1)
    in_order = np.argsort(sent.fp, kind="stable")
    sent, for_whom = sent.of(in_order), for_whom[:, in_order]
    if (sent.fp[1:] == sent.fp[:-1]).any():
        result.odd = "messages that are alike"
        return result
    owed = _owed(run, control, sent) & for_whom
    result.due = int(owed.sum())
    seen = WindowDeliveries(run, control, sent, for_whom)
    seen.take(joined(deliveries))
    looked = 0
    behind = files.messages(task.behind, submits=False)
    while not seen.odd and (owed & ~seen.lately).any() and looked <= BEHIND_MESSAGES:
        _, delivered = next(behind, (None, None))
        if delivered is None:
            break
        looked += len(delivered)
        seen.take(delivered)
    result.claimed = seen.claimed
    if control.settled and not seen.odd:
        if (owed & ~seen.lately & seen.lately.any(axis=0)).any():
            seen.odd = "not everything that is owed was found"
        result.own = seen.own()
    result.odd = seen.odd
    if not result.odd and run.order == FIFO:
        seen.courses(result)
    return result


def _owed(run: TracedRun, control: Control, sent: Messages) -> Array:
    """To which of the users (rows) which message (columns) is owed in the end."""
    owed = np.zeros((len(run.users), len(sent)), bool)
    moment = run.moments(sent)
    for row, site in enumerate(run.users):
        if control.settled and site not in control.up:
            continue
        for source in present(sent.site):
            mine = sent.site == source
            for since, till in control.owed.get((source, site), []):
                owed[row] |= mine & (moment >= since) & (moment < till)
    return owed


def _destinations(run: TracedRun, reader: TraceFileReader, group: int) -> Array:
    """For which users (rows) the messages submitted in a row group (columns) are."""
    table = reader.table(group, ["event", "site", "info", "messages"])
    site = numbers(table, "site")
    rows = np.flatnonzero((events_of(table) == SUBMIT) & np.isin(site, run.users))
    offsets = column(table, "messages").offsets.to_numpy()
    sizes = offsets[rows + 1] - offsets[rows]
    words = column(table, "info").to_numpy(zero_copy_only=False)[rows]
    masks: dict[Any, Array] = {None: np.ones(len(run.users), bool)}
    for word in set(words.tolist()) - {None}:
        masks[word] = np.isin(run.users, destinations_of(word))
    each = [masks[word] for word in words.tolist()]
    spread: Array = np.repeat(np.array(each).reshape(len(rows), len(run.users)), sizes, axis=0)
    return spread.T


class WindowDeliveries:
    """Deliveries of a window's messages, as they are found."""

    def __init__(self, run: TracedRun, control: Control, sent: Messages, for_whom: Array) -> None:
        self.run, self.control, self.sent, self.for_whom = run, control, sent, for_whom
        self.odd = ""
        self.claimed = 0
        self.lately = np.zeros(for_whom.shape, bool)
        """User × message: delivered in the site's last life."""
        self.places: dict[tuple[int, int], Array] = {}
        """(site, life) → where each message was delivered; -1 if it was not."""

    def take(self, rows: Messages) -> None:
        sent, run = self.sent, self.run
        if not len(rows) or self.odd:
            return
        at = np.minimum(np.searchsorted(sent.fp, rows.fp), len(sent) - 1)
        ours = sent.fp[at] == rows.fp
        rows, at = rows.of(ours), at[ours]
        self.claimed += len(rows)
        if (sent.site[at] != rows.source).any():
            self.odd = "a message under another name"
        elif (sent.time[at] > rows.time).any():
            self.odd = "a delivery before the submission"
        moment = run.moments(rows)
        for number, site in enumerate(run.users):
            mine = np.flatnonzero(rows.site == site)
            if not len(mine):
                continue
            if not self.for_whom[number, at[mine]].all():
                self.odd = "a delivery that is not for the site"
            lives = self.control.life(site, moment[mine])
            for life in present(lives):
                these = mine[lives == life]
                places = self.places.setdefault((site, life), np.full(len(sent), -1, np.int64))
                where = at[these]
                if (places[where] >= 0).any() or len(np.unique(where)) < len(where):
                    self.odd = "a message twice"
                places[where] = rows.key[these]
            self.lately[number, at[mine[lives == self.control.last_life(site)]]] = True

    def own(self) -> int:
        """I5: own messages that are due; odd if one of them has no fate."""
        sent, control = self.sent, self.control
        count = 0
        moment = self.run.moments(sent)
        for number, site in enumerate(self.run.users):
            if site not in control.up:
                continue
            mine = (sent.site == site) & self.for_whom[number]
            mine &= control.own_life(site, moment) == control.last_own_life(site)
            delivered = np.zeros(len(sent), bool)
            for (where, _), places in self.places.items():
                if where == site:
                    delivered |= places >= 0
            count += int(mine.sum())
            if (mine & ~delivered).any():
                self.odd = "an own message without a fate"
        return count

    def courses(self, result: WindowResult) -> None:
        """I1: at each site the messages of a source come in its order."""
        sent, control = self.sent, self.control
        moment = self.run.moments(sent)
        by_key = np.argsort(sent.key, kind="stable")
        for source in present(sent.site):
            mine = by_key[sent.site[by_key] == source]
            own = control.own_life(source, moment[mine])
            for own_life in present(own):
                these = mine[own == own_life]
                for (site, life), places in self.places.items():
                    where = places[these]
                    where = where[where >= 0]
                    if not len(where):
                        continue
                    if (np.diff(where) <= 0).any():
                        result.odd = "messages out of turn"
                    result.courses.append(
                        SourceCourse(site, life, source, own_life, int(where[0]), int(where[-1]))
                    )


def in_turn(results: list[WindowResult]) -> bool:
    """Whether from window to window, too, every site got each source's messages in its order."""
    last: dict[tuple[int, int, int, int], int] = {}
    for result in sorted(results, key=lambda one: one.first_ns):
        for course in result.courses:
            name = (course.site, course.life, course.source, course.own_life)
            if course.first <= last.get(name, -1):
                return False
            last[name] = course.last
    return True
