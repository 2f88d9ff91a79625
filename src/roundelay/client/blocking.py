"""A group for programs without asyncio: the same calls, each of which waits.

::

    with roundelay.join("orders") as group:
        print(group.broadcast(b"first").seq)
        for message in group:
            print(message.seq, message.sender, message.data)

The node runs in a thread of its own, so the group stays alive while the program computes.  The
program waits for messages in that thread and takes them in its own: what it does not take stays
with the group, also when the wait is interrupted (Ctrl-C).  Several threads may use a group.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import suppress
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from roundelay.client.inbox import check_timeout
from roundelay.client.sending import GroupSending
from roundelay.core.errors import GroupClosed
from roundelay.core.position import Position
from roundelay.node.node_api import Batch, View
from roundelay.node.process import loop_factory, of_the_parent

if TYPE_CHECKING:
    from roundelay.client.group import Group, Message

P = ParamSpec("P")
T = TypeVar("T")


class LoopThread:
    """An event loop in a thread."""

    def __init__(self) -> None:
        self._process = os.getpid()
        self._runner = asyncio.Runner(loop_factory=loop_factory())
        self._loop: asyncio.AbstractEventLoop
        self._stopped = False
        self._stopping = threading.Lock()
        started = threading.Event()
        self._thread = threading.Thread(
            target=self._run, args=(started,), name="roundelay", daemon=True
        )
        self._thread.start()
        started.wait()

    def _run(self, started: threading.Event) -> None:
        with self._runner as runner:
            self._loop = runner.get_loop()
            self._loop.call_soon(started.set)
            self._loop.run_forever()

    def call(self, work: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """What `work` returns; TimeoutError ends it."""
        if os.getpid() != self._process:  # a forked child has no such thread: nobody would answer
            work.close()
            raise of_the_parent()
        with self._stopping:  # a loop that has been told to stop would never answer
            if self._stopped:
                work.close()
                raise GroupClosed("the group was left")
            future: Future[T] = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(timeout)
        except BaseException:
            future.cancel()
            raise

    def later(self, work: Callable[[], None]) -> None:
        """Do `work` there, soon."""
        if os.getpid() != self._process:
            return
        with suppress(RuntimeError):  # the loop is closed: there is nothing left to do
            self._loop.call_soon_threadsafe(work)

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def stop(self) -> None:
        with self._stopping:
            if not self._stopped:
                self._stopped = True
                self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()


def _waiting(
    call: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[BlockingGroup, P], T]:
    """That call of a `Group`, waited for."""

    @wraps(call)
    def waiting(self: BlockingGroup, /, *args: P.args, **how: P.kwargs) -> T:
        return self._thread.call(call(self._group, *args, **how))

    return waiting


class BlockingGroup:
    """See the module; `Group` explains the calls."""

    def __init__(self, thread: LoopThread, group: Group) -> None:
        self._thread = thread
        self._group = group
        self._inbox = group.inbox
        room = self._inbox.on_room
        self._inbox.on_room = lambda: thread.later(room)
        self.name = group.name

    broadcast = _waiting(GroupSending.broadcast)
    broadcast_many = _waiting(GroupSending.broadcast_many)
    broadcast_unit = _waiting(GroupSending.broadcast_unit)
    send = _waiting(GroupSending.send)
    send_someone = _waiting(GroupSending.send_someone)
    post = _waiting(GroupSending.post)

    def ready(self, members: int = 1, timeout: float | None = None) -> View:
        return self._thread.call(self._group.ready(members), timeout)

    @property
    def view(self) -> View:
        return self._group.view

    @property
    def history(self) -> str:
        return self._group.history

    @property
    def position(self) -> Position | None:
        return self._group.position

    @property
    def skipped(self) -> int:
        return self._group.skipped

    def views(self) -> Iterator[View]:
        with suppress(GroupClosed):
            yield from self._drive(self._group.views())

    def receive(self, timeout: float | None = None) -> Message:
        check_timeout(timeout)
        end = None if timeout is None else time.monotonic() + timeout
        while (message := self._inbox.take()) is None:
            self._wait(None if end is None else max(0.0, end - time.monotonic()))
        return message

    def batches(self) -> Iterator[Batch]:
        return self._each(self._inbox.take_batch)

    def __iter__(self) -> Iterator[Message]:
        return self._each(self._inbox.take)

    def _each(self, take: Callable[[], T | None]) -> Iterator[T]:
        with suppress(GroupClosed):
            while True:
                while (item := take()) is not None:
                    yield item
                self._wait()

    def _wait(self, timeout: float | None = None) -> None:
        """Until there is something to take, or raise why there will be nothing."""
        if self._inbox.end is not None and not self._inbox:
            raise self._inbox.end.with_traceback(None)
        self._thread.call(self._inbox.some(), timeout)

    def replay(self, *moments: Any, **which: Any) -> Iterator[Message]:
        return self._drive(self._group.replay(*moments, **which))

    def replay_batches(self, *moments: Any, **which: Any) -> Iterator[Batch]:
        return self._drive(self._group.replay_batches(*moments, **which))

    def _drive(self, source: AsyncIterator[T]) -> Iterator[T]:
        async def following() -> list[T]:
            try:
                return [await anext(source)]
            except StopAsyncIteration:
                return []

        try:
            while items := self._thread.call(following()):
                yield items[0]
        finally:
            close = getattr(source, "aclose", None)
            if close is not None and self._thread.running:
                with suppress(GroupClosed):  # left meanwhile, which ends it, too
                    self._thread.call(close())

    def leave(self) -> None:
        if self._thread.running:
            with suppress(GroupClosed):  # another thread was faster
                self._thread.call(self._group.leave())
            self._thread.stop()
