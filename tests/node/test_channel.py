"""`total` with `hub=yes`: one order for all members, whoever loses what."""

from __future__ import annotations

import asyncio

from tests.node.live import Member, Net, check_total_order, delivered

MESSAGES = 60


async def test_members_that_lose_copies_of_their_own_messages_keep_one_order() -> None:
    """10 % of all copies are lost on their way from the hub: those to their senders, too."""

    async def talk(member: Member) -> None:
        for k in range(MESSAGES):
            await member.group.broadcast(f"{member.name}{k}".encode())

    async with Net("switch", seed=11) as net:
        members = await net.form("abc", service="total", hub=True)
        net.switch.apply({"loss": 0.1})
        await asyncio.gather(*map(talk, members))
        await delivered(members, 3 * MESSAGES)
        check_total_order(members)


async def test_a_pdu_that_reaches_the_hub_twice_is_in_the_channel_once() -> None:
    """The second had a number of its own: who had lost the first gave it another place."""

    async def talk(member: Member) -> None:
        for k in range(3 * MESSAGES):
            await member.group.broadcast(f"{member.name}{k}".encode())

    async with Net("switch", seed=11) as net:
        members = await net.form("abc", service="total", hub=True)
        net.switch.apply({"loss": 0.1, "from": "a"})
        net.switch.apply({"duplicate": {"rate": 0.5, "within_ms": 5}, "to": "a"})
        await asyncio.gather(*map(talk, members), *map(talk, members[1:]))
        await delivered(members, 15 * MESSAGES)
        check_total_order(members)
