"""The normal phase, rule by rule (CM-N1 … CM-N21)."""

from __future__ import annotations

from itertools import pairwise
from random import Random
from typing import Any

import pytest

from roundelay.core.bundle import NOTHING, Bundle
from roundelay.core.engine import COMMITTED, EVERYONE, NEVER, STAMPED, Delivery
from roundelay.core.errors import PayloadTooLarge, QueueFull, UsageError
from roundelay.core.token.config import TokenConfig
from roundelay.core.token.pdu import (
    DATA,
    NULL,
    WANT_ACK,
    WANT_MESSAGE,
    Ack,
    B,
    Confirm,
    Entry,
    Invite,
    RetxAck,
    RetxMsg,
    RetxReq,
    TlHint,
)
from roundelay.core.token.phases import NORMAL, O1
from roundelay.core.token.site import TokenSite
from roundelay.core.token.stable import Committed, Stamped
from tests.core.ring import MS, Ring, invitation
from tests.core.sends import sends_of

TL = (0, 0)  # the preformed list
T = 50 * MS


def alone(me: int, sites: int = 3, **changes: Any) -> TokenSite:
    """One preformed site whose peers are played by the test."""
    config = TokenConfig(**{"request_delay_ns": 0, **changes})
    site = TokenSite(me, tuple(range(sites)), config, Random(me))
    site.take()
    return site


def sends(site: TokenSite) -> list[tuple[int, Any]]:
    return sends_of(site.take())


def act(site: TokenSite) -> tuple[int, list[tuple[int, Any]]]:
    """Let timers fire until the site sends something: when, and what."""
    while True:
        now = site.deadline
        assert now < NEVER, "no timer is armed"
        site.on_timer(now)
        found = sends(site)
        if found:
            return now, found


def b(s: int, n: int, text: str = "") -> B:
    return B(TL, s, n, Bundle.of((text or f"{s}.{n}").encode()))


def data(ts: int, s: int, n: int, by: int, follower: int) -> Ack:
    return Ack(TL, ts, DATA, s, n, by, follower)


def null(ts: int, by: int, follower: int) -> Ack:
    return Ack(TL, ts, NULL, by, 0, by, follower)


# -- CM-N1 -----------------------------------------------------------------------------------


def of_list(tl: tuple[int, int]) -> list[Any]:
    """One PDU of each kind that belongs to a list."""
    message = B(tl, 1, 0, Bundle.of(b"x"))
    ack = Ack(tl, 0, DATA, 1, 0, 0, 1)
    return [
        message,
        ack,
        Confirm(tl, 0, 1, 0),
        RetxReq(tl, WANT_ACK, 0, 0, 0, 0),
        RetxAck(ack),
        RetxMsg(message),
    ]


@pytest.mark.parametrize("pdu", of_list((4, 1)), ids=lambda pdu: type(pdu).__name__)
def test_cm_n1_a_pdu_of_a_newer_list_makes_the_site_start_a_reformation(pdu: Any) -> None:
    site = alone(2)
    site.receive(pdu, 1, 5)
    assert site.phase == O1
    assert site.reformation.attempt == (5, 2)  # one above the version number just heard of
    assert sends(site) == [(0, Invite((5, 2), site.boot)), (1, Invite((5, 2), site.boot))]


@pytest.mark.parametrize("pdu", of_list((-1, -1)), ids=lambda pdu: type(pdu).__name__)
def test_cm_n1_a_site_of_an_older_list_is_told_of_ours(pdu: Any) -> None:
    site = alone(2)
    site.receive(pdu, 1, 5)
    assert sends(site) == [(1, TlHint(TL))]
    assert (site.phase, site.nts, site.ordering.qb) == (NORMAL, 0, {})


def test_cm_n1_a_hint_of_a_newer_list_starts_a_reformation_and_an_old_one_does_not() -> None:
    site = alone(2)
    site.receive(TlHint(TL), 1, 5)
    assert site.phase == NORMAL
    assert sends(site) == []
    site.receive(TlHint((3, 1)), 1, 6)
    assert (site.phase, site.reformation.attempt) == (O1, (4, 2))


def test_cm_n1_outside_the_normal_phase_a_newer_list_is_only_remembered() -> None:
    site = alone(2)
    site.receive(invitation((1, 0)), 0, 1)
    site.take()
    site.receive(Confirm((7, 1), 0, 1, 0), 1, 2)
    assert (site.phase, site.reformation.attempt, sends(site)) == ("S1", (1, 0), [])
    site.receive(TlHint((9, 1)), 1, 3)
    assert (site.phase, sends(site)) == ("S1", [])
    assert site.reformation.seen_version == 9


def test_cm_n1_a_list_we_left_behind_cannot_draw_us_in() -> None:
    """A PDU above our list but not above what we joined since is old news."""
    site = alone(2)
    site.receive(invitation((5, 0)), 0, 1)  # joined (5, 0), which fails …
    site.timers.reform_due = NEVER
    site.phase = NORMAL  # … and, to isolate the rule, as if it were back in its old list
    site.take()
    site.receive(Confirm((4, 1), 0, 1, 0), 1, 2)
    assert (site.phase, sends(site)) == (NORMAL, [])


# -- transmitting: CM-N2 … CM-N5 -------------------------------------------------------------


def test_cm_n2_a_submitted_message_is_sent_with_the_m_counter_as_its_number() -> None:
    site = alone(2)
    site.submit(Bundle.of(b"one"), 5)
    assert sends(site) == [(EVERYONE, B(TL, 2, 0, Bundle.of(b"one")))]
    assert site.ordering.qb == {(2, 0): Bundle.of(b"one")}  # a site has its own messages
    assert site.own.outstanding == site.log.next_num[2] == 0


def test_cm_n3_the_next_message_waits_until_the_acknowledgement_is_processed() -> None:
    site = alone(3, sites=4, bundle=False)
    site.submit(Bundle.of(b"one"), 0)
    site.submit(Bundle.of(b"two"), 0)
    assert sends(site) == [(EVERYONE, B(TL, 3, 0, Bundle.of(b"one")))]
    # Its acknowledgement arrives, but the stamp before it is missing: received, not processed.
    site.receive(data(1, 3, 0, 1, 2), 1, 1)
    assert sends(site) == [(EVERYONE, RetxReq(TL, WANT_ACK, 0, 0, 0, 0))]
    assert (site.own.outstanding, site.log.next_num[3]) == (0, 0)
    site.receive(null(0, 0, 1), 0, 2)
    assert sends(site) == [(EVERYONE, B(TL, 3, 1, Bundle.of(b"two")))]
    assert (site.own.outstanding, site.log.next_num[3]) == (1, 1)


