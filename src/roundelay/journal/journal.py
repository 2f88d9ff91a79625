"""A journal: a folder of segments that one recorder appends to and anybody can read.

What is promised depends on the sync policy, and `status` says which one it is:

- `always`    a commit returns when it is on disk: one sync per commit, however many records
- `interval`  records are on disk at most about `interval_s` after the commit
- `os`        whenever the operating system likes

`durable` is the position below which everything is on disk.  A sync that fails stops the journal
for good (JournalBroken): what the kernel could not write once it may later claim to have written.

Three threads at most: whoever calls `add` and `commit`; one that syncs (`interval`); and the
keeper, which seals segments, turns them into Parquet and lets old ones go.  `fill`, `forget` and
`reader` may be called from any thread.
"""

from __future__ import annotations

import os
import struct
import threading
import time
from bisect import insort
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, NoReturn

from msgspec import Struct, field

from roundelay.core.errors import ConfigError
from roundelay.core.limits import one_of
from roundelay.core.positions import Range, count_of, union
from roundelay.core.selection import EVERYTHING, Selection
from roundelay.durable import Disk
from roundelay.journal.files import SYNCED, Ends, JournalBroken, link_text, mark_text, path_of
from roundelay.journal.format import GAP, Head, Run, encode_parts, gap, part_of
from roundelay.journal.reader import Reader, missing_of, read_segments
from roundelay.journal.segment import Segment
from roundelay.journal.upkeep.keeper import Keeper
from roundelay.journal.upkeep.opening import Opened, open_folder
from roundelay.journal.upkeep.rewrite import SegmentWriter, make_durable

ALWAYS: Final = "always"
INTERVAL: Final = "interval"
OS: Final = "os"
POLICIES: Final = (ALWAYS, INTERVAL, OS)
HOLE_RECORDS: Final = 1024
"""A hole up to this size becomes a gap in its segment; behind a larger one a new segment begins,
so that what fills it gets segments of its own."""
SEGMENT_BYTES_MAX: Final = 1 << 30


class JournalConfig(Struct, frozen=True, kw_only=True):
    """How a journal is kept."""

    sync: str = ALWAYS
    interval_s: float = 0.2
    segment_bytes: int = 64 << 20
    keep_bytes: int = 0
    """Oldest segments go when there is more than this; 0: no limit."""
    keep_s: float = 0.0
    """A segment goes when its last record was written longer ago than this; 0: no limit."""
    keep_conference_s: Mapping[int, float] = field(default_factory=dict)
    """Conference to seconds: of older records in it, in sealed segments, only heads are kept."""
    parquet: bool = False
    """Turn sealed segments into Parquet beside them (needs the extra `trace`)."""

    def check(self) -> None:
        one_of("sync", self.sync, POLICIES)
        if self.interval_s <= 0:
            raise ConfigError("interval_s", self.interval_s, "a number of seconds above 0")
        if not 1 << 12 <= self.segment_bytes <= SEGMENT_BYTES_MAX:
            allowed = f"{1 << 12} to {SEGMENT_BYTES_MAX}"
            raise ConfigError("segment_bytes", self.segment_bytes, allowed)
        for name in ("keep_bytes", "keep_s"):
            if getattr(self, name) < 0:
                raise ConfigError(name, getattr(self, name), "0 or more")
        for conference, seconds in self.keep_conference_s.items():
            if conference < 0 or seconds < 0:
                pair = f"{conference}: {seconds}"
                raise ConfigError("keep_conference_s", pair, "numbers from 0 up")
        if self.parquet:
            from roundelay.journal.parquet import arrow

            arrow()


