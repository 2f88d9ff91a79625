"""Sites that come back: with their memory, their disk, or nothing (CM-R17, CM-R18)."""

from __future__ import annotations

from typing import Any

import pytest

from roundelay.core.bundle import Bundle
from roundelay.core.token.pdu import (
    DATA,
    NO_LIST,
    YES,
    Abort,
    Ack,
    Entry,
    Invite,
    NewTl,
    RecoverData,
    RecoverReq,
    Version,
    Vote1,
    Vote2,
)
from roundelay.core.token.phases import NORMAL, O1, O2, S1
from roundelay.core.token.stable import Base, Committed, Joined, Listed, Wiped
from tests.core.ring import BOOT, MS, Ring, announcement, invitation, restarted
from tests.core.sends import sends_of

U: Version = (0, 0)


def busy(ring: Ring, *messages: str, source: int = 1) -> None:
    ring.submit(source, *messages)
    ring.run(100 * len(messages) * MS)


def entry(ts: int, s: int, n: int, tl: Version = U, by: int = 0, to: int = 1) -> Entry:
    return Entry(Ack(tl, ts, DATA, s, n, by, to), Bundle.of(f"{s}.{n}".encode()), ts)


# -- coming back with what -------------------------------------------------------------------


def test_a_site_that_was_merely_away_goes_on_as_it_was() -> None:
    ring = Ring(3)
    busy(ring, "a")
    ring.crash(2, keeps="memory")
    ring.submit(1, "b")
    ring.run(100 * MS)  # shorter than any detection
    ring.restart(2)
    ring.run(2000 * MS)
    assert ring.log(2) == ["a", "b"]
    assert {engine.tl for engine in ring.sites.values()} == {U}


def test_a_site_that_was_away_too_long_is_left_out_and_comes_back() -> None:
    ring = Ring(3, bundle=False)
    ring.crash(2, keeps="memory")
    busy(ring, *"abcdef")
    ring.run_until(lambda: ring.log(0) == list("abcdef"))
    assert ring[0].token_list.members == (0, 1)
    ring.restart(2)
    ring.run_until(lambda: ring.log(2) == list("abcdef"))
    ring.run_until(lambda: ring[0].token_list.members == (0, 1, 2))
    ring.check()


def test_a_holder_that_sleeps_past_everything_wakes_up_without_power() -> None:
    ring = Ring(3, attempts=2)
    busy(ring, "a")
    (holder,) = ring.holders
    others = [site for site in ring.group if site != holder]
    ring.crash(holder, keeps="memory")
    ring.submit(others[0], "b")
    ring.run_until(lambda: all(ring.log(site) == ["a", "b"] for site in others))
    ring.restart(holder)
    assert ring[holder].holding
    ring.submit(holder, "c")  # it stamps at once, in a list that nobody uses any more
    assert "c" in ring.stamped_by(holder)
    assert ring.log(holder) == ["a"]
    ring.run_until(lambda: all(ring.log(site) == ["a", "b", "c"] for site in ring.group))
    ring.check()


def test_a_restarted_site_discards_what_was_not_committed_and_catches_up() -> None:
    ring = Ring(3)
    busy(ring, "a")
    ring.lose(dst=2)
    ring.submit(1, "b")
    ring.run(200 * MS)
    ring.heal()
    ring.crash(2)
    ring.restart(2)
    assert ring[2].nts == ring[2].cnts
    assert ring[2].reformation.amnesia
    ring.run_until(lambda: ring.log(2) == ["a", "b"])
    assert not ring[2].reformation.amnesia
    ring.check()


def test_a_site_that_comes_back_makes_the_group_take_it_in() -> None:
    ring = Ring(3)
    ring.crash(2)
    busy(ring, "a", "b")
    ring.run_until(lambda: ring[0].token_list.members == (0, 1))
    tl = ring[0].tl
    ring.restart(2)
    ring.run_until(lambda: ring[0].token_list.members == (0, 1, 2))
    assert ring[0].tl > tl
    assert ring[2].tl == ring[0].tl


# -- a lost disk -----------------------------------------------------------------------------


