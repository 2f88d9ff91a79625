"""Members that come back (issue 11, lines 21 and 26)."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

from tests.reproductions.processes import Application, Machine, until, wait


def is_open(application: Application) -> bool:
    views = application.of("view")
    return bool(views) and views[-1]["state"] == "open"


def test_a_member_without_a_name_can_come_back_with_its_folder(tmp_path: Path) -> None:
    """It made up another name, and the group of two waited for the first one for ever."""
    with Machine() as machine:
        folder = str(tmp_path / "nameless")
        stays = machine.start("stays", dir=str(tmp_path / "stays"))
        nameless = machine.start("", dir=folder)
        until(lambda: len(stays.members) == len(nameless.members) == 2, "both are together")
        stays.say("before")
        until(lambda: nameless.given == ["before"], "a message")
        nameless.signal(signal.SIGKILL)
        back = machine.start("", dir=folder)
        until(lambda: back.is_in, "it is back")
        back.say("after")
        until(lambda: back.done("after"), "its broadcast ends")
        assert back.confirmed == ["after"], back.of("failed", "view")
        assert stays.given == ["before", "after"]


def table(file: Path, **more: Any) -> None:
    """What a journal group is made of; lists of JSON are those of TOML."""
    file.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in more.items()))


def test_a_user_that_was_started_with_a_file_that_the_others_refuse_can_go_back(
    tmp_path: Path,
) -> None:
    """It had kept that file, and refused to start with the group's own from then on."""
    file = tmp_path / "news.toml"
    table(file, profile="demo", members=["a", "b", "ann"])

    def begin(name: str, **options: Any) -> Application:
        folder = str(tmp_path / name)
        return machine.start(
            name, group="news", service="journal", config=str(file), dir=folder, **options
        )

    with Machine() as machine:
        everybody = [begin(name) for name in ("a", "b", "ann")]
        until(lambda: all(is_open(one) for one in everybody), "the group works")
        everybody[2].say("first")
        until(lambda: everybody[2].confirmed == ["first"], "a broadcast")
        everybody[2].end()
        table(file, profile="demo", members=["a", "b", "ann", "c"], recorders=2)
        wrong = begin("ann")
        until(lambda: wrong.decided, "it is started with another file")
        wait(lambda: is_open(wrong), 1.0)
        wrong.end()
        table(file, profile="demo", members=["a", "b", "ann"])
        again = begin("ann")
        until(lambda: again.decided, "it is started with the group's file")
        assert again.refusal == ""
        again.say("second")
        until(lambda: again.confirmed == ["second"], "another broadcast")
        assert [line["seq"] for line in again.of("confirmed")] == [1]  # behind the first one
