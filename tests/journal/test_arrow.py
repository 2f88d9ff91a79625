"""A journal as Arrow batches: the same as the reader gives, whatever is selected or damaged."""

from __future__ import annotations

import os
from pathlib import Path
from random import Random

import pytest

pytest.importorskip("numpy")
pytest.importorskip("pyarrow")

from roundelay.core.positions import union
from roundelay.core.selection import EVERYTHING, Selection
from roundelay.journal.arrow import Piece, pieces, read_piece
from roundelay.journal.files import index_of, segments_of
from roundelay.journal.format import head_only
from roundelay.journal.journal import Journal, JournalConfig
from roundelay.journal.reader import Reader
from tests.journal.make import (
    GROUP,
    NOW,
    copied,
    flip,
    gaps,
    messages,
    record,
    some_runs,
)

RUNS = some_runs(5, 1200)
SELECTIONS = (
    EVERYTHING,
    Selection(since=777, until=2000),
    Selection(conferences=frozenset({1})),
    Selection(conferences=frozenset({9})),
    Selection(senders=frozenset({"bob", "dörte", "nobody"}), kinds=frozenset({1})),
    Selection(since=500, since_time=NOW + 100_000, until_time=NOW + 300_000),
)
ROW = tuple[object, ...]


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a gap, and records of which only the heads are there."""
    runs = [*RUNS[:400], head_only(RUNS[400]), *RUNS[401:600], *RUNS[605:]]
    folder = tmp_path_factory.mktemp("sealed") / "journal"
    config = JournalConfig(segment_bytes=1 << 14, sync="os")
    return record(folder, runs, together=3, config=config)


def unsealed(folder: Path) -> Path:
    for path in segments_of(folder):
        index_of(path).unlink(missing_ok=True)
    return folder


def rows(
    folder: Path, selection: Selection = EVERYTHING, piece_bytes: int = 1 << 25
) -> tuple[list[ROW], list[tuple[int, int]]]:
    """What the pieces give, and what they and the journal lack."""
    reader = Reader(folder)
    lost = [one for one in reader.missing if one[1] > selection.since and one[0] < selection.until]
    found: list[ROW] = []
    last = -1
    for piece in pieces(reader, selection, piece_bytes=piece_bytes):
        assert piece.lo > last
        last = piece.hi - 1
        for batch in read_piece(piece, selection, lost=lost):
            batch.validate(full=True)
            columns = [
                batch.column(name).to_pylist()
                for name in ("group", "seq", "sender", "conference", "kind", "data")
            ]
            times = batch.column("time").cast("int64").to_pylist()
            found += list(zip(*columns, times, strict=True))
    return found, union(lost)


def expected(
    folder: Path, selection: Selection = EVERYTHING
) -> tuple[list[ROW], list[tuple[int, int]]]:
    runs = list(Reader(folder).read(selection))
    found: list[ROW] = [
        (GROUP, one.position, one.sender, one.conference, one.kind, one.data, one.time // 1000)
        for one in messages(runs)
    ]
    return found, union(gaps(runs))


@pytest.mark.parametrize("piece_bytes", [1 << 25, 3000])
@pytest.mark.parametrize("selection", SELECTIONS)
def test_pieces_give_what_the_reader_gives(
    sealed: Path, tmp_path: Path, selection: Selection, piece_bytes: int
) -> None:
    assert rows(sealed, selection, piece_bytes)[0] == expected(sealed, selection)[0]
    hot = unsealed(copied(sealed, tmp_path / "hot"))
    assert rows(hot, selection, piece_bytes)[0] == expected(sealed, selection)[0]


def test_damage_is_left_out_and_told_as_the_reader_does(sealed: Path, tmp_path: Path) -> None:
    rng = Random(7)
    for number in range(16):
        folder = copied(sealed, tmp_path / str(number))
        if number % 2:
            unsealed(folder)
        path = rng.choice(segments_of(folder))
        for _ in range(rng.randint(1, 3)):
            flip(path, rng.randrange(128, path.stat().st_size), rng.randrange(8))
        if number % 5 == 0:
            os.truncate(path, rng.randrange(128, path.stat().st_size))
        found = rows(folder, piece_bytes=rng.choice((1 << 25, 4000)))
        assert found == expected(folder)
        assert len(found[0]) < len(expected(sealed)[0])


def test_a_segment_written_anew_after_the_planning_is_read_all_the_same(
    sealed: Path, tmp_path: Path
) -> None:
    folder = copied(sealed, tmp_path / "one")
    planned = pieces(Reader(folder), piece_bytes=4000)
    journal = Journal(folder, GROUP, JournalConfig(segment_bytes=1 << 14))
    assert journal.fill(RUNS[600:605])
    journal.forget([2])
    journal.close()
    found = [
        row["seq"]
        for piece in planned
        for batch in read_piece(piece)
        for row in batch.to_pylist()
        if row["data"] is not None and row["conference"] != 2
    ]
    whole = {one.position for one in messages(RUNS) if one.conference != 2}
    whole -= set(range(RUNS[400].position, RUNS[400].end))
    # What was a gap when the pieces were planned is in none of them or in one, as it happens.
    filled = set(range(RUNS[600].position, RUNS[604].end))
    assert set(found) - filled == whole - filled
    assert len(found) == len(set(found))


def test_a_segment_that_retention_let_go_is_lost_positions(sealed: Path, tmp_path: Path) -> None:
    folder = copied(sealed, tmp_path / "one")
    piece = pieces(Reader(folder))[1]
    piece.path.unlink()
    lost: list[tuple[int, int]] = []
    assert list(read_piece(piece, lost=lost)) == []
    assert lost == [(piece.lo, piece.hi)]


def test_a_selection_skips_segments_that_cannot_hold_it(sealed: Path) -> None:
    reader = Reader(sealed)
    everything: list[Piece] = pieces(reader)
    assert len(everything) == len(reader.segments) > 5
    assert pieces(reader, Selection(conferences=frozenset({77}))) == []
    assert len(pieces(reader, Selection(since=everything[-1].lo))) == 1
    some = pieces(reader, Selection(since=100, until=110), piece_bytes=4000)
    assert sum(one.bytes for one in some) < everything[0].bytes / 4
