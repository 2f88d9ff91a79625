"""`roundelay node`: a node that serves applications in any language."""

from __future__ import annotations

import asyncio
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
from msgspec import structs

from roundelay.cli.options import NOT_NEGATIVE, OneOf, Whole
from roundelay.cli.output import printable
from roundelay.core.errors import ConfigError
from roundelay.journal.journal import ALWAYS, POLICIES, SEGMENT_BYTES_MAX, JournalConfig
from roundelay.node.driver.tracing import Tracing
from roundelay.node.event_log import LEVELS
from roundelay.node.frontend.server import HELD_BYTES_MAX, FrontendServer
from roundelay.node.groups import GroupSpec, check_name, parse_group
from roundelay.node.loop import loop_factory
from roundelay.node.medium.interfaces import parse_address
from roundelay.node.medium.keys import load_secret
from roundelay.node.medium.probe import MULTICAST, Choice
from roundelay.node.membership.settings import MIN_MEMBERS
from roundelay.node.node import Node
from roundelay.node.node_config import NodeConfig
from roundelay.node.recording.recorder import RecordConfig, parse_record
from roundelay.wire.frontend import DEFAULT, MESSAGE_BYTES, MESSAGE_BYTES_MOST

EPILOG = """\b
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


@click.command(epilog=EPILOG)
@click.option("--name", default="", help="Of this node, unique on the medium. Default: made up.")
@click.option("--dir", "folder", type=click.Path(path_type=Path), metavar="DIR",
              help="Where members keep what must survive a restart.")  # fmt: skip
@click.option("--frontend", "frontends", multiple=True, metavar="HOST:PORT|unix:PATH",
              help=f"Where applications connect; repeatable.  [default: {DEFAULT}]")  # fmt: skip
@click.option("--multicast", default=f"{MULTICAST[0]}:{MULTICAST[1]}", show_default=True,
              metavar="ADDR:PORT", help="The shared medium.")  # fmt: skip
@click.option("--interface", default="", metavar="IF",
              help="Name or address.  Default: the first where multicast works.")  # fmt: skip
@click.option("--seeds", default="", metavar="H:P,…",
              help="Other nodes, for networks without multicast.")  # fmt: skip
@click.option("--listen", default="", metavar="H:P", help="Own address, without multicast.")
@click.option("--advertise", default="", metavar="H:P",
              help="The address others use for this node, without multicast.")  # fmt: skip
@click.option("--via", default="", metavar="H:P", help="Cross the switch there (roundelay switch).")
@click.option("--ttl", type=Whole(1, 255), default=1, show_default=True,
              help="Networks a multicast may cross.")  # fmt: skip
@click.option("--key", type=click.Path(path_type=Path), metavar="FILE",
              help="The secret shared by all nodes.  Default: this user's own.")  # fmt: skip
@click.option("--insecure", is_flag=True, help="Datagrams in the clear, from anybody.")
@click.option("--group", "groups", multiple=True, metavar="NAME:service[:key=value…]",
              help="A group to take part in from the start; may be repeated.")  # fmt: skip
@click.option("--record", "records", multiple=True, metavar="GROUP[:filter]",
              help="Record a group in DIR/journals; filters conference=, sender=, kind=. "
              "May be repeated.")  # fmt: skip
@click.option("--fsync", type=OneOf(POLICIES), default=ALWAYS, show_default=True,
              help="When what is recorded is synced to the disk.")  # fmt: skip
@click.option("--parquet", is_flag=True, help="Turn complete segments of records into Parquet.")
@click.option("--keep-bytes", type=Whole(0), default=0, metavar="N",
              help="The oldest records go when a journal takes more. 0: all stay.")  # fmt: skip
@click.option("--keep-s", type=NOT_NEGATIVE, default=0.0, metavar="S",
              help="Records older than so many seconds go. 0: all stay.")  # fmt: skip
@click.option("--keep-conference", "kept_conferences", multiple=True, metavar="C=S",
              help="Of records of conference C that are older than S seconds only the heads stay. "
              "May be repeated.")  # fmt: skip
@click.option("--segment-bytes", type=Whole(1 << 12, SEGMENT_BYTES_MAX),
              default=JournalConfig().segment_bytes, show_default=True, metavar="N",
              help="Records go a segment at a time; so large it is.")  # fmt: skip
@click.option("--max-message", type=Whole(1, MESSAGE_BYTES_MOST), default=MESSAGE_BYTES,
              show_default=True, help="Bytes an application may send at once.")  # fmt: skip
@click.option("--frontend-bytes", type=Whole(1 << 20), default=HELD_BYTES_MAX,
              show_default=True, metavar="N",
              help="Held for all applications together; then the slowest are cut.")  # fmt: skip
@click.option("--frontend-open", is_flag=True, help="Let other machines connect, in the clear.")
@click.option("--trace", type=click.Path(path_type=Path), metavar="DIR",
              help="Record what happens in the groups, for roundelay check.")  # fmt: skip
@click.option("--log", "log_level", type=OneOf(tuple(LEVELS)), default="warning", show_default=True,
              help="Events to report on standard error, as JSON lines.")  # fmt: skip
def command(**options: Any) -> int:
    """Take part in the medium and serve applications until told to stop.

    Prints one line when it serves; SIGTERM or an interrupt stops it cleanly."""
    frontends = options.pop("frontends") or (DEFAULT,)
    limits = {
        "max_message": options.pop("max_message"),
        "held_bytes_max": options.pop("frontend_bytes"),
        "open_to_network": options.pop("frontend_open"),
    }
    config = _config(**options)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(_serve(config, frontends, limits))


def _config(
    name: str, folder: Path | None, multicast: str, interface: str, seeds: str, listen: str,
    advertise: str, via: str, ttl: int, key: Path | None, insecure: bool,
    groups: tuple[str, ...], records: tuple[str, ...], fsync: str, parquet: bool,
    keep_bytes: int, keep_s: float, kept_conferences: tuple[str, ...], segment_bytes: int,
    trace: Path | None, log_level: str,
) -> NodeConfig:  # fmt: skip
    def address(text: str, field: str) -> tuple[str, int] | None:
        return parse_address(text, field) if text else None

    choice = Choice(
        multicast=parse_address(multicast, "multicast"),
        interface=interface,
        seeds=tuple(parse_address(seed.strip(), "seeds") for seed in seeds.split(",") if seed),
        listen=address(listen, "listen"),
        advertise=address(advertise, "advertise"),
        via=address(via, "via"),
        ttl=ttl,
        name=name,
    )
    secret = None if insecure else load_secret(key)
    specs = tuple(parse_group(group) for group in groups)
    journal = JournalConfig(
        sync=fsync, parquet=parquet, keep_bytes=keep_bytes, keep_s=keep_s,
        segment_bytes=segment_bytes, keep_conference_s=dict(map(_kept, kept_conferences)),
    )  # fmt: skip
    journal.check()
    config = NodeConfig(
        name=name, dir=folder, choice=choice, secret=secret, groups=specs, log_level=log_level,
        records=_records(records, specs, journal),
    )  # fmt: skip
    if records and folder is None:
        raise ConfigError("record", records[0], "only with --dir: the journal is kept there")
    config.check()
    if trace is not None:
        if not name:
            raise ConfigError("trace", trace, "only with --name: a trace says who wrote it")
        config = structs.replace(config, tracer=Tracing(trace, name))
    return config


def _kept(text: str) -> tuple[int, float]:
    """What `--keep-conference` says: a conference and for how long it is kept whole."""
    conference, _, seconds = text.partition("=")
    try:
        found = (int(conference), float(seconds))
        if 0 <= found[0] < 1 << 32 and 0 <= found[1] < float("inf"):
            return found
    except ValueError:
        pass
    raise ConfigError("keep_conference", text, "a conference and seconds, as in 7=86400")


def _records(
    texts: tuple[str, ...], specs: tuple[GroupSpec, ...], journal: JournalConfig
) -> tuple[RecordConfig, ...]:
    """What `--record` says.  A group of `--group` may be named without its prefix there, too."""
    full = {spec.name for spec in specs}
    short = {spec.name.partition(":")[2]: spec.name for spec in specs if ":" in spec.name}
    found: list[RecordConfig] = []
    for text in texts:
        group, wanted = parse_record(text)
        last = group.rpartition(":")[2]
        if ":" in group and (last in ("", "conference", "sender", "kind") or last.isdecimal()):
            allowed = (
                "GROUP, or GROUP:filter; a filter is conference=, sender= or kind= and a value"
            )
            raise ConfigError("record", text, allowed)
        name = check_name(group if group in full else short.get(group, group), "record")
        if any(one.group == name for one in found):
            raise ConfigError("record", text, f"each group once, and {name} is there already")
        found.append(RecordConfig(group=name, wanted=wanted, journal=journal))
    return tuple(found)


async def _serve(config: NodeConfig, addresses: tuple[str, ...], limits: dict[str, Any]) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    node = Node(config)
    node.on_fatal = lambda error: stop.set()
    server = FrontendServer(
        node, addresses, name=node.name, **limits,
        log=node.log,
    )  # fmt: skip
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
