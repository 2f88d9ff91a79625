"""CM84 §5: the reformation phase."""

from __future__ import annotations

from itertools import combinations, pairwise
from random import Random

import pytest

from roundelay.core.engine import NEVER
from roundelay.core.token.pdu import (
    DATA,
    NO,
    YES,
    Abort,
    Ack,
    B,
    Confirm,
    Invite,
    NewTl,
    NewToken,
    RecoverData,
    RecoverReq,
    Vote1,
    Vote2,
)
from roundelay.core.token.phases import NORMAL, O1, OUT, S1, S2, W3
from tests.core.ring import MS, Ring, announcement, invitation

U = (0, 0)


def originate(ring: Ring, site: int) -> None:
    """`site` invites; nothing has arrived anywhere yet."""
    ring[site].reform(ring.now)
    ring.collect(site)


def reform(ring: Ring, site: int) -> None:
    """`site` invites, and whatever can follow at once does."""
    originate(ring, site)
    ring.settle()


def test_a_failure_or_a_recovery_starts_a_reformation() -> None:
    # §5
    ring = Ring(3, attempts=2)
    ring.submit(0, "a", "b", "c")
    ring.crash(2)
    ring.run_until(lambda: ring[0].token_list.members == (0, 1))
    ring.restart(2)
    ring.run_until(lambda: ring[0].token_list.members == (0, 1, 2))


def test_initially_the_token_list_consists_of_all_sites_of_the_group() -> None:
    # §5
    ring = Ring(6)
    assert {ring[site].token_list.members for site in ring.group} == {ring.group}


@pytest.mark.parametrize("kind", [Invite, Vote1, NewTl, Vote2, NewToken, Confirm, RecoverData])
def test_a_reformation_is_robust_against_lost_messages(kind: type) -> None:
    # §5
    ring = Ring(4)
    ring.lose(dst=3)  # it has something to recover, and another than the originator is elected
    ring.submit(1, "x")
    ring.run(60 * MS)
    ring.heal()
    ring.lose(kind, times=4)
    reform(ring, 3)
    ring.run(5000 * MS)
    assert len({ring[site].tl for site in ring.group}) == 1
    assert ring[0].tl >= (1, 3)
    assert ring[0].token_list.members == ring.group
    assert all(ring.log(site) == ["x"] for site in ring.group)


@pytest.mark.parametrize("victim", [0, 1, 2, 3])
@pytest.mark.parametrize("after", [3, 6, 9, 12, 15])
def test_a_reformation_is_not_blocked_by_sites_that_fail_in_it(victim: int, after: int) -> None:
    # §5
    ring = Ring(5, resilience=2, attempts=2)
    ring.submit(1, "x")
    ring.run(1000 * MS)
    originate(ring, 0)
    for _ in range(after):
        if ring.flights:
            ring.deliver()
    ring.crash(victim)
    ring.submit(4, "y")
    ring.run_until(lambda: all(ring.log(site) == ["x", "y"] for site in ring.sites))
    ring.check()


# -- §5.1: a valid list ----------------------------------------------------------------------


@pytest.mark.parametrize("sites", [3, 4, 5])
def test_a_valid_list_has_a_majority_of_the_group(sites: int) -> None:
    # §5.1
    for size in range(1, sites):
        ring = Ring(sites, attempts=1)
        ring.submit(0, "before")
        ring.run(500 * MS)
        part = tuple(range(size))
        ring.cut(part, tuple(range(size, sites)))
        reform(ring, 0)
        ring.run(1000 * MS)
        assert (ring[0].tl > U and ring[0].token_list.authorized) == (2 * size > sites)


def test_of_two_parts_of_a_split_group_at_most_one_can_form_a_list() -> None:
    # §5.1
    for size in (1, 2):
        for part in combinations(range(5), size):
            ring = Ring(5, resilience=2, attempts=1)
            rest = tuple(site for site in ring.group if site not in part)
            ring.submit(0, "x")
            ring.run(30 * MS)
            ring.cut(part, rest)
            for site in ring.group:
                ring.submit(site, f"from {site}")
            ring.run(15_000 * MS)
            assert all(ring[site].tl == U for site in part)
            assert {ring[site].token_list.members for site in rest} == {rest}


