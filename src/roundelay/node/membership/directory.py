"""Who is who: names, UUIDs and addresses of the nodes on the medium, from what they say of
themselves (INFO).  Whether they are alive is for the environment table of AutoRM to say.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from roundelay.core.engine import SECOND
from roundelay.node.medium.media import Address
from roundelay.wire.control import GroupInfo, Info

NODES_MAX: Final = 1024
LATER_NS: Final = 5 * SECOND
"""For so long after it was heard a life keeps its name from an earlier one.  Longer would lock out
a process that was restarted on a machine whose clock was put back."""


def tag_of(uuid: bytes) -> int:
    """What PDUs carry of a life: a few bytes of its UUID; 0 of one that is not known."""
    return int.from_bytes(uuid[:4], "big")


def address_of(info: Info, source: Address) -> Address:
    """Where the node that said `info` is reached."""
    return info.address if info.address[0] != "0.0.0.0" else (source[0], info.address[1])


class Known(Struct):
    """A node we have heard of."""

    name: str
    uuid: bytes
    address: Address
    groups: dict[str, GroupInfo]
    version: str
    seen: int
    """When it last said who it is (ns, monotonic)."""
    birth: int = 0
    """When that life of the name began (`node.membership.identity`)."""


class Directory(Struct):
    """The nodes that have told us who they are; a restarted one replaces its earlier self."""

    by_name: dict[str, Known] = {}
    by_uuid: dict[bytes, Known] = {}
    past: dict[int, None] = {}
    """Tags of lives that a later one has followed: their PDUs are void."""
    former: dict[bytes, str] = {}
    """Their names: what they sent before may still be on its way to applications."""

    def outlived(self, info: Info, now: int) -> bool:
        """Whether a later life of that name is there: what the earlier one says is void."""
        known = self.by_name.get(info.name)
        if (
            known is None
            or (known.birth, known.uuid) <= (info.birth, info.uuid)
            or now - known.seen > LATER_NS
        ):
            return False
        self.bury(info.uuid, info.name)
        return True

    def bury(self, uuid: bytes, name: str) -> None:
        """A later life has that name."""
        self.past[tag_of(uuid)] = None
        if len(self.past) > NODES_MAX:
            del self.past[next(iter(self.past))]
        self.former[uuid] = name
        if len(self.former) > NODES_MAX:
            del self.former[next(iter(self.former))]

    def hear(self, info: Info, source: Address, now: int) -> bool:
        """Note what a node says of itself; True if it was not known before."""
        address = address_of(info, source)
        groups = {group.name: group for group in info.groups}
        old = self.by_name.get(info.name)
        if old is not None and old.uuid != info.uuid:
            self.by_uuid.pop(old.uuid, None)
            self.bury(old.uuid, old.name)
            self.past.pop(tag_of(info.uuid), None)
            self.former.pop(info.uuid, None)
            old = None
        known = Known(info.name, info.uuid, address, groups, info.version, now, info.birth)
        self.by_name[info.name] = known
        self.by_uuid[info.uuid] = known
        while len(self.by_name) > NODES_MAX:
            oldest = min(self.by_name.values(), key=lambda known: known.seen)
            self.forget(oldest)
        return old is None

    def forget(self, known: Known) -> None:
        if self.by_name.get(known.name) is known:
            del self.by_name[known.name]
        self.by_uuid.pop(known.uuid, None)

    def named(self, uuid: bytes) -> bool:
        """Whether it has told its name."""
        return uuid in self.by_uuid or uuid in self.former

    def name_of(self, uuid: bytes) -> str:
        """The name, also of a life that another has followed; or the UUID in hexadecimal of a node
        that has told none."""
        known = self.by_uuid.get(uuid)
        return known.name if known is not None else self.former.get(uuid, uuid.hex())
