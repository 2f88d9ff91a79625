"""The frontend port: the paper's commands to the letter, ours beyond them, and bad input."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import stat
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest

import roundelay
from roundelay.client.daemon import Daemon
from roundelay.client.group import Group
from roundelay.client.messages import Receipt as SentReceipt
from roundelay.core.bundle import Bundle
from roundelay.core.errors import (
    ConfigError,
    ConnectionLost,
    Indeterminate,
    NodeUnreachable,
    PayloadTooLarge,
    QueueFull,
    Refused,
    UsageError,
)
from roundelay.core.position import Since
from roundelay.node.frontend.packets import from_packet, read_received, send_packet
from roundelay.node.frontend.server import FrontendServer
from roundelay.node.node_api import Receipt, Refusal, Send
from roundelay.wire.frontend import MESSAGE_BYTES, Packet, head, json_packet, packet
from tests.node.board import Listener, LocalBoard, until


class Server:
    """A frontend server on a local board."""

    def __init__(self, board: LocalBoard, frontends: FrontendServer) -> None:
        self.board = board
        self.frontends = frontends
        self.where = frontends.addresses[0]
        self.clients: list[Raw] = []

    @property
    def status(self) -> dict[str, Any]:
        return self.frontends.status()

    @property
    def drops(self) -> dict[str, int]:
        return self.status["drops"]  # type: ignore[no-any-return]

    async def raw(self) -> Raw:
        host, port = self.where.rsplit(":", 1)
        made = Raw(*await asyncio.open_connection(host, int(port), limit=1 << 26))
        self.clients.append(made)
        return made


class Raw:
    """A client written from the paper: it knows the layouts and nothing else."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def write(self, data: bytes) -> None:
        self.writer.write(data)

    def a(self, command: bytes, group: bytes) -> None:
        self.write(command + bytes([len(group)]) + group)

    def b(self, command: bytes, group: bytes, message: bytes) -> None:
        self.a(command, group)
        self.write(struct.pack(">I", len(message)) + message)

    async def read(self) -> tuple[bytes, bytes, bytes]:
        """A packet of type B."""
        command = await self.reader.readexactly(4)
        name = await self.reader.readexactly((await self.reader.readexactly(1))[0])
        if command in (b"STOP", b"GOON"):
            return command, name, b""
        (size,) = struct.unpack(">I", await self.reader.readexactly(4))
        return command, name, await self.reader.readexactly(size)

    async def hello(self) -> None:
        self.b(b"HELO", b"", b"{}")
        assert (await self.read())[0] == b"HELO"

    def close(self) -> None:
        self.writer.close()


@asynccontextmanager
async def server(
    board: LocalBoard | None = None, *where: str, **options: Any
) -> AsyncIterator[Server]:
    board = board or LocalBoard()
    frontends = FrontendServer(board, where or ("127.0.0.1:0",), name=board.name, **options)
    board.status_parts["frontends"] = frontends.status
    await frontends.start()
    made = Server(board, frontends)
    try:
        yield made
    finally:
        for client in made.clients:
            client.close()
        await frontends.close()


# -- the paper's five commands


async def test_a_client_of_the_paper_joins_sends_receives_and_leaves() -> None:
    async with server() as node:
        one, two = await node.raw(), await node.raw()
        one.write(bytes.fromhex("4A4F494E 02 61 62"))  # JOIN "ab", the example of the paper
        two.a(b"JOIN", b"ab")
        await until(lambda: node.status["groups"] == {"ab": 2})
        one.write(bytes.fromhex("534E4445 02 61 62 00000002 6869"))  # SNDE "ab" "hi"
        expected = bytes.fromhex("52435645 02 61 62 00000002 6869")  # RCVE
        assert await one.reader.readexactly(13) == expected
        assert await two.reader.readexactly(13) == expected
        two.a(b"LEAV", b"ab")
        await until(lambda: node.status["groups"] == {"ab": 1})
        two.b(b"SNDE", b"ab", b"")  # JOIN is not needed to send; a message may be empty
        assert await one.read() == (b"RCVE", b"ab", b"")
        two.close()
        one.b(b"SNDE", b"ab", b"last")
        assert await one.read() == (b"RCVE", b"ab", b"last")
        one.close()
        assert await two.reader.read() == b""  # nothing else ever came
        assert node.drops == {}


