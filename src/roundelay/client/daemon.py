"""The way to a daemon: one connection, and the next one when that breaks.

An application keeps its place in the order of each group (`client.contiguity`), so after a break it
joins again at the position that has to come next: what was delivered meanwhile comes from the
daemon's memory, other members or recorders, nothing comes twice, and where nobody has it, or the
position is of another history by now, the application gets the error that `join(since=…)` would
have given.  What was under way when the connection broke is never sent again by itself: nobody
knows what became of it (Indeterminate).  What is sent meanwhile waits.

Where a service has no total order, or messages are given before they have a place in it (`stage=`),
there is no position to go on at, and nobody could say what was missed; such a group is over at
once, and everything is when no connection was made for `patience_s` seconds (ConnectionLost).
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
from functools import partial
from typing import Any, Final, Self

from msgspec import Struct, structs

from roundelay.client.protocol import RequestFailed, Settled
from roundelay.client.remote import Connection
from roundelay.core.errors import (
    ConnectionLost,
    NodeUnreachable,
    QueueFull,
    RoundelayError,
    UsageError,
)
from roundelay.core.families import TOTAL
from roundelay.core.position import LIVE, Since
from roundelay.journal.format import Run
from roundelay.node.groups import GroupSpec, family_of
from roundelay.node.membership.settings import words_of
from roundelay.node.node_api import NO_TAG, Receipt, Send, Subscriber, View
from roundelay.wire.frontend import address
from roundelay.wire.frontend_replay import ReplayRequest

CONNECT_S: Final = 5.0
PATIENCE_S: Final = 10.0
"""How long a lost connection is tried to be made again, unless said otherwise."""
PAUSE_S: Final = 0.05
PAUSE_S_MAX: Final = 1.0
"""Between attempts to connect: the first time, and at most."""
LASTING_S: Final = 1.0
"""A connection that lasts so long, or brings something, is worth another one at once."""
ASKED_ONCE: Final = frozenset({"recover"})
"""Questions that change something: they are not asked again when the answer was lost."""


class Client(Subscriber):
    """A subscriber that survives a break of its connection.  Nothing here may block or raise."""

    def goes_on(self, group: str, began: Since) -> Since | None:
        """Where to join again after a break, having joined at `began`; None: there is no such
        place."""
        return None

    def returned(self, group: str) -> None:
        """There is a connection again, and the group was joined over it."""

    def in_doubt(self, group: str, reason: str) -> None:
        """Nobody knows what became of messages that were to have no receipt."""

    def cut_off(self, group: str, reason: str) -> None:
        """Nothing more comes of the group."""


class _Membership(Struct):
    """A group that is joined here."""

    client: Client
    began: Since
    """Where the application wanted to begin,"""
    joined_at: Since
    """and where this connection did."""
    wishes: GroupSpec | None
    """Settings that the group must have."""

    def goes_on(self, group: str) -> Since | None:
        return self.client.goes_on(group, self.began)


class Daemon:
    """The node API of a daemon; made by `connect`.

    Calls happen in the event loop and none of them blocks, as with any `NodeApi`; `ask` alone
    has to wait for its answer.  A group can be joined by one application only: the node takes its
    connection for one application when it picks someone.
    """

    def __init__(self, where: str, name: str, patience_s: float) -> None:
        self.where = where
        self.node = ""
        """The node's name."""
        self.max_message = 0
        """What the node takes at most."""
        self.on_break: Callable[[str], None] = lambda reason: None
        """Called when the connection breaks, and the next one is looked for."""
        self._name = name
        self._patience_s = patience_s
        self._connection: Connection | None = None
        self._memberships: dict[str, _Membership] = {}
        self._posted: dict[str, Client] = {}
        """Who sent something over this connection that gets no receipt, by group."""
        self._turned_away: dict[tuple[int, str], Client] = {}
        """Who wanted to send while there was no room, or no connection."""
        self._connected_at = 0.0
        """When this connection was made."""
        self._pause_s = PAUSE_S
        self._returning: asyncio.Task[None] | None = None
        self._settled = asyncio.Event()
        """There is a connection, or there will be none."""
        self._end: ConnectionLost | None = None
        """It is given up, or closed."""

    @classmethod
    async def connect(
        cls,
        where: str,
        *,
        name: str = "",
        patience_s: float = PATIENCE_S,
        timeout_s: float = CONNECT_S,
    ) -> Daemon:
        """Connect to the node at `where`: `HOST:PORT` or `unix:PATH`.  `name` is shown in the
        node's status.  Raises NodeUnreachable: the first connection is made once, or not at all.
        """
        daemon = cls(where, name, patience_s)
        await daemon._connect(timeout_s)
        return daemon

    async def _connect(self, timeout_s: float) -> None:
        target = address(self.where, "node")
        loop = asyncio.get_running_loop()
        made = partial(Connection, self)
        try:
            async with asyncio.timeout(timeout_s):
                if target.path:
                    _, connection = await loop.create_unix_connection(made, target.path)
                else:
                    _, connection = await loop.create_connection(made, target.host, target.port)
                hello = await connection.greet(self._name)
        except (OSError, TimeoutError) as error:
            raise NodeUnreachable(
                f"no node answers at {self.where} ({_why(error, timeout_s)}): start one with "
                f"`roundelay node --frontend {self.where} …`, or name another with --node"
            ) from None
        if connection.error is not None:
            raise ConnectionLost(str(connection.error))
        self.node, self.max_message = hello.node, hello.max_message
        self._connection = connection
        self._posted.clear()
        self._connected_at = loop.time()
        self._settled.set()

    # -- when it breaks --------------------------------------------------------------------

    def lost(self, connection: Connection, error: ConnectionLost, why: str) -> None:
        """A connection has ended."""
        if connection is not self._connection:
            return
        self._connection = None
        protocol = connection.protocol
        joined = [
            (group, membership.client)
            for group, membership in self._memberships.items()
            if group in protocol.joined
        ]
        if self._end is None:
            self._break(error, protocol.joined)
        for settled in protocol.lost(why):
            self.tell_fate(settled)
        for group, client in joined:
            last = protocol.last_view(group)
            state = "broken: the connection to the node has ended"
            client.viewed(View(group, last.version, last.members, state))

    def _break(self, error: ConnectionLost, joined: set[str]) -> None:
        """Look for another connection, if there is a group that can go on over it, or none."""
        had_groups = bool(self._memberships)
        for group, membership in list(self._memberships.items()):
            refused = group not in joined
            if refused or membership.goes_on(group) is None:
                del self._memberships[group]
                if not refused:
                    membership.client.cut_off(group, str(error))
        if had_groups and not self._memberships:
            self._give_up(error)
            return
        for group, client in self._posted.items():
            client.in_doubt(group, f"posted before the connection to {self.where} broke")
        self._settled.clear()
        self._returning = asyncio.get_running_loop().create_task(self._return(error))
        self.on_break(str(error))

    async def _return(self, error: ConnectionLost) -> None:
        clock = asyncio.get_running_loop().time
        end = clock() + self._patience_s
        why: RoundelayError = error
        if self._has_brought_something() or clock() > self._connected_at + LASTING_S:
            self._pause_s = PAUSE_S
        else:
            await self._rest(end)  # it accepts us and lets us go again
        while clock() < end:
            try:
                await self._connect(min(CONNECT_S, end - clock()))
            except (NodeUnreachable, ConnectionLost) as refusal:
                why = refusal
                await self._rest(end)
            else:
                self._join_again()
                return
        self._give_up(
            ConnectionLost(
                f"the connection to the node at {self.where} was lost and could not be made again "
                f"in {self._patience_s:g} s: {why}"
            )
        )

    def _has_brought_something(self) -> bool:
        return any(
            membership.goes_on(group) != membership.joined_at
            for group, membership in self._memberships.items()
        )

    def _join_again(self) -> None:
        for group, membership in list(self._memberships.items()):
            membership.joined_at = membership.goes_on(group) or membership.joined_at
            try:
                self._join(group, membership)
            except RoundelayError as refusal:  # as of a node of an older version
                del self._memberships[group]
                membership.client.cut_off(group, str(refusal))
            else:
                membership.client.returned(group)
        self.tell_room()

    def _give_up(self, error: ConnectionLost) -> None:
        for group, membership in self._memberships.items():
            membership.client.cut_off(group, str(error))
        self._memberships.clear()
        self._over(error)

    def _over(self, error: ConnectionLost) -> None:
        """There will be no connection: whoever waits for one is told by the next call."""
        self._end = error
        self._settled.set()
        for (_, group), client in self._turned_away.items():
            client.writable(group)
        self._turned_away.clear()

    async def _rest(self, end: float) -> None:
        """Wait before the next attempt, each time longer."""
        rest_s = end - asyncio.get_running_loop().time()
        await asyncio.sleep(max(0.0, min(self._pause_s, rest_s)))
        self._pause_s = min(2 * self._pause_s, PAUSE_S_MAX)

    # -- the calls of a node API -----------------------------------------------------------

    def join(
        self, client: Client, group: str, since: Since = LIVE, wishes: GroupSpec | None = None
    ) -> None:
        """`wishes`: settings that the group must have; they are asked for after a break, too."""
        self._check()
        other = self._memberships.get(group)
        if other is not None and self.joined(group):
            if other.client is client:
                return
            raise UsageError(
                f"group = {group!r} is joined over this connection already: use another connection"
            )
        membership = _Membership(client, since, since, wishes)
        self._join(group, membership)
        self._memberships[group] = membership

    def _join(self, group: str, membership: _Membership) -> None:
        if self._connection is not None:
            options = {} if membership.wishes is None else words_of(membership.wishes)
            self._connection.protocol.join(group, membership.joined_at, options)
            self._connection.soon()

    def leave(self, client: Client, group: str) -> None:
        membership = self._memberships.get(group)
        if membership is not None and membership.client is client:
            del self._memberships[group]
            if self._connection is not None and self.joined(group):
                self._connection.protocol.leave(group)
                self._connection.soon()

    def gone(self, client: Client) -> None:
        for group in list(self._memberships):
            self.leave(client, group)
        if self._connection is not None:
            self._connection.protocol.forget(client)
        for key in [key for key, other in self._turned_away.items() if other is client]:
            del self._turned_away[key]

    def send(self, client: Client, send: Send) -> None:
        """As at any node; without a connection there is no room (QueueFull)."""
        self._check()
        group, connection = send.group, self._connection
        if connection is None:
            self._turned_away[id(client), group] = client
            raise QueueFull(f"group {group!r}: the connection to {self.where} is being made again")
        if connection.full or group in connection.protocol.stopped:
            connection.protocol.check_size(send.bundle)  # what is never taken need not wait
            self._turned_away[id(client), group] = client
            raise QueueFull(f"group {group!r}: the node at {self.where} has no room now")
        connection.protocol.send(send, owner=client)
        connection.soon()
        if send.tag == NO_TAG:
            self._posted[group] = client

    def joined(self, group: str) -> bool:
        """False only after the node refused a `join`."""
        return self._connection is None or group in self._connection.protocol.joined

    def fell_behind(self, client: Client, group: str, since: int) -> bool:
        """A client that does not read holds what comes; if it has no room then, nobody has it."""
        return False

    def hold(self, group: str, stop: bool) -> None:
        """The application can take no more of the group now, or it can again.  If somebody records
        the group, the node gives it the rest from there meanwhile, as fast as it is read."""
        if self._connection is not None:
            self._connection.protocol.hold(group, stop)
            self._connection.soon()

    async def ask(self, what: str, of: str | None = None) -> Any:
        """`members` of a group, `groups`, `status`, `why` of a node: as the node itself answers;
        after a break the next connection is asked."""
        while True:
            connection = await self._connected()
            try:
                return await connection.ask(what, of)
            except ConnectionLost:
                if what in ASKED_ONCE:
                    raise

    async def _connected(self) -> Connection:
        """The present connection, or the next; raises ConnectionLost when there will be none."""
        while self._connection is None:
            self._check()
            await self._settled.wait()
        return self._connection

    def _check(self) -> None:
        if self._end is not None:
            raise ConnectionLost(str(self._end))

    async def replay(
        self, group: str, request: ReplayRequest, reached: list[int] | None = None
    ) -> AsyncGenerator[list[Run], None]:
        """What is recorded of the group and asked for, in order; after a break it goes on where it
        was."""
        at = request.since
        while True:
            connection = await self._connected()
            try:
                rest = connection.replay(group, structs.replace(request, since=at), reached)
                async with aclosing(rest) as chunks:
                    async for chunk in chunks:
                        yield chunk
                        at = chunk[-1].end if chunk else at
                return
            except ConnectionLost:
                if family_of(group).order != TOTAL:
                    raise

    async def close(self) -> None:
        """Leave everything and end the connection."""
        if self._end is None:
            self._over(ConnectionLost(f"the connection to {self.where} was closed here"))
        if self._returning is not None:
            self._returning.cancel()
            with suppress(asyncio.CancelledError):
                await self._returning
        if self._connection is not None:
            await self._connection.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    # -- what the node says ----------------------------------------------------------------

    def client_of(self, group: str) -> Client:
        return self._memberships[group].client

    def tell_room(self) -> None:
        """Tell those who were turned away."""
        connection = self._connection
        if connection is None or connection.paused:
            return
        stopped = connection.protocol.stopped
        for key in [key for key in self._turned_away if key[1] not in stopped]:
            client = self._turned_away.pop(key, None)
            if client is not None:
                client.writable(key[1])

    def tell_fate(self, settled: Settled) -> None:
        if isinstance(settled.fate, Receipt):
            settled.owner.receipt(settled.fate)
        else:
            settled.owner.refused(settled.fate)

    def failed(self, failed: RequestFailed) -> None:
        group, reason = failed.refusal.group, failed.refusal.reason
        membership = self._memberships.get(group)
        if membership is None:
            return
        membership.client.refused(failed.refusal)
        if failed.out:
            state = reason if reason.startswith("failed: ") else f"broken: {reason}"
            membership.client.viewed(View(group, "", (), state))


def _why(error: OSError, timeout_s: float) -> str:
    if isinstance(error, TimeoutError) and not error.errno:
        return f"nothing heard for {timeout_s:g} s"
    if isinstance(error, socket.gaierror) or not error.errno:
        return error.strerror or str(error)
    return os.strerror(error.errno)
