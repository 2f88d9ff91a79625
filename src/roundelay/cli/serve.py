"""`roundelay node` and `switch`: what runs until it is told to stop."""

from __future__ import annotations

import asyncio
import json
import signal
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
from msgspec import structs

from roundelay.cli.options import LOSS, NOT_NEGATIVE, PATH, Whole, flag, option, several
from roundelay.cli.output import printable
from roundelay.client.options import choice_of
from roundelay.core.errors import ConfigError
from roundelay.faultnet.switch import Switch, read_rules
from roundelay.journal.journal import ALWAYS, POLICIES, SEGMENT_BYTES_MAX, JournalConfig
from roundelay.node.driver.tracing import Tracing
from roundelay.node.event_log import LEVELS
from roundelay.node.frontend.server import HELD_BYTES_MAX, FrontendServer
from roundelay.node.groups import GroupSpec, check_name, parse_group
from roundelay.node.medium.keys import load_secret
from roundelay.node.medium.probe import MULTICAST
from roundelay.node.membership.settings import MIN_MEMBERS
from roundelay.node.node import Node
from roundelay.node.node_config import NodeConfig
from roundelay.node.process import loop_factory
from roundelay.node.recording.recorder import RecordConfig, parse_record
from roundelay.wire.frontend import DEFAULT, MESSAGE_BYTES, MESSAGE_BYTES_MOST

NODE_EPILOG = """\b
Examples:
  roundelay node --name a --interface eth0
  roundelay node --name a --dir /var/lib/roundelay --group orders:resilient:members=a,b,c
  roundelay node --name a --group orders:resilient:min_members=1
  roundelay node --name a --dir /var/lib/roundelay --record token:orders --fsync interval
  roundelay node --name a --dir /var/lib/roundelay --group grsb:news:config=news.toml
  roundelay node --name a1 --dir /var/lib/roundelay --group wide:all:config=wide.toml
  roundelay node --name a --frontend unix:/run/roundelay.sock --seeds 10.0.0.2:6677,10.0.0.3:6677
Then, on the same machine:
  roundelay listen token:orders &
  roundelay send token:orders "first"
A group without a prefix is an AutoRM group; token:, to:, po:, spo:, pa:, grsb: and wide: select
another protocol.  In groups whose members find each other nothing is confirmed before
min_members of them are there, 2 unless the group was founded with another number.
"""


@click.command(epilog=NODE_EPILOG)
@option("--name", str, "Of this node, unique on the medium. Default: made up.", unset="")
@option("--dir DIR", PATH, "Where members keep what must survive a restart.", to="folder")
@several(
    "--frontend HOST:PORT|unix:PATH",
    str,
    f"Where applications connect; repeatable.  [default: {DEFAULT}]",
    "frontends",
)
@option("--multicast ADDR:PORT", str, "The shared medium.", f"{MULTICAST[0]}:{MULTICAST[1]}")
@option(
    "--interface IF", str, "Name or address.  Default: the first where multicast works.", unset=""
)
@option("--seeds H:P,…", str, "Other nodes, for networks without multicast.", unset="")
@option("--listen H:P", str, "Own address, without multicast.", unset="")
@option(
    "--advertise H:P", str, "The address others use for this node, without multicast.", unset=""
)
@option("--via H:P", str, "Cross the switch there (roundelay switch).", unset="")
@option("--ttl", Whole(1, 255), "Networks a multicast may cross.", 1)
@option("--key FILE", PATH, "The secret shared by all nodes.  Default: this user's own.")
@flag("--insecure", "Datagrams in the clear, from anybody.")
@several(
    "--group NAME:service[:key=value…]",
    str,
    "A group to take part in from the start; may be repeated.",
    "groups",
)
@several(
    "--record GROUP[:filter]",
    str,
    "Record a group in DIR/journals; filters conference=, sender=, kind=. May be repeated.",
    "records",
)
@option("--fsync", POLICIES, "When what is recorded is synced to the disk.", ALWAYS)
@flag("--parquet", "Turn complete segments of records into Parquet.")
@option(
    "--keep-bytes N",
    Whole(0),
    "The oldest records go when a journal takes more. 0: all stay.",
    unset=0,
)
@option(
    "--keep-s S", NOT_NEGATIVE, "Records older than so many seconds go. 0: all stay.", unset=0.0
)
@several(
    "--keep-conference C=S",
    str,
    "Of records of conference C that are older than S seconds only the heads stay. "
    "May be repeated.",
    "kept_conferences",
)
@option(
    "--segment-bytes N",
    Whole(1 << 12, SEGMENT_BYTES_MAX),
    "Records go a segment at a time; so large it is.",
    JournalConfig().segment_bytes,
)
@option(
    "--max-message",
    Whole(1, MESSAGE_BYTES_MOST),
    "Bytes an application may send at once.",
    MESSAGE_BYTES,
)
@option(
    "--frontend-bytes N",
    Whole(1 << 20),
    "Held for all applications together; then the slowest are cut.",
    HELD_BYTES_MAX,
)
@flag("--frontend-open", "Let other machines connect, in the clear.")
@option("--trace DIR", PATH, "Record what happens in the groups, for roundelay check.")
@option(
    "--log",
    tuple(LEVELS),
    "Events to report on standard error, as JSON lines.",
    "warning",
    to="log_level",
)
def node_command(**options: Any) -> int:
    """Take part in the medium and serve applications until told to stop.

    Prints one line when it serves; SIGTERM or an interrupt stops it cleanly."""
    frontends = options.pop("frontends") or (DEFAULT,)
    limits = {
        "max_message": options.pop("max_message"),
        "held_bytes_max": options.pop("frontend_bytes"),
        "open_to_network": options.pop("frontend_open"),
    }
    config = _config(SimpleNamespace(**options))
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(_serve_node(config, frontends, limits))


