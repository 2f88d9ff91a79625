"""What a broadcast costs, as the papers count it (PROTOCOLS §3.5, §4, §5.4, §9.4)."""

from __future__ import annotations

from random import Random

import pytest

from roundelay.core.errors import ConfigError
from roundelay.sim.complexity import LOSSES, Cost, cost, curve, delay_curve, delays

SIZES = range(3, 13)
BROADCAST = ("to", "to-channel", "po")


@pytest.mark.parametrize("protocol", [*BROADCAST, "spo"])
def test_deferred_acknowledgement_takes_2n_pdus_3_rounds_and_2n_slots(protocol: str) -> None:
    # TP §4, TO-T1, PO-T3; SP Fig. 1: linear in n on one channel, constant on parallel ones.
    for n in SIZES:
        assert cost(protocol, n) == Cost(2 * n, 3, 2 * n)


@pytest.mark.parametrize("protocol", BROADCAST)
def test_two_members_need_three_pdus(protocol: str) -> None:
    assert cost(protocol, 2) == Cost(3, 3, 3)  # E 20


@pytest.mark.parametrize("protocol", BROADCAST)
def test_eager_acknowledgement_takes_n_squared_minus_n_plus_1_pdus(protocol: str) -> None:
    # TP §4, TO-T2: the worst case; one after the other they take as many slots.
    for n in SIZES:
        worst = n * n - n + 1
        assert cost(protocol, n, policy="eager") == Cost(worst, 3, worst)


def test_selective_broadcast_costs_its_destinations_not_the_cluster() -> None:
    # SPO-T3: 1 + d + (d + 1) PDUs and as many slots, whatever n is.
    for n in (3, 5, 8, 12):
        for d in range(1, n):
            assert cost("spo", n, destinations=d, messages=2) == Cost(2 * (d + 1), 3, 2 * (d + 1))


def test_delay_is_linear_in_the_number_of_entities() -> None:
    # SP Fig. 1.
    assert [delays(n, 0, runs=2) for n in SIZES] == [[2 * n, 2 * n] for n in SIZES]


@pytest.mark.parametrize("sites, runs", [(3, 300), (5, 150)])
def test_delay_rises_with_loss_and_ever_faster(sites: int, runs: int) -> None:
    # SP Fig. 2; the column without loss is exact, the others depend on the timers.
    found = delay_curve(sites, runs=runs)
    assert found.losses == LOSSES
    assert found.slots[0] == 2 * sites
    assert found.errors[0] == 0
    assert found.rising
    assert found.convex
    assert max(found.bends) > 1  # and it is no straight line


def test_delay_grows_with_the_cluster_at_every_loss() -> None:
    small, large = (delay_curve(n, runs=60) for n in (3, 5))
    assert all(less < more for less, more in zip(small.slots, large.slots, strict=True))


def test_a_curve_with_a_step_is_not_called_convex() -> None:
    chance = Random(1)
    runs = [chance.gauss(0, 1) for _ in range(100)]
    losses = (0.0, 0.1, 0.2, 0.3)
    straight, step, falling = (
        curve(losses, [[mean + x * k for x in runs] for k, mean in enumerate(means)], 3)
        for means in ((6, 12, 18, 24), (6, 16, 18, 24), (6, 12, 11, 24))
    )
    assert (straight.rising, straight.convex) == (True, True)
    assert (step.rising, step.convex) == (True, False)
    assert (falling.rising, falling.convex) == (False, False)


def test_runs_are_repeated_exactly() -> None:
    assert delays(4, 0.2, runs=5) == delays(4, 0.2, runs=5)
    assert delays(4, 0.2, runs=5) != delays(4, 0.2, runs=5, seed=1)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ConfigError, match="to or to-channel or po or spo"):
        cost("token", 3)
    with pytest.raises(ConfigError, match="only with the protocol spo"):
        cost("po", 3, destinations=1)
    with pytest.raises(ConfigError, match="0 to 3, or 4 for everybody"):
        cost("spo", 4, destinations=5)
