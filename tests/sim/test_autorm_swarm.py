"""AutoRM under random faults, and that its checker would notice a broken rule."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from roundelay.cli.main import run as run_command
from roundelay.core.autorm.beamon import Beamon
from roundelay.core.autorm.packets import Acknowledgement, Data
from roundelay.core.autorm.reassembly import Inbound, Owed
from roundelay.core.errors import ConfigError
from roundelay.runs.swarm import SwarmParams, run_seed
from roundelay.sim.autorm_draft import KINDS
from roundelay.sim.autorm_driver import AutoRmDriver
from roundelay.sim.autorm_world import AutoRmWorld
from roundelay.sim.driver import Outcome, Setting, engines, run_plan
from roundelay.sim.plan import Plan
from roundelay.wire.beamon import BeamonCodec
from tests.sim.swarming import promises_kept

SEEDS = 60
PATIENCE = 60
"""Seeds within which a broken rule has to show."""


def outcome(plan: Plan, beamon_class: type[Beamon] | None = None) -> Outcome:
    return run_plan(plan, Setting(codec=BeamonCodec(), make_engine=engines(plan, beamon_class)))


@pytest.mark.parametrize("first", [0])  # `make seeds` goes on from there
def test_beamons_keep_their_promises_and_fall_silent_but_for_heartbeats(first):
    injected, committed = promises_kept("autorm", range(first, first + SEEDS // 2), outcome)
    assert committed > 40 * SEEDS // 2
    assert set(injected) <= set(KINDS)
    assert len(injected) > len(KINDS) - 4


def test_the_way_over_bytes_changes_nothing():
    for seed in range(6):
        plan = Plan.from_seed(seed, "autorm")
        ways = [outcome(structs.replace(plan, wire=wire)) for wire in (False, True)]
        assert ways[0] == ways[1]


def test_the_same_seed_is_the_same_run():
    plan = Plan.from_seed(7, "autorm")
    assert plan == Plan.from_seed(7, "autorm")
    assert plan == Plan.from_json(plan.to_json())
    assert outcome(plan) == outcome(plan)


# -- broken rules ----------------------------------------------------------------------------


class ForgetsTheDead(Beamon):
    """AR-14 without memory of those who left the table."""

    def _remove(self, uuid: bytes, now: int, verdict: str, kind: str) -> None:
        super()._remove(uuid, now, verdict, kind)
        self.inbound.done.pop(uuid, None)


class Careless(Inbound):
    __slots__ = ()

    def accept(self, packet: Data, now: int) -> bytes | str | None:
        """Only the last message is known again."""
        done = self.done.get(packet.source, {})
        if done.get(self.scope(packet.group)) != packet.seq:
            self.done.pop(packet.source, None)
        return super().accept(packet, now)


class DeliversOldMessages(Beamon):
    """AR-14: seq ≠ done instead of seq > done."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.inbound = Careless(self.config)


class Optimist(Inbound):
    __slots__ = ()

    def _answer(self, me: bytes, source: bytes, seq: int, owed: Owed) -> Acknowledgement | None:
        return Acknowledgement(me, source, seq, owed.count - 1, ())


