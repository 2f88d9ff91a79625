"""The families that can be explored: the bounds of each by protocol, and its model by the bounds.

Another one is explored by one more `Model` and its entries here.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Final

from roundelay.core.families import CLUSTERS, TOKEN
from roundelay.sim.explore.cluster.model import ClusterModel
from roundelay.sim.explore.scope import Bounds, ClusterScope, Scope
from roundelay.sim.explore.search import Model, Progress, Result, Search
from roundelay.sim.explore.token.model import TokenModel

if TYPE_CHECKING:
    from roundelay.sim.mutants.mutant import Mutant


EXPLORED: Final[dict[str, type[Bounds]]] = {TOKEN: Scope, **dict.fromkeys(CLUSTERS, ClusterScope)}
"""By protocol."""

MODELS: Final[dict[type[Bounds], type[Any]]] = {Scope: TokenModel, ClusterScope: ClusterModel}


def explore(
    scope: Bounds,
    mutant: Mutant | None = None,
    max_states: int | None = None,
    progress: Progress | None = None,
) -> Result:
    """Look at every run in `scope`; ends with the first violation, or beyond `max_states`."""
    with nullcontext() if mutant is None else mutant.break_rule():
        model: Model[Any, Any, Any] = MODELS[type(scope)](scope.check(), mutant)
        return Search(model, max_states or scope.MAX_STATES, progress).run()
