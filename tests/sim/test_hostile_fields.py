"""A member that lies in any field of its PDUs, behind the seal: nobody falls, nothing overflows.

What it says may be believed where the protocol has no way to know better; that is said in the
threat model.  But no field stops another site, or takes it beyond its limits.
"""

from __future__ import annotations

import re
from random import Random

import pytest
from msgspec import structs

from roundelay.core.errors import InvariantBroken
from roundelay.sim.swarm.fault_runner import RunSetting, run_plan
from roundelay.sim.swarm.plan import Plan
from roundelay.wire.beamon import BeamonCodec
from roundelay.wire.codec import GroupCodec
from tests.sim.hostile import HostileCodec


@pytest.mark.parametrize(
    ("protocol", "seed"),
    [
        ("token", 1), ("token", 13), ("to", 1), ("to-channel", 2), ("po", 0), ("spo", 3),
        ("spo", 7), ("grsb", 6), ("wide", 0), ("autorm", 0), ("positive-ack", 0),
    ],
)  # fmt: skip
def test_no_field_of_a_pdu_stops_a_site_or_takes_it_beyond_its_limits(
    protocol: str, seed: int
) -> None:
    plan = structs.replace(Plan.from_seed(seed, protocol), wire=True)
    codec = HostileCodec(
        BeamonCodec() if protocol == "autorm" else GroupCodec("swarm"),
        f"{protocol}/{seed}",
        liar=Random(seed).randrange(plan.sites),
    )
    try:
        outcome = run_plan(plan, RunSetting(codec=codec))  # an exception of an engine ends it
    except InvariantBroken as error:
        # The one thing that stops a site: a list that takes back what it has.  It says where.
        if re.search(r"starts at \d+, below our \d+", str(error)) is None:
            raise
        return
    assert codec.lies > 3
    assert not [breach for breach in outcome.breaches if breach.invariant == "I6"]
