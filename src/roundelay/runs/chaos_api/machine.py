"""The processes of a member of `roundelay chaos --api`."""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import shutil
import socket
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from itertools import count
from pathlib import Path
from signal import SIGCONT, SIGKILL, SIGSTOP
from typing import Any, Final

from msgspec import Struct

from roundelay.core.errors import RoundelayError
from roundelay.runs.chaos.clock import WallClock
from roundelay.runs.chaos.disks import PowerDisk
from roundelay.runs.chaos_api import application
from roundelay.runs.chaos_api.notes import MEMBER, Life, NotesReader
from roundelay.runs.chaos_api.plan import (
    APPLICATION,
    COMMITTED,
    DAEMON,
    MACHINE,
    NODE,
    Setup,
)

GROUP: Final = "chaos"
READY_S: Final = 30.0
PR_SET_PDEATHSIG: Final = 1
_NUMBERS: Final = count()
LIBC: Final = ctypes.CDLL(None, use_errno=True)


def _with_parent() -> None:
    """No process outlives the harness."""
    LIBC.prctl(PR_SET_PDEATHSIG, SIGKILL)


class Hang(RoundelayError):
    """Something that had to happen did not."""


class MeetingPoint(Struct, frozen=True):
    """Where a group meets: the same for all members but for their addresses."""

    folder: Path
    sockets: Path
    """A short path: those of Unix sockets are limited."""
    key: Path
    via: str
    roles: Path | None


