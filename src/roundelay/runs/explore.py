"""Exploring: every state a small group can reach, as a run with results.

The explorer itself is `sim.explorer`; the rules it can switch off are `sim.mutants`.
"""

from __future__ import annotations

from typing import Any

from msgspec import structs

from roundelay.runs.swarm import mutant_named
from roundelay.sim.explore_scope import Scope
from roundelay.sim.explorer import Progress, explore
from roundelay.sim.mutants import MUTANTS


def run_explorer(
    *, mutant: str | None = None, progress: Progress | None = None, **bounds: int | None
) -> dict[str, Any]:
    """Explore, and say what was found.

    Bounds (fields of `Scope`) that are None are the mutant's own, or else the usual ones.
    """
    rule = None if mutant is None else mutant_named(mutant)
    usual = Scope() if rule is None or rule.scope is None else rule.scope
    given: dict[str, Any] = {name: value for name, value in bounds.items() if value is not None}
    scope = structs.replace(usual, **given).check()
    found = explore(**structs.asdict(scope), mutant=rule, progress=progress)
    return {
        "sites": scope.sites,
        "resilience": scope.resilience,
        "timestamps": scope.timestamps,
        "crashes": scope.crashes,
        "attempts": scope.attempts,
        "messages": scope.messages,
        "wipes": scope.wipes,
        "mutant": mutant,
        "states": found.states,
        "depth": found.depth,
        "complete": found.complete,
        "violations": [
            {
                "invariant": one.invariant,
                "detail": one.detail,
                "depth": one.depth,
                "steps": list(one.steps),
            }
            for one in found.violations
        ],
    }


def mutants() -> list[dict[str, str]]:
    """The rules that can be switched off."""
    return [
        {
            "name": name,
            "rule": mutant.rule,
            "wrong": mutant.wrong,
            "caught_by": mutant.caught_by,
        }
        for name, mutant in MUTANTS.items()
    ]
