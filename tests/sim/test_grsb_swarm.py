"""GRSB under random faults."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from msgspec import structs

from roundelay.cli.main import run as run_command
from roundelay.runs.swarm import SwarmParams, run_seed
from roundelay.sim.families.grsb import KINDS, LONG_AWAY, OUTCOMES, TAKE_OVER
from roundelay.sim.swarm.plan import Plan
from tests.sim.swarming import judged, promises_kept, simulate_command, swarm_command

SEEDS = 40


@pytest.mark.parametrize("first", [0])  # `make seeds` goes on from there
def test_groups_keep_their_promises_whatever_fails(first: int) -> None:
    injected, committed = promises_kept("grsb", range(first, first + SEEDS // 2))
    assert committed > 40 * SEEDS // 2
    assert set(injected) <= {*KINDS, *OUTCOMES, "disk:torn-tail"}
    assert len(injected) > len(KINDS) // 2
    assert injected[TAKE_OVER] > SEEDS // 4
    assert injected[LONG_AWAY] > 0


def test_the_way_over_bytes_changes_nothing() -> None:
    for seed in range(4):
        plan = Plan.from_seed(seed, "grsb")
        ways = [judged(structs.replace(plan, wire=wire)) for wire in (False, True)]
        assert ways[0] == ways[1]


def test_the_same_seed_is_the_same_run() -> None:
    plan = Plan.from_seed(7, "grsb")
    assert plan == Plan.from_seed(7, "grsb")
    assert plan == msgspec.json.decode(plan.to_json(), type=Plan)
    assert judged(plan) == judged(plan)


def test_what_a_recorder_gave_a_user_of_a_reign_that_it_had_not_heard_of_is_not_taken_back() -> (
    None
):
    """A user that hears recorders but not the new retransmitter took what it had been given for
    messages of the old reign that had vanished, and delivered them again."""
    result = run_seed(800179, SwarmParams(first=800179, beyond=800180, protocol="grsb"))
    assert not result.findings


@pytest.mark.parametrize("seed", [970822, 970945])
def test_what_a_user_delivered_of_a_new_reign_just_before_a_crash_is_not_taken_back(
    seed: int,
) -> None:
    """Its application knew the position that it had come to, its disk not yet of the new reign."""
    result = run_seed(seed, SwarmParams(first=seed, beyond=seed + 1, protocol="grsb"))
    assert not result.findings


def test_who_wants_nothing_of_what_it_says_itself_still_says_enough() -> None:
    """The driver counted what is delivered: a lone user that filters its own messages out spoke for
    ever while the other was off, which was taken for a group that does not settle."""
    result = run_seed(700945, SwarmParams(first=700945, beyond=700946, protocol="grsb"))
    assert not result.findings


def test_a_seed_that_once_tripped_over_a_stretch_that_was_gone() -> None:
    # Whoever takes a stretch may stop the reading: what was kept behind it is gone then.
    result = run_seed(114, SwarmParams(first=114, beyond=115, protocol="grsb"))
    assert result.findings == ()


# -- the command -------------------------------------------------------------------------------


def test_the_swarm_command_runs_grsb(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert swarm_command(capsys, tmp_path / "run", "grsb", 3) > 100


def test_the_simulate_command_runs_grsb(capsys: pytest.CaptureFixture[str]) -> None:
    found = simulate_command(
        capsys, "grsb", "--sites", "12", "--recorders", "2", "--away", "0.5",
        "--layout", "failsafe", "--messages", "300",
    )  # fmt: skip
    assert (found["recorders"], found["users"], found["away"]) == (2, 6, 3)
    assert found["replayed"] >= 3 * 200
    for wrong in (["--sites", "4"], ["--away", "1"], ["--layout", "odd"]):
        assert run_command(["simulate", "grsb", "--layout", "failsafe", *wrong]) == 2
    assert run_command(["simulate", "token", "--away", "0.1"]) == 2
