"""Runs tests/scenarios/*.txt; ROUNDELAY_REWRITE=1 stores what they print."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from roundelay.core.errors import UsageError
from tests.sim.scenario import check_file, run_script, split

SCENARIOS = sorted((Path(__file__).parents[1] / "scenarios").glob("*.txt"))


@pytest.mark.parametrize("path", SCENARIOS, ids=[path.stem for path in SCENARIOS])
def test_scenario(path: Path) -> None:
    expected, actual, failures = check_file(path, rewrite="ROUNDELAY_REWRITE" in os.environ)
    assert not failures
    assert actual == expected


def test_a_script_prints_what_happened() -> None:
    output, failures = run_script("sites 3 resilience 1\nshow deliveries\nsubmit 0 a\nrun 1s\n")
    assert not failures
    assert [line.split(maxsplit=1)[1] for line in output.splitlines()[4:]] == [
        "1        delivers at 0: a",
        "0        delivers at 0: a",
        "2        delivers at 0: a",
    ]


def test_an_expectation_that_is_not_met_is_a_failure() -> None:
    output, failures = run_script("sites 3\nsubmit 0 a\nrun 1s\nexpect 0,1 delivered b\n")
    assert failures == ["expect 0,1 delivered b"]
    assert "NO (delivered: 0: a; 1: a; 2: a)" in output


def test_waiting_in_vain_is_a_failure() -> None:
    _, failures = run_script("sites 3\nshow roles\nrun until 0 deliver 1\n")
    assert failures == ["0 did not deliver 1"]


def test_every_command_works() -> None:
    script = """
        sites 4 resilience 1 hold 10ms pass 20ms resend 20ms retx 10ms attempts 3 idle 99ms batch no
        medium mesh 1ms 2ms
        seed 3
        show sends receives losses roles deliveries notices
        lose 5%
        duplicate 5%
        delay 1ms
        submit 0 a
        run 100ms
        partition 0,1 | 2,3
        deaf 0 to 1,2
        cut 1 3
        clog 0 2 for 10ms
        lose next 2 ACK to 1,2 from 0
        lose next TRANSFER
        run 50ms
        heal
        crash 1 keeps memory
        crash 2
        run 10ms
        restart 1,2
        pause 3
        clock 0 rate 1.1
        clock 0 jump 1d
        reform 1
        run 100ms
        resume 3
        storm
        run 1s
        crash 3 keeps disk mid-batch
        submit 3 b
        run 1s
        power-cut
        restart all
        run 3s
        crash 0 keeps nothing
        restart 0
        run 3s
        submit 1 c
        run until 1 deliver 2
        state
        expect agreement
        expect no PA_B
    """
    output, failures = run_script(script)
    assert not failures
    for word in ("→ all", "←", "✗", "delivers at 0: a", "view", "crashes, keeps memory", "role "):
        assert word in output
    assert run_script(script)[0] == output


def test_positive_acknowledgement_can_be_scripted() -> None:
    output, failures = run_script(
        "protocol positive-ack\nsites 3 resend 20ms\nsubmit 0 a\nrun 1s\n"
        "expect all delivered a\nexpect 2 PA_ACK\nstate\n"
    )
    assert not failures
    assert "PA_B" in output


@pytest.mark.parametrize("protocol", ["to", "to-channel", "po", "spo"])
def test_clusters_can_be_scripted(protocol: str) -> None:
    output, failures = run_script(
        f"protocol {protocol}\nsites 3 ack 2ms\nsubmit 0 a\nrun 1s\nexpect all delivered a\n"
        "expect 1 DT\nexpect 1 DT from 0\nexpect no DT from 1,2\nexpect 5 NULL\nexpect silence\n"
        "state\n"
    )
    assert not failures
    assert "epoch 0 of 0,1,2" in output


def test_silence_is_not_taken_for_granted() -> None:
    _, failures = run_script("protocol po\nsites 3 stat 50ms\npartition 0 | 1\nsubmit 0 a\n"
                             "expect silence\n")  # fmt: skip
    assert failures == ["expect silence"]


@pytest.mark.parametrize(
    "line, complaint",
    [
        ("dance", "no command dance"),
        ("run 5", "not a time"),
        ("lose 5", "not a chance"),
        ("submit 9 x", "sites are 0 to 2"),
        ("sites 3 colour red\nrun 1s", "no field colour"),
        ("run 1s\nsites 4", "before anything happens"),
        ("sites 3 resilience 5\nrun 1s", "resilience"),
        ("medium ether", "one of bus"),
        ("protocol x", "token or positive-ack"),
        ("crash", "line 1"),
        ("reopen 0,1 epoch 2", "only clusters"),
        ("protocol po\nsubmit 0 a\nreopen 0,1 epoch 0", "epoch = 0"),
        ("protocol to-channel\nmedium mesh 1ms 1ms\nrun 1s", "needs the medium bus"),
        ("protocol spo\nsubmit 0 a to 9", "sites are 0 to 2"),
    ],
)
def test_mistakes_name_the_line(line: str, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint) as caught:
        run_script(line)
    assert "line " in str(caught.value)


def test_a_file_is_script_and_output() -> None:
    assert split("a\nb\n---\nout\n") == ("a\nb\n", "out\n")
    assert split("a\n") == ("a\n", "")
    assert SCENARIOS


def test_a_file_can_be_rewritten(tmp_path: Path) -> None:
    path = tmp_path / "case.txt"
    path.write_text("sites 1 resilience 0\nshow deliveries\nsubmit 0 a\n")
    expected, actual, _ = check_file(path)
    assert expected == ""
    assert check_file(path, rewrite=True)[:2] == (actual, actual)
    assert check_file(path)[:2] == (actual, actual)
    assert path.read_text().startswith("sites 1 resilience 0\nshow deliveries\nsubmit 0 a\n---\n")
