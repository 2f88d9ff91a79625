"""The global level: GCR, GDA and GPR (PROTOCOLS §7.3, HG-1 … HG-4).

It is a GRSB group whose retransmitter takes submissions from LCRs, signed by their networks, and
tells the networks of every message that is stable: the network it came from by AckGCR, the others
by GBCAST.  Acknowledger, recorders, council and take-over are GRSB's own; only that what they say
to each other goes from site to site, for there is no line between networks that all could hear.

A network that does not answer is *inactive*: nobody waits for it, and nothing is sent to it but
signs of life.  When it is back it asks the GPR for what it lacks (`uplink`), and by its AckLCR it
is active again.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from msgspec import Struct

from roundelay.core.engine import NEVER, Pdu
from roundelay.core.grsb.base import Host
from roundelay.core.grsb.pdu import (
    ABORT,
    GAP,
    LINE_A,
    Message,
    Recovered,
    ReplayEnd,
    ReplayReq,
    Stale,
    Submit,
)
from roundelay.core.grsb.recorder import Recorder
from roundelay.core.grsb.retransmitter import Admit, Retransmitter
from roundelay.core.grsb.site import GrsbSite
from roundelay.core.notices import NetworkActive, NetworkInactive
from roundelay.core.wide.config import ALL_ACTIVE, WideConfig
from roundelay.core.wide.pdu import TRUNK, AckGcr, AckLcr, Galive, Gbcast, Up
from roundelay.core.wide.stable import Freed
from roundelay.core.wide.topology import Atlas
from roundelay.core.wide.uplink import Loop, post, submission


class Branch(Struct):
    """A network as the GCR sees it."""

    net: int
    lcr: int
    active: bool = True
    acked: int = 0  # its acknowledger has everything below
    safe: int = 0  # its recorders have
    heard: bool = False  # since the last round
    silent: int = 0  # rounds


class GlobalRetransmitter(Retransmitter):
    """GCR, reigning or standing by."""

    host: GlobalSite
    config: WideConfig

    def __init__(self, host: Host, now: int, admit: Admit | None = None) -> None:
        super().__init__(host, now, admit)
        self.atlas = self.host.atlas
        self.branches = {
            net: Branch(net, network.retransmitters[0])
            for net, network in self.atlas.networks.items()
        }
        self.held: deque[tuple[int, Message]] = deque()  # all-active: AckGCR to come, with its net
        self.round_due = NEVER

    # -- submissions -----------------------------------------------------------------------

    def on_up(self, up: Up, source: int, now: int) -> None:
        """HG-1: a submission with the signature of its network; numbers known are answered."""
        branch = self.branches.get(up.net)
        if branch is None or self.atlas.origins.get(up.origin) != up.net:
            self.host.drop("not signed by its network")
            return
        if source not in self.atlas.networks[up.net].retransmitters:
            self.host.drop("not an LCR of that network")
            return
        if not self.reigning:
            reign = self.host.reign
            if reign.cr != self.host.me:
                self.host.send(source, Stale(reign.epoch, reign.cr))
            return
        branch.lcr = source
        branch.heard = True
        self.on_submit(submission(up), up.origin, now)

    def _answer(self, sender: int, submit: Submit, status: int, gseq: int) -> None:
        """HG-1: AckGCR again; what it was has to be fetched."""
        branch = self.branches[self.atlas.origins[sender]]
        if gseq < self._mark_for(branch):
            ack = AckGcr(
                branch.net, sender, submit.inc, submit.sseq, gseq, self.epoch, 0,
                self._mark_for(branch),
            )  # fmt: skip
            self.host.send(branch.lcr, ack)

    # -- stable messages -------------------------------------------------------------------

    def _confirm(self, message: Message) -> None:
        """HG-1, HG-2: GDA has it.  AckGCR to the network it is from, GBCAST to the others."""
        home = self.atlas.origins.get(message.sender, 0)
        if message.mtype == ABORT:
            home = 0  # the GCR's own record: nobody has it yet
        for branch in self.branches.values():
            if branch.net == home:
                if self.config.ack_mode == ALL_ACTIVE:
                    self.held.append((home, message))
                else:
                    self._ack(branch, message)
            elif branch.active:
                self._tell(branch, message)
        if self.held:
            self._release()

    def _ack(self, branch: Branch, message: Message) -> None:
        ack = AckGcr(
            branch.net, message.sender, message.inc, message.sseq, message.gseq, message.epoch,
            message.time, max(message.end, self._mark_for(branch)),
        )  # fmt: skip
        self.host.send(branch.lcr, ack)

    def _tell(self, branch: Branch, message: Message) -> None:
        home = self.atlas.origins.get(message.sender, 0)
        self.host.send(branch.lcr, Gbcast(home, message, self._mark_for(branch)))

    def _mark_for(self, branch: Branch) -> int:
        """How far a network may go: not beyond its own messages that wait for all the others."""
        for home, message in self.held:
            if home == branch.net:
                return min(message.gseq, self.acked)
        return self.acked

    def _release(self) -> None:
        """HG-2, all-active: what every other active network has acknowledged."""
        while self.held:
            home, message = self.held[0]
            for branch in self.branches.values():
                if branch.net != home and branch.active and branch.acked < message.end:
                    return
            self.held.popleft()
            self._ack(self.branches[home], message)

    # -- networks --------------------------------------------------------------------------

    def on_ack_lcr(self, ack: AckLcr, source: int, now: int) -> None:
        """HG-3, HG-4: how far a network is; it is active if it can follow from here."""
        branch = self.branches.get(ack.net)
        if branch is None or self.atlas.net_of(source) != ack.net:
            self.host.drop("not of that network")
            return
        if not self.reigning:
            return
        if ack.acked > self.acked:
            self.host.drop("acknowledged what was never sent")
            return
        branch.heard = True
        if ack.lcr in self.atlas.networks[ack.net].retransmitters:
            branch.lcr = ack.lcr
        branch.acked = max(branch.acked, ack.acked)
        branch.safe = max(branch.safe, ack.safe)
        if not branch.active and ack.acked >= self.sequencer.history.first:
            branch.active = True
            branch.silent = 0
            self.host.notify(NetworkActive(branch.net))
        if self.held:
            self._release()
            self._pump(now)

    def _room(self) -> bool:
        """Also for what waits for other networks."""
        return super()._room() and len(self.held) < self.config.history

    @property
    def everywhere(self) -> int:
        """HG-3: all networks have recorded everything below; also the one it came from."""
        return min(branch.safe for branch in self.branches.values())

    def _round(self, now: int) -> None:
        """HG-3: repeat to active networks that lag and are silent; R such rounds: inactive."""
        behind = False
        for branch in self.branches.values():
            lags = branch.active and branch.acked < self.acked
            behind = behind or lags
            if branch.heard or not lags:
                branch.heard, branch.silent = False, 0
                continue
            branch.silent += 1
            if branch.silent > self.config.attempts:
                branch.active = False
                self.host.notify(NetworkInactive(branch.net))
                continue
            message = self.sequencer.history.messages.get(branch.acked)
            if message is not None and message.end <= self._mark_for(branch):
                self._tell(branch, message)
        self.round_due = now + self.config.trunk_ns if behind else NEVER
        if self.held:
            self._release()
            self._pump(now)

    # -- reigning --------------------------------------------------------------------------

    def stand_by(self) -> None:
        super().stand_by()
        self.round_due = NEVER
        self.held.clear()
        for branch in self.branches.values():
            branch.active, branch.silent = True, 0
            branch.acked = branch.safe = 0

    @property
    def deadline(self) -> int:
        due = min(super().deadline, self.round_due)
        return min(due, self.said_at + self.config.alive_ns) if self.reigning else due

    def on_timer(self, now: int) -> bool:
        if self.reigning and self.round_due <= now:
            self._round(now)
        stuck = super().on_timer(now)
        if self.reigning and self.said_at + self.config.alive_ns <= now:
            self._say_alive(now, both=False)  # though there are broadcasts: others wait for it
        return stuck

    def _say_alive(self, now: int, both: bool) -> None:
        super()._say_alive(now, both)
        everywhere = self.everywhere
        waits = self.host.waited_by_da
        for site in self.atlas.audience:
            branch = self.branches.get(self.atlas.net_of(site))
            if branch is None:
                galive = Galive(self.epoch, self.acked, 0, 0, everywhere, waits)
            else:
                mark = self._mark_for(branch)
                galive = Galive(self.epoch, mark, branch.acked, branch.safe, everywhere, waits)
            self.host.send(site, galive)

    def _pump(self, now: int) -> None:
        super()._pump(now)
        if self.round_due >= NEVER and self.reigning:
            self.round_due = now + self.config.trunk_ns


class GlobalRecorder(Recorder):
    """GPR: keeps everything until all networks have it, and then as long as it likes (HG-3)."""

    config: WideConfig
    freed = 0

    def play(self, request: ReplayReq, user: int) -> None:
        """HG-4: what was let go is not here; nobody who kept what it had asks for that."""
        if request.since < self.freed:
            gap = ReplayEnd(request.request, request.since, self.freed, GAP)
            self.host.send(user, gap)
        else:
            super().play(request, user)

    def on_galive(self, galive: Galive) -> None:
        """HG-3: what all networks have recorded may go."""
        upto = galive.everywhere
        if self.config.gpr_free and upto > self.freed:
            self.freed = upto
            self.host.persist(Freed(upto))
            for at in [at for at in self.recent if at < upto]:
                del self.recent[at]
            if upto > self.mark:  # we lack what nobody needs any more, and other GPRs let go
                self.listener.skip(upto)

    def _refused(self, recovered: Recovered, source: int, now: int) -> None:
        """What nobody has was let go: the next sign of life says so."""
        if self.config.gpr_free:
            self.asked += 1
        else:
            super()._refused(recovered, source, now)


class GlobalSite(GrsbSite):
    """The roles of the global level on one machine."""

    retransmitter_class = GlobalRetransmitter
    recorder_class = GlobalRecorder
    user_class = None  # its users are the LCRs
    retransmitter: GlobalRetransmitter | None
    recorder: GlobalRecorder | None

    def __init__(self, atlas: Atlas, loop: Loop, me: int, *args: Any, **given: Any) -> None:
        self.atlas = atlas
        self.loop = loop
        super().__init__(me, atlas.global_roles, *args, **given)

    def send(self, dst: int, pdu: Pdu, line: int = LINE_A) -> None:
        """Between networks everything goes from site to site."""
        post(self, self.loop, dst, pdu, TRUNK)

    def multicast(self, pdu: Pdu, line: int) -> None:
        """To all who have a role on this level."""
        for site in self.roles.council:
            self.send(site, pdu)
