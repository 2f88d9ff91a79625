"""Which history a journal holds: damage to that is noticed, and costs nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from roundelay.durable import Disk
from roundelay.journal.damage.check import check
from roundelay.journal.damage.repair import repair
from roundelay.journal.files import HISTORY, HISTORY_COPY, read_history, write_history
from tests.journal.make import flip, record, some_runs

NAME = "3f5e46011eef631f@b9677872c75b6b98:1000"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = record(tmp_path / "journal", some_runs(3, 20))
    write_history(folder, NAME, Disk())
    return folder


@pytest.mark.parametrize("name", [HISTORY, HISTORY_COPY])
@pytest.mark.parametrize("bit", [0, 4, 7])
def test_one_flipped_bit_is_noticed_and_put_right(folder: Path, name: str, bit: int) -> None:
    assert check(folder).good
    for byte in range(0, len((folder / name).read_bytes()), 5):
        flip(folder / name, byte, bit)
        assert read_history(folder)[0] == NAME
        assert [one.file for one in check(folder).problems] == [name]
        if byte % 20 == 0:
            repair(folder)
        write_history(folder, read_history(folder)[0], Disk())
        assert check(folder).good


def test_one_of_them_is_enough_and_earlier_versions_have_the_first_one_only(folder: Path) -> None:
    (folder / HISTORY).unlink()
    assert read_history(folder) == (NAME, [f"{HISTORY}: missing"])
    repair(folder)
    (folder / HISTORY_COPY).unlink()
    assert read_history(folder) == (NAME, [])
    assert check(folder).good
    (folder / HISTORY).unlink()
    assert read_history(folder) == ("", [])
    (folder / HISTORY).write_bytes(b"\xff")
    assert read_history(folder) == ("", [f"{HISTORY}: not as it was written"])
