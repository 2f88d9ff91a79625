"""Units of start, middle and end in `journal` groups live (GR-19): whole, or not at all."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

import roundelay
from roundelay.client.group import Message
from roundelay.core.bundle import Bundle
from roundelay.core.errors import ConfigError, PayloadTooLarge, Refused, UsageError
from roundelay.core.grsb.pdu import ABORT, END, MIDDLE, SINGLE, START
from roundelay.journal.format import Run
from roundelay.node.driver.tracing import Tracing
from roundelay.node.node_api import Send
from roundelay.node.recording.units import RecordedUnits
from roundelay.trace import check_trace, merge
from tests.node.live import Net, until
from tests.node.test_grsb_live import FULL, Town, process

TABLE = {"profile": "demo", "members": ["a", "b", "ann", "bob", "eve"]}


def talk(*words: str) -> list[dict[str, Any]]:
    """What a command prints, line by line."""
    command = [sys.executable, "-c", "from roundelay.cli.main import main; main()", *words]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def units(messages: list[Message]) -> list[list[bytes]]:
    """The messages, those of a unit together; each unit is in one piece."""
    found: list[list[bytes]] = []
    for _, some in groupby(messages, lambda one: (one.seq, one.sender)):
        parts = list(some)
        places = [one.unit for one in parts]
        if len(parts) == 1:
            assert places == ["whole"]
        else:
            assert places == ["start", *["middle"] * (len(parts) - 2), "end"]
        found.append([one.data for one in parts])
    return found


@pytest.mark.seconds(120)
async def test_units_are_whole_and_in_one_order_live_and_from_a_recorder(tmp_path: Path) -> None:
    """GR-19: also for who begins in the middle of one, and in the trace."""
    folder = tmp_path / "traces"

    async with Net("switch") as net:
        town = Town(net, tmp_path, TABLE)
        traced = [Tracing(folder, name) for name in ("ann", "bob")]
        await town.start("a", "b")
        for tracing in traced:
            await town.start(tracing.name, tracer=tracing)
        await town.open("a", "b", "ann", "bob")
        ann, bob = town.members["ann"], town.members["bob"]
        told: dict[bytes, int | None] = {}

        async def talk(name: str, many: int) -> None:
            group = town.members[name].group
            for i in range(many):
                texts = [b"%s %d/%d" % (name.encode(), i, part) for part in range(2 + i % 3)]
                receipt = await group.broadcast_unit(texts, conference=7, kind=i)
                told[texts[-1]] = receipt.seq
                await group.broadcast(b"%s %d alone" % (name.encode(), i))

        await asyncio.gather(talk("ann", 12), talk("bob", 12))
        last = await ann.group.broadcast_unit([b"x", b"y"], durability="recorded")
        await until(lambda: all(one.data[-1:] == [b"y"] for one in (ann, bob)), "all there")
        assert ann.got[-1].seq == last.seq
        assert [one.seq for one in ann.got] == sorted(one.seq or 0 for one in ann.got)
        assert units(ann.got) == units(bob.got)
        assert [(one.seq, one.data, one.unit) for one in bob.got] == [
            (one.seq, one.data, one.unit) for one in ann.got
        ]
        assert {one.data: one.seq for one in ann.got if one.data in told} == told
        assert {one.conference for one in ann.got if one.data in told} == {7}

        # A replay has the parts where they are.
        parts = [one async for one in ann.group.replay()]
        assert [one.seq for one in parts] == list(range(len(parts)))
        assert sorted(one.data for one in parts) == sorted(ann.data)
        begun: dict[str, int] = {}
        split = -1
        for one in parts:
            assert one.seq is not None
            if one.unit == "start":
                begun[one.sender] = one.seq
            elif one.unit == "end" and one.seq - begun[one.sender] > 1 and split < 0:
                split = one.seq  # there is something between its start and its end
        assert split >= 0

        # Whoever begins at the end of a unit is given all of it, and whoever's node begins in
        # the middle of one.
        long = [b"long %d" % part for part in range(4)]
        net.switch.apply({"drop": {"kind": "SUBMIT", "nth": 2, "many": 9999, "from": "ann"}})
        sending = asyncio.create_task(ann.group.broadcast_unit(long, conference=7))
        journal = town.seat("a").journal
        assert journal is not None
        await until(lambda: journal.journal.end > len(parts), "it has begun")
        (eve,) = await town.start("eve", since=split, conferences=[7])
        known = [one for one in ann.got if (one.seq or 0) >= split and one.conference == 7]
        await until(lambda: len(eve.got) >= len(known), "eve knows what is known")
        catching = eve.node.recorders.replays
        await until(
            lambda: (
                not catching.status() or catching.status()[0]["position"] == journal.journal.end
            ),
            "eve is where the group is",
        )
        await asyncio.sleep(0.1)
        net.switch.apply({"heal": True})
        await sending
        await until(lambda: ann.data[-1:] == bob.data[-1:] == long[-1:], "the long one")
        wanted = [one for one in ann.got if (one.seq or 0) >= split and one.conference == 7]
        await until(lambda: len(eve.got) >= len(wanted), "eve caught up")
        assert units(eve.got) == units(wanted)
        await bob.group.broadcast_unit([b"live 1", b"live 2"], conference=7)
        await until(lambda: eve.data[-2:] == [b"live 1", b"live 2"], "eve is live")
        await until(lambda: ann.data[-1:] == bob.data[-1:] == [b"live 2"], "traced")
        for tracing in traced:
            tracing.close()

        with pytest.raises(ConfigError, match="parts = 4097"):
            await ann.group.broadcast_unit([b""] * 4097)
        with pytest.raises(PayloadTooLarge, match="a unit of 1080000 bytes"):
            await ann.group.broadcast_unit([bytes(60_000)] * 18)
    checker = check_trace(merge(folder, tmp_path / "trace.parquet", group=FULL).path)
    assert checker.violations == []


@pytest.mark.seconds(120)
async def test_a_unit_whose_sender_dies_is_told_to_nobody(tmp_path: Path) -> None:
    async with Net("switch") as net:
        town = Town(net, tmp_path, TABLE)
        await town.start("a", "b", "ann", "bob")
        await town.open("a", "b", "ann", "bob")
        ann, bob = town.members["ann"], town.members["bob"]
        net.switch.apply({"drop": {"kind": "SUBMIT", "nth": 3, "many": 9999, "from": "ann"}})
        sending = asyncio.create_task(ann.group.broadcast_unit([b"never"] * 4))
        journal = town.seat("a").journal
        assert journal is not None
        await until(lambda: journal.journal.end, "it has begun")
        await ann.die()
        with pytest.raises(roundelay.Indeterminate):
            await sending
        net.switch.apply({"heal": True})
        await town.start("ann")
        await town.open("ann")
        ann = town.members["ann"]
        await ann.group.broadcast_unit([b"1", b"2"], durability="recorded")
        await ann.group.broadcast(b"3", durability="recorded")
        (eve,) = await town.start("eve", since="start")
        await until(lambda: all(m.data[-1:] == [b"3"] for m in (bob, eve)), "the last one")
        assert bob.data == eve.data == [b"1", b"2", b"3"]
        places = [one.unit async for one in bob.group.replay()]
        assert places[0] == "start"
        assert places[-3:] == ["start", "end", "whole"]
        assert places[1:-3] in ([], ["middle"])  # and no word of the retransmitter
    lines = talk("journal", "cat", str(tmp_path / "a" / "journals" / "grsb%3anews"), "--json")
    said = [line.get("unit") for line in lines]
    assert said[0] == "start"
    assert said[-4:] == ["abort", "start", "end", None]


@pytest.mark.seconds(120)
async def test_units_through_a_daemon(tmp_path: Path) -> None:
    """With asyncio and without, by the commands, and where there are none."""
    async with Net("switch") as net:
        town = Town(net, tmp_path, TABLE)
        async with process(net, tmp_path, town.file, "ann"):
            await town.start("a", "b", "bob")
            await town.open("a", "b", "bob")
            where = f"unix:{tmp_path / 'ann'}.sock"
            news: dict[str, Any] = {"service": "journal", "node": where, "since": "start"}

            def block() -> list[Message]:
                with roundelay.join("news", **news) as group:
                    group.ready()
                    assert group.broadcast_unit([b"1", b"2", b"3"], kind=5).seq == 2
                    found = iter(group)
                    return [next(found) for _ in range(3)]

            got = await asyncio.to_thread(block)
            assert [(one.seq, one.unit, one.data, one.kind) for one in got] == [
                (2, "start", b"1", 5), (2, "middle", b"2", 5), (2, "end", b"3", 5),
            ]  # fmt: skip

            async with roundelay.join("news", **news) as group:
                await group.broadcast(b"0")
            await asyncio.to_thread(
                talk, "send", FULL, "4\n5", "--unit", "--conference", "7", "--node", where
            )
            lines = await asyncio.to_thread(
                talk, "listen", FULL, "--since", "start", "--count", "6", "--json",
                "--node", where,
            )  # fmt: skip
            assert [(one["seq"], one.get("unit"), one["data"]) for one in lines] == [
                (2, "start", "1"), (2, "middle", "2"), (2, "end", "3"),
                (3, None, "0"), (5, "start", "4"), (5, "end", "5"),
            ]  # fmt: skip
            async with roundelay.join("news", service="fifo", node=where) as plain:
                with pytest.raises(Refused, match="group news has no units"):
                    await plain.broadcast_unit([b"1", b"2"])
        bob = town.members["bob"]
        with pytest.raises(UsageError, match="group token:x has no units"):
            bob.node.send(bob.group, Send("token:x", Bundle.of(b"1", b"2"), unit=True))


def test_recorded_parts_are_put_together_only_if_all_are_there() -> None:
    def part(sseq: int, mtype: int, sender: str = "ann", data: bytes = b"x") -> Run:
        return Run(sseq, 0, sender, Bundle.of(data), number=7 << 32 | sseq << 3 | mtype)

    def taken(*runs: Run, limit: int = 100) -> list[int]:
        found = RecordedUnits(limit)
        return [len(found.take(one)) for one in runs]

    unit = [part(0, START), part(1, MIDDLE), part(2, END)]
    assert taken(*unit) == [0, 0, 3]
    assert taken(unit[0], part(0, SINGLE, "bob"), *unit[1:]) == [0, 1, 0, 3]
    assert taken(unit[0], unit[2]) == [0, 0]  # the middle is missing
    assert taken(unit[1], unit[2]) == [0, 0]
    assert taken(unit[0], part(1, ABORT), part(2, END)) == [0, 0, 0]
    assert taken(unit[0], part(1, SINGLE), part(2, END)) == [0, 1, 0]
    assert taken(*unit, limit=2) == [0, 0, 0]
    fresh = RecordedUnits(100)
    assert fresh.lacks(unit[1])
    assert not fresh.lacks(unit[0])
    fresh.take(unit[0])
    assert not fresh.lacks(unit[1])


async def test_a_receipt_of_a_unit_means_that_its_last_part_has_its_place(tmp_path: Path) -> None:
    """GR-5: behind many messages that go together, and between others, each gets its own receipt.

    Receipts were counted, and those of the submission before were counted for the unit: it was
    confirmed when a few of its parts had their place, and nobody got it when its sender died then.
    """
    async with Net("switch") as net:
        town = Town(net, tmp_path, TABLE)
        await town.start("a", "b", "ann", "bob")
        await town.open("a", "b", "ann", "bob")
        ann, bob = town.members["ann"], town.members["bob"]
        group = ann.group
        loop = asyncio.get_running_loop()
        before = [loop.create_task(group.broadcast(b"before %d" % i)) for i in range(90)]
        parts = [b"part %d" % i for i in range(100)]
        unit = loop.create_task(group.broadcast_unit(parts))
        single = loop.create_task(group.broadcast(b"single"))
        second = loop.create_task(group.broadcast_unit([b"x", b"y"]))
        last = loop.create_task(group.broadcast(b"last"))
        receipt = await unit
        stable: Any = town.seat("a").status()["acked"]
        assert stable >= 190, f"confirmed as {receipt.seq} when {stable} of 190 had a place"
        receipts = [*await asyncio.gather(*before), receipt]
        receipts += await asyncio.gather(single, second, last)
        assert (await group.broadcast(b"later")).seq == 194
        await until(lambda: bob.data[-1:] == [b"later"], "all of it")
        places: dict[bytes, int] = {one.data: one.seq for one in bob.got if one.seq is not None}
        said = [*(b"before %d" % i for i in range(90)), parts[-1], b"single", b"y", b"last"]
        assert [places[data] for data in said] == [one.seq for one in receipts]
