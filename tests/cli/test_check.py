"""`roundelay check`: the same verdict from a file, a run's folder, or the traces of live nodes."""

from __future__ import annotations

from pathlib import Path

import pytest

from roundelay.core import events as ev
from roundelay.core.bundle import Bundle
from roundelay.core.engine import Delivery
from roundelay.trace.live import LiveTrace
from tests.cli.conftest import Call

A, B = Bundle.of(b"a"), Bundle.of(b"b")


def leave_traces(folder: Path, group: str, swapped: bool) -> None:
    """Two sites that deliver two messages, the second site perhaps in another order."""
    with (
        LiveTrace(folder, group=group, name="x", site=0, params={"order": "total"}) as x,
        LiveTrace(folder, group=group, name="y", site=1, params={"order": "total"}) as y,
    ):
        x.append((0, 0, ev.SUBMIT, 0, -1, A))
        x.flush()
        y.append((0, 1, ev.SUBMIT, 0, -1, B))
        y.flush()
        for site, trace in enumerate((x, y)):
            order = [(0, A), (1, B)]
            if swapped and site == 1:
                order.reverse()
            for seq, (source, bundle) in enumerate(order):
                delivery = Delivery(seq, source, 0, bundle, "committed")
                trace.append((0, site, ev.DELIVER, seq, source, delivery))
            trace.flush()


def test_traces_of_live_nodes_are_put_together_and_judged(call: Call, tmp_path: Path) -> None:
    leave_traces(tmp_path, "token:good", swapped=False)
    done = call("check", tmp_path)
    assert done.status == 0
    assert done.out.splitlines() == [
        "token:good: 2 sites, 2 messages delivered, 2 of them by everybody",
        "every promise was kept",
    ]
    leave_traces(tmp_path, "token:bad", swapped=True)
    done = call("check", tmp_path, "--json")
    assert done.status == 1
    assert done.json["broken"] == 2
    bad, good = done.json["traces"]
    assert bad["group"] == "token:bad"
    assert "position 0 is number 0 of source 1 here" in bad["violations"][0]
    assert good["violations"] == []
    assert call("check", tmp_path, "--group", "token:good").status == 0


def test_the_trace_of_a_run_is_judged_by_folder_and_by_file(call: Call, tmp_path: Path) -> None:
    run = tmp_path / "run"
    made = call("simulate", "token", "--messages", 20, "--loss", 0.1, "--out", run)
    assert made.status == 0
    for path in (run, run / "trace.parquet"):
        done = call("check", path)
        assert done.status == 0
        assert "20 messages delivered, 20 of them by everybody" in done.out


@pytest.mark.parametrize("what", ["missing", "empty", "group", "file"])
def test_bad_input_gets_one_line(what: str, call: Call, tmp_path: Path) -> None:
    words: list[object] = [tmp_path / "none"]
    if what == "empty":
        words = [tmp_path]
    elif what == "group":
        leave_traces(tmp_path, "token:good", swapped=False)
        words = [tmp_path, "--group", "token:other"]
    elif what == "file":
        (tmp_path / "text").write_text("no trace")
        words = [tmp_path / "text"]
    done = call("check", *words)
    assert done.status == 2
    assert done.out == ""
    assert done.err.count("\n") == 1
