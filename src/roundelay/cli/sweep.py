"""`roundelay sweep` and `roundelay figures`: a grid of simulations, and pictures of it."""

from __future__ import annotations

from pathlib import Path
from time import monotonic
from typing import Any

import click
from msgspec import structs

from roundelay.cli.options import FOLDER, PATH, Whole, flag, json_option, option, spark_options
from roundelay.cli.output import add_row, console, literally, print_json, report, table
from roundelay.core.errors import UsageError

SWEEP_EPILOG = """\b
Examples:
  roundelay sweep fig6 --messages 2000 --seeds 5 --out runs/fig6
  roundelay sweep grid.toml --out runs/mine --master spark://host:7077

\b
A grid file:
  messages = 1000
  seeds = 5
  [[grid]]
  protocol = ["token", "positive-ack"]
  sites = [3, 10]
  loss = [0.0, 0.05, 0.1]
"""

FIGURES_EPILOG = """\b
Examples:
  roundelay figures runs/fig6 --out figures
  roundelay figures runs/fig6 runs/table1 runs/complexity runs/spo --out figures
"""


@click.command(epilog=SWEEP_EPILOG)
@click.argument("grid")
@option("--out", FOLDER, "Folder for runs.parquet and summary.parquet.", required=True)
@option("--messages", Whole(1), "Messages a run, whatever the grid says.")
@option("--seeds", Whole(1), "Runs at each point, whatever the grid says.")
@flag("--force", "Replace another sweep in that folder.")
@spark_options
@json_option
def sweep(
    grid: str,
    out: Path,
    messages: int | None,
    seeds: int | None,
    force: bool,
    spark_conf: Any,
    as_json: bool,
) -> int:
    """Simulate every point of a GRID, several times, on Spark.

    GRID is fig6, table1, complexity or spo, the figures of the papers, or a TOML file.  A sweep
    that was interrupted goes on where it was when the same command is given again, and with more
    --seeds only the new ones are run.  Exit status 1 if a promise was broken in a run."""
    from roundelay.pipeline.research.grid import load

    chosen = load(grid, messages, seeds)
    from roundelay.pipeline.research.sweep import RUNS, SUMMARY, claim
    from roundelay.pipeline.research.sweep import sweep as run_sweep
    from roundelay.pipeline.session import spark_session

    claim(out.resolve(), chosen, force)  # a folder that will not do: say so before Spark starts
    began = monotonic()
    with spark_session("sweep", spark_conf) as spark:
        started = monotonic()
        try:
            done = run_sweep(spark, chosen, out)
        except KeyboardInterrupt:
            click.echo(f"what is finished is kept in {out}: the same command goes on", err=True)
            raise
        ended = monotonic()
    content = structs.asdict(done) | {"out": str(out)}
    if as_json:
        print_json(content | {"start_s": started - began, "sweep_s": ended - started})
    else:
        screen = console()
        grid_ = table(f"sweep {done.grid}", "", "")
        counts = {
            "points": done.points,
            "runs": done.runs,
            "runs kept from before": done.kept,
            "tasks": done.tasks,
            "violations": done.violations,
            "runs with something undelivered": done.undelivered,
            "start of Spark (s)": started - began,
            "sweep (s)": ended - started,
        }
        for counted in counts.items():
            add_row(grid_, *counted)
        screen.print(grid_)
        screen.print(f"  written: {out / RUNS}, {out / SUMMARY}")
    return 1 if done.violations or done.undelivered else 0


@click.command(epilog=FIGURES_EPILOG)
@click.argument("folders", metavar="DIR...", nargs=-1, required=True, type=PATH)
@option("--out", FOLDER, "Folder for the pictures, figures.csv and verdict.json.", required=True)
@json_option
def figures(folders: tuple[Path, ...], out: Path, as_json: bool) -> int:
    """Draw the papers' figures from sweeps, and judge every point.

    DIR is what `roundelay sweep` wrote.  Exit status 1 if a point lies outside the tolerance."""
    try:
        from roundelay.pipeline.research.figures import make_figures
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in ("matplotlib", "pyarrow"):
            raise
        raise UsageError(
            f"figures need {error.name}: pip install 'roundelay[plots,trace]'"
        ) from None

    verdict = make_figures(folders, out)
    report(verdict, as_json, lambda _: _show(verdict, out))
    return 0 if verdict["good"] else 1


def _show(verdict: dict[str, Any], out: Path) -> None:
    screen = console()
    grid = table("", "figure", "points", "judged", "outside", "largest deviation", "at")
    for figure in verdict["figures"]:
        worst = figure["worst"]
        where = ("", "") if worst is None else (f"{worst['deviation']:+.1%}", worst["point"])
        add_row(
            grid, figure["figure"], figure["points"], figure["judged"], figure["outside"], *where
        )
    screen.print(grid)
    for claim in verdict["claims"]:
        mark = "[green]yes[/green]" if claim["holds"] else "[red]NO [/red]"
        screen.print(f"  {mark} {literally(claim['figure'])}: {literally(claim['claim'])}")
    for row in verdict["outside"]:
        screen.print(f"  [red]outside[/red] {literally(row)}")
    screen.print(f"  written: {out}  ({', '.join(verdict['files'])})", soft_wrap=True)
