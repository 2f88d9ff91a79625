"""`roundelay simulate`, `complexity` and `plan`: what a group costs, measured and predicted."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import click
from msgspec import structs

from roundelay.cli.options import (
    LOSS,
    NOT_NEGATIVE,
    PATH,
    POSITIVE,
    OneOf,
    Whole,
    flag,
    force_option,
    json_option,
    option,
)
from roundelay.cli.output import print_table, print_violations, progress, report
from roundelay.core.cluster.config import DEFERRED, EAGER
from roundelay.core.cost import CostPlan, plan
from roundelay.core.errors import ConfigError
from roundelay.core.families import FAMILIES, PO, SPO, TO, TO_CHANNEL, TOTAL
from roundelay.core.grsb.config import PROFILES as GRSB_LAYOUTS
from roundelay.runs.folder import DIAGRAM, run_folder
from roundelay.runs.measured import LOADS, PROFILES
from roundelay.runs.simulate import RUNS, SimulateParams, simulate
from roundelay.sim import complexity
from roundelay.sim.complexity import LOSSES, Curve, cost, delay_curve
from roundelay.sim.families.registry import SIMULATED

POLICIES: Final = (DEFERRED, EAGER)

SIMULATE_EPILOG = """\b
Examples:
  roundelay simulate token --sites 10 --loss 0.05 --messages 2000 --tau 0.1
  roundelay simulate token --kw 4 --load saturated --json
  roundelay simulate po --sites 8 --policy deferred --messages 20
  roundelay simulate spo --sites 8 --destinations 3 --loss 0.1 --messages 100
  roundelay simulate grsb --sites 20 --recorders 2 --away 0.3 --messages 2000
  roundelay simulate wide --networks 4 --sites 60 --subnet 6 --away 0.3
  roundelay simulate token --profile fast --rate 5000 --messages 100000 --out runs/busy
