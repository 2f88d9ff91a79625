"""Datagrams that no correct node sends (ASSURANCE §6): counted by reason, and nothing changes."""

from __future__ import annotations

import asyncio
import os
import random
import socket
import struct
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zlib import crc32

import msgspec
import pytest
from msgspec import structs

from roundelay import LeftOut, NameTaken
from roundelay.core.cluster.pdu import ToNull
from roundelay.core.errors import UsageError
from roundelay.node.medium.drop_advice import HINTS, NAME_TAKEN, NO_KEY
from roundelay.node.medium.interfaces import parse_address
from roundelay.node.medium.one_channel import UNSTAMPED
from roundelay.node.membership.group import GroupMembership
from roundelay.node.membership.roster_messages import MARK, Change, Drained, Hold, TailPiece, encode
from roundelay.wire import codec, control
from roundelay.wire.seal import Seal
from tests.node.live import Member, Net, delivered, together, until
from tests.wire.examples import EXAMPLES

KEY = bytes(range(32))


class Stranger:
    """A socket that says what it likes to the nodes of a medium."""

    def __init__(self, net: Net) -> None:
        self.sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.sock.bind(("127.0.0.1", 0))
        self.sock.setsockopt(
            socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton("127.0.0.1")
        )
        self.group = parse_address(net.address, "multicast")

    async def say(self, member: Member, *datagrams: bytes) -> None:
        """To the group and to the node itself, and wait until it has read all of it."""
        counts = member.node.medium.counts
        for start in range(0, len(datagrams), 50):
            some = datagrams[start : start + 50]
            before = counts["received"]
            for datagram in some:
                self.sock.sendto(datagram, self.group)
                self.sock.sendto(datagram, member.node.medium.address)
            want = before + 2 * len(some)
            await until(lambda n=want: counts["received"] >= n, "datagrams to be read")  # type: ignore[misc]


def drops(member: Member) -> dict[str, int]:
    """By reason, over the node and all its groups."""
    status: Any = member.node.status()
    found = dict(status["dropped"])
    for group in status["groups"]:
        for reason, count in group.get("dropped", {}).items():
            found[reason] = found.get(reason, 0) + count
    return found


def sealed_by(packet: bytes) -> bytes:
    return packet + struct.pack(">I", crc32(packet))


def own(kind: int, body: bytes, version: int = 1) -> bytes:
    """A packet of ours with a checksum that is right."""
    return sealed_by(bytes((kind, version)) + body)


def packed(kind: int, *fields: Any) -> bytes:
    return own(kind, msgspec.msgpack.encode(list(fields)))


UUID = bytes(range(16))
EPOCH = 0
HERE = ("127.0.0.1", 4000)


def malformed() -> list[bytes]:
    """All of them; each but the first of two fragments is refused at once."""
    return [datagram for _, datagram in described()]


