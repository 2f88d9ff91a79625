"""What Hoque, Amin and Hossain claim of GRSB (§2–§6 of "Hierarchical Model of Guaranteed, Reliable
and Secured Broadcast Protocol"), one test per claim, each in a simulated group.

Not here: what the Security Controller does (§1, §6), and the hierarchy (§7–§9).
"""

from __future__ import annotations

from roundelay.core.engine import MS
from roundelay.core.events import DISK
from roundelay.core.grsb.config import DEMO, FAILSAFE, SEPARATE, GrsbConfig, Roles
from roundelay.core.grsb.pdu import (
    LINE_A,
    LINE_B,
    Alive,
    Bcast,
    DaAck,
    Recover,
    ReplayReq,
    Submit,
    SubmitAck,
)
from roundelay.core.selection import EVERYTHING, Selection
from roundelay.sim.families.lines import DATE_US
from roundelay.sim.network.links import Lossy
from tests.sim.grsb_net import Group, lines
from tests.sim.line_net import Hook


def test_a_receiver_that_was_off_misses_nothing() -> None:
    # §2 (1): existing technology loses what is sent while a receiver is off.
    group = Group(SEPARATE)
    off = group.users[0]
    group.chat_without(off, 50, seconds=3)
    group.until(lambda: len(group.texts(off)) == 50)
    group.judge()


def test_noise_costs_no_receiver_a_message() -> None:
    # §2 (2).
    group = Group(SEPARATE, links=Lossy(0.25))
    group.chat(60)
    group.until(lambda: group.everybody_has(60), 300)
    group.until(lambda: group.recorder().mark == 60)
    group.judge()


def test_the_sender_is_not_slowed_to_the_slowest_receiver() -> None:
    # §2 (3), §5: a few slow receivers will not slow down the broadcast system.
    took = []
    for asleep in (False, True):
        group = Group(SEPARATE, sites=8)
        if asleep:
            group.world.crash(group.users[-1], DISK)
        for i in range(100):
            group.say(group.users[0], b"%d" % i)
        group.until(lambda group=group: group.cr.acked == 100)  # type: ignore[misc]
        took.append(group.world.now)
    assert took[0] == took[1]


def test_all_nodes_receive_all_messages_in_exactly_the_same_sequence() -> None:
    # §2, §3: in the correct temporal order.
    group = Group(FAILSAFE, sites=12, links=Lossy(0.1))
    group.chat(100, gap_ns=5 * MS)
    group.until(lambda: group.everybody_has(100), 300)
    first = [(one.seq, one.time) for one in group.logs[group.users[0]]]
    assert first == sorted(first)
    assert all([(one.seq, one.time) for one in group.logs[u]] == first for u in group.users)


def test_a_user_first_sends_to_the_central_retransmitter_one_to_one() -> None:
    # §3.
    group = Group(SEPARATE)
    group.say(group.users[1], b"hello")
    group.run(1)
    life = {Alive, DaAck(0, 0, 0)}  # signs of life, and the answers to them
    said = [one for one in group.sends if one[3] not in life and type(one[3]) not in life]
    talk = [(pdu.__class__, src, dst) for _, src, dst, pdu in said][:4]
    user = group.users[1]
    assert talk[:2] == [(Submit, user, 0), (Bcast, 0, -1)]
    assert set(talk[2:]) <= {(DaAck, 1, -1), (SubmitAck, 0, user)}


def test_the_retransmitter_adds_number_date_and_time() -> None:
    # §3, §4: each message is unique, and only its clock counts.
    group = Group(SEPARATE)
    group.world.jump_clock(group.users[0])
    group.run(2)
    group.chat(10, users=group.users[:1])
    group.run(2)
    log = group.logs[group.users[1]]
    assert [one.seq for one in log] == list(range(10))
    times = [one.time for one in log]
    assert times == sorted(set(times))
    assert all(DATE_US <= time < DATE_US + 60 * 10**6 for time in times)


def test_only_the_designated_acknowledger_answers_a_broadcast() -> None:
    # §3.
    group = Group(SEPARATE, sites=30)
    group.chat(20)
    group.run(2)
    assert {src for _, src, _, pdu in group.sends if isinstance(pdu, DaAck)} == {1}
    assert {src for _, src, _, pdu in group.sends if isinstance(pdu, Bcast)} == {0}


def test_who_hears_message_5_knows_that_the_acknowledger_has_message_4() -> None:
    # §3: "otherwise, message 5 would not have been sent".
    group = Group(SEPARATE, links=Lossy(0.2))
    group.chat(50, gap_ns=MS)
    held = []

    def watch(time: int, site: int, destination: int, pdu: object) -> None:
        if isinstance(pdu, Bcast):
            held.append(group.da.expected >= pdu.message.gseq)

    group.world.on_sent.append(watch)
    group.until(lambda: group.cr.acked == 50)
    assert held
    assert all(held)


