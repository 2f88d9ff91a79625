"""What a token site keeps through a crash: folding its records, and starting from the fold."""

from __future__ import annotations

from itertools import pairwise
from random import Random
from typing import Any

import pytest
from msgspec import Struct

from roundelay.core.bundle import Bundle
from roundelay.core.engine import COMMITTED, Delivery
from roundelay.core.token.config import COLD, REJOIN, TokenConfig
from roundelay.core.token.log import TRIM_EVERY
from roundelay.core.token.pdu import (
    DATA,
    NO_LIST,
    NULL,
    YES,
    Ack,
    B,
    Confirm,
    Entry,
    RecoverData,
    Version,
    Vote1,
    Vote2,
)
from roundelay.core.token.phases import NORMAL, OUT
from roundelay.core.token.site import PREFORMED_PAST, TokenSite
from roundelay.core.token.stable import (
    Base,
    Joined,
    Listed,
    Stable,
    Stamped,
    Trimmed,
    Wiped,
)
from tests.core.ring import BOOT, MS, Ring, announcement, invitation, restarted
from tests.core.sends import sends_of

U: Version = (0, 0)
ALL = (0, 1, 2)


def entry(ts: int, s: int, n: int, seq: int, tl: Version = U, by: int = 0, to: int = 1) -> Entry:
    return Entry(Ack(tl, ts, DATA, s, n, by, to), Bundle.of(f"{s}.{n}".encode()), seq)


def null(ts: int, seq: int, by: int = 0, to: int = 1) -> Entry:
    return Entry(Ack(U, ts, NULL, by, 0, by, to), seq=seq)


def fold(*records: Struct) -> Stable:
    stable = Stable()
    for record in records:
        stable.apply(record)
    return stable


# -- the fold --------------------------------------------------------------------------------


def test_an_empty_disk_says_nothing() -> None:
    stable = fold()
    assert (stable.tl, stable.max_joined, stable.cnts, stable.seq) == (NO_LIST, NO_LIST, 0, 0)
    assert not stable.wiped


def test_joined_is_the_highest_version_ever_joined() -> None:
    assert fold(Joined((1, 2)), Joined((4, 0))).max_joined == (4, 0)


def test_committed_entries_move_the_commit_mark_and_the_counters() -> None:
    stable = fold(
        Listed(U, ALL, 0, 0, ()),
        entry(0, 1, 0, 0),
        null(1, 1),
        entry(2, 1, 1, 1),
    )
    assert (stable.cnts, stable.seq, stable.counters) == (3, 2, {1: 2})
    assert sorted(stable.entries) == [0, 1, 2]


def test_listed_replaces_the_promises_of_an_earlier_list() -> None:
    old = Listed((1, 0), ALL, 3, 0, (entry(1, 1, 0, 0), entry(2, 2, 0, 1)))
    new = Listed((2, 1), (0, 1), 2, 1, (entry(1, 2, 0, 0),))
    stable = fold(null(0, 0), old, new)
    assert (stable.tl, stable.members, stable.start_ts, stable.first) == ((2, 1), (0, 1), 2, 1)
    assert sorted(stable.entries) == [0, 1]
    assert stable.entries[1].ack.s == 2


def test_a_commit_of_another_list_makes_promises_above_it_void() -> None:
    promised = (entry(0, 1, 0, 0), entry(1, 2, 0, 1))
    other = entry(0, 2, 0, 0, tl=(3, 1))
    stable = fold(Listed((1, 0), ALL, 2, 0, promised), other)
    assert stable.entries == {0: other}
    assert stable.counters == {2: 1}
    # The same entry committed is a promise kept: the ones above it still hold.
    stable = fold(Listed((1, 0), ALL, 2, 0, promised), promised[0])
    assert sorted(stable.entries) == [0, 1]


def test_trimmed_forgets_committed_entries_once() -> None:
    commits = [entry(ts, 1, ts, ts) for ts in range(5)]
    stable = fold(*commits, Trimmed(3), Trimmed(2))
    assert sorted(stable.entries) == [3, 4]
    assert (stable.cnts, stable.first_kept) == (5, 3)


