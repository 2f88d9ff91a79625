"""One member of a live group, for `bench.throughput`: a process that sends and reads.

A child process that reads one JSON request a line and answers with one line; see `bench.children`.
"""

from __future__ import annotations

import asyncio
import json
import random
import resource
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import roundelay
from roundelay.client.group import Group, SlowConsumer
from roundelay.node.process import loop_factory

POST = 50
"""Messages that the application hands over at once."""
BATCHES, CUT, OBJECTS, SLOW = "batches", "cut", "objects", "slow"
SLOW_WAIT_S = 0.05


class Member:
    """The application of one member."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.count = 0
        self.batches = 0

    # -- reading: the ways an application may do it ----------------------------------------

    async def read_batches(self) -> None:
        """Messages of a batch stay together; their order is checked."""
        expected = -1
        async for batch in self.group.batches():
            if batch.seq != expected and expected >= 0:
                raise SystemExit(f"position {batch.seq} came instead of {expected}")
            expected = batch.seq + len(batch.bundle)
            self.count += len(batch.bundle)
            self.batches += 1

    async def read_cut(self) -> None:
        """Each batch is cut into one `bytes` object per message."""
        async for batch in self.group.batches():
            self.count += len(batch.bundle.messages())
            self.batches += 1

    async def read_objects(self) -> None:
        """Each message is an object with position, sender and time."""
        async for _ in self.group:
            self.count += 1

    async def read_slow(self) -> None:
        """Far too slow."""
        with suppress(SlowConsumer):  # it was told so, and does not care
            async for batch in self.group.batches():
                self.count += len(batch.bundle)
                await asyncio.sleep(SLOW_WAIT_S)

    # -- requests --------------------------------------------------------------------------

    async def ready(self, members: int) -> dict[str, object]:
        await asyncio.wait_for(self.group.ready(members), 60)
        return {"node": self.group._node_api.name}

    async def load(self, size: int, way: str, begin_ns: int, until_ns: int) -> dict[str, object]:
        """Send as much as the group takes; what was delivered between the two times."""
        reader = asyncio.ensure_future(getattr(self, f"read_{way}")())
        sender = asyncio.ensure_future(self.send(size, until_ns))
        self.batches = 0
        notes: list[dict[str, float]] = []
        loop = asyncio.get_running_loop()
        for when in (begin_ns, until_ns):
            loop.call_at(when / 1e9, lambda: notes.append(self.note()))
        await sender
        await asyncio.wait({reader}, timeout=0.2)
        reader.cancel()
        found: dict[str, object] = {what: notes[1][what] - notes[0][what] for what in notes[0]}
        found["overflow"] = self.group._overflow is not None
        found["peak_mb"] = peak_mb()
        return found

    async def send(self, size: int, until_ns: int) -> None:
        messages = [bytes(size)] * POST
        while time.monotonic_ns() < until_ns:
            await self.group.post(messages)
        await self.group.broadcast(b"the end")

    def note(self) -> dict[str, float]:
        found = {
            "count": self.count,
            "batches": self.batches,
            "seconds": time.monotonic(),
            "cpu_s": time.process_time(),
        }
        traffic: dict[str, float] = self.group._node_api.status()["traffic"]
        return found | traffic

    async def latency(self, size: int, rate: float, seconds: float) -> dict[str, object]:
        """From `broadcast` to its receipt, `rate` of them a second."""
        reader = asyncio.ensure_future(self.read_batches())
        times: list[int] = []

        async def one() -> None:
            start = time.monotonic_ns()
            await self.group.broadcast(bytes(size))
            times.append(time.monotonic_ns() - start)

        tasks = set()
        start = time.monotonic()
        for number in range(int(rate * seconds)):
            due = start + (number + random.random()) / rate
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            tasks.add(asyncio.ensure_future(one()))
        await asyncio.wait(tasks)
        reader.cancel()
        return {"times": times}

    async def peak_anew(self) -> dict[str, object]:
        """Forget the peak of the memory so far."""
        Path("/proc/self/clear_refs").write_text("5")
        return {"peak_mb": peak_mb()}

    async def status(self) -> dict[str, object]:
        found: dict[str, object] = self.group._node_api.status()
        return found


def peak_mb() -> float:
    """The most memory this process has had (VmHWM)."""
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM"):
                return int(line.split()[1]) / 1024
    except OSError:
        pass
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


async def serve(options: dict[str, Any]) -> None:
    loop = asyncio.get_running_loop()
    requests = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(requests), sys.stdin)
    async with roundelay.join("bench", **options) as group:
        member = Member(group)
        while line := await requests.readline():
            request = json.loads(line)
            do: Callable[..., Any] = getattr(member, request.pop("do"))
            print(json.dumps(await do(**request)), flush=True)


def main() -> None:
    options = json.loads(sys.argv[1])
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(serve(options))


if __name__ == "__main__":
    main()
