"""The demo with real processes says what happened, and no more."""

from __future__ import annotations

import asyncio
from pathlib import Path

from roundelay.runs.folder import run_folder
from roundelay.runs.live_demo import LiveDemo, live_params
from roundelay.trace.reader import read


def test_the_site_that_is_killed_has_the_token(tmp_path: Path) -> None:
    """It was whoever had said so last, and the token had moved on."""
    told: list[str] = []
    with run_folder(tmp_path / "demo") as folder:
        demo = LiveDemo(live_params(3, 4000), folder, told.append)
        results = asyncio.run(demo.run())
        demo.write(results)
    assert results["verdict"] == "kept", results
    assert results["killed_with_token"]
    assert any("and the token with it" in line for line in told)
    (crash,) = (row for row in read(tmp_path / "demo" / "trace.parquet") if row.event == "CRASH")
    assert f"kill {demo.sites[crash.site].name} and" in "".join(told)
    # What is there beyond what was asked for is what the killed site sent once more.
    assert results["committed"] <= results["sent"]
    report = (tmp_path / "demo" / "report.html").read_text(encoding="utf-8")
    assert "The token site is killed" in report
    assert "I6" in report
    assert f"site {demo.sites[crash.site].name}" in report


def test_what_does_not_add_up_is_explained(tmp_path: Path) -> None:
    """More sent than committed, or more committed than asked for: both are the kill's doing."""
    with run_folder(tmp_path / "demo") as folder:
        demo = LiveDemo(live_params(3, 4000), folder, lambda line: None)
    results = {"verdict": "kept", "sent": 4030, "everywhere": 4020}
    assert "20 more than the 4,000 asked for" in demo.sentence(results)
    assert "10 more were sent and are nowhere" in demo.sentence(results)
    assert demo.surplus(results | {"sent": 4000, "everywhere": 4000}) == ""
