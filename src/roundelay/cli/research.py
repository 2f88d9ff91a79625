"""`roundelay sweep`, `figures` and `advise`: grids of simulations on Spark."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Any, Final

import click
from msgspec import structs

from roundelay.cli.options import (
    FOLDER,
    LOSS,
    PATH,
    POSITIVE,
    Session,
    Whole,
    flag,
    json_option,
    option,
    several,
    spark_options,
)
from roundelay.cli.output import coloured, number, print_table, printable, report
from roundelay.core.errors import ConfigError, UsageError
from roundelay.sim.families.registry import PROTOCOLS

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


COUNTED: Final = (
    ("points", "points"),
    ("runs", "runs"),
    ("runs kept from before", "kept"),
    ("tasks", "tasks"),
    ("violations", "violations"),
    ("runs with something undelivered", "undelivered"),
    ("start of Spark (s)", "start_s"),
    ("sweep (s)", "sweep_s"),
)


@click.command(epilog=SWEEP_EPILOG)
@click.argument("grid")
@option("--out", FOLDER, "Folder for runs.parquet and summary.parquet.", required=True)
@option("--messages", Whole(1), "Messages a run, whatever the grid says.")
@option("--seeds", Whole(1), "Runs at each point, whatever the grid says.")
@flag("--force", "Replace another sweep in that folder.")
@spark_options
@json_option
def sweep_command(
    grid: str,
    out: Path,
    messages: int | None,
    seeds: int | None,
    force: bool,
    session: Session,
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

    claim(out.resolve(), chosen, force)  # a folder that will not do: say so before Spark starts
    began = monotonic()
    with session() as spark:
        started = monotonic()
        try:
            done = run_sweep(spark, chosen, out)
        except KeyboardInterrupt:
            click.echo(f"what is finished is kept in {out}: the same command goes on", err=True)
            raise
        ended = monotonic()

    def show(content: dict[str, Any]) -> None:
        rows = ((text, content[name]) for text, name in COUNTED)
        print_table(f"sweep {done.grid}", ("", ""), rows)
        click.echo(f"  written: {out / RUNS}, {out / SUMMARY}")

    seconds = {"start_s": started - began, "sweep_s": ended - started}
    content = structs.asdict(done) | {"out": str(out)} | seconds
    return report(content, as_json, show, done.violations or done.undelivered)


@click.command(epilog=FIGURES_EPILOG)
@click.argument("folders", metavar="DIR...", nargs=-1, required=True, type=PATH)
@option("--out", FOLDER, "Folder for the pictures, figures.csv and verdict.json.", required=True)
@json_option
def figures_command(folders: tuple[Path, ...], out: Path, as_json: bool) -> int:
    """Draw the papers' figures from sweeps, and judge every point.

    DIR is what `roundelay sweep` wrote.  Exit status 1 if a point lies outside the tolerance."""
    with needed("figures need", "plots,trace", "matplotlib", "pyarrow"):
        from roundelay.pipeline.research.figures import make_figures

    verdict = make_figures(folders, out)
    return report(verdict, as_json, lambda _: _show_figures(verdict, out), not verdict["good"])


@contextmanager
def needed(sentence: str, extras: str, *packages: str) -> Iterator[None]:
    """What is imported inside needs these packages, which belong to extras of ours."""
    try:
        yield
    except ImportError as error:
        package = (error.name or "").partition(".")[0]
        if package not in packages:
            raise
        raise UsageError(f"{sentence} {package}: pip install 'roundelay[{extras}]'") from None


def _show_figures(verdict: dict[str, Any], out: Path) -> None:
    names, rows = ("figure", "points", "judged", "outside"), []
    for figure in verdict["figures"]:
        worst = figure["worst"]
        where = ("", "") if worst is None else (f"{worst['deviation']:+.1%}", worst["point"])
        rows.append((*(figure[name] for name in names), *where))
    print_table("", (*names, "largest deviation", "at"), rows)
    for claim in verdict["claims"]:
        mark = coloured("yes" if claim["holds"] else "NO ", claim["holds"])
        click.echo(f"  {mark} {printable(claim['figure'])}: {printable(claim['claim'])}")
    for row in verdict["outside"]:
        click.echo(f"  {coloured('outside', False)} {printable(row)}")
    click.echo(f"  written: {out}  ({', '.join(verdict['files'])})")


ADVISE_EPILOG = """\b
Examples:
  roundelay simulate token --loss 0.1 --rate 20 --out runs/first; roundelay advise runs/first
  roundelay advise /var/lib/roundelay/journal/orders --sites 5 --loss 0.02 --delay-ms 50
  roundelay advise runs/first --order fifo --resilience 0 --json
