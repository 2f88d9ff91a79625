"""What a site of the hierarchy keeps through a crash: the records of each of its levels."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

from msgspec import Struct, field

from roundelay.core.grsb.stable import NOTHING_HANDLED, GrsbStable, Handled

GLOBAL: Final = 0
LOCAL: Final = 1
NODE: Final = 2
"""Levels: GCR, GDA and GPR; the roles of a network; a node of the second kind."""


class Kept(Struct, frozen=True, gc=False):
    """A record of one level."""

    level: int
    record: Struct


class Freed(Struct, frozen=True, gc=False):
    """HG-3: all networks have recorded everything below `upto`; a GPR needs it no more."""

    upto: int


class Flooded(Struct, frozen=True, gc=False):
    """HG-9: everything below `upto` has been given to the subnet."""

    upto: int


class GlobalStable(GrsbStable):
    """Of the global level: a GPR may let the oldest go."""

    freed: int = 0

    def apply(self, record: Struct) -> None:
        if isinstance(record, Freed):
            self.freed = max(self.freed, record.upto)
            self.end = max(self.end, record.upto)
            gone = bisect_left(self.positions, record.upto)
            del self.log[:gone], self.positions[:gone]
        else:
            super().apply(record)


class WideStable(Struct):
    """The folded records of one site, all in memory."""

    globe: GlobalStable = field(default_factory=GlobalStable)
    local: GrsbStable = field(default_factory=GrsbStable)
    handled: Handled = NOTHING_HANDLED
    flooded: int = 0

    def apply(self, record: Struct) -> None:
        if not isinstance(record, Kept):
            raise TypeError(f"not a record of the hierarchy: {record!r}")
        kept = record.record
        if isinstance(kept, Flooded):
            self.flooded = max(self.flooded, kept.upto)
        elif record.level == GLOBAL:
            self.globe.apply(kept)
        elif record.level == LOCAL:
            self.local.apply(kept)
        elif isinstance(kept, Handled):
            self.handled = kept
        else:
            raise TypeError(f"not a record of a node: {kept!r}")
