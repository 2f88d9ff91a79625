"""Whether what an application is handed is what comes next in the order.

A group's node says what it cannot give (`Missed`); here it is checked once more, at the last place
before the application, so that no fault on the way can make `seq` jump without an error: a message
is handed over if its position is the next one of the history the application is in.  One that the
application has is left out, and before one that is further on stands an error that names what is
missing.
"""

from __future__ import annotations

from typing import Final

from msgspec import structs

from roundelay.core.errors import (
    ConfigError,
    LeftOut,
    MissingMessages,
    NoSuchPosition,
    RoundelayError,
)
from roundelay.core.families import TOTAL
from roundelay.core.position import Position, Since, holds
from roundelay.node.groups import family_of
from roundelay.node.node_api import UNIT, Batch, Missed, View

RAISE: Final = "raise"
SKIP: Final = "skip"


def check_missing(missing: str) -> str:
    if missing not in (RAISE, SKIP):
        raise ConfigError("missing", repr(missing), f'"{RAISE}" or "{SKIP}"')
    return missing


def elsewhere(group: str, asked: Position, present: Position) -> NoSuchPosition:
    """What is raised to an application at `asked` when its group is at `present`."""
    ahead = holds(present.history, asked)
    why = "in the future of the history" if ahead else "of another history of the group"
    return NoSuchPosition(group, asked, present, f"that is {why}")


class Contiguity:
    """Where an application is in the order of its group."""

    def __init__(
        self, group: str, since: Position | None = None, missing: str = RAISE, timed: bool = False
    ) -> None:
        """`since`: where it goes on; None: where the group is when it has joined, or, if `timed`,
        at a time, of which the node knows the position."""
        family = family_of(group)
        self._group = group
        self._ordered = family.order == TOTAL
        # Where there are units, parts of those that never came to their end have positions, too.
        self._dense = self._ordered and not family.has_roles
        self._skip = check_missing(missing) == SKIP
        self._counting = since is not None or timed
        """It was given something, or has asked for it: no other history can stand in for this."""
        self._open = False
        """It has joined a group that works: what is missing from then on is missing."""
        self.history = since.history if since is not None else ""
        self.next = since.seq if since is not None else -1
        """The position that has to come next; -1: not known yet."""
        self.at = self.next
        """The position of the next message that the application has not been handed."""
        self._in = self.history
        """The history of `at`."""
        self._works = False
        """It has joined a group that works: there messages are given from then on."""
        self.skipped = 0
        """How many messages it was not given: nobody had them, and it did not want an error."""
        self.error: NoSuchPosition | None = None
        """It asked to begin at a position that there is not: it is given nothing."""

    def goes_on(self, began: Since) -> Since | None:
        """Where to join again after a break, having joined at `began`.  None: nobody could say what
        was missed, for there is no order, or messages are given before they have a place in it
        (`stage=`)."""
        if not self._ordered:
            return None
        if self.next >= 0:
            return Since(self.next, 0, self.history)
        return began if began.time or not (self._counting or self._works) else None

    @property
    def position(self) -> Position | None:
        """`at`, and its history; None: not known yet, or there is no order."""
        return Position(self._in, self.at) if self._ordered and self.at >= 0 else None

    def given(self, item: Batch | RoundelayError) -> None:
        """The application is given this, a batch perhaps message by message."""
        if isinstance(item, Batch):
            if item.seq >= 0:
                self.at, self._in = item.seq + item.positions, item.history or self._in
        elif isinstance(item, MissingMessages):
            self.at = item.last + 1
        elif isinstance(item, NoSuchPosition) and item is not self.error:
            self.at, self._in = item.present.seq, item.present.history

    def viewed(self, view: View) -> None:
        """Where the group is: there begins who asked for nothing else, and was given nothing."""
        self._works = self._works or view.state.startswith("open")
        if self._ordered and not self._counting and view.history and view.position >= 0:
            if not self._open or view.history != self.history:
                self.history, self.next = view.history, view.position
                self.at, self._in = self.next, self.history
            self._open = view.state.startswith("open")

    def next_of(self, item: Batch) -> tuple[RoundelayError | None, Batch | None]:
        """The error that the application gets before `item`, and what of that is new to it."""
        if item.seq < 0 or not self._ordered:
            self._dense, self._counting = False, True  # or given before it has a place (`stage=`)
            return None, item
        error = self._enter(item.history, item.seq)
        if self.next < 0 or (not self._counting and item.seq < self.next):
            self.next = item.seq  # it begins there
        if item.seq > self.next and self._dense and error is None:
            error = self._pass_over(item.seq)
        self._counting = True
        known = self.next - item.seq
        if known > 0:
            if item.unit == UNIT or known >= item.positions:
                return error, None
            rest = item.bundle.part(known, len(item.bundle.sizes))
            item = structs.replace(item, seq=self.next, bundle=rest)
        self.next = item.seq + item.positions
        return error, item

    def missed(self, missed: Missed) -> RoundelayError | None:
        """The node cannot give what comes next: the error that the application gets."""
        if missed.epoch >= 0:
            return None if self._skip else LeftOut(self._group, missed.epoch)
        if missed.was:
            asked = Position(missed.was, missed.lo)
            error = elsewhere(self._group, asked, Position(missed.history, missed.hi))
            if missed.final:
                self.error = error
                return error
            counted, self._counting = self._counting, True
            self.history, self.next = missed.history, missed.hi
            return error if counted and not self._skip else None
        other = self._enter(missed.history, missed.hi)
        if other is not None:
            return other
        if self.next < missed.lo and (self.next < 0 or not self._dense):
            self.next = missed.lo
        return self._pass_over(missed.hi)

    def _enter(self, history: str, seq: int) -> RoundelayError | None:
        """What follows is of that history."""
        before, self.history = self.history, history or self.history
        if not before or not history or before == history:
            return None
        asked = Position(before, max(0, self.next))
        if holds(history, asked):
            return None
        self.next = seq
        if self._skip or not self._counting:
            return None
        return elsewhere(self._group, asked, Position(history, seq))

    def _pass_over(self, to: int) -> RoundelayError | None:
        first, self.next = max(0, self.next), max(self.next, to)
        if first >= to or not (self._counting or self._open):
            return None
        if self._skip:
            self.skipped += to - first
            return None
        return MissingMessages(self._group, first, to - 1)
