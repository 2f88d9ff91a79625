"""Runs a plan of the hierarchy: faults, healing, and then everybody has to have everything.

What may not happen is the loss of all copies on the global level: while the GCR of the last reign
has lost its memory its GDA may not, and the other way round; and a recorder's disk is lost only
while another one of its level and network has all of it.  A network may lose what it likes but its
recorders' disks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from random import Random

from roundelay.core.engine import Notice
from roundelay.core.events import DISK, MEMORY, NOTHING_LEFT, RowSink
from roundelay.core.grsb.config import Roles, Selection
from roundelay.core.grsb.site import GrsbSite
from roundelay.core.grsb.stable import GrsbStable
from roundelay.core.wide.site import WideSite
from roundelay.core.wide.topology import Atlas, Network
from roundelay.sim.faults import Strike
from roundelay.sim.grsb_driver import UserLoad
from roundelay.sim.grsb_group import CONFERENCES, KINDS_OF_MESSAGES
from roundelay.sim.links import Partition
from roundelay.sim.media import Medium
from roundelay.sim.member import DOWN, UP
from roundelay.sim.plan import Plan
from roundelay.sim.ports import Codec, EngineFactory
from roundelay.sim.strikes import Striker
from roundelay.sim.wide_check import WideCheck
from roundelay.sim.wide_draft import OUTCOMES
from roundelay.sim.wide_group import WideGroup
from roundelay.sim.wide_world import WideLines, WideWorld

GLOBAL_KEY = 1 << 16
"""Added to the number of a GPR's site, which may have an LPR, too."""


class WideLoad(UserLoad):
    """The same load, in another world."""

    world: WideWorld  # type: ignore[assignment]


class Outcomes:
    """An observer that counts what faults lead to."""

    def __init__(self) -> None:
        self.count: Callable[[str], None] = lambda kind: None

    def noticed(self, time: int, site: int, notice: Notice) -> None:
        if notice.kind in OUTCOMES:
            self.count(OUTCOMES[notice.kind])