class Machine:
    """A member: its folder, its application, and its daemon if it goes through one."""

    def __init__(
        self, name: str, mode: str, setup: Setup, place: MeetingPoint, clock: WallClock
    ) -> None:
        self.name = name
        self.mode = mode
        self.setup = setup
        self.place = place
        self.clock = clock
        self.address: dict[str, str] = {}
        """How it is on the medium: options of `join` and of a node."""
        self.disk = place.folder / "disks" / name
        self.prefix_words: list[str] = []
        """What to put before its commands, to run them in its network namespace."""
        self.power_disk: PowerDisk | None = None
        """`disk`, where it can lose what was not synced."""
        self.killed: list[int] = []
        """When its node was killed, in ns of the monotonic clock."""
        self.lives: list[NotesReader] = []
        self.application: asyncio.subprocess.Process | None = None
        self.node: asyncio.subprocess.Process | None = None
        self.role = MEMBER
        self.word = "go"
        """The last thing its application was told: what a later life has to know, too."""
        self.frontend = f"unix:{place.sockets}/{name}{next(_NUMBERS)}"

    @property
    def life(self) -> Life:
        """What its present life has noted down, as far as it was read."""
        return self.lives[-1].life

    def look(self) -> Life:
        """The same, up to now."""
        return self.lives[-1].look()

    @property
    def silent(self) -> bool:
        return self.name in self.setup.silent

    # -- starting ------------------------------------------------------------------------------

    async def start(self, since: tuple[str, int] | None = None, tries: int = 0) -> None:
        """Start what does not run; the application goes on at `since`."""
        if self.mode == DAEMON and not _runs(self.node):
            await self.start_node()
        if not _runs(self.application):
            await self.start_application(since, tries)

    async def start_node(self) -> None:
        command = [sys.executable, "-m", "roundelay", "node", "--name", self.name,
                   "--frontend", self.frontend, "--key", str(self.place.key)]  # fmt: skip
        for option, value in self.address.items():
            command += [f"--{option}", value]
        if self.setup.disks:
            command += ["--dir", str(self.disk)]
        group = self.group_option()
        if group:
            command += ["--group", group]
        if self.records:
            command += ["--record", f"{self.prefix}{GROUP}"]
        self.node = await self._process(command, "node", stdout=asyncio.subprocess.PIPE)
        assert self.node.stdout is not None
        with suppress(TimeoutError):
            await asyncio.wait_for(self.node.stdout.readline(), READY_S)

    @property
    def prefix(self) -> str:
        return {"resilient": "token:", "total": "to:", "hub": "to:"}.get(self.setup.service, "")

    @property
    def records(self) -> bool:
        return self.setup.names.index(self.name) < self.setup.recorders

    def group_option(self) -> str:
        """As `roundelay node --group` takes it."""
        setup = self.setup
        if setup.service == "fifo":
            return ""
        service = "total" if setup.service == "hub" else setup.service
        words = [GROUP, service]
        if setup.fixed and self.place.roles is None:
            words.append("members=" + ",".join(setup.names))
        if service == "resilient":
            words.append(f"resilience={setup.resilience}")
        if setup.service == "hub":
            words.append("hub=yes")
        if self.place.roles is not None:
            words.append(f"config={self.place.roles}")
        return ":".join(words)

    def join_options(self) -> dict[str, Any]:
        """As `roundelay.join` takes them."""
        setup = self.setup
        service = "total" if setup.service == "hub" else setup.service
        options: dict[str, Any] = {"service": service, "name": self.name}
        if service == "resilient":
            options["resilience"] = setup.resilience
        if setup.service == "hub":
            options["hub"] = True
        if setup.durability != COMMITTED and not self.silent:
            options["durability"] = setup.durability
        if setup.fixed and self.place.roles is None:
            options["members"] = list(setup.names)
        if self.mode == DAEMON:
            return options | {"node": self.frontend}
        options |= {"key": str(self.place.key), **self.address}
        if setup.disks:
            options["dir"] = str(self.disk)
        if self.place.roles is not None:
            options["config"] = str(self.place.roles)
        if self.records:
            options["record"] = True
        return options

    async def start_application(self, since: tuple[str, int] | None, tries: int) -> None:
        number = self.life.number + 1 if self.lives else 0
        path = self.place.folder / f"{self.name}.{number}.jsonl"
        self.lives.append(NotesReader(path, number, self.role))
        names = [name for name in self.setup.names if name not in self.setup.silent]
        orders = {
            "name": self.name, "life": number, "log": str(path), "group": GROUP,
            "options": self.join_options(), "since": since, "tries": tries,
            "rate": 0 if self.silent else self.setup.rate, "size": self.setup.size,
            "to": names if self.setup.service == "selective" else None,
        }  # fmt: skip
        command = [sys.executable, "-m", application.__name__, json.dumps(orders)]
        self.application = await self._process(command, "app", stdin=asyncio.subprocess.PIPE)
        if self.word:
            self.tell(self.word)

    async def _process(
        self, command: list[str], what: str, **pipes: Any
    ) -> asyncio.subprocess.Process:
        path = self.place.folder / f"{self.name}.{what}.err"
        with path.open("ab") as errors:
            return await asyncio.create_subprocess_exec(
                *self.prefix_words,
                *command,
                stderr=errors,
                env=self._environment(),
                preexec_fn=_with_parent,
                **pipes,
            )

    def _environment(self) -> Mapping[str, str]:
        return os.environ | self.clock.environment()

    # -- what is done to it --------------------------------------------------------------------

    def tell(self, word: str) -> None:
        self.word = word
        if _runs(self.application):
            assert self.application is not None
            assert self.application.stdin is not None
            with suppress(ConnectionError, RuntimeError):
                self.application.stdin.write(word.encode() + b"\n")

    def _of(self, scope: str) -> list[asyncio.subprocess.Process]:
        if self.mode != DAEMON:
            scope = MACHINE
        processes = []
        if scope in (MACHINE, APPLICATION):
            processes.append(self.application)
        if scope in (MACHINE, NODE):
            processes.append(self.node)
        return [process for process in processes if process is not None and _runs(process)]

    def signal(self, number: int, scope: str = MACHINE) -> None:
        for process in self._of(scope):
            with suppress(ProcessLookupError):
                os.kill(process.pid, number)

    def pause(self, scope: str = MACHINE) -> None:
        self.signal(SIGSTOP, scope)

    def wake(self, scope: str = MACHINE) -> None:
        self.signal(SIGCONT, scope)

    async def kill(self, scope: str = MACHINE) -> None:
        processes = self._of(scope)
        if self.node in processes:
            self.killed.append(time.monotonic_ns())
        self.signal(SIGKILL, scope)
        for process in processes:
            await process.wait()

    def wipe(self) -> None:
        """Nothing is left on its disk."""
        if self.power_disk is None:
            shutil.rmtree(self.disk, ignore_errors=True)
            return
        for path in self.disk.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    async def end(self, patience_s: float) -> bool:
        """Let the application leave, and then the node; whether they did."""
        self.wake()
        self.tell("end")
        good = await self._over(self.application, patience_s)
        if self.node is not None and _runs(self.node):
            self.node.terminate()
            good = await self._over(self.node, patience_s) and good
        await self.kill()
        return good

    async def _over(self, process: asyncio.subprocess.Process | None, patience_s: float) -> bool:
        if process is None:
            return True
        try:
            return await asyncio.wait_for(process.wait(), patience_s) == 0
        except TimeoutError:
            return False


def _runs(process: asyncio.subprocess.Process | None) -> bool:
    return process is not None and process.returncode is None


def free_ports(count: int) -> list[int]:
    """UDP ports of loopback that nobody has."""
    with ExitStack() as stack:
        ports = []
        for _ in range(count):
            udp = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            udp.bind(("127.0.0.1", 0))
            ports.append(udp.getsockname()[1])
        return ports
