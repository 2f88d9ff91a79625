"""What the caller may not ask for, and what no correct peer sends."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from roundelay.core.bundle import MESSAGES_MAX, NOTHING, Bundle
from roundelay.core.cluster.config import ClusterConfig
from roundelay.core.cluster.exchange import Exchange
from roundelay.core.cluster.pdu import Dt, Null, Retx, Rst, SpoDt, Stat
from roundelay.core.cluster.po import PoSite
from roundelay.core.cluster.repair import Repair
from roundelay.core.cluster.spo import SpoSite
from roundelay.core.engine import Pdu
from roundelay.core.errors import ConfigError, PayloadTooLarge, QueueFull, UsageError
from tests.core.cluster_net import ENGINES, MS, Net, alone, mask, pdu, stat
from tests.core.sends import sends_of

KINDS = list(ENGINES.values())


# -- the caller's mistakes -------------------------------------------------------------------------


def snapshot(site: Any) -> tuple[Any, ...]:
    return (site.seq, site.usage(), list(site.treq), site.deadline, dict(site.sl), site.drops)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "bundle, error, match",
    [
        (Bundle.of(b"12345678901"), PayloadTooLarge, "max_payload = 10"),
        (Bundle.of(), UsageError, "0 messages"),
        (Bundle.of(*[b""] * (MESSAGES_MAX + 1)), UsageError, "65536 messages"),
    ],
)
def test_a_message_that_cannot_be_sent_changes_nothing(
    kind: type[Any], bundle: Bundle, error: type[Exception], match: str
) -> None:
    site = alone(kind, max_payload=10)
    before = snapshot(site)
    with pytest.raises(error, match=match):
        site.submit(bundle, 0)
    assert snapshot(site) == before
    assert not site.take()


@pytest.mark.parametrize("kind", KINDS)
def test_a_full_queue_refuses_and_changes_nothing(kind: type[Any]) -> None:
    site = alone(kind, window=1, own_limit=2)
    for _ in range(3):  # one is sent, two wait
        site.submit(Bundle.of(b"x"), 0)
    site.take()
    before = snapshot(site)
    with pytest.raises(QueueFull, match="own_limit"):
        site.submit(Bundle.of(b"y"), 0)
    assert snapshot(site) == before
    assert not site.take()


def test_bundling_never_gathers_more_messages_than_the_wire_can_count() -> None:
    site = alone(PoSite, window=1, bundle=True)
    site.submit(Bundle.of(b"first"), 0)
    for _ in range(3):
        site.submit(Bundle.of(*[b""] * 30_000), 0)
    site.take()
    for k in (1, 2):
        site.receive(pdu(PoSite, k, 1, (2, 1, 1)), k, 0)
    ((_, second),) = sends_of(site.take())
    assert len(second.bundle) == 60_000


# -- configuration ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "field, value",
    [
        ("ack_ns", -1),
        ("wait_ns", 0),
        ("stat_ns", 0),
        ("reset_ns", 0),
        ("window", 0),
        ("share", 0),
        ("buffers", -1),
        ("attempts", 0),
        ("retx_burst", 0),
        ("own_limit", 0),
        ("max_payload", 0),
        ("window", "8"),
        ("policy", "lazy"),
        ("deliver_at", "committed"),
        ("boot", "cold"),
    ],
)
def test_a_configuration_that_is_not_allowed_names_the_field(field: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"^{field} = {value} is not allowed"):
        ClusterConfig(**{field: value}).check(3)


@pytest.mark.parametrize("sites", [0, 1, 129])
def test_a_cluster_has_2_to_128_members(sites: int) -> None:
    with pytest.raises(ConfigError, match=r"^sites = "):
        ClusterConfig().check(sites)
    ClusterConfig().check(2)
    ClusterConfig().check(128)


def test_a_member_must_be_in_its_group() -> None:
    with pytest.raises(ConfigError, match=r"^me = 9"):
        PoSite(9, (0, 1, 2), ClusterConfig(), Random(0))


def test_without_a_number_there_is_room_for_64_pdus_per_pair_of_members() -> None:
    assert alone(PoSite, sites=5).capacity == 64 * 25
    assert alone(PoSite, sites=5, buffers=7).capacity == 7


# -- a peer's mistakes -----------------------------------------------------------------------------

GOOD: dict[str, Any] = {
    "epoch": 0,
    "src": 1,
    "seq": 1,
    "ack": (1, 1, 1),
    "buf": 5,
    "bundle": Bundle.of(b"x"),
}
STAT: dict[str, Any] = {
    "epoch": 0, "src": 1, "seq": 1, "pseq": (1, 1, 1), "treq": (1, 1, 1), "preq": (1, 1, 1),
    "buf": 5, "poll": True,
}  # fmt: skip
RST: dict[str, Any] = {"epoch": 1, "src": 1, "vec": (1, 1, 1), "have": 2, "done": 0}
RETX = {"epoch": 0, "by": 1, "src": 0, "lo": 1, "hi": 1}
SPO: dict[str, Any] = {**GOOD, "dst": mask(0), "pseq": (1, 1, 1)}

NAME = "PDU under another member's name"
FIELDS = "sequenced PDU with impossible fields"
DATA = "data PDU without data, or NULL with data"
AHEAD = "acknowledgement of what was never sent"
OUTSIDE = "destination outside the cluster"
BAD_STAT = "STAT with impossible fields"
BAD_RST = "reset with impossible fields"
BAD_RETX = "request with impossible fields"


@pytest.mark.parametrize(
    "kind, pdu_kind, fields, change, reason",
    [
        (PoSite, Dt, GOOD, {"src": 2}, NAME),
        (PoSite, Dt, GOOD, {"src": 7}, NAME),
        (PoSite, Dt, GOOD, {"ack": (1, 1)}, FIELDS),
        (PoSite, Dt, GOOD, {"ack": (1, 1, 1, 1)}, FIELDS),
        (PoSite, Dt, GOOD, {"seq": 0}, FIELDS),
        (PoSite, Dt, GOOD, {"buf": -1}, FIELDS),
        (PoSite, Dt, GOOD, {"bundle": NOTHING}, DATA),
        (PoSite, Null, {**GOOD, "probe": False}, {}, DATA),
        (PoSite, Dt, GOOD, {"ack": (2, 1, 1)}, AHEAD),
        (PoSite, Dt, GOOD, {"ack": (1 << 60, 1, 1)}, AHEAD),
        (SpoSite, SpoDt, SPO, {"dst": mask(0, 3)}, OUTSIDE),
        (SpoSite, SpoDt, SPO, {"pseq": (1, 1)}, OUTSIDE),
        (PoSite, Stat, STAT, {"src": 0}, BAD_STAT),
        (PoSite, Stat, STAT, {"pseq": (1,)}, BAD_STAT),
        (PoSite, Stat, STAT, {"treq": (1, 1, 1, 1)}, BAD_STAT),
        (PoSite, Stat, STAT, {"preq": ()}, BAD_STAT),
        (PoSite, Stat, STAT, {"seq": 0}, BAD_STAT),
        (PoSite, Stat, STAT, {"preq": (1, -4, 1)}, BAD_STAT),
        (PoSite, Stat, STAT, {"buf": -1}, BAD_STAT),
        (PoSite, Stat, STAT, {"treq": (2, 1, 1)}, AHEAD),
        (PoSite, Rst, RST, {"src": 2}, BAD_RST),
        (PoSite, Rst, RST, {"vec": (1, 1)}, BAD_RST),
        (PoSite, Rst, RST, {"vec": (1, 0, 1)}, BAD_RST),
        (PoSite, Rst, RST, {"have": 8}, BAD_RST),
        (PoSite, Rst, RST, {"done": 8}, BAD_RST),
        (PoSite, Retx, RETX, {"by": 2}, BAD_RETX),
        (PoSite, Retx, RETX, {"src": 3}, BAD_RETX),
        (PoSite, Retx, RETX, {"src": -1}, BAD_RETX),
    ],
)
def test_a_pdu_that_cannot_be_right_is_counted_and_changes_nothing(
    kind: type[Any], pdu_kind: type[Any], fields: dict[str, Any], change: Any, reason: str
) -> None:
    site = alone(kind)
    before = snapshot(site)[:-1]
    heard = list(site.heard)
    site.receive(pdu_kind(**{**fields, **change}), 1, MS)
    assert site.drops == {reason: 1}
    assert snapshot(site)[:-1] == before
    assert site.heard == heard
    assert not site.take()


def test_the_same_pdus_without_the_change_are_fine() -> None:
    site = alone(PoSite)
    for good in (Dt(**GOOD), Stat(**STAT), Retx(**RETX)):
        site.receive(good, 1, MS)
    assert not site.drops
    assert site.heard == [0, MS, 0]
    spo = alone(SpoSite)
    spo.receive(SpoDt(**SPO), 1, MS)
    assert not spo.drops
    opening = alone(PoSite, boot="dynamic")
    opening.receive(Rst(**RST), 1, MS)
    assert not opening.drops


def test_what_ends_a_reset_may_not_acknowledge_what_was_never_sent() -> None:
    site = alone(PoSite, boot="dynamic")
    for member in (1, 2):
        site.receive(Rst(**{**RST, "src": member, "have": 7, "done": 0}), member, MS)
    site.receive(Dt(**{**GOOD, "epoch": 1, "ack": (2, 1, 1)}), 1, MS)
    assert site.drops == {AHEAD: 1}
    assert (site.epoch, site.rst) == (0, 1)  # it has not ended on that word
    site.receive(Dt(**{**GOOD, "epoch": 1}), 1, MS)
    assert (site.epoch, site.rst) == (1, -1)


def test_strangers_are_refused() -> None:
    site = alone(PoSite)
    site.receive(Dt(**GOOD), 9, 0)
    assert site.drops == {"PDU of a foreign member": 1}


def test_pdus_of_other_protocols_are_refused() -> None:
    """Each protocol has its own kinds, though the fields be the same."""
    for kind in KINDS:
        site = alone(kind)
        others = [other for other in KINDS if other.KINDS is not kind.KINDS]
        for other in others:
            site.receive(pdu(other, 1, 1, (1, 1, 1), "x"), 1, 0)
            site.receive(stat(other, 1, 1, (1, 1, 1)), 1, 0)
        site.receive(Pdu(), 1, 0)
        assert site.drops == {"not a PDU of this protocol": 2 * len(others) + 1}


def test_a_null_of_spo_may_not_carry_data_either() -> None:
    site = alone(SpoSite)
    data = pdu(SpoSite, 1, 1, (1, 1, 1), "x")
    null = SpoSite.KINDS.null(**{name: getattr(data, name) for name in data.__struct_fields__})
    site.receive(null, 1, 0)
    assert site.drops == {DATA: 1}


def test_a_request_without_end_costs_one_burst() -> None:
    site = alone(PoSite, window=30, buffers=10_000, share=1)
    for _ in range(30):
        site.submit(Bundle.of(b"x"), 0)
    site.take()
    site.receive(Retx(0, 1, 0, -5, 1 << 62), 1, 0)
    assert len(sends_of(site.take())) == 16


def test_numbers_far_ahead_cost_one_request_and_one_buffer() -> None:
    site = alone(PoSite)
    site.receive(pdu(PoSite, 1, 1 << 30, (1, 1, 1 << 31), "x"), 1, 0)
    assert len(sends_of(site.take())) == 1
    assert site.usage()["blocked"] == 1


def test_numbers_behind_which_there_are_no_more_change_nothing() -> None:
    """A number near the end of its 32 bits was believed, and its successor could not be sent."""
    site = alone(PoSite)
    site.receive(pdu(PoSite, 1, 0xFFFFFFFF, (1, 1, 1), "x"), 1, 0)
    site.receive(pdu(PoSite, 1, 1, (1, 1, 0xFFFFFFFF), "x"), 1, 0)
    assert sends_of(site.take()) == []
    assert site.usage()["blocked"] == 0
    assert site.drops == {"sequenced PDU with impossible fields": 2}


def test_no_input_is_raised_upon() -> None:
    """Any fields whatever, as long as their types are right."""
    rng = Random(5)

    def number() -> int:
        return rng.choice([-1, 0, 1, 1, 1, 2, 3, 7, 1 << 40])

    def vector() -> tuple[int, ...]:
        return tuple(number() for _ in range(rng.choice([3, 3, 3, 3, 2, 0])))

    values: dict[str, Callable[[], Any]] = {
        "epoch": lambda: rng.choice([0, 0, 0, 1, 2]), "ack": vector, "pseq": vector,
        "treq": vector, "preq": vector, "vec": vector, "poll": lambda: rng.random() < 0.5,
        "probe": lambda: rng.random() < 0.5,
        "bundle": lambda: rng.choice([NOTHING, Bundle.of(b"x")]),
    }  # fmt: skip
    for kind in KINDS:
        site = alone(kind)
        for step in range(1500):
            pdu_kind = rng.choice(kind.KINDS)
            fields = {name: values.get(name, number)() for name in pdu_kind.__struct_fields__}
            site.receive(pdu_kind(**fields), rng.choice([0, 1, 2, 3]), step * MS)
            if step % 50 == 0:
                site.on_timer(step * MS)
                site.take()
            caps = site.caps()
            assert all(held <= caps[name] for name, held in site.usage().items())
        assert site.drops


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("what", ["data", "NULLs", "both", "backwards"])
@pytest.mark.parametrize("sites", [2, 3, 5])
def test_a_member_that_waits_for_nobody_takes_no_log_beyond_its_limit(
    kind: type[Any], what: str, sites: int
) -> None:
    """Each PDU of it is in turn and every field of it can be right; but it never hears us."""
    site = alone(kind, sites=sites)
    numbers = list(range(1, 2001))
    if what == "backwards":  # what is too early is kept, and all of it comes into turn at once
        numbers = [*range(2, 1001), 1, *range(1001, 2001)]
    for step, seq in enumerate(numbers):
        data = "x" if what in ("data", "backwards") or (what == "both" and seq % 2) else ""
        fields = {"pseq": (seq,) * sites} if kind is SpoSite else {}
        site.receive(pdu(kind, 1, seq, (1,) * sites, data, **fields), 1, step)
        if step % 10 == 0:
            site.on_timer(step * MS)
        site.take()
        caps = site.caps()
        assert {k: v for k, v in site.usage().items() if v > caps[k]} == {}


# -- the frame -------------------------------------------------------------------------------------


def test_a_receiver_must_say_what_it_does_with_what_it_accepts() -> None:
    """The shared half of an engine is not an engine."""
    with pytest.raises(TypeError, match="abstract"):
        Exchange(0, (0, 1), ClusterConfig(), Random(0))  # type: ignore[abstract]
    with pytest.raises(TypeError, match="abstract"):
        Repair(0, (0, 1), ClusterConfig(), Random(0))  # type: ignore[abstract]


def test_the_network_can_be_slow_and_lossy_and_still_no_buffer_overflows() -> None:
    """`Net` compares usage and caps after every step; here with little room."""
    for name, kind in ENGINES.items():
        net = Net(kind, 3, loss=0.2, buffers=40, share=1, window=2, own_limit=6, seed=name,
                  attempts=40)  # fmt: skip
        refused = 0
        for k in range(120):
            try:
                net.submit(k % 3, f"{k}")
            except QueueFull:
                refused += 1
            net.run(2 * MS)
        net.settle()
        net.check(total=name.startswith("to"))
        assert refused
