"""What an application is handed is the next position of its history, or an error."""

from __future__ import annotations

import pytest

import roundelay
from roundelay.client.contiguity import SKIP, Contiguity
from roundelay.client.since import since_of
from roundelay.core.bundle import Bundle
from roundelay.core.errors import ConfigError
from roundelay.core.position import Since
from roundelay.node.node_api import UNIT, Batch, Missed, View

G = "token:g"


def batch(seq: int, count: int = 1, history: str = "h", group: str = G) -> Batch:
    return Batch(group, seq, "a", 0, Bundle.of(*(b"%d" % i for i in range(count))), history=history)


def view(history: str, position: int, state: str = "open") -> View:
    return View(G, "1", ("a",), state, history, position)


def test_a_jump_is_an_error_and_reading_goes_on_behind_it() -> None:
    place = Contiguity(G, roundelay.Position("h", 5))
    assert place.next_of(batch(5)) == (None, batch(5))
    error, new = place.next_of(batch(9))
    assert isinstance(error, roundelay.MissingMessages)
    assert (error.group, error.first, error.last) == (G, 6, 8)
    assert "6 to 8 (3 messages)" in str(error)
    assert new == batch(9)
    assert place.next_of(batch(10)) == (None, batch(10))


def test_what_the_application_has_is_left_out() -> None:
    place = Contiguity(G, roundelay.Position("h", 5))
    assert place.next_of(batch(0, 5)) == (None, None)
    error, new = place.next_of(batch(3, 4))
    assert error is None
    assert new is not None
    assert (new.seq, list(new.bundle)) == (5, [b"2", b"3"])


def test_who_asks_for_nothing_begins_where_the_group_is_when_it_works() -> None:
    place = Contiguity(G)
    place.viewed(view("lone", 0, "open: waiting for a second member"))
    place.viewed(view("h", 7))  # nothing was given of the other history
    place.viewed(view("h", 9))
    assert place.position == roundelay.Position("h", 7)
    error, _ = place.next_of(batch(9))
    assert isinstance(error, roundelay.MissingMessages)
    assert (error.first, error.last) == (7, 8)


def test_another_history_is_no_continuation_unless_it_says_so() -> None:
    place = Contiguity(G, roundelay.Position("h", 5))
    error, new = place.next_of(batch(5, history="k@h:5"))
    assert error is None
    assert new == batch(5, history="k@h:5")
    error, new = place.next_of(batch(6, history="other"))
    assert isinstance(error, roundelay.NoSuchPosition)
    assert (str(error.asked), str(error.present)) == ("k@h:5:6", "other:6")
    assert new == batch(6, history="other")


def test_a_gap_in_another_history_is_another_history_first() -> None:
    place = Contiguity(G, roundelay.Position("h", 5))
    error = place.missed(Missed(G, 2, 9, "other"))
    assert isinstance(error, roundelay.NoSuchPosition)
    assert (str(error.asked), str(error.present)) == ("h:5", "other:9")
    assert place.next_of(batch(9, history="other")) == (None, batch(9, history="other"))


def test_skipping_is_counted() -> None:
    place = Contiguity(G, roundelay.Position("h", 5), SKIP)
    assert place.missed(Missed(G, 5, 8, "h")) is None
    assert place.next_of(batch(9)) == (None, batch(9))
    assert place.skipped == 4


def test_a_position_that_there_is_not_ends_it() -> None:
    for history in ("", "h", "old"):
        place = Contiguity(G, roundelay.Position(history, 240), SKIP)
        error = place.missed(Missed(G, 240, 3, "h", history or "h", final=True))
        assert isinstance(error, roundelay.NoSuchPosition)
        assert "240" in str(error)
        assert "h:3" in str(error)
        assert ("future" in str(error)) is (history != "old")
        assert place.error is error


def test_units_leave_positions_out() -> None:
    place = Contiguity("grsb:g", roundelay.Position("h", 5))
    unit = Batch("grsb:g", 7, "a", 0, Bundle.of(b"x", b"y", b"z"), UNIT, "h")
    assert place.next_of(unit) == (None, unit)
    error = place.missed(Missed("grsb:g", 8, 10, "h"))
    assert isinstance(error, roundelay.MissingMessages)
    assert (error.first, error.last) == (8, 9)


def test_positions_as_text() -> None:
    position = roundelay.Position("6f1d@09ab:200", 240)
    assert roundelay.Position.parse(str(position)) == position
    assert since_of(str(position)) == since_of(position) == Since(240, 0, "6f1d@09ab:200")
    assert since_of(240) == Since(240)
    for wrong in ("6f1d:", "6f1d:-1", "6f1d:x", ":٣"):
        with pytest.raises(ConfigError, match="HISTORY:SEQ"):
            since_of(wrong)
    with pytest.raises(ConfigError, match="missing"):
        roundelay.join("g", missing="ignore")
