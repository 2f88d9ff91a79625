"""What earlier rosters of a group have left on a member's disk.

Each roster of a group whose members find each other has a file of its own, and what was confirmed
in it, as committed or as synced, must not go when the roster changes.  So the file stays, and
beside it (`FILE.json`) the roster's Start, which says where it began and who the senders are.  A
member that starts again fills its memory from these files (`node.recording.memory`), and from there
its applications and the other members get what is in them.  As much is kept as a memory holds.

The files follow each other: each begins where the one before it ended, in the same history or in
one that continues it.  Where a member goes on in another history they are removed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from roundelay.core.token.pdu import DATA
from roundelay.durable import put
from roundelay.node.membership.histories import later_history
from roundelay.node.node_api import WHOLE, Batch
from roundelay.node.recording.memory import BYTES_MAX
from roundelay.node.storage.store import left_by
from roundelay.wire.control import Start

START: Final = ".json"
"""Behind the name of a file: what its roster was."""
FILES_MAX: Final = 256


def keep(log: Path, start: Start) -> None:
    """The roster `start` is over: what its file `log` has is kept."""
    if log.exists():
        put(log.with_name(log.name + START), msgspec.json.encode(start))


def read_start(path: Path) -> Start | None:
    """Return the roster that a file has; None: none that can be read."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Start)
    except (OSError, msgspec.MsgspecError):
        return None


def _starts(folder: Path) -> list[tuple[Start, Path]]:
    """The rosters that are kept, and their files, in order."""
    rosters = []
    for path in folder.glob(f"*.log*{START}"):
        log = path.with_name(path.name.removesuffix(START))
        start = read_start(path)  # None: not written whole; its file is of no use without it
        if start is not None and log.exists():
            rosters.append((start, log))
    return sorted(rosters, key=lambda roster: (roster[0].base, roster[0].epoch))


def let_go(folder: Path, but: str, *, go_on: bool) -> None:
    """Remove files of rosters that are over, but the one named `but`.

    With `go_on` those stay that are kept, the latest of them, as much as a memory holds."""
    (folder / (but + START)).unlink(missing_ok=True)  # it is not over
    kept = {log.name for log in _latest(folder)} if go_on else set()
    # What a fixed roster has left (`node.membership.recovery`) stays for the operator, but is not
    # read.
    for path in [*folder.glob("ring-*.log"), *folder.glob(f"*.log*{START}")]:
        if path.name != but and path.name.removesuffix(START) not in kept:
            path.unlink(missing_ok=True)


def _latest(folder: Path) -> Iterator[Path]:
    size = 0
    for _, log in reversed(_starts(folder)[-FILES_MAX:]):
        if size >= BYTES_MAX:
            return
        yield log
        size += log.stat().st_size


def last(log: Path, start: Start) -> tuple[str, int]:
    """The history that the file `log` of a roster ends in, and how far it has got."""
    known = start.history or start.incarnation
    stable = left_by(log) if log.exists() else None
    if stable is None:
        return known, start.base
    return later_history(known, stable.history, start.base), start.base + stable.seq


def batches(folder: Path, group: str, upto: int, history: str) -> Iterator[Batch]:
    """What the files have below position `upto`, in order, as messages of `history`."""
    wall = time.time_ns()
    kept = _starts(folder)
    ends = [start.base for start, _ in kept[1:]]
    for (start, log), end in zip(kept, [*ends, upto], strict=False):
        stable = left_by(log)
        if stable is None:
            continue
        for ts in sorted(ts for ts in stable.entries if ts < stable.cnts):
            entry = stable.entries[ts]
            seq = start.base + entry.seq
            # What has a place behind the end of its roster was sent again in the next one.
            if entry.ack.kind == DATA and seq < min(end, upto):
                sender = start.roster[entry.ack.s]
                yield Batch(group, seq, sender, wall, entry.bundle, WHOLE, history)
