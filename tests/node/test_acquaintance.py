"""Who may take part, and who is sent to: key files, forked processes, addresses from hearsay."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from pathlib import Path

import pytest

import roundelay
from roundelay.core.engine import SECOND
from roundelay.core.errors import ConfigError, UsageError
from roundelay.node.medium.acquaintance import CANDIDATES_MAX, FORGET_NS, KNOCKS, Acquaintances
from roundelay.node.medium.keys import load_secret
from roundelay.node.medium.media import Address, FanoutMedium
from roundelay.wire import control
from roundelay.wire.control import Knock
from roundelay.wire.seal import HEAD_SIZE, Seal
from tests.node.live import Net, multicast, until

SECRET = bytes(32)


def test_a_key_file_that_others_can_read_is_refused_with_what_to_do(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text(SECRET.hex())
    for mode in (0o644, 0o640, 0o620, 0o604):
        key.chmod(mode)
        with pytest.raises(ConfigError, match=f"chmod 600 {key}"):
            load_secret(key)
    for mode in (0o600, 0o400):
        key.chmod(mode)
        assert load_secret(key) == SECRET


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_never_uses_a_key_and_nonce_of_its_parent() -> None:
    """Both counted on under one key: the same (key, nonce) for different datagrams."""
    seal = Seal(SECRET, os.urandom(16))
    seal.seal(b"before")
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.write(writer, seal.seal(b"child"))
        os._exit(0)
    os.waitpid(child, 0)
    ours, theirs = seal.seal(b"ours!"), os.read(reader, 4096)
    os.close(reader)
    os.close(writer)
    assert ours[:HEAD_SIZE] != theirs[:HEAD_SIZE]
    assert Seal(SECRET, os.urandom(16)).open(theirs) == b"child"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_is_refused_a_blocking_group_of_its_parent() -> None:
    """It waited for ever, for a thread that only the parent has."""
    reader, writer = os.pipe()
    with roundelay.join(
        "orders", name="a", interface="lo", multicast=multicast(), min_members=1
    ) as group:
        group.ready(timeout=10)
        child = os.fork()
        if not child:
            signal.alarm(5)
            try:
                group.broadcast(b"child")
            except UsageError as error:
                os.write(writer, str(error).encode())
            os._exit(0)
        os.close(writer)
        assert b"forked from: join again here" in os.read(reader, 4096)
        os.waitpid(child, 0)
        os.close(reader)
        assert group.broadcast(b"parent").seq == 0


def medium() -> FanoutMedium:
    return FanoutMedium(("127.0.0.1", 0), [("127.0.0.1", 9)], 1200)


def test_an_address_gets_nothing_but_a_few_knocks_before_it_answers() -> None:
    sent: list[tuple[Address, Knock]] = []
    known = Acquaintances(medium(), lambda address, knock: sent.append((address, knock)))
    named = ("127.0.0.2", 5)
    try:
        for now in range(0, 60 * SECOND, SECOND):
            if not now:
                known.named(named, now)
            known.on_tick(now)
        assert len(sent) == KNOCKS
        assert not known.candidates
        assert list(known.medium.peers) == [("127.0.0.1", 9)]
        assert not known.answered(sent[-1][1].token, now)  # too late

        known.spoke(named, now)
        assert named not in known.medium.peers
        assert not known.answered(os.urandom(16), now)
        assert known.answered(sent[-1][1].token, now)
        assert named in known.medium.peers
        for port in range(1, 2 * CANDIDATES_MAX):
            known.named(("127.0.0.3", port), now)
        assert len(known.candidates) == CANDIDATES_MAX
    finally:
        known.medium.close()


def test_peers_that_are_not_heard_expire_but_seeds_stay() -> None:
    sent: list[tuple[Address, Knock]] = []
    known = Acquaintances(medium(), lambda address, knock: sent.append((address, knock)))
    there, gone = ("127.0.0.2", 5), ("127.0.0.2", 6)
    try:
        for address in (there, gone):
            known.named(address, 0)
            assert known.answered(sent[-1][1].token, 0)
        for now in range(0, 2 * FORGET_NS, SECOND):
            known.spoke(there, now)
            known.on_tick(now)
        assert list(known.medium.peers) == [("127.0.0.1", 9), there]
        assert len(known.heard) == 2
    finally:
        known.medium.close()


async def test_a_node_that_says_it_is_elsewhere_sends_nobody_our_traffic() -> None:
    """Whoever was named in an INFO was sent everything from then on, for ever."""
    async with Net("fanout") as net:
        a = await net.join("a", service="fifo")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as victim:
            victim.bind(("127.0.0.1", 0))
            victim.setblocking(False)
            named: Address = victim.getsockname()
            said = control.Info("x", os.urandom(16), named, (), (named, ("127.0.0.4", 9)))
            host, port = a.node.medium.address
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
                stranger.sendto(control.encode(said), (host, port))
            await until(lambda: a.node.directory.by_name.get("x"), "it was heard")
            for _ in range(3):
                await a.group.broadcast(b"not for strangers")
            await asyncio.sleep(0.6)
            got = []
            while True:
                try:
                    got.append(control.decode(victim.recv(65536)))
                except BlockingIOError:
                    break
            assert got
            assert all(isinstance(one, Knock) and not one.back for one in got), got
            assert named not in a.node.medium.peers  # type: ignore[attr-defined]
        b = await net.join("b", service="fifo")
        await until(lambda: len(b.group.view.members) == 2, "who answers is met")
        await until(lambda: len(a.group.view.members) == 2, "on both sides")
