"""`roundelay mutants`: every rule switched off in turn, and whether that is noticed."""

from __future__ import annotations

from typing import Any

import click

from roundelay.cli.options import Whole, json_option, option
from roundelay.cli.output import console, literally, progress, report, table

EPILOG = """\b
Examples:
  roundelay mutants                          all of them
  roundelay mutants --family grsb --jobs 2
  roundelay mutants no-majority fresh-vectors
"""


@click.command(epilog=EPILOG)
@click.argument("names", nargs=-1, metavar="[NAME]...")
@option("--family", str, "Only mutants of this family of protocols.")
@option("--jobs", Whole(1, 1024), "Processes.  [default: one per processor]")
@json_option
def command(names: tuple[str, ...], family: str | None, jobs: int | None, as_json: bool) -> int:
    """Switch every rule off in turn: is the right promise reported broken?

    A mutant is a protocol with one rule broken.  It counts as caught only if what it names is
    reported, not by whatever else goes wrong.  Exit status 1 if one survives, or fails with
    something else."""
    from roundelay.runs.mutants import CAUGHT, chosen, run_mutants

    mutants = chosen(family, names)
    with progress("mutants", quiet=as_json) as tick:

        def watch(done: int, total: int, missed: int) -> None:
            tick(done, total, f"{missed} not caught" if missed else "")

        rows = run_mutants(mutants, jobs or 0, watch)
    missed = sum(row["verdict"] != CAUGHT for row in rows)
    report(
        {"mutants": rows, "caught": len(rows) - missed, "missed": missed},
        as_json,
        lambda _: _show(rows, missed),
    )
    return 1 if missed else 0


def _show(rows: list[dict[str, Any]], missed: int) -> None:
    screen = console()
    grid = table("mutants", "mutant", "family")
    for column in ("rule", "must report", "reported", "how"):
        grid.add_column(column, justify="left", overflow="fold")
    grid.add_column("s", justify="right")
    for row in rows:
        ids = row["rule"].partition(":")[0]
        how = "explored" if row["seed"] < 0 else f"seed {row['seed']}"
        colour = "green" if row["verdict"] == "caught" else "red"
        outcome = ", ".join(row["reported"]) or row["verdict"]
        asked = (row["name"], row["family"], ids, " or ".join(row["expects"]))
        grid.add_row(*asked, f"[{colour}]{outcome}[/{colour}]", how, f"{row['seconds']:.1f}")
    screen.print(grid)
    for row in rows:
        if row["verdict"] != "caught":
            detail = literally(row["detail"])
            screen.print(f"  [red]{row['name']} {row['verdict']}[/red]  {detail}", soft_wrap=True)
            screen.print(f"    {row['command']}", soft_wrap=True)
    colour = "red" if missed else "green"
    screen.print(f"  [{colour}]{len(rows) - missed} of {len(rows)} caught[/{colour}]")
