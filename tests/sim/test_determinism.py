"""One seed, one run: in this process, in another, with any hash seed."""

from __future__ import annotations

import os
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import pytest

from roundelay.sim.swarm.fault_runner import RunSetting, run_plan
from roundelay.sim.swarm.plan import Plan
from tests.sim.gossip import Rows

ROOT = Path(__file__).parents[2]
PROGRAM = """
import sys
from tests.sim.test_determinism import fingerprint
print(fingerprint(int(sys.argv[1]), sys.argv[2]))
"""


def fingerprint(seed: int, protocol: str) -> str:
    """A hash of everything that happened in the run of a plan."""
    rows = Rows()
    outcome = run_plan(
        Plan.from_seed(seed, protocol), RunSetting(recorder=rows, trace_receives=True)
    )
    return sha256(repr((rows.kept, outcome)).encode()).hexdigest()


@pytest.mark.parametrize(
    "seed, protocol",
    [(3, "token"), (11, "token"), (5, "positive-ack"), (2, "spo"), (1, "to-channel")],
)
def test_other_processes_with_other_hash_seeds_do_the_same(seed: int, protocol: str) -> None:
    prints = {fingerprint(seed, protocol)}
    for hash_seed in ("0", "1", "4242"):
        environment = os.environ | {
            "PYTHONHASHSEED": hash_seed,
            "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]),
        }
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(seed), protocol],
            env=environment, capture_output=True, text=True, check=True,
        )  # fmt: skip
        prints.add(done.stdout.strip())
    assert len(prints) == 1


def test_another_seed_does_something_else() -> None:
    assert fingerprint(3, "token") != fingerprint(4, "token")
