"""The shape of every engine: verbs in, one batch of effects out, one deadline; and its errors."""

from __future__ import annotations

import inspect
from random import Random
from typing import Any, NamedTuple

import pytest
from msgspec import Struct

from roundelay.core import errors
from roundelay.core.autorm.beamon import Beamon
from roundelay.core.autorm.config import AutoRmConfig
from roundelay.core.bundle import NOTHING, Bundle
from roundelay.core.cluster.channel import ToChannelSite
from roundelay.core.cluster.config import ClusterConfig
from roundelay.core.cluster.po import PoSite
from roundelay.core.cluster.spo import SpoSite
from roundelay.core.cluster.to import ToSite
from roundelay.core.engine import (
    EMPTY,
    EVERYONE,
    NEVER,
    NO_POSITION,
    ONLY_LINE,
    Delivery,
    Effects,
    Engine,
    Pdu,
)
from roundelay.core.families import FAMILIES, FIFO, NONE, TOTAL
from roundelay.core.grsb.config import SEPARATE, GrsbConfig, Roles
from roundelay.core.grsb.site import GrsbSite
from roundelay.core.notices import notice
from roundelay.core.positive_ack import PositiveAckConfig, PositiveAckSite
from roundelay.core.token.config import TokenConfig
from roundelay.core.token.site import TokenSite
from roundelay.core.wide.site import WideSite
from roundelay.core.wide.topology import Atlas
from roundelay.sim.families.registry import SIMULATED_FAMILIES
from roundelay.sim.families.wide import WideGroup
from tests.core.ring import MS, Ring

GROUP = (0, 1, 2)
ROLES = Roles.profile(SEPARATE, 6)
WIDE = WideGroup(networks=(4, 4), subnets=(0, 2))
ATLAS = Atlas(WIDE.topology())


class Case(NamedTuple):
    """An engine: how it is made, for a site that has an application."""

    engine: Any
    group: Any
    config: Struct
    me: int = 1
    given: dict[str, Any] = {}  # noqa: RUF012 - constants
    submit: dict[str, Any] = {}  # noqa: RUF012

    def __call__(self) -> Engine:
        engine = self.engine(self.me, self.group, self.config, Random(self.me), now=0, **self.given)
        assert isinstance(engine, Engine)
        return engine

    def send(self, engine: Any, text: bytes, now: int) -> None:
        engine.submit(Bundle.of(text), now, **self.submit)


CASES = {
    "token": Case(TokenSite, GROUP, TokenConfig()),
    "positive-ack": Case(PositiveAckSite, GROUP, PositiveAckConfig()),
    "to": Case(ToSite, GROUP, ClusterConfig()),
    "to-channel": Case(ToChannelSite, GROUP, ClusterConfig()),
    "po": Case(PoSite, GROUP, ClusterConfig()),
    "spo": Case(SpoSite, GROUP, ClusterConfig()),
    "grsb": Case(GrsbSite, ROLES, GrsbConfig(), ROLES.users[0]),
    "wide": Case(WideSite, ATLAS, WIDE, ATLAS.networks[1].users[0]),
    "wide, behind a broadcaster": Case(WideSite, ATLAS, WIDE, ATLAS.networks[2].nodes[0]),
    "autorm": Case(
        Beamon, GROUP, AutoRmConfig(), given={"uuid": bytes(range(16))}, submit={"group": "news"}
    ),
}
ENGINES = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())


def prompted(engine: Engine, spare: Effects | None = None) -> Effects:
    """A batch with sends, for which some timers may have to come first."""
    for _ in range(20):
        out = engine.take(spare)
        if out.sends:
            return out
        engine.on_timer(engine.deadline)
    raise AssertionError("nothing is sent")


def batch(out: Effects) -> tuple[Any, ...]:
    return out.persists, out.sends, out.deliveries, out.notices


# -- the verbs -------------------------------------------------------------------------------


def test_every_family_is_among_them() -> None:
    assert {case.engine for case in CASES.values()} == {one.engine for one in FAMILIES.values()}
    assert SIMULATED_FAMILIES.keys() == FAMILIES.keys()
    for name, family in FAMILIES.items():
        assert family.name == name
        assert issubclass(SIMULATED_FAMILIES[name].config, family.config)
        assert family.order in (TOTAL, FIFO, NONE)


@ENGINES
def test_all_engines_are_made_in_one_order(case: Case) -> None:
    named = list(inspect.signature(case.engine.__init__).parameters.values())[1:]
    names = [one.name for one in named]
    assert (names[0], *names[2:4]) == ("me", "config", "rng")
    if case.engine is not TokenSite:  # whose `stable` may be given by place
        assert names[4] == "now"
        assert all(one.kind is one.KEYWORD_ONLY for one in named[5:])
    engine = case()
    assert engine.me == case.me
    assert engine.me in engine.group


@ENGINES
def test_taking_twice_gives_nothing_the_second_time(case: Case) -> None:
    engine = case()
    case.send(engine, b"x", 0)
    first = prompted(engine)
    assert first.sends
    assert engine.take() is EMPTY
    assert not EMPTY
    assert first.sends  # what was handed over is the caller's


@ENGINES
def test_a_spare_batch_is_filled_next(case: Case) -> None:
    engine = case()
    case.send(engine, b"x", 0)
    spare = Effects()
    first = prompted(engine, spare)
    assert first is not spare
    assert prompted(engine) is spare


@ENGINES
def test_a_send_names_destination_pdu_and_line(case: Case) -> None:
    engine = case()
    case.send(engine, b"x", 0)
    for destination, pdu, line in engine.take().sends:
        assert destination == EVERYONE or destination in engine.group
        assert destination != engine.me
        assert isinstance(pdu, Pdu)
        assert line >= ONLY_LINE


