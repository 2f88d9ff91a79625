"""This node as a member of a group whose roles stand in a file."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from roundelay.core.engine import SECOND
from roundelay.core.errors import ConfigError
from roundelay.node.groups import GroupSpec
from roundelay.node.roles.role_file import RoleFile

if TYPE_CHECKING:
    from roundelay.node.node import Node

THERE_NS: Final = 3 * SECOND
"""Who has said who it is so short ago is there."""
NAMED_MAX: Final = 8
"""Members that a state names."""


class RoleMember:
    """Who this node is in a group, and who the others are."""

    def __init__(self, node: Node, spec: GroupSpec, file: RoleFile) -> None:
        if node.name not in file.members:
            raise ConfigError(
                "name", node.name, f"a member of {spec.name}: {', '.join(file.members)}"
            )
        self.node = node
        self.group = spec.name
        self.file = file
        self.roster = file.members
        self.me = self.roster.index(node.name)
        self.roles = file.roles
        self.role_names = file.titles[self.me]
        self.in_council = self.me in self.roles.council
        self.is_user = self.me in self.roles.users

    def known_as(self, sites: Iterable[int]) -> str:
        """Members by name, with their roles."""
        shown = [f"{self.roster[site]} ({', '.join(self.file.titles[site])})" for site in sites]
        return shortened(shown)

    def gone(self, sites: Iterable[int]) -> tuple[int, ...]:
        """Those of them whose nodes are not heard of, on any line."""
        return tuple(site for site in sites if not self._there(self.roster[site]))

    def _there(self, name: str) -> bool:
        known = self.node.directory.by_name.get(name)
        recent = known is not None and time.monotonic_ns() - known.seen < THERE_NS
        return recent or self.node.alive(name)


def shortened(names: list[str]) -> str:
    """The first of them."""
    return ", ".join(names[:NAMED_MAX]) + (" …" if len(names) > NAMED_MAX else "")
