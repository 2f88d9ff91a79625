"""`roundelay complexity`: the figures of the papers on TO, PO and SPO."""

from __future__ import annotations

from typing import Any

import click

from roundelay.cli.options import Whole, json_option
from roundelay.cli.output import console, number, print_json, progress, table
from roundelay.core.cluster.config import DEFERRED, EAGER
from roundelay.core.errors import ConfigError
from roundelay.sim.complexity import LOSSES, cost, delay_slots
from roundelay.sim.engines import PO, SPO, TO, TO_CHANNEL

EPILOG = """\b
Examples:
  roundelay complexity
  roundelay complexity --sites 3:8 --runs 200 --json
"""

SITES_MAX = 32


@click.command(epilog=EPILOG)
@click.option("--sites", default="3:13", show_default=True,
              help="Sizes of the cluster, A:B; B itself is not run.")  # fmt: skip
@click.option("--runs", type=Whole(1), default=60, show_default=True,
              help="Broadcasts over which a delay under loss is averaged.")  # fmt: skip
@click.option("--seed", type=Whole(0), default=0, show_default=True, help="Decides all of them.")
@json_option
def command(sites: str, runs: int, seed: int, as_json: bool) -> None:
    """Measure what one isolated broadcast costs in a cluster.

    First PDUs, rounds and slots of TO and PO against 2n and n² - n + 1, and of SPO against
    2(d + 1).  Then SPO's delay in slots on a serial channel: against the number of members, where
    it is linear, and against the chance of loss, where it rises faster and faster."""
    sizes = _sizes(sites)
    with progress("complexity", quiet=as_json) as tick:
        total = len(sizes) * 2
        costs, delays = [], []
        for done, n in enumerate(sizes):
            costs.append(_cost(n, seed))
            if tick is not None:
                tick(done + 1, total)
        for done, n in enumerate(sizes):
            slots = {str(x): delay_slots(n, x, runs=runs, seed=seed) for x in (*LOSSES, 0.3)}
            delays.append({"sites": n, "slots": slots})
            if tick is not None:
                tick(len(sizes) + done + 1, total)
    if as_json:
        print_json({"costs": costs, "spo_delay": delays, "runs": runs, "seed": seed})
    else:
        _show(costs, delays)


def _sizes(text: str) -> range:
    low, _, high = text.partition(":")
    try:
        sizes = range(int(low), int(high) if high else int(low) + 1)
    except ValueError:
        sizes = range(0)
    if not sizes or sizes[0] < 2 or sizes[-1] > SITES_MAX:
        raise ConfigError("sites", text, f"A:B with 2 ≤ A < B ≤ {SITES_MAX + 1}")
    return sizes


def _cost(n: int, seed: int) -> dict[str, Any]:
    row: dict[str, Any] = {"sites": n, "best": 2 * n, "worst": n * n - n + 1}
    for protocol in (TO, TO_CHANNEL, PO):
        best = cost(protocol, n, seed=seed)
        row[protocol] = {
            "deferred": {"pdus": best.pdus, "rounds": best.rounds, "slots": best.slots},
            "eager": {"pdus": cost(protocol, n, policy=EAGER, seed=seed).pdus},
        }
    row[SPO] = {
        str(d): cost(SPO, n, policy=DEFERRED, destinations=d, seed=seed).pdus
        for d in sorted({1, 2, n - 1} & set(range(1, n)))
    }
    return row


def _show(costs: list[dict[str, Any]], delays: list[dict[str, Any]]) -> None:
    screen = console()
    grid = table(
        "One isolated broadcast, nothing lost",
        "n", "2n", "TO", "TO channel", "PO", "rounds", "slots", "n²-n+1", "TO eager", "PO eager",
    )  # fmt: skip
    for row in costs:
        best, eager = row[TO]["deferred"], row[TO]["eager"]
        grid.add_row(
            str(row["sites"]), str(row["best"]), number(best["pdus"]),
            number(row[TO_CHANNEL]["deferred"]["pdus"]), number(row[PO]["deferred"]["pdus"]),
            number(best["rounds"]), number(best["slots"]), str(row["worst"]),
            number(eager["pdus"]), number(row[PO]["eager"]["pdus"]),
        )  # fmt: skip
    screen.print(grid)
    grid = table("SPO: PDUs for d destinations", "n", "d = 1", "d = 2", "d = n - 1")
    for row in costs:
        n, spo = row["sites"], row[SPO]
        cells = [number(spo[str(d)]) if str(d) in spo else "" for d in (1, 2, n - 1)]
        grid.add_row(str(n), *cells)
    screen.print(grid)
    losses = list(delays[0]["slots"])
    grid = table("SPO: delay in slots on a serial channel, by chance of loss", "n", *losses)
    for row in delays:
        grid.add_row(str(row["sites"]), *(number(row["slots"][loss]) for loss in losses))
    screen.print(grid)
