"""Token groups with a fixed roster: what a member keeps in its directory, and what it does
without."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest

from roundelay.core.errors import ConfigError
from roundelay.core.token.config import COLD, REJOIN
from roundelay.core.token.site import TokenSite
from tests.node.live import (
    Member,
    Net,
    check_total_order,
    delivered,
    membership_of,
    together,
    until,
)

NAMES = ("a", "b", "c")


class Fixed:
    """A group of a, b and c on one medium."""

    def __init__(self, net: Net, folder: Path) -> None:
        self.net = net
        self.folder = folder

    async def join(self, name: str, **options: Any) -> Member:
        settings: dict[str, Any] = {"members": NAMES, "dir": self.folder / name} | options
        return await self.net.join(name, **settings)

    async def form(self) -> list[Member]:
        members = [await self.join(name) for name in NAMES]
        await together(members)
        return members


def boot(member: Member) -> str:
    data = membership_of(member).data
    assert data is not None
    assert isinstance(data.engine, TokenSite)
    return data.engine.config.boot


async def test_a_new_group_opens_when_enough_members_have_met(tmp_path: Path) -> None:
    async with Net() as net:
        fixed = Fixed(net, tmp_path)
        a = await fixed.join("a")
        b = await fixed.join("b")
        await until(lambda: len(membership_of(a).fixed.contacts) == 1, "b")
        await asyncio.sleep(0.3)
        # c may be the only one who knows that the group has a past.
        assert membership_of(a).data is None
        state = "forming: meeting the other members for the first time (c is missing)"
        assert a.group.view.state == state
        c = await fixed.join("c")
        await together([a, b, c])
        # Who meets a group that has already begun may have been in it, and forgotten.
        assert [boot(member) for member in (a, b, c)].count(COLD) >= 2
        receipts = await asyncio.gather(*(m.group.broadcast(b"hi") for m in (a, b, c)))
        assert sorted(one.seq for one in receipts if one.seq is not None) == [0, 1, 2]
        await delivered([a, b, c], 3)
        check_total_order([a, b, c])


async def test_a_member_that_restarts_missed_nothing(tmp_path: Path) -> None:
    async with Net() as net:
        fixed = Fixed(net, tmp_path)
        a, b, c = await fixed.form()
        for number in range(10):
            await a.group.broadcast(b"%d" % number)
        await delivered([c], 10)
        await c.die()
        for number in range(10, 20):
            await b.group.broadcast(b"%d" % number)
        c = await fixed.join("c")
        assert boot(c) == COLD
        await together([a, b, c])
        receipt = await c.group.broadcast(b"20")
        assert receipt.seq == 20
        await delivered([a, b], 21)
        await delivered([c], 11)
        # What it had delivered in its earlier life is not delivered again.
        assert c.order == a.order[10:] == b.order[10:]


async def test_an_application_resumes_exactly_where_it_left_off(tmp_path: Path) -> None:
    async with Net() as net:
        fixed = Fixed(net, tmp_path)
        a, b, c = await fixed.form()
        await a.group.broadcast_many([b"%d" % number for number in range(30)])
        await delivered([c], 30)
        await c.die()
        await a.group.broadcast_many([b"%d" % number for number in range(30, 40)])
        c = await fixed.join("c", since=17)
        await delivered([c], 23)
        await together([a, b, c])
        await c.group.broadcast(b"40")
        await delivered([a, c], 24)
        assert c.order == a.order[17:]
        assert [message.seq for message in c.got] == list(range(17, 41))


async def test_an_application_that_knows_more_than_the_disk_hears_nothing_twice(
    tmp_path: Path,
) -> None:
    """COMMIT records are written, not synced: a power cut may take the last ones."""
    async with Net() as net:
        fixed = Fixed(net, tmp_path)
        a, b, c = await fixed.form()
        await a.group.broadcast(b"0")
        await delivered([c], 1)
        path = tmp_path / "c" / "groups" / "token%3ag" / "token.log"
        size = path.stat().st_size
        for number in range(1, 6):
            await a.group.broadcast(b"%d" % number)
        await delivered([c], 6)
        await c.die()
        with path.open("r+b") as file:
            file.truncate(size)
        c = await fixed.join("c", since=6)
        await together([a, b, c])
        await a.group.broadcast(b"6")
        await delivered([c], 1)
        await asyncio.sleep(0.1)
        assert c.order == [(6, "a", b"6")]


async def test_a_member_whose_directory_was_wiped_is_no_witness_and_catches_up(
    tmp_path: Path,
) -> None:
    async with Net() as net:
        fixed = Fixed(net, tmp_path)
        a, b, c = await fixed.form()
        await a.group.broadcast_many([b"%d" % number for number in range(5)])
        await delivered([a, b, c], 5)
        await c.die()
        shutil.rmtree(tmp_path / "c")
        c = await fixed.join("c")
        await until(lambda: membership_of(c).data is not None, "the past")
        assert boot(c) == REJOIN
        await together([a, b, c])
        assert (await c.group.broadcast(b"5")).seq == 5
        await delivered([a, b], 6)
        await until(lambda: c.order[-1:] == [(5, "c", b"5")], "the present")
        assert c.order == a.order[-len(c.order) :]


async def test_all_may_lose_power_at_once(tmp_path: Path) -> None:
    async with Net() as net:
        fixed = Fixed(net, tmp_path)
        members = await fixed.form()
        for number in range(5):
            await members[0].group.broadcast(b"%d" % number)
        await delivered(members, 5)
        for member in members:
            await member.die()
        again = [await fixed.join(name, since=0) for name in NAMES]
        await together(again)
        assert (await again[2].group.broadcast(b"5")).seq == 5
        await delivered(again, 6)
        for member in again:
            assert member.data == [b"%d" % number for number in range(6)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "x"}, "members = a,b,c is not allowed: x among them"),
        ({"dir": None}, "dir = None is not allowed: a directory"),
        ({"resilience": 2}, "resilience = 2 is not allowed: 0 to 1 for 3 members"),
        ({"members": ("a", "a")}, "members = a,a is not allowed: each name once"),
        ({"members": ("a", "b" * 256)}, "members = .* 1 to 255 bytes"),
        ({"service": "fifo"}, "members = a,b,c is not allowed: .*fifo"),
    ],
)
async def test_a_roster_that_cannot_work_is_refused(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    async with Net() as net:
        settings: dict[str, Any] = {"name": "a", "members": NAMES, "dir": tmp_path} | options
        with pytest.raises(ConfigError, match=message):
            await net.join(settings.pop("name"), **settings)