async def test_someone_is_exactly_one_application() -> None:
    async with server() as node:
        apps = [await node.raw() for _ in range(3)]
        for app in apps:
            app.a(b"JOIN", b"work")
        await until(lambda: node.status["groups"] == {"work": 3})
        sender = await node.raw()
        for i in range(9):
            sender.b(b"SNDS", b"work", b"job %d" % i)
        sender.b(b"SNDE", b"work", b"end")
        got = []
        for app in apps:
            while (message := (await app.read())[2]) != b"end":
                got.append(message)
        assert sorted(got) == [b"job %d" % i for i in range(9)]


async def test_closing_is_leaving_also_by_halves_and_by_reset() -> None:
    async with server() as node:
        closed, half, reset = [await node.raw() for _ in range(3)]
        for app in (closed, half, reset):
            app.a(b"JOIN", b"g")
        await until(lambda: node.status["groups"] == {"g": 3})
        closed.close()
        half.writer.write_eof()
        sock = reset.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        reset.writer.transport.abort()
        await until(lambda: node.status["connections"] == 0)
        assert node.status["groups"] == {}
        assert node.board.by_name["g"].joined == []
        assert node.board.departed == 3
        assert await half.reader.read() == b""
        assert node.drops == {}


async def test_a_message_of_one_mebibyte_passes_whole() -> None:
    async with server() as node:
        app = await node.raw()
        app.a(b"JOIN", b"big")
        message = os.urandom(MESSAGE_BYTES)
        app.b(b"SNDE", b"big", message)
        assert (await app.read())[2] == message


async def test_one_byte_at_a_time() -> None:
    async with server() as node:
        app = await node.raw()
        app.writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in head("JOIN", "slow") + packet("SNDE", "slow", b"hi"):
            app.write(bytes([byte]))
            await app.writer.drain()
            await asyncio.sleep(0)
        assert await app.read() == (b"RCVE", b"slow", b"hi")


async def test_messages_that_arrive_together_go_on_together_and_in_order() -> None:
    async with server() as node:
        app = await node.raw()
        app.a(b"JOIN", b"g")
        count = 5000
        app.write(b"".join(packet("SNDE", "g", b"%d" % i) for i in range(count)))
        for i in range(count):
            assert (await app.read())[2] == b"%d" % i
        assert len(node.board.sends) < count / 20


# -- bad input

BAD = {
    "unknown command": [b"EVIL\x02ab", b"GET / HTTP/1.1\r\n\r\n", b"join\x02ab", b"\0\0\0\0",
                        b"SNDR\x01a\0\0\0\0", b"AUTH\x01a\0\0\0\0"],
    "empty name": [b"JOIN\0", b"SNDE\0\0\0\0\0", b"LEAV\0"],
    "name not UTF-8": [b"JOIN\x02\xff\xfe", b"SNDE\x01\xc3\0\0\0\0"],
    "NUL in name": [b"JOIN\x03a\0b"],
    "message too large": [b"SNDE\x01a\xff\xff\xff\xff", b"SNDS\x01a\x00\x10\x00\x01"],
}  # fmt: skip


@pytest.mark.parametrize("reason", BAD)
async def test_what_is_no_packet_closes_the_connection_without_a_word(reason: str) -> None:
    async with server() as node:
        for data in BAD[reason]:
            app = await node.raw()
            app.a(b"JOIN", b"g")
            app.b(b"SNDE", b"g", b"before")
            app.write(data)
            assert await app.reader.read() == b""
            app.close()
        await until(lambda: node.status["connections"] == 0)
        assert node.drops == {reason: len(BAD[reason])}
        assert node.board.sends == [("g", 1)] * len(BAD[reason])  # what was right, counts