def test_a_site_without_disk_comes_back_as_a_full_member() -> None:
    ring = Ring(3)
    busy(ring, "a", "b")
    ring.crash(2, keeps="nothing")
    ring.delivered[2].clear()  # its application starts anew as well
    ring.restart(2)
    ring.submit(2, "c")
    ring.run_until(lambda: ring.log(2) == ["a", "b", "c"])
    assert ring[2].reformation.wiped is False
    assert ring.persisted[2].count(Wiped(True)) == ring.persisted[2].count(Wiped(False)) == 1
    numbers = [d.number for d in ring.delivered[0] if d.source == 2]
    assert numbers == [0]
    ring.check()


def test_a_site_without_disk_is_not_counted_for_the_majority() -> None:
    ring = Ring(3, attempts=2)
    busy(ring, "a")
    ring.crash(0, keeps="memory")
    ring.crash(2, keeps="nothing")
    ring.restart(2)
    ring.submit(1, "b")
    ring.run(30_000 * MS)
    assert ring[1].tl == U  # 1 and 2 reach each other, but 2 does not know what it promised
    assert ring.log(1) == ["a"]
    assert ("majority", (0,), (2,)) in ring.told(1, "blocked") + ring.told(2, "blocked")
    ring.restart(0)
    ring.run_until(lambda: ring.log(1) == ["a", "b"])
    ring.check()


def test_a_site_without_disk_counts_again_only_in_an_authorized_list() -> None:
    """Entering a list is not enough: it may be an attempt that is going nowhere.

    Q's old attempt still has the votes of P and T when S, which has since helped to form a newer
    list and then lost its disk, is invited to it.  Were S counted from then on, Q, T and S would
    be a majority beside the list that P and U still use.
    """
    q, p, t, s, u = range(5)
    ring = Ring(5)
    busy(ring, "first", source=p)
    ring.lose(Invite, dst=s)
    ring.lose(Invite, dst=u)
    ring[q].reform(ring.now)
    ring.collect(q)
    ring.settle()
    assert [ring[site].phase for site in (q, p, t)] == [O1, S1, S1]
    ring.heal()
    ring.crash(q, t, keeps="memory")
    ring.submit(u, "x")
    ring.run_until(lambda: all(ring.log(site) == ["first", "x"] for site in (p, s, u)))
    ring.run(300 * MS)
    ring.crash(s, keeps="nothing")
    ring.restart(s)
    ring.cut((q, t, s), (p, u))
    ring.restart(q)
    ring.inject(Invite((1, q), ring[q].boot), q, s)
    ring.run_until(lambda: ring[s].tl == (1, q))
    assert ring[s].reformation.wiped
    ring.restart(t)
    ring.submit(t, "y")
    ring.run(60_000 * MS)
    assert ring.log(q) == ring.log(t) == ["first"]
    ring.heal()
    everything = ["first", "x", "y"]
    ring.run_until(lambda: all(ring.log(site)[-3:] == everything for site in ring.group))
    ring.check()


def test_a_site_without_disk_cannot_use_one_of_its_versions_twice() -> None:
    """Two lists of one version would have one name and different rings."""
    ring = Ring(5)
    busy(ring, "first")
    for site in (2, 3, 4):
        ring.lose(NewTl, dst=site)
    ring[0].reform(ring.now)
    ring.collect(0)
    ring.settle()
    assert (ring[1].tl, ring[1].token_list.members) == ((1, 0), (0, 1, 2, 3, 4))
    ring.crash(0, keeps="nothing")
    ring.heal()
    ring.restart(0)
    ring.cut((1,), (0, 2, 3, 4))
    ring.run_until(lambda: all(ring[site].token_list.authorized for site in (0, 2, 3, 4)))
    assert ring[2].token_list.members == (0, 2, 3, 4)
    assert ring[2].tl != (1, 0)


def test_a_copy_of_an_old_announcement_does_not_draw_a_site_without_disk_into_a_list() -> None:
    ring = Ring(3)
    ring[0].reform(0)
    ring.collect(0)
    ring.settle()
    assert ring[2].tl == (1, 0)
    (invite,) = [s.pdu for s in ring.sent if isinstance(s.pdu, Invite) and s.dst == 2]
    (new,) = [s.pdu for s in ring.sent if isinstance(s.pdu, NewTl) and s.dst == 2]
    ring.crash(2, keeps="nothing")
    ring.restart(2)
    ring.inject(invite, 0, 2)
    ring.inject(new, 0, 2)
    assert ring[2].tl == NO_LIST


