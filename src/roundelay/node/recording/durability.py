"""`durability="recorded"`: a receipt that waits until recorders have synced the message.

The message goes its usual way; its receipt is held back until k recorders have said that its
position is on disk with them (I2).  Only recorders count that leave nothing out and do sync.
Nobody is told yes who waited too long: the message has its place then, but whether it is on disk
is open (I5).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from roundelay.core.engine import SECOND
from roundelay.core.errors import ConfigError, NoRecorder, QueueFull
from roundelay.core.families import TOTAL
from roundelay.node.groups import family_of
from roundelay.node.node_api import Receipt, Refusal, Subscriber
from roundelay.wire.control import Recorded

if TYPE_CHECKING:
    from roundelay.node.node import Node
    from roundelay.node.recording.recorders import Recorders

WAITING_MAX: Final = 65_536
ASK_NS: Final = SECOND


class Awaited(Subscriber):
    """Stands between a group and an application that wants its message recorded."""

    __slots__ = ("_application", "_arrived", "_whose", "count", "due", "withheld")
    withheld: Receipt

    def __init__(
        self,
        application: Subscriber,
        count: int,
        due: int,
        arrived: Callable[[Awaited], None],
        whose: str = "recorders",
    ) -> None:
        self._application = application
        self.count = count
        self.due = due
        self._arrived = arrived
        self._whose = whose

    def receipt(self, receipt: Receipt) -> None:
        self.withheld = receipt
        self._arrived(self)

    def settle(self) -> None:
        self._application.receipt(self.withheld)

    def expire(self, have: int) -> None:
        reason = (
            f"it has its place (position {self.withheld.seq}), but {have} of {self.count} "
            f"{self._whose} have synced it in time; it may still be synced"
        )
        self._application.refused(Refusal(self.withheld.group, self.withheld.tag, reason, True))

    def refused(self, refusal: Refusal) -> None:
        self._application.refused(refusal)

    def writable(self, group: str) -> None:
        self._application.writable(group)


class HeldReceipts:
    """The receipts of one node that wait for disks, by group.

    `Durability` and `Syncing` say which disks count, and how many of them are enough.
    """

    def __init__(self, node: Node) -> None:
        self.node = node
        self._waiting: dict[str, list[Awaited]] = {}
        self._ask_due: dict[str, int] = {}

    @property
    def waiting(self) -> int:
        return sum(map(len, self._waiting.values()))

    def holders(self, group: str) -> Callable[[int], int]:
        """Return how many have a position of the group on disk, as known by now."""
        raise NotImplementedError

    def needed(self, awaited: Awaited, group: str) -> int:
        """Return how many disks are enough for a receipt."""
        return awaited.count

    def ask(self, group: str) -> None:
        """Let everybody say how far its disk is."""
        raise NotImplementedError

    def ask_now_and_then(self, group: str, now: int) -> None:
        if self._ask_due.get(group, 0) <= now:
            self._ask_due[group] = now + ASK_NS
            self.ask(group)

    def hold(self, awaited: Awaited) -> None:
        """The message has its place: pass on its receipt when it is on enough disks."""
        receipt = awaited.withheld
        awaited.count = self.needed(awaited, receipt.group)
        if receipt.seq < 0 or self.holders(receipt.group)(receipt.seq) >= awaited.count:
            awaited.settle()
        else:
            self._waiting.setdefault(receipt.group, []).append(awaited)

    def check(self, group: str, now: int = 0) -> None:
        """Somebody may have more of the group on disk; at `now`, who waits too long is told."""
        if group not in self._waiting:
            return
        holders, rest = self.holders(group), []
        for awaited in self._waiting.pop(group):
            count = holders(awaited.withheld.seq)
            if count >= self.needed(awaited, group):
                awaited.settle()
            elif awaited.due <= now:
                awaited.expire(count)
            else:
                rest.append(awaited)
        if rest:
            self._waiting[group] = rest + self._waiting.get(group, [])

    def on_tick(self, now: int) -> None:
        for group in list(self._waiting):
            self.check(group, now)
            if group in self._waiting:
                self.ask_now_and_then(group, now)


class Durability(HeldReceipts):
    """The receipts of one node that wait for recorders."""

    def __init__(self, recorders: Recorders) -> None:
        super().__init__(recorders.node)
        self._recorders = recorders

    def application(self, application: Subscriber, group: str, count: int) -> Awaited:
        """Return who takes the receipt of a broadcast in place of the application, and passes it on
        when `count` recorders have synced the message.

        Raises NoRecorder if there are not that many."""
        family = family_of(group)
        if family.order != TOTAL:
            allowed = f"only with a total order: {family.service} groups have none"
            raise ConfigError("durability", "recorded", allowed)
        there = len(self._words(group))
        if there < count:
            raise NoRecorder(group, there, count)
        if self.waiting >= WAITING_MAX:
            raise QueueFull(f"{WAITING_MAX} receipts wait for recorders already")
        now = time.monotonic_ns()
        self.ask_now_and_then(group, now)
        return Awaited(application, count, now + self.node.config.answer_ns, self.hold)

    def ask(self, group: str) -> None:
        self._recorders.want(group)

    def _words(self, group: str) -> list[Recorded]:
        words = [source.word for source in self._recorders.sources(group, lively=True)]
        return [word for word in words if word.whole and word.syncs]

    def holders(self, group: str) -> Callable[[int], int]:
        words = self._words(group)
        return lambda seq: sum(
            word.begin <= seq < word.durable and not any(lo <= seq < hi for lo, hi in word.holes)
            for word in words
        )
