"""Real processes through loss, kills, a pause and a partition: every promise is kept."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random

import msgspec
import pytest

from roundelay.core.errors import ConfigError
from roundelay.runs.chaos import plan as plans
from roundelay.runs.chaos import run as chaos_module
from roundelay.runs.chaos.harness import RunFailed
from roundelay.runs.chaos.kinds import KILL, PARTITION, PAUSE
from roundelay.runs.chaos.network import NAMESPACES, NamespaceNet, available
from roundelay.runs.chaos.plan import (
    ANYWHERE,
    BY_SWITCH,
    NEMESES,
    NEMESES_BY_SWITCH,
    ChaosParams,
    TimedTrouble,
    troubles,
    weather,
)
from roundelay.runs.chaos.run import Chaos, Site, chaos
from roundelay.runs.chaos.site import Orders, Word
from roundelay.runs.folder import run_folder
from roundelay.trace import check_trace, read

SHORT = ChaosParams(
    messages=3000, seconds=5.0, pause_s=1.5, partition_s=1.5, nemeses=0, patience_s=90.0
)  # fmt: skip


@pytest.fixture(autouse=True)
def unmeasured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Coverage slows processes down, and has nothing to learn from these."""
    for name in [name for name in os.environ if "COVERAGE" in name]:
        monkeypatch.delenv(name)


def run(params: ChaosParams, folder: Path) -> dict[str, object]:
    with run_folder(folder) as made:
        return chaos(params, made)


def params_of(**changes: object) -> ChaosParams:
    return msgspec.structs.replace(SHORT, **changes)


