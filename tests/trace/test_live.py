"""Traces of live processes: what is written survives a kill; merged, it is a trace like others."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from roundelay.core import events as ev
from roundelay.core.bundle import Bundle
from roundelay.core.engine import Delivery
from roundelay.core.errors import ConfigError, UsageError
from roundelay.core.notices import notice
from roundelay.core.token.config import TokenConfig
from roundelay.core.token.site import TokenSite
from roundelay.core.token.stable import Stable
from roundelay.sim.kernel.world import World
from roundelay.sim.network.links import Lossy
from roundelay.trace import Recorder, TraceRow, check_trace, read
from roundelay.trace.live import DELIVERIES, LiveFile, LiveTrace, live_files
from roundelay.trace.merge import merge

A = Bundle.of(b"a", b"bc")
B = Bundle.of(b"d")


class Clock:
    """Time as the test says."""

    def __init__(self, now: int = 1_000) -> None:
        self.now = now

    def __call__(self) -> int:
        self.now += 1
        return self.now


def live(folder: Path, site: int, **options: Any) -> LiveTrace:
    settings = {"group": "token:g", "name": f"n{site}", "params": {"order": "total"}} | options
    return LiveTrace(folder, site=site, **settings)


def submit(trace: LiveTrace, site: int, index: int, bundle: Bundle) -> None:
    trace.append((0, site, ev.SUBMIT, index, ev.NOBODY, bundle))


def deliver(trace: LiveTrace, site: int, seq: int, source: int, number: int, b: Bundle) -> None:
    delivery = Delivery(seq, source, number, b, "committed")
    trace.append((0, site, ev.DELIVER, seq, source, delivery))


def kinds(path: Path) -> list[tuple[int, str]]:
    return [(row.site, row.event) for row in read(path)]


# -- one process ---------------------------------------------------------------------------------


def test_rows_come_back_with_the_time_of_their_flush(tmp_path: Path) -> None:
    clock = Clock()
    with live(tmp_path, 0, clock=clock) as trace:
        submit(trace, 0, 0, A)
        deliver(trace, 0, 0, 0, 0, A)
        clock.now = 5_000
        trace.flush()
        assert trace.rows == []
        trace.append((0, 0, ev.NOTICE, -1, -1, notice("suspect", 2)))
        trace.append((0, 0, ev.RECEIVE, 77, 2, None))
    merged = merge(tmp_path, tmp_path / "t.parquet")
    assert (merged.rows, merged.files, merged.sites, merged.torn) == (4, 1, (0,), ())
    first, second, third, fourth = read(merged.path)
    assert first.time == second.time == 5_001 - 1_001
    assert third.time == fourth.time == 5_002 - 1_001
    assert (first.event, first.count, first.size, len(first.messages)) == ("SUBMIT", 2, 3, 2)
    assert (second.seq, second.source, second.kind) == (0, 0, "committed")
    assert second.messages == first.messages
    assert second.digest == first.digest
    assert (third.event, third.kind, third.source) == ("NOTICE", "suspect", 2)
    assert (fourth.event, fourth.ref, fourth.peer) == ("RECEIVE", 77, 2)


def test_a_trace_of_deliveries_leaves_transmissions_out(tmp_path: Path) -> None:
    with live(tmp_path, 0, level=DELIVERIES) as trace:
        assert not trace.transmissions
        submit(trace, 0, 0, A)
        trace.append((0, 0, ev.SEND, 1, -1, None))
        trace.append((0, 0, ev.RECEIVE, 1, 2, None))
        trace.append((0, 0, ev.ROLE, -1, -1, ev.TOKEN))
    merge(tmp_path, tmp_path / "t.parquet")
    assert kinds(tmp_path / "t.parquet") == [(0, "SUBMIT")]


def test_the_times_of_a_file_rise_whatever_the_clock_does(tmp_path: Path) -> None:
    times = iter([100, 50, 40, 300])
    with live(tmp_path, 0, clock=lambda: next(times)) as trace:
        for index in range(3):
            submit(trace, 0, index, B)
            trace.flush()
    assert [time for time, _ in LiveFile(trace.path).batches()] == [50, 51, 300]


KILLED = """
import sys
from pathlib import Path
from roundelay.core import events as ev
from roundelay.core.bundle import Bundle
from roundelay.trace.live import LiveTrace
assert "pyarrow" not in sys.modules
trace = LiveTrace(Path(sys.argv[1]), group="g", name="n", site=0)
for i in range(100):
    trace.append((0, 0, ev.SUBMIT, i, -1, Bundle.of(b"%d" % i)))
    trace.flush()
