"""One member of an explored cluster: its states, told apart, and what each step makes of them.

What a step of one member does depends on that member alone.  So it is carried out once, by an
engine that ships, and remembered: `Member.move`.  Two states of a member are one when everything in
its engine is the same but for what makes no difference to any later step (LEFT_OUT has the
reasons).

Time stands still at 0.  Every timer is armed in the future, so none is due by itself; `move` makes
one due by setting it to 0.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final, NamedTuple

from msgspec import Struct, structs

from roundelay.core.bundle import Bundle
from roundelay.core.cluster.config import ClusterConfig
from roundelay.core.cluster.pdu import Dt
from roundelay.core.cluster.state import Carried, ClusterState
from roundelay.core.engine import NEVER, Effects, Pdu
from roundelay.sim.explore.engines import Still

LEFT_OUT: Final[dict[str, str]] = {
    "me group config rng capacity n ranks index everyone everyone_mask": "the same in all states",
    "out drops": "taken, or only counted",
    "deadline": "the least of the timers",
    "heard missed suspected last_poll rst_tries": "nobody fails while time stands still",
    "resent": "holds back what was sent a moment ago; here moments are as long as they need be",
    "bufs": "there is always room for a window, so they hold nothing back",
}  # fmt: skip
_IGNORED: Final = frozenset(name for names in LEFT_OUT for name in names.split())

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


class Said(NamedTuple):
    """One delivery: whose message, its number of its source's PDUs, the place in the order."""

    source: int
    number: int
    data: bytes
    position: int


class Local(Struct, frozen=True):
    """One state of one member; what others' states have to fit to is spelt out."""

    engine: Any
    submitted: tuple[int, ...]
    """Destinations of each message submitted here."""
    said: tuple[Said, ...]
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
    wrong: str  # what is broken by the step itself, or ""


class Items:
    """Numbers the PDUs that were ever sent."""

    def __init__(self) -> None:
        self.all: list[Item] = []
        self._numbers: dict[Item, int] = {}

    def number(self, source: int, pdu: Pdu) -> int:
        item = Item(source, plain(pdu))
        number = self._numbers.get(item)
        if number is None:
            number = self._numbers[item] = len(self.all)
            self.all.append(item)
        return number


def message(source: int, number: int, to: int) -> bytes:
    """What a member submits: it says whose it is, the how manieth, and for whom."""
    return f"{source}.{number}/{to}".encode()


def meant_for(data: bytes) -> int:
    """The destinations of such a message.

    >>> meant_for(message(0, 1, 0b110))
    6
    """
    return int(data.rpartition(b"/")[2])


def plain(pdu: Pdu) -> Any:
    """`pdu` without what makes no difference."""
    return structs.replace(pdu, buf=ROOM) if hasattr(pdu, "buf") else pdu


