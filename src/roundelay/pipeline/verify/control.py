"""What a run's few special rows say: who was up when, which lists there were, what is excused.

Submissions and deliveries are many and are judged where they lie.  Crashes, restarts, notices and
marks are few; they are gathered (at most `ROWS_MAX` of them) and become the tables that the judges
of messages need: the *lives* of a site, the positions it was told to get elsewhere, whom a message
is owed to.  I3 is judged here as far as it is about the announced lists themselves.

A *moment* orders the rows of a run: the place of a row in the one file, or the time where sites
have files of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
from msgspec import Struct, field

from roundelay.core.errors import UsageError
from roundelay.core.events import DISK, END, HEAL, MEMORY
from roundelay.pipeline.verify.columns import Array
from roundelay.pipeline.verify.runs import TracedRun
from roundelay.pipeline.verify.verdict import NO_END, Counterexample, RunJudgement
from roundelay.trace.checkers.checkers import TOTAL
from roundelay.trace.schema import TraceRow, notice_of

ROWS_MAX: Final = 500_000
"""Special rows of a run; more would be no run but a flood."""

EVENTS: Final = ("NOTICE", "CRASH", "RESTART", "PAUSE", "RESUME", "MARK")
NOTICES: Final = ("view", "gap_unavailable", "indeterminate", "undelivered", "suspect")
"""Other notices concern no invariant."""

ALWAYS: Final = 1 << 62


class Special(Struct, frozen=True):
    """A special row and where it stands."""

    place: int
    row: TraceRow


class AnnouncedList(Struct, frozen=True):
    """A list that a site announced."""

    site: int
    time: int
    version: tuple[int, ...]
    members: tuple[int, ...]
    start: int


class Gap(Struct, frozen=True):
    """Positions lo…hi-1 that a site, in one of its lives, was told to get elsewhere."""

    site: int
    life: int
    lo: int
    hi: int
    time: int


class Control(Struct):
    """The tables.  Moments and times are in rising order."""

    sites: tuple[int, ...]
    order: str
    settled: bool = False
    last_ns: int = 0
    up: set[int] = field(default_factory=set)
    afresh: dict[int, list[int]] = field(default_factory=dict)
    """Site → moments at which it came back without memory of what it had delivered."""
    fresh_times: dict[int, list[int]] = field(default_factory=dict)
    """The times of these."""
    ended: dict[int, list[int]] = field(default_factory=dict)
    """Site → moments at which a life of it ended: its open messages may go either way."""
    crashed: dict[int, list[int]] = field(default_factory=dict)
    """Site → times."""
    returned: dict[int, list[int]] = field(default_factory=dict)
    """Site → times."""
    ups: dict[int, list[tuple[int, bool]]] = field(default_factory=dict)
    """Site → (time, whether it is up from then on)."""
    gaps: list[Gap] = field(default_factory=list)
    views: list[AnnouncedList] = field(default_factory=list)
    given_back: dict[int, set[int]] = field(default_factory=dict)
    unsure: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    """Site → (moment, hi): own numbers below hi have an unknown fate."""
    owed: dict[tuple[int, int], list[tuple[int, int]]] = field(default_factory=dict)
    """(source, site) → moments from…to at which what is submitted is owed to the site."""

    # -- what the judges ask ---------------------------------------------------------------

    def life(self, site: int, moments: Array) -> Array:
        """In which life a site delivered, by what it could remember."""
        return np.searchsorted(np.array(self.afresh.get(site, []), np.int64), moments, "right")

    def own_life(self, site: int, moments: Array) -> Array:
        """In which life a site submitted."""
        return np.searchsorted(np.array(self.ended.get(site, []), np.int64), moments, "left")

    def last_life(self, site: int) -> int:
        return len(self.afresh.get(site, []))

    def last_own_life(self, site: int) -> int:
        return len(self.ended.get(site, []))

    def is_up(self, site: int, time: int) -> bool:
        up = True
        for when, state in self.ups.get(site, []):
            if when > time:
                break
            up = state
        return up

    def covered(self, site: int, life: int, lo: int, hi: int, time: int) -> bool:
        """Whether the site was told about the positions lo…hi-1 by `time`, or could not be."""
        if time in self.crashed.get(site, ()):  # the crash swallowed the notice
            return True
        for gap in self.gaps_of(site, life):
            if gap.time <= time and gap.lo <= lo < gap.hi:
                lo = gap.hi
                if lo >= hi:
                    return True
        return False

    def gaps_of(self, site: int, life: int) -> list[Gap]:
        mine = [gap for gap in self.gaps if (gap.site, gap.life) == (site, life)]
        return sorted(mine, key=lambda gap: gap.lo)

    def beyond(self, site: int, end: int) -> int:
        """Where a site stands that delivered up to `end`: announced gaps are behind it."""
        for gap in self.gaps_of(site, self.last_life(site)):
            if gap.lo <= end:
                end = max(end, gap.hi)
        return end

    # -- lists -----------------------------------------------------------------------------

    def versions(self) -> list[tuple[int, ...]]:
        """All versions that were announced with a start, in their order."""
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
        steps = [
            (view.time, i, rank[view.version])
            for i, view in enumerate(self.views)
            if view.site == site
        ]
        steps += [(time, -1, -1) for time in set(self.fresh_times.get(site, []))]
        times, ranks, newest = [], [], -1
        for time, order, number in sorted(steps):
            newest = -1 if order < 0 else max(newest, number)
            times.append(time)
            ranks.append(newest)
        return np.array(times, np.int64), np.array(ranks, np.int64)


def control_of(run: TracedRun, rows: Sequence[Special]) -> Control:
    """The tables of a run, from its special rows."""
    if len(rows) > ROWS_MAX:
        raise UsageError(
            f"{run.name}: more than {ROWS_MAX} crashes, notices and marks: verify it in parts"
        )
    control = Control(run.users, run.order, up=set(run.users))
    control.ups = {site: [] for site in run.users}
    owing = _Owing(run.users)
    for special in sorted(rows, key=lambda one: (one.row.time, one.place)):
        row = special.row
        moment = row.time if run.apart else special.place
        control.last_ns = max(control.last_ns, row.time)
        if row.event == "MARK":
            control.settled |= row.kind == END
            if row.kind == HEAL:
                owing.healed(moment)
        elif row.site not in run.users:
            continue
        elif row.event == "NOTICE":
            _take_notice(control, owing, row, moment)
        else:
            _take_up_or_down(control, owing, row, moment)
    control.owed = owing.finished()
    return control


def _take_up_or_down(control: Control, owing: _Owing, row: TraceRow, moment: int) -> None:
    site, time = row.site, row.time
    if row.event == "CRASH":
        control.crashed.setdefault(site, []).append(time)
        if row.kind != MEMORY:
            control.ended.setdefault(site, []).append(moment)
        owing.crashed(site, row.kind == MEMORY, moment)
    elif row.event == "RESTART":
        control.returned.setdefault(site, []).append(time)
        if row.kind != MEMORY and not (row.kind == DISK and control.order == TOTAL):
            control.afresh.setdefault(site, []).append(moment)
            control.fresh_times.setdefault(site, []).append(time)
        owing.restarted(site, moment)
    up = row.event in ("RESTART", "RESUME")
    control.ups[site].append((time, up))
    (control.up.add if up else control.up.discard)(site)


def _take_notice(control: Control, owing: _Owing, row: TraceRow, moment: int) -> None:
    site = row.site
    if row.messages:
        control.given_back.setdefault(site, set()).update(row.messages)
        return
    info: tuple[Any, ...] = notice_of(row).info
    if row.kind == "view" and control.order == TOTAL:
        start = info[3] if len(info) > 3 else ALWAYS
        control.views.append(AnnouncedList(site, row.time, tuple(info[0]), tuple(info[1]), start))
    elif row.kind == "gap_unavailable":
        life = len(control.afresh.get(site, []))
        control.gaps.append(Gap(site, life, info[0], info[1], row.time))
    elif row.kind == "indeterminate":
        control.unsure.setdefault(site, []).append((moment, info[1]))
    elif row.kind == "suspect":
        owing.suspected(site, info[0], moment)


class _Owing:
    """To whom what is submitted is owed: see `roundelay.trace.checkers.per_source`."""

    def __init__(self, sites: Sequence[int]) -> None:
        self.sites = tuple(sites)
        self.up = dict.fromkeys(sites, True)
        self.given_up: set[tuple[int, int]] = set()
        self.since: dict[tuple[int, int], int | None] = {}
        self.spans: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for source in sites:
            for site in sites:
                self.since[source, site] = -1
                self.spans[source, site] = []

    def _update(self, moment: int) -> None:
        for pair, since in self.since.items():
            owed = self.up[pair[1]] and pair not in self.given_up
            if owed and since is None:
                self.since[pair] = moment
            elif not owed and since is not None:
                self.spans[pair].append((since, moment))
                self.since[pair] = None

    def _released(self, pair: tuple[int, int], moment: int) -> None:
        """Nothing that was submitted before is owed any more."""
        self.spans[pair].clear()
        if self.since[pair] is not None:
            self.since[pair] = moment

    def crashed(self, site: int, kept_memory: bool, moment: int) -> None:
        self.up[site] = False
        self._update(moment)
        if not kept_memory:
            for other in self.sites:
                self._released((other, site), moment)
                self._released((site, other), moment)

    def restarted(self, site: int, moment: int) -> None:
        self.up[site] = True
        self._update(moment)

    def suspected(self, site: int, member: int, moment: int) -> None:
        if (site, member) in self.since:
            self.given_up.add((site, member))
            self._update(moment)
            self._released((site, member), moment)

    def healed(self, moment: int) -> None:
        self.given_up.clear()
        self._update(moment)

    def finished(self) -> dict[tuple[int, int], list[tuple[int, int]]]:
        for pair, since in self.since.items():
            if since is not None:
                self.spans[pair].append((since, ALWAYS))
        return self.spans


def judge_lists(control: Control) -> list[Counterexample]:
    """I3 and `lists`, as far as the announcements alone show it."""
    findings: list[Counterexample] = []
    newest: dict[int, tuple[int, ...]] = {}
    known: dict[tuple[int, ...], AnnouncedList] = {}
    fresh = {site: list(times) for site, times in control.fresh_times.items()}
    everyone = frozenset(control.sites)
    for view in control.views:
        site, time, name = view.site, view.time, _name(view.version)
        while fresh.get(site) and fresh[site][0] <= time:
            del fresh[site][0]
            newest.pop(site, None)
        details = []
        before = newest.get(site)
        if before is not None and view.version <= before:
            details.append(f"list {name} is in force after list {_name(before)}")
        else:
            newest[site] = view.version
        distinct = set(view.members)
        if len(distinct) != len(view.members) or not distinct <= everyone or site not in distinct:
            details.append(f"list {name} with members {view.members} cannot be")
        if 2 * len(distinct & everyone) <= len(everyone):
            details.append(f"list {name} has {len(distinct)} of {len(everyone)} sites: no majority")
        findings += [Counterexample("I3", site, time, detail, seq=view.start) for detail in details]
        first = known.setdefault(view.version, view)
        if (first.members, first.start) != (view.members, view.start):
            detail = (
                f"list {name} is {view.members} from position {view.start} here, but "
                f"{first.members} from position {first.start} at site {first.site}"
            )
            findings += [
                Counterexample(invariant, site, time, detail, seq=view.start, from_ns=first.time)
                for invariant in ("I3", "lists")
            ]
    return findings


def outdated(control: Control, site: int, time: int, position: int, held: int) -> Counterexample:
    """I3: a site is the first to commit a position, under a list (its rank) that is too old."""
    versions = control.versions()
    starts, ranks = control.required()
    step = int(np.searchsorted(starts, position, "right")) - 1
    detail = (
        f"commits position {position} under list {_name(versions[held] if held >= 0 else ())}, "
        f"but list {_name(versions[ranks[step]])} starts at position {starts[step]}"
    )
    return Counterexample("I3", site, time, detail, position)


def judge_ends(control: Control, tops: dict[tuple[int, int], int]) -> Iterator[Counterexample]:
    """I2: everybody up has what anybody has.

    `tops`: (site, life) → the position behind the last that was delivered.
    """
    reached = {
        site: control.beyond(site, tops.get((site, control.last_life(site)), 0))
        for site in control.sites
    }
    end = max([*tops.values(), *reached.values()], default=0)
    for site in sorted(control.up):
        if reached[site] < end:
            detail = f"never delivered the positions {reached[site]} to {end - 1}, which others did"
            yield Counterexample("I2", site, control.last_ns, detail, seq=reached[site])


def count_total(control: Control, judgement: RunJudgement, deliveries: int, positions: int) -> None:
    """How much was looked at in a total order, but for I5."""
    judgement.add(judge_lists(control))
    judgement.checked(deliveries, "I1", "I4")
    judgement.checked(len(control.versions()), "lists")
    judgement.checked(len(control.views) + (positions if control.views else 0), "I3")
    if control.settled:
        judgement.checked(positions * len(control.up), "I2")
    else:
        judgement.note(NO_END, "I2", "I5")


def _name(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version)) if version else "none"
