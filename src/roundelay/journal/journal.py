"""A journal: a folder of segments that one recorder appends to and anybody can read.

What is promised depends on the sync policy, and `status` says which one it is:

- `always`    an append returns when it is on disk: one sync per commit, however many records
- `interval`  records are on disk at most `interval_s` after the append
- `os`        whenever the operating system likes

`durable` is the position up to which everything is on disk.  A sync that fails stops the journal
for good (JournalBroken): what the kernel could not write once it may later claim to have written.
"""

from __future__ import annotations

import json
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final

from msgspec import Struct

from roundelay.core.bundle import Bundle
from roundelay.core.errors import ConfigError, MalformedPdu, RoundelayError
from roundelay.journal.format import (
    GAP,
    HEADS_ONLY,
    LINK_BYTES,
    Run,
    decode_block_head,
    encode_block,
    link,
    part_of,
)
from roundelay.journal.segment import SUFFIX, Damage, Segment, create

ALWAYS: Final = "always"
INTERVAL: Final = "interval"
OS: Final = "os"
POLICIES: Final = (ALWAYS, INTERVAL, OS)

META: Final = "journal.json"
SYNCED: Final = "synced"
"""Position up to which everything is on disk, as text; written after each sync, never synced."""


class JournalBroken(RoundelayError):
    """The disk failed: nothing more is appended, and nothing was acknowledged that is not there."""


class JournalConfig(Struct, frozen=True, kw_only=True):
    """How a journal is kept."""

    sync: str = ALWAYS
    interval_s: float = 0.2
    segment_bytes: int = 64 << 20
    keep_bytes: int = 0
    """Oldest segments go when there is more than this; 0: no limit."""
    keep_s: float = 0.0
    """Oldest segments go when all of them is older than this; 0: no limit."""
    parquet: bool = False
    """Turn sealed segments into Parquet beside them (needs the extra `trace`)."""

    def check(self) -> None:
        if self.sync not in POLICIES:
            raise ConfigError("sync", self.sync, " or ".join(POLICIES))
        if self.interval_s <= 0:
            raise ConfigError("interval_s", self.interval_s, "a number of seconds above 0")
        if self.segment_bytes < 1 << 12:
            raise ConfigError("segment_bytes", self.segment_bytes, f"at least {1 << 12}")
        for field in ("keep_bytes", "keep_s"):
            if getattr(self, field) < 0:
                raise ConfigError(field, getattr(self, field), "0 or more")


class Selection(Struct, frozen=True, kw_only=True):
    """Which records: everything that is given must hold."""

    since: int = 0
    until: int = 1 << 62
    since_time: int = 0
    until_time: int = 1 << 62
    conferences: frozenset[int] | None = None
    senders: frozenset[str] | None = None
    kinds: frozenset[int] | None = None

    @property
    def by_content(self) -> bool:
        return self.conferences is not None or self.senders is not None

    def takes(self, run: Run) -> bool:
        return (
            (self.conferences is None or run.conference in self.conferences)
            and (self.senders is None or run.sender in self.senders)
            and (self.kinds is None or run.kind in self.kinds)
            and self.since_time <= run.time < self.until_time
        )


EVERYTHING: Final = Selection()


def segments_of(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"*{SUFFIX}"))


