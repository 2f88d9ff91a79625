"""`roundelay chaos`: real processes, a lossy network, kills, pauses and a partition."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any, Final

import click
from click.core import ParameterSource
from msgspec import structs

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
    several,
)
from roundelay.cli.output import counted, number, print_json, print_table, printable, report
from roundelay.core.errors import ConfigError
from roundelay.runs.chaos.network import NETWORKS
from roundelay.runs.chaos.plan import ChaosParams
from roundelay.runs.chaos.run import chaos
from roundelay.runs.chaos_api.plan import KINDS, SERVICES, ApiParams
from roundelay.runs.chaos_api.run import chaos_api
from roundelay.runs.folder import RunFolder, run_folder
from roundelay.trace.live import LEVELS

DEFAULTS: Final = ChaosParams()
API_DEFAULTS: Final = ApiParams()
FIELDS: Final = {
    "pause": "pause_s",
    "partition": "partition_s",
    "patience": "patience_s",
    "size": "bytes",
}
"""Where a parameter has another name than its option."""
OWN: Final = ("minutes", "rounds", "services", "members", "troubles", "only")
"""Options that only `--api` has."""
SHARED: Final = ("api", "seed", "patience", "out", "force", "as_json")
"""Options that it has, too."""

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
@flag(
    "--api", "Applications that know the public API only, all services, judged by their own logs."
)
@option(
    "--minutes", POSITIVE, "With --api: no further round begins after that.", API_DEFAULTS.minutes
)
@option("--rounds", Whole(0, 100_000), "With --api: so many, however long they take.", unset=0)
@several(
    "--service SERVICE",
    str,
    f"With --api: in turn; repeatable.  Default: {', '.join(SERVICES)}.",
    "services",
)
@option("--members", Whole(0, 8), "With --api: 3 to 8.  Default: as the seed wants it.", unset=0)
@option("--troubles", Whole(0, 100), "With --api: of each round.", API_DEFAULTS.troubles)
@several(
    "--nemesis KIND",
    str,
    f"With --api: only these troubles; repeatable. {', '.join(KINDS)}.",
    "only",
)
@force_option
@json_option
@click.pass_context
def chaos_command(
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
    _check_options(ctx, api)
    own = {name: given.pop(name) for name in OWN}
    if api:
        named = ctx.get_parameter_source("patience") is ParameterSource.COMMANDLINE
        own |= {"seed": given["seed"], "patience": given["patience"] if named else None}
        return _run_api(out=out, force=force, as_json=as_json, **own)
    first = ChaosParams(
        sealed=not insecure, **{FIELDS.get(name, name): value for name, value in given.items()}
    )
    results: list[dict[str, Any]] = []
    for seed in range(first.seed, first.seed + runs):
        params = structs.replace(first, seed=seed)
        params.check()
        place = out / f"seed-{seed}" if out is not None and runs > 1 else out
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
    names = ("committed", "everywhere", "settled", "doubtful", "lives", "seconds")
    rows = [(name, results[name]) for name in names]
    traffic = results["datagrams"]
    if "received" in traffic:
        rows.append(("datagrams", traffic["received"]))
        rows.append(("copies lost", traffic["dropped"].get("loss", 0)))
    print_table(f"Chaos, seed {results['seed']}", ("", ""), rows)
    click.echo(f"troubles: {counted(results['troubles'])}")
    for violation in results["violations"]:
        click.echo(printable(violation))
    if results["failure"]:
        click.echo(printable(results["failure"]))
    if results["verdict"] == "kept":
        click.echo("every promise was kept")
    else:
        click.echo(printable(f"traces and logs: {results['folder']}"))
        click.echo(printable(f"again: {results['rerun']}"))


def _check_options(ctx: click.Context, api: bool) -> None:
    """Options that would be ignored are refused."""
    for name, value in ctx.params.items():
        if ctx.get_parameter_source(name) is not ParameterSource.COMMANDLINE:
            continue
        if api and name not in (*SHARED, *OWN):
            raise ConfigError(name, value, "nothing with --api; see roundelay chaos --help")
        if not api and name in OWN:
            raise ConfigError(name, value, "something with --api only")


def run_in_folder(
    run: Callable[[Any, RunFolder, Callable[[str], None]], dict[str, Any]],
    params: Any,
    out: Path | None,
    force: bool,
    quiet: bool,
) -> dict[str, Any]:
    """The results of a run in the folder `out`; without one, files stay if it went wrong."""
    tell = (lambda text: None) if quiet else (lambda text: click.echo(text, err=True))
    place = Path(mkdtemp(prefix="roundelay-chaos-")) if out is None else out
    with run_folder(place, force=force or out is None) as folder:
        results = run(params, folder, tell)
    if out is None and results["verdict"] == "kept":
        rmtree(place)
    else:
        results["folder"] = str(place)
    return results


def _run_api(
    services: tuple[str, ...],
    patience: float | None,
    out: Path | None,
    force: bool,
    as_json: bool,
    **given: Any,
) -> int:
    """Run it; 1 if anything was found."""
    params = ApiParams(
        services=services or SERVICES, patience_s=patience or API_DEFAULTS.patience_s, **given
    )
    params.check()
    results = run_in_folder(chaos_api, params, out, force, as_json)
    return report(results, as_json, _show_api, results["verdict"] != "kept")


def _show_api(results: dict[str, Any]) -> None:
    names = ("service", "seed", "lives", "given", "confirmed", "doubtful", "seconds", "found")
    rows = []
    for outcome in results["results"]:
        kinds = counted(outcome["kinds"]) if outcome["kinds"] else "nothing"
        numbers = [outcome[name] for name in names[2:7]]
        rows.append((outcome["service"], str(outcome["seed"]), *numbers, kinds))
    print_table("Chaos, judged by applications", names, rows)
    click.echo(f"{len(results['results'])} rounds; troubles: {counted(results['troubles'])}")
    for outcome in results["results"]:
        if outcome["verdict"] != "kept":
            click.echo(printable(f"plan, notes and verdict: {outcome['folder']}"))
            click.echo(printable(f"again: {outcome['rerun']}"))
    if results["verdict"] == "kept":
        click.echo(
            f"{number(results['confirmed'])} confirmations and {number(results['given'])} "
            "deliveries: every promise was kept"
        )
