"""Mutants of AutoRM."""

from __future__ import annotations

from typing import Any, Final

from msgspec import structs

from roundelay.core.autorm.beamon import Beamon
from roundelay.core.autorm.packets import Acknowledgement, Data
from roundelay.core.autorm.reassembly import Inbound, OwedAck
from roundelay.core.families import AUTORM
from roundelay.sim.mutants.mutant import MutantTable

broken: Final = MutantTable(protocol=AUTORM, seeds=(0, 60))

_accept = Inbound.accept


@broken("I4")
class ForgetsTheDead(Beamon):
    """AR-14: what was delivered of a node is forgotten when it leaves the table; one that was
    merely asleep is taken for new, and its messages are delivered again."""

    def _remove(self, uuid: bytes, now: int, verdict: str) -> None:
        super()._remove(uuid, now, verdict)
        self.inbound.done.pop(uuid, None)


@broken("I1", "I4", patches=(Inbound, "accept"))
def delivers_old_messages(self: Inbound, packet: Data, now: int) -> bytes | str | None:
    """AR-14: only the last message of a sender is known again; an older one that comes late is
    delivered again, out of order."""
    done = self.done.get(packet.source, {})
    if done.get(self.scope(packet.group)) != packet.seq:
        self.done.pop(packet.source, None)
    return _accept(self, packet, now)


@broken("I5", "I7", patches=(Inbound, "_answer"))
def acknowledges_what_it_lacks(
    self: Inbound, me: bytes, source: bytes, seq: int, owed: OwedAck
) -> Acknowledgement | None:
    """AR-15: every answer says that all of a message is there; its sender lets it go, and nobody
    ever completes it."""
    return Acknowledgement(me, source, seq, owed.count - 1, ())


@broken("I1")
class TwoAtATime(Beamon):
    """AR-7: each group has its own turn, whatever was agreed; messages of one sender overtake each
    other."""

    def __init__(self, me: int, group: Any, config: Any, *given: Any, **named: Any) -> None:
        config = structs.replace(config, serial_scope="group")
        super().__init__(me, group, config, *given, **named)


@broken("I4")
class AsksSomeoneElse(Beamon):
    """AR-12, E 48: a message to someone goes to another when the first does not answer; two nodes
    work on what was meant for one."""

    def __init__(self, me: int, group: Any, config: Any, *given: Any, **named: Any) -> None:
        config = structs.replace(config, someone_failover=True)
        super().__init__(me, group, config, *given, **named)


@broken("I5")
class GivesUpQuietly(Beamon):
    """AR-10: a target is given up at once, and stays in the table; the sender is told of a loss
    that nobody else sees."""

    def _next_round(self, transfer: Any, now: int) -> None:
        for uuid in list(transfer.targets):
            self._lose(transfer, uuid, now)


@broken("QUIET")
class NeverQuiet(Beamon):
    """AR-15: acknowledgements are sent with every heartbeat; the network never falls silent."""

    def _beat(self, now: int) -> None:
        super()._beat(now)
        for uuid in self.environment.nodes:
            self._send(Acknowledgement(self.uuid, uuid, 1, 0, ()))


@broken("I4")
class DeliversTwice(Beamon):
    """AR-14: now and then a message is delivered twice; applications do the work twice."""

    def _deliver(self, *given: Any) -> None:
        super()._deliver(*given)
        if given[1] % 7 == 0:
            super()._deliver(*given)


@broken("I4")
class IgnoresGroups(Beamon):
    """AR-13: what is not joined is delivered; an application is given what it has not asked for."""

    def _on_data(self, packet: Data, source: int, now: int) -> None:
        self.groups.setdefault(packet.group, 1)
        super()._on_data(packet, source, now)


@broken("I4")
class MixesUpParts(Beamon):
    """AR-14: the parts of a message are put together wrongly; an application is given what nobody
    sent."""

    def _deliver(self, source: int, seq: int, data: bytes, *rest: Any) -> None:
        super()._deliver(source, seq, data[:500] + data[500:][::-1], *rest)


@broken("I6")
class Hoards(Beamon):
    """AR-4: the dead are kept; memory has no bound.

    I6: says that it keeps more than it may.
    """

    def usage(self) -> dict[str, int]:
        return {**super().usage(), "nodes": len(self.environment.nodes) * 10_000}


@broken("I7")
class Deaf(Beamon):
    """AR-1: new nodes are not taken after a while; messages never reach them."""

    def _on_heartbeat(self, packet: Any, node: Any, now: int) -> None:
        if self.hb_sent < 10**9 or node.reported:
            super()._on_heartbeat(packet, node, now)
