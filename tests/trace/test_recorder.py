"""The hash of a run, and the file it may leave behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roundelay.core import events as ev
from roundelay.core.bundle import Bundle
from roundelay.core.engine import Delivery, Pdu
from roundelay.core.errors import UsageError
from roundelay.core.notices import notice
from roundelay.core.token.pdu import Abort, Ack, B, NewToken, RetxMsg, TlHint
from roundelay.trace import Recorder
from roundelay.trace import recorder as recorder_module

ROOT = Path(__file__).parents[2]


class LogPart(Pdu, frozen=True):
    """A PDU of no protocol, with a field of every sort."""

    v: tuple[int, int]
    tl: tuple[int, int]
    entries: tuple[int, ...]
    counters: tuple[tuple[int, int], ...]
    yes: bool
    seq: int


BUNDLE = Bundle.of(b"0123456789ab", b"0123456789cd")


def some_rows() -> list[ev.Row]:
    """At least one row of every event."""
    b = B((0, 0), 1, 7, BUNDLE)
    ack = Ack((0, 0), 5, 1, 1, 7, 2, 3)
    part = LogPart((1, 2), (0, 0), (7, 8, 9), ((0, 1),), True, 4)
    return [
        (0, -1, ev.MARK, -1, -1, "start"),
        (1, 1, ev.SUBMIT, 0, -1, BUNDLE),
        (2, 1, ev.SEND, 1, -1, b),
        (3, 0, ev.RECEIVE, 1, 1, None),
        (3, 2, ev.LOSE, 1, 1, "loss"),
        (4, 2, ev.SEND, 2, -1, ack),
        (4, 2, ev.SEND, 3, 0, RetxMsg(b)),
        (4, 2, ev.SEND, 4, 0, part),
        (5, 0, ev.DELIVER, 0, 1, Delivery(0, 1, 7, BUNDLE, "committed")),
        (5, 0, ev.NOTICE, -1, -1, notice("view", (1, 2), (0, 1, 2), 0, 4)),
        (5, 0, ev.NOTICE, -1, -1, notice("gap_unavailable", 0, 4)),
        (6, 1, ev.CRASH, -1, -1, ev.DISK),
        (7, 1, ev.RESTART, -1, -1, ev.DISK),
        (8, 2, ev.PAUSE, -1, -1, None),
        (9, 2, ev.RESUME, -1, -1, None),
        (9, -1, ev.FAULT, -1, -1, "partition"),
        (9, 0, ev.ROLE, -1, -1, ev.TOKEN),
        (10, -1, ev.MARK, -1, -1, ev.END),
    ]


def hash_of(rows: list[ev.Row], *, flush_at: tuple[int, ...] = ()) -> str:
    recorder = Recorder()
    for i, row in enumerate(rows):
        recorder.append(row)
        if i in flush_at:
            recorder.flush()
    return recorder.sha256()


@settings(max_examples=50, deadline=None)
@given(st.sets(st.integers(0, 99)))
def test_the_hash_does_not_depend_on_when_rows_are_flushed(flushes: set[int]) -> None:
    rows = some_rows() * 5
    assert hash_of(rows, flush_at=tuple(flushes)) == hash_of(rows)


@pytest.mark.parametrize("count", [15, 16, 65_535, 65_536])
def test_the_hash_does_not_depend_on_the_size_of_a_batch(count: int) -> None:
    rows: list[ev.Row] = [(i, 0, ev.ROLE, -1, -1, ev.IDLE) for i in range(count)]
    assert hash_of(rows) == hash_of(rows, flush_at=tuple(range(0, count, 1000)))


def test_the_hash_does_not_depend_on_whether_a_file_is_written(tmp_path: Path) -> None:
    with Recorder(tmp_path / "trace.parquet") as recorder:
        recorder.rows.extend(some_rows())
        written = recorder.sha256()
    assert written == hash_of(some_rows())


def test_the_hash_is_the_same_in_every_process() -> None:
    code = (
        "from tests.trace.test_recorder import *;"
        "odd = (11, 0, ev.NOTICE, -1, -1, notice('odd', {'b': 1, 'a': 2}, {'x', 'y', 'z'}));"
        "print(hash_of([*some_rows(), odd]))"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "77")
    }
    assert len(found) == 1


@pytest.mark.parametrize("i", range(len(some_rows())))
def test_every_field_of_every_row_counts(i: int) -> None:
    rows = some_rows()
    time, site, event, ref, peer, obj = rows[i]
    whole = hash_of(rows)
    others: list[ev.Row] = [
        (time + 1, site, event, ref, peer, obj),
        (time, site + 1, event, ref, peer, obj),
        (time, site, event, ref + 1, peer, obj),
        (time, site, event, ref, peer + 1, obj),
        (time, site, event, ref, peer, Bundle.of(b"something else")),
    ]
    for other in others:
        assert hash_of([*rows[:i], other, *rows[i + 1 :]]) != whole
    assert hash_of(rows[:i] + rows[i + 1 :]) != whole


def test_pdus_with_the_same_fields_differ_in_the_hash() -> None:
    hashes = {hash_of([(0, 0, ev.SEND, 1, -1, pdu((1, 2)))]) for pdu in (TlHint, Abort, NewToken)}
    assert len(hashes) == 3


def test_rows_are_counted_by_event() -> None:
    recorder = Recorder()
    recorder.rows.extend(some_rows())
    assert recorder.counts["SEND"] == 4
    assert sum(recorder.counts.values()) == len(some_rows())
    assert not recorder.rows


def test_the_list_of_rows_stays_the_same_object() -> None:
    recorder = Recorder()
    append, rows = recorder.append, recorder.rows
    append((0, 0, ev.ROLE, -1, -1, ev.TOKEN))
    recorder.flush()
    append((1, 0, ev.ROLE, -1, -1, ev.IDLE))
    assert recorder.rows is rows
    assert recorder.counts == {"ROLE": 2}


def test_a_file_gets_its_name_when_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "trace.parquet"
    recorder = Recorder(path)
    recorder.rows.extend(some_rows())
    recorder.flush()
    assert not path.exists()
    recorder.close()
    recorder.close()
    assert [file.name for file in tmp_path.iterdir()] == ["trace.parquet"]


def test_an_error_leaves_no_file_behind(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), Recorder(tmp_path / "trace.parquet") as recorder:  # noqa: PT012
        recorder.rows.extend(some_rows())
        recorder.flush()
        raise RuntimeError("the run failed")
    assert not list(tmp_path.iterdir())


def test_a_folder_that_does_not_exist_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot write") as caught:
        Recorder(tmp_path / "nowhere" / "trace.parquet")
    assert "\n" not in str(caught.value)


def test_without_pyarrow_a_file_is_refused_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UsageError, match=r"roundelay\[trace\]"):
        Recorder(tmp_path / "trace.parquet")
    assert Recorder().sha256()  # the hash needs no file


def test_memory_is_bounded_by_row_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder_module, "GROUP_ROWS", 100)
    with Recorder(tmp_path / "trace.parquet") as recorder:
        for start in range(0, 1000, 40):
            recorder.rows.extend((start + i, 0, ev.ROLE, -1, -1, ev.IDLE) for i in range(40))
            recorder.flush()
            assert recorder._file is not None
            assert recorder._file._gathered <= 100
        recorder.rows.extend((2000 + i, 0, ev.ROLE, -1, -1, ev.IDLE) for i in range(333))
    from pyarrow.parquet import ParquetFile

    metadata = ParquetFile(tmp_path / "trace.parquet").metadata
    assert metadata.num_rows == 1333
    assert all(metadata.row_group(g).num_rows <= 100 for g in range(metadata.num_row_groups))
