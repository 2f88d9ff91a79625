"""From runs to points: means, 95 % intervals, and the model beside them.

The sums are rounded once (`math.fsum`), so the order in which rows arrive changes no digit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import fsum, sqrt
from typing import Any, Final

from roundelay.pipeline.claims import MEASURES, PDUS, PLACE, deviation, model, place_of

WHERE: Final = ("experiment", "index", "point", *PLACE, "hold_ms", "size")
"""The columns of a run that are the same for all runs of its point."""

_SMALL_T: Final = (12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060)


def t95(freedom: int) -> float:
    """Student's t, 97.5 % below: what a standard error is multiplied by for a 95 % interval.

    >>> round(t95(4), 3), round(t95(9), 3), round(t95(1000), 3)
    (2.776, 2.262, 1.962)
    """
    if freedom <= len(_SMALL_T):
        return _SMALL_T[freedom - 1]
    z, n = 1.959964, float(freedom)
    return (
        z
        + (z**3 + z) / (4 * n)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * n**3)
    )


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
    place = place_of(first)
    broken = sum(row["violations"] for row in runs)
    undelivered = sum(not row["delivered_everywhere"] for row in runs)
    for measure in MEASURES:
        values = [float(row[measure]) for row in runs if row[measure] is not None]
        if not values and measure != PDUS:
            continue
        mean, ci95 = mean_and_ci95(values) if values else (None, None)
        predicted = model(place, measure)
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
