"""`roundelay mutants` as other tools call it; the mutants themselves are tested in tests/sim."""

from __future__ import annotations

from typing import Any

NAMES = ("no-majority", "fresh-vectors", "delivers-twice")


def test_the_table_says_what_was_reported_and_by_what(call: Any) -> None:
    done = call("mutants", *NAMES, "--jobs", 1, "--json")
    assert done.status == 0
    assert (done.json["caught"], done.json["missed"]) == (3, 0)
    rows = done.json["mutants"]
    assert [row["name"] for row in rows] == list(NAMES)
    assert [row["family"] for row in rows] == ["token", "cluster", "autorm"]
    for row in rows:
        assert row["verdict"] == "caught"
        assert set(row["reported"]) & set(row["expects"])
        assert row["command"].endswith(f" --mutant {row['name']}")
    assert rows[0]["seed"] == -1
    assert rows[2]["seed"] >= 0
    text = call("mutants", *NAMES, "--jobs", 1).out
    assert "3 of 3 caught" in text
    assert all(name in text for name in NAMES)


def test_only_those_of_a_family_are_run(call: Any) -> None:
    rows = call("mutants", *NAMES, "--family", "autorm", "--jobs", 1, "--json").json["mutants"]
    assert [row["name"] for row in rows] == ["delivers-twice"]


def test_the_swarm_runs_a_mutant_of_any_family(call: Any) -> None:
    (row,) = call("mutants", "delivers-twice", "--jobs", 1, "--json").json["mutants"]
    done = call(*row["command"].split()[1:], "--jobs", 1, "--json")
    assert done.status == 1
    reported = {one["invariant"]: one for one in done.json["violations"]}
    one = reported[row["expects"][0]]
    assert one["rerun"].endswith("--protocol autorm --mutant delivers-twice")
    again = call(*one["rerun"].split()[1:], "--json")
    assert again.json["violations"] == done.json["violations"]
