"""A site of the hierarchy: roles of the global level, of its network, and behind a broadcaster.

Theory of operation (Hoque, Amin, Hossain §7–§9).  A user sends its message to the LCR of its
network, which signs it (SrcNetID) and sends it up to the GCR.  The GCR gives it its place in the
one order of all networks and tells every network of it; each LCR broadcasts in its network what
comes down, in that order, as the retransmitter of a GRSB group does.  Its LDA acknowledges, its
LPR records for those who are off, and gives one message after the other to LB, which floods the
subnet behind it.  A network that is cut off is not waited for: when it is back its LCR fetches what
it missed from the GPR.

Global level and networks are GRSB groups (`global_level`, `network_level`), joined at the LCRs
(`uplink`); behind a broadcaster is `subnet`.  The shape is that of `core.grsb.site`, with two more
lines: TRUNK between networks, where nothing is multicast, and SUBNET between neighbours in a
subnet.  A multicast on the other lines reaches the sites attached to the sender's network.

Deviations from PROTOCOLS §7, whose rules had not been executed before:

- HG-1: a number is known by its origin, (origin, start, oseq), not by (net, up_seq): an LCR that
  starts again, or its standby, does not know what was sent up before, and what a user repeats would
  get a second place.  `up_seq` is gone.
- HG-1: GBCAST leaves when the GDA has the message, not before.  So whatever an LCR hears is stable,
  and a take-over of the GCR takes nothing back from any network.
- HG-2/HG-3: SrcNetID is carried by UP, GBCAST and LS_DOWN; elsewhere it is that of the sender.
- HG-3: the GPR waits for *all* networks, also for the one a message came from.  That one may have
  lost AckGCR and, with its LCR, the message; the GPR would have let go the only copy.
- HG-3/HG-8: AckLCR says how far LDA has acknowledged and how far LPR has *recorded*; the GPR lets
  go by the second.  LDA holds it in memory only.
- HG-3: a GPR that is behind skips what all networks have recorded: other GPRs have let it go, and
  it would report a loss that is none.
- HG-3: GBCAST is repeated only to networks that are silent, one message a round, and a network
  answers what it is told twice: gaps are found by who has them (HG-6).
- HG-5: what waits for its place waits by origin, one each, and all go up at once; one at a time for
  the whole network would cost a round trip of the trunk per message.
- HG-6: an LCR fetches only as much as its network can take (`ready_max`).
- HG-7: a network whose LCR and LDA have both lost their state begins anew from its recorders, and
  its users take nothing back: the order is the GCR's, so what comes down again is the same.
- HG-9: LPR goes on when (D+2)T are over *and* LB has answered; LB answers when its links have.
  A broadcaster that dies between the two would leave its subnet without a message.
- HG-10: after a crash, LB floods again what LPR gives it again; nodes know it by its position.
- HG-12: a neighbour that is suspect is tried once per flood, not R times: LPR would wait for it.
- HG-13: a message that climbs carries its path, so it never goes in circles; repetitions may take
  any link.  With the last flood's link alone a node whose parent has died would never get through
  while nothing comes down.
- HG-14: a node that missed its own message coming down would repeat it for ever: what has its place
  already is answered (LS_ACK), back along the path.
- HG-15: without repair a gap is given up when no neighbour tries any more, open units with it.
  With repair, a question that a neighbour cannot answer goes on, up to the recorder; and nodes ask
  now and then even without a gap, for the last message may be the one that was missed.
"""

from __future__ import annotations

from collections import deque
from random import Random
from typing import Any, Final

from roundelay.core.engine import NEVER, NO_POSITION, UNKNOWN_LIFE, Effects, Pdu
from roundelay.core.errors import UsageError
from roundelay.core.grsb import checks
from roundelay.core.grsb.base import Host
from roundelay.core.grsb.checks import countable, message_fits, submission_fits, well_formed
from roundelay.core.grsb.pdu import LINE_A, LINE_B, WAITS_MAX, ReplayData, ReplayEnd, Stale
from roundelay.core.grsb.site import NO_USER, RoleEngine
from roundelay.core.grsb.stable import Archive
from roundelay.core.grsb.user import Submitter
from roundelay.core.selection import EVERYTHING, Selection
from roundelay.core.wide import pdu as p
from roundelay.core.wide.config import WideConfig
from roundelay.core.wide.global_level import GlobalSite
from roundelay.core.wide.invariants import check_wide_site
from roundelay.core.wide.network_level import LocalSite
from roundelay.core.wide.stable import GLOBAL, LOCAL, NODE, Kept, WideStable
from roundelay.core.wide.subnet import FLOODS_MAX, PATH_MAX, WideNode
from roundelay.core.wide.topology import Atlas
from roundelay.core.wide.uplink import Loop, PartHost, Uplink


