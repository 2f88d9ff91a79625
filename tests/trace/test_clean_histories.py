"""Whatever a correct group does, no checker complains; whatever is then falsified, one does."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st

from roundelay.core import events as ev
from roundelay.core.bundle import Bundle
from roundelay.core.engine import Delivery
from tests.trace.play import MS, GoodGroup, Play

SITES = 5
site = st.integers(0, SITES - 1)
step = st.one_of(
    st.tuples(st.just("submit"), site, st.integers(1, 3)),
    st.tuples(st.just("stamp"), site, st.integers(1, 3)),
    st.tuples(st.just("deliver"), site, st.integers(1, 4)),
    st.tuples(st.just("deliver"), site, st.integers(1, 4)),
    st.tuples(
        st.just("crash"), site, st.sampled_from([ev.MEMORY, ev.DISK, ev.NOTHING_LEFT]),
        st.booleans(),
    ),
    st.tuples(st.just("restart"), site, st.integers(0, 5), st.booleans()),
    st.tuples(st.just("skip"), site, st.integers(1, 3), st.booleans()),
    st.tuples(st.just("reform"), site),
    st.tuples(st.just("adopt"), site),
    st.tuples(st.just("wait")),
)  # fmt: skip


def played(steps: list[tuple[object, ...]], horizon: int = 1 << 12) -> Play:
    play = Play(SITES, liveness_ns=50 * MS, horizon=horizon)
    group = GoodGroup(play)
    for name, *args in steps:
        if name == "wait":
            play.wait()
        else:
            getattr(group, str(name))(*args)
    group.settle()
    return play


@settings(max_examples=300, deadline=None)
@given(st.lists(step, max_size=60))
def test_a_correct_group_is_never_blamed(steps: list[tuple[object, ...]]) -> None:
    play = played(steps)
    assert not play.finish(), play.checker.violations


@settings(max_examples=100, deadline=None)
@given(st.lists(step, max_size=60))
def test_a_correct_group_is_never_blamed_by_a_short_memory_either(
    steps: list[tuple[object, ...]],
) -> None:
    play = played(steps, horizon=4)
    assert not play.finish(), play.checker.violations


@settings(max_examples=60, deadline=None)
@given(st.lists(step, max_size=60))
def test_a_trace_file_tells_the_same_story(steps: list[tuple[object, ...]]) -> None:
    play = played(steps)
    play.finish()
    with TemporaryDirectory() as folder:
        again = play.record(Path(folder) / "trace.parquet")
    assert again.violations == play.checker.violations
    assert (again.committed, again.everywhere) == (play.checker.committed, play.checker.everywhere)


def judged(rows: list[ev.Row]) -> Play:
    """Play rows again, some of which a test has falsified."""
    play = Play(SITES, liveness_ns=50 * MS)
    for time, where, event, ref, _, obj in rows:
        play.time = time
        if event == ev.SUBMIT:
            assert isinstance(obj, Bundle)
            play.checker.submitted(time, where, ref, obj)
        elif event == ev.DELIVER:
            assert isinstance(obj, Delivery)
            play.deliver(where, obj.seq, obj.bundle, obj.source, obj.number)
        elif event == ev.MARK and obj == ev.HEAL:
            play.heal()
    play.finish()
    return play


def some_history() -> list[ev.Row]:
    """Twenty messages of five sites, everything delivered everywhere."""
    play = Play(SITES, liveness_ns=50 * MS)
    group = GoodGroup(play)
    for i in range(20):
        group.submit(i * 3 % SITES)
        play.wait()
    for i in range(20):
        group.stamp(i * 7 % SITES, 1)
    group.settle()
    assert not play.finish()
    return play.rows


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_any_falsified_delivery_is_noticed(data: st.DataObject) -> None:
    rows = some_history()
    deliveries = [i for i, row in enumerate(rows) if row[2] == ev.DELIVER]
    i = data.draw(st.sampled_from(deliveries))
    time, where, event, ref, peer, obj = rows[i]
    assert isinstance(obj, Delivery)
    what = data.draw(st.sampled_from(["drop", "repeat", "alter", "exchange", "renumber", "blame"]))
    if what == "drop":
        del rows[i]
    elif what == "repeat":
        rows.insert(i + 1, rows[i])
    elif what == "alter":
        bundle = Bundle(obj.bundle.sizes, obj.bundle.data[:-1] + b"\xff")
        changed = Delivery(obj.seq, obj.source, obj.number, bundle, obj.stage)
        rows[i] = (time, where, event, ref, peer, changed)
    elif what == "exchange":
        other = data.draw(
            st.sampled_from([k for k in deliveries if rows[k][1] == where and k != i])
        )
        theirs = rows[other][5]
        assert isinstance(theirs, Delivery)
        mine = Delivery(obj.seq, theirs.source, theirs.number, theirs.bundle, obj.stage)
        rows[i] = (time, where, event, ref, peer, mine)
        back = Delivery(theirs.seq, obj.source, obj.number, obj.bundle, obj.stage)
        rows[other] = (*rows[other][:5], back)
    elif what == "renumber":
        seq = obj.seq + data.draw(st.integers(1, 3))
        changed = Delivery(seq, obj.source, obj.number, obj.bundle, obj.stage)
        rows[i] = (time, where, event, ref, peer, changed)
    else:
        # Who sent a message is part of it, as far as the first one to deliver it is concerned.
        first = next(k for k in deliveries if rows[k][3] == obj.seq)
        wrong = Delivery(obj.seq, (obj.source + 1) % SITES, 99, obj.bundle, obj.stage)
        rows[first] = (*rows[first][:5], wrong)
    assert judged(rows).counts()
