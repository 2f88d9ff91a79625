"""What it costs to encode and to decode a PDU, for every type.

    python -m bench.codec [--against CHECKOUT] [--json]

Prints microseconds for the examples of docs/wire.md, and for large bundles.  With `--against`, also
those of another checkout and the ratio to them; the two take turns in processes of their own, and
of each figure the least counts.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from time import process_time
from timeit import Timer
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
ROUNDS = 5
Costs = dict[str, list[float]]
"""By PDU: µs to encode it, to decode it, and to decode it without a look at its checksum."""


def cost(act: Any, seconds: float) -> float:
    """Microseconds of the processor for one call, the least of several attempts."""
    timer = Timer(act, timer=process_time)
    calls = max(1, int(seconds / 5 / max(timer.timeit(200) / 200, 1e-7)))
    return min(timer.repeat(5, calls)) / calls * 1e6


def measure(seconds: float) -> Costs:
    """The costs of the package that is imported here, which may be an older one."""
    from roundelay.core.bundle import Bundle
    from roundelay.core.cluster.pdu import ToDt
    from roundelay.core.token.pdu import B
    from roundelay.wire.codec import decode, encode
    from tests.wire.examples import EXAMPLES

    pdus = {type(pdu).__name__: pdu for pdu in EXAMPLES}
    pdus["B, one message"] = B((7, 2), 1, 41, Bundle.of(bytes(64)))
    full = Bundle.of(*[bytes(64)] * 900)
    pdus["B, 900 messages"] = B((7, 2), 1, 41, full)
    pdus["ToDt, 900 messages"] = ToDt(1, 2, 7, (5, 6, 7, 8), 500, full)
    costs: Costs = {}
    for name, pdu in pdus.items():
        act = partial(encode, pdu, sender=2, group_id=7, chan_seq=5, life=9)
        data = act()
        calls = (act, partial(decode, data), partial(decode, data, True))
        costs[name] = [cost(call, seconds) for call in calls]
    return costs


def measured(checkout: Path, seconds: float) -> Costs:
    command = [sys.executable, __file__, "--child", "--seconds", str(seconds)]
    path = os.pathsep.join([str(checkout / "src"), str(checkout)])
    environment = os.environ | {"PYTHONPATH": path}
    done = subprocess.run(
        command, cwd=checkout, env=environment, stdout=subprocess.PIPE, check=True
    )
    costs: Costs = json.loads(done.stdout)
    return costs


def least(rounds: list[Costs]) -> Costs:
    return {
        name: [min(column) for column in zip(*(costs[name] for costs in rounds), strict=True)]
        for name in rounds[0]
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.codec", description=__doc__)
    parser.add_argument("--against", type=Path, help="another checkout")
    parser.add_argument("--seconds", type=float, default=0.05, help="of each measurement")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(measure(options.seconds)))
        return
    checkouts = [ROOT] if options.against is None else [ROOT, options.against.resolve()]
    rounds: list[list[Costs]] = [[] for _ in checkouts]
    for _ in range(ROUNDS):
        for of_checkout, checkout in zip(rounds, checkouts, strict=True):
            of_checkout.append(measured(checkout, options.seconds))
    found = [least(of_checkout) for of_checkout in rounds]
    if options.json:
        print(json.dumps(found, indent=1))
        return
    print(f"{'µs':20}" + "".join(f"{name:>24}" for name in ("encode", "decode", "decode intact")))
    for name, costs in found[0].items():
        print(f"{name:20}" + "".join(_cell(found, name, at) for at in range(len(costs))))


def _cell(found: list[Costs], name: str, at: int) -> str:
    own = found[0][name][at]
    if len(found) == 1:
        return f"{own:24.2f}"
    other = found[1][name][at]
    return f"{own:10.2f} /{other:6.2f} {own / other:4.2f}×"


if __name__ == "__main__":
    main()
