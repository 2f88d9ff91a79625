"""The reset exchange: all members agree on a new epoch and on what everybody holds.

Each member freezes and tells everybody up to where it holds each source's PDUs.  When it has all
n vectors it says so (*done*); when it knows that everybody is done it goes on in the new epoch.
So a member that goes on knows that every other one has the same vectors, or will: phase two of
the three-phase receipt, applied to the reset itself.  TO in channel mode uses it to go back to
the failure point (TO-R1…R5); every cluster can open by it, with vectors of first numbers (TR-14).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable
from random import Random
from typing import Any, ClassVar, Final

from roundelay.core.bundle import Bundle
from roundelay.core.cluster.checks import refusal
from roundelay.core.cluster.config import DYNAMIC, ClusterConfig
from roundelay.core.cluster.flush import Tail, Tails, taken
from roundelay.core.cluster.pdu import Dt, Rst
from roundelay.core.cluster.sending import Sending
from roundelay.core.cluster.state import ISS
from roundelay.core.engine import ACCEPTED, NEVER, ONLY_LINE, UNKNOWN_LIFE, Pdu
from roundelay.core.errors import ConfigError, UsageError
from roundelay.core.notices import GroupBroken, MemberSuspected, Undelivered

# Each timer and what it does, in the order in which they are looked at.
TIMERS: Final = (
    ("ack_due", "on_ack_timer"),
    ("gap_due", "on_gap_timer"),
    ("stat_due", "on_stat_timer"),
    ("rst_due", "on_reset_timer"),
)


class Exchange(Sending):
    """The frame of a member: dispatch, opening, resetting, reopening."""

    __slots__ = ()

    resets: ClassVar[bool] = False
    """Whether members reset an open cluster by themselves."""

    HANDLERS: ClassVar[dict[type[Pdu], Callable[[Any, Any, int], None]]] = {}

    def __init_subclass__(cls) -> None:
        """Each protocol answers to its own PDUs, by the same handlers."""
        kinds = cls.KINDS
        cls.HANDLERS = {
            kinds.data: cls.on_sequenced,
            kinds.null: cls.on_sequenced,
            kinds.retx: cls.on_retx,
            kinds.stat: cls.on_stat,
            kinds.rst: cls.on_rst,
        }

    @abstractmethod
    def on_sequenced(self, pdu: Any, now: int) -> None:
        """A data PDU or a NULL arrived."""

    def on_retx(self, pdu: Any, now: int) -> None:
        """Somebody lacks PDUs of ours; only on media where they can be sent again."""
        self.drop("request in channel mode")

    def on_stat(self, pdu: Any, now: int) -> None:
        self.drop("STAT in channel mode")

    def __init__(
        self, me: int, group: tuple[int, ...], config: ClusterConfig, rng: Random, now: int = 0
    ) -> None:
        super().__init__(me, group, config, rng)
        self.heard = [now] * self.n
        self.open(now)

    def receive(
        self, pdu: Pdu, source: int, now: int, line: int = ONLY_LINE, life: int = UNKNOWN_LIFE
    ) -> None:
        handler = self.HANDLERS.get(pdu.__class__)
        reason = refusal(self, pdu, source) if handler else "not a PDU of this protocol"
        if reason or handler is None:
            self.drop(reason)
            return
        self.heard[self.ranks[source]] = now
        if isinstance(pdu, Dt) and source != self.me and self.crowded(pdu.src):
            self.drop("more than its sender may have under way")
            return
        handler(self, pdu, now)

    def on_timer(self, now: int) -> None:
        for due, action in TIMERS:
            if getattr(self, due) <= now:
                getattr(self, action)(now)
        self.deadline = min(self.ack_due, self.gap_due, self.stat_due, self.rst_due)

    def open(self, now: int) -> None:
        """TR-14: static clusters are open at once, dynamic ones agree on it first."""
        if self.config.boot == DYNAMIC:
            self.start_reset(self.epoch + 1, (ISS,) * self.n, now)

    def reopen(self, group: tuple[int, ...], epoch: int, now: int) -> None:
        """TR-15: go on with another roster, in a new epoch that every member must be given.

        Own messages that were not delivered here are reported back, not sent again: another
        member may have delivered them.
        """
        if self.me not in group or len(set(group)) < len(group):
            raise ConfigError("group", group, f"members, each once, and {self.me} among them")
        self.config.check(len(group))
        if epoch <= self.epoch:
            raise ConfigError("epoch", epoch, f"above {self.epoch}")
        back = tuple(bundle for bundle in self.undelivered() if bundle.sizes)
        back += tuple(bundle for bundle, _ in self.queue)
        self.queue.clear()
        self.group = tuple(sorted(group))
        self.epoch = epoch - 1
        self.position = 0  # another cluster, another order
        self.reset_state()
        self.heard = [now] * self.n
        self.notify(Undelivered(back))
        self.start_reset(epoch, (ISS,) * self.n, now)

    @property
    def has_begun(self) -> bool:
        """Whether anything of this cluster was sent or heard of here."""
        return max(self.treq) > ISS

    def undelivered(self) -> list[Bundle]:
        """Own bundles that were sent and are not delivered here."""
        return [pdu.bundle for pdu in self.waiting() if pdu.src == self.index]

    # -- the end of a cluster --------------------------------------------------------------

    @abstractmethod
    def waiting(self) -> list[Dt]:
        """Data for us that is accepted and not handed over, and own data that is not accepted."""

    @abstractmethod
    def unsure(self, living: int) -> tuple[Dt, ...]:
        """Accepted data that, as far as we know, not all of `living` it is for have."""

    @abstractmethod
    def rest(self, tails: Tails) -> list[Dt]:
        """TR-16: what is still to be handed over here when those with `tails` go on, in order."""

    @property
    def ordered(self) -> bool:
        """Whether what is handed over has places in one order for all."""
        return False

    def position_after(self, tails: Tails) -> int:
        """The next position of the order once the rest has been handed over."""
        rest = self.rest(tails) if self.ordered else []
        return self.position + sum(len(pdu.bundle) for pdu in rest)

    def tail(self, living: Iterable[int]) -> Tail:
        """TR-16: the cluster is over for us; `living` are those who may go on."""
        self.halt()
        mask = sum(1 << self.ranks[member] for member in set(living) & set(self.group))
        return Tail(self.epoch, tuple(self.treq), self.unsure(mask))

    def flush(self, tails: Tails) -> None:
        """TR-16: hand over the rest; whoever does so with the same tails has been given the same.

        `tails` must have ours.  Own messages that were sent and are not among the rest are in
        `undelivered` afterwards; they were handed over nowhere.
        """
        if self.me not in tails or not self.stopped:
            raise UsageError(f"flush at {self.me} without its own tail: call tail() first")
        config = self.config
        early = {(pdu.src, pdu.seq) for pdu in self.handed_over_early()}
        for pdu in self.rest(tails):
            if config.early and (pdu.src, pdu.seq) not in early:
                self.hand_over(pdu, config.early)
            if self.ordered:
                self.hand_over_next(pdu)
            else:
                self.hand_over(pdu, config.deliver_at)
        self.empty_logs(tails)

    def maybe_given(self, tails: Tails) -> list[int]:
        """TR-16, where those with `tails` go on without us: the places, among our own bundles under
        way, of those that somebody else may have been given.

        That is what one with a tail has accepted; and what was for members without a tail alone,
        for they hand over what they know all its destinations to have.  The rest was given to
        nobody, and may be sent again.  Where each message has destinations of its own, one that
        nobody can have been given may be before one that somebody was.
        """
        early = ACCEPTED in (self.config.early, self.config.deliver_at)
        with_tail = sum(1 << self.ranks[member] for member in tails)
        own = [pdu for pdu in self.waiting() if pdu.src == self.index]
        places = []
        for place, pdu in enumerate(own):
            others = self.destinations(pdu) & ~(1 << self.index)
            absent = others & ~with_tail
            given = taken(others, pdu.src, pdu.seq, tails, self.ranks)
            if given or (absent and (early or absent == others)):
                places.append(place)
        return places

    @abstractmethod
    def handed_over_early(self) -> list[Dt]:
        """What is in the logs and was handed over before its time, where that is asked for."""

    @abstractmethod
    def empty_logs(self, tails: Tails) -> None:
        """Nothing waits any more but own data that was not handed over."""

    @abstractmethod
    def opened(self, floor: tuple[int, ...], now: int) -> None:
        """The exchange is complete: `floor` is what everybody holds, per source."""

    def start_reset(self, epoch: int, vec: tuple[int, ...], now: int) -> None:
        """TO-R1: freeze, and say what we hold."""
        self.rst = epoch
        self.rst_tries = 0
        self.vecs = {self.index: vec}
        self.done = 0
        self.missed = [0] * self.n
        self.ack_due = self.stat_due = self.gap_due = NEVER
        self.say_vector(now)
        self.check_vectors(now)

    def say_vector(self, now: int) -> None:
        self.send_all(self.vector())
        self.last_poll = now
        wait = self.config.reset_ns
        self.rst_due = self.arm(now + self.rng.randint(wait, wait + wait // 2))

    def vector(self) -> Rst:
        have = sum(1 << k for k in self.vecs)
        return self.KINDS.rst(self.rst, self.index, self.vecs[self.index], have, self.done)

    def on_reset_timer(self, now: int) -> None:
        """Say it again; TR-15: a member that stays away is suspected, then the cluster broken."""
        tardy = now - self.rst_due > self.config.reset_ns
        self.rst_tries += 1
        if not tardy and self.somebody_failed(now):
            return
        if self.rst_tries >= 8 * self.config.attempts:
            # Everybody is heard and yet we do not agree: not the same roster, or not on one epoch.
            behind = [self.group[k] for k in self.everyone if not self.done >> k & 1]
            self.stop(f"no agreement with {behind}")
            return
        self.say_vector(now)

    def somebody_failed(self, now: int) -> bool:
        """TR-15: who answers no poll for R periods is suspected, for 2R the cluster is broken."""
        if self.last_poll < 0:
            return False
        for k in self.everyone:
            if k == self.index:
                continue
            self.missed[k] = 0 if self.heard[k] >= self.last_poll else self.missed[k] + 1
            if self.missed[k] >= self.config.attempts and not self.suspected >> k & 1:
                self.suspected |= 1 << k
                self.notify(MemberSuspected(self.group[k]))
        away = self.given_up()
        if away:
            self.break_up(away)
        return bool(away)

    def on_stat_timer(self, now: int) -> None:
        """TR-7: poll while something has waited for t_stat and more.

        TR-15: who polls late has been standing still itself, and blames nobody for what it missed.
        """
        tardy = now - self.stat_due > self.config.stat_ns
        self.stat_due = NEVER
        if self.rst >= 0 or self.stopped or not self.busy():
            self.last_poll = -1
            return
        waiting = self.pending()
        stuck = not waiting.isdisjoint(self.waited)
        self.waited = waiting
        self.stat_due = self.arm(now + self.config.stat_ns)
        if not stuck:
            self.last_poll = -1
        elif tardy or not self.somebody_failed(now):
            self.last_poll = now
            self.poll(now)

    @abstractmethod
    def poll(self, now: int) -> None:
        """Make everybody say where they stand."""

    def given_up(self) -> tuple[int, ...]:
        """TR-15: the members that have answered nothing for 2R polls."""
        most = 2 * self.config.attempts
        return tuple(self.group[k] for k in self.everyone if self.missed[k] >= most)

    def break_up(self, away: tuple[int, ...]) -> None:
        self.stop(f"no answer from {sorted(away)}")

    def stop(self, why: str) -> None:
        """TR-15: nothing can be agreed on any more; the owner may reopen the cluster."""
        self.halt()
        self.notify(GroupBroken(why))

    def halt(self) -> None:
        self.stopped = True
        self.ack_due = self.stat_due = self.gap_due = self.rst_due = NEVER

    def go_back(self, now: int) -> None:
        """TO-R1: to the failure point, in the next epoch; we hold what we have accepted."""
        self.start_reset(self.epoch + 1, tuple(self.treq), now)

    def on_rst(self, pdu: Rst, now: int) -> None:
        """TO-R2, TO-R5."""
        if self.stopped or pdu.src == self.index:
            return
        if pdu.epoch == self.epoch and self.last_vec:
            # TO-R5: we have finished, so everybody is done; the sender may not know.
            everyone = self.everyone_mask
            if pdu.have != everyone or pdu.done != everyone:
                vec = self.last_vec
                self.send_to(
                    pdu.src, self.KINDS.rst(self.epoch, self.index, vec, everyone, everyone)
                )
            return
        if self.rst < 0 and not self.resets:
            self.drop("reset of an open cluster")  # only its owner may open it again
        elif self.rst < 0:
            if pdu.epoch == self.epoch + 1:
                self.go_back(now)
        elif self.resets and pdu.epoch == self.rst + 1 and self.done >> self.index & 1:
            # Somebody has finished the one we are in, and found the next failure.
            self.finish_reset(now)
            self.go_back(now)
        if pdu.epoch != self.rst:
            return
        self.vecs[pdu.src] = pdu.vec
        self.done |= pdu.done
        self.check_vectors(now)

    def check_vectors(self, now: int) -> None:
        """TO-R3: all vectors are here: say so.  TO-R4: everybody has said so: go on."""
        if len(self.vecs) < self.n:
            return
        if not self.done >> self.index & 1:
            self.done |= 1 << self.index
            self.send_all(self.vector())
        if self.done == self.everyone_mask:
            self.finish_reset(now)

    def finish_reset(self, now: int) -> None:
        floor = tuple(min(vec[k] for vec in self.vecs.values()) for k in self.everyone)
        vec = self.vecs[self.index]
        self.epoch, self.rst = self.rst, -1
        self.rst_due = NEVER
        self.rst_tries = 0
        self.last_vec = vec
        self.vecs = {}
        self.debts.clear()
        self.carried.clear()
        self.owed_now.clear()
        self.heard = [now] * self.n
        self.missed = [0] * self.n
        self.last_poll = -1
        self.opened(floor, now)
        self.pump(now)

    def in_epoch(self, pdu: Dt, now: int) -> bool:
        """TR-13: whether a sequenced PDU belongs to us; one of the next epoch ends the reset."""
        if self.stopped:
            return False
        if self.rst >= 0:
            if pdu.epoch == self.rst and self.done >> self.index & 1:
                self.finish_reset(now)
            else:
                return False
        if pdu.epoch != self.epoch:
            self.drop("PDU of another epoch")
            return False
        return True
