"""I3: planted faults in token lists."""

from __future__ import annotations

import pytest

from roundelay.core import events as ev
from roundelay.core.bundle import Bundle
from tests.trace.conftest import Judge
from tests.trace.play import Play

ALL = (0, 1, 2, 3, 4)


def started(**options: object) -> Play:
    """Five sites in list (0, 0), two messages committed."""
    play = Play(5, **options)
    for site in ALL:
        play.view(site, (0, 0), ALL, 0)
    for seq in (0, 1):
        commit(play, seq, ALL)
    return play


def commit(play: Play, seq: int, sites: tuple[int, ...], bundle: Bundle | None = None) -> Bundle:
    """The message at `seq` (of source 0, if it is a new one) is delivered at `sites`."""
    bundle = bundle or play.submit(0)
    play.wait()
    for site in sites:
        play.deliver(site, seq, bundle, 0, seq)
    return bundle


def test_a_new_list_that_takes_over_is_clean(judge: Judge) -> None:
    play = started()
    play.crash(4)
    for site in ALL[:4]:
        play.view(site, (1, 2), ALL[:4], 2)
    commit(play, 2, ALL[:4])
    assert not judge(play)


def test_deliveries_and_notices_of_one_batch_may_come_in_any_order(judge: Judge) -> None:
    play = started()
    bundle = play.submit(0)
    play.view(0, (1, 0), ALL, 2)
    play.deliver(0, 2, bundle, 0, 2)
    play.wait()
    for site in ALL[1:]:
        play.deliver(site, 2, bundle, 0, 2)
        play.view(site, (1, 0), ALL, 2)
    assert not judge(play)


def test_the_first_commit_may_precede_its_own_view_within_the_instant(judge: Judge) -> None:
    play = started()
    play.view(1, (1, 0), ALL, 2)
    bundle = play.submit(0)
    play.wait()
    play.deliver(0, 2, bundle, 0, 2)
    play.view(0, (1, 0), ALL, 2)
    play.wait()
    for site in ALL[1:]:
        play.deliver(site, 2, bundle, 0, 2)
    assert not judge(play)


def test_catching_up_before_the_own_list_is_in_force_is_clean(judge: Judge) -> None:
    play = started()
    for site in (0, 1, 2):
        play.view(site, (1, 0), (0, 1, 2), 2)
    bundle = commit(play, 2, (0, 1, 2))
    play.wait()
    for site in (3, 4):
        play.deliver(site, 2, bundle, 0, 2)  # still in list (0, 0), recovering
    play.wait()
    for site in ALL:
        play.view(site, (2, 3), ALL, 3)
    assert not judge(play)


def test_a_version_that_goes_back_breaks_i3(judge: Judge) -> None:
    play = started()
    play.view(0, (2, 0), ALL, 2)
    play.view(0, (1, 4), ALL, 2)
    assert judge(play) == {"I3": 1}


def test_the_same_version_twice_at_one_site_breaks_i3(judge: Judge) -> None:
    play = started()
    play.wait().view(0, (0, 0), ALL, 0)
    assert judge(play) == {"I3": 1}


def test_a_version_that_goes_back_over_a_restart_breaks_i3(judge: Judge) -> None:
    play = started()
    play.view(0, (2, 0), ALL, 2)
    play.crash(0)
    play.wait().restart(0)
    play.view(0, (1, 1), ALL, 2)
    assert judge(play) == {"I3": 1}


def test_a_site_that_lost_everything_may_see_an_old_version(judge: Judge) -> None:
    play = started()
    play.view(0, (1, 0), ALL, 2)
    play.crash(0, ev.NOTHING_LEFT)
    play.wait().restart(0, ev.NOTHING_LEFT)
    play.notice(0, "gap_unavailable", 0, 2)
    play.view(0, (1, 0), ALL, 2)
    assert not judge(play)


def test_one_version_with_two_memberships_breaks_i3(judge: Judge) -> None:
    play = started()
    play.view(0, (1, 0), (0, 1, 2), 2)
    play.view(1, (1, 0), (0, 1, 3), 2)
    assert judge(play) == {"I3": 1}


def test_one_version_with_two_starts_breaks_i3(judge: Judge) -> None:
    play = started()
    play.view(0, (1, 0), ALL, 2)
    play.view(1, (1, 0), ALL, 3)
    assert judge(play) == {"I3": 1}


def test_a_minority_list_breaks_i3(judge: Judge) -> None:
    play = started()
    play.view(0, (1, 0), (0, 1), 2)
    assert judge(play) == {"I3": 1}


@pytest.mark.parametrize("members", [(0, 1, 9), (0, 0, 1, 2), (1, 2, 3)])
def test_a_list_with_strange_members_breaks_i3(judge: Judge, members: tuple[int, ...]) -> None:
    play = started()
    play.view(0, (1, 0), members, 2)
    assert judge(play)["I3"] >= 1


def test_a_commit_under_an_old_list_after_a_newer_one_began_breaks_i3(judge: Judge) -> None:
    play = started()
    for site in (0, 1, 2):
        play.view(site, (1, 0), (0, 1, 2), 2)
    commit(play, 2, (3, 4, 0, 1, 2))  # site 3 is the first, and in list (0, 0)
    assert judge(play) == {"I3": 1}
    assert "commits position 2 under list 0.0" in play.checker.violations[0].detail


def test_a_newer_list_that_starts_below_an_old_commit_breaks_i3(judge: Judge) -> None:
    play = started()
    commit(play, 2, ALL)
    play.wait()
    for site in ALL:
        play.view(site, (1, 0), ALL, 2)
    counts = judge(play)
    assert counts == {"I3": 1}
    assert "starts at position 2, but position 2 was committed" in (
        play.checker.violations[0].detail
    )


def test_two_lists_that_both_commit_are_caught(judge: Judge) -> None:
    play = started()
    for site in (0, 1, 2):
        play.view(site, (1, 0), (0, 1, 2), 2)
    mine, theirs = play.submit(0), play.submit(4)
    play.wait()
    for site in (0, 1, 2):
        play.deliver(site, 2, mine, 0, 2)
    for site in (3, 4):
        play.deliver(site, 2, theirs, 4, 0)
    counts = judge(play)
    assert counts["I1"] == 2


def test_what_comes_off_the_disk_at_a_restart_is_of_the_list_before(judge: Judge) -> None:
    # The crash swallowed a batch in which site 0 committed position 2 and announced list (1, 0).
    play = started(liveness_ns=None)
    bundle = play.submit(0)
    play.wait().crash(0)
    play.view(1, (1, 0), ALL, 2)
    play.wait().restart(0)
    play.deliver(0, 2, bundle, 0, 2)
    play.wait()
    for site in ALL[1:]:
        play.deliver(site, 2, bundle, 0, 2)
    assert not judge(play)


def test_a_view_without_a_start_is_checked_for_the_rest(judge: Judge) -> None:
    play = started()
    play.notice(0, "view", (1, 0), (0, 1), 0)
    commit(play, 2, ALL)
    assert judge(play) == {"I3": 1}


def test_old_lists_are_forgotten() -> None:
    play = Play(3)
    for version in range(600):
        play.wait().view(0, (version, 0), (0, 1, 2), 0)
    assert len(play.checker._views.lists) <= 256
    assert not play.checker.violations
