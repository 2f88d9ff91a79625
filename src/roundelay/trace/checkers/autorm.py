"""What AutoRM promises (PROTOCOLS §8), judged by what applications and senders are told.

=====  =========================================================================================
I1     a node delivers the messages of a sender in the order they were sent: of all groups
       together, or of each group where the configuration says so
I4     each at most once per start of a node, only where the group is joined, only what was sent,
       byte for byte; a message to someone at one node at most, a message to everyone as such
I5     the sender is told once what became of a message: who is said to have it has it, and who
       was given up was declared dead, dropped, or has left the group
I6     buffers stay under their caps
I7     after healing, every node hears of all others, and messages reach every member
QUIET  after the last message nothing but heartbeats is sent
=====  =========================================================================================

Never promised: that receivers agree, a common order, delivery to nodes the sender does not know.

Besides what `core.events.Observer` has, an `AutoRmChecker` is told of these::

    born(time, site, uuid)                        a node starts
    joined(time, site, group), left(...)          its applications join and leave
    asked(time, site, number, group, data, someone)   an application sends message `number`
    sent(time, site, destination, pdu)            a packet goes out
    calm(time)                                    from here on nobody may be lost
    expected(time, number, members)               the message has had time to reach these sites
    quiet(time)                                   from here on only heartbeats may be sent
"""

from __future__ import annotations

from collections.abc import Collection

from msgspec import Struct

from roundelay.core.autorm.beamon import AutoRmDelivery
from roundelay.core.autorm.packets import Heartbeat
from roundelay.core.engine import Pdu
from roundelay.core.events import NOBODY
from roundelay.core.notices import NodeDown, NodeDropped, Notice, TransferEnded
from roundelay.trace.checkers.verdict import Judge


class MessageFate(Struct):
    """A message, and what became of it."""

    number: int
    sender: bytes
    order: int  # among the messages of its sender
    group: str
    someone: bool
    asked: int
    at: dict[bytes, int] = {}  # node → when it was delivered there
    ended: bool = False  # its sender was told what became of it


