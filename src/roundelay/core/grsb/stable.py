"""What a site keeps through a crash, and what a recorder's archive can do.

Council members persist their promises (`Promised`, `Accepted`) before they answer, an acknowledger
how far it may go (`Ceiling`) before it goes there; a recorder persists each message (`Stored`), or
its head, before it says that it has it; a user persists how far it has come (`Handled`).  A driver
folds the records with `GrsbStable.apply`, or puts `Stored` into a journal and gives the recorder an
`Archive` that reads it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final, Protocol

from msgspec import Struct, field

from roundelay.core.grsb.base import Counters, Reign
from roundelay.core.grsb.pdu import Message
from roundelay.core.selection import Selection


class Promised(Struct, frozen=True, gc=False):
    """No reign below `epoch` is supported any more."""

    epoch: int


class Accepted(Struct, frozen=True, gc=False):
    """The last reign supported."""

    reign: Reign


class Stored(Struct, frozen=True, gc=False):
    """A recorder has the next message of the order (a head if its filter leaves it out)."""

    message: Message


class Missing(Struct, frozen=True, gc=False):
    """Nobody has what lies between two positions any more."""

    lo: int
    hi: int


class Handled(Struct, frozen=True, gc=False):
    """A user has dealt with everything below `upto`; open units begin at `resume`.

    `epoch` is the last one it heard of by then.
    """

    upto: int
    resume: int
    epoch: int = 0

    def at(self, position: int | None, epoch: int = 0) -> Handled:
        """Where the application knows better how far it is; and in `epoch` at least."""
        upto = self.upto if position is None else position
        return Handled(upto, min(self.resume, upto), max(self.epoch, epoch))


NOTHING_HANDLED: Final = Handled(0, 0)


class Ceiling(Struct, frozen=True, gc=False):
    """No position from `upto` on was acknowledged here; the last one counts."""

    upto: int


class Archive(Protocol):
    """What a recorder reads: everything it has stored, by position."""

    @property
    def end(self) -> int:
        """The next position."""

    @property
    def missing(self) -> Sequence[tuple[int, int]]:
        """Stretches that nobody had any more."""

    def at_time(self, time: int) -> int:
        """The first position that is not older than `time` (µs)."""

    def select(self, since: int, until: int, selection: Selection, limit: int) -> list[Message]:
        """Messages and heads from `since` that `selection` takes, in order; where something is
        missing they jump."""


class GrsbStable(Struct):
    """The folded records of one site, all in memory: an `Archive` too."""

    promised: int = -1
    accepted: Reign | None = None
    ceiling: int = 0
    handled: Handled = NOTHING_HANDLED
    log: list[Message] = []
    positions: list[int] = []
    end: int = 0
    missing: list[tuple[int, int]] = []
    counters: Counters = field(default_factory=Counters)

    def apply(self, record: Struct) -> None:
        if isinstance(record, Stored):
            message = record.message
            self.log.append(message)
            self.positions.append(message.gseq)
            self.end = message.end
            self.counters.count(message)
        elif isinstance(record, Handled):
            self.handled = record
        elif isinstance(record, Promised):
            self.promised = record.epoch
        elif isinstance(record, Accepted):
            self.accepted = record.reign
            self.promised = max(self.promised, record.reign.epoch)
        elif isinstance(record, Ceiling):
            self.ceiling = record.upto
        elif isinstance(record, Missing):
            self.missing.append((record.lo, record.hi))
            self.end = record.hi
        else:
            raise TypeError(f"not a record of a GRSB site: {record!r}")

    def select(self, since: int, until: int, selection: Selection, limit: int) -> list[Message]:
        matches: list[Message] = []
        for i in range(bisect_left(self.positions, since), len(self.log)):
            message = self.log[i]
            if message.gseq >= until or len(matches) == limit:
                break
            if selection.takes(message):
                matches.append(message)
        return matches

    def at_time(self, time: int) -> int:
        at = bisect_left(self.log, time, key=lambda message: message.time)
        return self.positions[at] if at < len(self.log) else self.end
