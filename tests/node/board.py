"""The API of one node without a network: local groups, each with a total order.

It keeps what `NodeApi` promises, so that frontends can be tested alone: deliveries and receipts
come later, never from within the call; a group that is `shut` has a bounded queue, raises QueueFull
and calls `writable` when it is opened.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable
from typing import Any

from roundelay.client.daemon import Client
from roundelay.core.bundle import Bundle
from roundelay.core.errors import PayloadTooLarge, QueueFull, UsageError
from roundelay.core.position import LIVE, Since
from roundelay.journal.format import Run
from roundelay.node.frontend.server import FrontendServer
from roundelay.node.groups import GroupSpec
from roundelay.node.node_api import (
    NO_TAG,
    UNIT,
    Batch,
    Missed,
    Receipt,
    Refusal,
    Send,
    Subscriber,
    View,
)
from roundelay.wire.frontend_replay import ReplayRequest


async def until(condition: Callable[[], Any], what: str = "") -> None:
    while not condition():
        await asyncio.sleep(0.005)


class LocalGroup:
    def __init__(self, name: str) -> None:
        self.name = name
        self.seq = 0
        self.joined: list[Subscriber] = []
        self.turn = 0
        self.shut = False
        self.queue: deque[Callable[[], None]] = deque()
        self.waiting: list[Subscriber] = []
        self.kept: deque[Batch] = deque(maxlen=100)


class LocalBoard:
    """A `NodeApi`."""

    def __init__(self, name: str = "solo", queue: int = 4, largest: int = 1 << 26) -> None:
        self.name = name
        self.queue = queue
        self.largest = largest
        self.by_name: dict[str, LocalGroup] = {}
        self.sends: list[tuple[str, int]] = []
        """Group and number of messages of each call of `send` that was taken."""
        self.tags: set[tuple[int, int]] = set()
        self.departed = 0
        self.status_parts: dict[str, Callable[[], object]] = {}

    def group(self, name: str) -> LocalGroup:
        return self.by_name.setdefault(name, LocalGroup(name))

    def join(
        self,
        application: Subscriber,
        group: str,
        since: Since = LIVE,
        wishes: GroupSpec | None = None,
    ) -> None:
        if group.startswith("closed:"):
            raise UsageError(f"group = {group} is not for you: join another")
        found = self.group(group)
        if application not in found.joined:
            found.joined.append(application)
        view = View(group, "1.0", (self.name,), "blocked: shut" if found.shut else "open")
        self._soon(lambda: application.viewed(view))
        for batch in found.kept:
            if 0 <= since.seq <= batch.seq:
                self._soon(lambda batch=batch: application.deliver(batch))  # type: ignore[misc]

    def leave(self, application: Subscriber, group: str) -> None:
        found = self.by_name.get(group)
        if found is not None and application in found.joined:
            found.joined.remove(application)

    def gone(self, application: Subscriber) -> None:
        self.departed += 1
        for group in self.by_name.values():
            self.leave(application, group.name)
        self.tags = {tag for tag in self.tags if tag[0] != id(application)}

    def send(self, application: Subscriber, send: Send) -> None:
        group, bundle, tag = send.group, send.bundle, send.tag
        found = self.group(group)
        if max(bundle.sizes) > self.largest:
            raise PayloadTooLarge(f"a message of {max(bundle.sizes)} bytes, at most {self.largest}")
        if found.shut and len(found.queue) >= self.queue:
            if application not in found.waiting:
                found.waiting.append(application)
            raise QueueFull(f"group {group}: no room")
        self.sends.append((group, len(bundle)))
        if tag != NO_TAG:
            self.tags.add((id(application), tag))

        def commit() -> None:
            self._commit(found, application, send)

        if found.shut:
            found.queue.append(commit)
        else:
            self._soon(commit)

    def _commit(self, group: LocalGroup, application: Subscriber, send: Send) -> None:
        bundle, tag, to, someone = send.bundle, send.tag, send.to, send.someone
        ordered = group.name.startswith(("token:", "to:"))
        seq = group.seq if ordered else -1
        group.seq += len(bundle)
        now = time.time_ns()
        receivers = list(group.joined)
        if someone and receivers:
            group.turn += 1
            receivers = [receivers[group.turn % len(receivers)]]
        elif to is not None and self.name not in to:
            receivers = []
        batch = Batch(group.name, seq, self.name, now, bundle)
        if send.unit:
            batch = Batch(group.name, seq + len(bundle) - 1, self.name, now, bundle, UNIT)
        if ordered and not someone:
            group.kept.append(batch)
        for receiver in receivers:
            receiver.deliver(batch)
        if (id(application), tag) in self.tags:
            self.tags.discard((id(application), tag))
            if b"doubt" in bundle.data:
                application.refused(Refusal(group.name, tag, "no majority", True))
            else:
                last = seq + len(bundle) - 1 if seq >= 0 else -1
                lost = ("bob", "cat") if b"lost on two" in bundle.data else ()
                application.receipt(Receipt(group.name, tag, last, now, lost))

    def open(self, name: str) -> None:
        """Let a group that is `shut` go on."""
        group = self.group(name)
        group.shut = False
        while group.queue:
            group.queue.popleft()()
        waiting, group.waiting = group.waiting, []
        for application in waiting:
            application.writable(name)

    def fell_behind(self, subscriber: Subscriber, group: str, since: int) -> bool:
        return False

    def hold(self, group: str, stop: bool) -> None: ...

    async def replay(
        self, group: str, request: ReplayRequest, reached: list[int] | None = None
    ) -> AsyncGenerator[list[Run], None]:
        raise UsageError("this node has no recorders")
        yield []

    def recover(self, group: str, *, do: bool = True) -> dict[str, object]:
        raise UsageError("this node recovers no groups")

    def recorded(self, group: str) -> list[dict[str, object]]:
        return []

    def members(self, group: str) -> dict[str, object]:
        if group not in self.by_name:
            raise UsageError(f"group = {group} is not known here: see `roundelay groups`")
        return {"group": group, "members": [{"name": self.name, "alive": True}], "state": "open"}

    def groups(self) -> list[dict[str, object]]:
        return [
            {"group": one.name, "service": "total", "applications": len(one.joined)}
            for one in self.by_name.values()
        ]

    def status(self) -> dict[str, object]:
        return {"node": self.name} | {key: part() for key, part in self.status_parts.items()}

    def why(self, node: str) -> dict[str, object]:
        if node != self.name:
            raise UsageError(f"node = {node} was never heard of here")
        return {"node": node, "alive": True, "because": "it is this node"}

    @staticmethod
    def _soon(call: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_soon(call)


class Listener(Client):
    """An application that remembers everything."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.receipts: list[Receipt] = []
        self.refusals: list[Refusal] = []
        self.views: list[View] = []
        self.room: list[str] = []
        self.misses: list[Missed] = []
        self.ends: list[str] = []

    def cut_off(self, group: str, reason: str) -> None:
        self.ends.append(reason)

    def deliver(self, batch: Batch) -> None:
        self.batches.append(batch)

    def receipt(self, receipt: Receipt) -> None:
        self.receipts.append(receipt)

    def refused(self, refusal: Refusal) -> None:
        self.refusals.append(refusal)

    def viewed(self, view: View) -> None:
        self.views.append(view)

    def writable(self, group: str) -> None:
        self.room.append(group)

    def missed(self, missed: Missed) -> None:
        self.misses.append(missed)

    @property
    def messages(self) -> list[bytes]:
        return [message for batch in self.batches for message in batch.bundle]


