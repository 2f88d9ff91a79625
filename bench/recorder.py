"""Recorders of live groups, at full size: what they cost, and who catches up with their help.

All members are processes of their own on this machine.

1. *away*: a member goes while 200,000 messages are said, returns while others talk on, replays
   conference 7 of one sender, then everything, and goes live.  What it has heard must be, message
   by message, what the others have.
2. *wiped*: the same for a member of a fixed roster that was killed and lost its disk (CM-R18).
3. *cost*: messages a second of a group of 4 at full load, with one of them recording and with
   none, in turns.
4. *slow*: the same with one receiver that does not keep up; and with a recorder whose disk is too
   slow: that one does slow the group, `status` shows it, and nothing is lost.
5. *memory*: of a recorder while its journal grows; and how fast one reader in another process
   replays it.

    python -m bench.recorder [--messages 200000] [--seconds 2] [--repeat 3] [--only away,cost]
                             [--json]
"""

from __future__ import annotations

import argparse
import json
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from bench.children import Child, Children, answers
from bench.live_member import BATCHES, SLOW
from bench.throughput import WARM_S, live_rate, log, some_port, span, together, verdict
from roundelay.client.recorder import RecorderClient

GOAL_COST = 0.85
GOAL_SLOW = 0.90
SIZE = 256
"""Of the messages that are said while a member is away: more of them than members remember."""
TALK_RATE = 5000.0


