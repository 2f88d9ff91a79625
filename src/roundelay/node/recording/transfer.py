"""Replay between nodes: a recorder streams stretches of its journal to whoever may have them.

It goes over a TCP connection to the address the node has on the medium, not over the medium.  A
replay is long and to one receiver only: TCP paces it, the group's own datagrams keep their sockets
and buffers to themselves, and credit bounds what waits on both sides.  Each frame is a length and
a body; the body is sealed under the key of the medium wherever datagrams are, with a fresh boot id
a connection, so who may not read datagrams may not read history either.  The server begins with
random bytes that the request must repeat: a recorded request opens nothing.

A member serves the same way what it has delivered lately and keeps in memory
(`node.recording.memory`).

A request selects by position, time, sender, conference and kind, in any combination (GR-17); the
answer is blocks of a journal and an end that says how far it goes::

    u32 length, then   0x30 HELLO     16 random bytes
                       0x31 REQUEST   msgpack of `Request`
                       0x32 CREDIT    u32: that many more blocks may come
                       0x33 BLOCK     a block, as in a segment (`journal.format`)
                       0x34 END       msgpack of `End`
"""

from __future__ import annotations

import asyncio
import os
import struct
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from typing import Any, Final

import msgspec
from msgspec import Struct, structs

from roundelay.core.errors import GroupTrouble, MalformedPdu
from roundelay.core.selection import POSITION_MAX, Selection
from roundelay.journal.format import (
    Run,
    check_block,
    decode_block,
    decode_block_head,
    encode_block,
    gathered,
)
from roundelay.journal.reader import Reader
from roundelay.node.recording.memory import Memory
from roundelay.wire.frontend_replay import LISTED_MAX, RANGES, SETS
from roundelay.wire.seal import Seal

HELLO: Final = 0x30
REQUEST: Final = 0x31
CREDIT: Final = 0x32
BLOCK: Final = 0x33
END: Final = 0x34
LENGTH: Final = struct.Struct(">I")
FRAME_BYTES_MAX: Final = 4 << 20
FRAME_BYTES: Final = 256 << 10
"""About what one block carries."""
CREDIT_FRAMES: Final = 8
SESSIONS_MAX: Final = 32
NO_JOURNAL: Final = bytes(16)
ANSWER_S: Final = 5.0
"""How long a recorder may take to answer, and to send the next block."""
IDLE_S: Final = 120.0
"""How long whoever replays may take to want more."""


class ReplayFailed(GroupTrouble):
    """A recorder did not give what it was asked for, or there is none."""


class Request(Struct, frozen=True, array_like=True):
    """What somebody wants of a group."""

    nonce: bytes
    group: str
    since: int = 0
    until: int = POSITION_MAX
    since_time: int = 0
    until_time: int = POSITION_MAX
    senders: frozenset[str] | None = None
    conferences: frozenset[int] | None = None
    kinds: frozenset[int] | None = None
    memory: str = ""
    """Not the journal, but what the member has in its memory of this history."""

    def check(self) -> None:
        values = _selected(self)
        listed = all(len(values[field] or ()) <= LISTED_MAX for field in SETS)
        if not listed or not all(0 <= values[field] <= POSITION_MAX for field in RANGES):
            raise MalformedPdu("replay request", "a field that no node has")


def _selected(request: Request | Selection) -> dict[str, Any]:
    """What a request and a selection both have."""
    return {field: getattr(request, field) for field in (*RANGES, *SETS)}


class End(Struct, frozen=True, array_like=True):
    """All that was asked for, below `next`, has been sent."""

    next: int
    begin: int
    reason: str = ""
    """Why nothing was; empty if it was."""


_request = msgspec.msgpack.Decoder(Request)
_end = msgspec.msgpack.Decoder(End)
_encode = msgspec.msgpack.Encoder().encode


Readable = Reader | Memory


async def read_chunks(
    reader: Readable, selection: Selection, reached: list[int]
) -> AsyncGenerator[list[Run], None]:
    """What a journal has, a frame at a time, read beside the event loop.

    When it is over, how far that goes is appended to `reached`."""
    end = min(reader.end, selection.until)  # now: the journal grows while it is read
    frames = gathered(reader.read(structs.replace(selection, until=end)), FRAME_BYTES)
    while (chunk := await asyncio.to_thread(next, frames, None)) is not None:
        yield chunk
    reached.append(end)


def block_of(runs: list[Run]) -> bytes:
    return encode_block(runs, NO_JOURNAL, 0)


def runs_of(block: bytes) -> list[Run]:
    head = decode_block_head(block)
    check_block(block, head)
    return decode_block(block, head)


