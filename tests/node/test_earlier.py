"""What was confirmed before the roster changed is on disk afterwards, too."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from roundelay.core.engine import SECOND
from roundelay.node.membership import earlier
from roundelay.node.membership.reconfiguration import Reconfiguration
from roundelay.node.recording.memory import BYTES_MAX
from roundelay.node.storage.folders import group_folder
from roundelay.node.storage.store import Store
from roundelay.wire.control import Kept, Start
from tests.node.live import Member, Net, delivered, kill, together, until
from tests.node.power import Power


async def said(member: Member, count: int, **options: Any) -> list[bytes]:
    data = [f"{member.name} {number}".encode() for number in range(count)]
    for one in data:
        await member.group.broadcast(one, **options)
    return data


def files(folder: Path, name: str) -> list[str]:
    return sorted(path.name for path in group_folder(folder / name, "token:g").glob("ring-*"))


@pytest.mark.seconds(90)
async def test_what_was_synced_before_the_roster_changed_survives_a_power_cut_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file that had it was removed with the first change."""
    power = Power(tmp_path, monkeypatch)

    async with Net() as net:
        members = [await net.join(name, dir=tmp_path / name) for name in "ab"]
        await together(members)
        expected = await said(members[0], 10, durability="synced")
        members.append(await net.join("c", dir=tmp_path / "c"))
        await together(members)
        expected += await said(members[2], 5, durability="synced")
        await delivered(members[:2], 15)
        power.cut()
        for member in members:
            await member.die()
        power.restore()
        again = [await net.join(name, dir=tmp_path / name, since=0) for name in "abc"]
        await together(again)
        expected += await said(again[1], 1)
        await until(lambda: all(one.data[:16] == expected for one in again), "all of it", 30)
        assert [message.seq for message in again[2].got] == list(range(16))


@pytest.mark.seconds(90)
async def test_what_was_committed_before_the_roster_changed_survives_the_death_of_all(
    tmp_path: Path,
) -> None:
    """Twice: files of earlier rosters are found again, and those of a new one go on behind."""
    async with Net() as net:
        expected: list[bytes] = []
        names = "ab"
        for more in ("c", "d"):
            members = [await net.join(name, dir=tmp_path / name, since=0) for name in names]
            await together(members)
            expected += await said(members[0], 5)
            names += more
            members.append(await net.join(more, dir=tmp_path / more, since=0))
            await together(members)
            expected += await said(members[-1], 5)
            await delivered(members, len(expected))
            assert all(one.data == expected for one in members)
            for member in members:
                await member.die()
        members = [await net.join(name, dir=tmp_path / name, since=0) for name in "abc"]
        await together(members)
        await until(lambda: all(one.data == expected for one in members), "the same again", 30)


