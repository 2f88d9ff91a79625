"""One name, one life: a name or a folder that is taken, and lives that replace each other."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import time
from pathlib import Path

import pytest

from roundelay import FolderInUse, LeftOut, NameTaken
from roundelay.core.engine import SECOND
from roundelay.core.errors import GroupClosed, GroupTrouble
from roundelay.node.membership import identity
from roundelay.node.membership.identity import ANSWER, ANSWERS, YIELD, Identity
from roundelay.node.storage import folders
from roundelay.wire.control import Ask, Info
from tests.node.live import (
    Member,
    Net,
    check_total_order,
    freeze,
    membership_of,
    thaw,
    together,
    until,
)


@pytest.mark.parametrize("service", ["resilient", "total", "fifo"])
async def test_a_name_that_is_taken_fails_the_join_and_nothing_is_committed(service: str) -> None:
    """Two nodes of one name formed two groups, which both gave position 0 to other messages."""
    async with Net() as net:
        a, b = await net.form("ab", service=service)
        with pytest.raises(NameTaken, match="another name") as raised:
            await net.join("a", service=service)
        assert raised.value.name == "a"
        await together([a, b])
        await b.group.broadcast(b"only one")
        assert a.node.fatal is None
        assert a.node.directory.by_name["a"].uuid == a.node.uuid
        assert b.node.directory.by_name["a"].uuid == a.node.uuid


async def test_a_name_is_taken_over_seeds_that_only_others_know(tmp_path: Path) -> None:
    """Without multicast the one who has the name may be no seed: a seed tells of it."""
    async with Net("fanout") as net:
        await net.form("ab", service="fifo")
        with pytest.raises(NameTaken):
            await net.join("b", service="fifo")


async def test_of_two_that_start_at_once_under_one_name_one_gets_in() -> None:
    async with Net() as net:
        tries = await asyncio.gather(
            *(net.join("same", service="fifo") for _ in range(4)), return_exceptions=True
        )
        refused = [one for one in tries if isinstance(one, NameTaken)]
        assert len(refused) == 3, tries


async def test_a_folder_belongs_to_one_node_from_its_start_to_its_end(tmp_path: Path) -> None:
    """The lock belonged to one command; two `join`s shared a folder and overwrote promises."""
    async with Net() as net:
        a = await net.join("a", dir=tmp_path)
        with pytest.raises(FolderInUse, match=str(os.getpid())) as raised:
            await net.join("b", dir=tmp_path)
        assert raised.value.pid == os.getpid()
        await a.leave()
        b = await net.join("b", dir=tmp_path)
        await b.die()  # the kernel lets go of a dead process's lock
        await net.join("b", dir=tmp_path)


async def test_a_made_up_name_in_a_copied_folder_is_taken(tmp_path: Path) -> None:
    """The copy was not asked whether its name is free: the first one stopped."""
    async with Net() as net:
        first = await net.join("", service="fifo", dir=tmp_path / "a")
        (tmp_path / "b").mkdir()
        shutil.copy(tmp_path / "a" / "name", tmp_path / "b")
        with pytest.raises(NameTaken):
            await net.join("", service="fifo", dir=tmp_path / "b")
        assert first.node.fatal is None


def test_a_folder_on_a_full_disk_is_still_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    one = folders.take(tmp_path)
    with pytest.raises(FolderInUse):
        folders.take(tmp_path)
    one.close()
    folders.take(tmp_path)


@pytest.mark.seconds(90)
@pytest.mark.parametrize("service", ["resilient", "total", "partial", "reliable"])
async def test_a_process_that_was_replaced_while_it_slept_stops_and_confirms_nothing_false(
    service: str,
) -> None:
    """SIGSTOP, a replacement under the same name, SIGCONT: each took the other's receipts, and
    members delivered different messages at one position."""
    async with Net() as net:
        a, b, c = await net.form("abc", service=service)
        confirmed: set[bytes] = set()
        open_: set[bytes] = set()

        async def talk(member: Member, word: str, count: int) -> None:
            for number in range(count):
                data = f"{word} {number}".encode()
                try:
                    await member.group.broadcast(data)
                except GroupTrouble:
                    open_.add(data)
                except GroupClosed:
                    return
                else:
                    confirmed.add(data)

        await asyncio.gather(*(talk(one, f"first {one.name}", 5) for one in (a, b, c)))
        under_way = [asyncio.create_task(talk(c, f"slept {i}", 2)) for i in range(8)]
        await asyncio.sleep(0)
        freeze(c.node)
        new = await net.join("c", service=service)
        await together([a, b, new], 30)
        await talk(new, "in", 1)  # before that it would give way
        talking = [asyncio.create_task(talk(one, f"then {one.name}", 20)) for one in (a, new)]
        await asyncio.sleep(0.05)
        thaw(c.node)
        await until(lambda: c.node.fatal is not None, "the older one stops")
        assert isinstance(c.node.fatal, NameTaken)
        assert c.node.fatal.replaced
        await asyncio.gather(*under_way)
        await asyncio.gather(*talking)
        assert new.node.fatal is None
        await together([a, b, new], 30)
        await talk(b, "the end", 1)
        for one in (a, b):
            await until(lambda m=one: b"the end 0" in m.data, "the end")  # type: ignore[misc]
            missing = confirmed - set(one.data)
            assert not missing, f"confirmed, and not at {one.name}: {sorted(missing)[:5]}"
            assert len(set(one.data)) == len(one.data)
        if service in ("resilient", "total"):
            check_total_order([a, b, c, new])


@pytest.mark.seconds(90)
@pytest.mark.parametrize("leave", [False, True])
async def test_what_a_replaced_process_asks_for_is_void(leave: bool) -> None:
    """It woke up, learned of the roster, and asked to be opened again with it: the group did so,
    and the one that had replaced it was shut out of an epoch."""
    async with Net() as net:
        a, b, c = await net.form("abc", service="partial")
        freeze(c.node)
        new = await net.join("c", service="partial")
        await together([a, b, new], 30)
        await new.group.broadcast(b"in")
        seat = membership_of(a)
        epoch = seat.epoch
        ask = Ask(a.group.name, seat.incarnation, "c", leave, epoch, c.node.uuid)
        reason = "of an earlier life of its sender"
        before = [one.node.drops.get(reason, 0) for one in (a, b, new)]
        c.node.send_control(ask)
        for one, count in zip((a, b, new), before, strict=True):
            await until(lambda m=one, n=count: m.node.drops.get(reason, 0) > n, "a drop")  # type: ignore[misc]
        for number in range(30):
            await a.group.broadcast(b"%d" % number)
            await asyncio.sleep(0.02)
        await until(lambda: b"29" in new.data, "what a has sent")
        assert new.from_("a") == [b"%d" % number for number in range(30)]
        assert (seat.epoch, new.error) == (epoch, None)


@pytest.mark.seconds(90)
@pytest.mark.parametrize("service", ["partial", "selective"])
async def test_who_is_shut_out_by_another_life_of_its_name_is_told(service: str) -> None:
    """The others cannot know yet that it is the earlier one: an epoch has it as a member."""
    async with Net() as net:
        a, b, c = await net.form("abc", service=service)
        await a.group.broadcast(b"before")
        await until(lambda: b"before" in c.data, "what was sent before")
        seat = membership_of(a)
        epoch = seat.epoch
        stranger = Ask(a.group.name, seat.incarnation, "c", False, epoch, os.urandom(16))
        for one in (a, b):
            membership_of(one).told(stranger, time.monotonic_ns())
        await until(lambda: seat.epoch > epoch and seat.works(), "the next epoch")
        sending = asyncio.create_task(a.group.broadcast(b"between"))
        await until(lambda: c.error or b"between" in c.data, "something")
        if c.error is not None:
            assert isinstance(c.error, LeftOut)
            assert (c.error.epoch, c.data) == (epoch + 1, [b"before"])
        await sending


async def test_one_that_hears_too_late_that_its_name_is_taken_stops_and_the_older_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The older one did not get to answer in time: it stopped, for one that had done nothing."""
    monkeypatch.setattr(identity, "FRESH_NS", 60 * SECOND)  # however slow the machine is

    async with Net() as net:
        a, b = await net.form("ab", service="resilient")
        freeze(a.node)
        twin = await net.join("a", service="resilient")
        thaw(a.node)
        await until(lambda: a.node.fatal or twin.node.fatal, "one of them stops")
        assert a.node.fatal is None
        assert isinstance(twin.node.fatal, NameTaken)
        assert not twin.node.fatal.replaced
        await together([a, b], 30)
        await b.group.broadcast(b"on")
        await until(lambda: b"on" in a.data, "the older one is in")
        assert twin.data == []


