"""`roundelay.join`: every service, live, over every medium."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import roundelay
from roundelay.client import group as group_module
from roundelay.client.group import SlowConsumer
from roundelay.core.errors import ConfigError, GroupClosed, PayloadTooLarge
from roundelay.node.driver.outbox import LIMIT_BYTES
from tests.node.live import Member, Net, check_total_order, delivered, together, until

MEDIA = ("multicast", "fanout")
EACH = 60


async def chatter(members: list[Member], each: int = EACH) -> dict[bytes, int | None]:
    """Every member broadcasts at once; where each message came to be."""

    async def one(member: Member) -> None:
        for number in range(each):
            data = b"%s %d" % (member.name.encode(), number)
            receipts[data] = (await member.group.broadcast(data)).seq

    receipts: dict[bytes, int | None] = {}
    await asyncio.gather(*(one(member) for member in members))
    return receipts


def sent_by(name: str, each: int = EACH) -> list[bytes]:
    return [b"%s %d" % (name.encode(), number) for number in range(each)]


@pytest.mark.parametrize("medium", MEDIA)
@pytest.mark.parametrize("service", ["resilient", "total"])
async def test_everybody_hears_everything_in_one_order(service: str, medium: str) -> None:
    async with Net(medium) as net:
        members = await net.form("abc", service=service)
        receipts = await chatter(members)
        await delivered(members, 3 * EACH)
        check_total_order(members)
        for member in members:
            assert [message.seq for message in member.got] == list(range(3 * EACH))
            assert {m.data: m.seq for m in member.got} == receipts
            for sender in "abc":
                assert member.from_(sender) == sent_by(sender)


@pytest.mark.parametrize("medium", MEDIA)
@pytest.mark.parametrize("service", ["partial", "fifo"])
async def test_everybody_hears_each_sender_in_its_order(service: str, medium: str) -> None:
    async with Net(medium) as net:
        members = await net.form("abc", service=service)
        receipts = await chatter(members, 20)
        assert set(receipts.values()) == {None}
        await delivered(members, 60)
        for member in members:
            assert all(message.seq is None for message in member.got)
            assert len(member.got) == 60
            for sender in "abc":
                assert member.from_(sender) == sent_by(sender, 20)


@pytest.mark.parametrize("medium", MEDIA)
async def test_a_reliable_group_loses_and_repeats_nothing(medium: str) -> None:
    async with Net(medium) as net:
        members = await net.form("abc", service="reliable")
        await chatter(members)
        await delivered(members, 3 * EACH)
        expected = Counter(data for name in "abc" for data in sent_by(name))
        for member in members:
            assert Counter(member.data) == expected


@pytest.mark.parametrize("medium", MEDIA)
async def test_a_selective_group_delivers_all_and_only_what_is_for_me(medium: str) -> None:
    async with Net(medium) as net:
        members = await net.form("abcd", service="selective")
        plans = {
            "a": [("b",), ("b", "c"), ("d",), ("a", "b", "c", "d"), ("c",)] * 6,
            "b": [("a",), ("c", "d"), ("a", "d")] * 6,
            "c": [("a", "b", "d"), ("b",)] * 6,
        }

        async def one(member: Member) -> None:
            for number, to in enumerate(plans.get(member.name, [])):
                data = b"%s %d" % (member.name.encode(), number)
                await member.group.send(data, to)

        await asyncio.gather(*(one(member) for member in members))

        def wanted(me: str, sender: str) -> list[bytes]:
            return [
                b"%s %d" % (sender.encode(), number)
                for number, to in enumerate(plans.get(sender, []))
                if me in to
            ]

        for member in members:
            total = sum(len(wanted(member.name, sender)) for sender in plans)
            await delivered([member], total)
        await asyncio.sleep(0.2)  # for what should not come
        for member in members:
            for sender in plans:
                assert member.from_(sender) == wanted(member.name, sender), member.name


async def test_a_destination_that_is_no_member_is_named() -> None:
    async with Net() as net:
        a, _ = await net.form("ab", service="selective")
        with pytest.raises(ConfigError, match=r"to = x .*members: a, b"):
            await a.group.send(b"hi", ["x", "b"])
        b = await net.join("p", "other", service="total")
        with pytest.raises(ConfigError, match="no destinations in total groups"):
            await b.group.send(b"hi", ["p"])


async def test_many_messages_in_one_call_stay_together_and_in_order() -> None:
    async with Net() as net:
        members = await net.form("ab")
        many = [b"%d" % number for number in range(5000)]
        receipt = await members[0].group.broadcast_many(many)
        assert receipt.seq == 4999
        await delivered(members, 5000)
        assert all(member.data == many for member in members)
        with pytest.raises(ConfigError, match=r"messages = 0"):
            await members[0].group.broadcast_many([])


@pytest.mark.parametrize("service", ["resilient", "fifo"])
async def test_post_waits_for_room_and_the_queue_keeps_its_limit(service: str) -> None:
    async with Net() as net:
        members = await net.form("ab", service=service)
        a = members[0]
        most = 0

        def waiting() -> int:
            if service == "fifo":
                return int(a.node.autorm.beamon.queued_bytes)
            return a.node.group_hosts[a.group.name].outbox.bytes

        limit = LIMIT_BYTES
        if service == "fifo":
            limit = a.node.autorm.beamon.config.queue_bytes
        # AutoRM has one message under way at a time, so there they are few and large.
        each, size, count = (1, 1 << 20, 24) if service == "fifo" else (200, 1000, 60)
        for _ in range(count):
            await a.group.post([bytes(size)] * each)
            most = max(most, waiting())
        assert limit // 2 < most <= limit
        await delivered(members, count * each)
        await asyncio.sleep(0.05)
        assert [len(member.got) for member in members] == [count * each] * 2


async def test_messages_without_bytes_take_room_in_the_queue_too() -> None:
    async with Net() as net:
        (a,) = await net.form("a")
        await a.group.post([b""] * 70_000)
        await delivered([a], 70_000)
        assert a.got[-1].seq == 69_999


async def test_someone_is_exactly_one() -> None:
    async with Net() as net:
        members = await net.form("abcd", service="fifo")
        for number in range(40):
            await members[0].group.send_someone(b"%d" % number)
        await until(lambda: sum(len(m.got) for m in members) >= 40, "40 messages")
        await asyncio.sleep(0.2)
        everything = [data for member in members for data in member.data]
        assert sorted(everything) == sorted(b"%d" % number for number in range(40))
        assert sum(bool(member.got) for member in members[1:]) > 1  # not always the same


async def test_a_slow_consumer_is_told_and_slows_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_module, "INBOX_BYTES", 100_000)
    async with Net() as net:
        a, b = await net.form("ab")
        c = await net.join("c")
        await c.read_no_more()
        await together([a, b, c])
        for _ in range(50):
            await a.group.broadcast_many([bytes(500)] * 20)
        await delivered([a, b], 1000)
        seen: list[int | None] = []

        async def read() -> None:
            async for message in c.group:
                seen.append(message.seq)

        with pytest.raises(SlowConsumer, match="from position") as caught:
            await read()
        assert seen == list(range(len(seen)))
        assert 0 < len(seen) < 1000
        assert caught.value.seq == len(seen)


async def test_only_bytes_are_sent_and_no_order_has_no_positions() -> None:
    async with Net() as net:
        a = await net.join("a", service="fifo")
        text: Any = "text"
        for call in (a.group.broadcast, a.group.send_someone):
            with pytest.raises(ConfigError, match=r"data = 'text' .* bytes; encode text first"):
                await call(text)
        for many in (a.group.broadcast_many, a.group.post):
            with pytest.raises(ConfigError, match=r"messages = 'text' .* encode text first"):
                await many([b"one", text])
            with pytest.raises(ConfigError, match=r"messages = b'one' .* a list"):
                await many(b"one")  # type: ignore[arg-type]
        receipt = await a.group.broadcast(bytearray(b"one"))  # type: ignore[arg-type]
        await delivered([a], 1)
        assert (receipt.group, receipt.seq) == ("g", None)
        assert a.order == [(None, "a", b"one")]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"resilience": -1, "node": "unix:none"}, "resilience = -1 .* from 0 to 127"),
        ({"timeout": 0}, "timeout = 0 .* above 0"),
        ({"timeout": "3"}, "timeout = '3' .* seconds"),
        ({"keep_s": 60}, "keep_s = 60 .* only with record"),
        ({"record": True, "keep_s": "60"}, "keep_s = '60' .* a number"),
        ({"record": True, "keep_bytes": -1}, "keep_bytes = -1 .* 0 or more"),
        ({"record": True, "keep_conference_s": {"7": 60}}, "keep_conference_s = .* {7: 86400}"),
    ],
)
async def test_an_option_that_makes_no_sense_is_named(
    options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        await roundelay.join("g", dir=tmp_path, insecure=True, **options)


async def test_views_tell_who_comes_and_goes() -> None:
    async with Net() as net:
        a = await net.join("a", min_members=1)
        seen: list[tuple[str, ...]] = []

        async def watch() -> None:
            async for view in a.group.views():
                if view.state == "open" and view.members != (seen or [()])[-1]:
                    seen.append(view.members)

        watching = asyncio.create_task(watch())
        await together([a])
        b = await net.join("b")
        await together([a, b])
        await b.leave()
        await together([a])
        assert (await a.group.broadcast(b"alone again")).seq == 0
        await a.leave()
        await asyncio.wait_for(watching, 10)  # ends with the group
        assert seen == [("a",), ("a", "b"), ("a",)]
        with pytest.raises(GroupClosed):
            await a.group.broadcast(b"too late")


@pytest.mark.parametrize("service", ["resilient", "total", "partial", "selective", "reliable"])
async def test_a_message_may_be_large_but_not_too_large(service: str) -> None:
    async with Net() as net:
        members = await net.form("abc", service=service)
        large = bytes(range(256)) * 234
        await asyncio.gather(*(member.group.broadcast(large) for member in members))
        await delivered(members, 3)
        assert all(member.data == [large] * 3 for member in members)
        with pytest.raises(PayloadTooLarge, match="a message of 60001 bytes"):
            await members[0].group.broadcast(bytes(60_001))


@pytest.mark.seconds(180)
async def test_a_mebibyte_at_20_percent_loss_reaches_ten_members_once_and_whole() -> None:
    """Must show 2 (AR-T2)."""
    async with Net("switch", seed=5, rules=[{"loss": 0.2}]) as net:
        members = await net.form("abcdefghijk", service="fifo")
        message = bytes(i * i % 251 for i in range(1 << 20))
        await members[0].group.broadcast(message)
        await members[0].group.broadcast(b"after it")
        await delivered(members, 2)
        for member in members:
            assert member.data == [message, b"after it"], member.name
            assert {one.sender for one in member.got} == {"a"}
