"""The outbox: bundles as full as can be, every message once and in order, every caller told."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from roundelay.core.bundle import MESSAGES_MAX, Bundle
from roundelay.node.driver.engines import LARGEST_MESSAGE, PIECES, bundle_bytes
from roundelay.node.driver.outbox import Outbox
from roundelay.node.node_api import NO_TAG, Receipt, Refusal, Subscriber

MIB = 1 << 20


class Caller(Subscriber):
    """An application that remembers what it was told."""

    def __init__(self) -> None:
        self.receipts: dict[int, int] = {}
        self.refusals: list[Refusal] = []

    def receipt(self, receipt: Receipt) -> None:
        assert receipt.tag not in self.receipts
        self.receipts[receipt.tag] = receipt.seq

    def refused(self, refusal: Refusal) -> None:
        self.refusals.append(refusal)


def emptied(outbox: Outbox) -> list[Bundle]:
    """What the engine would be given, each bundle delivered before the next."""
    bundles, position = [], 0
    while outbox:
        bundle = outbox.gather().bundle
        outbox.settle(position, 0)
        position += len(bundle)
        bundles.append(bundle)
    return bundles


sends = st.lists(st.lists(st.binary(max_size=40), min_size=1, max_size=9), min_size=1, max_size=12)


@given(sends, st.integers(1, 100))
def test_what_was_put_in_comes_out_once_and_in_order(
    given_sends: list[list[bytes]], bundle_max: int
) -> None:
    outbox, caller = Outbox("g", 40, bundle_max, MIB), Caller()
    expected, last = [], {}
    for tag, messages in enumerate(given_sends):
        outbox.put(caller, Bundle.of(*messages), tag, None, 0)
        expected += messages
        last[tag] = len(expected) - 1
    bundles = emptied(outbox)
    assert [message for bundle in bundles for message in bundle] == expected
    assert all(len(bundle.data) <= bundle_max or len(bundle) == 1 for bundle in bundles)
    assert caller.receipts == last  # of the last message of each
    assert outbox.bytes == 0


@given(sends, st.integers(40, 100))
def test_a_bundle_stops_only_where_the_next_message_does_not_fit(
    given_sends: list[list[bytes]], bundle_max: int
) -> None:
    outbox, caller = Outbox("g", 40, bundle_max, MIB), Caller()
    for messages in given_sends:
        outbox.put(caller, Bundle.of(*messages), NO_TAG, None, 0)
    bundles = emptied(outbox)
    for bundle, following in pairwise(bundles):
        assert len(bundle.data) + following.sizes[0] > bundle_max


def test_other_destinations_make_another_bundle() -> None:
    outbox, caller = Outbox("g", 40, 100, MIB), Caller()
    outbox.put(caller, Bundle.of(b"one"), NO_TAG, ("a",), 0)
    outbox.put(caller, Bundle.of(b"two"), NO_TAG, ("b",), 0)
    outbox.put(caller, Bundle.of(b"three"), NO_TAG, ("b",), 0)
    taken = [outbox.gather() for _ in range(2)]
    assert [(one.to, list(one.bundle)) for one in taken] == [
        (("a",), [b"one"]),
        (("b",), [b"two", b"three"]),
    ]


def test_a_bundle_has_no_more_messages_than_the_wire_can_count() -> None:
    outbox, caller = Outbox("g", 40, MIB, 64 * MIB), Caller()
    for _ in range(2):
        outbox.put(caller, Bundle.of(*[b"x"] * (MESSAGES_MAX - 1)), NO_TAG, None, 0)
    assert [len(bundle) for bundle in emptied(outbox)] == [MESSAGES_MAX, MESSAGES_MAX - 2]


def test_the_caller_of_a_message_half_sent_is_told_that_nobody_knows() -> None:
    outbox, caller = Outbox("g", 40, 40, MIB), Caller()
    outbox.put(caller, Bundle.of(bytes(30), bytes(30)), 7, None, 0)
    outbox.put(caller, Bundle.of(bytes(30)), 8, None, 0)
    outbox.gather()
    outbox.settle(0, 0)
    outbox.abandon("closed")
    assert caller.receipts == {}
    assert {one.tag: one.indeterminate for one in caller.refusals} == {7: True, 8: False}


def test_bundles_grow_beyond_a_datagram_only_where_nothing_gets_lost() -> None:
    loopback, ethernet = 65_507, 1472
    assert bundle_bytes(loopback) <= LARGEST_MESSAGE < loopback
    assert bundle_bytes(ethernet) <= 8 * ethernet
    assert bundle_bytes(loopback, burst=100_000) == bundle_bytes(loopback)  # small buffers
    assert loopback < bundle_bytes(loopback, burst=8 * MIB) < PIECES * loopback


def test_each_caller_of_a_bundle_waits_as_long_as_it_was_promised() -> None:
    """Who comes behind messages that waited too long already was answered at once."""
    outbox, caller = Outbox("g", 40, 100, MIB), Caller()
    outbox.put(caller, Bundle.of(b"old"), 1, None, 10)
    outbox.expire(10, "late")
    outbox.put(caller, Bundle.of(b"older"), 2, None, 20)
    outbox.put(caller, Bundle.of(b"new"), 3, None, 30)
    outbox.gather()
    outbox.expire(15, "late")
    assert [refusal.tag for refusal in caller.refusals] == [1]
    outbox.expire(20, "late")
    assert [refusal.tag for refusal in caller.refusals] == [1, 2]
    outbox.settle(7, 0)
    assert caller.receipts == {3: 9}
