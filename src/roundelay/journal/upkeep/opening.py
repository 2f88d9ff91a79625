"""What a recorder does before it appends: take the folder as it was left, and say what is wrong.

- A block that was not finished, at the end of the last segment and above the synced mark, was
  never acknowledged: its bytes are put aside (`.torn`) and make room.
- Anything else that is damaged was acknowledged, or may have been.  It stays where it is, the
  positions are missing until somebody fills them, and appending goes on in a new segment.
- Where the mark itself is missing, the bytes decide: an end that is complete and yet wrong counts
  as damaged, one that lacks bytes as unfinished.
- A damaged head, mark or `journal.json` is written again from what else is there.
- Segments without an index are sealed later, by the keeper.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Final

from msgspec import Struct

from roundelay.core.errors import ConfigError, MalformedPdu
from roundelay.durable import ASIDE, Disk, FileLock
from roundelay.journal.damage.salvage import damaged_end
from roundelay.journal.files import (
    META,
    META_COPY,
    MISSING,
    SYNCED,
    Ends,
    JournalBroken,
    Meta,
    index_of,
    lock,
    look,
    look_at_mark,
    parquet_of,
    reached,
    read_ends,
    segments_of,
    write_meta,
)
from roundelay.journal.format import SEGMENT_HEAD, decode_head
from roundelay.journal.segment import Damage, Segment
from roundelay.journal.upkeep.rewrite import make_durable, restore_head

TORN_MAX: Final = 16
"""Unfinished ends that are kept for somebody to look at."""

Say = Callable[[str], None]


class Opened(Struct):
    """A folder that is ready."""

    meta: Meta
    lock: FileLock
    segments: list[Segment]
    resume: bool
    """Appending goes on in the last segment."""
    ends: Ends | None
    """How far the journal reached, as it says itself."""
    gone: tuple[int, int] | None = None
    """What it had, if no segment is left."""

    @property
    def end(self) -> int:
        return self.segments[-1].end if self.segments else 0


def open_folder(folder: Path, group: str, disk: Disk, say: Say) -> Opened:
    held = lock(folder)
    try:
        return _open(folder, group, disk, say, held)
    except OSError as error:
        held.close()
        raise JournalBroken(f"{folder} cannot be opened: {error.strerror}") from error
    except BaseException:
        held.close()
        raise


def _open(folder: Path, group: str, disk: Disk, say: Say, held: FileLock) -> Opened:
    meta = settle_meta(folder, group, disk, say)
    clear(folder)
    ends, wrong = read_ends(folder)
    for what in wrong:
        say(f"{what}; it is written again")
    paths, unmarked = segments_of(folder), look_at_mark(folder)[1]
    if unmarked and (paths or unmarked != MISSING):
        what = f"{SYNCED} is {MISSING}" if unmarked == MISSING else unmarked
        say(f"{what}; the marks in the blocks count")
    mark = reached(folder)
    segments = [Segment(path, meta.journal) for path in paths]
    for number, segment in enumerate(segments):
        if segment.head_wrong and segment.path.stat().st_size > SEGMENT_HEAD.size:
            say(f"{segment.path.name}: {segment.head_wrong}; it is written again")
            segments[number] = segment = restore_head(segment, segments, disk)
        last = number == len(segments) - 1
        if last or not segment.load():
            look_through(segment, None if last else segments[number + 1].base, mark, not unmarked)
            _account(segment, disk, say)
            make_durable(segment, disk)  # from now on it counts as written
    if segments and segments[-1].end == segments[-1].base and segments[-1].base >= mark:
        empty = segments.pop()  # begun, and nothing committed in it: it is begun again
        empty.path.unlink()
    gone = None
    if mark and not segments:
        say(f"all records below {mark} are gone")
        gone = (0 if ends is None else ends.first, mark)
    if ends is not None and segments and segments[0].base > ends.first:
        say(f"positions {ends.first} to {segments[0].base - 1} are gone: they were not let go")
    for before, after in pairwise(segments):
        if before.end < after.base:
            say(f"{before.path.name}: positions {before.end} to {after.base - 1} are missing")
    resume = bool(segments) and not (
        segments[-1].damages or segments[-1].head.filled or segments[-1].sealed
    )
    if resume:
        index_of(segments[-1].path).unlink(missing_ok=True)
        parquet_of(segments[-1].path).unlink(missing_ok=True)
    return Opened(meta, held, segments, resume, ends, gone)


def settle_meta(folder: Path, group: str, disk: Disk, say: Say) -> Meta:
    """What the journal is; copies that are damaged or missing are written again."""
    meta, wrong = look(folder)
    if meta is not None and meta.group != group:
        raise ConfigError("group", group, f"{meta.group}: that is what {folder} holds")
    if meta is None:
        known = id_in(segments_of(folder))
        present = [name for name in (META, META_COPY) if (folder / name).exists()]
        if known is None and present and segments_of(folder):
            raise MalformedPdu("journal", f"{folder}: {', '.join(wrong)}, and no segment tells")
        meta = Meta(known or secrets.token_bytes(16), group)
        wrong = wrong if known is not None or present else []
    for what in wrong:
        say(f"{what}; it is written again")
    write_meta(folder, meta, disk)
    return meta


def id_in(paths: list[Path]) -> bytes | None:
    """The id of the journal that these segments are of, from the first that tells."""
    for path in paths:
        with suppress(MalformedPdu), path.open("rb") as file:
            return decode_head(file.read(SEGMENT_HEAD.size)).journal
    return None


def clear(folder: Path) -> None:
    """Leftovers of a crash: files that were being written aside, side files without a segment."""
    for path in folder.glob(f"*{ASIDE}"):
        path.unlink(missing_ok=True)
    stems = {path.stem for path in segments_of(folder)}
    for pattern in ("*.rji", "*.parquet"):
        for path in folder.glob(pattern):
            if path.stem.isdigit() and path.stem not in stems:
                path.unlink(missing_ok=True)


def look_through(segment: Segment, following: int | None, mark: int, marked: bool) -> None:
    """Scan a segment, and tell a lost end from an unfinished one.

    `following`: where the next segment begins.  `mark`: below it everything was on disk once;
    `marked`: somebody knows that there is no more.
    """
    segment.scan(mark if following is None else 0)
    if following is not None and segment.tail is not None and segment.end < following:
        # An unfinished end, a hole, and another segment: that was more than one block that nobody
        # had acknowledged.
        segment.lose_tail(following)
    elif following is None and not marked:
        damaged_end(segment)


def _account(segment: Segment, disk: Disk, say: Say) -> None:
    """Damage in a segment: say it, keep the bytes."""
    name = segment.path.name
    for damage in segment.damages:
        say(f"{damage.path.name}: {damage} are missing")
    if segment.tail is not None and not segment.damages:
        tail = segment.tail
        say(
            f"{name}: {tail.bytes} bytes at {tail.offset} are unfinished ({tail.why}), never "
            f"acknowledged; put aside, the records end at {segment.end}"
        )
        put_aside(segment, tail, disk)
        segment.tail = None


def put_aside(segment: Segment, tail: Damage, disk: Disk) -> None:
    """Bytes behind the last good block make room for new ones, but are not thrown away."""
    with segment.path.open("r+b") as file:
        file.seek(tail.offset)
        data = file.read()
        disk.put(segment.path.with_name(f"{segment.path.stem}.{tail.offset}.torn"), [data])
        file.truncate(tail.offset)
        disk.sync(file.fileno())
    kept = sorted(segment.path.parent.glob("*.torn"), key=lambda path: path.stat().st_mtime_ns)
    for path in kept[:-TORN_MAX]:
        path.unlink(missing_ok=True)
