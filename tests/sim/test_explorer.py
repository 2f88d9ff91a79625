"""The explorer on scopes small enough for every test run; `make explore` runs the large ones."""

from __future__ import annotations

from itertools import product

import pytest

from roundelay.core.errors import ConfigError
from roundelay.core.token.config import COLD
from roundelay.sim.explore.families import explore
from roundelay.sim.explore.scope import Scope
from roundelay.sim.explore.search import Search
from roundelay.sim.explore.token.model import TokenModel
from roundelay.sim.explore.token.site_states import Deliveries
from tests.sim.unreduced import UnreducedModel

MAX_STATES = 1_000_000


@pytest.mark.parametrize(
    ("resilience", "timestamps", "crashes", "attempts"),
    [(0, 3, 0, 1), (1, 3, 0, 1)],
)
def test_a_small_scope_is_complete_and_clean(
    resilience: int, timestamps: int, crashes: int, attempts: int
) -> None:
    found = explore(
        Scope(resilience=resilience, timestamps=timestamps, crashes=crashes, attempts=attempts)
    )
    assert found.complete
    assert not found.violations
    assert found.states > 1


SMALLEST = [
    Scope(sites=2, resilience=0, timestamps=2, attempts=0, messages=2, crashes=0),
    Scope(sites=2, resilience=0, timestamps=1, attempts=1, messages=1, crashes=0),
    Scope(sites=2, resilience=0, timestamps=1, attempts=1, messages=1, crashes=1),
    Scope(sites=2, resilience=0, timestamps=1, attempts=1, messages=1, crashes=1, boot=COLD),
    Scope(sites=2, resilience=0, timestamps=1, attempts=1, messages=1, crashes=0, wipes=1),
    Scope(sites=3, resilience=1, timestamps=1, attempts=0, messages=1, crashes=0),
    Scope(sites=3, timestamps=1, attempts=0, messages=1, crashes=0, to_source=True),
]


def delivered_from(model: TokenModel, state: bytes) -> set[tuple[Deliveries, ...]]:
    """What the sites can have delivered at the same time, in a state or silently after it."""
    silently = model.group.silently(model.unpacked(state))
    return set(product(*[{fact.delivered for fact in silent.facts} for silent in silently]))


@pytest.mark.parametrize("scope", SMALLEST, ids=Scope.command)
def test_the_reductions_lose_nothing_that_can_be_delivered_together(scope: Scope) -> None:
    """Step by step, with every PDU kept and every field compared, the same things can happen."""
    model, unreduced_model = TokenModel(scope), UnreducedModel(scope)
    search, unreduced = Search(model, MAX_STATES), Search(unreduced_model, MAX_STATES)
    assert search.run().complete
    result = unreduced.run()
    assert result.complete
    assert not result.violations
    outcomes = set(map(unreduced_model.delivered, unreduced.states))
    assert set().union(*(delivered_from(model, state) for state in search.states)) == outcomes
    assert len(outcomes) > 1
    assert len(search.states) < result.states


ONE_STAMP = Scope(timestamps=1, crashes=0, attempts=1)


def test_the_same_scope_gives_the_same_states() -> None:
    assert explore(ONE_STAMP) == explore(ONE_STAMP)


def test_a_search_that_is_cut_short_says_so() -> None:
    assert not explore(ONE_STAMP, max_states=50).complete


def test_a_scope_that_cannot_be_is_refused() -> None:
    with pytest.raises(ConfigError, match="timestamps = 0"):
        explore(Scope(timestamps=0))
