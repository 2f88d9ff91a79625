"""A node: one process on the medium, its groups, its applications.

Everything happens in one event loop.  Datagrams come in batches; each is opened, decoded and
handed to the group it belongs to, and at the end of the batch every group that was touched carries
out what its engine wants.  One timer is armed at a time, for the earliest deadline of all engines.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import sys
import time
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import suppress
from random import Random
from typing import Any, Final

from msgspec import structs

import roundelay
from roundelay.core.autorm.config import MTU_MIN
from roundelay.core.bundle import Bundle
from roundelay.core.engine import NEVER, SECOND
from roundelay.core.errors import ConfigError, RoundelayError, UsageError
from roundelay.journal.format import Run
from roundelay.node import answers, forking, settings
from roundelay.node.acquaintance import Acquaintances
from roundelay.node.assembly import Assembly
from roundelay.node.autorm import AutoRm
from roundelay.node.directory import Directory
from roundelay.node.faults import FailedGroup, Faults
from roundelay.node.folder import Folder
from roundelay.node.groups import (
    AUTORM,
    CONFIGURED,
    GRSB,
    WIDE,
    GroupSpec,
    check_name,
    plain_spec,
    protocol_of,
)
from roundelay.node.grsb import GrsbSeat
from roundelay.node.hosted import NEAR_NS
from roundelay.node.identity import Identity
from roundelay.node.interfaces import LARGEST_DATAGRAM, UDP_OVERHEAD
from roundelay.node.lines import Line
from roundelay.node.made_up import made_up_name
from roundelay.node.media import Address, FanoutMedium, Medium
from roundelay.node.medium_watch import MediumWatch
from roundelay.node.node_config import LEVELS, NodeConfig
from roundelay.node.places import Driven, Place
from roundelay.node.probe import choose
from roundelay.node.recorders import Recorders
from roundelay.node.switchboard import NO_TAG, Application
from roundelay.node.traffic import Traffic
from roundelay.node.wide import WideSeat
from roundelay.wire import beamon, fragments, info, seal
from roundelay.wire.frontend_replay import Wish
from roundelay.wire.switching import hint_of

TICK_NS: Final = SECOND // 4
"""How often callers' patience, names and rosters are looked at."""
LEAVE_S: Final = 10.0
BLOCKED_S: Final = 2.5
"""How long to wait for the others when leaving, and in groups that do not work."""
PLACES: Final[dict[str, Any]] = {GRSB: GrsbSeat, WIDE: WideSeat}
"""What a group is hosted as; others: an `Assembly`."""
GROUPS_MAX: Final = 256


