"""Options of `join`, asked for or not, and what receipts tell (issue 11, lines 7, 22 and 31)."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.reproductions.processes import Machine, Program, daemon, until


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"service": "resilient", "resilience": 1}, {"resilience": 2}),
        ({"service": "total", "hub": True}, {"hub": False}),
        ({"service": "total", "stage": "accepted"}, {"stage": "acknowledged"}),
    ],
)
def test_options_that_the_group_of_a_daemon_does_not_have_are_not_passed_over(
    tmp_path: Path, first: dict[str, Any], second: dict[str, Any]
) -> None:
    """Who asked for L = 2 was let into a group with L = 1, and told nothing."""
    with daemon(tmp_path) as (path, _), Machine() as machine:
        machine.medium = {"node": f"unix:{path}"}
        one = machine.start("", **first)
        until(lambda: one.decided, "the first is in")
        assert one.is_in, one.refusal
        other = machine.start("", **first | second)
        until(lambda: other.decided, "the second is in, or refused")
        (option,) = second
        assert option in other.refusal, "it is in, without a word"


def test_a_receipt_of_a_fifo_group_says_who_does_not_have_the_message() -> None:
    """It looked as if everybody had it."""
    with Machine() as machine:
        ann, bertha, carl = machine.form("ann", "bertha", "carl", service="fifo", timeout=15.0)
        bertha.signal(signal.SIGSTOP)
        ann.say("hello")
        until(lambda: ann.done("hello"), "the broadcast ends")
        (receipt,) = [line["receipt"] for line in ann.of("confirmed")]
        assert carl.given == ["hello"]
        assert bertha.given == []
        assert "bertha" in receipt


def is_stopped(program: Program) -> bool:
    state = Path(f"/proc/{program.process.pid}/stat").read_text().rpartition(")")[2]
    return state.split()[0] == "T"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_two_of_five_confirm_nothing_by_themselves_where_nobody_asked_for_a_level() -> None:
    """L was 1 whatever the size: where the token was, two confirmed what nobody else had, and the
    other three could have gone on without them and without it."""
    with Machine() as machine:
        everybody = machine.form(*"abcde")
        for number in range(7):
            first = number % len(everybody)
            awake = [everybody[first], everybody[(first + 1) % len(everybody)]]
            asleep = [one for one in everybody if one not in awake]
            awake[0].say(f"before {number}")
            until(lambda: f"before {number}" in awake[0].confirmed, "all are there")  # noqa: B023
            for one in asleep:
                one.signal(signal.SIGSTOP)
            until(lambda: all(map(is_stopped, asleep)), "three are stopped")  # noqa: B023
            for one in awake:
                one.say(f"{one.name} {number}")
            time.sleep(0.25)
            alone = {f"{one.name} {number}" for one in awake}
            found = alone & {text for one in awake for text in one.confirmed}
            for one in asleep:
                one.signal(signal.SIGCONT)
            assert not found, "confirmed, and three of five have not heard of it"
