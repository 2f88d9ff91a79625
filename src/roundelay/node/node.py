"""A node: one process on the medium, its groups, its applications.

Everything happens in one event loop.  A node is made of parts: `traffic.receiver` takes datagrams
apart and hands them over, `driver.schedule` lets the engines that were touched act and keeps the
one timer, `traffic.transmitter` sends, `traffic.control_channel` says who this node is and hears
who the others are, `group_faults` keeps the groups apart, `recording.recorders` looks after what is
recorded.  Here are the beginning and the end, the table of groups, and what applications call
(`node_api`).
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from random import Random
from typing import Any, Final

from msgspec import structs

import roundelay
from roundelay.core.autorm.config import MTU_MIN
from roundelay.core.engine import SECOND
from roundelay.core.errors import ConfigError, RoundelayError, UsageError
from roundelay.core.position import LIVE, Since
from roundelay.durable import FileLock, when_forked
from roundelay.journal.format import Run
from roundelay.node.autorm import AutoRm
from roundelay.node.driver.schedule import Schedule
from roundelay.node.event_log import EventLog
from roundelay.node.group_faults import FailedGroup, Faults
from roundelay.node.group_host import GroupHost
from roundelay.node.groups import GroupSpec, check_name, family_of, plain_spec
from roundelay.node.medium.drop_advice import DropCounter
from roundelay.node.medium.interfaces import UDP_OVERHEAD
from roundelay.node.medium.media import Medium
from roundelay.node.medium.probe import choose
from roundelay.node.medium.watch import MediumWatch
from roundelay.node.membership import settings
from roundelay.node.membership.directory import Directory
from roundelay.node.membership.group import GroupMembership
from roundelay.node.membership.identity import Identity, made_up_name
from roundelay.node.node_api import Send, Subscriber, View
from roundelay.node.node_config import NodeConfig
from roundelay.node.process import of_the_parent
from roundelay.node.recording.recorders import Recorders
from roundelay.node.roles.group import RoleGroup
from roundelay.node.storage import folders
from roundelay.node.traffic.control_channel import ControlChannel
from roundelay.node.traffic.receiver import Receiver
from roundelay.node.traffic.transmitter import Transmitter
from roundelay.wire import beamon
from roundelay.wire.control import Control
from roundelay.wire.frontend_replay import ReplayRequest
from roundelay.wire.seal import BOOT_ID, Seal
from roundelay.wire.switch_header import hint_of

TICK_NS: Final = SECOND // 4
"""How often callers' patience, names and rosters are looked at."""
LEAVE_S: Final = 10.0
BLOCKED_S: Final = 2.5
"""How long to wait for the others when leaving, and in groups that do not work."""
GROUPS_MAX: Final = 256


