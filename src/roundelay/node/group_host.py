"""What a node needs of a group: its place among the groups, and what it drives by datagrams.

For groups whose members find each other these are two things, the membership and the engine it
drives at present (`node.membership.group`, `node.driver.engine_driver`); a group whose roles come
from a file is both in one (`node.roles.group`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from roundelay.core.engine import NEVER, Pdu
from roundelay.core.position import Since
from roundelay.node.driver.channel_link import HubLink
from roundelay.node.driver.outbox import Outbox
from roundelay.node.groups import GroupSpec
from roundelay.node.node_api import Send, Subscriber, View
from roundelay.node.recording.memory import Memory
from roundelay.wire.control import Ask, GroupInfo, Info, Start

if TYPE_CHECKING:
    from roundelay.node.node import Node


class GroupDriver(Protocol):
    """Something that datagrams with its id are for, and that has a deadline."""

    @property
    def id(self) -> int: ...

    @property
    def spec(self) -> GroupSpec: ...

    @property
    def hub(self) -> HubLink | None:
        """Its end of a channel with a hub, if it has one."""

    @property
    def deadline(self) -> int: ...

    delivered: int
    """Messages that were given to applications."""

    def receive(
        self, pdu: Pdu, sender: int, chan_seq: int, now: int, line: int = 0, life: int = 0
    ) -> None: ...

    def on_timer(self, now: int) -> None: ...

    def carry_out(self, now: int) -> None: ...


class GroupHost:
    """A group at a node; as far as it is written here, one that takes part in nothing."""

    node: Node
    spec: GroupSpec
    outbox: Outbox
    applications: dict[int, Subscriber]
    """By identity; in the place of one that catches up stands its `CatchUp`."""
    closed = False
    leaving = False
    recalled = True
    """The member goes on from its disk, and may have forgotten what it delivered last."""
    entered: Sequence[str] = ()
    """Epochs that this node has been in, the latest ones."""
    memory: Memory | None = None
    """What was delivered lately; None: others keep that."""

    @property
    def deadline(self) -> int:
        return NEVER

    @property
    def data(self) -> Any:
        """What carries the messages, with its `position`; None before there is anything."""
        return None

    @property
    def roster(self) -> tuple[str, ...]:
        return ()

    @property
    def lineage(self) -> str:
        """The history that the member is in; empty: none yet."""
        return ""

    def join(self, application: Subscriber, since: Since) -> None:
        raise NotImplementedError

    def agree(self, wishes: GroupSpec) -> None:
        """Raise unless the group is what an application that joins asks for."""

    def part(self, application: Subscriber, now: int) -> None:
        """The application leaves."""

    def send(self, application: Subscriber, send: Send) -> None:
        raise NotImplementedError

    def on_timer(self, now: int) -> None:
        """The deadline has passed."""

    def trouble(self) -> str:
        """Why callers wait, for those who have waited long enough."""
        return self.view().state

    def view(self) -> View:
        raise NotImplementedError

    def status(self) -> dict[str, object]:
        raise NotImplementedError

    def members(self) -> dict[str, object]:
        """As JSON: the view, and what is known of each member."""
        view, alive = self.view(), self.node.alive
        members = [
            {"name": name, "alive": alive(name), "in_view": name in view.members}
            | self.about_member(place)
            for place, name in enumerate(self.roster)
        ]
        return view.as_json(members)

    def about_member(self, place: int) -> dict[str, object]:
        """What else there is to say of the member in that place of the roster."""
        return {}

    def works(self) -> bool:
        """Whether something can be agreed on at present."""
        return False

    def on_tick(self, now: int) -> None:
        """A few times a second: answer callers who have waited long enough."""
        self.outbox.expire(now, self.trouble())

    def heard(self, info: Info, now: int) -> None:
        """Another node said who it is, and in what groups."""

    def told(self, word: Ask | Start, now: int) -> None:
        """Another node wants in or out, or says that an epoch has begun."""

    def info(self) -> GroupInfo | None:
        """What other nodes are told of the group; None: nothing."""
        return None

    def leave(self, now: int) -> None:
        """Ask to be left out of the next roster, where there is a next one; then close."""

    def close(self, reason: str) -> None:
        """Take part no more; harmless when repeated."""

    def fail(self, reason: str) -> None:
        """The node cannot go on."""
