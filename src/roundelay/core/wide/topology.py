"""Which networks there are, who plays which role in them, and the graphs behind their broadcasters.

The global level has GCR, GDA and GPR.  A local network LN_i has LCR_i, LDA_i, LPR_i and users that
are attached directly (nodes of the *first kind*: they may be off).  Behind its local broadcaster
LB_i there may be a subnet LS_i, any connected graph of nodes that are not attached (of the *second
kind*: they should be alive all the time).  The first of several retransmitters or acknowledgers
begins, the others stand by; one machine may play several roles.
"""

from __future__ import annotations

from collections import deque
from typing import Final, Self

from msgspec import Struct

from roundelay.core.errors import ConfigError
from roundelay.core.grsb.config import SITES_MAX, Roles, check_places
from roundelay.core.limits import whole

NIL: Final = 0
"""SrcNetID of a message that no LCR has signed yet."""

NETWORKS_MAX: Final = 255


class Network(Struct, frozen=True, kw_only=True):
    """A local network LN_i and its subnet LS_i."""

    net: int
    """NetID: 1 … ; 0 is nil."""
    retransmitters: tuple[int, ...]
    acknowledgers: tuple[int, ...]
    recorders: tuple[int, ...]
    """The first one feeds the broadcaster."""
    users: tuple[int, ...]
    """Nodes of the first kind."""
    broadcaster: int = -1
    """LB_i; -1: there is no subnet."""
    edges: tuple[tuple[int, int], ...] = ()
    """Links of the subnet, the broadcaster's among them."""
    lines: int = 1

    @property
    def nodes(self) -> tuple[int, ...]:
        """Nodes of the second kind."""
        inside = {site for edge in self.edges for site in edge}
        return tuple(sorted(inside - {self.broadcaster}))

    @property
    def attached(self) -> tuple[int, ...]:
        """Sites on the line of this network."""
        roles = {*self.retransmitters, *self.acknowledgers, *self.recorders, *self.users}
        return tuple(sorted(roles | {self.broadcaster} if self.broadcaster >= 0 else roles))

    def roles(self, sites: int) -> Roles:
        """The network as a GRSB group; nodes of the second kind submit there, too."""
        return Roles(
            sites=sites, retransmitters=self.retransmitters, acknowledgers=self.acknowledgers,
            recorders=self.recorders, users=(*self.users, *self.nodes), lines=self.lines,
        )  # fmt: skip


class Topology(Struct, frozen=True, kw_only=True):
    """The whole: sites 0 … sites-1."""

    sites: int
    gcr: tuple[int, ...]
    gda: tuple[int, ...]
    gpr: tuple[int, ...]
    networks: tuple[Network, ...]

    def check(self) -> Self:
        """Raise ConfigError unless this can be built."""
        whole("sites", self.sites, 2, SITES_MAX)
        whole("networks", len(self.networks), 1, NETWORKS_MAX)
        for name in ("gcr", "gda", "gpr"):
            check_places(name, getattr(self, name), self.sites)
        if set(self.gcr) & set(self.gda):
            allowed = "on other sites than gcr: one machine must not fail as both"
            raise ConfigError("gda", self.gda, allowed)
        taken: dict[int, int] = {}
        for number, network in enumerate(self.networks, 1):
            if network.net != number:
                raise ConfigError("net", network.net, f"{number}: networks are numbered from 1")
            for site in network.nodes:
                if site in network.attached:
                    raise ConfigError("edges", site, "nodes that are not attached themselves")
            network.roles(self.sites).check()
            for site in (*network.attached, *network.nodes):
                whole("broadcaster", site, 0, self.sites - 1)
                if taken.setdefault(site, number) != number:
                    raise ConfigError("networks", site, "each site in one network")
            if network.edges and network.broadcaster < 0:
                raise ConfigError("broadcaster", -1, "a site, where there is a subnet")
            distances = hops(network.edges, network.broadcaster)
            for site in network.nodes:
                if site not in distances:
                    raise ConfigError("edges", site, "a graph that is connected")
        return self


def links_of(edges: tuple[tuple[int, int], ...]) -> dict[int, tuple[int, ...]]:
    """Neighbours, by site."""
    links: dict[int, set[int]] = {}
    for a, b in edges:
        links.setdefault(a, set()).add(b)
        links.setdefault(b, set()).add(a)
    return {site: tuple(sorted(others)) for site, others in links.items()}


def hops(edges: tuple[tuple[int, int], ...], root: int) -> dict[int, int]:
    """How far each site is from `root`, as far as it can be reached."""
    links = links_of(edges)
    distances = {root: 0}
    queue = deque((root,))
    while queue:
        site = queue.popleft()
        for other in links.get(site, ()):
            if other not in distances:
                distances[other] = distances[site] + 1
                queue.append(other)
    return distances


def diameter(edges: tuple[tuple[int, int], ...]) -> int:
    """D of the subnet, in hops; 0 without one."""
    return max((max(hops(edges, site).values()) for site in links_of(edges)), default=0)


class Atlas:
    """A topology, looked at once: what everybody asks for again and again."""

    def __init__(self, topology: Topology) -> None:
        topology.check()
        self.topology = topology
        self.sites = topology.sites
        self.networks = {network.net: network for network in topology.networks}
        self.net_by_site: dict[int, int] = {}
        self.links: dict[int, tuple[int, ...]] = {}
        self.parents: dict[int, int] = {}  # on a shortest way to the broadcaster
        self.diameters: dict[int, int] = {}
        self.local_roles: dict[int, Roles] = {}
        self.origins: dict[int, int] = {}  # who may submit → network
        for network in topology.networks:
            for site in (*network.attached, *network.nodes):
                self.net_by_site[site] = network.net
            for site in (*network.users, *network.nodes):
                self.origins[site] = network.net
            self.links |= links_of(network.edges)
            far = hops(network.edges, network.broadcaster)
            for site in network.nodes:
                self.parents[site] = min(self.links[site], key=lambda other: (far[other], other))
            self.diameters[network.net] = diameter(network.edges)
            self.local_roles[network.net] = network.roles(topology.sites)
        self.global_roles = Roles(
            sites=topology.sites, retransmitters=topology.gcr, acknowledgers=topology.gda,
            recorders=topology.gpr, users=tuple(self.origins),
        )  # fmt: skip
        audience = {
            site
            for network in topology.networks
            for site in (*network.retransmitters, *network.acknowledgers)
        }
        self.audience = tuple(sorted(audience | set(topology.gpr)))
        """Who is told how far the global level is."""

    def net_of(self, site: int) -> int:
        """The network of a site; NIL if it is in none."""
        return self.net_by_site.get(site, NIL)

    def network_of(self, site: int) -> Network | None:
        return self.networks.get(self.net_of(site))
