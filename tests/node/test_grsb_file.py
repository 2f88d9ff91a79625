"""The file that says who plays which role: profiles, spreads, and what is wrong with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from roundelay.core.errors import ConfigError
from roundelay.core.grsb.base import Reign
from roundelay.core.grsb.pdu import Counter
from roundelay.core.grsb.stable import Accepted, Handled, Promised
from roundelay.node.driver.failpoints import Failpoint
from roundelay.node.roles.role_file import RoleFile, parse, read_file
from roundelay.node.storage.store import Began, Born, GrsbKept, Senders, Store


def read(folder: Path, text: str) -> RoleFile:
    file = folder / "g.toml"
    file.write_text(text)
    return read_file(file, parse)


FAILSAFE = """
profile = "failsafe"
members = ["r1", "r2", "d1", "d2", "p1", "p2", "p3", "ann"]
recorders = 3
"""
SPREAD = """
members = ["a", "b", "c"]
retransmitters = ["a", "c"]
acknowledgers = ["b"]
recorders = ["c", "a"]
"""


def test_a_profile_gives_the_roles_to_the_first_members(tmp_path: Path) -> None:
    file = read(tmp_path, FAILSAFE)
    assert [file.titles[site] for site in range(8)] == [
        ["retransmitter"], ["standby retransmitter"], ["acknowledger"], ["standby acknowledger"],
        ["recorder"], ["recorder"], ["recorder"], ["user"],
    ]  # fmt: skip
    assert file.roles.lines == 2
    assert file.council == ("r1", "r2", "d1", "d2", "p1", "p2", "p3")
    demo = read(tmp_path, 'profile = "demo"\nmembers = ["a", "b", "c"]')
    assert [demo.titles[site] for site in range(3)] == [
        ["retransmitter", "recorder"], ["acknowledger", "user"], ["user"],
    ]  # fmt: skip
    assert demo.roles.lines == 1


def test_a_spread_names_them_and_whoever_is_not_named_is_a_user(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"users = none .* one member or more"):
        read(tmp_path, SPREAD)
    file = read(tmp_path, SPREAD + 'users = ["a", "b"]\nlines = 2\nline_b = "239.1.2.3:4000"')
    assert file.titles[0] == ["retransmitter", "recorder", "user"]
    assert file.titles[2] == ["standby retransmitter", "recorder"]
    assert file.roles.recorders == (2, 0)
    more = read(tmp_path, SPREAD.replace('"c"]\nretr', '"c", "d"]\nretr'))
    assert more.names(more.roles.users) == ("d",)


def test_parameters_journal_and_filters_arrive_where_they_belong(tmp_path: Path) -> None:
    file = read(
        tmp_path,
        FAILSAFE
        + """
