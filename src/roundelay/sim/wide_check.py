"""Judges what the hierarchy promises (PROTOCOLS §7.7): as `grsb_check`, over all networks.

The order is what recorders of all networks and of the global level have; they must agree.  Nodes of
the second kind are held to the same where they repair; where they do not, they may lack what they
said they lack (`gap_unavailable`), and what a crash cost them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from msgspec import structs

from roundelay.core.engine import Notice
from roundelay.core.events import MEMORY
from roundelay.core.grsb.config import EVERYTHING
from roundelay.core.grsb.pdu import Message
from roundelay.core.grsb.stable import GrsbStable
from roundelay.core.wide.stable import GlobalStable
from roundelay.sim.grsb_check import Complain, GrsbCheck, surfaced


class WideCheck(GrsbCheck):
    """An observer of a `WideWorld`; `excused` are nodes that do not repair."""

    def __init__(self, complain: Complain, excused: Collection[int] = ()) -> None:
        super().__init__(complain)
        self.excused = frozenset(excused)
        self.gaps: dict[int, list[tuple[int, int]]] = {}
        self.hurt: set[int] = set()  # excused, and once down

    def noticed(self, time: int, site: int, notice: Notice) -> None:
        if notice.kind == "gap_unavailable" and site in self.excused:
            lo, hi = notice.info
            assert isinstance(lo, int)
            assert isinstance(hi, int)
            self.gaps.setdefault(site, []).append((lo, hi))
        else:
            super().noticed(time, site, notice)

    def crashed(self, time: int, site: int, keeps: str) -> None:
        super().crashed(time, site, keeps)
        if site in self.excused and keeps != MEMORY:
            self.hurt.add(site)

    def begins(self, stable: GrsbStable) -> int:
        return stable.freed if isinstance(stable, GlobalStable) else 0

    def agrees(self, message: Message, whole: dict[int, Message]) -> bool:
        plain = structs.replace(message, epoch=0)  # reigns of networks are their own
        return whole.setdefault(message.gseq, plain) == plain

    def finish(self, archives: Mapping[int, GrsbStable], users: tuple[int, ...]) -> None:
        """Everything has settled: judge it all."""
        super().finish(archives, tuple(user for user in users if user not in self.excused))
        if not users:
            return
        log = self.recorded(archives)
        for site in self.excused:
            due = surfaced(log, self.wanted.get(site, EVERYTHING))
            got = self.logs.get(site, [])
            at = {position for position, _ in got}
            extra = [one for one in got if one not in due]
            if extra:
                self.complain("I8", f"{len(extra)} not wanted, the first at {extra[0][0]}", site)
            if site in self.hurt:
                continue
            gaps = self.gaps.get(site, [])
            for position, bundle in due:
                if position in at:
                    continue
                if len(bundle) > 1 and gaps:
                    continue  # a unit, or a bundle: some of it may lie in a gap
                if not any(lo <= position < hi for lo, hi in gaps):
                    self.complain("I2", f"position {position} is missing and not said to be", site)
                    break