def test_while_it_is_wiped_a_restart_does_not_make_a_site_forget_that() -> None:
    site = restarted(1, 3, Wiped(True), Joined((4, 0)), Listed((4, 0), (0, 1, 2), 0, 0, ()))
    site.receive(invitation((5, 0)), 0, 1)
    ((_, vote),) = sends_of(site.take())
    assert (vote.wiped, vote.amnesia, vote.tl) == (True, True, (4, 0))


def test_a_lost_disk_and_a_restart_may_block_for_good_where_only_one_may_fail() -> None:
    """L = 1: both sites that could vouch for what was stamped last have forgotten it."""
    ring = Ring(3, attempts=2)
    busy(ring, "a")
    ring.crash(0)
    ring.crash(2, keeps="nothing")
    ring.submit(1, "b")  # stamped by 1, whose successors are 2 and 0
    ring.restart(0, 2)
    ring.run(60_000 * MS)
    assert ring.log(1) == ["a"]
    told = [info for site in ring.group for info in ring.told(site, "blocked")]
    assert ("resiliency", (), (2, 0)) in told


def test_a_majority_of_lost_disks_blocks_the_group() -> None:
    ring = Ring(3, attempts=2)
    busy(ring, "a")
    ring.crash(1, 2, keeps="nothing")
    ring.restart(1, 2)
    ring.submit(0, "b")
    ring.run(60_000 * MS)
    assert ring.log(0) == ["a"]
    assert ring.told(0, "blocked") == [("majority", (), (1, 2))]


# -- CM-R18: what nobody keeps any more ------------------------------------------------------


def away_too_long(history: int, **changes: Any) -> Ring:
    """Site 2 missed 40 messages."""
    ring = Ring(3, history=history, bundle=False, **changes)
    busy(ring, "a", "b")
    ring.crash(2)
    ring.submit(1, *(f"m{k}" for k in range(40)))
    ring.run_until(lambda: len(ring.log(0)) == 42)
    ring.restart(2)
    ring.submit(1, "z")
    ring.run_until(lambda: ring.log(2)[-1:] == ["z"])
    return ring


def test_cm_r18_with_enough_history_a_site_gets_everything() -> None:
    ring = away_too_long(4096)
    assert ring.log(2) == ring.log(0)
    assert ring.told(2, "gap_unavailable") == []


@pytest.mark.parametrize("history", [0, 5])
def test_cm_r18_without_it_the_gap_is_announced_and_the_rest_is_complete(history: int) -> None:
    ring = away_too_long(history)
    ((lo, hi),) = ring.told(2, "gap_unavailable")
    assert lo == 2
    assert 2 < hi < 43
    got = [(d.seq, list(d.bundle)) for d in ring.delivered[2]]
    assert [seq for seq, _ in got] == [0, 1, *range(hi, 43)]
    assert [d for d in ring.delivered[0] if d.seq < 2 or d.seq >= hi] == ring.delivered[2]
    if history:
        assert 43 - hi >= history
    ring.check()


def test_cm_r18_the_gap_is_in_one_record_with_the_list_behind_it() -> None:
    ring = away_too_long(0)
    ((_, hi),) = ring.told(2, "gap_unavailable")
    lists = [r for r in ring.persisted[2] if isinstance(r, Listed) and r.base is not None]
    ((base, entries),) = [(r.base, r.entries) for r in lists]
    assert base is not None
    assert base.seq == hi
    assert entries[0].ack.ts == base.ts
    assert dict(base.counters)[1] > 2


def test_cm_r18_a_site_behind_a_gap_can_crash_and_serve_like_any_other() -> None:
    ring = away_too_long(0)
    ring.crash(2)
    ring.restart(2)
    ring.submit(2, "y")
    ring.run_until(lambda: ring.log(2)[-1:] == ["y"])
    ring.crash(0)  # now 1 and 2 are left
    ring.submit(1, "w")
    ring.run_until(lambda: ring.log(2)[-1:] == ["w"])
    ring.restart(0)
    ring.submit(0, "v")
    ring.run_until(lambda: all(ring.log(site)[-1:] == ["v"] for site in ring.group))
    ring.check()


