"""How a node runs, checked once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from roundelay.core.autorm.config import AutoRmConfig
from roundelay.core.engine import MS, SECOND
from roundelay.core.errors import ConfigError
from roundelay.core.limits import one_of
from roundelay.node.event_log import LEVELS
from roundelay.node.groups import MEMBER_BYTES_MAX, GroupSpec, check_name
from roundelay.node.medium.probe import Choice
from roundelay.node.recording.recorder import RecordConfig

if TYPE_CHECKING:
    from roundelay.trace.live import LiveTrace


class NodeConfig(Struct, frozen=True, kw_only=True):
    """How a node runs."""

    name: str = ""
    """Empty: made up from the host's name and a random part (`node.membership.identity`)."""
    dir: Path | None = None
    """Where members keep what they must not forget; None: nothing survives the process."""
    choice: Choice = Choice()
    secret: bytes | None = None
    """None: datagrams in the clear."""
    groups: tuple[GroupSpec, ...] = ()
    records: tuple[RecordConfig, ...] = ()
    """Groups to record (`node.recording.recorder`)."""
    autorm: AutoRmConfig = AutoRmConfig(
        ack_jitter_ns=2 * MS,  # groups on one network are small: answers need little spreading
        max_message=16 << 20,
        reassembly_peer=17 << 20,
        reassembly_total=48 << 20,
    )
    log_level: str = "warning"
    answer_ns: int = 10 * SECOND
    """After so long a caller is told that the fate of its broadcast is open."""
    tracer: Callable[..., LiveTrace | None] = lambda group, member, **known: None
    """Makes the trace of a group, if there is to be one; `known` goes into it
    (`node.driver.tracing`)."""

    def check(self) -> None:
        if self.name:
            check_name(self.name, "name")
        if len(self.name.encode()) > MEMBER_BYTES_MAX:
            raise ConfigError("name", self.name, f"at most {MEMBER_BYTES_MAX} bytes")
        one_of("log_level", self.log_level, LEVELS, ", ")
