"""`roundelay switch`: a faulty network for real nodes."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path
from typing import Any

import click

from roundelay.cli.options import LOSS, Whole
from roundelay.core.errors import ConfigError
from roundelay.faultnet.switch import Switch, read_rules

EPILOG = """\b
Examples:
  roundelay switch --listen 127.0.0.1:9000 --loss 0.05 --seed 7
  roundelay switch --listen 127.0.0.1:9000 --control unix:/tmp/switch --delay-ms 1:20
  echo '{"partition": [["a", "b"], ["c", "d", "e"]]}' | nc -U /tmp/switch
  roundelay switch --listen 127.0.0.1:9000 --rules faults.json
Nodes cross it with  roundelay node --via 127.0.0.1:9000.  Rules: docs/switch.md.
"""


@click.command(epilog=EPILOG)
@click.option("--listen", required=True, metavar="HOST:PORT", help="Where nodes send to.")
@click.option("--seed", type=Whole(0), default=0, show_default=True, help="Decides every fault.")
@click.option("--loss", type=LOSS, help="Chance that a copy is lost.")
@click.option("--burst", metavar="P[:MOST]",
              help="Chance that a burst of 1 to MOST (20) losses begins.")  # fmt: skip
@click.option("--duplicate", type=LOSS, help="Chance that a copy comes twice.")
@click.option("--delay-ms", metavar="A:B", help="Every copy takes A to B ms longer, in order.")
@click.option("--reorder", type=LOSS, help="Chance that a copy is overtaken.")
@click.option("--corrupt", type=LOSS, help="Chance that bits of a copy are flipped.")
@click.option("--rules", type=click.Path(path_type=Path), metavar="FILE.json",
              help="More rules; those with after_s wait.")  # fmt: skip
@click.option("--control", metavar="HOST:PORT|unix:PATH",
              help="Takes rules and {\"stats\": true}, one JSON object a line.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True,
              help="Print what was counted as one JSON object on a line.")  # fmt: skip
def command(
    listen: str,
    seed: int,
    loss: float | None,
    burst: str | None,
    duplicate: float | None,
    delay_ms: str | None,
    reorder: float | None,
    corrupt: float | None,
    rules: Path | None,
    control: str | None,
    as_json: bool,
) -> int:
    """Stand between real nodes as a network that loses, delays, doubles, reorders and damages.

    Prints one line when it serves and, when stopped by SIGTERM or an interrupt, what it counted."""
    given: dict[str, Any] = {
        "loss": loss,
        "burst": None if burst is None else _burst(burst),
        "duplicate": duplicate,
        "delay_ms": None if delay_ms is None else _span(delay_ms),
        "reorder": reorder,
        "corrupt": corrupt,
    }
    settings = {name: value for name, value in given.items() if value is not None}
    first = [settings] if settings else []
    switch = Switch(
        listen, seed=seed, control=control, rules=first + (read_rules(rules) if rules else [])
    )
    asyncio.run(_serve(switch))
    stats = switch.stats()
    if as_json:
        click.echo(json.dumps(stats))
        return 0
    click.echo(f"received={stats['received']} forwarded={stats['forwarded']}")
    for title in ("dropped", "faults"):
        if stats[title]:
            click.echo(f"{title} " + " ".join(f"{k}={v}" for k, v in stats[title].items()))
    return 0


async def _serve(switch: Switch) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await switch.start()
    where = "{}:{}".format(*switch.address)
    click.echo(f"ready switch={where} control={switch.control or 'none'}")
    try:
        await stop.wait()
    finally:
        await switch.close()


def _burst(text: str) -> Any:
    start, colon, most = text.partition(":")
    try:
        chance = float(start)
        return {"start": chance, "most": int(most)} if colon else chance
    except ValueError:
        raise ConfigError("burst", text, "a chance, or P:MOST, such as 0.001:50") from None


def _span(text: str) -> list[float]:
    least, colon, most = text.partition(":")
    try:
        return [float(least), float(most if colon else least)]
    except ValueError:
        raise ConfigError("delay_ms", text, "A:B in ms, such as 1:20") from None
