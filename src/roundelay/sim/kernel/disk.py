"""A site's disk."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from msgspec import Struct

from roundelay.core.token.stable import UNSYNCED, Forgot, Stable
from roundelay.sim.kernel.ports import StableState

WRITE_BACK: Final = 1024
"""Records after which the operating system has surely written them."""


class SimulatedDisk:
    """Folds persisted records into the state a restart finds.

    Records are folded in when somebody looks; those written last can be lost with the machine if
    they needed no sync.
    """

    __slots__ = ("_make", "_stable", "_tail")

    def __init__(self, make: Callable[[], StableState]) -> None:
        self._make = make
        self._stable: Any = make()
        self._tail: list[Struct] = []

    def write(self, records: list[Struct]) -> None:
        self._tail += records
        if len(self._tail) >= WRITE_BACK:
            self._fold()

    def _fold(self) -> None:
        apply = self._stable.apply
        for record in self._tail:
            apply(record)
        self._tail.clear()

    @property
    def stable(self) -> Any:
        """The state a restart finds: all that was written, but for what `lose_unsynced` took."""
        self._fold()
        if isinstance(self._stable, Stable):
            self._stable.whole = True
        return self._stable

    def lose_unsynced(self) -> int:
        """The machine dies: records after the last sync are gone.  Returns how many."""
        tail = self._tail
        kept = len(tail)
        while kept and isinstance(tail[kept - 1], UNSYNCED):
            kept -= 1
        lost = len(tail) - kept
        del tail[kept:]
        if isinstance(self._stable, Stable):
            tail.append(Forgot())  # as a node finds out by itself (`node.storage.tally`)
        return lost

    def wipe(self) -> None:
        self._stable = self._make()
        self._tail.clear()
