"""Mutants of positive acknowledgement."""

from __future__ import annotations

from typing import Any, Final

from msgspec import structs

from roundelay.core.families import POSITIVE_ACK
from roundelay.core.positive_ack import (
    UNHEARD,
    PaAck,
    PaB,
    PositiveAckConfig,
    PositiveAckSite,
)
from roundelay.sim.mutants.mutant import Mutant


class CountsOnTheFirstCopy(PositiveAckSite):
    __slots__ = ()

    def _transmit(self, now: int) -> None:
        super()._transmit(now)
        for n in list(self.outstanding):
            self._complete(n, now)


class AnyAnswerWillDo(PositiveAckSite):
    __slots__ = ()

    def _on_ack(self, pdu: PaAck, source: int, now: int) -> None:
        message = self.outstanding.get(pdu.n)
        if message is not None:
            message.awaited = {source}
        super()._on_ack(pdu, source, now)


class DeliversEveryCopy(PositiveAckSite):
    __slots__ = ()

    def _on_message(self, pdu: PaB, source: int) -> None:
        self.seen[source].mark = UNHEARD
        self.seen[source].above.clear()
        super()._on_message(pdu, source)


class DeliversAsItComes(PositiveAckSite):
    __slots__ = ()

    def __init__(
        self, me: int, group: tuple[int, ...], config: PositiveAckConfig, *given: Any, **named: Any
    ) -> None:
        super().__init__(me, group, structs.replace(config, fifo=False), *given, **named)


class NoPipeline(PositiveAckSite):
    __slots__ = ()

    def _transmit(self, now: int) -> None:
        low, self.low = self.low, self.next_num
        super()._transmit(now)
        self.low = low


POSITIVE_ACK_MUTANTS: Final = (
    Mutant(
        name="counts-on-the-first-copy",
        rule="PA-3: no receiver is awaited",
        wrong="who lost the multicast never gets the message",
        expects=("I2",),
        protocol=POSITIVE_ACK,
        site_class=CountsOnTheFirstCopy,
        seeds=(0, 60),
    ),
    Mutant(
        name="any-answer-will-do",
        rule="PA-3: the first acknowledgement ends the copies to everybody",
        wrong="who has not answered never gets the message",
        expects=("I2",),
        protocol=POSITIVE_ACK,
        site_class=AnyAnswerWillDo,
        seeds=(0, 60),
    ),
    Mutant(
        name="delivers-every-copy",
        rule="PA-2: what has been delivered is not known again",
        wrong="a copy to one whose acknowledgement was lost is delivered, too",
        expects=("I4",),
        protocol=POSITIVE_ACK,
        site_class=DeliversEveryCopy,
        seeds=(0, 60),
    ),
    Mutant(
        name="overtakes",
        rule="PA-5: with `fifo` nothing is held back",
        wrong="messages of one source overtake each other",
        expects=("I1",),
        protocol=POSITIVE_ACK,
        site_class=DeliversAsItComes,
        seeds=(0, 60),
    ),
    Mutant(
        name="no-pipeline",
        rule="PA-1: as much is under way as there is to send",
        wrong="neither source nor receiver has a bound of memory",
        expects=("I6",),
        protocol=POSITIVE_ACK,
        site_class=NoPipeline,
        seeds=(0, 60),
    ),
)
