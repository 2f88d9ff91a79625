"""What must hold of a site of the hierarchy between two calls, besides what holds of its levels."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final

from roundelay.core.engine import NEVER
from roundelay.core.grsb.invariants import LISTENER, SAFE, SUBMITTER, Rules, check_rules, check_site

if TYPE_CHECKING:
    from roundelay.core.wide.global_level import GlobalRetransmitter
    from roundelay.core.wide.network_level import LocalRetransmitter
    from roundelay.core.wide.site import WideSite
    from roundelay.core.wide.subnet import Flood
    from roundelay.core.wide.uplink import Uplink


def _networks(gcr: GlobalRetransmitter) -> bool:
    top = gcr.acked if gcr.reigning else 0
    return all(branch.safe <= branch.acked <= top for branch in gcr.branches.values())


GCR: Final[Rules] = {
    "of every network, safe ≤ acked, and nothing is that was never sent": _networks,
    "one that stands by waits for no network": lambda gcr: (
        gcr.reigning or not (gcr.held or gcr.round_due < NEVER)
    ),
    "AckGCRs are held back in their order, of what is stable": lambda gcr: (
        all(before[1].end <= after[1].gseq for before, after in pairwise(gcr.held))
        and (not gcr.held or gcr.held[-1][1].end <= gcr.acked)
    ),
}


def _at_hand(uplink: Uplink) -> bool:
    ready = uplink.ready
    in_a_row = all(before.end == after.gseq for before, after in pairwise(ready))
    return in_a_row and (not ready or ready[-1].end == uplink.listener.next)


UPLINK: Final[Rules] = {
    "what is at hand is in a row, up to what is awaited": _at_hand,
    "one that stands by has nothing at hand, and sends nothing up": lambda uplink: (
        uplink.running or not (uplink.ready or uplink.pending or uplink.reader.reading)
    ),
}


def _goes_on(lcr: LocalRetransmitter) -> bool:
    """The order of the network is that of the whole, without a hole between them."""
    uplink = lcr.uplink
    after = uplink.ready[0].gseq if uplink.ready else uplink.listener.next
    return not lcr.reigning or lcr.sequencer.next == after


LCR: Final[Rules] = {
    "its uplink runs while it reigns": lambda lcr: lcr.uplink.running == lcr.reigning,
    "what comes down goes on where the network is": _goes_on,
    "what waits for its place was sent up": lambda lcr: set(lcr.uplink.pending) <= set(lcr.queue),
}

PACER: Final[Rules] = {
    "what is under way is the next, and is repeated": lambda pacer: (
        pacer.under_way is None or (pacer.under_way.gseq >= pacer.next and pacer.due < NEVER)
    ),
}


def _awaited(flood: Flood) -> bool:
    """What is waited for is there to be sent again, in time."""
    due = min((due for due, _ in flood.waiting.values()), default=NEVER)
    return {at for at, _ in flood.waiting} == set(flood.sent) and flood.resend_due <= due


FLOOD: Final[Rules] = {
    "what is held lies behind a gap": lambda flood: not flood.held or min(flood.held) > flood.next,
    "a gap has an end": lambda flood: (
        flood.config.ls_repair or (not flood.held) == (flood.gap_due >= NEVER)
    ),
    "what has no RESPONSE is sent again": _awaited,
    "what is kept for neighbours was taken": lambda flood: (
        not flood.kept or max(flood.kept) < flood.next
    ),
}

NODE: Final[Rules] = {
    "what climbs has its slot": lambda node: (
        (node.climb.slot is None) == (node.climb.slot_due >= NEVER)
    ),
}

SITE: Final[Rules] = {
    "its levels have heard each other": lambda site: not site.loop,
    "all that its levels want done is gathered": lambda site: (
        not any(part.out for _, part in site.parts)
    ),
    "no part is due before it": lambda site: all(
        engine.deadline >= site.deadline for engine in site.engines
    ),
}


def check_wide_site(site: WideSite) -> None:
    """Raise InvariantBroken unless every level is consistent, by itself and with the others."""
    parts: list[tuple[object, Rules]] = []
    globe, local, uplink, node = site.globe, site.local, site.uplink, site.node
    for level in (globe, local):
        if level is not None:
            check_site(level)
    if globe is not None and globe.retransmitter is not None:
        parts.append((globe.retransmitter, GCR))
    if uplink is not None and local is not None:
        parts += [(uplink, UPLINK), (uplink.listener, LISTENER), (uplink.listener, SAFE)]
        parts.append((local.retransmitter, LCR))
    if local is not None and local.pacer is not None:
        parts.append((local.pacer, PACER))
    if node is not None:
        parts += [(node, SUBMITTER), (node, NODE), (node.flood, FLOOD)]
    for part, rules in (*parts, (site, SITE)):
        check_rules(site.me, part, rules)
