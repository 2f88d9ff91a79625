"""Runs of TO, PO and SPO count what the papers count, from the command line on."""

from __future__ import annotations

import json
from typing import Any

import pytest

from roundelay.cli.main import run
from roundelay.runs.simulate import SimulateParams, simulate

BROADCAST = ("to", "to-channel", "po")
SIZES = range(3, 13)


def called(capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, Any]:
    """What the command prints with --json."""
    capsys.readouterr()
    assert run([*map(str, words), "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def counted(found: dict[str, Any]) -> tuple[float, float, float]:
    assert found["delivered_everywhere"]
    assert found["violations"] == []
    assert found["silent"]
    return found["pdus_per_message"], found["rounds"], found["slots"]


@pytest.mark.parametrize("protocol", BROADCAST)
@pytest.mark.parametrize("n", SIZES)
def test_deferred_2n_pdus_3_rounds_2n_slots_and_eager_n_squared_less_n_plus_1(
    protocol: str, n: int
) -> None:
    for policy, pdus in (("deferred", 2 * n), ("eager", n * n - n + 1)):
        params = SimulateParams(protocol=protocol, sites=n, policy=policy, messages=4, seed=n)
        assert counted(simulate(params)) == (pdus, 3, pdus)


@pytest.mark.parametrize("n", SIZES)
def test_selective_messages_cost_their_destinations_whatever_the_cluster(n: int) -> None:
    for d in range(1, n):
        params = SimulateParams(protocol="spo", sites=n, destinations=d, messages=3, seed=d)
        assert counted(simulate(params)) == (2 * (d + 1), 3, 2 * (d + 1))


@pytest.mark.parametrize("protocol", ["to", "po"])
def test_nothing_but_the_policy_the_size_and_the_loss_need_be_said(
    protocol: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("simulate", protocol, "--sites", 5, "--loss", 0, "--policy")
    assert counted(called(capsys, *words, "deferred")) == (10, 3, 10)
    assert counted(called(capsys, *words, "eager")) == (21, 3, 21)


def test_the_same_for_selective_messages(capsys: pytest.CaptureFixture[str]) -> None:
    for sites in (4, 9):
        words = ("simulate", "spo", "--sites", sites, "--destinations", 3, "--loss", 0)
        assert counted(called(capsys, *words)) == (8, 3, 8)


def test_complexity_prints_costs_and_delays(capsys: pytest.CaptureFixture[str]) -> None:
    found = called(capsys, "complexity", "--sites", "3:5", "--runs", 40)
    assert [row["sites"] for row in found["costs"]] == [3, 4]
    assert [row["po"]["deferred"] for row in found["costs"]] == [
        {"pdus": 6, "rounds": 3, "slots": 6},
        {"pdus": 8, "rounds": 3, "slots": 8},
    ]
    assert [row["to"]["eager"]["pdus"] for row in found["costs"]] == [7, 13]
    assert found["costs"][1]["spo"] == {"1": 4, "2": 6, "3": 8}
    assert found["spo_linear"]
    for row in found["spo_delay"]:
        assert list(row["slots"]) == ["0.0", "0.01", "0.02", "0.05", "0.1", "0.2", "0.3"]
        assert row["slots"]["0.0"] == 2 * row["sites"]
        assert row["slots"].keys() == row["errors"].keys()
        assert list(row["bends"]) == list(row["slots"])[1:-1]
        assert row["slots"]["0.0"] < row["slots"]["0.1"] < row["slots"]["0.3"]
        assert row["convex"]


def test_complexity_speaks_to_people_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["complexity", "--sites", "3", "--runs", "20"]) == 0
    printed = capsys.readouterr().out
    assert "delay in slots on a serial channel" in printed
    assert "linear in n, 2n exactly: yes" in printed
    assert "standard errors at most" in printed
