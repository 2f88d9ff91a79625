"""Must show 2: clients written from the AutoRM paper alone, and the bytes on the medium.

Nothing here uses our codecs: packets are made and taken apart with `struct`, by the layouts of the
paper (frontend) and of PROTOCOLS §8.3 (medium).
"""

from __future__ import annotations

import os
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.node.live import multicast

PATIENCE_S = 30.0
ROUNDELAY = (str(Path(sys.executable).with_name("roundelay")),)


@contextmanager
def daemon(name: str, medium: str, folder: Path) -> Iterator[str]:
    """`roundelay node --insecure`; gives the address of its frontend."""
    command = [
        *ROUNDELAY, "node", "--name", name, "--insecure",
        "--multicast", medium, "--interface", "lo", "--frontend", "127.0.0.1:0",
    ]  # fmt: skip
    environment = os.environ | {"XDG_CONFIG_HOME": str(folder)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            ready = process.stdout.readline().split()
            assert ready[0] == "ready"
            assert ready[2] == f"medium=multicast:{medium}@lo"
            yield ready[1].removeprefix("frontend=")
            process.send_signal(signal.SIGTERM)
            assert process.wait(5) == 0
        finally:
            process.kill()


class Client:
    """The five commands of the paper (§3.1)."""

    def __init__(self, address: str) -> None:
        host, port = address.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), timeout=PATIENCE_S)

    def type_a(self, command: bytes, group: str) -> None:
        name = group.encode()
        self.socket.sendall(command + bytes([len(name)]) + name)

    def type_b(self, command: bytes, group: str, message: bytes) -> None:
        name = group.encode()
        head = command + bytes([len(name)]) + name + len(message).to_bytes(4, "big")
        self.socket.sendall(head + message)

    def join(self, group: str) -> None:
        self.type_a(b"JOIN", group)

    def leave(self, group: str) -> None:
        self.type_a(b"LEAV", group)

    def send_everyone(self, group: str, message: bytes) -> None:
        self.type_b(b"SNDE", group, message)

    def send_someone(self, group: str, message: bytes) -> None:
        self.type_b(b"SNDS", group, message)

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = self.socket.recv(size - len(data))
            assert part, "the daemon closed the connection"
            data += part
        return data

    def receive(self) -> tuple[str, bytes]:
        assert self._exactly(4) == b"RCVE"
        name = self._exactly(self._exactly(1)[0]).decode()
        size = int.from_bytes(self._exactly(4), "big")
        return name, self._exactly(size)

    def nothing_comes(self, seconds: float = 0.3) -> bool:
        return not select.select([self.socket], [], [], seconds)[0]

    def close(self) -> None:
        self.socket.close()


class Tap:
    """Everything on the multicast group."""

    def __init__(self, medium: str) -> None:
        host, port = medium.rsplit(":", 1)
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
        self.socket.bind((host, int(port)))
        member = socket.inet_aton(host) + socket.inet_aton("127.0.0.1")
        self.socket.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, member)
        self.socket.setblocking(False)
        self.seen: list[bytes] = []

    def look(self) -> list[bytes]:
        while True:
            try:
                self.seen.append(self.socket.recv(65_535))
            except BlockingIOError:
                return self.seen

    def wait_for(self, condition: object, what: str) -> None:
        end = time.monotonic() + PATIENCE_S
        while not condition(self.look()):  # type: ignore[operator]
            assert time.monotonic() < end, f"waited for {what}"
            time.sleep(0.02)

    def close(self) -> None:
        self.socket.close()


class Heartbeat(NamedTuple):
    source: bytes
    nodes: int
    groups: list[bytes]


def heartbeat(packet: bytes) -> Heartbeat:
    """PROTOCOLS §8.3, type 1."""
    kind, source, nodes, count = struct.unpack_from(">B16sHB", packet)
    assert kind == 1
    at, groups = 20, []
    for _ in range(count):
        size = packet[at]
        groups.append(packet[at + 1 : at + 1 + size])
        at += 1 + size
    assert at == len(packet)
    return Heartbeat(source, nodes, groups)


class Data(NamedTuple):
    source: bytes
    destination: bytes
    sequence: int
    packets: int
    number: int
    flags: int
    group: bytes
    payload: bytes


