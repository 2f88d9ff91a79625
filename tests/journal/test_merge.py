"""Several recorders' journals as one sequence; the hash chain, segment by segment; digests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest

pytest.importorskip("numpy")
pytest.importorskip("pyarrow")

import pyarrow as pa
from msgspec import structs

from roundelay.core.bundle import Bundle
from roundelay.core.positions import union
from roundelay.journal.archive import ArchiveWriter, Digest, read_archived
from roundelay.journal.arrow import pieces, read_piece
from roundelay.journal.damage.check import examine, follow
from roundelay.journal.files import segments_of
from roundelay.journal.format import Run, encode_block, head_only
from roundelay.journal.journal import JournalConfig
from roundelay.journal.merge import Findings, jobs_of, merge, record_hash
from roundelay.journal.reader import Reader
from tests.journal.make import GROUP, copied, flip, messages, record, some_runs

RUNS = some_runs(8, 800)
SMALL = JournalConfig(segment_bytes=1 << 13, sync="os")


def journal(folder: Path, *holes: tuple[int, int], runs: Sequence[Run] = RUNS) -> Path:
    """A recorder's journal that lacks some runs, by number."""
    left = [run for i, run in enumerate(runs) if not any(lo <= i < hi for lo, hi in holes)]
    return record(folder, left, config=SMALL)


def reconciled(
    folders: Sequence[Path], job_bytes: int = 20_000
) -> tuple[list[tuple[int, str, bytes | None]], Findings]:
    """What the recorders have together; findings of all jobs as one."""
    found, total = [], Findings()
    planned = [pieces(Reader(folder), overlap=True, piece_bytes=5000) for folder in folders]
    for job in jobs_of(GROUP, planned, job_bytes=job_bytes):
        findings = Findings()
        for batch in merge(job, findings):
            found += [(row["seq"], row["sender"], row["data"]) for row in batch.to_pylist()]
        total.missing += findings.missing
        total.vouched += findings.vouched
        total.disputes += findings.disputes
        total.heads += findings.heads
        total.records += findings.records
    return found, total


def wanted(runs: Sequence[Run] = RUNS) -> list[tuple[int, str, bytes | None]]:
    return [(one.position, one.sender, one.data) for one in messages(runs)]


