"""Planted faults in groups without a common order, and with destination sets (I8)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from roundelay.core import events as ev
from roundelay.core.bundle import Bundle
from roundelay.core.engine import ACCEPTED, ACKNOWLEDGED, Delivery
from roundelay.trace import Recorder, check_trace
from roundelay.trace.checkers.promises import Submission
from tests.trace.conftest import Judge
from tests.trace.play import MS, Play, message

Deliver = Callable[[Play, int, Bundle, int, int], None]


def deliver(play: Play, site: int, bundle: Bundle, source: int, number: int) -> None:
    play.deliver(site, -1, bundle, source, number, ACCEPTED)


def to_all(play: Play, bundle: Bundle, source: int, number: int) -> None:
    for site in range(play.sites):
        deliver(play, site, bundle, source, number)


@pytest.mark.parametrize("order", ["fifo", "none"])
def test_sites_may_disagree_about_messages_of_different_sources(judge: Judge, order: str) -> None:
    play = Play(order=order)
    a, b = play.submit(0), play.submit(1)
    for site, bundles in ((0, (a, b)), (1, (b, a)), (2, (a, b))):
        for bundle in bundles:
            deliver(play, site, bundle, 0 if bundle is a else 1, 0)
    assert not judge(play)
    assert play.checker.committed == play.checker.everywhere == 2


@pytest.mark.parametrize("order, broken", [("fifo", {"I1": 1}), ("none", {})])
def test_messages_of_one_source_keep_their_order_only_in_fifo(
    judge: Judge, order: str, broken: dict[str, int]
) -> None:
    play = Play(order=order)
    a, b = play.submit(0), play.submit(0)
    for site in (0, 1):
        deliver(play, site, a, 0, 0)
        deliver(play, site, b, 0, 1)
    deliver(play, 2, b, 0, 1)
    deliver(play, 2, a, 0, 0)
    assert judge(play) == broken


def test_a_second_delivery_breaks_i4(judge: Judge) -> None:
    play = Play(order="none")
    bundle = play.submit(0)
    to_all(play, bundle, 0, 0)
    deliver(play, 1, bundle, 0, 0)
    assert judge(play) == {"I4": 1}


def test_equal_messages_are_delivered_once_each(judge: Judge) -> None:
    play = Play(order="fifo")
    tick = [play.submit(0, b"tick") for _ in range(3)]
    deliver(play, 0, tick[0], 0, 0)
    for number in range(3):
        for site in (1, 2):
            deliver(play, site, tick[number], 0, number)
    for number in (1, 2):
        deliver(play, 0, tick[number], 0, number)
    to_all(play, play.submit(0, b"tick"), 0, 3)
    assert not judge(play)
    deliver(play, 1, tick[0], 0, 0)
    assert play.checker.counts["I4"] == 1


def test_equal_messages_are_forgotten_like_all_others() -> None:
    play = Play(order="none", horizon=4)
    for number in range(20):
        to_all(play, play.submit(0, b"tick"), 0, number)
        to_all(play, play.submit(0), 0, number)
    assert not play.finish()
    log: Any = play.checker._log
    assert len(log.messages) <= 6


def test_a_second_delivery_long_after_breaks_i4_too() -> None:
    play = Play(order="none", horizon=4)
    bundle = play.submit(0)
    to_all(play, bundle, 0, 0)
    for number in range(1, 10):
        to_all(play, play.submit(0), 0, number)
    deliver(play, 1, bundle, 0, 0)
    assert play.finish() == {"I4": 1}
    log: Any = play.checker._log
    assert len(log.messages) <= 5


def test_a_message_that_nobody_submitted_breaks_i4(judge: Judge) -> None:
    play = Play(order="fifo")
    deliver(play, 0, Bundle.of(message(1, 0)), 1, 0)
    assert judge(play) == {"I4": 1}


def test_altered_content_breaks_i4_and_leaves_something_owed(judge: Judge) -> None:
    play = Play(order="fifo")
    bundle = play.submit(0, message(0, 0, b"yes"))
    for site in (0, 1):
        deliver(play, site, bundle, 0, 0)
    deliver(play, 2, Bundle.of(message(0, 0, b"no!")), 0, 0)
    assert judge(play) == {"I2": 1, "I4": 1}


def test_a_false_name_breaks_i4(judge: Judge) -> None:
    play = Play(order="none")
    bundle = play.submit(0)
    deliver(play, 0, bundle, 0, 0)
    deliver(play, 1, bundle, 2, 0)
    deliver(play, 2, bundle, 0, 0)
    assert judge(play) == {"I4": 1}


def test_a_message_that_one_site_never_gets_breaks_i2(judge: Judge) -> None:
    play = Play(order="none")
    bundle = play.submit(0)
    for site in (0, 1):
        deliver(play, site, bundle, 0, 0)
    assert judge(play) == {"I2": 1}
    assert play.checker.everywhere == 0


def test_a_site_that_was_given_up_is_owed_nothing_until_healing(judge: Judge) -> None:
    play = Play(order="none")
    for number in (0, 1):
        bundle = play.submit(0)
        deliver(play, 0, bundle, 0, number)
        deliver(play, 1, bundle, 0, number)
        play.notice(0, "suspect", 2)
    play.wait().heal()
    bundle = play.submit(0)
    for site in (0, 1):
        deliver(play, site, bundle, 0, 2)
    assert judge(play) == {"I2": 1}
    assert "message 2 of site 0" in play.checker.violations[0].detail


@pytest.mark.parametrize("who", [0, 2])
def test_a_crash_of_source_or_receiver_ends_what_is_owed(judge: Judge, who: int) -> None:
    play = Play(order="none")
    bundle = play.submit(0)
    for site in (0, 1):
        deliver(play, site, bundle, 0, 0)
    play.crash(who)
    play.wait().restart(who)
    assert not judge(play)


def test_a_crash_that_keeps_memory_ends_nothing(judge: Judge) -> None:
    play = Play(order="none")
    bundle = play.submit(0)
    for site in (0, 1):
        deliver(play, site, bundle, 0, 0)
    play.crash(2, ev.MEMORY)
    play.wait().restart(2, ev.MEMORY)
    assert judge(play) == {"I2": 1}


@pytest.mark.parametrize(
    "keeps, durable, broken",
    [
        (ev.NOTHING_LEFT, True, {}),
        (ev.DISK, False, {}),
        (ev.DISK, True, {"I4": 1}),
        (ev.MEMORY, False, {"I4": 1}),
    ],
)
def test_who_forgets_may_be_handed_a_message_again(
    keeps: str, durable: bool, broken: dict[str, int]
) -> None:
    play = Play(order="fifo", durable=durable)
    first, second = play.submit(0), play.submit(0)
    to_all(play, first, 0, 0)
    to_all(play, second, 0, 1)
    play.crash(2, keeps)
    play.wait().restart(2, keeps)
    deliver(play, 2, first, 0, 0)
    assert play.finish() == broken


def test_an_own_message_that_never_comes_breaks_i5(judge: Judge) -> None:
    play = Play(order="none")
    play.submit(1)
    assert judge(play) == {"I5": 1}


def test_views_and_gaps_mean_nothing_without_a_common_order(judge: Judge) -> None:
    play = Play(order="none")
    play.notice(0, "view", (1, 0), (0,), 0, 0)
    play.notice(0, "gap_unavailable", 0, 9)
    play.notice(0, "blocked", "no majority")
    assert not judge(play)


def test_a_run_that_was_cut_short_owes_nothing_yet(judge: Judge) -> None:
    play = Play(order="none")
    deliver(play, 0, play.submit(0), 0, 0)
    assert not judge(play, settled=False)


# -- I8: destination sets --------------------------------------------------------------------


def next_site_only(sites: int, submission: Submission) -> set[int]:
    return {(submission.site + 1) % sites}


@pytest.fixture
def selective() -> Play:
    return Play(order="fifo", destinations=partial(next_site_only, 3))


def test_a_message_for_some_is_delivered_to_these(selective: Play, judge: Judge) -> None:
    for source in range(3):
        bundle = selective.submit(source)
        deliver(selective, (source + 1) % 3, bundle, source, 0)
    assert not judge(selective)


def test_a_message_for_somebody_else_breaks_i8(selective: Play, judge: Judge) -> None:
    bundle = selective.submit(0)
    deliver(selective, 1, bundle, 0, 0)
    deliver(selective, 2, bundle, 0, 0)
    assert judge(selective) == {"I8": 1}


def test_a_destination_left_out_breaks_i8(judge: Judge) -> None:
    play = Play(order="fifo", destinations=lambda submission: {0, 1})
    bundle = play.submit(0)
    deliver(play, 0, bundle, 0, 0)
    assert judge(play) == {"I8": 1}


def test_a_trace_file_says_whom_a_message_is_for(tmp_path: Path) -> None:
    """SPO: the SUBMIT row has the destinations, so a file can be judged by itself (I8)."""
    bundle = Bundle.of(b"for 1 and 2")
    rows: list[ev.Row] = [(0, 0, ev.SUBMIT, 0, -1, ev.Addressed(bundle, (1, 2)))]
    for site in (1, 2):
        delivery = Delivery(-1, 0, 0, bundle, ACKNOWLEDGED)
        rows.append((MS, site, ev.DELIVER, -1, 0, delivery))
    end: ev.Row = (2 * MS, -1, ev.MARK, -1, -1, ev.END)
    stray: ev.Row = (MS, 3, ev.DELIVER, -1, 0, Delivery(-1, 0, 0, bundle, ACKNOWLEDGED))

    def judged(*told: ev.Row) -> list[str]:
        path = tmp_path / "trace.parquet"
        with Recorder(path, params={"sites": 4, "order": "fifo"}) as recorder:
            recorder.rows.extend(told)
        return [f"{v.invariant} at {v.site}" for v in check_trace(path).violations]

    assert judged(*rows, end) == []
    assert judged(*rows, stray, end) == ["I8 at 3"]
    assert judged(*rows[:2], end) == ["I8 at 2"]
