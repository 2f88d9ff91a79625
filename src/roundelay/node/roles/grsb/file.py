"""Who plays which role in a `journal` group: one TOML file, the same for all members.

The profiles of PROTOCOLS §6.9 need three lines::

    profile = "failsafe"
    members = ["r1", "r2", "d1", "d2", "p1", "p2", "ann", "bob"]
    recorders = 2

The roles go to the members in their order: retransmitters, acknowledgers, recorders, and the rest
are users.  Any other spread names them, and whoever is not named is a user::

    members = ["a", "b", "c"]
    retransmitters = ["a", "c"]      # the first one begins, the others stand by
    acknowledgers = ["b"]
    recorders = ["a", "c"]
    users = ["a", "b", "c"]

What else a file may have is in `GrsbTable`, `PARAMETERS` and `node.roles.role_file.JournalTable`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final

from msgspec import Meta, Struct, field, structs

from roundelay.core.engine import MS, SECOND
from roundelay.core.errors import ConfigError
from roundelay.core.grsb.config import FAST, PROFILES, STABLE, GrsbConfig, Roles
from roundelay.core.selection import NUMBER_MAX, Selection, chosen
from roundelay.node.medium.interfaces import parse_address
from roundelay.node.roles.role_file import (
    ROLES,
    Names,
    Number,
    RoleFile,
    RolesTable,
    Table,
    Text,
    check_members,
    convert,
    digest_of,
    engine_settings,
    journal_of,
    named,
    only,
    parameters_table,
    read_role_file,
    sites_of,
    titled,
)

Numbers = Annotated[
    frozenset[Number], Meta(description=f"whole numbers from 0 to {NUMBER_MAX}, as in [7, 8]")
]


class GrsbTable(RolesTable, frozen=True, kw_only=True):
    """The keys of a file."""

    profile: Annotated[
        str, Meta(pattern=f"^({'|'.join(PROFILES)})$", description=" or ".join(PROFILES))
    ] = ""
    lines: Annotated[int, Meta(description="1 or 2")] | None = None
    line_b: Annotated[
        str | dict[str, Any], Meta(description="HOST:PORT, or a table of members and theirs")
    ] = ""
    interface_b: Text = ""
    filters: Table = field(default_factory=dict)
    parameters: Table = field(default_factory=dict)
    journal: Table = field(default_factory=dict)


class FilterTable(Struct, frozen=True, kw_only=True):
    """What a recorder keeps whole."""

    conferences: Numbers = frozenset()
    senders: Names = ()
    kinds: Numbers = frozenset()


PARAMETERS: Final = parameters_table(
    GrsbConfig, "own_limit", "max_payload", "bundle", "ceiling", delivery=f"{STABLE} or {FAST}"
)

LIVE: Final[dict[str, Any]] = {
    "bcast_ns": 20 * MS, "attempts": 40, "bundle": False, "poll_ns": 100 * MS,
    "alive_timeout_ns": 2 * SECOND, "takeover_ns": 3 * SECOND, "cold_start": True,
    "ceiling": 65_536,
}  # fmt: skip
"""Beside `GrsbConfig.fast`.  Bundles are made by the outbox, so the engine has nothing to add; a
process of a busy machine may be late by tenths of a second, which is no reason to replace it; and
when all nodes were stopped, or lost power, the group goes on with what its recorders have."""


def read_file(path: Path) -> RoleFile:
    """The roles in `path`; ConfigError says what is wrong with it, and where."""
    return read_role_file(path, parse)


def parse(toml: dict[str, Any], path: Path = Path()) -> RoleFile:
    """What a file says, as TOML has read it."""
    table = convert(toml, GrsbTable)
    members = check_members(table.members)
    sites = {name: site for site, name in enumerate(members)}
    roles = _profile(table) if table.profile else table.roles(sites)
    roles = structs.replace(
        roles,
        lines=roles.lines if table.lines is None else table.lines,
        filters=_filters(table.filters, sites),
    )
    try:
        roles.check()
    except ConfigError as error:
        raise named(error, members) from None
    if roles.lines == 1:
        for key in ("line_b", "interface_b"):
            if key in toml:
                raise ConfigError(key, toml[key], "only with lines = 2")
    places = [getattr(roles, name) for name in ROLES]
    filters = [
        (site, *map(sorted, (keeps.conferences or (), keeps.senders or (), keeps.kinds or ())))
        for site, keeps in sorted(roles.filters.items())
    ]
    parameters = engine_settings(table.parameters, PARAMETERS)
    return RoleFile(
        path=path,
        members=members,
        roles=roles,
        titles=tuple(_titles(roles, site) for site in range(len(members))),
        digest=digest_of(members, *places, roles.lines, filters),
        constants=GrsbConfig.fast(**(LIVE | parameters)).check(roles.sites),
        parameters=parameters,
        journal=journal_of(table.journal),
        line_b=_line(table.line_b, members),
        interface_b=table.interface_b,
    )


def _titles(roles: Roles, site: int) -> list[str]:
    """In the singular."""
    titles = []
    for name in ROLES:
        titles += titled(name[:-1], site, getattr(roles, name), name in ROLES[:2])
    return titles


def _profile(table: GrsbTable) -> Roles:
    """The first members get the roles."""
    count, recorders = len(table.members), table.recorders
    for key in ("retransmitters", "acknowledgers", "users"):
        if getattr(table, key) is not None:
            raise ConfigError(key, getattr(table, key), "left to the profile, or no profile")
    if recorders is None:
        recorders = 0
    elif not isinstance(recorders, int) or not 1 <= recorders < count:
        allowed = f"with a profile: how many, from 1 to {count - 1}"
        raise ConfigError("recorders", recorders, allowed)
    try:
        return Roles.profile(table.profile, count, recorders)
    except ConfigError as error:
        raise ConfigError("members", count, error.allowed) from None


def _filters(tables: object, sites: dict[str, int]) -> dict[int, Selection]:
    filters = {}
    for name, table in only("filters", tables, sites).items():
        keeps = convert(table, FilterTable, f"filters.{name}")
        senders = sites_of(f"filters.{name}.senders", keeps.senders, sites)
        filters[sites[name]] = Selection(
            chosen(keeps.conferences), chosen(senders), chosen(keeps.kinds)
        )
    return filters


def _line(where: str | dict[str, Any], members: tuple[str, ...]) -> str | dict[str, str]:
    """GR-22: where line B is."""
    if isinstance(where, dict):
        for name, address in only("line_b", where, members).items():
            parse_address(str(address), f"line_b.{name}")
    elif where:
        parse_address(where, "line_b")
    return where
