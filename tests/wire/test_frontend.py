"""Frontend packets: byte for byte, in any pieces, and whatever else somebody sends."""

from __future__ import annotations

import re
import struct
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roundelay.core.bundle import MESSAGES_MAX, Bundle
from roundelay.core.errors import ConfigError, MalformedPdu
from roundelay.core.position import Since
from roundelay.journal.format import Run, encode_block
from roundelay.node.frontend.packets import (
    INDETERMINATE,
    fail_packet,
    from_packet,
    portions,
    read_failure,
    read_from,
    read_receipt,
    read_received,
    read_send,
    receipt_packet,
    received_packet,
    send_packet,
    told_packet,
)
from roundelay.node.node_api import UNIT, Batch, Missed, Receipt, Refusal, Send, View
from roundelay.wire.frontend import (
    BAD_BODY,
    MESSAGE_BYTES,
    TO_APPLICATION,
    TO_NODE,
    TOO_LARGE,
    UNKNOWN_COMMAND,
    Address,
    Packet,
    Parser,
    address,
    head,
    packet,
    plain_packets,
    read_json,
    read_struct,
)
from roundelay.wire.frontend_replay import (
    Ended,
    ReplayRequest,
    block_packet,
    ended_packet,
    more_packet,
    read_ended,
    read_more,
    read_replay,
    replay_id,
    replay_packet,
)

PAGE = Path(__file__).parents[2] / "docs" / "frontend-protocol.md"
TIME = 0x1797C24CE5DB9515
TWO = Bundle.of(b"one", b"two")
HI = Bundle.of(b"hi")
HELLO = b'{"extended":true,"name":"till 3"}'
GREETING = (
    b'{"node":"ann","version":"0.1.0","protocol":1,"max_message":1048576,"queue_bytes":8388608}'
)
VIEW = View("ab", "7.2", ("ann", "bob"), "open", "6f1d", 42)

REPLAY = ReplayRequest(frozenset({7}), frozenset({"ann"}), since=42, id=3)
EXAMPLES = [
    head("JOIN", "ab"),
    head("LEAV", "ab"),
    packet("SNDE", "ab", b"hi"),
    packet("SNDS", "ab", b"hi"),
    packet("RCVE", "ab", b"hi"),
    packet("HELO", "", HELLO),
    packet("HELO", "", GREETING),
    send_packet(Send("ab", TWO, 7)),
    send_packet(Send("ab", HI, 8, someone=True)),
    send_packet(Send("ab", HI, -1, ("ann", "bob"))),
    receipt_packet(Receipt("ab", 7, 42, TIME), given_up=True),
    receipt_packet(Receipt("ab", 7, -1, TIME, ("bob", "cat")), given_up=True),
    receipt_packet(Receipt("ab", 7, 42, TIME, ("bob",), 1), level=True),
    fail_packet("ab", 7, INDETERMINATE, "no majority"),
    send_packet(Send("ab", HI.marked(7, 1), 9, recorders=1)),
    packet("OPTS", "ab", b'{"resilience":1,"min_members":1}'),
    from_packet("ab", Since(42)),
    from_packet("ab", Since(0, TIME)),
    received_packet(Batch("ab", 42, "ann", TIME, TWO)),
    received_packet(Batch("ab", 42, "ann", TIME, HI.marked(7, 1))),
    replay_packet("ab", REPLAY),
    block_packet("ab", 3, encode_block([Run(42, TIME, "ann", HI, 7, 1)], bytes(16), 0)),
    more_packet("ab", 3, 1),
    ended_packet("ab", Ended(3, 1042)),
    send_packet(Send("ab", TWO.marked(7), 10, unit=True)),
    received_packet(Batch("ab", 42, "ann", TIME, TWO.marked(7), UNIT)),
    told_packet("VIEW", VIEW),
    told_packet("MISS", Missed("ab", 42, 90, "6f1d")),
    from_packet("ab", Since(42, history="6f1d")),
    head("STOP", "ab"),
    head("GOON", "ab"),
    packet("ASKQ", "", b'{"id":1,"ask":"why","of":"bob"}'),
    packet("ANSW", "", b'{"id":1,"answer":{"alive":true}}'),
]
"""As they stand on the page."""


