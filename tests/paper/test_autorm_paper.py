"""Höfig 2007, *Autonomic Reliable Multicast*: one test per claim, its section in a comment."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from roundelay.core.autorm.config import AutoRmConfig
from roundelay.core.autorm.environment import Environment
from roundelay.core.autorm.packets import (
    CONFIRMATION,
    ONE_OF,
    ZERO,
    Acknowledgement,
    Data,
    Heartbeat,
)
from roundelay.core.engine import MS, SECOND
from roundelay.core.events import NOTHING_LEFT
from roundelay.sim.kernel.load import content
from roundelay.sim.network.links import Lossy, Partition, Reordered
from roundelay.wire.beamon import encode
from tests.core.beamons import G, ack, data, delivered, heartbeat, node, run, sent, uuid
from tests.sim.autorm_net import apps, got, idle, world


def environment(reports: list[int], **fields: Any) -> Environment:
    made = Environment(AutoRmConfig(**fields))
    for k, nodes in enumerate(reports):
        one = made.admit(uuid(k), 0)
        assert one is not None
        made.heartbeat(one, heartbeat(k, nodes), 0)
    return made


# -- §1 ----------------------------------------------------------------------------------------


def test_packets_may_disappear_and_come_out_of_order_and_messages_do_not() -> None:
    # §1: IP multicast "exhibits unfavourable properties, e.g. packets may disappear or appear out
    # of order".
    made, log = world(3, Lossy(0.15) | Reordered(0.3, 20 * MS))
    messages = [content(0, k, 4000) for k in range(30)]
    for k, message in enumerate(messages):
        apps(made).send(0, G, message, k)
    assert made.run_until(lambda: idle(made), 100 * SECOND, 50 * MS)
    assert all(got(log, site) == messages for site in made.group)


def test_a_message_may_be_larger_than_what_ethernet_carries() -> None:
    # §1, §2.4: "Messages may be larger than the current MTU".
    one = node()
    one.receive(heartbeat(1), 0, 0)
    one.take()
    one.send_everyone(G, bytes(100_000), 0)
    packets = sent(one, Data)
    assert packets[0].count == -(-100_000 // (1500 - 28 - 47 - len(G)))
    assert all(28 + len(encode(packet)) <= 1500 for packet in packets)


# -- §2 ----------------------------------------------------------------------------------------


def test_each_node_has_a_view_of_its_own() -> None:
    # §2: no "universally consistent, shared global state".
    made, _ = world(3)
    made.set_links(Partition.non_transitive(0, 1))
    made.run(made.now + 5 * SECOND)
    views = [set(made.site(site).environment.nodes) for site in made.group]
    zero, one, two = (made.site(site).uuid for site in made.group)
    assert views == [{two}, {two}, {zero, one}]


def test_who_does_not_take_part_in_the_exchange_does_not_exist() -> None:
    # §2: "If a system does not participate in the exchange of information it is considered
    # non-existent."
    made, _ = world(2)
    made.crash(1, NOTHING_LEFT)
    made.run(made.now + 5 * SECOND)
    assert not made.site(0).environment.nodes


# -- §2.2 --------------------------------------------------------------------------------------


def test_a_node_declares_membership_by_a_list_that_it_repeats() -> None:
    # §2.2: "A Beamon declares membership in a group by including it in a list that is repeatedly
    # broadcasted on the shared medium."
    one = node()
    one.join("a", 0)
    one.join("b", 0)
    beats = [packet for _, packet in run(one, 5 * SECOND)]
    assert len(beats) >= 9
    assert all(packet == Heartbeat(uuid(0), 1, ("a", "b")) for packet in beats)


def test_a_node_tracks_the_time_of_every_message_and_the_groups_of_every_node() -> None:
    # §2.2: "Every Beamon not only tracks timestamps for every incoming message, but also membership
    # declarations of every node in its environment".
    one = node()
    for now, packet in ((1, heartbeat(1)), (2, data(1)), (3, ack(1, 9, 0))):
        one.receive(packet, 0, now)
    entry = one.environment.nodes[uuid(1)]
    assert list(entry.history) == [1, 2, 3]
    assert entry.groups == (G,)


def test_the_last_time_is_compared_with_a_stale_time_proportional_to_the_nodes() -> None:
    # §2.2: "a comparison of the last timestamp value against a so-called stale-time (proportional
    # to the number of nodes in the environment)".
    stale = [environment([n] * (n - 1)).stale_ns(None) for n in (10, 20, 40)]
    assert stale[1] == 2 * stale[0]
    assert stale[2] == 4 * stale[0]


def test_the_more_nodes_the_lower_the_frequency() -> None:
    # §2.2: "the more Beamons in an environment, the lower the frequency".
    periods = [environment([n] * (n - 1)).period() for n in range(6, 60)]
    assert periods == sorted(set(periods))


def test_the_environment_is_not_swamped_with_heartbeats() -> None:
    # §2.2: "Without this frequency adaptation, an environment would be swamped".
    made, log = world(60, bus=True)
    made.run(20 * SECOND)
    log.sends.clear()
    made.run(60 * SECOND)
    assert log.count(Heartbeat) <= 40 * 12
    shortest = 60 * 40 * 2  # what 60 nodes would send at the shortest period
    assert 9 * log.count(Heartbeat) < shortest


def test_the_number_of_nodes_is_taken_from_the_own_table_and_the_average_of_reports() -> None:
    # §2.2: "by using the local node tracking table and an average of the number of nodes as
    # reported by each Beamon"; "trust … to decide the ratio".
    assert environment([10, 20, 30], trust=0.5).estimate() == (4 + 20) / 2
    assert environment([10, 20, 30], trust=0.75).estimate() == 0.75 * 4 + 0.25 * 20


# -- §2.3 --------------------------------------------------------------------------------------


def test_after_a_join_the_next_heartbeat_announces_the_group() -> None:
    # §2.3: "After joining a group, the Beamon will start to announce the group in its next
    # heartbeat message (if not already part of the groups it announces)".
    one = node()
    run(one, SECOND)
    one.join(G, SECOND)
    (_, first), *_ = run(one, 3 * SECOND)
    assert first == Heartbeat(uuid(0), 1, (G,))


def test_a_message_to_everyone_is_sent_to_the_whole_group() -> None:
    # §2.3.
    made, log = world(4)
    apps(made).send(1, G, content(1, 0, 10), 0)
    made.run(made.now + SECOND)
    assert [len(got(log, site)) for site in made.group] == [1, 1, 1, 1]


def test_a_message_to_someone_goes_to_a_node_picked_at_random_from_the_table() -> None:
    # §2.3: "picks a single node of that group (currently at random) from its tracking table and
    # directly transmit a message".
    made, log = world(4)
    for k in range(40):
        apps(made).send(0, G, content(0, k, 10), k, someone=True, sender_joined=True)
    made.run(made.now + 10 * SECOND)
    where = [site for _, site, _ in log.deliveries]
    assert len(where) == 40
    assert set(where) == {1, 2, 3}


def test_the_target_selects_a_single_application() -> None:
    # §2.3: "The target Beamon subsequently selects a single registered application".
    one = node()
    one.join(G, 0, local=5)
    one.receive(data(1, to=uuid(0), flags=ONE_OF | CONFIRMATION), 0, 0)
    (delivery,) = delivered(one)
    assert delivery.one_of


# -- §2.4 --------------------------------------------------------------------------------------


def test_a_message_arrives_completely_and_in_order_or_its_destination_is_removed() -> None:
    # §2.4: "either a message arrives completely and in order at a destination or the destination
    # node is removed from the sender's environment tables".
    made, log = world(3)
    made.set_links(Partition([(0, 2)]))  # 2 does not hear the sender
    apps(made).send(0, G, content(0, 0, 3000), 0)
    made.run_until(lambda: made.site(0).idle, made.now + 5 * SECOND, MS)
    assert made.site(2).uuid not in made.site(0).environment.nodes
    assert made.site(1).uuid in made.site(0).environment.nodes
    assert [len(got(log, site)) for site in made.group] == [1, 1, 0]


def test_reachability_depends_on_the_number_of_retransmissions() -> None:
    # §2.4: "The determination of a node's reachability is dependent on the numbers of
    # re-transmissions".
    ends = []
    for retries in (2, 5):
        one = node(max_retries=retries)
        one.receive(heartbeat(1), 0, 0)
        one.send_everyone(G, b"x", 0)
        copies = [packet for _, packet in run(one, 1500 * MS) if isinstance(packet, Data)]
        assert uuid(1) not in one.environment.nodes
        ends.append(len(copies))
    assert ends == [3, 6]  # the first and the repetitions, all still unfetched


# -- §3.2 --------------------------------------------------------------------------------------


def test_a_node_names_itself_anew_at_every_start() -> None:
    # §3.2: "non-persistent Universally Unique Identifiers (UUID) which each node assigns to
    # itself".
    made, _ = world(2)
    before = made.site(1).uuid
    made.crash(1, NOTHING_LEFT)
    made.restart(1)
    assert made.site(1).uuid != before


def test_there_are_only_three_types_of_packets_and_heartbeats_never_end() -> None:
    # §3.2: "consists of only three packet types: heartbeats, data packets, and acknowledgements";
    # heartbeats "are continuously send by each Beamon".
    made, log = world(3, Lossy(0.1))
    for k in range(20):
        apps(made).send(k % 3, G, content(k % 3, k, 3000), k)
    made.run(made.now + 30 * SECOND)
    assert {type(pdu) for _, _, pdu in log.sends} == {Heartbeat, Data, Acknowledgement}
    last = made.now - SECOND
    assert {site for time, site, pdu in log.sends if time > last} == {0, 1, 2}


def test_the_heartbeat_has_the_layout_of_figure_3() -> None:
    # §3.2: one byte type 1, 16 bytes source, two bytes nodes, one byte number of groups, then size
    # and name of each, in network byte order.
    raw = encode(Heartbeat(uuid(0), 0x0102, ("ab", "c")))
    assert raw == b"\x01" + uuid(0) + b"\x01\x02" + b"\x02" + b"\x02ab" + b"\x01c"


def test_a_destination_of_zeros_means_the_group() -> None:
    # §3.2: "The destination might be set to all zeros, indicating that the packet is addressed to a
    # group and not a single node."
    one = node()
    one.receive(heartbeat(1), 0, 0)
    one.send_everyone(G, b"x", 0)
    assert sent(one, Data)[0].destination == ZERO == bytes(16)


def test_the_sequence_identifier_is_unique_for_its_node() -> None:
    # §3.2, note 3.
    one = node()
    one.receive(heartbeat(1), 0, 0)
    seqs = []
    for k in range(10):
        one.send_everyone(G, b"x", k)
        seqs += [packet.seq for packet in sent(one, Data)]
        one.receive(ack(1, seqs[-1], 0), 0, k)
    assert len(set(seqs)) == 10


def test_an_acknowledgement_names_what_is_missing_below_the_last_received() -> None:
    # §3.2: it "transports all packet numbers missing in the receiver, limited by the number of the
    # last received packet".
    one = node()
    one.join(G, 0)
    for number in (0, 3, 5):
        one.receive(data(1, 1, number, 9), 0, 0)
    one.on_timer(0)
    (answer,) = sent(one, Acknowledgement)
    assert (answer.highest, answer.missing) == (5, (1, 2, 4))


def test_what_had_not_arrived_when_asked_is_not_sent_again() -> None:
    # §3.2: "so the sender will not re-transmit packets that had not arrived as the acknowledgement
    # request was processed in the receiver".
    one = node(burst=100, confirm_every=4)
    one.receive(heartbeat(1), 0, 0)
    one.take()
    one.send_everyone(G, bytes(12_000), 0)
    one.take()
    one.receive(ack(1, 1, 3, (2,)), 0, MS)  # packets 4 to 8 are under way
    again = [packet.number for _, packet in run(one, 100 * MS) if isinstance(packet, Data)]
    assert again == [2, 8]


def test_the_last_packet_is_always_confirmed_and_others_may_be() -> None:
    # §3.2: "The last packet of a sequence always has to be confirmed, but a sender might introduce
    # additional confirmation requests in any packet it sends".
    one = node(burst=100, confirm_every=5)
    one.receive(heartbeat(1), 0, 0)
    one.take()
    one.send_everyone(G, bytes(17_000), 0)
    asking = [packet.number for packet in sent(one, Data) if packet.flags & CONFIRMATION]
    assert asking == [4, 9, 11]


# -- §4 ----------------------------------------------------------------------------------------


def test_nothing_is_configured_per_host() -> None:
    # §4: "the configuration on a per-host basis is obsolete".
    made, _ = world(5)
    assert {made.site(site).environment.local for site in made.group} == {5}
    assert {made.site(site).config for site in made.group} == {AutoRmConfig()}


def test_the_open_issue_of_congestion_is_met_by_a_pace() -> None:
    # §4: "we don't know how to control congestion at the shared medium".
    made, log = world(2)
    log.sends.clear()
    apps(made).send(0, G, content(0, 0, 500_000), 0)
    made.run(made.now + SECOND)
    times = [time for time, _, pdu in log.sends if isinstance(pdu, Data)]
    assert max(times.count(time) for time in set(times)) == 32
    bursts = sorted(set(times))
    assert all(b - a >= 5 * MS for a, b in pairwise(bursts))
