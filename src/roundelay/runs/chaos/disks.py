"""Disks that lose what was not synced, as a power cut does and a SIGKILL does not.

A disk is a file system (ext4) in a file of its own.  `cut` shuts it down by force: nothing more is
written, not even its journal; what stands in the page cache is gone when it is mounted again.  That
needs the privilege to mount, and mkfs.ext4; `available` says whether it can be done.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

from roundelay.core.errors import RoundelayError

EXT4_IOC_SHUTDOWN: Final = 0x8004587D
NO_LOG_FLUSH: Final = struct.pack("I", 2)
SIZE_BYTES: Final = 96 << 20
"""Of a disk; the file is sparse."""


class DiskTrouble(RoundelayError):
    """A disk could not be made."""


def _run(*words: str | Path) -> None:
    done = subprocess.run([*map(str, words)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise DiskTrouble(f"{words[0]}: {' '.join(done.stderr.split())}")


class PowerDisk:
    """A disk at `path`, which is made."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.image = path.with_name(f"{path.name}.img")
        path.mkdir(parents=True)
        with self.image.open("wb") as file:
            file.truncate(SIZE_BYTES)
        _run("mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0", self.image)
        self._mount()

    def _mount(self) -> None:
        _run("mount", "-o", "loop", self.image, self.path)
        with suppress(OSError):
            (self.path / "lost+found").rmdir()

    def cut(self) -> None:
        """The power is gone: from now on nothing reaches the disk, and nothing can be read."""
        handle = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.ioctl(handle, EXT4_IOC_SHUTDOWN, NO_LOG_FLUSH)
        finally:
            os.close(handle)

    def restore(self) -> None:
        """The power is back; no process may have the disk open."""
        _run("umount", self.path)
        self._mount()

    def close(self) -> None:
        with suppress(DiskTrouble):
            _run("umount", "-l", self.path)
        self.image.unlink(missing_ok=True)


def available() -> bool:
    """Whether such disks can be made here."""
    if os.name != "posix" or os.geteuid() != 0 or shutil.which("mkfs.ext4") is None:
        return False
    with tempfile.TemporaryDirectory(prefix="roundelay-disk-") as folder:
        try:
            disk = PowerDisk(Path(folder) / "disk")
        except (DiskTrouble, OSError):
            return False
        try:
            disk.cut()
        except OSError:
            return False
        finally:
            disk.close()
    return True
