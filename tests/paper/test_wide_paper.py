"""What Hoque, Amin and Hossain claim of the hierarchy (abstract, §7–§9 of "Hierarchical Model of
Guaranteed, Reliable and Secured Broadcast Protocol"), one test per claim, each in simulated
networks.
"""

from __future__ import annotations

import itertools

from roundelay.core.engine import EVERYONE, MS, SECOND
from roundelay.core.grsb.pdu import Bcast
from roundelay.core.wide.pdu import AckGcr, AckLcr, Gbcast, LsDown, LsUp, Up
from tests.sim.line_net import Hook
from tests.sim.wide_net import T_NS, Hierarchy


def test_nodes_of_the_first_kind_may_be_off() -> None:
    # Abstract: they can be temporarily in 'not alive' condition.
    group = Hierarchy(networks=(5, 4), subnets=(2, 0))
    off = group.network(1).users[0]
    group.chat_without(off, 40, seconds=3)
    group.until(lambda: group.everybody_has(40), 60)
    group.judge()


def test_nodes_of_the_second_kind_need_two_phases() -> None:
    # Abstract: they have to follow two phases to finish the broadcast; up to LB, then down.
    group = Hierarchy(networks=(5, 4), subnets=(4, 0))
    network = group.network(1)
    node = network.nodes[-1]
    group.say(node, b"twice")
    group.until(lambda: group.everybody_has(1))
    up = min(time for time, site, _, pdu in group.sends if isinstance(pdu, LsUp) and site == node)
    signed = min(time for time, _, _, pdu in group.sends if isinstance(pdu, Up))
    down = min(time for time, _, to, pdu in group.sends if isinstance(pdu, LsDown) and to == node)
    assert up < signed < down < group.arrived[node, 0]
    group.judge()


def test_a_disconnected_network_gets_everything_when_it_is_back() -> None:
    # §8 (1): by the coordinated service of Central Retransmitter and Playback Recorder.
    group = Hierarchy(networks=(4, 4, 4))
    group.cut(2)
    there = group.network(2).users
    others = [user for user in group.users if user not in there]
    group.chat(60, users=others)
    group.until(lambda: group.everybody_has(60, others))
    assert not group.everybody_has(1, there)
    group.world.heal()
    group.until(lambda: group.everybody_has(60))
    assert group.kinds["ReplayData"] > 0  # from the recorder
    group.judge()


def test_a_slow_receiver_costs_the_others_nothing() -> None:
    # §8 (2): extra processing overhead of slower receivers has also been eliminated.
    took = []
    for deaf in (False, True):
        group = Hierarchy(networks=(5, 5))
        slow = group.network(1).users[-1]
        rng = group.world.stream("slow")
        if deaf:
            group.world.set_links(
                Hook(lambda t, s, d, pdu, slow=slow, rng=rng: d == slow and rng.random() < 0.6)  # type: ignore[misc]
            )
        others = [user for user in group.users if user != slow]
        group.chat(60, gap_ns=MS, users=others)
        group.until(lambda group=group, others=others: group.everybody_has(60, others))  # type: ignore[misc]
        took.append(group.world.now)
        group.until(lambda group=group: group.everybody_has(60))  # type: ignore[misc]
        group.judge()
    assert took[1] <= took[0] * 1.1 + 20 * MS


def test_a_broadcast_line_reaches_its_own_network_only() -> None:
    # §8 (3): the length of multipoint lines is reduced, and the number of points on them.
    group = Hierarchy(networks=(4, 6, 5))
    group.chat(12)
    group.until(lambda: group.everybody_has(12))
    lines = group.world.medium.lines  # type: ignore[attr-defined]
    for net, network in group.atlas.networks.items():
        (lcr,) = network.retransmitters
        heard = {site.id for site in lines[0].hearers[lcr]}
        assert heard == set(network.attached) - {lcr}, net
        local = [pdu for _, site, to, pdu in group.sends
                 if isinstance(pdu, Bcast) and (site, to) == (lcr, EVERYONE)]  # fmt: skip
        assert len(local) == 12  # once per message and network
    group.judge()


def test_the_gcr_broadcasts_to_all_other_networks_and_answers_the_sender() -> None:
    # §9.1: broadcast m to all active LCR_j other than the sender; AckGCR to the sender.
    group = Hierarchy(networks=(4, 4, 4))
    group.say(group.network(2).users[0], b"m")
    group.until(lambda: group.everybody_has(1))
    told = {to for _, _, to, pdu in group.sends if isinstance(pdu, Gbcast)}
    assert told == {group.network(net).retransmitters[0] for net in (1, 3)}
    assert {pdu.net for *_, pdu in group.sends if isinstance(pdu, Gbcast)} == {2}  # SrcNetID
    answered = {to for _, _, to, pdu in group.sends if isinstance(pdu, AckGcr)}
    assert answered == {group.network(2).retransmitters[0]}
    group.judge()


