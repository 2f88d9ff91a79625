"""`roundelay swarm`, `explore` and `mutants`: look for a run that breaks a promise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import msgspec

from roundelay.cli.options import PATH, Whole, flag, force_option, json_option, option
from roundelay.cli.output import (
    coloured,
    number,
    print_table,
    print_violations,
    printable,
    progress,
    report,
    styled,
)
from roundelay.core.cluster.config import STAGES
from roundelay.core.errors import ConfigError
from roundelay.core.families import CLUSTERS, TOKEN
from roundelay.runs.folder import run_folder
from roundelay.runs.swarm import SwarmParams, parse_seeds, swarm
from roundelay.sim.families.registry import SWARMED
from roundelay.sim.swarm.fault_kinds import FAULT_KINDS
from roundelay.sim.swarm.plan import PROFILES, Plan

SWARM_EPILOG = """\b
Examples:
  roundelay swarm --seeds 0:2000 --jobs 2
  roundelay swarm --seeds 17:18 --verbose              one seed again, with its plan
  roundelay swarm --seeds 17:18 --out runs/seed-17     ... with its trace and diagram
  roundelay swarm --stop-at-first --mutant NAME        does the swarm notice a rule switched off?
"""


@click.command(epilog=SWARM_EPILOG)
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
def swarm_command(
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
    plan = Plan.from_seed(first, given["protocol"], given["profile"]) if verbose else None
    if plan is not None and not as_json:
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
    if plan is not None and as_json:
        results = results | {"plan": msgspec.to_builtins(plan)}
    return report(results, as_json, lambda _: _show_swarm(results, out), results["violations"])


def _show_swarm(results: dict[str, Any], out: Path | None) -> None:
    faults = results["faults"]
    rows = (
        (kind, count, styled(FAULT_KINDS.get(kind, ""), dim=True))
        for kind, count in faults.items()
        if count or results["seeds"] > 1
    )
    print_table("faults injected", ("kind", "times", "<what happens"), rows)
    mutant = f", mutant {results['mutant']}" if results["mutant"] else ""
    click.echo(
        f"  {number(results['seeds'])} seeds ({results['range']}, {results['protocol']}{mutant}): "
        f"{number(results['committed'])} messages committed in "
        f"{results['virtual_hours']:.2f} virtual hours, {number(sum(faults.values()))} faults"
    )
    if out is not None:
        click.echo(f"  written: {out}")
    violations = results["violations"]
    amount = f"{len(violations)} violations" if violations else "no violation"
    click.echo(f"  {coloured(amount, not violations)}")
    for violation in violations:
        what = f"{coloured(violation['invariant'], False)}  {printable(violation['detail'])}"
        click.echo(f"  seed {violation['seed']}  {what}")
        click.echo(f"    {violation['rerun']}")


EXPLORE_EPILOG = """\b
Examples:
  roundelay explore --sites 3 --resilience 0 --timestamps 3 --crashes 1
  roundelay explore --sites 3 --resilience 1 --timestamps 3 --crashes 1
  roundelay explore --protocol to-channel --sites 2 --messages 2 --losses 1
  roundelay explore --list-mutants
