"""`roundelay simulate`: one run, measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from msgspec import structs

from roundelay.cli.options import (
    LOSS,
    NOT_NEGATIVE,
    PATH,
    POSITIVE,
    OneOf,
    Whole,
    flag,
    force_option,
    json_option,
    option,
)
from roundelay.cli.output import console, literally, number, progress, report, table
from roundelay.core.cluster.config import DEFERRED, EAGER
from roundelay.core.families import FAMILIES, TOTAL
from roundelay.core.grsb.config import PROFILES as GRSB_LAYOUTS
from roundelay.runs.folder import DIAGRAM, run_folder
from roundelay.runs.measured import LOADS, PROFILES
from roundelay.runs.simulate import RUNS, SimulateParams, simulate
from roundelay.sim.families.registry import SIMULATED

POLICIES = (DEFERRED, EAGER)

EPILOG = """\b
Examples:
  roundelay simulate token --sites 10 --loss 0.05 --messages 2000 --tau 0.1
  roundelay simulate token --kw 4 --load saturated --json
  roundelay simulate po --sites 8 --policy deferred --messages 20
  roundelay simulate spo --sites 8 --destinations 3 --loss 0.1 --messages 100
  roundelay simulate grsb --sites 20 --recorders 2 --away 0.3 --messages 2000
  roundelay simulate wide --networks 4 --sites 60 --subnet 6 --away 0.3
  roundelay simulate token --profile fast --rate 5000 --messages 100000 --out runs/busy
"""


@click.command(epilog=EPILOG)
@click.argument("protocol", type=OneOf(SIMULATED))
@option("--sites", Whole(2), "Sites in the group, N.  [default: 5; wide: 5 for each network]")
@option("--resilience", Whole(0), "Sites that may fail, L.  [default: 1]")
@option("--loss", LOSS, "Chance that a receiver misses a PDU.", 0.0)
@option("--messages", Whole(1), "Messages to broadcast.", 1000)
@option("--seed", Whole(0), "Decides the whole run.", 0)
@option("--tau", POSITIVE, "Messages per hold time T, on average.  [default: 1]")
@option("--rate", POSITIVE, "Messages per second, in place of --tau.")
@option("--kw", Whole(1), "Acknowledgements per token transfer.", 1)
@option("--kr", Whole(1), "Token transfers per acknowledgement.", 1)
@option("--profile", PROFILES, "The 1984 simulation, or what a network would use.", "paper")
@option(
    "--load",
    LOADS,
    "Random arrivals, all sources busy, or one message at a time.  "
    "[default: poisson; isolated for clusters without --tau or --rate]",
)
@option(
    "--policy",
    POLICIES,
    "Clusters: acknowledge when owed, or at every opportunity.  [default: deferred]",
)
@option("--destinations", Whole(1), "spo: each message goes to so many random members.")
@option("--layout", GRSB_LAYOUTS, "grsb: how roles are spread over the sites.  [default: separate]")
@option(
    "--recorders",
    Whole(1),
    "grsb: Playback Recorders; wide: those of each network and of the global level.  "
    "[default: the fewest of the layout]",
)
@option("--away", LOSS, "grsb, wide: this fraction of the users is off for most of the run.")
@option("--networks", Whole(2), "wide: local networks.  [default: 3]")
@option(
    "--subnet",
    Whole(0),
    "wide: nodes behind the broadcaster of each network.  [default: a quarter of its sites]",
)
@option("--hold-ms", NOT_NEGATIVE, "T: how long a token site waits for a message.", 50.0)
@option("--size", Whole(10), "Bytes of a message.", 64)
@flag("--wire", "Send every PDU through the byte codec.")
@option("--out", PATH, "Folder for trace, diagram, results.")
@force_option
@json_option
def command(out: Path | None, force: bool, as_json: bool, **given: Any) -> int:
    """Run one group of PROTOCOL in virtual time and measure what it costs.

    The seed decides the run down to its last event: the same parameters give the same
    trace_sha256, whoever runs them.  Exit status 1 if a promise was broken."""
    if given["sites"] is None:
        given["sites"] = RUNS[given["protocol"]].sites_for(given["networks"])
    params = SimulateParams(**given).settled()
    with progress(params.protocol, quiet=as_json) as tick:
        if out is None:
            results = simulate(params, progress=tick)
        else:
            with run_folder(out, force=force) as folder:
                folder.write_params("simulate", structs.asdict(params))
                results = simulate(params, trace=folder.trace, progress=tick)
                folder.write_results(results)
                from roundelay.runs.report import write_simulate_report

                write_simulate_report(folder, results)
    report(results, as_json, lambda _: _show(results, out))
    return 1 if results["violations"] else 0


ROWS = (
    ("messages", "messages"),
    ("pdus", "PDUs"),
    ("pdus_per_message", "PDUs per message"),
    ("control_per_message", "control PDUs per message"),
    ("drain_pdus", "PDUs to drain the run, not counted"),
    ("rounds", "rounds until acknowledged everywhere, parallel channels"),
    ("slots", "slots until then on a serial channel"),
    ("storage_max", "messages kept by one site, at most"),
    ("delay_ms_mean", "delay, mean (ms)"),
    ("delay_ms_p99", "delay, 99 % below (ms)"),
    ("beacons", "signs of life, their answers, polls: not counted"),
    ("networks", "networks"),
    ("nodes_behind", "nodes behind broadcasters"),
    ("away", "users away for most of the run"),
    ("replayed", "messages played back by recorders"),
    ("lost_copies", "copies lost"),
    ("virtual_s", "virtual time (s)"),
)


def _show(results: dict[str, Any], out: Path | None) -> None:
    screen = console()
    head = (
        f"{results['protocol']}  N = {results['sites']}  L = {results['resilience']}  "
        f"loss {results['loss']:.1%}  seed {results['seed']}"
    )
    grid = table(head, "", "")
    for name, text in ROWS:
        if results.get(name) is not None:
            grid.add_row(text, number(results[name]))
    screen.print(grid)
    everywhere = "yes" if results["delivered_everywhere"] else "NO"
    order = "yes" if results["same_order"] else "no"
    if not results["same_order"] and FAMILIES[results["protocol"]].order != TOTAL:
        order += " (this protocol does not promise it)"
    screen.print(f"  delivered everywhere: {everywhere}      same order: {order}")
    screen.print(f"  trace_sha256: {results['trace_sha256']}")
    for violation in results["violations"]:
        screen.print(f"  [red]{violation['invariant']}[/red] {literally(violation['detail'])}")
    if out is not None:
        screen.print(f"  written: {out}  (open {out / DIAGRAM})")
