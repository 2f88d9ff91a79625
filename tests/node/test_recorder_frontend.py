"""Recorders seen through a daemon: conferences, replay, `since`, and readers without asyncio."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import roundelay
from roundelay.cli.main import cli
from roundelay.client import group as group_module
from roundelay.client.group import Group
from roundelay.client.recorder import RecorderClient
from roundelay.core.errors import Indeterminate, NoRecorder, Refused, SlowConsumer
from roundelay.journal.format import Run
from roundelay.node.frontend.server import FrontendServer
from tests.node.live import Member, Net, delivered, together, until


async def daemon(
    member: Member, where: str = "127.0.0.1:0", **limits: Any
) -> tuple[FrontendServer, str]:
    """A frontend on a member's node."""
    server = FrontendServer(member.node, [where], name=member.name, **limits)
    await server.start()
    member.node.add_frontend(server)
    return server, server.addresses[0]


def messages(runs: list[Run]) -> list[tuple[int, bytes]]:
    return [
        (position, data)
        for run in runs
        for position, data in enumerate(run.bundle, run.position)
    ]  # fmt: skip


@pytest.mark.seconds(20)
async def test_a_daemon_replays_and_hands_over_as_an_embedded_node_does(tmp_path: Path) -> None:
    async def expect(group: Group, seqs: list[int]) -> None:
        got: list[int | None] = []
        async for message in group:
            got.append(message.seq)
            if len(got) == len(seqs):
                break
        assert got == seqs

    async with Net() as net:
        a = await net.join("a", dir=tmp_path, record=True)
        b = await net.join("b")
        await together([a, b])
        server, where = await daemon(b)  # the one that does not record
        before = datetime.now(UTC)
        async with roundelay.join("g", node=where) as remote:
            await remote.broadcast_many([b"one", b"two"], conference=7, kind=2)
            await remote.broadcast_many([b"three"], durability="recorded")
            await a.group.broadcast(b"four", conference=7)
            with pytest.raises(Refused, match=r"^group token:g: 1 recorders that sync"):
                await remote.broadcast(b"five", durability="recorded", recorders=2)
            got = []
            async for message in remote:
                got.append((message.seq, message.data, message.conference, message.kind))
                if len(got) == 4:
                    break
            assert got == [
                (0, b"one", 7, 2), (1, b"two", 7, 2), (2, b"three", 0, 0), (3, b"four", 7, 0),
            ]  # fmt: skip
            chosen = [m.seq async for m in remote.replay(conference=7, sender="b")]
            assert chosen == [0, 1]
            assert [m.seq async for m in remote.replay(since=before)] == [0, 1, 2, 3]
            assert [m.seq async for m in remote.replay(until=before)] == []
            assert [m.seq async for m in remote.replay(since=datetime.now(UTC))] == []
        there = 4
        for since, first in (("start", 0), (2, 2), (before, 0)):
            async with roundelay.join("g", node=where, since=since) as late:
                await expect(late, list(range(first, there)))
                await late.broadcast(b"again")
                await expect(late, [there])
                there += 1
        await server.close()


@pytest.mark.parametrize("recorded", [True, False])
async def test_who_reads_too_slowly_behind_a_daemon_catches_up_from_the_recorder(
    recorded: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_module, "INBOX_BYTES", 2 << 20)
    async with Net() as net:
        a = await net.join("a", dir=tmp_path, record=recorded, fsync="os")
        b = await net.join("b")
        await together([a, b])
        server, where = await daemon(b)
        async with roundelay.join("g", node=where) as slow:
            await slow.ready(2)
            for number in range(40):
                data = b"%d %s" % (number, bytes(4000))
                await a.group.broadcast_many([data] * 50)
                receipt = await slow.broadcast(b"mine")  # who does not read may still send
            assert receipt.seq == 40 * 51 - 1
            await delivered([a], 40 * 51)
            assert slow.inbox.bytes <= 2 << 20
            if recorded:
                assert b.node.recorders.replays.status()
            found = []

            async def read(slow: Group) -> None:
                async for message in slow:
                    found.append((message.seq, message.data))
                    if len(found) == 40 * 51:
                        break

            if recorded:
                await read(slow)
            else:
                with pytest.raises(SlowConsumer, match="from position"):
                    await read(slow)
            assert found == [(m.seq, m.data) for m in a.got][: len(found)]
        await server.close()


@pytest.mark.seconds(20)
@pytest.mark.parametrize("recorded", [True, False])
async def test_who_begins_with_more_than_fits_its_queue_gets_each_message_once(
    recorded: bool, tmp_path: Path
) -> None:
    async with Net() as net:
        a = await net.join("a", dir=tmp_path, record=recorded, fsync="os")
        b = await net.join("b")
        await together([a, b])
        # A Unix socket keeps little by itself.
        server, where = await daemon(
            b, f"unix:{tmp_path}/socket", max_message=1 << 16, queue_bytes_max=1 << 17
        )
        for _ in range(40):  # ten times the queue, all of it in the member's memory
            await a.group.broadcast_many([bytes(3000)] * 10)
        await delivered([a, b], 400)
        async with roundelay.join("g", node=where, since=0) as late:
            found = []
            async for message in late:
                found.append(message.seq)
                if len(found) == 400:
                    break
            assert found == list(range(400))
        await server.close()


