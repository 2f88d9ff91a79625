"""What `durability="synced"` costs: broadcasts that return when L + 1 members have them on disk.

Three members of a fixed roster, each a process of its own on this machine, each with a folder of
its own.  One of them sends, so many broadcasts under way at a time, each of one message; the same
with `durability="committed"` for comparison.

    python -m bench.synced [--seconds 3] [--underway 1,16,256] [--dir FOLDER] [--json]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import roundelay
from bench.throughput import some_port

NAMES = ("a", "b", "c")
SIZE = 100


async def member(name: str, folder: Path, multicast: str) -> roundelay.Group:
    group: roundelay.Group = await roundelay.join(
        "bench", members=NAMES, name=name, dir=folder / name, multicast=multicast, interface="lo",
        insecure=True, timeout=30.0,
    )  # fmt: skip
    return group


async def listen(name: str, folder: Path, multicast: str) -> None:
    """A member that reads until it is killed."""
    group = await member(name, folder, multicast)
    async for _ in group.batches():
        pass


async def rate(group: Any, durability: str, underway: int, seconds: float) -> dict[str, Any]:
    """Broadcasts a second, and how many of them one sync of this member's file served."""
    syncing = group._node_api.recorders.syncing
    end = time.monotonic() + seconds
    sent = 0
    syncs = syncing.syncs

    async def sender() -> None:
        nonlocal sent
        while time.monotonic() < end:
            await group.broadcast(b"x" * SIZE, durability=durability)
            sent += 1

    begun = time.monotonic()
    await asyncio.gather(*(sender() for _ in range(underway)))
    took = time.monotonic() - begun
    synced = syncing.syncs - syncs
    return {"rate": sent / took, "per_sync": sent / synced if synced else None}


async def measure(folder: Path, multicast: str, counts: list[int], seconds: float) -> list[Any]:
    group = await member(NAMES[0], folder, multicast)
    await group.ready(members=3)

    async def read() -> None:
        async for _ in group.batches():
            pass

    reader = asyncio.create_task(read())
    await rate(group, "synced", 4, 0.5)
    found = []
    for underway in counts:
        committed = await rate(group, "committed", underway, seconds)
        synced = await rate(group, "synced", underway, seconds)
        found.append({
            "underway": underway, "committed": round(committed["rate"]),
            "synced": round(synced["rate"]), "per_sync": round(synced["per_sync"] or 0, 1),
        })  # fmt: skip
    reader.cancel()
    await group.leave()
    return found


async def run(folder: Path, counts: list[int], seconds: float) -> list[Any]:
    multicast = f"239.255.66.77:{some_port()}"
    others = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-m", "bench.synced", "--member", name, "--dir", str(folder),
            "--multicast", multicast,
        )
        for name in NAMES[1:]
    ]  # fmt: skip
    try:
        return await measure(folder, multicast, counts, seconds)
    finally:
        for other in others:
            other.kill()
            await other.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--underway", default="1,16,256")
    parser.add_argument("--dir", type=Path)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--member", help=argparse.SUPPRESS)
    parser.add_argument("--multicast", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.member:
        asyncio.run(listen(given.member, given.dir, given.multicast))
        return
    folder = Path(tempfile.mkdtemp(prefix="synced-", dir=given.dir))
    try:
        counts = [int(one) for one in given.underway.split(",")]
        found = asyncio.run(run(folder, counts, given.seconds))
    finally:
        shutil.rmtree(folder)
    if given.json:
        print(json.dumps(found))
        return
    print(f"{'under way':>10} {'committed/s':>12} {'synced/s':>10} {'messages a sync':>16}")
    for one in found:
        print(
            f"{one['underway']:>10} {one['committed']:>12,} {one['synced']:>10,} "
            f"{one['per_sync']:>16}"
        )


if __name__ == "__main__":
    main()
