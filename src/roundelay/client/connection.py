"""One connection to a node, without asyncio: what `Publisher` and `RecorderClient` have in common.

It drives `client.protocol` by blocking calls, and does one thing at a time.  Whoever waits for an
event passes over those that are none of its business; whoever writes takes in meanwhile what the
node says, so that the two never wait for each other.
"""

from __future__ import annotations

import select
import socket
from typing import Any, Final, TypeVar, overload

from roundelay.client.protocol import Answer, ClientProtocol, Event, Hello
from roundelay.core.errors import ConnectionLost, MalformedPdu, NodeUnreachable, UsageError
from roundelay.durable import Closing
from roundelay.wire.frontend import address, name_bytes

E = TypeVar("E", bound=Event)
F = TypeVar("F", bound=Event)

RECEIVE_BYTES: Final = 1 << 20
TIMEOUT_S: Final = 60.0
"""A node that says nothing for so long while it is asked for something counts as lost."""


class NodeConnection(Closing):
    """To the node at `where` (HOST:PORT or unix:PATH), for the group of that full name.

    `name` is the application's, `start` what a node is to be started with where none answers.
    Raises NodeUnreachable; later ConnectionLost when the node is gone.
    """

    def __init__(
        self, where: str, group: str, *, name: str, start: str = "", timeout_s: float = TIMEOUT_S
    ) -> None:
        name_bytes("group", group)
        self.where = where
        self.group = group
        self.name = name
        self._protocol = ClientProtocol(where)
        self._timeout_s = timeout_s
        target = address(where, "node")
        try:
            if target.path:
                self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                self._socket.settimeout(timeout_s)
                self._socket.connect(target.path)
            else:
                self._socket = socket.create_connection((target.host, target.port), timeout_s)
            self._protocol.hello(name)
            hello = self._await(Hello)
        except (OSError, ConnectionLost) as error:
            raise NodeUnreachable(
                f"no node answers at {where} ({error}): start one with "
                f"`roundelay node --frontend {where} {start}…`"
            ) from None
        self.node = hello.node
        """The node's name: the sender of what is sent here."""

    def ask(self, what: str, of: str | None = None) -> Any:
        """`members`, `groups`, `status`, …, as the node answers them."""
        self._protocol.ask(what, of)
        answer = self._await(Answer)
        if answer.error is not None:
            raise UsageError(answer.error)
        return answer.answer

    def _flush(self) -> None:
        """Send all that waits, and take in meanwhile what the node says, so that it never waits."""
        rest = memoryview(self._protocol.data_to_send())
        if not rest:
            return
        if self._socket.fileno() < 0:
            raise self._lost("it was closed")
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
        self._protocol.receive(data)

    @overload
    def _await(self, kind: type[E], /) -> E: ...
    @overload
    def _await(self, kind: type[E], other: type[F], /) -> E | F: ...
    def _await(self, *kinds: type[Any]) -> Any:
        """Send what waits, and give the next event of these; others are none of our business."""
        self._flush()
        while True:
            try:
                for event in self._protocol.events():
                    if self._protocol.closing:
                        raise self._lost(self._protocol.closing)
                    if isinstance(event, kinds):
                        return event
                self._take_in()
            except OSError as error:
                raise self._lost(str(error)) from None
            except MalformedPdu as error:
                raise self._lost(f"it does not speak the frontend protocol: {error}") from None

    def _lost(self, why: str) -> ConnectionLost:
        self.close()
        return ConnectionLost(self._protocol.ended(why))

    def close(self) -> None:
        self._socket.close()
