"""Reading a group: what is not read stays with the group, however a reader ends."""

from __future__ import annotations

import asyncio
import random
import signal
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import roundelay
from roundelay.client.blocking import BlockingGroup
from roundelay.client.group import Group, Message
from roundelay.client.inbox import Inbox
from roundelay.client.messages import messages_of
from roundelay.core.bundle import Bundle
from roundelay.core.errors import ConfigError, GroupClosed
from roundelay.node.frontend.server import FrontendServer
from roundelay.node.node_api import UNIT, Batch
from tests.node.live import multicast, node_of

MANY = [b"%d" % number for number in range(400)]
WAYS = pytest.mark.parametrize("through_daemon", [False, True])


def options() -> dict[str, Any]:
    alone = {"name": "a", "min_members": 1}
    return alone | {"insecure": True, "multicast": multicast(), "interface": "lo"}


@asynccontextmanager
async def joined(through_daemon: bool, **more: Any) -> AsyncIterator[Group]:
    """A group of one member, as its own node has it or a daemon's client."""
    async with roundelay.join("g", **options(), **more) as own:
        await own.ready()
        if not through_daemon:
            yield own
            return
        server = FrontendServer(node_of(own), ["127.0.0.1:0"], name="a")
        await server.start()
        try:
            async with roundelay.join("g", node=server.addresses[0]) as remote:
                await remote.ready()
                yield remote
        finally:
            await server.close()


@WAYS
async def test_what_is_not_read_before_break_is_read_after_it(through_daemon: bool) -> None:
    async with joined(through_daemon) as group:
        await group.broadcast_many(MANY)
        got: list[Message] = []
        with suppress(TimeoutError):  # then the next line says what is missing
            async with asyncio.timeout(5):
                while len(got) < len(MANY):
                    async for message in group:
                        got.append(message)
                        if len(got) % 50 == 0:
                            break
                    assert group.position is not None
                    assert group.position.seq == len(got)  # not the end of the batch
        assert [message.data for message in got] == MANY, f"got {len(got)} of 400"
        assert [message.seq for message in got] == list(range(400))

        # The ways to read can be mixed; a batch is the rest of one that was begun.
        await group.broadcast_many(MANY, conference=7)
        mixed = [await group.receive(), await anext(aiter(group))]
        async for batch in group.batches():
            mixed += messages_of(batch)
            break
        while len(mixed) < len(MANY):
            mixed.append(await group.receive(timeout=20))
        assert [message.data for message in mixed] == MANY
        assert [message.seq for message in mixed] == list(range(400, 800))
        assert {message.conference for message in mixed} == {7}

        with pytest.raises(TimeoutError):
            await group.receive(timeout=0)
        with pytest.raises(TimeoutError):
            await group.receive(timeout=0.01)
        with pytest.raises(ConfigError, match=r"timeout = -1 .* from 0 up"):
            await group.receive(timeout=-1)
    with pytest.raises(GroupClosed):
        await group.receive(timeout=20)
    assert [message async for message in group] == []  # its own `leave` ends it quietly


@WAYS
async def test_a_cancelled_reader_loses_nothing(through_daemon: bool) -> None:
    """Readers are cancelled, time out and stop while messages come in, several at a time."""
    chance = random.Random(11)

    async with joined(through_daemon) as group:
        got: list[Message] = []
        reader, batches = aiter(group), group.batches()

        async def one() -> None:
            got.append(await anext(reader))

        async def soon() -> None:
            got.append(await asyncio.wait_for(anext(reader), chance.random() / 500))

        async def some() -> None:
            async for message in group:
                got.append(message)
                if chance.random() < 0.1:
                    break

        async def batch() -> None:
            got.extend(messages_of(await anext(batches)))

        async def timed() -> None:
            got.append(await group.receive(timeout=chance.random() / 500))

        async def send() -> None:
            for start in range(0, 4000, 40):
                await group.post([b"%d" % number for number in range(start, start + 40)])
                if chance.random() < 0.5:
                    await asyncio.sleep(chance.random() / 200)

        sending = asyncio.create_task(send())
        while len(got) < 4000:
            tasks = [
                asyncio.create_task(chance.choice((one, soon, some, batch, timed))())
                for _ in range(chance.randrange(1, 4))
            ]
            await asyncio.sleep(chance.random() / 500)
            for task in tasks:
                task.cancel()
            for outcome in await asyncio.gather(*tasks, return_exceptions=True):
                assert outcome is None or isinstance(
                    outcome, TimeoutError | asyncio.CancelledError
                ), outcome
        await sending
        # Readers side by side finish in any order, but each message came once.
        assert sorted(message.seq or 0 for message in got) == list(range(4000))
        with suppress(TimeoutError):
            pytest.fail(f"twice: {await group.receive(timeout=0.05)}")


async def test_two_readers_share_what_comes() -> None:
    async with joined(False) as group:
        got: list[list[int]] = [[], []]

        async def read(mine: list[int]) -> None:
            async for message in group:
                mine.append(message.seq or 0)
                if message.seq == 399:
                    return
                await asyncio.sleep(0)

        readers = [asyncio.create_task(read(mine)) for mine in got]
        await group.broadcast_many(MANY)
        await asyncio.wait(readers, return_when=asyncio.FIRST_COMPLETED)
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
        assert all(mine == sorted(mine) and len(mine) > 100 for mine in got)
        assert sorted(got[0] + got[1]) == list(range(400))