@ENGINES
def test_nothing_is_ever_written_to_the_empty_batch(case: Case) -> None:
    engine = case()
    engine.take()
    assert engine.take() is EMPTY
    case.send(engine, b"x", 0)
    assert batch(EMPTY) == ([], [], [], [])


@ENGINES
def test_calling_the_timer_early_is_harmless(case: Case) -> None:
    engine = case()
    case.send(engine, b"x", 0)
    engine.on_timer(0)  # some have something to do at once
    engine.take()
    assert 0 < engine.deadline < NEVER
    for now in range(0, engine.deadline, engine.deadline // 7 + 1):
        engine.on_timer(now)
        assert not engine.take()


@ENGINES
def test_a_foreign_pdu_is_counted_and_dropped(case: Case) -> None:
    class Alien(Pdu, frozen=True):
        pass

    engine = case()
    engine.take()
    source = max(other for other in engine.group if other != engine.me)
    engine.receive(Alien(), source, 1)
    engine.receive(Alien(), source, 2, ONLY_LINE, 7)
    assert sum(engine.drops.values()) == 2
    assert len(engine.drops) == 1
    assert not engine.take()


@ENGINES
def test_same_calls_same_effects(case: Case) -> None:
    def history(engine: Engine) -> list[Any]:
        seen = []
        for k in range(5):
            case.send(engine, b"%d" % k, k)
            engine.on_timer(engine.deadline if engine.deadline < NEVER else k)
            seen.append((*batch(engine.take()), engine.deadline))
        return seen

    assert history(case()) == history(case())


@ENGINES
def test_what_an_engine_holds_is_named_and_bounded(case: Case) -> None:
    engine = case()
    case.send(engine, b"x", 0)
    used, caps = engine.usage(), engine.caps()
    assert used
    assert used.keys() <= caps.keys()
    assert all(0 <= used[name] <= caps[name] for name in used)


@ENGINES
def test_an_engine_says_where_it_is_and_that_its_state_is_possible(case: Case) -> None:
    engine = case()
    assert engine.position in (0, NO_POSITION)
    engine.check_invariants()
    case.send(engine, b"x", 0)
    engine.check_invariants()


def test_an_engine_has_to_have_the_three_verbs() -> None:
    class Half(Engine):
        def submit(self, bundle: Bundle, now: int) -> None: ...

    with pytest.raises(TypeError, match="abstract"):
        Half(0, (0,))  # type: ignore[abstract]


def test_the_state_of_an_engine_is_all_in_slots() -> None:
    """A misspelt field would otherwise be a new one."""
    for case in CASES.values():
        if not issubclass(case.engine, GrsbSite | WideSite):
            with pytest.raises(AttributeError):
                case().nonsense = 1  # type: ignore[attr-defined]


def test_a_batch_is_true_if_there_is_anything_to_do() -> None:
    assert not Effects()
    out = Effects()
    out.notices.append(notice("broken", "because"))
    assert out
    for field, value in (
        ("persists", notice("x")),
        ("sends", (EVERYONE, Pdu(), ONLY_LINE)),
        ("deliveries", Delivery(0, 0, 0, NOTHING, "committed")),
    ):
        out = Effects()
        getattr(out, field).append(value)
        assert out


def test_a_deadline_that_does_not_come_is_later_than_any_time() -> None:
    years = 100 * 365 * 86400 * 10**9
    assert years < NEVER


def test_one_random_stream_decides_all_that_is_random() -> None:
    def run(seed: int) -> list[Any]:
        ring = Ring(4, seed=seed)
        for site in (0, 2):
            ring[site].reform(0)
            ring.collect(site)
        ring.submit(1, "x")
        ring.run(5000 * MS)
        return [(sent.time, sent.src, sent.dst, type(sent.pdu).__name__) for sent in ring.sent]

    assert run(1) == run(1)
    assert run(1) != run(2)


# -- bundles ---------------------------------------------------------------------------------


def test_a_bundle_gives_its_messages_back() -> None:
    bundle = Bundle.of(b"", b"a", b"bc", b"")
    assert list(bundle) == [b"", b"a", b"bc", b""]
    assert len(bundle) == 4
    assert bundle.data == b"abc"


def test_merging_bundles_keeps_messages_and_their_order() -> None:
    parts = [Bundle.of(b"a", b""), NOTHING, Bundle.of(b"bcd")]
    assert list(Bundle.merged(parts)) == [b"a", b"", b"bcd"]
    assert Bundle.merged(iter(parts[:1])) is parts[0]
    assert Bundle.merged([]) == NOTHING


def test_a_bundle_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        Bundle.of(b"x").data = b"y"  # type: ignore[misc]


# -- errors ----------------------------------------------------------------------------------


def test_every_error_is_in_one_of_four_families() -> None:
    families = (
        errors.UsageError, errors.GroupTrouble, errors.PeerError, errors.InvariantBroken,
    )  # fmt: skip
    found = [
        kind
        for _, kind in inspect.getmembers(errors, inspect.isclass)
        if issubclass(kind, errors.RoundelayError) and kind is not errors.RoundelayError
    ]
    assert len(found) >= 7
    for kind in found:
        assert sum(issubclass(kind, family) for family in families) == 1
        assert kind.__name__ in (errors.__doc__ or "")  # drawn in the tree


def test_a_malformed_pdu_is_counted_under_its_reason() -> None:
    error = errors.MalformedPdu("short body", "3 bytes of 7")
    assert error.reason == "short body"
    assert str(error) == "short body: 3 bytes of 7"
    assert str(errors.MalformedPdu("short body")) == "short body"
