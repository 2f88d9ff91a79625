"""Workloads submit what they promise, and tallies count it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest

from roundelay.core.bundle import Bundle
from roundelay.core.engine import (
    ACCEPTED,
    COMMITTED,
    MS,
    ONLY_LINE,
    SECOND,
    STAMPED,
    Delivery,
)
from roundelay.core.errors import ConfigError
from roundelay.core.events import SUBMIT
from roundelay.core.notices import notice
from roundelay.sim.kernel.load import (
    Destinations,
    Isolated,
    Load,
    Poisson,
    Saturating,
    identity,
    message,
)
from roundelay.sim.kernel.world import World
from roundelay.sim.network.media import Bus
from roundelay.trace.checkers.promises import Submission
from tests.sim.gossip import Gossip, Rows, Rumour, gossip_world
from tests.sim.tally import Delays, Tally


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


def test_messages_are_unique_and_say_whose_they_are() -> None:
    assert identity(message(300, 1 << 40)) == (300, 1 << 40)
    assert len(message(1, 2)) == 64
    assert message(1, 2, 10) == bytes((0, 1, 0, 0, 0, 0, 0, 0, 0, 2))


def test_poisson_has_its_rate_and_spreads_over_the_sources() -> None:
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


def test_only_chosen_senders_send() -> None:
    assert {site for _, site, _ in submissions(Poisson(50, 100, sources=[1, 3]))} == {1, 3}


def test_what_a_site_refuses_is_not_given_up() -> None:
    rows = Rows()
    world = gossip_world(2, recorder=rows)
    world.crash(0)
    load = Poisson(20, 100)
    load.start(world)
    world.run(SECOND * 5)
    assert load.done
    assert {row[1] for row in rows.of(SUBMIT)} == {1}


def test_saturating_keeps_every_source_busy() -> None:
    load = Saturating(100, backlog=3)
    found = submissions(load)
    assert load.done
    assert len(found) == 100
    assert [site for _, site, _ in found[:12]] == [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3


def test_saturating_begins_anew_after_a_crash() -> None:
    world = gossip_world(2, medium=Bus(MS), room=40)
    load = Saturating(10**9, sources=[0])
    load.start(world)
    world.crash(0)
    world.run(10 * MS)
    assert load.submitted_total == 0
    world.restart(0)
    world.run(20 * MS)
    assert load.submitted_total == 40


def test_isolated_waits_until_everybody_has_it() -> None:
    found = submissions(Isolated(5, gap_ns=100 * MS), medium=Bus(7 * MS))
    times = [time for time, _, _ in found]
    assert times == [100 * MS + i * 107 * MS for i in range(5)]


def test_loads_refuse_what_cannot_be() -> None:
    for make in (
        lambda: Poisson(-1, 1),
        lambda: Poisson(1, 0),
        lambda: Poisson(1, 1, size=9),
        lambda: Saturating(1, backlog=0),
    ):
        with pytest.raises(ConfigError, match="is not allowed"):
            make()


# -- destinations ----------------------------------------------------------------------------


def test_a_message_goes_to_so_many_members_and_not_to_its_source() -> None:
    to = Destinations(range(6), 2, seed=5)
    seen: set[int] = set()
    for source in range(6):
        for number in range(50):
            there = to(source, number)
            assert len(set(there)) == 2
            assert source not in there
            seen.update(there)
    assert seen == set(range(6))


def test_destinations_are_the_same_for_all_who_ask() -> None:
    one, other = Destinations(range(5), 2, seed=5), Destinations(range(5), 2, seed=5)
    assert [one(3, n) for n in range(20)] == [other(3, n) for n in reversed(range(20))][::-1]
    assert one(3, 4) == other.of(Submission(3, 0, 4, 4, 0))
    assert any(Destinations(range(5), 2, seed=6)(3, n) != one(3, n) for n in range(20))


def test_everybody_includes_the_source_and_a_random_number_may() -> None:
    assert Destinations(range(3), 3)(1, 0) == (0, 1, 2)
    some = [Destinations(range(3), 0)(1, n) for n in range(100)]
    assert {len(there) for there in some} == {1, 2, 3}
    assert {1 in there for there in some} == {True, False}


def test_some_members_are_never_addressed() -> None:
    to = Destinations(range(5), 2, never=(0, 4))
    assert {site for n in range(50) for site in to(1, n)} == {2, 3}
    assert {site for n in range(50) for site in to(0, n)} == {1, 2, 3}


def test_impossible_destinations_are_refused() -> None:
    cases: tuple[tuple[Callable[[], object], str], ...] = (
        (lambda: Destinations(range(4), 5), "0 to 3, or 4 for everybody"),
        (lambda: Destinations(range(4), 4, never=(1,)), "0 to 2"),
        (lambda: Destinations(range(4), -1), "0 to 3"),
        (lambda: Destinations(range(2), 0, never=(0, 1)), "0 to -1"),
    )
    for make, complaint in cases:
        with pytest.raises(ConfigError, match=complaint):
            make()


class Addressed(Gossip):
    """Takes destinations and sends to nobody else."""

    def submit(self, bundle: Bundle, now: int, to: tuple[int, ...] = ()) -> None:
        number, self.next = self.next, self.next + 1
        pdu = Rumour(self.me, number, bundle)
        self.heard.add((self.me, number))
        for site in to:
            if site == self.me:
                self.out.deliveries.append(Delivery(-1, self.me, number, bundle, ACCEPTED))
            else:
                self.out.sends.append((site, pdu, ONLY_LINE))


@pytest.mark.parametrize("many", [0, 1, 2, 4])
def test_loads_address_and_wait_for_the_receivers_only(many: int) -> None:
    to = Destinations(range(4), many)
    for load in (
        Isolated(20, gap_ns=MS, to=to),
        Saturating(40, to=to),
        Poisson(30, 100, to=to),
    ):
        got: dict[tuple[int, int], set[int]] = {}

        class Heard:
            def delivered(self, time: int, site: int, delivery: Delivery, got=got) -> None:  # type: ignore[no-untyped-def]
                got.setdefault(identity(delivery.bundle.data), set()).add(site)

        group = tuple(range(4))
        world = World(
            4,
            lambda s, stable, boot, now, rng, group=group: Addressed(s, group, rng, forward=False),
            observers=[Heard()],
        )
        load.start(world)
        world.run(10 * SECOND)
        assert load.done
        assert len(got) == load.messages
        assert all(there == set(to(*whose)) for whose, there in got.items())


def test_delays_have_an_exact_mean_and_close_quantiles() -> None:
    delays = Delays()
    assert (delays.mean_ns, delays.quantile_ns(0.5)) == (0.0, 0.0)
    for value in range(1, 10_001):
        delays.add(value * 1000)
    assert delays.mean_ns == 5_000_500
    assert delays.quantile_ns(0.99) == pytest.approx(9_900_000, rel=0.04)
    assert delays.quantile_ns(1.0) == 10_000_000
    assert len(delays.buckets) < 400


def test_a_tally_counts_and_forgets_what_everybody_has() -> None:
    tally = Tally(2)
    both = Bundle.of(b"a", b"b")
    tally.submitted(10, 0, 0, both)
    tally.delivered(15, 0, Delivery(0, 0, 0, both, STAMPED))
    tally.delivered(20, 0, Delivery(0, 0, 0, both, COMMITTED))
    assert (tally.delivered_at, tally.everywhere, tally.committed) == ([2, 0], 0, 2)
    tally.delivered(30, 1, Delivery(0, 0, 0, both, COMMITTED))
    assert (tally.everywhere, tally.under_way) == (2, {})
    assert (tally.delays.count, tally.delays.mean_ns) == (4, 15.0)
    tally.noticed(40, 1, notice("gap_unavailable", 2, 5))
    assert tally.skipped_at == [0, 3]
    tally.delivered(50, 1, Delivery(5, 0, 1, Bundle.of(b"unknown"), COMMITTED))
    assert tally.committed == 6
