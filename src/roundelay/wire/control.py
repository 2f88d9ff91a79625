"""Our own packets beside those of AutoRM: who a node is, and how groups are put together.

::

    0x12  INFO     a node's name, UUID, address, peers, and the groups it takes part in
    0x13  PROBE    a node looking whether multicast reaches itself: 16 random bytes
    0x14  CONTROL  how a group without a fixed roster is put together (`node.membership.group`), and
                   what recorders say (`node.recording.recorders`)

Each is one byte of type, one of version, the body, and a CRC-32 over all of it.  The bodies of
INFO and CONTROL are msgpack arrays; a node that does not know them ignores them, so nodes of the
paper share the medium with ours.
"""

from __future__ import annotations

import re
from ipaddress import IPv4Address
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from roundelay.core.errors import MalformedPdu
from roundelay.wire.envelope import CHECKSUM_SIZE, checksum

INFO: Final = 0x12
PROBE: Final = 0x13
CONTROL: Final = 0x14
VERSION: Final = 1

UUID_BYTES: Final = 16
KNOCK_BYTES: Final = 16
NODE_NAME_MAX: Final = 64
GROUP_NAME_MAX: Final = 255
GROUPS_MAX: Final = 256
MEMBERS_MAX: Final = 128
PEERS_MAX: Final = 64
TEXT_MAX: Final = 64
HOLES_MAX: Final = 16
EPOCH_MAX: Final = 1 << 48
POSITION_MAX: Final = 1 << 62
"""What a packet may say at most; a correct node stays far below."""

FOLLOWS: Final = -1
"""L is what the size of the group allows."""
FIXED: Final = "fixed"
"""Stands for the incarnation of a group whose roster is fixed."""
_HISTORY: Final = r"[0-9A-Za-z]+(@[0-9A-Za-z]+:[0-9]+)*"

# What fields may say: the decoder refuses everything else.
Address = tuple[str, int]
Count = Annotated[int, Meta(ge=0, le=MEMBERS_MAX)]
Epoch = Annotated[int, Meta(ge=0, le=EPOCH_MAX)]
EpochOrNone = Annotated[int, Meta(ge=-1, le=EPOCH_MAX)]
Level = Annotated[int, Meta(ge=0, lt=MEMBERS_MAX)]
Position = Annotated[int, Meta(ge=0, le=POSITION_MAX)]
Port = Annotated[int, Meta(ge=1, le=65535)]
History = Annotated[str, Meta(max_length=TEXT_MAX, pattern=rf"^({_HISTORY})?\Z")]
Incarnation = Annotated[
    str, Meta(max_length=TEXT_MAX, pattern=rf"^({_HISTORY})?(\.({_HISTORY})?)?\Z")
]
"""Or, of a group in a file, what the file says and a history (`node.roles`)."""


class Settings(Struct, frozen=True, array_like=True):
    """What the members of a group have agreed on when it was founded
    (`node.membership.settings`)."""

    resilience: Annotated[int, Meta(ge=FOLLOWS, lt=MEMBERS_MAX)] = FOLLOWS
    hub: bool = False
    min_members: Annotated[int, Meta(ge=1, le=MEMBERS_MAX)] = 1
    """Nothing is confirmed while the roster has fewer."""
    members: tuple[str, ...] = ()
    """The fixed roster, or those who may be admitted; empty: anybody."""


class GroupInfo(Struct, frozen=True, array_like=True, gc=False):
    """A group as a node takes part in it; without an incarnation it only wants to."""

    name: str
    incarnation: Incarnation = ""
    epoch: EpochOrNone = -1
    size: Count = 0
    line: Address = ("", 0)
    """Where the node listens on line B, if others cannot know (`node.medium.second_channel`)."""
    decreed: bool = False
    """An operator said from where this incarnation goes on: others give way to it."""
    settings: Settings | None = None
    """Once they are agreed on; None also from nodes of earlier versions."""


