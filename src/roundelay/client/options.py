"""What `roundelay.join` can be told, checked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from roundelay.client.contiguity import RAISE
from roundelay.client.messages import COMMITTED
from roundelay.client.since import Moment
from roundelay.core.engine import SECOND
from roundelay.core.errors import ConfigError
from roundelay.core.limits import one_of, whole
from roundelay.core.selection import EVERYTHING, Selection, parse_filters
from roundelay.journal.journal import ALWAYS, JournalConfig
from roundelay.node.groups import (
    MEMBERS_MAX,
    SERVICES,
    GroupSpec,
    check_members,
    check_options,
    check_roles,
    family_of,
    full_name,
)
from roundelay.node.medium.interfaces import parse_address
from roundelay.node.medium.keys import load_secret
from roundelay.node.medium.probe import MULTICAST, Choice
from roundelay.node.node_config import NodeConfig
from roundelay.node.recording.recorder import RecordConfig

TIMEOUT_MAX_S: Final = 365 * 86_400
RETENTION: Final = ("keep_bytes", "keep_s", "keep_conference_s")
"""Options that say how long the record is kept."""


def _check_retention(option: str, value: Any) -> None:
    """The journal looks at numbers only."""
    if option == "keep_conference_s":
        fits = isinstance(value, Mapping) and all(
            isinstance(conference, int) and isinstance(seconds, int | float)
            for conference, seconds in value.items()
        )
        if not fits:
            raise ConfigError(option, value, "conferences and seconds, as in {7: 86400}")
    elif not isinstance(value, int if option == "keep_bytes" else int | float):
        raise ConfigError(option, repr(value), "a number from 0 up")


def _addresses(values: Iterable[str] | str, field: str) -> tuple[tuple[str, int], ...]:
    items = values.split(",") if isinstance(values, str) else values
    return tuple(parse_address(item.strip(), field) for item in items if item.strip())


def choice_of(options: Any) -> Choice:
    """The medium that is asked for by options of these names, each as text."""

    def address(field: str) -> tuple[str, int] | None:
        text = getattr(options, field)
        return parse_address(text, field) if text else None

    return Choice(
        multicast=parse_address(options.multicast, "multicast"),
        interface=options.interface,
        seeds=_addresses(options.seeds, "seeds"),
        advertise=address("advertise"),
        listen=address("listen"),
        via=address("via"),
        name=options.name,
    )


class Options(Struct, frozen=True, kw_only=True):
    """How to join: see `join`."""

    service: str = "resilient"
    resilience: int | None = None
    members: tuple[str, ...] = ()
    stage: str = ""
    hub: bool | None = None
    min_members: int | None = None
    config: str | Path = ""
    conferences: Iterable[int] = ()
    name: str = ""
    dir: str | Path | None = None
    multicast: str = f"{MULTICAST[0]}:{MULTICAST[1]}"
    interface: str = ""
    seeds: tuple[str, ...] | str = ()
    advertise: str = ""
    listen: str = ""
    via: str = ""
    key: str | Path | None = None
    insecure: bool = False
    timeout: float = 10.0
    since: Moment | None = None
    missing: str = RAISE
    record: bool | str | Selection = False
    fsync: str = ALWAYS
    keep_bytes: int = 0
    keep_s: float = 0.0
    keep_conference_s: Mapping[int, float] = {}
    durability: str = COMMITTED
    recorders: int = 1
    node: str = ""
    log_level: str = "warning"
    tracer: Any = None

    def spec(self, group: str) -> GroupSpec:
        one_of("service", self.service, SERVICES, ", ")
        if self.resilience is not None:
            whole("resilience", self.resilience, 0, MEMBERS_MAX - 1)
        if self.min_members is not None:
            whole("min_members", self.min_members, 1, MEMBERS_MAX)
        timeout: Any = self.timeout
        if not isinstance(timeout, int | float) or not 0 < timeout <= TIMEOUT_MAX_S:
            raise ConfigError("timeout", repr(timeout), "seconds, above 0 and up to a year")
        members = check_members(tuple(self.members)) if self.members else ()
        spec = GroupSpec(
            name=full_name(group, self.service),
            protocol=SERVICES[self.service],
            members=members,
            resilience=self.resilience,
            stage=self.stage,
            hub=self.hub,
            min_members=self.min_members,
            config=str(self.config),
        )
        if self.node and spec.config:
            raise ConfigError("config", spec.config, "none through a daemon: its node has the file")
        return check_options(spec) if self.node else check_roles(spec)

    def records(self, group: str) -> tuple[RecordConfig, ...]:
        """What the node records."""
        selection = self.record
        if selection is False:
            return ()
        if family_of(group).has_roles:
            raise ConfigError("record", selection, "nothing: its file says who records the group")
        if isinstance(selection, str):
            selection = parse_filters(selection.replace(":", ",").split(","), selection)
        if not isinstance(selection, Selection):
            selection = EVERYTHING
        for option in RETENTION:
            _check_retention(option, getattr(self, option))
        journal = JournalConfig(
            sync=self.fsync,
            keep_bytes=self.keep_bytes,
            keep_s=self.keep_s,
            keep_conference_s=self.keep_conference_s,
        )
        journal.check()
        return (RecordConfig(group=group, selection=selection, journal=journal),)

    def node_config(self, spec: GroupSpec) -> NodeConfig:
        secret = None if self.insecure else load_secret(Path(self.key) if self.key else None)
        extra = {"tracer": self.tracer} if self.tracer is not None else {}
        return NodeConfig(
            name=self.name,
            dir=Path(self.dir) if self.dir else None,
            choice=choice_of(self),
            secret=secret,
            groups=() if spec.family.own_packets else (spec,),
            records=self.records(spec.name),
            log_level=self.log_level,
            answer_ns=int(self.timeout * SECOND),
            **extra,
        )