"""


@click.command(epilog=SIMULATE_EPILOG)
@click.argument("protocol", type=OneOf(SIMULATED))
@option("--sites", Whole(2), "Sites in the group, N.  [default: 5; wide: 5 for each network]")
@option("--resilience", Whole(0), "Sites that may fail, L.  [default: 1]")
@option("--loss", LOSS, "Chance that a receiver misses a PDU.", 0.0)
@option("--messages", Whole(1), "Messages to broadcast.", 1000)
@option("--seed", Whole(0), "Decides the whole run.", 0)
@option("--tau", POSITIVE, "Messages per hold time T, on average.  [default: 1]")
@option("--rate", POSITIVE, "Messages per second, in place of --tau.")
@option("--kw", Whole(1), "Acknowledgements per token transfer.", 1)
@option("--kr", Whole(1), "Token transfers per acknowledgement.", 1)
@option("--profile", PROFILES, "The 1984 simulation, or what a network would use.", "paper")
@option(
    "--load",
    LOADS,
    "Random arrivals, all sources busy, or one message at a time.  "
    "[default: poisson; isolated for clusters without --tau or --rate]",
)
@option(
    "--policy",
    POLICIES,
    "Clusters: acknowledge when owed, or at every opportunity.  [default: deferred]",
)
@option("--destinations", Whole(1), "spo: each message goes to so many random members.")
@option("--layout", GRSB_LAYOUTS, "grsb: how roles are spread over the sites.  [default: separate]")
@option(
    "--recorders",
    Whole(1),
    "grsb: Playback Recorders; wide: those of each network and of the global level.  "
    "[default: the fewest of the layout]",
)
@option("--away", LOSS, "grsb, wide: this fraction of the users is off for most of the run.")
@option("--networks", Whole(2), "wide: local networks.  [default: 3]")
@option(
    "--subnet",
    Whole(0),
    "wide: nodes behind the broadcaster of each network.  [default: a quarter of its sites]",
)
@option("--hold-ms", NOT_NEGATIVE, "T: how long a token site waits for a message.", 50.0)
@option("--size", Whole(10), "Bytes of a message.", 64)
@flag("--wire", "Send every PDU through the byte codec.")
@option("--out", PATH, "Folder for trace, diagram, results.")
@force_option
@json_option
def simulate_command(out: Path | None, force: bool, as_json: bool, **given: Any) -> int:
    """Run one group of PROTOCOL in virtual time and measure what it costs.

    The seed decides the run down to its last event: the same parameters give the same
    trace_sha256, whoever runs them.  Exit status 1 if a promise was broken."""
    if given["sites"] is None:
        given["sites"] = RUNS[given["protocol"]].sites_for(given["networks"])
    params = SimulateParams(**given).settled()
    with progress(params.protocol, quiet=as_json) as tick:
        if out is None:
            results = simulate(params, progress=tick)
        else:
            with run_folder(out, force=force) as folder:
                folder.write_params("simulate", structs.asdict(params))
                results = simulate(params, trace=folder.trace, progress=tick)
                folder.write_results(results)
                from roundelay.runs.report import write_simulate_report

                write_simulate_report(folder, results)
    return report(results, as_json, lambda _: _show_run(results, out), results["violations"])


MEASURED: Final = (
    ("messages", "messages"),
    ("pdus", "PDUs"),
    ("pdus_per_message", "PDUs per message"),
    ("control_per_message", "control PDUs per message"),
    ("drain_pdus", "PDUs to drain the run, not counted"),
    ("rounds", "rounds until acknowledged everywhere, parallel channels"),
    ("slots", "slots until then on a serial channel"),
    ("storage_max", "messages kept by one site, at most"),
    ("delay_ms_mean", "delay, mean (ms)"),
    ("delay_ms_p99", "delay, 99 % below (ms)"),
    ("beacons", "signs of life, their answers, polls: not counted"),
    ("networks", "networks"),
    ("nodes_behind", "nodes behind broadcasters"),
    ("away", "users away for most of the run"),
    ("replayed", "messages played back by recorders"),
    ("lost_copies", "copies lost"),
    ("virtual_s", "virtual time (s)"),
)


def _show_run(results: dict[str, Any], out: Path | None) -> None:
    head = (
        f"{results['protocol']}  N = {results['sites']}  L = {results['resilience']}  "
        f"loss {results['loss']:.1%}  seed {results['seed']}"
    )
    measured = {text: results.get(name) for name, text in MEASURED}
    rows = [(text, value) for text, value in measured.items() if value is not None]
    print_table(head, ("", ""), rows)
    everywhere = "yes" if results["delivered_everywhere"] else "NO"
    order = "yes" if results["same_order"] else "no"
    if not results["same_order"] and FAMILIES[results["protocol"]].order != TOTAL:
        order += " (this protocol does not promise it)"
    click.echo(f"  delivered everywhere: {everywhere}      same order: {order}")
    click.echo(f"  trace_sha256: {results['trace_sha256']}")
    print_violations(results["violations"])
    if out is not None:
        click.echo(f"  written: {out}  (open {out / DIAGRAM})")


COMPLEXITY_EPILOG = """\b
Examples:
  roundelay complexity
  roundelay complexity --sites 3:8 --runs 200 --json
