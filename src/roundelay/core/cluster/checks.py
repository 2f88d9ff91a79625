"""Sanity of cluster PDUs, before any handler sees them.

Numbers have 32 bits on the wire.  What is so near their end that the numbers behind it could not be
sent any more is refused, and so is an epoch further ahead than resets can have counted.
"""

from __future__ import annotations

from typing import Any, Final

from roundelay.core.cluster.pdu import Dt, Null, Retx, Rst, SpoDt, SpoNull, Stat
from roundelay.core.cluster.state import ClusterState
from roundelay.core.engine import Pdu

NUMBER_MAX: Final = (1 << 32) - (1 << 20)
EPOCHS_AHEAD: Final = 1 << 16


def _sent(site: ClusterState, epoch: int) -> int:
    """The highest number that anybody can expect from us next in an epoch."""
    if epoch == site.epoch:
        return site.seq
    if epoch == site.rst and len(site.vecs) == site.n:
        return min(vec[site.index] for vec in site.vecs.values())  # where we begin in it
    return NUMBER_MAX  # not for us to judge: nothing of that epoch counts here


def refusal(site: ClusterState, pdu: Pdu, source: int) -> str:
    """Why `pdu` from `source` cannot be right, or ""."""
    rank = site.ranks.get(source)
    if rank is None:
        return "PDU of a foreign member"
    spoken: Any = pdu
    if spoken.epoch > min(site.epoch + EPOCHS_AHEAD, NUMBER_MAX):
        return "PDU of an impossible epoch"
    n = site.n
    if isinstance(pdu, Dt):
        if pdu.src != rank:
            return "PDU under another member's name"
        if len(pdu.ack) != n or not 1 <= pdu.seq <= NUMBER_MAX or pdu.buf < 0:
            return "sequenced PDU with impossible fields"
        if bool(pdu.bundle.sizes) == isinstance(pdu, (Null, SpoNull)):
            return "data PDU without data, or NULL with data"
        if pdu.ack[site.index] > _sent(site, pdu.epoch):
            return "acknowledgement of what was never sent"
        if not 1 <= min(pdu.ack) <= max(pdu.ack) <= NUMBER_MAX:
            return "sequenced PDU with impossible fields"
        if isinstance(pdu, SpoDt):
            if len(pdu.pseq) != n or pdu.dst & ~site.everyone_mask:
                return "destination outside the cluster"
            if not 1 <= min(pdu.pseq) <= max(pdu.pseq) <= NUMBER_MAX:
                return "sequenced PDU with impossible fields"
        return ""
    if isinstance(pdu, Stat):
        if pdu.src != rank or not len(pdu.pseq) == len(pdu.treq) == len(pdu.preq) == n:
            return "STAT with impossible fields"
        numbers = (pdu.seq, *pdu.pseq, *pdu.treq, *pdu.preq)
        if not 1 <= min(numbers) <= max(numbers) <= NUMBER_MAX or pdu.buf < 0:
            return "STAT with impossible fields"
        if pdu.treq[site.index] > _sent(site, pdu.epoch):
            return "acknowledgement of what was never sent"
        return ""
    if isinstance(pdu, Rst):
        if (
            pdu.src != rank
            or len(pdu.vec) != n
            or not 1 <= min(pdu.vec) <= max(pdu.vec) <= NUMBER_MAX
            or (pdu.have | pdu.done) & ~site.everyone_mask
        ):
            return "reset with impossible fields"
        return ""
    if isinstance(pdu, Retx) and (pdu.by != rank or not 0 <= pdu.src < n or pdu.lo > pdu.hi):
        return "request with impossible fields"
    return ""
