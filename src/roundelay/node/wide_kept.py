"""What a member of a `wide` group keeps: the records of its levels, and its journals.

A level is a `journal` group in itself, so each has promises, senders and, if it records, a journal
of its own.  That of the network is the one that replays are served from.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from roundelay.core.grsb.config import Roles
from roundelay.core.grsb.site import GrsbSite
from roundelay.core.grsb.stable import Accepted, Ceiling, Handled, Promised
from roundelay.core.wide.stable import GLOBAL, LOCAL, NODE, Flooded
from roundelay.node.groups import GroupSpec
from roundelay.node.grsb_journal import SeatJournal
from roundelay.node.store import Began, Born, GrsbKept, Leveled, Senders

if TYPE_CHECKING:
    from roundelay.node.wide import WideSeat

GLOBAL_SUFFIX: Final = ".global"
"""Behind the group's name: the journal of a GPR."""


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
        found: list[Struct] = [record for record in every if isinstance(record, Born | Began)]
        for level, kept in self.levels.items():
            found += [Leveled.of(level, record) for record in kept.records()]
        if self.flooded:
            found.append(Leveled.of(LOCAL, Flooded(self.flooded)))
        return found


class LevelSeat:
    """A level of a `wide` group, as a journal sees its place."""

    def __init__(self, seat: WideSeat, level: int, roles: Roles) -> None:
        self.seat = seat
        self.level = level
        self.roles = roles
        self.node = seat.node
        self.me = seat.me
        self.roster = seat.roster
        self.file = seat.file
        self.history_name = seat.history_name
        name = seat.spec.name + (GLOBAL_SUFFIX if level == GLOBAL else "")
        self.spec = GroupSpec(name=name, protocol=seat.spec.protocol)

    def tell_recorded(self) -> None:
        self.seat.tell_level(self.level)


class LevelJournal(SeatJournal):
    """The journal of an LPR, or of a GPR, which serves LCRs only and no replays of applications."""

    def __init__(self, seat: LevelSeat) -> None:
        super().__init__(seat)  # type: ignore[arg-type]
        self.shared = seat.level == LOCAL

    def opened(self, site: GrsbSite) -> None:
        if self.shared:
            super().opened(site)
            return
        self.site = site
        if site.recorder is not None:
            site.recorder.counters = self.counters
            site.recorder.last_time = self.last_time
        self.adopting = self.loop.create_task(asyncio.sleep(0))
