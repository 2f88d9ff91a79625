"""`roundelay verify` on Spark: both ways, the command, growing traces."""

from __future__ import annotations

import asyncio
import json
import pickle
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from roundelay.cli.main import run as roundelay
from roundelay.core.bundle import Bundle
from roundelay.core.engine import COMMITTED, Delivery
from roundelay.core.events import DELIVER, SUBMIT
from roundelay.pipeline.verify import judge, sql
from roundelay.pipeline.verify.frames import Frames
from roundelay.pipeline.verify.runs import TracedRun, find_runs
from roundelay.pipeline.verify.survey import survey
from roundelay.pipeline.verify.verdict import RunJudgement
from roundelay.pipeline.verify.watch import watch
from roundelay.trace import check_trace
from roundelay.trace.live import LiveTrace
from tests.pipeline.test_verify import here
from tools import live_traces
from tools.planted_traces import FAULTS, clean

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = 3000


def broken(made: RunJudgement) -> set[str]:
    return {name for name, one in made.invariants.items() if one.broken}


def positions(made: RunJudgement, name: str) -> set[tuple[int, int]]:
    return {(one.site, one.seq) for one in made.invariants[name].findings}


def with_faults(
    folder: Path, names: dict[str, float], *, rows: int = ROWS, **kind: object
) -> TracedRun:
    """A trace with several faults, each at its place."""
    story = clean(rows, **kind)  # type: ignore[arg-type]
    for fault in FAULTS:
        if fault.name in names:
            fault.plant(story, names[fault.name])
    path = folder / "trace.parquet"
    story.write(path, 200)
    (run,) = find_runs([path], folder)
    return run


def test_both_ways_find_the_same_in_a_total_order(spark: SparkSession, tmp_path: Path) -> None:
    run = with_faults(
        tmp_path,
        {"swap": 0.2, "gap": 0.3, "duplicate": 0.4, "foreign": 0.5, "unfair": 0.6,
         "early commit": 0.7, "two lists": 0, "unanswered": 0.8, "lost": 0},
        transmissions=True,
    )  # fmt: skip
    fast = judge(spark, run, range_messages=300)
    oracle = judge(spark, run, strategy="sql")
    assert (fast.strategy, oracle.strategy) == ("fast", "sql")
    assert broken(fast) == broken(oracle) == {"I1", "I2", "I3", "I4", "I5", "holders", "lists"}
    for name in broken(fast):
        assert positions(fast, name) == positions(oracle, name), name
        assert fast.invariants[name].broken == oracle.invariants[name].broken, name
    theirs = check_trace(tmp_path / "trace.parquet").counts
    assert broken(fast) - {"holders", "lists"} == {name for name, count in theirs.items() if count}


def test_destinations_and_the_order_of_sources_are_judged(
    spark: SparkSession, tmp_path: Path
) -> None:
    run = with_faults(
        tmp_path, {"wrong destination": 0.3, "not delivered": 0.6}, order="fifo", destinations=3
    )
    made = judge(spark, run)
    theirs = check_trace(tmp_path / "trace.parquet").counts
    assert broken(made) == {name for name, count in theirs.items() if count} == {"I1", "I8"}
    assert made.invariants["I8"].broken == theirs["I8"] == 2


