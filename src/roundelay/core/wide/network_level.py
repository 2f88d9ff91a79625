"""A local network: LCR, LDA and LPR (PROTOCOLS §7.4, HG-5, HG-7, HG-8).

It is a GRSB group whose retransmitter gives no places: it sends what its users submit up to the
GCR, and broadcasts in its network what comes down from there, in that order.  So a position of a
network is the position of the whole.  What GRSB does for a group it does for a network: repair,
replay for who was off, take-over by a standby, which goes on where its predecessor was.
"""

from __future__ import annotations

from typing import Any

from msgspec import structs

from roundelay.core.engine import NEVER, Pdu
from roundelay.core.grsb.base import Host, Reign
from roundelay.core.grsb.pdu import LINE_A, Alive, Message, Submit
from roundelay.core.grsb.retransmitter import Admit, Retransmitter, Sequencer
from roundelay.core.grsb.site import GrsbSite
from roundelay.core.grsb.user import User
from roundelay.core.wide import pdu as p
from roundelay.core.wide.config import ALL_ACTIVE, WideConfig
from roundelay.core.wide.stable import Flooded
from roundelay.core.wide.topology import Atlas, Network
from roundelay.core.wide.uplink import Loop, Uplink, covers, post, submission


class LocalRetransmitter(Retransmitter):
    """LCR, reigning in its network or standing by."""

    host: LocalSite

    def __init__(self, host: Host, now: int, admit: Admit | None = None) -> None:
        super().__init__(host, now, admit)
        assert self.host.uplink is not None
        self.uplink = self.host.uplink
        self.network = self.host.network

    def begin(self, reign: Reign, sequencer: Sequencer, recorded: int, now: int) -> None:
        self.uplink.start(sequencer.next, now)
        super().begin(reign, sequencer, recorded, now)

    def stand_by(self) -> None:
        super().stand_by()
        self.uplink.stop()

    def alive(self, now: int) -> Alive:
        """Also whom the network waits for, if the global level does not go on or is not heard."""
        return structs.replace(super().alive(now), waits=self.uplink.waits)

    def on_submit(self, submit: Submit, sender: int, now: int) -> None:
        """HG-5: what is new goes up; what is known is answered, what waits is waited for."""
        before = self.queue.get(sender)
        super().on_submit(submit, sender, now)
        waiting = self.queue.get(sender)
        if waiting is not None and waiting is not before:
            self.uplink.submit(sender, waiting, now)

    def on_ls_up(self, up: p.LsUp, now: int) -> None:
        """HG-5, HG-14: the broadcaster hands up a message; one that has its place is answered."""
        if not self.reigning:
            return
        known = self.sequencer.counters.get(up.origin)
        if (known.inc, known.sseq) == (up.inc, up.sseq + 1) and known.gseq < self.acked:
            ack = p.LsAck(up.origin, up.inc, up.sseq, known.gseq, up.path[:-1])
            self.host.send(self.network.broadcaster, ack, p.SUBNET)
            return
        self.on_submit(submission(up), up.origin, now)

    def _answer(self, sender: int, submit: Submit, status: int, gseq: int) -> None:
        if sender in self.network.users:
            super()._answer(sender, submit, status, gseq)

    def _confirm(self, message: Message) -> None:
        """GR-5: to users of this network; nodes of the second kind see it come down."""
        if message.sender in self.network.users:
            super()._confirm(message)

    def _pump(self, now: int) -> None:
        """HG-7: broadcast in the network, in the order of the whole."""
        uplink, sequencer = self.uplink, self.sequencer
        while uplink.ready and len(self.outstanding) < self.config.window and self._room():
            # The place is the GCR's, the reign in which it is broadcast here is our own.
            message = structs.replace(uplink.take(now), epoch=self.epoch)
            sequencer.remember(message)
            self._placed(message)
            self._launch(message, now)

    def _placed(self, message: Message) -> None:
        """HG-6: a message of ours that comes down counts as its AckGCR."""
        waiting = self.queue.get(message.sender)
        if waiting is not None and covers(message, waiting):
            del self.queue[message.sender]
            self.uplink.pending.pop(message.sender, None)

    def pump(self, now: int) -> None:
        """Something may have come down."""
        if self.reigning:
            self._pump(now)


class LocalUser(User):
    """A node of the first kind."""

    def begins(self, start: int) -> None:
        """Nothing is ever taken back: a network that begins anew gets the same order again."""


class Liaison:
    """LDA of a network towards the GCR (HG-8)."""

    def __init__(self, host: LocalSite) -> None:
        self.host = host
        self.config = host.config
        self.gcr = host.atlas.global_roles.retransmitters[0]
        self.epoch = -1
        self.known = (0, 0)  # what the GCR has said that it knows
        self.said_marks = (0, 0)
        self.said_at = -NEVER
        self.due = NEVER

    def on_galive(self, galive: p.Galive, source: int, now: int) -> None:
        """The mark of the GCR: what it covers need not be said again."""
        if galive.epoch < self.epoch:
            return
        if galive.epoch > self.epoch or source != self.gcr:
            self.epoch, self.gcr = galive.epoch, source
        self.known = (galive.net_acked, galive.net_safe)
        marks = self._marks()
        if marks is not None and (marks != self.known or marks[0] < galive.acked):
            self._say(marks, now)  # also that we are there, though behind

    def _marks(self) -> tuple[int, int] | None:
        da = self.host.acknowledger
        return None if da is None or da.epoch < 0 else (da.acked, da.safe)

    def look(self, now: int) -> None:
        """HG-8: say so when more is acknowledged, or recorded; again until the GCR has heard it."""
        marks = self._marks()
        if marks is None or marks == self.known:
            self.due = NEVER
            return
        every = self.config.alive_ns
        if marks != self.said_marks:
            every = 0 if self.config.ack_mode == ALL_ACTIVE else self.config.trunk_ns
        self.due = self.said_at + every
        if self.due <= now:
            self._say(marks, now)

    def _say(self, marks: tuple[int, int], now: int) -> None:
        self.said_marks = marks
        self.said_at = now
        self.due = now + self.config.alive_ns
        host = self.host
        host.send(self.gcr, p.AckLcr(host.network.net, host.reign.cr, *marks), p.TRUNK)