class Medium:
    """Where the members of one group meet."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        key = folder / "key"
        key.write_text(secrets.token_hex(32) + "\n")
        key.chmod(0o600)
        self.where = {
            "service": "resilient",
            "interface": "lo",
            "multicast": f"239.255.66.77:{some_port()}",
            "key": str(key),
            "timeout": 60.0,
        }

    def member(self, name: str, **options: object) -> Child:
        chosen = self.where | {"name": name, "dir": str(self.folder / name)} | options
        return Child("bench.recorder_member", json.dumps(chosen))


def ask(child: Child, do: str, **request: object) -> dict[str, Any]:
    child.ask(do, **request)
    return child.answer()


def alike(one: dict[str, Any], other: dict[str, Any]) -> str:
    """Empty if two members heard the same."""
    if one["wrong"] or other["wrong"]:
        return str(one["wrong"] or other["wrong"])
    for what in ("count", "hash", "chosen", "chosen_hash"):
        if one[what] != other[what]:
            return f"{what}: {one[what]} and {other[what]}"
    return ""


# -- away, and wiped -----------------------------------------------------------------------


def away(messages: int, wipe: bool) -> dict[str, Any]:
    """A member that was away catches up, and is compared with one that stayed."""
    with tempfile.TemporaryDirectory() as folder:
        medium = Medium(Path(folder))
        names = ["m0", "m1", "m2"]
        options: dict[str, object] = {"members": names} if wipe else {}
        record = {"record": True, "fsync": "interval"}
        members = [medium.member("m0", **record, **options)]
        members += [medium.member(name, **options) for name in names[1:]]
        with Children(members) as (stays, talks, goes):
            together([stays, talks, goes])
            ask(stays, "listen")
            ask(goes, "listen")
            ask(talks, "talk", count=1000, size=SIZE)
            at = ask(talks, "finish")["seq"]
            since = ask(goes, "reach", seq=at)["next"]
            if wipe:
                goes.process.kill()
                goes.process.wait()
                shutil.rmtree(Path(folder) / "m2")
                since = 0
            goes.close()
            log(f"a member is away; {messages} messages")
            start = time.monotonic()
            ask(talks, "talk", count=messages, size=SIZE)
            said_s = time.monotonic() - start
            ask(talks, "talk", count=messages, size=SIZE, rate=TALK_RATE)  # goes on beside
            start = time.monotonic()
            back = medium.member("m2", since=since, **options)
            members.append(back)
            ask(back, "ready", members=3)
            ask(back, "listen", since=since)
            position = ask(stays, "reach", seq=since)["next"]
            chosen = ask(back, "replay", since=since, until=position, chosen=True)
            whole = ask(back, "replay", since=since, until=position, chosen=False)
            ask(stays, "listen", since=position)  # that is compared by itself, below
            caught = ask(back, "reach", seq=position - 1)
            caught_s = time.monotonic() - start
            talks.close()
            end = ask(stays, "finish")["seq"]
            heard = ask(back, "reach", seq=end)
            expected = ask(stays, "replay", since=since, until=end + 1, chosen=False)
            expected_chosen = ask(stays, "replay", since=since, until=position, chosen=True)
            expected_whole = ask(stays, "replay", since=since, until=position, chosen=False)
            wrong = alike(heard, expected) or alike(whole, expected_whole)
            for what in ("chosen", "chosen_hash"):
                if chosen[what] != expected_chosen[what] or chosen[what] != whole[what]:
                    wrong = wrong or f"the chosen: {what}"
            return {
                "away_for": position - since,
                "said_s": said_s,
                "chosen": chosen["chosen"],
                "chosen_s": chosen["seconds"],
                "all": whole["count"],
                "all_s": whole["seconds"],
                "caught_up_s": caught_s,
                "caught_up_at": caught["next"],
                "heard": heard["count"],
                "wrong": wrong or heard["wrong"],
            }


# -- what it costs -------------------------------------------------------------------------


def cost(seconds: float, repeat: int) -> dict[str, Any]:
    """With a recorder and without, in turns."""
    rates: dict[str, list[float]] = {"plain": [], "recorded": []}
    cpu: dict[str, list[float]] = {"plain": [], "recorded": []}
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as two:
        media = {"plain": Medium(Path(one)), "recorded": Medium(Path(two))}
        groups = {
            kind: Children(
                medium.member(
                    f"m{number}", dir=None if number else str(medium.folder / "m0"),
                    record=kind == "recorded" and not number, fsync="interval",
                )
                for number in range(4)
            )
            for kind, medium in media.items()
        }  # fmt: skip
        with groups["plain"] as plain, groups["recorded"] as recorded:
            together(plain)
            together(recorded)
            for turn in range(repeat):
                for kind, members in (("plain", plain), ("recorded", recorded)):
                    found = live_rate(members, 64, BATCHES, seconds)
                    rates[kind].append(found["rate"])
                    cpu[kind].append(found["cpu_us"])
                    log(
                        f"{turn + 1}/{repeat} {kind}: {found['rate']:,.0f}/s, "
                        f"{found['cpu_us']:.2f} us of a processor a message and member"
                    )
            status = ask(recorded[0], "recorded")
            end = ask(recorded[1], "finish")["seq"]
            final = ask(recorded[0], "recorded", seq=end)
    return {
        "plain": median(rates["plain"]),
        "recorded": median(rates["recorded"]),
        "ratio": sum(rates["recorded"]) / sum(rates["plain"]),
        "cpu_ratio": median(cpu["recorded"]) / median(cpu["plain"]),
        "slowed": status["slowed"],
        "missing": final["missing_records"],
        "peak_mb": final["peak_mb"],
    }  # fmt: skip


def slow(seconds: float, repeat: int) -> dict[str, Any]:
    """A slow receiver, then a slow recorder."""
    rates: dict[str, list[float]] = {"all read": [], "one is slow": []}
    with tempfile.TemporaryDirectory() as folder:
        medium = Medium(Path(folder))
        members = [medium.member("m0", record=True, fsync="os", backlog_bytes=4 << 20)]
        members += [medium.member(f"m{number}", dir=None) for number in range(1, 4)]
        with Children(members) as (recorder, *others):
            together(members)
            for turn in range(repeat):
                for what, way in (("all read", BATCHES), ("one is slow", SLOW)):
                    # The last one is the slow one: `live_rate` takes the first.
                    found = live_rate([others[2], recorder, *others[:2]], 64, way, seconds)
                    rate = found["rate"]
                    rates[what].append(rate)
                    cut = ", CUT OFF" if found["overflow"] else ""
                    log(f"{turn + 1}/{repeat} {what}: {rate:,.0f}/s{cut}")
                    late = ask(others[2], "drain")["count"]
                    if way == SLOW:
                        log(f"  then it caught up with {late:,} messages")
            ask(recorder, "slow_down", bytes_a_second=4e6)
            when = span(WARM_S, 4 * seconds)
            for child in (recorder, others[1], others[2]):
                child.ask("load", size=64, way=BATCHES, **when)
            shown = ask(others[0], "slowed", seconds=WARM_S + 4 * seconds)
            loaded = answers([recorder, others[1], others[2]])
            behind = ask(recorder, "recorded")
            ask(recorder, "slow_down", bytes_a_second=0.0)
            end = ask(others[1], "finish")["seq"]
            final = ask(recorder, "recorded", seq=end)
            return {
                "all read": median(rates["all read"]),
                "one is slow": median(rates["one is slow"]),
                "ratio": sum(rates["one is slow"]) / sum(rates["all read"]),
                "overloaded": min(one["count"] / one["seconds"] for one in loaded),
                "slowed": behind["slowed"],
                "status_share": shown["share"],
                "backlog_mb": behind["backlog_bytes"] / 1e6,
                "recorded": final["end"],
                "missing": final["missing_records"],
                "lost": end + 1 - final["end"],
            }


def memory(seconds: float) -> dict[str, Any]:
    """A journal that grows, and one reader."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        medium = Medium(Path(folder))
        with Children(
            [medium.member("m0", record=True, fsync="os"), medium.member("m1", dir=None)]
        ) as (recorder, other):
            together([recorder, other])
            for _ in range(4):
                ask(recorder, "peak_anew")
                live_rate([recorder, other], 64, BATCHES, 2 * seconds)
                end = ask(other, "finish")["seq"]
                told = ask(recorder, "recorded", seq=end)
                rows.append(
                    {key: told[key] for key in ("end", "bytes", "segments", "peak_mb", "now_mb")}
                )
                log(
                    f"{told['end']:,} messages, {told['bytes'] >> 20} MiB: {told['peak_mb']:.0f} MB"
                )
            where = ask(recorder, "serve")["where"]
            with RecorderClient(where, "token:bench") as client:
                status = client.status()
                start = time.monotonic()
                count = sum(
                    run.records
                    for block in client.read_blocks(status.first, status.next, blocks=8)
                    for run in block
                )
                took = time.monotonic() - start
    return {"rows": rows, "replayed": count, "replay_rate": count / took}


