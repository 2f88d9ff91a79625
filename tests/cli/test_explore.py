"""`roundelay explore` as other tools call it; what it finds is tested in tests/sim."""

from __future__ import annotations

from typing import Any

SMALL = ("explore", "--sites", 2, "--resilience", 0, "--timestamps", 1, "--crashes", 0,
         "--attempts", 1)  # fmt: skip


def test_a_small_scope_is_explored_completely(call: Any) -> None:
    done = call(*SMALL, "--json")
    assert done.status == 0
    assert done.err == ""
    found = done.json
    assert found["states"] > 10
    assert found["depth"] > 1
    assert found["complete"] is True
    assert found["violations"] == []
    text = call(*SMALL).out
    assert "no violation" in text
    assert "all there are" in text


def test_a_mutant_is_caught_with_the_steps_that_show_it(call: Any) -> None:
    done = call("explore", "--mutant", "no-majority", "--json")
    assert done.status == 1
    (one,) = done.json["violations"]
    assert one["invariant"] == "I3"
    assert one["steps"]
    assert done.json["complete"] is False
    told = call("explore", "--mutant", "no-majority")
    assert told.status == 1
    for step in one["steps"]:
        assert step in told.out


def test_the_swarm_knows_the_same_mutants(call: Any) -> None:
    done = call("swarm", "--seeds", "0:20", "--mutant", "no-majority", "--stop-at-first",
                "--jobs", 1, "--json")  # fmt: skip
    assert done.status == 1
    one = done.json["violations"][0]
    assert one["rerun"].endswith("--mutant no-majority")
    again = call(*one["rerun"].split()[1:], "--json")
    assert again.status == 1
    assert again.json["violations"] == done.json["violations"]


def test_the_mutants_are_listed(call: Any) -> None:
    found = call("explore", "--list-mutants", "--json").json["mutants"]
    assert len(found) >= 8
    assert all(one["caught_by"].startswith("roundelay ") for one in found)
    text = call("explore", "--list-mutants").out
    for one in found:
        assert one["name"] in text
        assert one["caught_by"] in text