class WideDriver(Striker):
    """One run of a plan of the hierarchy."""

    world: WideWorld
    load: WideLoad
    world_class = WideWorld
    observers_judge = False

    def __init__(
        self,
        plan: Plan,
        observers: Iterable[object] = (),
        recorder: RowSink | None = None,
        trace_receives: bool = False,
        codec: Codec | None = None,
        make_engine: EngineFactory | None = None,
    ) -> None:
        group = plan.settings()
        assert isinstance(group, WideGroup)
        self.group = group
        self.atlas = Atlas(group.topology(plan.sites))
        self.networks = tuple(self.atlas.networks.values())
        self.users = tuple(self.atlas.origins)
        second = [site for network in self.networks for site in network.nodes]
        self.check = WideCheck(self.breach, () if group.ls_repair else second)
        outcomes = Outcomes()
        watching = [self.check, outcomes, *observers]
        super().__init__(plan, watching, recorder, trace_receives, codec, make_engine)
        outcomes.count = self.world.fault
        rng = self.world.stream("selections")
        for site in self.users:
            if rng.random() < 0.3:
                self.world.select(site, self.selection(rng))

    def selection(self, rng: Random) -> Selection:
        conferences = frozenset(rng.sample(CONFERENCES, rng.choice((1, 2))))
        some = frozenset(rng.sample(self.users, rng.randint(1, len(self.users))))
        senders = some if rng.random() < 0.3 else frozenset()
        kinds = frozenset((rng.choice(KINDS_OF_MESSAGES),)) if rng.random() < 0.2 else frozenset()
        return Selection(conferences, senders, kinds)

    def make_medium(self) -> Medium:
        a = self.plan.medium_args
        return WideLines(self.atlas, (a[0], a[1]), (a[2], a[3]), (a[4], a[5]))

    def make_load(self) -> WideLoad:
        plan = self.plan
        return WideLoad(plan.messages, plan.heal_ns, plan.size, self.users)

    @property
    def committed(self) -> int:
        return self.check.committed

    @property
    def submitted(self) -> int:
        return len(self.check.known)

    def settle(self, healed: int) -> bool:
        """Twice: what was under way, then a message of everybody."""
        if not self.settled_by(healed + self.plan.liveness_ns):
            return False
        for site in self.users:
            if not self.load.send(site):
                self.breach("I7", "takes no message though nothing is wrong", site)
        return self.settled_by(self.world.now + self.plan.liveness_ns)

    def heal_sites(self) -> None:
        self.world.restart_all()

    # -- settled or not --------------------------------------------------------------------

    def settled(self) -> bool:
        return not self.unsettled()

    def unsettled(self) -> str:
        """What is still to come, or ""."""
        sites: list[WideSite] = []
        for number in self.world.group:
            site = self.world.site(number)
            if site is None:
                return f"site {number} is down"
            sites.append(site)
        globe = self._ruler(sites, self.atlas.global_roles, "globe")
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
            roles = self.atlas.local_roles[network.net]
            ruler = self._ruler(sites, roles, "local")
            if ruler is None or ruler.retransmitter is None:
                return f"no LCR reigns in network {network.net}"
            what = self._network(network, ruler, sites, top)
            if what:
                return f"network {network.net}: {what}"
        return ""

    def _ruler(self, sites: list[WideSite], roles: Roles, level: str) -> GrsbSite | None:
        found: list[GrsbSite] = []
        for number in roles.retransmitters:
            part = getattr(sites[number], level)
            if part is not None and part.retransmitter is not None and part.retransmitter.reigning:
                found.append(part)
        return max(found, key=lambda one: one.reign.epoch, default=None)

    def _network(self, network: Network, ruler: GrsbSite, sites: list[WideSite], top: int) -> str:
        cr = ruler.retransmitter
        assert cr is not None
        if cr.outstanding or cr.queue or cr.acked < top:
            return f"is at {cr.acked} of {top}, {len(cr.queue)} wait"
        for number in network.attached:
            site = sites[number].local
            assert site is not None
            if site.reign.epoch != cr.epoch:
                return f"site {number} is in epoch {site.reign.epoch}, not {cr.epoch}"
            if site.recorder is not None and site.recorder.mark < top:
                return f"LPR {number} is at {site.recorder.mark} of {top}"
            if site.pacer is not None and (site.pacer.next < top or site.pacer.under_way):
                return f"LPR {number} has flooded {site.pacer.next} of {top}"
            user = site.user
            if user is not None:
                if not user.up:
                    return f"user {number} is down"
                if user.under_way is not None or user.queue:
                    return f"user {number} has {len(user.queue)} and more to submit"
                if user.listener.next < top:
                    return f"user {number} is at {user.listener.next} of {top}"
        for number in network.nodes:
            node = sites[number].node
            assert node is not None
            if node.under_way is not None or node.queue:
                return f"node {number} has {len(node.queue)} and more to submit"
            flood = node.flood
            if flood.held or (flood.next < top and self.group.ls_repair):
                return f"node {number} is at {flood.next} of {top}"
        return ""

    def after_settling(self, settled: bool) -> None:
        """I7, and all that can be judged now."""
        if not settled:
            self.breach("I7", self.unsettled())
        self.check.finish(self.archives(), self.users if settled else ())

    def archives(self) -> dict[int, GrsbStable]:
        return archives(self.world, self.atlas)

    # -- what may fail ---------------------------------------------------------------------

    def holders(self) -> set[int]:
        """Sites that have the state of the last global reign that may have begun."""
        last = -1
        states: dict[int, set[int]] = {}
        for number in self.atlas.global_roles.council:
            member = self.world.sites[number]
            assert member.disk is not None
            stable: GrsbStable = member.disk.stable.globe
            if stable.accepted is not None:
                last = max(last, stable.accepted.epoch)
            site = self.world.site(number)
            if site is None or site.globe is None or member.amid is not None:
                continue
            if site.globe.acknowledger is not None:
                states.setdefault(site.globe.acknowledger.epoch, set()).add(number)
            if site.globe.retransmitter is not None:
                states.setdefault(site.globe.retransmitter.epoch, set()).add(number)
        return states.get(last, set())

    def may_forget(self, site: int) -> bool:
        """Whether a site may lose its memory now."""
        council = self.atlas.global_roles.council
        return site not in council or bool(self.holders() - {site})

    def may_lose_disk(self, site: int) -> bool:
        """One at a time in each council, and no recorder that is the only one."""
        network = self.atlas.network_of(site)
        groups = [("globe", self.atlas.global_roles)]
        if network is not None:
            groups.append(("local", self.atlas.local_roles[network.net]))
        for level, roles in groups:
            if site in roles.council and not self._may_lose(site, level, roles):
                return False
        return True

    def _may_lose(self, site: int, level: str, roles: Roles) -> bool:
        for one in roles.council:
            other = self.world.site(one)
            disk = self.world.sites[one].disk
            assert disk is not None
            part = None if other is None else getattr(other, level)
            if getattr(disk.stable, level).accepted is None or (
                part is not None and part.council is not None and not part.council.voting
            ):
                return False
        if site not in roles.recorders:
            return True
        mine = self.world.site(site)
        if mine is None or len(roles.recorders) < 2:
            return False
        mark = getattr(mine, level).recorder.mark
        for one in roles.recorders:
            other = self.world.site(one)
            if self.world.sites[one].state != UP or other is None:
                return False
            if getattr(other, level).recorder.mark < mark:
                return False
        return True

    def crash(self, site: int, keeps: str) -> bool:
        """Crash a site if it may, with what it may lose; False if it may not."""
        if self.world.now >= self.plan.heal_ns or self.world.sites[site].state == DOWN:
            return False
        if keeps == NOTHING_LEFT and not self.may_lose_disk(site):
            keeps = DISK
        if keeps != MEMORY and not self.may_forget(site):
            keeps = MEMORY
        self.world.crash(site, keeps)
        return True

    # -- strikes ---------------------------------------------------------------------------

    def pick(self, strike: Strike, which: str) -> int:
        """The site of a strike: any, or one of a role."""
        odd = strike.args[-1]
        topology = self.atlas.topology
        network = self.networks[strike.args[-2] % len(self.networks)]
        places: dict[str, tuple[int, ...]] = {
            "gcr": topology.gcr, "gda": topology.gda, "gpr": topology.gpr,
            "lcr": network.retransmitters, "lda": network.acknowledgers,
            "lpr": network.recorders, "ls": network.nodes,
            "lb": (network.broadcaster,) if network.broadcaster >= 0 else (),
        }  # fmt: skip
        sites = places.get(which, ())
        return sites[odd % len(sites)] if sites else strike.args[0]

    def strike_crash(self, strike: Strike, how: str) -> None:
        site = self.pick(strike, how)
        if how == "mid-batch":
            self.crash_amid(site)
        else:
            keeps = {"memory": MEMORY, "nothing": NOTHING_LEFT}.get(how, DISK)
            if not self.crash(site, keeps):
                return
            self.count(strike.kind, site)
        self.world.after(strike.lasts_ns, partial(self.world.restart, site))

    def crash_amid(self, site: int) -> None:
        """Between two persists and sends of the next batch, if it may forget then."""
        member = self.world.sites[site]
        if member.state == DOWN:
            return
        self.world.crash(site, DISK, mid_batch=True)
        die = member.amid

        def amid(out: object) -> bool:
            member.amid = None
            allowed = die is not None and self.world.now < self.plan.heal_ns
            if not (allowed and self.may_forget(site)):
                return False
            assert die is not None
            return die(out)  # type: ignore[arg-type]

        member.amid = amid

    def strike_pause(self, strike: Strike, which: str) -> None:
        site = self.pick(strike, which)
        if self.world.sites[site].state == UP:
            self.pause(site, strike, 2 * strike.lasts_ns)

    def strike_storm(self, strike: Strike, _: str) -> None:
        """A site starts again and again."""
        site = strike.args[0]
        self.count(strike.kind, site)
        for i in range(3 + strike.args[-1] % 4):
            at = i * strike.lasts_ns
            self.world.after(at, partial(self.crash, site, DISK))
            self.world.after(at + strike.lasts_ns // 2, partial(self.world.restart, site))

    def strike_away(self, strike: Strike, _: str) -> None:
        """A user of the first kind is off for most of the run."""
        first = [site for network in self.networks for site in network.users]
        site = first[strike.args[0] % len(first)]
        network = self.atlas.network_of(site)
        assert network is not None
        if site in self.atlas.local_roles[network.net].council or site == network.broadcaster:
            return
        if site not in self.atlas.global_roles.council and self.crash(site, DISK):
            self.count(strike.kind, site)
            self.world.after(self.long(strike), partial(self.world.restart, site))

    def long(self, strike: Strike) -> int:
        return max(strike.lasts_ns, (self.plan.heal_ns - self.world.now) * 3 // 4)

    def strike_net(self, strike: Strike, how: str) -> None:
        """A whole network is cut from the others, or switched off."""
        network = self.networks[strike.args[-2] % len(self.networks)]
        side = [*network.attached, *network.nodes]
        lasts = self.long(strike) if strike.args[-1] % 3 == 0 else strike.lasts_ns
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


def archives(world: WideWorld, atlas: Atlas) -> dict[int, GrsbStable]:
    """What all recorders have on disk."""
    found: dict[int, GrsbStable] = {}
    for network in atlas.networks.values():
        for number in network.recorders:
            disk = world.sites[number].disk
            assert disk is not None
            found[number] = disk.stable.local
    for number in atlas.topology.gpr:
        disk = world.sites[number].disk
        assert disk is not None
        found[GLOBAL_KEY + number] = disk.stable.globe
    return found
