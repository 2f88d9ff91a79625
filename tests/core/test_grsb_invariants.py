"""The invariants of GRSB sites, and of those of the hierarchy, notice what breaks them: each is
broken here by hand, and there is none that is not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from msgspec import structs

from roundelay.core.bundle import Bundle
from roundelay.core.engine import COMMITTED, MS, NEVER
from roundelay.core.errors import InvariantBroken
from roundelay.core.grsb import invariants as flat
from roundelay.core.grsb.base import GrsbDelivery, Reign
from roundelay.core.grsb.pdu import SINGLE, Alive, Message, ReplayReq, Submit
from roundelay.core.grsb.site import GrsbSite
from roundelay.core.wide import invariants as wide
from roundelay.core.wide.pdu import LsUp
from roundelay.core.wide.site import WideSite
from roundelay.core.wide.uplink import Pending
from roundelay.sim.families.lines import DATE_US
from tests.sim.grsb_net import Group
from tests.sim.wide_net import Hierarchy

Break = Callable[[Any], object]
FAR = 1 << 40
PENDING = Pending(Submit(1, 0, 0, SINGLE, 0, 0, b"", Bundle.of(b"by hand")), NEVER)


def put(path: str, value: Any) -> Break:
    """Set `part.attribute` to a value, or to what a function makes of the part."""

    def do(part: Any) -> None:
        *names, last = path.split(".")
        holder = part
        for name in names:
            holder = getattr(holder, name)
        setattr(holder, last, value(part) if callable(value) else value)

    return do


def all_of(*breaks: Break) -> Break:
    def do(part: Any) -> None:
        for one in breaks:
            one(part)

    return do


def message(gseq: int) -> Message:
    bundle = Bundle.of(b"by hand")
    return Message(0, gseq, DATE_US, 6, 1, 99, 0, SINGLE, 0, 0, bundle)


def delivery(seq: int) -> GrsbDelivery:
    return GrsbDelivery(seq, 6, 1, Bundle.of(b"by hand"), COMMITTED)


BREAKS: dict[str, tuple[Break, Mapping[str, Break]]] = {
    "RETRANSMITTER": (lambda group: group.cr, {
        "its history has no hole": lambda cr: cr.sequencer.history.messages.pop(
            cr.sequencer.history.first
        ),
        "its history ends where the next message begins": put("sequencer.next", FAR),
        "one that stands by has nothing to say": put("reigning", False),
    }),
    "REIGNING": (lambda group: group.cr, {
        "start ≤ acked ≤ next, and recorded ≤ acked": put("recorded", FAR),
        "what is not acknowledged is outstanding": all_of(
            put("acked", lambda cr: cr.acked - 1), put("recorded", 0), put("sequencer.start", 0)
        ),
        "at most a window is outstanding": all_of(
            lambda cr: [cr.sequencer.remember(message(cr.sequencer.next)) for _ in range(2)],
            lambda cr: cr.outstanding.extend(cr.sequencer.history.since(cr.acked)),
        ),
        "what is outstanding is repeated": put("bcast_due", 0),
        "its reign is the last that was heard of": put("epoch", 99),
        "it is no candidate": all_of(
            put("host.candidate.phase", "preparing"), put("host.candidate.due", 1)
        ),
    }),
    "CANDIDATE": (lambda group: group.site(1).candidate, {
        "one that is on its way has a next step": put("phase", "preparing"),
        "one that installs has a state and an acknowledger": all_of(
            put("phase", "installing"), put("due", 1)
        ),
        "its own council member has promised its epoch": all_of(
            put("phase", "preparing"), put("due", 1), put("epoch", 99)
        ),
    }),
    "COUNCIL": (lambda group: group.site(4).council, {
        "what is accepted was promised": put("accepted", Reign(99, 0, 2)),
    }),
    "ACKNOWLEDGER": (lambda group: group.da, {
        "its buffer has no hole": lambda da: da.ring.messages.pop(da.ring.first),
        "it acknowledges in no epoch above what was promised": put("epoch", 99),
    }),
    "ACKNOWLEDGING": (lambda group: group.da, {
        "first ≤ safe ≤ acked ≤ expected": put("safe", FAR),
        "no recorder has more than was acknowledged": lambda da: da.marks.update({4: FAR}),
        "without a delay nothing waits for it": lambda da: (
            da.ring.add(message(da.ring.end))
        ),
    }),
    "LISTENER": (lambda group: group.user(6).listener, {
        "stable ≤ top": put("top", 0),
        "nothing is kept that has been released": lambda listener: listener.heard.update(
            {0: message(0)}
        ),
        "at most heard_max are kept behind a gap": put(
            "heard", lambda listener: {FAR + at: message(FAR + at) for at in range(300)}
        ),
    }),
    "SAFE": (lambda group: group.recorder().listener, {
        "nothing is released that is not stable": put("stable", 1),
    }),
    "RECORDER": (lambda group: group.recorder(), {
        "its archive ends at its mark, or before": all_of(
            put("listener.next", 1), lambda recorder: recorder.recent.clear()
        ),
        "what it has at hand is recorded": lambda recorder: recorder.recent.update(
            {FAR: message(FAR)}
        ),
        "it is in the epoch of its site": put("listener.epoch", 99),
        "what it lacks it asks for": all_of(
            put("listener.stable", FAR), put("listener.top", FAR)
        ),
        "a request that waits is served": lambda recorder: recorder.requests.update(
            {6: ReplayReq(0, 0, 0, 1, (), (), (), 1)}
        ),
    }),
    "SUBMITTER": (lambda group: group.user(6), {
        "persisted ≤ done ≤ upto": put("upto", 1),
        "what is under way is repeated": put("submit_due", 5),
        "what waits, waits for what is under way": lambda user: user.queue.append(None),
    }),
    "USER": (lambda group: group.user(6), {
        "it listens from where it is, or where open units began": all_of(
            put("listener.next", FAR), put("listener.stable", FAR), put("listener.top", FAR)
        ),
        "its epoch is that of its site, or one that a recorder told it of": put(
            "listener.epoch", -1
        ),
        "the epoch is on disk before anything is delivered in it": all_of(
            put("persisted", lambda user: structs.replace(user.persisted, epoch=-1)),
            lambda user: user.host.out.deliveries.append(delivery(FAR)),
        ),
        "it reads what it lacks, and nothing else": put("reader.repairs.due", 5),
    }),
    "SITE": (lambda group: group.site(6), {
        "its roles have heard each other": lambda site: site.local.append((None, 0)),
        "no epoch was announced that has not begun": put("announced", 99),
    }),
}  # fmt: skip

WIDE_BREAKS: dict[str, tuple[Break, Mapping[str, Break]]] = {
    "GCR": (lambda world: world.gcr, {
        "of every network, safe ≤ acked, and nothing is that was never sent": lambda gcr: put(
            "safe", FAR
        )(gcr.branches[1]),
        "one that stands by waits for no network": all_of(
            lambda gcr: gcr.stand_by(), put("round_due", 5)
        ),
        "AckGCRs are held back in their order, of what is stable": lambda gcr: gcr.held.append(
            (1, message(FAR))
        ),
    }),
    "UPLINK": (lambda world: world.lcr(1).uplink, {
        "what is at hand is in a row, up to what is awaited": lambda uplink: uplink.ready.append(
            message(FAR)
        ),
        "one that stands by has nothing at hand, and sends nothing up": all_of(
            put("running", False), lambda uplink: uplink.pending.update({9: PENDING})
        ),
    }),
    "LCR": (lambda world: world.lcr(1), {
        "its uplink runs while it reigns": put("uplink.running", False),
        "what comes down goes on where the network is": all_of(
            put("uplink.listener.next", FAR), put("uplink.listener.stable", FAR),
            put("uplink.listener.top", FAR),
        ),
        "what waits for its place was sent up": lambda lcr: lcr.uplink.pending.update({9: PENDING}),
    }),
    "PACER": (lambda world: world.pacer, {
        "what is under way is the next, and is repeated": put("under_way", message(0)),
    }),
    "FLOOD": (lambda world: world.node.flood, {
        "what is held lies behind a gap": all_of(
            lambda flood: flood.held.update({flood.next: message(flood.next)}),
            put("gap_due", NEVER - 1),
        ),
        "a gap has an end": lambda flood: flood.held.update({FAR: message(FAR)}),
        "what has no RESPONSE is sent again": lambda flood: flood.waiting.update(
            {(FAR, 1): [0, 0]}
        ),
        "what is kept for neighbours was taken": lambda flood: flood.kept.update(
            {FAR: message(FAR)}
        ),
    }),
    "NODE": (lambda world: world.node, {
        "what climbs has its slot": put(
            "climb.slot", LsUp(1, 1, 1, 0, SINGLE, 0, 0, Bundle.of(b""), 0, ())
        ),
    }),
    "SITE": (lambda world: world.top, {
        "its levels have heard each other": lambda site: site.loop.append((None, 0)),
        "all that its levels want done is gathered": lambda site: site.local.send(
            1, Alive(0, 0, 0, 0, 0, 0, 0, 0)
        ),
        "no part is due before it": put("deadline", NEVER + 1),
    }),
}  # fmt: skip


def running() -> Group:
    """A group that has delivered and recorded some messages."""
    group = Group()
    group.chat(10)
    group.run(3)
    assert group.recorder().mark == 10
    return group


def hierarchy() -> Any:
    """Two networks that have done so; the first has a subnet."""
    world: Any = Hierarchy(networks=(4, 4), subnets=(2, 0))
    world.chat(6)
    world.run(5)
    network = world.network(1)
    world.pacer = world.world.site(network.recorders[0]).local.pacer
    world.node = world.world.site(network.nodes[0]).node
    world.top = world.world.site(network.retransmitters[0])
    return world


@pytest.mark.parametrize(
    ("table", "rule"), [(table, rule) for table in BREAKS for rule in BREAKS[table][1]]
)
def test_a_broken_invariant_of_a_site_is_noticed(table: str, rule: str) -> None:
    group = running()
    sites = [group.site(number) for number in group.world.group]
    part_of, breaks = BREAKS[table]
    breaks[rule](part_of(group))
    assert rule in [broken(site) for site in sites]


@pytest.mark.parametrize(
    ("table", "rule"), [(table, rule) for table in WIDE_BREAKS for rule in WIDE_BREAKS[table][1]]
)
def test_a_broken_invariant_of_the_hierarchy_is_noticed(table: str, rule: str) -> None:
    world = hierarchy()
    sites = [world.world.site(number) for number in world.world.group]
    part_of, breaks = WIDE_BREAKS[table]
    breaks[rule](part_of(world))
    assert rule in [broken(site) for site in sites]


def broken(site: GrsbSite | WideSite) -> str:
    """The rule that a site says it breaks."""
    try:
        site.check_invariants()
    except InvariantBroken as error:
        return str(error).partition("not so: ")[2]
    return ""


@pytest.mark.parametrize(("module", "breaks"), [(flat, BREAKS), (wide, WIDE_BREAKS)])
def test_every_rule_is_broken_here(module: Any, breaks: Any) -> None:
    tables = {name: table for name, table in vars(module).items() if name.isupper()}
    rules = {
        name: set(table)
        for name, table in tables.items()
        if isinstance(table, dict) and (module is flat or table is not vars(flat).get(name))
    }
    assert rules == {name: set(cases) for name, (_, cases) in breaks.items()}


def test_an_invariant_that_breaks_stops_a_simulated_run() -> None:
    group = running()
    group.da.safe = FAR
    with pytest.raises(InvariantBroken, match="first ≤ safe"):
        group.world.run(group.world.now + 5000 * MS)