def test_a_site_joins_only_lists_with_higher_versions_than_it_belonged_to() -> None:
    # §5.1, sequence test
    ring = Ring(3)
    reform(ring, 0)
    assert ring[2].tl == (1, 0)
    ring.inject(invitation((1, 0)), 0, 2)
    ring.inject(invitation((0, 1)), 1, 2)
    refused = [pdu for pdu in ring.pdus(Vote1, src=2) if not pdu.yes]
    assert [pdu.v for pdu in refused] == [(1, 0), (0, 1)]
    ring.inject(invitation((1, 1)), 1, 2)
    assert ring[2].reformation.attempt == (
        1,
        1,
    )  # the site number decides between equal version numbers


def test_the_originator_chooses_its_last_version_plus_one_and_its_own_number() -> None:
    # §5.1
    ring = Ring(3)
    for k, site in enumerate((2, 0, 1), 1):
        reform(ring, site)
        assert ring[0].tl == (k, site)


def test_a_slave_that_fails_the_sequence_test_tells_its_version_and_the_next_is_higher() -> None:
    # §5.1
    ring = Ring(3)
    ring.cut((0,), (1, 2))
    for _ in range(4):  # 1 and 2 form lists without 0
        reform(ring, 1)
        ring.run(1000 * MS)
    ring.heal()
    joined = max(ring[1].reformation.max_joined, ring[2].reformation.max_joined)
    assert joined > (3, 0)
    ring[0].reformation.seen_version = 0
    reform(ring, 0)
    refused = [pdu for pdu in ring.pdus(Vote1, dst=0) if not pdu.yes]
    assert refused
    assert max(pdu.max_joined for pdu in refused) == joined
    ring.run_until(lambda: ring[0].tl > joined)
    assert ring[0].token_list.members == (0, 1, 2)


@pytest.mark.parametrize("seed", range(5))
def test_all_valid_lists_have_increasing_version_numbers(seed: int) -> None:
    # §5.1: also across sites, in the order in which they were authorized.
    rng = Random(seed)
    ring = Ring(5, resilience=2, attempts=1, seed=seed)
    for turn in range(8):
        ring.submit(rng.choice(list(ring.sites)), f"m{turn}")
        part = tuple(rng.sample(ring.group, rng.randint(1, 4)))
        ring.cut(part, tuple(site for site in ring.group if site not in part))
        ring.run(rng.randint(100, 3000) * MS)
        ring.heal()
        ring.run(rng.randint(100, 3000) * MS)
    tokens = []
    for sent in ring.sent:
        if isinstance(sent.pdu, (Ack, Confirm)) and sent.pdu.tl not in tokens:
            tokens.append(sent.pdu.tl)
    assert len(tokens) > 3
    assert all(one < two for one, two in pairwise(tokens))


def test_the_new_list_has_one_of_the_l_plus_1_sites_that_would_stamp_next() -> None:
    # §5.1, resiliency test
    for level in (0, 1, 2):
        for present in combinations(range(5), 3):
            ring = Ring(5, resilience=level, attempts=0)
            ring.submit(4, "x")
            ring.run(1000 * MS)
            last = max(ack.ts for ack in ring.pdus(Ack))
            expected = ring[0].log.entries[last].ack.next
            needed = {(expected + step) % 5 for step in range(level + 1)}
            absent = tuple(site for site in ring.group if site not in present)
            ring.cut(present, absent)
            reform(ring, present[0])
            ring.run(300 * MS)
            formed = {ring[site].token_list.authorized and ring[site].tl > U for site in present}
            assert formed == {bool(needed & set(present))}


def test_a_new_list_leaves_the_old_one_without_the_sites_it_needs_to_commit() -> None:
    # §5.1: a token site that is not aware of the reformation cannot commit any more.
    ring = Ring(5, attempts=2)
    ring.submit(1, "a")
    ring.run(300 * MS)
    (holder,) = ring.holders
    others = tuple(site for site in ring.group if site != holder)
    ring.cut((holder,), others)
    reform(ring, others[0])
    ring.run(1000 * MS)
    assert ring[others[0]].token_list.authorized
    ring.submit(holder, "b")
    ring.run(100 * MS)
    assert "b" in ring.stamped_by(holder)
    ring.run(30_000 * MS)
    assert ring.log(holder) == ["a"]


def test_when_a_site_joins_it_tells_its_next_timestamp_and_its_list() -> None:
    # §5.1
    ring = Ring(3)
    ring.submit(1, "a", "b")
    ring.run(500 * MS)
    originate(ring, 0)
    ring.deliver()
    (vote,) = ring.pdus(Vote1)
    assert (vote.tl, vote.nts) == (ring[1].tl, ring[1].nts)


