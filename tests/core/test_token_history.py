"""Restarts of everybody: who may go on, in which history, and from which position."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations

import pytest

from roundelay.core.token.site import PREFORMED_PAST
from tests.core.ring import MS, Ring


def busy(ring: Ring, count: int = 6) -> None:
    for number in range(count):
        ring.submit(number % len(ring.group), f"m{number}")
        ring.run(200 * MS)


def arrives(ring: Ring, message: str, sites: Iterable[int]) -> None:
    """Wait until all `sites` have delivered it."""
    ring.run_until(lambda: all(message in ring.log(site) for site in sites))


@pytest.mark.parametrize(
    ("sites", "resilience", "absent"), [(3, 1, 1), (5, 2, 1), (5, 2, 2), (4, 1, 1)]
)
def test_cm_r17_after_a_restart_of_all_a_majority_with_whole_disks_goes_on(
    sites: int, resilience: int, absent: int
) -> None:
    for gone in combinations(range(sites), absent):
        ring = Ring(sites, resilience=resilience, attempts=2)
        busy(ring, 4)
        ring.submit(gone[0], "stamped and perhaps not committed")
        ring.crash(*ring.group, keeps="whole")
        ring.flights.clear()
        back = [site for site in ring.group if site not in gone]
        ring.restart(*back)
        ring.run(10_000 * MS)
        assert all(ring[site].token_list.authorized for site in back), (
            gone,
            ring[back[0]].reformation.blocked,
        )
        assert {ring[site].token_list.history for site in back} == {PREFORMED_PAST}
        ring.submit(back[0], "afterwards")
        arrives(ring, "afterwards", back)
        ring.restart(*gone)
        arrives(ring, "afterwards", ring.group)
        ring.check()


def test_cm_r17_a_disk_that_is_whole_again_does_not_hide_an_earlier_loss() -> None:
    ring = Ring(3, attempts=2)
    busy(ring, 3)
    ring.crash(0, 1, 2, keeps="synced")
    for _ in range(2):
        ring.restart(0, 1)
        ring.run(5_000 * MS)
        assert [ring[site].reformation.amnesia for site in (0, 1)] == [True, True]
        assert not ring[0].token_list.authorized
        ring.crash(0, 1, keeps="whole")
    ring.restart(0, 1, 2)
    ring.run_until(lambda: all(ring[site].token_list.authorized for site in ring.group))
    assert not any(ring[site].reformation.amnesia for site in ring.group)


def test_where_everybody_may_have_forgotten_a_new_history_begins_behind_what_is_kept() -> None:
    ring = Ring(3, attempts=2)
    busy(ring)
    ring.crash(*ring.group, keeps="synced")
    ring.restart(*ring.group)
    ring.run_until(lambda: all(ring[site].token_list.authorized for site in ring.group))
    ((fresh, parent, base),) = {ring[site].token_list.history for site in ring.group}
    assert fresh not in (0, PREFORMED_PAST[0])
    assert (parent, base) == (PREFORMED_PAST[0], 0)  # nothing was ever synced
    # It stays so: nobody has forgotten anything since.
    ring.submit(1, "new")
    ring.run_until(lambda: "new" in ring.log(1))
    ring.crash(1, keeps="whole")
    ring.run(5_000 * MS)
    ring.restart(1)
    ring.run_until(lambda: all(ring[site].token_list.authorized for site in ring.group))
    assert {ring[site].token_list.history for site in ring.group} == {(fresh, parent, base)}


def test_what_a_recorder_has_is_the_past_a_new_history_begins_behind_it() -> None:
    """Issue of a power cut: the log goes back to nothing, the journal beside site 2 has 5."""
    ring = Ring(3, attempts=2)
    busy(ring)
    ring.crash(*ring.group, keeps="synced")
    ring.restart(*ring.group)
    ring[2].reformation.floor = 5
    ring.run_until(lambda: all(ring[site].token_list.authorized for site in ring.group))
    assert {ring[site].token_list.history[1:] for site in ring.group} == {(PREFORMED_PAST[0], 5)}
    assert {ring[site].position for site in ring.group} == {5}
    assert {info for site in ring.group for info in ring.told(site, "gap_unavailable")} == {(0, 5)}
    before = [len(ring.delivered[site]) for site in ring.group]
    ring.submit(1, "new")
    ring.run_until(lambda: all("new" in ring.log(site) for site in ring.group))
    for site in ring.group:
        (one,) = ring.delivered[site][before[site] :]
        assert one.seq == 5
    # A restart does not go back behind it either.
    ring.crash(*ring.group, keeps="synced")
    ring.restart(*ring.group)
    ring.run_until(lambda: all(ring[site].token_list.authorized for site in ring.group))
    assert {ring[site].position for site in ring.group} == {5}


def test_of_two_sites_one_that_lost_its_memory_makes_the_group_work_again() -> None:
    for wiped in (0, 1):
        ring = Ring(2, resilience=1, attempts=2)
        busy(ring, 5)
        known = ring.log(1 - wiped)
        ring.crash(wiped, keeps="nothing")
        ring.submit(1 - wiped, "while it was away")
        ring.run(3_000 * MS)
        ring.restart(wiped)
        arrives(ring, "while it was away", ring.group)
        assert ring.log(1 - wiped)[: len(known)] == known
        assert ring[wiped].token_list.history == PREFORMED_PAST


def test_of_four_sites_two_lost_disks_do_not_block_and_three_do() -> None:
    ring = Ring(4, resilience=1, attempts=2)
    busy(ring, 4)
    ring.crash(2, 3, keeps="nothing")
    ring.restart(2, 3)
    ring.run(20_000 * MS)
    assert ring[0].token_list.authorized or ring.told(0, "blocked")[-1][0] == "resiliency"
    ring = Ring(4, resilience=1, attempts=2)
    ring.crash(1, 2, 3, keeps="nothing")
    ring.restart(1, 2, 3)
    ring.submit(0, "x")
    ring.run(20_000 * MS)
    assert ring.told(0, "blocked")[-1] == ("majority", (), (1, 2, 3))
