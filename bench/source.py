"""How fast Spark reads a journal: its live tail, its sealed segments, and one per cent of it.

    python -m bench.source                  2,000,000 rows of 64 bytes
    python -m bench.source --rows 200000

The same rows stand in a journal that is open and in one that is sealed, with Parquet beside its
segments.  Each way of reading brings all columns and throws them away (Spark's format `noop`);
each is done `--times` times, in turn, and the best counts.  Figures of one run can be compared with
each other, and with nothing else.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import structs

from roundelay.core.bundle import Bundle
from roundelay.core.selection import Selection
from roundelay.journal.format import Run
from roundelay.journal.journal import Journal, JournalConfig
from roundelay.journal.parquet import schema
from roundelay.pipeline.session import SparkOptions, spark_session
from roundelay.pipeline.source import planned, read, read_tasks
from roundelay.pipeline.source.options import SourceOptions, parse

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

BYTES = 64
TOGETHER = 100
RUNS = 10
"""Runs of a commit."""
TAIL_GOAL = 0.3
SEALED_GOAL = 0.9
BYTES_GOAL = 0.03


def fill(journal: Journal, rows: int) -> None:
    body = bytes(BYTES - 20)
    for number, first in enumerate(range(0, rows, TOGETHER), 1):
        bundle = Bundle.of(*[b"%020d" % i + body for i in range(first, first + TOGETHER)])
        sender = ("ann", "bob", "cyd", "dan")[number % 4]
        journal.add(
            Run(first, 1_790_000_000_000_000_000 + first * 1000, sender, bundle, number % 8)
        )
        if not number % RUNS:
            journal.commit()
    journal.commit()


def bytes_read() -> int:
    """By this process, from files, as the kernel counts it."""
    line = Path("/proc/self/io").read_text().splitlines()[0]
    return int(line.split()[1])


def read_here(options: SourceOptions) -> tuple[int, int]:
    """Rows that the source reads for these options, and bytes."""
    before = bytes_read()
    rows = sum(batch.num_rows for batch in read_tasks(planned(options), options, schema()))
    return rows, bytes_read() - before


def through(table: DataFrame) -> None:
    table.write.format("noop").mode("overwrite").save()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--times", type=int, default=5)
    options = parser.parse_args(arguments)
    rows = options.rows - options.rows % (TOGETHER * 100)
    with tempfile.TemporaryDirectory() as scratch:
        sealed, tail = Path(scratch, "sealed"), Path(scratch, "tail")
        journal = Journal(sealed, "token:bench", JournalConfig(sync="os", parquet=True))
        fill(journal, rows)
        journal.close()
        live = Journal(tail, "token:bench", JournalConfig(sync="os", segment_bytes=1 << 30))
        fill(live, rows)
        try:
            good = _bytes(sealed, rows)
            good = _speed(sealed, tail, rows, options.times) and good
        finally:
            live.close()
    return 0 if good else 1


def _bytes(folder: Path, rows: int) -> bool:
    """One per cent of the positions, and of the bytes?"""
    options = parse({"path": str(folder)})
    everything = read_here(options)
    since = rows // 2
    some = structs.replace(options, selection=Selection(since=since, until=since + rows // 100))
    part = read_here(some)
    assert (everything[0], part[0]) == (rows, rows // 100)
    ratio = part[1] / everything[1]
    print(f"1 % of the range: {part[1]:,} of {everything[1]:,} bytes read: {ratio:.2%}")
    return ratio <= BYTES_GOAL


def _speed(sealed: Path, tail: Path, rows: int, times: int) -> bool:
    with spark_session("bench", SparkOptions(master="local[2]")) as spark:
        files = [str(path) for path in sorted(sealed.glob("*.parquet"))]

        def source(path: Path) -> DataFrame:
            return spark.read.format("roundelay").load(str(path))

        ways: dict[str, Callable[[], DataFrame]] = {
            "spark.read.parquet": lambda: spark.read.parquet(*files),
            "pipeline.source.read, sealed": lambda: read(spark, str(sealed)),
            "format roundelay, sealed": lambda: source(sealed),
            "format roundelay, live tail": lambda: source(tail),
        }
        for way in ways.values():  # warm, and right
            assert way().count() == rows
        best = dict.fromkeys(ways, 1e9)
        for _ in range(times):
            for name, way in ways.items():
                begun = time.perf_counter()
                through(way())
                best[name] = min(best[name], time.perf_counter() - begun)
    native = best["spark.read.parquet"]
    for name, seconds in best.items():
        print(f"{name:32s} {rows / seconds:12,.0f} rows/s   {native / seconds:5.2f}")
    return (
        native / best["format roundelay, live tail"] >= TAIL_GOAL
        and native / best["pipeline.source.read, sealed"] >= SEALED_GOAL
    )


if __name__ == "__main__":
    sys.exit(main())
