"""The memory of a node whose applications do not read (issue 11, line 32)."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import roundelay
from roundelay.wire.frontend import head, json_packet
from tests.reproductions.processes import daemon

MANY = 64
MIB = 1 << 20
LIMIT_MIB = 128
"""Of what a node holds for all applications together, unless told otherwise."""


def most_mib(process: subprocess.Popen[bytes]) -> float:
    """The most memory that a process has had so far."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    (line,) = [line for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) / 1024


def deaf(path: Path) -> socket.socket:
    """An application that joins and never reads."""
    made = socket.socket(socket.AF_UNIX)
    made.connect(str(path))
    made.sendall(json_packet("HELO", "", {}) + head("JOIN", "g"))
    return made


async def talk(path: Path) -> None:
    """An application that reads sends more than a queue can take to one that does not."""
    async with roundelay.join("g", service="fifo", node=f"unix:{path}") as group:

        async def read() -> None:
            async for _ in group:
                pass

        reading = asyncio.create_task(read())
        for _ in range(60):
            await group.broadcast_many([bytes(50_000)] * 5)
        reading.cancel()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_frontends_that_do_not_read_do_not_each_take_memory_of_their_own(tmp_path: Path) -> None:
    """Each took 8 MiB, whatever the others took: 200 of them 1.7 GB."""
    applications: list[socket.socket] = []
    with daemon(tmp_path) as (path, process):
        try:
            applications += [deaf(path) for _ in range(MANY)]
            before = most_mib(process)
            asyncio.run(asyncio.wait_for(talk(path), 60))
            more = most_mib(process) - before
        finally:
            for one in applications:
                one.close()
    assert more < 2 * LIMIT_MIB, f"{more:.0f} MiB for {MANY} that do not read"
