"""Opening a cluster (TR-14), a member that fails (TR-15), and opening again without it."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from roundelay.core.bundle import Bundle
from roundelay.core.cluster.channel import ToChannelSite
from roundelay.core.cluster.config import ClusterConfig
from roundelay.core.cluster.pdu import Dt, Rst, Stat, ToDt, ToRst
from roundelay.core.cluster.po import PoSite
from roundelay.core.cluster.spo import SpoSite
from roundelay.core.cluster.to import ToSite
from roundelay.core.engine import ACCEPTED, ACKNOWLEDGED, EVERYONE, NEVER, PREACKNOWLEDGED
from roundelay.core.errors import ClusterBroken, ConfigError
from tests.core.cluster_net import ENGINES, MS, Net, alone, mask, pdu, sends, stat, text

KINDS = list(ENGINES.values())
STAT = 100 * MS
RESET = 30 * MS
DONE = mask(0, 1, 2)


def rst(epoch: int, src: int, have: int = 0, done: int = 0) -> Rst:
    return Rst(epoch=epoch, src=src, vec=(1, 1, 1), have=have | 1 << src, done=done)


def undelivered(net: Net, site: int) -> list[str]:
    ((bundles,),) = net.told(site, "undelivered")
    return [text(bundle) for bundle in bundles]


# -- TR-14 -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_tr_14_a_static_cluster_is_open_at_once(kind: type[Any]) -> None:
    net = Net(kind, 3)
    assert not net.sent
    net.submit(0, "x")
    assert len(net.sent) == 1
    assert net.sent[0].pdu.seq == 1
    assert {site.epoch for site in net} == {0}


@pytest.mark.parametrize("kind", KINDS)
def test_tr_14_a_dynamic_cluster_agrees_first(kind: type[Any]) -> None:
    net = Net(kind, 4, boot="dynamic")
    net.submit(0, "x")
    assert {type(sent.pdu) for sent in net.sent} == {kind.KINDS.rst}
    assert {sent.pdu.vec for sent in net.sent} == {(1, 1, 1, 1)}
    net.settle()
    net.check(total=kind in (ToSite, ToChannelSite))
    assert {site.epoch for site in net} == {1}
    assert {site.rst for site in net} == {-1}


def test_tr_14_a_member_sends_data_once_it_knows_that_everybody_has_all_vectors() -> None:
    site = alone(PoSite, boot="dynamic")
    site.submit(Bundle.of(b"x"), 0)
    site.receive(rst(1, 1), 1, 0)
    assert not sends(site)
    site.receive(rst(1, 2), 2, 0)
    assert sends(site) == [(EVERYONE, rst(1, 0, DONE, mask(0)))]
    site.receive(rst(1, 1, DONE, mask(0, 1)), 1, 0)
    assert not sends(site)
    site.receive(rst(1, 2, DONE, mask(2)), 2, 0)
    ((_, x),) = sends(site)
    assert (type(x), x.epoch, x.seq) == (Dt, 1, 1)


def test_tr_14_done_flags_are_passed_on() -> None:
    """What one member knows of another counts: 2's own word may be lost."""
    site = alone(PoSite, boot="dynamic")
    site.receive(rst(1, 2), 2, 0)
    site.receive(rst(1, 1, DONE, mask(1, 2)), 1, 0)
    assert site.epoch == 1


def test_tr_14_a_pdu_of_the_new_epoch_shows_that_its_sender_is_through() -> None:
    site = alone(PoSite, boot="dynamic")
    early = pdu(PoSite, 1, 1, (1, 1, 1), "x", epoch=1)
    site.receive(early, 1, 0)  # lost on us: we are not done, it will be sent again
    assert site.treq[1] == 1
    for src in (1, 2):
        site.receive(rst(1, src), src, 0)
    site.receive(early, 1, 0)
    assert (site.epoch, site.treq[1]) == (1, 2)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(4))
def test_tr_14_opening_survives_loss(kind: type[Any], seed: int) -> None:
    net = Net(kind, 4, boot="dynamic", loss=0.3, seed=seed, attempts=40)
    for site in range(4):
        net.submit(site, f"from {site}")
    net.settle()
    net.check(total=kind in (ToSite, ToChannelSite))


def test_tr_14_an_open_cluster_is_not_opened_again_by_a_peer() -> None:
    for kind in (PoSite, ToSite, SpoSite):
        site = alone(kind)
        pdus = kind.KINDS
        for epoch in (0, 1, 2):
            site.receive(pdus.rst(epoch=epoch, src=1, vec=(1, 1, 1), have=2, done=0), 1, 0)
        assert site.rst == -1
        assert site.drops == {"reset of an open cluster": 3}
        assert not sends(site)


