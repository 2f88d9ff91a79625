"""An archive: messages of groups as Parquet, partitioned by group and day.

::

    _archive.json                               what is in it: files, positions, what was let go
    group=token%3Aorders/day=2026-01-31/
        00000000000000012345-5d1c….parquet      sorted by seq; named by position and content
    _aside/                                     being written
    _proof.json                                 where it comes from, if `reconcile` made it

Any reader of partitioned Parquet can use the folder.  `group` and `day` are in the paths, the other
columns in the files; the day is that of `time`, in UTC.  A file that `_archive.json` does not name
does not belong to the archive: it is what a crash left, and goes with the next run.  Files never
change, so whoever holds a manifest reads what was there when it was written.

The `sha256` of a file goes over its rows, not its bytes (see `Digest`): two archives with the same
rows have the same ones, whatever wrote them.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Collection, Iterator
from datetime import date, timedelta
from functools import partial, reduce
from operator import and_
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct, field

from roundelay.core.errors import ConfigError, RoundelayError, UsageError
from roundelay.core.positions import Range, union
from roundelay.core.selection import EVERYTHING, POSITION_MAX, Selection
from roundelay.durable import ASIDE, FileLock, put, sync_path
from roundelay.journal.parquet import ROWS, VERSION, arrow, numpy, schema

np, pa = numpy(), arrow()

MANIFEST: Final = "_archive.json"
PROOF: Final = "_proof.json"
LOCK: Final = "_lock"
ASIDE_FOLDER: Final = "_aside"
FORMAT: Final = 1
DAY_US: Final = 86_400_000_000
TIME: Final = schema().field("time").type
_EPOCH: Final = date(1970, 1, 1)
_SPECIAL: Final = re.compile(r"""[\x00-\x1f"#%'*/:=?\\\x7f{\[\]^]""")
"""What Spark escapes in the name of a partition; it would not understand more."""


class ArchiveDamaged(RoundelayError):
    """A file of an archive is not what was written, or gone."""


class ArchiveInUse(UsageError):
    """Another process writes to the archive."""


class File(Struct, frozen=True):
    """One Parquet file."""

    path: str
    """Relative to the archive."""
    group: str
    day: str
    lo: int
    hi: int
    """Positions of its first row and behind its last."""
    ranges: tuple[tuple[int, int], ...]
    """Which positions exactly, half-open: there may be others' between them."""
    rows: int
    bytes: int
    earliest: int
    latest: int
    """Times of its rows, microseconds since 1970."""
    sha256: str


class Holding(Struct):
    """What an archive has of one group."""

    positions: list[Range] = field(default_factory=list)
    """In its files, half-open."""
    let_go: list[Range] = field(default_factory=list)
    """Were too old: not in the files, and not wanted again."""
    histories: list[str] = field(default_factory=list)
    """Names of the group's histories that the positions belong to, where recorders know them."""


class Manifest(Struct):
    """What an archive has."""

    format: int = FORMAT
    messages: int = VERSION
    made_by: str = "archive"
    """Or `reconcile`; neither adds to what the other has made."""
    groups: dict[str, Holding] = field(default_factory=dict)
    files: list[File] = field(default_factory=list)

    def holding(self, group: str) -> Holding:
        return self.groups.setdefault(group, Holding())


def is_archive(folder: Path) -> bool:
    return (folder / MANIFEST).is_file()


def read_manifest(folder: Path) -> Manifest:
    """What the archive has; ConfigError if the folder is none."""
    try:
        text = (folder / MANIFEST).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise ConfigError("archive", folder, f"a folder with {MANIFEST}") from None
    try:
        manifest = msgspec.json.decode(text, type=Manifest)
    except msgspec.MsgspecError as error:
        raise ArchiveDamaged(f"{folder / MANIFEST} is not as it was written: {error}") from None
    if manifest.format != FORMAT or manifest.messages > VERSION:
        allowed = f"format {FORMAT} and messages up to version {VERSION}"
        raise ConfigError("archive", folder, allowed)
    return manifest


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """From now on this is what the archive has: written aside, synced, renamed."""
    manifest.files.sort(key=lambda file: (file.group, file.day, file.lo, file.path))
    manifest.groups = {group: manifest.groups[group] for group in sorted(manifest.groups)}
    put_json(folder / MANIFEST, msgspec.json.encode(manifest))


def put_json(path: Path, text: bytes) -> None:
    """A small file: laid out for people, written aside, renamed; untouched if it says the same."""
    if not says(path, text):
        put(path, _laid_out(text))


def says(path: Path, text: bytes) -> bool:
    """Is this what `put_json` would write?"""
    return path.exists() and path.read_bytes() == _laid_out(text)


def _laid_out(text: bytes) -> bytes:
    return msgspec.json.format(text, indent=1) + b"\n"


# ------------------------------------------------------------------------ who may write, and where


