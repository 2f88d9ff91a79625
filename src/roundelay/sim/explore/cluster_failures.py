"""What becomes of a cluster if one of its members stops for good, in any state the explorer meets.

Whatever is under way is lost; the others say what they hold and hand over the rest (TR-16).  Then
all of them must have been given the same, and what is given back to its submitter nobody may have.
"""

from __future__ import annotations

from roundelay.sim.explore.cluster_states import Member, Said, copied, meant_for


class Failures:
    """Remembers what it has looked at: the same states of the others, whatever is under way."""

    def __init__(self, members: list[Member], total: bool) -> None:
        self.members = members
        self.total = total
        self._seen: dict[tuple[int, tuple[int, ...]], str] = {}

    def wrong(self, states: tuple[int, ...]) -> str:
        """What survivors would disagree on, whoever fails in these states of the members."""
        for failed in range(len(states)):
            others = tuple(k for k in range(len(states)) if k != failed)
            key = failed, tuple(states[k] for k in others)
            found = self._seen.get(key)
            if found is None:
                found = self._seen[key] = self._look(states, others)
            if found:
                return f"I2: if {failed} fails now {found}"
        return ""

    def _look(self, states: tuple[int, ...], others: tuple[int, ...]) -> str:
        engines = {k: copied(self.members[k].locals[states[k]].engine) for k in others}
        tails = {k: engine.tail(others) for k, engine in engines.items()}
        said: dict[int, tuple[Said, ...]] = {}
        back: dict[bytes, int] = {}
        for k, engine in engines.items():
            engine.flush(tails)
            handed = tuple(
                Said(one.source, one.number, data, one.seq)
                for one in engine.take().deliveries
                for data in one.bundle
            )
            said[k] = self.members[k].locals[states[k]].said + handed
            back |= {data: k for bundle in engine.undelivered() for data in bundle}
        given = {k: {one.data for one in log} for k, log in said.items()}
        for data in set().union(*given.values()):
            for k in others:
                if meant_for(data) >> k & 1 and data not in given[k]:
                    return f"{k} is not given {data.decode()}, which another was"
            if data in back:
                return f"{back[data]} gets {data.decode()} back, which somebody was given"
        for k, log in said.items():
            if len(log) > len(given[k]):
                return f"{k} is given something twice"
            if self.total and log != said[others[0]]:
                return f"{others[0]} and {k} disagree on the order"
        return ""
