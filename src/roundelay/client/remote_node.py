"""A node in another process, for a program that waits where a switchboard would call back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any, Final, cast

from msgspec import Struct

from roundelay.client.contiguity import RAISE, Contiguity
from roundelay.client.daemon import Daemon
from roundelay.client.inbox import BatchReader, Inbox, Reader
from roundelay.client.messages import cut, marked
from roundelay.client.remote import CONNECT_S
from roundelay.client.since import Since
from roundelay.core.bundle import Bundle
from roundelay.core.errors import (
    ConnectionLost,
    Indeterminate,
    QueueFull,
    Refused,
    RoundelayError,
)
from roundelay.core.position import Position
from roundelay.node.switchboard import NO_TAG, WHOLE, Batch, Missed, Receipt, Refusal, View
from roundelay.wire.frontend import DEFAULT

HOLD_BYTES: Final = 4 << 20
"""What may wait here for the application to take it; beyond that, the node is not read."""
PATIENCE_S: Final = 10.0
"""How long a lost connection is tried to be made again, unless said otherwise."""


class Message(Struct, frozen=True, gc=False):
    """One message as an application sees it."""

    group: str
    seq: int
    """Position in the group's total order; -1 where the service has none."""
    sender: str
    time: int
    data: bytes
    unit: str = WHOLE
    """`start`, `middle` or `end` of a unit; `whole`: it is no part of one."""


