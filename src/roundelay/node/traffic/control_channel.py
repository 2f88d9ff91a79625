"""What nodes say to each other: who they are, what groups they are in, what they have recorded.

INFO goes with every heartbeat, and soon after somebody new was heard.  What concerns a group, or
the recorders, is passed on to them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import roundelay
from roundelay.core.engine import NEVER, SECOND
from roundelay.node.medium.acquaintance import Acquaintances
from roundelay.node.medium.drop_advice import NAME_TAKEN
from roundelay.node.medium.media import Address, FanoutMedium
from roundelay.node.membership.directory import address_of, tag_of
from roundelay.node.membership.identity import ANSWER, ANSWERS, YIELD
from roundelay.wire import control
from roundelay.wire.control import Ask, Info, Knock, Start

if TYPE_CHECKING:
    from roundelay.node.node import Node

PEERS_MAX = 64
"""Addresses that INFO names."""
FORMER = "of an earlier life of its sender"


class ControlChannel:
    """Says who this node is, and hears who the others are."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.info_due = 0
        self.acquaintances: Acquaintances | None = None
        """Without multicast: whom everything is sent to."""
        if isinstance(node.medium, FanoutMedium):
            self.acquaintances = Acquaintances(node.medium, self._send_to)

    def _send_to(self, address: Address, word: Info | Knock) -> None:
        self.node.transmitter.send(control.encode(word), to=address)

    # -- who we are ----------------------------------------------------------------------------

    def info(self) -> Info:
        """What this node says of itself."""
        node, life = self.node, self.node.identity
        infos = (group.info() for group in node.group_hosts.values())
        groups = tuple(info for info in infos if info is not None)
        peers: tuple[Address, ...] = ()
        if isinstance(node.medium, FanoutMedium):
            peers = tuple(node.medium.peers)[:PEERS_MAX]
        self._look_at_life()
        address = node.transmitter.address
        return Info(
            node.name,
            node.uuid,
            address,
            groups,
            peers,
            roundelay.__version__,
            life.birth,
            life.claims,
            life.fresh,
        )

    def _look_at_life(self) -> None:
        if self.node.identity.fresh:
            drivers = self.node.schedule.drivers.values()
            self.node.identity.look(any(driver.delivered for driver in drivers))

    def claim(self) -> None:
        """Ask whether the name is free."""
        self.node.transmitter.send(control.encode(self.info()))

    def say_who(self, now: int) -> None:
        node = self.node
        self.info_due = NEVER
        info = self.info()
        node.directory.hear(info, node.transmitter.address, now)
        node.transmitter.send_control(info)
        node.faults.guard_aside("recorders", node.recorders.say, now)

    def say_soon(self, now: int, within: int = SECOND // 100) -> None:
        """Something about us has changed that others wait for."""
        self.info_due = min(self.info_due, now + self.node.rng.randrange(within))
        self.node.schedule.due_at(self.info_due)

    # -- who the others are --------------------------------------------------------------------

    def hear(self, body: Any, source: Address, now: int) -> None:
        """A decoded control packet from `source`."""
        node = self.node
        if isinstance(body, Info):
            self._hear_info(body, source, now)
        elif isinstance(body, Ask) and self._outlived(body):
            node.drop(FORMER)
        elif isinstance(body, Ask | Start):
            group = node.group_hosts.get(body.group)
            if group is not None:
                node.faults.guard(group, group.told, body, now)
        elif isinstance(body, Knock):
            self._knocked(body, source, now)
        elif isinstance(body, control.Recorded | control.Kept | control.Wanted | control.Synced):
            node.faults.guard_aside("recorders", node.recorders.hear, body, now)

    def _hear_info(self, info: Info, source: Address, now: int) -> None:
        node = self.node
        if info.uuid == node.uuid:
            return
        address = address_of(info, source)
        if info.name == node.name:
            self._namesake(info, address)
            return
        if info.claims or node.directory.outlived(info, now):
            if info.claims and isinstance(node.medium, FanoutMedium):
                # Who has the name may not be among its seeds: it hears of our peers.
                self._send_to(address, self.info())
                self._hear_of(info, address, now)
            return
        if node.directory.hear(info, source, now):
            node.autorm.look = True
            self.say_soon(now, within=SECOND // 20)
        self._hear_of(info, address, now)
        for group in list(node.group_hosts.values()):
            node.faults.guard(group, group.heard, info, now)

    def _outlived(self, ask: Ask) -> bool:
        """Whether another life has that name by now: a roster goes by names, and with the old one
        in it the other would be shut out."""
        if not ask.life:
            return False
        if ask.name == self.node.name:
            return ask.life != self.node.uuid
        return tag_of(ask.life) in self.node.directory.past

    def _hear_of(self, info: Info, address: Address, now: int) -> None:
        """Without multicast: who spoke, and whom it knows."""
        if self.acquaintances is not None:
            self.acquaintances.spoke(address, now)
            for peer in info.peers:
                self.acquaintances.named(peer, now)

    def _knocked(self, knock: Knock, source: Address, now: int) -> None:
        if not knock.back:
            self._send_to(source, Knock(knock.token, back=True))
        elif self.acquaintances is not None and self.acquaintances.answered(knock.token, now):
            self.say_soon(now, within=1)  # it has not heard of us yet

    def _namesake(self, info: Info, address: Address) -> None:
        """Somebody else says that our name is its own (`node.membership.identity`)."""
        node = self.node
        node.directory.bury(info.uuid, info.name)  # as long as we go on, the name is ours
        self._look_at_life()
        verdict = node.identity.meet(info, address)
        if verdict == ANSWER:
            node.drop(NAME_TAKEN)
            answer = self.info()
            for _ in range(ANSWERS if info.claims else 1):
                self._send_to(address, answer)
        elif verdict == YIELD:
            assert node.identity.rival is not None
            node.fail(node.identity.rival)
