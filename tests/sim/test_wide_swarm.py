"""The hierarchy under random faults."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from msgspec import structs

from roundelay.cli.main import run as run_command
from roundelay.sim.families.wide import KINDS, OUTCOMES
from roundelay.sim.swarm.plan import Plan
from tests.sim.swarming import judged, promises_kept, simulate_command, swarm_command

SEEDS = 10


def test_networks_keep_their_promises_whatever_fails() -> None:
    injected, committed = promises_kept("wide", range(SEEDS))
    assert committed > 40 * SEEDS
    assert set(injected) <= {*KINDS, *OUTCOMES.values(), "disk:torn-tail"}
    assert all(injected[what] > 0 for what in OUTCOMES.values())
    assert len(injected) > len(set(KINDS)) // 2


def test_the_way_over_bytes_changes_nothing() -> None:
    plan = Plan.from_seed(2, "wide")
    ways = [judged(structs.replace(plan, wire=wire)) for wire in (False, True)]
    assert ways[0] == ways[1]


def test_the_same_seed_is_the_same_run() -> None:
    plan = Plan.from_seed(0, "wide")
    assert plan == Plan.from_seed(0, "wide")
    assert judged(plan) == judged(msgspec.json.decode(plan.to_json(), type=Plan))


# -- the commands ------------------------------------------------------------------------------


def test_the_swarm_command_runs_the_hierarchy(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert swarm_command(capsys, tmp_path / "run", "wide", 2) > 50


def test_the_simulate_command_runs_the_hierarchy(capsys: pytest.CaptureFixture[str]) -> None:
    found = simulate_command(
        capsys, "wide", "--networks", "3", "--sites", "30", "--recorders", "2",
        "--away", "0.4", "--messages", "200",
    )  # fmt: skip
    assert (found["networks"], found["recorders"]) == (3, 2)
    assert found["away"] > 0
    assert found["nodes_behind"] > 0
    assert found["replayed"] > 100
    for wrong in (["--networks", "9", "--sites", "12"], ["--away", "1"], ["--layout", "demo"]):
        assert run_command(["simulate", "wide", *wrong]) == 2
    assert run_command(["simulate", "grsb", "--networks", "2"]) == 2


def test_a_graph_of_200_nodes_can_be_simulated(capsys: pytest.CaptureFixture[str]) -> None:
    found = simulate_command(
        capsys, "wide", "--networks", "2", "--sites", "210", "--subnet", "100",
        "--messages", "6", "--rate", "1",
    )  # fmt: skip
    assert found["nodes_behind"] == 200
