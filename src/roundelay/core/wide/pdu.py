"""PDUs of the hierarchy (PROTOCOLS §7.2), besides those of GRSB that both levels use.

What the global level says to its own, and what an LCR asks the GPR for, are the PDUs of GRSB on
the line TRUNK: REPLAY_REQ is the paper's wish for everything after its last number (GRETX), and
REPLAY_DATA is GDATA.  As there, all marks are exclusive.
"""

from __future__ import annotations

from typing import Final

from roundelay.core.bundle import Bundle
from roundelay.core.engine import Pdu
from roundelay.core.grsb.pdu import Message

TRUNK: Final = 2
"""The line between networks, and of the global level."""
SUBNET: Final = 3
"""The links behind a local broadcaster."""


class Up(Pdu, frozen=True, gc=False):
    """32: LCR_`net` has signed a submission of `origin` and asks for its place (HG-5)."""

    net: int  # SrcNetID
    origin: int
    inc: int
    sseq: int  # oseq
    conference: int
    mtype: int
    gid: int
    kind: int
    bundle: Bundle


class AckGcr(Pdu, frozen=True, gc=False):
    """33: it has its place, and may be broadcast at home (HG-2).

    `time` 0: it has had it for long, and is to be fetched.
    """

    net: int
    origin: int
    inc: int
    sseq: int
    gseq: int
    epoch: int
    time: int
    acked: int


class Gbcast(Pdu, frozen=True, gc=False):
    """34: a message of network `net` for the other networks (HG-1)."""

    net: int
    message: Message
    acked: int


class AckLcr(Pdu, frozen=True, gc=False):
    """35: LDA_`net` has acknowledged everything below `acked`, LPR_`net` recorded all below `safe`.

    `lcr` is who retransmits there now (HG-8).
    """

    net: int
    lcr: int
    acked: int
    safe: int


class Galive(Pdu, frozen=True, gc=False):
    """37: the GCR is there; everything below `acked` may be had (HG-6).

    `net_acked` and `net_safe` are what it knows of the addressee's network, `everywhere` is what
    all networks have recorded (HG-3).
    """

    epoch: int
    acked: int
    net_acked: int
    net_safe: int
    everywhere: int
    waits: tuple[int, ...] = ()  # nothing gets a place before these sites are heard (GPRs)


class LsUp(Pdu, frozen=True, gc=False):
    """40: a message of a node of the second kind on its way up; `path` is how it came (HG-13)."""

    origin: int
    inc: int
    sseq: int
    conference: int
    mtype: int
    gid: int
    kind: int
    bundle: Bundle
    attempt: int
    path: tuple[int, ...]


class LsDown(Pdu, frozen=True, gc=False):
    """41: a message on its way down, signed by network `net` (HG-11)."""

    net: int
    message: Message


class Response(Pdu, frozen=True, gc=False):
    """42: the message at `gseq` is here; everything below `next` is (HG-11)."""

    gseq: int
    next: int


class LsAck(Pdu, frozen=True, gc=False):
    """43: what `origin` repeats has its place already; goes back along `path` (HG-14)."""

    origin: int
    inc: int
    sseq: int
    gseq: int
    path: tuple[int, ...]


class LsAsk(Pdu, frozen=True, gc=False):
    """44: the first of `path` lacks what comes from `since` on (HG-15)."""

    since: int
    path: tuple[int, ...]


class LsData(Pdu, frozen=True, gc=False):
    """45: a message that was asked for, on its way back along `path` (HG-15)."""

    net: int
    message: Message
    path: tuple[int, ...]
