"""Compiled readers and writers: at one go or in steps, whole or in parts, it is the same."""

from __future__ import annotations

import os
from random import Random
from typing import Annotated

import pytest

from roundelay.core.bundle import Bundle
from roundelay.core.engine import Pdu
from roundelay.core.errors import InvariantBroken, MalformedPdu
from roundelay.core.fields import Number
from roundelay.core.token.pdu import Ack, AckRun, B, Confirm, RetxAck
from roundelay.wire import fragments, seal
from roundelay.wire.codec import decode, decode_pieces, encode, encode_parts
from roundelay.wire.compiler import Reader, envelope, plan_of
from roundelay.wire.envelope import checksum
from roundelay.wire.layouts import BY_CLASS
from tests.wire.examples import EXAMPLES

PDUS: tuple[Pdu, ...] = (
    B((7, 2), 1, 41, Bundle.of(b"hi")),
    B((7, 2), 1, 41, Bundle.of(b"hi", b"ho")),
    Ack((7, 2), 99, 1, 1, 41, 0, 3),
    Ack((0, 0), 0, 0, 0, 0, 0, 0),
    Confirm((7, 2), -1, 3, -1),
    Confirm((7, 2), (1 << 63) - 1, 3, 5),
    AckRun((7, 2), 99, 3, 0, ((1, 41), (0, 7), (3, 0xFFFFFFFF))),
    AckRun((7, 2), 0, 3, 0, ()),
)
ODD: tuple[Pdu, ...] = (
    B((7, 2), 1, 41, Bundle.of(b"one", b"three")),
    B((7, 2), 1, 41, Bundle.of(b"")),
    B((7, 2), 1, 41, Bundle.of(b"one").marked(7)),
    RetxAck(Ack((7, 2), 99, 1, 1, 41, 0, 3)),
)


def in_parts(pdu: Pdu, sender: int = 3, group: int = 5, chan_seq: int = 9) -> bytes:
    parts = encode_parts(pdu, sender, group, chan_seq)
    return b"".join([*parts, checksum(parts)])


@pytest.mark.parametrize("pdu", PDUS + ODD + EXAMPLES)
def test_the_whole_is_the_join_of_its_parts(pdu: Pdu) -> None:
    data = encode(pdu, sender=3, group_id=5, chan_seq=9)
    assert data == in_parts(pdu)
    assert decode(data).pdu == pdu


def attempt(read: Reader, data: bytes) -> object:
    try:
        return read(data, len(data) - 4)
    except MalformedPdu as error:
        return str(error)


@pytest.mark.parametrize("pdu", PDUS + ODD + EXAMPLES)
def test_at_one_go_is_read_what_is_read_in_steps(pdu: Pdu) -> None:
    """Each byte in turn becomes 0, 255 and something else; and bytes are missing or too many."""
    head = envelope(BY_CLASS[type(pdu)].flags)
    at_one_go = plan_of(type(pdu)).reader(head)
    in_steps = plan_of(type(pdu)).reader(head, merged=False)
    data = encode(pdu, sender=3, group_id=5, chan_seq=9)
    changed = [
        data[:at] + bytes((value,)) + data[at + 1 :]
        for at in range(len(data))
        for value in (0, 255, data[at] ^ 0x15)
    ]
    wide = [data[:at] + b"\xff" * 4 + data[at + 4 :] for at in range(len(data) - 3)]
    cut = [data[:size] for size in range(24, len(data))]
    for damaged in (data, *changed, *wide, *cut, *(bad[:-9] for bad in wide[:-9]), data + b"\0"):
        if len(damaged) >= 24:
            assert attempt(at_one_go, damaged) == attempt(in_steps, damaged)


@pytest.mark.parametrize(
    "pdu",
    [
        Ack((7, 2), -1, 1, 1, 41, 0, 3),
        Ack((7, 2), 5, 2, 1, 41, 0, 3),
        Ack((7, 0xFFFF), 5, 1, 1, 41, 0, 3),
        Ack((7, 2), 5, 1, 1, 41, 0, 0xFFFF),
        Confirm((0xFFFFFFFF, 2), 5, 1, 5),
        Confirm((7, 2), -2, 1, 5),
        AckRun((7, 2), -1, 3, 0, ((1, 41),)),
        AckRun((7, 2), 9, 3, 0, ((1, 41), (1, 42))),
        AckRun((7, 2), 9, 3, 0, ((0xFFFF, 41),)),
        B((7, 2), 0xFFFF, 41, Bundle.of(b"hi")),
        B((7, 2), 1, 1 << 32, Bundle.of(b"hi")),
        B((7, 2), 1, 4, Bundle((3,), b"hi")),
    ],
)
def test_no_way_writes_what_none_could_read(pdu: Pdu) -> None:
    with pytest.raises(InvariantBroken):
        encode(pdu, sender=3, group_id=5)


