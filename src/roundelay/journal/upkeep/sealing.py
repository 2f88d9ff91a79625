"""A process of its own that seals segments.

Hashing and indexing a segment takes longer than writing it, and most of that is Python: in a thread
it would halve the speed of the appending.  The process is started with the first segment that is
worth it, works at low priority, and ends with its parent.  Where none can be started the keeper
does the work itself.

One JSON object a line: a `SealingTask` to the process, a `Done` back.
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from roundelay.core.errors import MalformedPdu
from roundelay.durable import Disk
from roundelay.journal.segment import Segment
from roundelay.journal.upkeep.rewrite import seal, verify

WORTH_BYTES: Final = 4 << 20
"""A smaller segment is sealed on the spot."""


class SealingTask(Struct, frozen=True):
    """Seal a segment, or only read it through."""

    path: str
    journal: bytes
    size: int
    before: bytes = b""
    group: str = ""
    parquet: bool = False
    verify: bool = False


class Done(Struct, frozen=True):
    """It is sealed, or why not."""

    link: bytes = b""
    damaged: str = ""
    failed: str = ""


class Sealer:
    """The parent's side."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._possible = True

    def seal(self, task: SealingTask) -> bytes | None:
        """The segment's link; None: do it yourself.  MalformedPdu if a block is damaged."""
        if not self._possible:
            return None
        try:
            done = self._ask(task)
        except (OSError, msgspec.DecodeError):
            self.close()
            self._possible = False
            return None
        if done.damaged:
            raise MalformedPdu("segment", done.damaged)
        if done.failed:
            raise OSError(done.failed)
        return done.link

    def _ask(self, task: SealingTask) -> Done:
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__], stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(msgspec.json.encode(task) + b"\n")
        self._process.stdin.flush()
        return msgspec.json.decode(self._process.stdout.readline(), type=Done)

    def close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            with suppress(OSError):
                process.communicate(timeout=60)


def carry_out(task: SealingTask) -> Done:
    segment = Segment(Path(task.path), task.journal)
    segment.size = task.size
    try:
        if task.verify:
            verify(segment)
            return Done(link=task.before)
        link = seal(segment, task.before, Disk())
        if task.parquet:
            from roundelay.journal.parquet import to_parquet

            to_parquet(segment, task.group)
    except MalformedPdu as error:
        return Done(damaged=str(error))
    except OSError as error:
        return Done(failed=str(error))
    return Done(link=link)


def main() -> None:
    """The process: one task after the other until nobody asks any more."""
    os.nice(19)
    # Ctrl-C is for the parent, which will close our input; one that is gone wants no answer.
    with suppress(KeyboardInterrupt, BrokenPipeError):
        for line in sys.stdin.buffer:
            done = carry_out(msgspec.json.decode(line, type=SealingTask))
            os.write(1, msgspec.json.encode(done) + b"\n")  # nothing is left to be flushed later


if __name__ == "__main__":
    main()
