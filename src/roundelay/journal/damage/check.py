"""Is a journal what was written?

`check` reads every byte and believes nothing.  It finds damaged blocks by their checksums, missing
records by their positions, and everything else (blocks exchanged, cut out, written by somebody
else) by the hash chain.  Indexes and Parquet follow from the segments: they are made again and
compared.  It can be used while a recorder is writing.

Of the hash chain alone many segments can be looked at at once: `examine` reads one segment, every
byte of it, and needs no other one; `follow` puts together what was found in all segments of a
journal.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Final

from msgspec import Struct, field

from roundelay.core.errors import ConfigError, MalformedPdu
from roundelay.core.positions import Range, count_of, union
from roundelay.journal.files import (
    ENDS,
    META,
    MISSING,
    SYNCED,
    Meta,
    index_of,
    link_text,
    look,
    look_at_mark,
    parquet_of,
    reached,
    read_ends,
    read_history,
    segments_of,
)
from roundelay.journal.format import NO_LINK, Head
from roundelay.journal.index import Builder, Index
from roundelay.journal.segment import Segment
from roundelay.journal.upkeep.opening import id_in, look_through
from roundelay.journal.upkeep.rewrite import build

NOWHERE: Final = -1
DISTRUSTED: Final = "is not what was sealed: the hash chain does not fit"
"""Blocks are good one by one, but not those that were there."""


class Problem(Struct, frozen=True):
    """Something in a journal that is not as it should be."""

    file: str
    what: str
    lo: int = NOWHERE
    hi: int = NOWHERE
    """Positions that are missing with it, half-open; both -1 where none are."""


class Verdict(Struct):
    """What `check` found."""

    group: str
    begin: int = 0
    end: int = 0
    durable: int = 0
    records: int = 0
    """That are here, whole or heads only."""
    bytes: int = 0
    segments: int = 0
    unsealed: int = 0
    problems: list[Problem] = field(default_factory=list)
    unfinished: str = ""
    """A write that was under way at the end; not a problem, nobody was told it is there."""
    chain: str = ""
    """The last link: journals with the same one have written the same bytes."""

    @property
    def missing(self) -> list[Range]:
        ranges = [(problem.lo, problem.hi) for problem in self.problems]
        return union([(lo, hi) for lo, hi in ranges if hi > lo >= 0])

    @property
    def good(self) -> bool:
        return not self.problems


def check(folder: Path) -> Verdict:
    """Read everything, believe nothing."""
    return JournalCheck(folder).verdict


class JournalCheck:
    """One reading of a journal: what is wrong with it, and the segments that lost records."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        meta, wrong = look(folder)
        paths = segments_of(folder)
        if meta is None:
            known = id_in(paths)
            if known is None:
                raise ConfigError("journal", folder, f"a folder with {META}")
            meta = Meta(known, "")
        self._meta = meta
        self.verdict = Verdict(meta.group)
        self._problems(wrong)
        self.lossy: dict[str, Segment] = {}
        """By name, as they were found."""
        self._chain = HashChain()
        self.verdict.durable, self._unmarked = look_at_mark(folder)
        if self._unmarked and (paths or self._unmarked != MISSING):
            self._problem(SYNCED, self._unmarked)
        self._problems(read_ends(folder)[1] + read_history(folder)[1])
        self._reached = reached(folder)
        self._expected = NOWHERE
        for path, following in zip_longest(paths, paths[1:]):
            try:
                self._segment(path, following)
            except FileNotFoundError:
                continue  # let go meanwhile
        if not paths and self._reached:
            self._problem(SYNCED, "no segment is left", 0, self._reached)
            self._expected = self._reached
        if paths:
            self._compare_ends()
        self.verdict.end = max(self._expected, 0)
        self.verdict.chain = self._chain.link.hex() if self._chain.known else ""

    def _problem(self, file: str, what: str, lo: int = NOWHERE, hi: int = NOWHERE) -> None:
        self.verdict.problems.append(Problem(file, what, lo, hi))

    def _problems(self, wrong: list[str]) -> None:
        """What is wrong with small files, each as `name: what`."""
        for text in wrong:
            name, _, what = text.partition(": ")
            self._problem(name, what)

    def _compare_ends(self) -> None:
        """Segments that are gone from the beginning, a chain that is not the one that was kept."""
        ends, _ = read_ends(self._folder)  # again: what is let go is noted first
        if ends is None:
            return
        if ends.first < self.verdict.begin:
            what = f"segments from {ends.first} on are gone; they were not let go"
            self._problem(ENDS, what, ends.first, self.verdict.begin)
            self.verdict.begin = ends.first
        if contradiction := self._chain.contradiction(ends.link_base, ends.link):
            self._problem(ENDS, contradiction)

    def _segment(self, path: Path, following: Path | None) -> None:
        verdict, name = self.verdict, path.name
        segment = Segment(path, self._meta.journal)
        behind = None if following is None else int(following.stem)
        look_through(segment, behind, self._reached, marked=not self._unmarked)
        verdict.segments += 1
        verdict.bytes += segment.size
        if segment.head_wrong:
            if following is None and segment.end == segment.base:
                verdict.unfinished = f"{name}: {segment.head_wrong}"  # just begun
                return
            self._problem(name, segment.head_wrong)
        if self._expected < 0:
            verdict.begin = segment.base
        elif segment.base > self._expected:
            self._problem(name, "missing before it", self._expected, segment.base)
            self._chain.known = False
        elif segment.base < self._expected:
            self._problem(name, f"begins before {self._expected}, where the one before ends")
        for damage in segment.damages:
            self._problem(name, damage.brief, damage.lo, damage.hi)
        for lo, hi in segment.gaps:
            self._problem(name, "gap", lo, hi)
        if segment.tail is not None:
            if following is None:
                verdict.unfinished = f"{name}: {segment.tail.brief}"
            else:
                self._problem(name, segment.tail.brief)
        if contradiction := self._chain.anchored(segment.head):
            self._problem(name, contradiction)
        self._expected = max(segment.end, self._expected)
        self._content(segment)
        if segment.missing or name in self.distrusted:
            self.lossy[name] = segment

    @property
    def distrusted(self) -> set[str]:
        """Names of segments whose blocks are good one by one, but not those that were sealed."""
        return {problem.file for problem in self.verdict.problems if problem.what == DISTRUSTED}

    def _content(self, segment: Segment) -> None:
        """What the blocks say, and what was made from them."""
        chain, apart = self._chain, segment.head.apart
        before = NO_LINK if apart else chain.link
        index = self._index(segment)
        if index is not None and not apart and not chain.known:
            before = index.head.before  # what was before it is damaged or gone: take its word
        self.verdict.records += segment.end - segment.base - count_of(segment.missing)
        builder = None if segment.damages else build(segment, before)
        link = NO_LINK if builder is None else builder.link
        if index is not None:
            with index:
                if builder is not None and segment.tail is None:
                    self._compare(segment, index, builder, before)
                link = index.head.link
        undamaged = not segment.damages and not segment.head_wrong
        chain.go_on(segment.head, link, index is not None or (undamaged and chain.known))
        if undamaged:
            self._parquet(segment)

    def _index(self, segment: Segment) -> Index | None:
        path = index_of(segment.path)
        try:
            return Index(path)
        except FileNotFoundError:
            self.verdict.unsealed += 1
        except (MalformedPdu, ValueError) as error:
            self._problem(path.name, str(error))
        return None

    def _compare(self, segment: Segment, index: Index, builder: Builder, before: bytes) -> None:
        name = segment.path.name
        if index.matches(builder.encode()):
            return
        if segment.head_wrong:
            return  # how often it was rewritten is not known
        if index.head.end_offset != segment.size:
            if segment.size > index.head.end_offset:
                self.verdict.unsealed += 1  # opened again; the index goes with the next record
            else:
                self._problem(index_of(segment.path).name, "of a longer segment")
        elif index.head.before != before:
            self._problem(name, "does not follow the one before it in the hash chain")
        elif index.head.link != builder.link:
            self._problem(name, DISTRUSTED, segment.base, segment.end)
        else:
            self._problem(index_of(segment.path).name, "index: not as it was written")

    def _parquet(self, segment: Segment) -> None:
        path = parquet_of(segment.path)
        if not path.exists():
            return
        from roundelay.journal.parquet import matches

        wrong = matches(segment, self._meta.group)
        if wrong:
            self._problem(path.name, wrong)


