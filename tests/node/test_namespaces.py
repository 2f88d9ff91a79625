"""Real multicast between network namespaces: three machines, as far as the kernel is concerned.

A bridge joins them with links of MTU 1500, so large messages are cut into fragments and, where the
kernel can, sent and received as trains.  Skipped where namespaces cannot be made.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.node.live import multicast

NAMES = ("a", "b", "c")

MEMBER = """
import asyncio, json, sys
import roundelay

async def main():
    name, medium, service, key, count, size = sys.argv[1:]
    options = dict(name=name, service=service, multicast=medium, key=key)
    async with roundelay.join("g", **options) as group:
        await group.ready(3)
        order, receipts = [], {}

        async def read():
            async for message in group:
                order.append((message.seq, message.sender, message.data[:16].decode().strip()))
                assert len(message.data) in (16, int(size))
                if len(order) == 3 * int(count):
                    return

        reading = asyncio.create_task(read())
        for number in range(int(count)):
            word = f"{name} {number}".ljust(16).encode()
            # Every third one does not fit a datagram.
            data = word.ljust(int(size)) if number % 3 == 0 else word
            receipts[word.decode().strip()] = (await group.broadcast(data)).seq
        await asyncio.wait_for(reading, 60)
        status = group._node_api.status()
        print(json.dumps({"order": order, "receipts": receipts, "medium": status["medium"],
                          "traffic": status["traffic"], "datagram": status["datagram_bytes"]}))
        sys.stdout.flush()
        await asyncio.to_thread(sys.stdin.readline)  # until everybody is through

asyncio.run(main())
"""


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True, timeout=20)


@pytest.fixture
def spaces() -> Iterator[dict[str, str]]:
    """Namespaces with 10.77.0.1, .2 and .3 on one bridge, which is in a namespace of its own."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and iproute2")
    tag = f"rd{os.getpid() % 10_000}"
    hub = f"{tag}-hub"
    found = {name: f"{tag}-{name}" for name in NAMES}
    made: list[str] = []
    try:
        try:
            for space in (hub, *found.values()):
                ip("netns", "add", space)
                made.append(space)
            ip("-n", hub, "link", "add", "bridge0", "type", "bridge", "mcast_snooping", "0")
            ip("-n", hub, "link", "set", "bridge0", "up")
            for place, (name, space) in enumerate(found.items(), 1):
                port = f"port{name}"
                ip("-n", hub, "link", "add", port, "mtu", "1500", "type", "veth",
                   "peer", "name", "eth0", "mtu", "1500", "netns", space)  # fmt: skip
                ip("-n", hub, "link", "set", port, "master", "bridge0", "up")
                ip("-n", space, "address", "add", f"10.77.0.{place}/24", "dev", "eth0")
                ip("-n", space, "link", "set", "eth0", "up")
                ip("-n", space, "link", "set", "lo", "up")
        except (subprocess.SubprocessError, OSError) as error:
            pytest.skip(f"no network namespaces here: {getattr(error, 'stderr', error)}")
        yield found
    finally:
        for space in made:
            subprocess.run(["ip", "netns", "delete", space], check=False, capture_output=True)


@pytest.mark.parametrize("service", ["resilient", "total", "fifo"])
def test_three_machines_agree_over_real_multicast(
    service: str, spaces: dict[str, str], tmp_path: Path
) -> None:
    key = tmp_path / "key"
    key.write_text(os.urandom(32).hex())
    key.chmod(0o600)
    program = tmp_path / "member.py"
    program.write_text(MEMBER)
    medium = multicast()
    count = 45
    processes = [
        subprocess.Popen(
            [
                "ip",
                "netns",
                "exec",
                space,
                sys.executable,
                str(program),
                name,
                medium,
                service,
                str(key),
                str(count),
                "20000",
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for name, space in spaces.items()
    ]
    try:
        results = []
        for process in processes:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, process.communicate(timeout=20)[1]
            results.append(json.loads(line))
        for process in processes:
            process.communicate("done\n", timeout=30)
            assert process.returncode == 0
    finally:
        for process in processes:
            process.kill()
            process.wait()
    for result in results:
        assert result["medium"].endswith("@eth0")
        assert result["datagram"] == 1472
        for name in NAMES:
            mine = [word for _, sender, word in result["order"] if sender == name]
            assert mine == [f"{name} {number}" for number in range(count)]
    if service == "fifo":
        assert all(seq is None for result in results for seq, _, _ in result["order"])
        return
    assert results[0]["order"] == results[1]["order"] == results[2]["order"]
    assert [seq for seq, _, _ in results[0]["order"]] == list(range(3 * count))
    places = {word: seq for seq, _, word in results[0]["order"]}
    assert {w: s for result in results for w, s in result["receipts"].items()} == places
