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
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Struct, field

from roundelay.core.errors import ConfigError
from roundelay.core.positions import Range, difference, union
from roundelay.journal.archive import PROOF, Holding, Manifest, lock, put_json, says
from roundelay.journal.arrow import pieces
from roundelay.journal.damage.check import ChainCheck, Examined, examine, follow
from roundelay.journal.merge import jobs_of, joined
from roundelay.pipeline.archive import Session, Sizes
from roundelay.pipeline.archive.tasks import (
    Ingest,
    Ingested,
    aside_of,
    committed,
    prepared,
    run_ingests,
)
from roundelay.pipeline.journals import OpenJournal, opened, span_of, together
from roundelay.pipeline.spark.executors import answers, by_bytes
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
    chain: ChainCheck
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


class MissingPositions(Struct, frozen=True):
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
    missing: list[MissingPositions] = field(default_factory=list)
    groups: dict[str, GroupProof] = field(default_factory=dict)
    journals: list[JournalProof] = field(default_factory=list)


# ------------------------------------------------------------------------ the chains


class _Segment(Struct, frozen=True):
    folder: str
    name: str
    journal: str
    bytes: int

    def examined(self) -> Examined:
        return examine(Path(self.folder, self.name), bytes.fromhex(self.journal))


def examined(spark: SparkSession, journals: Sequence[OpenJournal]) -> dict[Path, list[Examined]]:
    """Every segment of the journals, read in parallel."""
    items = [
        _Segment(str(j.folder), segment.path.name, j.reader.meta.journal.hex(), segment.size)
        for j in journals
        for segment in j.reader.segments
    ]
    by_folder: dict[Path, list[Examined]] = {journal.folder: [] for journal in journals}
    segments_examined = answers(spark, by_bytes(items), _Segment.examined, Examined)
    for item, segment in zip(items, segments_examined, strict=True):
        by_folder[Path(item.folder)].append(segment)
    for segments in by_folder.values():
        segments.sort(key=lambda segment: (segment.head.base, segment.segment))
    return by_folder


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
                    path: follow(segments) for path, segments in examined(spark, journals).items()
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


def _one_history(groups: Sequence[Sequence[OpenJournal]]) -> None:
    seen: dict[str, Path] = {}
    for some in groups:
        group, folder = some[0].group, some[0].folder
        if group in seen:
            allowed = f"a journal of the same history of {group} as {seen[group]}"
            raise ConfigError("journal", folder, f"{allowed}: reconcile them apart")
        seen[group] = folder


def _work(
    side_by_side: Sequence[OpenJournal],
    chains: Mapping[Path, ChainCheck],
    aside: Path,
    sizes: Sizes,
) -> list[Ingest]:
    by_journal = []
    for journal in side_by_side:
        distrusted = set(chains[journal.folder].distrusted)
        some = pieces(journal.reader, overlap=True)
        by_journal.append([piece for piece in some if piece.segment not in distrusted])
    # When numbers do not decide, a journal whose chain holds is believed first.
    prefer = sorted(
        range(len(side_by_side)), key=lambda n: (chains[side_by_side[n].folder].broken, n)
    )
    jobs = jobs_of(side_by_side[0].group, by_journal, job_bytes=sizes.of_job(by_journal))
    return [Ingest(job, str(aside), sizes.file_bytes, prefer=tuple(prefer)) for job in jobs]


def _proved(
    groups: Sequence[Sequence[OpenJournal]],
    chains: Mapping[Path, ChainCheck],
    done: Sequence[Ingested],
) -> tuple[Proof, Manifest]:
    proof, manifest = Proof(), Manifest(made_by=MAKER)
    for side_by_side in sorted(groups, key=lambda some: some[0].group):
        group = side_by_side[0].group
        mine = [ingested for ingested in done if ingested.group == group]
        group_proof = _group(side_by_side, mine)
        proof.groups[group] = group_proof
        proof.missing += [MissingPositions(group, lo, hi) for lo, hi in group_proof.missing]
        proof.agreed = proof.agreed and not group_proof.disagreements
        manifest.files += [file for ingested in mine for file in ingested.files]
        manifest.groups[group] = Holding(
            union([(vouched.lo, vouched.hi) for vouched in group_proof.vouched]),
            histories=sorted({name for journal in side_by_side for name in journal.history}),
        )
        for number, journal in enumerate(side_by_side):
            lost = [positions for job in mine for positions in job.findings.lost.get(number, [])]
            chain = chains[journal.folder]
            span = (journal.reader.begin, journal.reader.end)
            missing = union([*journal.reader.missing, *lost])
            name = (str(journal.folder), journal.reader.meta.journal.hex(), group)
            proof.journals.append(JournalProof(*name, *span, not chain.broken, chain, missing))
    proof.complete = not proof.missing
    return proof, manifest


def _group(side_by_side: Sequence[OpenJournal], done: Sequence[Ingested]) -> GroupProof:
    names = [str(journal.folder) for journal in side_by_side]
    begin, end = span_of(side_by_side)
    group_proof = GroupProof(begin, end)
    for ingested in done:
        findings = ingested.findings
        group_proof.records += findings.records
        group_proof.missing += findings.missing
        group_proof.heads_only += findings.heads
        group_proof.disagreements += findings.disputed
        for dispute in findings.disputes:
            if len(group_proof.disagreeing) < DISAGREEMENTS_MAX:
                copies = [CopyOf(names[who], text) for who, text in dispute.copies]
                group_proof.disagreeing.append(
                    Disagreement(dispute.position, names[dispute.chosen], copies)
                )
    for lo, hi, bits in joined([part for one in done for part in one.findings.vouched]):
        by = [name for number, name in enumerate(names) if bits >> number & 1]
        group_proof.vouched.append(Vouched(lo, hi, by))
    covered = [(ingested.lo, ingested.hi) for ingested in done]
    group_proof.missing = union([*group_proof.missing, *difference([(begin, end)], covered)])
    group_proof.heads_only = union(group_proof.heads_only)
    link = hashlib.sha256(side_by_side[0].group.encode()).hexdigest()
    files = [file for ingested in done for file in ingested.files]
    for file in sorted(files, key=lambda file: (file.lo, file.path)):
        link = hashlib.sha256(bytes.fromhex(link) + bytes.fromhex(file.sha256)).hexdigest()
        group_proof.files.append(
            FileProof(file.path, file.lo, file.hi, file.rows, file.sha256, link)
        )
    group_proof.link = link
    return group_proof
