"""The bytes of a block: what goes in comes out, and nothing else does."""

from __future__ import annotations

import struct
import tracemalloc
from random import Random

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from roundelay.core.bundle import Bundle
from roundelay.core.errors import ConfigError, MalformedPdu
from roundelay.journal.format import (
    BLOCK_HEAD,
    FILLED,
    Head,
    Run,
    check_block,
    decode_block,
    decode_block_head,
    decode_head,
    encode_block,
    encode_head,
    gap,
    head_only,
    part_of,
)
from tests.journal.make import SENDERS, some_runs

ID = bytes(range(16))

BUNDLES = st.one_of(
    st.lists(st.binary(max_size=12), min_size=1, max_size=6).map(lambda all: Bundle.of(*all)),
    st.tuples(st.binary(min_size=1, max_size=9), st.integers(1, 5)).map(
        lambda one: Bundle.of(*[one[0]] * one[1])
    ),
)


@st.composite
def runs_in_order(draw: st.DrawFn) -> list[Run]:
    at = draw(st.integers(0, 1 << 40))
    runs = []
    for _ in range(draw(st.integers(1, 8))):
        bundle = draw(BUNDLES)
        run = Run(
            at, draw(st.integers(0, 1 << 62)), draw(st.sampled_from([*SENDERS, "", "x" * 300])),
            bundle, draw(st.integers(0, (1 << 32) - 1)), draw(st.integers(0, (1 << 32) - 1)),
            draw(st.integers(-1, 1 << 60)), count=len(bundle),
        )  # fmt: skip
        shape = draw(st.sampled_from(["whole", "whole", "heads", "gap"]))
        if shape == "heads":
            run = head_only(run)
        elif shape == "gap":
            run = gap(at, at + draw(st.integers(1, 1 << 31)), 5)
        runs.append(run)
        at = run.end
    return runs


def decoded(block: bytes) -> list[Run]:
    head = decode_block_head(block)
    check_block(block, head)
    return decode_block(block, head)


@given(runs_in_order())
def test_what_goes_into_a_block_comes_out(runs: list[Run]) -> None:
    total = sum(run.records for run in runs)
    if total >= 1 << 32:
        return
    block = encode_block(runs, ID, 77, 5)
    head = decode_block_head(block)
    assert (head.base, head.count, head.written, head.durable) == (runs[0].position, total, 77, 5)
    assert decoded(block) == runs


def test_a_block_for_a_replay_may_leave_records_out() -> None:
    runs = [structs.replace(run, count=run.records) for run in some_runs(1, 20)]
    assert decoded(encode_block(runs[::3], ID, 77)) == runs[::3]
    with pytest.raises(MalformedPdu):
        decoded(encode_block(runs[::-1], ID, 77))


def test_every_one_bit_flip_of_a_block_is_noticed() -> None:
    block = bytearray(encode_block(some_runs(1, 20), ID, 77))
    for at in range(len(block)):
        for bit in range(8):
            block[at] ^= 1 << bit
            with pytest.raises(MalformedPdu):
                decoded(bytes(block))
            block[at] ^= 1 << bit
    assert decoded(bytes(block))


def test_a_block_cut_off_anywhere_is_noticed() -> None:
    block = encode_block(some_runs(1, 20), ID, 77)
    for size in range(len(block)):
        with pytest.raises(MalformedPdu):
            decoded(block[:size])


def test_a_block_that_lies_under_a_right_checksum_is_refused_and_costs_no_memory() -> None:
    """Blocks come over the network too: lengths and counts are claims until they are checked."""
    rng = Random(5)
    good = encode_block(some_runs(1, 8), ID, 77)
    tracemalloc.start()
    refused = 0
    for _ in range(4000):
        block = bytearray(good)
        for _ in range(rng.randint(1, 3)):
            at = rng.randrange(12, len(block) - 4)
            struct.pack_into("<I", block, at, rng.choice((0, 1, 0xFFFF, 0xFFFFFFFF, 1 << 31)))
        struct.pack_into("<I", block, 8, crc32c(bytes(block[12:])))
        try:
            decoded(bytes(block))
        except MalformedPdu:
            refused += 1
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert refused > 1000
    assert peak < 32 << 20


def test_a_segment_head_comes_out_as_it_went_in_and_any_flip_is_noticed() -> None:
    head = Head(ID, 1 << 40, 5, 7, bytes(range(32)), bytes(range(1, 33)), 3, FILLED)
    data = bytearray(encode_head(head))
    assert decode_head(bytes(data)) == head
    for at in range(len(data)):
        for bit in range(8):
            data[at] ^= 1 << bit
            with pytest.raises(MalformedPdu):
                decode_head(bytes(data))
            data[at] ^= 1 << bit
    with pytest.raises(MalformedPdu):
        decode_head(bytes(data[:-1]))


@given(runs_in_order(), st.integers(0, 10), st.integers(0, 10))
def test_a_part_of_a_run_has_the_records_of_that_part(runs: list[Run], a: int, b: int) -> None:
    run = runs[0]
    lo, hi = run.position + min(a, run.records - 1), run.position + run.records - b
    if lo >= hi:
        return
    part = part_of(run, lo, hi)
    assert (part.position, part.end) == (lo, hi)
    assert structs.replace(part, position=0, bundle=run.bundle, count=0) == structs.replace(
        run, position=0, count=0
    )
    if not run.flags:
        whole = run.bundle.messages()
        assert list(part.bundle) == list(whole[lo - run.position : hi - run.position])


def test_a_block_that_would_be_too_large_is_refused_before_it_is_written() -> None:
    run = Run(0, 1, "ann", Bundle.of(bytes(1 << 20)))
    with pytest.raises(ConfigError, match="in one commit"):
        encode_block([structs.replace(run, position=i) for i in range(257)], ID, 1)
    assert BLOCK_HEAD.size == 64