@pytest.mark.seconds(90)
async def test_a_change_that_was_agreed_on_and_not_carried_out_is_carried_out_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All die between the commit of CHANGE and what follows from it: it was given to applications
    as a message, and the roster stayed."""
    async with Net() as net:
        members = [await net.join(name, dir=tmp_path / name) for name in "ab"]
        await together(members)
        expected = await said(members[0], 3)
        await delivered(members, 3)
        with monkeypatch.context() as patch:
            dead: list[str] = []

            def die(group: Reconfiguration, *_: object) -> None:
                node = group.state.node
                dead.append(node.name)
                group.state.closed = True
                kill(node)

            patch.setattr(Reconfiguration, "_changed", die)
            c = await net.join("c", dir=tmp_path / "c")
            await until(lambda: sorted(dead) == ["a", "b"], "both to die")
            for member in (*members, c):
                await member.die()
        again = [await net.join(name, dir=tmp_path / name, since=0) for name in "abc"]
        await together(again)
        expected += await said(again[2], 1)
        await until(lambda: all(len(one.got) >= 4 for one in again), "all of it", 30)
        for one in again:
            assert one.order == [
                (0, "a", expected[0]), (1, "a", expected[1]), (2, "a", expected[2]),
                (3, "c", expected[3]),
            ]  # fmt: skip


@pytest.mark.seconds(120)
@pytest.mark.parametrize("orderly", [False, True])
async def test_the_only_member_goes_on_behind_what_it_has_on_disk(
    tmp_path: Path, orderly: bool
) -> None:
    """It began anew at position 0, although L = 0 means that all it had confirmed was synced."""
    async with Net() as net:
        alone = await net.join("b", dir=tmp_path / "b", min_members=1)
        await together([alone])
        expected = await said(alone, 5)
        was = alone.group.view.history
        await (alone.leave() if orderly else alone.die())
        # The first by name would begin the group, but b has something of it.
        members = await asyncio.gather(
            net.join("a", min_members=1, since=0),
            net.join("b", dir=tmp_path / "b", min_members=1, since=0),
        )
        await together(list(members))
        assert members[0].group.view.history.endswith(f"@{was}:5")
        expected += await said(members[0], 2)
        await until(lambda: all(one.data == expected for one in members), "all of it", 30)
        # And once more, now with two files.
        for member in members:
            await member.die()
        b = await net.join("b", dir=tmp_path / "b", min_members=1, since=0)
        a = await net.join("a", min_members=1, since=0)
        await together([a, b], 40)
        await until(lambda: a.data == b.data == expected, "the same again", 30)


async def test_one_that_was_alone_joins_those_who_have_begun_anew(tmp_path: Path) -> None:
    async with Net() as net:
        alone = await net.join("a", dir=tmp_path / "a", min_members=1)
        await together([alone])
        await said(alone, 5)
        await alone.die()
        others = await net.form("bc", min_members=1)
        expected = await said(others[0], 2)
        back = await net.join("a", dir=tmp_path / "a", min_members=1, since=0)
        await together([back, *others])
        await until(lambda: back.data == expected, "what the others have")
        assert len(files(tmp_path, "a")) == 1


@pytest.mark.seconds(90)
@pytest.mark.parametrize("named", [False, True])
async def test_what_was_recovered_is_kept_through_a_restart(tmp_path: Path, named: bool) -> None:
    """A new history with the prefix of the old one: after a restart the prefix was gone."""
    options: dict[str, Any] = {"members": tuple("abc")} if named else {}

    async with Net() as net:
        members = [await net.join(name, dir=tmp_path / name, **options) for name in "abc"]
        await together(members)
        expected = await said(members[0], 5)
        await delivered(members, 5)
        for member in members:
            await member.die()
        a = await net.join("a", dir=tmp_path / "a", **options)
        await until(lambda: a.group.view.state.startswith("blocked"), "blocked")
        a.node.recover("token:g")
        await until(lambda: a.group.view.state.startswith("open"), "recovered")
        await a.die()
        a = await net.join("a", dir=tmp_path / "a", since=0, **options)
        b = await net.join("b", dir=tmp_path / "b", since=0, **options)
        await together([a, b], 40)
        expected += await said(b, 1)
        await until(lambda: a.data == b.data == expected, "all of it", 30)


async def test_who_lacks_something_waits_for_members_that_turn_to_the_new_history() -> None:
    """It was told that nobody had it, when their memories were still of the history before."""
    async with Net() as net:
        a, b = await net.form("ab")
        was = a.group.view.history
        await b.die()
        waiting = asyncio.create_task(a.group.broadcast(b"while it was blocked"))
        await until(lambda: a.group.view.state.startswith("blocked"), "blocked")
        a.node.recover("token:g")
        await until(lambda: a.node.recorders.lineage("token:g") != was, "recovered")
        recorders = a.node.recorders
        recorders.memories.clear()
        assert not recorders.turning("token:g")
        word = Kept("token:g", "c", 1, 0, 5, was)
        recorders.hear(word, time.monotonic_ns())
        assert recorders.turning("token:g")
        waiting.cancel()


async def test_a_synced_broadcast_waits_for_the_file_of_the_roster_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that was committed just before the change counted as synced when the new file was."""
    synced: list[Path] = []
    sync_beside = Store.sync_beside

    async def noted(store: Store) -> None:
        await sync_beside(store)
        synced.append(store.path)

    monkeypatch.setattr(Store, "sync_beside", noted)
    monkeypatch.setattr(
        "roundelay.node.membership.epoch.LINGER_NS", 60 * SECOND
    )  # then it is closed

    def mine() -> list[str]:
        return [path.name for path in synced if path.is_relative_to(tmp_path / "a")]

    async with Net() as net:
        a, b = [await net.join(name, dir=tmp_path / name) for name in "ab"]
        await together([a, b])
        await said(a, 3)
        (before,) = files(tmp_path, "a")
        await together([a, b, await net.join("c", dir=tmp_path / "c")])
        after = max(name for name in files(tmp_path, "a") if name.endswith(".log"))
        await a.group.broadcast(b"afterwards", durability="synced")
        # It may return when b and c have synced, before a has.
        await until(lambda: after in mine(), "a has synced")
        assert before in mine()[: mine().index(after)]


def test_files_of_earlier_rosters_go_when_newer_ones_have_enough(tmp_path: Path) -> None:
    for epoch in range(4):
        log = tmp_path / f"ring-x-{epoch}.log"
        log.touch()
        with log.open("r+b") as file:
            file.truncate(BYTES_MAX // 2)
        earlier.keep(log, Start("token:g", "x", epoch, ("a",), (b"",), 10 * epoch, 0))
    (tmp_path / "ring-x-4.log").touch()
    earlier.let_go(tmp_path, "ring-x-4.log", go_on=True)
    left = ["ring-x-2.log", "ring-x-2.log.json", "ring-x-3.log", "ring-x-3.log.json"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [*left, "ring-x-4.log"]
    # What cannot be read is passed over, and changes nothing.
    assert list(earlier.batches(tmp_path, "token:g", 40, "x")) == []
    earlier.let_go(tmp_path, "ring-x-4.log", go_on=False)
    assert [path.name for path in tmp_path.iterdir()] == ["ring-x-4.log"]
