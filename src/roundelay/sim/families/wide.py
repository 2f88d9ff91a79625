"""Random runs of the hierarchy: networks that are cut off, roles of all levels that crash.

Networks have lines of their own, and are joined by a trunk and links of subnets.  A multicast
reaches those who are attached to the sender's network; on trunk and subnets there is none.

What may not happen (see `lines`) is the loss of all copies on the global level, and of all copies
of what the recorders of one level and network have on disk.  Otherwise a network may lose what it
likes.
"""

from __future__ import annotations

from functools import partial
from operator import attrgetter
from random import Random
from typing import Any, Final, Self

from roundelay.core.engine import MS, Notice
from roundelay.core.errors import ConfigError
from roundelay.core.events import DISK
from roundelay.core.grsb.pdu import LINE_A, LINE_B
from roundelay.core.grsb.retransmitter import Retransmitter
from roundelay.core.grsb.stable import GrsbStable
from roundelay.core.token.config import PREFORMED
from roundelay.core.wide.config import ALL_ACTIVE, SEQUENCED, WideConfig
from roundelay.core.wide.site import WideSite
from roundelay.core.wide.stable import WideStable
from roundelay.core.wide.topology import Atlas, Network, Topology
from roundelay.sim.families.grsb import AWAY, MESSAGE_SIZES, GrsbDraft
from roundelay.sim.families.lines import DiskArchive, Level, LineApplications, LineDriver
from roundelay.sim.kernel.member import UP, SimulatedSite
from roundelay.sim.kernel.ports import Codec
from roundelay.sim.network.links import Partition
from roundelay.sim.network.media import LineSet, SimulatedMedium
from roundelay.sim.swarm.fault_kinds import LINK_KINDS, PARTITIONS, Strike, kinds

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
            places = [network.attached[k] for k in range(LEAST) for network in networks]
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


GLOBAL_KEY: Final = 1 << 16
"""Added to the number of a GPR's site, which may have an LPR, too."""


