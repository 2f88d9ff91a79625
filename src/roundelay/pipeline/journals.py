"""Journals and archives as DataFrames, read on the executors in parallel.

    messages(spark, paths, selection)       the records, each once, in columns as everywhere
    gaps(spark, folders)                    the positions that each journal lacks

Of archives only those files are read whose positions, times and day can hold what is wanted, of
journals only the positions that no archive has.  A journal is cut into pieces
(`roundelay.journal.arrow`).  Files of an archive, and sealed segments with Parquet beside them, are
read by Spark's own reader, page checksums compared; everything else is decoded by numpy in a task.
Where several recorders of one group are given, their journals are read side by side
(`roundelay.journal.merge`), so what one of them lacks comes from another and nothing comes twice.

The executors must see the folders under the same names.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from roundelay.core.errors import ConfigError, MalformedPdu
from roundelay.core.families import RECORDS, TOTAL
from roundelay.core.positions import Range, difference, intersection
from roundelay.core.selection import EVERYTHING, Selection
from roundelay.journal.archive import conditions, files_with, is_archive, read_manifest
from roundelay.journal.arrow import PIECE_BYTES, Piece, pieces, read_piece
from roundelay.journal.files import META, META_COPY, parquet_of, read_history, read_mark
from roundelay.journal.reader import Reader
from roundelay.pipeline.reading import ReadTask, journal_tasks, read_task
from roundelay.pipeline.schemas import GAPS, MESSAGES, arrow_schema, spark_schema
from roundelay.pipeline.spark.executors import by_bytes, on_executors

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DEPTH_MAX: Final = 4
"""How deep journals and archives are looked for below a folder."""
CHECKED: Final = "parquet.page.verify-checksum.enabled"
"""Option of Spark's Parquet reader."""


# ------------------------------------------------------------------------ what there is


TOTAL_ORDER: Final = tuple(
    f"{family.prefix or family.name}:" for family in RECORDS if family.order == TOTAL
)
"""Groups in which a position means the same message to everybody."""


def is_ordered(group: str) -> bool:
    """Does every recorder of the group have the same positions?"""
    return group.startswith(TOTAL_ORDER)


class OpenJournal(Struct):
    """A journal, opened."""

    folder: Path
    reader: Reader
    history: frozenset[str] = frozenset()
    """Names of the histories its positions belong to; empty: not known."""

    @property
    def group(self) -> str:
        return self.reader.meta.group

    def refresh(self) -> None:
        """Look what has come since."""
        self.reader.refresh()

    def have(self) -> list[Range]:
        """Positions that are here, in order."""
        begin, end = self.reader.begin, self.reader.end
        if not is_ordered(self.group):
            # A position that was not synced can stand for another message after a power cut.
            with suppress(MalformedPdu, OSError):
                end = min(end, max(begin, read_mark(self.folder)))
        return difference([(begin, end)], self.reader.missing)


def same_history(history: Collection[str], other: Collection[str]) -> bool:
    """Whether positions mean the same: a group that began anew has a new history, at 0.

    A history without a name is not known, and may be any.
    """
    return not history or not other or not set(history).isdisjoint(other)


def find(paths: Iterable[Path]) -> tuple[list[Path], list[Path]]:
    """The journals and the archives at these paths or below them, each once."""
    journals: dict[Path, None] = {}
    archives: dict[Path, None] = {}
    for path in paths:
        folders = list(_below(path, DEPTH_MAX))
        for folder in folders:
            (archives if is_archive(folder) else journals)[folder.resolve()] = None
        if not folders:
            allowed = "a journal (with journal.json), an archive (with _archive.json), or a folder"
            raise ConfigError("path", path, f"{allowed} of them")
    return list(journals), list(archives)


def _below(folder: Path, depth: int) -> Iterator[Path]:
    if not folder.is_dir():
        return
    if is_archive(folder) or (folder / META).exists() or (folder / META_COPY).exists():
        yield folder
    elif depth:
        for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
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


def together(journals: Iterable[OpenJournal]) -> list[list[OpenJournal]]:
    """Journals of the same history of the same group, side by side."""
    groups: list[list[OpenJournal]] = []
    for journal in journals:
        for others in groups:
            group = others[0].group
            if journal.group == group and all(
                same_history(journal.history, other.history) for other in others
            ):
                others.append(journal)
                break
        else:
            groups.append([journal])
    return groups


def span_of(side_by_side: Sequence[OpenJournal]) -> Range:
    """From the first position that any of them has to the last that any of them had."""
    begins = [journal.reader.begin for journal in side_by_side if journal.reader.segments]
    return min(begins, default=0), max(journal.reader.end for journal in side_by_side)


# ------------------------------------------------------------------------ messages


