"""Bundles that fill several datagrams, sealed and in the clear."""

from __future__ import annotations

import asyncio

import pytest

import roundelay
from roundelay.client.group import Group
from roundelay.node.driver import engines
from tests.node.live import multicast, node_of

MESSAGES = 20_000


async def read(group: Group, count: int) -> tuple[list[bytes], int]:
    """The first messages, and how many came in the largest batch."""
    found: list[bytes] = []
    largest = 0
    async for batch in group.batches():
        assert batch.seq == len(found)
        found += batch.bundle.messages()
        largest = max(largest, len(batch.bundle.data))
        if len(found) >= count:
            break
    return found, largest


@pytest.mark.parametrize("insecure", [False, True])
async def test_messages_in_large_bundles_arrive_whole_and_in_order(insecure: bool) -> None:
    options = {"multicast": multicast(), "interface": "lo", "insecure": insecure}

    async with (
        roundelay.join("bulk", name="a", **options) as one,
        roundelay.join("bulk", name="b", **options) as two,
    ):
        await asyncio.gather(one.ready(2), two.ready(2))
        sent = [f"message {number}".encode().ljust(64) for number in range(MESSAGES)]
        readers = [asyncio.ensure_future(read(group, MESSAGES)) for group in (one, two)]
        for start in range(0, MESSAGES, 500):
            await one.post(sent[start : start + 500])
        for messages, largest in await asyncio.gather(*readers):
            assert messages == sent
            medium = node_of(one).medium
            assert largest <= engines.bundle_bytes(medium.mtu, medium.burst)
            if medium.burst >= 8 << 20:  # as much as we ask for
                assert largest > medium.mtu
