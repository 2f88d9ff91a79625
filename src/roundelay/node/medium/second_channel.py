"""Line B: a second way to reach everybody, beside the medium of the node (GR-22).

The node's own medium is line A.  What line B is depends on it:

- multicast: another multicast group, by default the next address and port, perhaps on another
  interface;
- unicast fan-out: another UDP port of each node, or the address that the file gives it;
- our own switch: a second channel through the same port, which the switch can cut by itself.

Line B carries multicasts; what is for one member alone goes there while line A is out of order
(GR-24).  The node itself says on both who it is and what it records.  Nodes tell each other in
their INFO where they are on line B.  Everything that arrives on it is handed to the node like what
arrives on line A; which line a PDU was sent on stands in its envelope.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from ipaddress import IPv4Address
from typing import TYPE_CHECKING

from msgspec import Struct

from roundelay.core.errors import ConfigError
from roundelay.node.medium.interfaces import find, parse_address
from roundelay.node.medium.media import EVERYBODY, Address, FanoutMedium, Medium, MulticastMedium
from roundelay.node.medium.switch_medium import SwitchMedium
from roundelay.node.medium.watch import MediumWatch

if TYPE_CHECKING:
    from roundelay.node.node import Node


class SwitchLine:
    """The second channel of a node's port at the switch."""

    def __init__(self, medium: SwitchMedium) -> None:
        self.mtu = medium.mtu
        self.send = medium.send_b

    def send_train(self, parts: list[bytes], to: Address | None = EVERYBODY, hint: int = 0) -> None:
        for part in parts:
            self.send(part, to, hint)


DatagramPath = Medium | SwitchLine
"""Where datagrams go."""


class SecondLine(Struct, eq=False):
    """Line B of one group at one node."""

    line: DatagramPath
    close: Callable[[], None]
    where: str
    watch: MediumWatch | None = None
    """Follows its interface, if it has one."""
    met: dict[str, Address] = {}
    """Members, and where they are on it."""

    @property
    def address(self) -> Address:
        """Where others reach us on it, if they have to be told."""
        line = self.line
        if isinstance(line, FanoutMedium):
            return line.advertised
        return line.address if isinstance(line, MulticastMedium) else ("", 0)

    def meet(self, name: str, advertised: Address, known: Address | None) -> None:
        """A member is there, perhaps elsewhere than before: where it said it is on the line.

        `known` is where it is on line A: at the switch both are one.
        """
        host, port = advertised
        if isinstance(self.line, SwitchLine):
            address = known
        elif not port:
            address = None
        else:
            address = (known[0] if host == "0.0.0.0" and known is not None else host, port)
        before = self.met.get(name)
        if address is None or address == before:
            return
        self.met[name] = address
        if isinstance(self.line, FanoutMedium):
            if before is not None:
                self.line.part(before)
            self.line.meet(address)


def second(group: Address) -> Address:
    """Line B beside a multicast group.

    >>> second(("239.255.66.77", 6677))
    ('239.255.66.78', 6678)
    """
    host = IPv4Address(group[0])
    following = host + 1 if (host + 1).is_multicast else host - 1
    return str(following), group[1] + 1 if group[1] < 65535 else group[1] - 1


def open_line(node: Node, where: str | dict[str, str], interface: str) -> SecondLine:
    """Line B, as the file says or as goes best with the medium of `node`."""
    medium = node.medium
    if isinstance(medium, SwitchMedium):
        return SecondLine(SwitchLine(medium), lambda: None, f"{medium.describe()}/b")
    line = _open_medium(node, medium, where, interface)
    node.attach(line)
    watch = MediumWatch(line, node.log, lambda: node.say_soon(time.monotonic_ns()))
    return SecondLine(line, line.close, line.describe(), watch)


def _open_medium(node: Node, medium: Medium, where: str | dict[str, str], interface: str) -> Medium:
    if isinstance(medium, MulticastMedium):
        if isinstance(where, dict):
            raise ConfigError("line_b", "a table", "ADDR:PORT of a multicast group on this medium")
        group = parse_address(where, "line_b") if where else second(medium.group)
        if group == medium.group:
            raise ConfigError("line_b", where, f"another group than line A, {where}")
        there = find(interface) if interface else medium.interface
        line = MulticastMedium(group, there, node.config.choice.ttl)
        line.ignore_own()
        return line
    assert isinstance(medium, FanoutMedium)
    if isinstance(where, str) and where:
        raise ConfigError("line_b", where, "with seeds: a table of members and their HOST:PORT")
    own = where.get(node.name, "") if isinstance(where, dict) else ""
    address = parse_address(own, "line_b") if own else (medium.address[0], 0)
    fanout = FanoutMedium(address, (), medium.mtu)
    if not own and medium.advertised != medium.address:
        fanout.advertised = (medium.advertised[0], fanout.address[1])
    return fanout
