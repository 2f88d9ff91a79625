"""The folder a run leaves behind: always the same files, explained in docs/runs.md.

    params.json     what decided the run: enough to repeat it
    results.json    what came out, as the command prints it with --json
    trace.parquet   every event
    spacetime.svg   a window of it as a picture
    report.html     the results for people, with the picture inside

A folder that exists is left alone unless `force` is given, and then only files with these names
are replaced.  A run that fails leaves no new folder behind.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from roundelay import __version__
from roundelay.core.errors import ConfigError

PARAMS: Final = "params.json"
RESULTS: Final = "results.json"
TRACE: Final = "trace.parquet"
DIAGRAM: Final = "spacetime.svg"
REPORT: Final = "report.html"
FILES: Final = (PARAMS, RESULTS, TRACE, DIAGRAM, REPORT)


class RunFolder:
    """Where one run puts its files."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.trace = path / TRACE

    def write_params(self, command: str, params: Mapping[str, Any]) -> None:
        self._write_json(PARAMS, {"command": command, "roundelay": __version__, **params})

    def write_results(self, results: Mapping[str, Any]) -> None:
        self._write_json(RESULTS, results)

    def write_report(self, svg: str, html: str) -> None:
        """The picture, and the page that shows it."""
        (self.path / DIAGRAM).write_text(svg, encoding="utf-8")
        (self.path / REPORT).write_text(html, encoding="utf-8")

    def _write_json(self, name: str, content: Mapping[str, Any]) -> None:
        (self.path / name).write_text(json_text(content) + "\n", encoding="utf-8")


def json_text(content: Mapping[str, Any]) -> str:
    """One JSON object, for people and programs alike."""
    return json.dumps(content, indent=1)


def as_row(violation: Any) -> dict[str, Any]:
    """A violation, as `results.json` has it."""
    return {
        "invariant": violation.invariant,
        "site": violation.site,
        "time_ms": violation.time / 1e6,
        "detail": violation.detail,
    }


@contextmanager
def run_folder(path: Path, *, force: bool = False) -> Iterator[RunFolder]:
    """Make the folder of a run, and take it away again if the run fails."""
    is_new = not path.exists()
    if not is_new and not (force and path.is_dir()):
        free = "a folder that does not exist yet"
        allowed = f"{free}, or with --force one to replace" if path.is_dir() else free
        raise ConfigError("out", path, allowed)
    try:
        path.mkdir(parents=True, exist_ok=True)
        _clear(path)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError("out", path, f"a folder that can be written ({reason})") from None
    try:
        yield RunFolder(path)
    except BaseException:
        if is_new:
            with suppress(OSError):  # a folder with anything else in it stays
                _clear(path)
                path.rmdir()
        raise


def _clear(path: Path) -> None:
    """Take away what is ours, and nothing else."""
    for name in FILES:
        (path / name).unlink(missing_ok=True)
