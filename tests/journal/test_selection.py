"""Reading by position, time, conference, sender and kind, against a list that does it naively."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roundelay.core.selection import Selection
from roundelay.journal.files import index_of, segments_of
from roundelay.journal.format import GAP, NO_LINK, Run, head_only, part_of
from roundelay.journal.index import Index
from roundelay.journal.journal import Journal, JournalConfig
from roundelay.journal.reader import Reader
from roundelay.journal.segment import Segment
from roundelay.journal.upkeep.rewrite import build
from tests.journal.make import GROUP, NOW, SENDERS, Message, gaps, messages, record, some_runs

SMALL = JournalConfig(sync="os", segment_bytes=1 << 12)


def chosen(all: list[Message], selection: Selection) -> list[Message]:
    """The dumb way."""
    return [
        one
        for one in all
        if selection.since <= one.position < selection.until
        and selection.since_time <= one.time < selection.until_time
        and (selection.conferences is None or one.conference in selection.conferences)
        and (selection.senders is None or one.sender in selection.senders)
        and (selection.kinds is None or one.kind in selection.kinds)
    ]


@st.composite
def selections(draw: st.DrawFn) -> Selection:
    since = draw(st.sampled_from([0, 0, 1, 57, 300, 900]))
    times = st.integers(NOW - 100, NOW + 200_000)
    return Selection(
        since=since,
        until=since + draw(st.sampled_from([1 << 61, 0, 1, 40, 700])),
        since_time=draw(st.one_of(st.just(0), times)),
        until_time=draw(st.one_of(st.just(1 << 62), times)),
        conferences=draw(st.none() | st.frozensets(st.integers(0, 5), max_size=3)),
        senders=draw(st.none() | st.frozensets(st.sampled_from([*SENDERS, "eve"]), max_size=3)),
        kinds=draw(st.none() | st.frozensets(st.integers(0, 3), max_size=2)),
    )


@pytest.fixture(scope="module")
def recorded() -> tuple[list[Message], list[Reader | Journal]]:
    """One stream of runs, recorded in several shapes: sealed, open, large and small commits."""
    runs = some_runs(3, 350)
    folder = Path(tempfile.mkdtemp())
    sealed = record(folder / "sealed", runs, config=SMALL)
    single = record(folder / "single", runs, together=1, config=SMALL)
    whole = record(folder / "whole", runs, together=400)
    journal = Journal(folder / "open", GROUP, JournalConfig(sync="os"))
    for number, run in enumerate(runs):
        journal.add(run)
        if number % 7 == 0:
            journal.commit()
    journal.commit()
    return messages(runs), [Reader(sealed), Reader(single), Reader(whole), journal]


@settings(max_examples=150, deadline=None)
@given(selection=selections())
def test_any_selection_reads_what_the_dumb_way_reads(
    recorded: tuple[list[Message], list[Reader | Journal]], selection: Selection
) -> None:
    all, journals = recorded
    for journal in journals:
        runs = list(journal.read(selection))
        assert messages(runs) == chosen(all, selection)
        assert not gaps(runs)


@settings(max_examples=60, deadline=None)
@given(
    selection=selections(),
    pieces=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4)), min_size=1, max_size=40),
    together=st.integers(1, 9),
    big=st.integers(-1, 39),
    data=st.data(),
)
def test_holes_are_said_whatever_is_selected(
    selection: Selection,
    pieces: list[tuple[int, int]],
    together: int,
    big: int,
    data: st.DataObject,
) -> None:
    """Nobody knows what was in them, so every reader whose range they are in gets to know."""
    runs: list[Run] = []
    at = 0
    for number, (hole, records) in enumerate(pieces):
        at += hole + (5000 if number == big else 0)
        made = some_runs(number, 1, at, most=1)[0] if records == 1 else some_runs(number, 1, at)[0]
        run = head_only(made) if data.draw(st.booleans()) else made
        runs.append(run)
        at = run.end
    all = messages(runs)
    with tempfile.TemporaryDirectory() as folder:
        record(Path(folder), runs, together=together, config=SMALL)
        found = list(Reader(Path(folder)).read(selection))
    assert messages(found) == chosen(all, selection)
    known = {one.position for one in all}
    begin = runs[0].position
    inside = range(max(begin, selection.since), min(at, selection.until))
    said = {one for lo, hi in gaps(found) for one in range(lo, hi)}
    assert said == {one for one in inside if one not in known}
    assert [run.position for run in found] == sorted(run.position for run in found)


def test_the_index_is_what_a_scan_finds(tmp_path: Path) -> None:
    runs = some_runs(9, 900)
    record(tmp_path, runs, config=SMALL)
    paths = segments_of(tmp_path)
    assert len(paths) > 3
    link = NO_LINK
    for path in paths:
        scanned = Segment(path, Reader(tmp_path).meta.journal)
        scanned.scan()
        with Index(index_of(path)) as index:
            assert index.matches(build(scanned, link).encode())
            link = index.head.link
            inside = [run for run in runs if scanned.base <= run.position < scanned.end]
            entries = [index.run(number) for number in range(index.head.runs)]
            assert [head.position for head, _ in entries] == [run.position for run in inside]
            by_hand: dict[int, int] = {}
            for run in inside:
                size = len(run.bundle.data)
                by_hand[run.conference] = by_hand.get(run.conference, 0) + size
            assert index.conferences == by_hand


def test_a_reader_sees_what_was_committed_since(tmp_path: Path) -> None:
    runs = some_runs(4, 300)
    journal = Journal(tmp_path, GROUP, SMALL)
    reader: Reader | None = None
    for number, run in enumerate(runs):
        journal.add(run)
        if number % 10 == 9:
            journal.commit()
            reader = reader or Reader(tmp_path)
            reader.refresh()
            assert messages(reader.read()) == messages(runs[: number + 1])
            assert reader.end == journal.end == runs[number].end
            assert messages(journal.reader().read()) == messages(runs[: number + 1])
    journal.close()


def test_what_is_known_already_is_not_recorded_twice(tmp_path: Path) -> None:
    runs = some_runs(4, 40)
    journal = Journal(tmp_path, GROUP, SMALL)
    for run in runs:
        journal.add(run)
        if run.records > 1:  # a part of it comes again, with what follows
            journal.add(part_of(run, run.position + 1, run.end))
        journal.add(runs[0])
    journal.commit()
    assert messages(journal.read()) == messages(runs)
    journal.close()
    again = Journal(tmp_path, GROUP, SMALL)
    for run in runs:
        again.add(run)
    again.commit()
    assert messages(again.read()) == messages(runs)
    assert not [run for run in again.read() if run.flags & GAP]
    again.close()
