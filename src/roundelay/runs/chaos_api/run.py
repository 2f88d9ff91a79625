"""`roundelay chaos --api`: programs that know the public API only, real processes, real trouble.

A round is one group (`chaos_api.plan`).  Each member is a process that runs a program as a user
would write it (`chaos_api.application`), with its node inside or through a daemon (`roundelay
node`); every datagram crosses the seeded switch.  While all of them broadcast, one trouble after
the other strikes, some two at once.  After each, everybody must have a new broadcast confirmed
within a stated time.  In the end everything is healed, each application sends a last message, and
when all have all of those the notes of the applications are judged (`chaos_api.judge`).  The
harness itself knows those notes, too, and nothing else of the group.

The seed decides group, troubles and the fate of every datagram, not the scheduling of processes:
the same seed is the same weather and not the same run.
"""

from __future__ import annotations

import asyncio
import json
import math
import secrets
import shutil
import time
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random
from tempfile import mkdtemp
from typing import Any, Final

import msgspec

from roundelay.core.families import TOTAL
from roundelay.runs.chaos import kinds
from roundelay.runs.chaos.clock import WallClock, build
from roundelay.runs.chaos.disks import PowerDisk
from roundelay.runs.chaos.disks import available as disks_available
from roundelay.runs.chaos.harness import HARNESS_LOG, Harness, RunFailed
from roundelay.runs.chaos.kinds import APPLICATION, MACHINE, Trouble
from roundelay.runs.chaos.network import NAMESPACES, SWITCH, NamespaceNet, network
from roundelay.runs.chaos.network import available as namespaces_available
from roundelay.runs.chaos_api import plan as plans
from roundelay.runs.chaos_api.judge import Case, Judgement, judge
from roundelay.runs.chaos_api.machine import MeetingPoint, MemberMachine, free_ports
from roundelay.runs.chaos_api.notes import MEMBER, REPLACED, TWIN, Life
from roundelay.runs.chaos_api.plan import ApiParams, RoundPlan, plan_of
from roundelay.runs.folder import RunFolder

LEAVE_S: Final = 20.0
FORM_S: Final = 40.0
HEALS_ITSELF_S: Final = 20.0
"""How long a member with a wrong disk may try before its operator gives it an empty one."""
SOME_S: Final = 20.0
TWIN_S: Final = 15.0
"""In that time the second of a name is told so."""
SILENT: Final = "silent"
LIVE_AGAIN: Final = 0.15
"""Share of restarts in which an application does not ask for what it missed."""


