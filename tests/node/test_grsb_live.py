"""`journal` groups live: roles from a file, two lines, take-overs, recorders, users away."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from shutil import rmtree
from typing import Any

import pytest

import roundelay
from roundelay.client.daemon import Daemon
from roundelay.core.errors import (
    ConfigError,
    GroupClosed,
    GroupTrouble,
    Indeterminate,
    UsageError,
)
from roundelay.durable import Disk
from roundelay.journal.reader import Reader
from roundelay.node.driver.tracing import Tracing
from roundelay.node.roles.group import RoleGroup
from roundelay.trace import check_trace, merge
from tests.node.live import Member, Net, check_total_order, delivered, multicast, until

GROUP = "news"
FULL = "grsb:news"
SMALL = {  # the fewest that can lose a retransmitter
    "members": ["r1", "r2", "d1", "p1", "ann", "bob"],
    "retransmitters": ["r1", "r2"],
    "acknowledgers": ["d1"],
    "recorders": ["p1"],
    "lines": 2,
}
SLOW_STEPS = {"bcast_ms": 2000, "alive_ms": 100, "takeover_ms": 1000}
"""A broadcast is not repeated for long, so that the n-th BCAST is the n-th message."""


@pytest.fixture(autouse=True)
def unmeasured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Coverage has nothing to learn from processes that are killed."""
    for name in [name for name in os.environ if "COVERAGE" in name]:
        monkeypatch.delenv(name)


def toml(table: dict[str, Any]) -> str:
    """Enough of TOML for these tests; JSON is close."""
    plain = [f"{key} = {json.dumps(one)}" for key, one in table.items() if type(one) is not dict]
    nested = [f"[{key}]\n{toml(one)}" for key, one in table.items() if type(one) is dict]
    return "\n".join(plain + nested)


def write(folder: Path, table: dict[str, Any]) -> Path:
    file = folder / "news.toml"
    file.write_text(toml(table))
    return file


class Town:
    """The members of one group, in this process, each with a directory."""

    def __init__(self, net: Net, folder: Path, table: dict[str, Any]) -> None:
        self.net = net
        self.folder = folder
        self.file = write(folder, table)
        self.members: dict[str, Member] = {}

    async def start(self, *names: str, **options: Any) -> list[Member]:
        for name in names:
            folder = self.folder / name
            self.members[name] = await self.net.join(
                name, GROUP, service="journal", config=self.file, dir=folder, **options
            )
        return [self.members[name] for name in names]

    async def open(self, *names: str) -> None:
        await until(lambda: all(self.state(name) == "open" for name in names), f"{names} open")

    def state(self, name: str) -> str:
        return self.members[name].group.view.state

    def seat(self, name: str) -> RoleGroup:
        place = self.members[name].node.group_hosts[FULL]
        assert isinstance(place, RoleGroup)
        return place

    def status(self, name: str) -> dict[str, Any]:
        return self.seat(name).status()


def cut_line_a(net: Net, town: Town, cut: bool) -> None:
    """Nobody hears anything on the nodes' own medium, or everybody again."""
    if net.medium == "switch":
        net.switch.apply({"cut_line": "a"} if cut else {"heal": True})
        return
    for member in town.members.values():
        medium = member.node.medium
        if cut:
            medium.stop()
        else:
            member.node.attach(medium)


@asynccontextmanager
async def process(
    net: Net, folder: Path, file: Path, name: str, failpoint: str = ""
) -> AsyncIterator[subprocess.Popen[str]]:
    """`roundelay node` as a process of its own."""
    socket = f"unix:{folder / name}.sock"
    command = [
        sys.executable, "-c", "from roundelay.cli.main import main; main()", "node",
        "--name", name, "--dir", str(folder / name), "--frontend", socket, "--insecure",
        "--via", net.where()["via"], "--group", f"{FULL}:config={file}",
    ]  # fmt: skip
    environment = os.environ | ({"ROUNDELAY_FAILPOINT": failpoint} if failpoint else {})
    started = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert started.stdout is not None
        line = await asyncio.to_thread(started.stdout.readline)
        assert line.startswith("ready"), line
        yield started
    finally:
        if started.poll() is None:
            started.send_signal(signal.SIGCONT)
            started.kill()
        started.wait()


async def asked(folder: Path, name: str) -> dict[str, Any]:
    """What the process of that name says of the group."""
    async with await Daemon.connect(f"unix:{folder / name}.sock") as node:
        groups: Any = (await node.ask("status"))["groups"]
        found: dict[str, Any] = groups[0]
        return found


