"""The data source `roundelay`: a group's messages for Spark, as a table and as a stream.

::

    spark.read.format("roundelay").option("path", "journals/*").load()
    spark.readStream.format("roundelay").option("recorder", "127.0.0.1:6678") \\
        .option("group", "token:orders").load()
    df.writeStream.format("roundelay").option("node", "127.0.0.1:6678") \\
        .option("group", "token:results").option("checkpointLocation", DIR).start()

Columns: `group, seq, time, sender, conference, kind, data`, or those of them that `.schema(…)`
names.  Offsets of a stream are positions (`seq`), one a group; a range of positions is the same
rows whenever and from wherever it is read, so a micro-batch that is repeated has the same rows.

Spark finds the source by itself where `roundelay` is installed (the package `pyspark_roundelay`);
elsewhere `register(spark)` makes it known.  Reading is divided into ranges of positions, executors
read them side by side, and rows go to Spark as Arrow batches.

What is not wanted is not read: a selection by group, seq, time, sender, conference and kind is
given by options, to tables and streams alike.  With `.option("pushdown", "true")` and
`spark.sql.python.filterPushdown.enabled=true` the filters of a query are taken over as well.

Deviation: that is off by default, because Spark 4.3.0 answers wrongly with it.  It keeps what a
Python source has planned for one query with the *table*, and plans the next query over the same
DataFrame with it: `df.where("seq < 10").count()` and then `df.count()` gives 10.  A DataFrame that
is loaded for one query is answered rightly (tests/pipeline/test_source.py shows both).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
from msgspec import structs
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    Filter,
    InputPartition,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from roundelay.core.errors import ConfigError
from roundelay.core.positions import Range, difference
from roundelay.pipeline.journals import messages
from roundelay.pipeline.reading import DataLost, ReadTask, read_task
from roundelay.pipeline.schemas import MESSAGES, spark_schema
from roundelay.pipeline.sink.envelope import MAGIC, MARKER_BYTES, drop_markers
from roundelay.pipeline.source.options import LATEST, SKIP, SourceOptions, narrowed, parse
from roundelay.pipeline.source.plan import MessageStores, divided, expanded, gaps_in, task_size

NAME: Final = "roundelay"
WHOLE_BYTES: Final = 1 << 40
"""A task of a whole file."""
IS_MARKER: Final = (
    f"coalesce(octet_length(data) = {MARKER_BYTES} AND startswith(data, X'{MAGIC.hex()}'), false)"
)


class RoundelaySource(DataSource):
    """See the module."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        return spark_schema(MESSAGES)

    def reader(self, schema: StructType) -> DataSourceReader:
        return BatchReader(parse(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        return StreamReader(parse(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        from roundelay.pipeline.sink import BatchSink

        return BatchSink(self.options, schema, overwrite)

    def streamWriter(  # noqa: N802
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamArrowWriter:
        from roundelay.pipeline.sink import StreamSink

        return StreamSink(self.options, schema)


def register(spark: SparkSession) -> None:
    """Make `roundelay` known to a SparkSession that does not find it by itself."""
    spark.dataSource.register(RoundelaySource)


class SourcePartition(InputPartition):
    """Tasks that one Spark task carries out."""

    def __init__(self, tasks: Sequence[ReadTask]) -> None:
        self.tasks = tasks


class _Reading:
    """What both readers have in common."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        ours = spark_schema(MESSAGES)
        known = {field.name: field.dataType for field in ours}
        for field in schema.fields:
            if known.get(field.name) != field.dataType:
                columns = ", ".join(f"{col.name} {col.dataType.simpleString()}" for col in ours)
                shown = f"{field.name} {field.dataType.simpleString()}"
                raise ConfigError("schema", shown, f"some of {columns}")
        self.options = options
        self._target = to_arrow_schema(schema, timezone="UTC")

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, SourcePartition):
            return iter(())  # Spark makes one up where nothing is to be read
        return read_tasks(partition.tasks, self.options, self._target)


def read_tasks(
    tasks: Sequence[ReadTask], options: SourceOptions, target: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """The rows of the tasks that the options select, with the columns of `target`."""
    for task in tasks:
        lost: list[Range] = []
        for batch in read_task(task, options.selection, lost):
            if not options.markers:
                batch = drop_markers(batch)
            if batch.num_rows:
                yield batch.select(target.names).cast(target)
        refuse_lost(task.group, lost, options)


def refuse_lost(group: str, ranges: Sequence[Range], options: SourceOptions) -> None:
    """DataLost of positions that nobody has, unless they are to be skipped."""
    if ranges and options.gaps != SKIP:
        raise DataLost(lost_message(group, ranges))


def lost_message(group: str, ranges: Sequence[Range]) -> str:
    shown = ", ".join(f"{lo} to {hi - 1}" for lo, hi in ranges[:5])
    more = f" and {len(ranges) - 5} more ranges" if len(ranges) > 5 else ""
    return (
        f"group {group}: nobody has positions {shown}{more}; fill them with `roundelay journal "
        "repair` or `roundelay reconcile`, or go on without them with option gaps = skip"
    )


# ------------------------------------------------------------------------ as a table


class _PushFilters:
    """`pushFilters` of a reader, whatever Spark is set to.

    Spark refuses a reader that can push filters down while that is switched off, which it is by
    default.  It tells by comparing `pushFilters.__func__` with that of the base class; so this one
    shows the base class's.  Where the switch is on, Spark calls it like any other.
    """

    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self, reader: BatchReader) -> None:
        self._reader = reader

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        self._reader.options, rest = narrowed(self._reader.options, filters)
        return rest


class BatchReader(_Reading, DataSourceReader):
    """Everything that is there when it is planned."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        if options.start == LATEST:
            raise ConfigError("seq_from", LATEST, "a number or earliest; latest is for streams")
        if options.pushdown:
            self.pushFilters = _PushFilters(self)  # type: ignore[method-assign]

    def partitions(self) -> list[InputPartition]:
        options = self.options
        return [SourcePartition(some) for some in divided(planned(options), options.partitions)]


def planned(options: SourceOptions) -> list[ReadTask]:
    """All that is to be read, each position once; DataLost where something is missing."""
    selection = options.selection
    if options.groups == frozenset() or selection.nothing:
        return []  # filters that exclude each other
    stores = MessageStores(options)
    tasks: list[ReadTask] = []
    for group in sorted(stores.by_group):
        refuse_lost(group, gaps_in(stores.have(group), selection), options)
        tasks += _sized(stores, group, options)
    return tasks


def _sized(stores: MessageStores, group: str, options: SourceOptions) -> list[ReadTask]:
    """Tasks of a size that suits how much there is."""
    total = sum(task.bytes for task in stores.tasks(group, options.selection, WHOLE_BYTES))
    return stores.tasks(group, options.selection, task_size(total, options.partitions))


def read(spark: SparkSession, path: str, **options: Any) -> DataFrame:
    """The same rows as `spark.read.format("roundelay")`, at Parquet's own speed where there is
    Parquet: archives, and what is sealed and stands beside its segment as Parquet, are read by
    Spark itself.  Plans here, so this process must see the folders.

    `options` are those of the source: `read(spark, "journals/*", group="token:orders")`.
    """
    chosen = parse({"path": path, **{key: _text(value) for key, value in options.items()}})
    if chosen.gaps != SKIP:
        stores = MessageStores(chosen)
        for group in stores.by_group:
            refuse_lost(group, gaps_in(stores.have(group), chosen.selection), chosen)
    rows = messages(spark, expanded(chosen.paths), chosen.selection, chosen.groups)
    return rows if chosen.markers else rows.where(f"NOT ({IS_MARKER})")


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple | set | frozenset):
        return ",".join(map(str, value))
    return str(value)


# ------------------------------------------------------------------------ as a stream

Offset = dict[str, int]
"""Group to the position behind the last row."""


class StreamReader(_Reading, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """What comes, from where the checkpoint says."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._known: MessageStores | None = None
        self._target_offset: Offset | None = None
        self._waiting_since: float | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_known": None}  # executors plan nothing

    def _stores(self) -> MessageStores:
        if self._known is None:
            self._known = MessageStores(self.options)
        else:
            self._known.refresh()
        return self._known

    def initialOffset(self) -> Offset:  # noqa: N802
        stores, options = self._stores(), self.options
        start = {}
        for group in sorted(stores.by_group):
            have = stores.have(group)
            first, last = (have[0][0], have[-1][1]) if have else (0, 0)
            start[group] = last if options.start == LATEST else max(first, options.selection.since)
        return start

    def _ends(self, start: Offset) -> Offset:
        """How far each group can be read from `start` without a gap."""
        stores, options = self._stores(), self.options
        ends = dict(start)
        stuck: list[str] = []
        for group in sorted(stores.by_group):
            have = stores.have(group)
            if not have:
                continue
            if group not in start:
                # It begins with this trigger; the next has a first position to go by.
                ends[group] = max(have[0][0], options.selection.since)
                continue
            at = start[group]
            ahead = [(lo, hi) for lo, hi in have if hi > at]
            if not ahead:
                continue
            if options.gaps == SKIP:
                end = ahead[-1][1]
            elif ahead[0][0] <= at:
                end = ahead[0][1]
            else:
                stuck.append(lost_message(group, [(at, ahead[0][0])]))
                continue
            ends[group] = max(at, min(end, options.selection.until))
        if not stuck:
            self._waiting_since = None
        elif self._waiting_since is None:
            self._waiting_since = time.monotonic()
        elif time.monotonic() - self._waiting_since > options.gap_wait_s:
            raise DataLost(stuck[0])
        return ends

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        ends = self._ends(start)
        if self._target_offset is not None:
            goal = self._target_offset
            ends = {group: min(end, goal.get(group, end)) for group, end in ends.items()}
            ends = {group: max(end, start.get(group, end)) for group, end in ends.items()}
        if isinstance(limit, ReadMaxRows):
            ends = _limited(start, ends, limit.max_rows)
        return ends

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        rows = self.options.max_rows
        return ReadMaxRows(rows) if rows else ReadAllAvailable()

    def reportLatestOffset(self) -> Offset | None:  # noqa: N802
        return None if self._known is None else self._known.ends()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target_offset = self._stores().ends()

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        if all(end[group] <= start.get(group, end[group]) for group in end):
            return []
        options = self.options
        stores = self._known or self._stores()
        tasks: list[ReadTask] = []
        for group in sorted(end):
            lo, hi = start.get(group, end[group]), end[group]
            if lo >= hi:
                continue
            if group not in stores.by_group:
                raise DataLost(lost_message(group, [(lo, hi)]))
            refuse_lost(group, difference([(lo, hi)], stores.have(group)), options)
            selection = structs.replace(
                options.selection,
                since=max(lo, options.selection.since),
                until=min(hi, options.selection.until),
            )
            tasks += _sized(stores, group, structs.replace(options, selection=selection))
        return [SourcePartition(some) for some in divided(tasks, options.partitions)]


def _limited(start: Offset, ends: Offset, rows: int) -> Offset:
    """At most so many rows altogether: a group that has little leaves its share to the others.

    >>> _limited({"a": 0, "b": 0}, {"a": 2, "b": 100}, 10)
    {'a': 2, 'b': 8}
    """
    limited = dict(ends)
    remaining = rows
    waiting = sorted(ends, key=lambda group: ends[group] - start.get(group, ends[group]))
    for number, group in enumerate(waiting):
        at = start.get(group, ends[group])
        share = remaining // (len(waiting) - number)
        limited[group] = min(ends[group], at + share)
        remaining -= limited[group] - at
    return limited
