"""Groups without a fixed roster: members come and go, crash, meet, and nothing is lost or split."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from roundelay.core.engine import SECOND
from roundelay.core.errors import Indeterminate
from roundelay.node.membership import epoch as epochs
from roundelay.node.membership import group as membership
from roundelay.node.membership import reconfiguration
from tests.node.live import (
    Member,
    Net,
    check_total_order,
    delivered,
    membership_of,
    together,
    until,
)


def incarnations(members: list[Member]) -> set[str]:
    return {membership_of(member).incarnation for member in members}


def epoch(member: Member) -> int:
    return membership_of(member).epoch


async def test_members_join_and_leave_and_the_positions_go_on() -> None:
    async with Net() as net:
        a, b = await net.form("ab")
        await a.group.broadcast(b"0")
        c = await net.join("c")
        await together([a, b, c])
        await c.group.broadcast(b"1")
        await a.leave()
        await together([b, c])
        await b.group.broadcast(b"2")
        await delivered([b], 3)
        await delivered([c], 2)
        assert b.order == [(0, "a", b"0"), (1, "c", b"1"), (2, "b", b"2")]
        assert c.order == b.order[1:]
        a2 = await net.join("a")
        await together([a2, b, c])
        assert (await a2.group.broadcast(b"3")).seq == 3
        await delivered([a2], 1)
        assert a2.order == [(3, "a", b"3")]


async def test_the_other_of_two_goes_on_alone_at_once() -> None:
    async with Net() as net:
        a, b = await net.form("ab", min_members=1)
        for number in range(20):
            await b.group.broadcast(b"%d" % number)
        await a.leave()
        receipt = await asyncio.wait_for(b.group.broadcast(b"alone"), 5)
        assert receipt.seq == 20
        await together([b])


@pytest.mark.parametrize("service", ["resilient", "partial"])
async def test_members_that_all_leave_at_once_are_all_out_soon(service: str) -> None:
    async with Net() as net:
        members = await net.form("abc", service=service)
        places = [membership_of(member) for member in members]
        for place in places:
            place.leave(time.monotonic_ns())
        await until(lambda: all(place.closed for place in places), "everybody has left")


async def test_what_a_member_had_under_way_when_it_was_left_out_is_delivered_when_it_is_back(
    monkeypatch: Any,
) -> None:
    monkeypatch.setattr(reconfiguration, "FORGET_NS", SECOND // 2)
    monkeypatch.setattr(epochs, "LINGER_NS", SECOND)

    async with Net("switch") as net:
        members = await net.form("abcde", resilience=2, timeout=1.0)
        a, b, c, d, e = members
        await d.group.broadcast(b"before")
        net.switch.apply({"partition": [["a", "b", "c"], ["d", "e"]]})
        texts = [b"d0", b"d1", b"d2", b"e0"]
        sends = [(d if text[:1] == b"d" else e).group.broadcast(text) for text in texts]
        answers = await asyncio.gather(*sends, return_exceptions=True)
        assert all(isinstance(answer, Indeterminate) for answer in answers)
        place = membership_of(a)
        await until(lambda: place.roster == ("a", "b", "c"), "d and e are out")
        await a.group.broadcast(b"without")
        # No engine is left that could bring them to the end of the epoch they know.
        await until(lambda: not place.epochs.lingering, "the epoch before is forgotten")
        net.switch.apply({"heal": True})
        await together(members)
        await delivered([a, b, c], 6)
        await d.group.broadcast(b"end")
        await delivered([a, b, c], 7)
        for member in (a, b, c):
            assert member.data == a.data
        assert a.data[:2] == [b"before", b"without"]
        assert sorted(a.data[2:]) == sorted([*texts, b"end"])
        assert a.from_("d")[1:] == [b"d0", b"d1", b"d2", b"end"]


async def test_a_member_that_crashes_is_left_out_after_a_while(monkeypatch: Any) -> None:
    monkeypatch.setattr(reconfiguration, "FORGET_NS", SECOND // 2)
    async with Net() as net:
        a, b, c = await net.form("abc")
        await a.group.broadcast(b"0")
        await c.die()
        receipt = await a.group.broadcast(b"1")  # the majority goes on before that
        assert receipt.seq == 1
        await until(lambda: membership_of(a).roster == ("a", "b"), "a new roster")
        assert (await b.group.broadcast(b"2")).seq == 2
        await delivered([a, b], 3)
        check_total_order([a, b])
        c2 = await net.join("c")  # a new life without a memory
        await together([a, b, c2])
        assert (await c2.group.broadcast(b"3")).seq == 3
        await delivered([a, b], 4)


@pytest.mark.parametrize("service", ["resilient", "total", "partial", "selective", "reliable"])
async def test_a_member_that_forgot_everything_is_back_before_it_is_left_out(service: str) -> None:
    async with Net() as net:
        a, b, c = await net.form("abc", service=service)
        await asyncio.gather(*(m.group.broadcast(m.name.encode()) for m in (a, b, c)))
        await delivered([a, b, c], 3)
        await c.die()
        c2 = await net.join("c", service=service)
        await together([a, b, c2])

        async def say(member: Member, word: bytes) -> None:
            while True:  # while the cluster is opened again, the fate of a message may be open
                with suppress(Indeterminate):
                    await member.group.broadcast(word)
                    return

        await asyncio.gather(*(say(m, b"again " + m.name.encode()) for m in (a, b, c2)))
        await until(
            lambda: all({b"again a", b"again b", b"again c"} <= set(m.data) for m in (a, b, c2)),
            "what was said after it came back",
        )
        for member in (a, b):
            assert member.from_("c")[0] == b"c"
        if service in ("resilient", "total"):
            check_total_order([a, b])
            check_total_order([a, c2])


async def test_eight_that_start_at_once_form_one_group() -> None:
    async with Net() as net:
        members = list(await asyncio.gather(*(net.join(name) for name in "hgfedcba")))
        await together(members)
        assert len(incarnations(members)) == 1
        assert {epoch(member) for member in members} <= {1, 2}
        await asyncio.gather(*(m.group.broadcast(m.name.encode()) for m in members))
        await delivered(members, 8)
        check_total_order(members)
        assert all(member.got[0].seq == 0 for member in members)


async def test_of_two_groups_that_meet_the_smaller_one_ends_and_says_so() -> None:
    islands = [["a", "b", "c"], ["d", "e"]]
    async with Net("switch", rules=[{"partition": islands}]) as net:
        large = [await net.join(name) for name in islands[0]]
        small = [await net.join(name) for name in islands[1]]
        await together(large)
        await together(small)
        await large[0].group.broadcast(b"of the larger one")
        await small[0].group.broadcast(b"of the smaller one")
        await delivered(large, 1)
        await delivered(small, 1)
        broken = []

        async def watch(member: Member) -> None:
            async for view in member.group.views():
                if "two histories of token:g met" in view.state:
                    broken.append(member.name)

        watching = [asyncio.create_task(watch(member)) for member in small + large]
        await asyncio.sleep(0)
        net.switch.apply({"heal": True})
        await together(large + small)
        assert len(incarnations(large + small)) == 1
        assert (await small[0].group.broadcast(b"of all")).seq == 1
        await delivered(large, 2)
        assert large[2].data == [b"of the larger one", b"of all"]
        await until(lambda: set(broken) == {"d", "e"}, "word to the members of the smaller one")
        for task in watching:
            task.cancel()


async def test_one_that_was_cut_off_until_it_was_left_out_comes_back(monkeypatch: Any) -> None:
    monkeypatch.setattr(reconfiguration, "FORGET_NS", SECOND // 2)
    for module in (membership, epochs):
        monkeypatch.setattr(module, "LINGER_NS", SECOND)

    async with Net("switch") as net:
        a, b, c = await net.form("abc")
        await a.group.broadcast(b"0")
        await delivered([a, b, c], 1)
        net.switch.apply({"partition": [["a", "b"], ["c"]]})
        await a.group.broadcast(b"1")
        await until(lambda: membership_of(a).roster == ("a", "b"), "a new roster")
        await until(lambda: membership_of(b).roster == ("a", "b"), "a new roster")
        await a.group.broadcast(b"2")
        await asyncio.sleep(1.5)  # nobody serves the old epoch any more
        net.switch.apply({"heal": True})
        await together([a, b, c])
        assert (await c.group.broadcast(b"3")).seq == 3
        await delivered([a, b], 4)
        await delivered([c], 2)
        assert a.order == b.order
        assert set(c.order) <= set(a.order)
        assert c.order[-1] == (3, "c", b"3")


class Sender:
    """Broadcasts without end, and keeps what it was told of each message."""

    def __init__(self, member: Member) -> None:
        self.member = member
        self.sent = 0
        self.receipts: dict[bytes, int | None] = {}
        self.unknown: list[bytes] = []
        self.task = asyncio.create_task(self.run())
        self.stopping = False

    async def run(self) -> None:
        while not self.stopping:
            data = b"%s %d" % (self.member.name.encode(), self.sent)
            self.sent += 1
            try:
                receipt = await self.member.group.broadcast(data)
                self.receipts[data] = receipt.seq
            except Indeterminate:
                self.unknown.append(data)
            await asyncio.sleep(0.002)

    async def stop(self) -> None:
        self.stopping = True
        await self.task


@pytest.mark.parametrize("service", ["resilient", "total", "partial", "selective", "reliable"])
async def test_nothing_is_lost_or_told_twice_while_members_come_and_go(service: str) -> None:
    async with Net() as net:
        members = await net.form("bdfh", service=service)
        senders = [Sender(member) for member in members]
        guests: list[Member] = []
        for round_ in range(2):
            guests = []
            for name in "aeg":
                guests.append(await net.join(name, service=service))
                await asyncio.sleep(0.15 * round_)
            await together(members + guests)
            for guest in guests:
                await guest.group.broadcast(b"%s says %d" % (guest.name.encode(), round_))
                await guest.leave()
            await together(members)
        for sender in senders:
            await sender.stop()
        told = {data: seq for sender in senders for data, seq in sender.receipts.items()}
        unknown = {data for sender in senders for data in sender.unknown}
        assert not unknown  # nobody failed
        says = {b"%c says %d" % (name, round_) for name in b"aeg" for round_ in (0, 1)}
        await delivered(members, len(told) + 6)
        await asyncio.sleep(0.1)
        for member in members:
            assert Counter(member.data) == Counter({*told, *says}), member.name
            for sender in senders:
                own = [
                    b"%s %d" % (sender.member.name.encode(), number)
                    for number in range(sender.sent)
                ]
                if service != "reliable":
                    assert member.from_(sender.member.name) == own
        if service in ("resilient", "total"):
            assert all(member.order == members[0].order for member in members)
            assert [m.seq for m in members[0].got] == list(range(len(members[0].got)))
            assert {m.data: m.seq for m in members[0].got if m.data in told} == told
            check_total_order([*members, *guests])


async def test_a_node_that_restarts_goes_on_where_it_was(tmp_path: Path) -> None:
    async with Net() as net:
        a, b = await net.form("ab")
        c = await net.join("c", dir=tmp_path / "c")
        await together([a, b, c])
        await a.group.broadcast(b"0")
        await delivered([c], 1)
        await c.die()
        await a.group.broadcast(b"1")
        c2 = await net.join("c", dir=tmp_path / "c", since=0)
        await together([a, b, c2])
        assert (await c2.group.broadcast(b"2")).seq == 2
        await delivered([a, b, c2], 3)
        assert c2.order == a.order == [(0, "a", b"0"), (1, "a", b"1"), (2, "c", b"2")]


async def test_a_member_that_forgot_everything_is_no_witness() -> None:
    """a and c commit without b; c forgets; b and the new c must not begin another history."""
    async with Net("switch", seed=2) as net:
        a, b, c = await net.form("abc")
        net.switch.apply({"partition": [["a", "c"], ["b"]]})
        assert (await a.group.broadcast(b"committed by a and c")).seq == 0
        await delivered([a, c], 1)
        net.switch.apply({"heal": True})
        net.switch.apply({"partition": [["a"], ["b", "c"]]})
        await c.die()
        c2 = await net.join("c", timeout=3.0)
        await until(lambda: "token:g" in c2.node.group_hosts, "the group")
        await until(lambda: epoch(c2) == epoch(b), "the epoch of b")
        with pytest.raises(Indeterminate):
            await c2.group.broadcast(b"second")
        assert b.data == c2.data == []
        net.switch.apply({"heal": True})
        await together([a, b, c2])
        await delivered([a, b], 2)
        expected = [(0, "a", b"committed by a and c"), (1, "c", b"second")]
        assert a.order == b.order == expected
        await until(lambda: c2.order[-1:] == expected[-1:], "the present")
