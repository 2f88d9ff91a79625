"""What has arrived for an application and is not read yet.

It belongs to the group, not to whoever reads it: readers take one batch or one message at a time,
and what they do not take stays.  So it does not matter how a reader ends (`break`, a timeout, a
cancelled task), how many there are, and whether they want batches or messages: everything is given
once, in order.

Where messages are missing an error stands in their place, and is raised once (`MissingMessages`).

A message is taken in the same step that returns it; there is no await in between at which a
cancelled reader could lose it.

Where the program runs in another thread than the group (`client.blocking`), readers wait in the
group's thread and take in their own; that is what the lock is for.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from operator import length_hint
from threading import RLock
from typing import Final, TypeVar

from msgspec import structs

from roundelay.client.messages import Message, messages_of
from roundelay.core.errors import ConfigError, GroupClosed, RoundelayError
from roundelay.node.driver.outbox import cost
from roundelay.node.node_api import END, MIDDLE, UNIT, Batch

T = TypeVar("T")

BATCH_COST: Final = 128
"""What a batch takes beside its messages, about."""

Item = Batch | RoundelayError


def cost_of(item: Item) -> int:
    """What a batch counts against the limit of what may wait."""
    return (cost(item.bundle) if isinstance(item, Batch) else 0) + BATCH_COST


class Inbox:
    """See the module."""

    def __init__(self) -> None:
        self.bytes = 0
        """What waits, about; of a batch that is read message by message, nothing."""
        self.messages: Iterator[Message] = iter(())
        """The rest of the batch that is read message by message."""
        self.on_given: Callable[[Item], None] = lambda item: None
        """Called when a batch, or the first message of one, or an error is taken, before it is."""
        self.on_room: Callable[[], None] = lambda: None
        """Called after that."""
        self.end: RoundelayError | None = None
        """Nothing more will come, and why; what is here can be read all the same."""
        self._items: deque[Item] = deque()
        self._opened: Batch | None = None
        self._arrived = asyncio.Event()
        self._lock = RLock()

    def __bool__(self) -> bool:
        return bool(self._items) or length_hint(self.messages) > 0

    @property
    def unread(self) -> int:
        """How many positions of a batch that was given in part are not given yet."""
        unread = length_hint(self.messages)
        return min(unread, 1) if unread and self._opened and self._opened.unit == UNIT else unread

    # -- from the group --------------------------------------------------------------------

    def put(self, item: Item) -> None:
        """An error is raised in its turn, and reading goes on behind it."""
        with self._lock:
            self.bytes += cost_of(item)
            self._items.append(item)
        self._arrived.set()

    def close(self, error: RoundelayError) -> None:
        """Nothing more will come; the first reason counts."""
        if self.end is None:
            self.end = error
        self._arrived.set()

    # -- to the application ----------------------------------------------------------------

    async def some(self) -> None:
        """Wait until there is something to take; raises what `close` was given when there will be
        nothing."""
        while not self:
            if self.end is not None:
                raise self.end.with_traceback(None)
            self._arrived.clear()
            await self._arrived.wait()

    async def following(self, take: Callable[[], T | None]) -> T:
        """What `take` gives, when there is something; raises why there will be nothing."""
        while (item := take()) is None:
            await self.some()
        return item

    def take(self) -> Message | None:
        """The next message, if there is one; raises an error whose turn it is."""
        with self._lock:
            while True:
                for message in self.messages:
                    return message
                if not self.open_next():
                    return None

    def open_next(self) -> bool:
        """Whether there are `messages` to read: if there were none, those of the next batch."""
        with self._lock:
            if not length_hint(self.messages):
                if not self._advance():
                    return False
                assert self._opened is not None
                self.messages = iter(messages_of(self._opened))
            return True

    def take_batch(self) -> Batch | None:
        """The next batch, if there is one: the rest of one whose first messages were taken."""
        with self._lock:
            if length_hint(self.messages):
                return self._rest()
            return self._opened if self._advance() else None

    def _advance(self) -> bool:
        """Whether there is another batch, now in `_opened`; raises an error whose turn it is."""
        if not self._items:
            return False
        item = self._items.popleft()
        self.bytes -= cost_of(item)
        self.on_given(item)
        self.on_room()
        if isinstance(item, RoundelayError):
            raise item
        self._opened = item
        return True

    def _rest(self) -> Batch:
        batch = self._opened
        assert batch is not None
        count = len(batch.bundle)
        first, last = count - length_hint(self.messages), count
        if batch.unit == UNIT:  # which place its parts have is in no batch but in a whole one
            last = max(first + 1, count - 1)
            unit = END if last == count else MIDDLE
            rest = structs.replace(batch, bundle=batch.bundle.part(first, last), unit=unit)
        else:
            seq = batch.seq + first if batch.seq >= 0 else batch.seq
            rest = structs.replace(batch, bundle=batch.bundle.part(first, last), seq=seq)
        for _ in range(last - first):
            next(self.messages)
        return rest


class InboxReader(AsyncIterator[Message]):
    """`async for` over an inbox; several of them share what there is.

    It stays usable when a wait for the next one is cancelled, as by `asyncio.wait_for`.
    """

    __slots__ = ("_inbox",)

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox

    async def __anext__(self) -> Message:
        inbox = self._inbox
        try:
            while True:
                for message in inbox.messages:  # the fast way: no call, no wait
                    return message
                if not inbox.open_next():
                    await inbox.some()
        except GroupClosed:
            raise StopAsyncIteration from None


class Each(AsyncIterator[T]):
    """`async for` over what `following` gives, until the group is left."""

    def __init__(self, following: Callable[[], Awaitable[T]]) -> None:
        self._following = following

    async def __anext__(self) -> T:
        try:
            return await self._following()
        except GroupClosed:
            raise StopAsyncIteration from None


def check_timeout(timeout: object) -> None:
    fits = isinstance(timeout, int | float) and not isinstance(timeout, bool) and timeout >= 0
    if timeout is not None and not fits:
        raise ConfigError("timeout", repr(timeout), "seconds, from 0 up, or None: for ever")
