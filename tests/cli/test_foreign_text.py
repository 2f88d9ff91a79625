"""What others sent reaches a terminal as text, and times mean the same in every command."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from roundelay.cli.main import run as run_command
from roundelay.cli.output import print_answer
from roundelay.cli.talk import WAIT_S, _json_line, _text_line, told_if_waiting
from roundelay.client.daemon import Daemon
from roundelay.client.messages import messages_of
from roundelay.client.since import parse_moment, place_of
from roundelay.core.bundle import Bundle
from roundelay.core.errors import SettingsMismatch
from roundelay.journal.format import Run
from roundelay.journal.journal import Journal, JournalConfig
from roundelay.journal.moments import nanoseconds
from roundelay.node.node_api import Batch

HOSTILE = "\x1b]0;owned\x07\x1b[2J\u202eevil\r\nnext\x9b1m"
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


def harmless(text: str) -> bool:
    return all(one.isprintable() or one == "\n" for one in text)


def journal_of(folder: Path, text: str, sender: str) -> Path:
    journal = Journal(folder, "token:orders", JournalConfig(sync="os"))
    journal.add(Run(0, nanoseconds(NOON), sender, Bundle.of(text.encode())))
    journal.close()
    return folder


def test_listen_escapes_what_a_terminal_would_obey() -> None:
    batch = Batch("token:orders", 7, HOSTILE, 0, Bundle.of(HOSTILE.encode(), "grüße".encode()))
    first, second, rest = "".join(_text_line("", it) for it in messages_of(batch)).split("\n")
    assert harmless(first)
    assert harmless(second)
    assert first.startswith("7 ")
    assert "\\x1b[2J" in first
    assert second.endswith(": grüße")
    assert rest == ""


def test_json_lines_escape_it_too_and_mean_the_same() -> None:
    batch = Batch("token:orders", 7, HOSTILE, 0, Bundle.of(HOSTILE.encode(), "grüße".encode()))
    first, second, _ = "".join(_json_line("", it) for it in messages_of(batch)).split("\n")
    assert harmless(first)
    assert "grüße" in second
    heard = json.loads(first)
    assert heard["data"] == heard["sender"] == HOSTILE


def test_status_escapes_names(capsys: pytest.CaptureFixture[str]) -> None:
    print_answer({"node": HOSTILE, "groups": [{"group": HOSTILE, "state": "open"}]})
    assert harmless(capsys.readouterr().out)


def test_an_error_that_names_others_escapes_what_they_call_themselves(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`listen` ended with the text of an error as it was, names of other nodes included."""

    async def refused(*_: object, **__: object) -> None:
        raise SettingsMismatch("token:orders", "members", "a", f"b, {HOSTILE}")

    monkeypatch.setattr(Daemon, "connect", refused)
    assert run_command(["listen", "token:orders"]) == 2
    err = capsys.readouterr().err
    assert "\\x1b[2J" in err
    assert harmless(err)


def test_what_listen_says_while_it_waits_escapes_names(capsys: pytest.CaptureFixture[str]) -> None:
    async def state() -> str:
        return f"blocked: majority; missing {HOSTILE}"

    async def wait() -> None:
        async with told_if_waiting("token:orders", state):
            await asyncio.sleep(WAIT_S + 0.2)

    asyncio.run(wait())
    err = capsys.readouterr().err
    assert "majority" in err
    assert harmless(err)


def test_journal_cat_escapes_records(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["journal", "cat", str(journal_of(tmp_path / "j", HOSTILE, "ann"))]) == 0
    out = capsys.readouterr().out
    assert harmless(out)
    assert out.count("\n") == 1
    assert run_command(["journal", "cat", "--json", str(tmp_path / "j")]) == 0
    out = capsys.readouterr().out
    assert harmless(out)
    assert json.loads(out)["data"] == HOSTILE


@pytest.fixture
def far_from_greenwich(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("far_from_greenwich")
def test_a_time_without_a_zone_is_utc_in_every_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert place_of(parse_moment("2026-01-31T12:00")) == (0, nanoseconds(NOON))
    assert place_of(datetime(2026, 1, 31, 12)) == (0, nanoseconds(NOON))
    assert place_of(parse_moment("2026-01-31T07:00-05:00")) == (0, nanoseconds(NOON))
    folder = journal_of(tmp_path / "j", "at noon", "ann")
    for since, lines in (("2026-01-31T12:00", 1), ("2026-01-31T12:01", 0)):
        assert run_command(["journal", "cat", str(folder), "--since-time", since]) == 0
        printed = capsys.readouterr()
        assert printed.out.count("at noon") == lines
        assert f"--since-time {since}: no zone given, taken as UTC" in printed.err
    assert run_command(["journal", "cat", str(folder), "--since-time", "2026-01-31T12:00Z"]) == 0
    assert capsys.readouterr().err == ""
