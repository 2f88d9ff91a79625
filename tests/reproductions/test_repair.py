"""`roundelay journal repair` without another recorder (issue 11, line 12)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from roundelay.core.bundle import Bundle
from roundelay.journal.files import segments_of
from roundelay.journal.format import SEGMENT_HEAD, Run
from roundelay.journal.journal import Journal, JournalConfig

RECORDS = 1000


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A journal with records of which no two are alike, all written at once."""
    journal = Journal(tmp_path / "journal", "token:orders", JournalConfig(sync="os"))
    for at in range(RECORDS):
        journal.add(Run(at, 10**18 + at, "ann", Bundle.of(b"order %06d" % at)))
    journal.commit()
    journal.close()
    return tmp_path / "journal"


def damage(folder: Path, at: int, data: bytes) -> None:
    """Change some bytes of the only block, as a disk would."""
    (path,) = segments_of(folder)
    with path.open("r+b") as file:
        file.seek(SEGMENT_HEAD.size + at)
        old = file.read(len(data))
        file.seek(SEGMENT_HEAD.size + at)
        file.write(bytes(a ^ b for a, b in zip(old, data, strict=True)))


def call(*words: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "roundelay", "journal", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def readable(folder: Path) -> dict[int, str]:
    """What `journal cat` has to say."""
    lines = map(json.loads, call("cat", folder, "--json").stdout.splitlines())
    return {line["seq"]: line["data"] for line in lines if "seq" in line}


def test_a_flipped_bit_costs_no_other_record(folder: Path) -> None:
    """The whole block went: 999 intact records were erased for one bit."""
    before = readable(folder)
    assert len(before) == RECORDS
    damage(folder, 30_000, b"\x08")
    call("repair", folder)
    after = readable(folder)
    lost = sorted(set(before) - set(after))
    assert len(lost) <= 1, f"{len(lost)} records are gone for one bit"
    assert all(before[at] == data for at, data in after.items())


def test_larger_damage_costs_no_record_that_it_does_not_touch(folder: Path) -> None:
    before = readable(folder)
    damage(folder, 30_000, b"\xff" * 40)
    call("repair", folder)
    after = readable(folder)
    assert len(after) >= RECORDS - 40, f"{RECORDS - len(after)} records are gone for 40 bytes"
    assert all(before[at] == data for at, data in after.items())


def test_bytes_from_which_nothing_can_be_had_yet_stay_as_they_are(folder: Path) -> None:
    """A better tool, or an older copy of the block, may still have something of them."""
    damage(folder, 0, Random(1).randbytes(5000))
    (path,) = segments_of(folder)
    whole = path.read_bytes()
    call("repair", folder)
    kept = b"".join(one.read_bytes() for one in sorted(folder.iterdir()))
    is_kept = whole[SEGMENT_HEAD.size :] in kept
    assert is_kept, "the damaged block is nowhere any more"
