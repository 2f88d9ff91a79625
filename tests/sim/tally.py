"""Tally: how many messages reached whom, and how long it took, in memory that does not grow.

Delays go into buckets whose width grows with the delay (about 3 %), so a percentile of a million
messages needs a few hundred counters.
"""

from __future__ import annotations

from math import exp, log
from typing import Final

from roundelay.core.bundle import Bundle
from roundelay.core.engine import STAMPED, Delivery, Notice
from roundelay.core.notices import GapUnavailable

GROWTH: Final = log(1.03)


class Delays:
    """Mean exactly, percentiles to about 3 %."""

    def __init__(self) -> None:
        self.count = 0
        self.total_ns = 0
        self.most_ns = 0
        self.buckets: dict[int, int] = {}

    def add(self, delay_ns: int) -> None:
        self.count += 1
        self.total_ns += delay_ns
        if delay_ns > self.most_ns:
            self.most_ns = delay_ns
        bucket = int(log(delay_ns + 1) / GROWTH)
        self.buckets[bucket] = self.buckets.get(bucket, 0) + 1

    @property
    def mean_ns(self) -> float:
        return self.total_ns / self.count if self.count else 0.0

    def quantile_ns(self, q: float) -> float:
        """The delay that a share `q` of all do not exceed."""
        left = q * self.count
        for bucket in sorted(self.buckets):
            left -= self.buckets[bucket]
            if left <= 0:
                return min(exp((bucket + 1) * GROWTH), self.most_ns)
        return 0.0


class Tally:
    """An observer that counts.  `delays` are from submission to each delivery."""

    def __init__(self, sites: int) -> None:
        self.sites = sites
        self.submitted_total = 0
        self.delivered_at = [0] * sites  # messages per site, committed or accepted
        self.skipped_at = [0] * sites  # messages a site was told to get elsewhere
        self.position = 0  # messages in the agreed order that some site has delivered
        self.everywhere = 0  # messages that all sites have delivered
        self.delays = Delays()
        self.under_way: dict[bytes, list[int]] = {}  # message → [submission time, sites missing]

    def submitted(self, time: int, site: int, index: int, bundle: Bundle) -> None:
        self.submitted_total += len(bundle)
        for data in bundle:
            self.under_way[data] = [time, self.sites]

    def delivered(self, time: int, site: int, delivery: Delivery) -> None:
        if delivery.stage == STAMPED:
            return
        bundle = delivery.bundle
        self.delivered_at[site] += len(bundle)
        if delivery.seq + len(bundle) > self.position:
            self.position = delivery.seq + len(bundle)
        for data in bundle:
            found = self.under_way.get(data)
            if found is None:
                continue
            self.delays.add(time - found[0])
            found[1] -= 1
            if not found[1]:
                del self.under_way[data]
                self.everywhere += 1

    def noticed(self, time: int, site: int, notice: Notice) -> None:
        if isinstance(notice, GapUnavailable):
            self.skipped_at[site] += notice.hi - notice.lo

    @property
    def committed(self) -> int:
        """Messages that have their place in the agreed order, or reached every site."""
        return max(self.position, self.everywhere)
