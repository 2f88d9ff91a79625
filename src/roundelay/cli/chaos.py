"""`roundelay chaos`: real processes, a lossy network, kills, pauses and a partition."""

from __future__ import annotations

from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any

import click
from click.core import ParameterSource

from roundelay.cli.chaos_api import OWN, api_options, check_options, run_api
from roundelay.cli.options import LOSS, POSITIVE, OneOf, Whole, force_option, json_option
from roundelay.cli.output import console, counted, literally, number, print_json, table
from roundelay.runs.chaos.network import NETWORKS
from roundelay.runs.chaos.plan import ChaosParams
from roundelay.runs.chaos.run import chaos
from roundelay.runs.folder import run_folder
from roundelay.trace.live import LEVELS

DEFAULTS = ChaosParams()

EPILOG = """\b
Examples:
  roundelay chaos --seed 1
  roundelay chaos --seed 1 --messages 5000 --seconds 8 --pause 2 --partition 2
  roundelay chaos --seed 100 --runs 20 --out runs/chaos
  roundelay chaos --api --minutes 30
  roundelay chaos --api --seed 7 --rounds 1 --service total
"""


@click.command(epilog=EPILOG)
@click.option("--seed", type=Whole(0), default=0, show_default=True,
              help="Decides who suffers, when, and the fate of every datagram.")  # fmt: skip
@click.option("--runs", type=Whole(1, 10_000), default=1, show_default=True,
              help="So many runs, with seeds from --seed up.")  # fmt: skip
@click.option("--network", type=OneOf(NETWORKS), default=DEFAULTS.network, show_default=True,
              help="The switch, or real multicast between network namespaces.")  # fmt: skip
@click.option("--sites", type=Whole(3, 26), default=DEFAULTS.sites, show_default=True)
@click.option("--senders", type=Whole(1, 26), default=DEFAULTS.senders, show_default=True)
@click.option("--resilience", type=Whole(0, 12), default=DEFAULTS.resilience, show_default=True)
@click.option("--loss", type=LOSS, default=DEFAULTS.loss, show_default=True)
@click.option("--messages", type=Whole(1), default=DEFAULTS.messages, show_default=True)
@click.option("--bytes", "size", type=Whole(16), default=DEFAULTS.bytes, show_default=True,
              help="Of each message.")  # fmt: skip
@click.option("--seconds", type=POSITIVE, default=DEFAULTS.seconds, show_default=True,
              help="How long the load takes at least.")  # fmt: skip
@click.option("--kills", type=Whole(0), default=DEFAULTS.kills, show_default=True)
@click.option("--wipes", type=Whole(0), default=DEFAULTS.wipes, show_default=True,
              help="Kills after which the disk is gone too.")  # fmt: skip
@click.option("--pauses", type=Whole(0), default=DEFAULTS.pauses, show_default=True)
@click.option("--pause", type=POSITIVE, default=DEFAULTS.pause_s, show_default=True,
              help="Seconds a site is stopped for.")  # fmt: skip
@click.option("--partitions", type=Whole(0), default=DEFAULTS.partitions, show_default=True)
@click.option("--partition", type=POSITIVE, default=DEFAULTS.partition_s, show_default=True,
              help="Seconds the network is split for.")  # fmt: skip
@click.option("--nemeses", type=Whole(0, 100), default=DEFAULTS.nemeses, show_default=True,
              help="Of: a second process of a name, a stepped clock, partial return after all were "
              "killed, a late link, two troubles at once.")  # fmt: skip
@click.option("--recorders", type=Whole(0, 26), default=DEFAULTS.recorders, show_default=True,
              help="Sites that keep a journal, which must be complete in the end.")  # fmt: skip
@click.option("--wild", type=Whole(0, 100), default=DEFAULTS.wild, show_default=True,
              help="So many more troubles of any kind, and worse weather.")  # fmt: skip
@click.option("--patience", type=POSITIVE, default=DEFAULTS.patience_s, show_default=True,
              help="Seconds without progress after which a run has failed.")  # fmt: skip
@click.option(
    "--mutant", default="", help="Run with a rule switched off; see explore --list-mutants."
)
@click.option("--insecure", is_flag=True, help="Datagrams in the clear.")
@click.option("--level", type=OneOf(LEVELS), default=DEFAULTS.level, show_default=True,
              help="What the trace has: all, or no transmissions.")  # fmt: skip
@click.option("--out", type=click.Path(path_type=Path),
              help="Folder for trace and results; of several runs, one each in it.")  # fmt: skip
@api_options
@force_option
@json_option
@click.pass_context
def command(
    ctx: click.Context, /, api: bool, seed: int, runs: int, size: int, pause: float,
    partition: float, patience: float, insecure: bool, out: Path | None, force: bool,
    as_json: bool, **rest: Any,
) -> int:  # fmt: skip
    """Run a group of real processes through loss, kills, a pause and a partition, and check it.

    Every site is a process of its own and every datagram crosses the switch.  In the end the traces
    of all sites are put together and judged.  Exit status 1 if a promise was broken, or a run did
    not come to its end; each comes with the line that runs it again.

    With --api the processes are applications that know nothing but the public API, in groups of
    every service, and what they noted down is judged."""
    check_options(ctx, api)
    own = {name: rest.pop(name) for name in OWN}
    if api:
        given = ctx.get_parameter_source("patience") is ParameterSource.COMMANDLINE
        patience_s = patience if given else None
        return run_api(seed=seed, patience=patience_s, out=out, force=force, as_json=as_json, **own)
    results: list[dict[str, Any]] = []
    for number_ in range(runs):
        params = ChaosParams(
            seed=seed + number_, bytes=size, pause_s=pause, partition_s=partition,
            patience_s=patience, sealed=not insecure, **rest,
        )  # fmt: skip
        params.check()
        place = out
        if place is not None and runs > 1:
            place = place / f"seed-{params.seed}"
        results.append(_one(params, place, force, quiet=as_json))
    broken = [result for result in results if result["verdict"] != "kept"]
    if as_json:
        summary = {"runs": len(results), "bad": len(broken), "results": results}
        print_json(results[0] if runs == 1 else summary)
    elif runs > 1:
        click.echo(f"{len(results) - len(broken)} of {len(results)} runs kept every promise")
    return 1 if broken else 0


def _one(params: ChaosParams, out: Path | None, force: bool, quiet: bool) -> dict[str, Any]:
    tell = (lambda text: None) if quiet else (lambda text: click.echo(text, err=True))
    temporary = out is None
    place = Path(mkdtemp(prefix="roundelay-chaos-")) if out is None else out
    with run_folder(place, force=force or temporary) as folder:
        results = chaos(params, folder, tell)
    if temporary and results["verdict"] == "kept":
        rmtree(place)
    else:
        results["folder"] = str(place)
    if not quiet:
        _show(results)
    return results


def _show(results: dict[str, Any]) -> None:
    screen = console()
    made = table(f"Chaos, seed {results['seed']}", "", "")
    for name in ("committed", "everywhere", "settled", "doubtful", "lives", "seconds"):
        made.add_row(name, number(results[name]))
    traffic = results["datagrams"]
    if "received" in traffic:
        made.add_row("datagrams", number(traffic["received"]))
        made.add_row("copies lost", number(traffic["dropped"].get("loss", 0)))
    screen.print(made)
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