class Node(Traffic):
    """See the module.  `await start()` first, `await stop()` at the end."""

    def __init__(self, config: NodeConfig) -> None:
        config.check()
        self.config = config
        self.name = config.name or made_up_name(config.dir)
        self.identity = Identity(self.name, given=bool(config.name or config.dir))
        self.uuid = self.identity.uuid
        self.folder = Folder(config.dir)
        self.acquaintances: Acquaintances | None = None
        self.rng = Random(os.urandom(16))
        self.medium: Medium
        self.why_medium = ""
        self.drops: dict[str, int] = {}
        self.stand_ins: dict[str, Line] = {}
        self.second_lines: dict[str, Line] = {}
        self.directory = Directory()
        self.reassembly = fragments.Reassembly()
        self.hosted: dict[int, Driven] = {}
        """Every engine of a group, by the id that its datagrams carry."""
        self.assemblies: dict[str, Place] = {}
        self.specs = {spec.name: spec for spec in config.groups}
        self.recorders = Recorders(self)
        self.faults = Faults(self)
        self.started = 0.0
        self._seal: seal.Seal | None = None
        self._ident = secrets.randbits(32)
        self._touched: dict[int, Driven] = {}
        self._armed = NEVER
        self._handle: asyncio.TimerHandle | None = None
        self._soon = False
        self._beside = True  # something but groups' engines may have something to do
        self._tick_due = 0
        self._info_due = 0
        self._running = False
        self._frontends: list[Any] = []  # those who have something to say in `status`
        self.fatal: BaseException | None = None
        self.on_fatal: Callable[[BaseException], None] | None = None

    # -- life ------------------------------------------------------------------------------

    async def start(self) -> None:
        """Take part in the medium, once it is certain that the folder and the name are ours."""
        self.folder.take()
        self.medium, self.why_medium = await choose(self.config.choice)
        if self.config.secret is not None:
            self._seal = seal.Seal(self.config.secret, os.urandom(seal.BOOT_ID))
        overhead = seal.OVERHEAD if self._seal else 0
        self._room = min(self.medium.mtu, LARGEST_DATAGRAM) - overhead
        self.watch = MediumWatch(self.medium, self.log, self._medium_moved)
        now = time.monotonic_ns()
        # On a network of small datagrams its packets are cut into fragments, as others are.
        mtu = min(self.config.autorm.mtu, max(MTU_MIN, self._room + UDP_OVERHEAD))
        settings = structs.replace(self.config.autorm, mtu=mtu)
        self.autorm = AutoRm(self.uuid, settings, self.rng, now, self.directory)
        self.autorm.tracer = self.config.tracer
        self.autorm.fault = self.faults.group
        self.directory.hear(self._info(), self._address, now)
        self.medium.lend = self._seal is not None
        self._running = True
        self.started = time.monotonic()
        self._loop = asyncio.get_running_loop()
        if isinstance(self.medium, FanoutMedium):
            self.acquaintances = Acquaintances(
                self.medium, lambda address, knock: self.send_to(address, info.encode(knock))
            )
        self.medium.start(self._datagram, self._drained)
        forking.watch(self)
        await self.identity.claim(lambda: self.send_everyone(info.encode(self._info())))
        self.log("info", "node.ready", medium=self.medium.describe(), why=self.why_medium)
        await self.recorders.start(self.config.records)
        for spec in self.config.groups:
            if spec.protocol != AUTORM:
                self.faults.begin(spec.name)
        self._say_who(time.monotonic_ns())
        self.wake()

    async def stop(self, patience_s: float = LEAVE_S) -> None:
        """Leave every group, as far as the others still hear us, and close."""
        if not self._running:
            self._close("the node has stopped")
            await self.recorders.stop()
            return
        started = time.monotonic()
        for assembly in list(self.assemblies.values()):
            self.faults.within(assembly, assembly.leave, time.monotonic_ns())
        self.wake()
        while leaving := [one for one in self.assemblies.values() if one.leaving]:
            # Where nothing moves there is nobody to take leave of.
            hope = any(assembly.works() for assembly in leaving)
            if time.monotonic() - started > (patience_s if hope else min(patience_s, BLOCKED_S)):
                break
            await asyncio.sleep(0.02)
        self.autorm.beamon.farewell(time.monotonic_ns())
        self._beside = True
        self._drained()
        self._close("the node stops")
        await self.recorders.stop()

    def _close(self, reason: str) -> None:
        """Harmless when repeated, or when the start failed."""
        self._running = False
        if self._handle is not None:
            self._handle.cancel()
        for assembly in list(self.assemblies.values()):
            self.faults.within(assembly, assembly.close, reason)
        if hasattr(self, "medium"):
            self.medium.close()
        self.folder.release()

    # -- work ------------------------------------------------------------------------------

    def _drained(self) -> None:
        """A batch is through: everybody does what there is to do, then sleep until the next."""
        if not self._running:
            return
        try:
            now = time.monotonic_ns()
            due = NEVER
            touched = self._touched
            while touched:
                self._touched = {}
                for hosted in touched.values():
                    try:
                        hosted.flush(now)
                        if hosted.deadline < due:
                            due = hosted.deadline
                    except Exception as error:  # of that group: it stops rather than go on wrongly
                        self.faults.group(hosted.spec.name, error)
                touched = self._touched
            if self._beside:
                self._beside = False
                self._do_beside(now)
                due = now
            if due < self._armed or self._armed < now + NEAR_NS:
                self._rearm()
        except Exception as error:  # nobody else's: stop rather than go on wrongly
            self._fail(error)

    def _do_beside(self, now: int) -> None:
        """What is not the engines' of groups: heartbeats and messages of AutoRM."""
        for packet in self.autorm.carry_out(now):
            data = beamon.encode(packet)
            self.say_everyone(data, hint_of(data))
            if data[0] == 1:
                self._say_who(now)

    def disown(self, why: BaseException) -> None:
        """In a forked child: the node is another process's; nothing is sent or done here."""
        self.fatal = why
        self._running = False

    def _fail(self, error: BaseException) -> None:
        self.fatal = error
        self._running = False
        self.medium.stop()
        self.log("error", "node.stopped", reason=f"{type(error).__name__}: {error}")
        for assembly in self.assemblies.values():
            assembly.fail(str(error))
        if self.on_fatal is not None:
            self.on_fatal(error)

    def wake(self, hosted: Driven | None = None) -> None:
        """Something is to be done: in this turn of the loop, but once."""
        if hosted is not None:
            self._touched[hosted.id] = hosted
        else:
            self._beside = True
        if not self._soon and self._running:
            self._soon = True
            self._loop.call_soon(self._woken)

    def _woken(self) -> None:
        self._soon = False
        self._drained()

    def _rearm(self) -> None:
        """One timer, for whatever is due first."""
        due = self._first_due()
        if due != self._armed:
            self._arm(due, move=True)

    def _first_due(self) -> int:
        due = min(self._tick_due, self._info_due, self.autorm.deadline)
        for hosted in self.hosted.values():
            due = min(due, hosted.deadline)
        for assembly in self.assemblies.values():
            due = min(due, assembly.deadline)
        return due

    def _arm(self, due: int, move: bool = False) -> None:
        if due >= self._armed and not move:
            return
        if self._handle is not None:
            self._handle.cancel()
        self._armed = due
        wait = max(0, due - time.monotonic_ns())
        self._handle = self._loop.call_later(wait / SECOND, self._timer)

    def _timer(self) -> None:
        self._armed = NEVER
        self._handle = None
        if not self._running:
            return
        try:
            now = time.monotonic_ns()
            due = self._first_due()
            if due > now:  # what it was for has been settled meanwhile, or the loop is early
                self._arm(due)
                return
            self._beside = True
            for hosted in list(self.hosted.values()):
                if hosted.deadline <= now:
                    self._touched[hosted.id] = hosted
                    self.faults.within(hosted, hosted.on_timer, now)
            if self.autorm.beamon.deadline <= now:
                self.autorm.beamon.on_timer(now)
            for assembly in list(self.assemblies.values()):
                if assembly.deadline <= now:
                    self.faults.within(assembly, assembly.on_timer, now)
            if self._info_due <= now:
                self._say_who(now)
            if self._tick_due <= now:
                self._tick(now)
        except Exception as error:
            self._fail(error)
            return
        self._drained()

    def _tick(self, now: int) -> None:
        """Rarely: callers who wait, nodes that are gone."""
        self._tick_due = now + (TICK_NS if self._waited_for() else 4 * TICK_NS)
        self.faults.aside("medium", self.watch.look, now)
        for assembly in list(self.assemblies.values()):
            self.faults.within(assembly, self._expire, assembly, now)
            line = getattr(assembly, "line", None)
            if line is not None and line.watch is not None:
                self.faults.aside("line B", line.watch.look, now)
        self.faults.aside("recorders", self.recorders.on_tick, now)
        for known in list(self.directory.by_uuid.values()):
            if known.uuid != self.uuid and now - known.seen > 60 * SECOND:
                self.directory.forget(known)
        if self.acquaintances is not None:
            self.acquaintances.on_tick(now)

    def _medium_moved(self) -> None:
        """We have another address: everybody is told at once."""
        overhead = seal.OVERHEAD if self._seal else 0
        self._room = min(self.medium.mtu, LARGEST_DATAGRAM) - overhead
        self._say_who(time.monotonic_ns())
        self.recorders.moved()

    def _expire(self, assembly: Place, now: int) -> None:
        assembly.outbox.expire(now, assembly.trouble())

    def _waited_for(self) -> bool:
        if self.recorders.durability.waiting or self.recorders.syncing.waiting:
            return True
        return any(one.outbox or one.outbox.underway for one in self.assemblies.values())

    def alive(self, name: str) -> bool:
        """Whether the node of that name is heard of."""
        if name == self.name:
            return True
        known = self.directory.by_name.get(name)
        return known is not None and known.uuid in self.autorm.beamon.environment.nodes

    # -- who we are ------------------------------------------------------------------------

    def _info(self) -> info.Info:
        said = (assembly.info() for assembly in self.assemblies.values())
        groups = tuple(group for group in said if group is not None)
        peers: tuple[Address, ...] = ()
        if isinstance(self.medium, FanoutMedium):
            peers = tuple(self.medium.peers)[:64]
        life = self.identity
        if life.fresh:
            life.look(any(one.delivered for one in self.hosted.values()))
        return info.Info(
            self.name, self.uuid, self._address, groups, peers, roundelay.__version__,
            life.birth, life.claims, life.fresh,
        )  # fmt: skip

    def _say_who(self, now: int) -> None:
        """INFO goes with every heartbeat, and soon after somebody new was heard."""
        self._info_due = NEVER
        self.directory.hear(self._info(), self._address, now)
        self.tell_everyone(info.encode(self._info()))
        self.faults.aside("recorders", self.recorders.say, now)

    def say_soon(self, now: int) -> None:
        """Something about us has changed that others wait for."""
        self._info_due = min(self._info_due, now + self.rng.randrange(SECOND // 100))
        self._arm(self._info_due)

    # -- groups ----------------------------------------------------------------------------

    def assembly(self, group: str, wishes: GroupSpec | None = None) -> Place:
        """The group of that name, entered if need be; `wishes`: with these settings, or not."""
        found = self.assemblies.get(group)
        if found is None or isinstance(found, FailedGroup):
            if found is None and not self.faults.room(GROUPS_MAX):
                raise UsageError(f"{GROUPS_MAX} groups are hosted here: leave one first")
            spec = self.specs.get(group) or plain_spec(group)
            if wishes is not None:
                spec = settings.wanted(spec, wishes)
            found = self.faults.open(PLACES.get(spec.protocol, Assembly), spec)
            self.say_soon(time.monotonic_ns())
        elif wishes is not None:
            settings.agree(found, wishes)
        return found

    def joined(self, group: str) -> bool:
        """Whether the group works here, as far as an application can be in it."""
        return not isinstance(self.assemblies.get(group), FailedGroup)

    def closed_group(self, assembly: Place) -> None:
        del self.assemblies[assembly.spec.name]
        if self._running:
            self.say_soon(time.monotonic_ns())

    def send_control(self, word: info.Control) -> None:
        self.tell_everyone(info.encode(word))

    def register(self, hosted: Driven) -> None:
        clash = self.hosted.get(hosted.id)
        if clash is not None and clash is not hosted:
            raise UsageError(
                f"groups {clash.spec.name} and {hosted.spec.name} have the same id on the wire: "
                "rename one"
            )
        self.hosted[hosted.id] = hosted
        self.wake(hosted)

    def unregister(self, hosted: Driven) -> None:
        if self.hosted.get(hosted.id) is hosted:
            del self.hosted[hosted.id]
        self._touched.pop(hosted.id, None)

    # -- applications (Switchboard) --------------------------------------------------------

    def join(
        self,
        application: Application,
        group: str,
        since: int | None = None,
        since_time: int = 0,
        history: str = "",
        wishes: GroupSpec | None = None,
    ) -> None:
        check_name(group)
        self.faults.entering(
            group, lambda: self._join(application, group, since, since_time, history, wishes)
        )
        self.wake()

    def _join(
        self, application: Application, group: str, since: int | None, since_time: int,
        history: str, wishes: GroupSpec | None,
    ) -> None:  # fmt: skip
        if protocol_of(group) == AUTORM:
            if since is not None:
                self.recorders.replays.check_since(group, since)
            self.assemblies.pop(group, None)  # if it has failed, that is over
            self.autorm.join(application, group, time.monotonic_ns())
            if since is not None:
                joined = self.autorm.applications[group]
                self.recorders.replays.catch_up(joined, application, group, since, since_time)
        else:
            here = self.assemblies.get(group)
            place = self.assembly(group, wishes)
            try:
                place.join(application, since, since_time, history)
                if wishes is not None and isinstance(place, Assembly):
                    place.petition(application, wishes)
            except RoundelayError:
                now = time.monotonic_ns()
                place.part(application, now)
                if place is not here and group not in self.specs:
                    place.leave(now)  # it was opened for one who is not in it
                raise

    def fell_behind(self, application: Application, group: str, since: int) -> bool:
        """The application could not keep what comes at position `since`.  True: it gets that, and
        what follows, from a recorder as fast as it reads; False: nobody records the group."""
        found = getattr(self.assemblies.get(group), "fell_behind", None)
        return found is not None and bool(found(application, since))

    def replay(
        self, group: str, wish: Wish, reached: list[int] | None = None
    ) -> AsyncGenerator[list[Run], None]:
        """What is recorded of a group and wished for, in order (`node.replaying`); how far that
        goes is appended to `reached`.

        A group whose place here has a `replay(wish)` of its own is asked itself."""
        check_name(group)
        own = getattr(self.assemblies.get(group), "replay", None)
        found: AsyncGenerator[list[Run], None] = (
            self.recorders.replays.replay(group, wish, reached) if own is None else own(wish)
        )
        return found

    def make_seal(self) -> seal.Seal | None:
        """For a connection to another node, or from one."""
        secret = self.config.secret
        return None if secret is None else seal.Seal(secret, os.urandom(seal.BOOT_ID))

    def leave(self, application: Application, group: str) -> None:
        if protocol_of(group) == AUTORM:
            self.autorm.leave(application, group, time.monotonic_ns())
        elif (place := self.assemblies.get(group)) is not None:
            self.faults.within(place, place.part, application, time.monotonic_ns())
        self.wake()

    def gone(self, application: Application) -> None:
        now = time.monotonic_ns()
        self.autorm.gone(application, now)
        for assembly in list(self.assemblies.values()):
            self.faults.within(assembly, assembly.part, application, now)
            assembly.outbox.forget(application)
        self.wake()

    def send(
        self,
        application: Application,
        group: str,
        bundle: Bundle,
        *,
        tag: int = NO_TAG,
        to: Iterable[str] | None = None,
        someone: bool = False,
        recorders: int = 0,
        unit: bool = False,
    ) -> None:
        if not self._running:
            raise UsageError("the node has stopped" + (f": {self.fatal}" if self.fatal else ""))
        if not bundle.sizes:
            raise UsageError("nothing to send: a bundle of no messages")
        if unit:
            self._send_unit(application, group, bundle, tag, to, recorders)
            return
        if someone and protocol_of(group) != AUTORM:
            raise UsageError(
                f"group {group} has no messages to someone: take one of the service fifo, whose "
                "name has no prefix"
            )
        hosted = self.assemblies.get(group)
        if recorders:
            if protocol_of(group) in CONFIGURED:
                self.assembly(group).send(application, bundle, tag, to, recorders)
                return
            application = self.recorders.awaited(application, group, recorders)
        if hosted is not None:  # its name was looked at when it was entered
            hosted.send(application, bundle, tag, to)
            return
        check_name(group)
        if protocol_of(group) == AUTORM:
            if to is not None:
                raise ConfigError("to", "…", f"no destinations in group {group}: use spo:{group}")
            now = time.monotonic_ns()
            self.autorm.send(application, group, bundle, tag, someone, now)
            self.wake()
        else:
            self.assembly(group).send(application, bundle, tag, to)

    def _send_unit(
        self, application: Application, group: str, bundle: Bundle, tag: int,
        to: Iterable[str] | None, recorders: int,
    ) -> None:  # fmt: skip
        check_name(group)
        if protocol_of(group) not in CONFIGURED:
            raise UsageError(
                f"group {group} has no units: take a group of the service journal or wide"
            )
        place: Any = self.assembly(group)
        place.send(application, bundle, tag, to, recorders, unit=True)

    def members(self, group: str) -> dict[str, object]:
        return answers.members(self, group)

    def recover(self, group: str, *, do: bool = True) -> dict[str, object]:
        """Go on with a group from what the member here has (`node.recovery`); with `do` false, say
        what that would mean."""
        found = self.assemblies.get(group)
        if not isinstance(found, Assembly):
            raise UsageError(f"group {group} is none that can be recovered here: see `groups`")
        return found.recover(time.monotonic_ns()) if do else found.recovery()

    def groups(self) -> list[dict[str, object]]:
        return answers.groups(self)

    def status(self) -> dict[str, object]:
        now = time.monotonic_ns()
        return {
            "node": self.name,
            "uuid": self.uuid.hex(),
            "version": roundelay.__version__,
            "pid": os.getpid(),
            "uptime_s": round(time.monotonic() - self.started, 3),
            "medium": self.medium.describe(),
            "medium_state": self.watch.state,
            "why_medium": self.why_medium,
            "address": f"{self._address[0]}:{self._address[1]}",
            "datagram_bytes": self.medium.mtu,
            "sealed": self._seal is not None,
            "traffic": dict(self.medium.counts),
            "dropped": self.drops | self.reassembly.drops | self.autorm.beamon.drops,
            "autorm": self.autorm.beamon.status(now),
            "groups": [assembly.status() for assembly in self.assemblies.values()],
            "recorders": self.recorders.status(),
            "frontends": [one.status() for one in self._frontends],
        }

    def why(self, node: str) -> dict[str, object]:
        return answers.why(self, node)

    def add_frontend(self, frontend: Any) -> None:
        self._frontends.append(frontend)

    # -- logs ------------------------------------------------------------------------------

    def log(self, level: str, event: str, **fields: object) -> None:
        """One JSON object a line on standard error; quiet by default."""
        if LEVELS.index(level) < LEVELS.index(self.config.log_level):
            return
        line = {"time": round(time.time(), 6), "level": level, "event": event, "node": self.name}
        # Whoever reads it may be gone, and its disk full: a node does not stop for that.
        with suppress(OSError, ValueError):
            print(json.dumps(line | fields, default=str), file=sys.stderr, flush=True)
