"""The shape of every engine: verbs in, one batch of effects out, one deadline.

A driver (the simulator's world, a live node, the explorer) owns time and the network::

    engine.submit(bundle, now); engine.receive(pdu, source, now); engine.on_timer(now)
    effects = engine.take()      # carry out: persists, then sends, then deliveries, then notices
    if engine.deadline != armed: ...   # call on_timer(now) when it has passed

An engine never blocks, never fails on a peer's input (it counts and drops, see `drops`) and never
looks at a clock.  Calling `on_timer` before the deadline is harmless.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Final

from msgspec import Struct

from roundelay.core.bundle import Bundle

NEVER: Final = 1 << 62
"""A deadline that does not come (ns)."""

EVERYONE: Final = -1
"""Destination of a multicast: every member of the group but the sender."""

MS: Final = 1_000_000
SECOND: Final = 1_000_000_000

# Stages of a delivery.
STAMPED: Final = "stamped"  # token: has its place in the order, may still vanish with its holders
COMMITTED: Final = "committed"  # token: L-resilient, the promise
ACCEPTED: Final = "accepted"  # positive acknowledgement, cluster: it is here
PREACKNOWLEDGED: Final = "preacknowledged"  # cluster: known to be at every destination
ACKNOWLEDGED: Final = "acknowledged"  # cluster: every destination is known to know that


class Pdu(Struct, frozen=True, gc=False):
    """Base of all protocol data units: immutable, one object may be handed to all receivers."""


class Delivery(Struct, frozen=True, gc=False):
    """Messages handed to the application.

    `seq` is the dense position of the bundle's first message in the group's total order (the
    following messages of the bundle have seq + 1, …), or -1 where the service has no such order.
    `number` is the source's own number of the bundle.
    """

    seq: int
    source: int
    number: int
    bundle: Bundle
    stage: str


class Notice(Struct, frozen=True, gc=False):
    """Something the application may want to know.

    kind: `view` (version, members, token_site), `suspect` (member,), `blocked` (reason,),
    `unblocked` (), `gap_unavailable` (lo, hi: half-open range of `seq` that must come from
    elsewhere), `indeterminate` (lo, hi: half-open range of own numbers whose fate is unknown),
    `broken` (reason,), `undelivered` (bundles: own messages given back when a cluster is reopened).
    """

    kind: str
    info: tuple[object, ...] = ()


class Effects:
    """What an engine wants done, in this order: persists, sends, deliveries, notices.

    The order is a promise to peers and application: a vote must not leave before what it promises
    is durable, and nothing is delivered whose position a restart would forget.
    """

    __slots__ = ("deliveries", "notices", "persists", "sends")

    def __init__(self) -> None:
        self.persists: list[Struct] = []
        self.sends: list[tuple[int, Pdu]] = []  # (destination or EVERYONE, pdu)
        self.deliveries: list[Delivery] = []
        self.notices: list[Notice] = []

    def __bool__(self) -> bool:
        return bool(self.persists or self.sends or self.deliveries or self.notices)


EMPTY: Final = Effects()
"""What `take` returns when there is nothing to do.  Never written to."""


class Engine(ABC):
    """One member in one group."""

    __slots__ = ("deadline", "drops", "group", "me", "out")

    def __init__(self, me: int, group: tuple[int, ...]) -> None:
        self.me = me
        self.group = group
        self.deadline = NEVER
        self.out = Effects()
        self.drops: dict[str, int] = {}  # a peer's input we refused, counted by reason

    @abstractmethod
    def submit(self, bundle: Bundle, now: int) -> None:
        """Broadcast `bundle`.  Raises QueueFull or PayloadTooLarge and then changes nothing."""

    @abstractmethod
    def receive(self, pdu: Pdu, source: int, now: int) -> None:
        """`pdu` arrived from member `source`."""

    @abstractmethod
    def on_timer(self, now: int) -> None:
        """Do whatever is due at `now`."""

    def take(self) -> Effects:
        """The effects since the last call, handed over to the caller."""
        out = self.out
        if out.sends or out.deliveries or out.persists or out.notices:
            self.out = Effects()
            return out
        return EMPTY

    def drop(self, reason: str) -> None:
        """Count an input that is refused."""
        self.drops[reason] = self.drops.get(reason, 0) + 1
