"""The `fast` profile: what live groups do differently, rule by rule."""

from __future__ import annotations

from itertools import pairwise
from random import Random
from typing import Any

import pytest

from roundelay.core.bundle import MESSAGES_MAX, Bundle
from roundelay.core.errors import ConfigError, QueueFull
from roundelay.core.token.config import TokenConfig
from roundelay.core.token.log import weight
from roundelay.core.token.pdu import (
    WANT_ENTRIES,
    Ack,
    AckRun,
    B,
    Confirm,
    Entry,
    RetxAck,
    RetxBulk,
    RetxMsg,
    RetxReq,
)
from roundelay.core.token.site import TokenSite
from tests.core.ring import MS, Ring
from tests.core.sends import sends_of

SECOND = 1000 * MS


def fast(sites: int = 4, **changes: Any) -> Ring:
    return Ring(sites, TokenConfig.fast(**changes))


def warm(ring: Ring) -> None:
    """Let every site learn that transfers of the token take next to no time."""
    for turn in range(3 * len(ring.group)):
        ring.submit(turn % len(ring.group), f"warm {turn}")
        ring.run(MS)


# -- eager: nobody waits for T -------------------------------------------------------------------


@pytest.mark.parametrize("level, sites", [(0, 4), (1, 4), (2, 5), (3, 7)])
def test_a_message_commits_everywhere_without_any_timer(level: int, sites: int) -> None:
    ring = fast(sites, resilience=level)
    for site in ring.group:
        ring.submit(site, f"of {site}")
        ring.run(0)
        assert all(log == ring.log(0) for log in map(ring.log, ring.group))
        assert ring.log(0)[-1] == f"of {site}"
    assert ring.now == 0
    ring.check()


def test_an_isolated_message_costs_three_pdus() -> None:
    ring = fast()
    ring.submit(2, "a")
    ring.run(0)
    assert ring.kinds() == {"B": 1, "Ack": 1, "Confirm": 1}


def test_a_busy_group_needs_no_confirmations() -> None:
    """The next acknowledgement shows the acceptance; messages gather while one is out."""
    ring = fast()
    for turn in range(50):
        for site in ring.group:
            ring.submit(site, f"{site}.{turn}")
    ring.run(0)
    kinds = ring.kinds()
    assert len(ring.log(3)) == 200
    assert kinds == {"B": 8, "AckRun": 2, "Confirm": 1}
    ring.check()


def test_without_eager_the_confirmation_waits_for_t() -> None:
    ring = fast(eager=False, adapt_ns=0, kw=1)
    ring.submit(2, "a")
    ring.run(0)
    assert ring.kinds() == {"B": 1, "Ack": 1}
    ring.run(MS)
    assert ring.kinds() == {"B": 1, "Ack": 1, "Confirm": 1}


def test_nulls_stop_as_soon_as_everything_is_committed() -> None:
    ring = fast(7, resilience=3)
    ring.submit(4, "a")
    ring.run(0)
    assert ring.kinds() == {"B": 1, "Ack": 3, "Confirm": 1}


def test_a_list_of_one_site_does_not_pass_nulls_to_itself() -> None:
    ring = fast(1, resilience=0)
    ring.submit(0, "a")
    ring.run(SECOND)
    assert ring.log(0) == ["a"]
    assert ring.kinds()["Ack"] == 1


# -- silence -------------------------------------------------------------------------------------


def test_a_quiet_group_sends_one_pdu_a_second() -> None:
    ring = fast()
    warm(ring)
    ring.run(2 * SECOND)
    before = len(ring.sent)
    ring.run(60 * SECOND)
    assert 55 <= len(ring.sent) - before <= 61
    assert ring.kinds(before).keys() == {"Confirm"}


def test_the_first_beacons_follow_each_other_soon() -> None:
    """So that what gets lost at the end of a burst is noticed before the next second."""
    ring = fast()
    ring.submit(1, "a")
    ring.run(3 * SECOND)
    times = [sent.time for sent in ring.sent if isinstance(sent.pdu, Confirm)]
    gaps = [after - before for before, after in pairwise(times)]
    assert gaps[:7] == [15 * MS, 30 * MS, 60 * MS, 120 * MS, 240 * MS, 480 * MS, 960 * MS]
    assert set(gaps[7:]) == {SECOND}


def test_a_lost_confirmation_delays_its_site_by_milliseconds() -> None:
    ring = fast()
    ring.lose(Confirm, dst=3, times=1)
    ring.submit(1, "a")
    ring.run(0)
    assert ring.log(3) == []
    ring.run(20 * MS)
    assert ring.log(3) == ["a"]


