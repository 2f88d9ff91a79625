"""One name, one life: a name or a folder that is taken, and lives that replace each other."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from roundelay import FolderInUse, NameTaken
from tests.node.live import Net, run, together


@pytest.mark.parametrize("service", ["resilient", "total", "fifo"])
def test_a_name_that_is_taken_fails_the_join_and_nothing_is_committed(service: str) -> None:
    """Two nodes of one name formed two groups, which both gave position 0 to other messages."""

    async def test() -> None:
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

    run(test)


def test_a_name_is_taken_over_seeds_that_only_others_know(tmp_path: Path) -> None:
    """Without multicast the one who has the name may be no seed: a seed tells of it."""

    async def test() -> None:
        async with Net("fanout") as net:
            await net.form("ab", service="fifo")
            with pytest.raises(NameTaken):
                await net.join("b", service="fifo")

    run(test)


def test_of_two_that_start_at_once_under_one_name_one_gets_in() -> None:
    async def test() -> None:
        async with Net() as net:
            tries = await asyncio.gather(
                *(net.join("same", service="fifo") for _ in range(4)), return_exceptions=True
            )
            refused = [one for one in tries if isinstance(one, NameTaken)]
            assert len(refused) == 3, tries

    run(test)


def test_a_folder_belongs_to_one_node_from_its_start_to_its_end(tmp_path: Path) -> None:
    """The lock belonged to one command; two `join`s shared a folder and overwrote promises."""

    async def test() -> None:
        async with Net() as net:
            a = await net.join("a", dir=tmp_path)
            with pytest.raises(FolderInUse, match=str(os.getpid())) as raised:
                await net.join("b", dir=tmp_path)
            assert raised.value.pid == os.getpid()
            await a.leave()
            b = await net.join("b", dir=tmp_path)
            await b.die()  # the kernel lets go of a dead process's lock
            await net.join("b", dir=tmp_path)

    run(test)
