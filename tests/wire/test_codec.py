"""The wire codec: what goes in comes out, and nothing else gets through."""

from __future__ import annotations

import struct
import tracemalloc
from typing import Any
from zlib import crc32

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from roundelay.core.bundle import NOTHING, Bundle
from roundelay.core.engine import Pdu
from roundelay.core.errors import InvariantBroken, MalformedPdu
from roundelay.core.fields import (
    Bundled,
    CounterVector,
    Flag,
    HistoryRecord,
    Integer,
    Kind,
    ListVersion,
    MemberIds,
    Nested,
    NumberVector,
    Octets,
    RangeVector,
    RankSet,
    Truth,
    Vector,
    fields_of,
)
from roundelay.core.positive_ack import PaAck
from roundelay.core.token.pdu import (
    NO_LIST,
    Ack,
    B,
    Confirm,
    Entry,
    NewTl,
    RecoverData,
    RetxAck,
    RetxBulk,
    RetxMsg,
    RetxReq,
    TlHint,
    Vote1,
    Vote2,
)
from roundelay.wire.codec import GroupCodec, decode, encode, group_id
from roundelay.wire.compiler import plan_of
from roundelay.wire.layouts import BY_CLASS, BY_TYPE, LAYOUTS
from tests.wire.examples import CORNERS, EXAMPLES, packet

ALL = EXAMPLES + CORNERS


def sealed(packet: bytes) -> bytes:
    """`packet` without its last four bytes, with a checksum that fits."""
    return packet[:-4] + crc32(packet[:-4]).to_bytes(4, "big")


def with_body(pdu: Pdu, body: bytes) -> bytes:
    return sealed(packet(pdu)[:20] + body + bytes(4))


def reason(data: bytes) -> str:
    with pytest.raises(MalformedPdu) as caught:
        decode(data)
    return caught.value.reason


def pdu_or_refusal(data: bytes) -> None:
    """Either a PDU that can be encoded again to the same bytes, or MalformedPdu."""
    try:
        found = decode(data)
    except MalformedPdu:
        return
    again = encode(
        found.pdu,
        sender=found.sender,
        group_id=found.group_id,
        chan_seq=found.chan_seq,
        flags=found.flags,
        line=found.line,
        life=found.life,
    )
    assert again == data


# ------------------------------------------------------------------------ round trip

ids = st.integers(0, 2**16 - 2)
u32s = st.integers(0, 2**32 - 1)
positions = st.integers(0, 2**63 - 1)
versions = st.tuples(st.integers(0, 2**32 - 2), ids)
bundles = st.lists(st.binary(max_size=40), max_size=8).map(lambda parts: Bundle.of(*parts))
conferences = st.tuples(bundles, u32s, u32s).map(lambda of: of[0].marked(of[1], of[2]))
ranges = st.tuples(positions, positions).filter(lambda pair: pair[0] < pair[1])


def tuples(items: st.SearchStrategy[Any], most: int, **limits: Any) -> st.SearchStrategy[Any]:
    return st.lists(items, max_size=most, **limits).map(tuple)


VALUES: dict[type[Kind], st.SearchStrategy[Any]] = {
    Truth: st.booleans(),
    Flag: st.booleans(),
    HistoryRecord: st.tuples(positions, positions, st.integers(-1, 2**63 - 1)),
    RankSet: st.integers(0, 2**128 - 1),
    NumberVector: tuples(u32s, 255),
    CounterVector: st.dictionaries(ids, u32s, max_size=12).map(lambda found: tuple(found.items())),
    RangeVector: tuples(ranges, 16),
    Bundled: bundles | conferences,
}


