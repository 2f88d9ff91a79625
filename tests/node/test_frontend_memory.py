"""Frontends that do not read: there is a limit for all of them together."""

from __future__ import annotations

import asyncio
import gc
import socket
from typing import Any

import roundelay
from roundelay.node.frontend.memory import ALL_FULL
from roundelay.node.frontend.server import FrontendServer
from roundelay.wire.frontend import Parser, head, json_packet, packet
from tests.node.live import Net, until

MANY = 100
LIMIT = 8 << 20


def dropped(server: FrontendServer) -> dict[str, int]:
    """What the server refused, by reason."""
    drops: Any = server.status()["drops"]
    return dict(drops)


async def connections(where: str, count: int, first: bytes) -> list[socket.socket]:
    """Applications that say `first` and never read."""
    loop = asyncio.get_running_loop()
    host, port = where.rsplit(":", 1)
    found = []
    for _ in range(count):
        one = socket.socket()
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        one.setblocking(False)
        await loop.sock_connect(one, (host, int(port)))
        await loop.sock_sendall(one, first)
        found.append(one)
    return found


async def test_many_applications_that_do_not_read_take_no_more_than_the_limit_of_all() -> None:
    async with Net() as net:
        (a,) = await net.form("a")
        server = FrontendServer(
            a.node, ["127.0.0.1:0"], name="a", held_bytes_max=LIMIT, queue_bytes_max=LIMIT // 4
        )
        await server.start()
        join = json_packet("HELO", "", {}) + head("JOIN", "token:g")
        deaf = await connections(server.addresses[0], MANY, join)
        group = await roundelay.join("g", node=server.addresses[0])
        await group.ready()
        seen: list[int | None] = []

        async def read() -> None:
            async for message in group:
                seen.append(message.seq)

        reading = asyncio.create_task(read())

        def status() -> dict[str, Any]:
            return server.status()

        await until(lambda: status()["groups"] == {"token:g": MANY + 1}, "all have joined")
        assert status()["held_bytes_max"] == LIMIT
        most = total = 0
        while not status()["drops"].get(ALL_FULL):
            await a.group.broadcast_many([bytes(50_000)] * 4)
            total += 4
            most = max(most, status()["held_bytes"])
            assert total < 4000
        for _ in range(20):
            await a.group.broadcast_many([bytes(50_000)] * 4)
            total += 4
            most = max(most, status()["held_bytes"])
        assert LIMIT // 2 < most <= LIMIT
        assert set(status()["drops"]) == {ALL_FULL}  # nobody has reached its own limit
        await until(lambda: status()["connections"] <= MANY, "somebody is gone")

        # Who reads has lost nothing, and was not cut for those who do not.
        await until(lambda: len(seen) == total, "every message")
        assert seen == list(range(total))
        assert status()["accepted"] == MANY + 1
        await group.leave()
        await reading
        for one in deaf:
            one.close()
        await server.close()


async def test_packets_that_are_never_completed_count_too() -> None:
    async with Net() as net:
        (a,) = await net.form("a")
        server = FrontendServer(a.node, ["127.0.0.1:0"], name="a", held_bytes_max=2 << 20)
        await server.start()
        limit = server.memory.limit_bytes
        half = packet("SNDE", "token:g", bytes(1 << 20))[: 1 << 19]
        begun = await connections(server.addresses[0], 50, half)
        await until(lambda: dropped(server).get(ALL_FULL), "somebody is cut")
        await until(lambda: server.memory.bytes <= limit, "room")
        await asyncio.sleep(0.1)
        assert limit // 2 < server.memory.bytes <= limit
        for one in begun:
            one.close()
        await server.close()


async def test_what_has_arrived_of_a_connection_that_is_gone_is_given_back() -> None:
    """It waited for the collector, uncounted: a few rounds of this took 800 MB."""

    def kept() -> int:
        return sum(one.held_bytes for one in gc.get_objects() if isinstance(one, Parser))

    async with Net() as net:
        (a,) = await net.form("a")
        server = FrontendServer(a.node, ["127.0.0.1:0"], name="a", held_bytes_max=2 << 20)
        await server.start()
        half = packet("SNDE", "token:g", bytes(1 << 20))[: 1 << 19]
        gc.collect()
        gc.disable()
        try:
            begun = await connections(server.addresses[0], 30, half)
            await until(lambda: dropped(server).get(ALL_FULL), "somebody is cut")
            for one in begun:
                one.close()
            await until(lambda: server.status()["connections"] == 0, "all are gone")
            assert kept() == 0
        finally:
            gc.enable()
        await server.close()


async def test_one_that_is_cut_is_counted_once() -> None:
    """Until its transport had closed it was cut again and again: 439 of 200 connections."""
    async with Net() as net:
        (a,) = await net.form("a")
        server = FrontendServer(a.node, ["127.0.0.1:0"], name="a")
        await server.start()
        (one,) = await connections(server.addresses[0], 1, head("JOIN", "token:g"))
        await until(lambda: server.status()["groups"], "it has joined")
        (connection,) = server._connections
        connection.cut(ALL_FULL, "first")
        connection.cut(ALL_FULL, "again")
        assert connection.held_bytes == 0
        assert server.status()["drops"] == {ALL_FULL: 1}
        one.close()
        await server.close()


async def test_options_of_groups_that_are_never_joined_are_limited() -> None:
    """Each was kept as it had been read: ten connections took 430 MB."""
    async with Net() as net:
        (a,) = await net.form("a")
        server = FrontendServer(a.node, ["127.0.0.1:0"], name="a")
        await server.start()
        wish = {"members": [f"n{number}" for number in range(2000)]}
        many = b"".join(json_packet("OPTS", f"token:{n}", wish) for n in range(20))
        (one,) = await connections(server.addresses[0], 1, json_packet("HELO", "", {}) + many)
        await until(lambda: dropped(server).get("options of too many groups"), "cut")
        one.close()
        await server.close()


async def test_what_waits_for_one_that_is_being_closed_counts_too() -> None:
    async with Net() as net:
        (a,) = await net.form("a")
        server = FrontendServer(a.node, ["127.0.0.1:0"], name="a")
        await server.start()
        join = json_packet("HELO", "", {}) + head("JOIN", "token:g")
        (one,) = await connections(server.addresses[0], 1, join)
        await until(lambda: server.status()["groups"], "it has joined")
        while server.memory.bytes < 1 << 20:
            await a.group.broadcast_many([bytes(50_000)] * 4)
        await asyncio.get_running_loop().sock_sendall(one, b"no packet of any kind")
        await until(lambda: server.status()["drops"], "it is heard out")
        assert server.memory.bytes >= 1 << 20
        await until(lambda: not server.memory.bytes, "it is gone")
        one.close()
        await server.close()