def at_node(extended: bool = True, **options: int) -> Parser:
    parser = Parser.at_node(**options)
    if extended:
        parser.extend()
    return parser


def parsed(data: bytes, parser: Parser | None = None) -> list[Packet]:
    parser = parser or at_node()
    parser.feed(data)
    return list(parser.packets())


def one(data: bytes) -> Packet:
    parser = Parser.at_application()
    if data[:4].decode() in {command.name for command in TO_NODE} and data[:4] != b"HELO":
        parser = at_node()
    (found,) = parsed(data, parser)
    return found


# -- the page


def test_the_bytes_on_the_page_are_those_of_the_code() -> None:
    text = PAGE.read_text(encoding="utf-8")
    blocks = re.findall(r"```\n((?:[0-9a-f]{2} ?)+   .*?)\n```", text, re.DOTALL)
    shown = [
        bytes.fromhex("".join(line.split("   ")[0] for line in block.splitlines()))
        for block in blocks
    ]
    assert shown == EXAMPLES


def test_the_page_shows_every_command_and_says_what_it_means() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert {data[:4].decode() for data in EXAMPLES} == {
        command.name for command in TO_NODE + TO_APPLICATION
    }
    for command in TO_NODE + TO_APPLICATION:
        (row,) = re.findall(rf"^\| `{command.name}` \| (\w) \| \w+ \| (.*) \|$", text, re.MULTILINE)
        assert row[0] == command.layout
        assert command.meaning in row[1]
    assert "`AUTH`" in text


# -- byte for byte (AR-T1)


def test_the_packets_of_the_paper() -> None:
    assert head("JOIN", "ab") == bytes.fromhex("4A 4F 49 4E 02 61 62")
    assert head("LEAV", "é") == bytes.fromhex("4C 45 41 56 02 C3 A9")
    assert packet("SNDE", "g", b"") == b"SNDE\x01g\0\0\0\0"
    assert packet("RCVE", "x" * 255, b"y" * 300) == (
        b"RCVE\xff" + b"x" * 255 + b"\0\0\x01\x2c" + b"y" * 300
    )
    assert plain_packets("RCVE", "g", TWO) == b"RCVE\x01g\0\0\0\x03oneRCVE\x01g\0\0\0\x03two"


def test_what_is_written_is_read_again() -> None:
    assert read_send(one(EXAMPLES[7])) == Send("ab", TWO, 7)
    assert read_send(one(EXAMPLES[8])) == Send("ab", HI, 8, someone=True)
    assert read_send(one(EXAMPLES[9])) == Send("ab", HI, -1, ("ann", "bob"))
    assert read_receipt(one(EXAMPLES[10])) == Receipt("ab", 7, 42, TIME)
    assert read_receipt(one(EXAMPLES[11])) == Receipt("ab", 7, -1, TIME, ("bob", "cat"))
    assert read_receipt(one(EXAMPLES[12])) == Receipt("ab", 7, 42, TIME, (), 1)
    refusal = Refusal("ab", 7, "no majority", True)
    assert read_failure(one(EXAMPLES[13])) == (refusal, INDETERMINATE)
    assert read_received(one(EXAMPLES[18])) == Batch("ab", 42, "ann", TIME, TWO)
    assert read_struct(one(EXAMPLES[26]), View) == VIEW


def test_a_receipt_is_read_whole_or_not_at_all() -> None:
    whole = one(EXAMPLES[11]).message
    for size in [*range(24), *range(25, len(whole))]:
        with pytest.raises(MalformedPdu):
            read_receipt(Packet("RCPT", "ab", whole[:size]))
    with pytest.raises(MalformedPdu):
        read_receipt(Packet("RCPT", "ab", whole + b"\0"))


def test_what_is_missing_is_read_again() -> None:
    gap = Missed("ab", 42, 90, "6f1d")
    refused = Missed("ab", 240, 0, "6f1d", "09ab", final=True)
    for missed in (gap, refused):
        assert read_struct(one(told_packet("MISS", missed)), Missed) == missed
    for wrong in (b"{}", b'{"lo":1,"hi":"2"}', b'{"lo":true,"hi":2}'):
        with pytest.raises(MalformedPdu):
            read_struct(Packet("MISS", "ab", wrong), Missed)
    for history in (b"\xff", b"x" * 256):
        with pytest.raises(MalformedPdu):
            read_from(Packet("FROM", "ab", bytes(16) + history))


