"""Exploring: every state a small group can reach, as a run with results.

The explorer itself is `sim.explore`; rules to switch off are in `sim.mutants`.
"""

from __future__ import annotations

from typing import Any

from msgspec import structs, to_builtins

from roundelay.core.errors import ConfigError
from roundelay.core.families import TOKEN
from roundelay.core.limits import one_of
from roundelay.sim.explore.families import EXPLORED, explore
from roundelay.sim.explore.scope import Bounds
from roundelay.sim.explore.search import Progress
from roundelay.sim.mutants.mutant import Mutant
from roundelay.sim.mutants.registry import MUTANTS


def run_explorer(
    *,
    protocol: str | None = None,
    mutant: str | None = None,
    progress: Progress | None = None,
    **bounds: int | str | None,
) -> dict[str, Any]:
    """Explore, and say what was found.

    Bounds (fields of the family's scope) that are None are the mutant's own, or else the usual
    ones.
    """
    broken = MUTANTS.get(mutant or "")
    if protocol is None:
        protocol = broken.protocol if broken and broken.protocol in EXPLORED else TOKEN
    one_of("protocol", protocol, EXPLORED)
    if mutant is not None and (broken is None or broken.protocol != protocol):
        names = [each.name for each in MUTANTS.values() if each.scope and each.protocol == protocol]
        raise ConfigError("mutant", mutant, f"with {protocol} one of {', '.join(names)}")
    scope = _scope(protocol, broken, bounds)
    result = explore(scope, broken, progress=progress)
    shown = to_builtins(result)
    violations = list(shown.pop("violations"))  # as JSON has them
    return {**structs.asdict(scope), "mutant": mutant, **shown, "violations": violations}


def _scope(protocol: str, mutant: Mutant | None, bounds: dict[str, Any]) -> Bounds:
    """Return the usual bounds, or those of a mutant, with what is given in their place."""
    scope = mutant.scope if mutant is not None else None
    if scope is None:
        scope = EXPLORED[protocol]()
        if "protocol" in scope.__struct_fields__:
            scope = structs.replace(scope, protocol=protocol)
    given = {name: value for name, value in bounds.items() if value is not None}
    for name, value in given.items():
        if name not in scope.__struct_fields__:
            raise ConfigError(name, value, f"not with {protocol}: leave it out")
    return structs.replace(scope, **given).check()


def mutants() -> list[dict[str, Any]]:
    """The rules that can be switched off."""
    told = ("name", "family", "rule", "wrong", "expects", "caught_by")
    return [{field: getattr(mutant, field) for field in told} for mutant in MUTANTS.values()]
