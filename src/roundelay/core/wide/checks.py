"""Checks of each PDU type before its handler sees it: what no correct peer sends is dropped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from roundelay.core.engine import Pdu
from roundelay.core.grsb import checks
from roundelay.core.grsb.pdu import ABORT, END, Message
from roundelay.core.wide.pdu import (
    AckGcr,
    AckLcr,
    Galive,
    Gbcast,
    LsAsk,
    LsData,
    LsDown,
    LsUp,
    Up,
)
from roundelay.core.wide.subnet import PATH_MAX


def _message(message: Message) -> bool:
    return bool(message.bundle.sizes) and message.gseq >= 0 and 0 <= message.mtype <= ABORT


def _submission(pdu: Up | LsUp) -> bool:
    return bool(pdu.bundle.sizes) and 0 <= pdu.mtype <= END


def _ls_up(pdu: LsUp) -> bool:
    return _submission(pdu) and 0 < len(pdu.path) <= PATH_MAX + 1


def _galive(pdu: Galive) -> bool:
    return pdu.net_safe <= pdu.net_acked and pdu.everywhere >= 0


CHECKS: Final[dict[type[Pdu], Callable[[Any], bool]]] = {
    Up: _submission,
    AckGcr: lambda pdu: 0 <= pdu.gseq < pdu.acked,
    Gbcast: lambda pdu: _message(pdu.message),
    AckLcr: lambda pdu: 0 <= pdu.safe <= pdu.acked,
    Galive: _galive,
    LsUp: _ls_up,
    LsDown: lambda pdu: _message(pdu.message),
    LsAsk: lambda pdu: 0 < len(pdu.path) <= PATH_MAX + 1,
    LsData: lambda pdu: _message(pdu.message),
}


def well_formed(pdu: Pdu) -> bool:
    """Whether a correct peer could have sent it."""
    check = CHECKS.get(type(pdu))
    return checks.well_formed(pdu) if check is None else check(pdu)
