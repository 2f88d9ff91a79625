"""Repair never lowers what can be recovered, with or without another recorder."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from random import Random

import pytest

from roundelay.core.bundle import Bundle
from roundelay.journal.damage.check import check
from roundelay.journal.damage.repair import repair
from roundelay.journal.damage.salvage import put_right
from roundelay.journal.files import index_of, segments_of
from roundelay.journal.format import SEGMENT_HEAD, Run, encode_block
from roundelay.journal.journal import Journal, JournalConfig
from roundelay.journal.reader import Reader
from roundelay.journal.upkeep.keeper import Keeper
from tests.journal.make import (
    GROUP,
    NOW,
    copied,
    flip,
    messages,
    only_segment,
    record,
    some_runs,
)

THOUSAND = [
    Run(at, NOW + at, f"site-{at % 3}", Bundle.of(f"order {at:06d}".encode())) for at in range(1000)
]


def bytes_of(folder: Path) -> dict[str, str]:
    """A hash of every file."""
    return {
        path.name: sha256(path.read_bytes()).hexdigest()
        for path in folder.iterdir()
        if path.is_file()
    }


def overwrite(path: Path, at: int, data: bytes) -> bytes:
    """Write over some bytes of a file; those that were there."""
    with path.open("r+b") as file:
        file.seek(at)
        old = file.read(len(data))
        file.seek(at)
        file.write(data)
    return old


@pytest.mark.parametrize("sealed", [True, False])
def test_one_flipped_bit_costs_no_record_although_nobody_else_has_them(
    tmp_path: Path, sealed: bool
) -> None:
    folder = record(tmp_path / "journal", THOUSAND, together=1000)
    path = only_segment(folder)
    if not sealed:
        index_of(path).unlink()
    flip(path, SEGMENT_HEAD.size + 30_000, 3)
    assert check(folder).missing == [(0, 1000)]
    done = repair(folder)
    assert done.saved == [(0, 1000)]
    assert done.still_missing == done.restored == []
    assert messages(Reader(folder).read()) == messages(THOUSAND)
    assert check(folder).good


@pytest.mark.parametrize("gone", [("synced",), ("synced", "ends.json", "ends.bak")])
@pytest.mark.parametrize("sealed", [True, False])
def test_one_flipped_bit_in_the_last_block_is_put_right_without_the_files_that_tell_the_end(
    tmp_path: Path, gone: tuple[str, ...], sealed: bool
) -> None:
    folder = record(tmp_path / "journal", THOUSAND, together=100)
    path = only_segment(folder)
    if not sealed:
        index_of(path).unlink()
    flip(path, path.stat().st_size - 40, 3)
    for name in gone:
        (folder / name).unlink()
    assert check(folder).missing == [(900, 1000)]
    assert repair(folder).saved == [(900, 1000)]
    assert messages(Reader(folder).read()) == messages(THOUSAND)
    assert check(folder).good


def test_records_are_saved_one_by_one_from_a_block_with_larger_damage(tmp_path: Path) -> None:
    folder = record(tmp_path / "journal", THOUSAND, together=1000)
    path = only_segment(folder)
    block = path.read_bytes()
    at = block.index(b"order 000400")
    old = overwrite(path, at, b"\0" * 100)
    whole = path.read_bytes()
    done = repair(folder)
    hit = {int(block[at:][12 * i : 12 * i + 12][-6:]) for i in range(len(old) // 12 + 1)}
    assert {position for lo, hi in done.still_missing for position in range(lo, hi)} == hit
    assert sum(hi - lo for lo, hi in done.saved) == 1000 - len(hit)
    expected = [one for one in messages(THOUSAND) if one.position not in hit]
    assert messages(Reader(folder).read()) == expected
    kept = b"".join(one.read_bytes() for one in folder.glob("*.damaged"))
    assert kept == whole[SEGMENT_HEAD.size :], "the damaged bytes are kept aside"
    assert not [one for one in check(folder).problems if one.what != "gap"]


def test_where_nothing_can_be_gained_nothing_is_changed(tmp_path: Path) -> None:
    folder = record(tmp_path / "journal", THOUSAND, together=1000)
    path = only_segment(folder)
    index_of(path).unlink()
    overwrite(path, SEGMENT_HEAD.size + 5_000, Random(1).randbytes(700))
    before = bytes_of(folder)
    done = repair(folder)
    assert done.still_missing == [(0, 1000)]
    assert done.saved == done.restored == done.rewritten == []
    assert bytes_of(folder) == before


def test_what_is_still_missing_does_not_depend_on_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the keeper had not yet read the sealed segments, repair said that all is there."""
    monkeypatch.setattr(Keeper, "_run", lambda self: None)
    whole = Bundle.of(*(b"order %06d" % at for at in range(500)))
    runs = [Run(0, NOW, "a", whole), Run(500, NOW + 1, "a", whole)]
    folder = record(tmp_path / "j", runs, together=1, config=JournalConfig(segment_bytes=4096))
    first, _ = segments_of(folder)
    overwrite(first, SEGMENT_HEAD.size + 2_000, Random(1).randbytes(700))
    flip(folder / "ends.json", 50)  # something that can be put right
    assert repair(folder).still_missing == [(0, 500)]


def test_damaged_bytes_are_kept_when_another_recorder_fills_the_hole(tmp_path: Path) -> None:
    runs = some_runs(5, 200)
    folder = record(tmp_path / "first", runs, together=50)
    other = record(tmp_path / "second", runs, together=9)
    path = only_segment(folder)
    overwrite(path, SEGMENT_HEAD.size + 64, Random(2).randbytes(300))
    damaged = path.read_bytes()
    (lost,) = check(folder).missing
    journal = Journal(folder, GROUP, JournalConfig())
    journal.scrub()
    assert journal.fill(Reader(other).read()) == [lost]
    journal.close()
    assert messages(Reader(folder).read()) == messages(runs)
    (kept,) = folder.glob("*.damaged")
    assert kept.read_bytes() in damaged


def test_every_flipped_bit_of_a_block_is_put_right(tmp_path: Path) -> None:
    block = encode_block(some_runs(3, 2), bytes(16), NOW)
    for bit in range(8 * len(block)):
        damaged = bytearray(block)
        damaged[bit // 8] ^= 1 << bit % 8
        assert put_right(bytes(damaged)) == block, bit


def test_two_flipped_bits_are_not_taken_for_one() -> None:
    block = encode_block(some_runs(3, 6), bytes(16), NOW)
    rng = Random(4)
    for _ in range(100):
        damaged = bytearray(block)
        for bit in rng.sample(range(8 * len(block)), 2):
            damaged[bit // 8] ^= 1 << bit % 8
        assert put_right(bytes(damaged)) is None


def test_repair_is_the_same_twice(tmp_path: Path) -> None:
    folder = record(tmp_path / "journal", THOUSAND, together=1000)
    overwrite(only_segment(folder), SEGMENT_HEAD.size + 20_000, b"\0" * 64)
    first = repair(folder)
    again = repair(copied(folder, tmp_path / "again"))
    assert again.still_missing == first.still_missing
    assert again.saved == []
