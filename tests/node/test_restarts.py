"""Members are killed and come back while everybody talks, on a network that loses datagrams."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from roundelay.core.errors import GroupClosed, GroupTrouble
from tests.node.live import Member, Net, delivered, together, until

NAMES = ("a", "b", "c")
ROUNDS = 3


@pytest.mark.seconds(120)
@pytest.mark.parametrize(
    ("kept", "victims"), [("fixed", 1), ("fixed", 2), ("dir", 2), ("nothing", 1)]
)
async def test_one_history_and_true_receipts_while_members_die_and_return(
    kept: str, victims: int, tmp_path: Path
) -> None:
    """With a directory more than L may die: what was committed is still there (I1, I2, I5)."""
    chance = random.Random(f"{kept} {victims}")
    told: dict[bytes, int | None] = {}
    histories: dict[str, list[tuple[int | None, str, bytes]]] = {name: [] for name in NAMES}

    async with Net("switch", seed=7, rules=[{"loss": 0.05}]) as net:

        async def join(name: str) -> Member:
            options: dict[str, Any] = {}
            if kept != "nothing":
                options["dir"] = tmp_path / name
            if kept == "fixed":
                options["members"] = NAMES
            return await net.join(name, **options)

        members = {name: await join(name) for name in NAMES}
        await together(list(members.values()))
        running = True
        count = 0

        async def talk(name: str) -> None:
            nonlocal count
            while running:
                count += 1
                data = b"%s %d" % (name.encode(), count)
                try:
                    told[data] = (await members[name].group.broadcast(data)).seq
                except (GroupTrouble, GroupClosed):  # it was killed
                    await asyncio.sleep(0.02)

        talking = [asyncio.create_task(talk(name)) for name in NAMES for _ in range(2)]
        for _ in range(ROUNDS):
            await asyncio.sleep(chance.random() * 0.4)
            dead = chance.sample(NAMES, victims)
            for name in dead:
                await members[name].die()
                histories[name] += members[name].order
            await asyncio.sleep(chance.random() * 0.3)
            for name in dead:
                members[name] = await join(name)
            await together(list(members.values()), 40)
        running = False
        await asyncio.gather(*talking)
        await members["a"].group.broadcast(b"the end")
        for name, member in members.items():
            await until(lambda m=member: b"the end" in m.data, "the end")  # type: ignore[misc]
            histories[name] += member.order
        await delivered(list(members.values()), 1)
    places: dict[int | None, tuple[str, bytes]] = {}
    for history in histories.values():
        seqs = [seq for seq, _, _ in history]
        if kept != "nothing":  # who remembers nothing is told everything again
            assert seqs == sorted(set(seqs), key=lambda seq: seq or 0)
        for seq, sender, data in history:
            assert places.setdefault(seq, (sender, data)) == (sender, data)
    assert sorted(places, key=lambda seq: seq or 0) == list(range(len(places)))
    assert max(Counter(places.values()).values()) == 1
    found = {data: seq for seq, (_, data) in places.items()}
    assert {data: found.get(data) for data in told} == told
    assert len(told) > 100
