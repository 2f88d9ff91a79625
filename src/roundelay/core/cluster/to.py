"""TO in key mode: PO on a multi-channel medium, released in one order that everybody computes.

The key of a PDU is the sum of its acknowledgement vector, then its source.  A PDU sent after its
sender accepted p has a larger key than p.  When p is pre-acknowledged every member has sent
something after p, so every PDU with a smaller key has been accepted here already: delivering the
smallest key once it is acknowledged is the same order at every member.  No PDU more than PO, no
reset, and losses are repaired selectively.
"""

from __future__ import annotations

from heapq import heappop, heappush

from roundelay.core.cluster.flush import Tails, key
from roundelay.core.cluster.pdu import TO_KINDS, Dt
from roundelay.core.cluster.po import PoSite
from roundelay.core.engine import ACCEPTED, ACKNOWLEDGED
from roundelay.core.errors import InvariantBroken


class ToSite(PoSite):
    """One member of a TO cluster."""

    __slots__ = ("acknowledged", "keys")

    KINDS = TO_KINDS

    def reset_state(self) -> None:
        super().reset_state()
        # (sum of acknowledgements, source, number) of data accepted and not delivered
        self.keys: list[tuple[int, int, int]] = []
        self.acknowledged: dict[tuple[int, int], Dt] = {}

    def reached(self, pdu: Dt, stage: str, now: int) -> None:
        """Release in the order of keys; an earlier stage is handed over as PO would."""
        if self.config.deliver_at != ACKNOWLEDGED:
            super().reached(pdu, stage, now)
            return
        if stage == self.config.early:
            self.hand_over(pdu, stage)
        if stage == ACCEPTED:
            heappush(self.keys, key(pdu))
        elif stage == ACKNOWLEDGED:
            self.acknowledged[(pdu.src, pdu.seq)] = pdu
            self.waiting_delivery += 1  # it leaves the receipt log, but not yet this member
            self.release(now)

    def in_logs(self) -> list[Dt]:
        return [*self.acknowledged.values(), *super().in_logs()]

    def waiting(self) -> list[Dt]:
        return [*self.acknowledged.values(), *super().waiting()]

    @property
    def ordered(self) -> bool:
        return self.config.deliver_at == ACKNOWLEDGED

    def empty_logs(self, tails: Tails) -> None:
        super().empty_logs(tails)
        self.acknowledged.clear()
        self.keys.clear()

    def release(self, now: int) -> None:
        while self.keys:
            _, src, seq = self.keys[0]
            pdu = self.acknowledged.pop((src, seq), None)
            if pdu is None:
                return
            heappop(self.keys)
            self.waiting_delivery -= 1
            self.hand_over_next(pdu)

    def check_waiting(self, preacknowledged: int, received: int) -> None:
        """Everything accepted has its key, and the smallest is not acknowledged yet."""
        super().check_waiting(preacknowledged + len(self.acknowledged), received)
        if self.ordered and len(self.keys) != self.waiting_delivery:
            raise InvariantBroken(f"{len(self.keys)} keys, {self.waiting_delivery} data PDUs")
        if self.keys and self.keys[0][1:] in self.acknowledged:
            raise InvariantBroken(f"{self.keys[0]} could have been delivered")
