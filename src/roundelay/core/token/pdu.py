"""PDUs of the token protocol: CM84 §4–§5, with the fields our rules add.

Two fields go beyond the paper's tables: a request names the timestamp of the acknowledgement whose
message is missing (so the answering site needs no second index), and may name a range of
timestamps (`hi`); RECOVER_DATA tells the dense position of its first entry.
"""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Struct

from roundelay.core.bundle import NOTHING, Bundle
from roundelay.core.engine import Pdu
from roundelay.core.fields import (
    Counters,
    Flag,
    HistoryRecord,
    ListVersion,
    MemberIds,
    Members,
    Number,
    Numbers,
    Site,
    SiteOrNone,
    Stamp,
    StampOrNone,
    choice,
)

Version = Annotated[tuple[int, int], ListVersion()]
"""A token list's version: (version #, site number of its originator), compared as a pair."""

VersionOrNone = Annotated[tuple[int, int], ListVersion(or_none=True)]
"""The same, or NO_LIST."""

NO_LIST: Final[Version] = (-1, -1)
"""The version of a site that has never been in a list: lower than any other."""

History = Annotated[tuple[int, int, int], HistoryRecord()]
"""A history of the group: its id, that of the history it goes on from (0: none), and the position
at which it does."""

NO_HISTORY: Final[History] = (0, 0, 0)

AT_START: Final = -1
"""For the position of a history that begins with the list that announces it."""

NULL: Final = 0  # kinds of acknowledgement
DATA: Final = 1

WANT_ACK: Final = 1  # what a RETX_REQ asks for
WANT_MESSAGE: Final = 2
WANT_ENTRIES: Final = 3

RUN_MAX: Final = 255
"""Acknowledgements in one ACK_RUN."""

NO: Final = 0  # votes of phase II
YES: Final = 1
PENDING: Final = 2


class B(Pdu, frozen=True, gc=False):
    """B(s, n): a broadcast message, number n of source s."""

    tl: Version
    s: Annotated[Site, "source"]
    n: Annotated[Number, "number of the message at its source"]
    bundle: Bundle


class Ack(Pdu, frozen=True, gc=False):
    """ACK(ts, B(s, n)) or ACK(ts, NULL), issued by the token site `by`; names the `next` one."""

    tl: Version
    ts: Annotated[Stamp, "timestamp"]
    kind: Annotated[int, choice(NULL, DATA), "0 NULL, 1 data"]
    s: Annotated[Site, "source of the message"]
    n: Annotated[Number, "its number"]
    by: Annotated[Site, "token site that issued it"]
    next: Annotated[Site, "next token site"]


class AckRun(Pdu, frozen=True, gc=False):
    """The acknowledgements ts, ts + 1, … of the messages `stamps`, (s, n) each, issued by `by`.

    The last one names `next`, those before it `by` itself.  No source stands there twice.
    """

    tl: Version
    ts: Annotated[Stamp, "timestamp of the first; the others follow"]
    by: Annotated[Site, "token site that issued them"]
    next: Annotated[Site, "next token site, named by the last"]
    stamps: Annotated[Counters, "source and number of each message"]


class Confirm(Pdu, frozen=True, gc=False):
    """`by` has accepted the token that ACK `ts` passed to it; `top` is the last stamp it knows."""

    tl: Version
    ts: Annotated[StampOrNone, "the acknowledgement that brought the token"]
    by: Annotated[Site, "the site that accepted it"]
    top: Annotated[StampOrNone, "last timestamp it knows"]


class RetxReq(Pdu, frozen=True, gc=False):
    """Request for the acknowledgements ts…hi, or for the message (s, n) stamped with ts, or for
    ts…hi with their messages."""

    tl: Version
    what: Annotated[
        int, choice(WANT_ACK, WANT_ENTRIES), "1 acknowledgements, 2 message, 3 both of a range"
    ]
    ts: Annotated[Stamp, "first timestamp wanted, or that of the message"]
    hi: Annotated[Stamp, "last timestamp wanted"]
    s: Annotated[Site, "source of the message wanted, else 0"]
    n: Annotated[Number, "its number, else 0"]


class RetxAck(Pdu, frozen=True, gc=False):
    """An acknowledgement sent again, verbatim (with its original issuer)."""

    ack: Ack


class RetxMsg(Pdu, frozen=True, gc=False):
    """A broadcast message sent again."""

    b: B


class TlHint(Pdu, frozen=True, gc=False):
    """The sender uses list `tl`, newer than that of the PDU it answers."""

    tl: Annotated[Version, "list of the sender"]


class Entry(Struct, frozen=True, gc=False):
    """A stamped acknowledgement with its message: one line of the common log.

    `seq` is the dense position of its first application message.
    """

    ack: Ack
    bundle: Bundle = NOTHING
    seq: Annotated[Stamp, "position of the first application message"] = 0


