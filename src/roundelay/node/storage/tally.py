"""Whether a file still has everything that was written to it: a count kept in memory, not on disk.

A process that dies leaves in the system's cache what it has written, and its next life finds all
of it.  A machine that dies does not, and neither does a file system that is torn away; what is left
then is what was synced, and looks just like a file to which nothing more was written.  So the
length of each member's file, and the checksum of its last record, are also kept in a small file on
a file system in memory, which outlives a process and no machine.  What is found there later must
be found in the file as well; where nothing is found, nobody can tell.

The id of the system's boot stands beside them, should that file system be on a disk after all.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import stat
import struct
from pathlib import Path
from typing import Final

RECORD: Final = struct.Struct(">16sQQI")  # boot, inode, length, checksum of the last record
BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
SHARED: Final = Path("/dev/shm")
ANY: Final = 0
"""Instead of a checksum: the length alone counts."""


def _boot() -> bytes:
    """Which boot of the system this is; empty where it does not say."""
    try:
        return bytes.fromhex(BOOT_ID.read_text(encoding="ascii").strip().replace("-", ""))
    except (OSError, ValueError):
        return b""


def _folder() -> Path | None:
    """A folder of ours, and of nobody else, on a file system in memory."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    folder = Path(runtime) / "roundelay" if runtime else SHARED / f"roundelay-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        about = folder.lstat()
    except OSError:
        return None
    ours = stat.S_ISDIR(about.st_mode) and about.st_uid == os.getuid() and not about.st_mode & 0o077
    return folder if ours else None


class Tally:
    """The count of one file."""

    def __init__(self, path: Path) -> None:
        self._map: mmap.mmap | None = None
        self._boot = _boot()
        self.inode = self.length = self.checksum = -1
        """What the last life of the file's owner has written; -1: nobody knows."""
        folder = _folder()
        if folder is None or len(self._boot) != 16:
            return
        self._path = folder / hashlib.sha256(os.fsencode(path.resolve())).hexdigest()[:32]
        try:
            handle = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        except OSError:
            return
        try:
            if os.fstat(handle).st_size != RECORD.size:
                os.ftruncate(handle, RECORD.size)
            self._map = mmap.mmap(handle, RECORD.size)
        except OSError:
            return
        finally:
            os.close(handle)
        boot, inode, length, checksum = RECORD.unpack_from(self._map)
        if boot == self._boot:
            self.inode, self.length, self.checksum = inode, length, checksum

    def agrees(self, inode: int, ends: dict[int, int]) -> bool:
        """Whether the file with that inode has all that was counted.

        `ends` has the checksum of each sound record by where the record ends."""
        if inode != self.inode or self.length not in ends:
            return False
        return self.checksum in (ANY, ends[self.length])

    def set(self, inode: int, length: int, checksum: int) -> None:
        """The file has so much now: before anybody is told of what is in it."""
        if self._map is not None:
            RECORD.pack_into(self._map, 0, self._boot, inode, length, checksum)

    def close(self, *, needed: bool = True) -> None:
        """`needed`: false when the file says itself that it is whole."""
        if self._map is not None:
            self._map.close()
            self._map = None
            if not needed:
                self._path.unlink(missing_ok=True)
