"""What a node multicasts comes back to its own socket; the kernel drops it, the others hear it."""

from __future__ import annotations

import asyncio

from roundelay.node.medium.media import Address, Medium
from roundelay.node.medium.probe import Choice, choose
from tests.node.live import free_ports

PATIENCE_S = 20.0


async def heard(media: list[Medium], sender: Medium) -> list[list[bytes]]:
    """What each medium hears until everybody has heard the end of it."""
    found: list[list[bytes]] = [[] for _ in media]
    for medium, into in zip(media, found, strict=True):
        medium.start(lambda data, source, into=into: into.append(data), lambda: None)  # type: ignore[misc]
    sender.send(b"to everybody")
    for medium in media:
        medium.send(b"end")
    others = len(media) - 1

    def all_done() -> bool:
        return all(each.count(b"end") >= others for each in found)

    async with asyncio.timeout(PATIENCE_S):
        while not all_done():
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.05)  # what comes back comes at once
    for medium in media:
        medium.stop()
    return found


async def media(count: int) -> list[Medium]:
    choice = Choice(interface="lo", multicast=("239.255.66.79", free_ports(1)[0]))
    return [(await choose(choice))[0] for _ in range(count)]


def test_a_node_does_not_hear_itself() -> None:
    async def scene() -> None:
        all_media = await media(3)
        found = await heard(all_media, all_media[0])
        assert [each.count(b"to everybody") for each in found] == [0, 1, 1]
        for medium in all_media:
            medium.close()

    asyncio.run(scene())


def test_what_comes_back_does_not_even_wake_it() -> None:
    async def scene() -> None:
        first, second = await media(2)
        for _ in range(10):
            first.send(b"nobody reads this here")
        second.send(b"but this")
        listener = first._sockets[1]
        arrived: list[tuple[bytes, Address]] = []
        async with asyncio.timeout(PATIENCE_S):
            while (b"but this", second.address) not in arrived:
                try:
                    arrived.append(listener.recvfrom(100))
                except BlockingIOError:
                    await asyncio.sleep(0.01)
        assert {source for _, source in arrived} == {second.address}
        first.close()
        second.close()

    asyncio.run(scene())
