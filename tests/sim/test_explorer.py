"""The explorer on scopes small enough for every test run; `make explore` runs the large ones."""

from __future__ import annotations

import pytest

from roundelay.core.errors import ConfigError
from roundelay.core.token.config import COLD
from roundelay.sim.explore.explorer import Search, explore
from roundelay.sim.explore.scope import Scope
from roundelay.sim.explore.unreduced import PlainSearch


@pytest.mark.parametrize(
    ("resilience", "timestamps", "crashes", "attempts"),
    [(0, 3, 0, 1), (1, 3, 0, 1)],
)
def test_a_small_scope_is_complete_and_clean(
    resilience: int, timestamps: int, crashes: int, attempts: int
) -> None:
    found = explore(3, resilience, timestamps, crashes, attempts=attempts)
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


@pytest.mark.parametrize("scope", SMALLEST, ids=Scope.command)
def test_the_reductions_lose_nothing_that_can_be_delivered_together(scope: Scope) -> None:
    """Step by step, with every PDU kept and every field compared, the same things can happen."""
    search = Search(scope)
    assert search.run().complete
    plain = PlainSearch(scope).run()
    assert plain.complete
    assert not plain.broken
    assert search.outcomes() == plain.outcomes
    assert len(plain.outcomes) > 1
    assert len(search.states) < plain.states


def test_the_same_scope_gives_the_same_states() -> None:
    first = explore(3, 1, 1, 0, attempts=1)
    assert explore(3, 1, 1, 0, attempts=1) == first


def test_a_search_that_is_cut_short_says_so() -> None:
    assert not explore(3, 0, 1, 0, attempts=1, max_states=50).complete


def test_a_scope_that_cannot_be_is_refused() -> None:
    with pytest.raises(ConfigError, match="timestamps = 0"):
        explore(3, 1, 0, 1)
