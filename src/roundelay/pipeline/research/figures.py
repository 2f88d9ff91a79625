"""Figures: from the summaries of sweeps to pictures, one CSV, and a verdict per point.

    fig6.png, .svg …   the papers' figures (`plots`)
    figures.csv        one line per point and measure, with tolerance, verdict and reason
    verdict.json       what the command prints with --json

Summaries are small (a line per point and measure), so this needs no Spark.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from roundelay.core.errors import ConfigError, UsageError
from roundelay.pipeline.research import plots
from roundelay.pipeline.research.claims import SETTING
from roundelay.pipeline.research.sweep import SUMMARY, SUMMARY_COLUMNS
from roundelay.pipeline.research.verdicts import (
    COMPLEXITY,
    FIG6,
    NO_CLAIM,
    OUTSIDE,
    SPO1,
    SPO2,
    TABLE1,
    Row,
    claims,
    judge,
)
from roundelay.runs.folder import json_text

CSV: Final = "figures.csv"
VERDICT: Final = "verdict.json"

_COUNTS: Final = ("measure", "runs", "messages", "violations")
_JUDGED: Final = ("mean", "ci95", "model", "deviation", "low", "high", "verdict", "why")
COLUMNS: Final = ("figure", "panel", "point", *SETTING, "hold_ms", *_COUNTS, *_JUDGED)
"""Of `figures.csv`."""

Draw = Callable[[Sequence[Row]], Any]

PICTURES: Final[dict[str, list[tuple[str, Draw]]]] = {
    "fig6": [("fig6", plots.fig6)],
    "table1": [("table1", plots.table1)],
    "complexity": [("complexity", plots.complexity)],
    "spo": [("spo-fig1", plots.spo1), ("spo-fig2", plots.spo2)],
}

ORDER: Final = (FIG6, TABLE1, COMPLEXITY, SPO1, SPO2)


def read_summary(folder: Path) -> list[Row]:
    """The rows of `summary.parquet` in the folder of a sweep."""
    path = folder / SUMMARY
    if not path.exists():
        raise ConfigError("dir", folder, f"the folder of a sweep that has ended, with {SUMMARY}")
    try:
        rows: list[Row] = pq.read_table(path).to_pylist()
    except (OSError, pa.ArrowException) as error:
        reason = (str(error).splitlines() or [""])[0]
        raise UsageError(f"{path} cannot be read: {reason}") from None
    missing = [name for name in SUMMARY_COLUMNS if rows and name not in rows[0]]
    if missing or not rows:
        what = f"has no column {missing[0]}" if missing else "is empty"
        raise UsageError(f"{path} {what}: it is no summary of a sweep")
    return rows


def make_figures(folders: Sequence[Path], out: Path) -> dict[str, Any]:
    """Draw and judge all sweeps in `folders`; what came out, as `verdict.json` has it."""
    summary: list[Row] = []
    for folder in folders:
        rows = read_summary(folder)
        again = {row["experiment"] for row in rows} & {row["experiment"] for row in summary}
        if again:
            raise ConfigError("dir", folder, f"one sweep of {' and '.join(sorted(again))}")
        summary += rows
    try:
        out.mkdir(parents=True, exist_ok=True)
        judged = judge(summary)
        files = _draw(judged, out)
        with (out / CSV).open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, COLUMNS, extrasaction="ignore")
            writer.writeheader()
            writer.writerows(judged)
        verdict = _verdict(judged, [*files, CSV, VERDICT])
        (out / VERDICT).write_text(json_text(verdict) + "\n", encoding="utf-8")
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError("out", out, f"a folder that can be written ({reason})") from None
    return verdict


def _draw(judged: Sequence[Row], out: Path) -> list[str]:
    files = []
    for experiment in dict.fromkeys(row["experiment"] for row in judged):
        rows = [r for r in judged if r["experiment"] == experiment and r["mean"] is not None]
        if not rows:
            continue
        usual: list[tuple[str, Draw]] = [(_file_name(experiment), plots.other)]
        for name, draw in PICTURES.get(experiment, usual):
            plots.save(draw, rows, str(out / name))
            files += [f"{name}.png", f"{name}.svg"]
    return files


def _file_name(experiment: str) -> str:
    """A name for a file, of a name for an experiment.

    >>> _file_name("my grid/2")
    'my-grid-2'
    """
    return "".join(c if c.isalnum() or c in "-_" else "-" for c in experiment)


def _verdict(judged: Sequence[Row], files: list[str]) -> dict[str, Any]:
    names = dict.fromkeys(row["figure"] for row in judged)
    ordered = sorted(names, key=lambda name: ORDER.index(name) if name in ORDER else len(ORDER))
    outside = [row for row in judged if row["verdict"] == OUTSIDE]
    shapes = claims(judged)
    return {
        "good": not outside and all(claim["holds"] for claim in shapes),
        "figures": [
            _of_figure(name, [r for r in judged if r["figure"] == name]) for name in ordered
        ],
        "claims": shapes,
        "outside": [
            f"{row['figure']}, {row['point']}: {row['measure']} "
            + ("is not known" if row["mean"] is None else f"{row['mean']:.4g}")
            + ("" if row["model"] is None else f", model {row['model']:.4g}")
            + (f": {row['why']}" if row["why"] else "")
            for row in outside
        ],
        "files": files,
    }


def _of_figure(name: str, rows: Sequence[Row]) -> dict[str, Any]:
    judged = [row for row in rows if row["verdict"] != NO_CLAIM]
    off = [row for row in judged if row["deviation"] is not None and row["low"] != -1.0]
    worst = max(off, key=lambda row: abs(row["deviation"]), default=None)
    of_worst = ("point", "deviation", "why")
    return {
        "figure": name,
        "points": len({(row["experiment"], row["index"]) for row in rows}),
        "judged": len(judged),
        "outside": sum(row["verdict"] == OUTSIDE for row in judged),
        "worst": None if worst is None else {key: worst[key] for key in of_worst},
    }
