"""Receiving: reassembly, order, at most once, acknowledgements (AR-13 to AR-15)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roundelay.core.autorm import reassembly
from roundelay.core.autorm.beamon import Beamon
from roundelay.core.autorm.config import FRAGMENT_LEAST
from roundelay.core.autorm.packets import (
    CONFIRMATION,
    ONE_OF,
    SEQ_MAX,
    Acknowledgement,
    following,
    later,
)
from roundelay.core.autorm.reassembly import OWED_MAX, SCOPES_MAX, Gaps
from roundelay.core.engine import MS, SECOND
from tests.core.beamons import G, data, delivered, heartbeat, node, run, sent, uuid


def member(*groups: str, **fields: object) -> Beamon:
    one = node(**fields)  # type: ignore[arg-type]
    for group in groups or (G,):
        one.join(group, 0)
    return one


def answers(one: Beamon, now: int) -> list[Acknowledgement]:
    """What it acknowledges now."""
    one.on_timer(now)
    return sent(one, Acknowledgement)


def payloads(one: Beamon) -> list[bytes]:
    return [delivery.data for delivery in delivered(one)]


# -- AR-13 -----------------------------------------------------------------------------------


def test_ar_13_a_group_that_is_not_joined_is_ignored() -> None:
    one = member("other")
    one.receive(data(1), 0, 0)
    assert not delivered(one)
    assert not answers(one, MS)


def test_ar_13_a_packet_for_another_node_is_ignored() -> None:
    one = member()
    one.receive(data(1, to=uuid(5)), 0, 0)
    assert not delivered(one)
    assert not answers(one, MS)


def test_ar_13_what_is_sent_to_a_node_that_has_left_is_acknowledged_and_thrown_away() -> None:
    one = member("other")
    one.receive(data(1, 7, 9, 10, to=uuid(0)), 0, 0)
    assert not delivered(one)
    assert answers(one, MS) == [Acknowledgement(uuid(0), uuid(1), 7, 9, ())]
    one.receive(data(1, 7, 9, 10, to=uuid(0), flags=0), 0, 2 * MS)
    assert not answers(one, 3 * MS)


def test_ar_13_leaving_in_the_middle_of_a_message_forgets_its_parts() -> None:
    one = member()
    one.receive(data(1, 1, 0, 2), 0, 0)
    one.leave(G, 0)
    assert one.usage()["reassembly_total"] == 0
    one.receive(data(1, 1, 1, 2, to=uuid(0)), 0, MS)
    assert [answer.missing for answer in answers(one, 2 * MS)] == [()]
    assert not delivered(one)


def test_ar_13_leaving_another_group_forgets_nothing() -> None:
    one = member(G, "other")
    one.receive(data(1, 1, 0, 2), 0, 0)
    one.leave("other", 0)
    one.receive(data(1, 1, 1, 2, b"y"), 0, MS)
    assert payloads(one) == [b"xy"]


# -- AR-14 -----------------------------------------------------------------------------------


@given(st.permutations(range(7)), st.lists(st.integers(0, 6), max_size=9))
def test_ar_14_a_message_is_whole_in_whatever_order_and_number_its_packets_come(
    order: list[int], again: list[int]
) -> None:
    one = member()
    for number in [*order[:4], *again[:4], *order[4:], *again[4:]]:
        one.receive(data(1, 1, number, 7, b"%d" % number * 3), 0, 0)
    assert payloads(one) == [b"000111222333444555666"]
    assert one.usage()["reassembly_total"] == 0


def test_ar_14_a_message_is_delivered_once() -> None:
    one = member()
    for _ in range(3):
        one.receive(data(1, 5), 0, 0)
    assert payloads(one) == [b"x"]
    one.receive(data(1, 4), 0, 0)
    assert not delivered(one)
    one.receive(data(1, 6, payload=b"y"), 0, 0)
    assert payloads(one) == [b"y"]


def test_ar_14_a_newer_message_replaces_an_incomplete_one() -> None:
    one = member()
    one.receive(data(1, 1, 0, 2), 0, 0)
    one.receive(data(1, 2, 0, 2, b"a"), 0, 0)
    one.receive(data(1, 1, 1, 2), 0, 0)  # late: given up
    one.receive(data(1, 2, 1, 2, b"b"), 0, 0)
    assert payloads(one) == [b"ab"]


def test_ar_14_senders_do_not_disturb_each_other() -> None:
    one = member()
    one.receive(data(1, 1, 0, 2, b"a"), 0, 0)
    one.receive(data(2, 9, 0, 2, b"c"), 0, 0)
    one.receive(data(1, 1, 1, 2, b"b"), 0, 0)
    one.receive(data(2, 9, 1, 2, b"d"), 0, 0)
    assert payloads(one) == [b"ab", b"cd"]


@pytest.mark.parametrize("scope, got", [("node", [b"b2"]), ("group", [b"b2", b"a1"])])
def test_ar_14_order_holds_across_groups_or_in_each(scope: str, got: Any) -> None:
    one = member("a", "b", serial_scope=scope)
    one.receive(data(1, 1, 0, 2, b"a", group="a"), 0, 0)
    one.receive(data(1, 2, 0, 1, b"b2", group="b"), 0, 0)
    one.receive(data(1, 1, 1, 2, b"1", group="a"), 0, 0)
    assert payloads(one) == got


def test_ar_14_an_idle_reassembly_dies_after_the_stale_time() -> None:
    one = member()
    one.receive(data(1, 1, 0, 3), 0, 0)
    for now in range(0, 5 * SECOND, 100 * MS):
        one.receive(heartbeat(1), 0, now)  # its sender lives
        run(one, now)
        if now <= 2 * SECOND:
            assert one.usage()["reassembly_total"]
    assert one.usage()["reassembly_total"] == 0


def test_ar_14_a_repeated_part_keeps_a_reassembly_alive() -> None:
    one = member()
    for now in range(0, 8 * SECOND, 500 * MS):
        one.receive(data(1, 1, 0, 2), 0, now)
        run(one, now)
    one.receive(data(1, 1, 1, 2, b"y"), 0, 8 * SECOND)
    assert payloads(one) == [b"xy"]


def test_ar_14_a_sender_back_from_the_dead_delivers_nothing_twice() -> None:
    """Its acknowledgement was lost, it slept, and repeats the message when it wakes."""
    one = member()
    one.receive(data(1, 3), 0, 0)
    assert payloads(one) == [b"x"]
    run(one, 10 * SECOND)
    assert uuid(1) not in one.environment.nodes
    one.receive(data(1, 3, to=uuid(0)), 0, 10 * SECOND)
    assert not delivered(one)
    assert [answer.highest for answer in answers(one, 10 * SECOND)] == [0]


def test_ar_14_a_message_to_one_application_says_so() -> None:
    one = member()
    one.receive(data(1, to=uuid(0), flags=ONE_OF | CONFIRMATION), 0, 0)
    (delivery,) = delivered(one)
    assert delivery.one_of
    assert delivery.uuid == uuid(1)
    assert delivery.tag == -1


def test_ar_14_order_goes_on_where_sequence_numbers_start_over() -> None:
    one = member()
    for k, seq in enumerate((SEQ_MAX - 1, SEQ_MAX, 1, 2, SEQ_MAX, 1)):
        one.receive(data(1, seq, payload=b"%d" % k), 0, 0)
    assert payloads(one) == [b"0", b"1", b"2", b"3"]


@given(st.integers(1, SEQ_MAX), st.integers(1, 1000))
def test_a_later_number_stays_later_until_half_of_all_have_passed(seq: int, steps: Any) -> None:
    ahead = seq
    for _ in range(steps % 50 + 1):
        ahead = following(ahead)
    assert later(ahead, seq)
    assert not later(seq, ahead)
    assert not later(seq, seq)


def test_the_memory_of_senders_is_bounded_and_keeps_the_latest() -> None:
    one = member(sources_max=2)
    for k, seq in ((1, 1), (2, 1), (1, 2), (3, 1)):
        one.receive(data(k, seq), 0, 0)
    assert set(one.inbound.done) == {uuid(1), uuid(3)}
    assert len(delivered(one)) == 4
    one.receive(data(1, 2), 0, 0)
    assert not delivered(one)


def test_the_memory_of_groups_of_a_sender_is_bounded() -> None:
    one = member(serial_scope="group", mtu=9000)
    for k in range(SCOPES_MAX + 10):
        one.join(f"g{k}", 0)
        one.receive(data(1, k + 1, group=f"g{k}"), 0, 0)
        one.leave(f"g{k}", 0)
    assert len(one.inbound.done[uuid(1)]) == SCOPES_MAX


# -- AR-15 -----------------------------------------------------------------------------------


def test_ar_15_only_a_packet_with_confirmation_is_answered() -> None:
    one = member()
    one.receive(data(1, flags=0), 0, 0)
    assert not answers(one, MS)
    one.receive(data(1), 0, MS)
    assert answers(one, 2 * MS) == [Acknowledgement(uuid(0), uuid(1), 1, 0, ())]


def test_ar_15_the_answer_tells_what_is_missing_up_to_the_last_received() -> None:
    one = member()
    for number in (0, 2, 6):
        one.receive(data(1, 4, number, 10), 0, 0)
    (answer,) = answers(one, MS)
    assert (answer.seq, answer.highest, answer.missing) == (4, 6, (1, 3, 4, 5))


def test_ar_15_an_answer_waits_a_random_while_and_tells_what_is_true_then() -> None:
    one = member(ack_jitter_ns=10 * MS)
    one.receive(data(1, 1, 3, 4), 0, 0)
    one.receive(data(1, 1, 0, 4, flags=0), 0, 0)
    due = one.inbound.ack_due
    assert 0 <= due < 10 * MS
    one.receive(data(1, 1, 3, 4), 0, due - 1)  # asked again meanwhile: one answer for both
    log = [packet for _, packet in run(one, 20 * MS) if isinstance(packet, Acknowledgement)]
    assert [packet.missing for packet in log] == [(1, 2)]


def test_ar_15_answers_are_spread_over_the_jitter() -> None:
    due = []
    for seed in range(50):
        one = member(ack_jitter_ns=10 * MS, seed=seed)
        one.receive(data(1), 0, 0)
        due.append(one.inbound.ack_due)
    assert min(due) < 2 * MS
    assert max(due) > 8 * MS
    assert max(due) < 10 * MS


def test_ar_15_answers_to_several_senders_each_have_their_time() -> None:
    one = member(ack_jitter_ns=50 * MS)
    for k in (1, 2, 3, 4):
        one.receive(data(k), 0, 0)
    log = [
        (now, packet.destination)
        for now, packet in run(one, 60 * MS)
        if isinstance(packet, Acknowledgement)
    ]
    assert {to for _, to in log} == {uuid(1), uuid(2), uuid(3), uuid(4)}
    assert len({now for now, _ in log}) == 4


def test_ar_15_a_message_that_is_done_is_acknowledged_again_and_not_delivered() -> None:
    one = member()
    one.receive(data(1, 5, 0, 2), 0, 0)
    one.receive(data(1, 5, 1, 2), 0, 0)
    assert len(answers(one, 0)) == 1
    one.receive(data(1, 5, 1, 2, to=uuid(0)), 0, SECOND)
    assert answers(one, SECOND) == [Acknowledgement(uuid(0), uuid(1), 5, 1, ())]
    assert not delivered(one)


def test_ar_15_a_message_that_was_given_up_is_not_acknowledged() -> None:
    one = member()
    one.receive(data(1, 5, 0, 2, flags=0), 0, 0)
    one.receive(data(1, 4, 0, 2), 0, 0)
    assert not answers(one, MS)


def test_ar_t9_a_list_that_does_not_fit_the_mtu_is_cut() -> None:
    """AR-T9: as many as fit, and `highest` is the last of them."""
    one = member()
    one.receive(data(1, 1, 1000, 2000), 0, 0)
    (answer,) = answers(one, 0)
    fits = (1500 - 28 - 43) // 4
    assert answer.missing == tuple(range(fits))
    assert answer.highest == fits - 1
    for number in range(fits):
        one.receive(data(1, 1, number, 2000, flags=CONFIRMATION if number == 9 else 0), 0, MS)
    (answer,) = answers(one, MS)
    assert answer.missing == tuple(range(fits, 2 * fits))
    for number in range(fits, 1000):
        if number != 777:
            one.receive(data(1, 1, number, 2000), 0, 2 * MS)
    (answer,) = answers(one, 2 * MS)
    assert (answer.missing, answer.highest) == ((777,), 1000)


def test_ar_15_no_more_answers_wait_than_may() -> None:
    one = member("other")
    for seq in range(1, OWED_MAX + 2):
        one.receive(data(1, seq, to=uuid(0)), 0, 0)
    assert one.drops == {"too many acknowledgements": 1}
    assert len(answers(one, 0)) == OWED_MAX


# -- bounds and nonsense ---------------------------------------------------------------------


def test_a_message_of_too_many_packets_is_refused_before_anything_is_kept() -> None:
    one = member(max_message=10_000)
    one.receive(data(1, 1, 0, 10_000 // FRAGMENT_LEAST + 2), 0, 0)
    assert one.drops == {reassembly.TOO_LARGE: 1}
    assert not answers(one, MS)
    assert one.usage()["reassembly_total"] == 0


def test_a_message_of_too_many_bytes_is_refused() -> None:
    one = member(max_message=1000)
    one.receive(data(1, 1, 0, 1, bytes(1001)), 0, 0)
    for number in range(3):
        one.receive(data(1, 2, number, 4, bytes(400)), 0, 0)
    assert one.drops == {reassembly.TOO_LARGE: 2}
    assert not delivered(one)


def test_parts_of_one_sender_stay_within_their_bound() -> None:
    one = member(
        "a", "b", serial_scope="group", max_message=1000, reassembly_peer=1300,
        reassembly_total=2100,
    )  # fmt: skip
    one.receive(data(1, 1, 0, 2, bytes(900), group="a"), 0, 0)
    one.receive(data(1, 2, 0, 2, bytes(900), group="b"), 0, 0)
    assert one.drops == {reassembly.NO_ROOM: 1}
    one.receive(data(2, 1, 0, 2, bytes(900), group="a"), 0, 0)
    one.receive(data(3, 1, 0, 2, bytes(900), group="a"), 0, 0)
    assert one.drops == {reassembly.NO_ROOM: 2}
    one.receive(data(1, 1, 1, 2, bytes(100), group="a"), 0, 0)
    assert len(delivered(one)) == 1
    one.receive(data(1, 2, 0, 2, bytes(900), group="b"), 0, 0)
    assert one.drops == {reassembly.NO_ROOM: 2}


def test_a_finished_message_frees_its_room_and_no_other() -> None:
    one = member("a", "b", serial_scope="group")
    one.receive(data(1, 1, 0, 2, bytes(900), group="a"), 0, 0)
    one.receive(data(1, 2, 0, 2, bytes(800), group="b"), 0, 0)
    one.receive(data(1, 1, 1, 2, bytes(10), group="a"), 0, 0)
    assert one.usage()["reassembly_peer"] == one.usage()["reassembly_total"] == 800
    one.leave("b", 0)
    assert one.usage()["reassembly_peer"] == one.usage()["reassembly_total"] == 0


def test_empty_parts_are_not_free() -> None:
    one = member(max_message=1000)
    assert one.config.reassembly_peer > 1_000_000
    for number in range(4):
        one.receive(data(1, 1, number, 5, b""), 0, 0)
    assert one.usage()["reassembly_peer"] == 4 * FRAGMENT_LEAST


def test_what_does_not_fit_is_not_acknowledged_so_that_its_sender_repeats_it() -> None:
    one = member(max_message=1000, reassembly_peer=1300, reassembly_total=1300)
    one.receive(data(2, 1, 0, 2, bytes(900)), 0, 0)
    answers(one, 0)
    one.receive(data(1, 1, 0, 2, bytes(900)), 0, 0)
    assert not answers(one, 0)
    one.receive(data(2, 1, 1, 2), 0, MS)
    one.receive(data(1, 1, 0, 2, bytes(900)), 0, 2 * MS)
    assert uuid(1) in {answer.destination for answer in answers(one, 2 * MS)}


@pytest.mark.parametrize("other", [data(1, 1, 1, 3), data(1, 1, 0, 1), data(1, 1, 1, 2, group="b")])
def test_packets_that_contradict_each_other_are_refused(other: Any) -> None:
    one = member(G, "b")
    one.receive(data(1, 1, 0, 2), 0, 0)
    one.receive(other, 0, 0)
    assert one.drops == {reassembly.CONTRADICTION: 1}
    one.receive(data(1, 1, 1, 2, b"y"), 0, 0)
    assert payloads(one) == [b"xy"]


@pytest.mark.parametrize("number, count", [(1, 1), (5, 2), (0, 0), (-1, 3)])
def test_a_number_outside_its_message_is_refused(number: int, count: int) -> None:
    one = member()
    one.receive(data(1, 1, number, count), 0, 0)
    assert one.drops == {"packet number outside its message": 1}


@given(st.permutations(range(24)), st.integers(1, 24), st.integers(0, 30))
def test_gaps_are_what_is_missing(order: Any, many: int, most: int) -> None:
    """Against a set."""
    gaps = Gaps()
    here: set[int] = set()
    for number in order[:many]:
        gaps.arrived(number)
        here.add(number)
        missing = [k for k in range(max(here)) if k not in here]
        assert gaps.highest == max(here)
        assert list(gaps.missing(most)) == missing[:most]
        assert len(gaps.starts) <= len(here)


def test_a_gap_of_four_billion_costs_nothing() -> None:
    gaps = Gaps()
    gaps.arrived((1 << 32) - 1)
    assert gaps.missing(3) == (0, 1, 2)
    assert len(gaps.starts) == 1
