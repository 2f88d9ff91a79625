"""CM84 §4: the normal phase."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import pytest

from roundelay.core.engine import NEVER
from roundelay.core.token.pdu import (
    DATA,
    NULL,
    Ack,
    B,
    Confirm,
    RetxAck,
    RetxMsg,
    RetxReq,
    TlHint,
)
from tests.core.ring import MS, Ring

T = 50 * MS
U = (0, 0)


def test_sites_with_different_token_lists_cause_a_reformation() -> None:
    # §4: here a site missed that a new list was formed without it.
    ring = Ring(3, attempts=2)
    ring.crash(2, keeps="memory")
    ring.submit(0, "a", "b")
    ring.run_until(lambda: ring[0].token_list.members == (0, 1))
    ring.restart(2)
    ring.submit(2, "c")  # sent under the old list
    ring.settle()
    assert ring.pdus(TlHint, dst=2)
    ring.run_until(lambda: ring.log(0) == ["a", "b", "c"])
    assert ring[0].token_list.members == (0, 1, 2)


@pytest.mark.parametrize(
    "solicits, response",
    [("broadcast", Ack), ("request", RetxAck), ("transfer", Confirm)],
)
def test_three_messages_solicit_a_response_and_a_reformation_follows_if_none_comes(
    solicits: str, response: type
) -> None:
    # §4 (1)–(3)
    ring = Ring(3, attempts=2, idle_ns=NEVER, request_delay_ns=0)
    if solicits == "broadcast":
        ring.crash(0)
        ring.submit(2, "x")
    elif solicits == "request":
        ring.lose(lambda pdu: isinstance(pdu, Ack) and pdu.ts == 0, dst=2, times=1)
        ring.lose(RetxAck, dst=2)
        ring.lose(Confirm, dst=2)
        ring.submit(1, "x", "y")
        ring.settle()
        ring.crash(0, 1)
    else:
        ring.crash(1)
        ring.submit(0, "x")
    observer = {"broadcast": 2, "request": 2, "transfer": 0}[solicits]
    repeated: Any = {"broadcast": B, "request": RetxReq, "transfer": Ack}[solicits]
    ring.run_until(lambda: ring[observer].phase != "NORMAL")
    assert len(ring.pdus(repeated, src=observer)) == 1 + 2  # R successive attempts
    assert not [s for s in ring.sent if isinstance(s.pdu, response) and s.dst == observer
                and s.src in ring.sites]  # fmt: skip


def test_all_messages_identify_the_list_and_only_sites_with_the_same_list_communicate() -> None:
    # §4.1
    ring = Ring(3)
    before = [ring[site].nts for site in ring.group]
    for tl in ((-1, 0),):  # an older list
        ring.inject(Ack(tl, 0, NULL, 0, 0, 0, 1), 0, 1)
        ring.inject(Confirm(tl, 0, 0, 0), 0, 1)
    assert [ring[site].nts for site in ring.group] == before
    ring.submit(1, "x")
    ring.run(300 * MS)
    assert {pdu.tl for kind in (B, Ack, Confirm) for pdu in ring.pdus(kind) if pdu.tl[0] >= 0} == {
        U
    }


def test_when_the_normal_phase_starts_all_sites_of_the_list_have_the_same_nts_and_m() -> None:
    # §4.1
    ring = Ring(4, bundle=False)
    ring.lose(B, dst=3)
    ring.lose(Ack, dst=3, times=2)
    for source in (0, 1, 2):
        ring.submit(source, *(f"{source}{k}" for k in range(3)))
    ring.run(60 * MS)
    ring.heal()
    starts: dict[Any, Any] = {}
    ring[1].reform(ring.now)
    ring.collect(1)
    while len(starts) < 4:
        ring.deliver()
        for site in ring.group:
            engine = ring[site]
            if (
                site not in starts
                and engine.tl == (1, 1)
                and engine.nts == engine.token_list.start_ts
            ):
                starts[site] = (engine.nts, dict(engine.log.next_num), engine.log.exp)
    assert len({str(start) for start in starts.values()}) == 1


# -- transmitting ----------------------------------------------------------------------------


def test_a_source_retransmits_until_it_receives_an_acknowledgement() -> None:
    # §4.1
    ring = Ring(3)
    ring.lose(B, src=2, times=2 * 3)  # three transmissions, two receivers each
    ring.submit(2, "x")
    ring.run(1000 * MS)
    assert len(ring.pdus(B)) == 4
    assert ring.log(0) == ["x"]


def test_successive_messages_of_a_source_have_incrementally_increasing_numbers() -> None:
    # §4.1
    ring = Ring(3, bundle=False, resilience=1)
    ring.lose(B, times=4)
    ring.lose(Ack, times=4)
    ring.submit(2, *"abcdef")
    ring.run(5000 * MS)
    numbers = [pdu.n for pdu in ring.pdus(B, src=2)]
    assert sorted(set(numbers)) == list(range(6))
    assert numbers == sorted(numbers)  # the next one only after the acknowledgement of the last


# -- timestamping ----------------------------------------------------------------------------


def test_a_broadcast_message_is_acknowledged_only_once() -> None:
    # §4.1: M_i[s] tells a new message from one that has been acknowledged.
    ring = Ring(3, bundle=False)
    ring.lose(Ack, dst=2, times=5)  # the source repeats
    ring.lose(RetxAck, dst=2, times=3)
    ring.submit(2, "a", "b")
    ring.run(5000 * MS)
    for _ in range(3):  # and late copies turn up everywhere
        for pdu in ring.pdus(B):
            for site in (0, 1):
                ring.inject(pdu, 2, site)
    ring.run(500 * MS)
    stamped = Counter((ack.s, ack.n) for ack in set(ring.pdus(Ack)) if ack.kind == DATA)
    assert stamped == {(2, 0): 1, (2, 1): 1}
    assert ring.log(0) == ["a", "b"]


def test_a_token_is_transferred_without_a_message_by_acknowledging_a_null_message() -> None:
    # §4.1
    ring = Ring(5, resilience=2, idle_ns=NEVER)
    ring.submit(3, "x")
    ring.run(500 * MS)
    assert [(ack.kind, ack.by, ack.next) for ack in ring.pdus(Ack)] == [(DATA, 0, 1), (NULL, 1, 2)]


def test_acknowledgements_are_processed_in_the_order_of_their_timestamps() -> None:
    # §4.1
    ring = Ring(4, bundle=False)
    ring.submit(1, *"abcd")
    marks = [0]
    while len(ring.log(3)) < 3:
        if ring.flights:
            ring.deliver(len(ring.flights) - 1)  # the last one first: as disorderly as can be
        else:
            ring.run(5 * MS)
        if ring[3].nts != marks[-1]:
            marks.append(ring[3].nts)
    assert all(two > one for one, two in pairwise(marks))
    assert ring.log(3) == ["a", "b", "c", "d"][: len(ring.log(3))]


def test_an_acknowledgement_that_was_processed_is_not_processed_again() -> None:
    # §4.1
    ring = Ring(3)
    ring.submit(1, "x")
    ring.run(300 * MS)
    state = (ring[2].nts, dict(ring[2].log.next_num), list(ring[2].log.entries))
    for ack in ring.pdus(Ack):
        ring.inject(ack, 0, 2)
    assert (ring[2].nts, dict(ring[2].log.next_num), list(ring[2].log.entries)) == state
    assert ring.log(2) == ["x"]


def test_missing_acknowledgements_are_requested_and_processed_first() -> None:
    # §4.1
    ring = Ring(4, bundle=False, batch=False, request_delay_ns=0)
    ring.lose(lambda pdu: isinstance(pdu, Ack) and pdu.ts < 2, dst=3)
    ring.submit(1, "a", "b", "c")
    ring.settle()
    wanted = [pdu.ts for pdu in ring.pdus(RetxReq, src=3) if pdu.what == 1]
    assert wanted == [0, 1]
    assert ring[3].nts == 3
    assert ring.stamped_by(3) == ["a", "b", "c"]


def test_a_message_that_is_missing_is_obtained_before_its_acknowledgement_is_processed() -> None:
    # §4.1
    ring = Ring(4, request_delay_ns=0)
    ring.lose(B, dst=3)
    ring.lose(RetxMsg, dst=3, times=2)
    ring.submit(1, "x")
    ring.settle()
    assert ring[3].nts == 0
    assert list(ring[3].ordering.qc) == [0]
    ring.run(120 * MS)  # requests are repeated until the message is received
    assert [pdu.what for pdu in ring.pdus(RetxReq, src=3)] == [2, 2, 2]
    assert ring[3].nts == 1


def test_acknowledgements_that_arrive_meanwhile_wait_in_q_c() -> None:
    # §4.1
    ring = Ring(4, bundle=False, request_delay_ns=0)
    ring.lose(lambda pdu: isinstance(pdu, B) and pdu.n == 0, dst=3)
    ring.lose(RetxMsg, dst=3)
    ring.submit(1, "a", "b", "c")
    ring.settle()
    assert sorted(ring[3].ordering.qc) == [0, 1, 2]
    assert ring[3].nts == 0
    ring.heal()
    ring.run(60 * MS)
    assert (ring[3].ordering.qc, ring.stamped_by(3)) == ({}, ["a", "b", "c"])


# -- committing ------------------------------------------------------------------------------


@pytest.mark.parametrize("level", [0, 1, 2, 3])
def test_a_message_is_committed_after_the_token_was_transferred_l_times(level: int) -> None:
    # §4.1; a transfer has happened when the next site has accepted the token.
    ring = Ring(7, resilience=level, idle_ns=NEVER)
    ring.submit(6, "x")
    first = None
    while first is None:
        ring.deliver() if ring.flights else ring.fire(
            min(ring.sites, key=lambda site: ring.sites[site].deadline)
        )
        first = next((site for site in ring.group if ring.log(site)), None)
    assert first == level  # the site that made the L-th transfer complete, counted from site 0
    assert ring[first].nts == max(level, 1)


def test_a_token_site_with_an_uncommitted_message_waits_t_for_a_new_message() -> None:
    # §4.1
    ring = Ring(5, resilience=2, idle_ns=NEVER)
    ring.submit(4, "x")
    ring.run(T - 1)
    assert [ack.kind for ack in ring.pdus(Ack)] == [DATA]
    ring.run(1)
    assert [ack.kind for ack in ring.pdus(Ack)] == [DATA, NULL]
    # A message that comes in time takes the place of the NULL.
    other = Ring(5, resilience=2, idle_ns=NEVER)
    other.submit(4, "x")
    other.run(T - 1)
    other.submit(3, "y")
    other.run(1)
    assert [ack.kind for ack in other.pdus(Ack)] == [DATA, DATA]


def test_the_system_cannot_deadlock_because_a_message_is_not_committed() -> None:
    # §4.1
    for level in (1, 2, 3, 4):
        ring = Ring(9, resilience=level, idle_ns=NEVER)
        ring.submit(5, "last words")
        ring.run(2000 * MS)
        assert ring.log(level) == ["last words"]


def test_once_around_everybody_has_received_and_l_further_everybody_has_committed() -> None:
    # §4.1, end
    sites, level = 5, 2
    ring = Ring(sites, resilience=level, bundle=False, idle_ns=NEVER)
    ring.submit(3, "x")
    for k in range(sites + level):
        ring.submit(k % sites, f"next {k}")
    seen_by_all = committed_by_all = None
    while committed_by_all is None:
        ring.deliver() if ring.flights else ring.run(5 * MS)
        accepted = max(ring[site].stamping.hold_ts for site in ring.group)
        if seen_by_all is None and all("x" in ring.stamped_by(s) for s in ring.group):
            seen_by_all = accepted
        if all("x" in ring.log(site) for site in ring.group):
            committed_by_all = accepted
    # Stamp 0 is x; the token is back at its issuer with stamp N − 1, and at the site that made
    # it commit with stamp N − 1 + L: never later than that.
    assert seen_by_all is not None
    assert seen_by_all <= sites - 1
    assert committed_by_all <= sites - 1 + level


def test_passing_the_token_on_is_not_enough_for_every_receiver_to_commit() -> None:
    # §4.1: without the beacon, a site that missed the last acknowledgement does not know it.
    ring = Ring(4, idle_ns=NEVER)
    ring.lose(dst=3)
    ring.submit(1, "x")
    ring.run(1000 * MS)
    ring.heal()
    ring.run(60_000 * MS)
    assert ring.log(0) == ["x"]
    assert ring.log(3) == []


# -- §4.2: the token site --------------------------------------------------------------------


def test_a_site_transmits_the_transferring_acknowledgement_until_it_hears_the_next_site() -> None:
    # §4.2
    ring = Ring(3, idle_ns=NEVER)
    ring.lose(Ack, dst=1, times=2)
    ring.submit(2, "x")
    ring.run(1000 * MS)
    assert ring.pdus(Ack) == [ring.pdus(Ack)[0]] * 3
    assert ring.holders == [1]
    count = len(ring.sent)
    ring.run(5000 * MS)
    assert len(ring.sent) == count  # and no longer


@pytest.mark.parametrize("how", ["acknowledging", "passing on", "confirming"])
def test_what_constitutes_accepting_the_token(how: str) -> None:
    # §4.2
    ring = Ring(5, resilience=2 if how == "passing on" else 1, idle_ns=NEVER, bundle=False)
    ring.submit(4, "x")
    if how == "acknowledging":
        ring.submit(3, "y")
    ring.run(T)
    by_1 = [sent.pdu for sent in ring.sent if sent.src == 1]
    expected = {"acknowledging": DATA, "passing on": NULL, "confirming": None}[how]
    assert getattr(by_1[0], "kind", None) == expected
    assert ring[0].stamping.passing == -1


def test_an_idle_token_site_confirms_and_retains_the_token_until_a_message_comes() -> None:
    # §4.2
    ring = Ring(3, idle_ns=NEVER)
    ring.submit(2, "x")
    ring.run(10_000 * MS)
    assert ring.kinds() == {"B": 1, "Ack": 1, "Confirm": 1}
    assert ring.holders == [1]
    ring.submit(0, "y")
    ring.settle()
    assert [ack.by for ack in ring.pdus(Ack)] == [0, 1]


def test_the_token_transfer_costs_no_message_while_there_are_messages_to_acknowledge() -> None:
    # §4.2
    ring = Ring(4, bundle=False, idle_ns=NEVER)
    for source in ring.group:
        ring.submit(source, *(f"{source}{k}" for k in range(5)))
    ring.settle()
    assert ring.kinds() == {"B": 20, "Ack": 20}


def test_a_site_accepts_the_token_only_with_everything_that_may_be_requested_of_it() -> None:
    # §4.2
    ring = Ring(4, bundle=False, request_delay_ns=0)
    ring.lose(lambda pdu: isinstance(pdu, Ack) and pdu.ts == 0, dst=2)
    ring.lose(RetxAck, dst=2, times=1)
    ring.submit(3, "a", "b")
    ring.settle()  # stamp 1 passes the token to 2, which lacks stamp 0
    assert not ring[2].holding
    assert ring[1].stamping.passing == 1  # and 1 goes on answering
    ring.run(T)
    assert ring[2].holding
    assert ring.stamped_by(2) == ["a", "b"]


def test_a_request_may_be_answered_by_two_sites_and_the_redundant_answer_is_discarded() -> None:
    # §4.2
    ring = Ring(4, idle_ns=NEVER, request_delay_ns=0)
    ring.lose(Confirm, dst=0)  # 0 does not learn that 1 has accepted the token
    ring.lose(Ack, dst=3, times=1)
    ring.submit(2, "x")
    ring.run(T)  # 1 has confirmed: both are in service, and 3 hears of the stamp
    answers = [sent.src for sent in ring.sent if isinstance(sent.pdu, RetxAck) and sent.dst == 3]
    assert sorted(answers) == [0, 1]
    assert ring[3].nts == 1
    assert ring.log(3) == ["x"]


def test_somebody_in_service_always_has_every_message_up_to_the_last_timestamp() -> None:
    # §4.2
    ring = Ring(4, bundle=False, idle_ns=NEVER)
    ring.lose(B, times=6)
    ring.lose(Ack, times=6)
    for source in ring.group:
        ring.submit(source, *(f"{source}{k}" for k in range(4)))
    while not all(len(ring.log(site)) >= 15 for site in ring.group):
        ring.deliver() if ring.flights else ring.run(5 * MS)
        top = max((ack.ts for ack in ring.pdus(Ack)), default=-1)
        assert any(
            engine.nts > top and (engine.holding or engine.stamping.passing >= 0)
            for engine in ring.sites.values()
        )


def test_an_old_broadcast_message_is_taken_as_a_request_for_its_acknowledgement() -> None:
    # §4.2
    ring = Ring(3, idle_ns=NEVER)
    ring.lose(Ack, dst=2)
    ring.lose(Confirm, dst=2)
    ring.submit(2, "x")
    ring.run(ring.config.resend_ns)
    assert len(ring.pdus(B)) == 2
    assert [(s.src, s.dst) for s in ring.sent if isinstance(s.pdu, RetxAck)] == [(1, 2)]
    assert ring[2].own.outstanding == -1


def test_an_old_acknowledgement_is_taken_as_a_request_for_the_acceptance() -> None:
    # §4.2: both forms of acceptance, a later acknowledgement and a confirmation.
    ring = Ring(3, idle_ns=NEVER)
    ring.lose(Confirm, dst=0, times=1)
    ring.submit(2, "x")
    ring.run(100 * MS)
    assert len(ring.pdus(Confirm)) == 2
    ring = Ring(3, idle_ns=NEVER, bundle=False)
    ring.lose(lambda pdu: isinstance(pdu, Ack) and pdu.by == 1, dst=0)
    ring.lose(Confirm, dst=0)
    ring.submit(2, "x", "y")
    ring.run(100 * MS)
    assert [pdu.ack.by for pdu in ring.pdus(RetxAck, dst=0)] == [1]


def test_all_operational_sites_commit_the_messages_in_the_same_sequence() -> None:
    # §4.2, end: whatever is lost, as long as it is not lost for ever.
    ring = Ring(5, bundle=False)
    for kind in (B, Ack, Confirm, RetxReq, RetxAck, RetxMsg):
        for site in ring.group:
            ring.lose(kind, dst=site, times=5)
    for source in ring.group:
        ring.submit(source, *(f"{source}{k}" for k in range(6)))
    ring.run(60_000 * MS)
    assert len(ring.log(0)) == 30
    assert all(ring.log(site) == ring.log(0) for site in ring.group)
    ring.check()
