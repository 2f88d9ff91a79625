"""Delays, agreement and digests, measured as deliveries go by."""

from __future__ import annotations

from random import Random

import pytest

from roundelay.core.bundle import Bundle
from roundelay.core.engine import COMMITTED, STAMPED, Delivery
from roundelay.runs.measured import PRUNE_EVERY, Delays, LogDigests, Meter


def delivery(
    seq: int, source: int, number: int, *messages: bytes, stage: str = COMMITTED
) -> Delivery:
    return Delivery(seq, source, number, Bundle.of(*messages), stage)


@pytest.mark.parametrize("spread", [10, 1_000, 10**6, 10**9, 10**12])
def test_quantiles_are_within_one_percent(spread: int) -> None:
    rng = Random(spread)
    values = sorted(int(rng.expovariate(1 / spread)) for _ in range(20_000))
    delays = Delays()
    for value in values:
        delays.add(value)
    for share in (0.01, 0.5, 0.9, 0.99, 0.999, 1.0):
        exact = values[max(0, round(share * 20_000) - 1)]
        assert delays.quantile_ms(share) * 1e6 == pytest.approx(exact, rel=0.01, abs=1)
    assert delays.mean_ms * 1e6 == pytest.approx(sum(values) / len(values))
    assert delays.most_ms * 1e6 == values[-1]


def test_no_delays_at_all() -> None:
    assert (Delays().mean_ms, Delays().quantile_ms(0.99), Delays().most_ms) == (0.0, 0.0, 0.0)


def test_buckets_are_few() -> None:
    delays = Delays()
    rng = Random(1)
    for _ in range(100_000):
        delays.add(rng.randrange(10**11))
    assert len(delays.buckets) < 5_000


def test_a_meter_sees_when_everything_is_everywhere() -> None:
    done: list[bool] = []
    meter = Meter(2, 2, lambda: done.append(True))
    meter.submitted(10, 0, 0, Bundle.of(b"x", b"y"))
    meter.delivered(12, 0, delivery(0, 0, 0, b"x", b"y", stage=STAMPED))
    assert meter.delivered_at == [0, 0]
    meter.delivered(14, 0, delivery(0, 0, 0, b"x", b"y"))
    assert not meter.complete
    meter.delivered(20, 1, delivery(0, 0, 0, b"x", b"y"))
    assert meter.complete
    assert done == [True]
    assert meter.delays.count == 4
    assert meter.delays.total_ns == 2 * 4 + 2 * 10
    assert meter.same_order
    assert meter.bundles_at == [1, 1]


def test_a_meter_sees_two_sites_disagree() -> None:
    meter = Meter(2, 2)
    for site, order in ((0, (1, 2)), (1, (2, 1))):
        for place, source in enumerate(order):
            assert meter.same_order == (site == 0 or place == 0)
            meter.delivered(0, site, delivery(place, source, 0, bytes([source])))
    assert not meter.same_order


def test_a_meter_forgets_what_all_sites_have() -> None:
    meter = Meter(2, 1 << 60)
    for n in range(4 * PRUNE_EVERY):
        data = n.to_bytes(4, "big")
        meter.submitted(n, 0, n, Bundle.of(data))
        for site in (0, 1):
            meter.delivered(n + 5, site, delivery(n, 0, n, data))
    assert meter.same_order
    assert meter.everywhere == 4 * PRUNE_EVERY
    assert len(meter._log) <= PRUNE_EVERY + 1
    assert not meter._under_way


def test_digests_are_the_same_for_the_same_messages_however_bundled() -> None:
    digests = LogDigests(3)
    digests.delivered(0, 0, delivery(0, 0, 0, b"ab", b"c"))
    digests.delivered(0, 1, delivery(0, 0, 0, b"ab"))
    digests.delivered(0, 1, delivery(1, 0, 1, b"c"))
    digests.delivered(0, 2, delivery(0, 0, 0, b"a", b"bc"))
    one, two, three = digests.digests()
    assert one == two != three
