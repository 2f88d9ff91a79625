"""Does every mutant fail, and with the promise that it names?"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, Final

from roundelay.core.errors import ConfigError
from roundelay.runs.explore import run_explorer
from roundelay.runs.swarm import SwarmParams, in_processes, run_seed
from roundelay.sim.mutants.mutant import Mutant
from roundelay.sim.mutants.registry import FAMILIES, MUTANTS, mutant_named

CAUGHT: Final = "caught"
SURVIVED: Final = "survived"
OTHERWISE: Final = "otherwise"
"""Something went wrong, but not what the mutant names, or something besides that no run may do."""

PYTHON_ERRORS: Final = ("Error", "Exception", "Iteration", "hang", "codec")
"""How findings end, or what they are, that say nothing about a promise."""


Finding = tuple[str, str]
"""What was broken, and in which words."""


def run_mutant(mutant: Mutant) -> dict[str, Any]:
    """Run what has to catch `mutant`, up to the first that goes wrong, and say what came of it.

    `reported` are the promises found broken, in the order they were; `seed` is that of the random
    run that shows it, or -1 for an exploration.
    """
    begun = time.perf_counter()
    seed, findings = -1, _explored(mutant) if mutant.scope is not None else []
    if mutant.seeds is not None and not findings:
        seed, findings = _swarmed(mutant)
    hits = [finding for finding in findings if mutant.expected(*finding)]
    odd = [finding for finding in findings if _is_python_error(*finding)]
    shown = (odd or hits or findings or [("", "")])[0]
    return {
        "name": mutant.name,
        "family": mutant.family,
        "rule": mutant.rule,
        "expects": mutant.expects,
        "verdict": SURVIVED if not findings else CAUGHT if hits and not odd else OTHERWISE,
        "reported": tuple(dict.fromkeys(invariant for invariant, _ in findings)),
        "detail": shown[1],
        "seed": seed,
        "seconds": round(time.perf_counter() - begun, 3),
        "command": mutant.caught_by,
    }


def _explored(mutant: Mutant) -> list[Finding]:
    result = run_explorer(mutant=mutant.name)
    return [(finding["invariant"], finding["detail"]) for finding in result["violations"]]


def _swarmed(mutant: Mutant) -> tuple[int, list[Finding]]:
    """The first seed that goes wrong, and how."""
    assert mutant.seeds is not None
    first, beyond = mutant.seeds
    params = SwarmParams(first=first, beyond=beyond, protocol=mutant.protocol, mutant=mutant.name)
    for seed in range(first, beyond):
        findings = run_seed(seed, params).findings
        if findings:
            return seed, [(finding.invariant, finding.detail) for finding in findings]
    return -1, []


def _is_python_error(invariant: str, detail: str) -> bool:
    name = detail.partition(":")[0] if invariant == "engine" else invariant
    return name.endswith(PYTHON_ERRORS)


def chosen(family: str | None = None, names: Iterable[str] = ()) -> list[Mutant]:
    """The mutants of these names, or all, of one family if it is given."""
    if family is not None and family not in FAMILIES:
        raise ConfigError("family", family, " or ".join(FAMILIES))
    mutants = [mutant_named(name) for name in names] or list(MUTANTS.values())
    return [mutant for mutant in mutants if family in (None, mutant.family)]


def run_mutants(
    mutants: list[Mutant], jobs: int = 0, watch: Callable[[int, int, int], None] | None = None
) -> list[dict[str, Any]]:
    """Run them, in processes of their own unless `jobs` is 1; one row each, in their order.

    `watch` is called with (mutants done, mutants in all, those not caught).
    """
    rows: list[dict[str, Any]] = []
    for row in in_processes(_run_named, [mutant.name for mutant in mutants], jobs, "mutant"):
        rows.append(row)
        if watch is not None:
            missed = sum(row["verdict"] != CAUGHT for row in rows)
            watch(len(rows), len(mutants), missed)
    return rows


def _run_named(name: str) -> dict[str, Any]:
    return run_mutant(MUTANTS[name])
