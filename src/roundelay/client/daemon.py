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
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
from typing import Any, Final

from msgspec import Struct, structs

from roundelay.client.remote import CONNECT_S, RemoteNodeApi
from roundelay.client.since import Since
from roundelay.core.bundle import Bundle
from roundelay.core.errors import ConnectionLost, NodeUnreachable, QueueFull, RoundelayError
from roundelay.journal.format import Run
from roundelay.node.groups import TOTAL_ORDER, GroupSpec, protocol_of
from roundelay.node.node_api import NO_TAG, Subscriber
from roundelay.wire.frontend_replay import ReplayRequest

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


class Daemon:
    """The node API of a daemon; made by `connect`."""

    def __init__(self, where: str, name: str, patience_s: float) -> None:
        self.where = where
        self.max_message = 0
        """What the node takes at most."""
        self.on_break: Callable[[str], None] = lambda reason: None
        """Called when the connection breaks, and the next one is looked for."""
        self.on_end: Callable[[ConnectionLost], None] = lambda error: None
        """Called when it is given up."""
        self._name = name
        self._patience_s = patience_s
        self._remote: RemoteNodeApi | None = None
        self._memberships: dict[str, _Membership] = {}
        self._posted: dict[str, Client] = {}
        """Who sent something over this connection that gets no receipt, by group."""
        self._turned_away: dict[tuple[int, str], Client] = {}
        """Who wanted to send while there was no connection."""
        self._made = 0.0
        """When this connection was."""
        self._pause_s = PAUSE_S
        self._returning: asyncio.Task[None] | None = None
        self._settled = asyncio.Event()
        """There is a connection, or there will be none."""
        self._end: ConnectionLost | None = None
        """It is given up, or closed."""

    @classmethod
    async def connect(
        cls, where: str, *, name: str, patience_s: float, timeout_s: float = CONNECT_S
    ) -> Daemon:
        """Raises NodeUnreachable: the first connection is made once, or not at all."""
        daemon = cls(where, name, patience_s)
        await daemon._connect(timeout_s)
        return daemon

    async def _connect(self, timeout_s: float) -> RemoteNodeApi:
        def lost(error: ConnectionLost) -> None:
            if remote is not None and self._remote is remote:
                self._lost(error)

        remote: RemoteNodeApi | None = None
        remote = await RemoteNodeApi.connect(
            self.where, name=self._name, lost=lost, timeout_s=timeout_s
        )
        if remote.error is not None:
            raise ConnectionLost(str(remote.error))
        self._remote, self.max_message = remote, remote.max_message
        self._posted.clear()
        self._made = asyncio.get_running_loop().time()
        self._settled.set()
        return remote

    # -- when it breaks --------------------------------------------------------------------

    def _lost(self, error: ConnectionLost) -> None:
        remote, self._remote = self._remote, None
        if self._end is not None:
            return
        had_groups = bool(self._memberships)
        for group, membership in list(self._memberships.items()):
            refused = remote is not None and not remote.joined(group)
            if refused or membership.client.goes_on(group, membership.began) is None:
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
        if self._has_brought_something() or clock() > self._made + LASTING_S:
            self._pause_s = PAUSE_S
        else:
            await self._rest(end)  # it accepts us and lets us go again
        while clock() < end:
            try:
                remote = await self._connect(min(CONNECT_S, end - clock()))
            except (NodeUnreachable, ConnectionLost) as refusal:
                why = refusal
                await self._rest(end)
            else:
                self._join_again(remote)
                return
        self._give_up(
            ConnectionLost(
                f"the connection to the node at {self.where} was lost and could not be made again "
                f"in {self._patience_s:g} s: {why}"
            )
        )

    def _has_brought_something(self) -> bool:
        return any(
            membership.client.goes_on(group, membership.began) != membership.joined_at
            for group, membership in self._memberships.items()
        )

    def _join_again(self, remote: RemoteNodeApi) -> None:
        for group, membership in list(self._memberships.items()):
            membership.joined_at = (
                membership.client.goes_on(group, membership.began) or membership.joined_at
            )
            try:
                remote.join(
                    membership.client, group, *membership.joined_at.given, membership.wishes
                )
            except RoundelayError as refusal:  # as of a node of an older version
                del self._memberships[group]
                membership.client.cut_off(group, str(refusal))
            else:
                membership.client.returned(group)
        turned_away, self._turned_away = self._turned_away, {}
        for (_, group), client in turned_away.items():
            client.writable(group)

    def _give_up(self, error: ConnectionLost) -> None:
        self._end = error
        self._settled.set()
        for group, membership in self._memberships.items():
            membership.client.cut_off(group, str(error))
        self._memberships.clear()
        self.on_end(error)

    async def _rest(self, end: float) -> None:
        """Wait before the next attempt, each time longer."""
        rest_s = end - asyncio.get_running_loop().time()
        await asyncio.sleep(max(0.0, min(self._pause_s, rest_s)))
        self._pause_s = min(2 * self._pause_s, PAUSE_S_MAX)

    # -- the calls of a node API -----------------------------------------------------------

    def join(
        self,
        client: Client,
        group: str,
        since: Since,
        wishes: GroupSpec | None = None,
    ) -> None:
        """`wishes`: settings that the group must have; they are asked for after a break, too."""
        self._check()
        if self._remote is not None:
            self._remote.join(client, group, *since.given, wishes)
        self._memberships.setdefault(group, _Membership(client, since, since, wishes))

    def leave(self, client: Client, group: str) -> None:
        self._memberships.pop(group, None)
        if self._remote is not None:
            self._remote.leave(client, group)

    def gone(self, client: Client) -> None:
        for group in [
            group for group, membership in self._memberships.items() if membership.client is client
        ]:
            del self._memberships[group]
        if self._remote is not None:
            self._remote.gone(client)

    def send(
        self,
        client: Client,
        group: str,
        bundle: Bundle,
        *,
        tag: int = NO_TAG,
        **how: Any,
    ) -> None:
        """As at any node; without a connection there is no room (QueueFull)."""
        self._check()
        if self._remote is None:
            self._turned_away[id(client), group] = client
            raise QueueFull(f"group {group!r}: the connection to {self.where} is being made again")
        self._remote.send(client, group, bundle, tag=tag, **how)
        if tag == NO_TAG:
            self._posted[group] = client

    def joined(self, group: str) -> bool:
        """False only after the node refused a `join`."""
        return self._remote is None or self._remote.joined(group)

    def fell_behind(self, client: Client, group: str, since: int) -> bool:
        """A client that does not read holds what comes; if it has no room then, nobody has it."""
        return False

    def hold(self, group: str, stop: bool) -> None:
        if self._remote is not None:
            self._remote.hold(group, stop)

    async def ask(self, what: str, of: str | None = None) -> Any:
        """As the node answers; after a break the next connection is asked."""
        while True:
            remote = await self._connection()
            try:
                return await remote.ask(what, of)
            except ConnectionLost:
                if what in ASKED_ONCE:
                    raise

    async def _connection(self) -> RemoteNodeApi:
        """The present one, or the next; raises ConnectionLost when there will be none."""
        while self._remote is None:
            self._check()
            await self._settled.wait()
        return self._remote

    def _check(self) -> None:
        if self._end is not None:
            raise ConnectionLost(str(self._end))

    async def replay(
        self, group: str, request: ReplayRequest, reached: list[int] | None = None
    ) -> AsyncGenerator[list[Run], None]:
        """What is recorded; after a break it goes on where it was."""
        at = request.since
        while True:
            remote = await self._connection()
            try:
                rest = remote.replay(group, structs.replace(request, since=at), reached)
                async with aclosing(rest) as chunks:
                    async for chunk in chunks:
                        yield chunk
                        at = chunk[-1].end if chunk else at
                return
            except ConnectionLost:
                if protocol_of(group) not in TOTAL_ORDER:
                    raise

    async def close(self) -> None:
        if self._end is None:
            self._end = ConnectionLost(f"the connection to {self.where} was closed here")
            self.on_end(self._end)  # somebody may be waiting for something
        self._memberships.clear()
        if self._returning is not None:
            self._returning.cancel()
            with suppress(asyncio.CancelledError):
                await self._returning
        self._settled.set()
        if self._remote is not None:
            await self._remote.close()
