"""Bundles: the messages and their marks, compared with plain lists."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from roundelay.core.bundle import NOTHING, Bundle

numbers = st.sampled_from([0, 0, 7, 8])
messages = st.lists(st.tuples(numbers, numbers, st.binary(max_size=3)), max_size=12)


def bundle_of(said: list[tuple[int, int, bytes]]) -> Bundle:
    parts = [Bundle.of(data).marked(conference, kind) for conference, kind, data in said]
    return Bundle.merged(parts) if parts else NOTHING


def said_in(bundle: Bundle) -> list[tuple[int, int, bytes]]:
    return [
        (conference, kind, data) for conference, kind, part in bundle.by_mark() for data in part
    ]


@given(messages)
def test_merging_keeps_messages_and_marks(said: list[tuple[int, int, bytes]]) -> None:
    bundle = bundle_of(said)
    assert list(bundle) == [data for _, _, data in said]
    assert said_in(bundle) == said
    assert bool(bundle.marks) == any(conference or kind for conference, kind, _ in said)
    assert sum(count for _, _, count in bundle.runs()) == len(said)
    for first, second in zip(bundle.marks, bundle.marks[1:], strict=False):
        assert first[:2] != second[:2]


@given(messages, st.integers(0, 12), st.integers(0, 14))
def test_a_part_is_what_a_slice_of_the_messages_is(
    said: list[tuple[int, int, bytes]], first: int, last: int
) -> None:
    part = bundle_of(said).part(first, last)
    assert said_in(part) == said[first:last]
    assert part == bundle_of(said[first:last])


def test_marking_replaces_marks_and_zeros_are_none() -> None:
    one = Bundle.of(b"a", b"b")
    assert one.marked(0) is one
    assert one.marked(7).marked(0) == one
    assert one.marked(7, 1).marks == ((7, 1, 2),)
    assert NOTHING.marked(7) is NOTHING
    assert NOTHING.runs() == ()
