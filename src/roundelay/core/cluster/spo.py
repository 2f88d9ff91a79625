"""SPO: each PDU names its destinations; a member gets all and only what is meant for it, in
sending order per source (Nakamura, Terauchi & Takizawa).

Deviations from the paper
- TREQ moves to the number *after* the accepted PDU, and never backwards (SPO-A1, SPO-A2).
- What the mere receipt of a PDU proves about numbers that were not for us is used at once
  (SPO-A3): otherwise two blocked PDUs can wait for each other for ever.
- A PDU that is not for us is never kept and never makes us ask for anything: whatever we need of
  its acknowledgements comes again on PDUs that are for us.  The design keeps those too.
- Acknowledgement goes by carriers (SPO-K): the printed PAL rule counts PDUs that did not go to
  the destinations concerned.
- The window counts the destinations of outstanding PDUs only (SPO-S2): over all members it would
  never open again if somebody is never addressed.
"""

from __future__ import annotations

from collections.abc import Iterable

from roundelay.core.bundle import NOTHING, Bundle
from roundelay.core.cluster.pdu import SPO_KINDS, Dt, SpoDt, SpoNull
from roundelay.core.cluster.po import PoSite
from roundelay.core.cluster.state import ISS
from roundelay.core.engine import ACCEPTED, ACKNOWLEDGED, PREACKNOWLEDGED
from roundelay.core.errors import ConfigError


class SpoSite(PoSite):
    """One member of an SPO cluster."""

    __slots__ = ()

    KINDS = SPO_KINDS
    selective = True

    def reset_state(self) -> None:
        super().reset_state()
        self.preq = [ISS] * self.n  # PREQ_j, apart from TREQ_j

    def submit(self, bundle: Bundle, now: int, to: Iterable[int] | None = None) -> None:
        """Send `bundle` to the members `to`, or to everybody."""
        if to is None:
            super().submit(bundle, now)
            return
        destinations = tuple(to)
        if not destinations or not set(destinations) <= set(self.group):
            raise ConfigError("to", destinations, f"one or more of the members {self.group}")
        self.queue_up(bundle, sum({1 << self.ranks[member] for member in destinations}), now)

    def destinations(self, pdu: Dt) -> int:
        assert isinstance(pdu, SpoDt)
        return pdu.dst

    def place(self, pdu: Dt, k: int) -> int:
        assert isinstance(pdu, SpoDt)
        return pdu.pseq[k]

    def make(self, bundle: Bundle | None, dst: int, probe: bool) -> Dt:
        """SPO-S1: for members that are not addressed the partial number stays where it is."""
        kind = SpoNull if bundle is None else SpoDt
        pdu = kind(*self.stamp(), bundle or NOTHING, dst, tuple(self.pseq))
        for k in self.everyone:
            if dst >> k & 1:
                self.pseq[k] += 1
        return pdu

    # -- receipt ---------------------------------------------------------------------------

    def note_position(self, pdu: Dt) -> None:
        """SPO-A3: nothing between what we expect and `pdu` was for us: skip it."""
        self.skip(pdu.src, self.place(pdu, self.index), pdu.seq)

    def still_unsure(self, j: int, gap: list[int], now: int) -> None:
        """SPO-L2: t_wait has passed, and only j can tell whether it was for us: poll j."""
        gap[2] = now + self.config.wait_ns
        self.send_to(j, self.stat(poll=True))

    def enter(self, pdu: Dt, now: int) -> None:
        """SPO-A2: data for us, and our own, queue; NULLs do not (TR-1)."""
        if not pdu.bundle.sizes:
            return
        mine = self.destinations(pdu) >> self.index & 1
        if mine or pdu.src == self.index:
            self.rrl[pdu.src].append(pdu)
            self.waiting_delivery += 1
            if mine:
                self.reached(pdu, ACCEPTED, now)

    def advance(self, now: int) -> None:
        """SPO-P, SPO-K, head of line first: the order is per source."""
        for j in self.everyone:
            rrl, prl = self.rrl[j], self.prl[j]
            while rrl and self.accepted_by_all(rrl[0]):
                pdu = rrl.popleft()
                prl.append(pdu)
                if self.destinations(pdu) >> self.index & 1:
                    self.reached(pdu, PREACKNOWLEDGED, now)
            while prl and self.known_by_all(prl[0]):
                pdu = prl.popleft()
                self.carried.pop((j, pdu.seq), None)
                self.waiting_delivery -= 1
                if self.destinations(pdu) >> self.index & 1:
                    self.reached(pdu, ACKNOWLEDGED, now)

    def accepted_by_all(self, pdu: Dt) -> bool:
        """SPO-P: every destination is known to have accepted it."""
        al, dst = self.al[pdu.src], self.destinations(pdu)
        return all(al[k] > pdu.seq for k in self.everyone if dst >> k & 1)

    def known_by_all(self, pdu: Dt) -> bool:
        """SPO-K: every destination and the source have accepted every destination's carrier."""
        carried = self.carried.get((pdu.src, pdu.seq))
        if carried is None:
            return True  # nobody but the source itself had to be heard
        if carried.missing:
            return False
        al = self.al
        return all(
            al[k][m] > first
            for k, first in carried.firsts.items()
            for m in self.everyone
            if carried.need >> m & 1
        )

    def carriers_complete(self, key: tuple[int, int]) -> None:
        """Kept until SPO-K has used them."""
