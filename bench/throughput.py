"""How fast a live group is, beside what raw UDP in Python can do.

Four processes on this machine are the members of one group (service `resilient`, L = 1, found by
discovery over loopback multicast); each of them also sends, as much as the group takes.  In the
same run, in turns: raw UDP multicast of the same messages in datagrams of the same size, from one
process to four, which cut them into messages.  Sent without a pause (`raw`), many raw datagrams
are lost for want of time to receive them; so a pace is looked for, too, at which the slowest
receiver gets most (`paced`).  Every figure is the median of the repetitions.

Prints messages a second at the slowest member, read in three ways (`batches`: whole; `cut`: one
`bytes` object per message, which is what the raw receivers make; `objects`: `async for`); latency
from `broadcast` to its receipt at 1,000 messages a second in all, beside a raw round trip; what an
idle node costs; and the memory of a member at full load, and with an application that does not
keep up.

    python -m bench.throughput [--seconds 2] [--repeat 3] [--idle 10] [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import secrets
import sys
import tempfile
import time
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from bench.children import Child, Children, answers
from bench.live_member import BATCHES, CUT, OBJECTS, SLOW
from bench.raw_udp import SLICES, STRUCT

MEMBERS = 4
SIZES = (64, 1024)
DATAGRAM = 65_000
"""Bytes of a datagram of a full bundle on loopback, about."""
LATENCY_RATE = 1000.0
WARM_S = 1.0
RAW_WARM_S = 0.4
SEARCH_S = 0.5
SEARCH_STEP = 1.4
CASES = (("sealed", BATCHES), ("sealed", CUT), ("sealed", OBJECTS), ("insecure", CUT))
RAW_CASES = ((SLICES, False), (SLICES, True), (STRUCT, True))
"""How messages are cut, and whether the sender keeps a pace."""
GOAL_RATIO = 0.4
GOAL_TRIPS = 8.0
GOAL_IDLE_PERCENT = 1.0
GOAL_MB = 150.0


def log(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def span(warm: float, seconds: float) -> dict[str, int]:
    """When to count: from `warm` seconds from now on."""
    begin = time.monotonic_ns() + int(warm * 1e9)
    return {"begin_ns": begin, "until_ns": begin + int(seconds * 1e9)}


def some_port() -> int:
    return 20_000 + secrets.randbelow(12_000)  # below those the kernel gives away


# -- raw UDP -------------------------------------------------------------------------------


def raw_rate(
    children: list[Child], size: int, cut: str, seconds: float, pace: float
) -> dict[str, float]:
    """`pace`: datagrams a second, 0 for as many as possible."""
    sender, receivers = children[0], children[1:]
    port = some_port()
    when = span(RAW_WARM_S, seconds)
    for child in receivers:
        child.ask("receive", port=port, cut=cut, **when)
    time.sleep(RAW_WARM_S / 2)
    until = when["until_ns"]
    sender.ask("send", port=port, size=size, total=DATAGRAM, rate=pace, until_ns=until)
    sent = sender.answer()
    found = answers(receivers)
    cpu = sum(one["cpu_s"] for one in found) + sent["cpu_s"]
    return {
        "rate": min(one["count"] for one in found) / seconds,
        "datagrams_in_s": min(one["datagrams"] for one in found) / seconds,
        "cpu_us": 1e6 * cpu / max(1, sum(one["count"] for one in found)),
    }


def best_pace(children: list[Child], size: int, cut: str) -> float:
    """Datagrams a second at which the slowest receiver gets most."""
    best = pace = raw_rate(children, size, cut, SEARCH_S, 0.0)["datagrams_in_s"]
    while True:
        tried = best * SEARCH_STEP
        got = raw_rate(children, size, cut, SEARCH_S, tried)["datagrams_in_s"]
        if got <= best * 1.02:
            return pace
        best, pace = got, tried


def raw_trips(children: list[Child], seconds: float) -> list[int]:
    port = some_port()
    children[0].ask("echo", port=port)
    time.sleep(0.2)
    children[1].ask("ping", port=port, size=64, rate=LATENCY_RATE, seconds=seconds)
    times: list[int] = children[1].answer()["times"]
    children[0].answer()
    return times


# -- live groups ---------------------------------------------------------------------------


def group_of(count: int, folder: Path, **options: object) -> Children:
    """The members of a group of their own, not yet together."""
    key = folder / "key"
    if not key.exists():
        key.write_text(secrets.token_hex(32) + "\n")
        key.chmod(0o600)
    chosen = {
        "service": "resilient",
        "resilience": 1,
        "interface": "lo",
        "multicast": f"239.255.66.77:{some_port()}",
        "key": str(key),
    }
    return Children(
        Child("bench.live_member", json.dumps(chosen | options | {"name": f"m{number}"}))
        for number in range(count)
    )


def together(members: list[Child]) -> None:
    """Wait until all of them are in one view."""
    for child in members:
        child.ask("ready", members=len(members))
    answers(members)


def live_rate(members: list[Child], size: int, way: str, seconds: float) -> dict[str, Any]:
    when = span(WARM_S, seconds)
    for number, child in enumerate(members):
        own = BATCHES if way == SLOW and number else way  # only the first one is slow
        child.ask("load", size=size, way=own, **when)
    found = answers(members)
    fast = found[1:] if way == SLOW else found
    count, batches = sum(one["count"] for one in fast), sum(one["batches"] for one in fast)
    return {
        "rate": min(one["count"] / one["seconds"] for one in fast),
        "cpu_us": 1e6 * sum(one["cpu_s"] for one in fast) / max(1, count),
        "cpu_share": median(one["cpu_s"] / one["seconds"] for one in fast),
        "messages_a_batch": count / batches if batches else 0.0,
        "datagrams_in_s": median(one["received"] / one["seconds"] for one in fast),
        "peak_mb": max(one["peak_mb"] for one in found),
        "slow_peak_mb": found[0]["peak_mb"],
        "overflow": found[0]["overflow"],
    }


def live_trips(members: list[Child], seconds: float) -> list[int]:
    for child in members:
        child.ask("latency", size=64, rate=LATENCY_RATE / len(members), seconds=seconds)
    return [value for one in answers(members) for value in one["times"]]


def idle(members: list[Child], seconds: float) -> float:
    """Per cent of a processor that the busiest member takes."""
    time.sleep(1.0)
    before = {child: child.cpu_s() for child in members}
    time.sleep(seconds)
    return max(100 * (child.cpu_s() - was) / seconds for child, was in before.items())


# -- all of it -----------------------------------------------------------------------------


def p50_p99(times: list[int]) -> tuple[float, float]:
    """In milliseconds."""
    cuts = quantiles(times, n=100)
    return cuts[49] / 1e6, cuts[98] / 1e6


def middle(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """The run with the median rate."""
    return sorted(runs, key=lambda one: float(one["rate"]))[(len(runs) - 1) // 2]


def measured(seconds: float, repeat: int, idle_s: float) -> dict[str, Any]:
    """Everything, in turns."""
    runs: dict[str, list[dict[str, Any]]] = {}
    trips: dict[str, list[float]] = {}
    paces: dict[tuple[int, str], float] = {}
    slow = {}

    def note(name: str, one: dict[str, Any]) -> None:
        runs.setdefault(name, []).append(one)
        log(f"{len(runs[name])}/{repeat} {name}: {one['rate']:,.0f}/s")

    with (
        tempfile.TemporaryDirectory() as folder,
        group_of(MEMBERS, Path(folder)) as sealed,
        group_of(MEMBERS, Path(folder), insecure=True) as insecure,
        Children(Child("bench.raw_udp") for _ in range(MEMBERS + 1)) as bare,
    ):
        together(sealed)
        together(insecure)
        log(f"two groups of {MEMBERS} members are open; {idle_s:.0f} s of silence")
        idle_percent = idle(sealed, idle_s)
        for size in SIZES:
            for cut in (SLICES, STRUCT):
                paces[size, cut] = best_pace(bare, size, cut)
        for _ in range(repeat):
            for size in SIZES:
                for cut, paced in RAW_CASES:
                    pace = paces[size, cut] if paced else 0.0
                    one = raw_rate(bare, size, cut, seconds, pace)
                    note(raw_name(size, cut, paced), one)
                for medium, way in CASES:
                    members = sealed if medium == "sealed" else insecure
                    note(f"{size} B, {medium}, {way}", live_rate(members, size, way, seconds))
            for name, times in (
                ("ours", live_trips(sealed, seconds)),
                ("raw", raw_trips(bare, seconds)),
            ):
                p50, p99 = p50_p99(times)
                trips.setdefault(f"{name}_p50", []).append(p50)
                trips.setdefault(f"{name}_p99", []).append(p99)
                log(f"latency, {name}: p50 {p50:.3f} ms, p99 {p99:.3f} ms")
        for size, members in ((64, sealed), (1024, insecure)):
            members[0].ask("peak_anew")
            members[0].answer()
            slow[size] = live_rate(members, size, SLOW, 2 * seconds)
    return {
        "rates": {name: middle(each) for name, each in runs.items()},
        "latency_ms": {name: median(each) for name, each in trips.items()},
        "idle_percent": idle_percent,
        "peak_mb": max(one.get("peak_mb", 0.0) for each in runs.values() for one in each),
        "slow": slow,
    }


def summary(found: dict[str, Any]) -> dict[str, float]:
    """What the goals are about."""
    rates, times = found["rates"], found["latency_ms"]
    ratios = {}
    for size in SIZES:
        ours = rates[f"{size} B, sealed, {CUT}"]["rate"]
        ratios[f"of_raw_{size}"] = ours / rates[raw_name(size)]["rate"]
        ratios[f"of_paced_{size}"] = ours / rates[raw_name(size, paced=True)]["rate"]
    slowest = max(one["slow_peak_mb"] for one in found["slow"].values())
    return ratios | {
        "round_trips_p50": times["ours_p50"] / times["raw_p50"],
        "idle_percent": found["idle_percent"],
        "peak_mb": max(found["peak_mb"], slowest),
    }


def raw_name(size: int, cut: str = SLICES, paced: bool = False) -> str:
    return f"{size} B, raw, {cut}{', paced' if paced else ''}"


def verdict(value: float, goal: str, met: bool) -> str:
    return f"{value:10.2f}   goal {goal}: {'met' if met else 'MISSED'}"


def table(found: dict[str, Any]) -> None:
    rates, times, short = found["rates"], found["latency_ms"], summary(found)
    for size in SIZES:
        ratio, of_paced = short[f"of_raw_{size}"], short[f"of_paced_{size}"]
        told = verdict(ratio, f"{GOAL_RATIO} or more", ratio >= GOAL_RATIO)
        print(
            f"{f'of raw, {size} B, sealed, cut':38}{told} ({of_paced:.2f} of raw at its best pace)"
        )
    ratio, percent, mb = short["round_trips_p50"], short["idle_percent"], short["peak_mb"]
    told = verdict(ratio, f"{GOAL_TRIPS:.0f} or less", ratio <= GOAL_TRIPS)
    print(f"{'p50 latency in raw round trips':38}{told}")
    told = verdict(percent, "1 or less", percent <= GOAL_IDLE_PERCENT)
    print(f"{'idle node, % of a processor':38}{told}")
    told = verdict(mb, f"{GOAL_MB:.0f} or less", mb <= GOAL_MB)
    print(f"{'memory of a member, MB, at most':38}{told}")

    print(
        f"\n{'':28}{'of raw':>8}{'of paced':>10}{'messages/s':>12}{'a batch':>9}{'datagrams':>11}"
        f"{'CPU us':>9}"
    )
    for size in SIZES:
        raw, paced = (rates[raw_name(size, paced=one)]["rate"] for one in (False, True))
        for name, one in rates.items():
            if name.startswith(f"{size} B"):
                full = one.get("messages_a_batch", 0.0)
                batch = f"{full:9.0f}" if full else f"{'':9}"
                print(
                    f"{name:28}{one['rate'] / raw:8.2f}{one['rate'] / paced:10.2f}"
                    f"{one['rate']:12,.0f}{batch}{one['datagrams_in_s']:11,.0f}{one['cpu_us']:9.2f}"
                )
    print(
        "messages and datagrams a second at the slowest member; processor time a message and "
        "member\n"
    )
    print(f"{'latency, ms':34}{'p50':>8}{'p99':>8}")
    print(f"{'broadcast to receipt':34}{times['ours_p50']:8.3f}{times['ours_p99']:8.3f}")
    print(f"{'raw UDP round trip':34}{times['raw_p50']:8.3f}{times['raw_p99']:8.3f}\n")
    print(f"{'memory of a member, MB':34}{'peak':>8}")
    print(f"{'at full load':34}{found['peak_mb']:8.0f}")
    for size, one in found["slow"].items():
        what = "cut off when its queue was full" if one["overflow"] else "keeps up"
        print(
            f"{f'with a slow reader, {size} B':34}{one['slow_peak_mb']:8.0f}   ({what}; the "
            f"others meanwhile {one['rate']:,.0f} messages/s)"
        )


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.throughput",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--idle", type=float, default=10.0, help="seconds to watch an idle group")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    log("measuring; some minutes")
    found = measured(options.seconds, options.repeat, options.idle)
    if options.json:
        print(json.dumps({"summary": summary(found)} | found, indent=1))
        return
    print(
        f"{platform.python_implementation()} {platform.python_version()}, {os.cpu_count()} "
        f"processors, {MEMBERS} members, median of {options.repeat}\n"
    )
    table(found)


if __name__ == "__main__":
    main()
