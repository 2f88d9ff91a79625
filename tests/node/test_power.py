"""Power cuts of everybody: what was confirmed as synced or recorded is there afterwards."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any

import pytest

from roundelay.core.errors import MissingMessages, NoRecorder
from roundelay.node.recording.recorder import Recorder
from tests.node.live import Member, Net, delivered, together, until
from tests.node.power import Power

NAMES = ("a", "b", "c")


async def joined(net: Net, folder: Path, name: str, **options: Any) -> Member:
    return await net.join(name, members=NAMES, dir=folder / name, **options)


async def cut(power: Power, members: list[Member]) -> int:
    power.cut()
    for member in members:
        await member.die()
    return power.restore()


@pytest.mark.seconds(90)
async def test_what_l_plus_1_members_have_synced_survives_a_power_cut_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    power = Power(tmp_path, monkeypatch)

    async with Net() as net:
        first = [await joined(net, tmp_path, name) for name in NAMES]
        await together(first)
        was = first[0].group.view.history
        sent = [b"synced %d" % number for number in range(30)]
        before = power.syncs
        receipts = await asyncio.gather(
            *(first[0].group.broadcast(one, durability="synced") for one in sent)
        )
        assert sorted(one.seq for one in receipts if one.seq is not None) == list(range(30))
        assert power.syncs - before < 60  # three members, thirty messages: batches
        await first[1].group.broadcast(b"only committed")
        await delivered(first, 31)
        order = first[0].data[:30]
        assert await cut(power, first) > 0
        again = [await joined(net, tmp_path, name, since=0) for name in NAMES]
        await together(again)
        view = again[0].group.view
        new, _, base = view.history.rpartition(":")
        assert new.endswith(f"@{was}")
        assert int(base) in (30, 31)
        receipt = await again[2].group.broadcast(b"afterwards")
        assert receipt.seq == int(base)
        await until(lambda: all(b"afterwards" in one.data for one in again), "all of it")
        for one in again:
            assert one.data[:30] == order


@pytest.mark.seconds(90)
async def test_what_a_recorder_has_synced_is_the_past_after_a_power_cut_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    power = Power(tmp_path, monkeypatch)

    async with Net() as net:
        first = [await joined(net, tmp_path, name, record=name == "c") for name in NAMES]
        await together(first)
        await until(lambda: first[0].node.recorders.known("token:g"), "a recorder")
        sent = [b"recorded %d" % number for number in range(30)]
        for one in sent:
            receipt = await first[0].group.broadcast(one, durability="recorded")
        assert receipt.seq == 29
        was = first[0].group.view.history
        assert await cut(power, first) > 0
        # The members' own logs are back at the beginning; the journal is not.
        again = [await joined(net, tmp_path, name, record=name == "c", since=0) for name in NAMES]
        await together(again)
        history = again[0].group.view.history
        assert history.partition("@")[2] == f"{was}:30"
        receipt = await again[1].group.broadcast(b"afterwards")
        assert receipt.seq == 30
        await until(lambda: all(b"afterwards" in one.data for one in again), "all of it")
        for member in again:
            assert member.data == [*sent, b"afterwards"]
        # What the recorder said of the history before counts for nothing in this one.
        for heard in again[0].node.recorders.sources("token:g"):
            assert heard.word.history == history
        await again[2].die()
        recorders = again[0].node.recorders
        await until(lambda: not recorders.sources("token:g", lively=True), "it is gone")
        with pytest.raises(NoRecorder):
            await again[0].group.broadcast(b"x", durability="recorded")


@pytest.mark.seconds(90)
async def test_a_second_power_cut_of_all_goes_on_behind_what_was_recorded_since_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a group whose members found each other; the recorder's disk is slow."""
    power = Power(tmp_path, monkeypatch)
    enter = Recorder._enter

    def slowly(recorder: Recorder, history: str) -> None:
        time.sleep(0.5)
        enter(recorder, history)

    monkeypatch.setattr(Recorder, "_enter", slowly)

    async with Net() as net:
        histories: list[str] = []
        sent: list[bytes] = []
        for life in range(3):
            members = [
                await net.join(name, dir=tmp_path / name, record=name == "c", since=0)
                for name in NAMES
            ]
            await together(members)
            await until(lambda them=members: them[0].node.recorders.known("token:g"), "it")  # type: ignore[misc]
            for number in range(10):
                sent.append(b"recorded %d" % (10 * life + number))
                receipt = await members[life].group.broadcast(sent[-1], durability="recorded")
                assert receipt.seq == len(sent) - 1
            await until(lambda them=members: all(sent == one.data for one in them), "all of it")  # type: ignore[misc]
            # Everybody says which history it is, in receipts and positions, too.
            assert {one.group.history for one in members} == {receipt.history}
            histories.append(receipt.history)
            if life < 2:
                assert await cut(power, members) > 0
        ids = [history.partition("@")[0] for history in histories]
        assert histories[1] == f"{ids[1]}@{ids[0]}:10"
        assert histories[2] == f"{ids[2]}@{ids[1]}:20"
        assert not list((tmp_path / "c" / "journals").glob("*.1"))