def described() -> Iterator[tuple[str, bytes]]:
    """(what it is, datagram)"""
    chance = random.Random(3)
    for size in range(65):
        for first in (0x00, 0x01, 0x02, 0x03, 0x10, 0x12, 0x13, 0x14, 0x20, 0xFF):
            yield f"{size} bytes from {first:#x}", (bytes((first,)) + chance.randbytes(64))[:size]
    for first in (0x00, 0x01, 0x02, 0x03, 0x10, 0x11, 0x12, 0x14, 0x20):
        yield f"65,507 bytes from {first:#x}", bytes((first,)) + chance.randbytes(65_506)
    good = codec.encode(EXAMPLES[0], sender=1, group_id=codec.group_id("token:g"), chan_seq=1)
    for size in range(len(good)):
        yield f"an engine's PDU cut at {size}", good[:size]
    yield "an engine's PDU of version 2", sealed_by(good[:1] + b"\2" + good[2:-4])
    yield "of a group nobody has", codec.encode(EXAMPLES[0], sender=1, group_id=7, chan_seq=1)
    for size in range(1, 10):
        yield f"a fragment of {size} bytes", (b"\x11" + bytes(9))[:size]
    for index, count in ((0, 0), (0, 1), (5, 5), (0xFFFF, 0xFFFF)):
        yield f"fragment {index} of {count}", struct.pack(">BIHH", 0x11, 1, index, count) + b"data"
    yield "fragments that overlap", struct.pack(">BIHH", 0x11, 2, 0, 3) + b"data"
    yield "fragments that overlap", struct.pack(">BIHH", 0x11, 2, 0, 3) + b"DATA"
    yield "fragments of two counts", struct.pack(">BIHH", 0x11, 2, 1, 4) + b"data"
    # Who a node is.
    yield "INFO of version 2", own(control.INFO, b"", version=2)
    yield "INFO that is no array", own(control.INFO, b"\xc1")
    yield "INFO without a name", packed(control.INFO, "", UUID, HERE, [], [], "")
    yield "INFO with a long name", packed(control.INFO, "n" * 5000, UUID, HERE, [], [], "")
    yield "INFO with a short UUID", packed(control.INFO, "n", b"x", HERE, [], [], "")
    yield "INFO from port 0", packed(control.INFO, "n", UUID, ("127.0.0.1", 0), [], [], "")
    yield "INFO from port 70000", packed(control.INFO, "n", UUID, ("127.0.0.1", 70_000), [], [], "")
    yield "INFO from a host by name", packed(control.INFO, "n", UUID, ("localhost", 5), [], [], "")
    yield "INFO with a NUL", packed(control.INFO, "n", UUID, ("127.0.0.1\0x", 5), [], [], "")
    yield "INFO with a bad peer", packed(control.INFO, "n", UUID, HERE, [], [("h", 1 << 40)], "")
    many = [(f"g{number}", "", -1, 0) for number in range(3000)]
    yield "INFO with 3,000 groups", packed(control.INFO, "n", UUID, HERE, many, [], "")
    peers = [("127.0.0.1", number) for number in range(1, 3000)]
    yield "INFO with 3,000 peers", packed(control.INFO, "n", UUID, HERE, [], peers, "")
    huge = [("token:g", "x", 1 << 62, 1 << 62)]
    yield "INFO with a huge epoch", packed(control.INFO, "n", UUID, HERE, huge, [], "")
    yield "INFO with invalid UTF-8", own(control.INFO, b"\x96\xa2\xff\xfe\xc4\x01a\x90\x90\x90\xa0")
    # How groups are put together.
    for roster, lives in (
        ((), ()),
        (("a", "a"), (UUID, UUID)),
        (("a", "b"), (UUID,)),
        (tuple(f"n{number}" for number in range(3000)), ()),
        (("a", "n" * 5000), (UUID, UUID)),
    ):
        yield "START", packed(control.CONTROL, "start", "token:g", "x", 9, roster, lives, 0, 1)
    far = 1 << 63
    for epoch, base, resilience in ((-5, 0, 1), (far, 0, 1), (9, -1, 1), (9, far, 1), (9, 0, -1)):
        yield (
            "START",
            packed(
                control.CONTROL,
                "start",
                "token:g",
                "x",
                epoch,
                ["a", "b"],
                [UUID, UUID],
                base,
                resilience,
            ),
        )
    two, both = ["a", "b"], [UUID, UUID]
    for strange in ("a\0b", "../../x", "\x1b[2J", "fixed", "1@../x:3", "x" * 65):
        yield "START", packed(control.CONTROL, "start", "token:g", strange, 9, two, both, 0, 1)
        yield "ASK", packed(control.CONTROL, "ask", "token:g", strange, "n")
        if strange == "fixed":
            continue
        past = [[], False, strange]
        yield "START", packed(control.CONTROL, "start", "token:g", "f", 9, two, lives, 0, 1, *past)
        yield "KEPT", packed(control.CONTROL, "kept", "token:g", "n", 5, 0, 1, strange)
        yield "SYNCED", packed(control.CONTROL, "synced", "token:g", "n", strange, 1)
        group = ["token:g", strange, 3, 3]
        yield "INFO of a strange history", packed(control.INFO, "n", UUID, HERE, [group], [], "")
    yield "ASK by a long name", packed(control.CONTROL, "ask", "token:g", "x", "n" * 5000)
    yield "ASK by nobody", packed(control.CONTROL, "ask", "token:g", "x", "")


