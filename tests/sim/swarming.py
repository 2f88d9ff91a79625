"""Random runs in a test: that nothing is wrong with them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from roundelay.cli.main import run as run_command
from roundelay.runs.swarm import judge_of
from roundelay.sim.swarm.fault_runner import Breach, Outcome, RunSetting, run_plan
from roundelay.sim.swarm.plan import Plan
from roundelay.trace.checkers.verdict import Violation
from roundelay.wire.beamon import BeamonCodec
from roundelay.wire.codec import GroupCodec


def judged(plan: Plan) -> tuple[Outcome, list[Breach | Violation]]:
    """The outcome of a plan, and all that was found wrong."""
    judge = judge_of(plan)
    codec = BeamonCodec() if plan.protocol == "autorm" else GroupCodec("swarm")
    outcome = run_plan(plan, RunSetting(codec=codec, observers=(judge,)))
    return outcome, [*outcome.breaches, *judge.violations]


def promises_kept(protocol: str, seeds: Iterable[int]) -> tuple[Counter[str], int]:
    """Nothing is wrong with these seeds; returns the faults in them, and the messages delivered."""
    injected: Counter[str] = Counter()
    committed = 0
    for seed in seeds:
        plan = Plan.from_seed(seed, protocol)
        outcome, wrong = judged(plan)
        assert not wrong, f"{plan.rerun}: {wrong[0]}"
        assert outcome.settled, plan.rerun
        injected.update(outcome.faults)
        committed += outcome.committed
    return injected, committed


def said(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    """What a command that succeeds says."""
    assert run_command([*words, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def swarm_command(
    capsys: pytest.CaptureFixture[str], folder: Path, protocol: str, seeds: int
) -> int:
    """`roundelay swarm`: seeds from 0 up, then one with its folder; returns messages delivered."""
    line = ("swarm", "--protocol", protocol, "--seeds")
    found = said(capsys, *line, f"0:{seeds}", "--jobs", "1")
    assert found["violations"] == []
    said(capsys, *line, "2", "--out", str(folder))
    assert (folder / "trace.parquet").exists()
    committed: int = found["committed"]
    return committed


def simulate_command(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    """`roundelay simulate`: everybody has everything in one order."""
    found = said(capsys, "simulate", *words)
    assert found["delivered_everywhere"]
    assert found["same_order"]
    assert found["violations"] == []
    return found
