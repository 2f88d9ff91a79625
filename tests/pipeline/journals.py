"""Journals of several recorders of one group, for the tests of reconcile, archive and query."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from msgspec import structs

from roundelay.journal.format import Run
from roundelay.journal.journal import JournalConfig
from tests.journal.make import record, some_runs

DAY_NS = 86_400_000_000_000


def two_days(seed: int, count: int) -> list[Run]:
    """Runs of which the second half is of the next day."""
    runs = some_runs(seed, count)
    half = count // 2
    return [*runs[:half], *(structs.replace(run, time=run.time + DAY_NS) for run in runs[half:])]


def journal(folder: Path, runs: Sequence[Run], *holes: tuple[int, int], **more: object) -> Path:
    """A recorder's journal that lacks some runs, by number; in segments of 16 KiB."""
    left = [run for i, run in enumerate(runs) if not any(lo <= i < hi for lo, hi in holes)]
    config = structs.replace(JournalConfig(segment_bytes=1 << 14, sync="os"), **more)
    return record(folder, left, config=config)