# -- how long to wait before a repetition --------------------------------------------------------


def repetitions(ring: Ring, ack: Ack) -> list[int]:
    return [sent.time for sent in ring.sent if sent.pdu == ack]


def test_a_lost_transfer_is_repeated_after_the_time_that_transfers_take() -> None:
    ring = fast()
    warm(ring)
    (holder,) = ring.holders
    follower = ring[holder].token_list.successor[holder]
    start = ring.now
    ring.lose(Ack, src=holder, dst=follower, times=1)
    ring.submit(0, "a")
    ring.run(2 * MS)
    assert ring.log(0)[-1] == "a"
    assert ring.delivered_at[follower][-1] - start == TokenConfig.fast().adapt_ns


def test_without_adapt_it_waits_for_t_tok() -> None:
    ring = fast(adapt_ns=0)
    warm(ring)
    (holder,) = ring.holders
    follower = ring[holder].token_list.successor[holder]
    start = ring.now
    ring.lose(Ack, src=holder, dst=follower, times=1)
    ring.submit(0, "a")
    ring.run(20 * MS)
    assert ring.delivered_at[follower][-1] - start == TokenConfig.fast().pass_ns


def test_unanswered_repetitions_become_rarer() -> None:
    ring = fast()
    warm(ring)
    (holder,) = ring.holders
    follower = ring[holder].token_list.successor[holder]
    ring.crash(follower)
    ring.submit(holder, "a")
    ring.run(500 * MS)
    times = repetitions(ring, ring.pdus(Ack, src=holder)[-1])
    gaps = [(after - before) // MS for before, after in pairwise(times)]
    assert gaps == [1, 2, 4, 8, 16, 32, 64, 128, 160]


def test_a_dead_token_site_is_noticed_after_about_a_second_and_not_before() -> None:
    ring = fast()
    warm(ring)
    (holder,) = ring.holders
    follower = ring[holder].token_list.successor[holder]
    ring.crash(follower)
    start = ring.now
    ring.submit(holder, "a")
    ring.run(800 * MS)
    assert not ring.told(holder, "suspect")
    ring.run(400 * MS)
    assert ring.told(holder, "suspect") == [(follower,)]
    ring.run(SECOND)
    assert ring.log(holder)[-1] == "a"
    assert ring.now - start < 3 * SECOND
    ring.check()


def test_a_site_that_is_heard_gets_its_token_repeated_soon() -> None:
    """However long the wait has grown: it is alive, and lacks nothing but that."""
    ring = fast()
    warm(ring)
    (holder,) = ring.holders
    follower = ring[holder].token_list.successor[holder]
    ring.lose(Ack, src=holder, dst=follower)
    ring.submit(holder, "a")
    ring.run(600 * MS)
    ring.heal()
    ring.submit(follower, "b")  # it is heard
    start = ring.now
    ring.run(5 * MS)
    assert ring.log(follower)[-2:] == ["a", "b"]
    assert ring.delivered_at[follower][-1] - start <= 2 * MS


def test_a_slow_site_is_waited_for_as_long_as_transfers_take() -> None:
    """The estimate follows the load: nothing is repeated that merely waits in a queue."""
    site = TokenSite(0, (0, 1, 2), TokenConfig.fast(), Random(0))
    site.stamping._transfer_took(4 * MS)
    assert site.stamping.patience(10 * MS) == 8 * MS  # one observation: half of it may be luck
    for _ in range(20):
        site.stamping._transfer_took(4 * MS)
    assert 4 * MS <= site.stamping.patience(10 * MS) < 5 * MS
    for _ in range(40):
        site.stamping._transfer_took(50_000)
    assert site.stamping.patience(10 * MS) == MS
    for _ in range(5):
        site.stamping._transfer_took(30 * MS)
    assert site.stamping.patience(10 * MS) == 10 * MS


def test_a_lost_message_is_repeated_soon_in_an_idle_group() -> None:
    ring = fast()
    warm(ring)
    (holder,) = ring.holders
    source = ring[holder].token_list.successor[holder]
    start = ring.now
    ring.lose(B, src=source, dst=holder, times=1)
    ring.submit(source, "a")
    ring.run(10 * MS)
    assert ring.log(source)[-1] == "a"
    assert ring.delivered_at[source][-1] - start == 2 * TokenConfig.fast().adapt_ns


@pytest.mark.parametrize(
    "changes, field",
    [
        ({"backoff": -1}, "backoff"),
        ({"backoff": 21}, "backoff"),
        ({"backoff": 7}, "idle_ns"),  # 15 ms doubled 7 times is above t_idle
        ({"adapt_ns": -1}, "adapt_ns"),
        ({"adapt_ns": 11 * MS}, "adapt_ns"),
        ({"eager": False}, "adapt_ns"),
        ({"history_bytes": -1}, "history_bytes"),
        ({"own_bytes": 0}, "own_bytes"),
    ],
)
def test_settings_that_make_no_sense_are_refused(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError, match=field):
        TokenConfig.fast(**changes).check(4)


# -- repair in bulk ------------------------------------------------------------------------------


def test_several_lost_messages_are_asked_for_and_sent_in_one_pdu_each() -> None:
    ring = fast(5, request_delay_ns=5 * MS, max_payload=1200)
    ring.lose(B, dst=4, times=3)
    for site in (1, 2, 3):
        ring.submit(site, f"of {site}")
    ring.run(0)
    ring.run(6 * MS)
    assert ring.log(4) == ring.log(0) != []
    assert [(req.what, req.ts, req.hi) for req in ring.pdus(RetxReq)] == [(WANT_ENTRIES, 0, 2)]
    (answer,) = ring.pdus(RetxBulk)
    assert [list(entry.bundle) for entry in answer.entries] == [[b"of 1"], [b"of 2"], [b"of 3"]]
    assert not ring.pdus(RetxMsg)
    ring.check()


def test_lost_acknowledgements_and_messages_are_repaired() -> None:
    ring = fast(5, request_delay_ns=5 * MS)
    ring.lose(B, dst=4, times=3)
    ring.lose(AckRun, dst=4, times=1)
    for site in (1, 2, 3):
        ring.submit(site, f"of {site}")
    ring.run(40 * MS)
    assert ring.log(4) == ring.log(0) != []
    acks, messages = ring.pdus(RetxBulk)  # first it sees that stamps are missing
    assert [len(entry.bundle) for entry in acks.entries] == [0, 0, 0]
    assert [len(entry.bundle) for entry in messages.entries] == [1, 1, 1]
    ring.check()


# -- runs of stamps ------------------------------------------------------------------------------


def test_all_that_wait_are_stamped_by_one_pdu_and_the_last_takes_the_token_along() -> None:
    ring = fast()
    for site in (2, 1, 3):
        ring.submit(site, f"of {site}")
    ring.run(0)
    assert ring.pdus(AckRun) == [AckRun((0, 0), 0, 0, 1, ((2, 0), (1, 0), (3, 0)))]
    assert ring.kinds() == {"B": 3, "AckRun": 1, "Confirm": 1}
    assert [ring[3].log.entries[ts].ack.next for ts in range(3)] == [0, 0, 1]
    assert ring.holders == [1]
    assert ring.log(0) == ring.log(3) == ["of 2", "of 1", "of 3"]


def test_a_run_has_at_most_k_w_stamps() -> None:
    ring = fast(kw=2)
    for site in ring.group:
        ring.submit(site, f"of {site}")
    ring.run(0)
    assert [len(run.stamps) for run in ring.pdus(AckRun)] == [2, 2]
    assert len(ring.log(3)) == 4
    ring.check()


def test_with_k_w_1_every_stamp_passes_the_token() -> None:
    ring = fast(kw=1)
    for site in ring.group:
        ring.submit(site, f"of {site}")
    ring.run(0)
    assert ring.kinds() == {"B": 4, "Ack": 4, "Confirm": 1}


def test_nobody_commits_a_run_before_the_token_has_moved_on() -> None:
    ring = fast()
    ring.lose(AckRun, dst=1)
    ring.lose(Ack, dst=1)
    ring.submit(2, "a")
    ring.submit(3, "b")
    ring.run(500 * MS)
    assert ring.stamped_by(3) == ["a", "b"]
    assert ring.log(0) == ring.log(3) == []


def test_a_lost_run_is_repeated_as_it_was() -> None:
    ring = fast()
    ring.lose(AckRun, times=3)
    for site in (1, 2, 3):
        ring.submit(site, f"of {site}")
    ring.run(30 * MS)
    first, again = ring.pdus(AckRun)
    assert first == again
    assert not ring.pdus(RetxReq)
    assert len(ring.log(1)) == 3
    assert all(log == ring.log(0) for log in map(ring.log, ring.group))
    ring.check()


def test_a_run_that_comes_twice_changes_nothing() -> None:
    ring = fast()
    ring.submit(1, "a")
    ring.submit(2, "b")
    ring.run(0)
    (run,) = ring.pdus(AckRun)
    for site in (1, 2, 3):
        ring.inject(run, 0, site)
    ring.run(0)
    assert [ring[site].nts for site in ring.group] == [2, 2, 2, 2]
    ring.check()


def test_what_arrives_in_one_batch_is_decided_on_once() -> None:
    """The token and a message: no confirmation in between."""
    site = TokenSite(1, (0, 1, 2), TokenConfig.fast(), Random(0))
    site.take()
    tl = (0, 0)
    site.receive(B(tl, 0, 0, Bundle.of(b"a")), 0, 5)
    site.receive(Ack(tl, 0, 1, 0, 0, 0, 1), 0, 5)
    site.receive(B(tl, 2, 0, Bundle.of(b"b")), 2, 5)
    assert site.deadline <= 5
    assert not site.out.sends
    site.on_timer(5)
    assert [type(pdu) for _, pdu in sends_of(site.take())] == [Ack]
    assert site.deadline > 5


def test_a_run_by_a_site_without_the_token_is_refused() -> None:
    site = TokenSite(1, (0, 1, 2), TokenConfig.fast(), Random(0))
    tl = (0, 0)
    site.receive(B(tl, 0, 0, Bundle.of(b"a")), 0, 5)
    site.receive(AckRun(tl, 0, 2, 0, ((0, 0),)), 2, 5)
    assert site.nts == 0
    assert site.drops == {"acknowledgement by a site without the token": 1}
    site.receive(AckRun(tl, 0, 0, 1, ()), 0, 5)  # of nothing
    assert site.nts == 0


def test_one_lost_acknowledgement_comes_back_as_it_was() -> None:
    ring = fast(4)
    ring.lose(Ack, dst=3, times=1)
    ring.submit(1, "a")
    ring.run(5 * MS)
    assert ring.log(3) == ["a"]
    assert len(ring.pdus(RetxAck)) == 1
    assert not ring.pdus(RetxBulk)


def stamped(ring: Ring, count: int, size: int) -> TokenSite:
    """A site in service whose log has so many messages of that size."""
    for turn in range(count):
        ring.submit(turn % 3, f"{turn:0{size}}")
        ring.run(0)
    (holder,) = ring.holders
    return ring[holder]


def test_an_answer_has_no_more_in_a_pdu_than_max_payload() -> None:
    ring = fast(3, max_payload=1000, history=100)
    site = stamped(ring, 30, 300)
    site.receive(RetxReq(site.tl, WANT_ENTRIES, 0, 29, 0, 0), (site.me + 1) % 3, ring.now)
    answers = [pdu for _, pdu in sends_of(site.take())]
    # Four PDUs at once; who needs more asks again.
    assert [[entry.ack.ts for entry in pdu.entries] for pdu in answers] == [
        [0, 1], [2, 3], [4, 5], [6, 7]
    ]  # fmt: skip


def test_an_entry_larger_than_a_pdu_is_sent_alone() -> None:
    ring = fast(3, max_payload=1000)
    site = stamped(ring, 3, 1000)
    site.receive(RetxReq(site.tl, WANT_ENTRIES, 0, 2, 0, 0), (site.me + 1) % 3, ring.now)
    assert [len(pdu.entries) for _, pdu in sends_of(site.take())] == [1, 1, 1]


def test_what_is_here_already_is_left_alone() -> None:
    ring = fast(3)
    site = stamped(ring, 4, 10)
    other = ring[(site.me + 1) % 3]
    before = (other.nts, dict(other.log.entries))
    other.receive(RetxBulk(tuple(site.log.entries[ts] for ts in range(4))), site.me, ring.now)
    assert (other.nts, dict(other.log.entries)) == before
    assert not other.take()


def test_bulk_entries_of_strangers_and_of_other_lists_change_nothing() -> None:
    ring = fast(3)
    site = stamped(ring, 2, 10)
    nts = site.nts
    ack = Ack(site.tl, nts, 1, 9, 0, 1, 2)
    site.receive(RetxBulk((Entry(ack, Bundle.of(b"x")),)), 1, ring.now)
    assert site.nts == nts
    assert not site.ordering.qb
    site.receive(RetxBulk((Entry(Ack((0, 2), nts, 0, 1, 0, 1, 2)),)), 1, ring.now)
    assert site.nts == nts
    assert site.phase == "O1"  # a newer list than ours (CM-N1)


# -- bounds in bytes -----------------------------------------------------------------------------


def test_the_history_has_its_bound_in_bytes() -> None:
    ring = fast(3, history_bytes=20_000)
    stamped(ring, 300, 400)
    for site in ring.group:
        engine = ring[site]
        kept = sum(
            weight(engine.log.entries[ts]) for ts in range(engine.log.first_kept, engine.log.pruned)
        )
        assert kept == engine.log.kept_bytes <= 20_000
        assert 15 < len(engine.log.entries) < 30
        assert engine.nts == 300
    ring.check()


def test_a_history_of_no_bytes_keeps_what_the_list_needs() -> None:
    ring = fast(3, history_bytes=0)
    stamped(ring, 30, 10)
    assert all(1 <= len(ring[site].log.entries) <= 4 for site in ring.group)


def test_stable_storage_forgets_large_entries_soon() -> None:
    """Not only after so many entries: they may have megabytes."""
    ring = fast(3, history_bytes=10_000, max_payload=100_000)
    stamped(ring, 120, 60_000)
    for site in ring.group:
        kept = ring.disks[site].entries.values()
        assert sum(weight(entry) for entry in kept) < 6_000_000
    ring.check()


def test_a_restarted_site_weighs_its_history_anew() -> None:
    ring = fast(3, history_bytes=20_000)
    stamped(ring, 100, 400)
    ring.crash(1)
    ring.restart(1)
    engine = ring[1]
    assert engine.log.kept_bytes == sum(map(weight, engine.log.entries.values())) > 0
    ring.run(3 * SECOND)
    stamped(ring, 100, 401)
    assert engine.log.kept_bytes <= 20_000
    assert len(engine.log.entries) < 40
    ring.check()


def test_waiting_messages_have_their_bound_in_bytes() -> None:
    ring = fast(3, own_bytes=100, max_payload=60)
    ring.submit(1, "out at once")  # under way, no longer waiting
    ring.submit(1, "x" * 60, "y" * 40)
    with pytest.raises(QueueFull, match="100 bytes wait to be sent"):
        ring.submit(1, "z")
    assert ring[1].own.waiting_bytes == 100
    ring.run(0)
    assert ring[1].own.waiting_bytes == 0
    ring.submit(1, "z")
    ring.run(0)
    assert ring.log(0) == ["out at once", "x" * 60, "y" * 40, "z"]


def test_a_message_above_that_bound_can_be_sent_alone() -> None:
    ring = fast(3, own_bytes=10, max_payload=60)
    ring.submit(1, "out at once", "x" * 60)
    ring.run(0)
    assert ring.log(0) == ["out at once", "x" * 60]


# -- bundles -------------------------------------------------------------------------------------


def test_thousands_of_tiny_messages_gather_into_few_pdus() -> None:
    ring = fast(3, max_payload=60_000, own_limit=100_000)
    messages = [str(number) for number in range(20_000)]
    ring.submit(1, *messages)
    ring.run(0)
    assert ring.log(2) == messages
    assert ring.kinds()["B"] == 3  # the first one alone, then 60,000 bytes, then the rest
    assert [delivery.seq for delivery in ring.delivered[2]][:2] == [0, 1]


def test_a_bundle_has_at_most_as_many_messages_as_the_wire_can_count() -> None:
    ring = fast(3, max_payload=1 << 20)
    site = ring[1]
    site.submit(Bundle.of(b"first"), 0)
    for _ in range(3):
        site.submit(Bundle((0,) * (MESSAGES_MAX // 2), b""), 0)
    ring.collect(1)
    ring.run(0)
    assert [len(delivery.bundle) for delivery in ring.delivered[2]] == [
        1, MESSAGES_MAX // 2 * 2, MESSAGES_MAX // 2
    ]  # fmt: skip


def test_bundles_are_cut_into_their_messages() -> None:
    for messages in ([b"one"], [b"a", b"b"], [b"", b"x", b""], [b""], [bytes(5000), b"y"], []):
        bundle = Bundle.of(*messages)
        assert list(bundle) == list(bundle.messages()) == messages
        assert len(bundle) == len(messages)


@pytest.mark.parametrize(
    "messages, size",
    [([], 0), ([b""], 0), ([b"", b""], 0), ([b"ab"], 2), ([b"a", b"b"], 1), ([b"a", b"bc"], 0),
     ([b"bc", b"a", b"abc"], 0)],
)  # fmt: skip
def test_a_bundle_knows_whether_its_messages_have_one_size(
    messages: list[bytes], size: int
) -> None:
    assert Bundle.of(*messages).uniform == size
