"""What a node needs of a group: its place among the groups, and what it drives by datagrams.

For groups whose members find each other these are two things, the membership and the engine it
drives at present (`node.membership.group`, `node.driver.engine_driver`); a group whose roles come
from a file is both in one (`node.roles.group`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from roundelay.core.bundle import Bundle
from roundelay.core.engine import Pdu
from roundelay.node.driver.channel_link import HubLink
from roundelay.node.driver.outbox import Outbox
from roundelay.node.groups import GroupSpec
from roundelay.node.node_api import Subscriber
from roundelay.node.recording.memory import Memory
from roundelay.wire.control import Ask, GroupInfo, Info, Start


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


class GroupHost(Protocol):
    """A group at a node."""

    @property
    def spec(self) -> GroupSpec: ...

    @property
    def outbox(self) -> Outbox: ...

    @property
    def leaving(self) -> bool: ...

    @property
    def deadline(self) -> int: ...

    def on_timer(self, now: int) -> None: ...

    def join(
        self,
        application: Subscriber,
        since: int | None = None,
        since_time: int = 0,
        history: str = "",
    ) -> None:
        """`since_time`: not what was recorded before that (ns since 1970), either.  `history`: the
        one that `since` belongs to."""

    @property
    def data(self) -> Any:
        """What carries the messages, with its `position`; None before there is anything."""

    @property
    def roster(self) -> tuple[str, ...]: ...

    @property
    def lineage(self) -> str:
        """The history that the member is in; empty: none yet."""

    @property
    def recalled(self) -> bool:
        """The member goes on from its disk, and may have forgotten what it delivered last."""

    @property
    def memory(self) -> Memory | None:
        """What was delivered lately; None: others keep that."""

    def agree(self, wishes: GroupSpec) -> None:
        """Raise unless the group is what an application that joins asks for."""

    def fell_behind(self, application: Subscriber, since: int) -> bool:
        """Whether an application that did not read for too long gets what comes from `since` on,
        as fast as it reads."""

    def on_tick(self, now: int) -> None:
        """A few times a second: answer callers who have waited long enough."""

    def part(self, application: Subscriber, now: int) -> None: ...

    def send(
        self,
        application: Subscriber,
        bundle: Bundle,
        tag: int,
        to: Iterable[str] | None,
        recorders: int = 0,
    ) -> None: ...

    def heard(self, info: Info, now: int) -> None: ...

    def told(self, word: Ask | Start, now: int) -> None: ...

    def info(self) -> GroupInfo | None: ...

    def works(self) -> bool: ...

    def trouble(self) -> str: ...

    def members(self) -> dict[str, object]: ...

    def status(self) -> dict[str, object]: ...

    def leave(self, now: int) -> None: ...

    def close(self, reason: str) -> None: ...

    def fail(self, reason: str) -> None: ...
