"""What the token protocol guarantees: CM-T1 … CM-T13."""

from __future__ import annotations

from functools import partial
from itertools import combinations
from random import Random
from typing import Any

import pytest

from roundelay.core.bundle import Bundle
from roundelay.core.cost import storage_messages
from roundelay.core.engine import NEVER, Delivery
from roundelay.core.events import DISK, MEMORY
from roundelay.core.token.config import TokenConfig
from roundelay.core.token.pdu import (
    DATA,
    NULL,
    Abort,
    Ack,
    Confirm,
    Invite,
    NewTl,
    NewToken,
    RetxAck,
    RetxReq,
)
from roundelay.core.token.phases import O1, S1, W3
from roundelay.core.token.site import TokenSite
from roundelay.core.token.stable import Stable
from roundelay.sim.kernel.load import Poisson
from roundelay.sim.kernel.world import World
from roundelay.sim.network.links import Duplicated, Lossy, Partition
from roundelay.sim.network.media import Bus, Datagram
from roundelay.trace.checkers.checkers import Checker
from tests.core.ring import MS, Ring

U = (0, 0)


def world_of(sites: int, config: TokenConfig, seed: int) -> tuple[World, Checker, list[list[Any]]]:
    """A world of datagrams, a checker, and what each site delivered."""

    def make(site: int, stable: Any, boot: str, now: int, rng: Random) -> TokenSite:
        return TokenSite(site, tuple(range(sites)), config, rng, stable=stable, now=now)

    checker = Checker(range(sites))
    logs: list[list[Any]] = [[] for _ in range(sites)]

    class Look:
        def delivered(self, time: int, site: int, delivery: Delivery) -> None:
            logs[site] += [(delivery.source, data) for data in delivery.bundle]

    world = World(
        sites, make, seed=seed, medium=Datagram(MS // 4, 3 * MS), make_stable=Stable,
        observers=(checker, Look()),
    )  # fmt: skip
    return world, checker, logs


def brisk(**changes: Any) -> TokenConfig:
    """Short times, so that much happens in a second."""
    values: dict[str, Any] = {
        "hold_ns": 10 * MS, "resend_ns": 30 * MS, "pass_ns": 30 * MS, "request_ns": 10 * MS,
        "retx_ns": 10 * MS, "attempts": 4, "attempts_hard": 16, "idle_ns": 100 * MS,
    }  # fmt: skip
    return TokenConfig(**(values | changes))


def settle(world: World, logs: list[list[Any]], limit_s: int = 60) -> bool:
    """Heal, restart everybody, and wait until nobody has anything pending."""
    world.restart_all()
    world.heal()

    def idle() -> bool:
        longest = max(map(len, logs))
        engines: list[Any] = [member.engine for member in world.sites]
        return (
            all(
                engine is not None
                and engine.token_list.authorized
                and not engine.own.kept
                and not engine.own.waiting
                and len(log) == longest
                for engine, log in zip(engines, logs, strict=True)
            )
            and len({engine.tl for engine in engines}) == 1
        )

    return world.run_until(idle, world.now + limit_s * 1000 * MS, 20 * MS)


def back(engines: list[Any]) -> bool:
    return all(engine.token_list.authorized for engine in engines)


# -- CM-T1, CM-T2 ----------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(10))
def test_cm_t1_one_order_everywhere_in_spite_of_loss_copies_jitter_crashes_and_partitions(
    seed: int,
) -> None:
    rng = Random(f"t1/{seed}")
    sites = rng.choice((3, 4, 5, 7))
    level = rng.randint(0, (sites + 1) // 2 - 1)
    kw, kr = rng.choice(((1, 1), (3, 1), (1, 2)))
    config = brisk(resilience=level, kw=kw, kr=kr, bundle=rng.random() < 0.5)
    world, checker, logs = world_of(sites, config, seed)
    noise = Lossy(rng.uniform(0.0, 0.3)) | Duplicated(0.2, 20 * MS)
    world.set_links(noise)
    load = Poisson(150, rate=100.0)
    load.start(world)
    for _ in range(5):
        world.run(world.now + rng.randint(50, 400) * MS)
        if rng.random() < 0.5:
            down = rng.sample(range(sites), rng.randint(1, max(1, level)))
            for site in down:
                world.crash(site, rng.choice((DISK, MEMORY)))
            world.run(world.now + rng.randint(10, 500) * MS)
            for site in down:
                world.restart(site)
            # One failure at a time: a restarted site is one until it is in a list again.
            engines: list[Any] = [world.sites[site].engine for site in down]
            world.run_until(partial(back, engines), world.now + 20_000 * MS, 10 * MS)
        else:
            some = rng.sample(range(sites), rng.randint(1, sites - 1))
            rest = [site for site in range(sites) if site not in some]
            world.set_links(noise | Partition.symmetric(some, rest))
            world.run(world.now + rng.randint(10, 500) * MS)
            world.set_links(noise)
    world.run_until(lambda: load.done, world.now + 60_000 * MS, 50 * MS)
    assert settle(world, logs)
    world.finish()
    assert checker.violations == []
    assert all(log == logs[0] for log in logs)
    assert checker.committed >= 100


@pytest.mark.parametrize("seed", range(10))
def test_cm_t2_strict_no_pattern_of_crashes_breaks_the_order_and_all_back_means_progress(
    seed: int,
) -> None:
    rng = Random(f"t2/{seed}")
    sites = rng.choice((3, 4, 5))
    config = brisk(resilience=rng.randint(0, (sites + 1) // 2 - 1), strict=True)
    world, checker, logs = world_of(sites, config, seed)
    world.set_links(Lossy(0.1) | Duplicated(0.1, 10 * MS))
    load = Poisson(120, rate=100.0)
    load.start(world)
    for _ in range(12):
        world.run(world.now + rng.randint(5, 200) * MS)
        if rng.random() < 0.15:
            world.power_cut()
        else:
            for site in rng.sample(range(sites), rng.randint(1, sites)):
                world.crash(site, DISK, mid_batch=rng.random() < 0.3)
        world.run(world.now + rng.randint(5, 200) * MS)
        for site in rng.sample(range(sites), rng.randint(1, sites)):
            world.restart(site)
    world.restart_all()
    world.run_until(lambda: load.done, world.now + 60_000 * MS, 50 * MS)
    assert settle(world, logs)
    world.finish()
    assert checker.violations == []
    assert all(log == logs[0] for log in logs)
    # Progress, not just peace: a new message gets through.
    before = len(logs[0])
    world.submit(sites - 1, Bundle.of(b"afterwards"))
    assert world.run_until(lambda: len(logs[0]) > before, world.now + 5_000 * MS, 20 * MS)


@pytest.mark.parametrize("strict", [True, False])
def test_cm_t2_without_strict_a_single_restart_can_cost_a_delivered_message(strict: bool) -> None:
    """The paper's recovery, read literally: site 0 has forgotten what it stamped, yet counts as a
    witness that nothing was stamped."""
    ring = Ring(3, attempts=2, strict=strict)
    ring.lose(dst=2)
    ring.lose(src=1, dst=0)
    ring.submit(0, "x")
    ring.run(60 * MS)
    assert [ring.log(site) for site in ring.group] == [[], ["x"], []]
    ring.crash(0, keeps="synced")
    ring.heal()
    ring.cut((1,), (0, 2))
    ring.restart(0)
    ring.submit(2, "y")
    ring.run(20_000 * MS)
    if strict:
        assert ring.log(0) == ring.log(2) == []
        assert ("resiliency", (1,), (0,)) in ring.told(0, "blocked") + ring.told(2, "blocked")
        ring.heal()
        ring.run_until(lambda: all(ring.log(site)[:2] == ["x", "y"] for site in ring.group))
        ring.check()
    else:
        assert ring.log(0) == ring.log(2) == ["y"]
        with pytest.raises(AssertionError, match="position 0"):
            ring.check()


# -- CM-T3 -----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
def test_cm_t3_one_issuer_per_stamp_one_list_per_version_and_versions_rise(seed: int) -> None:
    rng = Random(f"t3/{seed}")
    ring = Ring(4, seed=seed, attempts=2, history=8)
    for turn in range(12):
        for site in list(ring.sites):
            ring.submit(site, f"{site}/{turn}")
        victim = rng.choice(ring.group)
        if rng.random() < 0.5:
            ring.crash(victim)
            ring.run(rng.randint(1, 800) * MS)
            ring.restart(victim)
        else:
            ring.cut((victim,), tuple(s for s in ring.group if s != victim))
            ring.run(rng.randint(1, 800) * MS)
            ring.heal()
        ring.run(rng.randint(1, 2000) * MS)
    ring.run(20_000 * MS)
    assert len(ring.stamps()) > 40
    assert all(len(acks) == 1 for acks in ring.stamps().values())
    views: dict[Any, set[Any]] = {}
    for site in ring.group:
        mine = ring.told(site, "view")
        versions = [version for version, *_ in mine]
        assert versions == sorted(set(versions))
        for version, members, *_ in mine:
            views.setdefault(version, set()).add(members)
            assert len(members) >= 3  # a majority of 4
    assert len(views) > 3
    assert all(len(members) == 1 for members in views.values())
    ring.check()


# -- CM-T4 -----------------------------------------------------------------------------------


def all_have(message: bytes, logs: list[list[Delivery]]) -> bool:
    return all(any(message in delivery.bundle for delivery in log) for log in logs)


@pytest.mark.parametrize("sites, level", [(3, 1), (5, 1), (5, 2)])
def test_cm_t4_what_one_site_delivered_survives_the_crash_of_any_l_members(
    sites: int, level: int
) -> None:
    for victims in combinations(range(sites), level):
        ring = Ring(sites, resilience=level, attempts=2)
        ring.submit(1, "x")
        # Stop at the very moment of the first delivery: nobody else knows more than it must.
        while not any(ring.delivered.values()):
            if ring.flights:
                ring.deliver()
            else:
                site = min(ring.sites, key=lambda site: (ring.sites[site].deadline, site))
                ring.fire(site)
        ring.flights.clear()
        ring.crash(*victims)
        survivors = list(ring.sites)
        ring.submit(survivors[0], "y")  # so that somebody notices
        logs = [ring.delivered[site] for site in survivors]
        ring.run_until(partial(all_have, b"x", logs))
        ring.check()


# -- CM-T5 -----------------------------------------------------------------------------------


def test_cm_t5_with_l_0_the_death_of_the_token_site_blocks_until_it_returns() -> None:
    ring = Ring(3, resilience=0, attempts=2)
    ring.submit(1, "a")
    ring.run(300 * MS)
    (holder,) = ring.holders
    ring.crash(holder)
    others = [site for site in ring.group if site != holder]
    ring.submit(others[0], "b")
    ring.run(30_000 * MS)
    assert all(ring.log(site) == ["a"] for site in others)
    told = {info for site in others for info in ring.told(site, "blocked")}
    assert told == {("resiliency", (holder,), ())}
    ring.restart(holder)
    ring.run_until(lambda: all(ring.log(site) == ["a", "b"] for site in ring.group))
    assert any(ring.told(site, "unblocked") for site in others)
    ring.check()


def test_cm_t5_with_l_0_any_other_site_may_die() -> None:
    ring = Ring(3, resilience=0, attempts=2)
    ring.submit(1, "a")
    ring.run(300 * MS)
    (holder,) = ring.holders
    successor = ring[holder].token_list.successor[holder]
    ring.crash((successor + 1) % 3 if (successor + 1) % 3 != holder else successor)
    ring.submit(holder, "b")
    ring.run_until(lambda: all(ring.log(site) == ["a", "b"] for site in ring.sites))


# -- CM-T6 -----------------------------------------------------------------------------------


@pytest.mark.parametrize("minority", [(0,), (1,), (4,), (0, 1), (1, 4), (2, 3)])
def test_cm_t6_a_minority_delivers_nothing_new_and_gives_way_when_the_network_heals(
    minority: tuple[int, ...],
) -> None:
    ring = Ring(5, resilience=2, attempts=2)
    ring.submit(2, "before")
    ring.run(1500 * MS)
    majority = tuple(site for site in ring.group if site not in minority)
    ring.cut(minority, majority)
    for site in ring.group:
        ring.submit(site, f"during {site}")
    ring.run(20_000 * MS)
    for site in minority:
        assert ring.log(site) == ["before"]
    for site in majority:
        assert sorted(ring.log(site)) == ["before", *(f"during {site}" for site in majority)]
    ring.heal()
    ring.run_until(lambda: all(len(ring.log(site)) == 6 for site in ring.group))
    assert all(ring.log(site) == ring.log(0) for site in ring.group)
    # Its own messages were submitted again and come after what the majority ordered meanwhile.
    assert sorted(ring.log(0)[-len(minority) :]) == sorted(f"during {s}" for s in minority)
    ring.check()


def test_cm_t6_a_majority_without_a_witness_waits_rather_than_guess() -> None:
    """L = 1, and both sites that would have stamped next are on the other side."""
    ring = Ring(5, attempts=2)
    ring.submit(2, "before")
    ring.run(1500 * MS)
    assert ring.holders == [1]
    ring.submit(1, "x")
    ring.flights.clear()  # the stamp that passes the token from 1 to 2
    ring.cut((2, 3), (0, 1, 4))
    ring.run(20_000 * MS)
    assert all(ring.log(site) == ["before"] for site in ring.group)
    told = {site: ring.told(site, "blocked") for site in ring.group}
    assert {info for site in (0, 1, 4) for info in told[site]} == {("resiliency", (2, 3), ())}
    assert {info for site in (2, 3) for info in told[site]} == {("majority", (0, 1, 4), ())}
    ring.heal()
    ring.run_until(lambda: all(ring.log(site) == ["before", "x"] for site in ring.group))
    ring.check()


# -- CM-T7 -----------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", [0.0, 0.1])
@pytest.mark.parametrize(
    "kw, kr", [(1, 1), (2, 1), (4, 1), (9, 1), (1, 2), (1, 4), (1, 9)], ids=str
)
def test_cm_t7_the_storage_for_requests_is_bounded_as_in_table_i(
    kw: int, kr: int, loss: float
) -> None:
    sites = 10
    config = TokenConfig.paper(10 * MS, resilience=1, kw=kw, kr=kr)

    def make(site: int, stable: Any, boot: str, now: int, rng: Random) -> TokenSite:
        return TokenSite(site, tuple(range(sites)), config, rng, stable=stable, now=now)

    world = World(sites, make, seed=7, medium=Bus(10_000), links=Lossy(loss))
    load = Poisson(400, rate=1000.0)
    load.start(world)
    world.run_until(lambda: load.done, 10**12, 100 * MS)
    world.run(world.now + 1000 * MS)
    engines: list[Any] = [member.engine for member in world.sites]
    most = max(engine.log.storage_max for engine in engines)
    bound = storage_messages(sites, kw, kr)
    assert most <= bound
    if not loss:
        assert most == bound  # and it is reached: the bound is no smaller than needed


# -- CM-T8 -----------------------------------------------------------------------------------


@pytest.mark.parametrize("level", [1, 2, 3, 4])
def test_cm_t8_a_message_commits_within_t_times_l_minus_1_of_its_acknowledgement(
    level: int,
) -> None:
    ring = Ring(9, resilience=level, idle_ns=NEVER)
    for k in range(6):
        ring.submit(k, f"m{k}")
        ring.run(2000 * MS)
    hold = ring.config.hold_ns
    acks = {s.pdu.ts: s.time for s in ring.sent if isinstance(s.pdu, Ack) and s.pdu.kind == DATA}
    for seq, (ts, acknowledged) in enumerate(sorted(acks.items())):
        first = min(
            time
            for site in ring.group
            for time, delivery in zip(ring.delivered_at[site], ring.delivered[site], strict=True)
            if delivery.seq == seq
        )
        assert first - acknowledged == hold * (level - 1), ts


# -- CM-T9 -----------------------------------------------------------------------------------


@pytest.mark.parametrize("victim", [1, 2, 3, 4])
def test_cm_t9_a_failed_member_is_noticed_within_n_token_transfers(victim: int) -> None:
    ring = Ring(5, attempts=2, idle_ns=NEVER, bundle=False)
    ring.crash(victim)
    transfers = 0
    k = 0
    while all(engine.tl == U and engine.phase == "NORMAL" for engine in ring.sites.values()):
        ring.submit(0, f"m{k}")
        ring.run(400 * MS)
        k += 1
        stamps = {ack.ts for ack in ring.pdus(Ack) if ack.tl == U and ack.next != ack.by}
        transfers = len(stamps)
        assert transfers <= 5
    assert transfers <= 5
    ring.run_until(lambda: all(victim not in e.token_list.members for e in ring.sites.values()))


# -- CM-T10 ----------------------------------------------------------------------------------


@pytest.mark.parametrize("committed", [(1,), (1, 2), (3, 4)])
def test_cm_t10_an_aborted_list_some_sites_committed_to_loses_nothing(
    committed: tuple[int, ...],
) -> None:
    ring = Ring(5, attempts=2)
    ring.submit(2, "a", "b")
    ring.run(1500 * MS)
    delivered = {site: list(ring.log(site)) for site in ring.group}
    for site in ring.group:
        if site not in committed:
            ring.lose(NewTl, dst=site)
    ring.lose(NewToken)
    ring[0].reform(ring.now)
    ring.collect(0)
    ring.settle()
    assert [site for site in (1, 2, 3, 4) if ring[site].tl == (1, 0)] == list(committed)
    ring.crash(0)
    ring.heal()
    ring.submit(3, "c")
    ring.run_until(lambda: all(ring.log(site)[-1:] == ["c"] for site in ring.sites))
    for site in ring.sites:
        assert ring[site].tl > (1, 0)
        assert ring.log(site)[: len(delivered[site])] == delivered[site]
    ring.restart(0)
    ring.run_until(lambda: ring.log(0) == ["a", "b", "c"])
    ring.check()


def test_cm_t10_a_lost_token_of_a_complete_list_loses_nothing_either() -> None:
    ring = Ring(5, attempts=2)
    ring.submit(2, "a")
    ring.run(1500 * MS)
    # A site that is not the originator will be the first token site of the next list …
    ring.lose(dst=0)
    ring.submit(2, "b")
    ring.run(60 * MS)
    ring.heal()
    ring.lose(NewToken)
    ring[0].reform(ring.now)
    ring.collect(0)
    ring.settle()
    assert [ring[site].phase for site in ring.group].count(W3) == 1
    assert not any(ring[site].token_list.authorized for site in ring.group)
    ring.crash(0)  # … and the originator dies before its token arrives
    ring.heal()
    ring.run_until(lambda: all(ring.log(site) == ["a", "b"] for site in ring.sites))
    ring.check()


# -- CM-T11 ----------------------------------------------------------------------------------


def test_cm_t11_a_lost_acknowledgement_is_repaired_by_the_old_broadcast_alone() -> None:
    ring = Ring(3, idle_ns=NEVER)
    ring.lose(Ack, dst=2, times=1)
    ring.lose(Confirm, dst=2)
    ring.submit(2, "x")
    ring.run(400 * MS)
    assert ring.kinds() == {"B": 2, "Ack": 1, "Confirm": 1, "RetxAck": 1}
    assert ring.pdus(RetxReq) == []
    assert ring[2].nts == 1


def test_cm_t11_a_lost_confirmation_is_repaired_by_the_old_acknowledgement_alone() -> None:
    ring = Ring(3, idle_ns=NEVER)
    ring.lose(Confirm, dst=0, times=1)
    ring.submit(2, "x")
    ring.run(400 * MS)
    assert ring.kinds() == {"B": 1, "Ack": 2, "Confirm": 2}
    assert ring.pdus(RetxReq) == []
    assert ring.log(0) == ["x"]


def test_cm_t11_a_lost_acceptance_by_stamp_is_repaired_by_the_old_acknowledgement_alone() -> None:
    ring = Ring(3, idle_ns=NEVER, bundle=False, resilience=1)
    ring.lose(lambda pdu: isinstance(pdu, Ack) and pdu.ts == 1, dst=0, times=1)
    ring.lose(Confirm, dst=0)
    ring.submit(2, "x", "y")
    ring.run(400 * MS)
    # 0 repeats stamp 0; the token is at 2 by now, which answers with stamp 1.
    assert [pdu.ack.ts for pdu in ring.pdus(RetxAck, src=2, dst=0)] == [1]
    assert ring.pdus(RetxReq) == []
    assert ring[0].stamping.passing == -1
    assert ring.log(0) == ["x"]


# -- CM-T12 ----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(8))
def test_cm_t12_two_originators_at_once_both_abort_and_one_list_forms(seed: int) -> None:
    ring = Ring(4, seed=seed)
    ring.submit(3, "x")
    ring.run(200 * MS)
    for site in (0, 2):
        ring[site].reform(ring.now)
        ring.collect(site)
    assert [ring[site].phase for site in (0, 2)] == [O1, O1]
    ring.settle()
    assert {pdu.v for pdu in ring.pdus(Abort)} == {(1, 0), (1, 2)}
    ring.submit(1, "y")
    ring.run_until(lambda: all(ring.log(site) == ["x", "y"] for site in ring.group))
    assert len({ring[site].tl for site in ring.group}) == 1
    assert ring[0].tl > (1, 2)
    assert ring[0].token_list.members == ring.group
    ring.check()


@pytest.mark.parametrize("seed", range(4))
def test_cm_t12_everybody_originating_at_once_ends_in_one_list_too(seed: int) -> None:
    ring = Ring(5, seed=seed)
    for _ in range(3):
        for site in ring.group:
            ring[site].reform(ring.now)
            ring.collect(site)
        ring.run(200 * MS)
    ring.submit(1, "y")
    ring.run_until(lambda: all(ring.log(site) == ["y"] for site in ring.group))
    ring.check()


# -- CM-T13 ----------------------------------------------------------------------------------


def test_cm_t13_nulls_of_an_abandoned_list_are_not_committed() -> None:
    """Erratum 11: a NULL committed early would let the commit mark run over a stamp that the next
    list gives to a message."""
    ring = Ring(5, resilience=2, attempts=2)
    ring.submit(2, "a")
    ring.run(2000 * MS)
    (holder,) = ring.holders
    mark = ring[holder].cnts
    # The holder stamps a message nobody hears of, then sees the list fall apart.
    others = tuple(site for site in ring.group if site != holder)
    ring.submit(holder, "void")
    ring.cut((holder,), others)
    ring.flights.clear()
    ring.run(20 * MS)
    engine = ring[holder]
    assert engine.cnts == mark
    assert engine.nts > mark
    ring.submit(others[0], "b")
    ring.run_until(lambda: all(ring.log(site) == ["a", "b"] for site in others))
    assert ring[holder].cnts == mark  # neither its message nor any NULL
    given = ring[others[0]].log.entries
    stamps = [ts for ts, line in given.items() if ts >= mark and line.ack.kind == DATA]
    assert stamps  # the stamps were given to other entries
    ring.heal()
    ring.run_until(lambda: all(ring.log(site) == ["a", "b", "void"] for site in ring.group))
    ring.check()


def test_cm_t13_a_null_that_a_cut_off_site_heard_of_is_not_committed_there() -> None:
    site = TokenSite(3, (0, 1, 2, 3, 4), TokenConfig(resilience=2), Random(0))
    site.take()
    for ts in range(3):
        site.receive(Ack(U, ts, NULL, ts, 0, ts, ts + 1), ts, 1)
    # Stamp 2 passed the token to us, so transfers 0 to 2 are accepted: 0 and 1 have two each.
    assert (site.nts, site.cnts) == (3, 2)
    site.receive(Invite((1, 0), 7), 0, 2)
    assert site.phase == S1
    site.receive(Confirm(U, 2, 3, 2), 3, 3)  # too late: the site has left the list for good
    assert site.cnts == 2


def test_every_guarantee_of_the_design_has_a_test() -> None:
    names = " ".join(name for name in globals() if name.startswith("test_cm_t"))
    assert all(f"test_cm_t{k}_" in names for k in range(1, 14))
