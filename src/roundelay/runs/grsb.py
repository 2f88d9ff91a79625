"""One simulated run of GRSB: users, recorders, and some of the users away for most of it.

PDUs are counted without *beacons*: signs of life, the acknowledger's answers to them, and polls.
Those come by the clock, not by the message.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from roundelay.core.engine import SECOND, Delivery, Pdu
from roundelay.core.errors import ConfigError
from roundelay.core.events import DISK
from roundelay.core.grsb.config import PROFILES, SEPARATE, GrsbConfig, Roles
from roundelay.core.grsb.pdu import Alive, Bcast, DaAck, Poll, PollOk
from roundelay.core.grsb.stable import GrsbStable
from roundelay.runs.measure import Meter
from roundelay.sim.grsb_check import GrsbCheck
from roundelay.sim.grsb_world import GrsbWorld, Lines, grsb_world
from roundelay.sim.links import PLAIN, Lossy
from roundelay.sim.load import Isolated, Load, Poisson, Saturating
from roundelay.sim.strikes import Breach
from roundelay.trace.recorder import Recorder
from roundelay.trace.schema import kind_of
from roundelay.wire.codec import GroupCodec

if TYPE_CHECKING:
    from roundelay.runs.simulate import SimulateParams

LEAVE: Final = 0.1
RETURN: Final = 0.8
"""Those who are away leave when so many of the messages are delivered, and return then."""

STALL_NS: Final = 600 * SECOND
STEP_NS: Final = SECOND // 4


class OneUserAtATime(Isolated):
    """The next message when every user has the last one."""

    def receivers(self, source: int, number: int) -> Collection[int]:
        return self.sources


class BeaconMeter:
    """An observer: what is sent by the clock."""

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


def check(params: SimulateParams) -> None:
    """Raise ConfigError for what a GRSB group cannot do."""
    roles(params)
    if params.away is not None and not 0 <= params.away < 1:
        raise ConfigError("away", params.away, "a number from 0 up to, not including, 1")


def roles(params: SimulateParams) -> Roles:
    layout = params.layout or SEPARATE
    if layout not in PROFILES:
        raise ConfigError("layout", layout, " or ".join(PROFILES))
    return Roles.profile(layout, params.sites, params.recorders or 0).check()


class GrsbRun:
    """A run in the making; the same face as `runs.simulate.Run`."""

    def __init__(self, params: SimulateParams, recorder: Recorder | None) -> None:
        self.params = params
        self.roles = roles(params)
        users = self.roles.users
        self.meter = Meter(params.sites, params.messages, receivers=lambda *_: len(users))
        self.violations: list[Breach] = []
        self.check = GrsbCheck(self._breach)
        self.beacons = BeaconMeter()
        config = GrsbConfig() if params.profile == "paper" else GrsbConfig.fast()
        delay = max(1, params.hold_ns // 1000)
        self.world: GrsbWorld = grsb_world(
            self.roles,
            config,
            seed=params.seed,
            medium=Lines(delay, delay),
            links=Lossy(params.loss) if params.loss else PLAIN,
            codec=GroupCodec("simulate") if params.wire else None,
            recorder=recorder,
            observers=[self.meter, self.check, self.beacons, self],
            sample_ns=STEP_NS,
        )
        self.load = self._load()
        away = round((params.away or 0.0) * len(users))
        self.away = users[len(users) - away :]
        self.left = self.returned = not self.away
        self.storage_max = 0
        self.pdus = 0
        self.pdus_by_kind: dict[str, int] = {}

    @property
    def checker(self) -> GrsbRun:
        return self

    def _breach(self, invariant: str, detail: str, site: int) -> None:
        self.violations.append(Breach(invariant, site, self.world.now, detail))

    def _load(self) -> Load:
        params, users = self.params, self.roles.users
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
        self.storage_max = max(self.storage_max, usage.get("da_buffer", 0))

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
        archives: dict[int, GrsbStable] = {}
        for number in self.roles.recorders:
            disk = world.sites[number].disk
            assert disk is not None
            archives[number] = disk.stable
        self.check.finish(archives, self.roles.users if settled else ())
        world.finish(settled=settled)
        return settled

    def own_results(self) -> dict[str, Any]:
        """What only GRSB has to say."""
        served = [
            site.recorder.served
            for number in self.roles.recorders
            if (site := self.world.site(number)).recorder is not None
        ]
        return {
            "layout": self.params.layout or SEPARATE,
            "recorders": len(self.roles.recorders),
            "users": len(self.roles.users),
            "away": len(self.away),
            "beacons": self.beacons.beacons,
            "replayed": sum(served),
        }
