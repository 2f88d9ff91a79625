"""Members that start for the first time, while others form the first list."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from roundelay.core.bundle import Bundle
from roundelay.core.engine import SECOND
from roundelay.core.token.config import COLD, REJOIN, TokenConfig
from roundelay.core.token.phases import NORMAL
from roundelay.core.token.site import TokenSite
from roundelay.core.token.stable import Stable
from roundelay.sim.kernel.world import World
from roundelay.sim.network.links import Lossy
from roundelay.trace import Checker

SITES = 5


@pytest.mark.parametrize("late", range(SITES + 1))
def test_a_group_forms_though_late_starters_cannot_tell_that_they_lost_no_disk(late: int) -> None:
    """Whoever hears of an attempt before it has a list of its own begins as one that lost its
    disk.  Of five, three did so (`roundelay chaos --seed 218`), and never was there a majority."""

    def site(me: int, stable: Any, boot: str, now: int, rng: Random) -> TokenSite:
        begins = REJOIN if me >= SITES - late else COLD
        config = TokenConfig.fast(resilience=1, boot=begins)
        return TokenSite(me, tuple(range(SITES)), config, rng, now, stable)

    checker = Checker(range(SITES))
    world = World(
        SITES, site, seed=late, links=Lossy(0.2), make_stable=Stable, boot=COLD, observers=[checker]
    )
    world.run(60 * SECOND)
    engines: list[Any] = [member.engine for member in world.sites]
    assert [engine.phase for engine in engines] == [NORMAL] * SITES
    assert not any(engine.reformation.wiped for engine in engines)
    for number in range(SITES):
        assert world.submit(number, Bundle.of(b"from %d" % number))
    world.run(90 * SECOND)
    world.finish()
    assert checker.violations == []
    assert checker.everywhere == SITES
