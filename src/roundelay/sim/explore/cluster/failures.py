"""What becomes of a cluster if one of its members stops for good, in any state the explorer meets.

Whatever is under way is lost; the others say what they hold and hand over the rest (TR-16).  Then
all of them must have been given the same, and what is given back to its submitter nobody may have.
"""

from __future__ import annotations

from roundelay.sim.explore.cluster.member_states import (
    Delivered,
    Member,
    destinations_of,
    each_delivered,
)


class Failures:
    """Remembers what it has looked at: the same states of the others, whatever is under way."""

    def __init__(self, members: list[Member], total: bool) -> None:
        self.members = members
        self.total = total
        self._seen: dict[tuple[int, tuple[int, ...]], str] = {}

    def violation(self, states: tuple[int, ...]) -> str:
        """Return what survivors would disagree on, whoever fails in these states of the members."""
        for failed in range(len(states)):
            others = tuple(k for k in range(len(states)) if k != failed)
            key = failed, tuple(states[k] for k in others)
            disagreement = self._seen.get(key)
            if disagreement is None:
                disagreement = self._seen[key] = self._disagreement(states, others)
            if disagreement:
                return f"I2: if {failed} fails now {disagreement}"
        return ""

    def _disagreement(self, states: tuple[int, ...], others: tuple[int, ...]) -> str:
        engines = {k: self.members[k].engine(states[k]) for k in others}
        tails = {k: engine.tail(others) for k, engine in engines.items()}
        delivered: dict[int, tuple[Delivered, ...]] = {}
        returned: dict[bytes, int] = {}
        for k, engine in engines.items():
            engine.flush(tails)
            rest = each_delivered(engine.take().deliveries)
            delivered[k] = self.members[k].locals[states[k]].delivered + rest
            returned |= {data: k for bundle in engine.undelivered() for data in bundle}
        received = {k: {each.data for each in log} for k, log in delivered.items()}
        for data in sorted(set().union(*received.values())):
            for k in others:
                if destinations_of(data) >> k & 1 and data not in received[k]:
                    return f"{k} is not given {data.decode()}, which another was"
            if data in returned:
                return f"{returned[data]} gets {data.decode()} back, which somebody was given"
        for k, log in delivered.items():
            if len(log) > len(received[k]):
                return f"{k} is given something twice"
            if self.total and log != delivered[others[0]]:
                return f"{others[0]} and {k} disagree on the order"
        return ""