def test_what_recorders_need_is_read_again() -> None:
    sent = read_send(one(EXAMPLES[14]))
    assert sent == Send("ab", HI.marked(7, 1), 9, recorders=1)
    named = Send("ab", HI.marked(0, 3), -1, ("ann", "bob"))
    assert read_send(one(send_packet(named))) == named
    assert [read_from(one(EXAMPLES[i])) for i in (16, 17)] == [Since(42), Since(0, TIME)]
    assert read_from(one(EXAMPLES[28])) == Since(42, 0, "6f1d")
    got = read_received(one(EXAMPLES[19]))
    assert got == Batch("ab", 42, "ann", TIME, HI.marked(7, 1))
    assert read_replay(one(EXAMPLES[20])) == REPLAY
    assert read_more(one(EXAMPLES[22])) == (3, 1)
    assert read_ended(one(EXAMPLES[23])) == Ended(3, 1042)
    unit = read_send(one(EXAMPLES[24]))
    assert unit == Send("ab", TWO.marked(7), 10, unit=True)
    assert read_received(one(EXAMPLES[25])) == Batch("ab", 42, "ann", TIME, TWO.marked(7), UNIT)
    for wrong in (b'{"since":-1}', b'{"senders":"ann"}', b'{"kinds":[]}', b'{"blocks":65}'):
        with pytest.raises(ConfigError):
            read_replay(Packet("RPLY", "ab", wrong))
    # What the node would refuse is refused before it is sent; else, it is said which replay it was.
    for unfit in (ReplayRequest(senders=frozenset({5})), ReplayRequest(kinds=frozenset({True}))):
        with pytest.raises(ConfigError):
            replay_packet("ab", unfit)
    asked = [b'{"id":3,"since":-1}', b'{"id":-1}', b'{"id":"3"}', b"{}"]
    assert [replay_id(Packet("RPLY", "ab", one)) for one in asked] == [3, -1, -1, 0]
    for command, read in (("SNDC", read_send), ("RCVC", read_received),
                          ("SNDU", read_send), ("RCVU", read_received),
                          ("MORE", read_more), ("FROM", read_from)):  # fmt: skip
        for size in range(8):
            with pytest.raises(MalformedPdu):
                read(Packet(command, "ab", bytes(size)))


# -- in any pieces

printable = st.characters(exclude_categories=("C", "Z"), include_characters=" ")
names = st.text(printable, min_size=1, max_size=20)
packets = st.lists(
    st.one_of(
        st.builds(Packet, st.sampled_from(["JOIN", "LEAV"]), names),
        st.builds(
            Packet, st.sampled_from(["SNDE", "SNDS", "SNDR"]), names, st.binary(max_size=300)
        ),
        st.builds(Packet, st.just("ASKQ"), st.just(""), st.binary(max_size=100)),
    ),
    max_size=20,
)


def written(found: Packet) -> bytes:
    if found.command in ("JOIN", "LEAV"):
        return head(found.command, found.group)
    return packet(found.command, found.group, found.message)


@given(packets, st.randoms(use_true_random=False), st.integers(1, 400), st.booleans())
def test_any_split_gives_the_same_packets(
    sent: list[Packet], random: Random, most: int, lazy: bool
) -> None:
    data = b"".join(map(written, sent))
    parser = at_node()
    got: list[Packet] = []
    while data:
        size = random.randint(1, most)
        parser.feed(data[:size])
        data = data[size:]
        for found in parser.packets():
            got.append(found)
            if lazy and random.random() < 0.3:
                break  # as when there is no room
    got += parser.packets()
    assert got == sent
    assert parser.held_bytes == 0


@settings(max_examples=30)
@given(packets)
def test_byte_by_byte(sent: list[Packet]) -> None:
    parser = at_node()
    got: list[Any] = []
    for byte in b"".join(map(written, sent)):
        parser.feed(bytes([byte]))
        got += parser.packets()
    assert got == sent


