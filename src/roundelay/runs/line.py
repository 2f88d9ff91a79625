"""One simulated run of sites that speak on lines: GRSB, or its hierarchy.

Some of the users may be away for most of it.  PDUs are counted without *beacons*, which come by the
clock, not by the message.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from msgspec import structs

from roundelay.core.engine import SECOND, Delivery, Pdu
from roundelay.core.errors import ConfigError
from roundelay.core.events import DISK
from roundelay.core.grsb.config import PROFILES, SEPARATE, GrsbConfig, Roles
from roundelay.core.grsb.pdu import Alive, Bcast, DaAck, Poll, PollOk
from roundelay.core.grsb.site import GrsbSite
from roundelay.core.limits import chance, one_of, whole
from roundelay.core.wide.pdu import Galive, LsAsk
from roundelay.core.wide.site import WideSite
from roundelay.core.wide.topology import Atlas
from roundelay.runs.measured import SITES, MeasuredRun, Progress
from roundelay.sim.families.grsb import GrsbApplications, Lines
from roundelay.sim.families.lines import LineApplications
from roundelay.sim.families.wide import LEAST, WideApplications, WideGroup, WideLines
from roundelay.sim.kernel.load import Isolated
from roundelay.trace.checkers.journal import JournalChecker
from roundelay.trace.recorder import Recorder

if TYPE_CHECKING:
    from roundelay.runs.simulate import SimulateParams

LEAVE: Final = 0.1
RETURN: Final = 0.8
"""Those who are away leave when so many of the messages are delivered, and return then."""

STALL_NS: Final = 600 * SECOND
STEP_NS: Final = SECOND // 4

NETWORKS: Final = 3
SUBNET_SHARE: Final = 4
"""One site in so many is behind the broadcaster, unless told otherwise, in networks of …"""
SUBNET_LEAST: Final = 6
TRUNK_TIMES: Final = 10
"""The trunk is so many times slower than a local line."""


class GroupBeacons:
    """An observer of one group: signs of life, the acknowledger's answers to them, and polls."""

    def __init__(self) -> None:
        self.beacons = 0
        self._idle = True  # the retransmitter last spoke to say that it is alive
        self._mark = self._safe = 0

    def sent(self, time: int, site: int, destination: int, pdu: Pdu) -> None:
        if isinstance(pdu, Bcast):
            self._idle = False
        elif isinstance(pdu, Alive):
            self._idle = True
            self.beacons += 1
        elif isinstance(pdu, Poll | PollOk):
            self.beacons += 1
        elif isinstance(pdu, DaAck):
            again = pdu.gseq == self._mark
            self.beacons += again and (self._idle or pdu.safe > self._safe)
            self._mark, self._safe = pdu.gseq, pdu.safe


class LevelBeacons:
    """An observer of all levels: signs of life, polls, questions of nodes that miss nothing, and
    acknowledgements that say nothing new."""

    def __init__(self) -> None:
        self.beacons = 0
        self._marks: dict[tuple[int, int], int] = {}

    def sent(self, time: int, site: int, destination: int, pdu: Pdu) -> None:
        if isinstance(pdu, Alive | Galive | Poll | PollOk | LsAsk):
            self.beacons += 1
        elif isinstance(pdu, DaAck):
            key = (site, destination)
            self.beacons += self._marks.get(key) == pdu.gseq
            self._marks[key] = pdu.gseq


class OneUserAtATime(Isolated):
    """The next message when every user has the last one."""

    def receivers(self, source: int, number: int) -> Collection[int]:
        return self.sources


