"""Names of groups, what they stand for, and how a group is configured.

A name without a prefix is an AutoRM group, exactly as in the paper; `token:`, `to:`, `po:`,
`spo:`, `pa:`, `grsb:` and `wide:` select another protocol.  The prefix is part of the name:
`orders` and `token:orders` are two groups.
"""

from __future__ import annotations

from typing import Any, Final

from msgspec import Struct

from roundelay.core.errors import ConfigError
from roundelay.core.families import RECORDS, Family
from roundelay.core.limits import one_of

FAMILY_OF: Final[dict[str, Family]] = {
    family.prefix or family.name: family for family in RECORDS if not family.one_channel
}
"""Protocol → what there is to know of it."""
CHANNEL_MODE: Final = {family.service: family for family in RECORDS if family.one_channel}
"""Service → the family that is used through a hub."""
SERVICES: Final = {family.service: protocol for protocol, family in FAMILY_OF.items()}
"""Service → protocol, as they are listed to users."""
PLAIN: Final = next(key for key, family in FAMILY_OF.items() if family.own_packets)
"""The protocol of groups whose names have no prefix."""
RING: Final = next(key for key, family in FAMILY_OF.items() if family.resilient)
"""The protocol that agrees on rosters, also beside groups of others (`node.membership.group`)."""

NAME_BYTES_MAX: Final = 255
"""A frontend packet has one byte for the length of a group's name."""

MEMBERS_MAX: Final = 128
MEMBER_BYTES_MAX: Final = 64
"""Of the name of a member, which is that of its node."""


class GroupSpec(Struct, frozen=True, kw_only=True):
    """A group as this node was told of it."""

    name: str
    protocol: str
    members: tuple[str, ...] = ()
    """The fixed roster, in the order that every member must use; empty: found by discovery."""
    resilience: int | None = None
    """L, of a token group; None: as the group has it, or as its size allows."""
    stage: str = ""
    """When to deliver; empty stands for the safest stage of the protocol."""
    hub: bool | None = None
    """TO in channel mode, through the hub that the first member runs; None: as the group has it."""
    min_members: int | None = None
    """Nothing is confirmed while the roster has fewer; None: as the group has it, or 2."""
    config: str = ""
    """The file that says who plays which role (`node.roles.role_file`)."""

    @property
    def service(self) -> str:
        return self.family.service

    @property
    def family(self) -> Family:
        """What there is to know of its protocol, in the mode it is used in."""
        family = FAMILY_OF[self.protocol]
        return CHANNEL_MODE.get(family.service, family) if self.hub else family

    @property
    def fixed(self) -> bool:
        return bool(self.members)


def check_name(name: str, field: str = "group") -> str:
    """`name` if it can be that of a group."""
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        size = 0
    if not 0 < size <= NAME_BYTES_MAX:
        raise ConfigError(field, repr(name[:40]), f"1 to {NAME_BYTES_MAX} bytes of UTF-8")
    if any(ord(letter) < 32 or ord(letter) == 127 for letter in name):
        raise ConfigError(field, repr(name[:40]), "no control characters")
    return name


def protocol_of(name: str) -> str:
    """What the prefix of a group's name selects.

    >>> protocol_of("token:orders"), protocol_of("orders"), protocol_of("re: orders")
    ('token', 'autorm', 'autorm')
    """
    prefix, colon, rest = name.partition(":")
    return prefix if colon and rest and prefix in FAMILY_OF and prefix != PLAIN else PLAIN


def family_of(name: str) -> Family:
    """What there is to know of the protocol of a group by that name."""
    return FAMILY_OF[protocol_of(name)]


def full_name(name: str, service: str) -> str:
    """The name of a group with the prefix of its service.

    >>> full_name("orders", "resilient"), full_name("orders", "fifo")
    ('token:orders', 'orders')
    """
    check_name(name)
    one_of("service", service, SERVICES, ", ")
    protocol, named = SERVICES[service], protocol_of(name)
    if named == protocol:
        return name
    if named != PLAIN:
        allowed = f"{FAMILY_OF[named].service} for a group named {name}"
        raise ConfigError("service", service, allowed)
    return check_name(f"{protocol}:{name}")


def _members(text: str) -> tuple[str, ...]:
    return check_members(tuple(part.strip() for part in text.split(",") if part.strip()))


