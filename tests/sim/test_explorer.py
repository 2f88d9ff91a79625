"""The explorer on scopes small enough for every test run; `make explore` runs the large ones."""

from __future__ import annotations

import pytest

from roundelay.core.errors import ConfigError
from roundelay.sim.explorer import explore


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


def test_the_same_scope_gives_the_same_states() -> None:
    first = explore(3, 1, 2, 0, attempts=1)
    assert explore(3, 1, 2, 0, attempts=1) == first


def test_a_search_that_is_cut_short_says_so() -> None:
    assert not explore(3, 1, 3, 1, max_states=50).complete


def test_a_scope_that_cannot_be_is_refused() -> None:
    with pytest.raises(ConfigError, match="timestamps = 0"):
        explore(3, 1, 0, 1)
