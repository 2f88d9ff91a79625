"""Wrong input: one line that names the field and what is allowed, status 2, nothing on stdout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

SIMULATE = ("simulate", "token", "--messages", "5")

WRONG = [
    # field, part of what is allowed, command line
    ("resilience", "0 to 2 for 5 sites", (*SIMULATE, "--sites", "5", "--resilience", "3")),
    ("resilience", "0 to 0 for 2 sites", (*SIMULATE, "--sites", "2", "--resilience", "1")),
    ("resilience", "from 0 up", (*SIMULATE, "--resilience", "-1")),
    ("kr", "1 when kw is above 1", (*SIMULATE, "--kw", "2", "--kr", "2")),
    ("kr", "from 1 to 4", (*SIMULATE, "--sites", "5", "--kr", "5")),
    ("kw", "from 1 up", (*SIMULATE, "--kw", "0")),
    ("kw", "1 with positive-ack", ("simulate", "positive-ack", "--kw", "2")),
    ("loss", "from 0 up to, not including, 1", (*SIMULATE, "--loss", "1.2")),
    ("loss", "from 0 up to, not including, 1", (*SIMULATE, "--loss", "1")),
    ("loss", "from 0 up to, not including, 1", (*SIMULATE, "--loss", "-0.1")),
    ("loss", "from 0 up to, not including, 1", (*SIMULATE, "--loss", "nan")),
    ("loss", "from 0 up to, not including, 1", (*SIMULATE, "--loss", "much")),
    ("protocol", "token or positive-ack", ("simulate", "carrier-pigeon")),
    ("protocol", "token or positive-ack", ("swarm", "--protocol", "carrier-pigeon")),
    ("sites", "a whole number from 2", (*SIMULATE, "--sites", "1")),
    ("sites", "a whole number from 2", (*SIMULATE, "--sites", "five")),
    ("sites", "a whole number from 2 to 1000", (*SIMULATE, "--sites", "5000")),
    ("messages", "a whole number from 1", ("simulate", "token", "--messages", "0")),
    ("seed", "a whole number from 0", (*SIMULATE, "--seed", "-3")),
    ("seed", "a whole number from 0", (*SIMULATE, "--seed", "1.5")),
    ("profile", "paper or fast", (*SIMULATE, "--profile", "slow")),
    ("load", "poisson or saturated or isolated", (*SIMULATE, "--load", "heavy")),
    ("tau", "above 0", (*SIMULATE, "--tau", "0")),
    ("tau", "1e-9 to 1e9", (*SIMULATE, "--tau", "1e300")),
    ("rate", "without tau", (*SIMULATE, "--tau", "1", "--rate", "5")),
    ("tau", "only with the load poisson", (*SIMULATE, "--tau", "1", "--load", "saturated")),
    ("hold_ms", "0.05 to", (*SIMULATE, "--hold-ms", "0")),
    ("size", "to 1200", (*SIMULATE, "--size", "5000")),
    ("seeds", "A:B with", ("swarm", "--seeds", "7:3")),
    ("seeds", "A:B with", ("swarm", "--seeds", "3:3")),
    ("seeds", "A:B with", ("swarm", "--seeds", "-1:3")),
    ("seeds", "A:B with", ("swarm", "--seeds", "all")),
    ("jobs", "a whole number from 1", ("swarm", "--seeds", "0:2", "--jobs", "0")),
    ("mutant", "one of ", ("swarm", "--seeds", "0:2", "--mutant", "no-such-rule")),
    ("mutant", "only with the protocol token",
     ("swarm", "--seeds", "0:2", "--protocol", "positive-ack", "--mutant", "no-majority")),
    ("mutant", "one of ", ("mutants", "no-such-rule")),
    ("family", "token or positive-ack", ("mutants", "--family", "none")),
    ("out", "only with a single seed", ("swarm", "--seeds", "0:2", "--out", "somewhere")),
    ("verbose", "only with a single seed", ("swarm", "--seeds", "0:2", "--verbose")),
    ("mutant", "one of ", ("explore", "--mutant", "no-such-rule")),
    ("sites", "a whole number from", ("explore", "--sites", "0")),
    ("resilience", "0 to ", ("explore", "--sites", "3", "--resilience", "2")),
    ("resilience", "0 to 2 for 5 sites", ("plan", "--sites", "5", "--resilience", "3")),
    ("resilience", "0 to 0 for 2 sites", ("plan", "--sites", "2", "--resilience", "1")),
    ("loss", "not including, 1", ("plan", "--loss", "1.2")),
    ("rate", "above 0", ("plan", "--rate", "0")),
    ("hold_ms", "above 0", ("plan", "--hold-ms", "-5")),
    ("kr", "1 when kw is above 1", ("plan", "--kw", "2", "--kr", "2")),
    ("command", "one of demo, simulate", ("simulacrum",)),
    ("--sights", "", (*SIMULATE, "--sights", "5")),
    ("protocol is missing", "token or positive-ack", ("simulate",)),
    ("--seed", "requires an argument", (*SIMULATE, "--seed")),
    ("RUN_OR_TRACE", "", ("diagram",)),
]  # fmt: skip


@pytest.mark.parametrize("json", [False, True], ids=["", "json"])
@pytest.mark.parametrize(
    ("field", "allowed", "words"), WRONG, ids=[" ".join(words) for _, _, words in WRONG]
)
def test_wrong_parameters_give_one_line_and_status_2(
    call: Any, field: str, allowed: str, words: tuple[str, ...], json: bool
) -> None:
    if json and words[0] != "simulacrum":
        words = (words[0], "--json", *words[1:])
    done = call(*words)
    assert_one_line(done, field, allowed)


RECORD = ("node", "--name", "a", "--insecure")
WRONG_RECORD = [
    ("record", "only with --dir", ("--record", "token:orders")),
    ("record", "a filter is conference=", ("--record", "token:orders:conference")),
    ("record", "a filter is conference=", ("--record", "token:orders:7")),
    ("record", "a filter is conference=", ("--record", "token:orders:")),
    ("record", "a whole number below", ("--record", "token:orders:conference=seven")),
    ("record", "filters conference=", ("--record", "token:orders:colour=7")),
    ("fsync", "always or interval or os", ("--fsync", "sometimes")),
    ("keep_bytes", "from 0 up", ("--keep-bytes", "-1")),
    ("keep_s", "from 0 up", ("--keep-s", "a day")),
    ("keep_conference", "as in 7=86400", ("--keep-conference", "7")),
    ("keep_conference", "as in 7=86400", ("--keep-conference", "7=inf")),
    ("segment_bytes", "from 4096 to", ("--segment-bytes", "100")),
    ("dir", "a folder that can be made and written", ("--dir", "/proc/none")),
    ("dir", "a folder that can be made and written", ("--dir", __file__)),
]


@pytest.mark.parametrize(
    ("field", "allowed", "words"), WRONG_RECORD, ids=[" ".join(words) for *_, words in WRONG_RECORD]
)
def test_what_cannot_be_recorded_gives_one_line(
    call: Any, field: str, allowed: str, words: tuple[str, ...]
) -> None:
    assert_one_line(call(*RECORD, *words), field, allowed)


def test_what_a_recorder_keeps_is_said_on_the_command_line(
    call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Any] = []

    async def serve(config: Any, *rest: Any) -> int:
        started.append(config)
        return 0

    monkeypatch.setattr("roundelay.cli.serve._serve_node", serve)
    done = call(
        *RECORD, "--dir", tmp_path, "--record", "token:orders:kind=1", "--fsync", "interval",
        "--keep-bytes", "1000000", "--keep-s", "60", "--keep-conference", "7=5",
        "--keep-conference", "8=0.5", "--segment-bytes", "65536",
    )  # fmt: skip
    assert done.status == 0, done.err
    (record,) = started[0].records
    journal = record.journal
    assert (journal.sync, journal.keep_bytes, journal.keep_s) == ("interval", 1_000_000, 60.0)
    assert (journal.keep_conference_s, journal.segment_bytes) == ({7: 5.0, 8: 0.5}, 65536)


def assert_one_line(done: Any, field: str, allowed: str) -> None:
    assert done.status == 2
    assert done.out == ""
    assert done.err.endswith("\n")
    assert done.err.count("\n") == 1, done.err
    assert field in done.err
    assert allowed in done.err


def test_a_folder_that_exists_is_left_alone(call: Any, tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("mine")
    for words in (SIMULATE, ("swarm", "--seeds", "1:2")):
        done = call(*words, "--out", tmp_path)
        assert_one_line(done, f"out = {tmp_path}", "a folder that does not exist yet")
    assert [path.name for path in tmp_path.iterdir()] == ["precious"]


def test_an_empty_folder_and_a_file_exist_as_well(call: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    assert_one_line(call(*SIMULATE, "--out", tmp_path / "empty"), "out", "does not exist")
    assert_one_line(call(*SIMULATE, "--out", tmp_path / "file"), "out", "does not exist")
    assert_one_line(call(*SIMULATE, "--out", tmp_path / "file", "--force"), "out", "not exist")
    assert_one_line(call(*SIMULATE, "--out", tmp_path / "file" / "x"), "out", "can be written")


def test_force_replaces_the_files_of_a_run_and_nothing_else(call: Any, tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("mine")
    (tmp_path / "results.json").write_text("old")
    done = call(*SIMULATE, "--out", tmp_path, "--force", "--json")
    assert done.status == 0
    assert (tmp_path / "precious").read_text() == "mine"
    assert (tmp_path / "results.json").read_text() != "old"


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The trace of a small run."""
    from roundelay.runs.simulate import SimulateParams, simulate

    path = tmp_path_factory.mktemp("run") / "trace.parquet"
    simulate(SimulateParams(sites=3, messages=30, loss=0.1), trace=path)
    return path


