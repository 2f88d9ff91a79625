"""Nodes as daemons, through the switch, with traces: what they did can be judged afterwards."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from roundelay.trace import read
from roundelay.trace.merge import merge

PATIENCE_S = 60.0
PROGRAM = Path(sys.executable).with_name("roundelay")


@pytest.fixture(autouse=True)
def unmeasured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Coverage slows processes down, and has nothing to learn from these."""
    for name in [name for name in os.environ if "COVERAGE" in name]:
        monkeypatch.delenv(name)


class Programs:
    """Programs that run until the test is over."""

    def __init__(self) -> None:
        self.running: dict[str, subprocess.Popen[str]] = {}

    def start(self, name: str, *words: object) -> dict[str, str]:
        """What its line `ready` says."""
        process = subprocess.Popen(
            [PROGRAM, *map(str, words)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.running[name] = process
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("ready "), process.communicate()
        return dict(word.split("=", 1) for word in line.split()[1:])

    def stop(self, name: str, number: int = signal.SIGTERM) -> str:
        process = self.running.pop(name)
        process.send_signal(number)
        out, _ = process.communicate(timeout=PATIENCE_S)
        return out

    def close(self) -> None:
        for name in list(self.running):
            self.stop(name, signal.SIGKILL)


@pytest.fixture
def programs() -> Iterator[Programs]:
    made = Programs()
    yield made
    made.close()


def roundelay(*words: object) -> str:
    done = subprocess.run(
        [PROGRAM, *map(str, words)],
        capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def position(frontend: str) -> int:
    status = json.loads(roundelay("status", "--node", frontend, "--json"))
    found = [group.get("position", -1) for group in status["groups"]]
    return max(found, default=-1)


@pytest.mark.slow
def test_daemons_through_the_switch_leave_traces_that_can_be_judged(
    programs: Programs, tmp_path: Path
) -> None:
    switch = programs.start("switch", "switch", "--listen", "127.0.0.1:0", "--loss", 0.1, "--json")
    traces = tmp_path / "traces"

    def node(name: str) -> None:
        programs.start(
            name, "node", "--name", name, "--dir", tmp_path / name, "--via", switch["switch"],
            "--frontend", f"unix:{tmp_path / name}.sock", "--insecure", "--trace", traces,
            "--group", "orders:resilient:members=a,b,c",
        )  # fmt: skip

    def all_have(count: int) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while any(position(f"unix:{tmp_path / name}.sock") < count for name in "abc"):
            assert time.monotonic() < deadline, "they do not come to agree"
            time.sleep(0.2)

    for name in "abc":
        node(name)
    lines = "\n".join(f"line {i}" for i in range(50))
    for name in "ab":
        subprocess.run(
            [PROGRAM, "send", "token:orders", "-", "--lines", "--node",
             f"unix:{tmp_path / name}.sock"],
            input=lines.replace("line", name), text=True, timeout=PATIENCE_S, check=True,
        )  # fmt: skip
    all_have(100)
    programs.stop("c", signal.SIGKILL)
    node("c")
    roundelay("send", "token:orders", "after", "--node", f"unix:{tmp_path / 'c'}.sock")
    all_have(101)
    for name in "abc":
        programs.stop(name)
    counted = json.loads(programs.stop("switch"))
    assert counted["dropped"]["loss"] > 0
    assert {"B", "ACK", "HEARTBEAT"} <= set(counted["kinds"])

    said = json.loads(roundelay("check", traces, "--json"))
    assert said["broken"] == 0
    (judged,) = said["traces"]
    assert (judged["group"], judged["sites"], judged["committed"]) == ("token:orders", 3, 101)
    merged = merge(traces, tmp_path / "trace.parquet")
    rows = list(read(merged.path))
    assert [(row.event, row.site) for row in rows if row.event in ("CRASH", "RESTART")] == [
        ("CRASH", 2), ("RESTART", 2),
    ]  # fmt: skip
    sent = {row.ref for row in rows if row.event == "SEND"}
    arrived = [row for row in rows if row.event == "RECEIVE"]
    assert arrived
    assert len([row for row in arrived if row.ref in sent]) >= 0.99 * len(arrived)
