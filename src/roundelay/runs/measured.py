"""Measured runs: a world, a load, a meter, and what came of it.

A meter measures a run as it goes by: who delivered what, in the same order or not, and how late.
Memory holds what is under way and nothing else: a message is forgotten when all sites have it, and
delays are counted in buckets.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from roundelay.core.bundle import Bundle
from roundelay.core.engine import STAMPED, Delivery
from roundelay.sim.kernel.load import Destinations, Isolated, Load, Poisson, Saturating
from roundelay.sim.kernel.world import World
from roundelay.sim.network.links import PLAIN, Lossy
from roundelay.trace.recorder import Recorder
from roundelay.trace.schema import kind_of
from roundelay.wire.codec import GroupCodec

if TYPE_CHECKING:
    from roundelay.runs.simulate import SimulateParams

PAPER: Final = "paper"
FAST: Final = "fast"
PROFILES: Final = (PAPER, FAST)

POISSON: Final = "poisson"
SATURATED: Final = "saturated"
ISOLATED: Final = "isolated"
LOADS: Final = (POISSON, SATURATED, ISOLATED)

SITES: Final = 5
"""Of a group, or of each network."""

Progress = Callable[[int, int], None]
"""Called now and then with (messages delivered everywhere, messages in total)."""

SUB_BITS: Final = 7
"""Delays share a bucket if they agree in this many bits after the leading one: 0.8 % apart."""

PRUNE_EVERY: Final = 4096


class Delays(Struct):
    """A histogram of delays: the mean exactly, quantiles within 0.4 %.

    >>> delays = Delays()
    >>> for ms in range(1, 101):
    ...     delays.add(ms * 1_000_000)
    >>> delays.mean_ms, round(delays.quantile_ms(0.99))
    (50.5, 99)
    """

    count: int = 0
    total_ns: int = 0
    least_ns: int = 0
    most_ns: int = 0
    buckets: dict[int, int] = {}

    def add(self, delay_ns: int) -> None:
        shift = delay_ns.bit_length() - SUB_BITS - 1
        bucket = delay_ns if shift <= 0 else (shift << SUB_BITS) + (delay_ns >> shift)
        buckets = self.buckets
        buckets[bucket] = buckets.get(bucket, 0) + 1
        if delay_ns > self.most_ns:
            self.most_ns = delay_ns
        if delay_ns < self.least_ns or not self.count:
            self.least_ns = delay_ns
        self.count += 1
        self.total_ns += delay_ns

    @property
    def mean_ms(self) -> float:
        return self.total_ns / self.count / 1e6 if self.count else 0.0

    @property
    def most_ms(self) -> float:
        return self.most_ns / 1e6

    def quantile_ms(self, share: float) -> float:
        """The delay that this share of all do not exceed: the middle of its bucket."""
        rest = share * self.count
        for bucket in sorted(self.buckets):
            rest -= self.buckets[bucket]
            if rest <= 0:
                shift = max(0, (bucket >> SUB_BITS) - 1)
                low = (bucket - (shift << SUB_BITS)) << shift
                middle = low + ((1 << shift) - 1) / 2
                return min(max(middle, self.least_ns), self.most_ns) / 1e6
        return 0.0


@dataclass(eq=False)
class Meter:
    """An observer that measures; `on_complete` is called when `expected` messages are everywhere.

    `same_order` compares what the sites delivered, one by one: the k-th delivery of every site has
    to be the same message.  It is False from the first difference on.
    """

    sites: int
    expected: int
    on_complete: Callable[[], None] | None = None
    receivers: Callable[[int, int], int] | None = None
    """(site, index) → how many are to have that message."""

    def __post_init__(self) -> None:
        self.submitted_total = 0
        self.delivered_at = [0] * self.sites  # messages, per site
        self.bundles_at = [0] * self.sites
        self.everywhere = 0  # messages that every site has delivered
        self.last_delivery_ns = 0
        self.delays = Delays()
        self.same_order = True
        self._under_way: dict[bytes, list[int]] = {}  # message → [submitted at, sites missing]
        self._log: list[tuple[int, int]] = []  # (source, number) by position, from `_base` on
        self._base = 0

    def submitted(self, time: int, site: int, index: int, bundle: Bundle) -> None:
        self.submitted_total += len(bundle.sizes)
        for k, data in enumerate(bundle):
            missing = self.sites if self.receivers is None else self.receivers(site, index + k)
            self._under_way[data] = [time, missing]

    def delivered(self, time: int, site: int, delivery: Delivery) -> None:
        if delivery.stage == STAMPED:
            return
        bundle = delivery.bundle
        count = len(bundle.sizes)
        self.delivered_at[site] += count
        self.last_delivery_ns = time
        place = self.bundles_at[site]
        self.bundles_at[site] = place + 1
        if self.same_order:
            self._compare(place, (delivery.source, delivery.number))
        under_way = self._under_way
        add = self.delays.add
        for data in (bundle.data,) if count == 1 else bundle:
            entry = under_way.get(data)
            if entry is None:
                continue
            add(time - entry[0])
            entry[1] -= 1
            if not entry[1]:
                del under_way[data]
                self.everywhere += 1
        if self.everywhere >= self.expected and self.on_complete is not None:
            self.on_complete()
            self.on_complete = None

    @property
    def complete(self) -> bool:
        """Whether every site has delivered everything that was expected."""
        return self.everywhere >= self.expected

    def _compare(self, place: int, identity: tuple[int, int]) -> None:
        log = self._log
        at = place - self._base
        if at == len(log):
            log.append(identity)
            if at >= PRUNE_EVERY and not at % PRUNE_EVERY:
                done = min(self.bundles_at)
                del log[: done - self._base]
                self._base = done
        elif log[at] != identity:
            self.same_order = False
            log.clear()


class LogDigests:
    """An observer that condenses what each site delivered into one hash per site."""

    def __init__(self, sites: int) -> None:
        self._hashes = [blake2b(digest_size=16) for _ in range(sites)]

    def delivered(self, time: int, site: int, delivery: Delivery) -> None:
        if delivery.stage != STAMPED:
            log = self._hashes[site]
            for data in delivery.bundle:
                log.update(len(data).to_bytes(4, "big"))
                log.update(data)

    def digests(self) -> list[str]:
        return [log.hexdigest() for log in self._hashes]


class MeasuredRun(ABC):
    """A run in the making; subclasses make the world and say when it is over."""

    world: World
    checker: Any
    """Has `violations`, and is shown how full buffers are."""
    load: Load
    sources: tuple[int, ...] | None = None
    """The sites that submit, if not all do."""
    to: Destinations | None = None
    """Who gets which message, if not everybody."""
    isolated: type[Isolated] = Isolated
    storage_max = 0
    """The most that one site kept at a time, by the protocol's own measure."""

    def __init__(
        self, params: SimulateParams, receivers: Callable[[int, int], int] | None = None
    ) -> None:
        self.params = params
        self.meter = Meter(params.sites, params.messages, receivers=receivers)
        self.pdus = 0
        self.pdus_by_kind: dict[str, int] = {}

    @staticmethod
    @abstractmethod
    def check_params(params: SimulateParams) -> None:
        """Raise ConfigError for what the protocol cannot do."""

    @staticmethod
    def sites_for(networks: int | None) -> int:
        """How many sites there are, unless somebody says so."""
        return SITES

    @staticmethod
    def users_of(params: SimulateParams) -> tuple[int, ...] | None:
        """The sites with an application, if not all have one."""
        return None

    def conditions(self, recorder: Recorder | None) -> dict[str, Any]:
        """What the world of any such run is made with."""
        params = self.params
        return {
            "seed": params.seed,
            "links": Lossy(params.loss) if params.loss else PLAIN,
            "codec": GroupCodec("simulate") if params.wire else None,
            "recorder": recorder,
        }

    @property
    def gap_ns(self) -> int:
        """The time between messages that are to be isolated."""
        return 10 * self.params.hold_ns

    def make_load(self) -> Load:
        params = self.params
        given: dict[str, Any] = {"sources": self.sources, "size": params.size, "to": self.to}
        if params.load == SATURATED:
            return Saturating(params.messages, **given)
        if params.load == ISOLATED:
            return self.isolated(params.messages, gap_ns=self.gap_ns, **given)
        assert params.rate is not None
        return Poisson(params.messages, params.rate, **given)

    @abstractmethod
    def run(self, progress: Progress | None = None) -> bool:
        """Run to the end; False if it was given up."""

    def count(self, uncounted: int = 0) -> None:
        """What was sent up to here, but for so many PDUs, is what the run cost."""
        self.pdus = self.world.sent - uncounted
        self.pdus_by_kind = {
            kind_of(kind): count for kind, count in self.world.sent_by_kind.items()
        }

    def show_buffers(self) -> None:
        """Show the checker how full the buffers are (I6)."""
        for member in self.world.sites:
            engine = member.engine
            if engine is not None:
                self.checker.sampled(self.world.now, member.id, engine.usage(), engine.caps())

    def own_results(self) -> dict[str, Any]:
        """What only this protocol has to say."""
        return {}
