"""A node in another process, for a program that sends without being in the group, or asks."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from roundelay.client.daemon import Client, Daemon
from roundelay.client.messages import marked
from roundelay.client.remote import CONNECT_S
from roundelay.core.bundle import Bundle
from roundelay.core.errors import ConnectionLost, Indeterminate, QueueFull, Refused
from roundelay.node.node_api import Receipt, Refusal
from roundelay.wire.frontend import DEFAULT

PATIENCE_S: Final = 10.0
"""How long a lost connection is tried to be made again, unless said otherwise."""


class RemoteNode(Client):
    """A node reached over its frontend port.

    Who wants to be in a group calls `roundelay.join(…, node=…)` instead.  When the connection is
    lost it is made again (`client.daemon`); when that fails for `patience_s` seconds,
    ConnectionLost is raised.

    ::

        async with await RemoteNode.connect("127.0.0.1:6678") as node:
            receipt = await (await node.submit("token:orders", b"..."))
            print(await node.ask("members", "token:orders"))
    """

    def __init__(self) -> None:
        self.daemon: Daemon = None  # type: ignore[assignment]  # connect
        self._receipts: dict[int, asyncio.Future[Receipt]] = {}
        self._next_tag = 0
        self._writable: dict[str, asyncio.Event] = {}

    @classmethod
    async def connect(
        cls,
        where: str = DEFAULT,
        *,
        name: str = "",
        timeout_s: float = CONNECT_S,
        patience_s: float = PATIENCE_S,
    ) -> RemoteNode:
        """Connect to `HOST:PORT` or `unix:PATH`; raises NodeUnreachable."""
        node = cls()
        node.daemon = await Daemon.connect(
            where, name=name, patience_s=patience_s, timeout_s=timeout_s
        )
        node.daemon.on_end = node._over
        return node

    async def __aenter__(self) -> RemoteNode:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self.daemon.close()

    # -- sending

    async def submit(
        self, group: str, *messages: bytes, conference: int = 0, kind: int = 0, **how: Any
    ) -> asyncio.Future[Receipt]:
        """Send, and give what becomes its receipt; waits only while there is no room.

        `how`: `to`, `someone`, `recorders` and `unit`, as `NodeApi.send` has them."""
        tag = self._next_tag
        self._next_tag += 1
        bundle = marked(Bundle.of(*messages), conference, kind)
        receipt: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
        receipt.add_done_callback(_seen)
        self._receipts[tag] = receipt
        try:
            while True:
                try:
                    self.daemon.send(self, group, bundle, tag=tag, **how)
                    return receipt
                except QueueFull:
                    room = self._writable.setdefault(group, asyncio.Event())
                    room.clear()
                await room.wait()
        except BaseException:
            self._receipts.pop(tag, None)
            raise

    async def ask(self, what: str, of: str | None = None) -> Any:
        """What the node answers to `groups`, `status`, `members` of a group, `why` of a node; to
        `recovery` and `recover` of a group (`docs/live.md` says when)."""
        return await self.daemon.ask(what, of)

    # -- called back by the daemon

    def receipt(self, receipt: Receipt) -> None:
        waiting = self._receipts.pop(receipt.tag, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(receipt)

    def refused(self, refusal: Refusal) -> None:
        waiting = self._receipts.pop(refusal.tag, None)
        if waiting is not None and not waiting.done():
            error = Indeterminate if refusal.indeterminate else Refused
            waiting.set_exception(error(refusal.reason))

    def writable(self, group: str) -> None:
        event = self._writable.get(group)
        if event is not None:
            event.set()

    def _over(self, _: ConnectionLost) -> None:
        for event in self._writable.values():
            event.set()


def _seen(future: asyncio.Future[Any]) -> None:
    """A failure nobody waits for is nothing that asyncio should complain of."""
    if not future.cancelled():
        future.exception()
