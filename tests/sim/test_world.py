"""Virtual time, timers, clocks, effects, pauses and slow readers."""

from __future__ import annotations

import pytest

from roundelay.core.bundle import Bundle
from roundelay.core.engine import COMMITTED, MS, SECOND, Delivery
from roundelay.core.errors import ConfigError, InvariantBroken
from roundelay.core.events import DELIVER, LOSE, MARK, PAUSE, RECEIVE, RESUME, SEND, SUBMIT
from roundelay.sim.kernel.world import DAY_NS
from roundelay.sim.network.media import Bus
from tests.sim.gossip import Gossip, Rows, Watch, gossip, gossip_world

A = Bundle.of(b"a")


def test_a_message_reaches_everybody_after_the_medium_s_delay() -> None:
    watch = Watch()
    world = gossip_world(3, medium=Bus(2 * MS), observers=[watch])
    assert world.submit(0, A)
    world.run(SECOND)
    assert [line[1:3] for line in watch.of("delivered")] == [(0, 0), (2 * MS, 1), (2 * MS, 2)]
    assert world.now == SECOND


def test_rows_tell_the_whole_story() -> None:
    rows = Rows()
    world = gossip_world(2, medium=Bus(MS), recorder=rows, forward=False)
    world.submit(0, A)
    world.run(SECOND)
    world.finish()
    assert rows.of(SUBMIT) == [(0, 0, SUBMIT, 0, -1, A)]
    (sent,) = rows.of(SEND)
    assert sent[:2] == (0, 0)
    assert rows.of(RECEIVE) == [(MS, 1, RECEIVE, sent[3], 0, None)]
    assert [row[:2] for row in rows.of(DELIVER)] == [(0, 0), (MS, 1)]
    assert rows.of(MARK)[0][5] == "end"


def test_arrivals_can_be_left_out_of_the_trace_and_change_nothing_else() -> None:
    def run(full: bool) -> list[tuple[object, ...]]:
        rows = Rows()
        world = gossip_world(3, recorder=rows, trace_receives=full)
        world.submit(0, A)
        world.run(SECOND)
        return [row for row in rows.rows if row[2] != RECEIVE]

    assert run(True) == run(False)


def test_the_recorder_is_flushed_before_many_rows_gather() -> None:
    rows = Rows()
    world = gossip_world(2, medium=Bus(1000), recorder=rows, beat_ns=1000)
    world.run(20 * MS)
    assert rows.flushes >= 2
    assert len(rows.rows) < 8192 + 10


def test_timers_fire_at_the_deadline_and_only_then() -> None:
    world = gossip_world(1, beat_ns=7 * MS)
    world.run(50 * MS)
    assert gossip(world, 0).beats == [7 * MS * i for i in range(1, 8)]


def test_a_deadline_that_moves_away_costs_nothing_and_one_that_comes_closer_is_met() -> None:
    world = gossip_world(1, beat_ns=100 * MS)
    engine = gossip(world, 0)
    engine.deadline = 300 * MS
    world.run(250 * MS)
    assert engine.beats == []
    assert len(world.heap) == 1
    engine.deadline = 260 * MS
    world.settle(world.sites[0], engine)
    world.run(265 * MS)
    assert engine.beats == [260 * MS]


def test_an_engine_that_is_due_for_ever_is_caught() -> None:
    world = gossip_world(1, beat_ns=MS)
    gossip(world, 0).on_timer = lambda now: None  # type: ignore[method-assign]
    with pytest.raises(InvariantBroken, match="again and again"):
        world.run(SECOND)


@pytest.mark.parametrize("rate", [900, 1100])
def test_a_clock_with_another_rate_fires_early_or_late(rate: int) -> None:
    world = gossip_world(2, beat_ns=99 * MS)
    world.set_clock_rate(0, rate)
    world.run(SECOND)
    beats = gossip(world, 0).beats
    assert beats == [99 * MS * i for i in range(1, len(beats) + 1)]  # by its own clock
    assert len(beats) == SECOND * rate // 1000 // (99 * MS)
    assert len(gossip(world, 1).beats) == SECOND // (99 * MS)


def test_local_and_true_time_are_inverse() -> None:
    world = gossip_world(1)
    member = world.sites[0]
    world.run(12_345_678)
    world.set_clock_rate(0, 937)
    world.jump_clock(0, 5 * SECOND)
    for local in range(member.local(world.now), member.local(world.now) + 100):
        true = member.true_time(local)
        assert member.local(true) >= local
        assert member.local(true - 1) < local or true == world.now


def test_a_clock_that_jumps_a_day_makes_everything_due() -> None:
    world = gossip_world(1, beat_ns=SECOND)
    world.run(100 * MS)
    world.jump_clock(0)
    world.run(101 * MS)
    assert gossip(world, 0).beats == [DAY_NS + 100 * MS]


def test_clocks_do_not_go_back() -> None:
    with pytest.raises(ConfigError, match="jump_ns"):
        gossip_world(1).jump_clock(0, -1)
    with pytest.raises(ConfigError, match="rate"):
        gossip_world(1).set_clock_rate(0, 0)


def test_a_full_queue_refuses_and_nothing_is_recorded() -> None:
    rows = Rows()
    world = gossip_world(1, recorder=rows, room=1)
    assert world.submit(0, A)
    assert not world.submit(0, A)
    assert len(rows.of(SUBMIT)) == 1
    assert world.submissions_refused == 1


