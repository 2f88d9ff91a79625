"""Simulated hierarchies: their parameters, and how networks and subnets are laid out."""

from __future__ import annotations

from random import Random
from typing import Final, Self

from roundelay.core.errors import ConfigError
from roundelay.core.wide.config import WideConfig
from roundelay.core.wide.topology import Network, Topology

LEAST: Final = 2
"""Sites of the smallest network: LCR and LPR on one, LDA and a user on the other."""


class WideGroup(WideConfig, frozen=True, kw_only=True):
    """A configuration, and a layout drawn from `layout_seed`.

    Global roles are on sites of their own (`apart`), or on those of the first networks, as on few
    machines.  `networks` are their sizes: attached sites; `subnets` are the numbers of nodes
    behind each broadcaster.
    """

    networks: tuple[int, ...] = (4, 4, 4)
    subnets: tuple[int, ...] = ()
    recorders: int = 1
    """LPRs of each network that has the sites for it, and GPRs."""
    standby: bool = False
    """Standbys of GCR and GDA, and of LCR and LDA in networks that have the sites."""
    apart: bool = True
    lines: int = 1
    layout_seed: int = 0

    def excused(self, sites: int | None = None) -> tuple[int, ...]:
        """Nodes that do not repair: they may lack what they say they lack."""
        networks = () if self.ls_repair else self.topology(sites).networks
        return tuple(site for network in networks for site in network.nodes)

    def topology(self, sites: int | None = None) -> Topology:
        """Sites are numbered network by network, the global level last."""
        networks: list[Network] = []
        rng = Random(f"{self.layout_seed}/layout")
        first = 0
        for i, size in enumerate(self.networks):
            nodes = self.subnets[i] if i < len(self.subnets) else 0
            networks.append(self._network(i + 1, first, size, nodes, rng))
            first += size + nodes
        spares = 2 if self.standby else 1
        if self.apart:
            gcr = tuple(range(first, first + spares))
            gda = tuple(range(first + spares, first + 2 * spares))
            gpr = tuple(range(first + 2 * spares, first + 2 * spares + self.recorders))
            first = gpr[-1] + 1
        else:
            places = [
                site
                for k in range(LEAST)
                for network in networks
                for site in network.attached[k : k + 1]
            ]
            if len(places) < 3:
                raise ConfigError("networks", self.networks, "two or more, or a larger one")
            # Neighbouring places are in different networks: one of them may be cut off.
            gcr, gda = (places[0],), (places[1],)
            gpr = tuple(places[2 : 2 + self.recorders]) or (places[2],)
        if sites is not None and sites != first:
            raise ConfigError("sites", sites, f"{first}: as many as the networks have")
        return Topology(sites=first, gcr=gcr, gda=gda, gpr=gpr, networks=tuple(networks))

    @property
    def sites(self) -> int:
        return self.topology().sites

    def _network(self, net: int, first: int, size: int, nodes: int, rng: Random) -> Network:
        if size < LEAST:
            raise ConfigError("networks", size, f"{LEAST} sites or more each")
        sites = tuple(range(first, first + size))
        recorders = max(1, min(self.recorders, size - 1 - 2 * self.standby))
        if self.standby and size >= 5:
            lcrs, ldas, rest = sites[:2], sites[2:4], sites[4:]
            lprs = rest[:recorders]
            users = rest[recorders:] or sites[:1]
        elif size >= 4:
            lcrs, ldas = sites[:1], sites[1:2]
            lprs = sites[2 : 2 + min(recorders, size - 3)]
            users = sites[2 + len(lprs) :]
        else:  # LCR and LPR share a machine, LDA is a user's
            lcrs, ldas, lprs, users = sites[:1], sites[1:2], sites[:1], sites[1:]
        inside = tuple(range(first + size, first + size + nodes))
        broadcaster = rng.choice((lprs[0], lcrs[0], users[-1])) if nodes else -1
        return Network(
            net=net,
            retransmitters=lcrs,
            acknowledgers=ldas,
            recorders=lprs,
            users=users,
            broadcaster=broadcaster,
            edges=graph(broadcaster, inside, rng) if nodes else (),
            lines=self.lines,
        )

    def check(self, sites: int = 2) -> Self:
        topology = self.topology().check()
        super().check(topology.sites)
        return self


def graph(root: int, nodes: tuple[int, ...], rng: Random) -> tuple[tuple[int, int], ...]:
    """A connected graph: a random tree, and some links more."""
    edges: set[tuple[int, int]] = set()
    placed = [root]
    deep = rng.choice((1, 3, 100))  # trees between a star and a chain
    for node in nodes:
        edges.add((rng.choice(placed[-deep:] if deep < 100 else placed), node))
        placed.append(node)
    for _ in range(rng.randint(0, len(nodes))):
        a, b = rng.sample(placed, 2)
        edges.add((min(a, b), max(a, b)))
    return tuple(sorted(edges))
