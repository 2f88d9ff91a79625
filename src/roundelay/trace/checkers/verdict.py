"""Violations: what a checker says when a promise is broken, and where it says it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from msgspec import Struct

INVARIANTS: Final[dict[str, str]] = {
    "I1": "one order: no two sites disagree about what comes where",
    "I2": "nothing committed is lost",
    "I3": "one list at a time: versions rise, a minority never commits",
    "I4": "at most once, and only what was submitted",
    "I5": "an own message is delivered or declared indeterminate",
    "I6": "buffers stay under their caps",
    "I7": "after healing, what is pending commits in time",
    "I8": "all and only what is destined to a site",
}
"""The invariants that can be checked from outside, each in a line."""

LIMIT: Final = 100
"""Violations kept word for word; more are only counted."""


class Violation(Struct, frozen=True):
    """`invariant` was broken at `site` (-1: nowhere in particular) at `time` (ns).

    What is known of the message, if it is about one: its position, its name, its fingerprint.
    """

    invariant: str
    site: int
    time: int
    detail: str
    seq: int = -1
    source: int = -1
    number: int = -1
    fp: int | None = None
    from_ns: int = -1
    """When the story of it begins, if that is not `time`."""

    def __str__(self) -> str:
        where = f"site {self.site}, " if self.site >= 0 else ""
        return f"{self.invariant} at {where}{self.time / 1e6:.3f} ms: {self.detail}"


Report = Callable[..., None]
"""Takes a violation in, as `Judge.report` does."""


class Judge:
    """What all checkers have: violations, and I6, which is the same for every engine."""

    def __init__(self, limit: int = LIMIT) -> None:
        self.limit = limit
        self.violations: list[Violation] = []
        """The first ones, at most `limit` of them."""
        self.counts: dict[str, int] = dict.fromkeys(INVARIANTS, 0)
        """Violations seen of each invariant, also those not kept."""
        self.uncompared = 0
        """Messages that came too late to be compared: older than the horizon."""
        self.peaks: dict[str, int] = {}  # highest sample of each buffer

    def report(self, invariant: str, site: int, time: int, detail: str, **about: Any) -> None:
        """Take a violation in; `about` are the further fields of `Violation` that are known."""
        self.counts[invariant] = self.counts.get(invariant, 0) + 1
        if len(self.violations) < self.limit:
            if self.uncompared:
                detail += f" ({self.uncompared} older messages could not be compared)"
            self.violations.append(Violation(invariant, site, time, detail, **about))

    def sampled(
        self, time: int, site: int, usage: Mapping[str, int], caps: Mapping[str, int]
    ) -> None:
        peaks = self.peaks
        for name, value in usage.items():
            if value > peaks.get(name, -1):
                peaks[name] = value
            cap = caps.get(name)
            if cap is not None and value > cap:
                self.report("I6", site, time, f"{name} holds {value}, its cap is {cap}")


def span(lo: int, hi: int) -> str:
    """The half-open range lo…hi in words.

    >>> span(3, 4), span(3, 7)
    ('3', '3 to 6')
    """
    return str(lo) if hi - lo == 1 else f"{lo} to {hi - 1}"
