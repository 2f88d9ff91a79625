"""What one broadcast costs: PDUs, rounds, slots, and delay against loss (PROTOCOLS §3.5, §9.4).

The papers count an isolated broadcast without losses, acknowledged at once (t_ack = 0):

======  ===================================================================  ====================
PDUs    transmitted for one message, until the network is silent              2n, or n² − n + 1
                                                                              with `eager`
rounds  delay until it is acknowledged at all destinations, on channels in    3
        parallel, each with the same delay, in units of that delay
slots   the same on one serial channel (`Bus`), in units of the time that     2n
        one PDU takes
======  ===================================================================  ====================

(n ≥ 3: two members need 3 PDUs and 3 slots.)  With d destinations, the source not among them, SPO
takes 2(d + 1) PDUs and slots, however large the cluster is.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from math import sqrt
from statistics import fmean, stdev
from typing import Final

from msgspec import Struct

from roundelay.core.bundle import Bundle
from roundelay.core.cluster.config import DEFERRED, ClusterConfig
from roundelay.core.engine import MS, Delivery
from roundelay.core.errors import ConfigError, InvariantBroken
from roundelay.core.families import CLUSTERS, FAMILIES, SPO
from roundelay.core.limits import one_of
from roundelay.sim.families.registry import SIMULATED_FAMILIES
from roundelay.sim.kernel.load import Destinations, Isolated
from roundelay.sim.kernel.world import World
from roundelay.sim.network.links import PLAIN, Link, Lossy
from roundelay.sim.network.media import Bus, Mesh, SimulatedMedium

UNIT_NS: Final = MS
"""One round, one slot."""

PATIENT_UNITS: Final = 100_000
"""A time that never passes in a run without loss: timers that long do not fire."""

LOSSES: Final = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3)
RUNS: Final = 100

SURE: Final = 3.0
"""Standard errors by which a slope has to fall before a curve is not called convex."""


class Cost(Struct, frozen=True):
    """Of one message, on average over several that do not meet."""

    pdus: float
    rounds: float
    slots: float


class Slowest(Struct):
    """An observer: how long each message took until its last destination had it."""

    since: dict[bytes, int] = {}
    took: dict[bytes, int] = {}

    def submitted(self, time: int, site: int, index: int, bundle: Bundle) -> None:
        self.since.update(dict.fromkeys(bundle, time))

    def delivered(self, time: int, site: int, delivery: Delivery) -> None:
        for data in delivery.bundle:
            self.took[data] = time - self.since[data]

    @property
    def mean_units(self) -> float:
        return sum(self.took.values()) / len(self.took) / UNIT_NS


def cost(
    protocol: str,
    sites: int,
    *,
    policy: str = DEFERRED,
    destinations: int | None = None,
    messages: int = 4,
    seed: int | str = 0,
) -> Cost:
    """What an isolated broadcast costs without loss; `destinations` (SPO only) as in `load`.

    >>> cost("po", 5)
    Cost(pdus=10.0, rounds=3.0, slots=10.0)
    >>> cost("to", 5, policy="eager").pdus
    21.0
    >>> cost("spo", 9, destinations=2).pdus
    6.0
    """
    long_ns = PATIENT_UNITS * UNIT_NS
    config = ClusterConfig(ack_ns=0, wait_ns=long_ns, stat_ns=long_ns, policy=policy)
    measure = partial(_measure, protocol, sites, config, destinations, messages=messages, seed=seed)
    pdus, rounds = measure(parallel_channels(protocol))
    same, slots = measure(serial_channel(protocol))
    if same != pdus:
        raise InvariantBroken(f"{pdus} PDUs on parallel channels, {same} on a serial one")
    return Cost(pdus, rounds, slots)


def delays(
    sites: int,
    loss: float,
    *,
    protocol: str = SPO,
    destinations: int | None = None,
    runs: int = RUNS,
    seed: int | str = 0,
) -> list[float]:
    """How many slots isolated broadcasts take on a serial channel that loses PDUs.

    Each run is a cluster of its own.  t_wait is n slots: when all members speak at once the last
    one comes so much later than the first, and nothing is lost.  t_stat is 2n + 3: a broadcast
    without loss is through before anybody polls.  (Longer timers give the curve a step: the first
    loss would cost a whole t_stat, and the second next to nothing.)
    """
    config = ClusterConfig(
        ack_ns=0,
        wait_ns=sites * UNIT_NS,
        stat_ns=(2 * sites + 3) * UNIT_NS,
        reset_ns=(2 * sites + 3) * UNIT_NS,
        attempts=PATIENT_UNITS,  # nobody fails
    )
    measure = partial(_measure, protocol, sites, config, destinations, messages=1)
    if not loss:  # nothing is left to chance
        return [measure(serial_channel(protocol), seed=f"{seed}/0")[1]] * runs
    link = Lossy(loss)  # one for all: its chances go on where the run before has left them
    return [measure(serial_channel(protocol), link, seed=f"{seed}/{run}")[1] for run in range(runs)]


class Curve(Struct, frozen=True):
    """Delay in slots against the chance of loss: SP Fig. 2."""

    sites: int
    losses: tuple[float, ...]
    slots: tuple[float, ...]
    """Means over the runs."""
    errors: tuple[float, ...]
    """Their standard errors."""
    bends: tuple[float, ...]
    """How much the slope grows at each loss but the first and the last, in standard errors.

    The runs are the same ones at every loss, so this is measured run by run.
    """

    @property
    def rising(self) -> bool:
        return all(less < more for less, more in pairwise(self.slots))

    @property
    def convex(self) -> bool:
        """The slope falls nowhere, as far as the runs can tell."""
        return min(self.bends, default=0.0) >= -SURE


def curve(losses: Sequence[float], measured: Sequence[Sequence[float]], sites: int) -> Curve:
    """What `measured` (at each loss the delays of the same runs) says.

    >>> curve((0, 0.1, 0.2), [[6, 6, 6], [8, 9, 7], [14, 12, 13]], 3).bends
    (1.9639610121239315,)
    """
    rows = list(zip(losses, measured, strict=True))
    bends = []
    for (x, low), (y, mid), (z, high) in zip(rows, rows[1:], rows[2:], strict=False):
        growth = [
            (c - b) / (z - y) - (b - a) / (y - x) for a, b, c in zip(low, mid, high, strict=True)
        ]
        error = _error(growth)
        bends.append(fmean(growth) / error if error else 0.0)
    means, errors = tuple(map(fmean, measured)), tuple(map(_error, measured))
    return Curve(sites, tuple(losses), means, errors, tuple(bends))


def delay_curve(sites: int, *, runs: int = RUNS, seed: int | str = 0) -> Curve:
    """SPO's delay against the chance of loss."""
    return curve(LOSSES, [delays(sites, loss, runs=runs, seed=seed) for loss in LOSSES], sites)


