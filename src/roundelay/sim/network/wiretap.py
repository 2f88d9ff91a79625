"""A tap on the wire of a cluster: what no correct member sends.

An application cannot see these rules broken, but whoever listens to the channel can:

======  ========================================================================================
TR-6    a PDU sent again is the same PDU, and in channel mode none is sent again in its epoch
I8      a member's numbers follow each other; its acknowledgements never fall, and never exceed
        what was sent; it asks only for PDUs that were meant for it
SPO-T7  a member that has sent nothing, and for whom nothing was meant, asks for no repair: it
        neither requests nor polls
======  ========================================================================================

Members stand under their ranks in PDUs, and an epoch has one roster, so nothing needs translating.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from roundelay.core.cluster.pdu import Dt, Retx, SpoDt, SpoRetx, SpoStat, Stat
from roundelay.core.cluster.state import ISS
from roundelay.core.engine import Pdu

Complain = Callable[[str, str, int], None]
"""(rule, detail, site)."""


@dataclass(slots=True, eq=False)
class MemberTraffic:
    """What one member has sent in one epoch."""

    next: int
    ack: tuple[int, ...]
    sent: dict[int, Dt] = field(default_factory=dict)
    meant: dict[int, int] = field(default_factory=dict)  # member → PDUs that were meant for it


class WireTap:
    """An observer of sends; `repeats`: whether PDUs may be sent again within an epoch."""

    def __init__(self, complain: Complain, repeats: bool = True) -> None:
        self.complain = complain
        self.repeats = repeats
        self.senders: dict[tuple[int, int], MemberTraffic] = {}  # by epoch and rank
        self.asked: dict[int, int] = {}  # requests, by site
        self.concerned: dict[int, int] = {}  # epoch → members that sent or were meant (SPO)

    def sent(self, time: int, site: int, dst: int, pdu: Pdu) -> None:
        if isinstance(pdu, Dt):
            self.sequenced(site, pdu)
        elif isinstance(pdu, Stat):
            self.bounded(site, pdu.epoch, pdu.treq)
            if isinstance(pdu, SpoStat) and pdu.poll:
                self.asks(site, pdu.epoch, pdu.src)
        elif isinstance(pdu, Retx):
            self.requested(site, pdu)
            if isinstance(pdu, SpoRetx):
                self.asks(site, pdu.epoch, pdu.by)

    def sequenced(self, site: int, pdu: Dt) -> None:
        sender = self.senders.get((pdu.epoch, pdu.src))
        if sender is None:
            sender = self.senders[pdu.epoch, pdu.src] = MemberTraffic(pdu.seq, pdu.ack)
        if pdu.seq < sender.next:
            if sender.sent.get(pdu.seq) != pdu:
                self.complain("TR-6", f"number {pdu.seq} is not what it was: {pdu}", site)
            elif not self.repeats:
                self.complain("TR-6", f"number {pdu.seq} is sent again in one epoch", site)
            return
        if pdu.seq > sender.next:
            self.complain("I8", f"number {pdu.seq} comes where {sender.next} is due", site)
        if any(new < old for new, old in zip(pdu.ack, sender.ack, strict=True)):
            detail = f"acknowledgements fall from {sender.ack} to {pdu.ack}"
            self.complain("I8", detail, site)
        self.bounded(site, pdu.epoch, pdu.ack)
        sender.next = pdu.seq + 1
        sender.ack = pdu.ack
        sender.sent[pdu.seq] = pdu
        if isinstance(pdu, SpoDt):
            concerned = self.concerned.get(pdu.epoch, 0) | pdu.dst | 1 << pdu.src
            self.concerned[pdu.epoch] = concerned
            for k in range(len(pdu.pseq)):
                if pdu.dst >> k & 1:
                    sender.meant[k] = sender.meant.get(k, 0) + 1

    def bounded(self, site: int, epoch: int, ack: tuple[int, ...]) -> None:
        """Nobody has received what was never sent."""
        for k, number in enumerate(ack):
            sender = self.senders.get((epoch, k))
            if sender is not None and number > sender.next:
                detail = f"acknowledges up to {number} of rank {k}, which is at {sender.next}"
                self.complain("I8", detail, site)

    def asks(self, site: int, epoch: int, rank: int) -> None:
        if not self.concerned.get(epoch, 0) >> rank & 1:
            self.complain("SPO-T7", "asks for repair, though nothing was meant for it", site)

    def requested(self, site: int, pdu: Retx) -> None:
        """Every number asked for must exist and have been meant for the one who asks."""
        self.asked[site] = self.asked.get(site, 0) + 1
        sender: Any = self.senders.get((pdu.epoch, pdu.src))
        if sender is None:
            top = ISS - 1
        elif sender.meant:
            top = ISS - 1 + sender.meant.get(pdu.by, 0)
        else:  # everything is meant for everybody
            top = sender.next - 1
        if not ISS <= pdu.lo <= pdu.hi <= top:
            detail = f"asks rank {pdu.src} for {pdu.lo} to {pdu.hi}, of which {top} were for it"
            self.complain("I8", detail, site)
