"""Receipts that wait for disks: `durability="recorded"` and `durability="synced"`.

The message goes its usual way; its receipt is held back until enough disks have it.  Nobody is told
yes who waited too long: the message has its place then, but whether it is on disk is open (I5).

**Recorded**: k recorders have said that its position is on disk with them (I2).  Only recorders
count that leave nothing out and do sync.

**Synced**, for groups without recorders: L + 1 members have it on their disks.  It is committed
when so many have it in memory and in their files, unsynced.  While somebody waits for more
(`Wanted`), each member with a folder syncs its file and says up to which position it has
(`Synced`): one sync at a time, in a thread, for all that was written until it began.  So its cost
is one sync a batch, whatever the batch has become while the one before was under way, and the ring
does not wait.  A position counts for the history it was said of.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from roundelay.core.engine import SECOND
from roundelay.core.errors import ConfigError, NoRecorder, QueueFull
from roundelay.core.families import TOTAL
from roundelay.node.groups import MEMBERS_MAX, family_of
from roundelay.node.membership.group import GroupMembership
from roundelay.node.node_api import Receipt, Refusal, Subscriber
from roundelay.node.recording.heard import HeardWords
from roundelay.node.storage.store import Store
from roundelay.wire.control import Recorded, Synced, Wanted

if TYPE_CHECKING:
    from roundelay.node.node import Node
    from roundelay.node.recording.recorders import Recorders

WAITING_MAX: Final = 65_536
ASK_NS: Final = SECOND
WANTED_NS: Final = 3 * SECOND
"""For so long after somebody asked a member goes on syncing."""
HEARD_MAX: Final = 4096
FORGET_NS: Final = 30 * SECOND


class Awaited(Subscriber):
    """Stands between a group and an application that wants its message recorded."""

    __slots__ = ("_application", "_held", "count", "due", "withheld")
    withheld: Receipt

    def __init__(self, application: Subscriber, count: int, due: int, held: HeldReceipts) -> None:
        self._application = application
        self.count = count
        self.due = due
        self._held = held

    def receipt(self, receipt: Receipt) -> None:
        self.withheld = receipt
        self._held.hold(self)

    def settle(self) -> None:
        self._application.receipt(self.withheld)

    def expire(self, have: int) -> None:
        reason = (
            f"it has its place (position {self.withheld.seq}), but {have} of {self.count} "
            f"{self._held.whose} have synced it in time; it may still be synced"
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

    disks = whose = ""
    """What they wait for, and who counts."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self._waiting: dict[str, list[Awaited]] = {}
        self._ask_due: dict[str, int] = {}

    @property
    def waiting(self) -> int:
        return sum(map(len, self._waiting.values()))

    def awaited(self, application: Subscriber, group: str, count: int) -> Awaited:
        """See `Recorders.awaited`."""
        if self.waiting >= WAITING_MAX:
            raise QueueFull(f"{WAITING_MAX} receipts wait for {self.disks} already")
        now = time.monotonic_ns()
        self.ask_now_and_then(group, now)
        return Awaited(application, count, now + self.node.config.answer_ns, self)

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

    disks = whose = "recorders"

    def __init__(self, recorders: Recorders) -> None:
        super().__init__(recorders.node)
        self._recorders = recorders

    def awaited(self, application: Subscriber, group: str, count: int) -> Awaited:
        """Raises NoRecorder if there are not `count` of them."""
        family = family_of(group)
        if family.order != TOTAL:
            allowed = f"only with a total order: {family.service} groups have none"
            raise ConfigError("durability", "recorded", allowed)
        there = len(self._words(group))
        if there < count:
            raise NoRecorder(group, there, count)
        return super().awaited(application, group, count)

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


class Syncing(HeldReceipts):
    """What the members of all groups have synced, and who waits for it here."""

    disks, whose = "disks", "members"

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        self.syncs = 0
        self._heard = HeardWords[Synced](node, "members that sync", HEARD_MAX, FORGET_NS)
        self._until: dict[str, int] = {}  # how long syncs are wanted, by group
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def stop(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # -- those who wait --------------------------------------------------------------------

    def awaited(self, application: Subscriber, group: str, count: int) -> Awaited:
        family = family_of(group)
        if not family.resilient:
            allowed = f"only in resilient groups, not in {family.service} ones"
            raise ConfigError("durability", "synced", allowed)
        return super().awaited(application, group, count)

    def ask(self, group: str) -> None:
        self.node.send_control(Wanted(group, self.node.name, True))
        self.wanted(group, time.monotonic_ns())

    def _place(self, group: str) -> GroupMembership | None:
        place: object = self.node.group_hosts.get(group)
        return place if isinstance(place, GroupMembership) else None

    def holders(self, group: str) -> Callable[[int], int]:
        """Return how many members have synced a position of the present history."""
        place = self._place(group)
        if place is None:
            return lambda seq: 0
        history = place.history_id
        words = [word for word in self._heard.of(group) if word.name in place.roster]
        ends = [word.position for word in words if word.history == history]
        return lambda seq: sum(seq < end for end in ends)

    def needed(self, awaited: Awaited, group: str) -> int:
        place = self._place(group)
        if place is None or place.data is None or place.data.token is None:
            return MEMBERS_MAX + 1  # nobody can say
        return place.data.token.config.resilience + 1

    def on_tick(self, now: int) -> None:
        self._heard.forget(now)
        super().on_tick(now)

    def hear(self, word: Synced, now: int) -> None:
        if self._heard.hear(word, now):
            self.check(word.group)

    # -- our own file ----------------------------------------------------------------------

    def wanted(self, group: str, now: int) -> None:
        """Somebody waits: sync what is written, and what will be for a while."""
        place = self._place(group)
        if place is None or not family_of(group).resilient or self.node.config.dir is None:
            return
        self._until[group] = now + WANTED_NS
        if group not in self._tasks:
            task = asyncio.get_running_loop().create_task(self._work(group, place))
            self._tasks[group] = task
            task.add_done_callback(lambda _: self._tasks.pop(group, None))

    async def _work(self, group: str, place: GroupMembership) -> None:
        """Sync again and again, as long as somebody waits for it."""
        written, reported, again = asyncio.Event(), ("", -1), 0
        while not place.closed and (rest := self._until[group] - time.monotonic_ns()) > 0:
            data: Any = place.data
            store = data.store if data is not None else None
            here = (place.history_id, data.position if data is not None else -1)
            if isinstance(store, Store) and (here != reported or again != self._until[group]):
                data.on_delivered = written.set
                written.clear()
                again = self._until[group]
                # What the rosters before have written comes first.
                drivers = [*(before for _, before in place.epochs.lingering), data]
                try:
                    for driver in drivers:
                        # One that has ended meanwhile synced its file when it was closed.
                        if isinstance(driver.store, Store) and not driver.closed:
                            await driver.store.sync_beside()
                except OSError as error:
                    self.node.log("error", "group.not_synced", group=group, reason=str(error))
                    return
                if data.closed:
                    continue  # `here` is not where the group is any more
                self.syncs += 1
                reported = here
                word = Synced(group, self.node.name, *here)
                self.hear(word, time.monotonic_ns())
                self.node.send_control(word)
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(min(rest, ASK_NS) / SECOND):
                    await written.wait()

    def status(self) -> dict[str, object]:
        return {"waiting": self.waiting, "syncs": self.syncs}
