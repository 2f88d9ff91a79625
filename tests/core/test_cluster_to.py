"""TO: channel mode (TO-1 … TO-5, TO-R1 … TO-R5), key mode, and the tests TO-T1 … TO-T7."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from random import Random
from typing import Any

import pytest

from roundelay.core.bundle import Bundle
from roundelay.core.cluster.channel import ToChannelSite
from roundelay.core.cluster.config import DEFERRED, EAGER
from roundelay.core.cluster.pdu import Dt, ToDt, ToNull, ToRetx, ToRst, ToStat
from roundelay.core.cluster.to import ToSite
from roundelay.core.engine import ACCEPTED, ACKNOWLEDGED, EVERYONE, PREACKNOWLEDGED
from roundelay.core.errors import ConfigError
from tests.core.cluster_net import MS, Net, Watcher, alone, mask, pdu, sends, stat, text, watched
from tests.core.sends import sends_of

ACK = 5 * MS
STAT = 100 * MS


def to(src: int, seq: int, ack: tuple[int, ...], message: str = "", **fields: Any) -> Any:
    return pdu(ToChannelSite, src, seq, ack, message, **fields)


def submit(engine: Any, *messages: str, now: int = 0) -> None:
    for message in messages:
        engine.submit(Bundle.of(message.encode()), now)


def rst(epoch: int, src: int, vec: tuple[int, ...], have: int = 0, done: int = 0) -> ToRst:
    return ToRst(epoch=epoch, src=src, vec=vec, have=have | 1 << src, done=done)


# -- channel mode: data ----------------------------------------------------------------------------


def test_to_1_the_own_pdu_is_received_when_the_channel_returns_it() -> None:
    site = alone(ToChannelSite)
    submit(site, "x")
    ((dst, x),) = sends(site)
    assert (dst, type(x), x.seq, x.ack) == (EVERYONE, ToDt, 1, (1, 1, 1))
    assert site.sl == {1: x}
    assert site.treq[0] == 1
    assert not site.received
    site.receive(x, 0, MS)
    assert site.treq[0] == 2
    assert list(site.received) == [x]


def test_to_1_nothing_is_sent_while_a_reset_is_under_way() -> None:
    site = alone(ToChannelSite)
    site.receive(rst(1, 1, (1, 1, 1)), 1, 0)
    sends(site)
    submit(site, "x")
    assert not sends(site)
    assert len(site.queue) == 1


def test_to_2_a_pdu_in_turn_is_accepted() -> None:
    site = alone(ToChannelSite)
    x = to(1, 1, (1, 1, 1), "x", buf=12)
    site.receive(x, 1, 0)
    assert site.treq == [1, 2, 1]
    assert site.al[1] == [2, 2, 1]
    assert site.bufs[1] == 12
    assert list(site.received) == [x]


def test_to_2_an_old_pdu_is_ignored() -> None:
    site = alone(ToChannelSite)
    x = to(1, 1, (1, 1, 1), "x")
    site.receive(x, 1, 0)
    site.receive(x, 1, 0)
    assert list(site.received) == [x]
    assert site.rst == -1


@pytest.mark.parametrize(
    "shows_a_loss",
    [
        to(1, 2, (1, 2, 1), "second of 1"),
        to(1, 1, (1, 1, 2), "after something of 2"),
    ],
)
def test_to_3_a_pdu_out_of_turn_proves_a_loss_and_starts_a_reset(shows_a_loss: Any) -> None:
    site = alone(ToChannelSite)
    site.receive(shows_a_loss, 1, 0)
    assert site.rst == 1
    assert sends(site) == [(EVERYONE, rst(1, 0, (1, 1, 1)))]
    assert not site.received


def test_to_4_the_log_is_delivered_in_channel_order() -> None:
    """y is acknowledged first, but stands behind x."""
    site = alone(ToChannelSite, sites=2)
    x, y = to(1, 1, (1, 1), "x"), to(1, 2, (1, 2), "y")
    submit(site, "mine")
    ((_, mine),) = sends(site)
    for arriving in (x, mine, y):
        site.receive(arriving, arriving.src, 0)
    assert list(site.ready) == [x]  # mine has been acknowledged by nobody
    assert list(site.received) == [mine, y]
    site.receive(to(1, 3, (2, 3)), 1, 0)
    assert [p.seq for p in site.ready] == [1, 1, 2]
    site.on_timer(ACK)
    ((_, null),) = sends(site)
    assert null.ack == (2, 4)
    site.receive(null, 0, ACK)
    site.receive(to(1, 4, (3, 4)), 1, ACK)
    out = site.take()
    assert [(d.seq, text(d.bundle)) for d in out.deliveries] == [(0, "x"), (1, "mine"), (2, "y")]
    assert site.waiting_delivery == 0


def test_to_5_a_member_that_waits_too_long_probes() -> None:
    site = alone(ToChannelSite)
    submit(site, "x")
    ((_, x),) = sends(site)
    site.receive(x, 0, 0)
    site.on_timer(STAT)
    ((dst, probe),) = sends(site)
    assert (dst, type(probe), probe.probe, probe.seq) == (EVERYONE, ToNull, True, 2)


def test_to_5_a_probe_is_answered_and_no_other_null_is() -> None:
    site = alone(ToChannelSite)
    site.receive(to(1, 1, (1, 1, 1)), 1, 0)
    assert not site.debts
    site.receive(to(1, 2, (1, 2, 1), probe=True), 1, 0)
    site.on_timer(ACK)
    ((_, answer),) = sends(site)
    assert (type(answer), answer.probe, answer.ack) == (ToNull, False, (1, 3, 1))


def test_to_5_the_own_probe_is_not_answered() -> None:
    site = alone(ToChannelSite)
    submit(site, "x")
    ((_, x),) = sends(site)
    site.receive(x, 0, 0)
    site.on_timer(STAT)
    ((_, probe),) = sends(site)
    site.receive(probe, 0, STAT)
    assert not site.debts


def test_to_5_a_lost_last_pdu_is_found_by_the_probe_and_never_repeated_within_an_epoch() -> None:
    net = Net(ToChannelSite, 3)
    for k in (1, 2):
        net.lose(ToDt, src=0, dst=k, times=1)
    net.submit(0, "last")
    net.settle()
    net.check(total=True)
    copies = net.pdus(ToDt)
    assert [(p.epoch, p.seq) for p in copies] == [(0, 1), (1, 1)]
    probes = [p for p in net.pdus(ToNull) if p.probe]
    assert len(probes) == 1
    keys = [(p.epoch, p.src, p.seq) for p in net.pdus(ToDt, ToNull)]
    assert len(keys) == len(set(keys))


@pytest.mark.parametrize("sites, attempts", [(2, 3), (2, 8), (3, 8), (3, 16), (4, 12)])
def test_to_5_a_member_that_talks_but_is_deaf_does_not_fill_the_sending_logs(
    sites: int, attempts: int
) -> None:
    """`collect` looks at every cap after every step; each probe of each member costs a place."""
    net = Net(ToChannelSite, sites, attempts=attempts, window=1)
    deaf = sites - 1
    net.lose(dst=deaf)
    net.submit(0, "x")
    net.submit(deaf, "y")
    net.settle()
    probes = [p for p in net.pdus(ToNull) if p.probe]
    assert max(Counter(p.src for p in probes).values()) == attempts
    assert net.pdus(ToRst)
    assert all(net.told(site, "broken") for site in net.group)


def test_to_5_a_member_that_has_accepted_none_of_r_probes_makes_for_a_reset() -> None:
    site = alone(ToChannelSite, sites=2, attempts=2)
    submit(site, "x")
    now = 0
    said: list[str] = []
    for number in range(1, 8):  # the other one talks all the time
        site.receive(to(1, number, (1, number)), 1, now)
        now += STAT
        site.on_timer(now)
        said += [type(p).__name__ for _, p in sends(site) if not isinstance(p, ToDt)]
    assert said == ["ToNull", "ToNull", "ToRst", "ToRst", "ToRst", "ToRst", "ToRst"]
    assert len(site.sl) == 3
    assert site.suspected == 0


def test_to_5_a_deaf_member_that_hears_again_joins_the_reset_and_all_is_delivered() -> None:
    net = Net(ToChannelSite, 3, attempts=4, window=1)
    net.lose(dst=2)
    net.submit(0, "x")
    net.submit(2, "y")
    net.run_until(lambda: net[0].rst == 1)
    net.run(20 * MS)
    net.heal()
    net.settle()
    net.check(total=True)
    assert {site.epoch for site in net} == {1}
    assert not any(net.told(site, "broken") for site in net.group)


def test_requests_and_stats_have_no_place_in_channel_mode() -> None:
    site = alone(ToChannelSite)
    site.receive(ToRetx(0, 1, 0, 1, 1), 1, 0)
    site.receive(stat(ToChannelSite, 1, 1, (1, 1, 1)), 1, 0)
    assert site.drops == {"request in channel mode": 1, "STAT in channel mode": 1}
    assert not sends(site)


def test_channel_mode_does_not_deliver_at_acceptance() -> None:
    """A reset may take an accepted PDU back."""
    with pytest.raises(ConfigError, match="deliver_at"):
        alone(ToChannelSite, deliver_at=ACCEPTED)


# -- channel mode: the failure point ---------------------------------------------------------------


def frozen(n: int = 3) -> Any:
    """Member 0: one PDU of 1 accepted, an own one on the channel, and then a loss."""
    site = alone(ToChannelSite, sites=n)
    ones = (1,) * n
    site.receive(to(1, 1, ones, "x"), 1, 0)
    submit(site, "mine")
    sends(site)
    site.receive(to(1, 3, (1, 3, *ones[2:]), "z"), 1, 0)
    return site


def test_to_r1_the_vector_says_what_we_hold_of_our_own_pdus_what_the_channel_returned() -> None:
    site = frozen()
    assert sends(site) == [(EVERYONE, rst(1, 0, (1, 2, 1)))]
    assert site.seq == 2


def test_to_r1_a_frozen_member_neither_accepts_nor_acknowledges() -> None:
    site = frozen()
    sends(site)
    site.receive(to(1, 2, (1, 2, 1), "y"), 1, 0)
    site.receive(site.sl[1], 0, 0)
    site.on_timer(ACK)
    assert site.treq == [1, 2, 1]
    assert not sends(site)


def test_to_r1_the_vector_is_repeated_with_jitter() -> None:
    site = frozen()
    sends(site)
    times = [0]
    site.on_timer(site.deadline)  # what was owed before the freeze is not paid
    assert not sends(site)
    for _ in range(5):
        times.append(site.deadline)
        site.on_timer(site.deadline)
        assert sends(site) == [(EVERYONE, rst(1, 0, (1, 2, 1)))]
    gaps = {b - a for a, b in pairwise(times)}
    assert all(30 * MS <= gap <= 45 * MS for gap in gaps)
    assert len(gaps) > 1


def test_to_r2_the_reset_of_another_member_is_joined() -> None:
    site = alone(ToChannelSite)
    site.receive(rst(1, 2, (1, 1, 1)), 2, 0)
    assert site.rst == 1
    assert set(site.vecs) == {0, 2}
    (_, said), *_ = sends(site)
    assert said.vec == (1, 1, 1)


def test_to_r2_resets_that_are_not_the_next_are_not_joined() -> None:
    site = alone(ToChannelSite)
    for epoch in (0, 2, 7):
        site.receive(rst(epoch, 1, (1, 1, 1)), 1, 0)
    assert site.rst == -1
    assert not sends(site)
    site = frozen()
    sends(site)
    site.receive(rst(2, 1, (1, 1, 1)), 1, 0)  # the one after ours, but we are not done
    assert site.rst == 1
    assert set(site.vecs) == {0}


def test_to_r3_with_all_vectors_a_member_says_it_is_done() -> None:
    site = frozen()
    sends(site)
    site.receive(rst(1, 1, (1, 4, 1)), 1, 0)
    assert not sends(site)
    site.receive(rst(1, 2, (2, 4, 1)), 2, 0)
    assert sends(site) == [
        (EVERYONE, ToRst(epoch=1, src=0, vec=(1, 2, 1), have=mask(0, 1, 2), done=mask(0)))
    ]
    assert site.epoch == 0


def test_to_r4_all_done_the_common_part_is_delivered_and_the_rest_sent_again() -> None:
    site = frozen()  # holds x
    sends(site)
    submit(site, "later")
    site.receive(rst(1, 1, (1, 4, 1)), 1, 0)  # 1 has not seen mine
    site.receive(rst(1, 2, (2, 2, 1), mask(0, 1, 2), mask(2)), 2, 0)
    sends(site)
    assert site.epoch == 0
    site.receive(rst(1, 1, (1, 4, 1), mask(0, 1, 2), mask(0, 1, 2)), 1, 0)
    assert (site.epoch, site.rst) == (1, -1)
    out = site.take()
    assert [(d.seq, text(d.bundle)) for d in out.deliveries] == [(0, "x")]
    assert [(p.epoch, p.seq, text(p.bundle)) for _, p in sends_of(out)] == [
        (1, 1, "mine"),
        (1, 2, "later"),
    ]
    assert site.treq == [1, 2, 1]
    assert site.al == site.pal == [[1, 1, 1], [2, 2, 2], [1, 1, 1]]


def test_to_r4_an_own_pdu_is_sent_again_though_all_the_others_hold_it() -> None:
    """The channel has not returned it, so only they know its place among what all hold."""
    site = frozen()
    sends(site)
    for src in (1, 2):
        site.receive(rst(1, src, (2, 2, 1), mask(0, 1, 2), mask(1, 2)), src, 0)
    out = site.take()
    assert [text(d.bundle) for d in out.deliveries] == ["x"]
    assert [(p.seq, text(p.bundle)) for _, p in sends_of(out) if isinstance(p, Dt)] == [(1, "mine")]
    assert (site.seq, site.treq) == (2, [1, 2, 1])


def test_to_r4_a_pdu_of_the_new_epoch_ends_the_reset_of_a_member_that_is_done() -> None:
    site = frozen()
    sends(site)
    new = to(2, 1, (1, 2, 1), "new", epoch=1)
    site.receive(new, 2, 0)
    assert site.epoch == 0  # not yet: a vector is missing
    for src in (1, 2):
        site.receive(rst(1, src, (2, 2, 1)), src, 0)
    site.receive(new, 2, 0)
    assert site.epoch == 1
    assert list(site.received) == [new]


def test_to_r4_at_an_earlier_stage_a_reset_delivers_what_was_not_yet_there() -> None:
    """Pre-acknowledged messages are not handed over twice, the others once."""
    site = alone(ToChannelSite, sites=2, deliver_at=PREACKNOWLEDGED)
    submit(site, "mine")
    ((_, mine),) = sends(site)
    site.receive(to(1, 1, (1, 1), "x"), 1, 0)
    site.receive(mine, 0, 0)
    assert not site.take().deliveries  # has 1 got its own copy?
    site.receive(to(1, 2, (1, 2)), 1, 0)
    assert [text(d.bundle) for d in site.take().deliveries] == ["x"]
    site.receive(to(1, 4, (1, 4), "z"), 1, 0)
    site.receive(rst(1, 1, (2, 5), mask(0, 1), mask(0, 1)), 1, 0)
    assert [text(d.bundle) for d in site.take().deliveries] == ["mine"]


def test_to_r5_a_finished_member_helps_one_that_lacks_its_part() -> None:
    site = frozen()
    for src in (1, 2):
        site.receive(rst(1, src, (2, 2, 1), mask(0, 1, 2), mask(1, 2)), src, 0)
    sends(site)
    site.receive(rst(1, 1, (2, 2, 1), have=mask(1, 2)), 1, 0)
    everyone = mask(0, 1, 2)
    answer = ToRst(epoch=1, src=0, vec=(1, 2, 1), have=everyone, done=everyone)
    assert sends(site) == [(1, answer)]
    site.receive(rst(1, 1, (2, 2, 1), have=everyone, done=mask(0, 1)), 1, 0)
    assert sends(site) == [(1, answer)]  # it does not know of 2, and we do
    site.receive(rst(1, 1, (2, 2, 1), have=everyone, done=everyone), 1, 0)
    assert not sends(site)


def test_the_own_reset_pdu_returned_by_the_channel_is_ignored() -> None:
    site = frozen()
    ((_, said),) = sends(site)
    site.receive(said, 0, 0)
    assert set(site.vecs) == {0}
    assert not sends(site)


# -- TO-T1, TO-T2: cost ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [ToSite, ToChannelSite])
@pytest.mark.parametrize("sites", range(3, 13))
def test_to_t1_to_t2_cost_of_an_isolated_broadcast(kind: type[Any], sites: int) -> None:
    for policy, cost in ((DEFERRED, 2 * sites), (EAGER, sites * sites - sites + 1)):
        net = Net(kind, sites, policy=policy, stat_ns=1_000 * MS)
        net.submit(sites // 2, "x")
        net.settle()
        net.check(total=True)
        assert len(net.sent) == cost


@pytest.mark.parametrize("kind", [ToSite, ToChannelSite])
def test_to_t1_two_members_need_three_pdus(kind: type[Any]) -> None:
    net = Net(kind, 2)
    net.submit(0, "x")
    net.settle()
    net.check(total=True)
    assert len(net.sent) == 3


@pytest.mark.parametrize("sites", range(3, 13))
def test_to_t1_three_rounds_in_parallel_2n_slots_one_after_another(sites: int) -> None:
    parallel = Net(ToSite, sites, ack_ns=0)
    parallel.submit(0, "x")
    parallel.settle()
    assert {got.time for log in parallel.got.values() for got in log} == {3 * MS}
    serial = Net(ToChannelSite, sites, ack_ns=0, stat_ns=10_000 * MS)
    serial.submit(0, "x")
    serial.settle()
    assert max(got.time for log in serial.got.values() for got in log) == 2 * sites * MS
    assert serial.free_at == 2 * sites * MS


# -- TO-T3 … TO-T6: channel mode under loss --------------------------------------------------------


@pytest.mark.parametrize("seed", range(30))
def test_to_t3_random_loss_on_the_bus_leaves_one_sequence_and_silence(seed: int) -> None:
    rng = Random(f"to-channel/{seed}")
    sites = rng.choice([2, 3, 4, 5])
    net = Net(
        watched(ToChannelSite),
        sites,
        loss=rng.choice([0.02, 0.05, 0.1, 0.2]),
        slot_ns=rng.choice([MS // 10, MS]),
        seed=seed,
        ack_ns=rng.choice([0, 1, 5]) * MS,
        window=rng.choice([1, 2, 8]),
        policy=rng.choice([DEFERRED, DEFERRED, EAGER]),
        bundle=rng.random() < 0.3,
        boot=rng.choice(["static", "dynamic"]),
        attempts=40,
    )
    Watcher(net)
    for k in range(30):
        net.submit(rng.randrange(sites), f"{k}")
        net.run(rng.randrange(20 * MS))
    net.settle()
    net.check(total=True)
    assert len({site.epoch for site in net}) == 1
    keys = [(p.epoch, p.src, p.seq) for p in net.pdus(ToDt, ToNull)]
    assert len(keys) == len(set(keys)), "sent twice in one epoch"


def test_to_t4_crossing_losses_end_in_one_log() -> None:
    """0 loses q, 1 loses p, 2 loses both."""
    net = Net(ToChannelSite, 5)
    net.lose(lambda p: p.bundle.sizes and text(p.bundle) == "q", dst=0, times=1)
    net.lose(lambda p: p.bundle.sizes and text(p.bundle) == "p", dst=1, times=1)
    net.lose(ToDt, dst=2, times=2)
    net.submit(3, "p")
    net.submit(4, "q")
    net.settle()
    net.check(total=True)
    assert {site.epoch for site in net} == {1}
    assert [got.text for got in net.got[2]] == ["p", "q"]


def test_to_t5_a_member_that_freezes_with_its_own_pdu_on_the_channel_loses_nothing() -> None:
    """0 has queued "mine" behind b when b shows it that it lost a; the others accept mine."""
    net = Net(ToChannelSite, 3)
    net.lose(ToDt, src=1, dst=0, times=1)
    net.submit(1, "a")
    net.submit(1, "b")
    net.run(MS + MS // 2)
    net.submit(0, "mine")
    net.run_until(lambda: net[0].rst == 1)
    assert net[0].treq[0] == 1
    assert net[0].seq == 2
    net.settle()
    net.check(total=True)
    vectors = {p.src: p.vec for p in net.pdus(ToRst) if p.epoch == 1}
    assert vectors == {0: (1, 1, 1), 1: (2, 3, 1), 2: (2, 3, 1)}
    assert sorted(text(p.bundle) for p in net.pdus(ToDt)) == ["a", "a", "b", "b", "mine", "mine"]
    assert sorted(net.log(2)) == ["a", "b", "mine"]


@pytest.mark.parametrize("stage", [PREACKNOWLEDGED, ACKNOWLEDGED])
def test_to_t5_a_member_that_loses_a_copy_of_its_own_leaves_one_order(stage: str) -> None:
    """0 and 1 send at once, first 0; it does not get its own back, but gets 1's."""
    net = Net(ToChannelSite, 3, deliver_at=stage)
    lost = net.lose(ToDt, src=0, dst=0, times=1)
    net.submit(0, "m1")
    net.submit(1, "m2")
    net.settle()
    assert lost.lost
    assert net.log(0) == net.log(1) == net.log(2) == ["m2", "m1"]


