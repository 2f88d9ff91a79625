"""A `wide` group at a node: the roles that the group's file gives it, on all levels.

Beginning, applications and files are those of a `journal` group (`node.grsb`); what is driven is
a `core.wide.site.WideSite`.  What is said within a network is multicast there: in a multicast group
of its own where the node's medium is multicast, else to each of its members.  Everything between
networks goes from node to node.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from ipaddress import IPv4Address
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from msgspec import Struct

from roundelay.core.grsb.base import Reign
from roundelay.core.grsb.config import Selection
from roundelay.core.grsb.pdu import LINE_A, LINE_B
from roundelay.core.grsb.site import GrsbSite
from roundelay.core.grsb.ways import Ways
from roundelay.core.wide import node as wide_node
from roundelay.core.wide.globe import GlobalRetransmitter
from roundelay.core.wide.pdu import TRUNK
from roundelay.core.wide.site import WideSite
from roundelay.core.wide.stable import GLOBAL, LOCAL, NODE, Kept, WideStable
from roundelay.node.grsb import GrsbSeat
from roundelay.node.grsb_journal import SeatJournal
from roundelay.node.grsb_tools import status_of
from roundelay.node.lines import open_line
from roundelay.node.media import Address, MulticastMedium
from roundelay.node.store import Born, GrsbKept, Leveled
from roundelay.node.wide_file import WideFile, read_file
from roundelay.node.wide_kept import LevelJournal, LevelSeat, WideKept

if TYPE_CHECKING:
    from roundelay.node.groups import GroupSpec
    from roundelay.node.node import Node


class NodeUser:
    """A node behind a broadcaster, with the face of a user."""

    up = True
    recorded = 0
    epoch = 0

    def __init__(self, node: wide_node.Node) -> None:
        self.node = node
        self.units = node.units

    @property
    def listener(self) -> NodeUser:
        return self

    @property
    def next(self) -> int:
        return self.node.flood.next

    @property
    def upto(self) -> int:
        return self.node.upto

    @property
    def wanted(self) -> Selection:
        return self.node.wanted

    @property
    def under_way(self) -> Any:
        return self.node.under_way

    @property
    def queue(self) -> Any:
        return self.node.queue


class LiveSite(WideSite):
    """With the face of a GRSB site: that of the network, or of the global level if it has none.

    A node behind a broadcaster has neither.
    """

    @property
    def level(self) -> Any:
        if self.local is not None or self.globe is not None:
            return self.local or self.globe
        assert self.node is not None
        return Outside(self.node)

    @property
    def reign(self) -> Reign:
        found: Reign = self.level.reign
        return found

    @property
    def heard_at(self) -> int:
        found: int = self.level.heard_at
        return found

    @property
    def ways(self) -> Ways:
        found: Ways = self.level.ways
        return found

    @property
    def waits(self) -> tuple[int, ...]:
        """Of its network and of the global level, as far as it is part of them."""
        parts = [part for part in (self.local, self.globe) if part is not None]
        return tuple(dict.fromkeys(one for part in parts for one in part.waits))

    @property
    def user(self) -> Any:
        return self.level.user

    @property
    def retransmitter(self) -> Any:
        return self.level.retransmitter

    @property
    def acknowledger(self) -> Any:
        return self.level.acknowledger

    @property
    def recorder(self) -> Any:
        return self.level.recorder

    @property
    def council(self) -> Any:
        """Of the level that has no vote yet, if there is one."""
        for part in (self.local, self.globe):
            if part is not None and part.council is not None and not part.council.voting:
                return part.council
        return self.level.council


class Outside:
    """What a node behind a broadcaster has of a GRSB site."""

    retransmitter = acknowledger = recorder = council = None

    def __init__(self, node: wide_node.Node) -> None:
        self.user = NodeUser(node)
        self.reign = node.host.reign
        self.ways = node.host.ways
        self.heard_at = node.host.heard_at


def line_of(group: Address, net: int) -> str:
    """The multicast group of a network beside that of the nodes.

    >>> line_of(("239.255.66.77", 6677), 2)
    '239.255.66.81:6681'
    """
    host = IPv4Address(group[0]) + 2 + net
    if not host.is_multicast:
        host = IPv4Address(group[0]) - 2 - net
    port = group[1] + 2 + net
    return f"{host}:{port if port <= 65535 else group[1] - 2 - net}"


class WideSeat(GrsbSeat):
    """One `wide` group at one node."""

    reads: Callable[[Path], WideFile] = staticmethod(read_file)
    kept_class = WideKept
    kept: WideKept
    site: Any

    def __init__(self, node: Node, spec: GroupSpec, now: int) -> None:
        self.journals: dict[int, LevelJournal] = {}
        super().__init__(node, spec, now)

    @property
    def wide_file(self) -> WideFile:
        return cast("WideFile", self.file)

    @property
    def net(self) -> int:
        return self.wide_file.atlas.net_of(self.me)

    # -- how it begins ---------------------------------------------------------------------

    def begin(self, now: int, *, again: bool, wiped: bool) -> None:
        medium = self.node.medium
        network = self.wide_file.atlas.network_of(self.me)
        attached = network is not None and self.me in network.attached
        if self.line is None and isinstance(medium, MulticastMedium) and attached:
            where = self.wide_file.lines.get(self.net) or line_of(medium.group, self.net)
            self.line = open_line(self.node, where, "")
        if not (attached or self.in_council):  # behind LB: from the beginning, or where it was
            self.kept.apply(Born(self.history_name, members=self.roster))
            self.save()
            self._open(now, again=True, wiped=False)
        else:
            super().begin(now, again=again, wiped=wiped)

    @property
    def kept_of_user(self) -> GrsbKept:
        return self.kept.local

    def _open_journals(self) -> None:
        atlas = self.wide_file.atlas
        roles = {GLOBAL: atlas.global_roles}
        if self.net:
            roles[LOCAL] = atlas.local_roles[self.net]
        for level, one in roles.items():
            if self.me in one.recorders:
                journal = LevelJournal(LevelSeat(self, level, one))
                journal.recall(self.kept.levels[level])
                self.journals[level] = journal
        self.journal = self.journals.get(LOCAL)

    def _opened(self) -> None:
        for level, journal in self.journals.items():
            journal.opened(self._part(level))

    def make_site(self, now: int, kept: GrsbKept | None, wiped: bool) -> Any:
        archives = {level: journal.archive for level, journal in self.journals.items()}
        return LiveSite(
            self.me, self.wide_file.atlas, cast("Any", self.config), self.node.rng, now,
            inc=self.inc, stable=cast("WideStable | None", kept), wiped=wiped,
            archive=archives.get(LOCAL), globe_archive=archives.get(GLOBAL),
            wanted=self._wanted(), base_us=time.time_ns() // 1000 - now // 1000,
        )  # fmt: skip

    def _part(self, level: int) -> GrsbSite:
        part = self.site.globe if level == GLOBAL else self.site.local
        assert isinstance(part, GrsbSite)
        return part

    # -- in and out ------------------------------------------------------------------------

    def _ours(self, sender: int, line: int) -> bool:
        network = self.wide_file.atlas.network_of(self.me)
        return network is not None and sender in network.retransmitters and line <= LINE_B

    def _recorded_first(self, records: list[Struct]) -> list[Struct]:
        levels: dict[int, list[Struct]] = {}
        for kept in records:
            assert isinstance(kept, Kept)
            levels.setdefault(kept.level, []).append(kept.record)
        rest: list[Struct] = []
        for level, mine in levels.items():
            journal = self.journals.get(level)
            left = mine if journal is None else journal.keep(mine)
            rest += [Leveled.of(level, record) for record in left]
        return rest

    def _handled(self) -> Struct:
        level = NODE if isinstance(self.site.user, NodeUser) else LOCAL
        return Leveled.of(level, super()._handled())

    def _journal_at(self, line: int) -> SeatJournal | None:
        return self.journals.get(GLOBAL if line == TRUNK else LOCAL)

    def _multicast(self, data: bytes, hint: int, line: int) -> None:
        """To the members of our network."""
        if self.line is not None:
            self.node.send_line(self.line.line, data, hint)
            return
        network = self.wide_file.atlas.network_of(self.me)
        for site in () if network is None else network.attached:
            if site != self.me:
                self._unicast(site, data, hint)

    def tell_level(self, level: int) -> None:
        """A journal has got further: the acknowledger of its level need not ask."""
        if self.site is not None:
            self._tell_recorded(self._part(level), TRUNK if level == GLOBAL else LINE_A)

    # -- what is known ---------------------------------------------------------------------

    def say_how(self, now: int) -> None:
        trunk = self.site.trunk
        if trunk is None or not (trunk.running and trunk.up and trunk.stuck):
            super().say_how(now)  # else what it has said when it got stuck still holds

    @property
    def council(self) -> tuple[int, ...]:
        found: tuple[int, ...] = self.site.level.roles.council
        return found

    def awaited(self) -> tuple[int, ...]:
        """Where the GCR is not heard though its node is, it is for want of others of its level."""
        waits = super().awaited()
        roles = self.wide_file.atlas.global_roles
        network = self.wide_file.atlas.network_of(self.me)
        if network is not None and self.me in network.nodes:
            # Nobody tells those behind LB: what is missing is what each message must pass.
            ways = (
                roles.retransmitters, roles.acknowledgers, network.retransmitters,
                network.acknowledgers, network.recorders[:1], (network.broadcaster,),
            )  # fmt: skip
            return tuple(dict.fromkeys(
                one for sites in ways if self.gone(sites) == sites for one in sites
            ))  # fmt: skip
        silent = [one for one in waits if one in roles.retransmitters]
        if silent and not self.gone(silent):
            waits += tuple(one for one in self.gone(roles.council) if one not in waits)
        return waits

    def status(self) -> dict[str, object]:
        found = super().status()
        names = self.wide_file.names
        found["network"] = self.net
        found["networks"] = [
            list(names(network.attached)) for network in self.wide_file.topology.networks
        ]
        site = self.site
        if site is None:
            return found
        if site.trunk is not None and site.trunk.running:
            found["trunk"] = "up" if site.trunk.up else "down"
            found["gcr"] = self.roster[site.trunk.gcr]
        globe = site.globe
        if globe is not None:
            shown = status_of(globe, self.roster)
            gcr = globe.retransmitter
            if isinstance(gcr, GlobalRetransmitter) and gcr.reigning:
                shown["networks"] = {
                    str(one.net): {"active": one.active, "acked": one.acked, "recorded": one.safe}
                    for one in gcr.branches.values()
                }
            if GLOBAL in self.journals:
                shown["journal"] = self.journals[GLOBAL].status()
            found["global"] = shown
        return found

    # -- the end ---------------------------------------------------------------------------

    def _close_journals(self) -> None:
        for journal in self.journals.values():
            journal.close()
        self.journals.clear()
        self.journal = None
