"""Sanity of each PDU that the reformation trusts, checked before its handler sees it.

The two PDUs that carry nearly all traffic, B and ACK, are checked where they are used: a message
of an unknown source, or a stamp by a site that does not have the token, is refused there.
A check returns the reason for which a PDU is refused (the key it is counted under), or "".
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

from roundelay.core.engine import Pdu
from roundelay.core.token import pdu as p
from roundelay.core.token.state import TokenState


def _members(site: TokenState, members: tuple[int, ...]) -> bool:
    """Some of the group, each once, in ring order."""
    return (
        bool(members)
        and all(a < b for a, b in pairwise(members))
        and set(members) <= set(site.group)
    )


def _vote1(site: TokenState, pdu: p.Vote1, source: int) -> str:
    if source not in site.group:
        return "vote of a foreign site"
    if not pdu.yes or pdu.tl == p.NO_LIST:
        return ""
    if not _members(site, pdu.members) or pdu.exp not in pdu.members:
        return "vote with an impossible list"
    return ""


def _new_tl(site: TokenState, pdu: p.NewTl, source: int) -> str:
    if not _members(site, pdu.members) or pdu.nts_site not in pdu.members:
        return "announcement of an impossible list"
    if len(pdu.boots) != len(pdu.members):
        return "announcement of an impossible list"
    if site.me not in pdu.members or source != pdu.v[1]:
        return "announcement of a list without us"
    return ""


def _vote2(site: TokenState, pdu: p.Vote2, source: int) -> str:
    new = site.new_tl
    if new is not None and pdu.v == new.v and source not in new.members:
        return "vote of a foreign site"
    return ""


def _recover_data(site: TokenState, pdu: p.RecoverData, source: int) -> str:
    first = pdu.entries[0].ack.ts if pdu.entries else pdu.first_available
    for ts, entry in enumerate(pdu.entries, first):
        ack = entry.ack
        if ack.ts != ts or ack.by not in site.group or ack.next not in site.group:
            return "recovery with impossible entries"
        if ack.kind == p.DATA and ack.s not in site.group:
            return "recovery with impossible entries"
    if pdu.first_available > site.recover_from and (
        first != pdu.first_available
        or not pdu.entries
        or not {s for s, _ in pdu.counters} <= set(site.group)
    ):
        return "recovery behind a gap it does not describe"
    return ""


def _invite(site: TokenState, pdu: p.Invite, source: int) -> str:
    return "" if source == pdu.v[1] and source in site.group else "invitation of a foreign site"


CHECKS: dict[type[Pdu], Callable[[Any, Any, int], str]] = {
    p.Invite: _invite,
    p.Vote1: _vote1,
    p.NewTl: _new_tl,
    p.Vote2: _vote2,
    p.RecoverData: _recover_data,
}
