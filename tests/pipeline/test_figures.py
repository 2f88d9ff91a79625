"""Figures: every point gets a verdict, the picture shows it, and what is wrong is called so."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from roundelay.cli.main import run as roundelay
from roundelay.pipeline.research.claims import PDUS, SLOTS
from roundelay.pipeline.research.figures import CSV, VERDICT, make_figures
from roundelay.pipeline.research.grid import Grid, load, parse
from roundelay.pipeline.research.summary import summarise
from roundelay.pipeline.research.sweep import SUMMARY, SUMMARY_COLUMNS, arrow_schema, measured
from roundelay.pipeline.research.verdicts import FIG6, claims, judge

Row = dict[str, Any]


def summary_of(grid: Grid) -> list[Row]:
    """What a sweep of the grid would have written, without Spark."""
    found: dict[int, list[Row]] = {}
    for run in grid.runs():
        where = {
            "experiment": grid.name, "index": run.point.index, "point": run.point.key,
            "run": run.run,
        }  # fmt: skip
        found.setdefault(run.point.index, []).append(measured(run.params) | where)
    return [row for rows in found.values() for row in summarise(rows)]


@cache
def _fig6() -> tuple[Row, ...]:
    return tuple(summary_of(load("fig6", messages=4, seeds=1)))


def fig6_as_predicted() -> list[Row]:
    """The rows of Fig. 6 with the model's own values for means."""
    return [
        row | ({} if row["model"] is None else {"mean": row["model"], "deviation": 0.0})
        for row in _fig6()
    ]


def write(folder: Path, rows: list[Row]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows, arrow_schema(SUMMARY_COLUMNS)), folder / SUMMARY)
    return folder


