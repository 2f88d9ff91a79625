"""What `roundelay chaos --api` does to the members of a group (`chaos_api.plan` lists it)."""

from __future__ import annotations

import asyncio
import shutil
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from roundelay.runs.chaos.harness import RunFailed, Strikes
from roundelay.runs.chaos.kinds import APPLICATION, MACHINE, Trouble
from roundelay.runs.chaos.network import NamespaceNet
from roundelay.runs.chaos_api import plan as plans
from roundelay.runs.chaos_api.machine import MemberMachine, free_ports
from roundelay.runs.chaos_api.notes import MEMBER, REPLACED, TWIN, NotesReader

if TYPE_CHECKING:
    from roundelay.runs.chaos_api.run import Round

HEALS_ITSELF_S: Final = 20.0
"""How long a member with a wrong disk may try before its operator gives it an empty one."""
SOME_S: Final = 20.0
TWIN_S: Final = 15.0
"""In that time the second of a name is told so."""


class MemberStrikes(Strikes):
    """The troubles of a round, besides what both commands do (`chaos.harness`)."""

    run: Round

    async def strike(self, trouble: Trouble) -> None:
        step = f" {trouble.value:+g} s" if trouble.value else ""
        scope = f" ({trouble.scope})" if trouble.scope != MACHINE else ""
        what = f"{trouble.kind} {', '.join(trouble.who)}{scope}{step}"
        self.run.say(f"{what} for {trouble.lasts_s:.1f} s")
        await super().strike(trouble)

    async def restart(self, machines: list[MemberMachine]) -> None:
        for machine in machines:
            await machine.start(self.run.since(machine))

    async def majority_returned(self, machines: list[MemberMachine], trouble: Trouble) -> None:
        begun = time.monotonic_ns()
        with suppress(RunFailed):
            await self.run.until(
                "some to go on", lambda: self.run.all_sent(machines, begun), SOME_S
            )
        everybody = len(trouble.who)
        self.run.say(f"{len(machines)} of {everybody} have returned: {machines[0].state}")

    async def _storm(self, trouble: Trouble, machines: list[MemberMachine]) -> None:
        self.run.net.set_weather({"loss": 0.3})
        await asyncio.sleep(trouble.lasts_s)
        self.run.net.set_weather({"loss": self.run.plan.weather["loss"]})

    async def _twin(self, trouble: Trouble, machines: list[MemberMachine]) -> None:
        """A second process of a name: it must not get in, and must not do harm."""
        [original] = machines
        twin = self._another(original, 1000 + len(self.run.others), TWIN)
        if self.run.setup.disks and self.run.rng.random() < 0.5:
            twin.disk = original.disk
        await twin.start(tries=1)
        with suppress(RunFailed):
            await self.run.until("the twin to end", lambda: not twin.runs(APPLICATION), TWIN_S)
        await twin.kill()

    async def _replaced(self, trouble: Trouble, machines: list[MemberMachine]) -> None:
        """Stopped, replaced, woken: as an operator does who takes a machine for dead."""
        [old] = machines
        old.pause()
        since = self.run.since(old)
        new = self._another(old, old.life.number + 1, MEMBER)
        self.run.machines[old.name] = new
        old.role = old.life.role = REPLACED
        new.command = old.command
        await new.start(since)
        await asyncio.sleep(trouble.lasts_s)
        self.run.woken[f"{old.name}.{old.life.number}"] = time.monotonic_ns()
        errors = len(old.look().errors)
        old.wake()
        with suppress(RunFailed):
            await self.run.until(
                "the replaced one to be told", lambda: len(old.look().errors) > errors, TWIN_S
            )
        await old.kill()

    def _another(self, original: MemberMachine, number: int, role: str) -> MemberMachine:
        """A machine of that name beside the one there is."""
        name = original.name
        mode = plans.EMBEDDED if role == TWIN else original.mode
        another = self.run.machine(name, mode)
        another.role = role
        another.disk = self.run.folder / "disks" / f"{name}-{number}"
        another.address = dict(original.address)
        another.command_prefix = original.command_prefix
        if self.run.setup.medium == plans.FANOUT:
            another.address["listen"] = self._elsewhere(a_seed=role == MEMBER)
        another.lives = [NotesReader(self.run.folder / "none", number - 1, role)]
        self.run.others.append(original if role == MEMBER else another)
        return another

    def _elsewhere(self, a_seed: bool) -> str:
        """An address that nobody had, for one whom those that start later are to find there: in the
        end nobody may be where it was in the beginning."""
        listen = f"127.0.0.1:{free_ports(1)[0]}"
        for machine in self.run.machines.values() if a_seed else ():
            machine.address["seeds"] += f",{listen}"
        return listen

    async def _old_folder(self, trouble: Trouble, machines: list[MemberMachine]) -> None:
        """As from a backup: what was promised since then is forgotten."""
        [machine] = machines
        copy = self.run.folder / "disks" / f"{machine.name}-copy"
        await machine.kill()
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(machine.disk, copy)
        await self.restart(machines)
        await self.run.recovered("before an old folder")
        await asyncio.sleep(trouble.lasts_s)
        await machine.kill()
        machine.wipe()
        shutil.copytree(copy, machine.disk, dirs_exist_ok=True)
        begun = time.monotonic_ns()
        await self.restart(machines)
        with suppress(RunFailed):
            went_on = partial(self.run.confirmed, machine, begun)
            await self.run.until("a member with an old folder", went_on, HEALS_ITSELF_S)
            return
        state = machine.state
        self.run.say(
            f"{machine.name} did not go on with its old folder ({state}): it gets an empty one"
        )
        await machine.kill()
        machine.wipe()
        await self.restart(machines)

    async def _power_cut(self, trouble: Trouble, machines: list[MemberMachine]) -> None:
        """As `all`, or a kill, but what was not synced is lost."""
        disks = [machine.power_disk for machine in machines if machine.power_disk is not None]
        if not disks:
            self.run.undone.append(f"{trouble.kind}: no disks that can be cut off here")
        for machine in machines:  # the disks first: nothing may be written meanwhile
            machine.pause()
        for disk in disks:
            disk.cut()
        await self.kill(machines)
        await asyncio.sleep(trouble.lasts_s)
        for disk in disks:
            disk.restore()
        await self.restart(machines)

    _blackout = _power_cut

    async def _address(self, trouble: Trouble, machines: list[MemberMachine]) -> None:
        if isinstance(self.run.net, NamespaceNet):
            self.run.net.move(trouble.who[0])
        await asyncio.sleep(trouble.lasts_s)

    async def _moved(self, trouble: Trouble, machines: list[MemberMachine]) -> None:
        [machine] = machines
        await machine.kill()
        machine.address["listen"] = self._elsewhere(a_seed=True)
        await asyncio.sleep(trouble.lasts_s)
        await self.restart(machines)
