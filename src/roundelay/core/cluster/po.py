"""PO: every member receives the PDUs of one source in sending order (Nakamura & Takizawa).

Deviations from the paper
- A PDU that is merely early is kept, not dropped, and what another source's vector shows to be
  missing is waited for before it is asked for (PO-5): on several channels it may just be late.
- A PDU is its sender's acknowledgement of itself (TR-2); without that 2n PDUs cannot be reached.
- NULLs, timers and STATs (TR-1, TR-4, TR-7): with nobody sending data the paper stands still.
- A poll is answered also if its sender lacks nothing, where it has heard nothing of us since its
  last one: TR-7 alone has no answer for it, and TR-15 would take us for dead.
"""

from __future__ import annotations

from roundelay.core.cluster.pdu import Dt
from roundelay.core.cluster.repair import Repair
from roundelay.core.engine import ACCEPTED, ACKNOWLEDGED, PREACKNOWLEDGED


class PoSite(Repair):
    """One member of a PO cluster."""

    __slots__ = ()

    # -- three phases ----------------------------------------------------------------------

    def enter(self, pdu: Dt, now: int) -> None:
        """PO-4: to the tail of RPL.  NULLs queue too: pre-acknowledged, they feed PAL."""
        self.rrl[pdu.src].append(pdu)
        if pdu.bundle.sizes:
            self.waiting_delivery += 1
            self.reached(pdu, ACCEPTED, now)

    def advance(self, now: int) -> None:
        """PO-6, PO-7, for all sources, until nothing moves."""
        al, pal = self.al, self.pal
        for j, rrl in enumerate(self.rrl):
            if not rrl:
                continue
            level = min(al[j])
            while rrl and rrl[0].seq < level:
                pdu = rrl.popleft()
                self.note_preacknowledged(pdu)
                if pdu.bundle.sizes:
                    self.prl[j].append(pdu)
                    self.reached(pdu, PREACKNOWLEDGED, now)
        for j, prl in enumerate(self.prl):
            if prl:
                level = min(pal[j])
                while prl and prl[0].seq < level:
                    pdu = prl.popleft()
                    self.waiting_delivery -= 1
                    self.reached(pdu, ACKNOWLEDGED, now)

    def reached(self, pdu: Dt, stage: str, now: int) -> None:
        """`pdu` has reached a stage; hand it over at those that were asked for."""
        if stage in (self.config.deliver_at, self.config.early):
            self.hand_over(pdu, stage)

    def opened(self, floor: tuple[int, ...], now: int) -> None:
        """TR-14: the cluster is open; everybody starts at its first number."""
