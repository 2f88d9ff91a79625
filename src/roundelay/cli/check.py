"""`roundelay check`: judge a trace."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click

from roundelay.cli.options import PATH, json_option, option
from roundelay.cli.output import report
from roundelay.core.errors import ConfigError
from roundelay.runs.folder import TRACE
from roundelay.trace.checkers.check import check_trace
from roundelay.trace.live import live_files
from roundelay.trace.merge import merge

EPILOG = """\b
Examples:
  roundelay check runs/first                    the folder of a run
  roundelay check runs/first/trace.parquet
  roundelay node --name a --trace /tmp/traces … ; roundelay check /tmp/traces
"""


@click.command(epilog=EPILOG)
@click.argument("path", type=PATH)
@option("--group", str, "Only this group, of those that live nodes have left traces of.")
@json_option
def command(path: Path, group: str | None, as_json: bool) -> int:
    """Judge a trace: was there one order, was anything lost, twice, or made up?

    PATH is a trace file, the folder of a run, or a folder with the traces of live nodes, which are
    put together first.  What has to be true only in the end is judged if the run had one.  Exit
    status 1 if a promise was broken."""
    results = list(_judged(path, group))
    broken = sum(len(result["violations"]) for result in results)
    report({"broken": broken, "traces": results}, as_json, _show)
    return 1 if broken else 0


def _show(content: dict[str, Any]) -> None:
    for result in content["traces"]:
        name = f"{result['group']}: " if result["group"] else ""
        click.echo(
            f"{name}{result['sites']} sites, {result['committed']} messages delivered, "
            f"{result['everywhere']} of them by everybody"
        )
        for violation in result["violations"]:
            click.echo(f"  {violation}")
    click.echo("a promise was broken" if content["broken"] else "every promise was kept")


def _judged(path: Path, group: str | None) -> Iterator[dict[str, Any]]:
    if not path.exists():
        raise ConfigError("path", path, "a trace file, or a folder with traces")
    if path.is_dir():
        groups = sorted({file.header.group for file in live_files(path)})
        if group is not None and group not in groups:
            raise ConfigError("group", group, "one of " + (", ".join(groups) or "none"))
        if groups:
            with TemporaryDirectory(prefix="roundelay-check-") as folder:
                for name in groups if group is None else [group]:
                    merged = merge(path, Path(folder) / TRACE, group=name)
                    yield _one(merged.path, name)
            return
        path = path / TRACE
        if not path.exists():
            raise ConfigError("path", path.parent, "a folder with a trace of a run or of nodes")
    elif group is not None:
        raise ConfigError("group", group, "only with a folder of traces of live nodes")
    yield _one(path, "")


def _one(path: Path, group: str) -> dict[str, Any]:
    checker = check_trace(path)
    return {
        "group": group,
        "sites": len(checker.sites),
        "order": checker.order,
        "committed": checker.committed,
        "everywhere": checker.everywhere,
        "uncompared": checker.uncompared,
        "violations": [str(violation) for violation in checker.violations],
    }
