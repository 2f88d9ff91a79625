"""Sending: data within the window, acknowledgements when they are owed.

With nobody sending data nothing would ever be acknowledged, so members owe each other NULL PDUs
(TR-1, TR-4).  A member owes one when it has accepted data (first obligation, O1), and one more
when it has heard acknowledgements from all destinations (second obligation, O2).  Data pays for
both on its way; NULLs create no obligations, so a cluster without data falls silent.
"""

from __future__ import annotations

from abc import abstractmethod
from itertools import takewhile

from roundelay.core.bundle import MESSAGES_MAX, NOTHING, Bundle, fitting
from roundelay.core.cluster.config import EAGER
from roundelay.core.cluster.pdu import Dt
from roundelay.core.cluster.state import Carried, ClusterState
from roundelay.core.engine import NEVER
from roundelay.core.errors import ClusterBroken, PayloadTooLarge, QueueFull, UsageError


class Sending(ClusterState):
    """The transmitting half of a member, and what it owes."""

    __slots__ = ()

    # -- data ------------------------------------------------------------------------------

    def submit(self, bundle: Bundle, now: int) -> None:
        """Broadcast `bundle` to everybody."""
        self.queue_up(bundle, self.everyone_mask, now)

    def queue_up(self, bundle: Bundle, dst: int, now: int) -> None:
        if self.stopped:
            raise ClusterBroken("a member has failed: reopen the cluster without it")
        limit = self.config.max_payload
        if len(bundle.data) > limit:
            raise PayloadTooLarge(
                f"a message of {len(bundle.data)} bytes is above max_payload = {limit}: split it"
            )
        if not 0 < len(bundle) <= MESSAGES_MAX:
            raise UsageError(f"a bundle of {len(bundle)} messages: submit 1 to {MESSAGES_MAX}")
        if len(self.queue) >= self.config.own_limit:
            raise QueueFull(
                f"{self.config.own_limit} bundles wait to be sent (own_limit): "
                "submit again when some have been delivered"
            )
        self.queue.append((bundle, dst))
        self.pump(now)

    def pump(self, now: int) -> None:
        """PO-1, SPO-S2, TR-10: send data while the window is open.

        Flow control holds data back, never NULLs: those are what reopens the window.
        """
        while self.queue and self.rst < 0 and not self.stopped:
            if len(self.unaccepted) >= self.limit():
                break
            bundle, dst = self.gather()
            pdu = self.transmit(bundle, dst, now)
            self.unaccepted[pdu.seq] = dst & ~(1 << self.index)
            self.count_accepted()
        self.watch(now)

    def limit(self) -> int:
        """Data PDUs that may be under way: W, less where somebody is short of buffers."""
        share = min(self.bufs) // (self.config.share * self.n * self.n)
        return max(1, min(self.config.window, share))

    def gather(self) -> tuple[Bundle, int]:
        """The next PDU's content: one submitted bundle, or all that fit when bundling."""
        queue, config = self.queue, self.config
        dst = queue[0][1]
        alike = (bundle for bundle, _ in takewhile(lambda item: item[1] == dst, queue))
        count = fitting(alike, config.max_payload) if config.bundle else 1
        return Bundle.merged([queue.popleft()[0] for _ in range(count)]), dst

    def count_accepted(self) -> None:
        """TR-10, TR-11: which own PDUs have reached all their destinations, by AL or by STATs."""
        mine = self.al[self.index]
        known = self.known
        for seq, dst in list(self.unaccepted.items()):
            if all(mine[k] > seq for k in self.everyone if dst >> k & 1):
                del self.unaccepted[seq]
        for seq, pdu in list(self.sl.items()):
            dst = self.destinations(pdu) & ~(1 << self.index)
            if any(mine[k] <= seq and known[k] <= seq for k in self.everyone if dst >> k & 1):
                if not self.selective:
                    break  # everything goes to everybody: a later one cannot have arrived
                continue
            del self.sl[seq]
            self.resent.pop(seq, None)

    selective = False
    """Whether PDUs of one source may have different destinations."""

    def make(self, bundle: Bundle | None, dst: int, probe: bool) -> Dt:
        """PO-2, TO-1: our number, what we expect of everybody, and the room we have."""
        if bundle is None:
            null: Dt = self.KINDS.null(*self.stamp(), NOTHING, probe)
            return null
        return self.KINDS.data(*self.stamp(), bundle)

    def stamp(self) -> tuple[int, int, int, tuple[int, ...], int]:
        """What every sequenced PDU says of its sender: `epoch`, `src`, `seq`, `ack`, `buf`."""
        return self.epoch, self.index, self.seq, tuple(self.treq), self.free()

    @abstractmethod
    def take_own(self, pdu: Dt, now: int) -> None:
        """A member receives its own PDUs: at once, or from the channel."""

    def transmit(self, bundle: Bundle | None, dst: int, now: int, probe: bool = False) -> Dt:
        """PO-2, SPO-S1, TO-1: stamp a PDU with our number and acknowledgements, and send it."""
        pdu = self.make(bundle, dst, probe)
        self.seq += 1
        self.sl[pdu.seq] = pdu
        self.send_all(pdu)
        reached = dst | 1 << self.index
        if self.debts:
            self.debts = {debt: need for debt, need in self.debts.items() if need & ~reached}
            if not self.debts:
                self.ack_due = NEVER
        self.take_own(pdu, now)
        return pdu

    # -- obligations -----------------------------------------------------------------------

    def note_obligations(self, pdu: Dt, now: int) -> None:
        """TR-4: what accepting `pdu` makes us owe."""
        src, mine = pdu.src, 1 << self.index
        self.note_carrier(pdu, now)
        if not pdu.bundle.sizes:
            return  # NULLs create no obligations
        dst = self.destinations(pdu)
        if not (dst & mine or src == self.index):
            return
        need = dst | 1 << src
        missing = dst & ~(1 << src)
        if not self.selective:
            missing &= ~mine  # TR-3: what we have we know of, without having said so
        if src != self.index:
            self.owe((src, pdu.seq, 1), need, now)
        if missing:
            self.carried[(src, pdu.seq)] = Carried(need, missing, {})
        elif src != self.index and self.config.policy != EAGER:
            self.owe((src, pdu.seq, 2), need, now)

    def note_carrier(self, pdu: Dt, now: int) -> None:
        """`pdu` may be the first acknowledgement heard from its sender for some data PDUs."""
        k = pdu.src
        bit = 1 << k
        reached = self.destinations(pdu) | bit
        complete: list[tuple[int, int]] = []
        for key, carried in self.carried.items():
            src, seq = key
            if not carried.missing & bit or pdu.ack[src] <= seq or carried.need & ~reached:
                continue
            carried.missing &= ~bit
            carried.firsts[k] = pdu.seq
            if self.config.policy == EAGER:
                if k != self.index:
                    self.owed_now.append(carried.need)
            elif not carried.missing:
                self.owe((src, seq, 2), carried.need, now)
            if not carried.missing:
                complete.append(key)
        for key in complete:
            self.carriers_complete(key)

    def carriers_complete(self, key: tuple[int, int]) -> None:
        """Every destination of that PDU has been heard to acknowledge it."""
        del self.carried[key]

    def owe(self, debt: tuple[int, int, int], need: int, now: int) -> None:
        """TR-4: pay within t_ack; TR-5: the eager policy pays for the first obligation at once."""
        if self.config.policy == EAGER:
            self.owed_now.append(need)
            return
        self.debts[debt] = need
        if self.ack_due >= NEVER:
            self.ack_due = self.arm(now + self.config.ack_ns)

    def pay_now(self, now: int) -> None:
        """TR-5: one NULL for each acknowledgement the eager policy owes."""
        while self.owed_now:
            self.acknowledge(self.owed_now.pop(0), now)

    def on_ack_timer(self, now: int) -> None:
        """TR-4, SPO-O: no data came along to pay with: a NULL to all who must know."""
        self.ack_due = NEVER
        need = 0
        for mask in self.debts.values():
            need |= mask
        self.acknowledge(need, now)

    def acknowledge(self, need: int, now: int) -> None:
        """TR-1: a NULL to those members."""
        self.transmit(None, need & ~(1 << self.index), now)

    def watch(self, now: int) -> None:
        """TR-7: while something waits for others, ask them every t_stat where they stand."""
        if self.stat_due >= NEVER and self.busy():
            self.waited = self.pending()
            self.stat_due = self.arm(now + self.config.stat_ns)