# ------------------------------------------------------------------------ the chain


class HashChain(Struct):
    """The links of a journal's originals, from segment to segment."""

    link: bytes = NO_LINK
    known: bool = False
    """Is `link` the one that the next original follows?"""
    links: dict[int, bytes] = field(default_factory=dict)
    """By where the segments begin."""

    def contradiction(self, base: int, link: str) -> str:
        """What is wrong if somebody has `link`, in hex, for the segment that begins at `base`."""
        known = self.links.get(base)
        if not link or known is None or known.hex() == link:
            return ""
        return f"has another link for the segment that begins at {base}"

    def anchored(self, head: Head) -> str:
        """What is wrong with the link that a segment's head has of an earlier one."""
        return self.contradiction(head.anchor_base, link_text(head.anchor))

    def go_on(self, head: Head, link: bytes, known: bool) -> None:
        """Behind a segment, whose own link is `link` if `known`."""
        if head.filled:
            self.known = False  # it may stand for an original that was lost
            return
        self.known = known or head.rewritten > 0
        self.link = head.origin if head.rewritten else link
        if self.known:
            self.links[head.base] = self.link


class Examined(Struct, frozen=True):
    """What one segment says of itself."""

    segment: str
    head: Head
    end: int
    problems: tuple[str, ...] = ()
    sealed: bool = False
    before: bytes = NO_LINK
    link: bytes = NO_LINK
    """As its index has it."""
    computed: bytes | None = None
    """As its blocks have it; None if that cannot be said."""
    gone: bool = False


