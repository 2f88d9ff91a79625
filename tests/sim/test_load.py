"""Workloads submit what they promise, and tallies count it."""

from __future__ import annotations

from itertools import pairwise

import pytest

from roundelay.core.bundle import Bundle
from roundelay.core.engine import COMMITTED, MS, SECOND, STAMPED, Delivery, Notice
from roundelay.core.errors import ConfigError
from roundelay.core.events import SUBMIT
from roundelay.sim.load import Isolated, Load, Poisson, Saturating, Script, identity, message
from roundelay.sim.media import Bus
from roundelay.sim.tally import Delays, Tally
from tests.sim.gossip import Rows, gossip_world


def submissions(load: Load, **options: object) -> list[tuple[int, int, bytes]]:
    rows = Rows()
    world = gossip_world(4, recorder=rows, forward=False, **options)
    load.start(world)
    world.run(1000 * SECOND)
    rows.flush()
    found = []
    for time, site, _, _, _, bundle in rows.of(SUBMIT):
        assert isinstance(bundle, Bundle)
        found.append((time, site, bundle.data))
    return found


def test_messages_are_unique_and_say_whose_they_are():
    assert identity(message(300, 1 << 40)) == (300, 1 << 40)
    assert len(message(1, 2)) == 64
    assert message(1, 2, 10) == bytes((0, 1, 0, 0, 0, 0, 0, 0, 0, 2))


def test_poisson_has_its_rate_and_spreads_over_the_sources():
    found = submissions(Poisson(4000, rate=100))
    assert len(found) == 4000
    assert abs(found[-1][0] / SECOND - 40) < 3
    per_site = [sum(1 for _, site, _ in found if site == s) for s in range(4)]
    assert all(abs(count - 1000) < 120 for count in per_site)
    gaps = [b[0] - a[0] for a, b in pairwise(found)]
    mean = sum(gaps) / len(gaps)
    assert abs(sum(g * g for g in gaps) / len(gaps) / mean**2 - 2) < 0.3  # exponential
    assert len({data for _, _, data in found}) == 4000
    assert all(identity(data)[0] == site for _, site, data in found)


def test_tau_is_messages_per_hold_time():
    assert Poisson.of_tau(1, tau=0.5, hold_ns=50 * MS).rate == pytest.approx(10)


def test_only_chosen_senders_send():
    assert {site for _, site, _ in submissions(Poisson(50, 100, sources=[1, 3]))} == {1, 3}


def test_what_a_site_refuses_is_not_given_up():
    rows = Rows()
    world = gossip_world(2, recorder=rows)
    world.crash(0)
    load = Poisson(20, 100)
    load.start(world)
    world.run(SECOND * 5)
    assert load.done
    assert {row[1] for row in rows.of(SUBMIT)} == {1}


def test_saturating_keeps_every_source_busy():
    load = Saturating(100, backlog=3)
    found = submissions(load)
    assert load.done
    assert len(found) == 100
    assert [site for _, site, _ in found[:12]] == [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3


def test_saturating_begins_anew_after_a_crash():
    world = gossip_world(2, medium=Bus(MS), room=40)
    load = Saturating(10**9, sources=[0])
    load.start(world)
    world.crash(0)
    world.run(10 * MS)
    assert load.submitted_total == 0
    world.restart(0)
    world.run(20 * MS)
    assert load.submitted_total == 40


def test_isolated_waits_until_everybody_has_it():
    found = submissions(Isolated(5, gap_ns=100 * MS), medium=Bus(7 * MS))
    times = [time for time, _, _ in found]
    assert times == [100 * MS + i * 107 * MS for i in range(5)]


def test_a_script_is_followed_to_the_letter():
    found = submissions(Script([(5 * MS, 2), (3 * MS, 1), (5 * MS, 0)]))
    assert [line[:2] for line in found] == [(3 * MS, 1), (5 * MS, 2), (5 * MS, 0)]


def test_loads_refuse_what_cannot_be():
    for make in (
        lambda: Poisson(-1, 1),
        lambda: Poisson(1, 0),
        lambda: Poisson(1, 1, size=9),
        lambda: Poisson.of_tau(1, 0, MS),
        lambda: Saturating(1, backlog=0),
    ):
        with pytest.raises(ConfigError, match="is not allowed"):
            make()


def test_delays_have_an_exact_mean_and_close_quantiles():
    delays = Delays()
    assert (delays.mean_ns, delays.quantile_ns(0.5)) == (0.0, 0.0)
    for value in range(1, 10_001):
        delays.add(value * 1000)
    assert delays.mean_ns == 5_000_500
    assert delays.quantile_ns(0.99) == pytest.approx(9_900_000, rel=0.04)
    assert delays.quantile_ns(1.0) == 10_000_000
    assert len(delays.buckets) < 400


def test_a_tally_counts_and_forgets_what_everybody_has():
    tally = Tally(2)
    both = Bundle.of(b"a", b"b")
    tally.submitted(10, 0, 0, both)
    tally.delivered(15, 0, Delivery(0, 0, 0, both, STAMPED))
    tally.delivered(20, 0, Delivery(0, 0, 0, both, COMMITTED))
    assert (tally.delivered_at, tally.everywhere, tally.committed) == ([2, 0], 0, 2)
    tally.delivered(30, 1, Delivery(0, 0, 0, both, COMMITTED))
    assert (tally.everywhere, tally.under_way) == (2, {})
    assert (tally.delays.count, tally.delays.mean_ns) == (4, 15.0)
    tally.noticed(40, 1, Notice("gap_unavailable", (2, 5)))
    assert tally.skipped_at == [0, 3]
    tally.delivered(50, 1, Delivery(5, 0, 1, Bundle.of(b"unknown"), COMMITTED))
    assert tally.committed == 6
