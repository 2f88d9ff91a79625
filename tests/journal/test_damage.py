"""Damage of any kind is found, said with its positions, and repaired from another recorder."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from random import Random

import pytest
from msgspec import structs

from roundelay.core.bundle import Bundle
from roundelay.core.errors import ConfigError
from roundelay.core.selection import Selection
from roundelay.durable import Disk
from roundelay.journal.damage.check import check
from roundelay.journal.damage.repair import Sources, repair
from roundelay.journal.files import (
    SYNCED,
    Ends,
    JournalInUse,
    index_of,
    mark_text,
    parquet_of,
    read_mark,
    segments_of,
    write_ends,
)
from roundelay.journal.format import (
    SEGMENT_HEAD,
    decode_block,
    decode_block_head,
    encode_block,
)
from roundelay.journal.journal import Journal, JournalConfig
from roundelay.journal.reader import Reader
from roundelay.journal.segment import Segment
from tests.journal.make import (
    GROUP,
    copied,
    flip,
    gaps,
    messages,
    only_segment,
    record,
    some_runs,
)
from tools.journal_faults import all_noticed, blocks_of, flips

RUNS = some_runs(11, 420, most=4)
SMALL = JournalConfig(sync="os", segment_bytes=1 << 12)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two recorders of one group: several segments, other commits."""
    folder = tmp_path_factory.mktemp("two")
    config = JournalConfig(sync="os", segment_bytes=1 << 13, parquet=True)
    return (
        record(folder / "first", RUNS, config=config),
        record(folder / "second", RUNS, together=9, config=SMALL),
    )


def synced_to(folder: Path, position: int) -> None:
    """As if the recorder had been killed when it had synced so far."""
    (folder / SYNCED).write_bytes(mark_text(position))
    write_ends(folder, Ends(), Disk())


def spoil(path: Path, number: int) -> None:
    """Overwrite a block of a segment from its head to its end."""
    at, size, *_ = blocks_of(path.read_bytes())[number]
    with path.open("r+b") as file:
        file.seek(at)
        file.write(Random(number).randbytes(size))


def mended(folder: Path, source: Path) -> None:
    """Repair, and be sure that it is as it was."""
    done = repair(folder, [source])
    assert done.still_missing == []
    verdict = check(folder)
    assert verdict.problems == []
    assert messages(Reader(folder).read()) == messages(RUNS)


# ------------------------------------------------------------------------ one flipped bit


def test_every_one_bit_flip_in_a_segment_of_64_kib_is_noticed_and_repaired(tmp_path: Path) -> None:
    """Must show 3.  All bits; a sample of them from end to end, from a second recorder."""
    done = flips(scan_every=400, repair_every=20_000, seed=3, out=tmp_path)
    assert done["bytes"] >= 64 << 10
    assert done["flips"] == 8 * done["bytes"]
    assert done["scans"] > 800
    assert done["repairs"] > 10
    assert all_noticed(done), done


@pytest.mark.parametrize("suffix", [".rjs", ".rji", ".parquet", "synced", ".json", ".bak"])
def test_one_flipped_bit_in_any_file_is_found_and_put_right(
    two: tuple[Path, Path], tmp_path: Path, suffix: str
) -> None:
    first, second = two
    rng = Random(suffix)
    names = [path.name for path in sorted(first.iterdir()) if path.name.endswith(suffix)]
    assert names
    for number in range(8):
        folder = copied(first, tmp_path / str(number))
        path = folder / rng.choice(names)
        at = rng.randrange(path.stat().st_size)
        flip(path, at, rng.randrange(8))
        verdict = check(folder)
        assert verdict.problems, f"{path.name} at {at}"
        assert {problem.file for problem in verdict.problems} == {path.name}
        if suffix == ".rjs" and at >= SEGMENT_HEAD.size:
            assert verdict.missing
        mended(folder, second)


