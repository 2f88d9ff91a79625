"""One group's error fails that group: the node and its other groups do not notice."""

from __future__ import annotations

import asyncio
import io
import logging
import os
import resource
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from roundelay.core.bundle import Bundle
from roundelay.core.engine import EVERYONE, SECOND
from roundelay.core.errors import ConfigError, GroupFailed, InvariantBroken, UsageError
from roundelay.core.position import Since
from roundelay.core.token.pdu import DATA, Ack
from roundelay.node import group_faults
from roundelay.node import node as node_module
from roundelay.node.event_log import LOGGER, log_as_json
from roundelay.node.frontend.server import FrontendServer
from roundelay.node.groups import GroupSpec, parse_group
from roundelay.node.medium.interfaces import parse_address
from roundelay.node.medium.probe import Choice
from roundelay.node.node import Node
from roundelay.node.node_api import Batch, Send
from roundelay.node.node_config import NodeConfig
from roundelay.node.recording.recorder import RecordConfig
from roundelay.wire.control import Start
from tests.node.board import Listener
from tests.node.live import Net, kill, multicast, until

SOUND = "token:sound"


@asynccontextmanager
async def nodes(
    names: str, *groups: GroupSpec, base: Path | None = None, **options: Any
) -> AsyncIterator[list[Node]]:
    """Nodes of these names on a medium of their own, each with the groups."""
    medium = parse_address(multicast(), "multicast")
    found: list[Node] = []
    try:
        for name in names:
            config = NodeConfig(
                name=name, dir=base / name if base else None, log_level="error", groups=groups,
                choice=Choice(multicast=medium, interface="lo"), **options,
            )  # fmt: skip
            found.append(Node(config))
            await found[-1].start()
        yield found
    finally:
        for node in found:
            kill(node)


def state(node: Node, group: str) -> str:
    return str(next(one for one in node.status()["groups"] if one["group"] == group)["state"])  # type: ignore[attr-defined]


def claimed(node: Node) -> set[str]:
    """Groups that its INFO says it is in."""
    return {group.name for group in node.control.info().groups}


async def still_works(found: list[Node], group: str = SOUND) -> None:
    """Everybody in the group hears everybody."""
    ears = [Listener() for _ in found]
    for node, ear in zip(found, ears, strict=True):
        node.join(ear, group)
    names = {node.name for node in found}
    await until(lambda: all(ear.views[-1].state == "open" for ear in ears), "open")
    await until(lambda: all(set(ear.views[-1].members) == names for ear in ears), "one view")
    for node, ear in zip(found, ears, strict=True):
        node.send(ear, Send(group, Bundle.of(node.name.encode()), 7))
    await until(lambda: all(ear.receipts for ear in ears), "receipts")
    await until(lambda: all(len(ear.messages) == len(found) for ear in ears), "deliveries")
    for node, ear in zip(found, ears, strict=True):
        node.leave(ear, group)
        assert not ear.refusals
        assert node.fatal is None


def sound(**options: Any) -> GroupSpec:
    return GroupSpec(name=SOUND, protocol="token", **options)


async def test_options_that_do_not_go_together_fail_their_group_only() -> None:
    bad = parse_group("x:total:hub=yes:stage=accepted")
    async with nodes("ab", bad, sound()) as both:
        await still_works(both)
        for node in both:
            await until(lambda node=node: state(node, "to:x").startswith("failed: "), "failed")  # type: ignore[misc]
            assert "stage" in state(node, "to:x")
            assert "to:x" not in claimed(node)
        with pytest.raises(ConfigError):
            both[0].join(Listener(), "to:x")


VERBS = {"token": "receive", "to": "on_timer", "po": "take", "spo": "receive", "pa": "take"}


def _driven(node: Node, group: str) -> Any:
    return node.group_hosts[group].data