@pytest.mark.seconds(90)
async def test_what_was_recorded_of_a_journal_group_survives_a_power_cut_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which history a journal is of was not synced: the recorder put it aside as one of another,
    and the group began at 0 again (`chaos --api`, seed 9034)."""
    power = Power(tmp_path, monkeypatch)

    file = tmp_path / "roles.toml"
    file.write_text('profile = "demo"\nmembers = ["a", "b", "c"]\n')
    with file.open("rb") as config:
        os.fsync(config.fileno())

    async def start(net: Net) -> list[Member]:
        options: dict[str, Any] = {"service": "journal", "config": file}
        return [await net.join(name, dir=tmp_path / name, **options) for name in "abc"]

    async with Net() as net:
        first = await start(net)
        await together(first)
        sent = [b"recorded %d" % number for number in range(30)]
        for one in sent:
            await first[2].group.broadcast(one, durability="recorded")
        assert await cut(power, first) > 0
        again = await start(net)
        await together(again)
        receipt = await again[2].group.broadcast(b"afterwards", durability="recorded")
        assert receipt.seq is not None
        assert receipt.seq >= 30
        # It goes on behind all that may have been acknowledged, and that is said.
        replay = again[1].group.replay(since=0, missing="skip")
        assert [one.data async for one in replay] == [*sent, b"afterwards"]


@pytest.mark.seconds(90)
async def test_positions_of_a_journal_group_that_a_power_cut_took_are_not_used_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Acknowledged and delivered, but on no recorder's disk: other messages got their positions,
    and who came back behind them passed over those (`chaos --api`, seed 20023)."""
    power = Power(tmp_path, monkeypatch)

    file = tmp_path / "roles.toml"
    text = 'profile = "demo"\nmembers = ["a", "b", "c"]\n[journal]\ninterval_s = 3600\n'
    file.write_text(text)
    with file.open("rb") as config:
        os.fsync(config.fileno())
    options: dict[str, Any] = {"service": "journal", "config": file}

    async with Net() as net:
        first = [await net.join(name, dir=tmp_path / name, **options) for name in "abc"]
        await together(first)
        for number in range(10):
            await first[2].group.broadcast(b"recorded %d" % number)
        journal = first[0].node.recorders.own["grsb:g"].journal
        await until(lambda: journal.end == 10, "it is written")
        journal.sync()
        for number in range(5):
            receipt = await first[2].group.broadcast(b"lost %d" % number)
        assert receipt.seq == 14
        await until(lambda: all(len(one.data) == 15 for one in first[1:]), "delivered")
        assert await cut(power, first) > 0
        again = [
            await net.join("a", dir=tmp_path / "a", **options),
            await net.join("b", dir=tmp_path / "b", since=12, **options),
            await net.join("c", dir=tmp_path / "c", since=15, **options),
        ]
        await together(again)
        receipt = await again[2].group.broadcast(b"afterwards")
        assert receipt.seq is not None
        assert 15 <= receipt.seq <= 15 + 65_536
        for member, since in ((again[1], 12), (again[2], 15)):
            await until(lambda one=member: one.error is not None, "it is told")  # type: ignore[misc]
            assert isinstance(member.error, MissingMessages)
            assert (member.error.first, member.error.last) == (since, receipt.seq - 1)
            assert member.data == []
            message = await asyncio.wait_for(anext(aiter(member.group)), 20)
            assert (message.seq, message.data) == (receipt.seq, b"afterwards")
        replayed = [one.seq async for one in again[1].group.replay(since=0, missing="skip")]
        assert replayed == [*range(10), receipt.seq]


@pytest.mark.seconds(90)
async def test_an_orderly_stop_of_a_whole_journal_group_leaves_no_positions_out(
    tmp_path: Path,
) -> None:
    file = tmp_path / "roles.toml"
    file.write_text('profile = "demo"\nmembers = ["a", "b", "c"]\n')
    options: dict[str, Any] = {"service": "journal", "config": file}
    async with Net() as net:
        for life in range(3):
            members = [await net.join(name, dir=tmp_path / name, **options) for name in "abc"]
            await together(members)
            for number in range(4):
                receipt = await members[2].group.broadcast(b"%d" % number, durability="recorded")
                assert receipt.seq == 4 * life + number
            for member in members:
                await member.leave()
