"""The frontends of `examples/frontends`, run as programs, against a node.

Once against a node without a network, and once against a live `roundelay node`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.node.board import NodeThread

FOLDER = Path(__file__).parents[2] / "examples" / "frontends"
PROGRAM = Path(sys.executable).with_name("roundelay")
ENV = {name: value for name, value in os.environ.items() if "COVERAGE" not in name}
SECONDS = 90
LANGUAGES = ["python", "javascript", "java"]


@pytest.fixture(scope="module")
def languages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """How the frontend of each language that is here is called."""
    found = {"python": [sys.executable, str(FOLDER / "roundelay_frontend.py")]}
    if shutil.which("node"):
        found["javascript"] = ["node", str(FOLDER / "roundelay.mjs")]
    if shutil.which("javac") and shutil.which("java"):
        classes = tmp_path_factory.mktemp("classes")
        subprocess.run(
            ["javac", "-Xlint:all", "-Werror", "-d", classes, FOLDER / "RoundelayFrontend.java"],
            timeout=SECONDS, check=True, env=ENV,
        )  # fmt: skip
        # Small, quick to start: it shares the machine with other tests.
        java = ["java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx128m"]
        found["java"] = [*java, "-cp", str(classes), "RoundelayFrontend"]
    return found


class Server:
    def __init__(self, name: str, where: str, path: str) -> None:
        self.name = name
        self.where = where
        self.path = path


@pytest.fixture(scope="module", params=["alone", "live"])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    path = f"unix:{tmp_path_factory.mktemp('front')}/s"
    if request.param == "alone":
        node = NodeThread("127.0.0.1:0", path)
        node.start()
        yield Server("solo", node.where, path)
        node.stop()
        return
    # A medium of its own: other nodes on this machine are none of its business.
    pid = os.getpid()
    medium = f"239.255.{pid % 200}.{pid // 200 % 200 + 1}:{20_000 + pid % 9999}"
    groups = [f"--group=all-{language}:resilient:min_members=1" for language in LANGUAGES]
    process = subprocess.Popen(
        [PROGRAM, "node", "--name", "solo", "--insecure", "--interface", "lo",
         "--multicast", medium, "--frontend", "127.0.0.1:0", "--frontend", path, *groups],
        stdout=subprocess.PIPE, text=True, env=ENV,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        ready = process.stdout.readline()
        assert ready.startswith("ready frontend=")
        where = ready.split("frontend=")[1].split(",")[0].split()[0]
        yield Server("solo", where, path)
        process.terminate()
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.communicate()


class Program:
    """A frontend that runs."""

    def __init__(self, *words: str) -> None:
        self.process = subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENV
        )
        self.timer = threading.Timer(SECONDS, self.process.kill)
        self.timer.start()

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().rstrip("\n")

    def finish(self) -> list[str]:
        out, err = self.process.communicate()
        self.timer.cancel()
        assert self.process.returncode == 0, err
        return out.splitlines()


def command(languages: dict[str, list[str]], language: str) -> list[str]:
    if language not in languages:
        pytest.skip(f"{language} is not installed")
    return languages[language]


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_paper_s_commands(
    languages: dict[str, list[str]], language: str, server: Server
) -> None:
    call = command(languages, language)
    texts = ["one", "zwölf ✓", "x" * 100_000, ""]
    out = Program(*call, server.where, "paper", f"plain-{language}", *texts).finish()
    assert out == texts


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_listener_hears_what_every_language_sends_in_one_order(
    languages: dict[str, list[str]], language: str, server: Server
) -> None:
    call = command(languages, language)
    group = f"token:all-{language}"
    texts = ["one", "zwölf ✓", "x" * 50_000]
    count = len(texts) * len(languages)
    listener = Program(*call, server.path, "listen", group, str(count))
    listener.line()  # the view: it has joined
    sent = []
    for other in languages.values():
        out = Program(*other, server.where, "send", group, *texts).finish()
        sent += [tuple(map(int, line.split()[1:])) for line in out]
    heard = [line for line in listener.finish() if not line.startswith(("members", "view"))]
    assert heard == [
        f"{seq} {server.name} {text}" for seq, text in enumerate(texts * len(languages))
    ]
    tags = list(range(len(texts))) * len(languages)
    assert sent == list(zip(tags, range(count), strict=True))


@pytest.mark.parametrize("language", LANGUAGES)
def test_to_someone_and_questions(
    languages: dict[str, list[str]], language: str, server: Server
) -> None:
    call = command(languages, language)
    group = f"work-{language}"
    listener = Program(*call, server.where, "listen", group, "2")
    listener.line()  # the view: it has joined
    out = Program(*call, server.path, "someone", group, "job 1", "job 2").finish()
    assert sorted(out) == ["receipt 0 -1", "receipt 1 -1"]
    heard = [line for line in listener.finish() if not line.startswith(("members", "view"))]
    assert heard == [f"- {server.name} job 1", f"- {server.name} job 2"]
    (answer,) = Program(*call, server.where, "ask", "status").finish()
    assert f'"node":"{server.name}"' in answer.replace(" ", "")
    assert json.loads(answer)


@pytest.mark.parametrize("language", LANGUAGES)
def test_what_cannot_be_sent_ends_the_program_with_a_reason(
    languages: dict[str, list[str]], language: str, server: Server
) -> None:
    call = command(languages, language)
    for words, reason in (
        (("send", "g" * 256, "never"), "255 bytes"),
        (("ask", "everything"), "members, groups, recorders, status, why"),
    ):
        done = subprocess.run(
            [*call, server.where, *words],
            capture_output=True, text=True, timeout=SECONDS, check=False, env=ENV,
        )  # fmt: skip
        assert reason in done.stdout + done.stderr
        assert done.returncode != 0
