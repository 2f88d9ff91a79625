"""The reformation phase, rule by rule (CM-R1 … CM-R16); recovery is in test_token_recovery.py."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from roundelay.core.bundle import Bundle
from roundelay.core.engine import EMPTY, EVERYONE, NEVER
from roundelay.core.errors import InvariantBroken
from roundelay.core.token.ballot import Ballot
from roundelay.core.token.config import TokenConfig
from roundelay.core.token.pdu import (
    DATA,
    NO,
    NO_LIST,
    PENDING,
    YES,
    Abort,
    Ack,
    B,
    Confirm,
    Entry,
    Invite,
    NewTl,
    NewToken,
    RecoverData,
    RecoverReq,
    RetxReq,
    TlHint,
    Version,
    Vote1,
    Vote2,
)
from roundelay.core.token.phases import BROKEN, NORMAL, O1, O2, OUT, S1, S2, W3
from roundelay.core.token.site import PREFORMED_PAST, TokenSite
from roundelay.core.token.stable import Joined, Listed
from tests.core.ring import BOOT, MS, Ring, announcement, invitation, restarted
from tests.core.sends import sends_of

RETX = 50 * MS
U: Version = (0, 0)
ALL = (0, 1, 2)


def alone(me: int, sites: int = 3, **changes: Any) -> TokenSite:
    site = TokenSite(me, tuple(range(sites)), TokenConfig(**changes), Random(me))
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


def vote(v: Version, **changes: Any) -> Vote1:
    """A yes of a site of the preformed list that has processed nothing."""
    fields: dict[str, Any] = {
        "v": v, "yes": True, "tl": U, "members": ALL, "nts": 0, "exp": 0,
        "amnesia": False, "wiped": False, "boot": BOOT, "max_joined": v,
        "history": PREFORMED_PAST,
    }  # fmt: skip
    return Vote1(**(fields | changes))


def no(v: Version, max_joined: Version, inviter: int = 0) -> Vote1:
    return Vote1(v, False, NO_LIST, (), 0, 0, False, False, 0, max_joined, inviter=inviter)


def entry(ts: int, s: int, n: int, tl: Version = U, by: int = 0, to: int = 1) -> Entry:
    """Entry `ts`, at position `ts`."""
    return Entry(Ack(tl, ts, DATA, s, n, by, to), Bundle.of(f"{s}.{n}".encode()), ts)


def slave(me: int = 1, v: Version = (1, 0), sites: int = 3, **changes: Any) -> TokenSite:
    """A site that has voted for list `v`."""
    site = alone(me, sites, **changes)
    site.receive(invitation(v), v[1], 1)
    site.take()
    return site


# -- CM-R1, CM-R2 ----------------------------------------------------------------------------


def test_cm_r1_the_new_version_is_above_all_that_was_ever_seen_or_joined() -> None:
    site = alone(1)
    site.receive(TlHint((6, 2)), 2, 1)  # hearing of it is a trigger as well
    assert site.reformation.attempt == (7, 1)
    out = site.take()
    assert out.persists == [Joined((7, 1))]  # before anybody is invited
    assert sends_of(out) == [(0, Invite((7, 1), site.boot)), (2, Invite((7, 1), site.boot))]
    assert (site.phase, site.reformation.max_joined) == (O1, (7, 1))


def test_cm_r1_a_forged_version_leaves_room_for_others() -> None:
    site = alone(0)
    site.receive(Invite((2**32 - 2, 1), 9), 1, MS)
    assert site.drops == {"PDU of an impossible list": 1}
    site.reform(2 * MS)
    assert (1, Invite((1, 0), site.boot)) in sends_of(site.take())


def test_cm_r1_a_site_without_a_version_left_is_blocked_and_alive() -> None:
    site = alone(0)
    site.reformation.seen_version = 2**32 - 2
    site.reform(MS)
    site.take()
    for step in range(2, 2000):
        site.on_timer(step * 100 * MS)
        out = site.take()
        assert not any(isinstance(pdu, Invite) for _, pdu in sends_of(out))
        if site.reformation.blocked:
            break
    assert site.reformation.blocked == ("no higher list version is left", (), ())
    assert site.deadline < NEVER


def test_cm_r1_the_originator_votes_for_itself() -> None:
    site = alone(1)
    site.reform(1)
    own = vote((1, 1), boot=site.boot, inviter=site.boot)
    assert site.reformation.votes == {1: own}


def test_cm_r1_a_site_that_starts_a_reformation_stops_all_work_of_its_list() -> None:
    site = alone(0)
    site.receive(B(U, 1, 0, Bundle.of(b"x")), 1, 0)
    site.reform(1)
    site.take()
    for pdu in (
        Ack(U, 1, DATA, 1, 1, 1, 2),
        Confirm(U, 0, 1, 0),
        RetxReq(U, 1, 0, 0, 0, 0),
        B(U, 1, 0, Bundle.of(b"x")),
    ):
        site.receive(pdu, 1, 2)
    assert not site.take()  # no processing, no commit, no service
    assert (site.nts, site.cnts, site.holding, site.stamping.passing) == (1, 0, False, -1)


def test_cm_r1_asking_for_a_reformation_during_one_changes_nothing() -> None:
    site = slave()
    site.reform(2)
    assert (site.phase, site.reformation.attempt) == (S1, (1, 0))
    assert not site.take()


def test_cm_r2_the_whole_group_is_invited_and_the_silent_ones_again_r_times() -> None:
    site = alone(0, sites=4, attempts=3)
    site.reform(0)
    assert [dst for dst, _ in sends(site)] == [1, 2, 3]
    site.receive(vote((1, 0), members=(0, 1, 2, 3)), 2, 1)
    for attempt in (1, 2, 3):
        now, found = act(site)
        assert now == attempt * RETX
        assert found == [(1, Invite((1, 0), site.boot)), (3, Invite((1, 0), site.boot))]
    now, found = act(site)
    assert (now, found) == (4 * RETX, [(EVERYONE, Abort((1, 0)))])  # 2 of 4 are no majority


def test_cm_r2_one_refusal_ends_the_attempt_at_once() -> None:
    site = alone(0)
    site.reform(0)
    site.take()
    site.receive(no((1, 0), (4, 2)), 2, 1)
    assert sends(site) == [(EVERYONE, Abort((1, 0)))]
    assert site.phase == OUT
    # The version number in it is remembered for the next attempt.
    now, found = act(site)
    assert now >= 1 + RETX
    assert site.reformation.attempt == (5, 0)
    assert [type(pdu) for _, pdu in found] == [Invite, Invite]


def test_cm_r2_votes_for_another_attempt_do_not_count() -> None:
    site = alone(0)
    site.reform(0)
    site.receive(vote((0, 0)), 1, 1)
    site.receive(no((9, 0), (9, 9)), 2, 1)
    assert (site.phase, sorted(site.reformation.votes)) == (O1, [0])


def test_cm_r2_when_all_have_voted_nobody_is_waited_for() -> None:
    site = alone(0)
    site.reform(0)
    site.take()
    site.receive(vote((1, 0)), 1, 1)
    assert sends(site) == []
    site.receive(vote((1, 0)), 2, 2)
    assert [(dst, type(pdu)) for dst, pdu in sends(site)] == [(1, NewTl), (2, NewTl)]
    assert site.phase == O2


# -- CM-R3: the tests ------------------------------------------------------------------------


def ballot(site: TokenSite, votes: dict[int, Vote1]) -> Ballot:
    return Ballot(votes, site.group, site.config)


def test_cm_r3_1_a_majority_is_more_than_half_of_the_group_not_of_the_list() -> None:
    for sites, least in ((1, 1), (2, 2), (3, 2), (4, 3), (5, 3), (6, 4), (7, 4)):
        site = alone(0, sites=sites, resilience=0)
        for count in range(1, sites + 1):
            votes = {k: vote((1, 0)) for k in range(count)}
            assert ballot(site, votes).majority() == (count >= least)


def test_cm_r3_1_a_site_that_forgot_its_promises_does_not_count() -> None:
    site = alone(0)
    votes = {0: vote((1, 0)), 1: vote((1, 0), wiped=True)}
    assert not ballot(site, votes).majority()
    votes[2] = vote((1, 0), amnesia=True)  # it remembers what it promised, if not what it had
    assert ballot(site, votes).majority()


def test_cm_r3_2_the_basis_is_the_newest_list_and_the_largest_nts_within_it() -> None:
    """Erratum 51: a site of an older list may have a larger nts, of void entries."""
    site = alone(0)
    votes = {
        0: vote((9, 0), tl=(2, 1), nts=5),
        1: vote((9, 0), tl=(2, 1), nts=7),
        2: vote((9, 0), tl=(1, 2), nts=40),
    }
    assert ballot(site, votes).basis() == ((2, 1), 7)


def old_list(exp: int, present: dict[int, dict[str, Any]], **changes: Any) -> bool:
    """Does a list of `present` pass the resiliency test on the old list 0…4 with `exp`?"""
    site = alone(0, sites=5, **changes)
    votes = {
        k: vote((9, 0), members=(0, 1, 2, 3, 4), exp=exp, **fields) for k, fields in present.items()
    }
    return ballot(site, votes).resilient()


@pytest.mark.parametrize("resilience", [0, 1, 2])
def test_cm_r3_3_one_of_the_next_l_plus_1_token_sites_must_be_there(resilience: int) -> None:
    for exp in range(5):
        needed = {(exp + step) % 5 for step in range(resilience + 1)}
        for witness in range(5):
            passed = old_list(exp, {witness: {}}, resilience=resilience)
            assert passed == (witness in needed)


def test_cm_r3_3_a_restarted_member_of_the_old_list_is_no_witness() -> None:
    """Erratum 13: it may have processed what it has forgotten."""
    assert old_list(2, {2: {}})
    assert not old_list(2, {2: {"amnesia": True}})
    assert not old_list(2, {2: {"amnesia": True}, 3: {"amnesia": True}, 4: {}})
    assert old_list(2, {2: {"amnesia": True}, 3: {}})


def test_cm_r3_3_without_strict_it_is_the_papers_test() -> None:
    assert old_list(2, {2: {"amnesia": True}}, strict=False)
    assert not old_list(2, {4: {}}, strict=False)


def test_cm_r3_3_a_member_that_never_entered_the_old_list_is_a_witness() -> None:
    """Erratum 52: it proves that the old list was never authorized."""
    elsewhere = {"tl": (-1, 5), "nts": 9}
    assert old_list(2, {2: elsewhere, 0: {}})
    assert old_list(2, {2: elsewhere | {"amnesia": True}, 0: {}})
    # … unless it may have forgotten that it did.
    assert not old_list(2, {2: elsewhere | {"amnesia": True, "wiped": True}, 0: {}})
    # One that entered it after losing its disk has forgotten nothing of it.
    assert old_list(2, {2: {"wiped": True}, 0: {}})


def test_cm_r3_3_the_whole_old_list_together_has_forgotten_nothing_that_counts() -> None:
    forgetful: dict[int, dict[str, Any]] = {k: {"amnesia": True} for k in range(5)}
    assert old_list(2, forgetful)
    assert not old_list(2, {k: forgetful[k] for k in range(4)})
    forgetful[4] = {"amnesia": True, "wiped": True, "tl": NO_LIST}
    assert not old_list(2, forgetful)


def test_cm_r3_3_where_nobody_has_a_list_there_is_none_to_lose() -> None:
    site = alone(0)
    votes = {k: vote((1, 0), tl=NO_LIST, members=(), exp=-1) for k in (0, 1)}
    assert ballot(site, votes).resilient()


def test_cm_r3_the_new_token_site_has_the_largest_nts_and_preferably_not_restarted() -> None:
    site = alone(0, sites=5)
    votes = {
        0: vote((9, 0), nts=3),
        1: vote((9, 0), nts=7, amnesia=True),
        2: vote((9, 0), nts=7),
        3: vote((9, 0), nts=7),
        4: vote((9, 0), nts=9, tl=(-1, 0)),
    }
    assert ballot(site, votes).elect() == 2
    votes[2] = votes[3] = vote((9, 0), nts=6)
    assert ballot(site, votes).elect() == 1


def test_cm_r3_a_list_that_fails_a_test_is_aborted_and_the_reason_told_once() -> None:
    ring = Ring(5, resilience=0, attempts=2)
    ring.cut((0,), (1, 2, 3, 4))  # 0 is the only admissible witness, since L = 0
    ring.submit(0, "x")  # or it would not notice: an idle holder hears nobody
    ring.run(20_000 * MS)
    assert ring.told(0, "blocked") == [("majority", (1, 2, 3, 4), ())]
    originators = [site for site in (1, 2, 3, 4) if ring.told(site, "blocked")]
    assert originators
    for site in originators:
        assert ring.told(site, "blocked") == [("resiliency", (0,), ())]
    ring.heal()
    ring.run(30_000 * MS)
    for site in (0, *originators):
        assert ring.told(site, "unblocked") == [()]
    assert {ring[site].token_list.members for site in ring.group} == {(0, 1, 2, 3, 4)}


# -- CM-R4, CM-R5: phases II and III ---------------------------------------------------------


def announcing(sites: int = 3, **changes: Any) -> TokenSite:
    """Site 0 has collected all votes for (1, 0); site 2 is to be the first token site."""
    site = alone(0, sites, **changes)
    everyone = tuple(range(sites))
    site.reform(0)
    for other in everyone[1:]:
        nts = 1 if other == 2 else 0
        site.receive(vote((1, 0), members=everyone, nts=nts, exp=1 if nts else 0), other, 1)
    return site


def test_cm_r4_the_list_is_announced_to_each_member_in_ring_order() -> None:
    site = announcing()
    new = NewTl((1, 0), ALL, 1, 2, U, (site.boot, BOOT, BOOT), PREFORMED_PAST)
    found = sends(site)
    assert (1, new) in found
    assert (2, new) in found
    assert (2, RecoverReq((1, 0), 0)) in found  # the originator has something to recover, too


def test_cm_r4_those_who_have_not_committed_are_told_again_2r_times() -> None:
    site = announcing(attempts=3)
    site.take()
    site.receive(Vote2((1, 0), YES), 2, 2)
    site.receive(RecoverData((1, 0), (entry(0, 1, 0),), 0, 0, (), 0), 2, 3)
    announced = []
    while site.phase == O2:
        now = site.deadline
        site.on_timer(now)
        announced += [(now, dst) for dst, pdu in sends(site) if isinstance(pdu, NewTl)]
    assert [dst for _, dst in announced] == [1] * 6
    assert [now for now, _ in announced] == [1 + k * RETX for k in range(1, 7)]
    assert site.phase == OUT


def test_cm_r4_a_pending_vote_keeps_the_attempt_alive() -> None:
    site = announcing(attempts=2)
    site.receive(Vote2((1, 0), YES), 2, 2)
    site.receive(RecoverData((1, 0), (entry(0, 1, 0),), 0, 0, (), 0), 2, 3)
    for k in range(30):
        site.on_timer(k * RETX)
        site.receive(Vote2((1, 0), PENDING), 1, k * RETX)
    assert site.phase == O2


def test_cm_r4_an_originator_that_recovers_is_patient_with_itself() -> None:
    site = announcing(attempts=2)
    site.receive(Vote2((1, 0), YES), 1, 2)
    site.receive(Vote2((1, 0), YES), 2, 2)
    for k in range(1, 5):
        site.on_timer(k * RETX + 1)
        assert site.phase == O2
    assert site.reformation.tries[0] == 4
    site.receive(RecoverData((1, 0), (entry(0, 1, 0),), 0, 0, (), 0), 2, 5 * RETX)
    assert site.phase == NORMAL


def test_cm_r4_a_no_in_phase_ii_ends_the_attempt() -> None:
    site = announcing()
    site.take()
    site.receive(Vote2((1, 0), NO), 1, 2)
    assert sends(site) == [(EVERYONE, Abort((1, 0)))]
    assert site.phase == OUT


def test_cm_r4_votes_of_other_attempts_do_not_count() -> None:
    site = announcing()
    site.take()
    site.receive(Vote2((0, 1), NO), 1, 2)
    assert site.phase == O2
    assert sends(site) == []
    slave_site = slave()
    slave_site.receive(Vote2((1, 0), YES), 2, 2)
    assert not slave_site.take()


def test_cm_r5_only_a_unanimous_vote_creates_the_token() -> None:
    site = announcing()
    site.receive(RecoverData((1, 0), (entry(0, 1, 0),), 0, 0, (), 0), 2, 2)
    assert site.tl == (1, 0)
    site.receive(Vote2((1, 0), YES), 1, 3)
    site.take()
    assert site.phase == O2
    site.receive(Vote2((1, 0), YES), 2, 4)
    assert sends(site) == [(2, NewToken((1, 0)))]
    assert (site.phase, site.token_list.authorized) == (NORMAL, False)


def test_cm_r5_the_votes_of_all_others_do_not_replace_the_originators_own_recovery() -> None:
    site = announcing()
    site.take()
    site.receive(Vote2((1, 0), YES), 1, 3)
    site.receive(Vote2((1, 0), YES), 2, 4)
    assert (site.phase, sends(site)) == (O2, [])


def waiting_for_the_token(**changes: Any) -> TokenSite:
    """Site 0 has formed (1, 0) and sent its token to site 2."""
    site = announcing(**changes)
    site.receive(RecoverData((1, 0), (entry(0, 1, 0),), 0, 0, (), 0), 2, 2)
    site.receive(Vote2((1, 0), YES), 1, 3)
    site.receive(Vote2((1, 0), YES), 2, 4)
    site.take()
    return site


def test_cm_r5_the_token_is_sent_again_until_the_list_is_heard_to_live() -> None:
    """Erratum 54: the paper sends it once."""
    site = waiting_for_the_token(idle_ns=NEVER)
    for attempt in (1, 2, 3):
        assert act(site) == (4 + attempt * RETX, [(2, NewToken((1, 0)))])
    site.receive(Confirm((1, 0), 0, 2, 0), 2, 200 * MS)
    assert site.token_list.authorized
    assert site.timers.token_due == NEVER


def test_cm_r5_after_r_tokens_in_vain_the_originator_begins_from_scratch() -> None:
    site = waiting_for_the_token(attempts=3, idle_ns=NEVER)
    for _ in range(3):
        act(site)
    _, found = act(site)
    assert found == [(1, Invite((2, 0), site.boot)), (2, Invite((2, 0), site.boot))]


def test_cm_r5_an_originator_that_is_the_new_token_site_takes_the_token_itself() -> None:
    site = alone(0)
    site.reform(0)
    for other in (1, 2):
        site.receive(vote((1, 0)), other, 1)
    for other in (1, 2):
        site.receive(Vote2((1, 0), YES), other, 2)
    found = sends(site)
    assert found[-1] == (EVERYONE, Confirm((1, 0), -1, 0, -1))
    assert not [pdu for _, pdu in found if isinstance(pdu, NewToken)]
    assert site.holding
    assert site.token_list.authorized


# -- CM-R8: failing --------------------------------------------------------------------------


def test_cm_r8_the_wait_after_a_failure_is_random_and_grows() -> None:
    longest: list[int] = []
    for failures in range(9):
        waits = []
        for seed in range(60):
            site = TokenSite(0, ALL, TokenConfig(), Random(seed))
            site.reformation.failures = failures
            site.reform(0)
            site.receive(no((1, 0), (1, 1)), 1, 1000)
            waits.append(site.timers.reform_due - 1000)
        bound = 4 * RETX << min(failures, 3)
        assert all(RETX <= wait <= bound for wait in waits)
        assert len(set(waits)) > 50
        longest.append(max(waits))
    assert longest[3] > 3 * longest[0]
    assert max(longest) <= 4 * RETX << 3


def test_cm_r2_who_is_believed_to_be_gone_is_not_invited_for_long() -> None:
    """The owner may know it from elsewhere; a list without it needs a majority all the same."""
    for call, invited in ((TokenSite.reform, 9), (TokenSite.without, 5)):
        site = TokenSite(0, ALL, TokenConfig(), Random(0))
        site.take()
        call(site, 0)
        rounds = 0
        while site.phase == O1:
            rounds += any(isinstance(pdu, Invite) for _, pdu in sends_of(site.take()))
            site.on_timer(site.timers.reform_due)
        assert rounds == invited
        assert site.reformation.blocked is not None
        assert site.reformation.blocked[0] == "majority"


def test_cm_r8_an_invitation_accepted_meanwhile_ends_the_wait() -> None:
    site = alone(0)
    site.reform(0)
    site.receive(no((1, 0), (1, 1)), 1, 1)
    assert site.phase == OUT
    site.receive(invitation((2, 1)), 1, 2)
    assert (site.phase, site.reformation.attempt) == (S1, (2, 1))


def test_cm_r8_a_success_makes_the_next_wait_short_again() -> None:
    ring = Ring(3)
    ring[0].reformation.failures = 5
    ring[0].reform(0)
    ring.collect(0)
    ring.settle()
    assert ring[0].tl == (1, 0)
    assert ring[0].reformation.failures == 0


# -- CM-R9, CM-R10: the slave ----------------------------------------------------------------


def test_cm_r9_an_invitation_is_accepted_and_the_vote_says_what_the_originator_must_know() -> None:
    site = alone(1)
    site.receive(B(U, 2, 0, Bundle.of(b"2.0")), 2, 0)
    site.receive(Ack(U, 0, DATA, 2, 0, 0, 1), 0, 0)
    site.take()
    site.receive(invitation((3, 2)), 2, 1)
    out = site.take()
    assert out.persists == [Joined((3, 2))]
    assert sends_of(out) == [(2, vote((3, 2), nts=1, exp=1, boot=site.boot, inviter=BOOT))]
    assert (site.phase, site.holding) == (S1, False)
    assert site.timers.reform_due == 1 + TokenConfig().slave_timeout_ns


def test_cm_r9_the_same_invitation_again_gets_the_same_vote_again() -> None:
    site = slave()
    site.receive(invitation((1, 0)), 0, 2)
    again = site.take()
    assert again.persists == []
    assert sends_of(again) == [(0, vote((1, 0), boot=site.boot, inviter=BOOT))]


@pytest.mark.parametrize("version", [(0, 2), (1, 2), (2, 2)])
def test_cm_r9_in_an_attempt_every_other_invitation_is_refused(version: Version) -> None:
    site = slave(v=(1, 0))
    site.receive(invitation(version), 2, 2)
    assert sends(site) == [(2, no(version, (1, 0), BOOT))]
    assert (site.phase, site.reformation.attempt) == (S1, (1, 0))


def test_cm_r9_a_version_that_is_not_higher_than_all_joined_fails_the_sequence_test() -> None:
    site = alone(1)
    site.receive(invitation((4, 2)), 2, 1)
    site.receive(Abort((4, 2)), 2, 2)
    site.take()
    for version in ((4, 0), (4, 2), (3, 2)):
        site.receive(invitation(version), version[1], 3)
        assert sends(site) == [(version[1], no(version, (4, 2), BOOT))]
    site.receive(invitation((5, 0)), 0, 4)
    assert site.reformation.attempt == (5, 0)


def test_cm_r9_an_invitation_to_the_list_we_are_in_is_an_old_one() -> None:
    site = slave()
    site.receive(announcement(site, (1, 0), ALL, 0, 0), 0, 2)
    site.take()
    site.receive(invitation((1, 0)), 0, 3)
    assert sends(site) == []
    assert site.phase == NORMAL


def test_cm_r9_an_originator_that_forgot_its_attempt_cannot_repeat_its_version() -> None:
    """It lost its disk and uses a version again: two lists of one version must not be."""
    site = slave()
    site.receive(Invite((1, 0), BOOT + 1), 0, 2)
    assert sends(site) == [(0, no((1, 0), (1, 0), BOOT + 1))]
    site.receive(announcement(site, (1, 0), ALL, 0, 0), 0, 2)
    site.take()
    site.receive(Invite((1, 0), BOOT + 1), 0, 3)
    assert sends(site) == [(0, no((1, 0), (1, 0), BOOT + 1))]


def test_cm_r10_an_announced_list_is_joined_only_by_a_site_still_in_the_attempt() -> None:
    site = slave()
    site.receive(Abort((1, 0)), 0, 2)
    assert site.phase == OUT
    site.receive(announcement(site, (1, 0), ALL, 0, 0), 0, 3)
    assert sends(site) == [(0, Vote2((1, 0), NO, BOOT))]
    assert site.tl == U


def test_cm_r10_a_site_that_has_committed_says_so_again() -> None:
    site = slave()
    new = announcement(site, (1, 0), ALL, 0, 0)
    site.receive(new, 0, 2)
    assert sends(site) == [(0, Vote2((1, 0), YES, BOOT))]
    site.receive(new, 0, 3)
    assert sends(site) == [(0, Vote2((1, 0), YES, BOOT))]


def test_cm_r10_while_it_recovers_a_repeated_announcement_is_not_answered() -> None:
    site = slave()
    new = announcement(site, (1, 0), ALL, 4, 0)
    site.receive(new, 0, 2)
    assert sends(site) == [(0, RecoverReq((1, 0), 0))]
    site.receive(new, 0, 3)
    assert sends(site) == []
    assert site.phase == S2


# -- CM-R11: recovery ------------------------------------------------------------------------


def test_cm_r11_what_is_missing_is_fetched_from_the_new_token_site() -> None:
    site = slave(v=(1, 2))
    site.receive(announcement(site, (1, 2), ALL, 3, 0), 2, 2)
    assert sends(site) == [(0, RecoverReq((1, 2), 0))]
    assert act(site) == (2 + RETX, [(0, RecoverReq((1, 2), 0))])  # repeated until it comes
    site.receive(RecoverData((1, 2), (entry(0, 1, 0), entry(1, 1, 1)), 0, 0, (), 0), 0, 60 * MS)
    assert sends(site) == [(2, Vote2((1, 2), PENDING, BOOT)), (0, RecoverReq((1, 2), 2))]
    site.receive(RecoverData((1, 2), (entry(2, 2, 0),), 0, 0, (), 2), 0, 70 * MS)
    out = site.take()
    assert sends_of(out)[0] == (2, Vote2((1, 2), YES, BOOT))
    assert isinstance(out.persists[-1], Listed)
    assert [line.ack.ts for line in out.persists[-1].entries] == [0, 1, 2]
    assert (site.tl, site.nts, site.phase, site.token_list.authorized) == ((1, 2), 3, NORMAL, False)


def test_cm_r11_each_batch_gives_the_slave_more_time() -> None:
    site = slave(recover_batch=1)
    site.receive(announcement(site, (1, 0), ALL, 30, 0), 0, 2)
    for ts in range(29):
        now = (ts + 1) * 500 * MS
        site.receive(RecoverData((1, 0), (entry(ts, 1, ts),), 0, 0, (), ts), 0, now)
        assert site.timers.reform_due == now + site.config.slave_timeout_ns
    site.receive(RecoverData((1, 0), (entry(3, 1, 3),), 0, 0, (), 3), 0, 29 * 500 * MS + 1)
    assert (
        site.timers.reform_due == 29 * 500 * MS + site.config.slave_timeout_ns
    )  # nothing new: no time


def test_cm_r11_what_the_new_token_site_has_committed_is_committed_on_arrival() -> None:
    """Erratum 14: else a long recovery would begin from zero with every attempt."""
    site = slave()
    site.receive(announcement(site, (1, 0), ALL, 9, 0), 0, 2)
    site.receive(RecoverData((1, 0), tuple(entry(k, 1, k) for k in range(5)), 3, 0, (), 0), 0, 3)
    out = site.take()
    assert [d.seq for d in out.deliveries] == [0, 1, 2]
    assert (site.cnts, site.nts) == (3, 5)
    site.receive(Abort((1, 0)), 0, 4)
    assert (site.cnts, site.nts) == (3, 5)  # and stays so: they belong to the same list


def test_cm_r11_a_site_of_another_list_starts_again_at_its_commit_mark() -> None:
    site = restarted(1, 3, Listed((1, 0), ALL, 2, 0, (entry(0, 1, 0), entry(1, 2, 0))))
    site.receive(invitation((3, 0)), 0, 1)
    site.receive(announcement(site, (3, 0), ALL, 3, 2, (2, 2)), 0, 2)
    assert sends(site)[-1] == (2, RecoverReq((3, 0), 0))


def test_cm_r11_recovery_into_another_list_is_staged_until_that_list_is_entered() -> None:
    """An aborted attempt must not cost a site its uncommitted entries: they are evidence."""
    mine = (entry(0, 1, 0), entry(1, 2, 0))
    site = restarted(1, 3, Listed((1, 0), ALL, 2, 0, mine))
    site.receive(invitation((3, 0)), 0, 1)
    site.receive(announcement(site, (3, 0), ALL, 3, 2, (2, 2)), 0, 2)
    other = tuple(entry(ts, 0, ts, tl=(2, 2)) for ts in range(2))
    site.receive(RecoverData((3, 0), other, 0, 0, (), 0), 2, 3)
    assert [line.ack.tl for line in site.log.entries.values()] == [U, U]
    site.receive(Abort((3, 0)), 0, 4)
    assert tuple(site.log.entries.values()) == mine
    assert site.nts == 2
    site.take()
    site.receive(invitation((4, 0)), 0, 5)
    ((_, again),) = sends(site)
    assert (again.tl, again.nts) == ((1, 0), 2)
    # Entering the list is what replaces them.
    site.receive(announcement(site, (4, 0), ALL, 2, 2, (2, 2)), 0, 6)
    site.receive(RecoverData((4, 0), other, 0, 0, (), 0), 2, 7)
    assert tuple(site.log.entries.values()) == other
    assert site.log.next_num == {0: 2, 1: 0, 2: 0}


def test_cm_r11_a_foreign_commit_replaces_what_it_proves_void() -> None:
    mine = (entry(0, 1, 0), entry(1, 2, 0), entry(2, 2, 1))
    site = restarted(1, 3, Listed((1, 0), ALL, 3, 0, mine))
    site.receive(invitation((3, 0)), 0, 1)
    site.receive(announcement(site, (3, 0), ALL, 9, 2, (2, 2)), 0, 2)
    lines = (mine[0], entry(1, 0, 0, tl=(2, 2)))
    site.receive(RecoverData((3, 0), lines, 2, 0, (), 0), 2, 3)
    assert [d.bundle.data for d in site.take().deliveries] == [b"1.0", b"0.0"]
    assert tuple(site.log.entries.values()) == lines
    assert (site.cnts, site.nts) == (2, 2)
    assert site.log.next_num == {0: 1, 1: 1, 2: 0}


def test_cm_r11_a_vote_after_foreign_commits_is_still_a_vote() -> None:
    """Its expected issuer may be no member of the list it names."""
    voter = restarted(2, 5, Joined((1, 0)), Listed((1, 0), (0, 1, 2), 0, 0, ()))
    voter.receive(invitation((3, 0)), 0, 1)
    voter.receive(announcement(voter, (3, 0), (0, 2, 3), 5, 0, (2, 0)), 0, 2)
    line = entry(0, 0, 0, tl=(2, 0), by=0, to=3)  # of a list {0, 3, 4}
    voter.receive(RecoverData((3, 0), (line,), 4, 0, (), 0), 0, 3)
    voter.receive(Abort((3, 0)), 0, 4)
    voter.take()
    originator = alone(3, sites=5)
    originator.receive(TlHint((4, 3)), 0, 4)
    voter.receive(Invite((5, 3), originator.boot), 3, 5)
    ((_, ballot),) = sends(voter)
    originator.receive(ballot, 2, 6)
    assert sorted(originator.reformation.votes) == [2, 3]
    assert originator.drops == {}


def test_cm_r11_data_of_another_attempt_or_another_site_is_ignored() -> None:
    site = slave(v=(1, 2))
    site.receive(announcement(site, (1, 2), ALL, 3, 0), 2, 2)
    site.take()
    line = (entry(0, 1, 0),)
    site.receive(RecoverData((1, 2), line, 0, 0, (), 0), 2, 3)  # not the new token site
    site.receive(RecoverData((0, 2), line, 0, 0, (), 0), 0, 3)  # not this attempt
    assert (site.nts, sends(site)) == (0, [])
    site.receive(RecoverData((1, 2), (entry(1, 1, 0),), 0, 0, (), 1), 0, 4)  # not the next one
    assert (site.nts, sends(site)) == (0, [])
    site.receive(RecoverData((1, 2), (entry(0, 1, 0), entry(1, 1, 1), entry(2, 1, 2),
                                      entry(3, 1, 3)), 0, 0, (), 0), 0, 5)  # fmt: skip
    assert (site.nts, site.phase) == (3, NORMAL)  # nothing from the start of the list on
    site.receive(RecoverData((1, 2), (entry(3, 1, 3),), 0, 0, (), 3), 0, 6)  # too late
    assert site.nts == 3


def test_cm_r11_a_list_below_our_commit_mark_stops_the_site() -> None:
    """Cannot happen within the assumptions: better to stop than to take back a delivery."""
    site = restarted(1, 3, Listed(U, ALL, 0, 0, ()), entry(0, 1, 0), entry(1, 1, 1))
    site.receive(invitation((3, 0)), 0, 1)
    site.receive(announcement(site, (3, 0), ALL, 1, 0, (2, 0)), 0, 2)
    assert site.phase == BROKEN
    assert [n.kind for n in site.take().notices] == ["broken"]
    site.receive(invitation((9, 0)), 0, 9)
    assert site.take() is EMPTY


def test_the_log_defends_its_marks() -> None:
    site = restarted(1, 3, Listed(U, ALL, 0, 0, ()), entry(0, 1, 0))
    with pytest.raises(InvariantBroken, match="entry 5 appended at 1"):
        site.log.append(entry(5, 1, 1))
    with pytest.raises(InvariantBroken, match="below the commit mark"):
        site.log.roll_back(0, 0)
    with pytest.raises(InvariantBroken, match="starts at 4 with nts 1"):
        site.token_list.enter(announcement(site, (1, 0), ALL, 4, 0))


# -- CM-R12, CM-R13: the new token site ------------------------------------------------------


def test_cm_r12_an_ordinary_slave_is_back_to_normal_but_commits_nothing_yet() -> None:
    site = slave()
    site.submit(Bundle.of(b"mine"), 1)
    assert sends(site) == []
    site.receive(announcement(site, (1, 0), ALL, 0, 0), 0, 2)
    assert sends(site) == [
        (0, Vote2((1, 0), YES, BOOT)),
        (EVERYONE, B((1, 0), 1, 0, Bundle.of(b"mine"))),
    ]
    assert (site.phase, site.token_list.authorized) == (NORMAL, False)


def test_cm_r12_the_new_token_site_waits_for_its_token() -> None:
    site = slave(me=2)
    site.receive(announcement(site, (1, 0), ALL, 0, 2), 0, 2)
    assert (site.phase, site.holding) == (W3, False)
    assert site.timers.reform_due == 2 + TokenConfig().token_timeout_ns
    site.receive(NewToken((1, 0)), 0, 3)
    found = sends(site)
    assert found[-1] == (EVERYONE, Confirm((1, 0), -1, 2, -1))  # at once, so that all know
    assert (site.phase, site.holding, site.stamping.hold_ts) == (NORMAL, True, -1)
    assert site.token_list.authorized


def test_cm_r13_the_new_token_site_serves_before_during_and_after_it_commits() -> None:
    site = alone(2)
    site.receive(B(U, 1, 0, Bundle.of(b"1.0")), 1, 0)
    site.receive(Ack(U, 0, DATA, 1, 0, 0, 1), 0, 0)
    site.receive(invitation((1, 0)), 0, 1)
    site.take()
    answer = RecoverData((1, 0), (entry(0, 1, 0),), 0, 0, (), 0)
    site.receive(RecoverReq((1, 0), 0), 1, 2)  # elected, but the announcement has not come yet
    assert sends(site) == [(1, answer)]
    assert site.timers.reform_due == 2 + TokenConfig().token_timeout_ns
    site.receive(announcement(site, (1, 0), ALL, 1, 2), 0, 3)
    site.take()
    site.receive(RecoverReq((1, 0), 0), 1, 4)
    assert sends(site) == [(1, answer)]
    assert site.timers.reform_due == 4 + TokenConfig().token_timeout_ns
    site.receive(NewToken((1, 0)), 0, 5)
    site.take()
    site.receive(RecoverReq((1, 0), 0), 1, 6)
    ((_, late),) = sends(site)
    assert late.entries == answer.entries


def test_cm_r13_a_new_token_site_that_has_left_ignores_requests_and_its_token() -> None:
    site = slave(me=2)
    site.receive(announcement(site, (1, 0), ALL, 0, 2), 0, 2)
    while site.phase == W3:
        site.on_timer(site.deadline)
    site.take()
    assert site.phase == OUT
    site.receive(RecoverReq((1, 0), 0), 1, 10**10)
    site.receive(NewToken((1, 0)), 0, 10**10)
    assert not site.take()
    assert (site.phase, site.holding) == (OUT, False)


def test_cm_r13_a_late_request_does_not_read_a_log_that_was_rolled_back_since() -> None:
    lines = tuple(entry(ts, 0, ts) for ts in range(10))
    site = restarted(2, 3, Joined((1, 0)), Listed((1, 0), ALL, 10, 2, lines))
    site.receive(invitation((3, 0)), 0, 1)
    site.receive(announcement(site, (3, 0), ALL, 7, 0, (2, 0)), 0, 2)
    other = entry(0, 1, 0, tl=(2, 0))
    site.receive(RecoverData((3, 0), (other,), 1, 0, (), 0), 0, 3)
    assert site.nts == 1
    site.take()
    site.receive(RecoverReq((1, 0), 0), 1, 4)
    assert not site.take()


def test_cm_r13_a_token_that_comes_again_is_confirmed_again() -> None:
    site = slave(me=2)
    site.receive(announcement(site, (1, 0), ALL, 0, 2), 0, 2)
    site.receive(NewToken((1, 0)), 0, 3)
    site.take()
    site.receive(NewToken((1, 0)), 0, 4)
    assert sends(site) == [(EVERYONE, Confirm((1, 0), -1, 2, -1))]


@pytest.mark.parametrize("me", [1, 2])
def test_cm_r13_a_token_out_of_place_is_ignored(me: int) -> None:
    site = slave(me=me)
    site.receive(NewToken((1, 0)), 0, 2)  # not announced yet
    assert (site.phase, site.holding, sends(site)) == (S1, False, [])
    site.receive(announcement(site, (1, 0), ALL, 0, 0), 0, 3)
    site.take()
    site.receive(NewToken((1, 0)), 0, 4)  # not ours
    site.receive(NewToken((5, 0)), 0, 4)
    assert (site.holding, sends(site)) == (False, [])


def test_cm_r13_an_originator_serves_recoveries_as_well() -> None:
    ring = Ring(3)
    ring.lose(dst=2)
    ring.submit(1, "x")
    ring.run(60 * MS)
    ring.heal()
    ring[0].reform(ring.now)  # 0 and 1 hold entry 0, 2 does not; 0 is elected
    ring.collect(0)
    ring.settle()
    assert ring.pdus(RecoverData, src=0, dst=2)
    assert ring[2].tl == (1, 0)


# -- CM-R14, CM-R15, CM-R16 ------------------------------------------------------------------


@pytest.mark.parametrize("phase", [S1, S2, W3])
def test_cm_r14_a_silent_originator_is_left_and_its_slaves_originate(phase: str) -> None:
    site = slave(me=2)
    if phase == S2:
        site.receive(announcement(site, (1, 0), ALL, 5, 0), 0, 2)
    elif phase == W3:
        site.receive(announcement(site, (1, 0), ALL, 0, 2), 0, 2)
    assert site.phase == phase
    due = site.timers.reform_due
    while site.phase == phase:
        assert site.deadline <= due
        site.on_timer(site.deadline)
    assert (site.phase, site.reformation.attempt) == (OUT, None)
    while site.phase == OUT:
        site.on_timer(site.deadline)
    assert site.reformation.attempt == (2, 2)


@pytest.mark.parametrize("phase", [S1, S2, W3])
def test_cm_r14_an_abort_releases_the_slaves(phase: str) -> None:
    site = slave(me=2)
    if phase == S2:
        site.receive(announcement(site, (1, 0), ALL, 5, 0), 0, 2)
    elif phase == W3:
        site.receive(announcement(site, (1, 0), ALL, 0, 2), 0, 2)
    site.receive(Abort((9, 0)), 0, 3)
    assert site.phase == phase
    site.receive(Abort((1, 0)), 0, 3)
    assert site.phase == OUT


def test_cm_r14_an_abort_after_committing_counts_only_while_unauthorized() -> None:
    site = slave()
    site.receive(announcement(site, (1, 0), ALL, 0, 0), 0, 2)
    assert site.phase == NORMAL
    site.receive(Abort((1, 0)), 0, 3)
    assert site.phase == OUT
    site = slave()
    site.receive(announcement(site, (1, 0), ALL, 0, 0), 0, 2)
    site.receive(Confirm((1, 0), -1, 0, -1), 0, 3)
    site.receive(Abort((1, 0)), 0, 4)  # a copy that took its time
    assert site.phase == NORMAL


def test_cm_r15_a_list_whose_token_never_comes_is_left() -> None:
    site = slave(idle_ns=NEVER)
    site.receive(announcement(site, (1, 0), ALL, 0, 0), 0, 2)
    site.take()
    now, found = act(site)
    assert now == 2 + TokenConfig().auth_timeout_ns
    assert found == [(0, Invite((2, 1), site.boot)), (2, Invite((2, 1), site.boot))]


def test_cm_r15_the_watchdog_sleeps_when_the_list_is_heard_to_live() -> None:
    for sign in (Confirm((1, 0), -1, 0, -1), Ack((1, 0), 0, 0, 0, 0, 0, 2)):
        site = slave(idle_ns=NEVER)
        site.receive(announcement(site, (1, 0), ALL, 0, 0), 0, 2)
        site.receive(sign, 0, 3)
        assert site.token_list.authorized
        assert site.timers.auth_due == NEVER


def test_cm_r16_entries_below_the_start_commit_with_the_authorization_and_not_before() -> None:
    site = slave()
    site.receive(announcement(site, (1, 0), ALL, 2, 0), 0, 2)
    site.receive(RecoverData((1, 0), (entry(0, 1, 0), entry(1, 1, 1)), 0, 0, (), 0), 0, 3)
    assert site.phase == NORMAL
    assert site.take().deliveries == []
    site.receive(Confirm((1, 0), 1, 0, 1), 0, 4)
    out = site.take()
    assert [d.seq for d in out.deliveries] == [0, 1]
    assert [(n.kind, n.info) for n in out.notices] == [("view", ((1, 0), ALL, 0, 2))]


def test_cm_r16_a_new_list_begins_with_clean_books() -> None:
    ring = Ring(3, bundle=False)
    ring.submit(1, *"abcdef")
    ring.submit(2, *"ghi")
    ring.run(60 * MS)
    ring[1].reform(ring.now)
    ring.collect(1)
    ring.settle()
    for engine in ring.sites.values():
        start = engine.token_list.start_ts
        assert engine.tl == (1, 1)
        assert all(ts >= start - 1 for ts in engine.commit.have.values())
        assert all(ack.tl == (1, 1) for ack in engine.ordering.qc.values())
    ring.run(2000 * MS)
    assert sorted(ring.log(0)) == list("abcdefghi")
    ring.check()


def test_a_reformation_of_a_group_of_one_needs_no_network() -> None:
    site = alone(0, sites=1, resilience=0)
    site.submit(Bundle.of(b"a"), 0)
    site.reform(1)
    assert (site.phase, site.tl, site.holding) == (NORMAL, (1, 0), True)
    site.submit(Bundle.of(b"b"), 2)
    assert [d.seq for d in site.take().deliveries] == [0, 1]