class ChainCheck(Struct):
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
        return Examined(path.name, Head(journal, int(path.stem)), int(path.stem), gone=True)
    problems = [segment.head_wrong] if segment.head_wrong else []
    problems += map(str, segment.damages)
    end, sealed, before, link = segment.end, False, NO_LINK, NO_LINK
    try:
        with Index(index_of(path)) as index:
            if index.head.end > end:
                problems.append(f"cut off: positions {end} to {index.head.end - 1} are gone")
                end = index.head.end
            if segment.size <= index.head.end_offset:  # else opened again, and appended to
                sealed, before, link = True, index.head.before, index.head.link
    except FileNotFoundError:
        pass
    except (OSError, MalformedPdu, ValueError) as error:
        problems.append(f"{index_of(path).name}: {error}")
    computed = build(segment, before).link if sealed and not problems else None
    return Examined(path.name, segment.head, end, tuple(problems), sealed, before, link, computed)


def follow(examined: Sequence[Examined]) -> ChainCheck:
    """Go along the segments of one journal, in the order of their positions."""
    found, chain, expected = ChainCheck(), HashChain(), NOWHERE
    for segment in examined:
        head = segment.head
        if segment.gone:
            chain.known = False
            continue
        found.problems += [f"{segment.segment}: {what}" for what in segment.problems]
        found.unsealed += not segment.sealed
        if 0 <= expected < head.base:
            chain.known = False  # something is missing before it
        expected = max(expected, segment.end)
        broken = [chain.anchored(head)]
        if segment.computed is not None:
            if segment.computed != segment.link:
                broken.append(DISTRUSTED)
                found.distrusted.append(segment.segment)
            elif chain.known and not head.apart and segment.before != chain.link:
                broken.append("does not follow the one before it in the hash chain")
            else:
                found.checked += 1
        for what in filter(None, broken):
            found.problems.append(f"{segment.segment}: {what}")
            found.broken = True
        chain.go_on(head, segment.link, segment.sealed)
    found.link = chain.link.hex() if chain.known else ""
    return found
