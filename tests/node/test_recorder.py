"""Recorders of live groups: what they keep, how it is replayed, and what they promise."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from roundelay.client import group as group_module
from roundelay.client.group import Message
from roundelay.client.options import Options
from roundelay.core.errors import ConfigError, Indeterminate, MissingRecords, NoRecorder
from roundelay.core.position import Since
from roundelay.core.selection import EVERYTHING, Selection
from roundelay.durable import Disk
from roundelay.journal.journal import JournalConfig
from roundelay.journal.reader import Reader
from roundelay.node.node_api import Subscriber
from roundelay.node.recording import recorder as recorder_module
from roundelay.node.recording.recorder import RecordConfig, parse_record
from roundelay.node.recording.transfer import LENGTH, REQUEST, Request, fetch
from roundelay.node.storage.folders import journal_folder
from roundelay.wire.frontend_replay import ReplayRequest
from roundelay.wire.seal import Seal
from tests.journal.make import flip
from tests.node.live import Member, Net, check_total_order, delivered, together, until


async def say(member: Member, *texts: str, **how: Any) -> None:
    await member.group.broadcast_many([text.encode() for text in texts], **how)


async def heard(messages: AsyncIterator[Message]) -> list[tuple[int | None, str, bytes, int]]:
    return [(one.seq, one.sender, one.data, one.conference) async for one in messages]


def words(name: str, count: int) -> list[str]:
    return [f"{name} {number}" for number in range(count)]


# -- what is recorded, and replayed --------------------------------------------------------


@pytest.mark.parametrize(
    "service", ["resilient", "total", "partial", "selective", "reliable", "fifo"]
)
async def test_every_service_is_recorded_and_replayed_by_conference_and_sender(
    service: str, tmp_path: Path
) -> None:
    async with Net() as net:
        options: dict[str, Any] = {
            "service": service,
            "dir": tmp_path,
            "record": True,
            "fsync": "os",
        }
        a = await net.join("a", **options)
        b = await net.join("b", service=service)
        await together([a, b])
        await asyncio.gather(
            say(a, *words("a", 10), conference=7),
            say(b, *words("b", 10), conference=7, kind=3),
            say(b, *words("plain", 10)),
        )
        await delivered([a, b], 30)
        recorder = a.node.recorders.own[a.group.name]
        await until(lambda: recorder.journal.end == 30, "all is written")
        live = [(m.seq, m.sender, m.data, m.conference) for m in a.got]
        assert {m.kind for m in a.got if m.conference} == {0, 3}
        ours = await heard(a.group.replay())
        assert ours == live
        for chosen in ({"conference": 7}, {"conference": 7, "sender": "b"}, {"kind": [3]}):
            expected = [
                m for m in live
                if ("conference" not in chosen or m[3] == 7)
                and ("sender" not in chosen or m[1] == "b")
                and ("kind" not in chosen or m[2].startswith(b"b"))
            ]  # fmt: skip
            assert await heard(a.group.replay(**chosen)) == expected
            if service in ("resilient", "total"):  # from another node
                assert await heard(b.group.replay(**chosen)) == expected
        if service in ("resilient", "total"):
            assert await heard(b.group.replay(since=5, until=25)) == live[5:25]


async def test_a_filter_keeps_the_heads_of_everything_else(tmp_path: Path) -> None:
    async with Net() as net:
        (a,) = await net.form("a", dir=tmp_path, record="conference=7,8:sender=a")
        await say(a, "one", conference=7)
        await say(a, "two")
        await say(a, "three", conference=8)
        recorder = a.node.recorders.own["token:g"]
        await until(lambda: recorder.journal.end == 3, "all is written")
        chosen = await heard(a.group.replay(conference=(7, 8)))
        assert [data for _, _, data, _ in chosen] == [b"one", b"three"]
        with pytest.raises(MissingRecords, match="positions 1 to 1 but their heads"):
            await heard(a.group.replay())
        rest = await heard(a.group.replay(missing="skip"))
        assert [data for _, _, data, _ in rest] == [b"one", b"three"]
        with pytest.raises(NoRecorder):  # it does not record everything
            await a.group.broadcast(b"x", durability="recorded")
        shown = a.node.status()["recorders"]["own"][0]  # type: ignore[index]
        assert shown["filter"] == {"conferences": [7, 8], "senders": ["a"]}
        await until(lambda: recorder.backlog == 0, "nothing waits")


def test_what_record_takes() -> None:
    assert parse_record("orders") == ("orders", Selection())
    assert parse_record("token:orders:conference=7")[0] == "token:orders"
    chosen = Selection(frozenset({7, 8}), frozenset({"ann", "bob"}), frozenset({1}))
    assert parse_record("token:o:conference=7,8,sender=ann,bob,kind=1")[1] == chosen
    assert parse_record("token:o:conference=7,8:sender=ann,bob:kind=1")[1] == chosen
    for wrong in ("", "g:conference=x", "g:color=red", "g:sender=", "conference=7"):
        with pytest.raises(ConfigError, match="record = "):
            parse_record(wrong)


# -- handover ------------------------------------------------------------------------------


@pytest.mark.parametrize("service", ["resilient", "total"])
async def test_who_joins_late_gets_everything_and_goes_live_while_others_talk(
    service: str, tmp_path: Path
) -> None:
    async with Net() as net:
        a = await net.join("a", service=service, dir=tmp_path, record=True, fsync="interval")
        b = await net.join("b", service=service)
        await together([a, b])
        running = True

        async def talk(member: Member) -> None:
            number = 0
            while running:
                await say(member, *(f"{member.name} {number + i}" for i in range(20)))
                number += 20

        talking = [asyncio.create_task(talk(one)) for one in (a, b)]
        await delivered([a], 2000)
        late = await net.join("late", service=service, since="start")
        point = await net.join("point", service=service, since=777)
        await until(lambda: len(late.got) > len(a.got) - 500, "late is nearly there")
        await asyncio.sleep(0.2)
        running = False
        await asyncio.gather(*talking)
        await a.group.broadcast(b"the end")
        for one in (late, point):
            await until(lambda one=one: b"the end" in one.data[-1:], "the end")  # type: ignore[misc]
        assert [m.seq for m in late.got] == list(range(len(late.got)))
        assert [m.seq for m in point.got] == list(range(777, len(late.got)))
        check_total_order([a, b, late, point])


async def test_a_group_without_an_order_hands_over_at_the_node_that_records_it(
    tmp_path: Path,
) -> None:
    async with Net() as net:
        a, b = await net.form("ab", service="fifo")
        member = await net.join("r", service="fifo", dir=tmp_path, record=True)
        await together([a, b, member])
        for number in range(30):
            await say(a, f"a {number}")
            await say(b, f"b {number}")
        await delivered([member], 60)
        late: list[bytes] = []

        class Late(Subscriber):
            def deliver(self, batch: Any) -> None:
                late.extend(batch.bundle)

        application: Any = Late()
        with pytest.raises(ConfigError, match="no total order"):
            a.node.join(application, "g", Since(0))
        member.node.join(application, "g", Since(10))
        for number in range(30, 40):
            await say(a, f"a {number}")
        await until(lambda: len(late) >= 60, "late has caught up")
        await delivered([member], 70)
        assert late == member.data[10:]


async def test_an_application_that_reads_too_slowly_catches_up_from_the_recorder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_module, "INBOX_BYTES", 20_000)
    async with Net() as net:
        a = await net.join("a", dir=tmp_path, record=True, fsync="os")
        b = await net.join("b")
        await together([a, b])
        await b.read_no_more()
        for number in range(20):  # several at once: some are delivered together
            data = b"%d %s" % (number, bytes(500))
            await asyncio.gather(
                *(one.group.broadcast_many([data] * 5) for one in (a, b) for _ in range(3))
            )
        await delivered([a], 600)
        assert b.group.inbox.bytes <= 20_000
        found = []
        async for message in b.group:
            found.append((message.seq, message.data))
            if len(found) == 600:
                break
        assert found == [(m.seq, m.data) for m in a.got]


# -- several recorders ---------------------------------------------------------------------


async def test_when_a_recorder_dies_in_the_middle_another_one_goes_on(tmp_path: Path) -> None:
    async with Net() as net:
        members = [
            await net.join(name, dir=tmp_path / name, record=name in "ab", fsync="os")
            for name in "abc"
        ]
        await together(members)
        a, b, c = members
        for number in range(60):
            await a.group.broadcast_many([b"%d %s" % (number, bytes(2000))] * 25)
        recorders = [one.node.recorders.own["token:g"] for one in (a, b)]
        await until(lambda: all(one.journal.end == 1500 for one in recorders), "written")
        await until(lambda: len(c.node.recorders.sources("token:g")) == 2, "both are heard of")
        found = []
        async for message in c.group.replay():
            found.append((message.seq, message.data))
            if len(found) == 10:
                first = c.node.recorders.sources("token:g")[0].word.name
                await next(one for one in members if one.name == first).die()
        assert found == [(m.seq, m.data) for m in c.got]


async def test_a_recorder_that_was_away_fetches_what_it_missed(tmp_path: Path) -> None:
    async with Net() as net:
        members = [
            await net.join(name, dir=tmp_path / name, record=name in "ab", fsync="os")
            for name in "abc"
        ]
        await together(members)
        a, b, c = members
        await say(a, *words("before", 100))
        await delivered(members, 100)
        await b.leave()
        await together([a, c])
        for number in range(20):
            await say(a, *words(f"away {number}", 100))
        b = await net.join("b", dir=tmp_path / "b", record=True, fsync="os")
        new = await net.join("new", dir=tmp_path / "new", record=True, fsync="os")
        await together([a, b, c, new])
        for one in (b, new):  # also while nobody speaks
            journal = one.node.recorders.own["token:g"].journal
            await until(lambda j=journal: j.end == 2100, "what was missed")  # type: ignore[misc]
        await say(a, *words("after", 100))
        journal = b.node.recorders.own["token:g"].journal
        await until(
            lambda: journal.end == 2200 and not journal.missing and journal.begin == 0,
            "everything is there again",
        )
        await b.leave()
        found = [
            data
            for one in Reader(journal_folder(tmp_path / "b", "token:g")).read()
            for data in one.bundle
        ]
        await delivered([a], 2200)
        assert found == a.data


async def test_a_flipped_bit_in_a_journal_is_found_and_fetched_again(tmp_path: Path) -> None:
    async with Net() as net:

        async def join(name: str) -> Member:
            return await net.join(name, dir=tmp_path / name, record=True, fsync="os")

        a, b = await join("a"), await join("b")
        await together([a, b])
        for number in range(20):
            await say(a, *words(f"{number}", 50))
        await delivered([a, b], 1000)
        await b.leave()
        (segment,) = journal_folder(tmp_path / "b", "token:g").glob("*.rjs")
        data = bytearray(segment.read_bytes())
        data[len(data) // 2] ^= 4
        segment.write_bytes(data)
        b = await join("b")
        await together([a, b])
        recorder = b.node.recorders.own["token:g"]
        await until(lambda: recorder.journal.missing, "it is found")
        await until(lambda: not recorder.journal.missing, "it is fetched again")
        assert b.node.recorders.refetched
        await b.leave()
        journal = Reader(journal_folder(tmp_path / "b", "token:g"))
        assert [data for one in journal.read() for data in one.bundle] == a.data


# -- durability ----------------------------------------------------------------------------


async def test_a_recorded_broadcast_is_on_disk_when_it_returns(tmp_path: Path) -> None:
    async with Net() as net:
        a = await net.join("a", dir=tmp_path / "a", record=True)
        b = await net.join("b", durability="recorded")
        await together([a, b])
        journal = a.node.recorders.own["token:g"].journal
        for number in range(20):
            receipt = await b.group.broadcast(b"%d" % number)
            assert receipt.seq is not None
            assert journal.durable > receipt.seq
        with pytest.raises(NoRecorder, match="1 recorders that sync"):
            await b.group.broadcast(b"x", recorders=2)
        await b.group.broadcast(b"y", durability="committed")
        assert [m.data for m in b.got][-1] != b"x"
        c = await net.join("c", dir=tmp_path / "c", record=True, fsync="interval")
        await together([a, b, c])
        other = c.node.recorders.own["token:g"].journal
        sources = b.node.recorders.sources
        await until(lambda: len(sources("token:g")) == 2, "b knows of both recorders")
        receipt = await b.group.broadcast(b"z", durability="recorded", recorders=2)
        assert receipt.seq is not None
        assert min(journal.durable, other.durable) > receipt.seq


class Failing(Disk):
    """The next sync fails."""

    failing = False

    def sync(self, file: int) -> None:
        if self.failing:
            raise OSError(5, os.strerror(5))
        super().sync(file)


def records(disk: Disk, **options: Any) -> tuple[RecordConfig, ...]:
    journal = JournalConfig(sync=options.pop("sync", "always"))
    return (RecordConfig(group="token:g", journal=journal, disk=disk, **options),)


async def test_a_recorder_whose_disk_fails_stops_says_so_and_acknowledges_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Failing()
    monkeypatch.setattr(Options, "records", lambda self, group: records(disk))

    async with Net() as net:
        (a,) = await net.form("a", dir=tmp_path, record=True, timeout=1.0)
        await a.group.broadcast(b"one", durability="recorded")
        recorder = a.node.recorders.own["token:g"]
        disk.failing = True
        with pytest.raises(Indeterminate, match="0 of 1 recorders have synced"):
            await a.group.broadcast(b"two", durability="recorded")
        assert recorder.journal.durable == 1
        assert recorder.broken
        shown = a.node.status()["recorders"]["own"][0]  # type: ignore[index]
        assert "sync failed" in shown["broken"]
        await a.group.broadcast(b"three")  # the group goes on
        with pytest.raises(NoRecorder):  # and nobody waits for this recorder any more
            await a.group.broadcast(b"four", durability="recorded")
        disk.failing = False


class Slow(Disk):
    """A disk that takes its time."""

    seconds = 0.0

    def write(self, file: int, parts: Any) -> None:
        if self.seconds:
            time.sleep(self.seconds)
        super().write(file, parts)


async def test_an_overloaded_recorder_slows_the_group_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Slow()
    monkeypatch.setattr(recorder_module, "COMMIT_BYTES", 300_000)
    settings = records(disk, sync="os", backlog_bytes=1_000_000)
    own = Options.records
    monkeypatch.setattr(
        Options, "records",
        lambda self, group: settings if self.record else own(self, group),
    )  # fmt: skip

    async def post(member: Member) -> None:
        for _ in range(400):
            await member.group.post([bytes(2000)] * 10)

    async with Net() as net:
        a = await net.join("a", dir=tmp_path, record=True)
        b = await net.join("b")
        await together([a, b])
        recorder = a.node.recorders.own["token:g"]
        disk.seconds = 0.05
        posting = asyncio.create_task(post(b))
        await until(lambda: b.node.recorders.slowed_by("token:g") == ["a"], "b waits")
        status = b.node.status()["groups"][0]  # type: ignore[index]
        assert status["slowed_by"] == ["a"]
        assert recorder.status()["slow"] or recorder.slowed
        await posting
        await b.group.broadcast(b"the end")
        disk.seconds = 0.0
        await until(lambda: recorder.journal.end == 4001, "all is written")
        assert not recorder.journal.missing
        await until(lambda: not b.node.recorders.slowed_by("token:g"), "b goes on")
        assert [data for _, _, data, _ in await heard(b.group.replay())] == b.data


# -- members that lost something -----------------------------------------------------------


@pytest.mark.seconds(120)
async def test_a_member_whose_disk_was_wiped_gets_its_gap_from_a_recorder(tmp_path: Path) -> None:
    """CM-R18: the others have forgotten most of what it needs."""
    names = ("a", "b", "c")

    async with Net() as net:

        async def join(name: str, folder: str) -> Member:
            return await net.join(
                name, dir=tmp_path / folder, members=names, record=name == "a", fsync="os"
            )

        members = [await join(name, name) for name in names]
        await together(members)
        a, b, c = members
        await say(a, *words("first", 50))
        await delivered(members, 50)
        await c.die()
        for number in range(60):
            await a.group.broadcast_many([b"%d %s" % (number, bytes(50_000))] * 15)
        engine: Any = a.node.group_hosts["token:g"].data.engine
        assert engine.log.first_kept > 0
        c = await join("c", "elsewhere")
        await together([a, b, c], 40)
        await say(b, "live")
        await delivered([a, c], 951, 40)
        assert c.order == a.order


async def test_a_group_that_begins_anew_goes_on_behind_what_was_recorded(tmp_path: Path) -> None:
    async with Net() as net:
        for start in (0, 10, 20):
            a = await net.join("a", dir=tmp_path, record=True, since="start", min_members=1)
            await together([a])
            await say(a, *words(f"from {start}", 10))
            await delivered([a], start + 10)
            assert [m.seq for m in a.got] == list(range(start + 10))
            await a.leave()
        assert len(list((tmp_path / "journals").iterdir())) == 1


@pytest.mark.parametrize("bit", [0, 7])
async def test_a_damaged_name_of_the_history_puts_no_journal_aside(
    bit: int, tmp_path: Path
) -> None:
    """One flipped bit made it another history, or no text at all: then the group failed."""
    async with Net() as net:
        options: dict[str, Any] = {"dir": tmp_path, "record": True, "min_members": 1}
        one = await net.join("a", **options)
        await one.group.broadcast_many([b"%d" % i for i in range(20)])
        await one.leave()
        flip(next(tmp_path.glob("journals/*/history")), 3, bit)
        again = await net.join("a", **options)
        found = [message.data async for message in again.group.replay(since=0, until=20)]
        assert found == [b"%d" % i for i in range(20)]
        assert again.node.recorders.own["token:g"].put_aside == 0


async def test_another_history_of_the_group_gets_another_journal(tmp_path: Path) -> None:
    async with Net() as net:
        r = await net.join("r", dir=tmp_path, record=True, min_members=1)
        await together([r])
        await say(r, *words("old", 10))
        await r.leave()
        a = await net.join("a", min_members=1)  # knows nothing of that
        await together([a])
        await say(a, *words("new", 5))
        r = await net.join("r", dir=tmp_path, record=True)
        await together([a, r])
        await say(a, *words("newer", 5))
        await delivered([a], 10)
        journal = r.node.recorders.own["token:g"]
        await until(lambda: journal.put_aside == 1, "the old one is put aside")
        await until(lambda: r.node.recorders.own["token:g"].journal.end == 10, "recorded")
        assert {path.name for path in (tmp_path / "journals").iterdir()} == {
            "token%3ag", "token%3ag.1",
        }  # fmt: skip
        found = await heard(r.group.replay(since=5))
        assert [data for _, _, data, _ in found] == a.data[5:]


# -- whoever may not read datagrams may not read history -----------------------------------


async def test_the_replay_port_gives_nothing_to_strangers(tmp_path: Path) -> None:
    key, other = tmp_path / "key", bytes(32)
    key.write_text("11" * 32)
    key.chmod(0o600)

    async with Net() as net:
        (a,) = await net.form("a", dir=tmp_path, record=True, insecure=False, key=key)
        await a.group.broadcast(b"secret", durability="recorded")
        server = a.node.recorders.server
        host = a.node.medium.address[0]

        async def attempt(make: Any) -> bytes:
            reader, writer = await asyncio.open_connection(host, server.port)
            (size,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
            hello = await reader.readexactly(size)
            data = make(hello)
            writer.write(LENGTH.pack(len(data)) + data)
            answer = await reader.read()
            writer.close()
            return answer

        def plain(nonce: bytes) -> bytes:
            return bytes((REQUEST,)) + msgspec.msgpack.encode(Request(nonce, "token:g"))

        def stale(hello: bytes) -> bytes:
            assert a.node.config.secret is not None
            return Seal(a.node.config.secret, bytes(16)).seal(plain(bytes(16)))

        assert await attempt(lambda hello: plain(bytes(16))) == b""
        assert await attempt(lambda hello: Seal(other, bytes(16)).seal(plain(hello))) == b""
        assert await attempt(stale) == b""  # a request of another connection
        assert await attempt(lambda hello: b"") == b""
        assert server.refused == {"not sealed": 1, "seal": 1, "replay request": 1,
                                  "replay frame": 1}  # fmt: skip
        address = (host, server.port)
        seal, reached = a.node.make_seal(), list[int]()
        found = [runs async for runs in fetch(address, "token:g", EVERYTHING, seal, reached)]
        assert [one.bundle.data for runs in found for one in runs] == [b"secret"]
        assert reached == [1]


async def test_a_replay_right_after_a_join_waits_until_the_member_is_in(tmp_path: Path) -> None:
    """A node that has long been there joins another group: its recorder is known, and fits as soon
    as the history is known."""
    async with Net() as net:
        a = await net.join("a", "g", record=True, dir=tmp_path / "a")
        b = await net.join("b", "g")
        await together([a, b])
        await a.group.broadcast(b"0", durability="recorded")
        c = await net.join("c", "other", min_members=1)
        node = c.node
        node.started -= 60.0
        await until(lambda: node.recorders.heard, "its recorder is known")
        node.join(c.group, "token:g")
        found = [
            run.bundle.data
            async for chunk in node.replay("token:g", ReplayRequest())
            for run in chunk
        ]
        assert found == [b"0"]