def test_the_list_with_the_largest_version_is_the_old_list() -> None:
    # §5.1
    ring = Ring(5, attempts=1)
    ring.cut((4,), (0, 1, 2, 3))
    reform(ring, 0)
    ring.run(500 * MS)
    newest = ring[0].tl
    assert newest > U
    ring.heal()
    ring[4].reform(ring.now)
    ring.collect(4)
    ring.run_until(lambda: ring[4].tl > newest)
    accepted = [pdu for pdu in ring.pdus(NewTl) if pdu.v == ring[4].tl]
    assert {pdu.old for pdu in accepted} == {newest}


def behind(ring: Ring, *sites: int) -> None:
    """The sites, not 1 nor 2, miss a message that the others have stamped."""
    ring.submit(1, "first")
    ring.run(200 * MS)
    assert ring.holders == [1]
    for site in sites:
        ring.lose(dst=site)
    ring.submit(1, "missed")
    ring.run(60 * MS)
    ring.heal()
    assert all(ring[site].nts == 1 for site in sites)
    assert ring[1].nts == ring[2].nts == 2


def test_a_site_with_the_largest_next_timestamp_becomes_the_new_token_site() -> None:
    # §5.1
    ring = Ring(5)
    behind(ring, 0, 3, 4)
    reform(ring, 0)
    (new,) = set(ring.pdus(NewTl))
    assert (new.start_ts, new.nts_site) == (2, 1)
    assert ring.holders == [1]


def test_the_starting_timestamp_is_the_largest_known_next_timestamp_of_the_old_list() -> None:
    # §5.1
    ring = Ring(3, bundle=False)
    ring.submit(1, *"abc")
    ring.run(300 * MS)
    top = max(ring[site].nts for site in ring.group)
    reform(ring, 2)
    assert {ring[site].token_list.start_ts for site in ring.group} == {top}
    ring.submit(0, "d")
    ring.settle()
    assert min(ack.ts for ack in ring.pdus(Ack) if ack.tl == (1, 2)) == top


def test_before_normal_operation_each_site_recovers_what_it_misses_from_the_new_token_site() -> (
    None
):
    # §5.1
    ring = Ring(5)
    behind(ring, 0, 3)
    reform(ring, 4)
    (new,) = set(ring.pdus(NewTl))
    for site in (0, 3):
        assert ring.pdus(RecoverReq, src=site, dst=new.nts_site)
        assert ring.pdus(RecoverData, src=new.nts_site, dst=site)
    assert all(ring[site].nts >= new.start_ts for site in ring.group)


def test_a_site_that_joins_a_new_list_never_uses_the_old_one_again() -> None:
    # §5.1: even if the new list is not formed.
    ring = Ring(3)
    ring.submit(1, "a")
    ring.run(300 * MS)
    (holder,) = ring.holders
    other = (holder + 1) % 3
    ring.inject(invitation((1, other)), other, holder)
    ring.inject(Abort((1, other)), other, holder)
    ring.flights.clear()
    assert ring[holder].phase == OUT
    state = (ring[holder].nts, ring[holder].cnts)
    ring.inject(B(U, 2, 0, ring.pdus(B)[0].bundle), 2, holder)
    ring.inject(Ack(U, ring[holder].nts, DATA, 1, 1, holder, other), holder, holder)
    assert not [ack for ack in ring.pdus(Ack, src=holder) if ack.ts >= state[0]]
    assert (ring[holder].nts, ring[holder].cnts) == state
    ring.run(5000 * MS)
    assert ring[holder].tl > (1, other)


def test_a_recovered_site_discards_its_uncommitted_messages_and_asks_the_new_token_site() -> None:
    # §5.1; what was not synced is gone with the power (docs/token.md: what else is kept, and why)
    ring = Ring(5, resilience=2)
    ring.submit(3, "x")
    ring.settle()
    assert ring.stamped_by(4) == ["x"]
    assert ring.log(4) == []
    ring.crash(4, keeps="synced")
    ring.restart(4)
    assert ring.stamped_by(4) == []
    ring.run_until(lambda: ring.log(4) == ["x"])
    assert ring.pdus(RecoverReq, src=4)


