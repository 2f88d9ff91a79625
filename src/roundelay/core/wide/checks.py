"""Checks of each PDU type before its handler sees it: what no correct peer sends is dropped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from roundelay.core.engine import Pdu
from roundelay.core.grsb import checks
from roundelay.core.grsb.checks import countable, message_fits, submission_fits
from roundelay.core.grsb.pdu import WAITS_MAX
from roundelay.core.wide.pdu import AckGcr, AckLcr, Galive, Gbcast, LsAsk, LsData, LsDown, LsUp, Up
from roundelay.core.wide.subnet import PATH_MAX


def _ls_up(pdu: LsUp) -> bool:
    return submission_fits(pdu) and 0 < len(pdu.path) <= PATH_MAX + 1


def _galive(pdu: Galive) -> bool:
    marks = pdu.net_safe <= pdu.net_acked and pdu.everywhere >= 0
    return marks and len(pdu.waits) <= WAITS_MAX


__all__ = ["countable", "well_formed"]

CHECKS: Final[dict[type[Pdu], Callable[[Any], bool]]] = {
    Up: submission_fits,
    AckGcr: lambda pdu: 0 <= pdu.gseq < pdu.acked,
    Gbcast: lambda pdu: message_fits(pdu.message),
    AckLcr: lambda pdu: 0 <= pdu.safe <= pdu.acked,
    Galive: _galive,
    LsUp: _ls_up,
    LsDown: lambda pdu: message_fits(pdu.message),
    LsAsk: lambda pdu: 0 < len(pdu.path) <= PATH_MAX + 1,
    LsData: lambda pdu: message_fits(pdu.message),
}


def well_formed(pdu: Pdu) -> bool:
    """Whether a correct peer could have sent it."""
    check = CHECKS.get(type(pdu))
    return checks.well_formed(pdu) if check is None else check(pdu)
