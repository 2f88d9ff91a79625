"""Three live networks of three nodes, one of them cut off and healed.

The nodes are in this process, on the switch, which cuts the third network from the others.  Users
of the first two say `--messages` before, during and after the cut, and each time it is measured how
many a second all users of those networks hear; those of the third talk while they are cut off, too.
In the end every user must have heard the same messages at the same positions, without a hole.

    python -m bench.wide [--messages 50000] [--size 64] [--json]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from hashlib import blake2b
from pathlib import Path
from statistics import median
from typing import Any, Final

import roundelay
from roundelay.client.group import Group
from roundelay.faultnet.switch import Switch
from roundelay.node.node import Node
from roundelay.node.roles.group import RoleGroup

NETWORKS: Final = (("a1", "a2", "a3"), ("b1", "b2", "b3"), ("c1", "c2", "c3"))
GROUP: Final = "all"
TOGETHER: Final = 500
"""Messages that are handed over at once."""
PATIENCE_S: Final = 900.0
GOAL: Final = 0.8
"""What the others hear while the third network is cut off, of what they hear before and after."""


class Heard:
    """What one user has heard."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.count = 0
        self.next = 0
        self.hash = blake2b(digest_size=16)
        self.wrong = ""
        self.task = asyncio.create_task(self._listen())

    async def _listen(self) -> None:
        async for batch in self.group.batches():
            assert batch.seq is not None
            if batch.seq != self.next and not self.wrong:
                self.wrong = f"position {batch.seq} where {self.next} was due"
            self.next = batch.seq + len(batch.bundle)
            self.count += len(batch.bundle)
            self.hash.update(f"{batch.seq} {batch.sender} {batch.bundle.sizes}".encode())
            self.hash.update(batch.bundle.data)


