"""Parameters of a Beamon (PROTOCOLS §8.6), checked once, with errors that name the field.

The paper has no configuration per host, so the defaults are meant to be left alone.  Nodes on one
medium need not agree on anything but `serial_scope`, and `max_message` as far as it is used.
"""

from __future__ import annotations

from typing import Final, Self

from msgspec import Struct

from roundelay.core.autorm.packets import DATA_HEAD, IP_UDP_HEAD, NAME_MAX, NODES_MAX
from roundelay.core.engine import MS, NEVER
from roundelay.core.errors import ConfigError
from roundelay.core.limits import one_of, whole

NODE: Final = "node"
GROUP: Final = "group"

MTU_MIN: Final = 576
"""What every IPv4 host takes."""

FRAGMENT_LEAST: Final = MTU_MIN - IP_UDP_HEAD - DATA_HEAD - NAME_MAX
"""Bytes of a message in a packet, with the smallest MTU and the longest name: 246."""

MIB: Final = 1 << 20


class AutoRmConfig(Struct, frozen=True, kw_only=True):
    """Constants of one node."""

    mtu: int = 1500
    """Bytes in one IP packet, with its headers; fixed, as in the paper."""
    trust: float = 0.5
    """Weight of the own count of nodes against the mean of what the others count (AR-2)."""
    hb_min_ns: int = 500 * MS
    """The shortest time between two heartbeats."""
    hb_per_node_ns: int = 100 * MS
    """What each node in the environment adds to the time between heartbeats (AR-3)."""
    hb_on_change_ns: int = 50 * MS
    """Within this time a change of groups is announced."""
    stale_factor: int = 4
    """Heartbeats that may be missed before a node counts as dead (AR-4)."""
    ack_timeout_ns: int = 100 * MS
    """How long a round waits for acknowledgements."""
    ack_jitter_ns: int = 10 * MS
    """Acknowledgements are spread over this time."""
    max_retries: int = 10
    """Rounds without progress that a receiver is allowed (AR-10)."""
    confirm_every: int = 32
    """Every so many packets of a message an acknowledgement is asked for; the last always."""
    burst: int = 32
    """Data packets sent in one go (AR-8)."""
    pace_ns: int = 5 * MS
    """Time between two bursts."""
    max_message: int = 64 * MIB
    """Bytes of a message."""
    serial_scope: str = NODE
    """`node`: one message under way at a time; `group`: one per group (AR-7).  All alike."""
    someone_failover: bool = False
    """Send to someone else if the chosen one is lost; both may then have the message (E 48)."""
    nodes_max: int = 4096
    """Nodes in the environment table; more are not seen."""
    sources_max: int = 16384
    """Senders remembered so that nothing is delivered twice, dead ones too."""
    history: int = 32
    """Arrivals remembered of each node."""
    queue_bytes: int = 16 * MIB
    """Outgoing messages waiting and under way; a single larger one is taken if it is alone."""
    reassembly_peer: int = 65 * MIB
    """Incomplete messages of one sender."""
    reassembly_total: int = 130 * MIB
    """Incomplete messages of all senders."""

    def check(self, sites: int = 1) -> Self:
        """Raise ConfigError unless a node can run so, among that many nodes if they are known."""
        whole("sites", sites, 1, self.nodes_max + 1)
        whole("mtu", self.mtu, MTU_MIN, 65535)
        if not 0.0 <= self.trust <= 1.0:
            raise ConfigError("trust", self.trust, "a number from 0 to 1")
        for name in ("hb_min_ns", "hb_per_node_ns", "ack_timeout_ns"):
            whole(name, getattr(self, name), 1, NEVER)
        for name in ("hb_on_change_ns", "pace_ns"):
            whole(name, getattr(self, name), 0, NEVER)
        whole("ack_jitter_ns", self.ack_jitter_ns, 0, self.ack_timeout_ns - 1)
        whole("stale_factor", self.stale_factor, 2)
        whole("max_retries", self.max_retries, 0)
        for name in ("confirm_every", "burst", "queue_bytes", "history"):
            whole(name, getattr(self, name), 1)
        whole("max_message", self.max_message, 1, (1 << 32) - 1)
        whole("nodes_max", self.nodes_max, 1, NODES_MAX - 1)
        whole("sources_max", self.sources_max, 1)
        least = self.max_message + FRAGMENT_LEAST
        whole("reassembly_peer", self.reassembly_peer, least, where=" for max_message")
        whole("reassembly_total", self.reassembly_total, self.reassembly_peer)
        one_of("serial_scope", self.serial_scope, (NODE, GROUP))
        return self