class WideSite(RoleEngine):
    """Site `me`; see `GrsbSite` for `inc`, `stable`, `wiped`, `position`, `selection`, `base_us`.

    `archive` is where its LPR, `globe_archive` where its GPR reads.
    """

    def __init__(
        self,
        me: int,
        atlas: Atlas,
        config: WideConfig,
        rng: Random,
        now: int = 0,
        *,
        inc: int = 0,
        stable: WideStable | None = None,
        archive: Archive | None = None,
        globe_archive: Archive | None = None,
        wiped: bool = False,
        position: int | None = None,
        selection: Selection = EVERYTHING,
        base_us: int = 0,
    ) -> None:
        super().__init__(me, tuple(range(atlas.sites)))
        self.atlas = atlas
        self.config = config
        self.loop: Loop = deque()  # to other levels of this site
        self.network = atlas.network_of(me)
        self.globe: GlobalSite | None = None
        self.local: LocalSite | None = None
        self.uplink: Uplink | None = None
        self.node: WideNode | None = None
        known = stable if stable is not None else WideStable()
        network = self.network
        options: dict[str, Any] = {"inc": inc, "wiped": wiped, "base_us": base_us}
        if me in atlas.global_roles.council:
            kept = None if stable is None else known.globe
            given = options | {"stable": kept, "archive": globe_archive}
            self.globe = GlobalSite(atlas, self.loop, me, config, rng, now, **given)
            if self.globe.recorder is not None:
                self.globe.recorder.freed = known.globe.freed
        if network is not None and me in network.attached:
            if me in network.retransmitters:
                host = PartHost(me, atlas.global_roles, config, rng, self.loop, p.TRUNK)
                self.uplink = Uplink(host, atlas, now)
            options |= {"stable": None if stable is None else known.local, "archive": archive}
            options |= {"position": position, "selection": selection, "flooded": known.flooded}
            self.local = LocalSite(
                atlas, network, self.loop, self.uplink, me, config, rng, now, **options
            )
        if network is not None and me in atlas.links:
            handled = known.handled.at(0 if me == network.broadcaster else position)
            host = PartHost(me, atlas.local_roles[network.net], config, rng, self.loop, p.SUBNET)
            self.node = WideNode(host, atlas, self._lcr, now, inc, handled, selection)
        parts: tuple[tuple[int, Host | None], ...] = (
            (GLOBAL, self.globe),
            (LOCAL, self.local),
            (LOCAL, None if self.uplink is None else self.uplink.host),
            (NODE, None if self.node is None else self.node.host),
        )
        self.parts = [(level, part) for level, part in parts if part is not None]
        engines = (self.globe, self.local, self.uplink, self.node)
        self.engines = [engine for engine in engines if engine is not None]
        self._settle(now)

    def _lcr(self) -> int:
        assert self.local is not None
        return self.local.reign.cr

    # -- verbs -----------------------------------------------------------------------------

    @property
    def submitter(self) -> Submitter:
        if self.local is not None and self.local.user is not None:
            return self.local.user
        if self.node is not None and not self.node.flood.root:
            return self.node
        raise UsageError(NO_USER.format(self.me))

    def receive(
        self, pdu: Pdu, source: int, now: int, line: int = LINE_A, life: int = UNKNOWN_LIFE
    ) -> None:
        if not (0 <= source < self.atlas.sites and well_formed(pdu, CHECKS)):
            self.drop("malformed")
            return
        if not countable(pdu):
            self.drop("impossible epoch or position")
            return
        self._dispatch(pdu, source, now, line)
        self._settle(now)

    def on_timer(self, now: int) -> None:
        """Do whatever is due at `now`."""
        for engine in self.engines:
            if engine.deadline <= now:
                engine.on_timer(now)
        self._settle(now)

    def take(self, spare: Effects | None = None) -> Effects:
        self._end_batch()
        return super().take(spare)

    def _end_batch(self) -> None:
        """What the levels wanted done is on its way."""
        for _, part in self.parts:
            part.batch += 1

    def _gather(self) -> None:
        """Put together what the levels want done."""
        out = self.out
        for level, part in self.parts:
            effects = part.out
            if effects:
                part.out = Effects()
                out.persists += [Kept(level, record) for record in effects.persists]
                out.sends += effects.sends
                out.deliveries += effects.deliveries
                out.notices += effects.notices
        if not out:
            self._end_batch()  # nothing is left that could be cut short

    def _settle(self, now: int) -> None:
        """What the levels of this site said to each other, then the deadline."""
        while True:
            if self.local is not None:
                self.local.look(now)
            if not self.loop:
                break
            pdu, line = self.loop.popleft()
            self._dispatch(pdu, self.me, now, line)
        self.deadline = min((engine.deadline for engine in self.engines), default=NEVER)
        self._gather()

    # -- what comes in ---------------------------------------------------------------------

    def _dispatch(self, pdu: Pdu, source: int, now: int, line: int) -> None:
        if line == p.TRUNK:
            self._on_trunk(pdu, source, now)
        elif line == p.SUBNET:
            self._on_subnet(pdu, source, now)
        elif line in (LINE_A, LINE_B):
            if self.local is not None and self.atlas.net_of(source) == self.local.network.net:
                self.local.receive(pdu, source, now, line)
            else:
                self.drop("of another network")
        else:
            self.drop("line")

    def _on_trunk(self, pdu: Pdu, source: int, now: int) -> None:
        globe, local, uplink = self.globe, self.local, self.uplink
        from_gcr = source in self.atlas.global_roles.retransmitters
        if isinstance(pdu, p.Gbcast | p.AckGcr | p.Galive) and not from_gcr:
            self.drop("not a retransmitter")
        elif isinstance(pdu, p.Up | p.AckLcr):
            if globe is not None and globe.retransmitter is not None:
                if isinstance(pdu, p.Up):
                    globe.retransmitter.on_up(pdu, source, now)
                else:
                    globe.retransmitter.on_ack_lcr(pdu, source, now)
                globe._settle(now)
        elif isinstance(pdu, p.Gbcast):
            if uplink is not None and not uplink.on_gbcast(pdu, now) and local is not None:
                local.say_marks(source)
        elif isinstance(pdu, p.AckGcr):
            if uplink is not None:
                uplink.on_ack_gcr(pdu, now)
        elif isinstance(pdu, p.Galive):
            if uplink is not None:
                uplink.on_galive(pdu, source, now)
            if local is not None and local.liaison is not None:
                local.liaison.on_galive(pdu, source, now)
            if globe is not None and globe.recorder is not None:
                globe.recorder.on_galive(pdu)
        elif isinstance(pdu, ReplayData | ReplayEnd):
            if uplink is not None:
                uplink.on_replay(pdu, source, now)
        else:
            if isinstance(pdu, Stale) and uplink is not None:
                uplink.on_stale(pdu)
            if globe is not None:
                globe.receive(pdu, source, now, LINE_A)

    def _on_subnet(self, pdu: Pdu, source: int, now: int) -> None:
        local, network, node = self.local, self.network, self.node
        if network is None or self.atlas.net_of(source) != network.net:
            self.drop("of another network")
            return
        if local is not None and source == network.broadcaster:
            lcr, pacer = local.retransmitter, local.pacer
            if isinstance(pdu, p.LsUp) and lcr is not None and pdu.path[-1] == source:
                if pdu.origin in network.nodes:
                    lcr.on_ls_up(pdu, now)
                return
            if isinstance(pdu, p.Response) and pacer is not None:
                pacer.on_response(pdu, now)
                return
            if isinstance(pdu, p.LsAsk) and pacer is not None:
                pacer.on_ask(pdu)
                return
        if node is not None:
            node.receive(pdu, source, now)
        else:
            self.drop("not behind the broadcaster")

    # -- what is kept ----------------------------------------------------------------------

    @property
    def position(self) -> int:
        if self.local is not None and self.local.user is not None:
            return self.local.position
        return NO_POSITION if self.node is None else self.node.upto

    def check_invariants(self) -> None:
        check_wide_site(self)

    def bounds(self) -> dict[str, tuple[int, int]]:
        config, globe, uplink, node = self.config, self.globe, self.uplink, self.node
        bounds: dict[str, tuple[int, int]] = {}
        if globe is not None:
            bounds |= {f"global_{name}": bound for name, bound in globe.bounds().items()}
            if globe.retransmitter is not None:
                held = len(globe.retransmitter.held)
                bounds["ack_gcr"] = (held, config.history + config.window)
        if self.local is not None:
            bounds |= self.local.bounds()
        if uplink is not None:
            bounds["ready"] = (len(uplink.ready), config.ready_max + config.credit)
            bounds["trunk_heard"] = (len(uplink.listener.heard), config.heard_max + 1)
            bounds["pending"] = (len(uplink.pending), self.atlas.sites)
        if node is not None:
            flood = node.flood
            bounds["ls_held"] = (len(flood.held), config.ls_held + 1)
            bounds["ls_keep"] = (len(flood.kept), config.ls_keep)
            bounds["ls_waiting"] = (len(flood.waiting), len(flood.links) * FLOODS_MAX)
            bounds["ls_submissions"] = (len(node.queue), config.own_limit)
        return bounds


CHECKS: Final[checks.Checks] = {
    **checks.CHECKS,
    p.Up: submission_fits,
    p.AckGcr: lambda pdu: 0 <= pdu.gseq < pdu.acked,
    p.Gbcast: lambda pdu: message_fits(pdu.message),
    p.AckLcr: lambda pdu: 0 <= pdu.safe <= pdu.acked,
    p.Galive: lambda pdu: (
        pdu.net_safe <= pdu.net_acked and pdu.everywhere >= 0 and len(pdu.waits) <= WAITS_MAX
    ),
    p.LsUp: lambda pdu: submission_fits(pdu) and 0 < len(pdu.path) <= PATH_MAX + 1,
    p.LsDown: lambda pdu: message_fits(pdu.message),
    p.LsAsk: lambda pdu: 0 < len(pdu.path) <= PATH_MAX + 1,
    p.LsData: lambda pdu: message_fits(pdu.message),
}
"""Of each PDU type, before its handler sees it: what no correct peer sends is dropped."""