async def test_names_of_any_shape_are_names() -> None:
    async with server() as node:
        app = await node.raw()
        for name in ("../../etc/passwd", "x" * 255, "é" * 127, " ", "<script>", "a\nb"):
            app.a(b"JOIN", name.encode())
            app.b(b"SNDE", name.encode(), b"hi")
            assert await app.read() == (b"RCVE", name.encode(), b"hi")


async def test_an_extended_application_is_told_why() -> None:
    async with server() as node:
        for data, word in (
            (b"EVIL\x02ab", "unknown command"),
            (b"SNDE\x01a\xff\xff\xff\xff", "too large"),
            (packet("SNDR", "a", b"123"), "malformed message"),
            (packet("ASKQ", "", b"[1"), "malformed JSON"),
            (packet("HELO", "", b"\xff"), "malformed JSON"),
            (json_packet("HELO", "", {"protocol": 99}), "protocol version"),
        ):
            app = await node.raw()
            await app.hello()
            app.write(data + b"more" * 10_000)
            command, group, message = await app.read()
            assert (command, group) == (b"FAIL", b"")
            assert message[:9] == struct.pack(">qB", -1, 2)
            assert word in message[9:].decode()
            assert await app.reader.read() == b""
            app.close()
        await until(lambda: node.status["connections"] == 0)
        assert sum(node.drops.values()) == 6


async def test_an_announced_size_costs_nothing() -> None:
    async with server(max_message=64 << 20) as node:
        apps = [await node.raw() for _ in range(50)]
        for app in apps:
            app.a(b"SNDE", b"g")
            app.write(struct.pack(">I", 64 << 20) + b"only this")
        await until(lambda: node.status["connections"] == 50)
        await asyncio.sleep(0.05)
        held = sum(one._parser.held_bytes for one in node.frontends._connections)
        assert held <= 50 * 30


async def test_nothing_that_is_sent_upsets_the_node() -> None:
    """A hundred connections that each break off somewhere in something half right."""
    random = Random(7)
    whole = b"".join(
        [
            head("JOIN", "g"), packet("SNDE", "g", b"one"), packet("SNDS", "g", b"two"),
            packet("HELO", "", b"{}"), send_packet(Send("g", Bundle.of(b"x", b"yy"), 3)),
            send_packet(Send("g", Bundle.of(b"z"), to=("solo",))), head("LEAV", "g"),
            json_packet("ASKQ", "", {"id": [1], "ask": "why", "of": "solo"}),
            json_packet("ASKQ", "", {"ask": {"deep": []}, "of": 7}),
            from_packet("token:g", Since(0)), packet("SNDE", "../h", bytes(3000)),
        ]
    )  # fmt: skip

    troubles: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, what: troubles.append(what))
    async with server() as node:
        bystander = await node.raw()
        bystander.a(b"JOIN", b"mine")
        for _ in range(100):
            app = await node.raw()
            data = bytearray(whole * random.randint(1, 3))
            for _ in range(random.randint(0, 3)):
                at = random.randrange(len(data))
                data[at : at + random.randint(0, 4)] = random.randbytes(random.randint(0, 4))
            cuts = sorted(random.randrange(len(data) + 1) for _ in range(3))
            for start, end in pairwise([0, *cuts]):
                app.write(bytes(data[start:end]))
                await asyncio.sleep(0)
            if random.random() < 0.5:
                app.writer.transport.abort()
            else:
                app.close()
        await until(lambda: node.status["connections"] == 1)
        bystander.b(b"SNDE", b"mine", b"still here")
        assert (await bystander.read())[2] == b"still here"
        assert set(node.status["groups"]) == {"mine"}
        assert len(node.drops) >= 3
    assert troubles == []


