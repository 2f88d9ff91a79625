"""Datagrams cut into fragments and put together again, also by people who mean harm."""

from __future__ import annotations

import tracemalloc
from collections.abc import Hashable
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roundelay.core.errors import ConfigError, PayloadTooLarge
from roundelay.wire import fragments
from roundelay.wire.codec import decode
from roundelay.wire.fragments import HEAD, split
from tests.wire.examples import EXAMPLES, packet

S = 10**9


class Reassembly(fragments.FragmentReassembly):
    def add(self, source: Hashable, data: bytes, now: int) -> bytes | None:
        """The datagram that is complete with this fragment, in one piece."""
        pieces = self.collect(source, data, now)
        return None if pieces is None else b"".join(pieces)


def fragment(ident: int, index: int, count: int, data: bytes) -> bytes:
    return HEAD.pack(fragments.FRAGMENT, ident, index, count) + data


def small() -> Reassembly:
    return Reassembly(message_max=10_000, peer_max=100_000, total_max=200_000)


# ------------------------------------------------------------------------ what is meant to happen


def test_a_datagram_that_fits_is_left_alone() -> None:
    data = packet(EXAMPLES[0])
    assert split(data, len(data), 1) == [data]


def test_fragments_have_the_documented_bytes() -> None:
    pieces = split(bytes(range(16, 16 + 25)), 19, 0x01020304)
    assert [piece[:9].hex(" ") for piece in pieces] == [
        "11 01 02 03 04 00 00 00 03",
        "11 01 02 03 04 00 01 00 03",
        "11 01 02 03 04 00 02 00 03",
    ]
    assert [len(piece) for piece in pieces] == [19, 19, 14]
    assert b"".join(piece[9:] for piece in pieces) == bytes(range(16, 41))


@settings(max_examples=200, deadline=None)
@given(st.binary(min_size=1, max_size=3000), st.integers(10, 400), st.randoms())
def test_fragments_in_any_order_with_duplicates_make_the_datagram_once(
    body: bytes, mtu: int, rng: Random
) -> None:
    data = b"\x10" + body
    pieces = split(data, mtu, rng.randrange(1 << 40))
    if len(pieces) == 1:
        return
    assert all(len(piece) <= mtu for piece in pieces)
    reassembly = Reassembly()
    sent = pieces + rng.choices(pieces, k=3)
    rng.shuffle(sent)
    found = [whole for piece in sent if (whole := reassembly.add("a", piece, 0)) is not None]
    assert found == [data]


def test_a_large_pdu_survives_its_fragments() -> None:
    pdu = max(EXAMPLES, key=lambda one: len(packet(one)))
    data = packet(pdu)
    reassembly = Reassembly()
    whole = [reassembly.add(1, piece, 0) for piece in split(data, 30, 5)][-1]
    assert whole == data
    assert decode(whole).pdu == pdu


def test_messages_of_several_peers_with_one_ident_are_kept_apart() -> None:
    reassembly = Reassembly()
    one, two = split(b"\x10" * 50, 40, 9), split(b"\x02" * 50, 40, 9)
    assert reassembly.add("a", one[0], 0) is None
    assert reassembly.add("b", two[1], 0) is None
    assert reassembly.add("a", one[1], 0) == b"\x10" * 50
    assert reassembly.add("b", two[0], 0) == b"\x02" * 50
    assert not reassembly.drops


def test_a_message_that_is_not_completed_in_time_is_given_up() -> None:
    reassembly = Reassembly(patience_ns=5 * S)
    pieces = split(b"\x10" * 50, 40, 9)
    reassembly.add("a", pieces[0], 0)
    assert reassembly.add("a", pieces[1], 5 * S) is None
    assert reassembly.drops == {fragments.LATE: 1}
    # The late one began the message anew; its other half may still come.
    assert reassembly.add("a", pieces[0], 6 * S) == b"\x10" * 50