def test_cm_n4_a_silent_group_makes_the_source_repeat_its_message_r_times() -> None:
    site = alone(2, attempts=3, attempts_hard=10, idle_ns=NEVER)
    site.submit(Bundle.of(b"one"), 0)
    message = sends(site)
    for attempt in range(1, 4):
        assert act(site) == (attempt * 150 * MS, message)
    assert act(site) == (600 * MS, [(0, Invite((1, 2), site.boot)), (1, Invite((1, 2), site.boot))])
    assert site.phase == O1


def test_cm_n4_with_jitter_the_patience_of_sources_differs_and_stays_in_its_bounds() -> None:
    due = set()
    for seed in range(30):
        config = TokenConfig(resend_ns=100 * MS, resend_jitter_ns=20 * MS, idle_ns=NEVER)
        site = TokenSite(2, (0, 1, 2), config, Random(seed))
        site.submit(Bundle.of(b"one"), 0)
        message = sends(site)
        first, found = act(site)
        assert found == message
        assert 80 * MS <= first <= 120 * MS
        assert act(site) == (2 * first, message)  # drawn once per message
        due.add(first)
    assert len(due) > 20


def test_cm_n4_a_message_is_not_repeated_while_the_list_is_heard_to_make_progress() -> None:
    site = alone(2, idle_ns=NEVER)
    site.submit(Bundle.of(b"one"), 0)
    site.take()
    for k in range(30):
        site.receive(Confirm(TL, -1, 0, -1), 0, k * 60 * MS)
        site.on_timer(k * 60 * MS + 59 * MS)
        assert sends(site) == []
    assert site.own.send_total == 0


def test_cm_n4_hearing_the_list_clears_the_count_of_silent_attempts() -> None:
    site = alone(2, attempts=2, attempts_hard=100, idle_ns=NEVER)
    site.submit(Bundle.of(b"one"), 0)
    site.take()
    for _ in range(10):  # two silent attempts, then a sign of life, again and again
        act(site)
        now, _ = act(site)
        assert (site.phase, site.own.send_silent) == (NORMAL, 2)
        site.receive(Confirm(TL, -1, 0, -1), 0, now + 1)
    assert site.own.send_total == 20


def test_cm_n4_r_hard_ends_the_wait_even_if_the_list_is_alive() -> None:
    site = alone(2, attempts=2, attempts_hard=5, idle_ns=NEVER)
    site.submit(Bundle.of(b"one"), 0)
    repeats = 0
    message = sends(site)
    while True:
        now, found = act(site)
        if found != message:
            break
        repeats += 1
        site.receive(Confirm(TL, -1, 0, -1), 0, now + 1)
    assert repeats == 5
    assert site.phase == O1


def test_cm_n4_the_timer_of_a_message_that_was_stamped_ends_quietly() -> None:
    site = alone(2)
    site.submit(Bundle.of(b"one"), 0)
    site.receive(data(0, 2, 0, 0, 1), 0, 1)
    site.take()
    site.timers.send_due = 100 * MS  # still armed from the sending
    site.on_timer(100 * MS)
    assert sends(site) == []
    assert site.timers.send_due == NEVER


def test_cm_n5_own_messages_are_kept_until_they_are_committed() -> None:
    site = alone(2)
    site.submit(Bundle.of(b"one"), 0)
    site.receive(data(0, 2, 0, 0, 1), 0, 1)
    assert list(site.own.kept) == [Bundle.of(b"one")]  # stamped
    site.receive(null(1, 1, 2), 1, 2)
    assert list(site.own.kept) == []  # committed
    assert site.own.base == 1


def test_cm_n5_after_a_list_change_the_unstamped_messages_are_sent_again_in_order() -> None:
    ring = Ring(3, bundle=False)
    ring.lose(B, src=2)
    ring.submit(2, "one", "two", "three")
    ring[0].reform(ring.now)
    ring.collect(0)
    ring.settle()
    ring.heal()
    again = [pdu for pdu in ring.pdus(B, src=2) if pdu.tl != TL]
    assert [(pdu.tl, pdu.n) for pdu in again] == [((1, 0), 0)]
    ring.run(1000 * MS)
    assert ring.log(0) == ring.log(1) == ring.log(2) == ["one", "two", "three"]


# -- stamping: CM-N6 … CM-N12 ----------------------------------------------------------------


def test_cm_n6_a_new_message_waits_in_q_b_and_a_pending_request_for_it_is_withdrawn() -> None:
    site = alone(2)
    site.receive(data(0, 1, 0, 0, 1), 0, 1)
    assert list(site.requests.pending) == [(1, 0)]
    site.take()
    site.receive(b(1, 0), 1, 2)
    assert site.requests.pending == {}
    assert site.nts == 1  # CM-N9 at once


def test_cm_n6_a_duplicate_changes_nothing() -> None:
    site = alone(2)
    site.receive(b(1, 0, "x"), 1, 1)
    site.receive(b(1, 0, "y"), 1, 2)  # no correct source sends this; the first one stays
    assert site.ordering.qb == {(1, 0): Bundle.of(b"x")}


def test_cm_n7_a_message_ahead_of_us_is_kept() -> None:
    site = alone(2)
    site.receive(b(1, 3), 1, 1)
    assert (1, 3) in site.ordering.qb
    assert site.nts == 0


def test_cm_n8_the_token_site_stamps_in_the_order_of_arrival() -> None:
    site = alone(1, sites=4)
    for source in (3, 0, 2):
        site.receive(b(source, 0), source, 1)
    assert sends(site) == []
    site.receive(null(0, 0, 1), 0, 2)
    assert sends(site)[0] == (EVERYONE, data(1, 3, 0, 1, 2))
    assert not site.holding


def test_cm_n8_a_message_that_is_not_next_of_its_source_is_not_stamped() -> None:
    site = alone(0)
    site.receive(b(2, 1), 2, 1)
    assert sends(site) == []
    site.receive(b(1, 0), 1, 2)
    assert sends(site) == [(EVERYONE, data(0, 1, 0, 0, 1))]


