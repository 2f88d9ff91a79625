"""A node in another process, reached over its frontend port.

`RemoteNodeApi` has the calls of `NodeApi`, so that whatever sits on a node of its own can
sit on another's too.

A connection that is lost stays lost: messages are missed from then on, and nobody knows what became
of those on their way; so every call raises ConnectionLost, everything without a receipt is refused
as indeterminate, and whoever wants to go on connects and joins again.  `client.daemon` does that
for a group.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncGenerator, Callable
from typing import Any, Final, cast

from roundelay.client.protocol import (
    Answer,
    Block,
    ClientProtocol,
    Hello,
    RequestFailed,
    Room,
    Settled,
)
from roundelay.core.bundle import Bundle
from roundelay.core.errors import (
    ConnectionLost,
    MalformedPdu,
    NodeUnreachable,
    QueueFull,
    Refused,
    UsageError,
)
from roundelay.journal.format import Run
from roundelay.node.groups import GroupSpec
from roundelay.node.membership.settings import words_of
from roundelay.node.node_api import Batch, Missed, Receipt, Subscriber, View
from roundelay.node.recording.transfer import runs_of
from roundelay.wire.frontend import DEFAULT, address
from roundelay.wire.frontend_replay import Ended, ReplayRequest

AHEAD_BYTES: Final = 1 << 20
"""What may wait here for the node to read it; beyond that, `send` raises QueueFull."""
CONNECT_S: Final = 5.0
ALIVE: Final = (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 2), ("TCP_KEEPCNT", 3))
"""A connection on which nothing is heard is taken for lost after 5 + 2 · 3 s."""


class RemoteNodeApi(asyncio.Protocol):
    """The node of another process.  Make one with `connect`.

    Calls happen in the event loop and none of them blocks, as with any `NodeApi`; `ask` alone
    has to wait for its answer.  A group can be joined by one application only: the node takes this
    connection for one application when it picks someone.
    """

    def __init__(self, where: str, lost: Callable[[ConnectionLost], None] | None = None) -> None:
        self.where = where
        self.node = ""
        """The node's name."""
        self.error: ConnectionLost | None = None
        """Set when the connection has ended."""
        self._tell = lost
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport = None  # type: ignore[assignment]  # connection_made
        self._protocol = ClientProtocol(where)
        self._greeted: asyncio.Future[None] = self._loop.create_future()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._last_words = ""
        self._joined: dict[str, Subscriber] = {}
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._replays: dict[int, asyncio.Queue[Block | Ended]] = {}
        self._flushing = False
        self._paused = False
        self._blocked: dict[tuple[int, str], Subscriber] = {}

    @classmethod
    async def connect(
        cls,
        where: str = DEFAULT,
        *,
        name: str = "",
        lost: Callable[[ConnectionLost], None] | None = None,
        timeout_s: float = CONNECT_S,
    ) -> RemoteNodeApi:
        """Connect to the node at `where`: `HOST:PORT` or `unix:PATH`.

        `name` is shown in the node's status.  `lost` is called once when the connection ends."""
        target = address(where, "node")
        loop = asyncio.get_running_loop()

        def factory() -> RemoteNodeApi:
            return cls(where, lost)

        try:
            async with asyncio.timeout(timeout_s):
                if target.path:
                    _, api = await loop.create_unix_connection(factory, target.path)
                else:
                    _, api = await loop.create_connection(factory, target.host, target.port)
                await api._greet(name)
        except (OSError, TimeoutError) as error:
            raise NodeUnreachable(
                f"no node answers at {where} ({_why(error, timeout_s)}): start one with "
                f"`roundelay node --frontend {where} …`, or name another with --node"
            ) from None
        return api

    async def _greet(self, name: str) -> None:
        self._protocol.hello(name, extended=True, units=True, given_up=True, resilience=True)
        self._flush()
        try:
            await self._greeted
        except ConnectionLost as error:
            why = self._protocol.closing or self._last_words or "it said nothing"
            raise NodeUnreachable(
                f"what listens at {self.where} closed the connection at once ({why}): it is no "
                "node, or it has all the connections it allows; see its log"
            ) from error
        except asyncio.CancelledError:
            self._transport.abort()
            raise

    @property
    def max_message(self) -> int:
        """What the node takes at most."""
        return self._protocol.max_message

    # -- the calls of a node API

    def join(
        self,
        application: Subscriber,
        group: str,
        since: int | None = None,
        since_time: int = 0,
        history: str = "",
        wishes: GroupSpec | None = None,
    ) -> None:
        self._check()
        other = self._joined.get(group)
        if other is application:
            return
        if other is not None:
            raise UsageError(
                f"group = {group!r} is joined over this connection already: use another connection"
            )
        options = {} if wishes is None else words_of(wishes)
        self._protocol.join(group, since, since_time, history, options)
        self._joined[group] = application
        self._soon()

    def leave(self, application: Subscriber, group: str) -> None:
        if self._joined.get(group) is application:
            del self._joined[group]
            self._protocol.leave(group)
            self._soon()

    def gone(self, application: Subscriber) -> None:
        for group in list(self._joined):
            self.leave(application, group)
        self._protocol.forget(application)
        for key in [key for key, subscriber in self._blocked.items() if subscriber is application]:
            del self._blocked[key]

    def send(
        self,
        application: Subscriber,
        group: str,
        bundle: Bundle,
        **how: Any,
    ) -> None:
        """`how`: as `NodeApi.send` has it."""
        self._check()
        protocol = self._protocol
        if self._paused or protocol.pending >= AHEAD_BYTES or group in protocol.stopped:
            protocol.check_size(bundle)  # what is never taken need not wait
            self._blocked[id(application), group] = application
            raise QueueFull(f"group {group!r}: the node at {self.where} has no room now")
        protocol.send(group, bundle, owner=application, **how)
        self._soon()

    async def ask(self, what: str, of: str | None = None) -> Any:
        """`members` of a group, `groups`, `status`, `why` of a node: as the node itself
        answers."""
        self._check()
        answer: asyncio.Future[Any] = self._loop.create_future()
        number = self._protocol.ask(what, of)
        self._asked[number] = answer
        self._soon()
        try:
            return await answer
        finally:
            self._asked.pop(number, None)

    async def replay(
        self, group: str, request: ReplayRequest, reached: list[int] | None = None
    ) -> AsyncGenerator[list[Run], None]:
        """What is recorded of the group and asked for, in order.  As much is on its way as the
        request has blocks; the rest follows as it is read."""
        self._check()
        blocks: asyncio.Queue[Block | Ended] = asyncio.Queue()
        number = self._protocol.replay(group, request)
        self._replays[number] = blocks
        self._soon()
        over = False
        try:
            while True:
                part = await blocks.get()
                if isinstance(part, Ended):
                    over = True
                    self._check()
                    if part.error:
                        raise Refused(f"group {group}: {part.error}")
                    if reached is not None:
                        reached.append(part.next)
                    return
                yield runs_of(part.data)
                self._protocol.more(group, number, 1)
                self._soon()
        finally:
            self._replays.pop(number, None)
            if not over:
                self._protocol.more(group, number, 0)
                self._soon()

    def joined(self, group: str) -> bool:
        """False also after the node refused a `join`."""
        return group in self._joined

    def hold(self, group: str, stop: bool) -> None:
        """The application can take no more of the group now, or it can again.  If somebody records
        the group, the node gives it the rest from there meanwhile, as fast as it is read."""
        self._protocol.hold(group, stop)
        self._soon()

    async def close(self) -> None:
        """Leave everything and end the connection."""
        if self.error is None:
            self._flush()
            self._last_words = self._last_words or "closed by this program"
            self._transport.close()
        await self._ended

    # -- the socket

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=AHEAD_BYTES)
        _notice_death(self._transport.get_extra_info("socket"))

    def data_received(self, data: bytes) -> None:
        self._protocol.receive(data)
        try:
            handlers = _HANDLERS
            for event in self._protocol.events():
                handlers[type(event)](self, event)
        except MalformedPdu as error:
            self._last_words = f"the other side does not speak the frontend protocol: {error}"
            self._transport.abort()

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._room()

    def connection_lost(self, exc: Exception | None) -> None:
        why = self._protocol.closing or self._last_words
        why = why or (str(exc) if exc else "the node closed it")
        self.error = error = ConnectionLost(
            f"{self._protocol.ended(why)}: connect and join again; messages delivered meanwhile "
            "were missed"
        )
        if not self._greeted.done():
            self._greeted.set_exception(error)
        if self._tell is not None:
            self._tell(error)
        for answer in self._asked.values():
            if not answer.done():
                answer.set_exception(error)
        for number, blocks in self._replays.items():
            blocks.put_nowait(Ended(number, 0, str(error)))
        for settled in self._protocol.lost(why):
            self._settled(settled)
        for group, application in self._joined.items():
            last = self._protocol.last_view(group)
            state = "broken: the connection to the node has ended"
            application.viewed(View(group, last.version, last.members, state))
        self._ended.set_result(None)

    def _check(self) -> None:
        if self.error is not None:
            raise ConnectionLost(str(self.error))

    def _soon(self) -> None:
        """What waits is sent when this turn of the loop is over, all at once."""
        if not self._flushing and self.error is None:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        data = self._protocol.data_to_send()
        if data and not self._transport.is_closing():
            self._transport.write(data)
        self._room()

    def _room(self) -> None:
        """Tell those who were turned away."""
        if self._paused or not self._blocked:
            return
        ready = [key for key in self._blocked if key[1] not in self._protocol.stopped]
        for key in ready:
            application = self._blocked.pop(key, None)
            if application is not None:
                application.writable(key[1])

    # -- what the node says

    def _hello(self, hello: Hello) -> None:
        self.node = hello.node
        if not self._greeted.done():
            self._greeted.set_result(None)

    def _settled(self, settled: Settled) -> None:
        if isinstance(settled.fate, Receipt):
            settled.owner.receipt(settled.fate)
        else:
            settled.owner.refused(settled.fate)

    def _failed(self, failed: RequestFailed) -> None:
        group, reason = failed.refusal.group, failed.refusal.reason
        application = self._joined.get(group)
        if application is None:
            return
        if failed.out:
            del self._joined[group]
        application.refused(failed.refusal)
        if failed.out:
            state = reason if reason.startswith("failed: ") else f"broken: {reason}"
            application.viewed(View(group, "", (), state))

    def _replayed(self, part: Block | Ended) -> None:
        blocks = self._replays.get(part.id)
        if blocks is not None:
            blocks.put_nowait(part)

    def _answered(self, answer: Answer) -> None:
        asked = self._asked.get(answer.id)
        if asked is None or asked.done():
            return
        if answer.error is not None:
            asked.set_exception(UsageError(answer.error))
        else:
            asked.set_result(answer.answer)


_HANDLERS: Final[dict[type, Callable[[RemoteNodeApi, Any], None]]] = {
    Hello: RemoteNodeApi._hello,
    Batch: lambda api, batch: api._joined[batch.group].deliver(batch),
    View: lambda api, view: api._joined[view.group].viewed(view),
    Missed: lambda api, missed: api._joined[missed.group].missed(missed),
    Settled: RemoteNodeApi._settled,
    RequestFailed: RemoteNodeApi._failed,
    Answer: RemoteNodeApi._answered,
    Block: RemoteNodeApi._replayed,
    Ended: RemoteNodeApi._replayed,
    Room: lambda api, room: api._room(),
}


def _notice_death(connection: socket.socket) -> None:
    """A machine that is gone, or a line that is cut, closes nothing: ask whether it is there."""
    if connection.family != socket.AF_UNIX:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in ALIVE:
            if hasattr(socket, option):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def _why(error: OSError, timeout_s: float) -> str:
    if isinstance(error, TimeoutError) and not error.errno:
        return f"nothing heard for {timeout_s:g} s"
    if isinstance(error, socket.gaierror) or not error.errno:
        return error.strerror or str(error)
    return os.strerror(error.errno)
