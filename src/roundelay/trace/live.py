"""Traces of real processes: each writes its own rows as it goes, `merge` makes one trace of them.

A Parquet file without its end cannot be read, and a process that is killed writes no end.  So a
live process appends to a file of small frames, each with its length and a checksum::

    8 bytes   RNDLTR01
    frame     u32 length, u32 CRC-32, MessagePack: the header
    frame     …                                    [time, [row, row, …]]
    …

A row is [site, event, ref, peer, kind, seq, …]: the columns of the schema behind `time`, cut off
after the last that is there.  What a killed process leaves is good up to its last whole frame.

A driver fills `rows` and calls `flush` **after its persists and before its sends**, once per batch.
Then three things hold, whenever the process is killed, and the checkers rely on them:

- nobody hears of a message before its SUBMIT is written;
- all that a batch did carries one time, which is after everything that led to it and before
  everything it leads to, at any process of the machine (CLOCK_MONOTONIC is common to them);
- what is on the site's disk and not in its trace is what was committed in its very last moment.
  After a restart the driver finds it from `position` (as `core.token.stable.undelivered` does).

The times of raw rows are therefore not used: a frame has the time of its flush.  A disk that takes
no more rows is no reason to stop the group: the trace ends there, and `error` says why.

This needs no pyarrow; `merge` does.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from pathlib import Path
from time import monotonic_ns, time_ns
from typing import Any, Final
from urllib.parse import quote
from zlib import crc32

import msgspec
from msgspec import Struct

from roundelay.core.engine import STAMPED
from roundelay.core.errors import ConfigError, UsageError
from roundelay.core.events import (
    DELIVER,
    DISK,
    NO_REF,
    NOBODY,
    NOTHING_LEFT,
    NOTICE,
    RECEIVE,
    RESTART,
    ROLE,
    SEND,
    Row,
)
from roundelay.core.limits import one_of
from roundelay.durable import Closing, write_parts
from roundelay.file_names import bounded
from roundelay.trace.schema import COUNT, KIND, SEQ, SPARSE, VERSION, Flattener

MAGIC: Final = b"RNDLTR01"
FRAME: Final = struct.Struct(">II")
FRAME_BYTES_MAX: Final = 256 << 20

ALL: Final = "all"
DELIVERIES: Final = "deliveries"
LEVELS: Final = (ALL, DELIVERIES)
"""`deliveries` leaves out transmissions and roles, which are most of the rows and none of a
checker's business."""

LEFT_OUT: Final = frozenset({SEND, RECEIVE, ROLE})

SUFFIX: Final = ".rows"
WORD_MAX: Final = 115
"""Letters of a name in that of a file, which has two of them and at most 255 letters."""

LiveRow = list[Any]
"""[site, event, ref, peer, *columns of the schema], as short as possible."""

HEAD_CELLS: Final = 4
"""Where the columns of SPARSE begin in a LiveRow."""


class Header(Struct, frozen=True, kw_only=True):
    """What the first frame says."""

    version: int
    group: str
    name: str
    """Of the process that wrote the file."""
    site: int
    """Its number in the group; NOBODY for one who only looks on."""
    boot: int
    """How often the process had been started before."""
    keeps: str
    """What it had left of its former life."""
    monotonic_ns: int
    wall_ns: int
    """Both clocks at the same moment."""
    machine: str
    """Machines with the same one have the same monotonic clock."""
    params: dict[str, Any]


class LiveTrace(Closing):
    """A sink for the rows of one process in one group: a file of its own in `folder`.

    `params` go into the metadata of the merged trace.  `keeps` says what is left of the process's
    former life, if it had one: then the file begins with a RESTART.
    """

    def __init__(
        self,
        folder: Path,
        *,
        group: str,
        name: str,
        site: int,
        params: Mapping[str, Any] | None = None,
        keeps: str = DISK,
        level: str = ALL,
        clock: Callable[[], int] = monotonic_ns,
    ) -> None:
        one_of("level", level, LEVELS)
        self.rows: list[Row] = []
        self.append = self.rows.append
        self.transmissions = level == ALL
        """Whether SEND, RECEIVE and ROLE rows are wanted; they are dropped if not."""
        self.error = ""
        """Why nothing more is written, if so."""
        self.written = 0  # rows
        self._site = site
        self._clock = clock
        self._last = -1
        self._encode = msgspec.msgpack.Encoder().encode
        self._flattener = Flattener()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            earlier = lives_of(folder, group, name)
            self.boot = max(earlier, default=-1) + 1
            self.path = folder / f"{_stem(group, name)}-{self.boot}{SUFFIX}"
            self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except OSError as error:
            raise ConfigError(
                "trace", folder, f"a folder that can be written ({error.strerror or error})"
            ) from None
        newest_first = [earlier[boot] for boot in sorted(earlier, reverse=True)]
        self.position = _position(newest_first) if keeps == DISK else 0
        """The position behind the last that earlier lives of the process have delivered."""
        header = Header(
            version=VERSION,
            group=group,
            name=name,
            site=site,
            boot=self.boot,
            keeps=keeps,
            monotonic_ns=clock(),
            wall_ns=time_ns(),
            machine=machine(),
            params=dict(params or {}),
        )
        self._write(MAGIC + _framed(self._encode(header)))
        if self.boot and site != NOBODY:
            self.append((0, site, RESTART, NO_REF, NOBODY, keeps))
            self.flush()

    def forgot(self) -> None:
        """The process has nothing left of its former lives after all: it found no disk."""
        if self.boot and self._site != NOBODY:
            self.append((0, self._site, RESTART, NO_REF, NOBODY, NOTHING_LEFT))
        self.position = 0

    def flush(self) -> None:
        """Write what has gathered; all of it happened now."""
        rows = self.rows
        if not rows:
            return
        if not self.error:
            now = self._clock()
            if now <= self._last:
                now = self._last + 1
            self._last = now
            cells = self._flattener.cells
            lines: list[LiveRow] = []
            for _, site, event, ref, peer, obj in rows:
                if self.transmissions or event not in LEFT_OUT:
                    line: LiveRow = [site, event, ref, peer]
                    if obj is not None:
                        line += cells(obj)
                        while line[-1] is None:
                            line.pop()
                    lines.append(line)
            if lines:
                self._write(_framed(self._encode((now, lines))))
                self.written += len(lines)
        rows.clear()

    def _write(self, data: bytes) -> None:
        try:
            write_parts(self._file, [data])
        except OSError as error:
            # Half a frame may be there now; nothing may follow it.
            self.error = f"the trace {self.path} ends here: {error.strerror or error}"

    def close(self) -> None:
        """Write what is left.  Harmless when repeated."""
        if self._file >= 0:
            self.flush()
            os.close(self._file)
            self._file = -1
            self.error = self.error or "closed"