def test_expiry_frees_what_was_held_without_further_fragments() -> None:
    reassembly = Reassembly()
    before = reassembly.add("a", split(b"\x10" * 50, 40, 1)[0], 0), reassembly.cost
    for ident in range(2, 100):
        reassembly.add("a", split(b"\x10" * 50, 40, ident)[0], 0)
    assert reassembly.cost > before[1]
    reassembly.expire(5 * S)
    assert reassembly.cost == fragments.PEER_COST
    assert reassembly.drops == {fragments.LATE: 99}


@pytest.mark.parametrize("mtu", [0, 9])
def test_an_mtu_without_room_for_a_byte_is_refused(mtu: int) -> None:
    with pytest.raises(ConfigError, match="mtu"):
        split(bytes(100), mtu, 0)


def test_a_datagram_of_too_many_fragments_is_refused() -> None:
    assert len(split(bytes(65535), 10, 0)) == 65535
    with pytest.raises(PayloadTooLarge, match="65535 fragments"):
        split(bytes(65536), 10, 0)


@pytest.mark.parametrize(
    "changes, field",
    [
        ({"message_max": 0}, "message_max"),
        ({"peer_max": 1 << 20}, "peer_max"),
        ({"total_max": 16 << 20}, "total_max"),
        ({"patience_ns": 0}, "patience_ns"),
    ],
)
def test_limits_that_contradict_each_other_are_refused(changes: dict[str, int], field: str) -> None:
    with pytest.raises(ConfigError, match=field):
        Reassembly(**changes)


# ------------------------------------------------------------------------ hostile input


@pytest.mark.parametrize(
    "data, expected",
    [
        (b"", fragments.MALFORMED),
        (fragment(1, 0, 2, b""), fragments.MALFORMED),
        (fragment(1, 0, 0, b"x"), fragments.MALFORMED),
        (fragment(1, 0, 1, b"x"), fragments.MALFORMED),
        (fragment(1, 2, 2, b"x"), fragments.MALFORMED),
        (b"\x10" + fragment(1, 0, 2, b"x")[1:], fragments.MALFORMED),
        (fragment(1, 0, 65535, b"x" * 17), fragments.TOO_LARGE),  # 17 × 65534 bytes announced
        (fragment(1, 65534, 65535, b"x" * 1_000_000), fragments.TOO_LARGE),
        (fragment(1, 0, 2, b"x" * (1 << 20)), fragments.TOO_LARGE),
    ],
)
def test_what_no_sender_sends_is_refused_by_its_reason(data: bytes, expected: str) -> None:
    reassembly = Reassembly()
    assert reassembly.add("a", data, 0) is None
    assert reassembly.drops == {expected: 1}
    assert reassembly.cost == 0


@pytest.mark.parametrize(
    "second, expected",
    [
        (fragment(1, 0, 3, b"abcd"), fragments.DUPLICATE),
        (fragment(1, 0, 3, b"abcX"), fragments.CONTRADICTION),  # the same place, other bytes
        (fragment(1, 0, 3, b"abcde"), fragments.CONTRADICTION),  # overlaps the next
        (fragment(1, 1, 3, b"abc"), fragments.CONTRADICTION),  # leaves a hole
        (fragment(1, 2, 3, b"abcde"), fragments.CONTRADICTION),  # the last larger than the others
        (fragment(1, 1, 4, b"abcd"), fragments.CONTRADICTION),  # another count
    ],
)
def test_a_fragment_that_contradicts_earlier_ones_is_refused_and_they_are_kept(
    second: bytes, expected: str
) -> None:
    reassembly = Reassembly()
    reassembly.add("a", fragment(1, 0, 3, b"abcd"), 0)
    assert reassembly.add("a", second, 0) is None
    assert reassembly.drops == {expected: 1}
    reassembly.add("a", fragment(1, 1, 3, b"efgh"), 0)
    assert reassembly.add("a", fragment(1, 2, 3, b"i"), 0) == b"abcdefghi"


