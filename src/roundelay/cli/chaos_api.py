"""`roundelay chaos --api`: applications that know the public API only, judged by their notes."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any, Final

import click
from click.core import ParameterSource

from roundelay.cli.options import POSITIVE, F, Whole, flag, option, several
from roundelay.cli.output import add_row, console, counted, literally, number, report, table
from roundelay.core.errors import ConfigError
from roundelay.runs.chaos_api.plan import KINDS, SERVICES, ApiParams
from roundelay.runs.chaos_api.run import chaos_api
from roundelay.runs.folder import RunFolder, run_folder

DEFAULTS: Final = ApiParams()
OWN: Final = ("minutes", "rounds", "services", "members", "troubles", "only")
"""Options that only `--api` has."""
SHARED: Final = ("api", "seed", "patience", "out", "force", "as_json")
"""Options that it has, too."""


API_OPTIONS: Final = (
    flag(
        "--api",
        "Applications that know the public API only, all services, judged by their own logs.",
    ),
    option(
        "--minutes", POSITIVE, "With --api: no further round begins after that.", DEFAULTS.minutes
    ),
    option(
        "--rounds",
        Whole(0, 100_000),
        "With --api: so many, however long they take.",
        unset=DEFAULTS.rounds,
    ),
    several(
        "--service SERVICE",
        str,
        f"With --api: in turn; repeatable.  Default: {', '.join(SERVICES)}.",
        "services",
    ),
    option(
        "--members",
        Whole(0, 8),
        "With --api: 3 to 8.  Default: as the seed wants it.",
        unset=DEFAULTS.members,
    ),
    option("--troubles", Whole(0, 100), "With --api: of each round.", DEFAULTS.troubles),
    several(
        "--nemesis KIND",
        str,
        f"With --api: only these troubles; repeatable. {', '.join(KINDS)}.",
        "only",
    ),
)


def api_options(function: F) -> F:
    """The options of `roundelay chaos --api`."""
    return reduce(lambda decorated, decorator: decorator(decorated), API_OPTIONS[::-1], function)


def check_options(ctx: click.Context, api: bool) -> None:
    """Options that would be ignored are refused."""
    allowed = (*SHARED, *OWN) if api else ()
    for name, value in ctx.params.items():
        given = ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE
        if api and given and name not in allowed:
            raise ConfigError(name, value, "nothing with --api; see roundelay chaos --help")
        if not api and given and name in OWN:
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


def run_api(
    services: tuple[str, ...],
    patience: float | None,
    out: Path | None,
    force: bool,
    as_json: bool,
    **given: Any,
) -> int:
    """Run it; 1 if anything was found."""
    params = ApiParams(
        services=services or SERVICES, patience_s=patience or DEFAULTS.patience_s, **given
    )
    params.check()
    results = run_in_folder(chaos_api, params, out, force, as_json)
    report(results, as_json, _show)
    return 0 if results["verdict"] == "kept" else 1


def _show(results: dict[str, Any]) -> None:
    screen = console()
    names = ("service", "seed", "lives", "given", "confirmed", "doubtful", "seconds", "found")
    grid = table("Chaos, judged by applications", *names)
    for outcome in results["results"]:
        kinds = counted(outcome["kinds"]) if outcome["kinds"] else "nothing"
        numbers = [outcome[name] for name in names[2:7]]
        add_row(grid, outcome["service"], str(outcome["seed"]), *numbers, kinds)
    screen.print(grid)
    struck = counted(results["troubles"])
    screen.print(f"{len(results['results'])} rounds; troubles: {struck}", soft_wrap=True)
    for outcome in results["results"]:
        if outcome["verdict"] != "kept":
            screen.print(literally(f"plan, notes and verdict: {outcome['folder']}"), soft_wrap=True)
            screen.print(literally(f"again: {outcome['rerun']}"), soft_wrap=True)
    if results["verdict"] == "kept":
        screen.print(
            f"{number(results['confirmed'])} confirmations and {number(results['given'])} "
            "deliveries: every promise was kept"
        )