class Round(Harness):
    """One group and its troubles, in `folder`."""

    def __init__(
        self, params: ApiParams, plan: RoundPlan, folder: Path, tell: Callable[[str], None]
    ) -> None:
        self.spaces = plan.setup.medium == NAMESPACES and namespaces_available()
        super().__init__(folder, network(NAMESPACES if self.spaces else SWITCH, plan.seed), tell)
        self.params = params
        self.plan = plan
        self.setup = plan.setup
        self.rng = Random(f"chaos --api/{plan.seed}/lives")
        self.others: list[MemberMachine] = []
        """Twins, and members that were replaced."""
        self.away: dict[str, list[tuple[int, int]]] = {}
        self.woken: dict[str, int] = {}
        """When lives that were replaced went on."""

    async def run(self) -> dict[str, Any]:
        self.place = self._make_place()
        await self.net.start(self.setup.names)
        hang = ""
        try:
            await self._play()
        except RunFailed as error:
            hang = str(error)
            self.say(f"hang: {hang}")
            await self._finish()
        finally:
            await self._end(self._everybody())
            for machine in self._everybody():
                if machine.power_disk is not None:
                    machine.power_disk.close()
            await self.net.close()
            shutil.rmtree(self.place.sockets, ignore_errors=True)
        return self._verdict(hang)

    def _make_place(self) -> MeetingPoint:
        key = self.folder / "key"
        key.write_text(secrets.token_hex(32) + "\n")
        key.chmod(0o600)
        roles = None
        if self.setup.roles:
            roles = self.folder / "roles.toml"
            roles.write_text(self.setup.roles)
        (self.folder / "disks").mkdir()
        self.clock_library = build(self.folder)
        return MeetingPoint(self.folder, Path(mkdtemp(prefix="rl-")), key, roles)

    # -- the play ------------------------------------------------------------------------------

    async def _play(self) -> None:
        setup = self.setup
        if not self.spaces:
            self.net.set_weather(self.plan.weather)
            if setup.medium == NAMESPACES:
                self.undone.append("namespaces: none can be made here")
        ports = free_ports(len(setup.names))
        seeds = ",".join(f"127.0.0.1:{port}" for port in ports)
        for name, mode, port in zip(setup.names, setup.modes, ports, strict=True):
            machine = self.machine(name, plans.EMBEDDED if name in setup.silent else mode)
            if setup.medium == plans.FANOUT:
                machine.address = {"listen": f"127.0.0.1:{port}", "seeds": seeds}
            elif self.net.via is None:
                machine.address = {"interface": self.net.interface}
            else:
                machine.address = {"via": "{}:{}".format(*self.net.via)}
            machine.command_prefix = self.net.prefix(name)
            machine.command = ""
            self.machines[name] = machine
            if setup.disks and self.plan.has(plans.POWER_CUT, plans.BLACKOUT) and disks_available():
                machine.power_disk = PowerDisk(machine.disk)
        for machine in self.machines.values():
            await machine.start()
        await self.until("the group to form", self._all_open, FORM_S)
        self.say(
            f"{setup.service}, {len(setup.names)} members ({', '.join(setup.modes)}), "
            f"{'fixed' if setup.fixed else 'discovered'}, L = {setup.resilience}, "
            f"{setup.recorders} recorders, {setup.durability}, "
            f"loss {self.plan.weather['loss']:.0%}, {setup.medium}"
        )
        self._tell("go")
        await asyncio.sleep(1.0)
        for place in self.plan.troubles:
            begun = time.monotonic_ns()
            await asyncio.gather(*[self.strike(trouble) for trouble in place])
            self.net.heal()
            await self.recovered("after " + " and ".join(trouble.kind for trouble in place))
            self._note_away(place, begun)
            await asyncio.sleep(self.rng.uniform(0.3, 1.5))
        self.net.clear()
        self.say("no more faults")
        await self._finish()

    def _note_away(self, place: tuple[Trouble, ...], begun: int) -> None:
        """Whom others may have given up meanwhile."""
        for trouble in place:
            cut = trouble.kind in (kinds.PARTITION, kinds.FLAP)
            for name in self.setup.names if cut else trouble.who:
                self.away.setdefault(name, []).append((begun, time.monotonic_ns()))

    async def _finish(self) -> None:
        """Everybody has a last message confirmed, and is given those of all others."""
        self.net.clear()
        await self._end(self.others)
        self._tell("settle")
        with suppress(RunFailed):  # the judge sees it, too
            await self.until("the last messages", self._settled, self.params.patience_s)
        machines = list(self.machines.values())
        await asyncio.gather(*[machine.end(LEAVE_S) for machine in machines])

    async def _end(self, machines: list[MemberMachine]) -> None:
        for machine in machines:
            machine.wake()
            await machine.kill()

    def machine(self, name: str, mode: str) -> MemberMachine:
        clocks = self.folder / "clocks"
        clocks.mkdir(exist_ok=True)
        clock = WallClock(self.clock_library, clocks / f"{name}.{len(self.others)}")
        return MemberMachine(name, mode, self.setup, self.place, clock)

    def since(self, machine: MemberMachine) -> tuple[str, int] | None:
        """Where a new life goes on: where the old one was, unless it does not care."""
        life = machine.look()
        if self.setup.family.order != TOTAL or self.rng.random() < LIVE_AGAIN:
            return None
        return life.position

    # -- troubles (`chaos_api.plan` lists them) ------------------------------------------------

    async def strike(self, trouble: Trouble) -> None:
        step = f" {trouble.value:+g} s" if trouble.value else ""
        scope = f" ({trouble.scope})" if trouble.scope != MACHINE else ""
        what = f"{trouble.kind} {', '.join(trouble.who)}{scope}{step}"
        self.say(f"{what} for {trouble.lasts_s:.1f} s")
        await super().strike(trouble)

    async def restart(self, machines: list[MemberMachine]) -> None:
        for machine in machines:
            await machine.start(self.since(machine))

    async def majority_returned(self, machines: list[MemberMachine], trouble: Trouble) -> None:
        begun = time.monotonic_ns()
        with suppress(RunFailed):
            await self.until("some to go on", lambda: self.all_sent(machines, begun), SOME_S)
        everybody = len(trouble.who)
        self.say(f"{len(machines)} of {everybody} have returned: {machines[0].state}")

    async def _storm(self, trouble: Trouble, machines: list[MemberMachine]) -> None:
        self.net.set_weather({"loss": 0.3})
        await asyncio.sleep(trouble.lasts_s)
        self.net.set_weather({"loss": self.plan.weather["loss"]})

    async def _twin(self, trouble: Trouble, machines: list[MemberMachine]) -> None:
        """A second process of a name: it must not get in, and must not do harm."""
        [original] = machines
        twin = self._another(original, 1000 + len(self.others), TWIN)
        if self.setup.disks and self.rng.random() < 0.5:
            twin.disk = original.disk
        await twin.start(tries=1)
        with suppress(RunFailed):
            await self.until("the twin to end", lambda: not twin.runs(APPLICATION), TWIN_S)
        await twin.kill()

    async def _replaced(self, trouble: Trouble, machines: list[MemberMachine]) -> None:
        """Stopped, replaced, woken: as an operator does who takes a machine for dead."""
        [old] = machines
        old.pause()
        since = self.since(old)
        new = self._another(old, old.life.number + 1, MEMBER)
        self.machines[old.name] = new
        old.role = old.life.role = REPLACED
        new.command = old.command
        await new.start(since)
        await asyncio.sleep(trouble.lasts_s)
        self.woken[f"{old.name}.{old.life.number}"] = time.monotonic_ns()
        errors = len(old.look().errors)
        old.wake()
        with suppress(RunFailed):
            await self.until(
                "the replaced one to be told", lambda: len(old.look().errors) > errors, TWIN_S
            )
        await old.kill()

    def _another(self, original: MemberMachine, number: int, role: str) -> MemberMachine:
        """A machine of that name beside the one there is."""
        name = original.name
        mode = plans.EMBEDDED if role == TWIN else original.mode
        another = self.machine(name, mode)
        another.role = role
        another.disk = self.folder / "disks" / f"{name}-{number}"
        another.address = dict(original.address)
        another.command_prefix = original.command_prefix
        if self.setup.medium == plans.FANOUT:
            another.address["listen"] = self._elsewhere(a_seed=role == MEMBER)
        another.lives = [Life("?", number - 1, role)]
        self.others.append(original if role == MEMBER else another)
        return another

    def _elsewhere(self, a_seed: bool) -> str:
        """An address that nobody had, for one whom those that start later are to find there: in the
        end nobody may be where it was in the beginning."""
        listen = f"127.0.0.1:{free_ports(1)[0]}"
        for machine in self.machines.values() if a_seed else ():
            machine.address["seeds"] += f",{listen}"
        return listen

    async def _old_folder(self, trouble: Trouble, machines: list[MemberMachine]) -> None:
        """As from a backup: what was promised since then is forgotten."""
        [machine] = machines
        copy = self.folder / "disks" / f"{machine.name}-copy"
        await machine.kill()
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(machine.disk, copy)
        await self.restart(machines)
        await self.recovered("before an old folder")
        await asyncio.sleep(trouble.lasts_s)
        await machine.kill()
        machine.wipe()
        shutil.copytree(copy, machine.disk, dirs_exist_ok=True)
        begun = time.monotonic_ns()
        await self.restart(machines)
        with suppress(RunFailed):
            went_on = partial(self.confirmed, machine, begun)
            await self.until("a member with an old folder", went_on, HEALS_ITSELF_S)
            return
        state = machine.state
        self.say(
            f"{machine.name} did not go on with its old folder ({state}): it gets an empty one"
        )
        await machine.kill()
        machine.wipe()
        await self.restart(machines)

    async def _power_cut(self, trouble: Trouble, machines: list[MemberMachine]) -> None:
        """As `all`, or a kill, but what was not synced is lost."""
        disks = [machine.power_disk for machine in machines if machine.power_disk is not None]
        if not disks:
            self.undone.append(f"{trouble.kind}: no disks that can be cut off here")
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
        if isinstance(self.net, NamespaceNet):
            self.net.move(trouble.who[0])
        await asyncio.sleep(trouble.lasts_s)

    async def _moved(self, trouble: Trouble, machines: list[MemberMachine]) -> None:
        [machine] = machines
        await machine.kill()
        machine.address["listen"] = self._elsewhere(a_seed=True)
        await asyncio.sleep(trouble.lasts_s)
        await self.restart(machines)

    # -- what is waited for --------------------------------------------------------------------

    async def recovered(self, when: str) -> None:
        begun = time.monotonic_ns()
        machines = list(self.machines.values())
        for machine in machines:  # a process that ended by itself is started again, as by init
            await machine.start(self.since(machine))
        await self.until(
            f"everybody to send again {when}",
            lambda: self.all_sent(machines, begun),
            self.params.patience_s,
        )
        took = (time.monotonic_ns() - begun) / 1e9
        if took > 5:
            self.say(f"everybody sends again after {took:.1f} s")

    def confirmed(self, machine: MemberMachine, since: int) -> bool:
        return machine.silent or machine.look().confirmed_sent > since

    def all_sent(self, machines: list[MemberMachine], since: int) -> bool:
        return all(self.confirmed(machine, since) for machine in machines)

    def _all_open(self) -> bool:
        names = set(self.setup.names) - set(self.setup.silent)
        return all(
            machine.silent or names <= set(machine.look().open_with)
            for machine in self.machines.values()
        )

    def _settled(self) -> bool:
        lives = [machine.look() for machine in self.machines.values() if not machine.silent]
        lasts = {life.settled for life in lives}
        return "" not in lasts and all(
            lasts <= {given.ident for given in life.given} for life in lives
        )

    # -- what is left behind -------------------------------------------------------------------

    def _everybody(self) -> list[MemberMachine]:
        return [*self.machines.values(), *self.others]

    def _tell(self, word: str) -> None:
        for machine in self.machines.values():
            machine.order(word)

    def _case(self) -> Case:
        struck = {
            name for place in self.plan.troubles for trouble in place for name in trouble.who
            if trouble.kind in (kinds.WIPE, plans.REPLACED, plans.OLD_FOLDER, plans.POWER_CUT)
        }  # fmt: skip
        recorders = set(self.setup.names[: self.setup.recorders])
        recorders |= set(self.setup.keepers)
        killed: dict[str, list[int]] = {}
        for machine in self._everybody():
            killed.setdefault(machine.name, []).extend(machine.killed)
        return Case(
            service=self.setup.service, recorded=bool(recorders - struck), away=self.away,
            killed=killed, woken=self.woken, settle_s=self.params.patience_s,
        )  # fmt: skip

    def _verdict(self, hang: str) -> dict[str, Any]:
        lives = []
        for machine in self._everybody():
            for life in machine.lives:
                if life.path is not None and life.path.exists():
                    life.role = SILENT if machine.silent else life.role
                    lives.append(life.look())
        judgement = judge(self._case(), lives)
        if hang:
            judgement.find("hang", hang)
        return self._result(judgement, len(lives))

    def failed(self, error: Exception) -> dict[str, Any]:
        """The round, if the harness itself could not carry it out or judge it."""
        (self.folder / HARNESS_LOG).write_text("".join(traceback.format_exception(error)))
        judgement = Judgement()
        judgement.find("harness", f"{type(error).__name__}: {error}; see {HARNESS_LOG}")
        return self._result(judgement, sum(len(machine.lives) for machine in self._everybody()))

    def _result(self, judgement: Judgement, lives: int) -> dict[str, Any]:
        return {
            "verdict": "broken" if judgement.findings else "kept",
            "seed": self.plan.seed,
            "service": self.setup.service,
            "lives": lives,
            **msgspec.to_builtins(judgement),
            "seconds": round(self.seconds(), 1),
            "troubles": dict(self.struck),
            "undone": self.undone,
            "story": self.story,
            "rerun": self.params.rerun(self.plan.seed, self.setup.service),
        }


