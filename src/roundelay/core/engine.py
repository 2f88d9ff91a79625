"""The shape of every engine: verbs in, one batch of effects out, one deadline.

A driver (the simulator's world, a live node, the explorer) owns time and the network::

    engine.submit(bundle, now); engine.receive(pdu, source, now, line); engine.on_timer(now)
    effects = engine.take()      # carry out: persists, then sends, then deliveries, then notices
    if engine.deadline != armed: ...   # call on_timer(now) when it has passed

All engines are made alike: `Site(me, group, config, rng, now)`, then by keyword what only some
have, such as `stable=`, what a crash left on disk.  `group` is a tuple of members, or where they
differ in what they do, who does what (`Roles`, `Atlas`).

An engine never blocks, never fails on a peer's input (it counts and drops, see `drops`) and never
looks at a clock.  Calling `on_timer` before the deadline is harmless.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Final, Protocol

from msgspec import Struct

from roundelay.core.bundle import Bundle
from roundelay.core.notices import Notice as Notice  # noqa: PLC0414 - it belongs to the shape

NEVER: Final = 1 << 62
"""A deadline that does not come (ns)."""

EVERYONE: Final = -1
"""Destination of a multicast: every member of the group but the sender."""

ONLY_LINE: Final = 0
"""The line of a group that has but one."""

UNKNOWN_LIFE: Final = 0
"""The life of a sender of which nothing is said."""

NO_POSITION: Final = -1
"""The position of an engine whose service has no total order."""

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


class Effects:
    """What an engine wants done, in this order: persists, sends, deliveries, notices.

    The order is a promise to peers and application: a vote must not leave before what it promises
    is durable, and nothing is delivered whose position a restart would forget.
    """

    __slots__ = ("deliveries", "notices", "persists", "sends")

    def __init__(self) -> None:
        self.persists: list[Struct] = []
        self.sends: list[tuple[int, Pdu, int]] = []  # (destination or EVERYONE, pdu, line)
        self.deliveries: list[Delivery] = []
        self.notices: list[Notice] = []

    def __bool__(self) -> bool:
        return bool(self.persists or self.sends or self.deliveries or self.notices)


EMPTY: Final = Effects()
"""What `take` returns when there is nothing to do.  Never written to."""


class Emitter:
    """A member of a group, as far as it wants things done: an engine, or a part of one."""

    __slots__ = ("drops", "group", "me", "out")

    def __init__(self, me: int, group: tuple[int, ...]) -> None:
        self.me = me
        self.group = group
        self.out = Effects()
        self.drops: dict[str, int] = {}  # a peer's input we refused, counted by reason

    def take(self, spare: Effects | None = None) -> Effects:
        """Hand over the effects since the last call.

        `spare` is an empty batch for what follows: making one costs more than using it.
        """
        out = self.out
        if out.sends or out.deliveries or out.persists or out.notices:
            self.out = Effects() if spare is None else spare
            return out
        return EMPTY

    def send(self, dst: int, pdu: Pdu, line: int = ONLY_LINE) -> None:
        """Send `pdu` to a member, or to EVERYONE."""
        self.out.sends.append((dst, pdu, line))

    def notify(self, notice: Notice) -> None:
        """Tell the application."""
        self.out.notices.append(notice)

    def drop(self, reason: str) -> None:
        """Count an input that is refused."""
        self.drops[reason] = self.drops.get(reason, 0) + 1


class HandsOnToken(Protocol):
    """The part of an engine that knows where the token is."""

    holding: bool
    passing: int
    """The stamp with which it was passed on, while nobody is seen to have it; or -1."""


class Engine(Emitter, ABC):
    """One member in one group."""

    __slots__ = ("deadline",)

    stopped = False
    """Whether nothing more is sent or delivered, for good: a member has failed that is needed."""

    def __init__(self, me: int, group: tuple[int, ...]) -> None:
        super().__init__(me, group)
        self.deadline = NEVER

    @property
    def token(self) -> HandsOnToken | None:
        """Where the token is, of protocols that have one."""
        return None

    def arm(self, due: int) -> int:
        """Make sure that `on_timer` is called by `due`, which is returned."""
        if due < self.deadline:
            self.deadline = due
        return due

    @abstractmethod
    def submit(self, bundle: Bundle, now: int) -> int | None:
        """Broadcast `bundle`; where notices name own messages, return the number of its first.

        Raises QueueFull or PayloadTooLarge and then changes nothing.
        """

    @abstractmethod
    def receive(
        self, pdu: Pdu, source: int, now: int, line: int = ONLY_LINE, life: int = UNKNOWN_LIFE
    ) -> None:
        """`pdu` arrived from member `source` on `line`; `life` is which start of it has sent it."""

    @abstractmethod
    def on_timer(self, now: int) -> None:
        """Do whatever is due at `now`."""

    def reform(self, now: int) -> None:
        """Begin to agree anew on who is a member, where the protocol does that."""

    @property
    def position(self) -> int:
        """The place in the group's total order of what is delivered next, or NO_POSITION."""
        return NO_POSITION

    @property
    def answered_below(self) -> int:
        """Own bundles with lower numbers are known to be with everybody; NO_POSITION where their
        delivery here says that."""
        return NO_POSITION

    @property
    def is_formed(self) -> bool:
        """Whether the members are agreed on, so that a message would be sent."""
        return True

    @property
    def takes_more(self) -> bool:
        """Whether nothing that was submitted still waits here for its turn."""
        return True

    def busy(self) -> bool:
        """Whether something that was submitted still waits, here or for others."""
        return False

    def given_up(self) -> tuple[int, ...]:
        """Members that are taken for failed, where the protocol does not go on without them."""
        return ()

    def kept_deliveries(self) -> Iterator[Delivery]:
        """What was delivered and is still kept, in order, where the engine keeps any."""
        return iter(())

    def shown(self) -> dict[str, object]:
        """As JSON: what else there is to say of it."""
        return {}

    def bounds(self) -> dict[str, tuple[int, int]]:
        """By name: how much of everything is held now, and at most (invariant I6)."""
        return {}

    def usage(self) -> dict[str, int]:
        return {name: used for name, (used, _) in self.bounds().items()}

    def caps(self) -> dict[str, int]:
        return {name: cap for name, (_, cap) in self.bounds().items()}

    def check_invariants(self) -> None:
        """Raise InvariantBroken if the state is one that no sequence of calls may lead to."""
