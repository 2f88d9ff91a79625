"""`early`: messages are handed over soon, without a place, and once more when they have one."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from roundelay.core.cluster.channel import ToChannelSite
from roundelay.core.cluster.config import ClusterConfig
from roundelay.core.cluster.flush import Tail
from roundelay.core.cluster.po import PoSite
from roundelay.core.cluster.to import ToSite
from roundelay.core.engine import ACCEPTED, ACKNOWLEDGED, MS, PREACKNOWLEDGED, Delivery
from roundelay.core.errors import ConfigError
from roundelay.node.driver.roster_member import Early
from tests.core.cluster_net import Net, alone


def given(deliveries: list[Delivery], stage: str, me: int) -> list[bytes]:
    """What an application at `me` is given."""
    early, found = Early(stage, me, selective=False), []
    for one in deliveries:
        if one.stage == stage:
            assert one.seq == -1
            wanted = early.give(one)
        else:
            wanted = not early.was_given(one)
        if wanted:
            found += list(one.bundle)
    return found


@pytest.mark.parametrize("stage", [ACCEPTED, PREACKNOWLEDGED])
@pytest.mark.parametrize("kind", [PoSite, ToSite])
def test_each_message_comes_early_and_again_when_it_is_through(kind: type[Any], stage: str) -> None:
    net = Net(kind, 3, early=stage, loss=0.1, jitter_ns=3 * MS, seed=stage)
    sent = [f"{k}" for k in range(30)]
    for k, text in enumerate(sent):
        net.submit(k % 3, text)
        net.run(2 * MS)
    net.heal()
    net.settle()
    late = [[one for one in net.delivered[site] if one.stage == ACKNOWLEDGED] for site in net.group]
    for site in net.group:
        assert sorted(given(net.delivered[site], stage, site)) == sorted(map(str.encode, sent))
        assert sorted(b"".join(one.bundle.data for one in late[site])) == sorted(
            "".join(sent).encode()
        )
    if kind is ToSite:
        assert late[0] == late[1] == late[2]
        assert late[0][0].seq == 0


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("kind", [ToSite, ToChannelSite])
def test_at_any_end_of_a_cluster_each_is_given_once_and_positions_agree(
    kind: type[Any], seed: int
) -> None:
    rng = Random(f"early/{kind.__name__}/{seed}")
    stage = PREACKNOWLEDGED if kind is ToChannelSite else rng.choice([ACCEPTED, PREACKNOWLEDGED])
    net = Net(kind, 4, early=stage, loss=0.1, seed=seed, attempts=40, window=3,
              jitter_ns=0 if kind is ToChannelSite else 5 * MS)  # fmt: skip
    for k in range(20):
        net.submit(k % 4, f"{k}")
        net.run(rng.randrange(4 * MS))
    net.crash(3)
    net.run(rng.randrange(100 * MS))
    living = (0, 1, 2)
    tails: dict[int, Tail] = {}
    for site in living:
        tails[site] = net[site].tail(living)
        net.collect(site)
    after = {net[site].position_after(tails) for site in living}
    for site in living:
        net[site].flush(tails)
        net.collect(site)
    assert {net[site].position for site in living} == after
    assert len(after) == 1
    sets = []
    for site in living:
        found = given(net.delivered[site], stage, site)
        assert len(found) == len(set(found)) == net[site].position
        sets.append(set(found))
    assert sets[0] == sets[1] == sets[2]


def test_a_stage_that_is_not_early_is_refused() -> None:
    wrongs: tuple[dict[str, Any], ...] = (
        {"early": ACKNOWLEDGED},
        {"early": "x"},
        {"early": PREACKNOWLEDGED, "deliver_at": ACCEPTED},
    )
    for wrong in wrongs:
        with pytest.raises(ConfigError, match="early"):
            ClusterConfig(**wrong).check(3)
    with pytest.raises(ConfigError, match="early"):
        alone(ToChannelSite, early=ACCEPTED)
