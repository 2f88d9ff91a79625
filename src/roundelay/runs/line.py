"""One simulated run of sites that speak on lines: what GRSB and its hierarchy share.

PDUs are counted without *beacons*, which come by the clock, not by the message: each protocol says
what they are.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from roundelay.core.engine import SECOND, Delivery, Pdu
from roundelay.core.errors import ConfigError
from roundelay.core.events import DISK
from roundelay.core.grsb.site import GrsbSite
from roundelay.runs.measured import MeasuredRun, Progress
from roundelay.sim.families.lines import LineApplications
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


def check_away(params: SimulateParams) -> None:
    if params.away is not None and not 0 <= params.away < 1:
        raise ConfigError("away", params.away, "a number from 0 up to, not including, 1")


class OneUserAtATime(Isolated):
    """The next message when every user has the last one."""

    def receivers(self, source: int, number: int) -> Collection[int]:
        return self.sources


class BeaconMeter(ABC):
    """An observer: what is sent by the clock."""

    beacons = 0

    @abstractmethod
    def sent(self, time: int, site: int, destination: int, pdu: Pdu) -> None:
        """Count `pdu` if it is a beacon."""


class LineRun(MeasuredRun):
    """A run of sites on lines."""

    isolated = OneUserAtATime

    def __init__(
        self,
        params: SimulateParams,
        recorder: Recorder | None,
        users: tuple[int, ...],
        checker: JournalChecker,
        beacons: BeaconMeter,
    ) -> None:
        super().__init__(params, lambda *_: len(users))
        self.users = self.sources = users
        self.checker = checker
        self.beacons = beacons
        self.applications = self.make_group(
            max(1, params.hold_ns // 1000),
            observers=[self.meter, checker, self.beacons, self],
            sample_ns=STEP_NS,
            **self.conditions(recorder),
        )
        self.world = self.applications.world
        self.load = self.make_load()
        free = self.may_leave()
        away = min(len(free), round((params.away or 0.0) * self.first_kind))
        self.away = free[len(free) - away :]
        self.gone = self.returned = not self.away

    @abstractmethod
    def make_group(self, delay_ns: int, **options: Any) -> LineApplications[Any]:
        """A group in a world in which a local line takes `delay_ns`."""

    @property
    @abstractmethod
    def first_kind(self) -> int:
        """How many users there are, not counting those behind a broadcaster."""

    @abstractmethod
    def may_leave(self) -> Sequence[int]:
        """Users that can do without their site for a while."""

    @abstractmethod
    def parts(self, site: Any) -> Iterable[GrsbSite | None]:
        """The parts of a site in GRSB groups."""

    @property
    def gap_ns(self) -> int:
        return 10 * self.params.hold_ns

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