def state(member: Member) -> dict[str, Any]:
    """All that must not change."""
    node = member.node
    membership = node.group_hosts["token:g"]
    assert isinstance(membership, GroupMembership)
    assert membership.ring is not None
    return {
        "view": member.group.view,
        "nodes": sorted(node.directory.by_name),
        "environment": set(node.autorm.beamon.environment.nodes),
        "ring": membership.ring.id,
        "roster": membership.roster,
        "epoch": membership.epoch,
        "incarnation": membership.incarnation,
        "asked": dict(membership.reconfiguration.asked),
        "fatal": node.fatal,
        "got": list(member.got),
    }


@pytest.mark.parametrize("sealed", [False, True])
async def test_malformed_datagrams_are_counted_and_change_nothing(
    sealed: bool, tmp_path: Path
) -> None:
    (tmp_path / "key").write_text(KEY.hex())
    (tmp_path / "key").chmod(0o600)
    errors: list[dict[str, Any]] = []

    asyncio.get_running_loop().set_exception_handler(lambda _, what: errors.append(what))
    options: dict[str, Any] = {"insecure": False, "key": tmp_path / "key"} if sealed else {}
    async with Net() as net:
        a, b = await net.form("ab", **options)
        await a.group.broadcast(b"before")
        await delivered([a, b], 1)
        stranger = Stranger(net)
        before = state(a)
        tracemalloc.start()
        bad = malformed()
        for start in range(0, len(bad), 25):
            some = bad[start : start + 25]
            was = sum(drops(a).values())
            await stranger.say(a, *some)
            assert sum(drops(a).values()) >= was + 2 * len(some) - 1, start
        grown, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert grown < 32 << 20
        assert state(a) == before
        assert not errors
        dropped = drops(a)
        if sealed:
            assert {"short", "not sealed", "format version"} <= set(dropped)
        else:
            wanted = {
                "short", "checksum", "format version", "packet type", "short packet",
                "node packet", "group not hosted here", "sealed, and we have no key",
            }  # fmt: skip
            assert wanted <= set(dropped)
        assert (await b.group.broadcast(b"after")).seq == 1
        await delivered([a, b], 2)
        assert a.data == b.data == [b"before", b"after"]


async def test_every_pdu_from_somebody_who_is_no_member_is_refused() -> None:
    """Without a seal: well-formed PDUs of every kind, by a sender outside the roster."""
    async with Net() as net:
        a, b = await net.form("ab")
        await a.group.broadcast(b"before")
        await delivered([a, b], 1)
        stranger = Stranger(net)
        before = state(a)
        group = before["ring"]
        datagrams = [
            codec.encode(pdu, sender=sender, group_id=group, chan_seq=9)
            for pdu in EXAMPLES
            for sender in (2, 7, 65_534)
        ]
        await stranger.say(a, *datagrams)
        assert state(a) == before
        assert drops(a)["sender is no other member"] >= 2 * 3 * len(EXAMPLES)
        assert (await b.group.broadcast(b"after")).seq == 1


