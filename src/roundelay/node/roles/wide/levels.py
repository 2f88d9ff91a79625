"""The levels of a `wide` group, driven by `core.wide.site`.

What is said within a network is multicast there: in a multicast group of its own where the node's
medium is multicast, else to each of its members.  Everything between networks goes from node to
node.
"""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any, Final, cast

from msgspec import Struct

from roundelay.core.grsb.config import GrsbConfig
from roundelay.core.grsb.pdu import LINE_A, LINE_B
from roundelay.core.grsb.site import GrsbSite
from roundelay.core.grsb.stable import Archive
from roundelay.core.wide.config import WideConfig
from roundelay.core.wide.global_level import GlobalRetransmitter
from roundelay.core.wide.pdu import TRUNK
from roundelay.core.wide.site import WideSite
from roundelay.core.wide.stable import GLOBAL, LOCAL, NODE, Kept
from roundelay.node.medium.media import Address, MulticastMedium
from roundelay.node.roles.levels import Levels
from roundelay.node.roles.member import RoleMember
from roundelay.node.roles.status import site_status
from roundelay.node.roles.wide.file import WideFile, read_file
from roundelay.node.roles.wide.kept import WideKept
from roundelay.node.storage.store import GrsbKept, Leveled

GLOBAL_SUFFIX: Final = ".global"
"""Behind the group's name: the journal of a GPR."""


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


class WideLevels(Levels):
    """See the module."""

    kept_class = WideKept
    neighbours: tuple[int, ...]

    def __init__(self, member: RoleMember) -> None:
        super().__init__(member)
        self.file = cast("WideFile", member.file)
        atlas = self.file.atlas
        self.net = atlas.net_of(member.me)
        self.network = network = atlas.network_of(member.me)
        self.attached = network is not None and member.me in network.attached
        self.listens = self.attached or member.in_council
        attached = () if network is None else network.attached
        self.neighbours = tuple(site for site in attached if site != member.me)
        self.recording = {GLOBAL: atlas.global_roles}
        if self.net:
            self.recording[LOCAL] = atlas.local_roles[self.net]

    @staticmethod
    def read_file(path: Path) -> WideFile:
        return read_file(path)

    def _engine(
        self, config: GrsbConfig, now: int, archives: Mapping[int, Archive], **options: Any
    ) -> WideSite:
        member, constants = self.member, cast("WideConfig", config)
        options |= {"archive": archives.get(LOCAL), "globe_archive": archives.get(GLOBAL)}
        return WideSite(member.me, self.file.atlas, constants, member.node.rng, now, **options)

    # -- lines -----------------------------------------------------------------------------

    def network_line(self) -> str:
        medium = self.member.node.medium
        if not (self.attached and isinstance(medium, MulticastMedium)):
            return ""
        return self.file.lines.get(self.net) or line_of(medium.group, self.net)

    def from_retransmitter(self, sender: int, line: int) -> bool:
        network = self.network
        return network is not None and sender in network.retransmitters and line <= LINE_B

    def of_line(self, line: int) -> int:
        return GLOBAL if line == TRUNK else LOCAL

    def line_to_acknowledger(self, level: int) -> int:
        return TRUNK if level == GLOBAL else LINE_A

    # -- what is kept ----------------------------------------------------------------------

    def by_level(self, records: list[Struct]) -> dict[int, list[Struct]]:
        levels: dict[int, list[Struct]] = {}
        for kept in records:
            assert isinstance(kept, Kept)
            levels.setdefault(kept.level, []).append(kept.record)
        return levels

    def stored(self, level: int, record: Struct) -> Struct:
        return Leveled.of(level, record)

    def kept_at(self, kept: WideKept, level: int) -> GrsbKept:
        return kept.levels[level]

    def name(self, level: int) -> str:
        return self.member.group + (GLOBAL_SUFFIX if level == GLOBAL else "")

    # -- what the engine knows -------------------------------------------------------------

    @property
    def sites(self) -> list[GrsbSite]:
        """That of the network and that of the global level, as far as there are any."""
        return [site for site in (self.engine.local, self.engine.globe) if site is not None]

    def site(self, level: int) -> GrsbSite:
        site: GrsbSite = self.engine.globe if level == GLOBAL else self.engine.local
        return site

    @property
    def shown(self) -> Any:
        """That of the network, or of the global level if it has none; behind a broadcaster there
        is neither."""
        return self.sites[0] if self.sites else self.engine.node.host

    @property
    def user_level(self) -> int:
        return LOCAL if self.sites else NODE

    @property
    def waits(self) -> tuple[int, ...]:
        return tuple(dict.fromkeys(one for site in self.sites for one in site.waits))

    @property
    def council(self) -> Any:
        councils = [site.council for site in self.sites if site.council is not None]
        return next((council for council in councils if not council.voting), self.shown.council)

    @property
    def stuck(self) -> bool:
        """What it has said when its uplink got stuck."""
        uplink = self.engine.uplink
        return uplink is not None and uplink.running and uplink.up and uplink.stuck

    def awaited(self, waits: tuple[int, ...]) -> tuple[int, ...]:
        """Where the GCR is not heard though its node is, it is for want of others of its level."""
        roles, network, gone = self.file.atlas.global_roles, self.network, self.member.gone
        if network is not None and self.member.me in network.nodes:
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
        networks = self.file.atlas.topology.networks
        status: dict[str, object] = {
            "network": self.net,
            "networks": [list(self.file.names(network.attached)) for network in networks],
        }
        if self.engine is None:
            return status
        roster, uplink, globe = self.member.roster, self.engine.uplink, self.engine.globe
        if uplink is not None and uplink.running:
            status["trunk"] = "up" if uplink.up else "down"
            status["gcr"] = roster[uplink.gcr]
        if globe is not None:
            shown = site_status(globe, globe, roster, globe.waits, globe.council)
            gcr = globe.retransmitter
            if isinstance(gcr, GlobalRetransmitter) and gcr.reigning:
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
