"""Reading recorded messages from a node, without asyncio: for readers in processes of their own.

::

    with RecorderClient("127.0.0.1:6678", "token:orders") as recorder:
        where = recorder.status()                  # where.first, where.next
        for run in recorder.read(where.first, where.next, conference=7, sender="ann"):
            run.position, run.time, run.sender, run.bundle        # roundelay.journal.format.Run

A client is one connection and does one thing at a time; several of them, in as many processes or
machines, read ranges of positions side by side.  Whoever asks for a range gets each record of it
exactly once, in order.  What the node does not record itself it fetches from other recorders of
the group, and it goes on with another one when one fails in the middle; so only what nobody has
is left, and in its place comes a run with the flag GAP (never a silent hole).  Records whose
heads alone were kept come with the flag HEADS_ONLY, as in a journal.

Blocks come on credit: at most `blocks` of about 256 KiB are on their way, so a reader that pauses
holds up nobody, and needs that much memory and no more.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any, Final, Self

from msgspec import Struct

from roundelay.core.errors import (
    ConnectionLost,
    MalformedPdu,
    NodeUnreachable,
    Refused,
    UsageError,
)
from roundelay.journal.format import Run, check_block, decode_block, decode_block_head
from roundelay.wire.frontend import (
    CLOSING,
    DEFAULT,
    PROTOCOL,
    Packet,
    Parser,
    address,
    json_packet,
    name_bytes,
    read_failure,
    read_json,
)
from roundelay.wire.frontend_replay import (
    CREDIT_BLOCKS,
    POSITION_MAX,
    Wish,
    more_packet,
    read_block,
    read_ended,
    wish_packet,
)

RECEIVE_BYTES: Final = 1 << 20
TIMEOUT_S: Final = 60.0
"""A node that says nothing for so long while it is asked for something counts as lost."""


class RecorderStatus(Struct, frozen=True):
    """What is recorded of a group, as far as the node knows."""

    group: str
    first: int
    """Position of the oldest record that a recorder has."""
    next: int
    """Behind the last one: `read(first, next)` gives all there is now."""
    durable: int
    """Everything below is on disk at a recorder."""
    recorders: tuple[dict[str, Any], ...]
    """Each as JSON: `node`, `begin`, `next`, `durable`, `missing`, `here`, `slow`, `whole`."""


class RecorderClient:
    """See the module.

    `where` is the node's frontend address, HOST:PORT or unix:PATH; `group` the full name of the
    group.  Raises NodeUnreachable; later ConnectionLost when the node is gone, and then a new
    client can go on at the position behind the last run it was given."""

    def __init__(
        self, where: str = DEFAULT, group: str = "", *, timeout_s: float = TIMEOUT_S
    ) -> None:
        name_bytes("group", group)
        self.where = where
        self.group = group
        self.next = 0
        """After `read` or `read_blocks` is through: everything selected below it was given."""
        self._parser = Parser.at_application()
        self._next_id = 0
        self._reading = False
        target = address(where, "node")
        try:
            if target.path:
                self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                self._socket.settimeout(timeout_s)
                self._socket.connect(target.path)
            else:
                self._socket = socket.create_connection((target.host, target.port), timeout_s)
            self._send(json_packet("HELO", "", {"name": "recorder client", "protocol": PROTOCOL}))
            self._await("HELO")
        except (OSError, ConnectionLost) as error:
            raise NodeUnreachable(
                f"no node answers at {where} ({error}): start one with "
                f"`roundelay node --frontend {where} --record {group} …`"
            ) from None

    # -- questions -------------------------------------------------------------------------

    def status(self) -> RecorderStatus:
        """First and next position that are recorded; raises Refused where nobody records."""
        known = self._ask("recorders", self.group)
        if not known:
            raise Refused(
                f"group {self.group}: the node at {self.where} knows of no recorder; start one "
                f"with `roundelay node --record {self.group}`"
            )
        return RecorderStatus(
            self.group,
            min(one["begin"] for one in known),
            max(one["next"] for one in known),
            max(one["durable"] for one in known),
            tuple(known),
        )

    def _ask(self, what: str, of: str) -> Any:
        number = self._next_id
        self._next_id += 1
        self._send(json_packet("ASKQ", "", {"id": number, "ask": what, "of": of}))
        found = read_json(self._await("ANSW"))
        if "error" in found:
            raise UsageError(str(found["error"]))
        return found.get("answer")

    # -- reading ---------------------------------------------------------------------------

    def read(
        self,
        since: int = 0,
        until: int | None = None,
        *,
        conference: int | Iterable[int] | None = None,
        sender: str | Iterable[str] | None = None,
        kind: int | Iterable[int] | None = None,
        since_time: int | None = None,
        until_time: int | None = None,
        own: bool = False,
        blocks: int = CREDIT_BLOCKS,
    ) -> Iterator[Run]:
        """The records selected, in order, as runs (`roundelay.journal.format.Run`).

        since, until   positions, half-open; without `until`, what is recorded by now
        conference     one or several; so are `sender` (names of nodes) and `kind`
        since_time, until_time   nanoseconds since 1970, half-open
        own            only what the node asked records itself
        blocks         how many blocks may be on their way

        All that is given must hold.  `roundelay.journal.parquet.batch_of(runs, group)` makes an
        Arrow record batch of a list of runs.  Whoever stops early should close the iterator.
        """
        for runs in self.read_blocks(
            since, until, conference=conference, sender=sender, kind=kind, since_time=since_time,
            until_time=until_time, own=own, blocks=blocks,
        ):  # fmt: skip
            yield from runs

    def read_blocks(
        self,
        since: int = 0,
        until: int | None = None,
        *,
        conference: int | Iterable[int] | None = None,
        sender: str | Iterable[str] | None = None,
        kind: int | Iterable[int] | None = None,
        since_time: int | None = None,
        until_time: int | None = None,
        own: bool = False,
        blocks: int = CREDIT_BLOCKS,
    ) -> Iterator[list[Run]]:
        """As `read`, a block at a time."""
        if self._reading:
            raise UsageError("a client reads one range at a time: use another client")
        number = self._next_id
        self._next_id += 1
        wish = Wish(
            id=number,
            since=since,
            until=POSITION_MAX if until is None else until,
            since_time=since_time or 0,
            until_time=POSITION_MAX if until_time is None else until_time,
            conferences=_numbers(conference),
            senders=(sender,) if isinstance(sender, str) else _listed(sender),
            kinds=_numbers(kind),
            blocks=blocks,
            own=own,
        )
        self._send(wish_packet(self.group, wish))
        self._reading, over = True, False
        try:
            while True:
                packet = self._await("RPLB", "RPLE")
                if packet.command == "RPLE":
                    ended = read_ended(packet)
                    over = True
                    if ended.error:
                        raise Refused(f"group {self.group}: {ended.error}")
                    self.next = ended.next
                    return
                yield _runs(read_block(packet)[1])
                self._send(more_packet(self.group, number, 1))
        finally:
            self._reading = False
            if not over:
                self._abandon(number)

    def _abandon(self, number: int) -> None:
        """The reader wants no more: end the replay, and pass over what is still under way."""
        try:
            self._send(more_packet(self.group, number, 0))
            while self._await("RPLB", "RPLE").command != "RPLE":
                pass
        except ConnectionLost:
            pass  # it is over in any case

    # -- the connection --------------------------------------------------------------------

    def _send(self, data: bytes) -> None:
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise self._lost(str(error)) from None

    def _await(self, *commands: str) -> Packet:
        """The next packet with one of these commands; others are none of our business."""
        while True:
            try:
                for packet in self._parser.packets():
                    if packet.command in commands:
                        return packet
                    if packet.command == "FAIL":
                        failure = read_failure(packet)
                        if failure.flags & CLOSING:
                            raise self._lost(failure.reason)
                data = self._socket.recv(RECEIVE_BYTES)
            except OSError as error:
                raise self._lost(str(error)) from None
            except MalformedPdu as error:
                raise self._lost(f"it does not speak the frontend protocol: {error}") from None
            if not data:
                raise self._lost("the node closed it")
            self._parser.feed(data)

    def _lost(self, why: str) -> ConnectionLost:
        self.close()
        return ConnectionLost(f"the connection to the node at {self.where} has ended ({why})")

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _runs(block: bytes) -> list[Run]:
    head = decode_block_head(block)
    check_block(block, head)
    return decode_block(block, head)


def _numbers(value: int | Iterable[int] | None) -> tuple[int, ...] | None:
    return (value,) if isinstance(value, int) else _listed(value)


def _listed(values: Iterable[Any] | None) -> tuple[Any, ...] | None:
    return None if values is None else tuple(values)
