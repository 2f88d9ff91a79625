"""The cost model against the paper's figures, its limits, and a dumb simulation of the token."""

from __future__ import annotations

import csv
from math import exp, expm1, inf, nan
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roundelay.core.cost import (
    acks_and_nulls,
    commit_delay_bound,
    commit_delay_mean,
    confirmations,
    control_messages,
    last_place,
    n_rq_sites,
    plan,
    storage_messages,
    waits_bound,
    waits_mean,
    x_b_positive_ack,
    x_p_token,
    y_a,
    y_c,
)
from roundelay.core.errors import ConfigError

VALUES = Path(__file__).parent / "data" / "fig6_values.csv"
with VALUES.open(newline="") as file:
    FIG6 = list(csv.DictReader(file))


# ------------------------------------------------------------------------ Fig. 6


def test_the_values_file_is_the_whole_grid() -> None:
    assert len(FIG6) == 3 * 3 * 3 * 6


@pytest.mark.parametrize("row", FIG6, ids=lambda row: f"N{row['N']} L{row['L']} {row['tau']}")
def test_fig_6_lines_are_reproduced(row: dict[str, str]) -> None:
    sites, level = int(row["N"]), int(row["L"])
    tau, loss = float(row["tau"]), float(row["Pe"])
    assert x_p_token(sites, level, tau, loss) == pytest.approx(float(row["Xp_token"]), abs=6e-5)
    x_b = float(row["Xb_positive_ack"])
    assert x_b_positive_ack(sites, loss) == pytest.approx(x_b, abs=6e-5)


@pytest.mark.parametrize("sites", [3, 10, 30])
@pytest.mark.parametrize("level", [1, 2, 4])
@pytest.mark.parametrize("tau", [0.1, 1.0, 10.0])
def test_without_loss_the_costs_are_the_limits_of_the_appendix(
    sites: int, level: int, tau: float
) -> None:
    limit = 1 + expm1(-(level + 1) * tau) / expm1(-tau)
    assert x_p_token(sites, level, tau, 0.0) == pytest.approx(limit)
    assert x_b_positive_ack(sites, 0.0) == sites


@pytest.mark.parametrize("level", [1, 2, 4])
def test_a_broadcast_costs_2_messages_when_busy_and_2_plus_l_when_idle(level: int) -> None:
    assert x_p_token(10, level, 1e3, 0.0) == pytest.approx(2)
    assert x_p_token(10, level, 1e-9, 0.0) == pytest.approx(2 + level)


def test_the_closed_form_of_x_b_is_that_of_the_appendix() -> None:
    for loss in (0.0, 0.05, 0.3, 0.9):
        closed = 1 + 9 * (1 + loss - loss**2) / (1 - loss) ** 2
        assert x_b_positive_ack(10, loss) == pytest.approx(closed)
    assert n_rq_sites(10, 0.1) == pytest.approx(9 * 0.19)


def test_a_group_without_resilience_sends_what_one_with_l_1_sends() -> None:
    """Someone has to acknowledge: Y_a must not be 0 for L = 0."""
    assert (y_a(0, 0.5), y_c(0, 0.5)) == (y_a(1, 0.5), y_c(1, 0.5))
    assert x_p_token(5, 0, 0.5, 0.1) == x_p_token(5, 1, 0.5, 0.1)


@given(st.integers(1, 1000), st.floats(0, 1e-6))
def test_y_a_keeps_its_digits_for_tiny_tau(level: int, tau: float) -> None:
    series = level - level * (level - 1) / 2 * tau  # Σ e^(−jτ), j < L, to first order
    error = level**3 * tau**2 + 1e-12 * level
    assert abs(y_a(level, tau) - series) <= error