trace.append((0, 0, ev.SUBMIT, 100, -1, Bundle.of(b"not flushed")))
assert not any(name.startswith("pyarrow") for name in sys.modules)
print("written", flush=True)
sys.stdin.read()
"""


def test_what_was_flushed_survives_a_kill(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == b"written\n"
    process.send_signal(signal.SIGKILL)
    process.communicate()
    merged = merge(tmp_path, tmp_path / "t.parquet")
    assert merged.rows == 100
    assert [row.ref for row in read(merged.path)] == list(range(100))


def test_a_frame_cut_off_anywhere_costs_that_frame_only(tmp_path: Path) -> None:
    with live(tmp_path, 0) as trace:
        for index in range(3):
            before = trace.path.stat().st_size
            submit(trace, 0, index, B)
            trace.flush()
    whole = trace.path.read_bytes()
    frames = len(list(LiveFile(trace.path).batches()))
    size = len(whole) - before
    for cut in range(1, size):
        trace.path.write_bytes(whole[:-cut])
        file = LiveFile(trace.path)
        assert len(list(file.batches())) == frames - 1
        assert not file.whole
    flipped = bytearray(whole)
    flipped[-1] ^= 1
    trace.path.write_bytes(flipped)
    assert merge(tmp_path, tmp_path / "t.parquet").torn == (trace.path.name,)


def test_a_disk_that_is_full_ends_the_trace_and_nothing_else(tmp_path: Path) -> None:
    trace = live(tmp_path, 0)
    submit(trace, 0, 0, A)
    trace.flush()
    os.close(trace._file)
    trace._file = os.open("/dev/full", os.O_WRONLY)
    for index in (2, 3):
        submit(trace, 0, index, B)
        trace.flush()
        assert trace.rows == []
    assert "No space left" in trace.error
    trace.close()
    assert merge(tmp_path, tmp_path / "t.parquet").rows == 1


def test_a_folder_that_cannot_be_written_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="trace"):
        live(tmp_path / "file", 0)
    with pytest.raises(ConfigError, match="level"):
        live(tmp_path, 0, level="some")


# -- several lives -------------------------------------------------------------------------------


def test_a_second_life_begins_with_a_restart_and_the_first_ends_with_a_crash(
    tmp_path: Path,
) -> None:
    clock = Clock()
    first = live(tmp_path, 0, clock=clock)
    submit(first, 0, 0, A)
    deliver(first, 0, 0, 0, 0, A)
    first.flush()
    with live(tmp_path, 1, clock=clock) as other:
        deliver(other, 1, 0, 0, 0, A)
        other.flush()
        with live(tmp_path, 0, clock=clock) as again:
            assert again.boot == 1
            assert again.position == 2
            submit(again, 0, 0, B)
            deliver(again, 0, 2, 0, 1, B)
            again.flush()
            deliver(other, 1, 2, 0, 1, B)
    path = merge(tmp_path, tmp_path / "t.parquet").path
    assert kinds(path) == [
        (0, "SUBMIT"), (0, "DELIVER"), (0, "CRASH"), (1, "DELIVER"), (0, "RESTART"),
        (0, "SUBMIT"), (0, "DELIVER"), (1, "DELIVER"),
    ]  # fmt: skip
    checker = check_trace(path)
    assert checker.violations == []
    assert checker.committed == 3
    assert live(tmp_path, 0, keeps=ev.NOTHING_LEFT).position == 0


def test_a_checker_sees_what_is_wrong_with_a_merged_trace(tmp_path: Path) -> None:
    with live(tmp_path, 0) as a, live(tmp_path, 1) as b:
        submit(a, 0, 0, A)
        submit(b, 1, 0, B)
        a.flush()
        b.flush()
        deliver(a, 0, 0, 0, 0, A)
        deliver(b, 1, 0, 1, 0, B)
    checker = check_trace(merge(tmp_path, tmp_path / "t.parquet").path)
    assert checker.counts["I1"] == 1


def test_positions_of_earlier_lives_count_gaps_and_not_what_is_provisional(tmp_path: Path) -> None:
    with live(tmp_path, 0) as trace:
        deliver(trace, 0, 0, 1, 0, A)
        trace.append((0, 0, ev.NOTICE, -1, -1, notice("gap_unavailable", 2, 9)))
        trace.append((0, 0, ev.DELIVER, 50, 1, Delivery(50, 1, 7, B, "stamped")))
    live(tmp_path, 0).close()  # a life in which nothing happened
    assert live(tmp_path, 0).position == 9
    with live(tmp_path, 1) as trace:
        trace.append((0, 1, ev.DELIVER, -1, 1, Delivery(-1, 1, 7, B, "accepted")))
    assert live(tmp_path, 1).position == 0


def test_a_process_that_finds_no_disk_says_so_and_may_begin_anew(tmp_path: Path) -> None:
    with live(tmp_path, 0) as trace:
        submit(trace, 0, 0, A)
        deliver(trace, 0, 0, 0, 0, A)
        trace.forgot()  # of a first life there was nothing to forget
    with live(tmp_path, 0) as trace:
        assert trace.position == 2
        trace.forgot()
        assert trace.position == 0
        deliver(trace, 0, 0, 0, 0, A)
    path = merge(tmp_path, tmp_path / "t.parquet").path
    assert [event for _, event in kinds(path)] == [
        "SUBMIT", "DELIVER", "CRASH", "RESTART", "RESTART", "DELIVER",
    ]  # fmt: skip
    assert check_trace(path).violations == []


def test_names_and_groups_do_not_get_mixed_up(tmp_path: Path) -> None:
    for group, name in (("x-y", "z"), ("x", "y-z"), ("x/y", "../z"), ("Ω", "a b")):
        with live(tmp_path, 0, group=group, name=name) as trace:
            assert trace.boot == 0
            assert trace.path.parent == tmp_path
            submit(trace, 0, 0, A)
    assert len(live_files(tmp_path)) == 4
    assert merge(tmp_path, tmp_path / "t.parquet", group="x").files == 1
    for wrong in (None, "y"):
        with pytest.raises(ConfigError, match="group"):
            merge(tmp_path, tmp_path / "t.parquet", group=wrong)


def test_one_who_looks_on_may_speak_of_anybody(tmp_path: Path) -> None:
    clock = Clock()
    looker = live(tmp_path, ev.NOBODY, name="harness", clock=clock)
    with live(tmp_path, 0, clock=clock), live(tmp_path, 1, clock=clock):
        looker.append((0, 1, ev.PAUSE, -1, -1, None))
        looker.append((0, -1, ev.FAULT, -1, -1, "partition"))
        looker.append((0, -1, ev.MARK, -1, -1, ev.END))
        looker.close()
    merged = merge(tmp_path, tmp_path / "t.parquet", params={"seed": 7})
    assert merged.sites == (0, 1)
    assert kinds(merged.path) == [(1, "PAUSE"), (-1, "FAULT"), (-1, "MARK")]
    assert check_trace(merged.path).violations == []


def test_damaged_and_foreign_files_are_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "trace-g-n-0.rows").write_bytes(b"RNDLTR01")  # killed at once: no loss
    assert live_files(tmp_path) == []
    (tmp_path / "trace-g-n-0.rows").write_bytes(b"something else" * 10_000)
    with pytest.raises(UsageError, match="not one of a live process"):
        live_files(tmp_path)
    with pytest.raises(UsageError, match="No such file"):
        LiveFile(tmp_path / "missing.rows")


# -- several machines ----------------------------------------------------------------------------


def test_clocks_of_other_machines_are_put_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second machine was started another day, and its wall clock is 400 ns behind."""
    from roundelay.trace import live as module

    def at(machine: str, monotonic: int, wall: int) -> Callable[[], int]:
        monkeypatch.setattr(module, "machine", lambda: machine)
        monkeypatch.setattr(module, "time_ns", lambda: wall)
        return Clock(monotonic - 1)

    clock = at("one", 1_000, 50_000)
    with live(tmp_path, 0, clock=clock) as a:
        clock.now = 1_100  # type: ignore[attr-defined]
        submit(a, 0, 0, A)
        deliver(a, 0, 0, 0, 0, A)
        a.flush()
        clock.now = 1_300  # type: ignore[attr-defined]
        deliver(a, 0, 2, 1, 0, B)
    clock = at("two", 900_000, 49_600)
    with live(tmp_path, 1, clock=clock) as b:
        clock.now = 900_150  # type: ignore[attr-defined]
        deliver(b, 1, 0, 0, 0, A)
        b.flush()
        clock.now = 900_180  # type: ignore[attr-defined]
        submit(b, 1, 0, B)
        deliver(b, 1, 2, 1, 0, B)
    merged = merge(tmp_path, tmp_path / "t.parquet")
    assert merged.machines == 2
    checker = check_trace(merged.path)
    assert checker.violations == []
    assert checker.everywhere == 3
    assert [row.site for row in read(merged.path)] == [0, 0, 1, 1, 1, 0]


