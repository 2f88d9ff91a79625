"""What is done beside the appending: sealing, filling holes, letting go, Parquet."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec import structs

from roundelay.core.selection import Selection
from roundelay.journal.damage.check import check
from roundelay.journal.damage.repair import Sources, repair
from roundelay.journal.files import index_of, parquet_of, segments_of
from roundelay.journal.format import HEADS_ONLY, Run, decode_head, head_only
from roundelay.journal.journal import Journal, JournalConfig
from roundelay.journal.reader import Reader
from tests.journal.make import GROUP, flip, gaps, messages, record, some_runs

SMALL = JournalConfig(sync="os", segment_bytes=1 << 12)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


# ------------------------------------------------------------------------ sealing


def test_segments_are_sealed_beside_the_appending(tmp_path: Path) -> None:
    journal = Journal(tmp_path, GROUP, SMALL)
    for run in some_runs(1, 500):
        journal.add(run)
        journal.commit()
    until(lambda: sum(not one.sealed for one in journal.segments) == 1)
    assert journal.active is journal.segments[-1]
    journal.close()
    assert all(index_of(path).exists() for path in segments_of(tmp_path))


def test_a_large_segment_is_sealed_by_another_process_with_the_same_result(tmp_path: Path) -> None:
    runs = [structs.replace(run, bundle=type(run.bundle).of(bytes(1 << 18)), count=1, position=i)
            for i, run in enumerate(some_runs(1, 40))]  # fmt: skip
    config = JournalConfig(sync="os", segment_bytes=5 << 20, parquet=True)
    record(tmp_path, runs, together=1, config=config)
    assert len(segments_of(tmp_path)) == 3
    verdict = check(tmp_path)
    assert verdict.good
    assert verdict.unsealed == 0
    assert all(parquet_of(path).exists() for path in segments_of(tmp_path))
    assert messages(Reader(tmp_path).read()) == messages(runs)


def test_a_journal_that_is_opened_again_goes_on_where_it_was(tmp_path: Path) -> None:
    runs = some_runs(1, 300)
    for start in range(0, 300, 20):
        journal = Journal(tmp_path, GROUP, SMALL)
        assert journal.end == (runs[start - 1].end if start else 0)
        for run in runs[start : start + 20]:
            journal.add(run)
        journal.close()
        assert check(tmp_path).good
    assert messages(Reader(tmp_path).read()) == messages(runs)
    assert len(segments_of(tmp_path)) < 15, "a short segment is not left for a new one"


def test_each_segment_names_the_link_of_one_before_it(tmp_path: Path) -> None:
    journal = Journal(tmp_path, GROUP, SMALL)
    for number, run in enumerate(some_runs(1, 300)):
        journal.add(run)
        journal.commit()
        if number % 10 == 0:
            journal.keeper.settle()
    journal.close()
    heads = [decode_head(path.read_bytes()) for path in segments_of(tmp_path)]
    assert sum(any(head.anchor) for head in heads) > len(heads) // 2
    assert check(tmp_path).good


def test_reading_goes_on_while_segments_are_written_sealed_and_let_go(tmp_path: Path) -> None:
    runs = some_runs(1, 3000)
    expected = {one.position: one for one in messages(runs)}
    journal = Journal(tmp_path, GROUP, structs.replace(SMALL, keep_bytes=60_000))
    wrong: list[object] = []
    over = threading.Event()

    def read() -> None:
        selections = [Selection(), Selection(conferences=frozenset({2}))]
        while not over.is_set():
            for selection in selections:
                for one in messages(journal.reader().read(selection)):
                    if one != expected[one.position]:
                        wrong.append(one)

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    for run in runs:
        journal.add(run)
        journal.commit()
    over.set()
    for thread in threads:
        thread.join()
    journal.close()
    assert wrong == []
    assert Reader(tmp_path).begin > 0


# ------------------------------------------------------------------------ filling


@pytest.mark.parametrize("hole", [(40, 70), (40, 2500), (2990, 2999)])
@pytest.mark.parametrize("together", [1, 1000])
def test_a_hole_is_filled_while_recording_goes_on(
    tmp_path: Path, hole: tuple[int, int], together: int
) -> None:
    """Small ones inside a segment, large ones between two."""
    runs = some_runs(5, 3000)
    lacking = runs[: hole[0]] + runs[hole[1] :]
    lo, hi = runs[hole[0]].position, runs[hole[1]].position
    journal = Journal(tmp_path, GROUP, SMALL)
    for run in lacking[:-100]:
        journal.add(run)
        journal.commit()
    if lacking[-101].position >= hi:
        assert journal.missing == [(lo, hi)]
    filler = runs[hole[0] : hole[1]]
    later = lacking[-100:]

    def append() -> None:
        for run in later:
            journal.add(run)
            journal.commit()

    thread = threading.Thread(target=append)
    thread.start()
    if hole[1] > 2950:
        thread.join()
    for start in range(0, len(filler), together):
        journal.fill(filler[start : start + together])
    thread.join()
    assert journal.missing == []
    assert messages(journal.read()) == messages(runs)
    assert messages(journal.read(Selection(senders=frozenset({"ann"})))) == [
        one for one in messages(runs) if one.sender == "ann"
    ]
    journal.close()
    verdict = check(tmp_path)
    assert verdict.problems == []
    assert verdict.records == runs[-1].end
    assert messages(Reader(tmp_path).read()) == messages(runs)


def test_a_recorder_that_came_late_gets_what_was_before_it(tmp_path: Path) -> None:
    runs = some_runs(5, 400)
    journal = Journal(tmp_path, GROUP, SMALL)
    for run in runs[200:]:
        journal.add(run)
    journal.commit()
    assert journal.begin == runs[200].position
    assert journal.fill(runs[:200]) == [(0, runs[200].position)]
    assert journal.fill(runs[150:250]) == [], "known already"
    assert journal.begin == 0
    assert messages(journal.read()) == messages(runs)
    journal.close()
    assert check(tmp_path).good


def test_a_crash_while_a_hole_is_filled_costs_only_what_was_not_filled(tmp_path: Path) -> None:
    runs = some_runs(5, 4000)
    journal = Journal(tmp_path, GROUP, SMALL)
    for run in runs[:100] + runs[3900:]:
        journal.add(run)
    journal.commit()
    journal.fill(runs[100:1500])
    filled = [path for path in segments_of(tmp_path) if decode_head(path.read_bytes()).flags]
    journal.close()
    data = filled[-1].read_bytes()
    filled[-1].write_bytes(data[:-20])  # its last block is torn
    index_of(filled[-1]).unlink()
    again = Journal(tmp_path, GROUP, SMALL)
    ((lo, hi),) = again.missing
    assert runs[100].position < lo <= runs[1500].position
    assert hi == runs[3900].position
    again.fill(runs)
    assert again.missing == []
    assert messages(again.read()) == messages(runs)
    again.close()
    assert check(tmp_path).good


def test_several_recorders_together_have_what_none_has_alone(tmp_path: Path) -> None:
    runs = some_runs(5, 900)
    record(tmp_path / "a", runs[:100] + runs[800:], config=SMALL)
    record(tmp_path / "b", runs[50:300] + runs[350:420], config=SMALL)
    record(tmp_path / "c", runs[250:700], together=9, config=SMALL)
    done = repair(tmp_path / "a", [tmp_path / "b", tmp_path / "c"])
    lost = (runs[700].position, runs[800].position)
    assert done.still_missing == [lost]
    assert gaps(Reader(tmp_path / "a").read()) == [lost]
    assert messages(Reader(tmp_path / "a").read()) == messages(runs[:700] + runs[800:])
    sources = Sources([tmp_path / "a", tmp_path / "c"])
    assert messages(sources.fetch(0, 1 << 40)) == messages(runs[:700] + runs[800:])


# ------------------------------------------------------------------------ letting go


def test_the_oldest_segments_go_when_there_is_too_much(tmp_path: Path) -> None:
    runs = some_runs(5, 2000)
    record(tmp_path, runs, config=structs.replace(SMALL, keep_bytes=40_000))
    reader = Reader(tmp_path)
    assert sum(one.size for one in reader.segments) <= 40_000 + (1 << 12)
    assert reader.begin > 0
    assert messages(reader.read()) == [
        one for one in messages(runs) if one.position >= reader.begin
    ]
    assert check(tmp_path).good
    stems = {path.stem for path in segments_of(tmp_path)}
    assert {path.stem for path in tmp_path.glob("*.rji")} == stems


def test_segments_go_when_they_are_old(tmp_path: Path) -> None:
    record(tmp_path, some_runs(5, 500), config=SMALL)
    journal = Journal(tmp_path, GROUP, structs.replace(SMALL, keep_s=1000.0))
    journal.keeper.settle()
    assert journal.begin == 0
    for segment in journal.segments[:3]:
        segment.newest -= int(2000e9)
    third = journal.segments[3].base
    journal.keeper.settle()
    assert journal.begin == third
    journal.close()
    assert check(tmp_path).good


def test_a_segment_is_complete_when_its_first_records_are_as_old_as_they_may_get(
    tmp_path: Path,
) -> None:
    runs = some_runs(5, 8)
    journal = Journal(tmp_path, GROUP, JournalConfig(keep_s=0.01))

    def complete() -> bool:
        journal.keeper.settle()
        return journal.active is None

    for run in runs:
        journal.add(run)
        journal.commit()
        until(complete)  # though it is far from full
    assert journal.begin > 0
    assert journal.end == runs[-1].end
    journal.close()
    assert check(tmp_path).good


def heads_of(runs: list[Run], conferences: set[int]) -> list[object]:
    return [
        (*one.fields[:-1], None if one.conference in conferences else one.data)
        for one in messages(runs)
    ]


def test_a_conference_can_be_forgotten_and_its_heads_stay(tmp_path: Path) -> None:
    runs = some_runs(5, 700)
    journal = Journal(tmp_path, GROUP, structs.replace(SMALL, parquet=True))
    for run in runs:
        journal.add(run)
        journal.commit()
    assert journal.forget([2]) > 0
    assert journal.forget([2]) == 0
    more = some_runs(6, 50, runs[-1].end)
    for run in more:
        journal.add(run)
    journal.commit()
    expected = heads_of(runs, {2}) + heads_of(more, set())
    assert [one.fields for one in messages(journal.read())] == expected
    kept = list(journal.read(Selection(conferences=frozenset({2}), until=runs[-1].end)))
    assert kept
    assert all(run.flags == HEADS_ONLY for run in kept)
    journal.close()
    assert check(tmp_path).good
    assert [one.fields for one in messages(Reader(tmp_path).read())] == expected
    secret = next(run for run in runs if run.conference == 2 and len(run.bundle.data) > 12)
    on_disk = b"".join(path.read_bytes() for path in segments_of(tmp_path))
    assert secret.bundle.data not in on_disk


def test_a_conference_is_forgotten_when_its_time_is_over(tmp_path: Path) -> None:
    runs = some_runs(5, 300)
    config = structs.replace(SMALL, keep_conference_s={1: 0.0, 3: 1e6})
    journal = Journal(tmp_path, GROUP, config)
    for run in runs:
        journal.add(run)
        journal.commit()
    journal.complete()
    journal.keeper.settle()
    assert [one.fields for one in messages(journal.read())] == heads_of(runs, {1})
    journal.close()
    assert check(tmp_path).good


# ------------------------------------------------------------------------ parquet


def test_parquet_has_what_the_segment_has(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow.parquet")
    runs = some_runs(5, 400)
    runs[30] = head_only(runs[30])
    record(tmp_path, runs, config=structs.replace(SMALL, parquet=True))
    rows: list[tuple[object, ...]] = []
    for path in segments_of(tmp_path):
        table = arrow.read_table(parquet_of(path))
        assert parquet_of(path).stat().st_mode & 0o777 == 0o600
        for row in table.to_pylist():
            assert row["group"] == GROUP
            micros = int(row["time"].timestamp() * 1_000_000 + 0.5)
            fields = ("sender", "conference", "kind", "data")
            rows.append((row["seq"], micros, *(row[name] for name in fields)))
    assert rows == [
        (one.position, one.time // 1000, *one.fields[2:]) for one in messages(runs)
    ]  # fmt: skip


def test_parquet_that_is_missing_is_made_at_the_next_opening(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    record(tmp_path, some_runs(5, 300), config=SMALL)
    assert not list(tmp_path.glob("*.parquet"))
    Journal(tmp_path, GROUP, structs.replace(SMALL, parquet=True)).close()
    paths = [parquet_of(path) for path in segments_of(tmp_path)]
    assert all(path.exists() for path in paths)
    flip(paths[0], 300)
    assert {one.file for one in check(tmp_path).problems} == {paths[0].name}
