"""Members that were gone come back: who may go on, with whom, and what those who wait are told."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from roundelay.core.errors import UsageError
from roundelay.node.membership.identity import made_up_name
from roundelay.node.membership.recovery import request
from roundelay.node.storage.folders import group_folder
from tests.node.live import Net, check_total_order, delivered, membership_of, together, until


@pytest.mark.seconds(90)
@pytest.mark.parametrize("names", ["ab", "abc"])
async def test_without_a_folder_a_member_that_returns_under_its_name_makes_the_group_work_again(
    names: str,
) -> None:
    async with Net() as net:
        members = await net.form(names)
        # Whoever sent last has the token, or nearly so: both cases are tried.
        for dies in (members[-1], members[0]):
            alive = [member for member in members if member is not dies]
            for sender in (alive[0], dies):
                await sender.group.broadcast(f"{sender.name} before".encode())
            await dies.die()
            back = await net.join(dies.name)
            members = [*alive, back]
            await together(members)
            for member in members:
                await member.group.broadcast(f"{member.name} after".encode())
            check_total_order(members)


def fixed(names: str, folder: Path, name: str) -> dict[str, Any]:
    return {"members": tuple(names), "dir": folder / name}


@pytest.mark.seconds(90)
@pytest.mark.parametrize(("names", "resilience"), [("abc", 1), ("abcde", 2)])
async def test_after_a_restart_of_all_a_majority_with_its_disks_goes_on(
    tmp_path: Path, names: str, resilience: int
) -> None:
    async with Net() as net:
        first = [
            await net.join(name, resilience=resilience, **fixed(names, tmp_path, name))
            for name in names
        ]
        await together(first)
        for number in range(20):
            await first[number % len(first)].group.broadcast(b"%d" % number)
        for member in first:
            await member.die()
        again = [
            await net.join(name, resilience=resilience, **fixed(names, tmp_path, name))
            for name in names[1:]
        ]
        await together(again)
        receipt = await again[0].group.broadcast(b"again")
        assert receipt.seq == 20
        await delivered(again, 1)
        late = await net.join(names[0], resilience=resilience, **fixed(names, tmp_path, names[0]))
        await together([late, *again])


@pytest.mark.seconds(90)
async def test_after_a_restart_of_all_a_majority_of_a_discovered_group_goes_on(
    tmp_path: Path,
) -> None:
    async with Net() as net:
        first = [await net.join(name, dir=tmp_path / name) for name in "abc"]
        await together(first)
        for number in range(20):
            await first[number % 3].group.broadcast(b"%d" % number)
        for member in first:
            await member.die()
        again = [await net.join(name, dir=tmp_path / name) for name in "bc"]
        await until(
            lambda: all(one.group.view.state == "open" for one in again), "a majority works"
        )
        assert (await again[0].group.broadcast(b"again")).seq == 20


async def test_a_group_that_waits_says_for_whom() -> None:
    async with Net() as net:
        a, b, c = await net.form("abc")
        await b.die()
        await c.die()
        waiting = asyncio.create_task(a.group.broadcast(b"is anybody there?"))
        await until(
            lambda: a.group.view.state == "blocked: majority (b and c are missing)",
            "who is missing",
        )
        waiting.cancel()


@pytest.mark.seconds(90)
@pytest.mark.parametrize("service", ["total", "partial", "selective"])
async def test_a_cluster_whose_ring_waits_says_for_whom_and_can_be_recovered(service: str) -> None:
    """It said `broken: no answer from [1]`, and who came back `forming`, for ever."""
    async with Net() as net:
        a, b, c = await net.form("abc", service=service)
        places = [membership_of(one) for one in (a, b, c)]
        await until(lambda: all(place.works() for place in places), "a list of the ring")
        await a.die()
        await b.die()
        waiting = asyncio.create_task(c.group.broadcast(b"waits"))
        lost = "blocked: majority (a and b are missing)"
        await until(lambda: c.group.view.state == lost, lost)
        back = [await net.join(name, service=service) for name in "ab"]
        forgotten = "blocked: majority (a and b have forgotten what they had)"
        for one in (c, *back):
            await until(lambda one=one: one.group.view.state == forgotten, forgotten)  # type: ignore[misc]
            place = membership_of(one)
            assert place.status()["state"] == forgotten
        c.node.recover(c.group.name)
        await together([c, *back])
        await back[0].group.broadcast(b"after")
        await until(lambda: all(b"after" in one.data for one in (c, *back)), "it goes on")
        await asyncio.wait([waiting])


def test_a_node_without_a_name_keeps_the_one_it_made_up_in_its_folder(tmp_path: Path) -> None:
    first, other = made_up_name(tmp_path / "x"), made_up_name(tmp_path / "y")
    assert first != other
    assert made_up_name(tmp_path / "x") == first
    assert made_up_name(None) != made_up_name(None)
    (tmp_path / "x" / "name").write_bytes(b"\xff no name")
    assert made_up_name(tmp_path / "x") != first


# -- recovery by an operator -------------------------------------------------------------------


async def test_an_operator_goes_on_with_a_discovered_group_from_one_member() -> None:
    async with Net() as net:
        a, b, c = await net.form("abc")
        for number in range(10):
            await a.group.broadcast(b"%d" % number)
        await delivered([a, b, c], 10)
        with pytest.raises(UsageError, match="works: there is nothing to recover"):
            a.node.recover("token:g")
        was = a.group.view.history
        await b.die()
        await c.die()
        waiting = asyncio.create_task(a.group.broadcast(b"while it was blocked"))
        await until(lambda: a.group.view.state.startswith("blocked"), "blocked")
        found = a.node.recover("token:g", do=False)
        # What waits may have its stamp by now, if a had the token.
        assert found["position"] in (10, 11)
        assert found["members"] == ["a", "b", "c"]
        done: Any = a.node.recover("token:g")
        assert done["history"].endswith(f"@{was}:{found['position']}")
        receipt = await waiting
        assert receipt.seq == 10
        assert a.group.view.history == done["history"]
        b = await net.join("b")
        await together([a, b])
        assert (await b.group.broadcast(b"again")).seq == 11
        await delivered([a], 12)
        assert a.data == [*(b"%d" % number for number in range(10)),
                          b"while it was blocked", b"again"]  # fmt: skip


@pytest.mark.seconds(90)
async def test_members_that_have_more_than_what_was_recovered_are_told_so_and_join(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with Net() as net:
        a, b, c = [await net.join(name, **fixed("abc", tmp_path, name)) for name in "abc"]
        await together([a, b, c])
        was = a.group.view.history
        assert len(was) == 16
        assert {one.group.view.history for one in (a, b, c)} == {was}
        for number in range(5):
            await a.group.broadcast(b"%d" % number)
        await delivered([a, b, c], 5)
        await a.die()
        for number in range(5, 8):
            await b.group.broadcast(b"%d" % number)
        await delivered([b, c], 8)
        await b.die()
        await c.die()
        # b and c are thought to be gone for good; a, which is behind, goes on.
        a = await net.join("a", **fixed("abc", tmp_path, "a"))
        await until(lambda: "b and c are missing" in a.group.view.state, "blocked")
        request(group_folder(tmp_path / "a", "token:g"))
        await until(lambda: a.group.view.state.startswith("open"), "recovered")
        assert a.group.view.history.endswith(f"@{was}:5")
        assert (await a.group.broadcast(b"from here")).seq == 5
        b = await net.join("b", **fixed("abc", tmp_path, "b"))
        await together([a, b])
        assert (tmp_path / "b" / "groups" / "token%3ag" / "token.log.1").exists()
        assert (await b.group.broadcast(b"b again")).seq == 6
        c = await net.join("c", **fixed("abc", tmp_path, "c"))
        await together([a, b, c])
        history = a.group.view.history
        assert {one.group.view.history for one in (b, c)} == {history}
        # It is remembered, and a majority of all three is needed again.
        for one in (a, b, c):
            await one.die()
        b, c = [await net.join(name, **fixed("abc", tmp_path, name)) for name in "bc"]
        await until(lambda: b.group.view.state == c.group.view.state == "open", "b and c")
        assert b.group.view.history == history
        assert (await c.group.broadcast(b"without a")).seq == 7
    said = caplog.text
    assert "recovered by an operator at position 5" in said
    assert "the 3 positions beyond that were given here are no part of it any more" in said


@pytest.mark.seconds(90)
async def test_members_of_a_fixed_roster_that_lost_their_disks_join_what_was_recovered(
    tmp_path: Path,
) -> None:
    """The first of them to give way heard the other still say `fixed`, and failed: members = a,b,c
    was asked for, but the group has members = a,b,c."""
    async with Net() as net:
        a, b, c = [await net.join(name, **fixed("abc", tmp_path, name)) for name in "abc"]
        await together([a, b, c])
        for number in range(5):
            await a.group.broadcast(b"%d" % number)
        await delivered([a, b, c], 5)
        await b.die()
        await c.die()
        waiting = asyncio.create_task(a.group.broadcast(b"waits"))
        b, c = [await net.join(name, **fixed("abc", tmp_path / "new", name)) for name in "bc"]
        forgotten = "blocked: majority (b and c have forgotten what they had)"
        for one in (a, b, c):
            await until(lambda one=one: one.group.view.state == forgotten, forgotten)  # type: ignore[misc]
        a.node.recover("token:g")
        await together([a, b, c])
        await asyncio.wait([waiting])
        assert (await c.group.broadcast(b"after")).seq == 6
        await until(lambda: all(b"after" in one.data for one in (a, b, c)), "it goes on")
        assert all(one.error is None for one in (a, b, c))


@pytest.mark.seconds(90)
async def test_who_has_less_than_another_that_is_heard_is_refused_a_recovery(
    tmp_path: Path,
) -> None:
    async with Net() as net:
        members = [await net.join(name, **fixed("abcde", tmp_path, name)) for name in "abcde"]
        await together(members)
        await members[0].die()
        for number in range(5):
            await members[1].group.broadcast(b"%d" % number)
        for one in members[1:]:
            await one.die()
        a, b = [await net.join(name, **fixed("abcde", tmp_path, name)) for name in "ab"]
        ring: Any = membership_of(a).ring
        engine = ring.token
        await until(
            lambda: 1 in engine.reformation.votes and engine.reformation.blocked,
            "a vote of b at a",
        )
        with pytest.raises(UsageError, match="b has more of group token:g"):
            a.node.recover("token:g")
        assert b.node.recover("token:g")["position"] == 5
