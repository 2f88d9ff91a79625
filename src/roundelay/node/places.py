"""What a node needs of a group: its place among the groups, and what it drives by datagrams.

For groups whose members find each other these are two things, the assembly and the engine it
hosts at present (`node.assembly`, `node.hosted`); a group whose roles come from a file is both
in one (`node.grsb`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Protocol

from roundelay.core.bundle import Bundle
from roundelay.core.engine import Pdu
from roundelay.node.groups import GroupSpec
from roundelay.node.one_channel import OneChannel
from roundelay.node.outbox import Outbox
from roundelay.node.switchboard import Application, Batch
from roundelay.wire.info import Ask, GroupInfo, Info, Start


class Driven(Protocol):
    """Something that datagrams with its id are for, and that has a deadline."""

    @property
    def id(self) -> int: ...

    @property
    def spec(self) -> GroupSpec: ...

    @property
    def hub(self) -> OneChannel | None: ...

    @property
    def deadline(self) -> int: ...

    delivered: int
    """Messages that were given to applications."""

    def receive(
        self, pdu: Pdu, sender: int, chan_seq: int, now: int, line: int = 0, life: int = 0
    ) -> None: ...  # fmt: skip

    def relay(
        self, data: bytes, pdu: Pdu, sender: int, chan_seq: int, now: int, life: int
    ) -> None: ...

    def on_timer(self, now: int) -> None: ...

    def flush(self, now: int) -> None: ...


class Place(Protocol):
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
        self, application: Application, since: int | None = None, since_time: int = 0,
        history: str = "",
    ) -> None:  # fmt: skip
        """`since_time`: not what was recorded before that (ns since 1970), either.  `history`: the
        one that `since` belongs to."""

    @property
    def data(self) -> Any:
        """What carries the messages, with its `position`; None before there is anything."""

    def history(self, since: int) -> Iterator[Batch]: ...

    def part(self, application: Application, now: int) -> None: ...

    def send(
        self,
        application: Application,
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