def values(kind: Kind) -> st.SearchStrategy[Any]:
    """All that a field of that kind may hold."""
    if isinstance(kind, Integer):
        return st.integers(kind.least, kind.most)
    if isinstance(kind, ListVersion):
        return versions | st.just(NO_LIST) if kind.or_none else versions
    if isinstance(kind, MemberIds):
        return tuples(ids, 40, unique=True, min_size=kind.fewest)
    if isinstance(kind, Octets):
        return st.binary(max_size=kind.most)
    if isinstance(kind, Nested):
        return objects(kind.cls)
    if isinstance(kind, Vector):
        return tuples(objects(kind.cls), 5)
    return VALUES[type(kind)]


def objects(cls: type[Any]) -> st.SearchStrategy[Any]:
    return st.builds(cls, *(values(field.kind) for field in fields_of(cls)))


PDUS: dict[type[Pdu], st.SearchStrategy[Any]] = {
    layout.pdu: objects(layout.pdu) for layout in LAYOUTS
}
any_pdu = st.sampled_from(list(PDUS)).flatmap(PDUS.__getitem__)


@pytest.mark.parametrize("cls", PDUS, ids=lambda cls: cls.__name__)
def test_what_is_encoded_is_decoded(cls: type[Pdu]) -> None:
    @settings(max_examples=60, deadline=None)
    @given(PDUS[cls], ids, u32s, u32s, st.integers(0, 7), st.integers(0, 1))
    def check(pdu: Pdu, sender: int, group: int, chan_seq: int, flags: int, line: int) -> None:
        data = encode(pdu, sender=sender, group_id=group, chan_seq=chan_seq, flags=flags, line=line)
        found = decode(data)
        assert found.pdu == pdu
        assert type(found.pdu) is cls
        assert (found.sender, found.group_id, found.chan_seq) == (sender, group, chan_seq)
        assert (found.flags, found.line) == (flags | BY_CLASS[cls].flags, line)
        assert decode(bytearray(data)) == decode(memoryview(data)) == found

    check()


@pytest.mark.parametrize("pdu", ALL, ids=repr)
def test_examples_and_corner_cases_are_decoded(pdu: Pdu) -> None:
    assert decode(packet(pdu)).pdu == pdu


def test_truths_come_back_as_truths() -> None:
    vote = decode(packet(CORNERS[1])).pdu
    assert isinstance(vote, Vote1)
    assert (vote.yes, vote.amnesia, vote.wiped) == (False, False, True)
    assert {type(vote.yes), type(vote.amnesia), type(vote.wiped)} == {bool}


def test_the_envelope_has_the_documented_bytes() -> None:
    data = encode(
        TlHint((1, 2)), sender=0x0304, group_id=0x05060708, chan_seq=0x090A0B0C, flags=2, line=1,
        life=0x0D0E0F10,
    )  # fmt: skip
    assert data[:16].hex(" ") == "10 02 01 07 02 01 03 04 05 06 07 08 09 0a 0b 0c"
    assert data[16:20].hex(" ") == "0d 0e 0f 10"
    assert data[20:-4].hex(" ") == "00 00 00 01 00 02"
    assert data[-4:] == crc32(data[:-4]).to_bytes(4, "big")


def test_no_list_is_all_ones() -> None:
    vote = Vote1((1, 1), False, NO_LIST, (), 0, 0, False, False, 0, (1, 1))
    assert packet(vote)[27:33] == b"\xff" * 6


def test_a_retransmission_carries_its_flag() -> None:
    retransmitted = {cls for cls in PDUS if BY_CLASS[cls].flags}
    assert retransmitted == {RetxAck, RetxMsg, RetxBulk}
    assert all(decode(packet(pdu)).flags == (type(pdu) in retransmitted) for pdu in EXAMPLES)
    data = bytearray(packet(EXAMPLES[4]))
    data[4] = 0
    assert reason(sealed(bytes(data))) == "flags"


