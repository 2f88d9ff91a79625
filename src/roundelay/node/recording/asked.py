"""Where an application says that it is, and whether its group has such a position.

That cannot be known before the group's history is.  A node that hears of nobody may begin one of
its own and give that up when it meets the others, so a position that does not fit is no error
before there was time for that.  Where the position comes without a history, one that is ahead of
where the member *entered* the history cannot be of it, however far the group is by now: unless the
member was in it when the application came, or goes on from its disk, which may know less than the
application.  Otherwise what counts is how far the history is known to go: a member that has lost
its disk may take long to get to where others of the same history say that they are.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from roundelay.core.position import Position, holds

WAIT: Final = "wait"
FITS: Final = "fits"
NONE: Final = "none"

GRACE_S: Final = 1.0
LONG_S: Final = 3.0
"""How long a position may not fit: usually, and where we are alone or may be behind the others."""
CATCHING_UP_S: Final = 15.0
"""How long a member that gets further may take to where the application is: a group at work gets
further for ever, and a position of its future is none."""


class Asked(Struct):
    """One position, until it is known to be one of the group's history."""

    position: Position
    by_application: bool
    born: str
    """The history that the member was in when the application came."""
    _history: str = ""
    _entered: float = 0.0
    _since: float = 0.0
    _first: int = -1
    _end: int = -1

    def look(
        self,
        history: str,
        position: int,
        now: float,
        *,
        known_end: int,
        works: bool,
        alone: bool,
        from_disk: bool,
    ) -> str:
        """`history` and `position`: where the member is; empty or -1 while that is not known.
        `known_end`: how far anybody has said that this history goes."""
        if not history or position < 0:
            return WAIT
        if history != self._history:
            self._history, self._entered, self._since = history, now, now
            self._first = self._end = position
        strict = not (from_disk or self.position.history or history == self.born)
        end = max(position, known_end)
        reached = self._first if strict else end
        of_this_history = holds(history, self.position)
        if of_this_history and reached >= self.position.seq:
            return FITS
        patience = GRACE_S if not alone and (strict or not of_this_history) else LONG_S
        gets_further = end > self._end and now - self._entered < CATCHING_UP_S
        if not works or (gets_further and not strict):
            self._since = now
        self._end = end
        return NONE if now - self._since > patience else WAIT
