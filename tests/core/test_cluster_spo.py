"""SPO, rule by rule (SPO-S … SPO-O), and its tests SPO-T1 … SPO-T9."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from roundelay.core.bundle import Bundle
from roundelay.core.cluster.config import DEFERRED, EAGER
from roundelay.core.cluster.pdu import SpoDt, SpoNull, SpoRetx, SpoStat
from roundelay.core.cluster.spo import SpoSite
from roundelay.core.engine import ACCEPTED, EVERYONE, NEVER, PREACKNOWLEDGED
from roundelay.core.errors import ConfigError
from tests.core.cluster_net import MS, Net, Watcher, alone, mask, pdu, sends, stat, text, watched

ACK = 5 * MS
WAIT = 30 * MS
STAT = 100 * MS


def spo(src: int, seq: int, ack: tuple[int, ...], message: str = "", **fields: Any) -> Any:
    return pdu(SpoSite, src, seq, ack, message, **fields)


def submit(engine: Any, message: str, *to: int, now: int = 0) -> None:
    engine.submit(Bundle.of(message.encode()), now, to)


# -- sending ---------------------------------------------------------------------------------------


def test_spo_s1_partial_numbers_advance_for_destinations_only() -> None:
    site = alone(SpoSite, sites=4)
    submit(site, "a", 1, 2)
    submit(site, "b", 2, 0)
    submit(site, "c", 3)
    stamped = [(p.seq, p.dst, p.pseq) for _, p in sends(site)]
    assert stamped == [
        (1, mask(1, 2), (1, 1, 1, 1)),
        (2, mask(0, 2), (1, 2, 2, 1)),
        (3, mask(3), (2, 2, 3, 1)),
    ]
    assert site.pseq == [2, 2, 3, 2]
    assert site.preq[0] == 2  # b was for ourselves too


def test_spo_s1_every_pdu_is_broadcast_and_acknowledges_everybody() -> None:
    site = alone(SpoSite, sites=4)
    site.receive(spo(3, 1, (1, 1, 1, 1), "x", dst=mask(0)), 3, 0)
    submit(site, "a", 1)
    ((dst, a),) = sends(site)
    assert dst == EVERYONE
    assert a.ack == (1, 1, 1, 2)
    assert list(site.sl) == [1]


@pytest.mark.parametrize("to", [(), (4,), (0, 9)])
def test_spo_s1_destinations_must_be_members(to: tuple[int, ...]) -> None:
    site = alone(SpoSite)
    with pytest.raises(ConfigError, match="to = "):
        submit(site, "x", *to)
    assert not site.queue
    assert site.seq == 1
    assert not site.take()


def test_spo_s1_without_destinations_a_message_is_for_everybody() -> None:
    site = alone(SpoSite)
    site.submit(Bundle.of(b"x"), 0)
    ((_, x),) = sends(site)
    assert x.dst == mask(0, 1, 2)


def test_spo_s2_the_window_counts_the_destinations_of_outstanding_pdus() -> None:
    site = alone(SpoSite, sites=4, window=2)
    for name in "abc":
        submit(site, name, 1)
    submit(site, "d", 2)
    assert [text(p.bundle) for _, p in sends(site)] == ["a", "b"]
    site.receive(spo(1, 1, (2, 1, 1, 1)), 1, 0)  # 2 and 3 have nothing to say
    assert [text(p.bundle) for _, p in sends(site)] == ["c"]
    site.receive(spo(1, 2, (4, 1, 1, 1), pseq=(2, 2, 2, 2)), 1, 0)
    assert [text(p.bundle) for _, p in sends(site)] == ["d"]


# -- acceptance ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arriving, accepted",
    [
        (spo(1, 1, (1, 1, 1), "x", dst=mask(0)), True),
        (spo(1, 5, (1, 1, 1), "x", dst=mask(0)), True),  # what came between was not for us
        (spo(1, 5, (1, 1, 1), "x", dst=mask(2)), True),  # nor is this
        (spo(1, 2, (1, 1, 1), "x", dst=mask(0), pseq=(2, 1, 1)), False),  # LC1
        (spo(1, 1, (1, 1, 2), "x", dst=mask(0)), False),  # LC2
        (spo(1, 1, (2, 1, 1), "x", dst=mask(0)), True),  # our own numbers are no evidence
    ],
)
def test_spo_a1_the_accept_condition(arriving: Any, accepted: bool) -> None:
    site = alone(SpoSite)
    submit(site, "mine", 1)
    site.receive(arriving, 1, 0)
    assert (site.treq[1] == arriving.seq + 1) is accepted


def test_spo_a2_acceptance_moves_both_numbers_and_notes_the_vector() -> None:
    site = alone(SpoSite)
    submit(site, "mine", 1)
    x = spo(1, 3, (2, 1, 1), "x", dst=mask(0, 2), buf=17)
    site.receive(x, 1, 0)
    assert (site.treq[1], site.preq[1]) == (4, 2)
    assert site.al[0] == [2, 2, 1]
    assert site.al[1] == [4, 4, 1]
    assert site.bufs[1] == 17
    assert list(site.rrl[1]) == [x]


def test_spo_a2_what_is_for_others_moves_the_total_number_only() -> None:
    site = alone(SpoSite)
    site.receive(spo(1, 1, (1, 1, 1), "x", dst=mask(2)), 1, 0)
    assert (site.treq[1], site.preq[1]) == (2, 1)
    assert not site.in_logs()
    assert not site.debts
    assert site.deadline == NEVER


def test_spo_a2_own_data_for_others_is_kept_and_not_delivered() -> None:
    site = alone(SpoSite, deliver_at=ACCEPTED)
    submit(site, "x", 1)
    assert [p.seq for p in site.rrl[0]] == [1]
    assert not site.take().deliveries


def test_spo_a3_a_blocked_pdu_proves_that_nothing_before_it_was_for_us() -> None:
    site = alone(SpoSite)
    f = spo(1, 4, (1, 1, 2), "f", dst=mask(0))
    site.receive(f, 1, 0)
    assert f.seq in site.blocked[1]
    assert site.treq[1] == 4
    assert site.al[1][0] == 4


def test_spo_a4_a_duplicate_is_dropped() -> None:
    site = alone(SpoSite)
    x = spo(1, 1, (1, 1, 1), "x", dst=mask(0))
    site.receive(x, 1, 0)
    site.receive(x, 1, 0)
    assert site.in_logs() == [x]
    assert (site.treq[1], site.preq[1]) == (2, 2)


def test_spo_a4_what_is_early_is_kept_if_it_is_for_us() -> None:
    site = alone(SpoSite)
    site.receive(spo(1, 2, (1, 1, 1), "b", dst=mask(0), pseq=(2, 1, 1)), 1, 0)
    site.receive(spo(2, 1, (1, 4, 1), "c", dst=mask(1)), 2, 0)  # this one is not
    assert [list(early) for early in site.blocked] == [[], [2], []]
    site.receive(spo(1, 1, (1, 1, 1), "a", dst=mask(0)), 1, 0)
    assert [text(p.bundle) for p in site.in_logs()] == ["a", "b"]


def test_spo_a4_a_kept_pdu_that_was_skipped_meanwhile_is_dropped() -> None:
    """It waits for 2; the source repeats it, and by then it is in turn."""
    site = alone(SpoSite)
    early = spo(1, 1, (1, 1, 2), "x", dst=mask(0))
    site.receive(early, 1, 0)
    assert list(site.blocked[1]) == [1]
    site.treq[2] = 2  # as if 2 had been skipped
    site.receive(early, 1, 0)
    assert site.treq[1] == 2
    assert not any(site.blocked)


# -- losses ----------------------------------------------------------------------------------------


def test_spo_l1_a_hole_in_the_partial_numbers_is_asked_for() -> None:
    site = alone(SpoSite)
    site.receive(spo(1, 9, (1, 1, 1), "x", dst=mask(0), pseq=(4, 1, 1)), 1, 0)
    assert sends(site) == [(1, SpoRetx(epoch=0, by=0, src=1, lo=1, hi=3))]
    site.on_timer(WAIT)
    assert sends(site) == [(1, SpoRetx(epoch=0, by=0, src=1, lo=1, hi=3))]


def test_spo_l1_a_pdu_for_others_shows_the_hole_as_well() -> None:
    site = alone(SpoSite)
    site.receive(spo(1, 2, (1, 1, 1), "x", dst=mask(2), pseq=(2, 1, 1)), 1, 0)
    assert sends(site) == [(1, SpoRetx(epoch=0, by=0, src=1, lo=1, hi=1))]
    assert not any(site.blocked)


def test_spo_l2_a_strange_acknowledgement_is_waited_for() -> None:
    site = alone(SpoSite)
    site.receive(spo(2, 1, (1, 3, 1), "q", dst=mask(0)), 2, 0)
    assert not sends(site)
    assert site.deadline == WAIT


def test_spo_l2_an_older_pdu_than_the_evidence_does_not_settle_it() -> None:
    site = alone(SpoSite)
    q = spo(2, 1, (1, 3, 1), "q", dst=mask(0))
    site.receive(q, 2, 0)
    site.receive(spo(1, 1, (1, 1, 1), "f", dst=mask(2)), 1, MS)
    assert site.treq[1] == 2
    assert site.blocked[2] == {1: q}
    site.on_timer(WAIT)
    ((dst, poll),) = sends(site)
    assert (dst, type(poll), poll.poll, poll.treq) == (1, SpoStat, True, (1, 2, 1))


def test_spo_l2_each_source_in_doubt_is_polled_and_nobody_else() -> None:
    site = alone(SpoSite, sites=4)
    site.receive(spo(3, 1, (1, 2, 2, 1), "q", dst=mask(0)), 3, 0)
    for k in (1, 2):
        site.on_timer(k * WAIT)
        assert [(dst, type(p)) for dst, p in sends(site)] == [(1, SpoStat), (2, SpoStat)]


def test_spo_l2_the_answer_may_be_the_lost_pdu() -> None:
    site = alone(SpoSite)
    site.receive(spo(2, 1, (1, 2, 1), "q", dst=mask(0)), 2, 0)
    site.on_timer(WAIT)
    sends(site)
    site.receive(spo(1, 1, (1, 1, 1), "was for us", dst=mask(0)), 1, WAIT)
    assert not any(site.blocked)
    assert (site.preq[1], site.preq[2]) == (2, 2)


def test_spo_x_only_what_was_asked_for_and_meant_for_the_asker_is_repeated() -> None:
    site = alone(SpoSite, sites=4, share=1)
    for name, to in (("a", (1,)), ("b", (2,)), ("c", (1, 2)), ("d", (1,)), ("e", (3,))):
        submit(site, name, *to)
    first = [p for _, p in sends(site)]
    site.receive(SpoRetx(0, 1, 0, 2, 3), 1, 0)
    assert sends(site) == [(EVERYONE, first[2]), (EVERYONE, first[3])]
    site.receive(SpoRetx(0, 2, 0, 1, 9), 2, 0)  # c was repeated a moment ago
    assert sends(site) == [(EVERYONE, first[1])]


# -- phases ----------------------------------------------------------------------------------------


def test_spo_p_pre_acknowledgement_asks_the_destinations_only() -> None:
    site = alone(SpoSite, sites=4, deliver_at=PREACKNOWLEDGED)
    site.receive(spo(1, 1, (1, 1, 1, 1), "x", dst=mask(0, 2)), 1, 0)
    assert not site.take().deliveries
    site.receive(spo(2, 1, (1, 2, 1, 1)), 2, 0)
    assert [text(d.bundle) for d in site.take().deliveries] == ["x"]
    assert [p.seq for p in site.prl[1]] == [1]


def test_spo_p_the_head_of_the_line_goes_first() -> None:
    site = alone(SpoSite, sites=4, deliver_at=PREACKNOWLEDGED)
    site.receive(spo(1, 1, (1, 1, 1, 1), "for two", dst=mask(0, 2)), 1, 0)
    site.receive(spo(1, 2, (1, 2, 1, 1), "for us", dst=mask(0), pseq=(2, 1, 2, 1)), 1, 0)
    assert not site.take().deliveries  # although the second one is everywhere it should be
    site.receive(spo(2, 1, (1, 2, 1, 1)), 2, 0)
    assert [text(d.bundle) for d in site.take().deliveries] == ["for two", "for us"]


def test_spo_k_every_destination_and_the_source_must_have_every_carrier() -> None:
    """x goes from 1 to 0 and 2.  At 0: the carriers are our NULL and one of 2."""
    site = alone(SpoSite, sites=4)
    site.receive(spo(1, 1, (1, 1, 1, 1), "x", dst=mask(0, 2)), 1, 0)
    site.on_timer(ACK)
    ((_, own),) = sends(site)
    assert own.dst == mask(1, 2)
    site.receive(spo(2, 1, (1, 2, 1, 1), dst=mask(0, 1)), 2, ACK)
    assert site.carried[(1, 1)].firsts == {0: 1, 2: 1}
    more: dict[str, Any] = {"pseq": (2, 2, 2, 2), "dst": mask(0, 1, 2)}
    site.receive(spo(1, 2, (2, 1, 1, 1), **more), 1, ACK)  # 1 lacks 2's carrier
    site.receive(spo(2, 2, (2, 2, 1, 1), **more), 2, ACK)
    assert not site.take().deliveries
    site.receive(spo(1, 3, (2, 1, 2, 1), pseq=(3, 3, 3, 2), dst=mask(0)), 1, ACK)
    assert [text(d.bundle) for d in site.take().deliveries] == ["x"]
    assert not site.carried


def test_spo_k_a_message_to_oneself_needs_nobody() -> None:
    site = alone(SpoSite)
    submit(site, "note", 0)
    out = site.take()
    assert [text(d.bundle) for d in out.deliveries] == ["note"]
    assert not site.sl
    assert not site.unaccepted


def test_spo_o_a_source_outside_the_destinations_confirms_their_acknowledgements() -> None:
    net = Net(SpoSite, 4)
    net.submit(0, "x", to=[1, 2])
    net.settle()
    net.check()
    assert {p.dst for p in net.pdus(SpoNull, src=0)} == {mask(1, 2)}
    assert {p.dst for p in net.pdus(SpoNull, src=1)} == {mask(0, 2)}
    assert not net.pdus(src=3)


# -- SPO-T1, SPO-T2: random runs -------------------------------------------------------------------


def random_run(seed: int) -> tuple[Net, Watcher]:
    rng = Random(f"spo/{seed}")
    sites = rng.choice([2, 3, 4, 6])
    net = Net(
        watched(SpoSite),
        sites,
        loss=rng.choice([0.0, 0.05, 0.1, 0.2, 0.3]),
        jitter_ns=rng.choice([0, MS, 20 * MS]),
        seed=seed,
        ack_ns=rng.choice([0, 1, 5]) * MS,
        window=rng.choice([1, 2, 8]),
        policy=rng.choice([DEFERRED, DEFERRED, EAGER]),
        bundle=rng.random() < 0.3,
        boot=rng.choice(["static", "dynamic"]),
        attempts=40,
    )
    watcher = Watcher(net)
    for k in range(30):
        to = rng.sample(range(sites), rng.randint(1, sites))
        net.submit(rng.randrange(sites), f"{k}", to=to)
        net.run(rng.randrange(20 * MS))
    net.settle()
    return net, watcher


@pytest.mark.parametrize("seed", range(40))
def test_spo_t1_spo_t2_random_destinations_under_loss(seed: int) -> None:
    """SPO-T1: SELECT, FIFO, INTEG, AGREE, QUIET.  SPO-T2: phases mean what they say, over DST.

    And nobody asks for what was not meant for it.
    """
    net, watcher = random_run(seed)
    net.check()
    assert watcher.stages["acknowledged"] >= len(net.firsts(SpoDt))
    meant = {
        (p.src, k, p.pseq[k])
        for p in net.pdus(SpoDt, SpoNull)
        for k in range(len(net.group))
        if p.dst >> k & 1
    }
    for request in net.pdus(SpoRetx):
        for number in range(request.lo, request.hi + 1):
            assert (request.src, request.by, number) in meant


# -- SPO-T3 … SPO-T9 -------------------------------------------------------------------------------


@pytest.mark.parametrize("sites", [2, 3, 5, 8])
def test_spo_t3_the_cost_depends_on_the_destinations_alone(sites: int) -> None:
    for d in range(1, sites):
        net = Net(SpoSite, sites)
        net.submit(0, "x", to=range(1, d + 1))
        net.settle()
        net.check()
        assert len(net.sent) == 1 + d + (d + 1)


def test_spo_t4_lc2_without_a_loss_for_us_sends_no_request() -> None:
    """1's PDU for 2 is lost at 0; a later one of 1 reaches 0 within t_wait."""
    net = Net(SpoSite, 3)
    net.lose(SpoDt, src=1, dst=0, times=1)
    net.submit(1, "for 2", to=[2])
    net.run(2 * MS)
    net.submit(2, "q", to=[0])
    net.run(2 * MS)
    assert net[0].blocked[2]
    net.submit(1, "more for 2", to=[2])
    net.settle()
    net.check()
    assert not net.pdus(SpoRetx, SpoStat)
    assert net.got[0][0].time < WAIT


