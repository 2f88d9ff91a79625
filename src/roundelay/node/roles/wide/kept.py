"""What a member of a `wide` group keeps: the records of its levels.

A level is a `journal` group in itself, so each has promises and senders of its own.
"""

from __future__ import annotations

from msgspec import Struct

from roundelay.core.grsb.stable import Accepted, Ceiling, Handled, Promised
from roundelay.core.wide.stable import GLOBAL, LOCAL, NODE, Flooded
from roundelay.node.storage.store import Began, Born, GrsbKept, Leveled, Senders


class LevelKept(GrsbKept):
    """Of one level."""

    freed = 0  # a live GPR keeps its journal as long as the file says

    def records(self) -> list[Struct]:
        mine = (Promised, Accepted, Ceiling, Handled, Senders)
        return [record for record in super().records() if isinstance(record, mine)]


class WideKept(GrsbKept):
    """All that a member keeps, but the messages of its recorders; a `WideStable` too."""

    def __init__(self) -> None:
        super().__init__()
        self.globe = LevelKept()
        self.local = LevelKept()
        self.node = LevelKept()
        self.flooded = 0

    @property
    def levels(self) -> dict[int, LevelKept]:
        return {GLOBAL: self.globe, LOCAL: self.local, NODE: self.node}

    def apply(self, record: Struct) -> None:
        if isinstance(record, Leveled):
            inner = record.record
            if isinstance(inner, Flooded):
                self.flooded = max(self.flooded, inner.upto)
            else:
                self.levels[record.level].apply(inner)
                self.handled, self.resume = self.node.handled, self.node.resume
        else:
            super().apply(record)

    def records(self) -> list[Struct]:
        every = super().records()
        records: list[Struct] = [record for record in every if isinstance(record, Born | Began)]
        for level, kept in self.levels.items():
            records += [Leveled.of(level, record) for record in kept.records()]
        if self.flooded:
            records.append(Leveled.of(LOCAL, Flooded(self.flooded)))
        return records
