"""A node that records groups, as a process of its own on loopback."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

PROGRAM = Path(sys.executable).with_name("roundelay")


class RecordingNode:
    """`roundelay node`, alone in its groups, recording all of them or those named in `record`."""

    def __init__(
        self, folder: Path, groups: Sequence[str], *, record: Sequence[str] | None = None,
        name: str = "a",
    ) -> None:  # fmt: skip
        self.folder = folder / name
        self.groups = tuple(f"token:{group}" for group in groups)
        self._record = self.groups if record is None else tuple(f"token:{one}" for one in record)
        self._name = name
        chance = random.Random(os.urandom(8))
        net, port = chance.randrange(1 << 16), chance.randrange(20_000, 30_000)
        self._medium = f"239.255.{net >> 8}.{net & 255}:{port}"
        self.where = ""
        """Its frontend address; the same after a restart."""

    def start(self) -> None:
        command = [
            str(PROGRAM), "node", "--name", self._name, "--dir", str(self.folder),
            "--frontend", self.where or "127.0.0.1:0", "--multicast", self._medium,
            "--interface", "lo", "--insecure", "--fsync", "interval",
        ]  # fmt: skip
        for group in self.groups:
            command += ["--group", f"{group}:resilient:members={self._name}:resilience=0"]
        for group in self._record:
            command += ["--record", group]
        environment = {key: value for key, value in os.environ.items() if "COVERAGE" not in key}
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env=environment
        )  # fmt: skip
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if "frontend=" not in line:
            raise SystemExit(f"the node did not start: {line!r}")
        self.where = line.split("frontend=")[1].split()[0].split(",")[0]

    def journal(self, group: str) -> Path:
        """The folder of a group's journal."""
        for folder in sorted((self.folder / "journals").iterdir()):
            if folder.name.lower().endswith(group.replace("token:", "%3a")):
                return folder
        raise FileNotFoundError(group)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.kill()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
