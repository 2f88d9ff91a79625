"""What other nodes have said last of their part in a group: recorders, memories, synced files."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

from roundelay.core.engine import NEVER
from roundelay.wire.control import Kept, Recorded, Synced

if TYPE_CHECKING:
    from roundelay.node.node import Node

Word = TypeVar("Word", Recorded, Kept, Synced)


class HeardWords(dict[tuple[str, str], tuple[Word, int]]):
    """The last word of each node on each group, and when it was heard: of `most` of them, until
    nothing more is heard for `forget_ns`.  `kind` is what they are called when there are more."""

    def __init__(self, node: Node, kind: str, most: int, forget_ns: int) -> None:
        super().__init__()
        self._node = node
        self._kind = kind
        self._most = most
        self._forget_ns = forget_ns

    def hear(self, word: Word, now: int) -> bool:
        """Return whether there is room for it."""
        key = (word.group, word.name)
        room = key in self or len(self) < self._most
        if room:
            self[key] = (word, now)
        else:
            self._node.drop(f"too many {self._kind}")
        return room

    def forget(self, now: int) -> None:
        """A few times a second."""
        for key, (_, seen) in list(self.items()):
            if now - seen > self._forget_ns:
                del self[key]

    def of(self, group: str, within_ns: int = NEVER) -> list[Word]:
        """Return what was said of a group, as far as it was heard so short ago."""
        since = time.monotonic_ns() - within_ns
        return [word for word, seen in self.values() if word.group == group and seen > since]