def test_a_list_behind_a_gap_leaves_everything_before_behind_in_one_record() -> None:
    base = Base(7, ((1, 4), (2, 1)), 5)
    stable = fold(
        Listed((1, 0), ALL, 3, 0, (entry(0, 1, 0, 0), entry(1, 2, 0, 1), entry(2, 1, 1, 2))),
        entry(0, 1, 0, 0),
        Listed((2, 1), ALL, 8, 1, (entry(7, 1, 4, 5),), base),
    )
    assert (stable.cnts, stable.seq, stable.first_kept) == (7, 5, 7)
    assert stable.counters == {1: 4, 2: 1}
    assert sorted(stable.entries) == [7]


def test_a_lost_disk_is_remembered_until_it_is_made_good() -> None:
    assert fold(Wiped(True)).wiped
    assert fold(Wiped(True), Joined((1, 0)), Listed((1, 0), ALL, 0, 0, ())).wiped
    assert not fold(Wiped(True), Wiped(False)).wiped


def test_a_record_of_something_else_is_refused() -> None:
    class Foreign(Struct):
        pass

    with pytest.raises(TypeError, match="not a record of a token site"):
        fold(Foreign())


# -- CM-R17: starting from it ----------------------------------------------------------------


def test_cm_r17_a_restarted_site_is_in_no_list_and_originates_after_a_random_wait() -> None:
    due = {
        TokenSite(1, ALL, TokenConfig(), Random(seed), stable=fold(Joined(U))).deadline
        for seed in range(20)
    }
    assert len(due) > 10
    assert all(1 <= when <= 200 * MS for when in due)
    site = restarted(1, 3, Joined(U), Listed(U, ALL, 0, 0, ()))
    assert site.phase == OUT
    assert (site.tl, site.token_list.members) == (U, ALL)
    site.on_timer(site.deadline)
    assert site.reformation.attempt == (1, 1)


def test_cm_r17_uncommitted_entries_are_gone_but_promised_ones_are_not() -> None:
    site = restarted(
        1, 3,
        Joined((1, 0)),
        entry(0, 1, 0, 0),
        Listed((1, 0), ALL, 3, 2, (entry(1, 2, 0, 1), entry(2, 0, 0, 2))),
    )  # fmt: skip
    assert (site.cnts, site.nts, site.position, site.log.nseq) == (1, 3, 1, 3)
    assert site.log.next_num == {0: 1, 1: 1, 2: 1}
    assert site.log.exp == 2  # the first token site of a list that stamped nothing yet
    assert (site.log.uncommitted, site.log.retained) == (2, 2)
    assert site.reformation.amnesia


def test_cm_r17_the_expected_issuer_comes_from_the_last_committed_entry() -> None:
    site = restarted(1, 3, Listed(U, ALL, 0, 0, ()), entry(0, 1, 0, 0), null(1, 1, 1, 2))
    assert (site.nts, site.log.exp) == (2, 2)


def test_cm_r17_void_promises_do_not_come_back() -> None:
    promised = (entry(0, 1, 0, 0), entry(1, 2, 0, 1))
    site = restarted(2, 3, Listed((1, 0), ALL, 2, 0, promised), entry(0, 2, 0, 0, tl=(3, 1)))
    assert (site.cnts, site.nts) == (1, 1)
    assert site.log.next_num[2] == 1
    site.log.roll_back(site.cnts, site.token_list.first)
    assert site.log.next_num[2] == 1  # or the site would use its number again


def test_cm_r17_with_l_0_nothing_can_have_been_forgotten() -> None:
    assert not restarted(
        1, 3, Joined(U), Listed(U, ALL, 0, 0, ()), resilience=0
    ).reformation.amnesia
    assert restarted(1, 3, Joined(U), Listed(U, ALL, 0, 0, ()), resilience=1).reformation.amnesia


def test_cm_r17_the_highest_version_is_remembered_and_never_used_again() -> None:
    site = restarted(1, 3, Joined((7, 2)))
    site.receive(invitation((7, 0)), 0, 1)
    ((_, vote),) = sends_of(site.take())
    assert (vote.yes, vote.max_joined) == (False, (7, 2))
    site.on_timer(site.deadline)
    assert site.reformation.attempt == (8, 1)