def lines(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_fig6_has_a_picture_and_a_verdict_for_each_of_its_points(tmp_path: Path) -> None:
    folder = write(tmp_path / "fig6", fig6_as_predicted())
    found = make_figures([folder], tmp_path / "out")
    assert found["good"]
    table = lines(tmp_path / "out" / CSV)
    assert len(table) == 108
    assert {line["verdict"] for line in table} == {"within"}
    assert {panel for line in table for panel in line["panel"].split()} == set("abcd")
    assert len(found["claims"]) == 5
    png = (tmp_path / "out" / "fig6.png").read_bytes()
    svg = (tmp_path / "out" / "fig6.svg").read_text()
    assert png.startswith(b"\x89PNG")
    assert "30 sites" in svg
    # The same figures are the same files.
    make_figures([folder], tmp_path / "again")
    assert (tmp_path / "again" / "fig6.png").read_bytes() == png
    assert (tmp_path / "again" / "fig6.svg").read_text() == svg


def test_a_point_outside_the_tolerance_is_named_and_the_status_is_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = fig6_as_predicted()
    wrong = next(row for row in rows if row["measure"] == PDUS and row["loss"] == 0.1)
    wrong |= {"mean": 1.3 * wrong["model"], "deviation": 0.3}
    folder = write(tmp_path / "fig6", rows)
    out = tmp_path / "out"
    assert roundelay(["figures", str(folder), "--out", str(out), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found == json.loads((out / VERDICT).read_text())
    assert [wrong["point"] in line for line in found["outside"]] == [True]
    outside = [line for line in lines(out / CSV) if line["verdict"] == "outside"]
    assert [line["point"] for line in outside] == [wrong["point"]]


def test_a_deviation_is_explained_by_the_part_that_differs_most() -> None:
    rows = fig6_as_predicted()
    one = next(row for row in rows if row["measure"] == "broadcasts_per_message" and row["loss"])
    one["mean"] += 0.5
    total = next(r for r in rows if (r["point"], r["measure"]) == (one["point"], PDUS))
    total |= {"mean": total["model"] + 0.5, "deviation": 0.5 / total["model"]}
    (row,) = [row for row in judge(rows) if row["point"] == one["point"]]
    assert row["why"].startswith("broadcasts +0.50")
    assert "n_b = 1" in row["why"]


def test_a_broken_promise_is_outside_whatever_the_count() -> None:
    for wrong in ({"violations": 2}, {"undelivered": 1}):
        rows = [row | wrong for row in fig6_as_predicted()]
        assert {row["verdict"] for row in judge(rows)} == {"outside"}


def test_a_point_where_every_run_broke_is_outside_and_the_others_are_drawn(tmp_path: Path) -> None:
    rows = fig6_as_predicted()
    at = next(k for k, row in enumerate(rows) if row["measure"] == PDUS)
    rows[at] |= {"mean": None, "deviation": None, "violations": 1, "runs": 0}
    found = make_figures([write(tmp_path / "fig6", rows)], tmp_path / "out")
    assert len(found["outside"]) == 1
    assert "is not known" in found["outside"][0]
    assert (tmp_path / "out" / "fig6.png").exists()


Change = Callable[[Row], float]


@pytest.mark.parametrize(
    ("change", "broken"),
    [
        (lambda row: 1 / row["mean"], "the busier"),
        (lambda row: 9 - row["loss"], "the more is lost"),
        (lambda row: row["mean"] * row["sites"] ** 2, "the advantage"),
        (lambda row: row["mean"] * (1 + row["resilience"]), "at τ = 10"),
        (lambda row: row["mean"] + 5 * (row["protocol"] == "token"), "10 sites or more"),
    ],
    ids=["busy", "loss", "sites", "resilience", "crossing"],
)
def test_a_shape_that_does_not_hold_is_found(change: Change, broken: str) -> None:
    rows = judge(fig6_as_predicted())
    assert all(claim["holds"] for claim in claims(rows))
    token = [row | {"mean": change(row)} if row["protocol"] == "token" else row for row in rows]
    failed = [claim["claim"] for claim in claims(token) if not claim["holds"]]
    assert any(text.startswith(broken) for text in failed)


def test_table_1_and_the_clusters_come_out_exactly(tmp_path: Path) -> None:
    few = {"load": "isolated", "sites": [2, 3, 4, 5]}
    grids = [
        load("table1", messages=60, seeds=1),
        parse(
            few | {"protocol": ["to", "to-channel", "po"], "policy": ["deferred", "eager"]},
            "complexity", 1, 1,
        ),
        parse(
            few | {"protocol": "spo", "sites": [3, 4], "grid": [
                {}, {"destinations": [1, 2]}, {"loss": [0.05, 0.1, 0.2]},
            ]},
            "spo", 6, 2,
        ),
    ]  # fmt: skip
    folders = [write(tmp_path / grid.name, summary_of(grid)) for grid in grids]
    found = make_figures(folders, tmp_path / "out")
    for name in ("table1", "complexity", "spo-fig1", "spo-fig2"):
        for kind in ("png", "svg"):
            assert (tmp_path / "out" / f"{name}.{kind}").stat().st_size > 10_000
    by_figure = {one["figure"]: one for one in found["figures"]}
    for name in ("CM84 Table I", "TO/PO complexity", "SPO Fig. 1"):
        assert by_figure[name]["outside"] == 0, found["outside"]
        assert by_figure[name]["judged"] >= by_figure[name]["points"]
    # The lossy curves have a dozen broadcasts a point here: too few to rise at every step.
    assert by_figure["SPO Fig. 2"]["points"] == by_figure["SPO Fig. 2"]["judged"] == 6


def test_a_curve_of_spo_that_falls_or_bends_down_is_found() -> None:
    curve = [
        {
            "experiment": "spo", "index": k, "point": f"p{k}", "protocol": "spo", "sites": 5,
            "resilience": 0, "tau": None, "loss": loss, "profile": "paper", "load": "isolated",
            "policy": "deferred", "destinations": None, "kw": 1, "kr": 1, "measure": SLOTS,
            "runs": 5, "messages": 5, "violations": 0, "undelivered": 0, "mean": mean, "ci95": 0.1,
            "model": None if loss else 10.0, "deviation": None if loss else 0.0,
        }
        for k, (loss, mean) in enumerate([(0.0, 10.0), (0.1, 20.0), (0.2, 25.0), (0.3, 24.0)])
    ]  # fmt: skip
    rows = judge(curve)
    assert [row["verdict"] for row in rows] == ["within", "within", "within", "outside"]
    holds = {claim["claim"].split()[1]: claim["holds"] for claim in claims(rows)}
    assert holds == {"slots,": True, "delay": False, "ever": False}


def test_a_grid_of_ones_own_gets_a_picture_and_verdicts(tmp_path: Path) -> None:
    said = {"protocol": ["token", "po"], "sites": 3, "loss": [0.0, 0.1], "load": "isolated"}
    folder = write(tmp_path / "mine", summary_of(parse(said, "my own", 20, 2)))
    found = make_figures([folder], tmp_path / "out")
    assert [one["figure"] for one in found["figures"]] == ["my own"]
    assert (tmp_path / "out" / "my-own.png").exists()


def test_what_is_no_sweep_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    other = tmp_path / "other"
    other.mkdir()
    pq.write_table(pa.table({"a": [1]}), other / SUMMARY)
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / SUMMARY).write_bytes(b"no Parquet at all")
    good = write(tmp_path / "good", fig6_as_predicted())
    for folders, says in (
        ([empty], "dir = "), ([other], "has no column"), ([broken], "cannot be read"),
        ([good, good], "one sweep of fig6"),
    ):  # fmt: skip
        words = ["figures", *map(str, folders), "--out", str(tmp_path / "out")]
        assert roundelay(words) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1
        assert says in said
    assert FIG6 in {row["figure"] for row in judge(fig6_as_predicted())}
