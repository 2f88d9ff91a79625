"""Exploring: every state a small group can reach, as a run with results.

The explorer itself is `sim.explore.explorer`, that of clusters `sim.explore.cluster`; rules to
switch off are in `sim.mutants`.
"""

from __future__ import annotations

from typing import Any

from msgspec import structs, to_builtins

from roundelay.core.errors import ConfigError
from roundelay.core.families import CLUSTERS, PO, TOKEN
from roundelay.sim.explore.cluster import ClusterScope, explore_cluster
from roundelay.sim.explore.explorer import Progress, explore
from roundelay.sim.explore.scope import Scope
from roundelay.sim.mutants.registry import MUTANTS, mutant_named


def run_explorer(
    *,
    protocol: str | None = None,
    mutant: str | None = None,
    progress: Progress | None = None,
    **bounds: int | str | None,
) -> dict[str, Any]:
    """Explore, and say what was found.

    Bounds (fields of `Scope`, or of `ClusterScope`) that are None are the mutant's own, or else the
    usual ones.
    """
    given: dict[str, Any] = {name: value for name, value in bounds.items() if value is not None}
    broken = MUTANTS.get(mutant or "")
    if protocol in CLUSTERS or (protocol is None and broken and broken.protocol in CLUSTERS):
        return _run_cluster_explorer(protocol, mutant, progress, given)
    if protocol not in (None, TOKEN):
        raise ConfigError("protocol", protocol, f"{TOKEN} or {' or '.join(CLUSTERS)}")
    _only(given, Scope, TOKEN)
    if mutant is not None:
        broken = mutant_named(mutant, TOKEN)
    usual = broken.scope if broken and isinstance(broken.scope, Scope) else Scope()
    scope = structs.replace(usual, **given).check()
    result = explore(**structs.asdict(scope), mutant=broken, progress=progress)
    return {**structs.asdict(scope), "mutant": mutant, **to_builtins(result)}


def _run_cluster_explorer(
    protocol: str | None, mutant: str | None, progress: Progress | None, given: dict[str, Any]
) -> dict[str, Any]:
    broken = MUTANTS.get(mutant or "")
    if mutant is not None and (broken is None or protocol not in (None, broken.protocol)):
        fits = [m.name for m in MUTANTS.values() if m.scope and m.protocol == protocol]
        raise ConfigError("mutant", mutant, f"with {protocol} one of {', '.join(fits)}")
    scope = ClusterScope(protocol=protocol or (broken.protocol if broken else PO))
    if broken is not None and isinstance(broken.scope, ClusterScope):
        scope = broken.scope
    _only(given, ClusterScope, scope.protocol)
    scope = structs.replace(scope, **given).check()
    result = explore_cluster(scope, mutant=broken, progress=progress)
    return {**structs.asdict(scope), "mutant": mutant, **to_builtins(result)}


def _only(given: dict[str, Any], scope: type[Scope] | type[ClusterScope], protocol: str) -> None:
    """Refuse bounds of other protocols."""
    for name, value in given.items():
        if name not in scope.__struct_fields__:
            raise ConfigError(name, value, f"not with {protocol}: leave it out")


def mutants() -> list[dict[str, Any]]:
    """The rules that can be switched off."""
    return [
        {
            "name": name,
            "family": mutant.family,
            "rule": mutant.rule,
            "wrong": mutant.wrong,
            "expects": list(mutant.expects),
            "caught_by": mutant.caught_by,
        }
        for name, mutant in MUTANTS.items()
    ]
