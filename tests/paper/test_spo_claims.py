"""What Nakamura, Terauchi and Takizawa claim of the SPO protocol, claim by claim.

Each test ends with a comment naming the section.  Where the paper has to be corrected to hold, the
test says so; docs/cluster.md lists all deviations.
"""

from __future__ import annotations

from collections import defaultdict
from random import Random
from typing import Any

import pytest

from roundelay.core.bundle import Bundle
from roundelay.core.cluster.pdu import SpoDt, SpoNull, SpoRetx, SpoStat
from roundelay.core.cluster.spo import SpoSite
from roundelay.core.engine import EVERYONE
from roundelay.sim.complexity import curve
from tests.core.cluster_net import MS, Net, Watcher, alone, mask, pdu, sends, stat, text, watched

WAIT = 30 * MS


def spo(src: int, seq: int, ack: tuple[int, ...], message: str = "", **fields: Any) -> Any:
    return pdu(SpoSite, src, seq, ack, message, **fields)


def submit(site: Any, message: str, *to: int) -> None:
    site.submit(Bundle.of(message.encode()), 0, to)


def busy_run(
    kind: type[Any] = SpoSite, *, loss: float = 0.15, seed: int = 1, sites: int = 4
) -> Net:
    """Everybody sends, to anybody; copies get lost, and the network falls silent again."""
    rng = Random(f"spo/{seed}")
    net = Net(watched(kind), sites, loss=loss, jitter_ns=8 * MS, seed=seed)
    Watcher(net)
    for k in range(50):
        to = rng.sample(range(sites), rng.randint(1, sites))
        net.submit(rng.randrange(sites), f"{k}", to=to)
        net.run(5 * MS)
    net.settle()
    return net


# -- 1, 2: the service -----------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_every_entity_receives_all_and_only_the_pdus_destined_to_it(seed: int) -> None:
    net = busy_run(seed=seed)
    for site in net.group:
        meant = {message for _, message, to in net.submitted if site in to}
        assert sorted(net.log(site)) == sorted(meant)
    # §1, §2


@pytest.mark.parametrize("seed", range(5))
def test_pdus_of_one_entity_arrive_in_the_order_in_which_they_were_sent(seed: int) -> None:
    net = busy_run(seed=seed)
    for site in net.group:
        for source in net.group:
            sent = [m for origin, m, to in net.submitted if origin == source and site in to]
            assert net.log(site, source) == sent
    # §1, §2


def test_a_cluster_has_two_entities_or_more() -> None:
    for sites in (2, 3, 12):
        net = Net(SpoSite, sites)
        net.submit(0, "p", to=[sites - 1])
        net.settle()
        net.check()
    # §2


# -- 3: three phases -------------------------------------------------------------------------------


def test_a_pdu_is_accepted_then_pre_acknowledged_then_acknowledged() -> None:
    """p from 1 to 0 and 2, at 0."""
    site = alone(SpoSite, sites=4)
    p = spo(1, 1, (1, 1, 1, 1), "p", dst=mask(0, 2))
    site.receive(p, 1, 0)
    assert (list(site.rrl[1]), list(site.prl[1])) == ([p], [])
    site.on_timer(5 * MS)
    site.receive(spo(2, 1, (1, 2, 1, 1), dst=mask(0, 1)), 2, 5 * MS)  # an ACK of p
    assert (list(site.rrl[1]), list(site.prl[1])) == ([], [p])
    later: dict[str, Any] = {"pseq": (2, 2, 2, 2), "dst": mask(0, 1, 2)}
    site.receive(spo(1, 2, (2, 2, 2, 1), **later), 1, 5 * MS)  # ACKs of the PDUs with ACKs of p
    assert not site.take().deliveries
    site.receive(spo(2, 2, (2, 2, 2, 1), **later), 2, 5 * MS)
    assert [text(d.bundle) for d in site.take().deliveries] == ["p"]
    # §3


