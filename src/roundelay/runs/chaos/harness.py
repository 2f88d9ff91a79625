"""What every run under trouble has: machines, a network, a story, and troubles to carry out."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from roundelay.core.errors import RoundelayError
from roundelay.core.events import FAULT, PAUSE, RESUME
from roundelay.runs.chaos import kinds
from roundelay.runs.chaos.kinds import MACHINE, Trouble
from roundelay.runs.chaos.network import NamespaceNet, SwitchNet

HARNESS_LOG: Final = "harness.log"


class RunFailed(RoundelayError):
    """Something that had to happen did not; says what."""


class Harness:
    """One run, in `folder`; what is judged in the end is up to subclasses."""

    look_s = 0.1
    """Between two looks at what is waited for."""

    def __init__(
        self, folder: Path, net: SwitchNet | NamespaceNet, tell: Callable[[str], None]
    ) -> None:
        self.folder = folder
        self.net = net
        self.machines: dict[str, Any] = {}
        """Those that take part, by name."""
        self.tell = tell
        self.story: list[str] = []
        self.undone: list[str] = []
        """Troubles that cannot be made here."""
        self.struck: Counter[str] = Counter()
        """Troubles that were made, by kind."""
        self.started = time.monotonic()

    def seconds(self) -> float:
        """How long it has gone on."""
        return time.monotonic() - self.started

    def say(self, text: str) -> None:
        line = f"{self.seconds():6.1f} s  {text}"
        self.story.append(line)
        self.tell(line)

    async def until(self, what: str, condition: Callable[[], bool], patience_s: float) -> None:
        """Wait for a condition; RunFailed if nothing moves for so long before it holds."""
        best, deadline = self.progress(), time.monotonic() + patience_s
        while not condition():
            progress = self.progress()
            if progress > best:  # it moves: patience begins anew
                best, deadline = progress, time.monotonic() + patience_s
            if time.monotonic() > deadline:
                machines = self.machines.items()
                where = "; ".join(f"{name}: {machine.state}" for name, machine in machines)
                raise RunFailed(f"waited {patience_s:g} s for {what}: {where}")
            await asyncio.sleep(self.look_s)

    def progress(self) -> int:
        """How far the group has come, where waiting depends on it; RunFailed if it cannot go on."""
        return 0

    async def strike(self, trouble: Trouble) -> None:
        """Carry out a trouble, each kind by the method of its name."""
        self.struck[trouble.kind] += 1
        machines = [self.machines[name] for name in trouble.who]
        await getattr(self, f"_{trouble.kind.replace('-', '_')}")(trouble, machines)

    # -- what runs differ in -------------------------------------------------------------------

    async def restart(self, machines: list[Any]) -> None:
        """Start what does not run."""
        raise NotImplementedError

    async def majority_returned(self, machines: list[Any], trouble: Trouble) -> None:
        """Wait before the rest of a group that was killed returns, too."""
        raise NotImplementedError

    def record(self, event: int, detail: object, machine: Any = None) -> None:
        """Note a fault in the trace of the run, where it has one."""

    # -- troubles of both commands ---------------------------------------------------------------

    async def kill(self, machines: list[Any], scope: str = MACHINE, wiped: bool = False) -> None:
        """SIGKILL, of all as much at once as can be."""
        await asyncio.gather(*[machine.kill(scope) for machine in machines])
        for machine in machines:
            if wiped:
                machine.wipe()
            self.record(FAULT, "crash:nothing" if wiped else "crash:disk", machine)

    async def _kill(self, trouble: Trouble, machines: list[Any]) -> None:
        wiped = trouble.kind == kinds.WIPE
        await self.kill(machines, MACHINE if wiped else trouble.scope, wiped)
        await asyncio.sleep(trouble.lasts_s)
        await self.restart(machines)

    _wipe = _all = _power = _kill

    async def _some(self, trouble: Trouble, machines: list[Any]) -> None:
        """All are killed; a majority returns, and some time later the rest."""
        await self.kill(machines)
        await asyncio.sleep(trouble.lasts_s)
        most = len(machines) // 2 + 1
        await self.restart(machines[:most])
        await self.majority_returned(machines[:most], trouble)
        await self.restart(machines[most:])

    async def _pause(self, trouble: Trouble, machines: list[Any]) -> None:
        [machine] = machines
        machine.pause(trouble.scope)
        self.record(PAUSE, None, machine)
        await asyncio.sleep(trouble.lasts_s)
        self.record(RESUME, None, machine)
        machine.wake(trouble.scope)

    def separate(self, kind: str, trouble: Trouble, machines: list[Any]) -> None:
        names = [machine.name for machine in machines]
        self.net.separate(kind, names, trouble.lasts_s)
        self.record(FAULT, f"partition:{kind}")

    async def _partition(self, trouble: Trouble, machines: list[Any]) -> None:
        self.separate(trouble.kind, trouble, machines)
        await asyncio.sleep(trouble.lasts_s)
        self.net.heal()

    _one_way = _split = _flap = _clog = _partition

    async def _late_link(self, trouble: Trouble, machines: list[Any]) -> None:
        [machine] = machines
        await self.kill(machines)
        self.net.link(machine.name, up=False)
        self.record(FAULT, f"partition:{trouble.kind}")
        await self.restart(machines)
        await asyncio.sleep(trouble.lasts_s)
        self.net.link(machine.name, up=True)

    async def _clock(self, trouble: Trouble, machines: list[Any]) -> None:
        clock = machines[0].clock
        assert clock is not None
        if clock.library is None:
            self.undone.append("clock: no C compiler")
        self.record(FAULT, "clock:jump")
        clock.step(trouble.value)
        await asyncio.sleep(trouble.lasts_s)
        clock.step(0.0)