def test_cm_n9_acknowledgements_are_processed_in_timestamp_order() -> None:
    site = alone(4, sites=5)
    for ts in (2, 1):
        site.receive(null(ts, ts, ts + 1), ts, 1)
        assert site.nts == 0
    assert sorted(site.ordering.qc) == [1, 2]
    site.receive(null(0, 0, 1), 0, 2)
    assert (site.nts, site.ordering.qc, list(site.log.entries)) == (3, {}, [0, 1, 2])


def test_cm_n9_only_the_missing_message_is_asked_for_and_processing_stops_there() -> None:
    site = alone(2, sites=4)
    site.receive(data(0, 1, 0, 0, 1), 0, 1)
    assert sends(site) == [(EVERYONE, RetxReq(TL, WANT_MESSAGE, 0, 0, 1, 0))]
    site.receive(data(1, 3, 0, 1, 2), 1, 2)  # its message is missing as well, but not next
    assert sends(site) == []
    site.receive(RetxMsg(b(1, 0)), 0, 3)
    assert site.nts == 1
    assert sends(site) == [(EVERYONE, RetxReq(TL, WANT_MESSAGE, 1, 1, 3, 0))]


def test_cm_n10_a_processed_acknowledgement_moves_every_mark() -> None:
    site = alone(2)
    site.receive(b(1, 0, "x"), 1, 0)
    site.receive(data(0, 1, 0, 0, 1), 0, 1)
    assert site.log.entries[0].ack == data(0, 1, 0, 0, 1)
    assert (site.nts, site.log.next_num[1], site.log.exp) == (1, 1, 1)
    assert site.commit.have[0] == 0
    assert (1, 0) not in site.ordering.qb
    assert list(site.commit.transfers) == [0]
    assert site.commit.accepted_upto == -1  # issued, not known to be accepted
    site.receive(null(1, 1, 2), 1, 2)
    assert (
        site.commit.accepted_upto == 1
    )  # we are the acceptor of stamp 1, so 0 was accepted as well
    assert site.holding
    assert site.stamping.hold_ts == 1


def test_cm_n10_a_stamp_by_a_site_without_the_token_is_refused() -> None:
    site = alone(2)
    site.receive(null(0, 1, 2), 1, 1)
    assert site.nts == 0
    assert site.drops == {"acknowledgement by a site without the token": 1}
    site.receive(Ack(TL, 0, NULL, 0, 0, 0, 9), 0, 2)
    assert site.nts == 0
    assert site.drops == {"acknowledgement by a site without the token": 2}


def test_cm_n11_every_missing_stamp_below_a_received_one_is_asked_for_once() -> None:
    site = alone(2, sites=4, batch=False)
    site.receive(null(2, 2, 3), 2, 1)
    site.receive(null(4, 0, 1), 0, 2)
    wanted = [pdu.ts for _, pdu in sends(site)]
    assert wanted == [0, 1, 3]
    site.receive(null(4, 0, 1), 0, 3)
    assert sends(site) == []


def test_cm_n11_an_acknowledgement_beyond_the_window_is_dropped_and_the_gap_asked_for() -> None:
    site = alone(2, window=4, request_burst=2)
    site.receive(null(100, 0, 1), 0, 1)
    assert site.ordering.qc == {}
    assert site.drops == {"acknowledgement beyond the window": 1}
    assert sends(site) == [(EVERYONE, RetxReq(TL, WANT_ACK, 0, 1, 0, 0))]
    # What is asked for at once is limited; the rest follows as answers come in.
    site.receive(RetxAck(null(0, 0, 1)), 0, 2)
    assert sends(site) == [(EVERYONE, RetxReq(TL, WANT_ACK, 2, 2, 0, 0))]


def test_cm_n12_a_request_is_repeated_until_it_is_answered() -> None:
    site = alone(2, sites=4, idle_ns=NEVER)
    site.receive(null(1, 1, 2), 1, 0)
    request = sends(site)
    assert request == [(EVERYONE, RetxReq(TL, WANT_ACK, 0, 0, 0, 0))]
    for attempt in (1, 2, 3):
        assert act(site) == (attempt * 50 * MS, request)
    site.receive(RetxAck(null(0, 0, 1)), 1, 160 * MS)
    assert site.requests.pending == {}
    site.on_timer(200 * MS)
    assert [pdu for _, pdu in sends(site) if isinstance(pdu, RetxReq)] == []


