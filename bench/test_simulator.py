"""The benchmark measures what it says; its figures are in docs/performance.md."""

from __future__ import annotations

import json

import pytest

from bench import simulator


def test_the_benchmark_prints_everything_in_one_run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(simulator, "measured", lambda repeat, quick: dict.fromkeys(CASES, 1e6))
    simulator.main(["--quick", "--repeat", "1", "--messages", "300"])
    text = capsys.readouterr().out
    for case in CASES:
        assert case in text
    assert "goal" in text
    assert "300 messages at 5 sites" in text


CASES = (
    "bare heapq loop",
    "SimPy broadcast, N = 10",
    "SimPy broadcast, N = 30",
    "token, N = 10",
    "token, N = 30",
    "token, N = 10, hashed and checked",
    "token, N = 30, hashed and checked",
)


def test_every_case_runs(capsys: pytest.CaptureFixture[str]) -> None:
    simulator.main(["--quick", "--repeat", "1", "--skip-memory", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert set(found["events_per_s"]) == set(CASES)
    assert all(speed > 1000 for speed in found["events_per_s"].values())
    assert found["long_run"] is None
