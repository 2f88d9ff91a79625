"""What a frontend and its node say to each other: type A and type B packets (AutoRM §3.1).

A frontend is the small part of an application that speaks to a node over a byte stream.  Numbers
are in network byte order, names in UTF-8::

    type A   command (4 ASCII letters) · g (u8) · group name (g bytes)
    type B   type A · m (u32) · message (m bytes)

The paper has five commands: JOIN and LEAV (A), SNDE and SNDS (B) to the node, RCVE (B) back.  A
connection that uses only these gets nothing else: no replies, no errors.  What they cannot say
takes further commands of the same two layouts, which a frontend asks for with HELO.

`Parser` takes bytes as they come, in any pieces, and gives packets.  It never sets memory aside
because a packet announces a size: it holds what has arrived, and refuses a size above the limit as
soon as it has read it (AR-F1).  Whatever it refuses, it refuses with MalformedPdu, whose reason is
the key to count it under; the connection is to be closed then.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Struct

from roundelay.core.bundle import MESSAGES_MAX, Bundle
from roundelay.core.errors import ConfigError, MalformedPdu

T = TypeVar("T")

PROTOCOL: Final = 1
"""Version of the commands beyond the paper's."""

MESSAGE_BYTES: Final = 1 << 20
"""Largest message unless the node is told otherwise (`--max-message`)."""
MESSAGE_BYTES_MOST: Final = 64 << 20
NAME_BYTES: Final = 255
JSON_BYTES: Final = 64 << 10
"""Longest question; answers may be as long as messages."""

# Reasons to count a refused packet under.
UNKNOWN_COMMAND: Final = "unknown command"
EMPTY_NAME: Final = "empty name"
BAD_NAME: Final = "name not UTF-8"
NUL_IN_NAME: Final = "NUL in name"
TOO_LARGE: Final = "message too large"
BAD_BODY: Final = "malformed message"
BAD_JSON: Final = "malformed JSON"

_TABLES: Final = 10 + 256 * (NAME_BYTES + 1) + 16 + 4 * MESSAGES_MAX
"""The most that tags, names and lengths add to the messages of one packet."""


class Command(Struct, frozen=True):
    """A four-letter command."""

    name: str
    layout: str
    """`A` or `B`."""
    meaning: str
    paper: bool = False
    """One of the paper's five."""
    named: bool = True
    """It is about a group, so the name may not be empty."""
    json: bool = False
    """Its message is a JSON object."""


TO_NODE: Final = (
    Command("JOIN", "A", "deliver the messages of the group to me", paper=True),
    Command("LEAV", "A", "no longer do so", paper=True),
    Command("SNDE", "B", "send the message to everyone in the group", paper=True),
    Command("SNDS", "B", "send it to someone: one application of one node", paper=True),
    Command("HELO", "B", "I speak the commands below too", named=False, json=True),
    Command("SNDR", "B", "send messages to everyone and give me a receipt"),
    Command("SNDO", "B", "send messages to someone and give me a receipt"),
    Command("SNDD", "B", "send messages to the nodes named and give me a receipt"),
    Command("SNDC", "B", "send messages of a conference, or to be recorded, for a receipt"),
    Command("SNDU", "B", "send messages that take effect together: a unit"),
    Command("OPTS", "B", "what the next JOIN or FROM of the group asks of it", json=True),
    Command("FROM", "B", "join, and begin at that position"),
    Command("RPLY", "B", "replay what was recorded of the group", json=True),
    Command("MORE", "B", "so many more blocks of a replay may come"),
    Command("STOP", "A", "I can take no more of the group now"),
    Command("GOON", "A", "I can again"),
    Command("ASKQ", "B", "answer a question about the node", named=False, json=True),
)

TO_APPLICATION: Final = (
    Command("RCVE", "B", "a message of a group you joined", paper=True),
    Command("HELO", "B", "who I am and what I allow", named=False, json=True),
    Command("RCVX", "B", "messages of one sender, with their place in the order"),
    Command("RCVC", "B", "the same, of one conference and kind"),
    Command("RCVU", "B", "a unit: messages that take effect together"),
    Command("RPLB", "B", "a block of a replay"),
    Command("RPLE", "B", "the end of a replay", json=True),
    Command("RCPT", "B", "what you sent has its place in the order for good"),
    Command("FAIL", "B", "what you sent is not, or may not be, delivered", named=False),
    Command("VIEW", "B", "who is in the group, and whether it moves", json=True),
    Command("MISS", "B", "what you should be given next cannot be had", json=True),
    Command("STOP", "A", "the queue of the group is full; I read on when there is room"),
    Command("GOON", "A", "there is room again"),
    Command("ANSW", "B", "the answer to a question", named=False, json=True),
)


