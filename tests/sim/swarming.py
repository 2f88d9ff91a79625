"""Random runs in a test: that nothing is wrong with them, or that something is."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from roundelay.cli.main import run as run_command
from roundelay.sim.driver import Outcome, Setting, run_plan
from roundelay.sim.plan import Plan
from roundelay.wire.codec import GroupCodec


def outcome(plan: Plan) -> Outcome:
    return run_plan(plan, Setting(codec=GroupCodec("swarm")))


def promises_kept(
    protocol: str, seeds: Iterable[int], run: Callable[[Plan], Outcome] = outcome
) -> tuple[Counter[str], int]:
    """Nothing is wrong with these seeds; returns the faults in them, and the messages delivered."""
    injected: Counter[str] = Counter()
    committed = 0
    for seed in seeds:
        plan = Plan.from_seed(seed, protocol)
        found = run(plan)
        assert not found.breaches, f"{plan.rerun}: {found.breaches[0]}"
        assert found.settled, plan.rerun
        injected.update(found.faults)
        committed += found.committed
    return injected, committed


def notice(plans: Iterable[Plan]) -> None:
    """Something is wrong with one of these plans, by the checker or by the engines themselves."""
    tried = 0
    for plan in plans:
        tried += 1
        try:
            found = outcome(plan)
        except Exception:
            return  # an invariant within the engines
        if found.breaches:
            return
    pytest.fail(f"{tried} seeds did not notice")


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
