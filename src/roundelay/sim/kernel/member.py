"""One simulated site: its engine, its clock, and its application's mailbox."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from roundelay.core.engine import NEVER, Delivery, Effects, Engine, HandsOnToken, Pdu
from roundelay.core.events import IDLE, NOTHING_LEFT
from roundelay.sim.kernel.disk import SimulatedDisk

# States of a site.
UP: Final = "up"
PAUSED: Final = "paused"
DOWN: Final = "down"

TRUE_RATE: Final = 1000
"""Clock rate in thousandths: a site with rate 1100 sees time pass 10 % too fast."""


@dataclass(slots=True, eq=False)
class Consumer:
    """A slow reader behind a node: a bounded mailbox, emptied one delivery at a time.

    When the mailbox overflows the node detaches the reader, which misses what comes until it is
    attached again.  `position` is the next one it expects.
    """

    limit: int
    drain_ns: int
    reattach_ns: int
    position: int
    received: int = 0  # deliveries so far
    mailbox: deque[Delivery] = field(default_factory=deque)
    attached: bool = True
    draining: bool = False  # whether a drain is on the heap

    def take(self) -> None:
        """The reader takes the next delivery."""
        delivery = self.mailbox.popleft()
        self.position = delivery.seq + len(delivery.bundle)
        self.received += 1


@dataclass(slots=True, eq=False)
class SimulatedSite:
    """A site as the world sees it."""

    id: int
    disk: SimulatedDisk | None
    engine: Engine | None = None  # None while nothing can be handed to it
    kept: Engine | None = None  # the engine of a paused or deaf site
    state: str = DOWN
    keeps: str = NOTHING_LEFT  # what the crash left, while down
    amid: Callable[[Effects], bool] | None = None
    """Something that happens in the middle of the next batch of effects; it says whether it did."""
    spare: Effects | None = None  # an empty batch, to be used again
    held_back: Effects | None = None  # the rest of a batch that waits for a slow disk
    is_twin: bool = False  # an earlier life of a site that was replaced (`twins`)
    incarnation: int = 0
    index: int = 0  # application messages submitted here so far
    position: int = 0  # next seq the application expects: it survives with the disk
    forgot: int = 0  # the application has everything below, though the disk has forgotten
    consumer: Consumer | None = None
    queue: deque[tuple[int, Pdu, int, int]] = field(default_factory=deque)
    """(source, pdu, ref, line)"""
    armed: int = NEVER  # local time of the armed wake-up
    wake: int = NEVER  # the same in true time: the heap's entry that counts
    wakes: int = 0  # wake-ups in the present instant
    token: HandsOnToken | None = None  # of its engine, if there is one
    role: str = IDLE
    rate: int = TRUE_RATE
    true_clock: bool = True
    base_now: int = 0
    base_local: int = 0

    @property
    def holds_token(self) -> bool:
        """Whether it is up, and has the token of its group."""
        return self.engine is not None and self.token is not None and self.token.holding

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
