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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct, structs

from roundelay.core.errors import ConfigError
from roundelay.pipeline import schemas
from roundelay.pipeline.research.claims import CONTROL, PARTS, PDUS, ROUNDS, SLOTS, STORAGE, parts
from roundelay.pipeline.research.grid import Grid, SweepRun, bins
from roundelay.pipeline.research.summary import WHERE, summarise
from roundelay.pipeline.schemas import from_arrow, spark_schema
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

TYPES: Final[dict[str, str]] = {
    "string": """experiment point protocol profile load policy run violation measure params""",
    "int": """index sites resilience destinations kw kr size repetition violations runs undelivered
        bin place""",
    "bigint": f"""seed messages pdus drain_pdus events lost_copies {STORAGE}""",
    "double": f"""tau loss hold_ms rate delay_ms_mean delay_ms_p50 delay_ms_p99 delay_ms_max
        virtual_s mean ci95 model deviation {PDUS} {CONTROL} {ROUNDS} {SLOTS} {" ".join(PARTS)}""",
    "boolean": """delivered_everywhere same_order""",
}
"""Spark's types, and the columns of each."""

_TYPE_OF: Final = {name: kind for kind, names in TYPES.items() for name in names.split()}
_ARROW: Final = {
    "string": pa.string(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
}


def _columns(names: str) -> dict[str, str]:
    return {name: _TYPE_OF[name] for name in names.split()}


RUN_COLUMNS: Final = _columns(
    f"""{" ".join(WHERE)} rate repetition run seed messages pdus {PDUS} {CONTROL} {" ".join(PARTS)}
    drain_pdus {STORAGE} delay_ms_mean delay_ms_p50 delay_ms_p99 delay_ms_max {ROUNDS} {SLOTS}
    virtual_s events lost_copies delivered_everywhere same_order violations violation"""
)
"""Of `runs.parquet`: name → Spark's type.  docs/sweep.md says what each means."""

SUMMARY_COLUMNS: Final = _columns(
    f"""{" ".join(WHERE)} measure runs messages violations undelivered mean ci95 model deviation"""
)
TASK_COLUMNS: Final = _columns("bin place experiment index point repetition run params")

AS_THEY_END: Final = {"mapreduce.fileoutputcommitter.algorithm.version": "2"}
"""A task's file gets its name when the task ends, not when the job does."""


def arrow_schema(columns: Mapping[str, str]) -> pa.Schema:
    """The schema of a table, with the version of the tables."""
    fields = [(name, _ARROW[kind]) for name, kind in columns.items()]
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


def run_bin(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Of a task: rows that say what to run come in, rows that say what came out go."""
    schema = arrow_schema(RUN_COLUMNS)
    for batch in batches:
        for task in batch.to_pylist():
            params = msgspec.json.decode(task["params"], type=SimulateParams)
            row = measured(params) | {
                name: task[name] for name in TASK_COLUMNS if name in schema.names
            }
            yield pa.RecordBatch.from_pylist([row], schema)


# -- many --------------------------------------------------------------------------------------


def tasks(spark: SparkSession, grid: Grid, runs: Sequence[SweepRun]) -> DataFrame:
    """What is to be run, one partition a bin."""
    together = bins(runs)
    rows = []
    for number, some in enumerate(together):
        for place, run in enumerate(some):
            params = msgspec.json.encode(run.params).decode()
            point = (grid.name, run.point.index, run.point.key)
            rows.append((number, place, *point, run.repetition, run.run, params))
    frame = spark.createDataFrame(rows, from_arrow(arrow_schema(TASK_COLUMNS)))
    return frame.repartitionById(len(together), "bin").sortWithinPartitions("bin", "place")


def simulated(work: DataFrame) -> DataFrame:
    """A row per run, of `tasks`."""
    return work.mapInArrow(run_bin, spark_schema(schemas.RUNS))


def _summarise_arrow(table: pa.Table) -> pa.Table:
    return pa.Table.from_pylist(list(summarise(table.to_pylist())), arrow_schema(SUMMARY_COLUMNS))


def summary(runs: DataFrame) -> DataFrame:
    """A row per point and measure, of runs."""
    return runs.groupBy("point", "messages").applyInArrow(
        _summarise_arrow, spark_schema(schemas.SUMMARY)
    )


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
    count = 0
    if missing:
        work = tasks(spark, grid, missing)
        count = len(bins(missing))
        with watching(spark, f"sweep {grid.name}"), spark_errors():
            simulated(work).write.mode("append").options(**AS_THEY_END).parquet(path)
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
    return Swept(grid.name, *points_and_runs, count, violations, undelivered)


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
