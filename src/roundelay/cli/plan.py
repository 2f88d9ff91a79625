"""`roundelay plan`: the cost model as a table."""

from __future__ import annotations

import click
import msgspec

from roundelay.cli.options import LOSS, POSITIVE, Whole, json_option, option
from roundelay.cli.output import console, number, print_json, table
from roundelay.core.cost import Prediction, plan

EPILOG = """\b
Example:
  roundelay plan --sites 10 --resilience 2 --loss 0.01 --rate 100 --hold-ms 50
"""


@click.command(epilog=EPILOG)
@option("--sites", Whole(2), "Sites in the group, N.", 5)
@option("--resilience", Whole(0), "Sites that may fail, L.  [default: 1]")
@option("--loss", LOSS, "Chance that a receiver misses a PDU.", 0.0)
@option("--rate", POSITIVE, "Messages per second, of all sites together.", 20.0)
@option("--hold-ms", POSITIVE, "T: how long a token site waits for a message.", 50.0)
@option("--kw", Whole(1), "Acknowledgements per token transfer.", 1)
@option("--kr", Whole(1), "Token transfers per acknowledgement.", 1)
@json_option
def command(
    sites: int,
    resilience: int | None,
    loss: float,
    rate: float,
    hold_ms: float,
    kw: int,
    kr: int,
    as_json: bool,
) -> None:
    """Predict what a token group would cost, by the analysis of its paper.

    PDUs per broadcast, the delay from acknowledgement to commit, and how many messages a site has
    to keep; beside it the neighbouring resiliences, and positive acknowledgement."""
    if resilience is None:
        resilience = 1 if sites > 2 else 0
    prediction = plan(sites, resilience, loss, rate, hold_ms, kw, kr)
    if as_json:
        print_json(msgspec.to_builtins(prediction))
        return
    rows = sorted((prediction.token, *prediction.nearby), key=lambda token: token.resilience)
    transfer = f"  K_w = {kw}  K_r = {kr}" if kw > 1 or kr > 1 else ""
    head = (
        f"{sites} sites, loss {loss:.1%}, {rate:g} messages/s, T = {hold_ms:g} ms "
        f"(τ = {prediction.tau:g}){transfer}"
    )
    names = [f"token, L = {token.resilience}" for token in rows]
    grid = table(head, "", *names, "positive ack")

    def add(text: str, field: str, other: str) -> None:
        cells = [number(getattr(token, field)) for token in rows]
        grid.add_row(text, *cells, other, style="bold" if field == "messages" else None)

    add("PDUs per broadcast", "messages", number(prediction.positive_ack_messages))
    add("  acknowledgements and NULLs", "acks_and_nulls", "")
    add("  confirmations", "confirmations", "")
    add("  retransmissions", "retransmissions", "")
    add("commit delay, mean (ms)", "commit_delay_mean_ms", "no commit")
    add("commit delay, at most (ms)", "commit_delay_bound_ms", "")
    add("messages a site keeps", "storage_messages", "")
    add("PDUs per second", "pdus_per_s", number(prediction.positive_ack_pdus_per_s))
    screen = console()
    screen.print(grid)
    screen.print(_advice(prediction.token, prediction.positive_ack_messages))


def _advice(token: Prediction, positive_ack: float) -> str:
    ratio = positive_ack / token.messages
    if ratio >= 1:
        return f"  The token protocol sends {ratio:.1f} times less than positive acknowledgement."
    return f"  Positive acknowledgement would send {1 / ratio:.1f} times less, without an order."