async def test_a_flood_of_questions_lets_others_have_their_turn() -> None:
    async with server() as node:
        flood = await node.raw()
        await flood.hello()
        count = 2000
        flood.write(json_packet("ASKQ", "", {"ask": "status"}) * count)
        other = await node.raw()
        other.a(b"JOIN", b"g")
        other.b(b"SNDE", b"g", b"me too")
        assert (await other.read())[2] == b"me too"
        for _ in range(count):
            assert (await flood.read())[0] == b"ANSW"


# -- limits


async def test_the_257th_connection_is_turned_away() -> None:
    async with server(connections_max=4) as node:
        apps = [await node.raw() for _ in range(4)]
        await until(lambda: node.status["connections"] == 4)
        late = await node.raw()
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await late.read()
        with pytest.raises(NodeUnreachable, match="all the connections it allows"):
            await Daemon.connect(node.where)
        assert node.drops == {"too many connections": 2}
        apps[0].close()
        await until(lambda: node.status["connections"] == 3)
        again = await node.raw()
        again.a(b"JOIN", b"g")
        await until(lambda: node.status["groups"] == {"g": 1})


async def test_an_application_that_does_not_read_is_cut_and_slows_nobody() -> None:
    async with server(queue_bytes_max=2 << 20) as node:
        slow, quick = await node.raw(), await node.raw()
        slow.writer.transport.pause_reading()  # type: ignore[attr-defined]
        for app in (slow, quick):
            app.a(b"JOIN", b"g")
        await until(lambda: node.status["groups"] == {"g": 2})
        message = bytes(100_000)
        count = 200
        for _ in range(count):
            quick.b(b"SNDE", b"g", message)
            assert (await quick.read())[2] == message
        await until(lambda: node.status["connections"] == 1)
        assert node.drops == {"send queue full": 1}
        assert node.status["groups"] == {"g": 1}


async def test_a_full_group_stops_the_reading_and_loses_nothing() -> None:
    async with server() as node:
        app = await node.raw()
        app.a(b"JOIN", b"g")
        await until(lambda: node.status["groups"] == {"g": 1})
        node.board.group("g").shut = True
        count = 200
        for i in range(count):
            app.b(b"SNDS", b"g", b"%d" % i)
        await until(lambda: node.status["clients"][0]["waits_for"] == "g")
        other = await node.raw()  # nobody else is held up
        other.a(b"JOIN", b"h")
        other.b(b"SNDE", b"h", b"hi")
        assert (await other.read())[2] == b"hi"
        node.board.open("g")
        for i in range(count):
            assert (await app.read())[2] == b"%d" % i
        assert node.status["clients"][0]["waits_for"] is None


async def test_what_was_sent_before_a_close_counts_even_when_it_had_to_wait() -> None:
    async with server() as node:
        reader = await node.raw()
        reader.a(b"JOIN", b"g")
        await until(lambda: node.status["groups"] == {"g": 1})
        node.board.group("g").shut = True
        app = await node.raw()
        for i in range(50):
            app.b(b"SNDS", b"g", b"%d" % i)
        await app.writer.drain()
        app.close()
        await until(lambda: any(one["waits_for"] for one in node.status["clients"]))
        node.board.open("g")
        for i in range(50):
            assert (await reader.read())[2] == b"%d" % i
        await until(lambda: node.status["connections"] == 1)
        assert node.drops == {}


async def test_an_extended_application_hears_of_stop_and_go() -> None:
    async with server() as node:
        app = await node.raw()
        await app.hello()
        node.board.group("g").shut = True
        for i in range(10):
            app.write(send_packet(Send("g", Bundle.of(b"%d" % i), i)))
        assert await app.read() == (b"STOP", b"g", b"")
        node.board.open("g")
        heard = [await app.read() for _ in range(11)]
        assert (b"GOON", b"g", b"") in heard
        receipts = [message for command, _, message in heard if command == b"RCPT"]
        assert [struct.unpack(">qqq", message)[0] for message in receipts] == list(range(10))


