"""A member of a `wide` group: its levels, driven by `core.wide.site`, and what it keeps of them.

A level is a `journal` group in itself, so each has promises and senders of its own.

What is said within a network is multicast there: in a multicast group of its own where the node's
medium is multicast, else to each of its members.  Everything between networks goes from node to
node.
"""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import IPv4Address
from typing import TYPE_CHECKING, Any, cast

from msgspec import Struct, field

from roundelay.core.grsb.config import GrsbConfig
from roundelay.core.grsb.site import GrsbSite
from roundelay.core.grsb.stable import Archive
from roundelay.core.wide.config import WideConfig
from roundelay.core.wide.site import WideSite
from roundelay.core.wide.stable import GLOBAL, LOCAL, NODE, Flooded, Kept
from roundelay.node.groups import GroupSpec
from roundelay.node.medium.media import Address, MulticastMedium
from roundelay.node.roles.member import RoleMember
from roundelay.node.roles.status import site_status
from roundelay.node.roles.wide.file import WideFile, parse
from roundelay.node.storage.store import Began, Born, GrsbKept, Leveled

if TYPE_CHECKING:
    from roundelay.node.node import Node


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


class LevelKept(GrsbKept):
    """Of one level."""

    freed = 0  # a live GPR keeps its journal as long as the file says

    def records(self) -> list[Struct]:
        return [record for record in super().records() if not isinstance(record, Born | Began)]


class WideKept(GrsbKept):
    """All that a member keeps, but the messages of its recorders; a `WideStable` too."""

    globe: LevelKept = field(default_factory=LevelKept)
    local: LevelKept = field(default_factory=LevelKept)
    node: LevelKept = field(default_factory=LevelKept)
    flooded: int = 0

    @property
    def levels(self) -> Mapping[int, GrsbKept]:
        return {GLOBAL: self.globe, LOCAL: self.local, NODE: self.node}

    def apply(self, record: Struct) -> None:
        if isinstance(record, Leveled):
            inner = record.record
            if isinstance(inner, Flooded):
                self.flooded = max(self.flooded, inner.upto)
            else:
                self.levels[record.level].apply(inner)
                self.handled = self.node.handled
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


class WideMember(RoleMember):
    """See the module."""

    parse_file = staticmethod(parse)
    kept_class = WideKept
    file: WideFile
    neighbours: tuple[int, ...]

    def __init__(self, node: Node, spec: GroupSpec, file: WideFile) -> None:
        super().__init__(node, spec, file)
        self.atlas = atlas = file.atlas
        self.net = atlas.net_of(self.me)
        self.network = network = atlas.network_of(self.me)
        self.attached = network is not None and self.me in network.attached
        self.listens = self.attached or self.in_council
        attached = () if network is None else network.attached
        self.neighbours = tuple(site for site in attached if site != self.me)
        self.levels = {GLOBAL: atlas.global_roles}
        if self.net:
            self.levels[LOCAL] = atlas.local_roles[self.net]

    def make_engine(
        self, config: GrsbConfig, now: int, archives: Mapping[int, Archive], **options: Any
    ) -> WideSite:
        constants = cast("WideConfig", config)
        options |= {"archive": archives.get(LOCAL), "globe_archive": archives.get(GLOBAL)}
        return WideSite(self.me, self.atlas, constants, self.node.rng, now, **options)

    # -- lines -----------------------------------------------------------------------------

    def network_line(self) -> str:
        medium = self.node.medium
        if not (self.attached and isinstance(medium, MulticastMedium)):
            return ""
        return self.file.lines.get(self.net) or line_of(medium.group, self.net)

    # -- what is kept ----------------------------------------------------------------------

    def by_level(self, records: list[Struct]) -> dict[int, list[Struct]]:
        levels: dict[int, list[Struct]] = {}
        for kept in records:
            assert isinstance(kept, Kept)
            levels.setdefault(kept.level, []).append(kept.record)
        return levels

    def stored(self, level: int, record: Struct) -> Struct:
        return Leveled.of(level, record)

    def progress(self) -> Struct:
        return self.stored(LOCAL if self.sites else NODE, super().progress())

    # -- what the engine knows -------------------------------------------------------------

    @property
    def sites(self) -> dict[int, GrsbSite]:
        """That of the network and that of the global level, as far as there are any."""
        parts = {LOCAL: self.engine.local, GLOBAL: self.engine.globe}
        return {level: part for level, part in parts.items() if part is not None}

    @property
    def shown(self) -> Any:
        """That of the network, or of the global level if it has none; behind a broadcaster there
        is neither."""
        return self.engine.local or self.engine.globe or self.engine.node.host

    @property
    def stuck(self) -> bool:
        """What it has said when its uplink got stuck."""
        uplink = self.engine.uplink
        return uplink is not None and uplink.running and uplink.up and uplink.stuck

    def awaited(self, waits: tuple[int, ...]) -> tuple[int, ...]:
        """Where the GCR is not heard though its node is, it is for want of others of its level."""
        roles, network, gone = self.atlas.global_roles, self.network, self.gone
        if network is not None and self.me in network.nodes:
            # Nobody tells those behind LB: what is missing is what each message must pass.
            ways = (
                roles.retransmitters, roles.acknowledgers, network.retransmitters,
                network.acknowledgers, network.recorders[:1], (network.broadcaster,),
            )  # fmt: skip
            missing = [site for sites in ways if gone(sites) == sites for site in sites]
            return tuple(dict.fromkeys(missing))
        silent = [site for site in waits if site in roles.retransmitters]
        if silent and not gone(silent):
            waits += tuple(site for site in gone(roles.council) if site not in waits)
        return waits

    def status(self, journals: Mapping[int, Any]) -> dict[str, object]:
        networks = self.atlas.topology.networks
        status: dict[str, object] = {
            "network": self.net,
            "networks": [list(self.file.names(network.attached)) for network in networks],
        }
        if self.engine is None:
            return status
        roster, uplink, globe = self.roster, self.engine.uplink, self.engine.globe
        if uplink is not None and uplink.running:
            status["trunk"] = "up" if uplink.up else "down"
            status["gcr"] = roster[uplink.gcr]
        if globe is not None:
            shown = site_status(globe, globe, roster, globe.waits, globe.council)
            gcr = globe.retransmitter
            if gcr is not None and gcr.reigning:
                shown["networks"] = {
                    str(branch.net): {
                        "active": branch.active,
                        "acked": branch.acked,
                        "recorded": branch.safe,
                    }
                    for branch in gcr.branches.values()
                }
            if GLOBAL in journals:
                shown["journal"] = journals[GLOBAL].journal_status()
            status["global"] = shown
        return status
