"""PDUs of the hierarchy (PROTOCOLS §7.2), besides those of GRSB that both levels use.

What the global level says to its own, and what an LCR asks the GPR for, are the PDUs of GRSB on
the line TRUNK: REPLAY_REQ is the paper's wish for everything after its last number (GRETX), and
REPLAY_DATA is GDATA.  As there, all marks are exclusive.
"""

from __future__ import annotations

from typing import Annotated, Final

from roundelay.core.bundle import Bundle
from roundelay.core.engine import Pdu
from roundelay.core.fields import Members, Number, Octet, Site, Stamp
from roundelay.core.grsb.pdu import Message, Mtype

TRUNK: Final = 2
"""The line between networks, and of the global level."""
SUBNET: Final = 3
"""The links behind a local broadcaster."""

Net = Annotated[Site, "SrcNetID: the network that signed it; 0: none"]
Path = Annotated[Members, "sites it came through, or goes back through"]


class Up(Pdu, frozen=True, gc=False):
    """32: LCR_`net` has signed a submission of `origin` and asks for its place (HG-5)."""

    net: Net
    origin: Annotated[Site, "who submitted it"]
    inc: Annotated[Number, "which start of the origin"]
    sseq: Annotated[Number, "number of the submission since then"]
    conference: Annotated[Number, "conference"]
    mtype: Mtype
    gid: Annotated[Number, "unit of start, middle and end"]
    kind: Annotated[Number, "the application's own"]
    bundle: Bundle


class AckGcr(Pdu, frozen=True, gc=False):
    """33: it has its place, and may be broadcast at home (HG-2)."""

    net: Net
    origin: Annotated[Site, "as in UP"]
    inc: Annotated[Number, "as in UP"]
    sseq: Annotated[Number, "as in UP"]
    gseq: Annotated[Stamp, "its position"]
    epoch: Annotated[Stamp, "reign in which it got its position"]
    time: Annotated[Stamp, "µs since 1970; 0: it has had it for long, fetch it"]
    acked: Annotated[Stamp, "everything below may be broadcast"]


class Gbcast(Pdu, frozen=True, gc=False):
    """34: a message of network `net` for the other networks (HG-1)."""

    net: Net
    message: Message
    acked: Annotated[Stamp, "everything below may be broadcast"]


class AckLcr(Pdu, frozen=True, gc=False):
    """35: LDA_`net` has acknowledged everything below `acked`, LPR_`net` recorded all below `safe`.

    `lcr` is who retransmits there now (HG-8).
    """

    net: Annotated[Site, "network"]
    lcr: Annotated[Site, "its retransmitter"]
    acked: Annotated[Stamp, "its acknowledger has everything below"]
    safe: Annotated[Stamp, "its recorders have everything below"]


class Galive(Pdu, frozen=True, gc=False):
    """37: the GCR is there; everything below `acked` may be had (HG-6)."""

    epoch: Annotated[Stamp, "reign of the GCR"]
    acked: Annotated[Stamp, "everything below may be broadcast"]
    net_acked: Annotated[Stamp, "the last ACK_LCR of the addressee's network: acked"]
    net_safe: Annotated[Stamp, "the same: safe"]
    everywhere: Annotated[Stamp, "all networks have recorded everything below"]  # HG-3
    waits: Annotated[Members, "recorders without which nothing gets a place"] = ()


class LsUp(Pdu, frozen=True, gc=False):
    """40: a message of a node of the second kind on its way up; `path` is how it came (HG-13)."""

    origin: Annotated[Site, "who submitted it"]
    inc: Annotated[Number, "which start of the origin"]
    sseq: Annotated[Number, "number of the submission since then"]
    conference: Annotated[Number, "conference"]
    mtype: Mtype
    gid: Annotated[Number, "unit of start, middle and end"]
    kind: Annotated[Number, "the application's own"]
    bundle: Bundle
    attempt: Annotated[Octet, "repetitions before"]
    path: Path


class LsDown(Pdu, frozen=True, gc=False):
    """41: a message on its way down, signed by network `net` (HG-11)."""

    net: Net
    message: Message


class Response(Pdu, frozen=True, gc=False):
    """42: the message at `gseq` is here; everything below `next` is (HG-11)."""

    gseq: Annotated[Stamp, "the message that is here"]
    next: Annotated[Stamp, "everything below is here"]


class LsAck(Pdu, frozen=True, gc=False):
    """43: what `origin` repeats has its place already; goes back along `path` (HG-14)."""

    origin: Annotated[Site, "as in LS_UP"]
    inc: Annotated[Number, "as in LS_UP"]
    sseq: Annotated[Number, "as in LS_UP"]
    gseq: Annotated[Stamp, "its position"]
    path: Path


class LsAsk(Pdu, frozen=True, gc=False):
    """44: the first of `path` lacks what comes from `since` on (HG-15)."""

    since: Annotated[Stamp, "first position wanted"]
    path: Path


class LsData(Pdu, frozen=True, gc=False):
    """45: a message that was asked for, on its way back along `path` (HG-15)."""

    net: Net
    message: Message
    path: Path
