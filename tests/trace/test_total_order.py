"""Planted faults in groups of total order: each must be noticed, under the right name."""

from __future__ import annotations

from typing import Any

import pytest

from roundelay.core import events as ev
from roundelay.core.bundle import Bundle
from roundelay.core.engine import STAMPED
from roundelay.core.errors import ConfigError
from roundelay.trace import Checker, Violation
from tests.trace.conftest import Judge
from tests.trace.play import MS, Play, message


def ordered(play: Play, sources: list[int], sites: list[int] | None = None) -> list[Bundle]:
    """One message of each source in turn, delivered in that order at every site."""
    numbers: dict[int, int] = {}
    bundles = []
    for seq, source in enumerate(sources):
        bundle = play.submit(source)
        play.wait()
        for site in range(play.sites) if sites is None else sites:
            play.deliver(site, seq, bundle, source, numbers.get(source, 0))
        numbers[source] = numbers.get(source, 0) + 1
        bundles.append(bundle)
    return bundles


# -- I1: one order ---------------------------------------------------------------------------


def test_a_plain_run_is_clean(judge: Judge) -> None:
    play = Play()
    ordered(play, [0, 1, 2, 0, 0, 1])
    assert not judge(play)
    assert play.checker.committed == play.checker.everywhere == 6


def test_bundles_may_gather_what_was_submitted_one_by_one(judge: Judge) -> None:
    play = Play()
    one, two = play.submit(0), play.submit(0)
    both = Bundle.merged([one, two])
    for site in range(3):
        play.deliver(site, 0, both, 0, 0)
    assert not judge(play)


def test_bundles_may_be_cut_differently_at_different_sites(judge: Judge) -> None:
    play = Play(2)
    parts = [play.submit(0) for _ in range(3)]
    play.deliver(0, 0, Bundle.merged(parts[:2]), 0, 0)
    play.deliver(1, 0, parts[0], 0, 0)
    play.deliver(1, 1, Bundle.merged(parts[1:]), 0, 1)
    play.deliver(0, 2, parts[2], 0, 1)
    assert not judge(play)


def test_two_messages_in_another_order_at_one_site_break_i1(judge: Judge) -> None:
    play = Play()
    a, b = play.submit(0), play.submit(1)
    for site in (0, 1):
        play.deliver(site, 0, a, 0, 0)
        play.deliver(site, 1, b, 1, 0)
    play.deliver(2, 0, b, 1, 0)
    play.deliver(2, 1, a, 0, 0)
    counts = judge(play)
    assert counts == {"I1": 2}
    assert "position 0 is number 0 of source 1 here" in play.checker.violations[0].detail


def test_positions_out_of_order_break_i1(judge: Judge) -> None:
    play = Play()
    a, b = ordered(play, [0, 1], sites=[0, 1])
    play.deliver(2, 1, b, 1, 0)
    play.deliver(2, 0, a, 0, 0)
    assert judge(play) == {"I1": 1}


