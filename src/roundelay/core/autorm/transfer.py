"""Sending: one message on its way to its targets, in rounds (AR-6 to AR-12).

The first round sends all packets.  A round ends when every target has answered its last packet, or
after the time-out; the next one sends again what the targets lack, to the group if several lack
something, and asks those who were silent.  A target is done when it has everything, and lost when
it made no progress for too many rounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from msgspec import Struct

from roundelay.core.autorm import packets as p
from roundelay.core.autorm.config import AutoRmConfig
from roundelay.core.engine import NEVER
from roundelay.core.errors import InvariantBroken

MESSAGE_OVERHEAD: Final = 64
"""Bytes that a queued message counts beside its own."""

NEVER_SENT: Final = "acknowledgement of what was never sent"


class OutgoingMessage(Struct, frozen=True):
    """A message that an application wants sent."""

    group: str
    data: bytes
    someone: bool
    tag: int
    sender_joined: bool
    tried: tuple[bytes, ...] = ()  # nodes that were lost before they had it (E 48)

    @property
    def cost(self) -> int:
        return len(self.data) + MESSAGE_OVERHEAD


@dataclass(slots=True, eq=False)
class Target:
    """A node that is owed the message."""

    since: int  # when it last got further
    answered: bool = False  # it has said in this round what it lacks
    progress: bool = False  # it has got further in this round
    best: int = 0  # the most packets it was ever known to have
    missing: tuple[int, ...] = ()  # what it lacks, as far as it has said
    retries: int = 0  # rounds without progress


@dataclass(slots=True, eq=False)
class Transfer:
    """One sequence in transmission."""

    me: bytes
    seq: int
    item: OutgoingMessage
    destination: bytes  # ZERO, or the one it is for
    targets: dict[bytes, Target]
    config: AutoRmConfig
    reached: list[bytes] = field(default_factory=list)
    given_up: list[bytes] = field(default_factory=list)
    size: int = field(init=False)
    count: int = field(init=False)
    sent_upto: int = -1  # highest packet number sent so far
    # The present round: the packets in `order` go to `goal`, then the silent are asked.
    first: bool = True
    order: Sequence[int] = field(init=False)
    cursor: int = 0
    goal: bytes = field(init=False)
    polls: list[bytes] = field(default_factory=list)
    waiting: bool = False  # everything of this round is sent
    due: int = NEVER  # when the wait is over

    def __post_init__(self) -> None:
        item = self.item
        self.size = self.config.mtu - p.IP_UDP_HEAD - p.DATA_HEAD - len(item.group.encode())
        self.count = max(1, -(-len(item.data) // self.size))
        self.order = range(self.count)
        self.goal = self.destination

    # -- packets ---------------------------------------------------------------------------

    def all_sent(self) -> bool:
        """Whether this round has no more packets."""
        return self.cursor == len(self.order) and not self.polls

    def next_packet(self) -> p.Data:
        """AR-8: the next packet of this round, if there is one."""
        cursor, order = self.cursor, self.order
        if cursor < len(order):
            number = order[cursor]
            self.cursor = cursor = cursor + 1
            asks = cursor == len(order)
            if self.first:
                self.sent_upto = number
                asks = asks or cursor % self.config.confirm_every == 0
            return self._packet(number, self.goal, asks)
        return self._packet(self.count - 1, self.polls.pop(), True)

    def _packet(self, number: int, destination: bytes, asks: bool) -> p.Data:
        item = self.item
        start = number * self.size
        flags = (p.ONE_OF if item.someone else 0) | (p.CONFIRMATION if asks else 0)
        payload = item.data if self.count == 1 else item.data[start : start + self.size]
        place = (self.seq, self.count, number)
        return p.Data(self.me, destination, *place, flags, item.group, payload)

    def wait(self, now: int) -> None:
        """The round is sent: wait for the answers."""
        self.waiting = True
        self.due = now + self.config.ack_timeout_ns

    # -- answers ---------------------------------------------------------------------------

    def acknowledged(self, ack: p.Acknowledgement, now: int) -> str:
        """AR-9: a target says what it has; returns why that cannot be true, or ""."""
        target = self.targets.get(ack.source)
        if target is None:
            return ""  # done, gone, or somebody who listens without being known
        highest, missing = ack.highest, ack.missing
        if highest > self.sent_upto or (missing and missing[-1] > highest):
            return NEVER_SENT
        last = highest == self.count - 1
        if last and not missing:
            del self.targets[ack.source]
            self.reached.append(ack.source)
            return ""
        known = highest + 1 - len(missing)
        if known > target.best:  # AR-10; never twice for the same packets, so it ends
            target.best = known
            target.progress = True
            target.since = now
        target.missing = missing
        cut = bool(missing) and missing[-1] == highest
        if last or (cut and not (self.first and not self.waiting)):
            target.answered = True
        return ""

    def all_answered(self) -> bool:
        return all(target.answered for target in self.targets.values())

    # -- rounds ----------------------------------------------------------------------------

    def hopeless(self, now: int) -> list[bytes]:
        """AR-10: ends a round; the targets that have made no progress for too long.

        Rounds alone do not count: old acknowledgements that arrive again would end them early.
        """
        config = self.config
        patience = config.max_retries * config.ack_timeout_ns
        uuids = []
        for uuid, target in self.targets.items():
            if target.progress:
                target.retries = 0
                target.progress = False
                continue
            target.retries += 1
            if target.retries > config.max_retries and now - target.since >= patience:
                uuids.append(uuid)
        return uuids

    def again(self) -> None:
        """AR-9: the next round: what is missing, and a question to those who were silent."""
        lacking = [uuid for uuid, target in self.targets.items() if target.missing]
        packets = {number for uuid in lacking for number in self.targets[uuid].missing}
        self.first = False
        self.order = sorted(packets)
        self.cursor = 0
        self.goal = self.destination
        if len(lacking) == 1:
            self.goal = lacking[0]
        silent = [uuid for uuid, target in self.targets.items() if not target.answered]
        self.polls = silent[::-1]
        self.sent_upto = self.count - 1
        self.waiting = False
        self.due = NEVER
        for target in self.targets.values():
            target.answered = False

    def lose(self, uuid: bytes) -> bool:
        """AR-4, AR-10, AR-11: the message is no longer owed to `uuid`; False if it never was."""
        if self.targets.pop(uuid, None) is None:
            return False
        self.given_up.append(uuid)
        if uuid in self.polls:
            self.polls.remove(uuid)
        return True

    def excuse(self, asleep_ns: int, now: int) -> None:
        """This node did not run for that long: the answers may still lie in its socket."""
        for target in self.targets.values():
            target.since += asleep_ns
        if self.waiting:
            self.wait(now)

    def check_invariants(self) -> None:
        """It is owed to somebody, and a round that is waited for has been sent."""
        if not self.targets or not self.targets.keys().isdisjoint(self.reached):
            raise InvariantBroken(f"message {self.seq} is under way to nobody, or twice")
        if self.waiting != (self.due < NEVER) or (self.waiting and not self.all_sent()):
            raise InvariantBroken(f"message {self.seq} waits for answers, or is being sent")
        if not -1 <= self.sent_upto < self.count or not 0 <= self.cursor <= len(self.order):
            raise InvariantBroken(f"packet {self.sent_upto} of {self.count} of message {self.seq}")


@dataclass(slots=True, eq=False)
class PacketPacer:
    """AR-8: at most `burst` packets per `pace_ns`."""

    burst: int
    pace_ns: int
    remaining: int = 0
    next: int = 0  # when the next burst may begin

    def may_send(self, now: int) -> bool:
        """Take one packet out of the burst; False if it has to wait for `next`."""
        if now >= self.next:
            self.remaining = self.burst
            self.next = now + self.pace_ns
        if not self.remaining:
            return False
        self.remaining -= 1
        return True
