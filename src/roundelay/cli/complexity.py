"""`roundelay complexity`: the figures of the papers on TO, PO and SPO."""

from __future__ import annotations

from typing import Any

import click

from roundelay.cli.options import Whole, json_option, option
from roundelay.cli.output import add_row, console, number, progress, report, table
from roundelay.core.cluster.config import DEFERRED, EAGER
from roundelay.core.errors import ConfigError
from roundelay.core.families import PO, SPO, TO, TO_CHANNEL
from roundelay.sim.complexity import LOSSES, RUNS, Curve, cost, delay_curve

EPILOG = """\b
Examples:
  roundelay complexity
  roundelay complexity --sites 3:8 --runs 200 --json
"""

SITES_MAX = 32


@click.command(epilog=EPILOG)
@option("--sites", str, "Sizes of the cluster, A:B; B itself is not run.", "3:13")
@option("--runs", Whole(2), "Broadcasts over which a delay under loss is averaged.", RUNS)
@option("--seed", Whole(0), "Decides all of them.", 0)
@json_option
def command(sites: str, runs: int, seed: int, as_json: bool) -> None:
    """Measure what one isolated broadcast costs in a cluster.

    First PDUs, rounds and slots of TO and PO against 2n and n² - n + 1, and of SPO against
    2(d + 1).  Then SPO's delay in slots on a serial channel: against the number of members, where
    it is linear, and against the chance of loss, where it rises faster and faster.  A curve is
    called convex if nowhere its slope falls by more than three standard errors."""
    sizes = _sizes(sites)
    with progress("complexity", quiet=as_json) as tick:
        costs: list[dict[str, Any]] = []
        delays: list[Curve] = []
        for n in sizes:
            costs.append(_cost(n, seed))
            tick(len(costs), len(sizes) * 2)
        for n in sizes:
            delays.append(delay_curve(n, runs=runs, seed=seed))
            tick(len(costs) + len(delays), len(sizes) * 2)
    content = {
        "costs": costs,
        "spo_delay": [_as_json(curve) for curve in delays],
        "spo_linear": _linear(delays),
        "runs": runs,
        "seed": seed,
    }
    report(content, as_json, lambda _: _show(costs, delays))


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


def _linear(delays: list[Curve]) -> bool:
    """Without loss the delay is 2n slots (3 for two members), exactly."""
    return all(curve.slots[0] == (2 * curve.sites if curve.sites > 2 else 3) for curve in delays)


def _as_json(curve: Curve) -> dict[str, Any]:
    losses = [str(loss) for loss in curve.losses]
    return {
        "sites": curve.sites,
        "slots": dict(zip(losses, curve.slots, strict=True)),
        "errors": dict(zip(losses, curve.errors, strict=True)),
        "bends": dict(zip(losses[1:-1], curve.bends, strict=True)),
        "rising": curve.rising,
        "convex": curve.convex,
    }


def _show(costs: list[dict[str, Any]], delays: list[Curve]) -> None:
    screen = console()
    best = ("2n", "TO", "TO channel", "PO", "rounds", "slots")
    worst = ("n²-n+1", "TO eager", "PO eager")
    grid = table("One isolated broadcast, nothing lost", "n", *best, *worst)
    for row in costs:
        pdus = [row[protocol]["deferred"]["pdus"] for protocol in (TO, TO_CHANNEL, PO)]
        lasts = (row[TO]["deferred"]["rounds"], row[TO]["deferred"]["slots"])
        eager = (row[TO]["eager"]["pdus"], row[PO]["eager"]["pdus"])
        add_row(grid, row["sites"], row["best"], *pdus, *lasts, row["worst"], *eager)
    screen.print(grid)
    grid = table("SPO: PDUs for d destinations", "n", "d = 1", "d = 2", "d = n - 1")
    for row in costs:
        n, spo = row["sites"], row[SPO]
        cells = [number(spo[str(d)]) if str(d) in spo else "" for d in (1, 2, n - 1)]
        grid.add_row(str(n), *cells)
    screen.print(grid)
    losses = [f"{loss:.0%}" for loss in LOSSES]
    title = "SPO: delay in slots on a serial channel, by chance of loss"
    grid = table(title, "n", *losses, "rising", "convex")
    for curve in delays:
        cells = [
            f"{slots:,.1f} ±{error:.1f}" if error else f"{slots:g}"
            for slots, error in zip(curve.slots, curve.errors, strict=True)
        ]
        grid.add_row(str(curve.sites), *cells, _yes(curve.rising), _yes(curve.convex))
    screen.print(grid)
    steepest = min(min(curve.bends) for curve in delays)
    screen.print(f"  without loss linear in n, 2n exactly: {_yes(_linear(delays))}")
    screen.print(f"  the slope falls by {max(0.0, -steepest):.1f} standard errors at most")


def _yes(holds: bool) -> str:
    return "yes" if holds else "NO"