def test_what_one_recorder_lacks_comes_from_another(tmp_path: Path) -> None:
    folders = [
        journal(tmp_path / "a", (10, 40), (300, 301)),
        journal(tmp_path / "b", (39, 60), (500, 700)),
        journal(tmp_path / "c", (0, 5), (700, 800)),
    ]
    for number, folder in enumerate(folders):
        path = segments_of(folder)[1 + number]
        flip(path, path.stat().st_size // 2)
    for job_bytes in (3000, 1 << 30):
        found, findings = reconciled(folders, job_bytes)
        assert found == wanted()
        assert (findings.missing, findings.disputes) == ([], [])
        assert findings.records == len(found)
        assert union([(lo, hi) for lo, hi, _ in findings.vouched]) == [(0, RUNS[-1].end)]
        lacking = union([(lo, hi) for lo, hi, who in findings.vouched if not who & 1])
        assert lacking == union(
            [(RUNS[10].position, RUNS[39].end), (RUNS[300].position, RUNS[300].end),
             *_damaged(folders[0])]
        )  # fmt: skip


def _damaged(folder: Path) -> list[tuple[int, int]]:
    lost: list[tuple[int, int]] = []
    for piece in pieces(Reader(folder)):
        for _ in read_piece(piece, lost=lost):
            pass
    return lost


def test_random_holes_in_random_recorders_are_told_exactly(tmp_path: Path) -> None:
    rng = Random(3)
    for number in range(3):
        lacks = [{rng.randrange(1, 799) for _ in range(200)} for _ in range(3)]
        folders = [
            journal(tmp_path / f"{number}{who}", *((i, i + 1) for i in lack))
            for who, lack in enumerate(lacks)
        ]
        found, findings = reconciled(folders, rng.choice((2000, 30_000)))
        nobody = set.intersection(*lacks)
        assert nobody
        assert found == wanted([run for i, run in enumerate(RUNS) if i not in nobody])
        assert union(findings.missing) == union(
            [(RUNS[i].position, RUNS[i].end) for i in nobody]
        )  # fmt: skip


def test_a_position_that_two_segments_claim_is_there_once(tmp_path: Path) -> None:
    folder = journal(tmp_path / "a")
    first, second = segments_of(folder)[:2]
    # A second copy of the first segment's end, as a segment of its own.
    reader = Reader(folder)
    runs = [run for run in RUNS if 50 <= run.position < reader.segments[0].end]
    extra = first.with_name(f"{runs[0].position:020d}.rjs")
    extra.write_bytes(
        first.read_bytes()[:128] + encode_block(runs, reader.meta.journal, 1)
    )  # fmt: skip
    flip(first, first.stat().st_size - 40)
    assert second.exists()
    found, findings = reconciled([folder])
    assert found == wanted()
    assert findings.missing == []


def test_recorders_that_disagree_are_told_with_both_hashes_and_most_win(tmp_path: Path) -> None:
    other = list(RUNS)
    lie = structs.replace(RUNS[70], bundle=Bundle.of(*[b"no"] * RUNS[70].records))
    other[70] = lie
    folders = [journal(tmp_path / "liar", runs=other), journal(tmp_path / "a")]
    found, findings = reconciled(folders)
    assert len(findings.disputes) == RUNS[70].records
    dispute = findings.disputes[0]
    assert dispute.position == RUNS[70].position
    assert dispute.chosen == 0  # nothing else decides: the first
    assert dict(dispute.copies) == {
        0: record_hash(lie.sender, lie.conference, lie.kind, b"no"),
        1: record_hash(lie.sender, lie.conference, lie.kind, next(iter(RUNS[70].bundle))),
    }
    assert found == wanted(other)
    found, findings = reconciled([*folders, journal(tmp_path / "b")])
    assert {one.chosen for one in findings.disputes} == {1}
    assert found == wanted()
    vouched = [who for lo, hi, who in findings.vouched if lo <= RUNS[70].position < hi]
    assert vouched == [0b110]


def test_heads_agree_with_records_that_have_their_data(tmp_path: Path) -> None:
    heads = [head_only(run) if i % 3 else run for i, run in enumerate(RUNS)]
    folders = [journal(tmp_path / "a", runs=heads), journal(tmp_path / "b", (10, 20))]
    found, findings = reconciled(folders)
    assert findings.disputes == []
    assert found == wanted([*RUNS[:10], *heads[10:20], *RUNS[20:]])
    only = [RUNS[i] for i in range(10, 20) if i % 3]
    assert union(findings.heads) == union([(run.position, run.end) for run in only])


# ------------------------------------------------------------------------ the chain


def chain_of(folder: Path):  # type: ignore[no-untyped-def]
    reader = Reader(folder)
    return follow([examine(path, reader.meta.journal) for path in segments_of(folder)])


def test_the_chain_of_a_good_journal_holds(tmp_path: Path) -> None:
    folder = journal(tmp_path / "a", (100, 400))
    chain = chain_of(folder)
    assert (chain.broken, chain.problems, chain.distrusted) == (False, [], [])
    assert chain.checked == len(segments_of(folder)) > 5
    assert len(chain.link) == 64


def test_a_block_that_was_exchanged_for_another_good_one_breaks_the_chain(tmp_path: Path) -> None:
    folder = journal(tmp_path / "a")
    path = segments_of(folder)[2]
    reader = Reader(folder)
    with reader.segments[2].view() as view:
        entry = view.blocks[1]
        runs = view.read_block(1)
        head, _ = view.raw(entry)
    forged = [
        structs.replace(run, bundle=Bundle(run.bundle.sizes, bytes(len(run.bundle.data))))
        for run in runs
    ]
    block = encode_block(forged, reader.meta.journal, head.written, head.durable)
    data = bytearray(path.read_bytes())
    assert len(block) == entry.size
    data[entry.offset : entry.offset + entry.size] = block
    path.write_bytes(data)
    chain = chain_of(folder)
    assert chain.broken
    assert chain.distrusted == [path.name]


def test_a_flipped_bit_is_damage_but_no_broken_chain(tmp_path: Path) -> None:
    folder = copied(journal(tmp_path / "a"), tmp_path / "b")
    path = segments_of(folder)[1]
    flip(path, path.stat().st_size - 50)
    chain = chain_of(folder)
    assert (chain.broken, chain.distrusted) == (False, [])
    assert len(chain.problems) == 1


# ------------------------------------------------------------------------ files


def test_the_digest_of_rows_does_not_depend_on_how_they_are_cut(tmp_path: Path) -> None:
    folder = journal(tmp_path / "a", runs=[*RUNS[:50], head_only(RUNS[50]), *RUNS[51:]])
    batches = [one for piece in pieces(Reader(folder)) for one in read_piece(piece)]
    table = pa.Table.from_batches(batches)
    whole, cut, other = Digest(), Digest(), Digest()
    whole.add(table.combine_chunks().to_batches()[0])
    for start in range(0, table.num_rows, 77):
        for batch in table.slice(start, 77).to_batches():
            cut.add(batch)
    other.add(table.slice(1).combine_chunks().to_batches()[0])
    assert whole.hex() == cut.hex() != other.hex()


def test_a_file_says_what_is_in_it_and_gives_it_back(tmp_path: Path) -> None:
    folder = journal(tmp_path / "a", (20, 30))
    writer = ArchiveWriter(tmp_path / "aside", GROUP, file_bytes=1 << 30)
    batches = [one for piece in pieces(Reader(folder)) for one in read_piece(piece)]
    for batch in batches:
        writer.add(batch)
    (file,) = writer.finish()
    assert file.ranges == ((0, RUNS[20].position), (RUNS[30].position, RUNS[-1].end))
    path = tmp_path / "aside" / Path(file.path).name
    back = pa.Table.from_batches(list(read_archived(tmp_path, file, path=path)))
    assert back.equals(pa.Table.from_batches(batches))
    assert file.rows == back.num_rows
