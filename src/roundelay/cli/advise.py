"""`roundelay advise`: what would suit a recorded workload."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from roundelay.cli.options import LOSS, POSITIVE, OneOf, Whole, json_option
from roundelay.cli.output import console, literally, number, print_json, table
from roundelay.cli.spark_options import spark_options
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
@click.argument("path", metavar="JOURNAL|TRACE", type=click.Path(path_type=Path))
@click.option("--order", type=OneOf(("total", "fifo", "none")),
              help="The order that is needed.  [default: what the recorded group gives, or "
                   "total]")  # fmt: skip
@click.option("--resilience", type=Whole(0),
              help="Failures to survive.  [default: as recorded, or 1]")  # fmt: skip
@click.option("--delay-ms", type=POSITIVE, help="99 % of deliveries within this time.  "
              "[default: 200]")  # fmt: skip
@click.option("--loss", type=LOSS, help="Chance that a receiver misses a PDU.  [default: as "
              "measured in the trace, or 0]")  # fmt: skip
@click.option("--transit-ms", type=POSITIVE, help="How long a PDU is under way.  [default: as "
              "measured in the trace, or 0.1]")  # fmt: skip
@click.option("--sites", type=Whole(2, 1000), help="Members of the group.  [default: as recorded; "
              "of a journal, as many as have sent, at least 3]")  # fmt: skip
@click.option("--protocol", "protocols", multiple=True, type=OneOf(PROTOCOLS),
              help="Try this one; repeat it.  [default: token, to, po, positive-ack]")  # fmt: skip
@click.option("--profile", "profiles", multiple=True, type=OneOf(("paper", "fast")),
              help="Try this one; repeat it.  [default: both]")  # fmt: skip
@click.option("--hold-ms", "holds_ms", multiple=True, type=POSITIVE,
              help="Try this T; repeat it.  [default: 10, 20, 50, 100, 200]")  # fmt: skip
@click.option("--messages", type=Whole(2), default=1000, show_default=True,
              help="The last so many messages of the record are sent again.")  # fmt: skip
@click.option("--seeds", type=Whole(1), default=3, show_default=True,
              help="How often each candidate is run.")  # fmt: skip
@click.option("--group", help="Of several that live nodes have left traces of.")
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
        found = _advise(spark, workload, given)
    if as_json:
        print_json(found)
    else:
        _show(found)
    return 0 if found["recommendation"] and not found["recommendation"]["misses"] else 1


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
    wish = job.Wish(
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
    found = job.advise(
        spark, workload, wish, tried, loss=loss, transit_ms=transit_ms, seeds=given["seeds"]
    )
    if given["loss"] is None and workload.loss is None:
        found["words"].append("The record does not tell what was lost: none is assumed (--loss).")
    return found


def _show(found: dict[str, Any]) -> None:
    screen = console()
    load = found["workload"]
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
    rows = found["candidates"]
    for one in rows[:SHOWN]:
        ci95 = "" if one["pdus_ci95"] is None else f" ±{one['pdus_ci95']:.2f}"
        grid.add_row(
            literally(one["name"]), f"{one['pdus_per_message']:.2f}{ci95}",
            f"{one['delay_ms_mean']:.1f}", f"{one['delay_ms_p99']:.1f}",
            number(one["storage_max"]), ", ".join(one["misses"]),
        )  # fmt: skip
    screen.print(grid)
    if len(rows) > SHOWN:
        screen.print(f"  and {len(rows) - SHOWN} more (--json has them all)")
    screen.print(f"  criterion: {found['criterion']}", soft_wrap=True)
    for line in found["words"]:
        screen.print(f"  {literally(line)}", soft_wrap=True)
