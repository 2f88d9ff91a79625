"""What a recorder lacks because it was away or stopped: it says so, and gets it from who has it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from roundelay.core.engine import SECOND
from roundelay.core.errors import MissingRecords
from roundelay.node.membership import reconfiguration
from roundelay.node.recording import memory
from tests.node.live import Member, Net, delivered, freeze, thaw, together, until


async def say(member: Member, text: str, count: int) -> None:
    await member.group.broadcast_many([f"{text} {number}".encode() for number in range(count)])


async def test_a_recorder_that_starts_behind_a_hole_says_so_before_anybody_speaks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "BATCHES_MAX", 0)  # nobody keeps anything
    async with Net() as net:
        a = await net.join("a", dir=tmp_path, record=True)
        b, c = [await net.join(name) for name in "bc"]
        await together([a, b, c])
        await say(b, "before", 10)
        await delivered([a, b, c], 10)
        await a.leave()
        await together([b, c])
        await say(b, "away", 20)
        a = await net.join("a", dir=tmp_path, record=True)
        await together([a, b, c])
        own: Any = a.node.recorders.status()["own"]
        assert (own[0]["end"], own[0]["missing"]) == (10, [(10, 30)])
        assert own[0]["missing_records"] == 20
        known = b.node.recorders.heard
        await until(
            lambda: [word.holes for word, _ in known.values()] == [((10, 30),)],
            "others know what it lacks",
        )
        found: list[int | None] = []

        async def replay() -> None:
            async for message in b.group.replay():
                found.append(message.seq)

        with pytest.raises(MissingRecords, match="10"):
            await replay()
        assert found == list(range(10))
        await say(c, "after", 1)
        journal = a.node.recorders.own["token:g"].journal
        await until(lambda: journal.end == 31, "it goes on")
        own = a.node.recorders.status()["own"]
        assert own[0]["missing"] == [(10, 30)]


@pytest.mark.parametrize("quiet", [True, False], ids=["quiet", "talking"])
async def test_a_lone_recorder_that_was_stopped_gets_what_it_missed_from_members(
    quiet: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconfiguration, "FORGET_NS", 2 * SECOND)
    async with Net() as net:
        a = await net.join("a", dir=tmp_path, record=True)
        b, c = [await net.join(name) for name in "bc"]
        await together([a, b, c])
        await say(b, "before", 10)
        await delivered([a, b, c], 10)
        freeze(a.node)
        await together([b, c])  # the roster is another one: the token will not bring it
        await say(b, "away", 20)
        thaw(a.node)
        if not quiet:
            await say(c, "talk", 5)
        await together([a, b, c])
        if not quiet:
            await say(c, "more", 5)
        count = 30 if quiet else 40
        journal = a.node.recorders.own["token:g"].journal
        await until(
            lambda: journal.end == count and not journal.missing,
            "everything is recorded",
            8.0,
        )
        await delivered([b], count)
        assert [one.data async for one in a.group.replay(until=count)] == b.data
        assert (journal.begin, len(b.data)) == (0, count)
