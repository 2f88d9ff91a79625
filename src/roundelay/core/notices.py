"""Notices: what an engine tells its application besides messages.

Each kind is a class of its own, with its name as `tag`.  Traces, checkers and live code that pass
notices on read them as `kind` and `info`, the values of the fields in their order.  Ranges are half
open: from `lo` up to, not including, `hi`.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct, structs

from roundelay.core.bundle import Bundle

Info = tuple[object, ...]


class Notice(Struct, frozen=True, gc=False):
    """Base of all notices."""

    @property
    def kind(self) -> str:
        return str(self.__struct_config__.tag)

    @property
    def info(self) -> Info:
        return structs.astuple(self)


class UnknownNotice(Notice, frozen=True, gc=False):
    """Of a kind, or with values, that this version has no class for: read from a trace."""

    name: str
    values: Info

    @property
    def kind(self) -> str:
        return self.name

    @property
    def info(self) -> Info:
        return self.values


class RangeNotice(Notice, frozen=True, gc=False):
    """Base of those that tell of a range and nothing else."""

    lo: int
    hi: int


# -- of every group with members ----------------------------------------------------------------


class MemberSuspected(Notice, frozen=True, gc=False, tag="suspect"):
    """`member` does not answer; of GRSB: a recorder that is not waited for any more."""

    member: int


class GroupBroken(Notice, frozen=True, gc=False, tag="broken"):
    """The group cannot go on by itself."""

    reason: str


class GapUnavailable(RangeNotice, frozen=True, gc=False, tag="gap_unavailable"):
    """The messages of these positions must come from elsewhere."""


# -- the token protocol -------------------------------------------------------------------------


class ListInForce(Notice, frozen=True, gc=False, tag="view"):
    """A token list is in force; the first message stamped under it has the position `start`."""

    version: tuple[int, int]
    members: tuple[int, ...]
    token_site: int
    start: int


class Blocked(Notice, frozen=True, gc=False, tag="blocked"):
    """No list can be formed: who is silent, and who has forgotten what it would have to know."""

    reason: str
    silent: tuple[int, ...]
    forgetful: tuple[int, ...]


class Unblocked(Notice, frozen=True, gc=False, tag="unblocked"):
    """A list is formed again."""


class OwnIndeterminate(RangeNotice, frozen=True, gc=False, tag="indeterminate"):
    """Own messages of these numbers may have been delivered, or not."""


# -- clusters, positive acknowledgement ---------------------------------------------------------


class Undelivered(Notice, frozen=True, gc=False, tag="undelivered"):
    """Own messages that are given back when a cluster is reopened."""

    bundles: tuple[Bundle, ...]


class MissedOf(Notice, frozen=True, gc=False, tag="missed"):
    """Messages of `source` with these numbers will not come: it gave up, or has started again."""

    source: int
    lo: int
    hi: int


# -- AutoRM: its nodes are named by UUIDs ---------------------------------------------------------


class NodeUp(Notice, frozen=True, gc=False, tag="up"):
    """A node is heard for the first time, or again."""

    uuid: bytes


class NodeDown(Notice, frozen=True, gc=False, tag="down"):
    """A node has been silent for too long."""

    uuid: bytes


class NodeDropped(Notice, frozen=True, gc=False, tag="dropped"):
    """A node did not acknowledge what it was sent and is not waited for any more."""

    uuid: bytes


class TransferEnded(Notice, frozen=True, gc=False, tag="sent"):
    """Nothing more is done about the message with that tag: who has it, and who was given up."""

    tag: int
    reached: tuple[bytes, ...]
    given_up: tuple[bytes, ...]


# -- GRSB ---------------------------------------------------------------------------------------


class RetransmitterHeard(Notice, frozen=True, gc=False, tag="up"):
    """The retransmitter is heard."""


class RetransmitterSilent(Notice, frozen=True, gc=False, tag="down"):
    """It is not heard any more."""


class OwnPlaced(Notice, frozen=True, gc=False, tag="stable"):
    """Own messages of these numbers have their place, the first of them `position`."""

    lo: int
    hi: int
    position: int


class OwnRefused(RangeNotice, frozen=True, gc=False, tag="refused"):
    """Own messages of these numbers will get no place."""


class RecordedUpto(Notice, frozen=True, gc=False, tag="recorded"):
    """Everything below `upto` is recorded."""

    upto: int


class Retracted(RangeNotice, frozen=True, gc=False, tag="retracted"):
    """What was delivered from `lo` on, up to `hi`, was taken back: a new reign has begun there."""


class NeverRecorded(RangeNotice, frozen=True, gc=False, tag="missed"):
    """No recorder has these positions, nor ever will."""


class ReplayComplete(Notice, frozen=True, gc=False, tag="replayed"):
    """The answer to question `query` is complete up to `end`."""

    query: int
    end: int


class ReignBegun(Notice, frozen=True, gc=False, tag="reign"):
    """A reign begins with this site as its retransmitter."""

    epoch: int
    retransmitter: int
    acknowledger: int


class NoReign(Notice, frozen=True, gc=False, tag="broken"):
    """No reign can begin: why, and without whom."""

    reason: str
    silent: tuple[int, ...]

    @property
    def info(self) -> Info:
        return (self.reason, *self.silent)


class Voting(Notice, frozen=True, gc=False, tag="voting"):
    """A member of the council that had lost its disk has its vote again."""


class Waits(Notice, frozen=True, gc=False, tag="waits"):
    """Without these sites the group stands still."""

    sites: tuple[int, ...]

    @property
    def info(self) -> Info:
        return self.sites


class LineMode(Notice, frozen=True, gc=False, tag="line"):
    """Which lines are used: `dual`, `single` or `only-b`."""

    mode: str


# -- the hierarchy ------------------------------------------------------------------------------


class TrunkState(Notice, frozen=True, gc=False, tag="trunk"):
    """The global level is heard in this network (`up`), or not (`down`)."""

    state: str


class NetworkActive(Notice, frozen=True, gc=False, tag="active"):
    """The global level waits for this network again."""

    net: int


class NetworkInactive(Notice, frozen=True, gc=False, tag="inactive"):
    """It does not wait for it any more."""

    net: int


BY_KIND: Final[dict[tuple[str, int], type[Notice]]] = {
    (str(cls.__struct_config__.tag), len(cls.__struct_fields__)): cls
    for cls in Notice.__subclasses__() + RangeNotice.__subclasses__()
    if cls.info is Notice.info and cls.__struct_config__.tag
}
"""The class of a kind with so many values."""


def notice(kind: str, *info: object) -> Notice:
    """The notice of that kind and these values.

    >>> notice("suspect", 3), notice("suspect", 3).info, notice("odd", 1).kind
    (MemberSuspected(member=3), (3,), 'odd')
    """
    cls = BY_KIND.get((kind, len(info)))
    return UnknownNotice(kind, info) if cls is None else cls(*info)
