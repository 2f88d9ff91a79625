"""Child processes of a benchmark: one JSON request a line in, one JSON answer a line out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TICKS = os.sysconf("SC_CLK_TCK")


class Child:
    """`python -m module arguments`, and how to talk to it."""

    def __init__(self, module: str, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def ask(self, do: str, **request: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": do} | request) + "\n")
        self.process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"a child of the benchmark ended: {self.process.args!r}")
        found: dict[str, Any] = json.loads(line)
        return found

    def cpu_s(self) -> float:
        """Processor time since it started, as the kernel counts it."""
        stat = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(stat[11]) + int(stat[12])) / TICKS

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()


class Children:
    """Several of them, ended together."""

    def __init__(self, children: Iterable[Child]) -> None:
        self.all = list(children)

    def __enter__(self) -> list[Child]:
        return self.all

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for child in self.all:
            child.close()


def answers(children: Iterable[Child]) -> list[dict[str, Any]]:
    return [child.answer() for child in children]
