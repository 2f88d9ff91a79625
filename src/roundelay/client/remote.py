"""One connection to a node in another process, driven by asyncio.

A connection that is lost stays lost: messages are missed from then on, and nobody knows what became
of those on their way.  Whoever asked something over it gets ConnectionLost; `client.daemon`, which
has the groups and what is sent to them, makes the next connection.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator, Callable
from typing import TYPE_CHECKING, Any, Final, cast

from roundelay.client.protocol import (
    Answer,
    Block,
    ClientProtocol,
    Hello,
    RequestFailed,
    Room,
    Settled,
)
from roundelay.core.errors import ConnectionLost, MalformedPdu, NodeUnreachable, Refused, UsageError
from roundelay.journal.format import Run
from roundelay.node.node_api import Batch, Missed, View
from roundelay.node.recording.transfer import runs_of
from roundelay.wire.frontend_replay import Ended, ReplayRequest

if TYPE_CHECKING:
    from roundelay.client.daemon import Daemon

AHEAD_BYTES: Final = 1 << 20
"""What may wait here for the node to read it; beyond that, there is no room."""
ALIVE: Final = (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 2), ("TCP_KEEPCNT", 3))
"""A connection on which nothing is heard is taken for lost after 5 + 2 · 3 s."""


class Connection(asyncio.Protocol):
    """One connection of a daemon, from its greeting until it is lost, and what was asked over it.

    All that `protocol` has to send goes out at the end of a turn of the loop, at once.
    """

    def __init__(self, daemon: Daemon) -> None:
        self.protocol = ClientProtocol(daemon.where)
        self.error: ConnectionLost | None = None
        """Set when the connection has ended."""
        self.paused = False
        self.daemon: Daemon = daemon
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport = None  # type: ignore[assignment]  # connection_made
        self._greeted: asyncio.Future[Hello] = self._loop.create_future()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._last_words = ""
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._replays: dict[int, asyncio.Queue[Block | Ended]] = {}
        self._flushing = False

    async def greet(self, name: str) -> Hello:
        """The node's greeting, or NodeUnreachable."""
        self.protocol.hello(name, extended=True, units=True, given_up=True, resilience=True)
        self._flush()
        try:
            return await self._greeted
        except ConnectionLost as error:
            why = self.protocol.closing or self._last_words or "it said nothing"
            raise NodeUnreachable(
                f"what listens at {self.protocol.where} closed the connection at once ({why}): it "
                "is no node, or it has all the connections it allows; see its log"
            ) from error
        except asyncio.CancelledError:
            self._transport.abort()
            raise

    @property
    def full(self) -> bool:
        return self.paused or self.protocol.pending >= AHEAD_BYTES

    async def ask(self, what: str, of: str | None = None) -> Any:
        self._check()
        answer: asyncio.Future[Any] = self._loop.create_future()
        number = self.protocol.ask(what, of)
        self._asked[number] = answer
        self.soon()
        try:
            return await answer
        finally:
            self._asked.pop(number, None)

    async def replay(
        self, group: str, request: ReplayRequest, reached: list[int] | None
    ) -> AsyncGenerator[list[Run], None]:
        """As much is on its way as the request has blocks; the rest follows as it is read."""
        self._check()
        blocks: asyncio.Queue[Block | Ended] = asyncio.Queue()
        number = self.protocol.replay(group, request)
        self._replays[number] = blocks
        self.soon()
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
                self.protocol.more(group, number, 1)
                self.soon()
        finally:
            self._replays.pop(number, None)
            if not over:
                self.protocol.more(group, number, 0)
                self.soon()

    def _check(self) -> None:
        if self.error is not None:
            raise ConnectionLost(str(self.error))

    async def close(self) -> None:
        if self.error is None:
            self._flush()
            self._last_words = self._last_words or "closed by this program"
            self._transport.close()
        await self._ended

    def soon(self) -> None:
        """What waits is sent when this turn of the loop is over, all at once."""
        if not self._flushing and self.error is None:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        data = self.protocol.data_to_send()
        if data and not self._transport.is_closing():
            self._transport.write(data)
        self.daemon.tell_room()

    # -- the socket

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=AHEAD_BYTES)
        _notice_death(self._transport.get_extra_info("socket"))

    def data_received(self, data: bytes) -> None:
        self.protocol.receive(data)
        try:
            handlers = _HANDLERS
            for event in self.protocol.events():
                handlers[type(event)](self, event)
        except MalformedPdu as error:
            self._last_words = f"the other side does not speak the frontend protocol: {error}"
            self._transport.abort()

    def _hello(self, hello: Hello) -> None:
        if not self._greeted.done():
            self._greeted.set_result(hello)

    def _replayed(self, part: Block | Ended) -> None:
        if part.id in self._replays:
            self._replays[part.id].put_nowait(part)

    def _answered(self, answer: Answer) -> None:
        asked = self._asked.get(answer.id)
        if asked is None or asked.done():
            return
        if answer.error is not None:
            asked.set_exception(UsageError(answer.error))
        else:
            asked.set_result(answer.answer)

    def pause_writing(self) -> None:
        self.paused = True

    def resume_writing(self) -> None:
        self.paused = False
        self.daemon.tell_room()

    def connection_lost(self, exc: Exception | None) -> None:
        why = self.protocol.closing or self._last_words
        why = why or (str(exc) if exc else "the node closed it")
        self.error = error = ConnectionLost(
            f"{self.protocol.ended(why)}: connect and join again; messages delivered meanwhile "
            "were missed"
        )
        if not self._greeted.done():
            self._greeted.set_exception(error)
        self.daemon.lost(self, error, why)
        for answer in self._asked.values():
            if not answer.done():
                answer.set_exception(error)
        for number, blocks in self._replays.items():
            blocks.put_nowait(Ended(number, 0, str(error)))
        self._ended.set_result(None)


_HANDLERS: Final[dict[type, Callable[[Connection, Any], None]]] = {
    Hello: Connection._hello,
    Answer: Connection._answered,
    Block: Connection._replayed,
    Ended: Connection._replayed,
    Batch: lambda connection, batch: connection.daemon.client_of(batch.group).deliver(batch),
    View: lambda connection, view: connection.daemon.client_of(view.group).viewed(view),
    Missed: lambda connection, missed: connection.daemon.client_of(missed.group).missed(missed),
    Settled: lambda connection, settled: connection.daemon.tell_fate(settled),
    RequestFailed: lambda connection, failed: connection.daemon.failed(failed),
    Room: lambda connection, room: connection.daemon.tell_room(),
}


def _notice_death(connection: socket.socket) -> None:
    """A machine that is gone, or a line that is cut, closes nothing: ask whether it is there."""
    if connection.family != socket.AF_UNIX:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in ALIVE:
            if hasattr(socket, option):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
