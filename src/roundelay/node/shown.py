"""What a node tells of groups and of other nodes, as JSON."""

from __future__ import annotations

from roundelay.node.groups import plain_spec
from roundelay.node.node_api import View


def uuid_of(text: str) -> bytes | None:
    try:
        uuid = bytes.fromhex(text.replace("-", ""))
    except ValueError:
        return None
    return uuid if len(uuid) == 16 else None


def group_json(name: str) -> dict[str, object]:
    spec = plain_spec(name)
    return {"group": name, "service": spec.service, "protocol": spec.protocol, "members": []}


def view_json(view: View, members: list[dict[str, object]]) -> dict[str, object]:
    return {
        "group": view.group,
        "version": view.version,
        "state": view.state,
        "members": members,
    }
