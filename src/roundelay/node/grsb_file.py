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

What else a file may have is in `KEYS`, `PARAMETERS` and `JOURNAL`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from roundelay.core.engine import MS, SECOND
from roundelay.core.errors import ConfigError
from roundelay.core.grsb.config import (
    DEMO,
    FAST,
    PROFILES,
    SITES_MAX,
    STABLE,
    GrsbConfig,
    Roles,
    Selection,
)
from roundelay.core.limits import whole
from roundelay.journal.journal import ALWAYS, INTERVAL, JournalConfig
from roundelay.node.groups import check_name
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

NAME_BYTES_MAX: Final = 64
"""Of a member: what a node's name may have."""

ROLES: Final = ("retransmitters", "acknowledgers", "recorders", "users")
KEYS: Final = (
    "profile", "members", *ROLES, "lines", "line_b", "interface_b", "filters", "parameters",
    "journal",
)  # fmt: skip
TIMES: Final = (
    "submit", "bcast", "alive", "alive_timeout", "takeover", "rec", "rec_max", "repair_gap",
    "max_delay", "base_delay", "slow_hold", "gap_window", "serve", "poll", "probe",
)  # fmt: skip
"""Parameters that are times: `takeover_ms` in the file is `takeover_ns` of the engine."""
NUMBERS: Final = (
    "window", "attempts", "da_buffer", "overwrite_group", "history", "rec_burst", "gap_limit",
    "backlog_limit", "credit", "heard_max", "unit_bytes",
)  # fmt: skip
PARAMETERS: Final = (*(f"{name}_ms" for name in TIMES), *NUMBERS, "delivery", "cold_start")
JOURNAL: Final = (
    "sync", "interval_s", "segment_bytes", "keep_bytes", "keep_s", "keep_conference_s", "parquet",
)  # fmt: skip
FILTER: Final = ("conferences", "senders", "kinds")
NUMBER_MAX: Final = (1 << 32) - 1

LIVE: Final[dict[str, Any]] = {
    "bcast_ns": 20 * MS, "attempts": 40, "bundle": False, "poll_ns": 100 * MS,
    "alive_timeout_ns": 2 * SECOND, "takeover_ns": 3 * SECOND, "cold_start": True,
    "ceiling": 65_536,
}  # fmt: skip
"""Beside `GrsbConfig.fast`.  Bundles are made by the outbox, so the engine has nothing to add; a
process of a busy machine may be late by tenths of a second, which is no reason to replace it; and
when all nodes were stopped, or lost power, the group goes on with what its recorders have."""


@dataclass(frozen=True, kw_only=True)
class GrsbFile(RoleFile):
    """A file that makes sense."""

    @property
    def places(self) -> list[Any]:
        roles = self.roles
        kept = [
            (site, sorted(one.conferences), sorted(one.senders), sorted(one.kinds))
            for site, one in sorted(roles.filters.items())
        ]
        return [*(getattr(roles, name) for name in ROLES), roles.lines, kept]

    def roles_of(self, site: int) -> list[str]:
        """In the singular."""
        found = []
        for name in ROLES:
            found += titled(name[:-1], site, getattr(self.roles, name), name in ROLES[:2])
        return found

    def config(self, **settings: Any) -> GrsbConfig:
        config = GrsbConfig.fast(**(LIVE | settings | self.parameters))
        return config.check(self.roles.sites)


def read_file(path: Path) -> GrsbFile:
    """The roles in `path`; ConfigError says what is wrong with it, and where."""
    return read_role_file(path, parse)


def parse(table: dict[str, Any], path: Path = Path()) -> GrsbFile:
    """What a file says, as TOML has read it."""
    only("", table, KEYS)
    members = members_of(table.get("members"))
    sites = {name: site for site, name in enumerate(members)}
    roles = _profile(table, members) if "profile" in table else spread(table, sites)
    roles = msgspec.structs.replace(
        roles,
        lines=table.get("lines", roles.lines),
        filters=_filters(table.get("filters", {}), sites),
    )
    if type(roles.lines) is not int:
        raise ConfigError("lines", repr(roles.lines), "1 or 2")
    try:
        roles.check()
    except ConfigError as error:
        raise named(error, members) from None
    if roles.lines == 1:
        for key in ("line_b", "interface_b"):
            if key in table:
                raise ConfigError(key, table[key], "only with lines = 2")
    found = GrsbFile(
        path=path,
        members=members,
        roles=roles,
        parameters=parameters_of(table.get("parameters", {})),
        journal=journal_of(table.get("journal", {})),
        line_b=_line(table.get("line_b", ""), members),
        interface_b=_text("interface_b", table.get("interface_b", "")),
    )
    found.config()
    return found


