"""Sanity of each PDU, checked before its handler sees it.

Every site that a PDU names is one of the group, every list version one that can have come about,
every number one that can still be counted on.  A list version may be `VERSIONS_AHEAD` above what a
site has seen: lists are numbered one by one, and a version near the end of its 32 bits would leave
none for those who come after.  The checks of what carries nearly all traffic, B and ACK, begin with
a comparison that nearly always settles it.
A check returns the reason for which a PDU is refused (the key it is counted under), or "".
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any, Final

from roundelay.core.engine import Pdu
from roundelay.core.token import pdu as p
from roundelay.core.token.state import TokenState

VERSIONS_AHEAD: Final = 1 << 20
VERSION_LAST: Final = (1 << 32) - 2 * VERSIONS_AHEAD
"""Versions have 32 bits on the wire; those that others name leave room for ours."""
NUMBER_MAX: Final = 1 << 62
"""Timestamps, numbers of messages, positions."""

FOREIGN_SOURCE: Final = "message of a foreign source"
FOREIGN_STAMP: Final = "acknowledgement of a foreign source"
NO_TOKEN: Final = "acknowledgement by a site without the token"
NO_SUCH_LIST: Final = "PDU of an impossible list"
NO_SUCH_NUMBER: Final = "PDU with an impossible number"


def _possible(site: TokenState, v: p.Version) -> bool:
    """Whether there can be a list of that version; who is behind may name any."""
    if v <= site.tl:
        return True
    known = max(site.seen_version, site.max_joined[0], 0)
    return v[1] in site.group and v[0] <= min(known + VERSIONS_AHEAD, VERSION_LAST)


def _listed(site: TokenState, v: p.Version) -> str:
    return "" if v == site.tl or _possible(site, v) else NO_SUCH_LIST


def _b(site: TokenState, pdu: p.B, source: int) -> str:
    if pdu.tl != site.tl and not _possible(site, pdu.tl):
        return NO_SUCH_LIST
    if pdu.s not in site.group:
        return FOREIGN_SOURCE
    return "" if pdu.n <= NUMBER_MAX else NO_SUCH_NUMBER


def _ack(site: TokenState, pdu: p.Ack, source: int) -> str:
    if pdu.tl != site.tl and not _possible(site, pdu.tl):
        return NO_SUCH_LIST
    group = site.group
    if pdu.by not in group or pdu.next not in group:
        return NO_TOKEN
    if pdu.kind and pdu.s not in group:
        return FOREIGN_STAMP
    return "" if pdu.ts <= NUMBER_MAX and pdu.n <= NUMBER_MAX else NO_SUCH_NUMBER


def _ack_run(site: TokenState, pdu: p.AckRun, source: int) -> str:
    group = site.group
    if pdu.tl != site.tl and not _possible(site, pdu.tl):
        return NO_SUCH_LIST
    sources = {s for s, _ in pdu.stamps}
    if pdu.by not in group or pdu.next not in group:
        return NO_TOKEN
    if not sources <= set(group):
        return FOREIGN_STAMP
    fits = 0 < len(pdu.stamps) == len(sources) and pdu.ts <= NUMBER_MAX
    return "" if fits and all(n <= NUMBER_MAX for _, n in pdu.stamps) else NO_SUCH_NUMBER


def _confirm(site: TokenState, pdu: p.Confirm, source: int) -> str:
    if pdu.by not in site.group:
        return "confirmation by a foreign site"
    return _listed(site, pdu.tl)


def _retx_req(site: TokenState, pdu: p.RetxReq, source: int) -> str:
    if not p.WANT_ACK <= pdu.what <= p.WANT_ENTRIES:
        return NO_SUCH_NUMBER
    if pdu.what == p.WANT_MESSAGE and pdu.s not in site.group:
        return FOREIGN_SOURCE
    return _listed(site, pdu.tl)


def _retx_ack(site: TokenState, pdu: p.RetxAck, source: int) -> str:
    return _ack(site, pdu.ack, source)


def _retx_msg(site: TokenState, pdu: p.RetxMsg, source: int) -> str:
    return _b(site, pdu.b, source)


def _entries(site: TokenState, pdu: p.RetxBulk, source: int) -> str:
    for entry in pdu.entries:
        reason = _ack(site, entry.ack, source)
        if reason:
            return reason
        if entry.seq > NUMBER_MAX:
            return NO_SUCH_NUMBER
    return ""


def _of_list(site: TokenState, pdu: Any, source: int) -> str:
    """A PDU that says nothing but to which list it belongs."""
    return _listed(site, pdu.v)


def _recover_req(site: TokenState, pdu: p.RecoverReq, source: int) -> str:
    return NO_SUCH_NUMBER if pdu.from_ts > NUMBER_MAX else _listed(site, pdu.v)


def _tl_hint(site: TokenState, pdu: p.TlHint, source: int) -> str:
    return _listed(site, pdu.tl)


def _members(site: TokenState, members: tuple[int, ...]) -> bool:
    """Some of the group, each once, in ring order."""
    return (
        bool(members)
        and all(a < b for a, b in pairwise(members))
        and set(members) <= set(site.group)
    )


def _history(past: p.History, floor: int) -> bool:
    """Whether positions can be counted on behind where a history begins, and behind a journal."""
    return past[2] <= NUMBER_MAX and floor <= NUMBER_MAX


def _vote1(site: TokenState, pdu: p.Vote1, source: int) -> str:
    if source not in site.group:
        return "vote of a foreign site"
    if pdu.max_joined != p.NO_LIST and not _possible(site, pdu.max_joined):
        return NO_SUCH_LIST
    if not pdu.yes:
        return ""
    if not _history(pdu.history, pdu.floor):
        return NO_SUCH_NUMBER
    for one in pdu.entered:
        if one.site not in site.group:
            return "vote with an impossible list"
        if not _possible(site, one.tl):
            return NO_SUCH_LIST
    if pdu.tl == p.NO_LIST:
        return ""
    if not _possible(site, pdu.tl) or pdu.nts > NUMBER_MAX:
        return "vote with an impossible list"
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
    if pdu.start_ts > NUMBER_MAX or not _history(pdu.history, pdu.floor):
        return "announcement of an impossible list"
    if pdu.old != p.NO_LIST and not _possible(site, pdu.old):
        return "announcement of an impossible list"
    return _listed(site, pdu.v)


def _vote2(site: TokenState, pdu: p.Vote2, source: int) -> str:
    new = site.new_tl
    if new is not None and pdu.v == new.v and source not in new.members:
        return "vote of a foreign site"
    return _listed(site, pdu.v)


def _recover_data(site: TokenState, pdu: p.RecoverData, source: int) -> str:
    first = pdu.entries[0].ack.ts if pdu.entries else pdu.first_available
    for ts, entry in enumerate(pdu.entries, first):
        ack = entry.ack
        if ack.ts != ts or ack.by not in site.group or ack.next not in site.group:
            return "recovery with impossible entries"
        if ack.kind == p.DATA and ack.s not in site.group:
            return "recovery with impossible entries"
        if max(ack.ts, ack.n, entry.seq) > NUMBER_MAX:
            return "recovery with impossible entries"
    if max(pdu.cnts, pdu.first_available, pdu.seq, *(n for _, n in pdu.counters)) > NUMBER_MAX:
        return "recovery with impossible entries"
    if pdu.first_available > site.recover_from and (
        first != pdu.first_available
        or not pdu.entries
        or not {s for s, _ in pdu.counters} <= set(site.group)
    ):
        return "recovery behind a gap it does not describe"
    return ""


def _invite(site: TokenState, pdu: p.Invite, source: int) -> str:
    if source != pdu.v[1] or source not in site.group:
        return "invitation of a foreign site"
    return _listed(site, pdu.v)


CHECKS: dict[type[Pdu], Callable[[Any, Any, int], str]] = {
    p.B: _b,
    p.Ack: _ack,
    p.AckRun: _ack_run,
    p.Confirm: _confirm,
    p.RetxReq: _retx_req,
    p.RetxAck: _retx_ack,
    p.RetxMsg: _retx_msg,
    p.RetxBulk: _entries,
    p.TlHint: _tl_hint,
    p.NewToken: _of_list,
    p.Abort: _of_list,
    p.RecoverReq: _recover_req,
    p.Invite: _invite,
    p.Vote1: _vote1,
    p.NewTl: _new_tl,
    p.Vote2: _vote2,
    p.RecoverData: _recover_data,
}
