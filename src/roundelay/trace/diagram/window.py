"""Which stretch of a trace to look at, and what there is to see in it.

`choose` finds a window worth a picture: the first crash and how the others get over it, else the
first list change, else the first loss, else the beginning, with some hundred arrivals.
`gather` joins the rows of a window into what a diagram shows: a transmission with the fates of
its copies, stretches in which a site was down or held the token, single events.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import Final

from msgspec import Struct, field

from roundelay.core.errors import UsageError
from roundelay.core.events import IDLE
from roundelay.trace.reader import TraceFile
from roundelay.trace.schema import TraceRow

ARROWS_MAX: Final = 4000
"""Arrows in one picture; a window with more is cut short."""

BEFORE: Final = 6
"""Multicasts wanted before the point of interest."""

AFTER: Final = 24
"""Multicasts wanted after it."""

CHOSEN_MAX: Final = 240
"""Arrivals in a window of our choice, however large the group."""

MARGIN_NS: Final = 1_000_000_000
"""How far outside the window the other end of an arrow is looked for."""


# -- choosing ------------------------------------------------------------------------------


class Window(Struct, frozen=True):
    """from_ns ≤ time < to_ns, without skip_from ≤ time < skip_to."""

    from_ns: int
    to_ns: int
    skip_from: int = 0
    skip_to: int = 0


def choose(trace: TraceFile) -> Window:
    """A stretch worth looking at."""
    crash, view = _crash_and_view(trace)
    scale = _scale(trace)
    before, after = BEFORE * scale, AFTER * scale
    if crash is None or view is None:
        for point in (crash, view, trace.first("LOSE"), trace.first("SEND")):
            if point is not None:
                return Window(*_around(trace, point, before, after))
        return Window(trace.first_ns, trace.last_ns + 1)
    between = _arrivals(trace, crash, view)
    if len(between) <= after:
        return Window(*_around(trace, crash, before, len(between) + before * 2))
    # Most of that time the others merely wait and repeat: leave out the middle.
    start, skip_from = _around(trace, crash, before, before)
    skip_to, end = _around(trace, view, after // 2, after // 2)
    return Window(start, end, skip_from, skip_to)


def _crash_and_view(trace: TraceFile) -> tuple[int | None, int | None]:
    """Times of the first crash and of the first change of list after it (or at all)."""
    crash = view = None
    listed: set[int] = set()
    for row in trace.rows(events=("CRASH", "NOTICE")):
        if row.event == "CRASH":
            if crash is None:
                crash, view = row.time, None
        elif row.kind == "view":
            # The list a site starts with is no change.
            if row.site in listed and view is None:
                view = row.time
            listed.add(row.site)
        if crash is not None and view is not None:
            break
    return crash, view


def _scale(trace: TraceFile) -> int:
    """Arrivals per multicast, so that windows have as many multicasts in larger groups."""
    sites = trace.params.get("sites")
    count = len(sites) if isinstance(sites, list) else sites if isinstance(sites, int) else 5
    return max(1, min(count - 1, CHOSEN_MAX // (BEFORE + AFTER)))


def _arrivals(trace: TraceFile, from_ns: int, to_ns: int, most: int | None = None) -> list[int]:
    """Times of arrivals and losses in a window, the first `most` of them."""
    rows = trace.rows(from_ns, to_ns, events=("RECEIVE", "LOSE"))
    return [row.time for row in islice(rows, most)]


def _around(trace: TraceFile, point: int, before: int, after: int) -> tuple[int, int]:
    """A window with so many arrivals before and after `point`."""
    back = 1_000_000
    while True:
        start = max(trace.first_ns, point - back)
        earlier = _arrivals(trace, start, point)
        if len(earlier) >= before or start == trace.first_ns:
            break
        back *= 4
    later = _arrivals(trace, point, trace.last_ns + 1, after)
    first = earlier[-before] if len(earlier) >= before else start
    last = later[-1] if later else trace.last_ns
    pad = max(1, (last - first) // 100)
    return max(trace.first_ns, min(first, point) - pad), min(trace.last_ns, last) + pad


# -- gathering -----------------------------------------------------------------------------


class DrawnCopy(Struct, gc=False):
    """What became of one copy of a transmission: it reached `site` at `time`, or was lost."""

    site: int
    time: int
    lost: str = ""  # why


class Transmission(Struct):
    """A SEND and its copies."""

    row: TraceRow
    copies: list[DrawnCopy] = field(default_factory=list)


class Stretch(Struct, gc=False):
    """A site was in one state for a while, since `since`; start and end are in the window."""

    site: int
    start: int
    end: int
    state: str
    since: int


class Scene(Struct):
    """Everything that happened in a window."""

    from_ns: int
    to_ns: int
    sites: list[int]
    transmissions: list[Transmission] = field(default_factory=list)
    arrows: int = 0
    lost: int = 0
    stretches: list[Stretch] = field(default_factory=list)  # with the token, then down
    events: list[TraceRow] = field(default_factory=list)  # all but SEND, RECEIVE, LOSE, ROLE
    cut: str = ""  # why the window is shorter than asked for
    skip_from: int = 0  # a stretch left out
    skip_to: int = 0
    skipped: int = 0  # PDUs sent in it


def gather(trace: TraceFile, window: Window, arrows_max: int = ARROWS_MAX) -> Scene:
    """What there is to see in a window."""
    from_ns, to_ns = window.from_ns, window.to_ns
    if from_ns >= to_ns:
        raise UsageError(
            f"window from {_ms(from_ns)} to {_ms(to_ns)} ms is empty: the end must come later"
        )
    if to_ns <= trace.first_ns or from_ns > trace.last_ns:
        raise UsageError(
            f"window from {_ms(from_ns)} to {_ms(to_ns)} ms is outside the trace, "
            f"which goes from {_ms(trace.first_ns)} to {_ms(trace.last_ns)} ms"
        )
    everything = list(_limited(trace, window, arrows_max))
    inside = [r for r in everything if not window.skip_from <= r.time < window.skip_to]
    scene = Scene(from_ns, to_ns, sites=_sites(trace, everything))
    if len(everything) > len(inside):
        scene.skip_from, scene.skip_to = window.skip_from, window.skip_to
        scene.skipped = _count(everything, "SEND") - _count(inside, "SEND")
    arrows = _count(inside, "RECEIVE", "LOSE")
    if arrows >= arrows_max and everything[-1].time < to_ns - 1:
        scene.to_ns = everything[-1].time + 1
        scene.cut = (
            f"cut at {_ms(scene.to_ns)} ms: up to {_ms(to_ns)} ms there are more than "
            f"{arrows_max} arrows"
        )
    _join(scene, trace, inside)
    scene.stretches = _stretches(scene, trace, everything)
    drawn_otherwise = ("SEND", "RECEIVE", "LOSE", "ROLE")
    scene.events = [row for row in inside if row.event not in drawn_otherwise]
    return scene


def _limited(trace: TraceFile, window: Window, arrows_max: int) -> Iterator[TraceRow]:
    """The rows of a window up to so many arrows; what is skipped does not count."""
    arrows = 0
    for row in trace.rows(window.from_ns, window.to_ns):
        yield row
        if row.event in ("RECEIVE", "LOSE"):
            arrows += not window.skip_from <= row.time < window.skip_to
            if arrows >= arrows_max:
                return


def _count(rows: Sequence[TraceRow], *events: str) -> int:
    return sum(row.event in events for row in rows)


def _sites(trace: TraceFile, rows: Sequence[TraceRow]) -> list[int]:
    stated = trace.params.get("sites")
    if isinstance(stated, int):
        return list(range(stated))
    if isinstance(stated, list):
        return sorted(stated)
    sites = {row.site for row in rows} | {row.peer for row in rows}
    return sorted(site for site in sites if site >= 0)


def _join(scene: Scene, trace: TraceFile, inside: Sequence[TraceRow]) -> None:
    """Bring transmissions and the fates of their copies together, across the window's edges."""
    from_ns, to_ns = scene.from_ns, scene.to_ns
    by_ref: dict[int, Transmission] = {}
    ends: list[TraceRow] = []
    for row in inside:
        if row.event == "SEND":
            by_ref[row.ref] = Transmission(row)
        elif row.event in ("RECEIVE", "LOSE"):
            ends.append(row)
    unknown = {row.ref for row in ends} - by_ref.keys()
    if unknown:  # under way when the window opens
        earliest = max(trace.first_ns, from_ns - MARGIN_NS)
        for row in trace.rows(earliest, from_ns, events=("SEND",)):
            if row.ref in unknown:
                by_ref[row.ref] = Transmission(row)
    after = trace.rows(to_ns, to_ns + MARGIN_NS, events=("RECEIVE", "LOSE"))
    ends += [row for row in islice(after, ARROWS_MAX) if row.ref in by_ref]  # still under way
    for row in ends:
        transmission = by_ref.get(row.ref)
        if transmission is not None:
            lost = row.kind or "lost" if row.event == "LOSE" else ""
            transmission.copies.append(DrawnCopy(row.site, row.time, lost))
            scene.arrows += 1
            scene.lost += bool(lost)
    scene.transmissions = sorted(
        by_ref.values(), key=lambda transmission: (transmission.row.time, transmission.row.ref)
    )


