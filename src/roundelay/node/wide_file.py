"""Who plays which role in a `wide` group: one TOML file, the same for all members.

Three networks of three nodes each, with the roles of the profile `demo` in each of them::

    [[networks]]
    members = ["a1", "a2", "a3"]

    [[networks]]
    members = ["b1", "b2", "b3"]

    [[networks]]
    members = ["c1", "c2", "c3"]

The first member of a network is its LCR and LPR, the second its LDA and a user, the others are
users.  A network may name them, as the file of a `journal` group does (`retransmitters`,
`acknowledgers`, `recorders`, `users`), and `line`, the multicast group of its broadcasts.

Members that are not attached to their network hang behind its broadcaster, in any connected graph::

    [[networks]]
    members = ["d1", "d2", "d3", "d4", "d5"]
    broadcaster = "d2"                                 # if not the first recorder
    edges = [["d2", "d3"], ["d3", "d4"], ["d3", "d5"]]

GCR, GDA and GPR are the first of the first network, the first of the second, and the second of
both, unless the table `global` has `gcr`, `gda` and `gpr`.  Members are numbered network by
network.  `parameters` and `journal` are those of `node.grsb_file`, and `PARAMETERS` here.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import msgspec

from roundelay.core.engine import MS
from roundelay.core.errors import ConfigError
from roundelay.core.grsb.config import Roles
from roundelay.core.wide.config import ALL_ACTIVE, SEQUENCED, WideConfig
from roundelay.core.wide.topology import Atlas, Network, Topology
from roundelay.node import grsb_file
from roundelay.node.grsb_file import LIVE
from roundelay.node.interfaces import parse_address
from roundelay.node.role_file import (
    RoleFile,
    milliseconds,
    named,
    one_of,
    read_role_file,
    titled,
    true_or_false,
    whole_number,
)

KEYS: Final = ("networks", "global", "parameters", "journal")
NETWORK: Final = ("members", *grsb_file.ROLES, "line", "broadcaster", "edges")
GLOBAL: Final = ("gcr", "gda", "gpr")
TIMES: Final = ("trunk_ms", "link_ms")
NUMBERS: Final = ("ready_max", "ls_held", "ls_keep")
PARAMETERS: Final = (*TIMES, *NUMBERS, "ack_mode", "ls_repair")
"""Beside those of a `journal` group."""

TITLES: Final = {
    "retransmitters": "LCR", "acknowledgers": "LDA", "recorders": "LPR", "users": "user",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class WideFile(RoleFile):
    """A file that makes sense; to a place it looks like that of a `journal` group."""

    topology: Topology
    lines: dict[int, str]
    """Multicast groups of networks that name one."""

    @cached_property
    def atlas(self) -> Atlas:
        return Atlas(self.topology)

    @property
    def places(self) -> list[Any]:
        return [msgspec.to_builtins(self.topology)]

    def roles_of(self, site: int) -> list[str]:
        """By the paper's names."""
        found = []
        for name in GLOBAL:
            found += titled(name.upper(), site, getattr(self.topology, name), name != "gpr")
        network = self.atlas.network_of(site)
        if network is None:
            return found
        for role, title in TITLES.items():
            found += titled(title, site, getattr(network, role), role in grsb_file.ROLES[:2])
        if site == network.broadcaster:
            found.append("LB")
        if site in network.nodes:
            found.append("node behind LB")
        return found

    def config(self, **settings: Any) -> WideConfig:
        live = LIVE | {"cold_start": False, "ceiling": 0, "ls_repair": True, "link_ns": 20 * MS}
        config = WideConfig.fast(**(live | settings | self.parameters))
        return config.check(self.topology.sites)


def _every_role(topology: Topology) -> Roles:
    """The roles of all levels."""

    def every(role: str, first: tuple[int, ...]) -> tuple[int, ...]:
        found = list(first)
        for network in topology.networks:
            found += getattr(network, role)
        return tuple(dict.fromkeys(found))

    return Roles(
        sites=topology.sites, retransmitters=every("retransmitters", topology.gcr),
        acknowledgers=every("acknowledgers", topology.gda),
        recorders=every("recorders", topology.gpr),
        users=every("users", ()) + every("nodes", ()),
    )  # fmt: skip


def read_file(path: Path) -> WideFile:
    """The networks in `path`; ConfigError says what is wrong with it, and where."""
    return read_role_file(path, parse)


