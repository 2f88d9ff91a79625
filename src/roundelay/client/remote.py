"""A node in another process, reached over its frontend port.

`RemoteSwitchboard` has the calls of `Switchboard`, so that whatever sits on a node of its own can
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
from collections.abc import AsyncGenerator, Callable, Iterable
from typing import Any, Final, cast

from msgspec import Struct, structs

from roundelay.core.bundle import Bundle
from roundelay.core.errors import (
    ConfigError,
    ConnectionLost,
    MalformedPdu,
    NodeUnreachable,
    PayloadTooLarge,
    QueueFull,
    Refused,
    UsageError,
)
from roundelay.journal.format import Run
from roundelay.node.frontend_missing import read_missed
from roundelay.node.groups import GroupSpec
from roundelay.node.replay import runs_of
from roundelay.node.settings import words_of
from roundelay.node.switchboard import (
    NO_TAG,
    UNIT,
    WHOLE,
    Application,
    Batch,
    Receipt,
    Refusal,
    View,
)
from roundelay.wire.frontend import (
    CLOSING,
    DEFAULT,
    INDETERMINATE,
    MESSAGE_BYTES,
    PROTOCOL,
    REFUSED_JOIN,
    Packet,
    Parser,
    address,
    from_packet,
    head,
    json_packet,
    name_bytes,
    portions,
    read_failure,
    read_json,
    read_received,
    send_packet,
)
from roundelay.wire.frontend_receipt import read_receipt
from roundelay.wire.frontend_replay import (
    Ended,
    Wish,
    marked_packet,
    more_packet,
    read_block,
    read_ended,
    read_marked_received,
    wish_packet,
)

AHEAD_BYTES: Final = 1 << 20
"""What may wait here for the node to read it; beyond that, `send` raises QueueFull."""
CONNECT_S: Final = 5.0
ALIVE: Final = (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 2), ("TCP_KEEPCNT", 3))
"""A connection on which nothing is heard is taken for lost after 5 + 2 · 3 s."""


class _Sent(Struct):
    """A send that waits for its receipt; a large bundle goes in several parts."""

    application: Application
    group: str
    tag: int
    parts: int
    receipt: Receipt | None = None
    refusal: Refusal | None = None
    arrived: int = 0


class RemoteSwitchboard(asyncio.Protocol):
    """The switchboard of another process.  Make one with `connect`.

    Calls happen in the event loop and none of them blocks, as with any switchboard; `ask` alone
    has to wait for its answer.  A group can be joined by one application only: the node takes this
    connection for one application when it picks someone.
    """

    def __init__(self, where: str, lost: Callable[[ConnectionLost], None] | None = None) -> None:
        self.where = where
        self.node = ""
        """The node's name."""
        self.version = ""
        self.max_message = MESSAGE_BYTES
        self.error: ConnectionLost | None = None
        """Set when the connection has ended."""
        self._tell = lost
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport = None  # type: ignore[assignment]  # connection_made
        self._parser = Parser.at_application()
        self._greeted: asyncio.Future[None] = self._loop.create_future()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._last_words = ""
        self._joined: dict[str, Application] = {}
        self._views: dict[str, View] = {}
        self._sent: dict[int, _Sent] = {}
        self._next_tag = 0
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._replays: dict[int, asyncio.Queue[bytes | Ended]] = {}
        self._next_id = 0
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._paused = False
        self._heeds_stop = False
        self._takes_options = False
        self._stopped: set[str] = set()
        self._blocked: dict[tuple[int, str], Application] = {}

    @classmethod
    async def connect(
        cls,
        where: str = DEFAULT,
        *,
        name: str = "",
        lost: Callable[[ConnectionLost], None] | None = None,
        timeout_s: float = CONNECT_S,
    ) -> RemoteSwitchboard:
        """Connect to the node at `where`: `HOST:PORT` or `unix:PATH`.

        `name` is shown in the node's status.  `lost` is called once when the connection ends."""
        target = address(where, "node")
        loop = asyncio.get_running_loop()

        def factory() -> RemoteSwitchboard:
            return cls(where, lost)

        try:
            async with asyncio.timeout(timeout_s):
                if target.path:
                    _, made = await loop.create_unix_connection(factory, target.path)
                else:
                    _, made = await loop.create_connection(factory, target.host, target.port)
                await made._greet(name)
        except (OSError, TimeoutError) as error:
            raise NodeUnreachable(
                f"no node answers at {where} ({_why(error, timeout_s)}): start one with "
                f"`roundelay node --frontend {where} …`, or name another with --node"
            ) from None
        return made

    async def _greet(self, name: str) -> None:
        hello = {"extended": True, "name": name, "protocol": PROTOCOL, "units": True}
        hello |= {"given_up": True, "resilience": True}
        self._transport.write(json_packet("HELO", "", hello))
        try:
            await self._greeted
        except ConnectionLost as error:
            why = self._last_words or "it said nothing"
            raise NodeUnreachable(
                f"what listens at {self.where} closed the connection at once ({why}): it is no "
                "node, or it has all the connections it allows; see its log"
            ) from error
        except asyncio.CancelledError:
            self._transport.abort()
            raise

    # -- the calls of a switchboard

    def join(
        self,
        application: Application,
        group: str,
        since: int | None = None,
        since_time: int = 0,
        history: str = "",
        wishes: GroupSpec | None = None,
    ) -> None:
        self._check()
        name_bytes("group", group)
        options = {} if wishes is None else words_of(wishes)
        if options and not self._takes_options:
            allowed = f"none through the node at {self.where}, whose version does not know them"
            raise ConfigError(next(iter(options)), next(iter(options.values())), allowed)
        other = self._joined.get(group)
        if other is application:
            return
        if other is not None:
            raise UsageError(
                f"group = {group!r} is joined over this connection already: use another connection"
            )
        self._joined[group] = application
        if options:
            self._write(json_packet("OPTS", group, options))
        if since is None:
            self._write(head("JOIN", group))
        else:
            self._write(from_packet(group, since, since_time, history))

    def leave(self, application: Application, group: str) -> None:
        if self._joined.get(group) is application:
            del self._joined[group]
            self._views.pop(group, None)
            if self.error is None:
                self._write(head("LEAV", group))

    def gone(self, application: Application) -> None:
        for group in [group for group, one in self._joined.items() if one is application]:
            self.leave(application, group)
        for tag in [tag for tag, one in self._sent.items() if one.application is application]:
            del self._sent[tag]
        for key in [key for key, one in self._blocked.items() if one is application]:
            del self._blocked[key]

    def send(
        self,
        application: Application,
        group: str,
        bundle: Bundle,
        *,
        tag: int = NO_TAG,
        to: Iterable[str] | None = None,
        someone: bool = False,
        recorders: int = 0,
        unit: bool = False,
    ) -> None:
        self._check()
        name_bytes("group", group)
        largest = max(bundle.sizes, default=0)
        if largest > self.max_message:
            raise PayloadTooLarge(
                f"a message of {largest} bytes: the node at {self.where} takes at most "
                f"{self.max_message}; split it, or start the node with a larger --max-message"
            )
        if self._paused or self._out_bytes >= AHEAD_BYTES or group in self._stopped:
            self._blocked[id(application), group] = application
            raise QueueFull(f"group {group!r}: the node at {self.where} has no room now")
        if not bundle.sizes:
            raise ConfigError("bundle", "empty", "one message or more")
        names = None if to is None else tuple(to)
        parts = [
            (conference, kind, part)
            for conference, kind, run in bundle.by_mark()
            for part in portions(run, self.max_message)
        ]
        if unit and len(parts) > 1:
            raise PayloadTooLarge(
                f"a unit of {len(bundle.data)} bytes: the node at {self.where} takes at most "
                f"{self.max_message}, of one conference and kind; send several"
            )
        waiting = _Sent(application, group, tag, len(parts))
        packets = []
        for conference, kind, part in parts:
            own = NO_TAG
            if tag != NO_TAG:
                own = self._next_tag
                self._next_tag += 1
            if conference or kind or recorders or unit:
                data = marked_packet(
                    group, part, tag=own, conference=conference, kind=kind, recorders=recorders,
                    to=names, unit=unit,
                )  # fmt: skip
            else:
                data = send_packet(group, part, tag=own, to=names, someone=someone)
            packets.append(data)
            if tag != NO_TAG:
                self._sent[own] = waiting
        for data in packets:
            self._write(data)

    async def ask(self, what: str, of: str | None = None) -> Any:
        """`members` of a group, `groups`, `status`, `why` of a node: as the node's switchboard
        answers."""
        self._check()
        number = self._next_id
        self._next_id += 1
        answer: asyncio.Future[Any] = self._loop.create_future()
        self._asked[number] = answer
        self._write(json_packet("ASKQ", "", {"id": number, "ask": what, "of": of}))
        try:
            return await answer
        finally:
            self._asked.pop(number, None)

    async def replay(
        self, group: str, wish: Wish, reached: list[int] | None = None
    ) -> AsyncGenerator[list[Run], None]:
        """What is recorded of the group and wished for, in order.  As much is on its way as the
        wish has blocks; the rest follows as it is read."""
        self._check()
        name_bytes("group", group)
        number = self._next_id
        self._next_id += 1
        blocks: asyncio.Queue[bytes | Ended] = asyncio.Queue()
        self._replays[number] = blocks
        self._write(wish_packet(group, structs.replace(wish, id=number)))
        over = False
        try:
            while True:
                found = await blocks.get()
                if isinstance(found, Ended):
                    over = True
                    self._check()
                    if found.error:
                        raise Refused(f"group {group}: {found.error}")
                    if reached is not None:
                        reached.append(found.next)
                    return
                yield runs_of(found)
                if self.error is None:
                    self._write(more_packet(group, number, 1))
        finally:
            self._replays.pop(number, None)
            if not over and self.error is None:
                self._write(more_packet(group, number, 0))

    def joined(self, group: str) -> bool:
        """False also after the node refused a `join`."""
        return group in self._joined

    def hold(self, group: str, stop: bool) -> None:
        """The application can take no more of the group now, or it can again.  If somebody records
        the group, the node gives it the rest from there meanwhile, as fast as it is read."""
        if self.error is None and self._heeds_stop and group in self._joined:
            self._write(head("STOP" if stop else "GOON", group))

    def pause_reading(self) -> None:
        """Take nothing more from the node for now.  It cuts those who do that for too long."""
        if self.error is None:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self.error is None:
            self._transport.resume_reading()

    async def drain(self) -> None:
        """Wait until everything sent so far is with the operating system or the node."""
        while self.error is None and (self._out or self._transport.get_write_buffer_size()):
            await asyncio.sleep(0.001)

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
        self._parser.feed(data)
        try:
            for packet in self._parser.packets():
                handler = _HANDLERS.get(packet.command)
                if handler is not None:
                    handler(self, packet)
        except MalformedPdu as error:
            self._last_words = f"the other side does not speak the frontend protocol: {error}"
            self._transport.abort()

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._room()

    def connection_lost(self, exc: Exception | None) -> None:
        why = self._last_words or (str(exc) if exc else "the node closed it")
        lost = f"the connection to the node at {self.where} has ended ({why})"
        self.error = error = ConnectionLost(
            f"{lost}: connect and join again; messages delivered meanwhile were missed"
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
        for sent in {id(one): one for one in self._sent.values()}.values():
            refusal = Refusal(sent.group, sent.tag, f"{lost} before it answered", True)
            sent.application.refused(refusal)
        self._sent.clear()
        for group, application in self._joined.items():
            last = self._views.get(group)
            version, members = (last.version, last.members) if last else ("", ())
            state = "broken: the connection to the node has ended"
            application.viewed(View(group, version, members, state))
        self._ended.set_result(None)

    def _check(self) -> None:
        if self.error is not None:
            raise ConnectionLost(str(self.error))

    def _write(self, data: bytes) -> None:
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out.append(data)
        self._out_bytes += len(data)

    def _flush(self) -> None:
        if self._out and not self._transport.is_closing():
            self._transport.write(b"".join(self._out))
        self._out.clear()
        self._out_bytes = 0
        self._room()

    def _room(self) -> None:
        """Tell those who were turned away."""
        if self._paused or not self._blocked:
            return
        ready = [key for key in self._blocked if key[1] not in self._stopped]
        for key in ready:
            application = self._blocked.pop(key, None)
            if application is not None:
                application.writable(key[1])

    # -- what the node says

    def _hello(self, packet: Packet) -> None:
        hello = read_json(packet)
        self.node = str(hello.get("node", ""))
        self.version = str(hello.get("version", ""))
        limit = hello.get("max_message")
        self.max_message = limit if isinstance(limit, int) else MESSAGE_BYTES
        self._heeds_stop = hello.get("stop") is True
        self._takes_options = hello.get("options") is True
        if not self._greeted.done():
            self._greeted.set_result(None)

    def _deliver(self, packet: Packet) -> None:
        application = self._joined.get(packet.group)
        if application is not None:
            found = read_received(packet)
            history = self._history(packet.group)
            application.deliver(
                Batch(
                    packet.group, found.seq, found.sender, found.time, found.bundle,
                    history=history,
                )
            )  # fmt: skip

    def _history(self, group: str) -> str:
        """What is delivered now belongs to the history that the last view named."""
        view = self._views.get(group)
        return "" if view is None else view.history

    def _missed(self, packet: Packet) -> None:
        application = self._joined.get(packet.group)
        if application is not None:
            application.missed(read_missed(packet))

    def _deliver_marked(self, packet: Packet) -> None:
        application = self._joined.get(packet.group)
        if application is not None:
            found = read_marked_received(packet)
            unit = UNIT if packet.command == "RCVU" else WHOLE
            history = self._history(packet.group)
            application.deliver(
                Batch(
                    packet.group, found.seq, found.sender, found.time, found.bundle, unit, history
                )
            )

    def _block(self, packet: Packet) -> None:
        number, block = read_block(packet)
        blocks = self._replays.get(number)
        if blocks is not None:
            blocks.put_nowait(block)

    def _replay_over(self, packet: Packet) -> None:
        ended = read_ended(packet)
        blocks = self._replays.get(ended.id)
        if blocks is not None:
            blocks.put_nowait(ended)

    def _view(self, packet: Packet) -> None:
        application = self._joined.get(packet.group)
        if application is not None:
            found = read_json(packet)
            members = tuple(str(name) for name in found.get("members") or ())
            version, state = str(found.get("version", "")), str(found.get("state", ""))
            history, position = str(found.get("history", "")), found.get("position")
            at = position if type(position) is int else -1
            view = View(packet.group, version, members, state, history, at)
            self._views[packet.group] = view
            application.viewed(view)

    def _receipt(self, packet: Packet) -> None:
        found = read_receipt(packet)
        sent = self._sent.pop(found.tag, None)
        if sent is not None:
            before = sent.receipt or Receipt(sent.group, sent.tag, found.seq, found.time)
            seq = max(before.seq, found.seq)
            lost = tuple(dict.fromkeys((*before.given_up, *found.given_up)))
            level = found.resilience
            sent.receipt = Receipt(sent.group, sent.tag, seq, found.time, lost, level)
            self._arrived(sent)

    def _failure(self, packet: Packet) -> None:
        found = read_failure(packet)
        if found.flags & CLOSING:
            self._last_words = found.reason
        indeterminate = bool(found.flags & INDETERMINATE)
        sent = self._sent.pop(found.tag, None)
        if sent is not None:
            sent.refusal = Refusal(sent.group, sent.tag, found.reason, indeterminate)
            self._arrived(sent)
            return
        application = self._joined.get(packet.group)
        if application is not None:
            if found.flags & REFUSED_JOIN:
                del self._joined[packet.group]
            application.refused(Refusal(packet.group, NO_TAG, found.reason, indeterminate))
            if found.flags & REFUSED_JOIN:
                state = found.reason
                if not state.startswith("failed: "):
                    state = f"broken: {state}"
                application.viewed(View(packet.group, "", (), state))

    def _arrived(self, sent: _Sent) -> None:
        """The fate of one part is known: when that of all is, tell it as one."""
        sent.arrived += 1
        if sent.arrived < sent.parts:
            return
        if sent.refusal is None:
            assert sent.receipt is not None
            sent.application.receipt(sent.receipt)
        elif sent.receipt is None:
            sent.application.refused(sent.refusal)
        else:
            reason = f"only a part was delivered: {sent.refusal.reason}"
            sent.application.refused(Refusal(sent.group, sent.tag, reason, True))

    def _stop(self, packet: Packet) -> None:
        self._stopped.add(packet.group)

    def _go_on(self, packet: Packet) -> None:
        self._stopped.discard(packet.group)
        self._room()

    def _answer(self, packet: Packet) -> None:
        found = read_json(packet)
        number = found.get("id")
        answer = self._asked.get(number) if isinstance(number, int) else None
        if answer is not None and not answer.done():
            if "error" in found:
                answer.set_exception(UsageError(str(found["error"])))
            else:
                answer.set_result(found.get("answer"))


_HANDLERS: Final[dict[str, Callable[[RemoteSwitchboard, Packet], None]]] = {
    "HELO": RemoteSwitchboard._hello,
    "RCVX": RemoteSwitchboard._deliver,
    "RCVC": RemoteSwitchboard._deliver_marked,
    "RCVU": RemoteSwitchboard._deliver_marked,
    "RPLB": RemoteSwitchboard._block,
    "RPLE": RemoteSwitchboard._replay_over,
    "VIEW": RemoteSwitchboard._view,
    "MISS": RemoteSwitchboard._missed,
    "RCPT": RemoteSwitchboard._receipt,
    "FAIL": RemoteSwitchboard._failure,
    "STOP": RemoteSwitchboard._stop,
    "GOON": RemoteSwitchboard._go_on,
    "ANSW": RemoteSwitchboard._answer,
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
