"""Checks of each PDU type before its handler sees it: what no correct peer sends is dropped."""

from __future__ import annotations

from typing import Final

from roundelay.core.grsb import checks
from roundelay.core.grsb.checks import message_fits, submission_fits
from roundelay.core.grsb.pdu import WAITS_MAX
from roundelay.core.wide.pdu import AckGcr, AckLcr, Galive, Gbcast, LsAsk, LsData, LsDown, LsUp, Up
from roundelay.core.wide.subnet import PATH_MAX

CHECKS: Final[checks.Checks] = {
    **checks.CHECKS,
    Up: submission_fits,
    AckGcr: lambda pdu: 0 <= pdu.gseq < pdu.acked,
    Gbcast: lambda pdu: message_fits(pdu.message),
    AckLcr: lambda pdu: 0 <= pdu.safe <= pdu.acked,
    Galive: lambda pdu: (
        pdu.net_safe <= pdu.net_acked and pdu.everywhere >= 0 and len(pdu.waits) <= WAITS_MAX
    ),
    LsUp: lambda pdu: submission_fits(pdu) and 0 < len(pdu.path) <= PATH_MAX + 1,
    LsDown: lambda pdu: message_fits(pdu.message),
    LsAsk: lambda pdu: 0 < len(pdu.path) <= PATH_MAX + 1,
    LsData: lambda pdu: message_fits(pdu.message),
}
