"""The switch: a network in one process, whose faults come from a seed.

Every datagram of a node started with `--via` crosses it (framing: `roundelay.wire.switch_header`),
so loss, delay, partitions and the rest (`roundelay.faultnet.rules`) can be had on any machine, for
one receiver, for one kind of PDU, in one direction.

A node is a *port*, known by the name in its hello and the address the hello came from.  A hello
from a new address moves the name there: a node that was killed comes back on another port.  Who
has said nothing for `FORGOTTEN_AFTER_S` is forgotten.

The way of a datagram is short: read into one buffer, the sender's address written over its head,
sent from the same buffer to those it is for.  Only copies that a fault has delayed are kept, in a
queue with a bound.  Copies of one pair stay in order, unless `reorder`, `duplicate` or `replay` say
otherwise.

A second socket takes rules, one JSON object a line, and answers each with one line.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterable, Mapping
from contextlib import suppress
from heapq import heappop, heappush
from pathlib import Path
from time import monotonic, monotonic_ns
from typing import Any, Final

import msgspec

from roundelay.core.errors import ConfigError, RoundelayError
from roundelay.faultnet.rules import MS_MAX, SEEN, SEEN_B, Lane, Rules, SeenDatagram, good_name
from roundelay.node.medium.interfaces import parse_address
from roundelay.node.medium.media import enlarge
from roundelay.sim.network.links import Copy, damaged
from roundelay.wire.switch_header import (
    FORGOTTEN_AFTER_S,
    FROM_SWITCH,
    HELLO,
    KIND_NAMES,
    MAGIC,
    MULTICAST_B,
    OVERHEAD,
    TO_SWITCH,
    UNICAST,
    UNICAST_B,
    UNKNOWN,
    Address,
    forwarded,
    hint_of,
)

DRAIN: Final = 64
"""Datagrams read in one go before others get their turn."""

PORTS_MAX: Final = 128
NAMESAKES_MAX: Final = 8
"""Ports of one name: who has it, who was killed, and some that start at once and ask for it."""
HELD_MAX: Final = 65_536
"""Copies waiting for their time."""

HELD_BYTES_MAX: Final = 64 << 20
PLANNED_MAX: Final = 256
"""Rules waiting for their time (`after_s`)."""

BUFFER: Final = 65_536
CONTROL_LINE_MAX: Final = 65_536
CONTROL_CONNECTIONS_MAX: Final = 16

HEAD_SHIFT: Final = OVERHEAD - FROM_SWITCH.size
"""Where the head for the receiver begins when it is written over the one of the sender."""


class Port(msgspec.Struct):
    """A node, as the switch sees it."""

    name: str
    address: Address
    head_ip: bytes  # of its address, as heads have it
    heard: float
    received: int = 0  # datagrams from it
    sent: int = 0  # copies to it
    routes: list[tuple[Port, Lane]] = []  # to everyone else


class Switch:
    """A switch on a UDP socket of its own, in the running event loop.

    `listen` is HOST:PORT (port 0: any), `control` HOST:PORT or unix:PATH.  `rules` are applied at
    once, or `after_s` seconds after the start.

        switch = Switch(seed=7, rules=[{"loss": 0.05}])
        await switch.start()
        ...                                     # nodes join via switch.address
        switch.apply({"partition": [["a", "b"], ["c", "d", "e"]]})
        switch.apply({"heal": True})
        await switch.close()
    """

    def __init__(
        self,
        listen: str = "127.0.0.1:0",
        *,
        seed: int = 0,
        rules: Iterable[Mapping[str, Any]] = (),
        control: str | None = None,
    ) -> None:
        self.rules = Rules(seed)
        self.received = 0
        self.forwarded = 0
        self.drops: dict[str, int] = {}  # copies and datagrams that went no further, by reason
        self.kinds: dict[int, int] = {}  # datagrams by hint
        self.ports: dict[str, Port] = {}
        """By name; of two that have the same name, the one that came last."""
        self.address: Address = parse_address(listen, "listen")
        self.control: str | None = control
        self._by_address: dict[Address, Port] = {}
        self._first_rules = list(rules)
        self._started = monotonic_ns()
        self._ref = 0
        self._held: list[tuple[int, int, bytes, Port]] = []
        self._held_bytes = 0
        self._tick = 0
        self._armed: tuple[int, asyncio.TimerHandle] | None = None
        self._planned: dict[int, asyncio.TimerHandle] = {}
        self._sweeper: asyncio.TimerHandle | None = None
        self._server: asyncio.Server | None = None
        self._controllers: set[asyncio.Task[None]] = set()
        self._socket: socket.socket | None = None
        self._buffer = bytearray(BUFFER)
        self._view = memoryview(self._buffer)
        for rule in self._first_rules:  # complain before anything is udp
            self._timed(rule)
        if control == "unix:":
            raise ConfigError("control", control, "HOST:PORT, or unix:PATH")
        if control is not None and not control.startswith("unix:"):
            parse_address(control, "control")

    # -- life ------------------------------------------------------------------------------

    async def start(self) -> None:
        """Open the sockets.  Raises ConfigError with what to do if that is not possible."""
        self._loop = asyncio.get_running_loop()
        udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        udp.setblocking(False)
        try:
            udp.bind(self.address)
        except OSError as error:
            udp.close()
            raise _refused("listen", "{}:{}".format(*self.address), error) from None
        enlarge(udp)
        self._socket = udp
        self.address = udp.getsockname()
        self._started = monotonic_ns()
        try:
            if self.control is not None:
                await self._open_control(self.control)
            for rule in self._first_rules:
                self.apply(rule)
        except BaseException:
            await self.close()
            raise
        self._loop.add_reader(udp.fileno(), self._readable)
        self._sweep()

    async def close(self) -> None:
        """Close everything.  Copies that were held back are lost.  Harmless when repeated."""
        timers = [*self._planned.values(), self._sweeper, self._armed[1] if self._armed else None]
        for timer in timers:
            if timer is not None:
                timer.cancel()
        self._planned.clear()
        self._sweeper = self._armed = None
        if self._socket is not None:
            self._loop.remove_reader(self._socket.fileno())
            self._socket.close()
            self._socket = None
        self._held.clear()
        self._held_bytes = 0
        if self._server is not None:
            self._server.close()
            for task in list(self._controllers):
                task.cancel()
            await asyncio.gather(*self._controllers, return_exceptions=True)
            self._server = None
            if self.control is not None and self.control.startswith("unix:"):
                Path(self.control.removeprefix("unix:")).unlink(missing_ok=True)

    # -- rules -----------------------------------------------------------------------------

    def apply(self, rule: Mapping[str, Any]) -> None:
        """Put a rule in force, now or `after_s` seconds from now; ConfigError changes nothing."""
        if "after_s" not in rule:
            self.rules.apply(rule, self.now())
            return
        after_s, later = self._timed(rule)
        if self._socket is None:  # time has not begun
            self._first_rules.append(rule)
            return
        if len(self._planned) >= PLANNED_MAX:
            raise ConfigError("after_s", after_s, f"at most {PLANNED_MAX} rules that wait")
        key = self._tick = self._tick + 1
        self._planned[key] = self._loop.call_later(after_s, self._due, key, later)

    def _timed(self, rule: Mapping[str, Any]) -> tuple[float, dict[str, Any]]:
        """When a rule is due (s), and what it says then; ConfigError for a bad one."""
        later = dict(rule)
        after_s = later.pop("after_s", 0)
        if type(after_s) not in (int, float) or not 0 <= after_s <= MS_MAX:
            raise ConfigError("after_s", after_s, f"a number of seconds from 0 to {MS_MAX}")
        self.rules.check(later)
        return float(after_s), later

    def _due(self, key: int, rule: Mapping[str, Any]) -> None:
        del self._planned[key]
        try:
            self.rules.apply(rule, self.now())
        except ConfigError:  # too many rules by now
            self._drop("rule")

    def now(self) -> int:
        """ns since the switch started, the time of its rules."""
        return monotonic_ns() - self._started

    # -- datagrams -------------------------------------------------------------------------

    def _readable(self) -> None:
        assert self._socket is not None
        receive = self._socket.recvfrom_into
        buffer = self._buffer
        for _ in range(DRAIN):
            try:
                size, address = receive(buffer)
            except BlockingIOError:
                break
            except OSError:  # an error of some earlier send comes back here on some systems
                self._drop("receive error")
                continue
            self.received += 1
            self._take(size, address)

    def _take(self, size: int, address: Address) -> None:
        """A datagram of `size` bytes is in the buffer."""
        if size < OVERHEAD:
            return self._drop("short")
        magic, kind, to_ip, to_port, proto, pdu_type = TO_SWITCH.unpack_from(self._buffer)
        if magic != MAGIC or kind > UNICAST_B:
            return self._drop("head")
        if kind == HELLO:
            return self._hello(bytes(self._view[OVERHEAD:size]), address)
        sender = self._by_address.get(address)
        if sender is None:
            return self._drop("not registered")
        sender.heard = monotonic()
        sender.received += 1
        hint = proto << 8 | pdu_type
        if not proto:
            hint = hint_of(bytes(self._view[OVERHEAD : min(size, OVERHEAD + 4)]))
        if hint not in KIND_NAMES:
            hint = UNKNOWN
        self.kinds[hint] = self.kinds.get(hint, 0) + 1
        routes = sender.routes
        if kind in (UNICAST, UNICAST_B):
            receiver = self._by_address.get((socket.inet_ntoa(to_ip), to_port))
            if receiver is None or receiver is sender:
                return self._drop("unknown destination")
            routes = [route for route in routes if route[0] is receiver]
        FROM_SWITCH.pack_into(
            self._buffer, HEAD_SHIFT, MAGIC, kind, sender.head_ip, sender.address[1]
        )
        out = self._view[HEAD_SHIFT:size]
        seen = (SEEN_B if kind in (MULTICAST_B, UNICAST_B) else SEEN)[hint]
        self._ref += 1
        episodes = self.rules.episodes
        for receiver, lane in routes:
            if lane.carry is None and not episodes and not lane.last_due:
                self._send(out, receiver)
            else:
                self._carry(out, receiver, lane, seen)

    def _carry(self, out: memoryview, receiver: Port, lane: Lane, seen: SeenDatagram) -> None:
        """One copy, past all that can happen to it."""
        now = self.now()
        if 0 < lane.last_due <= now:
            self._release()  # those before it go first, however late the timer is
        wait = 0
        for episode in self.rules.episodes:
            fate = episode.carry(now, lane.src, lane.dst, seen, self._ref)
            if isinstance(fate, str):
                return self._drop(fate)
            if fate is not None:
                wait = max(wait, fate[0].delay)  # clogged
        copies: Iterable[Copy] = (PASSED,)
        if lane.carry is not None:
            fate = lane.carry(now, lane.src, lane.dst, seen, self._ref)
            if isinstance(fate, str):
                return self._drop(fate)
            copies = fate or copies
        for copy in copies:
            data: bytes | memoryview = out
            if copy.damage:
                head = bytes(out[: FROM_SWITCH.size])
                data = head + damaged(bytes(out[FROM_SWITCH.size :]), copy.damage)
            due = now + wait + copy.delay
            if not copy.again:
                if lane.last_due > due:
                    due = lane.last_due  # behind those before it
                lane.last_due = due if due > now else 0
            if due > now:
                self._hold(due, bytes(data), receiver)
            else:
                self._send(data, receiver)

    def _send(self, data: bytes | memoryview, receiver: Port) -> None:
        assert self._socket is not None
        try:
            self._socket.sendto(data, receiver.address)
        except BlockingIOError:
            return self._drop("send buffer")
        except OSError:
            return self._drop("send error")
        self.forwarded += 1
        receiver.sent += 1

    def _drop(self, reason: str) -> None:
        self.drops[reason] = self.drops.get(reason, 0) + 1

    # -- copies that wait ------------------------------------------------------------------

    def _hold(self, due: int, data: bytes, receiver: Port) -> None:
        if len(self._held) >= HELD_MAX or self._held_bytes + len(data) > HELD_BYTES_MAX:
            return self._drop("queue full")
        self._held_bytes += len(data)
        self._tick += 1
        heappush(self._held, (due, self._tick, data, receiver))
        self._arm()

    def _arm(self) -> None:
        """One timer, for the copy that is due first."""
        if not self._held:
            return
        due = self._held[0][0]
        if self._armed is not None:
            if self._armed[0] <= due:
                return
            self._armed[1].cancel()
        delay_s = max(0, due - self.now()) / 1e9
        self._armed = (due, self._loop.call_later(delay_s, self._release))

    def _release(self) -> None:
        if self._armed is not None:
            self._armed[1].cancel()
            self._armed = None
        now = self.now()
        held = self._held
        while held and held[0][0] <= now:
            _, _, data, receiver = heappop(held)
            self._held_bytes -= len(data)
            self._send(data, receiver)
        self._arm()

    # -- ports -----------------------------------------------------------------------------

    def _hello(self, raw: bytes, address: Address) -> None:
        try:
            name = raw.decode()
        except UnicodeDecodeError:
            return self._drop("name")
        if not good_name(name):
            return self._drop("name")
        port = self._by_address.get(address)
        if port is None or port.name != name:
            if port is not None:
                self._remove(port)
            self._part_from_older(name)
            if len(self._by_address) >= PORTS_MAX:
                return self._drop("too many ports")
            port = Port(name, address, socket.inet_aton(address[0]), monotonic())
            self.ports[name] = self._by_address[address] = port
            self._route()
        port.heard = monotonic()
        assert self._socket is not None
        with suppress(OSError):
            self._socket.sendto(forwarded(HELLO, address), address)

    def _part_from_older(self, name: str) -> None:
        """Another port of that name is about to come.  Older ones stay if there is room, and all
        hear everything, as on a real network: each may be of a process that has ended, or of one
        that has the same name and lives."""
        older = [port for port in self._by_address.values() if port.name == name]
        older.sort(key=lambda port: port.heard)
        if len(self._by_address) < PORTS_MAX:
            older = older[: 1 - NAMESAKES_MAX]
        for port in older:
            self._remove(port)

    def _remove(self, port: Port) -> None:
        self._by_address.pop(port.address, None)
        if self.ports.get(port.name) is port:
            del self.ports[port.name]

    def _route(self) -> None:
        """Ports have changed: who reaches whom."""
        ports = list(self._by_address.values())
        for port in ports:
            port.routes = [
                (other, self.rules.lane(port.name, other.name))
                for other in ports
                if other is not port
            ]

    def _sweep(self) -> None:
        """Forget who has been silent for long."""
        limit = monotonic() - FORGOTTEN_AFTER_S
        silent = [port for port in self._by_address.values() if port.heard < limit]
        for port in silent:
            self._remove(port)
            if all(other.name != port.name for other in self._by_address.values()):
                self.rules.forget(port.name)
        if silent:
            self._route()
        self._sweeper = self._loop.call_later(1.0, self._sweep)

    # -- control ---------------------------------------------------------------------------

    def stats(self) -> dict[str, Any]:
        """Counters, as JSON."""
        kinds = {KIND_NAMES.get(hint, ("other",))[-1]: n for hint, n in sorted(self.kinds.items())}
        return {
            "seed": self.rules.seed,
            "received": self.received,
            "forwarded": self.forwarded,
            "held": len(self._held),
            "dropped": dict(sorted(self.drops.items())),
            "faults": dict(sorted(self.rules.faults.items())),
            "kinds": kinds,
            "ports": {
                port.name: {
                    "address": "{}:{}".format(*port.address),
                    "received": port.received,
                    "sent": port.sent,
                }
                for port in self.ports.values()
            },
        }

    async def _open_control(self, control: str) -> None:
        try:
            if control.startswith("unix:"):
                path = control.removeprefix("unix:")
                self._server = await asyncio.start_unix_server(
                    self._controlled, path, limit=CONTROL_LINE_MAX
                )
                os.chmod(path, 0o600)
            else:
                host, port = parse_address(control, "control")
                self._server = await asyncio.start_server(
                    self._controlled, host, port, limit=CONTROL_LINE_MAX
                )
                self.control = "{}:{}".format(*self._server.sockets[0].getsockname()[:2])
        except OSError as error:
            raise _refused("control", control, error) from None

    async def _controlled(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._controllers.add(task)
        try:
            if len(self._controllers) > CONTROL_CONNECTIONS_MAX:
                writer.write(_line({"error": f"more than {CONTROL_CONNECTIONS_MAX} connections"}))
                return
            while True:
                try:
                    line = await reader.readline()
                except ValueError:
                    writer.write(_line({"error": f"a line has {CONTROL_LINE_MAX} bytes at most"}))
                    break
                if not line:
                    break
                if line.strip():
                    writer.write(_line(self._answer(line)))
                    await writer.drain()
        except OSError:
            pass  # whoever asked is gone
        finally:
            self._controllers.discard(task)
            writer.close()

    def _answer(self, line: bytes) -> dict[str, Any]:
        try:
            asked = msgspec.json.decode(line)
            if isinstance(asked, dict) and asked == {"stats": True}:
                return {"ok": True, **self.stats()}
            if isinstance(asked, dict) and asked == {"rules": True}:
                return {"ok": True, **self.rules.in_force(), "planned": len(self._planned)}
            self.apply(asked if isinstance(asked, dict) else {"rule": asked})
        except msgspec.MsgspecError as error:
            return {"error": f"a line is one JSON object: {error}"}
        except RoundelayError as error:
            return {"error": str(error)}
        return {"ok": True}


PASSED: Final = Copy()


def read_rules(path: Path) -> list[dict[str, Any]]:
    """The rules in a file: a JSON array of objects, or one object."""
    allowed = "a file with a JSON array of rules"
    try:
        decoded = msgspec.json.decode(path.read_bytes())
    except OSError as error:
        raise ConfigError("rules", path, f"{allowed} ({error.strerror or error})") from None
    except msgspec.MsgspecError as error:
        raise ConfigError("rules", path, f"{allowed} ({error})") from None
    rules = decoded if isinstance(decoded, list) else [decoded]
    if not all(isinstance(rule, dict) for rule in rules):
        raise ConfigError("rules", path, allowed)
    return rules


def _refused(field: str, value: str, error: OSError) -> ConfigError:
    return ConfigError(
        field, value, f"one that is free and on this machine ({error.strerror or error})"
    )


def _line(answer: Mapping[str, Any]) -> bytes:
    return msgspec.json.encode(answer) + b"\n"
