"""One simulated run of a cluster protocol: TO, PO or SPO.

The papers count the PDUs of an isolated broadcast, acknowledged at once.  So that is what a run
does unless another load is asked for: one message at a time, t_ack = 0, on channels in parallel
that each take one *round*; for the *slots* the same messages are sent once more on a serial
channel, where each PDU takes one.  Without loss no timer but t_ack ever fires.
"""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING, Any, Final

from roundelay.core.cluster.config import DEFERRED, ClusterConfig
from roundelay.core.engine import Delivery
from roundelay.core.errors import ConfigError
from roundelay.core.families import FAMILIES, SPO
from roundelay.core.limits import whole
from roundelay.runs.measured import FAST, ISOLATED, MeasuredRun, Progress
from roundelay.sim.complexity import (
    PATIENT_UNITS,
    UNIT_NS,
    Slowest,
    cost,
    delays,
    parallel_channels,
)
from roundelay.sim.families.registry import SIMULATED_FAMILIES
from roundelay.sim.kernel.load import Destinations, Load
from roundelay.sim.kernel.world import World
from roundelay.trace.checkers.checkers import Checker
from roundelay.trace.recorder import Recorder

if TYPE_CHECKING:
    from roundelay.runs.simulate import SimulateParams

SLOT_RUNS: Final = 60
"""Isolated broadcasts over which a lossy serial channel is averaged, at most."""

LOOK_EVERY: Final = 64
"""Deliveries between two looks at how much a member keeps."""


def destinations(params: SimulateParams) -> Destinations | None:
    if params.destinations is None:
        return None
    return Destinations(range(params.sites), params.destinations, seed=params.seed)


def config(params: SimulateParams) -> ClusterConfig:
    """Timers by the delay of the channel; none that fires where nothing is lost."""
    sites = params.sites
    wait, stat = 3, 3 * sites + 6
    if not params.loss and params.load == ISOLATED:
        wait = stat = PATIENT_UNITS
    return ClusterConfig(
        ack_ns=0 if params.load == ISOLATED else UNIT_NS,
        wait_ns=wait * UNIT_NS,
        stat_ns=stat * UNIT_NS,
        reset_ns=stat * UNIT_NS,
        policy=params.policy or DEFERRED,
        bundle=params.profile == FAST,
        attempts=PATIENT_UNITS,  # nobody fails in such a run
        own_limit=1 << 40,
    ).check(sites)


class ClusterRun(MeasuredRun):
    """A run of a cluster."""

    @staticmethod
    def check_params(params: SimulateParams) -> None:
        if params.destinations is not None:
            if not FAMILIES[params.protocol].selective:
                raise ConfigError("destinations", params.destinations, f"only with {SPO}")
            whole("destinations", params.destinations, 1)
            destinations(params)
        config(params)

    def __init__(
        self, params: SimulateParams, recorder: Recorder | None, load: Load | None = None
    ) -> None:
        self.to = to = destinations(params)
        super().__init__(params, None if to is None else lambda site, index: len(to(site, index)))
        self.checker = Checker(
            range(params.sites), order=params.family.order, destinations=to.of if to else None
        )
        self.slowest = Slowest()
        self.world = World(
            params.sites,
            SIMULATED_FAMILIES[params.protocol].factory(params.sites, config(params)),
            medium=parallel_channels(params.protocol),
            observers=[self.meter, self.checker],
            **self.conditions(recorder),
        )
        self.deliveries = 0
        self.world.observe(self)
        if params.load == ISOLATED:
            self.world.observe(self.slowest)
        self.load = load or self.make_load()
        self.patience_ns = params.messages * 1000 * params.sites**2 * UNIT_NS
        self.silent = False

    @property
    def gap_ns(self) -> int:
        return 10 * self.params.sites**2 * UNIT_NS

    def run(self, progress: Progress | None = None) -> bool:
        """Until everything is delivered, and then until the network is silent."""
        world, meter = self.world, self.meter
        self.load.start(world)
        limit = world.now + self.patience_ns
        while world.heap and not (self.load.done and meter.complete):
            if world.heap[0][0] > limit:
                break
            world.run(world.heap[0][0])
            if progress is not None and not world.events % 1024:
                progress(meter.everywhere, self.params.messages)
        settled = meter.complete and self.load.done
        # QUIET: what is still sent now are acknowledgements and repairs; then nothing is.
        quiet = 20 * self.params.sites**2 * UNIT_NS
        for _ in range(100):
            before = world.sent
            world.run(world.now + quiet)
            if world.sent == before:
                self.silent = True
                break
        self.show_buffers()
        self.count()
        world.finish(settled=settled)
        return settled

    def delivered(self, time: int, site: int, delivery: Delivery) -> None:
        """Look now and then how many PDUs a member keeps, in any of its logs."""
        self.deliveries += 1
        if self.deliveries % LOOK_EVERY == 1:
            usage = self.world.site(site).usage()
            kept = usage["sl"] + usage["receipt"] + usage["blocked"]
            self.storage_max = max(self.storage_max, kept)

    def own_results(self) -> dict[str, Any]:
        """What only cluster protocols have to say."""
        isolated = self.params.load == ISOLATED
        return {
            "policy": self.params.policy or DEFERRED,
            "destinations": self.params.destinations,
            "rounds": self.slowest.mean_units if isolated else None,
            "slots": self._slots() if isolated else None,
            "silent": self.silent,
        }

    def _slots(self) -> float:
        params = self.params
        given: dict[str, Any] = {"destinations": params.destinations, "seed": params.seed}
        if not params.loss:
            policy = params.policy or DEFERRED
            return cost(params.protocol, params.sites, policy=policy, **given).slots
        runs = min(params.messages, SLOT_RUNS)
        return fmean(
            delays(params.sites, params.loss, protocol=params.protocol, runs=runs, **given)
        )
