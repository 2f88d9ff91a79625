"""A power cut: of the files below a folder only what was synced is left.

SIGKILL keeps what a process has written in the system's cache, and so do tests that merely stop a
node.  This notes what each file held when it was synced (by `os.fsync` or `os.fdatasync`), and puts
that back.  Names are taken to be durable with the file: more than every file system promises.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest


class Power:
    """The power supply of everything below `folder`."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.on = True
        self.syncs = 0
        self._held: dict[tuple[int, int], bytes] = {}
        # A second name of every file that was synced: its inode would be given to another file
        # once the first name is gone, which would then "hold" what it never did.
        self._names = folder.with_name(f"{folder.name}-synced")
        self._names.mkdir()
        self._lock = threading.Lock()
        for name in ("fsync", "fdatasync"):
            monkeypatch.setattr(os, name, self._noting(getattr(os, name)))

    def _noting(self, real: Callable[[int], None]) -> Callable[[int], None]:
        def sync(file: int) -> None:
            path = Path(os.readlink(f"/proc/self/fd/{file}"))
            about = os.fstat(file)
            if path.is_relative_to(self.folder) and path.is_file():
                with self._lock:
                    if not self.on:
                        return  # the disk is off
                    self.syncs += 1
                    if (about.st_dev, about.st_ino) not in self._held:
                        os.link(path, self._names / f"{about.st_dev}-{about.st_ino}")
                    self._held[about.st_dev, about.st_ino] = path.read_bytes()
            real(file)

        return sync

    def cut(self) -> None:
        """From now on nothing reaches a disk."""
        with self._lock:
            self.on = False

    def restore(self) -> int:
        """All processes are gone: put back what the disks had; how many bytes were lost."""
        lost = 0
        for path in [one for one in self.folder.rglob("*") if one.is_file()]:
            about = path.stat()
            held = self._held.get((about.st_dev, about.st_ino))
            lost += about.st_size - (len(held) if held is not None else 0)
            if held is None:
                path.unlink()
            else:
                path.write_bytes(held)
        self.on = True
        return lost
