"""The hash chain of a journal, looked at segment by segment, so that many can be looked at at once.

`examine` reads one segment, every byte of it, and needs no other one.  `follow` puts the findings
of all segments of a journal together and says whether the chain holds.  (`check` does both in one
go, and compares indexes and Parquet as well.)
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct, field

from roundelay.core.errors import MalformedPdu
from roundelay.journal.files import index_of
from roundelay.journal.format import NO_LINK
from roundelay.journal.index import Index
from roundelay.journal.segment import Segment
from roundelay.journal.upkeep.rewrite import build


class Examined(Struct, frozen=True):
    """What one segment says of itself; links are in hex, empty where there is none."""

    segment: str
    base: int
    end: int
    bytes: int
    sealed: bool = False
    filled: bool = False
    rewritten: int = 0
    before: str = ""
    link: str = ""
    """As its index has it."""
    computed: str = ""
    """As its blocks have it."""
    origin: str = ""
    anchor_base: int = 0
    anchor: str = ""
    problems: tuple[str, ...] = ()
    missing: tuple[tuple[int, int], ...] = ()
    """Positions it ought to have and does not."""
    gone: bool = False

    @property
    def whole(self) -> bool:
        """Are all its blocks good?  Gaps that were recorded as such do not matter here."""
        return not self.problems


class Chain(Struct):
    """Does the hash chain of a journal hold?"""

    link: str = ""
    """The last one; journals with the same have written the same bytes."""
    checked: int = 0
    """Sealed segments whose blocks have the link that was computed when they were sealed."""
    unsealed: int = 0
    """Segments that have no link yet."""
    problems: list[str] = field(default_factory=list)
    distrusted: list[str] = field(default_factory=list)
    """Segments whose blocks are good one by one, but not the ones that were sealed."""
    broken: bool = False
    """One of the problems is in the chain itself, not only a damaged block."""


def examine(path: Path, journal: bytes) -> Examined:
    """Read a segment, believe nothing."""
    try:
        segment = Segment(path, journal)
        segment.scan()
    except FileNotFoundError:  # retention let it go
        return Examined(path.name, int(path.stem), int(path.stem), 0, gone=True)
    problems = [segment.head_wrong] if segment.head_wrong else []
    problems += [
        f"{one.bytes} bytes at {one.offset} are damaged ({one.why}), positions {one.lo} to "
        f"{one.hi - 1}"
        for one in segment.damages
    ]
    end, missing = segment.end, segment.missing
    before = link = computed = b""
    try:
        with Index(index_of(path)) as index:
            before, link, sealed = index.head.before, index.head.link, True
            if index.head.end > end:
                problems.append(f"cut off: positions {end} to {index.head.end - 1} are gone")
                missing = [*missing, (end, index.head.end)]
                end = index.head.end
            if segment.size > index.head.end_offset:
                sealed, before, link = False, b"", b""  # opened again, and appended to
    except (OSError, MalformedPdu, ValueError) as error:
        sealed = False
        if not isinstance(error, FileNotFoundError):
            problems.append(f"{index_of(path).name}: {error}")
    if sealed and not problems:
        computed = build(segment, before).link
    head = segment.head
    return Examined(
        path.name,
        segment.base,
        end,
        segment.size,
        sealed=sealed,
        filled=segment.filled,
        rewritten=head.rewritten,
        before=before.hex(),
        link=link.hex(),
        computed=computed.hex(),
        origin=head.origin.hex() if head.rewritten else "",
        anchor_base=head.anchor_base,
        anchor=head.anchor.hex() if head.anchor != NO_LINK else "",
        problems=tuple(problems),
        missing=tuple(missing),
    )


def follow(examined: Sequence[Examined]) -> Chain:
    """Go along the segments of one journal, in the order of their positions."""
    chain = Chain()
    link, known, expected = "", False, -1
    links: dict[int, str] = {}
    for one in examined:
        if one.gone:
            known = False
            continue
        chain.problems += [f"{one.segment}: {what}" for what in one.problems]
        chain.unsealed += not one.sealed
        if 0 <= expected < one.base:
            known = False  # something is missing before it
        expected = max(expected, one.end)
        if one.anchor and links.get(one.anchor_base, one.anchor) != one.anchor:
            _broken(
                chain, one, f"has another link for the segment that begins at {one.anchor_base}"
            )
        apart = one.filled or one.rewritten > 0
        if one.sealed and one.computed:
            if one.computed != one.link:
                _broken(chain, one, "is not what was sealed: the hash chain does not fit")
                chain.distrusted.append(one.segment)
            elif known and not apart and one.before != link:
                _broken(chain, one, "does not follow the one before it in the hash chain")
            else:
                chain.checked += 1
        if one.filled:
            known = False  # it may stand for an original that was lost
            continue
        known = one.sealed or one.rewritten > 0
        link = one.origin if one.rewritten else one.link
        if known:
            links[one.base] = link
    chain.link = link if known else ""
    return chain


def _broken(chain: Chain, one: Examined, what: str) -> None:
    chain.problems.append(f"{one.segment}: {what}")
    chain.broken = True