def test_the_types_are_those_of_the_specification() -> None:
    token = ["B", "ACK", "CONFIRM", "RETX_REQ", "RETX_ACK", "RETX_MSG", "TL_HINT", "RETX_BULK"]
    token.append("ACK_RUN")
    reform = ["INVITE", "VOTE1", "NEW_TL", "VOTE2", "NEW_TOKEN", "ABORT"]
    reform += ["RECOVER_REQ", "RECOVER_DATA", "FORKED"]
    expected = {(1, 1 + i): name for i, name in enumerate(token)}
    expected |= {(1, 16 + i): name for i, name in enumerate(reform)}
    expected |= {(2, 1): "B", (2, 2): "ACK"}
    cluster = ["DT", "NULL", "RETX", "STAT", "RST"]
    expected |= {(p, 1 + i): name for p in (3, 4, 5) for i, name in enumerate(cluster)}
    journal = ["SUBMIT", "SUBMIT_ACK", "BCAST", "DA_ACK", "ALIVE", "RECOVER", "RECOVERED", "POLL"]
    journal += ["POLL_OK", "SLOW", "REPLAY_REQ", "REPLAY_DATA", "REPLAY_END", "TAKEOVER", "GRANT"]
    journal.append("STALE")
    expected |= {(6, 1 + i): name for i, name in enumerate(journal)}
    trunk = {32: "UP", 33: "ACK_GCR", 34: "GBCAST", 35: "ACK_LCR", 37: "GALIVE"}
    subnet = ["LS_UP", "LS_DOWN", "RESPONSE", "LS_ACK", "LS_ASK", "LS_DATA"]
    expected |= {(7, number): name for number, name in trunk.items()}
    expected |= {(7, 40 + i): name for i, name in enumerate(subnet)}
    assert {(layout.proto, layout.type): layout.name for layout in LAYOUTS} == expected
    assert len(BY_TYPE) == len(BY_CLASS) == len(LAYOUTS)


def test_a_group_codec_knows_its_group() -> None:
    codec, other = GroupCodec("orders"), GroupCodec("offers")
    data = codec.encode(EXAMPLES[0], 3)
    assert codec.decode(data) == EXAMPLES[0]
    assert decode(data).sender == 3
    assert decode(data).group_id == group_id("orders") == crc32(b"orders")
    with pytest.raises(MalformedPdu, match="other group"):
        other.decode(data)


# ------------------------------------------------------------------------ damage


@pytest.mark.parametrize("pdu", ALL[:-1], ids=repr)
def test_every_truncation_is_refused(pdu: Pdu) -> None:
    data = packet(pdu)
    for size in range(len(data)):
        assert reason(data[:size]) == ("short" if size < 24 else "checksum")
        if size >= 24:
            # The same with a checksum that fits: the fields themselves must notice.
            assert reason(sealed(data[:size])) in ("short body", "bad bundle", "bad value")


