"""What files that give nodes their roles have in common (`node.grsb_file`, `node.wide_file`)."""

from __future__ import annotations

import tomllib
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from roundelay.core.errors import ConfigError
from roundelay.core.grsb.config import GrsbConfig, Roles
from roundelay.journal.journal import JournalConfig

FILE_BYTES_MAX: Final = 1 << 20

File = TypeVar("File", bound="RoleFile")


@dataclass(frozen=True, kw_only=True)
class RoleFile(ABC):
    """A file that makes sense."""

    path: Path
    members: tuple[str, ...]
    roles: Roles
    """All of them: who must have a disk, who begins, who has an application."""
    parameters: dict[str, Any]
    journal: JournalConfig
    line_b: str | dict[str, str] = ""
    """Address of a multicast group, or each member's own address on that line; empty: default."""
    interface_b: str = ""

    @property
    @abstractmethod
    def places(self) -> list[Any]:
        """Where each member is, as JSON can say it."""

    @abstractmethod
    def roles_of(self, site: int) -> list[str]:
        """The names of a member's roles; all but the first of their kind stand by."""

    @abstractmethod
    def config(self, **settings: Any) -> GrsbConfig:
        """The engine's constants; `settings` are those that depend on the medium."""

    @property
    def digest(self) -> str:
        """The same for files that put the same members into the same places."""
        return sha256(msgspec.json.encode([self.members, *self.places])).hexdigest()[:12]

    @property
    def council(self) -> tuple[str, ...]:
        return self.names(self.roles.council)

    def names(self, sites: tuple[int, ...]) -> tuple[str, ...]:
        return tuple(self.members[site] for site in sites)


def titled(title: str, site: int, sites: tuple[int, ...], spare: bool) -> list[str]:
    """A role's title if `site` has it; with `spare`, all but the first stand by."""
    if site not in sites:
        return []
    return [f"standby {title}" if spare and site != sites[0] else title]


def read_role_file(path: Path, parse: Callable[[dict[str, Any], Path], File]) -> File:
    """What `parse` makes of `path`; ConfigError says what is wrong with it, and where."""
    table = _table(path)
    try:
        return parse(table, path)
    except ConfigError as error:
        field = f"config {path}: {error.field}"
        raise ConfigError(field, error.value, error.allowed) from None


def named(error: ConfigError, members: tuple[str, ...]) -> ConfigError:
    """What an engine has said of sites, in the names of the file."""
    value = error.value
    sites = value if isinstance(value, tuple) else (value,)
    places = isinstance(value, tuple) or error.field in ("edges", "filters")
    if not places or not all(type(one) is int and 0 <= one < len(members) for one in sites):
        return error
    names = ", ".join(members[int(one)] for one in sites)
    return ConfigError(error.field, names or "none", error.allowed)


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


# -- values of its keys ------------------------------------------------------------------------


def milliseconds(field: str, value: Any, zero: bool = True) -> int:
    """As nanoseconds; `zero` if that is a time as well."""
    if type(value) not in (int, float) or not 0 <= value <= 3_600_000 or not (value or zero):
        raise ConfigError(field, repr(value), "milliseconds, up to an hour")
    return int(value * 1_000_000)


def whole_number(field: str, value: Any) -> int:
    if type(value) is not int:
        raise ConfigError(field, repr(value), "a whole number")
    return value


def true_or_false(field: str, value: Any) -> bool:
    if type(value) is not bool:
        raise ConfigError(field, repr(value), "true or false")
    return value


def one_of(field: str, value: Any, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise ConfigError(field, repr(value), " or ".join(allowed))
    return str(value)
