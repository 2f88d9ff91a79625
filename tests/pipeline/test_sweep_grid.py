"""Grids, bins, seeds, means: what a sweep decides before Spark has anything to do."""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest

from roundelay.cli.main import run as roundelay
from roundelay.core import cost
from roundelay.core.errors import ConfigError
from roundelay.pipeline.research import sweep
from roundelay.pipeline.research.claims import (
    PARTS,
    PDUS,
    STORAGE,
    model,
    parts,
    setting_of,
    tolerance,
)
from roundelay.pipeline.research.grid import READY, bins, expected_s, load, parse, seed_of
from roundelay.pipeline.research.summary import mean_and_ci95, summarise, t95
from roundelay.runs.simulate import SimulateParams

VALUES = Path(__file__).resolve().parents[1] / "core" / "data" / "fig6_values.csv"


def test_fig6_has_every_point_of_the_figure() -> None:
    points = {
        (p.params.sites, p.params.resilience, p.params.tau, p.params.loss)
        for p in load("fig6").points
        if p.params.protocol == "token"
    }
    with VALUES.open(newline="") as file:
        figure = {
            (int(row["N"]), int(row["L"]), float(row["tau"]), float(row["Pe"]))
            for row in csv.DictReader(file)
            if row["fig6_panel"]
        }
    assert points == figure
    positive = {p.params.sites for p in load("fig6").points if p.params.protocol == "positive-ack"}
    assert positive == {3, 10, 30}


@pytest.mark.parametrize("name", READY)
def test_a_ready_grid_takes_messages_and_seeds_from_the_command(name: str) -> None:
    grid = load(name, messages=7, seeds=2)
    assert {point.params.messages for point in grid.points} == {7}
    assert len(grid.runs()) == 2 * len(grid.points)
    assert len({run.run for run in grid.runs()}) == len(grid.runs())
    assert len({run.seed for run in grid.runs()}) == len(grid.runs())


def test_a_seed_depends_on_experiment_point_and_repetition_alone() -> None:
    few = {run.run: run.seed for run in load("fig6", seeds=1).runs()}
    many = {run.run: run.seed for run in load("fig6", seeds=3).runs()}
    assert few.items() <= many.items()
    assert seed_of("a", "b", 0) != seed_of("a", "b", 1) != seed_of("c", "b", 1)
    assert 0 <= seed_of("a", "b", 0) < 1 << 63


def test_bins_hold_every_run_once_and_the_longest_come_first() -> None:
    runs = load("fig6").runs()
    together = bins(runs)
    assert Counter(run.run for one in together for run in one) == Counter(run.run for run in runs)
    lengths = [sum(expected_s(run.params) for run in one) for one in together]
    assert lengths == sorted(lengths, reverse=True)
    assert len(together) >= 64
    shuffled = Random(1).sample(runs, len(runs))
    assert bins(shuffled) == together
    assert bins([]) == []


def test_a_table_stands_for_all_combinations_and_equal_points_count_once() -> None:
    grid = parse(
        {
            "messages": 10,
            "seeds": 2,
            "grid": [
                {"protocol": ["token", "positive-ack"], "sites": [3, 5], "resilience": [0, 1]},
                {"protocol": "token", "sites": 3, "resilience": 1, "loss": [0.0, 0.1]},
            ],
        },
        "mine",
    )
    keys = [point.key for point in grid.points]
    # Positive acknowledgement has no L, and one point of the second table is in the first.
    assert len(keys) == len(set(keys)) == 4 + 2 + 1
    assert grid.name == "mine"
    assert grid.points[0].params.messages == 10


def test_one_table_at_the_top_of_the_file_will_do(tmp_path: Path) -> None:
    path = tmp_path / "small.toml"
    path.write_text('protocol = "token"\nsites = [3, 4]\nloss = 0\n')
    grid = load(str(path), messages=5, seeds=1)
    assert (grid.name, len(grid.points)) == ("small", 2)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("sites = [3", "no TOML"),
        ("", "grid = nothing"),
        ("sitez = 3", "sitez = 3"),
        ("seed = 3\nsites = 3", "seeds says how often"),
        ('sites = "five"', 'sites = "five"'),
        ("sites = true", "sites = true"),
        ("sites = []", "sites = []"),
        ("sites = 3.5", "sites = 3.5"),
        ("loss = 1.5", "loss = 1.5"),
        ('protocol = "carrier pigeon"', "protocol = carrier pigeon"),
        ("sites = 3\nresilience = 2", "resilience = 2 is not allowed: 0 to 1 for 3 sites"),
        ("[[grid]]\nsites = 3\n[[grid]]\ntau = 'x'", "grid[1].tau"),
        ("grid = 5", "grid = [5]"),
        ("seeds = 'many'\nsites = 3", "seeds = many"),
        ("seeds = 0\nsites = 3", "seeds = 0"),
        ("seeds = 2000000\nsites = 3", "seeds = 2000000"),
        ("name = ''\nsites = 3", "name = "),
        ("protocol = 'po'\nkw = 2", "kw = 2"),
    ],
)
def test_a_bad_grid_is_refused_in_one_line_that_names_the_key(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, says: str
) -> None:
    path = tmp_path / "grid.toml"
    path.write_text(text)
    status = roundelay(["sweep", str(path), "--out", str(tmp_path / "out")])
    said = capsys.readouterr().err
    assert status == 2
    assert said.count("\n") == 1
    assert says in said
    assert not (tmp_path / "out").exists()


