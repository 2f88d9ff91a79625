"""Does another checkout behave as this one does?  The same seeds of the swarm, run by both.

    python -m tools.compare_runs OTHER [--seeds 300] [--protocols token,to,…] [--jobs 2] [--strict]

Each seed is run by the command line of each checkout with a trace, in processes of their own, with
the package of that checkout.  Compared are what the command says of the seed (committed, submitted,
virtual time, events, faults, violations), what every site was delivered, in order, and how many
PDUs of each kind were sent.  With `--strict` also every other row of the trace, notices among them.
Exits with 1 if anything differs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PROTOCOLS = (
    "token", "token/fast", "positive-ack", "to", "to/fast", "to-channel", "po", "spo", "autorm",
    "grsb", "wide",
)  # fmt: skip
"""PROTOCOL, or PROTOCOL/PROFILE."""
ASPECTS = ("outcome", "deliveries", "pdus")


def digest(table: Any) -> str:
    """A hash of all rows of a table, in order."""
    content = hashlib.sha256()
    for row in table.to_pylist():
        content.update(repr(sorted(row.items())).encode())
    return content.hexdigest()[:16]


def observe(protocol: str, seeds: list[int]) -> dict[int, dict[str, Any]]:
    """What the package that is imported here makes of these seeds.

    Everything goes through the command line and the trace file, which stay what they are when the
    code behind them is rewritten.
    """
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    from roundelay.cli.main import run

    name, _, profile = protocol.partition("/")
    seen: dict[int, dict[str, Any]] = {}
    with TemporaryDirectory() as folder:
        for seed in seeds:
            out = Path(folder) / str(seed)
            words = ["swarm", "--seeds", f"{seed}:{seed + 1}", "--protocol", name, "--jobs", "1"]
            words += ["--profile", profile] if profile else []
            status = run([*words, "--out", str(out)])
            outcome = json.loads((out / "results.json").read_text())
            rows = pq.read_table(out / "trace.parquet")
            deliveries, sends = (
                rows.filter(pc.equal(rows["event"], event)) for event in ("DELIVER", "SEND")
            )
            seen[seed] = {
                "outcome": {"status": status, **outcome},
                "deliveries": f"{len(deliveries)} {digest(deliveries)}",
                "pdus": dict(sorted(Counter(sends["kind"].to_pylist()).items())),
                "rows": f"{len(rows)} {digest(rows)}",
            }
    return seen


def observed(checkout: Path, protocol: str, seeds: list[int]) -> dict[str, dict[str, Any]]:
    """`observe` in a process of its own, with the package of that checkout."""
    words = [sys.executable, __file__, "--observe", protocol, ",".join(map(str, seeds))]
    env = os.environ | {"PYTHONPATH": str(checkout / "src")}
    done = subprocess.run(words, check=False, env=env, capture_output=True, text=True, cwd=checkout)
    if done.returncode:
        raise SystemExit(f"{checkout}, {protocol}: {done.stderr.strip()[-2000:]}")
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    if Path(answer["package"]).parents[1] != checkout / "src":
        raise SystemExit(f"{checkout}: its package was not used, but {answer['package']}")
    seeds_seen: dict[str, dict[str, Any]] = answer["seeds"]
    return seeds_seen


def differences(
    mine: dict[str, dict[str, Any]], other: dict[str, dict[str, Any]], aspects: tuple[str, ...]
) -> list[str]:
    """A line for each seed and aspect in which the two differ.

    >>> a = {"1": {"outcome": {"committed": 3}, "pdus": {"B": 3}}}
    >>> b = {"1": {"outcome": {"committed": 3}, "pdus": {"B": 4}}}
    >>> differences(a, b, ("outcome", "pdus"))
    ["seed 1, pdus: {'B': 3} here, {'B': 4} there"]
    """
    return [
        f"seed {seed}, {aspect}: {mine[seed][aspect]} here, {other[seed][aspect]} there"
        for seed in mine
        for aspect in aspects
        if mine[seed][aspect] != other[seed][aspect]
    ]


def main() -> int:
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words.add_argument("other", type=Path, help="another checkout")
    words.add_argument("--seeds", type=int, default=300, help="how many, over all protocols")
    words.add_argument("--first", type=int, default=0, help="the first of them")
    words.add_argument("--protocols", default=",".join(PROTOCOLS))
    words.add_argument("--jobs", type=int, default=2)
    words.add_argument("--strict", action="store_true", help="compare every row of the traces")
    given = words.parse_args()
    protocols = given.protocols.split(",")
    count = -(-given.seeds // len(protocols))
    seeds = list(range(given.first, given.first + count))
    aspects = (*ASPECTS, "rows") if given.strict else ASPECTS
    differing = 0
    with ThreadPoolExecutor(given.jobs) as pool:
        places = (ROOT, given.other.resolve())
        pairs = [
            (protocol, [pool.submit(observed, place, protocol, seeds) for place in places])
            for protocol in protocols
        ]
        for protocol, (mine, other) in pairs:
            lines = differences(mine.result(), other.result(), aspects)
            differing += len(lines)
            sent = sum(sum(one["pdus"].values()) for one in mine.result().values())
            delivered = sum(int(one["deliveries"].split()[0]) for one in mine.result().values())
            verdict = "the same" if not lines else f"{len(lines)} differences"
            amount = f"{count:4} seeds, {delivered:8,} deliveries, {sent:9,} PDUs"
            print(f"{protocol:12} {amount}: {verdict}")
            for line in lines[:5]:
                print(f"  {line[:400]}")
    print(f"{count * len(protocols)} seeds: {differing or 'no'} differences")
    return 1 if differing else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--observe"]:
        import io
        from contextlib import redirect_stdout

        import roundelay

        with redirect_stdout(io.StringIO()):
            result = observe(sys.argv[2], [int(seed) for seed in sys.argv[3].split(",")])
        print(json.dumps({"package": roundelay.__file__, "seeds": result}))
    else:
        sys.exit(main())
