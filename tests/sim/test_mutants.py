"""Each broken rule is noticed: a search that never finds anything proves nothing.

`pytest -s tests/sim/test_mutants.py` prints the command that catches each mutant.  The commands
are carried out as they are printed, by programs of their own: coverage would slow them down.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from roundelay.core.token.site import TokenSite
from roundelay.core.token.stable import Stable
from roundelay.sim.explore_scope import Scope
from roundelay.sim.mutants import MUTANTS, WITHIN, Mutant

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

SEEDS_MOST = 200


def carried_out(command: str, *more: str) -> tuple[int, dict[str, Any]]:
    """Run `command` as a program; its exit status, and the JSON object it printed."""
    name, *words = command.split()
    assert name == "roundelay"
    env = {name: value for name, value in os.environ.items() if "COVERAGE" not in name}
    done = subprocess.run(
        [Path(sys.executable).with_name(name), *words, *more, "--json"],
        env=env,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.stderr == ""
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return done.returncode, found


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


SCOPES = list(dict.fromkeys(one.scope for one in MUTANTS.values() if one.scope is not None))
UNUSUAL = [scope for scope in SCOPES if not usual(scope)]


def test_every_known_trap_has_a_mutant() -> None:
    assert set(MUTANTS) >= TRAPS
    assert len(MUTANTS) >= 25


def test_every_mutant_says_what_it_breaks_and_which_command_shows_it() -> None:
    """The commands are printed (pytest -s)."""
    print()
    for name, mutant in MUTANTS.items():
        print(mutant.caught_by)
        assert mutant.name == name
        assert mutant.rule
        assert mutant.wrong
        assert (mutant.site_class, mutant.stable_class) != (TokenSite, Stable)
        words = mutant.caught_by.split()
        assert words[0] == "roundelay"
        assert words[1] in ("explore", "swarm")
        assert words[-2:] == ["--mutant", name]
        assert (mutant.scope is None) != (mutant.seeds is None)
    first, beyond = WITHIN
    assert 0 <= first < beyond <= SEEDS_MOST


def test_the_documentation_names_every_mutant() -> None:
    page = (Path(__file__).parents[2] / "docs" / "assurance.md").read_text()
    assert [name for name in MUTANTS if f"`{name}`" not in page] == []


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=lambda mutant: mutant.name)
def test_a_broken_rule_is_noticed_by_the_command_that_is_printed(mutant: Mutant) -> None:
    print(mutant.caught_by)
    by_explorer = mutant.scope is not None
    status, found = carried_out(mutant.caught_by, *(() if by_explorer else ("--jobs", "1")))
    assert status == 1, f"not caught by: {mutant.caught_by}"
    first = found["violations"][0]
    if by_explorer:
        assert first["steps"]
        assert found["mutant"] == mutant.name
    else:
        assert 0 <= first["seed"] < SEEDS_MOST
        assert first["rerun"].endswith(f"--mutant {mutant.name}")


@pytest.mark.parametrize("scope", UNUSUAL, ids=Scope.command)
def test_the_engine_that_ships_is_clean_where_a_mutant_is_not(scope: Scope) -> None:
    """The other scopes are part of the large explorations, the seeds part of `make test`."""
    status, found = carried_out(scope.command())
    assert status == 0
    assert found["complete"] is True
    assert found["violations"] == []