def test_the_command_says_what_holds_and_what_does_not(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = tmp_path / "good", tmp_path / "bad"
    for folder in (good, bad):
        folder.mkdir()
    clean(ROWS).write(good / "trace.parquet")
    with_faults(bad, {"altered": 0.5})
    assert roundelay(["verify", str(good), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found["invariants"]) == {
        "I1", "I2", "I3", "I4", "I5", "I8", "holders", "lists",
    }  # fmt: skip
    assert all(one["holds"] for one in found["invariants"].values())
    assert found["invariants"]["I1"]["checked"] > ROWS / 2
    assert found["invariants"]["I1"]["counterexamples"] == []

    assert roundelay(["verify", str(tmp_path), "--json"]) == 1  # runs below a folder are found
    found = json.loads(capsys.readouterr().out)
    assert [one["holds"] for one in found["runs"]] == [False, True]
    row = found["invariants"]["I1"]["counterexamples"][0]
    words = row["diagram"].split()
    assert roundelay([*words[1:], "--out", str(tmp_path / "look.svg")]) == 0
    assert (tmp_path / "look.svg").exists()

    capsys.readouterr()
    assert roundelay(["verify", str(tmp_path / "nowhere")]) == 2
    assert "nowhere" in capsys.readouterr().err


def test_the_traces_of_live_nodes_are_put_together(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    traces = live(tmp_path, "token:orders", 3)
    speak(traces, 0, b"one")
    assert roundelay(["verify", str(tmp_path), "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["runs"]
    assert (found["sites"], found["invariants"]["I1"]["checked"]) == (3, 3)


def test_live_groups_of_several_services_are_clean(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checks = {
        "resilient": {"I1", "I2", "I3", "I4", "I5", "holders", "lists"},
        "selective": {"I1", "I4", "I5", "I8"},
        "journal": {"I1", "I2", "I4", "I5"},
        "fifo": {"I1", "I2", "I4", "I5"},
    }
    for service in checks:
        asyncio.run(live_traces.run(service, tmp_path / service, 10))
    runs = [run for run in find_runs([tmp_path], tmp_path / "scratch") if run.rows]
    whole = {}
    for run in runs:
        made = judge(spark, run)
        assert broken(made) == set(), run.name
        assert (run.resilience is not None) == (run.protocol == "token")
        if made.settled:
            whole[run.name] = {name for name, one in made.invariants.items() if one.checked}
    assert sorted(map(sorted, whole.values())) == sorted(map(sorted, checks.values()))


def test_the_proof_by_sql_counts_what_is_odd(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also at the border between two blocks, which here is in the middle."""
    story = clean(600)
    border = len(story.rows(event=DELIVER, site=2)) // 2
    bits = border.bit_length() - 1
    monkeypatch.setattr(sql, "BLOCK_BITS", bits)
    monkeypatch.setattr(sql, "LAST", (1 << bits) - 1)
    count = len(story.rows(event=DELIVER, site=2))
    for name in ("", "swap", "unfair", "old list"):
        run = with_faults(tmp_path, {name: ((1 << bits) - 1) / (count - 2)}, rows=600)
        found = sql.prove_by_sql(Frames(spark, run), survey(run, here).control)
        if name:
            assert found is None, name
        else:
            assert found is not None
            assert (found.deliveries, found.positions, found.own) == (5 * count, count, count)


def live(folder: Path, group: str, sites: int) -> list[LiveTrace]:
    params = {"order": "total", "protocol": "token"}
    return [
        LiveTrace(folder, group=group, name="abc"[site], site=site, params=params)
        for site in range(sites)
    ]


def speak(traces: list[LiveTrace], seq: int, text: bytes, *, swapped: int = -1) -> None:
    """Site 0 submits a message and all deliver it; one of them something else, if so wished."""
    bundle = Bundle.of(text)
    traces[0].append((0, 0, SUBMIT, seq, -1, bundle))
    traces[0].flush()
    for site, trace in enumerate(traces):
        what = Bundle.of(b"other") if site == swapped else bundle
        trace.append((0, site, DELIVER, seq, 0, Delivery(seq, 0, seq, what, COMMITTED)))
        trace.flush()


def test_the_next_trigger_raises_the_alarm(spark: SparkSession, tmp_path: Path) -> None:
    folder, state = tmp_path / "traces", tmp_path / "state"
    traces = live(folder, "token:orders", 3)
    speak(traces, 0, b"one")
    triggers = watch(spark, [folder], every_s=0.01, state=state)
    first = next(triggers)
    assert (first.groups, first.rows, first.alarms) == (1, 4, [])
    speak(traces, 1, b"two")
    assert next(triggers).rows == 4
    assert next(triggers).rows == 0
    speak(traces, 2, b"three", swapped=2)
    alarmed = next(triggers)
    assert {(alarm.invariant, alarm.site) for alarm in alarmed.alarms} >= {("I1", 2)}
    triggers.close()  # type: ignore[attr-defined]
    # Another process goes on where this one stopped.
    speak(traces, 3, b"four")
    again = next(watch(spark, [folder], every_s=0.01, state=state))
    assert (again.rows, again.alarms) == (4, [])
    # What another version has kept is not taken: the group is judged anew.
    (kept,) = state.rglob("*.state")
    kept.write_bytes(pickle.dumps((-1, None)))
    anew = next(watch(spark, [folder], every_s=0.01, state=state))
    assert anew.rows == 16
    assert "I1" in {alarm.invariant for alarm in anew.alarms}
