"""The fast way of `verify`: what it proves and finds, and that `roundelay check` agrees."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roundelay.core import events as ev
from roundelay.core.bundle import Bundle
from roundelay.core.engine import Delivery
from roundelay.core.errors import UsageError
from roundelay.pipeline.verify import FAST, conclude, prove
from roundelay.pipeline.verify.runs import TracedRun, find_runs
from roundelay.pipeline.verify.survey import survey
from roundelay.pipeline.verify.total_order import RangeResult, look, ranges_of
from roundelay.pipeline.verify.verdict import Figures, RunJudgement, as_json
from roundelay.runs.simulate import SimulateParams, simulate
from roundelay.sim.families.registry import SIMULATED
from roundelay.trace import Recorder, check_trace, read, recorder
from roundelay.trace.checkers.checkers import TOTAL
from tests.trace.test_clean_histories import SITES, played, step
from tools.planted_traces import FAULTS, Fault, Story, clean, planted

ROWS = 1800
GROUP_ROWS = 200
"""So small that a trace has many row groups, and every fault is near a border of one."""
TOTAL_FAULTS = [fault for fault in FAULTS if fault.order == TOTAL and fault.breaks != ("holders",)]
SEEN_IN_A_RANGE = [
    fault
    for fault in TOTAL_FAULTS
    if fault.name not in ("lost", "unanswered", "two lists", "minority")
]
OTHER_FAULTS = [fault for fault in FAULTS if fault.order != TOTAL]


def written(story: Story, folder: Path) -> TracedRun:
    path = folder / "trace.parquet"
    story.write(path, GROUP_ROWS)
    (run,) = find_runs([path], folder)
    return run


def here(bins: Sequence[Sequence[Any]], work: Callable[[Any], Any], kind: Any) -> list[Any]:
    """Calls it in this process."""
    return [work(item) for items in bins for item in items]


def verdict(run: TracedRun, range_messages: int = 400) -> RunJudgement:
    """On all but `holders`, which needs Spark."""
    surveyed = survey(run, here)
    return conclude(surveyed, here, prove(surveyed, here, range_messages), FAST)


def proof(run: TracedRun, range_messages: int = 400) -> Figures | None:
    return prove(survey(run, here), here, range_messages)


def broken(made: RunJudgement) -> set[str]:
    return {name for name, one in made.invariants.items() if one.broken}


def checked(path: Path) -> set[str]:
    return {name for name, count in check_trace(path).counts.items() if count}


@pytest.mark.parametrize("fault", TOTAL_FAULTS, ids=lambda fault: fault.name)
def test_a_planted_fault_is_found_wherever_it_stands(fault: Fault, tmp_path: Path) -> None:
    for at in (0.02, 0.8):
        run = written(planted(fault, ROWS, at), tmp_path)
        assert proof(run) is None
        found = broken(verdict(run))
        assert set(fault.breaks) <= found
        assert found - {"lists"} == checked(tmp_path / "trace.parquet")


def test_a_fault_at_each_border_of_a_range_is_found(tmp_path: Path) -> None:
    """Ranges begin where row groups do: a swap across, before and behind every such border."""
    story = clean(ROWS)
    count = len(story.rows(event=ev.DELIVER, site=2))
    for fault in FAULTS:
        if fault.name in ("swap", "unfair", "gap", "duplicate"):
            for near in range(-2, 3):
                place = (3 * GROUP_ROWS * count / ROWS + near) / (count - 2)
                found = broken(verdict(written(planted(fault, ROWS, place), tmp_path), 1))
                assert set(fault.breaks) <= found, (fault.name, near)


def looks(run: TracedRun) -> list[RangeResult | None]:
    """What a look at each range says."""
    surveyed = survey(run, here)
    ranges = ranges_of(surveyed, 400)
    assert len(ranges) > 2
    return [look(run, surveyed.control, one) for one in ranges]


@pytest.mark.parametrize("name", ["planted", "planted apart", "simulated"])
def test_every_range_of_a_clean_trace_is_clean(name: str, tmp_path: Path) -> None:
    if name == "simulated":
        params = SimulateParams(messages=300, seed=3)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(recorder, "GROUP_ROWS", GROUP_ROWS)
            simulate(params, trace=tmp_path / "trace.parquet")
    elif name == "planted":
        written(clean(ROWS), tmp_path)
    else:
        clean(ROWS).write_apart(tmp_path, 60)
    (run,) = find_runs([tmp_path], tmp_path)
    ranges = [one for one in looks(run) if one is not None]
    assert len(ranges) == len(looks(run))
    for one in ranges:
        assert set(one.sites) == set(run.users)
        assert len({(c.first[0], c.last[0]) for c in one.sites.values()}) == 1
    count = len({row.seq for row in read(Path(run.parts[0].path)) if row.event == "DELIVER"})
    made = proof(run)
    assert made is not None
    assert (made.deliveries, made.positions, made.own) == (count * len(run.users), count, count)


@pytest.mark.parametrize("fault", SEEN_IN_A_RANGE, ids=lambda fault: fault.name)
def test_a_faulty_range_is_not_clean_but_others_are(fault: Fault, tmp_path: Path) -> None:
    for at in (0.02, 0.5):
        seen = looks(written(planted(fault, ROWS, at), tmp_path))
        assert 1 <= seen.count(None) < len(seen)


@pytest.mark.parametrize("fault", OTHER_FAULTS, ids=lambda fault: fault.name)
def test_without_a_common_order_a_faulty_trace_is_not_proved_clean(
    fault: Fault, tmp_path: Path
) -> None:
    for at in (0.02, 0.5, 0.9):
        run = written(planted(fault, ROWS, at), tmp_path)
        assert proof(run) is None
        assert set(fault.breaks) <= broken(verdict(run)) == checked(tmp_path / "trace.parquet")


@pytest.mark.parametrize(
    "kind", [{}, {"transmissions": True}, {"order": "fifo"}, {"order": "none"},
             {"order": "fifo", "destinations": 3}],
    ids=str,
)  # fmt: skip
def test_a_clean_trace_is_clean_in_one_file_and_in_a_file_per_site(
    kind: dict[str, object], tmp_path: Path
) -> None:
    story = clean(ROWS, **kind)  # type: ignore[arg-type]
    run = written(story, tmp_path)
    assert proof(run) is not None
    together = verdict(run)
    (tmp_path / "apart").mkdir()
    story.write_apart(tmp_path / "apart", GROUP_ROWS)
    (run,) = find_runs([tmp_path / "apart"], tmp_path)
    assert len(run.parts) == 5
    assert proof(run) is not None
    apart = verdict(run)
    assert together.holds
    assert apart.holds
    for name, one in together.invariants.items():
        assert one.checked == apart.invariants[name].checked


@pytest.mark.parametrize("group_rows", [23, 61, 97, 150])
def test_submissions_are_found_wherever_row_groups_end(group_rows: int, tmp_path: Path) -> None:
    """Row groups of several files overlap in time, and a range may begin in the midst of one."""
    clean(3 * ROWS, seed=group_rows).write_apart(tmp_path, group_rows)
    (run,) = find_runs([tmp_path], tmp_path)
    for messages in (50, 400, 1500):
        assert proof(run, messages) is not None


@pytest.mark.parametrize("protocol", SIMULATED)
def test_a_simulated_run_of_every_protocol_is_clean(protocol: str, tmp_path: Path) -> None:
    sites = 12 if protocol == "wide" else 5
    params = SimulateParams(protocol=protocol, sites=sites, messages=60, seed=2)
    simulate(params, trace=tmp_path / "trace.parquet")
    (run,) = find_runs([tmp_path], tmp_path)
    made = verdict(run)
    assert made.holds
    assert made.settled
    assert made.invariants["I4"].checked >= 60
    assert made.invariants["I5"].checked > 0
    assert made.invariants["I5"].note == ""


def test_a_trace_that_was_cut_short_is_proved_as_far_as_it_goes(tmp_path: Path) -> None:
    story = clean(ROWS)
    story.drop(np.arange(len(story) - 100, len(story)))
    behind = story.rows(event=ev.DELIVER, site=0)[-5:]
    story.drop(behind)
    made = verdict(written(story, tmp_path))
    assert proof(written(story, tmp_path)) is not None
    assert made.holds
    assert not made.settled
    assert made.invariants["I2"].note
    story.drop(story.rows(event=ev.DELIVER, site=0)[-5:-4])
    assert broken(verdict(written(story, tmp_path))) == {"I1"}


@settings(max_examples=50, deadline=None)
@given(
    st.lists(step, max_size=60),
    st.sampled_from([30, 1 << 20]),
    st.randoms(use_true_random=False),
    st.sampled_from(["", "drop", "repeat", "exchange", "alter"]),
)
def test_the_fast_way_agrees_with_the_checker_about_any_history(
    steps: Any, messages: int, rng: Random, how: str
) -> None:
    """Crashes, restarts with and without disk, gaps, new lists; then one delivery falsified."""
    play = played(steps)
    play.finish()
    rows = play.rows
    deliveries = [i for i, row in enumerate(rows) if row[2] == ev.DELIVER]
    if how and deliveries:
        falsify(rows, deliveries, rng, how)
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(recorder, "GROUP_ROWS", 20)
        path = Path(folder) / "trace.parquet"
        with Recorder(path, params={"sites": SITES, "order": "total"}) as made:
            made.rows.extend(rows)
        (run,) = find_runs([path], Path(folder))
        mine = verdict(run, messages)
        theirs = checked(path) - {"I7"}
    assert broken(mine) == theirs
    assert how or not theirs


def falsify(rows: list[ev.Row], deliveries: list[int], rng: Random, how: str) -> None:
    i = rng.choice(deliveries)
    if how == "drop":
        del rows[i]
    elif how == "repeat":
        rows.insert(i + 1, rows[i])
    elif how == "exchange":
        k = rng.choice([k for k in deliveries if rows[k][1] == rows[i][1]])
        rows[i], rows[k] = (rows[i][0], *rows[k][1:]), (rows[k][0], *rows[i][1:])
    else:
        was = rows[i][5]
        assert isinstance(was, Delivery)
        bundle = Bundle(was.bundle.sizes, was.bundle.data[:-1] + b"\xff")
        changed = Delivery(was.seq, was.source, was.number, bundle, was.stage)
        rows[i] = (*rows[i][:5], changed)


def test_a_counterexample_says_where_to_look(tmp_path: Path) -> None:
    swap = next(fault for fault in FAULTS if fault.name == "swap")
    made = verdict(written(planted(swap, ROWS), tmp_path))
    found = as_json([made])
    assert found["holds"] is False
    assert found["invariants"]["I1"]["holds"] is False
    assert found["invariants"]["I4"] == found["invariants"]["I4"] | {
        "holds": True, "counterexamples": [],
    }  # fmt: skip
    (row,) = found["invariants"]["I1"]["counterexamples"]
    assert row["site"] == 2
    assert row["from_ms"] * 1e6 <= row["time_ns"] <= row["to_ms"] * 1e6
    words = f"--from-ms {row['from_ms']} --to-ms {row['to_ms']}"
    assert row["diagram"] == f"roundelay diagram {tmp_path / 'trace.parquet'} {words}"


@pytest.mark.parametrize("name", ["digest", "messages"])
def test_a_row_whose_digest_is_not_that_of_its_message_is_noticed(
    name: str, tmp_path: Path
) -> None:
    """A trace says twice which message it is: whoever changes one of them is found out."""
    path = written(clean(ROWS), tmp_path).parts[0].path
    table = pq.read_table(path)
    row = table["event"].to_pylist().index("DELIVER", 900)
    changed = table[name].to_pylist()
    changed[row] = 5 if name == "digest" else [5]
    at = table.schema.get_field_index(name)
    column = pa.array(changed, table.schema.field(name).type)
    pq.write_table(table.set_column(at, table.schema.field(name), column), path)
    (run,) = find_runs([tmp_path], tmp_path)
    assert {"I1", "I4"} <= broken(verdict(run))


def test_counterexamples_are_bounded_and_counted(tmp_path: Path) -> None:
    story = clean(ROWS)
    rows = story.rows(event=ev.DELIVER, site=1)[100:200]
    story["fp"][rows] ^= 1
    verdicts = verdict(written(story, tmp_path)).invariants
    assert verdicts["I1"].broken >= 100
    assert len(verdicts["I1"].findings) == 10


def test_what_is_no_trace_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="a folder with traces"):
        find_runs([tmp_path], tmp_path)
    (tmp_path / "trace.parquet").write_bytes(b"PAR1 or so")
    with pytest.raises(UsageError, match="cannot be read"):
        find_runs([tmp_path], tmp_path)
    story = clean(200)
    story["site"][story.rows(event=ev.DELIVER)[5]] = 9
    with pytest.raises(UsageError, match="there is no site 9"):
        verdict(written(story, tmp_path))
