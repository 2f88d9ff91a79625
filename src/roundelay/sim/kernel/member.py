"""One simulated site: its engine, its clock, and its application's mailbox."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from roundelay.core.engine import NEVER, Delivery, Effects, Engine, Pdu
from roundelay.core.events import IDLE, NOTHING_LEFT
from roundelay.sim.kernel.disk import Disk

# States of a site.
UP: Final = "up"
PAUSED: Final = "paused"
DOWN: Final = "down"

TRUE_RATE: Final = 1000
"""Clock rate in thousandths: a site with rate 1100 sees time pass 10 % too fast."""


class Consumer:
    """A slow reader behind a node: a bounded mailbox, emptied one delivery at a time.

    When the mailbox overflows the node detaches the reader, which misses what comes until it is
    attached again.  `position` is the next one it expects.
    """

    __slots__ = (
        "attached", "drain_ns", "draining", "limit", "mailbox", "position", "reattach_ns",
        "received",
    )  # fmt: skip

    def __init__(self, limit: int, drain_ns: int, reattach_ns: int, position: int) -> None:
        self.limit = limit
        self.drain_ns = drain_ns
        self.reattach_ns = reattach_ns
        self.position = position
        self.received = 0  # deliveries so far
        self.mailbox: deque[Delivery] = deque()
        self.attached = True
        self.draining = False  # whether a drain is on the heap

    def take(self) -> None:
        """The reader takes the next delivery."""
        delivery = self.mailbox.popleft()
        self.position = delivery.seq + len(delivery.bundle)
        self.received += 1


class Member:
    """A site as the world sees it."""

    __slots__ = (
        "amid", "armed", "base_local", "base_now", "consumer", "disk", "engine", "forgot",
        "has_token", "held_back", "id", "incarnation", "index", "is_twin", "keeps", "kept",
        "position",
        "queue", "rate", "role", "spare", "state", "true_clock", "wake", "wakes",
    )  # fmt: skip

    def __init__(self, site: int, disk: Disk | None) -> None:
        self.id = site
        self.engine: Engine | None = None  # None while nothing can be handed to it
        self.kept: Engine | None = None  # the engine of a paused or deaf site
        self.state = DOWN
        self.keeps = NOTHING_LEFT  # what the crash left, while down
        # Something that happens in the middle of the next batch of effects; it says whether it did.
        self.amid: Callable[[Effects], bool] | None = None
        self.spare: Effects | None = None  # an empty batch, to be used again
        self.held_back: Effects | None = None  # the rest of a batch that waits for a slow disk
        self.disk = disk
        self.is_twin = False  # an earlier life of a site that was replaced (`twins`)
        self.incarnation = 0
        self.index = 0  # application messages submitted here so far
        self.position = 0  # next seq the application expects: it survives with the disk
        self.forgot = 0  # the application has everything below, though the disk has forgotten
        self.consumer: Consumer | None = None
        self.queue: deque[tuple[int, Pdu, int, int]] = deque()  # (source, pdu, ref, line)
        self.armed = NEVER  # local time of the armed wake-up
        self.wake = NEVER  # the same in true time: the heap's entry that counts
        self.wakes = 0  # wake-ups in the present instant
        self.has_token = False  # whether its engine knows of a token
        self.role = IDLE
        self.rate = TRUE_RATE
        self.true_clock = True
        self.base_now = 0
        self.base_local = 0

    def local(self, now: int) -> int:
        """What this site's monotonic clock shows at true time `now`."""
        if self.true_clock:
            return now
        return self.base_local + (now - self.base_now) * self.rate // TRUE_RATE

    def true_time(self, local: int) -> int:
        """The first true time at which the local clock shows `local`."""
        if self.true_clock:
            return local
        ahead = local - self.base_local
        return self.base_now - (-ahead * TRUE_RATE // self.rate)

    def set_clock(self, now: int, rate: int | None = None, jump_ns: int = 0) -> None:
        """Change rate and jump forward; a monotonic clock never goes back."""
        self.base_local = self.local(now) + jump_ns
        self.base_now = now
        if rate is not None:
            self.rate = rate
        self.true_clock = self.rate == TRUE_RATE and self.base_local == self.base_now
