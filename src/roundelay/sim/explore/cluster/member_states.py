"""One member of an explored cluster: its states, told apart, and what each step makes of them.

What a step of one member does depends on that member alone.  So it is carried out once, by an
engine that ships, and remembered: `Member.move`.  Two states of a member are one when everything in
its engine is the same but for what makes no difference to any later step (LEFT_OUT has the
reasons).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any, Final, NamedTuple

from msgspec import Struct, structs

from roundelay.core.bundle import Bundle
from roundelay.core.cluster.config import ClusterConfig
from roundelay.core.engine import NEVER, Delivery, Pdu
from roundelay.sim.explore.pdus import Numbered
from roundelay.sim.explore.snapshot import Frozen, Snapshots, Still, comparable, slots_of

LEFT_OUT: Final[dict[str, str]] = {
    "me group config rng capacity n ranks index everyone everyone_mask": "the same in all states",
    "out drops": "taken, or only counted",
    "deadline": "the least of the timers",
    "heard missed suspected last_poll rst_tries": "nobody fails while time stands still",
    "resent": "holds back what was sent a moment ago; here moments are as long as they need be",
    "bufs": "there is always room for a window, so they hold nothing back",
}
_IGNORED: Final = frozenset(" ".join(LEFT_OUT).split())

ROOM: Final = 1000
"""The free buffers that every PDU tells of here: what they are makes no difference."""

# Kinds of steps.
SUBMIT: Final = "submit"
RECEIVE: Final = "receive"
ACK: Final = "ack_due"
GAP: Final = "gap_due"
STAT: Final = "stat_due"
RST: Final = "rst_due"

Step = tuple[str, int]
"""What happens, and to what: (SUBMIT, destinations), (RECEIVE, item), (GAP, source), (timer, 0)."""


class Item(NamedTuple):
    """A PDU in the network."""

    source: int
    pdu: Any


class Delivered(NamedTuple):
    """One delivery: whose message, its number of its source's PDUs, the place in the order."""

    source: int
    number: int
    data: bytes
    position: int


class Local(Struct, frozen=True):
    """One state of one member; what others' states have to fit to is spelt out."""

    engine: Frozen
    submitted: tuple[int, ...]
    """Destinations of each message submitted here."""
    delivered: tuple[Delivered, ...]
    """Everything delivered here."""
    acks: bool
    """Whether t_ack runs: then something is still to be said at once."""
    timers: tuple[Step, ...]
    """The other timers that run."""
    epoch: int
    seq: int
    treq: tuple[int, ...]
    al: tuple[tuple[int, ...], ...]


class Move(NamedTuple):
    """What a step does: the state it leads to, and what is sent, in order."""

    to: int
    sends: tuple[tuple[int, int], ...]  # (destination or EVERYONE, item)
    broken: str  # what is broken by the step itself, or ""


def message(source: int, number: int, to: int) -> bytes:
    """Return what a member submits: it says whose it is, which of its messages, and for whom."""
    return f"{source}.{number}/{to}".encode()


def destinations_of(data: bytes) -> int:
    """Return the destinations of such a message, as a set.

    >>> destinations_of(message(0, 1, 0b110))
    6
    """
    return int(data.rpartition(b"/")[2])


def canonical(pdu: Pdu) -> Any:
    """Return `pdu` without what makes no difference."""
    return structs.replace(pdu, buf=ROOM) if hasattr(pdu, "buf") else pdu


def each_delivered(deliveries: Iterable[Delivery]) -> tuple[Delivered, ...]:
    """Return these deliveries message by message."""
    return tuple(
        Delivered(delivery.source, delivery.number, data, delivery.seq)
        for delivery in deliveries
        for data in delivery.bundle
    )


