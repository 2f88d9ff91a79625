"""The one level of a `journal` group, driven by `core.grsb.site`."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from roundelay.core.grsb.config import GrsbConfig
from roundelay.core.grsb.site import GrsbSite
from roundelay.core.grsb.stable import Archive
from roundelay.core.selection import Selection
from roundelay.core.wide.stable import LOCAL
from roundelay.node.roles.grsb.file import read_file
from roundelay.node.roles.levels import Levels
from roundelay.node.roles.member import RoleMember
from roundelay.node.storage.store import GrsbKept


class GrsbLevels(Levels):
    """See the module."""

    kept_class = GrsbKept
    listens = True
    neighbours = None
    read_file = staticmethod(read_file)
    user_level = LOCAL
    stuck = False

    def __init__(self, member: RoleMember) -> None:
        super().__init__(member)
        self.recording = {LOCAL: member.roles}

    def begin(
        self, config: GrsbConfig, now: int, inc: int, stable: GrsbKept | None, wiped: bool,
        archives: Mapping[int, Archive], wanted: Selection,
    ) -> None:  # fmt: skip
        member = self.member
        self.engine = GrsbSite(
            member.me, member.roles, config, member.node.rng, now, inc=inc, stable=stable,
            wiped=wiped, archive=archives.get(LOCAL), wanted=wanted,
            base_us=time.time_ns() // 1000 - now // 1000,
        )  # fmt: skip

    def network_line(self) -> str:
        return ""

    def from_retransmitter(self, sender: int, line: int) -> bool:
        return sender in self.member.roles.retransmitters

    def of_line(self, line: int) -> int:
        return LOCAL

    def line_to_acknowledger(self, level: int) -> int:
        site = self.site(level)
        return site.ways.to(site.reign.da)

    def by_level(self, records: list[Struct]) -> dict[int, list[Struct]]:
        return {LOCAL: records}

    def stored(self, level: int, record: Struct) -> Struct:
        return record

    def kept_at(self, kept: GrsbKept, level: int) -> GrsbKept:
        return kept

    def name(self, level: int) -> str:
        return self.member.group

    def site(self, level: int) -> GrsbSite:
        site: GrsbSite = self.engine
        return site

    @property
    def shown(self) -> GrsbSite:
        return self.site(LOCAL)

    @property
    def waits(self) -> tuple[int, ...]:
        return self.shown.waits

    @property
    def council(self) -> Any:
        return self.shown.council

    def awaited(self, waits: tuple[int, ...]) -> tuple[int, ...]:
        return waits

    def status(self, journals: Mapping[int, Any]) -> dict[str, object]:
        return {}