# -- ordinary life ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("profile", "members", "medium"),
    [
        ("demo", ["a", "b", "c"], "multicast"),
        ("separate", ["r", "d", "p", "ann", "bob"], "fanout"),
        ("failsafe", ["r1", "r2", "d1", "d2", "p1", "p2", "ann", "bob"], "switch"),
    ],
)
async def test_each_profile_runs_from_a_file_of_two_lines(
    profile: str, members: list[str], medium: str, tmp_path: Path
) -> None:
    async with Net(medium) as net:
        town = Town(net, tmp_path, {"profile": profile, "members": members})
        await town.start(*members)
        await town.open(*members)
        users = [town.members[name] for name in members[-2:]]
        first, second = users
        seqs = [
            (await first.group.broadcast(b"%d" % i, conference=7 * (i % 2), kind=i)).seq
            for i in range(6)
        ]
        assert seqs == list(range(6))
        recorders = [name for name in members if "recorder" in town.status(name)["roles"]]
        receipt = await second.group.broadcast(
            b"kept", durability="recorded", recorders=len(recorders)
        )
        assert receipt.seq == 6
        for name in recorders:
            assert town.status(name)["journal"]["durable"] >= 7
            shown_by: Any = town.members[name].node.status()["recorders"]
            (own,) = shown_by["own"]
            said = [own[key] for key in ("fsync", "slow", "slowed", "backlog_bytes", "broken")]
            assert said == ["interval", False, 0, 0, None]
            assert {"folder", "begin", "end", "durable", "missing"} <= set(own)
        many = [member.group.broadcast_many([b"x" * 50] * 500) for member in users]
        await asyncio.gather(*many)
        await delivered(users, 1007)
        check_total_order(users)
        assert [message.conference for message in second.got[:4]] == [0, 7, 0, 7]
        assert [message.kind for message in second.got[:4]] == [0, 1, 2, 3]
        chosen = [one.data async for one in first.group.replay(conference=7)]
        assert chosen == [b"1", b"3", b"5"]
        lines = "one" if profile == "demo" else "two"
        assert {town.status(name)["lines"] for name in members[-2:]} == {lines}
        shown: Any = first.node.members(FULL)["members"]
        roles = {one["name"]: one["roles"] for one in shown}
        assert "retransmitter" in roles[members[0]]
        journal = tmp_path / recorders[0] / "journals" / "grsb%3anews"
        for member in [*town.members.values()]:
            await member.leave()
        runs = list(Reader(journal).read())
        assert b"".join(run.bundle.data for run in runs) == b"".join(second.data)
        assert {run.sender for run in runs} == {first.name, second.name}


async def test_a_user_that_was_away_returns_where_it_was_and_a_new_one_begins_anywhere(
    tmp_path: Path,
) -> None:
    """GR-14, GR-16, GR-17: with its directory it goes on; without, it says from where."""
    async with Net("multicast") as net:
        members = ["a", "b", "ann", "bob", "eve"]
        town = Town(net, tmp_path, {"profile": "demo", "members": members})
        await town.start("a", "b", "ann", "bob")
        await town.open("a", "b", "ann", "bob")
        ann, bob = town.members["ann"], town.members["bob"]
        await ann.group.broadcast_many([b"%d" % i for i in range(100)], conference=1)
        await delivered([ann, bob], 100)
        await bob.leave()
        for conference in (7, 8):
            texts = [b"%d/%d" % (conference, i) for i in range(1500)]
            await ann.group.broadcast_many(texts, conference=conference)
        (again,) = await town.start("bob")
        running = True

        async def talk() -> None:
            while running:
                await ann.group.broadcast(b"meanwhile", conference=9)

        talking = asyncio.create_task(talk())
        (eve,) = await town.start("eve", since="start", conferences=[7, 9])
        await delivered([again], 3200)
        await until(lambda: len(eve.got) > 1600, "eve caught up")
        running = False
        await talking
        last = (await ann.group.broadcast(b"the end", conference=9)).seq
        assert last is not None
        await until(lambda: all(m.got[-1].seq == last for m in (ann, again, eve)), "the end")
        assert [message.seq for message in bob.got] == list(range(100))
        assert [message.seq for message in again.got] == list(range(100, last + 1))
        assert again.order == ann.order[100:]
        wanted = [one for one in ann.got if one.conference in (7, 9)]
        assert [(one.seq, one.data) for one in eve.got] == [(one.seq, one.data) for one in wanted]


async def test_what_is_wrong_is_said_where_it_is_asked_for(tmp_path: Path) -> None:
    async with Net("multicast") as net:
        table = {"profile": "separate", "members": ["r", "d", "p", "ann", "joe"]}
        town = Town(net, tmp_path, table)
        with pytest.raises(ConfigError, match=r"name = eve .* a member of grsb:news: r, d, p"):
            await town.start("eve")
        with pytest.raises(ConfigError, match="a recorder must remember what it promised"):
            await net.join("p", GROUP, service="journal", config=town.file)
        with pytest.raises(ConfigError, match="the file that says who plays which role"):
            await net.join("ann", GROUP, service="journal")
        with pytest.raises(ConfigError, match="its file says who records"):
            await town.start("ann", record=True)
        other = write(tmp_path, table | {"members": ["r", "d", "p", "joe", "ann"]})
        (stranger,) = [
            await net.join("ann", GROUP, service="journal", config=other, dir=tmp_path / "x")
        ]
        write(tmp_path, table)
        await town.start("r", "d", "p")
        await town.open("r", "d", "p")
        await until(lambda: "the file of" in stranger.group.view.state, "another file")
        with pytest.raises(UsageError, match="p is no user of grsb:news but its recorder"):
            await town.members["p"].group.broadcast(b"x")
        for name in ("r", "d", "p"):
            await town.members[name].leave()
        for change, message in (
            ({"members": ["d", "r", "p", "ann", "joe"]}, "those .* has, in their order: r, d"),
            ({"recorders": 2}, "the council that grsb:news began with: r, d, p;"),
        ):
            write(tmp_path, table | change)
            with pytest.raises(ConfigError, match=message):
                await town.start("r")
        write(tmp_path, table | {"members": [*table["members"], "new"]})
        await town.start("r", "d", "p", "new")  # one more at the end is welcome
        await town.open("r", "d", "p", "new")


