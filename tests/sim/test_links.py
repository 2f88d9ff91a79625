"""Each link does what it says, as often as it says."""

from __future__ import annotations

from random import Random

import pytest

from roundelay.core.bundle import Bundle
from roundelay.core.engine import MS, SECOND, Pdu
from roundelay.core.errors import ConfigError
from roundelay.core.token.pdu import Abort, Ack, Confirm, NewToken
from roundelay.sim.network.links import (
    PLAIN,
    Alien,
    Bursts,
    Clogged,
    Copy,
    Corrupted,
    Delayed,
    Duplicated,
    Fate,
    Link,
    Lossy,
    Partition,
    Reordered,
    Replayed,
    Targeted,
    Truncated,
    damaged,
)  # fmt: skip
from roundelay.sim.network.media import Bus
from tests.sim.gossip import Rows, gossip, gossip_world

A = Bundle.of(b"a")
PDU = Abort((1, 1))


class Bench:
    """A link on its own."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.counts: dict[str, int] = {}
        self.ref = 0
        for part in link.parts():
            part.bind(lambda name: Random(f"bench/{name}"), self.count)

    def count(self, kind: str) -> None:
        self.counts[kind] = self.counts.get(kind, 0) + 1

    def carry(self, src: int = 0, dst: int = 1, pdu: Pdu = PDU, time: int = 0) -> Fate:
        self.ref += 1
        return self.link.carry(time, src, dst, pdu, self.ref)

    def many(self, times: int = 10_000) -> list[Fate]:
        return [self.carry() for _ in range(times)]


@pytest.mark.parametrize("loss", [0.0, 0.05, 0.3])
def test_lossy_loses_its_share(loss: float) -> None:
    bench = Bench(Lossy(loss))
    lost = [fate for fate in bench.many() if fate == "loss"]
    assert abs(len(lost) / 10_000 - loss) < 0.015
    assert bench.counts.get("loss", 0) == len(lost)


def test_the_fast_path_draws_as_the_general_one_does() -> None:
    def lost(links: Link) -> list[object]:
        rows = Rows()
        world = gossip_world(4, links=links, recorder=rows, forward=False)
        for _ in range(200):
            world.submit(0, A)
        world.run(SECOND)
        return [(row[1], row[3]) for row in rows.rows if row[5] == "loss"]

    class Slow(Lossy):
        pass

    slow = Slow(0.2)
    Slow.__name__ = "Lossy"  # streams are named after the class
    chance, slow.loss = 0.2, None
    slow.carry = lambda time, src, dst, pdu, ref: (  # type: ignore[method-assign]
        "loss" if slow.rng.random() < chance else None
    )
    assert lost(Lossy(0.2)) == lost(slow) != []


def test_bursts_lose_many_in_a_row_and_are_counted_once_each() -> None:
    bench = Bench(Bursts(0.002, 200))
    fates = bench.many(50_000)
    runs, length = [], 0
    for fate in fates:
        if fate == "burst":
            length += 1
        elif length:
            runs.append(length)
            length = 0
    assert max(runs) > 100
    assert 50 < sum(runs) / len(runs) < 150
    assert bench.counts["burst"] >= len(runs)


def test_a_burst_hits_one_receiver_only() -> None:
    bench = Bench(Bursts(0.5, 1000))
    while bench.carry(dst=1) is None:
        pass
    bench.link.rng = Random(1)
    deaf = [bench.carry(dst=1) for _ in range(3)]
    assert deaf == ["burst"] * 3
    assert bench.link.to_lose.keys() == {1}  # type: ignore[attr-defined]


def test_duplicates_follow_within_their_time() -> None:
    bench = Bench(Duplicated(0.5, 10 * MS))
    copies = [fate for fate in bench.many() if fate is not None]
    assert abs(len(copies) - 5000) < 250
    for fate in copies:
        assert isinstance(fate, list)
        first, second = fate
        assert first == Copy()
        assert second.again
        assert 0 <= second.delay <= 10 * MS


def test_replays_come_late() -> None:
    bench = Bench(Replayed(0.1, SECOND, 3 * SECOND))
    late = [fate[1].delay for fate in bench.many() if isinstance(fate, list)]
    assert abs(len(late) - 1000) < 150
    assert SECOND <= min(late) < max(late) <= 3 * SECOND


def test_delays_are_within_their_bounds() -> None:
    bench = Bench(Delayed(MS, 5 * MS, rate=0.3))
    delays = [fate[0].delay for fate in bench.many() if isinstance(fate, list)]
    assert abs(len(delays) - 3000) < 250
    assert MS <= min(delays) < max(delays) <= 5 * MS
    assert bench.counts["delay"] == len(delays)


def test_reordered_copies_are_overtaken() -> None:
    world = gossip_world(2, medium=Bus(MS), links=Reordered(0.2, 10 * MS), forward=False)
    for i in range(100):
        world.at(i * MS, lambda: world.submit(0, A))
    world.run(SECOND)
    numbers = [n for _, _, _, n in gossip(world, 1).arrivals]
    assert sorted(numbers) == list(range(100))
    assert numbers != sorted(numbers)


def test_a_clogged_link_holds_everything_back_in_order_and_no_other() -> None:
    world = gossip_world(3, medium=Bus(MS), forward=False)
    world.set_links(Clogged(0, 1, 10 * MS, 50 * MS))
    for i in range(6):
        world.at(i * 10 * MS, lambda: world.submit(0, A))
    world.run(SECOND)
    one = [(t // MS, n) for t, _, _, n in gossip(world, 1).arrivals]
    two = [(t // MS, n) for t, _, _, n in gossip(world, 2).arrivals]
    assert one == [(1, 0), (51, 1), (51, 2), (51, 3), (51, 4), (51, 5)]
    assert two == [(10 * n + 1, n) for n in range(6)]
    assert world.faults["clog"] == 1


@pytest.mark.parametrize(
    "link, kind",
    [(Corrupted(0.1), "corrupt"), (Truncated(0.1), "truncate"), (Alien(0.1), "alien-version")],
)
def test_damage_comes_at_its_rate(link: Link, kind: str) -> None:
    bench = Bench(link)
    hurt = [fate for fate in bench.many() if isinstance(fate, list)]
    assert abs(len(hurt) - 1000) < 150
    assert all(copy.damage[0][0] == kind for fate in hurt for copy in fate)
    assert bench.counts[kind] == len(hurt)


def test_damage_changes_bytes() -> None:
    data = bytes(range(64))
    flipped = damaged(data, (("corrupt", 0.5),))
    assert sum(bin(a ^ b).count("1") for a, b in zip(data, flipped, strict=True)) == 1
    assert damaged(data, (("corrupt", 0.5), ("corrupt", 0.5))) != data  # never flipped back
    assert damaged(data, (("truncate", 0.99),)) == data[:63]
    assert damaged(data, (("truncate", 0.0),)) == b""
    alien = damaged(data, (("alien-version", 9),))
    assert alien[1] == 9
    assert alien[:1] + alien[2:-4] == data[:1] + data[2:-4]


def ack(by: int, following: int) -> Ack:
    return Ack((0, 0), 5, 1, 0, 0, by, following)


def test_targeted_loses_the_kth_of_its_kind_for_all_receivers() -> None:
    link = Targeted("NEW_TOKEN", kth=2, many=2)
    bench = Bench(link)
    fates = []
    for ref in range(5):
        for dst in (1, 2):
            fates.append(link.carry(0, 0, dst, NewToken((1, 1)), ref))
        assert link.carry(0, 0, 1, Abort((1, 1)), 100 + ref) is None
    assert fates == [None] * 2 + ["targeted"] * 4 + [None] * 4
    assert bench.counts == {"target:newtoken": 2}
    assert link.spent


def test_a_transfer_is_an_ack_that_names_another_site() -> None:
    bench = Bench(Targeted("TRANSFER"))
    assert bench.carry(pdu=ack(0, 0)) is None
    assert bench.carry(pdu=ack(0, 1)) == "targeted"


@pytest.mark.parametrize(
    "name, pdu",
    [
        ("NEW_TOKEN", NewToken((1, 1))),
        ("NewToken", NewToken((1, 1))),
        ("CONFIRM", Confirm((0, 0), 1, 0, 1)),
        ("abort", Abort((1, 1))),
    ],
)
def test_targets_are_known_by_the_code_s_and_the_paper_s_names(name: str, pdu: Pdu) -> None:
    assert Bench(Targeted(name)).carry(pdu=pdu) == "targeted"


def test_targeted_can_be_limited_to_a_receiver_and_a_sender() -> None:
    bench = Bench(Targeted("ACK", many=9, dst=2, src=1))
    assert bench.carry(src=1, dst=3, pdu=ack(1, 2)) is None
    assert bench.carry(src=0, dst=2, pdu=ack(1, 2)) is None
    assert bench.carry(src=1, dst=2, pdu=ack(1, 2)) == "targeted"


def heard_by_whom(link: Link, sites: int = 4, time: int = 0) -> set[tuple[int, int]]:
    bench = Bench(link)
    pairs = [(a, b) for a in range(sites) for b in range(sites) if a != b]
    return {(a, b) for a, b in pairs if bench.carry(a, b, time=time) is None}


def test_a_symmetric_partition_separates_its_sides() -> None:
    heard = heard_by_whom(Partition.symmetric([0, 1], [2, 3]))
    assert heard == {(0, 1), (1, 0), (2, 3), (3, 2)}


def test_a_one_way_partition_lets_the_other_way_through() -> None:
    heard = heard_by_whom(Partition.one_way(deaf=[0], to=[1, 2, 3]))
    assert not any(b == 0 for a, b in heard)
    assert {(0, 1), (0, 2), (0, 3)} <= heard


def test_a_non_transitive_partition_cuts_one_pair() -> None:
    heard = heard_by_whom(Partition.non_transitive(0, 2))
    assert len(heard) == 10
    assert (0, 2) not in heard
    assert {(0, 1), (1, 2)} <= heard


def test_a_flapping_partition_comes_and_goes() -> None:
    link = Partition.symmetric([0], [1], on_ns=3, off_ns=2)
    assert [bool(heard_by_whom(link, 2, time)) for time in range(10)] == [0, 0, 0, 1, 1] * 2
    assert link.kind == "partition:flapping"


def test_links_compose_from_left_to_right() -> None:
    chain = Duplicated(0.999, 0) | Delayed(5, 5) | PLAIN
    assert [type(part) for part in chain.parts()] == [Duplicated, Delayed]
    fate = Bench(chain).carry()
    assert fate == [Copy(5), Copy(5, again=True)]
    assert Bench(Partition.symmetric([0], [1]) | chain).carry() == "partition"
    assert Bench(chain | Partition.symmetric([0], [1])).carry() == "partition"
    assert (PLAIN | Lossy(0.1) | PLAIN).loss == 0.1


def test_damage_adds_up() -> None:
    chain = Corrupted(0.999) | Truncated(0.999)
    fate = Bench(chain).carry()
    assert isinstance(fate, list)
    assert {kind for kind, _ in fate[0].damage} == {"corrupt", "truncate"}


def test_links_can_be_swapped_at_a_point_of_time() -> None:
    world = gossip_world(2, medium=Bus(MS), forward=False)
    world.at(10 * MS, lambda: world.set_links(Partition.symmetric([0], [1])))
    world.at(20 * MS, world.heal)
    for i in range(3):
        world.at(i * 10 * MS + 5 * MS, lambda: world.submit(0, A))
    world.run(SECOND)
    assert [n for _, _, _, n in gossip(world, 1).arrivals] == [0, 2]
    assert world.faults == {"partition:symmetric": 1}


def test_a_link_put_in_place_again_goes_on_with_its_own_randomness() -> None:
    world = gossip_world(2)
    lossy = Lossy(0.5)
    world.set_links(lossy)
    rng = lossy.rng
    world.set_links(lossy | Partition.symmetric([0], [1]))
    world.set_links(lossy)
    assert lossy.rng is rng


@pytest.mark.parametrize(
    "make",
    [
        lambda: Lossy(1.2), lambda: Lossy(-0.1), lambda: Bursts(0.1, 0), lambda: Duplicated(1.0),
        lambda: Delayed(5, 1), lambda: Delayed(0, 1, rate=2.0), lambda: Reordered(0.1, 0),
        lambda: Replayed(0.1, 5, 1), lambda: Targeted("ACK", kth=0), lambda: Clogged(0, 1, 5, 1),
    ],
)  # fmt: skip
def test_links_refuse_what_cannot_be(make: object) -> None:
    with pytest.raises(ConfigError, match="is not allowed"):
        make()  # type: ignore[operator]
