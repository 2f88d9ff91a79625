"""A member's file is begun anew while the member goes on.

What a busy member keeps may be tens of megabytes.  To write and sync them takes longer than the
others should wait for us, so a thread does it: it writes what is kept into a file aside, then what
was appended to the old file meanwhile, and syncs.  The member then adds the little that came after
that, and the new file takes the name of the old one, which was complete all the time.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from roundelay.durable import write_parts

CHUNK: Final = 1 << 20
ROUNDS: Final = 8
"""How often what was appended meanwhile is looked for before the sync."""


class Rotation:
    """One such change of files; `done` when only `take_over` is left to do."""

    def __init__(
        self, path: Path, file: int, size: int, beginning: Callable[[], Iterable[bytes]]
    ) -> None:
        """`file` has `size` bytes, and `beginning` says the same as these."""
        self._path = path
        self._aside = path.with_suffix(".new")
        self._old = os.dup(file)
        self._at = size  # bytes of the old file that the new one says, too
        self._fresh = os.open(self._aside, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        self._beginning = beginning
        self._failed: OSError | None = None
        self.begun_with = 0
        """Bytes of the beginning."""
        self.done = False
        self._thread = threading.Thread(target=self._work, name="rotation", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        try:
            self.begun_with = write_parts(self._fresh, list(self._beginning()))
            for _ in range(ROUNDS):
                if self._follow(os.fstat(self._old).st_size) < CHUNK:
                    break
            os.fsync(self._fresh)
        except OSError as error:
            self._failed = error
        self.done = True

    def _follow(self, end: int) -> int:
        """Copy what was appended to the old file; how many bytes that was."""
        begin = self._at
        while self._at < end:
            data = os.pread(self._old, min(CHUNK, end - self._at), self._at)
            write_parts(self._fresh, [data])
            self._at += len(data)
        return self._at - begin

    def wait(self) -> None:
        self._thread.join()

    def take_over(self, size: int, sync: bool) -> int:
        """The old file has ended at `size`: returns the new one, which has its name now.

        `sync`: something that was appended has to be on disk.  The name is not synced.
        """
        try:
            if self._failed is not None:
                raise self._failed
            self._follow(size)
            if sync:
                os.fsync(self._fresh)
            os.replace(self._aside, self._path)
        except OSError:
            self.give_up()
            raise
        os.close(self._old)
        return self._fresh

    def give_up(self) -> None:
        """Go on with the old file."""
        self.wait()
        os.close(self._old)
        os.close(self._fresh)
        with suppress(OSError):
            self._aside.unlink(missing_ok=True)
