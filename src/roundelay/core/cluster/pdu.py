"""PDUs of the cluster protocols TO, PO and SPO.

Members are named by rank: their place in the cluster's roster in ascending order.  A set of
members is an integer with one bit per rank.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, NamedTuple

from roundelay.core.bundle import Bundle
from roundelay.core.engine import Pdu
from roundelay.core.fields import Number, Numbers, Ranks, Site


class Dt(Pdu, frozen=True, gc=False):
    """A sequenced PDU with data."""

    epoch: Annotated[Number, "incarnation of the cluster"]
    src: Annotated[Site, "rank of the sender"]
    seq: Annotated[Number, "its number among the sender's PDUs"]
    ack: Annotated[Numbers, "next number expected from each member"]
    buf: Annotated[Number, "buffers the sender has left"]
    bundle: Bundle


class Null(Dt, frozen=True, gc=False):
    """TR-1: a sequenced PDU that carries acknowledgements only, or probes (TO-5); it is never
    delivered."""

    probe: Annotated[bool, "1: speak up if I lack something of yours"]


class Retx(Pdu, frozen=True, gc=False):
    """`by` lacks the PDUs of `src` with partial numbers lo…hi."""

    epoch: Annotated[Number, "incarnation of the cluster"]
    by: Annotated[Site, "rank of the requester"]
    src: Annotated[Site, "rank of the source"]
    lo: Annotated[Number, "first partial number missing"]
    hi: Annotated[Number, "last one"]


class Stat(Pdu, frozen=True, gc=False):
    """TR-7: where the sender stands.  Not sequenced."""

    epoch: Annotated[Number, "incarnation of the cluster"]
    src: Annotated[Site, "rank of the sender"]
    seq: Annotated[Number, "its next number"]
    pseq: Annotated[Numbers, "its next partial number for each member"]
    treq: Annotated[Numbers, "next number it expects from each"]
    preq: Annotated[Numbers, "next partial number it expects from each"]
    buf: Annotated[Number, "buffers it has left"]
    poll: Annotated[bool, "1: answer"]


class Rst(Pdu, frozen=True, gc=False):
    """One member's part in a reset, or in the opening of a cluster."""

    epoch: Annotated[Number, "epoch to be opened"]
    src: Annotated[Site, "rank of the sender"]
    vec: Annotated[Numbers, "up to where it holds each member's PDUs"]
    have: Annotated[Ranks, "ranks whose vectors it has"]
    done: Annotated[Ranks, "ranks known to have all vectors"]


# The same PDUs under each protocol's own number.  PO uses the ones above.


class ToDt(Dt, frozen=True, gc=False):
    """TO: data."""


class ToNull(Null, frozen=True, gc=False):
    """TO: NULL."""


class ToRetx(Retx, frozen=True, gc=False):
    """TO: request."""


class ToStat(Stat, frozen=True, gc=False):
    """TO: STAT."""


class ToRst(Rst, frozen=True, gc=False):
    """TO: reset."""


class SpoDt(Dt, frozen=True, gc=False):
    """SPO: data.  `seq` is TSEQ, `dst` the destinations, `pseq` the next partial numbers."""

    dst: Annotated[Ranks, "ranks of the destinations"]
    pseq: Annotated[Numbers, "next partial number for each member"]


class SpoNull(SpoDt, frozen=True, gc=False):
    """SPO: NULL, for those who need its acknowledgements."""


class SpoRetx(Retx, frozen=True, gc=False):
    """SPO: request, by partial numbers."""


class SpoStat(Stat, frozen=True, gc=False):
    """SPO: STAT."""


class SpoRst(Rst, frozen=True, gc=False):
    """SPO: reset, to open a cluster."""


class Kinds(NamedTuple):
    """The PDUs of one protocol, by what they are for."""

    data: type[Dt]
    null: type[Any]
    retx: type[Retx]
    stat: type[Stat]
    rst: type[Rst]


PO_KINDS: Final = Kinds(Dt, Null, Retx, Stat, Rst)
TO_KINDS: Final = Kinds(ToDt, ToNull, ToRetx, ToStat, ToRst)
SPO_KINDS: Final = Kinds(SpoDt, SpoNull, SpoRetx, SpoStat, SpoRst)