# -- whole runs ----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 7))
def test_five_processes_keep_every_promise_through_it_all(seed: int, tmp_path: Path) -> None:
    results = run(params_of(seed=seed), tmp_path / "run")
    assert results["violations"] == []
    assert results["failure"] == ""
    assert results["verdict"] == "kept"
    assert results["lives"] == 7
    assert results["everywhere"] == results["committed"] >= 3000  # type: ignore[operator]
    network = results["datagrams"]
    assert isinstance(network, dict)
    assert network["faults"]["loss"] > 100
    assert network["faults"]["partition:symmetric"] == 1
    events = [(row.event, row.kind) for row in read(tmp_path / "run" / "trace.parquet")]
    for event in (("CRASH", "disk"), ("RESTART", "disk")):
        assert events.count(event) == 2
    for event in (("PAUSE", ""), ("RESUME", ""), ("MARK", "heal"), ("MARK", "end")):
        assert events.count(event) == 1
    assert events.count(("NOTICE", "view")) > 5  # lists came and went
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [
        "params.json", "results.json", "trace.parquet",
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.skipif(not available(), reason="network namespaces cannot be made here")
def test_the_same_holds_over_real_multicast_between_namespaces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nets: list[NamespaceNet] = []
    make = NamespaceNet._make

    def noted(net: NamespaceNet, names: Sequence[str]) -> None:
        nets.append(net)
        make(net, names)

    monkeypatch.setattr(NamespaceNet, "_make", noted)
    params = params_of(seed=7, network=NAMESPACES, level="all", messages=2000)
    results = run(params, tmp_path / "run")
    assert results["violations"] == []
    assert results["verdict"] == "kept", results["failure"]
    rows = list(read(tmp_path / "run" / "trace.parquet"))
    sent = {row.ref: row for row in rows if row.event == "SEND"}
    arrived = [row for row in rows if row.event == "RECEIVE"]
    assert len(arrived) > 1000
    assert len(sent) == len([row for row in rows if row.event == "SEND"])  # each has its own ref
    matched = [row for row in arrived if row.ref in sent]
    assert len(matched) > 0.99 * len(arrived)  # a killed sender may not have written its last
    assert all(sent[row.ref].site == row.peer for row in matched)
    assert all(sent[row.ref].time < row.time for row in matched)  # causes come first
    assert check_trace(tmp_path / "run" / "trace.parquet").violations == []
    [net] = nets  # others on this machine may have namespaces of their own
    assert len(net.names) == 5
    assert not {net.namespace(name) for name in net.names} & namespaces()


def namespaces() -> set[str]:
    listed = subprocess.run(["ip", "netns"], capture_output=True, text=True, check=True)
    return set(listed.stdout.split())


# -- runs that do not end well -------------------------------------------------------------------


def test_a_run_that_does_not_come_to_its_end_says_so_and_leaves_its_traces(tmp_path: Path) -> None:
    results = run(params_of(patience_s=0.05), tmp_path / "run")
    assert results["verdict"] == "failed"
    assert "waited 0.05 s for the group to form" in str(results["failure"])
    assert (tmp_path / "run" / "live").is_dir()
    again = results["rerun"]
    assert str(again).startswith("roundelay chaos --seed 0 --messages 3000 --seconds 5 --pause 1.5")


def fake_site(run: Chaos, false: int, over: str) -> Site:
    word = Word(state="open", false=false, over=over)
    site = Site(len(run.sites), Orders(
        name="ab"[len(run.sites)], members=("a", "b"), resilience=0, via=None, interface="",
        secret=None, folder="", traces="", level="all", life=0, messages=0, rate=0.0, size=16,
    ), Path("none"))  # fmt: skip
    site.word = word
    return site


def test_a_run_that_failed_counts_what_its_living_sites_have_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def play(self: Chaos) -> None:
        killed = fake_site(self, false=4, over="").word
        assert killed is not None
        self.machines["a"] = fake_site(self, false=2, over="")
        self.sites[0].last_words.append(killed)
        self.machines["b"] = fake_site(self, false=1, over="pending has 9, its limit is 8")
        raise RunFailed("planted")

    monkeypatch.setattr(Chaos, "_play", play)
    results = run(SHORT, tmp_path / "run")
    assert results["failure"] == "planted"
    assert results["false_receipts"] == 7
    assert results["verdict"] == "broken"
    assert "I6: site b: pending has 9" in str(results["violations"])


def test_a_fault_of_the_harness_is_a_failed_run_that_can_be_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def play(self: Chaos) -> None:
        raise OSError("planted")

    monkeypatch.setattr(Chaos, "_play", play)
    results = run(SHORT, tmp_path / "run")
    assert results["verdict"] == "failed"
    assert "OSError: planted" in str(results["failure"])
    assert "Traceback" in (tmp_path / "run" / "harness.log").read_text()
    kept = json.loads((tmp_path / "run" / "results.json").read_text())
    assert kept["rerun"] == SHORT.rerun()


@pytest.mark.slow
def test_a_rule_that_is_switched_off_is_noticed(tmp_path: Path) -> None:
    """A site that works on in its old list after a restart, as if it remembered everything."""
    params = params_of(
        seed=2, mutant="restart-resumes", messages=1000, seconds=3.0, kills=1, pauses=0,
        partitions=0, patience_s=15.0,
    )  # fmt: skip
    results = run(params, tmp_path / "run")
    assert results["verdict"] == "broken"
    assert "I3" in str(results["violations"])
    assert "--mutant restart-resumes" in str(results["rerun"])


@pytest.mark.slow
def test_no_process_outlives_a_harness_that_is_killed(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [Path(sys.executable).with_name("roundelay"), "chaos", "--out", tmp_path / "run",
         "--messages", "1000000", "--seconds", "600"],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stderr is not None
    assert "5 sites" in process.stderr.readline()
    children = sites_under(tmp_path)
    assert len(children) == 5
    process.send_signal(signal.SIGKILL)
    process.wait()
    deadline = time.monotonic() + 60
    while sites_under(tmp_path):
        assert time.monotonic() < deadline, "sites are still there"
        time.sleep(0.1)


def sites_under(folder: Path) -> list[int]:
    """Processes of sites that work in `folder`."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            command = (entry / "cmdline").read_bytes() if entry.name.isdecimal() else b""
        except OSError:
            continue
        if b"roundelay.runs.chaos.site" in command and os.fsencode(folder) in command:
            found.append(int(entry.name))
    return found


# -- what a seed has in store --------------------------------------------------------------------


def test_a_seed_decides_what_happens_and_everything_happens() -> None:
    params = ChaosParams(nemeses=0)
    first = troubles(params, Random(1))
    assert first == troubles(params, Random(1))
    assert first != troubles(params, Random(2))
    assert weather(params, Random(1)) == weather(params, Random(1))
    for seed in range(50):
        plan = troubles(params, Random(seed))
        assert sorted(trouble.kind for trouble in plan) == [KILL, KILL, PARTITION, PAUSE]
        assert [trouble.at for trouble in plan] == sorted(trouble.at for trouble in plan)
        assert all(0 < trouble.at < 1 for trouble in plan)
        for trouble in plan:
            assert len(trouble.who) == 1 or trouble.kind == PARTITION
            assert len(trouble.who) <= 2  # a majority stays together
            assert trouble.lasts_s == 10.0 or trouble.kind != PAUSE


def test_wild_runs_have_every_kind_of_trouble_that_the_network_can_do() -> None:
    wild = params_of(wild=10)
    kinds = {trouble.kind for seed in range(50) for trouble in troubles(wild, Random(seed))}
    assert kinds == {*ANYWHERE, *BY_SWITCH}
    wild = params_of(wild=10, network=NAMESPACES)
    kinds = {trouble.kind for seed in range(50) for trouble in troubles(wild, Random(seed))}
    assert kinds == set(ANYWHERE)


def test_every_run_has_nemeses_and_runs_together_have_all_of_them() -> None:
    params = ChaosParams()
    seen = []
    for seed in range(20):  # make chaos
        plan = troubles(params, Random(f"chaos/{seed}"))
        kinds = [one.kind for one in plan if one.kind in (*NEMESES, *NEMESES_BY_SWITCH)]
        assert len(kinds) == params.nemeses
        seen += kinds
    assert set(seen) == {*NEMESES, *NEMESES_BY_SWITCH}
    params = params_of(nemeses=5, network=NAMESPACES)
    struck = {one.kind for seed in range(50) for one in troubles(params, Random(seed))}
    assert struck == {KILL, PARTITION, PAUSE, *NEMESES}


@pytest.mark.slow
def test_a_twin_a_stepped_clock_and_a_partial_return_break_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = iter(NEMESES)
    params = params_of(seed=3, kills=0, pauses=0, partitions=0, nemeses=3, messages=900,
                       seconds=2.0)  # fmt: skip

    def each_once(params: ChaosParams, rng: Random) -> list[TimedTrouble]:
        plan = troubles(params, rng)
        return [
            plans._trouble(params, rng, next(order), trouble.at)
            for trouble in plan
        ]  # fmt: skip

    monkeypatch.setattr(chaos_module, "troubles", each_once)
    results = run(params, tmp_path / "run")
    assert results["violations"] == []
    assert results["verdict"] == "kept", results["failure"]
    assert results["lives"] == 10  # all five once more
    for kind in NEMESES:
        assert any(kind in line for line in results["story"])  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "field, value",
    [
        ("sites", 2), ("senders", 6), ("messages", 0), ("bytes", 1), ("loss", 1.0), ("kills", -1),
        ("seconds", 0), ("pause_s", -1), ("resilience", 3), ("level", "some"), ("mutant", "none"),
        ("network", "string"),
    ],
)  # fmt: skip
def test_bad_parameters_are_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(ConfigError, match=field):
        params_of(**{field: value}).check()


def test_the_line_that_runs_it_again_is_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    from roundelay.cli import chaos as command
    from roundelay.cli.main import run as run_command

    seen: list[ChaosParams] = []

    def pretend(run: object, params: ChaosParams, *rest: object) -> dict[str, object]:
        seen.append(params)
        return {"verdict": "kept"}

    monkeypatch.setattr(command, "run_in_folder", pretend)
    monkeypatch.setattr(command, "_show", lambda results: None)
    for params in (
        ChaosParams(seed=3),
        params_of(seed=9, sites=7, senders=2, resilience=2, loss=0.05, bytes=100, level="all"),
        params_of(
            sealed=False,
            mutant="no-majority",
            kills=0,
            pauses=3,
            partitions=2,
            wild=4,
            wipes=1,
            nemeses=4,
        ),
    ):
        assert run_command(params.rerun().split()[1:]) == 0
        assert seen.pop() == params


def test_the_command_prints_one_json_object_and_tells_of_failure(tmp_path: Path) -> None:
    done = subprocess.run(
        [Path(sys.executable).with_name("roundelay"), "chaos", "--messages", "10", "--patience",
         "0.05", "--json", "--out", tmp_path / "run"],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr == ""
    assert json.loads(done.stdout)["verdict"] == "failed"
