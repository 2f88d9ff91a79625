"""Verdicts: every point of a sweep against what is claimed of it, and the shape of the whole.

A point is *within* or *outside* the tolerance of `claims.tolerance`, or nothing is claimed of it.
Shapes ("the busier, the fewer messages") are claims about several points at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from math import hypot, sqrt
from operator import itemgetter
from typing import Any, Final

from roundelay.core import cost
from roundelay.core.families import POSITIVE_ACK, TOKEN
from roundelay.pipeline.research.claims import (
    CONTROL,
    PDUS,
    ROUNDS,
    SLOTS,
    STORAGE,
    explain,
    setting_of,
    tolerance,
)
from roundelay.pipeline.research.summary import t95

Row = dict[str, Any]

WITHIN: Final = "within"
OUTSIDE: Final = "outside"
NO_CLAIM: Final = "no claim"

FIG6: Final = "CM84 Fig. 6"
TABLE1: Final = "CM84 Table I"
COMPLEXITY: Final = "TO/PO complexity"
SPO1: Final = "SPO Fig. 1"
SPO2: Final = "SPO Fig. 2"

SHOWN: Final = {
    "fig6": (PDUS,),
    "table1": (CONTROL, STORAGE),
    "complexity": (PDUS, ROUNDS, SLOTS),
    "spo": (SLOTS, ROUNDS),
}
"""What of a ready grid is in its figure; of any other grid it is PDUs, delay and storage."""

OTHERS: Final = (PDUS, "delay_ms_mean", "delay_ms_p99", STORAGE)

SURE: Final = 3.0
"""Standard errors by which a slope has to fall before a curve is not called convex."""


def _panel_of_fig6(row: Row) -> tuple[str, str]:
    beside = row["protocol"] == POSITIVE_ACK or row["resilience"] == 1
    panels = {3: "a", 10: "b d", 30: "c"} if beside else {}
    return FIG6, panels.get(row["sites"], "d")


PANELS: Final[dict[str, Callable[[Row], tuple[str, str]]]] = {
    "fig6": _panel_of_fig6,
    "table1": lambda row: (TABLE1, f"N = {row['sites']}"),
    "complexity": lambda row: (COMPLEXITY, row["policy"]),
    "spo": lambda row: (SPO2, f"n = {row['sites']}") if row["loss"] else (SPO1, ""),
}
"""(figure, panel) of a row of a ready grid; any other grid is a figure of its own."""


def judge(summary: Iterable[Row]) -> list[Row]:
    """The rows that figures show, each with figure, tolerance, verdict and the reason."""
    rows = list(summary)
    by_point: dict[tuple[str, int], dict[str, Row]] = {}
    for row in rows:
        by_point.setdefault((row["experiment"], row["index"]), {})[row["measure"]] = row
    judged = [
        _judged(row, by_point[row["experiment"], row["index"]])
        for row in rows
        if row["measure"] in SHOWN.get(row["experiment"], OTHERS)
    ]
    _judge_rising(judged)
    return judged


def _judged(row: Row, point: dict[str, Row]) -> Row:
    experiment = row["experiment"]
    figure, panel = PANELS[experiment](row) if experiment in PANELS else (experiment, "")
    allowed = tolerance(setting_of(row), row["measure"])
    off = row["deviation"]
    verdict, why = NO_CLAIM, ""
    if row["violations"]:
        verdict, why = OUTSIDE, f"{row['violations']} broken promises"
    elif row["undelivered"]:
        verdict, why = OUTSIDE, f"not everything delivered in {row['undelivered']} runs"
    elif allowed is not None and off is not None:
        verdict = WITHIN if allowed[0] <= off <= allowed[1] else OUTSIDE
    if not why and row["protocol"] == TOKEN and row["measure"] == PDUS:
        why = explain(off, point)
    low, high = allowed or (None, None)
    judgement = {"low": low, "high": high, "verdict": verdict, "why": why}
    return {"figure": figure, "panel": panel, **row, **judgement}


def _judge_rising(rows: list[Row]) -> None:
    """SPO Fig. 2: of lossy channels it is claimed that the delay rises with the loss."""
    for curve in _curves(rows):
        for before, after in pairwise(curve):
            if not after["violations"] and not after["undelivered"]:
                rises = after["mean"] > before["mean"]
                after["verdict"] = WITHIN if rises else OUTSIDE
                after["why"] = f"{'rises' if rises else 'falls'} from {before['mean']:.1f}"


def _lines(rows: Iterable[Row], along: str, *by: str) -> dict[tuple[Any, ...], list[Row]]:
    """The rows in the order of one column, apart by what they have in the others."""
    lines: dict[tuple[Any, ...], list[Row]] = {}
    for row in sorted(rows, key=itemgetter(along)):
        lines.setdefault(tuple(row[name] for name in by), []).append(row)
    return lines


def _curves(rows: Iterable[Row]) -> list[list[Row]]:
    """SPO's delay by loss, one list for each size of the cluster."""
    slots = [
        row
        for row in rows
        if row["figure"] in (SPO1, SPO2)
        and row["measure"] == SLOTS
        and row["destinations"] is None
        and row["mean"] is not None
    ]
    lines = sorted(_lines(slots, "loss", "sites").items())
    return [line for _, line in lines if line[-1]["loss"]]


