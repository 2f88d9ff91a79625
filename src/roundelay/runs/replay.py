"""A recorded workload once more: the same messages at the same times, under another protocol.

What is compared are protocols on one network, so all have the same transit time, whatever T is.
The cluster protocols count in rounds, one transit each; for them the record is stretched until a
round takes as long as it does in `runs.cluster`, and their delays are shrunk again.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from msgspec import structs

from roundelay.core.engine import MS
from roundelay.core.errors import ConfigError
from roundelay.core.limits import whole
from roundelay.runs.cluster import ClusterRun
from roundelay.runs.measured import POISSON, MeasuredRun
from roundelay.runs.simulate import SimulateParams, TokenRun, results
from roundelay.sim.complexity import UNIT_NS
from roundelay.sim.kernel.load import HEADER, Load

Arrival = tuple[int, int, int]
"""(time in ns, source, bytes)"""

RETRY_NS = MS
DELAYS = ("delay_ms_mean", "delay_ms_p50", "delay_ms_p99", "delay_ms_max")


class ReplayedLoad(Load):
    """Exactly these messages, each at its time; a source that is refused tries again."""

    def __init__(self, arrivals: Sequence[Arrival], stretch: float = 1.0) -> None:
        super().__init__(len(arrivals))
        self.arrivals = arrivals
        self.stretch = stretch
        self._next = 0

    def begin(self) -> None:
        self._wait()

    def _wait(self) -> None:
        if self._next < len(self.arrivals):
            time = int((self.arrivals[self._next][0] - self.arrivals[0][0]) * self.stretch)
            self.world.at(max(self.world.now, time + RETRY_NS), self._arrive)

    def _arrive(self) -> None:
        _, source, size = self.arrivals[self._next]
        self._next += 1
        self._try(source, size)
        self._wait()

    def _try(self, source: int, size: int) -> None:
        self.size = max(HEADER.size, size)
        if not self.submit(source):
            self.world.after(RETRY_NS, partial(self._try, source, size))


def replay(params: SimulateParams, arrivals: Sequence[Arrival], transit_ns: int) -> dict[str, Any]:
    """The results of `simulate`, for recorded arrivals (at least two, in order of time).

    >>> arrivals = [(k * 10 * MS, k % 3, 64) for k in range(20)]
    >>> replay(SimulateParams(sites=3), arrivals, MS // 10)["delivered_everywhere"]
    True
    """
    if params.family.has_roles:
        raise ConfigError("protocol", params.protocol, "one whose members are all equal")
    whole("transit_ns", transit_ns, 1)
    span_s = max(1, arrivals[-1][0] - arrivals[0][0]) / 1e9
    rate = min(1e9, max(1e-9, (len(arrivals) - 1) / span_s))
    params = structs.replace(
        params, messages=len(arrivals), load=POISSON, rate=rate, tau=None
    ).settled()
    run: MeasuredRun
    if params.family.is_cluster:
        stretch = UNIT_NS / transit_ns
        run = ClusterRun(params, None, ReplayedLoad(arrivals, stretch))
        run.patience_ns += int((arrivals[-1][0] - arrivals[0][0]) * stretch)
        run.run()
        measured = results(run, None)
        return measured | {name: measured[name] / stretch for name in (*DELAYS, "virtual_s")}
    run = TokenRun(params, None, ReplayedLoad(arrivals), transit_ns)
    run.run()
    return results(run, None)