class RemoteNode:
    """A node reached over its frontend port, for a program that waits for things.

    When the connection is lost it is made again, and reading goes on at the position that comes
    next (`client.daemon`); when that fails for `patience_s` seconds, ConnectionLost is raised.

    ::

        async with await RemoteNode.connect("127.0.0.1:6678") as node:
            await node.join("token:orders")
            receipt = await node.broadcast("token:orders", b"one", b"two")
            async for message in node:
                print(message.seq, message.sender, message.data)
    """

    def __init__(self) -> None:
        self.views: dict[str, View] = {}
        """The last view of each group joined."""
        self._board: Daemon = None  # type: ignore[assignment]  # connect
        self._places: dict[str, Contiguity] = {}
        self._inbox: Inbox[Message] = Inbox(_cut)
        self._inbox.on_room = self._taken
        self._full = False
        self._joins: dict[str, asyncio.Future[View]] = {}
        self._receipts: dict[int, asyncio.Future[Receipt]] = {}
        self._next_tag = 0
        self._writable: dict[str, asyncio.Event] = {}
        self._doubts: dict[str, str] = {}
        """Why nobody knows what became of what was sent to a group without a receipt."""

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
        node._board = await Daemon.connect(
            where, name=name, patience_s=patience_s, timeout_s=timeout_s
        )
        node._board.on_end = node._over
        return node

    async def __aenter__(self) -> RemoteNode:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._board.close()

    @property
    def switchboard(self) -> Daemon:
        return self._board

    # -- groups

    async def join(
        self, group: str, since: int | None = None, since_time: int = 0, history: str = "",
        missing: str = RAISE,
    ) -> View:  # fmt: skip
        """Join, and wait for the node to say who is there.  `since`: begin at that position of
        `history` (empty: of whichever there is), as far as members or a recorder have what is
        there; `since_time`: not before that (ns since 1970).  `missing`: "raise" MissingMessages
        in place of what nobody has, or "skip" it."""
        start = None if since is None or since_time else Position(history, since)
        if group not in self._places:
            self._places[group] = Contiguity(group, start, missing, since_time > 0)
        self._board.join(self, group, Since(-1 if since is None else since, since_time, history))
        if group in self.views:
            return self.views[group]
        waiting = self._joins.get(group)
        if waiting is None:
            waiting = self._joins[group] = asyncio.get_running_loop().create_future()
            waiting.add_done_callback(_seen)
        return await asyncio.shield(waiting)

    def leave(self, group: str) -> None:
        self._board.leave(self, group)
        self.views.pop(group, None)
        self._places.pop(group, None)

    def skipped(self, group: str) -> int:
        """With `missing="skip"`: how many messages of the group nobody had any more."""
        place = self._places.get(group)
        return 0 if place is None else place.skipped

    # -- sending

    async def send_everyone(self, group: str, *messages: bytes) -> None:
        """Send without a receipt; waits while there is no room.

        After the connection broke, the next call raises Indeterminate, once, and sends nothing:
        nobody knows what became of what was sent before."""
        if group in self._doubts:
            raise Indeterminate(f"earlier messages may be delivered or not: "
                                f"{self._doubts.pop(group)}")  # fmt: skip
        await self._send(group, Bundle.of(*messages), NO_TAG, None, False)

    async def submit(
        self,
        group: str,
        *messages: bytes,
        to: Iterable[str] | None = None,
        someone: bool = False,
        conference: int = 0,
        kind: int = 0,
        recorders: int = 0,
        unit: bool = False,
    ) -> asyncio.Future[Receipt]:
        """Send, and give what becomes its receipt; waits only while there is no room.

        `recorders`: the receipt waits until so many have synced it.  `unit`: the messages take
        effect together (services journal and wide)."""
        tag = self._next_tag
        self._next_tag += 1
        receipt: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
        receipt.add_done_callback(_seen)
        self._receipts[tag] = receipt
        try:
            bundle = marked(Bundle.of(*messages), conference, kind)
            await self._send(group, bundle, tag, to, someone, recorders, unit)
        except BaseException:
            self._receipts.pop(tag, None)
            raise
        return receipt

    async def broadcast(self, group: str, *messages: bytes) -> Receipt:
        """Send to everyone and wait for the receipt.  Raises Refused or Indeterminate."""
        return await (await self.submit(group, *messages))

    async def send_someone(self, group: str, message: bytes) -> Receipt:
        """Send to exactly one application of one node."""
        return await (await self.submit(group, message, someone=True))

    async def send(self, group: str, *messages: bytes, to: Iterable[str]) -> Receipt:
        """Send to the nodes named."""
        return await (await self.submit(group, *messages, to=to))

    async def _send(
        self, group: str, bundle: Bundle, tag: int, to: Iterable[str] | None, someone: bool,
        recorders: int = 0, unit: bool = False,
    ) -> None:  # fmt: skip
        names = None if to is None else tuple(to)
        while True:
            try:
                return self._board.send(
                    self, group, bundle, tag=tag, to=names, someone=someone, recorders=recorders,
                    unit=unit,
                )  # fmt: skip
            except QueueFull:
                event = self._writable.setdefault(group, asyncio.Event())
                event.clear()
            await event.wait()

    # -- receiving

    def batches(self) -> AsyncIterator[Batch]:
        """Everything of all groups joined, as it arrived; raises ConnectionLost at the end, and
        Refused where one of the groups has failed at the node.

        What a reader does not take stays for the next one."""
        return BatchReader(self._inbox)

    def __aiter__(self) -> AsyncIterator[Message]:
        return Reader(self._inbox)

    def _taken(self) -> None:
        if self._full and self._inbox.bytes <= HOLD_BYTES:
            self._full = False
            self._board.read(True)

    # -- questions

    async def members(self, group: str) -> dict[str, Any]:
        return cast("dict[str, Any]", await self._board.ask("members", group))

    async def recorders(self, group: str) -> list[dict[str, Any]]:
        return cast("list[dict[str, Any]]", await self._board.ask("recorders", group))

    async def recover(self, group: str, *, do: bool = True) -> dict[str, Any]:
        """Go on with a group from what this node has, in a new history; with `do` false, say what
        that would mean.  `docs/live.md` says when."""
        question = "recover" if do else "recovery"
        return cast("dict[str, Any]", await self._board.ask(question, group))

    async def groups(self) -> list[dict[str, Any]]:
        return cast("list[dict[str, Any]]", await self._board.ask("groups"))

    async def status(self) -> dict[str, Any]:
        return cast("dict[str, Any]", await self._board.ask("status"))

    async def why(self, node: str) -> dict[str, Any]:
        return cast("dict[str, Any]", await self._board.ask("why", node))

    # -- called back by the switchboard

    def deliver(self, batch: Batch) -> None:
        place = self._places.get(batch.group)
        error, new = (None, batch) if place is None else place.next_of(batch)
        if error is not None:
            self._inbox.put(error)
        if new is None:
            return
        self._inbox.put(new)
        if self._inbox.bytes > HOLD_BYTES and not self._full:
            self._full = True
            self._board.read(False)

    def receipt(self, receipt: Receipt) -> None:
        waiting = self._receipts.pop(receipt.tag, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(receipt)

    def refused(self, refusal: Refusal) -> None:
        error: RoundelayError = Refused(refusal.reason)
        if refusal.indeterminate:
            error = Indeterminate(refusal.reason)
        waiting: asyncio.Future[Any] | None = self._receipts.pop(refusal.tag, None)
        if refusal.tag == NO_TAG and not self._board.joined(refusal.group):
            waiting = self._joins.pop(refusal.group, None)
            if waiting is None:  # it was in, and is no more
                self._inbox.put(error)
        if waiting is not None and not waiting.done():
            waiting.set_exception(error)

    def viewed(self, view: View) -> None:
        if self._board.joined(view.group):
            self.views[view.group] = view
            if view.group in self._places:
                self._places[view.group].viewed(view)
        if not self._board.connected:
            return  # who waits to be let in hears of it over the next connection
        waiting = self._joins.pop(view.group, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(view)

    def missed(self, missed: Missed) -> None:
        place = self._places.get(missed.group)
        error = None if place is None else place.missed(missed)
        if error is not None:
            self._inbox.put(error)

    def writable(self, group: str) -> None:
        event = self._writable.get(group)
        if event is not None:
            event.set()

    # -- called by the daemon (client.daemon.Client)

    def goes_on(self, group: str, began: Since) -> Since | None:
        place = self._places.get(group)
        return began if place is None else place.goes_on(began)

    def returned(self, group: str) -> None:
        if self._full:
            self._board.read(False)

    def in_doubt(self, group: str, reason: str) -> None:
        self._doubts[group] = reason

    def cut_off(self, group: str, reason: str) -> None:
        """One of several groups, perhaps: the others go on behind the error."""
        error = ConnectionLost(f"group {group}: {reason}")
        waiting = self._joins.pop(group, None)
        if waiting is None:
            self._inbox.put(error)
        elif not waiting.done():
            waiting.set_exception(error)

    def _over(self, error: ConnectionLost) -> None:
        self._inbox.close(ConnectionLost(str(error)))
        for event in self._writable.values():
            event.set()
        for waiting in self._joins.values():
            if not waiting.done():
                waiting.set_exception(error)
        self._joins.clear()


def _cut(batch: Batch) -> list[Message]:
    return [
        Message(batch.group, -1 if one.seq is None else one.seq, batch.sender, batch.time,
                one.data, one.unit)
        for one in cut(batch)
    ]  # fmt: skip


def _seen(future: asyncio.Future[Any]) -> None:
    """A failure nobody waits for is nothing that asyncio should complain of."""
    if not future.cancelled():
        future.exception()
