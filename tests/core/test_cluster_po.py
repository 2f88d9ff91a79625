"""PO, rule by rule (PO-1 … PO-8), and its tests PO-T1 … PO-T6."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from roundelay.core.bundle import Bundle
from roundelay.core.cluster.config import DEFERRED, EAGER
from roundelay.core.cluster.pdu import Dt, Null, Retx, Stat
from roundelay.core.cluster.po import PoSite
from roundelay.core.cluster.to import ToSite
from roundelay.core.engine import EVERYONE, NEVER
from tests.core.cluster_net import MS, Net, Watcher, alone, pdu, sends, stat, text, watched

ACK = 5 * MS
WAIT = 30 * MS


def po(src: int, seq: int, ack: tuple[int, ...], message: str = "", **fields: Any) -> Any:
    return pdu(PoSite, src, seq, ack, message, **fields)


def submit(engine: Any, *messages: str, now: int = 0) -> None:
    for message in messages:
        engine.submit(Bundle.of(message.encode()), now)


# -- rules -----------------------------------------------------------------------------------------


def test_po_1_the_window_moves_with_the_slowest_member() -> None:
    site = alone(PoSite, window=3)
    submit(site, *"abcdef")
    assert [p.seq for _, p in sends(site)] == [1, 2, 3]
    site.receive(po(1, 1, (4, 1, 1)), 1, 0)
    assert not sends(site)
    site.receive(po(2, 1, (3, 1, 1)), 2, 0)  # minAL = 3
    assert [p.seq for _, p in sends(site)] == [4, 5]


def test_po_2_a_pdu_tells_what_its_sender_expects_and_joins_the_sending_log() -> None:
    site = alone(PoSite)
    site.receive(po(1, 1, (1, 1, 1), "x"), 1, 0)
    submit(site, "y")
    ((dst, y),) = sends(site)
    assert dst == EVERYONE
    assert y == Dt(epoch=0, src=0, seq=1, ack=(1, 2, 1), buf=64 * 9 - 1, bundle=Bundle.of(b"y"))
    assert site.seq == 2
    assert site.sl == {1: y}
    assert list(site.rrl[0]) == [y]  # accepted by its sender at once
    assert site.treq[0] == 2


@pytest.mark.parametrize(
    "arriving, accepted",
    [
        (po(1, 1, (1, 1, 1), "x"), True),
        (po(1, 1, (1, 1, 2), "x"), False),  # it acknowledges what we have not got
        (po(1, 2, (1, 2, 1), "x"), False),  # the second one
        (po(1, 1, (2, 1, 1), "x"), True),  # an acknowledgement of ours
    ],
)
def test_po_3_the_receipt_condition(arriving: Any, accepted: bool) -> None:
    site = alone(PoSite)
    submit(site, "mine")
    site.receive(arriving, 1, 0)
    assert (site.treq[1] == 2) is accepted
    assert bool(site.blocked[1]) is not accepted


def test_po_4_acceptance_notes_what_the_pdu_says() -> None:
    site = alone(PoSite)
    submit(site, "mine")
    x = po(1, 1, (2, 1, 1), "x", buf=33)
    site.receive(x, 1, 0)
    assert site.treq == [2, 2, 1]
    assert site.al[0] == [2, 2, 1]  # 1 has our first one
    assert site.al[1] == [2, 2, 1]  # TR-3, TR-2
    assert site.bufs[1] == 33
    assert list(site.rrl[1]) == [x]


def test_po_4_acceptance_lets_blocked_pdus_in() -> None:
    site = alone(PoSite, deliver_at="accepted")
    site.receive(po(1, 1, (1, 1, 2), "after y"), 1, 0)
    site.receive(po(1, 2, (1, 2, 2), "and on"), 1, 0)
    assert not site.take().deliveries
    site.receive(po(2, 1, (1, 1, 1), "y"), 2, 0)
    assert [text(d.bundle) for d in site.take().deliveries] == ["y", "after y", "and on"]
    assert not any(site.blocked)


def test_po_5_a_duplicate_changes_nothing() -> None:
    site = alone(PoSite)
    x = po(1, 1, (1, 1, 1), "x")
    site.receive(x, 1, 0)
    before = (list(site.treq), [list(row) for row in site.al], site.usage())
    site.receive(x, 1, 0)
    assert (list(site.treq), [list(row) for row in site.al], site.usage()) == before
    assert not site.drops


def test_po_5_a_hole_in_the_numbers_is_asked_for_at_once() -> None:
    site = alone(PoSite)
    site.receive(po(1, 4, (1, 4, 1), "d"), 1, 0)
    assert sends(site) == [(1, Retx(0, 0, 1, 1, 3))]
    site.receive(po(1, 4, (1, 4, 1), "d"), 1, 1)
    site.receive(po(1, 5, (1, 5, 1), "e"), 1, 1)  # asks again, but not for what it holds
    assert sends(site) == [(1, Retx(0, 0, 1, 1, 3))]
    assert sorted(site.blocked[1]) == [4, 5]


def test_po_5_what_others_acknowledge_is_waited_for_before_it_is_asked_for() -> None:
    site = alone(PoSite)
    site.receive(po(1, 1, (1, 1, 3), "x"), 1, 0)
    assert not sends(site)
    assert site.deadline == WAIT
    site.on_timer(WAIT)
    assert sends(site) == [(2, Retx(0, 0, 2, 1, 2))]


def test_po_5_what_was_merely_late_is_not_asked_for() -> None:
    site = alone(PoSite)
    site.receive(po(1, 1, (1, 1, 2), "x"), 1, 0)
    site.receive(po(2, 1, (1, 1, 1), "y"), 2, WAIT - 1)
    site.on_timer(WAIT)
    assert not [p for _, p in sends(site) if isinstance(p, Retx)]
    assert not site.gaps


def test_po_5_what_is_held_is_not_asked_for() -> None:
    """x waits for something of 2; that y follows x is no news."""
    site = alone(PoSite)
    site.receive(po(1, 1, (1, 1, 2), "x"), 1, 0)
    site.receive(po(1, 2, (1, 2, 2), "y"), 1, 0)
    site.receive(po(1, 5, (1, 5, 2), "b"), 1, 0)
    assert sends(site) == [(1, Retx(0, 0, 1, 3, 4))]


def test_po_5_a_late_channel_causes_no_request() -> None:
    """The MC service: 2 hears 0 later than 1, so 1's acknowledgement comes first."""
    net = Net(PoSite, 3)
    net.slow[0, 2] = 20 * MS
    net.submit(0, "x")
    net.settle()
    net.check()
    assert not net.pdus(Retx, Stat)


