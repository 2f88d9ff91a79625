"""Who plays which role in a group: one TOML file, the same for all members.

For a `journal` group the profiles of PROTOCOLS §6.9 need three lines::

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

What else a file may have is in `GrsbTable`, `PARAMETERS` and `JournalTable`; `node.roles.wide.file`
reads those of `wide` groups.

A table of such a file is a frozen struct.  A field that allows less than its type says has a `Meta`
whose constraints are checked, and whose description is what an error says is allowed.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar, get_args

import msgspec
from msgspec import Meta, Struct, structs

from roundelay.core.engine import MS, SECOND
from roundelay.core.errors import ConfigError
from roundelay.core.grsb.config import DEMO, FAST, PROFILES, SITES_MAX, STABLE, GrsbConfig, Roles
from roundelay.core.selection import NUMBER_MAX, Selection, chosen
from roundelay.journal.journal import ALWAYS, INTERVAL, JournalConfig
from roundelay.node.groups import MEMBER_BYTES_MAX, check_name
from roundelay.node.medium.interfaces import parse_address

FILE_BYTES_MAX: Final = 1 << 20
SHOWN_MAX: Final = 60
"""Characters of a value that an error shows."""

File = TypeVar("File", bound="RoleFile")
TableStruct = TypeVar("TableStruct", bound=Struct)


@dataclass(frozen=True, kw_only=True)
class RoleFile:
    """A file that makes sense."""

    path: Path
    members: tuple[str, ...]
    roles: Roles
    """All of them: who must have a disk, who begins, who has an application."""
    titles: tuple[list[str], ...]
    """The names of each member's roles; all but the first of their kind stand by."""
    digest: str
    """The same for files that put the same members into the same places."""
    constants: GrsbConfig
    """Of the engine, as the file has them."""
    parameters: dict[str, Any]
    """Those of the constants that the file itself names."""
    journal: JournalConfig
    line_b: str | dict[str, str] = ""
    """Address of a multicast group, or each member's own address on that line; empty: default."""
    interface_b: str = ""

    @property
    def council(self) -> tuple[str, ...]:
        return self.names(self.roles.council)

    def names(self, sites: tuple[int, ...]) -> tuple[str, ...]:
        return tuple(self.members[site] for site in sites)

    def config(self, **settings: Any) -> GrsbConfig:
        """The engine's constants; `settings`, which depend on the medium, where it names none."""
        config = structs.replace(self.constants, **(settings | self.parameters))
        return config.check(self.roles.sites)


def digest_of(members: tuple[str, ...], *places: Any) -> str:
    """A few letters that stand for what can be said in JSON."""
    return sha256(msgspec.json.encode([members, *places])).hexdigest()[:12]


Place = tuple[str, tuple[int, ...], bool]
"""The title of a role, the sites that have it, and whether all but the first stand by."""


def titled(sites: int, places: Iterable[Place]) -> tuple[list[str], ...]:
    """The titles of each site."""
    titles: tuple[list[str], ...] = tuple([] for _ in range(sites))
    for title, holders, spare in places:
        for site in holders:
            titles[site].append(f"standby {title}" if spare and site != holders[0] else title)
    return titles


# -- reading -----------------------------------------------------------------------------------


def read_file(path: Path, parse: Callable[[dict[str, Any], Path], File]) -> File:
    """What `parse` makes of `path`; ConfigError says what is wrong with it, and where."""
    table = _table(path)
    with within(f"config {path}: "):
        return parse(table, path)