def test_tr_14_while_opening_stats_and_requests_are_ignored() -> None:
    site = alone(PoSite, boot="dynamic")
    site.receive(stat(PoSite, 1, 5, (1, 1, 1), poll=True), 1, 0)
    site.receive(PoSite.KINDS.retx(epoch=0, by=1, src=0, lo=1, hi=1), 1, 0)
    assert not sends(site)


# -- TR-15: suspect, then broken -------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_tr_15_a_member_that_answers_no_poll_is_suspected_then_the_cluster_is_broken(
    kind: type[Any],
) -> None:
    net = Net(kind, 4, attempts=3)
    net.submit(1, "before")
    net.settle()
    net.crash(3)
    start = net.now
    net.submit(0, "x")
    net.run_until(lambda: net.told(0, "suspect"))
    assert net.told(0, "suspect") == [(3,)]
    assert not net.told(0, "broken")
    suspected_at = net.now - start
    net.run_until(lambda: net.told(0, "broken"))
    assert net.told(0, "broken") == [("no answer from [3]",)]
    # The first poll is sent after t_stat; three and six unanswered ones.
    assert suspected_at == pytest.approx(4 * STAT, abs=20 * MS)
    if kind is ToChannelSite:  # three probes, then a reset in which it takes no part: six of those
        assert net[0].rst == 1
        assert 6 * RESET <= net.now - start - suspected_at <= 9 * RESET
    else:
        assert net.now - start == pytest.approx(7 * STAT, abs=20 * MS)
    net.settle()
    for site in (0, 1, 2):
        assert net.told(site, "suspect") == [(3,)]
        assert net.told(site, "broken") == [("no answer from [3]",)]
        assert net.log(site) == ["before"]
        assert net[site].deadline == NEVER
        assert net[site].usage()["sl"] <= net[site].caps()["sl"]


@pytest.mark.parametrize("kind", KINDS)
def test_tr_15_who_never_appears_breaks_the_opening(kind: type[Any]) -> None:
    net = Net(kind, 3, boot="dynamic", attempts=2)
    net.heap.clear()  # nothing of 2 ever arrives
    net.armed = dict.fromkeys(net.group, NEVER)
    net.crash(2)
    for site in (0, 1):
        net.collect(site)
    net.settle()
    for site in (0, 1):
        assert net.told(site, "suspect") == [(2,)]
        assert net.told(site, "broken") == [("no answer from [2]",)]


def test_tr_15_who_vanishes_during_the_opening_breaks_it_too() -> None:
    """2 has said its vector, but nobody hears whether it is done."""
    net = Net(PoSite, 3, boot="dynamic", attempts=2)
    net.crash(2)
    net.settle()
    for site in (0, 1):
        assert net.told(site, "suspect") == [(2,)]
        assert net.told(site, "broken") == [("no answer from [2]",)]


def test_tr_15_in_a_reset_the_silent_is_blamed_not_the_one_behind() -> None:
    """0 dies when 2 has its word and 1 has not: neither of them suspects the other."""
    net = Net(ToChannelSite, 3, attempts=3)
    net.lose(ToDt, src=0, dst=2, times=1)
    net.submit(0, "a", "b")
    net.lose(ToRst, src=0, dst=1)
    net.run_until(lambda: net[2].rst == 1)
    net.run_until(lambda: 0 in net[2].vecs)
    net.crash(0)
    net.settle()
    for site in (1, 2):
        assert net.told(site, "suspect") == [(0,)]
        assert net.told(site, "broken") == [("no answer from [0]",)]


def test_tr_15_who_has_finished_helps_with_the_word_of_others_and_is_not_suspected() -> None:
    """0's word that it is done never reaches 1.  2 knows it."""
    net = Net(PoSite, 3, boot="dynamic", attempts=3)
    net.lose(lambda p: isinstance(p, Rst) and bool(p.done), src=0, dst=1)
    net.lose(lambda p: isinstance(p, Rst) and bool(p.done & 1), src=2, dst=1, times=1)
    net.submit(1, "x")
    net.settle()
    net.check()
    assert not any(net.notices.values())


def test_tr_15_where_everybody_is_heard_and_nobody_agrees_the_cluster_is_broken() -> None:
    """1 was given another epoch."""
    net = Net(PoSite, 2, attempts=2)
    net.reopen((0, 1), 4, sites=[0])
    net.reopen((0, 1), 5, sites=[1])
    net.settle()
    for site in net.group:
        assert not net.told(site, "suspect")
        ((reason,),) = net.told(site, "broken")
        assert reason == "no agreement with [0, 1]"


def test_tr_15_one_answer_clears_the_count() -> None:
    net = Net(PoSite, 3, attempts=3)
    deaf = net.lose(Dt, src=0, dst=2)  # alive, but x does not get through
    net.submit(0, "x")
    net.run(20 * STAT)
    assert deaf.lost
    assert not any(net.notices.values())
    net.heal()
    net.settle()
    net.check()


