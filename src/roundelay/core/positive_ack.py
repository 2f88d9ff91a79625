"""Positive acknowledgement: every receiver answers every message (CM84 §3, §6.2, appendix).

A source multicasts B(s, n) once and keeps it until each of the other N − 1 sites has answered;
whoever has not answered after t_pa gets its own copy, again and again.  Every site hands a message
to its application when it first arrives, a source its own when it transmits it.  Nothing here makes
two sites agree on an order (CM84 Fig. 2): this is the simplest reliable service, and what the
paper's Fig. 6 measures the token protocol against.  N messages per broadcast, whatever the load.

Bounded memory.  A source has at most `pipeline` *consecutive* numbers under way and tells in each B
the lowest of them (`low`): what lies below will not be sent again.  So a receiver needs, per
source, one mark below which it has seen everything it ever will, and fewer than `pipeline` numbers
above it.  A receiver that a source gave up on finds the mark moved past what it lacks and says so
(`missed`).

Restart.  Numbers must never repeat, or a receiver would take a new message for an old one.  A site
numbers its messages upwards from the nanosecond of its start: no site transmits more than one PDU
per nanosecond, so a later life begins above all numbers of an earlier one as long as the site's
clock does not run backwards between them.  Where it may (a monotonic clock and a reboot), stable
storage helps out: numbers are reserved a block at a time (`Reserved`), and a life also begins above
all reserved blocks.  Only the loss of both clock and disk breaks the rule.  The jump itself needs
no care, since `low` carries the receivers across it.  What a site had not got acknowledged when it
crashed is gone, and a restarted receiver may be handed once more what was under way to it.

Deviations
  - B has the field `low` (see above), and numbers have 64 bits; the paper bounds neither memory nor
    restarts.  Tests: test_positive_ack.py, `…_memory_…` and `…_restart…`.
  - `pipeline` limits the span of the numbers under way, not just how many they are.
  - Per-receiver timers all start with the one multicast and have one period, so they stay in step:
    one due time per message stands for them all.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from random import Random
from typing import Annotated, Final, Self

from msgspec import Struct

from roundelay.core.bundle import MESSAGES_MAX, Bundle, gather
from roundelay.core.engine import (
    ACCEPTED,
    EVERYONE,
    MS,
    NEVER,
    ONLY_LINE,
    UNKNOWN_LIFE,
    Delivery,
    Engine,
    Pdu,
)
from roundelay.core.errors import ConfigError, InvariantBroken, PayloadTooLarge, QueueFull
from roundelay.core.fields import Site, Stamp
from roundelay.core.limits import UNLIMITED, whole
from roundelay.core.notices import MemberSuspected, MissedOf

BLOCK: Final = 1 << 20
"""Numbers reserved by one durable record."""

UNHEARD: Final = -1
"""The mark of a source of which nothing has been heard yet."""


class PaB(Pdu, frozen=True, gc=False):
    """B(s, n): message number n of source s; s will not send numbers below `low` again."""

    s: Annotated[Site, "source"]
    n: Annotated[Stamp, "number of the message at its source"]
    bundle: Bundle
    low: Annotated[Stamp, "lowest number the source may send again"]


class PaAck(Pdu, frozen=True, gc=False):
    """ACK(s, n) of the receiver `by`."""

    s: Annotated[Site, "source of the message"]
    n: Annotated[Stamp, "its number"]
    by: Annotated[Site, "receiver"]


class Reserved(Struct, frozen=True, gc=False):
    """Numbers below `upto` may have been used: durable before any of them is sent."""

    upto: int


@dataclass(slots=True, eq=False)
class PositiveAckStable:
    """What survives a crash on disk: the fold of a site's records."""

    upto: int = 0

    def apply(self, record: Struct) -> None:
        if not isinstance(record, Reserved):
            raise TypeError(f"not a record of a positive-acknowledgement site: {record!r}")
        self.upto = max(self.upto, record.upto)


