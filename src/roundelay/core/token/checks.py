"""Sanity of each PDU, checked before its handler sees it.

Every site that a PDU names is one of the group, every list version one that can have come about,
every number one that can still be counted on.  A list version may be `VERSIONS_AHEAD` above what a
site has seen: lists are numbered one by one, and a version near the end of its 32 bits would leave
none for those who come after.  The checks of what carries nearly all traffic, B and ACK, begin with
a comparison that nearly always settles it.
A check returns the reason for which a PDU is refused (the key it is counted under), or "".
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from roundelay.core.token import pdu as p

if TYPE_CHECKING:
    from roundelay.core.token.site import TokenSite

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

IMPOSSIBLE_VOTE: Final = "vote with an impossible list"
IMPOSSIBLE_ENTRIES: Final = "recovery with impossible entries"

OTHER_LIST: Final = "PDU of another list"
"""Nothing is wrong with it, but it does not belong to our list: see `TokenList.other`."""


def nothing(site: TokenSite, pdu: Any, source: int) -> str:
    """A PDU that can say nothing wrong."""
    return ""


def _possible(site: TokenSite, v: p.Version) -> bool:
    """Whether there can be a list of that version; who is behind may name any."""
    if v <= site.token_list.version:
        return True
    known = max(site.reformation.seen_version, site.reformation.max_joined[0], 0)
    return v[1] in site.group and v[0] <= min(known + VERSIONS_AHEAD, VERSION_LAST)


def _listed(site: TokenSite, v: p.Version) -> str:
    return "" if v == site.token_list.version or _possible(site, v) else NO_SUCH_LIST


def _of_ours(site: TokenSite, v: p.Version) -> str:
    """For PDUs that mean something in their list alone."""
    if v == site.token_list.version:
        return ""
    return OTHER_LIST if _possible(site, v) else NO_SUCH_LIST


def b(site: TokenSite, pdu: p.B, source: int) -> str:
    other = pdu.tl != site.token_list.version
    if other and not _possible(site, pdu.tl):
        return NO_SUCH_LIST
    if pdu.s not in site.group:
        return FOREIGN_SOURCE
    if pdu.n > NUMBER_MAX:
        return NO_SUCH_NUMBER
    return OTHER_LIST if other else ""


def ack(site: TokenSite, pdu: p.Ack, source: int) -> str:
    other = pdu.tl != site.token_list.version
    if other and not _possible(site, pdu.tl):
        return NO_SUCH_LIST
    group = site.group
    if pdu.by not in group or pdu.next not in group:
        return NO_TOKEN
    if pdu.kind and pdu.s not in group:
        return FOREIGN_STAMP
    if pdu.ts > NUMBER_MAX or pdu.n > NUMBER_MAX:
        return NO_SUCH_NUMBER
    return OTHER_LIST if other else ""


def ack_run(site: TokenSite, pdu: p.AckRun, source: int) -> str:
    group = site.group
    if pdu.tl != site.token_list.version and not _possible(site, pdu.tl):
        return NO_SUCH_LIST
    sources = {s for s, _ in pdu.stamps}
    if pdu.by not in group or pdu.next not in group:
        return NO_TOKEN
    if not sources <= set(group):
        return FOREIGN_STAMP
    fits = 0 < len(pdu.stamps) == len(sources) and pdu.ts <= NUMBER_MAX
    return "" if fits and all(n <= NUMBER_MAX for _, n in pdu.stamps) else NO_SUCH_NUMBER


def confirm(site: TokenSite, pdu: p.Confirm, source: int) -> str:
    if pdu.by not in site.group:
        return "confirmation by a foreign site"
    return _of_ours(site, pdu.tl)


def retx_req(site: TokenSite, pdu: p.RetxReq, source: int) -> str:
    if not p.WANT_ACK <= pdu.what <= p.WANT_ENTRIES:
        return NO_SUCH_NUMBER
    if pdu.what == p.WANT_MESSAGE and pdu.s not in site.group:
        return FOREIGN_SOURCE
    return _of_ours(site, pdu.tl)


def retx_ack(site: TokenSite, pdu: p.RetxAck, source: int) -> str:
    return ack(site, pdu.ack, source)


def retx_msg(site: TokenSite, pdu: p.RetxMsg, source: int) -> str:
    return b(site, pdu.b, source)


def retx_bulk(site: TokenSite, pdu: p.RetxBulk, source: int) -> str:
    for entry in pdu.entries:
        reason = ack(site, entry.ack, source)
        if reason and reason is not OTHER_LIST:
            return reason
        if entry.seq > NUMBER_MAX:
            return NO_SUCH_NUMBER
    return ""


def of_list(site: TokenSite, pdu: Any, source: int) -> str:
    """A PDU that says nothing but to which list it belongs."""
    return _listed(site, pdu.v)


def recover_req(site: TokenSite, pdu: p.RecoverReq, source: int) -> str:
    return NO_SUCH_NUMBER if pdu.from_ts > NUMBER_MAX else _listed(site, pdu.v)


def tl_hint(site: TokenSite, pdu: p.TlHint, source: int) -> str:
    return _listed(site, pdu.tl)


def _members(site: TokenSite, members: tuple[int, ...]) -> bool:
    """Some of the group, each once, in ring order."""
    return (
        bool(members)
        and all(a < b for a, b in pairwise(members))
        and set(members) <= set(site.group)
    )


def _history(past: p.History, floor: int) -> bool:
    """Whether positions can be counted on behind where a history begins, and behind a journal."""
    return past[2] <= NUMBER_MAX and floor <= NUMBER_MAX


def vote1(site: TokenSite, pdu: p.Vote1, source: int) -> str:
    if source not in site.group:
        return "vote of a foreign site"
    if pdu.max_joined != p.NO_LIST and not _possible(site, pdu.max_joined):
        return NO_SUCH_LIST
    if not pdu.yes:
        return ""
    if not _history(pdu.history, pdu.floor):
        return NO_SUCH_NUMBER
    for entry in pdu.entered:
        if entry.site not in site.group:
            return IMPOSSIBLE_VOTE
        if not _possible(site, entry.tl):
            return NO_SUCH_LIST
    if pdu.tl == p.NO_LIST:
        return ""
    fits = _possible(site, pdu.tl) and pdu.nts <= NUMBER_MAX and pdu.exp in pdu.members
    return "" if fits and _members(site, pdu.members) else IMPOSSIBLE_VOTE


def new_tl(site: TokenSite, pdu: p.NewTl, source: int) -> str:
    members = pdu.members
    listed = _members(site, members) and pdu.nts_site in members and len(pdu.boots) == len(members)
    if listed and (site.me not in members or source != pdu.v[1]):
        return "announcement of a list without us"
    begins = pdu.start_ts <= NUMBER_MAX and _history(pdu.history, pdu.floor)
    if not (listed and begins and (pdu.old == p.NO_LIST or _possible(site, pdu.old))):
        return "announcement of an impossible list"
    return _listed(site, pdu.v)


def vote2(site: TokenSite, pdu: p.Vote2, source: int) -> str:
    new = site.reformation.new_tl
    if new is not None and pdu.v == new.v and source not in new.members:
        return "vote of a foreign site"
    return _listed(site, pdu.v)


def recover_data(site: TokenSite, pdu: p.RecoverData, source: int) -> str:
    first = pdu.entries[0].ack.ts if pdu.entries else pdu.first_available
    group = set(site.group)
    for ts, entry in enumerate(pdu.entries, first):
        stamp = entry.ack
        named = {stamp.by, stamp.next, stamp.s} if stamp.kind == p.DATA else {stamp.by, stamp.next}
        largest = max(stamp.ts, stamp.n, entry.seq)
        if stamp.ts != ts or not named <= group or largest > NUMBER_MAX:
            return IMPOSSIBLE_ENTRIES
    if max(pdu.cnts, pdu.first_available, pdu.seq, *(n for _, n in pdu.counters)) > NUMBER_MAX:
        return IMPOSSIBLE_ENTRIES
    if pdu.first_available > site.recovery.recover_from and (
        first != pdu.first_available or not pdu.entries or not {s for s, _ in pdu.counters} <= group
    ):
        return "recovery behind a gap it does not describe"
    return ""


def invite(site: TokenSite, pdu: p.Invite, source: int) -> str:
    if source != pdu.v[1] or source not in site.group:
        return "invitation of a foreign site"
    return _listed(site, pdu.v)