async def test_a_refusal_closes_a_client_of_the_paper() -> None:
    async with server(LocalBoard(largest=10)) as node:
        app = await node.raw()
        for size in (5, 11, 5):
            app.b(b"SNDE", b"g", bytes(size))
        assert await app.reader.read() == b""
        assert node.drops == {"refused by the node": 1}
        assert node.board.sends == [("g", 1)]  # the one before it
        refused = await node.raw()
        refused.a(b"JOIN", b"closed:club")
        assert await refused.reader.read() == b""
        assert node.drops == {"refused by the node": 2}


# -- addresses


async def test_a_unix_socket_is_private_and_cleared_away(tmp_path: Path) -> None:
    path = tmp_path / "front.sock"
    where = f"unix:{path}"
    async with server(None, where, "127.0.0.1:0") as node:
        assert node.where == where
        assert len(node.frontends.addresses) == 2
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        async with roundelay.join("g", service="fifo", node=where) as app:
            await app.broadcast(b"hi")
        with pytest.raises(ConfigError, match="listens on this one already"):
            await FrontendServer(node.board, [where]).start()
        assert path.exists()
    assert not path.exists()


async def test_a_socket_that_nobody_listens_on_is_replaced_and_other_files_are_not(
    tmp_path: Path,
) -> None:
    stale = tmp_path / "stale.sock"
    with socket.socket(socket.AF_UNIX) as old:
        old.bind(str(stale))
    async with server(None, f"unix:{stale}"):
        pass
    precious = tmp_path / "precious"
    precious.write_text("mine")
    with pytest.raises(ConfigError, match="no other file"):
        await FrontendServer(LocalBoard(), [f"unix:{precious}"]).start()
    assert precious.read_text() == "mine"
    with pytest.raises(ConfigError, match="where a socket can be made"):
        await FrontendServer(LocalBoard(), [f"unix:{tmp_path}/no/x.sock"]).start()


async def test_whoever_connects_early_waits_until_the_node_serves() -> None:
    board = LocalBoard()
    frontends = FrontendServer(board, ["127.0.0.1:0"], name="solo")
    await frontends.start(serve=False)
    early = asyncio.create_task(Daemon.connect(frontends.addresses[0], timeout_s=30))
    await asyncio.sleep(0.05)
    assert not early.done()
    await frontends.serve()
    await (await early).close()
    await frontends.close()
    never = FrontendServer(board, ["127.0.0.1:0"])
    await never.start(serve=False)
    await never.close()


async def test_a_port_in_use_and_addresses_that_cannot_be_served() -> None:
    async with server() as node:
        port = node.where.rsplit(":", 1)[1]
        with pytest.raises(ConfigError, match=f"listens on port {port} already"):
            await FrontendServer(node.board, [node.where]).start()
    for where, text in (
        ("0.0.0.0:0", "--frontend-open"),
        ("192.0.2.1:0", "--frontend-open"),
        ("[::]:0", "--frontend-open"),
    ):
        with pytest.raises(ConfigError, match=text):
            await FrontendServer(LocalBoard(), [where]).start()
    with pytest.raises(ConfigError, match="an address of this machine"):
        await FrontendServer(LocalBoard(), ["192.0.2.1:0"], open_to_network=True).start()
    async with server(None, "0.0.0.0:0", open_to_network=True) as node:
        assert node.where.startswith("0.0.0.0:")
    for where in ("6678", ":6678", "host:", "host:99999", "unix:", "::1:5", "h:1:2", "h:-1"):
        with pytest.raises(ConfigError, match="frontend = "):
            FrontendServer(LocalBoard(), [where])


# -- the client


