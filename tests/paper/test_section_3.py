"""CM84 §2 and §3: what the system is for, and the ideas behind it."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest

from roundelay.core.bundle import Bundle
from roundelay.core.engine import EVERYONE, NEVER
from roundelay.core.positive_ack import PaAck, PaB, PositiveAckConfig, PositiveAckSite
from roundelay.core.token.pdu import (
    DATA,
    Ack,
    B,
    Invite,
    NewTl,
    NewToken,
    RetxAck,
    RetxMsg,
    RetxReq,
    Vote1,
    Vote2,
)
from tests.core.ring import MS, Ring
from tests.core.sends import sends_of
from tests.paper.measure import busy, positive_ack, token


def heard(site: PositiveAckSite) -> list[bytes]:
    return [message for delivery in site.take().deliveries for message in delivery.bundle]


# -- §2: the service -------------------------------------------------------------------------


def test_the_messages_of_one_transmitter_are_delivered_in_its_sequence() -> None:
    # §2.1
    ring = Ring(4, bundle=False)
    for source in ring.group:
        ring.submit(source, *(f"{source}.{k}" for k in range(6)))
    ring.run(5000 * MS)
    for site in ring.group:
        for source in ring.group:
            mine = [text for text in ring.log(site) if text.startswith(f"{source}.")]
            assert mine == [f"{source}.{k}" for k in range(6)]


def test_one_message_at_a_time_is_transmitted_until_it_is_acknowledged() -> None:
    # §2.1
    ring = Ring(3, bundle=False)
    ring.submit(2, "a", "b", "c")
    under_way: set[int] = set()
    most = 0
    while ring.flights or len(ring.log(0)) < 3:
        for sent in ring.sent:
            if isinstance(sent.pdu, B):
                under_way.add(sent.pdu.n)
        most = max(most, len(under_way) - ring[2].log.next_num[2])
        if ring.flights:
            ring.deliver()
        else:
            ring.run(10 * MS)
    assert most == 1


def test_a_message_cannot_be_read_by_the_application_before_it_is_committed() -> None:
    # §2.1
    ring = Ring(5, resilience=2)
    ring.submit(3, "x")
    ring.settle()
    assert all(ring.stamped_by(site) == ["x"] for site in ring.group)  # received and in sequence
    assert not any(ring.log(site) for site in ring.group)
    ring.run(1000 * MS)
    assert ring.log(3) == ["x"]


def test_a_site_mistakenly_assumed_to_have_failed_is_taken_in_again() -> None:
    # §2.2 (3)
    ring = Ring(3, attempts=2)
    ring.cut((2,), (0, 1))
    ring.submit(0, "a", "b")
    ring.run_until(lambda: ring[0].token_list.members == (0, 1))
    assert ring[2].phase != "down"  # it never failed
    ring.heal()
    ring.run_until(lambda: ring[0].token_list.members == (0, 1, 2) and ring.log(2) == ["a", "b"])


# -- §3: the two simple systems --------------------------------------------------------------


@pytest.mark.parametrize("sites", [2, 3, 8])
def test_positive_acknowledgement_needs_an_acknowledgement_from_every_receiver(
    sites: int,
) -> None:
    # §3; the source itself needs none.
    measured = positive_ack(sites, messages=50)
    assert measured.kinds == {"PaB": 50, "PaAck": 50 * (sites - 1)}


def test_positive_acknowledgement_does_not_give_all_receivers_the_same_sequence() -> None:
    # §3, Fig. 2: M1 is lost at one receiver and sent again after M2.
    config = PositiveAckConfig()
    a, b, i, j = (PositiveAckSite(k, (0, 1, 2, 3), config, Random(k)) for k in range(4))
    a.submit(Bundle.of(b"M1"), 0)
    ((dst, m1),) = sends_of(a.take())
    assert dst == EVERYONE
    i.receive(m1, 0, 1)  # R_j misses it
    assert isinstance(m1, PaB)
    b.submit(Bundle.of(b"M2"), 2)
    ((_, m2),) = sends_of(b.take())
    i.receive(m2, 1, 3)
    j.receive(m2, 1, 3)
    a.receive(PaAck(0, m1.n, 2), 2, 4)
    a.on_timer(a.deadline)
    again = [pdu for dst, pdu in sends_of(a.take()) if dst == 3]
    assert again == [m1]  # to those alone that have not answered
    j.receive(m1, 0, 5)
    assert heard(i) == [b"M1", b"M2"]
    assert heard(j) == [b"M2", b"M1"]


def test_the_same_loss_leaves_the_sequence_of_the_token_protocol_alone() -> None:
    # §3: the situation of Fig. 2.
    ring = Ring(4)
    ring.lose(B, src=1, dst=3, times=1)
    ring.submit(1, "M1")
    ring.submit(2, "M2")
    ring.run(1000 * MS)
    assert ring.log(0) == ring.log(1) == ring.log(2) == ring.log(3)
    assert sorted(ring.log(3)) == ["M1", "M2"]


# -- §3: the token site ----------------------------------------------------------------------


@pytest.mark.parametrize("sites", [3, 10])
def test_a_message_needs_one_acknowledgement_when_the_system_is_busy(sites: int) -> None:
    # §3
    measured = token(sites, load=busy(400))
    assert measured.kinds["B"] == 400
    assert measured.kinds["Ack"] - 400 <= 1  # a NULL may follow the very last message
    assert measured.control == pytest.approx(1, abs=0.01)
    assert measured.same_order


def test_receivers_transmit_nothing_if_no_message_is_lost() -> None:
    # §3
    ring = Ring(5, idle_ns=NEVER, bundle=False)
    ring.submit(4, *"abcdefgh")
    ring.run(3000 * MS)
    for sent in ring.sent:
        pdu = sent.pdu
        if sent.src == 4 and isinstance(pdu, B):
            continue  # the source
        assert pdu.by == sent.src  # otherwise token sites alone, acknowledging or confirming
    assert ring.pdus(RetxReq) == []


def test_receivers_place_messages_in_the_sequence_in_which_they_were_acknowledged() -> None:
    # §3
    ring = Ring(4, bundle=False)
    for source in (3, 1, 2, 0):
        ring.submit(source, f"{source}a", f"{source}b")
    ring.run(3000 * MS)
    acknowledged = [(ack.s, ack.n) for ack in ring.pdus(Ack) if ack.kind == DATA]
    for site in ring.group:
        assert [(d.source, d.number) for d in ring.delivered[site]] == acknowledged


def test_receivers_detect_by_the_timestamps_what_is_missing_and_request_it() -> None:
    # §3: the acknowledgement, and the acknowledged message.
    ring = Ring(4, bundle=False, idle_ns=NEVER, request_delay_ns=0)
    ring.lose(lambda pdu: isinstance(pdu, B) and pdu.n == 0, dst=3, times=1)
    ring.lose(lambda pdu: isinstance(pdu, Ack) and pdu.ts == 0, dst=3, times=1)
    ring.submit(1, "a", "b")
    ring.run(60 * MS)
    requests = ring.pdus(RetxReq, src=3)
    assert [(r.what, r.ts) for r in requests] == [(1, 0), (2, 0)]
    assert [pdu.ack.ts for pdu in ring.pdus(RetxAck, dst=3)] == [0]
    assert [pdu.b.n for pdu in ring.pdus(RetxMsg, dst=3)] == [0]
    ring.run(1000 * MS)
    assert ring.log(3) == ["a", "b"]


def test_the_acknowledgement_carries_the_token_and_names_the_next_token_site() -> None:
    # §3
    ring = Ring(4, bundle=False)
    ring.submit(2, *"abcdefghij")
    ring.run(3000 * MS)
    acks = ring.pdus(Ack)
    assert [ack.by for ack in acks[:8]] == [0, 1, 2, 3, 0, 1, 2, 3]
    assert all(one.next == two.by for one, two in pairwise(acks))


def test_when_a_site_gets_the_token_again_everybody_has_what_it_acknowledged_before() -> None:
    # §3
    ring = Ring(4, bundle=False, idle_ns=NEVER)
    ring.lose(B, dst=2, times=3)
    ring.lose(Ack, dst=3, times=3)
    ring.submit(1, *(f"m{k}" for k in range(12)))
    last: dict[int, int] = {}
    looked = 0
    while len(ring.log(1)) < 11:
        ring.deliver() if ring.flights else ring.run(10 * MS)
        for sent in ring.sent[looked:]:
            if isinstance(sent.pdu, Ack) and sent.pdu.ts not in last.values():
                # Before its new stamp, all of the list have processed its previous one.
                before = last.get(sent.src)
                if before is not None:
                    assert all(ring[site].nts > before for site in ring.group)
                last[sent.src] = sent.pdu.ts
        looked = len(ring.sent)


def test_only_a_finite_number_of_messages_is_retained() -> None:
    # §3
    measured = token(5, load=busy(600))
    assert measured.storage <= 4
    assert max(len(engine.log.entries) for engine in measured.engines) <= 10


@pytest.mark.parametrize("level", [0, 1, 2, 3])
def test_at_least_l_plus_1_sites_have_a_message_when_it_is_committed(level: int) -> None:
    # §3
    ring = Ring(7, resilience=level, bundle=False, idle_ns=NEVER)
    for site in (3, 4, 5, 6):  # most copies get lost
        ring.lose(B, dst=site, times=4)
        ring.lose(Ack, dst=site, times=4)
    for source in (0, 1, 2):
        ring.submit(source, f"{source}a", f"{source}b")
    committed: set[int] = set()
    fewest = 7
    while ring.now < 5000 * MS:
        ring.deliver() if ring.flights else ring.run(5 * MS)
        for site in ring.group:
            for delivery in ring.delivered[site]:
                if delivery.seq not in committed:
                    committed.add(delivery.seq)
                    holders = [
                        other
                        for other in ring.group
                        if any(e.seq == delivery.seq and e.ack.kind == DATA
                               for e in ring[other].log.entries.values())
                    ]  # fmt: skip
                    fewest = min(fewest, len(holders))
    assert len(committed) == 6
    assert fewest >= level + 1


# -- §3: failures ----------------------------------------------------------------------------


def test_a_source_that_gets_no_acknowledgement_detects_the_failure_of_the_token_site() -> None:
    # §3
    ring = Ring(3, attempts=3, idle_ns=NEVER)
    ring.crash(0)  # it has the token, and nobody knows
    ring.submit(2, "x")
    ring.run(10 * MS)
    assert ring[2].phase == "NORMAL"
    ring.run_until(lambda: ring[2].token_list.members == (1, 2))
    assert len([b for b in ring.pdus(B, src=2) if b.tl == (0, 0)]) == 1 + 3
    ring.run(500 * MS)
    assert ring.log(1) == ["x"]


def test_a_receiver_that_cannot_recover_a_lost_message_detects_the_failure() -> None:
    # §3
    ring = Ring(3, attempts=3, idle_ns=NEVER, request_delay_ns=0)
    ring.lose(B, dst=2)
    ring.lose(RetxMsg, dst=2)
    ring.submit(1, "x")
    ring.settle()
    ring.crash(0, 1)
    ring.run(2000 * MS)
    assert len(ring.pdus(RetxReq, src=2)) == 1 + 3
    assert ring[2].phase != "NORMAL"


def test_a_message_that_transfers_the_token_is_retransmitted_until_the_next_site_shows() -> None:
    # §3
    ring = Ring(3, attempts=3, idle_ns=NEVER)
    ring.crash(1)
    ring.submit(2, "x")
    ring.run(420 * MS)
    (ack,) = set(ring.pdus(Ack))
    assert ring.pdus(Ack) == [ack] * (1 + 3)  # then the next site is taken to have failed
    assert ring.told(0, "suspect") == [(1,)]


@pytest.mark.parametrize("victim", range(1, 6))
def test_any_failure_is_detected_within_n_token_transfers(victim: int) -> None:
    # §3
    ring = Ring(6, attempts=2, idle_ns=NEVER)
    ring.crash(victim)
    k = 0
    while ring[0].phase == "NORMAL" and ring[0].tl == (0, 0) and k < 20:
        ring.submit(0, f"m{k}")
        ring.run(400 * MS)
        k += 1
    transfers = {ack.ts for ack in ring.pdus(Ack) if ack.tl == (0, 0)}
    assert len(transfers) <= 6
    assert victim not in ring[0].token_list.members or ring[0].phase != "NORMAL"


def test_the_system_alternates_between_a_normal_phase_and_a_reformation_phase() -> None:
    # §3
    ring = Ring(3, attempts=2)
    ring.submit(1, "a", "b", "c")
    ring.crash(2)
    ring.run_until(lambda: ring[0].token_list.members == (0, 1))
    ring.restart(2)
    ring.run_until(lambda: ring[0].token_list.members == (0, 1, 2))
    phases = []
    for sent in ring.sent:
        if sent.src in (0, 1):
            reforming = isinstance(sent.pdu, (Invite, Vote1, NewTl, Vote2, NewToken))
            phases.append("reformation" if reforming else "normal")
    changes = [
        phase for phase, before in zip(phases, ["", *phases], strict=False) if phase != before
    ]
    assert changes == ["normal", "reformation", "normal", "reformation", "normal"]