class Packet(Struct, frozen=True, gc=False):
    """One packet; the message of type A is empty."""

    command: str
    group: str
    message: bytes = b""


_HEAD: Final = struct.Struct(">4sB")
_SIZE: Final = struct.Struct(">I")
_Rule = tuple[str, bool, bool, int]
"""Command, is it of type B, may its name not be empty, longest message."""


def _rules(commands: Iterable[Command], message_bytes: int, json_bytes: int) -> dict[bytes, _Rule]:
    def limit(command: Command) -> int:
        if command.paper:
            return message_bytes
        return json_bytes if command.json else message_bytes + _TABLES

    return {
        command.name.encode(): (command.name, command.layout == "B", command.named, limit(command))
        for command in commands
    }


class Parser:
    """Packets out of a stream of bytes that comes in any pieces.

    >>> parser = Parser.at_node()
    >>> parser.feed(bytes.fromhex("4A4F494E 02 61"))
    >>> list(parser.packets())
    []
    >>> parser.feed(b"b")
    >>> list(parser.packets())
    [Packet(command='JOIN', group='ab', message=b'')]

    Bytes are copied a fixed number of times, however they are cut: a packet that is not complete
    gathers in `_tail` and is looked at again only when `_need` bytes are there.
    """

    __slots__ = ("_all", "_data", "_need", "_pos", "_rules", "_tail")

    def __init__(self, few: dict[bytes, _Rule], every: dict[bytes, _Rule]) -> None:
        self._rules = few
        self._all = every
        self._data = b""
        self._pos = 0
        self._tail = bytearray()
        self._need = 1

    @classmethod
    def at_node(cls, message_bytes: int = MESSAGE_BYTES) -> Parser:
        """For what applications say: the paper's commands and HELO, until `extend`."""
        few = [command for command in TO_NODE if command.paper or command.name == "HELO"]
        return cls(*(_rules(some, message_bytes, JSON_BYTES) for some in (few, TO_NODE)))

    @classmethod
    def at_application(cls) -> Parser:
        """For what a node says."""
        every = _rules(TO_APPLICATION, MESSAGE_BYTES_MOST, MESSAGE_BYTES_MOST)
        return cls(every, every)

    def extend(self) -> None:
        """From the next packet on, take all commands."""
        self._rules = self._all

    @property
    def held_bytes(self) -> int:
        """Bytes that were fed and are in no packet yet."""
        return len(self._data) - self._pos + len(self._tail)

    def feed(self, data: bytes) -> None:
        if self._pos < len(self._data):  # the packets were not all taken
            self._tail[:0] = self._data[self._pos :]
        elif not self._tail:
            self._data = data
            self._pos = 0
            return
        self._tail += data
        self._data = b""
        self._pos = 0
        if len(self._tail) >= self._need:
            self._need = 1
            self._data = bytes(self._tail)
            self._tail.clear()

    def packets(self) -> Iterator[Packet]:
        """The complete packets fed so far.  Whoever stops early goes on with a new call."""
        data = self._data
        end = len(data)
        pos = self._pos
        known = b""  # head of the packet before; most packets have the same
        rule: _Rule = ("", False, False, 0)
        group = ""
        while pos < end:
            if known and data.startswith(known, pos):
                start = pos + len(known)
            else:
                available = end - pos
                if available < 4:
                    return self._wait(4)
                new = self._rules.get(data[pos : pos + 4])
                if new is None:
                    raise MalformedPdu(UNKNOWN_COMMAND, repr(data[pos : pos + 4])[1:])
                if available < 5:
                    return self._wait(5)
                start = pos + 5 + data[pos + 4]
                if end < start:
                    return self._wait(start - pos)
                rule = new
                group = read_name(data[pos + 5 : start], rule[2])
                known = data[pos:start]
            command, long, _, limit = rule
            if not long:
                self._pos = pos = start
                yield Packet(command, group)
            else:
                first = start + 4
                if end < first:
                    return self._wait(first - pos)
                (size,) = _SIZE.unpack_from(data, start)
                if size > limit:
                    raise MalformedPdu(TOO_LARGE, f"{command} of {size} bytes, at most {limit}")
                after = first + size
                if end < after:
                    return self._wait(after - pos)
                self._pos = pos = after
                yield Packet(command, group, data[first:after])
            if command == "HELO":
                known = b""  # the table of commands may have changed
        self._data = b""
        self._pos = 0
        return None

    def _wait(self, need: int) -> None:
        """Keep the beginning of a packet until `need` bytes of it are there."""
        self._need = need
        self._tail += self._data[self._pos :]
        self._data = b""
        self._pos = 0