def test_cm_r17_own_numbering_goes_on_where_the_group_has_seen_it() -> None:
    ring = Ring(3)
    ring.submit(2, "a", "b", "c")
    ring.run(1000 * MS)
    ring.crash(2)
    ring.restart(2)
    ring.submit(2, "d")  # before it is in a list again
    ring.run_until(lambda: ring.log(0) == ["a", "b", "c", "d"])
    numbers = [d.number for d in ring.delivered[0] if d.source == 2]
    assert numbers == list(range(len(numbers)))
    ring.check()


def test_own_messages_of_an_earlier_life_do_not_push_out_those_of_this_one() -> None:
    """A promised message of before the crash commits while a new one waits for its stamp."""
    site = restarted(2, 3, Joined((1, 0)), Listed((1, 0), ALL, 1, 0, (entry(0, 2, 0, 0),)))
    site.receive(invitation((2, 0)), 0, 1)
    site.receive(announcement(site, (2, 0), ALL, 1, 0, (1, 0)), 0, 2)
    assert site.phase == NORMAL
    site.submit(Bundle.of(b"new"), 3)
    site.receive(Confirm((2, 0), 0, 0, 0), 0, 4)
    assert [d.number for d in site.take().deliveries] == [0]
    assert list(site.own.kept) == [Bundle.of(b"new")]
    # The list changes before the new message is stamped: it must be sent again.
    site.receive(invitation((3, 0)), 0, 5)
    site.receive(announcement(site, (3, 0), ALL, 1, 0, (2, 0)), 0, 6)
    assert B((3, 0), 2, 1, Bundle.of(b"new")) in [pdu for _, pdu in sends_of(site.take())]


def test_a_restart_before_anything_was_written_is_a_cold_one() -> None:
    site = TokenSite(1, ALL, TokenConfig(), Random(0), stable=Stable())
    assert (site.phase, site.tl, site.token_list.members) == (OUT, NO_LIST, ())


# -- persisting: what, and before what -------------------------------------------------------


def test_a_vote_leaves_after_the_version_it_joins_is_durable() -> None:
    site = TokenSite(1, ALL, TokenConfig(), Random(0))
    site.take()
    site.receive(invitation((1, 0)), 0, 1)
    out = site.take()
    assert out.persists == [Joined((1, 0))]
    assert [type(pdu) for _, pdu in sends_of(out)] == [Vote1]


def test_a_vote_for_the_list_leaves_after_everything_it_promises_is_durable() -> None:
    """CM-R11: the list and all entries below its start."""
    site = TokenSite(1, ALL, TokenConfig(), Random(0))
    site.receive(B(U, 2, 0, Bundle.of(b"2.0")), 2, 0)
    site.receive(entry(0, 2, 0, 0, to=2).ack, 0, 0)
    site.receive(invitation((1, 0)), 0, 1)
    site.take()
    site.receive(announcement(site, (1, 0), ALL, 1, 0), 0, 2)
    out = site.take()
    boots = (BOOT, site.boot, BOOT)
    assert out.persists == [Listed((1, 0), ALL, 1, 0, (entry(0, 2, 0, 0, to=2),), boots=boots)]
    assert (0, Vote2((1, 0), YES, BOOT)) in sends_of(out)


def test_a_delivery_is_recorded_in_the_same_batch() -> None:
    ring = Ring(3)
    ring.submit(1, "x")
    ring.run(200 * MS)
    for site in ring.group:
        records = [r.entry for r in ring.persisted[site] if isinstance(r, Stamped)]
        assert [Delivery(e.seq, e.ack.s, e.ack.n, e.bundle, COMMITTED) for e in records] == (
            ring.delivered[site]
        )


def test_the_disk_is_told_to_forget_in_strides_and_never_with_a_delivery() -> None:
    ring = Ring(3, history=10, bundle=False)
    out_of_step = 0
    for k in range(900):
        ring.submit(k % 3, f"m{k}")
        ring.run(20 * MS)
        if k % 100 == 0:
            ring.run(200 * MS)
    for site in ring.group:
        trims = [r.ts for r in ring.persisted[site] if isinstance(r, Trimmed)]
        assert trims
        assert all(b - a >= TRIM_EVERY for a, b in pairwise(trims))
        stable = ring.disks[site]
        assert min(stable.entries) == stable.first_kept == trims[-1]
        assert len(stable.entries) <= 10 + TRIM_EVERY + 20
        out_of_step += len(stable.entries) == 0
    assert out_of_step == 0


