"""One member of a live group, for `bench.failover`: an application that never rests.

A child process that reads one JSON request a line and answers with one line; see `bench.children`.
Every message tells when it was sent, by the clock that all processes of a machine share.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import roundelay
from roundelay.client.group import Group
from roundelay.core.errors import RoundelayError
from roundelay.node.process import loop_factory

PAUSE_S = 0.02
"""Between two broadcasts of one member."""


class Member:
    """The application of one member."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.delivered: list[tuple[int, int]] = []  # (sent at, delivered here at), the last ones
        self.count = 0
        self.failed = 0  # broadcasts that ended with an error
        self.views: list[str] = []
        self.arrival = asyncio.Event()
        self._tasks = [asyncio.ensure_future(one) for one in (self._read(), self._send())]

    async def _read(self) -> None:
        async for message in self.group:
            self.delivered.append((int(message.data), time.monotonic_ns()))
            del self.delivered[:-5000]
            self.count += 1
            self.arrival.set()
            view = self.group.view
            now = f"{view.version}: {','.join(sorted(view.members))}"
            if not self.views or self.views[-1] != now:
                self.views.append(now)

    async def _send(self) -> None:
        while True:
            try:
                await self.group.broadcast(str(time.monotonic_ns()).encode())
            except RoundelayError:
                self.failed += 1
            await asyncio.sleep(PAUSE_S)

    # -- requests --------------------------------------------------------------------------

    async def ready(self, members: int) -> dict[str, object]:
        """All members are there, and messages flow."""
        await asyncio.wait_for(self.group.ready(members), 60)
        after = time.monotonic_ns()
        return await self.after(after)

    async def after(self, sent: int) -> dict[str, object]:
        """When the first message that was sent after that moment was delivered here."""
        while True:
            for when, arrived in self.delivered:
                if when > sent:
                    return {"at": arrived}
            self.arrival.clear()
            await asyncio.wait_for(self.arrival.wait(), 60)

    async def outage(self, killed: str, at: int) -> dict[str, object]:
        """When the longest silence since `at` was over, once the group goes on without `killed`.

        `next`: when the first message that was sent after `at` was delivered.
        """
        while killed in self.group.view.members:
            await asyncio.sleep(0.005)
        await self.after(time.monotonic_ns())
        times = [at, *(arrived for _, arrived in self.delivered if arrived > at)]
        _, over = max((b - a, b) for a, b in pairwise(times))
        return {"over": over} | {"next": (await self.after(at))["at"]}

    async def report(self) -> dict[str, object]:
        return {"count": self.count, "failed": self.failed, "views": self.views}


async def serve(options: dict[str, Any]) -> None:
    loop = asyncio.get_running_loop()
    requests = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(requests), sys.stdin)
    async with roundelay.join("failover", **options) as group:
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
