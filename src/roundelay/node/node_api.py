"""What an application and its node say to each other.

Two sides: a `Subscriber` is whatever sits on top of a node (a frontend connection, the embedded
client, a recorder); the `NodeApi` is the node as the subscriber sees it.  All calls happen in the
node's event loop and none of them blocks.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection
from typing import Final, Protocol

from msgspec import Struct

from roundelay.core.bundle import Bundle
from roundelay.core.position import LIVE, Since
from roundelay.journal.format import Run
from roundelay.node.groups import GroupSpec
from roundelay.wire.frontend_replay import ReplayRequest

WHOLE: Final = "whole"
UNIT: Final = "unit"
START: Final = "start"
MIDDLE: Final = "middle"
END: Final = "end"
"""What messages are of a unit (GR-19): none of one, all of one, or one part of it."""


class Batch(Struct, frozen=True, gc=False):
    """Messages of one sender that reached the application together."""

    group: str
    seq: int
    """Position of the first one in the group's total order; the rest follow densely.  -1 where
    the service has no such order."""
    sender: str
    """Name of the node that sent them."""
    time: int
    """Wall clock of this node when they were delivered (ns since 1970); of a replay, that of the
    recorder's."""
    bundle: Bundle
    """With conference and kind in its marks."""
    unit: str = WHOLE
    """`unit`: the messages are the parts of one, and `seq` is the position of the last, where they
    take effect.  A replay has parts alone: `start`, `middle` or `end`, each at its own position."""
    history: str = ""
    """The id of the history that `seq` belongs to (`core.position`); empty: not known."""

    @property
    def positions(self) -> int:
        """How many positions of the order it takes the application further."""
        return 1 if self.unit == UNIT else len(self.bundle.sizes)


class View(Struct, frozen=True):
    """Who is in the group, as far as this node knows."""

    group: str
    version: str
    """Grows with every change: `7.2` for list version (7, 2) of a token group."""
    members: tuple[str, ...]
    state: str
    """`open`, or why nothing moves: `forming`, `blocked: …`, `broken: …`."""
    history: str = ""
    """The id of the group's history (`core.position`); empty while it is not known."""
    position: int = -1
    """What the node delivers next; -1 while that is not known, or without a total order."""

    def as_json(self, members: list[dict[str, object]]) -> dict[str, object]:
        """The view, with what is known of each member."""
        about = {"group": self.group, "version": self.version, "state": self.state}
        return about | {"members": members}


class Receipt(Struct, frozen=True, gc=False):
    """A broadcast whose fate is known: it has its place in the order for good."""

    group: str
    tag: int
    """What the application called the broadcast."""
    seq: int
    """Position of its (last) message; -1 where the service has no total order."""
    time: int
    given_up: tuple[str, ...] = ()
    """Names of members that were lost, or left, before they had it (AutoRM)."""
    resilience: int = -1
    """L when it was committed; -1 where the service has none."""


class Refusal(Struct, frozen=True, gc=False):
    """A broadcast that will not be (or may not have been) delivered."""

    group: str
    tag: int
    reason: str
    indeterminate: bool
    """True: nobody can say whether it is delivered.  False: it certainly is not."""


class Missed(Struct, frozen=True, gc=False, omit_defaults=True):
    """Something an application has to know before it is given what follows."""

    group: str
    lo: int
    """Where the application is."""
    hi: int
    """Where it goes on: nobody has positions `lo` to `hi - 1`."""
    history: str
    """Of `hi`."""
    was: str = ""
    """The history of `lo`, where `lo` is no position of the present one (or is not yet)."""
    final: bool = False
    """The application is given nothing at all: it asked to begin at such a position."""
    epoch: int = -1
    """Not negative: there are no positions, and messages of this roster epoch and of later ones
    may be missing (`LeftOut`)."""