def test_a_late_datagram_of_a_dead_process_does_not_stop_its_successor() -> None:
    dead, life = Identity("a", given=True), Identity("a", given=True)
    life.claims = False
    life._fresh_until = time.monotonic_ns() + 60 * SECOND
    late = Info("a", dead.uuid, ("127.0.0.1", 1), birth=dead.birth)
    life._heard = time.monotonic_ns() + SECOND  # all of them arrive within a moment
    assert [life.meet(late, ("127.0.0.1", 1)) for _ in range(5)] == [""] * 5
    life._heard = time.monotonic_ns() - SECOND
    assert life.meet(late, ("127.0.0.1", 1)) == YIELD


async def test_a_taken_name_is_refused_at_a_loss_of_30_percent() -> None:
    """Of 300 that asked for it some got in: their few questions, or the answers, were all lost."""
    taken = Identity("a", given=True)
    taken.claims = False
    here = ("127.0.0.1", 1)

    def said(life: Identity) -> Info:
        return Info("a", life.uuid, here, birth=life.birth, claims=life.claims)

    async def ask(chance: random.Random) -> bool:
        """Whether one gets in although the name is taken."""
        life = Identity("a", given=True)

        def say() -> None:
            if chance.random() >= 0.3 and taken.meet(said(life), here) == ANSWER:
                for _ in range(ANSWERS):
                    if chance.random() >= 0.3:
                        life.meet(said(taken), here)

        try:
            await life.claim(say)
        except NameTaken:
            return False
        return True

    found = await asyncio.gather(*(ask(random.Random(seed)) for seed in range(300)))
    assert sum(found) == 0


async def test_several_that_ask_for_a_name_at_once_do_not_hide_who_has_it() -> None:
    """The switch kept two ports of a name: the third took that of the node that had it."""
    async with Net("switch") as net:
        holder = await net.join("same", service="fifo")
        tries = await asyncio.gather(
            *(net.join("same", service="fifo") for _ in range(5)), return_exceptions=True
        )
        assert [type(one) for one in tries] == [NameTaken] * 5
        assert holder.node.fatal is None