def test_tr_15_who_polls_late_blames_nobody_for_what_it_missed() -> None:
    """A member that did not run for a while cannot know who was silent meanwhile."""
    for late, broken in ((0, True), (2 * STAT, False)):
        site = alone(PoSite, attempts=3)
        site.submit(Bundle.of(b"x"), 0)
        for _ in range(10):
            if not site.stopped:
                site.on_timer(site.stat_due + late)
        assert site.stopped is broken
        assert site.given_up() == ((1, 2) if broken else ())


def test_tr_15_a_broken_cluster_refuses_messages_and_input() -> None:
    net = Net(PoSite, 3, attempts=1)
    net.crash(2)
    net.submit(0, "x")
    net.run_until(lambda: net.told(0, "broken"))
    site = net[0]
    before = (site.usage(), site.seq, list(site.treq))
    with pytest.raises(ClusterBroken, match="reopen"):
        site.submit(Bundle.of(b"y"), net.now)
    site.receive(pdu(PoSite, 1, 1, (1, 1, 1), "z"), 1, net.now)
    site.receive(stat(PoSite, 1, 9, (1, 1, 1), poll=True), 1, net.now)
    site.receive(rst(1, 1), 1, net.now)
    site.receive(PoSite.KINDS.retx(epoch=0, by=1, src=0, lo=1, hi=1), 1, net.now)
    site.on_timer(net.now + 10 * STAT)
    assert (site.usage(), site.seq, list(site.treq)) == before
    assert not site.take()


def test_tr_15_in_spo_unrelated_traffic_does_not_hide_a_failed_destination() -> None:
    net = Net(SpoSite, 4, attempts=3)
    net.crash(3)
    net.submit(0, "x", to=[3])
    for k in range(40):
        net.run(20 * MS)
        if net.told(0, "broken"):
            break
        net.submit(1, f"c{k}", to=[0])
    assert net.told(0, "suspect") == [(3,)]
    assert net.told(0, "broken") == [("no answer from [3]",)]
    assert len(net.log(0)) > 20


# -- reopening -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_tr_15_the_cluster_goes_on_without_the_failed_member(kind: type[Any]) -> None:
    net = Net(kind, (3, 5, 8, 9), attempts=2)
    net.submit(3, "everybody has this")
    net.settle()
    net.crash(8)
    net.submit(3, "stuck at 3")
    net.submit(9, "stuck at 9")
    net.run_until(lambda: all(net.told(site, "broken") for site in (3, 5, 9)))
    net.reopen((3, 5, 9), 7)
    assert undelivered(net, 3) == ["stuck at 3"]
    assert undelivered(net, 5) == []
    assert undelivered(net, 9) == ["stuck at 9"]
    for site in (9, 5, 3):
        net.sites[site].submit(Bundle.of(f"new of {site}".encode()), net.now)
        net.collect(site)
    net.settle()
    assert {net[site].epoch for site in (3, 5, 9)} == {7}
    for site in (3, 5, 9):
        assert net.log(site)[0] == "everybody has this"
        assert sorted(net.log(site)[1:]) == ["new of 3", "new of 5", "new of 9"]
    if kind in (ToSite, ToChannelSite):
        assert net.log(3) == net.log(5) == net.log(9)
        assert [got.position for got in net.got[9]] == [
            0,
            0,
            1,
            2,
        ]  # another cluster, another order


def test_reopening_reports_what_was_sent_and_what_was_waiting_in_order() -> None:
    net = Net(PoSite, 3, window=2, attempts=2)
    net.crash(2)
    net.submit(0, *"abcde")
    net.run_until(lambda: net.told(0, "broken"))
    net.reopen((0, 1), 1)
    assert undelivered(net, 0) == list("abcde")
    net.settle()
    assert not net.log(1)  # they are given back, not sent again


def test_reopening_reports_bundles_as_they_were_sent() -> None:
    site = alone(PoSite, window=1, bundle=True)
    for name in "abc":
        site.submit(Bundle.of(name.encode()), 0)
    for k in (1, 2):
        site.receive(pdu(PoSite, k, 1, (2, 1, 1)), k, 0)
    site.reopen((0, 1), 1, 0)
    (notice,) = site.take().notices
    assert notice.info == ((Bundle.of(b"a"), Bundle.of(b"b", b"c")),)


@pytest.mark.parametrize(
    "stage, back", [(ACCEPTED, []), (PREACKNOWLEDGED, ["b"]), (ACKNOWLEDGED, ["a", "b"])]
)
def test_reopening_reports_what_was_not_delivered_here(stage: str, back: list[str]) -> None:
    """a is pre-acknowledged, b is not."""
    for kind in (PoSite, ToSite, SpoSite):
        site = alone(kind, deliver_at=stage)
        for name in "ab":
            site.submit(Bundle.of(name.encode()), 0)
        for k in (1, 2):
            site.receive(pdu(kind, k, 1, (2, 1, 1)), k, 0)
        site.reopen((0, 1), 1, 0)
        (notice,) = site.take().notices
        assert [text(bundle) for bundle in notice.info[0]] == back