def test_the_gpr_stores_a_message_until_all_networks_have_acknowledged_it() -> None:
    # §9.1: tell GPR to store m until all AckLCR_j(m) are received.
    group = Hierarchy(networks=(4, 4, 4), gpr_free=True)
    quiet = group.network(3).acknowledgers[0]
    group.world.set_links(
        Hook(lambda t, src, d, pdu: isinstance(pdu, AckLcr) and group.atlas.net_of(src) == 3)
    )
    group.say(group.network(1).users[0], b"m")
    group.until(lambda: group.everybody_has(1))
    group.run(5)
    assert group.gpr_log() == [0]
    group.world.heal()
    group.until(lambda: group.gpr_log() == [])
    assert quiet in {site for _, site, _, pdu in group.sends if isinstance(pdu, AckLcr)}
    group.judge()


def test_a_network_broadcasts_its_own_message_when_the_gcr_has_acknowledged_it() -> None:
    # §9.2: send m to GCR, wait until AckGCR(m) is received, broadcast m to all UN_j.
    group = Hierarchy(networks=(4, 4))
    (lcr,) = group.network(1).retransmitters
    group.say(group.network(1).users[0], b"m")
    group.until(lambda: group.everybody_has(1))

    def when(kind: type, site: int | None = None, to: int | None = None) -> int:
        return min(
            time for time, s, d, pdu in group.sends
            if isinstance(pdu, kind) and site in (None, s) and to in (None, d)
        )  # fmt: skip

    assert when(Up, site=lcr) < when(AckGcr, to=lcr) < when(Bcast, site=lcr)
    group.judge()


def test_lpr_gives_one_message_at_a_time_to_lb_and_waits() -> None:
    # §9.3: send m to LB_i to broadcast it, wait for (D+2)T.
    group = Hierarchy(networks=(4, 2), subnets=(6, 0))
    pause = (group.atlas.diameters[1] + 2) * T_NS
    group.chat(10, gap_ns=MS, users=group.network(2).users)
    group.until(lambda: group.everybody_has(10), 60)
    begins = group.flooded(1)
    starts = [begins[at] for at in sorted(begins)]
    assert len(starts) == 10
    # T to LB may differ by nothing here: links take exactly T.
    assert all(b - a >= pause for a, b in itertools.pairwise(starts))
    group.judge()


def test_lb_selects_one_of_colliding_messages_for_the_lcr() -> None:
    # §9.4: select m (one of m's in case of collision) for LCR_i's signature.
    group = Hierarchy(networks=(4, 2), subnets=(8, 0), layout_seed=5)
    network = group.network(1)
    for node in network.nodes:
        group.say(node, b"of %d" % node)
    handed = []
    group.run(0.5)
    for time, site, to, pdu in group.sends:
        if isinstance(pdu, LsUp) and site == network.broadcaster:
            assert to == network.retransmitters[0]
            handed.append(time)
    # At most one in a slot of length T.
    assert all(b - a >= T_NS for a, b in itertools.pairwise(handed))
    group.until(lambda: group.everybody_has(8), 120)
    group.judge()


def test_what_comes_down_is_forwarded_even_in_case_of_collision() -> None:
    # §9.5: select m (even in case of collision) to broadcast.
    group = Hierarchy(networks=(4, 2), subnets=(6, 0))
    network = group.network(1)
    for node in network.nodes:
        for i in range(3):
            group.say(node, b"%d of %d" % (i, node))
    group.chat(5, users=group.network(2).users)
    group.until(lambda: group.everybody_has(23), 300)
    far = group.atlas.diameters[1] * T_NS
    begins = group.flooded(1)
    for (site, at), time in group.arrived.items():
        if site in network.nodes:
            assert time - begins[at] <= far  # nothing on its way up held it up
    group.judge()


def test_attachment_roles_may_share_machines() -> None:
    # §5 for each module, figure 3: a network of two machines, and no machine for the global level.
    group = Hierarchy(networks=(2, 2, 2), apart=False)
    group.chat(20)
    group.until(lambda: group.everybody_has(20))
    assert group.world.now < 20 * SECOND
    assert len(group.world.sites) == 6
    group.judge()