def parse(table: dict[str, Any], path: Path = Path()) -> WideFile:
    """What a file says, as TOML has read it."""
    grsb_file.only("", table, KEYS)
    tables = table.get("networks")
    if not isinstance(tables, list) or len(tables) < 2:
        raise ConfigError("networks", repr(tables)[:40], "two tables [[networks]] or more")
    names: list[Any] = []
    for number, one in enumerate(tables, 1):
        grsb_file.only(f"networks {number}", one, NETWORK)
        mine = one.get("members")
        names += mine if isinstance(mine, list) else [mine]
    members = grsb_file.members_of(names)
    sites = {name: site for site, name in enumerate(members)}
    networks, lines = [], {}
    for number, one in enumerate(tables, 1):
        try:
            networks.append(_network(number, one, sites))
        except ConfigError as error:
            field = f"networks {number}: {error.field}"
            raise ConfigError(field, error.value, error.allowed) from None
        if "line" in one:
            parse_address(str(one["line"]), f"networks {number}: line")
            lines[number] = str(one["line"])
    try:
        topology = _topology(table.get("global", {}), tuple(networks), sites).check()
    except ConfigError as error:
        raise named(error, members) from None
    found = WideFile(
        path=path,
        members=members,
        roles=_every_role(topology),
        parameters=_parameters(table.get("parameters", {})),
        journal=grsb_file.journal_of(table.get("journal", {})),
        topology=topology,
        lines=lines,
    )
    found.config()
    return found


def _network(number: int, table: dict[str, Any], sites: dict[str, int]) -> Network:
    """Roles by name, or those of the profile `demo`."""
    edges = _edges(table.get("edges", []), table["members"])
    inside = {name for edge in edges for name in edge}
    lb: Any = table.get("broadcaster")
    if not edges and lb is not None:
        raise ConfigError("broadcaster", repr(lb), "only with edges")
    if edges and lb is None:
        lb = (table.get("recorders") or table["members"])[0]
    if edges and lb not in inside:
        raise ConfigError("broadcaster", repr(lb), "a member that an edge leads to")
    mine = {name: sites[name] for name in table["members"] if name == lb or name not in inside}
    if any(role in table for role in grsb_file.ROLES):
        roles = grsb_file.spread(table, mine)
    elif len(mine) < 2:
        raise ConfigError("members", len(mine), "two or more: LCR and LDA need a machine each")
    else:
        first, second, *rest = mine.values()
        roles = Roles(
            sites=len(sites), retransmitters=(first,), acknowledgers=(second,),
            recorders=(first,), users=(second, *rest),
        )  # fmt: skip
    return Network(
        net=number, retransmitters=roles.retransmitters, acknowledgers=roles.acknowledgers,
        recorders=roles.recorders, users=roles.users, broadcaster=sites[lb] if edges else -1,
        edges=tuple((sites[a], sites[b]) for a, b in edges),
    )  # fmt: skip


def _edges(value: Any, members: list[str]) -> list[tuple[str, str]]:
    """Links of a subnet."""
    found = []
    for pair in value if isinstance(value, list) else [value]:
        two = isinstance(pair, list) and len(pair) == 2 and len({*map(str, pair)}) == 2
        if not (two and all(name in members for name in pair)):
            allowed = 'pairs of members of this network, as in [["a", "b"], ["b", "c"]]'
            raise ConfigError("edges", repr(pair)[:60], allowed)
        found.append((pair[0], pair[1]))
    return found


def _topology(table: Any, networks: tuple[Network, ...], sites: dict[str, int]) -> Topology:
    grsb_file.only("global", table, GLOBAL)
    first, second = networks[0].attached, networks[1].attached
    places: dict[str, tuple[int, ...]] = {
        "gcr": (first[0],), "gda": (second[0],), "gpr": (first[1], second[1])
    }  # fmt: skip
    for role in GLOBAL:
        if role in table:
            places[role] = grsb_file.sites_of(f"global.{role}", table[role], sites)
    return Topology(sites=len(sites), networks=networks, **places)


def _parameters(table: Any) -> dict[str, Any]:
    """As `WideConfig` has them."""
    known = (*grsb_file.PARAMETERS, *PARAMETERS)
    grsb_file.only("parameters", table, known)
    flat = {key: value for key, value in table.items() if key not in PARAMETERS}
    for key in ("delivery", "cold_start"):
        if key in flat:
            raise ConfigError(f"parameters.{key}", flat[key], "left out in a hierarchy")
    found = grsb_file.parameters_of(flat)
    for key, value in table.items():
        field = f"parameters.{key}"
        if key in TIMES:
            found[f"{key[:-3]}_ns"] = milliseconds(field, value, zero=False)
        elif key in NUMBERS:
            found[key] = whole_number(field, value)
        elif key == "ls_repair":
            found[key] = true_or_false(field, value)
        elif key == "ack_mode":
            found[key] = one_of(field, value, (SEQUENCED, ALL_ACTIVE))
    return found
