"""AutoRM's packets as bytes: vectors, truncations, lies, noise (AR-T1)."""

from __future__ import annotations

import re
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from roundelay.core.autorm.packets import (
    CONFIRMATION,
    ONE_OF,
    ZERO,
    Acknowledgement,
    Data,
    Heartbeat,
    Packet,
)
from roundelay.core.errors import InvariantBroken, MalformedPdu
from roundelay.wire import beamon
from roundelay.wire.beamon import BeamonCodec, decode, encode

A = bytes(range(0xA0, 0xB0))
B = bytes(range(0xB0, 0xC0))

VECTORS: dict[str, tuple[Packet, str]] = {
    "heartbeat": (
        Heartbeat(A, 3, ("news", "ä")),
        "01"
        "a0a1a2a3a4a5a6a7a8a9aaabacadaeaf"
        "0003"
        "02"
        "046e657773"
        "02c3a4",
    ),
    "a heartbeat of a node without groups": (
        Heartbeat(A, 1, ()),
        "01a0a1a2a3a4a5a6a7a8a9aaabacadaeaf000100",
    ),
    "data for the group": (
        Data(A, ZERO, 7, 3, 2, CONFIRMATION, "news", b"tail"),
        "02"
        "a0a1a2a3a4a5a6a7a8a9aaabacadaeaf"
        "00000000000000000000000000000000"
        "00000007"
        "00000003"
        "00000002"
        "02"
        "046e657773"
        "7461696c",
    ),
    "data for someone": (
        Data(A, B, 0x01020304, 1, 0, ONE_OF | CONFIRMATION, "n", b""),
        "02"
        "a0a1a2a3a4a5a6a7a8a9aaabacadaeaf"
        "b0b1b2b3b4b5b6b7b8b9babbbcbdbebf"
        "01020304"
        "00000001"
        "00000000"
        "03"
        "016e",
    ),
    "acknowledgement": (
        Acknowledgement(B, A, 7, 9, (1, 4)),
        "03"
        "b0b1b2b3b4b5b6b7b8b9babbbcbdbebf"
        "a0a1a2a3a4a5a6a7a8a9aaabacadaeaf"
        "00000007"
        "00000009"
        "0002"
        "00000001"
        "00000004",
    ),
    "an acknowledgement of everything": (
        Acknowledgement(B, A, 7, 2, ()),
        "03b0b1b2b3b4b5b6b7b8b9babbbcbdbebfa0a1a2a3a4a5a6a7a8a9aaabacadaeaf00000007000000020000",
    ),
    "an acknowledgement whose list was cut": (
        Acknowledgement(B, A, 7, 1, (0, 1)),
        "03b0b1b2b3b4b5b6b7b8b9babbbcbdbebfa0a1a2a3a4a5a6a7a8a9aaabacadaeaf0000000700000001"
        "00020000000000000001",
    ),
}  # fmt: skip


def reason(data: bytes) -> str:
    with pytest.raises(MalformedPdu) as caught:
        decode(data)
    return caught.value.reason


# -- what goes in comes out ------------------------------------------------------------------


@pytest.mark.parametrize("name", VECTORS)
def test_ar_t1_the_bytes_are_those_of_the_specification(name: str) -> None:
    """AR-T1, both directions; written by hand from PROTOCOLS §8.3."""
    packet, text = VECTORS[name]
    data = bytes.fromhex(text)
    assert encode(packet) == data
    assert decode(data) == packet
    assert decode(memoryview(data)) == packet


def test_the_vectors_in_the_documentation_are_those_bytes() -> None:
    page = Path(__file__).parents[2].joinpath("docs", "autorm.md").read_text(encoding="utf-8")
    shown = [
        (title, "".join(re.findall(r"^(?:[0-9a-f]{2} ?)+", block, re.MULTILINE)).replace(" ", ""))
        for title, block in re.findall(r"^\*\*(.*?)\*\*.*?\n\n```\n(.*?)```", page, re.M | re.S)
    ]
    assert len(shown) >= 4
    for title, text in shown:
        packet, expected = VECTORS[title.lower()]
        assert text == expected
        assert encode(packet).hex() == text


uuids = st.binary(min_size=16, max_size=16).filter(lambda raw: raw != ZERO)
u32 = st.integers(0, (1 << 32) - 1)
names = st.text(min_size=1, max_size=60).filter(
    lambda text: not any(0xD800 <= ord(c) < 0xE000 for c in text)
)
heartbeats = st.builds(
    Heartbeat, uuids, st.integers(0, 65535), st.lists(names, max_size=9).map(tuple)
)


@st.composite
def datas(draw: Any) -> Any:
    count = draw(st.integers(1, (1 << 32) - 1))
    return Data(
        draw(uuids), draw(uuids | st.just(ZERO)), draw(st.integers(1, (1 << 32) - 1)), count,
        draw(st.integers(0, count - 1)), draw(st.integers(0, 3)), draw(names),
        draw(st.binary(max_size=200)),
    )  # fmt: skip


