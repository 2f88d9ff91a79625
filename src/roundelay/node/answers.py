"""What a node answers to those who ask who is there: as JSON."""

from __future__ import annotations

import time
from collections import defaultdict
from typing import TYPE_CHECKING

from roundelay.node.groups import family_of, plain_spec
from roundelay.node.node_api import View

if TYPE_CHECKING:
    from roundelay.node.node import Node


def members(node: Node, group: str) -> dict[str, object]:
    if family_of(group).own_packets:
        view = node.autorm.view(group)
        # Who is dead is not in this view, so that the rows of all services read the same.
        rows = [{"name": name, "alive": True, "in_view": True} for name in view.members]
        return view_json(view, rows)
    host = node.group_hosts.get(group)
    if host is None:
        return view_json(View(group, "0", (), "not joined here"), [])
    return host.members()


def groups(node: Node) -> list[dict[str, object]]:
    directory, beamon = node.directory, node.autorm.beamon
    members: defaultdict[str, dict[str, None]] = defaultdict(dict)
    for known in directory.by_name.values():
        for group in known.groups.values():
            members[group.name][known.name] = None
    declared = {uuid: other.groups for uuid, other in beamon.environment.nodes.items()}
    for uuid, names in (declared | {node.uuid: beamon.groups}).items():
        for name in names:
            members[name][directory.name_of(uuid)] = None
    specs = {name: plain_spec(name) for name in sorted(members)}
    return [
        {
            "group": name,
            "service": spec.service,
            "protocol": spec.protocol,
            "members": list(members[name]),
        }
        for name, spec in specs.items()
    ]


def why(node: Node, name: str) -> dict[str, object]:
    known = node.directory.by_name.get(name)
    uuid = known.uuid if known else _uuid_of(name)
    if uuid is None:
        reason = "nothing was ever heard of a node of this name"
        return {"node": name, "uuid": None, "verdict": "unknown", "reason": reason}
    verdict: dict[str, object] = node.autorm.beamon.why(uuid, time.monotonic_ns())
    return {"node": name, "uuid": uuid.hex()} | verdict | {"node": node.directory.name_of(uuid)}


def _uuid_of(text: str) -> bytes | None:
    try:
        uuid = bytes.fromhex(text.replace("-", ""))
    except ValueError:
        return None
    return uuid if len(uuid) == 16 else None


def view_json(view: View, members: list[dict[str, object]]) -> dict[str, object]:
    return {"group": view.group, "version": view.version, "state": view.state, "members": members}
