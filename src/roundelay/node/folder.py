"""The folder of a node is its own from start to stop: two would overwrite each other's promises.

The lock is the kernel's (flock), so it ends with the process, however that ends.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path
from typing import Final
from weakref import WeakSet

from roundelay.core.errors import ConfigError, FolderInUse

LOCK: Final = "lock"
PID_BYTES: Final = 32


class Folder:
    """The lock on one folder; nothing where there is none."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._file = -1

    def take(self) -> None:
        """Make the folder if need be, and lock it; FolderInUse if another node has it."""
        if self.path is None or self._file >= 0:
            return
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            handle = os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            why = f"a folder that can be made and written ({error.strerror})"
            raise ConfigError("dir", self.path, why) from None
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            said = os.pread(handle, PID_BYTES, 0).strip()
            os.close(handle)
            raise FolderInUse(str(self.path), int(said) if said.isdigit() else 0) from None
        self._file = handle
        _held.add(self)
        with suppress(OSError):  # the lock is what counts, also on a disk that is full
            os.ftruncate(handle, 0)
            os.pwrite(handle, b"%d\n" % os.getpid(), 0)

    def release(self) -> None:
        """Harmless when repeated."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        _held.discard(self)


_held: WeakSet[Folder] = WeakSet()


def _release_copies() -> None:
    """A forked child has no part in its parent's node: it must not keep the lock alive."""
    for folder in list(_held):
        folder.release()


os.register_at_fork(after_in_child=_release_copies)
