"""`roundelay members`, `groups`, `status`, `why` and `group`: ask a node, and help a group."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import click

from roundelay.cli.options import flag, json_option, option
from roundelay.cli.output import MS, ms, print_answer, printable, report, styled, word
from roundelay.cli.talk import node_option, run_client
from roundelay.client.daemon import Daemon
from roundelay.core.errors import ConfigError
from roundelay.node.groups import check_name
from roundelay.node.membership.recovery import request
from roundelay.node.storage.folders import group_folder
from roundelay.wire.frontend import address


def ask(where: str, what: str, of: str | None = None) -> Any:
    """What the node there answers to a question."""

    async def answer() -> Any:
        async with await Daemon.connect(where, name="roundelay") as daemon:
            return await daemon.ask(what, of)

    address(where, "node")
    return run_client(answer())


@click.command()
@click.argument("group")
@node_option
@json_option
def members_command(group: str, node: str, as_json: bool) -> None:
    """Show who is in GROUP, as far as the node knows."""
    report(ask(node, "members", group), as_json, print_answer)


@click.command()
@node_option
@json_option
def groups_command(node: str, as_json: bool) -> None:
    """List the groups the node hosts or has heard of."""
    report({"groups": ask(node, "groups")}, as_json, print_answer)


@click.command()
@node_option
@json_option
def status_command(node: str, as_json: bool) -> None:
    """Show what the node does: medium, groups, frontends, counters, drops by reason."""
    report(ask(node, "status"), as_json, print_answer)


@click.command()
@click.argument("name", metavar="NODE")
@node_option
@json_option
def why_command(name: str, node: str, as_json: bool) -> None:
    """Say why NODE is dead or alive to the node asked.

    NODE is a name or a UUID: its heartbeats, stale time, trust, and what was sent to it again."""
    report(ask(node, "why", name), as_json, _print_why)


def _print_why(content: Mapping[str, Any]) -> None:
    """Why a node is dead or alive: the verdict as a sentence, then what it rests on."""
    reason = f", {content['reason']}" if content.get("reason") else ""
    click.echo(styled(f"{content.get('node')}: {content.get('verdict')}{reason}", bold=True))
    print_answer(dict(_grounds(content)), 1)


def _grounds(content: Mapping[str, Any]) -> Iterable[tuple[str, object]]:
    yield "uuid", content.get("uuid")
    if content.get("silent_ns") is None or content.get("last_seen_ns") is None:
        return
    beats = content.get("heartbeats_ns") or []
    apart = ", ".join(f"{(b - a) / MS:,.0f}" for a, b in list(pairwise(beats))[-10:])
    yield (
        "heartbeats",
        f"{len(beats)} remembered" + (f"; last apart (ms): {apart}" if apart else ""),
    )
    factor, period = content.get("stale_factor"), content.get("heartbeat_period_ns")
    yield (
        "silence",
        f"{ms(content['silent_ns'])}; dead after {ms(content.get('stale_ns'))} "
        f"(stale factor {factor}, our heartbeat period {ms(period)})",
    )
    yield (
        "environment",
        f"{content.get('nodes_local')} nodes known here, {word(content.get('nodes_estimated'))} "
        f"estimated with trust {content.get('trust')}; it reports {content.get('reported')}",
    )
    last = content.get("last_retransmission_ns")
    now = content["last_seen_ns"] + content["silent_ns"]
    when = "never" if last is None else f"last {ms(now - last)} ago"
    yield (
        "sent again",
        f"{content.get('packets_resent')} packets, {when}; "
        f"{content.get('rounds_without_progress')} rounds without progress",
    )
    yield "groups", content.get("groups") or "none"


@click.group()
def group_command() -> None:
    """Help a group that does not come back."""


@group_command.command()
@click.argument("group")
@flag("--from-here", "Go on with what this node has.  Needed.")
@option(
    "--dir",
    click.Path(path_type=Path, file_okay=False, exists=True),
    "Of a node without a frontend: it does so within a second, or when it starts.",
    to="folder",
)
@flag("--yes", "Do not ask.")
@node_option
@json_option
def recover(
    group: str, from_here: bool, folder: Path | None, yes: bool, node: str, as_json: bool
) -> int:
    """Go on with GROUP from one node, when those who are missing will not come back.

    That node begins a new history with everything it has, alone; the others join it as they come.
    What only they have is lost, and who was given more than this node has is told so.  Run it at
    one node only: the one with the highest position (`roundelay status`).  The group must not work,
    and nobody who is heard may have more."""
    check_name(group)
    if not from_here:
        raise ConfigError("from-here", False, "given: it says whose copy of the group counts")
    if folder is not None:
        return _by_folder(group, folder, yes, as_json)
    state = ask(node, "recovery", group)
    if not yes and not _agreed(*_meaning(state)):
        return 1
    return report(ask(node, "recover", group), as_json, print_answer)


def _by_folder(group: str, folder: Path, yes: bool, as_json: bool) -> int:
    if not (folder / "groups").is_dir():
        raise ConfigError("dir", folder, "the folder of a node that was in the group")
    what = (
        f"The node of {folder} goes on with {group} from what it has, if the group does not work."
    )
    if not yes and not _agreed(what):
        return 1
    path = request(group_folder(folder, group))
    return report({"group": group, "request": str(path)}, as_json, print_answer)


def _meaning(state: dict[str, Any]) -> list[str]:
    others = [name for name in state["members"] if name != state["node"]]
    heard = [name for name in state["heard"] if name != state["node"]]
    lines = [
        f"{state['group']} at {state['node']}: {state['state']}",
        f"It goes on at position {state['position']} of history {state['history'] or '(none)'}, "
        "in a new one.",
        f"Others in it: {', '.join(others) or 'nobody'}; heard: {', '.join(heard) or 'nobody'}.",
        "What only the others have is lost.",
    ]
    if state["forgotten"]:
        lines.append("This node may have forgotten messages itself: is there no better one?")
    return lines


def _agreed(*lines: str) -> bool:
    for line in lines:
        click.echo(printable(line))
    return click.confirm("Go on?", default=False)
