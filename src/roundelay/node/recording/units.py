"""Units as they were recorded (GR-19): part by part, to be put together again.

A user puts the units together that it hears (`core.grsb.units`).  Whoever gets its messages from a
recorder instead has to see the same at the same positions: a unit whole, where its last part is,
and nothing of one that was not completed.  A sender submits the parts of a unit in a row, so its
next submission either goes on with the unit or shows that there is none; and a part that is
missing shows in their numbers.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct, field

from roundelay.core.bundle import Bundle
from roundelay.core.grsb.pdu import ABORT, END, MIDDLE, SINGLE, START
from roundelay.journal.format import Run
from roundelay.journal.grsb import follows, mtype_of
from roundelay.node import node_api
from roundelay.node.node_api import UNIT, WHOLE, Batch

ABORTED: Final = "abort"
PARTS: Final = {START: node_api.START, MIDDLE: node_api.MIDDLE, END: node_api.END, ABORT: ABORTED}


class RecordedUnits(Struct):
    """The units of a stream of runs; of each sender one is open at most, of `limit` bytes."""

    limit: int
    open: dict[str, list[Run]] = field(default_factory=dict)
    seen: set[str] = field(default_factory=set)
    """Senders whose earlier messages are known here."""

    def lacks(self, run: Run) -> bool:
        """Whether `run` goes on with a unit that began before anything that is known here."""
        return mtype_of(run) in (MIDDLE, END) and run.sender not in self.seen

    def take(self, run: Run) -> list[Run]:
        """GR-19: what takes effect with `run`: itself, the unit it ends, or nothing (yet)."""
        mtype = mtype_of(run)
        self.seen.add(run.sender)
        parts = self.open.pop(run.sender, [])
        if mtype == SINGLE:
            return [run]
        if mtype == START:
            parts = []
        elif mtype == ABORT or not parts or not follows(parts[-1], run):
            return []
        parts.append(run)
        if sum(len(part.bundle.data) for part in parts) > self.limit:
            return []
        if mtype == END:
            return parts
        self.open[run.sender] = parts
        return []

    def void(self, sender: str) -> None:
        """Note that a part of the sender's unit cannot be had."""
        self.open.pop(sender, None)
        self.seen.add(sender)


def unit_batch(group: str, parts: list[Run]) -> Batch:
    """A unit as it is delivered."""
    last = parts[-1]
    bundle = Bundle.merged(part.bundle for part in parts).marked(last.conference, last.kind)
    return Batch(group, last.position, last.sender, last.time, bundle, UNIT)


def part_of_unit(run: Run) -> str:
    """What a run is of a unit; ABORTED: no message, but what the retransmitter noted itself, that a
    sender has started again."""
    return PARTS.get(mtype_of(run), WHOLE)
