"""`roundelay verify`: judge the traces of all sites, on Spark."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from roundelay.cli.options import PATH, POSITIVE, flag, json_option, option, spark_options
from roundelay.cli.output import console, literally, report, table
from roundelay.core.errors import ConfigError

if TYPE_CHECKING:
    from roundelay.pipeline.session import SparkOptions

EPILOG = """\b
Examples:
  roundelay verify runs/demo
  roundelay verify runs/first runs/second --json
  roundelay verify /tmp/traces                    the folder of `roundelay node --trace`
  roundelay verify runs/demo --strategy sql       the same by an independent way
  roundelay verify /tmp/traces --watch            while the nodes are running
"""


@click.command(epilog=EPILOG)
@click.argument("paths", metavar="DIR...", nargs=-1, required=True, type=PATH)
@option("--strategy", ("fast", "sql"), "By ranges of positions in numpy, or by Spark SQL.", "fast")
@flag("--oracle", "The same as --strategy sql.")
@flag("--watch", "Look at growing traces again and again; stop at the first alarm.")
@option("--every-s", POSITIVE, "With --watch: from trigger to trigger.", 2.0)
@option("--for-s", POSITIVE, "With --watch: stop after that long without an alarm.")
@json_option
@spark_options
def command(
    paths: tuple[Path, ...],
    strategy: str,
    oracle: bool,
    watch: bool,
    every_s: float,
    for_s: float | None,
    as_json: bool,
    spark_conf: SparkOptions,
) -> int:
    """Judge the traces of all sites: one order, nothing lost, twice, or made up?

    DIR is the folder of a run, a trace file, a folder with the traces of live nodes, or a folder
    with any of these in it.  Says for every invariant whether it holds, and shows the rows that
    prove it if not.  Exit status 1 if a promise was broken."""
    if oracle:
        strategy = "sql"
    if watch:
        return _watch(paths, every_s, for_s, as_json, spark_conf)
    from roundelay.pipeline.session import spark_session
    from roundelay.pipeline.verify.runs import find_runs

    scratch = Path(tempfile.mkdtemp(prefix="roundelay-verify-"))
    keep = False
    try:
        runs = find_runs(paths, scratch)  # wrong input is verdict before Spark is started
        with spark_session("verify", spark_conf) as spark:
            from roundelay.pipeline.verify import judge_all
            from roundelay.pipeline.verify.verdict import as_json as rendered

            verdict = rendered(judge_all(spark, runs, strategy=strategy))
        # What was put together from live traces is needed to draw what is wrong with them.
        keep = not verdict["holds"] and any(scratch.iterdir())
    finally:
        if not keep:
            shutil.rmtree(scratch, ignore_errors=True)
    report(verdict, as_json, show)
    return 0 if verdict["holds"] else 1


def show(verdict: dict[str, Any]) -> None:
    """The verdict for people."""
    screen = console()
    for run in verdict["runs"]:
        end = "" if run["settled"] else ", cut short: what must hold in the end is not judged"
        screen.print(
            f"{literally(run['run'])}: order {run['order']}, {run['sites']} sites, "
            f"{run['rows']:,} rows{end}"
        )
    verdicts = table("Invariants", "", "", "checked", "")
    verdicts.columns[1].justify = "left"
    verdicts.columns[3].justify = "left"
    for name, invariant in verdict["invariants"].items():
        mark = (
            "[green]holds[/green]"
            if invariant["holds"]
            else f"[red]BROKEN {invariant['broken']} ×[/red]"
        )
        if invariant["holds"] and not invariant["checked"]:
            mark = "[dim]nothing to check[/dim]"
        verdicts.add_row(name, invariant["about"], f"{invariant['checked']:,}", mark)
    screen.print(verdicts)
    for name, invariant in verdict["invariants"].items():
        for row in invariant["counterexamples"]:
            where = f"site {row['site']}, " if row["site"] >= 0 else ""
            moment = f"{where}{row['time_ns'] / 1e6:.3f} ms"
            screen.print(f"  [red]{name}[/red] at {moment}: {literally(row['detail'])}")
            screen.print(f"      {literally(row['diagram'])}", soft_wrap=True)
    good = verdict["holds"]
    colour = "green" if good else "red"
    words = "every promise was kept" if good else "a promise was broken"
    screen.print(f"\n  [bold {colour}]{words}[/bold {colour}]")


def _watch(
    paths: tuple[Path, ...],
    every_s: float,
    for_s: float | None,
    as_json: bool,
    spark_conf: SparkOptions,
) -> int:
    from roundelay.pipeline.session import spark_session

    for path in paths:
        if not path.is_dir():
            raise ConfigError("path", path, "with --watch a folder that exists")
    with spark_session("verify", spark_conf) as spark:
        from roundelay.pipeline.verify.watch import watch

        for trigger in watch(spark, paths, every_s=every_s, for_s=for_s):
            if as_json:
                click.echo(trigger.json())
            elif trigger.alarms or trigger.rows:
                click.echo(str(trigger))
            if trigger.alarms:
                return 1
    return 0