@st.composite
def acknowledgements(draw: Any) -> Any:
    missing = tuple(sorted(draw(st.sets(u32, max_size=30))))
    highest = draw(st.integers(missing[-1] if missing else 0, (1 << 32) - 1))
    return Acknowledgement(
        draw(uuids), draw(uuids), draw(st.integers(1, (1 << 32) - 1)), highest, missing
    )


@given(st.one_of(heartbeats, datas(), acknowledgements()))
def test_every_packet_comes_back_as_it_was(packet: Any) -> None:
    data = encode(packet)
    assert decode(data) == packet
    assert decode(memoryview(data)) == packet
    assert BeamonCodec().decode(BeamonCodec().encode(packet, 3)) == packet


def test_a_payload_does_not_hold_on_to_the_buffer_it_came_in() -> None:
    packet, text = VECTORS["data for the group"]
    buffer = bytearray(bytes.fromhex(text))
    got = decode(memoryview(buffer))
    buffer[:] = bytes(len(buffer))
    assert got == packet
    assert type(got.payload) is bytes  # type: ignore[union-attr]


# -- what no peer sends ----------------------------------------------------------------------


@pytest.mark.parametrize("name", VECTORS)
def test_ar_t1_every_truncation_is_noticed_but_that_of_a_payload(name: str) -> None:
    packet, text = VECTORS[name]
    data = bytes.fromhex(text)
    for size in range(len(data)):
        if isinstance(packet, Data) and size >= len(data) - len(packet.payload):
            assert decode(data[:size]).payload == packet.payload[: size - len(data)]  # type: ignore[union-attr]
        else:
            assert reason(data[:size]) in (beamon.SHORT, beamon.EMPTY)


@pytest.mark.parametrize("name", VECTORS)
def test_trailing_bytes_are_noticed_where_there_is_no_payload(name: str) -> None:
    packet, text = VECTORS[name]
    data = bytes.fromhex(text) + b"\0"
    if isinstance(packet, Data):
        assert decode(data).payload == packet.payload + b"\0"  # type: ignore[union-attr]
    else:
        assert reason(data) == beamon.TRAILING


@pytest.mark.parametrize("kind", [0, 4, 15, 16, 17, 255])
def test_other_types_are_not_packets_of_autorm(kind: int) -> None:
    assert reason(bytes((kind,)) + bytes(60)) == beamon.UNKNOWN_TYPE


def changed(name: str, at: int, raw: bytes) -> bytes:
    data = bytearray(bytes.fromhex(VECTORS[name][1]))
    data[at : at + len(raw)] = raw
    return bytes(data)


@pytest.mark.parametrize(
    "name, at, raw, why",
    [
        ("heartbeat", 1, ZERO, beamon.NO_SOURCE),
        ("heartbeat", 19, b"\xff", beamon.SHORT),  # a count that lies
        ("heartbeat", 19, b"\x03", beamon.SHORT),
        ("heartbeat", 19, b"\x01", beamon.TRAILING),
        ("heartbeat", 19, b"\x00", beamon.TRAILING),
        ("heartbeat", 20, b"\x00", beamon.BAD_NAME),  # an empty name
        ("heartbeat", 20, b"\xff", beamon.SHORT),
        ("heartbeat", 21, b"\xff", beamon.BAD_NAME),  # not UTF-8
        ("heartbeat", 26, b"\x80", beamon.BAD_NAME),
        ("data for the group", 1, ZERO, beamon.NO_SOURCE),
        ("data for the group", 33, bytes(4), beamon.BAD_SEQUENCE),
        ("data for the group", 37, bytes(4), beamon.BAD_NUMBER),  # no packets at all
        ("data for the group", 41, b"\0\0\0\x03", beamon.BAD_NUMBER),  # number = count
        ("data for the group", 41, b"\xff\xff\xff\xff", beamon.BAD_NUMBER),
        ("data for the group", 45, b"\x04", beamon.BAD_FLAGS),
        ("data for the group", 45, b"\x82", beamon.BAD_FLAGS),
        ("data for the group", 46, b"\x00", beamon.BAD_NAME),
        ("data for the group", 46, b"\x09", beamon.SHORT),
        ("data for the group", 47, b"\xc0\x80", beamon.BAD_NAME),
        ("acknowledgement", 1, ZERO, beamon.NO_SOURCE),
        ("acknowledgement", 17, ZERO, beamon.NO_DESTINATION),
        ("acknowledgement", 33, bytes(4), beamon.BAD_SEQUENCE),
        ("acknowledgement", 41, b"\xff\xff", beamon.SHORT),  # k too large
        ("acknowledgement", 41, b"\x00\x03", beamon.SHORT),
        ("acknowledgement", 41, b"\x00\x01", beamon.TRAILING),
        ("acknowledgement", 43, b"\0\0\0\x04", beamon.BAD_MISSING),  # the same twice
        ("acknowledgement", 43, b"\0\0\0\x05", beamon.BAD_MISSING),  # falling
        ("acknowledgement", 47, b"\0\0\0\x0a", beamon.BAD_MISSING),  # above the highest
    ],
)
def test_a_lie_is_refused_under_its_reason(name: str, at: int, raw: bytes, why: str) -> None:
    assert reason(changed(name, at, raw)) == why


