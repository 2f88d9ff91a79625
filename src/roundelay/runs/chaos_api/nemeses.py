"""What `roundelay chaos --api` does to the members of a group (`chaos_api.plan` lists it)."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections import Counter
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from roundelay.runs.chaos import kinds
from roundelay.runs.chaos_api import plan as plans
from roundelay.runs.chaos_api.machine import Hang, Machine, free_ports
from roundelay.runs.chaos_api.notes import MEMBER, REPLACED, TWIN, NotesReader
from roundelay.runs.chaos_api.plan import Trouble

if TYPE_CHECKING:
    from roundelay.runs.chaos_api.run import Round

HEALS_ITSELF_S: Final = 20.0
"""How long a member with a wrong disk may try before its operator gives it an empty one."""
SOME_S: Final = 20.0
TWIN_S: Final = 15.0
"""In that time the second of a name is told so."""


class Strikes:
    """The troubles of a round."""

    def __init__(self, one: Round) -> None:
        self.round = one
        self.struck: Counter[str] = Counter()

    async def strike(self, trouble: Trouble) -> None:
        self.round.say(_told(trouble))
        self.struck[trouble.kind] += 1
        machines = [self.round.machines[name] for name in trouble.who]
        await getattr(self, f"_{trouble.kind.replace('-', '_')}")(trouble, machines)

    async def _restart(self, machines: list[Machine]) -> None:
        for machine in machines:
            await machine.start(self.round.since(machine))

    async def _kill_all(self, machines: list[Machine]) -> None:
        await asyncio.gather(*[machine.kill() for machine in machines])

    async def _kill(self, trouble: Trouble, machines: list[Machine]) -> None:
        [machine] = machines
        wiped = trouble.kind == kinds.WIPE
        await machine.kill(plans.MACHINE if wiped else trouble.scope)
        if wiped:
            machine.wipe()
        await asyncio.sleep(trouble.lasts_s)
        await self._restart(machines)

    _wipe = _kill

    async def _pause(self, trouble: Trouble, machines: list[Machine]) -> None:
        [machine] = machines
        machine.pause(trouble.scope)
        await asyncio.sleep(trouble.lasts_s)
        machine.wake(trouble.scope)

    async def _partition(self, trouble: Trouble, machines: list[Machine]) -> None:
        rest = [name for name in self.round.setup.names if name not in trouble.who]
        for rule in kinds.rules(trouble.kind, list(trouble.who), rest, trouble.lasts_s):
            self.round.switch.apply(rule)
            if self.round.spaces is not None:
                self.round.spaces.trouble(rule)
        await asyncio.sleep(trouble.lasts_s)
        self.round.heal()

    _one_way = _split = _flap = _clog = _partition

    async def _storm(self, trouble: Trouble, machines: list[Machine]) -> None:
        self.round.switch.apply({"loss": 0.3})
        await asyncio.sleep(trouble.lasts_s)
        self.round.switch.apply({"loss": self.round.plan.weather["loss"]})

    async def _twin(self, trouble: Trouble, machines: list[Machine]) -> None:
        """A second process of a name: it must not get in, and must not do harm."""
        [original] = machines
        twin = self._another(original, 1000 + len(self.round.others), TWIN)
        if self.round.setup.disks and self.round.rng.random() < 0.5:
            twin.disk = original.disk
        await twin.start(tries=1)
        with suppress(Hang):
            await self.round.until("the twin to end", lambda: _ended(twin), TWIN_S)
        await twin.kill()

    async def _replaced(self, trouble: Trouble, machines: list[Machine]) -> None:
        """Stopped, replaced, woken: as an operator does who takes a machine for dead."""
        [old] = machines
        old.pause()
        since = self.round.since(old)
        new = self._another(old, old.life.number + 1, MEMBER)
        self.round.machines[old.name] = new
        old.role = old.life.role = REPLACED
        new.word = old.word
        await new.start(since)
        await asyncio.sleep(trouble.lasts_s)
        self.round.woken[f"{old.name}.{old.life.number}"] = time.monotonic_ns()
        errors = len(old.look().errors)
        old.wake()
        with suppress(Hang):
            await self.round.until(
                "the replaced one to be told", lambda: len(old.look().errors) > errors, TWIN_S
            )
        await old.kill()

    def _another(self, original: Machine, number: int, role: str) -> Machine:
        """A machine of that name beside the one there is."""
        name = original.name
        mode = plans.EMBEDDED if role == TWIN else original.mode
        another = self.round.machine(name, mode)
        another.role = role
        another.disk = self.round.folder / "disks" / f"{name}-{number}"
        another.address = dict(original.address)
        another.prefix_words = original.prefix_words
        if self.round.setup.medium == plans.FANOUT:
            another.address["listen"] = self._elsewhere(a_seed=role == MEMBER)
        another.lives = [NotesReader(self.round.folder / "none", number - 1, role)]
        self.round.others.append(original if role == MEMBER else another)
        return another

    def _elsewhere(self, a_seed: bool) -> str:
        """An address that nobody had, for one whom those that start later are to find there: in the
        end nobody may be where it was in the beginning."""
        listen = f"127.0.0.1:{free_ports(1)[0]}"
        for machine in self.round.machines.values() if a_seed else ():
            machine.address["seeds"] += f",{listen}"
        return listen

    async def _clock(self, trouble: Trouble, machines: list[Machine]) -> None:
        [machine] = machines
        if machine.clock.library is None:
            self.round.undone.append("clock: no C compiler")
        machine.clock.step(trouble.value)
        await asyncio.sleep(trouble.lasts_s)
        machine.clock.step(0.0)

    async def _late_link(self, trouble: Trouble, machines: list[Machine]) -> None:
        [machine] = machines
        await machine.kill()
        rest = [name for name in self.round.setup.names if name != machine.name]
        self.round.switch.apply({"partition": [[machine.name], rest]})
        if self.round.spaces is not None:
            self.round.spaces.link(machine.name, up=False)
        await self._restart(machines)
        await asyncio.sleep(trouble.lasts_s)
        self.round.heal()
        if self.round.spaces is not None:
            self.round.spaces.link(machine.name, up=True)

    async def _old_folder(self, trouble: Trouble, machines: list[Machine]) -> None:
        """As from a backup: what was promised since then is forgotten."""
        [machine] = machines
        copy = self.round.folder / "disks" / f"{machine.name}-copy"
        await machine.kill()
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(machine.disk, copy)
        await self._restart(machines)
        await self.round.recovered("before an old folder")
        await asyncio.sleep(trouble.lasts_s)
        await machine.kill()
        machine.wipe()
        shutil.copytree(copy, machine.disk, dirs_exist_ok=True)
        begun = time.monotonic_ns()
        await self._restart(machines)
        with suppress(Hang):
            went_on = partial(self.round.confirmed, machine, begun)
            await self.round.until("a member with an old folder", went_on, HEALS_ITSELF_S)
            return
        state = machine.life.state
        self.round.say(
            f"{machine.name} did not go on with its old folder ({state}): it gets an empty one"
        )
        await machine.kill()
        machine.wipe()
        await self._restart(machines)

    async def _all(self, trouble: Trouble, machines: list[Machine]) -> None:
        await self._kill_all(machines)
        await asyncio.sleep(trouble.lasts_s)
        await self._restart(machines)

    async def _power_cut(self, trouble: Trouble, machines: list[Machine]) -> None:
        """As `all`, or a kill, but what was not synced is lost."""
        disks = [machine.power_disk for machine in machines if machine.power_disk is not None]
        if not disks:
            self.round.undone.append(f"{trouble.kind}: no disks that can be cut off here")
        for machine in machines:  # the disks first: nothing may be written meanwhile
            machine.pause()
        for disk in disks:
            disk.cut()
        await self._kill_all(machines)
        await asyncio.sleep(trouble.lasts_s)
        for disk in disks:
            disk.restore()
        await self._restart(machines)

    _blackout = _power_cut

    async def _some(self, trouble: Trouble, machines: list[Machine]) -> None:
        await self._kill_all(machines)
        await asyncio.sleep(trouble.lasts_s)
        most = len(machines) // 2 + 1
        begun = time.monotonic_ns()
        returned = machines[:most]
        await self._restart(returned)
        with suppress(Hang):
            await self.round.until(
                "some to go on", lambda: self.round.all_sent(returned, begun), SOME_S
            )
        state = machines[0].life.state
        self.round.say(f"{most} of {len(machines)} have returned: {state}")
        await self._restart(machines[most:])

    async def _address(self, trouble: Trouble, machines: list[Machine]) -> None:
        if self.round.spaces is not None:
            self.round.spaces.move(trouble.who[0])
        await asyncio.sleep(trouble.lasts_s)

    async def _moved(self, trouble: Trouble, machines: list[Machine]) -> None:
        [machine] = machines
        await machine.kill()
        machine.address["listen"] = self._elsewhere(a_seed=True)
        await asyncio.sleep(trouble.lasts_s)
        await self._restart(machines)


def _ended(machine: Machine) -> bool:
    return machine.application is not None and machine.application.returncode is not None


def _told(trouble: Trouble) -> str:
    more = f" {trouble.value:+g} s" if trouble.value else ""
    scope = f" ({trouble.scope})" if trouble.scope != plans.MACHINE else ""
    return f"{trouble.kind} {', '.join(trouble.who)}{scope}{more} for {trouble.lasts_s:.1f} s"
