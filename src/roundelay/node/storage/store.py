"""What a member keeps on disk: the records its engine persists, and how they come back.

One file per group: a snapshot, then records as they come.  Each record carries its length and a
checksum; a file that ends in the middle of a record (the machine died while writing) is cut
there, which is said in the log.  The records that are promises to peers are synced before anything
is sent, and a SEAL stands behind them; the others are only written (`core.token.stable` says why
that is enough).  So what is damaged in front of a promise or a seal was once synced: promises may
be lost with it, the file is put aside, and the member comes back as one that has lost its disk
(CM-R17).  That holds for the last promise, too.  What is damaged behind the last seal was never
synced, and no promise is in it.

Whether anything is missing that was written and not synced, `node.storage.tally` can tell after the
death of a process, and CLOSED, the last record, after an orderly end (`whole`).  When the file has
grown large it is replaced by a new one, written aside and renamed (`node.storage.rotation`).
"""

from __future__ import annotations

import asyncio
import mmap
import os
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final
from zlib import crc32

import msgspec
from msgspec import Struct

from roundelay.core.errors import ConfigError
from roundelay.core.grsb.pdu import Counter
from roundelay.core.grsb.stable import Accepted, Ceiling, GrsbStable, Handled, Promised
from roundelay.core.positive_ack import Reserved
from roundelay.core.token.ballot import entered
from roundelay.core.token.pdu import NO_HISTORY, Entered, Entry, History, Version
from roundelay.core.token.phases import NORMAL
from roundelay.core.token.site import TokenSite
from roundelay.core.token.stable import (
    Committed,
    Forgot,
    Joined,
    Listed,
    Stable,
    Stamped,
    Trimmed,
    Wiped,
)
from roundelay.core.wide.stable import LOCAL, Flooded
from roundelay.durable import put, sync_path, write_parts
from roundelay.node.storage.rotation import Rotation
from roundelay.node.storage.tally import ANY, Tally

MAGIC: Final = b"RNDLST01"
RECORD: Final = struct.Struct(">IIB")  # length, checksum, type
ROTATE_BYTES: Final = 64 << 20
ROTATE_TIMES: Final = 4
"""A new file is begun when this one is so large, and so many times what it began with."""
SCAN_BYTES: Final = 1 << 20
"""How far behind a damaged record to look for a sound one."""


class Kept(Struct, frozen=True):
    """A whole `Stable`: how a file begins."""

    max_joined: Version
    tl: Version
    members: tuple[int, ...]
    start_ts: int
    first: int
    cnts: int
    seq: int
    counters: tuple[tuple[int, int], ...]
    entries: tuple[Entry, ...]
    wiped: bool
    history: History = NO_HISTORY
    seen: tuple[Entered, ...] = ()


class Seal(Struct, frozen=True):
    """All before this record was synced with it."""


class Closed(Struct, frozen=True):
    """All before this record was synced, and nothing was to follow."""


class Born(Struct, frozen=True):
    """GRSB: the history that this member takes part in, and who was there when it began."""

    history: str
    council: tuple[str, ...] = ()
    lives: tuple[bytes, ...] = ()
    members: tuple[str, ...] = ()
    """All of them, as they were numbered at the last start."""


class Began(Struct, frozen=True):
    """GRSB: which start of this member it was; the next one is higher."""

    inc: int


class Senders(Struct, frozen=True):
    """GRSB: what a recorder knew of the senders of all it had recorded below `position`."""

    position: int
    time: int
    counters: tuple[Counter, ...]


class Leveled(Struct, frozen=True):
    """The hierarchy: a record of one of its levels, by type and contents."""

    level: int
    kind: int
    body: bytes

    @classmethod
    def of(cls, level: int, record: Struct) -> Leveled:
        return cls(level, TYPES[type(record)], _encode(record))

    @property
    def record(self) -> Any:
        return DECODERS[self.kind].decode(self.body)