async def test_a_file_that_the_others_refuse_is_not_kept(tmp_path: Path) -> None:
    """A user that was started with it goes back to the group's own."""
    async with Net("multicast") as net:
        table = {"profile": "demo", "members": ["a", "b", "ann"]}
        town = Town(net, tmp_path, table)
        await town.start("a", "b", "ann")
        await town.open("a", "b", "ann")
        await town.members["ann"].group.broadcast(b"0")
        await town.members["ann"].leave()
        said = "; the file of a, b is another one than"  # not only that nobody is heard
        for other in (
            {"profile": "demo", "members": ["a", "b", "ann", "c"], "recorders": 2},
            {"retransmitters": ["b"], "acknowledgers": ["a"], "recorders": ["b"]}
            | {"members": ["a", "b", "ann"]},
        ):
            write(tmp_path, other)
            await town.start("ann", timeout=1.0)
            await until(lambda: town.seat("ann").bootstrap.strangers == {*"ab"}, "another one")
            await until(lambda: said in town.members["ann"].group.view.state, "it says so")
            await town.members["ann"].leave()
        write(tmp_path, table)
        await town.start("ann")
        await town.open("ann")
        assert (await town.members["ann"].group.broadcast(b"1")).seq == 1
        await town.members["ann"].leave()
        for name in ("a", "b"):
            await town.members[name].leave()
        write(tmp_path, table | {"members": ["a", "b", "ann", "new"]})  # all take this one
        await town.start("a", "b", "ann")
        await town.open("a", "b", "ann")
        kept = town.seat("ann").persistence.kept
        await until(lambda: kept.born is not None and kept.born.members[-1] == "new", "it is kept")


# -- failures --------------------------------------------------------------------------------------


@pytest.mark.parametrize("heard", ["users", "everybody"])
async def test_gr_t7_the_retransmitter_is_killed_between_a_broadcast_and_its_acknowledgement(
    heard: str, tmp_path: Path
) -> None:
    """Nobody delivers it twice or elsewhere; the submitter's repetition gets it through once."""
    async with Net("switch") as net:
        town = Town(net, tmp_path, SMALL | {"parameters": SLOW_STEPS})
        async with process(net, tmp_path, town.file, "r1", "BCAST:6:kill") as first:
            await town.start("r2", "d1", "p1", "ann", "bob")
            await town.open("r2", "d1", "p1", "ann", "bob")
            ann, bob = town.members["ann"], town.members["bob"]
            for i in range(5):
                assert (await ann.group.broadcast(b"%d" % i)).seq == i
            if heard == "users":
                net.switch.apply({"drop": {"kind": "BCAST", "many": 1000, "to": "d1"}})
            sixth = asyncio.create_task(ann.group.broadcast(b"5"))
            await until(lambda: first.poll() is not None, "r1 is dead")
            assert first.returncode == -signal.SIGKILL
            net.switch.apply({"heal": True})
            assert (await sixth).seq == 5
            assert (await bob.group.broadcast(b"6")).seq == 6
            await delivered([ann, bob], 7)
            assert ann.order == bob.order
            assert ann.data == [b"%d" % i for i in range(7)]
            assert town.status("ann")["retransmitter"] == "r2"
            assert town.status("ann")["epoch"] > 0


async def test_gr_t8_a_retransmitter_that_wakes_up_after_its_successor_began_is_not_believed(
    tmp_path: Path,
) -> None:
    async with Net("switch") as net:
        town = Town(net, tmp_path, SMALL | {"parameters": SLOW_STEPS})
        async with process(net, tmp_path, town.file, "r1", "BCAST:4:stop") as first:
            await town.start("r2", "d1", "p1", "ann", "bob")
            await town.open("r2", "d1", "p1", "ann", "bob")
            ann, bob = town.members["ann"], town.members["bob"]
            for i in range(3):
                await ann.group.broadcast(b"%d" % i)
            net.switch.apply({"drop": {"kind": "BCAST", "many": 1000, "to": "d1"}})
            fourth = asyncio.create_task(ann.group.broadcast(b"3"))
            stopped = await asyncio.to_thread(os.waitpid, first.pid, os.WUNTRACED)
            assert os.WIFSTOPPED(stopped[1])  # it holds a broadcast that nobody acknowledged
            net.switch.apply({"heal": True})
            assert (await fourth).seq == 3
            for i in range(4, 20):
                await bob.group.broadcast(b"%d" % i)
            before = net.switch.kinds.copy()
            first.send_signal(signal.SIGCONT)
            await until(lambda: net.switch.kinds != before, "it speaks")
            for i in range(20, 30):
                await ann.group.broadcast(b"%d" % i)

            async def knows() -> bool:
                said = await asked(tmp_path, "r1")
                return said["retransmitter"] == "r2" and not said["reigning"]

            while not await knows():
                await asyncio.sleep(0.05)
            await delivered([ann, bob], 30)
            assert ann.order == bob.order
            assert ann.data == [b"%d" % i for i in range(30)]


