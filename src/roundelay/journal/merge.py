"""Several recorders' journals of one group as one sequence: no gap that any of them can fill, no
record twice, and word of who has what.

    for job in jobs_of(group, [pieces(one, overlap=True) for one in readers]):
        for batch in merge(job, findings):       # on whichever machine
            ...

A record is what a recorder says of a position: sender, conference, kind and data.  (Its time is the
recorder's own, and may differ.)  A copy of which only the head was kept agrees with one that has
the data.  Where copies differ the recorders *disagree*, which total order excludes: most copies
win, then the recorder that comes first, and each such position is told, with the SHA-256 of every
copy.

The journals are read side by side, a window of positions at a time, so a job takes as much memory
as a few batches whatever its size.
"""

from __future__ import annotations

import hashlib
import logging
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import reduce
from itertools import chain, pairwise
from operator import or_
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct, field, structs

from roundelay.core.errors import ConfigError
from roundelay.core.positions import Range, difference, intersection, union
from roundelay.core.selection import EVERYTHING, Selection
from roundelay.journal.archive import ranges_of
from roundelay.journal.arrow import Piece, read_piece
from roundelay.journal.parquet import arrow, numpy, schema

if TYPE_CHECKING:
    from numpy import int64
    from numpy.typing import NDArray

np, pa = numpy(), arrow()

log: Final = logging.getLogger("roundelay.journal")
JOB_BYTES: Final = 128 << 20
RECORDERS_MAX: Final = 62
DISPUTES_MAX: Final = 1000
"""Positions that a job tells one by one; of others it gives the number."""


class RecorderCopy(Struct, frozen=True):
    """A piece, and whose it is."""

    recorder: int
    lane: int
    """Pieces of one lane do not overlap."""
    piece: Piece


class Job(Struct, frozen=True):
    """Positions `lo` up to `hi` of a group, and all there is of them."""

    group: str
    lo: int
    hi: int
    copies: tuple[RecorderCopy, ...]

    @property
    def bytes(self) -> int:
        return sum(_share(copy.piece, self.lo, self.hi) for copy in self.copies)


class Dispute(Struct, frozen=True):
    """A position of which recorders have different records."""

    position: int
    chosen: int
    """Whose record was taken."""
    copies: tuple[tuple[int, str], ...]
    """(recorder, SHA-256 of its record)"""


class Findings(Struct):
    """What became known while a job was done."""

    vouched: list[tuple[int, int, int]] = field(default_factory=list)
    """(lo, hi, recorders as bits): who has these positions as they were given."""
    missing: list[Range] = field(default_factory=list)
    """Nobody has them."""
    heads: list[Range] = field(default_factory=list)
    """Only heads: nobody has the data."""
    lost: dict[int, list[Range]] = field(default_factory=dict)
    """By recorder: what turned out to be damaged."""
    disputes: list[Dispute] = field(default_factory=list)
    disputed: int = 0
    records: int = 0


# ------------------------------------------------------------------------ planning


def jobs_of(
    group: str,
    journals: Sequence[Sequence[Piece]],
    *,
    within: Sequence[Range] | None = None,
    job_bytes: int = JOB_BYTES,
) -> list[Job]:
    """The positions of a group cut into jobs of about `job_bytes`, by what the journals have.

    `within` says which positions are wanted; a job may be smaller for it.
    """
    if len(journals) > RECORDERS_MAX:
        raise ConfigError("journals", len(journals), f"at most {RECORDERS_MAX} of one group")
    copies = [
        RecorderCopy(recorder, lane, piece)
        for recorder, pieces in enumerate(journals)
        for lane, piece in _lanes(pieces)
    ]
    if not copies:
        return []
    copies.sort(key=lambda copy: copy.piece.lo)
    edges = sorted({edge for copy in copies for edge in (copy.piece.lo, copy.piece.hi)})
    cuts, size = [edges[0]], 0
    for (lo, hi), here in _beside(list(pairwise(edges)), copies):
        more = max((_share(copy.piece, lo, hi) for copy in here), default=0)
        if size and size + more > job_bytes:
            cuts.append(lo)
            size = 0
        size += more
    positions = [(edges[0], edges[-1])] if within is None else union(list(within))
    ranges = intersection(list(pairwise([*cuts, edges[-1]])), positions)
    return [Job(group, lo, hi, tuple(here)) for (lo, hi), here in _beside(ranges, copies)]


def _beside(
    ranges: Sequence[Range], copies: Sequence[RecorderCopy]
) -> Iterator[tuple[tuple[int, int], list[RecorderCopy]]]:
    """Each range with the copies that have something of it; both in the order of positions."""
    alive: list[RecorderCopy] = []
    start = 0
    for lo, hi in ranges:
        while start < len(copies) and copies[start].piece.lo < hi:
            alive.append(copies[start])
            start += 1
        alive = [copy for copy in alive if copy.piece.hi > lo]
        yield (lo, hi), list(alive)


