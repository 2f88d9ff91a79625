"""`wide` groups live: three networks of three nodes, cut off and healed, killed and started."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from roundelay.core.errors import ConfigError
from roundelay.core.wide.stable import GLOBAL
from roundelay.journal.journal import Journal
from roundelay.node.roles.group import RoleGroup
from roundelay.node.roles.role_file import read_file
from roundelay.node.roles.wide.file import parse
from roundelay.node.roles.wide.member import WideKept
from roundelay.node.storage.store import Store
from tests.node.live import Member, Net, check_total_order, delivered, until

NETWORKS = (("a1", "a2", "a3"), ("b1", "b2", "b3"), ("c1", "c2", "c3"))
NAMES = tuple(name for network in NETWORKS for name in network)
USERS = tuple(name for network in NETWORKS for name in network[1:])
FILE = "\n".join(f"[[networks]]\nmembers = {json.dumps(network)}" for network in NETWORKS)


class World:
    """Nine nodes in this process, each with a directory."""

    def __init__(self, net: Net, folder: Path, text: str = FILE) -> None:
        self.net = net
        self.folder = folder
        self.file = folder / "wide.toml"
        self.file.write_text(text)
        self.members: dict[str, Member] = {}

    async def start(self, *names: str) -> None:
        for name in names:
            self.members[name] = await self.net.join(
                name, "all", service="wide", config=self.file, dir=self.folder / name
            )
        await until(
            lambda: all(self.members[name].group.view.state == "open" for name in names),
            f"{names} open", 60,
        )  # fmt: skip

    def seat(self, name: str) -> RoleGroup:
        place = self.members[name].node.group_hosts["wide:all"]
        assert isinstance(place, RoleGroup)
        return place

    def of(self, *names: str) -> list[Member]:
        return [self.members[name] for name in names]


@pytest.mark.seconds(150)
@pytest.mark.parametrize("medium", ["switch", "multicast"])
async def test_three_networks_have_one_order(medium: str, tmp_path: Path) -> None:
    async with Net(medium) as net:
        world = World(net, tmp_path)
        await world.start(*NAMES)
        receipt = await world.members["c3"].group.broadcast(b"alone", durability="recorded")
        assert receipt.seq == 0
        for name in USERS:
            texts = [b"%d of %s" % (i, name.encode()) for i in range(20)]
            await world.members[name].group.post(texts)
        await delivered(world.of(*USERS), 20 * len(USERS) + 1, 60)
        check_total_order(world.of(*USERS))
        assert {len(one.got) for one in world.of(*USERS)} == {20 * len(USERS) + 1}
        status = world.seat("a1").status()
        assert status["roles"] == ["GCR", "LCR", "LPR"]
        assert status["network"] == 1
        shown: Any = status["global"]
        assert set(shown["networks"]) == {"1", "2", "3"}
        if medium == "multicast":  # each network has its own line
            lines = {world.seat(network[0]).status()["line_b"] for network in NETWORKS}
            assert len(lines) == 3


@pytest.mark.seconds(200)
async def test_a_network_that_was_cut_off_gets_everything_in_the_same_order(tmp_path: Path) -> None:
    async with Net("switch") as net:
        world = World(net, tmp_path)
        await world.start(*NAMES)
        await world.members["a3"].group.broadcast(b"before")
        await delivered(world.of(*USERS), 1, 60)
        net.switch.apply({"partition": [[*NETWORKS[0], *NETWORKS[1]], [*NETWORKS[2]]]})
        many = 400
        for name in ("a3", "b3"):
            texts = [b"%d of %s" % (i, name.encode()) for i in range(many // 2)]
            await world.members[name].group.broadcast_many(texts)
        near = world.of("a2", "a3", "b2", "b3")
        await delivered(near, many + 1, 60)
        far = world.of("c2", "c3")
        assert all(len(one.got) == 1 for one in far)
        await until(lambda: not _networks(world)["3"]["active"], "the network is given up", 30)
        state = "blocked: waiting for a1 (GCR, LCR, LPR)"  # the trunk is cut, and it says so
        assert world.members["a3"].group.view.state == "open"
        for name in NETWORKS[2]:
            seen = world.members[name].group
            await until(lambda g=seen: g.view.state == state, f"{name} says so")  # type: ignore[misc]
        assert state in world.seat("c3").trouble()
        net.switch.apply({"heal": True})
        await delivered(far, many + 1, 60)
        for one in world.of(*NETWORKS[2]):
            await until(lambda m=one: m.group.view.state == "open", "it goes on")  # type: ignore[misc]
        await world.members["c3"].group.broadcast(b"after")
        await delivered(world.of(*USERS), many + 2, 60)
        check_total_order(world.of(*USERS))
        await until(lambda: _networks(world)["3"]["active"], "the network is active", 30)


@pytest.mark.seconds(240)
async def test_nodes_behind_a_broadcaster_take_part(tmp_path: Path) -> None:
    text = """
