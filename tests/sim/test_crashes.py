"""What a crash leaves, what a restart finds, and what the node does in between."""

from __future__ import annotations

from random import Random

import pytest

from roundelay.core.bundle import NOTHING, Bundle
from roundelay.core.engine import MS, SECOND, Engine
from roundelay.core.errors import ConfigError, UsageError
from roundelay.core.events import CRASH, LOSE, RESTART
from roundelay.core.families import TOKEN
from roundelay.core.token.config import TokenConfig
from roundelay.core.token.pdu import DATA, NULL, Ack, Entry
from roundelay.core.token.site import TokenSite
from roundelay.core.token.stable import Base, Joined, Listed, Stable, undelivered
from roundelay.sim.families.registry import SIMULATED_FAMILIES
from roundelay.sim.kernel.disk import SimulatedDisk
from roundelay.sim.kernel.world import World
from roundelay.sim.network.media import Bus
from tests.sim.gossip import Rows, Watch, gossip, gossip_world

A, B = Bundle.of(b"a"), Bundle.of(b"b")


def committed(ts: int, seq: int, bundle: Bundle = A, kind: int = DATA) -> Entry:
    return Entry(Ack((0, 0), ts, kind, 0, ts, 0, 1), bundle, seq)


def test_a_site_that_keeps_its_memory_goes_on_deaf_to_what_it_missed() -> None:
    rows = Rows()
    world = gossip_world(2, medium=Bus(MS), recorder=rows, forward=False, beat_ns=30 * MS)
    engine = gossip(world, 1)
    world.crash(1, "memory")
    world.submit(0, A)
    world.run(50 * MS)
    assert [row[5] for row in rows.of(LOSE)] == ["down"]
    world.restart(1)
    assert gossip(world, 1) is engine
    assert engine.beats == [50 * MS]  # late
    world.submit(0, B)
    world.run(55 * MS)
    assert engine.arrivals == [(51 * MS, 0, 0, 1)]


def test_a_site_that_keeps_its_disk_finds_what_it_persisted() -> None:
    watch = Watch()
    world = gossip_world(2, medium=Bus(MS), observers=[watch])
    world.submit(0, A)
    world.run(10 * MS)
    before = gossip(world, 1)
    world.crash(1, "disk")
    assert not world.submit(1, A)
    world.run(20 * MS)
    world.restart(1)
    after = gossip(world, 1)
    assert after is not before
    assert after.heard == {(0, 0)}
    assert watch.of("crashed") == [("crashed", 10 * MS, 1, "disk")]
    assert watch.of("restarted") == [("restarted", 20 * MS, 1, "disk")]


def test_a_site_that_keeps_nothing_rejoins() -> None:
    boots: list[tuple[object, str]] = []

    class Silent(Engine):
        def submit(self, bundle: Bundle, now: int) -> None: ...
        def receive(self, *given: object) -> None: ...
        def on_timer(self, now: int) -> None: ...

    def make(site: int, stable: object, boot: str, now: int, rng: Random) -> Engine:
        boots.append((stable, boot))
        return Silent(site, (0,))

    world = World(1, make, make_stable=Stable, boot="cold")
    world.sites[0].position = 7
    world.crash(0, "nothing")
    world.restart(0)
    assert boots == [(None, "cold"), (None, "rejoin")]
    assert world.sites[0].position == 0


def test_every_life_has_its_own_randomness() -> None:
    world = gossip_world(1)
    first = gossip(world, 0).rng.random()
    world.crash(0)
    world.restart(0)
    second = gossip(world, 0).rng.random()
    assert first != second
    assert gossip(gossip_world(1), 0).rng.random() == first


