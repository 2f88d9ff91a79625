"""What the commands print is what other tools rely on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import roundelay

FIELDS = {
    "protocol", "sites", "resilience", "loss", "messages", "delivered_everywhere", "same_order",
    "pdus", "pdus_per_message", "control_per_message", "storage_max", "delay_ms_mean",
    "delay_ms_p99", "trace_sha256", "violations",
}  # fmt: skip


def test_help_lists_the_commands_with_examples(call: Any) -> None:
    done = call("--help")
    assert done.status == 0
    for word in ("demo", "simulate", "swarm", "explore", "plan", "diagram", "Examples:"):
        assert word in done.out
    assert call().out == done.out


@pytest.mark.parametrize(
    "command", ["demo", "simulate", "swarm", "explore", "mutants", "plan", "diagram"]
)
def test_every_command_has_help(call: Any, command: str) -> None:
    done = call(command, "--help")
    assert done.status == 0
    assert done.out.startswith(f"Usage: roundelay {command}")
    assert "--json" in done.out


def test_version(call: Any) -> None:
    assert call("--version").out == f"roundelay {roundelay.__version__}\n"


def test_help_does_not_import_what_is_heavy() -> None:
    script = """if True:
        import sys
        from roundelay.cli.main import run
        run(["--help"])
        heavy = {"pyarrow", "rich", "multiprocessing", "roundelay.sim.kernel.world"}
        found = heavy & set(sys.modules)
        sys.exit(f"imported: {found}" if found else 0)
    """
    unmeasured = {name: value for name, value in os.environ.items() if "COVERAGE" not in name}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True,
                          check=False, env=unmeasured)  # fmt: skip
    assert done.returncode == 0, done.stderr


# -- simulate ----------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", ["token", "positive-ack"])
def test_simulate_prints_the_fields_that_were_agreed(call: Any, protocol: str) -> None:
    done = call("simulate", protocol, "--sites", 4, "--loss", 0.1, "--messages", 200, "--seed", 3,
                "--json")  # fmt: skip
    assert done.status == 0
    assert done.err == ""
    found = done.json
    assert set(found) >= FIELDS
    assert found["protocol"] == protocol
    assert (found["sites"], found["loss"], found["messages"]) == (4, 0.1, 200)
    assert found["delivered_everywhere"] is True
    assert found["violations"] == []
    assert found["pdus_per_message"] == found["pdus"] / 200
    assert len(found["trace_sha256"]) == 64
    if protocol == "token":
        assert found["same_order"] is True


def test_simulate_speaks_to_people_too(call: Any) -> None:
    done = call("simulate", "token", "--messages", 50)
    assert "PDUs per message" in done.out
    assert "delivered everywhere: yes" in done.out
    done = call("simulate", "positive-ack", "--messages", 200, "--tau", 20)
    assert "does not promise it" in done.out


def test_the_same_seed_is_the_same_run_in_any_process(program: Any, tmp_path: Path) -> None:
    words = ("simulate", "token", "--sites", 4, "--loss", 0.1, "--messages", 300, "--seed", 7,
             "--json")  # fmt: skip
    first = program(*words, PYTHONHASHSEED="1")
    second = program(*words, PYTHONHASHSEED="2")
    assert first.status == second.status == 0
    assert first.out == second.out
    written = program(*words, "--out", tmp_path / "run", PYTHONHASHSEED="3")
    assert written.json == first.json


@pytest.mark.parametrize("protocol", ["token", "positive-ack"])
@pytest.mark.parametrize("profile", ["paper", "fast"])
def test_the_wire_changes_nothing(call: Any, protocol: str, profile: str) -> None:
    words = ("simulate", protocol, "--profile", profile, "--loss", 0.1, "--messages", 300,
             "--json")  # fmt: skip
    plain, wired = call(*words).json, call(*words, "--wire").json
    assert wired.pop("wire") is True
    assert plain.pop("wire") is False
    assert wired == plain


def test_another_seed_is_another_run(call: Any) -> None:
    words = ("simulate", "token", "--messages", 50, "--loss", 0.1, "--json", "--seed")
    assert call(*words, 1).json["trace_sha256"] != call(*words, 2).json["trace_sha256"]


def test_rate_is_tau_in_other_words(call: Any) -> None:
    """λ = τ / T (PROTOCOLS 9.2)."""
    words = ("simulate", "token", "--messages", 100, "--hold-ms", 20, "--json")
    of_tau, of_rate = call(*words, "--tau", 0.5).json, call(*words, "--rate", 25).json
    assert of_tau == of_rate


# -- the folder of a run -----------------------------------------------------------------------


def test_the_folder_of_a_run(call: Any, tmp_path: Path) -> None:
    out = tmp_path / "deep" / "run"
    done = call("simulate", "token", "--loss", 0.05, "--messages", 100, "--seed", 5, "--out", out,
                "--json")  # fmt: skip
    assert done.status == 0
    names = {path.name for path in out.iterdir()}
    assert names == {
        "params.json", "results.json", "trace.parquet", "spacetime.svg", "report.html",
    }  # fmt: skip
    assert json.loads((out / "results.json").read_text()) == done.json
    params = json.loads((out / "params.json").read_text())
    assert params["command"] == "simulate"
    assert params["seed"] == 5
    assert params["roundelay"] == roundelay.__version__
    assert (out / "spacetime.svg").read_text().startswith("<svg")
    report = (out / "report.html").read_text()
    assert "http" not in report.replace("http://www.w3.org/2000/svg", "")


def test_the_parameters_of_a_folder_run_it_again(call: Any, tmp_path: Path) -> None:
    from roundelay.runs.simulate import SimulateParams, simulate

    done = call("simulate", "token", "--loss", 0.05, "--messages", 60, "--rate", 44, "--out",
                tmp_path / "run", "--json")  # fmt: skip
    params = json.loads((tmp_path / "run" / "params.json").read_text())
    del params["command"], params["roundelay"]
    assert simulate(SimulateParams(**params)) == done.json


def test_the_trace_of_a_folder_passes_the_checkers(call: Any, tmp_path: Path) -> None:
    from roundelay.trace.checkers.checkers import check_trace

    for protocol in ("token", "positive-ack"):
        out = tmp_path / protocol
        call("simulate", protocol, "--loss", 0.1, "--messages", 100, "--out", out)
        checker = check_trace(out / "trace.parquet")
        assert checker.violations == []
        assert checker.committed == 100


def test_diagram_takes_a_folder_or_a_trace(call: Any, tmp_path: Path) -> None:
    out = tmp_path / "run"
    call("simulate", "token", "--messages", 50, "--out", out)
    done = call("diagram", out, "--from-ms", 0, "--to-ms", 300, "--json")
    assert done.status == 0
    assert done.json["out"] == str(out / "spacetime-0-300.svg")
    assert (out / "spacetime-0-300.svg").exists()
    done = call("diagram", out / "trace.parquet", "--out", tmp_path / "x.svg")
    assert done.out == f"written: {tmp_path / 'x.svg'}\n"
    assert (tmp_path / "x.svg").read_text().startswith("<svg")


# -- plan --------------------------------------------------------------------------------------


def test_plan_predicts(call: Any) -> None:
    words = ("plan", "--sites", 10, "--resilience", 1, "--loss", 0.05, "--rate", 2,
             "--hold-ms", 50)  # fmt: skip
    found = call(*words, "--json").json
    assert found["tau"] == pytest.approx(0.1)
    assert found["token"]["messages"] == pytest.approx(4.703, abs=0.001)  # PROTOCOLS 9.1
    assert found["positive_ack_messages"] == pytest.approx(11.446, abs=0.001)
    assert found["token"]["storage_messages"] == 9
    text = call(*words).out
    for part in ("PDUs per broadcast", "4.703", "11.446", "commit delay", "messages a site keeps"):
        assert part in text


# -- demo --------------------------------------------------------------------------------------


def test_the_demo_with_real_processes_ends_with_all_sites_agreeing(
    call: Any, tmp_path: Path
) -> None:
    out = tmp_path / "live"
    done = call("demo", "--messages", 2000, "--no-spark", "--out", out, "--json")
    assert done.status == 0
    assert done.json["verdict"] == "kept"
    assert done.json["everywhere"] >= 2000
    assert done.json["lives"] == 6, "five processes, one of them killed and started again"
    assert done.json["violations"] == []
    for name in ("params.json", "results.json", "trace.parquet", "spacetime.svg", "report.html"):
        assert (out / name).stat().st_size > 0
    assert "All five sites agree" in (out / "report.html").read_text(encoding="utf-8")


def test_the_demo_ends_with_all_sites_agreeing(call: Any, tmp_path: Path) -> None:
    out = tmp_path / "demo"
    done = call("demo", "--simulated", "--out", out)
    assert done.status == 0
    assert "crashes, and the token with it" in done.out
    assert "is back" in done.out
    assert "All five sites agree" in done.out
    for name in ("params.json", "results.json", "trace.parquet", "spacetime.svg", "report.html"):
        assert (out / name).stat().st_size > 0
    again = call("demo", "--simulated", "--out", out, "--json")
    assert again.status == 0
    found = again.json
    assert found["verdict"] is True
    assert found["invariants"] == dict.fromkeys(("I1", "I2", "I3", "I4", "I5", "I6", "I7"), True)
    assert len({site["log_digest"] for site in found["by_site"]}) == 1
    assert found["crashed_ms"] < found["new_list_ms"] < found["returned_ms"]
    assert json.loads((out / "results.json").read_text()) == found


def test_a_frame_of_the_live_view_says_who_has_the_token() -> None:
    from rich.console import Console

    from roundelay.cli.demo import frame
    from roundelay.core.engine import MS
    from roundelay.runs.demo import Demo, DemoParams

    demo = Demo(DemoParams())
    seen: dict[str, int] = dict.fromkeys(
        ("★ token", "☆ passing", "… reforming", "✗ down", "agreed order", "copies lost"), 0
    )
    for width in (80, 120):
        while demo.world.now < width * 60 * MS:
            demo.advance(100 * MS)
            screen = Console(width=width, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
            screen.print(frame(demo, width))
            text = screen.export_text()
            for part in seen:
                seen[part] += part in text
            assert max(map(len, text.splitlines())) <= width
    demo.recorder.discard()
    assert all(seen.values()), seen


# -- interruption ------------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(signal, "SIGALRM"), reason="needs POSIX signals")
@pytest.mark.parametrize(
    "words",
    [
        ("simulate", "token", "--messages", "100000000"),
        ("swarm", "--seeds", "0:100000", "--jobs", "2"),
    ],
    ids=["simulate", "swarm"],
)
def test_ctrl_c_ends_with_a_line(words: tuple[str, ...]) -> None:
    script = "import sys; from roundelay.cli.main import main; print(1, flush=True); main()"
    running = subprocess.Popen(
        [sys.executable, "-c", script, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert running.stdout is not None
    running.stdout.readline()
    time.sleep(1.5)
    os.killpg(running.pid, signal.SIGINT)  # as a terminal does: the whole group hears it
    out, err = running.communicate(timeout=60)
    assert running.returncode == 130
    assert out == ""
    assert err.strip() == f"roundelay {words[0]}: interrupted"
