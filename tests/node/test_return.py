"""Members that were gone come back: who may go on, with whom, and what those who wait are told."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.node.live import Net, check_total_order, delivered, run, together, until


@pytest.mark.parametrize("names", ["ab", "abc"])
def test_without_a_folder_a_member_that_returns_under_its_name_makes_the_group_work_again(
    names: str,
) -> None:
    async def test() -> None:
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

    run(test, seconds=90)


def fixed(names: str, folder: Path, name: str) -> dict[str, object]:
    return {"members": tuple(names), "dir": folder / name}


@pytest.mark.parametrize(("names", "resilience"), [("abc", 1), ("abcde", 2)])
def test_after_a_restart_of_all_a_majority_with_its_disks_goes_on(
    tmp_path: Path, names: str, resilience: int
) -> None:
    async def test() -> None:
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
            late = await net.join(
                names[0], resilience=resilience, **fixed(names, tmp_path, names[0])
            )
            await together([late, *again])

    run(test, seconds=90)


def test_after_a_restart_of_all_a_majority_of_a_discovered_group_goes_on(tmp_path: Path) -> None:
    async def test() -> None:
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

    run(test, seconds=90)
