"""How histories of a group are written: `ID`, or `ID@PARENT:BASE` for one that goes on from another
(`core.position`)."""

from __future__ import annotations

import secrets
from typing import Final

from roundelay.core.token.pdu import History

ID_MAX: Final = (1 << 63) - 1
"""Of an id in a list."""


def history_name(past: History) -> str:
    """The history that the lists of a fixed roster say they belong to; empty: none yet.

    >>> history_name((0, 0, 0)), history_name((255, 0, 0)), history_name((255, 16, 40))
    ('', '00000000000000ff', '00000000000000ff@0000000000000010:40')
    """
    own, parent, base = past
    if not own:
        return ""
    return f"{own:016x}@{parent:016x}:{base}" if parent else f"{own:016x}"


def new_history(parent: str, base: int) -> str:
    """A history that nobody has had yet: it goes on from position `base` of `parent`, or from
    nothing if that is empty."""
    fresh = secrets.token_hex(8)
    return f"{fresh}@{parent.partition('@')[0]}:{base}" if parent else fresh


def number_of(history: str) -> int:
    """The id of a history as lists have it; 0 if it is not written as ours are.

    >>> number_of("00ff@09:7"), number_of("8000000000000001"), number_of("mine")
    (255, 1, 0)
    """
    try:
        return int(history.partition("@")[0], 16) & ID_MAX
    except ValueError:
        return 0


def later_history(history: str, past: History, base: int) -> str:
    """The history of an epoch that began in `history`, at position `base`, and whose lists say
    `past`: another one if its members had to begin anew meanwhile, once or several times.

    >>> later_history("00ff@09:7", (255, 0, 0), 100), later_history("00ff@09:7", (16, 255, 40), 100)
    ('00ff@09:7', '0000000000000010@00ff:140')
    >>> later_history("00ff@09:7", (17, 16, 50), 100)
    '0000000000000011@0000000000000010:150'
    """
    own, parent, begun = past
    if not parent:
        return history
    began = parent == number_of(history)
    before = history.partition("@")[0] if began else f"{parent:016x}"
    return f"{own:016x}@{before}:{base + begun}"