@pytest.mark.parametrize("steps", range(3))
def test_a_crash_amid_a_batch_does_a_prefix_of_persists_and_sends_and_delivers_nothing(
    steps: int,
) -> None:
    watch, rows = Watch(), Rows()
    world = gossip_world(2, medium=Bus(MS), observers=[watch], recorder=rows)
    world.crash(0, "disk", mid_batch=True, steps=steps)
    assert world.sites[0].state == "up"
    world.submit(0, A)  # one persist, one send, one delivery
    assert world.sites[0].state == "down"
    disk = world.sites[0].disk
    assert disk is not None
    assert disk.stable.heard == ({(0, 0)} if steps else set())
    assert world.sent == (1 if steps == 2 else 0)
    assert watch.of("delivered") == []
    assert world.faults["disk:torn-tail"] == (1 if steps == 0 else 0)


def test_a_crash_to_come_is_called_off_by_a_restart() -> None:
    world = gossip_world(1)
    world.crash(0, "disk", mid_batch=True)
    world.restart(0)
    assert world.submit(0, A)
    assert world.sites[0].state == "up"


def test_what_was_committed_and_not_delivered_is_handed_over_at_restart() -> None:
    watch = Watch()
    world = gossip_world(1, observers=[watch], make_stable=Stable)
    member = world.sites[0]
    assert member.disk is not None
    member.disk.write([committed(0, 0), committed(1, 1, NOTHING, NULL), committed(2, 1, B)])
    member.position = 1
    world.crash(0)
    gossips = world.make_engine
    world.make_engine = lambda s, stable, boot, now, rng: gossips(s, None, boot, now, rng)
    world.restart(0)
    assert watch.of("delivered") == [("delivered", 0, 0, 0, 2)]
    assert member.position == 2


def test_undelivered_tells_of_what_the_disk_no_longer_has() -> None:
    stable = Stable()
    for ts in range(4):
        stable.apply(committed(ts, ts))
    found, gap = undelivered(stable, 2)
    assert [delivery.seq for delivery in found] == [2, 3]
    assert gap is None
    stable.apply(Listed((1, 0), (0, 1), 10, 0, (), Base(10, ((0, 10),), 8)))
    stable.apply(committed(10, 8))
    found, gap = undelivered(stable, 4)
    assert [delivery.seq for delivery in found] == [8]
    assert gap is not None
    assert (gap.kind, gap.info) == ("gap_unavailable", (4, 8))


def test_a_disk_loses_only_what_needed_no_sync() -> None:
    disk = SimulatedDisk(Stable)
    disk.write([committed(0, 0), Joined((1, 0)), committed(1, 1), committed(2, 2)])
    assert disk.lose_unsynced() == 2
    assert disk.stable.cnts == 1
    assert disk.stable.max_joined == (1, 0)
    assert disk.lose_unsynced() == 0


def test_after_lost_records_the_node_does_not_deliver_twice() -> None:
    watch = Watch()
    world = gossip_world(1, observers=[watch], make_stable=Stable)
    member = world.sites[0]
    assert member.disk is not None
    member.disk.write([committed(0, 0), committed(1, 1)])
    member.position = 2
    world.lose_unsynced(0)
    assert (member.state, member.forgot, world.faults["disk:lost-unsynced"]) == ("down", 2, 1)
    for delivery in undelivered_of(0, 1, 2):
        world.hand_over(member, delivery)  # type: ignore[arg-type]
    assert [line[4] for line in watch.of("delivered")] == [2]


def undelivered_of(*positions: int) -> list[object]:
    stable = Stable()
    for position in positions:
        stable.apply(committed(position, position))
    return list(undelivered(stable, 0)[0])


def test_a_write_that_fails_stops_the_site_before_it_sends() -> None:
    watch = Watch()
    world = gossip_world(2, medium=Bus(MS), observers=[watch])
    world.fail_disk(0)
    world.submit(0, A)
    assert (world.sites[0].state, world.sent) == ("down", 0)
    assert watch.of("delivered") == []