def test_spo_t5_lc2_and_silence_one_poll_one_stat() -> None:
    net = Net(SpoSite, 4)
    net.lose(src=1, dst=0)
    net.submit(1, "for 2", to=[2])
    net.settle()
    net.heal()
    start = net.now
    net.submit(2, "q", to=[0])
    net.settle()
    net.check()
    polls = [sent for sent in net.sent if type(sent.pdu) is SpoStat and sent.pdu.poll]
    assert [(sent.src, sent.time) for sent in polls] == [(0, start + MS + WAIT)]
    assert [(s.dst, s.pdu.poll) for s in net.sent if type(s.pdu) is SpoStat] == [
        (1, True),
        (0, False),
    ]
    assert net[0].treq[1] == net[1].seq
    assert not net.pdus(SpoRetx)


def test_spo_t6_two_blocked_pdus_do_not_wait_for_each_other() -> None:
    """f of 1 and g of 2, both for 0, each acknowledge a PDU of the other that 0 has lost."""
    net = Net(SpoSite, 3)
    net.lose(src=1, dst=0)
    net.lose(src=2, dst=0)
    net.submit(1, "1 to 2", to=[2])
    net.submit(2, "2 to 1", to=[1])
    net.run(2 * MS)
    net.heal()
    net.submit(1, "f", to=[0])
    net.submit(2, "g", to=[0])
    net.run(MS)
    assert net[0].treq == [1, 3, 3]
    assert not any(net[0].blocked)
    net.settle()
    net.check()
    assert not net.pdus(SpoStat)