def read_name(raw: bytes, named: bool) -> str:
    """The name that was sent as `raw`; `named`: it may not be empty."""
    if not raw and named:
        raise MalformedPdu(EMPTY_NAME)
    try:
        name = raw.decode()
    except UnicodeDecodeError:
        raise MalformedPdu(BAD_NAME, repr(raw)[1:]) from None
    if "\0" in name:
        raise MalformedPdu(NUL_IN_NAME, repr(name))
    return name


# ------------------------------------------------------------------------ building packets


def name_bytes(field: str, name: str) -> bytes:
    """A name as it is sent; raises ConfigError for one that cannot be."""
    try:
        raw = name.encode()
    except UnicodeEncodeError:
        raise ConfigError(field, repr(name), "text that UTF-8 can write") from None
    if not 0 < len(raw) <= NAME_BYTES or b"\0" in raw:
        shown = repr(name if len(name) < 50 else name[:40] + "…")
        raise ConfigError(field, shown, f"1 to {NAME_BYTES} bytes of UTF-8 without NUL")
    return raw


@lru_cache(maxsize=1024)
def head(command: str, group: str) -> bytes:
    """A packet of type A, which is also how type B begins.

    >>> head("JOIN", "ab").hex(" ")
    '4a 4f 49 4e 02 61 62'
    """
    raw = name_bytes("group", group) if group else b""
    return _HEAD.pack(command.encode(), len(raw)) + raw


def packet(command: str, group: str, message: bytes) -> bytes:
    """A packet of type B.

    >>> packet("SNDE", "ab", b"hi").hex(" ")
    '53 4e 44 45 02 61 62 00 00 00 02 68 69'
    """
    return b"".join((head(command, group), _SIZE.pack(len(message)), message))


def json_packet(command: str, group: str, content: object) -> bytes:
    return packet(command, group, msgspec.json.encode(content))


def read_json(incoming: Packet) -> dict[str, Any]:
    try:
        content = msgspec.json.decode(incoming.message)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise MalformedPdu(BAD_JSON, f"{incoming.command} wants an object")
    return content


def read_struct(incoming: Packet, kind: type[T]) -> T:
    """The JSON object as one of that kind, which may have the group among its fields."""
    try:
        return msgspec.convert(read_json(incoming) | {"group": incoming.group}, kind)
    except msgspec.ValidationError as error:
        raise MalformedPdu(BAD_BODY, f"{incoming.command}: {error}") from None


def unpack(layout: struct.Struct, body: bytes, at: int) -> tuple[Any, ...]:
    if len(body) < at + layout.size:
        raise MalformedPdu(BAD_BODY, f"{len(body)} bytes, at least {at + layout.size}")
    return layout.unpack_from(body, at)


def plain_packets(command: str, group: str, bundle: Bundle) -> bytes:
    """One packet of type B for each message: SNDE, SNDS, RCVE."""
    start = head(command, group)
    pack = _SIZE.pack
    parts: list[bytes] = []
    for message in bundle:
        parts += (start, pack(len(message)), message)
    return b"".join(parts)


# ------------------------------------------------------------------------ addresses


class Address(Struct, frozen=True):
    """Where a node listens for frontends: a path of a Unix socket, or a host and a port."""

    host: str = ""
    port: int = 0
    path: str = ""

    def __str__(self) -> str:
        if self.path:
            return f"unix:{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


DEFAULT: Final = "127.0.0.1:6678"
"""Where a node listens unless told otherwise."""


def address(text: str, field: str = "frontend", *, any_port: bool = False) -> Address:
    """`HOST:PORT`, `[IPV6]:PORT` or `unix:PATH`.  `any_port`: 0 is allowed, the system chooses.

    >>> address("unix:/run/roundelay.sock").path, address("[::1]:6678").host
    ('/run/roundelay.sock', '::1')
    """
    if text.startswith("unix:"):
        path = text[5:]
        if not path or "\0" in path or len(path.encode(errors="surrogateescape")) > 107:
            raise ConfigError(field, text, "unix: and a path of 1 to 107 bytes")
        return Address(path=path)
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        host = ""
    if not (colon and host and _is_port(port, 0 if any_port else 1)):
        raise ConfigError(field, text, "HOST:PORT, such as 127.0.0.1:6678, or unix:PATH")
    return Address(host, int(port))


def _is_port(text: str, least: int) -> bool:
    return len(text) <= 5 and text.isascii() and text.isdigit() and least <= int(text) <= 65535