class Reader:
    """A journal as anybody can read it; needs nobody's leave and disturbs nobody."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.meta = read_meta(folder)
        self.segments: list[Segment] = []
        self.refresh()

    def refresh(self) -> None:
        """Look what has come since."""
        known = {segment.path: segment for segment in self.segments}
        found = []
        paths = segments_of(self.folder)
        for path in paths:
            segment = known.pop(path, None)
            if segment is None:
                segment = Segment(path)
                if not segment.load():
                    segment.scan()
            elif segment.index is None:
                segment.scan()
            found.append(segment)
        for segment in known.values():
            segment.close()
        self.segments = found

    @property
    def begin(self) -> int:
        return self.segments[0].base if self.segments else 0

    @property
    def end(self) -> int:
        return self.segments[-1].end if self.segments else 0

    def close(self) -> None:
        for segment in self.segments:
            segment.close()
        self.segments = []

    def read(self, selection: Selection = EVERYTHING) -> Iterator[Run]:
        """The records that are selected, in order."""
        return read_segments(self.segments, selection)

    def damages(self) -> list[Damage]:
        return [damage for segment in self.segments for damage in segment.damages]


def read_segments(segments: Sequence[Segment], selection: Selection) -> Iterator[Run]:
    for segment in list(segments):
        if segment.end <= selection.since or segment.base >= selection.until:
            continue
        runs = (
            _by_index(segment, selection) if selection.by_content else _by_block(segment, selection)
        )
        for run in runs:
            if run.position >= selection.until:
                return
            if run.end > selection.since and selection.takes(run):
                yield part_of(run, selection.since, selection.until)


def _by_block(segment: Segment, selection: Selection) -> Iterator[Run]:
    first = segment.first_block(selection.since, selection.since_time)
    for number in range(first, segment.block_count()):
        if segment.block(number).position >= selection.until:
            return
        yield from segment.read_block(number)


def _by_index(segment: Segment, selection: Selection) -> Iterator[Run]:
    chosen = segment.select(selection.conferences, selection.senders, selection.since)
    for entry, sender in chosen:
        if entry.position >= selection.until:
            return
        if not selection.since_time <= entry.time < selection.until_time:
            continue
        yield segment.read_run(entry, sender)


class Journal:
    """The appending side.  One process at a time; `say` gets what an operator should know."""

    def __init__(
        self,
        folder: Path,
        group: str,
        config: JournalConfig | None = None,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.config = config or JournalConfig()
        self.config.check()
        self.folder = folder
        self.group = group
        self.say = say
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.meta = _meta(folder, group)
        self.id = bytes.fromhex(self.meta["id"])
        self.segments: list[Segment] = []
        self.missing: list[tuple[int, int]] = []
        """Positions that were lost, half-open: to be fetched from another recorder."""
        self.waiting: list[Run] = []
        self.waiting_bytes = 0
        self.durable = 0
        self.syncs = 0
        self.appended = 0
        self.broken: str = ""
        self._file = -1
        self._synced_file = os.open(folder / SYNCED, os.O_RDWR | os.O_CREAT, 0o600)
        self._dirty = False
        self._synced_at = time.monotonic()
        self._chain = _Chain()
        self._open()

    # -- opening ---------------------------------------------------------------------------

    def _open(self) -> None:
        synced = self._read_synced()
        paths = segments_of(self.folder)
        for path in paths:
            segment = Segment(path)
            last = path == paths[-1]
            if last or not segment.load():
                segment.scan(synced if last else -1)
                self._account(segment, last)
                if not last:
                    segment.seal()
            self.segments.append(segment)
        self._check_joints()
        if self.segments:
            last_one = self.segments[-1]
            self._file = os.open(last_one.path, os.O_WRONLY)
            os.lseek(self._file, last_one.size, os.SEEK_SET)
            self._chain.resume(last_one)
        self.durable = self.end

    def _account(self, segment: Segment, last: bool) -> None:
        """Damage in a segment: say it, keep the bytes, remember what has to be fetched."""
        for damage in segment.damages:
            tail = last and damage.hi < 0
            what = "unfinished at the end" if tail else "damaged"
            lost = "" if tail else f", positions {damage.lo} to {damage.hi - 1}"
            self.say(
                f"{segment.path.name}: {damage.bytes} bytes at {damage.offset} are {what} "
                f"({damage.why}){lost}"
            )
            if tail or damage.offset + damage.bytes >= os.fstat(segment.file).st_size:
                self._put_aside(segment, damage)
            if damage.hi > damage.lo:
                self.missing.append((damage.lo, damage.hi))

    def _put_aside(self, segment: Segment, damage: Damage) -> None:
        """Bytes behind the last good block make room for new ones, but are not thrown away."""
        aside = segment.path.with_name(f"{segment.path.stem}.{damage.offset}.torn")
        aside.write_bytes(os.pread(segment.file, damage.bytes, damage.offset))
        with open(segment.path, "r+b") as file:
            file.truncate(damage.offset)
            os.fsync(file.fileno())

    def _check_joints(self) -> None:
        for before, after in zip(self.segments, self.segments[1:], strict=False):
            if before.end < after.base:
                self.missing.append((before.end, after.base))
                self.say(f"{before.path.name}: positions {before.end} to {after.base - 1} missing")

    def _read_synced(self) -> int:
        text = os.pread(self._synced_file, 32, 0).strip(b" \n\0")
        return int(text) if text.isdigit() else -1

    @property
    def begin(self) -> int:
        return self.segments[0].base if self.segments else 0

    @property
    def end(self) -> int:
        """Behind the last record that was written, whether it is on disk or not."""
        return self.segments[-1].end if self.segments else 0

    @property
    def next(self) -> int:
        """The position of the next record."""
        return self.waiting[-1].end if self.waiting else self.end

    # -- appending -------------------------------------------------------------------------

    def add(self, run: Run) -> None:
        """Put a run into the next commit.  Positions must follow; a hole becomes a gap."""
        if self.broken:
            raise JournalBroken(self.broken)
        expected = self.next
        if not self.segments and not self.waiting:
            expected = run.position  # a journal may begin anywhere
        if run.end <= expected:
            return  # known already
        if run.position < expected:
            run = part_of(run, expected, run.end)
        elif run.position > expected:
            hole = run.position - expected
            self.missing.append((expected, run.position))
            gap = Run(expected, run.time, "", Bundle((), b""), flags=GAP, count=hole)
            self.waiting.append(gap)
        self.waiting.append(run)
        self.waiting_bytes += len(run.bundle.data)

    def commit(self) -> int:
        """Write what was added as one block; with policy `always`, durable when it returns.

        Returns the position up to which everything is durable.
        """
        if self.broken:
            raise JournalBroken(self.broken)
        if self.waiting:
            runs, self.waiting = self.waiting, []
            self.waiting_bytes = 0
            self._append(runs)
        if self.config.sync == ALWAYS or (
            self.config.sync == INTERVAL
            and self._dirty
            and time.monotonic() - self._synced_at >= self.config.interval_s
        ):
            self.sync()
        return self.durable

    def _append(self, runs: list[Run]) -> None:
        block = encode_block(runs, self.id, time.time_ns())
        base = runs[0].position
        if not self.segments or self.segments[-1].size + len(block) > self.config.segment_bytes:
            self._roll(base)
        segment = self.segments[-1]
        at = segment.size
        try:
            view = memoryview(block)
            while view:
                view = view[os.write(self._file, view) :]
        except OSError as error:
            self._break(f"write to {segment.path.name} failed: {error.strerror}")
        segment.note(at, decode_block_head(block), block)
        self._chain.add(segment, block)
        self.appended += segment.end - base
        self._dirty = True

    def sync(self) -> None:
        """Make everything written durable."""
        if not self._dirty or self._file < 0:
            return
        try:
            os.fdatasync(self._file)
        except OSError as error:
            self._break(f"sync failed: {error.strerror}; nothing more is recorded here")
        self._dirty = False
        self._synced_at = time.monotonic()
        self.syncs += 1
        self.durable = self.end
        os.pwrite(self._synced_file, b"%-31d\n" % self.durable, 0)

    def _break(self, why: str) -> None:
        self.broken = why
        self.say(why)
        raise JournalBroken(why)

    def _roll(self, base: int) -> None:
        """Seal the present segment and begin another."""
        chain = bytes(LINK_BYTES)
        if self.segments:
            if self.config.sync != OS:
                self.sync()
            os.close(self._file)
            last = self.segments[-1]
            chain = self._chain.finish()
            last.seal()
            self._sealed(last)
        path = create(self.folder, self.id, base, chain)
        _sync_folder(self.folder)
        segment = Segment(path)
        self.segments.append(segment)
        self._file = os.open(path, os.O_WRONLY)
        os.lseek(self._file, segment.size, os.SEEK_SET)
        self._chain.begin(segment, chain)
        self.retain()

    def _sealed(self, segment: Segment) -> None:
        if self.config.parquet:
            from roundelay.journal.parquet import to_parquet

            to_parquet(segment, self.group)

    def retain(self) -> None:
        """Let the oldest segments go, as far as the configuration says."""
        config = self.config
        now = time.time_ns()
        while len(self.segments) > 1:
            oldest = self.segments[0]
            size = sum(segment.size for segment in self.segments)
            newest = oldest.block(oldest.block_count() - 1).committed if oldest.block_count() else 0
            too_much = config.keep_bytes and size > config.keep_bytes
            too_old = config.keep_s and now - newest > config.keep_s * 1e9
            if not (too_much or too_old):
                return
            self.segments.pop(0)
            oldest.close()
            for path in self.folder.glob(f"{oldest.path.stem}.*"):
                path.unlink()

    # -- reading ---------------------------------------------------------------------------

    def read(self, selection: Selection = EVERYTHING) -> Iterator[Run]:
        """What was committed and is selected, in order."""
        return read_segments(self.segments, selection)

    def head_only(self, run: Run) -> Run:
        """`run` without its payload, for a recorder whose filter leaves it out."""
        return Run(
            run.position, run.time, run.sender, Bundle(run.bundle.sizes, b""), run.conference,
            run.kind, run.number, HEADS_ONLY, run.records,
        )  # fmt: skip

    def status(self) -> dict[str, object]:
        return {
            "folder": str(self.folder),
            "group": self.group,
            "begin": self.begin,
            "end": self.end,
            "durable": self.durable,
            "sync": self.config.sync,
            "syncs": self.syncs,
            "segments": len(self.segments),
            "bytes": sum(segment.size for segment in self.segments),
            "missing": self.missing[:64],
            "broken": self.broken or None,
        }

    def close(self) -> None:
        try:
            if not self.broken:
                self.commit()
                self.sync()
        finally:
            self._chain.finish()
            self._chain.stop()
            for segment in self.segments:
                segment.close()
            if self._file >= 0:
                os.close(self._file)
                self._file = -1
            os.close(self._synced_file)


class _Chain:
    """The hash chain, computed beside: hashing costs more than appending, and leaves Python."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[Any] = SimpleQueue()
        self._link = bytes(LINK_BYTES)
        self._file = -1
        self._thread: threading.Thread | None = None

    def begin(self, segment: Segment, chain: bytes) -> None:
        self._link = chain
        if self._file >= 0:
            os.close(self._file)
        self._file = os.open(segment.chain_path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)

    def resume(self, segment: Segment) -> None:
        """Compute what is missing of an open segment's chain anew: it is not synced."""
        self.begin(segment, segment.head.chain)
        for number in range(segment.block_count()):
            entry = segment.block(number)
            self._do(os.pread(segment.file, entry.size, entry.offset))

    def add(self, segment: Segment, block: bytes) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="journal-chain", daemon=True)
            self._thread.start()
        self._jobs.put(block)

    def _run(self) -> None:
        while True:
            job = self._jobs.get()
            if job is None:
                return
            if isinstance(job, threading.Event):
                job.set()
            else:
                self._do(job)

    def _do(self, block: bytes) -> None:
        self._link = link(self._link, block)
        os.write(self._file, self._link)

    def finish(self) -> bytes:
        """The last link, once everything is in."""
        if self._thread is not None:
            done = threading.Event()
            self._jobs.put(done)
            done.wait()
        return self._link

    def stop(self) -> None:
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join()
            self._thread = None
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def read_meta(folder: Path) -> dict[str, Any]:
    path = folder / META
    if not path.exists():
        raise ConfigError("journal", folder, f"a folder with {META}")
    try:
        meta = json.loads(path.read_text(encoding="utf-8"))
        bytes.fromhex(meta["id"])
    except (ValueError, KeyError, TypeError) as error:
        raise MalformedPdu("journal", f"{path}: {error}") from None
    return dict(meta)


def _meta(folder: Path, group: str) -> dict[str, Any]:
    path = folder / META
    if path.exists():
        meta = read_meta(folder)
        if meta.get("group") != group:
            raise ConfigError("group", group, f"{meta.get('group')}: that is what {folder} holds")
        return meta
    meta = {"format": 1, "id": secrets.token_hex(16), "group": group}
    aside = path.with_suffix(".new")
    with aside.open("w", encoding="utf-8") as file:
        json.dump(meta, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(aside, path)
    _sync_folder(folder)
    return meta


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
