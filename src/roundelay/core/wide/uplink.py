"""An LCR on the global level: what it sends up and what comes down (HG-4, HG-5, HG-6).

It listens to the GCR, and what it misses, for a moment or for weeks, it fetches from the GPR.  It
has a bounded number of messages at hand for its network; whoever is slow there slows nobody else.
"""

from __future__ import annotations

from collections import deque
from random import Random
from typing import Any

from msgspec import Struct

from roundelay.core.engine import NEVER, Pdu
from roundelay.core.grsb.base import Host
from roundelay.core.grsb.config import Roles
from roundelay.core.grsb.listener import Listener
from roundelay.core.grsb.pdu import ABORT, LINE_A, Message, ReplayData, ReplayEnd, Stale, Submit
from roundelay.core.grsb.reader import RangeReader
from roundelay.core.notices import GroupBroken, TrunkState
from roundelay.core.selection import EVERYTHING
from roundelay.core.wide.config import WideConfig
from roundelay.core.wide.pdu import AckGcr, Galive, Gbcast, LsUp, Up
from roundelay.core.wide.topology import Atlas

Loop = deque[tuple[Pdu, int]]
"""What the parts of one site say to each other, and on which line."""


def post(host: Host, loop: Loop, dst: int, pdu: Pdu, line: int) -> None:
    """Send `pdu` to a site, or to another part of our own."""
    if dst == host.me:
        loop.append((pdu, line))
    else:
        host.out.sends.append((dst, pdu, line))


class PartHost(Host):
    """Where the effects of a part go that speaks on one line alone."""

    config: WideConfig
    user: Any = None  # of a node: as a site has it

    def __init__(
        self, me: int, roles: Roles, config: WideConfig, rng: Random, loop: Loop, line: int
    ) -> None:
        super().__init__(me, roles, config, rng, 0)
        self.loop = loop
        self.line = line

    def send(self, dst: int, pdu: Pdu, line: int = LINE_A) -> None:
        post(self, self.loop, dst, pdu, self.line)


def submission(up: Up | LsUp) -> Submit:
    """What a network has sent up, as its origin would submit it to a flat group."""
    return Submit(up.inc, up.sseq, up.conference, up.mtype, up.gid, up.kind, b"", up.bundle)


def covers(message: Message, submit: Submit) -> bool:
    """Whether a submission of its sender is over when `message` has its place."""
    if message.mtype == ABORT:  # the record that goes before the first message of a start
        return submit.inc < message.inc
    return (submit.inc, submit.sseq) <= (message.inc, message.sseq)


class Pending(Struct):
    """A submission that has no place yet."""

    submit: Submit
    due: int


