"""The time axis of a diagram: true to scale where something happens, shortened where nothing does.

PDUs travel for a millisecond and then sites wait for fifty.  To scale, either the arrows are
vertical strokes or the picture is a mile wide.  So a quiet stretch of more than a few transit
times gets a fixed width and is marked as a break, with its length written on it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from itertools import pairwise
from typing import Final

QUIET: Final = 2.5
"""Transit times without any event after which time is shortened."""

BREAK_PX: Final = 42
"""Width of a shortened stretch; half of it where there are many."""

LEGIBLE: Final = 26
"""Below this many px for a transit time a picture may become wider than asked for …"""

STRETCH: Final = 1.5
"""… but not wider than this many times."""

TRANSIT_PX: Final = 110.0
"""Most px for a transit time."""

TICK_PX: Final = 84
"""Least distance of two labelled ticks."""


class Axis:
    """Maps times (ns) to x coordinates (px).

    `times` are those of all events, `transit_ns` a typical time of travel; the result is about
    `width` px wide, unless transit times would be shorter than legible or longer than TRANSIT_PX.
    """

    def __init__(
        self,
        times: Iterable[int],
        from_ns: int,
        to_ns: int,
        transit_ns: int,
        *,
        left: float,
        width: float,
    ) -> None:
        knots = sorted({time for time in times if from_ns < time < to_ns} | {from_ns, to_ns})
        steps = [b - a for a, b in pairwise(knots)]
        unit = max(1, transit_ns)
        unit_px, break_px = TRANSIT_PX, float(BREAK_PX)
        quiet = QUIET * unit
        # The scale decides which stretches are worth shortening, and these decide the scale.
        for _ in range(6):
            quiet = max(QUIET * unit, 1.5 * break_px * unit / unit_px)
            scaled = max(1e-9, sum(step for step in steps if step <= quiet) / unit)
            breaks = sum(step > quiet for step in steps)
            break_px = max(BREAK_PX / 2, min(BREAK_PX, 0.4 * width / max(1, breaks)))
            room = max(0.2 * width, width - break_px * breaks)
            wider = min(LEGIBLE, (STRETCH * width - break_px * breaks) / scaled)
            unit_px = min(TRANSIT_PX, max(4.0, room / scaled, wider))
        self.px_per_ns = unit_px / unit
        self.knots = knots
        self.xs = [left]
        self.breaks: list[tuple[float, float, int]] = []  # (x from, x to, ns)
        for step in steps:
            x = self.xs[-1]
            if step > quiet:
                self.breaks.append((x, x + break_px, step))
                self.xs.append(x + break_px)
            else:
                self.xs.append(x + step * self.px_per_ns)

    @property
    def left(self) -> float:
        return self.xs[0]

    @property
    def right(self) -> float:
        return self.xs[-1]

    def x(self, time: int) -> float:
        """Where `time` is; times outside the window go on to scale."""
        knots, xs = self.knots, self.xs
        if time <= knots[0]:
            return xs[0] - (knots[0] - time) * self.px_per_ns
        if time >= knots[-1]:
            return xs[-1] + (time - knots[-1]) * self.px_per_ns
        i = bisect_right(knots, time) - 1
        share = (time - knots[i]) / (knots[i + 1] - knots[i])
        return xs[i] + share * (xs[i + 1] - xs[i])

    def ticks(self) -> list[tuple[float, str]]:
        """(x, label in ms) of marks at round times, and where a run without any begins."""
        step = _round_up(TICK_PX / self.px_per_ns)
        decimals = max(0, 6 - (len(str(step)) - 1))
        ticks: list[tuple[float, str]] = []
        for start, stop in self._runs():
            first = -(-start // step) * step
            if first > stop:
                ticks.append((self.x(start), f"{start / 1e6:,.{max(1, decimals)}f}"))
            for time in range(first, stop + 1, step):
                ticks.append((self.x(time), f"{time / 1e6:,.{decimals}f}"))
        return ticks

    def _runs(self) -> list[tuple[int, int]]:
        """Stretches of time without a break."""
        broken = {start for start, _, _ in self.breaks}
        runs = []
        begin = self.knots[0]
        for i, (time, x) in enumerate(zip(self.knots, self.xs, strict=True)):
            if x in broken:
                runs.append((begin, time))
                begin = self.knots[i + 1]
        runs.append((begin, self.knots[-1]))
        return runs


def _round_up(ns: float) -> int:
    """The next 1, 2 or 5 times a power of ten."""
    power = 1
    while True:
        for factor in (1, 2, 5):
            if factor * power >= ns:
                return factor * power
        power *= 10
