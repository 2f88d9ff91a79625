"""How much sooner a sweep is over on Spark than in one process that does the same runs.

Both do the same simulations, each at least half a second long: first one process, one after the
other, then Spark on local[2], into a folder as `roundelay sweep` does.  The rows must be the same.
What Spark takes to start, and for its first job, is printed apart: it is the same for any sweep.

    python -m bench.sweep [--runs 200] [--master 'local[2]'] [--json]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import platform
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from roundelay.pipeline.research.grid import Grid, SweepRun, bins, parse
from roundelay.pipeline.research.sweep import RUNS, measured, sweep
from roundelay.pipeline.session import SparkOptions, spark_session

GOAL = 1.6
LEAST_S = 0.5
MESSAGES = 5000
POINTS = {"protocol": "token", "sites": [8, 10, 12, 16, 20], "loss": [0.05, 0.1]}
COMPARED = ("seed", "pdus", "pdus_per_message", "delay_ms_mean", "storage_max", "events")


def grid_of(runs: int) -> Grid:
    """Ten points of several lengths, repeated until there are about so many runs."""
    return parse(POINTS, "bench", MESSAGES, max(1, round(runs / 10)))


def one_process(runs: list[SweepRun]) -> tuple[float, list[float], dict[str, dict[str, Any]]]:
    """Seconds in all, seconds of each, and the rows."""
    each = []
    rows = {}
    began = time.perf_counter()
    for run in runs:
        start = time.perf_counter()
        rows[run.run] = measured(run.params)
        each.append(time.perf_counter() - start)
    return time.perf_counter() - began, each, rows


def on_spark(grid: Grid, master: str) -> tuple[float, float, float, dict[str, dict[str, Any]]]:
    """Seconds to start, of a first small sweep, of the sweep, and its rows."""
    with tempfile.TemporaryDirectory(prefix="roundelay-bench-") as folder:
        began = time.perf_counter()
        with spark_session("bench", SparkOptions(master=master)) as spark:
            started = time.perf_counter()
            small = parse({"sites": [3, 4], "protocol": "token"}, "first", 10, 2)
            sweep(spark, small, Path(folder, "first"))
            ready = time.perf_counter()
            sweep(spark, grid, Path(folder, "sweep"))
            ended = time.perf_counter()
        found = pq.read_table(Path(folder, "sweep", RUNS)).to_pylist()
    rows = {row["run"]: row for row in found}
    return started - began, ready - started, ended - ready, rows


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    grid = grid_of(given.runs)
    runs = grid.runs()
    # A process of its own: nothing of Spark, and nothing of ours, is in its way.
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        alone_s, each, alone = pool.apply(one_process, (runs,))
    start_s, first_s, spark_s, rows = on_spark(grid, given.master)
    same = rows.keys() == alone.keys() and all(
        rows[run][name] == alone[run][name] for run in rows for name in COMPARED
    )
    ratio = alone_s / spark_s
    found = {
        "runs": len(runs),
        "shortest_run_s": round(min(each), 3),
        "longest_run_s": round(max(each), 3),
        "one_process_s": round(alone_s, 2),
        "spark_s": round(spark_s, 2),
        "ratio": round(ratio, 2),
        "goal": GOAL,
        "tasks": len(bins(runs)),
        "start_s": round(start_s, 2),
        "first_sweep_s": round(first_s, 2),
        "same_rows": same,
        "master": given.master,
        "python": platform.python_version(),
    }
    if given.json:
        print(json.dumps(found, indent=1))
    else:
        print(f"{len(runs)} runs of {min(each):.2f} to {max(each):.2f} s")
        print(f"one process            {alone_s:8.1f} s")
        print(f"Spark, {given.master:15s} {spark_s:8.1f} s   {ratio:.2f} x, goal {GOAL} x")
        print(f"start of Spark         {start_s:8.1f} s   apart")
        print(f"a first small sweep    {first_s:8.1f} s   apart")
        print(f"the same rows: {'yes' if same else 'NO'}")
    long_enough = min(each) >= LEAST_S
    if not long_enough:
        print(f"the shortest run is below {LEAST_S} s: this is no measurement", file=sys.stderr)
    return 0 if same and long_enough and ratio >= GOAL else 1


if __name__ == "__main__":
    sys.exit(main())