"""

SHOWN: Final = 12


@click.command(epilog=ADVISE_EPILOG)
@click.argument("path", metavar="JOURNAL|TRACE", type=PATH)
@option(
    "--order",
    ("total", "fifo", "none"),
    "The order that is needed.  [default: what the recorded group gives, or total]",
)
@option("--resilience", Whole(0), "Failures to survive.  [default: as recorded, or 1]")
@option("--delay-ms", POSITIVE, "99 % of deliveries within this time.  [default: 200]")
@option(
    "--loss",
    LOSS,
    "Chance that a receiver misses a PDU.  [default: as measured in the trace, or 0]",
)
@option(
    "--transit-ms",
    POSITIVE,
    "How long a PDU is under way.  [default: as measured in the trace, or 0.1]",
)
@option(
    "--sites",
    Whole(2, 1000),
    "Members of the group.  [default: as recorded; of a journal, as many as have sent, at least 3]",
)
@several(
    "--protocol",
    PROTOCOLS,
    "Try this one; repeat it.  [default: token, to, po, positive-ack]",
    "protocols",
)
@several("--profile", ("paper", "fast"), "Try this one; repeat it.  [default: both]", "profiles")
@several(
    "--hold-ms", POSITIVE, "Try this T; repeat it.  [default: 10, 20, 50, 100, 200]", "holds_ms"
)
@option("--messages", Whole(2), "The last so many messages of the record are sent again.", 1000)
@option("--seeds", Whole(1), "How often each candidate is run.", 3)
@option("--group", str, "Of several that live nodes have left traces of.")
@spark_options
@json_option
def advise_command(path: Path, session: Session, as_json: bool, **given: Any) -> int:
    """Send a recorded workload again under other protocols, and recommend one.

    PATH is the folder of a journal, a trace file, the folder of a run, or a folder with the traces
    of live nodes.  Of all that gives the order, the resilience and the delay that are needed, the
    one with the fewest PDUs per broadcast is recommended.  Exit status 1 if none does."""
    with needed("advise needs", "spark", "pyarrow"):
        from roundelay.pipeline.research.workload import read_workload
    workload = read_workload(path, given["messages"], given["group"])
    with session() as spark:
        advice = _advise(spark, workload, given)
    choice = advice["recommendation"]
    return report(advice, as_json, _show_advice, not choice or choice["misses"])


def _advise(spark: Any, workload: Any, given: dict[str, Any]) -> dict[str, Any]:
    from roundelay.pipeline.research import advise as job

    sites = given["sites"] or workload.sites
    if sites < workload.sites and any(source >= sites for _, source, _ in workload.arrivals):
        raise ConfigError("sites", sites, f"at least {workload.sites}: so many were recorded")
    workload = structs.replace(workload, sites=sites)
    now = job.present(workload)
    measured = 0.0 if workload.loss is None else workload.loss
    loss = measured if given["loss"] is None else given["loss"]
    measured_ms = workload.transit_ns / 1e6 if workload.transit_ns else job.TRANSIT_MS
    transit_ms = given["transit_ms"] or measured_ms
    most = (sites + 1) // 2 - 1
    resilience = given["resilience"]
    if resilience is None:
        resilience = min(1, most) if now is None else now.resilience
    elif resilience > most:
        raise ConfigError("resilience", resilience, f"0 to {most} for {sites} sites")
    required = job.Requirements(
        order=given["order"] or ("total" if now is None else now.family.order),
        resilience=resilience,
        delay_ms=given["delay_ms"] or job.DELAY_MS,
    )
    tried = job.candidates(
        sites,
        transit_ms,
        protocols=given["protocols"] or job.CHOICE,
        profiles=given["profiles"] or ("paper", "fast"),
        holds_ms=list(given["holds_ms"]),
    )
    advice = job.advise(
        spark, workload, required, tried, loss=loss, transit_ms=transit_ms, seeds=given["seeds"]
    )
    if given["loss"] is None and workload.loss is None:
        advice["words"].append("The record does not tell what was lost: none is assumed (--loss).")
    return advice


def _show_advice(advice: dict[str, Any]) -> None:
    load = advice["workload"]
    rate = "" if load["rate"] is None else f", {number(load['rate'])} a second"
    bursts = "" if load["burstiness"] is None else f", burstiness {load['burstiness']:.2f}"
    click.echo(
        f"  {number(load['messages'])} messages of {load['senders']} senders in a group of "
        f"{load['sites']}{rate}{bursts} (1 is Poisson), {load['size_mean']:,.0f} bytes each; "
        f"loss {load['loss']:.1%}, transit {load['transit_ms']:.3g} ms"
    )
    candidates, rows = advice["candidates"], []
    for candidate in candidates[:SHOWN]:
        ci95 = "" if candidate["pdus_ci95"] is None else f" ±{candidate['pdus_ci95']:.2f}"
        pdus, misses = f"{candidate['pdus_per_message']:.2f}{ci95}", ", ".join(candidate["misses"])
        delays = (f"{candidate['delay_ms_mean']:.1f}", f"{candidate['delay_ms_p99']:.1f}")
        rows.append((candidate["name"], pdus, *delays, candidate["storage_max"], misses))
    columns = ("candidate", "PDUs per broadcast", "delay (ms)", "99 % (ms)", "storage", "<lacks")
    print_table("", columns, rows)
    if len(candidates) > SHOWN:
        click.echo(f"  and {len(candidates) - SHOWN} more (--json has them all)")
    click.echo(f"  criterion: {advice['criterion']}")
    for line in advice["words"]:
        click.echo(f"  {printable(line)}")