class UplinkPacer:
    """LPR towards the broadcaster: one message every (D+2)T (HG-7, HG-9).

    Its queue is the archive from `next` on: the k-th message of it leaves (k-1)(D+2)T from now at
    the earliest, and stays in the archive for longer than k(D+2)T.
    """

    def __init__(self, host: LocalSite, position: int, now: int) -> None:
        self.host = host
        self.link_ns = host.config.link_ns
        self.net = host.network.net
        self.broadcaster = host.network.broadcaster
        self.gap_ns = (host.atlas.diameters[self.net] + 2) * self.link_ns
        self.next = position
        self.under_way: Message | None = None
        self.free_at = now  # (D+2)T after the last one
        self.due = NEVER

    def look(self, now: int) -> None:
        """HG-9: the next one, if there is one and the last flood has had its time."""
        recorder = self.host.recorder
        if self.under_way is not None or recorder is None or self.next >= recorder.mark:
            return
        if now < self.free_at:
            self.due = self.free_at
            return
        messages = recorder.read(self.next, NEVER, 1)
        if not messages:
            return
        self.under_way = messages[0]
        self.free_at = now + self.gap_ns
        self._give(now)

    def _give(self, now: int) -> None:
        assert self.under_way is not None
        self.due = now + 4 * self.link_ns
        self.host.send(self.broadcaster, p.LsDown(self.net, self.under_way), p.SUBNET)

    def on_response(self, response: p.Response, now: int) -> None:
        """The broadcaster has got rid of it."""
        message = self.under_way
        if message is None or response.gseq != message.gseq:
            return
        self.under_way = None
        self.next = max(message.end, response.next)
        self.host.persist(Flooded(self.next))
        self.due = NEVER
        self.look(now)

    def on_ask(self, ask: p.LsAsk) -> None:
        """HG-15: LPR has everything; what was not flooded yet comes by itself."""
        recorder = self.host.recorder
        if recorder is not None:
            for message in recorder.read(ask.since, self.next, self.host.config.rec_burst):
                data = p.LsData(self.net, message, ask.path[:-1])
                self.host.send(self.broadcaster, data, p.SUBNET)

    def on_timer(self, now: int) -> None:
        if self.due <= now:
            self.due = NEVER
            if self.under_way is not None:
                self._give(now)
            else:
                self.look(now)


class LocalSite(GrsbSite):
    """The roles of a network on one machine."""

    retransmitter_class = LocalRetransmitter
    user_class = LocalUser
    config: WideConfig
    retransmitter: LocalRetransmitter | None
    liaison: Liaison | None = None
    pacer: UplinkPacer | None = None

    def __init__(
        self, atlas: Atlas, network: Network, loop: Loop, uplink: Uplink | None, me: int,
        config: WideConfig, *args: Any, flooded: int = 0, **given: Any,
    ) -> None:  # fmt: skip
        self.atlas = atlas
        self.network = network
        self.loop = loop
        self.uplink = uplink
        roles = atlas.local_roles[network.net]
        # A network that has lost LCR and LDA begins anew from its recorders: the order is the
        # GCR's, and what they lack comes down again.
        config = structs.replace(config, cold_start=True)
        super().__init__(me, roles, config, *args, **given)
        if self.acknowledger is not None:
            self.liaison = Liaison(self)
        if network.broadcaster >= 0 and me == network.recorders[0]:
            self.pacer = UplinkPacer(self, flooded, self.heard_at)

    def send(self, dst: int, pdu: Pdu, line: int = LINE_A) -> None:
        if line in (p.SUBNET, p.TRUNK):
            post(self, self.loop, dst, pdu, line)
        else:
            super().send(dst, pdu, line)

    def say_marks(self, gcr: int) -> None:
        """LCR itself, when it is told again what it has: it is there."""
        cr = self.retransmitter
        if cr is not None and cr.reigning:
            ack = p.AckLcr(self.network.net, self.me, cr.acked, min(cr.recorded, cr.acked))
            self.send(gcr, ack, p.TRUNK)

    def look(self, now: int) -> None:
        """After whatever happened, and what the user has just submitted."""
        self._settle(now)
        if self.retransmitter is not None:
            self.retransmitter.pump(now)
        if self.liaison is not None:
            self.liaison.look(now)
        if self.pacer is not None:
            self.pacer.look(now)
        self._settle(now)

    def on_timer(self, now: int) -> None:
        super().on_timer(now)
        if self.liaison is not None and self.liaison.due <= now:
            self.liaison.look(now)
        if self.pacer is not None and self.pacer.due <= now:
            self.pacer.on_timer(now)

    def _settle(self, now: int) -> None:
        super()._settle(now)
        for part in (self.liaison, self.pacer):
            if part is not None:
                self.deadline = min(self.deadline, part.due)
