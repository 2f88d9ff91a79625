"""The shape of every engine: verbs in, one batch of effects out, one deadline; and its errors."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from roundelay.core import errors
from roundelay.core.bundle import NOTHING, Bundle
from roundelay.core.engine import EMPTY, EVERYONE, NEVER, Delivery, Effects, Engine, Notice, Pdu
from roundelay.core.positive_ack import PositiveAckConfig, PositiveAckSite
from roundelay.core.token.config import TokenConfig
from roundelay.core.token.site import TokenSite
from tests.core.ring import MS, Ring

Make = Callable[[int], Engine]


def token(me: int) -> Engine:
    return TokenSite(me, (0, 1, 2), TokenConfig(), Random(me))


def positive_ack(me: int) -> Engine:
    return PositiveAckSite(me, (0, 1, 2), PositiveAckConfig(), Random(me))


ENGINES = pytest.mark.parametrize("make", [token, positive_ack])


# -- the verbs -------------------------------------------------------------------------------


@ENGINES
def test_taking_twice_gives_nothing_the_second_time(make: Make) -> None:
    engine = make(1)
    engine.submit(Bundle.of(b"x"), 0)
    first = engine.take()
    assert first.sends
    assert engine.take() is EMPTY
    assert not EMPTY
    assert first.sends  # what was handed over is the caller's


@ENGINES
def test_nothing_is_ever_written_to_the_empty_batch(make: Make) -> None:
    engine = make(1)
    engine.take()
    assert engine.take() is EMPTY
    engine.submit(Bundle.of(b"x"), 0)
    assert (EMPTY.persists, EMPTY.sends, EMPTY.deliveries, EMPTY.notices) == ([], [], [], [])


@ENGINES
def test_calling_the_timer_early_is_harmless(make: Make) -> None:
    engine = make(1)
    engine.submit(Bundle.of(b"x"), 0)
    engine.take()
    for now in range(0, engine.deadline, engine.deadline // 7):
        engine.on_timer(now)
        assert not engine.take()


@ENGINES
def test_a_foreign_pdu_is_counted_and_dropped(make: Make) -> None:
    class Alien(Pdu, frozen=True):
        pass

    engine = make(1)
    engine.take()
    engine.receive(Alien(), 0, 1)
    engine.receive(Alien(), 0, 2)
    assert sum(engine.drops.values()) == 2
    assert len(engine.drops) == 1
    assert not engine.take()


@ENGINES
def test_same_calls_same_effects(make: Make) -> None:
    def history(engine: Engine) -> list[Any]:
        seen = []
        for k in range(5):
            engine.submit(Bundle.of(b"%d" % k), k)
            engine.on_timer(engine.deadline if engine.deadline < NEVER else k)
            out = engine.take()
            seen.append((out.persists, out.sends, out.deliveries, out.notices, engine.deadline))
        return seen

    assert history(make(1)) == history(make(1))


@ENGINES
def test_what_an_engine_holds_is_named_and_bounded(make: Make) -> None:
    engine: Any = make(1)
    assert engine.usage().keys() <= engine.caps().keys()


def test_an_engine_has_to_have_the_three_verbs() -> None:
    class Half(Engine):
        def submit(self, bundle: Bundle, now: int) -> None: ...

    with pytest.raises(TypeError, match="abstract"):
        Half(0, (0,))  # type: ignore[abstract]


def test_the_state_of_an_engine_is_all_in_slots() -> None:
    """A misspelt field would otherwise be a new one."""
    for make in (token, positive_ack):
        with pytest.raises(AttributeError):
            make(1).nonsense = 1  # type: ignore[attr-defined]


def test_a_batch_is_true_if_there_is_anything_to_do() -> None:
    assert not Effects()
    out = Effects()
    out.notices.append(Notice("broken", ("because",)))
    assert out
    for field, value in (
        ("persists", Notice("x")),
        ("sends", (EVERYONE, Pdu())),
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
