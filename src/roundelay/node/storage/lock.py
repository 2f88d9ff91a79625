"""The folder of a node is its own from start to stop: two would overwrite each other's promises."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from roundelay.core.errors import ConfigError, FolderInUse
from roundelay.durable import FileLock

LOCK: Final = "lock"


class Folder:
    """The lock on one folder; nothing where there is none."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._lock: FileLock | None = None

    def take(self) -> None:
        """Make the folder if need be, and lock it; FolderInUse if another node has it."""
        path = self.path
        if path is None or self._lock is not None:
            return
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._lock = FileLock(path / LOCK, lambda pid: FolderInUse(str(path), pid))
            self._lock.sign()
        except OSError as error:
            why = f"a folder that can be made and written ({error.strerror})"
            raise ConfigError("dir", path, why) from None

    def release(self) -> None:
        """Harmless when repeated."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None
