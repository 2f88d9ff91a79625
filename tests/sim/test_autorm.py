"""Beamons on a simulated medium: the properties of PROTOCOLS §8.7."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from roundelay.core.autorm.config import AutoRmConfig
from roundelay.core.autorm.packets import Acknowledgement, Data, Heartbeat
from roundelay.core.bundle import Bundle
from roundelay.core.engine import MS, SECOND
from roundelay.core.errors import UsageError
from roundelay.core.events import NOTHING_LEFT
from roundelay.sim.kernel.load import content
from roundelay.sim.network.links import Delayed, Lossy, Partition
from tests.sim.autorm_net import G, apps, got, idle, world

# -- the properties --------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_ar_t2_a_mebibyte_at_20_percent_loss_reaches_ten_members_once_and_whole(seed: int) -> None:
    """AR-T2."""
    made, log = world(11, Lossy(0.2), seed=seed)
    message = content(0, 0, (1 << 20) - 10)
    apps(made).send(0, G, message, 0)
    assert made.run_until(lambda: idle(made), 60 * SECOND, 50 * MS)
    for site in made.group:
        assert got(log, site) == [message]
    ((_, _, notice),) = log.of("sent")
    assert len(notice.info[1]) == 10  # type: ignore[arg-type]
    assert notice.info[2] == ()
    assert not log.of("dropped")
    assert not log.complaints
    assert log.count(Data) < 6 * (1 << 20) // 1400


@pytest.mark.parametrize("wire", [False, True])
def test_ar_t3_messages_of_a_sender_keep_their_order_across_two_groups(wire: bool) -> None:
    """AR-T3."""
    made, log = world(4, Lossy(0.2) | Delayed(0, 20 * MS, 0.3), wire=wire, joined=False)
    for site in made.group:
        apps(made).join(site, "a")
        apps(made).join(site, "b")
    made.run(made.now + 3 * SECOND)
    messages = [content(0, k, 1 + 700 * (k % 9)) for k in range(60)]
    for k, message in enumerate(messages):
        apps(made).send(0, "ab"[k % 2], message, k)
    assert made.run_until(lambda: idle(made), 200 * SECOND, 50 * MS)
    for site in made.group:
        assert got(log, site) == messages
    assert not log.complaints


def test_with_scope_group_each_group_keeps_its_order_and_does_not_wait_for_the_other() -> None:
    made, log = world(3, Lossy(0.1), joined=False, serial_scope="group")
    for site in (1, 2):
        apps(made).join(site, "a")
        apps(made).join(site, "b")
    made.run(made.now + 3 * SECOND)
    apps(made).send(0, "a", content(0, 0, 400_000), 0)
    for k in range(1, 6):
        apps(made).send(0, "b", content(0, k, 10), k)
    assert made.run_until(lambda: idle(made), 60 * SECOND, 50 * MS)
    for site in (1, 2):
        order = [delivery.group for _, at, delivery in log.deliveries if at == site]
        assert order == ["b"] * 5 + ["a"]
    assert not log.complaints


def test_ar_t4_a_message_to_someone_reaches_exactly_one_application_of_one_node() -> None:
    """AR-T4, under loss."""
    made, log = world(5, Lossy(0.2))
    for k in range(100):
        apps(made).send(k % 5, G, content(k % 5, k, 20), k, someone=True, sender_joined=True)
    assert made.run_until(lambda: idle(made), 100 * SECOND, 50 * MS)
    times = Counter(delivery.bundle.data for _, _, delivery in log.deliveries)
    assert len(times) == 100
    assert set(times.values()) == {1}
    assert all(delivery.one_of for _, _, delivery in log.deliveries)
    assert len({site for _, site, _ in log.deliveries}) == 5
    assert not log.complaints


def test_ar_t5_a_receiver_that_hears_nothing_is_dropped_and_comes_back() -> None:
    """AR-T5: the others finish; its next heartbeat that is heard brings it back."""
    made, log = world(4)
    made.set_links(Partition([(site, 3) for site in range(3)]))  # 3 is deaf, and heard
    apps(made).send(0, G, content(0, 0, 5000), 0)
    asked = made.now
    made.run(asked + SECOND)
    assert [len(got(log, site)) for site in range(4)] == [1, 1, 1, 0]
    assert not made.site(0).idle
    assert made.run_until(lambda: idle(made), asked + 3 * SECOND, MS)
    ((when, site, notice),) = log.of("dropped")
    assert site == 0
    assert notice.info == (made.site(3).uuid,)
    config = AutoRmConfig()
    rounds = (config.max_retries + 1) * config.ack_timeout_ns
    assert rounds <= when - asked <= rounds + 50 * MS
    made.heal()
    made.run(made.now + SECOND)
    assert made.site(3).uuid in made.site(0).environment.nodes
    apps(made).send(0, G, content(0, 1, 10), 1)
    made.run(made.now + SECOND)
    assert got(log, 3) == [content(0, 1, 10)]
    assert not log.complaints


@pytest.mark.parametrize("sites", [2, 20, 200])
def test_ar_t6_heartbeats_stay_rare_however_many_nodes_there_are(sites: int) -> None:
    """AR-T6: at most 1.2 / hb_per_node per second, in a minute of an environment that is known."""
    made, log = world(sites, bus=True)
    made.run(30 * SECOND)
    log.sends.clear()
    made.run(90 * SECOND)
    per_second = log.count(Heartbeat) / 60
    assert per_second <= 1.2 * 10
    assert per_second >= 0.5 * min(10, 2 * sites)
    assert len(log.sends) == log.count(Heartbeat)
    assert not log.of("down")
    assert {made.site(site).environment.local for site in made.group} == {sites}


@pytest.mark.parametrize("trust", [0.0, 0.5, 1.0])
def test_ar_t6_nobody_is_wrongly_buried_when_a_hundred_nodes_appear_at_once(trust: float) -> None:
    """AR-T6, with the extremes of AR-T7."""
    made, log = world(104, bus=True, joined=False, trust=trust)
    for site in range(4, 104):
        made.crash(site, NOTHING_LEFT)
    made.run(200 * SECOND)
    assert made.site(0).environment.local == 4
    log.notices.clear()
    for site in range(4, 104):
        made.restart(site)
    made.run(made.now + 60 * SECOND)
    assert not log.of("down")
    assert {made.site(site).environment.local for site in made.group} == {104}


def test_ar_t8_a_crash_is_noticed_within_the_stale_time_and_one_period() -> None:
    """AR-T8."""
    made, log = world(5)
    environment = made.site(0).environment
    stale = environment.stale_ns(environment.nodes[made.site(4).uuid])
    crashed = made.now
    dead = made.site(4).uuid
    made.crash(4, NOTHING_LEFT)
    made.run(crashed + 10 * SECOND)
    downs = log.of("down")
    assert {site for _, site, _ in downs} == {0, 1, 2, 3}
    assert all(notice.info == (dead,) for _, _, notice in downs)
    period = int(1.1 * environment.period())
    assert all(stale - period <= when - crashed <= stale + period for when, _, _ in downs)


@pytest.mark.parametrize("unheard", [False, True])
def test_ar_t10_leaving_during_a_transmission_does_not_drop_the_node(unheard: bool) -> None:
    """AR-T10: whether its last heartbeat is heard or not."""
    made, log = world(3, Lossy(0.3))
    apps(made).send(0, G, content(0, 0, 300_000), 0)
    made.run(made.now + 60 * MS)
    assert not made.site(0).idle
    apps(made).leave(1, G)
    if unheard:  # the sender does not hear 1 for a while, so it has to ask
        made.set_links(Partition([(1, 0)]))
        made.run(made.now + 400 * MS)
        made.set_links(Lossy(0.3))
    assert made.run_until(lambda: idle(made), made.now + 20 * SECOND, 50 * MS)
    assert not log.of("dropped")
    assert not log.of("down")
    assert len(got(log, 2)) == 1
    assert not got(log, 1)
    assert not log.complaints


# -- more ------------------------------------------------------------------------------------


def test_a_message_without_loss_costs_its_packets_and_one_answer_per_target() -> None:
    made, log = world(4)
    log.sends.clear()
    apps(made).send(0, G, content(0, 0, 10), 0)
    made.run(made.now + 200 * MS)
    assert log.count(Data) == 1
    assert log.count(Acknowledgement) == 3


def test_a_node_that_starts_again_is_another_node() -> None:
    made, log = world(3)
    before = made.site(2).uuid
    made.crash(2, NOTHING_LEFT)
    made.run(made.now + 100 * MS)
    made.restart(2)
    made.run(made.now + 5 * SECOND)
    assert made.site(2).uuid != before
    assert set(made.site(0).environment.nodes) == {made.site(1).uuid, made.site(2).uuid}
    apps(made).send(0, G, content(0, 0, 10), 0)
    made.run(made.now + SECOND)
    assert len(got(log, 2)) == 1


def test_a_node_that_is_stopped_for_ten_seconds_goes_on_and_nothing_comes_twice() -> None:
    made, log = world(4, Lossy(0.1))
    messages = [content(0, k, 2000) for k in range(200)]
    for k, message in enumerate(messages):
        apps(made).send(0, G, message, k)
    made.run(made.now + SECOND)
    made.pause(0)
    made.run(made.now + 10 * SECOND)
    assert made.site(0).uuid not in made.site(1).environment.nodes
    made.resume(0)
    assert made.run_until(lambda: idle(made), made.now + 100 * SECOND, 50 * MS)
    for site in made.group:
        assert got(log, site) == messages
    assert not log.of("dropped")
    assert not log.complaints


def test_the_same_seed_gives_the_same_run() -> None:
    def history() -> list[Any]:
        made, log = world(4, Lossy(0.2), seed=5)
        apps(made).send(0, G, content(0, 0, 9000), 0)
        made.run(made.now + 3 * SECOND)
        return log.sends

    assert history() == history()


def test_a_site_that_is_down_takes_no_message() -> None:
    made, _ = world(2)
    made.crash(0, NOTHING_LEFT)
    assert not apps(made).send(0, G, b"", 0)
    assert made.submissions_refused == 1


def test_what_is_submitted_to_a_beamon_is_one_message_to_a_group() -> None:
    made, _ = world(2)
    with pytest.raises(UsageError, match="go to a group"):
        made.submit(0, Bundle.of(b"x"))
    with pytest.raises(UsageError, match="one at a time"):
        made.site(0).submit(Bundle.of(b"x", b"y"), 0, G)
