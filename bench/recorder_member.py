"""One member of a recorded group, for `bench.recorder`: it talks, listens, replays and tells.

A child process that reads one JSON request a line and answers with one line; see `bench.children`.
What it hears it does not keep: it keeps a hash of it, so that two members can be compared.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import roundelay
from bench import live_member
from bench.live_member import peak_mb
from roundelay.client.group import Group
from roundelay.client.options import Options
from roundelay.core.errors import GroupClosed
from roundelay.durable import Disk
from roundelay.journal.journal import JournalConfig
from roundelay.node.frontend.server import FrontendServer
from roundelay.node.node import Node
from roundelay.node.node_api import Batch
from roundelay.node.process import loop_factory
from roundelay.node.recording.recorder import RecordConfig

CONFERENCES = 10
POST = 50
CHOSEN, SENDER = 7, "m1"


class SlowDisk(Disk):
    """Each write takes as long as a disk that is too slow would need."""

    bytes_a_second = 0.0

    def write(self, file: int, parts: Any) -> None:
        if self.bytes_a_second:
            time.sleep(sum(map(len, parts)) / self.bytes_a_second)
        super().write(file, parts)


class Heard:
    """What came, as a hash over position, sender, conference and bytes; and that of the chosen."""

    def __init__(self) -> None:
        self.count = self.chosen_count = 0
        self.first = self.next = -1
        self.wrong = ""
        self._all, self._chosen = hashlib.sha256(), hashlib.sha256()

    def take(self, batch: Batch) -> None:
        if self.next >= 0 and batch.seq != self.next and not self.wrong:
            self.wrong = f"position {batch.seq} came instead of {self.next}"
        if self.first < 0:
            self.first = batch.seq
        at = batch.seq
        for conference, _, part in batch.bundle.by_mark():
            for data in part:
                line = b"%d %s %d %s" % (at, batch.sender.encode(), conference, data)
                self._all.update(line)
                self.count += 1
                if conference == CHOSEN and batch.sender == SENDER:
                    self._chosen.update(line)
                    self.chosen_count += 1
                at += 1
        self.next = at

    def told(self) -> dict[str, object]:
        return {
            "count": self.count, "first": self.first, "next": self.next, "wrong": self.wrong,
            "hash": self._all.hexdigest(), "chosen": self.chosen_count,
            "chosen_hash": self._chosen.hexdigest(),
        }  # fmt: skip


class Member(live_member.Member):
    """See the module."""

    def __init__(self, group: Group, disk: SlowDisk) -> None:
        super().__init__(group)
        self.disk = disk
        self.heard = Heard()
        self.reader: asyncio.Task[None] | None = None
        self.talking: asyncio.Task[None] | None = None

    @property
    def node(self) -> Node:
        node = self.group._node_api
        assert isinstance(node, Node)
        return node

    async def listen(self, since: int = 0) -> dict[str, object]:
        """Hear everything from now on; what is before `since` does not count."""
        self.heard = Heard()

        async def read() -> None:
            async for batch in self.group.batches():
                if batch.seq >= since:
                    self.heard.take(batch)

        self.reader = asyncio.create_task(read())
        return {}

    async def talk(self, count: int, size: int, rate: float = 0.0) -> dict[str, object]:
        """Say so many messages, in changing conferences; with a rate, beside everything else."""
        if rate:
            self.talking = asyncio.create_task(self._talk_on(count, size, rate))
        else:
            await self._talk(count, size, 0.0)
            await self.group.broadcast(b"so far")
        return {}

    async def _talk_on(self, count: int, size: int, rate: float) -> None:
        with suppress(GroupClosed):  # nobody waits for its end
            await self._talk(count, size, rate)

    async def _talk(self, count: int, size: int, rate: float) -> None:
        start = time.monotonic()
        for number in range(0, count, POST):
            messages = [b"%-*d" % (size, number + i) for i in range(POST)]
            await self.group.post(messages, conference=number // POST % CONFERENCES)
            if rate:
                await asyncio.sleep(max(0.0, start + number / rate - time.monotonic()))

    async def finish(self) -> dict[str, object]:
        """Wait for what it says beside; then one last message, which is at `seq`."""
        if self.talking is not None:
            await self.talking
        return {"seq": (await self.group.broadcast(b"the end")).seq}

    async def reach(self, seq: int) -> dict[str, object]:
        """Wait until everything up to a position was heard, and say what it was."""
        for _ in range(6000):
            if self.heard.next > seq or self.heard.wrong:
                break
            await asyncio.sleep(0.02)
        return self.heard.told()

    async def replay(self, since: int, until: int, chosen: bool) -> dict[str, object]:
        which: dict[str, Any] = {"conference": CHOSEN, "sender": SENDER} if chosen else {}
        found, start = Heard(), time.monotonic()
        async for batch in self.group.replay_batches(since, until, **which):
            if chosen:
                found.next = -1
            found.take(batch)
        return found.told() | {"seconds": time.monotonic() - start}

    async def drain(self) -> dict[str, object]:
        """Read until nothing is left that this member is behind with."""
        count = 0

        async def read() -> None:
            nonlocal count
            async for batch in self.group.batches():
                count += len(batch.bundle)

        reader = asyncio.create_task(read())
        before = -1
        while before != count or self.node.recorders.replays.status():
            before = count
            await asyncio.sleep(0.3)
        reader.cancel()
        return {"count": count}

    async def slow_down(self, bytes_a_second: float) -> dict[str, object]:
        self.disk.bytes_a_second = bytes_a_second
        return {}

    async def recorded(self, seq: int = -1) -> dict[str, object]:
        """What the recorder has, once it has got to a position."""
        recorder = self.node.recorders.own[self.group.name]
        for _ in range(3000):
            if recorder.journal.end > seq:
                break
            await asyncio.sleep(0.02)
        return recorder.status() | {"peak_mb": peak_mb(), "now_mb": now_mb()}

    async def serve(self) -> dict[str, object]:
        """Let readers in."""
        server = FrontendServer(self.node, ["127.0.0.1:0"], name=self.node.name)
        await server.start()
        self.node.add_frontend(server)
        return {"where": server.addresses[0]}

    async def slowed(self, seconds: float) -> dict[str, object]:
        """How much of a time the group was held up for a recorder, as `status` shows it."""
        held = seen = 0
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            groups: Any = self.node.status()["groups"]
            held += bool(groups[0]["slowed_by"])
            seen += 1
            await asyncio.sleep(0.02)
        return {"share": held / max(1, seen)}


def now_mb() -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    return 0.0


async def serve(options: dict[str, Any]) -> None:
    loop = asyncio.get_running_loop()
    requests = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(requests), sys.stdin)
    disk = SlowDisk()
    backlog = options.pop("backlog_bytes", 0)
    if backlog:

        def records(self: Options, group: str) -> tuple[RecordConfig, ...]:
            journal = JournalConfig(sync=self.fsync)
            return (RecordConfig(group=group, journal=journal, disk=disk, backlog_bytes=backlog),)

        Options.records = records  # type: ignore[method-assign]
    async with roundelay.join("bench", **options) as group:
        member = Member(group, disk)
        while line := await requests.readline():
            request = json.loads(line)
            do: Callable[..., Any] = getattr(member, request.pop("do"))
            if asyncio.iscoroutinefunction(do):
                print(json.dumps(await do(**request)), flush=True)


def main() -> None:
    options = json.loads(sys.argv[1])
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(serve(options))


if __name__ == "__main__":
    main()