@pytest.mark.parametrize("size", [*range(65), 65507])
@pytest.mark.parametrize("fill", [0x00, 0x01, 0x02, 0x03, 0xFF])
def test_datagrams_of_one_byte_repeated_do_no_harm(size: int, fill: int) -> None:
    """ASSURANCE §6."""
    try:
        packet = decode(bytes((fill,)) * size)
    except MalformedPdu:
        return
    assert encode(packet) == bytes((fill,)) * size


@settings(max_examples=500)
@given(st.integers(0, 4), st.binary(max_size=300))
@example(1, bytes(16) + b"\x01\x00\xff")
@example(2, b"\x01" * 45 + b"\xff")
@example(3, b"\x01" * 40 + b"\xff\xff")
def test_noise_is_refused_or_is_a_packet(kind: int, noise: bytes) -> None:
    data = bytes((kind,)) + noise
    try:
        packet = decode(data)
    except MalformedPdu:
        return
    assert encode(packet) == data


@given(st.sampled_from(sorted(VECTORS)), st.data())
def test_a_flipped_bit_is_refused_or_another_packet(name: str, choose: Any) -> None:
    raw = bytearray(bytes.fromhex(VECTORS[name][1]))
    bit = choose.draw(st.integers(0, len(raw) * 8 - 1))
    raw[bit // 8] ^= 1 << bit % 8
    try:
        packet = decode(bytes(raw))
    except MalformedPdu:
        return
    assert packet != VECTORS[name][0]
    assert encode(packet) == raw


def test_a_count_that_lies_makes_nothing_large() -> None:
    liars = [
        changed("acknowledgement", 41, b"\xff\xff"),
        changed("heartbeat", 19, b"\xff"),
        changed("data for the group", 37, b"\xff" * 4),
    ]
    tracemalloc.start()
    try:
        for liar in liars:
            try:
                decode(liar)
            except MalformedPdu:
                continue
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 20_000


# -- what an engine must not make ------------------------------------------------------------


@pytest.mark.parametrize(
    "packet",
    [
        Heartbeat(A, 65536, ()),
        Heartbeat(A, -1, ()),
        Heartbeat(A[:15], 1, ()),
        Heartbeat(ZERO, 1, ()),
        Heartbeat(A, 1, ("",)),
        Heartbeat(A, 1, ("x" * 256,)),
        Heartbeat(A, 1, ("\udc80",)),
        Heartbeat(A, 256, tuple(f"{k}" for k in range(256))),
        Data(ZERO, B, 1, 1, 0, 0, "g", b""),
        Data(A, b"", 1, 1, 0, 0, "g", b""),
        Data(A, B, 0, 1, 0, 0, "g", b""),
        Data(A, B, 1, 1, 1, 0, "g", b""),
        Data(A, B, 1, 1, 0, 4, "g", b""),
        Data(A, B, 1, 1 << 32, 0, 0, "g", b""),
        Data(A, B, 1, 1, -1, 0, "g", b""),
        Data(A, B, 1, 1, 0, 0, "", b""),
        Acknowledgement(A, ZERO, 1, 0, ()),
        Acknowledgement(ZERO, A, 1, 0, ()),
        Acknowledgement(A, B, 0, 0, ()),
        Acknowledgement(A, B, 1, -1, ()),
        Acknowledgement(A, B, 1, 5, (6,)),
        Acknowledgement(A, B, 1, 5, (2, 1)),
        Acknowledgement(A, B, 1, 1 << 31, tuple(range(65536))),
    ],
)
def test_a_packet_that_no_peer_could_decode_is_a_bug_here(packet: Any) -> None:
    with pytest.raises(InvariantBroken):
        encode(packet)


def test_the_sizes_that_the_engine_counts_with_are_those_of_the_bytes() -> None:
    from roundelay.core.autorm import packets

    assert len(encode(Heartbeat(A, 1, ()))) == packets.HEARTBEAT_HEAD
    assert len(encode(Data(A, B, 1, 1, 0, 0, "g", b""))) == packets.DATA_HEAD + 1
    assert len(encode(Acknowledgement(A, B, 1, 0, ()))) == packets.ACK_HEAD
    one_more = len(encode(Acknowledgement(A, B, 1, 9, (3,)))) - packets.ACK_HEAD
    assert one_more == packets.ACK_ENTRY == struct.calcsize(">I")
