"""What tasks do for `archive` and `reconcile`: write files aside, and say what they found.

A task gets some `Ingest`s: positions of a group, all copies there are of them, and where to put the
result.  It writes Parquet aside and answers with one row for each: which files, who had what, what
is missing.  Nothing is visible before the driver has all answers and commits (`committed`), so a
task that is tried again does no harm.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from roundelay.core.errors import ConfigError
from roundelay.core.positions import Range, union
from roundelay.durable import sync_path
from roundelay.journal.archive import (
    ASIDE_FOLDER,
    LOCK,
    MANIFEST,
    ArchiveWriter,
    File,
    Manifest,
    read_archived,
    read_manifest,
    write_manifest,
)
from roundelay.journal.merge import Findings, Job, merge
from roundelay.pipeline.spark.executors import answers, by_bytes, packed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ONE_FILE: Final = 1 << 62


class Ingest(Struct, frozen=True):
    """A job, and where its rows go."""

    job: Job
    aside: str
    file_bytes: int
    not_before: str = ""
    """Rows of earlier days are let go."""
    prefer: tuple[int, ...] = ()

    @property
    def bytes(self) -> int:
        return self.job.bytes


class Ingested(Struct):
    """What became of it."""

    group: str
    lo: int
    hi: int
    files: list[File]
    findings: Findings
    let_go: list[Range]


class Compaction(Struct, frozen=True):
    """Files of one day of one group that become one."""

    archive: str
    aside: str
    files: tuple[File, ...]

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)


# ------------------------------------------------------------------------ in a task


def ingest(item: Ingest) -> Ingested:
    """Merge the copies and write what they have."""
    job, findings = item.job, Findings()
    writer = ArchiveWriter(
        Path(item.aside), job.group, file_bytes=item.file_bytes, not_before=item.not_before
    )
    for batch in merge(job, findings, prefer=item.prefer):
        writer.add(batch)
    files = writer.finish()
    return Ingested(job.group, job.lo, job.hi, files, findings, union(writer.let_go))


def compact(item: Compaction) -> list[File]:
    """The rows of small files as one file, in the order of `seq`."""
    import pyarrow as pa

    archive, aside = Path(item.archive), Path(item.aside)

    def rows() -> Iterator[Any]:
        for file in item.files:
            new = aside / Path(file.path).name  # written in this run, not yet in its place
            yield from read_archived(archive, file, path=new if new.exists() else None)

    batches: Iterable[Any] = rows()
    if any(a.hi > b.lo for a, b in pairwise(item.files)):  # what came later is between the others
        batches = pa.Table.from_batches(rows()).sort_by("seq").to_batches()
    writer = ArchiveWriter(aside, item.files[0].group, file_bytes=ONE_FILE)
    for batch in batches:
        writer.add(batch)
    return writer.finish()


def run_ingests(spark: SparkSession, items: Sequence[Ingest]) -> list[Ingested]:
    """All of them done on the executors, in the order of positions."""
    return sorted(
        answers(spark, by_bytes(items), ingest, Ingested), key=lambda done: (done.group, done.lo)
    )


# ------------------------------------------------------------------------ on the driver


def prepared(folder: Path, maker: str) -> Manifest:
    """The archive in a folder, or a new one; what a crash left there is removed.

    Call it with the lock held.
    """
    if not (folder / MANIFEST).exists():
        others = sorted(path.name for path in folder.iterdir() if path.name != LOCK)
        if others:
            allowed = f"a new folder or an archive; {others[0]} is in it and no {MANIFEST}"
            raise ConfigError("out", folder, allowed)
        write_manifest(folder, Manifest(made_by=maker))
    manifest = read_manifest(folder)
    if manifest.made_by != maker:
        allowed = f"a new folder, or one of `{maker}`; this one is of `{manifest.made_by}`"
        raise ConfigError("out", folder, allowed)
    tidy(folder, manifest)
    return manifest


def tidy(folder: Path, manifest: Manifest) -> None:
    """Remove what the manifest does not name."""
    shutil.rmtree(folder / ASIDE_FOLDER, ignore_errors=True)
    named = {file.path for file in manifest.files}
    for path in folder.glob("group=*/day=*/*"):
        if path.relative_to(folder).as_posix() not in named:
            path.unlink(missing_ok=True)
    for pattern in ("group=*/day=*", "group=*"):
        for path in folder.glob(pattern):
            with suppress(OSError):  # not empty
                path.rmdir()


def aside_of(folder: Path) -> Path:
    """Where the tasks of one run write."""
    aside = folder / ASIDE_FOLDER / os.urandom(8).hex()
    aside.mkdir(parents=True)
    return aside


def committed(folder: Path, aside: Path, manifest: Manifest) -> None:
    """Put new files in their places; from the moment the manifest is renamed they count.

    Files that are no longer named go last: whoever reads without the manifest may for a moment
    find rows twice, never too few.
    """
    placed: set[Path] = set()
    for file in manifest.files:
        place = folder / file.path
        new = aside / place.name
        if new.exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            os.replace(new, place)
            placed.add(place.parent)
    for parent in placed:
        sync_path(parent)
    write_manifest(folder, manifest)
    tidy(folder, manifest)


def bins(files: Iterable[File], small: int, room: int) -> list[tuple[File, ...]]:
    """Small files of each day that can become one, at most `room` bytes together."""
    by_day: dict[tuple[str, str], list[File]] = {}
    for file in sorted(files, key=lambda file: (file.lo, file.path)):
        if file.bytes < small:
            by_day.setdefault((file.group, file.day), []).append(file)
    packs = (pack for some in by_day.values() for pack in packed(some, room))
    return [tuple(pack) for pack in packs if len(pack) > 1]
