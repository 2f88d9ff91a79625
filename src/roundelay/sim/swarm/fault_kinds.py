"""What can go wrong in a random run, by name, and how a plan writes it down."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

FAULT_KINDS: Final[dict[str, str]] = {
    "loss": "a copy is lost, independently of all others",
    "burst": "a receiver loses 1 to 200 copies in a row",
    "duplicate": "a copy arrives twice",
    "replay": "a copy arrives again after reformations",
    "delay": "a copy takes up to 100 round trips longer",
    "reorder": "a copy is overtaken",
    "clog": "a link holds everything back for a while",
    "corrupt": "bits of a copy are flipped",
    "truncate": "the end of a copy is cut off",
    "alien-version": "a copy has another version of the wire format",
    "target:transfer": "the k-th acknowledgement that passes the token is lost",
    "target:confirm": "the k-th confirmation is lost",
    "target:newtl": "the k-th announcement of a new list is lost",
    "target:vote1": "the k-th vote of phase I is lost",
    "target:vote2": "the k-th vote of phase II is lost",
    "target:newtoken": "the k-th token of a new list is lost",
    "target:abort": "the k-th abort is lost",
    "partition:symmetric": "two sides do not hear each other",
    "partition:one-way": "some sites do not hear others, which hear them",
    "partition:non-transitive": "two sites do not hear each other, the rest hear both",
    "partition:flapping": "a partition comes and goes",
    "crash:memory": "a site is gone for a while and goes on as it was",
    "crash:disk": "a site restarts without its memory",
    "crash:nothing": "a site restarts without its disk",
    "crash:mid-batch": "a site crashes between two of its persists and sends",
    "crash:beyond-L": "more than L sites are down at once",
    "disk:torn-tail": "a crash leaves the first part of what was being written",
    "disk:error": "a write fails, and the site stops instead of going on",
    "disk:lost-unsynced": "a crash loses records that needed no sync",
    "disk:slow": "a write takes longer than all time-outs",
    "power-cut": "all sites stop at once, and all restart",
    "pause": "a site freezes past all time-outs and goes on",
    "pause:token-site": "the holder of the token freezes and goes on with the token",
    "twin": "a site freezes, another process takes its place, and then it goes on, too",
    "storm:reform": "all sites start a reformation at once",
    "storm:restart": "a site restarts again and again",
    "clock:rate": "a clock runs up to 10 % too fast or too slow",
    "clock:jump": "a clock jumps forward by a day",
    "slow-consumer": "an application reads too slowly and is detached",
    "target:dt": "the k-th data PDU of a cluster is lost",
    "target:null": "the k-th acknowledging PDU of a cluster is lost",
    "target:retx": "the k-th request of a cluster is lost",
    "target:stat": "the k-th status PDU of a cluster is lost",
    "target:rst": "the k-th reset PDU of a cluster is lost",
    "fail": "a member of a cluster stops for good, and the others reopen it without",
}
"""Every kind of fault a simulated run can suffer, and what it does."""


def kinds(text: str, prefix: str = "") -> tuple[str, ...]:
    """The kinds of faults that `text` lists, each behind `prefix`.

    >>> kinds("dt null", "target:")
    ('target:dt', 'target:null')
    """
    return tuple(prefix + word for word in text.split())


LINK_KINDS: Final = kinds(
    "loss burst duplicate replay delay reorder corrupt truncate alien-version"
)
"""Kinds that are in place during the whole safety phase; the others strike at points of time."""

PARTITIONS: Final = kinds("symmetric one-way non-transitive flapping", "partition:")

REFORMATION_TARGETS: Final = kinds("newtl vote1 vote2 newtoken abort", "target:")
"""Targets that exist in reformations only: the driver provokes one."""

CLUSTER_TARGETS: Final = kinds("dt null retx stat rst", "target:")
"""PDUs that only the cluster protocols have."""


class LinkSpec(Struct, frozen=True):
    """A link by the name of its class, with its arguments."""

    link: str
    args: tuple[float, ...]


class Strike(Struct, frozen=True):
    """A fault at a point of time; its kind decides what `lasts_ns` and `args` mean."""

    at: int
    kind: str
    lasts_ns: int
    args: tuple[int, ...] = ()
