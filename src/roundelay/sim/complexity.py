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

from collections.abc import Iterable
from typing import Final

from msgspec import Struct

from roundelay.core.bundle import Bundle
from roundelay.core.cluster.config import DEFERRED, ClusterConfig
from roundelay.core.engine import MS, Delivery
from roundelay.core.errors import ConfigError, InvariantBroken
from roundelay.sim.engines import CLUSTERS, SPO, TO_CHANNEL, factory
from roundelay.sim.links import PLAIN, Link, Lossy
from roundelay.sim.load import Destinations, Isolated
from roundelay.sim.media import Bus, Medium, Mesh
from roundelay.sim.world import World

UNIT_NS: Final = MS
"""One round, one slot."""

PATIENT_UNITS: Final = 100_000
"""A time that never passes in a run without loss: timers that long do not fire."""

LOSSES: Final = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2)
RUNS: Final = 60


class Cost(Struct, frozen=True):
    """Of one message, on average over several that do not meet."""

    pdus: float
    rounds: float
    slots: float


class Slowest:
    """An observer: how long each message took until its last destination had it."""

    def __init__(self) -> None:
        self.since: dict[bytes, int] = {}
        self.took: dict[bytes, int] = {}

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
    own = protocol == TO_CHANNEL
    parallel = Bus(UNIT_NS, own_copy=True) if own else Mesh(UNIT_NS, UNIT_NS)
    pdus, rounds = _measure(protocol, sites, config, parallel, PLAIN, destinations, messages, seed)
    serial = Bus(0, UNIT_NS, own_copy=own)
    same, slots = _measure(protocol, sites, config, serial, PLAIN, destinations, messages, seed)
    if same != pdus:
        raise InvariantBroken(f"{pdus} PDUs on parallel channels, {same} on a serial one")
    return Cost(pdus, rounds, slots)


def delay_slots(
    sites: int,
    loss: float,
    *,
    protocol: str = SPO,
    destinations: int | None = None,
    runs: int = RUNS,
    seed: int | str = 0,
) -> float:
    """Mean delay in slots of an isolated broadcast on a serial channel that loses PDUs.

    t_wait is 3 slots and t_stat 3n + 6; each run is a cluster of its own.
    """
    config = ClusterConfig(
        ack_ns=0,
        wait_ns=3 * UNIT_NS,
        stat_ns=(3 * sites + 6) * UNIT_NS,
        reset_ns=(3 * sites + 6) * UNIT_NS,
        attempts=PATIENT_UNITS,  # nobody fails
    )
    links: Link = Lossy(loss) if loss else PLAIN
    total = 0.0
    for run in range(runs):
        medium = Bus(0, UNIT_NS, own_copy=protocol == TO_CHANNEL)
        name = f"{seed}/{run}"
        total += _measure(protocol, sites, config, medium, links, destinations, 1, name)[1]
    return total / runs


def delay_table(
    sites: Iterable[int] = (3, 5, 8),
    losses: Iterable[float] = LOSSES,
    *,
    destinations: int | None = None,
    runs: int = RUNS,
    seed: int | str = 0,
) -> dict[int, dict[float, float]]:
    """SPO's delay in slots: cluster size → chance of loss → `delay_slots`."""
    chances = tuple(losses)
    return {
        n: {
            loss: delay_slots(n, loss, destinations=destinations, runs=runs, seed=seed)
            for loss in chances
        }
        for n in sites
    }


def _measure(
    protocol: str,
    sites: int,
    config: ClusterConfig,
    medium: Medium,
    links: Link,
    destinations: int | None,
    messages: int,
    seed: int | str,
) -> tuple[float, float]:
    """PDUs per message, and mean delay in units, of messages that never meet."""
    if protocol not in CLUSTERS:
        raise ConfigError("protocol", protocol, " or ".join(CLUSTERS))
    if destinations is not None and protocol != SPO:
        raise ConfigError("destinations", destinations, f"only with the protocol {SPO}")
    to = None if destinations is None else Destinations(range(sites), destinations, seed=seed)
    slowest = Slowest()
    world = World(
        sites,
        factory(protocol, sites, config.check(sites)),
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