class Subscriber:
    """One who uses a node, and here ignores all it is told.  Nothing of this may block or raise."""

    is_recorder = False
    """It writes down what it is given, and asks for what it lacks by itself."""
    hosts_node = False
    """The node is there for it alone: it may have other roles than to serve it."""
    conferences: frozenset[int] = frozenset()
    """Only messages of these are wanted; empty: all."""
    held: Collection[str] = ()
    """Groups that it can take no more of now."""

    @property
    def full(self) -> bool:
        """It has so much to read that nothing of the past should be added to it."""
        return False

    def deliver(self, batch: Batch) -> None:
        """Messages of a group that the application joined, in that group's order."""

    def receipt(self, receipt: Receipt) -> None:
        """What it sent with a tag has its place."""

    def refused(self, refusal: Refusal) -> None:
        """What it sent with a tag has none; without a tag, it is in the group no more."""

    def viewed(self, view: View) -> None:
        """The membership or the state of a joined group changed; also once after `join`."""

    def writable(self, group: str) -> None:
        """After `send` raised QueueFull: there is room again."""

    def missed(self, missed: Missed) -> None:
        """What the application should be given next cannot be had."""


NO_TAG: Final = -1
"""`tag` of a broadcast nobody wants to hear of again; of a refusal that is of none."""
RECORDERS_MAX: Final = 254
MEMBERS: Final = 255
"""Instead of a number of recorders: L + 1 members must have synced it."""


class Send(Struct, frozen=True, gc=False):
    """Messages to broadcast."""

    group: str
    bundle: Bundle
    """With conference and kind in its marks."""
    tag: int = NO_TAG
    """With one, `receipt` or `refused` follows exactly once."""
    to: tuple[str, ...] | None = None
    """Names of the destinations (selective groups)."""
    someone: bool = False
    """To exactly one application of one node."""
    recorders: int = 0
    """The receipt waits until so many have synced the messages."""
    unit: bool = False
    """They take effect together, or not at all (groups that have a file of roles)."""


class NodeApi(Protocol):
    """The node as its applications see it.  Errors are `RoundelayError`s with a clear text."""

    def join(
        self,
        subscriber: Subscriber,
        group: str,
        since: Since = LIVE,
        wishes: GroupSpec | None = None,
    ) -> None:
        """Deliver the group's messages to `subscriber` from now on.  Harmless when repeated.

        `since`: first those from that position on, as far as the node still has them or a recorder
        of the group does; then live, with no gap and no duplicate.  With a time, of those only what
        was recorded then or later.  If there is no such position in the history that it names,
        `missed` says so.  `wishes`: settings that are asked for; raises SettingsMismatch if the
        group has others."""

    def leave(self, subscriber: Subscriber, group: str) -> None:
        """Stop doing so.  Harmless when not joined."""

    def gone(self, subscriber: Subscriber) -> None:
        """The subscriber is no more: leave all its groups, forget its tags."""

    def send(self, subscriber: Subscriber, send: Send) -> None:
        """Broadcast; needs no `join`.  Raises QueueFull, and then `writable(group)` follows;
        PayloadTooLarge; other RoundelayErrors."""

    def fell_behind(self, subscriber: Subscriber, group: str, since: int) -> bool:
        """The subscriber could not keep what comes at position `since`.  True: it gets that, and
        what follows, from a recorder as fast as it reads; False: nobody records the group."""

    def replay(
        self, group: str, request: ReplayRequest, reached: list[int] | None = None
    ) -> AsyncGenerator[list[Run], None]:
        """What is recorded of a group and wished for, in order; how far that goes is appended to
        `reached`."""

    def recover(self, group: str, *, do: bool = True) -> dict[str, object]:
        """As JSON: go on with a group from what the member here has; with `do` false, what that
        would mean."""

    def recorded(self, group: str) -> list[dict[str, object]]:
        """As JSON: the recorders of a group."""

    def members(self, group: str) -> dict[str, object]:
        """As JSON: the group's view and what is known of each member."""

    def groups(self) -> list[dict[str, object]]:
        """As JSON: every group this node hosts or has heard of."""

    def status(self) -> dict[str, object]:
        """As JSON: the node, its medium, counters, drops by reason, groups, frontends."""

    def why(self, node: str) -> dict[str, object]:
        """As JSON: why `node` (name or UUID) is dead or alive to this one."""
