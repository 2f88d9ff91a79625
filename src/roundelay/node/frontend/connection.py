"""One application behind a socket.

A connection parses whatever has arrived, queues it and passes it on in order; messages to everyone
that arrived together go on as one bundle.  When the node has no room for a group (QueueFull), the
connection is not read until there is: what the application sends then waits in its own socket, and
nothing is dropped.

The other way round nothing waits.  Deliveries are gathered for one write per turn of the event
loop; an application that does not read is cut when `queue_bytes_max` are waiting for it, so that
it slows nobody, or when all of them together hold too much (`frontend.memory`).  Before that, or
when it says STOP, it gets the rest from a recorder if there is one, as fast as it reads.

Rules: AR-F1 what is not a packet closes the connection, and is counted by reason; AR-F2 a
connection that ends has left its groups; AR-F3 is the node's part.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, cast

from roundelay.core.bundle import Bundle
from roundelay.core.errors import (
    ConfigError,
    InvariantBroken,
    MalformedPdu,
    NoRecorder,
    QueueFull,
    RoundelayError,
)
from roundelay.core.position import LIVE
from roundelay.node.frontend.packets import (
    CLOSING,
    INDETERMINATE,
    REFUSED_JOIN,
    Gathered,
    fail_packet,
    read_from,
    read_send,
    receipt_packet,
    told_packet,
)
from roundelay.node.frontend.replay import ReplaySessions
from roundelay.node.membership.settings import wishes_of
from roundelay.node.node_api import NO_TAG, Batch, Missed, Receipt, Refusal, Send, Subscriber, View
from roundelay.wire.frontend import PROTOCOL, Address, Packet, Parser, head, json_packet, read_json

if TYPE_CHECKING:
    from roundelay.node.frontend.server import FrontendServer

GROUPS_MAX: Final = 255
"""Groups of one connection; a node cannot declare more either (AR-5)."""
GATHER_BYTES: Final = 64 << 10
GATHER_MESSAGES: Final = 1024
"""Messages that arrived together are passed on together, up to so many."""
TURN: Final = 256
QUESTION: Final = 64
"""Commands other than sends that a connection gets done before others have their turn, and for how
many of them a question counts."""
HEAR_S: Final = 2.0
LOOK_S: Final = 0.02
"""How long after the connection began a recorder may still be on its way to be heard of."""
WRITE_BYTES: Final = 256 << 10
"""More than that is written at once, not at the end of the turn."""
GOODBYE_S: Final = 2.0
"""How long a connection that is being closed may take to read the last words."""
FAREWELL_S: Final = 30.0
"""How long messages of an application that is gone may wait for room."""

WISHES_BYTES: Final = 128 << 10
"""What a connection may ask of groups that it has not joined yet."""

# Reasons to count under, beyond those of the parser.
NOT_READING: Final = "send queue full"
REFUSED: Final = "refused by the node"
NO_ROOM: Final = "gone before there was room"
PROTOCOL_VERSION: Final = "protocol version"
FAULT: Final = "fault of the connection"
TOO_MANY_WISHES: Final = "options of too many groups"


P = ParamSpec("P")


def _contained(
    method: Callable[Concatenate[FrontendConnection, P], None],
) -> Callable[Concatenate[FrontendConnection, P], None]:
    """An error of one connection ends that connection, and nothing else notices."""

    def contained(self: FrontendConnection, /, *args: P.args, **kwargs: P.kwargs) -> None:
        try:
            method(self, *args, **kwargs)
        except Exception as error:
            self.broke(error)

    return contained


class FrontendConnection(Subscriber, asyncio.Protocol):
    """One application behind a socket."""

    def __init__(self, server: FrontendServer) -> None:
        self._server = server
        self._node = server.node
        self._parser = Parser.at_node(server.max_message)
        self._transport: asyncio.Transport = None  # type: ignore[assignment]  # connection_made
        self._queue: deque[Send | Packet | MalformedPdu] = deque()
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._stopped = ""
        """The group without room that keeps us from reading."""
        self._waits_its_turn = False
        self._began = server.loop.time()
        self._unread_since: float | None = None
        """Since when the application has not read what was written."""
        self._ended = False
        """The application gets nothing more; its groups are left."""
        self._is_cut = False
        self._lost = False
        self._replays = ReplaySessions(self._node, self._write, lambda: self.queue_bytes)
        self.extended = False
        self.units = False
        """It wants units as such."""
        self.given_up = False
        """It wants to know who was given up."""
        self._tell_level = False
        self._wishes: dict[str, Packet] = {}
        """What the next `join` of a group asks of it (OPTS)."""
        self.name = ""
        self.peer = ""
        self.groups: set[str] = set()
        self.held: set[str] = set()
        """Groups that the application can take no more of now (STOP)."""

    # -- the socket

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.peer = _peer(self._transport)
        if not self._server.admit(self):
            self._ended = True
            self._transport.abort()

    @_contained
    def data_received(self, data: bytes) -> None:
        if self._ended:
            return  # it is only heard out, so that it can read our last words
        self._parser.feed(data)
        self._parse()
        if self._parser.held_bytes:
            self._server.memory.added(len(data))
        self._pass_on()

    def pause_writing(self) -> None:
        self._unread_since = time.monotonic()

    def resume_writing(self) -> None:
        self._unread_since = None

    def eof_received(self) -> bool:
        """Half a close is a close: AR-F2 must not wait for the other half."""
        self._end()
        self._server.loop.call_later(GOODBYE_S, self.abort)
        return False

    @_contained
    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = True
        if self._queue and not self._ended:
            # It sent, then it went: what it sent still counts, once there is room.
            for group in self.groups:
                self._node.leave(self, group)
            self.groups.clear()
            self._server.loop.call_later(FAREWELL_S, self._give_up)
        else:
            self._end()
            self._server.forget(self)
            self._queue.clear()

    def broke(self, error: Exception) -> None:
        """Something is wrong with this connection."""
        self._server.drop(FAULT, self, f"{type(error).__name__}: {error}")
        self._queue.clear()
        self.abort()
        self._server.loop.call_soon(self._end)  # not from within a call of the node's

    def _give_up(self) -> None:
        if self._queue:
            waiting = sum(len(item.bundle) for item in self._queue if isinstance(item, Send))
            self._server.drop(NO_ROOM, self, f"{waiting} messages for {self._stopped!r}")
            self._queue.clear()
            self._end()
            self._server.forget(self)

    # -- from the application

    def _parse(self) -> None:
        """Queue what has arrived."""
        queue = self._queue
        group, size = "", 0
        messages: list[bytes] = []

        def flush() -> None:
            nonlocal size
            if messages:
                kind = Gathered if len(messages) > 1 else Send
                queue.append(kind(group, Bundle.of(*messages)))
                messages.clear()
                size = 0

        try:
            for packet in self._parser.packets():
                if packet.command == "SNDE":
                    size += len(packet.message)
                    full = size > GATHER_BYTES or len(messages) == GATHER_MESSAGES
                    if messages and (full or packet.group != group):
                        flush()
                        size = len(packet.message)
                    group = packet.group
                    messages.append(packet.message)
                    continue
                flush()
                if packet.command == "HELO":
                    self._hello(packet)  # now: it changes what may follow
                elif packet.command.startswith("SND"):
                    queue.append(read_send(packet, self._server.max_message))
                else:
                    queue.append(packet)
        except MalformedPdu as error:
            flush()
            queue.append(error)
        flush()

    @_contained
    def _pass_on(self) -> None:
        """Carry out what is queued, in order, until the node has no room."""
        queue = self._queue
        turn = TURN
        while queue:
            item = queue[0]
            if isinstance(item, Send):
                try:
                    self._node.send(self, item)
                except QueueFull:
                    return self._stop(item.group)
                except InvariantBroken:
                    raise
                except RoundelayError as error:
                    early = self._server.loop.time() < self._began + HEAR_S
                    if isinstance(error, NoRecorder) and early:
                        return self._take_turns(LOOK_S)
                    queue.popleft()
                    if isinstance(item, Gathered):  # one of them is to blame, not all
                        queue.extendleft(reversed(item.singly()))
                    else:
                        self._fail(item.group, item.tag, 0, str(error))
                else:
                    queue.popleft()
            else:
                if turn <= 0:
                    return self._take_turns()
                queue.popleft()
                try:
                    if isinstance(item, MalformedPdu):
                        raise item
                    turn -= QUESTION if item.command == "ASKQ" else 1
                    self._obey(item)
                except MalformedPdu as error:
                    self._malformed(error)
            if self._ended:
                queue.clear()
        if self._lost:
            self._end()
            self._server.forget(self)
        elif self._stopped or self._waits_its_turn:
            self._go_on()
        return None

    def _take_turns(self, delay_s: float = 0.0) -> None:
        """Let others have the node for a while: some questions take it long to answer."""
        if not self._lost:
            self._transport.pause_reading()
        self._waits_its_turn = True
        self._server.loop.call_later(delay_s, self._pass_on)

    def _obey(self, packet: Packet) -> None:
        group = packet.group
        if packet.command in ("JOIN", "FROM"):
            self._join(packet)
        elif packet.command == "OPTS":
            self._wish(packet)
        elif packet.command == "LEAV":
            self.groups.discard(group)
            self.held.discard(group)
            self._node.leave(self, group)
        elif packet.command == "STOP":
            self.held |= {group} & self.groups
        elif packet.command == "GOON":
            self.held.discard(group)
        elif packet.command == "ASKQ":
            self._answer(packet)
        elif packet.command == "RPLY":
            self._replays.begin(packet)
        else:
            self._replays.more(packet)

    def _join(self, packet: Packet) -> None:
        group = packet.group
        since = read_from(packet) if packet.command == "FROM" else LIVE
        try:
            if len(self.groups) >= GROUPS_MAX and group not in self.groups:
                raise ConfigError("group", repr(group), f"at most {GROUPS_MAX} a connection")
            self.groups.add(group)  # before: a view may come from within the call
            asked = self._wishes.pop(group, None)
            wishes = None if asked is None else wishes_of(group, read_json(asked))
            self._node.join(self, group, since, wishes)
        except (InvariantBroken, MalformedPdu):
            raise
        except RoundelayError as error:
            self.groups.discard(group)
            self._fail(group, NO_TAG, REFUSED_JOIN, str(error))

    def _wish(self, packet: Packet) -> None:
        """Kept as it came: what is made of it may take many times as much."""
        read_json(packet)
        self._wishes[packet.group] = packet
        if sum(len(packet.message) for packet in self._wishes.values()) > WISHES_BYTES:
            raise MalformedPdu(TOO_MANY_WISHES, f"{WISHES_BYTES} bytes before their JOIN")

    def _hello(self, packet: Packet) -> None:
        before, self.extended = self.extended, True  # so that it hears what is wrong with HELO
        wish = read_json(packet)
        name = wish.get("name", "")
        self.name = name[:255] if isinstance(name, str) else ""
        theirs = wish.get("protocol", PROTOCOL)
        if not isinstance(theirs, int) or theirs > PROTOCOL:
            raise MalformedPdu(
                PROTOCOL_VERSION,
                f"you speak {theirs!r}, this node {PROTOCOL}: upgrade it, or say less in HELO",
            )
        self._write(json_packet("HELO", "", self._server.greeting()))
        if wish.get("extended", True):
            self._parser.extend()
            self.units = wish.get("units") is True
            self.given_up = wish.get("given_up") is True
            self._tell_level = wish.get("resilience") is True
        else:
            self.extended = before

    def _answer(self, packet: Packet) -> None:
        """ASKQ: `ask` is what, `of` is about whom, `id` comes back with the answer."""
        query = read_json(packet)
        content: dict[str, object] = {"id": query.get("id")}
        try:
            content["answer"] = self._server.ask(query.get("ask"), query.get("of"))
        except InvariantBroken:
            raise
        except RoundelayError as error:
            content["error"] = str(error)
        self._write(json_packet("ANSW", "", content))

    def _fail(self, group: str, tag: int, flags: int, reason: str) -> None:
        """Say no.  An application that knows only the paper's commands has no ears for it and is
        told by the end of the connection."""
        if self.extended:
            self._write(fail_packet(group, tag, flags, reason))
        else:
            self._server.drop(REFUSED, self, reason)
            self._close()

    def _malformed(self, error: MalformedPdu) -> None:
        """AR-F1."""
        self._server.drop(error.reason, self, str(error))
        if self.extended:
            self._write(fail_packet("", NO_TAG, CLOSING, str(error)))
        self._close()

    # -- back-pressure

    def _stop(self, group: str) -> None:
        if self._stopped == group:
            return
        if self._stopped:
            self._say("GOON", self._stopped)
        elif not self._lost:
            self._transport.pause_reading()  # harmless when repeated
        self._stopped = group
        self._say("STOP", group)

    def _go_on(self) -> None:
        if self._stopped:
            self._say("GOON", self._stopped)
        self._stopped = ""
        self._waits_its_turn = False
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def _say(self, command: str, group: str) -> None:
        if self.extended:
            self._write(head(command, group))

    # -- to the application

    @_contained
    def deliver(self, batch: Batch) -> None:
        most = min(self._server.queue_bytes_max // 2, self._server.memory.share)
        slow = self.queue_bytes > most or batch.group in self.held
        # Rather than be cut soon, it may get the rest from a recorder, as fast as it reads.
        if slow and self.extended and self._node.fell_behind(self, batch.group, batch.seq):
            return
        self._write(self._server.encoded(batch, self.extended, self.units))

    @property
    def full(self) -> bool:
        return self.queue_bytes > self._server.queue_bytes_max // 8

    @_contained
    def receipt(self, receipt: Receipt) -> None:
        self._write(receipt_packet(receipt, self.given_up, self._tell_level))

    @_contained
    def refused(self, refusal: Refusal) -> None:
        flags = INDETERMINATE if refusal.indeterminate else 0
        if refusal.tag == NO_TAG:  # no broadcast: we are in the group no more
            self.groups.discard(refusal.group)
            self.held.discard(refusal.group)
            flags = REFUSED_JOIN
        self._fail(refusal.group, refusal.tag, flags, refusal.reason)

    @_contained
    def viewed(self, view: View) -> None:
        if self.extended:
            self._write(told_packet("VIEW", view))

    def missed(self, missed: Missed) -> None:
        if self.extended:
            self._write(told_packet("MISS", missed))
        if missed.final:
            self._server.loop.call_soon(self._refuse_place, missed.group)

    def _refuse_place(self, group: str) -> None:
        """It asked to begin at a position that there is not."""
        self.groups.discard(group)
        self._node.leave(self, group)
        reason = f"group {group}: there is no such position to begin at"
        self._fail(group, NO_TAG, REFUSED_JOIN, reason)

    def writable(self, group: str) -> None:
        if group == self._stopped:
            # Not from within the node's own call.
            self._server.loop.call_soon(self._pass_on)

    def _write(self, data: bytes) -> None:
        if self._ended or self._lost:
            return
        if not self._out:
            self._server.to_flush(self)
        self._out.append(data)
        self._out_bytes += len(data)
        if self._out_bytes > WRITE_BYTES:
            self.flush()
        if self.queue_bytes > self._server.queue_bytes_max:
            self.cut(NOT_READING, f"{self.queue_bytes} bytes wait to be read")
        else:
            self._server.memory.added(len(data))

    def cut(self, reason: str, detail: str) -> None:
        """End it at once, and give back what it holds."""
        if self._is_cut:
            return  # its transport needs a moment
        self._is_cut = True
        self._server.drop(reason, self, detail)
        self._out.clear()
        self._out_bytes = 0
        self._transport.abort()
        self._end()

    def flush(self) -> None:
        if self._out and not self._lost and not self._transport.is_closing():
            self._transport.write(b"".join(self._out))
        self._out.clear()
        self._out_bytes = 0

    @property
    def queue_bytes(self) -> int:
        """What the application has not read yet, as far as we know."""
        return self._out_bytes + self._transport.get_write_buffer_size()

    @property
    def held_bytes(self) -> int:
        """What the node holds for it: not read yet, and packets that are not complete."""
        # One that is heard out may still have to read what was written.
        return 0 if self._is_cut else self.queue_bytes + self._parser.held_bytes

    def burden(self, now: float) -> tuple[float, int]:
        """How much it is to be blamed for what is held: bytes, and for how long it has not read."""
        held = self.held_bytes
        return held * (now - self._unread_since) if self._unread_since is not None else 0.0, held

    # -- the end

    def _end(self) -> None:
        """AR-F2."""
        if not self._ended:
            self.flush()
            self._ended = True
            self.groups.clear()
            self.held.clear()
            self._replays.end()
            self._parser = Parser.at_node(0)  # the other one's bytes would wait for the collector
            self._node.gone(self)

    def _close(self) -> None:
        """Close, but let the application read what was written."""
        self._end()
        if self._transport.can_write_eof() and not self._transport.is_closing():
            # Closing with unread bytes would destroy our last words on their way (RST).
            self._transport.write_eof()
        self._server.loop.call_later(GOODBYE_S, self.abort)

    def close(self) -> None:
        """The node stops."""
        if self.extended:
            self._write(fail_packet("", NO_TAG, CLOSING, "the node stops"))
        self._queue.clear()
        self._end()
        if self._lost:
            self._server.forget(self)
        else:
            self._transport.close()

    def abort(self) -> None:
        """Unless it has ended by itself."""
        if not self._lost:
            self._transport.abort()

    def status(self) -> dict[str, object]:
        return {
            "peer": self.peer,
            "name": self.name,
            "extended": self.extended,
            "groups": sorted(self.groups),
            "queue_bytes": self.queue_bytes,
            "held_bytes": self.held_bytes,
            "waits_for": self._stopped or None,
            "replays": len(self._replays),
        }


def _peer(transport: asyncio.Transport) -> str:
    name: Any = transport.get_extra_info("peername")
    return str(Address(name[0], name[1])) if isinstance(name, tuple) else "unix"