def _table(path: Path) -> dict[str, Any]:
    """A file as TOML reads it."""
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError("config", path, f"a file that can be read ({error.strerror})") from None
    if len(data) > FILE_BYTES_MAX:
        raise ConfigError("config", path, f"a file of at most {FILE_BYTES_MAX} bytes")
    try:
        return tomllib.loads(data.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError("config", path, f"a TOML file ({error})") from None


def only(where: str, table: object, known: Collection[str]) -> dict[str, Any]:
    """Return `table` if it is one, and all of its keys are known."""
    if not isinstance(table, dict):
        raise ConfigError(where, repr(table), f"a table [{where}]")
    for key, value in table.items():
        if key not in known:
            allowed = f"one of {', '.join(known)}"
            raise ConfigError(_within(where, key), repr(value)[:SHOWN_MAX], allowed)
    return table


def checked(table: object, types: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return what `table`, as TOML has read it, has of each key; what may be there is in `types`.

    ConfigError names the field, which is in the table `where`, its value and what is allowed.
    """
    values = {}
    for key, value in only(where, table, types).items():
        try:
            values[key] = msgspec.convert(value, types[key], str_keys=True)
        except msgspec.ValidationError as error:
            item = re.search(r"`\$\[(\d+)\]`$", str(error))
            wrong = value[int(item[1])] if item is not None else value
            allowed = _description(types[key]) or str(error)
            raise ConfigError(_within(where, key), repr(wrong)[:SHOWN_MAX], allowed) from None
    return values


def convert(table: object, kind: type[TableStruct], where: str = "") -> TableStruct:
    """Return a checked table as a struct."""
    fields = {field.encode_name: field for field in structs.fields(kind)}
    values = checked(table, {key: field.type for key, field in fields.items()}, where)
    for key, field in fields.items():
        if field.required and key not in values:
            raise ConfigError(_within(where, key), "missing", _description(field.type))
    return kind(**{fields[key].name: value for key, value in values.items()})


def _within(where: str, key: str) -> str:
    return f"{where}.{key}" if where else key


def _description(kind: Any) -> str:
    """What the annotation of a field says is allowed."""
    notes = [getattr(annotation, "__metadata__", ()) for annotation in (kind, *get_args(kind))]
    return next((note.description for some in notes for note in some if note.description), "")


@contextmanager
def within(prefix: str) -> Iterator[None]:
    """Errors say where their field is."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(prefix + error.field, error.value, error.allowed) from None


@contextmanager
def by_name(members: tuple[str, ...]) -> Iterator[None]:
    """What an engine says of sites is said in the names of the file."""
    try:
        yield
    except ConfigError as error:
        value = error.value
        sites = value if isinstance(value, tuple) else (value,)
        places = isinstance(value, tuple) or error.field in ("edges", "filters")
        if not places or not all(type(site) is int and 0 <= site < len(members) for site in sites):
            raise
        names = ", ".join(members[int(site)] for site in sites)
        raise ConfigError(error.field, names or "none", error.allowed) from None


# -- tables ------------------------------------------------------------------------------------

NAMES: Final = 'names, as in ["a", "b"]'
RECORDERS: Final = NAMES + "; with a profile: how many"

Names = Annotated[tuple[str, ...], Meta(description=NAMES)]
Text = Annotated[str, Meta(description="a text")]
Table = Annotated[dict[str, Any], Meta(description="a table")]
Number = Annotated[int, Meta(ge=0, le=NUMBER_MAX)]
"""Of a conference or a kind."""
Numbers = Annotated[
    frozenset[Number], Meta(description=f"whole numbers from 0 to {NUMBER_MAX}, as in [7, 8]")
]

ROLES: Final = ("retransmitters", "acknowledgers", "recorders", "users")


class RolesTable(Struct, frozen=True, kw_only=True):
    """Who plays which role, by name; with a profile `recorders` is how many there are."""

    members: Names
    retransmitters: Names | None = None
    acknowledgers: Names | None = None
    recorders: Annotated[int | tuple[str, ...], Meta(description=RECORDERS)] | None = None
    users: Names | None = None

    def roles(self, sites: dict[str, int]) -> Roles:
        """The roles of `sites`, all of which are named: whoever is not is a user."""
        named: dict[str, tuple[int, ...]] = {}
        for role in ROLES[:3]:
            names = getattr(self, role)
            if names is None:
                raise ConfigError(role, "missing", f"names of members; or profile = {DEMO!r}")
            named[role] = sites_of(role, names, sites)
        taken = {site for places in named.values() for site in places}
        rest = tuple(site for site in sites.values() if site not in taken)
        users = rest if self.users is None else sites_of("users", self.users, sites)
        if not users:
            raise ConfigError("users", "none", "one member or more: every one has another role")
        idle = [name for name, site in sites.items() if site not in taken and site not in users]
        if idle:
            raise ConfigError("users", ", ".join(idle), "a role for every member")
        return Roles(sites=len(sites), **named | {"users": users})  # type: ignore[arg-type]


def check_members(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return `names` if nodes can have them."""
    if not 2 <= len(names) <= SITES_MAX:
        raise ConfigError("members", len(names), f"2 to {SITES_MAX} names, in one order for all")
    for name in names:
        check_name(name, "members")
        if len(name.encode()) > MEMBER_BYTES_MAX:
            raise ConfigError("members", name, f"names of at most {MEMBER_BYTES_MAX} bytes")
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ConfigError("members", twice, "each name once")
    return names


def sites_of(field: str, names: object, sites: dict[str, int]) -> tuple[int, ...]:
    """The numbers of members."""
    if not isinstance(names, tuple):
        raise ConfigError(field, names, NAMES)
    for name in names:
        if name not in sites:
            raise ConfigError(field, name, f"members: {', '.join(sites)}")
    return tuple(sites[name] for name in names)


def parameter_types(config: type[GrsbConfig], *left_out: str, **words: str) -> dict[str, Any]:
    """What the table `parameters` may have: the constants of an engine that are not `left_out`.

    Times, which are nanoseconds to the engine (`takeover_ns`), are milliseconds in the file
    (`takeover_ms`).  `words` are what is allowed of those that are words.
    """
    kinds: dict[Any, Any] = {
        int: Annotated[int, Meta(description="a whole number")],
        bool: Annotated[bool, Meta(description="true or false")],
    }
    milliseconds = Meta(ge=0, le=3_600_000, description="milliseconds, up to an hour")
    types: dict[str, Any] = {}
    for field in structs.fields(config):
        name = field.name
        if name in words:
            pattern = words[name].replace(" or ", "|")
            allowed = Meta(pattern=f"^({pattern})$", description=words[name])
            types[name] = Annotated[str, allowed]
        elif name.endswith("_ns"):
            types[f"{name[:-3]}_ms"] = Annotated[float, milliseconds]
        elif name not in left_out:
            types[name] = kinds[field.type]
    return types


def engine_settings(table: object, types: dict[str, Any]) -> dict[str, Any]:
    """The parameters that a file has, as the engine's configuration names them."""
    values = checked(table, types, "parameters")
    for name in [name for name in values if name.endswith("_ms")]:
        values[f"{name[:-3]}_ns"] = int(values.pop(name) * 1_000_000)
    return values


class JournalTable(JournalConfig, frozen=True, kw_only=True):
    """What a recorder says that it has must be on disk: that is why `os` will not do."""

    sync: Annotated[
        str,
        Meta(
            pattern=f"^({ALWAYS}|{INTERVAL})$",
            description=f"{ALWAYS} or {INTERVAL}: the group lets go of what its recorders have",
        ),
    ] = INTERVAL
    keep_conference_s: Annotated[
        Mapping[Number, float], Meta(description="conferences and seconds, as in {7 = 86400}")
    ] = msgspec.field(default_factory=dict)


def journal_of(table: object) -> JournalConfig:
    """How the recorders of a group keep their journals."""
    config = convert(table, JournalTable, "journal")
    with within("journal."):
        config.check()
    return config


# -- of a `journal` group ------------------------------------------------------------------------


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
    filters: Table = msgspec.field(default_factory=dict)
    parameters: Table = msgspec.field(default_factory=dict)
    journal: Table = msgspec.field(default_factory=dict)


class FilterTable(Struct, frozen=True, kw_only=True):
    """What a recorder keeps whole."""

    conferences: Numbers = frozenset()
    senders: Names = ()
    kinds: Numbers = frozenset()


PARAMETERS: Final = parameter_types(
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
    with by_name(members):
        roles.check()
    if roles.lines == 1:
        for key in ("line_b", "interface_b"):
            if key in toml:
                raise ConfigError(key, toml[key], "only with lines = 2")
    places = [getattr(roles, name) for name in ROLES]
    singular = [(name[:-1], getattr(roles, name), name in ROLES[:2]) for name in ROLES]
    filters = [
        (site, *map(sorted, (keeps.conferences or (), keeps.senders or (), keeps.kinds or ())))
        for site, keeps in sorted(roles.filters.items())
    ]
    parameters = engine_settings(table.parameters, PARAMETERS)
    return RoleFile(
        path=path,
        members=members,
        roles=roles,
        titles=titled(roles.sites, singular),
        digest=digest_of(members, *places, roles.lines, filters),
        constants=GrsbConfig.fast(**(LIVE | parameters)).check(roles.sites),
        parameters=parameters,
        journal=journal_of(table.journal),
        line_b=_line(table.line_b, members),
        interface_b=table.interface_b,
    )


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
