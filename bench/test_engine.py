"""The benchmark of the engine measures what it says; its figures are in docs/performance.md."""

from __future__ import annotations

import json

import pytest

from bench import engine


def test_every_way_to_submit_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    engine.main(["--seconds", "0.05", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert [(one["way"], one["size"]) for one in found] == [
        (way, size) for way in (engine.READY, engine.SINGLE, engine.ISOLATED) for size in (64, 1024)
    ]
    for one in found:
        assert one["messages_per_s"] > 0
        assert set(one["us_per_bundle"]) == set(engine.STAGES)
    ready, single, isolated = found[0], found[2], found[4]
    assert ready["messages_per_bundle"] == 60_000 // 64
    assert single["messages_per_bundle"] > 2
    assert isolated["messages_per_bundle"] == 1
    assert 2.9 < isolated["pdus_per_bundle"] < 3.5  # message, acknowledgement, confirmation


def test_the_table_has_a_line_for_each(capsys: pytest.CaptureFixture[str]) -> None:
    engine.main(["--seconds", "0.02", "--payload", "5000", "--sites", "3"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("one processor for all of them")
    assert len([line for line in lines if " B" in line]) == 6
