"""The families that can be explored: for each its bounds and its model, looked up by protocol.

Another one is explored by one more `Model` and an entry here.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from roundelay.core.families import CLUSTERS, TOKEN
from roundelay.sim.explore.cluster.model import ClusterModel
from roundelay.sim.explore.scope import Bounds, ClusterScope, Scope
from roundelay.sim.explore.search import Model, Progress, Result, Search
from roundelay.sim.explore.token.model import TokenModel

if TYPE_CHECKING:
    from roundelay.sim.mutants.mutant import Mutant


class Explorable(Struct, frozen=True, kw_only=True):
    """How a family is explored."""

    scope: type[Bounds]
    model: Callable[[Any, Mutant | None], Model[Any, Any, Any]]
    max_states: int
    """Beyond that a search gives up: about a gigabyte, for clusters."""


TOKEN_GROUPS: Final = Explorable(scope=Scope, model=TokenModel, max_states=20_000_000)
CLUSTER_GROUPS: Final = Explorable(scope=ClusterScope, model=ClusterModel, max_states=2_000_000)

EXPLORED: Final = {TOKEN: TOKEN_GROUPS, **dict.fromkeys(CLUSTERS, CLUSTER_GROUPS)}
"""By protocol."""


def explore(
    scope: Bounds,
    mutant: Mutant | None = None,
    max_states: int | None = None,
    progress: Progress | None = None,
) -> Result:
    """Look at every run in `scope`; ends with the first violation, or beyond `max_states`."""
    family = next(family for family in EXPLORED.values() if family.scope is type(scope))
    with nullcontext() if mutant is None else mutant.in_force():
        model = family.model(scope.check(), mutant)
        return Search(model, max_states or family.max_states, progress).run()