class Info(Struct, frozen=True, array_like=True):
    """Who a node is."""

    name: str
    uuid: Annotated[bytes, Meta(min_length=UUID_BYTES, max_length=UUID_BYTES)]
    address: Address
    groups: Annotated[tuple[GroupInfo, ...], Meta(max_length=GROUPS_MAX)] = ()
    peers: Annotated[tuple[Address, ...], Meta(max_length=PEERS_MAX)] = ()
    version: Annotated[str, Meta(max_length=TEXT_MAX)] = ""
    birth: Position = 0
    """When this life of the name began (ns since 1970): of two, the later one has the name."""
    claims: bool = False
    """It only asks whether the name is free (`node.membership.identity`), and is no member of
    anything."""
    fresh: bool = False
    """It has done nothing under the name yet, and gives way to an earlier life of it."""


class Ask(Struct, frozen=True, array_like=True, tag="ask"):
    """A node wants into a group, or out of it."""

    group: str
    incarnation: History
    name: str
    leave: bool = False
    epoch: EpochOrNone = -1
    """The one it is in; -1 if it is in none."""
    life: bytes = b""
    """The UUID of the node."""


class Start(Struct, frozen=True, array_like=True, tag="start"):
    """The roster of a new epoch has been agreed on."""

    group: str
    incarnation: History
    epoch: Epoch
    roster: tuple[str, ...]
    lives: tuple[bytes, ...]
    """UUIDs of the members' nodes; one that has another by now has forgotten its promises."""
    base: Position
    resilience: Level
    counted: Annotated[tuple[tuple[str, Epoch, Position], ...], Meta(max_length=MEMBERS_MAX)] = ()
    """(name, epoch, number): when that epoch ended, at most that many bundles of this member were
    in its order.  So one who was away knows what of its own certainly is not."""
    decreed: bool = False
    """See `GroupInfo`."""
    history: History = ""
    """Where it is not the incarnation: members that all may have forgotten went on in another."""
    settings: Settings | None = None


class Recorded(Struct, frozen=True, array_like=True, tag="recorded"):
    """How far a recorder is; `whole` if it leaves nothing out."""

    group: str
    name: str
    """Of the node."""
    port: Port
    """TCP, at the node's address: where it replays (`node.recording.transfer`)."""
    begin: Position
    next: Position
    """It has written positions `begin` to `next - 1`, but for `holes`."""
    durable: Position
    """What is below is on disk."""
    holes: Annotated[tuple[tuple[Position, Position], ...], Meta(max_length=HOLES_MAX)] = ()
    """The last ones, half-open."""
    whole: bool = True
    slow: bool = False
    """Send nothing new for a while."""
    history: History = ""
    """The incarnation of the group that it has recorded; empty where there is only one."""
    syncs: bool = True
    """It makes what it has written durable by and by; otherwise (it leaves that to the system, or
    its disk has failed) nobody need wait for that."""


class Kept(Struct, frozen=True, array_like=True, tag="kept"):
    """What a member still has in its memory of what it has delivered (`node.recording.memory`)."""

    group: str
    name: str
    port: Port
    """TCP, at the node's address, as with `Recorded`."""
    begin: Position
    next: Position
    history: History


class Wanted(Struct, frozen=True, array_like=True, tag="wanted"):
    """Somebody waits for messages of the group to be recorded, or lacks some: say at once how far
    it is, and what is kept."""

    group: str
    name: str
    synced: bool = False
    """It waits for members to sync their files (`node.recording.durability`)."""


class Knock(Struct, frozen=True, array_like=True, tag="knock"):
    """Is a node there?  Whoever is returns it, with `back` set (`node.medium.acquaintance`)."""

    token: Annotated[bytes, Meta(min_length=KNOCK_BYTES, max_length=KNOCK_BYTES)]
    back: bool = False


class Synced(Struct, frozen=True, array_like=True, tag="synced"):
    """What a member has delivered of that history, below that position, is on its disk."""

    group: str
    name: str
    history: History
    position: Annotated[int, Meta(ge=-1, le=POSITION_MAX)]


Control = Ask | Start | Recorded | Kept | Wanted | Knock | Synced

_encode = msgspec.msgpack.Encoder().encode
_info = msgspec.msgpack.Decoder(Info)
_control = msgspec.msgpack.Decoder(Control)


