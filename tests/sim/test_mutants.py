"""Each broken rule is noticed: a search that never finds anything proves nothing."""

from __future__ import annotations

import pytest

from roundelay.sim.explorer import explore
from roundelay.sim.mutants import ELUSIVE, MUTANTS, Mutant

CAUGHT = [mutant for name, mutant in MUTANTS.items() if name not in ELUSIVE]

SLOW = {"joins-any-version", "resumes-old-list", "version-used-twice", "votes-unrecovered"}
"""Caught too, by the commands they print, in ten to twenty seconds each."""

QUICK = [mutant for mutant in CAUGHT if mutant.name not in SLOW]


def test_enough_rules_are_broken() -> None:
    assert len(CAUGHT) >= 16
    assert set(MUTANTS) >= ELUSIVE
    for mutant in MUTANTS.values():
        assert mutant.rule
        assert mutant.wrong


@pytest.mark.parametrize("mutant", QUICK, ids=lambda mutant: mutant.name)
def test_the_explorer_notices_a_broken_rule(mutant: Mutant) -> None:
    """The command that shows it is printed (pytest -s)."""
    print(mutant.caught_by)
    scope = mutant.scope
    assert scope is not None
    found = explore(scope.sites, scope.resilience, scope.timestamps, scope.crashes, mutant=mutant)
    assert found.violations
    assert found.violations[0].steps