def test_to_t5_what_the_others_may_have_delivered_no_reset_takes_back() -> None:
    """0 loses its own copy and the acknowledgements of it: nobody may deliver it yet."""
    net = Net(ToChannelSite, 3, deliver_at=PREACKNOWLEDGED)
    net.lose(dst=0)
    net.submit(0, "m1")
    net.run(50 * MS)
    assert net.log(1) == net.log(2) == []
    net.submit(1, "m2")
    net.run(5 * MS)
    net.heal()
    net.settle()
    assert net.log(0) == net.log(1) == net.log(2)
    assert sorted(net.log(0)) == ["m1", "m2"]


def test_to_t6_a_reset_right_after_a_reset() -> None:
    """0 and 2 finish, find the next loss and say so before 1 has heard that they are done."""
    net = Net(ToChannelSite, 3)
    net.lose(ToDt, src=0, dst=2, times=1)
    net.submit(0, "a")
    net.submit(0, "b")
    # 1 does not hear who is done in the first reset,
    net.lose(lambda p: isinstance(p, ToRst) and p.epoch == 1 and bool(p.done), dst=1, times=2)
    # nor the first data of the next epoch, which 2 loses too.
    lost = net.lose(lambda p: p.epoch == 1 and not isinstance(p, ToRst), dst=1)
    net.lose(lambda p: isinstance(p, ToDt) and p.epoch == 1, src=0, dst=2, times=1)
    net.run_until(lambda: net[2].rst == 2)
    assert (net[1].epoch, net[1].rst) == (0, 1)
    assert lost.lost
    net.run_until(lambda: net[1].epoch == 1)
    assert net[1].rst == 2  # finished one and started the next in one step
    net.heal()
    net.settle()
    net.check(total=True)