def check_members(names: tuple[str, ...]) -> tuple[str, ...]:
    """`names` if they can be a roster."""
    if not 1 <= len(names) <= MEMBERS_MAX:
        raise ConfigError("members", len(names), f"1 to {MEMBERS_MAX} names")
    if len(set(names)) < len(names):
        raise ConfigError("members", ",".join(names), "each name once")
    for name in names:
        # Others drop all that a node says of itself if one of its groups has a name no node has.
        if len(check_name(name, "members").encode()) > MEMBER_BYTES_MAX:
            raise ConfigError("members", name, f"names of at most {MEMBER_BYTES_MAX} bytes")
    return names


def _resilience(text: str) -> int:
    if not text.isdecimal():
        raise ConfigError("resilience", text, "a whole number from 0 on")
    return int(text)


def _least(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= MEMBERS_MAX:
        raise ConfigError("min_members", text, f"a whole number from 1 to {MEMBERS_MAX}")
    return int(text)


def _yes(text: str) -> bool:
    one_of("hub", text, ("yes", "no"))
    return text == "yes"


OPTIONS: Final[dict[str, Any]] = {
    "members": _members,
    "resilience": _resilience,
    "stage": str,
    "hub": _yes,
    "min_members": _least,
    "config": str,
}


def parse_group(text: str) -> GroupSpec:
    """`NAME:service[:key=value…]`, as `--group` takes it;
    with a prefix, and no further colon in the name, the service may be left out.

    >>> parse_group("orders:resilient:members=a,b,c").name
    'token:orders'
    >>> parse_group("token:orders:resilient:resilience=2").resilience
    2
    >>> parse_group("grsb:news:config=news.toml").service
    'journal'
    """
    parts = text.split(":")
    options: dict[str, Any] = {}
    while parts and "=" in parts[-1]:
        key, _, value = parts.pop().partition("=")
        if key not in OPTIONS:
            raise ConfigError("group", text, f"options {', '.join(OPTIONS)}")
        options[key] = OPTIONS[key](value)
    service = parts.pop() if len(parts) > 1 and parts[-1] in SERVICES else ""
    if not service and len(parts) == 2 and protocol_of(":".join(parts)) != PLAIN:
        service = family_of(":".join(parts)).service
    if service not in SERVICES:
        raise ConfigError(
            "group", text, f"NAME:service[:key=value…] with a service of {', '.join(SERVICES)}"
        )
    name = full_name(":".join(parts), service)
    if SERVICES[service] == PLAIN and options:
        raise ConfigError("group", text, "no options for fifo: who joins is a member")
    return check_roles(GroupSpec(name=name, protocol=SERVICES[service], **options))


def check_roles(spec: GroupSpec) -> GroupSpec:
    """`spec` if it has a file of roles exactly where one is needed, and options that can be."""
    check_options(spec)
    if spec.family.has_roles:
        if not spec.config:
            example = f"--group {spec.name}:config=FILE or join(…, config=FILE)"
            allowed = f"the file that says who plays which role in {spec.name}, as in {example}"
            raise ConfigError("config", "", allowed)
    elif spec.config:
        services = ", ".join(family.service for family in RECORDS if family.has_roles)
        raise ConfigError("config", spec.config, f"a group of service {services}")
    return spec


def check_options(spec: GroupSpec) -> GroupSpec:
    """`spec` if these options have a meaning in a group of its service."""
    if spec.resilience is not None:
        if not 0 <= spec.resilience < MEMBERS_MAX:
            raise ConfigError("resilience", spec.resilience, f"0 to {MEMBERS_MAX - 1}")
        if not spec.family.resilient:
            allowed = "only in groups of service resilient: others have no L"
            raise ConfigError("resilience", spec.resilience, allowed)
    family = spec.family
    if family.own_packets or family.has_roles:
        if spec.stage:
            raise ConfigError("stage", spec.stage, f"none for {spec.service}")
        if spec.members:
            who = "none for fifo: who joins is a member"
            allowed = who if family.own_packets else "in the file, not beside it"
            raise ConfigError("members", ",".join(spec.members), allowed)
    if spec.hub and not family.one_channel:
        raise ConfigError("hub", "yes", "only in groups of service total")
    least = spec.min_members
    if least is not None:
        if not 1 <= least <= MEMBERS_MAX:
            raise ConfigError("min_members", least, f"1 to {MEMBERS_MAX}")
        if family.own_packets or family.has_roles:
            raise ConfigError("min_members", least, f"none for {spec.service}")
        if spec.members and least > len(spec.members):
            raise ConfigError("min_members", least, f"at most {len(spec.members)}, the roster")
    return spec


def plain_spec(name: str, **options: Any) -> GroupSpec:
    """A group of which only the name is known."""
    return GroupSpec(name=check_name(name), protocol=protocol_of(name), **options)
