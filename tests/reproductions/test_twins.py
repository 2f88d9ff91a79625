"""Two processes of one name, or on one folder (issue 11, lines 4 and 23)."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from random import Random

from roundelay.core.bundle import Bundle
from roundelay.core.token.config import TokenConfig
from roundelay.core.token.pdu import DATA, Ack, B, Entry, Invite, NewTl, RecoverData
from roundelay.core.token.site import TokenSite
from tests.reproductions.processes import Machine, disagreements, together, until, wait


def test_two_processes_of_one_name_never_give_one_position_to_two_messages() -> None:
    """They formed two groups: both confirmed position 0, with other messages."""
    with Machine() as machine:
        # Patient enough for the third to start on a busy machine.
        twins = {text: machine.start("same", timeout=15.0) for text in ("one", "two")}
        until(lambda: all(twin.decided for twin in twins.values()), "each is in, or refused")
        inside = {text: twin for text, twin in twins.items() if twin.is_in}
        for text, twin in inside.items():
            twin.say(text)
        wait(lambda: all(twin.done(text) for text, twin in inside.items()), 2.0)
        third = machine.start("other")  # without it one alone confirms nothing
        until(lambda: all(twin.done(text) for text, twin in inside.items()), "broadcasts end")
        assert disagreements(*twins.values(), third) == {}
        (text,) = inside
        assert inside[text].confirmed == [text]
        (refused,) = [twin for twin in twins.values() if not twin.is_in]
        assert "same" in refused.refusal


def test_a_second_process_of_a_name_does_not_get_into_the_group_that_has_it() -> None:
    """It joined, confirmed what nobody else was given, and the log alone said something."""
    with Machine() as machine:
        a, b = machine.form("a", "b")
        a.say("first")
        until(lambda: b.given == ["first"], "the first message")
        twin = machine.start("a")
        until(lambda: twin.decided, "it is in, or refused")
        if twin.is_in:
            twin.say("of the twin")
            until(lambda: twin.done("of the twin"), "the twin's broadcast ends")
        b.say("second")
        until(lambda: b.done("second"), "a broadcast ends")
        assert disagreements(a, b, twin) == {}
        assert not twin.is_in
        assert "a" in twin.refusal
        assert b.confirmed == ["second"]
        until(lambda: a.given == b.given == ["first", "second"], "both have both")


def test_two_processes_on_one_folder_do_not_write_two_histories_into_it(tmp_path: Path) -> None:
    """Each confirmed its own messages at the positions that the other one used, too."""
    with Machine() as machine, Machine() as elsewhere:
        options = {"members": ["a"], "resilience": 0, "dir": str(tmp_path)}
        first = machine.start("a", **options)
        first.say("one")
        until(lambda: first.confirmed == ["one"], "the first broadcast")
        second = elsewhere.start("a", **options)  # on another medium: nobody hears the name
        until(lambda: second.decided, "it is in, or refused")
        if second.is_in:
            second.say("two")
            until(lambda: second.done("two"), "its broadcast ends")
        first.say("three")
        until(lambda: first.done("three"), "another broadcast ends")
        assert disagreements(first, second) == {}
        assert str(tmp_path) in second.refusal
        assert first.confirmed == ["one", "three"]


def test_a_process_that_wakes_after_it_was_replaced_confirms_nothing_that_nobody_is_given() -> None:
    """SIGSTOP, a replacement, SIGCONT: one took the receipts of the other, so that messages were
    confirmed that nobody was given, or at positions that have others."""
    with Machine() as machine:
        a, b, old = machine.form("a", "b", "c")
        words = [f"old {number}" for number in range(40)]
        old.say(*words[:20])
        old.signal(signal.SIGSTOP)
        old.say(*words[20:])
        new = machine.start("c")
        together(a, b, new)
        new.say("in")
        until(lambda: new.confirmed == ["in"], "the replacement is in")
        for number in range(100):
            a.say(f"a {number}")
            new.say(f"new {number}")
            if number == 20:
                old.signal(signal.SIGCONT)
            time.sleep(0.01)
        until(lambda: old.done(*words), "the replaced one knows what became of its broadcasts")
        until(lambda: a.done("a 99") and new.done("new 99"), "the others' broadcasts end")
        b.say("the end")
        until(lambda: "the end" in a.given and "the end" in b.given, "the end")
        confirmed = {text for one in (a, b, old, new) for text in one.confirmed}
        nowhere = confirmed - set(a.given) - set(b.given)
        assert not nowhere, f"{len(nowhere)} confirmed messages were given to nobody"
        assert confirmed <= set(a.given) & set(b.given)
        assert disagreements(a, b, old, new) == {}


def test_a_message_of_another_life_is_no_receipt_for_the_own_one_of_its_number() -> None:
    """The site forgot its own message: its driver had a receipt, and nobody ever got it."""
    site = TokenSite(1, (0, 1, 2), TokenConfig(resilience=0), Random(1))
    boots = (7, site.boot, 7)
    site.receive(Invite((1, 0), 7), 0, 1)
    site.receive(NewTl((1, 0), (0, 1, 2), 0, 0, (0, 0), boots), 0, 2)
    site.submit(Bundle.of(b"ours"), 3)
    sent = [pdu for _, pdu, *_ in site.take().sends if isinstance(pdu, B)]
    assert [(pdu.n, pdu.bundle.data) for pdu in sent] == [(0, b"ours")]
    # Another life of site 1 was in list (3, 0), and its message has the same number there.
    site.receive(Invite((4, 0), 7), 0, 4)
    site.receive(NewTl((4, 0), (0, 1, 2), 1, 0, (3, 0), boots), 0, 5)
    theirs = Entry(Ack((3, 0), 0, DATA, 1, 0, 0, 1), Bundle.of(b"theirs"), 0)
    site.receive(RecoverData((4, 0), (theirs,), 1, 0, (), 0), 0, 6)
    out = site.take()
    assert [one.bundle.data for one in out.deliveries] == [b"theirs"]
    sent = [pdu for _, pdu, *_ in out.sends if isinstance(pdu, B)]
    assert [pdu.bundle.data for pdu in sent] == [b"ours"], "it is not sent any more"