def test_po_6_pre_acknowledged_is_what_everybody_is_known_to_have() -> None:
    site = alone(PoSite)
    x, y = po(1, 1, (1, 1, 1), "x"), po(1, 2, (1, 2, 1), "y")
    site.receive(x, 1, 0)
    site.receive(y, 1, 0)
    assert not site.prl[1]
    site.receive(po(2, 1, (1, 2, 1)), 2, 0)  # 2 has x, not y
    assert list(site.prl[1]) == [x]
    assert list(site.rrl[1]) == [y]
    assert site.pal[1] == [1, 2, 1]  # x itself is known to be known to its sender
    assert site.pal[0] == [1, 1, 1]


def test_po_6_a_pre_acknowledged_vector_feeds_pal() -> None:
    site = alone(PoSite)
    site.receive(po(1, 1, (1, 1, 1), "x"), 1, 0)
    site.receive(po(2, 1, (1, 2, 1)), 2, 0)
    assert site.pal[1][2] == 1
    site.receive(po(1, 2, (1, 2, 2)), 1, 0)  # 1 has 2's acknowledgement, and so has everybody
    assert site.pal[1][2] == 2
    assert site.pal[1][0] == 1


def test_po_7_acknowledged_is_what_all_acknowledgements_of_it_are_pre_acknowledged_for() -> None:
    site = alone(PoSite)
    site.receive(po(1, 1, (1, 1, 1), "x"), 1, 0)
    site.receive(po(2, 1, (1, 2, 1)), 2, 0)
    site.on_timer(ACK)
    site.receive(po(1, 2, (2, 2, 2)), 1, ACK)
    assert not site.take().deliveries  # who knows whether 2 has ours
    site.receive(po(2, 2, (2, 2, 1)), 2, ACK)
    (delivery,) = site.take().deliveries
    assert (delivery.source, delivery.number, delivery.seq) == (1, 1, -1)
    assert site.pal[1] == [2, 2, 2]
    assert site.waiting_delivery == 0


def test_po_8_only_the_source_repeats_and_by_broadcast() -> None:
    net = Net(PoSite, 4)
    lost = net.lose(Dt, src=0, dst=3, times=1)
    net.submit(0, "x")
    net.settle()
    net.check()
    assert len(lost.lost) == 1
    first, second = (sent for sent in net.sent if type(sent.pdu) is Dt)
    assert (first.src, second.src, second.dst) == (0, 0, EVERYONE)
    assert second.pdu == first.pdu
    assert [p.by for p in net.pdus(Retx)] == [3]


# -- PO-T1, PO-T2: random runs ---------------------------------------------------------------------


