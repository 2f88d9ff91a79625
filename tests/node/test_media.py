"""The media: multicast, fan-out, trains of datagrams, and what is said when one does not work."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable

import pytest

from roundelay.core.errors import ConfigError
from roundelay.node.medium import probe as probe_module
from roundelay.node.medium.interfaces import Interface, find, interfaces, parse_address
from roundelay.node.medium.media import Address, FanoutMedium, Medium, MulticastMedium
from roundelay.node.medium.probe import Choice, choose
from tests.node.live import free_ports, multicast, until

LOOPBACK = find("lo")


def small(mtu: int) -> Interface:
    """Loopback, as if its packets were small."""
    return Interface("lo", "127.0.0.1", mtu)


class Ear:
    """What a medium hears."""

    def __init__(self, medium: Medium) -> None:
        self.medium = medium
        self.heard: list[tuple[bytes, Address]] = []
        self.batches = 0
        medium.start(lambda data, source: self.heard.append((data, source)), self._drained)

    def _drained(self) -> None:
        self.batches += 1

    @property
    def data(self) -> list[bytes]:
        return [data for data, _ in self.heard]


def media(count: int, make: Callable[[], Medium]) -> list[Ear]:
    return [Ear(make()) for _ in range(count)]


def close(ears: list[Ear]) -> None:
    for ear in ears:
        ear.medium.close()


async def test_a_multicast_reaches_everybody_else_and_a_unicast_one() -> None:
    group = parse_address(multicast(), "multicast")
    ears = media(3, lambda: MulticastMedium(group, LOOPBACK))
    a, b, c = ears
    a.medium.send(b"to all")
    a.medium.send(b"to c", c.medium.address)
    await until(lambda: len(b.heard) == 1 and len(c.heard) == 2, "datagrams")
    await asyncio.sleep(0.02)
    assert b.heard == [(b"to all", a.medium.address)]
    assert sorted(c.data) == [b"to all", b"to c"]
    assert a.heard == []  # not our own
    assert a.medium.counts["sent"] == 2
    close(ears)


async def test_two_groups_on_one_port_do_not_hear_each_other() -> None:
    port = parse_address(multicast(), "multicast")[1]
    first = Ear(MulticastMedium(("239.255.1.1", port), LOOPBACK))
    second = Ear(MulticastMedium(("239.255.1.2", port), LOOPBACK))
    other = Ear(MulticastMedium(("239.255.1.2", port), LOOPBACK))
    other.medium.send(b"for the second")
    await until(lambda: second.heard, "a datagram")
    await asyncio.sleep(0.02)
    assert first.heard == []
    close([first, second, other])


async def test_fan_out_reaches_seeds_and_those_it_has_met() -> None:
    a = Ear(FanoutMedium(("127.0.0.1", 0), (), 1200))
    b = Ear(FanoutMedium(("127.0.0.1", 0), [a.medium.address], 1200))
    c = Ear(FanoutMedium(("127.0.0.1", 0), [a.medium.address], 1200))
    assert isinstance(a.medium, FanoutMedium)
    assert isinstance(b.medium, FanoutMedium)
    b.medium.send(b"one")
    await until(lambda: a.heard, "a datagram at the seed")
    assert c.heard == []
    b.medium.meet(c.medium.address)
    b.medium.meet(b.medium.address)  # ourselves: no
    b.medium.send(b"two")
    await until(lambda: len(a.heard) == 2 and len(c.heard) == 1, "datagrams")
    b.medium.part(c.medium.address)
    b.medium.part(a.medium.address)  # a seed is kept
    b.medium.send(b"three")
    await until(lambda: len(a.heard) == 3, "a datagram at the seed")
    assert c.data == [b"two"]
    for number in range(2 * FanoutMedium.PEERS_MAX):
        a.medium.meet(("127.0.0.2", 1000 + number))
    assert len(a.medium.peers) == FanoutMedium.PEERS_MAX
    assert a.medium.counts["too many peers"] > 0
    close([a, b, c])


@pytest.mark.parametrize("count", [2, 44, 130])
@pytest.mark.parametrize("last", [1, 600, 1200])
async def test_a_train_arrives_as_the_datagrams_it_was_made_of(count: int, last: int) -> None:
    group = parse_address(multicast(), "multicast")
    ears = media(2, lambda: MulticastMedium(group, small(1228)))
    a, b = ears
    parts = [os.urandom(1200) for _ in range(count - 1)] + [os.urandom(last)]
    a.medium.send_train(parts)
    await until(lambda: len(b.heard) >= count, "a train")
    assert b.data == parts
    b.heard.clear()
    a.medium.send_train(parts, b.medium.address)
    await until(lambda: len(b.heard) >= count, "a train")
    assert b.data == parts
    assert a.medium.counts["sent"] == 2 * count
    if a.medium.offload:  # then the kernel did hand over several at once
        assert b.medium.counts["received"] <= 2 * count
    close(ears)


async def test_a_kernel_without_segmentation_gets_them_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    group = parse_address(multicast(), "multicast")
    ears = media(2, lambda: MulticastMedium(group, small(1228)))
    a, b = ears
    monkeypatch.setattr("roundelay.node.medium.media.UDP_SEGMENT", 250)  # no such option
    parts = [os.urandom(1200) for _ in range(20)]
    a.medium.send_train(parts)
    await until(lambda: len(b.heard) >= 20, "datagrams")
    assert b.data == parts
    close(ears)


async def test_a_datagram_that_does_not_fit_is_counted_not_raised() -> None:
    group = parse_address(multicast(), "multicast")
    medium = MulticastMedium(group, LOOPBACK)
    medium.send(bytes(65_508))
    assert medium.counts["sent"] == 0
    assert any(reason.startswith("send: ") for reason in medium.counts)
    medium.close()


async def test_more_than_64_datagrams_take_more_than_one_turn() -> None:
    group = parse_address(multicast(), "multicast")
    ears = media(2, lambda: MulticastMedium(group, LOOPBACK))
    a, b = ears
    for number in range(200):
        a.medium.send(b"%d" % number)
    await until(lambda: len(b.heard) == 200, "200 datagrams")
    assert b.data == [b"%d" % number for number in range(200)]
    assert b.batches >= 4
    close(ears)


# -- what does not work ------------------------------------------------------------------------


def test_no_such_interface_names_those_there_are() -> None:
    with pytest.raises(ConfigError, match=r"interface = eth77 .* one of .*lo \(127\.0\.0\.1\)"):
        find("eth77")
    assert find("127.0.0.1").name == "lo"
    assert any(one.loopback for one in interfaces())


async def test_an_address_that_is_no_multicast_group_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"multicast = 10.1.2.3 .* 224.0.0.0 to 239"):
        await choose(Choice(multicast=("10.1.2.3", 6677), interface="lo"))


async def test_a_port_in_use_is_named() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"127.0.0.1:{port} .* free port .*in use"):
            await choose(Choice(listen=("127.0.0.1", port), seeds=(("127.0.0.1", 9),)))
    # A port that somebody keeps for himself cannot be that of the medium either.
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("", 0))
        where = ("239.255.3.4", taken.getsockname()[1])
        with pytest.raises(ConfigError, match=r"lo: .*in use.*fan-out"):
            await choose(Choice(multicast=where, interface="lo"))


async def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"192.0.2.1:0 .* an address of this machine"):
        await choose(Choice(listen=("192.0.2.1", 0)))


@pytest.mark.parametrize("text", ["", "localhost", ":1", "127.0.0.1:", "127.0.0.1:x", "h:70000"])
def test_an_address_has_a_host_and_a_port(text: str) -> None:
    with pytest.raises(ConfigError, match=r"seeds = .* HOST:PORT"):
        parse_address(text, "seeds")


async def test_the_probe_says_what_it_chose_and_why(monkeypatch: pytest.MonkeyPatch) -> None:
    group = parse_address(multicast(), "multicast")
    medium, why = await choose(Choice(multicast=group, interface="lo"))
    assert medium.describe().startswith("multicast:")
    assert why == "multicast works on lo"
    assert medium.describe() == f"multicast:{group[0]}:{group[1]}@lo"
    medium.close()

    monkeypatch.setattr(probe_module, "preferred", lambda: [LOOPBACK])
    medium, why = await choose(Choice(multicast=group))
    assert why == "multicast works on lo, which stays on this machine; nothing else does"
    medium.close()

    medium, why = await choose(Choice(multicast=group, seeds=(("127.0.0.1", 9),)))
    assert medium.describe().startswith("fanout:")
    assert why == "seeds were given"
    assert medium.mtu == LOOPBACK.datagram
    medium.close()

    own = ("127.0.0.1", free_ports(1)[0])
    medium, why = await choose(Choice(multicast=group, advertise=own))
    assert medium.describe() == f"fanout:{own[0]}:{own[1]}"
    assert why == "an own address, but no seed, was given"
    medium.close()

    medium, why = await choose(Choice(via=("127.0.0.1", 9), name="a"))
    assert medium.describe().startswith("switch:")
    assert why == "a switch was asked for"
    medium.close()


async def test_where_multicast_is_blocked_the_probe_names_what_it_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Datagrams that leave and do not come back.
    monkeypatch.setattr(MulticastMedium, "send", lambda self, data: None)
    group = parse_address(multicast(), "multicast")
    with pytest.raises(ConfigError, match=r"lo: no multicast came back.*seeds = HOST:PORT"):
        await choose(Choice(multicast=group, interface="lo"))


async def test_a_medium_needs_a_port() -> None:
    with pytest.raises(ConfigError, match=r"multicast = 239.255.1.1:0 .* a port from 1"):
        await choose(Choice(multicast=("239.255.1.1", 0), interface="lo"))