RECORDS: Final[tuple[type[Struct], ...]] = (
    Entry, Joined, Listed, Wiped, Trimmed, Reserved, Kept, Promised, Accepted, Handled, Born, Began,
    Senders, Leveled, Flooded, Stamped, Committed, Forgot, Seal, Closed, Ceiling,
)  # fmt: skip
"""A record's type is its place here."""
TYPES: Final = {kind: number for number, kind in enumerate(RECORDS)}
DECODERS: Final = tuple(msgspec.msgpack.Decoder(kind) for kind in RECORDS)
PROMISES: Final = (Joined, Listed, Wiped, Reserved, Promised, Accepted, Born, Began, Ceiling)
SYNCED: Final = (*PROMISES, Seal, Closed, Kept)
"""Where one of these is, all before it was synced."""

_encode = msgspec.msgpack.Encoder().encode


def kept_of(site: TokenSite) -> Kept:
    """The stable state of a site that works: everything it has and has not forgotten."""
    log, token_list, reformation = site.log, site.token_list, site.reformation
    upto = log.nts if log.writes_stamped else log.cnts
    entries = tuple(log.entries[ts] for ts in range(log.first_kept, upto))
    return Kept(
        reformation.max_joined,
        token_list.version,
        token_list.members,
        token_list.start_ts,
        token_list.first,
        log.cnts,
        log.seq,
        log.counters_at(log.cnts),
        entries,
        reformation.wiped,
        token_list.history,
        entered(reformation.seen),
    )


def _fold(stable: Any, record: Struct) -> None:
    """Make `record` part of the stable state; KeyError if it does not fit what was before it."""
    if isinstance(record, Kept):
        _restore(stable, record)
    elif not isinstance(record, Seal | Closed):
        stable.apply(record)


def _restore(stable: Stable, kept: Kept) -> None:
    stable.max_joined, stable.tl, stable.members = kept.max_joined, kept.tl, kept.members
    stable.start_ts, stable.first = kept.start_ts, kept.first
    stable.cnts, stable.seq = kept.cnts, kept.seq
    stable.counters = dict(kept.counters)
    stable.entries = {entry.ack.ts: entry for entry in kept.entries}
    stable.first_kept = min(stable.entries, default=kept.cnts)
    stable.wiped = kept.wiped
    stable.history = kept.history
    stable.forgot = False  # a site in a list knows all that it has processed
    stable.seen = {life.site: (life.tl, life.boot) for life in kept.seen}


def _frame(record: Struct) -> tuple[bytes, bytes]:
    body = _encode(record)
    kind = TYPES[type(record)]
    return RECORD.pack(len(body), crc32(body, kind), kind), body


def _unframe(data: memoryview, at: int) -> tuple[Struct, int] | None:
    """The record at `at` and where the next one begins; None if there is no sound one."""
    start = at + RECORD.size
    if start > len(data):
        return None
    size, checksum, kind = RECORD.unpack_from(data, at)
    if kind >= len(RECORDS) or size > len(data) - start:
        return None
    body = data[start : start + size]
    if crc32(body, kind) != checksum:
        return None
    try:
        return DECODERS[kind].decode(body), start + size
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def _records(data: memoryview) -> Iterator[tuple[Struct, int, int]]:
    """The sound records of a file, each with where it ends and its checksum."""
    at = len(MAGIC)
    while (unframed := _unframe(data, at)) is not None:
        checksum = RECORD.unpack_from(data, at)[1]
        record, at = unframed
        yield record, at, checksum


@contextmanager
def _mapped(path: Path) -> Iterator[memoryview]:
    """What is in a file, which is not empty."""
    with (
        path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
        memoryview(mapped) as data,
    ):
        yield data


_SEAL: Final = _frame(Seal())


class Damaged(Exception):
    """A file with a hole in it."""


