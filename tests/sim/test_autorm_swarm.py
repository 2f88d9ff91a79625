"""AutoRM under random faults."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import structs

from roundelay.cli.main import run as run_command
from roundelay.core.errors import ConfigError
from roundelay.runs.swarm import SwarmParams, run_seed
from roundelay.sim.families.autorm import KINDS, AutoRmDriver
from roundelay.sim.kernel.world import World
from roundelay.sim.swarm.plan import Plan
from tests.sim.swarming import judged, promises_kept

SEEDS = 60


@pytest.mark.parametrize("first", [0])  # `make seeds` goes on from there
def test_beamons_keep_their_promises_and_fall_silent_but_for_heartbeats(first: int) -> None:
    injected, committed = promises_kept("autorm", range(first, first + SEEDS // 2))
    assert committed > 40 * SEEDS // 2
    assert set(injected) <= set(KINDS)
    assert len(injected) > len(KINDS) - 4


def test_the_way_over_bytes_changes_nothing() -> None:
    for seed in range(6):
        plan = Plan.from_seed(seed, "autorm")
        ways = [judged(structs.replace(plan, wire=wire)) for wire in (False, True)]
        assert ways[0] == ways[1]


def test_the_same_seed_is_the_same_run() -> None:
    plan = Plan.from_seed(7, "autorm")
    assert plan == Plan.from_seed(7, "autorm")
    assert plan == msgspec.json.decode(plan.to_json(), type=Plan)
    assert judged(plan) == judged(plan)


def test_a_run_that_does_not_settle_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AutoRmDriver, "strangers", lambda self: "somebody is missing")
    outcome, _ = judged(structs.replace(Plan.from_seed(0, "autorm"), liveness_ns=10**9))
    assert not outcome.settled
    assert "somebody is missing" in outcome.breaches[-1].detail


# -- the command -----------------------------------------------------------------------------


def test_the_swarm_command_knows_autorm(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["swarm", "--protocol", "autorm", "--seeds", "0:3", "--jobs", "1", "--json", "--wire"]
    assert run_command(words) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["seeds"] == 3
    assert found["committed"] > 100
    assert found["virtual_hours"] > 0
    assert found["faults"]
    assert found["violations"] == []


def test_a_finding_comes_with_the_line_that_runs_it_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    genuine = World.hand_over

    def twice(self: Any, site: Any, delivery: Any) -> None:
        genuine(self, site, delivery)
        genuine(self, site, delivery)

    monkeypatch.setattr(World, "hand_over", twice)
    words = ["swarm", "--protocol", "autorm", "--seeds", "4:5", "--jobs", "1", "--json", "--wire"]
    assert run_command(words) == 1
    found = json.loads(capsys.readouterr().out)["violations"]
    assert {one["invariant"] for one in found} >= {"I4"}
    again = "roundelay swarm --seeds 4:5 --protocol autorm --wire"
    assert {one["rerun"] for one in found} == {again}


def test_a_seed_leaves_a_folder_with_its_trace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
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
    assert max(sizes) > 10
    assert any(row.event == "DELIVER" and row.messages for row in rows)


def test_the_simulator_of_fixed_groups_does_not_offer_autorm(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run_command(["simulate", "autorm"]) == 2
    assert "autorm" in capsys.readouterr().err


def test_a_mutant_belongs_to_another_protocol() -> None:
    with pytest.raises(ConfigError, match="mutant"):
        SwarmParams(first=0, beyond=1, protocol="autorm", mutant="no-majority").settled()


def test_one_seed_is_run_as_the_swarm_runs_it() -> None:
    params = SwarmParams(first=3, beyond=4, protocol="autorm").settled()
    outcome = run_seed(3, params).outcome
    assert outcome is not None
    assert outcome.committed == judged(Plan.from_seed(3, "autorm"))[0].committed