# -- all of it -----------------------------------------------------------------------------


def show(name: str, found: dict[str, Any]) -> None:
    if name in ("away", "wiped"):
        good = not found["wrong"]
        print(f"{name}: {'exactly the right messages' if good else 'WRONG: ' + found['wrong']}")
        print(f"  missed {found['away_for']:,}, then heard {found['heard']:,} in all")
        print(f"  conference 7 of m1: {found['chosen']:,} in {found['chosen_s']:.2f} s")
        print(f"  everything: {found['all']:,} in {found['all_s']:.2f} s")
        print(f"  live again after {found['caught_up_s']:.2f} s from its start")
    elif name == "cost":
        told = verdict(found["ratio"], f"{GOAL_COST} or more", found["ratio"] >= GOAL_COST)
        print(f"{'a group of 4 that is recorded, of one that is not':52}{told}")
        print(f"  processor time a message: {found['cpu_ratio']:.2f} of that without")
        print(f"  {found['recorded']:,.0f} and {found['plain']:,.0f} messages/s; missing in the "
              f"journal {found['missing']}, recorder slow {found['slowed']} times")  # fmt: skip
    elif name == "slow":
        told = verdict(found["ratio"], f"{GOAL_SLOW} or more", found["ratio"] >= GOAL_SLOW)
        print(f"{'a group with a slow receiver, of one without':52}{told}")
        print(f"  {found['one is slow']:,.0f} and {found['all read']:,.0f} messages/s")
        print(f"  a recorder that writes 4 MB/s: {found['overloaded']:,.0f} messages/s; slow "
              f"{found['slowed']} times, shown by status for {found['status_share']:.0%} of the "
              f"time, {found['backlog_mb']:.0f} MB behind at the end of it")  # fmt: skip
        print(f"  recorded in the end {found['recorded']:,}, missing {found['missing']}, lost "
              f"{found['lost']}")  # fmt: skip
    else:
        for row in found["rows"]:
            print(f"{row['end']:14,} messages, {row['bytes'] / 1e6:8.0f} MB of journal: "
                  f"{row['peak_mb']:6.0f} MB at most, {row['now_mb']:6.0f} MB now")  # fmt: skip
        print(f"replay to one reader: {found['replayed']:,} messages, "
              f"{found['replay_rate']:,.0f} messages/s")  # fmt: skip


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.recorder",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--messages", type=int, default=200_000, help="said while one is away")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--only", default="", help="names with commas between them")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "away": lambda: away(options.messages, wipe=False),
        "wiped": lambda: away(options.messages, wipe=True),
        "cost": lambda: cost(options.seconds, options.repeat),
        "slow": lambda: slow(options.seconds, options.repeat),
        "memory": lambda: memory(options.seconds),
    }
    wanted = options.only.split(",") if options.only else list(parts)
    found = {}
    for name in wanted:
        log(name)
        found[name] = parts[name]()
        if not options.json:
            show(name, found[name])
    if options.json:
        print(json.dumps(found, indent=1))
    if any(one.get("wrong") or one.get("lost") or one.get("missing") for one in found.values()):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