async def test_a_remote_application_sees_what_a_local_one_sees() -> None:
    async with server() as node:
        board = await Daemon.connect(node.where, name="tester", patience_s=10)
        assert (board.node, board.max_message) == ("solo", MESSAGE_BYTES)
        far, near = Listener(), Listener()
        board.join(far, "token:g")
        node.board.join(near, "token:g")
        await until(lambda: far.views and near.views)
        assert far.views == near.views
        board.send(far, Send("token:g", Bundle.of(b"one", b"", b"three"), 7))
        node.board.send(near, Send("token:g", Bundle.of(b"four"), 7))
        await until(lambda: len(far.messages) == 4 and far.receipts)
        assert far.batches == near.batches
        assert far.batches[1].seq == len(far.batches[0].bundle)
        assert far.messages == near.messages
        place = far.messages.index(b"one")
        assert (far.receipts[0].tag, far.receipts[0].seq) == (7, place + 2)
        board.send(far, Send("token:g", Bundle.of(b"for solo"), 8, ("solo", "duo")))
        board.send(far, Send("token:g", Bundle.of(b"for duo"), 9, ("duo",)))
        board.send(far, Send("token:g", Bundle.of(b"doubt"), 10))
        await until(lambda: len(far.receipts) == 3 and far.refusals)
        assert far.messages[4:] == [b"for solo", b"doubt"]
        assert far.refusals == [Refusal("token:g", 10, "no majority", True)]
        board.leave(far, "token:g")
        node.board.send(near, Send("token:g", Bundle.of(b"after")))
        await until(lambda: near.messages[-1] == b"after")
        await board.ask("status")
        assert far.messages[-1] == b"doubt"
        await board.close()


async def test_a_unit_is_one_packet_to_who_knows_units_and_messages_in_a_row_to_others() -> None:
    """GR-19: nothing comes between its parts, whoever is told."""
    async with server() as node:
        paper, plain, units = await node.raw(), await node.raw(), await node.raw()
        await plain.hello()
        units.b(b"HELO", b"", b'{"units":true}')
        assert (await units.read())[0] == b"HELO"
        for client in (paper, plain, units):
            client.a(b"JOIN", b"token:g")
        for client in (plain, units):
            assert (await client.read())[0] == b"VIEW"
        await until(lambda: node.status["groups"] == {"token:g": 3})
        parts = Bundle.of(b"one", b"two")
        units.write(send_packet(Send("token:g", parts.marked(7), 4, unit=True)))
        for text in parts:
            assert await paper.read() == (b"RCVE", b"token:g", text)
        for text in parts:
            command, group, message = await plain.read()
            found = read_received(Packet(command.decode(), group.decode(), message))
            assert (command, found.seq) == (b"RCVC", 1)
            assert found.bundle == Bundle.of(text).marked(7)
        command, group, message = await units.read()
        found = read_received(Packet(command.decode(), group.decode(), message))
        assert (command, found.seq, found.bundle) == (b"RCVU", 1, parts.marked(7))
        assert (await units.read())[0] == b"RCPT"


async def test_an_application_can_begin_at_a_position() -> None:
    async with server() as node:
        sender = Listener()
        for i in range(5):
            node.board.send(sender, Send("token:g", Bundle.of(b"%d" % i), i))
        await until(lambda: len(sender.receipts) == 5)
        async with roundelay.join("g", node=node.where, since=3) as app:
            got = []
            async for message in app:
                got.append((message.seq, message.data))
                if len(got) == 2:
                    break
            assert got == [(3, b"3"), (4, b"4")]
        raw = await node.raw()
        await raw.hello()
        raw.b(b"FROM", b"g", struct.pack(">q", -1))
        assert (await raw.read())[0] == b"FAIL"
        assert node.drops == {"malformed message": 1}


async def test_a_large_bundle_goes_in_parts_with_one_receipt() -> None:
    async with server(max_message=1000) as node:
        board = await Daemon.connect(node.where, name="", patience_s=10)
        app = Listener()
        board.join(app, "token:g")
        messages = [b"%d" % i * 100 for i in range(40)]
        board.send(app, Send("token:g", Bundle.of(*messages), 3))
        await until(lambda: app.receipts)
        assert app.receipts == [Receipt("token:g", 3, 39, app.receipts[0].time)]
        assert app.messages == messages
        seq = 0
        for batch in app.batches:
            assert batch.seq == seq
            seq += len(batch.bundle)
        with pytest.raises(PayloadTooLarge, match="--max-message"):
            board.send(app, Send("token:g", Bundle.of(bytes(1001))))
        await board.close()


