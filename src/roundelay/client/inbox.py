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
from collections.abc import AsyncIterator, Callable, Iterator
from operator import length_hint
from threading import Lock
from typing import Any, Final, Generic, TypeVar

from msgspec import structs

from roundelay.core.errors import ConfigError, GroupClosed, RoundelayError
from roundelay.node.driver.outbox import cost
from roundelay.node.node_api import END, MIDDLE, UNIT, Batch

BATCH_COST: Final = 128
"""What a batch takes beside its messages, about."""

M = TypeVar("M")


Item = Batch | RoundelayError


def cost_of(item: Item) -> int:
    """What a batch counts against the limit of what may wait."""
    return (cost(item.bundle) if isinstance(item, Batch) else 0) + BATCH_COST


class Inbox(Generic[M]):
    """See the module; `cut` makes the messages of a batch, as the application has them."""

    def __init__(self, cut: Callable[[Batch], list[M]]) -> None:
        self.bytes = 0
        """What waits, about; of a batch that is read message by message, nothing."""
        self.messages: Iterator[M] = iter(())
        """The rest of the batch that is read message by message."""
        self.on_given: Callable[[Item], None] = lambda item: None
        """Called when a batch, or the first message of one, or an error is taken, before it is."""
        self.on_room: Callable[[], None] = lambda: None
        """Called after that."""
        self.end: RoundelayError | None = None
        """Nothing more will come, and why; what is here can be read all the same."""
        self._cut = cut
        self._items: deque[Item] = deque()
        self._opened: Batch | None = None
        self._arrived = asyncio.Event()
        self._lock = Lock()

    def __bool__(self) -> bool:
        return bool(self._items) or length_hint(self.messages) > 0

    @property
    def unread(self) -> int:
        """How many positions of a batch that was given in part are not given yet."""
        left = length_hint(self.messages)
        return min(left, 1) if left and self._opened and self._opened.unit == UNIT else left

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

    def take(self) -> M | None:
        """The next message, if there is one; raises an error whose turn it is."""
        with self._lock:
            for message in self.messages:
                return message
            while self._items:
                self._opened = self._pop()
                self.messages = iter(self._cut(self._opened))
                for message in self.messages:
                    return message
        return None

    def take_batch(self) -> Batch | None:
        """The next batch, if there is one: the rest of one whose first messages were taken."""
        with self._lock:
            if length_hint(self.messages):
                return self._rest()
            return self._pop() if self._items else None

    def _pop(self) -> Batch:
        item = self._items.popleft()
        self.bytes -= cost_of(item)
        self.on_given(item)
        self.on_room()
        if isinstance(item, RoundelayError):
            raise item
        return item

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


class Reader(AsyncIterator[M]):
    """`async for` over an inbox; several of them share what there is.

    It stays usable when a wait for the next one is cancelled, as by `asyncio.wait_for`.
    """

    __slots__ = ("_inbox",)

    def __init__(self, inbox: Inbox[M]) -> None:
        self._inbox = inbox

    def __aiter__(self) -> Reader[M]:
        return self

    async def __anext__(self) -> M:
        inbox = self._inbox
        for message in inbox.messages:  # the fast way: no call, no wait
            return message
        try:
            while (following := inbox.take()) is None:
                await inbox.some()
            return following
        except GroupClosed:
            raise StopAsyncIteration from None


class BatchReader(AsyncIterator[Batch]):
    """The same, batch by batch."""

    __slots__ = ("_inbox",)

    def __init__(self, inbox: Inbox[Any]) -> None:
        self._inbox = inbox

    def __aiter__(self) -> BatchReader:
        return self

    async def __anext__(self) -> Batch:
        while (batch := self._inbox.take_batch()) is None:
            try:
                await self._inbox.some()
            except GroupClosed:
                raise StopAsyncIteration from None
        return batch


async def following(inbox: Inbox[M]) -> M:
    """The next message, when there is one; raises why there will be none."""
    while (message := inbox.take()) is None:
        await inbox.some()
    return message


def check_timeout(timeout: object) -> None:
    fits = isinstance(timeout, int | float) and not isinstance(timeout, bool) and timeout >= 0
    if timeout is not None and not fits:
        raise ConfigError("timeout", repr(timeout), "seconds, from 0 up, or None: for ever")
