"""How the PDUs of a member leave and arrive where all share the node's medium.

They are numbered, so that a channel can be made of the medium that some protocols need (channel
models, PROTOCOLS §0.2):

- DG: nothing is promised, nothing is needed.
- MC: PDUs of one sender arrive in sending order.  What comes late or twice is dropped, so that
  reordering and duplication become loss.  A retransmission has a fresh `chan_seq`.
- 1C: PDUs of all senders are seen in one order by everybody, that of a hub
  (`node.medium.one_channel`).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from roundelay.core.cluster.pdu import ToRetx
from roundelay.core.engine import EVERYONE, ONLY_LINE, Pdu
from roundelay.core.events import NOBODY
from roundelay.core.token.pdu import B
from roundelay.core.token.reformation import ANOTHER_LIFE
from roundelay.node.driver.engine_driver import EngineDriver
from roundelay.node.medium.one_channel import ASIDE, Arrival, OneChannel
from roundelay.node.membership.directory import tag_of
from roundelay.wire.codec import encode, encode_parts

if TYPE_CHECKING:
    from roundelay.node.driver.roster_member import RosterMember
    from roundelay.node.node import Node

LARGE: Final = 16_384
"""Bytes of a bundle that is sent in parts, without a copy of it."""

CHANNEL_ORDER: Final = "channel order"

HUB: Final = 0
"""The member that runs the hub, where there is one: the first of the roster."""

CHAN_SEQS: Final = 1 << 32


def newer(chan_seq: int, last: int) -> bool:
    """Whether `chan_seq` comes after `last`; numbers wrap.

    >>> newer(5, 4), newer(4, 4), newer(2, CHAN_SEQS - 2)
    (True, False, True)
    """
    return 0 < (chan_seq - last) % CHAN_SEQS < CHAN_SEQS // 2


class ChannelLink:
    """The link of one member in one incarnation of its group's roster."""

    driver: EngineDriver
    """What takes the PDUs that arrive."""

    def __init__(self, member: RosterMember, node: Node, lives: tuple[bytes, ...]) -> None:
        self.transmitter = node.transmitter
        self.me, self.roster, self.group_id = member.me, member.roster, member.id
        self.lives = tuple(map(tag_of, lives))
        """Which lives of the nodes the members are, if those of an epoch are the only ones.  The
        engine of a token group knows better: its lists are made of lives (`core.token.ballot`)."""
        boot = member.token.boot if member.token is not None else 0
        self.life = self.lives[self.me] if lives else boot
        """Ours, as our PDUs carry it."""
        self.chan_seq = time.time_ns() // 1_000_000 & 0xFFFFFFFF
        self.sent = 0
        self.deaf_to = self.me
        """The member whose PDUs are none for us."""
        self.last_seqs: dict[int, int] | None = {} if member.spec.family.is_cluster else None
        """Where sending order is needed: the last `chan_seq` of each sender."""

    def admits(self, sender: int, chan_seq: int, life: int) -> bool:
        """Whether a PDU is of another member, of its present life, and not overtaken."""
        if sender >= len(self.roster) or sender == self.deaf_to:
            self.driver.engine.drop("sender is no other member")
        elif self.lives and self.lives[sender] not in (0, life):
            self.driver.engine.drop(ANOTHER_LIFE)
        elif self.last_seqs is None:
            return True
        elif newer(chan_seq, self.last_seqs.get(sender, chan_seq - 1)):
            self.last_seqs[sender] = chan_seq
            return True
        else:
            self.driver.engine.drop(CHANNEL_ORDER)
        return False

    def transmit(self, destination: int, pdu: Pdu, line: int, now: int) -> None:
        """Send `pdu` to a member or to EVERYONE."""
        self.chan_seq = chan_seq = (self.chan_seq + 1) & 0xFFFFFFFF
        self.sent += 1
        if type(pdu) is B and len(pdu.bundle.data) > LARGE and destination == EVERYONE:
            parts = encode_parts(pdu, self.me, self.group_id, chan_seq, life=self.life)
            self.transmitter.send_parts(parts, parts[0][2] << 8 | parts[0][3])
            return
        data = encode(
            pdu, sender=self.me, group_id=self.group_id, chan_seq=chan_seq, life=self.life
        )
        if destination == EVERYONE:
            self.transmitter.send(data, data[2] << 8 | data[3])
        else:
            self._send_member(destination, data)

    def _send_member(self, member: int, data: bytes) -> None:
        if not self.transmitter.send_member(self.roster[member], data, data[2] << 8 | data[3]):
            self.driver.engine.drop("address of a member not known yet")


