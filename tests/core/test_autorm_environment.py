"""The environment table: who is there, how often to say so, when to bury (AR-1 to AR-5)."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roundelay.core.autorm.beamon import Beamon
from roundelay.core.autorm.config import AutoRmConfig
from roundelay.core.autorm.environment import GONE_MAX, Environment
from roundelay.core.autorm.packets import Data, Heartbeat
from roundelay.core.engine import MS, SECOND
from roundelay.core.errors import ConfigError, UsageError
from roundelay.core.notices import notice
from tests.core.beamons import G, ack, data, heartbeat, node, notices, run, sent, uuid
from tests.core.sends import packets_of

# -- AR-1 ------------------------------------------------------------------------------------


@pytest.mark.parametrize("packet", [heartbeat(1), data(1), ack(1, 1, 0)])
def test_ar_1_any_packet_of_an_unknown_node_adds_it(packet: Any) -> None:
    one = node()
    one.receive(packet, 0, 5 * MS)
    assert list(one.environment.nodes) == [uuid(1)]
    assert one.environment.nodes[uuid(1)].last_seen == 5 * MS
    assert notices(one, "up") == [notice("up", uuid(1))]
    one.receive(packet, 0, 6 * MS)
    assert one.environment.nodes[uuid(1)].last_seen == 6 * MS
    assert list(one.environment.nodes[uuid(1)].history) == [5 * MS, 6 * MS]
    assert not notices(one, "up")


def test_ar_1_a_heartbeat_replaces_groups_and_report() -> None:
    one = node()
    one.receive(heartbeat(1, 3, ("a", "b")), 0, 0)
    one.receive(heartbeat(2, 3, ("b",)), 0, 0)
    assert one.members("b") == (uuid(1), uuid(2))
    one.receive(heartbeat(1, 7, ("c", "a")), 0, 1)
    assert one.members("b") == (uuid(2),)
    assert one.members("a") == one.members("c") == (uuid(1),)
    assert one.members("nobody") == ()
    assert one.environment.nodes[uuid(1)].reported == 7


def test_ar_1_data_does_not_change_what_a_heartbeat_said() -> None:
    one = node()
    one.receive(heartbeat(1, 3, ("a",)), 0, 0)
    one.receive(data(1, group="b"), 0, 1)
    assert one.environment.nodes[uuid(1)].groups == ("a",)
    assert one.environment.nodes[uuid(1)].reported == 3


def test_its_own_packets_that_come_back_are_ignored() -> None:
    one = node()
    one.receive(heartbeat(0), 0, 0)
    one.receive(data(0), 0, 0)
    assert not one.environment.nodes
    assert not one.take()


def test_a_full_table_takes_no_more_nodes_and_counts_them() -> None:
    one = node(nodes_max=2)
    for k in (1, 2, 3):
        one.receive(heartbeat(k), 0, 0)
    assert list(one.environment.nodes) == [uuid(1), uuid(2)]
    assert one.drops == {"too many nodes": 1}


def test_a_heartbeat_that_names_a_group_twice_does_no_harm() -> None:
    one = node()
    one.receive(heartbeat(1, 2, (G, G)), 0, 0)
    assert one.members(G) == (uuid(1),)
    one.receive(heartbeat(1, 2, ()), 0, 1)
    assert one.members(G) == ()


# -- AR-2 ------------------------------------------------------------------------------------


def environment(*reports: int, **fields: float) -> Environment:
    made = Environment(AutoRmConfig(**fields).check())  # type: ignore[arg-type]
    for k, nodes in enumerate(reports):
        one = made.admit(uuid(k), 0)
        assert one is not None
        made.heartbeat(one, heartbeat(k, nodes), 0)
    return made


@pytest.mark.parametrize(
    "trust, estimate",
    [(1.0, 3.0), (0.0, 15.0), (0.5, 9.0), (0.25, 12.0)],
)
def test_ar_t7_trust_weighs_the_own_count_against_what_others_report(
    trust: float, estimate: float
) -> None:
    """AR-2, AR-T7: with trust 1 the others are not believed, with 0 nobody but them."""
    assert environment(10, 20, trust=trust).estimate() == pytest.approx(estimate)


def test_ar_2_without_neighbours_the_estimate_is_the_own_count() -> None:
    assert environment(trust=0.0).estimate() == 1.0


def test_ar_2_a_node_that_has_not_reported_yet_is_not_in_the_mean() -> None:
    made = environment(10, trust=0.0)
    made.admit(uuid(9), 0)
    assert made.estimate() == 10.0
    assert made.local == 3


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 60000), st.booleans()), max_size=40))
def test_ar_2_the_mean_is_that_of_the_nodes_in_the_table(steps: Any) -> None:
    """However nodes come, change and go, the running sum is the sum."""
    made = environment(trust=0.0)
    for k, nodes, leaves in steps:
        one = made.nodes.get(uuid(k)) or made.admit(uuid(k), 0)
        assert one is not None
        made.heartbeat(one, heartbeat(k, nodes, ("a",) if nodes % 2 else ("b", "a")), 0)
        if leaves:
            made.remove(uuid(k), 0, "dead")
    reports = [one.reported for one in made.nodes.values() if one.reported]
    expected = sum(reports) / len(reports) if reports else made.local
    assert made.estimate() == pytest.approx(expected)
    assert set(made.members("a")) == {uuid for uuid, one in made.nodes.items() if "a" in one.groups}


# -- AR-3 ------------------------------------------------------------------------------------


def test_ar_3_the_period_grows_with_the_environment() -> None:
    period = environment().period_of
    assert [period(n) // MS for n in (1, 5, 6, 20, 200)] == [500, 500, 600, 2000, 20000]


def test_ar_3_a_lone_node_beats_every_half_second_give_or_take_a_tenth() -> None:
    one = node()
    times = [now for now, _ in run(one, 60 * SECOND)]
    gaps = [b - a for a, b in pairwise(times)]
    assert all(450 * MS <= gap <= 550 * MS for gap in gaps)
    assert len(set(gaps)) > len(gaps) // 2
    assert 115 <= len(times) <= 125


def test_ar_3_the_first_heartbeat_comes_soon() -> None:
    one = node(now=7 * SECOND)
    ((when, packet),) = run(one, 7 * SECOND + 50 * MS)
    assert packet == Heartbeat(uuid(0), 1, ())
    assert 7 * SECOND <= when <= 7 * SECOND + 50 * MS


def test_ar_3_a_growing_environment_puts_the_next_heartbeat_off() -> None:
    one = node()
    run(one, 50 * MS)
    for k in range(1, 9):
        one.receive(heartbeat(k, 20), 0, 100 * MS)
    # n̂ = (9 + 20) / 2 would mean 1,450 ms; others expect us by the 1 node we last reported.
    ((when, packet),) = run(one, 1200 * MS)
    assert when <= 1050 * MS
    assert isinstance(packet, Heartbeat)
    assert packet.nodes == 9
    ((when2, _),) = run(one, when + 1800 * MS)
    assert 1300 * MS <= when2 - when <= 1600 * MS


def test_a_node_that_sees_others_appear_is_not_buried_by_one_that_does_not() -> None:
    """AR-4 alone would let it: what it reports is known only with the heartbeat put off."""
    seeing, blind = node(0), node(1)
    crowd = [node(k) for k in range(2, 102)]
    del crowd[50:]
    now = 0
    buried = []
    while now < 40 * SECOND:
        now += 10 * MS
        for one in (seeing, blind):
            one.on_timer(now)
        if now == SECOND:
            for k, one in enumerate(crowd):
                seeing.receive(Heartbeat(one.uuid, 40 + k % 20, ()), 0, now)
        if now > SECOND and now % (5 * SECOND) == 0:
            for one in crowd:
                seeing.receive(Heartbeat(one.uuid, 50, ()), 0, now)
        mine, others = seeing.take(), blind.take()
        buried += [notice for notice in others.notices if notice.kind == "down"]
        for packet in packets_of(mine):
            blind.receive(packet, 0, now)
        for packet in packets_of(others):
            seeing.receive(packet, 0, now)
    assert seeing.environment.period() > 2 * SECOND
    assert not buried


# -- AR-4 ------------------------------------------------------------------------------------


def test_ar_4_a_silent_node_is_dead_after_the_stale_time_and_not_before() -> None:
    one = node()
    one.receive(heartbeat(1), 0, 0)
    run(one, 1999 * MS)
    assert uuid(1) in one.environment.nodes
    run(one, 2600 * MS)
    assert uuid(1) not in one.environment.nodes
    assert notices(one, "down") == [notice("down", uuid(1))]
    assert one.members(G) == ()


def test_ar_4_the_stale_time_is_proportional_to_the_number_of_nodes() -> None:
    made = environment(200, 200, trust=0.0)
    assert made.stale_ns(None) == 4 * 200 * 100 * MS


def test_ar_4_a_node_with_a_larger_view_is_given_its_own_time() -> None:
    made = environment(100, trust=1.0)
    assert made.stale_ns(made.nodes[uuid(0)]) == 4 * 10 * SECOND
    assert made.stale_ns(None) == 4 * 500 * MS


def test_a_report_counts_no_more_than_a_full_table_would() -> None:
    made = environment(65535, nodes_max=10)
    assert made.nodes[uuid(0)].reported == 11


def test_a_node_that_was_asleep_does_not_bury_the_others_for_it() -> None:
    one = node()
    run(one, 300 * MS)
    one.receive(heartbeat(1), 0, 400 * MS)
    one.take()
    one.on_timer(100 * SECOND)  # it did not run in between
    assert uuid(1) in one.environment.nodes
    one.receive(heartbeat(2), 0, 100 * SECOND)
    run(one, 101 * SECOND)
    assert uuid(1) in one.environment.nodes
    run(one, 103 * SECOND)  # but the sleeper's patience is no longer than before
    assert uuid(1) not in one.environment.nodes


def test_a_sleep_is_excused_once_however_many_calls_follow() -> None:
    one = node()
    run(one, 300 * MS)
    one.receive(heartbeat(1), 0, 400 * MS)
    for k in range(40):
        one.receive(heartbeat(2), 0, 100 * SECOND + k * 100 * MS)
    one.on_timer(104 * SECOND)
    assert uuid(1) not in one.environment.nodes


# -- AR-5 ------------------------------------------------------------------------------------


def test_ar_5_a_join_and_a_leave_show_in_a_heartbeat_within_50_ms() -> None:
    one = node()
    run(one, 200 * MS)
    one.join("a", 200 * MS)
    one.join("b", 201 * MS, local=3)
    ((when, packet),) = run(one, 251 * MS)
    assert packet == Heartbeat(uuid(0), 1, ("a", "b"))
    assert when <= 250 * MS
    one.leave("a", 300 * MS)
    ((when, packet),) = run(one, 350 * MS)
    assert packet == Heartbeat(uuid(0), 1, ("b",))


def test_ar_5_joining_twice_only_counts_the_applications() -> None:
    one = node()
    one.join(G, 0)
    run(one, 200 * MS)
    one.join(G, 200 * MS, local=2)
    assert one.groups == {G: 2}
    assert not run(one, 260 * MS)


def test_ar_5_changes_in_a_row_are_not_announced_more_often_than_every_50_ms() -> None:
    one = node()
    beats = []
    for now in range(0, 1000 * MS, 2 * MS):
        if now % (4 * MS):
            one.leave("a", now)
        else:
            one.join("a", now)
        beats += run(one, now)
    assert 12 <= len(beats) <= 21


def test_ar_5_the_256th_group_is_refused() -> None:
    one = node(mtu=9000)
    for k in range(255):
        one.join(f"g{k}", 0)
    with pytest.raises(UsageError, match="at most 255 groups"):
        one.join("one more", 0)
    one.join("g7", 0)
    one.leave("g9", 0)
    one.join("one more", 0)


def test_ar_5_groups_that_do_not_fit_one_heartbeat_are_refused() -> None:
    one = node(mtu=576)
    one.join("a" * 255, 0)
    one.join("b" * 255, 0)
    with pytest.raises(UsageError, match="must fit one heartbeat of 528 bytes"):
        one.join("c" * 17, 0)
    one.join("c" * 15, 0)
    one.leave("a" * 255, 0)
    one.join("c" * 17, 0)


@pytest.mark.parametrize("name", ["", "x" * 256, "ä" * 128, "\udc80"])
def test_a_name_that_no_packet_can_carry_is_refused(name: str) -> None:
    one = node()
    verbs: tuple[Callable[[], object], ...] = (
        lambda: one.join(name, 0),
        lambda: one.send_everyone(name, b"", 0),
        lambda: one.send_someone(name, b"", 0),
    )
    for verb in verbs:
        with pytest.raises(UsageError, match="group name"):
            verb()
    assert not one.groups
    assert one.idle


def test_a_group_has_at_least_one_application() -> None:
    with pytest.raises(UsageError, match="at least 1"):
        node().join(G, 0, local=0)


def test_leaving_a_group_that_was_not_joined_is_harmless() -> None:
    one = node()
    before = one.deadline
    one.leave(G, 0)
    assert one.deadline == before


def test_a_farewell_says_at_once_that_all_groups_are_left() -> None:
    one = node()
    one.join("a", 0)
    one.join("b", 0)
    run(one, 300 * MS)
    one.farewell(301 * MS)
    assert sent(one, Heartbeat) == [Heartbeat(uuid(0), 1, ())]
    assert not one.groups


# -- why -------------------------------------------------------------------------------------


def test_why_of_a_living_node_shows_its_heartbeats_and_how_long_it_may_be_silent() -> None:
    one = node(history=4)
    for k in range(6):
        one.receive(heartbeat(1, 3), 0, k * 400 * MS)
    one.receive(data(1), 0, 2100 * MS)
    about = one.why(uuid(1), 2500 * MS)
    assert about["verdict"] == "alive"
    assert about["heartbeats_ns"] == [k * 400 * MS for k in (2, 3, 4, 5)]
    assert about["arrivals_ns"][-1] == about["last_seen_ns"] == 2100 * MS
    assert about["stale_ns"] == 2000 * MS
    assert about["silent_ns"] == 400 * MS
    assert about["trust"] == 0.5
    assert about["nodes_local"] == 2
    assert about["nodes_estimated"] == 2.5
    assert about["reported"] == 3
    assert about["groups"] == [G]
    assert about["packets_resent"] == 0
    assert about["last_retransmission_ns"] is None
    assert "heard 400 ms ago" in about["reason"]


def test_why_of_a_dead_node_says_how_long_it_was_silent() -> None:
    one = node()
    one.receive(heartbeat(1), 0, 0)
    run(one, 3 * SECOND)
    about = one.why(uuid(1), 10 * SECOND)
    assert about["verdict"] == "dead"
    assert "when 2000 ms were allowed" in about["reason"]
    assert 2000 * MS < about["ended_ns"] <= 2600 * MS


def test_why_of_a_dropped_node_shows_its_retransmissions() -> None:
    one = node(max_retries=2)
    one.receive(heartbeat(1), 0, 0)
    one.send_everyone(G, b"x", 0)
    run(one, 600 * MS)
    about = one.why(uuid(1), SECOND)
    assert about["verdict"] == "dropped"
    assert about["rounds_without_progress"] == 3
    assert about["packets_resent"] == 3
    assert about["last_retransmission_ns"] == 300 * MS
    one.receive(heartbeat(1), 0, 2 * SECOND)
    about = one.why(uuid(1), 2 * SECOND)
    assert about["verdict"] == "alive"
    assert about["packets_resent"] == 3


def test_why_of_a_node_never_heard_of() -> None:
    about = node().why(uuid(5), 0)
    assert about["verdict"] == "unknown"
    assert about["reason"] == "nothing has been heard of it"


def test_why_of_the_node_itself() -> None:
    one = node()
    about = one.why(one.uuid, 0)
    assert (about["verdict"], about["reason"]) == ("alive", "this is the node that was asked")


def test_only_the_last_dead_are_remembered() -> None:
    made = Environment(AutoRmConfig())
    for k in range(GONE_MAX + 1):
        name = k.to_bytes(16, "big")
        made.admit(name, 0)
        made.remove(name, k, "dead")
    assert len(made.gone) == GONE_MAX
    assert made.why(bytes(16), 0)["verdict"] == "unknown"


def test_status_in_plain_values() -> None:
    one = node()
    one.join(G, 0, local=2)
    one.receive(heartbeat(1), 0, 10 * MS)
    one.send_everyone(G, b"abc", 20 * MS)
    status = one.status()
    assert status["groups"] == {G: 2}
    assert status["nodes_local"] == 2
    assert status["under_way"] == status["sent_messages"] == 1
    assert status["queued_bytes"] == one.queued_bytes > 0


# -- parameters ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "field, value",
    [
        ("mtu", 575), ("mtu", 65536), ("trust", -0.1), ("trust", 1.1), ("hb_min_ns", 0),
        ("hb_per_node_ns", 0), ("hb_on_change_ns", -1), ("stale_factor", 1), ("ack_timeout_ns", 0),
        ("ack_jitter_ns", 100 * MS), ("max_retries", -1), ("confirm_every", 0), ("burst", 0),
        ("pace_ns", -1), ("max_message", 0), ("max_message", 1 << 32), ("serial_scope", "world"),
        ("nodes_max", 0), ("nodes_max", 65535), ("sources_max", 0), ("history", 0),
        ("queue_bytes", 0), ("reassembly_peer", 64 << 20), ("reassembly_total", 64 << 20),
    ],
)  # fmt: skip
def test_a_parameter_out_of_range_is_named(field: str, value: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        Beamon(0, (), AutoRmConfig(**{field: value}), Random(0), uuid=uuid(0))
    assert caught.value.field == field


def test_the_parameters_are_those_of_the_specification() -> None:
    """PROTOCOLS §8.6."""
    made = AutoRmConfig()
    assert (made.mtu, made.trust, made.stale_factor) == (1500, 0.5, 4)
    assert (made.hb_min_ns, made.hb_per_node_ns) == (500 * MS, 100 * MS)
    assert (made.ack_timeout_ns, made.ack_jitter_ns, made.max_retries) == (100 * MS, 10 * MS, 10)
    assert (made.confirm_every, made.burst, made.pace_ns) == (32, 32, 5 * MS)
    assert made.max_message == 64 << 20
    assert made.serial_scope == "node"
    assert made.check(100) is made


@pytest.mark.parametrize("name", [b"", b"short", bytes(16), bytes(17)])
def test_a_uuid_has_16_bytes_and_is_not_zero(name: bytes) -> None:
    with pytest.raises(ConfigError, match="uuid"):
        Beamon(0, (), AutoRmConfig(), Random(0), uuid=name)


def test_more_nodes_than_the_table_holds_cannot_be_planned() -> None:
    with pytest.raises(ConfigError, match="sites"):
        AutoRmConfig(nodes_max=5).check(7)


def test_what_is_held_is_named_and_bounded() -> None:
    one = node()
    assert one.usage().keys() == one.caps().keys()
    one.receive(heartbeat(1), 0, 0)
    one.join(G, 0)
    one.send_everyone(G, bytes(5000), 0)
    one.receive(data(1, count=3, payload=bytes(900)), 0, 0)
    used = one.usage()
    assert used["nodes"] == used["acknowledgements"] == used["history"] - 1 == 1
    assert used["queue_bytes"] > 5000
    assert used["reassembly_total"] == used["reassembly_peer"] == 900
    assert sent(one, Data)
