"""How long a group stands still when one of its members is killed.

    python -m bench.failover --service total --members 3,5,8 --kills 50 [--load]
    python -m bench.failover --service total --members 5 --soak 600 --load

Real processes with the settings that `join` has by default, on loopback.  Every member broadcasts
all the time, one message after the other.  One after the other is killed (SIGKILL), and started
again under its name once the others go on without it.  What is measured is the time from the kill
to the end of the longest silence that an application of a survivor has seen since; `next` in the
JSON is the time until the last of them had a message that was sent after the kill.

`--soak` kills nobody: it counts how often a view changed although everybody was there.
`--load` keeps every processor busy meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from typing import Any

from bench.children import Child, answers

SERVICES = ("resilient", "total", "partial", "selective")
BUSY = """
import os
while os.getppid() == {parent}:  # it ends with us, however we end
    for _ in range(1_000_000):
        pass
"""


class Group:
    """The members of one group."""

    def __init__(self, service: str, size: int) -> None:
        chance = random.Random(os.urandom(8))
        net, port = chance.randrange(1 << 16), chance.randrange(20_000, 30_000)
        self.options = {
            "service": service,
            "multicast": f"239.255.{net >> 8}.{net & 255}:{port}",
            "interface": "lo",
            "insecure": True,
        }
        self.size = size
        self.children: dict[str, Child] = {}
        for number in range(size):
            self.start(f"m{number}")
        self.ready()

    def start(self, name: str) -> None:
        options = json.dumps(self.options | {"name": name})
        self.children[name] = Child("bench.failover_member", options)

    def ready(self) -> None:
        for child in self.children.values():
            child.ask("ready", members=self.size)
        answers(self.children.values())

    def kill(self, name: str) -> tuple[float, float]:
        """Seconds from the kill of `name` until all others go on, and to the next commit."""
        victim = self.children.pop(name)
        victim.process.send_signal(signal.SIGKILL)
        at = time.monotonic_ns()
        victim.process.wait()
        for child in self.children.values():
            child.ask("outage", killed=name, at=at)
        found = answers(self.children.values())
        over, after = (max(int(one[what]) for one in found) - at for what in ("over", "next"))
        self.start(name)
        self.ready()
        return over / 1e9, after / 1e9

    def report(self) -> list[dict[str, Any]]:
        for child in self.children.values():
            child.ask("report")
        return answers(self.children.values())

    def close(self) -> None:
        for child in self.children.values():
            child.process.kill()
            child.process.wait()


class Load:
    """Every processor is busy, if asked for."""

    def __init__(self, wanted: bool) -> None:
        count = (os.cpu_count() or 1) if wanted else 0
        busy = [sys.executable, "-c", BUSY.format(parent=os.getpid())]
        self.processes = [subprocess.Popen(busy) for _ in range(count)]

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


def kills(service: str, size: int, count: int, chance: random.Random) -> dict[str, Any]:
    group = Group(service, size)
    try:
        times, nexts = [], []
        for _ in range(count):
            time.sleep(chance.uniform(0.1, 1.0))
            over, after = group.kill(chance.choice(sorted(group.children)))
            times.append(over)
            nexts.append(after)
    finally:
        group.close()
    return {
        "service": service,
        "members": size,
        "kills": count,
        "median_s": statistics.median(times),
        "worst_s": max(times),
        "times_s": times,
        "next_s": nexts,
    }


def soak(service: str, size: int, seconds: float) -> dict[str, Any]:
    group = Group(service, size)
    try:
        time.sleep(1)
        before = group.report()
        time.sleep(seconds)
        after = group.report()
    finally:
        group.close()
    changes = sum(len(b["views"]) - len(a["views"]) for a, b in zip(before, after, strict=True))
    return {
        "service": service,
        "members": size,
        "seconds": seconds,
        "changes": changes,
        "failed": sum(b["failed"] - a["failed"] for a, b in zip(before, after, strict=True)),
        "messages": min(b["count"] - a["count"] for a, b in zip(before, after, strict=True)),
    }


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words.add_argument("--service", default=",".join(SERVICES))
    words.add_argument("--members", default="3,5,8")
    words.add_argument("--kills", type=int, default=50)
    words.add_argument("--soak", type=float, default=0.0, help="seconds in which nobody is killed")
    words.add_argument("--load", action="store_true", help="keep every processor busy")
    words.add_argument("--seed", type=int, default=1)
    words.add_argument("--json", action="store_true")
    given = words.parse_args()
    chance = random.Random(given.seed)
    results = []
    load = Load(given.load)
    try:
        for service in given.service.split(","):
            if service not in SERVICES:
                raise SystemExit(f"--service {service}: one of {', '.join(SERVICES)}")
            for size in map(int, given.members.split(",")):
                if given.soak:
                    one = soak(service, size, given.soak)
                    line = f"{one['changes']} changes of view, {one['failed']} broadcasts failed"
                    line += f", {one['messages']} messages in {one['seconds']:.0f} s"
                else:
                    one = kills(service, size, given.kills, chance)
                    line = f"median {one['median_s']:.2f} s, worst {one['worst_s']:.2f} s"
                    line += f" of {one['kills']}"
                results.append(one | {"load": given.load})
                if not given.json:
                    busy = "loaded" if given.load else "idle"
                    print(f"{service:10} {size:2} members, {busy:6}: {line}", flush=True)
    finally:
        load.close()
    if given.json:
        print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
