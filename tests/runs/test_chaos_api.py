"""`roundelay chaos --api`: plans, application, clock, command line, and a round of it."""

from __future__ import annotations

import ast
import asyncio
import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

from roundelay.core.errors import ConfigError
from roundelay.runs.chaos.clock import WallClock, build
from roundelay.runs.chaos.disks import PowerDisk
from roundelay.runs.chaos.disks import available as disks_available
from roundelay.runs.chaos.kinds import Trouble
from roundelay.runs.chaos_api import application as app
from roundelay.runs.chaos_api.machine import MemberMachine
from roundelay.runs.chaos_api.notes import MEMBER, Life
from roundelay.runs.chaos_api.plan import (
    DAEMON,
    EMBEDDED,
    FANOUT,
    KINDS,
    MOVED,
    REPLACED,
    SERVICES,
    STORM,
    WITH_DISK,
    ApiParams,
    plan_of,
)
from roundelay.runs.chaos_api.run import Round, chaos_api, one_round
from roundelay.runs.folder import run_folder

# -- plans ---------------------------------------------------------------------------------------


def test_a_seed_decides_a_round_and_all_rounds_together_have_everything() -> None:
    params = ApiParams()
    plans = [plan_of(params, seed) for seed in range(400)]
    assert plans == [plan_of(params, seed) for seed in range(400)]
    assert [plan.setup.service for plan in plans[:9]] == list(SERVICES)
    struck = [trouble for plan in plans for place in plan.troubles for trouble in place]
    assert {trouble.kind for trouble in struck} == set(KINDS)
    assert {mode for plan in plans for mode in plan.setup.modes} == {EMBEDDED, DAEMON}
    assert {plan.setup.recorders for plan in plans} == {0, 1, 2}
    assert {plan.weather["loss"] for plan in plans} >= {0, 0.3}
    assert any(len(place) == 2 for plan in plans for place in plan.troubles)
    assert any(plan.setup.medium == FANOUT for plan in plans)


def test_a_group_is_never_struck_harder_than_it_was_promised_to_stand() -> None:
    for seed in range(400):
        plan = plan_of(ApiParams(), seed)
        for place in plan.troubles:
            assert len(place) <= 2
            names = [trouble.who for trouble in place]
            if len(place) == 2 and place[1].kind not in (STORM, "clock", "clog"):
                assert plan.setup.resilience >= 2
                assert len({*names[0], *names[1]}) <= plan.setup.resilience
            for trouble in place:
                if trouble.kind in WITH_DISK:
                    assert plan.setup.disks
                    assert plan.setup.fixed
                if trouble.kind == "partition":
                    assert len(trouble.who) <= (len(plan.setup.names) - 1) // 2


def test_a_group_is_chosen_in_which_the_wanted_trouble_makes_sense() -> None:
    for seed in range(20):
        plan = plan_of(ApiParams(services=("resilient",), only=("old-folder", "blackout")), seed)
        assert plan.setup.fixed
        assert plan.setup.disks
    with pytest.raises(ConfigError, match="blackout"):
        plan_of(ApiParams(services=("fifo",), only=("blackout",)), 1)


@pytest.mark.parametrize(
    "field, value",
    [("services", ("some",)), ("only", ("rain",)), ("members", 2), ("minutes", 0.0)],
)
def test_bad_parameters_are_refused(field: str, value: object) -> None:
    with pytest.raises(ConfigError):
        ApiParams(**{field: value}).check()  # type: ignore[arg-type]