def test_a_large_message_in_small_pieces_is_held_once() -> None:
    parser = at_node()
    data = packet("SNDE", "g", bytes(MESSAGE_BYTES))
    for i in range(0, len(data), 97):
        assert parser.held_bytes == i
        parser.feed(data[i : i + 97])
        found = list(parser.packets())
    assert [len(one.message) for one in found] == [MESSAGE_BYTES]
    assert parser.held_bytes == 0


# -- hostile input


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"EVIL", "unknown command"),
        (b"joiN\x01g", "unknown command"),
        (b"\xff\xff\xff\xff", "unknown command"),
        (b"JOIN\0", "empty name"),
        (b"SNDE\0\0\0\0\x01x", "empty name"),
        (b"JOIN\x01\xff", "name not UTF-8"),
        (b"JOIN\x02\xc3\x28", "name not UTF-8"),
        (b"JOIN\x03\xed\xa0\x80", "name not UTF-8"),  # half of a surrogate pair
        (b"JOIN\x02a\0", "NUL in name"),
        (b"SNDE\x01g\xff\xff\xff\xff", TOO_LARGE),
        (b"SNDE\x01g" + struct.pack(">I", MESSAGE_BYTES + 1), TOO_LARGE),
        (b"SNDR\x01g\xff\xff\xff\xff", TOO_LARGE),
        (b"ASKQ\0\x00\x01\x00\x01", TOO_LARGE),
    ],
)
def test_what_is_no_packet_is_refused_as_soon_as_it_shows(data: bytes, reason: str) -> None:
    with pytest.raises(MalformedPdu) as refused:
        parsed(data)
    assert refused.value.reason == reason
    parser = at_node()
    parser.feed(head("JOIN", "g") + data)
    iterator = parser.packets()
    assert next(iterator) == Packet("JOIN", "g")  # what came before it counts
    with pytest.raises(MalformedPdu):
        next(iterator)


def test_a_message_of_the_limit_is_taken_and_one_byte_more_is_not() -> None:
    assert len(parsed(packet("SNDE", "g", bytes(1000)), at_node(message_bytes=1000))) == 1
    for command in ("SNDE", "SNDS"):
        with pytest.raises(MalformedPdu, match="1001 bytes, at most 1000"):
            parsed(packet(command, "g", bytes(1001)), at_node(message_bytes=1000))
    (found,) = parsed(
        send_packet(Send("g", Bundle.of(bytes(1001)), -1)), at_node(message_bytes=1000)
    )
    with pytest.raises(MalformedPdu, match="1001 bytes, at most 1000"):
        read_send(found, 1000)


def test_our_commands_are_unknown_before_helo() -> None:
    parser = Parser.at_node()
    assert parsed(packet("HELO", "", b"{}"), parser) == [Packet("HELO", "", b"{}")]
    for command in ("SNDR", "SNDO", "SNDD", "ASKQ", "RCVE", "VIEW", "AUTH"):
        with pytest.raises(MalformedPdu, match=UNKNOWN_COMMAND):
            parsed(packet(command, "g", b""), Parser.at_node())


BODIES = [
    b"",
    b"1234567",
    bytes(8),  # a tag and nothing else
    struct.pack(">qH", 1, 0),  # no messages
    struct.pack(">qH", 1, 1),  # a table that is cut off
    struct.pack(">qHI", 1, 1, 5) + b"four",
    struct.pack(">qHI", 1, 1, 3) + b"four",
    struct.pack(">qHII", 1, 2, 0xFFFFFFFF, 0xFFFFFFFF),  # a sum that would wrap 32 bits
    struct.pack(">qHII", 1, 2, 0xFFFFFFFF, 5) + b"four",
    struct.pack(">qH", 1, 65535) + bytes(100),
    struct.pack(">qHI", -2, 1, 1) + b"x",
]


@pytest.mark.parametrize("body", BODIES)
def test_sends_that_are_not_what_they_say(body: bytes) -> None:
    with pytest.raises(MalformedPdu) as refused:
        read_send(Packet("SNDR", "g", body))
    assert refused.value.reason == BAD_BODY
    for names in (b"\0", b"\x01", b"\x01\x05ann", b"\x02\x03ann", b"\x01\x00"):
        with pytest.raises(MalformedPdu):
            read_send(Packet("SNDD", "g", bytes(8) + names + body[8:]))


