"""Mutants of AutoRM."""

from __future__ import annotations

from typing import Any, Final

from msgspec import structs

from roundelay.core.autorm.beamon import Beamon
from roundelay.core.autorm.config import GROUP, AutoRmConfig
from roundelay.core.autorm.packets import Acknowledgement, Data
from roundelay.core.autorm.reassembly import Inbound, OwedAck
from roundelay.core.engine import EVERYONE
from roundelay.core.families import AUTORM
from roundelay.sim.mutants.mutant import MutantTable

broken: Final = MutantTable(protocol=AUTORM, seeds=(0, 60))


@broken(Beamon, "_remove", "I4")
def forgets_the_dead(shipped: Any, self: Beamon, uuid: bytes, now: int, verdict: str) -> None:
    """AR-14: what was delivered of a node is forgotten when it leaves the table; one that was
    merely asleep is taken for new, and its messages are delivered again."""
    shipped(self, uuid, now, verdict)
    self.inbound.done.pop(uuid, None)


@broken(Inbound, "accept", "I1", "I4")
def delivers_old_messages(shipped: Any, self: Inbound, packet: Data, now: int) -> Any:
    """AR-14: only the last message of a sender is known again; an older one that comes late is
    delivered again, out of order."""
    done = self.done.get(packet.source, {})
    if done.get(self.scope(packet.group)) != packet.seq:
        self.done.pop(packet.source, None)
    return shipped(self, packet, now)


@broken(Inbound, "_answer", "I5", "I7")
def acknowledges_what_it_lacks(
    self: Inbound, me: bytes, source: bytes, seq: int, owed: OwedAck
) -> Acknowledgement:
    """AR-15: every answer says that all of a message is there; its sender lets it go, and nobody
    ever completes it."""
    return Acknowledgement(me, source, seq, owed.count - 1, ())


@broken(Inbound, "__init__", "I1")
def two_at_a_time(shipped: Any, self: Inbound, config: AutoRmConfig) -> None:
    """AR-7: each group has its own turn, whatever was agreed; messages of one sender overtake each
    other."""
    shipped(self, structs.replace(config, serial_scope=GROUP))


@broken(Beamon, "__init__", "I4")
def asks_someone_else(shipped: Any, self: Beamon, *given: Any, **named: Any) -> None:
    """AR-12, E 48: a message to someone goes to another when the first does not answer; two nodes
    work on what was meant for one."""
    shipped(self, *given, **named)
    self.config = structs.replace(self.config, someone_failover=True)


@broken(Beamon, "_next_round", "I5")
def gives_up_quietly(self: Beamon, transfer: Any, now: int) -> None:
    """AR-10: a target is given up at once, and stays in the table; the sender is told of a loss
    that nobody else sees."""
    for uuid in list(transfer.targets):
        self._lose(transfer, uuid, now)


@broken(Beamon, "_beat", "QUIET")
def never_quiet(shipped: Any, self: Beamon, now: int) -> None:
    """AR-15: acknowledgements are sent with every heartbeat; the network never falls silent."""
    shipped(self, now)
    for uuid in self.environment.nodes:
        self.send(EVERYONE, Acknowledgement(self.uuid, uuid, 1, 0, ()))


@broken(Beamon, "_deliver", "I4")
def delivers_twice(shipped: Any, self: Beamon, *given: Any) -> None:
    """AR-14: now and then a message is delivered twice; applications do the work twice."""
    shipped(self, *given)
    if given[1] % 7 == 0:
        shipped(self, *given)


@broken(Beamon, "_on_data", "I4")
def ignores_groups(shipped: Any, self: Beamon, packet: Data, source: int, now: int) -> None:
    """AR-13: what is not joined is delivered; an application is given what it has not asked for."""
    self.groups.setdefault(packet.group, 1)
    shipped(self, packet, source, now)


@broken(Beamon, "_deliver", "I4")
def mixes_up_parts(
    shipped: Any, self: Beamon, source: int, seq: int, data: bytes, *rest: Any
) -> None:
    """AR-14: the parts of a message are put together wrongly; an application is given what nobody
    sent."""
    shipped(self, source, seq, data[:500] + data[500:][::-1], *rest)


@broken(Beamon, "usage", "I6")
def hoards(shipped: Any, self: Beamon) -> dict[str, int]:
    """AR-4: the dead are kept; memory has no bound.

    I6: says that it keeps more than it may.
    """
    return {**shipped(self), "nodes": len(self.environment.nodes) * 10_000}


@broken(Beamon, "_on_heartbeat", "I7")
def deaf(shipped: Any, self: Beamon, packet: Any, node: Any, now: int) -> None:
    """AR-1: new nodes are not taken after a while; messages never reach them."""
    if self.hb_sent < 10**9 or node.reported:
        shipped(self, packet, node, now)