# -- many rounds -----------------------------------------------------------------------------


def one_round(
    params: ApiParams, seed: int, folder: Path, tell: Callable[[str], None] = lambda text: None
) -> dict[str, Any]:
    """The round of that seed in `folder`, which keeps plan, notes and verdict."""
    plan = plan_of(params, seed)
    folder.mkdir(parents=True)
    (folder / "plan.json").write_bytes(msgspec.json.format(msgspec.json.encode(plan)) + b"\n")
    round_ = Round(params, plan, folder, tell)
    try:
        results = asyncio.run(round_.run())
    except Exception as error:  # this round has failed; the next ones say whether it always does
        results = round_.failed(error)
    (folder / "verdict.json").write_text(json.dumps(results, indent=1) + "\n")
    return results


def chaos_api(
    params: ApiParams, folder: RunFolder, tell: Callable[[str], None] = lambda text: None
) -> dict[str, Any]:
    """Rounds until the time is over; what was kept leaves no notes behind."""
    params.check()
    folder.write_params("chaos --api", msgspec.to_builtins(params))
    started = time.monotonic()
    rounds: list[dict[str, Any]] = []
    while len(rounds) < (params.rounds or math.inf):
        passed = time.monotonic() - started
        if not params.rounds and rounds and passed >= params.minutes * 60:
            break
        seed = params.seed + len(rounds)
        place = folder.path / f"round-{seed}"
        shutil.rmtree(place, ignore_errors=True)
        result = one_round(params, seed, place, tell)
        if result["verdict"] == "kept":
            shutil.rmtree(place)
        else:
            result["folder"] = str(place)
            for finding in result["findings"]:
                tell(finding)
            tell(f"again: {result['rerun']}")
        rounds.append(result)
    bad = [result for result in rounds if result["verdict"] != "kept"]
    counted = ("lives", "given", "sent", "confirmed", "doubtful", "denied", "missing_told")
    sums = {name: sum(result[name] for result in rounds) for name in counted}
    troubles = sum((Counter(result["troubles"]) for result in rounds), Counter())
    results = {
        "verdict": "broken" if bad else "kept",
        "rounds": len(rounds),
        "bad": len(bad),
        **sums,
        "troubles": dict(sorted(troubles.items())),
        "slowest_s": max((result["slowest_s"] for result in rounds), default=0.0),
        "seconds": round(time.monotonic() - started, 1),
        "results": rounds,
    }
    folder.write_results(results)
    return results
