"""`roundelay group`: what an operator does to a group."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from roundelay.cli.answers import show
from roundelay.cli.options import flag, json_option, option
from roundelay.cli.output import console, literally
from roundelay.cli.talk import ask, node_option
from roundelay.core.errors import ConfigError
from roundelay.node.groups import check_name
from roundelay.node.membership.recovery import request
from roundelay.node.storage.folders import group_folder


@click.group()
def command() -> None:
    """Help a group that does not come back."""


@command.command()
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
    state = ask(node, lambda one: one.recover(group, do=False))
    if not yes and not _agreed(_meaning(state)):
        return 1
    show(ask(node, lambda one: one.recover(group)), as_json)
    return 0


def _by_folder(group: str, folder: Path, yes: bool, as_json: bool) -> int:
    if not (folder / "groups").is_dir():
        raise ConfigError("dir", folder, "the folder of a node that was in the group")
    what = (
        f"The node of {folder} goes on with {group} from what it has, if the group does not work."
    )
    if not yes and not _agreed(what):
        return 1
    path = request(group_folder(folder, group))
    show({"group": group, "request": str(path)}, as_json)
    return 0


def _meaning(state: dict[str, Any]) -> str:
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
    return "\n".join(lines)


def _agreed(what: str) -> bool:
    for line in what.split("\n"):
        console().print(literally(line), soft_wrap=True)
    return click.confirm("Go on?", default=False)