def test_a_reader_of_a_damaged_journal_gets_gaps_and_never_wrong_records(
    two: tuple[Path, Path], tmp_path: Path
) -> None:
    first, _ = two
    all = {one.position: one for one in messages(RUNS)}
    rng = Random(8)
    wanted = (
        Selection(),
        Selection(conferences=frozenset({1})),
        Selection(since_time=RUNS[9].time),
    )
    for number in range(30):
        folder = copied(first, tmp_path / "copy")
        path = rng.choice([*segments_of(folder), *map(index_of, segments_of(folder))])
        flip(path, rng.randrange(path.stat().st_size), rng.randrange(8))
        for selection in wanted:
            runs = list(Reader(folder).read(selection))
            found = messages(runs)
            assert all.keys() >= {one.position for one in found}
            for one in found:
                assert one == all[one.position]
            missing = {one for lo, hi in gaps(runs) for one in range(lo, hi)}
            there = {one.position for one in found}
            for one in messages(r for r in RUNS if selection.takes(r)):
                assert one.position in there or one.position in missing, (number, path.name)
        shutil.rmtree(folder)


def test_a_recorder_finds_what_was_damaged_while_nobody_looked(
    two: tuple[Path, Path], tmp_path: Path
) -> None:
    """Sealed segments are not read on opening but soon after, in the background."""
    folder = copied(two[0], tmp_path / "copy")
    flip(segments_of(folder)[1], 2000)
    (lost,) = check(folder).missing
    said: list[str] = []
    journal = Journal(folder, GROUP, JournalConfig(), said.append)
    assert journal.scrub() == [lost]
    assert any(f"positions {lost[0]} to {lost[1] - 1} are missing" in one for one in said)
    others = Sources([two[1]])
    assert journal.fill(others.fetch(*lost)) == [lost]
    assert journal.scrub() == []
    journal.close()
    assert check(folder).good
    assert messages(Reader(folder).read()) == messages(RUNS)


def test_an_index_that_lies_is_passed_over(two: tuple[Path, Path], tmp_path: Path) -> None:
    """Selective reading uses the index: every byte of it that is flipped must change nothing."""
    folder = copied(two[0], tmp_path / "copy")
    path = index_of(segments_of(folder)[1])
    data = path.read_bytes()
    selection = Selection(conferences=frozenset({3}), senders=frozenset({"bob"}))
    expected = messages(run for run in RUNS if selection.takes(run))
    rng = Random(4)
    for at in range(0, len(data), 17):
        flip(path, at, rng.randrange(8))
        assert messages(Reader(folder).read(selection)) == expected
        path.write_bytes(data)


def test_exchanged_content_is_found_by_the_hash_chain(
    two: tuple[Path, Path], tmp_path: Path
) -> None:
    """Somebody who writes right checksums is found out all the same."""
    folder = copied(two[0], tmp_path / "copy")
    path = segments_of(folder)[1]
    data = path.read_bytes()
    at, size, lo, _ = blocks_of(data)[2]
    block = data[at : at + size]
    head = decode_block_head(block)
    runs = decode_block(block, head)
    other = bytes(byte ^ 1 for byte in runs[0].bundle.data)
    if not other:
        pytest.skip("an empty message")
    runs[0] = structs.replace(runs[0], bundle=Bundle(runs[0].bundle.sizes, other))
    forged = encode_block(runs, head.journal, head.written, head.durable)
    assert len(forged) == len(block)
    path.write_bytes(data[:at] + forged + data[at + size :])
    problems = check(folder).problems
    assert any("hash chain" in one.what and one.lo <= lo < one.hi for one in problems)
    mended(folder, two[1])


def test_a_segment_that_was_taken_away_is_missed(two: tuple[Path, Path], tmp_path: Path) -> None:
    folder = copied(two[0], tmp_path / "copy")
    path, after = segments_of(folder)[2:4]
    for one in (path, index_of(path), parquet_of(path)):
        one.unlink()
    assert (int(path.stem), int(after.stem)) in check(folder).missing
    mended(folder, two[1])


