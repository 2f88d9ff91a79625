"""Journals of several recorders of the same groups into one archive, with its proof.

1. Every segment of every journal is read, each in a task: checksums of blocks, and whether they
   have the link of the hash chain that was computed when the segment was sealed.  A segment whose
   blocks are good one by one but not the ones that were sealed is not used.
2. The journals of a group are read side by side, each task some positions of all of them, and
   written as Parquet: each position once, from whoever has it.

The *proof* (`_proof.json`) says of each journal whether its chain holds, of each range of positions
which recorders have the very same records, of each position on which recorders differ what each
has, which positions nobody has, and of each file the SHA-256 of its rows.  The files are chained:
the link of a file is the hash of the link before it and of the file's own.

The same journals make the same archive and the same proof, byte by byte.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Struct, field

from roundelay.core.errors import ConfigError
from roundelay.core.positions import Range, difference, union
from roundelay.journal.archive import PROOF, File, Holding, Manifest, lock, put_json, says
from roundelay.journal.arrow import pieces
from roundelay.journal.damage.check import Chain, Examined, examine, follow
from roundelay.journal.merge import jobs_of
from roundelay.pipeline.archive import Session, Sizes
from roundelay.pipeline.archive.tasks import (
    Ingest,
    Ingested,
    answer_schema,
    aside_of,
    committed,
    prepared,
    run_ingests,
)
from roundelay.pipeline.journals import Recorded, done_by, items_in, opened, together
from roundelay.pipeline.spark.progress import watching

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MAKER: Final = "reconcile"
DISAGREEMENTS_MAX: Final = 10_000
"""Told one by one; of others the number."""


class JournalProof(Struct):
    """What is known of one recorder's journal."""

    journal: str
    """Its folder."""
    id: str
    group: str
    begin: int
    end: int
    chain_holds: bool
    chain: Chain
    missing: list[Range] = field(default_factory=list)
    """Positions it lacks: gaps and damage."""


class Vouched(Struct, frozen=True):
    """Positions, half-open, and the journals that have the records that are in the archive."""

    lo: int
    hi: int
    by: list[str]


class CopyOf(Struct, frozen=True):
    """What one journal has at a position."""

    journal: str
    sha256: str


class Disagreement(Struct, frozen=True):
    """A position of which recorders have different records."""

    seq: int
    chosen: str
    """Whose record is in the archive."""
    copies: list[CopyOf]


class FileProof(Struct, frozen=True):
    """A file of the archive; `link` is SHA-256 of the link before it and of `sha256`, in hex."""

    path: str
    lo: int
    hi: int
    rows: int
    sha256: str
    link: str


class GroupProof(Struct):
    """What became of a group."""

    begin: int = 0
    end: int = 0
    records: int = 0
    missing: list[Range] = field(default_factory=list)
    """Positions that no recorder has, half-open."""
    heads_only: list[Range] = field(default_factory=list)
    """Positions of which nobody kept the data, only who and when."""
    disagreements: int = 0
    disagreeing: list[Disagreement] = field(default_factory=list)
    vouched: list[Vouched] = field(default_factory=list)
    files: list[FileProof] = field(default_factory=list)
    link: str = ""
    """The last file's: archives with the same one have the same rows."""


class Missing(Struct, frozen=True):
    """Positions that no recorder has, half-open."""

    group: str
    lo: int
    hi: int


class Proof(Struct):
    """The outcome, and what is behind it."""

    complete: bool = True
    """No position is missing."""
    agreed: bool = True
    """No recorders disagree."""
    missing: list[Missing] = field(default_factory=list)
    groups: dict[str, GroupProof] = field(default_factory=dict)
    journals: list[JournalProof] = field(default_factory=list)


# ------------------------------------------------------------------------ the chains


class _Segment(Struct, frozen=True):
    path: str
    journal: str
    bytes: int


class _Answer(Struct, frozen=True):
    folder: str
    examined: Examined


