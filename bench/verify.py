"""How fast `verify` is, against DuckDB on the same files in the same run, and what it finds.

Traces of five members, one file each, sorted by position, are made with numpy.  Then, on a warm
session, in turn:

- the fast way: a proof by ranges of positions, numpy in the task;
- DuckDB: the same checks in three formulations (`bench.verify_duckdb`), of which the best counts;
- the oracle: a proof of the same in Spark SQL.

Each is measured on the wall and in processor time of all processes that take part; on a machine
that is shared the latter says more.

    python -m bench.verify [--rows 10000000] [--small 1000000] [--rounds 3] [--no-oracle] [--json]
    python -m bench.verify --faults [--rows 1000000]        every planted fault, found or not
    python -m bench.verify --live [--messages 200]          live and simulated runs, all clean
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from bench import verify_duckdb
from bench.cpu import Measured
from roundelay.pipeline.session import SparkOptions, spark_session
from roundelay.pipeline.verify import judge
from roundelay.pipeline.verify.runs import TracedRun, find_runs
from roundelay.pipeline.verify.verdict import RunJudgement
from roundelay.runs.simulate import SimulateParams, simulate
from roundelay.sim.families.registry import SIMULATED
from tools import live_traces
from tools.planted_traces import FAULTS, Fault, Story, clean

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MEMBERS = 5
UNITS = ("wall_s", "cpu_s")


def made(folder: Path, deliveries: int) -> TracedRun:
    """A clean trace with so many deliveries, a file per member."""
    folder.mkdir()
    story = clean(deliveries * (MEMBERS + 1) // MEMBERS, sites=MEMBERS)
    story.write_apart(folder)
    (run,) = find_runs([folder], folder)
    return run


# -- speed -------------------------------------------------------------------------------------


def speed(rows: int, small: int, rounds: int, oracle: bool) -> dict[str, Any]:
    found: dict[str, Any] = {"sizes": {"small": small, "large": rows}}
    with tempfile.TemporaryDirectory(prefix="roundelay-bench-") as name:
        sizes = {"small": small, "large": rows}
        runs = {size: made(Path(name) / size, count) for size, count in sizes.items()}
        start = perf_counter()
        with spark_session("bench", SparkOptions()) as spark:
            spark.range(1).count()
            found["start_s"] = perf_counter() - start
            for strategy in ("fast", "sql") if oracle else ("fast",):
                _judged(spark, runs["small"], strategy)  # workers are warm from here on
            for size, run in runs.items():
                seen: dict[str, list[Measured]] = {}
                for number in range(rounds):
                    seen.setdefault("fast", []).append(_judged(spark, run, "fast"))
                    for how, measured in verify_duckdb.formulations(run).items():
                        seen.setdefault(how, []).append(measured)
                    if oracle and number < max(1, rounds - 1):
                        seen.setdefault("oracle", []).append(_judged(spark, run, "sql"))
                found[size] = {
                    how: {unit: min(getattr(one, unit) for one in every) for unit in UNITS}
                    for how, every in seen.items()
                }
                print(f"{sizes[size]:,} deliveries: {found[size]}", file=sys.stderr, flush=True)
    for unit in UNITS:
        large, little = found["large"], found["small"]
        best = min(one[unit] for how, one in large.items() if how not in ("fast", "oracle"))
        ratios = {"fast_to_duckdb": large["fast"][unit] / best}
        if oracle:
            # SQL against SQL of the same kind; "side by side" is the fast way's idea in DuckDB.
            like = min(one[unit] for how, one in large.items() if how in verify_duckdb.GROUPED)
            ratios["oracle_to_duckdb"] = large["oracle"][unit] / like
            ratios["oracle_to_best"] = large["oracle"][unit] / best
            ratios["oracle_growth"] = (
                large["oracle"][unit] / little["oracle"][unit] / (rows / small)
            )
        ratios["fast_growth"] = large["fast"][unit] / little["fast"][unit] / (rows / small)
        found[unit] = ratios
    return found


def _judged(spark: SparkSession, run: TracedRun, strategy: str) -> Measured:
    with Measured() as measured:
        judgement = judge(spark, run, strategy=strategy)
    assert judgement.holds, judgement
    assert judgement.strategy == strategy
    return measured


def show_speed(found: dict[str, Any]) -> None:
    print(f"session and first job: {found['start_s']:.1f} s")
    for size, count in found["sizes"].items():
        print(f"{count:,} deliveries")
        for how, one in found[size].items():
            name = how if how in ("fast", "oracle") else f"DuckDB, {how}"
            print(f"  {name:28} {one['wall_s']:7.2f} s on the wall {one['cpu_s']:7.2f} s of work")
    print(f"{'':26} {'wall':>6} {'work':>6}")
    for ratio, bound in (
        ("fast_to_duckdb", "its best formulation; at most 1"),
        ("oracle_to_duckdb", "the same kind of SQL, groups and windows; at most 6"),
        ("oracle_to_best", "its best formulation"),
        ("fast_growth", "1 is linear"), ("oracle_growth", "1 is linear"),
    ):  # fmt: skip
        if ratio in found["wall_s"]:
            wall, work = found["wall_s"][ratio], found["cpu_s"][ratio]
            print(f"{ratio.replace('_', ' '):26} {wall:6.2f} {work:6.2f}  ({bound})")


# -- faults ------------------------------------------------------------------------------------


def faults(rows: int) -> dict[str, Any]:
    """Every planted fault in a trace of so many rows."""
    found: dict[str, Any] = {}
    stories: dict[tuple[Any, ...], Story] = {}

    def planted(fault: Fault) -> Story:
        kind = (fault.order, fault.destinations, fault.transmissions)
        if kind not in stories:
            stories[kind] = clean(
                rows, order=fault.order, destinations=fault.destinations,
                transmissions=fault.transmissions,
            )  # fmt: skip
        whole = stories[kind]
        columns = {name: column.copy() for name, column in whole.columns.items()}
        story = Story(columns, list(whole.words), dict(whole.params))
        fault.plant(story, 0.5)
        return story

    start = perf_counter()
    with tempfile.TemporaryDirectory(prefix="roundelay-bench-") as name:
        path = Path(name) / "trace.parquet"
        with spark_session("bench", SparkOptions()) as spark:
            print(
                f"{'':7} {'fault':18} {'broken':14} {'wall':>7} {'work':>7}  judged by", flush=True
            )
            for fault in FAULTS:
                planted(fault).write(path)
                (run,) = find_runs([path], Path(name))
                with Measured() as measured:
                    made = judge(spark, run)
                broken = sorted(k for k, v in made.invariants.items() if v.broken)
                ok = set(fault.breaks) <= set(broken)
                found[fault.name] = {
                    "found": ok, "broken": broken, "rows": run.rows,
                    "wall_s": measured.wall_s, "cpu_s": measured.cpu_s,
                }  # fmt: skip
                print(f"{'found' if ok else 'MISSED':7} {fault.name:18} {' '.join(broken):14} "
                      f"{measured.wall_s:5.1f} s {measured.cpu_s:5.1f} s  {made.strategy}",
                      flush=True)  # fmt: skip
    count = sum(one["found"] for one in found.values())
    print(f"{count} of {len(found)} found, in {perf_counter() - start:.0f} s altogether")
    return found


# -- live and simulated runs -------------------------------------------------------------------


def live(messages: int) -> dict[str, Any]:
    """Clean runs of every protocol: live ones of every service, and simulated ones."""
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="roundelay-bench-") as name:
        home = Path(name)
        for service in live_traces.SERVICES:
            asyncio.run(live_traces.run(service, home / "live" / service, messages // 4))
        for protocol in SIMULATED:
            folder = home / "simulated" / protocol
            folder.mkdir(parents=True)
            params = SimulateParams(
                protocol=protocol, sites=12 if protocol == "wide" else 5, messages=messages,
                loss=0.05, seed=1,
            )  # fmt: skip
            simulate(params, trace=folder / "trace.parquet")
        runs = [run for run in find_runs([home], home / "scratch") if run.rows]
        with spark_session("bench", SparkOptions()) as spark:
            for run in runs:
                found[run.name.removeprefix(f"{home}/")] = _told(judge(spark, run))
                _show_run(*list(found.items())[-1])
    broken = [name for name, one in found.items() if one["broken"]]
    print(f"{len(found)} runs, {len(broken)} with something broken")
    return found


def _told(made: RunJudgement) -> dict[str, Any]:
    verdicts = made.invariants.items()
    return {
        "order": made.order, "sites": made.sites, "rows": made.rows, "strategy": made.strategy,
        "checked": {name: one.checked for name, one in verdicts if one.checked},
        "not checked": {name: one.note for name, one in verdicts if not one.checked},
        "broken": {name: one.broken for name, one in verdicts if one.broken},
    }  # fmt: skip


def _show_run(name: str, one: dict[str, Any]) -> None:
    checked = ", ".join(f"{what} {count}" for what, count in one["checked"].items())
    left = ", ".join(one["not checked"])
    state = "BROKEN" if one["broken"] else "clean"
    print(f"{state:6} {name}: order {one['order']}, {one['rows']} rows")
    print(f"       checked {checked}; nothing to check for {left}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=0, help="deliveries, or rows with --faults")
    parser.add_argument("--small", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--faults", action="store_true")
    parser.add_argument("--live", action="store_true")
    parser.add_argument("--messages", type=int, default=200, help="of each run, with --live")
    parser.add_argument("--no-oracle", action="store_true", help="leave Spark SQL out")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.faults:
        found = faults(args.rows or 1_000_000)
        bad = not all(one["found"] for one in found.values())
    elif args.live:
        found = live(args.messages)
        bad = any(one["broken"] for one in found.values())
    else:
        found, bad = (
            speed(args.rows or 10_000_000, args.small, args.rounds, not args.no_oracle),
            False,
        )
        if not args.json:
            show_speed(found)
    if args.json:
        print(json.dumps(found, indent=1))
    sys.exit(bad)


if __name__ == "__main__":
    main()
