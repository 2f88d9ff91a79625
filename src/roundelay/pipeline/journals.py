"""Journals as DataFrames, read on the executors in parallel.

    messages(spark, folders, selection)     the records, each once, in columns as everywhere
    gaps(spark, folders)                    the positions that each journal lacks

A journal is cut into pieces (`roundelay.journal.arrow`).  Sealed segments with Parquet beside them
are read by Spark's own reader, page checksums compared; everything else is decoded by numpy in a
task.  Where several recorders of one group are given, their journals are read side by side
(`roundelay.journal.merge`), so what one of them lacks comes from another and nothing comes twice.

The executors must see the folders under the same names.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
from msgspec import Struct

from roundelay.core.errors import ConfigError
from roundelay.core.positions import Range, count_of, difference, intersection, union
from roundelay.core.selection import EVERYTHING, POSITION_MAX, Selection
from roundelay.journal.archive import is_archive
from roundelay.journal.arrow import PIECE_BYTES, Piece, path_of_parquet, pieces, read_piece
from roundelay.journal.files import META, META_COPY, read_history
from roundelay.journal.merge import Findings, Job, jobs_of, merge, warn_of_disputes
from roundelay.journal.reader import Reader
from roundelay.pipeline.schemas import GAPS, MESSAGES, arrow_schema, spark_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

DEPTH_MAX: Final = 4
"""How deep journals and archives are looked for below a folder."""
BIN_BYTES_MIN: Final = 1 << 20
CHECKED: Final = "parquet.page.verify-checksum.enabled"
"""Option of Spark's Parquet reader."""

T = TypeVar("T", bound=Struct)


# ------------------------------------------------------------------------ what there is


class OpenJournal(Struct):
    """A journal, opened."""

    folder: Path
    reader: Reader
    history: frozenset[str] = frozenset()
    """Names of the histories its positions belong to; empty: not known."""

    @property
    def group(self) -> str:
        return self.reader.meta.group

    def comparable(self, other: OpenJournal) -> bool:
        """Whether positions mean the same: a group that began anew has a new history, at 0."""
        unknown = not (self.history and other.history)
        return self.group == other.group and (unknown or bool(self.history & other.history))


def find(paths: Iterable[Path]) -> tuple[list[Path], list[Path]]:
    """The journals and the archives at these paths or below them, each once."""
    journals: dict[Path, None] = {}
    archives: dict[Path, None] = {}
    for path in paths:
        found = list(_below(path, DEPTH_MAX))
        for folder in found:
            (archives if is_archive(folder) else journals)[folder.resolve()] = None
        if not found:
            allowed = "a journal (with journal.json), an archive (with _archive.json), or a folder"
            raise ConfigError("path", path, f"{allowed} of them")
    return list(journals), list(archives)


def _below(folder: Path, depth: int) -> Iterator[Path]:
    if not folder.is_dir():
        return
    if is_archive(folder) or (folder / META).exists() or (folder / META_COPY).exists():
        yield folder
    elif depth:
        for entry in sorted(os.scandir(folder), key=lambda one: one.name):
            if entry.is_dir() and not entry.name.startswith((".", "_")):
                yield from _below(Path(entry.path), depth - 1)


def opened(folders: Iterable[Path]) -> list[OpenJournal]:
    return [OpenJournal(folder, Reader(folder), _history(folder)) for folder in folders]


def _history(folder: Path) -> frozenset[str]:
    """`NAME`, and with `NAME@PARENT:BASE` the one it goes on from."""
    try:
        text, _ = read_history(folder)
    except OSError:
        return frozenset()
    name, _, origin = text.partition("@")
    return frozenset(filter(None, (name, origin.rpartition(":")[0])))


def together(journals: Sequence[OpenJournal]) -> list[list[OpenJournal]]:
    """Journals of the same history of the same group, side by side."""
    groups: list[list[OpenJournal]] = []
    for journal in journals:
        for others in groups:
            if all(journal.comparable(other) for other in others):
                others.append(journal)
                break
        else:
            groups.append([journal])
    return groups


def span_of(side_by_side: Sequence[OpenJournal]) -> Range:
    """From the first position that any of them has to the last that any of them had."""
    begins = [one.reader.begin for one in side_by_side if one.reader.segments]
    return min(begins, default=0), max(one.reader.end for one in side_by_side)


# ------------------------------------------------------------------------ work for executors


