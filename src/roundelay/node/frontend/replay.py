"""Replays to an application behind a socket (RPLY, MORE, RPLB, RPLE).

Blocks go out as long as the application has given credit for them; so a reader that pauses stops
its replay, and what waits for it is bounded by the credit it gave (at most 64 blocks of about
256 KiB, and never more than the queue of its connection may hold).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from typing import Final

from roundelay.core.errors import ConfigError, InvariantBroken, RoundelayError
from roundelay.node.node_api import NodeApi
from roundelay.node.recording.transfer import block_of
from roundelay.wire.frontend import Packet
from roundelay.wire.frontend_replay import (
    CREDIT_MAX,
    Ended,
    ReplayRequest,
    block_packet,
    ended_packet,
    read_more,
    read_replay,
    replay_id,
)

SESSIONS_MAX: Final = 4
"""Replays of one connection at a time."""
QUEUE_BYTES: Final = 4 << 20
"""What may wait to be read by the application when another block is made."""
FULL_S: Final = 0.005


class ReplaySessions:
    """The replays of one connection."""

    def __init__(
        self, node: NodeApi, write: Callable[[bytes], None], waiting: Callable[[], int]
    ) -> None:
        self._node = node
        self._write = write
        self._waiting = waiting
        """Bytes that wait to be read by the application."""
        self._credit: dict[int, int] = {}
        self._given: dict[int, asyncio.Event] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}

    def begin(self, packet: Packet) -> None:
        """RPLY.  What cannot be done is said with RPLE; MalformedPdu is for the caller."""
        try:
            request = read_replay(packet)
        except ConfigError as error:
            self._write(ended_packet(packet.group, Ended(replay_id(packet), 0, str(error))))
            return
        why = ""
        if request.id in self._tasks:
            why = f"id = {request.id} is not allowed: one that no other replay of yours has"
        elif len(self._tasks) >= SESSIONS_MAX:
            why = f"{SESSIONS_MAX} replays at a time: wait for one to end, or connect once more"
        if why:
            self._write(ended_packet(packet.group, Ended(request.id, 0, why)))
            return
        self._credit[request.id] = request.blocks
        self._given[request.id] = asyncio.Event()
        loop = asyncio.get_running_loop()
        self._tasks[request.id] = loop.create_task(self._run(packet.group, request))

    def more(self, packet: Packet) -> None:
        """MORE.  Of a replay that has ended it means nothing."""
        number, blocks = read_more(packet)
        task = self._tasks.get(number)
        if task is None:
            return
        if not blocks:
            task.cancel()
        else:
            self._credit[number] = min(CREDIT_MAX, self._credit[number] + blocks)
            self._given[number].set()

    async def _run(self, group: str, request: ReplayRequest) -> None:
        reached: list[int] = []
        ended = Ended(request.id, request.since)
        try:
            async with aclosing(self._node.replay(group, request, reached)) as chunks:
                async for chunk in chunks:
                    await self._room(request.id)
                    block = await asyncio.to_thread(block_of, chunk)
                    self._credit[request.id] -= 1
                    self._write(block_packet(group, request.id, block))
                    ended = Ended(request.id, chunk[-1].end)
            ended = Ended(request.id, max([ended.next, *reached]))
        except asyncio.CancelledError:
            ended = Ended(request.id, ended.next, "ended by the application")
        except InvariantBroken:
            raise
        except RoundelayError as error:
            ended = Ended(request.id, ended.next, str(error))
        finally:
            del self._tasks[request.id], self._credit[request.id], self._given[request.id]
            self._write(ended_packet(group, ended))

    async def _room(self, number: int) -> None:
        """Wait for credit, and for the application to read."""
        while not self._credit[number]:
            self._given[number].clear()
            await self._given[number].wait()
        while self._waiting() > QUEUE_BYTES:
            await asyncio.sleep(FULL_S)

    def end(self) -> None:
        """The application is gone."""
        for task in list(self._tasks.values()):
            task.cancel()

    def __len__(self) -> int:
        return len(self._tasks)