# -- against the simulator -----------------------------------------------------------------------


class Split:
    """A sink that gives every site's rows to a live trace of its own, as processes would."""

    def __init__(self, folder: Path, sites: int) -> None:
        self.rows: list[ev.Row] = []
        self.now = 0
        self.traces = {
            site: live(folder, site, clock=lambda: self.now, name=f"n{site}", params={})
            for site in (*range(sites), ev.NOBODY)
        }

    def flush(self) -> None:
        for row in self.rows:
            trace = self.traces[row[1]]
            if trace.rows and trace.rows[0][0] != row[0]:
                self.write(trace)
            trace.append(row)
        self.rows.clear()

    def write(self, trace: LiveTrace) -> None:
        self.now = trace.rows[0][0] if trace.rows else 0
        trace.flush()

    def close(self) -> None:
        self.flush()
        for trace in self.traces.values():
            self.write(trace)
            trace.close()


def run_world(sink: Any, seed: int) -> None:
    def site(me: int, stable: Any, boot: str, now: int, rng: Random) -> TokenSite:
        return TokenSite(me, (0, 1, 2, 3), TokenConfig(resilience=1), rng, stable=stable)

    world = World(
        4, site, seed=seed, links=Lossy(0.1), make_stable=Stable, recorder=sink
    )  # fmt: skip
    rng = Random(seed)
    for i in range(60):
        world.at(rng.randrange(400_000_000), lambda i=i: world.submit(i % 4, Bundle.of(b"%d" % i)))  # type: ignore[misc]
    world.run(3_000_000_000)
    world.finish()


def comparable(path: Path) -> list[TraceRow]:
    rows = list(read(path))
    return sorted(rows, key=lambda r: (r.time, r.site, r.event, r.ref, r.peer, r.kind, r.seq))


def test_a_merged_trace_says_what_the_recorder_says(tmp_path: Path) -> None:
    with Recorder(tmp_path / "recorded.parquet", params={"sites": 4}) as recorder:
        run_world(recorder, 3)
    split = Split(tmp_path / "live", 4)
    run_world(split, 3)
    split.close()
    merged = merge(tmp_path / "live", tmp_path / "merged.parquet")
    recorded = comparable(tmp_path / "recorded.parquet")
    assert len(recorded) > 500
    assert comparable(merged.path) == recorded
    checker = check_trace(merged.path)
    assert checker.violations == []
    assert checker.committed == 60