def test_a_grid_that_is_neither_ready_nor_a_file_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("fig7", str(tmp_path / "none.toml"), str(tmp_path)):
        assert roundelay(["sweep", name, "--out", str(tmp_path / "out")]) == 2
        assert capsys.readouterr().err.startswith(f"roundelay sweep: grid = {name}")


# -- one run, one point ------------------------------------------------------------------------


def rows(count: int, **given: Any) -> list[dict[str, Any]]:
    return [
        sweep.measured(SimulateParams(seed=seed, messages=30, **given).settled())
        for seed in range(count)
    ]


def test_a_row_says_where_it_was_measured_and_what_came_out() -> None:
    (row,) = rows(1, sites=4, loss=0.1)
    assert set(row) == set(sweep.RUN_COLUMNS)
    assert (row["sites"], row["loss"], row["resilience"], row["tau"]) == (4, 0.1, 1, 1.0)
    assert row["violations"] == 0
    assert row["delivered_everywhere"] is True
    assert row["pdus"] == pytest.approx(row[PDUS] * 30)
    assert sum(row[part] for part in PARTS) == pytest.approx(row[PDUS])


def test_a_run_that_breaks_is_a_row_and_not_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise ZeroDivisionError("by nothing")

    monkeypatch.setattr(sweep, "simulate", broken)
    (row,) = rows(1, sites=3)
    assert (row["violations"], row["violation"]) == (1, "ZeroDivisionError: by nothing")
    assert (row["sites"], row[PDUS]) == (3, None)


def test_a_point_has_mean_interval_model_and_deviation() -> None:
    runs = [
        row | {"experiment": "x", "index": 0, "point": "p", "run": f"p-{k}"}
        for k, row in enumerate(rows(4, sites=5, loss=0.05))
    ]
    found = {row["measure"]: row for row in summarise(runs)}
    values = [row[PDUS] for row in runs]
    mean = sum(values) / 4
    spread = (sum((value - mean) ** 2 for value in values) / 3) ** 0.5
    assert found[PDUS]["mean"] == pytest.approx(mean)
    assert found[PDUS]["ci95"] == pytest.approx(3.18244630528 * spread / 2)
    assert found[PDUS]["model"] == pytest.approx(cost.x_p_token(5, 1, 1.0, 0.05))
    assert found[PDUS]["deviation"] == pytest.approx(mean / found[PDUS]["model"] - 1)
    assert found[PDUS]["messages"] == 120
    assert found["delay_ms_mean"]["model"] is None
    assert "slots" not in found
    # Neither the order of rows nor a run that is there twice makes a difference.
    assert next(summarise([*reversed(runs), runs[0]])) == found[PDUS]
    lost = next(summarise([row | {PDUS: None, "violations": 1} for row in runs]))
    assert (lost["mean"], lost["violations"], lost["runs"]) == (None, 4, 0)


def test_one_run_alone_has_no_interval() -> None:
    assert mean_and_ci95([3.5]) == (3.5, None)
    assert t95(1) > 12


def test_the_model_of_a_point_is_the_sum_of_its_parts() -> None:
    for params in (
        SimulateParams(sites=10, resilience=2, tau=0.3, loss=0.1),
        SimulateParams(sites=10, kr=3, tau=2.0, loss=0.02),
        SimulateParams(sites=5, kw=4, load="isolated"),
    ):
        place = setting_of(sweep.measured(SimulateParams(messages=1)) | _where(params.settled()))
        assert sum(model(place, part) or 0.0 for part in PARTS) == pytest.approx(model(place, PDUS))
        assert model(place, STORAGE) is not None
    assert parts("po", {"PO_DT": 3}, 1) == dict.fromkeys(PARTS)


def _where(params: SimulateParams) -> dict[str, Any]:
    return {
        name: getattr(params, name, None) for name in sweep.RUN_COLUMNS if hasattr(params, name)
    }


def test_tolerances_are_those_of_the_specification() -> None:
    def of(**given: Any) -> tuple[float, float] | None:
        given = {"messages": 1} | given
        return tolerance(setting_of(_where(SimulateParams(**given).settled())), PDUS)

    assert of(loss=0.0) == (-0.02, 0.02)
    assert of(loss=0.1) == (-0.15, 0.25)
    assert of(loss=0.2) == (-0.22, 0.22)
    assert of(loss=0.2, sites=30, tau=10.0) == (-0.29, 0.22)
    assert of(loss=0.3) is None
    assert of(profile="fast") is None
    with pytest.raises(ConfigError):
        of(loss=2.0)
