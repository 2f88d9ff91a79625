"""Disks that fail: the journal stops, and acknowledges nothing that is not there."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest
from msgspec import structs

from roundelay.core.bundle import Bundle
from roundelay.core.errors import ConfigError
from roundelay.core.selection import Selection
from roundelay.durable import Disk
from roundelay.journal.damage.check import check
from roundelay.journal.files import JournalBroken
from roundelay.journal.format import Run
from roundelay.journal.journal import Journal, JournalConfig
from roundelay.journal.reader import Reader
from tests.journal.make import GROUP, messages, some_runs
from tools.journal_faults import kills

RUNS = some_runs(21, 300)


class BadDisk(Disk):
    """Fails at the n-th write or sync; half of what was to be written may be there."""

    def __init__(self, *, write: int = -1, sync: int = -1, error: int = errno.EIO) -> None:
        self._write, self._sync, self._error = write, sync, error
        self.failed = False

    def write(self, file: int, parts: Sequence[bytes]) -> None:
        self._write -= 1
        if self.failed or self._write == 0:
            self.failed = True
            data = b"".join(parts)
            os.write(file, data[: len(data) // 2])
            raise OSError(self._error, os.strerror(self._error))
        super().write(file, parts)

    def sync(self, file: int) -> None:
        if threading.current_thread().name == "journal-keeper":
            return super().sync(file)  # an index that cannot be written is no loss
        self._sync -= 1
        if self._sync == 0:
            # Once only: what a kernel could not write it may claim to have written the next time.
            self.failed = True
            raise OSError(self._error, os.strerror(self._error))
        return super().sync(file)


@pytest.mark.parametrize("policy", ["always", "interval", "os"])
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("what", ["write", "sync"])
def test_a_disk_that_fails_stops_the_journal_and_nothing_more_is_acknowledged(
    tmp_path: Path, policy: str, error: int, what: str
) -> None:
    rng = Random(f"{policy} {error} {what}")
    for number in range(4):
        folder = tmp_path / str(number)
        disk = BadDisk(**{what: rng.randint(5, 30)}, error=error)
        config = JournalConfig(sync=policy, segment_bytes=1 << 12, interval_s=0.001)
        journal = Journal(folder, GROUP, config, disk=disk)
        acknowledged = 0
        with pytest.raises(JournalBroken):  # noqa: PT012 - whichever step it is
            for run in RUNS:
                journal.add(run)
                acknowledged = journal.commit()
                if policy != "always" and run.position % 5 == 0:
                    journal.sync()
        durable = journal.durable
        assert durable >= acknowledged
        for _ in range(3):
            with pytest.raises(JournalBroken):
                journal.add(RUNS[-1])
            with pytest.raises(JournalBroken):
                journal.commit()
            with pytest.raises(JournalBroken):
                journal.fill([RUNS[0]])
        assert journal.status()["broken"]
        assert journal.durable == durable
        journal.close()
        # The disk is well again: all that was acknowledged is there.
        again = Journal(folder, GROUP, JournalConfig(segment_bytes=1 << 12))
        assert again.end >= durable
        assert messages(again.read()) == messages(RUNS)[: again.end]
        for run in RUNS:
            again.add(run)
        again.close()
        assert check(folder).good
        assert messages(Reader(folder).read()) == messages(RUNS)


def test_a_sync_that_fails_in_the_background_is_told(tmp_path: Path) -> None:
    told = threading.Event()
    config = JournalConfig(sync="interval", interval_s=0.001)
    journal = Journal(tmp_path, GROUP, config, advanced=told.set, disk=BadDisk(sync=4))
    with pytest.raises(JournalBroken):  # noqa: PT012 - whichever step it is
        for run in RUNS:
            journal.add(run)
            journal.commit()
            told.wait(0.05)
            told.clear()
    assert journal.durable < journal.end
    journal.close()


def test_with_interval_what_was_committed_becomes_durable_without_another_commit(
    tmp_path: Path,
) -> None:
    told = threading.Event()
    config = JournalConfig(sync="interval", interval_s=0.01)
    journal = Journal(tmp_path, GROUP, config, advanced=told.set)
    journal.add(RUNS[0])
    journal.commit()
    assert told.wait(30)
    assert journal.durable == RUNS[0].end
    journal.close()


def test_with_always_there_is_one_sync_for_each_commit(tmp_path: Path) -> None:
    journal = Journal(tmp_path, GROUP, JournalConfig(sync="always"))
    for start in range(0, 300, 30):
        for run in RUNS[start : start + 30]:
            journal.add(run)
        assert journal.commit() == journal.end == RUNS[start + 29].end
    assert journal.syncs == 10
    journal.commit()
    assert journal.syncs == 10, "nothing new, nothing to sync"
    journal.close()


def test_a_record_that_cannot_be_written_stops_the_journal_and_is_said(tmp_path: Path) -> None:
    said: list[str] = []
    journal = Journal(tmp_path, GROUP, JournalConfig(), said.append)
    journal.add(RUNS[0])
    journal.commit()
    journal.add(structs.replace(RUNS[1], conference=1 << 40))
    with pytest.raises(JournalBroken, match="cannot be written"):
        journal.commit()
    assert said
    assert journal.durable == RUNS[0].end
    journal.close()
    assert check(tmp_path).good


def test_more_senders_than_a_block_has_room_for_make_more_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("roundelay.journal.format.NAMES_MAX", 50)
    journal = Journal(tmp_path, GROUP, JournalConfig(sync="os"))
    for number in range(300):
        journal.add(Run(number, 1, f"s{number}", Bundle.of(b"x")))
    journal.close()
    reader = Reader(tmp_path)
    assert [run.sender for run in reader.read()] == [f"s{number}" for number in range(300)]
    last = reader.read(Selection(senders=frozenset({"s299"})))
    assert [run.position for run in last] == [299]
    assert check(tmp_path).good


def test_a_full_disk_stops_the_journal(tmp_path: Path) -> None:
    """A real one: a tmpfs of 128 KiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(folder)],
        capture_output=True, check=False,
    )  # fmt: skip
    if mounted.returncode:
        pytest.skip("nobody may mount a tmpfs here")
    try:
        journal = Journal(folder / "j", GROUP, JournalConfig(segment_bytes=1 << 14))
        runs = some_runs(4, 5000)
        acknowledged = 0
        with pytest.raises(JournalBroken, match="No space left"):  # noqa: PT012
            for run in runs:
                journal.add(run)
                acknowledged = journal.commit()
        journal.close()
        assert acknowledged > 100
        assert messages(Reader(folder / "j").read())[:acknowledged] == messages(runs)[:acknowledged]
        subprocess.run(["mount", "-o", "remount,size=1m", str(folder)], check=True)
        again = Journal(folder / "j", GROUP, JournalConfig(segment_bytes=1 << 14))
        assert again.end >= acknowledged
        for run in runs[:1500]:
            again.add(run)
        again.close()
        assert check(folder / "j").good
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_recorder_killed_at_random_moments_loses_nothing_it_acknowledged(tmp_path: Path) -> None:
    """Must show 3; `python -m tools.journal_faults kills` does it 200 times."""
    done = kills(20, 5, tmp_path)
    assert done["kills"] == 20
    assert done["acknowledged"] > 100
    assert done["lost"] == 0
    assert done["bad"] == 0


