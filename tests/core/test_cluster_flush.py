"""TR-16: a cluster ends alike for all who go on."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from msgspec import structs

from roundelay.core.cluster.channel import ToChannelSite
from roundelay.core.cluster.flush import Tail, tail_refusal
from roundelay.core.cluster.pdu import Null, ToDt, ToRst
from roundelay.core.cluster.po import PoSite
from roundelay.core.cluster.spo import SpoSite
from roundelay.core.cluster.to import ToSite
from roundelay.core.engine import ACCEPTED, ACKNOWLEDGED, PREACKNOWLEDGED
from roundelay.core.errors import UsageError
from tests.core.cluster_net import ENGINES, MS, Net, alone, pdu, text
from tests.core.sends import sends_of


def end(net: Net, *living: int, without: int | None = None) -> dict[int, Tail]:
    """Those who live say their tails and hand over the rest, but for one who says nothing."""
    tails = {site: net[site].tail(living) for site in living if site != without}
    for site in tails:
        net[site].flush(tails)
        net.collect(site)
    return tails


def test_tr_16_a_confirmed_message_is_given_to_every_survivor() -> None:
    """3 acknowledges the acknowledgements to 0 and 2, who deliver, but not to 1; then it fails."""
    net = Net(PoSite, 4)
    net.lose(lambda p: isinstance(p, Null) and p.seq > 1, src=3, dst=1)
    net.submit(0, "x")
    net.run(30 * MS)
    assert [net.log(site) for site in range(4)] == [["x"], [], ["x"], ["x"]]
    net.crash(3)
    end(net, 0, 1, 2)
    assert [net.log(site) for site in range(3)] == [["x"]] * 3


@pytest.mark.parametrize("stage", [ACCEPTED, PREACKNOWLEDGED, ACKNOWLEDGED])
@pytest.mark.parametrize("kind", [PoSite, ToSite, SpoSite])
def test_tr_16_what_one_survivor_has_of_a_failed_source_all_are_given(
    kind: type[Any], stage: str
) -> None:
    net = Net(kind, 3, deliver_at=stage)
    net.lose(kind.KINDS.data, src=2, dst=1)
    net.submit(2, "x", "y")
    net.run(2 * MS)
    net.crash(2)
    end(net, 0, 1)
    assert net.log(0) == net.log(1) == ["x", "y"]
    assert all(net[site].undelivered() == [] for site in (0, 1))


@pytest.mark.parametrize("early", [ACCEPTED, PREACKNOWLEDGED])
@pytest.mark.parametrize("kind", ENGINES.values(), ids=ENGINES)
def test_tr_16_a_copy_before_its_time_comes_once_of_everything(kind: type[Any], early: str) -> None:
    if kind is ToChannelSite:
        early = PREACKNOWLEDGED
    for seed in range(10):
        net = Net(kind, 3, early=early, loss=0.1, seed=seed, window=3)
        for k in range(12):
            net.submit(k % 3, f"{k}")
            net.run(2 * MS)
        net.crash(2)
        end(net, 0, 1)
        for site in (0, 1):
            copies: dict[str, list[str]] = {}
            for delivery in net.delivered[site]:
                copies.setdefault(text(delivery.bundle), []).append(delivery.stage)
            assert all(stages == [early, ACKNOWLEDGED] for stages in copies.values())
        assert sorted(net.log(0)) == sorted(net.log(1))


@pytest.mark.parametrize(
    ("heard", "tails_known", "given"), [(1, False, ["x"]), (0, True, ["x"]), (0, False, [])]
)
def test_tr_16_who_was_left_out_hands_over_what_it_knows_the_others_were_given(
    heard: int, tails_known: bool, given: list[str]
) -> None:
    """2 has accepted x; it has heard that the others have, or learns it from their tails."""
    net = Net(PoSite, 3)
    net.lose(lambda p: isinstance(p, Null) and p.seq > heard, src=1, dst=2)
    net.lose(lambda p: isinstance(p, Null) and p.seq > heard + 1, src=0, dst=2)
    net.submit(0, "x")
    net.run(30 * MS)
    assert net.log(2) == []
    net.crash(2)
    tails = end(net, 0, 1)
    assert net.log(0) == net.log(1) == ["x"]
    net[2].hand_over_known(tails if tails_known else {})
    net.collect(2)
    assert net.log(2) == given


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("kind", [PoSite, SpoSite])
def test_tr_16_at_any_moment_who_was_left_out_hands_over_nothing_else(
    kind: type[Any], seed: int
) -> None:
    rng = Random(f"left out/{kind.__name__}/{seed}")
    net = Net(kind, 4, loss=0.15, seed=seed, attempts=40, window=3, jitter_ns=5 * MS)
    for k in range(30):
        net.submit(k % 4, f"{k}")
        net.run(rng.randrange(4 * MS))
    net.crash(3)
    net.run(rng.randrange(200 * MS))
    tails = end(net, 0, 1, 2)
    net[3].hand_over_known(tails if seed % 2 else {})
    net.collect(3)
    for source in range(4):
        mine = {message for src, message, _ in net.submitted if src == source}
        ours = [message for message in net.log(3) if message in mine]
        theirs = [message for message in net.log(0) if message in mine]
        assert ours == theirs[: len(ours)]
    if seed % 2:
        back = {text(bundle) for bundle in net[3].undelivered()}
        assert back.isdisjoint(net.log(0))


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("kind", ENGINES.values(), ids=ENGINES)
def test_tr_16_at_any_moment_of_any_run_survivors_end_alike(kind: type[Any], seed: int) -> None:
    rng = Random(f"flush/{kind.__name__}/{seed}")
    stages = [ACKNOWLEDGED, ACKNOWLEDGED, PREACKNOWLEDGED, ACCEPTED]
    stage = rng.choice(stages[:3] if kind is ToChannelSite else stages)
    net = Net(kind, 4, deliver_at=stage, loss=0.15, seed=seed, attempts=40, window=3,
              jitter_ns=0 if kind is ToChannelSite else 5 * MS)  # fmt: skip
    for k in range(30):
        net.submit(k % 4, f"{k}")
        net.run(rng.randrange(4 * MS))
    net.crash(3)
    net.run(rng.randrange(200 * MS))
    living = (0, 1, 2)
    tails: dict[int, Tail] = {}
    for site in living:  # one after the other, while the rest goes on
        tails[site] = net[site].tail(living)
        net.collect(site)
        net.run(rng.randrange(20 * MS))
    for site in living:
        expected = net[site].position_after(tails)
        net[site].flush(tails)
        net.collect(site)
        assert net[site].position == expected
    net.check(complete=False, total=net[0].ordered)
    logs = [net.log(site) for site in living]
    assert sorted(logs[0]) == sorted(logs[1]) == sorted(logs[2])
    assert set(net.log(3)) <= set(logs[0])  # what the one that failed was given, too
    for site in living:
        back = {text(bundle) for bundle in net[site].undelivered()}
        assert back.isdisjoint(logs[0])
        mine = {message for source, message, _ in net.submitted if source == site}
        queued = {text(bundle) for bundle, _ in net[site].queue}
        assert mine == back | queued | (mine & set(logs[0]))


def test_tr_16_in_channel_mode_one_has_finished_a_reset_and_another_has_not() -> None:
    """0 lost a; 1 and 2 finish the reset that repairs it, and 0 is stopped before it can."""
    net = Net(ToChannelSite, 3)
    net.submit(2, "before")
    net.settle()
    net.lose(ToDt, src=1, dst=0, times=1)
    net.submit(1, "a")
    net.submit(1, "b")
    net.lose(lambda p: isinstance(p, ToRst) and bool(p.done & ~1), dst=0)
    net.lose(lambda p: not isinstance(p, ToRst), dst=0)
    net.run_until(lambda: net[1].epoch == net[2].epoch == 1)
    assert (net[0].epoch, net[0].rst) == (0, 1)
    end(net, 0, 1, 2)
    net.check(complete=False, total=True)
    assert net.log(0) == net.log(1) == net.log(2) == ["before"]
    back = [text(bundle) for bundle in net[1].undelivered()]
    back += [text(bundle) for bundle, _ in net[1].queue]
    assert back == ["a", "b"]


def test_tr_16_in_channel_mode_a_tail_of_an_epoch_that_was_never_agreed_on_gives_nothing() -> None:
    """Such an end of a cluster was an exception at everybody."""
    net = Net(ToChannelSite, 3)
    net.submit(1, "a")
    net.run_until(lambda: bool(net[0].received))
    tails = {site: net[site].tail((0, 1, 2)) for site in range(3)}
    net[0].flush(tails | {2: Tail(7, (1, 1, 1))})
    assert net.log(0) == []


def test_tr_16_whoever_says_no_tail_was_given_nothing_that_the_others_are_not() -> None:
    net = Net(ToSite, 4, loss=0.1, seed=3)
    for k in range(20):
        net.submit(k % 4, f"{k}")
        net.run(2 * MS)
    end(net, 0, 1, 2, without=2)
    assert net.log(0) == net.log(1)
    assert net.log(2) == net.log(0)[: len(net.log(2))]


def test_tr_16_who_is_left_out_knows_which_of_its_own_messages_others_may_have_been_given() -> None:
    """2 is cut off from 1, which `first` is for; 0 has what comes behind it, and goes on alone.

    What 0 was given counted as given to nobody, because `first` was not, and was sent again.
    """
    net = Net(SpoSite, 3)
    net.lose(SpoSite.KINDS.data, src=2, dst=1)
    for message, to in (("first", {1, 2}), ("own", {2}), ("all", {0, 1, 2}), ("zero", {0, 2})):
        net.submit(2, message, to=to)
    net.run(2 * MS)
    net.lose(SpoSite.KINDS.data, src=2, dst=0)
    net.submit(2, "late", to={0, 1, 2})
    net.run(1 * MS)
    tails = end(net, 0)
    assert net.log(0) == ["all", "zero"]
    net[2].hand_over_known(tails)
    own = [text(pdu.bundle) for pdu in net[2].waiting() if pdu.src == 2]
    assert own == ["first", "own", "all", "zero", "late"]
    assert [own[place] for place in net[2].maybe_given(tails)] == ["first", "all", "zero"]


def test_tr_16_what_was_for_others_who_are_left_out_as_well_may_have_been_given_to_them() -> None:
    """1 knows that all destinations of x have it, and hands it over; 2 does not know that 1 does,
    and must not send it again."""
    net = Net(SpoSite, 3)
    net.submit(2, "x", to={1, 2})
    net.run_until(lambda: bool(net[1].prl[2]))
    tails = end(net, 0)
    for site in (1, 2):
        net[site].halt()
    assert net[2].maybe_given(tails) == [0]
    net[1].hand_over_known(tails)
    net.collect(1)
    assert net.log(1) == ["x"]


def test_tr_16_a_member_that_has_said_its_tail_is_still() -> None:
    site = alone(PoSite)
    site.receive(pdu(PoSite, 1, 1, (1, 1, 1), "x"), 1, 0)
    tail = site.tail((0, 1, 2))
    assert [text(one.bundle) for one in tail.pdus] == ["x"]
    assert tail.treq == (1, 2, 1)
    site.receive(pdu(PoSite, 1, 2, (1, 2, 1), "y"), 1, 0)
    site.on_timer(1000 * MS)
    out = site.take()
    assert not sends_of(out)
    assert site.tail((0, 1, 2)) == tail


def test_tr_16_what_all_who_live_are_known_to_have_is_not_in_a_tail() -> None:
    site = alone(PoSite)
    site.receive(pdu(PoSite, 1, 1, (1, 1, 1), "x"), 1, 0)
    assert site.tail((0, 1)).pdus == ()


def test_tr_16_nobody_flushes_without_a_tail_of_its_own() -> None:
    site = alone(PoSite)
    with pytest.raises(UsageError, match="tail"):
        site.flush({})
    site.tail((0, 1))
    with pytest.raises(UsageError, match="tail"):
        site.flush({1: Tail(0, (1, 1, 1))})


def test_tr_16_a_tail_that_cannot_be_is_refused() -> None:
    site = alone(PoSite)
    good = pdu(PoSite, 1, 1, (1, 1, 1), "x")
    assert tail_refusal(site, Tail(0, (1, 2, 1), (good,))) == ""
    for bad in (
        Tail(0, (1, 2)),
        Tail(0, (1, 0, 1)),
        Tail(-1, (1, 2, 1)),
        Tail(0, (1, 2, 1), (pdu(PoSite, 1, 1, (1, 1, 1)),)),
        Tail(0, (1, 2, 1), (structs.replace(good, src=3),)),
        Tail(0, (1, 2, 1), (structs.replace(good, ack=(1, 1)),)),
    ):
        assert tail_refusal(site, bad)
