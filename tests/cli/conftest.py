"""How the tests of the command line call it: in this process, or as a program."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from roundelay.cli.main import run


class Called(Struct):
    """What a call of the command printed, and its exit status."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        found = json.loads(self.out)
        assert isinstance(found, dict)
        return found


Call = Callable[..., Called]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    """Call the command in this process."""

    def call(*words: object) -> Called:
        capsys.readouterr()
        status = run([str(word) for word in words])
        done = capsys.readouterr()
        return Called(status, done.out, done.err)

    return call


@pytest.fixture
def program() -> Call:
    """Call the command as a program of its own, unmeasured: coverage slows it down."""

    def program(*words: object, **env: str) -> Called:
        inherited = {name: value for name, value in os.environ.items() if "COVERAGE" not in name}
        done = subprocess.run(
            [Path(sys.executable).with_name("roundelay"), *map(str, words)],
            env=inherited | env,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        return Called(done.returncode, done.stdout, done.stderr)

    return program
