"""What was said before, as an application asks for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeVar
from weakref import WeakSet

from roundelay.client.contiguity import elsewhere
from roundelay.client.messages import Message, messages_of
from roundelay.client.sending import JoinedGroup
from roundelay.client.since import START, Moment, request_of, since_of
from roundelay.core.errors import ConfigError, MissingRecords
from roundelay.core.families import TOTAL
from roundelay.core.position import Position, holds
from roundelay.journal.format import GAP, HEADS_ONLY, Run
from roundelay.node.groups import family_of
from roundelay.node.node_api import Batch
from roundelay.node.recording.handover import batch_of
from roundelay.node.recording.units import ABORTED, part_of_unit
from roundelay.wire.frontend_replay import ReplayRequest

T = TypeVar("T")


@dataclass(eq=False, repr=False)
class Replay(AsyncIterator[T]):
    """Goes through the past once; made by `Group.replay`.

    A block is fetched by a task of its own, so that whoever waits for it can be cancelled, as by
    `asyncio.wait_for`, and the replay goes on where it was.  Whoever leaves early need do nothing;
    `aclose`, and `Group.leave`, end it at once.
    """

    _chunks: AsyncGenerator[list[Run], None]
    _give: Callable[[list[Run]], Iterator[T]]
    _check_open: Callable[[], None]
    _items: Iterator[T] = field(default_factory=lambda: iter(()))
    _fetching: asyncio.Task[list[Run] | None] | None = None
    _over: bool = False

    async def __anext__(self) -> T:
        if self._over:
            self._check_open()
            raise StopAsyncIteration
        try:
            while True:
                for item in self._items:
                    return item
                chunk = await self._chunk()
                if chunk is None:
                    self._over = True
                    raise StopAsyncIteration
                self._items = self._give(chunk)
        except asyncio.CancelledError:
            raise
        except BaseException:
            self._over = True
            raise

    async def _chunk(self) -> list[Run] | None:
        """The next block.  Of several who wait, the first gets it and the others an empty one."""
        fetching = self._fetching
        if fetching is None:
            fetching = self._fetching = asyncio.create_task(_next_of(self._chunks))
        try:
            chunk = await asyncio.shield(fetching)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self._over and task is not None and not task.cancelling():  # `aclose`
                self._check_open()
                return None
            raise
        if self._fetching is not fetching:
            return [] if chunk is not None else None
        self._fetching = None
        return chunk

    async def aclose(self) -> None:
        """Fetch nothing more."""
        self._over, self._items = True, iter(())
        fetching, self._fetching = self._fetching, None
        if fetching is not None:
            fetching.cancel()
            await asyncio.gather(fetching, return_exceptions=True)
        await self._chunks.aclose()


async def _next_of(chunks: AsyncGenerator[list[Run], None]) -> list[Run] | None:
    return await anext(chunks, None)


class Replaying(JoinedGroup):
    """The part of a `Group` that is about the past."""

    def __init__(self, name: str, node_api: Any) -> None:
        super().__init__(name, node_api)
        self._replays: WeakSet[Replay[Any]] = WeakSet()

    def replay(
        self,
        since: Moment = START,
        until: int | datetime | None = None,
        *,
        conference: int | Iterable[int] | None = None,
        sender: str | Iterable[str] | None = None,
        kind: int | Iterable[int] | None = None,
        missing: str = "raise",
    ) -> Replay[Message]:
        """Messages of the past, from the group's recorders, in order, each once; then it ends.

        since, until   a position or a datetime each, half-open; "start": all there is.  Without
                       `until`: up to what is delivered by now.  NoSuchPosition is raised if
                       `since` is of another history of the group, or one begins meanwhile
        conference, sender, kind   one or several of each; everything that is given must hold
        missing        "raise" MissingRecords where no recorder has a position any more (or only
                       its head), or "skip" it

        As much is fetched as is read.  When a recorder fails in the middle, another one goes on
        where it was.  What is delivered live meanwhile waits as usual; to go on from a replay to
        live messages without a gap, join with `since`.

        Parts of units come as they were recorded: each at its own position, also if the rest of
        its unit never came; `message.unit` tells.
        """
        request = request_of(since, until, conference=conference, sender=sender, kind=kind)
        batches = self._batches(since, request, missing)

        def messages(chunk: list[Run]) -> Iterator[Message]:
            for batch in batches(chunk):
                yield from messages_of(batch)

        return self._replay(since, request, messages)

    def replay_batches(
        self,
        since: Moment = START,
        until: int | datetime | None = None,
        *,
        missing: str = "raise",
        **which: Any,
    ) -> Replay[Batch]:
        """As `replay`, messages that were delivered together as one batch: the fast way."""
        request = request_of(since, until, **which)
        return self._replay(since, request, self._batches(since, request, missing))

    def _replay(
        self, since: Moment, request: ReplayRequest, give: Callable[[list[Run]], Iterator[T]]
    ) -> Replay[T]:
        self._check_open()
        chunks = self._node_api.replay(self.name, request)
        if family_of(self.name).order == TOTAL:
            asked = since_of(since)
            chunks = self._of_one_history(Position(asked.history, asked.seq), chunks)
        replay = Replay(chunks, give, self._check_open)
        self._replays.add(replay)
        return replay

    async def _of_one_history(
        self, at: Position, chunks: AsyncGenerator[list[Run], None]
    ) -> AsyncGenerator[list[Run], None]:
        """What comes, as long as it is of the history of `at`, or else of that of the first of it:
        recorders have what the group is in, and that may be another one after a break."""
        async with aclosing(chunks):
            while at.history and not self.view.history:
                await self.changed_view(self.view)
            self._check_history(at)
            async for chunk in chunks:
                self._check_history(at)
                at = Position(self.view.history or at.history, chunk[-1].end if chunk else at.seq)
                yield chunk

    def _check_history(self, at: Position) -> None:
        view = self.view
        if view.history and not holds(view.history, at):
            raise elsewhere(self.name, at, Position(view.history, max(0, view.position)))

    async def _end_replays(self) -> None:
        for replay in list(self._replays):
            await replay.aclose()

    def _batches(
        self, since: Moment, request: ReplayRequest, missing: str
    ) -> Callable[[list[Run]], Iterator[Batch]]:
        """How runs become batches, or an error where they are missing."""
        if missing not in ("raise", "skip"):
            raise ConfigError("missing", missing, '"raise" or "skip"')
        family = family_of(self.name)
        ordered, units = family.order == TOTAL, family.has_roles
        begun = since == START or bool(request.since_time)  # then a gap before the first is none

        def batches(chunk: list[Run]) -> Iterator[Batch]:
            nonlocal begun
            for run in chunk:
                if not run.flags & (GAP | HEADS_ONLY):
                    begun = False
                    if not units:
                        yield batch_of(self.name, run, ordered)
                    elif (part := part_of_unit(run)) != ABORTED:
                        yield batch_of(self.name, run, ordered, part)
                elif missing == "raise" and not (begun and run.flags & GAP):
                    why = " but their heads" if run.flags & HEADS_ONLY else ""
                    raise MissingRecords(self.name, run.position, run.end, why)

        return batches
