"""The end of a cluster: whoever goes on has been given the same (TR-16).

When a member fails, the others stop where they are.  What one of them has been given, or has told
its submitter, may still be on its way to another.  So before a new cluster is opened each says what
it holds, its *tail*: up to where it has accepted each source's PDUs, and those PDUs that, as far as
it knows, not all of the others have.  With the tails of all who go on, each hands over the rest:

- On an MC medium, whatever any of them has accepted.  What was handed over anywhere is among it,
  at any stage: at `accepted` the one who handed it over has it, later everybody has.  The order is
  that of TO's keys, which is the order in which TO has delivered so far, and fits PO and SPO.
- On one channel, what all of them have accepted, in the order of the channel: the place of the
  rest is not certain.  What is pre-acknowledged all have, so nothing is taken back.

Nobody needs the tail of a member that failed, nor of all who live: what a member without a tail has
handed over, those with one hold.  But it must not go on, for it may lack what they hand over.

Own messages that are not handed over so were handed over nowhere, and may be sent again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct

from roundelay.core.cluster.checks import refusal
from roundelay.core.cluster.pdu import Dt
from roundelay.core.cluster.state import ClusterState


class Tail(Struct, frozen=True):
    """What a member holds of a cluster that is over for it.

    `epoch`: the one it was in; `treq`: the next number it expected from each member; `pdus`: data
    that it has accepted, and that somebody who lives may lack.
    """

    epoch: int
    treq: tuple[int, ...]
    pdus: tuple[Dt, ...] = ()


Tails = Mapping[int, Tail]
"""By member."""


def key(pdu: Dt) -> tuple[int, int, int]:
    """The place of a PDU in the order of TO's key mode; a source's PDUs are in their order."""
    return sum(pdu.ack), pdu.src, pdu.seq


def union(held: Iterable[Dt], tails: Tails, treq: list[int]) -> list[Dt]:
    """`held` and what the tails have beyond `treq`, each once, in the order of keys."""
    pdus = {(pdu.src, pdu.seq): pdu for pdu in held}
    for tail in tails.values():
        for pdu in tail.pdus:
            if pdu.seq >= treq[pdu.src]:
                pdus.setdefault((pdu.src, pdu.seq), pdu)
    return sorted(pdus.values(), key=key)


def common(tails: Tails) -> tuple[int, ...]:
    """Up to where all of them have accepted each source's PDUs."""
    return tuple(map(min, zip(*(tail.treq for tail in tails.values()), strict=True)))


def taken(pdu_dst: int, src: int, seq: int, tails: Tails, ranks: Mapping[int, int]) -> bool:
    """Whether one of those with a tail has accepted that PDU: then all of them are given it."""
    return any(
        tail.treq[src] > seq for member, tail in tails.items() if pdu_dst >> ranks[member] & 1
    )


def tail_refusal(site: ClusterState, tail: Tail) -> str:
    """Why `tail`, which another member said, cannot be right, or ""."""
    n = site.n
    if len(tail.treq) != n or min(tail.treq) < 1 or tail.epoch < 0:
        return "tail with impossible fields"
    for pdu in tail.pdus:
        if type(pdu) is not site.KINDS.data or not 0 <= pdu.src < n:
            return "tail with a PDU that is no data"
        reason = refusal(site, pdu, site.group[pdu.src])
        if reason:
            return f"tail: {reason}"
    return ""
