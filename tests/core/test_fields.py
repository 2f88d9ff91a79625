"""PDUs say of each field what kind it is and what it means."""

from __future__ import annotations

from typing import Annotated

import pytest

from roundelay.core.cluster.pdu import SpoDt
from roundelay.core.engine import Pdu
from roundelay.core.fields import (
    Bundled,
    Field,
    Integer,
    ListVersion,
    Nested,
    Stamp,
    Truth,
    Vector,
    fields_of,
)
from roundelay.core.token.pdu import Ack, Confirm, Entry, RecoverData, RetxAck, Vote1


def test_a_field_has_a_name_a_kind_and_a_meaning() -> None:
    assert list(fields_of(Confirm))[:2] == [
        Field("tl", ListVersion(), ""),
        Field("ts", Integer(64, -1, 2**63 - 1), "the acknowledgement that brought the token"),
    ]


def test_the_type_tells_the_kind_of_truths_bundles_and_objects() -> None:
    assert [field.kind for field in fields_of(RetxAck)] == [Nested(Ack)]
    assert {field.name: field.kind for field in fields_of(Vote1)}["yes"] == Truth()
    assert [field.kind for field in fields_of(Entry)][:2] == [Nested(Ack), Bundled()]
    assert {field.name: field.kind for field in fields_of(RecoverData)}["entries"] == Vector(Entry)


def test_inherited_fields_come_first() -> None:
    names = ["epoch", "src", "seq", "ack", "buf", "bundle", "dst", "pseq"]
    assert [field.name for field in fields_of(SpoDt)] == names


class Plain(Pdu, frozen=True, gc=False):
    ts: Annotated[Stamp, "good"]
    n: int


class Pairs(Pdu, frozen=True, gc=False):
    pairs: Annotated[tuple[int, ...], "of what?"]


@pytest.mark.parametrize("cls, field", [(Plain, "Plain.n"), (Pairs, "Pairs.pairs")])
def test_a_field_that_does_not_say_its_kind_is_refused(cls: type[Pdu], field: str) -> None:
    with pytest.raises(TypeError, match=field):
        list(fields_of(cls))