class Journal:
    """The appending side.  One process at a time; `say` gets what an operator should know,
    `advanced` is called when `durable` has risen beside a commit.  Both come from any thread."""

    def __init__(
        self,
        folder: Path,
        group: str,
        config: JournalConfig | None = None,
        say: Callable[[str], None] = lambda text: None,
        *,
        advanced: Callable[[], None] = lambda: None,
        disk: Disk | None = None,
    ) -> None:
        self.config = config or JournalConfig()
        self.config.check()
        self.folder = folder
        self.group = group
        self.say = say
        self.disk = disk or Disk()
        self._advanced = advanced
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        opened: Opened = open_folder(folder, group, self.disk, say)
        self.id = opened.meta.journal
        self._lock_file = opened.lock
        self.segments: list[Segment] = opened.segments
        """By position; replaced as a whole, never changed in place, so that readers can have it."""
        self.waiting: list[Run] = []
        self._gaps_wait = False
        self.syncs = 0
        self.broken: str = ""
        self.next = opened.end
        """The position of the next record."""
        self._begun = bool(opened.segments)
        self._lock = threading.Lock()  # the list of segments, the present file, what is dirty
        self._appending = threading.RLock()
        self._syncing = threading.Lock()
        self.active: Segment | None = None
        """The segment that is being appended to."""
        self._file = -1
        self._retired: list[int] = []
        self._dirty = self._named = False
        self._synced_file = os.open(folder / SYNCED, os.O_RDWR | os.O_CREAT, 0o600)
        if opened.resume:
            self.active = self.segments[-1]
            self._file = os.open(self.active.path, os.O_WRONLY)
            os.lseek(self._file, self.active.size, os.SEEK_SET)
        self.durable = opened.end
        self._gone = opened.gone
        """What no segment is left of: said on, until the journal begins again behind it."""
        self._write_mark()
        self._first = self.begin
        """Where the journal ought to begin: what was before that was let go."""
        if opened.ends is not None and self.segments:
            self._first = min(self._first, opened.ends.first)
        self.keeper = Keeper(self)
        self._stop = threading.Event()
        self._syncer: threading.Thread | None = None
        if self.config.sync == INTERVAL:
            self._syncer = threading.Thread(target=self._sync_on, name="journal-sync", daemon=True)
            self._syncer.start()
        self.keeper.wake()

    # -- where it is -----------------------------------------------------------------------

    @property
    def begin(self) -> int:
        return self.segments[0].base if self.segments else 0

    @property
    def end(self) -> int:
        """Behind the last record that was written, whether it is on disk or not."""
        segments = self.segments
        return segments[-1].end if segments else 0

    @property
    def missing(self) -> list[Range]:
        """Positions that are not here, half-open: to be fetched from another recorder."""
        segments = self.segments
        before = [(self._first, segments[0].base)] if segments else []
        return union([*before, *missing_of(segments)])

    # -- appending -------------------------------------------------------------------------

    def add(self, run: Run) -> None:
        """Put a run into the next commit.  Positions must follow; a hole becomes missing."""
        if self.broken:
            raise JournalBroken(self.broken)
        if run.position == self.next and self._begun:  # the usual case, kept short
            self.next += run.count or len(run.bundle.sizes)
            self.waiting.append(run)
        elif run.records:
            self._add(run)

    def _add(self, run: Run) -> None:
        """A run that does not begin where the last one ended."""
        with self._appending:
            expected = self.next
            if not self._begun:
                expected = run.position  # a journal may begin anywhere
                self._begun = True
            if run.end <= expected:
                return  # known already
            if run.position < expected:
                run = part_of(run, expected, run.end)
            elif run.position > expected:
                if run.position - expected <= HOLE_RECORDS:
                    self.waiting.append(gap(expected, run.position, run.time))
                    self._gaps_wait = True
                else:
                    self._flush()
                    self.complete()
            self.waiting.append(run)
            self.next = run.end

    def commit(self) -> int:
        """Write what was added as one block; with policy `always`, durable when it returns.

        Returns the position below which everything is durable.
        """
        if self.broken:
            raise JournalBroken(self.broken)
        if self.waiting:
            with self._appending:
                self._flush()
        if self.config.sync == ALWAYS:
            self.sync()
        return self.durable

    def _flush(self) -> None:
        runs, self.waiting = self.waiting, []
        if runs:
            self._write(runs)
            self._gaps_wait = False

    def _write(self, runs: list[Run]) -> None:
        """One block; two, if it would be too large."""
        now = time.time_ns()
        base, end = runs[0].position, runs[-1].end
        try:
            parts, size = encode_parts(runs, self.id, now, self.durable)
        except ConfigError:
            if len(runs) == 1:
                raise
            self._write(runs[: len(runs) // 2])
            self._write(runs[len(runs) // 2 :])
            return
        except (struct.error, OverflowError) as error:
            self._break(f"a record between {base} and {end} cannot be written: {error}")
        try:
            segment = self.active
            if segment is None or (
                segment.size + size > self.config.segment_bytes and segment.end > segment.base
            ):
                segment = self._roll(base)
            self.disk.write(self._file, parts)
        except OSError as error:
            self._break(f"write failed: {error.strerror}; nothing more is recorded here")
        latest = max(segment.latest, *[run.time for run in runs])
        if self._gaps_wait:
            # A new list: whoever reads has the old one.
            more = [(run.position, run.end) for run in runs if run.flags & GAP]
            segment.gaps = segment.gaps + more
        segment.newest = now
        with self._lock:
            segment.note(segment.size, base, end, size, latest)
            self._dirty = True

    def sync(self) -> None:
        """Make everything written durable."""
        with self._syncing:
            with self._lock:
                retired, self._retired = self._retired, []
                file, end = self._file, self.segments[-1].end if self.segments else 0
                dirty, named = self._dirty, self._named
                self._dirty = self._named = False
            if not (dirty or retired) or self.broken:
                return
            try:
                if named:
                    self.disk.sync_folder(self.folder)
                for old in retired:
                    self.disk.sync(old)
                if self.config.sync == OS:  # complete segments were closed without a sync
                    for segment in self.segments:
                        if segment.end > self.durable and segment is not self.active:
                            with suppress(FileNotFoundError):  # let go meanwhile
                                make_durable(segment, self.disk)
                if file >= 0:
                    self.disk.sync(file)
            except OSError as error:
                self._break(f"sync failed: {error.strerror}; nothing more is recorded here")
            finally:
                for old in retired:
                    os.close(old)
            self.syncs += 1
            self.durable = end
            self._write_mark()

    def _write_mark(self) -> None:
        with suppress(OSError):  # if it lags behind, no promise is broken
            text = mark_text(self.durable if self._gone is None else self._gone[1])
            if os.pwrite(self._synced_file, text, 0) < os.fstat(self._synced_file).st_size:
                os.ftruncate(self._synced_file, len(text))  # something else was behind it

    def _sync_on(self) -> None:
        """The syncing thread."""
        while not self._stop.wait(self.config.interval_s):
            before = self.durable
            try:
                self.sync()
            except JournalBroken:
                self._advanced()
                return
            if self.durable != before:
                self._advanced()

    def _break(self, why: str) -> NoReturn:
        self.broken = why
        self.say(why)
        raise JournalBroken(why)

    def complete(self) -> None:
        """The present segment is complete: it can be sealed."""
        with self._appending:
            if self.active is None:
                return
            with self._lock:
                self._retired.append(self._file)
                self._file, self.active = -1, None
            if self.config.sync == OS:
                with self._syncing, self._lock:
                    for old in self._retired:
                        os.close(old)
                    self._retired = []
            self.keeper.wake()

    def _roll(self, base: int) -> Segment:
        """Begin another segment."""
        self.complete()
        head = Head(self.id, base, time.time_ns(), *self.keeper.anchor)
        begun = SegmentWriter(path_of(self.folder, base), head, self.disk, os.O_EXCL)
        segment = Segment(begun.path, self.id)
        with self._lock:
            self.segments = [*self.segments, segment]
            self.active, self._file, self._named = segment, begun.file, True
        if len(self.segments) == 1:
            self._first = base if self._gone is None else min(base, self._gone[0])
            self._gone = None
        self.keeper.wake()  # it notes where the last segment begins
        return segment

    # -- what was missing, what is no longer wanted ----------------------------------------

    def fill(self, runs: Iterable[Run]) -> list[Range]:
        """Put in records that are missing, or older than the first; durable when it returns.

        For a recorder that fetches what it lacks from another one while it goes on recording; call
        it from a thread of its own, with as much at a time as is at hand: a hole inside a segment
        makes that segment be written anew.  What is known already is left as it is.  Returns the
        positions that were put in.
        """
        if self.broken:
            raise JournalBroken(self.broken)
        return self.keeper.fill(runs)

    def forget(self, conferences: Iterable[int], before: int | None = None) -> int:
        """Keep only the heads of these conferences' records in the segments that end before
        position `before` (by default: all that is written).  Returns how many bytes that frees."""
        if self.broken:
            raise JournalBroken(self.broken)
        return self.keeper.forget(frozenset(conferences), before)

    def scrub(self) -> list[Range]:
        """Read every block of the sealed segments; what is damaged becomes missing, and is said.

        The keeper does this once, in the background, after opening.  Returns all that is missing.
        """
        self.keeper.scrub()
        return self.missing

    @property
    def ends(self) -> Ends:
        """How far it reaches."""
        base, link = self.keeper.anchor
        if self._gone is not None:
            return Ends(self._gone[0], 0, self._gone[1], base, link_text(link))
        last = self.segments[-1].base if self.segments else 0
        return Ends(self._first, last, self.durable, base, link_text(link))

    def put_in(self, segment: Segment) -> None:
        """A segment takes its place; one that begins at the same position goes."""
        with self._lock:
            others = [other for other in self.segments if other.base != segment.base]
            insort(others, segment, key=lambda other: other.base)
            self.segments = others
            self._first = min(self._first, segment.base)

    def let_go(self, segment: Segment) -> None:
        """The first segment is not wanted any more."""
        with self._lock:
            self.segments = [other for other in self.segments if other is not segment]
            self._first = self.begin

    # -- reading ---------------------------------------------------------------------------

    def read(self, selection: Selection = EVERYTHING) -> Iterator[Run]:
        """What was committed and is selected, in order."""
        return read_segments(self.segments, selection)

    def reader(self) -> Reader:
        """What there is now, to be read from any thread."""
        return Reader(self.folder, self.segments)

    def status(self) -> dict[str, object]:
        segments = self.segments
        missing = self.missing
        return {
            "folder": str(self.folder),
            "group": self.group,
            "begin": self.begin,
            "end": self.end,
            "durable": self.durable,
            "sync": self.config.sync,
            "interval_s": self.config.interval_s if self.config.sync == INTERVAL else None,
            "syncs": self.syncs,
            "segments": len(segments),
            "unsealed": sum(not segment.sealed for segment in segments),
            "bytes": sum(segment.size for segment in segments),
            "missing": missing[:64],
            "missing_records": count_of(missing),
            "broken": self.broken or None,
        }

    def close(self) -> None:
        """Commit, sync, and seal what there is: the next recorder reopens the last segment."""
        self._stop.set()
        if self._syncer is not None:
            self._syncer.join()
        try:
            if not self.broken:
                self.commit()
                self.sync()
        finally:
            self.keeper.close()
            with self._lock:
                for file in (*self._retired, self._file):
                    if file >= 0:
                        os.close(file)
                self._retired, self._file, self.active = [], -1, None
            os.close(self._synced_file)
            self._lock_file.close()
