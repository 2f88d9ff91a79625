"""How fast the simulator is, beside what it could be at best.

Prints, in one run, events per second of

- a bare `heapq` loop: pop an entry like the simulator's, call a trivial function, push the next;
- SimPy on a trivial broadcast: N processes, each message put into the store of every other;
- the token protocol at N = 10 and N = 30 with 5 % loss: every protocol step, all checkers off and
  on, the trace hashed or not;

and the memory of a long run.  An event is one arrival of a PDU at one site, one wake-up or one
submission; in the bare loop one pop, in SimPy one message taken out of a store.  Seconds are those
of the processor, so that other programs on the machine disturb less.

    python -m bench.simulator [--repeat 5] [--messages 1000000] [--skip-memory] [--json]
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from heapq import heappop, heappush
from random import Random
from statistics import median
from typing import Any

from roundelay.core.engine import SECOND
from roundelay.core.token.config import TokenConfig
from roundelay.core.token.site import TokenSite
from roundelay.core.token.stable import Stable
from roundelay.runs.measured import Meter
from roundelay.sim.kernel.load import Poisson
from roundelay.sim.kernel.world import World
from roundelay.sim.network.links import Lossy
from roundelay.sim.network.media import Bus
from roundelay.trace.checkers.checkers import Checker
from roundelay.trace.recorder import Recorder

HOLD_NS = 50_000_000
GOAL = 0.15


def bare_loop(events: int = 1_000_000, pending: int = 64) -> float:
    """Events per second of a loop that does nothing else.

    `pending` entries wait at any time, about as many as in a simulation of that size; an entry is
    a tuple of seven, compared by time and then by a counter.
    """

    def nothing(a: object, b: object, c: object, d: object) -> None:
        pass

    rng = Random(1)
    gaps = [rng.randrange(1, 1000) for _ in range(4096)]
    heap: list[tuple[int, int, Callable[..., None], object, object, object, object]] = []
    for i in range(pending):
        heappush(heap, (gaps[i], i, nothing, None, None, None, None))
    tick = pending
    start = time.process_time()
    for i in range(events):
        entry = heappop(heap)
        entry[2](entry[3], entry[4], entry[5], entry[6])
        tick += 1
        heappush(heap, (entry[0] + gaps[i & 4095], tick, nothing, None, None, None, None))
    return events / (time.process_time() - start)


def simpy_broadcast(sites: int, messages: int) -> float:
    """Events per second of SimPy: one sender at a time, everybody else takes each message."""
    import simpy

    environment: Any = simpy.Environment()
    stores = [simpy.Store(environment) for _ in range(sites)]
    taken = 0

    def receiver(store: Any) -> Any:
        nonlocal taken
        while True:
            yield store.get()
            taken += 1

    def sender() -> Any:
        for i in range(messages):
            yield environment.timeout(1)
            source = i % sites
            for site, store in enumerate(stores):
                if site != source:
                    yield store.put(i)

    for store in stores:
        environment.process(receiver(store))
    environment.process(sender())
    start = time.process_time()
    environment.run()
    return taken / (time.process_time() - start)


def token(
    sites: int, messages: int, *, loss: float = 0.05, hashed: bool = False, checked: bool = False
) -> float:
    """Events per second of the token protocol under τ = 10, the busy end of the paper's range."""
    config = TokenConfig.paper(HOLD_NS, resilience=1)
    group = tuple(range(sites))
    observers: list[object] = []
    if checked:
        observers = [Checker(group), Meter(sites, messages)]
    world = World(
        sites,
        lambda site, stable, boot, now, rng: TokenSite(site, group, config, rng, now, stable),
        seed=1,
        medium=Bus(HOLD_NS // 1000),
        links=Lossy(loss),
        make_stable=Stable,
        recorder=Recorder() if hashed else None,
        observers=observers,
        check_invariants=False,
    )
    Poisson(messages, 10.0 * SECOND / HOLD_NS).start(world)
    start = time.process_time()
    world.run(1 << 60)
    return world.events / (time.process_time() - start)


def memory(messages: int) -> dict[str, Any]:
    """Run `messages` messages, checked and hashed, in a process of its own; its peak memory."""
    code = (
        "import json, resource, time\n"
        "from roundelay.runs.simulate import SimulateParams, simulate\n"
        "start = time.perf_counter()\n"
        f"done = simulate(SimulateParams(sites=5, loss=0.05, messages={messages}, tau=10.0))\n"
        "peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "print(json.dumps({'messages': done['messages'], 'events': done['events'],\n"
        "  'delivered_everywhere': done['delivered_everywhere'],\n"
        "  'violations': len(done['violations']), 'peak_mb': peak / 1024,\n"
        "  'seconds': time.perf_counter() - start}))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def measured(repeat: int, quick: bool) -> dict[str, float]:
    """The median of `repeat` rounds; each round measures everything once, so that a slow minute
    of the machine hits all alike."""
    less = 10 if quick else 1
    cases: dict[str, Callable[[], float]] = {
        "bare heapq loop": lambda: bare_loop(1_000_000 // less),
        "SimPy broadcast, N = 10": lambda: simpy_broadcast(10, 10_000 // less),
        "SimPy broadcast, N = 30": lambda: simpy_broadcast(30, 3_000 // less),
        "token, N = 10": lambda: token(10, 10_000 // less),
        "token, N = 30": lambda: token(30, 2_000 // less),
        "token, N = 10, hashed and checked": lambda: token(
            10, 10_000 // less, hashed=True, checked=True
        ),
        "token, N = 30, hashed and checked": lambda: token(
            30, 2_000 // less, hashed=True, checked=True
        ),
    }
    rounds: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(repeat):
        for name, case in cases.items():
            rounds[name].append(case())
    return {name: median(values) for name, values in rounds.items()}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.simulator",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--messages", type=int, default=1_000_000, help="of the long run")
    parser.add_argument("--skip-memory", action="store_true")
    parser.add_argument("--quick", action="store_true", help="a tenth of the events")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)

    print("measuring; about half a minute, and some minutes for the long run", file=sys.stderr)
    speeds = measured(options.repeat, options.quick)
    bare = speeds["bare heapq loop"]
    ratios = {name: speed / bare for name, speed in speeds.items()}
    long_run = None if options.skip_memory else memory(options.messages)
    if options.json:
        print(json.dumps({"events_per_s": speeds, "ratio": ratios, "long_run": long_run}, indent=1))
        return
    print(f"{platform.python_implementation()} {platform.python_version()}, "
          f"median of {options.repeat} rounds\n")  # fmt: skip
    print(f"{'':36}{'events/s':>12}{'of the bare loop':>18}")
    for name, speed in speeds.items():
        print(f"{name:36}{speed:12,.0f}{ratios[name]:18.3f}")
    worst = min(ratios["token, N = 10"], ratios["token, N = 30"])
    met = "met" if worst >= GOAL else "MISSED"
    print(f"\ngoal: the token protocol at {GOAL} of the bare loop or more: {met} ({worst:.3f})")
    if long_run is not None:
        print(
            f"\n{long_run['messages']:,} messages at 5 sites, 5 % loss, hashed and checked: "
            f"{long_run['peak_mb']:.0f} MB at the peak, {long_run['seconds']:.0f} s, "
            f"{long_run['events']:,} events"
        )
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"this process itself: {own:.0f} MB")


if __name__ == "__main__":
    main()