def test_cm_r18_an_attempt_that_fails_behind_a_gap_costs_the_site_nothing() -> None:
    """What it promised to hold in an earlier list stays until a later list is entered."""
    mine = tuple(entry(ts, 0, ts) for ts in range(10))
    site = restarted(2, 5, Joined((1, 0)), Listed((1, 0), (0, 1, 2), 10, 0, mine))
    site.receive(invitation((3, 0)), 0, 1)
    site.receive(announcement(site, (3, 0), (0, 2, 3), 10, 0, (2, 0)), 0, 2)
    later = tuple(entry(ts, 0, ts, tl=(2, 0)) for ts in (5, 6))
    site.take()
    site.receive(RecoverData((3, 0), later, 6, 5, ((0, 5),), 5), 0, 3)
    out = site.take()
    assert (out.persists, out.deliveries, out.notices) == ([], [], [])
    assert sends_of(out)[-1] == (0, RecoverReq((3, 0), 7))
    site.receive(Abort((3, 0)), 0, 4)
    site.receive(invitation((4, 3)), 3, 5)
    vote = sends_of(site.take())[-1][1]
    assert isinstance(vote, Vote1)
    assert (vote.tl, vote.nts) == ((1, 0), 10)
    assert site.log.entries == {line.ack.ts: line for line in mine}


def test_cm_r18_behind_a_gap_everything_is_taken_over_with_the_list() -> None:
    mine = tuple(entry(ts, 0, ts) for ts in range(10))
    site = restarted(2, 5, Joined((1, 0)), Listed((1, 0), (0, 1, 2), 10, 0, mine))
    site.receive(invitation((3, 0)), 0, 1)
    site.receive(announcement(site, (3, 0), (0, 2, 3), 8, 0, (2, 0)), 0, 2)
    later = tuple(entry(ts, 1, ts - 5, tl=(2, 0)) for ts in (5, 6, 7))
    site.take()
    site.receive(RecoverData((3, 0), later[:1], 7, 5, ((0, 3), (2, 2)), 4), 0, 3)
    site.receive(RecoverData((3, 0), later[1:], 7, 5, (), 6), 0, 4)
    out = site.take()
    assert [n.info for n in out.notices if n.kind == "gap_unavailable"] == [(0, 4)]
    listed = out.persists[0]
    assert isinstance(listed, Listed)
    assert (listed.base, listed.entries) == (Base(5, ((0, 3), (2, 2)), 4), later)
    assert out.persists[1:] == [Committed(7)]
    assert [d.bundle.data for d in out.deliveries] == [b"1.0", b"1.1"]
    assert (0, Vote2((3, 0), YES, BOOT)) in sends_of(out)
    assert (site.tl, site.cnts, site.nts, site.phase) == ((3, 0), 7, 8, NORMAL)
    assert site.log.next_num == {0: 3, 1: 3, 2: 2, 3: 0, 4: 0}


def test_cm_r18_a_gap_without_messages_is_none() -> None:
    site = restarted(2, 3, Joined(U), Listed(U, (0, 1, 2), 0, 0, ()))
    site.receive(invitation((2, 0)), 0, 1)
    site.receive(announcement(site, (2, 0), (0, 1, 2), 6, 0, (1, 0)), 0, 2)
    lines = (entry(5, 1, 0, tl=(1, 0)),)
    site.take()
    site.receive(RecoverData((2, 0), lines, 6, 5, (), 0), 0, 3)
    assert [n.kind for n in site.take().notices] == []
    assert site.phase == NORMAL


def test_cm_r18_the_originator_itself_may_be_the_one_behind_a_gap() -> None:
    ring = Ring(3, history=0, bundle=False)
    busy(ring, "a", "b")
    ring.crash(2, keeps="memory")
    ring.submit(1, *(f"m{k}" for k in range(40)))
    ring.run_until(lambda: len(ring.log(0)) == 42)
    ring.restart(2)
    ring[2].reform(ring.now)  # twice in vain: it does not know of the newer versions yet
    ring.collect(2)
    ring.run_until(lambda: ring.told(2, "gap_unavailable") != [])
    ring.submit(2, "z")
    ring.run_until(lambda: all(ring.log(site)[-1:] == ["z"] for site in ring.group))
    ring.check()


# -- indeterminate ---------------------------------------------------------------------------


