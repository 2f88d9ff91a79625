"""Receipts of fifo groups say who was given up; what nobody has gets none."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import roundelay
from roundelay.core.bundle import Bundle
from roundelay.core.errors import Indeterminate, Refused, UsageError
from roundelay.node.frontend.packets import send_packet
from roundelay.node.frontend.server import FrontendServer
from roundelay.node.node_api import Send
from roundelay.wire.frontend import json_packet
from tests.node.live import Net, delivered


async def daemon(member: Any) -> FrontendServer:
    server = FrontendServer(member.node, ["127.0.0.1:0"], name=member.name)
    await server.start()
    return server


async def test_a_message_to_someone_where_nobody_is_gets_no_receipt() -> None:
    async with Net() as net:
        a = await net.join("a", service="fifo")
        server = await daemon(a)
        async with roundelay.join("g", service="fifo", node=server.addresses[0]) as remote:
            await remote.send_someone(b"to a")  # there is another application
            await remote.leave()
        await delivered([a], 1)
        for _ in range(2):
            with pytest.raises(Refused, match="nobody but the sender is in the group"):
                await a.group.send_someone(b"to whom?")
        async with roundelay.join("empty", service="fifo", node=server.addresses[0]) as remote:
            with pytest.raises(Refused, match="nobody but the sender is in the group"):
                await remote.send_someone(b"to whom?")
        # A broadcast is another matter: everybody who is there has it.
        assert (await a.group.broadcast(b"all")).given_up == ()
        await delivered([a], 2)

        ordered = await net.join("o", "orders", min_members=1)
        await ordered.group.ready()
        with pytest.raises(UsageError, match="token:orders has no messages to someone"):
            await ordered.group.send_someone(b"x")
        await server.close()


async def receipt_of_an_old_frontend(where: str, data: bytes) -> bytes:
    """As one has it that was written before receipts had names: three numbers, and no more."""
    host, port = where.rsplit(":", 1)
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(json_packet("HELO", "", {}) + send_packet(Send("g", Bundle.of(data), 7)))
    await reader.readexactly(5)
    await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
    packet = await reader.readexactly(4 + 1 + 1 + 4 + 24)
    writer.close()
    assert await reader.read() == b""
    assert packet[6:18] == b"\0\0\0\x18" + (7).to_bytes(8, "big")
    return packet


async def test_a_receipt_names_who_was_given_up() -> None:
    async with Net("switch") as net:
        a, _, c = await net.form("abc", service="fifo")
        server = await daemon(a)
        remote = await roundelay.join("g", service="fifo", node=server.addresses[0])
        await remote.ready(3)
        assert (await remote.broadcast(b"one")).given_up == ()
        net.switch.apply({"partition": [["a", "c"], ["b"]]})
        sending = [
            asyncio.create_task(call)
            for call in (a.group.broadcast(b"two"), remote.broadcast_many([b"three", b"four"]))
        ]
        old = asyncio.create_task(receipt_of_an_old_frontend(server.addresses[0], b"five"))
        assert (await sending[0]).given_up == ("b",)
        lost = set((await sending[1]).given_up)
        assert lost <= {"b"}  # it is not in the table any more, or was given up again
        assert (await old)[:4] == b"RCPT"
        await delivered([c], 5)
        await remote.leave()
        await server.close()


async def test_someone_who_is_lost_may_have_it() -> None:
    async with Net("switch") as net:
        a, _ = await net.form("ab", service="fifo")
        net.switch.apply({"partition": [["a"], ["b"]]})
        with pytest.raises(Indeterminate, match="b was chosen and was lost"):
            await a.group.send_someone(b"for b")