def lock(folder: Path) -> FileLock:
    """Held by whoever writes to the archive; its folder is made if need be."""
    folder.mkdir(parents=True, exist_ok=True)
    return FileLock(
        folder / LOCK,
        lambda _: ArchiveInUse(f"{folder} is being written; wait, or stop that process"),
    )


def day_of(us: int) -> str:
    """The day of a time, in UTC.

    >>> day_of(1_700_000_000_000_000)
    '2023-11-14'
    """
    return (_EPOCH + timedelta(days=us // DAY_US)).isoformat()


def folder_of(group: str, day: str) -> str:
    """Where the files of a group's day are.

    >>> folder_of("token:orders", "2026-01-31")
    'group=token%3Aorders/day=2026-01-31'
    """
    return f"group={_SPECIAL.sub(lambda match: f'%{ord(match[0]):02X}', group)}/day={day}"


# ------------------------------------------------------------------------ rows of a file


def file_schema() -> Any:
    """The columns in the files: those of messages without `group`, which is in the path."""
    return schema().remove(0)


class Digest:
    """SHA-256 over rows, column by column.

    Of `seq, time, conference, kind` the values as 64-bit little-endian; of `sender` and `data` the
    lengths (64-bit, -1 for null) and the bytes, apart.  The eight digests, end to end, are hashed
    again.  So it depends neither on how the rows are cut into batches nor on how a file is packed.
    """

    def __init__(self) -> None:
        self._parts = [hashlib.sha256() for _ in range(8)]

    def add(self, batch: Any) -> None:
        """Rows with the columns of `file_schema`, in the order of `seq`."""
        pc = pa.compute
        parts = self._parts
        for number, name in enumerate(("seq", "time", "conference", "kind")):
            values = batch.column(name).cast(pa.int64()).to_numpy(zero_copy_only=False)
            parts[number].update(np.ascontiguousarray(values, "<i8").tobytes())
        for number, name in ((4, "sender"), (6, "data")):
            column = batch.column(name).cast(pa.binary())
            lengths = pc.fill_null(pc.binary_length(column).cast(pa.int64()), -1)
            parts[number].update(
                np.ascontiguousarray(lengths.to_numpy(zero_copy_only=False), "<i8").tobytes()
            )
            for chunk in getattr(column, "chunks", [column]):
                parts[number + 1].update(_bytes_of(chunk))

    def hex(self) -> str:
        return hashlib.sha256(b"".join(part.digest() for part in self._parts)).hexdigest()


def _bytes_of(column: Any) -> Any:
    """The bytes of a binary array, end to end; those of nulls are none."""
    if column.null_count:
        column = column.drop_null()
    if not len(column):
        return b""
    _, offsets, data = column.buffers()
    if data is None:
        return b""
    ends = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1]
    return memoryview(data)[int(ends[0]) : int(ends[-1])]


class ArchiveWriter:
    """Files of one group, written aside: a new one each day, or when one is large enough.

    Rows come in the order of `seq`.  The files are named by position and content, so the same rows
    make the same file name; `finish` gives what was written, still in `aside`.
    """

    def __init__(self, aside: Path, group: str, *, file_bytes: int, not_before: str = "") -> None:
        self._aside = aside
        self._group = group
        self._file_bytes = file_bytes
        first = date.fromisoformat(not_before) if not_before else date.min
        self._not_before = (first - _EPOCH).days * DAY_US
        self._open: dict[str, _Open] = {}
        self.files: list[File] = []
        self.let_go: list[Range] = []
        """Positions of rows that were too old to be written."""

    def add(self, batch: Any) -> None:
        """Rows of `messages`, or of `file_schema`."""
        batch = batch.select(file_schema().names)
        seqs = batch.column("seq").to_numpy()
        times = batch.column("time").cast(pa.int64()).to_numpy(zero_copy_only=False)
        days, late = times // DAY_US, times < self._not_before
        if late.any():
            self.let_go += ranges_of(seqs[late])
            batch, days = batch.filter(pa.array(~late)), days[~late]
        for number in np.unique(days).tolist():
            part = batch
            if (days != number).any():
                part = batch.filter(pa.array(days == number))
            day = day_of(number * DAY_US)
            if day not in self._open:
                self._open[day] = _Open(self._aside, self._group, day)
            file = self._open[day]
            file.add(part)
            if file.size >= self._file_bytes:
                self.files.append(self._open.pop(day).close())

    def finish(self) -> list[File]:
        self.files += [file.close() for file in self._open.values()]
        self._open = {}
        return self.files


class _Open:
    """A file that is being written."""

    def __init__(self, aside: Path, group: str, day: str) -> None:
        self._group, self._day = group, day
        aside.mkdir(parents=True, exist_ok=True)
        self._path = aside / f"{os.urandom(8).hex()}{ASIDE}"
        self._writer = pa.parquet.ParquetWriter(
            self._path, file_schema(), compression="zstd", write_page_checksum=True
        )
        self._digest = Digest()
        self._waiting: list[Any] = []
        self.size = self.rows = 0
        self._earliest, self._latest = POSITION_MAX, -POSITION_MAX
        self._ranges: list[Range] = []

    def add(self, batch: Any) -> None:
        self._digest.add(batch)
        seqs = batch.column("seq")
        times = pa.compute.min_max(batch.column("time").cast(pa.int64())).as_py()
        self._ranges += ranges_of(seqs.to_numpy())
        self._earliest = min(self._earliest, times["min"])
        self._latest = max(self._latest, times["max"])
        self.rows += batch.num_rows
        self.size += batch.nbytes
        self._waiting.append(batch)
        if sum(waiting.num_rows for waiting in self._waiting) >= ROWS:
            self._flush()

    def _flush(self) -> None:
        if self._waiting:
            table = pa.Table.from_batches(self._waiting, schema=file_schema())
            self._writer.write_table(table, row_group_size=ROWS)
            self._waiting = []

    def close(self) -> File:
        self._flush()
        self._writer.close()
        os.chmod(self._path, 0o600)  # as the journals
        sync_path(self._path)
        digest = self._digest.hex()
        ranges = union(self._ranges)
        lo, hi = ranges[0][0], ranges[-1][1]
        name = f"{lo:020d}-{digest[:16]}.parquet"
        where = self._path.with_name(name)
        os.replace(self._path, where)
        return File(
            f"{folder_of(self._group, self._day)}/{name}",
            self._group,
            self._day,
            lo,
            hi,
            tuple(ranges),
            self.rows,
            where.stat().st_size,
            self._earliest,
            self._latest,
            digest,
        )


def ranges_of(seqs: Any) -> list[Range]:
    """Positions in rising order as half-open ranges.

    >>> import numpy
    >>> ranges_of(numpy.array([3, 4, 5, 9]))
    [(3, 6), (9, 10)]
    """
    if not len(seqs):
        return []
    cuts = np.flatnonzero(np.diff(seqs) != 1) + 1
    first = seqs[np.concatenate([[0], cuts])]
    last = seqs[np.concatenate([cuts - 1, [len(seqs) - 1]])]
    return [(lo, hi + 1) for lo, hi in zip(first.tolist(), last.tolist(), strict=True)]


def files_with(
    manifest: Manifest, selection: Selection = EVERYTHING, groups: Collection[str] | None = None
) -> list[File]:
    """The files that can hold something of `selection`."""
    return [
        file
        for file in manifest.files
        if (groups is None or file.group in groups)
        and file.lo < selection.until
        and file.hi > selection.since
        and file.earliest * 1000 < selection.until_time
        and file.latest * 1000 + 999 >= selection.since_time
    ]


def read_archived(
    folder: Path, file: File, selection: Selection = EVERYTHING, *, path: Path | None = None
) -> Iterator[Any]:
    """The rows of a file that are selected, as record batches of `messages`.

    Row groups that cannot hold anything of it are not read; page checksums are compared.  `path` is
    where the file is, if not yet in its place.
    """
    import pyarrow.dataset as ds

    if selection.nothing:
        return  # Arrow finds no type for a set with nothing in it
    checked = ds.ParquetFragmentScanOptions(page_checksum_verification=True)
    path = path or folder / file.path
    try:
        rows = ds.dataset(path, format=ds.ParquetFileFormat(default_fragment_scan_options=checked))
        holds = conditions(selection, pa.compute.field, partial(pa.scalar, type=TIME))
        wanted = reduce(and_, holds) if holds else None
        for batch in rows.to_batches(
            filter=wanted, batch_size=ROWS, batch_readahead=1, use_threads=False
        ):
            group = pa.repeat(pa.scalar(file.group, pa.string()), batch.num_rows)
            yield pa.record_batch([group, *batch.columns], schema=schema())
    except FileNotFoundError:
        raise ArchiveDamaged(f"{path} is gone; {MANIFEST} names it") from None
    except (OSError, pa.ArrowException) as error:
        raise ArchiveDamaged(f"{path} is damaged: {str(error).splitlines()[0]}") from None


def conditions(
    selection: Selection, field: Callable[[str], Any], moment: Callable[[int], Any]
) -> list[Any]:
    """What holds of the rows of `messages` that are selected, so that readers can skip the rest.

    Arrow's expressions or Spark's: `field` gives a column, `moment` a time of so many microseconds.
    """
    seq, time = field("seq"), field("time")
    # Rows have microseconds: a time selects those that begin with it.
    since, until = -(-selection.since_time // 1000), -(-selection.until_time // 1000)
    holds = [field(name).isin(sorted(values)) for name, values in selection.filters.items()]
    if selection.since > 0:
        holds.append(seq >= selection.since)
    if selection.until < POSITION_MAX:
        holds.append(seq < selection.until)
    if selection.since_time > 0:
        holds.append(time >= moment(since))
    if selection.until_time < POSITION_MAX:
        holds.append(time < moment(until))
    return holds
