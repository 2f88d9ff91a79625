"""The README's lines on Spark do what they say."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.journal.make import record, some_runs

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")


def test_a_journal_is_read_as_the_readme_says(tmp_path: Path) -> None:
    runs = some_runs(1, 50)
    record(tmp_path / "rec" / "journals" / "token%3aorders", runs)
    _, code = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, check=True, capture_output=True, text=True
    )
    for sender in {run.sender for run in runs}:
        sent = sum(len(run.bundle) for run in runs if run.sender == sender)
        assert re.search(rf"\| *{re.escape(sender)}\| *{sent}\|", done.stdout), done.stdout
    assert done.stderr == "", "Spark is quiet"