def test_the_last_segment_that_was_taken_away_is_missed(
    two: tuple[Path, Path], tmp_path: Path
) -> None:
    folder = copied(two[0], tmp_path / "copy")
    path = segments_of(folder)[-1]
    for one in (path, index_of(path), parquet_of(path)):
        one.unlink()
    lost = [(int(path.stem), RUNS[-1].end)]
    assert check(folder).missing == lost
    assert Reader(folder).missing == gaps(Reader(folder).read()) == lost
    mended(folder, two[1])


def test_a_journal_of_which_no_segment_is_left_is_missed_and_recorded_again(
    two: tuple[Path, Path], tmp_path: Path
) -> None:
    folder = copied(two[0], tmp_path / "copy")
    for path in segments_of(folder):
        for one in (path, index_of(path), parquet_of(path)):
            one.unlink()
    everything = [(0, RUNS[-1].end)]
    assert check(folder).missing == gaps(Reader(folder).read()) == everything
    assert repair(folder, []).still_missing == everything
    assert check(folder).missing == everything  # and it is still known
    mended(folder, two[1])


def test_what_nobody_has_stays_a_gap_and_is_said(two: tuple[Path, Path], tmp_path: Path) -> None:
    folder = copied(two[0], tmp_path / "copy")
    spoil(segments_of(folder)[1], 1)
    (lost,) = check(folder).missing
    done = repair(folder, [])
    assert done.still_missing == [lost]
    assert check(folder).missing == [lost]
    assert gaps(Reader(folder).read()) == [lost]
    mended(folder, two[1])  # somebody turns up who has it


def test_two_damaged_recorders_help_each_other(two: tuple[Path, Path], tmp_path: Path) -> None:
    first, second = (copied(one, tmp_path / one.name) for one in two)
    for path in segments_of(first)[:-1]:
        spoil(path, 2)
    for path in segments_of(second)[:-1]:
        spoil(path, -2)
    lost_first, lost_second = check(first).missing, check(second).missing
    assert lost_first
    assert lost_second
    both = [
        (max(a, c), min(b, d))
        for a, b in lost_first
        for c, d in lost_second
        if max(a, c) < min(b, d)
    ]
    done = repair(first, [second])
    assert done.still_missing == both
    repair(second, [first])
    if not both:
        assert messages(Reader(second).read()) == messages(RUNS)


# ------------------------------------------------------------------------ cut off, torn


def test_a_segment_cut_off_anywhere_is_noticed(tmp_path: Path) -> None:
    """Every truncation of the last segment: what was synced is missed, to the position."""
    record(tmp_path / "a", some_runs(5, 60, most=3), together=6)
    path = only_segment(tmp_path / "a")
    journal, mark = Reader(tmp_path / "a").meta.journal, read_mark(tmp_path / "a")
    data = path.read_bytes()
    ends = {at + size: hi for at, size, _, hi in blocks_of(data)}
    cut = tmp_path / path.name
    cut.write_bytes(data)
    for size in reversed(range(len(data))):
        os.truncate(cut, size)
        good = max((hi for end, hi in ends.items() if end <= size), default=0)
        segment = Segment(cut, journal)
        assert bool(segment.head_wrong) == (size < SEGMENT_HEAD.size)
        segment.scan(mark)
        assert segment.missing == [(good, mark)]
        segment.scan(0)  # nothing was synced: an unfinished write, which nobody was told of
        assert segment.missing == []
        assert segment.end == good
        at_end = size in ends or size <= SEGMENT_HEAD.size
        assert (segment.tail is None) == at_end


def test_an_unfinished_write_is_put_aside_and_recording_goes_on(tmp_path: Path) -> None:
    runs = some_runs(6, 60)
    record(tmp_path, runs[:40], together=1)
    path = only_segment(tmp_path)
    at, _, lo, _ = blocks_of(path.read_bytes())[-1]
    data = path.read_bytes()
    path.write_bytes(data[: at + 30])
    index_of(path).unlink()
    synced_to(tmp_path, lo)
    assert check(tmp_path).good
    assert "unfinished" not in check(tmp_path).unfinished
    said: list[str] = []
    journal = Journal(tmp_path, GROUP, JournalConfig(), said.append)
    assert journal.end == lo
    assert any("never acknowledged" in one for one in said)
    assert [torn.read_bytes() for torn in tmp_path.glob("*.torn")] == [data[at : at + 30]]
    for run in runs[39:]:
        journal.add(run)
    journal.close()
    assert messages(Reader(tmp_path).read()) == messages(runs)
    assert check(tmp_path).good