class Member:
    """All states of one member that have been met, by number, and all steps between them."""

    def __init__(
        self,
        me: int,
        group: tuple[int, ...],
        config: ClusterConfig,
        site_class: type[ClusterState],
        items: Items,
    ) -> None:
        self.me = me
        self.items = items
        self.locals: list[Local] = []
        self._numbers: dict[Any, int] = {}
        self._moves: list[dict[Step, Move]] = []
        self._slots = tuple(
            name
            for kind in site_class.__mro__
            for name in getattr(kind, "__slots__", ())
            if name not in _IGNORED
        )
        engine: Any = site_class(me, group, config, Still(0))
        self.first = self._leave(engine, (), (), engine.take())

    def move(self, number: int, step: Step) -> Move:
        """What `step` makes of a state."""
        move = self._moves[number].get(step)
        if move is None:
            move = self._moves[number][step] = self._carry_out(self.locals[number], step)
        return move

    def _carry_out(self, local: Local, step: Step) -> Move:
        engine = copied(local.engine)
        before = levels(engine)
        submitted = local.submitted
        try:
            submitted += self.carry_out(engine, step, len(submitted))
        except Exception as error:
            return Move(0, (), f"engine: {type(error).__name__}: {error}")
        move = self._leave(engine, submitted, local.said, engine.take())
        fell = engine.epoch == local.epoch and any(
            new < old for new, old in zip(levels(engine), before, strict=True)
        )
        return move._replace(wrong=f"I8: AL or PAL of {self.me} falls") if fell else move

    def carry_out(self, engine: Any, step: Step, number: int) -> tuple[int, ...]:
        """Let it happen to `engine`; the destinations of what was submitted."""
        kind, what = step
        if kind == SUBMIT:
            bundle = Bundle.of(message(self.me, number, what))
            if engine.selective:
                to = [k for k in range(engine.n) if what >> k & 1]
                engine.submit(bundle, 0, to)
            else:
                engine.submit(bundle, 0)
            return (what,)
        if kind == RECEIVE:
            source, pdu = self.items.all[what]
            engine.receive(pdu, source, 0)
            return ()
        if kind == GAP:
            engine.gaps[what][2] = 0
        setattr(engine, kind, 0)
        engine.on_timer(0)
        return ()

    def _leave(
        self, engine: Any, submitted: tuple[int, ...], said: tuple[Said, ...], out: Effects
    ) -> Move:
        """The number of the state that `engine` is in now, and what it has sent on the way."""
        for delivery in out.deliveries:
            for data in delivery.bundle:
                said += (Said(delivery.source, delivery.number, data, delivery.seq),)
        engine.rst_tries = 0
        key = (submitted, said, self.fingerprint(engine))
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self.locals)
            self.locals.append(self._local(engine, submitted, said))
            self._moves.append({})
        sends = tuple((dst, self.items.number(self.me, pdu)) for dst, pdu, _ in out.sends)
        wrong = ""
        for notice in out.notices:
            if notice.kind == "broken":
                wrong = f"TR-15: {self.me} gives up: {notice.info[0]}"
        return Move(number, sends, wrong)

    def _local(self, engine: Any, submitted: tuple[int, ...], said: tuple[Said, ...]) -> Local:
        timers: list[Step] = [(GAP, source) for source in sorted(engine.gaps)]
        timers += [(due, 0) for due in (STAT, RST) if getattr(engine, due) < NEVER]
        return Local(
            engine=engine,
            submitted=submitted,
            said=said,
            acks=engine.ack_due < NEVER,
            timers=tuple(timers),
            epoch=engine.epoch,
            seq=engine.seq,
            treq=tuple(engine.treq),
            al=tuple(map(tuple, engine.al)),
        )

    def fingerprint(self, engine: Any) -> tuple[Any, ...]:
        """What decides all later steps of `engine`."""
        values = [comparable(getattr(engine, name)) for name in self._slots]
        more = getattr(engine, "__dict__", None)  # a mutant may have more to remember
        if more:
            values.append(comparable(more))
        return tuple(values)


def levels(engine: Any) -> list[int]:
    """AL and PAL, one after the other."""
    return [number for rows in (engine.al, engine.pal) for row in rows for number in row]


def comparable(value: Any) -> Any:
    """`value` as something that can be hashed; the same for the same content."""
    if isinstance(value, dict):
        return tuple(sorted((key, comparable(one)) for key, one in value.items()))
    if isinstance(value, list | deque | tuple):
        return tuple([comparable(one) for one in value])
    if isinstance(value, set):
        return tuple(sorted(value))
    if isinstance(value, Carried):
        return (value.need, value.missing, comparable(value.firsts))
    if isinstance(value, Dt):
        return plain(value)
    return value


def copied(engine: Any) -> Any:
    """Another engine in the same state; PDUs and the like never change and are shared."""
    new = object.__new__(engine.__class__)
    seen: dict[int, Any] = {}
    for kind in engine.__class__.__mro__:
        for name in getattr(kind, "__slots__", ()):
            setattr(new, name, _copy(getattr(engine, name), seen))
    for name, value in getattr(engine, "__dict__", {}).items():
        setattr(new, name, _copy(value, seen))
    new.out = Effects()
    return new


def _copy(value: Any, seen: dict[int, Any]) -> Any:
    """A copy of what can change; what is shared (PREQ is TREQ, in PO) stays shared."""
    kind = value.__class__
    if kind in (list, deque, dict, set) or kind is Carried:
        if id(value) not in seen:
            if kind is dict:
                new: Any = {key: _copy(one, seen) for key, one in value.items()}
            elif kind is Carried:
                new = Carried(value.need, value.missing, dict(value.firsts))
            else:
                new = kind(_copy(one, seen) for one in value)
            seen[id(value)] = new
        return seen[id(value)]
    return value