def data(packet: bytes) -> Data:
    """PROTOCOLS §8.3, type 2."""
    kind, source, destination, sequence, packets, number, flags, size = struct.unpack_from(
        ">B16s16sIIIBB", packet
    )
    assert kind == 2
    group = packet[47 : 47 + size]
    return Data(source, destination, sequence, packets, number, flags, group, packet[47 + size :])


class Acknowledgement(NamedTuple):
    source: bytes
    destination: bytes
    sequence: int
    highest: int
    missing: tuple[int, ...]


def acknowledgement(packet: bytes) -> Acknowledgement:
    """PROTOCOLS §8.3, type 3."""
    kind, source, destination, sequence, highest, count = struct.unpack_from(">B16s16sIIH", packet)
    assert kind == 3
    missing = struct.unpack_from(f">{count}I", packet, 43)
    assert len(packet) == 43 + 4 * count
    return Acknowledgement(source, destination, sequence, highest, missing)


ONE_OF, CONFIRMATION = 1, 2


@pytest.fixture
def medium() -> str:
    return multicast()


def of_type(seen: list[bytes], kind: int) -> list[bytes]:
    return [packet for packet in seen if packet[0] == kind]


def test_a_client_from_the_paper_and_the_bytes_on_the_medium(medium: str, tmp_path: Path) -> None:
    tap = Tap(medium)
    with daemon("a", medium, tmp_path) as at_a, daemon("b", medium, tmp_path) as at_b:
        ann, bob, eve = Client(at_a), Client(at_b), Client(at_b)
        ann.join("news")
        bob.join("news")
        bob.join("ab")
        eve.join("news")

        def both_known(seen: list[bytes]) -> bool:
            beats = [heartbeat(packet) for packet in of_type(seen, 1)]
            latest = {beat.source: beat for beat in beats}
            declared = sorted(sorted(beat.groups) for beat in latest.values())
            return declared == [[b"ab", b"news"], [b"news"]] and all(
                beat.nodes == 2 for beat in latest.values()
            )

        tap.wait_for(both_known, "heartbeats with the groups")
        time.sleep(0.1)  # the last one is still to be read by the daemons

        # SNDE: to everyone, the sender too, once each.
        ann.send_everyone("news", b"to everyone")
        for one in (ann, bob, eve):
            assert one.receive() == ("news", b"to everyone")

        # A message of several packets.
        large = bytes(number % 251 for number in range(10_000))
        bob.send_everyone("news", large)
        for one in (ann, bob, eve):
            assert one.receive() == ("news", large)

        # SNDS: to exactly one of b's applications: ann is alone at her node, so it is not hers.
        ann.send_someone("news", b"to someone")
        ready, _, _ = select.select([bob.socket, eve.socket], [], [], PATIENCE_S)
        assert len(ready) == 1
        lucky = bob if bob.socket in ready else eve
        assert lucky.receive() == ("news", b"to someone")
        assert all(one.nothing_comes(0.2) for one in (ann, bob, eve))

        # JOIN is not needed to send; LEAV ends what comes.
        ann.leave("news")
        stranger = Client(at_a)
        stranger.send_everyone("ab", b"from outside")
        assert bob.receive() == ("ab", b"from outside")

        def left(seen: list[bytes]) -> bool:
            return any(heartbeat(packet).groups == [] for packet in of_type(seen, 1)[-4:])

        tap.wait_for(left, "a heartbeat without groups")
        bob.send_everyone("news", b"after")
        assert bob.receive() == eve.receive() == ("news", b"after")
        assert ann.nothing_comes()
        for one in (ann, bob, eve, stranger):
            one.close()
        seen = list(tap.look())
    tap.close()

    # Only the paper's packets, and ours of types 0x12 and 0x13, which it ignores.
    assert {packet[0] for packet in seen} <= {1, 2, 3, 0x12, 0x13}
    beats = [heartbeat(packet) for packet in of_type(seen, 1)]
    sources = {beat.source for beat in beats}
    assert len(sources) == 2
    assert all(any(source) for source in sources)
    sent = [data(packet) for packet in of_type(seen, 2)]
    b_uuid = next(beat.source for beat in beats if b"ab" in beat.groups)
    (a_uuid,) = sources - {b_uuid}

    # Byte for byte: every packet is what its fields say, put together anew.
    for packet in of_type(seen, 1):
        beat = heartbeat(packet)
        again = b"\1" + beat.source + beat.nodes.to_bytes(2, "big") + bytes([len(beat.groups)])
        again += b"".join(bytes([len(name)]) + name for name in beat.groups)
        assert packet == again
    first = next(packet for packet in of_type(seen, 2) if packet.endswith(b"to everyone"))
    assert first == (
        b"\2" + a_uuid + bytes(16) + b"\0\0\0\1" + b"\0\0\0\1" + b"\0\0\0\0" + b"\2"
        + b"\4news" + b"to everyone"
    )  # fmt: skip
    answers = [acknowledgement(packet) for packet in of_type(seen, 3)]
    assert Acknowledgement(b_uuid, a_uuid, 1, 0, ()) in answers
    answer = b"\3" + b_uuid + a_uuid + b"\0\0\0\1" + b"\0\0\0\0" + b"\0\0"
    assert answer in of_type(seen, 3)

    # The message of several packets: 1500 - 28 - 47 - 4 bytes in each but the last.
    parts = {one.number: one for one in sent if one.source == b_uuid and one.packets > 1}
    count = -(-len(large) // 1421)
    assert sorted(parts) == list(range(count))
    assert {one.packets for one in parts.values()} == {count}
    assert {len(parts[number].payload) for number in range(count - 1)} == {1421}
    assert b"".join(parts[number].payload for number in range(count)) == large
    assert parts[count - 1].flags == CONFIRMATION
    assert all(parts[number].flags == 0 for number in range(count - 1))
    assert all(one.destination == bytes(16) for one in parts.values())
    assert Acknowledgement(a_uuid, b_uuid, parts[0].sequence, count - 1, ()) in answers

    # To someone: addressed to the node, with OneOf.
    (someone,) = {one for one in sent if one.payload == b"to someone"}
    assert someone.destination == b_uuid
    assert someone.flags == ONE_OF | CONFIRMATION
    # Sequence numbers rise by one per message of a node.
    for uuid in sources:
        numbers = sorted({one.sequence for one in sent if one.source == uuid})
        assert numbers == list(range(1, len(numbers) + 1))


def test_a_node_of_the_paper_alone_talks_with_ours(medium: str, tmp_path: Path) -> None:
    """A Beamon that knows types 1 to 3 and nothing else: it gets, acknowledges and sends."""
    tap = Tap(medium)
    host, port = medium.rsplit(":", 1)
    out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    out.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton("127.0.0.1"))
    me = bytes(range(1, 17))

    def say(packet: bytes) -> None:
        out.sendto(packet, (host, int(port)))

    beat = b"\1" + me + b"\0\2" + b"\1" + b"\4news"
    with daemon("a", medium, tmp_path) as at_a:
        ann = Client(at_a)
        ann.join("news")
        say(beat)
        tap.wait_for(
            lambda seen: any(
                heartbeat(packet)[1:] == (2, [b"news"])
                for packet in of_type(seen, 1)
                if packet[1:17] != me
            ),
            "a heartbeat that counts us",
        )
        ann.send_everyone("news", b"hello")
        tap.wait_for(lambda seen: of_type(seen, 2), "the message")
        message = data(of_type(tap.look(), 2)[0])
        assert message.payload == b"hello"
        # We do not answer at first: it comes again, addressed to us.
        tap.wait_for(
            lambda seen: any(data(packet).destination == me for packet in of_type(seen, 2)),
            "the message once more",
        )
        say(b"\3" + me + message.source + struct.pack(">IIH", message.sequence, 0, 0))
        assert ann.receive() == ("news", b"hello")
        # Ours, in two packets, the second one first; it is asked for what is missing.
        head = b"\2" + me + bytes(16) + struct.pack(">II", 1, 2)
        say(head + struct.pack(">IB", 1, CONFIRMATION) + b"\4news" + b"world")

        def asked(seen: list[bytes]) -> bool:
            mine = [acknowledgement(p) for p in of_type(seen, 3) if p[17:33] == me]
            return Acknowledgement(message.source, me, 1, 1, (0,)) in mine

        tap.wait_for(asked, "a list of what is missing")
        say(head + struct.pack(">IB", 0, CONFIRMATION) + b"\4news" + b"hello ")
        assert ann.receive() == ("news", b"hello world")
        ann.close()
    tap.close()
    out.close()