# -- shapes ------------------------------------------------------------------------------------


def claims(judged: Sequence[Row]) -> list[dict[str, Any]]:
    """What holds of the figures as a whole: figure, claim, holds, except."""
    rows = [row for row in judged if row["mean"] is not None]
    verdicts = []
    for experiment, judges in _SHAPES.items():
        mine = [row for row in rows if row["experiment"] == experiment]
        if mine:
            for figure, text, judge_ in judges:
                exceptions = list(judge_(mine))
                claim = {"figure": figure, "claim": text}
                verdicts.append(claim | {"holds": not exceptions, "except": exceptions})
    return verdicts


def _token(rows: Iterable[Row]) -> list[Row]:
    """Fig. 6 without positive acknowledgement."""
    return [row for row in rows if row["protocol"] == TOKEN]


def _busier_is_cheaper(rows: list[Row]) -> Iterator[str]:
    lines = _lines(_token(rows), "tau", "sites", "resilience", "loss")
    for (n, level, loss), line in sorted(lines.items()):
        # The outermost lines differ at every loss; neighbours meet beyond 0.1.
        for idle, busy in pairwise(line) if loss <= 0.1 else [(line[0], line[-1])]:
            if busy["mean"] >= idle["mean"]:
                taus = f"τ = {busy['tau']:g} above {idle['tau']:g}"
                yield f"N = {n}, L = {level}, P_e = {loss:g}: {taus}"


def _loss_costs(rows: list[Row]) -> Iterator[str]:
    for line in _lines(rows, "loss", "protocol", "sites", "resilience", "tau").values():
        name = f"N = {line[0]['sites']}, L = {line[0]['resilience']}, τ = {line[0]['tau']:g}"
        if line[0]["protocol"] == POSITIVE_ACK:
            name = f"N = {line[0]['sites']}, positive acknowledgement"
        for before, after in pairwise(line):
            if after["mean"] <= before["mean"]:
                yield f"{name}: P_e = {after['loss']:g}"


def _gains_with_n(rows: list[Row]) -> Iterator[str]:
    positive = {
        (row["sites"], row["loss"]): row["mean"] for row in rows if row["protocol"] == POSITIVE_ACK
    }
    level_1 = [row for row in _token(rows) if row["resilience"] == 1]
    for (tau, loss), line in sorted(_lines(level_1, "sites", "tau", "loss").items()):
        beside = [(row["mean"], positive.get((row["sites"], loss))) for row in line]
        ratios = [mean / other for mean, other in beside if other is not None]
        if ratios != sorted(ratios, reverse=True):
            yield f"τ = {tau:g}, P_e = {loss:g}"


def _resilience_is_free_when_busy(rows: list[Row]) -> Iterator[str]:
    """The largest and the smallest count differ by 2 %, or by no more than chance makes them."""
    busy = [row for row in _token(rows) if (row["sites"], row["tau"]) == (10, 10.0)]
    for (loss,), line in sorted(_lines(busy, "mean", "loss").items()):
        chance = SURE * hypot(_error(line[0]), _error(line[-1]))
        if line[-1]["mean"] > 1.02 * line[0]["mean"] + chance:
            yield f"P_e = {loss:g}"


