"""The environment table: whom a Beamon hears, and what it concludes from that (AR §2.2).

There is no shared state: each node knows the others by what it hears of them.  Whoever is silent
for longer than the stale time does not exist.  Heartbeats get rarer as the environment grows, so
that all of them together stay at about one per `hb_per_node_ns`.

    n̂      = trust · local + (1 - trust) · mean of what live nodes report          (AR-2)
    h(n)   = max(hb_min, hb_per_node · n), the time between heartbeats              (AR-3)
    stale  = stale_factor · max(h(n̂), h(reported by the node))                     (AR-4)
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any, Final

from roundelay.core.autorm.config import AutoRmConfig
from roundelay.core.autorm.packets import Heartbeat
from roundelay.core.engine import NEVER
from roundelay.core.errors import InvariantBroken

GONE_MAX: Final = 256
"""Nodes that are remembered after their end, to explain it."""

ALIVE: Final = "alive"
DEAD: Final = "dead"
DROPPED: Final = "dropped"
UNKNOWN: Final = "unknown"


@dataclass(slots=True, eq=False)
class KnownNode:
    """Another Beamon, as far as this one knows it."""

    uuid: bytes
    first_seen: int
    last_seen: int
    history: deque[int]  # arrivals of any packet
    heartbeats: deque[int]  # arrivals of heartbeats
    reported: int = 0  # nodes it counts; 0: not heard yet
    groups: tuple[str, ...] = ()
    resent: int = 0  # packets sent again because it lacked them, or was silent
    retries: int = 0  # rounds without progress in the last transfer that had any
    retried_at: int = -1
    verdict: str = ALIVE
    ended: int = -1  # when it left the table
    stale_at_end_ns: int = 0


@dataclass(slots=True, eq=False)
class Environment:
    """The table of one node."""

    config: AutoRmConfig
    nodes: dict[bytes, KnownNode] = field(default_factory=dict)
    by_group: dict[str, dict[bytes, None]] = field(default_factory=dict)
    """Who declares a group, in order."""
    gone: dict[bytes, KnownNode] = field(default_factory=dict)
    """The last ones to leave the table."""
    scan_due: int = NEVER  # when somebody may be stale
    _sum: int = 0  # of `reported`
    _mean_of: int = 0  # nodes that have reported

    # -- estimates -------------------------------------------------------------------------

    @property
    def local(self) -> int:
        """Nodes in the table, and this one."""
        return len(self.nodes) + 1

    def estimate(self) -> float:
        """AR-2: n̂, how many nodes there are."""
        if not self._mean_of:
            return float(self.local)
        trust = self.config.trust
        return trust * self.local + (1.0 - trust) * self._sum / self._mean_of

    def period_of(self, nodes: float) -> int:
        """AR-3: h(n), the time between heartbeats of a node that counts `nodes`."""
        period = int(self.config.hb_per_node_ns * nodes)
        least = self.config.hb_min_ns
        return period if period > least else least

    def period(self) -> int:
        return self.period_of(self.estimate())

    def stale_ns(self, node: KnownNode | None) -> int:
        """AR-4: how long `node` may be silent; None: one that is not in the table."""
        period = self.period()
        if node is not None:
            period = max(period, self.period_of(node.reported))
        return self.config.stale_factor * period

    # -- what is heard ---------------------------------------------------------------------

    def admit(self, uuid: bytes, now: int) -> KnownNode | None:
        """AR-1: an unknown node is added; None if the table is full."""
        if len(self.nodes) >= self.config.nodes_max:
            return None
        node = self.gone.pop(uuid, None)
        if node is None:
            most = self.config.history
            node = KnownNode(uuid, now, now, deque(maxlen=most), deque(maxlen=most))
        else:  # it is back: what was counted of it still tells something
            node.last_seen, node.reported, node.groups = now, 0, ()
            node.verdict, node.ended, node.stale_at_end_ns = ALIVE, -1, 0
        self.nodes[uuid] = node
        self.scan_due = min(self.scan_due, now + self.stale_ns(node))
        return node

    def heartbeat(self, node: KnownNode, packet: Heartbeat, now: int) -> tuple[str, ...]:
        """AR-1: a heartbeat replaces groups and report; returns the groups it has left."""
        node.heartbeats.append(now)
        # Nobody's report may keep the dead alive longer than a full table would.
        reported = min(packet.nodes, self.config.nodes_max + 1)
        if reported != node.reported:
            self._mean_of += (reported > 0) - (node.reported > 0)
            self._sum += reported - node.reported
            node.reported = reported
        groups = packet.groups
        if groups == node.groups:
            return ()
        groups_left = tuple(group for group in node.groups if group not in groups)
        self._undeclare(node, groups_left)
        for group in groups:
            self.by_group.setdefault(group, {})[node.uuid] = None
        node.groups = groups
        return groups_left

    def _undeclare(self, node: KnownNode, groups: tuple[str, ...]) -> None:
        for group in groups:
            members = self.by_group.get(group)
            if members is not None:  # else a heartbeat has named the group twice
                members.pop(node.uuid, None)
                if not members:
                    del self.by_group[group]

    def members(self, group: str) -> tuple[bytes, ...]:
        """The other nodes that declare `group` now."""
        return tuple(self.by_group.get(group, ()))

    # -- the end of a node -----------------------------------------------------------------

    def stale(self, now: int) -> list[bytes]:
        """AR-4: the nodes that are dead by now; also sets when to look again."""
        general = self.period()
        factor = self.config.stale_factor
        dead = []
        due = NEVER
        for node in self.nodes.values():
            end = node.last_seen + factor * max(general, self.period_of(node.reported))
            if end < now:
                dead.append(node.uuid)
            elif end < due:
                due = end
        self.scan_due = due + 1
        return dead

    def remove(self, uuid: bytes, now: int, verdict: str) -> None:
        """AR-4, AR-10: the node leaves the table; why is remembered for a while."""
        node = self.nodes[uuid]
        node.verdict = verdict
        node.ended = now
        node.stale_at_end_ns = self.stale_ns(node)
        del self.nodes[uuid]
        self._undeclare(node, node.groups)
        self._sum -= node.reported
        self._mean_of -= node.reported > 0
        self.gone[uuid] = node
        if len(self.gone) > GONE_MAX:
            del self.gone[next(iter(self.gone))]

    def excuse(self, asleep_ns: int, now: int) -> None:
        """This node itself did not run for `asleep_ns`: nobody was silent in that time."""
        for node in self.nodes.values():
            node.last_seen = min(now, node.last_seen + asleep_ns)

    def check_invariants(self) -> None:
        """The sums are those of the table, and who has left it is in no group."""
        nodes = self.nodes
        reports = [node.reported for node in nodes.values() if node.reported]
        if (self._sum, self._mean_of) != (sum(reports), len(reports)):
            raise InvariantBroken(f"{self._mean_of} reports, in all {self._sum}, of {reports}")
        if len(nodes) > self.config.nodes_max or len(self.gone) > GONE_MAX:
            raise InvariantBroken(f"{len(nodes)} nodes, and {len(self.gone)} that are gone")
        if not nodes.keys().isdisjoint(self.gone):
            raise InvariantBroken("a node is in the table, and gone")
        for group, members in self.by_group.items():
            if not members or not all(group in nodes[uuid].groups for uuid in members):
                raise InvariantBroken(f"group {group!r} has members that do not declare it")

    # -- explanations ----------------------------------------------------------------------

    def why(self, uuid: bytes, now: int) -> dict[str, Any]:
        """Why a node is dead or alive to this one, in plain values (times in ns)."""
        node = self.nodes.get(uuid) or self.gone.get(uuid)
        about: dict[str, Any] = {
            "node": uuid.hex(),
            "verdict": UNKNOWN if node is None else node.verdict,
            "trust": self.config.trust,
            "nodes_local": self.local,
            "nodes_estimated": self.estimate(),
            "heartbeat_period_ns": self.period(),
            "stale_factor": self.config.stale_factor,
        }
        if node is None:
            about["reason"] = "nothing has been heard of it"
            return about
        alive = node.verdict == ALIVE
        stale = self.stale_ns(node) if alive else node.stale_at_end_ns
        silent = now - node.last_seen
        about |= {
            "stale_ns": stale,
            "silent_ns": silent,
            "first_seen_ns": node.first_seen,
            "last_seen_ns": node.last_seen,
            "ended_ns": None if alive else node.ended,
            "reported": node.reported,
            "groups": list(node.groups),
            "heartbeats_ns": list(node.heartbeats),
            "arrivals_ns": list(node.history),
            "packets_resent": node.resent,
            "rounds_without_progress": node.retries,
            "last_retransmission_ns": None if node.retried_at < 0 else node.retried_at,
        }
        if alive:
            about["reason"] = f"heard {_ms(silent)} ago, which is within {_ms(stale)}"
        elif node.verdict == DEAD:
            about["reason"] = (
                f"silent for {_ms(node.ended - node.last_seen)} when {_ms(stale)} were allowed"
            )
        else:
            about["reason"] = (
                f"dropped after {node.retries} rounds without progress, "
                f"{self.config.max_retries} were allowed"
            )
        return about


def _ms(ns: int) -> str:
    """
    >>> _ms(1_234_000_000)
    '1234 ms'
    """
    return f"{ns // 1_000_000} ms"