def test_indices_count_messages_not_bundles() -> None:
    rows = Rows()
    world = gossip_world(1, recorder=rows)
    world.submit(0, Bundle.of(b"a", b"b"))
    world.submit(0, A)
    assert [row[3] for row in rows.of(SUBMIT)] == [0, 2]


def test_a_paused_site_hears_late_and_fires_late() -> None:
    rows = Rows()
    world = gossip_world(2, medium=Bus(MS), recorder=rows, beat_ns=10 * MS, forward=False)
    world.pause(1)
    world.submit(0, A)
    world.run(25 * MS)
    assert gossip(world, 1).beats == []
    assert not world.submit(1, A)
    world.resume(1)
    assert gossip(world, 1).arrivals == [(25 * MS, 0, 0, 0)]
    world.run(40 * MS)
    assert gossip(world, 1).beats == [25 * MS, 35 * MS]
    assert len(rows.of(PAUSE)) == len(rows.of(RESUME)) == 1


def test_what_a_paused_site_can_keep_is_bounded() -> None:
    rows = Rows()
    world = gossip_world(2, medium=Bus(MS), recorder=rows, forward=False)
    world.pause(1)
    for _ in range(1500):
        world.submit(0, A)
    world.run(SECOND)
    world.resume(1)
    assert len(gossip(world, 1).arrivals) == 1024
    lost = [row for row in rows.of(LOSE) if row[5] == "paused"]
    assert len(lost) == 1500 - 1024


def test_buffers_are_sampled() -> None:
    seen: list[tuple[int, int, dict[str, int], dict[str, int]]] = []

    class Sampler:
        def sampled(
            self, time: int, site: int, usage: dict[str, int], caps: dict[str, int]
        ) -> None:
            seen.append((time, site, usage, caps))

    world = gossip_world(2, observers=[Sampler()], sample_ns=10 * MS)
    world.run(35 * MS)
    assert [(time, site) for time, site, _, _ in seen] == [
        (10 * MS * i, site) for i in (1, 2, 3) for site in (0, 1)
    ]
    assert seen[0][2:] == ({"heard": 0}, {"heard": 1000})


def test_observers_learn_of_healing_and_of_who_is_up_in_the_end() -> None:
    told: list[object] = []

    class Judge:
        def healed(self, time: int) -> None:
            told.append(time)

        def finished(self, time: int, up: set[int], settled: bool) -> None:
            told.append((time, up, settled))

    world = gossip_world(3, observers=[Judge()])
    world.run(MS)
    world.heal()
    world.crash(1)
    world.run(2 * MS)
    world.finish(settled=False)
    assert told == [MS, (2 * MS, {0, 2}, False)]


def test_run_stops_when_told_and_goes_on_where_it_was() -> None:
    world = gossip_world(1, beat_ns=MS)
    world.at(5 * MS, world.stop)
    world.run(SECOND)
    assert world.now == 5 * MS
    world.run(10 * MS)
    assert len(gossip(world, 0).beats) == 10


def test_run_until_gives_up_at_its_limit() -> None:
    world = gossip_world(1, beat_ns=MS)
    assert world.run_until(lambda: len(gossip(world, 0).beats) >= 3, SECOND, MS)
    assert world.now <= 4 * MS
    assert not world.run_until(lambda: False, 10 * MS, MS)


def test_a_slow_reader_is_detached_and_told_what_it_missed() -> None:
    watch = Watch()
    world = gossip_world(1, observers=[watch])
    world.slow_down(0, mailbox=2, drain_ns=10 * MS, reattach_ns=5 * MS)
    member = world.sites[0]
    consumer = member.consumer
    assert consumer is not None
    for seq in range(6):
        world.hand_over(member, Delivery(seq, 0, seq, A, COMMITTED))
    assert not consumer.attached
    assert len(consumer.mailbox) == 2  # bounded, whatever comes
    assert len(watch.of("delivered")) == 6  # the node goes on
    world.run(SECOND)
    assert watch.of("noticed") == [("noticed", 25 * MS, 0, "gap_unavailable", 2, 6)]
    assert consumer.received == 2
    world.hand_over(member, Delivery(6, 0, 6, A, COMMITTED))
    world.run(2 * SECOND)
    assert (consumer.received, consumer.position) == (3, 7)
    assert world.faults["slow-consumer"] == 1


def test_a_reader_that_speeds_up_takes_what_is_there_first() -> None:
    watch = Watch()
    world = gossip_world(1, observers=[watch])
    world.slow_down(0, mailbox=1, drain_ns=SECOND, reattach_ns=SECOND)
    consumer = world.sites[0].consumer
    assert consumer is not None
    for seq in range(3):
        world.hand_over(world.sites[0], Delivery(seq, 0, seq, A, COMMITTED))
    world.speed_up(0)
    assert consumer.received == 1
    assert watch.of("noticed") == [("noticed", 0, 0, "gap_unavailable", 1, 3)]
    assert world.sites[0].consumer is None


def test_a_world_needs_sites() -> None:
    with pytest.raises(ConfigError, match="sites"):
        gossip_world(0)


def test_each_arrival_is_an_event() -> None:
    world = gossip_world(5, forward=False)
    world.submit(0, A)
    world.run(SECOND)
    assert world.events == 1 + 4
    assert world.sent == 1
    assert isinstance(world.sites[0].engine, Gossip)
