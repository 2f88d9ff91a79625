"""A lost connection or node is no end of a group: ConnectionLost, or going on where one was."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import roundelay
from roundelay.client.contiguity import Contiguity
from roundelay.client.daemon import Daemon
from roundelay.client.group import Group, Message
from roundelay.core.errors import ConnectionLost, Indeterminate
from roundelay.core.position import Position, Since
from roundelay.node.frontend.server import FrontendServer
from roundelay.wire.frontend import json_packet
from tests.node.live import Member, Net, delivered, kill, together, until


class Proxy:
    """Passes bytes on to a daemon, until the line is cut."""

    def __init__(self, to: str) -> None:
        self.to = to
        self.where = ""
        self.accepts = True
        self.connections = 0
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> Proxy:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()
        self.where = f"{host}:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        await asyncio.sleep(0.01)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, port = self.to.rsplit(":", 1)
        try:
            if not self.accepts:
                raise OSError("cut")
            theirs, ours = await asyncio.open_connection(host, int(port))
        except OSError:
            writer.transport.abort()
            return
        self.connections += 1
        self._writers |= {writer, ours}
        await asyncio.gather(self._pass(reader, ours), self._pass(theirs, writer))

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            # Small pieces, so that a cut can be in the middle of a packet.
            while data := await reader.read(1000):
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.transport.abort()
            self._writers.discard(writer)

    def cut(self) -> None:
        for writer in list(self._writers):
            writer.transport.abort()


async def daemon(member: Member, where: str = "127.0.0.1:0") -> FrontendServer:
    server = FrontendServer(member.node, [where], name=member.name)
    await server.start()
    member.node.add_frontend(server)
    return server


class Log:
    """What an application was given, and how it ended."""

    def __init__(self, group: Group) -> None:
        self.got: list[Message] = []
        self.end: BaseException | None = None
        self.task = asyncio.create_task(self._read(group))

    async def _read(self, group: Group) -> None:
        try:
            async for message in group:
                self.got.append(message)
        except Exception as error:
            self.end = error

    @property
    def seqs(self) -> list[int | None]:
        return [message.seq for message in self.got]


async def test_a_node_that_fails_raises_out_of_every_loop() -> None:
    async with Net() as net:
        (a,) = await net.form("a")
        await a.read_no_more()
        await a.group.broadcast(b"one")
        watching = asyncio.create_task(_last(a.group.views()))
        await asyncio.sleep(0)
        a.node.fail(RuntimeError("the medium is gone"))
        assert (await a.group.receive()).data == b"one"  # what had arrived can be read
        waits: list[Callable[[], Any]] = [
            a.group.receive, lambda: anext(aiter(a.group)), a.group.ready,
            lambda: anext(a.group.batches()), lambda: a.group.broadcast(b"two"),
            lambda: watching,
        ]  # fmt: skip
        for wait in waits:
            with pytest.raises(ConnectionLost, match="stopped: the medium is gone"):
                await wait()
        await a.group.leave()


async def _last(source: Any) -> None:
    async for _ in source:
        pass


async def test_a_client_whose_line_is_cut_goes_on_with_no_gap_and_no_duplicate() -> None:
    chance = random.Random(8)

    async with Net() as net:
        a, b = await net.form("ab")
        async with Proxy((await daemon(b)).addresses[0]) as proxy:
            group = await roundelay.join("g", node=proxy.where, timeout=20)
            await group.ready(2)
            log = Log(group)
            sent: dict[bytes, str] = {}

            async def talk() -> None:
                for number in range(120):
                    data = b"mine %d" % number
                    try:
                        await group.broadcast(data)
                        sent[data] = "confirmed"
                    except Indeterminate:
                        sent[data] = "in doubt"

            async def others() -> None:
                for number in range(150):
                    await a.group.broadcast_many([b"%d" % number + bytes(300)] * 10)

            async def cuts() -> None:
                for _ in range(25):
                    await asyncio.sleep(chance.random() / 10)
                    proxy.cut()

            await asyncio.gather(talk(), others(), cuts())
            await asyncio.sleep(0.05)  # for the last cut to be noticed
            last = await group.broadcast(b"the end")
            assert last.seq is not None
            await until(lambda: log.got and log.got[-1].seq == last.seq, "the last message")
            await delivered([a], last.seq + 1)
            assert proxy.connections > 3
            assert log.seqs == list(range(last.seq + 1))
            assert [one.data for one in log.got] == a.data
            mine = [one.data for one in log.got if one.data.startswith(b"mine")]
            assert len(mine) == len(set(mine))  # nothing is sent again by itself
            assert {data for data, fate in sent.items() if fate == "confirmed"} <= set(mine)
            assert "confirmed" in sent.values()

            # What is posted has no receipt: that it may be lost is said by the next one.
            await group.post([b"posted"])
            before = proxy.connections
            proxy.cut()
            await until(lambda: proxy.connections > before, "another connection")
            with pytest.raises(Indeterminate, match="earlier messages may be delivered or not"):
                await group.post([b"not this one"])
            await group.post([b"this one"])
            await until(lambda: log.got[-1].data == b"this one", "the last post")
            assert b"not this one" not in [one.data for one in log.got]
            assert log.seqs == list(range(len(log.got)))

            await group.leave()
            await log.task
            assert log.end is None


async def test_a_replay_goes_on_after_a_cut(tmp_path: Path) -> None:
    async with Net() as net:
        (a,) = await net.form("a", dir=tmp_path, record=True)
        for number in range(8):
            data = [b"%d" % number + bytes(30_000)] * 10
            await a.group.broadcast_many(data, durability="recorded")
        async with (
            Proxy((await daemon(a)).addresses[0]) as proxy,
            roundelay.join("g", node=proxy.where) as group,
        ):
            got = []
            async for message in group.replay():
                got.append(message.seq)
                if len(got) in (1, 40):
                    proxy.cut()
            assert got == list(range(80))
            assert proxy.connections == 3


@pytest.mark.seconds(90)
@pytest.mark.parametrize("recorded", [True, False])
async def test_a_daemon_that_is_killed_and_started_again_serves_its_clients_on(
    recorded: bool, tmp_path: Path
) -> None:
    """The group goes on without it; what its clients missed meanwhile comes from the others, or
    they are told what is missing."""
    async with Net() as net:
        a = await net.join("a", dir=tmp_path, record=recorded)
        members = [a, await net.join("b"), await net.join("c")]
        await together(members)
        b = members[1]
        server = await daemon(b)
        where = server.addresses[0]
        group = await roundelay.join("g", node=where, timeout=40)
        log = Log(group)
        await group.broadcast_many([b"before"] * 100)
        await until(lambda: len(log.got) == 100, "the first messages")
        waiting = asyncio.create_task(group.broadcast(b"under way"))
        await asyncio.sleep(0)

        for connection in list(server._connections):  # killed: nobody says goodbye
            connection.abort()
        await server.close()
        await b.die()
        with pytest.raises(Indeterminate):
            await waiting
        for number in range(20):
            await a.group.broadcast_many([b"%d" % number] * 10)
        again = await net.join("b", dir=None)
        server = await daemon(again, where)

        last = await group.broadcast(b"after")  # waits for the connection
        await until(lambda: log.end or log.got[-1].seq == last.seq, "the last message")
        if log.end is None:
            assert log.seqs == list(range((last.seq or 0) + 1))
        else:  # in place of what nobody has, and only of that
            assert not recorded
            assert isinstance(log.end, roundelay.MissingMessages)
            assert log.seqs == list(range(log.end.first))
        await group.leave()
        await server.close()


async def test_a_connection_goes_on_in_all_its_groups_after_cuts() -> None:
    async with Net() as net:
        (a,) = await net.form("a")
        (other,) = await net.form("b", group="h")
        async with Proxy((await daemon(a)).addresses[0]) as proxy:
            node = await Daemon.connect(proxy.where, name="", patience_s=20)
            got: dict[str, list[int | None]] = {"token:g": [], "token:h": []}

            async def read(group: Group) -> None:
                async for message in group:
                    got[group.name].append(message.seq)

            def joined(name: str, since: int = -1) -> Group:
                start = Position("", since) if since >= 0 else None
                group = Group(name, node, contiguity=Contiguity(name, start))
                node.join(group, name, Since(since))
                return group

            groups = [joined(name, 0) for name in got]
            reading = [asyncio.create_task(read(group)) for group in groups]

            async def talk(group: Group) -> None:
                for number in range(60):
                    await group.broadcast_many([b"%d" % number + bytes(300)] * 10)

            async def cuts() -> None:
                for _ in range(10):
                    await asyncio.sleep(0.03)
                    proxy.cut()
                    assert (await node.ask("members", "token:g"))["state"]  # asked again

            await asyncio.gather(talk(a.group), talk(other.group), cuts())
            await until(lambda: all(len(seqs) >= 600 for seqs in got.values()), "all of it")
            assert list(got.values()) == [list(range(600))] * 2
            assert proxy.connections > 3

            await groups[0].post([b"without a receipt"])
            before = proxy.connections
            proxy.cut()
            await until(lambda: proxy.connections > before, "another connection")
            with pytest.raises(Indeterminate, match="earlier messages may be delivered or not"):
                await groups[0].post([b"not this one"])
            await groups[0].broadcast(b"this one")

            # A group without positions is over; the others go on.
            plain = joined("plain")
            await plain.changed_view(plain.view)
            proxy.cut()
            with pytest.raises(ConnectionLost, match="group plain"):
                await read(plain)
            seq = (await groups[0].broadcast(b"and this")).seq
            assert seq is not None
            assert seq > 600
            assert not any(task.done() for task in reading)
            for group in groups:
                await group.leave()
            await asyncio.gather(*reading)
            await node.close()


async def test_a_group_that_began_anew_meanwhile_is_an_error_and_no_continuation() -> None:
    async with Net() as net:
        (a,) = await net.form("a")
        server = await daemon(a)
        where = server.addresses[0]
        group = await roundelay.join("g", node=where, timeout=40)
        log = Log(group)
        await group.broadcast_many([b"before"] * 10)
        await until(lambda: len(log.got) == 10, "the first messages")
        await server.close()
        await a.die()
        again = await net.join("a", min_members=1)
        await together([again])
        await again.group.broadcast_many([b"of another history"] * 20)
        server = await daemon(again, where)
        await until(lambda: log.end, "an error")
        assert isinstance(log.end, roundelay.NoSuchPosition), log.end
        assert log.seqs == list(range(10))
        await group.leave()
        await server.close()


async def test_a_daemon_that_always_hangs_up_is_not_called_without_a_pause() -> None:
    calls = 0

    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal calls
        calls += 1
        await reader.readexactly(9)
        writer.write(json_packet("HELO", "", {"node": "x"}))
        while b"token:g" not in await reader.read(1000):
            pass
        writer.close()

    fake = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    host, port = fake.sockets[0].getsockname()
    async with roundelay.join("g", node=f"{host}:{port}") as group:
        with pytest.raises(TimeoutError):
            await group.receive(timeout=1.0)
    assert 2 <= calls <= 10
    fake.close()


async def test_a_daemon_that_does_not_come_back_is_given_up_in_time() -> None:
    async with Net() as net:
        a, b = await net.form("ab")
        server = await daemon(b)
        async with Proxy(server.addresses[0]) as proxy:
            group = await roundelay.join("g", node=proxy.where, timeout=1.0)
            plain = await roundelay.join("news", service="fifo", node=server.addresses[0])
            await group.ready(2)
            await plain.ready()
            log, other = Log(group), Log(plain)
            proxy.accepts = False
            began = time.monotonic()
            proxy.cut()
            await until(lambda: group.view.state.startswith("broken"), "the cut")
            with pytest.raises(ConnectionLost, match=r"could not be made again in 1 s"):
                await group.broadcast(b"never sent")
            assert time.monotonic() - began >= 1.0
            await log.task
            assert isinstance(log.end, ConnectionLost)
            for wait in (group.receive, group.ready, lambda: anext(group.views())):
                with pytest.raises(ConnectionLost):
                    await wait()
            await group.leave()

            # Without positions nobody could say what was missed: that is the application's.
            await server.close()
            await other.task
            assert isinstance(other.end, ConnectionLost)
            await plain.leave()
            kill(b.node)

            # Leaving in the middle of a break does not wait for its end.
            server = await daemon(a)
            proxy.to, proxy.accepts = server.addresses[0], True
            group = await roundelay.join("g", node=proxy.where, timeout=3600)
            proxy.accepts = False
            proxy.cut()
            await until(lambda: group.view.state.startswith("broken"), "the cut")
            log = Log(group)
            await group.leave()
            await log.task
            assert log.end is None
            await server.close()


@pytest.mark.parametrize("given", [True, False])
async def test_where_messages_have_no_place_yet_a_break_is_told(given: bool) -> None:
    """With an early stage there is no position to go on at: ten messages were passed over."""
    async with Net() as net:
        a, b = await net.form("ab", service="total", stage="accepted")
        async with Proxy((await daemon(b)).addresses[0]) as proxy:
            group = await roundelay.join("g", service="total", node=proxy.where, timeout=20)
            await group.ready(2)
            log = Log(group)
            if given:
                await a.group.broadcast(b"one")
                await until(lambda: log.got, "the first message")
            proxy.cut()
            await a.group.broadcast(b"missed")
            await until(lambda: log.end is not None, "the end")
            assert isinstance(log.end, ConnectionLost)
            await group.leave()


async def test_a_client_of_a_journal_that_was_given_nothing_yet_misses_nothing(
    tmp_path: Path,
) -> None:
    """Views of `journal` groups did not say where the stream is: after a break before the first
    message the client began where the stream was by then."""
    file = tmp_path / "news.toml"
    file.write_text('profile = "demo"\nmembers = ["a", "b", "c"]\n')

    async with Net() as net:
        members = [
            await net.join(name, service="journal", config=file, dir=tmp_path / name)
            for name in "abc"
        ]
        _, b, c = members
        async with Proxy((await daemon(c)).addresses[0]) as proxy:
            group = await roundelay.join("g", service="journal", node=proxy.where, timeout=20)
            await group.ready()
            log = Log(group)
            proxy.accepts = False
            proxy.cut()
            await b.group.broadcast(b"zero")
            await delivered([c], 1)
            proxy.accepts = True
            last = await b.group.broadcast(b"one")
            await until(lambda: log.got and log.got[-1].seq == last.seq, "the last message")
            assert [one.data for one in log.got] == [b"zero", b"one"]
            await group.leave()


async def test_a_replay_is_of_one_history(tmp_path: Path) -> None:
    """A position of another history was taken for one of this, and a replay whose daemon came back
    in another history went on with that one's messages."""
    async with Net() as net, Net() as later:
        (a,) = await net.form("a", dir=tmp_path / "a", record=True)
        (b,) = await later.form("b", dir=tmp_path / "b", record=True)
        for member in (a, b):
            for _ in range(8):
                data = [member.name.encode() + bytes(30_000)] * 10
                await member.group.broadcast_many(data, durability="recorded")
        async with (
            Proxy((await daemon(a)).addresses[0]) as proxy,
            roundelay.join("g", node=proxy.where) as group,
        ):
            await group.ready()
            here, there = a.group.history, b.group.history
            for since in (roundelay.Position(there, 3), f"{there}:3"):
                with pytest.raises(roundelay.NoSuchPosition, match=f"{there}:3"):
                    await anext(group.replay(since=since))
            assert (await anext(group.replay(since=f"{here}:3"))).seq == 3
            got = []

            async def replay_across_a_cut() -> None:
                async for message in group.replay():
                    got.append(message.data[:1])
                    if len(got) == 1:
                        proxy.to = (await daemon(b)).addresses[0]
                        proxy.cut()

            with pytest.raises(roundelay.NoSuchPosition, match=f"is at {there}"):
                await replay_across_a_cut()
            assert 0 < len(got) < 80
            assert set(got) == {b"a"}