def _config(given: SimpleNamespace) -> NodeConfig:
    """What the options say."""
    choice = structs.replace(choice_of(given), ttl=given.ttl)
    secret = None if given.insecure else load_secret(given.key)
    specs = tuple(parse_group(group) for group in given.groups)
    journal = JournalConfig(
        sync=given.fsync,
        parquet=given.parquet,
        keep_bytes=given.keep_bytes,
        keep_s=given.keep_s,
        segment_bytes=given.segment_bytes,
        keep_conference_s=dict(map(_kept, given.kept_conferences)),
    )
    journal.check()
    config = NodeConfig(
        name=given.name,
        dir=given.folder,
        choice=choice,
        secret=secret,
        groups=specs,
        log_level=given.log_level,
        records=_records(given.records, specs, journal),
    )
    if given.records and given.folder is None:
        raise ConfigError("record", given.records[0], "only with --dir: the journal is kept there")
    config.check()
    if given.trace is not None:
        if not given.name:
            raise ConfigError("trace", given.trace, "only with --name: a trace says who wrote it")
        config = structs.replace(config, tracer=Tracing(given.trace, given.name))
    return config


def _kept(text: str) -> tuple[int, float]:
    """What `--keep-conference` says: a conference and for how long it is kept whole."""
    conference, _, seconds = text.partition("=")
    with suppress(ValueError):
        kept = (int(conference), float(seconds))
        if 0 <= kept[0] < 1 << 32 and 0 <= kept[1] < float("inf"):
            return kept
    raise ConfigError("keep_conference", text, "a conference and seconds, as in 7=86400")


def _records(
    texts: tuple[str, ...], specs: tuple[GroupSpec, ...], journal: JournalConfig
) -> tuple[RecordConfig, ...]:
    """What `--record` says.  A group of `--group` may be named without its prefix there, too."""
    full = {spec.name for spec in specs}
    short = {spec.name.partition(":")[2]: spec.name for spec in specs if ":" in spec.name}
    records: list[RecordConfig] = []
    for text in texts:
        group, selection = parse_record(text)
        last = group.rpartition(":")[2]
        if ":" in group and (last in ("", "conference", "sender", "kind") or last.isdecimal()):
            allowed = (
                "GROUP, or GROUP:filter; a filter is conference=, sender= or kind= and a value"
            )
            raise ConfigError("record", text, allowed)
        name = check_name(group if group in full else short.get(group, group), "record")
        if any(record.group == name for record in records):
            raise ConfigError("record", text, f"each group once, and {name} is there already")
        records.append(RecordConfig(group=name, selection=selection, journal=journal))
    return tuple(records)


async def _serve_node(
    config: NodeConfig, addresses: tuple[str, ...], limits: dict[str, Any]
) -> int:
    stop = _stop_event()
    node = Node(config)
    node.on_fatal = lambda error: stop.set()
    server = FrontendServer(node, addresses, name=node.name, log=node.log, **limits)
    await server.start(serve=False)  # to know at once whether the addresses can be had
    try:
        await node.start()
        node.add_frontend(server)
        await server.serve()
        where = ",".join(server.addresses)
        click.echo(
            f"ready frontend={where} medium={node.medium.describe()} min_members={MIN_MEMBERS}"
        )
        await stop.wait()
    finally:
        await server.close()
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(node.stop(3.0), 60.0 if config.records else 4.0)
    if node.fatal is not None:
        click.echo(printable(f"roundelay node: stopped: {node.fatal}"), err=True)
        return 1
    return 0


def _stop_event() -> asyncio.Event:
    """What is set by SIGTERM or an interrupt."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop


SWITCH_EPILOG = """\b
Examples:
  roundelay switch --listen 127.0.0.1:9000 --loss 0.05 --seed 7
  roundelay switch --listen 127.0.0.1:9000 --control unix:/tmp/switch --delay-ms 1:20
  echo '{"partition": [["a", "b"], ["c", "d", "e"]]}' | nc -U /tmp/switch
  roundelay switch --listen 127.0.0.1:9000 --rules faults.json
Nodes cross it with  roundelay node --via 127.0.0.1:9000.  Rules: docs/switch.md.
"""


@click.command(epilog=SWITCH_EPILOG)
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
def switch_command(
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
    asyncio.run(_serve_switch(switch))
    stats = switch.stats()
    if as_json:
        click.echo(json.dumps(stats))
        return 0
    click.echo(f"received={stats['received']} forwarded={stats['forwarded']}")
    for title in ("dropped", "faults"):
        if stats[title]:
            click.echo(f"{title} " + " ".join(f"{k}={v}" for k, v in stats[title].items()))
    return 0


async def _serve_switch(switch: Switch) -> None:
    stop = _stop_event()
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
