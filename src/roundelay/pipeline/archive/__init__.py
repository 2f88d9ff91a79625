"""Journals into an archive: Parquet by group and day, few files of good size.

Incremental: the archive remembers the positions it has, and only others are read.  Idempotent: a
second run over the same journals changes nothing.  Crash-safe: a run that is killed leaves the
archive as it was (`roundelay.journal.archive`).

With several recorders of one group what one lacks comes from another.  What nobody has is told,
and fetched by a later run when a journal has been repaired.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import Struct, field

from roundelay.core.errors import ConfigError
from roundelay.core.positions import Range, count_of, difference, union
from roundelay.journal.archive import File, Manifest, lock
from roundelay.journal.arrow import Piece, pieces
from roundelay.journal.merge import JOB_BYTES, jobs_of
from roundelay.pipeline.archive.tasks import (
    Compaction,
    Ingest,
    aside_of,
    bins,
    committed,
    compact,
    prepared,
    run_ingests,
)
from roundelay.pipeline.journals import OpenJournal, opened, same_history, span_of, together
from roundelay.pipeline.spark.executors import answers, by_bytes
from roundelay.pipeline.spark.progress import watching

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EVERY_GROUP: Final = ""
JOBS: Final = 16
JOB_BYTES_MIN: Final = 16 << 20

Session = Callable[[], AbstractContextManager["SparkSession"]]
"""Starts Spark, when there is something to do."""


class GroupArchived(Struct):
    """What an archive has of a group, and what came in this run."""

    new: int = 0
    """Records that came."""
    records: int = 0
    files: int = 0
    bytes: int = 0
    days: int = 0
    positions: list[Range] = field(default_factory=list)
    missing: list[Range] = field(default_factory=list)
    """Positions the journals ought to have and do not, and the archive neither."""
    let_go: int = 0
    """Records that were too old, now or before."""
    disagreements: int = 0
    """Positions of which recorders have different records; `reconcile` tells them."""


class ArchiveResult(Struct):
    """What a run did."""

    out: str
    compacted: int = 0
    """Files that were put together with others."""
    removed: int = 0
    """Files that were too old."""
    gone: list[str] = field(default_factory=list)
    """Files that somebody else removed: their positions are taken again, if a journal has them."""
    groups: dict[str, GroupArchived] = field(default_factory=dict)


class Sizes(Struct, frozen=True, kw_only=True):
    """How large files become; for tests, and for file systems with ideas of their own."""

    job_bytes: int = 0
    """Of a journal in one task; 0: so that there are some tasks, and files of good size."""
    file_bytes: int = 256 << 20
    """A file is closed when its rows take this much before they are compressed."""
    small_bytes: int = 32 << 20
    """Smaller files of a day are put together …"""
    together_bytes: int = 128 << 20
    """… up to this size."""

    def of_job(self, by_journal: Sequence[Sequence[Piece]]) -> int:
        """Bytes of a job when this is what the journals have."""
        total = max((sum(piece.bytes for piece in some) for some in by_journal), default=0)
        return self.job_bytes or max(JOB_BYTES_MIN, min(JOB_BYTES, total // JOBS))


def archive(
    session: Session,
    folders: Iterable[Path],
    out: Path,
    *,
    keep_days: Mapping[str, int] | None = None,
    now: datetime | None = None,
    sizes: Sizes | None = None,
) -> ArchiveResult:
    """Take what is new in the journals; let go what is too old; put small files together.

    `keep_days` says for each group how many days stay, counted back from `now`; EVERY_GROUP is the
    key for those that are not named.
    """
    sizes = sizes or Sizes()
    oldest = _oldest(keep_days or {}, now or datetime.now(UTC))
    done = ArchiveResult(str(out))
    journals = opened(folders)
    with lock(out):
        manifest = prepared(out, "archive")
        done.gone = _gone(out, manifest)
        aside = aside_of(out)
        work, known_missing = _work(journals, manifest, aside, oldest, sizes)
        done.removed = _let_go(manifest, oldest)
        if work or bins(manifest.files, sizes.small_bytes, sizes.together_bytes):
            with session() as spark, watching(spark, "archiving" if work else "compacting"):
                _take(spark, work, manifest, done)
                _compact(spark, out, aside, manifest, sizes, done)
        committed(out, aside, manifest)
    for group, missing in known_missing.items():
        had = manifest.holding(group)
        done.groups.setdefault(group, GroupArchived()).missing = difference(
            missing, [*had.positions, *had.let_go]
        )
    _sum_up(manifest, done)
    return done


def _oldest(keep_days: Mapping[str, int], now: datetime) -> Callable[[str], str]:
    """The first day that stays, by group; empty: all do."""

    def oldest(group: str) -> str:
        days = keep_days.get(group, keep_days.get(EVERY_GROUP))
        if days is None:
            return ""
        return (now.astimezone(UTC).date() - timedelta(days=days)).isoformat()

    return oldest


def _work(
    journals: list[OpenJournal],
    manifest: Manifest,
    aside: Path,
    oldest: Callable[[str], str],
    sizes: Sizes,
) -> tuple[list[Ingest], dict[str, list[Range]]]:
    """What is to be read; and, by group, what the journals span."""
    work: list[Ingest] = []
    spans: dict[str, list[Range]] = {}
    for side_by_side in together(journals):
        group = side_by_side[0].group
        if group in spans:
            _refuse(side_by_side[0])
        holding = manifest.holding(group)
        for journal in side_by_side:
            if not same_history(journal.history, holding.histories):
                _refuse(journal)
            holding.histories = sorted({*holding.histories, *journal.history})
        by_journal = [pieces(journal.reader, overlap=True) for journal in side_by_side]
        have = [(piece.lo, piece.hi) for some in by_journal for piece in some]
        # What all of them know they lack is not looked for again and again.
        there = [
            positions
            for journal, some in zip(side_by_side, by_journal, strict=True)
            for positions in difference([(x.lo, x.hi) for x in some], journal.reader.missing)
        ]
        lacking = difference(have, there)
        within = difference(have, [*holding.positions, *holding.let_go, *lacking])
        jobs = jobs_of(group, by_journal, within=within, job_bytes=sizes.of_job(by_journal))
        work += [Ingest(job, str(aside), sizes.file_bytes, oldest(group)) for job in jobs]
        begin, end = span_of(side_by_side)
        spans[group] = [(begin, end)] if begin < end else []
    return work, spans


def _refuse(journal: OpenJournal) -> None:
    allowed = (
        f"a journal of the same history of {journal.group}; this group began anew, and positions "
        "with it: archive this journal into another folder"
    )
    raise ConfigError("journal", journal.folder, allowed)


def _gone(out: Path, manifest: Manifest) -> list[str]:
    """Forget files that are not there any more."""
    gone = [file for file in manifest.files if not (out / file.path).exists()]
    for file in gone:
        holding = manifest.holding(file.group)
        holding.positions = difference(holding.positions, file.ranges)
        manifest.files.remove(file)
    return [file.path for file in gone]


def _let_go(manifest: Manifest, oldest: Callable[[str], str]) -> int:
    """Files of days that are too old."""
    old = [file for file in manifest.files if file.day < oldest(file.group)]
    gone: dict[str, list[Range]] = {}
    for file in old:
        gone.setdefault(file.group, []).extend(file.ranges)
    for group, ranges in gone.items():
        holding = manifest.holding(group)
        holding.positions = difference(holding.positions, ranges)
        holding.let_go = union([*holding.let_go, *ranges])
    manifest.files = [file for file in manifest.files if file.day >= oldest(file.group)]
    return len(old)


def _take(spark: SparkSession, work: list[Ingest], manifest: Manifest, done: ArchiveResult) -> None:
    for ingested in run_ingests(spark, work):
        holding = manifest.holding(ingested.group)
        vouched = [(lo, hi) for lo, hi, _ in ingested.findings.vouched]
        holding.positions = union([*holding.positions, *difference(vouched, ingested.let_go)])
        holding.let_go = union([*holding.let_go, *ingested.let_go])
        manifest.files += ingested.files
        group_done = done.groups.setdefault(ingested.group, GroupArchived())
        group_done.new += sum(file.rows for file in ingested.files)
        group_done.disagreements += ingested.findings.disputed


def _compact(
    spark: SparkSession,
    out: Path,
    aside: Path,
    manifest: Manifest,
    sizes: Sizes,
    done: ArchiveResult,
) -> None:
    """Small files of a day, new ones too, become one."""
    batches = bins(manifest.files, sizes.small_bytes, sizes.together_bytes)
    items = [Compaction(str(out), str(aside), files) for files in batches]
    made = answers(spark, by_bytes(items), compact, list[File])
    replaced = {file.path for files in batches for file in files}
    kept = [file for file in manifest.files if file.path not in replaced]
    manifest.files = kept + [file for files in made for file in files]
    done.compacted += len(replaced)


def _sum_up(manifest: Manifest, done: ArchiveResult) -> None:
    by_group: dict[str, list[File]] = {group: [] for group in manifest.groups}
    for file in manifest.files:
        by_group.setdefault(file.group, []).append(file)
    for group, files in by_group.items():
        group_done = done.groups.setdefault(group, GroupArchived())
        group_done.records = sum(file.rows for file in files)
        group_done.files, group_done.bytes = len(files), sum(file.bytes for file in files)
        group_done.days = len({file.day for file in files})
        group_done.positions = manifest.holding(group).positions
        group_done.let_go = count_of(manifest.holding(group).let_go)
    done.groups = {group: done.groups[group] for group in sorted(done.groups)}
