"""One simulated run under measured conditions: a protocol, a load, a loss, a seed.

The `paper` profile is CM84's simulation: no idle beacon, requests one by one, one message a PDU.
When the load is over its network falls silent, and a site that missed the last commits cannot know
it.  So PDUs are counted up to that silence, and then the run is *drained*, uncounted: holders of
the token repeat their confirmation every T (as the beacon of the `fast` profile does) until every
site has everything.  A run of the `fast` profile ends when every site has everything.

docs/runs.md defines every parameter and every field of the results.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from math import isclose, isfinite
from pathlib import Path
from typing import Any, Final

from msgspec import Struct, structs

from roundelay.core.engine import MS, SECOND, Delivery
from roundelay.core.errors import ConfigError
from roundelay.core.families import CLUSTERS, FAMILIES, GRSB, POSITIVE_ACK, TOKEN, WIDE, Family
from roundelay.core.limits import chance, one_of, whole
from roundelay.core.positive_ack import PositiveAckConfig
from roundelay.core.token.config import TokenConfig
from roundelay.runs import cluster
from roundelay.runs.folder import as_row
from roundelay.runs.line import GrsbRun, WideRun
from roundelay.runs.measured import (
    FAST,
    ISOLATED,
    LOADS,
    PAPER,
    POISSON,
    PROFILES,
    SITES,
    MeasuredRun,
    Progress,
)
from roundelay.sim.families.registry import SIMULATED, SIMULATED_FAMILIES
from roundelay.sim.kernel.load import HEADER, SIZE, Load
from roundelay.sim.kernel.world import World
from roundelay.sim.network.media import Bus
from roundelay.trace.checkers.checkers import Checker
from roundelay.trace.recorder import Recorder

SITES_MAX: Final = 1000
PAYLOAD_MAX: Final = 1200
TAU_DEFAULT: Final = 1.0
HOLD_MS_DEFAULT: Final = 50.0
FAST_TIMES: Final = (
    *("hold_ns", "resend_ns", "pass_ns", "request_ns"),
    *("request_delay_ns", "retx_ns", "idle_ns", "adapt_ns"),
)
STALL_HOLDS: Final = 100_000
"""Hold times without a delivery after which a run is given up: nothing sane takes that long."""

CHUNK_HOLDS: Final = 256
LOOK_EVENTS: Final = 20_000
"""Events between two looks at the buffers, and two reports of progress."""

REPORTED: Final = (
    *("protocol", "sites", "resilience", "loss", "messages", "seed", "profile", "load"),
    *("tau", "rate", "kw", "kr", "hold_ms", "wire"),
)
"""Parameters that the results begin with."""

LIMITED: Final = {
    "policy": CLUSTERS,
    "destinations": CLUSTERS,
    "layout": (GRSB,),
    "recorders": (GRSB, WIDE),
    "away": (GRSB, WIDE),
    "networks": (WIDE,),
    "subnet": (WIDE,),
}
"""Parameters that only some protocols have."""


class SimulateParams(Struct, frozen=True, kw_only=True):
    """Everything that decides a run: `params.json` is this."""

    protocol: str = TOKEN
    sites: int = SITES
    resilience: int | None = None
    loss: float = 0.0
    messages: int = 1000
    seed: int = 0
    tau: float | None = None
    rate: float | None = None
    kw: int = 1
    kr: int = 1
    profile: str = PAPER
    load: str | None = None
    policy: str | None = None
    destinations: int | None = None
    layout: str | None = None
    recorders: int | None = None
    away: float | None = None
    networks: int | None = None
    subnet: int | None = None
    hold_ms: float = HOLD_MS_DEFAULT
    size: int = SIZE
    wire: bool = False

    def settled(self) -> SimulateParams:
        """Checked, and with every default filled in; raises ConfigError."""
        one_of("protocol", self.protocol, SIMULATED)
        one_of("profile", self.profile, PROFILES)
        if self.load is None:
            # The papers of the cluster protocols count isolated broadcasts.
            asked = self.tau is not None or self.rate is not None
            alone = self.family.is_cluster and not asked
            return structs.replace(self, load=ISOLATED if alone else POISSON).settled()
        one_of("load", self.load, LOADS)
        whole("sites", self.sites, 2, SITES_MAX)
        whole("messages", self.messages, 1, 1 << 40)
        whole("seed", self.seed, 0, 1 << 63)
        whole("size", self.size, HEADER.size, PAYLOAD_MAX, " (bytes)")
        chance("loss", self.loss)
        if not (isfinite(self.hold_ms) and 0.05 <= self.hold_ms <= 1e9):
            raise ConfigError("hold_ms", self.hold_ms, "a number from 0.05 to 1e9")
        resilience = self._resilience()
        tau, rate = self._load()
        done = structs.replace(self, resilience=resilience, tau=tau, rate=rate)
        if not self.family.resilient and (self.kw > 1 or self.kr > 1):
            field = "kw" if self.kw > 1 else "kr"
            raise ConfigError(field, getattr(self, field), f"1 with {self.protocol}")
        for field, protocols in LIMITED.items():
            if getattr(self, field) is not None and self.protocol not in protocols:
                allowed = f"only with {' or '.join(protocols)}"
                raise ConfigError(field, getattr(self, field), allowed)
        RUNS[self.protocol].check_params(done)
        return done

    def _resilience(self) -> int:
        most = (self.sites + 1) // 2 - 1
        level = min(1, most) if self.resilience is None else self.resilience
        if not 0 <= level <= most:
            raise ConfigError("resilience", level, f"0 to {most} for {self.sites} sites")
        # The other protocols have no L: it is accepted, so that one grid of parameters serves
        # them all, and reported as what it is.
        return level if self.family.resilient else 0

    def _load(self) -> tuple[float | None, float | None]:
        """τ and the rate: one follows from the other."""
        tau, rate = self.tau, self.rate
        if self.load != POISSON:
            for name, value in (("tau", tau), ("rate", rate)):
                if value is not None:
                    raise ConfigError(name, value, f"only with the load {POISSON}")
            return None, None
        hold_s = self.hold_ms / 1000
        if tau is not None and rate is not None and not isclose(tau, rate * hold_s):
            raise ConfigError("rate", rate, f"only without tau (tau = {tau})")
        for name, value in (("tau", tau), ("rate", rate)):
            if value is not None and not (isfinite(value) and 1e-9 <= value <= 1e9):
                raise ConfigError(name, value, "a number from 1e-9 to 1e9")
        if rate is None:
            rate = (TAU_DEFAULT if tau is None else tau) / hold_s
        return rate * hold_s if tau is None else tau, rate

    @property
    def family(self) -> Family:
        """The record of the protocol."""
        return FAMILIES[self.protocol]

    @property
    def hold_ns(self) -> int:
        """T."""
        return int(self.hold_ms * MS)

    def engine_config(self) -> TokenConfig | PositiveAckConfig:
        """Of the protocols that CM84 compares."""
        if self.family.resilient:
            return self._token_config()
        if self.profile == PAPER:
            return PositiveAckConfig.paper(self.hold_ns).check(self.sites)
        return PositiveAckConfig(
            resend_ns=self.hold_ns, bundle=True, pipeline=16, attempts=1 << 40
        ).check(self.sites)

    def _token_config(self) -> TokenConfig:
        hold = self.hold_ns
        given: dict[str, Any] = {"resilience": self.resilience, "kw": self.kw, "kr": self.kr}
        if self.profile == PAPER:
            config = TokenConfig.paper(hold, **given)
        else:
            # Nobody waits for T here, but the medium's delay is a share of it, and all times have
            # to stay above a round trip.
            fast = TokenConfig.fast()
            scale = max(1.0, self.hold_ms / HOLD_MS_DEFAULT)
            times = {name: int(getattr(fast, name) * scale) for name in FAST_TIMES}
            if self.kw == 1:
                given["kw"] = fast.kw if self.kr == 1 else 1
            config = TokenConfig.fast(**given, **times)
        return config.check(self.sites)


class TokenRun(MeasuredRun):
    """A run of the token protocol, or of positive acknowledgement."""

    @staticmethod
    def check_params(params: SimulateParams) -> None:
        params.engine_config()

    def __init__(
        self,
        params: SimulateParams,
        recorder: Recorder | None,
        load: Load | None = None,
        transit_ns: int | None = None,
    ) -> None:
        super().__init__(params)
        # The stretch of deliveries that can be compared at all is bounded; a run without crashes
        # has nobody further behind than that.
        self.checker = Checker(range(params.sites), order=params.family.order)
        family = SIMULATED_FAMILIES[params.protocol]
        self.world = World(
            params.sites,
            family.factory(params.sites, params.engine_config()),
            # All who hear a PDU hear it at the same instant, long before T has passed.
            medium=Bus(transit_ns or max(1, params.hold_ns // 1000)),
            make_stable=family.core.stable,
            observers=[self.meter, self.checker],
            check_invariants=False,
            **self.conditions(recorder),
        )
        if not params.family.resilient:
            self.world.on_delivered.append(self._measure_storage)
        self.load = load or self.make_load()
        self.next_look = LOOK_EVENTS

    # -- running ---------------------------------------------------------------------------

    def run(self, progress: Progress | None = None) -> bool:
        self.load.start(self.world)
        if self.params.profile == FAST:
            self.meter.on_complete = self.world.stop
            settled = self._advance(progress, lambda: self.meter.complete)
            self.count()
        else:
            settled = self._run_to_silence(progress)
        if self.params.family.resilient:
            engines = [self.world.site(site) for site in self.world.group]
            self.storage_max = max(int(engine.log.storage_max) for engine in engines)
        self.world.finish(settled=settled)
        return settled

    def _run_to_silence(self, progress: Progress | None) -> bool:
        counted = False
        while True:
            if not self._advance(progress, lambda: False):
                return False
            if self.load.done and not counted:
                self.count()
                counted = True
            if self.meter.complete and self.load.done:
                return True
            self.world.after(self.params.hold_ns, self._nudge)

    def _nudge(self) -> None:
        """A confirmation out of turn: whoever lacks something learns that it does."""
        if self.params.family.resilient:
            for site in self.world.group:
                self.world.call(site, lambda engine, now: engine.nudge(now))

    def _advance(self, progress: Progress | None, done: Callable[[], bool]) -> bool:
        """Run until `done` or until nothing is due any more; False if nothing moves either."""
        world, meter = self.world, self.meter
        hold = self.params.hold_ns
        while world.heap and not done():
            until = world.heap[0][0]
            if self._steady():
                until += CHUNK_HOLDS * hold
            world.run(until)
            if world.events >= self.next_look:
                self.next_look = world.events + LOOK_EVENTS
                self.show_buffers()
                if progress is not None:
                    progress(meter.everywhere, self.params.messages)
            waiting = meter.submitted_total > meter.everywhere
            if waiting and world.now - meter.last_delivery_ns > STALL_HOLDS * hold:
                return False
        return True

    def _steady(self) -> bool:
        """Whether something will always be due: only then can time pass in large steps.

        A world that runs out of events is at the end of its step, not at its last event.
        """
        return self.params.profile == FAST or (self.params.load == POISSON and not self.load.done)

    def _measure_storage(self, time: int, site: int, delivery: Delivery) -> None:
        """Of positive acknowledgement, where a source delivers a message to itself when it sends
        it: then its store is fullest."""
        if delivery.source == site:
            kept = len(self.world.site(site).outstanding)
            self.storage_max = max(self.storage_max, kept)


RUNS: Final[dict[str, type[Any]]] = {
    TOKEN: TokenRun,
    POSITIVE_ACK: TokenRun,
    **dict.fromkeys(CLUSTERS, cluster.ClusterRun),
    GRSB: GrsbRun,
    WIDE: WideRun,
}
"""What measures runs of a protocol."""


def results(run: MeasuredRun, trace_sha256: str | None) -> dict[str, Any]:
    """`results.json`: docs/runs.md says what each field means."""
    params, world, meter = run.params, run.world, run.meter
    total = meter.submitted_total
    per_message = 1 / total if total else 0.0
    return {
        **{name: getattr(params, name) for name in REPORTED},
        "messages": total,
        "delivered_everywhere": meter.complete and run.load.done,
        "same_order": meter.same_order,
        "pdus": run.pdus,
        "pdus_per_message": run.pdus * per_message,
        "control_per_message": (run.pdus - max(meter.bundles_at)) * per_message,
        "pdus_by_kind": dict(sorted(run.pdus_by_kind.items())),
        "drain_pdus": world.sent - run.pdus,
        "storage_max": run.storage_max,
        "delay_ms_mean": meter.delays.mean_ms,
        "delay_ms_p50": meter.delays.quantile_ms(0.5),
        "delay_ms_p99": meter.delays.quantile_ms(0.99),
        "delay_ms_max": meter.delays.most_ms,
        "virtual_s": meter.last_delivery_ns / SECOND,
        "events": world.events,
        "lost_copies": world.faults.get("loss", 0),
        "trace_sha256": trace_sha256,
        "violations": [as_row(violation) for violation in run.checker.violations],
        **run.own_results(),
    }


def simulate(
    params: SimulateParams,
    *,
    trace: Path | None = None,
    progress: Progress | None = None,
    hashed: bool = True,
) -> dict[str, Any]:
    """Run it and say what came out; `trace` is where its trace file goes, if one is wanted.

    Without one and without `hashed` it takes less time, and `trace_sha256` is None.

    >>> simulate(SimulateParams(sites=3, messages=20))["delivered_everywhere"]
    True
    """
    params = params.settled()
    recorder = None
    if hashed or trace is not None:
        recorder = Recorder(trace, params=trace_params(params))
    with recorder or nullcontext():
        run: MeasuredRun = RUNS[params.protocol](params, recorder)
        run.run(progress)
    return results(run, None if recorder is None else recorder.sha256())


def trace_params(params: SimulateParams) -> dict[str, Any]:
    """What a trace file says about its run: enough to check it without its folder."""
    known = {"command": "simulate", "order": params.family.order} | structs.asdict(params)
    users = RUNS[params.protocol].users_of(params)
    if users is not None:
        known["users"] = list(users)
    return known