"""

SITES_MAX: Final = 32


@click.command(epilog=COMPLEXITY_EPILOG)
@option("--sites", str, "Sizes of the cluster, A:B; B itself is not run.", "3:13")
@option(
    "--runs", Whole(2), "Broadcasts over which a delay under loss is averaged.", complexity.RUNS
)
@option("--seed", Whole(0), "Decides all of them.", 0)
@json_option
def complexity_command(sites: str, runs: int, seed: int, as_json: bool) -> None:
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
    report(content, as_json, lambda _: _show_complexity(costs, delays))


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


def _show_complexity(costs: list[dict[str, Any]], delays: list[Curve]) -> None:
    best = ("2n", "TO", "TO channel", "PO", "rounds", "slots")
    worst = ("n²-n+1", "TO eager", "PO eager")
    rows = []
    for row in costs:
        pdus = [row[protocol]["deferred"]["pdus"] for protocol in (TO, TO_CHANNEL, PO)]
        lasts = (row[TO]["deferred"]["rounds"], row[TO]["deferred"]["slots"])
        eager = (row[TO]["eager"]["pdus"], row[PO]["eager"]["pdus"])
        rows.append((row["sites"], row["best"], *pdus, *lasts, row["worst"], *eager))
    print_table("One isolated broadcast, nothing lost", ("n", *best, *worst), rows)
    rows = []
    for row in costs:
        n, spo = row["sites"], row[SPO]
        rows.append((n, *(spo.get(str(d), "") for d in (1, 2, n - 1))))
    print_table("SPO: PDUs for d destinations", ("n", "d = 1", "d = 2", "d = n - 1"), rows)
    rows = []
    for curve in delays:
        cells = [
            f"{slots:,.1f} ±{error:.1f}" if error else f"{slots:g}"
            for slots, error in zip(curve.slots, curve.errors, strict=True)
        ]
        rows.append((curve.sites, *cells, _yes(curve.rising), _yes(curve.convex)))
    title = "SPO: delay in slots on a serial channel, by chance of loss"
    print_table(title, ("n", *(f"{loss:.0%}" for loss in LOSSES), "rising", "convex"), rows)
    steepest = min(min(curve.bends) for curve in delays)
    click.echo(f"  without loss linear in n, 2n exactly: {_yes(_linear(delays))}")
    click.echo(f"  the slope falls by {max(0.0, -steepest):.1f} standard errors at most")


def _yes(holds: bool) -> str:
    return "yes" if holds else "NO"


PLAN_EPILOG = """\b
Example:
  roundelay plan --sites 10 --resilience 2 --loss 0.01 --rate 100 --hold-ms 50
"""


@click.command(epilog=PLAN_EPILOG)
@option("--sites", Whole(2), "Sites in the group, N.", 5)
@option("--resilience", Whole(0), "Sites that may fail, L.  [default: 1]")
@option("--loss", LOSS, "Chance that a receiver misses a PDU.", 0.0)
@option("--rate", POSITIVE, "Messages per second, of all sites together.", 20.0)
@option("--hold-ms", POSITIVE, "T: how long a token site waits for a message.", 50.0)
@option("--kw", Whole(1), "Acknowledgements per token transfer.", 1)
@option("--kr", Whole(1), "Token transfers per acknowledgement.", 1)
@json_option
def plan_command(as_json: bool, **given: Any) -> None:
    """Predict what a token group would cost, by the analysis of its paper.

    PDUs per broadcast, the delay from acknowledgement to commit, and how many messages a site has
    to keep; beside it the neighbouring resiliences, and positive acknowledgement."""
    if given["resilience"] is None:
        given["resilience"] = 1 if given["sites"] > 2 else 0
    report(plan(**given), as_json, _show_plan)


PREDICTED: Final = (
    ("PDUs per broadcast", "messages"),
    ("  acknowledgements and NULLs", "acks_and_nulls"),
    ("  confirmations", "confirmations"),
    ("  retransmissions", "retransmissions"),
    ("commit delay, mean (ms)", "commit_delay_mean_ms"),
    ("commit delay, at most (ms)", "commit_delay_bound_ms"),
    ("messages a site keeps", "storage_messages"),
    ("PDUs per second", "pdus_per_s"),
)


def _show_plan(costs: CostPlan) -> None:
    tokens = sorted((costs.token, *costs.nearby), key=lambda token: token.resilience)
    transfer = f"  K_w = {costs.kw}  K_r = {costs.kr}" if costs.kw > 1 or costs.kr > 1 else ""
    head = (
        f"{costs.sites} sites, loss {costs.loss:.1%}, {costs.rate:g} messages/s, "
        f"T = {costs.hold_ms:g} ms (τ = {costs.tau:g}){transfer}"
    )
    positive_ack = {
        "messages": costs.positive_ack_messages,
        "commit_delay_mean_ms": "no commit",
        "pdus_per_s": costs.positive_ack_pdus_per_s,
    }
    rows = (
        (text, *(getattr(token, field) for token in tokens), positive_ack.get(field, ""))
        for text, field in PREDICTED
    )
    names = [f"token, L = {token.resilience}" for token in tokens]
    print_table(head, ("", *names, "positive ack"), rows)
    ratio = costs.positive_ack_messages / costs.token.messages
    if ratio >= 1:
        click.echo(
            f"  The token protocol sends {ratio:.1f} times less than positive acknowledgement."
        )
    else:
        click.echo(
            f"  Positive acknowledgement would send {1 / ratio:.1f} times less, without an order."
        )
