"""`roundelay reconcile`: several recorders, one complete archive, and its proof."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from msgspec import structs

from roundelay.cli.main import run
from roundelay.core.bundle import Bundle
from roundelay.journal.archive import Digest, read_archived, read_manifest
from roundelay.journal.files import segments_of
from roundelay.journal.format import encode_block
from roundelay.journal.merge import record_hash
from roundelay.journal.reader import Reader
from tests.journal.make import GROUP, flip, messages
from tests.pipeline.journals import journal, two_days

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RUNS = two_days(3, 900)
END = RUNS[-1].end


def call(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    capsys.readouterr()
    status = run(["reconcile", *map(str, words)])
    done = capsys.readouterr()
    return status, done.out, done.err


def three(tmp_path: Path, *also: tuple[int, int]) -> list[Path]:
    """Recorders with other gaps and one flipped bit each; `also` is missing in all of them."""
    folders = [
        journal(tmp_path / "a", RUNS, (100, 110), (500, 700), *also),
        journal(tmp_path / "b", RUNS, (105, 108), (300, 301), *also),
        journal(tmp_path / "c", RUNS, (0, 20), (850, 900), *also),
    ]
    for number, folder in enumerate(folders):
        path = segments_of(folder)[1 + number]
        flip(path, path.stat().st_size // 2)
    return folders


def contents(spark: SparkSession, out: Path) -> list[tuple[int, str, bytes | None]]:
    """As anybody would read it."""
    table = spark.read.parquet(str(out)).toArrow().sort_by("seq")
    assert set(table.column("group").to_pylist()) == {GROUP}
    columns = (table.column(name).to_pylist() for name in ("seq", "sender", "data"))
    return list(zip(*columns, strict=True))


def wanted() -> list[tuple[int, str, bytes | None]]:
    return [(one.position, one.sender, one.data) for one in messages(RUNS)]


def files_in(out: Path) -> dict[str, tuple[int, bytes]]:
    return {
        path.relative_to(out).as_posix(): (path.stat().st_mtime_ns, path.read_bytes())
        for path in sorted(out.rglob("*"))
        if path.is_file() and path.suffix == ".json"
    } | {path.name: (0, b"") for path in out.rglob("*.parquet")}


def test_three_damaged_journals_make_the_complete_sequence_and_again_the_same(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders, out = three(tmp_path), tmp_path / "out"
    # A duplicate as well: a second copy of some records, as a segment of its own.
    reader = Reader(folders[0])
    first = reader.segments[0]
    some = [one for one in RUNS if one.position >= 50 and one.end <= first.end]
    head = first.path.read_bytes()[:128]
    extra = first.path.with_name(f"{some[0].position:020d}.rjs")
    extra.write_bytes(head + encode_block(some, reader.meta.journal, 1))

    status, text, _ = call(capsys, *folders, "--out", out, "--json")
    proof = json.loads(text)
    assert status == 0
    assert (proof["complete"], proof["agreed"], proof["missing"]) == (True, True, [])
    assert contents(spark, out) == wanted()
    told = proof["groups"][GROUP]
    assert (told["begin"], told["end"], told["records"]) == (0, END, END)
    # Somebody vouches for every position, and nobody for what it does not have.
    at = 0
    for one in told["vouched"]:
        assert (one["lo"], bool(one["by"])) == (at, True)
        at = one["hi"]
        for who in one["by"] if one["lo"] >= RUNS[500].position else []:
            if one["hi"] <= RUNS[699].end:
                assert not who.endswith("/a")
    assert at == END
    for one in proof["journals"]:
        assert one["chain_holds"]
        assert any("damaged" in what for what in one["chain"]["problems"])
    _check_files(out, told)

    before = files_in(out)
    status, _, _ = call(capsys, *folders, "--out", out)
    assert status == 0
    assert files_in(out) == before


def _check_files(out: Path, told: dict[str, Any]) -> None:
    """The proof can be followed by anybody who has the archive."""
    link = hashlib.sha256(GROUP.encode()).hexdigest()
    named = {file.path: file for file in read_manifest(out).files}
    assert len(named) == len(told["files"]) == 2  # a day each
    for one in told["files"]:
        digest = Digest()
        for batch in read_archived(out, named[one["path"]]):
            digest.add(batch)
        assert digest.hex() == one["sha256"]
        link = hashlib.sha256(bytes.fromhex(link) + bytes.fromhex(one["sha256"])).hexdigest()
        assert link == one["link"]
    assert told["link"] == link


def test_a_hole_in_all_three_is_named(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders, out = three(tmp_path, (600, 610)), tmp_path / "out"
    lo, hi = RUNS[600].position, RUNS[609].end
    status, text, _ = call(capsys, *folders, "--out", out)
    assert status == 1
    assert f"{GROUP}: no recorder has positions {lo} to {hi - 1}\n" in text
    proof = json.loads((out / "_proof.json").read_text())
    assert proof["missing"] == [{"group": GROUP, "lo": lo, "hi": hi}]
    assert contents(spark, out) == [one for one in wanted() if not lo <= one[0] < hi]


def test_recorders_that_disagree_and_a_forged_segment_are_told(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lie = structs.replace(RUNS[70], bundle=Bundle.of(*[b"no"] * RUNS[70].records))
    liar = journal(tmp_path / "liar", [*RUNS[:70], lie, *RUNS[71:]])
    honest, forged = journal(tmp_path / "honest", RUNS), journal(tmp_path / "forged", RUNS)
    reader = Reader(forged)
    segment = reader.segments[3]
    with segment.view() as view:
        entry = view.blocks[0]
        block, _ = view.raw(entry)
        emptied = [
            structs.replace(one, bundle=Bundle(one.bundle.sizes, bytes(len(one.bundle.data))))
            for one in view.read_block(0)
        ]
    data = bytearray(segment.path.read_bytes())
    new = encode_block(emptied, reader.meta.journal, block.written, block.durable)
    data[entry.offset : entry.offset + entry.size] = new
    segment.path.write_bytes(data)

    out = tmp_path / "out"
    status, text, _ = call(capsys, liar, honest, forged, "--out", out, "--json")
    proof = json.loads(text)
    assert (status, proof["complete"], proof["agreed"]) == (1, True, False)
    told = proof["groups"][GROUP]
    assert told["disagreements"] == RUNS[70].records  # the forged segment has no say
    one = told["disagreeing"][0]
    true = record_hash(lie.sender, lie.conference, lie.kind, next(iter(RUNS[70].bundle)))
    assert {Path(copy["journal"]).name: copy["sha256"] for copy in one["copies"]} == {
        "liar": record_hash(lie.sender, lie.conference, lie.kind, b"no"),
        "honest": true,
        "forged": true,
    }
    assert Path(one["chosen"]).name != "liar"
    holds = {Path(found["journal"]).name: found["chain_holds"] for found in proof["journals"]}
    assert holds == {"liar": True, "honest": True, "forged": False}
    assert contents(spark, out) == wanted()


def test_what_cannot_be_reconciled_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = journal(tmp_path / "a", RUNS[:20])
    status, _, err = call(capsys, tmp_path / "nowhere", "--out", tmp_path / "out")
    assert status == 2
    assert "journal.json" in err
    status, _, err = call(capsys, folder, "--out", folder)
    assert status == 2
    assert "a new folder or an archive" in err
    other = journal(tmp_path / "b", RUNS[:20])
    (folder / "history").write_text("one\n")
    (other / "history").write_text("two@three:7\n")
    status, _, err = call(capsys, folder, other, "--out", tmp_path / "out")
    assert status == 2
    assert "same history" in err