@pytest.mark.parametrize("seed", range(4))
def test_pre_acknowledged_means_that_every_destination_has_accepted_it(seed: int) -> None:
    net = busy_run(loss=0.3, seed=seed)
    assert net[0].watcher.stages["preacknowledged"] >= 50
    # §3; the watcher compares each step with what the destinations hold


@pytest.mark.parametrize("seed", range(4))
def test_acknowledged_means_that_every_destination_could_pre_acknowledge_it(seed: int) -> None:
    net = busy_run(loss=0.25, seed=20 + seed)
    assert net[0].watcher.stages["acknowledged"] >= 50
    # §3; by carriers, where the paper prints PAL


def test_each_receipt_log_is_divided_into_three_continuous_parts() -> None:
    class Looked(SpoSite):
        def advance(self, now: int) -> None:
            super().advance(now)
            for j in self.everyone:
                numbers = [p.seq for p in (*self.prl[j], *self.rrl[j])]
                assert numbers == sorted(set(numbers))

    busy_run(Looked).check()
    # §3


def test_no_entity_is_special() -> None:
    for source in range(4):
        net = Net(SpoSite, 4)
        net.submit(source, "p", to=[k for k in range(4) if k != source])
        net.settle()
        assert [len(net.pdus(src=site)) for site in net.group] == [2, 2, 2, 2]
    # §3, fully distributed control


# -- 3.1: fields and variables ---------------------------------------------------------------------


def test_total_numbers_count_all_pdus_and_partial_numbers_those_for_one_entity() -> None:
    net = busy_run(loss=0.2)
    for source in net.group:
        sent = {p.seq: p for p in net.pdus(SpoDt, SpoNull, src=source)}
        assert sorted(sent) == list(range(1, len(sent) + 1))
        for k in net.group:
            number = 1
            for seq in sorted(sent):
                assert sent[seq].pseq[k] == number
                number += sent[seq].dst >> k & 1
    # §3.1, TSEQ, PSEQ_j


def test_a_destination_has_to_accept_and_others_can_discard() -> None:
    site = alone(SpoSite)
    site.receive(spo(1, 1, (1, 1, 1), "for us", dst=mask(0)), 1, 0)
    site.receive(spo(2, 1, (1, 1, 1), "for 1", dst=mask(1)), 2, 0)
    assert [text(p.bundle) for p in site.in_logs()] == ["for us"]
    assert site.debts.keys() == {(1, 1, 1)}
    # §3.1, DST


def test_ack_j_says_that_the_sender_has_everything_below_it_that_was_meant_for_it() -> None:
    """Checked for every PDU at the moment it is sent."""
    accepted: dict[int, set[tuple[int, int]]] = defaultdict(set)
    sent: dict[tuple[int, int], Any] = {}

    class Honest(SpoSite):
        def accept(self, pdu: Any, now: int) -> None:
            accepted[self.index].add((pdu.src, pdu.seq))
            super().accept(pdu, now)

        def make(self, *arguments: Any) -> Any:
            pdu = super().make(*arguments)
            for j, number in enumerate(pdu.ack):
                for seq in range(1, number):
                    if sent[j, seq].dst >> self.index & 1:
                        assert (j, seq) in accepted[self.index]
            sent[self.index, pdu.seq] = pdu
            return pdu

    busy_run(Honest, loss=0.25).check()
    # §3.1, ACK_j; there without "that was meant for it"


