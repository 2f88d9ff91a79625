"""Advice: a record is read back as what it was, and what is recommended is what a sweep finds."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from msgspec import structs

from roundelay.cli.main import run as roundelay
from roundelay.core.bundle import Bundle
from roundelay.core.engine import MS
from roundelay.core.errors import ConfigError
from roundelay.journal.format import Run
from roundelay.pipeline.research.advise import (
    GroupCandidate,
    Requirements,
    TrialResult,
    best,
    candidates,
    present,
    words,
)
from roundelay.pipeline.research.grid import parse
from roundelay.pipeline.research.sweep import RUNS, sweep
from roundelay.pipeline.research.workload import read_workload
from roundelay.runs.replay import replay
from roundelay.runs.simulate import SimulateParams, simulate
from tests.journal.make import record

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SITES, LOSS, RATE = 5, 0.1, 20.0


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The trace of a group that loses one copy in ten."""
    path = tmp_path_factory.mktemp("recorded") / "trace.parquet"
    params = SimulateParams(
        sites=SITES, loss=LOSS, rate=RATE, messages=400, seed=7, size=100, hold_ms=20.0
    )  # fmt: skip
    simulate(params, trace=path)
    return path


# -- workloads ---------------------------------------------------------------------------------


def test_a_trace_tells_arrivals_sizes_loss_and_transit(recorded: Path) -> None:
    workload = read_workload(recorded.parent, 300)
    said = workload.described()
    assert (said["sites"], said["messages"], said["recorded"]) == (SITES, 300, 400)
    assert said["senders"] == SITES
    assert said["rate"] == pytest.approx(RATE, rel=0.2)
    assert said["burstiness"] == pytest.approx(1, abs=0.2)  # Poisson
    assert (said["size_mean"], said["size_max"]) == (100, 100)
    assert said["loss"] == pytest.approx(LOSS, abs=0.01)
    assert said["transit_ms"] == 0.02
    assert all(before[0] <= after[0] for before, after in pairwise(workload.arrivals))
    assert present(workload) == GroupCandidate(
        protocol="token", profile="paper", resilience=1, hold_ms=20.0
    )


def test_a_journal_tells_arrivals_and_sizes(tmp_path: Path) -> None:
    runs = [
        Run(k * 2, 10**18 + k * 50 * MS, f"s{k % 4}", Bundle.of(b"x" * 10, b"y" * (k % 7)))
        for k in range(30)
    ]
    workload = read_workload(record(tmp_path / "journal", runs), 40)
    assert (workload.recorded, len(workload.arrivals), workload.sites) == (60, 40, 4)
    assert workload.loss is None
    assert [size for _, _, size in workload.arrivals[-2:]] == [10, 29 % 7]
    assert workload.described()["rate"] == pytest.approx(2 * 19.5 / 0.95, rel=0.05)
    assert present(workload) is None


