"""How fast a journal is, against what the machine can do; everything in one run.

- Appending with policy `interval`, against a bare `os.write` of the same bytes in the same batches,
  which is never synced; batch by batch in turn.
- Appending with policy `always`: how many syncs for how many messages.
- Replay of everything to one reader, as batches.
- Selective replay of 1 %: one conference in a hundred, every message a run of its own, from a
  journal and from one ten times as long.  Bytes read are counted by the kernel
  (`rchar` of /proc/self/io); what is used of the mapped indexes is added.
- Memory of the recording process while the journal grows.

    python -m bench.journal [--messages 10000000] [--rounds 5] [--folder DIR] [--json]
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import shutil
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

from roundelay.core.bundle import Bundle
from roundelay.core.selection import Selection
from roundelay.journal.files import index_of, segments_of
from roundelay.journal.format import Run, encode_block
from roundelay.journal.index import HEAD, RUN, Index
from roundelay.journal.journal import Journal, JournalConfig
from roundelay.journal.reader import Reader

GROUP = "token:bench"
SIZE = 64
TOGETHER = 100
"""Messages in a run: what one PDU brings under some load."""
PDU = 900
"""What it brings under full load, with the largest payload."""
BATCHES = (16 << 10, 64 << 10, 256 << 10, 1 << 20)
ROUND_BYTES = 192 << 20
SECOND_NS = 1_700_000_000_000_000_000


def runs_of(count: int, together: int, at: int = 0, conferences: int = 1) -> Iterator[Run]:
    """`count` runs of so many messages each."""
    bundle = Bundle((SIZE,) * together, bytes(SIZE * together))
    for number in range(count):
        position = at + number * together
        yield Run(position, SECOND_NS + position, f"site{number % 4}", bundle, number % conferences)


def rss() -> float:
    """Resident memory of this process, MB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def read_so_far() -> int:
    return int(Path("/proc/self/io").read_text().split()[1])


# ------------------------------------------------------------------------ appending


def both(folder: Path, batches: list[list[Run]]) -> tuple[list[float], list[float]]:
    """Seconds of each batch, written bare and into a journal in turn.

    In turn, so that whatever else the machine does hits both alike.
    """
    bare: list[float] = []
    ours: list[float] = []
    path = folder / "bare"
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    journal = Journal(folder / "journal", GROUP, JournalConfig(sync="interval"))
    for runs in batches:
        block = encode_block(runs, journal.id, 1)
        start = perf_counter()
        os.write(file, block)
        between = perf_counter()
        for run in runs:
            journal.add(run)
        journal.commit()
        ours.append(perf_counter() - between)
        bare.append(between - start)
    os.close(file)
    path.unlink()
    journal.close()
    shutil.rmtree(folder / "journal")
    return bare, ours


def append(folder: Path, rounds: int) -> list[dict[str, Any]]:
    found = []
    for together, batch in ((TOGETHER, one) for one in BATCHES):
        found.append(append_in(folder, rounds, together, batch))
    found.append(append_in(folder, rounds, PDU, PDU * SIZE))
    found.append(append_in(folder, rounds, PDU, 4 * PDU * SIZE))
    return found


