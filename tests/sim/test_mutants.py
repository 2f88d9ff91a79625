"""Each broken rule is noticed: a search that never finds anything proves nothing."""

from __future__ import annotations

import pytest

from roundelay.core.token.site import TokenSite
from roundelay.sim.explorer import explore
from roundelay.sim.mutants import MUTANTS, Mutant

EXPLORED = [mutant for mutant in MUTANTS.values() if mutant.scope is not None]
SWARMED = [mutant for mutant in MUTANTS.values() if mutant.scope is None]

TRAPS = {
    "a recovered site counts as an ordinary member": "recovered-is-ordinary",
    "the joined version is lost on restart": "joined-version-lost",
    "an old list is resumed after having left it": "resumes-old-list",
    "no majority test": "no-majority",
    "no unanimous vote": "no-unanimity",
    "no resiliency test": "no-resiliency-test",
}
"""The known traps of the protocol."""


def test_every_known_trap_has_its_mutant() -> None:
    assert set(TRAPS.values()) <= set(MUTANTS)
    assert len(MUTANTS) >= 20
    assert MUTANTS["no-resiliency-test"].scope is not None
    assert MUTANTS["no-resiliency-test"].scope.resilience == 0  # at N = 3, L = 1 it is vacuous


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=MUTANTS)
def test_a_mutant_says_what_it_breaks_and_who_notices(mutant: Mutant) -> None:
    assert mutant.rule.startswith("CM-")
    assert mutant.wrong
    assert issubclass(mutant.site_class, TokenSite)
    assert mutant.caught_by.endswith(f"--mutant {mutant.name}")
    if mutant.seeds is not None:
        assert mutant.seeds[1] - mutant.seeds[0] <= 200


@pytest.mark.parametrize("mutant", EXPLORED, ids=lambda mutant: mutant.name)
def test_the_explorer_notices_a_broken_rule(mutant: Mutant) -> None:
    """Prints the command that shows it (`pytest -rP`)."""
    scope = mutant.scope
    assert scope is not None
    found = explore(scope.sites, scope.resilience, scope.timestamps, scope.crashes, mutant=mutant)
    assert found.violations, f"not noticed: {mutant.caught_by}"
    (violation,) = found.violations
    assert violation.steps
    print(f"{mutant.caught_by}  # {violation.invariant} after {violation.depth} turns")


@pytest.mark.parametrize("mutant", SWARMED, ids=lambda mutant: mutant.name)
def test_the_swarm_notices_a_broken_rule(mutant: Mutant) -> None:
    """Prints the command that shows it (`pytest -rP`)."""
    from roundelay.runs.swarm import SwarmParams, run_seed

    assert mutant.seeds is not None
    first, beyond = mutant.seeds
    params = SwarmParams(first=first, beyond=beyond, mutant=mutant.name)
    for seed in range(first, beyond):
        findings = run_seed(seed, params).findings
        if findings:
            print(f"{mutant.caught_by}  # {findings[0].invariant} at seed {seed}")
            return
    pytest.fail(f"not noticed: {mutant.caught_by}")