# -- TO-T7: key mode -------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(25))
def test_to_t7_key_mode_on_a_mesh_with_loss_and_a_tenfold_spread_of_delays(seed: int) -> None:
    rng = Random(f"to/{seed}")
    sites = rng.choice([2, 3, 4, 6])
    net = Net(
        watched(ToSite),
        sites,
        loss=0.3,
        delay_ns=2 * MS,
        jitter_ns=18 * MS,
        seed=seed,
        window=rng.choice([1, 2, 8]),
        policy=rng.choice([DEFERRED, DEFERRED, EAGER]),
        bundle=rng.random() < 0.3,
        attempts=40,
    )
    Watcher(net)
    for k in range(25):
        net.submit(rng.randrange(sites), f"{k}")
        net.run(rng.randrange(20 * MS))
    net.settle()
    net.check(total=True)
    assert not net.pdus(ToRst)


def test_key_mode_releases_by_the_sum_of_acknowledgements_then_by_source() -> None:
    site = alone(ToSite)
    y = pdu(ToSite, 2, 1, (1, 1, 1), "y")
    x = pdu(ToSite, 1, 1, (1, 1, 1), "x")
    z = pdu(ToSite, 2, 2, (1, 2, 2), "z")
    for arriving in (y, x, z):
        site.receive(arriving, arriving.src, 0)
    assert sorted(site.keys) == [(3, 1, 1), (3, 2, 1), (5, 2, 2)]
    site.on_timer(ACK)
    for seq, ack in ((2, (2, 2, 3)), (3, (2, 3, 4))):
        site.receive(pdu(ToSite, 1, seq, ack), 1, ACK)
        site.receive(pdu(ToSite, 2, seq + 1, ack), 2, ACK)
        site.on_timer(ACK * (seq + 1))
    out = site.take()
    assert [(d.seq, text(d.bundle)) for d in out.deliveries] == [(0, "x"), (1, "y"), (2, "z")]
    assert not site.keys