[[networks]]
members = ["a1", "a2", "a3", "x", "y", "z"]
broadcaster = "a3"
edges = [["a3", "x"], ["x", "y"], ["y", "z"], ["x", "z"]]

[[networks]]
members = ["b1", "b2"]
"""

    async with Net("switch") as net:
        world = World(net, tmp_path, text)
        everybody = ("a1", "a2", "a3", "x", "y", "z", "b1", "b2")
        await world.start(*everybody)
        users = ("a2", "a3", "x", "y", "z", "b2")
        receipt = await world.members["z"].group.broadcast(b"from behind")
        assert receipt.seq == 0
        await world.members["b2"].group.broadcast_many([b"%d" % i for i in range(20)])
        await delivered(world.of(*users), 21, 60)
        check_total_order(world.of(*users))
        assert world.seat("y").status()["roles"] == ["node behind LB"]
        assert world.seat("a3").status()["roles"] == ["user", "LB"]
        # Off for a while: what it missed comes from its neighbours, or from the recorder.
        for name in ("y", "a3"):
            await world.members[name].die()
        await world.members["b2"].group.broadcast_many([b"off %d" % i for i in range(20)])
        await world.start("a3", "y")
        await delivered(world.of("a2", "x", "z", "b2"), 41, 60)
        expected = world.members["b2"].order
        await until(
            lambda: world.members["y"].order
            and world.members["y"].order == expected[-len(world.members["y"].order) :]
            and len(world.members["y"].order) >= 20,
            "the node is back", 60,
        )  # fmt: skip
        check_total_order(world.of("a2", "x", "y", "z", "b2"))


SPREAD = """
[[networks]]
members = ["a1", "a2", "x"]
broadcaster = "a1"
edges = [["a1", "x"]]

[[networks]]
members = ["b1", "b2"]

[global]
gcr = ["b1"]
gda = ["g"]
gpr = ["b1"]

[parameters]
alive_ms = 100
alive_timeout_ms = 500
takeover_ms = 500
attempts = 5
"""


@pytest.mark.seconds(120)
async def test_a_hierarchy_that_stands_still_names_who_is_missing(tmp_path: Path) -> None:
    """The GDA is dead: the GCR, which is there, cannot go on, and was taken for the missing one.

    Behind the broadcaster nothing was said at all.
    """
    text = SPREAD.replace('"b1", "b2"]', '"b1", "b2", "g"]')
    title = "g (GDA, user)"

    async with Net("switch") as net:
        world = World(net, tmp_path, text)
        everybody = ("a1", "a2", "x", "b1", "b2", "g")
        await world.start(*everybody)
        await world.members["x"].group.broadcast(b"0")
        await world.members["g"].die()
        for name in ("a1", "a2", "x", "b2"):
            seen = world.members[name].group
            await until(
                lambda g=seen: (
                    g.view.state.startswith("blocked: waiting for")  # type: ignore[misc]
                    and title in g.view.state
                ),
                f"{name} says so",
            )
            assert "g" in world.seat(name).status()["slowed_by"]  # type: ignore[operator]
            assert title in world.seat(name).trouble()
        await world.start("g")
        for name in everybody:
            seen = world.members[name].group
            await until(lambda g=seen: g.view.state == "open", f"{name} goes on")  # type: ignore[misc]
        await world.members["x"].group.broadcast(b"1")


FORGETS = (
    SPREAD.replace('gda = ["g"]', 'gda = ["b2"]')
    + """