def only(where: str, table: Any, known: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(table, dict):
        raise ConfigError(where, repr(table), f"a table [{where}]")
    for key in table:
        if key not in known:
            field = f"{where}.{key}" if where else key
            raise ConfigError(field, repr(table[key])[:60], f"one of {', '.join(known)}")
    return table


def members_of(value: Any) -> tuple[str, ...]:
    names = _list("members", value, str)
    if not 2 <= len(names) <= SITES_MAX:
        raise ConfigError("members", len(names), f"2 to {SITES_MAX} names, in one order for all")
    for name in names:
        check_name(name, "members")
        if len(name.encode()) > NAME_BYTES_MAX:
            raise ConfigError("members", name, f"names of at most {NAME_BYTES_MAX} bytes")
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ConfigError("members", twice, "each name once")
    return tuple(names)


def _profile(table: dict[str, Any], members: tuple[str, ...]) -> Roles:
    """The first members get the roles."""
    name, many = table["profile"], table.get("recorders")
    if name not in PROFILES:
        raise ConfigError("profile", repr(name), " or ".join(PROFILES))
    for key in ("retransmitters", "acknowledgers", "users"):
        if key in table:
            raise ConfigError(key, table[key], "left to the profile, or no profile")
    if many is not None and (type(many) is not int or not 1 <= many < len(members)):
        allowed = f"with a profile: how many, from 1 to {len(members) - 1}"
        raise ConfigError("recorders", many, allowed)
    try:
        return Roles.profile(name, len(members), many or 0)
    except ConfigError as error:
        raise ConfigError("members", len(members), error.allowed) from None


def spread(table: dict[str, Any], sites: dict[str, int]) -> Roles:
    """Every role is named."""
    chosen: dict[str, tuple[int, ...]] = {}
    for role in ROLES[:3]:
        if role not in table:
            raise ConfigError(role, "missing", "names of members; or profile = " + repr(DEMO))
        chosen[role] = sites_of(role, table[role], sites)
    taken = {site for places in chosen.values() for site in places}
    rest = tuple(site for site in sites.values() if site not in taken)
    users = sites_of("users", table["users"], sites) if "users" in table else rest
    if not users:
        raise ConfigError("users", "none", "one member or more: every one has another role")
    idle = [name for name, site in sites.items() if site not in taken and site not in users]
    if idle:
        raise ConfigError("users", ", ".join(idle), "a role for every member")
    return Roles(
        sites=len(sites), retransmitters=chosen["retransmitters"],
        acknowledgers=chosen["acknowledgers"], recorders=chosen["recorders"], users=users,
    )  # fmt: skip


def sites_of(field: str, value: Any, sites: dict[str, int]) -> tuple[int, ...]:
    names = _list(field, value, str)
    for name in names:
        if name not in sites:
            raise ConfigError(field, name, f"members: {', '.join(sites)}")
    return tuple(sites[name] for name in names)


def _list(field: str, value: Any, kind: type) -> list[Any]:
    words = {str: 'names, as in ["a", "b"]', int: "whole numbers, as in [7, 8]"}
    if not isinstance(value, list) or not all(type(one) is kind for one in value):
        raise ConfigError(field, "missing" if value is None else repr(value)[:60], words[kind])
    return value


def _filters(table: Any, sites: dict[str, int]) -> dict[int, Selection]:
    found = {}
    for name, wanted in only("filters", table, tuple(sites)).items():
        where = f"filters.{name}"
        only(where, wanted, FILTER)
        numbers = []
        for key in ("conferences", "kinds"):
            values = _list(f"{where}.{key}", wanted.get(key, []), int)
            for value in values:
                whole(f"{where}.{key}", value, 0, NUMBER_MAX)
            numbers.append(frozenset(values))
        senders = frozenset(sites_of(f"{where}.senders", wanted.get("senders", []), sites))
        found[sites[name]] = Selection(numbers[0], senders, numbers[1])
    return found


def parameters_of(table: Any) -> dict[str, Any]:
    """As `GrsbConfig` has them."""
    found: dict[str, Any] = {}
    for key, value in only("parameters", table, PARAMETERS).items():
        field = f"parameters.{key}"
        if key == "delivery":
            found[key] = one_of(field, value, (STABLE, FAST))
        elif key == "cold_start":
            found[key] = true_or_false(field, value)
        elif key.endswith("_ms"):
            found[f"{key[:-3]}_ns"] = milliseconds(field, value)
        else:
            found[key] = whole_number(field, value)
    return found


def journal_of(table: Any) -> JournalConfig:
    """What a recorder has it must have on disk: that is why `os` will not do."""
    only("journal", table, JOURNAL)
    sync = table.get("sync", INTERVAL)
    if sync not in (ALWAYS, INTERVAL):
        allowed = f"{ALWAYS} or {INTERVAL}: the group lets go of what its recorders have"
        raise ConfigError("journal.sync", repr(sync), allowed)
    conferences = _conferences("journal.keep_conference_s", table.get("keep_conference_s", {}))
    try:
        config = msgspec.convert(
            table | {"sync": sync, "keep_conference_s": conferences}, JournalConfig
        )
        config.check()
    except msgspec.ValidationError as error:
        raise ConfigError("journal", table, str(error)) from None
    except ConfigError as error:
        raise ConfigError(f"journal.{error.field}", error.value, error.allowed) from None
    return config


def _conferences(field: str, table: Any) -> dict[int, float]:
    """Seconds by conference: keys of TOML are texts."""
    found: dict[int, float] = {}
    for key, seconds in table.items() if isinstance(table, dict) else [("", table)]:
        number = int(key) if key.isascii() and key.isdecimal() else -1
        if not 0 <= number <= NUMBER_MAX or type(seconds) not in (int, float):
            allowed = "conferences and seconds, as in {7 = 86400}"
            raise ConfigError(field, repr(table)[:60], allowed)
        found[number] = seconds
    return found


def _text(field: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ConfigError(field, repr(value)[:60], "a text")
    return value


def _line(value: Any, members: tuple[str, ...]) -> str | dict[str, str]:
    """GR-22: where line B is."""
    if not isinstance(value, dict):
        if text := _text("line_b", value):
            parse_address(text, "line_b")
        return value  # type: ignore[no-any-return]
    for name, address in only("line_b", value, members).items():
        parse_address(_text(f"line_b.{name}", address), f"line_b.{name}")
    return value