class AutoRmChecker(Judge):
    """Looks on at the nodes of one network and collects violations.

    `per_group`: only messages of one group keep their order.  `failover`: a message to someone may
    go to another node when the first does not answer.
    """

    def __init__(self, *, per_group: bool = False, failover: bool = False) -> None:
        super().__init__()
        self.per_group = per_group
        self.failover = failover
        self.uuids: dict[int, bytes] = {}  # site → its present UUID
        self.site_of: dict[bytes, int] = {}
        self.messages: dict[int, MessageFate] = {}  # by number
        self.by_data: dict[bytes, MessageFate] = {}
        self.orders: dict[bytes, int] = {}  # sender → messages so far
        self.last: dict[tuple[bytes, bytes, str], int] = {}  # order of the last one delivered
        self.member: dict[tuple[bytes, str], int] = {}  # who is in which group, and since when
        self.movers: set[tuple[bytes, str]] = set()  # who has ever joined late, or left
        self.born_at: dict[bytes, int] = {}
        self.lost: dict[tuple[bytes, bytes], int] = {}  # (who says so, who) → when last
        self.calm_since = -1
        self.is_quiet = False
        self.deliveries = 0

    # -- what happens ----------------------------------------------------------------------

    def born(self, time: int, site: int, uuid: bytes) -> None:
        self.uuids[site] = uuid
        self.site_of[uuid] = site
        self.born_at[uuid] = time

    def joined(self, time: int, site: int, group: str) -> None:
        uuid = self.uuids[site]
        self.member[uuid, group] = time
        if time > self.born_at[uuid]:
            self.movers.add((uuid, group))

    def left(self, time: int, site: int, group: str) -> None:
        key = (self.uuids[site], group)
        self.member.pop(key, None)
        self.movers.add(key)

    def asked(
        self, time: int, site: int, number: int, group: str, data: bytes, someone: bool
    ) -> None:
        sender = self.uuids[site]
        order = self.orders[sender] = self.orders.get(sender, 0) + 1
        fate = MessageFate(number, sender, order, group, someone, time)
        self.messages[number] = self.by_data[data] = fate

    def delivered(self, time: int, site: int, delivery: AutoRmDelivery) -> None:
        self.deliveries += 1
        (data,) = delivery.bundle
        here = self.uuids[site]
        message = self.by_data.get(data)
        if message is None or message.sender != delivery.uuid:
            detail = f"{len(data)} bytes of {self._name(delivery.uuid)} that were not sent so"
            self.report("I4", site, time, detail)
            return
        about = f"message {message.number} of {self._name(message.sender)}"
        if message.group != delivery.group or message.someone != delivery.one_of:
            self.report("I4", site, time, f"{about} was not for {delivery.group}, or not so")
        if (here, message.group) not in self.member:
            detail = f"{about} for {message.group}, which is not joined here"
            self.report("I4", site, time, detail)
        if here in message.at:
            self.report("I4", site, time, f"{about} is delivered again")
        message.at[here] = time
        if message.someone and len(message.at) > 1 and not self.failover:
            self.report("I4", site, time, f"{about} to someone is at {len(message.at)} nodes")
        key = (here, message.sender, message.group if self.per_group else "")
        if message.order <= self.last.get(key, 0):
            detail = f"{about} comes after the {self.last[key]}th, it was the {message.order}th"
            self.report("I1", site, time, detail)
        self.last[key] = message.order

    def noticed(self, time: int, site: int, notice: Notice) -> None:
        if isinstance(notice, TransferEnded):
            self._ended(time, site, notice)
        elif isinstance(notice, NodeDown | NodeDropped):
            other = notice.uuid
            self.lost[self.uuids[site], other] = time
            alive = self.uuids[self.site_of[other]] == other
            if alive and 0 <= self.calm_since < time:
                detail = f"{self._name(other)} is {notice.kind}, and nothing is wrong"
                self.report("I7", site, time, detail)

    def _ended(self, time: int, site: int, notice: TransferEnded) -> None:
        number, reached, given_up = notice.tag, notice.reached, notice.given_up
        message = self.messages.get(number)
        if message is None or message.sender != self.uuids[site]:
            detail = f"the fate of message {number}, which was not sent here"
            self.report("I5", site, time, detail)
            return
        about = f"message {number}"
        if message.ended:
            self.report("I5", site, time, f"{about} ends twice")
        message.ended = True
        if set(reached) & set(given_up) or (message.someone and len(reached) > 1):
            self.report("I5", site, time, f"{about} ends at {reached}, and not at {given_up}")
        for uuid in reached:
            if uuid not in message.at and not self._has_left(uuid, message):
                detail = f"{about} is said to be at {self._name(uuid)}, and is not"
                self.report("I5", site, time, detail)
        for uuid in given_up:
            lost = self.lost.get((message.sender, uuid), -1)
            # An old heartbeat that arrives late may say what was true before.
            excused = lost >= message.asked or (uuid, message.group) in self.movers
            if not excused and (uuid, message.group) in self.member:
                detail = f"{about}: {self._name(uuid)} is given up, but not lost"
                self.report("I5", site, time, detail)

    def _has_left(self, uuid: bytes, message: MessageFate) -> bool:
        """Whether a node was outside the group at some time since the message was sent."""
        since = self.member.get((uuid, message.group))
        return since is None or since > message.asked

    def sent(self, time: int, site: int, destination: int, pdu: Pdu) -> None:
        if self.is_quiet and not isinstance(pdu, Heartbeat):
            self.report("QUIET", site, time, f"{type(pdu).__name__} is sent when all is done")
            self.is_quiet = False  # once is enough

    # -- the end ---------------------------------------------------------------------------

    def calm(self, time: int) -> None:
        """Everything has settled: from here on nobody may be lost."""
        self.calm_since = time

    def expected(self, time: int, number: int, members: Collection[int]) -> None:
        """Message `number` was sent when nothing was wrong: it is where it should be."""
        message = self.messages[number]
        nodes = {self.uuids[site] for site in members}
        site = self.site_of.get(message.sender, NOBODY)
        if message.someone:
            if nodes - {message.sender} and len(message.at) != 1:
                self.report("I7", site, time, f"message {number} to someone is at nobody")
            return
        for uuid in sorted(nodes - message.at.keys()):
            self.report("I7", site, time, f"message {number} has not reached {self._name(uuid)}")

    def quiet(self, time: int) -> None:
        """All is done: from here on only heartbeats may be sent."""
        self.is_quiet = True

    def _name(self, uuid: bytes) -> str:
        """A node in a finding: its site and some of its UUID."""
        return f"{self.site_of.get(uuid, NOBODY)}({uuid[4:7].hex()})"
