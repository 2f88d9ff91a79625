"""How far a journal reaches, said in two places beside its segments.

A segment that is gone leaves no hole where it was the first or the last one.  So `ends.json`, and
the same in `ends.bak`, say where the journal begins, where its last segment begins, how far it
reached when it was last closed, and the last link of its hash chain.  Both are written when a
segment is begun or let go, and when the journal is closed; what is appended in between is told by
the `synced` mark.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec
from crc32c import crc32c
from msgspec import Struct

from roundelay.durable import Disk
from roundelay.journal.format import NO_LINK

ENDS: Final = "ends.json"
ENDS_COPY: Final = "ends.bak"


class Ends(Struct, frozen=True):
    """What a journal had at least, when this was written."""

    first: int = 0
    """Where the first segment begins; those before it were let go."""
    last: int = 0
    """Where the last segment begins."""
    end: int = 0
    """All below this was on disk."""
    link_base: int = 0
    link: str = ""
    """The last link of the hash chain, and where the segment begins that has it."""

    @property
    def reached(self) -> int:
        """Below this position there must be records, or a hole that is known."""
        return max(self.last, self.end)

    def text(self) -> bytes:
        known = msgspec.json.encode(self)
        return b"%08x %s\n" % (crc32c(known), known)


def ends_of(first: int, last: int, end: int, anchor: tuple[int, bytes]) -> Ends:
    base, link = anchor
    return Ends(first, last, end, base, link.hex() if link != NO_LINK else "")


def _read(path: Path) -> Ends | str:
    """What the file says, or what is wrong with it."""
    try:
        data = path.read_bytes()
        ends = msgspec.json.decode(data[9:], type=Ends)
        return ends if data == ends.text() else "not as it was written"
    except FileNotFoundError:
        return "missing"
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return "not as it was written"


def read_ends(folder: Path) -> tuple[Ends | None, list[str]]:
    """How far the journal reaches, and what is wrong with the copies.

    None, and nothing wrong, where there is no copy at all: journals of earlier versions have none.
    Between the two files the newer one counts: they are written one after the other.
    """
    said = {name: _read(folder / name) for name in (ENDS, ENDS_COPY)}
    good = [one for one in said.values() if isinstance(one, Ends)]
    wrong = [f"{name}: {one}" for name, one in said.items() if isinstance(one, str)]
    if not good:
        return None, [] if all(one == "missing" for one in said.values()) else wrong
    return max(good, key=lambda one: (one.reached, one.first)), wrong


def write_ends(folder: Path, ends: Ends, disk: Disk) -> None:
    for name in (ENDS, ENDS_COPY):
        if _read(folder / name) != ends:
            disk.put(folder / name, [ends.text()])
