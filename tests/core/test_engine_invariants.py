"""The invariants of the other engines notice what breaks them: each is broken here by hand.

Those of the token engine are in `test_token_invariants.py`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from roundelay.core.bundle import Bundle
from roundelay.core.cluster.channel import ToChannelSite
from roundelay.core.cluster.config import ClusterConfig
from roundelay.core.cluster.pdu import Dt
from roundelay.core.cluster.po import PoSite
from roundelay.core.cluster.spo import SpoSite
from roundelay.core.cluster.to import ToSite
from roundelay.core.engine import NEVER
from roundelay.core.errors import InvariantBroken
from roundelay.core.positive_ack import PositiveAckConfig, PositiveAckSite
from tests.core import beamons
from tests.core.cluster_net import Net
from tests.core.test_positive_ack import b

Break = Callable[[Any], object]
FAR = 1 << 20


def put(name: str, value: Any) -> Break:
    """Set an attribute to a value, or to what a function makes of the engine."""
    return lambda engine: setattr(engine, name, value(engine) if callable(value) else value)


def refuses(engine: Any, broken: Break) -> None:
    engine.check_invariants()
    broken(engine)
    with pytest.raises(InvariantBroken):
        engine.check_invariants()


# -- clusters ---------------------------------------------------------------------------------


def member(kind: type[Any]) -> Any:
    """A member of a cluster that has delivered some messages, and has some under way."""
    net = Net(kind, 3, window=4)
    for number in range(3):
        net.submit(number, f"message {number}")
    net.settle()
    for number in range(6):
        net.submit(number % 3, f"message {number + 3}")
    net.run_until(lambda: net[0].waiting_delivery > 1)
    return net[0]


def early(number: int) -> Dt:
    return Dt(0, 1, number, (1, 1, 1), 0, Bundle.of(b"x"))


OF_ALL_CLUSTERS: dict[str, Break] = {
    "more is accepted than was expected": lambda site: site.treq.__setitem__(1, FAR),
    "somebody has what does not exist": lambda site: site.al[1].__setitem__(2, FAR),
    "known to be known, and not to be there": lambda site: site.pal[1].__setitem__(2, FAR),
    "has accepted more of its own than it sent": put("seq", 1),
    "keeps what it has not sent": lambda site: site.sl.update({FAR: None}),
    "under way without being sent": lambda site: site.unaccepted.update({FAR: 0}),
    "more under way than the window": lambda site: (
        put("seq", FAR)(site),
        site.unaccepted.update(dict.fromkeys(range(FAR - 9, FAR), 0)),
    ),
    "repeated, and not kept": lambda site: site.resent.update({FAR: 0}),
    "a timer is due before the deadline": put("deadline", NEVER + 1),
    "agrees on an epoch of the past": put("rst", 0),
    "agrees without its own vector": put("rst", 7),
    "a debt without a timer": lambda site: (
        site.debts.update({(1, 1, 1): 7}), put("ack_due", NEVER)(site),
    ),
    "a timer without a debt": lambda site: (site.debts.clear(), put("ack_due", FAR << 20)(site)),
    "a gap is due before its timer": lambda site: site.gaps.update({1: [0, 0, 5]}),
    "more waits than is in the logs": put("waiting_delivery", FAR),
    "less waits than is in the logs": put("waiting_delivery", -1),
}  # fmt: skip

OF_MESHES: dict[str, Break] = {
    "partial numbers above total ones": lambda site: (
        put("preq", [*site.treq])(site), site.preq.__setitem__(1, FAR)
    ),
    "an early PDU is not early": lambda site: site.blocked[1].update({1: early(1)}),
    "the log has what is not accepted": lambda site: site.rrl[1].append(early(FAR)),
    "pre-acknowledged behind what is not": lambda site: (
        site.rrl[1].appendleft(early(1)), site.prl[1].append(early(2)),
    ),
}  # fmt: skip

OF_KEYS: dict[str, Break] = {
    "accepted without a key": lambda site: site.keys.pop(),
    "the first could be delivered": lambda site: site.acknowledged.update({site.keys[0][1:]: None}),
}

OF_ONE_CHANNEL: dict[str, Break] = {
    "the channel's log has what is not accepted": lambda site: site.received.append(early(FAR)),
    "ready before it is accepted": lambda site: site.ready.append(early(FAR)),
    "returned to its sender before it was sent": lambda site: site.returned.__setitem__(1, FAR),
}

CLUSTER_CASES = [
    (kind, name, breaks[name])
    for kind, tables in {
        PoSite: (OF_ALL_CLUSTERS, OF_MESHES),
        SpoSite: (OF_ALL_CLUSTERS, OF_MESHES),
        ToSite: (OF_ALL_CLUSTERS, OF_MESHES, OF_KEYS),
        ToChannelSite: (OF_ALL_CLUSTERS, OF_ONE_CHANNEL),
    }.items()
    for breaks in tables
    for name in breaks
]


@pytest.mark.parametrize(
    "kind, broken",
    [(kind, broken) for kind, _, broken in CLUSTER_CASES],
    ids=[f"{kind.__name__}: {name}" for kind, name, _ in CLUSTER_CASES],
)
def test_a_broken_invariant_of_a_cluster_is_noticed(kind: type[Any], broken: Break) -> None:
    refuses(member(kind), broken)


def test_a_member_that_agrees_on_an_epoch_says_so_again_and_again() -> None:
    site = PoSite(0, (0, 1, 2), ClusterConfig(boot="dynamic"), Random(0))
    refuses(site, put("rst_due", NEVER))


# -- positive acknowledgement -----------------------------------------------------------------


def source() -> PositiveAckSite:
    """Has three numbers under way, one message waiting, and two of another source above a gap."""
    site = PositiveAckSite(0, (0, 1, 2), PositiveAckConfig(pipeline=3), Random(0))
    for _ in range(4):
        site.submit(Bundle.of(b"x"), 0)
    site.receive(b(1, 5), 1, 1)
    site.receive(b(1, 7, low=5), 1, 1)
    return site


OF_POSITIVE_ACK: dict[str, Break] = {
    "used without being reserved": put("reserved", 0),
    "the lowest number is above the next": put("low", FAR),
    "more under way than the pipeline": put("low", -5),
    "another number is the lowest": lambda site: site.outstanding.pop(0),
    "a message waits without need": lambda site: (site.outstanding.clear(), put("low", 3)(site)),
    "suspects itself": lambda site: site.suspected.add(0),
    "awaits nobody": lambda site: site.outstanding[1].awaited.clear(),
    "awaits itself": lambda site: site.outstanding[1].awaited.add(0),
    "a copy is due before the deadline": put("deadline", NEVER),
    "arrived below the mark": lambda site: site.seen[1].above.update({3: None}),
    "the mark has not moved": lambda site: site.seen[1].above.update({6: None}),
    "arrived beyond the pipeline": lambda site: site.seen[1].above.update({FAR: None}),
}


@pytest.mark.parametrize("name", OF_POSITIVE_ACK)
def test_a_broken_invariant_of_positive_acknowledgement_is_noticed(name: str) -> None:
    refuses(source(), OF_POSITIVE_ACK[name])


# -- AutoRM -----------------------------------------------------------------------------------


def beamon() -> Any:
    """Knows two nodes, has sent a message of two packets, and has one of three in part."""
    node = beamons.node(ack_jitter_ns=1)
    node.join(beamons.G, 0)
    for k in (1, 2):
        node.receive(beamons.heartbeat(k), k, 0)
    node.send_everyone(beamons.G, bytes(2000), 0, tag=1)
    node.send_everyone(beamons.G, b"next", 0, tag=2)
    node.receive(beamons.data(1, seq=1), 1, 0)
    node.receive(beamons.data(1, seq=2, number=2, count=4), 1, 0)
    return node


def transfer(node: Any) -> Any:
    return next(iter(node.active.values()))


def reassembly(node: Any) -> Any:
    return next(iter(node.inbound.assembling.values()))


OF_AUTORM: dict[str, Break] = {
    "a node hears itself": put("uuid", beamons.uuid(1)),
    "something is due before the deadline": put("deadline", NEVER),
    "a message waits for nothing": lambda node: node.queues.update({"other": deque([1])}),
    "a queue of nothing": lambda node: node.queues.update({"": deque()}),
    "under way under no number": lambda node: node.by_seq.clear(),
    "fewer bytes queued than under way": put("queued_bytes", 1),
    "bytes wait in no queue": lambda node: node.queues.clear(),
    "owed to nobody": lambda node: transfer(node).targets.clear(),
    "owed to one who has it": lambda node: transfer(node).reached.append(beamons.uuid(1)),
    "waits for ever": lambda node: put("due", NEVER)(transfer(node)),
    "waits for what is not sent": lambda node: put("cursor", 0)(transfer(node)),
    "has sent what there is not": lambda node: put("sent_upto", FAR)(transfer(node)),
    "a report is not counted": lambda node: put("_sum", 0)(node.environment),
    "more nodes than the table has room for": lambda node: put(
        "config", beamons.config(nodes_max=1)
    )(node.environment),
    "here and gone": lambda node: node.environment.gone.update({beamons.uuid(1): None}),
    "a member that does not declare its group": lambda node: node.environment.by_group.update(
        {"other": {beamons.uuid(1): None}}
    ),
    "a group of nobody": lambda node: node.environment.by_group.update({"other": {}}),
    "a part is not counted": lambda node: reassembly(node).parts.pop(2),
    "all parts are here": lambda node: put("count", 1)(reassembly(node)),
    "incomplete and delivered": lambda node: put("seq", 1)(reassembly(node)),
    "incomplete bytes are not counted": lambda node: put("total", 0)(node.inbound),
    "more incomplete than there is room": lambda node: put(
        "config", beamons.config(reassembly_total=1)
    )(node.inbound),
    "an answer is due before its timer": lambda node: put("ack_due", NEVER)(node.inbound),
}


@pytest.mark.parametrize("name", OF_AUTORM)
def test_a_broken_invariant_of_autorm_is_noticed(name: str) -> None:
    refuses(beamon(), OF_AUTORM[name])