def test_extreme_tau_is_no_trouble() -> None:
    assert y_a(4, 5e-324) == 4
    assert y_a(4, 0.0) == 4
    assert y_a(4, 1e300) == 1
    assert y_c(4, 1e300) == 0
    assert commit_delay_mean(4, 0.0, 50.0) == 150
    assert commit_delay_mean(4, 5e-324, 50.0) == pytest.approx(150)


# ------------------------------------------------------------------------ Table I


def test_table_i_storage() -> None:
    for sites in (3, 5, 10, 30):
        assert storage_messages(sites) == sites - 1
        assert storage_messages(sites, kw=4) == 4 * (sites - 1)
        assert storage_messages(sites, kr=2) == sites // 2
        assert storage_messages(sites, kr=sites - 1) == 1


@pytest.mark.parametrize(
    "kw, kr, busy, idle",
    [(1, 1, 1, 2), (4, 1, 1, 3), (1, 2, 2, 3), (1, 9, 9, 10)],
)
def test_table_i_control_messages_with_l_1(kw: int, kr: int, busy: int, idle: int) -> None:
    assert control_messages(1, 0.0, kw, kr) == busy
    assert control_messages(1, 1.0, kw, kr) == idle


@pytest.mark.parametrize("idle", [0.0, 0.25, 1.0])
def test_table_i_control_messages_in_between(idle: float) -> None:
    assert control_messages(0, idle) == pytest.approx(1 + idle)
    assert control_messages(0, idle, kw=8) == pytest.approx(1 + idle / 8)
    assert control_messages(0, idle, kr=3) == pytest.approx(3 + idle)


@pytest.mark.parametrize("level", [1, 2, 4])
def test_control_messages_range_from_1_to_l_plus_1(level: int) -> None:
    assert control_messages(level, 0.0) == 1
    assert control_messages(level, 1.0) == level + 1
    assert control_messages(level, 1.0, kw=3) == level + 2


@pytest.mark.parametrize("level", [0, 1, 2, 4])
@pytest.mark.parametrize("tau", [1e-9, 0.1, 1.0, 10.0])
def test_the_general_formulas_contain_those_of_the_paper(level: int, tau: float) -> None:
    assert acks_and_nulls(level, exp(-tau)) == pytest.approx(y_a(level, tau))
    assert confirmations(level, exp(-tau)) == pytest.approx(y_c(level, tau))


def test_an_endless_turn_is_never_at_its_end() -> None:
    assert last_place(0.3, 1) == 1
    assert last_place(1.0, 5) == 0
    assert last_place(0.0, 5) == pytest.approx(1 / 5)
    assert last_place(0.3, 1 << 60) == 0
    assert control_messages(2, 0.3, kw=1 << 60) == pytest.approx(1 + 0.3 + 0.09 + 0.027)


class Walk:
    """What a token does, wait by wait, without loss or transit time: the dumb model."""

    def __init__(self, level: int, tau: float, kw: int, kr: int, seed: int) -> None:
        rng = Random(seed)
        self.acks = self.nulls = self.confirms = 0
        self.delays: list[float] = []
        waiting: list[list[float]] = []  # [transfers still needed, delay so far]
        place = 0

        def transfer() -> None:
            for entry in waiting:
                entry[0] -= 1
            while waiting and waiting[0][0] <= 0:
                self.delays.append(waiting.pop(0)[1])

        confirmed = False
        while self.acks < 40_000:
            arrival = rng.expovariate(tau) if tau else inf
            if arrival < 1.0 or confirmed:  # T = 1; a holder that has confirmed waits for ever
                if not confirmed:
                    for entry in waiting:
                        entry[1] += arrival
                self.acks += 1
                place += 1
                if level:
                    waiting.append([level, 0.0])
                if place == kw:
                    place = 0
                    confirmed = False
                    for _ in range(kr):
                        transfer()
                    self.nulls += kr - 1
                else:
                    # A token that stays needs no confirmation; with L ≥ 1 its message does wait.
                    confirmed = not level
            elif waiting:
                for entry in waiting:
                    entry[1] += 1.0
                self.nulls += 1
                place = 0
                transfer()
            else:
                self.confirms += 1
                confirmed = True