@pytest.mark.parametrize("pdu", ALL[:-1], ids=repr)
def test_every_flipped_bit_is_noticed(pdu: Pdu) -> None:
    data = bytearray(packet(pdu))
    for bit in range(8 * len(data)):
        data[bit // 8] ^= 1 << bit % 8
        assert reason(bytes(data)) in ("packet type", "format version", "checksum")
        data[bit // 8] ^= 1 << bit % 8


@pytest.mark.parametrize("pdu", EXAMPLES, ids=repr)
def test_every_changed_byte_gives_a_pdu_or_a_refusal_even_if_the_checksum_fits(pdu: Pdu) -> None:
    data = bytearray(packet(pdu))
    for at in range(len(data) - 4):
        old = data[at]
        for new in {0, 1, 2, 3, 0x7F, 0x80, 0xFE, 0xFF, old ^ 1, old ^ 0x80}:
            data[at] = new
            pdu_or_refusal(sealed(bytes(data)))
        data[at] = old


@settings(max_examples=500, deadline=None)
@given(st.binary(max_size=64))
@example(b"")
@example(bytes(24))
@example(b"\x10\x02" + bytes(22))
def test_random_bytes_are_refused(data: bytes) -> None:
    pdu_or_refusal(data)
    if len(data) >= 24:
        pdu_or_refusal(sealed(b"\x10\x02" + data[2:]))


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(LAYOUTS), st.binary(max_size=64), st.integers(0, 7))
def test_random_bodies_give_a_pdu_or_a_refusal(layout: Any, body: bytes, flags: int) -> None:
    head = struct.pack(">BBBBBBHIII", 16, 2, layout.proto, layout.type, flags, 0, 1, 2, 3, 4)
    pdu_or_refusal(sealed(head + body + bytes(4)))


@settings(max_examples=400, deadline=None)
@given(any_pdu, st.data())
def test_mutated_packets_give_a_pdu_or_a_refusal(pdu: Pdu, data: st.DataObject) -> None:
    mutated = bytearray(packet(pdu)[:-4])
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(mutated)))
        match data.draw(st.sampled_from(["set", "insert", "delete", "ones"])):
            case "set" if at < len(mutated):
                mutated[at] = data.draw(st.integers(0, 255))
            case "insert":
                mutated[at:at] = data.draw(st.binary(max_size=9))
            case "delete":
                del mutated[at : at + data.draw(st.integers(1, 9))]
            case _:
                mutated[at : at + 4] = b"\xff" * len(mutated[at : at + 4])
    pdu_or_refusal(sealed(bytes(mutated) + bytes(4)))


def test_a_datagram_of_the_largest_size_is_no_trouble() -> None:
    for filler in (b"\x00", b"\xff", b"\x10"):
        assert reason(filler * 65507) in ("packet type", "format version")
    for pdu in EXAMPLES:
        pdu_or_refusal(with_body(pdu, b"\xff" * 65487))
        pdu_or_refusal(with_body(pdu, bytes(65487)))


# ------------------------------------------------------------------------ each refusal


def changed(pdu: Pdu, at: int, new: bytes) -> bytes:
    data = bytearray(packet(pdu))
    data[at : at + len(new)] = new
    return sealed(bytes(data))


MESSAGE, STAMPED = EXAMPLES[0], EXAMPLES[1]
ONES2, ONES4, ONES8 = b"\xff" * 2, b"\xff" * 4, b"\xff" * 8