[journal]
segment_bytes = 4096
keep_bytes = 8192
"""
)
"""Its GPR lets go of all but the last messages."""


async def _fall_behind(world: World, many: int) -> None:
    """One network is cut off, until the GPR has let go of the first messages that it lacks."""
    await world.start("a1", "a2", "x", "b1", "b2")
    world.net.switch.apply({"partition": [["a1", "a2", "x"], ["b1", "b2"]]})
    for i in range(many):
        await world.members["b2"].group.broadcast(b"%04d" % i * 100)
    journal: Any = world.seat("b1").persistence.journals[GLOBAL].journal
    await until(lambda: journal.begin > 0, "the GPR has let go of the beginning")
    world.net.switch.apply({"heal": True})


@pytest.mark.seconds(120)
async def test_a_network_that_nobody_can_help_any_more_says_so_and_stays_with_it(
    tmp_path: Path,
) -> None:
    """It said `broken` for a moment, then `open`, and its users `open` all the time."""
    # The GCR, too, has let go of it.
    few = "attempts = 5\nda_buffer = 8\nwindow = 8\noverwrite_group = 2\nhistory = 16"
    text = FORGETS.replace("attempts = 5", few)

    async with Net("switch") as net:
        world = World(net, tmp_path, text)
        await _fall_behind(world, 60)
        lcr, user = world.members["a1"].group, world.members["a2"].group
        await until(lambda: lcr.view.state.startswith("broken: no GPR has"), "the LCR says so")
        waits = "blocked: waiting for b1 (GCR, GPR, LCR, LPR)"
        await until(lambda: user.view.state == waits, "a user says so")
        for _ in range(30):
            await asyncio.sleep(0.05)
            assert lcr.view.state.startswith("broken: no GPR has")
            assert user.view.state == waits
        assert world.members["b2"].group.view.state == "open"
        got, whole = world.members["a2"].order, world.members["b2"].order
        assert got == whole[: len(got)] != whole  # not the end without the beginning


@pytest.mark.seconds(120)
async def test_what_the_gprs_have_let_go_comes_from_the_gcr(tmp_path: Path) -> None:
    """The network said `broken`, though all the while it was given what it lacked."""
    async with Net("switch") as net:
        world = World(net, tmp_path, FORGETS)
        await _fall_behind(world, 60)
        lcr, user = world.members["a1"].group, world.members["a2"]
        seen: list[str] = []

        def caught_up() -> bool:
            seen.append(lcr.view.state)
            return len(user.got) == 60

        await until(caught_up, "all of it", 60)
        await until(lambda: user.group.view.state == lcr.view.state == "open", "it goes on")
        await world.members["a2"].group.broadcast(b"after")
        await delivered(world.of("a2", "b2"), 61)
        assert not [state for state in seen if state.startswith("broken")]
        check_total_order(world.of("a2", "b2"))


def _networks(world: World) -> dict[str, Any]:
    shown: Any = world.seat("a1").status()["global"]
    networks: dict[str, Any] = shown["networks"]
    return networks


@pytest.mark.seconds(240)
async def test_nodes_that_are_killed_and_started_again_lose_nothing(tmp_path: Path) -> None:
    async with Net("switch") as net:
        world = World(net, tmp_path)
        await world.start(*NAMES)
        await world.members["b3"].group.broadcast_many([b"first %d" % i for i in range(30)])
        await delivered(world.of(*USERS), 30, 60)
        for name in ("c1", "c3", "a1"):  # LCR with LPR, a user, the GCR
            await world.members[name].die()
        await world.start("a1", "c1", "c3")
        await world.members["b3"].group.broadcast_many([b"second %d" % i for i in range(30)])
        await delivered(world.of("a2", "a3", "b2", "b3", "c2"), 60, 90)
        await until(
            lambda: [one for one in world.members["c3"].data if one.startswith(b"second")]
            == [b"second %d" % i for i in range(30)], "the user is back", 60,
        )  # fmt: skip
        check_total_order(world.of("a2", "a3", "b2", "b3", "c2"))
        # What was before is in the journal of its network.
        before = [
            message.data async for message in world.members["c3"].group.replay(since=0)
        ]  # fmt: skip
        assert before[:30] == [b"first %d" % i for i in range(30)]


@pytest.mark.seconds(120)
async def test_who_is_killed_is_told_nothing_twice_and_closes_each_journal_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I4: also the last batch, for which no later one has said that it was delivered."""
    text = """
[[networks]]
members = ["a1", "a2", "x"]
edges = [["a1", "x"]]

[[networks]]
members = ["b1", "b2"]
"""
    closed: list[Journal] = []
    close = Journal.close

    def counted(journal: Journal) -> None:
        closed.append(journal)
        close(journal)

    monkeypatch.setattr(Journal, "close", counted)

    async with Net("switch") as net:
        world = World(net, tmp_path, text)
        names = ("a1", "a2", "x", "b1", "b2")
        await world.start(*names)
        await world.members["a2"].group.broadcast(b"before")
        receipt = await world.members["x"].group.broadcast_unit([b"1", b"2", b"3"])
        assert receipt.seq == 3
        await delivered(world.of("a2", "x", "b2"), 4, 60)
        for one in world.of("a2", "x", "b2"):  # a unit is where its last part is
            assert [(got.seq, got.unit) for got in one.got[1:]] == [
                (3, "start"), (3, "middle"), (3, "end"),
            ]  # fmt: skip
        for name in ("x", "b2"):  # behind LB, and at a network
            await world.members[name].die()
        await world.start("x", "b2")
        await world.members["a2"].group.broadcast(b"after")
        await delivered(world.of("x", "b2"), 1, 60)
        assert [one.order for one in world.of("x", "b2")] == [[(4, "a2", b"after")]] * 2
        for name in names:
            await world.members[name].die()
    assert len(closed) >= 3  # of two networks, and of the global level
    assert len(set(map(id, closed))) == len(closed)


