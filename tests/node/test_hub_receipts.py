"""With a hub under loss: what is sent again after a reset has its own receipt all the same."""

from __future__ import annotations

import asyncio

from tests.node.live import Member, Net, delivered

EACH = 40


async def test_receipts_with_a_hub_name_their_own_messages_although_copies_are_lost() -> None:
    async def send(member: Member, number: int) -> tuple[bytes, int | None]:
        await asyncio.sleep(number * 0.01)
        data = f"{member.name}{number}".encode()
        return data, (await member.group.broadcast(data)).seq

    async with Net("switch") as net:
        members = await net.form("abc", service="total", hub=True)
        net.switch.apply({"loss": 0.1})
        calls = [send(member, number) for member in members for number in range(EACH)]
        receipts = await asyncio.gather(*calls)
        net.switch.apply({"clear": True})
        await delivered(members, len(receipts))
        placed = {message.data: message.seq for message in members[0].got}
        assert placed == dict(receipts)
