"""From runs to points: means, 95 % intervals, and the model beside them.

The sums are rounded once (`math.fsum`), so the order in which rows arrive changes no digit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from math import cos, fsum, pi, sin, sqrt, tan
from typing import Any, Final

from roundelay.pipeline.research.claims import MEASURES, PDUS, SETTING, deviation, model, setting_of

WHERE: Final = ("experiment", "index", "point", *SETTING, "hold_ms", "size")
"""The columns of a run that are the same for all runs of its point."""

MANY: Final = 1000
"""Degrees of freedom from which on the expansion for large ones is right to ten digits."""


@lru_cache(maxsize=MANY)
def t95(freedom: int) -> float:
    """Student's t, 97.5 % below: what a standard error is multiplied by for a 95 % interval.

    >>> round(t95(1), 6), round(t95(4), 6), round(t95(9), 6), round(t95(5000), 6)
    (12.706205, 2.776445, 2.262157, 1.960439)
    """
    if freedom < MANY:
        low, high = 0.0, pi / 2
        while low < (angle := (low + high) / 2) < high:
            low, high = (angle, high) if _within(angle, freedom) < 0.95 else (low, angle)
        return sqrt(freedom) * tan(low)
    z, n = 1.959963984540054, float(freedom)
    return (
        z
        + (z**3 + z) / (4 * n)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * n**3)
    )


def _within(angle: float, freedom: int) -> float:
    """How much of the distribution lies between −t and t = √freedom · tan(angle).

    The finite sums for odd and for even degrees of freedom (Abramowitz and Stegun 26.7.3, 26.7.4).
    """
    odd = freedom % 2
    term = cos(angle) if odd else 1.0
    total = 0.0
    for k in range(2 + odd, freedom + 1, 2):
        total += term
        term *= cos(angle) ** 2 * (k - 1) / k
    return 2 / pi * (angle + sin(angle) * total) if odd else sin(angle) * total


def mean_and_ci95(values: Sequence[float]) -> tuple[float, float | None]:
    """The mean and half of its 95 % interval; one value alone has none.

    >>> mean, ci95 = mean_and_ci95([1.0, 2.0, 3.0])
    >>> mean, round(ci95, 3)
    (2.0, 2.484)
    """
    count = len(values)
    mean = fsum(values) / count
    if count < 2:
        return mean, None
    variance = fsum((value - mean) ** 2 for value in values) / (count - 1)
    return mean, t95(count - 1) * sqrt(variance / count)


def summarise(rows: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """One row per measure, of all runs of one point; a run that is there twice counts once."""
    runs = list({row["run"]: row for row in rows}.values())
    first = runs[0]
    where = {name: first[name] for name in WHERE}
    setting = setting_of(first)
    broken = sum(row["violations"] for row in runs)
    undelivered = sum(not row["delivered_everywhere"] for row in runs)
    for measure in MEASURES:
        values = [float(row[measure]) for row in runs if row[measure] is not None]
        if not values and measure != PDUS:
            continue
        mean, ci95 = mean_and_ci95(values) if values else (None, None)
        predicted = model(setting, measure)
        yield {
            **where,
            "measure": measure,
            "runs": len(values),
            "messages": sum(row["messages"] for row in runs),
            "violations": broken,
            "undelivered": undelivered,
            "mean": mean,
            "ci95": ci95,
            "model": predicted,
            "deviation": deviation(mean, predicted),
        }