class WideLines(LineSet):
    """All lines as one medium; delays of local lines, trunk and subnets are their own."""

    def __init__(
        self,
        atlas: Atlas,
        local_ns: tuple[int, int] = (MS // 4, MS),
        trunk_ns: tuple[int, int] = (5 * MS, 10 * MS),
        subnet_ns: tuple[int, int] = (MS, 10 * MS),
    ) -> None:
        super().__init__(local_ns, local_ns, trunk_ns, subnet_ns)
        self.atlas = atlas

    def bind(self, world: Any, rng: Random, codec: Codec | None) -> None:
        super().bind(world, rng, codec)
        near: list[tuple[SimulatedSite, ...]] = []
        for site in world.sites:
            network = self.atlas.network_of(site.id)
            around = () if network is None else network.attached
            near.append(tuple(world.sites[other] for other in around if other != site.id))
        for line in self.lines:
            line.hearers = tuple(near) if line.line in (LINE_A, LINE_B) else ((),) * len(near)


class WideApplications(LineApplications[WideSite]):
    """Those of all networks."""

    make_stable = WideStable

    def __init__(self, topology: Topology, config: WideConfig) -> None:
        self.atlas = Atlas(topology)
        super().__init__(topology.sites, self.atlas, config, WideSite)

    def archives(self, member: SimulatedSite) -> dict[str, DiskArchive]:
        return {
            "archive": DiskArchive(member, attrgetter("local")),
            "globe_archive": DiskArchive(member, attrgetter("globe")),
        }

    def recorded(self) -> dict[int, GrsbStable]:
        on_disk = self.world.on_disk
        archives: dict[int, GrsbStable] = {}
        for network in self.atlas.networks.values():
            for number in network.recorders:
                archives[number] = on_disk(number).local
        for number in self.atlas.topology.gpr:
            archives[GLOBAL_KEY + number] = on_disk(number).globe
        return archives


CUT: Final = "net:cut"
OFF: Final = "net:off"

ROLES: Final = "gcr gda gpr lcr lda lpr lb ls"

TARGETS: Final = (
    *kinds("up ackgcr gbcast acklcr galive lsup lsdown response lsack lsask lsdata", "target:"),
    *kinds("submit bcast daack replaydata recovered takeover grant", "target:"),
)

KINDS: Final = (
    *LINK_KINDS,
    "clog",
    *TARGETS,
    *PARTITIONS,
    *kinds(f"memory disk nothing mid-batch {ROLES}", "crash:"),
    "pause",
    *kinds(ROLES, "pause:"),
    *kinds("storm:restart clock:rate clock:jump"),
    *(CUT, CUT, CUT, OFF, OFF, AWAY, AWAY),
)
"""What a hierarchy has to survive; what is there more often happens more often."""


OUTCOMES: Final = {"reign": "take-over", "inactive": "net:given-up", "active": "net:back"}
"""What that led to, by notice, counted beside it: another reign on some level, a network that the
GCR waited for no more, and one that it told things again."""


class WideDraft(GrsbDraft):
    """Draws a plan of the hierarchy."""

    def fields(self) -> dict[str, Any]:
        rng = self.rng
        many = rng.choice((2, 2, 3, 3, 4))
        standby = rng.random() < 0.4
        recorders = rng.choice((1, 1, 2))
        sizes = tuple(rng.choice((2, 3, 4, 4, 5, 6, 7)) for _ in range(many))
        subnets = tuple(rng.choice((0, 0, 1, 3, 6)) for _ in range(many))
        self.one_way_ns = rng.choice((MS // 20, MS // 4, MS, 5 * MS))
        faults = sorted(set(self.faults(KINDS)), key=KINDS.index)
        # The times of both levels are those of the slower one.
        near, self.one_way_ns = self.one_way_ns, self.one_way_ns * rng.choice((1, 2, 5))
        link = near * rng.choice((1, 2))
        config = self.grsb()
        attempts = config["attempts"]
        trunk = int(2 * self.one_way_ns * rng.uniform(1.5, 5))
        repair = rng.random() < 0.6
        config |= {
            "networks": sizes,
            "subnets": subnets,
            "recorders": recorders,
            "standby": standby,
            "apart": standby or many < 3 or rng.random() < 0.6,
            "lines": rng.choice((1, 2)),
            "layout_seed": rng.randrange(1 << 30),
            "trunk_ns": trunk,
            "link_ns": link,
            "ack_mode": rng.choice((SEQUENCED, SEQUENCED, ALL_ACTIVE)),
            "gpr_free": rng.random() < 0.5,
            "ready_max": rng.choice((1, 4, 64)),
            "ls_repair": repair,
            "ls_held": rng.choice((2, 64)),
            "ls_keep": rng.choice((1, 16, 256)),
        }
        sites = WideGroup(**config).sites
        links = self.links(faults)
        self.unit_ns += attempts * trunk
        strikes = self.strikes(faults, sites)
        heal_ns = strikes[-1].at + self.unit_ns * rng.randint(1, 3)
        messages = rng.choice((30, 60, 60, 100, 200))
        far = self.one_way_ns
        deepest = max(subnets) + 3
        self.turn_ns += 4 * trunk + (deepest * link * 8 if any(subnets) else 0)
        return self.steady(
            MESSAGE_SIZES,
            sites=sites,
            boot=PREFORMED,
            config=config,
            medium="wide",
            medium_args=(near // 4, near, far // 2, far, link // 2, link),
            messages=messages,
            links=links,
            strikes=strikes,
            heal_ns=heal_ns,
            liveness_ns=40 * self.unit_ns + 8 * messages * self.turn_ns,
        )


class WideDriver(LineDriver[WideSite]):
    """One run of a plan of the hierarchy."""

    choosy = 0.3

    def assign(self) -> None:
        plan = self.plan
        self.group: WideGroup = plan.settings()
        self.atlas = Atlas(self.group.topology(plan.sites))
        self.networks = tuple(self.atlas.networks.values())
        self.users = tuple(self.atlas.origins)
        self.top = Level(self.atlas.global_roles, attrgetter("globe"))
        local = attrgetter("local")
        self.locals = {net: Level(roles, local) for net, roles in self.atlas.local_roles.items()}

    def outcome_of(self, notice: Notice) -> str | None:
        return OUTCOMES.get(notice.kind)

    def make_medium(self) -> SimulatedMedium:
        a = self.plan.medium_args
        return WideLines(self.atlas, (a[0], a[1]), (a[2], a[3]), (a[4], a[5]))

    # -- settled or not --------------------------------------------------------------------

    def unsettled(self) -> str:
        sites: list[WideSite] = []
        for number in self.world.group:
            site = self.world.site(number)
            if site is None:
                return f"site {number} is down"
            sites.append(site)
        cr = self.ruler(self.top)
        if cr is None:
            return "no GCR reigns"
        if cr.outstanding or cr.queue:
            return f"{len(cr.outstanding)} messages are about to have their place"
        top = cr.acked
        for number in self.atlas.topology.gpr:
            part = sites[number].globe
            if part is None or part.recorder is None or part.recorder.mark < top:
                return f"GPR {number} is behind {top}"
        for network in self.networks:
            lcr = self.ruler(self.locals[network.net])
            if lcr is None:
                return f"no LCR reigns in network {network.net}"
            what = self._network(network, lcr, sites, top)
            if what:
                return f"network {network.net}: {what}"
        return ""

    def _network(self, network: Network, cr: Retransmitter, sites: list[WideSite], top: int) -> str:
        if cr.outstanding or cr.queue or cr.acked < top:
            return f"is at {cr.acked} of {top}, {len(cr.queue)} wait"
        for number in network.attached:
            site = sites[number].local
            assert site is not None
            what = self.behind(site, cr.epoch, top)
            if what:
                return what
            if site.pacer is not None and (site.pacer.next < top or site.pacer.under_way):
                return f"LPR {number} has flooded {site.pacer.next} of {top}"
        for number in network.nodes:
            node = sites[number].node
            assert node is not None
            if node.under_way is not None or node.queue:
                return f"node {number} has {len(node.queue)} and more to submit"
            flood = node.flood
            if flood.held or (flood.next < top and self.group.ls_repair):
                return f"node {number} is at {flood.next} of {top}"
        return ""

    # -- what may fail ---------------------------------------------------------------------

    def levels(self, site: int) -> tuple[Level, ...]:
        network = self.atlas.network_of(site)
        return (self.top,) if network is None else (self.top, self.locals[network.net])

    def may_lose_records(self, site: int, level: Level) -> bool:
        """A recorder that is paused keeps them."""
        return self.world.sites[site].state == UP and super().may_lose_records(site, level)

    # -- strikes ---------------------------------------------------------------------------

    def pick(self, strike: Strike, which: str) -> int:
        odd = strike.args[-1]
        topology = self.atlas.topology
        network = self.networks[strike.args[-2] % len(self.networks)]
        places: dict[str, tuple[int, ...]] = {
            "gcr": topology.gcr,
            "gda": topology.gda,
            "gpr": topology.gpr,
            "lcr": network.retransmitters,
            "lda": network.acknowledgers,
            "lpr": network.recorders,
            "ls": network.nodes,
            "lb": (network.broadcaster,) if network.broadcaster >= 0 else (),
        }
        sites = places.get(which, ())
        return sites[odd % len(sites)] if sites else strike.args[0]

    def leaver(self, strike: Strike) -> int | None:
        """A user of the first kind."""
        first = [site for network in self.networks for site in network.users]
        site = first[strike.args[0] % len(first)]
        network = self.atlas.network_of(site)
        assert network is not None
        needed = site == network.broadcaster or any(
            site in level.roles.council for level in self.levels(site)
        )
        return None if needed else site

    def strike_net(self, strike: Strike, how: str) -> None:
        """A whole network is cut from the others, or switched off."""
        network = self.networks[strike.args[-2] % len(self.networks)]
        side = [*network.attached, *network.nodes]
        lasts = self.most_of_it(strike) if strike.args[-1] % 3 == 0 else strike.lasts_ns
        if how == "cut":
            rest = [site for site in self.world.group if site not in side]
            link = Partition.symmetric(side, rest)
            link.kind = strike.kind
            self.put(link, lasts)
            return
        self.count(strike.kind)
        for site in side:
            self.crash(site, DISK)
            self.world.after(lasts, partial(self.world.restart, site))