def test_what_is_no_record_is_refused_in_one_line(
    tmp_path: Path, recorded: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record(tmp_path / "journal", [Run(0, 10**18, "ann", Bundle.of(b"alone"))])
    for path, says in (
        (tmp_path / "nowhere", "path = "), (tmp_path, "a journal or traces"),
        (tmp_path / "journal", "it has 1"),
    ):  # fmt: skip
        assert roundelay(["advise", str(path)]) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1
        assert says in said
    assert roundelay(["advise", str(recorded), "--loss", "1.5"]) == 2


# -- sending it again --------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", ["token", "positive-ack", "to", "po"])
@pytest.mark.parametrize("profile", ["paper", "fast"])
def test_the_same_messages_are_sent_whatever_the_protocol(
    recorded: Path, protocol: str, profile: str
) -> None:
    workload = read_workload(recorded, 60)
    params = SimulateParams(protocol=protocol, profile=profile, sites=SITES, loss=0.05)
    found = replay(params, workload.arrivals, MS // 10)
    assert found["messages"] == 60
    assert found["delivered_everywhere"]
    assert not found["violations"]
    seconds = (workload.arrivals[-1][0] - workload.arrivals[0][0]) / 1e9
    assert found["virtual_s"] == pytest.approx(seconds, abs=1.0)


def test_a_longer_transit_shows_in_every_delay(recorded: Path) -> None:
    workload = read_workload(recorded, 60)
    for protocol in ("token", "po", "positive-ack"):
        params = SimulateParams(protocol=protocol, sites=SITES, profile="fast")
        quick, slow = (
            replay(params, workload.arrivals, transit)["delay_ms_mean"]
            for transit in (MS // 10, MS)
        )
        assert quick + 0.4 < slow


# -- the criterion -----------------------------------------------------------------------------


def tried(protocol: str, pdus: float, p99: float, **given: Any) -> TrialResult:
    level = given.pop("resilience", 1 if protocol == "token" else 0)
    one = GroupCandidate(protocol=protocol, profile="paper", resilience=level, hold_ms=50.0)
    usual = TrialResult(
        candidate=one, runs=3, pdus_per_message=pdus, pdus_ci95=0.1, control_per_message=pdus - 1,
        delay_ms_mean=p99 / 3, delay_ms_p99=p99, storage_max=4, delivered=True, violations=0,
    )  # fmt: skip
    return structs.replace(usual, **given)


def test_the_fewest_pdus_win_among_those_that_give_what_is_asked_for() -> None:
    cheap = tried("positive-ack", 3.0, 10)
    slow = tried("token", 3.5, 900)
    good = tried("token", 4.0, 150)
    dear = tried("token", 6.0, 5)
    frail = tried("token", 3.2, 100, resilience=0)
    broken = tried("token", 2.0, 10, violations=1)
    lost = tried("token", 2.1, 10, delivered=False)
    everyone = [cheap, slow, good, dear, frail, broken, lost]
    assert best(everyone, Requirements()) == good
    assert best(everyone, Requirements(delay_ms=50)) == dear
    assert best(everyone, Requirements(delay_ms=1000)) == slow
    assert best(everyone, Requirements(resilience=0)) == frail
    assert best(everyone, Requirements(order="none", resilience=0)) == cheap
    assert best(everyone, Requirements(delay_ms=1)) == dear  # the quickest, if none is quick enough
    assert best(everyone, Requirements(resilience=2)) is None
    nearly = tried("token", 4.03, 20)
    assert best([*everyone, nearly], Requirements()) == nearly
    stuck = tried("token", 3.6, 60, delay_ms_mean=20_000.0)  # one in a hundred waits for the next
    assert best([*everyone, stuck], Requirements()) == good
    assert stuck.misses(Requirements()) == ["after 20000 ms on average"]
    assert "not quick enough" in " ".join(words(dear, None, everyone, Requirements(delay_ms=1)))
    assert "None of 7" in words(None, None, everyone, Requirements(resilience=2))[0]


def test_candidates_are_what_the_group_could_be() -> None:
    found = candidates(5, 0.1)
    assert {one.resilience for one in found if one.protocol == "token"} == {0, 1, 2}
    assert {one.hold_ms for one in found if one.profile == "paper"} == {20.0, 50.0, 100.0, 200.0}
    assert len(found) == len(set(found))
    assert candidates(3, 10.0, protocols=["token"], profiles=["paper"])[0].hold_ms == 1100.0
    with pytest.raises(ConfigError, match="hold_ms = 5"):
        candidates(5, 0.1, holds_ms=[5.0])
    with pytest.raises(ConfigError, match="protocol = grsb"):
        candidates(5, 0.1, protocols=["grsb"])


# -- Must show 6 -------------------------------------------------------------------------------


def test_at_10_percent_loss_it_recommends_what_a_full_sweep_finds_best(
    spark: SparkSession, recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = ["--messages", "400", "--seeds", "2"]
    assert roundelay(["advise", str(recorded), *wanted, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    # The sweep draws its own arrivals, knows no record, and tries the same candidates.
    tables = [
        {"protocol": "token", "resilience": [0, 1, 2], "hold_ms": [10.0, 20.0, 50.0, 100.0, 200.0]},
        {"protocol": "token", "resilience": [0, 1, 2], "profile": "fast"},
        {"protocol": ["positive-ack", "to"]},
    ]
    said = {"sites": SITES, "loss": LOSS, "rate": RATE, "grid": tables}
    grid = parse(said, "best", 400, 2)
    sweep(spark, grid, tmp_path)
    points: dict[str, list[Any]] = {}
    for row in spark.read.parquet(str(tmp_path / RUNS)).collect():
        points.setdefault(row["point"], []).append(row)
    good = {
        point: sum(row["pdus_per_message"] for row in rows) / len(rows)
        for point, rows in points.items()
        if rows[0]["protocol"] in ("token", "to")
        and rows[0]["resilience"] >= 1
        and sum(row["delay_ms_p99"] for row in rows) / len(rows) <= 200  # ms, the usual limit
        and all(row["delivered_everywhere"] and not row["violations"] for row in rows)
    }
    winner = points[min(good, key=lambda point: good[point])][0]
    chosen = found["recommendation"]
    assert (chosen["protocol"], chosen["profile"]) == (winner["protocol"], winner["profile"])
    assert (chosen["resilience"], chosen["hold_ms"]) == (winner["resilience"], winner["hold_ms"])
    assert not chosen["misses"]
    assert chosen["pdus_per_message"] == pytest.approx(min(good.values()), rel=0.1)
    assert found["words"][0].startswith(f"Use {chosen['name']}: ")
    assert "fewest PDUs per broadcast" in found["criterion"]
    assert found["workload"]["loss"] == pytest.approx(LOSS, abs=0.01)
    assert found["recorded_as"]["hold_ms"] == 20.0 != chosen["hold_ms"]
    assert "fewer PDUs than now" in found["words"][1]
