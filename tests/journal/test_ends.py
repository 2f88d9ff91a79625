"""What is gone at either end of a journal is noticed, although it leaves no hole."""

from __future__ import annotations

from pathlib import Path

import pytest

from roundelay.journal.damage.check import check
from roundelay.journal.damage.repair import repair
from roundelay.journal.files import ENDS, ENDS_COPY, SYNCED, index_of, read_ends, segments_of
from roundelay.journal.format import SEGMENT_HEAD
from roundelay.journal.journal import Journal, JournalConfig
from roundelay.journal.reader import Reader
from tests.journal.make import GROUP, copied, flip, gaps, messages, record, some_runs

RUNS = some_runs(21, 300)
END = RUNS[-1].end
SMALL = JournalConfig(sync="os", segment_bytes=1 << 12)


def remove(path: Path) -> None:
    index_of(path).unlink(missing_ok=True)
    path.unlink()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return record(tmp_path / "journal", RUNS, config=SMALL)


def test_a_first_segment_that_is_gone_is_noticed_and_put_back(folder: Path, tmp_path: Path) -> None:
    second = copied(folder, tmp_path / "second")
    first, following, *_ = segments_of(folder)
    remove(first)
    lost = (0, int(following.stem))
    verdict = check(folder)
    assert verdict.missing == [lost]
    assert "they were not let go" in verdict.problems[0].what
    assert gaps(Reader(folder).read()) == Reader(folder).missing == [lost]
    assert repair(folder).still_missing == [lost]
    assert check(folder).missing == [lost]  # and it is still known
    assert repair(folder, [second]).restored == [lost]
    assert check(folder).good
    assert messages(Reader(folder).read()) == messages(RUNS)


def test_a_last_segment_that_is_gone_with_the_mark_is_noticed(folder: Path) -> None:
    last = segments_of(folder)[-1]
    remove(last)
    (folder / SYNCED).unlink()
    verdict = check(folder)
    assert verdict.missing == [(int(last.stem), END)]
    assert SYNCED in {problem.file for problem in verdict.problems}
    assert Reader(folder).missing == [(int(last.stem), END)]


def test_where_no_segment_is_left_that_stays_known(folder: Path, tmp_path: Path) -> None:
    """Whoever opened it, to record or to repair, began a journal that had never had anything."""
    second = copied(folder, tmp_path / "second")
    for path in segments_of(folder):
        remove(path)
    for name in (ENDS, ENDS_COPY):
        flip(folder / name, 40)
    assert repair(folder).still_missing == [(0, END)]
    assert {"ends.json", "ends.bak", SYNCED} == {one.file for one in check(folder).problems}
    for _ in range(2):
        Journal(folder, GROUP, SMALL).close()
        assert check(folder).missing == [(0, END)]
    third = copied(folder, tmp_path / "third")
    assert repair(third, [second]).restored == [(0, END)]
    assert check(third).good
    more = some_runs(22, 3, END + 5)
    record(folder, more, config=SMALL)
    assert check(folder).missing == [(0, END + 5)]
    assert repair(folder, [second]).still_missing == [(END, END + 5)]
    assert check(folder).missing == [(END, END + 5)]


def test_bytes_behind_the_mark_are_put_right(folder: Path) -> None:
    """They were found again at every check, and `repair` said that all is there."""
    (folder / SYNCED).write_bytes((folder / SYNCED).read_bytes() + b"and more")
    assert [one.file for one in check(folder).problems] == [SYNCED]
    repair(folder)
    assert check(folder).good


def test_it_is_noticed_after_a_crash_too(tmp_path: Path) -> None:
    """Nobody closed the journal: its last segment is known by where it begins."""
    journal = Journal(tmp_path / "journal", GROUP, SMALL)
    for run in RUNS:
        journal.add(run)
        journal.commit()
    journal.keeper.settle()
    last = segments_of(tmp_path / "journal")[-1]
    left = copied(tmp_path / "journal", tmp_path / "left")
    journal.close()
    remove(left / last.name)
    (left / SYNCED).unlink()
    assert not check(left).good
    assert (left / ENDS).exists()


def test_what_retention_lets_go_is_not_missed(tmp_path: Path) -> None:
    config = JournalConfig(sync="os", segment_bytes=1 << 12, keep_bytes=1 << 13)
    folder = record(tmp_path / "journal", RUNS, config=config)
    begin = int(segments_of(folder)[0].stem)
    assert begin > 0
    assert check(folder).good
    assert Reader(folder).missing == []
    ends, wrong = read_ends(folder)
    assert ends is not None
    assert (ends.first, ends.end, wrong) == (begin, END, [])


@pytest.mark.parametrize("name", [ENDS, ENDS_COPY])
def test_a_damaged_copy_is_found_and_written_again(folder: Path, name: str) -> None:
    flip(folder / name, 20)
    assert {problem.file for problem in check(folder).problems} == {name}
    repair(folder)
    assert check(folder).good


def test_a_journal_of_an_earlier_version_is_good_and_gets_them(folder: Path) -> None:
    for name in (ENDS, ENDS_COPY):
        (folder / name).unlink()
    assert check(folder).good
    Journal(folder, GROUP).close()
    assert (folder / ENDS).read_bytes() == (folder / ENDS_COPY).read_bytes()


def test_a_damaged_end_is_told_from_an_unfinished_one_without_the_mark(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal", GROUP, JournalConfig(sync="always"))
    for run in RUNS[:20]:
        journal.add(run)
        journal.commit()
    left = copied(tmp_path / "journal", tmp_path / "left")  # as after a crash
    journal.close()
    (path,) = segments_of(left)
    (left / SYNCED).unlink()
    whole = path.read_bytes()
    last = RUNS[19]

    path.write_bytes(whole[:-8])
    verdict = check(left)
    assert verdict.unfinished
    assert verdict.missing == []

    path.write_bytes(whole)
    flip(path, len(whole) - 60)
    verdict = check(left)
    assert not verdict.unfinished
    assert verdict.missing == [(last.position, last.end)]
    said: list[str] = []
    again = Journal(left, GROUP, JournalConfig(), said.append)
    assert again.missing == [(last.position, last.end)]
    assert again.next == last.end, "its positions are not used again"
    again.close()
    assert any("are damaged" in one for one in said)
    assert any(f"{SYNCED} is missing" in one for one in said)
    assert SEGMENT_HEAD.size < len(whole)