def test_the_fold_of_a_site_that_runs_is_what_it_restarts_with() -> None:
    ring = Ring(5, resilience=2, history=4, bundle=False)
    for k in range(200):
        ring.submit(k % 5, f"m{k}")
        ring.run(10 * MS)
        if k == 100:
            ring.crash(3)
            ring.run(3000 * MS)
            ring.restart(3)
    ring.run(10_000 * MS)
    for site in ring.group:
        live, stable = ring[site], ring.disks[site]
        again = TokenSite(site, ring.group, ring.config, Random(0), stable=stable)
        assert (again.cnts, again.position) == (live.cnts, live.position)
        assert (again.tl, again.token_list.members, again.reformation.max_joined) == (
            live.tl, live.token_list.members, live.reformation.max_joined,
        )  # fmt: skip
        counters = dict(again.log.next_num)
        live.log.roll_back(live.cnts, live.token_list.first)
        again.log.roll_back(again.cnts, again.token_list.first)
        assert again.log.next_num == live.log.next_num
        assert counters.keys() == live.log.next_num.keys()
        assert again.log.exp == live.log.exp


# -- boot ------------------------------------------------------------------------------------


def test_preformed_everybody_starts_in_one_list_and_the_lowest_site_has_the_token() -> None:
    ring = Ring(4)
    assert {ring[site].tl for site in ring.group} == {(0, 0)}
    assert ring.holders == [0]
    assert all(ring[site].token_list.authorized for site in ring.group)
    for site in ring.group:
        assert ring.told(site, "view") == [((0, 0), (0, 1, 2, 3), 0, 0)]
        listed = Listed((0, 0), (0, 1, 2, 3), 0, 0, (), None, PREFORMED_PAST)
        assert ring.persisted[site] == [Joined((0, 0)), listed]


@pytest.mark.parametrize("seed", range(5))
def test_cold_the_first_list_forms_by_itself(seed: int) -> None:
    ring = Ring(4, boot=COLD, seed=seed)
    assert all(ring[site].tl == NO_LIST for site in ring.group)
    ring.submit(2, "x")
    ring.run_until(lambda: all(ring.log(site) == ["x"] for site in ring.group))
    assert len({ring[site].tl for site in ring.group}) == 1
    assert ring[0].tl > (0, 0)


def test_cold_a_majority_is_enough_to_begin() -> None:
    ring = Ring(5, boot=COLD)
    ring.crash(3, 4)
    ring.submit(0, "x")
    ring.run_until(lambda: ring.log(1) == ["x"])
    assert ring[0].token_list.members == (0, 1, 2)


def test_rejoin_a_new_machine_under_an_old_number_says_so() -> None:
    site = TokenSite(1, ALL, TokenConfig(boot=REJOIN), Random(0))
    assert site.take().persists == [Wiped(True)]
    assert (site.phase, site.reformation.wiped, site.reformation.amnesia) == (OUT, True, True)
    site.receive(invitation((3, 0)), 0, 1)
    ((_, vote),) = sends_of(site.take())
    assert vote.wiped
    assert vote.tl == NO_LIST


def test_recovered_entries_survive_the_next_crash() -> None:
    """CM-R11: what was committed on arrival stays, though the attempt came to nothing."""
    site = TokenSite(2, ALL, TokenConfig(boot=COLD), Random(0))
    records: list[Any] = []
    site.receive(invitation((2, 0)), 0, 1)
    site.receive(announcement(site, (2, 0), ALL, 5, 0, (1, 0)), 0, 2)
    data = (entry(0, 1, 0, 0), entry(1, 1, 1, 1), entry(2, 2, 0, 2))
    site.receive(RecoverData((2, 0), data, 2, 0, (), 0), 0, 3)
    records += site.take().persists
    again = TokenSite(2, ALL, TokenConfig(), Random(1), stable=fold(*records))
    assert (again.cnts, again.nts, again.tl) == (2, 2, NO_LIST)
    assert again.log.next_num == {0: 0, 1: 2, 2: 0}  # what was only staged is gone
