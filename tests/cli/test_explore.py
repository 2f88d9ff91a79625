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


def test_a_command_that_catches_a_mutant_says_everything_about_its_scope(call: Any) -> None:
    """Without --mutant it explores the same scope with the engine that ships."""
    (line,) = [
        one["caught_by"]
        for one in call("explore", "--list-mutants", "--json").json["mutants"]
        if one["name"] == "null-at-once"
    ]
    caught = call(*line.split()[1:], "--json").json
    clean = call(*line.removesuffix(" --mutant null-at-once").split()[1:], "--json").json
    assert caught["violations"]
    assert clean["complete"] is True
    assert clean["violations"] == []
    outcome = ("mutant", "states", "depth", "complete", "violations")
    scope = {name: value for name, value in caught.items() if name not in outcome}
    assert scope["kr"] == 2
    assert scope == {name: value for name, value in clean.items() if name not in outcome}


def test_a_group_may_begin_without_a_list(call: Any) -> None:
    found = call(*SMALL, "--boot", "cold", "--json").json
    assert (found["boot"], found["complete"], found["violations"]) == ("cold", True, [])
    refused = call(*SMALL, "--boot", "lukewarm")
    assert refused.status == 2
    assert "boot" in refused.err
    assert "preformed or cold" in refused.err


def test_the_mutants_are_listed(call: Any) -> None:
    found = call("explore", "--list-mutants", "--json").json["mutants"]
    assert len(found) >= 25
    for one in found:
        assert one["caught_by"].startswith(("roundelay explore ", "roundelay swarm "))
        assert one["caught_by"].endswith(f" --mutant {one['name']}")
    text = call("explore", "--list-mutants").out
    for one in found:
        assert one["name"] in text
        assert one["caught_by"] in text
