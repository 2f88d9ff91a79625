"""Applications and commands in processes of their own, all on loopback, and what they print.

Only names and options that are older than issue 11 are used here and in the tests beside it: each
of those tests can be run with the package as it was before its fault was mended, and fails there
because a promise is broken, not because a name is missing.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

PATIENCE_S = 20.0


def wait(condition: Callable[[], Any], seconds: float) -> bool:
    """Wait for `condition`, and no longer than that; whether it holds."""
    end = time.monotonic() + seconds
    while not (holds := bool(condition())) and time.monotonic() < end:
        time.sleep(0.02)
    return holds


def until(condition: Callable[[], Any], what: str, seconds: float = PATIENCE_S) -> None:
    """Wait for `condition`, and say what did not happen."""
    assert wait(condition, seconds), f"waited {seconds:.0f} s for this: {what}"


def medium() -> dict[str, Any]:
    """Options of `join` for a medium that no other test uses."""
    chance = random.Random(os.urandom(8))
    address = f"239.255.{chance.randrange(1, 255)}.{chance.randrange(1, 255)}"
    port = chance.randrange(20_000, 30_000)
    return {"multicast": f"{address}:{port}", "interface": "lo", "insecure": True}


class Program:
    """A process that prints a JSON object a line."""

    def __init__(self, *words: str) -> None:
        self.lines: list[dict[str, Any]] = []
        self.process = subprocess.Popen(
            [sys.executable, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.endswith("\n"):  # otherwise it was killed in the middle
                self.lines.append(json.loads(line))

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.send_signal(signal.SIGCONT)
        self.process.wait()
        self._reader.join()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):  # something was still to be said to it
                pipe.close()


class Application(Program):
    """`application.py`, and what it was given and told."""

    def __init__(self, name: str, **options: Any) -> None:
        self.name = name
        orders = {"group": "orders", "name": name, "timeout": 6.0} | options
        super().__init__(str(Path(__file__).with_name("application.py")), json.dumps(orders))

    def say(self, *texts: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("".join(f"{text}\n" for text in texts))
        self.process.stdin.flush()

    def of(self, *events: str) -> list[dict[str, Any]]:
        return [line for line in list(self.lines) if line["event"] in events]

    @property
    def is_in(self) -> bool:
        return bool(self.of("joined"))

    @property
    def refusal(self) -> str:
        """Why it could not join."""
        return "".join(f"{line['kind']}: {line['why']}" for line in self.of("refused"))

    @property
    def decided(self) -> bool:
        return self.is_in or bool(self.refusal)

    @property
    def members(self) -> set[str]:
        views = self.of("view")
        return set(views[-1]["members"]) if views and views[-1]["state"] == "open" else set()

    @property
    def given(self) -> list[str]:
        return [line["data"] for line in self.of("given")]

    @property
    def confirmed(self) -> list[str]:
        return [line["data"] for line in self.of("confirmed")]

    def done(self, *texts: str) -> bool:
        """Whether it knows what became of these."""
        return {line["data"] for line in self.of("confirmed", "failed")} >= set(texts)


def _listens(path: Path) -> bool:
    """Whether there is a socket that takes connections: it is there before it does."""
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0


@contextlib.contextmanager
def daemon(folder: Path) -> Iterator[tuple[Path, subprocess.Popen[bytes]]]:
    """A `roundelay node` with its default limits: the socket for applications, and the process."""
    path = folder / "frontend"
    command = ["node", "--name", "host", "--multicast", medium()["multicast"], "--interface", "lo",
               "--insecure", "--frontend", f"unix:{path}", "--log", "error"]  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-m", "roundelay", *command], stdout=subprocess.DEVNULL
    )
    try:
        until(lambda: _listens(path), "the node serves")
        yield path, process
    finally:
        process.terminate()
        process.wait()


class Machine:
    """Programs that are all gone at the end."""

    def __init__(self) -> None:
        self.medium = medium()
        self.programs: list[Program] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for program in self.programs:
            program.end()

    def start(self, name: str, **options: Any) -> Application:
        application = Application(name, **self.medium | options)
        self.programs.append(application)
        return application

    def form(self, *names: str, **options: Any) -> list[Application]:
        """Applications that are in one group, which works."""
        found = [self.start(name, **options) for name in names]
        together(*found)
        return found


def together(*applications: Application) -> None:
    names = {one.name for one in applications}
    until(lambda: all(one.members == names for one in applications), f"{sorted(names)} together")


def disagreements(*applications: Application) -> dict[int, set[str]]:
    """Positions at which different messages were given or confirmed, and those messages."""
    found: dict[int, set[str]] = {}
    for one in applications:
        for line in one.of("given", "confirmed"):
            found.setdefault(line["seq"], set()).add(line["data"])
    return {seq: texts for seq, texts in sorted(found.items()) if len(texts) > 1}
