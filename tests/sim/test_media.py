"""What each medium promises, and that bytes change nothing."""

from __future__ import annotations

from typing import Any
from zlib import crc32

import msgspec
import pytest

from roundelay.core.bundle import Bundle
from roundelay.core.engine import MS, SECOND, Pdu
from roundelay.core.errors import ConfigError, MalformedPdu
from roundelay.core.events import LOSE
from roundelay.sim.network.links import (
    Alien,
    Chain,
    Corrupted,
    Delayed,
    Duplicated,
    Link,
    Lossy,
    Reordered,
    Truncated,
)
from roundelay.sim.network.media import Bus, Datagram, Mesh, SimulatedMedium
from tests.sim.gossip import Rows, Rumour, Watch, gossip, gossip_world

A = Bundle.of(b"a")


def chatter(
    medium: SimulatedMedium, messages: int = 300, **options: object
) -> list[list[tuple[int, ...]]]:
    """Three sites talk at once; what each heard: (time, source, number)."""
    world = gossip_world(3, medium=medium, forward=False, **options)
    for i in range(messages):
        for site in world.group:
            world.at(i * 10_000, lambda site=site: world.submit(site, A))  # type: ignore[misc]
    world.run(SECOND)
    return [[(t, s, n) for t, _, s, n in gossip(world, site).arrivals] for site in world.group]


def test_on_the_bus_all_hear_the_same_order_at_the_same_instant() -> None:
    heard = chatter(Bus(MS, slot_ns=3000))
    everything = sorted(set(heard[0] + heard[1] + heard[2]))
    assert len({time for time, _, _ in everything}) == len(everything)  # one at a time
    for site, log in enumerate(heard):
        assert log == [entry for entry in everything if entry[1] != site]


def test_on_the_bus_transmissions_wait_for_each_other() -> None:
    times = [time for time, _, _ in chatter(Bus(MS, slot_ns=100_000), messages=5)[2]]
    assert times[0] == MS + 100_000
    assert times[-1] <= MS + 15 * 100_000


def test_loss_on_the_bus_is_independent_per_receiver() -> None:
    heard = chatter(Bus(MS), messages=2000, links=Lossy(0.3))
    one = {n for _, s, n in heard[1] if s == 0}
    two = {n for _, s, n in heard[2] if s == 0}
    assert abs(len(one) - 1400) < 80
    assert abs(len(one & two) - 980) < 80


@pytest.mark.parametrize("loss", [Lossy(0.5), Chain((Lossy(0.5), Delayed(0, 0, rate=0.1)))])
def test_a_bus_can_return_the_own_copy_and_loses_it_like_any_other(loss: Link) -> None:
    world = gossip_world(2, medium=Bus(MS, own_copy=True), links=loss, forward=False)
    for _ in range(400):
        world.submit(0, A)
    world.run(SECOND)
    own, other = ([n for _, _, _, n in gossip(world, site).arrivals] for site in (0, 1))
    assert own == sorted(own)
    assert abs(len(own) - 200) < 50
    assert abs(len(set(own) & set(other)) - 100) < 40


@pytest.mark.parametrize("links", [None, Delayed(0, 20 * MS, rate=0.5)])
def test_a_mesh_keeps_the_order_of_each_pair_and_no_other(links: Delayed | None) -> None:
    options: dict[str, Any] = {} if links is None else {"links": links}
    heard = chatter(Mesh(MS, 5 * MS), **options)
    for log in heard:
        for source in range(3):
            numbers = [n for _, s, n in log if s == source]
            assert numbers == sorted(numbers)
    # The same PDUs of two senders reach a third site in another order than they were sent.
    merged = [(n, s) for _, s, n in heard[2] if s != 2]
    assert merged != sorted(merged)


def test_duplicates_and_reordering_break_the_order_of_a_mesh_too() -> None:
    numbers = [n for _, s, n in chatter(Mesh(MS, 2 * MS), links=Reordered(0.2, 20 * MS))[1] if s]
    assert numbers != sorted(numbers)


def test_datagrams_overtake_each_other() -> None:
    numbers = [n for _, s, n in chatter(Datagram(MS, 5 * MS))[1] if s == 0]
    assert sorted(numbers) == list(range(300))
    assert numbers != sorted(numbers)


def test_datagrams_can_come_twice() -> None:
    world = gossip_world(2, medium=Datagram(MS, MS, duplicate=0.5), forward=False)
    for _ in range(1000):
        world.submit(0, A)
    world.run(SECOND)
    assert abs(len(gossip(world, 1).arrivals) - 1500) < 80
    assert world.faults["duplicate"] == len(gossip(world, 1).arrivals) - 1000


