"""PDUs of the token protocol: CM84 §4–§5, with the fields our rules add.

Two fields go beyond the paper's tables: a request names the timestamp of the acknowledgement whose
message is missing (so the answering site needs no second index), and may name a range of
timestamps (`hi`); RECOVER_DATA tells the dense position of its first entry.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from roundelay.core.bundle import NOTHING, Bundle
from roundelay.core.engine import Pdu

Version = tuple[int, int]
"""A token list's version: (version #, site number of its originator), compared as a pair."""

NO_LIST: Final[Version] = (-1, -1)
"""The version of a site that has never been in a list: lower than any other."""

History = tuple[int, int, int]
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
    s: int
    n: int
    bundle: Bundle


class Ack(Pdu, frozen=True, gc=False):
    """ACK(ts, B(s, n)) or ACK(ts, NULL), issued by the token site `by`; names the `next` one."""

    tl: Version
    ts: int
    kind: int
    s: int
    n: int
    by: int
    next: int


class AckRun(Pdu, frozen=True, gc=False):
    """The acknowledgements ts, ts + 1, … of the messages `stamps`, (s, n) each, issued by `by`.

    The last one names `next`, those before it `by` itself.  No source stands there twice.
    """

    tl: Version
    ts: int
    by: int
    next: int
    stamps: tuple[tuple[int, int], ...]


class Confirm(Pdu, frozen=True, gc=False):
    """`by` has accepted the token that ACK `ts` passed to it; `top` is the last stamp it knows."""

    tl: Version
    ts: int
    by: int
    top: int


class RetxReq(Pdu, frozen=True, gc=False):
    """Request for the acknowledgements ts…hi, or for the message (s, n) stamped with ts, or for
    ts…hi with their messages."""

    tl: Version
    what: int
    ts: int
    hi: int
    s: int
    n: int


class RetxAck(Pdu, frozen=True, gc=False):
    """An acknowledgement sent again, verbatim (with its original issuer)."""

    ack: Ack


class RetxMsg(Pdu, frozen=True, gc=False):
    """A broadcast message sent again."""

    b: B


class TlHint(Pdu, frozen=True, gc=False):
    """The sender uses list `tl`, newer than that of the PDU it answers."""

    tl: Version


class Entry(Struct, frozen=True, gc=False):
    """A stamped acknowledgement with its message: one line of the common log.

    `seq` is the dense position of its first application message.
    """

    ack: Ack
    bundle: Bundle = NOTHING
    seq: int = 0


class RetxBulk(Pdu, frozen=True, gc=False):
    """Stamped entries sent again, in timestamp order; one of a message may lack the message."""

    entries: tuple[Entry, ...]


class Invite(Pdu, frozen=True, gc=False):
    """Reformation phase I: join list `v`.  `boot`: the originator's boot number, see VOTE1."""

    v: Version
    boot: int


class Entered(Struct, frozen=True, gc=False):
    """The voter has committed to list `tl`, which has `site` with boot number `boot`."""

    site: int
    tl: Version
    boot: int


class Vote1(Pdu, frozen=True, gc=False):
    """Answer to INVITE.

    The paper's vote carries tl and nts; `members` and `exp` let an originator judge a list it was
    never in.  `amnesia`: restarted with loss of uncommitted entries.  `wiped`: lost its stable
    storage too.  `boot` is a random number of this run of the voter; NEW_TL returns it, so that a
    site without memory is not taken in by a list that an earlier run of it voted for.  `history`
    is that of `tl`; below `floor` everything is on disk beside the voter, in a journal.  `inviter`
    is the boot number of the invitation that is answered, 0 if none was given; `entered` tells of
    each site the last list that the voter knows it in.  On a no, only `v`, `yes`, `max_joined` and
    `inviter` count.
    """

    v: Version
    yes: bool
    tl: Version
    members: tuple[int, ...]
    nts: int
    exp: int
    amnesia: bool
    wiped: bool
    boot: int
    max_joined: Version
    history: History = NO_HISTORY
    floor: int = 0
    inviter: int = 0
    entered: tuple[Entered, ...] = ()


class NewTl(Pdu, frozen=True, gc=False):
    """Phase II: the new list is `members` in ring order, built on list `old`.

    `boots` are the boot numbers of the members' votes, in the same order.  `history` is that of
    the old list, or a new one where what the old list committed may be lost.  No position below
    `floor` is given to anything new.
    """

    v: Version
    members: tuple[int, ...]
    start_ts: int
    nts_site: int
    old: Version
    boots: tuple[int, ...]
    history: History = NO_HISTORY
    floor: int = 0


class Vote2(Pdu, frozen=True, gc=False):
    """Phase II: YES (committed to v), NO (left v) or PENDING (still recovering).  `inviter`: the
    boot number of the originator, as NEW_TL has it; 0 if it has none."""

    v: Version
    status: int
    inviter: int = 0


class NewToken(Pdu, frozen=True, gc=False):
    """Phase III: the token of list `v`, for its first token site."""

    v: Version


class Abort(Pdu, frozen=True, gc=False):
    """The attempt to form list `v` is over."""

    v: Version


class Mark(Struct, frozen=True, gc=False):
    """What was committed at a stamp: its acknowledgement, and a checksum of the message."""

    ack: Ack
    crc: int


class RecoverReq(Pdu, frozen=True, gc=False):
    """Asks the new token site of `v` for the entries from `from_ts` on.  `marks` are of what the
    asking site has committed (`forks`)."""

    v: Version
    from_ts: int
    marks: tuple[Mark, ...] = ()


class Forked(Pdu, frozen=True, gc=False):
    """Two histories: somewhere in the positions `lo` to `hi` a site has committed something else
    than the new token site of `v`."""

    v: Version
    lo: int
    hi: int


class RecoverData(Pdu, frozen=True, gc=False):
    """Entries in timestamp order.

    `first_available` is the oldest timestamp the sender still has.  Where that is above what was
    asked for, `counters` holds (source, next number) at that point and `seq` the dense position.
    """

    v: Version
    entries: tuple[Entry, ...]
    cnts: int
    first_available: int
    counters: tuple[tuple[int, int], ...]
    seq: int