@pytest.mark.seconds(120.0)
async def test_a_broken_engine_fails_its_group_only_and_can_be_joined_again() -> None:
    groups = [f"{protocol}:x" for protocol in VERBS]
    async with nodes("abc", sound()) as three:
        ears = {(node.name, group): Listener() for node in three for group in groups}
        for (name, group), ear in ears.items():
            three["abc".index(name)].join(ear, group)
        await until(
            lambda: all(
                ear.views[-1].state == "open" and len(ear.views[-1].members) == 3
                for ear in ears.values()
            ),
            "open",
        )

        def broken(*arguments: Any) -> Any:
            raise InvariantBroken("planted")

        node = three[0]
        for group, verb in zip(groups, VERBS.values(), strict=True):
            hosted = _driven(node, group)
            hosted.driver.engine = _Broken(hosted.engine, verb, broken)
            if hosted.token is not None:
                hosted.token = hosted.engine
            for one in three:
                one.send(ears[one.name, group], Send(group, Bundle.of(b"one"), 1))
        for group in groups:
            mine = ears["a", group]
            await until(lambda g=group: state(node, g).startswith("failed: "), "failed")  # type: ignore[misc]
            assert "planted" in state(node, group)
            assert mine.views[-1].state == state(node, group)
            assert len([*mine.receipts, *mine.refusals]) >= 1, "its sender is told"
            assert group not in claimed(node)
        await still_works(three)
        for group in groups:  # the cause is gone
            node.join(ears["a", group], group)
        back = [ears["a", group] for group in groups]
        await until(lambda: all(ear.views[-1].state == "open" for ear in back), "again", 40.0)
        for group in groups:
            node.send(ears["a", group], Send(group, Bundle.of(b"two"), 2))
        await until(lambda: all(any(r.tag == 2 for r in e.receipts) for e in back), "receipts")
        assert node.fatal is None


class _Broken:
    """An engine one of whose verbs raises."""

    def __init__(self, engine: Any, verb: str, broken: Callable[..., Any]) -> None:
        self._engine, self._verb, self._broken = engine, verb, broken

    def __getattr__(self, name: str) -> Any:
        return self._broken if name == self._verb else getattr(self._engine, name)


@pytest.mark.seconds(120.0)
async def test_a_full_disk_in_one_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_faults, "RETRY_NS", SECOND)
    other = GroupSpec(name="token:x", protocol="token")
    async with nodes("ab", sound(), other, base=tmp_path) as both:
        await still_works(both, "token:x")
        store = _driven(both[0], "token:x").store
        full = os.open("/dev/full", os.O_RDWR)
        os.dup2(full, store._file)
        ear = Listener()
        both[0].join(ear, "token:x")
        both[0].send(ear, Send("token:x", Bundle.of(b"no room"), 1))
        await until(lambda: state(both[0], "token:x").startswith("failed: "), "failed")
        os.close(full)
        assert "No space left" in state(both[0], "token:x")
        assert ear.refusals[0].indeterminate
        await still_works(both)
        # There is room again, and the node was told to host the group: it is back by itself.
        await until(lambda: state(both[0], "token:x") == "open", "open again", 40.0)
        await still_works(both, "token:x")


@pytest.mark.seconds(120.0)
async def test_an_application_that_asks_too_early_does_not_end_the_tries_of_its_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_faults, "RETRY_NS", SECOND)
    other = GroupSpec(name="to:x", protocol="to")
    async with nodes("ab", sound(), other, base=tmp_path) as both:
        await still_works(both, "to:x")
        both[0].faults.fail_group("to:x", OSError(28, "No space left on device"))
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        try:
            with pytest.raises(GroupFailed, match="Too many open files"):
                both[0].join(Listener(), "to:x")
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        with pytest.raises(ConfigError, match="stage"):
            both[0].join(Listener(), "to:x", wishes=parse_group("x:total:hub=yes:stage=accepted"))
        assert "Too many open files" in state(both[0], "to:x")
        await until(lambda: state(both[0], "to:x") == "open", "open again", 40.0)
        await still_works(both, "to:x")


async def test_no_file_can_be_opened_for_one_group(tmp_path: Path) -> None:
    async with nodes("ab", sound(), base=tmp_path) as both:
        await still_works(both)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        ear = Listener()
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        try:
            with pytest.raises(GroupFailed, match="Too many open files"):
                both[0].join(ear, "pa:late")
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert "Too many open files" in state(both[0], "pa:late")
        await still_works(both)
        both[0].join(ear, "pa:late")
        await until(lambda: ear.views[-1].state.startswith("open"), "open")


async def test_a_nul_in_an_incarnation(tmp_path: Path) -> None:
    async with nodes("ab", sound(), base=tmp_path) as both:
        await still_works(both)
        ear = Listener()
        both[0].join(ear, "token:x")
        for incarnation in ("a\0b", "../../../../escaped", "x" * 64):
            start = Start("token:x", incarnation, 1, ("a",), (both[0].uuid,), 0, 1)
            both[1].send_control(start)
        await asyncio.sleep(0.2)
        await still_works(both)
        assert not list(tmp_path.parent.rglob("*escaped*"))


