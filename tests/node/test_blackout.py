"""Total groups whose members all go at once: what recorders have synced is the past afterwards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import roundelay
from tests.node.live import Member, Net, together, until
from tests.node.power import Power

NAMES = ("a", "b", "c")


async def joined(net: Net, folder: Path, name: str, **options: Any) -> Member:
    where = folder / name
    return await net.join(name, service="total", members=NAMES, dir=where, **options)


@pytest.mark.seconds(90)
async def test_a_total_group_whose_members_all_go_begins_behind_what_was_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    power = Power(tmp_path, monkeypatch)

    async with Net() as net:
        first = [await joined(net, tmp_path, name, record=name != "a") for name in NAMES]
        await together(first)
        await until(lambda: first[0].node.recorders.known("to:g"), "a recorder")
        sent = [b"recorded %d" % number for number in range(30)]
        for one in sent:
            receipt = await first[0].group.broadcast(one, durability="recorded")
        was = first[0].group.history
        assert (receipt.seq, receipt.history) == (29, was)
        power.cut()
        for member in first:
            await member.die()
        power.restore()
        again = [await joined(net, tmp_path, name, record=name != "a", since=0) for name in NAMES]
        await together(again)
        assert again[0].group.history.partition("@")[2] == f"{was}:30"
        receipt = await again[1].group.broadcast(b"afterwards", durability="recorded")
        assert (receipt.seq, receipt.history) == (30, again[1].group.history)
        await until(lambda: all(b"afterwards" in one.data for one in again), "all of it")
        for member in again:
            assert member.data == [*sent, b"afterwards"]
            assert member.error is None


@pytest.mark.seconds(90)
async def test_those_who_have_forgotten_wait_for_the_one_that_recorded(tmp_path: Path) -> None:
    async with Net() as net:
        first = [await joined(net, tmp_path, name, record=name == "c") for name in NAMES]
        await together(first)
        await until(lambda: first[0].node.recorders.known("to:g"), "a recorder")
        for number in range(5):
            receipt = await first[0].group.broadcast(b"%d" % number, durability="recorded")
        assert receipt.seq is not None
        at = roundelay.Position(receipt.history, receipt.seq + 1)
        for member in first:
            await member.die()
        again = [await joined(net, tmp_path, name, since=at) for name in "ab"]
        seats: list[Any] = [member.node.group_hosts["to:g"] for member in again]
        await until(
            lambda: all(seat.reconfiguration.ending.drained.keys() >= {"a", "b"} for seat in seats),
            "words",
        )
        again.append(await joined(net, tmp_path, "c", record=True, since=at))
        await together(again)
        receipt = await again[0].group.broadcast(b"afterwards")
        assert (receipt.seq, receipt.history.partition("@")[2]) == (5, str(at))
        await until(lambda: all(one.data == [b"afterwards"] for one in again), "all of it")
        assert all(one.error is None for one in again)