def test_a_recorder_that_hears_1_2_3_5_gets_4_from_the_acknowledger() -> None:
    # §3: detected on the reception of the next good message, recovered "immediately" (§4).
    group = Group(SEPARATE)
    pr = group.roles.recorders[0]
    group.world.set_links(
        Hook(lambda t, s, d, pdu: d == pr and isinstance(pdu, Bcast) and pdu.message.gseq == 4)
    )
    group.chat(6, gap_ns=100 * MS, users=group.users[:1])
    group.run(0.55)
    (request,) = [(dst, pdu) for _, s, dst, pdu in group.sends if isinstance(pdu, Recover)]
    assert request == (1, Recover(((4, 5),)))
    assert group.recorder().mark == 6


def test_recovery_of_a_user_is_from_a_recorder_not_from_the_acknowledger() -> None:
    # §3: these receivers do not interact with the Central Retransmitter nor the Acknowledger.
    group = Group(SEPARATE, links=Lossy(0.2))
    group.chat(60)
    group.until(lambda: group.everybody_has(60), 300)
    users = set(group.users)
    asked = {
        (type(pdu), dst) for _, src, dst, pdu in group.sends if src in users and dst != 0
    }  # besides SUBMIT to the retransmitter
    assert asked == {(ReplayReq, group.roles.recorders[0])}


def test_the_acknowledger_keeps_messages_only_for_a_short_period() -> None:
    # §3, §4: the number of messages to be retained by the Designated Acknowledger is small.
    group = Group(SEPARATE, config=GrsbConfig(da_buffer=32, overwrite_group=8, history=64))
    group.chat(300, gap_ns=5 * MS)
    group.until(lambda: group.everybody_has(300))
    assert len(group.da.ring) <= 32
    assert len(group.archive()) == 300


def test_a_recorder_records_selectively() -> None:
    # §3: based upon sender identification, "conference number", message type.
    for wanted, count in (
        (Selection(frozenset((7,))), 15),
        (Selection(senders=frozenset((4,))), 15),
        (Selection(kinds=frozenset((2,))), 30),
    ):
        roles = Roles(
            sites=6, retransmitters=(0,), acknowledgers=(1,), recorders=(2, 3), users=(4, 5),
            filters={3: wanted},
        )  # fmt: skip
        group = Group(roles)
        for i in range(30):
            user = 4 + i % 2
            group.say(user, b"%d" % i, conference=7 if i % 2 else 8, kind=2)
        group.run(5)
        kept = [m for m in group.archive(1) if not m.is_head]
        assert len(kept) == count
        assert len(group.archive(1)) == 30


def test_a_sender_need_not_know_the_members_of_a_conference() -> None:
    # §3, §4: multicast by filtering on the conference number.
    group = Group(SEPARATE, sites=8)
    members = group.users[:2]
    for user in members:
        group.applications.select(user, Selection(frozenset((7,))))
    for user in group.users[2:]:
        group.applications.select(user, Selection(frozenset((8,))))
    group.say(group.users[-1], b"for 7", conference=7)
    group.run(1)
    assert [user for user in group.users if group.texts(user)] == list(members)


def test_a_receiver_can_join_a_conference_many_days_after_it_has_started() -> None:
    # §3: all it needs to know is the conference number.
    group = Group(SEPARATE)
    late = group.users[0]
    group.applications.select(late, Selection(frozenset((1,))))
    for i in range(30):
        group.say(group.users[1], b"%d" % i, conference=7 if i % 3 == 0 else 8)
    group.run(3)
    group.run(300)  # a few minutes will do
    group.applications.select(late, Selection(frozenset((1, 7))))
    wanted = Selection(frozenset((7,)))
    assert group.world.call(late, lambda site, now: site.history(wanted, now))
    group.run(2)
    past = [data for one in group.answers[late] for data in one.bundle]
    assert past == [b"%d" % i for i in range(0, 30, 3)]
    group.say(group.users[1], b"now", conference=7)
    group.run(1)
    assert group.texts(late) == [b"now"]


def test_the_recorder_is_a_file_server() -> None:
    # §3's example: missed messages on conference 7 from user node 2 only, until it catches up.
    group = Group(SEPARATE, sites=7)
    one, two, *others = group.users
    group.applications.select(one, Selection(frozenset((7,)), frozenset((two,))))
    group.world.crash(one, DISK)
    for i in range(60):
        group.say(two if i % 2 else others[0], b"%d" % i, conference=7 + i % 3)
    group.run(5)
    group.world.restart(one)
    group.run(2)
    assert group.texts(one) == [b"%d" % i for i in range(60) if i % 2 and i % 3 == 0]
    assert group.recorder().served == 10


