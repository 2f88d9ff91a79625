"""What the README tells people to type works."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

README = Path(__file__).parents[2] / "README.md"
PAGES = (README, *(README.parent / "docs").glob("*.md"))


def lines(page: Path) -> list[str]:
    """The calls of the command in a page's blocks of shell code."""
    blocks = re.findall(r"```sh\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    return [
        line for block in blocks for line in block.splitlines() if line.startswith("roundelay ")
    ]


LIVE = ("node", "listen", "send")
"""Tested by tests/node and tests/cli/test_talk.py, with nodes of their own."""


def test_the_lines_of_the_readme_run(
    call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = lines(README)
    assert len(found) >= 5
    for line in found:
        words = shlex.split(line, comments=True)[1:]
        if words[0] == "explore" or words[0] in LIVE:
            continue  # tests/sim runs the explorer at length
        done = call(*words)
        assert (done.status, done.err) == (0, ""), line
        assert done.out


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_line_in_the_pages_has_options_that_exist(call: Any, page: Path) -> None:
    for line in lines(page):
        words = shlex.split(line, comments=True)[1:]
        options = call(words[0], "--help").out if words[0][0] != "-" else call("--help").out
        if "COMMAND [ARGS]" in options and words[0][0] != "-":  # a family of commands
            options = call(*words[:2], "--help").out
        for word in words:
            if word.startswith("--"):
                assert re.search(rf"{word}\b", options), line
