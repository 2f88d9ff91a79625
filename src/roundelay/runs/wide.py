"""One simulated run of the hierarchy: several networks, subnets behind some, users that are away.

PDUs are counted without *beacons*: signs of life, polls, questions of nodes that miss nothing, and
acknowledgements that say nothing new.  Those come by the clock, not by the message.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from roundelay.core.engine import SECOND, Delivery, Pdu
from roundelay.core.errors import ConfigError
from roundelay.core.events import DISK
from roundelay.core.grsb.pdu import Alive, DaAck, Poll, PollOk
from roundelay.core.wide.pdu import Galive, LsAsk
from roundelay.core.wide.topology import Atlas
from roundelay.runs.grsb import LEAVE, RETURN, STALL_NS, STEP_NS, OneUserAtATime
from roundelay.runs.measure import Meter
from roundelay.sim.links import PLAIN, Lossy
from roundelay.sim.load import Load, Poisson, Saturating
from roundelay.sim.strikes import Breach
from roundelay.sim.wide_check import WideCheck
from roundelay.sim.wide_driver import archives
from roundelay.sim.wide_group import LEAST, WideGroup
from roundelay.sim.wide_world import WideLines, WideWorld, wide_world
from roundelay.trace.recorder import Recorder
from roundelay.trace.schema import kind_of
from roundelay.wire.codec import GroupCodec

if TYPE_CHECKING:
    from roundelay.runs.simulate import SimulateParams

NETWORKS: Final = 3
SITES_EACH: Final = 5
SUBNET_SHARE: Final = 4
"""One site in so many is behind the broadcaster, unless told otherwise, in networks of …"""
SUBNET_LEAST: Final = 6
TRUNK_TIMES: Final = 10
"""The trunk is so many times slower than a local line."""


class BeaconMeter:
    """An observer: what is sent by the clock."""

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


def check(params: SimulateParams) -> None:
    """Raise ConfigError for what a hierarchy cannot do."""
    group(params)
    if params.away is not None and not 0 <= params.away < 1:
        raise ConfigError("away", params.away, "a number from 0 up to, not including, 1")


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
    made = WideGroup(
        **({name: getattr(profile, name) for name in profile.__struct_fields__} | {
            "networks": tuple(size - inside for size, inside in zip(sizes, behind, strict=True)),
            "subnets": tuple(behind), "recorders": recorders, "apart": apart,
            "layout_seed": params.seed, "ls_repair": True,
        })
    )  # fmt: skip
    return made.check(params.sites)


class WideRun:
    """A run in the making; the same face as `runs.simulate.Run`."""

    def __init__(self, params: SimulateParams, recorder: Recorder | None) -> None:
        self.params = params
        self.group = group(params)
        self.atlas = Atlas(self.group.topology(params.sites))
        self.users = tuple(self.atlas.origins)
        self.meter = Meter(params.sites, params.messages, receivers=lambda *_: len(self.users))
        self.violations: list[Breach] = []
        self.check = WideCheck(self._breach)
        self.beacons = BeaconMeter()
        delay = max(1, params.hold_ns // 1000)
        link = self.group.link_ns
        far = TRUNK_TIMES * delay
        self.world: WideWorld = wide_world(
            self.atlas.topology,
            self.group,
            seed=params.seed,
            medium=WideLines(self.atlas, (delay, delay), (far, far), (link // 2, link)),
            links=Lossy(params.loss) if params.loss else PLAIN,
            codec=GroupCodec("simulate") if params.wire else None,
            recorder=recorder,
            observers=[self.meter, self.check, self.beacons, self],
            sample_ns=STEP_NS,
        )
        self.load = self._load()
        free = [
            user
            for network in self.atlas.networks.values()
            for user in network.users
            if user not in self.atlas.local_roles[network.net].council
            and user not in self.atlas.global_roles.council
            and user != network.broadcaster
        ]
        first = sum(len(network.users) for network in self.atlas.networks.values())
        away = min(len(free), round((params.away or 0.0) * first))
        self.away = free[len(free) - away :]
        self.left = self.returned = not self.away
        self.storage_max = 0
        self.pdus = 0
        self.pdus_by_kind: dict[str, int] = {}

    @property
    def checker(self) -> WideRun:
        return self

    def _breach(self, invariant: str, detail: str, site: int) -> None:
        self.violations.append(Breach(invariant, site, self.world.now, detail))

    def _load(self) -> Load:
        params, users = self.params, self.users
        if params.load == "isolated":
            gap = 10 * params.hold_ns
            return OneUserAtATime(params.messages, users, params.size, gap)
        if params.load == "saturated":
            return Saturating(params.messages, users, params.size)
        assert params.rate is not None
        return Poisson(params.messages, params.rate, users, params.size)

    def delivered(self, time: int, site: int, delivery: Delivery) -> None:
        """Users leave and return by how far the group has come."""
        share = self.check.committed / self.params.messages
        if not self.left and share >= LEAVE:
            self.left = True
            for one in self.away:
                self.world.after(0, partial(self.world.crash, one, DISK))
        elif not self.returned and share >= RETURN:
            self.returned = True
            for one in self.away:
                self.world.after(0, partial(self.world.restart, one))

    def sampled(self, time: int, site: int, usage: dict[str, int], caps: dict[str, int]) -> None:
        most = max(usage.get("da_buffer", 0), usage.get("global_da_buffer", 0))
        self.storage_max = max(self.storage_max, most)

    def run(self, progress: Callable[[int, int], None] | None = None) -> bool:
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
            elif self.check.committed < self.params.messages:
                since = max(since, meter.last_delivery_ns)
            if world.now - since > STALL_NS:
                break
        settled = meter.complete and self.load.done
        self.pdus = world.sent - self.beacons.beacons
        self.pdus_by_kind = {kind_of(kind): count for kind, count in world.sent_by_kind.items()}
        world.run(world.now + 4 * SECOND)  # the recorders have everything, too
        self.check.finish(archives(world, self.atlas), self.users if settled else ())
        world.finish(settled=settled)
        return settled

    def own_results(self) -> dict[str, Any]:
        """What only the hierarchy has to say."""
        replayed = 0
        for number in self.world.group:
            site = self.world.site(number)
            for part in () if site is None else (site.local, site.globe):
                if part is not None and part.recorder is not None:
                    replayed += part.recorder.served
        networks = self.atlas.networks.values()
        return {
            "networks": len(networks),
            "recorders": self.group.recorders,
            "users": sum(len(network.users) for network in networks),
            "nodes_behind": sum(len(network.nodes) for network in networks),
            "diameter": max(self.atlas.diameters.values()),
            "away": len(self.away),
            "beacons": self.beacons.beacons,
            "replayed": replayed,
        }
