"""`roundelay chaos --api`: applications that know the public API only, judged by their notes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any, Final, TypeVar

import click
from click.core import ParameterSource

from roundelay.cli.options import POSITIVE, Whole
from roundelay.cli.output import console, counted, literally, number, print_json, table
from roundelay.core.errors import ConfigError
from roundelay.runs.chaos_api.plan import KINDS, SERVICES, ApiParams
from roundelay.runs.chaos_api.run import chaos_api
from roundelay.runs.folder import run_folder

F = TypeVar("F", bound=Callable[..., Any])

DEFAULTS: Final = ApiParams()
OWN: Final = ("minutes", "rounds", "services", "members", "troubles", "only")
"""Options that only `--api` has."""
SHARED: Final = ("api", "seed", "patience", "out", "force", "as_json")
"""Options that it has, too."""


def api_options(function: F) -> F:
    """The options of `roundelay chaos --api`."""
    for option in (
        click.option("--nemesis", "only", multiple=True, metavar="KIND",
                     help=f"With --api: only these troubles; repeatable. {', '.join(KINDS)}."),
        click.option("--troubles", type=Whole(0, 100), default=DEFAULTS.troubles,
                     show_default=True, help="With --api: of each round."),
        click.option("--members", type=Whole(0, 8), default=DEFAULTS.members,
                     help="With --api: 3 to 8.  Default: as the seed wants it."),
        click.option("--service", "services", multiple=True, metavar="SERVICE",
                     help=f"With --api: in turn; repeatable.  Default: {', '.join(SERVICES)}."),
        click.option("--rounds", type=Whole(0, 100_000), default=DEFAULTS.rounds,
                     help="With --api: so many, however long they take."),
        click.option("--minutes", type=POSITIVE, default=DEFAULTS.minutes, show_default=True,
                     help="With --api: no further round begins after that."),
        click.option("--api", is_flag=True,
                     help="Applications that know the public API only, all services, judged by "
                     "their own logs."),
    ):  # fmt: skip
        function = option(function)
    return function


def check_options(ctx: click.Context, api: bool) -> None:
    """Options that would be ignored are refused."""
    allowed = (*SHARED, *OWN) if api else ()
    for name, value in ctx.params.items():
        given = ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE
        if api and given and name not in allowed:
            raise ConfigError(name, value, "nothing with --api; see roundelay chaos --help")
        if not api and given and name in OWN:
            raise ConfigError(name, value, "something with --api only")


def run_api(
    seed: int, minutes: float, rounds: int, services: tuple[str, ...], members: int, troubles: int,
    only: tuple[str, ...], patience: float | None, out: Path | None, force: bool, as_json: bool,
) -> int:  # fmt: skip
    """Run it; 1 if anything was found."""
    params = ApiParams(
        seed=seed, minutes=minutes, rounds=rounds, services=services or SERVICES, members=members,
        troubles=troubles, only=only, patience_s=patience or DEFAULTS.patience_s,
    )  # fmt: skip
    params.check()
    tell = (lambda text: None) if as_json else (lambda text: click.echo(text, err=True))
    temporary = out is None
    place = Path(mkdtemp(prefix="roundelay-chaos-")) if out is None else out
    with run_folder(place, force=force or temporary) as folder:
        results = chaos_api(params, folder, tell)
    kept = results["verdict"] == "kept"
    if temporary and kept:
        rmtree(place)
    else:
        results["folder"] = str(place)
    if as_json:
        print_json(results)
    else:
        _show(results)
    return 0 if kept else 1


def _show(results: dict[str, Any]) -> None:
    screen = console()
    names = ("service", "seed", "lives", "given", "confirmed", "doubtful", "seconds", "found")
    made = table("Chaos, judged by applications", *names)
    for one in results["results"]:
        found = counted(one["kinds"]) if one["kinds"] else "nothing"
        made.add_row(one["service"], str(one["seed"]), *[number(one[name]) for name in names[2:7]],
                     found)  # fmt: skip
    screen.print(made)
    struck = counted(results["troubles"])
    screen.print(f"{len(results['results'])} rounds; troubles: {struck}", soft_wrap=True)
    for one in results["results"]:
        if one["verdict"] != "kept":
            screen.print(literally(f"plan, notes and verdict: {one['folder']}"), soft_wrap=True)
            screen.print(literally(f"again: {one['rerun']}"), soft_wrap=True)
    if results["verdict"] == "kept":
        screen.print(
            f"{number(results['confirmed'])} confirmations and {number(results['given'])} "
            "deliveries: every promise was kept"
        )
