"""Sweep: a grid of simulations on Spark, one row a run.

    DIR/params.json       which grid this is
    DIR/runs.parquet      one row per run, written as its task ends
    DIR/summary.parquet   one row per point and measure: mean, ci95, model, deviation

A task is a bin of runs (`grid.bins`), the longest first; its rows go to their place when it ends
(Hadoop's output committer 2), not when all have ended.  So a sweep that was interrupted or killed
has lost no more than the bins that were under way, and the same command goes on with the rest.

Nothing in the rows depends on where or when a run was made.  The folder has to be one that all
executors and the driver can write.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct, structs

from roundelay.core.errors import ConfigError
from roundelay.pipeline import schemas
from roundelay.pipeline.research.claims import CONTROL, PARTS, PDUS, ROUNDS, SLOTS, STORAGE, parts
from roundelay.pipeline.research.grid import Grid, SweepRun, bins
from roundelay.pipeline.research.summary import WHERE, summarise
from roundelay.pipeline.schemas import spark_schema
from roundelay.pipeline.spark.executors import on_executors
from roundelay.pipeline.spark.failures import spark_errors
from roundelay.pipeline.spark.progress import watching
from roundelay.runs.folder import PARAMS, json_text
from roundelay.runs.simulate import SimulateParams, simulate

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RUNS: Final = "runs.parquet"
SUMMARY: Final = "summary.parquet"
VERSION: Final = 1
VERSION_KEY: Final = b"roundelay.sweep.version"

_TYPES: Final = {
    pa.string(): "experiment point protocol profile load policy run violation measure",
    pa.int32(): """index sites resilience destinations kw kr size repetition violations runs
        undelivered""",
    pa.int64(): f"seed messages pdus drain_pdus events lost_copies {STORAGE}",
    pa.float64(): f"""tau loss hold_ms rate delay_ms_mean delay_ms_p50 delay_ms_p99 delay_ms_max
        virtual_s mean ci95 model deviation {PDUS} {CONTROL} {ROUNDS} {SLOTS} {" ".join(PARTS)}""",
    pa.bool_(): "delivered_everywhere same_order",
}
"""Types, and the columns of each."""

_TYPE_OF: Final = {name: kind for kind, names in _TYPES.items() for name in names.split()}

RUN_COLUMNS: Final = (
    *WHERE,
    *f"""rate repetition run seed messages pdus {PDUS} {CONTROL} {" ".join(PARTS)} drain_pdus
    {STORAGE} delay_ms_mean delay_ms_p50 delay_ms_p99 delay_ms_max {ROUNDS} {SLOTS} virtual_s
    events lost_copies delivered_everywhere same_order violations violation""".split(),
)
"""Of `runs.parquet`; docs/sweep.md says what each means."""

_COUNTS: Final = ("measure", "runs", "messages", "violations", "undelivered")
SUMMARY_COLUMNS: Final = (*WHERE, *_COUNTS, "mean", "ci95", "model", "deviation")

AS_THEY_END: Final = {"mapreduce.fileoutputcommitter.algorithm.version": "2"}
"""A task's file gets its name when the task ends, not when the job does."""


def arrow_schema(columns: Iterable[str]) -> pa.Schema:
    """The schema of a table, with the version of the tables."""
    fields = [(name, _TYPE_OF[name]) for name in columns]
    return pa.schema(fields, metadata={VERSION_KEY: str(VERSION).encode()})


# -- one run -----------------------------------------------------------------------------------


def measured(params: SimulateParams) -> dict[str, Any]:
    """Run it; the columns of `runs.parquet` that come from the run itself.

    A run that breaks is a row with a violation, as any other broken promise: one of them must not
    take the sweep with it.
    """
    row: dict[str, Any] = dict.fromkeys(RUN_COLUMNS)
    row |= {name: value for name, value in structs.asdict(params).items() if name in row}
    try:
        results = simulate(params, hashed=False)
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        return row | {"violations": 1, "violation": text, "delivered_everywhere": False}
    violations = results["violations"]
    row |= {name: value for name, value in results.items() if name in row}
    row |= parts(params.protocol, results["pdus_by_kind"], results["messages"])
    row["violations"] = len(violations)
    if violations:
        row["violation"] = f"{violations[0]['invariant']}: {violations[0]['detail']}"
    return row


# -- many --------------------------------------------------------------------------------------


