"""`roundelay switch`: a faulty network for real nodes."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path
from typing import Any

import click

from roundelay.cli.options import LOSS, PATH, Whole, flag, option
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
@option("--listen HOST:PORT", str, "Where nodes send to.", required=True)
@option("--seed", Whole(0), "Decides every fault.", 0)
@option("--loss", LOSS, "Chance that a copy is lost.")
@option("--burst P[:MOST]", str, "Chance that a burst of 1 to MOST (20) losses begins.")
@option("--duplicate", LOSS, "Chance that a copy comes twice.")
@option("--delay-ms A:B", str, "Every copy takes A to B ms longer, in order.")
@option("--reorder", LOSS, "Chance that a copy is overtaken.")
@option("--corrupt", LOSS, "Chance that bits of a copy are flipped.")
@option("--rules FILE.json", PATH, "More rules; those with after_s wait.")
@option(
    "--control HOST:PORT|unix:PATH", str, 'Takes rules and {"stats": true}, one JSON object a line.'
)
@flag("--json as_json", "Print what was counted as one JSON object on a line.")
def command(
    listen: str, seed: int, rules: Path | None, control: str | None, as_json: bool, **given: Any
) -> int:
    """Stand between real nodes as a network that loses, delays, doubles, reorders and damages.

    Prints one line when it serves and, when stopped by SIGTERM or an interrupt, what it counted."""
    settings = {name: value for name, value in given.items() if value is not None}
    for name, parse in (("burst", _burst), ("delay_ms", _span)):
        if name in settings:
            settings[name] = parse(settings[name])
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