class NodeThread:
    """A node without a network in a thread: its frontends, its board, one that listens."""

    def __init__(self, *where: str) -> None:
        self.board = LocalBoard("solo")
        self.ear = Listener()
        self.where = ""
        self.loop: asyncio.AbstractEventLoop
        self.frontends = FrontendServer(self.board, where or ("127.0.0.1:0",), name="solo")
        self.board.status_parts["frontends"] = self.frontends.status
        self._ready = threading.Event()
        self._stop: asyncio.Event
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()))

    async def _main(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        await self.frontends.start()
        self.where = self.frontends.addresses[0]
        self._ready.set()
        await self._stop.wait()
        await self.frontends.close()

    def start(self) -> None:
        self._thread.start()
        assert self._ready.wait(30)

    def stop(self) -> None:
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(30)

    def join(self, group: str) -> None:
        self.do(lambda: self.board.join(self.ear, group))

    def say(self, group: str, *messages: bytes) -> None:
        self.do(lambda: self.board.send(self.ear, Send(group, Bundle.of(*messages))))

    def do(self, call: Callable[[], None]) -> None:
        """Call it in the thread, and wait until that is done."""
        done = threading.Event()

        def call_and_say() -> None:
            call()
            done.set()

        self.loop.call_soon_threadsafe(call_and_say)
        assert done.wait(30)

    def listeners(self, group: str) -> int:
        return len(self.board.group(group).joined)
