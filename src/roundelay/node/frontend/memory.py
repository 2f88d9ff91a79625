"""What a node holds for all its frontends together, and who is cut when that becomes too much.

Each connection has a limit of its own (`queue_bytes_max`), but a few hundred applications that do
not read would fill the machine's memory long before they have all reached it.  So there is one for
the sum: what waits to be read, and what has arrived of packets that are not complete.  When it is
passed, those go first that hold much and have not read for long; one that reads is not cut for
those that do not.

The sum is not added up at every write.  It cannot be more than the last sum and what was added
since; only when that passes the limit, it is counted anew.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from roundelay.node.frontend.connection import FrontendConnection

SHARE_LEAST: Final = 64 << 10
"""What each may have to read before a recorder is asked to give it the rest, at least."""


ALL_FULL: Final = "all connections hold too much"
"""Reason to count one under that was cut for the sake of the others."""


class FrontendMemory:
    """The sum over `connections`; `limit_bytes` is what it may be."""

    def __init__(self, limit_bytes: int, connections: Collection[FrontendConnection]) -> None:
        self.limit_bytes = limit_bytes
        self._connections = connections
        self._bound = 0
        """The sum is not above this."""
        self._counting = False

    @property
    def bytes(self) -> int:
        """What is held now."""
        return sum(connection.held_bytes for connection in self._connections)

    def added(self, size: int) -> None:
        """Somebody holds so much more."""
        self._bound += size
        if self._bound > self.limit_bytes and not self._counting:
            self._counting = True
            try:
                self._count()
            finally:
                self._counting = False

    def _count(self) -> None:
        total = self.bytes
        if total > self.limit_bytes:
            # Some room, so that the next write does not count again.
            goal = self.limit_bytes - self.limit_bytes // 8
            now = time.monotonic()
            detail = f"{total} bytes were held for all applications, at most {self.limit_bytes}"
            for connection in sorted(
                self._connections, key=lambda connection: connection.burden(now), reverse=True
            ):
                if total <= goal:
                    break
                total -= connection.held_bytes
                connection.cut(ALL_FULL, detail)
        self._bound = total

    @property
    def share(self) -> int:
        """What may wait for one application before it should get the rest from a recorder."""
        if self._bound <= self.limit_bytes // 2:
            return self.limit_bytes
        return max(SHARE_LEAST, self.limit_bytes // (2 * max(1, len(self._connections))))