def test_a_position_that_was_left_out_and_comes_later_is_no_second_delivery(judge: Judge) -> None:
    play = Play()
    bundles = ordered(play, [0, 1, 2, 0], sites=[0, 1])
    for seq in (3, 1, 0, 2):
        play.wait().deliver(2, seq, bundles[seq], (0, 1, 2, 0)[seq], seq // 3)
    assert judge(play) == {"I1": 1}
    play.wait().deliver(2, 1, bundles[1], 1, 0)
    assert play.checker.counts["I4"] == 1


def test_an_unannounced_gap_breaks_i1(judge: Judge) -> None:
    play = Play()
    bundles = ordered(play, [0, 1, 2], sites=[0, 1])
    play.deliver(2, 0, bundles[0], 0, 0)
    play.deliver(2, 2, bundles[2], 2, 0)
    assert judge(play) == {"I1": 1}


def test_a_fresh_site_that_does_not_begin_at_zero_breaks_i1(judge: Judge) -> None:
    play = Play()
    bundles = ordered(play, [0, 1], sites=[0, 1])
    play.wait()
    play.deliver(2, 1, bundles[1], 1, 0)
    counts = judge(play)
    assert counts["I1"] == 1


@pytest.mark.parametrize("notice_first", [True, False])
def test_a_gap_announced_in_the_same_instant_is_clean(judge: Judge, notice_first: bool) -> None:
    play = Play()
    bundles = ordered(play, [0, 1, 0], sites=[0, 1])
    play.wait()
    if notice_first:
        play.notice(2, "gap_unavailable", 0, 2)
    play.deliver(2, 2, bundles[2], 0, 1)
    if not notice_first:
        play.notice(2, "gap_unavailable", 0, 2)
    assert not judge(play)


def test_a_gap_announced_later_comes_too_late(judge: Judge) -> None:
    play = Play()
    bundles = ordered(play, [0, 1, 0], sites=[0, 1])
    play.deliver(2, 2, bundles[2], 0, 1)
    play.wait()
    play.notice(2, "gap_unavailable", 0, 2)
    assert judge(play)["I1"] == 1


def test_a_gap_that_covers_too_little_breaks_i1(judge: Judge) -> None:
    play = Play()
    bundles = ordered(play, [0, 1, 0], sites=[0, 1])
    play.deliver(2, 2, bundles[2], 0, 1)
    play.notice(2, "gap_unavailable", 1, 2)
    assert judge(play)["I1"] == 1


def test_a_gap_may_lie_ahead_of_what_is_still_in_the_mailbox(judge: Judge) -> None:
    play = Play()
    bundles = ordered(play, [0, 1, 0], sites=[0, 1])
    play.notice(2, "gap_unavailable", 1, 2)
    play.wait()
    play.deliver(2, 0, bundles[0], 0, 0)
    play.deliver(2, 2, bundles[2], 0, 1)
    assert not judge(play)


def test_a_gap_may_run_ahead_of_what_others_have_delivered(judge: Judge) -> None:
    play = Play()
    a, b, c = play.submit(0), play.submit(0), play.submit(1)
    play.notice(0, "gap_unavailable", 0, 2)  # a slow reader was left behind
    play.deliver(0, 2, c, 1, 0)
    play.wait()
    for site in (1, 2):
        play.deliver(site, 0, a, 0, 0)
        play.deliver(site, 1, b, 0, 1)
        play.deliver(site, 2, c, 1, 0)
    assert not judge(play)


def test_messages_of_one_source_out_of_order_break_i1(judge: Judge) -> None:
    play = Play()
    first, second = play.submit(0), play.submit(0)
    for site in range(3):
        play.deliver(site, 0, second, 0, 0)
        play.deliver(site, 1, first, 0, 1)
    assert judge(play) == {"I1": 1}


def test_what_an_earlier_life_left_behind_may_come_after_a_later_life(judge: Judge) -> None:
    play = Play()
    old = play.submit(0)
    play.crash(0)
    play.restart(0)
    new = play.submit(0)
    for site in range(3):
        play.deliver(site, 0, new, 0, 0)
        play.deliver(site, 1, old, 0, 1)
    assert not judge(play)


def test_a_site_that_kept_its_disk_goes_on_where_it_was(judge: Judge) -> None:
    play = Play()
    ordered(play, [0, 1])
    play.crash(2)
    play.wait().restart(2)
    last = play.submit(1)
    for site in range(3):
        play.deliver(site, 2, last, 1, 1)
    assert not judge(play)


def test_a_site_that_kept_its_disk_and_begins_again_breaks_i4(judge: Judge) -> None:
    play = Play()
    bundles = ordered(play, [0, 1])
    play.crash(2)
    play.wait().restart(2)
    play.deliver(2, 0, bundles[0], 0, 0)
    assert judge(play)["I4"] == 1


def test_a_site_that_kept_its_disk_and_leaves_something_out_breaks_i1(judge: Judge) -> None:
    play = Play()
    ordered(play, [0, 1])
    play.crash(2)
    bundles = [play.submit(0), play.submit(0)]
    for site in (0, 1):
        play.deliver(site, 2, bundles[0], 0, 1)
        play.deliver(site, 3, bundles[1], 0, 2)
    play.wait().restart(2)
    play.deliver(2, 3, bundles[1], 0, 2)
    assert judge(play)["I1"] == 1


def test_a_site_that_lost_everything_may_begin_again_or_behind_a_gap(judge: Judge) -> None:
    play = Play()
    bundles = ordered(play, [0, 1, 0])
    play.crash(2, ev.NOTHING_LEFT)
    play.wait().restart(2, ev.NOTHING_LEFT)
    play.deliver(2, 0, bundles[0], 0, 0)
    play.wait().crash(2, ev.NOTHING_LEFT)
    play.wait().restart(2, ev.NOTHING_LEFT)
    play.notice(2, "gap_unavailable", 0, 2)
    play.wait()
    play.deliver(2, 2, bundles[2], 0, 1)
    assert not judge(play)


def test_a_site_that_lost_everything_is_still_held_to_the_order(judge: Judge) -> None:
    play = Play()
    bundles = ordered(play, [0, 1])
    play.crash(2, ev.NOTHING_LEFT)
    play.wait().restart(2, ev.NOTHING_LEFT)
    play.deliver(2, 0, bundles[1], 1, 0)
    play.deliver(2, 1, bundles[0], 0, 0)
    assert judge(play) == {"I1": 2}


def test_what_lies_beyond_the_horizon_is_counted_not_blamed() -> None:
    play = Play(horizon=8)
    bundles = ordered(play, [0] * 40)
    play.crash(2, ev.NOTHING_LEFT)
    play.wait().restart(2, ev.NOTHING_LEFT)
    play.deliver(2, 0, bundles[39], 0, 39)  # wrong, but nobody can tell any more
    assert play.checker.uncompared == 1
    assert not play.checker.violations
    play.deliver(2, 39, bundles[38], 0, 38)  # wrong, and still known
    play.finish()
    assert play.checker.counts["I1"]
    assert "1 older messages could not be compared" in play.checker.violations[0].detail


# -- I2: nothing committed is lost -----------------------------------------------------------


def test_a_message_that_one_site_never_gets_breaks_i2(judge: Judge) -> None:
    play = Play()
    bundles = ordered(play, [0, 1], sites=[0, 1])
    play.deliver(2, 0, bundles[0], 0, 0)
    assert judge(play) == {"I2": 1}
    assert "never delivered position 1" in play.checker.violations[0].detail


def test_a_run_that_was_cut_short_owes_nothing_yet(judge: Judge) -> None:
    play = Play()
    ordered(play, [0, 1], sites=[0, 1])
    assert not judge(play, settled=False)


def test_a_site_that_is_down_owes_nothing(judge: Judge) -> None:
    play = Play()
    play.crash(2)
    ordered(play, [0, 1], sites=[0, 1])
    assert not judge(play)


def test_a_committed_message_that_is_replaced_breaks_i1_and_i2(judge: Judge) -> None:
    play = Play()
    lost, kept = play.submit(0), play.submit(1)
    play.deliver(0, 0, lost, 0, 0)
    play.wait().crash(0)
    play.wait()
    play.deliver(1, 0, kept, 1, 0)
    play.deliver(2, 0, kept, 1, 0)
    counts = judge(play)
    assert counts["I1"] == 2
    assert counts["I2"] == 1


def test_a_committed_message_that_dies_with_its_only_holder_breaks_i2(judge: Judge) -> None:
    play = Play()
    bundle = play.submit(0)
    play.deliver(0, 0, bundle, 0, 0)
    play.wait().crash(0)
    assert judge(play) == {"I2": 2}


# -- I4: at most once, and only what was submitted -------------------------------------------


def test_a_message_delivered_twice_at_its_position_breaks_i4(judge: Judge) -> None:
    play = Play()
    bundles = ordered(play, [0])
    play.deliver(1, 0, bundles[0], 0, 0)
    assert judge(play) == {"I4": 1}


def test_equal_messages_have_a_position_each(judge: Judge) -> None:
    play = Play()
    tick = [play.submit(source, b"tick") for source in (0, 1, 0)]
    for site in range(3):
        for seq, (source, number) in enumerate([(1, 0), (0, 0), (0, 1)]):
            play.deliver(site, seq, tick[seq], source, number)
    assert not judge(play)
    for site in range(3):
        play.wait().deliver(site, 3, tick[0], 0, 2)
    assert play.checker.counts["I4"] == 1


def test_a_message_that_gets_a_second_position_breaks_i4(judge: Judge) -> None:
    play = Play()
    bundles = ordered(play, [0])
    for site in range(3):
        play.deliver(site, 1, bundles[0], 0, 1)
    assert judge(play) == {"I4": 1}
    assert "position 0 already" in play.checker.violations[0].detail


def test_a_message_that_nobody_submitted_breaks_i4(judge: Judge) -> None:
    play = Play()
    for site in range(3):
        play.deliver(site, 0, Bundle.of(message(1, 77)), 1, 0)
    assert judge(play) == {"I4": 1}


def test_altered_content_breaks_i4_and_order(judge: Judge) -> None:
    play = Play()
    bundle = play.submit(0, message(0, 0, b"pay 10"))
    altered = Bundle.of(message(0, 0, b"pay 99"))
    play.deliver(0, 0, bundle, 0, 0)
    play.deliver(1, 0, altered, 0, 0)
    play.deliver(2, 0, bundle, 0, 0)
    assert judge(play) == {"I1": 1, "I4": 1}


def test_content_altered_for_everyone_breaks_i4(judge: Judge) -> None:
    play = Play()
    play.submit(0, message(0, 0, b"pay 10"))
    play.crash(0)  # or it would miss its message too
    for site in (1, 2):
        play.deliver(site, 0, Bundle.of(message(0, 0, b"pay 99")), 0, 0)
    assert judge(play) == {"I4": 1}


def test_a_message_under_a_false_name_breaks_i4(judge: Judge) -> None:
    play = Play()
    bundle = play.submit(0)
    play.crash(0)
    for site in (1, 2):
        play.deliver(site, 0, bundle, 1, 0)
    assert judge(play) == {"I4": 1}


def test_a_number_that_is_used_twice_breaks_i4(judge: Judge) -> None:
    play = Play()
    one, two = play.submit(0), play.submit(0)
    for site in range(3):
        play.deliver(site, 0, one, 0, 0)
        play.deliver(site, 1, two, 0, 0)
    assert judge(play) == {"I4": 1}


def test_what_is_merely_stamped_promises_nothing(judge: Judge) -> None:
    play = Play()
    vanishing = play.submit(0)
    play.deliver(0, 0, vanishing, 0, 0, STAMPED)
    play.crash(0)
    play.restart(0)
    ordered(play, [1, 2])
    assert not judge(play)


# -- I5, I7: own messages --------------------------------------------------------------------


def test_an_own_message_that_never_comes_breaks_i5(judge: Judge) -> None:
    play = Play()
    play.submit(0)
    ordered(play, [1])
    assert judge(play) == {"I5": 1}
    assert "message 0 of site 0" in play.checker.violations[0].detail


def test_an_own_message_of_a_life_that_ended_may_go_either_way(judge: Judge) -> None:
    play = Play()
    play.submit(0)
    committed = play.submit(0)
    play.crash(0)
    play.wait().restart(0)
    for site in range(3):
        play.deliver(site, 0, committed, 0, 1)
    assert not judge(play)


def test_memory_that_survives_keeps_the_promise_alive(judge: Judge) -> None:
    play = Play()
    play.submit(0)
    play.crash(0, ev.MEMORY)
    play.wait().restart(0, ev.MEMORY)
    assert judge(play) == {"I5": 1}


def test_an_own_message_declared_indeterminate_is_answered(judge: Judge) -> None:
    play = Play()
    play.submit(0)
    play.notice(0, "indeterminate", 0, 1)
    assert not judge(play)


def test_indeterminate_excuses_nothing_submitted_later(judge: Judge) -> None:
    play = Play()
    play.submit(0)
    play.notice(0, "indeterminate", 0, 1)
    play.submit(0)
    assert judge(play) == {"I5": 1}


def test_indeterminate_excuses_nothing_behind_the_next_own_delivery(judge: Judge) -> None:
    play = Play()
    play.submit(0)
    known = play.submit(0)
    play.submit(0)
    play.notice(0, "indeterminate", 0, 1)
    for site in range(3):
        play.deliver(site, 0, known, 0, 1)
    assert judge(play) == {"I5": 1}
    assert "message 2 of site 0" in play.checker.violations[0].detail


def test_an_own_message_inside_an_announced_gap_is_answered(judge: Judge) -> None:
    play = Play()
    bundles = ordered(play, [0, 1], sites=[1, 2])
    play.notice(0, "gap_unavailable", 0, 1)
    play.wait()
    play.deliver(0, 1, bundles[1], 1, 0)
    assert not judge(play)


def test_an_own_message_given_back_is_answered(judge: Judge) -> None:
    play = Play()
    bundle = play.submit(0)
    play.notice(0, "undelivered", bundle)
    assert not judge(play)


def test_what_is_pending_when_the_network_heals_must_commit_in_time(judge: Judge) -> None:
    play = Play(liveness_ns=10 * MS)
    bundle = play.submit(0)
    play.wait(50 * MS).heal()
    play.wait(10 * MS + 1)
    for site in range(3):
        play.deliver(site, 0, bundle, 0, 0)
    assert judge(play) == {"I7": 1}


def test_time_before_healing_does_not_count(judge: Judge) -> None:
    play = Play(liveness_ns=10 * MS)
    bundle = play.submit(0)
    play.wait(500 * MS).heal()
    play.wait(10 * MS)
    for site in range(3):
        play.deliver(site, 0, bundle, 0, 0)
    assert not judge(play)


def test_a_message_submitted_after_healing_has_the_same_time(judge: Judge) -> None:
    play = Play(liveness_ns=10 * MS)
    play.heal()
    play.wait(500 * MS)
    bundle = play.submit(0)
    play.wait(11 * MS)
    for site in range(3):
        play.deliver(site, 0, bundle, 0, 0)
    assert judge(play) == {"I7": 1}


def test_a_message_that_never_commits_breaks_i7(judge: Judge) -> None:
    play = Play(liveness_ns=10 * MS)
    play.submit(0)
    play.submit(0)
    play.heal()
    play.wait(20 * MS)
    assert judge(play) == {"I7": 1}
    assert "nor were 1 more" in play.checker.violations[0].detail


# -- I6: caps --------------------------------------------------------------------------------


def test_a_buffer_over_its_cap_breaks_i6() -> None:
    checker = Checker(range(3))
    checker.sampled(5, 1, {"qb": 8, "log": 3}, {"qb": 8})
    assert not checker.violations
    checker.sampled(6, 1, {"qb": 9}, {"qb": 8, "log": 1})
    assert checker.violations == [Violation("I6", 1, 6, "qb holds 9, its cap is 8")]
    assert checker.peaks == {"qb": 9, "log": 3}


# -- the checker itself ----------------------------------------------------------------------


def test_a_flood_of_violations_is_counted_but_not_kept() -> None:
    checker = Checker(range(2), limit=3)
    for time in range(10):
        checker.sampled(time, 0, {"qb": 2}, {"qb": 1})
    assert len(checker.violations) == 3
    assert checker.counts["I6"] == 10


def test_a_violation_reads_as_a_sentence() -> None:
    assert str(Violation("I6", 1, 1_500_000, "full")) == "I6 at site 1, 1.500 ms: full"
    assert str(Violation("I2", -1, 0, "lost")) == "I2 at 0.000 ms: lost"


@pytest.mark.parametrize(
    "wrong", [{"order": "causal"}, {"horizon": 0}, {"destinations": lambda message: {0}}]
)
def test_wrong_parameters_are_refused_by_name(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        Checker(range(3), **wrong)  # type: ignore[arg-type]


def test_memory_does_not_grow_with_the_run() -> None:
    play = Play(horizon=64)
    numbers = [0, 0, 0]
    for seq in range(2000):
        source = seq % 3
        bundle = play.submit(source)
        for site in range(3):
            play.deliver(site, seq, bundle, source, numbers[source])
        numbers[source] += 1
        play.rows.clear()
    log: Any = play.checker._log
    assert len(log.fingerprints) < 128
    assert not log.waiting
    assert all(not own.open for own in play.checker._promises.own.values())
    assert not play.finish()


def test_an_absurd_position_costs_no_memory() -> None:
    play = Play(horizon=64)
    bundles = ordered(play, [0, 1])
    play.deliver(0, 1 << 50, play.submit(0), 0, 1)
    log: Any = play.checker._log
    assert len(log.fingerprints) < 128
    play.wait()
    play.deliver(1, 1, bundles[1], 1, 0)
    play.deliver(0, -1, bundles[0], 0, 0)
    counts = play.finish()
    assert counts["I1"] == 1  # the jump
    assert counts["I4"] == 2  # again, and again
    assert counts["I2"] == 2  # sites 1 and 2 never got there


def test_a_gap_beyond_the_horizon_excuses_what_nobody_can_look_up() -> None:
    play = Play(horizon=4)
    mine = play.submit(0)
    for site in (1, 2):
        play.deliver(site, 0, mine, 0, 0)
    for seq in range(1, 20):
        bundle = play.submit(1)
        for site in (1, 2):
            play.deliver(site, seq, bundle, 1, seq - 1)
    play.notice(0, "gap_unavailable", 0, 20)
    assert not play.finish()
