"""Mutants of positive acknowledgement."""

from __future__ import annotations

from typing import Any, Final

from msgspec import structs

from roundelay.core.families import POSITIVE_ACK
from roundelay.core.positive_ack import UNHEARD, PaAck, PaB, PositiveAckSite
from roundelay.sim.mutants.mutant import MutantTable

broken: Final = MutantTable(protocol=POSITIVE_ACK, seeds=(0, 60))


@broken(PositiveAckSite, "_transmit", "I2")
def counts_on_the_first_copy(shipped: Any, self: PositiveAckSite, now: int) -> None:
    """PA-3: no receiver is awaited; who lost the multicast never gets the message."""
    shipped(self, now)
    for n in list(self.outstanding):
        self._complete(n, now)


@broken(PositiveAckSite, "_on_ack", "I2")
def any_answer_will_do(
    shipped: Any, self: PositiveAckSite, pdu: PaAck, source: int, now: int
) -> None:
    """PA-3: the first acknowledgement ends the copies to everybody; who has not answered never gets
    the message."""
    message = self.outstanding.get(pdu.n)
    if message is not None:
        message.awaited = {source}
    shipped(self, pdu, source, now)


@broken(PositiveAckSite, "_on_message", "I4")
def delivers_every_copy(shipped: Any, self: PositiveAckSite, pdu: PaB, source: int) -> None:
    """PA-2: what has been delivered is not known again; a copy to one whose acknowledgement was
    lost is delivered, too."""
    self.seen[source].mark = UNHEARD
    self.seen[source].above.clear()
    shipped(self, pdu, source)


@broken(PositiveAckSite, "__init__", "I1")
def overtakes(shipped: Any, self: PositiveAckSite, *given: Any, **named: Any) -> None:
    """PA-5: with `fifo` nothing is held back; messages of one source overtake each other."""
    shipped(self, *given, **named)
    self.config = structs.replace(self.config, fifo=False)


@broken(PositiveAckSite, "_transmit", "I6")
def no_pipeline(shipped: Any, self: PositiveAckSite, now: int) -> None:
    """PA-1: as much is under way as there is to send; neither source nor receiver has a bound of
    memory."""
    low, self.low = self.low, self.next_num
    shipped(self, now)
    self.low = low
