"""Checks of each PDU type before its handler sees it: what no correct peer sends is dropped.

Besides what each type asks for, every epoch in a PDU is one that reigns can have counted up to
(`EPOCHS_AHEAD` above those known here: a forged one near the end of its range would leave none for
those who come after), and every position one that can still be counted on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final

from roundelay.core.engine import Pdu
from roundelay.core.grsb import pdu as p

PAGES_MAX: Final = 64
"""Pages of a state: more than a group can have senders."""

RANGES_MAX: Final = 16
"""Ranges in one repair request."""


def message_fits(message: p.Message) -> bool:
    return bool(message.bundle.sizes) and message.gseq >= 0 and 0 <= message.mtype <= p.ABORT


def submission_fits(pdu: Any) -> bool:
    """Of a PDU that carries one: `Submit`, and those of the hierarchy."""
    return bool(pdu.bundle.sizes) and 0 <= pdu.mtype <= p.END


def _alive(pdu: p.Alive) -> bool:
    marks = 0 <= pdu.start <= pdu.acked <= pdu.top and pdu.recorded <= pdu.acked
    return marks and len(pdu.waits) <= p.WAITS_MAX


def _step(pdu: p.Takeover | p.Grant) -> bool:
    state = pdu.state
    state_fits = 0 <= state.safe <= state.top and 0 <= state.page < state.pages <= PAGES_MAX
    return p.PREPARE <= pdu.step <= p.REJOIN and pdu.epoch >= 0 and state_fits


Checks = Mapping[type[Pdu], Callable[[Any], bool]]

CHECKS: Final[Checks] = {
    p.Submit: submission_fits,
    p.Bcast: lambda pdu: message_fits(pdu.message) and pdu.acked <= pdu.message.gseq,
    p.DaAck: lambda pdu: 0 <= pdu.safe <= pdu.gseq and len(pdu.waits) <= p.WAITS_MAX,
    p.Alive: _alive,
    p.Recover: lambda pdu: (
        0 < len(pdu.ranges) <= RANGES_MAX and all(0 <= lo < hi for lo, hi in pdu.ranges)
    ),
    p.Recovered: lambda pdu: 0 <= pdu.lo <= pdu.hi and all(map(message_fits, pdu.messages)),
    p.ReplayReq: lambda pdu: 0 <= pdu.since <= pdu.until and pdu.credit > 0,
    p.ReplayData: lambda pdu: message_fits(pdu.message) and pdu.since <= pdu.message.gseq,
    p.ReplayEnd: lambda pdu: pdu.since <= pdu.next and 0 <= pdu.reason <= p.GAP,
    p.Takeover: _step,
    p.Grant: _step,
}

EPOCHS_AHEAD: Final = 1 << 24
EPOCH_MAX: Final = 1 << 48
POSITION_MAX: Final = 1 << 62
POSITIONS: Final = ("gseq", "acked", "safe", "start", "top", "recorded", "lo", "hi", "upto", "next")


@cache
def _named(kind: type[Pdu]) -> tuple[tuple[str, ...], tuple[str, ...], bool, bool]:
    """Which fields of a PDU are epochs and positions; has it a message, or several?"""
    fields = kind.__struct_fields__
    epochs = tuple(name for name in fields if name in ("epoch", "last_epoch"))
    positions = tuple(name for name in fields if name in POSITIONS)
    return epochs, positions, "message" in fields, "messages" in fields


def countable(pdu: Any, epoch: int = EPOCH_MAX) -> bool:
    """Whether epochs, of which `epoch` is the highest known, and positions can go on behind it."""
    epochs, positions, single, several = _named(pdu.__class__)
    highest = min(epoch + EPOCHS_AHEAD, EPOCH_MAX)
    if isinstance(pdu, p.Takeover | p.Grant) and pdu.step == p.REJOIN:
        epochs = epochs[1:]  # of a member without its disk the first is which start it is
    for name in epochs:
        if getattr(pdu, name) > highest:
            return False
    for name in positions:
        if getattr(pdu, name) > POSITION_MAX:
            return False
    messages = (pdu.message,) if single else pdu.messages if several else ()
    return all(message.epoch <= highest and message.gseq <= POSITION_MAX for message in messages)


def well_formed(pdu: Pdu, checks: Checks = CHECKS) -> bool:
    """Whether a correct peer could have sent it."""
    check = checks.get(type(pdu))
    return check is None or check(pdu)


def beginning(pdu: Pdu) -> tuple[int, int] | None:
    """Where a user without a past may begin, as its retransmitter says: what is stable, and the
    epoch.  While there are broadcasts there need not be signs of life."""
    if not isinstance(pdu, p.Alive | p.Bcast) or not (well_formed(pdu) and countable(pdu, 0)):
        return None
    return pdu.acked, pdu.epoch if isinstance(pdu, p.Alive) else pdu.message.epoch
