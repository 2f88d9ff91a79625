"""Live nodes in one event loop, on loopback, each test on a medium of its own."""

from __future__ import annotations

import asyncio
import os
import random
import socket
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Self

import roundelay
from roundelay.client.group import Group, Message
from roundelay.faultnet.switch import Switch
from roundelay.node.membership.group import GroupMembership
from roundelay.node.node import Node
from roundelay.node.roles.group import RoleGroup

PATIENCE_S = 20.0


async def until(condition: Callable[[], Any], what: str, seconds: float = PATIENCE_S) -> None:
    """Wait for `condition`, and say what did not happen."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while not condition():
        assert loop.time() < end, f"waited {seconds:.0f} s for this: {what}"
        await asyncio.sleep(0.02)


def multicast() -> str:
    """A medium that no other test uses."""
    chance = random.Random(os.urandom(8))
    group = f"239.255.{chance.randrange(1, 255)}.{chance.randrange(1, 255)}"
    return f"{group}:{chance.randrange(20_000, 30_000)}"


def free_ports(count: int) -> list[int]:
    """UDP ports of loopback that nobody has."""
    sockets = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def node_of(group: Group) -> Node:
    """The node in this process that `group` runs on."""
    node = group._node_api
    assert isinstance(node, Node)
    return node


def membership_of(member: Member) -> GroupMembership:
    """How the node of `member` takes part in its group."""
    host = member.node.group_hosts[member.group.name]
    assert isinstance(host, GroupMembership)
    return host


class Member:
    """A group as one member has it, with everything that was delivered there."""

    def __init__(self, name: str, group: Group) -> None:
        self.name = name
        self.group = group
        self.got: list[Message] = []
        self.error: BaseException | None = None
        self._reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        while True:
            try:
                async for message in self.group:
                    self.got.append(message)
                return
            except roundelay.LeftOut as error:
                self.error = error  # raised once: what follows is for those who read on
            except Exception as error:
                self.error = error
                return

    @property
    def node(self) -> Node:
        return node_of(self.group)

    @property
    def data(self) -> list[bytes]:
        return [message.data for message in self.got]

    @property
    def order(self) -> list[tuple[int | None, str, bytes]]:
        return [(message.seq, message.sender, message.data) for message in self.got]

    def from_(self, sender: str) -> list[bytes]:
        return [message.data for message in self.got if message.sender == sender]

    async def leave(self) -> None:
        await self.group.leave()
        await self.read_no_more()

    async def die(self) -> None:
        """As if the process were killed: nothing is said, nothing is saved."""
        kill(self.node)
        self.group.cut_off(self.group.name, "killed")
        await self.read_no_more()

    async def read_no_more(self) -> None:
        self._reader.cancel()
        await asyncio.gather(self._reader, return_exceptions=True)


def kill(node: Node) -> None:
    """Stop a node without a goodbye."""
    node.schedule.stop()
    if node.lock is not None:
        node.lock.close()
    node.medium.close()
    seats = [one for one in node.group_hosts.values() if isinstance(one, RoleGroup)]
    for seat in seats:
        seat.abandon()
    node.recorders.server.abort()
    for recorder in node.recorders.own.values():
        recorder._items.clear()  # what is not written yet is lost
        recorder.close()
    node.recorders.own.clear()
    for task in node.recorders._refetches:
        task.cancel()
    for host in node.group_hosts.values():
        if not isinstance(host, GroupMembership):
            continue
        lingering = (driver for _, driver in host.epochs.lingering)
        for driver in (*host.drivers(), *lingering):
            if not driver.closed:
                driver.close()


def freeze(node: Node) -> None:
    """As SIGSTOP: nothing is read, sent or done until `thaw`."""
    node.schedule.stop()
    node.medium.stop()


def thaw(node: Node) -> None:
    """As SIGCONT: it goes on as if no time had passed."""
    node.schedule.start()
    node.attach(node.medium)
    node.schedule.rearm()


class Net:
    """Members on one medium; all of them are gone at the end.

    `medium`: multicast, fanout, or switch, whose rules are then in `switch`.
    """

    def __init__(
        self, medium: str = "multicast", *, seed: int = 1, rules: Iterable[dict[str, Any]] = ()
    ) -> None:
        self.medium = medium
        self.address = multicast()
        self.ports: list[int] = []
        self.members: list[Member] = []
        self.switch = Switch(seed=seed, rules=rules)

    async def __aenter__(self) -> Self:
        if self.medium == "switch":
            await self.switch.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for member in self.members:
            if member.group._closed is None:
                await member.die()
            kill(member.node)
        await self.switch.close()

    def where(self) -> dict[str, Any]:
        """How to reach the medium."""
        if self.medium == "switch":
            return {"via": "{}:{}".format(*self.switch.address)}
        if self.medium == "fanout":
            if not self.ports:
                self.ports = free_ports(16)
            mine = self.ports.pop()
            self.first_port = getattr(self, "first_port", mine)
            return {"listen": f"127.0.0.1:{mine}", "seeds": f"127.0.0.1:{self.first_port}"}
        return {"multicast": self.address, "interface": "lo"}

    async def join(self, name: str, group: str = "g", **options: Any) -> Member:
        settings = {"name": name, "insecure": True, "timeout": 30.0} | self.where() | options
        member = Member(name, await roundelay.join(group, **settings))
        self.members.append(member)
        return member

    async def form(self, names: str, group: str = "g", **options: Any) -> list[Member]:
        """Members that are all in one group, which works, also if it has one member only."""
        if len(names) == 1 and options.get("service") not in ("fifo", "journal", "wide"):
            options = {"min_members": 1} | options
        members = await asyncio.gather(*(self.join(name, group, **options) for name in names))
        await together(members)
        return list(members)


async def together(members: list[Member], seconds: float = PATIENCE_S) -> None:
    """Wait until these members, and no others, see one another in a group that works."""
    names = {member.name for member in members}

    def all_there() -> bool:
        views = [member.group.view for member in members]
        return all(set(view.members) == names and view.state == "open" for view in views)

    try:
        await until(all_there, "one view", seconds)
    except AssertionError as error:
        seen = {member.name: member.group.view for member in members}
        raise AssertionError(f"{error}; seen: {seen}") from None


async def delivered(members: list[Member], count: int, seconds: float = PATIENCE_S) -> None:
    """Wait until every member has `count` messages."""
    try:
        await until(lambda: all(len(m.got) >= count for m in members), "deliveries", seconds)
    except AssertionError as error:
        seen = {member.name: (len(member.got), member.group.view) for member in members}
        raise AssertionError(f"{error}; {count} expected, seen: {seen}") from None


def check_total_order(members: list[Member]) -> None:
    """One order everywhere, at dense positions."""
    longest = max((member.order for member in members), key=len)
    for member in members:
        seqs = [message.seq for message in member.got]
        start = seqs[0] if seqs else 0
        assert start is not None
        assert seqs == list(range(start, start + len(seqs))), f"{member.name}: positions"
    by_seq = {seq: (sender, data) for seq, sender, data in longest}
    for member in members:
        for seq, sender, data in member.order:
            assert by_seq.setdefault(seq, (sender, data)) == (sender, data), f"{member.name}: {seq}"
