"""Exploring: every state a small group can reach, as a run with results.

The explorer itself is `sim.explorer`; the rules it can switch off are `sim.mutants`.  Clusters have
their own, `sim.cluster_explore` and `sim.cluster_mutants`.
"""

from __future__ import annotations

from typing import Any

from msgspec import structs

from roundelay.core.errors import ConfigError
from roundelay.runs.swarm import mutant_named
from roundelay.sim.cluster_explore import ClusterScope, explore_cluster
from roundelay.sim.cluster_mutants import CLUSTER_MUTANTS, ClusterMutant
from roundelay.sim.engines import CLUSTERS, TOKEN
from roundelay.sim.explore_scope import Scope
from roundelay.sim.explorer import Progress, Result, explore
from roundelay.sim.mutants import MUTANTS, Mutant


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
    if protocol in CLUSTERS or (protocol is None and mutant in CLUSTER_MUTANTS):
        return _run_cluster_explorer(protocol, mutant, progress, given)
    if protocol not in (None, TOKEN):
        raise ConfigError("protocol", protocol, f"{TOKEN} or {' or '.join(CLUSTERS)}")
    _only(given, Scope, TOKEN)
    rule = None if mutant is None else mutant_named(mutant)
    usual = Scope() if rule is None or rule.scope is None else rule.scope
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
        "restarts": scope.restarts,
        "kr": scope.kr,
        "boot": scope.boot,
        "history": scope.history,
        "to_source": scope.to_source,
        "mutant": mutant,
        **_found(found),
    }


def _run_cluster_explorer(
    protocol: str | None, mutant: str | None, progress: Progress | None, given: dict[str, Any]
) -> dict[str, Any]:
    rule = None
    scope = ClusterScope() if protocol is None else ClusterScope(protocol=protocol)
    if mutant is not None:
        rule = CLUSTER_MUTANTS.get(mutant)
        fits = [name for name, one in CLUSTER_MUTANTS.items() if one.scope.protocol == protocol]
        if rule is None or protocol not in (None, rule.scope.protocol):
            raise ConfigError("mutant", mutant, f"with {protocol} one of {', '.join(fits)}")
        scope = rule.scope
    _only(given, ClusterScope, scope.protocol)
    scope = structs.replace(scope, **given).check()
    found = explore_cluster(scope, mutant=rule, progress=progress)
    return {**structs.asdict(scope), "mutant": mutant, **_found(found)}


def _only(given: dict[str, Any], scope: type[Scope] | type[ClusterScope], protocol: str) -> None:
    """Refuse bounds of other protocols."""
    for name, value in given.items():
        if name not in scope.__struct_fields__:
            raise ConfigError(name, value, f"not with {protocol}: leave it out")


def _found(found: Result) -> dict[str, Any]:
    """What a search found."""
    return {
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
    everything: dict[str, Mutant | ClusterMutant] = {**MUTANTS, **CLUSTER_MUTANTS}
    return [
        {
            "name": name,
            "rule": mutant.rule,
            "wrong": mutant.wrong,
            "caught_by": mutant.caught_by,
        }
        for name, mutant in everything.items()
    ]
