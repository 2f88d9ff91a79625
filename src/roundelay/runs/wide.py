"""One simulated run of the hierarchy: several networks, subnets behind some, users that are away.

Beacons are signs of life, polls, questions of nodes that miss nothing, and acknowledgements that
say nothing new.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from msgspec import structs

from roundelay.core.engine import Pdu
from roundelay.core.errors import ConfigError
from roundelay.core.grsb.pdu import Alive, DaAck, Poll, PollOk
from roundelay.core.grsb.site import GrsbSite
from roundelay.core.wide.pdu import Galive, LsAsk
from roundelay.core.wide.site import WideSite
from roundelay.core.wide.topology import Atlas
from roundelay.runs.line import BeaconMeter, LineRun, check_away
from roundelay.runs.measured import SITES
from roundelay.sim.families.wide import LEAST, WideApplications, WideGroup, WideLines, wide_group
from roundelay.trace.checkers.journal import JournalChecker
from roundelay.trace.recorder import Recorder

if TYPE_CHECKING:
    from roundelay.runs.simulate import SimulateParams

NETWORKS: Final = 3
SUBNET_SHARE: Final = 4
"""One site in so many is behind the broadcaster, unless told otherwise, in networks of …"""
SUBNET_LEAST: Final = 6
TRUNK_TIMES: Final = 10
"""The trunk is so many times slower than a local line."""


class LevelBeacons(BeaconMeter):
    """Of all levels."""

    def __init__(self) -> None:
        self._marks: dict[tuple[int, int], int] = {}

    def sent(self, time: int, site: int, destination: int, pdu: Pdu) -> None:
        if isinstance(pdu, Alive | Galive | Poll | PollOk | LsAsk):
            self.beacons += 1
        elif isinstance(pdu, DaAck):
            key = (site, destination)
            self.beacons += self._marks.get(key) == pdu.gseq
            self._marks[key] = pdu.gseq


def group(params: SimulateParams) -> WideGroup:
    """The networks of a run: its sites are spread evenly, GCR, GDA and GPR apart if there is room.

    >>> from roundelay.runs.simulate import SimulateParams
    >>> group(SimulateParams(protocol="wide", sites=15, networks=3)).networks
    (4, 4, 4)
    """
    many = params.networks or NETWORKS
    recorders = params.recorders or 1
    if not 2 <= many <= 100:
        raise ConfigError("networks", many, "a whole number from 2 to 100")
    own = 2 + recorders
    nodes = params.subnet
    least = LEAST * many + (nodes or 0) * many
    if params.sites < least:
        raise ConfigError("sites", params.sites, f"{least} or more for {many} networks")
    apart = params.sites - own >= (4 + (nodes or 0)) * many
    rest = params.sites - own if apart else params.sites
    sizes = [rest // many + (i < rest % many) for i in range(many)]
    behind = [
        nodes if nodes is not None else size // SUBNET_SHARE if size >= SUBNET_LEAST else 0
        for size in sizes
    ]
    profile = WideGroup() if params.profile == "paper" else WideGroup.fast()
    return structs.replace(
        profile,
        networks=tuple(size - inside for size, inside in zip(sizes, behind, strict=True)),
        subnets=tuple(behind),
        recorders=recorders,
        apart=apart,
        layout_seed=params.seed,
        ls_repair=True,
    ).check(params.sites)


class WideRun(LineRun):
    """A run of several networks."""

    @staticmethod
    def check_params(params: SimulateParams) -> None:
        group(params)
        check_away(params)

    @staticmethod
    def sites_for(networks: int | None) -> int:
        return SITES * (networks or NETWORKS)

    @staticmethod
    def users_of(params: SimulateParams) -> tuple[int, ...]:
        return tuple(Atlas(group(params).topology()).origins)

    def __init__(self, params: SimulateParams, recorder: Recorder | None) -> None:
        self.group = group(params)
        self.atlas = Atlas(self.group.topology(params.sites))
        self.networks = tuple(self.atlas.networks.values())
        users = tuple(self.atlas.origins)
        super().__init__(params, recorder, users, JournalChecker(wide=True), LevelBeacons())

    def make_group(self, delay_ns: int, **options: Any) -> WideApplications:
        link = self.group.link_ns
        far = TRUNK_TIMES * delay_ns
        lines = WideLines(self.atlas, (delay_ns, delay_ns), (far, far), (link // 2, link))
        return wide_group(self.atlas.topology, self.group, medium=lines, **options)

    @property
    def first_kind(self) -> int:
        return sum(len(network.users) for network in self.networks)

    def may_leave(self) -> Sequence[int]:
        return [
            user
            for network in self.networks
            for user in network.users
            if user not in self.atlas.local_roles[network.net].council
            and user not in self.atlas.global_roles.council
            and user != network.broadcaster
        ]

    def parts(self, site: WideSite) -> Iterable[GrsbSite | None]:
        return (site.local, site.globe)

    def own_results(self) -> dict[str, Any]:
        return {
            "networks": len(self.networks),
            "recorders": self.group.recorders,
            "users": self.first_kind,
            "nodes_behind": sum(len(network.nodes) for network in self.networks),
            "diameter": max(self.atlas.diameters.values()),
        } | super().own_results()