class PositiveAckConfig(Struct, frozen=True, kw_only=True):
    """Group-wide constants of one group; every member must use the same ones.  The defaults are for
    a local network."""

    resend_ns: int = 50 * MS
    """t_pa: silence after which a receiver gets its own copy; must exceed a round trip."""
    attempts: int = 8
    """R: copies that may stay unanswered before the source gives up on the receiver."""
    pipeline: int = 1
    """Consecutive messages a source may have under way at once."""
    fifo: bool = False
    """Hand over the messages of one source in the order of their numbers."""
    bundle: bool = False
    """Put all waiting messages into the next PDU."""
    own_limit: int = 4096
    """Submitted bundles waiting or under way."""
    max_payload: int = 1200
    """Bytes in one bundle."""

    @classmethod
    def paper(cls, unit_ns: int = 50 * MS, **changes: object) -> Self:
        """The settings of CM84's simulation: a source never gives up."""
        values: dict[str, object] = {
            "resend_ns": unit_ns,
            "attempts": UNLIMITED,
            "own_limit": UNLIMITED,
        }
        return cls(**(values | changes))  # type: ignore[arg-type]

    def check(self, sites: int) -> Self:
        """Raise ConfigError unless this configuration can run a group of that many sites."""
        whole("sites", sites, 1, 65535)
        whole("resend_ns", self.resend_ns, 1, NEVER)
        whole("attempts", self.attempts, 0, UNLIMITED)
        whole("own_limit", self.own_limit, 1, UNLIMITED)
        whole("pipeline", self.pipeline, 1, self.own_limit)
        whole("max_payload", self.max_payload, 1, UNLIMITED)
        return self


@dataclass(slots=True, eq=False)
class Outstanding:
    """A message of ours that somebody has not acknowledged yet."""

    pdu: PaB
    awaited: set[int]
    due: int
    tries: int = 0  # copies sent to each site that is still awaited


@dataclass(slots=True, eq=False)
class ReceivedNumbers:
    """The numbers of one source that have arrived: all below `mark`, and those in `above`.

    `above` maps to the bundle while `fifo` holds it back, else to None.
    """

    mark: int = UNHEARD
    above: dict[int, Bundle | None] = field(default_factory=dict)


