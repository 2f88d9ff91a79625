"""Fixtures of the trace's tests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.trace.play import Play

Judge = Callable[..., Counter[str]]


@pytest.fixture
def judge(tmp_path: Path) -> Judge:
    """Ends a play and counts violations, after making sure that its trace file tells the same."""

    def judged(play: Play, settled: bool = True) -> Counter[str]:
        counts = play.finish(settled)
        from_file = play.record(tmp_path / "trace.parquet")
        assert from_file.violations == play.checker.violations
        return counts

    return judged