class RetxBulk(Pdu, frozen=True, gc=False):
    """Stamped entries sent again, in timestamp order; one of a message may lack the message."""

    entries: Annotated[tuple[Entry, ...], "stamped entries; of a message its bundle may be empty"]


class Invite(Pdu, frozen=True, gc=False):
    """Reformation phase I: join list `v`.  `boot`: the originator's boot number, see VOTE1."""

    v: Annotated[Version, "new list"]
    boot: Annotated[Number, "random number of this run of the originator"]


class Entered(Struct, frozen=True, gc=False):
    """The voter has committed to list `tl`, which has `site` with boot number `boot`."""

    site: Annotated[Site, "a member"]
    tl: Annotated[Version, "list that it was in"]
    boot: Annotated[Number, "its boot number there"]


class Vote1(Pdu, frozen=True, gc=False):
    """Answer to INVITE.

    The paper's vote carries tl and nts; `members` and `exp` let an originator judge a list it was
    never in.  NEW_TL returns `boot`, so that a site without memory is not taken in by a list that
    an earlier run of it voted for.  On a no, only `v`, `yes`, `max_joined` and `inviter` count.
    """

    v: Annotated[Version, "new list"]
    yes: Annotated[bool, "0 no, 1 yes"]
    tl: Annotated[VersionOrNone, "the voter's list"]
    members: Annotated[Members, "members of that list in ring order"]
    nts: Annotated[Stamp, "its next timestamp"]
    exp: Annotated[SiteOrNone, "site expected to issue it"]
    amnesia: Annotated[bool, Flag(), "forgot uncommitted entries"]
    wiped: Annotated[bool, Flag(), "its disk"]
    boot: Annotated[Number, "random number of this run of the voter"]
    max_joined: Annotated[VersionOrNone, "highest list it ever joined"]
    history: Annotated[History, "history of its list"] = NO_HISTORY
    floor: Annotated[Stamp, "position up to which it has a journal"] = 0
    inviter: Annotated[Number, "boot number of the invitation that is answered; 0: none given"] = 0
    entered: Annotated[tuple[Entered, ...], "the last list that it knows each site in"] = ()


class NewTl(Pdu, frozen=True, gc=False):
    """Phase II: the new list.  `history` is that of the old list, or a new one where what the old
    list committed may be lost."""

    v: Annotated[Version, "new list"]
    members: Annotated[tuple[int, ...], MemberIds(fewest=1), "its members in ring order"]
    start_ts: Annotated[Stamp, "its first timestamp"]
    nts_site: Annotated[Site, "its first token site"]
    old: Annotated[VersionOrNone, "list it is built on"]
    boots: Annotated[Numbers, "boot number of each member's vote"]
    history: Annotated[
        History, "history that goes on; with start_ts if its position is all ones"
    ] = NO_HISTORY
    floor: Annotated[Stamp, "least position of what is new"] = 0


class Vote2(Pdu, frozen=True, gc=False):
    """Phase II: YES (committed to v), NO (left v) or PENDING (still recovering)."""

    v: Annotated[Version, "new list"]
    status: Annotated[int, choice(NO, PENDING), "0 no, 1 yes, 2 pending"]
    inviter: Annotated[Number, "boot number of the originator; 0: none given"] = 0


class NewToken(Pdu, frozen=True, gc=False):
    """Phase III: the token of list `v`, for its first token site."""

    v: Annotated[Version, "new list"]


class Abort(Pdu, frozen=True, gc=False):
    """The attempt to form list `v` is over."""

    v: Annotated[Version, "list given up"]


class Mark(Struct, frozen=True, gc=False):
    """What was committed at a stamp: its acknowledgement, and a checksum of the message."""

    ack: Ack
    crc: Annotated[Number, "CRC-32 of the message; 0 for a NULL"]


class RecoverReq(Pdu, frozen=True, gc=False):
    """Asks the new token site for entries, and shows it marks (`recovery`)."""

    v: Annotated[Version, "new list"]
    from_ts: Annotated[Stamp, "first timestamp wanted"]
    marks: Annotated[tuple[Mark, ...], "of what it has committed, the latest first"] = ()


class Forked(Pdu, frozen=True, gc=False):
    """Two histories: somewhere in the positions `lo` to `hi` a site has committed something else
    than the new token site of `v`."""

    v: Annotated[Version, "list at whose announcement it was seen"]
    lo: Annotated[Stamp, "the first position that may differ"]
    hi: Annotated[Stamp, "a position that differs"]


class RecoverData(Pdu, frozen=True, gc=False):
    """Entries in timestamp order; `counters` and `seq` where `first_available` is above what was
    asked for."""

    v: Annotated[Version, "new list"]
    entries: Annotated[tuple[Entry, ...], "stamped entries"]
    cnts: Annotated[Stamp, "next timestamp the sender will commit"]
    first_available: Annotated[Stamp, "oldest timestamp it has"]
    counters: Annotated[Counters, "next number of each source at first_available"]
    seq: Annotated[Stamp, "position at first_available"]
