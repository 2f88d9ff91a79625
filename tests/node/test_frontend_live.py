"""A client written from the AutoRM paper alone, at live nodes: raw sockets, five commands."""

from __future__ import annotations

import asyncio
import json
import os
import random
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import roundelay
from roundelay.core.errors import RoundelayError

PROGRAM = Path(sys.executable).with_name("roundelay")
ENV = {name: value for name, value in os.environ.items() if "COVERAGE" not in name}


class Client:
    """JOIN, LEAV, SNDE, SNDS to the node, RCVE back: nothing else exists."""

    def __init__(self, where: str) -> None:
        host, port = where.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)))
        self.socket.settimeout(60)

    def send(self, command: bytes, group: bytes, message: bytes | None = None) -> None:
        data = command + struct.pack("B", len(group)) + group
        if message is not None:
            data += struct.pack("!I", len(message)) + message
        self.socket.sendall(data)

    def read(self) -> tuple[bytes, bytes, bytes]:
        command = self._take(4)
        group = self._take(self._take(1)[0])
        (size,) = struct.unpack("!I", self._take(4))
        return command, group, self._take(size)

    def _take(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self.socket.recv(min(65536, size - len(data)))
            assert more, "the node closed the connection"
            data += more
        return data


def ask(where: str, *words: str) -> dict[str, Any]:
    done = subprocess.run(
        [PROGRAM, *words, "--node", where, "--json"],
        capture_output=True, timeout=60, check=True, env=ENV,
    )  # fmt: skip
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def wait_for(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "waited for nothing"
        time.sleep(0.05)


def members(where: str, group: str) -> set[str]:
    return {member["name"] for member in ask(where, "members", group)["members"]}


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[str]]:
    """Frontend addresses of two nodes on a medium of their own."""
    pid = os.getpid()
    medium = f"239.255.{pid % 200}.{pid // 200 % 200 + 1}:{30_000 + pid % 9999}"
    processes = []
    try:
        where = []
        for name in ("ann", "bob"):
            process = subprocess.Popen(
                [PROGRAM, "node", "--name", name, "--insecure", "--interface", "lo",
                 "--multicast", medium, "--frontend", "127.0.0.1:0"],
                stdout=subprocess.PIPE, text=True, env=ENV,
            )  # fmt: skip
            processes.append(process)
            assert process.stdout is not None
            ready = process.stdout.readline()
            assert ready.startswith("ready frontend=127.0.0.1:")
            where.append(ready.split("=")[1].split()[0])
        yield where
        for process in processes:
            process.terminate()
        assert [process.wait(30) for process in processes] == [0, 0]
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def test_a_client_written_from_the_paper(nodes: list[str]) -> None:
    one, two = map(Client, nodes)
    one.send(b"JOIN", b"ab")
    two.send(b"JOIN", b"ab")
    for where in nodes:
        wait_for(lambda where=where: members(where, "ab") == {"ann", "bob"})  # type: ignore[misc]
    for i in range(20):
        one.send(b"SNDE", b"ab", b"message %d" % i)
    for client in (one, two):
        assert [client.read() for _ in range(20)] == [
            (b"RCVE", b"ab", b"message %d" % i) for i in range(20)
        ]
    large = random.Random(1).randbytes(1 << 20)
    two.send(b"SNDE", b"ab", large)
    assert one.read() == two.read() == (b"RCVE", b"ab", large)


def test_to_someone_reaches_one_of_all_nodes(nodes: list[str]) -> None:
    one, two, sender = Client(nodes[0]), Client(nodes[1]), Client(nodes[0])
    one.send(b"JOIN", b"work")
    two.send(b"JOIN", b"work")
    wait_for(lambda: members(nodes[0], "work") == {"ann", "bob"})
    jobs = [b"job %d" % i for i in range(20)]
    for job in jobs:
        sender.send(b"SNDS", b"work", job)
    sender.send(b"SNDE", b"work", b"end")
    got: list[list[bytes]] = []
    for client in (one, two):
        mine = []
        while (message := client.read()[2]) != b"end":
            mine.append(message)
        got.append(mine)
    assert sorted(got[0] + got[1]) == sorted(jobs)
    for mine in got:
        assert mine == sorted(mine, key=jobs.index)


def test_who_has_left_hears_nothing(nodes: list[str]) -> None:
    one, two = map(Client, nodes)
    for client in (one, two):
        client.send(b"JOIN", b"leaving")
        client.send(b"JOIN", b"staying")
    wait_for(lambda: members(nodes[0], "leaving") == {"ann", "bob"})
    wait_for(lambda: members(nodes[0], "staying") == {"ann", "bob"})
    two.send(b"LEAV", b"leaving")
    wait_for(lambda: members(nodes[0], "leaving") == {"ann"})
    one.send(b"SNDE", b"leaving", b"for one")
    one.send(b"SNDE", b"staying", b"for both")
    assert [one.read()[2] for _ in range(2)] == [b"for one", b"for both"]
    assert two.read() == (b"RCVE", b"staying", b"for both")
    two.socket.close()  # leaves too
    wait_for(lambda: members(nodes[0], "staying") == {"ann"})


def test_a_client_that_errs_is_closed_and_the_reason_counted(nodes: list[str]) -> None:
    for data in (b"EVIL\x02ab", b"JOIN\0", b"SNDE\x01a\xff\xff\xff\xff", b"JOIN\x01\xff"):
        client = Client(nodes[1])
        client.socket.sendall(data)
        assert client.socket.recv(10) == b""
    (frontends,) = ask(nodes[1], "status")["frontends"]
    assert frontends["drops"] == {
        "unknown command": 1, "empty name": 1, "message too large": 1, "name not UTF-8": 1,
    }  # fmt: skip


def test_join_works_through_a_node_as_it_does_without(nodes: list[str]) -> None:
    async def test() -> None:
        async with (
            roundelay.join("orders", node=nodes[0]) as one,
            roundelay.join("orders", node=nodes[1]) as two,
        ):
            assert set((await one.ready(members=2)).members) == {"ann", "bob"}
            await two.ready(members=2)
            assert (await one.broadcast(b"first")).seq == 0
            assert (await two.broadcast_many([b"second", b"third"])).seq == 2
            for group in (one, two):
                got = []
                async for message in group:
                    got.append((message.seq, message.sender, message.data))
                    if len(got) == 3:
                        break
                assert got == [(0, "ann", b"first"), (1, "bob", b"second"), (2, "bob", b"third")]
            async with roundelay.join("orders", node=nodes[0], since=1) as late:
                async for message in late:
                    assert (message.seq, message.data) == (1, b"second")
                    break
        with pytest.raises(RoundelayError, match="control characters"):
            roundelay.join("no\ncontrol", node=nodes[0])

    async def bounded() -> None:
        async with asyncio.timeout(60):
            await test()

    asyncio.run(bounded())


def test_an_address_in_use_is_one_line(nodes: list[str]) -> None:
    done = subprocess.run(
        [PROGRAM, "node", "--name", "late", "--insecure", "--frontend", nodes[0]],
        capture_output=True, text=True, timeout=60, check=False, env=ENV,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert f"listens on port {nodes[0].split(':')[1]} already" in done.stderr