# -- files -----------------------------------------------------------------------------------


def test_a_file_gives_every_node_its_place(tmp_path: Path) -> None:
    path = tmp_path / "wide.toml"
    path.write_text(FILE)
    file = read_file(path, parse)
    assert file.members == NAMES
    assert file.titles[0] == ["GCR", "LCR", "LPR"]
    assert file.titles[1] == ["GPR", "LDA", "user"]
    assert file.titles[3] == ["GDA", "LCR", "LPR"]
    assert file.titles[8] == ["user"]
    assert file.atlas.topology.networks[2].users == (7, 8)
    assert file.constants.trunk_ns > 0
    named = parse(
        {
            "networks": [
                {"members": ["a", "b", "c"], "retransmitters": ["a", "b"], "acknowledgers": ["c"],
                 "recorders": ["b"], "users": ["c"], "line": "239.1.2.3:4000"},
                {"members": ["d", "e"]},
            ],
            "global": {"gcr": ["a", "d"], "gda": ["c"], "gpr": ["e"]},
            "parameters": {"trunk_ms": 5, "ack_mode": "all-active", "takeover_ms": 900},
        }
    )  # fmt: skip
    assert named.titles[3] == ["standby GCR", "LCR", "LPR"]
    assert named.titles[1] == ["standby LCR", "LPR"]
    assert named.lines == {1: "239.1.2.3:4000"}
    assert named.constants.ack_mode == "all-active"
    assert named.digest != file.digest


A, B = {"members": ["a", "b"]}, {"members": ["c", "d"]}


@pytest.mark.parametrize(
    ("table", "field"),
    [
        ({}, "networks"),
        ({"networks": [A]}, "networks"),
        ({"networks": [A, A]}, "members"),
        ({"networks": [A, {"members": ["c"]}]}, "networks 2: members"),
        ({"networks": [A, {"line": "x"}]}, "networks 2.members"),
        ({"networks": [A, B | {"line": "nowhere"}]}, "networks 2: line"),
        ({"networks": [A, B | {"odd": 1}]}, "networks 2.odd"),
        ({"networks": [A, B | {"recorders": ["a"]}]}, "networks 2: retransmitters"),
        ({"networks": [A, B], "global": {"gcr": ["x"]}}, "global.gcr"),
        ({"networks": [A, B], "global": {"gcr": ["a"], "gda": ["a"]}}, "gda"),
        ({"networks": [A, B], "parameters": {"delivery": "fast"}}, "parameters.delivery"),
        ({"networks": [A, B], "parameters": {"trunk_ms": "x"}}, "parameters.trunk_ms"),
        ({"networks": [A, B], "parameters": {"ack_mode": "x"}}, "parameters.ack_mode"),
        ({"networks": [A, B], "parameters": {"ready_max": 1.5}}, "parameters.ready_max"),
        ({"networks": [A, B], "odd": 1}, "odd"),
        ({"networks": [A, B | {"broadcaster": "c"}]}, "networks 2: broadcaster"),
        ({"networks": [A, B | {"edges": [["c", "x"]]}]}, "networks 2: edges"),
        ({"networks": [A, B | {"edges": [["d", "d"]]}]}, "networks 2: edges"),
        ({"networks": [A, B], "parameters": {"ls_repair": 1}}, "parameters.ls_repair"),
    ],
)
def test_a_file_that_makes_no_sense_is_refused_by_its_field(
    table: dict[str, Any], field: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(table)
    assert caught.value.field == field


def test_records_of_all_levels_come_back(tmp_path: Path) -> None:
    from roundelay.core.grsb.base import Reign
    from roundelay.core.grsb.stable import Accepted, Handled, Promised
    from roundelay.core.wide.stable import GLOBAL, LOCAL
    from roundelay.node.storage.store import Began, Born, Leveled

    store = Store(tmp_path / "g" / "wide.log", WideKept)
    store.stable = WideKept()
    records = [
        Born("h", ("a",), (b"u",), ("a", "b")), Began(7),
        Leveled.of(GLOBAL, Promised(9)), Leveled.of(GLOBAL, Accepted(Reign(9, 1, 2))),
        Leveled.of(LOCAL, Handled(40, 38, 3)),
    ]  # fmt: skip
    store.write(records, False)
    assert store.synced == 1
    for record in records:
        store.stable.apply(record)
    for _ in range(2):  # as written, and as replaced
        again = Store(tmp_path / "g" / "wide.log", WideKept).stable
        assert again.born == records[0]
        assert again.inc == 7
        assert (again.globe.promised, again.globe.accepted) == (9, Reign(9, 1, 2))
        assert again.local.handled == Handled(40, 38, 3)
        assert again.local.accepted is None
        store.replace(store.stable.records())
    store.close()