class Member:
    """All states of one member that have been met, by number, and all steps between them."""

    def __init__(
        self,
        me: int,
        group: tuple[int, ...],
        config: ClusterConfig,
        site_class: type[Any],
        items: Numbered[Item],
    ) -> None:
        self.me = me
        self.items = items
        self.locals: list[Local] = []
        self._keys: Numbered[Any] = Numbered()  # what tells states apart
        self.move = cache(self._move)
        self._slots = tuple(name for name in slots_of(site_class) if name not in _IGNORED)
        engine: Any = site_class(me, group, config, Still(0))
        self._snapshots = Snapshots(engine)
        self.first = self._settled(engine, (), ())

    def engine(self, number: int) -> Any:
        """Return a new engine in that state."""
        return self._snapshots.thaw(self.locals[number].engine)

    def _move(self, number: int, step: Step) -> Move:
        """Return what `step` makes of a state."""
        engine, local = self.engine(number), self.locals[number]
        before = levels(engine)
        submitted = local.submitted
        try:
            submitted += self._carry_out(engine, step, len(submitted))
        except Exception as error:  # a bug of an engine is a finding, whatever it looks like
            return Move(0, (), f"engine: {type(error).__name__}: {error}")
        move = self._settled(engine, submitted, local.delivered)
        fell = engine.epoch == local.epoch and any(
            new < old for new, old in zip(levels(engine), before, strict=True)
        )
        return move._replace(broken=f"I8: AL or PAL of {self.me} falls") if fell else move

    def _carry_out(self, engine: Any, step: Step, number: int) -> tuple[int, ...]:
        """Let it happen to `engine`; return the destinations of what was submitted."""
        kind, what = step
        if kind == SUBMIT:
            bundle = Bundle.of(message(self.me, number, what))
            if engine.selective:
                engine.submit(bundle, 0, [k for k in range(engine.n) if what >> k & 1])
            else:
                engine.submit(bundle, 0)
            return (what,)
        if kind == RECEIVE:
            source, pdu = self.items[what]
            engine.receive(pdu, source, 0)
            return ()
        if kind == GAP:
            engine.gaps[what][2] = 0
        setattr(engine, kind, 0)
        engine.on_timer(0)
        return ()

    def _settled(
        self, engine: Any, submitted: tuple[int, ...], delivered: tuple[Delivered, ...]
    ) -> Move:
        """Return the number of the state that `engine` is in now, and what it sent on the way."""
        out = engine.take()
        delivered += each_delivered(out.deliveries)
        engine.rst_tries = 0
        key = (submitted, delivered, self.fingerprint(engine))
        number = self._keys.number(key)
        if number == len(self.locals):
            self.locals.append(self._local(engine, submitted, delivered))
        sends = tuple(
            (dst, self.items.number(Item(self.me, canonical(pdu)))) for dst, pdu, _ in out.sends
        )
        broken = ""
        for notice in out.notices:
            if notice.kind == "broken":
                broken = f"TR-15: {self.me} gives up: {notice.info[0]}"
        return Move(number, sends, broken)

    def _local(
        self, engine: Any, submitted: tuple[int, ...], delivered: tuple[Delivered, ...]
    ) -> Local:
        timers: list[Step] = [(GAP, source) for source in sorted(engine.gaps)]
        timers += [(due, 0) for due in (STAT, RST) if getattr(engine, due) < NEVER]
        return Local(
            engine=self._snapshots.freeze(engine),
            submitted=submitted,
            delivered=delivered,
            acks=engine.ack_due < NEVER,
            timers=tuple(timers),
            epoch=engine.epoch,
            seq=engine.seq,
            treq=tuple(engine.treq),
            al=tuple(map(tuple, engine.al)),
        )

    def fingerprint(self, engine: Any) -> tuple[Any, ...]:
        """Return what decides all later steps of `engine`."""
        return tuple([comparable(getattr(engine, name), canonical) for name in self._slots])


def levels(engine: Any) -> list[int]:
    """Return AL and PAL, one after the other."""
    return [number for rows in (engine.al, engine.pal) for row in rows for number in row]
