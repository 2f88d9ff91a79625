"""The switch: who hears whom, what each fault does, and that its seed decides it."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from roundelay.core.errors import ConfigError, MalformedPdu
from roundelay.faultnet import switch as switch_module
from roundelay.faultnet.rules import SEEN, SEEN_B, Rules
from roundelay.faultnet.switch import NAMESAKES_MAX, Switch, read_rules
from roundelay.wire import codec, layouts
from roundelay.wire import switch_header as wire

PATIENCE_S = 20.0
CONFIRM = layouts.CM << 8 | 3
ACK = layouts.CM << 8 | 2


class Node:
    """A socket that speaks to the switch as a node does."""

    def __init__(self, name: str, switch: Switch) -> None:
        self.name = name
        self.switch = switch
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind(("127.0.0.1", 0))
        self.socket.setblocking(False)
        self.address = self.socket.getsockname()

    def raw(self, data: bytes) -> None:
        self.socket.sendto(data, self.switch.address)

    def say(self, data: bytes, hint: int = wire.UNKNOWN) -> None:
        self.raw(wire.multicast(data, hint))

    def tell(self, other: Node, data: bytes, hint: int = wire.UNKNOWN) -> None:
        self.raw(wire.unicast(data, other.address, hint))

    async def hear(self) -> tuple[int, tuple[str, int], bytes]:
        loop = asyncio.get_running_loop()
        return wire.arrived(await asyncio.wait_for(loop.sock_recv(self.socket, 65536), PATIENCE_S))

    async def hear_data(self, count: int) -> list[bytes]:
        return [(await self.hear())[2] for _ in range(count)]

    def waiting(self) -> list[bytes]:
        """What has come so far."""
        found = []
        while True:
            try:
                found.append(wire.arrived(self.socket.recv(65536))[2])
            except BlockingIOError:
                return found

    async def register(self) -> None:
        self.raw(wire.hello(self.name))
        kind, address, rest = await self.hear()
        assert (kind, address, rest) == (wire.HELLO, self.address, b"")


async def until(condition: Callable[[], object]) -> None:
    """Wait for `condition`."""
    deadline = asyncio.get_running_loop().time() + PATIENCE_S
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, "waited too long"
        await asyncio.sleep(0.005)


def network(names: str, test: Callable[..., Awaitable[None]], **options: Any) -> None:
    """Run `test(switch, *nodes)` with a node for each letter of `names`."""

    async def main() -> None:
        switch = Switch(**options)
        await switch.start()
        nodes = [Node(name, switch) for name in names]
        try:
            for node in nodes:
                await node.register()
            await test(switch, *nodes)
        finally:
            await switch.close()
            for node in nodes:
                node.socket.close()

    asyncio.run(main())


async def settled(switch: Switch, received: int) -> None:
    """So many datagrams have come, and nothing is held back any more."""
    await until(lambda: switch.received >= received and not switch.stats()["held"])


# -- who hears whom ------------------------------------------------------------------------------


def test_a_multicast_reaches_everyone_but_its_sender() -> None:
    async def test(switch: Switch, a: Node, b: Node, c: Node) -> None:
        a.say(b"hello")
        assert await b.hear() == (wire.MULTICAST, a.address, b"hello")
        assert await c.hear() == (wire.MULTICAST, a.address, b"hello")
        assert a.waiting() == []

    network("abc", test)


def test_a_unicast_reaches_its_destination_only() -> None:
    async def test(switch: Switch, a: Node, b: Node, c: Node) -> None:
        a.tell(b, b"psst")
        assert await b.hear() == (wire.UNICAST, a.address, b"psst")
        a.say(b"all")
        assert (await c.hear())[2] == b"all"

    network("abc", test)


def test_a_large_datagram_crosses_whole() -> None:
    async def test(switch: Switch, a: Node, b: Node) -> None:
        data = bytes(range(256)) * 255
        a.say(data)
        assert (await b.hear())[2] == data
        assert len(data) <= wire.DATAGRAM_MAX

    network("ab", test)


def test_a_node_that_comes_back_elsewhere_takes_its_name_with_it() -> None:
    async def test(switch: Switch, a: Node, b: Node) -> None:
        again = Node("b", switch)
        await again.register()
        a.say(b"hi")
        assert (await again.hear())[2] == b"hi"
        switch._by_address[b.address].heard -= wire.FORGOTTEN_AFTER_S
        await until(lambda: len(switch._by_address) == 2)
        b.waiting()
        a.tell(b, b"to the old place")
        await until(lambda: switch.drops.get("unknown destination") == 1)
        assert b.waiting() == []
        assert set(switch.ports) == {"a", "b"}
        assert switch.ports["b"].address == again.address
        again.socket.close()

    network("ab", test)


def test_two_nodes_of_one_name_both_hear_and_are_heard() -> None:
    """As on a real network, where nobody gives names away."""

    async def test(switch: Switch, a: Node, b: Node) -> None:
        twin = Node("b", switch)
        await twin.register()
        await b.register()  # it says hello once a second: that takes nothing from the other
        a.say(b"to both")
        assert (await b.hear())[2] == (await twin.hear())[2] == b"to both"
        b.say(b"from one")
        assert (await a.hear())[2] == (await twin.hear())[2] == b"from one"
        twin.say(b"from the other")
        assert (await a.hear())[2] == (await b.hear())[2] == b"from the other"
        switch.apply({"partition": [["a"], ["b"]]})  # a rule for the name is one for both
        a.say(b"nobody hears")
        await until(lambda: switch.drops.get("partition") == 2)
        more = [Node("b", switch) for _ in range(12)]
        for one in more:
            await one.register()
        assert len(switch._by_address) == 1 + NAMESAKES_MAX  # a, and so many of b
        for one in (twin, *more):
            one.socket.close()

    network("ab", test)


def test_a_silent_port_is_forgotten_and_a_talking_one_is_not() -> None:
    async def test(switch: Switch, a: Node, b: Node) -> None:
        for port in switch.ports.values():
            port.heard -= wire.FORGOTTEN_AFTER_S - 1
        a.say(b"still here")
        await b.hear()
        switch.ports["b"].heard -= 1
        await until(lambda: set(switch.ports) == {"a"})
        await b.register()
        a.say(b"welcome back")
        assert (await b.hear())[2] == b"welcome back"

    network("ab", test)


@pytest.mark.parametrize(
    "data, reason",
    [
        (b"", "short"),
        (b"\x7e\x01\0\0\0\0\0\0\0", "short"),
        (b"\x7f" + bytes(20), "head"),
        (b"\x7e\x05" + bytes(20), "head"),
        (b"\x7e\x00" + bytes(8), "name"),
        (b"\x7e\x00" + bytes(8) + b"\xff\xfe", "name"),
        (wire.hello("x" * 65), "name"),
        (wire.hello("a\nb"), "name"),
        (wire.multicast(b"who am I"), "not registered"),
        (wire.unicast(b"", ("10.9.8.7", 1)), "not registered"),
    ],
)
def test_bad_input_is_counted_and_changes_nothing(data: bytes, reason: str) -> None:
    async def test(switch: Switch, a: Node) -> None:
        stranger = Node("?", switch)
        stranger.raw(data)
        await until(lambda: switch.drops)
        assert switch.drops == {reason: 1}
        assert set(switch.ports) == {"a"}
        assert a.waiting() == stranger.waiting() == []
        stranger.socket.close()

    network("a", test)


def test_there_is_an_end_to_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(switch_module, "PORTS_MAX", 2)

    async def test(switch: Switch, a: Node, b: Node) -> None:
        third = Node("c", switch)
        third.raw(wire.hello("c"))
        await until(lambda: switch.drops.get("too many ports"))
        await a.register()
        third.socket.close()

    network("ab", test)


def test_what_came_from_the_switch_is_parsed_or_refused() -> None:
    good = wire.forwarded(wire.MULTICAST, ("127.0.0.1", 5))
    for bad in (b"", good[:7], b"\0" + good[1:], good[:1] + b"\x05" + good[2:]):
        with pytest.raises(MalformedPdu):
            wire.arrived(bad)


def test_a_hint_is_made_from_what_is_not_sealed() -> None:
    pdu = layouts.BY_TYPE[CONFIRM].pdu((1, 0), 3, 1, 4)
    data = codec.encode(pdu, sender=1, group_id=7)
    assert wire.KIND_NAMES[wire.hint_of(data)] == ("CONFIRM",)
    assert wire.KIND_NAMES[wire.hint_of(b"\x01" + bytes(19))] == ("HEARTBEAT",)
    assert wire.hint_of(b"") == wire.hint_of(b"\x10\x01") == wire.hint_of(b"zzzz") == wire.UNKNOWN


# -- faults --------------------------------------------------------------------------------------


def test_each_receiver_loses_its_own_share() -> None:
    async def test(switch: Switch, a: Node, b: Node, c: Node) -> None:
        heard: dict[str, list[bytes]] = {"b": [], "c": []}
        for i in range(1000):
            a.say(b"%d" % i)
            if i % 50 == 49:
                await settled(switch, 3 + i)
                for node in (b, c):
                    heard[node.name] += node.waiting()
        await until(lambda: switch.received == 1003)
        for node in (b, c):
            heard[node.name] += node.waiting()
            assert 650 < len(heard[node.name]) < 750
        assert heard["b"] != heard["c"]
        assert switch.drops["loss"] == 2000 - len(heard["b"]) - len(heard["c"])
        assert switch.drops["loss"] == switch.rules.faults["loss"]

    network("abc", test, seed=3, rules=[{"loss": 0.3}])


def fates(rules: Rules, pairs: str, count: int = 300) -> dict[str, list[Any]]:
    """What happens to copies on the lanes `pairs` ("ab cd"), taken in turns."""
    found: dict[str, list[Any]] = {pair: [] for pair in pairs.split()}
    for ref in range(count):
        for pair, list_ in found.items():
            lane = rules.lane(*pair)
            if lane.carry is not None:
                list_.append(lane.carry(ref, lane.src, lane.dst, SEEN[ACK], ref))
    return found


MANY = {"loss": 0.1, "burst": 0.02, "duplicate": 0.1, "delay_ms": [1, 9], "corrupt": 0.1,
        "reorder": 0.1, "truncate": 0.1, "replay": {"rate": 0.1}}  # fmt: skip


def test_the_seed_decides_and_other_traffic_does_not_matter() -> None:
    def run(seed: int, pairs: str) -> list[Any]:
        rules = Rules(seed)
        rules.apply(MANY, 0)
        return fates(rules, pairs)["ab"]

    assert run(1, "ab") == run(1, "ba cb ab ac bc")
    assert run(1, "ab") != run(2, "ab")


def test_a_stream_goes_on_where_it_was_when_other_rules_change() -> None:
    plain, changed = Rules(1), Rules(1)
    for rules in (plain, changed):
        rules.apply({"loss": 0.5}, 0)
    changed.lane("a", "b")
    expected = fates(plain, "ab", 200)["ab"]
    got = fates(changed, "ab", 100)["ab"]
    changed.apply({"loss": 0.2, "to": "c"}, 0)
    changed.apply({"cut": ["b", "c"]}, 0)
    assert got + fates(changed, "ab", 100)["ab"] == expected


def test_rules_strike_where_they_say() -> None:
    rules = Rules()
    rules.apply({"loss": 0.5, "from": "a", "to": ["b", "c"], "kind": "NEW_TL"}, 0)
    assert rules.lane("a", "b").carry is not None
    assert rules.lane("b", "a").carry is None
    assert rules.lane("a", "d").carry is None
    assert set(fates(rules, "ab")["ab"]) == {None}  # ACKs are none of its business
    rules.apply({"loss": 0.5, "from": "a", "to": "b", "kind": "ack"}, 0)
    assert set(fates(rules, "ab")["ab"]) == {None, "loss"}
    rules.apply({"loss": 0, "from": "a", "to": "b", "kind": "ACK"}, 0)
    assert set(fates(rules, "ab")["ab"]) == {None}
    rules.apply({"clear": True}, 0)
    assert rules.lane("a", "b").carry is None


def test_a_cluster_kind_goes_by_its_short_and_its_long_name() -> None:
    rules = Rules()
    rules.apply({"drop": {"kind": "PO_DT"}}, 0)
    rules.apply({"drop": {"kind": "DT", "nth": 2}}, 0)
    only, both = rules.episodes
    to_dt, po_dt = SEEN[layouts.TO << 8 | 1], SEEN[layouts.PO << 8 | 1]
    assert only.carry(0, 0, 1, to_dt, 1) is None
    assert only.carry(0, 0, 1, po_dt, 2) == "targeted"
    assert both.carry(0, 0, 1, to_dt, 1) is None
    assert both.carry(0, 0, 1, po_dt, 2) == "targeted"


def test_a_line_can_be_cut_or_made_lossy_by_itself() -> None:
    bcast = layouts.GRSB << 8 | 3
    on_a, on_b = SEEN[bcast], SEEN_B[bcast]
    rules = Rules(1)
    lane = rules.lane("a", "b")
    rules.apply({"loss": 0.5, "line": "b", "kind": "BCAST"}, 0)
    assert lane.carry is not None
    assert {lane.carry(0, lane.src, lane.dst, on_a, ref) for ref in range(50)} == {None}
    assert {lane.carry(0, lane.src, lane.dst, on_b, ref) for ref in range(50)} == {None, "loss"}
    assert {lane.carry(0, lane.src, lane.dst, SEEN_B[wire.UNKNOWN], ref) for ref in range(50)} == {
        None
    }
    rules.apply({"loss": 0, "line": "b", "kind": "BCAST"}, 0)
    assert lane.carry is None
    rules.apply({"cut_line": "b"}, 0)
    (cut,) = rules.episodes
    assert cut.carry(0, 0, 1, on_b, 1) == "line cut"
    assert cut.carry(0, 0, 1, on_a, 1) is None
    rules.apply({"heal": True}, 0)
    assert rules.episodes == []
    for rule in ({"cut_line": "c"}, {"loss": 0.1, "line": 2}):
        with pytest.raises(ConfigError, match="a or b"):
            rules.apply(rule, 0)


def test_duplicates_come_and_damage_spares_the_head() -> None:
    async def test(switch: Switch, a: Node, b: Node) -> None:
        for _ in range(40):
            a.say(bytes(50))
        got = [await b.hear() for _ in range(40)]
        await settled(switch, 42)
        got += [(wire.MULTICAST, a.address, data) for data in b.waiting()]
        assert len(got) == 40 + switch.rules.faults["duplicate"]
        assert switch.rules.faults["duplicate"] > 20
        assert {(kind, source) for kind, source, _ in got} == {(wire.MULTICAST, a.address)}
        flipped = [data for _, _, data in got if len(data) == 50 and any(data)]
        short = [data for _, _, data in got if len(data) < 50]
        assert flipped
        assert short

    rules = [{"duplicate": 0.9, "corrupt": 0.5}, {"truncate": 0.5}]
    network("ab", test, rules=rules, seed=5)


def test_delayed_copies_stay_in_order_and_reordered_ones_do_not() -> None:
    async def test(switch: Switch, a: Node, b: Node) -> None:
        messages = [b"%d" % i for i in range(60)]
        for data in messages:
            a.say(data)
        assert await b.hear_data(60) == messages
        switch.apply({"delay_ms": 0})
        a.say(b"undelayed")
        assert await b.hear_data(1) == [b"undelayed"]
        switch.apply({"reorder": {"rate": 0.5, "within_ms": 30}})
        for data in messages:
            a.say(data)
        got = await b.hear_data(60)
        assert got != messages
        assert sorted(got) == sorted(messages)

    network("ab", test, rules=[{"delay_ms": [0, 20]}])


def test_the_third_confirmation_to_b_is_lost_though_it_is_sealed() -> None:
    async def test(switch: Switch, a: Node, b: Node, c: Node) -> None:
        switch.apply({"drop": {"kind": "CONFIRM", "nth": 3, "to": "b"}})
        sent = []
        for i in range(5):
            a.say(b"sealed ack %d" % i, ACK)
            a.say(b"sealed confirm %d" % i, CONFIRM)
            sent += [b"sealed ack %d" % i, b"sealed confirm %d" % i]
        assert await c.hear_data(10) == sent
        assert await b.hear_data(9) == [data for data in sent if data != b"sealed confirm 2"]
        assert switch.drops == {"targeted": 1}
        assert switch.stats()["kinds"] == {"ACK": 5, "CONFIRM": 5}

    network("abc", test)


def test_a_multicast_of_a_kind_is_lost_for_all_and_counts_once() -> None:
    async def test(switch: Switch, a: Node, b: Node, c: Node) -> None:
        switch.apply({"drop": {"kind": "CONFIRM", "nth": 2, "many": 2}})
        for i in range(5):
            a.say(b"%d" % i, CONFIRM)
        for node in (b, c):
            assert await node.hear_data(3) == [b"0", b"3", b"4"]
        assert switch.rules.faults == {"target:confirm": 2}

    network("abc", test)


def who_hears(rules: Rules, time: int = 0, names: str = "abc") -> set[str]:
    """The pairs of nodes whose copies get through."""
    open_ = set()
    for a in names:
        for b in names.replace(a, ""):
            lane = rules.lane(a, b)
            carried = [ep.carry(time, lane.src, lane.dst, SEEN[ACK], 1) for ep in rules.episodes]
            if not any(carried):
                open_.add(a + b)
    return open_


ALL = {"ab", "ac", "ba", "bc", "ca", "cb"}


def test_partitions_cuts_and_splits() -> None:
    rules = Rules()
    assert who_hears(rules) == ALL
    rules.apply({"partition": [["a", "b"], ["c"]]}, 0)
    assert who_hears(rules) == {"ab", "ba"}
    rules.apply({"heal": True}, 0)
    assert who_hears(rules) == ALL
    rules.apply({"cut": ["a", "b"]}, 0)
    assert who_hears(rules) == ALL - {"ab"}
    rules.apply({"split": ["b", "c"]}, 0)
    assert who_hears(rules) == ALL - {"ab", "bc", "cb"}
    rules.apply({"heal": True, "cut": ["c", "a"]}, 0)
    assert who_hears(rules) == ALL - {"ca"}
    assert rules.faults == {
        "partition:symmetric": 1, "partition:one-way": 2, "partition:non-transitive": 1,
    }  # fmt: skip


def test_a_partition_flaps() -> None:
    rules = Rules()
    rules.apply({"partition": [["a"], ["b", "c"]], "on_ms": 10, "off_ms": 5}, 0)
    ms = 1_000_000
    assert [who_hears(rules, t * ms) == ALL for t in (0, 9, 10, 14, 15)] == [
        False, False, True, True, False,
    ]  # fmt: skip


def test_a_cut_is_one_way_on_the_wire_and_heals() -> None:
    async def test(switch: Switch, a: Node, b: Node) -> None:
        switch.apply({"cut": ["a", "b"]})
        a.say(b"lost")
        await until(lambda: switch.drops == {"partition": 1})
        b.say(b"heard")
        assert await a.hear_data(1) == [b"heard"]
        switch.apply({"heal": True})
        a.say(b"at last")
        assert await b.hear_data(1) == [b"at last"]

    network("ab", test)


def test_a_clogged_pair_gets_everything_in_the_end_in_order() -> None:
    async def test(switch: Switch, a: Node, b: Node, c: Node) -> None:
        switch.apply({"clog": {"from": "a", "to": "b", "ms": 400}})
        messages = [b"%d" % i for i in range(50)]
        for data in messages:
            a.say(data)
        assert await c.hear_data(50) == messages
        early = b.waiting()
        assert messages[: len(early)] == early  # all of them, only if the machine was very slow
        assert await b.hear_data(50 - len(early)) == messages[len(early) :]

    network("abc", test)


def test_the_queue_of_held_copies_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(switch_module, "HELD_MAX", 10)

    async def test(switch: Switch, a: Node, b: Node) -> None:
        for i in range(15):
            a.say(b"%d" % i)
        await until(lambda: switch.received == 17)
        assert switch.stats()["held"] == 10
        assert switch.drops == {"queue full": 5}

    network("ab", test, rules=[{"delay_ms": 60_000}])


def test_a_rule_can_wait() -> None:
    async def test(switch: Switch, a: Node, b: Node) -> None:
        assert switch.rules.in_force()["episodes"] == []
        await until(lambda: switch.rules.in_force()["episodes"])
        a.say(b"lost")
        await until(lambda: switch.drops == {"partition": 1})

    network("ab", test, rules=[{"after_s": 0.05, "partition": [["a"], ["b"]]}])


# -- bad rules, control ----------------------------------------------------------------------------

BAD_RULES = [
    ({}, "rule"),
    ({"los": 0.1}, "los"),
    ({"loss": 1.0}, "loss"),
    ({"loss": -0.1}, "loss"),
    ({"loss": "much"}, "loss"),
    ({"loss": True}, "loss"),
    ({"from": "a"}, "fault"),
    ({"loss": 0.1, "from": ""}, "from"),
    ({"loss": 0.1, "to": [1]}, "to"),
    ({"loss": 0.1, "kind": "CONFIRMATION"}, "kind"),
    ({"burst": {"most": 3}}, "burst"),
    ({"burst": {"start": 0.1, "most": 0}}, "most"),
    ({"duplicate": {"rate": 0.1, "often": 1}}, "duplicate"),
    ({"replay": {"rate": 0.1, "least_ms": 9, "most_ms": 1}}, "most_ns"),
    ({"delay_ms": [5, 1]}, "delay_ms"),
    ({"delay_ms": [1, 2, 3]}, "delay_ms"),
    ({"delay_ms": 1e12}, "delay_ms"),
    ({"partition": [["a"]]}, "partition"),
    ({"partition": [["a"], ["a", "b"]]}, "partition"),
    ({"partition": [["a"], []]}, "partition"),
    ({"partition": "a"}, "partition"),
    ({"partition": [["a"], ["b"]], "on_ms": 5}, "on_ms"),
    ({"partition": [["a"], ["b"]], "kind": "ACK"}, "kind"),
    ({"cut": ["a"]}, "cut"),
    ({"cut": ["a", "a"]}, "cut"),
    ({"split": {"a": "b"}}, "split"),
    ({"clog": {"from": "a", "to": "b"}}, "clog"),
    ({"clog": {"from": "a", "to": "b", "ms": -1}}, "clog.ms"),
    ({"drop": {}}, "drop"),
    ({"drop": {"kind": "ACK", "nth": 0}}, "drop.nth"),
    ({"drop": {"kind": "ACK", "nth": 1.5}}, "drop.nth"),
    ({"drop": {"kind": ["ACK", "B"]}}, "drop.kind"),
    ({"heal": 1}, "heal"),
    ({"loss": 0.1, "after_s": -1}, "after_s"),
    ({"los": 0.1, "after_s": 1}, "los"),
]


@pytest.mark.parametrize("rule, field", BAD_RULES)
def test_a_bad_rule_is_refused_in_one_line_and_changes_nothing(
    rule: dict[str, Any], field: str
) -> None:
    switch = Switch(rules=[])
    switch.apply({"loss": 0.2, "cut": ["a", "b"]})
    before = switch.rules.in_force()
    with pytest.raises(ConfigError) as error:
        switch.apply(rule)
    assert field in str(error.value)
    assert "\n" not in str(error.value)
    assert switch.rules.in_force() == before
    with pytest.raises(ConfigError):
        Switch(rules=[rule])


def test_there_is_an_end_to_rules() -> None:
    rules = Rules()
    for _ in range(256):
        rules.apply({"cut": ["a", "b"]}, 0)
    with pytest.raises(ConfigError, match="at most"):
        rules.apply({"cut": ["a", "b"]}, 0)
    rules.apply({"heal": True}, 0)
    for _ in range(1000):  # those that are over make room
        rules.apply({"clog": {"from": "a", "to": "b", "ms": 0}}, 1)
    for i in range(256):
        rules.apply({"loss": 0.1, "to": f"n{i}"}, 0)
    with pytest.raises(ConfigError, match="at most"):
        rules.apply({"loss": 0.1, "to": "n"}, 0)


@pytest.mark.parametrize("where", ["127.0.0.1:0", "unix"])
def test_the_control_socket_answers_every_line(where: str, tmp_path: Path) -> None:
    control = f"unix:{tmp_path / 'control'}" if where == "unix" else where

    async def test(switch: Switch, a: Node, b: Node) -> None:
        assert switch.control is not None
        if where == "unix":
            reader, writer = await asyncio.open_unix_connection(tmp_path / "control")
        else:
            host, port = switch.control.split(":")
            reader, writer = await asyncio.open_connection(host, int(port))

        async def ask(line: str) -> dict[str, Any]:
            writer.write(line.encode() + b"\n")
            found = await asyncio.wait_for(reader.readline(), PATIENCE_S)
            answer: dict[str, Any] = json.loads(found)
            return answer

        assert await ask('{"partition": [["a"], ["b"]], "loss": 0.25}') == {"ok": True}
        in_force = {"settings": {"loss": [0.25]}, "episodes": ["partition:symmetric"]}
        assert await ask('{"rules": true}') == {"ok": True, **in_force, "planned": 0}
        for bad in ('{"loss": 2}', "[1]", "nonsense", '{"stats": false}', "7", '{"a": "\\ud800"}'):
            assert list(await ask(bad)) == ["error"], bad
        assert switch.rules.in_force() == in_force
        stats = await ask('{"stats": true}')
        assert stats["ok"] is True
        assert set(stats["ports"]) == {"a", "b"}
        assert await ask('{"heal": true}') == {"ok": True}
        writer.write(b"x" * 70_000 + b"\n")
        assert b"error" in await asyncio.wait_for(reader.readline(), PATIENCE_S)
        assert await asyncio.wait_for(reader.read(), PATIENCE_S) == b""
        writer.close()

    network("ab", test, control=control)
    assert list(tmp_path.iterdir()) == []


def test_bad_addresses_and_files_are_refused_in_one_line(tmp_path: Path) -> None:
    for address in ("", "9000", "127.0.0.1:", "127.0.0.1:99999", "no.such.host.invalid:1"):
        with pytest.raises(ConfigError, match="listen"):
            Switch(address)
    with pytest.raises(ConfigError, match="control"):
        Switch(control="nowhere")
    (tmp_path / "rules.json").write_text("[1]")
    (tmp_path / "broken.json").write_text("[")
    for name in ("rules.json", "broken.json", "missing.json"):
        with pytest.raises(ConfigError, match="rules"):
            read_rules(tmp_path / name)
    (tmp_path / "rules.json").write_text('[{"loss": 0.1}, {"heal": true}]')
    assert read_rules(tmp_path / "rules.json") == [{"loss": 0.1}, {"heal": True}]


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(main)


def test_a_port_in_use_is_a_clear_error_and_leaves_nothing_open(tmp_path: Path) -> None:
    async def main() -> None:
        first = Switch()
        await first.start()
        taken = "{}:{}".format(*first.address)
        with pytest.raises(ConfigError, match="in use"):
            await Switch(taken).start()
        second = Switch(control=f"unix:{tmp_path / 'no' / 'such' / 'folder'}")
        with pytest.raises(ConfigError, match="control"):
            await second.start()
        await second.close()
        await first.close()
        await first.close()
        third = Switch(taken)  # the address is free again
        await third.start()
        await third.close()

    run(main())


# -- the command -----------------------------------------------------------------------------------


def start(*args: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [Path(sys.executable).with_name("roundelay"), "switch", *args],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def test_the_command_serves_until_sigterm_and_prints_what_it_counted() -> None:
    process = start("--listen", "127.0.0.1:0", "--seed", "4", "--loss", "0.1", "--burst", "0.01:5",
                    "--delay-ms", "1:2", "--control", "127.0.0.1:0", "--json")  # fmt: skip
    assert process.stdout is not None
    ready = process.stdout.readline().split()
    assert ready[0] == "ready"
    where = dict(word.split("=") for word in ready[1:])
    host, port = where["switch"].split(":")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as node:
        node.settimeout(PATIENCE_S)
        node.sendto(wire.hello("a"), (host, int(port)))
        assert wire.arrived(node.recv(100))[0] == wire.HELLO
    host, port = where["control"].split(":")
    with socket.create_connection((host, int(port)), PATIENCE_S) as control:
        control.sendall(b'{"rules": true}\n')
        answer = json.loads(control.makefile().readline())
        assert answer["settings"] == {"loss": [0.1], "burst": [0.01, 5], "delay_ms": [1.0, 2.0]}
        process.send_signal(signal.SIGTERM)  # with the connection open
        out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err
    stats = json.loads(out)
    assert stats["seed"] == 4
    assert stats["received"] == 1
    assert list(stats["ports"]) == ["a"]


@pytest.mark.parametrize(
    "args, word",
    [
        (["--listen", "here"], "listen"),
        (["--listen", "127.0.0.1:0", "--loss", "1"], "loss"),
        (["--listen", "127.0.0.1:0", "--delay-ms", "fast"], "delay_ms"),
        (["--listen", "127.0.0.1:0", "--burst", "a:b"], "burst"),
        (["--listen", "127.0.0.1:0", "--rules", "/no/such/file"], "rules"),
        (["--listen", "127.0.0.1:0", "--control", "x"], "control"),
    ],
)
def test_the_command_refuses_bad_input_in_one_line(
    args: list[str], word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from roundelay.cli.main import run as run_command

    assert run_command(["switch", *args]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert word in printed.err