async def test_an_acknowledgement_of_nobody() -> None:
    other = GroupSpec(name="token:x", protocol="token")
    async with nodes("ab", sound(), other) as both:
        await still_works(both, "token:x")
        for node in both:
            hosted = _driven(node, "token:x")
            engine = hosted.engine
            for ts in range(engine.token_list.start_ts, engine.nts):  # the holder answers old ones
                hosted.link.transmit(EVERYONE, Ack(engine.tl, ts, DATA, 0, 0, 60000, 0), 0, 0)
        await asyncio.sleep(0.3)
        await still_works(both)


async def test_a_recorder_that_cannot_be_opened(tmp_path: Path) -> None:
    journals = tmp_path / "a" / "journals"
    journals.mkdir(parents=True)
    (journals / "token%3ax").write_text("no folder")
    records = (RecordConfig(group="token:x"), RecordConfig(group=SOUND))
    async with nodes("a", sound(min_members=1), base=tmp_path, records=records) as (node,):
        failed: Any = node.status()["recorders"]
        assert set(failed["failed"]) == {"token:x"}
        assert [one["group"] for one in failed["own"]] == [SOUND]
        await still_works([node])


async def test_an_error_in_a_fifo_group() -> None:
    async with nodes("ab", sound()) as both:
        ears = [Listener(), Listener()]
        for node, ear in zip(both, ears, strict=True):
            node.join(ear, "plain")
        await until(lambda: all(len(ear.views[-1].members) == 2 for ear in ears), "both")

        def broken(batch: Batch) -> None:
            raise RuntimeError("planted")

        ears[0].deliver = broken  # type: ignore[method-assign]
        both[1].send(ears[1], Send("plain", Bundle.of(b"one"), 1))
        await until(lambda: state_or_none(both[0], "plain"), "failed")
        assert ears[0].views[-1].state == "failed: RuntimeError: planted"
        await still_works(both)
        del ears[0].deliver
        both[0].join(ears[0], "plain")
        await until(lambda: len(ears[1].views[-1].members) == 2, "back")
        await until(lambda: ears[0].views[-1].state == "open", "back")
        both[1].send(ears[1], Send("plain", Bundle.of(b"two"), 2))
        await until(lambda: b"two" in ears[0].messages, "a delivery")