async def test_a_replay_is_refused(tmp_path: Path) -> None:
    (tmp_path / "key").write_text(KEY.hex())
    (tmp_path / "key").chmod(0o600)

    async with Net() as net:
        tap = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        tap.setblocking(False)
        tap.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        group = parse_address(net.address, "multicast")
        tap.bind(group)
        member = socket.inet_aton(group[0]) + socket.inet_aton("127.0.0.1")
        tap.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, member)
        a, b = await net.form("ab", insecure=False, key=tmp_path / "key")
        for number in range(20):
            await b.group.broadcast(b"%d" % number)
        await delivered([a, b], 20)
        captured = []
        while True:
            try:
                captured.append(tap.recv(65_535))
            except BlockingIOError:
                break
        tap.close()
        assert all(datagram[0] == 0x20 for datagram in captured[6:])  # after the probes
        stranger = Stranger(net)
        sealed = [one for one in captured if one[0] == 0x20]
        assert not any(b"token:g" in one for one in sealed)
        before = state(a)
        await stranger.say(a, *sealed)
        await asyncio.sleep(0.1)
        assert state(a) == before
        assert drops(a)["replay"] >= 20


async def test_a_wrong_key_is_seen_in_the_status(tmp_path: Path) -> None:
    for name, key in (("one", KEY), ("two", bytes(32))):
        (tmp_path / name).write_text(key.hex())
        (tmp_path / name).chmod(0o600)
    async with Net() as net:
        a = await net.join("a", insecure=False, key=tmp_path / "one", min_members=1)
        b = await net.join("b", insecure=False, key=tmp_path / "two", min_members=1)
        c = await net.join("c")
        await together([a])
        await together([b])  # they do not know of each other
        await until(lambda: drops(a).get("seal"), "a seal that does not fit")
        await until(lambda: drops(a).get("not sealed"), "a datagram without a seal")
        await until(lambda: drops(c).get("sealed, and we have no key"), "a sealed one")


async def test_inside_the_seal_nothing_is_believed_either(tmp_path: Path) -> None:
    (tmp_path / "key").write_text(KEY.hex())
    (tmp_path / "key").chmod(0o600)

    async with Net() as net:
        a, b = await net.form("ab", insecure=False, key=tmp_path / "key")
        stranger = Stranger(net)
        seal = Seal(KEY, os.urandom(16))
        before = state(a)
        bad = [seal.seal(datagram) for datagram in malformed() if len(datagram) < 60_000]
        await stranger.say(a, *bad)
        assert state(a) == before
        assert {"checksum", "packet type", "node packet"} <= set(drops(a))
        assert (await b.group.broadcast(b"after")).seq == 0


async def test_a_second_node_with_our_name_is_noticed(caplog: pytest.LogCaptureFixture) -> None:
    async with Net() as net:
        a = await net.join("same", min_members=1)
        await together([a])
        for _ in range(2):
            with pytest.raises(NameTaken):
                await net.join("same")
        assert drops(a)[NAME_TAKEN] >= 2
    said = [line for line in caplog.messages if "node.name_taken" in line]
    assert len(said) == 1  # by the one who has the name, and not again
    assert "start one of them with another --name" in said[0]