def _share(piece: Piece, lo: int, hi: int) -> int:
    """About how many of a piece's bytes are between two positions."""
    both = min(hi, piece.hi) - max(lo, piece.lo)
    return max(0, piece.bytes * both // (piece.hi - piece.lo))


def _lanes(pieces: Sequence[Piece]) -> Iterator[tuple[int, Piece]]:
    """Each piece with the first lane that has room for it."""
    ends: list[int] = []
    for piece in sorted(pieces, key=lambda piece: (piece.lo, piece.segment)):
        lane = next((n for n, end in enumerate(ends) if end <= piece.lo), len(ends))
        if lane == len(ends):
            ends.append(0)
        ends[lane] = piece.hi
        yield lane, piece


# ------------------------------------------------------------------------ doing


def merge(
    job: Job, findings: Findings, selection: Selection = EVERYTHING, *, prefer: Sequence[int] = ()
) -> Iterator[Any]:
    """The records of a job as record batches, in the order of `seq`, each once.

    `prefer` names recorders whose word counts first when recorders disagree and numbers do not
    decide.  With a selection by content `missing` cannot be told: nobody knows what was in it.
    """
    lanes = defaultdict[tuple[int, int], list[Piece]](list)
    for copy in sorted(job.copies, key=lambda copy: copy.piece.lo):
        lanes[copy.recorder, copy.lane].append(copy.piece)
    streams = [
        _Stream(recorder, pieces, job, selection, findings.lost.setdefault(recorder, []))
        for (recorder, _), pieces in sorted(lanes.items())
    ]
    rank = {recorder: number for number, recorder in enumerate(prefer)}
    streams.sort(key=lambda stream: (rank.get(stream.recorder, len(rank)), stream.recorder))
    at = job.lo
    while at < job.hi:
        end = min([stream.known for stream in streams], default=job.hi)
        parts = [(stream.recorder, stream.take(end)) for stream in streams]
        batch = _window([part for part in parts if part[1] is not None], findings)
        if batch is None:
            findings.missing.append((at, end))
        else:
            seqs = batch.column("seq").to_numpy()
            findings.missing += difference([(at, end)], ranges_of(seqs))
            findings.records += len(seqs)
            data = batch.column("data")
            if data.null_count:
                findings.heads += ranges_of(seqs[data.is_null().to_numpy(zero_copy_only=False)])
            yield batch
        at = end
    findings.missing = union(findings.missing)
    findings.heads = union(findings.heads)
    findings.vouched = joined(findings.vouched)
    findings.lost = {who: union(lost) for who, lost in findings.lost.items() if lost}


class _Stream:
    """One lane of one recorder, read as far as is needed."""

    def __init__(
        self,
        recorder: int,
        pieces: Sequence[Piece],
        job: Job,
        selection: Selection,
        lost: list[Range],
    ) -> None:
        self.recorder = recorder
        since, until = max(job.lo, selection.since), min(job.hi, selection.until)
        within = structs.replace(selection, since=since, until=until)
        self._end = job.hi
        batches = (read_piece(piece, within, lost=lost) for piece in pieces)
        self._batches = chain.from_iterable(batches)
        self._batch: Any = None
        self._last = 0
        self._next()

    def _next(self) -> None:
        self._batch = next((batch for batch in self._batches if batch.num_rows), None)
        if self._batch is not None:
            self._last = self._batch.column("seq")[-1].as_py()

    @property
    def known(self) -> int:
        """Everything below this position is in memory, or will never come."""
        return self._end if self._batch is None else self._last + 1

    def take(self, end: int) -> Any:
        """The rows below a position that is known; None if there are none."""
        batch = self._batch
        if batch is None:
            return None
        if self._last < end:
            self._next()
            return batch
        rows = int(batch.column("seq").to_numpy().searchsorted(end))
        self._batch = batch.slice(rows)
        return batch.slice(0, rows) if rows else None


COMPARED: Final = ("sender", "conference", "kind", "data")


def _window(parts: Sequence[tuple[int, Any]], findings: Findings) -> Any:
    """What the recorders have of one window of positions, as one batch."""
    if not parts:
        return None
    _, first = parts[0]
    seqs = first.column("seq")
    same = all(
        other.num_rows == first.num_rows
        and other.column("seq").equals(seqs)
        and all(other.column(name).equals(first.column(name)) for name in COMPARED)
        for _, other in parts[1:]
    )
    if same:
        bits = reduce(or_, (1 << recorder for recorder, _ in parts))
        findings.vouched += [(lo, hi, bits) for lo, hi in ranges_of(seqs.to_numpy())]
        return first
    return _Window(parts).settle(findings)


class _Window:
    """Records of a window in which the recorders have not all the same."""

    def __init__(self, parts: Sequence[tuple[int, Any]]) -> None:
        self._recorders = [recorder for recorder, _ in parts]
        rows = pa.Table.from_batches([part for _, part in parts], schema=schema())
        self._rows = rows.combine_chunks()
        each = [part.column("seq").to_numpy() for _, part in parts]
        self.seqs: NDArray[int64] = np.unique(np.concatenate(each))
        # Row of each part (down) for each position (across); -1: it has none.
        self.row = np.full((len(parts), len(self.seqs)), -1, np.int64)
        begin = 0
        for number, part in enumerate(each):
            where = np.searchsorted(self.seqs, part)
            self.row[number, where] = begin + np.arange(len(part))
            begin += len(part)
        self.has = self.row >= 0
        self._full = np.asarray(self._rows.column("data").is_valid())

    def settle(self, findings: Findings) -> Any:
        full = self.has & self._full[np.maximum(self.row, 0)]
        any_full = full.any(axis=0)
        first = np.where(any_full, full.argmax(axis=0), self.has.argmax(axis=0))
        columns = np.arange(len(self.seqs))
        chosen = self.row[first, columns]
        agree = np.array([self._agree(number, chosen) for number in range(len(self.row))])
        for column in np.flatnonzero((self.has & ~agree).any(axis=0)).tolist():
            self._dispute(column, chosen, agree, findings)
        bits = np.zeros(len(self.seqs), np.int64)
        for number, recorder in enumerate(self._recorders):
            bits |= np.where(self.has[number] & agree[number], 1 << recorder, 0)
        cuts = np.flatnonzero((np.diff(self.seqs) != 1) | (np.diff(bits) != 0)) + 1
        for start, stop in pairwise([0, *cuts.tolist(), len(bits)]):
            findings.vouched.append(
                (int(self.seqs[start]), int(self.seqs[stop - 1]) + 1, int(bits[start]))
            )
        return self._rows.take(chosen).combine_chunks().to_batches()[0]

    def _agree(self, number: int, chosen: Any) -> Any:
        """Where one part has the same as was chosen, or nothing."""
        pc = pa.compute
        own = self.row[number]
        agree = np.ones(len(own), bool)
        others = np.flatnonzero(own >= 0)
        others = others[own[others] != chosen[others]]
        if len(others):
            mine, theirs = self._rows.take(own[others]), self._rows.take(chosen[others])
            same = np.ones(len(others), bool)
            for name in COMPARED:
                equal = pc.equal(mine.column(name), theirs.column(name))
                same &= np.asarray(pc.fill_null(equal, True))  # heads only: nothing to compare
            agree[others] = same
        return agree

    def _dispute(self, column: int, chosen: Any, agree: Any, findings: Findings) -> None:
        """One position on which they differ: most copies win, then whoever comes first."""
        rows = {number: int(row) for number, row in enumerate(self.row[:, column]) if row >= 0}
        hashes = {number: record_hash(*self._record(row)) for number, row in rows.items()}
        full = {number for number, row in rows.items() if self._full[row]} or set(rows)
        # A recorder counts once, however many copies it has.
        votes = {
            text: len({self._recorders[number] for number in full if hashes[number] == text})
            for text in hashes.values()
        }
        winner = max(full, key=lambda number: (votes[hashes[number]], -number))
        chosen[column], taken = rows[winner], self._record(rows[winner])
        for number, text in hashes.items():
            head = number not in full and self._record(rows[number])[:-1] == taken[:-1]
            agree[number, column] = text == hashes[winner] or head
        findings.disputed += 1
        if len(findings.disputes) < DISPUTES_MAX:
            copies = tuple(
                (self._recorders[number], text) for number, text in sorted(hashes.items())
            )
            findings.disputes.append(
                Dispute(int(self.seqs[column]), self._recorders[winner], copies)
            )

    def _record(self, row: int) -> tuple[Any, ...]:
        """What is compared of a row: its head, and its data at the end."""
        return tuple(self._rows.column(name)[row].as_py() for name in COMPARED)


def warn_of_disputes(group: str, findings: Findings) -> None:
    """Say in the log that recorders disagree, if they do."""
    if findings.disputed:
        log.warning(
            "group %s: recorders disagree about %d positions, the first of them %d; the record "
            "that most of them have is taken, else that of the journal named first: `roundelay "
            "reconcile` tells where and who",
            group,
            findings.disputed,
            findings.disputes[0].position,
        )


def record_hash(sender: str, conference: int, kind: int, data: bytes | None) -> str:
    """SHA-256 of one record: `sender NUL conference NUL kind NUL data`, in hex."""
    head = f"{sender}\0{conference}\0{kind}\0".encode()
    return hashlib.sha256(head + (data or b"")).hexdigest()


def joined(vouched: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Neighbours with the same recorders put together."""
    together: list[tuple[int, int, int]] = []
    for lo, hi, bits in sorted(vouched):
        if together and together[-1][1:] == (lo, bits):
            lo = together.pop()[0]
        together.append((lo, hi, bits))
    return together