@pytest.mark.parametrize(
    "data, expected",
    [
        (changed(STAMPED, 0, b"\x11"), "packet type"),
        (changed(STAMPED, 1, b"\x01"), "format version"),
        (packet(STAMPED)[:-1] + b"\x00", "checksum"),
        (changed(STAMPED, 2, b"\x09"), "protocol"),
        (changed(STAMPED, 2, b"\x00"), "protocol"),
        (changed(STAMPED, 3, b"\x0a"), "pdu type"),
        (changed(STAMPED, 4, b"\x08"), "flags"),
        (changed(STAMPED, 5, b"\x04"), "line"),
        (changed(STAMPED, 6, ONES2), "sender"),
        (changed(STAMPED, 20, ONES4), "bad list version"),
        (changed(STAMPED, 24, ONES2), "bad list version"),
        (changed(STAMPED, 20, b"\xff" * 6), "bad list version"),  # only a vote may have none
        (changed(EXAMPLES[10], 27, ONES4), "bad list version"),
        (changed(EXAMPLES[10], 31, ONES2), "bad list version"),
        (changed(STAMPED, 26, b"\x80"), "bad value"),  # a timestamp of 2⁶³ and more
        (changed(STAMPED, 26, ONES8), "bad value"),  # only a CONFIRM may have none
        (changed(STAMPED, 34, b"\x02"), "bad value"),  # kind
        (changed(STAMPED, 35, ONES2), "bad value"),  # id of nobody
        (changed(EXAMPLES[2], 26, b"\xff" * 7 + b"\xfe"), "bad value"),  # −2
        (changed(EXAMPLES[3], 26, b"\x00"), "bad value"),  # asks for nothing
        (changed(EXAMPLES[3], 26, b"\x04"), "bad value"),
        (changed(EXAMPLES[10], 26, b"\x02"), "bad value"),  # neither yes nor no
        (changed(EXAMPLES[10], 35, b"\x00\x01\x00\x01"), "bad member set"),  # 1 twice
        (changed(EXAMPLES[10], 35, ONES2), "bad member set"),
        (changed(EXAMPLES[10], 33, ONES2), "short body"),  # 65535 members
        (changed(EXAMPLES[10], 51, b"\x04"), "bad value"),  # an unknown flag
        (with_body(EXAMPLES[11], bytes(6) + bytes(2) + bytes(18)), "bad member set"),  # empty list
        (changed(EXAMPLES[12], 26, b"\x03"), "bad value"),
        (with_body(STAMPED, packet(STAMPED)[20:-4] + b"\x00"), "trailing bytes"),
        (with_body(STAMPED, b""), "short body"),
        (with_body(EXAMPLES[16], bytes(6)), "short body"),  # no count of entries
        (with_body(EXAMPLES[16], bytes(6) + b"\xff"), "short body"),  # 255 entries in no bytes
        (with_body(EXAMPLES[16], bytes(6) + b"\x00" + bytes(16)), "short body"),
        (with_body(EXAMPLES[16], bytes(6) + b"\x00" + bytes(16) + b"\xff"), "short body"),
        (
            with_body(EXAMPLES[16], bytes(23) + b"\x02" + bytes(12) + bytes(8)),
            "bad value",  # a source counted twice
        ),
        (
            with_body(EXAMPLES[16], bytes(23) + b"\x01" + ONES2 + bytes(4) + bytes(8)),
            "bad value",  # a number of nobody
        ),
    ],
)
def test_what_cannot_be_right_is_refused_by_its_reason(data: bytes, expected: str) -> None:
    assert reason(data) == expected


def body_of_b(*words: int, data: bytes = b"", count: int | None = None, width: int = 2) -> bytes:
    """A B whose bundle has these sizes and, last, this length."""
    count = len(words) - 1 if count is None else count
    head = struct.pack(">HB", count, width)
    sizes = b"".join(word.to_bytes(width, "big") for word in words[:-1])
    length = b"".join(word.to_bytes(4, "big") for word in words[-1:])
    return with_body(MESSAGE, packet(MESSAGE)[20:32] + head + sizes + length + data)


def test_the_helper_makes_good_bundles() -> None:
    assert decode(body_of_b(2, 1, 3, data=b"abc")).pdu == B((7, 2), 1, 41, Bundle.of(b"ab", b"c"))
    equal = body_of_b(4, count=2, width=0, data=b"abcd")
    assert decode(equal).pdu == B((7, 2), 1, 41, Bundle.of(b"ab", b"cd"))


def bundle_bytes(bundle: Bundle) -> bytes:
    return packet(B((7, 2), 1, 41, bundle))[32:-4]


def test_the_table_of_sizes_is_as_small_as_it_can_be() -> None:
    assert bundle_bytes(NOTHING).hex(" ") == "00 00 02 00 00 00 00"
    assert bundle_bytes(Bundle.of(b"abc")).hex(" ") == "00 01 00 00 00 00 03 61 62 63"
    assert bundle_bytes(Bundle.of(b"a", b"b")).hex(" ") == "00 02 00 00 00 00 02 61 62"
    assert bundle_bytes(Bundle.of(b"a", b"")).hex(" ") == "00 02 02 00 01 00 00 00 00 00 01 61"
    assert bundle_bytes(Bundle.of(b"", b"")).hex(" ") == "00 02 02 00 00 00 00 00 00 00 00"
    large = bundle_bytes(Bundle.of(bytes(65536), b"x"))
    assert large[:15].hex(" ") == "00 02 04 00 01 00 00 00 00 00 01 00 01 00 01"
    assert len(bundle_bytes(Bundle.of(*[bytes(64)] * 900))) == 7 + 64 * 900


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 5) | st.sampled_from([64, 3000, 65535, 65536]), max_size=40))
def test_bundles_of_any_sizes_come_back(sizes: list[int]) -> None:
    bundle = Bundle.of(*[bytes([at % 256]) * size for at, size in enumerate(sizes)])
    found = decode(packet(B((7, 2), 1, 41, bundle))).pdu
    assert isinstance(found, B)
    assert found.bundle == bundle
    assert [(len(one), set(one) <= {at % 256}) for at, one in enumerate(found.bundle)] == [
        (size, True) for size in sizes
    ]