class LineRun(MeasuredRun):
    """A run of sites on lines."""

    isolated = OneUserAtATime
    checker: JournalChecker
    beacons: GroupBeacons | LevelBeacons
    first_kind: Sequence[int]
    """The users, but for those behind a broadcaster."""
    may_leave: Sequence[int]
    """Those of them that can do without their site for a while."""

    @classmethod
    def check_params(cls, params: SimulateParams) -> None:
        cls.users_of(params)
        chance("away", params.away or 0)

    @staticmethod
    @abstractmethod
    def users_of(params: SimulateParams) -> tuple[int, ...]: ...

    def __init__(self, params: SimulateParams, recorder: Recorder | None) -> None:
        users = self.users_of(params)
        super().__init__(params, lambda *_: len(users))
        self.users = self.sources = users
        self.applications = self.make_group(
            max(1, params.hold_ns // 1000),
            observers=[self.meter, self.checker, self.beacons, self],
            sample_ns=STEP_NS,
            **self.conditions(recorder),
        )
        self.world = self.applications.world
        self.load = self.make_load()
        free = self.may_leave
        away = min(len(free), round((params.away or 0.0) * len(self.first_kind)))
        self.away = free[len(free) - away :]
        self.gone = self.returned = not self.away

    @abstractmethod
    def make_group(self, delay_ns: int, **options: Any) -> LineApplications[Any]:
        """A group in a world in which a local line takes `delay_ns`."""

    @abstractmethod
    def parts(self, site: Any) -> Iterable[GrsbSite | None]:
        """The parts of a site in GRSB groups."""

    def delivered(self, time: int, site: int, delivery: Delivery) -> None:
        """Users leave and return by how far the group has come."""
        share = self.checker.committed / self.params.messages
        if not self.gone and share >= LEAVE:
            self.gone = True
            for site in self.away:
                self.world.after(0, partial(self.world.crash, site, DISK))
        elif not self.returned and share >= RETURN:
            self.returned = True
            for site in self.away:
                self.world.after(0, partial(self.world.restart, site))

    def sampled(self, time: int, site: int, usage: dict[str, int], caps: dict[str, int]) -> None:
        most = max(usage.get("da_buffer", 0), usage.get("global_da_buffer", 0))
        self.storage_max = max(self.storage_max, most)

    def run(self, progress: Progress | None = None) -> bool:
        world, meter = self.world, self.meter
        self.load.start(world)
        meter.on_complete = world.stop
        last, since = -1, 0
        while not (meter.complete and self.load.done):
            world.run(world.now + STEP_NS)
            if meter.everywhere > last:
                last, since = meter.everywhere, world.now
                if progress is not None:
                    progress(meter.everywhere, self.params.messages)
            elif self.checker.committed < self.params.messages:
                since = max(since, meter.last_delivery_ns)
            if world.now - since > STALL_NS:
                break
        settled = meter.complete and self.load.done
        self.count(self.beacons.beacons)
        world.run(world.now + 4 * SECOND)  # the recorders have everything, too
        archives, due = self.applications.recorded(), self.users if settled else ()
        self.checker.archived(world.now, archives, due)
        world.finish(settled=settled)
        return settled

    def own_results(self) -> dict[str, Any]:
        sites = [self.world.site(number) for number in self.world.group]
        parts = [part for site in sites if site is not None for part in self.parts(site)]
        recorders = [part.recorder for part in parts if part is not None]
        return {
            "away": len(self.away),
            "beacons": self.beacons.beacons,
            "replayed": sum(recorder.served for recorder in recorders if recorder is not None),
        }


def roles(params: SimulateParams) -> Roles:
    layout = params.layout or SEPARATE
    one_of("layout", layout, PROFILES)
    return Roles.profile(layout, params.sites, params.recorders or 0).check()


class GrsbRun(LineRun):
    """A run of one group."""

    @staticmethod
    def users_of(params: SimulateParams) -> tuple[int, ...]:
        return roles(params).users

    def __init__(self, params: SimulateParams, recorder: Recorder | None) -> None:
        self.roles = roles(params)
        self.checker, self.beacons = JournalChecker(), GroupBeacons()
        self.first_kind = self.may_leave = self.roles.users
        super().__init__(params, recorder)

    def make_group(self, delay_ns: int, **options: Any) -> GrsbApplications:
        config = GrsbConfig() if self.params.profile == "paper" else GrsbConfig.fast()
        lines = Lines(delay_ns, delay_ns)
        return GrsbApplications(self.roles, config).in_world(medium=lines, **options)

    def parts(self, site: GrsbSite) -> Iterable[GrsbSite]:
        return (site,)

    def own_results(self) -> dict[str, Any]:
        return {
            "layout": self.params.layout or SEPARATE,
            "recorders": len(self.roles.recorders),
            "users": len(self.first_kind),
        } | super().own_results()


def group(params: SimulateParams) -> WideGroup:
    """The networks of a run: its sites are spread evenly, GCR, GDA and GPR apart if there is room.

    >>> from roundelay.runs.simulate import SimulateParams
    >>> group(SimulateParams(protocol="wide", sites=15, networks=3)).networks
    (4, 4, 4)
    """
    many = params.networks or NETWORKS
    recorders = params.recorders or 1
    whole("networks", many, 2, 100)
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
    def sites_for(networks: int | None) -> int:
        return SITES * (networks or NETWORKS)

    @staticmethod
    def users_of(params: SimulateParams) -> tuple[int, ...]:
        return tuple(Atlas(group(params).topology()).origins)

    def __init__(self, params: SimulateParams, recorder: Recorder | None) -> None:
        self.group = group(params)
        self.atlas = Atlas(self.group.topology(params.sites))
        self.networks = tuple(self.atlas.networks.values())
        self.checker, self.beacons = JournalChecker(wide=True), LevelBeacons()
        self.first_kind = [user for network in self.networks for user in network.users]
        needed = {*self.atlas.global_roles.council}
        for network in self.networks:
            needed |= {*self.atlas.local_roles[network.net].council, network.broadcaster}
        self.may_leave = [user for user in self.first_kind if user not in needed]
        super().__init__(params, recorder)

    def make_group(self, delay_ns: int, **options: Any) -> WideApplications:
        link = self.group.link_ns
        far = TRUNK_TIMES * delay_ns
        lines = WideLines(self.atlas, (delay_ns, delay_ns), (far, far), (link // 2, link))
        applications = WideApplications(self.atlas.topology, self.group)
        return applications.in_world(medium=lines, **options)

    def parts(self, site: WideSite) -> Iterable[GrsbSite | None]:
        return (site.local, site.globe)

    def own_results(self) -> dict[str, Any]:
        return {
            "networks": len(self.networks),
            "recorders": self.group.recorders,
            "users": len(self.first_kind),
            "nodes_behind": sum(len(network.nodes) for network in self.networks),
            "diameter": max(self.atlas.diameters.values()),
        } | super().own_results()