def test_a_last_fragment_that_comes_first_bounds_the_others() -> None:
    reassembly = Reassembly()
    reassembly.add("a", fragment(1, 2, 3, b"abcd"), 0)
    assert reassembly.add("a", fragment(1, 0, 3, b"abc"), 0) is None
    assert reassembly.drops == {fragments.CONTRADICTION: 1}


def test_a_message_a_little_above_the_limit_is_refused_when_it_is_whole() -> None:
    reassembly = small()
    reassembly.add("a", fragment(1, 0, 2, bytes(9_000)), 0)
    assert reassembly.add("a", fragment(1, 1, 2, bytes(1_001)), 0) is None
    assert reassembly.drops == {fragments.TOO_LARGE: 1}
    assert reassembly.cost == fragments.PEER_COST


def test_a_fragment_inside_fragments_goes_no_further() -> None:
    inner = split(b"\x10" * 100, 60, 1)[0]
    reassembly = Reassembly()
    assert [reassembly.add("a", piece, 0) for piece in split(inner, 40, 2)] == [None, None]
    assert reassembly.drops == {fragments.NESTED: 1}


def test_messages_that_lost_a_fragment_do_not_keep_new_ones_out() -> None:
    reassembly = small()
    for ident in range(1000):
        reassembly.add("a", fragment(ident, 0, 3, bytes(3000)), 0)
        assert reassembly.cost <= 100_000
    pieces = split(b"\x10" * 9000, 3009, 5000)
    assert [reassembly.add("a", piece, 0) for piece in pieces][-1] == b"\x10" * 9000
    assert reassembly.drops[fragments.CROWDED] > 900


def test_the_oldest_message_can_still_be_completed_when_room_is_short() -> None:
    reassembly = small()
    first = split(b"\x10" * 9000, 3009, 5000)
    reassembly.add("a", first[0], 0)
    for ident in range(20):
        reassembly.add("a", fragment(ident, 0, 3, bytes(3000)), 0)
    reassembly.add("a", first[1], 0)
    assert reassembly.add("a", first[2], 0) == b"\x10" * 9000


def test_endless_peers_push_out_those_heard_longest_ago() -> None:
    reassembly = small()
    pieces = split(b"\x10" * 9000, 4509, 1)
    reassembly.add("good", pieces[0], 0)
    for stranger in range(500):
        reassembly.add(stranger, fragment(1, 0, 3, bytes(100)), 0)
        reassembly.add("good", fragment(7, 0, 3, b"keeps in touch"), 0)
        assert reassembly.cost <= 200_000
    assert reassembly.add("good", pieces[1], 0) == b"\x10" * 9000
    assert reassembly.drops[fragments.CROWDED] > 400


@pytest.mark.parametrize("size", [1, 5, 700, 5000])
def test_what_is_really_held_stays_below_the_caps(size: int) -> None:
    """Messages of many tiny fragments cost more than their bytes; the caps count that."""
    reassembly = Reassembly(message_max=1 << 19, peer_max=1 << 21, total_max=1 << 22)
    rng = Random(3)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for turn in range(40_000):
            ident, index = rng.randrange(200), rng.randrange(90)
            data = fragment(ident, index, 100, bytes(size))
            reassembly.add(turn % 5, data, turn)
        held = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert reassembly.cost <= 1 << 22
    assert held <= reassembly.cost


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 3),
            st.integers(0, 3),
            st.integers(0, 4),
            st.integers(0, 4),
            st.integers(0, 5) | st.just(5000),
            st.integers(0, S),
        ),
        max_size=200,
    )
)
def test_whatever_comes_the_books_balance(
    arrivals: list[tuple[int, int, int, int, int, int]],
) -> None:
    reassembly = Reassembly(message_max=9000, peer_max=40_000, total_max=60_000)
    now = 0
    for source, ident, index, count, size, wait in arrivals:
        now += wait
        whole = reassembly.add(source, fragment(ident, index, count, b"\x10" * size), now)
        assert whole is None or set(whole) == {0x10}
        assert 0 <= reassembly.cost <= 60_000
    reassembly.expire(now + 6 * S)
    assert reassembly.cost % fragments.PEER_COST == 0
