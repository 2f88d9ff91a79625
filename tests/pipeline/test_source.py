"""The data source: a group's messages as a table and as a stream."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from msgspec import structs
from pyspark.sql import datasource as ds

from roundelay.core.bundle import Bundle
from roundelay.core.errors import ConfigError
from roundelay.core.selection import Selection
from roundelay.journal.files import segments_of
from roundelay.journal.format import Run, head_only
from roundelay.journal.journal import Journal, JournalConfig
from roundelay.journal.parquet import schema
from roundelay.pipeline.archive import archive
from roundelay.pipeline.reading import DataLost
from roundelay.pipeline.sink.envelope import Marker, encode_marker, query_id
from roundelay.pipeline.source import StreamReader, planned, read, read_tasks
from roundelay.pipeline.source.options import SourceOptions, narrowed, parse
from roundelay.pipeline.source.plan import divided

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

GROUP = "token:orders"
T0 = 1_790_000_000_000_000_000
SECOND = 1_000_000_000


def run_at(position: int, count: int = 50) -> Run:
    """Fifty records whose head follows from their position."""
    bundle = Bundle.of(*[f"message {i}".encode() for i in range(position, position + count)])
    number = position // 50
    sender = ("ann", "bob", "cyd")[number % 3]
    return Run(position, T0 + number * SECOND, sender, bundle, number % 5, number % 2)


def write(folder: Path, runs: Sequence[Run], group: str = GROUP, **config: Any) -> None:
    journal = Journal(folder, group, JournalConfig(sync="os", **config))
    for run in runs:
        journal.add(run)
        journal.commit()
    journal.close()


def rows_of(runs: Sequence[Run]) -> list[tuple[int, str, int, int, bytes]]:
    return [
        (run.position + i, run.sender, run.conference, run.kind, data)
        for run in runs
        for i, data in enumerate(run.bundle)
    ]


def rows_in(table: DataFrame) -> list[tuple[int, str, int, int, bytes]]:
    """What Spark found, in order."""
    return [
        (row.seq, row.sender, row.conference, row.kind, bytes(row.data))
        for row in table.orderBy("seq").collect()
    ]


def seqs(options: SourceOptions) -> list[int]:
    """Positions that the source reads, without Spark."""
    found = []
    for part in divided(planned(options), options.partitions):
        for batch in read_tasks(part, options, schema()):
            found += batch.column(1).to_pylist()
    return sorted(found)


RUNS = [run_at(position) for position in range(0, 5000, 50)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """5,000 records in several segments, with Parquet beside them, and a few in another group."""
    made = tmp_path_factory.mktemp("journals")
    write(made / "orders", RUNS, segment_bytes=16 << 10, parquet=True)
    write(made / "other", RUNS[:2], group="token:other")
    return made


# ------------------------------------------------------------------------ as a table


def test_a_journal_is_a_table(spark: SparkSession, folder: Path) -> None:
    table = spark.read.format("roundelay").option("path", f"{folder}/o*").load()
    assert table.columns == ["group", "seq", "time", "sender", "conference", "kind", "data"]
    both = {row["group"]: row["count"] for row in table.groupBy("group").count().collect()}
    assert both == {GROUP: 5000, "token:other": 100}
    # The same DataFrame again, with filters and without: Spark plans each query for itself.
    orders = table.where(f"`group` = '{GROUP}'")
    assert rows_in(orders.where("seq < 70")) == rows_of(RUNS)[:70]
    assert rows_in(orders) == rows_of(RUNS)
    assert orders.where("seq < 10").union(orders.where("seq >= 4995")).count() == 15
    first = orders.orderBy("seq").first()
    assert first is not None
    assert first.time == datetime.fromtimestamp(T0 // SECOND, UTC).replace(tzinfo=None)


def test_columns_that_nobody_wants_are_not_brought(spark: SparkSession, folder: Path) -> None:
    source = spark.read.format("roundelay").schema("data binary, seq long")
    table = source.load(str(folder / "orders"))
    assert table.columns == ["data", "seq"]
    assert table.where("data = X'6d6573736167652037'").collect()[0].seq == 7  # "message 7"


def test_filters_of_a_query_are_pushed_down(spark: SparkSession, folder: Path) -> None:
    def load() -> DataFrame:
        source = spark.read.format("roundelay").option("pushdown", "true")
        return source.load(str(folder / "orders"))

    moment = datetime.fromtimestamp(T0 // SECOND + 40, UTC)
    condition = (
        f"`group` = '{GROUP}' AND seq >= 100 AND seq < 4000 AND sender IN ('ann', 'cyd') "
        f"AND conference = 3 AND time <= timestamp'{moment:%Y-%m-%d %H:%M:%S}'"
    )
    runs = [
        run
        for run in RUNS
        if 100 <= run.position < 4000
        and run.sender != "bob"
        and run.conference == 3
        and run.time <= T0 + 40 * SECOND
    ]
    assert rows_in(load().where(condition)) == rows_of(runs)
    plan = load().where(condition)._jdf.queryExecution().executedPlan().toString()
    assert "Filter" not in plan.replace("RuntimeFilters", "")  # all of it is done by the source
    # Where pushing down is switched off, the answer is the same.
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")
    try:
        assert rows_in(load().where(condition)) == rows_of(runs)
    finally:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")


def test_sealed_segments_are_read_as_parquet_and_the_rest_by_the_source(
    spark: SparkSession, folder: Path, tmp_path: Path
) -> None:
    marker = encode_marker(Marker(query_id("q"), 0, 0, 0, 1))
    write(
        tmp_path / "j",
        [*RUNS[:60], Run(3000, T0, "ann", Bundle.of(marker, b"behind a marker"))],
        segment_bytes=16 << 10,
        parquet=True,
    )
    last = sorted((tmp_path / "j").glob("*.parquet"))[-1]
    last.unlink()
    expected = [*rows_of(RUNS[:60]), (3001, "ann", 0, 0, b"behind a marker")]
    assert rows_in(read(spark, str(tmp_path / "j"))) == expected
    some = read(spark, str(tmp_path / "j"), sender="bob", seq_from=60, seq_until=2990)
    assert rows_in(some) == [row for row in expected if row[1] == "bob" and 60 <= row[0] < 2990]
    assert read(spark, str(tmp_path / "j"), markers=True).count() == 3002


def test_an_archive_is_a_table(spark: SparkSession, folder: Path, tmp_path: Path) -> None:
    write(tmp_path / "j", RUNS[:60])
    archive(lambda: nullcontext(spark), [tmp_path / "j"], tmp_path / "archive")
    table = spark.read.format("roundelay").option("path", str(tmp_path / "archive")).load()
    assert rows_in(table) == rows_of(RUNS[:60])
    # An archive and the journal that goes on behind it, each position once.
    both = f"{tmp_path}/archive,{folder}/orders"
    assert seqs(parse({"path": both, "partitions": "7"})) == list(range(5000))
    assert rows_in(read(spark, both, seq_from=2990, seq_until=3010)) == rows_of(RUNS)[2990:3010]


# ------------------------------------------------------------------------ what is read


def test_only_what_can_hold_something_is_read(folder: Path) -> None:
    options = parse({"path": f"{folder}/orders"})
    everything = sum(task.bytes for task in planned(options))
    some = structs.replace(options, selection=Selection(since=2000, until=2050))
    tasks = planned(some)
    assert sum(task.bytes for task in tasks) < 0.03 * everything
    assert seqs(some) == list(range(2000, 2050))
    assert planned(structs.replace(options, selection=Selection(senders=frozenset({"eve"})))) == []


def test_what_one_journal_lacks_is_read_from_another(tmp_path: Path) -> None:
    write(tmp_path / "a", RUNS[:30] + RUNS[60:], segment_bytes=8 << 10)
    write(tmp_path / "b", RUNS[20:70], segment_bytes=8 << 10)
    assert seqs(parse({"path": f"{tmp_path}/*"})) == list(range(5000))
    with pytest.raises(DataLost, match="1500 to 2999"):
        planned(parse({"path": f"{tmp_path}/a"}))
    lacking = [*range(1500), *range(3000, 5000)]
    assert seqs(parse({"path": f"{tmp_path}/a", "gaps": "skip"})) == lacking
    assert seqs(parse({"path": f"{tmp_path}/a", "seq_until": "1500"})) == list(range(1500))


def test_damage_found_while_reading_is_read_from_another_journal_or_told(tmp_path: Path) -> None:
    write(tmp_path / "a", RUNS)
    write(tmp_path / "b", RUNS)
    (segment,) = segments_of(tmp_path / "a")
    data = bytearray(segment.read_bytes())
    data[data.index(b"message 2600")] ^= 1
    segment.write_bytes(data)
    assert seqs(parse({"path": f"{tmp_path}/a,{tmp_path}/b"})) == list(range(5000))
    with pytest.raises(DataLost, match="2600 to 2649"):
        seqs(parse({"path": f"{tmp_path}/a"}))
    left = [*range(2600), *range(2650, 5000)]
    assert seqs(parse({"path": f"{tmp_path}/a", "gaps": "skip"})) == left


def test_recorders_that_disagree_are_settled_by_most_copies_as_in_a_query(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """`query` merges journals by the same rule (journal.merge); this is what the source reads."""
    wrong = [*RUNS]
    wrong[7] = structs.replace(wrong[7], sender="mallory")
    write(tmp_path / "a", wrong)
    write(tmp_path / "b", RUNS)
    write(tmp_path / "c", RUNS)
    options = parse({"path": f"{tmp_path}/*"})
    rows = [
        row for one in read_tasks(planned(options), options, schema()) for row in one.to_pylist()
    ]
    assert [row["seq"] for row in rows] == list(range(5000))
    assert "mallory" not in {row["sender"] for row in rows}
    assert "recorders disagree about 50 positions, the first of them 350" in caplog.text
    caplog.clear()
    first = parse({"path": f"{tmp_path}/a,{tmp_path}/b"})
    told = [row for one in read_tasks(planned(first), first, schema()) for row in one.to_pylist()]
    assert "mallory" in {row["sender"] for row in told}  # one against one: the first that is named
    assert "recorders disagree" in caplog.text


def test_records_of_which_only_heads_are_kept_have_no_data(tmp_path: Path) -> None:
    write(tmp_path / "a", [head_only(run_at(0)), run_at(50)])
    options = parse({"path": str(tmp_path / "a")})
    (batch,) = read_tasks(planned(options), options, schema())
    assert batch.column("data").null_count == 50
    assert batch.column("seq").to_pylist() == list(range(100))


def test_positions_of_a_group_without_an_order_are_one_recorders_own(tmp_path: Path) -> None:
    write(tmp_path / "a", RUNS[:2], group="plain")
    write(tmp_path / "b", RUNS[:2], group="plain")
    assert seqs(parse({"path": f"{tmp_path}/a"})) == list(range(100))
    with pytest.raises(ConfigError, match="no total order"):
        planned(parse({"path": f"{tmp_path}/*"}))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "one of path and recorder"),
        ({"path": "/x", "recorder": "h:1", "group": "token:x"}, "one of path and recorder"),
        ({"recorder": "h:1"}, "group"),
        ({"path": "/x", "seq_form": "1"}, "seq_form"),
        ({"path": "/x", "seq_from": "-1"}, "seq_from"),
        ({"path": "/x", "time_from": "noon"}, "ISO"),
        ({"path": "/x", "gaps": "hide"}, "fail or skip"),
        ({"path": "hdfs://h/x"}, "mounted"),
        ({"path": "/nowhere"}, "that is there"),
    ],
)
def test_wrong_options_are_named(options: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        planned(parse(options))


def test_filters_become_ranges_and_sets() -> None:
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    taken = [
        ds.GreaterThan(("seq",), 10),
        ds.LessThanOrEqual(("seq",), 20),
        ds.GreaterThanOrEqual(("time",), moment),
        ds.In(("conference",), (1, 2, 3)),
        ds.EqualTo(("conference",), 2),
        ds.EqualTo(("group",), GROUP),
        ds.IsNotNull(("sender",)),
    ]
    left = [ds.Not(ds.EqualTo(("seq",), 3)), ds.EqualTo(("data",), b"x"), ds.IsNotNull(("data",))]
    options, rest = narrowed(parse({"path": "/x"}), [*taken, *left])
    assert rest == left
    assert options.groups == {GROUP}
    assert options.selection == Selection(
        since=11, until=21, since_time=1_767_225_600 * SECOND, conferences=frozenset({2})
    )


# ------------------------------------------------------------------------ as a stream


def test_a_stream_goes_on_where_its_checkpoint_is(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "j", RUNS[:20])

    def life() -> list[int]:
        """Rows of each micro-batch of one run over what is there."""
        source = spark.readStream.format("roundelay").option("path", str(tmp_path / "j"))
        stream = source.option("maxRowsPerTrigger", 400).load().writeStream.format("parquet")
        stream = stream.option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = stream.trigger(availableNow=True).start(str(tmp_path / "out"))
        query.awaitTermination()
        return [one.numInputRows for one in query.recentProgress]

    assert life() == [400, 400, 200]
    write(tmp_path / "j", RUNS[20:33])
    assert life() == [400, 250]
    assert rows_in(spark.read.parquet(str(tmp_path / "out"))) == rows_of(RUNS[:33])


def test_a_stream_waits_at_a_gap_and_then_fails(tmp_path: Path) -> None:
    from pyspark.sql.streaming.datasource import ReadAllAvailable

    from roundelay.pipeline.schemas import MESSAGES, spark_schema

    everything = ReadAllAvailable()
    write(tmp_path / "a", RUNS[:10])
    columns = spark_schema(MESSAGES)
    stream = StreamReader(parse({"path": f"{tmp_path}/*", "gap_wait": "0"}), columns)
    start = stream.initialOffset()
    assert start == {GROUP: 0}
    end = stream.latestOffset(start, everything)
    assert end == {GROUP: 500}
    write(tmp_path / "a", RUNS[40:50])
    assert stream.latestOffset(end, everything) == end
    with pytest.raises(DataLost, match="500 to 1999"):
        stream.latestOffset(end, everything)
    write(tmp_path / "b", RUNS[5:42])  # somebody else has it
    assert stream.latestOffset(end, everything) == {GROUP: 2500}
    tasks = [task for part in stream.partitions(end, {GROUP: 2500}) for task in stream.read(part)]
    assert [seq for batch in tasks for seq in batch.column(1).to_pylist()] == list(range(500, 2500))
    # A group that appears later begins with its first position.
    write(tmp_path / "c", RUNS[4:6], group="token:new")
    assert stream.latestOffset({GROUP: 2500}, everything) == {GROUP: 2500, "token:new": 200}
    latest = StreamReader(parse({"path": f"{tmp_path}/b", "seq_from": "latest"}), columns)
    assert latest.initialOffset() == {GROUP: 2100}