def test_what_only_the_failed_site_had_is_discarded_and_all_have_one_sequence() -> None:
    # §5.1
    ring = Ring(5, attempts=2)
    ring.submit(1, "a")
    ring.run(300 * MS)
    (holder,) = ring.holders
    ring.submit(holder, "only here")
    ring.flights.clear()  # stamped by the holder, heard by nobody
    assert "only here" in ring.stamped_by(holder)
    ring.crash(holder)
    others = [site for site in ring.group if site != holder]
    ring.submit(others[0], "b")
    ring.run_until(lambda: all(ring.log(site) == ["a", "b"] for site in others))
    ring.restart(holder)
    ring.run_until(lambda: ring.log(holder) == ["a", "b"])
    ring.check()


def test_a_recovered_site_obtains_the_number_of_the_next_message_of_each_source() -> None:
    # §5.1
    ring = Ring(3, history=0, bundle=False)
    ring.crash(2)
    ring.submit(0, *"abcd")
    ring.submit(1, *"efghij")
    ring.run_until(lambda: len(ring.log(0)) == 10)
    ring.restart(2)
    ring.run_until(lambda: ring[2].token_list.authorized)
    assert ring[2].log.next_num == ring[0].log.next_num
    assert ring[2].log.next_num[1] == 6
    # So it tells an old message from a new one.
    late = ring.pdus(B, src=1)[0]
    ring.inject(B(ring[2].tl, 1, late.n, late.bundle), 1, 2)
    assert (1, late.n) not in ring[2].ordering.qb


# -- §5.2: the protocol ----------------------------------------------------------------------


def test_it_has_three_phases_for_the_originator_and_two_for_a_slave() -> None:
    # §5.2, Fig. 5
    ring = Ring(4)
    behind(ring, 0)
    mark = len(ring.sent)
    reform(ring, 0)
    (new,) = set(ring.pdus(NewTl))
    sequence = [type(sent.pdu) for sent in ring.sent[mark:]]
    order = [Invite, Vote1, NewTl, Vote2, NewToken]
    firsts = [sequence.index(kind) for kind in order]
    assert firsts == sorted(firsts)
    last_votes = [len(sequence) - 1 - sequence[::-1].index(kind) for kind in (Vote1, Vote2)]
    assert last_votes[0] < sequence.index(NewTl)  # II begins when all have answered
    assert last_votes[1] < sequence.index(NewToken)  # III when all have committed
    tokens = [sent for sent in ring.sent[mark:] if isinstance(sent.pdu, NewToken)]
    assert {sent.dst for sent in tokens} == {new.nts_site}


def test_a_slave_can_join_only_one_list_at_a_time() -> None:
    # §5.2
    ring = Ring(4)
    ring.inject(invitation((5, 0)), 0, 2)
    ring.inject(invitation((6, 1)), 1, 2)
    assert ring[2].reformation.attempt == (5, 0)
    assert [(pdu.v, pdu.yes) for pdu in ring.pdus(Vote1, src=2)] == [
        ((5, 0), True),
        ((6, 1), False),
    ]


def test_any_negative_response_aborts_the_reformation_and_releases_its_members() -> None:
    # §5.2
    ring = Ring(4)
    ring.inject(invitation((9, 3)), 3, 2)  # 2 is taken
    reform(ring, 0)
    assert ring.pdus(Abort, src=0) == [Abort((1, 0))]
    assert [ring[site].phase for site in (0, 1, 3)] == [OUT, OUT, OUT]


def test_sites_that_fail_to_respond_after_r_attempts_are_left_out() -> None:
    # §5.2
    ring = Ring(4, attempts=3)
    ring.crash(3)
    reform(ring, 0)
    assert ring[0].phase == O1
    ring.run(1000 * MS)
    assert ring[0].token_list.members == (0, 1, 2)
    assert len(ring.pdus(Invite, dst=3)) == 1 + 3
    assert len(ring.pdus(Invite, dst=1)) == 1


@pytest.mark.parametrize("phase", [S1, S2])
def test_a_slave_leaves_a_list_if_nothing_comes_from_the_originator(phase: str) -> None:
    # §5.2
    ring = Ring(3, idle_ns=NEVER)
    ring.inject(invitation((1, 0)), 0, 2)
    if phase == S2:
        ring.inject(announcement(ring[2], (1, 0), (0, 1, 2), 7, 1), 0, 2)
    ring.flights.clear()
    assert ring[2].phase == phase
    ring.lose()
    ring.run(ring.config.slave_timeout_ns + MS)
    assert ring[2].reformation.attempt != (1, 0)


