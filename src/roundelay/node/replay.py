"""Replay: a recorder streams stretches of its journal to whoever may have them.

Over TCP, on the address the node has on the medium.  Each frame is a length and a body; the body
is sealed like a datagram wherever datagrams are.  A request selects by position, time, sender,
conference and kind, in any combination; the answer is blocks of a journal, as many as there is
credit for, and an end that says how far the recorder's records go.

::

    u32 length, then   0x30 REQUEST   msgpack of `Request`
                       0x31 CREDIT    u32: that many more frames may come
                       0x32 BLOCK     a block, as in a segment (`journal.format`)
                       0x33 END       msgpack of `End`
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Final

import msgspec
from msgspec import Struct

from roundelay.core.errors import MalformedPdu, RoundelayError
from roundelay.journal.format import Run, check_block, decode_block, decode_block_head, encode_block
from roundelay.journal.journal import Reader, Selection
from roundelay.wire.seal import Seal

REQUEST: Final = 0x30
CREDIT: Final = 0x31
BLOCK: Final = 0x32
END: Final = 0x33
LENGTH: Final = struct.Struct(">I")
FRAME_BYTES_MAX: Final = 4 << 20
FRAME_BYTES: Final = 256 << 10
"""About what one frame carries."""
CREDIT_FRAMES: Final = 8
SESSIONS_MAX: Final = 64
NO_JOURNAL: Final = bytes(16)
ANSWER_S: Final = 10.0


class ReplayFailed(RoundelayError):
    """A recorder did not give what it was asked for."""


class Request(Struct, frozen=True, array_like=True):
    """What somebody wants of a group."""

    group: str
    since: int = 0
    until: int = 1 << 62
    since_time: int = 0
    until_time: int = 1 << 62
    senders: tuple[str, ...] | None = None
    conferences: tuple[int, ...] | None = None
    kinds: tuple[int, ...] | None = None

    def selection(self) -> Selection:
        return Selection(
            since=self.since, until=self.until, since_time=self.since_time,
            until_time=self.until_time,
            senders=None if self.senders is None else frozenset(self.senders),
            conferences=None if self.conferences is None else frozenset(self.conferences),
            kinds=None if self.kinds is None else frozenset(self.kinds),
        )  # fmt: skip


class End(Struct, frozen=True, array_like=True):
    """All that was asked for, below `next`, has been sent."""

    next: int
    begin: int
    reason: str = ""


_request = msgspec.msgpack.Decoder(Request)
_end = msgspec.msgpack.Decoder(End)
_encode = msgspec.msgpack.Encoder().encode


class Framed:
    """Frames over a stream, sealed if there is a seal."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seal: Seal | None
    ) -> None:
        self._reader = reader
        self.writer = writer
        self._seal = seal

    async def get(self) -> bytes:
        (size,) = LENGTH.unpack(await self._reader.readexactly(LENGTH.size))
        if not 0 < size <= FRAME_BYTES_MAX:
            raise MalformedPdu("replay frame", f"{size} bytes")
        data = await self._reader.readexactly(size)
        return self._seal.open(data) if self._seal is not None else data

    async def ended(self) -> None:
        """Wait until the other side has closed: to close with credit unread would reset the
        connection, and what is still under way to it would be lost."""
        with suppress(TimeoutError):
            async with asyncio.timeout(ANSWER_S):
                while await self._reader.read(4096):
                    pass

    def put(self, kind: int, body: bytes) -> None:
        data = bytes((kind,)) + body
        if self._seal is not None:
            data = self._seal.seal(data)
        self.writer.write(LENGTH.pack(len(data)) + data)