def test_own_messages_committed_inside_a_gap_are_reported_as_indeterminate() -> None:
    ring = Ring(3, history=0, bundle=False)
    busy(ring, "a")
    # 2's message is stamped and committed by the others, but 2 hears nothing of it and is away.
    ring.submit(2, "mine", "later")
    ring.deliver(next(f for f in ring.flights if f.dst == ring.holders[0]))
    ring.lose(dst=2)
    ring.lose(src=2)
    ring.flights = [f for f in ring.flights if f.dst != 2]
    ring.run_until(lambda: "mine" in ring.log(0))
    ring.submit(1, *(f"m{k}" for k in range(30)))
    ring.run_until(lambda: len(ring.log(0)) == 32)
    assert ring.log(2) == ["a"]
    ring.heal()
    ring.run_until(lambda: ring.told(2, "gap_unavailable") != [])
    assert ring.told(2, "indeterminate") == [(0, 1)]
    ring.run_until(lambda: all("later" in ring.log(site) for site in ring.group))
    assert "mine" not in ring.log(2)
    assert ring.log(0).count("mine") == 1
    ring.check()


def test_a_gap_before_which_nothing_of_ours_is_open_is_not_indeterminate() -> None:
    ring = away_too_long(0)
    assert ring.told(2, "indeterminate") == []


def test_a_gap_beyond_our_latest_message_leaves_the_later_ones_alone() -> None:
    """Two own messages, one of them inside the gap."""
    site = restarted(2, 3, Joined(U), Listed(U, (0, 1, 2), 0, 0, ()))
    site.own.kept.extend((Bundle.of(b"one"), Bundle.of(b"two")))
    site.own.base = 3
    site.log.next_num[2] = 3
    site.receive(invitation((2, 0)), 0, 1)
    site.receive(announcement(site, (2, 0), (0, 1, 2), 6, 0, (1, 0)), 0, 2)
    site.take()
    site.receive(RecoverData((2, 0), (entry(5, 1, 0, tl=(1, 0)),), 6, 5, ((2, 4),), 5), 0, 3)
    out = site.take()
    assert [n.info for n in out.notices if n.kind == "indeterminate"] == [(3, 4)]
    assert list(site.own.kept) == [Bundle.of(b"two")]
    assert site.own.base == 4
    assert [pdu.n for _, pdu in sends_of(out) if type(pdu).__name__ == "B"] == [4]


# -- serving those who come back -------------------------------------------------------------


def test_recovery_comes_in_batches_of_limited_number_and_size() -> None:
    ring = Ring(3, bundle=False, recover_batch=4)
    ring.crash(2)
    ring.submit(1, *(f"m{k}" for k in range(10)))
    ring.run_until(lambda: len(ring.log(0)) == 10)
    ring.restart(2)
    ring.run_until(lambda: len(ring.log(2)) == 10)
    sizes = [len(pdu.entries) for pdu in ring.pdus(RecoverData, dst=2)]
    assert max(sizes) == 4
    assert len(sizes) >= 3

    ring = Ring(3, bundle=False, max_payload=10)
    ring.crash(2)
    ring.submit(1, *(f"{k:08}" for k in range(6)))
    ring.run_until(lambda: len(ring.log(0)) == 6)
    ring.restart(2)
    ring.run_until(lambda: len(ring.log(2)) == 6)
    loads = [[len(e.bundle.data) for e in pdu.entries] for pdu in ring.pdus(RecoverData, dst=2)]
    assert all(sum(load) <= 10 or len(load) == 1 for load in loads)


def test_an_answer_behind_a_gap_describes_it() -> None:
    ring = Ring(3, history=0, bundle=False)
    busy(ring, *"abcdefgh")
    engine = ring[0]
    engine.reform(ring.now)
    engine.take()
    first = engine.log.first_kept
    assert first > 2
    engine.become(O2, ring.now)  # as in phase II of its own attempt
    assert engine.reformation.attempt is not None
    engine.receive(RecoverReq(engine.reformation.attempt, 1), 2, ring.now)
    ((_, answer),) = [(dst, pdu) for dst, pdu in sends_of(engine.take()) if dst == 2]
    assert answer.first_available == first
    assert answer.entries[0].ack.ts == first
    assert answer.seq == answer.entries[0].seq
    before = sum(1 for line in answer.entries if line.ack.kind == DATA)
    assert dict(answer.counters)[1] == engine.log.next_num[1] - before