class Node:
    """See the module.  `await start()` first, `await stop()` at the end."""

    medium: Medium
    transmitter: Transmitter
    receiver: Receiver
    control: ControlChannel
    autorm: AutoRm
    watch: MediumWatch

    def __init__(self, config: NodeConfig) -> None:
        config.check()
        self.config = config
        self.name = config.name or made_up_name(config.dir)
        self.log = EventLog(self.name, config.log_level)
        self.identity = Identity(self.name, given=bool(config.name or config.dir))
        self.uuid = self.identity.uuid
        self.lock: FileLock | None = None
        self.rng = Random(os.urandom(16))
        self.why_medium = ""
        self.directory = Directory()
        dropped = DropCounter(self.log, lambda: self.directory.by_name.keys() <= {self.name})
        self.drops, self.drop = dropped.by_reason, dropped.count
        self.group_hosts: dict[str, GroupHost] = {}
        self.specs = {spec.name: spec for spec in config.groups}
        self.schedule = Schedule(self)
        self.wake = self.schedule.wake
        self.recorders = Recorders(self)
        self.faults = Faults(self)
        self.started = 0.0
        self._tick_due = 0
        self._frontends: list[Any] = []  # those who have something to say in `status`
        self.fatal: BaseException | None = None
        self.on_fatal: Callable[[BaseException], None] | None = None

    # -- life ------------------------------------------------------------------------------

    async def start(self) -> None:
        """Take part in the medium, once it is certain that the folder and the name are ours."""
        if self.config.dir is not None and self.lock is None:
            self.lock = folders.take(self.config.dir)
        self.medium, self.why_medium = await choose(self.config.choice)
        seal = self.make_seal()
        self.transmitter = Transmitter(self.medium, seal, self.directory)
        self.receiver = Receiver(self, seal)
        self.control = ControlChannel(self)
        self.watch = MediumWatch(self.medium, self.log, self._medium_moved)
        now = time.monotonic_ns()
        # On a network of small datagrams its packets are cut into fragments, as others are.
        mtu = min(self.config.autorm.mtu, max(MTU_MIN, self.transmitter.room + UDP_OVERHEAD))
        autorm_config = structs.replace(self.config.autorm, mtu=mtu)
        self.autorm = AutoRm(self.uuid, autorm_config, self.rng, now, self.directory)
        self.autorm.tracer = self.config.tracer
        self.autorm.fault = self.faults.fail_group
        self.directory.hear(self.control.info(), self.transmitter.address, now)
        self.medium.lend = seal is not None
        self.started = time.monotonic()
        self.schedule.start()
        self.attach(self.medium)
        when_forked(self, Node.disown)
        await self.identity.claim(self.control.claim)
        self.log("info", "node.ready", medium=self.medium.describe(), why=self.why_medium)
        await self.recorders.start(self.config.records)
        for spec in self.config.groups:
            if not spec.family.own_packets:
                with suppress(RoundelayError):  # it is in the group's place, and in the log
                    self.group_host(spec.name)
        self.control.say_who(time.monotonic_ns())
        self.wake()

    def attach(self, medium: Medium) -> None:
        """What arrives there is for us."""
        medium.start(self.receiver.receive, self.schedule.drained)

    async def stop(self, patience_s: float = LEAVE_S) -> None:
        """Leave every group, as far as the others still hear us, and close."""
        if not self.schedule.running:
            self._close("the node has stopped")
            await self.recorders.stop()
            return
        started = time.monotonic()
        for host in list(self.group_hosts.values()):
            self.faults.guard(host, host.leave, time.monotonic_ns())
        self.wake()
        while leaving := [host for host in self.group_hosts.values() if host.leaving]:
            # Where nothing moves there is nobody to take leave of.
            hope = any(host.works() for host in leaving)
            if time.monotonic() - started > (patience_s if hope else min(patience_s, BLOCKED_S)):
                break
            await asyncio.sleep(0.02)
        self.autorm.beamon.farewell(time.monotonic_ns())
        self.wake()
        self.schedule.drained()
        self._close("the node stops")
        await self.recorders.stop()

    def _close(self, reason: str) -> None:
        """Harmless when repeated, or when the start failed."""
        self.schedule.stop()
        for host in list(self.group_hosts.values()):
            self.faults.guard(host, host.close, reason)
        if hasattr(self, "medium"):
            self.medium.close()
        if self.lock is not None:
            self.lock.close()
            self.lock = None

    def disown(self) -> None:
        """In a forked child: sockets, name and files are its parent's; nothing is done here."""
        self.fatal = of_the_parent()
        self.schedule.running = False

    def fail(self, error: BaseException) -> None:
        """Stop rather than go on wrongly."""
        self.fatal = error
        self.schedule.stop()
        self.medium.stop()
        self.log("error", "node.stopped", reason=f"{type(error).__name__}: {error}")
        for host in self.group_hosts.values():
            host.fail(str(error))
        if self.on_fatal is not None:
            self.on_fatal(error)

    # -- work beside the engines (`Schedule`) --------------------------------------------------

    def carry_out(self, now: int) -> None:
        """Heartbeats and messages of AutoRM."""
        for packet in self.autorm.carry_out(now):
            data = beamon.encode(packet)
            self.transmitter.send_autorm(data, hint_of(data))
            if data[0] == beamon.HEARTBEAT:
                self.control.say_who(now)

    def next_due(self) -> int:
        """When `on_timer` is due at the latest."""
        due = min(self._tick_due, self.control.info_due, self.autorm.deadline)
        for host in self.group_hosts.values():
            due = min(due, host.deadline)
        return due

    def on_timer(self, now: int) -> None:
        if self.autorm.beamon.deadline <= now:
            self.autorm.beamon.on_timer(now)
        for host in list(self.group_hosts.values()):
            if host.deadline <= now:
                self.faults.guard(host, host.on_timer, now)
        if self.control.info_due <= now:
            self.control.say_who(now)
        if self._tick_due <= now:
            self._tick(now)

    def _tick(self, now: int) -> None:
        """Rarely: callers who wait, nodes that are gone."""
        self._tick_due = now + (TICK_NS if self._waited_for() else 4 * TICK_NS)
        self.faults.guard_aside("medium", self.watch.look, now)
        for host in list(self.group_hosts.values()):
            self.faults.guard(host, host.on_tick, now)
        self.faults.guard_aside("recorders", self.recorders.on_tick, now)
        for known in list(self.directory.by_uuid.values()):
            if known.uuid != self.uuid and now - known.seen > 60 * SECOND:
                self.directory.forget(known)
        if self.control.acquaintances is not None:
            self.control.acquaintances.on_tick(now)

    def _medium_moved(self) -> None:
        """We have another address: everybody is told at once."""
        self.transmitter.measure()
        self.control.say_who(time.monotonic_ns())
        self.recorders.moved()

    def _waited_for(self) -> bool:
        if self.recorders.durability.waiting or self.recorders.syncing.waiting:
            return True
        return any(host.outbox or host.outbox.underway for host in self.group_hosts.values())

    def alive(self, name: str) -> bool:
        """Whether the node of that name is heard of."""
        if name == self.name:
            return True
        known = self.directory.by_name.get(name)
        return known is not None and known.uuid in self.autorm.beamon.environment.nodes

    def say_soon(self, now: int) -> None:
        """Something about us has changed that others wait for."""
        self.control.say_soon(now)

    def send_control(self, word: Control) -> None:
        self.transmitter.send_control(word)

    # -- groups ----------------------------------------------------------------------------

    def group_host(self, group: str, wishes: GroupSpec | None = None) -> GroupHost:
        """The group of that name, entered if need be; `wishes`: with these settings, or not."""
        host = self.group_hosts.get(group)
        if host is None or isinstance(host, FailedGroup):
            if host is None and not self.faults.make_room(GROUPS_MAX):
                raise UsageError(f"{GROUPS_MAX} groups are hosted here: leave one first")
            spec = self.specs.get(group) or plain_spec(group)
            if wishes is not None:
                spec = settings.spec_for(spec, wishes)
            host = self.faults.open(RoleGroup if spec.family.has_roles else GroupMembership, spec)
            self.say_soon(time.monotonic_ns())
        elif wishes is not None:
            host.agree(wishes)
        return host

    def joined(self, group: str) -> bool:
        """Whether the group works here, as far as an application can be in it."""
        return not isinstance(self.group_hosts.get(group), FailedGroup)

    def closed_group(self, host: GroupHost) -> None:
        del self.group_hosts[host.spec.name]
        if self.schedule.running:
            self.say_soon(time.monotonic_ns())

    # -- applications (NodeApi) --------------------------------------------------------

    def join(
        self,
        application: Subscriber,
        group: str,
        since: Since = LIVE,
        wishes: GroupSpec | None = None,
    ) -> None:
        check_name(group)
        with self.faults.joining(group):
            if family_of(group).own_packets:
                self._join_autorm(application, group, since)
            else:
                before = self.group_hosts.get(group)
                host = self.group_host(group, wishes)
                try:
                    host.join(application, since)
                    if wishes is not None and isinstance(host, GroupMembership):
                        host.agreement.petition(id(application), wishes)
                except RoundelayError:
                    now = time.monotonic_ns()
                    host.part(application, now)
                    if host is not before and group not in self.specs:
                        host.leave(now)  # it was opened for one who is not in it
                    raise
        self.wake()

    def _join_autorm(self, application: Subscriber, group: str, since: Since) -> None:
        replays = self.recorders.replays
        if since != LIVE:
            replays.check_since(group, since.seq)
        self.group_hosts.pop(group, None)  # if it has failed, that is over
        self.autorm.join(application, group, time.monotonic_ns())
        if since != LIVE:
            joined = self.autorm.applications[group]
            replays.catch_up(joined, group, application, since)

    def fell_behind(self, application: Subscriber, group: str, since: int) -> bool:
        host = self.group_hosts.get(group)
        slots = {} if host is None else host.applications
        return self.recorders.replays.fell_behind(slots, group, application, since)

    def hold(self, group: str, stop: bool) -> None:
        """Nothing is on its way to a program that has this node to itself."""

    def replay(
        self, group: str, request: ReplayRequest, reached: list[int] | None = None
    ) -> AsyncGenerator[list[Run], None]:
        check_name(group)
        return self.recorders.replays.replay(group, request, reached)

    def make_seal(self) -> Seal | None:
        """For the medium, or for a connection to another node or from one."""
        secret = self.config.secret
        return None if secret is None else Seal(secret, os.urandom(BOOT_ID))

    def leave(self, application: Subscriber, group: str) -> None:
        if family_of(group).own_packets:
            self.autorm.leave(application, group, time.monotonic_ns())
        elif (host := self.group_hosts.get(group)) is not None:
            self.faults.guard(host, host.part, application, time.monotonic_ns())
        self.wake()

    def gone(self, application: Subscriber) -> None:
        now = time.monotonic_ns()
        self.autorm.gone(application, now)
        for host in list(self.group_hosts.values()):
            self.faults.guard(host, host.part, application, now)
            host.outbox.forget(application)
        self.wake()

    def send(self, application: Subscriber, send: Send) -> None:
        group = send.group
        if not self.schedule.running:
            raise UsageError("the node has stopped" + (f": {self.fatal}" if self.fatal else ""))
        if not send.bundle.sizes:
            raise UsageError("nothing to send: a bundle of no messages")
        if (send.unit or send.recorders) and family_of(group).has_roles:
            self.group_host(group).send(application, send)
            return
        if send.unit:
            check_name(group)
            raise UsageError(
                f"group {group} has no units: take a group of the service journal or wide"
            )
        if send.someone and not family_of(group).own_packets:
            raise UsageError(
                f"group {group} has no messages to someone: take one of the service fifo, whose "
                "name has no prefix"
            )
        hosted = self.group_hosts.get(group)
        if send.recorders:
            application = self.recorders.awaited(application, group, send.recorders)
            send = structs.replace(send, recorders=0)
        if hosted is not None:  # its name was looked at when it was entered
            hosted.send(application, send)
            return
        check_name(group)
        if family_of(group).own_packets:
            if send.to is not None:
                raise ConfigError("to", "…", f"no destinations in group {group}: use spo:{group}")
            self.autorm.send(application, send, time.monotonic_ns())
            self.wake()
        else:
            self.group_host(group).send(application, send)

    def members(self, group: str) -> dict[str, object]:
        if family_of(group).own_packets:
            view = self.autorm.view(group)
            # Who is dead is not in this view, so that the rows of all services read the same.
            return view.as_json(
                [{"name": name, "alive": True, "in_view": True} for name in view.members]
            )
        host = self.group_hosts.get(group)
        if host is None:
            return View(group, "0", (), "not joined here").as_json([])
        return host.members()

    def recover(self, group: str, *, do: bool = True) -> dict[str, object]:
        host = self.group_hosts.get(group)
        if not isinstance(host, GroupMembership):
            raise UsageError(f"group {group} is none that can be recovered here: see `groups`")
        return host.recovery.recover(time.monotonic_ns()) if do else host.recovery.plan()

    def recorded(self, group: str) -> list[dict[str, object]]:
        return self.recorders.listed(group)

    def groups(self) -> list[dict[str, object]]:
        directory, beamon = self.directory, self.autorm.beamon
        members: defaultdict[str, dict[str, None]] = defaultdict(dict)
        for known in directory.by_name.values():
            for group in known.groups.values():
                members[group.name][known.name] = None
        declared = {uuid: other.groups for uuid, other in beamon.environment.nodes.items()}
        for uuid, names in (declared | {self.uuid: beamon.groups}).items():
            for name in names:
                members[name][directory.name_of(uuid)] = None
        specs = {name: plain_spec(name) for name in sorted(members)}
        return [
            {
                "group": name,
                "service": spec.service,
                "protocol": spec.protocol,
                "members": list(members[name]),
            }
            for name, spec in specs.items()
        ]

    def status(self) -> dict[str, object]:
        return {
            "node": self.name,
            "uuid": self.uuid.hex(),
            "version": roundelay.__version__,
            "pid": os.getpid(),
            "uptime_s": round(time.monotonic() - self.started, 3),
            "medium": self.medium.describe(),
            "medium_state": self.watch.state,
            "why_medium": self.why_medium,
            "address": "{}:{}".format(*self.transmitter.address),
            "datagram_bytes": self.medium.mtu,
            "sealed": self.transmitter.seal is not None,
            "traffic": dict(self.medium.counts),
            "dropped": self.drops | self.receiver.reassembly.drops | self.autorm.beamon.drops,
            "autorm": self.autorm.beamon.status(),
            "groups": [host.status() for host in self.group_hosts.values()],
            "recorders": self.recorders.status(),
            "frontends": [frontend.status() for frontend in self._frontends],
        }

    def why(self, node: str) -> dict[str, object]:
        known = self.directory.by_name.get(node)
        uuid = known.uuid if known else _uuid_of(node)
        if uuid is None:
            reason = "nothing was ever heard of a node of this name"
            return {"node": node, "uuid": None, "verdict": "unknown", "reason": reason}
        verdict: dict[str, object] = self.autorm.beamon.why(uuid, time.monotonic_ns())
        return {"node": node, "uuid": uuid.hex()} | verdict | {"node": self.directory.name_of(uuid)}

    def add_frontend(self, frontend: Any) -> None:
        self._frontends.append(frontend)


def _uuid_of(text: str) -> bytes | None:
    try:
        uuid = bytes.fromhex(text.replace("-", ""))
    except ValueError:
        return None
    return uuid if len(uuid) == 16 else None
