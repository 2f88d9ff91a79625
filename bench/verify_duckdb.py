"""The checks of `verify` in DuckDB, in the best formulations that were found, for `bench.verify`.

All say the same of a trace of several sites, a file each; which is the fastest depends on the
machine.  They look for what is wrong and count it, no more: no counterexamples, no crashes.
"""

from __future__ import annotations

import os
from typing import Any

from bench.cpu import Measured
from roundelay.pipeline.verify.runs import TracedRun

BLOCK = 1 << 16
GROUPED = ("windows over blocks", "windows over sites")
"""Formulations in SQL that needs no help from how the files lie."""

LISTS = """
    CREATE TEMP TABLE lists AS SELECT site, time, tl_version, seq AS start FROM rows
    WHERE event = 'NOTICE' AND kind = 'view'
"""
SUBMITS = """
    CREATE TEMP TABLE submits AS SELECT site, time, digest, file_row_number AS key
    FROM rows WHERE event = 'SUBMIT'
"""
PAIRED = """
    CREATE TEMP TABLE paired AS SELECT c.*, s.key, s.site AS sub_site, s.time AS sub_time
    FROM canon c LEFT JOIN submits s USING (digest)
"""
FORCE = """
    CREATE TEMP TABLE force AS SELECT n.tl_version, n.start, n.till, h.site, h.since
    FROM (SELECT tl_version, min(start) AS start,
                 lead(min(start), 1, 4611686018427387904) OVER (ORDER BY tl_version) AS till
          FROM lists GROUP BY tl_version) n
    JOIN (SELECT site, tl_version, min(time) AS since FROM lists GROUP BY ALL) h
    USING (tl_version)
"""
DELIVERIES = "event = 'DELIVER' AND kind <> 'stamped'"
FOUND = {
    "submitted": "SELECT count(*) FROM paired WHERE key IS NULL OR sub_site <> source "
    "OR sub_time > time",
    "twice": "SELECT count(*) - count(DISTINCT digest) FROM canon",
    "fifo": "SELECT count(*) FROM (SELECT key - lag(key) OVER w AS step, number - lag(number) "
    f"OVER w AS numbers FROM paired WINDOW w AS (PARTITION BY source, seq // {BLOCK} "
    "ORDER BY seq)) WHERE step <= 0 OR numbers <= 0",
    "fifo edges": "SELECT count(*) FROM (SELECT low - lag(high) OVER (PARTITION BY source "
    f"ORDER BY b) AS step FROM (SELECT source, seq // {BLOCK} AS b, min(key) AS low, "
    "max(key) AS high FROM paired GROUP BY ALL)) WHERE step <= 0",
    "lists": "SELECT count(*) FROM (SELECT tl_version FROM lists GROUP BY tl_version "
    "HAVING count(DISTINCT start) > 1)",
    "commits": "SELECT (SELECT count(*) FROM canon) - count(*) FROM canon c JOIN force f "
    "ON c.site = f.site AND c.seq >= f.start AND c.seq < f.till AND c.time >= f.since",
    "differs": "SELECT count(*) FROM canon WHERE differs",
}
"""Counts that must be 0, whatever made the tables."""


def formulations(run: TracedRun) -> dict[str, Measured]:
    """How long each formulation takes; all must find nothing."""
    return {
        "windows over blocks": _grouped(run, f"site, file_row_number // {BLOCK}", edges=True),
        "windows over sites": _grouped(run, "site", edges=False),
        "sites side by side": _side_by_side(run),
    }


def _opened(run: TracedRun) -> Any:
    import duckdb

    con = duckdb.connect()
    con.execute(f"SET threads = {os.cpu_count() or 1}")
    files = [part.path for part in run.parts]
    con.execute(
        f"CREATE VIEW rows AS SELECT * FROM read_parquet({files!r}, file_row_number = true)"
    )
    return con


