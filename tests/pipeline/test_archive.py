"""`roundelay archive`: journals into Parquet, a little at a time, whatever happens."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from roundelay.cli.archive import keep_days_of
from roundelay.cli.main import run
from roundelay.core.errors import ConfigError
from roundelay.journal.archive import ArchiveInUse, lock, read_manifest
from roundelay.journal.files import segments_of
from roundelay.journal.journal import Journal, JournalConfig
from roundelay.pipeline.archive import EVERY_GROUP, Sizes, archive, tasks
from roundelay.pipeline.session import SparkOptions, spark_session
from tests.journal.make import GROUP, NOW, flip
from tests.pipeline.journals import DAY_NS, journal, two_days

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RUNS = two_days(4, 900)
END = RUNS[-1].end
SMALL = Sizes(job_bytes=20_000, file_bytes=1 << 20, small_bytes=1 << 19, together_bytes=1 << 20)


def session() -> Any:
    return spark_session("tests", SparkOptions())  # the one that is there


def seqs(spark: SparkSession, out: Path) -> list[int]:
    found = spark.read.parquet(str(out)).select("seq").toArrow().column("seq").to_pylist()
    return sorted(found)


def state(out: Path) -> dict[str, tuple[int, int]]:
    return {
        str(path): (path.stat().st_mtime_ns, path.stat().st_size)
        for path in out.rglob("*")
        if path.is_file()
    }


def test_an_archive_takes_what_is_new_and_only_that(spark: SparkSession, tmp_path: Path) -> None:
    folder, out = journal(tmp_path / "a", RUNS[:600], (100, 110)), tmp_path / "out"
    done = archive(session, [folder], out, sizes=SMALL)
    lost = (RUNS[100].position, RUNS[109].end)
    assert done.groups[GROUP].missing == [lost]
    assert seqs(spark, out) == [n for n in range(RUNS[600].position) if not lost[0] <= n < lost[1]]
    before = state(out)
    assert archive(_no_spark, [folder], out, sizes=SMALL).groups[GROUP].new == 0
    assert state(out) == before

    # The recorder goes on, and another one has what it lacked.
    more = Journal(folder, GROUP, JournalConfig(segment_bytes=1 << 14, sync="os"))
    for one in RUNS[600:]:
        more.add(one)
        more.commit()
    more.close()
    other = journal(tmp_path / "b", RUNS, (300, 301))
    flip(segments_of(other)[-1], 1000)
    done = archive(session, [folder, other], out, sizes=SMALL)
    assert done.groups[GROUP].missing == []
    assert done.groups[GROUP].new == END - RUNS[600].position + lost[1] - lost[0]
    assert seqs(spark, out) == list(range(END))

    # Few files, one a day here, each sorted; all of it is in the manifest.
    files = read_manifest(out).files
    assert [file.day for file in files] == ["2023-11-14", "2023-11-15"]
    assert {str(out / file.path) for file in files} == {
        str(path) for path in out.rglob("*.parquet")
    }
    frame = spark.read.parquet(str(out))
    assert {row.day.isoformat() for row in frame.select("day").distinct().collect()} == {
        file.day for file in files
    }
    assert frame.where("day = '2023-11-14'").count() == files[0].rows

    # Somebody removes a file: it is made again from the journals.
    (out / files[1].path).unlink()
    done = archive(session, [folder, other], out, sizes=SMALL)
    assert done.gone == [files[1].path]
    assert read_manifest(out).files == files


def _no_spark() -> Any:
    raise AssertionError("there is nothing to do")


def test_a_run_that_dies_leaves_the_archive_as_it_was(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, out = journal(tmp_path / "a", RUNS[:300]), tmp_path / "out"
    archive(session, [folder], out, sizes=SMALL)
    whole = journal(tmp_path / "b", RUNS)

    def dies(*_: object) -> None:
        raise RuntimeError("killed")

    for step in ("write_manifest", "tidy"):  # before it counts, and after
        with monkeypatch.context() as patch:
            if step == "tidy":
                calls = [dies, tasks.tidy]
                patch.setattr(tasks, "tidy", lambda *args, left=calls: left.pop()(*args))
            else:
                patch.setattr(tasks, "write_manifest", dies)
            with pytest.raises(RuntimeError, match="killed"):
                archive(session, [whole], out, sizes=SMALL)
        named = {str(out / file.path) for file in read_manifest(out).files}
        assert {str(path) for path in out.rglob("*.parquet")} >= named
        have = read_manifest(out).groups[GROUP].positions
        assert have == [(0, RUNS[300].position if step == "write_manifest" else END)]
    archive(session, [whole], out, sizes=SMALL)
    assert seqs(spark, out) == list(range(END))
    assert not (out / "_aside").exists()


def test_old_days_are_let_go_by_group_and_do_not_come_back(
    spark: SparkSession, tmp_path: Path
) -> None:
    folder, out = journal(tmp_path / "a", RUNS), tmp_path / "out"
    archive(session, [folder], out, sizes=SMALL)
    later = datetime.fromtimestamp((NOW + 3 * DAY_NS) / 1e9, UTC)
    keep = {EVERY_GROUP: 0, GROUP: 2}
    done = archive(_no_spark, [folder], out, keep_days=keep, now=later, sizes=SMALL)
    half = RUNS[450].position
    assert (done.removed, done.groups[GROUP].let_go) == (1, half)
    assert seqs(spark, out) == list(range(half, END))
    assert archive(_no_spark, [folder], out, sizes=SMALL).groups[GROUP].records == END - half
    # What is too old already is not even taken.
    new = archive(session, [folder], tmp_path / "new", keep_days=keep, now=later, sizes=SMALL)
    assert (new.groups[GROUP].records, new.groups[GROUP].let_go) == (END - half, half)


def test_the_command_says_what_it_did_and_one_run_writes_at_a_time(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, out = journal(tmp_path / "a", RUNS[:50]), tmp_path / "out"
    assert run(["archive", str(tmp_path), "--out", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["groups"][GROUP]["new"] == RUNS[50].position
    with lock(out), pytest.raises(ArchiveInUse):
        archive(_no_spark, [folder], out)
    assert run(["archive", str(folder), "--out", str(out), "--keep-days", "many"]) == 2
    assert "keep_days = many" in capsys.readouterr().err
    with pytest.raises(ConfigError):
        keep_days_of(["=3"])