def test_reopening_in_channel_mode_reports_what_is_on_the_channel() -> None:
    for stage, back in ((PREACKNOWLEDGED, ["b", "c"]), (ACKNOWLEDGED, ["a", "b", "c"])):
        site = alone(ToChannelSite, sites=2, deliver_at=stage)
        for name in "abc":
            site.submit(Bundle.of(name.encode()), 0)
        a, b, _ = (p for _, p in sends(site))
        site.receive(a, 0, 0)
        site.receive(b, 0, 0)
        site.receive(pdu(ToChannelSite, 1, 1, (2, 1)), 1, 0)
        assert [p.seq for p in site.ready] == [1]
        site.reopen((0, 1), 5, 0)
        (notice,) = site.take().notices
        assert [text(bundle) for bundle in notice.info[0]] == back


@pytest.mark.parametrize(
    "group, epoch, field",
    [
        ((0,), 1, "sites"),
        ((1, 2), 1, "group"),
        ((0, 1, 1), 1, "group"),
        ((0, 1), 0, "epoch"),
        ((0, 1), -3, "epoch"),
    ],
)
def test_a_reopening_that_cannot_be_changes_nothing(
    group: tuple[int, ...], epoch: int, field: str
) -> None:
    site = alone(PoSite, window=1)
    for name in "ab":
        site.submit(Bundle.of(name.encode()), 0)
    site.take()
    before = (site.group, site.epoch, site.seq, site.usage())
    with pytest.raises(ConfigError, match=f"^{field} = "):
        site.reopen(group, epoch, 0)
    assert (site.group, site.epoch, site.seq, site.usage()) == before
    assert not site.take()


@pytest.mark.parametrize("kind", [PoSite, SpoSite, ToSite])
def test_members_may_learn_of_the_reopening_one_after_the_other(kind: type[Any]) -> None:
    """The roster keeps its size; who has not been told must not join with its old numbers."""
    net = Net(kind, 3)
    for k in range(5):
        net.submit(k % 3, f"old {k}")
    net.settle()
    net.reopen(net.group, 1, sites=[0])
    net.submit(0, "first")
    net.run(100 * MS)
    net.reopen(net.group, 1, sites=[1])
    net.run(100 * MS)
    net.reopen(net.group, 1, sites=[2])
    net.submit(1, "second")
    net.settle()
    net.check()
    assert net.log(2)[-2:] in (["first", "second"], ["second", "first"])


def test_in_channel_mode_a_failed_member_may_be_replaced() -> None:
    """1 has joined 0's exchange with the old roster when its owner tells it of the new one."""
    config = ClusterConfig()
    net = Net(ToChannelSite, (0, 1, 2, 3), config)
    for site in (0, 1, 2):
        net.sites[site] = ToChannelSite(site, (0, 1, 2), config, Random(site))
    net.sites[3] = ToChannelSite(3, (1, 3), config, Random(3))
    net.crash(2)
    net.reopen((0, 1, 3), 1, sites=[0])
    net.run(5 * MS)
    assert net[1].rst == 1
    net.reopen((0, 1, 3), 1, sites=[1, 3])
    net.submit(1, "x")
    net.settle()
    assert net.log(0) == net.log(1) == net.log(3) == ["x"]


def test_a_reopened_member_refuses_those_who_were_left_out() -> None:
    net = Net(PoSite, 3)
    net.reopen((0, 1), 1)
    net.settle()
    net.submit(2, "late")
    net.run(5 * MS)
    assert net[0].drops == {"PDU of a foreign member": 1}
    assert not net.log(0)


def test_agreement_across_a_reopening_without_a_flush_is_not_promised() -> None:
    """0 has delivered x, 1 has not and never will: 0's application does not hear of that."""
    net = Net(PoSite, 2)
    net.submit(0, "x")
    net.run_until(lambda: net.log(0))
    net.reopen((0, 1), 1)
    net.settle()
    assert undelivered(net, 0) == undelivered(net, 1) == []
    assert (net.log(0), net.log(1)) == (["x"], [])


def test_polls_before_and_after_a_reopening_are_told_apart() -> None:
    net = Net(PoSite, 3, attempts=2)
    net.crash(2)
    net.submit(0, "x")
    net.run_until(lambda: net.told(0, "broken"))
    net.reopen((0, 1), 1)
    net.settle()
    net.submit(0, "y")
    before = len(net.sent)
    net.settle()
    assert not net.pdus(Stat, since=before)
    assert net.told(0, "broken") == [("no answer from [2]",)]