def simulated(
    spark: SparkSession, experiment: str, work: Sequence[Sequence[SweepRun]]
) -> DataFrame:
    """A row per run, of runs in bins."""

    def row_of(run: SweepRun) -> Iterator[pa.RecordBatch]:
        row = measured(run.params) | {
            "experiment": experiment,
            "index": run.point.index,
            "point": run.point.key,
            "repetition": run.repetition,
            "run": run.run,
        }
        yield pa.RecordBatch.from_pylist([row], arrow_schema(RUN_COLUMNS))

    return on_executors(spark, work, row_of, spark_schema(schemas.RUNS))


def summary(runs: DataFrame) -> DataFrame:
    """A row per point and measure, of runs."""

    def of_point(table: pa.Table) -> pa.Table:
        rows = list(summarise(table.to_pylist()))
        return pa.Table.from_pylist(rows, arrow_schema(SUMMARY_COLUMNS))

    return runs.groupBy("point", "messages").applyInArrow(of_point, spark_schema(schemas.SUMMARY))


class Swept(Struct, frozen=True):
    """What a sweep did."""

    grid: str
    points: int
    runs: int
    kept: int
    """Runs that were there from before."""
    tasks: int
    violations: int
    undelivered: int
    """Runs in which not everybody got everything."""


def sweep(spark: SparkSession, grid: Grid, out: Path, *, force: bool = False) -> Swept:
    """Run what is missing of the grid in `out`, and summarise it."""
    from pyspark.sql import functions as f

    out = out.resolve()
    claim(out, grid, force)
    path = f"file://{out / RUNS}"
    runs = grid.runs()
    done = finished(out) & {run.run for run in runs}
    missing = [run for run in runs if run.run not in done]
    work = bins(missing)
    if work:
        with watching(spark, f"sweep {grid.name}"), spark_errors():
            new = simulated(spark, grid.name, work)
            new.write.mode("append").options(**AS_THEY_END).parquet(path)
    rows = spark.read.schema(spark_schema(schemas.RUNS)).parquet(path)
    with watching(spark, "summary"), spark_errors():
        (
            summary(rows.where(f.col("repetition") < grid.seeds))
            .repartition(1)
            .sortWithinPartitions("index", "point", "measure")
            .write.mode("overwrite")
            .parquet(f"file://{out / SUMMARY}")
        )
    columns = ["point", "messages", "violations", "undelivered"]
    points = {
        (row["point"], row["messages"]): row
        for row in pq.read_table(out / SUMMARY, columns=columns).to_pylist()
    }
    violations, undelivered = (
        sum(row[name] for row in points.values()) for name in ("violations", "undelivered")
    )
    points_and_runs = (len(grid.points), len(runs), len(done))
    return Swept(grid.name, *points_and_runs, len(work), violations, undelivered)


def finished(out: Path) -> set[str]:
    """The runs whose rows are there.  What a killed sweep left half done has no name yet.

    A file that cannot be read is removed: its runs are made again, as if it had never been there.
    """
    runs: set[str] = set()
    for file in (out / RUNS).glob("part-*.parquet"):
        try:
            runs.update(pq.read_table(file, columns=["run"]).column("run").to_pylist())
        except (pa.ArrowException, OSError):
            file.unlink()
            file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
    return runs


def claim(out: Path, grid: Grid, force: bool = False) -> None:
    """Make the folder, or find that it is of the same grid."""
    params = out / PARAMS
    try:
        before = json.loads(params.read_text(encoding="utf-8"))["fingerprint"]
    except (FileNotFoundError, NotADirectoryError):
        before = None
    except (OSError, ValueError, KeyError, TypeError):
        before = "something else"
    used = (out / RUNS).exists() or (out / SUMMARY).exists()
    if force:
        for name in (RUNS, SUMMARY):
            shutil.rmtree(out / name, ignore_errors=True)
    elif (before is not None or used) and before != grid.fingerprint:
        raise ConfigError(
            "out", out, "a new folder, or that of the same sweep; --force replaces what is there"
        )
    try:
        out.mkdir(parents=True, exist_ok=True)
        described = {
            "command": "sweep",
            "grid": grid.name,
            "fingerprint": grid.fingerprint,
            "points": len(grid.points),
            "seeds": grid.seeds,
            "messages": sorted({point.params.messages for point in grid.points}),
        }
        params.write_text(json_text(described) + "\n", encoding="utf-8")
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError("out", out, f"a folder that can be written ({reason})") from None
