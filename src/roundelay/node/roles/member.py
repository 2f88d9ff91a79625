"""This node as a member of a group whose roles stand in a file: who it is, and what it drives.

A `journal` group has one level.  A `wide` group has the global level, its networks and the subnets
behind broadcasters, of which a member has some (`node.roles.wide.member`).  Everything else is the
same for both: beginning, files, sending, applications, status.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final

from msgspec import Struct

from roundelay.core.engine import SECOND
from roundelay.core.errors import ConfigError
from roundelay.core.grsb.config import GrsbConfig, Roles
from roundelay.core.grsb.pdu import LINE_B
from roundelay.core.grsb.site import GrsbSite
from roundelay.core.grsb.stable import Archive, Handled
from roundelay.core.wide.pdu import TRUNK
from roundelay.core.wide.stable import GLOBAL, LOCAL
from roundelay.node.groups import GroupSpec
from roundelay.node.roles.role_file import RoleFile, parse
from roundelay.node.storage.store import GrsbKept

if TYPE_CHECKING:
    from roundelay.node.node import Node

THERE_NS: Final = 3 * SECOND
"""Who has said who it is so short ago is there."""
GLOBAL_SUFFIX: Final = ".global"
"""Behind the group's name: the journal of a GPR."""
NAMED_MAX: Final = 8
"""Members that a state names."""


class RoleMember:
    """Who this node is in a group, who the others are, its engine; here, of a `journal` group."""

    parse_file: ClassVar[Any] = staticmethod(parse)
    kept_class: ClassVar[type[GrsbKept]] = GrsbKept
    listens = True
    """Whether a new user waits until it hears where the group is; else it begins at 0."""
    neighbours: tuple[int, ...] | None = None
    """The other sites that a multicast reaches; None: everybody."""

    def __init__(self, node: Node, spec: GroupSpec, file: RoleFile) -> None:
        if node.name not in file.members:
            raise ConfigError(
                "name", node.name, f"a member of {spec.name}: {', '.join(file.members)}"
            )
        self.node = node
        self.group = spec.name
        self.file = file
        self.roster = file.members
        self.me = self.roster.index(node.name)
        self.roles = file.roles
        self.role_names = file.titles[self.me]
        self.in_council = self.me in self.roles.council
        self.is_user = self.me in self.roles.users
        self.engine: Any = None
        """None until the member takes part."""
        self.levels: dict[int, Roles] = {LOCAL: self.roles}
        """The levels that this member may have a part in, and their roles."""

    def known_as(self, sites: Iterable[int]) -> str:
        """Members by name, with their roles."""
        shown = [f"{self.roster[site]} ({', '.join(self.file.titles[site])})" for site in sites]
        return shortened(shown)

    def gone(self, sites: Iterable[int]) -> tuple[int, ...]:
        """Those of them whose nodes are not heard of, on any line."""
        return tuple(site for site in sites if not self._there(self.roster[site]))

    def _there(self, name: str) -> bool:
        known = self.node.directory.by_name.get(name)
        recent = known is not None and time.monotonic_ns() - known.seen < THERE_NS
        return recent or self.node.alive(name)

    def make_engine(
        self, config: GrsbConfig, now: int, archives: Mapping[int, Archive], **options: Any
    ) -> Any:
        """The engine; `archives` are the journals by level."""
        rng, archive = self.node.rng, archives.get(LOCAL)
        return GrsbSite(self.me, self.roles, config, rng, now, archive=archive, **options)

    # -- lines -----------------------------------------------------------------------------

    def network_line(self) -> str:
        """The multicast group that this member needs beside the node's medium; empty: none."""
        return ""

    def from_retransmitter(self, sender: int, line: int) -> bool:
        """Whether what `sender` says there tells where the group is."""
        mine = self.levels.get(LOCAL)
        return mine is not None and sender in mine.retransmitters and line <= LINE_B

    def of_line(self, line: int) -> int:
        """The level whose PDUs go over `line`."""
        return GLOBAL if line == TRUNK else LOCAL

    def line_to_acknowledger(self, level: int) -> int:
        """Where a recorder of `level` reaches its acknowledger."""
        site = self.sites[level]
        return TRUNK if level == GLOBAL else site.ways.to(site.reign.da)

    # -- what is kept ----------------------------------------------------------------------

    def by_level(self, records: list[Struct]) -> dict[int, list[Struct]]:
        """What the engine wants to be kept."""
        return {LOCAL: records}

    def stored(self, level: int, record: Struct) -> Struct:
        """A record as it stands in the file."""
        return record

    def name(self, level: int) -> str:
        """What the journal of `level` is called."""
        return self.group + (GLOBAL_SUFFIX if level == GLOBAL else "")

    def progress(self) -> Struct:
        """How far the applications are, with what is about to be delivered."""
        user = self.shown.user
        resume = user.units.resume(user.listener.next)
        return Handled(user.upto, resume, user.listener.epoch)

    # -- what the engine knows -------------------------------------------------------------

    @property
    def sites(self) -> dict[int, GrsbSite]:
        """The engine, or its parts that are sites of GRSB groups, by level."""
        return {LOCAL: self.engine}

    @property
    def shown(self) -> Any:
        """The site, or what looks like one, that this member is shown by and has its user at."""
        return self.engine

    @property
    def user(self) -> Any:
        """Where applications are; None: nowhere, or not yet."""
        return None if self.engine is None else self.shown.user

    @property
    def waits(self) -> tuple[int, ...]:
        """Those without whom the group stands still, as far as the engine knows."""
        waits = [awaited for site in self.sites.values() for awaited in site.waits]
        return tuple(dict.fromkeys(waits))

    @property
    def council(self) -> Any:
        """The council member of this site: of the level that has no vote yet, if there is one."""
        councils = [site.council for site in self.sites.values() if site.council is not None]
        return next((council for council in councils if not council.voting), self.shown.council)

    @property
    def stuck(self) -> bool:
        """Whether the state that was shown last holds, whatever is heard."""
        return False

    def awaited(self, waits: tuple[int, ...]) -> tuple[int, ...]:
        """`waits`, and those whom only the levels let one suspect."""
        return waits

    def status(self, journals: Mapping[int, Any]) -> dict[str, object]:
        """What `status` shows of the levels beside what all groups have."""
        return {}


def shortened(names: list[str]) -> str:
    """The first of them."""
    return ", ".join(names[:NAMED_MAX]) + (" …" if len(names) > NAMED_MAX else "")