# -- reading -----------------------------------------------------------------------------------


class LiveFile:
    """A file of a live process, up to its last whole frame."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.whole = True
        """False, once read to the end, if the last frame was not written whole."""
        self.at = 0
        """Where the frame that was read last ends."""
        frames = self._frames(0)
        try:
            self.header = msgspec.msgpack.decode(next(frames), type=Header)
        except StopIteration:
            raise UsageError(f"trace {path} ends before its header") from None
        except msgspec.MsgspecError as error:
            raise UsageError(f"trace {path} has a damaged header: {error}") from None
        if self.header.version != VERSION:
            raise UsageError(
                f"trace {path} has schema version {self.header.version}; "
                f"this is a reader of version {VERSION}"
            )
        frames.close()

    def batches(self, start: int = 0) -> Iterator[tuple[int, list[LiveRow]]]:
        """Time and rows of each flush; of those behind `start`, which was once `at`."""
        frames = self._frames(start)
        if not start:
            next(frames)
        decode = msgspec.msgpack.Decoder(tuple[int, list[LiveRow]]).decode
        for frame in frames:
            try:
                yield decode(frame)
            except msgspec.MsgspecError as error:
                raise UsageError(f"trace {self.path} has a damaged row: {error}") from None

    def _frames(self, start: int) -> Generator[bytes, None, None]:
        try:
            with self.path.open("rb", buffering=1 << 20) as file:
                if file.read(len(MAGIC)) != MAGIC:
                    raise UsageError(f"trace {self.path} is not one of a live process")
                self.at = max(start, len(MAGIC))
                file.seek(self.at)
                while head := file.read(FRAME.size):
                    body = b""
                    if len(head) == FRAME.size:
                        size, checksum = FRAME.unpack(head)
                        body = file.read(size) if size <= FRAME_BYTES_MAX else b""
                        if len(body) == size and crc32(body) == checksum:
                            self.at += FRAME.size + size
                            yield body
                            continue
                    # Killed while writing, or still writing.
                    self.whole = False
                    return
        except OSError as error:
            raise UsageError(f"trace {self.path}: {error.strerror or error}") from None


def lives_of(folder: Path, group: str, name: str) -> dict[int, Path]:
    """The files of a process in a group, by boot."""
    pattern = re.compile(re.escape(_stem(group, name)) + r"-(\d{1,6})" + re.escape(SUFFIX))
    matches = ((pattern.fullmatch(path.name), path) for path in folder.glob(f"*{SUFFIX}"))
    return {int(match[1]): path for match, path in matches if match is not None}


def live_files(folder: Path, group: str | None = None) -> list[LiveFile]:
    """The files in `folder`, of one group if one is named; those without a header are no loss."""
    files = []
    for path in sorted(folder.glob(f"trace-*{SUFFIX}")):
        try:
            file = LiveFile(path)
        except UsageError:
            if path.stat().st_size < 1 << 16:  # killed before it had written anything
                continue
            raise
        if group is None or file.header.group == group:
            files.append(file)
    return files


def _position(files: Iterable[Path]) -> int:
    """Where the newest of these lives had come to that delivered anything."""
    for path in files:
        position = 0
        try:
            for _, rows in LiveFile(path).batches():
                for row in rows:
                    if _moves(row):
                        position = max(position, row[SEQ_AT] + row[COUNT_AT])
        except UsageError:
            continue
        if position:
            return position
    return 0


def _moves(row: LiveRow) -> bool:
    """Whether a row takes its application further in the order of all messages."""
    if row[1] == DELIVER:
        return bool(row[SEQ_AT] >= 0 and row[KIND_AT] != STAMPED)
    return bool(row[1] == NOTICE and row[KIND_AT] == "gap_unavailable")


KIND_AT: Final = HEAD_CELLS + KIND
SEQ_AT: Final = HEAD_CELLS + SEQ
COUNT_AT: Final = HEAD_CELLS + COUNT
CELLS: Final = HEAD_CELLS + len(SPARSE)


def _framed(body: bytes) -> bytes:
    return FRAME.pack(len(body), crc32(body)) + body


def _stem(group: str, name: str) -> str:
    """Names may have any letters; a file's may not, and has an end."""
    words = [
        bounded(quote(word, safe="").replace("-", "%2D"), word, WORD_MAX) for word in (group, name)
    ]
    return "-".join(["trace", *words])


def machine() -> str:
    """The same for processes that share a monotonic clock."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return os.uname().nodename if hasattr(os, "uname") else ""