def random_run(seed: int, kind: type[Any] = PoSite) -> tuple[Net, Watcher]:
    rng = Random(f"po/{seed}")
    sites = rng.choice([2, 3, 4, 6])
    net = Net(
        watched(kind),
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
        net.submit(rng.randrange(sites), f"{k}")
        net.run(rng.randrange(20 * MS))
    net.settle()
    return net, watcher


@pytest.mark.parametrize("seed", range(30))
def test_po_t1_po_t2_random_runs_keep_order_and_agreement_and_phases_mean_what_they_say(
    seed: int,
) -> None:
    """PO-T1: FIFO, AGREE, INTEG and QUIET under loss up to 30 %.

    PO-T2: pre-acknowledged somewhere, so accepted everywhere; acknowledged somewhere, so
    everybody could pre-acknowledge it (`Watcher`); AL and PAL never fall.
    """
    net, watcher = random_run(seed)
    net.check()
    assert net.silent
    members = len(net.group)
    assert watcher.stages["acknowledged"] == members * len(net.firsts(Dt))
    assert watcher.stages["preacknowledged"] >= watcher.stages["acknowledged"]


# -- PO-T3 … PO-T6 ---------------------------------------------------------------------------------


@pytest.mark.parametrize("sites", range(3, 13))
def test_po_t3_an_isolated_broadcast_costs_2n_or_n_squared_less_n_plus_1(sites: int) -> None:
    for policy, cost in ((DEFERRED, 2 * sites), (EAGER, sites * sites - sites + 1)):
        net = Net(PoSite, sites, policy=policy)
        for source in (0, sites - 1):
            before = len(net.sent)
            net.submit(source, f"from {source}")
            net.settle()
            assert len(net.sent) - before == cost
            assert net.kinds(before)["Dt"] == 1
        net.check()


def test_po_t3_two_members_need_three_pdus() -> None:
    for policy in (DEFERRED, EAGER):
        net = Net(PoSite, 2, policy=policy)
        net.submit(1, "x")
        net.settle()
        net.check()
        assert len(net.sent) == 3


@pytest.mark.parametrize("sites", [2, 3, 6])
def test_po_t4_with_a_window_of_one_all_may_send_at_the_same_moment(sites: int) -> None:
    net = Net(PoSite, sites, window=1)
    for round_ in range(3):
        for site in range(sites):
            net.submit(site, f"{site}.{round_}")
    net.settle()
    net.check()
    assert not net.pdus(Stat)  # no poll had to help


@pytest.mark.parametrize("lost_at", [(1,), (1, 2), (1, 2, 3)])
def test_po_t5_the_last_pdu_lost_at_one_or_all_receivers_is_repaired(
    lost_at: tuple[int, ...],
) -> None:
    net = Net(PoSite, 4)
    net.submit(0, "first")
    net.settle()
    for receiver in lost_at:
        net.lose(Dt, src=0, dst=receiver, times=1)
    net.submit(0, "last")
    net.settle()
    net.check()
    assert [text(p.bundle) for p in net.pdus(Dt)].count("last") == 2


def test_po_t5_a_lost_last_null_is_repaired() -> None:
    """Nobody knows of it but its sender, who still needs it: 1's second acknowledgement."""
    net = Net(PoSite, 3)
    lost = net.lose(lambda p: isinstance(p, Null) and p.seq == 2, src=1)
    net.submit(0, "x")
    net.run(50 * MS)
    assert len(lost.lost) == 2
    assert not net.log(2)
    net.heal()
    net.settle()
    net.check()


def test_po_t6_two_members_may_deliver_different_sources_in_different_orders() -> None:
    """Under PO; never under TO, on the same networks."""
    orders: dict[type[Any], set[int]] = {PoSite: set(), ToSite: set()}
    for kind, seen in orders.items():
        for seed in range(20):
            net = Net(kind, 3, jitter_ns=20 * MS, seed=seed)
            net.submit(0, "from 0")
            net.submit(1, "from 1")
            net.settle()
            net.check()
            seen.add(len({tuple(net.log(site)) for site in net.group}))
    assert orders == {PoSite: {1, 2}, ToSite: {1}}


# -- the rest --------------------------------------------------------------------------------------


def test_bundling_gathers_what_waits_up_to_the_largest_payload() -> None:
    site = alone(PoSite, window=1, bundle=True, max_payload=10)
    submit(site, "first", "abcd", "efgh", "ij", "k", "l")
    site.take()
    for k in (1, 2):
        site.receive(po(k, 1, (2, 1, 1)), k, 0)
    ((_, second),) = sends(site)
    assert list(second.bundle) == [b"abcd", b"efgh", b"ij"]
    for k in (1, 2):
        site.receive(po(k, 2, (3, 1, 1)), k, 0)
    assert [list(p.bundle) for _, p in sends(site)] == [[b"k", b"l"]]


def test_members_may_have_any_numbers() -> None:
    net = Net(PoSite, (40, 7, 300))
    net.submit(40, "x")
    net.submit(7, "y")
    net.settle()
    net.check()
    assert {got.source for got in net.got[300]} == {40, 7}


def test_a_poll_whose_sender_lacks_what_is_no_longer_kept_gets_a_stat() -> None:
    site = alone(PoSite)
    submit(site, "x")
    for k in (1, 2):
        site.receive(po(k, 1, (2, 1, 1)), k, 0)
    sends(site)
    site.receive(stat(PoSite, 1, 2, (1, 2, 1), poll=True), 1, 0)
    ((dst, answer),) = sends(site)
    assert (dst, type(answer)) == (1, Stat)


def test_timers_before_their_time_do_nothing() -> None:
    site = alone(PoSite)
    site.receive(po(1, 1, (1, 1, 2), "x"), 1, 0)
    submit(site, "y")
    sends(site)
    site.on_timer(1)
    assert not sends(site)
    assert site.deadline == WAIT
    idle = alone(PoSite)
    idle.on_timer(10**12)
    assert not idle.take()
    assert idle.deadline == NEVER
