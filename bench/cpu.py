"""Processor time of this process and of all that it has started: on a shared machine the better
measure of work than the clock on the wall."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from time import perf_counter
from types import TracebackType
from typing import Self

TICK_S = 1 / os.sysconf("SC_CLK_TCK")
USER, SYSTEM = 11, 12  # in /proc/PID/stat, behind the name; those of children that ended follow


def spent() -> float:
    """Seconds of user and system time of this process and everything below it (Linux)."""
    own = resource.getrusage(resource.RUSAGE_SELF)
    gone = resource.getrusage(resource.RUSAGE_CHILDREN)
    total = own.ru_utime + own.ru_stime + gone.ru_utime + gone.ru_stime
    parents: dict[int, int] = {}
    used: dict[int, float] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended meanwhile
        process = int(folder.name)
        parents[process] = int(words[1])
        used[process] = sum(map(int, words[USER : SYSTEM + 3])) * TICK_S
    below = {os.getpid()}
    grown = True
    while grown:
        more = {process for process, parent in parents.items() if parent in below} - below
        below |= more
        grown = bool(more)
    return total + sum(used[process] for process in below - {os.getpid()})


class Measured:
    """`with Measured() as m: …`: how long it took on the wall, and how much work it was."""

    wall_s = 0.0
    cpu_s = 0.0

    def __enter__(self) -> Self:
        self._cpu, self._wall = spent(), perf_counter()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.wall_s, self.cpu_s = perf_counter() - self._wall, spent() - self._cpu
