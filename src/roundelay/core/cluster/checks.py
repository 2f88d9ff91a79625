"""Sanity of cluster PDUs, before any handler sees them."""

from __future__ import annotations

from roundelay.core.cluster.pdu import Dt, Null, Retx, Rst, SpoDt, SpoNull, Stat
from roundelay.core.cluster.state import ClusterState
from roundelay.core.engine import Pdu


def refusal(site: ClusterState, pdu: Pdu, source: int) -> str:
    """Why `pdu` from `source` cannot be right, or ""."""
    rank = site.ranks.get(source)
    if rank is None:
        return "PDU of a foreign member"
    n = site.n
    if isinstance(pdu, Dt):
        if pdu.src != rank:
            return "PDU under another member's name"
        if len(pdu.ack) != n or pdu.seq < 1 or pdu.buf < 0:
            return "sequenced PDU with impossible fields"
        if bool(pdu.bundle.sizes) == isinstance(pdu, (Null, SpoNull)):
            return "data PDU without data, or NULL with data"
        if pdu.epoch == site.epoch and pdu.ack[site.index] > site.seq:
            return "acknowledgement of what was never sent"
        if isinstance(pdu, SpoDt) and (len(pdu.pseq) != n or pdu.dst & ~site.everyone_mask):
            return "destination outside the cluster"
        return ""
    if isinstance(pdu, Stat):
        if pdu.src != rank or not len(pdu.pseq) == len(pdu.treq) == len(pdu.preq) == n:
            return "STAT with impossible fields"
        if min(pdu.seq, *pdu.pseq, *pdu.treq, *pdu.preq) < 1 or pdu.buf < 0:
            return "STAT with impossible fields"
        if pdu.epoch == site.epoch and pdu.treq[site.index] > site.seq:
            return "acknowledgement of what was never sent"
        return ""
    if isinstance(pdu, Rst):
        if (
            pdu.src != rank
            or len(pdu.vec) != n
            or min(pdu.vec) < 1
            or (pdu.have | pdu.done) & ~site.everyone_mask
        ):
            return "reset with impossible fields"
        return ""
    if isinstance(pdu, Retx) and (pdu.by != rank or not 0 <= pdu.src < n):
        return "request with impossible fields"
    return ""
