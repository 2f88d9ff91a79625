"""Journals as DataFrames."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from roundelay.core.errors import ConfigError
from roundelay.core.selection import EVERYTHING, Selection
from roundelay.journal.archive import MANIFEST
from roundelay.journal.files import index_of, parquet_of, segments_of
from roundelay.pipeline.journals import find, gaps, messages, opened
from roundelay.pipeline.schemas import arrow_schema, spark_schema
from tests.journal import make
from tests.pipeline.journals import journal

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RUNS = make.some_runs(3, 900)


def rows(frame: DataFrame) -> list[tuple[object, ...]]:
    table = frame.toArrow().sort_by("seq")
    assert table.schema.names == arrow_schema("messages").names
    assert set(table.column("group").to_pylist()) <= {make.GROUP}
    times = table.column("time").cast("int64").to_pylist()
    names = ("seq", "sender", "conference", "kind", "data")
    return list(zip(*(table.column(name).to_pylist() for name in names), times, strict=True))


def wanted(selection: Selection = EVERYTHING) -> list[tuple[object, ...]]:
    return [
        (one.position, one.sender, one.conference, one.kind, one.data, one.time // 1000)
        for one in make.messages(run for run in RUNS if selection.takes(run))
        if selection.since <= one.position < selection.until
    ]


def test_a_journal_is_a_table_whether_it_has_parquet_or_not(
    spark: SparkSession, tmp_path: Path
) -> None:
    folder = journal(tmp_path / "one", RUNS, parquet=True)
    paths = segments_of(folder)
    parquet_of(paths[-1]).unlink(missing_ok=True)  # the tail has none
    assert any(parquet_of(path).exists() for path in paths)
    chosen = Selection(since=100, until=2000, conferences=frozenset({1, 2}))
    assert rows(messages(spark, [folder])) == wanted()
    assert rows(messages(spark, [folder], chosen)) == wanted(chosen)
    assert rows(messages(spark, [folder], chosen, native=False)) == wanted(chosen)


def test_several_recorders_are_one_table_and_gaps_are_told_of_each(
    spark: SparkSession, tmp_path: Path
) -> None:
    one = journal(tmp_path / "one", RUNS, (100, 110))
    other = journal(tmp_path / "other", RUNS, (400, 410))
    path = segments_of(other)[3]
    make.flip(path, path.stat().st_size // 2)
    assert rows(messages(spark, [one, other])) == wanted()
    found = gaps(spark, [one, other]).collect()
    told = sorted((Path(row.journal).name, row.since, row.until) for row in found)
    assert told[0] == ("one", RUNS[100].position, RUNS[109].end)
    assert ("other", RUNS[400].position, RUNS[409].end) in told
    assert len(told) == 3  # and the block with the flipped bit


def test_journals_and_archives_are_found_below_a_folder(tmp_path: Path) -> None:
    one = journal(tmp_path / "node" / "journals" / "orders", RUNS[:10])
    archive = tmp_path / "archive"
    archive.mkdir()
    (archive / MANIFEST).write_text("{}")
    assert find([tmp_path]) == ([one], [archive])
    assert find([one, tmp_path / "node"]) == ([one], [])
    with pytest.raises(ConfigError, match=r"journal\.json"):
        find([tmp_path / "nowhere"])


def test_sparks_schemas_are_made_from_those_of_the_files() -> None:
    types = [f"{one.name} {one.dataType.simpleString()}" for one in spark_schema("messages")]
    assert ", ".join(types) == (
        "group string, seq bigint, time timestamp, sender string, conference bigint, "
        "kind bigint, data binary"
    )
    for table, key in (("messages", "messages"), ("trace", "trace"), ("gaps", "gaps")):
        schema = spark_schema(table)
        assert schema.names == arrow_schema(table).names
        assert schema.fields[0].metadata == {f"roundelay.{key}.version": "1"}


def test_a_journal_that_was_cut_off_knows_how_far_it_went(tmp_path: Path) -> None:
    folder = journal(tmp_path / "one", RUNS[:200])
    path = segments_of(folder)[-1]
    index_of(path).unlink(missing_ok=True)
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)
    (cut,) = opened([folder])
    ((lost, end),) = cut.reader.missing
    assert RUNS[0].position < lost < end == cut.reader.end == RUNS[200].position
