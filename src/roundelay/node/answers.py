"""What a node answers to those who ask who is there: as JSON."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from roundelay.node.groups import family_of
from roundelay.node.node_api import View
from roundelay.node.shown import group_json, uuid_of, view_json

if TYPE_CHECKING:
    from roundelay.node.node import Node


def members(host: Node, group: str) -> dict[str, object]:
    if family_of(group).own_packets:
        view = host.autorm.view(group)
        # Who is dead is not in this view, so that the rows of all services read the same.
        rows = [{"name": name, "alive": True, "in_view": True} for name in view.members]
        return view_json(view, rows)
    group_host = host.group_hosts.get(group)
    if group_host is None:
        return view_json(View(group, "0", (), "not joined here"), [])
    return group_host.members()


def groups(host: Node) -> list[dict[str, object]]:
    found: dict[str, dict[str, object]] = {}
    for known in host.directory.by_name.values():
        for group in known.groups.values():
            one = found.setdefault(group.name, group_json(group.name))
            one["members"] = [*one["members"], known.name]  # type: ignore[misc]
    table = host.autorm.beamon
    declared = {uuid: node.groups for uuid, node in table.environment.nodes.items()}
    declared[host.uuid] = table.groups
    for uuid, names in declared.items():
        for name in names:
            one = found.setdefault(name, group_json(name))
            known_as = host.directory.name_of(uuid)
            if known_as not in one["members"]:  # type: ignore[operator]
                one["members"] = [*one["members"], known_as]  # type: ignore[misc]
    return [found[name] for name in sorted(found)]


def why(host: Node, node: str) -> dict[str, object]:
    known = host.directory.by_name.get(node)
    uuid = known.uuid if known else uuid_of(node)
    found: dict[str, object] = {"node": node, "uuid": uuid.hex() if uuid else None}
    if uuid is None:
        reason = "nothing was ever heard of a node of this name"
        return found | {"verdict": "unknown", "reason": reason}
    found |= host.autorm.beamon.why(uuid, time.monotonic_ns())
    found["node"] = host.directory.name_of(uuid)
    return found