class PositiveAckSite(Engine):
    """One member; `stable` is what a crash left on its disk, `now` what its clock shows.

    `rng` is there because all engines are made alike: no rule here draws a random number.
    """

    __slots__ = (
        "config", "low", "next_num", "others", "outstanding", "queue", "reserved", "rng", "seen",
        "suspected",
    )  # fmt: skip

    def __init__(
        self,
        me: int,
        group: tuple[int, ...],
        config: PositiveAckConfig,
        rng: Random,
        now: int = 0,
        *,
        stable: PositiveAckStable | None = None,
    ) -> None:
        members = tuple(sorted(set(group)))
        config.check(len(members))
        if me not in members:
            raise ConfigError("me", me, f"a member of the group {members}")
        super().__init__(me, members)
        self.config = config
        self.rng = rng
        self.others = tuple(site for site in members if site != me)
        self.next_num = max(now, stable.upto if stable else 0)
        self.reserved = self.next_num  # numbers from here on need a record first
        self.low = self.next_num  # our lowest number under way, or next_num
        self.outstanding: dict[int, Outstanding] = {}  # awaiting[n], by rising n
        self.queue: deque[Bundle] = deque()  # submitted, not transmitted
        self.seen: dict[int, ReceivedNumbers] = {site: ReceivedNumbers() for site in self.others}
        self.suspected: set[int] = set()

    # -- source ----------------------------------------------------------------------------

    def submit(self, bundle: Bundle, now: int) -> None:
        """PA-1: transmit, or queue while the pipeline is full."""
        config = self.config
        if len(bundle.data) > config.max_payload:
            raise PayloadTooLarge(
                f"{len(bundle.data)} bytes are above max_payload = {config.max_payload}: split them"
            )
        if len(bundle.sizes) > MESSAGES_MAX:
            raise PayloadTooLarge(
                f"{len(bundle.sizes)} messages in one bundle, at most {MESSAGES_MAX}: split it"
            )
        if len(self.queue) + len(self.outstanding) >= config.own_limit:
            raise QueueFull(
                f"{config.own_limit} messages wait for acknowledgements (own_limit): "
                "submit again when some have arrived"
            )
        self.queue.append(bundle)
        self._transmit(now)

    def _transmit(self, now: int) -> None:
        """PA-1: multicast waiting messages, once each, as far as the pipeline allows."""
        queue, out, config = self.queue, self.out, self.config
        while queue and self.next_num - self.low < config.pipeline:
            n = self.next_num
            if n >= self.reserved:
                self.reserved = n + BLOCK
                out.persists.append(Reserved(self.reserved))
            bundle = gather(queue, config.max_payload, config.bundle)
            self.next_num = n + 1
            # A site always receives its own messages.
            out.deliveries.append(Delivery(-1, self.me, n, bundle, ACCEPTED))
            if not self.others:
                self.low = n + 1
                continue
            pdu = PaB(self.me, n, bundle, self.low)
            out.sends.append((EVERYONE, pdu, ONLY_LINE))
            due = self.arm(now + config.resend_ns)
            self.outstanding[n] = Outstanding(pdu, set(self.others), due)

    def _complete(self, n: int, now: int) -> None:
        """Nobody is awaited for number `n` any more: forget it and make room for another."""
        outstanding = self.outstanding
        del outstanding[n]
        low = self.low
        while low < self.next_num and low not in outstanding:
            low += 1
        self.low = low
        if self.queue:
            self._transmit(now)

    def on_timer(self, now: int) -> None:
        """PA-3: a copy to each receiver that has not answered; PA-4: or give up on it."""
        config, sends = self.config, self.out.sends
        deadline = NEVER
        hopeless = []
        for n, message in self.outstanding.items():
            if message.due <= now:
                awaited = message.awaited
                if message.tries >= config.attempts:
                    hopeless.append(n)
                    continue
                message.tries += 1
                message.due = now + config.resend_ns
                for site in self.others:  # in the order of the group, not of a set
                    if site in awaited:
                        sends.append((site, message.pdu, ONLY_LINE))
            if message.due < deadline:
                deadline = message.due
        self.deadline = deadline
        for n in hopeless:
            self._give_up(n, now)

    def _give_up(self, n: int, now: int) -> None:
        """PA-4: R copies went unanswered: report the silent sites and stop waiting for them.

        Said once per silence, not once per message: a later message waits for the site again, as
        PA-1 has it, so that a site that was merely cut off misses nothing sent after its return.
        """
        awaited = self.outstanding[n].awaited
        for site in self.others:
            if site in awaited and site not in self.suspected:
                self.suspected.add(site)
                self.notify(MemberSuspected(site))
        self._complete(n, now)

    # -- receiver --------------------------------------------------------------------------

    def receive(
        self, pdu: Pdu, source: int, now: int, line: int = ONLY_LINE, life: int = UNKNOWN_LIFE
    ) -> None:
        if source not in self.seen:
            self.drop("not a member")
            return
        if isinstance(pdu, PaAck):
            self._on_ack(pdu, source, now)
        elif isinstance(pdu, PaB):
            self._on_message(pdu, source)
        else:
            self.drop("unknown pdu")

    def _on_ack(self, pdu: PaAck, source: int, now: int) -> None:
        """PA-3: the copies to this receiver end with its acknowledgement."""
        if pdu.by != source or pdu.s != self.me or pdu.n >= self.next_num:
            self.drop("bad ack")
            return
        if self.suspected:
            self.suspected.discard(source)
        message = self.outstanding.get(pdu.n)
        if message is not None:  # else an answer to a copy: the first one was enough
            awaited = message.awaited
            awaited.discard(source)
            if not awaited:
                self._complete(pdu.n, now)

    def _on_message(self, pdu: PaB, source: int) -> None:
        """PA-2: hand over a new message at once, acknowledge every copy of it."""
        n, low = pdu.n, pdu.low
        if pdu.s != source or not low <= n < low + self.config.pipeline:
            self.drop("bad message")
            return
        if self.suspected:
            self.suspected.discard(source)
        out = self.out
        out.sends.append((source, PaAck(source, n, self.me), ONLY_LINE))
        seen = self.seen[source]
        above = seen.above
        if low > seen.mark:
            self._skip(seen, source, low)
        if n == seen.mark:
            out.deliveries.append(Delivery(-1, source, n, pdu.bundle, ACCEPTED))
            seen.mark = n + 1
            if above:
                self._advance(seen, source)
        elif n > seen.mark and n not in above:
            if self.config.fifo:
                above[n] = pdu.bundle  # PA-5: hold it back until its predecessors are here
            else:
                above[n] = None
                out.deliveries.append(Delivery(-1, source, n, pdu.bundle, ACCEPTED))

    def _skip(self, seen: ReceivedNumbers, source: int, low: int) -> None:
        """Nothing below `low` will be sent again: move the mark there."""
        above = seen.above
        for n in sorted(n for n in above if n < low):
            self._release(above.pop(n), source, n)
        if seen.mark != UNHEARD:
            # At least the number at the mark is not here: the source gave up on us, or restarted.
            self.notify(MissedOf(source, seen.mark, low))
        seen.mark = low
        if above:
            self._advance(seen, source)

    def _advance(self, seen: ReceivedNumbers, source: int) -> None:
        """Move the mark over the numbers that have arrived."""
        mark, above = seen.mark, seen.above
        while mark in above:
            self._release(above.pop(mark), source, mark)
            mark += 1
        seen.mark = mark

    def _release(self, held: Bundle | None, source: int, n: int) -> None:
        """PA-5: the predecessors of a message that was held back are here, or never will be."""
        if held is not None:
            self.out.deliveries.append(Delivery(-1, source, n, held, ACCEPTED))

    # -- what it holds ---------------------------------------------------------------------

    @property
    def answered_below(self) -> int:
        return self.low

    @property
    def takes_more(self) -> bool:
        return not self.queue

    def busy(self) -> bool:
        return bool(self.queue or self.outstanding)

    def bounds(self) -> dict[str, tuple[int, int]]:
        pipeline, others, outstanding = self.config.pipeline, len(self.others), self.outstanding
        awaited = sum(len(message.awaited) for message in outstanding.values())
        above = max((len(seen.above) for seen in self.seen.values()), default=0)
        return {
            "own": (len(self.queue) + len(outstanding), self.config.own_limit),
            "outstanding": (len(outstanding), pipeline),
            "awaited": (awaited, pipeline * others),
            "above": (above, pipeline - 1),  # per source
            "suspected": (len(self.suspected), others),
        }

    def check_invariants(self) -> None:
        """What is under way is within the pipeline, and what has arrived above the mark too."""
        pipeline, outstanding = self.config.pipeline, self.outstanding
        if not self.low <= self.next_num <= self.reserved:
            raise InvariantBroken(
                f"low {self.low} ≤ next_num {self.next_num} ≤ reserved {self.reserved} is not true"
            )
        if self.next_num - self.low > pipeline:
            raise InvariantBroken(f"{self.low} to {self.next_num} are under way")
        if next(iter(outstanding), self.next_num) != self.low:
            raise InvariantBroken(f"low is {self.low}, the first under way another")
        if self.queue and self.next_num - self.low < pipeline:
            raise InvariantBroken("a message waits although the pipeline has room")
        if not self.suspected.issubset(self.others):
            raise InvariantBroken(f"suspects {self.suspected}, not all of them other members")
        for n, message in outstanding.items():
            if not message.awaited or not message.awaited.issubset(self.others):
                raise InvariantBroken(f"number {n} awaits {message.awaited}")
            if message.due < self.deadline:
                raise InvariantBroken(f"number {n} is due before the deadline {self.deadline}")
        for site, seen in self.seen.items():
            if seen.above and not seen.mark < min(seen.above) <= max(seen.above) < (
                seen.mark + pipeline
            ):
                raise InvariantBroken(f"{[*seen.above]} of site {site} are above {seen.mark}")
