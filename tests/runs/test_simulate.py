"""Simulated runs cost what the paper says, keep what they promise, and end."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from roundelay.core.cost import storage_messages, x_b_positive_ack
from roundelay.core.errors import ConfigError
from roundelay.runs.simulate import SimulateParams, TokenRun, simulate
from roundelay.trace.recorder import Recorder

FIG6 = Path(__file__).parents[1] / "core" / "data" / "fig6_values.csv"


def run(**given: Any) -> dict[str, Any]:
    return simulate(SimulateParams(**given))


def assert_sound(found: dict[str, Any]) -> None:
    assert found["delivered_everywhere"]
    assert found["violations"] == []
    if found["protocol"] == "token":
        assert found["same_order"]


# -- Fig. 6 (PROTOCOLS 9.1, 9.2); the whole grid is in tests/paper -----------------------------


def points(sites: int, losses: tuple[float, ...]) -> list[dict[str, str]]:
    with FIG6.open(newline="") as file:
        return [
            row
            for row in csv.DictReader(file)
            if int(row["N"]) == sites
            and float(row["Pe"]) in losses
            and int(row["L"]) <= (sites + 1) // 2 - 1
        ]


@pytest.mark.parametrize("row", points(10, (0.0,)), ids=lambda r: f"L{r['L']}-tau{r['tau']}")
def test_messages_per_broadcast_without_loss(row: dict[str, str]) -> None:
    """CM84 §6: exact, but for the end of the run."""
    found = run(sites=10, resilience=int(row["L"]), tau=float(row["tau"]), messages=1500, seed=2)
    assert_sound(found)
    assert found["pdus_per_message"] == pytest.approx(float(row["Xp_token"]), rel=0.02)


@pytest.mark.parametrize(
    "row", points(3, (0.05, 0.1)), ids=lambda r: f"L{r['L']}-tau{r['tau']}-loss{r['Pe']}"
)
def test_messages_per_broadcast_with_loss(row: dict[str, str]) -> None:
    found = run(sites=3, resilience=int(row["L"]), tau=float(row["tau"]), loss=float(row["Pe"]),
                messages=2000, seed=2)  # fmt: skip
    assert_sound(found)
    assert 0.85 <= found["pdus_per_message"] / float(row["Xp_token"]) <= 1.25


@pytest.mark.parametrize("loss", [0.0, 0.05, 0.2])
@pytest.mark.parametrize("sites", [3, 10])
def test_positive_acknowledgement_costs_x_b(sites: int, loss: float) -> None:
    found = run(protocol="positive-ack", sites=sites, loss=loss, messages=3000, seed=1)
    assert_sound(found)
    expected = x_b_positive_ack(sites, loss)
    assert found["pdus_per_message"] == pytest.approx(expected, rel=0.02)
    assert found["storage_max"] == 1


# -- Table I (PROTOCOLS 9.3) -------------------------------------------------------------------


def transfers(sites: int) -> list[tuple[int, int]]:
    """K_w, K_r in {1, 2, 4, N - 1}, one of them 1."""
    several = sorted({2, 4, sites - 1})
    return [(1, 1), *((kw, 1) for kw in several), *((1, kr) for kr in several)]


TABLE_I = [(sites, kw, kr) for sites in (5, 10) for kw, kr in transfers(sites)]


@pytest.mark.parametrize(("sites", "kw", "kr"), TABLE_I)
def test_storage_meets_its_bound_exactly(sites: int, kw: int, kr: int) -> None:
    for loss in (0.0, 0.1):
        found = run(sites=sites, resilience=1, kw=kw, kr=kr, load="saturated", loss=loss,
                    messages=40 * sites)  # fmt: skip
        assert_sound(found)
        assert found["storage_max"] == storage_messages(sites, kw, kr)


@pytest.mark.parametrize(("sites", "kw", "kr"), TABLE_I)
def test_control_messages_of_a_busy_and_of_an_idle_group(sites: int, kw: int, kr: int) -> None:
    busy = run(sites=sites, resilience=1, kw=kw, kr=kr, load="saturated", messages=500)
    idle = run(sites=sites, resilience=1, kw=kw, kr=kr, load="isolated", messages=100)
    assert_sound(busy)
    assert_sound(idle)
    assert busy["control_per_message"] == pytest.approx(kr, rel=0.01)
    assert idle["control_per_message"] == pytest.approx(3 if kw > 1 else kr + 1, abs=1e-9)


# -- how a run ends ----------------------------------------------------------------------------


def test_draining_is_not_counted() -> None:
    """The last commits of a paper run may have to be asked for."""
    drained = [run(sites=5, loss=0.3, messages=20, seed=seed) for seed in range(20)]
    assert any(found["drain_pdus"] for found in drained)
    for found in drained:
        assert_sound(found)
        assert sum(found["pdus_by_kind"].values()) == found["pdus"]


def test_a_fast_run_ends_when_everything_is_everywhere() -> None:
    found = run(profile="fast", loss=0.1, messages=500, rate=100_000.0)
    assert_sound(found)
    assert found["drain_pdus"] == 0
    assert found["pdus_per_message"] < 2  # bundles


def test_a_run_that_cannot_make_it_is_given_up() -> None:
    found = run(sites=3, profile="fast", loss=0.97, messages=5)
    assert not found["delivered_everywhere"]
    assert found["violations"] == []


def test_isolated_messages_are_all_alone() -> None:
    found = run(sites=3, load="isolated", loss=0.2, messages=30)
    assert_sound(found)
    assert found["virtual_s"] > 30 * 0.5  # at least ten hold times between two


@pytest.mark.parametrize("size", [10, 1200])
def test_messages_of_any_size(size: int) -> None:
    assert_sound(run(messages=20, size=size, wire=True))


def test_two_sites_and_many() -> None:
    assert_sound(run(sites=2, messages=50, loss=0.1))
    assert run(sites=2, messages=5)["resilience"] == 0
    assert_sound(run(sites=40, resilience=19, messages=30, loss=0.02))


def test_delays_follow_the_resilience() -> None:
    """CM84 §6: a commit waits for L transfers, at most T each while nothing is lost."""
    delays = [
        run(sites=9, resilience=level, messages=300, tau=0.1)["delay_ms_mean"]
        for level in (0, 1, 2, 4)
    ]
    assert delays == sorted(delays)
    assert delays[-1] < 5 * 50


def test_parameters_are_checked_and_filled_in() -> None:
    params = SimulateParams(sites=3, tau=2.0).settled()
    assert (params.resilience, params.tau, params.rate) == (1, 2.0, 40.0)
    assert params.settled() == params
    assert SimulateParams(rate=10.0).settled().tau == pytest.approx(0.5)
    with pytest.raises(ConfigError, match="rate"):
        SimulateParams(tau=1.0, rate=1.0).settled()
    assert SimulateParams(protocol="positive-ack", resilience=2).settled().resilience == 0


def test_memory_does_not_grow_with_the_run() -> None:
    """What is kept per message while a run goes on is forgotten again; bench/ has the megabytes."""
    sizes = [kept(messages) for messages in (2_000, 8_000)]
    assert sizes[1] < sizes[0] + 1_000, sizes


def kept(messages: int) -> int:
    """How many things a run holds at its end."""
    params = SimulateParams(sites=3, tau=10.0, messages=messages, loss=0.05).settled()
    run = TokenRun(params, Recorder())
    assert run.run()
    disks: list[Any] = [member.disk for member in run.world.sites]
    engines: list[Any] = [member.engine for member in run.world.sites]
    return (
        sum(len(disk.stable.entries) for disk in disks)
        + sum(sum(engine.usage().values()) for engine in engines)
        + len(run.world.heap)
        + len(run.meter._under_way)
        + len(run.meter.delays.buckets)
    )
