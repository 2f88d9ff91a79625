"""What applications want to broadcast: gathered into bundles, followed until their fate is known.

Messages gather here while the engine has something under way; the next bundle takes as many as
fit.  The tags of a bundle's messages stay with it until it is settled (receipt), lost track of
(indeterminate) or has waited too long, which the caller learns as indeterminate as well while the
engine goes on trying.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any, Final

from msgspec import Struct

from roundelay.core.bundle import MESSAGES_MAX, Bundle
from roundelay.core.errors import PayloadTooLarge, QueueFull
from roundelay.node.node_api import NO_TAG, Receipt, Refusal, Subscriber

Waiter = tuple[Subscriber, int, int, int]
"""(who wants to know, its tag, index of the tag's last message in the bundle, how long it waits)"""


LIMIT_BYTES: Final = 4 << 20
"""What applications may have waiting in one group at one node."""
MESSAGE_COST: Final = 16
"""What a message counts beside its bytes, so that empty ones do not wait without a bound."""


def cost(bundle: Bundle) -> int:
    """What `bundle` counts against the limit of the queue."""
    return len(bundle.data) + MESSAGE_COST * len(bundle.sizes)


class Underway(Struct, eq=False):
    """A bundle the engine has, until its fate is known."""

    bundle: Bundle
    to: tuple[Any, ...] | None
    waiters: list[Waiter]
    number: int = -1
    """The engine's own number, where it is needed."""
    word: bool = False
    """Of the node itself, for the present roster only."""


class QueuedBundle(Struct, eq=False):
    """What one `send` brought: messages with one tag and one set of destinations.

    Destinations are names: the roster may change before it is their turn.
    """

    bundle: Bundle
    application: Subscriber
    tag: int
    to: tuple[Any, ...] | None
    due: int
    start: int = 0
    at: int = 0
    """Messages of it, and their bytes, that have gone into bundles."""

    def take(self, room: int, places: int, alone: bool) -> Bundle | None:
        """The next of its messages that fit into `room` bytes; one at least if `alone`."""
        bundle, start, at = self.bundle, self.start, self.at
        sizes = bundle.sizes
        end, last = start, min(len(sizes), start + places)
        if last == len(sizes) and len(bundle.data) - at <= room:
            end = last
        elif size := bundle.uniform:
            end = min(last, start + max(0, room) // size)
        else:
            while end < last and sizes[end] <= room:
                room -= sizes[end]
                end += 1
        if end == start:
            if not alone:
                return None
            end += 1
        taken = sizes[start:end]
        self.start, self.at = end, at + sum(taken)
        if bundle.marks:
            return bundle.part(start, end)
        return Bundle(taken, bundle.data[at : self.at])


class Outbox:
    """The sending side of one group at one node."""

    def __init__(self, group: str, largest: int, bundle_bytes: int, limit_bytes: int) -> None:
        self.group = group
        self.largest = largest
        """Bytes of one message."""
        self.bundle_bytes = bundle_bytes
        """Bytes that are put together; a larger message travels alone."""
        self.limit_bytes = limit_bytes
        self.items: deque[QueuedBundle] = deque()
        self.bytes = 0
        self.underway: deque[Underway] = deque()
        self.turned_away: dict[int, Subscriber] = {}  # who was told QueueFull
        self.again: deque[Underway] = deque()  # to be sent once more, before all others
        self.slowed = False  # a recorder is behind: nothing new for now

    def __bool__(self) -> bool:
        return bool((self.items and not self.slowed) or self.again)

    def put(
        self,
        application: Subscriber,
        bundle: Bundle,
        tag: int,
        to: tuple[str, ...] | None,
        due: int,
    ) -> None:
        """Queue the messages of `bundle`, all or none of them."""
        if max(bundle.sizes, default=0) > self.largest:
            raise PayloadTooLarge(
                f"a message of {max(bundle.sizes)} bytes: a group of this service takes up to "
                f"{self.largest}; send larger ones in parts or to a group without a prefix"
            )
        size = cost(bundle)
        if self.items and self.bytes + size > self.limit_bytes:
            self.turned_away[id(application)] = application
            raise QueueFull(
                f"{self.bytes} bytes wait to be sent to {self.group} "
                f"(at most {self.limit_bytes}): wait until some are"
            )
        self.items.append(QueuedBundle(bundle, application, tag, to, due))
        self.bytes += size

    def put_word(self, message: bytes) -> None:
        """Something the node itself has to say: before all others, and in a bundle of its own."""
        behind = sum(other.word for other in self.again)  # words keep their order
        self.again.insert(behind, Underway(Bundle.of(message), None, [], word=True))

    @property
    def has_word(self) -> bool:
        """Whether the next bundle is one of the node's own."""
        return bool(self.again) and self.again[0].word

    def gather(self) -> Underway:
        """The next bundle, as full as can be: of the last item perhaps only the first part."""
        if self.again:
            repeated = self.again.popleft()
            repeated.number = -1
            self.underway.append(repeated)
            return repeated
        items = self.items
        to = items[0].to
        parts: list[Bundle] = []
        waiters: list[Waiter] = []
        room, places, count = self.bundle_bytes, MESSAGES_MAX, 0
        while items and items[0].to == to:
            item = items[0]
            part = item.bundle
            if not item.start and len(part.data) <= room and len(part.sizes) <= places:
                item.start = len(part.sizes)  # all of it, as is usual
            elif (some := item.take(room, places, alone=not parts)) is not None:
                part = some
            else:
                break
            parts.append(part)
            count += len(part.sizes)
            if item.start < len(item.bundle.sizes):
                break
            room -= len(part.data)
            places -= len(part.sizes)
            if item.tag != NO_TAG:
                waiters.append((item.application, item.tag, count - 1, item.due))
            items.popleft()
        bundle = parts[0] if len(parts) == 1 else Bundle.merged(parts)
        self.bytes -= cost(bundle)
        self.underway.append(Underway(bundle, to, waiters))
        return self.underway[-1]

    def send_again(self) -> None:
        """What was under way certainly was not delivered: the next roster gets it first.

        Not what the node itself had to say about the roster before.
        """
        self.again = deque(bundle for bundle in (*self.underway, *self.again) if not bundle.word)
        self.underway.clear()

    def make_room(self) -> None:
        """Tell those who were turned away, once half of the queue is free."""
        if self.turned_away and self.bytes * 2 <= self.limit_bytes:
            waiting = list(self.turned_away.values())
            self.turned_away.clear()
            for application in waiting:
                application.writable(self.group)

    # -- fates -----------------------------------------------------------------------------

    def settle(
        self, seq: int, time: int, resilience: int = -1, bundle: Underway | None = None
    ) -> Underway | None:
        """A bundle under way, the oldest unless said otherwise, is delivered, its first message at
        `seq` (or -1), and `resilience` members may fail without its being lost (-1: the service
        has no L)."""
        if not self.underway:
            return None
        settled = bundle or self.underway[0]
        self.underway.remove(settled)
        for application, tag, index, _ in settled.waiters:
            place = seq + index if seq >= 0 else -1
            application.receipt(Receipt(self.group, tag, place, time, resilience=resilience))
        return settled

    def _refuse(self, waiters: Iterable[Waiter], reason: str, indeterminate: bool) -> None:
        for application, tag, _, _ in waiters:
            application.refused(Refusal(self.group, tag, reason, indeterminate))

    def _refuse_queued(self, item: QueuedBundle, reason: str, indeterminate: bool) -> None:
        if item.tag != NO_TAG:
            item.application.refused(Refusal(self.group, item.tag, reason, indeterminate))

    def lose_track(self, bundle: Underway, reason: str) -> None:
        """Nobody can say what became of a bundle; it is no longer followed."""
        self.underway.remove(bundle)
        self._refuse(bundle.waiters, reason, indeterminate=True)

    def refuse(self, bundle: Underway, reason: str) -> None:
        """A bundle that certainly is not sent."""
        self.underway.remove(bundle)
        self._refuse(bundle.waiters, reason, indeterminate=False)

    def expire(self, now: int, reason: str) -> None:
        """Answer callers who have waited long enough; their messages stay where they are."""
        for bundle in (*self.underway, *self.again):
            late = [waiter for waiter in bundle.waiters if waiter[3] <= now]
            if late:
                bundle.waiters = [waiter for waiter in bundle.waiters if waiter[3] > now]
                self._refuse(late, reason, indeterminate=True)
        for item in self.items:
            if item.due <= now:
                self._refuse_queued(item, reason, indeterminate=True)
                item.tag = NO_TAG

    def abandon(self, reason: str) -> None:
        """The group is closed here: what was never given to the engine certainly is not sent."""
        for item in self.items:
            self._refuse_queued(item, reason, indeterminate=item.start > 0)
        self.items.clear()
        self.bytes = 0
        self.underway.extend(self.again)
        self.again.clear()
        for bundle in list(self.underway):
            self.lose_track(bundle, reason)

    def withdraw(self, application: Subscriber, reason: str) -> None:
        """The application is turned away: what was not given to the engine yet is not sent."""
        for item in [queued for queued in self.items if queued.application is application]:
            begun = item.start > 0
            if not begun:
                self.items.remove(item)
                self.bytes -= cost(item.bundle)
            self._refuse_queued(item, reason, indeterminate=begun)
        for bundle in (*self.underway, *self.again):
            mine = [waiter for waiter in bundle.waiters if waiter[0] is application]
            self._refuse(mine, reason, indeterminate=True)
        self.forget(application)

    def forget(self, application: Subscriber) -> None:
        """Nobody is there to be told any more."""
        for bundle in (*self.underway, *self.again):
            bundle.waiters = [waiter for waiter in bundle.waiters if waiter[0] is not application]
        for item in self.items:
            if item.application is application:
                item.tag = NO_TAG
        self.turned_away.pop(id(application), None)