class Store:
    """The file of one member in one group."""

    def __init__(
        self, path: Path, make: Callable[[], Any], say: Callable[[str], None] = lambda text: None
    ) -> None:
        self.path = path
        self.stable: Any = None
        """What was found; None when there was no file: this member has never been here."""
        self.synced = 0
        self.damaged = False
        """The file had a hole; what is left of it is beside it, and this one is new."""
        self._rotation: Rotation | None = None
        self._inode = -1
        self._begun_with = 0  # bytes that the file began with when it was begun anew
        self._promised = False  # a promise was appended since the rotation began
        self._renamed = False  # and the folder was not synced since
        self._tally = Tally(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and not MAGIC.startswith(_first_bytes(path, len(MAGIC) + 1)):
            try:
                self.stable = make()
                good = self._read(say)
            except Damaged as error:
                self.stable, self.damaged = None, True
                aside = path.with_suffix(".damaged")
                os.replace(path, aside)
                say(f"{path}: {error}; moved to {aside.name}, and we begin without it")
        if self.stable is not None:
            self._file = os.open(path, os.O_RDWR)
            os.ftruncate(self._file, good)
            os.lseek(self._file, 0, os.SEEK_END)
            self.size = good
            self._seal()
        else:
            path.unlink(missing_ok=True)  # not even its beginning was written
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            self.size = len(MAGIC)
            try:
                os.write(self._file, MAGIC)
                self._seal()
                sync_path(path.parent)
            except OSError:
                os.close(self._file)
                raise

    def _seal(self, record: Struct | None = None) -> None:
        """Sync what there is, and say so in the file."""
        parts = _frame(record or Seal())
        self.size += write_parts(self._file, parts)
        os.fsync(self._file)
        self._count(parts[0])

    def _count(self, head: bytes) -> None:
        """The file ends with the record that begins with `head`."""
        inode = os.fstat(self._file).st_ino if self._inode < 0 else self._inode
        self._inode = inode
        self._tally.set(inode, self.size, RECORD.unpack(head)[1])

    def _read(self, say: Callable[[str], None]) -> int:
        """Fold what the file says into `stable`; how far it is good."""
        if _first_bytes(self.path, len(MAGIC)) != MAGIC:
            raise ConfigError("dir", self.path, "a file of Roundelay: move this one away")
        at = len(MAGIC)
        sealed = False
        record: Struct | None = None
        ends = {at: ANY}
        with _mapped(self.path) as view:
            size = len(view)
            for record, at, checksum in _records(view):
                ends[at] = checksum
                sealed = sealed or isinstance(record, Seal | Closed)
                try:
                    _fold(self.stable, record)
                except KeyError:
                    raise Damaged(f"what ends at {at} does not fit what is before it") from None
            if at < size:
                self._look_behind(view, at, sealed)
                say(f"{self.path}: the last {size - at} bytes were not written whole; left out")
        agrees = self._tally.agrees(self.path.stat().st_ino, ends)
        if isinstance(self.stable, Stable):
            self.stable.whole = agrees or (isinstance(record, Closed) and at == size)
        return at

    def _look_behind(self, view: memoryview, at: int, sealed: bool) -> None:
        """Raise Damaged if what is at `at` was synced once: something sound that was is behind.

        A file of before there were seals has none: there any sound record behind tells it.
        """
        size = len(view)
        near, last = min(size, at + SCAN_BYTES), max(at, size - SCAN_BYTES)
        for later in (*range(at + 1, near), *range(max(near, last), size)):
            unframed = _unframe(view, later)
            if unframed is not None and (not sealed or isinstance(unframed[0], SYNCED)):
                raise Damaged(f"damaged between {at} and {later}, with sound records behind")

    def write(self, records: Iterable[Struct], sync_all: bool) -> None:
        """Append; durable when it returns if a record is a promise to peers, or with `sync_all`."""
        parts: list[bytes] = []
        sync = sync_all
        for record in records:
            parts += _frame(record)
            inner = RECORDS[record.kind] if isinstance(record, Leveled) else type(record)
            sync = sync or inner in PROMISES
        if sync:
            parts += _SEAL
        self.size += write_parts(self._file, parts)
        if parts:
            self._count(parts[-2])
        if sync:
            os.fsync(self._file)
            if self._renamed:
                sync_path(self.path.parent)
                self._renamed = False
            self._promised = True
            self.synced += 1

    async def sync_beside(self) -> None:
        """Make all that is written by now durable, in a thread; OSError if the disk does not."""
        file, renamed = os.dup(self._file), self._renamed
        folder = self.path.parent

        def sync() -> None:
            try:
                os.fsync(file)
                if renamed:
                    sync_path(folder)
            finally:
                os.close(file)

        await asyncio.to_thread(sync)

    def rotate(self, site: TokenSite) -> bool:
        """Begin a new file if this one is large and the site is at a point that says it all.

        That is done beside; True when a new file has taken over.
        """
        rotation = self._rotation
        if rotation is not None:
            if rotation.done:
                self._take_over(rotation)
                return True
            return False
        if self.size < max(ROTATE_BYTES, ROTATE_TIMES * self._begun_with):
            return False
        if site.phase != NORMAL or site.cnts < site.token_list.start_ts:
            return False
        kept = kept_of(site)
        self._promised = False
        self._rotation = Rotation(self.path, self._file, self.size, lambda: (MAGIC, *_frame(kept)))
        return False

    def _take_over(self, rotation: Rotation) -> None:
        self._rotation = None
        fresh = rotation.take_over(self.size, self._promised)
        os.close(self._file)
        about = os.fstat(fresh)
        self._file, self.size, self._inode = fresh, about.st_size, about.st_ino
        self._tally.set(self._inode, self.size, ANY)
        self._begun_with = rotation.begun_with
        self._renamed = True

    def replace(self, records: Iterable[Struct]) -> None:
        """Begin a new file with these records, which say all that the old one does."""
        parts = [part for record in records for part in _frame(record)]
        put(self.path, b"".join([MAGIC, *parts, *_SEAL]))
        os.close(self._file)
        self._file = os.open(self.path, os.O_RDWR)
        self.size = os.lseek(self._file, 0, os.SEEK_END)
        self._inode = os.fstat(self._file).st_ino
        self._tally.set(self._inode, self.size, ANY)

    def close(self) -> None:
        if self._rotation is not None:
            self._rotation.give_up()
            self._rotation = None
        if self._file < 0:  # closed once: the number may be that of another file by now
            return
        needed = True
        try:
            self._seal(Closed())
            needed = False
        finally:
            self._tally.close(needed=needed)
            os.close(self._file)
            self._file = -1


def _first_bytes(path: Path, count: int) -> bytes:
    with path.open("rb") as file:
        return file.read(count)


def left_by(path: Path) -> Stable | None:
    """What the file of a token site that is over says, as far as it can be read; None: nothing.

    It is left as it is, also while it is written."""
    stable = Stable()
    with suppress(OSError, ValueError), _mapped(path) as data:  # ValueError: it is empty
        if bytes(data[: len(MAGIC)]) != MAGIC:
            return None
        with suppress(KeyError):  # of one that does not fit, what is before it counts
            for record, _, _ in _records(data):
                _fold(stable, record)
        return stable
    return None


class GrsbKept(GrsbStable):
    """All that a member of a GRSB group keeps, but the messages of a recorder."""

    born: Born | None = None
    inc: int = -1
    senders: Senders = Senders(0, 0, ())

    @property
    def levels(self) -> Mapping[int, GrsbKept]:
        """What is kept of each level: there is one (`node.roles.wide.member` has more)."""
        return {LOCAL: self}

    def apply(self, record: Struct) -> None:
        if isinstance(record, Born):
            self.born = record
        elif isinstance(record, Began):
            self.inc = record.inc
        elif isinstance(record, Senders):
            self.senders = record
        else:
            super().apply(record)

    def records(self) -> list[Struct]:
        """What makes it again."""
        records: list[Struct] = [Began(self.inc), self.handled]
        if self.born is not None:
            records.append(self.born)
        if self.promised >= 0:
            records.append(Promised(self.promised))
        if self.accepted is not None:
            records.append(Accepted(self.accepted))
        if self.ceiling:
            records.append(Ceiling(self.ceiling))
        if self.senders.position:
            records.append(self.senders)
        return records
