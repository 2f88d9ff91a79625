"""Runs a plan of the hierarchy: faults, healing, and then everybody has to have everything.

What may not happen (see `grsb.shared_driver`) is the loss of all copies on the global level, and of
all copies of what the recorders of one level and network have on disk.  Otherwise a network may
lose what it likes.
"""

from __future__ import annotations

from functools import partial
from operator import attrgetter

from roundelay.core.engine import Notice
from roundelay.core.events import DISK
from roundelay.core.grsb.site import GrsbSite
from roundelay.core.wide.site import WideSite
from roundelay.core.wide.topology import Atlas, Network
from roundelay.sim.families.grsb.shared_driver import Level, LineDriver
from roundelay.sim.families.wide.applications import WideLines
from roundelay.sim.families.wide.draft import OUTCOMES
from roundelay.sim.families.wide.group import WideGroup
from roundelay.sim.kernel.member import UP
from roundelay.sim.network.links import Partition
from roundelay.sim.network.media import SimulatedMedium
from roundelay.sim.swarm.fault_kinds import Strike


class WideDriver(LineDriver[WideSite]):
    """One run of a plan of the hierarchy."""

    choosy = 0.3

    def assign(self) -> None:
        plan = self.plan
        self.group: WideGroup = plan.settings()
        self.atlas = Atlas(self.group.topology(plan.sites))
        self.networks = tuple(self.atlas.networks.values())
        self.users = tuple(self.atlas.origins)
        globe, local = attrgetter("globe"), attrgetter("local")
        self.top = Level(self.atlas.global_roles, globe, globe)
        self.locals = {
            net: Level(roles, local, local) for net, roles in self.atlas.local_roles.items()
        }

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
        globe = self.ruler(self.top)
        if globe is None or globe.retransmitter is None:
            return "no GCR reigns"
        cr = globe.retransmitter
        if cr.outstanding or cr.queue:
            return f"{len(cr.outstanding)} messages are about to have their place"
        top = cr.acked
        for number in self.atlas.topology.gpr:
            part = sites[number].globe
            if part is None or part.recorder is None or part.recorder.mark < top:
                return f"GPR {number} is behind {top}"
        for network in self.networks:
            ruler = self.ruler(self.locals[network.net])
            if ruler is None or ruler.retransmitter is None:
                return f"no LCR reigns in network {network.net}"
            what = self._network(network, ruler, sites, top)
            if what:
                return f"network {network.net}: {what}"
        return ""

    def _network(self, network: Network, ruler: GrsbSite, sites: list[WideSite], top: int) -> str:
        cr = ruler.retransmitter
        assert cr is not None
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