class Framed(Struct, frozen=True):
    """Frames over a stream, sealed if there is a seal."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    seal: Seal | None

    async def get(self, patience_s: float) -> tuple[int, bytes]:
        """Kind and body of the next frame."""
        async with asyncio.timeout(patience_s):
            (size,) = LENGTH.unpack(await self.reader.readexactly(LENGTH.size))
            if not 0 < size <= FRAME_BYTES_MAX:
                raise MalformedPdu("replay frame", f"{size} bytes")
            data = await self.reader.readexactly(size)
        if self.seal is not None:
            data = self.seal.open(data)
        if not data:
            raise MalformedPdu("replay frame", "empty")
        return data[0], data[1:]

    async def expect(self, kind: int) -> bytes:
        got, body = await self.get(ANSWER_S)
        if got != kind:
            raise MalformedPdu("replay frame", f"{got:#x} in place of {kind:#x}")
        return body

    def put(self, kind: int, body: bytes) -> None:
        data = bytes((kind,)) + body
        if self.seal is not None:
            data = self.seal.seal(data)
        self.writer.write(LENGTH.pack(len(data)) + data)

    async def ended(self) -> None:
        """Wait until the other side has closed: to close with credit unread would reset the
        connection, and what is still under way to it would be lost."""
        with suppress(TimeoutError, OSError):
            async with asyncio.timeout(ANSWER_S):
                while await self.reader.read(4096):
                    pass


class ReplayServer:
    """Serves the journals of one node."""

    def __init__(
        self, source: Callable[[str, str], Readable | None], make_seal: Callable[[], Seal | None]
    ) -> None:
        self._source = source
        """What a group's journal has, or what is in memory of the history named; None: nothing."""
        self._make_seal = make_seal
        self._server: asyncio.Server | None = None
        self._sessions: set[asyncio.Task[None]] = set()
        self.port = 0
        self.served = 0
        self.blocks = 0
        self.refused: Counter[str] = Counter()

    async def start(self, host: str) -> None:
        """Listen there, on a port that the system chooses."""
        self._server = await asyncio.start_server(self._accept, host, 0, limit=FRAME_BYTES)
        self.port = self._server.sockets[0].getsockname()[1]

    async def move(self, host: str) -> None:
        """Listen there instead."""
        before = self._server
        await self.start(host)
        if before is not None:
            before.close()

    async def close(self) -> None:
        self.abort()
        await asyncio.gather(*self._sessions, return_exceptions=True)

    def abort(self) -> None:
        """Listen no more, and break off what is under way."""
        if self._server is not None:
            self._server.close()
            for session in list(self._sessions):
                session.cancel()

    def status(self) -> dict[str, object]:
        return {
            "port": self.port,
            "sessions": len(self._sessions),
            "sessions_max": SESSIONS_MAX,
            "served": self.served,
            "blocks": self.blocks,
            "refused": dict(self.refused),
        }

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if len(self._sessions) >= SESSIONS_MAX:
            self.refused["too many sessions"] += 1
            writer.close()
            return
        self._sessions.add(task)
        try:
            await self._serve(Framed(reader, writer, self._make_seal()))
        except MalformedPdu as error:
            self.refused[error.reason] += 1
        except (OSError, EOFError, TimeoutError, asyncio.CancelledError):
            # Whoever asked is gone, or the node stops; asyncio's streams would log a cancelled
            # task as an error.
            pass
        finally:
            self._sessions.discard(task)
            writer.close()

    async def _serve(self, frames: Framed) -> None:
        nonce = os.urandom(16)
        frames.put(HELLO, nonce)
        try:
            request = _request.decode(await frames.expect(REQUEST))
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise MalformedPdu("replay request", str(error)) from None
        request.check()
        if request.nonce != nonce:
            raise MalformedPdu("replay request", "of another connection")
        source = self._source(request.group, request.memory)
        if source is None:
            lacks = "kept" if request.memory else "recorded"
            frames.put(END, _encode(End(0, 0, f"{request.group} is not {lacks} here")))
            await frames.writer.drain()
            return
        self.served += 1
        await self._stream(frames, source, request)

    async def _stream(self, frames: Framed, source: Readable, request: Request) -> None:
        credit = CREDIT_FRAMES
        reached: list[int] = []
        async for chunk in read_chunks(source, Selection(**_selected(request)), reached):
            while credit == 0:
                kind, body = await frames.get(IDLE_S)
                if kind == CREDIT and len(body) == LENGTH.size:
                    credit += LENGTH.unpack(body)[0]
            credit -= 1
            self.blocks += 1
            frames.put(BLOCK, await asyncio.to_thread(block_of, chunk))
            await frames.writer.drain()
        frames.put(END, _encode(End(reached[0], source.begin)))
        await frames.writer.drain()
        await frames.ended()


async def fetch(
    address: tuple[str, int],
    group: str,
    selection: Selection,
    seal: Seal | None,
    reached: list[int],
    memory: str = "",
) -> AsyncGenerator[list[Run], None]:
    """What the recorder at `address` has of what is selected, in order.

    `memory`: what the member there has in its memory of this history, instead of a journal.  When
    it is over, how far that goes is appended to `reached`.  Raises ReplayFailed.
    """
    where = f"{address[0]}:{address[1]}"
    try:
        async with asyncio.timeout(ANSWER_S):
            reader, writer = await asyncio.open_connection(*address, limit=4 * FRAME_BYTES)
    except (OSError, TimeoutError) as error:
        raise ReplayFailed(f"no recorder answers at {where} ({error})") from None
    frames = Framed(reader, writer, seal)
    try:
        nonce = await frames.expect(HELLO)
        request = Request(nonce, group, memory=memory, **_selected(selection))
        frames.put(REQUEST, _encode(request))
        while True:
            kind, body = await frames.get(ANSWER_S)
            if kind == END:
                end = _end.decode(body)
                if end.reason:
                    raise ReplayFailed(f"the recorder at {where}: {end.reason}")
                reached.append(end.next)
                return
            if kind != BLOCK:
                raise MalformedPdu("replay frame", hex(kind))
            yield await asyncio.to_thread(runs_of, body)
            frames.put(CREDIT, LENGTH.pack(1))
    except (OSError, EOFError, TimeoutError, MalformedPdu, msgspec.MsgspecError) as error:
        why = str(error) or type(error).__name__
        raise ReplayFailed(f"the recorder at {where} broke off ({why})") from None
    finally:
        writer.close()
