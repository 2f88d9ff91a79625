"""The judge of `chaos --api`: what is planted in applications' notes is found, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from roundelay.runs.chaos_api.judge import Case, Judgement, judge
from roundelay.runs.chaos_api.notes import REPLACED, TWIN, Life, Note

Line = dict[str, Any]
NAMES = ("a", "b", "c")
COUNT = 9
"""Messages in the notes below; each of the three sends every third."""


def author(number: int) -> str:
    return NAMES[number % 3]


def ident(number: int) -> str:
    return f"{author(number)}.0.{number}"


def life_of(lines: list[Line], role: str) -> Life:
    life = Life("?", 0, role)
    for at, line in enumerate(lines):
        life.take(at, msgspec.convert(line, Note))
    return life


class Notes:
    """The notes of three applications through which nothing happens."""

    def __init__(self, service: str = "resilient") -> None:
        self.total = service in ("resilient", "total", "hub", "journal")
        self.case = Case(service=service)
        self.time = 0
        self.lines: dict[str, list[Line]] = {name: [] for name in NAMES}
        self.roles = dict.fromkeys(NAMES, "member")
        for name in NAMES:
            self.note(name, "started", name=name, life=0, since=None)
            self.note(name, "joining", since=None)
            self.note(name, "joined")
            self.note(name, "view", members=NAMES, state="open", h="")
        for number in range(COUNT):
            self.message(number)
        for name in NAMES:
            self.note(name, "settling")
        for number in range(COUNT, COUNT + 3):
            self.message(number, last=True)
        for name in NAMES:
            self.note(name, "left")

    def note(self, who: str, event: str, /, **more: Any) -> None:
        self.time += 1_000_000
        self.lines[who].append({"t": self.time, "e": event, **more})

    def message(self, number: int, last: bool = False) -> None:
        one = ident(number)
        seq = number if self.total else None
        self.note(author(number), "sent", id=one, members=NAMES, **({"last": True} if last else {}))
        for name in NAMES:
            self.note(name, "given", seq=seq, **{"from": author(number)}, id=one)
        self.note(author(number), "confirmed", id=one, seq=seq, members=NAMES)

    def find(self, name: str, event: str, one: str) -> int:
        return next(
            at for at, line in enumerate(self.lines[name])
            if line["e"] == event and line.get("id") == one
        )  # fmt: skip

    def judge(self) -> Judgement:
        lives = [life_of(lines, self.roles[name]) for name, lines in self.lines.items()]
        return judge(self.case, lives)

    def kinds(self) -> set[str]:
        return set(self.judge().kinds)


ALL = ("resilient", "total", "hub", "journal", "partial", "selective", "reliable", "fifo")
ORDERED = ("resilient", "total", "hub", "journal", "partial", "selective", "fifo")
TOTAL = ("resilient", "total", "hub", "journal")


@pytest.mark.parametrize("service", ALL)
def test_nothing_is_found_where_nothing_is_wrong(service: str) -> None:
    out = Notes(service).judge()
    assert out.findings == []
    assert (out.given, out.sent, out.confirmed) == (36, 12, 12)
    assert 0 < out.slowest_s < 1


# -- lost ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("service", TOTAL)
def test_a_confirmed_message_that_nobody_was_given_is_lost(service: str) -> None:
    notes = Notes(service)
    for name in NAMES:
        del notes.lines[name][notes.find(name, "given", ident(4))]
    jumps = service != "journal"  # which has positions without messages
    assert notes.kinds() == ({"lost", "jump"} if jumps else {"lost"})


@pytest.mark.parametrize("service", [one for one in ALL if one != "fifo"])
def test_a_confirmed_message_that_one_member_was_not_given_is_lost(service: str) -> None:
    notes = Notes(service)
    del notes.lines["c"][notes.find("c", "given", ident(4))]
    assert "lost" in notes.kinds()


def test_the_end_of_a_log_is_missed_too() -> None:
    notes = Notes()
    for one in (8, 9, 10, 11):
        del notes.lines["c"][notes.find("c", "given", ident(one))]
    assert notes.kinds() == {"lost", "hang"}


def test_a_fifo_receipt_that_names_nobody_as_given_up_binds() -> None:
    notes = Notes("fifo")
    del notes.lines["c"][notes.find("c", "given", ident(4))]
    assert notes.kinds() == set()  # it does not say
    receipt = notes.lines["b"][notes.find("b", "confirmed", ident(4))]
    receipt["given_up"] = []
    assert notes.kinds() == {"lost"}
    receipt["given_up"] = ["c"]
    assert notes.kinds() == set()


def test_a_reliable_receipt_does_not_bind_those_who_were_away_meanwhile() -> None:
    notes = Notes("reliable")
    del notes.lines["c"][notes.find("c", "given", ident(4))]
    begun = notes.lines["b"][notes.find("b", "sent", ident(4))]["t"]
    notes.case = Case(service="reliable", away={"c": [(begun - 5, begun + 5)]})
    assert notes.kinds() == set()
    notes.case = Case(service="reliable", away={"c": [(begun - 5, begun - 4)]})
    assert notes.kinds() == {"lost"}


def test_who_was_not_in_the_group_all_the_while_is_owed_nothing_without_positions() -> None:
    notes = Notes("partial")
    at = notes.find("c", "given", ident(4))
    time = notes.lines["c"][at]["t"]
    notes.lines["c"][at] = {"t": time, "e": "error", "where": "read", "kind": "X", "why": "?"}
    notes.lines["c"].insert(at + 1, {"t": time + 1, "e": "joined"})
    assert notes.kinds() == set()


def lost_at_the_kill_of_a_node(confirmed_before_ns: int) -> Notes:
    """c's node is killed so long after b's message was confirmed that c is never given, and c
    notices it only 300 ms later."""
    notes = Notes("partial")
    at = notes.find("c", "given", ident(4))
    confirmed = notes.lines["b"][notes.find("b", "confirmed", ident(4))]["t"]
    killed = confirmed + confirmed_before_ns
    noticed = {"t": killed + 300_000_000, "e": "error", "where": "read", "kind": "X", "why": "?"}
    notes.lines["c"][at:] = [
        noticed,
        {"t": noticed["t"] + 1, "e": "joined"},
        {"t": noticed["t"] + 2, "e": "left"},
    ]
    notes.case = Case(service="partial", killed={"c": [killed]})
    return notes


def test_the_application_of_a_killed_node_is_owed_nothing_from_that_moment_on() -> None:
    notes = lost_at_the_kill_of_a_node(confirmed_before_ns=-1)
    assert "lost" not in notes.kinds()
    notes.case = Case(service="partial")  # nobody was killed: it was there until it got the error
    assert "lost" in notes.kinds()


def test_what_a_killed_node_had_just_got_went_with_it_unless_a_later_one_came_out() -> None:
    notes = lost_at_the_kill_of_a_node(confirmed_before_ns=20_000_000)
    assert "lost" not in notes.kinds()
    at = next(at for at, line in enumerate(notes.lines["c"]) if line["e"] == "error")
    later = {"t": notes.case.killed["c"][0] - 1, "e": "given", "seq": None, "from": "b"}
    notes.lines["c"].insert(at, later | {"id": ident(7)})
    assert "lost" in notes.kinds()


def test_what_was_confirmed_long_before_a_node_was_killed_had_to_be_given() -> None:
    assert "lost" in lost_at_the_kill_of_a_node(confirmed_before_ns=2_000_000_000).kinds()


def test_who_was_told_that_messages_may_be_missing_without_positions_is_owed_those_behind_it() -> (
    None
):
    notes = Notes("partial")
    gap(notes, 4)
    assert notes.kinds() == {"lost"}
    error(notes, 5, kind="LeftOut")
    assert notes.kinds() == set()
    gap(notes, 7)  # it reads on
    assert notes.kinds() == {"lost"}


def test_who_was_told_that_it_is_left_out_is_owed_what_is_sent_when_it_is_in_again() -> None:
    notes = Notes("partial")
    gap(notes, 4)
    before = notes.find("c", "given", ident(3)) + 1
    time = notes.lines["c"][before - 1]["t"]
    told = {"t": time, "e": "error", "where": "read", "kind": "LeftOut", "why": ""}
    waiting = {"t": time + 1, "e": "view", "members": NAMES, "state": "open: waiting for others"}
    notes.lines["c"][before:before] = [told, waiting]
    assert notes.kinds() == set()
    notes.lines["c"].insert(before + 2, waiting | {"t": time + 2, "state": "open"})
    assert notes.kinds() == {"lost"}


def test_who_was_not_in_the_view_all_the_while_is_owed_nothing_in_a_group_per_sender() -> None:
    notes = Notes("partial")
    del notes.lines["c"][notes.find("c", "given", ident(4))]
    at = notes.find("b", "sent", ident(4))
    time = notes.lines["b"][at]["t"]
    view = {"t": time + 1, "e": "view", "members": ("a", "b"), "state": "open", "h": ""}
    notes.lines["b"].insert(at + 1, view)
    assert notes.kinds() == set()


def test_a_message_to_some_is_owed_to_those_only() -> None:
    notes = Notes("selective")
    del notes.lines["c"][notes.find("c", "given", ident(4))]
    notes.lines["b"][notes.find("b", "sent", ident(4))]["to"] = ["a"]
    assert notes.kinds() == set()
    del notes.lines["a"][notes.find("a", "given", ident(4))]
    assert notes.kinds() == {"lost"}


# -- twice, order, invented ----------------------------------------------------------------------


@pytest.mark.parametrize("service", ALL)
def test_a_message_that_is_given_again_is_found(service: str) -> None:
    notes = Notes(service)
    at = notes.find("a", "given", ident(3))
    again = dict(notes.lines["a"][at])
    if again["seq"] is not None:
        again["seq"] = COUNT + 3  # even at a place of its own
    notes.lines["a"].insert(-1, again)
    assert "twice" in notes.kinds()


@pytest.mark.parametrize("service", ORDERED)
def test_two_messages_of_one_sender_that_change_places_are_found(service: str) -> None:
    notes = Notes(service)
    one, other = (notes.find("a", "given", ident(number)) for number in (1, 4))
    lines = notes.lines["a"]
    lines[one]["id"], lines[other]["id"] = lines[other]["id"], lines[one]["id"]
    assert "order" in notes.kinds()


@pytest.mark.parametrize("service", TOTAL)
def test_messages_of_two_senders_that_change_places_at_one_member_are_found(service: str) -> None:
    notes = Notes(service)
    one, other = (notes.lines["a"][notes.find("a", "given", ident(number))] for number in (4, 5))
    for key in ("id", "from"):
        one[key], other[key] = other[key], one[key]
    assert notes.kinds() == {"order"} | (
        {"receipt"} if notes.judge().kinds.get("receipt") else set()
    )


def test_in_a_group_without_order_they_may() -> None:
    notes = Notes("reliable")
    lines = notes.lines["a"]
    one, other = (notes.find("a", "given", ident(number)) for number in (1, 4))
    lines[one]["id"], lines[other]["id"] = lines[other]["id"], lines[one]["id"]
    assert notes.kinds() == set()


def test_a_position_used_twice_over_time_is_found_in_one_history_and_not_in_two() -> None:
    notes = Notes()
    for name in NAMES:
        for line in notes.lines[name]:
            if line["e"] in ("given", "confirmed"):
                line["h"] = "x"
    assert notes.kinds() == set()
    for line in notes.lines["a"]:
        if line["e"] == "given" and line["seq"] >= 8:
            line["seq"] -= 3  # rewound: 5 to 8 are used again
    assert {"order", "twice"} <= notes.kinds()
    for line in notes.lines["a"]:
        if line["e"] == "given" and line["id"] in (ident(8), ident(9), ident(10), ident(11)):
            line["h"] = "y"
    assert "history" in notes.kinds()


def test_a_history_that_continues_another_has_its_positions() -> None:
    def named(notes: Notes, late: str) -> set[str]:
        for name in NAMES:
            for line in notes.lines[name]:
                if line["e"] in ("given", "confirmed"):
                    line["h"] = late if line["seq"] >= 6 else "x"
        return notes.kinds()

    assert named(Notes(), "y@x:6") == set()
    assert named(Notes(), "z@y:9@x:6") == set()
    assert "history" in named(Notes(), "y@x:4")  # it had been given 4 and 5 of x
    assert named(Notes(), "y") == {"history"}
    notes = Notes()
    named(notes, "y@x:6")
    for line in notes.lines["c"]:
        if line["e"] in ("given", "confirmed") and line["seq"] >= 9:
            line["h"] = "z@y:9"  # which does not name x again
    for name in ("a", "b"):
        for line in notes.lines[name]:
            if line["e"] in ("given", "confirmed") and line["seq"] >= 9:
                line["h"] = "z@y:9"
    assert notes.kinds() == set()
    second_life(notes, since=6, first=6)
    assert notes.kinds() == set()
    notes = Notes()
    gap(notes, 0, 1, 2, 3, 4, 5)  # c has been given nothing of x, and that is gone with it
    assert named(notes, "y") == {"history", "lost"}


@pytest.mark.parametrize(
    "change", [{"id": "a.0.77"}, {"damaged": True}, {"from": "c"}], ids=["unknown", "bytes", "name"]
)
def test_what_nobody_sent_is_found(change: Line) -> None:
    notes = Notes()
    notes.lines["b"][notes.find("b", "given", ident(3))].update(change)
    assert "invented" in notes.kinds()


def test_a_receipt_for_another_position_is_found() -> None:
    notes = Notes()
    notes.lines["b"][notes.find("b", "confirmed", ident(4))]["seq"] = 5
    assert notes.kinds() == {"receipt"}


@pytest.mark.parametrize("service", ALL)
@pytest.mark.parametrize(
    "fate", [{"e": "refused", "why": "?"}, {"e": "failed", "kind": "GroupClosed", "why": "?"}]
)
def test_a_refused_message_that_was_given_is_found(service: str, fate: Line) -> None:
    notes = Notes(service)
    at = notes.find("b", "confirmed", ident(4))
    notes.lines["b"][at] = {"t": notes.lines["b"][at]["t"], "id": ident(4), **fate}
    assert notes.kinds() == {"refused"}


def test_an_indeterminate_message_may_be_given_or_not() -> None:
    notes = Notes("partial")
    for number, given in ((4, True), (5, False)):
        name = author(number)
        at = notes.find(name, "confirmed", ident(number))
        line = notes.lines[name][at]
        notes.lines[name][at] = {"t": line["t"], "e": "indeterminate", "id": line["id"], "why": "?"}
        if not given:
            for other in NAMES:
                del notes.lines[other][notes.find(other, "given", ident(number))]
    assert notes.kinds() == set()


# -- jumps ---------------------------------------------------------------------------------------


def gap(notes: Notes, *positions: int) -> None:
    """The messages at these positions are not given to c."""
    for number in positions:
        del notes.lines["c"][notes.find("c", "given", ident(number))]


def error(notes: Notes, before: int, **more: Any) -> None:
    """An error of c, before it is given the message at that position."""
    at = notes.find("c", "given", ident(before))
    line = {"t": notes.lines["c"][at]["t"], "e": "error", "where": "read", "why": "?", **more}
    notes.lines["c"].insert(at, line)


def test_a_jump_without_an_error_is_found_and_one_that_was_told_is_none() -> None:
    notes = Notes()
    gap(notes, 3, 4)
    assert notes.kinds() == {"jump", "lost"}
    error(notes, 5, kind="MissingMessages", first=3, last=3)  # not all of it
    assert notes.kinds() == {"jump", "lost"}
    error(notes, 5, kind="MissingMessages", first=4, last=4)
    out = notes.judge()
    assert out.findings == []
    assert out.missing_told == 2


def test_what_a_recorder_has_may_not_be_missing_even_if_it_is_told() -> None:
    notes = Notes()
    notes.case = Case(service="resilient", recorded=True)
    gap(notes, 3)
    error(notes, 4, kind="MissingMessages", first=3, last=3)
    assert notes.kinds() == {"told"}


def second_life(notes: Notes, since: int, first: int) -> None:
    """c starts again before position 6: it asks for `since` and is given what follows `first`."""
    lines = notes.lines["c"]
    at = notes.find("c", "given", ident(6))
    before, after = lines[:at], lines[at:]
    notes.roles["c2"] = "member"
    number = len(before)
    sent = [line for line in after if line["e"] != "given" or line["seq"] >= first]
    more = [
        {"t": 0, "e": "given", "seq": seq, "from": author(seq), "id": ident(seq)}
        for seq in range(first, 6)
    ]
    begin = [{"t": lines[at]["t"], "e": "started", "name": "c", "life": 1, "since": ["", since]}]
    notes.lines["c"] = before[:number]
    notes.lines["c2"] = begin + more + sent


def test_a_second_life_goes_on_exactly_where_the_first_had_stopped() -> None:
    notes = Notes()
    second_life(notes, since=6, first=6)
    assert notes.kinds() == set()
    notes = Notes()
    second_life(notes, since=6, first=5)
    assert notes.kinds() == {"twice"}
    notes = Notes()
    second_life(notes, since=6, first=7)
    assert notes.kinds() == {"jump", "lost"}


# -- the end, and names --------------------------------------------------------------------------


@pytest.mark.parametrize("service", ALL)
def test_who_cannot_send_in_the_end_hangs(service: str) -> None:
    notes = Notes(service)
    one = notes.find("b", "confirmed", ident(COUNT + 1))
    del notes.lines["b"][one]
    assert notes.kinds() == {"hang"}


@pytest.mark.parametrize("service", ALL)
def test_who_is_not_given_the_last_message_of_another_hangs(service: str) -> None:
    notes = Notes(service)
    del notes.lines["a"][notes.find("a", "given", ident(COUNT + 2))]
    assert "hang" in notes.kinds()


def test_a_last_message_that_takes_too_long_hangs() -> None:
    notes = Notes()
    notes.case = Case(service="resilient", settle_s=1e-4)
    assert notes.kinds() == {"hang"}


def test_a_group_that_ends_without_a_word_is_found() -> None:
    notes = Notes()
    notes.lines["a"].insert(-1, {"t": 1, "e": "over"})
    assert notes.kinds() == {"silence"}


def test_a_second_process_of_one_name_must_be_told_so_and_have_nothing_confirmed() -> None:
    begin = {"t": 1, "e": "started", "name": "a", "life": 1000, "since": None}
    told = {"t": 2, "e": "error", "where": "join", "kind": "NameTaken", "why": "?"}
    for lines, expected in (
        ([begin, told], set()),
        ([begin], {"twin"}),
        ([begin, {"t": 2, "e": "sent", "id": "a.1000.1", "members": []},
          {"t": 3, "e": "confirmed", "id": "a.1000.1", "seq": 12, "members": []}, told],
         {"twin", "lost"}),
    ):  # fmt: skip
        notes = Notes()
        notes.roles["twin"] = TWIN
        notes.lines["twin"] = lines
        assert notes.kinds() == expected


def test_what_a_replaced_life_had_confirmed_counts_too() -> None:
    notes = Notes()
    notes.roles["old"] = REPLACED
    notes.lines["old"] = [
        {"t": 1, "e": "started", "name": "a", "life": 7, "since": None},
        {"t": 2, "e": "sent", "id": "a.7.1", "members": []},
        {"t": 3, "e": "confirmed", "id": "a.7.1", "seq": 5, "members": []},
    ]
    assert notes.kinds() == {"lost"}


def test_one_that_was_replaced_must_be_told_so_when_it_wakes() -> None:
    for time, expected in ((9, {"twin"}), (11, set())):
        notes = Notes()
        notes.case = Case(service="resilient", woken={"a.7": 10})
        notes.roles["old"] = REPLACED
        notes.lines["old"] = [
            {"t": 1, "e": "started", "name": "a", "life": 7, "since": None},
            {"t": time, "e": "error", "where": "read", "kind": "NameTaken", "why": "?"},
        ]
        assert notes.kinds() == expected


def test_a_replacement_that_had_done_nothing_yet_may_be_told_instead() -> None:
    told = {"t": 11, "e": "error", "where": "join", "kind": "NameTaken", "why": "?"}
    for before, after, expected in (
        ([], [told], set()),
        ([], [], {"twin"}),
        ([], [told | {"kind": "ConnectionLost"}], {"twin"}),
        ([{"t": 9, "e": "given", "seq": 0, "from": "a", "id": "a.0.0"}], [told], {"twin"}),
    ):
        notes = Notes()
        notes.case = Case(service="resilient", woken={"a.7": 10})
        notes.roles |= {"old": REPLACED, "new": "member"}
        for name, life in (("old", 7), ("new", 8)):
            started = {"t": 1, "e": "started", "name": "a", "life": life, "since": None}
            notes.lines[name] = [started]
        notes.lines["new"] += [*before, *after]
        assert notes.kinds() == expected


def test_half_a_line_of_one_that_was_killed_is_no_line(tmp_path: Path) -> None:
    path = tmp_path / "a.0.jsonl"
    whole = json.dumps({"t": 5, "e": "started", "name": "a", "life": 3, "since": ["x", 4]})
    path.write_text(whole + "\n" + '{"t": 6, "e": "giv')
    life = Life("?", 0, path=path).look()
    read = len(whole) + 1
    assert life == Life("a", 3, path=path, read=read, lines=1, since=("x", 4), ended=5)
