"""What the members of a group have in their memories, as a node hears of it
(`node.recording.memory`).

With every INFO a node says which positions of its groups it could still give to others (`Kept`); at
once when somebody lacks messages (`Wanted`).  So a member that was away, or a late one whose
application begins at an earlier position, gets from any of the others what no recorder has.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from roundelay.core.engine import SECOND
from roundelay.node.recording.memory import Memory
from roundelay.node.recording.source_selection import Source
from roundelay.wire.control import Kept, Recorded

if TYPE_CHECKING:
    from roundelay.node.recording.recorders import Recorders

HEARD_MAX: Final = 4096
FORGET_NS: Final = 10 * SECOND
"""A member that has said nothing for so long cannot be asked."""
LIVELY_NS: Final = 3 * SECOND
"""One that has said something since is about to say more."""


class _HeardMemory(Struct):
    word: Kept
    seen: int


class MemberMemories:
    """The memories of all members, ours among them."""

    def __init__(self, recorders: Recorders) -> None:
        self._recorders = recorders
        self._heard: dict[tuple[str, str], _HeardMemory] = {}
        self._opening: asyncio.Task[None] | None = None

    def memory(self, group: str) -> Memory | None:
        """What our own member keeps of a group with a total order."""
        host = self._recorders.node.group_hosts.get(group)
        memory = host.memory if host is not None else None
        return memory if memory is not None and memory.history else None

    def serve(self) -> None:
        """A group has a memory here: be ready to be asked for it."""
        if self._opening is None and not self._recorders.server.port:
            self._opening = asyncio.get_running_loop().create_task(self._open())

    async def _open(self) -> None:
        try:
            await self._recorders.serve()
            self.say()
        except OSError as error:
            self._recorders.node.log("warning", "memory.not_served", reason=str(error))

    async def stop(self) -> None:
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.gather(self._opening, return_exceptions=True)

    def say(self) -> None:
        """With every INFO."""
        for group in list(self._recorders.node.group_hosts):
            self.tell(group)

    def tell(self, group: str) -> None:
        memory, port = self.memory(group), self._recorders.server.port
        if memory is None or not port or memory.begin == memory.end:
            return
        name = self._recorders.node.name
        word = Kept(group, name, port, memory.begin, memory.end, memory.history)
        self._recorders.node.send_control(word)

    def hear(self, word: Kept, now: int) -> None:
        key = (word.group, word.name)
        if key not in self._heard and len(self._heard) >= HEARD_MAX:
            self._recorders.node.drop("too many memories")
            return
        self._heard[key] = _HeardMemory(word, now)

    def on_tick(self, now: int) -> None:
        for key, heard in list(self._heard.items()):
            if now - heard.seen > FORGET_NS:
                del self._heard[key]

    def histories(self, group: str) -> list[str]:
        """Return the histories of which members have something in memory, as heard lately."""
        now = time.monotonic_ns()
        return [
            heard.word.history
            for (name, _), heard in self._heard.items()
            if name == group and now - heard.seen < LIVELY_NS
        ]

    def ends(self, group: str, history: str) -> list[int]:
        """How far other members have said that they have this history."""
        words = [heard.word for (name, _), heard in self._heard.items() if name == group]
        return [word.next for word in words if word.history == history]

    def kept_by(self, group: str) -> dict[str, int]:
        """How far the memories of other nodes reach, whatever history it is."""
        words = [heard.word for (name, _), heard in self._heard.items() if name == group]
        return {word.name: word.next for word in words}

    def sources(self, group: str) -> list[Source]:
        """Other members that have something of the history that ours is in."""
        node, now = self._recorders.node, time.monotonic_ns()
        memory = self.memory(group)
        if memory is None:
            return []
        sources = []
        for (name, member), heard in self._heard.items():
            word = heard.word
            known = node.directory.by_name.get(member)
            if name != group or known is None or word.history != memory.history:
                continue
            if now - heard.seen > FORGET_NS:
                continue
            stretch = Recorded(
                group, member, word.port, word.begin, word.next, 0, history=word.history
            )
            address = (known.address[0], word.port)
            sources.append(Source(stretch, address=address, memory=word.history))
        return sorted(sources, key=lambda source: (source.word.begin, source.word.name))