def test_the_line_that_runs_a_round_again_gives_the_same_plan(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from roundelay.cli import chaos as command
    from roundelay.cli.main import run

    seen: list[ApiParams] = []

    def pretend(params: ApiParams, *rest: object) -> dict[str, object]:
        seen.append(params)
        return {"verdict": "kept", "results": [], "confirmed": 0, "given": 0, "troubles": {}}

    monkeypatch.setattr(command, "chaos_api", pretend)
    params = ApiParams(seed=0, members=4, troubles=2, only=("kill", "twin"), patience_s=33.0)
    for seed in (3, 12):
        plan = plan_of(params, seed)
        line = params.rerun(seed, plan.setup.service)
        assert run(line.split()[1:]) == 0
        again = seen.pop()
        assert again.rounds == 1
        assert plan_of(again, again.seed) == plan


def test_options_that_would_be_ignored_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    from roundelay.cli.main import run

    assert run(["chaos", "--api", "--wild", "3"]) == 2
    assert "wild" in capsys.readouterr().err
    assert run(["chaos", "--service", "total"]) == 2
    assert "--api" in capsys.readouterr().err


# -- the application -----------------------------------------------------------------------------


def test_the_application_imports_nothing_of_ours_but_the_public_names() -> None:
    tree = ast.parse(Path(app.__file__).read_text())
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import)
             for alias in node.names}  # fmt: skip
    names |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    ours = {name for name in names if name.split(".")[0] == "roundelay"}
    assert ours == {"roundelay"}
    assert all(name.split(".")[0] in sys.stdlib_module_names for name in names - ours)
    attributes = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    private = {name for name in attributes if name.startswith("_") and not name.endswith("__")}
    assert private == {"_exit", "_file"}  # of os, and its own


def test_the_bytes_of_a_message_tell_which_it_is_and_whether_they_are_right() -> None:
    data = app.content("a.3.17", 200)
    assert len(data) == 200
    assert app.ident_of(data) == ("a.3.17", True)
    for at in (0, 7, 100, 199):
        changed = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        assert app.ident_of(changed)[1] is False
    assert len(app.content("a.3.17", 1)) > len("a.3.17")


# -- the clock -----------------------------------------------------------------------------------


