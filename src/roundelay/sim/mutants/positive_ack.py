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
from roundelay.sim.mutants.mutant import MutantTable

broken: Final = MutantTable(protocol=POSITIVE_ACK, seeds=(0, 60))


@broken("I2")
class CountsOnTheFirstCopy(PositiveAckSite):
    """PA-3: no receiver is awaited; who lost the multicast never gets the message."""

    def _transmit(self, now: int) -> None:
        super()._transmit(now)
        for n in list(self.outstanding):
            self._complete(n, now)


@broken("I2")
class AnyAnswerWillDo(PositiveAckSite):
    """PA-3: the first acknowledgement ends the copies to everybody; who has not answered never gets
    the message."""

    def _on_ack(self, pdu: PaAck, source: int, now: int) -> None:
        message = self.outstanding.get(pdu.n)
        if message is not None:
            message.awaited = {source}
        super()._on_ack(pdu, source, now)


@broken("I4")
class DeliversEveryCopy(PositiveAckSite):
    """PA-2: what has been delivered is not known again; a copy to one whose acknowledgement was
    lost is delivered, too."""

    def _on_message(self, pdu: PaB, source: int) -> None:
        self.seen[source].mark = UNHEARD
        self.seen[source].above.clear()
        super()._on_message(pdu, source)


@broken("I1")
class Overtakes(PositiveAckSite):
    """PA-5: with `fifo` nothing is held back; messages of one source overtake each other."""

    def __init__(
        self, me: int, group: tuple[int, ...], config: PositiveAckConfig, *given: Any, **named: Any
    ) -> None:
        super().__init__(me, group, structs.replace(config, fifo=False), *given, **named)


@broken("I6")
class NoPipeline(PositiveAckSite):
    """PA-1: as much is under way as there is to send; neither source nor receiver has a bound of
    memory."""

    def _transmit(self, now: int) -> None:
        low, self.low = self.low, self.next_num
        super()._transmit(now)
        self.low = low