def test_everything_below_the_minimum_of_al_is_everywhere() -> None:
    """Over the destinations of each PDU."""
    accepted: dict[int, set[tuple[int, int]]] = defaultdict(set)
    sent: dict[tuple[int, int], Any] = {}

    class Looked(SpoSite):
        def accept(self, pdu: Any, now: int) -> None:
            sent[pdu.src, pdu.seq] = pdu
            accepted[self.index].add((pdu.src, pdu.seq))
            super().accept(pdu, now)
            for j in self.everyone:
                for k in self.everyone:
                    for seq in range(1, self.al[j][k]):
                        if sent[j, seq].dst >> k & 1:
                            assert (j, seq) in accepted[k]

    net = Net(Looked, 3, loss=0.2, seed=9)
    for k in range(15):
        net.submit(k % 3, f"{k}", to=[(k + 1) % 3, (k // 3) % 3])
        net.run(5 * MS)
    net.settle()
    net.check()
    # §3.1, AL_jk, minAL_j


def test_at_the_start_everybody_expects_number_one() -> None:
    site = alone(SpoSite)
    assert (site.seq, site.pseq, site.treq, site.preq) == (1, [1] * 3, [1] * 3, [1] * 3)
    assert site.al == [[1] * 3] * 3
    # §3.1


# -- 3.2: transmission and acceptance --------------------------------------------------------------


def test_transmission_stamps_numbers_acknowledgements_and_broadcasts() -> None:
    site = alone(SpoSite)
    site.receive(spo(2, 1, (1, 1, 1), "q", dst=mask(0)), 2, 0)
    submit(site, "p", 1)
    ((dst, p),) = sends(site)
    assert dst == EVERYONE
    assert (p.seq, p.pseq, p.ack, p.dst) == (1, (1, 1, 1), (1, 1, 2), mask(1))
    assert (site.seq, site.pseq) == (2, [1, 2, 1])
    assert list(site.sl.values()) == [p]
    # §3.2, transmission procedure


def test_an_entity_sends_only_if_the_window_is_open() -> None:
    for window, free, under_way in ((3, 576, 3), (8, 2 * 9 * 2 + 1, 2), (8, 0, 1)):
        site = alone(SpoSite, window=window)
        site.receive(spo(2, 1, (1, 1, 1), buf=free), 2, 0)
        for name in "abcdef":
            submit(site, name, 1)
        assert len(sends(site)) == under_way
    # §3.2, min(W, minBUF / (H·n²)); over the destinations of outstanding data, at least 1


def test_acceptance_needs_the_right_partial_number_and_known_acknowledgements() -> None:
    for arriving, accepted in (
        (spo(1, 1, (1, 1, 1), "p", dst=mask(0)), True),
        (spo(1, 7, (1, 1, 1), "p", dst=mask(0)), True),
        (spo(1, 1, (1, 1, 1), "p", dst=mask(0), pseq=(2, 1, 1)), False),
        (spo(1, 1, (1, 1, 2), "p", dst=mask(0)), False),
    ):
        site = alone(SpoSite)
        site.receive(arriving, 1, 0)
        assert bool(site.in_logs()) is accepted
        assert bool(site.blocked[1]) is not accepted
    # §3.2, accept procedure; with a lower bound for TSEQ, and early PDUs are kept


def test_treq_becomes_the_number_after_the_accepted_pdu() -> None:
    site = alone(SpoSite)
    site.receive(spo(1, 4, (1, 1, 1), "p", dst=mask(0)), 1, 0)
    assert (site.treq[1], site.preq[1]) == (5, 2)
    # §3.2; p.TSEQ there, by which nothing would ever be acknowledged


# -- 3.3: pre-acknowledgement and acknowledgement --------------------------------------------------


def test_pre_acknowledgement_takes_the_minimum_over_the_destinations_of_the_pdu() -> None:
    site = alone(SpoSite, sites=5)
    ones = (1,) * 5
    site.receive(spo(1, 1, ones, "p", dst=mask(0, 2, 3)), 1, 0)
    site.receive(spo(2, 1, (1, 2, 1, 1, 1)), 2, 0)
    assert not site.prl[1]
    site.receive(spo(3, 1, (1, 2, 1, 1, 1)), 3, 0)  # 4 has not been asked
    assert [p.seq for p in site.prl[1]] == [1]
    # §3.3, minAL_j(p)


def test_both_procedures_take_the_top_of_the_log_first() -> None:
    """The second PDU qualifies at once, but its source sent another one before."""
    site = alone(SpoSite, sites=4)
    site.receive(spo(1, 1, (1,) * 4, "p", dst=mask(0, 2)), 1, 0)
    site.receive(spo(1, 2, (1, 2, 1, 1), "q", dst=mask(0), pseq=(2, 1, 2, 1)), 1, 0)
    assert [p.seq for p in site.rrl[1]] == [1, 2]
    # §3.3


def test_for_pdus_to_everybody_carriers_and_pal_say_the_same() -> None:
    """In test_cluster_errata both rules are compared at every step; here what comes of it."""
    net = Net(watched(SpoSite), 4, loss=0.1, seed=3)
    Watcher(net)
    for k in range(20):
        net.submit(k % 4, f"{k}")
        net.run(6 * MS)
    net.settle()
    net.check()
    # §3.3, PAL


# -- 3.4: failures ---------------------------------------------------------------------------------


def test_lc1_a_hole_in_the_partial_numbers_shows_a_loss() -> None:
    for dst in (mask(0), mask(2)):  # by any PDU of that source, for us or not
        site = alone(SpoSite)
        site.receive(spo(1, 3, (1, 1, 1), "p", dst=dst, pseq=(3, 1, 1)), 1, 0)
        assert sends(site) == [(1, SpoRetx(epoch=0, by=0, src=1, lo=1, hi=2))]
    # §3.4, LC1


def test_lc2_an_acknowledgement_of_what_we_have_not_seen_shows_one_perhaps() -> None:
    site = alone(SpoSite)
    q = spo(2, 1, (1, 3, 1), "q", dst=mask(0))
    site.receive(q, 2, 0)
    assert site.blocked[2] == {1: q}
    assert not sends(site)  # a request might be meaningless
    # §3.4, LC2


def test_under_lc2_a_pdu_with_the_expected_partial_number_settles_it() -> None:
    site = alone(SpoSite)
    site.receive(spo(2, 1, (1, 3, 1), "q", dst=mask(0)), 2, 0)
    site.receive(spo(1, 3, (1, 1, 1), "f", dst=mask(2)), 1, MS)
    assert not any(site.blocked)
    site.on_timer(WAIT)
    assert not [p for _, p in sends(site) if isinstance(p, (SpoRetx, SpoStat))]
    # §3.4


def test_under_lc2_a_pdu_with_a_larger_partial_number_calls_for_a_request() -> None:
    site = alone(SpoSite)
    site.receive(spo(2, 1, (1, 3, 1), "q", dst=mask(0)), 2, 0)
    site.receive(spo(1, 3, (1, 1, 1), "f", dst=mask(2), pseq=(2, 1, 3)), 1, MS)
    assert sends(site) == [(1, SpoRetx(epoch=0, by=0, src=1, lo=1, hi=1))]
    # §3.4


def test_under_lc2_a_member_waits_for_a_while_and_then_asks_where_the_source_stands() -> None:
    site = alone(SpoSite)
    site.receive(spo(2, 1, (1, 3, 1), "q", dst=mask(0)), 2, 0)
    site.on_timer(WAIT)
    ((_, poll),) = sends(site)
    assert (type(poll), poll.poll) == (SpoStat, True)
    site.receive(stat(SpoSite, 1, 3, (1, 1, 1), pseq=(1, 1, 3)), 1, WAIT)
    assert not any(site.blocked)
    # §3.4, "for a while"; what to do then the paper leaves open


def test_only_lost_pdus_are_sent_again() -> None:
    """Selective retransmission: of ten PDUs one is lost, and one is sent again."""
    net = Net(SpoSite, 3)
    net.lose(lambda p: isinstance(p, SpoDt) and p.seq == 4, src=0, dst=1, times=1)
    for k in range(8):
        net.submit(0, f"{k}", to=[1, 2])
    net.settle()
    net.check()
    again = [p.seq for p in net.pdus(SpoDt)]
    assert sorted(again) == sorted([*{p.seq for p in net.pdus(SpoDt)}, 4])
    # §3.4


def test_a_request_names_the_source_and_the_least_and_largest_partial_number() -> None:
    net = Net(SpoSite, 3)
    net.lose(lambda p: isinstance(p, SpoDt) and text(p.bundle) in "bcd", src=0, dst=1, times=3)
    for name, to in (("a", [1]), ("b", [1]), ("x", [2]), ("c", [1, 2]), ("d", [1]), ("e", [1])):
        net.submit(0, name, to=to)
    net.run(2 * MS)
    first, *_ = net.pdus(SpoRetx)
    assert (first.by, first.src, first.lo) == (1, 0, 2)
    net.settle()
    net.check()
    assert {(p.lo, p.hi) for p in net.pdus(SpoRetx)} <= {(2, 2), (2, 3), (2, 4)}
    # §3.4


@pytest.mark.parametrize("seed", range(10))
def test_nobody_asks_for_what_was_not_destined_to_it(seed: int) -> None:
    net = busy_run(loss=0.3, seed=40 + seed)
    meant = {
        (p.src, k, p.pseq[k]) for p in net.pdus(SpoDt, SpoNull) for k in net.group if p.dst >> k & 1
    }
    requests = net.pdus(SpoRetx)
    assert requests
    for request in requests:
        numbers = range(request.lo, request.hi + 1)
        assert all((request.src, request.by, number) in meant for number in numbers)
    # §3.4


# -- 4: performance --------------------------------------------------------------------------------


def delay_in_slots(
    sites: int, destinations: int, *, loss: float = 0.0, seed: int = 0, **medium: Any
) -> float:
    """Until an isolated PDU to that many others is acknowledged at all of them, in PDU times."""
    net = Net(
        SpoSite, sites, ack_ns=0, wait_ns=sites * MS, stat_ns=(2 * sites + 3) * MS,
        attempts=10_000, loss=loss, seed=seed, **medium,
    )  # fmt: skip
    to = range(1, destinations + 1)
    net.submit(0, "p", to=to)
    net.run_until(lambda: all(net.got[site] for site in to))
    return net.now / MS


def test_on_an_ethernet_the_delay_is_linear_in_the_number_of_entities() -> None:
    for sites in range(3, 13):
        net = Net(SpoSite, sites, bus=True, ack_ns=0, stat_ns=1_000 * MS)
        net.submit(0, "p")
        net.run_until(lambda net=net: all(net.got.values()))  # type: ignore[misc]
        assert net.now == 2 * sites * MS
    # §4, Fig. 1


def test_on_an_ethernet_the_delay_depends_on_the_destinations_not_on_the_cluster() -> None:
    for destinations in range(2, 6):
        delays = {delay_in_slots(sites, destinations, bus=True) for sites in (6, 9, 12)}
        assert delays == {2 * (destinations + 1)}
    # §4, Fig. 1, for selective destinations


def test_on_parallel_channels_the_delay_is_three_rounds() -> None:
    for sites in (3, 6, 12):
        assert delay_in_slots(sites, sites - 1) == 3
    # §4 with the other paper's §4


@pytest.mark.parametrize("sites, runs", [(3, 200), (5, 100)])
def test_the_delay_rises_with_the_probability_of_loss_and_ever_faster(
    sites: int, runs: int
) -> None:
    """Convex as far as so many runs can tell; `roundelay complexity` has the whole table."""
    losses = (0.0, 0.02, 0.1, 0.3)
    measured = [
        [delay_in_slots(sites, sites - 1, loss=loss, seed=seed, bus=True) for seed in range(runs)]
        for loss in losses
    ]
    found = curve(losses, measured, sites)
    assert found.slots[0] == 2 * sites
    assert found.rising
    assert found.convex
    assert max(found.bends) > 3
    # §4, Fig. 2