def test_media_refuse_what_cannot_be() -> None:
    with pytest.raises(ConfigError, match="delay_ns"):
        Bus(-1)
    with pytest.raises(ConfigError, match="least_ns"):
        Mesh(2, 1)
    with pytest.raises(ConfigError, match="duplicate"):
        Datagram(1, 2, duplicate=1.5)


class Codec:
    """Bytes with a version in the second byte and a CRC-32 in the last four, as on the wire."""

    def __init__(self) -> None:
        self.encoded = 0

    def encode(self, pdu: Pdu, sender: int) -> bytes:
        self.encoded += 1
        body = bytes((16, 1)) + msgspec.msgpack.encode(pdu)
        return body + crc32(body).to_bytes(4, "big")

    def decode(self, data: bytes) -> Pdu:
        if len(data) < 6:
            raise MalformedPdu("short")
        if crc32(data[:-4]).to_bytes(4, "big") != data[-4:]:
            raise MalformedPdu("checksum")
        if data[1] != 1:
            raise MalformedPdu("version")
        return msgspec.msgpack.decode(data[2:-4], type=Rumour)


@pytest.mark.parametrize("medium", [Bus, Mesh, Datagram])
def test_bytes_on_the_way_change_no_delivery(medium: type[SimulatedMedium]) -> None:
    def run(codec: Codec | None) -> tuple[list[object], list[object], dict[str, int]]:
        watch, rows = Watch(), Rows()
        links = (
            Lossy(0.1) | Corrupted(0.1) | Truncated(0.1) | Alien(0.1, 7) | Duplicated(0.1)
            | Delayed(0, MS, 0.1)
        )  # fmt: skip
        world = gossip_world(
            4, medium=medium(), links=links, codec=codec, observers=[watch], recorder=rows
        )
        for i in range(200):
            world.at(i * 100_000, lambda i=i: world.submit(i % 4, A))  # type: ignore[misc]
        world.run(SECOND)
        assert world.undetected == []
        return list(watch.log), list(rows.rows), dict(world.refused)

    codec = Codec()
    plain, wired = run(None), run(codec)
    assert codec.encoded > 200
    assert plain[0] == wired[0]
    assert plain[1] == wired[1]
    # Without a codec damage is refused by what was done, with one by what was noticed.
    assert set(plain[2]) == {"corrupt", "truncate", "alien-version"}
    assert {"checksum", "short", "version"} >= set(wired[2]) >= {"checksum", "version"}
    assert sum(plain[2].values()) == sum(wired[2].values())
    assert plain[2]["alien-version"] <= wired[2]["version"]  # some were damaged before


def test_damage_that_a_codec_lets_through_is_not_forgotten() -> None:
    class Blind(Codec):
        def decode(self, data: bytes) -> Pdu:
            return Rumour(0, 0, A)

    world = gossip_world(2, links=Corrupted(0.9), codec=Blind(), forward=False)
    for _ in range(10):
        world.submit(0, A)
    world.run(SECOND)
    assert len(world.undetected) == world.faults["corrupt"] > 0


# -- adapted media ---------------------------------------------------------------------------


def disorder() -> Link:
    return Duplicated(0.3, 20 * MS) | Reordered(0.3, 20 * MS) | Delayed(0, 20 * MS, rate=0.3)


@pytest.mark.parametrize("medium", [Mesh(MS, 5 * MS, 1), Datagram(MS, 5 * MS, 0, 1)])
def test_an_adapted_medium_keeps_the_order_of_each_sender_whatever_happens(
    medium: SimulatedMedium,
) -> None:
    rows = Rows()
    heard = chatter(medium, links=disorder(), recorder=rows)
    for log in heard:
        for source in range(3):
            numbers = [n for _, s, n in log if s == source]
            assert numbers == sorted(set(numbers))  # neither twice nor late: rather not at all
            assert len(numbers) < 300 or not numbers
    assert {row[5] for row in rows.of(LOSE)} == {"stale"}


def test_an_adapted_bus_keeps_one_order_of_all_senders() -> None:
    """1C: two sites may miss different PDUs, but what both hear they hear in one order."""
    heard = chatter(Bus(MS, 3000, own_copy=1, adapted=1), links=disorder())
    logs = [[(s, n) for _, s, n in log] for log in heard]
    for site, log in enumerate(logs):
        assert len(set(log)) == len(log)
        assert 0 < len([n for s, n in log if s == site]) < 300  # its own can be lost, too
        for other in logs:
            common = set(log) & set(other)
            assert [x for x in log if x in common] == [x for x in other if x in common]


def test_what_is_newer_gets_through_an_adapted_medium() -> None:
    assert chatter(Mesh(MS, 5 * MS, 1)) == chatter(Mesh(MS, 5 * MS))
