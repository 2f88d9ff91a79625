"""`roundelay query`: messages by what is in them, in archives and journals together."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from roundelay.cli.main import run
from roundelay.core.bundle import Bundle
from roundelay.core.errors import ConfigError
from roundelay.journal.files import parquet_of, segments_of
from roundelay.journal.format import Run
from roundelay.pipeline.archive import archive
from roundelay.pipeline.journals import messages
from roundelay.pipeline.query import Search, conditions, json_field, with_text
from roundelay.pipeline.session import SparkOptions, spark_session
from tests.journal.make import GROUP, NOW, flip
from tests.pipeline.journals import journal

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAYLOADS = (
    b'{"order": {"state": "open", "lines": [{"item": "screw", "price": 2.50}]}}',
    b'{"order": {"state": "late", "lines": [{"item": "nut", "price": 3}]}}',
    b"\xff\xfe raw LATE bytes \x00",
    b"{not json",
    "späte Grüße\n".encode(),
)


def some() -> list[Run]:
    """400 messages: payloads, conferences, senders and seconds in turn."""
    return [
        Run(n, NOW + n * 10**9, ("ann", "bob", "eve")[n % 3], Bundle.of(PAYLOADS[n % 5]), n % 4)
        for n in range(400)
    ]


@pytest.fixture(scope="module")
def place(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An archive of the first 250, and a journal of all but a few that the archive has."""
    place = tmp_path_factory.mktemp("query")
    journal(place / "old", some()[:250])
    archive(lambda: spark_session("tests", SparkOptions()), [place / "old"], place / "archive")
    journal(place / "new" / "orders", some(), (100, 120), parquet=True)
    return place


def call(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    capsys.readouterr()
    status = run(["query", *map(str, words)])
    done = capsys.readouterr()
    return status, done.out, done.err


def found(capsys: pytest.CaptureFixture[str], *words: object) -> list[dict[str, Any]]:
    status, out, err = call(capsys, *words, "--json")
    assert status == 0, err
    return [json.loads(line) for line in out.splitlines()]


def test_archives_and_journals_are_one_table_without_duplicates(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = found(capsys, place / "archive", place / "new")
    assert [one["seq"] for one in lines] == list(range(400))
    first, third = lines[0], lines[2]
    assert first == {
        "group": GROUP, "seq": 0, "time": "2023-11-14T22:13:20.000000Z", "sender": "ann",
        "conference": 0, "kind": 0, "data": PAYLOADS[0].decode(),
    }  # fmt: skip
    assert "data" not in third  # not UTF-8
    assert third["base64"] == "//4gcmF3IExBVEUgYnl0ZXMgAA=="
    assert len(found(capsys, place)) == 400  # two journals, of which one is archived already


def test_every_condition_holds_where_a_loop_says_so(spark: SparkSession, place: Path) -> None:
    ways: list[tuple[Search, Callable[[int], bool]]] = [
        (Search(text=("late",)), lambda n: n % 5 in (1, 2)),
        (Search(text=("GRÜßE", "sp")), lambda n: n % 5 == 4),
        (Search(json_fields=(json_field("order.state=late"),)), lambda n: n % 5 == 1),
        (Search(json_fields=(json_field("order.lines[0].price=2.5"),)), lambda n: n % 5 == 0),
        (Search(query="sender = 'eve' and text like '%json%'"),
         lambda n: n % 3 == 2 and n % 5 == 3),
    ]  # fmt: skip
    frame = with_text(messages(spark, [place / "archive"]))
    held = [reduce(lambda one, other: one & other, conditions(search)) for search, _ in ways]
    rows = frame.select("seq", *(one.alias(f"way{n}") for n, one in enumerate(held))).collect()
    assert len(rows) == 250
    for number, (search, holds) in enumerate(ways):
        seqs = sorted(row.seq for row in rows if row[f"way{number}"])
        assert seqs == [n for n in range(250) if holds(n)], search


def test_the_options_of_the_command_and_sql_narrow_each_other(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    since, until = "2023-11-14T22:15:00Z", "2023-11-14T22:18:20"
    rows = found(
        capsys, "--from", place / "archive", "--from", place / "new", "--conference", 2,
        "--sender", "ann", "--sender", "eve", "--kind", 0, "--group", GROUP, "--since", since,
        "--until", until, "--seq-from", 110, "--seq-until", 290, "--text", "e",
        "--json-field", "order.state=open", "--sql",
        "SELECT sender, count(*) AS messages, max(seq) AS last FROM messages GROUP BY 1 ORDER BY 1",
    )  # fmt: skip
    chosen = [n for n in range(110, 290) if n % 4 == 2 and n % 3 != 1 and n % 5 == 0]
    assert [tuple(row.values()) for row in rows] == [
        (who, len(of), max(of))
        for who, of in (
            ("ann", [n for n in chosen if n % 3 == 0]),
            ("eve", [n for n in chosen if n % 3 == 2]),
        )
    ]


def test_rows_can_be_shown_and_written(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = place / "archive"
    status, out, _ = call(capsys, where, "seq < 5")
    assert status == 0
    assert "screw" in out
    assert "base64 //4gcmF3" in out
    assert "späte Grüße\\n" in out or "sp\\xe4te" in out
    for name in ("some.parquet", "some.csv", "some.jsonl"):
        assert call(capsys, where, "seq < 5", "--out", place / name)[0] == 0
    assert pq.read_table(place / "some.parquet").column("data").to_pylist() == list(PAYLOADS)
    with (place / "some.csv").open(newline="", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    assert [line["data"] for line in lines] == [
        "" if n == 2 else payload.decode() for n, payload in enumerate(PAYLOADS)
    ]
    rows = [json.loads(line) for line in (place / "some.jsonl").read_text().splitlines()]
    assert [row["seq"] for row in rows] == list(range(5))
    for path in ("some.parquet", "some.csv", "some.jsonl"):
        (place / path).unlink()


def test_a_journal_with_damaged_parquet_is_read_by_its_segments(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = journal(tmp_path / "one", some(), parquet=True)
    path = parquet_of(segments_of(folder)[0])
    for at in range(100, path.stat().st_size // 2, 50):
        flip(path, at)
    asked = "SELECT count(*) AS n, sum(length(data)) AS bytes FROM messages"
    status, out, err = call(capsys, folder, asked, "--json")
    assert status == 0
    assert json.loads(out) == {"n": 400, "bytes": sum(len(run.bundle.data) for run in some())}
    assert "reading the segments instead" in err


def test_what_is_wrong_with_a_query_is_one_line(
    place: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for words, part in (
        ((place / "archive", "bogus = 3"), "bogus"),
        ((place / "archive", "SELECT FROM"), "query = SELECT FROM"),
        ((place / "archive", "one", "two"), "one condition or SELECT"),
        (("--from", tmp_path, "seq = 1"), "journal.json"),
        ((place / "archive", "--sql", "DROP TABLE x"), "SELECT"),
        ((place / "archive", "--out", "rows.txt"), "--format"),
        ((place / "archive", "--out", tmp_path / "none" / "rows.csv"), "a folder that is there"),
        ((place / "archive", "--out", tmp_path, "--format", "csv"), "this is a folder"),
        ((place / "archive", "--json-field", "order"), "path=value"),
    ):
        status, out, err = call(capsys, *words)
        assert (status, out, err.count("\n")) == (2, "", 1), err
        assert part in err
    with pytest.raises(ConfigError):
        json_field("a b=3")
    monkeypatch.chdir(tmp_path)
    status, _, err = call(capsys, "archve")
    assert status == 2
    assert "'archve' is no folder" in err
