"""The swarm finds what is wrong with a seed, whatever it is, and always says the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec import convert, structs

from roundelay.cli.main import run as run_command
from roundelay.core.errors import ConfigError, InvariantBroken
from roundelay.runs import swarm as swarm_module
from roundelay.runs.swarm import SwarmParams, parse_seeds, run_seed, swarm
from roundelay.sim.families.registry import PROTOCOLS, SIMULATED_FAMILIES
from roundelay.sim.kernel.world import World
from roundelay.sim.swarm.plan import Plan


@pytest.fixture(scope="module")
def some() -> dict[str, Any]:
    """Two dozen seeds."""
    return swarm(SwarmParams(first=0, beyond=24, jobs=1))


def test_seeds_pass_and_are_counted(some: dict[str, Any]) -> None:
    assert some["violations"] == []
    assert some["seeds"] == 24
    assert some["committed"] > 24 * 150
    assert some["virtual_hours"] > 0
    assert set(some["faults"]) == set(SIMULATED_FAMILIES["token"].fault_kinds)
    assert sum(map(bool, some["faults"].values())) > 25


def test_what_is_reported_does_not_depend_on_the_processes(some: dict[str, Any]) -> None:
    assert swarm(SwarmParams(first=0, beyond=24, jobs=2)) == some


@pytest.mark.parametrize("protocol", PROTOCOLS[1:])
def test_the_other_protocols_swarm_too(protocol: str) -> None:
    found = swarm(SwarmParams(first=0, beyond=8, protocol=protocol, jobs=1))
    assert found["violations"] == []
    assert found["committed"] > 8 * 100
    assert len(found["faults"]) > 8


def test_a_seed_is_the_same_with_and_without_its_trace(tmp_path: Path) -> None:
    params = SwarmParams(first=5, beyond=6)
    assert run_seed(5, params, trace=tmp_path / "trace.parquet") == run_seed(5, params)


def test_seed_ranges() -> None:
    assert parse_seeds("0:2000") == (0, 2000)
    assert parse_seeds("17") == (17, 18)
    for wrong in ("", ":", "3:", ":3", "3:3", "4:3", "-1:3", "a:b", "1:2:3", "0:99999999999"):
        with pytest.raises(ConfigError, match="seeds"):
            parse_seeds(wrong)


# -- what goes wrong is a finding --------------------------------------------------------------


def broken(seed: int, monkeypatch: pytest.MonkeyPatch, error: BaseException) -> dict[str, Any]:
    """The swarm around a seed whose run raises."""
    genuine = swarm_module._run

    def run(plan: Plan, *rest: Any) -> Any:
        if plan.seed == seed:
            raise error
        return genuine(plan, *rest)

    monkeypatch.setattr(swarm_module, "_run", run)
    return swarm(SwarmParams(first=seed - 1, beyond=seed + 2, jobs=1))


@pytest.mark.parametrize(
    "error", [InvariantBroken("two tokens"), AssertionError(), KeyError("x"), RecursionError()]
)
def test_an_engine_that_raises_is_a_finding(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    found = broken(4, monkeypatch, error)
    assert found["seeds"] == 3
    (one,) = found["violations"]
    assert one["seed"] == 4
    assert one["invariant"] == type(error).__name__
    assert one["rerun"] == "roundelay swarm --seeds 4:5 --protocol token"
    assert "test_swarm.py" in one["detail"]


def test_a_seed_that_does_not_end_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*_: object) -> None:
        while True:
            pass

    monkeypatch.setattr(swarm_module, "_run", run)
    monkeypatch.setattr(swarm_module, "SEED_SECONDS_MAX", 1)
    found = swarm(SwarmParams(first=3, beyond=4))
    assert [one["invariant"] for one in found["violations"]] == ["hang"]


def test_damage_that_the_codec_does_not_notice_is_a_finding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    genuine = swarm_module._run
    monkeypatch.setattr(
        swarm_module, "_run", lambda *given: structs.replace(genuine(*given), undetected=2)
    )
    found = swarm(SwarmParams(first=3, beyond=4))
    assert [one["invariant"] for one in found["violations"]] == ["codec"]


@pytest.fixture
def handed_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Applications are handed something twice: I4."""
    genuine = World.hand_over

    def twice(self: World, site: Any, delivery: Any) -> None:
        genuine(self, site, delivery)
        if delivery.seq == 20:
            genuine(self, site, delivery)

    monkeypatch.setattr(World, "hand_over", twice)


@pytest.mark.usefixtures("handed_twice")
def test_a_broken_promise_is_a_finding_and_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    status = run_command(["swarm", "--seeds", "0:3", "--jobs", "1", "--json", "--stop-at-first"])
    found = json.loads(capsys.readouterr().out)
    assert status == 1
    assert found["seeds"] == 1
    assert {one["invariant"] for one in found["violations"]} >= {"I4"}
    assert found["violations"][0]["rerun"] == "roundelay swarm --seeds 0:1 --protocol token"


# -- the command -------------------------------------------------------------------------------


def test_one_seed_again_with_its_plan_and_its_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "seed"
    words = ["swarm", "--seeds", "17:18", "--verbose", "--out", str(out)]
    assert run_command(words) == 0
    assert '"strikes"' in capsys.readouterr().out
    assert run_command([*words, "--force", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    plan = Plan.from_seed(17)
    assert found["plan"]["seed"] == 17
    assert found["plan"]["sites"] == plan.sites
    assert {path.name for path in out.iterdir()} == {
        "params.json", "results.json", "trace.parquet", "spacetime.svg", "report.html",
    }  # fmt: skip
    params = json.loads((out / "params.json").read_text())
    assert convert(params["plan"], Plan) == plan


@pytest.mark.usefixtures("handed_twice")
def test_the_folder_of_a_failing_seed_shows_the_failure(tmp_path: Path) -> None:
    out = tmp_path / "seed"
    assert run_command(["swarm", "--seeds", "3:4", "--out", str(out)]) == 1
    assert "A promise was broken" in (out / "report.html").read_text()
    assert json.loads((out / "results.json").read_text())["violations"]
