"""`roundelay explore`: all runs of a small group."""

from __future__ import annotations

from typing import Any

import click

from roundelay.cli.options import Whole, flag, json_option, option
from roundelay.cli.output import console, literally, number, progress, report
from roundelay.core.cluster.config import STAGES
from roundelay.core.families import CLUSTERS, TOKEN

EPILOG = """\b
Examples:
  roundelay explore --sites 3 --resilience 0 --timestamps 3 --crashes 1
  roundelay explore --sites 3 --resilience 1 --timestamps 3 --crashes 1
  roundelay explore --protocol to-channel --sites 2 --messages 2 --losses 1
  roundelay explore --list-mutants
"""


@click.command(epilog=EPILOG)
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
def command(list_mutants: bool, as_json: bool, **given: Any) -> int:
    """Visit every state a small group can reach.

    Any message may be lost, doubled or late, any site may crash at any moment, any timer may
    fire at any time: all of it is tried, on the engine that ships.  Exit status 1 if a promise
    can be broken; the steps that lead there are printed.  Clusters (to, to-channel, po, spo) stand
    on channels that keep the order of PDUs, so there PDUs are lost, and messages submitted and
    timers run out at any moment.  With --mutant, bounds that are not
    given are those in which the mutant is known to fail."""
    from roundelay.runs.explore import mutants, run_explorer

    if list_mutants:
        report({"mutants": mutants()}, as_json, _list)
        return 0
    with progress("states", quiet=as_json) as tick:

        def watch(states: int, depth: int, frontier: int) -> None:
            tick(states, None, f"depth {depth}, {frontier:,} to go on from")

        results = run_explorer(**given, progress=watch)
    report(results, as_json, _show)
    return 1 if results["violations"] else 0


def _list(content: dict[str, Any]) -> None:
    screen = console()
    for mutant in content["mutants"]:
        screen.print(f"[bold]{mutant['name']}[/bold]", soft_wrap=True)
        screen.print(f"  {literally(mutant['rule'])}", soft_wrap=True)
        screen.print(f"  without it: {literally(mutant['wrong'])}", soft_wrap=True)
        screen.print(f"  {mutant['caught_by']}", style="dim", soft_wrap=True)


def _show(results: dict[str, Any]) -> None:
    screen = console()
    mutant = f", mutant {results['mutant']}" if results["mutant"] else ""
    if "protocol" in results:
        screen.print(
            f"{results['protocol']}, N = {results['sites']}; {results['messages']} messages, "
            f"{results['losses']} losses, {results['early']} early timers{mutant}"
        )
    else:
        screen.print(
            f"N = {results['sites']}, L = {results['resilience']}; at most {results['timestamps']} "
            f"timestamps, {results['messages']} messages, {results['attempts']} reformations, "
            f"{results['crashes']} crashes, {results['wipes']} disks lost, "
            f"{results['restarts']} restarts{mutant}"
        )
    completeness = "all there are" if results["complete"] else "not all: the search was ended"
    screen.print(f"  {number(results['states'])} states, {completeness}; depth {results['depth']}")
    if not results["violations"]:
        screen.print("  [green]no violation[/green]")
    for violation in results["violations"]:
        screen.print(
            f"  [red]{violation['invariant']}[/red] {literally(violation['detail'])}",
            soft_wrap=True,
        )
        for i, step in enumerate(violation["steps"], 1):
            screen.print(f"  {i:3}  {literally(step)}", soft_wrap=True)
