"""The processes of a member of `roundelay chaos --api`."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import time
from asyncio.subprocess import PIPE
from contextlib import ExitStack, suppress
from itertools import count
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from roundelay.client.messages import COMMITTED
from roundelay.node.groups import full_name
from roundelay.runs.chaos.clock import WallClock
from roundelay.runs.chaos.kinds import APPLICATION, MACHINE, NODE
from roundelay.runs.chaos.machine import Machine
from roundelay.runs.chaos_api import application
from roundelay.runs.chaos_api.notes import MEMBER, Life
from roundelay.runs.chaos_api.plan import DAEMON, Setup

GROUP: Final = "chaos"
READY_S: Final = 30.0
_NUMBERS: Final = count()


class MeetingPoint(Struct, frozen=True):
    """Where a group meets: the same for all members but for their addresses."""

    folder: Path
    sockets: Path
    """A short path: those of Unix sockets are limited."""
    key: Path
    roles: Path | None


class MemberMachine(Machine):
    """A member: its folder, its application, and its daemon if it goes through one."""

    clock: WallClock

    def __init__(
        self, name: str, mode: str, setup: Setup, place: MeetingPoint, clock: WallClock
    ) -> None:
        super().__init__(name, place.folder / "disks" / name, clock)
        self.mode = mode
        self.setup = setup
        self.place = place
        self.address: dict[str, str] = {}
        """How it is on the medium: options of `join` and of a node."""
        self.killed: list[int] = []
        """When its node was killed, in ns of the monotonic clock."""
        self.lives: list[Life] = []
        self.role = MEMBER
        self.command = "go"
        """The last thing its application was told: what a later life has to know, too."""
        self.frontend = f"unix:{place.sockets}/{name}{next(_NUMBERS)}"

    @property
    def life(self) -> Life:
        """What its present life has noted down, as far as it was read."""
        return self.lives[-1]

    def look(self) -> Life:
        """The same, up to now."""
        return self.lives[-1].look()

    @property
    def state(self) -> str:
        return self.life.state

    @property
    def silent(self) -> bool:
        return self.name in self.setup.silent

    @property
    def records(self) -> bool:
        return self.setup.names.index(self.name) < self.setup.recorders

    # -- starting ------------------------------------------------------------------------------

    async def start(self, since: tuple[str, int] | None = None, tries: int = 0) -> None:
        """Start what does not run; the application goes on at `since`."""
        if self.mode == DAEMON and not self.runs(NODE):
            await self._start_node()
        if not self.runs(APPLICATION):
            await self._start_application(since, tries)

    def _settings(self) -> dict[str, Any]:
        """What the group is, but for its roles."""
        setup = self.setup
        settings: dict[str, Any] = {}
        if setup.fixed and self.place.roles is None:
            settings["members"] = list(setup.names)
        if setup.family.resilient:
            settings["resilience"] = setup.resilience
        if setup.family.one_channel:
            settings["hub"] = True
        return settings

    async def _start_node(self) -> None:
        command = [sys.executable, "-m", "roundelay", "node", "--name", self.name,
                   "--frontend", self.frontend, "--key", str(self.place.key)]  # fmt: skip
        for option, value in self.address.items():
            command += [f"--{option}", value]
        if self.setup.disks:
            command += ["--dir", str(self.disk)]
        if not self.setup.family.own_packets:
            command += ["--group", self._group_option()]
        if self.records:
            command += ["--record", full_name(GROUP, self.setup.family.service)]
        log = self.place.folder / f"{self.name}.node.err"
        node = await self.spawn(NODE, command, log, stdout=PIPE)
        assert node.stdout is not None
        with suppress(TimeoutError):
            await asyncio.wait_for(node.stdout.readline(), READY_S)

    def _group_option(self) -> str:
        """As `roundelay node --group` takes it."""
        settings = self._settings()
        if "members" in settings:
            settings["members"] = ",".join(settings["members"])
        if "hub" in settings:
            settings["hub"] = "yes"
        if self.place.roles is not None:
            settings["config"] = self.place.roles
        words = [f"{name}={value}" for name, value in settings.items()]
        return ":".join([GROUP, self.setup.family.service, *words])

    def _join_options(self) -> dict[str, Any]:
        """As `roundelay.join` takes them."""
        setup = self.setup
        options = {"service": setup.family.service, "name": self.name} | self._settings()
        if setup.durability != COMMITTED and not self.silent:
            options["durability"] = setup.durability
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

    async def _start_application(self, since: tuple[str, int] | None, tries: int) -> None:
        number = self.life.number + 1 if self.lives else 0
        folder = self.place.folder
        path = folder / f"{self.name}.{number}.jsonl"
        self.lives.append(Life("?", number, self.role, path))
        names = [name for name in self.setup.names if name not in self.setup.silent]
        orders = {
            "name": self.name, "life": number, "log": str(path), "group": GROUP,
            "options": self._join_options(), "since": since, "tries": tries,
            "rate": 0 if self.silent else self.setup.rate, "size": self.setup.size,
            "to": names if self.setup.family.selective else None,
        }  # fmt: skip
        command = [sys.executable, "-m", application.__name__, json.dumps(orders)]
        await self.spawn(APPLICATION, command, folder / f"{self.name}.app.err", stdin=PIPE)
        if self.command:
            self.order(self.command)

    # -- what is done to it --------------------------------------------------------------------

    def order(self, command: str) -> None:
        """Tell the application, and those of later lives."""
        self.command = command
        self.tell(APPLICATION, command)

    async def kill(self, scope: str = MACHINE) -> None:
        if self.runs(NODE) and self.processes[NODE] in self.running(scope):
            self.killed.append(time.monotonic_ns())
        await super().kill(scope)

    async def end(self, patience_s: float) -> None:
        """Let the application leave, and then the node."""
        self.wake()
        self.order("end")
        await self._over(APPLICATION, patience_s)
        if self.runs(NODE):
            self.processes[NODE].terminate()
            await self._over(NODE, patience_s)
        await self.kill()

    async def _over(self, part: str, patience_s: float) -> None:
        if part in self.processes:
            with suppress(TimeoutError):
                await asyncio.wait_for(self.processes[part].wait(), patience_s)


def free_ports(count: int) -> list[int]:
    """UDP ports of loopback that nobody has."""
    with ExitStack() as stack:
        ports = []
        for _ in range(count):
            udp = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            udp.bind(("127.0.0.1", 0))
            ports.append(udp.getsockname()[1])
        return ports