def append_in(folder: Path, rounds: int, together: int, batch: int) -> dict[str, Any]:
    """Messages in runs of `together`, and as many runs as make about `batch` bytes a commit."""
    runs_in = max(1, batch // (SIZE * together))
    count = ROUND_BYTES // (runs_in * together * SIZE)
    all = list(runs_of(count * runs_in, together))
    batches = [all[i : i + runs_in] for i in range(0, len(all), runs_in)]
    bare: list[float] = []
    ours: list[float] = []
    for _ in range(rounds):
        for all_times, times in zip((bare, ours), both(folder, batches), strict=True):
            all_times += times
    payload = runs_in * together * SIZE
    return {
        "together": together,
        "batch_bytes": payload,
        "ratio": sum(bare) / sum(ours),
        "ratio_of_medians": statistics.median(bare) / statistics.median(ours),
        "messages_per_s": len(ours) * runs_in * together / sum(ours),
        "MB_per_s": len(ours) * payload / sum(ours) / 1e6,
        "bare_MB_per_s": len(ours) * payload / sum(bare) / 1e6,
    }


def always(folder: Path, commits: int = 200) -> dict[str, Any]:
    journal = Journal(folder / "always", GROUP, JournalConfig(sync="always"))
    runs = list(runs_of(commits * 10, TOGETHER))
    start = perf_counter()
    for number in range(commits):
        for run in runs[number * 10 : number * 10 + 10]:
            journal.add(run)
        assert journal.commit() == journal.end
    seconds = perf_counter() - start
    syncs = journal.syncs
    journal.close()
    shutil.rmtree(folder / "always")
    messages = commits * 10 * TOGETHER
    return {
        "commits": commits,
        "messages": messages,
        "syncs": syncs,
        "commits_per_s": commits / seconds,
        "messages_per_s": messages / seconds,
    }


# ------------------------------------------------------------------------ replay


def write(folder: Path, messages: int, together: int, conferences: int) -> list[float]:
    """A journal of so many messages; the memory after each tenth."""
    journal = Journal(folder, GROUP, JournalConfig(sync="interval"))
    memory = []
    count = messages // together
    waiting = 0
    for number, run in enumerate(runs_of(count, together, 0, conferences)):
        journal.add(run)
        waiting += together
        if waiting >= 1000:
            journal.commit()
            waiting = 0
        if (number + 1) % max(1, count // 10) == 0:
            memory.append(rss())
    journal.close()
    return memory


def replay(folder: Path, messages: int) -> dict[str, Any]:
    memory = write(folder / "replay", messages, TOGETHER, 1)
    reader = Reader(folder / "replay")
    start, used = perf_counter(), process_time()
    found = 0
    for run in reader.read():
        found += len(run.bundle)
    seconds, of_processor = perf_counter() - start, process_time() - used
    assert found == messages // TOGETHER * TOGETHER
    shutil.rmtree(folder / "replay")
    return {
        "messages": found,
        "messages_per_s": found / seconds,
        "messages_per_s_of_processor": found / of_processor,
        "recorder_MB": memory,
    }


def selective(folder: Path, messages: int) -> dict[str, Any]:
    where = folder / f"selective{messages}"
    memory = write(where, messages, 1, 100)
    reader = Reader(where)
    total = sum(segment.size for segment in reader.segments)
    selection = Selection(conferences=frozenset({7}))
    gc.collect()
    before = read_so_far()
    start, used = perf_counter(), process_time()
    found = sum(run.records for run in reader.read(selection))
    seconds, of_processor = perf_counter() - start, process_time() - used
    read = read_so_far() - before
    indexes = 0
    for path in segments_of(where):
        with Index(index_of(path)) as index:
            small = os.path.getsize(index_of(path)) - index.head.runs * (RUN.size + 8)
            indexes += max(small, HEAD.size)
    indexes += found * (RUN.size + 4)
    assert found == messages // 100
    start = perf_counter()
    everything = sum(run.records for run in reader.read())
    whole_seconds = perf_counter() - start
    assert everything == messages
    shutil.rmtree(where)
    return {
        "messages": messages,
        "journal_bytes": total,
        "selected": found,
        "read_bytes": read,
        "index_bytes": indexes,
        "bytes_per_selected": (read + indexes) / found,
        "part_of_journal": (read + indexes) / total,
        "seconds": seconds,
        "us_of_processor_per_selected": of_processor / found * 1e6,
        "whole_seconds": whole_seconds,
        "recorder_MB": memory,
    }


# ------------------------------------------------------------------------ all of it


def main() -> None:
    parser = argparse.ArgumentParser(description="How fast a journal is.")
    parser.add_argument("--messages", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="on which disk; default: a temporary folder")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(dir=options.folder))
    try:
        found = {
            "python": platform.python_version(),
            "append": append(folder, options.rounds),
            "always": always(folder),
            "replay": replay(folder, options.messages),
            "selective": [
                selective(folder, options.messages // 10),
                selective(folder, options.messages),
            ],
        }
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(json.dumps(found, indent=2) if options.json else text(found))


def text(found: dict[str, Any]) -> str:
    lines = [f"appending, policy interval, messages of {SIZE} B, against bare os.write:"]
    for one in found["append"]:
        lines.append(
            f"  runs of {one['together']}, batches of {one['batch_bytes']:>9,} B  "
            f"ratio {one['ratio']:.2f}  "
            f"(of medians {one['ratio_of_medians']:.2f})  "
            f"{one['messages_per_s']:>12,.0f} messages/s  {one['MB_per_s']:,.0f} MB/s, "
            f"bare {one['bare_MB_per_s']:,.0f} MB/s"
        )
    one = found["always"]
    lines.append(
        f"policy always: {one['messages']:,} messages, {one['commits']} commits, {one['syncs']} "
        f"syncs, {one['commits_per_s']:,.0f} commits/s, {one['messages_per_s']:,.0f} messages/s"
    )
    one = found["replay"]
    lines.append(
        f"replay of {one['messages']:,}: {one['messages_per_s']:,.0f} messages/s "
        f"({one['messages_per_s_of_processor']:,.0f} a second of the processor)"
    )
    for one in found["selective"]:
        lines.append(
            f"1 % of {one['messages']:,} ({one['journal_bytes'] / 1e6:,.0f} MB): "
            f"{one['selected']:,} messages, {one['read_bytes']:,} B read and "
            f"{one['index_bytes']:,} B of indexes, {one['bytes_per_selected']:.0f} B a message, "
            f"{one['part_of_journal']:.1%} of the journal, {one['seconds']:.2f} s, "
            f"{one['us_of_processor_per_selected']:.1f} µs each; "
            f"all of it {one['whole_seconds']:.1f} s"
        )
    for name in ("replay", "selective"):
        one = found[name] if name == "replay" else found[name][-1]
        memory = ", ".join(f"{size:.0f}" for size in one["recorder_MB"])
        lines.append(f"memory while recording ({name}), MB after each tenth: {memory}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
