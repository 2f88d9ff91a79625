"""A member of a group under trouble: its processes, its disk and its clock."""

from __future__ import annotations

import asyncio
import ctypes
import os
import shutil
from asyncio.subprocess import Process
from contextlib import suppress
from pathlib import Path
from signal import SIGCONT, SIGKILL, SIGSTOP
from typing import Any, Final

from roundelay.runs.chaos.clock import WallClock
from roundelay.runs.chaos.disks import PowerDisk
from roundelay.runs.chaos.kinds import MACHINE

PR_SET_PDEATHSIG: Final = 1
LIBC: Final = ctypes.CDLL(None, use_errno=True)


def _with_parent() -> None:
    """No process outlives the harness."""
    LIBC.prctl(PR_SET_PDEATHSIG, SIGKILL)


class Machine:
    """What both commands start, stop and strike."""

    def __init__(self, name: str, disk: Path, clock: WallClock | None) -> None:
        self.name = name
        self.disk = disk
        self.clock = clock
        self.processes: dict[str, Process] = {}
        """By what they are: the application, and the node if that is another process."""
        self.command_prefix: list[str] = []
        """What to put before its commands, to run them in its network namespace."""
        self.power_disk: PowerDisk | None = None
        """`disk`, where it can lose what was not synced."""

    @property
    def state(self) -> str:
        """How its group looks from here."""
        raise NotImplementedError

    def runs(self, part: str) -> bool:
        return part in self.processes and self.processes[part].returncode is None

    async def spawn(self, part: str, command: list[str], log: Path, **pipes: Any) -> Process:
        """Start a process of this machine; what it writes to standard error goes to `log`."""
        clock = {} if self.clock is None else self.clock.environment()
        with log.open("ab") as errors:
            self.processes[part] = await asyncio.create_subprocess_exec(
                *self.command_prefix,
                *command,
                stderr=errors,
                env=os.environ | clock,
                preexec_fn=_with_parent,
                **pipes,
            )
        return self.processes[part]

    def tell(self, part: str, word: str) -> None:
        """Write a line to the standard input of a process, if it runs."""
        if self.runs(part):
            stdin = self.processes[part].stdin
            assert stdin is not None
            with suppress(ConnectionError, RuntimeError):
                stdin.write(word.encode() + b"\n")

    def running(self, scope: str = MACHINE) -> list[Process]:
        """The processes that a fault of `scope` strikes: all, where it is not one of its own."""
        parts = [scope] if scope in self.processes else list(self.processes)
        return [self.processes[part] for part in parts if self.runs(part)]

    def signal(self, number: int, scope: str = MACHINE) -> None:
        for process in self.running(scope):
            # Not by `send_signal`: that may reap a process before asyncio does.
            with suppress(ProcessLookupError):
                os.kill(process.pid, number)

    def pause(self, scope: str = MACHINE) -> None:
        self.signal(SIGSTOP, scope)

    def wake(self, scope: str = MACHINE) -> None:
        self.signal(SIGCONT, scope)

    async def kill(self, scope: str = MACHINE) -> None:
        processes = self.running(scope)
        self.signal(SIGKILL, scope)
        for process in processes:
            await process.wait()

    def wipe(self) -> None:
        """Leave nothing on its disk."""
        if self.power_disk is None:
            shutil.rmtree(self.disk, ignore_errors=True)
            return
        for path in self.disk.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
