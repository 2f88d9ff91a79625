"""CM84, Fig. 6: the number of messages per broadcast, simulated against the model.

2,000 broadcasts a point.  Within 2 % without loss, within −15 % and +25 % up to a loss of 0.1.
"""

from __future__ import annotations

import csv
from functools import cache
from pathlib import Path

import pytest

from roundelay.core import cost
from tests.paper.measure import positive_ack, token

MESSAGES = 2000
VALUES = Path(__file__).resolve().parents[1] / "core" / "data" / "fig6_values.csv"

Point = tuple[int, int, float, float]


def grid() -> dict[Point, float]:
    """(N, L, τ, P_e) → X_p, for the points of the figure's four panels."""
    with VALUES.open(newline="") as file:
        return {
            (int(row["N"]), int(row["L"]), float(row["tau"]), float(row["Pe"])): float(
                row["Xp_token"]
            )
            for row in csv.DictReader(file)
            if row["fig6_panel"]
        }


POINTS = grid()
SIMULATED = sorted(
    point for point in POINTS if point[3] <= 0.1 and (point[0] < 30 or point[3] in (0.0, 0.02, 0.1))
)


@cache
def measured(point: Point) -> float:
    sites, level, tau, loss = point
    return token(sites, level, tau=tau, loss=loss, messages=MESSAGES).per_message


def test_the_values_are_those_of_the_model() -> None:
    assert len(POINTS) > 80
    for (sites, level, tau, loss), value in POINTS.items():
        assert cost.x_p_token(sites, level, tau, loss) == pytest.approx(value, abs=6e-5)


@pytest.mark.parametrize("point", SIMULATED, ids=lambda p: "N{}-L{}-tau{:g}-loss{:g}".format(*p))
def test_the_simulation_matches_the_model(point: Point) -> None:
    ratio = measured(point) / POINTS[point]
    if point[3] == 0.0:
        assert 0.98 <= ratio <= 1.02
    else:
        assert 0.85 <= ratio <= 1.25


@pytest.mark.parametrize("sites", [3, 10, 30])
@pytest.mark.parametrize("loss", [0.0, 0.02, 0.1])
def test_panels_a_to_c_the_busier_the_fewer_messages(sites: int, loss: float) -> None:
    counts = [measured((sites, 1, tau, loss)) for tau in (0.1, 1.0, 10.0)]
    assert counts == sorted(counts, reverse=True)


@pytest.mark.parametrize("sites", [3, 10, 30])
@pytest.mark.parametrize("tau", [0.1, 1.0, 10.0])
def test_panels_a_to_c_the_more_errors_the_more_messages(sites: int, tau: float) -> None:
    counts = [measured((sites, 1, tau, loss)) for loss in (0.0, 0.02, 0.1)]
    assert counts == sorted(counts)


@pytest.mark.parametrize("loss", [0.0, 0.02, 0.1])
@pytest.mark.parametrize("tau", [0.1, 1.0, 10.0])
def test_panels_a_to_c_the_advantage_over_positive_acknowledgement_grows_with_n(
    tau: float, loss: float
) -> None:
    ratios = [
        measured((sites, 1, tau, loss)) / cost.x_b_positive_ack(sites, loss)
        for sites in (3, 10, 30)
    ]
    assert ratios == sorted(ratios, reverse=True)
    assert ratios[0] < 1.06  # three sites, idle, many errors: as good as equal
    assert ratios[2] < 0.5


@pytest.mark.parametrize("loss", [0.0, 0.02, 0.1])
def test_panel_d_busy_the_resiliency_costs_nothing_and_idle_it_does(loss: float) -> None:
    busy = [measured((10, level, 10.0, loss)) for level in (1, 2, 4)]
    assert max(busy) / min(busy) < 1.02
    idle = [measured((10, level, 0.1, loss)) for level in (1, 2, 4)]
    assert idle == sorted(idle)
    assert idle[2] > 1.6 * idle[0]


def test_panel_d_the_one_crossing_of_the_positive_acknowledgement_line() -> None:
    """L = 4 in an idle group: cheaper up to a loss of 0.05, dearer from 0.1 on."""
    assert measured((10, 4, 0.1, 0.05)) < cost.x_b_positive_ack(10, 0.05)
    assert measured((10, 4, 0.1, 0.1)) > cost.x_b_positive_ack(10, 0.1)


@pytest.mark.parametrize("sites", [3, 10, 30])
@pytest.mark.parametrize("loss", [0.0, 0.05, 0.1])
def test_positive_acknowledgement_matches_its_line(sites: int, loss: float) -> None:
    ratio = positive_ack(sites, loss=loss, messages=MESSAGES).per_message
    assert ratio / cost.x_b_positive_ack(sites, loss) == pytest.approx(1, rel=0.02)