def test_a_crash_while_a_segment_is_sealed_leaves_it_to_the_next_opening(tmp_path: Path) -> None:
    """The process ends at once, with segments complete and not sealed, and a file half written."""
    code = (
        "import os, sys; from pathlib import Path\n"
        "from roundelay.journal import journal\n"
        "from roundelay.journal.upkeep import keeper\n"
        "from tests.journal.make import GROUP, some_runs\n"
        "keeper.Keeper.settle = lambda self: None\n"
        "one = journal.Journal(Path(sys.argv[1]), GROUP, journal.JournalConfig(\n"
        "    segment_bytes=1 << 12))\n"
        "for run in some_runs(21, 300): one.add(run); one.commit()\n"
        "(Path(sys.argv[1]) / '00000000000000000000.rji.new').write_bytes(b'half')\n"
        "os._exit(9)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    assert done.returncode == 9
    assert not list(tmp_path.glob("*.rji"))
    assert check(tmp_path).good
    journal = Journal(tmp_path, GROUP, JournalConfig(segment_bytes=1 << 12))
    journal.keeper.settle()
    assert journal.status()["unsealed"] == 1
    journal.close()
    assert not list(tmp_path.glob("*.new"))
    assert check(tmp_path).unsealed == 0
    assert messages(Reader(tmp_path).read()) == messages(RUNS)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("sync", "sometimes"),
        ("interval_s", 0),
        ("segment_bytes", 10),
        ("segment_bytes", 1 << 40),
        ("keep_bytes", -1),
        ("keep_s", -1),
        ("keep_conference_s", {3: -1}),
    ],
)
def test_a_configuration_that_makes_no_sense_is_refused(
    tmp_path: Path, field: str, value: object
) -> None:
    with pytest.raises(ConfigError, match=field):
        Journal(tmp_path, GROUP, JournalConfig(**{field: value}))  # type: ignore[arg-type]
