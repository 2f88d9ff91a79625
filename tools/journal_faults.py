"""What a journal survives: one-bit flips, and kills of the recording process.

    python -m tools.journal_faults flips [--scan-every 16] [--repair-every 256]
    python -m tools.journal_faults kills [--kills 200]

`flips` makes a journal of one 64-KiB segment, and a second recorder's journal of the same group.
Every bit of the segment is flipped, one at a time: the head or the block it is in must be refused.
Every so often the file itself is flipped and scanned, and the scan must name positions that cover
what was hit; every so often it is checked and repaired from the second journal, and must then hold
what it held, and be found good.

`kills` starts a process that records with policy `always` and says which position it has
acknowledged, kills it with SIGKILL at a random moment, and looks whether everything acknowledged is
there; again and again, in one journal.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from random import Random

from roundelay.core.bundle import Bundle
from roundelay.core.errors import MalformedPdu
from roundelay.journal.damage.check import check
from roundelay.journal.damage.repair import repair
from roundelay.journal.files import read_mark, segments_of
from roundelay.journal.format import (
    BLOCK_HEAD,
    GAP,
    SEGMENT_HEAD,
    Run,
    check_block,
    decode_block_head,
    decode_head,
)
from roundelay.journal.journal import Journal, JournalConfig
from roundelay.journal.reader import Reader
from roundelay.journal.segment import Segment

GROUP = "token:faults"
SEGMENT = 64 << 10


def run_at(position: int, records: int = 3) -> Run:
    """A run that follows from its position, so that anybody can tell what should be there."""
    rng = Random(position)
    data = [rng.randbytes(rng.choice((60, 64, 200))) for _ in range(records)]
    return Run(position, 1_700_000_000_000_000_000 + position * 1000, f"s{position % 5}",
               Bundle.of(*data), position % 7, position % 3)  # fmt: skip


def record(folder: Path, size: int, together: int) -> int:
    """A journal of about `size` bytes in one segment; its end."""
    journal = Journal(folder, GROUP, JournalConfig(sync="os", segment_bytes=1 << 24))
    position = 0
    while journal.segments == [] or journal.segments[0].size < size:
        for _ in range(together):
            run = run_at(position)
            journal.add(run)
            position = run.end
        journal.commit()
    journal.close()
    return position


def extend(folder: Path, end: int, together: int) -> None:
    """A second recorder of the same messages, with other commits."""
    journal = Journal(folder, GROUP, JournalConfig(sync="os", segment_bytes=1 << 15))
    position = 0
    while position < end:
        for _ in range(together):
            if position < end:
                journal.add(run_at(position))
                position += 3
        journal.commit()
    journal.close()


def holds(folder: Path, end: int) -> bool:
    """Are all records below `end` there, and right?"""
    at = 0
    for run in Reader(folder).read():
        if run.flags & GAP or run.position != at:
            return False
        expected = run_at(at)
        if (run.bundle, run.sender, run.time, run.conference, run.kind) != (
            expected.bundle, expected.sender, expected.time, expected.conference, expected.kind,
        ):  # fmt: skip
            return False
        at = run.end
    return at == end


def blocks_of(data: bytes) -> list[tuple[int, int, int, int]]:
    """Offset, size, first position and end of every block in a good segment."""
    found, at = [], SEGMENT_HEAD.size
    while at < len(data):
        head = decode_block_head(data[at : at + BLOCK_HEAD.size])
        found.append((at, head.size, head.base, head.end))
        at += head.size
    return found


def scan_notices(path: Path, journal: bytes, mark: int, hit: tuple[int, int] | None) -> bool:
    """Does a scan find that the file is damaged, and where?"""
    segment = Segment(path, journal)
    if hit is None:
        return bool(segment.head_wrong)
    segment.scan(mark)
    return any(one.lo <= hit[0] and one.hi >= hit[1] for one in segment.damages)


def refused(part: bytearray, head: bool) -> bool:
    """Is a head or a block not taken for what was written?"""
    try:
        if head:
            decode_head(bytes(part))
        else:
            check_block(bytes(part), decode_block_head(bytes(part)))
    except MalformedPdu:
        return True
    return False


def flips(scan_every: int, repair_every: int, seed: int, out: Path) -> dict[str, int]:
    rng = Random(seed)
    first, second = out / "first", out / "second"
    end = record(first, SEGMENT, 5)
    extend(second, end, 11)
    (path,) = segments_of(first)
    journal = Reader(first).meta.journal
    mark = read_mark(first)
    data = bytearray(path.read_bytes())
    blocks = blocks_of(bytes(data))
    parts: list[tuple[int, int, tuple[int, int] | None]] = [(0, SEGMENT_HEAD.size, None)]
    parts += [(at, size, (lo, hi)) for at, size, lo, hi in blocks]
    done = dict.fromkeys(
        ("bytes", "flips", "noticed", "scans", "scans noticed", "repairs", "repaired"), 0
    )
    done["bytes"] = len(data)
    with path.open("r+b", buffering=0) as file:
        for start, size, hit in parts:
            part = data[start : start + size]
            for at in range(size):
                for bit in range(8):
                    part[at] ^= 1 << bit
                    done["flips"] += 1
                    done["noticed"] += refused(part, hit is None)
                    scan, mend = (rng.randrange(one) == 0 for one in (scan_every, repair_every))
                    if scan or mend:
                        file.seek(start + at)
                        file.write(part[at : at + 1])
                    if scan:
                        done["scans"] += 1
                        done["scans noticed"] += scan_notices(path, journal, mark, hit)
                    if mend:
                        done["repairs"] += 1
                        done["repaired"] += repairs(first, second, end, out / "copy")
                    part[at] ^= 1 << bit
                    if scan or mend:
                        file.seek(start + at)
                        file.write(part[at : at + 1])
    return done


def all_noticed(done: dict[str, int]) -> bool:
    pairs = (("flips", "noticed"), ("scans", "scans noticed"), ("repairs", "repaired"))
    return all(done[one] == done[other] for one, other in pairs)


def repairs(first: Path, second: Path, end: int, copy: Path) -> bool:
    """Is a damaged journal found out and put right from another one?"""
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(first, copy)
    if check(copy).good:
        return False
    if repair(copy, [second]).still_missing:
        return False
    return check(copy).good and holds(copy, end)


# ------------------------------------------------------------------------ kills


def child(folder: Path) -> None:
    """Record as fast as it goes; say what was acknowledged."""
    journal = Journal(folder, GROUP, JournalConfig(sync="always", segment_bytes=1 << 16))
    position = journal.end
    rng = Random(position)
    while True:
        for _ in range(rng.randint(1, 20)):
            run = run_at(position)
            journal.add(run)
            position = run.end
        print(journal.commit(), flush=True)


def kills(count: int, seed: int, folder: Path) -> dict[str, int]:
    """Kill a recording process again and again."""
    rng = Random(seed)
    done = {"kills": 0, "acknowledged": 0, "lost": 0, "kept unacknowledged": 0, "bad": 0}
    acknowledged = 0
    for _ in range(count):
        process = subprocess.Popen(
            [sys.executable, "-m", "tools.journal_faults", "child", "--folder", str(folder)],
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert process.stdout is not None
        for _ in range(rng.randint(0, 30)):
            acknowledged = int(process.stdout.readline() or acknowledged)
        time.sleep(rng.random() * 0.01)
        process.send_signal(signal.SIGKILL)
        for line in process.stdout:
            if line.endswith("\n"):
                acknowledged = int(line)
        process.wait()
        done["kills"] += 1
        verdict = check(folder) if acknowledged else None
        if verdict is not None:
            if not verdict.good:
                done["bad"] += 1
                print(verdict.problems, flush=True)
            done["lost"] += max(0, acknowledged - verdict.end)
            done["kept unacknowledged"] += max(0, verdict.end - acknowledged)
            acknowledged = verdict.end
    done["acknowledged"] = acknowledged
    done["bad"] += not holds(folder, acknowledged)
    return done


def main() -> None:
    parser = argparse.ArgumentParser(description="What a journal survives.")
    parser.add_argument("what", choices=["flips", "kills", "child"])
    parser.add_argument("--scan-every", type=int, default=16, help="scan after one flip in so many")
    parser.add_argument("--repair-every", type=int, default=256, help="repair one flip in so many")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="where; default: a temporary one")
    options = parser.parse_args()
    if options.what == "child":
        child(options.folder)
        return
    with tempfile.TemporaryDirectory() as scratch:
        folder: Path = options.folder or Path(scratch)
        start = time.perf_counter()
        if options.what == "flips":
            done = flips(options.scan_every, options.repair_every, options.seed, folder)
            good = all_noticed(done)
        else:
            done = kills(options.kills, options.seed, folder)
            good = not done["lost"] and not done["bad"]
        seconds = time.perf_counter() - start
    print(", ".join(f"{name} {value:,}" for name, value in done.items()), f"in {seconds:.0f} s")
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