def test_traces_that_cannot_be_read(call: Any, trace: Path, tmp_path: Path) -> None:
    whole = trace.read_bytes()
    files = {
        "truncated": whole[: len(whole) // 2],
        "beheaded": whole[100:],
        "empty": b"",
        "text": b"this is not a trace\n" * 50,
    }
    for name, content in files.items():
        path = tmp_path / f"{name}.parquet"
        path.write_bytes(content)
        assert_one_line(call("diagram", path, "--json"), "trace", str(path))
    damaged = bytearray(whole)
    damaged[200:1200] = b"\xff" * 1000
    (tmp_path / "damaged.parquet").write_bytes(damaged)
    done = call("diagram", tmp_path / "damaged.parquet", "--json")
    assert_one_line(done, "trace", "damaged")
    assert_one_line(call("diagram", tmp_path / "absent.parquet"), "trace", "does not exist")
    (tmp_path / "folder").mkdir()
    assert_one_line(call("diagram", tmp_path / "folder"), "trace", "does not exist")


def test_windows_and_targets_that_make_no_sense(call: Any, trace: Path, tmp_path: Path) -> None:
    assert_one_line(call("diagram", trace, "--from-ms", "9", "--to-ms", "3"), "to_ms", "from_ms")
    assert_one_line(call("diagram", trace, "--from-ms", "-1"), "from_ms", "from 0 up")
    assert_one_line(call("diagram", trace, "--from-ms", "1e12"), "from_ms", "where the trace ends")
    assert_one_line(call("diagram", trace, "--out", tmp_path / "x.png"), "out", ".svg")
    nowhere = tmp_path / "no" / "x.svg"
    assert_one_line(call("diagram", trace, "--out", nowhere), "out", "can be written")


def test_a_run_that_fails_leaves_no_folder(
    call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("roundelay.cli.simulate.simulate", interrupted)
    done = call(*SIMULATE, "--out", tmp_path / "run")
    assert done.status == 130
    assert done.out == ""
    assert done.err.strip().endswith("roundelay simulate: interrupted")
    assert not (tmp_path / "run").exists()