def held_back() -> Any:
    """Member 2: its own y is acknowledged; x of 1, with the smaller key, is not."""
    site = alone(ToSite, me=2)
    submit(site, "y")
    site.receive(pdu(ToSite, 1, 1, (1, 1, 1), "x"), 1, 0)
    assert sorted(site.keys) == [(3, 1, 1), (3, 2, 1)]
    site.receive(pdu(ToSite, 0, 1, (1, 1, 2)), 0, 0)  # 0 has y
    site.receive(pdu(ToSite, 1, 2, (2, 2, 2)), 1, 0)  # 1 has it, and knows that of 0
    site.receive(pdu(ToSite, 0, 2, (2, 3, 2)), 0, 0)  # 0 knows that of 1; and it has x
    return site


def test_key_mode_holds_back_what_is_acknowledged_before_a_smaller_key() -> None:
    site = held_back()
    assert not site.take().deliveries
    assert set(site.acknowledged) == {(2, 1)}
    assert not site.prl[2]
    assert site.usage()["receipt"] == len(site.in_logs()) >= 2
    assert site.waiting_delivery == 2
    site.on_timer(ACK)
    site.receive(pdu(ToSite, 1, 3, (3, 3, 3)), 1, ACK)
    site.receive(pdu(ToSite, 0, 3, (3, 4, 3)), 0, ACK)
    out = site.take()
    assert [(d.seq, text(d.bundle)) for d in out.deliveries] == [(0, "x"), (1, "y")]
    assert site.waiting_delivery == 0


def test_tr_15_reopening_in_key_mode_gives_back_what_waits_for_a_smaller_key() -> None:
    site = held_back()
    submit(site, "z")
    site.reopen((1, 2), 1, 0)
    (notice,) = site.take().notices
    assert [text(bundle) for bundle in notice.info[0]] == ["y", "z"]


def test_key_mode_costs_no_pdu_more_than_po() -> None:
    net = Net(ToSite, 4)
    for k in range(8):
        net.submit(k % 4, f"{k}")
        net.run(200 * MS)
    assert len(net.sent) == 8 * 2 * 4
    assert not net.pdus(ToStat, ToRetx)
