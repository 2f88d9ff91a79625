"""The commands that talk to a node, against a frontend server in a thread of this process."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.node.board import NodeThread

PROGRAM = Path(sys.executable).with_name("roundelay")
ENV = {name: value for name, value in os.environ.items() if "COVERAGE" not in name}


@pytest.fixture
def node() -> Iterator[NodeThread]:
    made = NodeThread()
    made.start()
    yield made
    made.stop()


def wait_for(condition: Callable[[], Any]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "waited for nothing"
        time.sleep(0.01)


def test_send_waits_for_its_receipt(call: Any, node: NodeThread) -> None:
    node.join("token:g")
    done = call("send", "token:g", "hello", "--node", node.where)
    assert (done.status, done.out, done.err) == (0, "", "")
    done = call("send", "token:g", "é", "--node", node.where, "--json")
    assert done.json == {"group": "token:g", "messages": 1, "seq": 1}
    done = call("send", "plain", "x", "--node", node.where, "--json")
    assert done.json == {"group": "plain", "messages": 1, "seq": None}
    assert node.ear.messages == [b"hello", "é".encode()]


def test_send_names_who_was_given_up(call: Any, node: NodeThread) -> None:
    """It said nothing, and ended as if everybody had the message."""
    said = "given up, for they were lost or left before they had it: bob, cat\n"
    done = call("send", "plain", "lost on two", "--node", node.where)
    assert (done.status, done.out, done.err) == (0, "", said)
    done = call("send", "plain", "lost on two", "--node", node.where, "--json")
    assert done.json["given_up"] == ["bob", "cat"]


def test_send_takes_lines_and_bytes_from_standard_input(node: NodeThread, tmp_path: Path) -> None:
    node.join("token:g")

    def send(data: bytes, *words: str) -> dict[str, Any]:
        done = subprocess.run(
            [PROGRAM, "send", "token:g", *words, "--node", node.where, "--json"],
            input=data, capture_output=True, timeout=60, check=True, env=ENV,
        )  # fmt: skip
        return json.loads(done.stdout)  # type: ignore[no-any-return]

    raw = bytes(range(256)) * 1000
    assert send(raw, "-")["messages"] == 1
    assert send(b"")["messages"] == 1
    lines = [b"line %d" % i for i in range(20_000)]
    sent = send(b"\n".join(lines), "-", "--lines")
    assert sent == {"group": "token:g", "messages": 20_000, "seq": 20_001}
    assert send(b"one\n\ntwo\n", "--lines")["messages"] == 3
    assert node.ear.messages == [raw, b"", *lines, b"one", b"", b"two"]
    file = tmp_path / "lines"
    file.write_bytes(b"a\nb\n")
    with file.open("rb") as opened:
        subprocess.run(
            [PROGRAM, "send", "token:g", "--lines", "--node", node.where],
            stdin=opened, timeout=60, check=True, env=ENV,
        )  # fmt: skip
    assert node.ear.messages[-2:] == [b"a", b"b"]


def test_send_to_someone_and_to_some(call: Any, node: NodeThread) -> None:
    node.join("g")
    assert call("send", "g", "job", "--someone", "--node", node.where).status == 0
    assert call("send", "g", "yours", "--to", "solo,duo", "--node", node.where).status == 0
    assert call("send", "g", "not yours", "--to", "duo", "--node", node.where).status == 0
    assert node.ear.messages == [b"job", b"yours"]


def test_a_send_nobody_can_vouch_for_has_status_1(call: Any, node: NodeThread) -> None:
    done = call("send", "g", "doubt", "--node", node.where)
    assert done.status == 1
    assert done.err == "roundelay send: Indeterminate: no majority\n"


def test_listen_prints_one_object_a_line(node: NodeThread) -> None:
    listening = subprocess.Popen(
        [PROGRAM, "listen", "token:g", "--node", node.where, "--count", "4", "--json"],
        stdout=subprocess.PIPE, env=ENV,
    )  # fmt: skip
    wait_for(lambda: node.listeners("token:g"))
    node.say("token:g", b"one", "zwölf".encode())
    node.say("token:g", b"\xff\x00", b"four", b"five, which is one too many")
    out, _ = listening.communicate(timeout=60)
    assert listening.returncode == 0
    lines = [json.loads(line) for line in out.splitlines()]
    assert [list(line) for line in lines[:2]] == [["group", "seq", "sender", "time", "data"]] * 2
    assert [line["seq"] for line in lines] == [0, 1, 2, 3]
    assert [line["data"] for line in lines] == ["one", "zwölf", None, "four"]
    assert lines[2]["base64"] == "/wA="
    assert {line["group"] for line in lines} == {"token:g"}
    assert {line["sender"] for line in lines} == {"solo"}
    for line in lines:
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", line["time"])


def test_seq_is_null_without_a_total_order(node: NodeThread) -> None:
    listening = subprocess.Popen(
        [PROGRAM, "listen", "plain", "--node", node.where, "--count", "2", "--json"],
        stdout=subprocess.PIPE, env=ENV,
    )  # fmt: skip
    wait_for(lambda: node.listeners("plain"))
    node.say("plain", b"one", b"two")
    out, _ = listening.communicate(timeout=60)
    assert [json.loads(line)["seq"] for line in out.splitlines()] == [None, None]


def test_listen_begins_where_it_is_told(node: NodeThread) -> None:
    node.say("token:g", b"zero")
    node.say("token:g", b"one")
    node.say("token:g", b"two")
    done = subprocess.run(
        [PROGRAM, "listen", "token:g", "--node", node.where, "--since", "1", "--count", "2"],
        capture_output=True, timeout=60, check=True, env=ENV,
    )  # fmt: skip
    assert done.stdout == b"1 solo: one\n2 solo: two\n"


def test_listen_ends_cleanly_with_ctrl_c_and_flushes_as_it_goes(node: NodeThread) -> None:
    listening = subprocess.Popen(
        [PROGRAM, "listen", "token:g", "--node", node.where],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENV,
    )  # fmt: skip
    wait_for(lambda: node.listeners("token:g"))
    node.say("token:g", b"hello", b"\xff")
    assert listening.stdout is not None
    assert listening.stdout.readline() == b"0 solo: hello\n"
    assert listening.stdout.readline() == b"1 solo: \\xff\n"
    listening.send_signal(signal.SIGINT)
    out, err = listening.communicate(timeout=60)
    assert (listening.returncode, out, err) == (0, b"", b"")
    wait_for(lambda: not node.listeners("token:g"))


def test_listen_says_when_the_node_is_gone(node: NodeThread) -> None:
    listening = subprocess.Popen(
        [PROGRAM, "listen", "g", "--node", node.where],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENV,
    )  # fmt: skip
    wait_for(lambda: node.listeners("g"))
    node.stop()
    _, err = listening.communicate(timeout=60)
    assert listening.returncode == 1
    assert err.count(b"\n") == 1
    assert b"the node stops" in err


def test_questions_have_answers_for_programs_and_for_people(call: Any, node: NodeThread) -> None:
    node.join("token:g")
    at = ("--node", node.where)
    assert call("members", "token:g", *at, "--json").json["members"][0]["name"] == "solo"
    assert call("groups", *at, "--json").json["groups"][0]["group"] == "token:g"
    found = call("status", *at, "--json").json
    assert found["frontends"]["connections"] == 1
    assert call("why", "solo", *at, "--json").json["alive"] is True
    for words in (("members", "token:g"), ("groups",), ("status",), ("why", "solo")):
        done = call(*words, *at)
        assert done.status == 0
        assert "solo" in done.out or "token:g" in done.out
        assert done.err == ""


def test_what_cannot_be_is_one_line_and_status_2(call: Any, node: NodeThread) -> None:
    at = ("--node", node.where)
    for words, text in (
        (("why", "ghost", *at), "never heard of"),
        (("members", "ghost", *at), "not known here"),
        (("send", "g", "x", "--to", "a,,b", *at), "to = "),
        (("send", "g", "x", "--to", "a", "--someone", *at), "to = "),
        (("send", "x" * 256, "x", *at), "group = "),
        (("send", "", "x", *at), "group = "),
        (("send", "g", "x" * ((1 << 20) + 1), *at), "--max-message"),
        (("listen", "g", "--count", "0", *at), "count = 0"),
        (("listen", "", *at), "group = "),
        (("listen", "closed:club", *at), "not for you"),
        (("status", "--node", "here"), "node = here"),
        (("status", "--node", "unix:/nowhere/at/all"), "roundelay node"),
    ):
        done = call(*words)
        assert done.status == 2, words
        assert done.out == ""
        assert done.err.count("\n") == 1
        assert text in done.err


@pytest.mark.parametrize("words", [("send", "g", "x"), ("listen", "g"), ("members", "g"),
                                   ("groups",), ("status",), ("why", "x")])  # fmt: skip
def test_no_node_is_one_line_that_says_how_to_start_one(call: Any, words: tuple[str, ...]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        done = call(*words, "--node", where)
    assert done.status == 2
    assert done.out == ""
    assert done.err.count("\n") == 1
    assert f"start one with `roundelay node --frontend {where}" in done.err