def test_recorders_ask_for_mercy_only_when_they_themselves_miss_messages() -> None:
    # §3, §5: a few slow receivers will not slow down the broadcast system, but a large number will.
    quiet = Group(SEPARATE, sites=12, config=GrsbConfig(backlog_limit=4, serve_ns=20 * MS))
    busy = Group(SEPARATE, sites=40, config=GrsbConfig(backlog_limit=4, serve_ns=20 * MS))
    for group, slow in ((quiet, 2), (busy, 30)):
        deaf = set(group.users[:slow])
        group.world.set_links(
            Hook(lambda t, s, d, pdu, deaf=deaf: d in deaf and isinstance(pdu, Bcast))  # type: ignore[misc]
        )
        group.chat(100, users=group.users[slow:])
        group.run(4)
    assert quiet.kinds["Slow"] == 0
    assert busy.kinds["Slow"] > 0


def test_i_am_alive_when_there_is_nothing_to_broadcast() -> None:
    # §4: a receiver node always knows whether the broadcast system is working.
    group = Group(SEPARATE)
    group.run(10)
    assert not group.told("down")
    group.world.crash(0, DISK)
    group.run(4)
    assert {site for site, _ in group.told("down")} == set(group.users)


def test_a_node_that_reaches_the_logical_nodes_carries_on_in_a_segmented_network() -> None:
    # §4.
    group = Group(SEPARATE, sites=9)
    left, right = set(group.users[:3]), set(group.users[3:])
    group.world.set_links(
        Hook(lambda t, s, d, pdu: (s in left and d in right) or (s in right and d in left))
    )
    group.chat(40)
    group.until(lambda: group.everybody_has(40))
    group.run(1)
    group.judge()


def test_a_node_that_does_not_reach_the_retransmitter_cannot_broadcast() -> None:
    # §4.
    group = Group(SEPARATE)
    cut = group.users[0]
    group.world.set_links(Hook(lambda t, s, d, pdu: 0 in (s, d) and cut in (s, d)))
    group.run(5)
    assert not group.applications.send(cut, [b"x"])
    assert group.applications.send(group.users[1], [b"y"])


def test_the_acknowledger_polls_recorders_before_it_overwrites_and_slows_the_system() -> None:
    # §4.
    group = Group(SEPARATE, config=GrsbConfig(da_buffer=8, overwrite_group=2, history=20))
    pr = group.roles.recorders[0]
    group.world.pause(pr)
    group.chat(30, gap_ns=5 * MS)
    group.run(5)
    assert group.kinds["Poll"] > 5
    assert group.cr.acked == 8  # nothing more is acknowledged
    group.world.resume(pr)
    group.until(lambda: group.everybody_has(30))
    group.judge()


def test_many_to_many_is_handled_exactly_as_one_to_many() -> None:
    # §4.
    counts = []
    for many in (False, True):
        group = Group(SEPARATE, sites=8)
        group.chat(60, users=group.users if many else group.users[:1])
        group.until(lambda group=group: group.everybody_has(60))  # type: ignore[misc]
        counts.append([group.kinds[kind] for kind in ("Submit", "Bcast", "SubmitAck")])
    assert counts[0] == counts[1] == [60, 60, 60]


def test_no_action_before_the_end_message() -> None:
    # §4: start, middle and end; a sender that fails leaves nothing half done.
    group = Group(SEPARATE)
    sender = group.users[0]
    group.world.set_links(Hook(lambda t, s, d, pdu: s == sender and group.cr.acked >= 2))
    group.say(sender, b"start", b"middle", b"end")
    group.run(2)
    group.world.crash(sender, DISK)
    group.run(20)
    assert group.cr.acked == 2
    assert all(group.texts(user) == [] for user in group.users)


def test_the_payload_travels_twice() -> None:
    # §5: once from the sender to the retransmitter and then to everyone else.
    group = Group(SEPARATE, sites=20)
    group.say(group.users[0], b"payload")
    group.run(1)
    carriers = [
        pdu
        for _, _, _, pdu in group.sends
        if isinstance(pdu, Submit) or (isinstance(pdu, Bcast) and pdu.message.bundle.data)
    ]
    assert len(carriers) == 2


def test_three_receivers_are_the_edge() -> None:
    # §5: an edge if communication between three or more nodes is required.
    def one_to_one(receivers: int) -> int:
        return 2 * receivers  # a message and its acknowledgement each

    group = Group(SEPARATE)
    group.chat(50)
    group.run(3)
    broadcast = sum(group.kinds[k] for k in ("Submit", "Bcast", "SubmitAck")) / 50 + 1  # DA_ACK
    assert [one_to_one(r) <= broadcast for r in (1, 2, 3)] == [True, True, False]