async def test_what_cannot_be_read_is_said_once_with_what_to_do(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    async with Net() as net:
        nodes = [await net.join("clear")]
        for name in ("sealed", "other"):
            # Three nodes that cannot read each other: each of them is alone.
            key = tmp_path / name
            key.write_text(os.urandom(32).hex())
            key.chmod(0o600)
            nodes.append(await net.join(name, insecure=False, key=str(key)))
        await Stranger(net).say(nodes[0], bytes((control.INFO, control.VERSION + 1)) + bytes(30))
        for node, reason in ((0, NO_KEY), (1, "not sealed"), (1, "seal")):
            enough = HINTS[reason].after + 2
            member = nodes[node]
            await until(lambda m=member, r=reason, n=enough: drops(m).get(r, 0) >= n, reason)  # type: ignore[misc]
    said = caplog.text
    for reason in (NO_KEY, "not sealed", "seal", "format version"):
        assert HINTS[reason].text in said
    assert said.count(HINTS[NO_KEY].text) == 1  # further datagrams are not worth another line


async def test_a_larger_group_that_nobody_is_alive_in_ends_nothing() -> None:
    async with Net() as net:
        a, b = await net.form("ab")
        stranger = Stranger(net)
        packet = packed(
            control.INFO,
            "zz",
            UUID,
            HERE,
            [("token:g", "ffff", 5, 200), ("h", "x", 1, 1)],
            [],
            "",
        )
        # In the clear anybody can say anything; but who is not alive is not believed.
        await stranger.say(a, packet)
        assert (await b.group.broadcast(b"still")).seq == 0
        assert a.node.group_hosts["token:g"].roster == ("a", "b")


@pytest.mark.parametrize("service", ["resilient", "total", "partial", "selective", "reliable"])
async def test_a_member_that_lies_stops_nobody(service: str) -> None:
    """In the clear anybody can forge the PDUs of a member; that must not be an error here."""
    errors: list[dict[str, Any]] = []

    asyncio.get_running_loop().set_exception_handler(lambda _, what: errors.append(what))
    async with Net() as net:
        a, b = await net.form("ab", service=service)
        await a.group.broadcast(b"before")
        await delivered([a, b], 1)
        stranger = Stranger(net)
        membership = a.node.group_hosts[a.group.name]
        assert isinstance(membership, GroupMembership)
        assert membership.ring is not None
        assert membership.data is not None
        forged = [
            codec.encode(pdu, sender=1, group_id=hosted.id, chan_seq=(1 << 31) + number)
            for number, pdu in enumerate(EXAMPLES)
            for hosted in {membership.ring, membership.data}
        ]
        await stranger.say(a, *forged)
        random.Random(5).shuffle(forged)
        await stranger.say(a, *forged)
        await asyncio.sleep(0.5)
        assert a.node.fatal is None
        assert not errors
        assert a.data[:1] == [b"before"]


async def test_the_hub_passes_nothing_on_of_who_is_no_member() -> None:
    """A sender beyond the roster, in a PDU on its way to the hub, was the end of the group."""
    async with Net() as net:
        a, b = await net.form("ab", service="total", hub=True)
        data = a.node.group_hosts[a.group.name].data
        assert data is not None
        before = data.link.sent
        null = next(one for one in EXAMPLES if isinstance(one, ToNull))
        strange = [
            codec.encode(null, sender=sender, group_id=data.id, chan_seq=UNSTAMPED)
            for sender in (2, 60_000, 0xFFFE)
        ]
        await Stranger(net).say(a, *strange)
        assert data.link.sent == before
        assert drops(a)["sender is no other member"] == 2 * len(strange)
        assert (await b.group.broadcast(b"after")).seq == 0
        await delivered([a, b], 1)


WORDS = [
    Change(EPOCH, ("a", "b"), (), 1, 0),
    Change(EPOCH, (), (), 1, 0),
    Change(EPOCH, ("a", "a"), (UUID, UUID), 1, 0),
    Change(EPOCH, ("a", "b\n"), (UUID, UUID), 1, 0),
    Change(EPOCH, tuple(map(str, range(300))), (UUID,) * 300, 1, 0),
    Change(EPOCH, ("a", "b"), (UUID, b"x"), 1, 0),
    Change(EPOCH, ("a", "b"), (UUID, UUID), -1, 0),
    Change(EPOCH, ("a", "b"), (UUID, UUID), 1, 1 << 63),
    Change(EPOCH, ("a", "b"), (UUID, UUID), 1, 0, ("",)),
    Change(EPOCH, ("a", "b"), (UUID, UUID), 1, 0, (), "x" * 1000),
    Hold(EPOCH, tuple(map(str, range(300)))),
    Drained("a", 0, 2),
    Drained("nobody", 0, 2),
    Drained("b", 1 << 63, 2),
    Drained("b", 0, 7),
    Drained("b", 0, 2, -1),
    TailPiece("a", EPOCH, 0, 1, b""),
    TailPiece("b", EPOCH, 5, 3, b""),
    TailPiece("b", EPOCH, 0, 1, b"not a tail"),
]
"""What no correct member says in the ring; b does."""


@pytest.mark.parametrize("service", ["resilient", "total"])
async def test_words_that_no_member_says_change_nothing(service: str) -> None:
    async with Net() as net:
        a, b = await net.form("ab", service=service)
        await a.group.broadcast(b"before")
        await delivered([a, b], 1)
        liar = b.node.group_hosts[b.group.name]
        assert isinstance(liar, GroupMembership)
        for word in WORDS:
            if not isinstance(word, Drained):
                word = structs.replace(word, epoch=liar.epoch)
            liar.reconfiguration.say(word)  # type: ignore[arg-type]
        await a.group.broadcast(b"after")
        # In a token group each has a position, which must not be missing: it is a message.
        given = len(WORDS) if service == "resilient" else 0
        await delivered([a, b], 2 + given)
        assert [m.seq for m in a.got] == list(range(2 + given))
        refused = (
            "word of the ring",
            "piece of a tail out of place",
            "tail that cannot be read",
        )
        await until(
            lambda: sum(drops(a).get(reason, 0) for reason in refused) == len(WORDS),
            "all of them to be refused",
        )
        for member in (a, b):
            place = member.node.group_hosts[member.group.name]
            assert isinstance(place, GroupMembership)
            assert (place.condition, place.roster) == ("open", ("a", "b"))
            assert place.reconfiguration.ending.drained == {}


async def test_an_application_cannot_speak_as_a_node() -> None:
    """Its message was confirmed and given to nobody, and could change the roster."""
    async with Net() as net:
        a, b = await net.form("ab")
        place = a.node.group_hosts[a.group.name]
        assert isinstance(place, GroupMembership)
        own = place.reconfiguration.mark()
        forged = encode(Change(place.epoch, ("b",), (b"",), 0, 0))
        for message in (own + forged, own + b"x", MARK):
            with pytest.raises(UsageError, match="begins with"):
                await a.group.broadcast(message)
            with pytest.raises(UsageError, match="begins with"):
                await a.group.broadcast_many([b"first", message])
        await a.group.broadcast(b"\0" + own + forged)
        await b.group.broadcast(b"after")
        await delivered([a, b], 2)
        assert a.data == b.data == [b"\0" + own + forged, b"after"]
        assert place.roster == ("a", "b")


async def test_a_change_that_counts_tails_which_nobody_said_is_no_error() -> None:
    """Who is told to hand over by a tail of its own, and has said none, fell.

    Applications are told that something may be missing, as nobody can know, and get what follows.
    """
    async with Net() as net:
        a, b = await net.form("ab", service="partial")
        liar = b.node.group_hosts[b.group.name]
        assert isinstance(liar, GroupMembership)
        epoch, lives = liar.epoch, liar.lives
        liar.reconfiguration.say(Change(epoch, liar.roster, lives, 1, 0, ("a", "b")))
        await until(lambda: liar.epoch > epoch, "the next epoch")
        await together([a, b])
        await a.group.broadcast(b"after")
        await delivered([a, b], 1)
        assert a.data == b.data == [b"after"]
        assert isinstance(a.error, LeftOut)
        assert isinstance(b.error, LeftOut)


async def test_a_node_of_another_version_is_refused_and_seen_in_the_status(tmp_path: Path) -> None:
    (tmp_path / "key").write_text(KEY.hex())
    (tmp_path / "key").chmod(0o600)

    with_key: dict[str, Any] = {"insecure": False, "key": tmp_path / "key"}
    for options in ({}, with_key):
        async with Net() as net:
            a, b = await net.form("ab", **options)
            stranger = Stranger(net)
            before = state(a)
            good = codec.encode(EXAMPLES[0], sender=1, group_id=before["ring"], chan_seq=1)
            newer = sealed_by(good[:1] + b"\3" + good[2:-4])
            if options:
                sealed = Seal(KEY, os.urandom(16)).seal(good)
                newer = sealed[:1] + b"\2" + sealed[2:]
            was = drops(a).get("format version", 0)
            await stranger.say(a, newer)
            assert drops(a)["format version"] >= was + 2
            assert state(a) == before
            assert (await b.group.broadcast(b"as if nothing had happened")).seq == 0