class Uplink:
    """LCR_`net`, while it reigns in its network."""

    def __init__(self, host: PartHost, atlas: Atlas, now: int) -> None:
        self.host = host
        self.config = config = host.config
        self.net = atlas.net_of(host.me)
        self.running = False
        self.epoch = -1  # the last one heard of
        self.gcr = atlas.global_roles.retransmitters[0]
        self.heard_at = now
        self.up = True  # whether the global level is heard
        self.stopped_by: tuple[int, ...] = ()  # sites without which it gives no places
        self.listener = Listener(0, 0, config.heard_max)
        self.reader = RangeReader(host, 0, EVERYTHING, self._replayed)
        self.ready: deque[Message] = deque()
        self.pending: dict[int, Pending] = {}
        self.stuck = False  # nobody has what comes next
        self.stuck_until = -NEVER  # ask again then
        self.refused_at = -1  # where no GPR could go on

    def start(self, position: int, now: int) -> None:
        """LCR reigns, and its network has everything below `position`."""
        self.stop()
        self.running = True
        self.stuck = False
        self.refused_at = -1
        stable = max(position, self.listener.stable)
        self.listener = Listener(0, position, self.config.heard_max)
        self.listener.mark(stable, stable)
        self._release(now)

    def stop(self) -> None:
        """Another one reigns in this network."""
        self.running = False
        self.reader.stop()
        self.ready.clear()
        self.pending.clear()

    # -- up --------------------------------------------------------------------------------

    def submit(self, origin: int, submit: Submit, now: int) -> None:
        """HG-5: with the signature of the network, repeated until it has a place."""
        self.pending[origin] = Pending(submit, now + self.config.trunk_ns)
        self._send_up(origin, submit)

    def _send_up(self, origin: int, submit: Submit) -> None:
        up = Up(
            self.net, origin, submit.inc, submit.sseq, submit.conference, submit.mtype, submit.gid,
            submit.kind, submit.bundle,
        )  # fmt: skip
        self.host.send(self.gcr, up)

    def on_ack_gcr(self, ack: AckGcr, now: int) -> None:
        """HG-6: what we sent up has its place, and comes back without its contents."""
        if not self.running or ack.net != self.net:
            return
        pending = self.pending.get(ack.origin)
        if pending is not None:
            submit = pending.submit
            if (submit.inc, submit.sseq) == (ack.inc, ack.sseq):
                del self.pending[ack.origin]
                if ack.time:
                    self.listener.repaired(
                        Message(
                            ack.epoch, ack.gseq, ack.time, ack.origin, ack.inc, ack.sseq,
                            submit.conference, submit.mtype, submit.gid, submit.kind, submit.bundle,
                        )
                    )  # fmt: skip
        self._marks(ack.acked, now)

    # -- down ------------------------------------------------------------------------------

    def on_gbcast(self, gbcast: Gbcast, now: int) -> bool:
        """HG-6: whether it was new."""
        if not self.running:
            return True
        new = gbcast.message.gseq >= self.listener.next
        self.listener.hear(gbcast.message, gbcast.acked)
        self._release(now)
        return new

    def on_galive(self, galive: Galive, source: int, now: int) -> None:
        """HG-6: a gap after the last message shows here."""
        if galive.epoch >= self.epoch:
            self.epoch = galive.epoch
            if source != self.gcr:
                self.gcr = source
                for pending in self.pending.values():
                    pending.due = now
        self.heard_at = now
        self.stopped_by = galive.waits
        if not self.up:
            self.up = True
            self.host.notify(TrunkState("up"))
        self._marks(galive.acked, now)

    @property
    def waits(self) -> tuple[int, ...]:
        """The sites without which nothing comes down."""
        if not self.up:
            return (self.gcr,)
        if self.stuck or self.reader.unanswered:
            return self.host.roles.recorders
        return self.stopped_by

    def on_stale(self, stale: Stale) -> None:
        if stale.epoch >= self.epoch and stale.cr in self.host.roles.retransmitters:
            self.gcr = stale.cr

    def _marks(self, acked: int, now: int) -> None:
        self.listener.mark(acked, acked)
        if self.running:
            self._release(now)

    def _release(self, now: int) -> None:
        """In the order of positions; HG-4: what is missing comes from the GPR."""
        listener, room = self.listener, self.config.ready_max
        while len(self.ready) < room:
            message = next(listener.ready(), None)
            if message is None:
                break
            self.ready.append(message)
            self.stuck = False  # whoever gave it: GPRs, or the GCR from its history
        # Not for every message that is taken: a request brings several.
        enough = room if self.reader.reading else room // 2 + 1
        if listener.missing and len(self.ready) < enough and now >= self.stuck_until:
            until = listener.gaps(1)[0][1]
            self.reader.read(listener.next, until, now)
        elif self.reader.reading:
            self.reader.stop()

    def _replayed(self, message: Message | None, end: int, now: int) -> None:
        at = self.listener.next
        if message is None or message.gseq != at:
            # Nothing may be left out: the positions of a network are those of the whole.  What
            # the GPRs have let go the GCR may still have, and repeats to who lags (HG-3): stuck
            # is who is refused, and has been given nothing since the last time.
            if now >= self.stuck_until:
                self.stuck_until = now + self.config.alive_timeout_ns
                self.stuck = self.refused_at == at
                self.refused_at = at
                if self.stuck:
                    text = "no GPR has what this network lacks: restore its journal"
                    self.host.notify(GroupBroken(text))
        else:
            self.stuck = False
            self.ready.append(message)
            self.listener.skip(end)
        self._release(now)

    def take(self, now: int) -> Message:
        """The next message for the network."""
        message = self.ready.popleft()
        self._release(now)
        return message

    def on_replay(self, pdu: ReplayData | ReplayEnd, source: int, now: int) -> None:
        if self.running and source in self.host.roles.recorders:
            self.reader.on_replay(pdu, source, now)

    # -- timers ----------------------------------------------------------------------------

    @property
    def deadline(self) -> int:
        if not self.running:
            return NEVER
        retry = self.stuck_until if self.stuck_until > 0 else NEVER
        silent = self.heard_at + self.config.alive_timeout_ns if self.up else NEVER
        dues = (pending.due for pending in self.pending.values())
        return min(self.reader.repairs.due, retry, silent, *dues)

    def on_timer(self, now: int) -> None:
        if not self.running:
            return
        for origin, pending in self.pending.items():
            if pending.due <= now:
                pending.due = now + self.config.trunk_ns
                self._send_up(origin, pending.submit)
        if self.up and self.heard_at + self.config.alive_timeout_ns <= now:
            self.up = False
            self.host.notify(TrunkState("down"))
        self.reader.on_timer(now)
        if 0 < self.stuck_until <= now:
            self.stuck_until = -NEVER
            self._release(now)