def test_a_slave_that_has_left_the_list_votes_no_when_it_is_announced() -> None:
    # §5.2
    ring = Ring(3)
    ring.inject(invitation((1, 0)), 0, 2)
    ring.inject(Abort((1, 0)), 0, 2)
    ring.inject(announcement(ring[2], (1, 0), (0, 1, 2), 0, 1), 0, 2)
    assert [(pdu.v, pdu.status) for pdu in ring.pdus(Vote2, src=2)] == [((1, 0), NO)]
    assert ring[2].tl == U


def test_a_slave_votes_yes_only_after_it_has_recovered_everything() -> None:
    # §5.2
    ring = Ring(4)
    behind(ring, 3)
    originate(ring, 0)
    while not [pdu for pdu in ring.pdus(Vote2, src=3) if pdu.status == YES]:
        start = next((pdu.start_ts for pdu in ring.pdus(NewTl)), None)
        assert start is None or ring[3].nts <= start
        ring.deliver()
    assert ring[3].nts == ring[3].token_list.start_ts == start
    assert "missed" in ring.stamped_by(3)


def test_a_new_token_site_that_has_left_votes_no_and_ignores_requests() -> None:
    # §5.2
    ring = Ring(3)
    ring.inject(invitation((1, 0)), 0, 1)
    ring.inject(Abort((1, 0)), 0, 1)
    ring.flights.clear()
    ring.inject(announcement(ring[1], (1, 0), (0, 1, 2), 0, 1), 0, 1)
    ring.inject(RecoverReq((1, 0), 0), 2, 1)
    ring.inject(NewToken((1, 0)), 0, 1)
    assert [(vote.v, vote.status) for vote in ring.pdus(Vote2, src=1)] == [((1, 0), NO)]
    assert ring.pdus(RecoverData, src=1) == []
    assert not ring[1].holding


@pytest.mark.parametrize("missing", [1, 2, 3])
def test_only_a_unanimous_vote_authorizes_the_token(missing: int) -> None:
    # §5.2
    ring = Ring(4, attempts=2)
    ring.submit(1, "x")
    ring.run(300 * MS)
    rule = ring.lose(Vote2, src=missing)
    reform(ring, 0)
    ring.run(80 * MS)
    assert rule.lost
    assert not ring.pdus(NewToken)
    assert not any(
        ring[site].token_list.authorized and ring[site].tl == (1, 0) for site in ring.group
    )


def test_the_new_token_site_starts_acknowledging_only_when_it_has_the_token() -> None:
    # §5.2
    ring = Ring(4)
    behind(ring, 0)
    ring.lose(NewToken)
    reform(ring, 0)
    ring.submit(3, "y")
    ring.settle()
    (new,) = set(ring.pdus(NewTl))
    assert ring[new.nts_site].phase == W3
    assert not [ack for ack in ring.pdus(Ack) if ack.tl == (1, 0)]
    ring.heal()
    ring.run(200 * MS)  # it is sent again, and so is the message
    assert next(ack.by for ack in ring.pdus(Ack) if ack.tl == (1, 0)) == new.nts_site


def test_a_site_that_leaves_a_list_waits_for_a_random_time_and_restarts() -> None:
    # §5.2
    waits = set()
    for seed in range(20):
        ring = Ring(3, seed=seed)
        ring.inject(invitation((1, 0)), 0, 2)
        ring.inject(Abort((1, 0)), 0, 2)
        waits.add(ring[2].timers.reform_due)
    assert len(waits) == 20


@pytest.mark.parametrize("seed", range(6))
def test_it_is_repeated_until_a_new_token_site_has_accepted_the_token(seed: int) -> None:
    # §5.2: with many originators and many losses.
    ring = Ring(5, seed=seed, attempts=2)
    rng = Random(seed)
    rules = [ring.lose(lambda pdu: rng.random() < 0.4)]
    for site in ring.group:
        originate(ring, site)
    ring.submit(2, "x")
    ring.run_until(lambda: any(ring.log(site) == ["x"] for site in ring.group))
    assert rules[0].lost
    assert len({pdu.v for pdu in ring.pdus(Invite)}) > 5


# -- §5.2: aborted lists ---------------------------------------------------------------------