class AcknowledgesWhatItLacks(Beamon):
    """AR-15: always complete."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.inbound = Optimist(self.config)


class TwoAtATime(Beamon):
    """AR-7 not observed: each group has its own turn, whatever was agreed."""

    def __init__(self, uuid: bytes, config: Any, *given: Any) -> None:
        super().__init__(uuid, structs.replace(config, serial_scope="group"), *given)


class AsksSomeoneElse(Beamon):
    """E 48 without being asked to."""

    def __init__(self, uuid: bytes, config: Any, *given: Any) -> None:
        super().__init__(uuid, structs.replace(config, someone_failover=True), *given)


class GivesUpQuietly(Beamon):
    """AR-10 without leaving the table."""

    def _next_round(self, transfer: Any, now: int) -> None:
        for uuid in list(transfer.targets):
            self._lose(transfer, uuid, now)


class NeverQuiet(Beamon):
    def _beat(self, now: int) -> None:
        super()._beat(now)
        for uuid in self.environment.nodes:
            self.out.sends.append(Acknowledgement(self.uuid, uuid, 1, 0, ()))


class DeliversTwice(Beamon):
    def _deliver(self, *given: Any) -> None:
        super()._deliver(*given)
        if given[2] % 7 == 0:
            super()._deliver(*given)


class ForgetsGroups(Beamon):
    """AR-13: delivers what is not joined."""

    def _on_data(self, packet: Data, now: int) -> None:
        self.groups.setdefault(packet.group, 1)
        super()._on_data(packet, now)


class MixesUpParts(Beamon):
    def _deliver(self, group: str, source: bytes, seq: int, data: bytes, *rest: Any) -> None:
        super()._deliver(group, source, seq, data[:500] + data[500:][::-1], *rest)


class Hoarder(Beamon):
    """I6: says that it keeps more than it may."""

    def usage(self) -> dict[str, int]:
        return {**super().usage(), "nodes": len(self.environment.nodes) * 10_000}


class Deaf(Beamon):
    """AR-1: does not take new nodes after a while."""

    def _on_heartbeat(self, packet: Any, node: Any, now: int) -> None:
        if self.hb_sent < 10**9 or node.reported:
            super()._on_heartbeat(packet, node, now)


@pytest.mark.parametrize(
    "mutant, rules",
    [
        (ForgetsTheDead, {"I4"}),
        (DeliversOldMessages, {"I1", "I4"}),
        (AcknowledgesWhatItLacks, {"I5", "I7"}),
        (TwoAtATime, {"I1"}),
        (AsksSomeoneElse, {"I4"}),
        (GivesUpQuietly, {"I5"}),
        (NeverQuiet, {"QUIET"}),
        (DeliversTwice, {"I4"}),
        (ForgetsGroups, {"I4"}),
        (MixesUpParts, {"I4"}),
        (Hoarder, {"I6"}),
        (Deaf, {"I7"}),
    ],
)
def test_a_broken_rule_shows_in_the_swarm(mutant, rules):
    for seed in range(PATIENCE):
        plan = Plan.from_seed(seed, "autorm")
        if mutant in (TwoAtATime, AsksSomeoneElse) and (
            plan.config["serial_scope"] == "group" or plan.config["someone_failover"]
        ):
            continue
        found = {breach.invariant for breach in outcome(plan, mutant).breaches}
        if found & rules:
            return
    pytest.fail(f"{PATIENCE} seeds have not shown {mutant.__name__}")


def test_a_run_that_does_not_settle_is_a_finding(monkeypatch):
    monkeypatch.setattr(AutoRmDriver, "strangers", lambda self: "somebody is missing")
    found = outcome(structs.replace(Plan.from_seed(0, "autorm"), liveness_ns=10**9))
    assert not found.settled
    assert "somebody is missing" in found.breaches[-1].detail


# -- the command -----------------------------------------------------------------------------


def test_the_swarm_command_knows_autorm(capsys):
    words = ["swarm", "--protocol", "autorm", "--seeds", "0:3", "--jobs", "1", "--json", "--wire"]
    assert run_command(words) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["seeds"] == 3
    assert found["committed"] > 100
    assert found["virtual_hours"] > 0
    assert found["faults"]
    assert found["violations"] == []


def test_a_finding_comes_with_the_line_that_runs_it_again(monkeypatch, capsys):
    genuine = AutoRmWorld.hand_over

    def twice(self: Any, site: Any, delivery: Any) -> None:
        genuine(self, site, delivery)
        genuine(self, site, delivery)

    monkeypatch.setattr(AutoRmWorld, "hand_over", twice)
    words = ["swarm", "--protocol", "autorm", "--seeds", "4:5", "--jobs", "1", "--json", "--wire"]
    assert run_command(words) == 1
    found = json.loads(capsys.readouterr().out)["violations"]
    assert {one["invariant"] for one in found} >= {"I4"}
    again = "roundelay swarm --seeds 4:5 --protocol autorm --wire"
    assert {one["rerun"] for one in found} == {again}


def test_a_seed_leaves_a_folder_with_its_trace(tmp_path: Path, capsys):
    out = tmp_path / "seed"
    words = ["swarm", "--protocol", "autorm", "--seeds", "2:3", "--out", str(out)]
    assert run_command(words) == 0
    names = {path.name for path in out.iterdir()}
    assert {"params.json", "results.json", "trace.parquet", "report.html"} <= names
    from roundelay.trace.reader import TraceFile

    trace = TraceFile(out / "trace.parquet")
    rows = list(trace.rows())
    kinds = Counter(row.kind for row in rows if row.event == "SEND")
    assert set(kinds) == {"HEARTBEAT", "DATA", "ACKNOWLEDGEMENT"}
    sizes = [row.size for row in rows if row.event == "SEND" and row.kind == "DATA"]
    assert max(size for size in sizes if size is not None) > 10
    assert any(row.event == "DELIVER" and row.messages for row in rows)


def test_the_simulator_of_fixed_groups_does_not_offer_autorm(capsys):
    assert run_command(["simulate", "autorm"]) == 2
    assert "autorm" in capsys.readouterr().err


def test_a_mutant_belongs_to_another_protocol():
    with pytest.raises(ConfigError, match="mutant"):
        SwarmParams(first=0, beyond=1, protocol="autorm", mutant="no-majority").settled()


def test_one_seed_is_run_as_the_swarm_runs_it():
    params = SwarmParams(first=3, beyond=4, protocol="autorm").settled()
    assert run_seed(3, params).committed == outcome(Plan.from_seed(3, "autorm")).committed
