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
network.  `journal` is that of `node.roles.role_file`; what `parameters` has is in `PARAMETERS`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct, field, structs

from roundelay.core.engine import MS
from roundelay.core.errors import ConfigError
from roundelay.core.grsb.config import Roles
from roundelay.core.wide.config import ALL_ACTIVE, SEQUENCED, WideConfig
from roundelay.core.wide.topology import Atlas, Network, Topology
from roundelay.node.medium.interfaces import parse_address
from roundelay.node.roles import role_file

EDGES: Final = 'pairs of members of this network, as in [["a", "b"], ["b", "c"]]'


class WideTable(Struct, frozen=True, kw_only=True, rename={"level": "global"}):
    """The keys of a file."""

    networks: Annotated[
        tuple[Any, ...], Meta(min_length=2, description="two tables [[networks]] or more")
    ]
    level: role_file.Table = field(default_factory=dict)
    parameters: role_file.Table = field(default_factory=dict)
    journal: role_file.Table = field(default_factory=dict)


class NetworkTable(role_file.RolesTable, frozen=True, kw_only=True):
    """A network."""

    line: role_file.Text | None = None
    broadcaster: role_file.Text | None = None
    edges: Annotated[tuple[tuple[str, str], ...], Meta(description=EDGES)] = ()


class GlobalTable(Struct, frozen=True, kw_only=True):
    """The roles of the global level."""

    gcr: role_file.Names | None = None
    gda: role_file.Names | None = None
    gpr: role_file.Names | None = None


PARAMETERS: Final = role_file.parameter_types(
    WideConfig, "own_limit", "max_payload", "bundle", "ceiling", "delivery", "cold_start",
    "gpr_free", ack_mode=f"{SEQUENCED} or {ALL_ACTIVE}",
)  # fmt: skip

LIVE: Final = role_file.LIVE | {
    "cold_start": False,
    "ceiling": 0,
    "ls_repair": True,
    "link_ns": 20 * MS,
}
TITLES: Final = dict(zip(role_file.ROLES, ("LCR", "LDA", "LPR", "user"), strict=True))


@dataclass(frozen=True, kw_only=True)
class WideFile(role_file.RoleFile):
    """A file of networks."""

    constants: WideConfig
    atlas: Atlas
    lines: dict[int, str]
    """Multicast groups of networks that name one."""


def _places(topology: Topology) -> Iterator[role_file.Place]:
    """By the paper's names."""
    for name in ("gcr", "gda", "gpr"):
        yield name.upper(), getattr(topology, name), name != "gpr"
    for network in topology.networks:
        for role, title in TITLES.items():
            yield title, getattr(network, role), role in role_file.ROLES[:2]
        if network.broadcaster >= 0:
            yield "LB", (network.broadcaster,), False
        yield "node behind LB", network.nodes, False


def _every_role(topology: Topology) -> Roles:
    """The roles of all levels."""

    def every(role: str, first: tuple[int, ...]) -> tuple[int, ...]:
        sites = list(first)
        for network in topology.networks:
            sites += getattr(network, role)
        return tuple(dict.fromkeys(sites))

    return Roles(
        sites=topology.sites,
        retransmitters=every("retransmitters", topology.gcr),
        acknowledgers=every("acknowledgers", topology.gda),
        recorders=every("recorders", topology.gpr),
        users=every("users", ()) + every("nodes", ()),
    )


def parse(toml: dict[str, Any], path: Path = Path()) -> WideFile:
    """What a file says, as TOML has read it."""
    table = role_file.convert(toml, WideTable)
    for key in ("delivery", "cold_start"):
        if key in table.parameters:
            allowed = "left out in a hierarchy"
            raise ConfigError(f"parameters.{key}", table.parameters[key], allowed)
    tables = [
        role_file.convert(network, NetworkTable, f"networks {number}")
        for number, network in enumerate(table.networks, 1)
    ]
    members = role_file.check_members(tuple(name for network in tables for name in network.members))
    sites = {name: site for site, name in enumerate(members)}
    networks, lines = [], {}
    for number, network in enumerate(tables, 1):
        with role_file.within(f"networks {number}: "):
            networks.append(_network(number, network, sites))
            if network.line is not None:
                parse_address(network.line, "line")
                lines[number] = network.line
    with role_file.by_name(members):
        topology = _topology(table.level, tuple(networks), sites).check()
    atlas = Atlas(topology)
    parameters = role_file.engine_settings(table.parameters, PARAMETERS)
    return WideFile(
        path=path,
        members=members,
        roles=_every_role(topology),
        titles=role_file.titled(topology.sites, _places(topology)),
        digest=role_file.digest_of(members, msgspec.to_builtins(topology)),
        constants=WideConfig.fast(**(LIVE | parameters)).check(topology.sites),
        parameters=parameters,
        journal=role_file.journal_of(table.journal),
        atlas=atlas,
        lines=lines,
    )


def _network(number: int, table: NetworkTable, sites: dict[str, int]) -> Network:
    """Roles by name, or those of the profile `demo`."""
    edges, lb = table.edges, table.broadcaster
    for edge in edges:
        if len(set(edge)) < 2 or not set(edge) <= set(table.members):
            raise ConfigError("edges", edge, EDGES)
    inside = {name for edge in edges for name in edge}
    if not edges and lb is not None:
        raise ConfigError("broadcaster", repr(lb), "only with edges")
    if edges and lb is None:
        recorders = table.recorders if isinstance(table.recorders, tuple) else ()
        lb = (recorders or table.members)[0]
    if edges and lb not in inside:
        raise ConfigError("broadcaster", repr(lb), "a member that an edge leads to")
    mine = {name: sites[name] for name in table.members if name == lb or name not in inside}
    if all(getattr(table, role) is None for role in role_file.ROLES):
        if len(mine) < 2:
            raise ConfigError("members", len(mine), "two or more: LCR and LDA need a machine each")
        first, second, *rest = mine
        demo = {"retransmitters": (first,), "acknowledgers": (second,), "recorders": (first,)}
        table = structs.replace(table, users=(second, *rest), **demo)
    roles = table.roles(mine)
    return Network(
        net=number,
        broadcaster=-1 if lb is None else sites[lb],
        edges=tuple((sites[a], sites[b]) for a, b in edges),
        **{role: getattr(roles, role) for role in role_file.ROLES},
    )


def _topology(table: object, networks: tuple[Network, ...], sites: dict[str, int]) -> Topology:
    first, second = networks[0].attached, networks[1].attached
    places: dict[str, tuple[int, ...]] = {"gcr": first[:1], "gda": second[:1]}
    places["gpr"] = (first[1], second[1])
    for role, names in structs.asdict(role_file.convert(table, GlobalTable, "global")).items():
        if names is not None:
            places[role] = role_file.sites_of(f"global.{role}", names, sites)
    return Topology(sites=len(sites), networks=networks, **places)