class ReplayServer:
    """Serves the journals of one node."""

    def __init__(
        self, source: Callable[[str], Reader | None], make_seal: Callable[[], Seal | None]
    ) -> None:
        self._source = source
        """A reader of a group's journal, for the caller to close; None: not recorded here."""
        self._make_seal = make_seal
        self._server: asyncio.Server | None = None
        self._sessions: set[asyncio.Task[None]] = set()
        self.served = 0
        self.refused: dict[str, int] = {}

    async def start(self, host: str) -> int:
        """Listen there; the port."""
        self._server = await asyncio.start_server(self._accept, host, 0)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            for session in list(self._sessions):
                session.cancel()
            await asyncio.gather(*self._sessions, return_exceptions=True)

    def _drop(self, reason: str) -> None:
        self.refused[reason] = self.refused.get(reason, 0) + 1

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if len(self._sessions) >= SESSIONS_MAX:
            self._drop("too many sessions")
            writer.close()
            return
        self._sessions.add(task)
        try:
            await self._serve(Framed(reader, writer, self._make_seal()))
        except MalformedPdu as error:
            self._drop(error.reason)
        except (OSError, EOFError, TimeoutError):
            pass  # whoever asked is gone
        except asyncio.CancelledError:
            pass  # the node stops; asyncio's streams would log a cancelled task as an error
        finally:
            self._sessions.discard(task)
            writer.close()

    async def _serve(self, frames: Framed) -> None:
        data = await asyncio.wait_for(frames.get(), ANSWER_S)
        if data[0] != REQUEST:
            raise MalformedPdu("replay frame", "no request")
        try:
            request = _request.decode(data[1:])
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            raise MalformedPdu("replay request", str(error)) from None
        source = self._source(request.group)
        if source is None:
            frames.put(END, _encode(End(-1, -1, f"{request.group} is not recorded here")))
            await frames.writer.drain()
            return
        self.served += 1
        try:
            await self._stream(frames, source, request)
        finally:
            source.close()

    async def _stream(self, frames: Framed, source: Reader, request: Request) -> None:
        credit = CREDIT_FRAMES
        waiting: list[Run] = []
        size = 0
        end = min(source.end, request.until)
        for run in source.read(request.selection()):
            waiting.append(run)
            size += len(run.bundle.data) + 4 * run.records + 64
            if size < FRAME_BYTES:
                continue
            while credit == 0:
                data = await asyncio.wait_for(frames.get(), 60.0)
                if data[0] == CREDIT:
                    credit += LENGTH.unpack(data[1:])[0]
            credit -= 1
            frames.put(BLOCK, encode_block(waiting, NO_JOURNAL, 0))
            await frames.writer.drain()
            waiting, size = [], 0
        if waiting:
            frames.put(BLOCK, encode_block(waiting, NO_JOURNAL, 0))
        frames.put(END, _encode(End(end, source.begin)))
        await frames.writer.drain()
        await frames.ended()


class Replayed:
    """The answer to one request: iterate, then look at `end`."""

    def __init__(self) -> None:
        self.end: End | None = None


async def replay(
    address: tuple[str, int], request: Request, seal: Seal | None, answer: Replayed
) -> AsyncIterator[Run]:
    """The runs a recorder has for `request`, in order; `answer.end` is set when it is over."""
    try:
        reader, writer = await asyncio.wait_for(asyncio.open_connection(*address), ANSWER_S)
    except (OSError, TimeoutError) as error:
        raise ReplayFailed(f"no recorder answers at {address[0]}:{address[1]}: {error}") from None
    frames = Framed(reader, writer, seal)
    try:
        frames.put(REQUEST, _encode(request))
        while True:
            data = await asyncio.wait_for(frames.get(), 60.0)
            if data[0] == END:
                answer.end = _end.decode(data[1:])
                if answer.end.next < 0:
                    raise ReplayFailed(answer.end.reason)
                return
            if data[0] != BLOCK:
                raise MalformedPdu("replay frame", str(data[0]))
            block = data[1:]
            head = decode_block_head(block)
            check_block(block, head)
            for run in decode_block(block, head):
                yield run
            frames.put(CREDIT, LENGTH.pack(1))
    except (OSError, EOFError, TimeoutError, MalformedPdu) as error:
        raise ReplayFailed(
            f"the recorder at {address[0]}:{address[1]} broke off: {error}"
        ) from None
    finally:
        writer.close()