def test_as_many_messages_as_a_bundle_may_have_come_back() -> None:
    for bundle in (Bundle((1,) * 65535, bytes(65535)), Bundle((0,) * 65535, b"")):
        found = decode(packet(B((7, 2), 1, 41, bundle))).pdu
        assert isinstance(found, B)
        assert found.bundle == bundle
        assert len(found.bundle.messages()) == 65535


@pytest.mark.parametrize(
    "data, expected",
    [
        (body_of_b(2, 1, 4, data=b"abcd"), "bad bundle"),
        (body_of_b(3, data=b"abc"), "bad bundle"),  # bytes that belong to no message
        (body_of_b(2**32 - 1, 4, 3, data=b"abc", width=4), "bad bundle"),  # 3 modulo 2³²
        (body_of_b(2**31, 2**31, 0, width=4), "bad bundle"),  # 0 modulo 2³²
        (body_of_b(2**32 - 1, 2**32 - 1, width=4), "short body"),  # 4 GiB in no bytes
        (body_of_b(0, count=65535), "short body"),
        (body_of_b(5, 5, data=b"abcd"), "short body"),
        (body_of_b(4, 1, 5, data=b"abcdef"), "trailing bytes"),
        (body_of_b(count=0), "short body"),
        # Bundles that have a smaller form.
        (body_of_b(3, 3, data=b"abc"), "bad bundle"),
        (body_of_b(1, 1, 1, 3, data=b"abc"), "bad bundle"),
        (body_of_b(2, 1, 3, data=b"abc", width=4), "bad bundle"),
        (body_of_b(0, width=4), "bad bundle"),
        # Bundled of one size that cannot be cut from the bytes.
        (body_of_b(3, count=2, width=0, data=b"abc"), "bad bundle"),
        (body_of_b(3, count=0, width=0, data=b"abc"), "bad bundle"),
        (body_of_b(0, count=65535, width=0), "bad bundle"),
        (body_of_b(2**32 - 1, count=65535, width=0), "short body"),
        (body_of_b(2, 1, 3, data=b"abc", width=1), "bad bundle"),
        (body_of_b(2, 1, 3, data=b"abc", width=3), "bad bundle"),
    ],
)
def test_sizes_that_do_not_add_up_are_refused(data: bytes, expected: str) -> None:
    assert reason(data) == expected


def test_huge_counts_allocate_nothing() -> None:
    packets = [
        body_of_b(0, count=65535),
        body_of_b(2**32 - 1, 2**32 - 1, width=4),
        body_of_b(*[2**32 - 1] * 200, 0, width=4),
        body_of_b(0, count=65535, width=0),
        body_of_b(2**32 - 1, count=65535, width=0),
        with_body(EXAMPLES[10], packet(EXAMPLES[10])[20:33] + ONES2 * 20),
        with_body(EXAMPLES[11], bytes(6) + ONES2 + bytes(40)),
        with_body(EXAMPLES[16], bytes(6) + b"\xff" + bytes(60)),
        with_body(EXAMPLES[16], bytes(23) + b"\xff" + bytes(60)),
    ]
    tracemalloc.start()
    try:
        for data in packets:
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            assert reason(data)
            assert tracemalloc.get_traced_memory()[1] - before < 64_000
    finally:
        tracemalloc.stop()