class HubLink(ChannelLink):
    """The link of a member of a group with a hub, which gives everything one order."""

    def __init__(self, member: RosterMember, node: Node, lives: tuple[bytes, ...]) -> None:
        super().__init__(member, node, lives)
        self.hub = OneChannel(self.me, HUB)
        self.here = self.hub.here
        """Whether we are the hub."""
        self.deaf_to = NOBODY  # our own come back from the hub
        self.last_seqs = None

    @property
    def deadline(self) -> int:
        return self.hub.deadline

    def admits(self, sender: int, chan_seq: int, life: int) -> bool:
        """What the hub has numbered was looked at when it arrived."""
        return True

    def receive(
        self, pdu: Pdu, sender: int, chan_seq: int, now: int, line: int = 0, life: int = 0
    ) -> None:
        """A PDU that the hub has numbered, or a question to it."""
        if super().admits(sender, chan_seq, life):
            self._receive_numbered(Arrival(pdu, sender, chan_seq, life), now)

    def _receive_numbered(self, arrival: Arrival, now: int) -> None:
        if isinstance(arrival.pdu, ToRetx):
            for data in self.hub.answer(arrival.pdu):
                self._send_member(arrival.sender, data)
            return
        arrivals = self.hub.take(arrival, now)
        if arrivals is None:
            self.driver.engine.drop(CHANNEL_ORDER)
        self._take(arrivals or [], now)

    def _take(self, arrivals: list[Arrival], now: int) -> None:
        for pdu, sender, chan_seq, life, _ in arrivals:
            self.driver.receive(pdu, sender, chan_seq, now, ONLY_LINE, life)

    def relay(self, data: bytes, pdu: Pdu, sender: int, chan_seq: int, now: int, life: int) -> None:
        """The hub of a channel: number PDUs, pass them on to everybody, take our own copies."""
        if not super().admits(sender, chan_seq, life):
            return
        offered = Arrival(pdu, sender, chan_seq, life, data)
        ready, missed = ([offered], None) if sender == self.me else self.hub.accept(offered)
        if missed is not None:
            self._send_member(sender, missed)
        for offered in ready:
            arrival = self.hub.stamp(offered)
            self.transmitter.send(arrival.data, arrival.data[2] << 8 | arrival.data[3])
            self._receive_numbered(arrival, now)

    def on_timer(self, now: int) -> None:
        """What the channel has lost is offered, or asked for, once more."""
        hub = self.hub
        if hub.deadline > now:
            return
        offers, asked, arrivals = hub.mend(now)
        for data in offers:
            self._send_member(hub.hub, data)
        for lo, hi in asked:
            request = ToRetx(epoch=0, by=self.me, src=hub.hub, lo=lo, hi=hi)
            self.transmit(hub.hub, request, ONLY_LINE, now)
        self._take(arrivals, now)

    def transmit(self, destination: int, pdu: Pdu, line: int, now: int) -> None:
        """Send `pdu` to a member, or by way of the hub to EVERYONE."""
        hub = self.hub
        self.chan_seq = (self.chan_seq + 1) & 0xFFFFFFFF
        self.sent += 1
        number = hub.number(pdu) if destination == EVERYONE else ASIDE
        data = encode(pdu, sender=self.me, group_id=self.group_id, chan_seq=number, life=self.life)
        if destination != EVERYONE:
            self._send_member(destination, data)
        elif self.here:
            self.relay(data, pdu, self.me, number, now, self.life)
        else:
            hub.offered(pdu, data, now)
            self._send_member(hub.hub, data)
