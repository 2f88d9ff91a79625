"""What is missing in a journal, put in from journals of the same group.

Repair never lowers what can be recovered.  A damaged segment is written anew, with what can be
saved of its damaged blocks (`salvage`) and with what a source has, and takes the name of the old
one; the damaged bytes stay beside it (`.damaged`).  Where nothing can be gained, nothing is
changed.  What nobody has is said.  Indexes and Parquet that are damaged are made again, from the
segments.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct, field

from roundelay.core.errors import ConfigError
from roundelay.core.positions import Range, difference, union
from roundelay.core.selection import Selection
from roundelay.journal.damage.check import JournalCheck, Problem, check
from roundelay.journal.damage.salvage import salvage
from roundelay.journal.files import PARQUET, lock, look, read_history, segments_of, write_history
from roundelay.journal.format import GAP, HEADS_ONLY, Run, gathered
from roundelay.journal.journal import Journal, JournalConfig
from roundelay.journal.reader import Reader
from roundelay.journal.segment import Segment
from roundelay.journal.upkeep.opening import look_through

TOGETHER_BYTES: Final = 8 << 20


class RepairReport(Struct):
    """What `repair` found and did."""

    problems: list[Problem] = field(default_factory=list)
    restored: list[Range] = field(default_factory=list)
    """Positions that a source had."""
    saved: list[Range] = field(default_factory=list)
    """Positions that were saved from damaged blocks."""
    still_missing: list[Range] = field(default_factory=list)
    rewritten: list[str] = field(default_factory=list)
    """Files that were written anew."""


class Sources:
    """What other journals of a group have."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self.readers = [Reader(folder) for folder in folders]

    def fetch(self, lo: int, hi: int) -> Iterator[Run]:
        """The records between two positions that any of them has, in order."""
        at = lo
        while at < hi:
            first = [
                (run.position, run.flags & HEADS_ONLY, number)
                for number, reader in enumerate(self.readers)
                if (run := next(_good(reader, at, hi), None)) is not None
            ]
            if not first:
                return
            at, flags, number = min(first)
            for run in _good(self.readers[number], at, hi):
                if run.position != at or run.flags & HEADS_ONLY != flags:
                    break
                yield run
                at = run.end

    def have_some(self, ranges: Iterable[Range]) -> bool:
        return any(True for lo, hi in ranges for _ in self.fetch(lo, hi))

    def have_all(self, lo: int, hi: int) -> bool:
        return union([(run.position, run.end) for run in self.fetch(lo, hi)]) == [(lo, hi)]


def _good(reader: Reader, lo: int, hi: int) -> Iterator[Run]:
    return (run for run in reader.read(Selection(since=lo, until=hi)) if not run.flags & GAP)


def repair(folder: Path, sources: Sequence[Path] = (), group: str = "") -> RepairReport:
    """Put in what is missing, as far as a source has it; nobody may be recording meanwhile."""
    others = Sources(sources)
    lock(folder).close()  # whoever records here must not be disturbed, nor be read half-way
    checked = JournalCheck(folder)
    verdict, distrusted = checked.verdict, checked.distrusted
    done = RepairReport(verdict.problems)
    meta, _ = look(folder)
    if meta is not None:
        group = meta.group
    elif not group:
        groups = {reader.meta.group for reader in others.readers}
        if len(groups) != 1:
            raise ConfigError("group", repr(group), "the group's name: journal.json is damaged")
        group = groups.pop()
    for reader in others.readers:
        if reader.meta.group != group:
            raise ConfigError("from", reader.folder, f"a journal of {group}")
    # Each segment that lost positions, with the records that its damaged blocks still show.
    saved = {
        name: [] if meta is None or name in distrusted else salvage(segment)
        for name, segment in checked.lossy.items()
    }
    gain = (
        any(problem.hi <= problem.lo for problem in verdict.problems)
        or any(saved.values())
        or others.have_some(verdict.missing)
    )
    lost = verdict.missing if not segments_of(folder) else []
    if lost and not others.have_some(lost):
        gain = False  # whoever opens it now begins a journal that knows of no loss
    if not gain:
        done.still_missing = verdict.missing
        return done
    for problem in verdict.problems:
        if problem.file.endswith((".rji", PARQUET)):
            (folder / problem.file).unlink(missing_ok=True)  # it is made again
            done.rewritten.append(problem.file)
    config = JournalConfig(parquet=any(folder.glob(f"*{PARQUET}")))
    journal = Journal(folder, group, config)
    try:
        journal.scrub()  # else it depends on the keeper's thread what is known to be missing
        for lo, hi in lost:  # no segment is left: what others have is recorded once more
            for runs in gathered(others.fetch(lo, hi), TOGETHER_BYTES):
                for run in runs:
                    journal.add(run)
                journal.commit()
                done.restored += union([(run.position, run.end) for run in runs])
        for name, runs in saved.items():
            _mend(journal, name, runs, name in distrusted, others, done)
        for lo, hi in journal.missing:
            for runs in gathered(others.fetch(lo, hi), TOGETHER_BYTES):
                done.restored += journal.fill(runs)
        journal.keeper.settle()
        if history := read_history(folder)[0]:
            write_history(folder, history, journal.disk)
        done.still_missing = journal.missing
        for lo, hi in lost:  # before the first and behind the last that others have
            done.still_missing += [(lo, journal.begin), (journal.end, hi)]
        done.still_missing = union(done.still_missing)
    finally:
        journal.close()
    done.saved, done.restored = union(done.saved), union(done.restored)
    if distrusted:
        done.still_missing = union([*done.still_missing, *check(folder).missing])
    return done


def _mend(
    journal: Journal,
    name: str,
    saved: list[Run],
    distrust: bool,
    others: Sources,
    done: RepairReport,
) -> None:
    """Write one damaged segment anew, if that gains something."""
    segments = {segment.path.name: segment for segment in journal.segments}
    segment = segments.get(name)
    if segment is None:
        return
    base, end = segment.base, segment.end
    if distrust and not others.have_all(base, end):
        return  # it stays: what it has may be right, and nobody has anything better
    if segment.sealed and not distrust:  # the index said it is good; the blocks know better
        following = next((other.base for other in journal.segments if other.base > base), None)
        segment = Segment(segment.path, segment.journal)
        look_through(segment, following, end, marked=True)

    def fetch(lo: int, hi: int) -> Iterator[Run]:
        """What the damaged blocks show, and between it what others have."""
        at = lo
        for run in (run for run in saved if run.end > lo and run.position < hi):
            if run.position > at:
                yield from others.fetch(at, run.position)
            yield run
            at = run.end
        if at < hi:
            yield from others.fetch(at, hi)

    if distrust or any(True for lo, hi in segment.missing for _ in fetch(lo, hi)):
        if journal.active is segment:
            journal.complete()
            journal.keeper.settle()  # it has its link of the chain before it is replaced
        mended = journal.keeper.mend(segment, fetch, distrust)
        kept = [(run.position, run.end) for run in saved]
        done.saved += kept
        done.restored += difference(mended, kept)
        done.rewritten.append(name)
