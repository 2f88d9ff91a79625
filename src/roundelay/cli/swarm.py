"""`roundelay swarm`: many random runs under faults."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import msgspec

from roundelay.cli.options import PATH, Whole, flag, force_option, json_option, option
from roundelay.cli.output import console, literally, number, progress, report, table
from roundelay.core.errors import ConfigError
from roundelay.runs.folder import run_folder
from roundelay.runs.swarm import SwarmParams, parse_seeds, swarm
from roundelay.sim.families.registry import SWARMED
from roundelay.sim.families.token.fast_draft import PROFILES
from roundelay.sim.swarm.fault_kinds import FAULT_KINDS
from roundelay.sim.swarm.plan import Plan

EPILOG = """\b
Examples:
  roundelay swarm --seeds 0:2000 --jobs 2
  roundelay swarm --seeds 17:18 --verbose              one seed again, with its plan
  roundelay swarm --seeds 17:18 --out runs/seed-17     ... with its trace and diagram
  roundelay swarm --stop-at-first --mutant NAME        does the swarm notice a rule switched off?
"""


@click.command(epilog=EPILOG)
@option("--seeds A:B", str, "From A up to, not including, B.", "0:200")
@option("--protocol", SWARMED, default="token")
@option("--profile", PROFILES, "Draw any configuration, or only such as live groups use.", "any")
@option("--jobs", Whole(1, 1024), "Processes.  [default: one per processor]")
@option("--mutant", str, "Run with a rule switched off; see explore --list-mutants.")
@flag("--wire", "All PDUs go through bytes, not only in some seeds.")
@flag("--stop-at-first", "Stop at the first seed that breaks a promise.")
@flag("--verbose", "Show the plan; one seed only.")
@option("--out", PATH, "Folder for trace, diagram, results; one seed only.")
@force_option
@json_option
def command(
    seeds: str,
    jobs: int | None,
    verbose: bool,
    out: Path | None,
    force: bool,
    as_json: bool,
    **given: Any,
) -> int:
    """Run many random groups under faults and check every promise.

    Each seed decides a whole run: the group, its configuration, its load, its faults.  First
    everything goes wrong, then the network heals and all that is pending has to commit.  Exit
    status 1 if a promise was broken; each finding comes with the line that runs its seed again."""
    first, beyond = parse_seeds(seeds)
    params = SwarmParams(first=first, beyond=beyond, jobs=jobs or 0, **given).settled()
    for field, value in (("out", out), ("verbose", verbose or None)):
        if value and beyond - first > 1:
            raise ConfigError(field, value, "only with a single seed, as in --seeds 17:18")
    plan = (
        Plan.from_seed(first, given["protocol"], given["profile"])
        if verbose or out is not None
        else None
    )
    if plan is not None and verbose and not as_json:
        click.echo(plan.to_json().decode())
    if out is not None:
        from roundelay.runs.report import run_seed_into

        with run_folder(out, force=force) as folder:
            results = run_seed_into(folder, params)
    else:
        with progress("seeds", quiet=as_json) as tick:

            def watch(done: int, total: int, violations: int) -> None:
                tick(done, total, f"{violations} violations" if violations else "")

            results = swarm(params, watch)
    if verbose and as_json:
        results = results | {"plan": msgspec.to_builtins(plan)}
    report(results, as_json, lambda _: _show(results, out))
    return 1 if results["violations"] else 0


def _show(results: dict[str, Any], out: Path | None) -> None:
    screen = console()
    faults = results["faults"]
    grid = table("faults injected", "kind", "times")
    grid.add_column("what happens", justify="left", style="dim")
    for kind, count in faults.items():
        if count or results["seeds"] > 1:
            grid.add_row(kind, number(count), FAULT_KINDS.get(kind, ""))
    screen.print(grid)
    mutant = f", mutant {results['mutant']}" if results["mutant"] else ""
    screen.print(
        f"  {number(results['seeds'])} seeds ({results['range']}, {results['protocol']}{mutant}): "
        f"{number(results['committed'])} messages committed in "
        f"{results['virtual_hours']:.2f} virtual hours, {number(sum(faults.values()))} faults"
    )
    if out is not None:
        screen.print(f"  written: {out}")
    violations = results["violations"]
    if not violations:
        screen.print("  [green]no violation[/green]")
        return
    screen.print(f"  [red]{len(violations)} violations[/red]")
    for violation in violations:
        what = f"[red]{violation['invariant']}[/red]  {literally(violation['detail'])}"
        screen.print(f"  seed {violation['seed']}  {what}", soft_wrap=True)
        screen.print(f"    {violation['rerun']}", soft_wrap=True)