def _error(values: Sequence[float]) -> float:
    """The standard error of the mean of `values`, at least two of them."""
    return stdev(values) / sqrt(len(values))


def parallel_channels(protocol: str) -> SimulatedMedium:
    """Each PDU takes one unit, however many are under way."""
    one_channel = FAMILIES[protocol].one_channel
    return Bus(UNIT_NS, own_copy=True) if one_channel else Mesh(UNIT_NS, UNIT_NS)


def serial_channel(protocol: str) -> SimulatedMedium:
    """One PDU after the other, each of them takes one unit."""
    return Bus(0, UNIT_NS, own_copy=FAMILIES[protocol].one_channel)


def _measure(
    protocol: str,
    sites: int,
    config: ClusterConfig,
    destinations: int | None,
    medium: SimulatedMedium,
    links: Link = PLAIN,
    *,
    messages: int,
    seed: int | str,
) -> tuple[float, float]:
    """PDUs per message, and mean delay in units, of messages that never meet."""
    one_of("protocol", protocol, CLUSTERS)
    if destinations is not None and not FAMILIES[protocol].selective:
        raise ConfigError("destinations", destinations, f"only with the protocol {SPO}")
    to = None if destinations is None else Destinations(range(sites), destinations, seed=seed)
    slowest = Slowest()
    world = World(
        sites,
        SIMULATED_FAMILIES[protocol].factory(sites, config.check(sites)),
        seed=seed,
        medium=medium,
        links=links,
        observers=[slowest],
    )
    load = Isolated(messages, gap_ns=10 * sites * sites * UNIT_NS, to=to)
    load.start(world)
    while world.heap and not (load.done and not load.missing):
        world.run(world.heap[0][0])
    if not slowest.took or load.missing:
        raise InvariantBroken("the network fell silent before everything was delivered")
    # Nothing is due any more but timers that find nothing to do.
    world.run(world.now + 20 * sites * sites * UNIT_NS)
    return world.sent / messages, slowest.mean_units