def spread(spark: SparkSession, items: Sequence[T], size: Callable[[T], int]) -> DataFrame:
    """A table of `items` as JSON, one partition for about as much as a task should do."""
    total = sum(map(size, items))
    room = max(BIN_BYTES_MIN, min(PIECE_BYTES, total // 64))
    rows, used, number = [], 0, 0
    for item in items:
        if used and used + size(item) > room:
            number, used = number + 1, 0
        used += size(item)
        rows.append((number, msgspec.json.encode(item).decode()))
    table = spark.createDataFrame(rows, "slot int, item string")
    return table.repartitionById(number + 1, "slot").select("item")


def items_in(batches: Iterator[Any], kind: type[T]) -> Iterator[T]:
    """In a task: the items of `spread`."""
    for batch in batches:
        for text in batch.column("item").to_pylist():
            yield msgspec.json.decode(text, type=kind)


def done_by(
    spark: SparkSession,
    items: Sequence[T],
    size: Callable[[T], int],
    work: Callable[[Iterator[Any]], Iterator[Any]],
    schema: StructType,
) -> DataFrame:
    """What `work` makes of the items, somewhere on the executors."""
    if not items:
        return spark.createDataFrame([], schema)
    return spread(spark, items, size).mapInArrow(work, schema)


# ------------------------------------------------------------------------ messages


def messages(
    spark: SparkSession,
    folders: Iterable[Path],
    selection: Selection = EVERYTHING,
    *,
    groups: frozenset[str] | None = None,
    native: bool = True,
    taken: Callable[[OpenJournal], Sequence[Range]] = lambda journal: (),
) -> DataFrame:
    """The records of journals that are selected; in no order.

    `native=False` reads no Parquet: slower, and right even where Parquet is damaged.  `taken` tells
    the positions of a journal's group that are had from elsewhere, and not wanted again.
    """
    journals = [one for one in opened(folders) if groups is None or one.group in groups]
    jobs: list[Job] = []
    parquet: list[Path] = []
    for side_by_side in together(journals):
        found = [pieces(one.reader, selection) for one in side_by_side]
        had = union([positions for one in side_by_side for positions in taken(one)])
        if native and len(side_by_side) == 1:
            whole = whole_segments(side_by_side[0].reader, found[0], selection)
            touched = {one.segment for one in found[0] if intersection([(one.lo, one.hi)], had)}
            whole = [one for one in whole if one.segment not in touched]
            parquet += dict.fromkeys(map(path_of_parquet, whole))
            found = [[one for one in found[0] if one not in whole]]
        within = difference([(one.lo, one.hi) for some in found for one in some], had)
        jobs += jobs_of(side_by_side[0].group, found, within=within, job_bytes=PIECE_BYTES)
    frame = merged_jobs(spark, jobs, selection)
    if parquet:
        native_rows = (
            spark.read.schema(spark_schema(MESSAGES))
            .option(CHECKED, "true")
            .parquet(*map(str, parquet))
        )
        native_rows = selected(native_rows, selection)
        frame = frame.union(native_rows) if jobs else native_rows
    return frame


def whole_segments(reader: Reader, found: Sequence[Piece], selection: Selection) -> list[Piece]:
    """The pieces that can be had as Parquet: all of their segment, but for the selection."""
    ends = {segment.path.name: (segment.base, segment.end) for segment in reader.segments}
    wanted = [(selection.since, selection.until)]
    covered: dict[str, int] = {}
    for one in found:
        covered[one.segment] = covered.get(one.segment, 0) + one.hi - one.lo
    return [
        one
        for one in found
        if one.parquet
        and covered[one.segment] == count_of(intersection([ends[one.segment]], wanted))
    ]


def merged_jobs(
    spark: SparkSession, jobs: Sequence[Job], selection: Selection = EVERYTHING
) -> DataFrame:
    """The records of jobs, each once."""

    def work(batches: Iterator[Any]) -> Iterator[Any]:
        for job in items_in(batches, Job):
            findings = Findings()
            yield from merge(job, findings, selection)
            warn_of_disputes(job.group, findings)

    return done_by(spark, jobs, lambda job: job.bytes, work, spark_schema(MESSAGES))


def selected(frame: DataFrame, selection: Selection) -> DataFrame:
    """The rows of `messages` that a selection takes, so that Parquet readers can skip the rest."""
    from pyspark.sql.functions import col

    if selection.since > 0:
        frame = frame.where(col("seq") >= selection.since)
    if selection.until < POSITION_MAX:
        frame = frame.where(col("seq") < selection.until)
    # Rows have microseconds: a time selects those that begin with it.
    if selection.since_time > 0:
        frame = frame.where(col("time") >= _moment(selection.since_time))
    if selection.until_time < POSITION_MAX:
        frame = frame.where(col("time") < _moment(selection.until_time))
    for name, wanted in selection.filters.items():
        frame = frame.where(col(name).isin(sorted(wanted)))
    return frame


def _moment(ns: int) -> Any:
    from pyspark.sql.functions import lit, timestamp_micros

    return timestamp_micros(lit(-(-ns // 1000)))


# ------------------------------------------------------------------------ gaps


def gaps(spark: SparkSession, folders: Iterable[Path]) -> DataFrame:
    """The ranges that each journal lacks, found by reading all of it."""
    journals = opened(folders)
    known = [
        (one.group, str(one.folder), lo, hi) for one in journals for lo, hi in one.reader.missing
    ]
    announced = spark.createDataFrame(known, spark_schema(GAPS))
    found = [piece for one in journals for piece in pieces(one.reader)]

    def work(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        schema = arrow_schema(GAPS)
        for piece in items_in(batches, Piece):
            lost: list[Range] = []
            for _ in read_piece(piece, lost=lost):
                pass
            rows = [
                {"group": piece.group, "journal": piece.folder, "since": lo, "until": hi}
                for lo, hi in lost
            ]
            if rows:
                yield pa.RecordBatch.from_pylist(rows, schema=schema)

    lost = done_by(spark, found, lambda piece: piece.bytes, work, spark_schema(GAPS))
    return announced.union(lost).distinct()