async def test_batches_larger_than_a_packet_are_cut_for_an_application() -> None:
    async with server(max_message=1000) as node:
        board = await Daemon.connect(node.where, name="", patience_s=10)
        app = Listener()
        board.join(app, "to:g")
        await until(lambda: app.views)
        messages = [bytes(300) for _ in range(10)]
        node.board.send(Listener(), Send("to:g", Bundle.of(*messages)))
        await until(lambda: len(app.messages) == 10)
        assert [batch.seq for batch in app.batches] == [0, 3, 6, 9]
        await board.close()


async def test_queue_full_reaches_the_remote_caller_and_room_does_too() -> None:
    async with server() as node:
        board = await Daemon.connect(node.where, name="", patience_s=10)
        app = Listener()
        node.board.group("g").shut = True
        sent = 0
        full = False
        while not full:
            try:
                board.send(app, Send("g", Bundle.of(bytes(10_000)), sent))
            except QueueFull:
                full = True
            else:
                sent += 1
                assert sent < 2000
            await asyncio.sleep(0)
        node.board.open("g")
        await until(lambda: app.room == ["g"])
        board.send(app, Send("g", Bundle.of(b"x"), sent))
        await until(lambda: len(app.receipts) == sent + 1)
        assert [receipt.tag for receipt in app.receipts] == list(range(sent + 1))
        await board.close()


async def test_two_applications_may_share_a_connection_but_not_a_group() -> None:
    async with server() as node:
        board = await Daemon.connect(node.where, name="", patience_s=10)
        one, two = Listener(), Listener()
        board.join(one, "g")
        board.join(one, "g")
        with pytest.raises(UsageError, match="another connection"):
            board.join(two, "g")
        board.join(two, "h")
        board.send(one, Send("h", Bundle.of(b"to two"), 1))
        board.send(two, Send("g", Bundle.of(b"to one"), 1))
        await until(lambda: one.messages and two.messages and one.receipts and two.receipts)
        assert (one.messages, two.messages) == ([b"to one"], [b"to two"])
        board.gone(two)
        assert await board.ask("members", "h")
        await until(lambda: node.status["groups"] == {"g": 1})
        await board.close()


async def test_a_lost_connection_is_said_aloud() -> None:
    app = Listener()
    async with server() as node:
        board = await Daemon.connect(node.where, name="", patience_s=10)
        board.join(app, "g")
        await until(lambda: app.views)
        node.board.group("g").shut = True
        board.send(app, Send("g", Bundle.of(b"never answered"), 4))
        await until(lambda: node.board.sends)
    await until(lambda: app.ends)
    assert "connect and join again" in app.ends[0]
    assert "the node stops" in app.ends[0]
    assert [(one.tag, one.indeterminate) for one in app.refusals] == [(4, True)]
    assert app.views[-1].state.startswith("broken")
    with pytest.raises(ConnectionLost):
        board.send(app, Send("g", Bundle.of(b"x")))
    with pytest.raises(ConnectionLost):
        board.join(app, "h")
    with pytest.raises(ConnectionLost):
        await board.ask("status")


async def broadcast(app: Daemon, group: str, *messages: bytes, **how: Any) -> SentReceipt:
    return await Group(group, app).submit(Bundle.of(*messages), **how)


