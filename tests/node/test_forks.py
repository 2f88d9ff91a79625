"""An old copy of a folder: what was committed since is not committed again by others, unseen."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from roundelay.core.errors import GroupTrouble
from tests.node.live import Member, Net, delivered, together, until

NAMES = ("a", "b", "c")


@pytest.mark.seconds(90)
async def test_two_histories_of_a_restored_folder_stop_when_they_meet_and_say_where(
    tmp_path: Path,
) -> None:
    """944 positions held different messages, and every member said `open`."""
    async with Net() as net:

        async def start(names: str) -> list[Member]:
            found = []
            for name in names:
                found.append(await net.join(name, dir=tmp_path / name, members=NAMES))
            return found

        async def stop(members: list[Member]) -> None:
            for member in members:
                await member.leave()

        members = await start("abc")
        await together(members)
        await members[0].group.broadcast_many([b"common %d" % i for i in range(10)])
        await delivered(members, 10)
        await stop(members)
        shutil.copytree(tmp_path / "a", tmp_path / "copy")

        members = await start("ab")
        await together(members)
        await members[0].group.broadcast_many([b"first %d" % i for i in range(50)])
        await delivered(members, 50)
        await stop(members)
        shutil.rmtree(tmp_path / "a")
        shutil.copytree(tmp_path / "copy", tmp_path / "a")

        members = await start("ac")  # neither knows of what a and b have committed
        await together(members)
        for i in range(60):
            await members[0].group.broadcast(b"second %d" % i)
        (b,) = await start("b")
        members.append(b)
        await until(
            lambda: all("two histories" in m.group.view.state for m in members),
            "all of them stop",
        )
        for member in members:
            assert "positions 1" in member.group.view.state, member.group.view.state
            with pytest.raises(GroupTrouble):
                await member.group.broadcast(b"never")
        assert not any(message.data.startswith(b"second") for message in b.got)
