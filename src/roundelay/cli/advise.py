"""`roundelay advise`: what would suit a recorded workload."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from roundelay.cli.options import (
    LOSS,
    PATH,
    POSITIVE,
    Whole,
    json_option,
    option,
    several,
    spark_options,
)
from roundelay.cli.output import add_row, console, literally, number, report, table
from roundelay.core.errors import ConfigError, UsageError
from roundelay.sim.families.registry import PROTOCOLS

EPILOG = """\b
Examples:
  roundelay simulate token --loss 0.1 --rate 20 --out runs/first; roundelay advise runs/first
  roundelay advise /var/lib/roundelay/journal/orders --sites 5 --loss 0.02 --delay-ms 50
  roundelay advise runs/first --order fifo --resilience 0 --json
"""

SHOWN = 12


@click.command(epilog=EPILOG)
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
def command(path: Path, spark_conf: Any, as_json: bool, **given: Any) -> int:
    """Send a recorded workload again under other protocols, and recommend one.

    PATH is the folder of a journal, a trace file, the folder of a run, or a folder with the traces
    of live nodes.  Of all that gives the order, the resilience and the delay that are needed, the
    one with the fewest PDUs per broadcast is recommended.  Exit status 1 if none does."""
    from roundelay.pipeline.session import spark_session

    try:
        from roundelay.pipeline.research.workload import read_workload
    except ImportError as error:
        if (error.name or "").partition(".")[0] != "pyarrow":
            raise
        raise UsageError("advise needs pyarrow: pip install 'roundelay[spark]'") from None
    workload = read_workload(path, given["messages"], given["group"])
    with spark_session("advise", spark_conf) as spark:
        advice = _advise(spark, workload, given)
    report(advice, as_json, _show)
    return 0 if advice["recommendation"] and not advice["recommendation"]["misses"] else 1


def _advise(spark: Any, workload: Any, given: dict[str, Any]) -> dict[str, Any]:
    from msgspec import structs

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
        order=given["order"] or ("total" if now is None else now.order),
        resilience=resilience,
        delay_ms=given["delay_ms"] or job.DELAY_MS,
    )
    holds = list(given["holds_ms"])
    tried = job.candidates(
        sites,
        transit_ms,
        protocols=given["protocols"] or job.CHOICE,
        profiles=given["profiles"] or ("paper", "fast"),
        holds_ms=holds,
    )
    advice = job.advise(
        spark, workload, required, tried, loss=loss, transit_ms=transit_ms, seeds=given["seeds"]
    )
    if given["loss"] is None and workload.loss is None:
        advice["words"].append("The record does not tell what was lost: none is assumed (--loss).")
    return advice


def _show(advice: dict[str, Any]) -> None:
    screen = console()
    load = advice["workload"]
    rate = "" if load["rate"] is None else f", {number(load['rate'])} a second"
    bursts = "" if load["burstiness"] is None else f", burstiness {load['burstiness']:.2f}"
    screen.print(
        f"  {number(load['messages'])} messages of {load['senders']} senders in a group of "
        f"{load['sites']}{rate}{bursts} (1 is Poisson), {load['size_mean']:,.0f} bytes each; "
        f"loss {load['loss']:.1%}, transit {load['transit_ms']:.3g} ms",
        soft_wrap=True,
    )
    grid = table("", "candidate", "PDUs per broadcast", "delay (ms)", "99 % (ms)", "storage")
    grid.add_column("lacks", justify="left")
    rows = advice["candidates"]
    for candidate in rows[:SHOWN]:
        ci95 = "" if candidate["pdus_ci95"] is None else f" ±{candidate['pdus_ci95']:.2f}"
        pdus, misses = f"{candidate['pdus_per_message']:.2f}{ci95}", ", ".join(candidate["misses"])
        delays = (f"{candidate['delay_ms_mean']:.1f}", f"{candidate['delay_ms_p99']:.1f}")
        add_row(grid, candidate["name"], pdus, *delays, candidate["storage_max"], misses)
    screen.print(grid)
    if len(rows) > SHOWN:
        screen.print(f"  and {len(rows) - SHOWN} more (--json has them all)")
    screen.print(f"  criterion: {advice['criterion']}", soft_wrap=True)
    for line in advice["words"]:
        screen.print(f"  {literally(line)}", soft_wrap=True)