def _stretches(scene: Scene, trace: TraceFile, inside: Sequence[TraceRow]) -> list[Stretch]:
    """Who held the token, then who was down, from when to when."""
    stretches: dict[bool, list[Stretch]] = {False: [], True: []}  # down or not
    begun: dict[tuple[int, bool], tuple[str, int]] = {}  # site, down or not → state, since when

    def turn(site: int, time: int, state: str = IDLE, down: bool = False) -> None:
        """Whatever `site` was it is no longer; from now on it is in `state`."""
        before, since = begun.get((site, down), (IDLE, time))
        if before != IDLE and time > scene.from_ns:
            stretch = Stretch(site, max(since, scene.from_ns), time, before, since)
            stretches[down].append(stretch)
        begun[site, down] = (state, time)

    changes = ("ROLE", "CRASH", "PAUSE", "RESTART", "RESUME")
    for row in chain(trace.rows(None, scene.from_ns, events=changes), inside):
        if row.event == "ROLE":
            turn(row.site, row.time, row.kind)
        elif row.event in ("CRASH", "PAUSE"):
            turn(row.site, row.time)
            turn(row.site, row.time, row.event.lower(), down=True)
        elif row.event in ("RESTART", "RESUME"):
            turn(row.site, row.time, down=True)
    for site in scene.sites:
        turn(site, scene.to_ns)
        turn(site, scene.to_ns, down=True)
    return stretches[False] + stretches[True]


def _ms(time_ns: int) -> str:
    return f"{time_ns / 1e6:.3f}".rstrip("0").rstrip(".")
