"""What a live group costs in processor time, where a clock on the wall would tell of other work.

Four members of one group (service `resilient`, L = 1, sealed, over loopback multicast) in one
process and one event loop.  At full load: microseconds a message and member, with one `bytes`
object per message at every member.  One at a time: microseconds a message at all four together,
from `broadcast` at a random member to its receipt.  Each is measured in many short windows; other
work on the machine makes some of them dearer, never cheaper, so the tenth and the middle of a
hundred are printed.

    python -m bench.processor [--seconds 4] [--messages 4000] [--json]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import secrets
import tempfile
import time
from pathlib import Path

import roundelay
from roundelay.client.group import Group
from roundelay.node.process import loop_factory

MEMBERS = 4
SIZES = (64, 1024)
POST = 50
"""Messages that the application hands over at once."""
WARM_S = 0.7
WINDOW_NS = 40_000_000
"""Processor time of a window under load."""
WINDOW = 50
"""Messages of a window, one at a time."""


async def members(folder: Path) -> list[Group]:
    key = folder / "key"
    key.write_text(secrets.token_hex(32) + "\n")
    key.chmod(0o600)
    port = 20_000 + secrets.randbelow(12_000)
    groups = [
        await roundelay.join(
            "bench", interface="lo", multicast=f"239.255.66.77:{port}", key=key, name=f"m{number}"
        )
        for number in range(MEMBERS)
    ]
    for group in groups:
        await group.ready(MEMBERS)
    return groups


def low_and_middle(values: list[float]) -> tuple[float, float]:
    values.sort()
    return values[len(values) // 10], values[len(values) // 2]


async def full_load(groups: list[Group], size: int, seconds: float) -> tuple[float, float]:
    """µs a message and member."""
    count = 0

    async def read(group: Group) -> None:
        nonlocal count
        async for batch in group.batches():
            count += len(batch.bundle.messages())

    async def send(group: Group) -> None:
        messages = [bytes(size)] * POST
        while not over.is_set():
            await group.post(messages)

    over = asyncio.Event()
    readers = [asyncio.ensure_future(read(group)) for group in groups]
    senders = [asyncio.ensure_future(send(group)) for group in groups]
    await asyncio.sleep(WARM_S)
    found = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        before, start = count, time.process_time_ns()
        while time.process_time_ns() - start < WINDOW_NS:
            await asyncio.sleep(0.01)
        found.append((time.process_time_ns() - start) / 1000 / max(1, count - before))
    over.set()
    await asyncio.gather(*senders)
    for group in groups:
        await group.broadcast(b"the end")
    for reader in readers:
        reader.cancel()
    return low_and_middle(found)


async def one_at_a_time(groups: list[Group], messages: int) -> tuple[float, float]:
    """µs a message, at all members together."""

    async def read(group: Group) -> None:
        async for _ in group.batches():
            pass

    readers = [asyncio.ensure_future(read(group)) for group in groups]
    rng, data = random.Random(1), bytes(64)
    found = []
    for _ in range(messages // WINDOW):
        start = time.process_time_ns()
        for _ in range(WINDOW):
            await rng.choice(groups).broadcast(data)
        found.append((time.process_time_ns() - start) / 1000 / WINDOW)
    for reader in readers:
        reader.cancel()
    return low_and_middle(found)


async def measured(seconds: float, messages: int) -> dict[str, tuple[float, float]]:
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        groups = await members(Path(folder))
        found["one at a time, 64 B, a message at all"] = await one_at_a_time(groups, messages)
        for size in SIZES:
            name = f"full load, {size} B, a message and member"
            found[name] = await full_load(groups, size, seconds)
        await asyncio.gather(*[group.leave() for group in groups])
    return found


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.processor",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seconds", type=float, default=4.0, help="of each load")
    parser.add_argument("--messages", type=int, default=4000, help="one at a time")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        found = runner.run(measured(options.seconds, options.messages))
    if options.json:
        print(json.dumps(found, indent=1))
        return
    print(f"{'processor time, us':42}{'tenth':>10}{'middle':>10}")
    for name, (low, middle) in found.items():
        print(f"{name:42}{low:10.3f}{middle:10.3f}")


if __name__ == "__main__":
    main()
