"""Must show 5: a minority says that it cannot say, delivers nothing, and loses nothing."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from roundelay.core.errors import Indeterminate
from tests.node.live import Member, Net, check_total_order, delivered, together, until

TIMEOUT_S = 2.0
MAJORITY, MINORITY = ["a", "b", "c"], ["d", "e"]


@pytest.mark.parametrize("roster", ["fixed", "found"])
async def test_a_minority_is_told_that_the_fate_of_its_messages_is_open(
    roster: str, tmp_path: Path
) -> None:
    async with Net("switch", seed=3) as net:
        members: list[Member] = []
        for name in MAJORITY + MINORITY:
            fixed = {"members": tuple("abcde"), "dir": tmp_path / name}
            options: dict[str, Any] = fixed if roster == "fixed" else {}
            # With L = 1 even three of five would wait: two of them might know more.
            options |= {"resilience": 2, "timeout": TIMEOUT_S}
            members.append(await net.join(name, **options))
        await together(members)
        large, small = members[:3], members[3:]
        for member in members:
            await member.group.broadcast(b"before " + member.name.encode())
        await delivered(members, 5)

        net.switch.apply({"partition": [MAJORITY, MINORITY]})
        started = time.monotonic()

        async def ask(member: Member) -> float:
            with pytest.raises(Indeterminate, match="it may still be delivered"):
                await member.group.broadcast(b"during " + member.name.encode())
            return time.monotonic() - started

        waits = await asyncio.gather(*(ask(member) for member in small))
        assert all(wait >= TIMEOUT_S - 0.1 for wait in waits)
        # "timeout + 1 s"; a loaded machine may add its own.
        assert max(waits) <= TIMEOUT_S + 1.0 + 2.0
        await until(lambda: all(m.group.view.state.startswith("blocked") for m in small), "a word")
        assert [len(member.got) for member in small] == [5, 5]

        for member in large:  # the majority goes on
            await member.group.broadcast(b"meanwhile " + member.name.encode())
        await delivered(large, 8)
        assert [len(member.got) for member in small] == [5, 5]

        net.switch.apply({"heal": True})
        await together(members)
        await delivered(members, 10)  # what was pending, too
        await members[4].group.broadcast(b"after")
        await delivered(members, 11)
        check_total_order(members)
        expected = {b"before " + n.encode() for n in MAJORITY + MINORITY}
        expected |= {b"meanwhile " + n.encode() for n in MAJORITY}
        expected |= {b"during " + n.encode() for n in MINORITY} | {b"after"}
        for member in members:
            assert sorted(member.data) == sorted(expected), member.name