def test_a_wall_clock_is_set_while_its_process_runs_and_the_monotonic_one_is_not(
    tmp_path: Path,
) -> None:
    library = build(tmp_path)
    if library is None:
        pytest.skip("no C compiler")
    clock = WallClock(library, tmp_path / "offset")
    program = (
        "import sys, time, datetime\n"
        "for line in sys.stdin:\n"
        "    print(time.time(), datetime.datetime.now().timestamp(), time.monotonic(), flush=True)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], env=os.environ | clock.environment(), text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        for offset in (0.0, -3600.0, 86_400.0, 0.0):
            clock.step(offset)
            process.stdin.write("\n")
            process.stdin.flush()
            wall, date, steady = map(float, process.stdout.readline().split())
            assert abs(wall - time.time() - offset) < 60
            assert abs(date - time.time() - offset) < 60
            assert abs(steady - time.monotonic()) < 60


# -- whole rounds --------------------------------------------------------------------------------


@pytest.fixture
def unmeasured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Coverage slows processes down, and has nothing to learn from these."""
    for name in [name for name in os.environ if "COVERAGE" in name]:
        monkeypatch.delenv(name)


@pytest.mark.slow
@pytest.mark.usefixtures("unmeasured")
def test_a_round_through_a_kill_is_kept_and_leaves_its_notes(tmp_path: Path) -> None:
    params = ApiParams(services=("resilient",), members=3, troubles=1, only=("kill",))
    folder = tmp_path / "round"
    results = one_round(params, 11, folder)
    assert results["findings"] == []
    assert results["verdict"] == "kept"
    assert results["lives"] >= 4 or any("(node)" in line for line in results["story"])
    assert results["confirmed"] > 10
    assert results["troubles"] == {"kill": 1}
    assert results["given"] > 2 * results["confirmed"]
    assert json.loads((folder / "verdict.json").read_text()) == results
    assert json.loads((folder / "plan.json").read_text())["seed"] == 11
    assert {"a.0.jsonl", "b.0.jsonl", "c.0.jsonl"} <= {path.name for path in folder.iterdir()}


def test_who_starts_later_finds_those_who_have_moved_meanwhile() -> None:
    """All had another address than in the beginning: the last one to be replaced found nobody."""

    class Still(MemberMachine):
        async def start(self, since: object = None, tries: int = 0) -> None:
            seeds.append((self.name, self.address["seeds"].split(",")))

        async def kill(self, scope: str = "") -> None: ...

    def machine(name: str, mode: str = EMBEDDED) -> MemberMachine:
        one = Still.__new__(Still)
        one.name, one.mode, one.command, one.command_prefix = name, mode, "", []
        one.role, one.processes = MEMBER, {}
        one.lives = [Life("?", 0)]
        return one

    async def at_once(*_: object) -> None: ...

    seeds: list[tuple[str, list[str]]] = []
    machines = {name: machine(name) for name in "ab"}
    for number, one in enumerate(machines.values()):
        one.address = {"listen": f"127.0.0.1:{number}", "seeds": "127.0.0.1:0,127.0.0.1:1"}
    round_ = Round.__new__(Round)
    vars(round_).update(
        machines=machines, machine=machine, others=[], woken={}, folder=Path("none"), until=at_once,
        say=lambda text: None, since=lambda machine: None, setup=SimpleNamespace(medium=FANOUT),
        struck=Counter(),
    )  # fmt: skip
    asyncio.run(round_.strike(Trouble(MOVED, ("a",), 0.0)))
    moved = machines["a"].address["listen"]
    asyncio.run(round_.strike(Trouble(REPLACED, ("b",), 0.0)))
    assert [name for name, _ in seeds] == ["a", "b"]
    assert moved in seeds[1][1]
    assert machines["b"].address["listen"] in machines["a"].address["seeds"].split(",")


def test_a_fault_of_the_harness_fails_its_round_and_the_next_one_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def play(self: Round) -> None:
        if self.plan.seed == 4:
            raise OSError("planted")

    monkeypatch.setattr(Round, "_play", play)
    monkeypatch.setattr("roundelay.runs.chaos_api.run.build", lambda folder: None)
    told: list[str] = []
    with run_folder(tmp_path / "run") as folder:
        results = chaos_api(ApiParams(seed=4, rounds=2), folder, told.append)
    assert (results["rounds"], results["bad"]) == (2, 1)
    bad, good = results["results"]
    assert good["verdict"] == "kept"
    assert bad["findings"] == ["harness: OSError: planted; see harness.log"]
    assert "Traceback" in (Path(bad["folder"]) / "harness.log").read_text()
    assert json.loads((Path(bad["folder"]) / "plan.json").read_text())["seed"] == 4
    assert told[-1] == f"again: {bad['rerun']}"


@pytest.mark.slow
@pytest.mark.usefixtures("unmeasured")
def test_a_group_that_cannot_form_is_a_hang_with_the_line_that_runs_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("roundelay.runs.chaos_api.run.FORM_S", 0.05)
    params = ApiParams(services=("total",), members=3, troubles=0, patience_s=0.05)
    results = one_round(params, 2, tmp_path / "round")
    assert results["verdict"] == "broken"
    assert "waited 0.05 s for the group to form" in str(results["findings"])
    assert results["rerun"] == (
        "roundelay chaos --api --seed 2 --rounds 1 --service total --members 3 --troubles 0 "
        "--patience 0.05"
    )


# -- disks ---------------------------------------------------------------------------------------


@pytest.mark.skipif(not disks_available(), reason="no file system can be mounted here")
def test_a_disk_whose_power_is_cut_has_what_was_synced_and_nothing_else(tmp_path: Path) -> None:
    disk = PowerDisk(tmp_path / "disk")
    try:
        with (disk.path / "file").open("wb", buffering=0) as file:
            file.write(b"synced")
            os.fsync(file.fileno())
            file.write(b" and not synced")
        (disk.path / "other").write_bytes(b"not synced")
        disk.cut()
        with pytest.raises(OSError):
            (disk.path / "third").write_bytes(b"")
        disk.restore()
        assert [path.name for path in disk.path.iterdir()] == ["file"]
        assert (disk.path / "file").read_bytes() == b"synced"
    finally:
        disk.close()
    assert not disk.image.exists()
