"""`roundelay journal`: info, cat, check, repair."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from roundelay.cli.main import run
from roundelay.journal.files import segments_of
from roundelay.journal.format import head_only
from roundelay.journal.journal import Journal, JournalConfig
from tests.journal.make import GROUP, copied, flip, messages, record, some_runs

RUNS = some_runs(31, 120)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    runs = [*RUNS[:100], head_only(RUNS[100]), *RUNS[105:]]
    return record(tmp_path / "one", runs, config=JournalConfig(segment_bytes=1 << 12))


def call(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    capsys.readouterr()
    status = run(["journal", *map(str, words)])
    done = capsys.readouterr()
    return status, done.out, done.err


def test_info_says_what_a_journal_holds(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = call(capsys, "info", folder, "--json")
    known = json.loads(out)
    assert status == 0
    assert (known["group"], known["begin"], known["end"]) == (GROUP, 0, RUNS[-1].end)
    assert known["missing"] == [[RUNS[101].position, RUNS[105].position]]
    assert sum(known["payload bytes by sender"].values()) == sum(
        len(one.bundle.data) for one in [*RUNS[:100], *RUNS[105:]]
    )
    status, out, _ = call(capsys, "info", folder)
    assert status == 0
    assert GROUP in out


def test_info_and_check_know_what_is_not_sealed_yet_and_what_is_empty(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    journal = Journal(tmp_path, GROUP)
    status, out, _ = call(capsys, "check", tmp_path)
    assert status == 0
    assert "empty, 0 records" in out
    for one in RUNS:
        journal.add(one)
    journal.commit()
    _, before, _ = call(capsys, "info", tmp_path, "--json")
    journal.close()
    _, after, _ = call(capsys, "info", tmp_path, "--json")
    unsealed, sealed = json.loads(before), json.loads(after)
    assert (unsealed.pop("sealed"), sealed.pop("sealed")) == (0, 1)
    assert unsealed == sealed


def test_cat_prints_what_is_selected(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = call(
        capsys, "cat", folder, "--json", "--conference", 1, "--conference", 2, "--sender", "bob",
        "--kind", 0, "--until", RUNS[90].position,
    )  # fmt: skip
    assert status == 0
    wanted = [
        one.position
        for one in messages(RUNS[:90])
        if one.conference in (1, 2) and one.sender == "bob" and one.kind == 0
    ]
    assert wanted
    assert [json.loads(line)["seq"] for line in out.splitlines()] == wanted
    _, out, _ = call(capsys, "cat", folder, "--json", "--since", RUNS[100].position, "--count", 30)
    lines = [json.loads(line) for line in out.splitlines()]
    heads = lines[: RUNS[100].records]
    assert [one["size"] for one in heads] == list(RUNS[100].bundle.sizes)
    assert lines[len(heads)]["missing"] == [RUNS[101].position, RUNS[105].position]
    assert len(lines) == 31
    _, out, _ = call(capsys, "cat", folder, "--until", 3)
    assert out.count("\n") == 3


def test_cat_selects_by_time(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    moment = RUNS[50].time
    _, out, _ = call(capsys, "cat", folder, "--json", "--since-time", moment)
    found = [json.loads(line) for line in out.splitlines()]
    assert [one["seq"] for one in found if "seq" in one] == [
        one.position for one in messages([*RUNS[:101], *RUNS[105:]]) if one.time >= moment
    ]
    _, out, _ = call(capsys, "cat", folder, "--until-time", "2020-01-01T00:00:00Z")
    assert "missing" in out
    assert len(out.splitlines()) == 1


def test_check_and_repair_find_and_mend(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = record(tmp_path / "whole", RUNS, together=7)
    bad = copied(folder, tmp_path / "bad")
    flip(segments_of(bad)[0], 900)
    status, out, _ = call(capsys, "check", bad)
    assert status == 1
    assert "checksum, positions" in out
    status, out, _ = call(capsys, "check", bad, "--json")
    assert status == 1
    assert json.loads(out)["good"] is False
    status, out, _ = call(capsys, "repair", bad)
    assert status == 1
    assert "still missing" in out
    status, out, _ = call(capsys, "repair", bad, "--from", whole, "--json")
    assert status == 0
    assert json.loads(out)["still_missing"] == []
    status, out, _ = call(capsys, "check", bad, "--json")
    assert status == 0
    assert json.loads(out)["records"] == RUNS[-1].end


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["info", "nowhere"], "journal = nowhere is not allowed"),
        (["check", "nowhere"], "journal = nowhere is not allowed"),
        (["cat", "nowhere"], "journal = nowhere is not allowed"),
        (["repair", "nowhere"], "journal = nowhere is not allowed"),
        (["cat", "x", "--since", "-1"], "since = -1 is not allowed"),
        (["cat", "x", "--since-time", "tomorrow"], "since_time = tomorrow is not allowed"),
        (["mend", "x"], "No such command"),
    ],
)
def test_wrong_input_gets_one_line(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, err = call(capsys, *words)
    assert status == 2
    assert out == ""
    assert says in err
    assert len(err.splitlines()) == 1