def test_one_computer_can_be_retransmitter_and_recorder() -> None:
    # §5: most of the functions except the Designated Acknowledger in one physical computer.
    group = Group(DEMO, sites=10)
    assert group.roles.retransmitters == group.roles.recorders == (0,)
    assert group.roles.acknowledgers[0] in group.users  # one of the receivers acknowledges
    group.chat(50)
    group.until(lambda: group.everybody_has(50))
    group.judge()


def test_hot_standbys_take_over() -> None:
    # §5, §6.1: a Secondary node takes over if the Primary node fails.
    for role in ("cr", "da"):
        group = Group(FAILSAFE, sites=9)
        group.chat(20)
        group.run(1)
        old = group.ruler.me if role == "cr" else group.ruler.reign.da
        group.world.crash(old, DISK)
        group.chat(20)
        group.until(lambda group=group: group.reigns(-1) and group.ruler.reign.epoch > 0)  # type: ignore[misc]
        group.run(2)
        group.chat(10)
        group.run(3)
        now = group.ruler.me if role == "cr" else group.ruler.reign.da
        assert now != old
        total = group.cr.acked
        group.until(
            lambda group=group, total=total: all(  # type: ignore[misc]
                group.user(u).listener.next == total for u in group.users
            )
        )
        group.judge()


def test_a_redundant_recorder_is_just_a_second_one() -> None:
    # §5: the same conference can be recorded in more than one Playback Recorder.
    group = Group(FAILSAFE, sites=9)
    group.chat(30)
    group.run(2)
    group.world.crash(group.roles.recorders[0], DISK)
    late = group.users[0]
    group.chat_without(late, 30, seconds=2)
    group.until(lambda: len(group.texts(late)) == 60)
    assert group.archive(1) != group.archive(0)


def test_the_broadcast_line_carries_only_broadcasts_and_acknowledgements() -> None:
    # §6.1: there will be no congestion on this Broadcast Line.
    group = Group(SEPARATE, links=Lossy(0.1))
    seen: set[tuple[str, int]] = set()
    for line in lines(group):
        send = line.send

        def spy(src: int, dst: int, pdu: object, line: object = line, send: object = send) -> None:
            seen.add((type(pdu).__name__, line.line))  # type: ignore[attr-defined]
            send(src, dst, pdu)  # type: ignore[operator]

        line.send = spy
    group.chat(100)
    group.until(lambda: group.everybody_has(100))
    group.run(2)
    assert {name for name, line in seen if line == LINE_B} == {"Bcast", "DaAck", "Alive"}
    assert "Bcast" not in {name for name, line in seen if line == LINE_A}


def test_the_system_falls_back_to_a_single_line() -> None:
    # §6.1: in case one of the lines fails.
    group = Group(SEPARATE)
    lines(group)[LINE_B].cut = True
    group.chat(30)
    group.until(lambda: group.everybody_has(30))
    assert group.ruler.reign.epoch == 0


def test_secondaries_need_not_be_in_step_with_the_primary() -> None:
    # §6.2: missed messages can be recovered from a Playback Recorder; there can be several.
    group = Group(SEPARATE, sites=8)
    primary, *secondaries = group.users
    for i in range(50):
        group.say(primary, b"state %d" % i, at=i * 20 * MS)
    for i, user in enumerate(secondaries):
        group.world.at(i * 100 * MS, lambda user=user: group.world.pause(user))  # type: ignore[misc]
        group.world.at(i * 100 * MS + 400 * MS, lambda user=user: group.world.resume(user))  # type: ignore[misc]
    group.run(0.45)
    assert len({len(group.texts(user)) for user in secondaries}) > 1
    group.run(0.75)
    group.world.crash(primary, DISK)
    group.until(lambda: len({len(group.texts(user)) for user in secondaries}) == 1)
    assert len({tuple(group.texts(user)) for user in secondaries}) == 1


def test_backup_a_lost_disk_is_brought_up_to_date_from_the_network_journal() -> None:
    # §6: an alternative system can be brought up-to-date from the "network journal".
    group = Group(SEPARATE)
    owner = group.users[0]
    group.chat(30, users=[owner])
    group.run(2)
    group.world.crash(owner, "nothing")
    group.run(1)
    group.world.restart(owner)
    group.applications.select(owner, EVERYTHING)
    before = len(group.texts(owner))
    group.until(lambda: len(group.texts(owner)) == before + 30)
    assert group.texts(owner)[before:] == group.texts(group.users[1])