async def test_gr_t9_a_cut_line_is_done_without_and_used_again_when_it_is_back(
    tmp_path: Path,
) -> None:
    async with Net("switch") as net:
        times = {"bcast_ms": 20, "attempts": 5, "probe_ms": 200, "alive_ms": 100}
        table = {"profile": "separate", "members": ["r", "d", "p", "ann", "bob"]}
        town = Town(net, tmp_path, table | {"parameters": times})
        users = await town.start("r", "d", "p", "ann", "bob")
        await town.open("r", "d", "p", "ann", "bob")
        ann, bob = users[-2:]
        for i in range(10):
            await ann.group.broadcast(b"%d" % i)
        await until(lambda: town.status("bob")["lines"] == "two", "two lines")
        net.switch.apply({"cut_line": "b"})
        for i in range(10, 20):
            await ann.group.broadcast(b"%d" % i)
        await until(lambda: town.status("bob")["lines"] == "one", "one line")
        assert net.switch.drops["line cut"] > 0
        net.switch.apply({"heal": True})
        await until(lambda: town.status("bob")["lines"] == "two", "two lines again")
        for i in range(20, 30):
            await bob.group.broadcast(b"%d" % i)
        await delivered([ann, bob], 30)
        assert ann.order == bob.order
        assert ann.data == [b"%d" % i for i in range(30)]
        assert town.status("ann")["epoch"] == 0  # nobody was replaced for it


@pytest.mark.parametrize("medium", ["switch", "multicast", "fanout"])
async def test_a_cut_of_line_a_is_done_without_and_line_a_used_again_when_it_is_back(
    medium: str, tmp_path: Path
) -> None:
    """Submissions, repairs, replays and receipts of recorders go over line B meanwhile."""
    async with Net(medium) as net:
        times = {"bcast_ms": 20, "probe_ms": 200, "alive_ms": 50, "alive_timeout_ms": 300}
        table = {"profile": "separate", "members": ["r", "d", "p", "ann", "bob"]}
        town = Town(net, tmp_path, table | {"parameters": times})
        users = await town.start("r", "d", "p", "ann", "bob")
        await town.open("r", "d", "p", "ann", "bob")
        ann, bob = users[-2:]
        for i in range(10):
            await ann.group.broadcast(b"%d" % i)
        await until(lambda: town.status("bob")["lines"] == "two", "two lines")
        cut_line_a(net, town, True)
        for i in range(10, 20):
            await ann.group.broadcast(b"%d" % i)
        await until(lambda: town.status("bob")["silent_line"] == "a", "line B alone")
        assert town.status("bob")["lines"] == "one"
        assert town.state("bob") == "open"
        for i in range(20, 30):
            await bob.group.broadcast(b"%d" % i, durability="recorded")
        assert town.status("p")["journal"]["durable"] == 30
        cut_line_a(net, town, False)
        await until(lambda: town.status("bob")["lines"] == "two", "two lines again")
        for i in range(30, 40):
            await bob.group.broadcast(b"%d" % i)
        await delivered([ann, bob], 40)
        assert ann.order == bob.order
        assert ann.data == [b"%d" % i for i in range(40)]
        assert town.status("ann")["epoch"] == 0  # nobody was replaced for it


@pytest.mark.seconds(120)
@pytest.mark.parametrize("medium", ["switch", "multicast"])
async def test_without_line_a_a_group_begins_and_its_members_come_back(
    medium: str, tmp_path: Path
) -> None:
    """Who starts is not known on line B, heard nothing on either, and said nothing there."""
    async with Net(medium) as net:
        table = {"profile": "separate", "members": ["r", "d", "p", "ann", "bob"]}
        times = {"bcast_ms": 20, "probe_ms": 200, "alive_ms": 50, "alive_timeout_ms": 300}
        town = Town(net, tmp_path, table | {"parameters": times | {"takeover_ms": 500}})
        if medium == "switch":
            cut_line_a(net, town, True)
        await town.start("r", "d", "p", "ann")
        await town.open("r", "d", "p", "ann")
        cut_line_a(net, town, True)
        ann = town.members["ann"]
        await ann.group.broadcast(b"0")
        for number, name in enumerate(("p", "d", "r"), 1):
            await town.members[name].die()
            await town.start(name)
            if medium != "switch":
                town.members[name].node.medium.stop()
            receipt = await ann.group.broadcast(b"%d" % number, durability="recorded")
            assert receipt.seq == number
        await town.open("r", "d", "p", "ann")
        assert town.status("ann")["silent_line"] == "a"


