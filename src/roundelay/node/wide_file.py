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

from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import msgspec

from roundelay.core.engine import MS
from roundelay.core.errors import ConfigError
from roundelay.core.grsb.config import Roles
from roundelay.core.wide.config import ALL_ACTIVE, SEQUENCED, WideConfig
from roundelay.core.wide.topology import Atlas, Network, Topology
from roundelay.journal.journal import JournalConfig
from roundelay.node import grsb_file
from roundelay.node.grsb_file import LIVE
from roundelay.node.interfaces import parse_address

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


class WideFile:
    """A file that makes sense; to a place it looks like that of a `journal` group."""

    def __init__(
        self, path: Path, members: tuple[str, ...], topology: Topology, lines: dict[int, str],
        parameters: dict[str, Any], journal: JournalConfig,
    ) -> None:  # fmt: skip
        self.path = path
        self.members = members
        self.topology = topology
        self.lines = lines
        self.parameters = parameters
        self.journal = journal
        self.line_b = self.interface_b = ""

    @cached_property
    def atlas(self) -> Atlas:
        return Atlas(self.topology)

    @cached_property
    def roles(self) -> Roles:
        """All roles of all levels: who must have a disk, who begins, who has an application."""
        topology = self.topology

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

    @property
    def digest(self) -> str:
        """The same for files that put the same members into the same places."""
        places = [self.members, msgspec.to_builtins(self.topology)]
        return sha256(msgspec.json.encode(places)).hexdigest()[:12]

    @property
    def council(self) -> tuple[str, ...]:
        return self.names(self.roles.council)

    def names(self, sites: tuple[int, ...]) -> tuple[str, ...]:
        return tuple(self.members[site] for site in sites)

    def roles_of(self, site: int) -> list[str]:
        """By the paper's names; all but the first of their kind stand by."""
        found = []
        for name in GLOBAL:
            sites: tuple[int, ...] = getattr(self.topology, name)
            if site in sites:
                spare = name != "gpr" and site != sites[0]
                found.append(("standby " if spare else "") + name.upper())
        network = self.atlas.network_of(site)
        for role, title in TITLES.items() if network is not None else ():
            sites = getattr(network, role)
            if site in sites:
                spare = role in grsb_file.ROLES[:2] and site != sites[0]
                found.append(("standby " if spare else "") + title)
        if network is not None and site == network.broadcaster:
            found.append("LB")
        if network is not None and site in network.nodes:
            found.append("node behind LB")
        return found

    def config(self, **settings: Any) -> WideConfig:
        """The engine's constants; `settings` are those that depend on the medium."""
        live = LIVE | {"cold_start": False, "ls_repair": True, "link_ns": 20 * MS}
        config = WideConfig.fast(**(live | settings | self.parameters))
        return config.check(self.topology.sites)


def read_file(path: Path) -> WideFile:
    """The networks in `path`; ConfigError says what is wrong with it, and where."""
    table = grsb_file.read_table(path)
    try:
        return parse(table, path)
    except ConfigError as error:
        field = f"config {path}: {error.field}"
        raise ConfigError(field, error.value, error.allowed) from None


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
    topology = _topology(table.get("global", {}), tuple(networks), sites)
    found = WideFile(
        path, members, topology.check(), lines, _parameters(table.get("parameters", {})),
        grsb_file.journal_of(table.get("journal", {})),
    )  # fmt: skip
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
    named = [role for role in grsb_file.ROLES if role in table]
    if named:
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
        named = isinstance(pair, list) and len(pair) == 2 and len({*map(str, pair)}) == 2
        if not (named and all(name in members for name in pair)):
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
            if type(value) not in (int, float) or not 0 < value <= 3_600_000:
                raise ConfigError(field, repr(value), "milliseconds, up to an hour")
            found[f"{key[:-3]}_ns"] = int(value * MS)
        elif key in NUMBERS:
            if type(value) is not int:
                raise ConfigError(field, repr(value), "a whole number")
            found[key] = value
        elif key == "ls_repair":
            if type(value) is not bool:
                raise ConfigError(field, repr(value), "true or false")
            found[key] = value
    if "ack_mode" in table:
        if table["ack_mode"] not in (SEQUENCED, ALL_ACTIVE):
            allowed = f"{SEQUENCED} or {ALL_ACTIVE}"
            raise ConfigError("parameters.ack_mode", repr(table["ack_mode"]), allowed)
        found["ack_mode"] = table["ack_mode"]
    return found
