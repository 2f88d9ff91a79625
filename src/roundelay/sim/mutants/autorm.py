"""Mutants of AutoRM."""

from __future__ import annotations

from typing import Any, Final

from msgspec import structs

from roundelay.core.autorm.beamon import Beamon
from roundelay.core.autorm.packets import Acknowledgement, Data
from roundelay.core.autorm.reassembly import Inbound, Owed
from roundelay.core.families import AUTORM
from roundelay.sim.mutants.mutant import Mutant


class ForgetsTheDead(Beamon):
    """AR-14 without memory of those who left the table."""

    def _remove(self, uuid: bytes, now: int, verdict: str) -> None:
        super()._remove(uuid, now, verdict)
        self.inbound.done.pop(uuid, None)


class Careless(Inbound):
    __slots__ = ()

    def accept(self, packet: Data, now: int) -> bytes | str | None:
        """Only the last message is known again."""
        done = self.done.get(packet.source, {})
        if done.get(self.scope(packet.group)) != packet.seq:
            self.done.pop(packet.source, None)
        return super().accept(packet, now)


class DeliversOldMessages(Beamon):
    """AR-14: seq ≠ done instead of seq > done."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.inbound = Careless(self.config)


class Optimist(Inbound):
    __slots__ = ()

    def _answer(self, me: bytes, source: bytes, seq: int, owed: Owed) -> Acknowledgement | None:
        return Acknowledgement(me, source, seq, owed.count - 1, ())


class AcknowledgesWhatItLacks(Beamon):
    """AR-15: always complete."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.inbound = Optimist(self.config)


class TwoAtATime(Beamon):
    """AR-7 not observed: each group has its own turn, whatever was agreed."""

    def __init__(self, me: int, group: Any, config: Any, *given: Any, **named: Any) -> None:
        config = structs.replace(config, serial_scope="group")
        super().__init__(me, group, config, *given, **named)


class AsksSomeoneElse(Beamon):
    """E 48 without being asked to."""

    def __init__(self, me: int, group: Any, config: Any, *given: Any, **named: Any) -> None:
        config = structs.replace(config, someone_failover=True)
        super().__init__(me, group, config, *given, **named)


class GivesUpQuietly(Beamon):
    """AR-10 without leaving the table."""

    def _next_round(self, transfer: Any, now: int) -> None:
        for uuid in list(transfer.targets):
            self._lose(transfer, uuid, now)


class NeverQuiet(Beamon):
    def _beat(self, now: int) -> None:
        super()._beat(now)
        for uuid in self.environment.nodes:
            self._send(Acknowledgement(self.uuid, uuid, 1, 0, ()))


class DeliversTwice(Beamon):
    def _deliver(self, *given: Any) -> None:
        super()._deliver(*given)
        if given[1] % 7 == 0:
            super()._deliver(*given)


class ForgetsGroups(Beamon):
    """AR-13: delivers what is not joined."""

    def _on_data(self, packet: Data, source: int, now: int) -> None:
        self.groups.setdefault(packet.group, 1)
        super()._on_data(packet, source, now)


class MixesUpParts(Beamon):
    def _deliver(self, source: int, seq: int, data: bytes, *rest: Any) -> None:
        super()._deliver(source, seq, data[:500] + data[500:][::-1], *rest)


class Hoarder(Beamon):
    """I6: says that it keeps more than it may."""

    def usage(self) -> dict[str, int]:
        return {**super().usage(), "nodes": len(self.environment.nodes) * 10_000}


class Deaf(Beamon):
    """AR-1: does not take new nodes after a while."""

    def _on_heartbeat(self, packet: Any, node: Any, now: int) -> None:
        if self.hb_sent < 10**9 or node.reported:
            super()._on_heartbeat(packet, node, now)


AUTORM_MUTANTS: Final = (
    Mutant(
        name="forgets-the-dead",
        rule="AR-14: what was delivered of a node is forgotten when it leaves the table",
        wrong="one that was merely asleep is taken for new, and its messages are delivered again",
        expects=("I4",),
        protocol=AUTORM,
        site_class=ForgetsTheDead,
        seeds=(0, 60),
    ),
    Mutant(
        name="delivers-old-messages",
        rule="AR-14: only the last message of a sender is known again",
        wrong="an older one that comes late is delivered again, out of order",
        expects=("I1", "I4"),
        protocol=AUTORM,
        site_class=DeliversOldMessages,
        seeds=(0, 60),
    ),
    Mutant(
        name="acknowledges-what-it-lacks",
        rule="AR-15: every answer says that all of a message is there",
        wrong="its sender lets it go, and nobody ever completes it",
        expects=("I5", "I7"),
        protocol=AUTORM,
        site_class=AcknowledgesWhatItLacks,
        seeds=(0, 60),
    ),
    Mutant(
        name="two-at-a-time",
        rule="AR-7: each group has its own turn, whatever was agreed",
        wrong="messages of one sender overtake each other",
        expects=("I1",),
        protocol=AUTORM,
        site_class=TwoAtATime,
        seeds=(0, 60),
    ),
    Mutant(
        name="asks-someone-else",
        rule="AR-12, E 48: a message to someone goes to another when the first does not answer",
        wrong="two nodes work on what was meant for one",
        expects=("I4",),
        protocol=AUTORM,
        site_class=AsksSomeoneElse,
        seeds=(0, 60),
    ),
    Mutant(
        name="gives-up-quietly",
        rule="AR-10: a target is given up at once, and stays in the table",
        wrong="the sender is told of a loss that nobody else sees",
        expects=("I5",),
        protocol=AUTORM,
        site_class=GivesUpQuietly,
        seeds=(0, 60),
    ),
    Mutant(
        name="never-quiet",
        rule="AR-15: acknowledgements are sent with every heartbeat",
        wrong="the network never falls silent",
        expects=("QUIET",),
        protocol=AUTORM,
        site_class=NeverQuiet,
        seeds=(0, 60),
    ),
    Mutant(
        name="delivers-twice",
        rule="AR-14: now and then a message is delivered twice",
        wrong="applications do the work twice",
        expects=("I4",),
        protocol=AUTORM,
        site_class=DeliversTwice,
        seeds=(0, 60),
    ),
    Mutant(
        name="ignores-groups",
        rule="AR-13: what is not joined is delivered",
        wrong="an application is given what it has not asked for",
        expects=("I4",),
        protocol=AUTORM,
        site_class=ForgetsGroups,
        seeds=(0, 60),
    ),
    Mutant(
        name="mixes-up-parts",
        rule="AR-14: the parts of a message are put together wrongly",
        wrong="an application is given what nobody sent",
        expects=("I4",),
        protocol=AUTORM,
        site_class=MixesUpParts,
        seeds=(0, 60),
    ),
    Mutant(
        name="hoards",
        rule="AR-4: the dead are kept",
        wrong="memory has no bound",
        expects=("I6",),
        protocol=AUTORM,
        site_class=Hoarder,
        seeds=(0, 60),
    ),
    Mutant(
        name="deaf",
        rule="AR-1: new nodes are not taken after a while",
        wrong="messages never reach them",
        expects=("I7",),
        protocol=AUTORM,
        site_class=Deaf,
        seeds=(0, 60),
    ),
)