def test_cm_n12_with_a_request_delay_an_overtaken_message_costs_no_request() -> None:
    site = alone(2, request_delay_ns=1 * MS)
    site.receive(data(0, 1, 0, 0, 1), 0, 0)
    assert sends(site) == []
    assert site.deadline == 1 * MS
    site.receive(b(1, 0), 1, MS // 2)
    site.on_timer(1 * MS)
    assert sends(site) == []
    site.receive(data(1, 0, 0, 1, 0), 1, 2 * MS)  # this one does not come
    site.on_timer(3 * MS)
    assert sends(site) == [(EVERYONE, RetxReq(TL, WANT_MESSAGE, 1, 1, 0, 0))]


def test_cm_n12_with_a_request_delay_a_gap_that_closes_costs_no_request() -> None:
    site = alone(2, sites=4, request_delay_ns=1 * MS)
    site.receive(null(1, 1, 3), 1, 0)
    assert sends(site) == []
    site.receive(null(0, 0, 1), 0, MS // 2)
    site.on_timer(1 * MS)
    assert sends(site) == []
    assert site.nts == 2


def test_cm_n12_ranges_are_asked_for_together_if_batch_is_set_and_one_by_one_if_not() -> None:
    ranges = [(0, 2), (4, 5)]
    singles = [(ts, ts) for ts in (0, 1, 2, 4, 5)]
    for batch, expected in ((True, ranges), (False, singles)):
        site = alone(2, sites=4, batch=batch)
        site.receive(null(3, 3, 0), 3, 0)
        site.receive(null(6, 2, 3), 2, 0)
        asked = [(pdu.ts, pdu.hi) for _, pdu in sends(site)]
        assert asked == expected


def test_cm_n12_unanswered_requests_end_in_a_reformation() -> None:
    site = alone(2, attempts=3, attempts_hard=99, idle_ns=NEVER)
    site.receive(null(1, 1, 2), 1, 0)
    site.take()
    for _ in range(3):
        act(site)
        assert site.phase == NORMAL
    act(site)
    assert site.phase == O1


def test_cm_n12_r_hard_also_ends_requests_while_the_list_is_alive() -> None:
    site = alone(2, attempts=2, attempts_hard=6, idle_ns=NEVER)
    site.receive(null(1, 1, 2), 1, 0)
    asked = 0
    while site.phase == NORMAL:
        asked += sum(isinstance(pdu, RetxReq) for _, pdu in sends(site))
        site.receive(Confirm(TL, -1, 0, 1), 0, site.deadline - 1)
        site.on_timer(site.deadline)
    assert asked == 1 + 6
    assert site.phase == O1


def test_cm_n12_requests_are_withdrawn_when_the_list_changes() -> None:
    site = alone(2)
    site.receive(null(1, 1, 2), 1, 0)
    site.receive(invitation((1, 0)), 0, 1)
    assert (site.requests.pending, site.timers.request_due) == ({}, NEVER)


# -- the token: CM-N13, CM-N14 ---------------------------------------------------------------


def test_cm_n13_the_token_is_accepted_only_with_everything_before_it_in_hand() -> None:
    site = alone(1)
    site.receive(data(0, 2, 0, 0, 1), 0, 0)
    assert not site.holding  # the message is missing
    site.receive(b(2, 0), 2, 1)
    assert site.holding
    assert (site.stamping.hold_ts, site.commit.accepted_upto) == (0, 0)


def test_cm_n13_a_waiting_message_is_stamped_at_once_and_that_shows_the_acceptance() -> None:
    site = alone(1)
    site.receive(b(2, 0), 2, 0)
    site.receive(b(0, 0), 0, 0)
    site.receive(data(0, 2, 0, 0, 1), 0, 1)
    assert sends(site) == [(EVERYONE, data(1, 0, 0, 1, 2))]
    assert site.timers.hold_due == NEVER


def test_cm_n13_after_t_an_uncommitted_message_is_helped_along_by_a_null() -> None:
    site = alone(1, sites=5, resilience=2)
    site.receive(b(2, 0), 2, 0)
    site.receive(data(0, 2, 0, 0, 1), 0, 7)
    assert sends(site) == []
    assert site.deadline == 7 + T
    site.on_timer(site.deadline)
    assert sends(site) == [(EVERYONE, null(1, 1, 2))]
    assert not site.holding


def test_cm_n13_after_t_without_an_uncommitted_message_the_acceptance_is_confirmed() -> None:
    site = alone(1)  # L = 1: our acceptance commits the message
    site.receive(b(2, 0), 2, 0)
    site.receive(data(0, 2, 0, 0, 1), 0, 7)
    assert [delivery.bundle for delivery in site.take().deliveries] == [Bundle.of(b"2.0")]
    site.on_timer(7 + T - 1)
    assert sends(site) == []  # not before T: only so Y_c = e^(−Lτ)
    site.on_timer(7 + T)
    assert sends(site) == [(EVERYONE, Confirm(TL, 0, 1, 0))]
    assert site.holding  # and keeps the token until a message comes
    site.receive(b(0, 0), 0, 500 * MS)
    assert sends(site) == [(EVERYONE, data(1, 0, 0, 1, 2))]


def test_cm_n13_a_null_alone_keeps_nobody_busy() -> None:
    """Uncommitted NULLs do not call for more NULLs: the group falls silent."""
    ring = Ring(5, resilience=2, idle_ns=NEVER)
    ring.submit(3, "x")
    ring.run(3000 * MS)
    assert ring.kinds() == {"B": 1, "Ack": 2, "Confirm": 1}
    assert min(engine.deadline for engine in ring.sites.values()) == NEVER


@pytest.mark.parametrize("kw", [1, 2, 4])
def test_cm_n14_the_token_moves_on_every_kw_th_message(kw: int) -> None:
    ring = Ring(3, resilience=0, kw=kw, bundle=False)
    ring.submit(1, *(f"m{k}" for k in range(12)))
    ring.run(2000 * MS)
    issuers = [ack.by for ack in ring.pdus(Ack)]
    assert issuers == [(k // kw) % 3 for k in range(12)]
    assert all((ack.next != ack.by) == (ack.ts % kw == kw - 1) for ack in ring.pdus(Ack))


def test_cm_n14_with_kw_a_null_always_moves_the_token() -> None:
    ring = Ring(3, resilience=1, kw=4)
    ring.submit(1, "x")
    ring.run(1000 * MS)
    assert [(ack.kind, ack.by, ack.next) for ack in ring.pdus(Ack)] == [(DATA, 0, 0), (NULL, 0, 1)]
    # Its acknowledgement has shown that site 0 has the token: it sends no confirmation, 1 does.
    assert {pdu.by for pdu in ring.pdus(Confirm)} == {1}


@pytest.mark.parametrize("kr", [1, 2, 3, 4])
def test_cm_n14_with_kr_a_message_is_stamped_every_kr_th_transfer(kr: int) -> None:
    ring = Ring(5, kr=kr, bundle=False)
    ring.submit(1, *(f"m{k}" for k in range(6)))
    ring.run(5000 * MS)
    stamps = [ack.ts for ack in ring.pdus(Ack) if ack.kind == DATA]
    assert stamps == [k * kr for k in range(6)]
    assert ring.log(3) == [f"m{k}" for k in range(6)]


def test_cm_n14_a_holder_reached_too_early_for_a_message_passes_the_token_at_once() -> None:
    site = alone(1, kr=2)
    site.receive(b(2, 0), 2, 0)
    site.receive(data(0, 2, 0, 0, 1), 0, 7)
    assert sends(site) == [(EVERYONE, null(1, 1, 2))]


# -- committing: CM-N15 ----------------------------------------------------------------------


def commits(site: TokenSite, written: list[int]) -> list[int]:
    """Stamps that were committed since the last look; `written` keeps those that were only
    written, as they are with L ≥ 1 when they are processed."""
    found: list[int] = []
    for record in site.take().persists:
        if isinstance(record, Entry):
            found.append(record.ack.ts)
        elif isinstance(record, Stamped):
            written.append(record.entry.ack.ts)
        elif isinstance(record, Committed):
            while written and written[0] < record.ts:
                found.append(written.pop(0))
    return found


@pytest.mark.parametrize("resilience", [0, 1, 2])
def test_cm_n15_an_entry_commits_when_l_transfers_from_it_on_are_accepted(resilience: int) -> None:
    site = alone(4, sites=5, resilience=resilience)
    seen: list[list[int]] = []
    written: list[int] = []
    for ts in range(4):  # issued by 0, 1, 2, 3; the last one passes the token to us
        site.receive(b(0, ts), 0, ts)
        site.receive(data(ts, 0, ts, ts, ts + 1), ts, ts)
        seen.append(commits(site, written))
    # A later acknowledgement shows the acceptance of all before it; the last one made us accept.
    assert (
        seen
        == {
            0: [[0], [1], [2], [3]],
            1: [[], [0], [1], [2, 3]],
            2: [[], [], [0], [1, 2]],
        }[resilience]
    )


def test_cm_n15_a_transfer_that_is_not_known_to_be_accepted_does_not_count() -> None:
    """Erratum 7: seeing the L-th transfer proves L holders only."""
    site = alone(2)
    site.receive(b(0, 0), 0, 0)
    site.receive(data(0, 0, 0, 0, 1), 0, 1)
    assert site.take().deliveries == []
    site.receive(Confirm(TL, 0, 1, 0), 1, 2)
    assert site.take().deliveries == [Delivery(0, 0, 0, Bundle.of(b"0.0"), COMMITTED)]


def test_cm_n15_a_null_waits_for_its_transfers_like_a_message() -> None:
    site = alone(3, sites=4)
    written: list[int] = []
    site.receive(null(0, 0, 1), 0, 0)
    assert (site.cnts, commits(site, written)) == (0, [])
    site.receive(null(1, 1, 2), 1, 1)
    assert (site.cnts, commits(site, written)) == (1, [0])


def test_cm_n15_transfers_count_not_acknowledgements() -> None:
    """With K_w the issuer keeps the token: its further stamps spread nothing."""
    site = alone(2, sites=3, kw=3)
    written: list[int] = []
    for ts in range(3):
        site.receive(b(1, ts), 1, ts)
        site.receive(data(ts, 1, ts, 0, 1 if ts == 2 else 0), 0, ts)
        assert commits(site, written) == []
    site.receive(Confirm(TL, 2, 1, 2), 1, 5)
    assert commits(site, written) == [0, 1, 2]


def test_cm_n15_a_message_may_be_handed_over_when_stamped_as_well() -> None:
    ring = Ring(3, deliver_stamped=True)
    ring.submit(1, "x")
    ring.settle()
    assert [(d.seq, d.stage) for d in ring.stamped[2]] == [(0, STAMPED)]
    assert ring.log(2) == []
    ring.run(200 * MS)
    assert ring.log(2) == ["x"]
    assert len(ring.stamped[2]) == 1


# -- passing: CM-N16 -------------------------------------------------------------------------


def passed(**changes: Any) -> TokenSite:
    """Site 0 has just passed its first token to site 1, by stamp 0."""
    site = alone(0, idle_ns=NEVER, **changes)
    site.receive(b(2, 0), 2, 0)
    assert sends(site) == [(EVERYONE, data(0, 2, 0, 0, 1))]
    assert (site.holding, site.stamping.passing) == (False, 0)
    return site


def test_cm_n16_the_passing_acknowledgement_is_repeated_until_its_acceptance_shows() -> None:
    site = passed()
    for attempt in (1, 2, 3):
        assert act(site) == (attempt * 100 * MS, [(EVERYONE, data(0, 2, 0, 0, 1))])
    site.receive(null(1, 1, 2), 1, 350 * MS)
    assert site.stamping.passing == -1
    site.on_timer(400 * MS)
    assert (sends(site), site.deadline) == ([], NEVER)


@pytest.mark.parametrize(
    "evidence",
    [
        Confirm(TL, 0, 1, 0),
        null(1, 1, 2),
        null(2, 2, 0),  # receipt is enough: stamp 1 has not even been seen
        RetxAck(null(1, 1, 2)),
        RetxAck(data(2, 1, 0, 2, 0)),
    ],
    ids=["confirm", "next stamp", "later stamp", "repeated stamp", "repeated later stamp"],
)
def test_cm_n16_what_shows_that_the_token_was_accepted(evidence: Any) -> None:
    site = passed()
    site.receive(evidence, 1, 1)
    assert (site.stamping.passing, site.timers.pass_due) == (-1, NEVER)


@pytest.mark.parametrize("other", [b(2, 1), Confirm(TL, -1, 0, -1), RetxAck(data(0, 2, 0, 0, 1))])
def test_cm_n16_what_shows_nothing(other: Any) -> None:
    site = passed()
    site.receive(other, 2, 1)
    assert site.stamping.passing == 0


def test_cm_n16_after_r_silent_attempts_the_next_site_is_suspected() -> None:
    site = passed(attempts=3)
    for _ in range(3):
        act(site)
    site.on_timer(400 * MS)
    out = site.take()
    assert [(notice.kind, notice.info) for notice in out.notices] == [("suspect", (1,))]
    assert site.phase == O1


def test_cm_n16_hearing_anything_of_the_next_site_clears_the_count() -> None:
    site = passed(attempts=2, attempts_hard=50)
    for _ in range(5):
        act(site)
        now, _ = act(site)
        assert site.stamping.pass_silent == 2
        site.receive(RetxReq(TL, WANT_ACK, 7, 7, 0, 0), 1, now + 1)
        assert site.stamping.pass_silent == 0
    assert site.phase == NORMAL


def test_cm_n16_r_hard_ends_the_wait_for_a_site_that_is_heard_but_never_accepts() -> None:
    site = passed(attempts=2, attempts_hard=6)
    repeats = 0
    while site.phase == NORMAL:
        site.receive(RetxReq(TL, WANT_ACK, 7, 7, 0, 0), 1, site.deadline - 1)
        site.on_timer(site.deadline)
        repeats += sum(isinstance(pdu, Ack) for _, pdu in sends(site))
    assert repeats == 6
    assert site.phase == O1


# -- service: who answers --------------------------------------------------------------------


def test_only_a_site_in_service_answers_requests() -> None:
    ring = Ring(4, idle_ns=NEVER)
    ring.submit(2, "x")
    ring.settle()  # stamped by 0, token on its way to 1, which waits T before it shows
    request = RetxReq(TL, WANT_ACK, 0, 0, 0, 0)
    for site in (0, 1, 2):
        ring.inject(request, 3, site)
    assert [sent.src for sent in ring.sent if isinstance(sent.pdu, RetxAck)] == [0]
    ring.run(T)  # the acceptance shows: from now on the holder answers alone
    before = len(ring.sent)
    for site in (0, 1, 2):
        ring.inject(request, 3, site)
    assert [(sent.src, sent.dst, sent.pdu) for sent in ring.sent[before:]] == [
        (1, 3, RetxAck(data(0, 2, 0, 0, 1)))
    ]


def test_a_holder_that_has_confirmed_early_answers_requests() -> None:
    """The site that passed the token has stopped by then: somebody must be in service."""
    site = alone(1)
    site.receive(b(2, 0), 2, 0)
    site.receive(data(0, 2, 0, 0, 1), 0, 1)
    site.receive(data(0, 2, 0, 0, 1), 0, 2)  # repeated: answered by a confirmation at once
    assert sends(site) == [(EVERYONE, Confirm(TL, 0, 1, 0))]
    site.receive(RetxReq(TL, WANT_ACK, 0, 0, 0, 0), 2, 3)
    assert sends(site) == [(2, RetxAck(data(0, 2, 0, 0, 1)))]


def test_a_request_for_a_message_is_answered_from_the_log() -> None:
    site = passed()
    site.receive(RetxReq(TL, WANT_MESSAGE, 0, 0, 2, 0), 1, 1)
    assert sends(site) == [(1, RetxMsg(b(2, 0)))]


@pytest.mark.parametrize(
    "request_",
    [
        RetxReq(TL, WANT_MESSAGE, 0, 0, 2, 1),
        RetxReq(TL, WANT_MESSAGE, 0, 0, 1, 0),
        RetxReq(TL, WANT_MESSAGE, 5, 5, 2, 0),
        RetxReq(TL, WANT_ACK, 1, 2**63, 0, 0),
    ],
)
def test_a_request_for_what_is_not_in_the_log_is_not_answered(request_: RetxReq) -> None:
    site = passed()
    site.receive(request_, 1, 1)
    assert sends(site) == []


def test_an_absurd_range_is_cut_to_what_there_is() -> None:
    site = passed()
    site.receive(RetxReq(TL, WANT_ACK, 0, 2**63, 0, 0), 1, 1)
    assert sends(site) == [(1, RetxAck(data(0, 2, 0, 0, 1)))]


# -- implicit requests: CM-N17, CM-N18 -------------------------------------------------------


def test_cm_n17_a_message_that_comes_again_is_answered_with_its_acknowledgement() -> None:
    site = passed()
    site.receive(b(2, 0), 2, 1)
    assert sends(site) == [(2, RetxAck(data(0, 2, 0, 0, 1)))]


def test_cm_n17_a_site_out_of_service_does_not_answer_an_old_message() -> None:
    site = passed()
    site.receive(Confirm(TL, 0, 1, 0), 1, 1)
    site.receive(b(2, 0), 2, 2)
    assert sends(site) == []


def test_cm_n17_messages_of_before_the_list_and_before_the_last_are_not_answered() -> None:
    site = passed()
    site.receive(b(2, 1), 2, 1)
    site.receive(null(1, 1, 2), 1, 2)
    site.receive(data(2, 2, 1, 2, 0), 2, 3)  # we hold the token again
    site.on_timer(3 + T)  # … and show it
    site.take()
    site.receive(b(2, 0), 2, T + 4)  # not the latest of its source: a late copy
    assert sends(site) == []
    site.receive(b(2, 1), 2, T + 5)
    assert sends(site) == [(2, RetxAck(data(2, 2, 1, 2, 0)))]
    site.token_list.start_ts = 3  # as if stamped in an earlier list: everybody has it
    site.receive(b(2, 1), 2, T + 6)
    assert sends(site) == []


def test_cm_n18_an_old_acknowledgement_is_answered_with_the_one_that_followed() -> None:
    site = alone(1)
    site.receive(b(2, 0), 2, 0)
    site.receive(b(0, 0), 0, 0)
    site.receive(data(0, 2, 0, 0, 1), 0, 1)
    site.take()  # stamp 1, which passes the token on: in service
    site.receive(data(0, 2, 0, 0, 1), 0, 2)
    assert sends(site) == [(0, RetxAck(data(1, 0, 0, 1, 2)))]


def test_cm_n18_an_old_acknowledgement_without_successor_is_answered_by_a_confirmation() -> None:
    site = alone(1)
    site.receive(b(2, 0), 2, 0)
    site.receive(data(0, 2, 0, 0, 1), 0, 1)
    site.take()
    site.receive(data(0, 2, 0, 0, 1), 0, 2)
    assert sends(site) == [(EVERYONE, Confirm(TL, 0, 1, 0))]  # at once, without waiting for T


def test_cm_n18_others_do_not_answer_an_old_acknowledgement() -> None:
    site = alone(2)
    site.receive(b(2, 0), 2, 0)
    site.receive(data(0, 2, 0, 0, 1), 0, 1)
    site.take()
    site.receive(data(0, 2, 0, 0, 1), 0, 2)
    assert sends(site) == []


def test_cm_n18_a_site_that_passes_the_token_does_not_answer_its_own_stamp() -> None:
    site = passed()
    site.receive(data(0, 2, 0, 0, 1), 0, 1)
    assert sends(site) == []


# -- CM-N19, CM-N20, CM-N21 ------------------------------------------------------------------


def test_cm_n19_a_confirmation_reveals_what_is_missing() -> None:
    site = alone(2, sites=4)
    site.receive(Confirm(TL, 2, 3, 2), 3, 1)
    assert sends(site) == [(EVERYONE, RetxReq(TL, WANT_ACK, 0, 2, 0, 0))]


def test_cm_n19_a_confirmation_ahead_of_us_is_remembered_and_applied_later() -> None:
    site = alone(3, sites=4)
    site.receive(b(0, 0), 0, 0)
    site.receive(Confirm(TL, 0, 1, 0), 1, 1)
    assert (site.commit.confirm_ts, site.commit.confirm_by) == (0, 1)
    site.receive(RetxAck(data(0, 0, 0, 0, 1)), 1, 2)
    assert site.take().deliveries == [Delivery(0, 0, 0, Bundle.of(b"0.0"), COMMITTED)]
    assert site.commit.have[1] == 0
    assert site.commit.confirm_ts == -1


def test_cm_n19_only_the_newest_confirmation_ahead_of_us_is_kept() -> None:
    site = alone(3, sites=4)
    site.receive(Confirm(TL, 1, 2, 1), 2, 1)
    site.receive(Confirm(TL, 0, 1, 0), 1, 2)
    assert (site.commit.confirm_ts, site.commit.confirm_by) == (1, 2)


def test_cm_n19_a_confirmation_of_a_foreign_site_is_refused() -> None:
    site = alone(2)
    site.receive(Confirm(TL, 0, 7, 9), 7, 1)
    assert site.drops == {"confirmation by a foreign site": 1}
    assert sends(site) == []


def test_cm_n19_an_absurd_top_is_cut_to_the_window() -> None:
    site = alone(2, window=8, request_burst=64)
    site.receive(Confirm(TL, 0, 1, 2**63), 1, 1)
    assert site.requests.known_top == 8
    assert len(site.requests.pending) <= 9


def test_cm_n20_what_all_members_hold_and_is_committed_is_forgotten() -> None:
    ring = Ring(3, bundle=False, history=0)
    ring.submit(1, *(f"m{k}" for k in range(30)))
    ring.run(3000 * MS)
    for site in ring.group:
        engine = ring[site]
        assert len(engine.log.entries) <= 4
        assert engine.log.first_kept == min(engine.log.entries)
        # The last committed entry stays, whoever holds it: its `next` is who stamps next.
        assert engine.log.first_kept < engine.cnts


def test_cm_n20_one_slow_site_keeps_everything_it_may_ask_for() -> None:
    site = alone(0, sites=4, history=0)
    # 1 and 2 stamp in turn with us; 3 is never heard of: nothing may be forgotten.
    site.token_list.successor = {0: 1, 1: 2, 2: 0, 3: 0}
    site.receive(b(1, 0), 1, 0)
    for turn in range(5):
        ts = 3 * turn + 1
        site.receive(b(1, 2 * turn + 1), 1, ts)
        site.receive(null(ts, 1, 2), 1, ts)
        site.receive(null(ts + 1, 2, 0), 2, ts)
        site.on_timer(site.deadline)
    assert site.log.first_kept == 0
    assert site.log.pruned == 0


def test_cm_n20_history_keeps_entries_for_sites_that_were_away() -> None:
    ring = Ring(3, bundle=False, history=10)
    ring.submit(1, *(f"m{k}" for k in range(40)))
    ring.run(4000 * MS)
    for site in ring.group:
        engine = ring[site]
        assert engine.log.pruned - engine.log.first_kept == 10


def test_cm_n21_an_idle_holder_repeats_its_confirmation_as_a_beacon() -> None:
    ring = Ring(3)
    ring.submit(1, "x")
    ring.run(10_000 * MS)
    times = [sent.time for sent in ring.sent if isinstance(sent.pdu, Confirm) and sent.pdu.ts == 0]
    assert times[0] == T
    assert all(b - a == 1000 * MS for a, b in pairwise(times))
    assert len(times) == 10


def test_cm_n21_the_beacon_lets_a_site_find_out_what_it_missed_at_the_end() -> None:
    ring = Ring(3)
    ring.lose(dst=2)
    ring.submit(1, "x")
    ring.run(500 * MS)
    ring.heal()
    assert ring.log(2) == []
    ring.run(1000 * MS)
    assert ring.log(2) == ["x"]


def test_cm_n21_without_the_beacon_an_idle_group_is_silent() -> None:
    ring = Ring(3, idle_ns=NEVER)
    ring.submit(1, "x")
    ring.run(200 * MS)
    count = len(ring.sent)
    ring.run(60_000 * MS)
    assert len(ring.sent) == count
    assert all(engine.timers.silence_due == NEVER for engine in ring.sites.values())


def test_cm_n21_a_site_that_hears_nothing_of_its_list_starts_a_reformation() -> None:
    site = alone(2, attempts=3, idle_ns=1000 * MS)
    site.receive(Confirm(TL, -1, 0, -1), 0, 3000 * MS)
    now, invitations = act(site)
    assert now == 7000 * MS  # (R + 1) · t_idle after the last sign of life
    assert invitations == [(0, Invite((1, 2), site.boot)), (1, Invite((1, 2), site.boot))]


def test_cm_n21_the_holder_itself_hears_nobody_and_is_not_alarmed() -> None:
    site = alone(0, attempts=3, idle_ns=1000 * MS)
    for k in range(1, 30):
        site.on_timer(k * 1000 * MS)
    assert site.phase == NORMAL
    assert site.holding


def test_cm_n21_a_group_of_one_needs_nobody() -> None:
    site = alone(0, sites=1, resilience=0, idle_ns=1000 * MS)
    site.submit(Bundle.of(b"x"), 0)
    assert [delivery.seq for delivery in site.take().deliveries] == [0]
    site.on_timer(3600_000 * MS)
    assert site.phase == NORMAL


def test_cm_n21_nudging_the_holder_is_a_beacon_by_hand() -> None:
    ring = Ring(3, idle_ns=NEVER)
    ring.submit(1, "x")
    ring.run(200 * MS)
    for site in ring.group:
        ring[site].nudge(ring.now)
        ring.collect(site)
    assert ring.pdus(Confirm)[1:] == [Confirm(TL, 0, 1, 0)]


# -- bundles and bounds ----------------------------------------------------------------------


def test_messages_that_wait_travel_together_and_keep_dense_positions() -> None:
    ring = Ring(3)
    ring.lose(Ack, dst=1, times=1)
    ring.submit(1, *"abcdef")
    ring.run(1000 * MS)
    assert [len(pdu.bundle) for pdu in ring.pdus(B, src=1)] == [1, 5]
    for site in ring.group:
        assert [(d.seq, list(d.bundle)) for d in ring.delivered[site]] == [
            (0, [b"a"]),
            (1, [b"b", b"c", b"d", b"e", b"f"]),
        ]
    ring.submit(2, "g")
    ring.run(200 * MS)
    assert ring.delivered[0][-1].seq == 6


def test_a_bundle_takes_as_many_messages_as_fit() -> None:
    ring = Ring(3, max_payload=10)
    ring.submit(1, "first", "1234", "5678", "90", "toolong!", "x")
    ring.run(2000 * MS)
    assert [list(pdu.bundle) for pdu in ring.pdus(B, src=1)] == [
        [b"first"],
        [b"1234", b"5678", b"90"],
        [b"toolong!", b"x"],
    ]


def test_without_bundling_each_submission_is_one_pdu() -> None:
    ring = Ring(3, bundle=False)
    ring.submit(1, *"abc")
    ring.run(1000 * MS)
    assert [list(pdu.bundle) for pdu in ring.pdus(B, src=1)] == [[b"a"], [b"b"], [b"c"]]


def picture(site: TokenSite) -> dict[str, Any]:
    """All of a site's state."""
    names = [name for kind in type(site).__mro__ for name in getattr(kind, "__slots__", ())]
    return {name: repr(getattr(site, name)) for name in names if hasattr(site, name)}


def test_a_message_that_is_too_large_changes_nothing() -> None:
    site = alone(2, max_payload=4)
    before = picture(site)
    with pytest.raises(PayloadTooLarge, match=r"5 bytes.*max_payload = 4"):
        site.submit(Bundle.of(b"12", b"345"), 1)
    assert picture(site) == before
    assert not site.take()


def test_an_empty_bundle_or_one_the_wire_cannot_count_changes_nothing() -> None:
    site = alone(2)
    before = picture(site)
    with pytest.raises(UsageError, match="65536 messages"):
        site.submit(Bundle.of(*[b""] * 0x10000), 1)
    with pytest.raises(UsageError, match="0 messages"):
        site.submit(NOTHING, 1)
    assert picture(site) == before


def test_merging_never_makes_a_bundle_the_wire_cannot_count() -> None:
    site = alone(2)
    for _ in range(4):  # the first is sent alone; of the other three two may travel together
        site.submit(Bundle.of(*[b""] * 30_000), 0)
    site.take()
    site.receive(data(0, 2, 0, 0, 1), 0, 1)
    ((_, again),) = sends(site)
    assert len(again.bundle) == 60_000


def test_a_full_queue_changes_nothing_and_drains() -> None:
    ring = Ring(3, own_limit=3, bundle=False)
    ring.submit(1, "a", "b", "c")
    before = picture(ring[1])
    with pytest.raises(QueueFull, match="own_limit"):
        ring[1].submit(Bundle.of(b"d"), ring.now)
    assert picture(ring[1]) == before
    ring.run(1000 * MS)
    ring.submit(1, "d")
    ring.run(200 * MS)
    assert ring.log(0) == ["a", "b", "c", "d"]


def test_a_full_q_b_loses_a_message_which_is_repaired_like_any_loss() -> None:
    ring = Ring(5, qb_limit=1, bundle=False)
    for source in ring.group:
        ring.submit(source, *(f"{source}{k}" for k in range(5)))
    ring.run(60_000 * MS)
    ring.check()
    assert len(ring.log(0)) == 25
    assert ring[0].drops.get("no room for a message", 0) > 0
    assert {engine.tl for engine in ring.sites.values()} == {TL}  # no reformation was needed


def test_the_message_of_the_next_stamp_is_never_refused_for_want_of_room() -> None:
    site = alone(2, qb_limit=1)
    site.receive(b(0, 0), 0, 0)
    site.receive(data(0, 1, 0, 0, 1), 0, 1)  # Q_B is full, and this is not the message in it
    site.receive(RetxMsg(b(1, 0)), 0, 2)
    assert site.nts == 1


def test_what_is_held_stays_within_the_caps() -> None:
    ring = Ring(4, history=8, bundle=False)
    for source in ring.group:
        ring.submit(source, *(f"{source}.{k}" for k in range(100)))
    for _ in range(400):
        ring.run(10 * MS)
        for engine in ring.sites.values():
            caps = engine.caps()
            assert all(value <= caps[name] for name, value in engine.usage().items())
    assert len(ring.log(0)) == 400


# -- odds and ends ---------------------------------------------------------------------------


def test_a_message_of_a_foreign_source_is_dropped_and_counted() -> None:
    site = alone(0)
    site.receive(B(TL, 9, 0, Bundle.of(b"x")), 9, 1)
    assert site.drops == {"message of a foreign source": 1}
    assert site.ordering.qb == {}
    assert sends(site) == []


def test_an_acknowledgement_of_a_foreign_source_is_dropped_and_counted() -> None:
    site = alone(2)
    site.receive(data(0, 9, 0, 0, 1), 0, 1)
    assert site.drops == {"acknowledgement of a foreign source": 1}
    assert (site.nts, site.ordering.qc, site.requests.pending) == (0, {}, {})


@pytest.mark.parametrize("by, follower", [(9, 1), (1, 9)])
def test_an_acknowledgement_of_foreign_sites_is_not_kept(by: int, follower: int) -> None:
    site = alone(2)
    site.receive(Ack(TL, 3, NULL, by, 0, by, follower), 0, 1)
    assert site.drops == {"acknowledgement by a site without the token": 1}
    assert (site.ordering.qc, site.requests.pending, sends(site)) == ({}, {}, [])


def test_a_wrong_acknowledgement_ahead_of_us_does_not_stop_the_right_one() -> None:
    site = alone(2, sites=4)
    site.receive(null(1, 3, 0), 3, 1)  # 3 does not have the token
    site.receive(null(0, 0, 1), 0, 2)
    assert site.nts == 1
    site.receive(RetxAck(null(1, 1, 2)), 1, 4)
    assert site.nts == 2


def test_roles_as_a_picture_shows_them() -> None:
    site = alone(0)
    assert site.role == "token"
    site.receive(b(2, 0), 2, 0)
    assert site.role == "passing"
    site.receive(Confirm(TL, 0, 1, 0), 1, 1)
    assert site.role == "idle"
    site.reform(2)
    assert site.role == "O1"


def test_a_timer_that_is_called_early_does_nothing() -> None:
    site = alone(2)
    site.submit(Bundle.of(b"x"), 0)
    site.take()
    deadline = site.deadline
    site.on_timer(deadline - 1)
    assert not site.take()
    assert site.deadline == deadline


def test_the_empty_bundle_has_no_messages() -> None:
    assert list(NOTHING) == []
    assert len(NOTHING) == 0
