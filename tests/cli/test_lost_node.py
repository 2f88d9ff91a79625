"""`listen` and `send` when the node they talk to is killed: real processes, real signals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from roundelay.client.publisher import Publisher
from roundelay.core.bundle import Bundle
from tests.node.live import multicast

PROGRAM = [sys.executable, "-m", "roundelay"]
ENV = {name: value for name, value in os.environ.items() if "COVERAGE" not in name}
LISTEN, GIVE_UP, SEND = GROUPS = ("token:listen", "token:give-up", "token:send")
"""A group for each test: starting nodes is what takes time."""


def wait_for(condition: Callable[[], Any], what: str) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end, f"waited for this: {what}"
        time.sleep(0.02)


class Town:
    """Nodes as processes, each with a folder and a socket that it keeps."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.medium = multicast()
        self.running: dict[str, subprocess.Popen[str]] = {}
        self.commands: list[subprocess.Popen[str]] = []

    def where(self, name: str) -> str:
        return f"unix:{self.folder / name}.sock"

    def start(self, *names: str) -> None:
        """Those of them that do not run."""
        names = tuple(name for name in names if name not in self.running)
        groups = [word for group in GROUPS for word in ("--group", group)]
        for name in names:
            self.running[name] = subprocess.Popen(
                [*PROGRAM, "node", "--name", name, "--insecure", "--interface", "lo",
                 "--multicast", self.medium, "--frontend", self.where(name),
                 "--dir", str(self.folder / name), *groups],
                stdout=subprocess.PIPE, text=True, env=ENV,
            )  # fmt: skip
        for name in names:
            stdout = self.running[name].stdout
            assert stdout is not None
            assert stdout.readline().startswith("ready")

    def kill(self, name: str) -> None:
        process = self.running.pop(name)
        process.send_signal(signal.SIGKILL)
        process.communicate()

    def command(self, *words: str, node: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [*PROGRAM, *words, "--node", self.where(node)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=ENV,
        )  # fmt: skip
        self.commands.append(process)
        return process


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    made = Town(tmp_path_factory.mktemp("town"))
    try:
        yield made
    finally:
        for name in list(made.running):
            made.kill(name)
        for process in made.commands:
            process.kill()
            with process:
                pass  # which closes its pipes


class Talk:
    """Sends numbered messages through a node, steadily, until it is stopped."""

    def __init__(self, where: str, group: str) -> None:
        self.sent = 0
        self._on = True
        self._publisher = Publisher(where, group)
        self._thread = Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        with self._publisher:
            while self._on:
                for _ in self._publisher.send([Bundle.of(b"%d" % self.sent)]):
                    self.sent += 1
                time.sleep(0.002)

    def stop(self) -> int:
        self._on = False
        self._thread.join()
        return self.sent


class Heard:
    """The lines of a `listen` that runs."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.lines: list[dict[str, Any]] = []
        self._process = process
        self._thread = Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.lines.append(json.loads(line))

    def end(self) -> str:
        """Interrupt it; what it said on standard error."""
        self._process.send_signal(signal.SIGINT)
        self._thread.join()
        assert self._process.stderr is not None
        with self._process:
            return self._process.stderr.read()


def test_listen_goes_on_through_a_node_that_is_killed_and_started_again(town: Town) -> None:
    town.start("ann", "bob")
    listening = town.command("listen", LISTEN, "--json", "--since", "start", node="ann")
    heard = Heard(listening)
    talk = Talk(town.where("bob"), LISTEN)
    try:
        wait_for(lambda: len(heard.lines) > 50, "the first messages")
        town.kill("ann")
        before = len(heard.lines)
        town.start("ann")
        wait_for(lambda: len(heard.lines) > before + 50, "more of them")
    finally:
        count = talk.stop()
    wait_for(lambda: len(heard.lines) >= count, "the last messages")
    said = heard.end()
    assert [line["seq"] for line in heard.lines] == list(range(count))
    assert [line["data"] for line in heard.lines] == [str(number) for number in range(count)]
    assert listening.returncode == 0
    assert said.count("trying again for up to 10 s") == 1


def test_who_gives_a_node_up_says_so_and_has_a_status(town: Town) -> None:
    town.start("ann", "bob")
    commands = [
        town.command("listen", GIVE_UP, "--since", "start", "--timeout", "0.3", node="ann"),
        town.command("send", GIVE_UP, "-", "--lines", "--timeout", "0.3", node="ann"),
    ]
    assert commands[1].stdin is not None
    commands[1].stdin.write("one\n")
    commands[1].stdin.flush()
    assert commands[0].stdout is not None
    assert commands[0].stdout.readline() == "0 ann: one\n"
    town.kill("ann")
    for command in commands:
        assert command.stderr is not None
        assert "trying again" in command.stderr.readline()
    time.sleep(0.5)
    commands[1].stdin.write("two\n")
    for command in commands:
        _, err = command.communicate(timeout=30)
        assert command.returncode == 1
        assert "ConnectionLost" in err
        assert "could not be made again in 0.3 s" in err
        assert err.count("\n") == 1


def test_send_goes_on_through_a_node_that_is_killed_while_nothing_is_under_way(town: Town) -> None:
    town.start("ann", "bob")
    heard = Heard(town.command("listen", SEND, "--json", "--since", "start", node="bob"))
    sending = town.command("send", SEND, "-", "--lines", "--json", node="ann")
    assert sending.stdin is not None
    try:
        sending.stdin.write("one\n")
        sending.stdin.flush()
        wait_for(lambda: len(heard.lines) == 1, "the first line")
        time.sleep(0.1)  # for its receipt
        town.kill("ann")
        sending.stdin.write("two\n")
        sending.stdin.flush()
        town.start("ann")
        wait_for(lambda: len(heard.lines) == 2, "the second line")
        out, err = sending.communicate("three\n", timeout=30)
        assert sending.returncode == 0, err
        assert json.loads(out) == {"group": SEND, "messages": 3, "seq": 2}
        wait_for(lambda: len(heard.lines) == 3, "the third line")
    finally:
        heard.end()
    assert [line["data"] for line in heard.lines] == ["one", "two", "three"]