async def test_a_node_for_a_program_that_waits() -> None:
    async with (
        server() as node,
        await Daemon.connect(node.where, name="waiter") as app,
        roundelay.join("g", node=node.where) as group,
    ):
        view = await group.changed_view(group.view)
        assert view.members == ("solo",)
        receipt = await broadcast(app, "token:g", b"one", b"two")
        assert receipt.seq == 1
        await group.post([b"three"])
        await broadcast(app, "token:g", b"four", someone=True)
        await broadcast(app, "token:g", b"five", to={"solo"})
        got = []
        async for message in group:
            got.append((message.seq, message.sender, message.data))
            if len(got) == 5:
                break
        assert got == [(i, "solo", word) for i, word in
                       enumerate((b"one", b"two", b"three", b"four", b"five"))]  # fmt: skip
        with pytest.raises(Indeterminate, match="no majority"):
            await broadcast(app, "token:g", b"doubt")
        with pytest.raises(Refused, match="not for you"):
            async with roundelay.join("closed:club", service="fifo", node=node.where) as club:
                await club.receive(10)
        assert (await app.ask("members", "token:g"))["state"] == "open"
        assert [one["group"] for one in await app.ask("groups")] == ["token:g"]
        status = await app.ask("status")
        assert "waiter" in [one["name"] for one in status["frontends"]["clients"]]
        assert (await app.ask("why", "solo"))["alive"] is True
        with pytest.raises(UsageError, match="never heard of"):
            await app.ask("why", "ghost")
        with pytest.raises(UsageError, match="members, groups, recorders, status, why"):
            await app.ask("everything")


async def test_a_broadcast_waits_for_room() -> None:
    async with server() as node, await Daemon.connect(node.where) as app:
        node.board.group("g").shut = True
        calls = [asyncio.create_task(broadcast(app, "g", bytes(50_000))) for _ in range(100)]
        await until(lambda: node.status["clients"][0]["waits_for"] == "g")
        assert not any(call.done() for call in calls)
        node.board.open("g")
        receipts = await asyncio.gather(*calls)
        assert len(receipts) == 100


async def test_who_waits_for_something_of_a_remote_node_that_is_closed_is_told() -> None:
    async with server() as node:
        app = await Daemon.connect(node.where)
        node.board.group("g").shut = True
        calls = [asyncio.create_task(broadcast(app, "g", bytes(50_000))) for _ in range(100)]
        await until(lambda: node.status["clients"][0]["waits_for"] == "g")
        await app.close()
        async with asyncio.timeout(10):
            ends = await asyncio.gather(*calls, return_exceptions=True)
        assert {type(end) for end in ends} == {Indeterminate, ConnectionLost}
        with pytest.raises(ConnectionLost, match="closed here"):
            await app.ask("groups")


async def test_an_application_that_takes_its_time_is_not_read_for() -> None:
    async with server() as node, roundelay.join("g", service="fifo", node=node.where) as app:
        await app.changed_view(app.view)
        message = bytes(1 << 20)
        sender = Listener()
        count = 12
        for i in range(count):
            node.board.send(sender, Send("g", Bundle.of(message), i))
            await until(lambda i=i: len(sender.receipts) > i)  # type: ignore[misc]
            await asyncio.sleep(0.01)
        got = 0
        async for batch in app.batches():
            got += len(batch.bundle)
            if got == count:
                break
        assert node.drops == {}


async def test_no_node_gives_one_line_that_says_what_to_do(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        where = f"127.0.0.1:{free.getsockname()[1]}"
        with pytest.raises(NodeUnreachable, match="roundelay node --frontend"):
            await Daemon.connect(where)
    with pytest.raises(NodeUnreachable, match="No such file"):
        await Daemon.connect(f"unix:{tmp_path}/none.sock")
    deaf = await asyncio.start_server(lambda r, w: None, "127.0.0.1", 0)
    port = deaf.sockets[0].getsockname()[1]
    with pytest.raises(NodeUnreachable, match="nothing heard"):
        await Daemon.connect(f"127.0.0.1:{port}", timeout_s=0.2)
    deaf.close()

    async def web(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    other = await asyncio.start_server(web, "127.0.0.1", 0)
    port = other.sockets[0].getsockname()[1]
    with pytest.raises(NodeUnreachable, match="it is no node"):
        await Daemon.connect(f"127.0.0.1:{port}")
    other.close()
    with pytest.raises(ConfigError, match="HOST:PORT"):
        await Daemon.connect("nowhere")


async def test_status_is_json() -> None:
    async with server() as node, await Daemon.connect(node.where):
        assert json.loads(json.dumps(node.status))["connections"] == 1
