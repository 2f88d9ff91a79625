"""What a group needs of a live trace; `node.driver.tracing` opens them."""

from __future__ import annotations

from typing import Protocol

from roundelay.core.events import Row


class Tracer(Protocol):
    """Where rows of a live trace go (see `core.events`)."""

    rows: list[Row]
    position: int
    """Behind the last message that earlier lives of this member have delivered."""

    def forgot(self) -> None:
        """The member has nothing left of its earlier lives."""

    def flush(self) -> None: ...