class Bench:
    """Nine nodes."""

    def __init__(self, folder: Path, size: int) -> None:
        self.folder = folder
        self.size = size
        self.switch = Switch(seed=1)
        self.groups: dict[str, Group] = {}
        self.heard: dict[str, Heard] = {}
        self.said = 0

    async def open(self) -> None:
        await self.switch.start()
        file = self.folder / "wide.toml"
        file.write_text("\n".join(f"[[networks]]\nmembers = {json.dumps(one)}" for one in NETWORKS))
        for network in NETWORKS:
            for place, name in enumerate(network):
                group = await roundelay.join(
                    GROUP, service="wide", name=name, config=file, dir=self.folder / name,
                    via="{}:{}".format(*self.switch.address), insecure=True, timeout=120.0,
                )  # fmt: skip
                self.groups[name] = group
                if place:  # the first is LCR and LPR
                    self.heard[name] = Heard(group)
        await self.until(
            lambda: all(group.view.state == "open" for group in self.groups.values()), "open"
        )

    async def until(self, done: Any, what: str) -> None:
        end = time.monotonic() + PATIENCE_S
        while not done():
            if time.monotonic() > end:
                counts = {name: one.count for name, one in self.heard.items()}
                raise TimeoutError(f"{what}: {counts}")
            await asyncio.sleep(0.02)

    async def talk(self, names: tuple[str, ...], messages: int) -> None:
        """Say so many messages in all; returns when they are stable."""

        async def one(name: str) -> None:
            for first in range(0, messages // len(names), TOGETHER):
                many = min(TOGETHER, messages // len(names) - first)
                texts = [b"%s %d" % (name.encode(), first + i) for i in range(many)]
                await self.groups[name].broadcast_many([one.ljust(self.size) for one in texts])

        await asyncio.gather(*(one(name) for name in names))
        self.said += messages // len(names) * len(names)

    async def phase(self, messages: int) -> tuple[float, float]:
        """Messages a second that all users of the first two networks hear, and what one costs.

        The medians of ten stretches; the cost is processor time of this process, all nodes and the
        switch, in microseconds.
        """
        stretches = [await self._stretch(messages // 10) for _ in range(10)]
        return median([rate for rate, _ in stretches]), median([cost for _, cost in stretches])

    async def _stretch(self, messages: int) -> tuple[float, float]:
        users = [self.heard[name] for network in NETWORKS[:2] for name in network[1:]]
        goal = users[0].count + messages
        begin, used = time.monotonic(), time.process_time()
        await self.talk(("a2", "a3", "b2", "b3"), messages)
        await self.until(lambda: all(one.count >= goal for one in users), "heard by the others")
        used = time.process_time() - used
        return messages / (time.monotonic() - begin), 1e6 * used / messages

    def seat(self, name: str) -> RoleGroup:
        node = self.groups[name]._node_api
        assert isinstance(node, Node)
        place = node.group_hosts[f"wide:{GROUP}"]
        assert isinstance(place, RoleGroup)
        return place

    async def run(self, messages: int) -> dict[str, Any]:
        await self._stretch(max(1000, messages // 10))  # warm
        before = await self.phase(messages)
        far = [self.heard[name] for name in NETWORKS[2][1:]]
        await self.until(lambda: all(one.count == self.said for one in far), "all are equal")
        near = [name for network in NETWORKS[:2] for name in network]
        self.switch.apply({"partition": [near, list(NETWORKS[2])]})
        at = far[0].count
        behind = asyncio.create_task(self.talk(("c2", "c3"), 1000))
        during = await self.phase(messages)
        missed = self.said - far[0].count
        assert far[0].count == at, "the cut is none"
        self.switch.apply({"heal": True})
        begin = time.monotonic()
        await self.until(lambda: far[0].count >= at + messages, "caught up")
        caught_up = time.monotonic() - begin
        await behind
        after = await self.phase(messages)
        every = list(self.heard.values())
        await self.until(lambda: all(one.count >= self.said for one in every), "all have all")
        wrong = next((one.wrong for one in every if one.wrong), "")
        hashes = {one.hash.hexdigest() for one in every}
        complete = {one.count for one in every} == {self.said}
        return {
            "messages": self.said,
            "missed": missed,
            "per_second_before": round(before[0]),
            "per_second_during": round(during[0]),
            "per_second_after": round(after[0]),
            "ratio": round(2 * during[0] / (before[0] + after[0]), 2),
            "cost_us_before": round(before[1], 1),
            "cost_us_during": round(during[1], 1),
            "cost_us_after": round(after[1], 1),
            "cost_ratio": round(2 * during[1] / (before[1] + after[1]), 2),
            "caught_up_s": round(caught_up, 1),
            "same_order": not wrong and complete and len(hashes) == 1,
            "wrong": wrong,
        }  # fmt: skip

    async def close(self) -> None:
        for one in self.heard.values():
            one.task.cancel()
        await asyncio.gather(*(one.task for one in self.heard.values()), return_exceptions=True)
        await asyncio.gather(*(one.leave() for one in self.groups.values()), return_exceptions=True)
        await self.switch.close()


async def measured(messages: int, size: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), size)
        try:
            await bench.open()
            return await bench.run(messages)
        finally:
            await bench.close()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=50_000)
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args(arguments)
    found = asyncio.run(measured(chosen.messages, chosen.size))
    if chosen.json:
        print(json.dumps(found, indent=1))
    else:
        print(f"three networks of three nodes, {found['messages']} messages of {chosen.size} bytes")
        for phase in ("before", "during", "after"):
            print(f"  {phase + ' the cut':16} {found[f'per_second_{phase}']:>8} messages/s, "
                  f"{found[f'cost_us_{phase}']} µs of processor time each")  # fmt: skip
        print(f"  missed by the third network {found['missed']}, caught up in "
              f"{found['caught_up_s']} s")  # fmt: skip
        print(f"  same order everywhere: {'yes' if found['same_order'] else 'NO'}"
              f"  {found['wrong']}")  # fmt: skip
        print(f"  others unaffected: rate {found['ratio']} of before and after (goal {GOAL}), "
              f"processor time {found['cost_ratio']} of that")  # fmt: skip
    return 0 if found["same_order"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
