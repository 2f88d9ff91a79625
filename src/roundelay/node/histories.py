"""How histories of a group are written: `ID`, or `ID@PARENT:BASE` for one that goes on from another
(`core.position`)."""

from __future__ import annotations

from roundelay.core.token.pdu import History


def history_name(past: History) -> str:
    """The history that the lists of a fixed roster say they belong to; empty: none yet.

    >>> history_name((0, 0, 0)), history_name((255, 0, 0)), history_name((255, 16, 40))
    ('', '00000000000000ff', '00000000000000ff@0000000000000010:40')
    """
    one, parent, base = past
    if not one:
        return ""
    return f"{one:016x}@{parent:016x}:{base}" if parent else f"{one:016x}"


def later_history(history: str, past: History, base: int) -> str:
    """The history of an epoch that began in `history`, at position `base`, and whose lists say
    `past`: another one if its members had to begin anew meanwhile.

    >>> later_history("ab12@09:7", (255, 0, 0), 100), later_history("ab12@09:7", (255, 16, 40), 100)
    ('ab12@09:7', '00000000000000ff@ab12:140')
    """
    one, parent, begun = past
    if not parent:
        return history
    return f"{one:016x}@{history.partition('@')[0]}:{base + begun}"