async def test_a_member_that_is_deaf_on_line_a_gets_receipts_of_recorders(tmp_path: Path) -> None:
    """Recorders say how far they are on line A, and do not know who is deaf there."""
    async with Net("switch") as net:
        table = {"profile": "separate", "members": ["r", "d", "p", "ann"]}
        town = Town(net, tmp_path, table | {"parameters": {"alive_timeout_ms": 500}})
        await town.start("r", "d", "p", "ann")
        await town.open("r", "d", "p", "ann")
        ann = town.members["ann"].group
        await ann.broadcast(b"0", durability="recorded")
        net.switch.apply({"loss": 0.999999, "to": "ann", "line": "a"})
        for number in range(1, 4):
            receipt = await ann.broadcast(b"%d" % number, durability="recorded")
            assert receipt.seq == number
            await asyncio.sleep(2)  # 3 s after its last word a recorder counts as gone


async def test_a_recorder_that_does_not_keep_up_slows_the_group_and_nothing_is_lost(
    tmp_path: Path,
) -> None:
    """GR-11: what the only recorder lacks is kept for it, and no more is taken than can be kept."""
    async with Net("switch") as net:
        table = {"profile": "separate", "members": ["r", "d", "p", "ann"]}
        small = {"da_buffer": 32, "overwrite_group": 4}
        town = Town(net, tmp_path, table | {"parameters": small})
        async with process(net, tmp_path, town.file, "p") as recorder:
            await town.start("r", "d", "ann")
            await town.open("r", "d", "ann")
            ann = town.members["ann"]
            await ann.group.broadcast(b"0")
            recorder.send_signal(signal.SIGSTOP)

            async def talk() -> None:
                for i in range(1, 200):
                    await ann.group.broadcast(b"%d" % i)

            talking = asyncio.create_task(talk())
            await until(lambda: town.status("d")["slowed_by"] == ["p"], "it shows")
            await until(lambda: town.status("d")["buffers"]["da_buffer"] == 32, "it is full")
            stuck = len(ann.got)
            assert stuck < 40
            assert not talking.done()
            recorder.send_signal(signal.SIGCONT)
            await talking
            assert ann.data == [b"%d" % i for i in range(200)]
            last = await ann.group.broadcast(b"200", durability="recorded")
            assert last.seq is not None
            assert (await asked(tmp_path, "p"))["journal"]["durable"] == last.seq + 1
            assert town.status("d")["slowed_by"] == []


async def test_a_group_that_stands_still_says_for_whom(tmp_path: Path) -> None:
    """GR-11: all recorders are dead and the acknowledger's buffer is full."""
    async with Net("switch") as net:
        table = {"profile": "separate", "members": ["r", "d", "p", "q", "ann"], "recorders": 2}
        times = {"da_buffer": 16, "overwrite_group": 4, "attempts": 5, "alive_timeout_ms": 500}
        town = Town(net, tmp_path, table | {"parameters": times})
        await town.start("r", "d", "p", "q", "ann")
        await town.open("r", "d", "p", "q", "ann")
        ann = town.members["ann"]
        await ann.group.broadcast(b"0", durability="recorded", recorders=2)
        for name in ("p", "q"):
            await town.members[name].die()
        talking = [asyncio.create_task(ann.group.broadcast(b"%d" % i)) for i in range(1, 2)]
        while len(talking) < 30:
            done, _ = await asyncio.wait(talking[-1:], timeout=0.2)
            if not done:
                break
            talking.append(asyncio.create_task(ann.group.broadcast(b"%d" % len(talking))))
        state = "blocked: waiting for p (recorder), q (recorder)"
        for name in ("ann", "r", "d"):
            await until(lambda n=name: town.state(n) == state, f"{name} says so")  # type: ignore[misc]
        assert town.status("d")["slowed_by"] == ["p", "q"]
        assert town.status("ann")["state"] == state
        expected = f"no answer in time ({state}); it may still be delivered"
        assert town.seat("ann").trouble() == expected
        await town.start("q")
        await asyncio.gather(*talking)
        await town.open("ann", "r", "d")
        assert town.status("d")["slowed_by"] == []


@pytest.mark.seconds(120)
async def test_a_group_without_its_acknowledger_names_it_everywhere(tmp_path: Path) -> None:
    """Its retransmitter cannot go on: the others heard nobody and took that one for missing."""
    async with Net("switch") as net:
        table = {"profile": "separate", "members": ["r", "d", "p", "ann", "bob"]}
        times = {"alive_ms": 100, "alive_timeout_ms": 500, "takeover_ms": 500, "attempts": 5}
        town = Town(net, tmp_path, table | {"parameters": times})
        async with process(net, tmp_path, town.file, "bob"):
            await town.start("r", "d", "p", "ann")
            await town.open("r", "d", "p", "ann")
            ann = town.members["ann"]
            await ann.group.broadcast(b"0")
            where = f"unix:{tmp_path / 'bob'}.sock"
            async with roundelay.join(GROUP, service="journal", node=where, timeout=3) as bob:
                await bob.broadcast(b"1")
                await town.members["d"].die()
                named = "missing: d (acknowledger)"
                for name in ("ann", "p"):
                    await until(lambda n=name: town.state(n).endswith(named), "it is named")  # type: ignore[misc]
                    assert town.state(name).startswith("silent: no retransmitter is heard")
                    assert town.status(name)["slowed_by"] == ["d"]
                await until(lambda: bob.view.state == town.state("ann"), "bob knows, too")
                broken = "broken: no acknowledger answers; silent: d (acknowledger)"
                await until(lambda: town.state("r") == broken, "what it waits for")
                assert named in town.seat("ann").trouble()
                with pytest.raises(Indeterminate) as failed:
                    await bob.broadcast(b"2")
                assert named in str(failed.value)
                await town.start("d")
                await town.open("r", "d", "p", "ann")
                await until(lambda: len(ann.got) == 3, "it goes on")
                assert town.status("ann")["slowed_by"] == []


