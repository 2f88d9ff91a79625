"""Judges what AutoRM promises (PROTOCOLS §8) from what applications and senders are told.

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
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from roundelay.core.autorm.packets import Heartbeat
from roundelay.core.engine import Notice, Pdu
from roundelay.sim.autorm_world import GroupDelivery, site_of
from roundelay.sim.load import identity

Complain = Callable[[str, str, int], None]
"""(rule, detail, site)."""


class Message:
    """A message, and what became of it."""

    __slots__ = ("asked", "at", "data", "fate", "group", "number", "order", "sender", "someone")

    def __init__(
        self, number: int, sender: bytes, order: int, group: str, data: bytes, someone: bool,
        asked: int,
    ) -> None:  # fmt: skip
        self.number = number
        self.sender = sender
        self.order = order  # among the messages of its sender
        self.group = group
        self.data = data
        self.someone = someone
        self.asked = asked
        self.at: dict[bytes, int] = {}  # node → when it was delivered there
        self.fate: tuple[tuple[bytes, ...], tuple[bytes, ...]] | None = None


class AutoRmCheck:
    """An observer of an `AutoRmWorld`; what is wrong goes to `complain`."""

    def __init__(
        self, complain: Complain, *, per_group: bool = False, failover: bool = False
    ) -> None:
        self.complain = complain
        self.per_group = per_group
        self.failover = failover
        self.uuids: dict[int, bytes] = {}  # site → its present UUID
        self.messages: dict[int, Message] = {}
        self.orders: dict[bytes, int] = {}  # sender → messages so far
        self.last: dict[tuple[bytes, bytes, str], int] = {}  # order of the last one delivered
        self.member: dict[tuple[bytes, str], int] = {}  # who is in which group, and since when
        self.movers: set[tuple[bytes, str]] = set()  # who has ever joined late, or left
        self.born_at: dict[bytes, int] = {}
        self.lost: dict[tuple[bytes, bytes], int] = {}  # (who says so, who) → when last
        self.stable_since = -1  # from here on nobody may be lost
        self.quiet = False  # from here on only heartbeats may be sent
        self.deliveries = 0

    # -- what happens ----------------------------------------------------------------------

    def born(self, time: int, site: int, uuid: bytes) -> None:
        self.uuids[site] = uuid
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
        self.messages[number] = Message(number, sender, order, group, data, someone, time)

    def delivered(self, time: int, site: int, delivery: GroupDelivery) -> None:
        self.deliveries += 1
        (data,) = delivery.bundle
        here = self.uuids[site]
        message = self.messages.get(identity(data)[1])
        if message is None or message.data != data or message.sender != delivery.uuid:
            what = f"{len(data)} bytes of {name(delivery.uuid)} that were not sent so"
            self.complain("I4", what, site)
            return
        about = f"message {message.number} of {name(message.sender)}"
        if message.group != delivery.group or message.someone != delivery.one_of:
            self.complain("I4", f"{about} was not for {delivery.group}, or not so", site)
        if (here, message.group) not in self.member:
            self.complain("I4", f"{about} for {message.group}, which is not joined here", site)
        if here in message.at:
            self.complain("I4", f"{about} is delivered again", site)
        message.at[here] = time
        if message.someone and len(message.at) > 1 and not self.failover:
            self.complain("I4", f"{about} to someone is at {len(message.at)} nodes", site)
        key = (here, message.sender, message.group if self.per_group else "")
        if message.order <= self.last.get(key, 0):
            late = f"{about} comes after the {self.last[key]}th, it was the {message.order}th"
            self.complain("I1", late, site)
        self.last[key] = message.order

    def noticed(self, time: int, site: int, notice: Notice) -> None:
        if notice.kind == "sent":
            self._fate(site, time, notice)
        elif notice.kind in ("down", "dropped"):
            (other,) = notice.info
            assert isinstance(other, bytes)
            self.lost[self.uuids[site], other] = time
            alive = self.uuids[site_of(other)] == other
            if alive and 0 <= self.stable_since < time:
                self.complain("I7", f"{name(other)} is {notice.kind}, and nothing is wrong", site)

    def _fate(self, site: int, time: int, notice: Notice) -> None:
        number, reached, given_up = notice.info
        assert isinstance(number, int)
        assert isinstance(reached, tuple)
        assert isinstance(given_up, tuple)
        message = self.messages.get(number)
        if message is None or message.sender != self.uuids[site]:
            self.complain("I5", f"the fate of message {number}, which was not sent here", site)
            return
        about = f"message {number}"
        if message.fate is not None:
            self.complain("I5", f"{about} ends twice", site)
        message.fate = (reached, given_up)
        if set(reached) & set(given_up) or (message.someone and len(reached) > 1):
            self.complain("I5", f"{about} ends at {reached}, and not at {given_up}", site)
        for uuid in reached:
            if uuid not in message.at and not self._has_left(uuid, message):
                self.complain("I5", f"{about} is said to be at {name(uuid)}, and is not", site)
        for uuid in given_up:
            lost = self.lost.get((message.sender, uuid), -1)
            # An old heartbeat that arrives late may say what was true before.
            excused = lost >= message.asked or (uuid, message.group) in self.movers
            if not excused and (uuid, message.group) in self.member:
                self.complain("I5", f"{about}: {name(uuid)} is given up, but not lost", site)

    def _has_left(self, uuid: bytes, message: Message) -> bool:
        """Whether a node was outside the group at some time since the message was sent."""
        since = self.member.get((uuid, message.group))
        return since is None or since > message.asked

    def sampled(
        self, time: int, site: int, usage: Mapping[str, int], caps: Mapping[str, int]
    ) -> None:
        for what, used in usage.items():
            if used > caps[what]:
                self.complain("I6", f"{what} = {used} is above {caps[what]}", site)

    def sent(self, time: int, site: int, destination: int, pdu: Pdu) -> None:
        if self.quiet and not isinstance(pdu, Heartbeat):
            self.complain("QUIET", f"{type(pdu).__name__} is sent when all is done", site)
            self.quiet = False  # once is enough

    # -- the end ---------------------------------------------------------------------------

    @property
    def committed(self) -> int:
        """Messages that have been delivered somewhere."""
        return sum(1 for message in self.messages.values() if message.at)

    def open(self) -> int:
        """Messages of nodes that still run whose fate is not known."""
        living = set(self.uuids.values())
        return sum(
            1
            for message in self.messages.values()
            if message.fate is None and message.sender in living
        )

    def expect(self, number: int, groups: Mapping[int, Mapping[str, int]]) -> None:
        """Message `number` was sent when nothing was wrong: it is where it should be."""
        message = self.messages[number]
        members = {self.uuids[site] for site, joined in groups.items() if message.group in joined}
        site = site_of(message.sender)
        if message.someone:
            others = members - {message.sender}
            if others and len(message.at) != 1:
                self.complain("I7", f"message {number} to someone is at nobody", site)
            return
        for uuid in sorted(members - message.at.keys()):
            self.complain("I7", f"message {number} has not reached {name(uuid)}", site)


def name(uuid: bytes) -> str:
    """A node in a finding: its site and the beginning of its UUID."""
    return f"{site_of(uuid)}({uuid[4:7].hex()})"
