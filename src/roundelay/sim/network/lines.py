"""Several lines as one medium: a send names its line, and who hears a PDU is told which it was."""

from __future__ import annotations

from functools import partial
from random import Random
from typing import Any

from roundelay.core.engine import ONLY_LINE, Pdu
from roundelay.sim.kernel.member import Member
from roundelay.sim.kernel.ports import Codec
from roundelay.sim.network.links import Copy
from roundelay.sim.network.media import Datagram, Medium


class LineMedium(Datagram):
    """One line, with random delays; it can be cut, for everybody or for some."""

    def __init__(self, line: int, least_ns: int, most_ns: int) -> None:
        super().__init__(least_ns, most_ns)
        self.line = line
        self.cut = False
        self.deaf: set[int] = set()  # sites that neither hear this line nor are heard on it

    def bind(self, world: Any, rng: Random, codec: Codec | None) -> None:
        super().bind(world, rng, codec)
        self.arrive = partial(world.arrive, line=self.line)

    def launch(self, src: int, pdu: Pdu, ref: int, receivers: tuple[Member, ...] | list[Member],
               late: list[tuple[Member, Copy]]) -> None:  # fmt: skip
        if self.cut or src in self.deaf:
            for site in receivers:
                self.world.lose(site.id, ref, src, "cut")
            return
        if self.deaf:
            receivers = [site for site in receivers if site.id not in self.deaf]
            late = [one for one in late if one[0].id not in self.deaf]
        super().launch(src, pdu, ref, receivers, late)


class LineSet(Medium):
    """`delays` has the least and the most of each line, by number."""

    def __init__(self, *delays: tuple[int, int]) -> None:
        super().__init__()
        self.lines = tuple(LineMedium(line, *both) for line, both in enumerate(delays))

    def bind(self, world: Any, rng: Random, codec: Codec | None) -> None:
        super().bind(world, rng, codec)
        for line in self.lines:
            line.bind(world, world.stream(f"line/{line.line}"), codec)

    def send(self, src: int, dst: int, pdu: Pdu, line: int = ONLY_LINE) -> None:
        self.lines[line].send(src, dst, pdu)

    def launch(self, src: int, pdu: Pdu, ref: int, receivers: tuple[Member, ...] | list[Member],
               late: list[tuple[Member, Copy]]) -> None:  # fmt: skip
        raise AssertionError("what is sent is sent on a line, which launches it")