async def test_views_go_on_after_a_wait_that_was_cancelled() -> None:
    async with joined(False) as group:
        views = group.views()
        assert (await anext(views)).members == ("a",)
        for _ in range(2):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(views), 0.01)
        await group.leave()
        with pytest.raises(StopAsyncIteration):
            await anext(views)
        with pytest.raises(GroupClosed):
            await group.ready()


@contextmanager
def blocking(through_daemon: bool) -> Iterator[BlockingGroup]:
    """As `joined`, without asyncio."""
    with roundelay.join("g", **options()) as own:
        own.ready()
        if not through_daemon:
            yield own
            return
        thread, node = own._thread, node_of(own._group)

        async def serve() -> FrontendServer:
            server = FrontendServer(node, ["127.0.0.1:0"], name="a")
            await server.start()
            return server

        server = thread.call(serve())
        with roundelay.join("g", node=server.addresses[0]) as remote:
            remote.ready()
            yield remote
        thread.call(server.close())


@WAYS
def test_a_blocking_reader_may_stop_and_go_on(through_daemon: bool) -> None:
    with blocking(through_daemon) as group:
        group.broadcast_many(MANY)
        got: list[Message] = []
        for message in group:
            got.append(message)
            if len(got) == 50:
                break
        got.append(group.receive())
        got.append(next(iter(group)))
        got += messages_of(next(group.batches()))
        assert [message.data for message in got] == MANY
        with pytest.raises(TimeoutError):
            group.receive(timeout=0.01)

        # Threads that read side by side: each message once, and each thread's in order.
        shares: list[list[int]] = [[], [], []]

        def read(mine: list[int]) -> None:
            with suppress(TimeoutError):
                while True:
                    mine.append(group.receive(timeout=1.0).seq or 0)

        # A wait that is interrupted takes nothing with it.
        def interrupt(number: int, frame: object) -> None:
            raise KeyboardInterrupt

        before = signal.signal(signal.SIGUSR1, interrupt)
        try:
            main = threading.main_thread().ident
            assert main is not None
            threading.Timer(0.2, signal.pthread_kill, (main, signal.SIGUSR1)).start()
            with pytest.raises(KeyboardInterrupt):
                group.receive(timeout=20)
        finally:
            signal.signal(signal.SIGUSR1, before)

        threads = [threading.Thread(target=read, args=(mine,)) for mine in shares]
        for thread in threads:
            thread.start()
        for start in range(0, 2000, 20):
            group.post([b"%d" % number for number in range(start, start + 20)])
        for thread in threads:
            thread.join()
        assert sorted(shares[0] + shares[1] + shares[2]) == list(range(400, 2400))
        assert all(mine == sorted(mine) for mine in shares)
    with pytest.raises(GroupClosed):
        group.receive()
    assert list(group) == []


@WAYS
async def test_a_replay_may_be_left_cancelled_and_gone_on_with(
    through_daemon: bool, tmp_path: Path
) -> None:
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, what: complaints.append(what))
    more: dict[str, Any] = {"dir": tmp_path, "record": True}
    async with joined(through_daemon, **more) as group:
        for start in range(0, 400, 50):
            await group.broadcast_many(MANY[start : start + 50], durability="recorded")
        for count in range(1, 8):
            async for message in group.replay():
                if message.seq == count:
                    break
        replay = group.replay()
        got: list[bytes] = []
        while len(got) < 400:
            waiting = asyncio.create_task(anext(replay))
            await asyncio.sleep(0)
            if not waiting.done():
                waiting.cancel()  # before the first block is there, too
            with suppress(asyncio.CancelledError):
                got.append((await waiting).data)
        assert got == MANY
        with pytest.raises(StopAsyncIteration):
            await anext(replay)
        left = group.replay()
        await anext(left)  # open when the group is left
    with pytest.raises(GroupClosed):
        await anext(left)
    assert not complaints


def test_a_blocking_replay_may_be_left(tmp_path: Path) -> None:
    with roundelay.join("g", **options(), dir=tmp_path, record=True) as group:
        for start in range(0, 400, 50):
            group.broadcast_many(MANY[start : start + 50], durability="recorded")
        for count in range(3):
            for message in group.replay():
                if message.seq == count:
                    break
        assert [message.data for message in group.replay(since=390)] == MANY[390:]


def test_the_rest_of_a_unit_keeps_its_places() -> None:
    inbox = Inbox()
    unit = Batch("grsb:g", 9, "a", 5, Bundle.of(b"w", b"x", b"y", b"z").marked(7), UNIT)
    for read in range(5):
        inbox.put(unit)
        got = [inbox.take() for _ in range(read)]
        while inbox:
            batch = inbox.take_batch()
            assert batch is not None
            got += messages_of(batch)
        assert [(one.data, one.unit, one.seq, one.conference) for one in got if one] == [
            (b"w", "start", 9, 7), (b"x", "middle", 9, 7), (b"y", "middle", 9, 7),
            (b"z", "end", 9, 7),
        ]  # fmt: skip
    assert inbox.bytes == 0


def test_after_leaving_a_blocking_group_says_that_it_was_left() -> None:
    """Its event loop has ended then: calls failed with RuntimeError, or could wait for ever."""
    with blocking(False) as group:
        group.broadcast(b"one")
        waiting: list[BaseException] = []

        def wait() -> None:
            try:
                group.ready(members=9)
            except BaseException as error:
                waiting.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        group.leave()
        thread.join(20)
        assert [type(error) for error in waiting] == [GroupClosed]
        for call in (lambda: group.broadcast(b"two"), group.ready, lambda: group.post([b"three"])):
            with pytest.raises(GroupClosed):
                call()
        assert list(group.views()) == []
        assert [message.data for message in group] == [b"one"]  # what had arrived can be read