class AckWithHops(Ack, frozen=True, gc=False):
    hops: Annotated[Number, "sites it has passed"]


def test_a_field_more_is_one_line_in_the_class() -> None:
    ack = AckWithHops((7, 2), 99, 1, 1, 41, 0, 3, hops=5)
    plan = plan_of(AckWithHops)
    data = b"".join(plan.writer()(ack))
    assert plan.reader()(data, 0, len(data)) == (ack, len(data))
    assert plan.least == len(data) == plan_of(Ack).least + 4
    with pytest.raises(MalformedPdu, match="short body"):
        plan.reader()(data, 0, len(data) - 1)


# -- in pieces -----------------------------------------------------------------------------


def cut(data: bytes, rng: Random) -> list[bytes | memoryview]:
    places = sorted(rng.randrange(len(data) + 1) for _ in range(rng.randrange(5)))
    ends = [*places, len(data)]
    found: list[bytes | memoryview] = []
    for at, end in zip([0, *places], ends, strict=True):
        piece = data[at:end]
        if piece:
            found.append(memoryview(bytearray(piece)) if rng.random() < 0.5 else piece)
    return found


@pytest.mark.parametrize("pdu", PDUS + ODD + (B((7, 2), 1, 4, Bundle.of(*[bytes(500)] * 40)),))
def test_pieces_are_decoded_as_their_join_is(pdu: Pdu) -> None:
    rng = Random(1)
    data = encode(pdu, sender=3, group_id=5, chan_seq=9)
    for _ in range(100):
        assert decode_pieces(cut(data, rng)) == decode(data)
    for _ in range(300):
        at = rng.randrange(len(data))
        wrong = data[:at] + bytes((data[at] ^ 1 << rng.randrange(8),)) + data[at + 1 :]
        with pytest.raises(MalformedPdu):
            decode_pieces(cut(wrong, rng))
        assert outcome(cut(wrong, rng)) == outcome([wrong])


def outcome(pieces: list[bytes | memoryview]) -> object:
    """What comes of pieces that are believed to be intact."""
    try:
        if len(pieces) == 1:
            return decode(bytes(pieces[0]), intact=True)
        return decode_pieces(pieces, intact=True)
    except MalformedPdu as error:
        return error.reason


def test_parts_are_split_like_their_join() -> None:
    rng = Random(2)
    data = os.urandom(5000)
    for mtu in (10, 11, 500, 4999, 5000, 6000):
        parts = [bytes(piece) for piece in cut(data, rng)]
        split = fragments.split_parts(parts, mtu, ident=7)
        assert [b"".join(one) for one in split] == fragments.split(data, mtu, ident=7)


@pytest.mark.parametrize("size", [0, 1, seal.LARGE, seal.LARGE + 1, 65_000])
def test_what_is_sealed_in_parts_is_opened_whole(size: int) -> None:
    secret, plain = os.urandom(32), os.urandom(size)
    one, two = (seal.Seal(secret, os.urandom(seal.BOOT_ID)) for _ in range(2))
    for _ in range(3):
        sealed = bytes(one.seal_parts([plain[:9], memoryview(plain)[9:]]))
        opened = two.open_large(memoryview(bytearray(sealed)))
        assert opened == plain
        two.give_back(opened)
        with pytest.raises(MalformedPdu, match="replay"):
            two.open_large(sealed)
    wrong = bytearray(one.seal_parts([plain]))
    wrong[-1] ^= 1
    with pytest.raises(MalformedPdu, match="seal"):
        two.open_large(bytes(wrong))


def test_nothing_larger_than_a_datagram_is_sealed() -> None:
    one = seal.Seal(os.urandom(32), os.urandom(seal.BOOT_ID))
    with pytest.raises(InvariantBroken):
        one.seal_parts([bytes(40_000), bytes(40_000)])


@pytest.mark.parametrize("pdu", EXAMPLES)
def test_what_is_found_in_pieces_keeps_nothing_of_them(pdu: Pdu) -> None:
    """The pieces may lie in a buffer that is used again."""
    data = encode(pdu, sender=3, group_id=5, chan_seq=9)
    buffer = bytearray(data)
    pieces: list[bytes | memoryview] = [memoryview(buffer)[:70], memoryview(buffer)[70:]]
    found = decode_pieces([piece for piece in pieces if piece])
    buffer[:] = bytes(len(buffer))
    assert found.pdu == pdu
    assert encode(found.pdu, sender=3, group_id=5, chan_seq=9) == data