def test_spo_t7_a_member_never_addressed_stops_nobody_and_asks_for_nothing() -> None:
    net = Net(SpoSite, 4, window=2, loss=0.2, seed=7)
    for k in range(30):
        net.submit(k % 3, f"{k}", to=[j for j in range(3) if (k >> j) % 2 == 0] or [0])
        net.run(10 * MS)
    net.settle()
    net.check()
    assert not net.pdus(SpoRetx, SpoDt, SpoNull, src=3)
    assert not net.log(3)


def test_spo_t7_it_need_not_even_be_there() -> None:
    net = Net(SpoSite, 4, window=2)
    net.crash(3)
    for k in range(30):
        net.submit(k % 3, f"{k}", to=[(k + 1) % 3])
    net.settle()
    net.check()
    assert not any(net.notices.values())


def test_spo_t8_a_message_to_oneself_behind_a_trailing_null_is_delivered() -> None:
    net = Net(SpoSite, 3)
    net.submit(1, "x", to=[0])
    net.settle()
    assert net.pdus(SpoNull, src=0)
    net.submit(0, "to myself", to=[0])
    net.settle()
    net.check()
    assert net.log(0) == ["x", "to myself"]


def test_spo_t9_an_old_pdu_for_others_does_not_lower_treq() -> None:
    net = Net(watched(SpoSite), 3)
    Watcher(net)
    lost = net.lose(SpoDt, src=0, dst=1, times=1)
    net.submit(0, "a", to=[1])
    net.submit(0, "b", to=[1])
    net.run_until(lambda: net[2].treq[0] == 3)
    before = net[2].treq[0]
    net.run_until(lambda: len(net.pdus(SpoDt)) == 3)
    net.run(2 * MS)
    assert net.pdus(SpoDt)[2] == lost.lost[0].pdu  # 2 has heard a again
    assert net[2].treq[0] == before
    net.settle()
    net.check()


def test_bundling_keeps_destinations_apart() -> None:
    net = Net(SpoSite, 3, window=1, bundle=True)
    for name, to in (("a", [1]), ("b", [1]), ("c", [1]), ("d", [2]), ("e", [2])):
        net.submit(0, name, to=to)
    net.settle()
    net.check()
    sizes = [len(p.bundle) for p in net.firsts(SpoDt)]
    assert sizes == [1, 2, 2]


def test_a_stat_that_claims_more_than_it_shows_changes_nothing() -> None:
    """Its partial number is below ours: an old one."""
    site = alone(SpoSite)
    site.receive(spo(1, 1, (1, 1, 1), "x", dst=mask(0)), 1, 0)
    site.receive(stat(SpoSite, 1, 5, (1, 1, 1), pseq=(1, 1, 1)), 1, 0)
    assert site.treq[1] == 2
