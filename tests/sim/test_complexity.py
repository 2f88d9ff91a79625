"""What a broadcast costs, as the papers count it (PROTOCOLS §3.5, §4, §5.4, §9.4)."""

from __future__ import annotations

from itertools import pairwise

import pytest

from roundelay.core.errors import ConfigError
from roundelay.sim.complexity import LOSSES, Cost, cost, delay_slots, delay_table

SIZES = range(3, 13)
BROADCAST = ("to", "to-channel", "po")


@pytest.mark.parametrize("protocol", [*BROADCAST, "spo"])
def test_deferred_acknowledgement_takes_2n_pdus_3_rounds_and_2n_slots(protocol: str):
    # TP §4, TO-T1, PO-T3; SP Fig. 1: linear in n on one channel, constant on parallel ones.
    for n in SIZES:
        assert cost(protocol, n) == Cost(2 * n, 3, 2 * n)


@pytest.mark.parametrize("protocol", BROADCAST)
def test_two_members_need_three_pdus(protocol: str):
    assert cost(protocol, 2) == Cost(3, 3, 3)  # E 20


@pytest.mark.parametrize("protocol", BROADCAST)
def test_eager_acknowledgement_takes_n_squared_minus_n_plus_1_pdus(protocol: str):
    # TP §4, TO-T2: the worst case; one after the other they take as many slots.
    for n in SIZES:
        worst = n * n - n + 1
        assert cost(protocol, n, policy="eager") == Cost(worst, 3, worst)


def test_selective_broadcast_costs_its_destinations_not_the_cluster():
    # SPO-T3: 1 + d + (d + 1) PDUs and as many slots, whatever n is.
    for n in (3, 5, 8, 12):
        for d in range(1, n):
            assert cost("spo", n, destinations=d, messages=2) == Cost(2 * (d + 1), 3, 2 * (d + 1))


def test_delay_is_linear_in_the_number_of_entities():
    # SP Fig. 1.
    assert [delay_slots(n, 0, runs=1) for n in SIZES] == [2 * n for n in SIZES]


def test_delay_rises_with_loss():
    # SP Fig. 2; the column without loss is exact, the others depend on the timers.
    table = delay_table((3, 5), runs=60)
    for n, row in table.items():
        assert tuple(row) == LOSSES
        assert row[0.0] == 2 * n
        assert all(less < more for less, more in pairwise(row.values()))
    assert all(table[3][loss] < table[5][loss] for loss in LOSSES)


def test_delay_is_convex_where_losses_pile_up():
    # SP Fig. 2.  The first loss already costs a whole t_stat, so the curve starts with a step; it
    # bends upwards when repairs are lost as well.
    for n in (3, 5):
        none, some, many = (delay_slots(n, loss, runs=120) for loss in (0, 0.2, 0.4))
        assert many - some > some - none


def test_runs_are_repeated_exactly():
    assert delay_slots(4, 0.2, runs=5) == delay_slots(4, 0.2, runs=5)
    assert delay_slots(4, 0.2, runs=5) != delay_slots(4, 0.2, runs=5, seed=1)


def test_what_cannot_be_is_refused():
    with pytest.raises(ConfigError, match="to or to-channel or po or spo"):
        cost("token", 3)
    with pytest.raises(ConfigError, match="only with the protocol spo"):
        cost("po", 3, destinations=1)
    with pytest.raises(ConfigError, match="0 to 3, or 4 for everybody"):
        cost("spo", 4, destinations=5)