def _cheaper_but_for_one(rows: list[Row]) -> Iterator[str]:
    """With ten sites or more; the exception is an idle group with L = 4, from 0.1 on."""
    place = itemgetter("sites", "resilience", "tau", "loss")
    for row in sorted(_token(rows), key=place):
        n, level, tau, loss = place(row)
        above = row["mean"] > cost.x_b_positive_ack(n, loss)
        expected = (n, level, tau) == (10, 4, 0.1) and loss >= 0.1
        if n >= 10 and above != expected:
            yield f"N = {n}, L = {level}, τ = {tau:g}, P_e = {loss:g}"


def _storage_for_messages(rows: list[Row]) -> Iterator[str]:
    """Of two transfer rates the one with more control messages stores less."""
    for sites in sorted({row["sites"] for row in rows}):
        busy = [
            r for r in rows if r["sites"] == sites and r["load"] == "saturated" and not r["loss"]
        ]
        stored = {(r["kw"], r["kr"]): r["mean"] for r in busy if r["measure"] == STORAGE}
        sent = {(r["kw"], r["kr"]): r["mean"] for r in busy if r["measure"] == CONTROL}
        order = sorted(stored, key=lambda rate: (-stored[rate], sent[rate]))
        if any(sent[b] < 0.98 * sent[a] for a, b in pairwise(order)):
            yield f"N = {sites}"


def _exact(*measures: str) -> Callable[[list[Row]], Iterator[str]]:
    def differing(rows: list[Row]) -> Iterator[str]:
        for row in rows:
            claimed = row["measure"] in measures and row["model"] is not None
            if claimed and row["verdict"] == OUTSIDE:
                yield f"{row['point']}: {row['measure']} = {row['mean']:g}, not {row['model']:g}"

    return differing


def _rises(rows: list[Row]) -> Iterator[str]:
    for before, after in (pair for curve in _curves(rows) for pair in pairwise(curve)):
        if after["mean"] <= before["mean"]:
            yield f"n = {after['sites']}, P_e = {after['loss']:g}"


def _convex(rows: list[Row]) -> Iterator[str]:
    """The slope falls nowhere by more than three standard errors."""
    for curve in _curves(rows):
        for low, mid, high in zip(curve, curve[1:], curve[2:], strict=False):
            left, right = mid["loss"] - low["loss"], high["loss"] - mid["loss"]
            bend = (high["mean"] - mid["mean"]) / right - (mid["mean"] - low["mean"]) / left
            error = sqrt(
                (_error(high) / right) ** 2
                + (_error(mid) * (1 / right + 1 / left)) ** 2
                + (_error(low) / left) ** 2
            )
            if bend < -SURE * error:
                yield f"n = {mid['sites']}, P_e = {mid['loss']:g}"


def _error(row: Row) -> float:
    """The standard error of a mean."""
    runs = row["runs"]
    return row["ci95"] / t95(runs - 1) if row["ci95"] is not None and runs > 1 else 0.0


CHEAPER: Final = "10 sites or more: cheaper than positive acks, but for L = 4, τ = 0.1, P_e ≥ 0.1"
ISOLATED_COST: Final = "2n slots, or 2(d + 1) with d destinations whatever n; 3 rounds in parallel"
_SHAPES: Final[dict[str, list[tuple[str, str, Callable[[list[Row]], Iterator[str]]]]]] = {
    "fig6": [
        (FIG6, "the busier the system, the fewer messages", _busier_is_cheaper),
        (FIG6, "the more is lost, the more messages", _loss_costs),
        (FIG6, "the advantage over positive acknowledgement grows with N", _gains_with_n),
        (FIG6, "at τ = 10 the count does not depend on L", _resilience_is_free_when_busy),
        (FIG6, CHEAPER, _cheaper_but_for_one),
    ],
    "table1": [
        (TABLE1, "more control messages buy less storage", _storage_for_messages),
        (TABLE1, "storage is what the table says, with loss as well", _exact(STORAGE)),
    ],
    "complexity": [
        (COMPLEXITY, "2n PDUs and slots at best, n² − n + 1 at worst", _exact(PDUS, SLOTS)),
        (COMPLEXITY, "3 rounds on parallel channels, whatever n", _exact(ROUNDS)),
    ],
    "spo": [
        (SPO1, ISOLATED_COST, _exact(SLOTS, ROUNDS)),
        (SPO2, "the delay rises with the chance of loss", _rises),
        (SPO2, "and ever faster: no slope falls by 3 standard errors", _convex),
    ],
}
