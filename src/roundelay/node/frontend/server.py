"""Frontends: applications in any language that reach the node over TCP or a Unix socket.

`FrontendServer` listens; each application is a `FrontendConnection`.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any, Final

from roundelay import __version__
from roundelay.core.errors import ConfigError
from roundelay.core.limits import whole
from roundelay.node.event_log import EventLog
from roundelay.node.frontend.connection import GOODBYE_S, FrontendConnection
from roundelay.node.frontend.memory import FrontendMemory
from roundelay.node.frontend.packets import batch_packets
from roundelay.node.frontend.sockets import tcp_socket, unix_socket
from roundelay.node.node_api import Batch, NodeApi
from roundelay.wire.frontend import MESSAGE_BYTES, MESSAGE_BYTES_MOST, PROTOCOL, Address, address

Log = Callable[..., None]

CONNECTIONS_MAX: Final = 256
QUEUE_BYTES_MAX: Final = 8 << 20
HELD_BYTES_MAX: Final = 128 << 20
"""What may be held for all connections together (`frontend.memory`)."""
TOO_MANY: Final = "too many connections"
"""Reason to count a refused connection under."""


class FrontendServer:
    """Serves frontends at one or more addresses: `HOST:PORT` or `unix:PATH`."""

    def __init__(
        self,
        node: NodeApi,
        addresses: Iterable[str],
        *,
        name: str = "",
        max_message: int = MESSAGE_BYTES,
        connections_max: int = CONNECTIONS_MAX,
        queue_bytes_max: int = QUEUE_BYTES_MAX,
        held_bytes_max: int = HELD_BYTES_MAX,
        open_to_network: bool = False,
        log: Log | None = None,
    ) -> None:
        """`name` is the node's.  `open_to_network`: serve addresses that others can reach too,
        in clear and to anybody (`--frontend-open`).  `log` is given the level, the event and what
        belongs to it; without it, the log of a node of that name is."""
        whole("max_message", max_message, 1, MESSAGE_BYTES_MOST)
        whole("connections_max", connections_max, 1)
        whole("queue_bytes_max", queue_bytes_max, 1)
        whole("held_bytes_max", held_bytes_max, 1)
        self.node = node
        self.name = name
        self.max_message = max_message
        self.connections_max = connections_max
        # A queue that one message fills would cut applications that read as fast as they can.
        self.queue_bytes_max = max(queue_bytes_max, 2 * max_message)
        self.open_to_network = open_to_network
        self._log = log or EventLog(name, "warning")
        self.addresses: list[str] = []
        """Where it listens, with the ports that the system chose."""
        self.loop: asyncio.AbstractEventLoop = None  # type: ignore[assignment]  # start
        self._endpoints = [address(text, any_port=True) for text in addresses]
        self._servers: list[asyncio.Server] = []
        self._paths: list[tuple[str, int]] = []
        self._connections: set[FrontendConnection] = set()
        held_bytes_max = max(held_bytes_max, self.queue_bytes_max)
        self.memory = FrontendMemory(held_bytes_max, self._connections)
        self._unflushed: list[FrontendConnection] = []
        self._encoded: dict[tuple[bool, bool], tuple[Batch, bytes]] = {}
        self._accepted = 0
        self._drops: Counter[str] = Counter()

    async def start(self, *, serve: bool = True) -> None:
        """Listen.  Raises ConfigError that names the address which cannot be used.

        Without `serve`, whoever connects waits until `serve` is called: for a node that wants its
        ports before it is ready to answer."""
        self.loop = asyncio.get_running_loop()
        try:
            for endpoint in self._endpoints:
                create: Any
                if endpoint.path:
                    sock, where = unix_socket(endpoint.path), endpoint
                    self._paths.append((endpoint.path, os.stat(endpoint.path).st_ino))
                    create = self.loop.create_unix_server
                else:
                    sock = await tcp_socket(self.loop, endpoint, self.open_to_network)
                    where = Address(*sock.getsockname()[:2])
                    create = self.loop.create_server
                server = await create(
                    lambda: FrontendConnection(self), sock=sock, start_serving=False
                )
                self.addresses.append(str(where))
                self._servers.append(server)
        except BaseException:
            await self.close()
            raise
        if serve:
            await self.serve()

    async def serve(self) -> None:
        """Let in those who connect."""
        for server in self._servers:
            await server.start_serving()

    async def close(self) -> None:
        """Stop listening and end all connections, with a moment for their last words."""
        for server in self._servers:
            server.close()
        for connection in list(self._connections):
            connection.close()
        deadline = asyncio.get_running_loop().time() + GOODBYE_S
        while self._connections and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.01)
        for connection in list(self._connections):
            connection.abort()
        for server in self._servers:
            await server.wait_closed()
        self._servers.clear()
        for path, inode in self._paths:
            with suppress(OSError):
                if os.stat(path).st_ino == inode:  # not somebody else's by now
                    os.unlink(path)
        self._paths.clear()

    # -- what connections need

    def admit(self, connection: FrontendConnection) -> bool:
        if len(self._connections) >= self.connections_max:
            self.drop(TOO_MANY, connection, f"at most {self.connections_max}")
            return False
        self._accepted += 1
        self._connections.add(connection)
        return True

    def forget(self, connection: FrontendConnection) -> None:
        self._connections.discard(connection)

    def drop(self, reason: str, connection: FrontendConnection, detail: str) -> None:
        """Count why a connection is closed, and say it in the log."""
        self._drops[reason] += 1
        who = {"peer": connection.peer, "name": connection.name}
        self._log("warning", "frontend.closed", reason=reason, **who, detail=detail)

    def encoded(self, batch: Batch, extended: bool, units: bool = False) -> bytes:
        """The bytes of a batch: made once, however many applications get it."""
        last = self._encoded.get((extended, units))
        if last is not None and last[0] is batch:
            return last[1]
        data = batch_packets(batch, extended, units, self.max_message)
        self._encoded[extended, units] = (batch, data)
        return data

    def to_flush(self, connection: FrontendConnection) -> None:
        if not self._unflushed:
            self.loop.call_soon(self._flush)
        self._unflushed.append(connection)

    def _flush(self) -> None:
        self._encoded.clear()
        connections = self._unflushed
        self._unflushed = []
        for connection in connections:
            connection.flush()

    def greeting(self) -> dict[str, object]:
        return {
            "node": self.name,
            "version": __version__,
            "protocol": PROTOCOL,
            "max_message": self.max_message,
            "queue_bytes": self.queue_bytes_max,
            "stop": True,
            "options": True,
        }

    def ask(self, what: object, of: object) -> object:
        """The answer to a question of an application."""
        node = self.node
        if what == "groups":
            return node.groups()
        if what == "status":
            return node.status()
        questions: dict[object, Callable[[str], object]] = {
            "members": node.members,
            "recorders": node.recorded,
            "why": node.why,
            "recovery": partial(node.recover, do=False),
            "recover": node.recover,
        }
        if what not in questions:
            asked = "members, groups, recorders, status, why, recovery or recover"
            raise ConfigError("ask", repr(what), asked)
        if not isinstance(of, str) or not of:
            raise ConfigError("of", repr(of), "a node" if what == "why" else "a group")
        return questions[what](of)

    def status(self) -> dict[str, object]:
        """As JSON: what the node's status says of its frontends."""
        joined: Counter[str] = Counter()
        for connection in self._connections:
            joined.update(connection.groups)
        return {
            "addresses": list(self.addresses),
            "connections": len(self._connections),
            "connections_max": self.connections_max,
            "accepted": self._accepted,
            "groups": dict(sorted(joined.items())),
            "queue_bytes": sum(connection.queue_bytes for connection in self._connections),
            "queue_bytes_max": self.queue_bytes_max,
            "held_bytes": self.memory.bytes,
            "held_bytes_max": self.memory.limit_bytes,
            "drops": dict(sorted(self._drops.items())),
            "clients": [connection.status() for connection in self._connections],
        }