def test_a_slow_disk_delays_everything_that_depends_on_it() -> None:
    watch = Watch()
    world = gossip_world(2, medium=Bus(MS), observers=[watch], forward=False)
    world.slow_disk(0, 20 * MS)
    world.submit(0, A)
    world.run(10 * MS)
    assert (world.sites[0].state, world.sent, watch.log) == ("paused", 0, [])
    world.run(SECOND)
    assert [line[1:3] for line in watch.of("delivered")] == [(20 * MS, 0), (21 * MS, 1)]


def test_a_crash_during_a_slow_write_loses_what_waited_for_it() -> None:
    world = gossip_world(2, medium=Bus(MS))
    world.slow_disk(0, 20 * MS)
    world.submit(0, A)
    world.crash(0)
    world.restart(0)
    world.run(SECOND)
    assert world.sent == 0
    assert gossip(world, 0).heard == {(0, 0)}


def test_a_site_away_with_its_memory_during_a_slow_write_finishes_it_when_it_is_back() -> None:
    watch = Watch()
    world = gossip_world(2, medium=Bus(MS), observers=[watch], forward=False)
    world.slow_disk(0, 20 * MS)
    world.submit(0, A)
    world.crash(0, "memory")
    world.run(50 * MS)
    world.restart(0)
    world.run(SECOND)
    assert [line[1:3] for line in watch.of("delivered")] == [(50 * MS, 0), (51 * MS, 1)]


def test_a_power_cut_takes_all_and_all_come_back() -> None:
    rows = Rows()
    world = gossip_world(3, recorder=rows)
    world.pause(2)
    world.power_cut()
    assert [member.state for member in world.sites] == ["down"] * 3
    world.restart_all()
    assert [member.state for member in world.sites] == ["up"] * 3
    assert len(rows.of(CRASH)) == len(rows.of(RESTART)) == 3


def test_crashing_what_is_down_and_restarting_what_is_up_does_nothing() -> None:
    watch = Watch()
    world = gossip_world(1, observers=[watch])
    world.restart(0)
    world.crash(0)
    world.crash(0, "nothing")
    world.restart(0)
    assert [line[0] for line in watch.log] == ["crashed", "restarted"]


def test_what_cannot_be_is_refused() -> None:
    world = gossip_world(1)
    with pytest.raises(ConfigError, match="keeps"):
        world.crash(0, "hope")
    with pytest.raises(UsageError, match="middle of a batch"):
        world.crash(0, "memory", mid_batch=True)
    with pytest.raises(UsageError, match="no disk"):
        gossip_world(1, make_stable=None).crash(0, "disk")


def test_a_power_cut_of_all_takes_what_was_not_synced_and_the_group_says_so() -> None:
    """Positions that were given may be used again, but in another history, at every site."""
    config = TokenConfig(resilience=1)
    world = World(
        3,
        SIMULATED_FAMILIES[TOKEN].factory(3, config),
        seed="power",
        medium=Bus(MS),
        make_stable=Stable,
    )
    for number in range(6):
        world.submit(number % 3, Bundle.of(b"%d" % number))
        world.run(world.now + 500 * MS)
    sites = [token(world, site) for site in range(3)]
    assert {site.position for site in sites} == {6}
    ((was, _, _),) = {site.token_list.history for site in sites}
    for site in world.group:
        world.lose_unsynced(site)
    world.restart_all()
    world.run(world.now + 20 * SECOND)
    sites = [token(world, site) for site in range(3)]
    ((fresh, parent, base),) = {site.token_list.history for site in sites}
    assert fresh != was
    assert (parent, base) == (was, 0)
    # A cut that loses nothing ends nothing.
    world.submit(0, Bundle.of(b"new"))
    world.run(world.now + SECOND)
    world.power_cut()
    world.restart_all()
    world.run(world.now + 20 * SECOND)
    assert {token(world, site).token_list.history for site in range(3)} == {(fresh, parent, base)}
    assert {token(world, site).position for site in range(3)} == {1}


def token(world: World, site: int) -> TokenSite:
    engine = world.sites[site].engine
    assert isinstance(engine, TokenSite)
    return engine