@settings(max_examples=300)
@given(st.binary(max_size=200), st.sampled_from(["SNDR", "SNDO", "SNDD", "RCVX", "RCPT", "FAIL"]))
def test_any_message_is_read_or_refused(body: bytes, command: str) -> None:
    readers: dict[str, Any] = {"RCVX": read_received, "RCPT": read_receipt, "FAIL": read_failure}
    try:
        readers.get(command, read_send)(Packet(command, "g", body))
    except MalformedPdu as error:
        reason = error.reason
    else:
        reason = BAD_BODY
    assert reason in (BAD_BODY, TOO_LARGE, "name not UTF-8", "NUL in name", "empty name")


@given(st.binary(max_size=300))
def test_any_json_is_an_object_or_refused(body: bytes) -> None:
    try:
        found: object = read_json(Packet("ASKQ", "", body))
    except MalformedPdu as error:
        found = error
    assert isinstance(found, dict) or getattr(found, "reason", "") == "malformed JSON"


def test_json_as_deep_as_a_question_may_be_is_refused() -> None:
    for body in (b"[" * 60_000, b'{"a":' * 10_000, b"[]", b"null", b"\xff", b'{"a":\xff}'):
        with pytest.raises(MalformedPdu, match="malformed JSON"):
            read_json(Packet("ASKQ", "", body))


def test_garbage_never_raises_anything_else_and_never_grows() -> None:
    random = Random(4)
    whole = b"".join(EXAMPLES[:5] + EXAMPLES[7:10] + EXAMPLES[14:15] + EXAMPLES[20:21])
    reasons = set()
    for _ in range(4000):
        data = bytearray(whole)
        for _ in range(random.randint(1, 4)):
            kind = random.randrange(4)
            at = random.randrange(len(data))
            if kind == 0:
                data[at] ^= 1 << random.randrange(8)
            elif kind == 1:
                del data[at : at + random.randint(1, 9)]
            elif kind == 2:
                data[at:at] = random.randbytes(random.randint(1, 9))
            else:
                data[at : at + 4] = b"\xff\xff\xff\xff"
        parser = at_node()
        try:
            for i in range(0, len(data), 50):
                parser.feed(bytes(data[i : i + 50]))
                for found in parser.packets():
                    if found.command.startswith("SND") and found.command[3] in "ROD":
                        read_send(found)
        except MalformedPdu as error:
            reasons.add(error.reason)
        assert parser.held_bytes <= len(data)
    assert len(reasons) >= 5


# -- builders


@pytest.mark.parametrize("name", ["x" * 256, "é" * 128, "a\0b", "\ud800"])
def test_names_that_cannot_be_sent(name: str) -> None:
    with pytest.raises(ConfigError, match="group = "):
        head("JOIN", name)
    with pytest.raises(ConfigError, match="to = "):
        send_packet(Send("g", HI, -1, (name,)))
    with pytest.raises(ConfigError, match="to = "):
        send_packet(Send("g", HI, -1, ()))


@given(st.lists(st.binary(max_size=50), max_size=40), st.integers(1, 120))
def test_portions_are_the_bundle_in_pieces_that_fit(messages: list[bytes], most: int) -> None:
    parts = list(portions(Bundle.of(*messages), most))
    assert [message for part in parts for message in part] == messages
    for part in parts:
        assert len(part.data) <= most or len(part) == 1
        assert len(part.data) == sum(part.sizes)


def test_portions_have_no_more_messages_than_can_be_counted() -> None:
    bundle = Bundle((0,) * (MESSAGES_MAX + 5), b"")
    assert [len(part) for part in portions(bundle, 1000)] == [MESSAGES_MAX, 5]


def test_addresses() -> None:
    assert address("127.0.0.1:6678") == Address("127.0.0.1", 6678)
    assert address("unix:run/x.sock") == Address(path="run/x.sock")
    for text in ("127.0.0.1:6678", "[::1]:80", "unix:/tmp/x", "localhost:1"):
        assert str(address(text)) == text
    assert address("h:0", any_port=True).port == 0
    for text in ("", "h", "h:", ":1", "h:0", "h:65536", "h:1e3", "h:" + "9" * 5000, "::1:80",
                 "unix:", "unix:" + "x" * 108):  # fmt: skip
        with pytest.raises(ConfigError, match="node = "):
            address(text, "node")
