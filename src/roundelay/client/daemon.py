"""A group's way to a daemon: one connection, and the next one when that breaks.

The group keeps its place in the order (`client.contiguity`), so after a break it joins again at the
position that has to come next: what was delivered meanwhile comes from the daemon's memory, other
members or recorders, nothing comes twice, and where nobody has it, or the position is of another
history by now, the application gets the error that `join(since=…)` would have given.  What was
under way when the connection broke is never sent again by itself: nobody knows what became of it
(Indeterminate).  What is sent meanwhile waits.

Where a service has no total order there is no position to go on at, and nobody could say what was
missed; there, and when no connection was made for `timeout` seconds, the group is over
(ConnectionLost).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Any, Final

from msgspec import structs

from roundelay.client.remote import CONNECT_S, RemoteSwitchboard
from roundelay.client.since import Since
from roundelay.core.bundle import Bundle
from roundelay.core.errors import ConnectionLost, NodeUnreachable, QueueFull
from roundelay.journal.format import Run
from roundelay.node.groups import TOTAL_ORDER, GroupSpec, protocol_of
from roundelay.node.switchboard import NO_TAG, Application
from roundelay.wire.frontend_replay import Wish

if TYPE_CHECKING:
    from roundelay.client.group import Group

PAUSE_S: Final = 0.05
PAUSE_S_MAX: Final = 1.0
"""Between attempts to connect: the first time, and at most."""
LASTING_S: Final = 1.0
"""A connection that lasts so long, or brings something, is worth another one at once."""


class Daemon:
    """The switchboard of a daemon, for one group; made by `connect`."""

    def __init__(self, where: str, name: str, patience_s: float) -> None:
        self.where = where
        self._name = name
        self._patience_s = patience_s
        self._remote: RemoteSwitchboard | None = None
        self._group: Group | None = None
        self._since = Since()
        self._joined_at = Since()
        """Where this connection began, """
        self._made = 0.0
        """and when."""
        self._pause_s = PAUSE_S
        self._wishes: dict[str, Any] = {}
        self._returning: asyncio.Task[None] | None = None
        self._settled = asyncio.Event()
        """There is a connection, or there will be none."""
        self._posted = False
        """Something was sent over this connection that gets no receipt."""

    @classmethod
    async def connect(cls, where: str, *, name: str, patience_s: float) -> Daemon:
        """Raises NodeUnreachable: the first connection is made once, or not at all."""
        daemon = cls(where, name, patience_s)
        await daemon._connect(CONNECT_S)
        return daemon

    async def _connect(self, timeout_s: float) -> RemoteSwitchboard:
        def lost(error: ConnectionLost) -> None:
            if self._remote is remote:
                self._lost(error)

        remote: RemoteSwitchboard | None = None
        remote = await RemoteSwitchboard.connect(
            self.where, name=self._name, lost=lost, timeout_s=timeout_s
        )
        if remote.error is not None:
            raise ConnectionLost(str(remote.error))
        self._remote, self._posted = remote, False
        self._made = asyncio.get_running_loop().time()
        self._settled.set()
        return remote

    # -- when it breaks --------------------------------------------------------------------

    def _lost(self, error: ConnectionLost) -> None:
        self._remote = None
        group = self._group
        if group is None:
            return
        if protocol_of(group.name) not in TOTAL_ORDER:
            group.disconnected(str(error))
            return
        if self._posted:
            group.in_doubt(f"posted before the connection to {self.where} broke")
        self._settled.clear()
        self._returning = asyncio.get_running_loop().create_task(self._return(group, error))

    async def _return(self, group: Group, error: ConnectionLost) -> None:
        clock = asyncio.get_running_loop().time
        end = clock() + self._patience_s
        why = ""
        if group.goes_on(self._since) != self._joined_at or clock() > self._made + LASTING_S:
            self._pause_s = PAUSE_S
        else:
            await self._rest(end)  # it accepts us and lets us go again
        while clock() < end:
            try:
                remote = await self._connect(min(CONNECT_S, end - clock()))
                self._joined_at = group.goes_on(self._since)
                remote.join(group, group.name, *self._joined_at.given, **self._wishes)
                group.returned()
                return
            except (NodeUnreachable, ConnectionLost) as refusal:
                why = str(refusal)
            await self._rest(end)
        self._settled.set()
        group.disconnected(
            f"the connection to the node at {self.where} was lost and could not be made again in "
            f"{self._patience_s:g} s: {why or error}"
        )

    async def _rest(self, end: float) -> None:
        """Wait before the next attempt, each time longer."""
        left = end - asyncio.get_running_loop().time()
        await asyncio.sleep(max(0.0, min(self._pause_s, left)))
        self._pause_s = min(2 * self._pause_s, PAUSE_S_MAX)

    # -- the calls of a switchboard --------------------------------------------------------

    def join(self, group: Group, since: Since, wishes: GroupSpec | None = None) -> None:
        """`wishes`: settings that the group must have; they are asked for after a break, too."""
        assert self._remote is not None
        self._wishes = {} if wishes is None else {"wishes": wishes}
        self._remote.join(group, group.name, *since.given, **self._wishes)
        self._group, self._since, self._joined_at = group, since, since

    def leave(self, application: Application, group: str) -> None:
        self._group = None
        if self._remote is not None:
            self._remote.leave(application, group)

    def gone(self, application: Application) -> None:
        self._group = None
        if self._remote is not None:
            self._remote.gone(application)

    def send(
        self,
        application: Application,
        group: str,
        bundle: Bundle,
        *,
        tag: int = NO_TAG,
        to: Iterable[str] | None = None,
        someone: bool = False,
        **extra: Any,
    ) -> None:
        """As any switchboard; without a connection there is no room (QueueFull)."""
        if self._remote is None:
            raise QueueFull(f"group {group!r}: the connection to {self.where} is being made again")
        self._remote.send(application, group, bundle, tag=tag, to=to, someone=someone, **extra)
        self._posted = self._posted or tag == NO_TAG

    def joined(self, group: str) -> bool:
        """False only after the node refused a `join`."""
        return self._remote is None or self._remote.joined(group)

    def hold(self, group: str, stop: bool) -> None:
        if self._remote is not None:
            self._remote.hold(group, stop)

    async def replay(
        self, group: str, wish: Wish, reached: list[int] | None = None
    ) -> AsyncGenerator[list[Run], None]:
        """What is recorded; after a break it goes on where it was."""
        at = wish.since
        while True:
            await self._settled.wait()
            if self._remote is None:
                raise ConnectionLost(f"group {group}: there is no connection to {self.where}")
            try:
                rest = self._remote.replay(group, structs.replace(wish, since=at), reached)
                async with aclosing(rest) as chunks:
                    async for chunk in chunks:
                        yield chunk
                        at = chunk[-1].end if chunk else at
                return
            except ConnectionLost:
                if protocol_of(group) not in TOTAL_ORDER or self._group is None:
                    raise

    async def close(self) -> None:
        self._group = None
        if self._returning is not None:
            self._returning.cancel()
            with suppress(asyncio.CancelledError):
                await self._returning
        self._settled.set()
        if self._remote is not None:
            await self._remote.close()
