"""The checker of AutoRM: each promise broken by hand is reported, and only that."""

from __future__ import annotations

import pytest

from roundelay.core.autorm.beamon import AutoRmDelivery
from roundelay.core.autorm.packets import Acknowledgement
from roundelay.core.bundle import Bundle
from roundelay.core.engine import ACCEPTED, EVERYONE
from roundelay.core.notices import NodeDown, TransferEnded
from roundelay.trace.checkers.autorm import AutoRmChecker

UUIDS = tuple(bytes((site,)) * 16 for site in range(3))
G = "news"


class Network:
    """Nodes 0, 1 and 2; 0 sends messages 0 (`a`) and 1 (`b`) to a group that the others joined."""

    def __init__(self, **options: bool) -> None:
        self.checker = AutoRmChecker(**options)
        for site, uuid in enumerate(UUIDS):
            self.checker.born(0, site, uuid)
        for site in (1, 2):
            self.checker.joined(0, site, G)
        for number, data in enumerate((b"a", b"b")):
            self.checker.asked(1, 0, number, G, data, False)

    def deliver(self, site: int, data: bytes, group: str = G, one_of: bool = False) -> None:
        given = AutoRmDelivery(-1, 0, 1, Bundle.of(data), ACCEPTED, group, UUIDS[0], one_of)
        self.checker.delivered(2, site, given)

    def ends(self, number: int, reached: tuple[int, ...], given_up: tuple[int, ...] = ()) -> None:
        both = [tuple(UUIDS[site] for site in sites) for sites in (reached, given_up)]
        self.checker.noticed(3, 0, TransferEnded(number, *both))

    @property
    def broken(self) -> list[str]:
        return sorted({one.invariant for one in self.checker.violations})


@pytest.fixture
def net() -> Network:
    return Network()


def test_what_is_right_is_not_complained_about(net: Network) -> None:
    for site in (1, 2):
        net.deliver(site, b"a")
        net.deliver(site, b"b")
    net.ends(0, (1, 2))
    net.checker.calm(4)
    net.checker.expected(5, 1, [1, 2])
    net.checker.quiet(6)
    assert net.broken == []


def test_the_order_of_a_sender(net: Network) -> None:
    net.deliver(1, b"b")
    net.deliver(1, b"a")
    assert net.broken == ["I1"]


def test_order_within_a_group_alone() -> None:
    net = Network(per_group=True)
    net.checker.joined(0, 1, "other")
    net.checker.asked(1, 0, 2, "other", b"c", False)
    net.deliver(1, b"c", "other")
    net.deliver(1, b"a")
    assert net.broken == []


@pytest.mark.parametrize(
    ("site", "data", "group", "one_of"),
    [(1, b"x", G, False), (0, b"a", G, False), (1, b"a", "other", False), (1, b"a", G, True)],
    ids=["not sent", "not joined", "another group", "to someone"],
)
def test_what_was_not_sent_so(
    net: Network, site: int, data: bytes, group: str, one_of: bool
) -> None:
    net.deliver(site, data, group, one_of)
    assert net.broken == ["I4"]


def test_at_most_once_and_someone_is_one(net: Network) -> None:
    net.deliver(1, b"a")
    net.deliver(1, b"a")
    assert "I4" in net.broken
    for failover in (False, True):
        other = Network(failover=failover)
        other.checker.asked(1, 0, 2, G, b"c", True)
        other.deliver(1, b"c", one_of=True)
        other.deliver(2, b"c", one_of=True)
        assert other.broken == ([] if failover else ["I4"])


def test_what_a_sender_is_told_is_so(net: Network) -> None:
    net.deliver(1, b"a")
    net.ends(0, (1, 2))
    assert net.broken == ["I5"]
    twice = Network()
    twice.ends(0, ())
    twice.ends(0, ())
    assert twice.broken == ["I5"]
    alive = Network()
    alive.ends(0, (), (1,))
    assert alive.broken == ["I5"]
    dead = Network()
    dead.checker.noticed(2, 0, NodeDown(UUIDS[1]))
    dead.ends(0, (), (1,))
    assert dead.broken == []


def test_after_healing_nobody_is_lost_and_messages_arrive(net: Network) -> None:
    net.checker.calm(4)
    net.checker.noticed(5, 0, NodeDown(UUIDS[1]))
    assert net.broken == ["I7"]
    late = Network()
    late.deliver(1, b"a")
    late.checker.expected(5, 0, [1, 2])
    assert late.broken == ["I7"]


def test_silence_and_bounds(net: Network) -> None:
    packet = Acknowledgement(UUIDS[0], UUIDS[1], 1, 0, ())
    net.checker.sent(1, 0, EVERYONE, packet)
    assert net.broken == []
    net.checker.quiet(4)
    net.checker.sent(5, 0, EVERYONE, packet)
    net.checker.sampled(6, 0, {"nodes": 9}, {"nodes": 8})
    assert net.broken == ["I6", "QUIET"]