async def test_a_user_that_lacks_what_only_dead_recorders_have_names_them(tmp_path: Path) -> None:
    """The group goes on, and it said `open` while this user got nothing more."""
    async with Net("switch") as net:
        table = {"profile": "separate", "members": ["r", "d", "p", "ann", "bob"]}
        town = Town(net, tmp_path, table | {"parameters": {"rec_ms": 10, "rec_max_ms": 100}})
        await town.start("r", "d", "p", "ann", "bob")
        await town.open("r", "d", "p", "ann", "bob")
        ann, bob = town.members["ann"], town.members["bob"]
        await ann.group.broadcast(b"0")
        await delivered([bob], 1)
        net.switch.apply({"partition": [["bob"], ["r", "d", "p", "ann"]]})
        await ann.group.broadcast(b"1", durability="recorded")
        await town.members["p"].die()
        net.switch.apply({"heal": True})
        await ann.group.broadcast(b"2")
        await until(lambda: town.state("bob") == "blocked: waiting for p (recorder)", "it says")
        assert town.status("bob")["slowed_by"] == ["p"]
        assert town.state("ann") == "open"
        await town.start("p")
        await delivered([bob], 3)
        await town.open("ann", "bob")


@pytest.mark.seconds(180)
async def test_every_role_dies_and_returns_while_users_talk_on_a_lossy_network(
    tmp_path: Path,
) -> None:
    """One history, true receipts, nothing twice (I1, I2, I4, I5)."""
    chance = random.Random(5)
    told: dict[bytes, int | None] = {}
    table = {
        "profile": "failsafe",
        "members": ["r1", "r2", "d1", "d2", "p1", "p2", "ann", "bob"],
        "parameters": {"alive_ms": 60, "takeover_ms": 400, "attempts": 10, "rec_max_ms": 100},
    }
    histories: dict[str, list[tuple[int | None, str, bytes]]] = {"ann": [], "bob": []}

    async with Net("switch", seed=3, rules=[{"loss": 0.03}]) as net:
        town = Town(net, tmp_path, table)
        names: list[str] = table["members"]  # type: ignore[assignment]
        await town.start(*names)
        await town.open(*names)
        running = True
        count = 0

        async def talk(name: str) -> None:
            nonlocal count
            while running:
                count += 1
                data = b"%s %d" % (name.encode(), count)
                try:
                    told[data] = (await town.members[name].group.broadcast(data)).seq
                except (GroupTrouble, GroupClosed):
                    await asyncio.sleep(0.02)

        talking = [asyncio.create_task(talk(name)) for name in ("ann", "bob") for _ in "12"]
        for victim in ("r1", "d1", "p1", "r2", "d2", "bob"):
            await asyncio.sleep(0.2 + 0.2 * chance.random())
            await town.members[victim].die()
            if victim in histories:
                histories[victim] += town.members[victim].order
            await asyncio.sleep(0.5 * chance.random())
            before = len(told)
            await until(lambda n=before: len(told) > n + 3, f"going on without {victim}", 40)  # type: ignore[misc]
            await town.start(victim)
        running = False
        await asyncio.gather(*talking)
        last = (await town.members["ann"].group.broadcast(b"the end")).seq
        assert last is not None
        for name in ("ann", "bob"):
            member = town.members[name]
            await until(lambda m=member: m.got and m.got[-1].seq == last, "the end", 40)  # type: ignore[misc]
            histories[name] += member.order
        assert town.status("ann")["epoch"] > 0
        for name in ("p1", "p2"):
            recorded = lambda one=name: town.status(one)["journal"]["end"]  # noqa: E731
            await until(lambda r=recorded: r() == last + 1, "recorded", 40)  # type: ignore[misc]
    order = histories["ann"]
    assert [seq for seq, _, _ in order] == list(range(len(order)))
    assert histories["bob"] == order
    places = {data: seq for seq, _, data in order}
    assert len(places) == len(order)  # nothing twice
    assert {data: places.get(data) for data in told} == told


async def test_the_trace_of_the_users_shows_one_order(tmp_path: Path) -> None:
    """Also of one that comes later, and of one that was killed and wants one conference only."""
    folder = tmp_path / "traces"

    async with Net("multicast") as net:
        town = Town(net, tmp_path, {"profile": "demo", "members": ["a", "b", "c", "d"]})
        made: list[Tracing] = []

        async def start(name: str, **options: Any) -> Member:
            made.append(Tracing(folder, name))
            return (await town.start(name, tracer=made[-1], **options))[0]

        members = [await start(name) for name in "abc"]
        await town.open("a", "b", "c")
        for number in range(40):
            await members[1 + number % 2].group.broadcast(b"%d" % number, conference=number % 2)
        await delivered(members[1:], 40)
        await members[2].die()
        for number in range(40, 60):
            await members[1].group.broadcast(b"%d" % number, conference=number % 2)
        late, again = await start("d"), await start("c", conferences=[1])
        await town.open("c", "d")
        for number in range(60, 80):
            await late.group.broadcast(b"%d" % number, conference=number % 2)
        await until(lambda: again.data[-1:] == [b"79"], "the last one")
        assert [one.data for one in again.got if (one.seq or 0) >= 40] == [
            b"%d" % number for number in range(41, 80, 2)
        ]
        await delivered([late], 20)
        for tracing in made:
            tracing.close()
    checker = check_trace(merge(folder, tmp_path / "trace.parquet", group=FULL).path)
    assert checker.order == "total"
    assert checker.violations == []
    assert checker.committed == 80


