"""`roundelay plan`: the cost model as a table."""

from __future__ import annotations

import click
import msgspec

from roundelay.cli.options import LOSS, POSITIVE, Whole, json_option
from roundelay.cli.output import console, number, print_json, table
from roundelay.core.cost import Prediction, plan

EPILOG = """\b
Example:
  roundelay plan --sites 10 --resilience 2 --loss 0.01 --rate 100 --hold-ms 50
"""


@click.command(epilog=EPILOG)
@click.option("--sites", type=Whole(2), default=5, show_default=True, help="Sites in the group, N.")
@click.option("--resilience", type=Whole(0), help="Sites that may fail, L.  [default: 1]")
@click.option("--loss", type=LOSS, default=0.0, show_default=True,
              help="Chance that a receiver misses a PDU.")  # fmt: skip
@click.option("--rate", type=POSITIVE, default=20.0, show_default=True,
              help="Messages per second, of all sites together.")  # fmt: skip
@click.option("--hold-ms", type=POSITIVE, default=50.0, show_default=True,
              help="T: how long a token site waits for a message.")  # fmt: skip
@click.option("--kw", type=Whole(1), default=1, show_default=True,
              help="Acknowledgements per token transfer.")  # fmt: skip
@click.option("--kr", type=Whole(1), default=1, show_default=True,
              help="Token transfers per acknowledgement.")  # fmt: skip
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
    made = plan(sites, resilience, loss, rate, hold_ms, kw, kr)
    if as_json:
        print_json(msgspec.to_builtins(made))
        return
    rows = sorted((made.token, *made.nearby), key=lambda one: one.resilience)
    transfer = f"  K_w = {kw}  K_r = {kr}" if kw > 1 or kr > 1 else ""
    head = (
        f"{sites} sites, loss {loss:.1%}, {rate:g} messages/s, T = {hold_ms:g} ms "
        f"(τ = {made.tau:g}){transfer}"
    )
    names = [f"token, L = {one.resilience}" for one in rows]
    grid = table(head, "", *names, "positive ack")

    def add(text: str, field: str, other: str) -> None:
        cells = [number(getattr(one, field)) for one in rows]
        grid.add_row(text, *cells, other, style="bold" if field == "messages" else None)

    add("PDUs per broadcast", "messages", number(made.positive_ack_messages))
    add("  acknowledgements and NULLs", "acks_and_nulls", "")
    add("  confirmations", "confirmations", "")
    add("  retransmissions", "retransmissions", "")
    add("commit delay, mean (ms)", "commit_delay_mean_ms", "no commit")
    add("commit delay, at most (ms)", "commit_delay_bound_ms", "")
    add("messages a site keeps", "storage_messages", "")
    add("PDUs per second", "pdus_per_s", number(made.positive_ack_pdus_per_s))
    screen = console()
    screen.print(grid)
    screen.print(_advice(made.token, made.positive_ack_messages))


def _advice(token: Prediction, positive_ack: float) -> str:
    ratio = positive_ack / token.messages
    if ratio >= 1:
        return f"  The token protocol sends {ratio:.1f} times less than positive acknowledgement."
    return f"  Positive acknowledgement would send {1 / ratio:.1f} times less, without an order."