async def test_a_send_to_someone_that_has_a_failed_group_tried_again_goes_to_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It went to everybody."""
    monkeypatch.setattr(group_faults, "ASKED_NS", 0)
    async with nodes("ab", sound()) as both:
        ears = [Listener(), Listener(), Listener()]
        for node, ear in zip((both[0], both[1], both[1]), ears, strict=True):
            node.join(ear, "plain")
        await until(lambda: all(len(ear.views[-1].members) == 2 for ear in ears), "both")

        def broken(batch: Batch) -> None:
            raise RuntimeError("planted")

        ears[0].deliver = broken  # type: ignore[method-assign]
        both[1].send(ears[1], Send("plain", Bundle.of(b"one"), 1))
        await until(lambda: state_or_none(both[0], "plain"), "failed")
        both[0].send(Listener(), Send("plain", Bundle.of(b"two"), someone=True))
        await until(lambda: any(b"two" in ear.messages for ear in ears), "a delivery")
        await asyncio.sleep(0.3)
        assert sum(ear.messages.count(b"two") for ear in ears) == 1


async def test_an_error_in_a_journal_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_faults, "RETRY_NS", SECOND)
    file = tmp_path / "news.toml"
    file.write_text(
        'members = ["a", "b"]\nretransmitters = ["a"]\nacknowledgers = ["b"]\n'
        'recorders = ["b"]\nusers = ["a"]\nlines = 1\n'
    )
    news = GroupSpec(name="grsb:news", protocol="grsb", config=str(file))
    async with nodes("ab", sound(), news, base=tmp_path) as both:
        await until(lambda: all(state(node, "grsb:news") == "open" for node in both), "open")
        seat: Any = both[1].group_hosts["grsb:news"]
        seat.carry_out = broken_disk
        await until(lambda: state(both[1], "grsb:news").startswith("failed: "), "failed")
        await still_works(both)
        await until(lambda: state(both[1], "grsb:news") == "open", "open again", 40.0)


def broken_disk(*arguments: Any) -> None:
    raise OSError(28, "No space left on device")


def state_or_none(node: Node, group: str) -> bool:
    groups: Any = node.status()["groups"]
    return any(one["group"] == group and one["state"].startswith("failed: ") for one in groups)


async def test_joining_a_group_that_cannot_be_opened_raises(tmp_path: Path) -> None:
    async with Net() as net:
        (tmp_path / "groups").write_text("no folder")
        with pytest.raises(GroupFailed):
            await net.join("a", dir=tmp_path)


async def test_an_embedded_application_is_told_that_its_group_has_failed() -> None:
    async with Net() as net:
        member = await net.join("a", min_members=1)
        await member.group.ready()
        member.node.faults.fail_group("token:g", OSError(28, "No space left on device"))
        assert member.group.view.state == "failed: No space left on device"
        await asyncio.wait_for(member._reader, 5.0)  # it does not wait for ever
        with pytest.raises(Exception, match="No space left"):
            await member.group.broadcast(b"to nobody")


async def test_an_application_behind_a_daemon_is_told_that_its_group_has_failed() -> None:
    async with nodes("a", sound(min_members=1)) as (node,):
        server = FrontendServer(node, ("127.0.0.1:0",), name="a")
        await server.start()
        async with Net() as net:
            there = {"node": server.addresses[0], "multicast": "", "interface": ""}
            member = await net.join("x", "x", min_members=1, **there)
            other = await net.join("y", "sound", **there)
            await member.group.ready()
            await other.group.ready()
            node.faults.fail_group("token:x", OSError(28, "No space left on device"))
            await asyncio.wait_for(member._reader, 5.0)
            assert member.group.view.state == "failed: No space left on device"
            await other.group.broadcast(b"still here")
            again = await net.join("x", "x", min_members=1, **there)
            await again.group.ready()
            for one in (member, other, again):
                await one.leave()
            net.members.clear()
        await server.close()


async def test_an_error_of_one_connection_ends_that_connection() -> None:
    async with nodes("a", sound(min_members=1)) as (node,):
        server = FrontendServer(node, ("127.0.0.1:0",), name="a")
        await server.start()
        async with Net() as net:
            there = {"node": server.addresses[0], "multicast": "", "interface": ""}
            pair = [await net.join(name, "sound", **there) for name in "xy"]
            for one in pair:
                await one.group.ready()
            first = min(server._connections, key=lambda one: one.name)

            def broken(*arguments: Any) -> None:
                raise RuntimeError("planted")

            first._write = broken  # type: ignore[method-assign, assignment]
            await pair[1].group.broadcast(b"two")
            await until(lambda: len(server._connections) == 1, "one is gone")
            await pair[1].group.broadcast(b"three")
            assert pair[1].data == [b"two", b"three"]
            assert server.status()["drops"] == {"fault of the connection": 1}
            for one in pair:
                await one.leave()
            net.members.clear()
        await server.close()


class _FullDisk(io.StringIO):
    def write(self, text: str) -> int:
        raise OSError(28, "No space left on device")


async def test_a_log_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Standard error on a full disk: the first line that a group's fault was worth stopped the
    node."""
    bad = parse_group("x:total:hub=yes:stage=accepted")
    logger = logging.getLogger(LOGGER)
    monkeypatch.setattr(sys, "stderr", _FullDisk())
    for name in ("handlers", "propagate"):
        monkeypatch.setattr(logger, name, getattr(logger, name))  # put back at the end
    log_as_json()
    async with nodes("ab", bad, sound()) as both:
        await still_works(both)
        both[0].faults.fail_group(SOUND, OSError(28, "No space left on device"))
        assert state(both[0], SOUND).startswith("failed: ")
        await still_works(both, "token:other")


async def test_groups_that_have_failed_keep_no_others_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """256 of them, and nobody could join a group at that node any more."""
    monkeypatch.setattr(node_module, "GROUPS_MAX", 8)

    configured = GroupSpec(name="to:told", protocol="to", stage="never")
    async with nodes("a", sound(min_members=1), configured) as (node,):
        wishes = GroupSpec(name="to:x", protocol="to", stage="never")
        for number in range(20):
            with pytest.raises(ConfigError):
                node.join(Listener(), f"to:{number}", wishes=wishes)
        assert "to:19" in node.group_hosts
        assert "to:told" in node.group_hosts
        for number in range(6):
            node.join(Listener(), f"token:{number}")
        with pytest.raises(UsageError, match="leave one first"):
            node.join(Listener(), "token:7")
        await still_works([node])


async def test_one_who_is_refused_leaves_no_group_open() -> None:
    async with nodes("a", sound(min_members=1)) as (node,):
        with pytest.raises(ConfigError):
            node.join(Listener(), "po:x", Since(5))
        assert "po:x" not in node.group_hosts