def _asked(con: Any, found: dict[str, str]) -> None:
    wrong = {name: (con.execute(text).fetchone() or (1,))[0] for name, text in found.items()}
    con.close()
    assert not any(wrong.values()), wrong


def _grouped(run: TracedRun, partition: str, *, edges: bool) -> Measured:
    """Deliveries of a position in groups, those of a site in windows."""
    con = _opened(run)
    with Measured() as made:
        con.execute(
            "CREATE VIEW deliveries AS SELECT site, time, seq, source, number, digest, "
            f"file_row_number FROM rows WHERE {DELIVERIES}"
        )
        con.execute(SUBMITS)
        con.execute(
            "CREATE TEMP TABLE canon AS SELECT seq, min(time) AS time, arg_min(site, time) AS site,"
            " min(digest) AS digest, min(source) AS source, min(number) AS number, count(*) AS n, "
            "min(digest) <> max(digest) OR min(source) <> max(source) "
            "OR min(number) <> max(number) AS differs FROM deliveries GROUP BY seq"
        )
        for statement in (PAIRED, LISTS, FORCE):
            con.execute(statement)
        found = FOUND | {
            "order": f"SELECT count(*) FROM (SELECT seq - lag(seq) OVER (PARTITION BY {partition} "
            "ORDER BY file_row_number) AS step FROM deliveries) WHERE step <> 1",
            "ends": "SELECT count(*) FROM (SELECT site, min(seq) AS lo, max(seq) AS hi, "
            "count(*) AS n FROM deliveries GROUP BY site) WHERE lo <> 0 OR n <> hi + 1 "
            "OR hi <> (SELECT max(seq) FROM canon)",
            "own": "SELECT (SELECT count(*) FROM submits) - (SELECT count(*) FROM deliveries "
            "WHERE site = source)",
        }
        if edges:
            found["edges"] = (
                "SELECT count(*) FROM (SELECT lo - lag(hi) OVER (PARTITION BY site ORDER BY block)"
                f" AS step FROM (SELECT site, file_row_number // {BLOCK} AS block, "
                "arg_min(seq, file_row_number) AS lo, arg_max(seq, file_row_number) AS hi "
                "FROM deliveries GROUP BY ALL)) WHERE step <> 1"
            )
        _asked(con, found)
    return made


def _side_by_side(run: TracedRun) -> Measured:
    """Nothing is grouped or sorted: row k of every site's deliveries must be position k."""
    con = _opened(run)
    sites = range(len(run.parts))
    each = [
        f"(SELECT site, time, seq, source, number, digest FROM read_parquet('{part.path}') "
        f"WHERE {DELIVERIES}) s{i}"
        for i, part in enumerate(run.parts)
    ]
    differs = [
        f"s{i}.{name} IS DISTINCT FROM s0.{name}"
        for i in sites[1:]
        for name in ("seq", "digest", "source", "number")
    ]
    least = f"least({', '.join(f's{i}.time' for i in sites)})"
    first = " ".join(f"WHEN s{i}.time = {least} THEN s{i}.site" for i in sites)
    with Measured() as made:
        con.execute(SUBMITS)
        con.execute(
            "CREATE TEMP TABLE canon AS SELECT s0.seq, s0.seq - lag(s0.seq) OVER () AS step, "
            f"{least} AS time, CASE {first} END AS site, s0.digest, s0.source, s0.number, "
            f"{' OR '.join(differs)} AS differs FROM {' POSITIONAL JOIN '.join(each)}"
        )
        for statement in (PAIRED, LISTS, FORCE):
            con.execute(statement)
        _asked(con, FOUND | {
            "order": "SELECT count(*) FROM canon WHERE step <> 1",
            "ends": "SELECT min(seq) + (max(seq) + 1 - count(*)) FROM canon",
            "own": "SELECT (SELECT count(*) FROM submits) - (SELECT count(*) FROM canon)",
        })  # fmt: skip
    return made
