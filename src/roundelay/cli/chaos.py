"""`roundelay chaos`: real processes, a lossy network, kills, pauses and a partition."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource
from msgspec import structs

from roundelay.cli.chaos_api import OWN, api_options, check_options, run_api, run_in_folder
from roundelay.cli.options import (
    LOSS,
    PATH,
    POSITIVE,
    F,
    Whole,
    flag,
    force_option,
    json_option,
    option,
)
from roundelay.cli.output import console, counted, literally, number, print_json, table
from roundelay.runs.chaos.network import NETWORKS
from roundelay.runs.chaos.plan import ChaosParams
from roundelay.runs.chaos.run import chaos
from roundelay.trace.live import LEVELS

DEFAULTS = ChaosParams()
FIELDS = {"pause": "pause_s", "partition": "partition_s", "patience": "patience_s", "size": "bytes"}
"""Where a parameter has another name than its option."""

EPILOG = """\b
Examples:
  roundelay chaos --seed 1
  roundelay chaos --seed 1 --messages 5000 --seconds 8 --pause 2 --partition 2
  roundelay chaos --seed 100 --runs 20 --out runs/chaos
  roundelay chaos --api --minutes 30
  roundelay chaos --api --seed 7 --rounds 1 --service total
"""


def param(name: str, kind: Any, help: str = "", to: str = "") -> Callable[[F], F]:
    """An option with the default of the parameter of that name."""
    field = to or name.removeprefix("--")
    return option(name, kind, help, getattr(DEFAULTS, FIELDS.get(field, field)), to=to)


@click.command(epilog=EPILOG)
@option("--seed", Whole(0), "Decides who suffers, when, and the fate of every datagram.", 0)
@option("--runs", Whole(1, 10_000), "So many runs, with seeds from --seed up.", 1)
@param("--network", NETWORKS, "The switch, or real multicast between network namespaces.")
@param("--sites", Whole(3, 26))
@param("--senders", Whole(1, 26))
@param("--resilience", Whole(0, 12))
@param("--loss", LOSS)
@param("--messages", Whole(1))
@param("--bytes", Whole(16), "Of each message.", to="size")
@param("--seconds", POSITIVE, "How long the load takes at least.")
@param("--kills", Whole(0))
@param("--wipes", Whole(0), "Kills after which the disk is gone too.")
@param("--pauses", Whole(0))
@param("--pause", POSITIVE, "Seconds a site is stopped for.")
@param("--partitions", Whole(0))
@param("--partition", POSITIVE, "Seconds the network is split for.")
@param(
    "--nemeses",
    Whole(0, 100),
    "Of: a second process of a name, a stepped clock, partial return after all were killed, "
    "a late link, two troubles at once.",
)
@param("--recorders", Whole(0, 26), "Sites that keep a journal, which must be complete in the end.")
@param("--wild", Whole(0, 100), "So many more troubles of any kind, and worse weather.")
@param("--patience", POSITIVE, "Seconds without progress after which a run has failed.")
@option("--mutant", str, "Run with a rule switched off; see explore --list-mutants.", unset="")
@flag("--insecure", "Datagrams in the clear.")
@param("--level", LEVELS, "What the trace has: all, or no transmissions.")
@option("--out", PATH, "Folder for trace and results; of several runs, one each in it.")
@api_options
@force_option
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    /,
    api: bool,
    runs: int,
    insecure: bool,
    out: Path | None,
    force: bool,
    as_json: bool,
    **given: Any,
) -> int:
    """Run a group of real processes through loss, kills, a pause and a partition, and check it.

    Every site is a process of its own and every datagram crosses the switch.  In the end the traces
    of all sites are put together and judged.  Exit status 1 if a promise was broken, or a run did
    not come to its end; each comes with the line that runs it again.

    With --api the processes are applications that know nothing but the public API, in groups of
    every service, and what they noted down is judged."""
    check_options(ctx, api)
    own = {name: given.pop(name) for name in OWN}
    if api:
        named = ctx.get_parameter_source("patience") is ParameterSource.COMMANDLINE
        own |= {"seed": given["seed"], "patience": given["patience"] if named else None}
        return run_api(out=out, force=force, as_json=as_json, **own)
    first = ChaosParams(
        sealed=not insecure, **{FIELDS.get(name, name): value for name, value in given.items()}
    )
    results: list[dict[str, Any]] = []
    for seed in range(first.seed, first.seed + runs):
        params = structs.replace(first, seed=seed)
        params.check()
        place = out
        if place is not None and runs > 1:
            place = place / f"seed-{params.seed}"
        results.append(run_in_folder(chaos, params, place, force, as_json))
        if not as_json:
            _show(results[-1])
    broken = [result for result in results if result["verdict"] != "kept"]
    if as_json:
        summary = {"runs": len(results), "bad": len(broken), "results": results}
        print_json(results[0] if runs == 1 else summary)
    elif runs > 1:
        click.echo(f"{len(results) - len(broken)} of {len(results)} runs kept every promise")
    return 1 if broken else 0


def _show(results: dict[str, Any]) -> None:
    screen = console()
    grid = table(f"Chaos, seed {results['seed']}", "", "")
    for name in ("committed", "everywhere", "settled", "doubtful", "lives", "seconds"):
        grid.add_row(name, number(results[name]))
    traffic = results["datagrams"]
    if "received" in traffic:
        grid.add_row("datagrams", number(traffic["received"]))
        grid.add_row("copies lost", number(traffic["dropped"].get("loss", 0)))
    screen.print(grid)
    screen.print(f"troubles: {counted(results['troubles'])}", soft_wrap=True)
    for violation in results["violations"]:
        screen.print(literally(violation))
    if results["failure"]:
        screen.print(literally(results["failure"]))
    if results["verdict"] == "kept":
        screen.print("every promise was kept")
    else:
        screen.print(literally(f"traces and logs: {results['folder']}"), soft_wrap=True)
        screen.print(literally(f"again: {results['rerun']}"), soft_wrap=True)