async def test_after_all_nodes_were_killed_the_group_goes_on_with_what_is_recorded(
    tmp_path: Path,
) -> None:
    """I2: nothing is lost that was acknowledged as recorded."""
    async with Net("multicast") as net:
        table = {"profile": "separate", "members": ["r", "d", "p", "ann", "bob"]}
        town = Town(net, tmp_path, table | {"parameters": {"takeover_ms": 500}})
        names = table["members"]
        await town.start(*names)
        await town.open(*names)
        for i in range(20):
            await town.members["ann"].group.broadcast(b"%d" % i, durability="recorded")
        await delivered([town.members["bob"]], 20)
        for name in names:
            await town.members[name].die()
        before = town.members["bob"].order
        await town.start("r", "d", "p")
        await town.start("ann", missing="skip")
        await town.start("bob", since=20)
        ann, bob = town.members["ann"], town.members["bob"]
        receipt = await ann.group.broadcast(b"20")
        assert receipt.seq is not None
        # More may have been acknowledged than anybody has: none of that comes again, and who
        # goes on where its node was is told.
        await until(lambda: bob.error is not None, "it is told")
        assert isinstance(bob.error, roundelay.MissingMessages)
        assert (bob.error.first, bob.error.last) == (20, receipt.seq - 1)
        message = await anext(aiter(bob.group))
        assert (message.seq, message.data) == (receipt.seq, b"20")
        assert before == [(i, "ann", b"%d" % i) for i in range(20)]
        replay = bob.group.replay(since=0, missing="skip")
        assert [one.data async for one in replay] == [b"%d" % i for i in range(21)]


async def test_a_member_of_the_council_without_its_disk_is_taken_back(tmp_path: Path) -> None:
    """GR-27: it votes again when all others have told it what it may have promised; a recorder
    gets its records from another one."""
    async with Net("multicast") as net:
        names = ["r1", "r2", "d1", "d2", "p1", "p2", "ann"]
        times = {"alive_ms": 60, "takeover_ms": 400}
        town = Town(net, tmp_path, {"profile": "failsafe", "members": names, "parameters": times})
        await town.start(*names)
        await town.open(*names)
        ann = town.members["ann"]
        await ann.group.broadcast_many([b"%d" % i for i in range(3000)], durability="recorded")
        for victim in ("p1", "r1"):
            await town.members[victim].die()
            rmtree(tmp_path / victim)
            await town.start(victim)
            await until(lambda v=victim: town.status(v).get("votes"), f"{victim} votes")  # type: ignore[misc]
        last = (await ann.group.broadcast(b"the end")).seq
        assert last == 3000
        await until(lambda: town.status("p1")["journal"]["end"] == last + 1, "recorded again")
        assert town.status("p1")["journal"]["missing"] == []
        assert town.status("p1")["journal"]["begin"] == 0
        again = list(Reader(tmp_path / "p1" / "journals" / "grsb%3anews").read())
        assert b"".join(run.bundle.data for run in again) == b"".join(ann.data)