[parameters]
takeover_ms = 800
credit = 5
cold_start = true
[journal]
sync = "always"
keep_s = 3600.0
keep_conference_s = {7 = 86400, 8 = 0.5}
[filters.p2]
conferences = [7, 8]
senders = ["ann"]
""",
    )
    config = file.config(max_payload=9000)
    assert (config.takeover_ns, config.credit, config.cold_start) == (800_000_000, 5, True)
    assert config.max_payload == 9000
    assert (file.journal.sync, file.journal.keep_s) == ("always", 3600.0)
    assert file.journal.keep_conference_s == {7: 86400, 8: 0.5}
    kept = file.roles.selection(5)
    assert (kept.conferences, kept.senders) == (frozenset({7, 8}), frozenset({7}))
    plain = read(tmp_path, FAILSAFE)
    assert plain.digest != file.digest  # another recorder keeps less: the acknowledger must know
    assert plain.digest == read(tmp_path, FAILSAFE + "[parameters]\ncredit = 5").digest
    assert plain.digest != read(tmp_path, FAILSAFE.replace('"r1", "r2"', '"r2", "r1"')).digest


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("members = [", "a TOML file"),
        ("", r"members = missing .* names, as in \[\"a\", \"b\"\]"),
        ('members = ["a"]', r"members = 1 .* 2 to 1000 names"),
        ('members = ["a", "b", "a"]', "members = a is not allowed: each name once"),
        ('members = ["a", 7]', "members = .* names"),
        ('members = ["a", "b"]', "retransmitters = missing .* or profile = \"?'?demo"),
        ('profile = "best"\nmembers = ["a", "b"]', "profile = 'best' .* demo or separate"),
        ('profile = "separate"\nmembers = ["a", "b"]', "members = 2 .* 4 or more for the profile"),
        ('profile = "demo"\nmembers = ["a", "b"]\nrecorders = ["a"]', "recorders = .* how many"),
        ('profile = "demo"\nmembers = ["a", "b"]\nrecorders = 0', "recorders = 0 .* from 1 to 1"),
        ('profile = "demo"\nmembers = ["a", "b"]\nusers = ["b"]', "users = .* left to the profile"),
        ('profile = "demo"\nmembers = ["a", "b"]\ncolour = "red"', "colour = 'red' .* one of"),
        ('profile = "demo"\nmembers = ["a", "b"]\nlines = "two"', "lines = 'two' .* 1 or 2"),
        ('profile = "demo"\nmembers = ["a", "b"]\nline_b = "x:1"', "line_b = x:1 .* lines = 2"),
        (SPREAD + 'users = ["x"]', "users = x is not allowed: members: a, b, c"),
        (SPREAD.replace('["b"]', '["a"]') + 'users = ["b"]', "acknowledgers = a .* other sites"),
        (FAILSAFE + "[parameters]\nspeed = 3", r"parameters.speed = 3 .* one of submit_ms"),
        (FAILSAFE + "[parameters]\ntakeover_ms = -1", "parameters.takeover_ms = -1"),
        (FAILSAFE + "[parameters]\nalive_ms = 5000", "alive_ns = 5000000000 .* less than"),
        (FAILSAFE + '[parameters]\ndelivery = "soon"', "delivery = 'soon' .* stable or fast"),
        (FAILSAFE + '[journal]\nsync = "os"', "journal.sync = 'os' .* always or interval"),
        (FAILSAFE + "[journal]\nsegment_bytes = 1", "journal.segment_bytes = 1"),
        (FAILSAFE + "[filters.ann]\nconferences = [7]", "filters = ann .* recorders only"),
        (FAILSAFE + "[journal]\nkeep_conference_s = {x = 1}", "keep_conference_s = .* {7 = 86400}"),
        (FAILSAFE + "[journal]\nkeep_conference_s = 7", "journal.keep_conference_s = 7 .* seconds"),
        (FAILSAFE + "[journal]\nkeep_conference_s = {7 = -1}", "keep_conference_s = 7: -1"),
        (FAILSAFE + "[filters.p1]\nconferences = [-7]", "filters.p1.conferences = -7"),
        (FAILSAFE + 'line_b = "nowhere"', "line_b = nowhere .* HOST:PORT"),
    ],
)
def test_what_is_wrong_with_a_file_is_said_in_one_line(
    text: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        read(tmp_path, text)
    assert str(tmp_path / "g.toml") in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nothing\.toml .* can be read \(No such file"):
        read_file(tmp_path / "nothing.toml", parse)


def test_what_a_member_keeps_is_there_after_a_restart(tmp_path: Path) -> None:
    born = Born("h", ("a", "b"), (b"1" * 16, b"2" * 16))
    senders = Senders(70, 5, (Counter(3, 9, 4, 60, False),))
    records = [
        born, Began(12), Promised(3), Accepted(Reign(4, 0, 1)), Handled(55, 50, 4), senders,
    ]  # fmt: skip
    store = Store(tmp_path / "g" / "grsb.log", GrsbKept, print)
    assert store.stable is None
    store.write(records, False)
    store.close()
    for _ in range(2):  # as it was written, and as it is written anew
        store = Store(tmp_path / "g" / "grsb.log", GrsbKept, print)
        kept = store.stable
        assert isinstance(kept, GrsbKept)
        assert (kept.born, kept.inc, kept.senders) == (born, 12, senders)
        assert (kept.promised, kept.accepted) == (4, Reign(4, 0, 1))
        assert kept.handled == Handled(55, 50, 4)
        store.replace(kept.records())
        store.close()


@pytest.mark.parametrize("text", ["BCAST", "BCAST:0:kill", "BCAST:1:sleep", "NOTHING:1:kill"])
def test_a_failpoint_that_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="KIND:NTH:kill"):
        Failpoint(text)