"""


@click.command(epilog=EXPLORE_EPILOG)
@option("--protocol", (TOKEN, *CLUSTERS), "[default: token]")
@option("--sites", Whole(2, 9), "Sites in the group, N.  [default: 3; clusters: 2]")
@option("--resilience", Whole(0), "Sites that may fail, L.  [default: 1]")
@option("--timestamps", Whole(1), "Stamps that are given out.  [default: 3]")
@option("--crashes", Whole(0), "Crashes, anywhere, in all.  [default: 1]")
@option("--attempts", Whole(0), "Reformations started, in all.  [default: 2]")
@option("--messages", Whole(0), "Messages submitted, in all.  [default: 2]")
@option("--wipes", Whole(0), "Disks lost, on top of the crashes.  [default: 0]")
@option("--restarts", Whole(0), "Crashes that surely leave the disk whole, on top.  [default: 0]")
@option("--kr", Whole(1), "Token transfers per message, K_r.  [default: 1]")
@option("--boot", ("preformed", "cold"), "With a first list, or without.  [default: preformed]")
@option("--history", Whole(0, 4096), "Entries kept for sites that were away.  [default: 4096]")
@flag("--to-source", "The source of a message gets the token (profile `fast`).", default=None)
@option("--losses", Whole(0), "Clusters: copies lost, in all.  [default: 1]")
@option("--early", Whole(0), "Clusters: long timers that pass too early, in all.  [default: 0]")
@option("--window", Whole(1), "Clusters: a member's messages under way.  [default: 1]")
@option("--deliver-at", STAGES, "Clusters: the stage of a delivery.  [default: acknowledged]")
@option("--fails", Whole(0, 1), "Clusters: 1: somebody stops for good, anywhere.  [default: 0]")
@option("--mutant", str, "Switch a rule off: does the explorer notice?")
@flag("--list-mutants", "Say which rules can be switched off.")
@json_option
def explore_command(list_mutants: bool, as_json: bool, **given: Any) -> int:
    """Visit every state a small group can reach.

    Any message may be lost, doubled or late, any site may crash at any moment, any timer may
    fire at any time: all of it is tried, on the engine that ships.  Exit status 1 if a promise
    can be broken; the steps that lead there are printed.  Clusters (to, to-channel, po, spo) stand
    on channels that keep the order of PDUs, so there PDUs are lost, and messages submitted and
    timers run out at any moment.  With --mutant, bounds that are not
    given are those in which the mutant is known to fail."""
    from roundelay.runs.explore import mutants, run_explorer

    if list_mutants:
        return report({"mutants": mutants()}, as_json, _show_list)
    with progress("states", quiet=as_json) as tick:

        def watch(states: int, depth: int, frontier: int) -> None:
            tick(states, None, f"depth {depth}, {frontier:,} to go on from")

        results = run_explorer(**given, progress=watch)
    return report(results, as_json, _show_explored, results["violations"])


def _show_list(content: dict[str, Any]) -> None:
    for mutant in content["mutants"]:
        click.echo(styled(mutant["name"], bold=True))
        click.echo(f"  {printable(mutant['rule'])}")
        click.echo(f"  without it: {printable(mutant['wrong'])}")
        click.echo(styled(f"  {mutant['caught_by']}", dim=True))


def _show_explored(results: dict[str, Any]) -> None:
    mutant = f", mutant {results['mutant']}" if results["mutant"] else ""
    if "protocol" in results:
        click.echo(
            f"{results['protocol']}, N = {results['sites']}; {results['messages']} messages, "
            f"{results['losses']} losses, {results['early']} early timers{mutant}"
        )
    else:
        click.echo(
            f"N = {results['sites']}, L = {results['resilience']}; at most {results['timestamps']} "
            f"timestamps, {results['messages']} messages, {results['attempts']} reformations, "
            f"{results['crashes']} crashes, {results['wipes']} disks lost, "
            f"{results['restarts']} restarts{mutant}"
        )
    completeness = "all there are" if results["complete"] else "not all: the search was ended"
    click.echo(f"  {number(results['states'])} states, {completeness}; depth {results['depth']}")
    if not results["violations"]:
        click.echo(f"  {coloured('no violation', True)}")
    for violation in results["violations"]:
        print_violations([violation])
        for i, step in enumerate(violation["steps"], 1):
            click.echo(f"  {i:3}  {printable(step)}")


MUTANTS_EPILOG = """\b
Examples:
  roundelay mutants                          all of them
  roundelay mutants --family grsb --jobs 2
  roundelay mutants no-majority fresh-vectors
"""


@click.command(epilog=MUTANTS_EPILOG)
@click.argument("names", nargs=-1, metavar="[NAME]...")
@option("--family", str, "Only mutants of this family of protocols.")
@option("--jobs", Whole(1, 1024), "Processes.  [default: one per processor]")
@json_option
def mutants_command(
    names: tuple[str, ...], family: str | None, jobs: int | None, as_json: bool
) -> int:
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
    content = {"mutants": rows, "caught": len(rows) - missed, "missed": missed}
    return report(content, as_json, _show_mutants, missed)


def _show_mutants(content: dict[str, Any]) -> None:
    mutants, rows = content["mutants"], []
    for mutant in mutants:
        ids = mutant["rule"].partition(":")[0]
        how = "explored" if mutant["seed"] < 0 else f"seed {mutant['seed']}"
        outcome = ", ".join(mutant["reported"]) or mutant["verdict"]
        outcome = coloured(outcome, mutant["verdict"] == "caught")
        asked = (mutant["name"], mutant["family"], ids, " or ".join(mutant["expects"]))
        rows.append((*asked, outcome, how, f"{mutant['seconds']:.1f}"))
    columns = ("mutant", "family", "<rule", "<must report", "<reported", "<how", "s")
    print_table("mutants", columns, rows)
    for mutant in mutants:
        if mutant["verdict"] != "caught":
            outcome = coloured(f"{mutant['name']} {mutant['verdict']}", False)
            click.echo(f"  {outcome}  {printable(mutant['detail'])}")
            click.echo(f"    {mutant['command']}")
    amount = f"{content['caught']} of {len(mutants)} caught"
    click.echo(f"  {coloured(amount, not content['missed'])}")