def test_damage_below_the_synced_mark_is_a_loss_even_at_the_end(tmp_path: Path) -> None:
    runs = some_runs(6, 60)
    record(tmp_path / "a", runs[:40], together=1)
    record(tmp_path / "b", runs, together=3)
    path = only_segment(tmp_path / "a")
    at, _, lo, hi = blocks_of(path.read_bytes())[-1]
    flip(path, at + 90)
    before = path.read_bytes()
    said: list[str] = []
    journal = Journal(tmp_path / "a", GROUP, JournalConfig(), said.append)
    assert any("missing" in one for one in said)
    assert journal.missing == [(lo, hi)]
    assert path.read_bytes() == before, "the damaged bytes are kept"
    for run in runs[40:]:
        journal.add(run)
    journal.commit()
    assert journal.fill(Reader(tmp_path / "b").read(Selection(since=lo, until=hi))) == [(lo, hi)]
    assert journal.missing == []
    journal.close()
    assert messages(Reader(tmp_path / "a").read()) == messages(runs)
    assert check(tmp_path / "a").good


def test_the_mark_in_the_blocks_counts_when_the_file_is_gone(tmp_path: Path) -> None:
    """A power cut may leave an old `synced`; each block knows what was durable before it."""
    runs = some_runs(6, 40)
    journal = Journal(tmp_path, GROUP, JournalConfig(sync="always"))
    for run in runs:
        journal.add(run)
        journal.commit()
    journal.close()
    (tmp_path / SYNCED).unlink()
    segment = Segment(only_segment(tmp_path), Reader(tmp_path).meta.journal)
    segment.scan()
    assert segment.durable == runs[-2].end


def test_a_tail_that_was_never_synced_may_be_lost_and_comes_again(tmp_path: Path) -> None:
    runs = some_runs(6, 60)
    record(tmp_path, runs[:50], together=5)
    path = only_segment(tmp_path)
    at, _, lo, _ = blocks_of(path.read_bytes())[-4]
    path.write_bytes(path.read_bytes()[:at])
    synced_to(tmp_path, lo)
    journal = Journal(tmp_path, GROUP)
    assert journal.end == journal.durable == lo
    assert journal.missing == []
    for run in runs:
        journal.add(run)
    journal.close()
    assert messages(Reader(tmp_path).read()) == messages(runs)


# ------------------------------------------------------------------------ wrong use


def test_only_one_process_at_a_time_records_or_repairs(
    two: tuple[Path, Path], tmp_path: Path
) -> None:
    folder = copied(two[0], tmp_path / "copy")
    journal = Journal(folder, GROUP)
    with pytest.raises(JournalInUse, match="wait, or stop that process"):
        Journal(folder, GROUP)
    with pytest.raises(JournalInUse):
        repair(folder, [two[1]])
    assert check(folder).good
    journal.close()
    Journal(folder, GROUP).close()


def test_a_journal_of_another_group_is_refused(two: tuple[Path, Path], tmp_path: Path) -> None:
    folder = copied(two[0], tmp_path / "copy")
    with pytest.raises(ConfigError, match="that is what"):
        Journal(folder, "token:others")
    other = Journal(tmp_path / "other", "token:others")
    other.close()
    with pytest.raises(ConfigError, match="a journal of token:orders"):
        repair(folder, [tmp_path / "other"])
    with pytest.raises(ConfigError, match=r"a folder with journal\.json"):
        Reader(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match=r"a folder with journal\.json"):
        check(tmp_path / "nowhere")
