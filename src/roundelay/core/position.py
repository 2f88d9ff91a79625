"""A position in a group's order belongs to a history of the group.

A group whose members are all gone can begin anew, and a network that is split from the first moment
can begin two of them: each is a *history* with an id, and position 240 of one is not that of
another.  A history that goes on behind what was recorded of an earlier one says so in its id,
`ID@PARENT:BASE`: below BASE both hold the same messages.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from roundelay.core.errors import ConfigError

SEQ_MAX = 1 << 62


class Position(Struct, frozen=True, gc=False):
    """`seq` in the history of that id; written `HISTORY:SEQ`.

    >>> str(Position("6f1d", 240)), Position.parse("6f1d@09ab:200:240")
    ('6f1d:240', Position(history='6f1d@09ab:200', seq=240))
    """

    history: str
    """Empty: of whichever history there is."""
    seq: int

    def __str__(self) -> str:
        return f"{self.history}:{self.seq}"

    @classmethod
    def parse(cls, text: str, field: str = "position") -> Position:
        """What `str` has written."""
        history, colon, seq = text.rpartition(":")
        if not colon or not (seq.isascii() and seq.isdecimal()) or int(seq) > SEQ_MAX:
            raise ConfigError(field, repr(text), "HISTORY:SEQ, as str(group.position) writes it")
        return cls(history, int(seq))


class Since(Struct, frozen=True):
    """Where an application goes on."""

    seq: int = -1
    """-1: where the group is."""
    time: int = 0
    """Not before that (ns since 1970)."""
    history: str = ""
    """What `seq` belongs to; empty: whichever history there is."""


LIVE: Final = Since()


def lineage(history: str) -> list[tuple[str, int]]:
    """The id of a history, then those of the histories it continues, each with the first position
    that they do not share.

    >>> lineage("6f1d"), lineage("6f1d@09ab:200")
    ([('6f1d', 4611686018427387904)], [('6f1d', 4611686018427387904), ('09ab', 200)])
    """
    own, *before = history.split("@")
    ends, shared = [(own, SEQ_MAX)], SEQ_MAX
    for text in before:
        parent, _, base = text.partition(":")
        shared = min(shared, int(base)) if base.isascii() and base.isdecimal() else 0
        ends.append((parent, shared))
    return ends


def holds(history: str, position: Position) -> bool:
    """Whether a position is one of `history`, as far as the ids say: of itself, or of the part it
    shares with one that it continues.

    >>> holds("6f1d@09ab:200", Position("09ab", 200)), holds("6f1d@09ab:200", Position("09ab", 201))
    (True, False)
    """
    asked = position.history.partition("@")[0]
    return not asked or any(id_ == asked and position.seq <= end for id_, end in lineage(history))