def examined(
    spark: SparkSession, journals: Sequence[Recorded]
) -> dict[Path, list[Examined]]:  # fmt: skip
    """Every segment of the journals, read in parallel."""
    items = [
        _Segment(str(segment.path), one.reader.meta.journal.hex(), segment.size)
        for one in journals
        for segment in one.reader.segments
    ]

    def work(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        for item in items_in(batches, _Segment):
            path = Path(item.path)
            found = _Answer(str(path.parent), examine(path, bytes.fromhex(item.journal)))
            yield pa.RecordBatch.from_pydict({"answer": [msgspec.json.encode(found).decode()]})

    answers: dict[Path, list[Examined]] = {one.folder: [] for one in journals}
    for row in done_by(spark, items, lambda one: one.bytes, work, answer_schema()).collect():
        answer = msgspec.json.decode(row.answer, type=_Answer)
        answers[Path(answer.folder)].append(answer.examined)
    for found in answers.values():
        found.sort(key=lambda one: (one.base, one.segment))
    return answers


# ------------------------------------------------------------------------ all of it


def reconcile(
    session: Session, folders: Iterable[Path], out: Path, *, sizes: Sizes | None = None
) -> Proof:
    """One archive of all that the recorders have, and its proof."""
    sizes = sizes or Sizes()
    journals = opened(folders)
    groups = together(journals)
    _one_history(groups)
    with lock(out):
        prepared(out, MAKER)
        aside = aside_of(out)
        with session() as spark:
            with watching(spark, "checking hash chains"):
                chains = {
                    folder: follow(found) for folder, found in examined(spark, journals).items()
                }
            work = [item for some in groups for item in _work(some, chains, aside, sizes)]
            with watching(spark, "reconciling"):
                done = run_ingests(spark, work)
        proof, manifest = _proved(groups, chains, done)
        text = msgspec.json.encode(proof)
        if not says(out / PROOF, text):
            (out / PROOF).unlink(missing_ok=True)  # rather none than one of other files
        committed(out, aside, manifest)
        put_json(out / PROOF, text)
    return proof


def _one_history(groups: Sequence[Sequence[Recorded]]) -> None:
    seen: dict[str, Path] = {}
    for some in groups:
        group, folder = some[0].group, some[0].folder
        if group in seen:
            allowed = f"a journal of the same history of {group} as {seen[group]}"
            raise ConfigError("journal", folder, f"{allowed}: reconcile them apart")
        seen[group] = folder


def _work(
    side_by_side: Sequence[Recorded], chains: Mapping[Path, Chain], aside: Path, sizes: Sizes
) -> list[Ingest]:
    found = []
    for one in side_by_side:
        distrusted = set(chains[one.folder].distrusted)
        some = pieces(one.reader, overlap=True)
        found.append([piece for piece in some if piece.segment not in distrusted])
    # When numbers do not decide, a journal whose chain holds is believed first.
    prefer = sorted(
        range(len(side_by_side)), key=lambda n: (chains[side_by_side[n].folder].broken, n)
    )
    jobs = jobs_of(side_by_side[0].group, found, job_bytes=sizes.of_job(found))
    return [
        Ingest(job, str(aside), sizes.file_bytes, prefer=tuple(prefer)) for job in jobs
    ]  # fmt: skip


def _span(side_by_side: Sequence[Recorded]) -> tuple[int, int]:
    """From the first position that any of them has to the last that any of them had."""
    begins = [one.reader.begin for one in side_by_side if one.reader.segments]
    return min(begins, default=0), max(one.reader.end for one in side_by_side)


def _proved(
    groups: Sequence[Sequence[Recorded]],
    chains: Mapping[Path, Chain],
    done: Sequence[Ingested],
) -> tuple[Proof, Manifest]:
    proof, manifest = Proof(), Manifest(made_by=MAKER)
    for side_by_side in sorted(groups, key=lambda some: some[0].group):
        group = side_by_side[0].group
        mine = [one for one in done if one.group == group]
        told = _group(side_by_side, mine)
        proof.groups[group] = told
        proof.missing += [Missing(group, lo, hi) for lo, hi in told.missing]
        proof.agreed = proof.agreed and not told.disagreements
        files = sorted((file for one in mine for file in one.files), key=_by_position)
        manifest.files += files
        manifest.groups[group] = Holding(
            union([(one.lo, one.hi) for one in told.vouched]),
            histories=sorted({name for one in side_by_side for name in one.history}),
        )
        for number, one in enumerate(side_by_side):
            lost = [positions for job in mine for positions in job.findings.lost.get(number, [])]
            chain = chains[one.folder]
            told_of = JournalProof(
                str(one.folder), one.reader.meta.journal.hex(), group, one.reader.begin,
                one.reader.end, not chain.broken, chain, union([*one.reader.missing, *lost]),
            )  # fmt: skip
            proof.journals.append(told_of)
    proof.complete = not proof.missing
    return proof, manifest


def _by_position(file: File) -> tuple[int, str]:
    return file.lo, file.path


def _group(side_by_side: Sequence[Recorded], done: Sequence[Ingested]) -> GroupProof:
    names = [str(one.folder) for one in side_by_side]
    begin, end = _span(side_by_side)
    told = GroupProof(begin, end)
    for one in done:
        findings = one.findings
        told.records += findings.records
        told.missing += findings.missing
        told.heads_only += findings.heads
        told.disagreements += findings.disputed
        for dispute in findings.disputes:
            if len(told.disagreeing) < DISAGREEMENTS_MAX:
                copies = [CopyOf(names[who], text) for who, text in dispute.copies]
                told.disagreeing.append(
                    Disagreement(dispute.position, names[dispute.chosen], copies)
                )
        for lo, hi, bits in findings.vouched:
            by = [name for number, name in enumerate(names) if bits >> number & 1]
            last = told.vouched[-1] if told.vouched else None
            if last is not None and last.hi == lo and last.by == by:
                told.vouched.pop()
                lo = last.lo
            told.vouched.append(Vouched(lo, hi, by))
    covered = [(one.lo, one.hi) for one in done]
    told.missing = union([*told.missing, *difference([(begin, end)], covered)])
    told.heads_only = union(told.heads_only)
    link = hashlib.sha256(side_by_side[0].group.encode()).hexdigest()
    for file in sorted((file for one in done for file in one.files), key=_by_position):
        link = hashlib.sha256(bytes.fromhex(link) + bytes.fromhex(file.sha256)).hexdigest()
        told.files.append(FileProof(file.path, file.lo, file.hi, file.rows, file.sha256, link))
    told.link = link
    return told