def messages(
    spark: SparkSession,
    paths: Iterable[Path],
    selection: Selection = EVERYTHING,
    groups: frozenset[str] | None = None,
    *,
    native: bool = True,
) -> DataFrame:
    """The messages of archives and journals at or below these paths, each once; in no order.

    `native=False` reads no Parquet of journals: slower, and right even where it is damaged.
    """
    journals, archives = find(paths)
    plan = _Plan(selection)
    frames: list[DataFrame] = []
    for folder in archives:
        frames += _native(spark, plan.archive(folder, groups), selection, folder)
    beside: list[Path] = []
    for side_by_side in together(opened(journals)):
        if groups is None or side_by_side[0].group in groups:
            beside += plan.journals(side_by_side, native=native)
    frames += _native(spark, beside, selection)

    def rows(task: ReadTask) -> Iterator[Any]:
        return read_task(task, selection, [])

    if plan.tasks or not frames:
        frames.append(on_executors(spark, by_bytes(plan.tasks), rows, spark_schema(MESSAGES)))
    return reduce(lambda some, more: some.union(more), frames)


class _Plan(Struct):
    """What is to be read, each position once: as Parquet, whose files it returns, and by tasks."""

    selection: Selection
    tasks: list[ReadTask] = []
    _held: list[tuple[str, Collection[str], Sequence[Range]]] = []
    """(group, its history, positions) of the archives so far."""

    def archive(self, folder: Path, groups: frozenset[str] | None) -> list[Path]:
        """The files of an archive of which nothing is held yet."""
        manifest = read_manifest(folder)
        holdings = [(name, h.histories, h.positions) for name, h in manifest.groups.items()]
        held = {group: self._positions(group, history) for group, history, _ in holdings}
        files = []
        for file in files_with(manifest, self.selection, groups):
            new = difference(file.ranges, held.get(file.group, []))
            if new == list(file.ranges):
                files.append(folder / file.path)
                continue
            task = ReadTask(file.group, file.lo, file.hi, file.bytes, (), str(folder), file)
            self.tasks += [task.part(lo, hi) for lo, hi in new]
        self._held += holdings
        return files

    def journals(self, side_by_side: Sequence[OpenJournal], *, native: bool) -> list[Path]:
        """The Parquet beside segments of which nothing is held yet."""
        group = side_by_side[0].group
        by_journal = [pieces(j.reader, self.selection) for j in side_by_side]
        held = [span for j in side_by_side for span in self._positions(group, j.history)]
        names: set[str] = set()
        if native and len(side_by_side) == 1:
            names = whole_segments(side_by_side[0].reader, by_journal[0], held, self.selection)
        beside = {parquet_of(piece.path): None for piece in by_journal[0] if piece.segment in names}
        rest = [[piece for piece in some if piece.segment not in names] for some in by_journal]
        ranges = difference([(piece.lo, piece.hi) for some in rest for piece in some], held)
        self.tasks += journal_tasks(group, rest, ranges, PIECE_BYTES)
        return list(beside)

    def _positions(self, group: str, history: Collection[str]) -> list[Range]:
        """What is held of a group, as far as the history is the same."""
        return [
            span
            for other, names, positions in self._held
            if other == group and same_history(names, history)
            for span in positions
        ]


def whole_segments(
    reader: Reader, journal_pieces: Sequence[Piece], held: Sequence[Range], selection: Selection
) -> set[str]:
    """The segments that can be had as Parquet: all of each is wanted, but for the selection."""
    by_segment: dict[str, list[Range]] = {}
    for piece in journal_pieces:
        if piece.parquet:
            by_segment.setdefault(piece.segment, []).append((piece.lo, piece.hi))
    names = set()
    for segment in reader.segments:
        new = difference(by_segment.get(segment.path.name, []), held)
        span = [(segment.base, segment.end)]
        if new and new == intersection(span, [(selection.since, selection.until)]):
            names.add(segment.path.name)
    return names


def _native(
    spark: SparkSession, files: Sequence[Path], selection: Selection, base: Path | None = None
) -> list[DataFrame]:
    """The rows of Parquet files as Spark reads them; columns come from folders below `base`."""
    from pyspark.sql.functions import col, lit, timestamp_micros

    if not files:
        return []
    reader = spark.read.schema(spark_schema(MESSAGES)).option(CHECKED, "true")
    if base is not None:
        reader = reader.option("basePath", str(base))
    rows = reader.parquet(*map(str, files)).select(*spark_schema(MESSAGES).names)
    for condition in conditions(selection, col, lambda us: timestamp_micros(lit(us))):
        rows = rows.where(condition)
    return [rows]


# ------------------------------------------------------------------------ gaps


def gaps(spark: SparkSession, folders: Iterable[Path]) -> DataFrame:
    """The ranges that each journal lacks, found by reading all of it."""
    journals = opened(folders)
    known = [(j.group, str(j.folder), lo, hi) for j in journals for lo, hi in j.reader.missing]
    announced = spark.createDataFrame(known, spark_schema(GAPS))

    def lost_of(piece: Piece) -> Iterator[Any]:
        import pyarrow as pa

        lost: list[Range] = []
        for _ in read_piece(piece, lost=lost):
            pass
        rows = [
            {"group": piece.group, "journal": piece.folder, "since": lo, "until": hi}
            for lo, hi in lost
        ]
        yield pa.RecordBatch.from_pylist(rows, schema=arrow_schema(GAPS))

    bins = by_bytes(piece for journal in journals for piece in pieces(journal.reader))
    lost = on_executors(spark, bins, lost_of, spark_schema(GAPS))
    return announced.union(lost).distinct()