@pytest.mark.parametrize("tau", [0.2, 1.0, 3.0])
@pytest.mark.parametrize(
    "level, kw, kr",
    [
        (0, 1, 1),
        (1, 1, 1),
        (4, 1, 1),
        (0, 3, 1),
        (1, 4, 1),
        (3, 3, 1),
        (1, 1, 2),
        (4, 1, 3),
        (7, 1, 2),
    ],
)
def test_the_formulas_predict_what_a_token_does(level: int, kw: int, kr: int, tau: float) -> None:
    walk = Walk(level, tau, kw, kr, seed=7)
    idle = exp(-tau)
    per_ack = 1 / walk.acks
    expected = acks_and_nulls(level, idle, kw, kr)
    assert (walk.acks + walk.nulls) * per_ack == pytest.approx(expected, rel=0.02)
    expected = confirmations(level, idle, kw, kr)
    assert walk.confirms * per_ack == pytest.approx(expected, abs=0.01)
    mean = sum(walk.delays) / max(1, len(walk.delays))
    assert mean == pytest.approx(commit_delay_mean(level, tau, 1.0, kw, kr), rel=0.02, abs=1e-9)
    assert max(walk.delays, default=0) <= commit_delay_bound(level, 1.0, kw, kr)


# ------------------------------------------------------------------------ commit delay


@pytest.mark.parametrize("level", [0, 1, 2, 5])
def test_the_commit_delay_is_at_most_t_times_l_minus_1(level: int) -> None:
    assert commit_delay_bound(level, 50.0) == 50.0 * max(0, level - 1)
    assert commit_delay_mean(level, 1e-9, 50.0) == pytest.approx(50.0 * max(0, level - 1))


@given(
    st.integers(0, 20),
    st.floats(0, 50),
    st.one_of(
        st.tuples(st.integers(1, 1000), st.just(1)), st.tuples(st.just(1), st.integers(1, 20))
    ),
)
def test_the_mean_delay_is_within_its_bound(level: int, tau: float, rates: tuple[int, int]) -> None:
    kw, kr = rates
    mean = waits_mean(level, exp(-tau), kw, kr)
    assert -1e-9 <= mean <= waits_bound(level, kw, kr) * (1 + 1e-9)
    assert 0 <= commit_delay_mean(level, tau, 1.0, kw, kr) <= mean + 1e-9


def test_the_mean_of_a_full_turn_has_no_jump_where_the_closed_form_ends() -> None:
    for kw in (2, 10, 1000):
        below, above = 0.99e-6 / kw, 1.01e-6 / kw
        assert waits_mean(1, below, kw) == pytest.approx(waits_mean(1, above, kw), rel=1e-5)


# ------------------------------------------------------------------------ plan


def test_a_plan_adds_up() -> None:
    result = plan(10, 2, 0.05, rate=20, hold_ms=50)
    assert result.tau == 1.0
    assert result.token.messages == pytest.approx(x_p_token(10, 2, 1.0, 0.05))
    assert result.positive_ack_messages == pytest.approx(x_b_positive_ack(10, 0.05))
    assert [row.resilience for row in result.nearby] == [1, 3]
    for row in (result.token, *result.nearby):
        parts = 1 + row.acks_and_nulls + row.confirmations + row.retransmissions
        assert row.messages == pytest.approx(parts)
        assert row.pdus_per_s == pytest.approx(20 * row.messages)
        assert row.commit_delay_mean_ms <= row.commit_delay_bound_ms
        assert row.storage_messages == 9
    assert result.token.commit_delay_bound_ms == 50
    assert result.token.commit_delay_mean_ms == pytest.approx(50 * (1 - exp(-1)))
    assert result.positive_ack_pdus_per_s == pytest.approx(20 * result.positive_ack_messages)


