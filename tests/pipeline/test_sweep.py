"""Sweeps on Spark: the same rows as without it, kept when interrupted, never run twice."""

from __future__ import annotations

import json
import threading
import time
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from roundelay.cli.main import run as roundelay
from roundelay.core.errors import ConfigError
from roundelay.pipeline.research.claims import PDUS
from roundelay.pipeline.research.grid import Grid, parse
from roundelay.pipeline.research.summary import summarise
from roundelay.pipeline.research.sweep import (
    RUN_COLUMNS,
    RUNS,
    SUMMARY,
    SUMMARY_COLUMNS,
    VERSION,
    VERSION_KEY,
    measured,
    sweep,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PROMISED = (
    "protocol", "sites", "resilience", "tau", "loss", "profile", "seed", "messages",
    "pdus_per_message", "control_per_message", "storage_max", "delay_ms_mean", "delay_ms_p99",
    "violations",
)  # fmt: skip


GRID = """
protocol = ["token", "positive-ack", "po"]
sites = [3, 4]
loss = [0.0, 0.1]
"""


def small(seeds: int = 2, messages: int = 20) -> Grid:
    return parse(tomllib.loads(GRID), "small", messages, seeds)


def rows_of(path: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(path).to_pylist()
    return rows


def test_spark_changes_nothing_about_a_run(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "small.toml").write_text(GRID)
    words = ["sweep", tmp_path / "small.toml", "--messages", 20, "--seeds", 2, "--out", tmp_path]
    assert roundelay([*map(str, words), "--json"]) == 0
    done = json.loads(capsys.readouterr().out)
    assert (done["points"], done["runs"], done["kept"]) == (12, 24, 0)
    assert (done["violations"], done["undelivered"]) == (0, 0)
    grid = small()
    found = {row["run"]: row for row in rows_of(tmp_path / RUNS)}
    assert set(PROMISED) <= set(RUN_COLUMNS)
    for run in grid.runs():
        alone = measured(run.params) | {
            "experiment": "small", "index": run.point.index, "point": run.point.key,
            "repetition": run.repetition, "run": run.run,
        }  # fmt: skip
        assert found.pop(run.run) == alone
    assert not found
    read = spark.read.parquet(str(tmp_path / RUNS))
    assert read.count() == 24
    assert read.schema[0].metadata == {VERSION_KEY.decode(): str(VERSION)}
    # The summary is that of the rows, whoever makes it.
    summary = rows_of(tmp_path / SUMMARY)
    assert list(summary[0]) == list(SUMMARY_COLUMNS)
    one = [row for row in rows_of(tmp_path / RUNS) if row["index"] == 1]
    assert sorted(summarise(one), key=lambda row: str(row["measure"])) == [
        row for row in summary if row["index"] == 1
    ]


def test_more_seeds_run_only_what_is_new_and_another_grid_is_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    sweep(spark, small(seeds=1), tmp_path)
    before = {row["run"] for row in rows_of(tmp_path / RUNS)}
    damaged = min((tmp_path / RUNS).glob("part-*.parquet"))
    lost = len(rows_of(damaged))
    damaged.write_bytes(damaged.read_bytes()[:-20])
    done = sweep(spark, small(seeds=2), tmp_path)
    assert (done.runs, done.kept) == (24, 12 - lost), "what cannot be read is run again"
    after = [row["run"] for row in rows_of(tmp_path / RUNS)]
    assert len(after) == len(set(after)) == 24
    assert before < set(after)
    assert {row["runs"] for row in rows_of(tmp_path / SUMMARY)} == {2}
    with pytest.raises(ConfigError, match=r"out = .* the same sweep"):
        sweep(spark, small(messages=21), tmp_path)


def test_a_folder_that_will_not_do_is_told_before_spark_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "params.json").write_text('{"fingerprint": "x"}')
    for out, part in (("file", "is a file"), ("file/below", "(Not a directory)"),
                      ("other", "--force")):  # fmt: skip
        words = ["sweep", "spo", "--out", str(tmp_path / out), "--master", "spark://127.0.0.1:1"]
        assert roundelay(words) == 2
        err = capsys.readouterr().err
        assert part in err
        assert err.count("\n") == 1


def test_an_interrupted_sweep_keeps_what_is_finished_and_goes_on(
    spark: SparkSession, tmp_path: Path
) -> None:
    said = {"protocol": "token", "sites": 5, "loss": [0.01 * k for k in range(1, 17)]}
    grid = parse(said, "long", 900, 2)
    failed: list[BaseException] = []

    def begin() -> None:
        try:
            sweep(spark, grid, tmp_path)
        except Exception as error:  # Spark's, of a cancelled job
            failed.append(error)

    thread = threading.Thread(target=begin)
    thread.start()
    deadline = time.monotonic() + 600
    while thread.is_alive() and time.monotonic() < deadline:
        if len(list((tmp_path / RUNS).glob("part-*"))) >= 2:
            spark.sparkContext.cancelAllJobs()
            break
        time.sleep(0.02)
    thread.join(600)
    assert failed, "the sweep was over before it could be interrupted"
    kept = {row["run"]: row for row in rows_of(tmp_path / RUNS)}
    assert 2 <= len(kept) < 32
    done = sweep(spark, grid, tmp_path)
    assert done.kept >= len(kept)
    assert done.runs == 32
    found = {row["run"]: row for row in rows_of(tmp_path / RUNS)}
    assert len(found) == 32
    assert kept.items() <= found.items()
    counts = {row["runs"] for row in rows_of(tmp_path / SUMMARY) if row["measure"] == PDUS}
    assert counts == {2}
