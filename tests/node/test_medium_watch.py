"""A network that changes under a running node: another address, small datagrams, a wall clock that
is set back."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from roundelay.core.errors import RoundelayError
from roundelay.node.medium.interfaces import Interface
from roundelay.node.medium.second_channel import open_line
from tests.node.live import Net, multicast, together, until
from tests.node.test_namespaces import ip, spaces

__all__ = ["spaces"]

TALKER = """
import asyncio, json, sys, time
import roundelay

async def main():
    name, medium, key, where = sys.argv[1:]
    options = {"multicast": medium} if not where else {"listen": "10.77.0.%s:7000" % where,
               "seeds": "10.77.0.1:7000,10.77.0.2:7000"}
    async with roundelay.join("g", name=name, key=key, timeout=30, **options) as group:
        await group.ready(3)

        async def read():
            async for message in group:
                print(json.dumps(["given", message.data.decode()]), flush=True)

        reading = asyncio.create_task(read())
        number = 0
        while True:
            number += 1
            began = time.monotonic()
            try:
                await group.broadcast(f"{name} {number}".encode())
                print(json.dumps(["confirmed", number, began]), flush=True)
            except roundelay.Indeterminate:
                pass
            await asyncio.sleep(0.1)

asyncio.run(main())
"""


class Talkers:
    """A member in each namespace, and what it has said."""

    def __init__(self, spaces: dict[str, str], folder: Path, fanout: bool = False) -> None:
        key = folder / "key"
        key.touch(mode=0o600)
        key.write_text(os.urandom(32).hex())
        program = folder / "talker.py"
        program.write_text(TALKER)
        medium = multicast()
        self.said: dict[str, list[Any]] = {name: [] for name in spaces}
        self.processes = {
            name: subprocess.Popen(
                ["ip", "netns", "exec", space, sys.executable, str(program), name, medium,
                 str(key), str(place) if fanout else ""],
                stdout=subprocess.PIPE, text=True,
            )
            for place, (name, space) in enumerate(spaces.items(), 1)
        }  # fmt: skip
        for name in spaces:
            threading.Thread(target=self._read, args=(name,), daemon=True).start()

    def _read(self, name: str) -> None:
        stdout = self.processes[name].stdout
        assert stdout is not None
        for line in stdout:
            self.said[name].append(json.loads(line))

    def confirmed(self, name: str, since: float = 0.0) -> list[int]:
        """Numbers of the broadcasts that were begun after a moment and confirmed."""
        return [one[1] for one in self.said[name] if one[0] == "confirmed" and one[2] >= since]

    def given(self, name: str) -> list[str]:
        return [one[1] for one in self.said[name] if one[0] == "given"]

    def until(self, condition: Callable[[], object], what: str, seconds: float = 60.0) -> None:
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, f"{what}: { {k: v[-3:] for k, v in self.said.items()} }"
            time.sleep(0.1)

    def end(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()


@pytest.fixture
def talkers(spaces: dict[str, str], tmp_path: Path, request: Any) -> Iterator[Talkers]:
    started = Talkers(spaces, tmp_path, fanout=request.param)
    yield started
    started.end()


@pytest.mark.parametrize("talkers", [False, True], ids=["multicast", "fanout"], indirect=True)
def test_a_member_whose_address_changes_is_heard_again(
    spaces: dict[str, str], talkers: Talkers
) -> None:
    """It stayed cut off until it was started again, and nothing was logged."""
    talkers.until(lambda: all(len(talkers.confirmed(name)) > 3 for name in spaces), "to begin")
    ip("-n", spaces["c"], "address", "flush", "dev", "eth0")
    time.sleep(1.5)  # gone for a while
    ip("-n", spaces["c"], "address", "add", "10.77.0.33/24", "dev", "eth0")
    moved = time.monotonic()
    talkers.until(lambda: len(talkers.confirmed("c", moved)) > 3, "c to be confirmed again")
    last = f"c {talkers.confirmed('c', moved)[0]}"
    for name in spaces:
        talkers.until(lambda name=name: last in talkers.given(name), f"{name} to be given {last}")  # type: ignore[misc]
    orders = [talkers.given(name) for name in spaces]
    shortest = min(map(len, orders))
    assert orders[0][:shortest] == orders[1][:shortest] == orders[2][:shortest]


async def test_a_recorder_whose_address_changes_is_asked_at_the_new_one(tmp_path: Path) -> None:
    """Who wanted a replay connected to the new address, where nobody listened."""
    async with Net("fanout") as net:
        a = await net.join("a")
        c = await net.join("c", record=True, dir=tmp_path)
        await together([a, c])
        for number in range(5):
            await a.group.broadcast(b"%d" % number, durability="recorded")
        c.node.watch._name = ""  # else it goes back
        c.node.watch._reopen(Interface("lo", "127.0.0.3", 65_536))
        known = a.node.directory.by_name
        await until(lambda: known["c"].address[0] == "127.0.0.3", "to hear of it")
        async with asyncio.timeout(20):
            found = [one.data async for one in a.group.replay(since=0)]
        assert found == [b"%d" % number for number in range(5)]


async def test_line_b_follows_its_interface(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Net("fanout") as net:
        a = await net.join("a")
        made = open_line(a.node, "", "")
        assert made.watch is not None
        assert made.address[0] == "127.0.0.1"
        elsewhere = [Interface("lo", "127.0.0.3", 65_536)]
        monkeypatch.setattr("roundelay.node.medium.watch.interfaces", lambda: elsewhere)
        made.watch.look(time.monotonic_ns())
        assert made.address[0] == "127.0.0.3"
        made.close()


def test_datagrams_of_the_smallest_network_are_enough(
    spaces: dict[str, str], tmp_path: Path
) -> None:
    """An MTU of 576 was refused with a value that nobody had set."""
    for space in spaces.values():
        ip("-n", space, "link", "set", "eth0", "mtu", "576")
    talkers = Talkers(spaces, tmp_path)
    try:
        talkers.until(lambda: all(talkers.confirmed(name) for name in spaces), "everybody to begin")
    finally:
        talkers.end()


async def test_a_wall_clock_that_is_set_back_lets_nobody_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Waits that were measured by it starved an application for as long as it was set back."""
    async with Net() as net:
        members = await net.form("ab", service="partial")
        wall, wall_ns = time.time, time.time_ns
        monkeypatch.setattr(time, "time", lambda: wall() - 3600)
        monkeypatch.setattr(time, "time_ns", lambda: wall_ns() - 3600 * 10**9)
        replay = members[0].group.replay(since=0)
        with pytest.raises(RoundelayError, match="no recorder"):  # it listens for one a while
            await asyncio.wait_for(anext(aiter(replay)), 20)
