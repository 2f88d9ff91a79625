"""Each broken rule is noticed, by the promise that it breaks: a search that never finds anything
proves nothing.

Here those are run that take a moment each; `make mutants` runs all of them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from roundelay.core.errors import ConfigError
from roundelay.core.families import TOKEN
from roundelay.core.token.site import TokenSite
from roundelay.runs.explore import run_explorer
from roundelay.runs.mutants import CAUGHT, OTHERWISE, SURVIVED, run_mutant
from roundelay.sim.explore.scope import Scope
from roundelay.sim.families.registry import SWARMED
from roundelay.sim.mutants.mutant import Mutant, Patch
from roundelay.sim.mutants.registry import FAMILIES, MUTANTS, mutant_named

TRAPS = {
    "recovered-is-ordinary",  # a recovered site counts as an ordinary member
    "joined-version-lost",
    "restart-resumes",  # an old list is resumed, by one who restarts
    "resumes-old-list",  # ... or who leaves an attempt
    "no-majority",
    "no-unanimity",
    "no-resiliency-test",
    "list-not-persisted",  # versions, joined and committed, are durable before a vote is sent
    "promise-not-persisted",
}
"""What an exhaustive exploration of an abstract model had found to be unsafe."""

SLOW = {
    "joined-version-lost",
    "promise-not-persisted",
    "list-not-persisted",
    "wiped-counts",
    "wiped-is-witness",
    "wipe-not-persisted",
    "resumes-old-list",
    "no-unanimity",
    "elects-any-list",
    "keeps-old-entries",
    "joins-any-version",
    "version-used-twice",
    "votes-unrecovered",
    "commits-unauthorized",
}
"""They take several seconds each."""

SEEDS_MOST = 200

QUICK = [mutant for name, mutant in MUTANTS.items() if name not in SLOW]


def usual(scope: Scope) -> bool:
    """Whether the large explorations (`make explore`) contain this one."""
    large = Scope(resilience=scope.resilience)
    return (
        (scope.sites, scope.kr, scope.boot, scope.history, scope.to_source)
        == (large.sites, large.kr, large.boot, large.history, large.to_source)
        and scope.timestamps <= large.timestamps
        and scope.crashes <= large.crashes
        and scope.attempts <= large.attempts
        and scope.messages <= large.messages
        and scope.wipes <= large.wipes
        and scope.restarts <= large.restarts
    )


SCOPES = dict.fromkeys(one.scope for one in MUTANTS.values() if isinstance(one.scope, Scope))
UNUSUAL = [scope for scope in SCOPES if not usual(scope)]


def test_every_known_trap_and_every_protocol_has_a_mutant() -> None:
    assert set(MUTANTS) >= TRAPS
    assert set(MUTANTS) >= SLOW
    assert len(MUTANTS) >= 25
    assert {mutant.protocol for mutant in MUTANTS.values()} == set(SWARMED)
    assert {mutant.family for mutant in MUTANTS.values()} == set(FAMILIES)


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=MUTANTS)
def test_every_mutant_says_what_it_breaks_and_which_command_shows_it(mutant: Mutant) -> None:
    ids, _, missing = mutant.rule.partition(": ")
    assert ids
    assert missing
    assert mutant.wrong
    assert mutant.expects
    assert mutant.patches
    words = mutant.caught_by.split()
    assert words[0] == "roundelay"
    assert words[1] in ("explore", "swarm")
    assert words[-2:] == ["--mutant", mutant.name]
    assert (mutant.scope is None) != (mutant.seeds is None)
    if mutant.seeds is not None:
        first, beyond = mutant.seeds
        assert 0 <= first < beyond <= first + SEEDS_MOST


def test_the_documentation_names_every_mutant() -> None:
    page = (Path(__file__).parents[2] / "docs" / "assurance.md").read_text()
    assert [name for name in MUTANTS if f"`{name}`" not in page] == []


@pytest.mark.parametrize("mutant", QUICK, ids=lambda mutant: mutant.name)
def test_a_broken_rule_is_noticed_by_the_promise_it_names(mutant: Mutant) -> None:
    result = run_mutant(mutant)
    assert result["verdict"] == CAUGHT, (
        f"{result['reported']} {result['detail']}: {mutant.caught_by}"
    )


@pytest.mark.parametrize("scope", UNUSUAL, ids=Scope.command)
def test_the_engine_that_ships_is_clean_where_a_mutant_is_not(scope: Scope) -> None:
    """The other scopes are part of the large explorations, the seeds part of `make test`."""
    found = run_explorer(**structs.asdict(scope))
    assert found["complete"] is True
    assert found["violations"] == []


# -- what is no catch ----------------------------------------------------------------------------


def test_a_mutant_that_fails_with_another_promise_is_not_caught() -> None:
    result = run_mutant(structs.replace(MUTANTS["no-majority"], expects=("I4",)))
    assert result["verdict"] == OTHERWISE
    assert result["reported"] == ("I3",)


def test_a_mutant_that_stumbles_over_python_is_not_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def stumble(self: Any, *given: Any) -> Any:
        raise KeyError("nothing")

    patches = (*MUTANTS["restart-resumes"].patches, Patch(TokenSite, "on_timer", stumble))
    mutant = structs.replace(MUTANTS["restart-resumes"], patches=patches, expects=("KeyError",))
    monkeypatch.setitem(MUTANTS, mutant.name, mutant)
    result = run_mutant(mutant)
    assert result["verdict"] == OTHERWISE
    assert result["reported"][0] == "KeyError"


def test_a_mutant_that_nothing_notices_survives() -> None:
    result = run_mutant(structs.replace(MUTANTS["restart-resumes"], seeds=(0, 0)))
    assert result["verdict"] == SURVIVED


def test_parts_are_broken_only_while_a_mutant_is_in_force() -> None:
    class Whole:
        def rule(self) -> str:
            return "kept"

    class Part(Whole):
        pass

    mutant = Mutant(
        name="x",
        rule="",
        wrong="",
        expects=("I1",),
        patches=(
            Patch(Part, "rule", lambda self: "broken"),
            Patch(Whole, "rule", lambda self: "gone"),
        ),
    )
    with mutant.break_rule():
        assert (Part().rule(), Whole().rule()) == ("broken", "gone")
    assert (Part().rule(), Whole().rule()) == ("kept", "kept")
    assert "rule" not in vars(Part)


def test_a_mutant_belongs_to_its_protocol() -> None:
    assert mutant_named("no-majority", TOKEN).name == "no-majority"
    with pytest.raises(ConfigError, match="only with the protocol token"):
        mutant_named("no-majority", "grsb")
    with pytest.raises(ConfigError, match="takes-back"):
        mutant_named("no-such-rule", "wide")