# ------------------------------------------------------------------------ what must not be sent


class Unregistered(Pdu, frozen=True, gc=False):
    pass


NESTED = Entry(Ack((1, 1), 0, 0, 0, 0, 0, 0))


@pytest.mark.parametrize(
    "pdu",
    [
        Unregistered(),
        Ack((1, 1), -1, 0, 0, 0, 0, 0),
        Ack((1, 1), 2**63, 0, 0, 0, 0, 0),
        Ack((1, 1), 2**64, 0, 0, 0, 0, 0),
        Ack((1, 1), 0, 2, 0, 0, 0, 0),
        Ack((1, 1), 0, 0, 65535, 0, 0, 0),
        Ack((1, 1), 0, 0, 0, 2**32, 0, 0),
        Ack((1, 1), 0, 0, 0, -1, 0, 0),
        Ack((2**32 - 1, 1), 0, 0, 0, 0, 0, 0),
        Ack((1, 65535), 0, 0, 0, 0, 0, 0),
        Ack((2**32, 1), 0, 0, 0, 0, 0, 0),
        Ack(NO_LIST, 0, 0, 0, 0, 0, 0),
        NewTl((1, 1), (1,), 0, 0, (-1, 5), ()),
        NewTl((1, 1), (1,), 0, 0, (2**32 - 1, 65535), ()),
        Confirm((1, 1), -2, 0, 0),
        RetxReq((1, 1), 0, 0, 0, 0, 0),
        Vote2((1, 1), 3),
        NewTl((1, 1), (), 0, 0, NO_LIST, ()),
        NewTl((1, 1), (3, 3), 0, 0, NO_LIST, ()),
        NewTl((1, 1), (65535,), 0, 0, NO_LIST, ()),
        NewTl((1, 1), (65536,), 0, 0, NO_LIST, ()),
        NewTl((1, 1), tuple(range(70000)), 0, 0, NO_LIST, ()),
        Vote1((1, 1), True, (1, 1), (), 0, -2, False, False, 0, (1, 1)),
        RecoverData((1, 1), (NESTED,) * 256, 0, 0, (), 0),
        RecoverData((1, 1), (), 0, 0, tuple((i, 0) for i in range(256)), 0),
        RecoverData((1, 1), (), 0, 0, ((1, 0), (1, 5)), 0),
        RecoverData((1, 1), (), 0, 0, ((1, -1),), 0),
        B((1, 1), 0, 0, Bundle((3,), b"four")),
        B((1, 1), 0, 0, Bundle((-1, 5), b"four")),
        B((1, 1), 0, 0, Bundle((0,) * 65536, b"")),
        PaAck(-1, 0, 0),
    ],
    ids=lambda pdu: repr(pdu)[:60],
)
def test_a_pdu_that_no_peer_could_decode_is_not_encoded(pdu: Pdu) -> None:
    with pytest.raises(InvariantBroken):
        packet(pdu)


@pytest.mark.parametrize(
    "wrong",
    [
        {"sender": -1},
        {"sender": 65535},
        {"group_id": -1},
        {"group_id": 2**32},
        {"chan_seq": 2**32},
        {"flags": 8},
        {"flags": -1},
        {"line": 4},
    ],
)
def test_an_envelope_that_no_peer_could_decode_is_not_encoded(wrong: dict[str, int]) -> None:
    with pytest.raises(InvariantBroken):
        encode(STAMPED, **({"sender": 1, "group_id": 1} | wrong))


class Undescribed(Pdu, frozen=True, gc=False):
    ts: int
    numbers: tuple[int, ...]


def test_a_field_must_say_what_kind_it_is() -> None:
    with pytest.raises(TypeError, match=r"Undescribed\.ts"):
        plan_of(Undescribed)
