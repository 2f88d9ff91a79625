"""Files that are whole after a power cut, folders that one process has to itself, forked children.

A file that must never be seen half-written is written aside, synced, and renamed.  The lock on a
folder is the kernel's (flock), so it ends with the process, however that ends.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Self, TypeVar
from weakref import WeakKeyDictionary

ASIDE: Final = ".new"
PARTS_MAX: Final = 64
"""Byte strings handed to the system at once; more are joined first."""
JOIN_BYTES: Final = 1 << 18
"""Fewer bytes are joined, too: that is quicker than many small parts."""
PID_BYTES: Final = 32

T = TypeVar("T")


# -- files ---------------------------------------------------------------------------------------


def write_parts(file: int, parts: Sequence[bytes]) -> int:
    """Write all of it, or raise OSError; return how many bytes that was."""
    size = sum(map(len, parts))
    if size < JOIN_BYTES or len(parts) > PARTS_MAX:
        parts = [b"".join(parts)]
    done = os.writev(file, parts)
    if done < size:
        rest = memoryview(b"".join(parts))[done:]
        while rest:
            rest = rest[os.write(file, rest) :]
    return size


def sync_path(path: Path) -> None:
    """Make a folder, or a file that others have written, durable."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class Disk:
    """What a journal asks of the operating system; a test hands in one that fails."""

    def write(self, file: int, parts: Sequence[bytes]) -> None:
        """Write all of it, or raise OSError."""
        write_parts(file, parts)

    def sync(self, file: int) -> None:
        os.fdatasync(file)

    def sync_folder(self, folder: Path) -> None:
        sync_path(folder)

    def put(self, path: Path, parts: Iterable[bytes]) -> None:
        """Write a whole file that is there after a power cut, too: as it was, or as it is now."""
        aside = path.with_name(path.name + ASIDE)
        handle = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            for part in parts:
                self.write(handle, [part])
            self.sync(handle)
        finally:
            os.close(handle)
        os.replace(aside, path)
        self.sync_folder(path.parent)


def put(path: Path, data: bytes) -> None:
    """Write a whole file that is there after a power cut, too: as it was, or as it is now."""
    Disk().put(path, [data])


@contextmanager
def written_aside(path: Path) -> Iterator[Path]:
    """The name under which the block writes a file, which is then synced and becomes `path`."""
    aside = path.with_name(path.name + ASIDE)
    yield aside
    os.chmod(aside, 0o600)
    sync_path(aside)
    os.replace(aside, path)


def numbered(path: Path) -> Path:
    """The first of PATH.1, PATH.2, … that is free: where what is at `path` is put aside."""
    number = 1
    while (aside := path.with_name(f"{path.name}.{number}")).exists():
        number += 1
    return aside


# -- what is open --------------------------------------------------------------------------------


class Closing:
    """Something open, which `with` closes."""

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class FileLock(Closing):
    """What the file `path` stands for is ours until this is closed or the process ends."""

    def __init__(self, path: Path, in_use: Callable[[int], Exception]) -> None:
        """Raise what `in_use` makes of the process that has it (0: not known)."""
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            pid = os.pread(self._file, PID_BYTES, 0).strip()
            self.close()
            raise in_use(int(pid) if pid.isdigit() else 0) from None
        when_forked(self, FileLock.close)  # a child must not keep the lock alive

    def sign(self) -> None:
        """Write down which process has it, for the error that others get."""
        with suppress(OSError):  # the lock is what counts, also on a disk that is full
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, b"%d\n" % os.getpid(), 0)

    def close(self) -> None:
        """Let go of it.  Harmless when repeated."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


# -- forks ---------------------------------------------------------------------------------------


_copied: WeakKeyDictionary[Any, Callable[[Any], None]] = WeakKeyDictionary()


def when_forked(owner: T, part: Callable[[T], None]) -> None:
    """Have a forked child call `part` of its copy of `owner`: it has no part in its parent's work.

    `part` must not hold `owner`, which is forgotten when nobody else does."""
    _copied[owner] = part


def _part_copies() -> None:
    for owner, part in list(_copied.items()):
        part(owner)


os.register_at_fork(after_in_child=_part_copies)