def encode(body: Info | Control | bytes) -> bytes:
    """The packet of an INFO or CONTROL, or the PROBE with these bytes."""
    if isinstance(body, bytes):
        kind, data = PROBE, body
    else:
        kind, data = (INFO if isinstance(body, Info) else CONTROL), _encode(body)
    packet = bytes((kind, VERSION)) + data
    return packet + checksum([packet])


def decode(packet: bytes) -> Info | Control | bytes:
    """What `encode` was given, or MalformedPdu."""
    end = len(packet) - CHECKSUM_SIZE
    if end < 2:
        raise MalformedPdu("short")
    if packet[1] != VERSION:
        raise MalformedPdu("format version", str(packet[1]))
    if packet[end:] != checksum([packet[:end]]):
        raise MalformedPdu("checksum")
    body = packet[2:end]
    try:
        if packet[0] == PROBE:
            return body
        if packet[0] == INFO:
            return _check_info(_info.decode(body))
        if packet[0] == CONTROL:
            return _check_control(_control.decode(body))
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError) as error:
        raise MalformedPdu("node packet", str(error)) from None
    raise MalformedPdu("packet type", str(packet[0]))


def _check_info(info: Info) -> Info:
    """Refuse what no bound of a single field tells."""
    _insist(_named(info.name, NODE_NAME_MAX) and any(info.uuid))
    _insist(all(_is_address(address) for address in (info.address, *info.peers)))
    for group in info.groups:
        _insist(
            _named(group.name, GROUP_NAME_MAX)
            and (group.line == ("", 0) or _is_address(group.line))
            and _is_settings(group.settings)
        )
    return info


def _check_control(word: Control) -> Control:
    if isinstance(word, Knock):
        return word
    _insist(_named(word.group, GROUP_NAME_MAX))
    if isinstance(word, Ask | Start):
        _insist(word.incarnation not in ("", FIXED))
    if isinstance(word, Ask):
        _insist(len(word.life) in (0, UUID_BYTES))
    if isinstance(word, Start):
        _insist(is_roster(word.roster, word.lives) and _is_settings(word.settings))
        _insist(all(_named(name, NODE_NAME_MAX) for name, _, _ in word.counted))
        return word
    _insist(_named(word.name, NODE_NAME_MAX))
    if isinstance(word, Recorded | Kept):
        _insist(word.begin <= word.next)
    if isinstance(word, Recorded):
        _insist(all(lo < hi for lo, hi in word.holes))
    return word


def _is_settings(settings: Settings | None) -> bool:
    return settings is None or are_names(settings.members)


def is_history(text: str) -> bool:
    """An incarnation or history of a group, `ID` or `ID@PARENT:BASE`; empty: none yet.

    It becomes part of file names, and is shown.

    >>> is_history(""), is_history("6f1d@09:7"), is_history("../6f1d"), is_history("a\\0b")
    (True, True, False, False)
    """
    return not text or (len(text) <= TEXT_MAX and re.fullmatch(_HISTORY, text) is not None)


def is_roster(roster: tuple[str, ...], lives: tuple[bytes, ...]) -> bool:
    """Members, each once, and a UUID for each; none of one that is not known."""
    return (
        0 < len(roster) == len(set(roster)) == len(lives)
        and are_names(roster)
        and all(len(life) in (0, UUID_BYTES) for life in lives)
    )


def are_names(names: tuple[str, ...]) -> bool:
    """Names of nodes, no more than a group has."""
    return len(names) <= MEMBERS_MAX and all(_named(name, NODE_NAME_MAX) for name in names)


def _insist(sound: bool) -> None:
    if not sound:
        raise MalformedPdu("node packet", "a field that no node has")


def _named(name: str, most: int) -> bool:
    control = any(ord(letter) < 32 or ord(letter) == 127 for letter in name)
    return 0 < len(name.encode()) <= most and not control


def _is_address(address: Address) -> bool:
    """Numbers only: nothing a peer says makes us look up a name."""
    try:
        IPv4Address(address[0])
    except ValueError:
        return False
    return 0 < address[1] < 65536