def test_without_loss_nothing_is_sent_again() -> None:
    for kw, kr in ((1, 1), (4, 1), (1, 3)):
        assert plan(5, 1, 0, 10, 50, kw, kr).token.retransmissions == pytest.approx(0, abs=1e-12)


def test_the_neighbours_of_a_plan_are_possible() -> None:
    assert [row.resilience for row in plan(5, 0, 0, 1, 1).nearby] == [1]
    assert [row.resilience for row in plan(5, 2, 0, 1, 1).nearby] == [1]
    assert plan(2, 0, 0, 1, 1).nearby == ()


@pytest.mark.parametrize(
    "field, value, allowed",
    [
        ("sites", 1, "a whole number from 2 to 65535"),
        ("sites", 65536, "a whole number from 2 to 65535"),
        ("sites", 2.5, "a whole number from 2 to 65535"),
        ("resilience", 5, "a whole number from 0 to 4 for 10 sites"),
        ("resilience", -1, "a whole number from 0 to 4 for 10 sites"),
        ("loss", 1.2, "a number from 0 up to, not including, 1"),
        ("loss", 1, "a number from 0 up to, not including, 1"),
        ("loss", -0.1, "a number from 0 up to, not including, 1"),
        ("loss", nan, "a number from 0 up to, not including, 1"),
        ("loss", "much", "a number from 0 up to, not including, 1"),
        ("rate", 0, "a number above 0, at most 1e+12"),
        ("rate", inf, "a number above 0, at most 1e+12"),
        ("rate", nan, "a number above 0, at most 1e+12"),
        ("hold_ms", -5, "a number above 0, at most 1e+12"),
        ("hold_ms", 10**400, "a number above 0, at most 1e+12"),
        ("kw", 0, "a whole number from 1 up"),
        ("kr", 10, "a whole number from 1 to 9 for 10 sites"),
    ],
)
def test_a_wrong_parameter_is_named_with_what_is_allowed(
    field: str, value: object, allowed: str
) -> None:
    good: dict[str, Any] = {
        "sites": 10, "resilience": 1, "loss": 0.1, "rate": 5, "hold_ms": 50, "kw": 1, "kr": 1,
    }  # fmt: skip
    plan(**good)
    with pytest.raises(ConfigError) as caught:
        plan(**(good | {field: value}))
    assert caught.value.field == field
    assert str(caught.value) == f"{field} = {value} is not allowed: {allowed}"


def test_both_rates_above_one_are_refused() -> None:
    with pytest.raises(ConfigError, match="kr = 2 is not allowed: 1 when kw is above 1"):
        plan(10, 1, 0.1, 5, 50, kw=2, kr=2)


@given(
    st.integers(2, 200),
    st.floats(0, 1, exclude_max=True),
    st.floats(0, 1e12, exclude_min=True),
    st.floats(0, 1e12, exclude_min=True),
    st.integers(1, 1 << 60),
    st.data(),
)
def test_every_allowed_plan_is_finite(
    sites: int, loss: float, rate: float, hold_ms: float, rating: int, data: st.DataObject
) -> None:
    level = data.draw(st.integers(0, (sites + 1) // 2 - 1))
    kw, kr = data.draw(
        st.sampled_from([(1, 1), (rating, 1), (1, min(rating, sites - 1))]), label="rates"
    )
    result = plan(sites, level, loss, rate, hold_ms, kw, kr)
    row = result.token
    figures = [
        row.messages, row.acks_and_nulls, row.confirmations, row.retransmissions,
        row.commit_delay_mean_ms, row.commit_delay_bound_ms, row.pdus_per_s,
        result.positive_ack_messages, result.positive_ack_pdus_per_s,
    ]  # fmt: skip
    assert all(0 <= figure < inf for figure in figures)
    assert row.messages >= 1
    assert row.commit_delay_mean_ms <= row.commit_delay_bound_ms * (1 + 1e-9)
