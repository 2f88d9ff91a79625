"""Sending: targets, packets, rounds, drops, queues (AR-6 to AR-12)."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import pytest

from roundelay.core.autorm.beamon import AutoRmDelivery, Beamon
from roundelay.core.autorm.packets import (
    CONFIRMATION,
    ONE_OF,
    SEQ_MAX,
    ZERO,
    Acknowledgement,
    Data,
    Heartbeat,
    Packet,
)
from roundelay.core.engine import MS, SECOND
from roundelay.core.errors import PayloadTooLarge, QueueFull
from roundelay.core.notices import notice
from tests.core.beamons import (
    G,
    ack,
    delivered,
    heartbeat,
    node,
    notices,
    run,
    sent,
    until_quiet,
    uuid,
)
from tests.core.sends import packets_of

SIZE = 1500 - 28 - 47 - len(G)
"""Bytes of a message in one packet."""


def among(*others: int, groups: tuple[str, ...] = (G,), **fields: Any) -> Beamon:
    """A node that knows others, all in `groups`."""
    one = node(**fields)
    for k in others:
        one.receive(heartbeat(k, 1 + len(others), groups), 0, 0)
    one.take()
    return one


def numbers(packets: list[Data]) -> list[int]:
    return [packet.number for packet in packets]


def asking(packets: list[Data]) -> list[int]:
    return [packet.number for packet in packets if packet.flags & CONFIRMATION]


def data_of(log: list[tuple[int, Packet]]) -> list[tuple[int, Data]]:
    return [(now, packet) for now, packet in log if isinstance(packet, Data)]


# -- AR-6 ------------------------------------------------------------------------------------


def test_ar_6_a_message_to_everyone_is_addressed_to_the_group() -> None:
    one = among(1, 2)
    one.send_everyone(G, b"hello", MS)
    (packet,) = sent(one, Data)
    assert packet == Data(uuid(0), ZERO, 1, 1, 0, CONFIRMATION, G, b"hello")
    assert one.by_seq[1].targets.keys() == {uuid(1), uuid(2)}


def test_ar_6_targets_are_the_nodes_that_declare_the_group_now() -> None:
    one = among(1)
    one.receive(heartbeat(2, 3, ("other",)), 0, 0)
    one.send_everyone(G, b"", 0)
    assert one.by_seq[1].targets.keys() == {uuid(1)}


def test_ar_6_without_targets_a_message_is_delivered_here_only() -> None:
    one = among()
    one.join(G, 0)
    one.send_everyone(G, b"to myself", 0, tag=4)
    out = one.take()
    assert not [packet for packet in packets_of(out) if isinstance(packet, Data)]
    (delivery,) = out.deliveries
    assert isinstance(delivery, AutoRmDelivery)
    assert (delivery.group, delivery.uuid, delivery.data) == (G, uuid(0), b"to myself")
    assert (delivery.one_of, delivery.tag, delivery.number) == (False, 4, 1)
    assert out.notices == [notice("sent", 4, (), ())]
    assert one.idle


def test_ar_6_a_sender_that_is_not_in_the_group_does_not_get_its_message() -> None:
    one = among(1)
    one.send_everyone(G, b"x", 0)
    assert not delivered(one)


def test_ar_6_someone_is_one_of_the_declaring_nodes_and_asked_to_choose_one() -> None:
    one = among(1, 2, 3)
    one.send_someone(G, b"x", 0)
    (packet,) = sent(one, Data)
    assert packet.flags == ONE_OF | CONFIRMATION
    assert packet.destination in (uuid(1), uuid(2), uuid(3))


def test_ar_t4_someone_is_chosen_uniformly() -> None:
    """AR-T4: χ² with 4 degrees of freedom stays below its 99.9 % quantile, 18.5."""
    one = among(1, 2, 3, 4, groups=(G,))
    one.join(G, 0, local=2)
    counts: Counter[bytes] = Counter()
    rounds = 5000
    now = 0
    for _ in range(rounds):
        now += 10 * MS
        one.send_someone(G, b"x", now, sender_joined=True)
        out = one.take()
        if out.deliveries:
            counts[uuid(0)] += 1
            continue
        (packet,) = (packet for packet in packets_of(out) if isinstance(packet, Data))
        counts[packet.destination] += 1
        one.receive(Acknowledgement(packet.destination, uuid(0), packet.seq, 0, ()), 0, now)
    assert len(counts) == 5
    expected = rounds / 5
    assert sum((count - expected) ** 2 / expected for count in counts.values()) < 18.5


@pytest.mark.parametrize(
    "local, sender_joined, candidate",
    [(0, False, False), (1, True, False), (1, False, True), (2, True, True)],
)
def test_ar_6_the_own_node_is_a_candidate_if_it_has_another_member(
    local: int, sender_joined: bool, candidate: bool
) -> None:
    one = node()
    if local:
        one.join(G, 0, local=local)
    one.send_someone(G, b"x", 0, tag=7, sender_joined=sender_joined)
    out = one.take()
    assert [
        isinstance(delivery, AutoRmDelivery) and delivery.one_of for delivery in out.deliveries
    ] == [True] * candidate
    reached = (uuid(0),) if candidate else ()
    assert out.notices[-1] == notice("sent", 7, reached, ())


def test_ar_6_own_messages_are_delivered_here_in_the_order_of_sending() -> None:
    """AR-F3: also those that wait for their turn."""
    one = among(1)
    one.join(G, 0)
    for k in range(5):
        one.send_everyone(G, b"%d" % k, 0)
    got = [delivery.data for delivery in delivered(one)]
    for seq in range(1, 6):
        one.receive(ack(1, seq, 0), 0, seq * MS)
        got += [delivery.data for delivery in delivered(one)]
    assert got == [b"0", b"1", b"2", b"3", b"4"]


# -- AR-7 ------------------------------------------------------------------------------------


def test_ar_7_one_message_is_under_way_at_a_time_whatever_the_group() -> None:
    one = among(1, groups=("a", "b"))
    one.send_everyone("a", b"1", 0)
    one.send_everyone("b", b"2", 0)
    assert [packet.payload for packet in sent(one, Data)] == [b"1"]
    one.receive(ack(1, 1, 0), 0, MS)
    assert [packet.payload for packet in sent(one, Data)] == [b"2"]
    one.receive(ack(1, 2, 0), 0, 2 * MS)
    assert one.idle
    assert one.queued_bytes == 0


def test_ar_7_with_scope_group_each_group_has_its_own_turn() -> None:
    one = among(1, groups=("a", "b"), serial_scope="group")
    for group, payload in (("a", b"1"), ("b", b"2"), ("a", b"3"), ("b", b"4")):
        one.send_everyone(group, payload, 0)
    assert [packet.payload for packet in sent(one, Data)] == [b"1", b"2"]
    one.receive(ack(1, 2, 0), 0, MS)
    assert [packet.payload for packet in sent(one, Data)] == [b"4"]


def test_ar_7_with_scope_group_large_messages_take_turns() -> None:
    one = among(1, groups=("a", "b"), serial_scope="group", burst=1)
    one.send_everyone("a", bytes(8000), 0)
    one.send_everyone("b", bytes(8000), 0)
    log = [packet.group for _, packet in data_of(run(one, 40 * MS))]
    assert log.count("b") >= 2
    assert log.count("a") >= 2


# -- AR-8 ------------------------------------------------------------------------------------


def test_ar_8_a_message_is_cut_to_the_mtu() -> None:
    one = among(1, burst=100)
    message = bytes(range(256)) * 20
    one.send_everyone(G, message, 0)
    packets = sent(one, Data)
    assert numbers(packets) == [0, 1, 2, 3]
    assert [len(packet.payload) for packet in packets] == [SIZE, SIZE, SIZE, 5120 - 3 * SIZE]
    assert b"".join(packet.payload for packet in packets) == message
    assert {packet.count for packet in packets} == {4}


@pytest.mark.parametrize("size, count", [(0, 1), (1, 1), (SIZE, 1), (SIZE + 1, 2), (2 * SIZE, 2)])
def test_ar_8_as_many_packets_as_needed(size: int, count: int) -> None:
    one = among(1)
    one.send_everyone(G, bytes(size), 0)
    assert len(sent(one, Data)) == count


def test_ar_8_the_last_packet_and_every_32nd_ask_for_confirmation() -> None:
    one = among(1, burst=1000)
    one.send_everyone(G, bytes(70 * SIZE), 0)
    assert asking(sent(one, Data)) == [31, 63, 69]


def test_ar_8_at_most_a_burst_per_pace() -> None:
    one = among(1)
    one.send_everyone(G, bytes(100 * SIZE), 0)
    assert len(sent(one, Data)) == 32
    log = Counter(now for now, _ in data_of(run(one, 20 * MS)))
    assert log == {5 * MS: 32, 10 * MS: 32, 15 * MS: 4}


def test_ar_8_small_messages_are_paced_too() -> None:
    one = among(1, burst=2)
    now = 0
    times = []
    for seq in range(1, 7):
        one.send_everyone(G, b"x", now)
        while not (packets := sent(one, Data)):
            now = one.deadline
            one.on_timer(now)
        times.append(now)
        one.receive(ack(1, packets[0].seq, 0), 0, now)
        assert packets[0].seq == seq
    assert times == [0, 0, 5 * MS, 5 * MS, 10 * MS, 10 * MS]


# -- AR-9 ------------------------------------------------------------------------------------


def test_ar_9_what_one_target_lacks_is_sent_again_to_that_one() -> None:
    one = among(1, 2, burst=100)
    one.send_everyone(G, bytes(6 * SIZE), 0)
    one.take()
    one.receive(ack(1, 1, 5), 0, MS)
    one.receive(ack(2, 1, 5, (1, 4)), 0, MS)
    packets = sent(one, Data)
    assert numbers(packets) == [1, 4]
    assert {packet.destination for packet in packets} == {uuid(2)}
    assert asking(packets) == [4]
    assert one.why(uuid(2), MS)["packets_resent"] == 2


def test_ar_9_what_several_lack_is_sent_again_to_the_group() -> None:
    one = among(1, 2, 3, burst=100)
    one.send_everyone(G, bytes(6 * SIZE), 0)
    one.take()
    for k, missing in ((1, (0, 2)), (2, (2, 3)), (3, ())):
        one.receive(ack(k, 1, 5, missing), 0, MS)
    packets = sent(one, Data)
    assert numbers(packets) == [0, 2, 3]
    assert {packet.destination for packet in packets} == {ZERO}
    assert asking(packets) == [3]


def test_ar_9_it_waits_for_all_answers_or_the_time_out() -> None:
    one = among(1, 2, burst=100)
    one.send_everyone(G, bytes(6 * SIZE), 0)
    one.take()
    one.receive(ack(1, 1, 5, (1,)), 0, MS)
    assert not data_of(run(one, 99 * MS))
    log = data_of(run(one, 100 * MS))
    assert [(packet.number, packet.destination) for _, packet in log] == [
        (1, uuid(1)), (5, uuid(2)),
    ]  # fmt: skip
    assert all(packet.flags & CONFIRMATION for _, packet in log)


def test_ar_9_the_silent_are_asked_one_by_one_with_the_last_packet() -> None:
    one = among(1, 2, 3)
    one.send_everyone(G, b"x", 0)
    one.take()
    one.receive(ack(2, 1, 0), 0, MS)
    log = data_of(run(one, 100 * MS))
    assert [(now, packet.destination, packet.number) for now, packet in log] == [
        (100 * MS, uuid(1), 0), (100 * MS, uuid(3), 0),
    ]  # fmt: skip


def test_ar_9_an_early_report_is_used_when_the_last_packet_was_lost() -> None:
    one = among(1, burst=100)
    one.send_everyone(G, bytes(40 * SIZE), 0)
    one.take()
    one.receive(ack(1, 1, 31, (3, 7)), 0, MS)
    log = data_of(run(one, 100 * MS))
    assert [packet.number for _, packet in log] == [3, 7, 39]


def test_ar_9_an_answer_before_the_round_is_sent_does_not_end_it() -> None:
    """A cut list in the first round is no answer to its last packet."""
    one = among(1, burst=32)
    one.send_everyone(G, bytes(200 * SIZE), 0)
    one.take()
    one.receive(ack(1, 1, 9, (8, 9)), 0, MS)
    first = [packet.number for _, packet in data_of(run(one, 30 * MS))]
    assert first == list(range(32, 200))
    again = [packet.number for _, packet in data_of(run(one, 130 * MS))]
    assert again == [8, 9, 199]


def test_ar_9_acknowledgements_for_others_late_or_of_strangers_change_nothing() -> None:
    one = among(1)
    one.send_everyone(G, b"x", 0)
    one.take()
    one.receive(ack(1, 1, 0, to=5), 0, MS)
    one.receive(ack(1, 99, 0), 0, MS)
    one.receive(ack(9, 1, 0), 0, MS)
    assert one.by_seq[1].targets.keys() == {uuid(1)}
    one.receive(ack(1, 1, 0), 0, 2 * MS)
    one.receive(ack(1, 1, 0), 0, 3 * MS)
    assert one.idle
    assert not one.drops


@pytest.mark.parametrize(
    "highest, missing",
    [(6, ()), (5, (6,)), (1 << 31, ()), (4, (5,))],
)
def test_an_acknowledgement_of_what_was_never_sent_is_refused(highest: int, missing: Any) -> None:
    one = among(1, burst=100)
    one.send_everyone(G, bytes(6 * SIZE), 0)
    one.receive(ack(1, 1, highest, missing), 0, MS)
    assert one.drops == {"acknowledgement of what was never sent": 1}
    assert one.by_seq[1].targets[uuid(1)].missing == ()


def test_an_acknowledgement_of_packets_still_to_be_sent_is_refused() -> None:
    one = among(1, burst=2)
    one.send_everyone(G, bytes(6 * SIZE), 0)
    one.receive(ack(1, 1, 5), 0, MS)
    assert one.drops
    assert not one.idle


# -- AR-10 -----------------------------------------------------------------------------------


def test_ar_10_a_silent_target_is_dropped_after_max_retries_rounds() -> None:
    one = among(1, 2, max_retries=3)
    one.send_everyone(G, b"x", 0, tag=1)
    one.receive(ack(2, 1, 0), 0, MS)
    one.take()
    log = data_of(run(one, SECOND))
    assert [now // MS for now, _ in log] == [100, 200, 300]
    out = one.take()
    assert out.notices == [
        notice("dropped", uuid(1)), notice("sent", 1, (uuid(2),), (uuid(1),)),
    ]  # fmt: skip
    assert list(one.environment.nodes) == [uuid(2)]
    assert one.idle


def test_ar_10_progress_gives_a_target_new_patience() -> None:
    one = among(1, max_retries=2, burst=100)
    one.send_everyone(G, bytes(8 * SIZE), 0)
    now = 0
    for left in range(8, 0, -1):
        now += 250 * MS  # two rounds in vain, then one packet more
        run(one, now)
        one.receive(ack(1, 1, 7, tuple(range(left - 1))), 0, now)
    assert one.idle
    assert uuid(1) in one.environment.nodes


def test_ar_10_answers_without_progress_end_in_a_drop() -> None:
    one = among(1, max_retries=3, burst=100)
    one.send_everyone(G, bytes(4 * SIZE), 0)
    now = 0
    while not one.idle:
        assert now < SECOND
        now += 20 * MS
        run(one, now)
        one.receive(ack(1, 1, 3, (2,)), 0, now)
    assert notices(one, "dropped")
    assert now >= 300 * MS


def test_ar_10_old_acknowledgements_again_and_again_do_not_shorten_a_targets_life() -> None:
    one = among(1, max_retries=3, burst=1000, pace_ns=0)
    one.send_everyone(G, bytes(4 * SIZE), 0)
    for k in range(290):
        one.receive(ack(1, 1, 3, (2,)), 0, k * MS)
    assert uuid(1) in one.environment.nodes
    one.receive(ack(1, 1, 3), 0, 295 * MS)
    assert one.idle
    assert not notices(one, "dropped")


def test_ar_10_a_dropped_node_returns_with_its_next_heartbeat() -> None:
    one = among(1, max_retries=0)
    one.send_everyone(G, b"x", 0)
    run(one, 150 * MS)
    assert notices(one, "dropped")
    one.receive(heartbeat(1), 0, 200 * MS)
    assert notices(one, "up")
    one.send_everyone(G, b"y", 200 * MS)
    assert one.by_seq[2].targets.keys() == {uuid(1)}


def test_ar_10_a_node_that_was_asleep_does_not_drop_its_targets_for_it() -> None:
    one = among(1, max_retries=3)
    one.send_everyone(G, b"x", 0)
    now = 0
    for _ in range(3):
        now = one.deadline
        one.on_timer(now)
    for _ in range(5):
        now += 20 * SECOND
        one.on_timer(now)
        assert uuid(1) in one.environment.nodes
    one.receive(ack(1, 1, 0), 0, now)  # it lay in the socket
    assert one.idle
    assert not notices(one, "dropped")


# -- AR-11, AR-12 ----------------------------------------------------------------------------


def test_ar_11_a_target_that_leaves_the_group_is_no_longer_waited_for() -> None:
    one = among(1, 2)
    one.send_everyone(G, b"x", 0, tag=3)
    one.receive(ack(1, 1, 0), 0, MS)
    one.receive(heartbeat(2, 3, ()), 0, 2 * MS)
    assert one.idle
    out = one.take()
    assert uuid(2) in one.environment.nodes
    assert out.notices == [notice("sent", 3, (uuid(1),), (uuid(2),))]


def test_ar_11_leaving_another_group_changes_nothing() -> None:
    one = among(1, groups=("a", "b"))
    one.send_everyone("a", b"x", 0)
    one.receive(heartbeat(1, 2, ("a",)), 0, MS)
    assert not one.idle


def test_ar_11_when_the_last_awaited_one_leaves_the_rest_is_served_at_once() -> None:
    one = among(1, 2, burst=100)
    one.send_everyone(G, bytes(3 * SIZE), 0)
    one.take()
    one.receive(ack(1, 1, 2, (0,)), 0, MS)
    one.receive(heartbeat(2, 3, ()), 0, 2 * MS)
    assert one.deadline <= 2 * MS
    one.on_timer(2 * MS)
    assert numbers(sent(one, Data)) == [0]


def test_ar_12_a_dead_target_is_not_waited_for() -> None:
    one = among(1, 2, hb_min_ns=20 * MS, hb_per_node_ns=1 * MS, max_retries=1000)
    one.send_everyone(G, b"x", 0, tag=1)
    one.receive(ack(2, 1, 0), 0, MS)
    one.send_everyone(G, b"y", 0)
    run(one, 79 * MS)
    assert not one.idle
    one.receive(heartbeat(2, 3), 0, 79 * MS)
    run(one, 110 * MS)
    out = one.take()
    kinds = [notice.kind for notice in out.notices]
    assert kinds[-2:] == ["down", "sent"]
    assert one.by_seq[2].targets.keys() == {uuid(2)}


def test_ar_12_silent_ones_that_vanish_before_they_are_asked_end_the_round() -> None:
    one = among(1, 2, 3, burst=1)
    one.send_everyone(G, b"x", 0)
    one.take()
    log = data_of(run(one, 104 * MS))  # one of three was asked, two are to come
    assert len(log) == 1
    for k in (1, 2, 3):
        if log[0][1].destination != uuid(k):
            one.receive(heartbeat(k, 4, ()), 0, 104 * MS)
    assert not one.idle
    assert not data_of(run(one, 199 * MS))
    one.receive(Acknowledgement(log[0][1].destination, uuid(0), 1, 0, ()), 0, 199 * MS)
    assert one.idle


# -- someone lost ----------------------------------------------------------------------------


def test_a_someone_that_is_lost_is_not_replaced() -> None:
    """E 48: at most one receiver."""
    one = among(1, 2, max_retries=1)
    one.send_someone(G, b"x", 0, tag=5)
    log = data_of([(0, packet) for packet in packets_of(one.out)] + run(one, 2 * SECOND))
    assert len({packet.destination for _, packet in log}) == 1
    out = one.take()
    (notice,) = [notice for notice in out.notices if notice.kind == "sent"]
    assert notice.info == (5, (), (log[0][1].destination,))


def test_a_someone_that_is_lost_is_replaced_if_wanted() -> None:
    """E 48: someone_failover."""
    one = among(1, 2, max_retries=1, someone_failover=True)
    one.send_someone(G, b"x", 0, tag=5)
    first = sent(one, Data)[0]
    log = data_of(run(one, 250 * MS))
    other = log[-1][1]
    assert {first.destination, other.destination} == {uuid(1), uuid(2)}
    assert other.seq == first.seq + 1
    one.receive(Acknowledgement(other.destination, uuid(0), other.seq, 0, ()), 0, 260 * MS)
    (notice,) = notices(one, "sent")
    assert notice.info == (5, (other.destination,), (first.destination,))
    assert one.queued_bytes == 0


def test_when_all_are_tried_in_vain_the_sender_learns_it() -> None:
    one = among(1, 2, max_retries=0, someone_failover=True)
    one.send_someone(G, b"x", 0, tag=5)
    run(one, SECOND)
    (notice,) = notices(one, "sent")
    assert notice.info[1] == ()
    failed: Any = notice.info[2]
    assert set(failed) == {uuid(1), uuid(2)}
    assert one.queued_bytes == 0


# -- the queue -------------------------------------------------------------------------------


def test_a_full_queue_refuses_and_changes_nothing() -> None:
    one = among(1, queue_bytes=1000)
    one.send_everyone(G, bytes(500), 0)
    with pytest.raises(QueueFull, match="queue_bytes = 1000"):
        one.send_everyone(G, bytes(500), 0)
    before = one.queued_bytes
    with pytest.raises(QueueFull):
        one.send_someone(G, bytes(500), 0)
    assert one.queued_bytes == before
    one.receive(ack(1, 1, 0), 0, MS)
    one.send_everyone(G, bytes(500), MS)


def test_a_message_larger_than_the_queue_is_taken_when_it_is_alone() -> None:
    one = among(1, queue_bytes=1000)
    one.send_everyone(G, bytes(5000), 0)
    assert one.queued_bytes > 5000
    assert one.usage()["queue_bytes"] <= one.caps()["queue_bytes"]


def test_many_empty_messages_fill_the_queue_too() -> None:
    one = among(1, queue_bytes=1000)
    for _ in range(1000 // 64):
        one.send_everyone(G, b"", 0)
    with pytest.raises(QueueFull):
        one.send_everyone(G, b"", 0)


def test_a_message_above_the_limit_is_refused() -> None:
    one = among(1, max_message=1000)
    with pytest.raises(PayloadTooLarge, match="max_message = 1000"):
        one.send_everyone(G, bytes(1001), 0)
    one.send_everyone(G, bytes(1000), 0)


def test_a_thousand_messages_without_targets_do_not_pile_up() -> None:
    one = node()
    for k in range(1000):
        one.send_everyone(G, b"x", 0, tag=k)
    assert one.idle
    assert len(notices(one, "sent")) == 1000


def test_a_tag_is_what_asks_for_a_notice() -> None:
    one = node()
    one.send_everyone(G, b"x", 0)
    assert not one.take().notices


def test_sequence_numbers_start_over_without_zero() -> None:
    one = among(1)
    one.seq = SEQ_MAX - 1
    seqs = []
    for _ in range(3):
        one.send_everyone(G, b"x", 0)
        (packet,) = sent(one, Data)
        seqs.append(packet.seq)
        one.receive(ack(1, packet.seq, 0), 0, 0)
    assert seqs == [SEQ_MAX, 1, 2]


def test_heartbeats_go_on_during_a_transfer() -> None:
    one = among(1, max_retries=1000)
    one.receive(heartbeat(1, 2), 0, 0)
    one.send_everyone(G, b"x", 0)
    beats = []
    for now in range(0, 5000 * MS, 100 * MS):
        one.receive(heartbeat(1, 2), 0, now)
        beats += [when for when, packet in run(one, now) if isinstance(packet, Heartbeat)]
    assert all(b - a <= 600 * MS for a, b in pairwise(beats))
    assert len(beats) >= 8


def test_a_transfer_to_one_that_answers_nothing_ends() -> None:
    one = among(1)
    one.send_everyone(G, bytes(10 * SIZE), 0)
    until_quiet(one, 0)
    assert one.idle
