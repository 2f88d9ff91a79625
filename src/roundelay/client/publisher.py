"""Sending with receipts, without asyncio: for programs that send much and then wait.

::

    with Publisher("127.0.0.1:6678", "token:orders", name="loader") as publisher:
        for seq in publisher.send([Parcel(bundle), …]):    # position of each parcel's last message
            ...

Parcels go out as long as `window` of them wait for their receipts; a node that has no room stops
reading, and then sending waits.  What went wrong is raised, and nothing is sent again by itself:
after `Indeterminate` or `ConnectionLost` nobody knows what became of the parcels that have no
receipt yet.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any, Final, Self

from msgspec import Struct

from roundelay.core.bundle import Bundle
from roundelay.core.errors import (
    ConnectionLost,
    Indeterminate,
    MalformedPdu,
    NodeUnreachable,
    Refused,
    UsageError,
)
from roundelay.wire.frontend import (
    CLOSING,
    DEFAULT,
    INDETERMINATE,
    PROTOCOL,
    Packet,
    Parser,
    address,
    from_packet,
    head,
    json_packet,
    name_bytes,
    read_failure,
    read_json,
    read_receipt,
    read_received,
)
from roundelay.wire.frontend_replay import marked_packet, read_marked_received

RECEIVE_BYTES: Final = 1 << 18
TIMEOUT_S: Final = 60.0
WINDOW: Final = 64


class Parcel(Struct, frozen=True, gc=False):
    """Messages that are sent together."""

    bundle: Bundle
    conference: int = 0
    kind: int = 0
    recorders: int = 0
    """How many recorders must have synced before the receipt."""


class Publisher:
    """One connection to a node, for one group."""

    def __init__(
        self, where: str = DEFAULT, group: str = "", *, name: str = "", timeout_s: float = TIMEOUT_S
    ) -> None:
        name_bytes("group", group)
        self.where = where
        self.group = group
        self.name = name
        self._parser = Parser.at_application()
        self._next_tag = 0
        self._next_id = 0
        self._timeout_s = timeout_s
        target = address(where, "node")
        try:
            if target.path:
                self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                self._socket.settimeout(timeout_s)
                self._socket.connect(target.path)
            else:
                self._socket = socket.create_connection((target.host, target.port), timeout_s)
            self._socket.sendall(json_packet("HELO", "", {"name": name, "protocol": PROTOCOL}))
            hello = read_json(self._await("HELO"))
        except (OSError, ConnectionLost) as error:
            raise NodeUnreachable(
                f"no node answers at {where} ({error}): start one with "
                f"`roundelay node --frontend {where} …`"
            ) from None
        self.node = str(hello.get("node", ""))
        """The node's name: the sender of what is sent here."""

    # -- questions -------------------------------------------------------------------------

    def ask(self, what: str, of: str | None = None) -> Any:
        """`members`, `groups`, `status`, …, as the node answers them."""
        number = self._next_id
        self._next_id += 1
        self._write(json_packet("ASKQ", "", {"id": number, "ask": what, "of": of}))
        found = read_json(self._await("ANSW"))
        if "error" in found:
            raise UsageError(str(found["error"]))
        return found.get("answer")

    def names(self) -> list[str]:
        """Names of all applications at this node, this one among them."""
        frontends = self.ask("status").get("frontends") or ()
        return [one.get("name", "") for each in frontends for one in each.get("clients", ())]

    # -- sending ---------------------------------------------------------------------------

    def send(self, parcels: Iterable[Parcel], window: int = WINDOW) -> Iterator[int]:
        """Send all of them, in order; gives the position of the last message of each.

        Raises Refused when one is certainly not delivered, Indeterminate when nobody can say.
        """
        first = self._next_tag
        settled: dict[int, int] = {}
        given = 0
        for parcel in parcels:
            self._write(
                marked_packet(
                    self.group, parcel.bundle, tag=self._next_tag, conference=parcel.conference,
                    kind=parcel.kind, recorders=parcel.recorders,
                )
            )  # fmt: skip
            self._next_tag += 1
            while self._next_tag - first - given >= window:
                yield self._settled(settled, first + given)
                given += 1
        while first + given < self._next_tag:
            yield self._settled(settled, first + given)
            given += 1

    def _settled(self, settled: dict[int, int], tag: int) -> int:
        while tag not in settled:
            packet = self._await("RCPT", "FAIL")
            if packet.command == "FAIL":
                failure = read_failure(packet)
                kind = Indeterminate if failure.flags & INDETERMINATE else Refused
                raise kind(f"group {self.group}: {failure.reason}")
            fate = read_receipt(packet)
            settled[fate.tag] = fate.seq
        return settled.pop(tag)

    # -- what was said before --------------------------------------------------------------

    def history(self, since: int, until: int) -> Iterator[tuple[int, str, Bundle]]:
        """(position, sender, messages) from `since` up to `until`, as far as the node itself still
        has them; Refused if it no longer has the beginning."""
        self._write(from_packet(self.group, since))
        at = since
        while at < until:
            packet = self._await("RCVX", "RCVC", "FAIL")
            if packet.command == "FAIL":
                raise Refused(f"group {self.group}: {read_failure(packet).reason}")
            found = (
                read_received(packet) if packet.command == "RCVX" else read_marked_received(packet)
            )
            if found.seq > at:
                raise Refused(
                    f"group {self.group}: the node no longer has positions {at} to {found.seq - 1}"
                )
            bundle = found.bundle
            end = found.seq + len(bundle)
            if end > at:
                yield at, found.sender, bundle.part(at - found.seq, min(end, until) - found.seq)
                at = end
        self._write(head("LEAV", self.group))

    # -- the connection --------------------------------------------------------------------

    def _write(self, data: bytes) -> None:
        """Send all of it, and take in meanwhile what the node says, so that it never waits."""
        rest = memoryview(data)
        poll = select.poll()
        poll.register(self._socket, select.POLLIN | select.POLLOUT)
        self._socket.setblocking(False)
        try:
            while rest:
                ready = dict(poll.poll(self._timeout_s * 1000)).get(self._socket.fileno(), 0)
                if not ready:
                    raise self._lost(f"no room at the node for {self._timeout_s:.0f} s")
                if ready & ~select.POLLOUT:
                    self._take_in()
                if ready & select.POLLOUT:
                    rest = rest[self._socket.send(rest) :]
        except OSError as error:
            raise self._lost(str(error)) from None
        finally:
            if self._socket.fileno() >= 0:
                self._socket.settimeout(self._timeout_s)

    def _take_in(self) -> None:
        data = self._socket.recv(RECEIVE_BYTES)
        if not data:
            raise self._lost("the node closed it")
        self._parser.feed(data)

    def _await(self, *commands: str) -> Packet:
        """The next packet with one of these commands; others are none of our business."""
        while True:
            try:
                for packet in self._parser.packets():
                    if packet.command == "FAIL":
                        failure = read_failure(packet)
                        if failure.flags & CLOSING:
                            raise self._lost(failure.reason)
                    if packet.command in commands:
                        return packet
                self._take_in()
            except OSError as error:
                raise self._lost(str(error)) from None
            except MalformedPdu as error:
                raise self._lost(f"it does not speak the frontend protocol: {error}") from None

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