async def test_what_is_damaged_in_a_journal_is_fetched_from_another_recorder(
    tmp_path: Path,
) -> None:
    """And an application may begin in the middle of what was sent together."""
    async with Net("multicast") as net:
        names = ["r", "d", "p1", "p2", "ann"]
        table = {"profile": "separate", "members": names, "recorders": 2}
        town = Town(net, tmp_path, table | {"journal": {"segment_bytes": 4096}})
        await town.start(*names)
        await town.open(*names)
        ann = town.members["ann"]
        for i in range(40):
            await ann.group.broadcast_many([b"%d/%d " % (i, k) * 20 for k in range(5)])
        await ann.group.broadcast(b"the end", durability="recorded", recorders=2)
        await town.members["p1"].leave()
        folder = tmp_path / "p1" / "journals" / "grsb%3anews"
        first = sorted(folder.glob("*.rjs"))[0]
        damaged = bytearray(first.read_bytes())
        damaged[len(damaged) // 2] ^= 1
        first.write_bytes(damaged)
        await town.start("p1")
        await until(lambda: town.members["p1"].node.recorders.refetched, "fetched")
        await until(lambda: not town.status("p1")["journal"]["missing"], "whole again")
        await town.members["p2"].die()
        replayed = [one.data async for one in ann.group.replay(since=2)]
        assert replayed == ann.data[2:]


async def test_a_group_whose_council_was_wiped_begins_anew_and_its_users_follow(
    tmp_path: Path,
) -> None:
    """What a recorder had of the history before is put aside, and not mixed with the new one."""
    async with Net("multicast") as net:
        names = ["a", "b", "ann"]
        town = Town(net, tmp_path, {"profile": "demo", "members": names})
        for text in (b"before", b"after"):
            await town.start(*names)
            await town.open(*names)
            history = town.status("a")["history"]
            await until(lambda h=history: town.status("ann")["history"] == h, "known to ann")  # type: ignore[misc]
            ann = town.members["ann"]
            await until(lambda: town.status("ann").get("position") == 0, "ann is there")
            assert (await ann.group.broadcast(text, durability="recorded")).seq == 0
            await delivered([ann], 1)
            assert ann.data == [text]
            for name in names:
                await town.members[name].leave()
            for name in ("a", "b"):
                rmtree(tmp_path / name / "groups")
        journals = sorted((tmp_path / "a" / "journals").iterdir())
        assert [journal.name for journal in journals] == ["grsb%3anews", "grsb%3anews.1"]
        kept = [run.bundle.data for journal in journals for run in Reader(journal).read()]
        assert kept == [b"after", b"before"]


class Failing(Disk):
    """A disk that has died."""

    def sync(self, file: int) -> None:
        raise OSError(5, "Input/output error")


@pytest.mark.parametrize("fsync", ["always", "interval"])
async def test_a_disk_that_fails_stops_its_recorder_and_nobody_else(
    fsync: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It acknowledges nothing more; the others are given what it would have kept.

    With `interval` the table of senders is the first to be synced: that failed the whole group."""
    if fsync == "interval":
        monkeypatch.setattr("roundelay.node.roles.journal.SENDERS_EVERY", 0)

    async with Net("multicast") as net:
        names = ["a", "b", "c", "ann"]
        table = {
            "members": names, "retransmitters": ["a"], "acknowledgers": ["b"],
            "recorders": ["a", "c"], "journal": {"sync": fsync},
        }  # fmt: skip
        town = Town(net, tmp_path, table | {"parameters": {"da_buffer": 16, "overwrite_group": 4}})
        await town.start(*names)
        await town.open(*names)
        ann = town.members["ann"]
        await ann.group.broadcast(b"0", durability="recorded", recorders=2)
        journal = town.seat("a").journal
        assert journal is not None
        journal.journal.disk = Failing()
        await ann.group.broadcast(b"1", durability="recorded")
        await until(lambda: town.status("a")["journal"]["broken"], "it says so")
        assert town.status("a")["journal"]["durable"] == 1
        for i in range(2, 100):  # more than the acknowledger can keep
            await ann.group.broadcast(b"%d" % i)
        await ann.group.broadcast(b"100", durability="recorded")
        assert town.status("a")["state"] == "open"
        assert town.status("b")["suspected"] == ["a"]
        assert [message.seq for message in ann.got] == list(range(101))


def test_the_page_can_be_followed_to_the_letter(tmp_path: Path) -> None:
    """Three nodes, a listener, two messages, questions: as docs/grsb.md has them."""
    page = (Path(__file__).parents[2] / "docs" / "grsb.md").read_text(encoding="utf-8")
    part = page.partition("## Running it")[2].partition("### The file")[0]
    blocks = [block.partition("\n") for block in part.split("```")[1::2]]
    config = next(body for kind, _, body in blocks if kind == "toml")
    (tmp_path / "news.toml").write_text(config)
    lines = [line for kind, _, body in blocks if not kind for line in body.splitlines()]
    environment = os.environ | {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path / "x")}
    main = [sys.executable, "-c", "from roundelay.cli.main import main; main()"]
    medium = multicast()

    def begin(line: str) -> subprocess.Popen[str]:
        words = line.removesuffix("&").replace('"', "\0").split("\0")
        split = [part.split() if i % 2 == 0 else [part] for i, part in enumerate(words)]
        command = main + [word for part in split for word in part][1:]
        if "node" in command[3:4]:
            command += ["--multicast", medium]
        return subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env=environment, cwd=tmp_path
        )

    nodes = [begin(line) for line in lines if line.startswith("roundelay node")]
    assert len(nodes) == 3
    said: dict[str, str] = {}
    try:
        for node in nodes:
            assert node.stdout is not None
            assert node.stdout.readline().startswith("ready")
        rest = [line for line in lines if not line.startswith("roundelay node")]
        (listener,) = [begin(line) for line in rest if line.endswith("&")]
        for line in rest:
            if not line.endswith("&"):
                asking = begin(line)
                said[line.split()[1]] = asking.communicate(timeout=60)[0]
                assert asking.returncode == 0, line
        heard = [json.loads(line) for line in listener.communicate(timeout=60)[0].splitlines()]
    finally:
        for node in nodes:
            node.terminate()
            node.communicate()
    assert [(one["seq"], one["sender"], one["data"]) for one in heard] == [
        (0, "b", "hello"), (1, "b", "to conference 7, on disk"),
    ]  # fmt: skip
    assert "retransmitter, recorder" in said["members"]
    assert "to conference 7, on disk" in said["journal"]
    assert all(node.returncode == 0 for node in nodes)
