"""How fast `verify` is, against DuckDB on the same files in the same run, and what it finds.

Traces of five members, one file each, sorted by position, are made with numpy.  Then, on a warm
session, in turn:

- the fast way: ranges of positions, numpy in the task;
- DuckDB: the same checks in the best formulation that was found, canonical messages in a table of
  their own, windows over blocks (and over whole sites, if that is faster);
- the oracle: the same checks in Spark SQL.

    python -m bench.verify [--rows 10000000] [--small 1000000] [--rounds 3] [--no-oracle] [--json]
    python -m bench.verify --faults [--rows 1000000]        every planted fault, found or not
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

from roundelay.pipeline.planting import FAULTS, clean, planted
from roundelay.pipeline.session import SparkOptions, spark_session
from roundelay.pipeline.verify import judge
from roundelay.pipeline.verify_runs import Run, find_runs

MEMBERS = 5
BLOCK = 1 << 16


def made(folder: Path, deliveries: int) -> Run:
    """A clean trace with so many deliveries, a file per member."""
    folder.mkdir()
    story = clean(deliveries * (MEMBERS + 1) // MEMBERS, sites=MEMBERS)
    story.write_apart(folder)
    (run,) = find_runs([folder], folder)
    return run


# -- DuckDB ------------------------------------------------------------------------------------


def duck(run: Run) -> dict[str, float]:
    """Seconds of each formulation of all checks; both must find nothing."""
    return {
        "windows over blocks": _duck(run, f"site, file_row_number // {BLOCK}", edges=True),
        "windows over sites": _duck(run, "site", edges=False),
    }


def _duck(run: Run, partition: str, *, edges: bool) -> float:
    import duckdb

    con = duckdb.connect()
    con.execute(f"SET threads = {os.cpu_count() or 1}")
    files = [part.path for part in run.parts]
    start = perf_counter()
    con.execute(
        "CREATE VIEW rows AS SELECT * FROM read_parquet(?, file_row_number = true)".replace(
            "?", repr(files)
        )
    )
    con.execute(
        "CREATE VIEW deliveries AS SELECT site, time, seq, source, number, digest, "
        "file_row_number FROM rows WHERE event = 'DELIVER' AND kind <> 'stamped'"
    )
    con.execute(
        "CREATE TEMP TABLE submits AS SELECT site, time, digest, file_row_number AS key "
        "FROM rows WHERE event = 'SUBMIT'"
    )
    con.execute(
        "CREATE TEMP TABLE canon AS SELECT seq, min(time) AS time, arg_min(site, time) AS site, "
        "min(digest) AS digest, min(source) AS source, min(number) AS number, count(*) AS n, "
        "min(digest) <> max(digest) OR min(source) <> max(source) OR min(number) <> max(number) "
        "AS differs FROM deliveries GROUP BY seq"
    )
    con.execute(
        "CREATE TEMP TABLE paired AS SELECT c.*, s.key, s.site AS sub_site, s.time AS sub_time "
        "FROM canon c LEFT JOIN submits s USING (digest)"
    )
    con.execute(
        "CREATE TEMP TABLE lists AS SELECT site, time, tl_version, seq AS start FROM rows "
        "WHERE event = 'NOTICE' AND kind = 'view'"
    )
    found = {
        "differs": "SELECT count(*) FROM canon WHERE differs",
        "order": f"SELECT count(*) FROM (SELECT seq - lag(seq) OVER (PARTITION BY {partition} "
        "ORDER BY file_row_number) AS step FROM deliveries) WHERE step <> 1",
        "ends": "SELECT count(*) FROM (SELECT site, min(seq) AS lo, max(seq) AS hi, count(*) AS n "
        "FROM deliveries GROUP BY site) WHERE lo <> 0 OR n <> hi + 1 "
        "OR hi <> (SELECT max(seq) FROM canon)",
        "submitted": "SELECT count(*) FROM paired WHERE key IS NULL OR sub_site <> source "
        "OR sub_time > time",
        "twice": "SELECT count(*) - count(DISTINCT digest) FROM canon",
        "fifo": "SELECT count(*) FROM (SELECT key - lag(key) OVER w AS step, number - lag(number) "
        f"OVER w AS numbers FROM paired WINDOW w AS (PARTITION BY source, seq // {BLOCK} "
        "ORDER BY seq)) WHERE step <= 0 OR numbers <= 0",
        "own": "SELECT (SELECT count(*) FROM submits) - (SELECT count(*) FROM deliveries "
        "WHERE site = source)",
        "lists": "SELECT count(*) FROM (SELECT tl_version FROM lists GROUP BY tl_version "
        "HAVING count(DISTINCT start) > 1)",
        "commits": "SELECT count(*) FROM canon c WHERE "
        "(SELECT max(tl_version) FROM (SELECT DISTINCT tl_version, start FROM lists) l "
        "WHERE l.start <= c.seq) > (SELECT max(tl_version) FROM lists l "
        "WHERE l.site = c.site AND l.time <= c.time)",
    }
    if edges:
        found["edges"] = (
            "SELECT count(*) FROM (SELECT lo - lag(hi) OVER (PARTITION BY site ORDER BY block) "
            "AS step FROM (SELECT site, file_row_number // 65536 AS block, "
            "arg_min(seq, file_row_number) AS lo, arg_max(seq, file_row_number) AS hi "
            "FROM deliveries GROUP BY ALL)) WHERE step <> 1"
        )
        found["fifo edges"] = (
            "SELECT count(*) FROM (SELECT low - lag(high) OVER (PARTITION BY source ORDER BY b) "
            f"AS step FROM (SELECT source, seq // {BLOCK} AS b, min(key) AS low, max(key) AS high "
            "FROM paired GROUP BY ALL)) WHERE step <= 0"
        )
    wrong = {name: (con.execute(text).fetchone() or (1,))[0] for name, text in found.items()}
    seconds = perf_counter() - start
    assert not any(wrong.values()), wrong
    con.close()
    return seconds


# -- what is printed ---------------------------------------------------------------------------


def timed(call: Callable[[], Any]) -> float:
    start = perf_counter()
    call()
    return perf_counter() - start


def speed(rows: int, small: int, rounds: int, oracle: bool) -> dict[str, Any]:
    found: dict[str, Any] = {"deliveries": rows, "small": small}
    with tempfile.TemporaryDirectory(prefix="roundelay-bench-") as name:
        sizes = {"small": small, "large": rows}
        runs = {size: made(Path(name) / size, count) for size, count in sizes.items()}
        start = perf_counter()
        with spark_session("bench", SparkOptions()) as spark:
            spark.range(1).count()
            found["start_s"] = perf_counter() - start
            assert judge(spark, runs["small"]).holds  # workers are warm from here on
            for size, run in runs.items():
                fast, ducks = [], []
                for _ in range(rounds):
                    fast.append(timed(lambda run=run: _clean(judge(spark, run))))
                    ducks.append(min(duck(run).values()))
                found[f"{size}_fast_s"], found[f"{size}_duckdb_s"] = min(fast), min(ducks)
                print(
                    f"{sizes[size]:,}: fast {fast}, DuckDB {ducks} s", file=sys.stderr, flush=True
                )
                if oracle:
                    found[f"{size}_oracle_s"] = timed(
                        lambda run=run: _clean(judge(spark, run, strategy="sql"))
                    )
    found["fast_to_duckdb"] = found["large_fast_s"] / found["large_duckdb_s"]
    if oracle:
        found["oracle_to_duckdb"] = found["large_oracle_s"] / found["large_duckdb_s"]
    found["growth"] = (found["large_fast_s"] / found["small_fast_s"]) / (rows / small)
    return found


def _clean(judgement: Any) -> None:
    assert judgement.holds, judgement


def faults(rows: int) -> dict[str, Any]:
    """Every planted fault in a trace of so many rows, by both ways."""
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="roundelay-bench-") as name:
        path = Path(name) / "trace.parquet"
        with spark_session("bench", SparkOptions()) as spark:
            for fault in FAULTS:
                planted(fault, rows).write(path)
                (run,) = find_runs([path], Path(name))
                start = perf_counter()
                made = judge(spark, run)
                seconds = perf_counter() - start
                broken = sorted(k for k, v in made.invariants.items() if v.broken)
                ok = set(fault.breaks) <= set(broken)
                found[fault.name] = {"found": ok, "broken": broken, "seconds": seconds}
                print(f"{'found ' if ok else 'MISSED'}  {fault.name:18} {' '.join(broken):14} "
                      f"{seconds:5.1f} s  {fault.about}", flush=True)  # fmt: skip
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=0, help="deliveries, or rows with --faults")
    parser.add_argument("--small", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--faults", action="store_true")
    parser.add_argument("--no-oracle", action="store_true", help="leave Spark SQL out")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.faults:
        found = faults(args.rows or 1_000_000)
    else:
        found = speed(args.rows or 10_000_000, args.small, args.rounds, not args.no_oracle)
        if not args.json:
            print(f"session and first job: {found['start_s']:.1f} s")
            for size, count in (("small", args.small), ("large", found["deliveries"])):
                oracle = found.get(f"{size}_oracle_s")
                print(f"{count:>11,} deliveries: fast {found[f'{size}_fast_s']:.2f} s, DuckDB "
                      f"{found[f'{size}_duckdb_s']:.2f} s"
                      + (f", oracle {oracle:.2f} s" if oracle else ""))  # fmt: skip
            print(f"fast / DuckDB   {found['fast_to_duckdb']:.2f}  (at most 1)")
            if "oracle_to_duckdb" in found:
                print(f"oracle / DuckDB {found['oracle_to_duckdb']:.2f}  (at most 6)")
            print(f"growth from {args.small:,}: {found['growth']:.2f} of linear")
    if args.json:
        print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