async def test_the_callers_timeout_holds_behind_a_daemon_too(tmp_path: Path) -> None:
    async with Net() as net:
        a = await net.join("a", members=("a", "b", "c"), dir=tmp_path)  # the others never come
        server, where = await daemon(a)
        async with roundelay.join("g", node=where, timeout=0.2) as remote:
            with pytest.raises(Indeterminate, match=r"in 0\.2 s \(forming: .*\); it may still"):
                await remote.broadcast(b"one")
        await server.close()


@pytest.mark.seconds(20)
async def test_a_reader_without_asyncio_gets_ranges_on_credit(tmp_path: Path) -> None:
    def read(where: str, expected: list[Any]) -> None:
        with RecorderClient(where, "token:g") as client:
            status = client.status()
            assert (status.first, status.next) == (0, 2000)
            everything = list(client.read_blocks(0, status.next, blocks=1))
            assert len(everything) > 4
            assert messages([run for block in everything for run in block]) == expected
            assert client.next == 2000
            part = list(client.read(100, 1900, conference=[1, 2], sender="a"))
            assert messages(part) == [
                one for one in expected[100:1900] if one[0] // 50 % 4 in (1, 2)
            ]
            for _ in client.read(0, 2000, blocks=1):
                break  # enough: the client can be used again
            assert messages(list(client.read(1999, 2000))) == expected[1999:]
            nobody = RecorderClient(where, "token:nobody", timeout_s=0.5)
            with nobody, pytest.raises(Refused):
                nobody.status()

    async with Net() as net:
        a = await net.join("a", dir=tmp_path, record=True, fsync="os")
        b = await net.join("b")
        await together([a, b])
        for number in range(40):
            data = [b"%d %s" % (number, bytes(1000))] * 50
            await a.group.broadcast_many(data, conference=number % 4)
        await delivered([a], 2000)
        recorder = a.node.recorders.own["token:g"]
        await until(lambda: recorder.journal.end == 2000, "all is written")
        (one, at_a), (two, at_b) = await daemon(a), await daemon(b)
        expected = [(m.seq, m.data) for m in a.got]
        heard = b.node.recorders.sources
        await until(lambda: heard("token:g")[0].word.next == 2000, "b knows of it")
        await asyncio.to_thread(read, at_a, expected)
        await asyncio.to_thread(read, at_b, expected)
        await one.close()
        await two.close()


async def test_a_reader_waits_for_a_node_that_is_about_to_enter_the_group(tmp_path: Path) -> None:
    """It was told that nobody records when the node that does had just started."""

    def first(where: str) -> int:
        with RecorderClient(where, "token:g") as client:
            return client.status().first

    async with Net() as net:
        a = await net.join("a", dir=tmp_path, record=True)
        server, where = await daemon(a)
        assert not a.node.recorders.listed("token:g")
        asked = asyncio.create_task(asyncio.to_thread(first, where))
        await together([a, await net.join("b")])
        assert await asked == 0
        await server.close()


@pytest.mark.seconds(20)
async def test_listen_prints_what_was_recorded_and_then_what_comes(tmp_path: Path) -> None:
    async with Net() as net:
        (a,) = await net.form("a", dir=tmp_path, record=True)
        server, where = await daemon(a)
        await a.group.broadcast(b"zero")
        await a.group.broadcast(b"one", conference=7)
        await a.group.broadcast(b"two")

        def command(*words: str) -> str:
            found = CliRunner().invoke(cli, [*words, "--node", where, "--json"])
            assert found.exit_code == 0, found.output
            return found.output

        sent = await asyncio.to_thread(
            command, "send", "token:g", "three", "--conference", "7", "--recorded", "1"
        )
        assert json.loads(sent)["seq"] == 3
        for words, expected in (
            (["--since", "start", "--count", "4"], [0, 1, 2, 3]),
            (["--since", "1", "--conference", "7", "--count", "2"], [1, 3]),
            (["--since", "2020-01-01T00:00Z", "--sender", "a", "--count", "4"], [0, 1, 2, 3]),
        ):
            printed = await asyncio.to_thread(command, "listen", "token:g", *words)
            lines = [json.loads(line) for line in printed.splitlines()]
            assert [line["seq"] for line in lines] == expected
            assert [line.get("conference", 0) for line in lines] == [
                7 if seq in (1, 3) else 0 for seq in expected
            ]
        shown = json.loads(await asyncio.to_thread(command, "status"))
        status = shown["recorders"]["own"][0]
        assert status["fsync"] == "always"
        assert status["durable"] == 4
        assert status["folder"].endswith("journals/token%3ag")
        await server.close()


def test_a_blocking_group_replays_too(tmp_path: Path) -> None:
    options = Net().where() | {"name": "a", "insecure": True, "min_members": 1}
    with roundelay.join("g", dir=tmp_path, record=True, keep_s=3600, **options) as group:
        views = group.views()
        while next(views).members != ("a",):
            pass
        with pytest.raises(NoRecorder):
            group.broadcast(b"x", durability="recorded", recorders=2)
        group.broadcast(b"one", conference=7, durability="recorded")
        group.broadcast(b"two", durability="recorded")
        assert [m.data for m in group.replay(conference=7)] == [b"one"]
        assert [m.data for m in group.replay(since=1)] == [b"two"]