def partly_committed(sites: int = 5, *, committed: tuple[int, ...] = (1, 2)) -> Ring:
    """List (1, 0) was announced and then given up; some sites have committed to it."""
    ring = Ring(sites, attempts=2)
    ring.submit(3, "a", "b")
    ring.run(1500 * MS)
    for site in ring.group:
        if site not in committed:
            ring.lose(NewTl, dst=site)
    ring.lose(Abort)
    reform(ring, 0)
    ring.crash(0)
    ring.heal()
    return ring


def test_sites_can_be_committed_to_different_lists_for_a_while() -> None:
    # §5.2, problem 1
    ring = partly_committed()
    assert {site: ring[site].tl for site in ring.sites} == {1: (1, 0), 2: (1, 0), 3: U, 4: U}


def test_a_list_without_an_authorized_token_site_never_acknowledges_anything() -> None:
    # §5.2, problem 1
    ring = partly_committed()
    ring.submit(1, "c")
    ring.submit(4, "d")
    ring.run_until(lambda: all(len(ring.log(site)) == 4 for site in ring.sites))
    assert not [ack for ack in ring.pdus(Ack) if ack.tl == (1, 0)]
    assert not [confirm for confirm in ring.pdus(Confirm) if confirm.tl == (1, 0)]


def test_sites_committed_to_an_aborted_list_and_those_that_are_not_both_start_again() -> None:
    # §5.2, problem 1
    for quiet in ((3, 4), (1, 2)):
        ring = partly_committed()
        ring.crash(*quiet, keeps="memory")
        ring.run(10_000 * MS)
        assert [pdu for site in ring.sites for pdu in ring.pdus(Invite, src=site)]


def test_when_a_token_site_is_authorized_all_sites_of_the_list_are_committed_to_it() -> None:
    # §5.2
    for seed in range(5):
        ring = Ring(5, seed=seed, attempts=2)
        rng = Random(seed)
        ring.submit(1, "x")
        ring.run(200 * MS)
        ring.lose(lambda pdu, rng=rng: rng.random() < 0.3)  # type: ignore[misc]
        for site in (0, 3):
            originate(ring, site)
        committed: dict[int, set[tuple[int, int]]] = {site: set() for site in ring.group}
        authorized: set[tuple[int, int]] = set()
        for _ in range(4000):
            ring.deliver() if ring.flights else ring.run(5 * MS)
            for site in ring.group:
                committed[site].add(ring[site].tl)
            for site in ring.group:
                if ring[site].token_list.authorized and ring[site].tl not in authorized:
                    authorized.add(ring[site].tl)
                    assert all(ring[site].tl in committed[s] for s in ring[site].token_list.members)
        assert len(authorized) > 1


def test_the_resiliency_test_may_be_based_on_an_aborted_list() -> None:
    # §5.2, problem 2
    ring = partly_committed()
    ring.run_until(lambda: ring[1].token_list.authorized and ring[1].tl > (1, 0))
    bases = [pdu.old for pdu in ring.pdus(NewTl) if pdu.v == ring[1].tl]
    assert set(bases) == {(1, 0)}
    assert ring.log(1) == ["a", "b"]
    ring.check()


@pytest.mark.parametrize("committed", [(1,), (4,), (1, 3), (2, 4), (1, 2, 3)])
def test_a_site_committed_to_an_aborted_list_has_all_committed_messages(
    committed: tuple[int, ...],
) -> None:
    # §5.2: so whoever of them is elected can answer all requests.
    ring = partly_committed(committed=committed)
    delivered = {text for site in ring.group for text in ring.log(site)}
    for site in committed:
        assert delivered <= set(ring.stamped_by(site))
    ring.submit(4, "c")
    ring.run_until(lambda: all(ring.log(site)[-1:] == ["c"] for site in ring.sites))
    for site in ring.sites:
        assert delivered <= set(ring.log(site))
    ring.check()


def test_only_sites_in_the_normal_phase_of_the_list_take_part_in_it() -> None:
    # §5.1: a list of which a member has joined another one gets stuck rather than go on.
    ring = Ring(3, idle_ns=NEVER)
    ring.inject(invitation((4, 1)), 1, 2)
    ring.submit(0, "x")
    ring.settle()
    assert ring[2].phase == S1
    assert (ring[2].nts, ring[1].nts) == (0, 1)
    assert ring[0].phase == NORMAL
